//! The shards of a source, which most files of this crate share, and their kept indexes.
//!
//! Read `reader.rs` next, which decodes one shard, then `indexing.rs`, which indexes all of them.

use std::path::PathBuf;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::index::ShardIndex;
use crate::kept::KeptIndexes;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldTypes;
use dlfs_import::import::shards::{Shard, Shards};
use dlfs_import::import::sources::SourceKind;
use dlfs_import::import::{ImportOptions, Progress};
use dlfs_io::address::Address;

/// Options to read shards as they are.
#[derive(Debug, Clone, Default)]
pub struct ShardOptions {
    /// The folder, or the prefix of a store, that keeps indexes; `None`: indexes are not kept.
    pub index: Option<PathBuf>,
    /// The image that the first epoch writes and later epochs read: a namespace for each rank. Empty: no image.
    pub import_to: Vec<Address>,
    /// Options of an import that apply here, too, such as kind, columns of rows, types of fields, bad entries.
    pub import: ImportOptions,
}

/// The shards of a source, in the order of an import. Threads share it.
pub struct ShardSet {
    pub(crate) shards: Shards,
    /// The caller's options; the window of a store is at most [`WINDOW_BYTES`].
    pub(crate) options: ImportOptions,
    /// The kept indexes; `None`: indexes are not kept.
    pub(crate) kept: Option<KeptIndexes>,
    /// The addresses or paths of the sources, separated by commas, without secrets.
    address: String,
    /// The key of each shard's index, in the order of the shards: see [`ShardSet::key_of`].
    pub(crate) keys: Vec<u128>,
}

impl ShardSet {
    /// Lists the shards of `sources`, and finds their kind and fields as an import does. For WebDataset shards, and
    /// where types of fields are given, opening reads the first sample to find the fields, unless the index of the
    /// first shard is kept. Of rows, it reads the columns of each file.
    ///
    /// # Errors
    /// `BadSource`: the source has no shards, or shards of several kinds. `Unsupported`: a shard is a pipe, or the
    /// options need an import. Errors of reading the source and the kept indexes.
    pub fn open(
        sources: &[PathBuf],
        options: &ShardOptions,
        progress: &mut dyn Progress,
    ) -> Result<ShardSet> {
        let ShardOptions { index, import, .. } = options;
        let mut import = import.clone();
        // Several shards are read at a time, each with its own window.
        import.places.window_bytes = import.places.window_bytes.min(WINDOW_BYTES);
        let shards = Shards::look(sources, &import, progress)?;
        let fingerprint = shards.fingerprint();
        let keys = shards.shards().iter().map(|shard| key(shard, fingerprint)).collect();
        let shown: Vec<String> = sources.iter().map(|path| dlfs_places::shown(path)).collect();
        let address = shown.join(",");
        let mut set = ShardSet { shards, options: import, kept: None, address, keys };
        if let Some(place) = index {
            let hashes = (xxh3_64(set.address.as_bytes()), set.identity());
            set.kept = Some(KeptIndexes::open(place, hashes, &set.options.places)?);
        }
        if set.shards.is_of_first()
            && let Some(first) = set.kept_index(0)?
        {
            set.shards.set_layout(first.fields, first.types);
        }
        set.shards.layout()?;
        Ok(set)
    }

    /// The shards.
    pub fn shards(&self) -> &[Shard] {
        self.shards.shards()
    }

    /// Returns whether shards store column after column (Parquet, Arrow), so that the values of a row lie apart.
    pub fn has_columns(&self) -> bool {
        matches!(self.shards.kind(), SourceKind::Parquet | SourceKind::Arrow)
    }

    /// The addresses or paths of the sources, separated by commas, without secrets.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Names of the fields of all samples; empty for one unnamed field.
    pub fn fields(&self) -> Result<&[Vec<u8>]> {
        Ok(&self.shards.layout()?.0)
    }

    /// The types of the fields.
    pub fn field_types(&self) -> Result<&FieldTypes> {
        Ok(&self.shards.layout()?.1)
    }

    /// The identity of the data set: a hash of the keys of all shards, in order.
    pub fn identity(&self) -> u128 {
        let mut hash = Xxh3::new();
        self.keys.iter().for_each(|key| hash.update(&key.to_le_bytes()));
        hash.digest128()
    }

    /// The key of a shard's index: a hash of the shard's path or address, length and stamp, and of the set's
    /// [fingerprint](Shards::fingerprint).
    pub fn key_of(&self, shard: usize) -> u128 {
        self.keys[shard]
    }

    /// The kept index of a shard; `None`: no index is kept, or only a damaged one.
    ///
    /// # Errors
    /// Errors of the folder or store of indexes.
    pub fn kept_index(&self, shard: usize) -> Result<Option<ShardIndex>> {
        match &self.kept {
            Some(kept) => kept.load(self.keys[shard]),
            None => Ok(None),
        }
    }

    /// The kept index of each shard, in the order of the shards; `None` as for [`kept_index`](Self::kept_index).
    ///
    /// # Errors
    /// Errors of the folder or store of indexes.
    pub fn kept_indexes(&self) -> Result<Vec<Option<ShardIndex>>> {
        match &self.kept {
            Some(kept) => kept.load_all(&self.keys),
            None => Ok(vec![None; self.keys.len()]),
        }
    }

    /// Number of the shards of which no index is kept. Compares names only: a damaged index counts as kept.
    ///
    /// # Errors
    /// Errors of listing the indexes.
    pub fn missing(&self) -> Result<usize> {
        let Some(kept) = &self.kept else { return Ok(self.keys.len()) };
        Ok(kept.there(&self.keys)?.into_iter().filter(|is_kept| !is_kept).count())
    }

    /// Keeps the index of a shard, unless indexes are not kept or another process is making this one.
    ///
    /// # Errors
    /// Errors of the folder or store of indexes.
    pub fn keep(&self, shard: usize, index: &ShardIndex) -> Result<()> {
        let making = self.kept.as_ref().map(|kept| kept.begin(self.keys[shard])).transpose()?;
        making.flatten().map_or(Ok(()), |making| making.end(index))
    }

    /// The error for a shard whose samples differ from its index.
    pub(crate) fn changed(&self, shard: usize) -> Error {
        let text = "the shard has changed since it was indexed";
        Error::new(ErrorKind::BadSource, text).path(&self.shards()[shard].path)
    }
}

/// See [`ShardSet::key_of`].
fn key(shard: &Shard, fingerprint: u64) -> u128 {
    let mut hash = Xxh3::new();
    let Shard { path, len_bytes, stamp, .. } = shard;
    hash.update(path.as_os_str().as_encoded_bytes());
    [*len_bytes, *stamp, fingerprint].iter().for_each(|number| hash.update(&number.to_le_bytes()));
    hash.digest128()
}

/// Enough for several ranges in flight, and small enough for several readers at once.
const WINDOW_BYTES: u64 = 32 << 20;
