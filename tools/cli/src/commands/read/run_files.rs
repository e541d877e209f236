//! The files of a run: its report as a page, its events, the ids of its samples, and the state from which it resumes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use parking_lot::Mutex;

use dlfs::Error;
use dlfs::dataset::{Loader, RunState, check_page, save_page};
use dlfs::prefetch::Trace;
use dlfs::reader::Batch;

use super::RunArgs;
use crate::exit::{Outcome, about_file, complain};

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Write a page (HTML, one file) to FILE that says what the run waited for, and what to try next
    ///
    /// It is written at the end, also after Ctrl-C or an error, and replaces an older page in one step. Each rank
    /// needs a file of its own.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the newest events of the run to FILE in Chrome's trace format, for https://ui.perfetto.dev
    ///
    /// Up to 65,536 events of each of two threads; the file says how many are missing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// The files of `--report` and `--trace`. Clones share the events.
#[derive(Debug, Clone)]
pub(super) struct RunFiles {
    report: Option<PathBuf>,
    trace: Option<(PathBuf, Arc<Trace>)>,
}

impl ReportArgs {
    /// Returns whether the run writes a report or its events.
    pub(super) fn is_given(&self) -> bool {
        self.report.is_some() || self.trace.is_some()
    }

    /// The files that the run will write.
    ///
    /// # Errors
    /// A file cannot be written: the run then fails before it starts.
    pub(super) fn files(&self) -> Result<RunFiles, Error> {
        self.report.iter().chain(&self.trace).try_for_each(|path| check_page(path))?;
        let trace = self.trace.clone().map(|path| (path, Arc::new(Trace::new())));
        Ok(RunFiles { report: self.report.clone(), trace })
    }
}

impl RunFiles {
    /// The trace in which the loader keeps its events.
    pub(super) fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.as_ref().map(|(_, trace)| Arc::clone(trace))
    }

    /// Writes the report and the trace of `loader` up to now.
    ///
    /// # Errors
    /// The error of the first file that cannot be written; the other file is written nevertheless.
    pub(super) fn write(&self, loader: &Loader) -> Result<(), Error> {
        let page = self.report.as_ref().map(|path| save_page(path, &loader.report().to_html()));
        let events = self.trace.as_ref().zip(loader.trace_json());
        let events = events.map(|((path, _), events)| save_page(path, &events));
        match (page.unwrap_or(Ok(())), events.unwrap_or(Ok(()))) {
            (Err(page), Err(events)) => {
                complain(&events.report());
                Err(page)
            }
            (page, events) => page.and(events),
        }
    }

    /// Writes only the events, for a process that ends while its loader waits.
    pub(super) fn write_events(&self) {
        if let Some((path, trace)) = &self.trace
            && let Err(error) = save_page(path, &trace.to_json(None))
        {
            complain(&error.report());
        }
    }
}

/// The state of the run, and the file of `--state`. Clones share the state.
#[derive(Clone)]
pub(super) struct StateFile {
    file: Option<PathBuf>,
    /// `None` before the loader is open. The thread that handles signals saves it, too.
    state: Arc<Mutex<Option<RunState>>>,
}

impl StateFile {
    pub(super) fn of(run: &RunArgs) -> StateFile {
        StateFile { file: run.state.clone(), state: Arc::default() }
    }

    /// Sets the state that the next save writes.
    pub(super) fn set(&self, state: RunState) {
        *self.state.lock() = Some(state);
    }

    /// Writes the state to the file, if there is one.
    pub(super) fn save(&self) -> Result<(), Error> {
        match (&self.file, &*self.state.lock()) {
            (Some(file), Some(state)) => state.save(file),
            _ => Ok(()),
        }
    }

    /// Saves the state of a run that was stopped; without a file for it, prints that --state would make the run
    /// resumable.
    pub(super) fn save_when_stopped(&self) -> Outcome {
        if self.file.is_none() {
            complain("stopped; with --state FILE the run could be resumed");
            return Outcome::Incomplete;
        }
        match self.save() {
            Ok(()) => Outcome::Stopped,
            Err(error) => {
                complain(&error.report());
                Outcome::Incomplete
            }
        }
    }
}

/// The file of `--ids`: the ids of delivered samples, one per line.
pub(super) struct IdsFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl IdsFile {
    pub(super) fn create(path: &Path) -> Result<IdsFile, Error> {
        let file = File::create(path).map_err(|error| about_file("cannot make", path, error))?;
        Ok(IdsFile { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    /// Adds the ids of a batch, and flushes them.
    pub(super) fn append(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut write = || {
            match batch.sources() {
                None => batch.ids().try_for_each(|id| writeln!(self.file, "{id}"))?,
                Some(sources) => (sources.iter().zip(batch.ids()))
                    .try_for_each(|(source, id)| writeln!(self.file, "{source} {id}"))?,
            }
            self.file.flush() // the file is never behind the state, however the process ends
        };
        write().map_err(|error| about_file("cannot write", &self.path, error))
    }
}
