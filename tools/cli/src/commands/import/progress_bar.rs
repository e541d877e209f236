//! The progress of a command that writes an image or an index: a bar on stderr, and the stop on a signal.

use dlfs::Error;
use dlfs::import::{Progress, Stage};
use dlfs::places::Cancel;

use crate::exit::{GRACE_FOR_WRITERS, Outcome, Stop};
use crate::out::Meter;

/// Shows the progress on stderr, and stops the command when `stop` is set.
pub(crate) struct ImportProgress {
    /// The bar of the current stage; `None` before the first.
    meter: Option<Meter>,
    stop: Stop,
    /// Samples done in the current stage.
    samples: u64,
    /// Bytes done in the current stage.
    bytes: u64,
    /// Shows no bar.
    quiet: bool,
}

/// Progress that stops the command on SIGINT or SIGTERM; ends the process if it still runs after [`GRACE_FOR_WRITERS`].
/// Without a bar if `quiet`.
///
/// # Errors
/// As [`Stop::on_signals`].
pub(crate) fn progress(quiet: bool) -> Result<ImportProgress, Error> {
    let stop = Stop::on_signals(GRACE_FOR_WRITERS, || Outcome::Stopped)?;
    Ok(ImportProgress::new(quiet, stop))
}

impl ImportProgress {
    /// Stops the command when `stop` is set. Without a bar if `quiet`.
    pub(crate) fn new(quiet: bool, stop: Stop) -> ImportProgress {
        ImportProgress { meter: None, stop, samples: 0, bytes: 0, quiet }
    }

    /// Cancels the waits for object stores when the command is stopped.
    pub(crate) fn cancel(&self) -> Cancel {
        let stop = self.stop.clone();
        Cancel::when(move || stop.is_set())
    }
}

impl Progress for ImportProgress {
    fn stage(&mut self, stage: Stage, samples: u64, _bytes: u64) {
        let label = match stage {
            Stage::Indexing => "indexing",
            Stage::Committing => "committing",
            _ => "writing",
        };
        (self.samples, self.bytes) = (0, 0);
        self.meter = None; // clears its bar before the next is drawn
        self.meter = Some(Meter::new(label, samples, self.quiet));
    }

    fn advance(&mut self, samples: u64, bytes: u64) {
        self.samples += samples;
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(meter) = &mut self.meter {
            meter.update(self.samples, self.bytes);
        }
    }

    fn stop(&mut self) -> bool {
        self.stop.is_set()
    }
}
