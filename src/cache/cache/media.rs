//! Storage of a tier: opens and locks it, and reads or begins its index; frees, freezes and shares its pages.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Opening;
use super::folder::{self, FolderLock};
use super::options::{TierKind, TierSpec};
use super::overwrite::{take_over, take_over_namespace};
use super::own_files::{self, OwnFiles, blocks_bytes};
use super::share::{self, Listener, SharedTier, TierPlace};
use dlfs_base::buf::HugePages;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::metrics;
use dlfs_base::process::NotInherited;
use dlfs_io::address::Address;
use dlfs_io::qpair::blocking::Blocking;
use dlfs_io::qpair::file::{FileNamespace, FileOptions};
use dlfs_io::qpair::mem::{MemNamespace, SharedMemory};
use dlfs_io::qpair::{ConnectOptions, Device, Direct};
use dlfs_order::tier::{
    CopyLocation, Index, IndexError, Kept, Ledger, OWN_FILES_PAGE, PAGE_BYTES, Policy, Units,
};

/// The storage of one tier.
pub(super) struct Media {
    /// Declared before the device, which owns the file descriptor, so that the lock is dropped first.
    _lock: Option<NotInherited>,
    /// The tier's specification in its normal form (`TierSpec`'s `Display`, quota in bytes). Attaching processes
    /// compare it, and `kind` reads its prefix.
    pub(super) name: String,
    pub(super) device: Arc<dyn Device>,
    /// Offset of the first copy.
    pub(super) data_offset: u64,
    /// Number of pages for copies.
    pub(super) capacity_pages: u64,
    /// Address space for copies, in pages. If it is larger than the capacity, the storage is sparse:
    /// only written pages take room, and pages that are no longer needed must be freed.
    pub(super) space_pages: u64,
    /// The file of a sparse tier.
    file: Option<Arc<FileNamespace>>,
    /// The shared memory of a tier; `None` if the tier has none, or another process owns it.
    memory: Option<SharedMemory>,
    /// Long samples as files of their own; only for a tier in a folder.
    pub(super) own_files: Option<OwnFiles>,
    /// The index that survives a restart; none for a tier in memory, or of another process.
    pub(super) index: Option<Mutex<Index>>,
    /// The address of a tier in a remote namespace.
    pub(super) remote: Option<String>,
    /// The lock on the remote namespace among the processes of this node.
    _claim: Option<Listener>,
    /// Prevents mounting a block device while the tier uses it.
    _exclusive: Option<File>,
}

impl Media {
    /// The parameters by which another process reads this tier; `None` if it is in memory that other
    /// processes cannot map.
    pub(super) fn shared(&self) -> Option<SharedTier> {
        let memory = self.memory.as_ref().map(|memory| memory.namespace().len_bytes());
        let place = || match &self.remote {
            Some(address) => Some(TierPlace::Namespace(address.clone())),
            None => self.device.capabilities().local_path.map(TierPlace::File),
        };
        Some(SharedTier {
            name: self.name.clone(),
            place: memory.map(TierPlace::Memory).or_else(place)?,
            data_offset: self.data_offset,
            capacity_pages: self.capacity_pages,
            is_sparse: self.is_sparse(),
            has_own_files: self.own_files.is_some(),
        })
    }

    /// The place that metrics attribute the tier's bytes to.
    pub(super) fn kind(&self) -> metrics::Place {
        if self.name.starts_with("ram:") { metrics::Place::Memory } else { metrics::Place::Drive }
    }

    /// Returns whether only written pages take room.
    pub(super) fn is_sparse(&self) -> bool {
        self.space_pages > self.capacity_pages
    }

    /// Marks pages whose copies are complete: readers may borrow them, if the tier is in this process's
    /// memory.
    pub(super) fn freeze(&self, pages: &Range<u64>) {
        if let Some(memory) = &self.memory {
            memory.freeze(self.bytes_of(pages));
        }
    }

