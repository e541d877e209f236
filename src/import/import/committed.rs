//! The committed generation of an image, as the base of the next one.

use std::sync::Arc;

use crate::import::journal::Journal;
use crate::import::media::Media;
use crate::import::scan::Scan;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::directory::commit::{Commit, freed_by_next, reserve_current};
use dlfs_format::format::chunk::ChunkKind;
use dlfs_format::format::error::{at_most, equal};
use dlfs_format::format::snapshot::SnapshotHead;
use dlfs_format::format::superblock_set::{SuperblockSet, select_generation};
use dlfs_format::format::{CellRange, ChunkHead, FormatError, ImageLayout, Space, Superblock};
use dlfs_io::qpair::Device;

/// The committed generation.
#[derive(Debug, Clone)]
pub(super) struct Current {
    /// The directory, names included.
    pub(super) directory: Arc<Directory>,
    /// The superblock of each namespace.
    pub(super) superblocks: Vec<Superblock>,
}

impl From<Commit> for Current {
    fn from(commit: Commit) -> Current {
        let Commit { directory, superblocks, .. } = commit;
        Current { directory: Arc::new(directory), superblocks }
    }
}

impl Current {
    /// Reserves the cells that the next generation must not overwrite. `cells`: the number of cells of each namespace.
    pub(super) fn reserve(&self, space: &mut Space, cells: &[u64]) {
        reserve_current(space, &self.directory, &self.superblocks[0], cells);
    }

    /// The cells that the next generation frees if it keeps the cells `kept`.
    pub(super) fn freed(&self, kept: impl Iterator<Item = CellRange>) -> Vec<CellRange> {
        freed_by_next(&self.directory, &self.superblocks[0], kept)
    }
}

/// Opens the committed generation, names included, to write the next one.
///
/// # Errors
/// Errors of [`select_generation`], of reading, and of a damaged snapshot. `Refused`: the next commit could
/// overwrite a newer generation, and `accept_older` does not allow that.
pub(super) fn open_current(media: &Media, accept_older: bool) -> Result<(Media, Current)> {
    open(media, |_| Ok(accept_older))
}

/// Opens the generation before the one of `journal`; the commit of the latter may have been interrupted.
///
/// # Errors
/// As [`open_current`].
pub(super) fn open_base(media: &Media, journal: &Journal) -> Result<(Media, Current)> {
    open(media, |opened| is_its_own_commit(opened, journal, media))
}

/// Opens the committed generation. Refuses if the next commit could overwrite a newer one, unless `may_lose` returns
/// true.
///
/// # Errors
/// As [`open_current`]; errors of `may_lose`.
pub(super) fn open(
    media: &Media,
    may_lose: impl FnOnce(&SuperblockSet) -> Result<bool>,
) -> Result<(Media, Current)> {
    let opened = committed_superblocks(media)?;
    if !may_lose(&opened)? {
        refuse_lost_generation(&opened, media)?;
    }
    load_current(opened, media)
}

/// Refuses a commit that could overwrite a newer generation.
fn refuse_lost_generation(opened: &SuperblockSet, media: &Media) -> Result<()> {
    let Some(lost) = opened.lost_generation() else { return Ok(()) };
    let copy = opened.bad_copies.iter().find(|copy| copy.may_be_newer);
    let error = copy.expect("`lost_generation` found such a copy").error.clone();
    let text = format!(
        "the newest generation found is {}, and generation {lost}, which may have been committed, \
         would be overwritten: its superblock copy is bad",
        opened.superblock().generation
    );
    let address = media.devices[opened.given[0]].namespace().address;
    Err(Error::new(ErrorKind::Refused, text).target(address).source(error).hint(
        "dlfs rebuild finds the newest generation and repairs the copy; dlfs import --resume \
         continues an import that was interrupted; --accept-older-generation gives up what was \
         lost",
    ))
}

