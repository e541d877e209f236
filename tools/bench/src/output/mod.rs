//! Output: text, JSON, terse lines, logs, and the status line.
//!
//! [`Writer`] owns the stream; the formats only turn [`Entry`]s into text.

mod chart;
mod entry;
mod eta;
mod fio_json;
mod json;
mod normal;
mod numbers;
mod report;
mod terse;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::options::Job;
use crate::options::command_line::{Eta, Format, Request, RunOptions};
use crate::run::{Finished, Running, Task};
use crate::stats::log::Kind;
use crate::worker::Snapshot;

pub(crate) use entry::Entry;

/// The program's name and version; tools look for `fio-3`.
pub(crate) const VERSION: &str = concat!("fio-3.42-dlfs-bench-", env!("CARGO_PKG_VERSION"));

/// Prints `text` alone on standard output.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()), // the reader has closed the pipe
    }
}

/// The jobs as command lines.
pub(crate) fn command_lines(jobs: &[Job]) -> String {
    let mut text = String::new();
    for job in jobs {
        text.push_str(&format!("dlfs-bench --name='{}'", job.name));
        for (key, value) in job.given.iter().filter(|(key, _)| key != "name") {
            if value.is_empty() {
                text.push_str(&format!(" --{key}"))
            } else {
                text.push_str(&format!(" --{key}='{value}'"))
            }
        }
        text.push('\n');
    }
    text
}

/// The head of the output, before the jobs.
struct Head<'a> {
    began_ms: u64,
    global: &'a [(String, String)],
}

/// Writes the result of a run.
pub(crate) struct Writer {
    run: RunOptions,
    global: Vec<(String, String)>,
    file: Option<OutFile>,
    report: Option<OutFile>,
    /// When the run began, in milliseconds since 1970.
    began_ms: u64,
    eta: Option<eta::EtaLine>,
    next_status: Option<Instant>,
}

