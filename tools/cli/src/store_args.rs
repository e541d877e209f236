//! The share of this rank in its own storage, on the command line.

use clap::Args;

use dlfs::cache::TierSpec;
use dlfs::dataset::Image;
use dlfs::prefetch::LoaderOptions;
use dlfs::store::{Staged, StoreOptions, StoreStats};

use crate::exit::Failure;
use crate::help::loading;
use crate::progress::Meter;
use crate::text;

/// Options of the store, which keeps this rank's share of the samples.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    #[arg(long, value_name = "ram:SIZE|file:DIR:SIZE")]
    #[arg(help = loading(
        "store",
        ": with --order partial or local. The share is read from the data set once, and the ranks exchange \
         samples through --peers. SIZE is for all ranks of this node, which take equal parts"
    ))]
    store: Option<TierSpec>,
    #[arg(long, requires = "store")]
    #[arg(help = loading("blocking_exchange", ", for comparison"))]
    blocking_exchange: bool,
    #[arg(long, requires = "state")]
    #[arg(help = loading("restart_shares", ", what lies in the stores is used again"))]
    restart_shares: bool,
}

impl StoreArgs {
    /// How to keep the share, if `--store` is given.
    pub(crate) fn options(&self) -> Option<StoreOptions> {
        let blocking = self.blocking_exchange;
        self.store.clone().map(|spec| StoreOptions { blocking, ..StoreOptions::new(spec) })
    }

    /// Resumes with new shares, if that is asked for.
    ///
    /// # Errors
    /// `InvalidArgument`: the state lies within an epoch.
    pub(crate) fn restart(
        &self,
        image: &Image,
        options: &mut LoaderOptions,
    ) -> Result<(), Failure> {
        if let (true, Some(state)) = (self.restart_shares, &options.resume) {
            let len = image.directory().num_live();
            options.resume =
                Some(state.begun_anew(&options.order, len).map_err(dlfs::Error::from)?);
        }
        Ok(())
    }
}

/// Shows how far the share is brought.
pub(crate) fn meter(quiet: bool) -> impl FnMut(Staged) {
    let mut meter = None;
    move |Staged { samples, done, bytes, .. }| {
        let shown = meter.get_or_insert_with(|| Meter::new("storing", samples, quiet));
        shown.update(done, bytes);
        if done == samples {
            meter = None;
        }
    }
}

/// The report line on what the store holds and has exchanged.
pub(crate) fn store_line(stats: &StoreStats) -> String {
    let mut line = format!(
        "  store      {} now, {} at most; {} staged",
        text::bytes(stats.held_bytes),
        text::bytes(stats.peak_bytes),
        text::counted(stats.staged, "sample"),
    );
    for (count, what) in [
        (stats.found, "found there"),
        (stats.received, "received"),
        (stats.from_origin, "from the data set in place of a rank"),
        (stats.deleted, "deleted"),
        (stats.mismatched, "damaged and fetched elsewhere"),
    ] {
        if count > 0 {
            line.push_str(&format!(", {} {what}", text::count(count)));
        }
    }
    line
}
