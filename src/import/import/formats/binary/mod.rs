//! Rows of binary files: Parquet, Arrow, and the shards of MDS and LitData.

mod ahead;
mod arrays;
mod blocks;
mod hashes;
mod indexes;
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

use super::input::Input;
use super::{Open, RowFile};
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
        SourceKind::Mds => return mds::mds(&input, &stem, options),
        SourceKind::LitData => return litdata::litdata(&input, &stem, options),
        _ => Arc::new(|input, options, _| ipc::open(input, options)),
    };
    Ok(vec![RowFile { input, stem, open }])
}