impl Writer {
    /// Creates the output files, so that one that cannot be written fails before the run.
    ///
    /// # Errors
    /// Names the file.
    pub(crate) fn create(request: &Request) -> Result<Writer, String> {
        let run = request.run.clone();
        let file = run.output.clone().map(OutFile::create).transpose()?;
        let report = run.report.clone().map(OutFile::create).transpose()?;
        check_logs(&request.jobs)?;
        let shows = match run.eta {
            Eta::Always => true,
            Eta::Never => false,
            Eta::Auto => std::io::stderr().is_terminal(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let eta = shows.then(|| eta::EtaLine::new(run.eta_interval_us, run.eta_newline_us));
        let next_status = status_after(&run);
        Ok(Writer {
            global: request.global.clone(),
            file,
            report,
            began_ms: now.map_or(0, |since| since.as_millis() as u64),
            eta,
            next_status,
            run,
        })
    }

    /// Writes the header, before the run.
    pub(crate) fn begin(&mut self, tasks: &[Task]) -> Result<(), String> {
        if self.run.formats.contains(&Format::Normal) {
            return self.write(&normal::header(tasks));
        }
        Ok(())
    }

    /// Updates the status line if it is due.
    pub(crate) fn eta(&mut self, running: &[Running], epoch: Instant) {
        if let Some(eta) = &mut self.eta {
            eta.show(running, epoch);
        }
    }

    /// Returns whether the figures for --status-interval are due; if so, schedules the next ones.
    pub(crate) fn status_is_due(&mut self) -> bool {
        let due = self.next_status.is_some_and(|next| Instant::now() >= next);
        if due {
            self.next_status = status_after(&self.run);
        }
        due
    }

    /// Writes the figures so far, of finished and of running jobs.
    pub(crate) fn interim(
        &mut self,
        finished: &[Finished],
        running: Vec<(Task, Snapshot)>,
    ) -> Result<(), String> {
        let mut entries: Vec<Entry> = finished.iter().map(Entry::of).collect();
        entries
            .extend(running.into_iter().map(|(task, figures)| Entry::of_running(&task, figures)));
        entries.sort_by_key(|entry| entry.thread);
        let text = self.text(&entry::together(entries));
        self.write(&text)
    }

    /// Writes the result in the requested formats, and the logs.
    pub(crate) fn end(&mut self, finished: &[Finished]) -> Result<(), String> {
        if let Some(eta) = &mut self.eta {
            eta.end();
        }
        let entries = entry::together(finished.iter().map(Entry::of).collect());
        let text = self.text(&entries);
        self.write(&text)?;
        let head = Head { began_ms: self.began_ms, global: &self.global };
        if let Some(file) = &mut self.report {
            file.write(&report::page(&head, &entries))?;
        }
        write_logs(finished)
    }

    fn text(&self, entries: &[Entry]) -> String {
        let mut text = String::new();
        for format in &self.run.formats {
            match format {
                Format::Normal => text.push_str(&normal::result(entries)),
                Format::Json | Format::JsonPlus => {
                    let plus = *format == Format::JsonPlus;
                    let head = Head { began_ms: self.began_ms, global: &self.global };
                    text.push_str(&fio_json::document(&head, entries, plus).to_text());
                }
                Format::Terse => text.push_str(&terse::lines(entries, self.run.terse_version)),
            }
        }
        text
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        match &mut self.file {
            None => print(text),
            Some(file) => file.write(text),
        }
    }
}

/// An output file.
struct OutFile {
    path: PathBuf,
    file: File,
}

impl OutFile {
    fn create(path: PathBuf) -> Result<OutFile, String> {
        let file = File::create(&path).map_err(|error| cannot_write(&path, &error))?;
        Ok(OutFile { path, file })
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        self.file.write_all(text.as_bytes()).map_err(|error| cannot_write(&self.path, &error))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

fn status_after(run: &RunOptions) -> Option<Instant> {
    let interval = Duration::from_micros(run.status_interval_us);
    (!interval.is_zero()).then(|| Instant::now() + interval)
}

/// The file of a log: `PREFIX_bw.1.log`.
fn log_path(job: &Job, kind: Kind, thread: usize) -> Option<PathBuf> {
    let prefix = match kind {
        Kind::Bandwidth => job.bw_log.as_ref(),
        Kind::Iops => job.iops_log.as_ref(),
        Kind::Slat | Kind::Clat | Kind::Lat => job.lat_log.as_ref(),
    }?;
    let prefix = if prefix.is_empty() { &job.name } else { prefix };
    let suffix = kind.suffix();
    Some(PathBuf::from(if job.per_job_logs {
        format!("{prefix}_{suffix}.{thread}.log")
    } else {
        format!("{prefix}_{suffix}.log")
    }))
}

/// Creates the folders of logs, so that one that cannot be created fails before the run.
fn check_logs(jobs: &[Job]) -> Result<(), String> {
    for job in jobs {
        for path in Kind::ALL.iter().filter_map(|&kind| log_path(job, kind, 1)) {
            let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) else {
                continue;
            };
            std::fs::create_dir_all(folder)
                .map_err(|error| format!("cannot make {} for logs: {error}", folder.display()))?;
        }
    }
    Ok(())
}

/// Writes each file once: with `per_job_logs=0`, and for jobs with one prefix, it has the lines of several logs.
fn write_logs(finished: &[Finished]) -> Result<(), String> {
    let mut by_thread: Vec<&Finished> = finished.iter().collect();
    by_thread.sort_by_key(|finished| finished.task.thread);
    let mut texts = BTreeMap::<PathBuf, String>::new();
    for Finished { task, outcome, .. } in by_thread {
        for log in &outcome.logs {
            if let Some(path) = log_path(&task.job, log.kind(), task.thread) {
                log.write_to(texts.entry(path).or_default());
            }
        }
    }
    for (path, text) in texts {
        std::fs::write(&path, text).map_err(|error| cannot_write(&path, &error))?;
    }
    Ok(())
}
