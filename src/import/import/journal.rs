//! The journal: the data that an import needs to resume after a kill, a power loss or a full disk.
//!
//! It is stored at the start of each namespace, between the superblock copies. It is written and flushed before
//! any chunk. From then on the import is a function of journal, source and options: the same inputs give the
//! same bytes, however often the import is interrupted. The journal stays after the import, but is obsolete
//! once its generation is committed.
//!
//! Here is also the block format of this state and of the others that an unfinished import keeps on the media:
//! checkpoint, lease, mark of a plan, and records of chunks; heads of plans have it, too.
//!
//! A state is a JSON value in a block. The block's magic names the kind of state. A torn block has a wrong
//! checksum, and counts as absent. `Block::read`, which reads journals and marks, refuses a state of another
//! release, since this release cannot continue that import. The owners of the other states call `Block::open`:
//! another release's checkpoint counts as absent, its record as damaged, and its lease as one that may have a
//! holder.
//!
//! A state of a few numbers fits into the first 512 bytes, which a device writes atomically: overwriting it
//! leaves either the old state or the new one.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::import::media::Channel;
use dlfs_base::buf::IoBuf;
use dlfs_base::error::invalid;
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_format::format::error::at_most;
use dlfs_format::format::geometry::{CELL_BYTES, check_generation};
use dlfs_format::format::names::{crc32c, crc32c_append};
use dlfs_format::format::{ChunkHead, ChunkSpec, FieldTypes, FormatError, ImageLayout, Part};

/// A journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// The layout of the whole image.
    pub layout: ImageLayout,
    /// Index of the namespace that holds this journal.
    pub namespace: u16,
    /// The generation that the import makes.
    pub generation: Generation,
    /// The time stamp of everything that the import writes, in ns since 1970.
    pub time_ns: u64,
    /// First id, seed and window of the new part. Its count, which is not stored, is the number of samples of
    /// an indexed source.
    pub part: Part,
    /// Hash of the indexed source, of the file of column values, and of the given types; 0 for a stream. For a
    /// writer, a number that stands for no source.
    pub fingerprint: u64,
}

impl Journal {
    /// The block to write at [`JOURNAL_OFFSET`].
    pub fn encode(&self) -> Vec<u8> {
        let part = Part { count: 0, ..self.part };
        JOURNAL.seal(&Journal { part, ..*self }, &[]).expect("a few numbers fit into a block")
    }

    /// Reads a journal from the first 4,096 of `bytes`. `None`: there is none, or its write was torn.
    ///
    /// # Errors
    /// A number is not valid in a journal, or another release wrote the journal.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Option<Journal>, FormatError> {
        let Some((journal, _)) = JOURNAL.open::<Journal>(bytes)? else { return Ok(None) };
        journal.check().map(|()| Some(journal))
    }

    /// Reads the journal of a namespace. `None`: there is none, or its write was torn.
    ///
    /// # Errors
    /// As [`parse`](Journal::parse). `Unsupported`: another release wrote it. Errors of reading.
    pub(super) fn read(channel: &mut Channel, namespace: u16) -> Result<Option<Journal>> {
        let Some(journal) = JOURNAL.read::<Journal>(channel, namespace)? else { return Ok(None) };
        journal.check()?;
        Ok(Some(journal))
    }

    /// Checks that the numbers are valid for an image.
    pub(crate) fn check(&self) -> std::result::Result<(), FormatError> {
        let ImageLayout { uuid, chunk_size_bytes, pack, num_namespaces } = self.layout;
        ImageLayout::new(uuid, chunk_size_bytes, pack, num_namespaces)?;
        at_most("number of a namespace", self.namespace.into(), u64::from(num_namespaces) - 1)?;
        check_generation(self.generation.0)?;
        self.part.check()
    }

    /// The properties of the chunks of this import.
    pub(super) fn spec(
        &self,
        fields: Vec<Vec<u8>>,
        field_types: FieldTypes,
        columns: Vec<ColumnSpec>,
    ) -> ChunkSpec {
        let Journal { layout, generation, part, .. } = *self;
        ChunkSpec { layout, generation, part, fields, field_types, columns }
    }

    /// Returns whether it is of a change of this image that is not committed.
    pub(super) fn is_next(&self, current: &Directory) -> bool {
        self.layout.uuid == current.uuid() && self.generation > current.generation()
    }

    /// Returns whether the same import wrote `other` on another namespace.
    pub(crate) fn is_of_the_same_import(&self, other: &Journal) -> bool {
        Journal { namespace: other.namespace, ..*self } == *other
    }
}

