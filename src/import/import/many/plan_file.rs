//! The plan of an import in parts: a file or a byte string, of which each part and the commit read only what
//! they need.
//!
//! ```text
//! magic | pieces | head | bytes of the head (u64)
//! ```
//!
//! The head is a block as in `../block.rs`: the properties of the image, its parts, and offset and hash of each
//! piece. Only plans of parts from sources have pieces: see `source_plan.rs`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::import::block::Block;
use crate::import::device::{open_for_import, or_remove};
use crate::import::journal::Journal;
use crate::import::marks::{Mark, MarkState};
use crate::import::media::{Channel, Media};
use crate::import::options::Onto;
use crate::import::prepare::write_journals;
use dlfs_base::buf::zeroed_vec;
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_format::format::error::equal;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;
use dlfs_io::qpair::file::FileCalls;

/// A plan: the data that all parts share, and a description of the parts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Plan<P> {
    /// A random number that identifies the plan.
    pub(super) id: [u8; 16],
    /// The namespaces of the image, in the image's order.
    #[serde(with = "as_text")]
    pub(super) image: Vec<Address>,
    /// The journal of namespace 0, with the number of samples if it is known.
    pub(super) journal: Journal,
    /// The names of the image's fields.
    pub(super) fields: Vec<Vec<u8>>,
    pub(super) field_types: FieldTypes,
    /// The typed columns of the image.
    pub(super) columns: Vec<ColumnSpec>,
    /// The names of the image's classes, by number.
    pub(super) classes: Vec<Vec<u8>>,
    /// The description of the parts.
    pub(super) parts: P,
}

/// A kind of parts: from sources, or from programs.
pub(super) trait Parts: Serialize + DeserializeOwned {
    /// The block of the plan's head.
    const HEAD: Block;
    /// The hint for a user who gives a plan of the other kind.
    const OTHERWISE: &str;
}

impl<P: Parts> Plan<P> {
    /// The bytes after the pieces: the head, and its length.
    pub(super) fn tail(&self) -> Vec<u8> {
        let mut tail = P::HEAD.seal(self, &[]).expect("JSON has all that a plan has");
        let len = tail.len() as u64;
        tail.extend_from_slice(&len.to_le_bytes());
        tail
    }

    /// Reads the plan at `path`. Also returns the file, which holds the plan's pieces.
    ///
    /// # Errors
    /// `Corrupt`: the plan is damaged. `InvalidArgument`: it is not a plan of this kind. Errors of the file
    /// system.
    pub(super) fn read(path: &Path) -> Result<(Plan<P>, File)> {
        let named = |error: std::io::Error| Error::from(error).path(path);
        let file = File::open(path).map_err(named)?;
        let len = file.metadata().map_err(named)?.len();
        let read = |at, bytes: &mut [u8]| file.read_exact_at(bytes, at).map_err(Error::from);
        let plan = Plan::read_from(len, read).map_err(|error| error.path(path))?;
        Ok((plan, file))
    }

    /// Reads a plan of `len` bytes. `read` reads bytes at an offset.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_from(
        len: u64,
        read: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Plan<P>> {
        let mut magic = [0; MAGIC_BYTES];
        let mut tail = [0; 8];
        let Some(end) = len.checked_sub(8).filter(|end| *end >= MAGIC_BYTES as u64) else {
            return Err(Error::new(ErrorKind::InvalidArgument, NO_PLAN));
        };
        read(0, &mut magic)?;
        if magic != P::HEAD.magic {
            let error = Error::new(ErrorKind::InvalidArgument, NO_PLAN);
            let is_other = [FROM_SOURCES.magic, WRITTEN.magic].contains(&magic);
            return Err(if is_other { error.hint(P::OTHERWISE) } else { error });
        }
        read(end, &mut tail)?;
        let start = end.checked_sub(u64::from_le_bytes(tail)).ok_or_else(damaged)?;
        let mut head = zeroed_vec(end - start)?;
        read(start, &mut head)?;
        let found = P::HEAD.open::<Plan<P>>(&head).map_err(|error| {
            let text = "another release of dlfs made this plan";
            Error::invalid(text, "use that release, or plan again").source(error)
        })?;
        let (plan, _) = found.ok_or_else(damaged)?;
        plan.journal.check()?;
        let namespaces = plan.journal.layout.num_namespaces;
        equal("addresses of a plan", namespaces.into(), plan.image.len() as u64)?;
        Ok(plan)
    }

    /// Opens all namespaces of the plan, or a single one.
    ///
    /// # Errors
    /// `NotFound`: a namespace does not exist. `Busy`: another process has opened it. Errors of opening.
    pub(super) fn open(&self, only: Option<u16>, connect: &ConnectOptions) -> Result<Media> {
        let image = match only {
            Some(namespace) => std::slice::from_ref(&self.image[usize::from(namespace)]),
            None => &self.image,
        };
        or_remove(|created| {
            let devices = open_for_import(image, Onto::Resume, connect, FileCalls::Pread, created)?;
            if let Some(missing) = created.first() {
                let text = "the namespace that was planned with is not there";
                return Err(Error::new(ErrorKind::NotFound, text).path(missing));
            }
            Media::new(devices)
        })
    }

