//! A pack: the indexes of many shards in one object of a store, which is read by one request.
//!
//! | bytes | field   | meaning                                                                             |
//! |-------|---------|-------------------------------------------------------------------------------------|
//! | 0..8  | magic   | `DLFSSHPK`                                                                          |
//! | ..    | indexes | for each its key (16 bytes, little-endian), and its bytes with their length in front |
//!
//! Each index has its own version and checksum. A pack is never the only place of an index: one that is damaged, or of
//! other shards, only costs requests.

use std::collections::HashMap;
use std::ops::Range;

use dlfs_base::error::zeroed_vec;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::cursor::{Cursor, put_string};
use dlfs_places::{Client, Object};

use crate::index::ShardIndex;

/// The packs of one source, beneath a prefix of a store.
#[derive(Debug)]
pub(crate) struct Packs {
    /// The prefix of their keys, with a slash at its end.
    prefix: String,
    /// The name of the pack of these shards.
    own: String,
}

/// A pack in memory.
#[derive(Debug, Default)]
pub(crate) struct Pack {
    bytes: Vec<u8>,
    /// The place of each index in `bytes`, by its key.
    places: HashMap<u128, Range<usize>>,
}

impl Packs {
    /// The packs beneath `prefix` of the source with the hash `source`; `identity`: that of its shards now.
    pub(crate) fn new(prefix: &str, source: u64, identity: u128) -> Packs {
        Packs { prefix: format!("{prefix}packs/{source:016x}/"), own: format!("{identity:032x}") }
    }

    /// The pack of these shards, or else the longest one of the source, which may lack some. Passes over packs that are
    /// longer than any that this version creates.
    pub(crate) fn load(&self, client: &Client) -> Result<Pack> {
        let is_right = |object: &Object| object.len_bytes <= MOST_BYTES as u64;
        let (right, long): (Vec<_>, Vec<_>) = self.list(client)?.into_iter().partition(is_right);
        if let Some(Object { key, len_bytes, .. }) = long.first() {
            tracing::warn!(
                "the pack {key} is not used: it has {len_bytes} bytes, more than {MOST_BYTES}"
            );
        }
        let rank = |object: &Object| (self.is_own(object), object.len_bytes);
        let Some(object) = right.into_iter().max_by_key(rank) else { return Ok(Pack::default()) };
        let mut bytes = zeroed_vec(object.len_bytes)?;
        client.fetch(&object, 0..object.len_bytes).read_into(&mut bytes)?;
        Pack::of(bytes).or_else(|error| {
            tracing::warn!("the pack {} is not used: {error}", object.key);
            Ok(Pack::default())
        })
    }

    /// Creates the pack of these shards, unless it is there or would be long.
    pub(crate) fn keep(&self, client: &Client, keys: &[u128], all: &[ShardIndex]) -> Result<()> {
        if self.list(client)?.iter().any(|object| self.is_own(object)) {
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
        client.create(&format!("{}{}", self.prefix, self.own), bytes).map(drop)
    }

    fn list(&self, client: &Client) -> Result<Vec<Object>> {
        let mut found = Vec::new();
        client.list(&self.prefix, &mut |object| {
            found.push(object);
            Ok(())
        })?;
        Ok(found)
    }

    fn is_own(&self, object: &Object) -> bool {
        object.key.strip_prefix(&self.prefix) == Some(&*self.own)
    }
}

impl Pack {
    fn of(bytes: Vec<u8>) -> Result<Pack> {
        let Some(body) = bytes.strip_prefix(&MAGIC[..]) else {
            return Err(Error::new(ErrorKind::Corrupt, "it is no pack of indexes"));
        };
        let mut from = Cursor::new("pack of indexes", body);
        let mut places = HashMap::new();
        while from.len() > 0 {
            let key: [u8; 16] = from.bytes(16)?.try_into().expect("the bytes asked for");
            let len = from.string()?.len();
            let end = bytes.len() - from.len();
            places.insert(u128::from_le_bytes(key), end - len..end);
        }
        Ok(Pack { bytes, places })
    }

    /// Returns whether there is an index with this key.
    pub(crate) fn has(&self, key: u128) -> bool {
        self.places.contains_key(&key)
    }

    /// The bytes of the index with this key.
    pub(crate) fn get(&self, key: u128) -> Option<&[u8]> {
        self.places.get(&key).map(|place| &self.bytes[place.clone()])
    }
}

const MAGIC: &[u8; 8] = b"DLFSSHPK";
/// A longer pack would be long in coming, and its indexes are so long that requests for each cost little.
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
