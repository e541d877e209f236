//! The frame of every state that an unfinished import keeps on media: its journal, checkpoint, lease and marks.
//!
//! A state is a struct in JSON, in a block of a fixed length that says which state it is. A torn block has another
//! checksum, and counts as none; the state of another release is refused, since nothing here can continue it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::import::media::Channel;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FormatError;
use dlfs_format::format::checksum::crc32c;

/// The head of a block. The JSON follows, then bytes that belong to it, then zeroes, and in the last 4 bytes of the
/// block the CRC32C of all before.
///
/// | bytes  | field      | meaning                                                              |
/// |--------|------------|----------------------------------------------------------------------|
/// | 0..8   | `magic`    | which state it is                                                    |
/// | 8..10  | `version`  | 3; before that, the fields of a state were laid out each in its way  |
/// | 10..12 | `reserved` | zero                                                                 |
/// | 12..16 | `len`      | bytes of the JSON                                                    |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    len: U32,
}
const _: () = assert!(size_of::<Head>() == 16);

/// The place of a state, and how it is known there.
pub(super) struct Block {
    /// Its name in errors.
    pub(super) what: &'static str,
    pub(super) magic: [u8; 8],
    /// Offset on its namespace.
    pub(super) at: u64,
    pub(super) len: usize,
}

impl Block {
    /// The block of `state`, with `tail` behind it. `None`: they have no room.
    pub(super) fn seal(&self, state: &impl Serialize, tail: &[u8]) -> Option<Vec<u8>> {
        let json = serde_json::to_vec(state).ok()?;
        let head = Head {
            magic: self.magic,
            version: VERSION.into(),
            reserved: 0.into(),
            len: u32::try_from(json.len()).ok()?.into(),
        };
        let mut block = [head.as_bytes(), &json, tail].concat();
        let end = self.len - CRC_BYTES;
        if block.len() > end {
            return None;
        }
        block.resize(end, 0);
        block.extend_from_slice(&crc32c(&block).to_le_bytes());
        Some(block)
    }

    /// The state in a block, and the bytes behind its JSON. `None`: there is none, or it was torn.
    ///
    /// # Errors
    /// Another release wrote it.
    pub(super) fn open<'b, T: DeserializeOwned>(
        &self,
        block: &'b [u8],
    ) -> std::result::Result<Option<(T, &'b [u8])>, FormatError> {
        let what = self.what;
        let Some((sealed, crc)) = block.get(..self.len).and_then(<[u8]>::split_last_chunk) else {
            return Ok(None);
        };
        let Some((head, body)) =
            Head::read_from_prefix(sealed).ok().filter(|(head, _)| head.magic == self.magic)
        else {
            return Ok(None);
        };
        if *crc != crc32c(sealed).to_le_bytes() {
            return Ok(None);
        }
        let found = head.version.get();
        if found != VERSION {
            return Err(FormatError::Version { what, found, known: VERSION });
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

    /// Reads the state of a namespace. `None`: there is none, or it was torn.
    ///
    /// # Errors
    /// `Unsupported`: another release wrote it. Those of reading.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        channel: &mut Channel,
        namespace: u16,
    ) -> Result<Option<T>> {
        let Some(block) = self.bytes(channel, namespace)? else { return Ok(None) };
        let found = self.open(&block).map_err(|error| self.of_another_release(error))?;
        Ok(found.map(|(state, _)| state))
    }

    /// The bytes where the state lies; `None`: the namespace ends before.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn bytes(
        &self,
        channel: &mut Channel,
        namespace: u16,
    ) -> Result<Option<dlfs_base::buf::IoBuf>> {
        if channel.media().namespace(namespace).len_bytes() < self.at + self.len as u64 {
            return Ok(None);
        }
        channel.read(namespace, self.at, self.len).map(Some)
    }

    pub(super) fn of_another_release(&self, error: FormatError) -> Error {
        let text = format!("another release of dlfs wrote the {} here", self.what);
        Error::new(ErrorKind::Unsupported, text)
            .source(error)
            .hint("end that import with the release that began it, or begin anew with --force")
    }
}

/// Bytes of a block that nothing but a state of a few numbers needs.
pub(super) const BLOCK_BYTES: usize = 4096;

const CRC_BYTES: usize = 4;
const VERSION: u16 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Block = Block { what: "test", magic: *b"DLFSTEST", at: 0, len: BLOCK_BYTES };

    fn opened(bytes: &[u8]) -> std::result::Result<Option<(Vec<u64>, &[u8])>, FormatError> {
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
        assert_eq!(BLOCK.seal(&0, &[0; BLOCK_BYTES]), None, "it has no room");
    }

    #[test]
    fn the_state_of_another_release_is_refused() {
        let mut bytes = BLOCK.seal(&[7], &[]).unwrap();
        bytes[8] = 2;
        assert_eq!(opened(&bytes), Ok(None), "its checksum says that it was torn");
        let (sealed, crc) = bytes.split_last_chunk_mut().unwrap();
        *crc = crc32c(sealed).to_le_bytes();
        assert!(matches!(opened(&bytes), Err(FormatError::Version { found: 2, .. })));
        let other = BLOCK.seal(&"text", &[]).unwrap();
        assert!(matches!(opened(&other), Err(FormatError::Unread { .. })));
    }
}