    /// The mark of a namespace that is prepared for this plan; `None`: its part of a new image has not begun.
    ///
    /// # Errors
    /// `InvalidArgument`: it is not prepared, or the plan is committed. `Stale`: the image has changed since.
    /// Errors of reading.
    pub(super) fn mark(&self, namespace: u16, channel: &mut Channel) -> Result<Option<Mark>> {
        let address = channel.media.address(namespace);
        let refused = |text: &'static str, hint: &'static str| {
            let error = Error::new(ErrorKind::InvalidArgument, text);
            Err(error.target(address.clone()).hint(hint))
        };
        let mark = Mark::read(channel, namespace)?;
        let newest = channel.superblocks(namespace)?.newest().copied();
        let journal = &self.journal;
        let of_image = newest.filter(|newest| newest.layout.uuid == journal.layout.uuid);
        if let Some(newest) = of_image.filter(|newest| newest.generation >= journal.generation) {
            let is_of_plan =
                newest.generation == journal.generation && newest.time_ns == journal.time_ns;
            match mark {
                _ if !is_of_plan => {
                    let text = "the image has changed since the import was planned";
                    return Err(Error::new(ErrorKind::Stale, text)
                        .target(address)
                        .hint("plan again"));
                }
                None => return refused("the plan is committed already", "read the image"),
                Some(_) => {} // its commit has begun, and may be run again
            }
        }
        let mut planned = Journal { namespace, ..*journal };
        planned.part.count = 0; // journals on media have no count
        let is_planned = Journal::read(channel, namespace)? == Some(planned);
        let is_of_plan = |mark: &Mark| mark.plan == self.id && mark.namespace == namespace;
        // Only a part of a new image may begin without a mark. Lanes have a mark from the beginning.
        let is_marked = mark.as_ref().map_or(journal.generation == Generation(1), is_of_plan);
        if is_planned && is_marked { Ok(mark) } else { Err(not_prepared(address)) }
    }

    /// Writes each namespace's journal, and its mark if `state` is given.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn prepare(&self, media: &Media, state: Option<MarkState>) -> Result<()> {
        media.retry_budget.retry(|| {
            let mut channel = media.channel();
            let layout = &self.journal.layout;
            for namespace in 0..media.len() {
                media.grow(namespace, layout.first_cell() * layout.cell_bytes())?;
                Mark::remove(&mut channel, namespace)?;
            }
            write_journals(media, &self.journal)?;
            let Some(state) = state else { return Ok(()) };
            let mut marks = (0..media.len()).map(|namespace| self.mark_of(namespace, state));
            marks.try_for_each(|mark| mark.write(&mut channel))
        })
    }

    /// A mark of this plan.
    pub(super) fn mark_of(&self, namespace: u16, state: MarkState) -> Mark {
        Mark { plan: self.id, namespace, state }
    }
}

/// The addresses of the namespaces, in the image's order. Paths are made absolute, so that processes in any folder
/// can use them.
///
/// # Errors
/// The current folder is not known.
pub(super) fn addresses(media: &Media) -> Result<Vec<Address>> {
    let address = |text: String| match text.parse::<Address>().map_err(Error::from)? {
        Address::Path(path) => {
            std::path::absolute(path).map(Address::from_path).map_err(Error::from)
        }
        other => Ok(other),
    };
    media.devices.iter().map(|device| address(device.namespace().address)).collect()
}

/// Addresses as users write them.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use dlfs_io::address::Address;

    pub(super) fn serialize<S: Serializer>(image: &[Address], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&Address::list_to_string(image))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<Address>, D::Error> {
        Address::parse_list(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// The error for a namespace without the journal or the mark of a plan.
pub(super) fn not_prepared(address: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "this namespace is not prepared for this plan")
        .target(address)
        .hint("use the plan that was made last for it, or make another that overwrites it")
}

/// The error for bytes that do not match their hash.
pub(super) fn damaged() -> Error {
    let text = "the plan is damaged: its bytes do not have the hash that it says";
    Error::new(ErrorKind::Corrupt, text)
        .hint("copy it again from where it was made, or make another")
}

/// The block of the head of a plan whose parts come from sources.
pub(super) const FROM_SOURCES: Block =
    Block { what: "plan of parts", magic: *b"DLFSPLAN", at: 0, len: 0 };
/// The block of the head of a plan whose parts are written by programs.
pub(super) const WRITTEN: Block =
    Block { what: "plan of written parts", magic: *b"DLFSWPLN", at: 0, len: 0 };
/// Length of the magic at the beginning of a plan, which is that of the head's block.
pub(super) const MAGIC_BYTES: usize = 8;
/// The error for a file or bytes of another kind.
const NO_PLAN: &str = "this is not the plan of an import in parts, or one of other parts";
