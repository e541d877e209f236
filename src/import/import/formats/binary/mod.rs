//! Rows of binary files: Parquet, Arrow, and the shards of MDS and LitData, which an index names.

mod ahead;
mod arrays;
mod blocks;
mod hashes;
mod ipc;
mod items;
mod leaf_form;
mod litdata;
mod mds;
mod page_file;
mod page_headers;
mod panics;
mod parquet;
mod stated_buffers;

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::column::Column;
use super::input::Input;
use super::{Open, RowFile};
use crate::import::options::RowOptions;
use crate::import::sources::SourceKind;
use dlfs_base::Result;
use hashes::Stated;
use items::{ItemFormat, ItemRows, Table};

/// The file `input`, whose rows' names begin with `stem`. If it is an index, called `stem`: the shards that it names,
/// which are recorded as origins.
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
        SourceKind::Mds => return mds::mds(&input, &stem, options),
        SourceKind::LitData => return litdata::litdata(&input, &stem, options),
        _ => Arc::new(|input, options, _| ipc::open(input, options)),
    };
    Ok(vec![RowFile { input, stem, open }])
}

/// The shard `name` of the index called `index`. Its rows are named as if the user had named the shard.
fn shard_file(
    index: &[u8],
    name: &str,
    input: Input,
    format: Arc<ItemFormat>,
    stated: Stated,
) -> RowFile {
    input.record();
    let folder = index.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let stem = [&index[..folder], name.as_bytes()].concat();
    let table = Table::default();
    let open = move |input: &Input, _: &RowOptions, known: Option<&[Column]>| {
        // If only the columns are wanted, request nothing ahead from a store.
        let ahead_bytes = known.is_none().then_some(0);
        ItemRows::open(input, format.clone(), stated.clone(), &table, ahead_bytes)
    };
    RowFile { input, stem, open: Arc::new(open) }
}

/// Reads the index `index`, of `what`.
///
/// # Errors
/// `BadSource`: it is no such index. Errors of reading.
fn parse_index<T: DeserializeOwned>(index: &Input, what: &str) -> Result<T> {
    serde_json::from_slice(&index.read_index()?)
        .map_err(|error| index.bad(format!("this is no index of {what}: {error}")))
}