/// Reads the directory of the generation of `opened`, and sorts the namespaces into the image's order.
fn load_current(mut opened: SuperblockSet, media: &Media) -> Result<(Media, Current)> {
    opened.superblock().check_writable()?;
    let media = media.in_order(&opened.given);
    let lengths = |device: &Arc<dyn Device>| {
        let namespace = device.namespace();
        (namespace.len_bytes(), namespace.address)
    };
    opened.check_lengths(media.devices.iter().map(lengths))?;
    let directory = read_directory(&media, opened.superblock())?;
    let address = || media.address(0);
    directory
        .check_opened(&mut opened)
        .map_err(|error| Error::from(error).target(address()).hint(REBUILD))?;
    // For a namespace whose own superblock is missing or names another snapshot, the length is known only now.
    opened.check_lengths(media.devices.iter().map(lengths))?;
    Ok((media, Current { directory: Arc::new(directory), superblocks: opened.superblocks }))
}

/// The cells that the generation after `current` may use; all cells if there is none.
pub(super) fn free_space(media: &Media, layout: &ImageLayout, current: Option<&Current>) -> Space {
    let mut space = Space::new(layout, &media.capacities());
    if let Some(current) = current {
        current.reserve(&mut space, &media.num_cells(layout));
    }
    space
}

/// The superblocks of the committed generation. Warns of bad copies.
///
/// # Errors
/// Errors of [`select_generation`], and of reading.
pub(super) fn committed_superblocks(media: &Media) -> Result<SuperblockSet> {
    let opened = select_now(media)?.map_err(|error| match &media.devices[..] {
        [only] => error.target(only.namespace().address),
        _ => error,
    })?;
    for copy in &opened.bad_copies {
        tracing::warn!("{}", copy.advice(opened.superblock().generation));
    }
    Ok(opened)
}

/// Selects the committed generation by the superblocks as they are now. The inner error: there is none.
pub(super) fn select_now(media: &Media) -> Result<Result<SuperblockSet>> {
    Ok(select_generation(&media.superblocks()?))
}

/// Returns whether the generation that may be lost is the one of `journal`: the commit of that import was interrupted,
/// or the superblock copy was damaged later. Then resuming writes the same bytes again. A delete or purge has no
/// journal, but would have left a generation record with the same generation and another time.
pub(super) fn is_its_own_commit(
    opened: &SuperblockSet,
    journal: &Journal,
    media: &Media,
) -> Result<bool> {
    if opened.lost_generation() != Some(journal.generation) {
        return Ok(false);
    }
    let found = Scan::whole(&media.in_order(&opened.given), &journal.layout)?;
    let is_foreign = |head: &ChunkHead| {
        head.kind == ChunkKind::Record
            && head.id.generation == journal.generation
            && head.time_ns != journal.time_ns
    };
    Ok(!found.heads.iter().any(is_foreign))
}

/// Reads the directory of the generation that `superblock` commits, twice if it is damaged at first.
///
/// # Errors
/// `OutOfMemory`: the snapshot is longer than this machine can address. `Corrupt`: the snapshot is damaged. Errors of
/// reading.
pub(super) fn read_directory(media: &Media, superblock: &Superblock) -> Result<Directory> {
    let location = superblock.snapshot;
    equal("namespaces", superblock.layout.num_namespaces.into(), media.len().into())?;
    let device: &Arc<dyn Device> = &media.devices[usize::from(location.namespace)];
    let address = device.namespace().address;
    let damaged = |error: FormatError| Error::from(error).target(address.clone()).hint(REBUILD);
    let end = location.offset_bytes.saturating_add(location.len_bytes);
    at_most("end of the snapshot", end, device.namespace().len_bytes()).map_err(damaged)?;
    let len = usize::try_from(location.len_bytes).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory, "the directory does not fit into memory")
            .target(address.clone())
            .hint("use a 64-bit machine")
    })?;
    let mut channel = media.channel();
    let mut read = || -> Result<Directory> {
        let bytes = channel.read(location.namespace, location.offset_bytes, len)?;
        SnapshotHead::parse(&bytes)
            .and_then(|head| head.check_committed(superblock))
            .map_err(damaged)?;
        let directory = Directory::from_snapshot(bytes).map_err(damaged)?;
        directory.check_current(superblock).map_err(damaged)?;
        Ok(directory)
    };
    match read() {
        // The transfer may have damaged the data: read it again.
        Err(error) if error.kind() == ErrorKind::Corrupt => read(),
        result => result,
    }
}

/// The hint in errors of a damaged snapshot.
const REBUILD: &str = "dlfs rebuild restores the directory from the chunks";
