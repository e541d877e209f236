//! Inspects the namespaces before anything is written, and decides whether to append, resume, or discard their
//! contents.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::import::journal::{JOURNAL_BYTES, JOURNAL_OFFSET, Journal};
use crate::import::lease::{LEASE_OFFSET, Lease};
use crate::import::marks::Mark;
use crate::import::media::{Media, pieces};
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::scan::Scan;
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::directory::commit::{Commit, freed_by_next, reserve_current};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::chunk::ChunkKind;
use dlfs_format::format::error::{at_most, equal};
use dlfs_format::format::geometry::check_layout;
use dlfs_format::format::snapshot::SnapshotHead;
use dlfs_format::format::superblock::{
    COPY_OFFSETS, OTHER_COPY_VOID, SUPERBLOCK_BYTES, copy_index,
};
use dlfs_format::format::superblock_set::{SuperblockSet, select_generation};
use dlfs_format::format::{
    CellRange, ChunkHead, FormatError, ImageLayout, Part, Space, Superblock, Uuid,
};
use dlfs_io::qpair::Device;

/// The committed generation.
#[derive(Debug, Clone)]
pub(super) struct Current {
    /// Its directory, names included.
    pub(super) directory: Arc<Directory>,
    /// The superblock of each namespace.
    pub(super) superblocks: Vec<Superblock>,
}

/// The state from which an import starts.
pub(super) struct ImportState {
    /// The namespaces, in the image's order.
    pub(super) media: Media,
    /// The committed generation of the image, if there is one.
    pub(super) current: Option<Current>,
    /// The journal. Together with the source it determines everything that the import writes.
    pub(super) journal: Journal,
    /// Set if a part of the import may be on the media already.
    pub(super) resumed: bool,
    /// Set if the whole import is on the media and committed.
    pub(super) done: bool,
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

impl ImportState {
    /// The directory of the image, if there is one.
    pub(super) fn image(&self) -> Option<&Directory> {
        self.current.as_ref().map(|current| &*current.directory)
    }

    /// The directory that the import continues.
    ///
    /// # Errors
    /// The names of the current generation are not loaded.
    pub(super) fn builder(&self) -> Result<DirectoryBuilder, FormatError> {
        let new = || Ok(DirectoryBuilder::new(self.journal.layout));
        self.image().map_or_else(new, DirectoryBuilder::after)
    }

