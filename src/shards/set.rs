//! The shards of a source.

use std::path::PathBuf;

use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldTypes;
use dlfs_import::import::shards::{Shard, Shards};
use dlfs_import::import::{ImportOptions, Progress};
use dlfs_io::address::Address;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::index::ShardIndex;
use crate::kept::KeptIndexes;

/// Options to read shards as they are.
#[derive(Debug, Clone, Default)]
pub struct ShardOptions {
    /// The folder, or the prefix of a store, that keeps indexes; `None`: nothing is kept.
    pub index: Option<PathBuf>,
    /// The image that the first epoch writes, and later ones read: a namespace for each rank. Empty: none.
    pub import_to: Vec<Address>,
    /// The options with which an import would take the source: kind, columns of rows, types of fields, bad entries.
    pub import: ImportOptions,
}

/// The shards of a source, in the order of an import. Threads share it.
pub struct ShardSet {
    pub(crate) shards: Shards,
    pub(crate) options: ImportOptions,
    pub(crate) kept: Option<KeptIndexes>,
    address: String,
    keys: Vec<u128>,
}

impl ShardSet {
    /// Lists the shards of `sources`, and finds their kind and fields as an import does. This reads what defines them:
    /// the first sample of WebDataset shards, unless an index is kept; of rows the columns of each file.
    ///
    /// # Errors
    /// `BadSource`: the source has no shards, or shards of several kinds. Errors of reading it, and of the folder of
    /// indexes.
    pub fn open(
        sources: &[PathBuf],
        options: &ShardOptions,
        progress: &mut dyn Progress,
    ) -> Result<ShardSet> {
        let ShardOptions { index, import, .. } = options;
        let mut import = import.clone();
        // Several shards are read at a time, each with a window of its own.
        import.places.window_bytes = import.places.window_bytes.min(WINDOW_BYTES);
        let shards = Shards::look(sources, &import, progress)?;
        let context = shards.fingerprint();
        let keys = shards.shards().iter().map(|shard| key(shard, context)).collect();
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

    /// The address or path that the user gave.
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

    /// The identity of the data set: a hash of all shards, in order, and of what defines their samples.
    pub fn identity(&self) -> u128 {
        let mut hash = Xxh3::new();
        self.keys.iter().for_each(|key| hash.update(&key.to_le_bytes()));
        hash.digest128()
    }

    /// The key of a shard's index: a hash of its address, length and stamp, and of what defines its samples.
    pub fn key_of(&self, shard: usize) -> u128 {
        self.keys[shard]
    }

    /// The kept index of a shard, if there is one.
    ///
    /// # Errors
    /// Errors of reading it; a damaged one does not count.
    pub fn kept_index(&self, shard: usize) -> Result<Option<ShardIndex>> {
        match &self.kept {
            Some(kept) => kept.load(self.keys[shard]),
            None => Ok(None),
        }
    }

    /// The kept indexes of all shards; `None`: there is none.
    ///
    /// # Errors
    /// Errors of reading them; a damaged one does not count.
    pub fn kept_indexes(&self) -> Result<Vec<Option<ShardIndex>>> {
        match &self.kept {
            Some(kept) => kept.load_all(&self.keys),
            None => Ok(vec![None; self.keys.len()]),
        }
    }

    /// Keeps the indexes of all shards together, too, where that makes opening them faster.
    pub(crate) fn pack(&self, all: &[ShardIndex]) {
        if let Some(kept) = &self.kept {
            kept.pack(&self.keys, all);
        }
    }

    /// Number of the shards of which no index is kept. Looks at names only.
    ///
    /// # Errors
    /// Errors of listing the indexes.
    pub fn missing(&self) -> Result<usize> {
        let Some(kept) = &self.kept else { return Ok(self.keys.len()) };
        Ok(kept.there(&self.keys)?.into_iter().filter(|is_there| !is_there).count())
    }

    /// Keeps the index of a shard, unless another process does so.
    ///
    /// # Errors
    /// Errors of the folder.
    pub fn keep(&self, shard: usize, index: &ShardIndex) -> Result<()> {
        let making = self.kept.as_ref().map(|kept| kept.begin(self.keys[shard])).transpose()?;
        making.flatten().map_or(Ok(()), |making| making.end(index))
    }

    /// The error for a shard that is no longer what its index says.
    pub(crate) fn changed(&self, shard: usize) -> Error {
        let text = "the shard has changed since it was indexed";
        Error::new(ErrorKind::BadSource, text).path(&self.shards()[shard].path)
    }
}

fn key(shard: &Shard, context: u64) -> u128 {
    let mut hash = Xxh3::new();
    let Shard { path, len_bytes, stamp, .. } = shard;
    hash.update(path.as_os_str().as_encoded_bytes());
    [*len_bytes, *stamp, context].iter().for_each(|number| hash.update(&number.to_le_bytes()));
    hash.digest128()
}

/// Enough ranges in flight for one of several readers.
const WINDOW_BYTES: u64 = 32 << 20;