    /// Ends the lending of copies that are withdrawn. Returns whether no borrower has any of them: only
    /// then may the pages be written and deallocated. Otherwise call again later.
    pub(super) fn thaw(&self, pages: &Range<u64>) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.thaw(self.bytes_of(pages)))
    }

    /// As [`Media::thaw`], for all of `ranges`: does not stop at the first range that is lent.
    pub(super) fn thaw_all(&self, ranges: impl Iterator<Item = Range<u64>>) -> bool {
        let mut are_back = true;
        for range in ranges {
            are_back &= self.thaw(&range);
        }
        are_back
    }

    fn bytes_of(&self, pages: &Range<u64>) -> Range<u64> {
        self.data_offset + pages.start * PAGE_BYTES..self.data_offset + pages.end * PAGE_BYTES
    }

    /// Frees the storage of pages whose copies are no longer needed, if the tier is sparse.
    ///
    /// # Errors
    /// Errors of the operating system: the tier may exceed its quota from now on.
    pub(super) fn deallocate(&self, pages: Range<u64>) -> Result<()> {
        if !self.is_sparse() || pages.is_empty() {
            return Ok(());
        }
        match (&self.file, &self.memory) {
            (Some(file), _) => file.deallocate(self.bytes_of(&pages)),
            (None, Some(memory)) => memory.deallocate(self.bytes_of(&pages)),
            (None, None) => Ok(()),
        }
    }

    /// Frees all storage except `used`, ascending ranges of pages: a process that was killed leaves pages that no index
    /// lists. Removes the separate files without a used page; frees other pages of a sparse file if the file takes more
    /// room than its used pages.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn deallocate_all_but(&self, used: &[Range<u64>]) -> Result<()> {
        let first_own = used.partition_point(|pages| pages.start < OWN_FILES_PAGE);
        let (used, own) = used.split_at(first_own);
        if let Some(files) = &self.own_files {
            files.remove_all_but(own)?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        let Some(path) = file.capabilities().local_path else { return Ok(()) };
        let takes = std::fs::metadata(&path).map_or(u64::MAX, |found| blocks_bytes(&found));
        let listed: u64 = used.iter().map(|pages| pages.end - pages.start).sum();
        if takes <= self.data_offset + listed * PAGE_BYTES {
            return Ok(());
        }
        let mut from = 0;
        for pages in used {
            self.deallocate(from..pages.start)?;
            from = pages.end;
        }
        self.deallocate(from..self.space_pages)
    }

    /// Returns whether this version would put the unit of `kept` at the same place: units of long
    /// samples in files of their own, if the tier has such files, and all other units in the tier's
    /// medium. An index of an earlier version may list long samples in the medium: such copies are not
    /// restored.
    pub(super) fn is_still_its_place(&self, units: &Units, kept: &Kept) -> bool {
        match (&self.own_files, units.long_of(kept.unit)) {
            (Some(_), Some(_)) => {
                let page = units.get(kept.unit).page;
                // The tier's number does not matter: 0 stands for it on both sides.
                kept.location(0) == CopyLocation::in_own_file(0, page)
            }
            _ => kept.page < OWN_FILES_PAGE,
        }
    }

    /// The memory whose file descriptor is passed to processes that attach.
    pub(super) fn memory(&self) -> Option<BorrowedFd<'_>> {
        Some(self.memory.as_ref()?.file())
    }

    /// Removes a unit from the index in memory; the index page on disk is written with its next change.
    pub(super) fn forget(&self, unit: u32) {
        if let Some(index) = &self.index {
            index.lock().set(unit, None);
        }
    }

    /// Opens a tier; returns it and the copies that its index lists.
    pub(super) fn open(opening: &Opening, number: u8) -> Result<(Media, Vec<Kept>)> {
        let Opening { options, units, .. } = opening;
        let spec = &options.tiers[usize::from(number)];
        let is_last = usize::from(number) + 1 == options.tiers.len();
        // A sparse tier gives out more places than it has room for. Under first-touch a unit keeps its place
        // for good, so if its tier fills up, its other pages are kept nowhere: only the last tier may be
        // sparse. A plan never exceeds a tier's room, so all tiers in memory and in files may be. A remote
        // namespace never is.
        let space = |capacity| {
            if is_last || options.policy == Policy::Clairvoyant {
                Ledger::sparse_space(capacity, units)
            } else {
                capacity
            }
        };
        let (media, kept) = match &spec.kind {
            TierKind::Ram => (in_memory(spec, units, &space)?, Vec::new()),
            TierKind::File(path) => in_file(opening, path, spec, &space)?,
            TierKind::Namespace(address) => {
                in_namespace(opening, &Address::Tcp(address.clone()), spec)?
            }
        };
        let smallest = (0..units.len()).map(|unit| u64::from(units.get(unit).pages())).min();
        if smallest.is_some_and(|pages| pages > media.capacity_pages) {
            tracing::warn!(tier = number, name = %media.name, "too small for any sample: it stays empty");
        }
        Ok((media, kept))
    }

    /// A tier in memory that other processes can map, if the operating system supports that.
    fn of_memory(name: String, capacity_pages: u64, space_pages: u64) -> Result<Media> {
        let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES).max(PAGE_BYTES);
        let len_bytes = bytes(capacity_pages);
        let block_len = PAGE_BYTES as u32;
        let (memory, space_pages) = if space_pages > capacity_pages {
            (SharedMemory::sparse(bytes(space_pages), len_bytes), space_pages)
        } else {
            (SharedMemory::new(len_bytes, block_len), capacity_pages)
        };
        let (device, memory, space_pages): (Arc<dyn Device>, _, _) = match memory {
            Ok(memory) => (Arc::new(memory.clone()), Some(memory), space_pages),
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error),
            Err(error) => {
                tracing::debug!(tier = %name, error = %error.report(), "no shared memory");
                (Arc::new(MemNamespace::new(len_bytes, block_len)?), None, capacity_pages)
            }
        };
        Ok(Media { space_pages, memory, ..Media::over(name, device, capacity_pages) })
    }

    /// A tier whose address space equals its capacity, without an index.
    fn over(name: String, device: Arc<dyn Device>, capacity_pages: u64) -> Media {
        Media {
            _lock: None,
            name,
            device,
            data_offset: 0,
            capacity_pages,
            space_pages: capacity_pages,
            file: None,
            memory: None,
            own_files: None,
            index: None,
            remote: None,
            _claim: None,
            _exclusive: None,
        }
    }

    /// This tier with long samples as files of their own beside its file at `path`.
    fn with_own_files(mut self, path: &Path, units: &Units) -> Media {
        self.own_files = OwnFiles::beside(path, units);
        if let Some(files) = &self.own_files {
            self.device = files.behind(self.device, self.data_offset);
        }
        self
    }
}

