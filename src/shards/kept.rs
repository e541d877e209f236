//! Kept indexes of shards: files of a folder, or objects of a store, which the processes of a job share.
//!
//! One process makes each index. In a folder, it holds a file lock meanwhile. A store has no locks: processes begin at
//! different shards, and if two make the same index nevertheless, the first object created stays. Nor have some file
//! systems: there, each process writes a file of its own, and the last one that is complete stays.
//!
//! A store also has *packs*: the indexes of all shards of a source in one object, so that one request loads them. Each
//! packed index is kept in a separate object, too, so a pack that is damaged, or made of other shards, only costs
//! requests.
//!
//! | bytes | field   | meaning                                                                         |
//! |-------|---------|---------------------------------------------------------------------------------|
//! | 0..8  | magic   | `DLFSSHPK`                                                                      |
//! | ..    | indexes | for each: its key (16 bytes, little-endian), its length (LEB128), and its bytes |

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::index::ShardIndex;
use dlfs_base::error::zeroed_vec;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::cursor::{Cursor, put_string};
use dlfs_places::{Client, Object, Place, PlaceOptions};

/// Kept indexes, each in a file or object named after its key (`ShardSet::key_of`).
#[derive(Debug)]
pub enum KeptIndexes {
    /// Files in this folder.
    Folder(PathBuf),
    /// Objects of a store.
    Store(KeptObjects),
}

/// Kept indexes in a store.
#[derive(Debug)]
pub struct KeptObjects {
    client: Client,
    /// The prefix of the objects' keys: empty, or with a slash at its end.
    prefix: String,
    /// The objects found by the last listing, by key; `there` lists anew.
    listed: Mutex<HashMap<String, Object>>,
    /// The prefix of the keys of the source's packs, with a slash at its end: one pack for each state of the shards.
    packs_prefix: String,
    /// The key of the pack of the present shards.
    pack_key: String,
    /// The pack that was loaded on opening; empty if there was none that can be used.
    pack: Pack,
}

/// The right to make an index. It ends when this value is dropped, or with the process.
#[derive(Debug)]
pub enum Making<'a> {
    /// The right to make a file: exclusive, unless the file system has no locks.
    File {
        /// The file at `part`; this process holds its lock, or no other process knows it.
        file: File,
        /// Path of the index while it is incomplete.
        part: PathBuf,
        /// Path of the complete index.
        path: PathBuf,
    },
    /// The right to create an object with this key, which other processes may have, too.
    Object(&'a Client, String),
}

