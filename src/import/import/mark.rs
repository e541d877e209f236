//! The mark of a part on its namespace: which plan it is of, and whether it is complete.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::import::media::Channel;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::checksum::crc32c;

/// The block at [`MARK_OFFSET`] of a namespace while an import by many is not committed.
///
/// | bytes      | field       | meaning                                    |
/// |------------|-------------|--------------------------------------------|
/// | 0..8       | `magic`     | "DLFSPART"                                 |
/// | 8..24      | `plan`      | the plan's id                              |
/// | 24..26     | `namespace` | which part it is: the index of a namespace |
/// | 26..28     | `state`     | 1: begun; 2: complete; 3: planned          |
/// | 28..36     | `chunks`    | how many chunks it has                     |
/// | 36..4092   | `reserved`  | zero                                       |
/// | 4092..4096 | `crc`       | CRC32C of bytes 0..4092                    |
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawMark {
    magic: [u8; 8],
    plan: [u8; 16],
    namespace: U16,
    state: U16,
    chunks: U64,
    reserved: [u8; 4056],
    crc: U32,
}
const _: () = assert!(size_of::<RawMark>() == MARK_BYTES);

/// Progress of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// None of its chunks is there: the mark of a part of an append.
    Planned,
    /// Some of its chunks may be there.
    Begun,
    /// All its chunks are durable.
    Complete,
}

/// A mark, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) plan: [u8; 16],
    pub(super) namespace: u16,
    pub(super) state: State,
    pub(super) chunks: u64,
}

impl Mark {
    fn encode(&self) -> [u8; MARK_BYTES] {
        let mut raw = RawMark {
            magic: MAGIC,
            plan: self.plan,
            namespace: self.namespace.into(),
            state: match self.state {
                State::Planned => PLANNED,
                State::Begun => BEGUN,
                State::Complete => COMPLETE,
            }
            .into(),
            chunks: self.chunks.into(),
            reserved: [0; 4056],
            crc: 0.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[..MARK_BYTES - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// The mark in a block; `None`: there is none, or it was torn.
    fn parse(bytes: &[u8]) -> Option<Mark> {
        let (raw, _) = RawMark::read_from_prefix(bytes).ok()?;
        let is_sound = raw.magic == MAGIC && raw.crc.get() == crc32c(&bytes[..MARK_BYTES - 4]);
        let state = match raw.state.get() {
            BEGUN => State::Begun,
            COMPLETE => State::Complete,
            PLANNED => State::Planned,
            _ => return None,
        };
        let namespace = raw.namespace.get();
        let chunks = raw.chunks.get();
        is_sound.then_some(Mark { plan: raw.plan, namespace, state, chunks })
    }

    /// Reads the mark of a namespace.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn read(channel: &mut Channel, namespace: u16) -> Result<Option<Mark>> {
        let device = &channel.media().devices()[usize::from(namespace)];
        if device.namespace().len_bytes() < MARK_OFFSET + MARK_BYTES as u64 {
            let text = "the namespace is too short for what a plan prepares";
            let address = device.namespace().address;
            return Err(Error::new(ErrorKind::InvalidArgument, text).target(address));
        }
        Ok(Mark::parse(&channel.read(namespace, MARK_OFFSET, MARK_BYTES)?))
    }

    /// Writes it, durably, with all that was written before.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn write(&self, channel: &mut Channel, namespace: u16) -> Result<()> {
        channel.flush(namespace)?;
        channel.write_bytes(namespace, MARK_OFFSET, &self.encode())?;
        channel.flush(namespace)
    }

    /// Removes the mark of a namespace.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn remove(channel: &mut Channel, namespace: u16) -> Result<()> {
        channel.zero(namespace, MARK_OFFSET, MARK_BYTES as u64)?;
        channel.flush(namespace)
    }
}

/// Between the lease and superblock copy B.
pub(super) const MARK_OFFSET: u64 = 28 << 10;
pub(super) const MARK_BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"DLFSPART";
const BEGUN: u16 = 1;
const COMPLETE: u16 = 2;
const PLANNED: u16 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_and_every_flipped_bit_is_seen() {
        for state in [State::Planned, State::Begun, State::Complete] {
            let mark = Mark { plan: [7; 16], namespace: 3, state, chunks: 1 << 40 };
            let bytes = mark.encode();
            assert_eq!(Mark::parse(&bytes), Some(mark));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes;
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Mark::parse(&damaged), None, "bit {bit}");
            }
        }
        assert_eq!(Mark::parse(&[0; MARK_BYTES]), None);
        assert_eq!(Mark::parse(&[]), None);
    }
}