/// The tiers that another process owns, for reading; `memory` has the file descriptors of tiers in
/// memory.
pub(super) fn attached(
    opening: &Opening,
    tiers: &[SharedTier],
    memory: impl IntoIterator<Item = OwnedFd>,
) -> Result<Vec<Media>> {
    let Opening { units, options, .. } = opening;
    let mut memory = memory.into_iter();
    let mut media = |tier: &SharedTier| {
        let device: Arc<dyn Device> = match &tier.place {
            TierPlace::File(path) => {
                let used = tier.data_offset + tier.capacity_pages * PAGE_BYTES;
                let direct = direct_for(path, used);
                Arc::new(FileNamespace::open(
                    path,
                    FileOptions { direct, ..FileOptions::default() },
                )?)
            }
            TierPlace::Namespace(address) => {
                let address = address.parse().map_err(|_| {
                    Error::new(ErrorKind::Internal, format!("no address of a tier: {address}"))
                })?;
                remote(&address, &options.connect)?
            }
            TierPlace::Memory(len_bytes) => {
                let missing =
                    || Error::new(ErrorKind::Internal, "the owner of the tiers sent no memory");
                let file = memory.next().ok_or_else(missing)?;
                let pages = if tier.is_sparse { HugePages::Off } else { HugePages::Auto };
                Arc::new(SharedMemory::attach(file, *len_bytes, PAGE_BYTES as u32, pages)?)
            }
        };
        // Only the owner assigns places, so its address space does not matter here.
        let media = Media::over(tier.name.clone(), device, tier.capacity_pages);
        let media = Media { data_offset: tier.data_offset, ..media };
        Ok(match &tier.place {
            TierPlace::File(path) if tier.has_own_files => media.with_own_files(path, units),
            _ => media,
        })
    };
    tiers.iter().map(&mut media).collect()
}

