//! A state that an unfinished import keeps on the media, as a JSON value in a block with a checksum.
//!
//! Such states are the journal, the checkpoint, the lease, the mark of a plan, and the records of chunks. Outside of
//! the media, heads of plans and encoded written parts have this form, too. The block's magic names the kind of state.
//! A torn block has a wrong checksum, and counts as absent; but the version is compared first.
//!
//! `Block::read`, which reads journals and marks, refuses a state of another release, since this release cannot
//! continue that import. All others call `Block::open`: another release's checkpoint counts as absent, its record as
//! damaged, and its lease as one that may have a holder.
//!
//! A state of a few numbers fits into the first 512 bytes, which a device writes atomically: overwriting it
//! leaves either the old state or the new one.

use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::import::media::Channel;
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FormatError;
use dlfs_format::format::names::{crc32c, crc32c_append};

/// A kind of state: its magic, and its place on a namespace.
pub(super) struct Block {
    /// The state's name in error messages.
    pub(super) what: &'static str,
    /// The first bytes of the block.
    pub(super) magic: [u8; 8],
    /// Offset on the namespace in bytes; unused for states that have no fixed place.
    pub(super) at: u64,
    /// Length of the block in bytes; 0: as long as its state needs, in steps of [`BLOCK_BYTES`].
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
