//! The share of this rank in its own storage, on the command line.

use dlfs::Result;
use dlfs::dataset::Image;
use dlfs::options::Store;
use dlfs::prefetch::LoaderOptions;
use dlfs::store::{Staged, StoreStats};

use crate::progress::Meter;
use crate::text;

/// Resumes with new shares, if that is asked for.
///
/// # Errors
/// `InvalidArgument`: the state lies within an epoch.
pub(crate) fn restart(store: &Store, image: &Image, options: &mut LoaderOptions) -> Result<()> {
    if let (true, Some(state)) = (store.restart_shares, &options.resume) {
        let len = image.directory().num_live();
        options.resume = Some(state.begun_anew(&options.order, len)?);
    }
    Ok(())
}

/// Shows how far the share is brought.
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
