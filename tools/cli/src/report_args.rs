//! `--report` and `--trace`: a page about the run's waits, and its events.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use dlfs::Error;
use dlfs::dataset::{Loader, check_page, save_page};
use dlfs::prefetch::Trace;

use crate::exit::complain;

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
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

/// The files of a run. Clones share the events.
#[derive(Debug, Clone)]
pub(crate) struct RunFiles {
    report: Option<PathBuf>,
    trace: Option<(PathBuf, Arc<Trace>)>,
}

impl ReportArgs {
    /// The files that the run will write. A file that cannot be written is reported before the work starts.
    pub(crate) fn files(&self) -> Result<RunFiles, Error> {
        self.report.iter().chain(&self.trace).try_for_each(|path| check_page(path))?;
        let trace = self.trace.clone().map(|path| (path, Arc::new(Trace::new())));
        Ok(RunFiles { report: self.report.clone(), trace })
    }
}

impl RunFiles {
    /// The trace in which the loader keeps its events.
    pub(crate) fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.as_ref().map(|(_, trace)| Arc::clone(trace))
    }

    /// Writes the report and the trace of `loader` up to now.
    ///
    /// # Errors
    /// The error of the first file that cannot be written; the other file is written nevertheless.
    pub(crate) fn write(&self, loader: &Loader) -> Result<(), Error> {
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
    pub(crate) fn write_events(&self) {
        if let Some((path, trace)) = &self.trace
            && let Err(error) = save_page(path, &trace.to_json(None))
        {
            complain(&error.report());
        }
    }
}
