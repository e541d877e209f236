//! The metadata on a namespace while parts are written there: a mark in cell 0, and a record behind each part.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::import::journal::{JOURNAL_BYTES, JOURNAL_OFFSET, Journal};
use crate::import::mark::{MARK_BYTES, MARK_OFFSET};
use crate::import::media::Channel;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::ImageLayout;
use dlfs_format::format::checksum::crc32c;

/// The block in cell 0 of a namespace of a plan of written parts, where an import by many has the mark of its part.
///
/// | bytes      | field         | meaning                                                |
/// |------------|---------------|--------------------------------------------------------|
/// | 0..8       | `magic`       | "DLFSLANE"                                             |
/// | 8..24      | `plan`        | the plan's id                                          |
/// | 24..26     | `namespace`   | the index of the namespace                             |
/// | 26..32     | `reserved_a`  | zero                                                   |
/// | 32..40     | `last_record` | cell of the record of the last part; 0: there is none  |
/// | 40..48     | `end_cell`    | the cell behind it, where the next part begins         |
/// | 48..4092   | `reserved_b`  | zero                                                   |
/// | 4092..4096 | `crc`         | CRC32C of bytes 0..4092                                |
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawLane {
    magic: [u8; 8],
    plan: [u8; 16],
    namespace: U16,
    reserved_a: [u8; 6],
    last_record: U64,
    end_cell: U64,
    reserved_b: [u8; 4044],
    crc: U32,
}
const _: () = assert!(size_of::<RawLane>() == MARK_BYTES);

/// The block behind the chunks of a part.
///
/// | bytes      | field          | meaning                                                    |
/// |------------|----------------|------------------------------------------------------------|
/// | 0..8       | `magic`        | "DLFSWRTN"                                                 |
/// | 8..24      | `plan`         | the plan's id                                              |
/// | 24..32     | `key`          | the number of the part                                     |
/// | 32..34     | `namespace`    | the index of the namespace                                 |
/// | 34..40     | `reserved_a`   | zero                                                       |
/// | 40..48     | `time_ns`      | when the part was complete, ns since 1970                  |
/// | 48..56     | `previous`     | cell of the record of the part before; 0: there is none    |
/// | 56..64     | `first_cell`   | where its chunks begin, one behind the other               |
/// | 64..72     | `record_cell`  | the cell of this record                                    |
/// | 72..80     | `chunks`       | its chunks                                                 |
/// | 80..88     | `samples`      | their samples                                              |
/// | 88..96     | `sample_bytes` | their bytes                                                |
/// | 96..104    | `digest`       | a hash of all chunks: see `part_sum.rs`                    |
/// | 104..4092  | `reserved_b`   | zero                                                       |
/// | 4092..4096 | `crc`          | CRC32C of bytes 0..4092                                    |
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRecord {
    magic: [u8; 8],
    plan: [u8; 16],
    key: U64,
    namespace: U16,
    reserved_a: [u8; 6],
    time_ns: U64,
    previous: U64,
    first_cell: U64,
    record_cell: U64,
    chunks: U64,
    samples: U64,
    sample_bytes: U64,
    digest: U64,
    reserved_b: [u8; 3988],
    crc: U32,
}
const _: () = assert!(size_of::<RawRecord>() == MARK_BYTES);

/// Progress of the parts on a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) plan: [u8; 16],
    pub(super) namespace: u16,
    /// 0: there is none.
    pub(super) last_record: u64,
    pub(super) end_cell: u64,
}

/// A part that is complete, as its record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartRecord {
    pub(super) plan: [u8; 16],
    pub(super) key: u64,
    pub(super) namespace: u16,
    pub(super) time_ns: u64,
    pub(super) previous: u64,
    pub(super) first_cell: u64,
    pub(super) record_cell: u64,
    pub(super) chunks: u64,
    pub(super) samples: u64,
    pub(super) sample_bytes: u64,
    pub(super) digest: u64,
}

