//! The settings, from the environment, which are read once, before `main`; and the report on the program's reads below
//! the mounts, written at the program's end to the file in `DLFS_REPORT`.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs::address::Address;
use dlfs::cache::TierSpec;
use dlfs::dataset::{Ahead, AheadStats, EpochCounts, FileCounts, Place};
use dlfs::qpair::folder::FolderStats;
use dlfs::units::parse_size;

use crate::mounts::{self, Held, Mount, Opened};
use crate::{own, paths};

/// The mount point of one data set, and its options.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    /// An absolute path without a trailing slash, as `normalise` returns it.
    pub(crate) prefix: Vec<u8>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) tiers: Vec<TierSpec>,
    /// The longest file that is copied into memory.
    pub(crate) copy_bytes: u64,
    /// The FUSE mount of the same data set, where files above 16 MiB are opened.
    pub(crate) fuse: Option<PathBuf>,
    /// The file with the order that the program reads in.
    pub(crate) order: Option<PathBuf>,
}

/// Reads the environment. `DLFS_ORDER` is the order of the first mount, unless that has `;order=`. An error in
/// `DLFS_MOUNTS` is reported in one line, and the program then runs without this library.
pub(crate) fn start() {
    if has_more_rights_than_its_caller() {
        return;
    }
    let Some(text) = variable(c"DLFS_MOUNTS") else { return };
    match parse(text) {
        Ok(mut settings) => {
            if let (Some(order), Some(first)) = (variable(c"DLFS_ORDER"), settings.first_mut()) {
                first.order.get_or_insert_with(|| OsStr::from_bytes(order).into());
            }
            let hash = text.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            start_report(variable(c"DLFS_REPORT"));
            mounts::set(settings.into_iter().map(Mount::new).collect(), hash as u32);
            paths::learn_working_folder();
        }
        Err(why) => own::say(&format!("DLFS_MOUNTS is not used: {why}")),
    }
}

/// Returns whether this program has rights that its caller lacks, as set-uid programs have. The environment is
/// the caller's, and is then not trusted.
fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: it only reads what the kernel gave this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with NUL; before `main`, no other thread changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: the value is NULL, or a string that is valid until the environment changes.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())?;
    // A copy, since the program may change its environment.
    (!value.is_empty()).then(|| &*value.to_vec().leak())
}

/// `PREFIX=ADDRESS[;tier=TIER][;copy=SIZE][;fuse=FOLDER][;order=FILE]`, several settings separated by spaces.
/// In a value, a space, `=`, `;` or `%` is written as `%20`, `%3D`, `%3B` or `%25`.
fn parse(text: &[u8]) -> Result<Vec<Setting>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?;
    let mut settings: Vec<Setting> = Vec::new();
    for mount in text.split_ascii_whitespace() {
        let setting = parse_one(mount).map_err(|why| format!("{mount}: {why}"))?;
        let inside = |one: &Setting, other: &Setting| {
            let rest = one.prefix.strip_prefix(&other.prefix[..]);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        if settings.iter().any(|known| inside(&setting, known) || inside(known, &setting)) {
            return Err(format!("{mount}: its folder is another one's, or is inside of it"));
        }
        settings.push(setting);
    }
    Ok(settings)
}

fn parse_one(mount: &str) -> Result<Setting, String> {
    let (prefix, rest) = mount.split_once('=').ok_or("write FOLDER=ADDRESS")?;
    if !prefix.starts_with('/') {
        return Err("its folder is not an absolute path".to_owned());
    }
    let prefix = paths::normalise(whole(prefix).as_bytes());
    if prefix == b"/" {
        return Err("the whole file system cannot be one".to_owned());
    }
    let mut parts = rest.split(';');
    // `%25` stays: an address decodes it itself.
    let addresses = Address::parse_list(&unescaped(parts.next().unwrap_or_default()));
    let addresses = addresses.map_err(|error| error.to_string())?;
    let mut tiers = Vec::new();
    let mut copy_bytes = COPY_BYTES;
    let mut fuse = None;
    let mut order = None;
    for option in parts {
        match option.split_once('=') {
            Some(("tier", tier)) => {
                tiers.push(whole(tier).parse().map_err(|why| format!("{why}"))?)
            }
            Some(("copy", size)) => copy_bytes = parse_size(size).map_err(|why| why.to_string())?,
            Some(("fuse", folder)) => fuse = Some(whole(folder).into()),
            Some(("order", file)) => order = Some(whole(file).into()),
            _ => return Err(format!("{option} is none of tier=, copy=, fuse= and order=")),
        }
    }
    Ok(Setting { prefix, addresses, tiers, copy_bytes, fuse, order })
}

/// Decodes the escapes of separators only, not that of `%`.
fn unescaped(text: &str) -> String {
    let escapes = [("%20", " "), ("%09", "\t"), ("%0A", "\n"), ("%0a", "\n")];
    let more = [("%3D", "="), ("%3d", "="), ("%3B", ";"), ("%3b", ";")];
    let all = escapes.iter().chain(&more);
    all.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Decodes all escapes.
fn whole(text: &str) -> String {
    unescaped(text).replace("%25", "%")
}

/// Default length of the longest file that is copied into memory.
const COPY_BYTES: u64 = 1 << 30;

/// The destination of the report: `-` is stderr, other names are files that it is appended to.
static PLACE: OnceLock<CString> = OnceLock::new();

/// Stores the value of `DLFS_REPORT`.
fn start_report(place: Option<&[u8]>) {
    if let Some(place) = place.and_then(|place| CString::new(place).ok()) {
        let _ = PLACE.set(place); // the settings are read once
    }
}

/// For each mount in use, writes a line of totals, then lines about readahead, epochs, and the places that bytes
/// came from.
pub(crate) fn write_report() {
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
    let begin = format!("dlfs {} {}", std::process::id(), mount.setting.prefix.escape_ascii());
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
