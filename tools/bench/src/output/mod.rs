//! Output: text and JSON.
//!
//! [`Output`] owns the stream; the formats only turn [`Entry`]s into text.

mod json;
mod normal;
mod numbers;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::options::Job;
use crate::options::request::{Format, Given, Request};
use crate::run::Task;
use crate::stats::Stats;

/// The program's version; tools look for `fio-3`.
pub(crate) const VERSION: &str = concat!("fio-3.42-dlfs-bench-", env!("CARGO_PKG_VERSION"));

/// Prints `text` on standard output.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()), // also if the reader has closed the pipe
    }
}

/// The figures of one job, or of a group of jobs.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) job: Arc<Job>,
    pub(crate) group: usize,
    /// The number of jobs in it.
    pub(crate) jobs: usize,
    pub(crate) stats: Stats,
}

impl Entry {
    pub(crate) fn new(task: &Task, stats: Stats) -> Entry {
        Entry { job: Arc::clone(&task.job), group: task.group, jobs: 1, stats }
    }
}

/// Merges the jobs of a group that are reported together.
fn together(entries: Vec<Entry>) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    for entry in entries {
        let is_grouped = |one: &Entry| one.job.group_reporting && one.group == entry.group;
        match all.iter_mut().find(|one| entry.job.group_reporting && is_grouped(one)) {
            Some(one) => {
                one.jobs += 1;
                one.stats.add(&entry.stats);
            }
            None => all.push(entry),
        }
    }
    all
}

/// The stream of the result.
pub(crate) struct Output {
    formats: Vec<Format>,
    global: Given,
    file: Option<(PathBuf, File)>,
    /// Start of the run, in milliseconds since 1970.
    began_ms: u64,
}

impl Output {
    /// Creates the output file, so that a file that cannot be written fails before the run.
    ///
    /// # Errors
    /// The message names the file.
    pub(crate) fn create(request: &Request) -> Result<Output, String> {
        let create = |path: &PathBuf| match File::create(path) {
            Ok(file) => Ok((path.clone(), file)),
            Err(error) => Err(cannot_write(path, &error)),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Output {
            formats: request.run.output_format.clone(),
            global: request.global.clone(),
            file: request.run.output.as_ref().map(create).transpose()?,
            began_ms: now.map_or(0, |since| since.as_millis() as u64),
        })
    }

    /// Writes the header, before the run.
    pub(crate) fn header(&mut self, tasks: &[Task]) -> Result<(), String> {
        let is_text = self.formats.contains(&Format::Normal);
        if is_text { self.write(&normal::header(tasks)) } else { Ok(()) }
    }

    /// Writes the result in the requested formats.
    pub(crate) fn result(&mut self, entries: Vec<Entry>) -> Result<(), String> {
        let entries = together(entries);
        let texts = self.formats.iter().map(|format| match format {
            Format::Normal => normal::result(&entries),
            Format::Json => json::document(self.began_ms, &self.global, &entries),
        });
        let text: String = texts.collect();
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        let Some((path, file)) = &mut self.file else { return print(text) };
        file.write_all(text.as_bytes()).map_err(|error| cannot_write(path, &error))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}
