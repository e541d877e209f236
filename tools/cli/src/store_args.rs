//! Options for this rank's share in its own storage.

use dlfs::Result;
use dlfs::dataset::Image;
use dlfs::options::Store;
use dlfs::prefetch::LoaderOptions;
use dlfs::store::{Staged, StoreStats};

use crate::progress::Meter;
use crate::text;

/// Resumes with new shares, if requested.
///
/// # Errors
/// `InvalidArgument`: the state is in the middle of an epoch.
pub(crate) fn restart(store: &Store, image: &Image, options: &mut LoaderOptions) -> Result<()> {
    if let (true, Some(state)) = (store.restart_shares, &options.resume) {
        let len = image.directory().num_live();
        options.resume = Some(state.begun_anew(&options.order, len)?);
    }
    Ok(())
}

/// Returns a closure that shows the progress of staging the share, and never stops it.
pub(crate) fn staging(quiet: bool) -> impl FnMut(Staged) -> bool {
    let mut meter = None;
    move |Staged { samples, done, bytes, .. }| {
        let shown = meter.get_or_insert_with(|| Meter::new("storing", samples, quiet));
        shown.update(done, bytes);
        if done == samples {
            meter = None;
        }
        true
    }
}

/// The report line about the store's content and exchange.
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
