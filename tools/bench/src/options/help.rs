//! Help: of the command, of every option, of the engines.

use std::fmt::Write as _;

use super::fio;
use super::job::Engine;
use super::table::{Opt, unknown};
use super::tables::{RUN, TABLES};

/// The help of the command.
pub(crate) fn command() -> String {
    let mut text = String::from(USAGE);
    for opt in RUN {
        let name = format!("--{}{}", opt.name, opt.value);
        let _ = writeln!(text, "  {name:<26} {}", opt.help); // writing to a string does not fail
    }
    text.push_str(EXAMPLES);
    text
}

/// The help of the options that `word` names; of all of them when it is empty or `all`.
///
/// # Errors
/// There is none; the message suggests the nearest name.
pub(crate) fn options(word: &str) -> Result<String, String> {
    let all = word.is_empty() || word == "all";
    let mut text = String::new();
    for (heading, table) in TABLES {
        let wanted: Vec<&Opt> = table
            .iter()
            .filter(|opt| {
                all || opt.name == word || opt.aliases.contains(&word) || *heading == word
            })
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", heading.to_uppercase());
        for opt in wanted {
            describe(opt, &mut text);
        }
        text.push('\n');
    }
    if all {
        let _ = writeln!(text, "REFUSED\n          {}\n", fio::POINTER);
        wrapped(fio::names(), &mut text);
    }
    if text.is_empty() {
        return Err(unknown(word, std::iter::empty()));
    }
    Ok(text)
}

/// One option as a manual page shows it.
fn describe(opt: &Opt, text: &mut String) {
    let _ = write!(text, "  {}={}", opt.name, opt.value);
    if !opt.aliases.is_empty() {
        let _ = write!(text, "  (also {})", opt.aliases.join(", "));
    }
    text.push('\n');
    wrapped(opt.help.split_whitespace(), text);
}

fn wrapped<'a>(words: impl Iterator<Item = &'a str>, text: &mut String) {
    let mut line = String::new();
    for word in words {
        if line.len() + word.len() > 70 {
            let _ = writeln!(text, "          {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "          {line}");
}

/// The help of all engines, or of the one called `name`.
pub(crate) fn engines(name: &str) -> Result<String, String> {
    let mut text = String::new();
    for (engine, _, help) in Engine::ALL.iter().filter(|e| name.is_empty() || e.0 == name) {
        let _ = writeln!(text, "  {engine:<9} {help}");
    }
    if text.is_empty() { Err(format!("there is no engine '{name}'")) } else { Ok(text) }
}

const USAGE: &str = "\
dlfs-bench: measures namespaces and data sets, with fio's job files, options and output

usage: dlfs-bench [OPTIONS] JOBFILE...
       dlfs-bench [OPTIONS] --name=NAME --KEY=VALUE...

Keys are those of job files; --cmdhelp lists all of them, --cmdhelp=KEY explains one. Other options
of fio are refused: fio itself can drive dlfs, see 'fio on dlfs' in tools/bench/README.md.
Signals: SIGINT ends the run with the figures so far, SIGUSR1 prints them and continues.
Exit code: 0 if everything succeeded, 1 otherwise.

Options:
";

const EXAMPLES: &str = "
Examples:
  dlfs-bench --name=r --filename=train.dlfs --rw=randread --bs=4k --iodepth=32 --runtime=10 --time_based
  dlfs-bench --name=r --filename='nvme-tcp://node1/nqn.2026-11.io.dlfs:train' --rw=randread --iodepth=32
  dlfs-bench --name=s --filename=train.dlfs --rw=samples --order=grouped --batch_size=256 --thinktime=2ms
  dlfs-bench --output-format=json --output=out.json jobs.fio
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_can_be_explained_alone_and_all_together() {
        let all = options("").unwrap();
        for opt in super::super::table::options() {
            assert!(all.contains(&format!("  {}", opt.name)), "{}", opt.name);
            assert!(
                options(opt.name).unwrap().contains(opt.help.split_whitespace().next().unwrap())
            );
        }
        assert!(options("iodeph").unwrap_err().contains("iodepth"));
        assert!(all.lines().all(|line| line.len() <= 120));
    }
}
