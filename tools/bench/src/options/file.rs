//! Job files: sections of keys, comments, includes, environment variables.

use std::path::{Path, PathBuf};

use super::text::Budget;

/// A section of a job file, or of a `--name=` on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) entries: Vec<Entry>,
    /// Its position, for messages.
    pub(crate) origin: String,
    /// True if it is the first of a file: a file waits for the previous one.
    pub(crate) begins_file: bool,
}

/// A key, its value, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// `None`: the key has no value.
    pub(crate) value: Option<String>,
    pub(crate) origin: String,
}

/// Reads the job file at `path` and its includes; `-` is standard input.
///
/// # Errors
/// A sentence that names the file and the line.
pub(crate) fn read(path: &Path) -> Result<Vec<Section>, String> {
    let mut sections = Vec::new();
    let mut budget = Budget::default();
    let text = budget.read(path).map_err(|why| format!("cannot read {}: {why}", path.display()))?;
    let env = |name: &str| std::env::var(name).ok();
    let from = From { path, depth: 0, env: &env };
    parse(&text, &from, &mut sections, &mut budget)?;
    match sections.first_mut() {
        Some(first) => first.begins_file = true,
        None => return Err(format!("{} has no section", path.display())),
    }
    Ok(sections)
}

/// The sections of a job file with this text; includes are searched in the current directory.
///
/// # Errors
/// A sentence that names the line.
pub(crate) fn sections_of(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Section>, String> {
    let mut sections = Vec::new();
    let from = From { path: Path::new("job file"), depth: 0, env };
    parse(text, &from, &mut sections, &mut Budget::default())?;
    Ok(sections)
}

/// The origin of a text, and its context.
struct From<'a> {
    path: &'a Path,
    /// The depth of includes.
    depth: u32,
    env: &'a dyn Fn(&str) -> Option<String>,
}

fn parse(
    text: &str,
    from: &From<'_>,
    sections: &mut Vec<Section>,
    budget: &mut Budget,
) -> Result<(), String> {
    for (number, line) in (1..).zip(text.lines()) {
        let origin = format!("{}:{number}", from.path.display());
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').ok_or_else(|| format!("{origin}: no ']'"))?.trim();
            if name.is_empty() {
                return Err(format!("{origin}: a section needs a name"));
            }
            let name = name.to_owned();
            let entries = Vec::new();
            sections.push(Section { name, entries, origin, begins_file: false });
            continue;
        }
        if let Some(file) = line.strip_prefix("include ") {
            include(file.trim(), from, sections, budget)
                .map_err(|error| format!("{origin}: {error}"))?;
            continue;
        }
        let expanded =
            expand_env(line, from.env, budget).map_err(|error| format!("{origin}: {error}"))?;
        let (key, value) = match expanded.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim().to_owned())),
            None => (expanded.trim(), None),
        };
        let section = sections
            .last_mut()
            .ok_or_else(|| format!("{origin}: '{key}' stands before the first [section]"))?;
        section.entries.push(Entry { key: key.to_owned(), value, origin });
    }
    Ok(())
}

/// The file is searched beside the one that includes it, then in the current directory.
fn include(
    file: &str,
    from: &From<'_>,
    sections: &mut Vec<Section>,
    budget: &mut Budget,
) -> Result<(), String> {
    if from.depth >= MAX_INCLUDES {
        return Err(format!("more than {MAX_INCLUDES} files include each other"));
    }
    let beside: PathBuf = from.path.parent().unwrap_or(Path::new(".")).join(file);
    let path = if beside.exists() { beside } else { PathBuf::from(file) };
    let text =
        budget.read(&path).map_err(|why| format!("cannot include {}: {why}", path.display()))?;
    parse(&text, &From { path: &path, depth: from.depth + 1, env: from.env }, sections, budget)
}

/// A comment begins with `;` or `#`, at the start of a line or after a space, so that an address
/// may contain them.
fn without_comment(line: &str) -> &str {
    let mut blank_before = true;
    for (at, c) in line.char_indices() {
        if blank_before && (c == ';' || c == '#') {
            return &line[..at];
        }
        blank_before = c.is_whitespace();
    }
    line
}

/// Replaces every `${NAME}`.
fn expand_env(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    budget: &mut Budget,
) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let (name, after) = rest[at + 2..]
            .split_once('}')
            .ok_or_else(|| format!("'{text}' lacks the '}}' of '${{'"))?;
        let value = env(name).ok_or_else(|| format!("the variable {name} is not set"))?;
        budget.spend(value.len())?;
        out.push_str(&value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

const MAX_INCLUDES: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Section>, String> {
        let mut sections = Vec::new();
        let env = |name: &str| (name == "SIZE").then(|| "64m".to_owned());
        let from = From { path: Path::new("x.fio"), depth: 0, env: &env };
        parse(text, &from, &mut sections, &mut Budget::default())?;
        Ok(sections)
    }

    #[test]
    fn sections_keys_comments_and_variables_are_read() {
        let text =
            "; a comment\n[global]\nbs=4k # why\n\n[a b]\nsize=${SIZE}\nstonewall\nfilename=x#y\n";
        let sections = parsed(text).unwrap();
        assert_eq!(sections[0].name, "global");
        assert_eq!(sections[0].entries[0].value.as_deref(), Some("4k"));
        let found: Vec<_> =
            sections[1].entries.iter().map(|e| (e.key.as_str(), e.value.as_deref())).collect();
        let expected = [("size", Some("64m")), ("stonewall", None), ("filename", Some("x#y"))];
        assert_eq!(found, expected);
        assert_eq!(sections[1].entries[0].origin, "x.fio:6");
    }

    #[test]
    fn an_invalid_job_file_is_refused_with_its_line() {
        for (text, line) in [("rw=read", "x.fio:1"), ("\n[]", "x.fio:2"), ("[a", "x.fio:1")] {
            assert!(parsed(text).unwrap_err().starts_with(line), "{text}");
        }
        assert!(parsed("[a]\nsize=${NO}").unwrap_err().contains("NO is not set"));
    }
}
