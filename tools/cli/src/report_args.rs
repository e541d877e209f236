//! `--report` and `--trace`: what a run waited for, as a page and as events.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use dlfs::Error;
use dlfs::dataset::Loader;
use dlfs::prefetch::Trace;

use crate::exit::{about_file, complain};

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Write a page (HTML, one file) to FILE that says what the run waited for, and what to try next
    ///
    /// It is written at the end, also after Ctrl-C or an error.
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
    /// The files that the run will write. One that cannot be written is reported before the work starts.
    pub(crate) fn files(&self) -> Result<RunFiles, Error> {
        self.report.iter().chain(&self.trace).try_for_each(|path| check_writable(path))?;
        let trace = self.trace.clone().map(|path| (path, Arc::new(Trace::new())));
        Ok(RunFiles { report: self.report.clone(), trace })
    }
}

impl RunFiles {
    /// Where the loader keeps its events.
    pub(crate) fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.as_ref().map(|(_, trace)| Arc::clone(trace))
    }

    /// Writes what `loader` has done so far.
    pub(crate) fn write(&self, loader: &Loader) -> Result<(), Error> {
        if let Some(path) = &self.report {
            write(path, &loader.report().to_html())?;
        }
        match (&self.trace, loader.trace_json()) {
            (Some((path, _)), Some(events)) => write(path, &events),
            _ => Ok(()),
        }
    }

    /// Writes the events alone, for a process that ends while its loader waits.
    pub(crate) fn write_events(&self) {
        if let Some((path, trace)) = &self.trace
            && let Err(error) = write(path, &trace.to_json(None))
        {
            complain(&error.report());
        }
    }
}

fn check_writable(path: &Path) -> Result<(), Error> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| about_file("cannot make", path, error))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|error| about_file("cannot write", path, error))
}
