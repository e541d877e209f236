//! Progress on stderr: a bar on a terminal, otherwise a line every few seconds.
//!
//! [`Meter`] shows one task. [`StageProgress`] shows the stages of a command that writes an image or an index, and
//! stops the command on a signal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use dlfs::Error;
use dlfs::import::{Progress, Stage};
use dlfs::places::Cancel;

use super::text::{self, count, counted, rate};
use crate::exit::{GRACE_FOR_WRITERS, Outcome, Stop};

/// The progress of one task. Dropping a meter clears its bar, which is taken to be on the line of the cursor: drop it
/// before the next meter draws its own.
pub(crate) struct Meter {
    /// `None`: progress is printed as lines, or not at all.
    bar: Option<ProgressBar>,
    label: &'static str,
    /// The counted items, in the singular.
    noun: &'static str,
    /// The number of items; 0: unknown.
    total: u64,
    started: Instant,
    /// The time of the last line; without a line so far, of the start.
    last_line: Instant,
    quiet: bool,
}

impl Meter {
    /// A meter for `total` samples (0: unknown); silent if `quiet`.
    pub(crate) fn new(label: &'static str, total: u64, quiet: bool) -> Meter {
        let on_terminal = std::io::stderr().is_terminal();
        let bar = (on_terminal && !quiet).then(|| bar(label, total));
        let now = Instant::now();
        Meter { bar, label, noun: "sample", total, started: now, last_line: now, quiet }
    }

    /// Sets the noun for the counted items, if they are not samples.
    pub(crate) fn counting(mut self, noun: &'static str) -> Meter {
        self.noun = noun;
        self
    }

    /// Sets the progress to `done` items and `bytes`. Cheap: call it once per batch.
    pub(crate) fn update(&mut self, done: u64, bytes: u64) {
        if self.quiet {
            return;
        }
        let time = self.started.elapsed();
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}  {}", text::bytes(bytes), rate(bytes, time)));
            bar.set_position(done);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            let done = match self.total {
                0 => counted(done, self.noun),
                total => format!("{} of {}", count(done), counted(total, self.noun)),
            };
            let line = plain_line(self.label, &done, bytes, time);
            let _ = writeln!(io::stderr(), "{line}"); // the work goes on if nobody reads it
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn plain_line(label: &str, done: &str, bytes: u64, time: Duration) -> String {
    format!("{label}: {done}, {}, {}", text::bytes(bytes), rate(bytes, time))
}

fn bar(label: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style(total));
    bar.set_prefix(label);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(total: u64) -> ProgressStyle {
    let template = if total == 0 { SPINNER } else { BAR };
    ProgressStyle::with_template(template)
        .expect("the templates below are well-formed")
        .progress_chars("━╸ ")
}

/// Shows the current stage of a command on stderr, and stops the command when `stop` is set.
pub(crate) struct StageProgress {
    /// The meter of the current stage; `None` before the first.
    meter: Option<Meter>,
    stop: Stop,
    /// Samples done in the current stage.
    samples: u64,
    /// Bytes done in the current stage.
    bytes: u64,
    /// Set if nothing is shown.
    quiet: bool,
}

/// Progress that stops the command on SIGINT or SIGTERM; ends the process if it still runs after [`GRACE_FOR_WRITERS`].
/// Shows nothing if `quiet`.
///
/// # Errors
/// As [`Stop::on_signals`].
pub(crate) fn progress(quiet: bool) -> Result<StageProgress, Error> {
    let stop = Stop::on_signals(GRACE_FOR_WRITERS, || Outcome::Stopped)?;
    Ok(StageProgress::new(quiet, stop))
}

impl StageProgress {
    /// Stops the command when `stop` is set. Shows nothing if `quiet`.
    pub(crate) fn new(quiet: bool, stop: Stop) -> StageProgress {
        StageProgress { meter: None, stop, samples: 0, bytes: 0, quiet }
    }

    /// Cancels the waits for object stores when the command is stopped.
    pub(crate) fn cancel(&self) -> Cancel {
        let stop = self.stop.clone();
        Cancel::when(move || stop.is_set())
    }
}

impl Progress for StageProgress {
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

/// The bar uses the columns that the text leaves free, so that the line never wraps.
const BAR: &str =
    "{prefix:>10.bold} {wide_bar:.green} {percent:>3}%  {human_pos}/{human_len}  {msg}  {eta} left";
const SPINNER: &str = "{prefix:>10.bold} {spinner} {human_pos}  {wide_msg}";
/// Often enough to show progress in a log file, rarely enough not to fill it.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_says_how_much_of_what_and_how_fast() {
        let line = plain_line("writing", "1 sample", 2_000_000, Duration::from_secs(2));
        assert_eq!(line, "writing: 1 sample, 2.00 MB, 1.00 MB/s");
    }

    #[test]
    fn the_bar_templates_are_well_formed() {
        style(0);
        style(5);
    }
}