/// Offset of the journal on every namespace, between the superblock copies.
pub const JOURNAL_OFFSET: u64 = 16 << 10;

/// Length of a journal in bytes.
pub const JOURNAL_BYTES: usize = BLOCK_BYTES;

const JOURNAL: Block = Block {
    what: "journal of an import",
    magic: *b"DLFSJRNL",
    at: JOURNAL_OFFSET,
    len: JOURNAL_BYTES,
};

/// The state of a namespace while its plan is not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The plan's id.
    pub(super) plan: [u8; 16],
    /// The index of the namespace.
    pub(super) namespace: u16,
    pub(super) state: State,
}

/// Progress of the parts on a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// No chunk of the part is written. Only parts of an append have this mark.
    Planned,
    /// Some chunks may be written.
    Begun,
    /// All chunks are durable.
    Complete,
    /// Programs write parts here, one after another.
    Written(Lane),
}

/// The chunks that programs wrote onto a namespace, each run of them with a record behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lane {
    /// Cell of the last record; 0: there is none.
    pub(super) last_record: u64,
    /// The cell after that record, where the next chunks begin.
    pub(super) end_cell: u64,
}

/// A record of chunks.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    plan: [u8; 16],
    namespace: u16,
    /// The lane without this record.
    previous: Lane,
    content: T,
}

impl Lane {
    /// Writes a record into the free cells from `cell` on, behind the chunks that it describes. It counts once the
    /// mark of the namespace names it. Returns the lane that ends with it.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn append(
        self,
        channel: &mut Channel,
        (plan, namespace): ([u8; 16], u16),
        cell: u64,
        content: &impl Serialize,
    ) -> Result<Lane> {
        let record = Record { plan, namespace, previous: self, content };
        let block = RECORD.seal(&record, &[]).expect("numbers are JSON");
        let end_cell = cell + block.len() as u64 / CELL_BYTES;
        channel.media.grow(namespace, end_cell * CELL_BYTES)?;
        channel.write_bytes(namespace, cell * CELL_BYTES, &block)?;
        let lane = Lane { last_record: cell, end_cell };
        Mark { plan, namespace, state: State::Written(lane) }.write(channel)?;
        Ok(lane)
    }

    /// Reads all records, the last one first. Returns the content of each, the lane that ends with it, and the lane
    /// without it.
    ///
    /// # Errors
    /// The error of `damaged`, for its cell: a record is damaged. Errors of reading.
    pub(super) fn records<T: DeserializeOwned>(
        mut self,
        channel: &mut Channel,
        (plan, namespace): ([u8; 16], u16),
        damaged: &dyn Fn(u64) -> Error,
    ) -> Result<Vec<(T, Lane, Lane)>> {
        let mut records = Vec::new();
        while self.last_record > 0 {
            let Lane { last_record, end_cell } = self;
            let damaged = || damaged(last_record);
            let cells = end_cell.saturating_sub(last_record);
            if cells == 0 || end_cell > channel.media.len_bytes(namespace) / CELL_BYTES {
                return Err(damaged());
            }
            let len = (cells * CELL_BYTES) as usize;
            let bytes = channel.read(namespace, last_record * CELL_BYTES, len)?;
            let found =
                RECORD.open::<Record<T>>(&bytes).map_err(|error| damaged().source(error))?;
            let (record, _) = found.ok_or_else(damaged)?;
            let previous = record.previous;
            if (record.plan, record.namespace) != (plan, namespace)
                || previous.last_record >= previous.end_cell
                || previous.end_cell > last_record
            {
                return Err(damaged());
            }
            records.push((record.content, self, previous));
            self = previous;
        }
        Ok(records)
    }
}

