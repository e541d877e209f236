//! Rows of binary files: Parquet, Arrow, and the shards of MDS and LitData.

mod ahead;
mod blocks;
mod hashes;
mod indexes;
mod ipc;
mod items;
mod parquet;
mod stated;

use std::sync::Arc;

use self::indexes::Shard;
use self::items::{ItemRows, Table};
use super::input::Input;
use super::{Column, Open, RowFile};
use crate::import::options::RowOptions;
use crate::import::sources::SourceKind;
use dlfs_base::Result;

/// The file `input`, whose rows' names begin with `stem`, or the shards that it names, which it records
/// as origins.
pub(super) fn files(
    input: Input,
    stem: Vec<u8>,
    kind: SourceKind,
    options: &RowOptions,
) -> Result<Vec<RowFile>> {
    let open: Arc<Open> = match kind {
        SourceKind::Parquet => {
            let footer = parquet::Footer::default();
            Arc::new(move |input, options, _| parquet::open(input, options, &footer))
        }
        SourceKind::Mds => return Ok(shards(indexes::mds(&input, options)?, &stem)),
        SourceKind::LitData => {
            return Ok(shards(indexes::litdata(&input, options)?, &stem));
        }
        _ => Arc::new(|input, options, _| ipc::open(input, options)),
    };
    Ok(vec![RowFile { input, stem, open }])
}

/// The shards of the index called `index`. Their rows are named as if they had been given themselves.
fn shards(shards: Vec<Shard>, index: &[u8]) -> Vec<RowFile> {
    let folder = index.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let file = |Shard { name, input, format, stated }: Shard| {
        input.record();
        let stem = [&index[..folder], name.as_bytes()].concat();
        let table = Table::default();
        let open = move |input: &Input, _: &RowOptions, known: Option<&[Column]>| {
            // If only the columns are wanted, request nothing ahead from a store.
            let ahead_bytes = known.is_none().then_some(0);
            ItemRows::open(input, format.clone(), stated.clone(), &table, ahead_bytes)
        };
        RowFile { input, stem, open: Arc::new(open) }
    };
    shards.into_iter().map(file).collect()
}
