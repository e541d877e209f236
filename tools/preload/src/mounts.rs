//! The mounts: their settings, from the environment, which are read once, before `main`; their data sets, open from
//! their first use on; their files that are read ahead; and the report on the program's reads below them, written at
//! the program's end to the file in `DLFS_REPORT`.

use std::ffi::{CStr, CString, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use dlfs::address::Address;
use dlfs::cache::{Cache, TierOptions, TierSpec};
use dlfs::dataset::{
    Ahead, AheadStats, Dataset, EpochCounts, FileCounters, FileCounts, Files, OnError, OpenOptions,
    Options, OrderFile, Place, Query,
};
use dlfs::posix::{File, Node};
use dlfs::process::{Forked, mark_ours};
use dlfs::qpair::folder::FolderStats;
use dlfs::units::{Epoch, parse_size};
use dlfs::{Error, ErrorKind};

use crate::files::{self, Kept, Memory};
use crate::own::{self, most_descriptors};
use crate::paths;

/// The mount point of one data set, and its options.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    /// An absolute path without a trailing slash, as `normalise` returns it.
    pub(crate) prefix: Vec<u8>,
    addresses: Vec<Address>,
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
            SETTINGS.store(hash as u32, Ordering::Relaxed);
            let mounts = settings.into_iter().map(Mount::new).collect::<Vec<_>>();
            MOUNTS.store(Box::into_raw(Box::new(mounts)), Ordering::Release);
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
    let text = own::inside(|| Ok(all().iter().map(lines).collect::<String>()));
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
        lines.extend(opened.ahead.get().and_then(Option::as_ref).map(ahead));
        lines.extend(opened.files.epochs_so_far().into_iter().map(epoch));
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
        let ours = opened.origin.so_far();
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

/// One prefix, and the data set below it.
pub(crate) struct Mount {
    pub(crate) setting: Setting,
    opened: AtomicPtr<Opened>,
    /// Set when opening begins: from then on the library may have descriptors.
    in_use: AtomicBool,
    /// Held during opening; true once a failure was reported. A forked child has its own lock, since its
    /// parent's may stay locked.
    opening: Forked<Mutex<bool>>,
    pub(crate) counters: Counters,
}

/// An open data set.
pub(crate) struct Opened {
    pub(crate) files: Files,
    /// The plain folder with the files, if the data set is one.
    pub(crate) folder: Option<PathBuf>,
    /// Counters of the files that the kernel opened and read in the plain folder for the program.
    pub(crate) origin: FileCounters,
    /// Readahead, which begins at the first opened file; `None` if it failed.
    ahead: Forked<Option<Ahead<Held>>>,
    /// The bytes that the data set uses on its namespaces, for `statfs`.
    pub(crate) len_bytes: u64,
}

/// Counters of the program's calls, beside those of files.
#[derive(Default)]
pub(crate) struct Counters {
    /// Requests for attributes, by path or descriptor.
    pub(crate) stats: AtomicU64,
    /// Folders opened.
    pub(crate) folders: AtomicU64,
}

static MOUNTS: AtomicPtr<Vec<Mount>> = AtomicPtr::new(null_mut());
static SETTINGS: AtomicU32 = AtomicU32::new(0);

/// All mounts; empty before the settings are read.
#[inline]
pub(crate) fn all() -> &'static [Mount] {
    // SAFETY: the pointer is NULL or was leaked by `start`, so that it is valid for ever.
    unsafe { MOUNTS.load(Ordering::Acquire).as_ref() }.map_or(&[], |mounts| &mounts[..])
}

/// A hash of the settings: a memfd from a program with other settings is not recognised.
pub(crate) fn settings_hash() -> u32 {
    SETTINGS.load(Ordering::Relaxed)
}

/// Writes the tiers' pending data, since the data sets are never dropped.
pub(crate) fn flush() {
    let tiers = |opened: &'static Opened| opened.files.dataset().image().tiers();
    let flushed = own::inside(|| {
        all().iter().filter_map(|mount| tiers(mount.if_opened()?)).for_each(Cache::flush);
        Ok(())
    });
    let _ = flushed; // fails only after a panic, which is already printed
}

impl Mount {
    pub(crate) fn new(setting: Setting) -> Mount {
        Mount {
            setting,
            opened: AtomicPtr::default(),
            in_use: AtomicBool::default(),
            opening: Forked::empty(),
            counters: Counters::default(),
        }
    }