const RECORD: Block = Block { what: "record of chunks", magic: *b"DLFSRECD", at: 0, len: 0 };

impl Mark {
    /// Reads the mark of a namespace. `None`: there is none, or its write was torn.
    ///
    /// # Errors
    /// `Unsupported`: another release wrote it. Errors of reading.
    pub(super) fn read(channel: &mut Channel, namespace: u16) -> Result<Option<Mark>> {
        MARK.read(channel, namespace)
    }

    /// Writes the mark durably, after making all earlier writes to the namespace durable.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn write(&self, channel: &mut Channel) -> Result<()> {
        channel.flush(self.namespace)?;
        let block = MARK.seal(self, &[]).expect("a few numbers fit into a block");
        channel.write_bytes(self.namespace, MARK.at, &block)?;
        channel.flush(self.namespace)
    }

    /// Removes the mark of a namespace.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn remove(channel: &mut Channel, namespace: u16) -> Result<()> {
        channel.zero(namespace, MARK.at, BLOCK_BYTES as u64)?;
        channel.flush(namespace)
    }
}

/// Between the lease and superblock copy B.
const MARK: Block =
    Block { what: "mark of a plan", magic: *b"DLFSPART", at: 28 << 10, len: BLOCK_BYTES };

/// A complete part. A worker returns it to the process that commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPart {
    /// The plan's id.
    pub(super) plan: [u8; 16],
    /// The number of the part.
    pub key: u64,
    /// The index of its namespace.
    pub namespace: u16,
    /// The time of completion, in ns since 1970.
    pub(super) time_ns: u64,
    /// The first cell of its chunks, which are contiguous.
    pub(super) first_cell: u64,
    /// The cell of this record.
    pub(super) record_cell: u64,
    /// Its number of chunks.
    pub chunks: u64,
    /// Its number of samples.
    pub samples: u64,
    /// Bytes of its samples.
    pub sample_bytes: u64,
    /// A hash of all chunks: see [`PartSum`].
    pub(super) digest: u64,
}

impl WrittenPart {
    /// Encodes the record, to be sent to the process that commits.
    pub fn to_bytes(&self) -> Vec<u8> {
        PART.seal(self, &[]).expect("a few numbers fit into a block")
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// `InvalidArgument`: `bytes` are not such a record.
    pub fn from_bytes(bytes: &[u8]) -> Result<WrittenPart> {
        let found = PART.open(bytes).ok().flatten().filter(|_| bytes.len() == BLOCK_BYTES);
        found.map(|(part, _)| part).ok_or_else(|| invalid("these bytes are no written part"))
    }
}

/// It is handed from process to process.
const PART: Block = Block { what: "written part", magic: *b"DLFSWRTN", at: 0, len: BLOCK_BYTES };

/// Counts, and a hash of the data that stays the same when the part gets its place in the image.
#[derive(Clone, Default)]
pub(super) struct PartSum {
    /// Number of chunks so far.
    pub(super) chunks: u64,
    /// Number of their samples.
    pub(super) samples: u64,
    hash: Xxh3,
}

impl PartSum {
    /// Adds the next chunk.
    pub(super) fn add(&mut self, head: &ChunkHead) {
        self.chunks += 1;
        self.samples += u64::from(head.num_samples);
        // The table's checksum covers names, labels, lengths, and the checksums of all samples.
        for number in [
            head.cell,
            head.first_slot.0 - head.part.first,
            head.part.seed,
            head.part.window,
            head.num_samples.into(),
            head.header_len.into(),
            head.data_len,
            head.table_crc.into(),
        ] {
            self.hash.update(&number.to_le_bytes());
        }
    }

