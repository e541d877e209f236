//! A report on what the program did below the mounts, written at its end to the place that
//! `DLFS_REPORT` names.

use std::ffi::CString;
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs::dataset::{AheadStats, EpochCounts, FileCounts, Place};
use dlfs::qpair::folder::FolderStats;

use crate::mounts::{self, Mount};
use crate::own;

/// The destination of the report: `-` is stderr, other names are files that it is appended to.
static PLACE: OnceLock<CString> = OnceLock::new();

/// Keeps what `DLFS_REPORT` says.
pub(crate) fn start(place: Option<&[u8]>) {
    if let Some(place) = place.and_then(|place| CString::new(place).ok()) {
        let _ = PLACE.set(place); // the settings are read once
    }
}

/// Writes a line for each mount that was used, and for each place that its bytes came from.
pub(crate) fn write() {
    let Some(place) = PLACE.get() else { return };
    let text = own::inside(|| Ok(mounts::all().iter().map(lines).collect::<String>()));
    let text = text.unwrap_or_default();
    if text.is_empty() {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let fd = if place.as_bytes() == b"-" { Ok(2) } else { own::open(place, flags) };
    own::write(fd.unwrap_or(-1), &text);
}

fn lines(mount: &Mount) -> String {
    let counters = &mount.counters;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let FileCounts { opens, reads, bytes } = counters.of_files();
    let stats = load(&counters.stats);
    let folders = load(&counters.folders);
    let mut text = String::new();
    if opens + stats + folders == 0 {
        return text;
    }
    let process = std::process::id();
    let prefix = mount.prefix().escape_ascii();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "dlfs {process} {prefix}: opens {opens}, reads {reads}, bytes {bytes}, stats {stats}, folders {folders}"
    );
    let ahead = mount.if_opened().and_then(|opened| opened.ahead.get()?.as_ref());
    if let Some(ahead) = ahead {
        let AheadStats { samples, bytes, hits, misses, unused } = ahead.stats();
        let ended = ahead.ended().map_or(String::new(), |why| format!(", ended: {why}"));
        let _ = writeln!(
            text,
            "dlfs {process} {prefix}: read ahead: samples {samples}, bytes {bytes}, hits {hits}, \
             misses {misses}, unused {unused}{ended}"
        );
    }
    text += &epochs(mount, &prefix.to_string());
    let dataset = mount.if_opened().map(|opened| opened.files.dataset());
    let tiers = dataset.and_then(|dataset| Some(dataset.image().tiers()?.stats().tiers));
    let places = dataset.and_then(|dataset| dataset.places());
    for (number, place) in places.into_iter().flat_map(|places| places.places).enumerate() {
        let name = name_of(&place);
        let reads = place.reads;
        let bytes = place.bytes;
        // The tiers come first.
        let opens = tiers.as_ref().and_then(|tiers| tiers.get(number)).map(|tier| tier.opens);
        let opens = opens.map_or(String::new(), |opens| format!(", opens {opens}"));
        let _ = writeln!(
            text,
            "dlfs {process} {prefix}: from {name}: reads {reads}, bytes {bytes}{opens}"
        );
    }
    let opened = mount.if_opened();
    let folder = opened.and_then(|opened| opened.files.dataset().image().folder());
    if let Some((opened, folder)) = opened.zip(folder) {
        let FolderStats { opens, reads, bytes } = folder.stats();
        let ours = opened.origin.of_files();
        let opens = opens + ours.opens;
        let reads = reads + ours.reads;
        let bytes = bytes + ours.bytes;
        let _ = writeln!(
            text,
            "dlfs {process} {prefix}: at the origin: opens {opens}, reads {reads}, bytes {bytes}"
        );
    }
    text
}

/// A line for each epoch.
fn epochs(mount: &Mount, prefix: &str) -> String {
    let process = std::process::id();
    let so_far = mount.counters.of_files();
    let epochs = mount.if_opened().map(|opened| opened.files.epochs_so_far(so_far));
    let line = |counts: EpochCounts| {
        let EpochCounts { epoch, files: FileCounts { opens, reads, bytes }, places } = counts;
        let from = places.iter().map(|place| {
            format!("; from {}: reads {}, bytes {}", name_of(place), place.reads, place.bytes)
        });
        let from: String = from.collect();
        format!(
            "dlfs {process} {prefix}: epoch {epoch}: opens {opens}, reads {reads}, bytes {bytes}{from}\n"
        )
    };
    epochs.unwrap_or_default().into_iter().map(line).collect()
}

fn name_of(place: &Place) -> &str {
    if place.name.is_empty() { "origin" } else { &place.name }
}