impl KeptIndexes {
    /// Opens a folder, which is created if it does not exist, or a prefix of a store, whose pack is loaded. `source`: a
    /// hash of the source's address; `identity`: a hash of its shards.
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
        let packs_prefix = format!("{prefix}packs/{source:016x}/");
        let pack_key = format!("{packs_prefix}{identity:032x}");
        let pack = Pack::default();
        let listed = Mutex::default();
        let mut store = KeptObjects { client, prefix, listed, packs_prefix, pack_key, pack };
        store.pack = store.load_pack()?;
        Ok(KeptIndexes::Store(store))
    }

    /// The index with this key. `None`: there is none, or it is damaged or of another version; the caller makes it
    /// again.
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
                Ok(bytes) => Some(bytes),
                Err(error) if error.kind() == IoErrorKind::NotFound => None,
                Err(error) => return Err(Error::from(error).path(folder.join(name))),
            },
            KeptIndexes::Store(store) => store.read(&name)?,
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let warn = |error: &Error| tracing::warn!("the index {name} is made again: {error}");
        Ok(ShardIndex::decode(&bytes).inspect_err(warn).ok())
    }

    /// The right to make the index with this key; `None`: another process has it, or had it a moment ago.
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
        let named = |error: io::Error| Error::from(error).path(&part);
        let file = file.map_err(named)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            // Between opening and locking it, another process has renamed or removed the file.
            Ok(()) if !is_at(&file, &part).map_err(named)? => Ok(None),
            Ok(()) => Ok(Some(Making::File { file, part, path })),
            // On a file system without locks, two processes may make the same index.
            Err(_) => {
                let _ = fs::remove_file(&part); // nobody writes it; another process may have removed it
                Making::without_lock(path).map(Some)
            }
        }
    }

    /// The index of each of `keys`, loaded concurrently; `None` as for [`load`](Self::load).
    ///
    /// # Errors
    /// As [`load`](Self::load) and [`there`](Self::there).
    pub fn load_all(&self, keys: &[u128]) -> Result<Vec<Option<ShardIndex>>> {
        let there: Vec<(u128, bool)> = keys.iter().copied().zip(self.there(keys)?).collect();
        let load =
            |&(key, is_there): &(u128, bool)| if is_there { self.load(key) } else { Ok(None) };
        map_at_once("dlfs-index", &there, load)
    }

    /// Returns for each of `keys` whether an index has its name. The index may be damaged.
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
                let listed = list(&store.client, &store.prefix)?;
                let name = |object: &Object| object.key[store.prefix.len()..].to_owned();
                names.extend(listed.iter().map(name));
                let by_key = listed.into_iter().map(|object| (object.key.clone(), object));
                *store.listed.lock() = by_key.collect();
            }
        }
        Ok(keys.iter().map(|key| is_packed(*key) || names.contains(&name_of(*key))).collect())
    }

    /// Creates a pack of all indexes, if they are kept in a store and the loaded pack lacks some. `keys` and `all` are
    /// in the order of the shards. Failures are logged: without the pack, later openings send more requests.
    pub(crate) fn pack(&self, keys: &[u128], all: &[ShardIndex]) {
        let KeptIndexes::Store(store) = self else { return };
        if keys.iter().all(|key| store.pack.has(*key)) {
            return;
        }
        if let Err(error) = store.create_pack(keys, all) {
            tracing::warn!("the indexes are not packed, and later openings take longer: {error}");
        }
    }
}

impl KeptObjects {
    /// The bytes of the object called `name`; `None`: there is none.
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
        fetch_whole(&self.client, &object).map(Some)
    }

    /// The pack of the present shards, or else the longest pack of the source, which may lack some of them. A pack that
    /// is damaged, or longer than any that this version creates, counts as empty.
    fn load_pack(&self) -> Result<Pack> {
        let is_right = |object: &Object| object.len_bytes <= MOST_PACK_BYTES as u64;
        let packs = list(&self.client, &self.packs_prefix)?;
        let (right, long): (Vec<_>, Vec<_>) = packs.into_iter().partition(is_right);
        if let Some(Object { key, len_bytes, .. }) = long.first() {
            tracing::warn!(
                "the pack {key} is not used: it has {len_bytes} bytes, more than {MOST_PACK_BYTES}"
            );
        }
        let rank = |object: &Object| (object.key == self.pack_key, object.len_bytes);
        let Some(object) = right.into_iter().max_by_key(rank) else { return Ok(Pack::default()) };
        Pack::of(fetch_whole(&self.client, &object)?).or_else(|error| {
            tracing::warn!("the pack {} is not used: {error}", object.key);
            Ok(Pack::default())
        })
    }

    /// Creates the pack of the present shards, unless it exists or would have more than [`MOST_PACK_BYTES`].
    fn create_pack(&self, keys: &[u128], all: &[ShardIndex]) -> Result<()> {
        let packs = list(&self.client, &self.packs_prefix)?;
        if packs.iter().any(|object| object.key == self.pack_key) {
            return Ok(());
        }
        let mut bytes = MAGIC.to_vec();
        for (key, index) in keys.iter().zip(all) {
            bytes.extend(key.to_le_bytes());
            put_string(&mut bytes, &index.encode());
            if bytes.len() > MOST_PACK_BYTES {
                return Ok(());
            }
        }
        self.client.create(&self.pack_key, bytes).map(drop)
    }
}

