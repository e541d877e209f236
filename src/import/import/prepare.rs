//! Inspects the namespaces before anything is written, and decides whether to begin, append, resume, or discard their
//! contents. Also reads and writes the journals of an import.
//!
//! `committed.rs` opens the generation that they hold, `empty.rs` looks for user data, and `discard.rs` erases an
//! image.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::import::committed::{self, Current, is_its_own_commit, open_current, select_now};
use crate::import::discard::{discard_image, give_up_plan};
use crate::import::empty::must_be_empty;
use crate::import::journal::{JOURNAL_OFFSET, Journal};
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::error::{at_most, equal};
use dlfs_format::format::geometry::check_layout;
use dlfs_format::format::{FormatError, ImageLayout, Part, Uuid};

/// The state from which an import starts.
pub(super) struct ImportState {
    /// The namespaces, in the image's order.
    pub(super) media: Media,
    /// The committed generation of the image, if there is one.
    pub(super) current: Option<Current>,
    /// The journal. Together with the source it determines everything that the import writes.
    pub(super) journal: Journal,
    /// Set if some chunks of the import may be on the media already.
    pub(super) resumed: bool,
    /// Set if the whole import is on the media and committed.
    pub(super) done: bool,
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

    /// Gives up what the import replaces: with `Onto::Force` whatever the namespaces hold, with `Onto::Append` the plan
    /// of another append. This comes last before anything is written, so an import that is refused earlier changes
    /// nothing.
    ///
    /// # Errors
    /// As [`discard_image`] and [`give_up_plan`].
    pub(super) fn make_way(&self, options: &ImportOptions) -> Result<()> {
        match (options.onto, self.image()) {
            (Onto::Force, _) => discard_image(&self.media),
            (Onto::Append, Some(image)) => give_up_plan(&self.media, image, options.lease),
            _ => Ok(()),
        }
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

/// Inspects the namespaces, and decides by `options` what to import onto. Writes nothing, except that a resume cancels
/// a planned append ([`give_up_plan`]). [`ImportState::make_way`] is to follow.
///
/// # Errors
/// `Refused`: the target holds data that the options do not allow to overwrite. `NotFound`: there is nothing to append
/// to, or to resume. `BadSource`: the source is not that of the import to resume. Errors of reading, of a damaged
/// image, and of [`give_up_plan`].
pub(super) fn prepare(
    media: Media,
    options: &ImportOptions,
    fingerprint: u64,
) -> Result<ImportState> {
    match options.onto {
        Onto::Resume => return resume(media, options, fingerprint),
        Onto::Empty => must_be_empty(&media, false)?,
        Onto::Force => {}
        Onto::Append => {
            let (media, current) = open_current(&media, options.accept_older_generation)?;
            return new_state(media, Some(current), options, fingerprint);
        }
    }
    new_state(media, None, options, fingerprint)
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
    if let Ok(opened) = select_now(media)? {
        return Ok(media.in_order(&opened.given));
    }
    match read_journals(media) {
        Ok(Some((_, order))) => Ok(media.in_order(&order)),
        _ => Ok(media.clone()),
    }
}

/// The time that the caller asked for, or else the current time, in ns since 1970.
pub(super) fn time_ns(wanted: Option<u64>) -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    wanted.unwrap_or_else(|| u64::try_from(now()).unwrap_or(u64::MAX))
}

/// The state of a new import, into a new image, or onto the `current` generation.
fn new_state(
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

/// The state of an import that continues an interrupted one.
fn resume(media: Media, options: &ImportOptions, fingerprint: u64) -> Result<ImportState> {
    let Some((journal, order)) = read_journals(&media)? else {
        if select_now(&media)?.is_ok() {
            return Err(nothing_to_resume());
        }
        // The import stopped before or during its first write. Starting anew loses nothing.
        must_be_empty(&media, true)?;
        return new_state(media, None, options, fingerprint);
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
    let (media, current) = committed::open(&media, |opened| {
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

/// Returns whether the import of `journal` is committed, or was discarded for a later one.
fn is_history(media: &Media, journal: &Journal) -> Result<bool> {
    Ok(select_now(media)?.is_ok_and(|opened| {
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

/// The name of [`Part::first`] in error messages.
const PART_OF_JOURNAL: &str = "first id of an import's part in its journal";

fn nothing_to_resume() -> Error {
    Error::new(ErrorKind::NotFound, "there is no unfinished import to resume")
}

/// The journal on which all namespaces agree, and the namespaces' order. `None`: there is no import, or it stopped
/// before its journal was on all namespaces and has written nothing else.
///
/// # Errors
/// `InvalidArgument`: the journals are not those of all namespaces of one image. Errors of reading.
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
