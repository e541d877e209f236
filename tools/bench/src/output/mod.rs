//! The result of a run: its entries and its destination. `text.rs` and `json.rs` format it as fio does.

mod json;
mod text;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::job::Job;
use crate::request::{Format, Given, Request};
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
pub(crate) struct Entry {
    /// The job, or the first one of the group.
    pub(crate) job: Arc<Job>,
    /// The reporting group.
    pub(crate) group: usize,
    /// The number of jobs in the entry.
    pub(crate) jobs: usize,
    pub(crate) stats: Stats,
}

/// Merges the entries of each group whose jobs have `group_reporting`.
fn merge_groups(entries: Vec<Entry>) -> Vec<Entry> {
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
    /// The options that apply to all jobs.
    global: Given,
    /// The file of `--output`; `None`: standard output.
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
        if is_text { self.write(&text::header(tasks)) } else { Ok(()) }
    }

    /// Writes the result in the requested formats.
    pub(crate) fn result(&mut self, entries: Vec<Entry>) -> Result<(), String> {
        let entries = merge_groups(entries);
        let texts = self.formats.iter().map(|format| match format {
            Format::Normal => text::result(&entries),
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

/// For each unit of time, the limits of the steps, each with the percentage of latencies that are below it but not
/// below the limit before it. `>=2000` of the last unit stands for latencies from 2,000 ms on.
fn latency_shares(stats: &Stats) -> Vec<(&'static str, Vec<(String, f64)>)> {
    let steps = [2_u64, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
    let units = [("nsec", 1_u64), ("usec", 1_000), ("msec", 1_000_000)];
    let mut limits: Vec<u64> = units.iter().flat_map(|u| steps.iter().map(|s| s * u.1)).collect();
    limits.push(2_000_000_000);
    let [reads, writes] = stats.directions.each_ref().map(|d| d.clat.below(&limits));
    let counts: Vec<u64> =
        reads.iter().zip(&writes).map(|(reads, writes)| reads + writes).collect();
    let all = counts.iter().sum::<u64>().max(1) as f64;
    let mut percents = counts.iter().map(|&count| 100.0 * count as f64 / all);
    let mut shares = Vec::new();
    for (unit, _) in units {
        let mut names: Vec<String> = steps.iter().map(u64::to_string).collect();
        if unit == "msec" {
            names.extend(["2000".to_owned(), ">=2000".to_owned()]);
        }
        shares.push((unit, names.into_iter().zip(&mut percents).collect()));
    }
    shares
}