impl Making<'_> {
    /// The right to make the index at `path` in a file of another name than all other processes have.
    fn without_lock(path: PathBuf) -> Result<Making<'static>> {
        let part = path.with_extension(format!("{:016x}.part", random::number()?));
        let file = OpenOptions::new().write(true).create_new(true).open(&part);
        let file = file.map_err(|error| Error::from(error).path(&part))?;
        Ok(Making::File { file, part, path })
    }

    /// Keeps the index, whole or not at all.
    ///
    /// # Errors
    /// Errors of the file system or of the store.
    pub fn end(self, index: &ShardIndex) -> Result<()> {
        let (mut file, part, path) = match self {
            Making::File { file, part, path } => (file, part, path),
            Making::Object(client, key) => {
                // Another process may have created the same index.
                return client.create(&key, index.encode()).map(drop);
            }
        };
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(&index.encode()))
            .and_then(|()| file.sync_data())
            .and_then(|()| fs::rename(&part, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&part); // the error counts
            Error::from(error).path(path)
        })
    }

    /// Gives up the right, because another process has kept the index.
    pub(crate) fn give_back(self) {
        if let Making::File { part, .. } = &self {
            let _ = fs::remove_file(part); // another process may have removed it
        }
    }
}

/// A pack in memory.
#[derive(Debug, Default)]
struct Pack {
    /// The whole object.
    bytes: Vec<u8>,
    /// The byte range of each index in `bytes`, by its key.
    ranges: HashMap<u128, Range<usize>>,
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
    fn has(&self, key: u128) -> bool {
        self.ranges.contains_key(&key)
    }

    /// The bytes of the index with this key.
    fn get(&self, key: u128) -> Option<&[u8]> {
        self.ranges.get(&key).map(|range| &self.bytes[range.clone()])
    }
}

/// Returns whether `path` names the open `file`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = match file.metadata() {
        // Another host has removed the file from a network file system.
        Err(error) if error.kind() == IoErrorKind::StaleNetworkFileHandle => return Ok(false),
        open => open?,
    };
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name of the file or object of the index with this key.
fn name_of(key: u128) -> String {
    format!("{key:032x}.index")
}

/// All objects whose keys begin with `prefix`.
fn list(client: &Client, prefix: &str) -> Result<Vec<Object>> {
    let mut found = Vec::new();
    client.list(prefix, &mut |object| {
        found.push(object);
        Ok(())
    })?;
    Ok(found)
}

/// The bytes of an object.
fn fetch_whole(client: &Client, object: &Object) -> Result<Vec<u8>> {
    let mut bytes = zeroed_vec(object.len_bytes)?;
    client.fetch(object, 0..object.len_bytes).read_into(&mut bytes)?;
    Ok(bytes)
}

const MAGIC: &[u8; 8] = b"DLFSSHPK";
/// Maximum length of a pack: loading a longer one would take long, and its indexes are so long that a request for each
/// costs little beside its bytes.
const MOST_PACK_BYTES: usize = 64 << 20;

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

    #[test]
    fn processes_that_make_an_index_in_turn_never_write_to_a_complete_one() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptIndexes::Folder(folder.path().to_path_buf());
        let make = || {
            for _ in 0..300 {
                let Some(making) = kept.begin(7).unwrap() else {
                    std::thread::yield_now();
                    continue;
                };
                making.end(&ShardIndex::default()).unwrap();
                assert_eq!(kept.load(7).unwrap(), Some(ShardIndex::default()));
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(make))));
    }

    #[test]
    fn processes_without_locks_may_make_the_same_index() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptIndexes::Folder(folder.path().to_path_buf());
        let path = folder.path().join(name_of(7));
        let [first, second] = [0, 1].map(|_| Making::without_lock(path.clone()).unwrap());
        for making in [first, second] {
            making.end(&ShardIndex::default()).unwrap();
            assert_eq!(kept.load(7).unwrap(), Some(ShardIndex::default()));
        }
        Making::without_lock(path).unwrap().give_back();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the index alone");
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Pack::of([&MAGIC[..], &bytes].concat()); // an error, or some indexes
        }
    }
}
