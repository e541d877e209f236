//! Opens shards as an image without an import: their indexes become the directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::import::{Progress, Stage};
use crate::qpair::{ConnectOptions, Device};
use crate::shards::{ShardImage, ShardOptions, ShardSet, assemble};

use super::background::is_abandoned;
use super::{Image, folder};

/// Makes an image of the shards at `addresses`. Makes the indexes that are not kept.
///
/// # Errors
/// `InvalidArgument`: an address is neither a path nor a store. Errors of [`ShardSet::open`], [`ShardSet::index`] and
/// [`assemble`].
pub(super) fn image_of(
    addresses: &[Address],
    options: &ShardOptions,
    connect: &ConnectOptions,
) -> Result<Image> {
    let progress = &mut Logged { last: Instant::now(), samples: 0 };
    image_of_set(&Arc::new(shard_set(addresses, options, connect, progress)?))
}

/// As [`image_of`], of shards that are listed already.
pub(super) fn image_of_set(set: &Arc<ShardSet>) -> Result<Image> {
    let progress = &mut Logged { last: Instant::now(), samples: 0 };
    let indexes = set.index(progress)?.indexes;
    let ShardImage { directory, namespace } = assemble(set, indexes)?;
    Ok(folder::image_with(namespace as Arc<dyn Device>, directory))
}

/// Progress of indexing, in the log: an opening may read all shards.
struct Logged {
    last: Instant,
    samples: u64,
}

impl Progress for Logged {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {
        self.samples = 0;
    }

    fn advance(&mut self, samples: u64, _: u64) {
        self.samples += samples;
        if self.last.elapsed() >= LOG_INTERVAL {
            self.last = Instant::now();
            tracing::warn!(
                "indexing shards: {} samples so far; `dlfs index` does it beforehand",
                self.samples
            );
        }
    }

    /// Indexing may take hours, so it ends when nobody waits for the image any more.
    fn stop(&mut self) -> bool {
        is_abandoned()
    }
}

/// Lists the shards at `addresses`, which are reached as `connect` says.
///
/// # Errors
/// `InvalidArgument`: an address is neither a path nor a store. Errors of [`ShardSet::open`].
pub fn shard_set(
    addresses: &[Address],
    options: &ShardOptions,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<ShardSet> {
    let source = |address: &Address| match address {
        Address::Path(path) => Ok(path.clone()),
        Address::Objects(place) => Ok(PathBuf::from(place)),
        other => {
            let text = "shards are files, or objects of a store";
            Err(Error::new(ErrorKind::InvalidArgument, text).target(other.to_string()))
        }
    };
    let sources = addresses.iter().map(source).collect::<Result<Vec<_>>>()?;
    let mut options = options.clone();
    options.import.places = connect.places.clone();
    options.import.folders = connect.folders;
    ShardSet::open(&sources, &options, progress)
}

/// Time between two lines of the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
