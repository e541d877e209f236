//! Indexes of data sets whose shards have tables of items, in common: see `mds.rs` and `litdata.rs`.

use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::hashes::Stated;
use super::items::{ItemFormat, ItemRows, Table};
use super::leaf_form::LeafForm;
use crate::import::formats::RowFile;
use crate::import::formats::column::{CellKind, Column};
use crate::import::formats::input::Input;
use crate::import::options::RowOptions;
use dlfs_base::Result;
use dlfs_format::format::field_type::FieldType;

/// The shard `name` of the index called `index`. Its rows are named as if it had been given itself.
pub(super) fn row_file(
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
pub(super) fn read<T: DeserializeOwned>(index: &Input, what: &str) -> Result<T> {
    serde_json::from_slice(&index.read_index()?)
        .map_err(|error| index.bad(format!("this is no index of {what}: {error}")))
}

/// Plain numbers of the type with this name.
pub(super) fn scalar(element: &str) -> LeafForm {
    elements(FieldType::from_str(element).ok())
}

/// Plain values of this type; bytes if there is none.
pub(super) fn elements(kind: Option<FieldType>) -> LeafForm {
    kind.map_or(BYTES, |kind| LeafForm::Is(CellKind::Elements(kind)))
}

/// Plain bytes.
pub(super) const BYTES: LeafForm = LeafForm::Is(CellKind::Bytes);
