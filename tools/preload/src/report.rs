//! The report on the program's reads below the mounts, written at the program's end to the file in `DLFS_REPORT`.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs::dataset::{AheadStats, EpochCounts, FileCounts, Place};
use dlfs::qpair::folder::FolderStats;

use crate::ahead::FilesAhead;
use crate::mounts::{Mount, Opened, all};
use crate::settings::from_here;
use crate::{inside, syscalls};

/// The destination of the report: `-` is stderr, other names are files that it is appended to.
static DESTINATION: OnceLock<CString> = OnceLock::new();

/// Stores the value of `DLFS_REPORT`.
pub(crate) fn set_destination(destination: Option<&[u8]>) {
    let whole = |name: &[u8]| match name {
        b"-" => b"-".to_vec(),
        name => from_here(OsStr::from_bytes(name)).into_os_string().into_vec(),
    };
    if let Some(destination) = destination.and_then(|name| CString::new(whole(name)).ok()) {
        let _ = DESTINATION.set(destination); // the settings are read once
    }
}

/// Writes, for each mount in use, a line of totals, then lines about readahead, epochs, and the places that bytes
/// came from.
pub(crate) fn write_report() {
    let Some(destination) = DESTINATION.get() else { return };
    let text = inside::run(|| Ok(all().iter().map(lines).collect::<String>()));
    let text = text.unwrap_or_default();
    if text.is_empty() {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let fd =
        if destination.as_bytes() == b"-" { Ok(2) } else { syscalls::open(destination, flags) };
    // If the file cannot be opened, the write fails and is ignored: the program is ending.
    syscalls::write(fd.unwrap_or(-1), &text);
}

/// The lines about a mount; empty if the program did not use it.
fn lines(mount: &Mount) -> String {
    let counters = mount.counters();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let so_far = mount.if_opened().map(|opened| opened.files.counters().so_far());
    let FileCounts { opens, reads, bytes } = so_far.unwrap_or_default();
    let stats = load(&counters.stats);
    let folders = load(&counters.folders);
    if opens + stats + folders == 0 {
        return String::new();
    }
    let mut lines = vec![format!(
        "opens {opens}, reads {reads}, bytes {bytes}, stats {stats}, folders {folders}"
    )];
    if let Some(opened) = mount.if_opened() {
        lines.extend(opened.ahead.get().and_then(Option::as_ref).map(ahead_line));
        lines.extend(opened.files.epochs_so_far().into_iter().map(epoch_line));
        lines.extend(place_lines(opened));
    }
    let begin = format!("dlfs {} {}", std::process::id(), mount.setting.prefix.escape_ascii());
    lines.iter().map(|line| format!("{begin}: {line}\n")).collect()
}

/// The line about readahead.
fn ahead_line(ahead: &FilesAhead) -> String {
    let AheadStats { samples, bytes, hits, misses, unused } = ahead.stats();
    let ended = ahead.ended().map_or(String::new(), |why| format!(", ended: {why}"));
    format!(
        "read ahead: samples {samples}, bytes {bytes}, hits {hits}, misses {misses}, unused {unused}{ended}"
    )
}

/// The line about an epoch.
fn epoch_line(counts: EpochCounts) -> String {
    let EpochCounts { epoch, files: FileCounts { opens, reads, bytes }, places } = counts;
    let from = places.iter().map(|place| {
        format!("; from {}: reads {}, bytes {}", name_of(place), place.reads, place.bytes)
    });
    let from: String = from.collect();
    format!("epoch {epoch}: opens {opens}, reads {reads}, bytes {bytes}{from}")
}

/// A line for each place that bytes came from, and one more for a plain folder.
fn place_lines(opened: &Opened) -> Vec<String> {
    let dataset = opened.files.dataset();
    let tiers = dataset.image().tiers().map(|tiers| tiers.stats().tiers);
    let places = dataset.places().into_iter().flat_map(|places| places.places);
    let mut lines = Vec::new();
    for (number, place) in places.enumerate() {
        // The tiers come first, in the same order; only tiers count opens.
        let opens = tiers.as_ref().and_then(|tiers| tiers.get(number)).map(|tier| tier.opens);
        let opens = opens.map_or(String::new(), |opens| format!(", opens {opens}"));
        let Place { reads, bytes, .. } = place;
        lines.push(format!("from {}: reads {reads}, bytes {bytes}{opens}", name_of(&place)));
    }
    if let Some(folder) = dataset.image().folder() {
        let FolderStats { opens, reads, bytes } = folder.stats();
        let ours = opened.origin().so_far();
        lines.push(format!(
            "at the origin: opens {}, reads {}, bytes {}",
            opens + ours.opens,
            reads + ours.reads,
            bytes + ours.bytes
        ));
    }
    lines
}

/// The name of a place in the report.
fn name_of(place: &Place) -> &str {
    if place.name.is_empty() { "origin" } else { &place.name }
}
