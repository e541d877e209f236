//! The table of options: applying an entry, and saying what is wrong with it.

use super::file::Entry;
use super::job::Job;
use super::nearest::nearest;
use super::tables::TABLES;
use super::value;

/// One option of a job.
pub(crate) struct Opt {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    /// What the value is, for the help; empty where there is none.
    pub(crate) value: &'static str,
    pub(crate) help: &'static str,
    pub(crate) set: Set,
}

/// What an option does.
pub(crate) enum Set {
    To(fn(&mut Job, &str) -> Result<(), String>),
    /// fio has it; here it is accepted, told of in one warning, and does nothing.
    Nothing,
}

/// The option of this name or alias.
pub(crate) fn find(name: &str) -> Option<&'static Opt> {
    options().find(|opt| opt.name == name || opt.aliases.contains(&name))
}

/// All options, in the order of the help.
pub(crate) fn options() -> impl Iterator<Item = &'static Opt> {
    TABLES.iter().flat_map(|(_, table)| table.iter())
}

/// Every option known by name, nearest to `name`.
pub(crate) fn suggestion(name: &str, more: &[&'static str]) -> String {
    let names =
        options().flat_map(|opt| std::iter::once(opt.name).chain(opt.aliases.iter().copied()));
    match nearest(name, names.chain(more.iter().copied())) {
        Some(near) => format!("; did you mean '{near}'?"),
        None => "; --cmdhelp lists all options".to_owned(),
    }
}

/// Applies `entry` to `job`.
///
/// # Errors
/// A sentence that names the place, the option and what it takes.
pub(crate) fn apply(job: &mut Job, entry: &Entry) -> Result<(), String> {
    let Entry { key, value, origin } = entry;
    let Some(opt) = find(key) else {
        return Err(format!("{origin}: unknown option '{key}'{}", suggestion(key, &[])));
    };
    let text = value.as_deref().unwrap_or("");
    let failed = |why: String| {
        let takes = if opt.value.is_empty() { "no value" } else { opt.value };
        format!("{origin}: {key}={text}: {why} ({} takes {takes})", opt.name)
    };
    if text.is_empty() && !opt.value.is_empty() && !may_be_empty(opt) {
        return Err(failed("a value is missing".to_owned()));
    }
    match opt.set {
        Set::Nothing => {
            if !job.without_effect.iter().any(|known| known == opt.name) {
                job.without_effect.push(opt.name.to_owned());
            }
        }
        Set::To(set) => {
            let text = value::expand(text).map_err(failed)?;
            set(job, &text).map_err(failed)?;
        }
    }
    job.given.retain(|(known, _)| known != opt.name);
    job.given.push((opt.name.to_owned(), text.to_owned()));
    Ok(())
}

/// Booleans mean yes alone, and logs are then named after the job.
fn may_be_empty(opt: &Opt) -> bool {
    opt.value.starts_with("BOOL") || opt.value.starts_with("[")
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
            }
            assert!(opt.help.len() > 10, "{}", opt.name);
        }
        assert!(seen.len() > 150);
    }

    #[test]
    fn an_unknown_key_names_the_nearest_and_a_wrong_value_what_is_taken() {
        let mut job = Job::default();
        let error = apply(&mut job, &entry("iodeph", "3")).unwrap_err();
        assert_eq!(error, "x:1: unknown option 'iodeph'; did you mean 'iodepth'?");
        let error = apply(&mut job, &entry("bs", "4q")).unwrap_err();
        assert!(error.starts_with("x:1: bs=4q: 'q' in '4q' is no unit"), "{error}");
        assert!(apply(&mut job, &entry("bs", "")).unwrap_err().contains("missing"));
    }

    #[test]
    fn what_has_no_effect_is_remembered_once() {
        let mut job = Job::default();
        for _ in 0..2 {
            apply(&mut job, &entry("thread", "1")).unwrap();
        }
        assert_eq!(job.without_effect, ["thread"]);
    }
}