/// A tier in memory, no larger than the data set. It is sparse only if `space` exceeds the capacity, since sparse
/// memory has no huge pages.
fn in_memory(spec: &TierSpec, units: &Units, space: &dyn Fn(u64) -> u64) -> Result<Media> {
    let capacity_pages = (spec.quota_bytes / PAGE_BYTES).min(units.num_pages());
    Media::of_memory(spec.to_string(), capacity_pages, space(capacity_pages)).map_err(|error| {
        error.hint(format!("the tier {spec} must fit into memory beside everything else"))
    })
}

/// A tier in a file of the folder `path`, or in the file or block device `path` itself.
fn in_file(
    opening: &Opening,
    path: &Path,
    spec: &TierSpec,
    space: &dyn Fn(u64) -> u64,
) -> Result<(Media, Vec<Kept>)> {
    let Opening { identity, units, origins, .. } = opening;
    let name = spec.to_string();
    let data_offset = Index::data_offset(units);
    let quota = spec.quota_bytes / PAGE_BYTES * PAGE_BYTES;
    if quota <= data_offset {
        let text = format!("the tier {name} is smaller than its own index of {data_offset} bytes");
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(path));
    }
    // Held until the file is open and locked itself, so that no process removes it in between.
    let folder = if path.is_dir() { Some(FolderLock::new(path)?) } else { None };
    let (path, exclusive) =
        take_over(path, &folder::file_name(*identity), spec.overwrite, origins)?;
    if folder.is_some() && path.exists() && !folder::is_unused(&path) {
        let text = "another process uses this tier";
        return Err(of_tier(Error::new(ErrorKind::Busy, text).path(path), &name));
    }
    let others =
        folder.as_ref().map_or(Ok(0), |folder| folder.bytes_of_others(&path, *identity))?;
    let mut quota = capped_by_disk(&path, quota, (data_offset, others), &name)?;
    if let Some(folder) = &folder {
        let wanted = data_offset.saturating_add(units.num_pages() * PAGE_BYTES);
        quota = folder.reserve(&path, *identity, quota, wanted)?;
        if quota <= data_offset {
            tracing::warn!(
                tier = %name,
                "other processes use the whole quota, or all room of the file system, for tiers of \
                 other data sets: this one stays empty; raise the quota, or make room there"
            );
            return Ok((Media::of_memory(name, 0, 0)?, Vec::new()));
        }
    }
    let capacity_pages = (quota - data_offset) / PAGE_BYTES;
    let space_pages = space(capacity_pages);
    if folder.is_some() {
        folder::shorten(&path, data_offset.saturating_add(space_pages.saturating_mul(PAGE_BYTES)))?;
    }
    let device = Arc::new(open_file(&path, quota).map_err(|error| of_tier(error, &name))?);
    let space_pages =
        if grow_sparse(&device, data_offset, space_pages) { space_pages } else { capacity_pages };
    let lock = device.keep_lock_from_children();
    if folder.is_some() {
        folder::note_use(&path);
    }
    let mut io = Blocking::new(device.queue_pair()?)?;
    let (index, kept) = open_index(opening, &mut io, &name, quota)?;
    let mut media = Media {
        _lock: Some(lock),
        file: (space_pages > capacity_pages).then(|| Arc::clone(&device)),
        data_offset,
        space_pages,
        index: Some(Mutex::new(index)),
        _exclusive: exclusive,
        ..Media::over(name, device, capacity_pages)
    };
    if folder.is_some() {
        media = media.with_own_files(&path, units);
    }
    media.own_files.as_ref().map_or(Ok(()), OwnFiles::create)?;
    Ok((media, kept))
}

/// Adds a hint that names the tier to an error of its file.
fn of_tier(error: Error, name: &str) -> Error {
    let hint = match error.kind() {
        ErrorKind::NotFound => format!("make the folder of the tier {name} first"),
        ErrorKind::Busy => format!(
            "the process that has the tier {name} does not share it: it belongs to another user, or reads another \
             image; use another folder"
        ),
        _ => format!("the error concerns the tier {name}"),
    };
    error.hint(hint)
}