    /// The hash of all chunks so far.
    pub(super) fn digest(&self) -> u64 {
        self.hash.digest()
    }
}

/// The head of a block. Versions before 3 had a separate layout for each kind of state.
///
/// | bytes  | field      | meaning                                                              |
/// |--------|------------|----------------------------------------------------------------------|
/// | 0..8   | `magic`    | which state it is                                                    |
/// | 8..10  | `version`  | 4                                                                    |
/// | 10..12 | `reserved` | zero                                                                 |
/// | 12..16 | `len`      | bytes of the JSON, from byte 20 on                                   |
/// | 16..20 | `crc`      | CRC32C of all other bytes of the block                               |
/// | 20..   |            | the JSON, then bytes that belong to it, then zeroes                  |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    len: U32,
    crc: U32,
}
const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

/// The place of a state on a namespace, and its magic.
pub(super) struct Block {
    /// The state's name in error messages.
    pub(super) what: &'static str,
    pub(super) magic: [u8; 8],
    /// Offset on the namespace.
    pub(super) at: u64,
    /// Length of the block; 0: as long as its state needs, in steps of [`BLOCK_BYTES`].
    pub(super) len: usize,
}

impl Block {
    /// The block of `state`, followed by `tail`. `None`: they do not fit.
    pub(super) fn seal(&self, state: &impl Serialize, tail: &[u8]) -> Option<Vec<u8>> {
        let json = serde_json::to_vec(state).ok()?;
        let head = Head {
            magic: self.magic,
            version: VERSION.into(),
            reserved: 0.into(),
            len: u32::try_from(json.len()).ok()?.into(),
            crc: 0.into(),
        };
        let mut block = [head.as_bytes(), &json, tail].concat();
        let needed = block.len().next_multiple_of(BLOCK_BYTES);
        let len = if self.len == 0 { needed } else { self.len };
        if block.len() > len {
            return None;
        }
        block.resize(len, 0);
        let crc = crc_of(&block);
        block[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        Some(block)
    }

    /// The state in a block, and the bytes after its JSON. `None`: there is none, or its write was torn.
    ///
    /// # Errors
    /// Another release wrote it: its version differs, or its content is not this release's although the
    /// checksum matches.
    pub(super) fn open<'b, T: DeserializeOwned>(
        &self,
        block: &'b [u8],
    ) -> std::result::Result<Option<(T, &'b [u8])>, FormatError> {
        let what = self.what;
        let len = if self.len == 0 { block.len() } else { self.len };
        let Some(block) = block.get(..len).filter(|block| block.starts_with(&self.magic)) else {
            return Ok(None);
        };
        let Ok((head, body)) = Head::read_from_prefix(block) else { return Ok(None) };
        let found = head.version.get();
        if found != VERSION {
            return Err(FormatError::Version { what, found, known: VERSION });
        }
        if head.crc.get() != crc_of(block) {
            return Ok(None);
        }
        let len = head.len.get();
        let (json, tail) = body.split_at_checked(len as usize).ok_or(FormatError::OutOfRange {
            what,
            value: len.into(),
            limit: body.len() as u64,
        })?;
        match serde_json::from_slice(json) {
            Ok(state) => Ok(Some((state, tail))),
            Err(error) => Err(FormatError::Unread { what, why: error.to_string() }),
        }
    }

    /// Reads the state of a namespace. `None`: there is none, or its write was torn.
    ///
    /// # Errors
    /// `Unsupported`: another release wrote it. Errors of reading.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        channel: &mut Channel,
        namespace: u16,
    ) -> Result<Option<T>> {
        let Some(block) = self.bytes(channel, namespace)? else { return Ok(None) };
        let found = self.open(&block).map_err(|error| {
            let text = format!("another release of dlfs wrote the {} here", self.what);
            Error::new(ErrorKind::Unsupported, text)
                .source(error)
                .hint("end that import with the release that began it, or begin anew with --force")
        })?;
        Ok(found.map(|(state, _)| state))
    }

    /// Reads the block of the state. `None`: the namespace is too short to have it.
    ///
    /// # Errors
    /// Errors of reading.
    pub(super) fn bytes(&self, channel: &mut Channel, namespace: u16) -> Result<Option<IoBuf>> {
        if channel.media.len_bytes(namespace) < self.at + self.len as u64 {
            return Ok(None);
        }
        channel.read(namespace, self.at, self.len).map(Some)
    }
}

