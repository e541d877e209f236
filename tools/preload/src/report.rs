//! A report on the program's reads below the mounts, written at the program's end to the file in
//! `DLFS_REPORT`.

use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs::dataset::{Ahead, AheadStats, EpochCounts, FileCounts, Place};
use dlfs::qpair::folder::FolderStats;

use crate::ahead::Held;
use crate::mounts::{self, Mount, Opened};
use crate::own;

/// The destination of the report: `-` is stderr, other names are files that it is appended to.
static PLACE: OnceLock<CString> = OnceLock::new();

/// Stores the value of `DLFS_REPORT`.
pub(crate) fn start(place: Option<&[u8]>) {
    if let Some(place) = place.and_then(|place| CString::new(place).ok()) {
        let _ = PLACE.set(place); // the settings are read once
    }
}

/// For each mount in use, writes a line of totals, then lines about readahead, epochs, and the places that bytes
/// came from.
pub(crate) fn write() {
    let Some(place) = PLACE.get() else { return };
    let text = own::inside(|| Ok(mounts::all().iter().map(lines).collect::<String>()));
    let text = text.unwrap_or_default();
    if text.is_empty() {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let fd = if place.as_bytes() == b"-" { Ok(2) } else { own::open(place, flags) };
    // If the file cannot be opened, the write fails and is ignored: the program is ending.
    own::write(fd.unwrap_or(-1), &text);
}

fn lines(mount: &Mount) -> String {
    let counters = &mount.counters;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let so_far = counters.of_files();
    let FileCounts { opens, reads, bytes } = so_far;
    let stats = load(&counters.stats);
    let folders = load(&counters.folders);
    if opens + stats + folders == 0 {
        return String::new();
    }
    let mut lines = vec![format!(
        "opens {opens}, reads {reads}, bytes {bytes}, stats {stats}, folders {folders}"
    )];
    if let Some(opened) = mount.if_opened() {
        lines.extend(opened.ahead.get().and_then(Option::as_ref).map(ahead));
        lines.extend(opened.files.epochs_so_far(so_far).into_iter().map(epoch));
        lines.extend(places(opened));
    }
    let begin = format!("dlfs {} {}", std::process::id(), mount.prefix().escape_ascii());
    lines.iter().map(|line| format!("{begin}: {line}\n")).collect()
}

fn ahead(ahead: &Ahead<Held>) -> String {
    let AheadStats { samples, bytes, hits, misses, unused } = ahead.stats();
    let ended = ahead.ended().map_or(String::new(), |why| format!(", ended: {why}"));
    format!(
        "read ahead: samples {samples}, bytes {bytes}, hits {hits}, misses {misses}, unused {unused}{ended}"
    )
}

fn epoch(counts: EpochCounts) -> String {
    let EpochCounts { epoch, files: FileCounts { opens, reads, bytes }, places } = counts;
    let from = places.iter().map(|place| {
        format!("; from {}: reads {}, bytes {}", name_of(place), place.reads, place.bytes)
    });
    let from: String = from.collect();
    format!("epoch {epoch}: opens {opens}, reads {reads}, bytes {bytes}{from}")
}

/// A line for each place, and one more for a plain folder.
fn places(opened: &Opened) -> Vec<String> {
    let dataset = opened.files.dataset();
    let tiers = dataset.image().tiers().map(|tiers| tiers.stats().tiers);
    let places = dataset.places().into_iter().flat_map(|places| places.places);
    let mut lines = Vec::new();
    for (number, place) in places.enumerate() {
        // The first places are the tiers, in the same order: only tiers count opens.
        let opens = tiers.as_ref().and_then(|tiers| tiers.get(number)).map(|tier| tier.opens);
        let opens = opens.map_or(String::new(), |opens| format!(", opens {opens}"));
        let Place { reads, bytes, .. } = place;
        lines.push(format!("from {}: reads {reads}, bytes {bytes}{opens}", name_of(&place)));
    }
    if let Some(folder) = dataset.image().folder() {
        let FolderStats { opens, reads, bytes } = folder.stats();
        let ours = opened.origin.of_files();
        lines.push(format!(
            "at the origin: opens {}, reads {}, bytes {}",
            opens + ours.opens,
            reads + ours.reads,
            bytes + ours.bytes
        ));
    }
    lines
}

fn name_of(place: &Place) -> &str {
    if place.name.is_empty() { "origin" } else { &place.name }
}