/// Opens the namespace of a remote tier. Timeouts are short, since the origin has the bytes, too.
fn remote(address: &Address, connect: &ConnectOptions) -> Result<Arc<dyn Device>> {
    let mut options = ConnectOptions {
        writable: true,
        paths: Vec::new(),
        io_timeout: connect.io_timeout.min(LONGEST_SILENCE),
        ctrl_loss_tmo: connect.ctrl_loss_tmo.min(LONGEST_SILENCE),
        ..connect.clone()
    };
    options.set_connect_timeout(connect.connect_timeout.min(LONGEST_OPENING));
    dlfs_io::qpair::open(address, &options)
}

/// A tier in a remote namespace, which this node has to itself.
fn in_namespace(
    opening: &Opening,
    address: &Address,
    spec: &TierSpec,
) -> Result<(Media, Vec<Kept>)> {
    let Opening { identity, units, options, .. } = opening;
    let device = remote(address, &options.connect)?;
    let address = address.to_string();
    let refuse = |why: String| Err(invalid(format!("the tier {spec} {why}")));
    let len_bytes = device.namespace().len_bytes();
    let data_offset = Index::data_offset(units);
    let quota = spec.quota_bytes / PAGE_BYTES * PAGE_BYTES;
    if device.namespace().read_only {
        return refuse("has a namespace that is read-only".to_owned());
    }
    if spec.quota_bytes > len_bytes {
        return refuse(format!("is larger than its namespace: {len_bytes} bytes"));
    }
    if quota <= data_offset {
        return refuse(format!("is smaller than its own index of {data_offset} bytes"));
    }
    if device.capabilities().max_queue_pairs < 2 {
        return refuse("is of a target that grants one I/O queue; it takes two or more".to_owned());
    }
    let claim = claimed(&address, spec)?;
    let mut io = Blocking::new(device.queue_pair()?)?;
    take_over_namespace(&mut io, spec, *identity)?;
    let (index, kept) = open_index(opening, &mut io, &spec.to_string(), quota)?;
    let capacity_pages = (quota - data_offset) / PAGE_BYTES;
    let media = Media {
        data_offset,
        index: Some(Mutex::new(index)),
        remote: Some(address),
        _claim: Some(claim),
        ..Media::over(spec.to_string(), device, capacity_pages)
    };
    Ok((media, kept))
}

/// Claims the namespace of a tier among the processes of this machine.
fn claimed(address: &str, spec: &TierSpec) -> Result<Listener> {
    share::claim_namespace(address).map_err(|error| {
        if error.kind() != std::io::ErrorKind::AddrInUse {
            return Error::from(error);
        }
        let text = format!(
            "the namespace of the tier {spec} is in use: by another data set, generation or --node"
        );
        Error::new(ErrorKind::Busy, text).hint("give each of them a namespace of its own")
    })
}

/// The index of a tier with this quota: the existing one, if it belongs to this data set.
fn open_index(
    opening: &Opening,
    io: &mut Blocking,
    name: &str,
    quota: u64,
) -> Result<(Index, Vec<Kept>)> {
    let (mut index, kept) = read_index(opening, io, name)?;
    if index.set_quota(quota) {
        io.write_at(0, index.header())?;
        io.flush()?;
    }
    Ok((index, kept))
}

/// The quota, or the whole pages of the file system that are free or taken by tiers if they are less. Warns in that
/// case. `others` are the bytes that the other tiers of the same folder take: the quota is for all of them together.
///
/// # Errors
/// `InvalidArgument`: the quota is larger than the whole file system. `NoSpace`: not even the index fits.
fn capped_by_disk(
    path: &Path,
    quota: u64,
    (data_offset, others): (u64, u64),
    name: &str,
) -> Result<u64> {
    let Some((free, all)) = room_on_disk(path) else { return Ok(quota) };
    let free = free.saturating_add(others);
    if quota > all {
        let text = format!("the tier {name} is larger than its whole file system: {all} bytes");
        let hint = "give a quota that fits, or another path";
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(path).hint(hint));
    }
    if quota <= free {
        return Ok(quota);
    }
    tracing::warn!(
        tier = %name,
        quota_bytes = quota,
        room_bytes = free,
        "its file system has less room than its quota: it keeps what fits now"
    );
    if free / PAGE_BYTES * PAGE_BYTES <= data_offset {
        let text = format!(
            "the file system has {free} bytes free or taken by tiers, and the index of the tier \
             {name} needs {data_offset}"
        );
        let hint = "make room there, or put the tier elsewhere";
        return Err(Error::new(ErrorKind::NoSpace, text).path(path).hint(hint));
    }
    Ok(free / PAGE_BYTES * PAGE_BYTES)
}

