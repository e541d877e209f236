//! Indexes in a folder or in a store, which the processes of a job share: each is made by one of them.
//!
//! In a folder, the process that makes an index has a lock meanwhile. In a store there are no locks: processes begin at
//! different shards, and where two make the same index nevertheless, the first one to create it wins. Once a store has
//! all of them, a pack has them, too: the indexes of many shards in one object of a store, which is read by one
//! request.
//!
//! | bytes | field   | meaning                                                                             |
//! |-------|---------|-------------------------------------------------------------------------------------|
//! | 0..8  | magic   | `DLFSSHPK`                                                                          |
//! | ..    | indexes | for each its key (16 bytes, little-endian), and its bytes with their length in front |
//!
//! Each index has its own version and checksum. A pack is never the only place of an index: one that is damaged, or of
//! other shards, only costs requests.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::index::ShardIndex;
use dlfs_base::error::zeroed_vec;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::cursor::{Cursor, put_string};
use dlfs_places::{Client, Object, Place, PlaceOptions};

/// Indexes, each in a file or object called after its key.
#[derive(Debug)]
pub enum KeptIndexes {
    /// In this folder.
    Folder(PathBuf),
    /// In a store.
    Store(KeptObjects),
}

/// Indexes in a store.
#[derive(Debug)]
pub struct KeptObjects {
    client: Client,
    /// The prefix of their keys: empty, or with a slash at its end.
    prefix: String,
    /// Those that were there when they were last listed.
    listed: Mutex<HashMap<String, Object>>,
    packs: Packs,
    /// Those that were packed when this was opened.
    pack: Pack,
}

/// The right to make an index. It ends with the process.
#[derive(Debug)]
pub enum Making<'a> {
    /// The right to make a file, which no other process has meanwhile.
    File {
        /// The locked file, which is at `part`.
        file: File,
        /// The index until it is complete.
        part: PathBuf,
        /// The index.
        path: PathBuf,
    },
    /// The right to create an object with this key.
    Object(&'a Client, String),
}

impl KeptIndexes {
    /// Opens the folder, which is created if it is not there, or the prefix of a store. `source` and `identity`: hashes
    /// of the source, and of its shards, whose pack is read.
    ///
    /// # Errors
    /// Errors of the file system or of the store.
    pub fn open(
        place: &Path,
        (source, identity): (u64, u128),
        options: &PlaceOptions,
    ) -> Result<KeptIndexes> {
        if !Place::is_place(place) {
            fs::create_dir_all(place).map_err(|error| Error::from(error).path(place))?;
            return Ok(KeptIndexes::Folder(place.to_path_buf()));
        }
        let place = Place::of_path(place)?;
        let client = Client::open(&place, options)?;
        let prefix = match place.key() {
            "" => String::new(),
            key => format!("{}/", key.trim_end_matches('/')),
        };
        let packs = Packs::new(&prefix, source, identity);
        let pack = packs.load(&client)?;
        Ok(KeptIndexes::Store(KeptObjects {
            client,
            prefix,
            listed: Mutex::default(),
            packs,
            pack,
        }))
    }

