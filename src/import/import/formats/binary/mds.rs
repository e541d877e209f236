//! The index of a data set of MosaicML Streaming: MDS, version 2.

use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

use super::hashes::Stated;
use super::items::{HeaderForm, ItemFormat, Leaf, LeafForm, LeafLen};
use super::shard;
use crate::import::formats::column::CellKind;
use crate::import::formats::input::Input;
use crate::import::formats::{Given, RowFile};
use crate::import::options::RowOptions;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::field_type::{Element, FieldType};

#[derive(Debug, Deserialize)]
struct Index {
    version: u64,
    shards: Vec<Shard>,
}

#[derive(Debug, Deserialize)]
struct Shard {
    format: String,
    #[serde(default)]
    samples: Option<u64>,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u32>>,
    raw_data: Part,
    zip_data: Option<Part>,
    #[serde(default)]
    compression: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Part {
    basename: String,
    #[serde(flatten)]
    stated: Stated,
}

/// The shards of the index `given`.
///
/// # Errors
/// The index cannot be read, or has shards of another format or version.
pub(super) fn shards(given: &Given, options: &RowOptions) -> Result<Vec<RowFile>> {
    let path = &given.input.path;
    let bad = |what: String| Error::new(ErrorKind::BadSource, what).path(path);
    let bytes = given.input.read_index()?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| bad(format!("this is no index of MDS shards: {error}")))?;
    if index.version != 2 {
        return Err(bad(format!("the index has version {}, and dlfs reads 2", index.version)));
    }
    if let Some(shard) = index.shards.iter().find(|shard| shard.format != "mds") {
        return Err(bad(format!("it has shards of the format {}, not mds", shard.format)));
    }
    // A shard may exist only in its compressed form.
    let names = index.shards.iter().map(|shard| {
        let parts = [Some(&shard.raw_data), shard.zip_data.as_ref()];
        parts.into_iter().flatten().map(|part| part.basename.clone()).collect()
    });
    let found = given.input.beside(names.collect())?;
    for (shard, (name, _)) in index.shards.iter().zip(&found) {
        let is_packed = shard.zip_data.as_ref().is_some_and(|zip| zip.basename == *name);
        let program = shard.compression.as_deref().filter(|_| is_packed).unwrap_or_default();
        if let "br" | "snappy" = program.split(':').next().unwrap_or_default() {
            let text =
                format!("its shards are compressed with {program}, which dlfs does not read");
            return Err(bad(text).hint("write them again with zstd, gz or bz2, or uncompressed"));
        }
    }
    // The shards' inputs, grouped by columns.
    let mut layouts: Vec<(Layout, Vec<Input>)> = Vec::new();
    let mut files = Vec::new();
    for (shard, (name, input)) in index.shards.into_iter().zip(found) {
        let zip = shard.zip_data.filter(|zip| zip.basename == name);
        let stated = zip.unwrap_or(shard.raw_data).stated.with_items(shard.samples);
        let layout = (shard.column_names, shard.column_encodings, shard.column_sizes);
        let known = layouts.iter().position(|(known, _)| *known == layout);
        let known = known.unwrap_or_else(|| {
            layouts.push((layout, Vec::new()));
            layouts.len() - 1
        });
        layouts[known].1.push(input.clone());
        files.push((known, (name, input), stated));
    }
    let format = |(layout, inputs): &(Layout, Vec<Input>)| -> Result<Arc<ItemFormat>> {
        let leaves = leaves(layout).map_err(&bad)?;
        Ok(Arc::new(ItemFormat::new(leaves, inputs, false, options)?))
    };
    let formats = layouts.iter().map(format).collect::<Result<Vec<_>>>()?;
    let file = |(layout, named, stated): (usize, (String, Input), Stated)| {
        shard(given, named, formats[layout].clone(), stated)
    };
    Ok(files.into_iter().map(file).collect())
}

/// Names, encodings and sizes of the columns.
type Layout = (Vec<String>, Vec<String>, Vec<Option<u32>>);

fn leaves((names, encodings, sizes): &Layout) -> Result<Vec<Leaf>, String> {
    if names.len() != encodings.len() || names.len() != sizes.len() {
        return Err("a shard has not as many names as encodings and sizes of columns".to_owned());
    }
    let columns = names.iter().zip(encodings).zip(sizes);
    let leaf = |((name, encoding), size): ((&String, &String), &Option<u32>)| {
        let form = form_of(encoding);
        if let LeafForm::Is(CellKind::Elements(kind)) = &form
            && kind.len_bytes() != *size
        {
            return Err(format!("column {name} is {encoding}, and its size {size:?} is another"));
        }
        let len = size.map_or(LeafLen::Stated, LeafLen::Fixed);
        Ok(Leaf { name: name.clone(), len, form })
    };
    columns.map(leaf).collect()
}

/// The form of a column's bytes, from its encoding: <https://docs.mosaicml.com/projects/streaming>, "MDS".
fn form_of(encoding: &str) -> LeafForm {
    let bytes = LeafForm::Is(CellKind::Bytes);
    let scalar = |element: &str| FieldType::from_str(element).map(CellKind::Elements);
    let (name, more) = encoding.split_once(':').unwrap_or((encoding, ""));
    match name {
        "int" => scalar("i64").map_or(bytes, LeafForm::Is),
        "ndarray" => {
            let (element, shape) = more.split_once(':').unwrap_or((more, ""));
            let of = Element::named(element);
            match (of, shape.is_empty()) {
                (Some(element), false) => {
                    let dims = shape.split(',').map(|dim| dim.parse().ok()).collect();
                    let dims: Option<Vec<u32>> = dims;
                    let kind = dims.and_then(|dims| FieldType::new(element, false, dims).ok());
                    kind.map_or(bytes, |kind| LeafForm::Is(CellKind::Elements(kind)))
                }
                (of, _) => LeafForm::Array(HeaderForm::Mds(of)),
            }
        }
        _ if more.is_empty() && Element::named(name).is_some() => {
            scalar(name).map_or(bytes, LeafForm::Is)
        }
        // Strings, pictures, JSON and pickles stay bytes.
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_types_or_bytes() {
        let shown = |encoding: &str| match form_of(encoding) {
            LeafForm::Is(CellKind::Elements(kind)) => kind.to_string(),
            LeafForm::Is(_) => "bytes".to_owned(),
            LeafForm::Array(form) => format!("{form:?}"),
        };
        for (encoding, form) in [
            ("int", "i64"),
            ("float32", "f32"),
            ("ndarray:uint8:3,4", "u8[3,4]"),
            ("ndarray:int16", "Mds(Some(I16))"),
            ("ndarray", "Mds(None)"),
            ("jpeg", "bytes"),
            ("str", "bytes"),
            ("str_int", "bytes"),
            ("pkl", "bytes"),
        ] {
            assert_eq!(shown(encoding), form, "{encoding}");
        }
    }
}
