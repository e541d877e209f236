//! Packs: the indexes of all shards of a source in one object of a store, so that one request loads them.
//!
//! | bytes | field   | meaning                                                                         |
//! |-------|---------|---------------------------------------------------------------------------------|
//! | 0..8  | magic   | `DLFSSHPK`                                                                      |
//! | ..    | indexes | for each: its key (16 bytes, little-endian), its length (LEB128), and its bytes |
//!
//! Each index has its own version and checksum. Each packed index is also kept in a separate object (`kept.rs`), so a
//! pack that is damaged, or made of other shards, only costs requests.

use std::collections::HashMap;
use std::ops::Range;

use crate::index::ShardIndex;
use dlfs_base::error::zeroed_vec;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::cursor::{Cursor, put_string};
use dlfs_places::{Client, Object};

/// The packs of one source in a store. The source has a pack for each state of its shards.
#[derive(Debug)]
pub(crate) struct Packs {
    /// The prefix of the packs' keys, with a slash at its end.
    prefix: String,
    /// The name of the pack of the present shards.
    current: String,
}

/// A pack in memory.
#[derive(Debug, Default)]
pub(crate) struct Pack {
    /// The whole object.
    bytes: Vec<u8>,
    /// The byte range of each index in `bytes`, by its key.
    ranges: HashMap<u128, Range<usize>>,
}

impl Packs {
    /// The packs beneath `prefix` of the source whose address has the hash `source`; `identity`: a hash of the present
    /// shards.
    pub(crate) fn new(prefix: &str, source: u64, identity: u128) -> Packs {
        let prefix = format!("{prefix}packs/{source:016x}/");
        Packs { prefix, current: format!("{identity:032x}") }
    }

    /// The pack of the present shards, or else the longest pack of the source, which may lack some of them. A pack that
    /// is damaged, or longer than any that this version creates, counts as empty.
    pub(crate) fn load(&self, client: &Client) -> Result<Pack> {
        let is_right = |object: &Object| object.len_bytes <= MOST_BYTES as u64;
        let packs = list(client, &self.prefix)?;
        let (right, long): (Vec<_>, Vec<_>) = packs.into_iter().partition(is_right);
        if let Some(Object { key, len_bytes, .. }) = long.first() {
            tracing::warn!(
                "the pack {key} is not used: it has {len_bytes} bytes, more than {MOST_BYTES}"
            );
        }
        let rank = |object: &Object| (self.is_current(object), object.len_bytes);
        let Some(object) = right.into_iter().max_by_key(rank) else { return Ok(Pack::default()) };
        Pack::of(fetch_whole(client, &object)?).or_else(|error| {
            tracing::warn!("the pack {} is not used: {error}", object.key);
            Ok(Pack::default())
        })
    }

    /// Creates the pack of the present shards, unless it exists or would have more than [`MOST_BYTES`].
    pub(crate) fn keep(&self, client: &Client, keys: &[u128], all: &[ShardIndex]) -> Result<()> {
        if list(client, &self.prefix)?.iter().any(|object| self.is_current(object)) {
            return Ok(());
        }
        let mut bytes = MAGIC.to_vec();
        for (key, index) in keys.iter().zip(all) {
            bytes.extend(key.to_le_bytes());
            put_string(&mut bytes, &index.encode());
            if bytes.len() > MOST_BYTES {
                return Ok(());
            }
        }
        client.create(&format!("{}{}", self.prefix, self.current), bytes).map(drop)
    }

    fn is_current(&self, object: &Object) -> bool {
        object.key.strip_prefix(&self.prefix) == Some(&*self.current)
    }
}

impl Pack {
    /// Decodes a pack.
    ///
    /// # Errors
    /// `Corrupt`: the bytes are no pack, or end early.
    fn of(bytes: Vec<u8>) -> Result<Pack> {
        let Some(body) = bytes.strip_prefix(&MAGIC[..]) else {
            return Err(Error::new(ErrorKind::Corrupt, "it is no pack of indexes"));
        };
        let mut from = Cursor::new("pack of indexes", body);
        let mut ranges = HashMap::new();
        while from.len() > 0 {
            let key: [u8; 16] = from.bytes(16)?.try_into().expect("the bytes asked for");
            let len = from.string()?.len();
            let end = bytes.len() - from.len();
            ranges.insert(u128::from_le_bytes(key), end - len..end);
        }
        Ok(Pack { bytes, ranges })
    }

    /// Returns whether the pack has an index with this key.
    pub(crate) fn has(&self, key: u128) -> bool {
        self.ranges.contains_key(&key)
    }

    /// The bytes of the index with this key.
    pub(crate) fn get(&self, key: u128) -> Option<&[u8]> {
        self.ranges.get(&key).map(|range| &self.bytes[range.clone()])
    }
}

/// All objects whose keys begin with `prefix`.
pub(crate) fn list(client: &Client, prefix: &str) -> Result<Vec<Object>> {
    let mut found = Vec::new();
    client.list(prefix, &mut |object| {
        found.push(object);
        Ok(())
    })?;
    Ok(found)
}

/// The bytes of an object.
pub(crate) fn fetch_whole(client: &Client, object: &Object) -> Result<Vec<u8>> {
    let mut bytes = zeroed_vec(object.len_bytes)?;
    client.fetch(object, 0..object.len_bytes).read_into(&mut bytes)?;
    Ok(bytes)
}

const MAGIC: &[u8; 8] = b"DLFSSHPK";
/// Maximum length of a pack: loading a longer one would take long, and its indexes are so long that a request for each
/// costs little beside its bytes.
const MOST_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pack_has_the_bytes_of_each_index_and_no_others() {
        let mut bytes = MAGIC.to_vec();
        for (key, index) in [(7_u128, &b"first"[..]), (u128::MAX, b""), (9, b"last")] {
            bytes.extend(key.to_le_bytes());
            put_string(&mut bytes, index);
        }
        let pack = Pack::of(bytes.clone()).unwrap();
        assert_eq!(pack.get(7), Some(&b"first"[..]));
        assert_eq!((pack.get(9), pack.get(8)), (Some(&b"last"[..]), None));
        assert!(pack.has(u128::MAX) && !pack.has(0));
        assert!(Pack::of(bytes[..bytes.len() - 1].to_vec()).is_err());
        assert!(Pack::of(b"DLFSSHIX".to_vec()).is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Pack::of([&MAGIC[..], &bytes].concat()); // an error, or some indexes
        }
    }
}
