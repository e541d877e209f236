//! The state of an image that is filled, and its preparation.

use std::fs::OpenOptions;

use crate::import::device::{Meaning, open_for_import, open_image, or_remove};
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::mark::{Lane, Mark, State};
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::prepare::{self, ImportState};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::Pack;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;
use dlfs_io::qpair::file::FileCalls;

/// The state of an image.
pub(super) enum Look {
    /// Nothing is prepared, or not all of it.
    Nothing,
    /// It is prepared: the journal of namespace 0, and the lane of each namespace.
    Begun(Journal, Vec<Lane>),
    /// It is committed.
    Complete,
}

/// Looks at an image that is to hold the shards of identity `source`.
///
/// # Errors
/// `Refused`: it holds other data, or these are not all of its namespaces, in their order. Errors of reading.
pub(super) fn look(media: &Media, source: u64) -> Result<Look> {
    let mut channel = media.channel();
    let address = media.namespace(0).address;
    let refused = |text: &'static str| {
        let error = Error::new(ErrorKind::Refused, text).target(address.clone());
        Err(error.hint("name another image, or remove this one: its samples are not read again"))
    };
    let journal = Journal::read(&mut channel, 0)?;
    let ours = journal.filter(|journal| journal.fingerprint == source);
    if let Some(newest) = channel.superblocks(0)?.newest() {
        return match ours {
            Some(journal) if journal.layout.uuid == newest.layout.uuid => Ok(Look::Complete),
            _ => refused("the image belongs to other shards, or has changed since it was filled"),
        };
    }
    let Some(journal) = ours else {
        return match journal {
            None => Ok(Look::Nothing),
            Some(_) => refused("an import of other shards or other data has begun in this image"),
        };
    };
    if (journal.layout.num_namespaces, journal.namespace) != (media.len(), 0) {
        return refused("the image was begun with other namespaces, or in another order");
    }
    let mut lanes = Vec::new();
    for namespace in 0..media.len() {
        let own = Journal::read(&mut channel, namespace)?;
        match Mark::read(&mut channel, namespace)? {
            Some(Mark { plan, namespace: marked, state: State::Written(lane) })
                if own == Some(Journal { namespace, ..journal })
                    && (plan, marked) == (journal.layout.uuid.0, namespace) =>
            {
                lanes.push(lane);
            }
            _ => return Ok(Look::Nothing),
        }
    }
    Ok(Look::Begun(journal, lanes))
}

/// Prepares the namespaces of a new image, unless another process has done so.
///
/// # Errors
/// As [`look`]; `Refused`: there is other data. `Busy`: another process has a namespace.
pub(super) fn prepare(image: &[Address], source: u64, connect: &ConnectOptions) -> Result<()> {
    for address in image {
        // Not left to opening, which removes what it has created when it fails: another rank may have it by then.
        if let Address::Path(path) = address
            && !path.exists()
        {
            let new = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            new.map_err(|error| Error::from(error).path(path))?;
        }
    }
    let media = open(image, connect)?;
    let options = ImportOptions {
        onto: Onto::Resume,
        placement: PlacementOrder::Source,
        pack: Pack::Tight,
        ..ImportOptions::default()
    };
    let lease = Lease::take(&media, options.lease)?;
    if !matches!(look(&media, source)?, Look::Nothing) {
        return Ok(());
    }
    // No process writes chunks before all marks are there.
    let state = prepare::prepare(media, &options, source, 0)?;
    state.begin()?;
    let ImportState { media, journal, .. } = state;
    let lane = Lane { last_record: 0, end_cell: journal.layout.first_cell() };
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        lease.check()?;
        mark_of(&Journal { namespace, ..journal }, lane).write(&mut channel)?;
    }
    Ok(())
}

/// The mark of the journal's namespace, whose last record `lane` names.
pub(super) fn mark_of(journal: &Journal, lane: Lane) -> Mark {
    let Journal { layout, namespace, .. } = *journal;
    Mark { plan: layout.uuid.0, namespace, state: State::Written(lane) }
}

/// Opens the namespaces for reading, and looks at them; `None`: one of them is no file yet, or an empty one.
///
/// # Errors
/// As [`look`]; errors of opening.
pub(super) fn look_at(
    image: &[Address],
    source: u64,
    connect: &ConnectOptions,
) -> Result<Option<(Media, Look)>> {
    let is_there = |address: &Address| match address {
        Address::Path(path) => {
            std::fs::metadata(path).is_ok_and(|it| !it.is_file() || it.len() > 0)
        }
        _ => true,
    };
    if !image.iter().all(is_there) {
        return Ok(None);
    }
    let connect = ConnectOptions { writable: false, ..connect.clone() };
    let media = Media::for_reading(open_image(image, &connect, Meaning::Nothing)?)?;
    let found = look(&media, source)?;
    Ok(Some((media, found)))
}

/// Opens the namespaces for writing.
///
/// # Errors
/// `Busy`: another process writes one of them. Errors of opening.
pub(super) fn open(image: &[Address], connect: &ConnectOptions) -> Result<Media> {
    or_remove(|created| {
        Media::new(open_for_import(image, Onto::Resume, connect, FileCalls::Pread, created)?)
    })
}
