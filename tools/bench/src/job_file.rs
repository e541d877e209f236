//! fio's job files: sections of options, with comments and variables of the environment.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// A section of a job file, or the options of one `--name` on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) entries: Vec<WrittenOption>,
    /// The position of the section in the input, for messages.
    pub(crate) origin: String,
    /// True for the first section of a file: the jobs of a file wait for those of the previous file.
    pub(crate) begins_file: bool,
}

/// An option as an argument, `--KEY=VALUE`, and its position for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrittenOption {
    pub(crate) argument: String,
    pub(crate) origin: String,
}

/// Looks up the variable NAME of `${NAME}`.
pub(crate) type Environment<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Reads the job file at `path`; `-` is standard input.
///
/// # Errors
/// A sentence that names the file and the line.
pub(crate) fn read(path: &Path) -> Result<Vec<Section>, String> {
    let name = path.display().to_string();
    let text = load(path).map_err(|why| format!("cannot read {name}: {why}"))?;
    let mut sections = sections_of(&text, &name, &|name| std::env::var(name).ok())?;
    let first = sections.first_mut().ok_or_else(|| format!("{name} has no section"))?;
    first.begins_file = true;
    Ok(sections)
}

/// The text of a job file, up to one byte more than [`MAX_FILE_BYTES`]: [`sections_of`] then refuses a longer file.
fn load(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let taken = if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_string(&mut text)
    } else {
        let kind = std::fs::metadata(path).map_err(|error| error.to_string())?.file_type();
        if !kind.is_file() && !kind.is_fifo() {
            return Err("it is neither a regular file nor a pipe".to_owned());
        }
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
    };
    taken.map_err(|error| error.to_string())?;
    Ok(text)
}

/// The sections of a job file with this name and text.
///
/// # Errors
/// A sentence that names the line.
pub(crate) fn sections_of(
    text: &str,
    name: &str,
    env: &Environment<'_>,
) -> Result<Vec<Section>, String> {
    let mut sections = Vec::new();
    let mut len = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let origin = format!("{name}:{number}");
        let wrong = |why: String| format!("{origin}: {why}");
        len += line.len() as u64 + 1;
        let line = expand_variables(without_comment(line).trim(), env, &mut len).map_err(wrong)?;
        if len > MAX_FILE_BYTES {
            return Err(format!("{name} has more than {MAX_FILE_BYTES} bytes with its variables"));
        }
        if !line.is_empty() {
            parse_line(&line, &origin, &mut sections).map_err(wrong)?;
        }
    }
    Ok(sections)
}

/// Parses one line, which is not empty.
fn parse_line(line: &str, origin: &str, sections: &mut Vec<Section>) -> Result<(), String> {
    let origin = origin.to_owned();
    if let Some(rest) = line.strip_prefix('[') {
        let name = rest.strip_suffix(']').ok_or("no ']'")?.trim().to_owned();
        if name.is_empty() {
            return Err("a section needs a name".to_owned());
        }
        sections.push(Section { name, origin, ..Section::default() });
        return Ok(());
    }
    let argument = match line.split_once('=') {
        Some((key, value)) => format!("--{}={}", key.trim(), value.trim()),
        None => format!("--{line}"),
    };
    let section = sections.last_mut();
    let section = section.ok_or_else(|| format!("'{line}' stands before the first [section]"))?;
    section.entries.push(WrittenOption { argument, origin });
    Ok(())
}

/// Replaces every `${NAME}`, and adds the lengths of the values to `len`. Stops once `len` is above [`MAX_FILE_BYTES`].
fn expand_variables(text: &str, env: &Environment<'_>, len: &mut u64) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${")
        && *len <= MAX_FILE_BYTES
    {
        let lacks = || format!("'{text}' lacks the '}}' of '${{'");
        let (name, after) = after.split_once('}').ok_or_else(lacks)?;
        let value = env(name).ok_or_else(|| format!("the variable {name} is not set"))?;
        *len += value.len() as u64;
        out += before;
        out += &value;
        rest = after;
    }
    Ok(out + rest)
}

/// The line up to its comment, which begins with `;` or `#` at the start of the line or after white space. An address
/// may thus contain these characters.
fn without_comment(line: &str) -> &str {
    let mut blank_before = true;
    let end = line.find(|c: char| {
        let begins = blank_before && (c == ';' || c == '#');
        blank_before = c.is_whitespace();
        begins
    });
    &line[..end.unwrap_or(line.len())]
}

/// The most bytes of a job file with its variables, since parsed sections take much more memory than their text.
/// Files written by hand have fewer.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Section>, String> {
        sections_of(text, "job file", &|name| (name == "SIZE").then(|| "64m".to_owned()))
    }

    #[test]
    fn sections_keys_comments_and_variables_are_read() {
        let text =
            "; a comment\n[global]\nbs=4k # why\n\n[a b]\nsize=${SIZE}\nstonewall\nfilename=x#y\n";
        let sections = parsed(text).unwrap();
        assert_eq!(sections[0].name, "global");
        assert_eq!(sections[0].entries[0].argument, "--bs=4k");
        let found: Vec<_> = sections[1].entries.iter().map(|e| e.argument.as_str()).collect();
        assert_eq!(found, ["--size=64m", "--stonewall", "--filename=x#y"]);
        assert_eq!(sections[1].entries[0].origin, "job file:6");
    }

    #[test]
    fn an_invalid_job_file_is_refused_with_its_line() {
        for (text, line) in [("rw=read", "file:1"), ("\n[]", "file:2"), ("[a", "file:1")] {
            assert!(parsed(text).unwrap_err().contains(line), "{text}");
        }
        assert!(parsed("[a]\nsize=${NO}").unwrap_err().contains("NO is not set"));
    }
}