impl Lane {
    /// The mark of a namespace to which a part may be added.
    ///
    /// # Errors
    /// As [`read`](Self::read). `InvalidArgument`: the plan is committed, or its commit has begun to be visible.
    pub(super) fn read_open(
        plan: [u8; 16],
        journal: &Journal,
        namespace: u16,
        channel: &mut Channel,
    ) -> Result<Lane> {
        let newest = channel.superblocks(namespace)?.newest().copied();
        if newest.is_some_and(|newest| newest.layout.uuid == journal.layout.uuid) {
            let address = channel.media().devices()[usize::from(namespace)].namespace().address;
            let text = "the plan is committed already";
            return Err(Error::new(ErrorKind::InvalidArgument, text)
                .target(address)
                .hint("read the image"));
        }
        Lane::read(plan, journal, namespace, channel)
    }

    /// The mark of a namespace that is prepared for the plan with this id and journal.
    ///
    /// # Errors
    /// `InvalidArgument`: it is not. Those of reading.
    pub(super) fn read(
        plan: [u8; 16],
        journal: &Journal,
        namespace: u16,
        channel: &mut Channel,
    ) -> Result<Lane> {
        let found = Journal::parse(&channel.read(namespace, JOURNAL_OFFSET, JOURNAL_BYTES)?).ok();
        let is_planned = found == Some(Journal { namespace, ..*journal });
        let lane = Lane::parse(&channel.read(namespace, MARK_OFFSET, MARK_BYTES)?);
        let is_own = |lane: &Lane| (lane.plan, lane.namespace) == (plan, namespace);
        lane.filter(|lane| is_planned && is_own(lane)).ok_or_else(|| {
            let address = channel.media().devices()[usize::from(namespace)].namespace().address;
            let text = "this namespace is not prepared for this plan";
            Error::new(ErrorKind::InvalidArgument, text)
                .target(address)
                .hint("use the plan that was made last for it, or make another that overwrites it")
        })
    }