    /// The index with this key; `None` if there is none, or only a damaged one, which is then made again.
    ///
    /// # Errors
    /// Errors of the file system or of the store.
    pub fn load(&self, key: u128) -> Result<Option<ShardIndex>> {
        let name = name_of(key);
        if let KeptIndexes::Store(store) = self
            && let Some(Ok(index)) = store.pack.get(key).map(ShardIndex::decode)
        {
            return Ok(Some(index));
        }
        let bytes = match self {
            KeptIndexes::Folder(folder) => match fs::read(folder.join(&name)) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(Error::from(error).path(folder.join(name))),
            },
            KeptIndexes::Store(store) => match store.read(&name)? {
                Some(bytes) => bytes,
                None => return Ok(None),
            },
        };
        match ShardIndex::decode(&bytes) {
            Ok(index) => Ok(Some(index)),
            Err(error) => {
                tracing::warn!("the index {name} is made again: {error}");
                Ok(None)
            }
        }
    }

    /// Begins to make the index with this key. `None`: another process is making it.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn begin(&self, key: u128) -> Result<Option<Making<'_>>> {
        let folder = match self {
            KeptIndexes::Folder(folder) => folder,
            KeptIndexes::Store(KeptObjects { client, prefix, .. }) => {
                return Ok(Some(Making::Object(client, format!("{prefix}{}", name_of(key)))));
            }
        };
        let path = folder.join(name_of(key));
        let part = path.with_extension("part");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&part);
        let file = file.map_err(|error| Error::from(error).path(&part))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            // Without locks, two processes may make an index: the same one.
            Ok(()) | Err(_) => Ok(Some(Making::File { file, part, path })),
        }
    }

    /// The indexes with these keys, many at a time; `None`: there is none, or only a damaged one.
    ///
    /// # Errors
    /// As [`load`](Self::load) and [`there`](Self::there).
    pub fn load_all(&self, keys: &[u128]) -> Result<Vec<Option<ShardIndex>>> {
        let there: Vec<(u128, bool)> = keys.iter().copied().zip(self.there(keys)?).collect();
        map_at_once(
            "dlfs-index",
            &there,
            |&(key, is_there)| {
                if is_there { self.load(key) } else { Ok(None) }
            },
        )
    }

    /// Returns for each of `keys` whether there is an index, by names alone: it may be damaged.
    ///
    /// # Errors
    /// Errors of listing the folder, or of the store.
    pub fn there(&self, keys: &[u128]) -> Result<Vec<bool>> {
        let mut names = HashSet::new();
        let is_packed = |key| matches!(self, KeptIndexes::Store(store) if store.pack.has(key));
        match self {
            KeptIndexes::Folder(folder) => {
                for entry in fs::read_dir(folder)? {
                    names.insert(entry?.file_name().to_string_lossy().into_owned());
                }
            }
            KeptIndexes::Store(_) if keys.iter().all(|key| is_packed(*key)) => {}
            KeptIndexes::Store(store) => {
                store.list()?;
                let listed = store.listed.lock();
                names.extend(listed.keys().map(|key| key[store.prefix.len()..].to_owned()));
            }
        }
        Ok(keys.iter().map(|key| is_packed(*key) || names.contains(&name_of(*key))).collect())
    }

    /// Keeps all indexes of the shards together as well, if they are in a store.
    pub(crate) fn pack(&self, keys: &[u128], all: &[ShardIndex]) {
        let KeptIndexes::Store(store) = self else { return };
        if keys.iter().all(|key| store.pack.has(*key)) {
            return;
        }
        if let Err(error) = store.packs.keep(&store.client, keys, all) {
            tracing::warn!("the indexes are not packed, and later openings take longer: {error}");
        }
    }
}

impl KeptObjects {
    fn list(&self) -> Result<()> {
        let mut listed = HashMap::new();
        self.client.list(&self.prefix, &mut |object| {
            listed.insert(object.key.clone(), object);
            Ok(())
        })?;
        *self.listed.lock() = listed;
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let key = format!("{}{name}", self.prefix);
        let listed = self.listed.lock().get(&key).cloned();
        let object = match listed {
            Some(object) => object,
            None => match self.client.head(&key) {
                Ok(object) => object,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let mut bytes = zeroed_vec(object.len_bytes)?;
        self.client.fetch(&object, 0..object.len_bytes).read_into(&mut bytes)?;
        Ok(Some(bytes))
    }
}

impl Making<'_> {
    /// Keeps the index: it appears whole or not at all.
    ///
    /// # Errors
    /// Errors of the file system or of the store.
    pub fn end(self, index: &ShardIndex) -> Result<()> {
        let (mut file, part, path) = match self {
            Making::File { file, part, path } => (file, part, path),
            Making::Object(client, key) => {
                // Another process may have created it: the same one.
                return client.create(&key, index.encode()).map(drop);
            }
        };
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(&index.encode()))
            .and_then(|()| file.sync_data())
            .and_then(|()| fs::rename(&part, &path));
        written.map_err(|error| Error::from(error).path(path))
    }

    /// Gives the right back, since there is an index already.
    pub(crate) fn give_back(self) {
        if let Making::File { part, .. } = &self {
            let _ = fs::remove_file(part); // another process may have removed it
        }
    }
}

fn name_of(key: u128) -> String {
    format!("{key:032x}.index")
}

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
