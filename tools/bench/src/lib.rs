//! dlfs-bench: measures namespaces and data sets, with fio's job files, options and output.
//!
//! `request.rs` parses the request: the sections of `job_file.rs` and the command line become jobs (`job.rs`), whose
//! values `values.rs` parses. `run.rs` runs each clone of each job in a thread: `samples.rs` for a job that reads a
//! data set, or else the loop of `worker.rs` over a queue pair of `engine.rs`. `positions.rs` chooses the blocks, and
//! `content.rs` generates and verifies their bytes, both from the numbers of `random.rs`. `rates.rs` limits the rates
//! of a job, `stats.rs` counts, and `output/` prints. The result goes to standard output or to the file of `--output`,
//! messages go to standard error.
//!
//! This tool does not replace fio: fio itself drives dlfs through `fio/`.

mod content;
mod engine;
mod job;
mod job_file;
mod output;
mod positions;
mod random;
mod rates;
mod request;
mod run;
mod samples;
mod stats;
mod values;
mod worker;

use std::ffi::OsString;
use std::io::Write;
use std::sync::atomic::Ordering;

use dlfs::report::text::safe_text;

use crate::output::{Entry, Output};
use crate::request::{Action, Request, parse, request_of_text};

/// Runs the command with its arguments, without the program's name; returns the exit code.
///
/// # Errors
/// A sentence for the user; exit code 1, like fio's.
pub fn command(arguments: &[OsString]) -> Result<u8, String> {
    match parse(arguments)? {
        Action::Run(request) => run_jobs(&request),
        Action::Print(text) => output::print(&text).map(|()| 0),
    }
}

/// Prints a line to standard error; one that nobody reads must not end the run before its figures are written.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "dlfs-bench: {text}"); // the exit code reports errors too
}

fn run_jobs(request: &Request) -> Result<u8, String> {
    let tasks = run::tasks(request)?;
    if request.run.parse_only {
        return Ok(0);
    }
    let stop = run::catch_signals()?;
    let mut output = Output::create(request)?;
    output.header(&tasks)?;
    let mut entries = Vec::new();
    let end = run::run(request, &tasks, &stop, &mut entries);
    if let (Err(error), true) = (&end, entries.is_empty()) {
        return Err(error.clone());
    }
    for Entry { job, stats, .. } in entries.iter().filter(|entry| entry.stats.errors > 0) {
        let errno = std::io::Error::from_raw_os_error(stats.first_error);
        let message = safe_text(&stats.message); // may name files of a folder
        complain(&format!("{}: {message} ({errno})", job.name));
    }
    let failed = entries.iter().any(|entry| entry.stats.errors > 0);
    let printed = output.result(entries);
    if let (Err(error), Err(_)) = (&printed, &end) {
        complain(&safe_text(error));
    }
    end?;
    printed?;
    Ok(if stop.load(Ordering::Relaxed) { INTERRUPTED } else { failed.into() })
}

/// Parses the job file `text`; returns the jobs as text, checked as far as possible without their targets.
/// `env` looks up `${NAME}`. For the fuzz target of job files.
///
/// # Errors
/// A sentence for the user, which names the line unless the file as a whole is wrong.
pub fn check_job_file(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let request = request_of_text(text, env)?;
    run::tasks(&request)?;
    Ok(format!("{:?}", request.jobs))
}

/// fio's exit code after a signal.
const INTERRUPTED: u8 = 128;