/// Reads the index, or writes a new one if there is no index of this data set.
fn read_index(opening: &Opening, io: &mut Blocking, name: &str) -> Result<(Index, Vec<Kept>)> {
    let Opening { identity, units, .. } = opening;
    let old = io.read(0, Index::len_bytes(units.len()) as usize)?;
    let why = match Index::parse(&old, identity.uuid, identity.generation, units) {
        Ok(found) => return Ok(found),
        Err(why) => why,
    };
    match why {
        IndexError::Newer { found } => tracing::warn!(
            tier = %name,
            "its copies belong to generation {found}, and the image opened at {}: its newest \
             superblock may be damaged (dlfs verify checks it); the tier begins empty",
            identity.generation
        ),
        IndexError::Version { .. } => tracing::info!(tier = %name, "the tier begins empty: {why}"),
        _ => tracing::debug!(tier = %name, "begins empty: {why}"),
    }
    let index = Index::new(identity.uuid, identity.generation, units);
    io.write_at(0, index.header())?;
    // Before the first copy: without the header, copies would be unknown data that no process may
    // overwrite.
    io.flush()?;
    Ok((index, Vec::new()))
}

/// The free bytes of the file system for the tier at `path`, including the bytes that its file and its files of
/// long samples already occupy, and the size of the file system; `None` if unknown, or for a block device.
fn room_on_disk(path: &Path) -> Option<(u64, u64)> {
    let has_bytes = match std::fs::metadata(path) {
        Ok(found) if found.is_file() => {
            blocks_bytes(&found).saturating_add(own_files::bytes_beside(path))
        }
        Ok(_) => return None,
        Err(_) => 0,
    };
    let stat = rustix::fs::statvfs(path.parent()?).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let free = has_bytes.saturating_add(bytes(stat.f_bavail));
    // Some user-space file systems do not report their size.
    (stat.f_blocks > 0).then(|| (free, bytes(stat.f_blocks)))
}

/// Opens the tier's file exclusively, and extends it to the quota.
fn open_file(path: &Path, quota: u64) -> Result<FileNamespace> {
    let direct = direct_for(path, quota);
    let options =
        FileOptions { create_len: Some(quota), private: true, direct, ..FileOptions::default() };
    FileNamespace::open(path, options)
}

/// Decides whether the tier's I/O bypasses the page cache. A file may be sparse, so the bytes that it uses
/// decide and not its length.
fn direct_for(path: &Path, used_bytes: u64) -> Direct {
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if is_device { Direct::Auto } else { Direct::for_sparse(used_bytes) }
}

/// Extends the file to an address space of `space_pages` behind `data_offset`, if its file system can free single
/// pages and supports files of that length. Returns whether it did; otherwise the address space equals the capacity.
fn grow_sparse(device: &FileNamespace, data_offset: u64, space_pages: u64) -> bool {
    let Some(len) =
        space_pages.checked_mul(PAGE_BYTES).and_then(|len| len.checked_add(data_offset))
    else {
        return false;
    };
    let behind = device.namespace().len_bytes();
    let grown = device.deallocate(behind..behind + PAGE_BYTES).and_then(|()| device.grow(len));
    if let Err(error) = &grown {
        tracing::debug!(error = %error.report(), "the tier's file is not sparse");
    }
    grown.is_ok()
}

/// Timeout of connecting to a remote tier.
const LONGEST_OPENING: Duration = Duration::from_secs(4);
/// Time that a remote tier may be silent before the origin is read instead.
const LONGEST_SILENCE: Duration = Duration::from_secs(2);