/// The checksum of a block, without the bytes of the checksum itself.
fn crc_of(block: &[u8]) -> u32 {
    crc32c_append(crc32c(&block[..CRC_AT]), &block[HEAD_BYTES..])
}

/// Length of a block for a state of a few numbers, which needs no more.
pub(super) const BLOCK_BYTES: usize = 4096;

const HEAD_BYTES: usize = 20;
const CRC_AT: usize = 16;
const VERSION: u16 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_format::format::{Pack, Uuid};

    fn journal() -> Journal {
        Journal {
            layout: ImageLayout::new(Uuid([3; 16]), 1 << 20, Pack::Tight, 4).unwrap(),
            namespace: 2,
            generation: Generation(7),
            time_ns: 1234,
            part: Part { first: 1000, count: 0, seed: 9, window: 0 },
            fingerprint: u64::MAX,
        }
    }

    #[test]
    fn a_journal_reads_back_and_matches_only_its_own_import() {
        let bytes = journal().encode();
        assert_eq!(Journal::parse(&bytes), Ok(Some(journal())));
        let other = Journal { namespace: 0, ..journal() };
        assert!(other.is_of_the_same_import(&journal()));
        assert!(!Journal { time_ns: 5, ..other }.is_of_the_same_import(&journal()));
    }

    #[test]
    fn numbers_that_no_image_has_are_refused() {
        let part = Part { first: u64::MAX, ..journal().part };
        let layout = ImageLayout { num_namespaces: 0, ..journal().layout };
        for wrong in [Journal { part, ..journal() }, Journal { layout, ..journal() }] {
            assert!(Journal::parse(&wrong.encode()).is_err(), "{wrong:?}");
        }
        assert_eq!(Journal::parse(&journal().encode()[..4095]), Ok(None));
    }

    const BLOCK: Block = Block { what: "test", magic: *b"DLFSTEST", at: 0, len: BLOCK_BYTES };

    type Opened<'a> = std::result::Result<Option<(Vec<u64>, &'a [u8])>, FormatError>;

    fn opened(bytes: &[u8]) -> Opened<'_> {
        BLOCK.open(bytes)
    }

    #[test]
    fn a_state_reads_back_with_what_follows_it_and_every_flipped_bit_is_seen() {
        let bytes = BLOCK.seal(&[7, u64::MAX], b"tail").unwrap();
        let (state, tail) = opened(&bytes).unwrap().unwrap();
        assert_eq!((&state[..], &tail[..4]), (&[7, u64::MAX][..], &b"tail"[..]));
        assert!(tail[4..].iter().all(|&byte| byte == 0));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(opened(&damaged), Ok(Some(_))), "bit {bit}");
        }
        assert_eq!(opened(&bytes[..BLOCK_BYTES - 1]), Ok(None));
        assert_eq!(opened(&[0; BLOCK_BYTES]), Ok(None));
        let other = BLOCK.seal(&[8, 9], &[]).unwrap();
        let torn = [&other[..512], &BLOCK.seal(&[7], &[]).unwrap()[512..]].concat();
        assert_eq!(torn, other, "what is short is written whole or not at all");
        assert_eq!(BLOCK.seal(&0, &[0; BLOCK_BYTES]), None, "it has no room");
    }

    #[test]
    fn the_state_of_another_release_is_refused() {
        let mut bytes = BLOCK.seal(&[7], &[]).unwrap();
        bytes[8] = 2;
        assert!(matches!(opened(&bytes), Err(FormatError::Version { found: 2, .. })));
        let other = BLOCK.seal(&"text", &[]).unwrap();
        assert!(matches!(opened(&other), Err(FormatError::Unread { .. })));
    }
}
