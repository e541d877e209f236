//! fio's job files. A module only of its own program: the bench is not part of the library.

use dlfs_bench::show_job_file;

/// A job file is refused with a message, or accepted; both are deterministic.
pub(crate) fn job_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    // A fuzzer must not include other files.
    if text.lines().any(|line| line.trim_start().starts_with("include ")) {
        return;
    }
    let env = |name: &str| (name == "SIZE").then(|| "64m".to_owned());
    let shown = show_job_file(text, &env);
    assert_eq!(shown, show_job_file(text, &env));
    match shown {
        Ok(lines) => assert!(lines.starts_with("dlfs-bench --name="), "{lines}"),
        Err(message) => assert!(!message.is_empty(), "it says why"),
    }
}