    /// Writes the mark, durably, with all that was written before.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn write(&self, channel: &mut Channel) -> Result<()> {
        channel.flush(self.namespace)?;
        channel.write_bytes(self.namespace, MARK_OFFSET, &self.encode())?;
        channel.flush(self.namespace)
    }

    /// Adds a part, whose chunks are written: from then on it is complete.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn append(
        self,
        record: &PartRecord,
        layout: &ImageLayout,
        channel: &mut Channel,
    ) -> Result<()> {
        let offset = layout.offset_of(record.record_cell)?;
        channel.media().grow(self.namespace, offset + layout.cell_bytes())?;
        channel.write_bytes(self.namespace, offset, &record.encode())?;
        let last_record = record.record_cell;
        let end_cell = record.record_cell + 1;
        Lane { last_record, end_cell, ..self }.write(channel)
    }

    /// The records of all parts that are complete here, the last one first.
    ///
    /// # Errors
    /// `Corrupt`: a record is damaged. Those of reading.
    pub(super) fn records(
        &self,
        layout: &ImageLayout,
        channel: &mut Channel,
    ) -> Result<Vec<PartRecord>> {
        let mut records = Vec::new();
        let mut cell = self.last_record;
        let mut end = self.end_cell;
        while cell != 0 {
            let block = channel.read(self.namespace, layout.offset_of(cell)?, MARK_BYTES)?;
            let of_here = |record: &PartRecord| {
                (record.plan, record.namespace, record.record_cell)
                    == (self.plan, self.namespace, cell)
                    && record.first_cell <= cell
                    && record.previous < record.first_cell
                    && cell < end
            };
            let Some(record) = PartRecord::parse(&block).filter(of_here) else {
                let address =
                    channel.media().devices()[usize::from(self.namespace)].namespace().address;
                let text = format!("the record of a written part, in cell {cell}, is damaged");
                return Err(Error::new(ErrorKind::Corrupt, text).target(address));
            };
            records.push(record);
            (cell, end) = (record.previous, record.first_cell);
        }
        Ok(records)
    }

    fn encode(&self) -> [u8; MARK_BYTES] {
        let mut raw = RawLane {
            magic: LANE_MAGIC,
            plan: self.plan,
            namespace: self.namespace.into(),
            reserved_a: [0; 6],
            last_record: self.last_record.into(),
            end_cell: self.end_cell.into(),
            reserved_b: [0; 4044],
            crc: 0.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[..MARK_BYTES - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// The mark in a block; `None`: there is none, or it was torn.
    fn parse(bytes: &[u8]) -> Option<Lane> {
        let (raw, _) = RawLane::read_from_prefix(bytes).ok()?;
        let is_sound = raw.magic == LANE_MAGIC && raw.crc.get() == crc32c(&bytes[..MARK_BYTES - 4]);
        is_sound.then_some(Lane {
            plan: raw.plan,
            namespace: raw.namespace.get(),
            last_record: raw.last_record.get(),
            end_cell: raw.end_cell.get(),
        })
    }
}

impl PartRecord {
    pub(super) fn encode(&self) -> [u8; MARK_BYTES] {
        let mut raw = RawRecord {
            magic: RECORD_MAGIC,
            plan: self.plan,
            key: self.key.into(),
            namespace: self.namespace.into(),
            reserved_a: [0; 6],
            time_ns: self.time_ns.into(),
            previous: self.previous.into(),
            first_cell: self.first_cell.into(),
            record_cell: self.record_cell.into(),
            chunks: self.chunks.into(),
            samples: self.samples.into(),
            sample_bytes: self.sample_bytes.into(),
            digest: self.digest.into(),
            reserved_b: [0; 3988],
            crc: 0.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[..MARK_BYTES - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// The record in a block, if there is a sound one.
    pub(super) fn parse(bytes: &[u8]) -> Option<PartRecord> {
        let (raw, _) = RawRecord::read_from_prefix(bytes).ok()?;
        let is_sound =
            raw.magic == RECORD_MAGIC && raw.crc.get() == crc32c(&bytes[..MARK_BYTES - 4]);
        is_sound.then_some(PartRecord {
            plan: raw.plan,
            key: raw.key.get(),
            namespace: raw.namespace.get(),
            time_ns: raw.time_ns.get(),
            previous: raw.previous.get(),
            first_cell: raw.first_cell.get(),
            record_cell: raw.record_cell.get(),
            chunks: raw.chunks.get(),
            samples: raw.samples.get(),
            sample_bytes: raw.sample_bytes.get(),
            digest: raw.digest.get(),
        })
    }
}

const LANE_MAGIC: [u8; 8] = *b"DLFSLANE";
const RECORD_MAGIC: [u8; 8] = *b"DLFSWRTN";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_records_read_back_and_every_flipped_bit_is_seen() {
        let lane = Lane { plan: [7; 16], namespace: 3, last_record: 1 << 40, end_cell: 9 };
        let record = PartRecord {
            plan: [7; 16],
            key: 1 << 50,
            namespace: 3,
            time_ns: 4,
            previous: 5,
            first_cell: 6,
            record_cell: 7,
            chunks: 8,
            samples: 9,
            sample_bytes: 10,
            digest: u64::MAX,
        };
        let as_lane = lane.encode();
        let as_record = record.encode();
        assert_eq!(Lane::parse(&as_lane), Some(lane));
        assert_eq!(PartRecord::parse(&as_record), Some(record));
        assert_eq!((Lane::parse(&as_record), PartRecord::parse(&as_lane)), (None, None));
        for bit in 0..MARK_BYTES * 8 {
            let mut one = as_lane;
            let mut other = as_record;
            one[bit / 8] ^= 1 << (bit % 8);
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!((Lane::parse(&one), PartRecord::parse(&other)), (None, None), "bit {bit}");
        }
        assert_eq!((Lane::parse(&[]), PartRecord::parse(&[])), (None, None));
    }
}
