//! Applies entries of job files, and explains errors in them.

use super::file::Entry;
use super::fio;
use super::job::Job;
use super::tables::TABLES;

/// One option of a job, or of the run as a whole.
pub(crate) struct Opt<T = Job> {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    /// Form of the value, for the help; empty if the option takes none.
    pub(crate) value: &'static str,
    pub(crate) help: &'static str,
    pub(crate) set: fn(&mut T, &str) -> Result<(), String>,
}

impl<T> Opt<T> {
    /// Returns whether the value is optional: booleans then are true, logs are named after the job.
    pub(crate) fn may_stand_alone(&self) -> bool {
        ["BOOL", "["].iter().any(|start| self.value.starts_with(start)) || self.value.is_empty()
    }
}

/// The option of this name or alias.
pub(crate) fn find(name: &str) -> Option<&'static Opt> {
    options().find(|opt| opt.name == name || opt.aliases.contains(&name))
}

/// All options, in the order of the help.
pub(crate) fn options() -> impl Iterator<Item = &'static Opt> {
    TABLES.iter().flat_map(|(_, table)| table.iter())
}

/// The error for an unknown option: dlfs-bench refuses this option of fio, or the nearest name.
pub(crate) fn unknown(name: &str, more: impl Iterator<Item = &'static str>) -> String {
    if let Some(refusal) = fio::refusal(name) {
        return refusal;
    }
    let names =
        options().flat_map(|opt| std::iter::once(opt.name).chain(opt.aliases.iter().copied()));
    match nearest(name, names.chain(more)) {
        Some(near) => format!("unknown option '{name}'; did you mean '{near}'?"),
        None => format!("unknown option '{name}'; --cmdhelp lists all options"),
    }
}

/// The word in `known` with the smallest edit distance to `word`, if that is small.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.len() / 3).max(2);
    let measured = known.map(|known| (strsim::levenshtein(word, known), known));
    measured.filter(|found| found.0 <= limit).min_by_key(|found| found.0).map(|found| found.1)
}

/// Applies `entry` to `job`.
///
/// # Errors
/// A sentence that names the place, the option and the values that it takes.
pub(crate) fn apply(job: &mut Job, entry: &Entry) -> Result<(), String> {
    let Entry { key, value, origin } = entry;
    let text = value.as_deref().unwrap_or("");
    let Some(opt) = find(key) else {
        if !fio::holds(key, text) {
            return Err(format!("{origin}: {}", unknown(key, std::iter::empty())));
        }
        remember(job, key, text);
        return Ok(());
    };
    let failed =
        |why: String| format!("{origin}: {key}={text}: {why} ({} takes {})", opt.name, opt.value);
    if text.is_empty() && !opt.may_stand_alone() {
        return Err(failed("a value is missing".to_owned()));
    }
    (opt.set)(job, text).map_err(failed)?;
    remember(job, opt.name, text);
    Ok(())
}

fn remember(job: &mut Job, name: &str, text: &str) {
    job.given.retain(|(known, _)| known != name);
    job.given.push((name.to_owned(), text.to_owned()));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.into(), value: Some(value.into()), origin: "x:1".into() }
    }

    #[test]
    fn names_and_aliases_are_unique_and_every_option_has_help() {
        let mut seen = BTreeSet::new();
        for opt in options() {
            for name in std::iter::once(&opt.name).chain(opt.aliases) {
                assert!(seen.insert(*name), "{name} is there twice");
                assert!(fio::refusal(name).is_none() && !fio::holds(name, ""), "{name} is refused");
            }
            assert!(opt.help.len() > 10, "{}", opt.name);
        }
        assert!(seen.len() > 80);
    }

    #[test]
    fn an_unknown_key_names_the_nearest_and_a_wrong_value_what_is_taken() {
        let mut job = Job::default();
        let error = apply(&mut job, &entry("iodeph", "3")).unwrap_err();
        assert_eq!(error, "x:1: unknown option 'iodeph'; did you mean 'iodepth'?");
        let error = apply(&mut job, &entry("completely", "3")).unwrap_err();
        assert!(error.contains("--cmdhelp"), "{error}");
        let error = apply(&mut job, &entry("bs", "4q")).unwrap_err();
        assert!(error.starts_with("x:1: bs=4q: 'q' in '4q' is no unit"), "{error}");
        assert!(apply(&mut job, &entry("bs", "")).unwrap_err().contains("missing"));
    }
}