    /// The rest of `path`, if it is the prefix or below it.
    #[inline]
    pub(crate) fn below<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(&self.setting.prefix[..])?;
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }

    /// The index of the mount among all mounts.
    pub(crate) fn index(&self) -> usize {
        all().iter().position(|mount| std::ptr::eq(mount, self)).unwrap_or(0)
    }

    /// Returns whether the library may have descriptors for the mount.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// The data set, if it is already open.
    pub(crate) fn if_opened(&self) -> Option<&'static Opened> {
        // SAFETY: the pointer is NULL or was leaked by `opened`, so that it is valid for ever.
        unsafe { self.opened.load(Ordering::Acquire).as_ref() }
    }

    /// The data set; opens it if it is not open yet. The caller is [inside](own::inside).
    pub(crate) fn opened(&self) -> Result<&'static Opened, c_int> {
        if let Some(opened) = self.if_opened() {
            return Ok(opened);
        }
        let opening = self.opening.get_or_init(|| Mutex::new(false));
        let mut has_failed = opening.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(opened) = self.if_opened() {
            return Ok(opened);
        }
        self.in_use.store(true, Ordering::Release);
        match own::above_low_numbers(|| self.open()) {
            Ok(opened) => {
                self.opened.store(Box::into_raw(Box::new(opened)), Ordering::Release);
                self.if_opened().ok_or(libc::EIO)
            }
            Err(error) => {
                if !std::mem::replace(&mut *has_failed, true) {
                    own::say(&format!(
                        "{}: {}",
                        self.setting.prefix.escape_ascii(),
                        error.report()
                    ));
                }
                Err(errno_of(&error))
            }
        }
    }

    fn open(&self) -> dlfs::Result<Opened> {
        let tiers = TierOptions { tiers: self.setting.tiers.clone(), ..TierOptions::default() };
        let open = OpenOptions { tiers, ..OpenOptions::default() };
        let options = Options { open, ..Options::default() };
        let addresses = &self.setting.addresses;
        let dataset = Dataset::open(addresses, &options, &mut ())?;
        let superblocks = dataset.image().superblocks();
        let len_bytes = dlfs::format::superblock::used_bytes(superblocks);
        let files = Files::new(dataset, &mut ())?;
        let folder = match &addresses[..] {
            [Address::Path(path)] if path.is_dir() => Some(path.clone()),
            _ => None,
        };
        // Reads no sample, but makes the first reader: its descriptors, too, are made above the low numbers.
        files.dataset().read(Query::Ids(&[]), OnError::Raise, &mut ())?;
        let origin = FileCounters::default();
        Ok(Opened { files, folder, origin, ahead: Forked::empty(), len_bytes })
    }
}

impl Opened {
    /// Returns whether the data set is a plain folder that is read through tiers.
    pub(crate) fn has_tiers(&self) -> bool {
        self.folder.is_some() && self.files.dataset().image().tiers().is_some()
    }

    /// Returns whether the data set is a plain folder without tiers: the kernel then sees all of its files
    /// too.
    pub(crate) fn is_bare(&self) -> bool {
        self.folder.is_some() && !self.has_tiers()
    }
}

/// The error number for a program.
pub(crate) fn errno_of(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::InvalidArgument => libc::EINVAL,
        ErrorKind::Refused => libc::EACCES,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Stale => libc::ESTALE,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::Disconnected => libc::ENOTCONN,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

/// The files of one sample.
type Held = Arc<[Waiting]>;

/// A memfd that waits.
pub(crate) struct Waiting {
    memory: Kept,
    len: u64,
    /// Epoch of the file in the order.
    epoch: Epoch,
}

impl Mount {
    /// Opens a file that was read ahead, counts it, and returns a new descriptor. The first call starts readahead.
    pub(crate) fn read_ahead(
        &'static self,
        opened: &'static Opened,
        file: File,
        flags: c_int,
    ) -> Option<c_int> {
        let order = self.setting.order.as_ref()?;
        let ahead = opened.ahead.get_or_init(|| {
            let order = OrderFile::load(order);
            let begun = order.and_then(|order| {
                let most = (most_descriptors() / 4).min(MOST_HELD);
                Ahead::start(opened.files.dataset(), &order, most, move |batch, index| {
                    let id = batch.id(index);
                    let fields = opened.files.tree().directory().fields().len().max(1);
                    let files = (0..fields).map(|field| File { id, field: field as u16 });
                    files.map(|file| self.hold(opened, batch, index, file)).collect()
                })
            });
            begun
                .inspect_err(|error| {
                    let prefix = self.setting.prefix.escape_ascii();
                    own::say(&format!("{prefix}: nothing is read ahead: {}", error.report()));
                })
                .ok()
        });
        let held = ahead.as_ref()?.take(file.id)?;
        let waiting = held.get(usize::from(file.field))?;
        let (fd, stat) = waiting.open(flags)?;
        files::note_node(fd, &stat, self, Node::File(file));
        opened.files.opened(file, Some(waiting.epoch));
        opened.files.counters().read(waiting.len);
        Some(fd)
    }

    fn hold(
        &self,
        opened: &Opened,
        batch: &dlfs::reader::Batch,
        index: usize,
        file: File,
    ) -> Option<Waiting> {
        let bytes = opened.files.bytes(batch, index, file).ok()?;
        let memory = Memory::new(&self.name_of(opened, Node::File(file)), libc::O_CLOEXEC).ok()?;
        memory.fill(&bytes).ok()?;
        let memory = Kept::new(memory.0, MOST_HELD)?;
        mark_ours(&memory.fd);
        Some(Waiting { memory, len: bytes.len() as u64, epoch: batch.epoch() })
    }
}

impl Waiting {
    /// A new descriptor for the program, with its own position.
    fn open(&self, flags: c_int) -> Option<(c_int, libc::stat)> {
        let Kept { fd, identity } = self.memory;
        let fd = files::open_again(fd, libc::O_RDONLY | flags & libc::O_CLOEXEC).ok()?;
        let stat = files::stat_of(fd).filter(|stat| files::identity_of(stat) == identity);
        if stat.is_none() {
            files::close(fd); // the program has closed ours and reused its number
        }
        Some((fd, stat?))
    }
}

/// The most samples that wait; also at most a quarter of the limit of descriptors, but at least one batch. A
/// sample takes a descriptor for each of its files.
const MOST_HELD: usize = 2048;
