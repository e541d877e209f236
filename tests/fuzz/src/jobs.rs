//! fio's job files. A module only of its own program: the bench is not part of the library.

use dlfs_bench::check_job_file;

/// A job file is refused with a message, or accepted; both are deterministic.
pub(crate) fn job_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let env = |name: &str| (name == "SIZE").then(|| "64m".to_owned());
    let checked = check_job_file(text, &env);
    assert_eq!(checked, check_job_file(text, &env));
    match checked {
        Ok(jobs) => assert!(jobs.starts_with("[Job {"), "{jobs}"),
        Err(message) => assert!(!message.is_empty(), "it says why"),
    }
}