    /// Grows the namespaces to hold journals, and writes the journals. From here on other processes see that an
    /// import has begun.
    pub(super) fn begin(&self) -> Result<()> {
        let layout = &self.journal.layout;
        for namespace in 0..self.media.len() {
            self.media.grow(namespace, layout.first_cell() * layout.cell_bytes())?;
        }
        self.media.retry_budget.retry(|| write_journals(&self.media, &self.journal))
    }
}

/// Inspects the namespaces, and decides by `options` what to import onto. Writes nothing, except that
/// `Onto::Force` erases superblocks and journals, and that an append or a resume cancels a planned append
/// ([`give_up_plan`]).
///
/// # Errors
/// `Refused`: the target holds data that the options do not allow to overwrite. `NotFound`: there is nothing to
/// append to, or to resume. Errors of reading, and of a damaged image.
pub(super) fn prepare(
    media: Media,
    options: &ImportOptions,
    fingerprint: u64,
) -> Result<ImportState> {
    match options.onto {
        Onto::Resume => return resume(media, options, fingerprint),
        Onto::Empty => must_be_empty(&media, false)?,
        Onto::Force => give_up(&media)?,
        Onto::Append => {
            let (media, current) = open_current(&media, options.accept_older_generation)?;
            give_up_plan(&media, &current.directory, options.lease)?;
            return begun(media, Some(current), options, fingerprint);
        }
    }
    begun(media, None, options, fingerprint)
}

/// Writes the journal to all namespaces. From here on the import can be resumed.
pub(super) fn write_journals(media: &Media, journal: &Journal) -> Result<()> {
    let mut channel = media.channel();
    for namespace in (0..media.len()).rev() {
        let journal = Journal { namespace, ..*journal };
        channel.write_bytes(namespace, JOURNAL_OFFSET, &journal.encode())?;
        channel.flush(namespace)?;
    }
    Ok(())
}

/// Sorts the namespaces into the order of the image that they hold, or whose import was interrupted. Without
/// such an image, their order stays.
///
/// # Errors
/// The namespaces cannot be read.
pub(super) fn in_image_order(media: &Media) -> Result<Media> {
    if let Ok(opened) = judge_now(media)? {
        return Ok(media.in_order(&opened.given));
    }
    match read_journals(media) {
        Ok(Some((_, order))) => Ok(media.in_order(&order)),
        _ => Ok(media.clone()),
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

/// Opens the committed generation. Refuses if the next commit could overwrite a newer one, unless `may_lose` that.
fn open(
    media: &Media,
    may_lose: impl FnOnce(&SuperblockSet) -> Result<bool>,
) -> Result<(Media, Current)> {
    let opened = opened(media)?;
    if !may_lose(&opened)? {
        refuse_lost_generation(&opened, media)?;
    }
    load_current(opened, media)
}

/// Refuses a commit that could overwrite a newer generation.
fn refuse_lost_generation(opened: &SuperblockSet, media: &Media) -> Result<()> {
    let Some(lost) = opened.lost_generation() else { return Ok(()) };
    let copy = opened.bad_copies.iter().find(|copy| copy.may_be_newer);
    let error = copy.expect("a generation is lost with a copy").error.clone();
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
    // If namespace 0's superblock replaced another one, that one's length is known only now.
    opened.check_lengths(media.devices.iter().map(lengths))?;
    Ok((media, Current { directory: Arc::new(directory), superblocks: opened.superblocks }))
}

/// The cells that the generation after `current` may use.
pub(super) fn free_space(media: &Media, layout: &ImageLayout, current: Option<&Current>) -> Space {
    let mut space = Space::new(layout, &media.capacities());
    if let Some(current) = current {
        current.reserve(&mut space, &media.num_cells(layout));
    }
    space
}

/// The time that the caller asked for, or else the current time, in ns since 1970.
pub(super) fn time_ns(wanted: Option<u64>) -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    wanted.unwrap_or_else(|| u64::try_from(now()).unwrap_or(u64::MAX))
}

/// The committed superblocks of `media`.
pub(super) fn opened(media: &Media) -> Result<SuperblockSet> {
    let opened = judge_now(media)?.map_err(|error| match &media.devices[..] {
        [only] => error.target(only.namespace().address),
        _ => error,
    })?;
    for copy in &opened.bad_copies {
        tracing::warn!("{}", copy.advice(opened.superblock().generation));
    }
    Ok(opened)
}

fn judge_now(media: &Media) -> Result<Result<SuperblockSet>> {
    Ok(select_generation(&media.superblocks()?))
}

/// A new import, into a new image, or onto the `current` generation.
fn begun(
    media: Media,
    current: Option<Current>,
    options: &ImportOptions,
    fingerprint: u64,
) -> Result<ImportState> {
    let old = current.as_ref().map(|current| &current.directory);
    let first = old.map_or(0, |old| old.num_samples());
    let layout = match old {
        Some(old) => *old.layout(),
        None => {
            let drawn = || random::bytes().map(Uuid::from_random_bytes);
            let uuid = options.uuid.map_or_else(drawn, Ok)?;
            ImageLayout::new(uuid, options.chunk_size_bytes, options.pack, media.len())?
        }
    };
    let journal = Journal {
        layout,
        namespace: 0,
        generation: Generation(old.map_or(0, |old| old.generation().0) + 1),
        // Times in an image never decrease, even if the clock does.
        time_ns: time_ns(options.time_ns).max(old.map_or(0, |old| old.time_ns())),
        part: match options.placement {
            PlacementOrder::Shuffled => Part { first, count: 0, seed: options.seed, window: 1 },
            PlacementOrder::Source => Part { first, ..Part::default() },
        },
        fingerprint,
    };
    Ok(ImportState { media, current, journal, resumed: false, done: false })
}

fn resume(media: Media, options: &ImportOptions, fingerprint: u64) -> Result<ImportState> {
    let Some((journal, order)) = read_journals(&media)? else {
        if judge_now(&media)?.is_ok() {
            return Err(nothing_to_resume());
        }
        // The import stopped before or during its first write. Starting anew loses nothing.
        must_be_empty(&media, true)?;
        return begun(media, None, options, fingerprint);
    };
    if journal.fingerprint != fingerprint {
        // The journal may belong to an earlier, completed import, if the interrupted import stopped before it
        // wrote its own.
        if is_history(&media, &journal)? {
            return Err(nothing_to_resume().hint("begin it again with the options that it had"));
        }
        let text = "the source has changed since the import began";
        return Err(Error::new(ErrorKind::BadSource, text).hint(
            "begin again with --force, or with --append if the image had a generation before",
        ));
    }
    let media = media.in_order(&order);
    // The superblock of namespace 0 is written last. Without it, the first generation is not committed.
    let first = journal.generation == Generation(1);
    if first && media.channel().superblocks(0)?.newest().is_none() {
        equal(PART_OF_JOURNAL, 0, journal.part.first)?;
        return Ok(ImportState { media, current: None, journal, resumed: true, done: false });
    }
    let (media, current) = open(&media, |opened| {
        Ok(options.accept_older_generation || is_its_own_commit(opened, &journal, &media)?)
    })?;
    if current.directory.uuid() != journal.layout.uuid {
        return Err(nothing_to_resume());
    }
    check_layout("journal of an import", current.directory.layout(), &journal.layout)?;
    give_up_plan(&media, &current.directory, options.lease)?;
    let found = current.directory.generation();
    // A delete or purge may have used the generation's number meanwhile.
    let done = found == journal.generation && current.directory.time_ns() == journal.time_ns;
    if !done && found.0 + 1 != journal.generation.0 {
        return Err(nothing_to_resume());
    }
    let ids = current.directory.num_samples();
    if done {
        at_most(PART_OF_JOURNAL, journal.part.first, ids).map(drop)?
    } else {
        equal(PART_OF_JOURNAL, ids, journal.part.first)?
    }
    Ok(ImportState { media, current: Some(current), journal, resumed: true, done })
}

/// Returns whether the generation that may be lost is the import's own: its commit was interrupted, or its
/// superblock copy was damaged later. Then resuming writes the same bytes again. A delete or purge has no
/// journal, but would have left a record of that generation.
fn is_its_own_commit(opened: &SuperblockSet, journal: &Journal, media: &Media) -> Result<bool> {
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

/// Returns whether the import of `journal` is committed, or was discarded for a later one.
fn is_history(media: &Media, journal: &Journal) -> Result<bool> {
    Ok(judge_now(media)?.is_ok_and(|opened| {
        let superblock = opened.superblock();
        superblock.layout.uuid != journal.layout.uuid || superblock.generation >= journal.generation
    }))
}

/// Returns whether a namespace has the journal of an uncommitted import, which may be resumed.
///
/// # Errors
/// The namespaces cannot be read.
pub(super) fn has_unfinished_import(media: &Media, current: &Current) -> Result<bool> {
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        match Journal::read(&mut channel, namespace) {
            Ok(Some(journal)) if journal.is_next(&current.directory) => return Ok(true),
            Ok(_) => {}
            // Another release may be able to resume the import.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

const PART_OF_JOURNAL: &str = "first id of an import's part in its journal";

fn nothing_to_resume() -> Error {
    Error::new(ErrorKind::NotFound, "there is no unfinished import to resume")
}

/// The journal on which all namespaces agree, and the namespaces' order. `None`: the import stopped before its
/// journal was on all namespaces, so it has written nothing else.
fn read_journals(media: &Media) -> Result<Option<(Journal, Vec<usize>)>> {
    let mut channel = media.channel();
    let mut journals = Vec::new();
    for namespace in 0..media.len() {
        let Some(journal) = Journal::read(&mut channel, namespace)? else { return Ok(None) };
        journals.push(journal);
    }
    let first = journals[0];
    let places = journals.iter().map(|journal: &Journal| (journal.layout, journal.namespace));
    let order = order_of(&places.collect::<Vec<_>>()).ok_or_else(|| {
        let message = "the namespaces are not those of one unfinished import";
        Error::new(ErrorKind::InvalidArgument, message)
    })?;
    if !journals.iter().all(|journal| first.is_of_the_same_import(journal)) {
        return Ok(None);
    }
    Ok(Some((Journal { namespace: 0, ..first }, order)))
}

/// For each namespace of an image, the index in `places` of its layout and number. `None`: `places` are not
/// those of one complete image.
pub(super) fn order_of(places: &[(ImageLayout, u16)]) -> Option<Vec<usize>> {
    let layout = places.first()?.0;
    let mut order = vec![usize::MAX; places.len()];
    for (given, (found, number)) in places.iter().enumerate() {
        let place = order.get_mut(usize::from(*number)).filter(|place| **place == usize::MAX)?;
        (*found == layout).then_some(())?;
        *place = given;
    }
    (usize::from(layout.num_namespaces) == places.len()).then_some(order)
}

/// Refuses to overwrite possible user data. Large namespaces are only sampled, in many places; both ends are
/// read completely, since other formats have their signatures there.
fn must_be_empty(media: &Media, ignore_journal: bool) -> Result<()> {
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        let refused = |what: &str, hint: &'static str| {
            let message = format!("there is {what} here already");
            Err(Error::new(ErrorKind::Refused, message).target(media.address(namespace)).hint(hint))
        };
        if !channel.superblocks(namespace)?.is_blank() {
            return refused("an image", "add to it with --append, or overwrite it with --force");
        }
        let len = media.len_bytes(namespace);
        for (at, piece) in probes(len) {
            let mut bytes = channel.read(namespace, at, piece)?;
            if at == 0 {
                blank(&mut bytes, LEASE_OFFSET); // the lease is ours
                if !ignore_journal && has_journal(&bytes) {
                    let hint = "continue it with --resume, or overwrite it with --force";
                    return refused("an unfinished import", hint);
                }
                if ignore_journal {
                    blank(&mut bytes, JOURNAL_OFFSET);
                }
            }
            if bytes.iter().any(|&byte| byte != 0) {
                return refused("other data", "overwrite it with --force");
            }
        }
    }
    Ok(())
}

fn blank(bytes: &mut [u8], at: u64) {
    if let Some(mark) = bytes.get_mut(at as usize..at as usize + JOURNAL_BYTES) {
        mark.fill(0);
    }
}

fn has_journal(bytes: &[u8]) -> bool {
    let found = bytes.get(JOURNAL_OFFSET as usize..).map(Journal::parse);
    found.is_some_and(|found| found != Ok(None)) // a journal of another release counts, too
}

/// Offsets and lengths to read: both ends completely, and single blocks between them.
fn probes(len: u64) -> Vec<(u64, usize)> {
    if len <= 2 * END_BYTES {
        return pieces(len, END_BYTES).collect();
    }
    let ends = [0, len - END_BYTES].map(|at| (at, END_BYTES as usize));
    let step = ((len - 2 * END_BYTES) / PROBES).max(PROBE_BYTES).next_multiple_of(PROBE_BYTES);
    let between = (END_BYTES..=len - END_BYTES - PROBE_BYTES).step_by(step as usize);
    ends.into_iter().chain(between.map(|at| (at, PROBE_BYTES as usize))).collect()
}

/// Erases superblocks and journals, so that the namespaces hold no image. The copies of the committed generation
/// are erased last, so the image stays usable until then. If they were erased first, a power loss could make
/// the previous generation current.
fn give_up(media: &Media) -> Result<()> {
    if let Ok(opened) = judge_now(media)? {
        void_other_copy(&media.in_order(&opened.given), &opened.superblocks)?;
    }
    let mut channel = media.channel();
    for marks in [&[JOURNAL_OFFSET][..], &COPY_OFFSETS] {
        for namespace in 0..media.len() {
            let len = media.len_bytes(namespace);
            for &at in marks.iter().filter(|at| **at + SUPERBLOCK_BYTES as u64 <= len) {
                channel.zero(namespace, at, SUPERBLOCK_BYTES as u64)?;
            }
            channel.flush(namespace)?;
        }
    }
    Ok(())
}

/// Declares the other copies of the committed `superblocks` void, then erases them: they count as erased, not as a lost
/// newer generation. Steps that a killed process completed are not written again, but flushed: it may have been killed
/// before its flush.
pub(super) fn void_other_copy(media: &Media, superblocks: &[Superblock]) -> Result<()> {
    let mut channel = media.channel();
    let generation = superblocks[0].generation;
    let own = copy_index(generation);
    let other = 1 - own;
    let found = media.superblocks()?;
    let is_erased = |at: usize| matches!(found[at].copies[other], Err(FormatError::Blank { .. }));
    // If no other copy exists, there is nothing to declare: the first generation never had one.
    let none_is_there = (0..found.len()).all(is_erased);
    for (superblock, found) in superblocks.iter().zip(&found).rev() {
        let mut superblock = *superblock;
        superblock.optional_features |= OTHER_COPY_VOID;
        // A bad copy is written too: it will be the only copy of its namespace.
        if !none_is_there && found.copies[own] != Ok(superblock) {
            let block = superblock.encode();
            channel.write_bytes(superblock.namespace, COPY_OFFSETS[own], &block)?;
        }
        channel.flush(superblock.namespace)?;
    }
    for namespace in 0..media.len() {
        if !is_erased(usize::from(namespace)) {
            channel.zero(namespace, COPY_OFFSETS[other], SUPERBLOCK_BYTES as u64)?;
        }
        channel.flush(namespace)?;
    }
    Ok(())
}

/// Reads the directory of the generation that `superblock` commits.
pub(super) fn read_directory(media: &Media, superblock: &Superblock) -> Result<Directory> {
    let location = superblock.snapshot;
    let len = usize::try_from(location.len_bytes).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory, "the directory does not fit into memory")
    })?;
    equal("namespaces", superblock.layout.num_namespaces.into(), media.len().into())?;
    let device: &Arc<dyn Device> = &media.devices[usize::from(location.namespace)];
    let address = device.namespace().address;
    let damaged = |error: FormatError| Error::from(error).target(address.clone()).hint(REBUILD);
    let end = location.offset_bytes.saturating_add(location.len_bytes);
    at_most("end of the snapshot", end, device.namespace().len_bytes()).map_err(damaged)?;
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

const REBUILD: &str = "dlfs rebuild restores the directory from the chunks";

const END_BYTES: u64 = 4 << 20;
const PROBE_BYTES: u64 = 4096;
const PROBES: u64 = 1024;

/// Removes the marks of a plan that appends to the generation `current`, so that no part of the plan writes any
/// more. The caller holds the lease of the image.
///
/// # Errors
/// `Busy`: a part is being imported, on a namespace without an exclusive lock. Errors of reading and writing.
pub(super) fn give_up_plan(media: &Media, current: &Directory, limit: Duration) -> Result<()> {
    let mut channel = media.channel();
    let mut marked = Vec::new();
    for (namespace, device) in (0..).zip(media.devices.iter()) {
        if Mark::read(&mut channel, namespace)?.is_none() {
            continue;
        }
        let journal = Journal::read(&mut channel, namespace)?;
        // Otherwise the plan is committed, and its commit was killed before it removed the mark.
        if journal.is_some_and(|journal| journal.is_next(current)) {
            // The caller holds the lease of namespace 0.
            let alone = Media::new(vec![device.clone()])?;
            let lease = (namespace > 0).then(|| Lease::take(&alone, limit)).transpose()?;
            marked.push((namespace, lease));
        }
    }
    if !marked.is_empty() {
        tracing::warn!("an append that was planned for several processes is given up");
    }
    // A part that begins later finds no mark, and is refused.
    marked.iter().try_for_each(|(namespace, _)| Mark::remove(&mut channel, *namespace))
}
