//! Rows of binary files: Parquet, Arrow, and the shards of MDS and LitData.

mod ahead;
mod arrow_cells;
mod blocks;
mod hashes;
mod ipc;
mod items;
mod litdata;
mod mds;
mod parquet;
mod stated;

use std::sync::Arc;

use self::hashes::Stated;
use self::items::{ItemFormat, ItemRows, Table};
use super::input::{InStore, Input};
use super::{Given, RowFile, SharedOrigins};
use crate::import::options::RowOptions;
use crate::import::sources::SourceKind;
use crate::import::sources::objects::push_origin;
use dlfs_base::Result;

/// The file `given`, or the shards that it names. Adds shards that are objects to `origins`.
pub(super) fn files(
    given: Given,
    kind: SourceKind,
    options: &RowOptions,
    origins: &SharedOrigins,
) -> Result<Vec<RowFile>> {
    let shards = match kind {
        SourceKind::Mds => mds::shards(&given, options)?,
        SourceKind::LitData => litdata::shards(&given, options)?,
        SourceKind::Parquet => {
            let footer = parquet::Footer::default();
            return Ok(vec![given.opened_by(Arc::new(move |input, options, _| {
                parquet::open(input, options, &footer)
            }))]);
        }
        _ => {
            return Ok(vec![
                given.opened_by(Arc::new(|input, options, _| ipc::open(input, options))),
            ]);
        }
    };
    for InStore { client, object, .. } in shards.iter().filter_map(|it| it.input.object.as_ref()) {
        push_origin(&mut origins.lock(), client, object);
    }
    Ok(shards)
}

/// The shard `input`, which the index `given` calls `name`. Its rows are named as if it had been given itself.
fn shard(
    given: &Given,
    (name, input): (String, Input),
    format: Arc<ItemFormat>,
    stated: Stated,
) -> RowFile {
    let folder = given.name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let name = [&given.name[..folder], name.as_bytes()].concat();
    let table = Table::default();
    Given { input, name }.opened_by(Arc::new(move |input, _, known| {
        // If only the columns are wanted, request nothing ahead from a store.
        let ahead_bytes = known.is_none().then_some(0);
        ItemRows::open(input, format.clone(), stated.clone(), &table, ahead_bytes)
    }))
}
