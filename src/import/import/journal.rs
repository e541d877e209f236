//! The journal: the data that an import needs to resume after a kill, a power loss or a full disk.
//!
//! It is stored at the start of each namespace, between the superblock copies. It is written and flushed before
//! any chunk. From then on the import is a function of journal, source and options: the same inputs give the
//! same bytes, however often the import is interrupted. The journal stays after the import, but is obsolete
//! once its generation is committed. The block that holds it is defined in `block.rs`.

use serde::{Deserialize, Serialize};

use crate::import::block::{BLOCK_BYTES, Block};
use crate::import::media::Channel;
use dlfs_base::Result;
use dlfs_base::units::Generation;
use dlfs_format::directory::Directory;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_format::format::error::at_most;
use dlfs_format::format::geometry::check_generation;
use dlfs_format::format::{ChunkSpec, FieldTypes, FormatError, ImageLayout, Part};

/// The properties of an unfinished import, as its journal stores them.
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
    /// First id, seed and window of the samples that the import adds. The count is the number of samples of an
    /// indexed source; the journal on the media has 0 there.
    pub part: Part,
    /// Hash of the indexed source, of the file of column values, and of the given types; 0 for a stream. For an image
    /// that ranks fill, the hash of its shards. For writers, a number that stands for no source.
    pub fingerprint: u64,
}

impl Journal {
    /// The block to write at [`JOURNAL_OFFSET`].
    pub fn encode(&self) -> Vec<u8> {
        let part = Part { count: 0, ..self.part };
        JOURNAL.seal(&Journal { part, ..*self }, &[]).expect("a few numbers fit into a block")
    }

    /// Reads a journal from the first [`JOURNAL_BYTES`] of `bytes`. `None`: there is none, or its write was torn.
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

    /// Returns whether this journal belongs to a change of the image `current` that is not committed.
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
}
