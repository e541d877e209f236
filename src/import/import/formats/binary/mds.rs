//! Indexes of MDS, version 2, the format of MosaicML Streaming.

use std::sync::Arc;

use serde::Deserialize;

use super::hashes::Stated;
use super::items::{ItemFormat, Leaf, LeafLen};
use super::leaf_form::LeafForm;
use super::{parse_index, shard_file};
use crate::import::formats::RowFile;
use crate::import::formats::column::CellKind;
use crate::import::formats::input::Input;
use crate::import::options::RowOptions;
use dlfs_base::Result;
use dlfs_format::format::field_type::{Element, FieldType};

/// An `index.json`.
#[derive(Debug, Deserialize)]
struct MdsIndex {
    version: u64,
    shards: Vec<MdsShard>,
}

/// A shard in an index.
#[derive(Debug, Deserialize)]
struct MdsShard {
    format: String,
    /// Number of items. `None`: it is not stated.
    #[serde(default)]
    samples: Option<u64>,
    #[serde(flatten)]
    layout: MdsLayout,
    /// The file of the shard, uncompressed.
    raw_data: MdsFile,
    /// The file of the shard, compressed. `None`: there is no such file.
    zip_data: Option<MdsFile>,
    /// The program that compressed `zip_data`, perhaps with its level behind a colon.
    #[serde(default)]
    compression: Option<String>,
}

/// The columns of a shard.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct MdsLayout {
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u32>>,
}

/// A file of a shard: its name, and the stated length and hashes.
#[derive(Debug, Deserialize)]
struct MdsFile {
    basename: String,
    #[serde(flatten)]
    stated: Stated,
}

/// The shards of the MDS index `index`, which is called `index_name`.
///
/// # Errors
/// The index cannot be read, or has shards of another format or version.
pub(super) fn mds(index: &Input, index_name: &[u8], options: &RowOptions) -> Result<Vec<RowFile>> {
    let MdsIndex { version, shards } = parse_index(index, "MDS shards")?;
    if version != 2 {
        return Err(index.bad(format!("the index has version {version}, and dlfs reads 2")));
    }
    if let Some(shard) = shards.iter().find(|shard| shard.format != "mds") {
        return Err(index.bad(format!("it has shards of the format {}, not mds", shard.format)));
    }
    // A shard may exist only in its compressed form.
    let names = shards.iter().map(|shard| {
        let files = [Some(&shard.raw_data), shard.zip_data.as_ref()];
        files.into_iter().flatten().map(|file| file.basename.clone().into()).collect()
    });
    let found = index.beside(names.collect())?;
    // The shards' inputs, grouped by columns.
    let mut layouts: Vec<(MdsLayout, Vec<Input>)> = Vec::new();
    let mut files = Vec::new();
    for (shard, (name, input)) in shards.into_iter().zip(found) {
        let zip = shard.zip_data.filter(|zip| name == *zip.basename);
        let program = shard.compression.filter(|_| zip.is_some()).unwrap_or_default();
        if let "br" | "snappy" = program.split(':').next().unwrap_or_default() {
            let text =
                format!("its shards are compressed with {program}, which dlfs does not read");
            return Err(index
                .bad(text)
                .hint("write them again with zstd, gz or bz2, or uncompressed"));
        }
        let MdsFile { basename, stated } = zip.unwrap_or(shard.raw_data);
        let known = layouts.iter().position(|(known, _)| *known == shard.layout);
        let known = known.unwrap_or_else(|| {
            layouts.push((shard.layout, Vec::new()));
            layouts.len() - 1
        });
        layouts[known].1.push(input.clone());
        files.push((known, basename, input, Stated { items: shard.samples, ..stated }));
    }
    let format = |(layout, inputs): &(MdsLayout, Vec<Input>)| -> Result<Arc<ItemFormat>> {
        let leaves = layout.leaves().map_err(|what| index.bad(what))?;
        Ok(Arc::new(ItemFormat::new(leaves, inputs, false, options)?))
    };
    let formats = layouts.iter().map(format).collect::<Result<Vec<_>>>()?;
    let file = |(layout, name, input, stated): (usize, String, Input, Stated)| {
        shard_file(index_name, &name, input, formats[layout].clone(), stated)
    };
    Ok(files.into_iter().map(file).collect())
}

impl MdsLayout {
    /// The columns of an item.
    ///
    /// # Errors
    /// The reason why the columns are not supported.
    fn leaves(&self) -> Result<Vec<Leaf>, String> {
        let MdsLayout { column_names: names, column_encodings: encodings, column_sizes: sizes } =
            self;
        if names.len() != encodings.len() || names.len() != sizes.len() {
            let text = "a shard has not as many names as encodings and sizes of columns";
            return Err(text.to_owned());
        }
        let columns = names.iter().zip(encodings).zip(sizes);
        let leaf = |((name, encoding), size): ((&String, &String), &Option<u32>)| {
            let form = mds_form(encoding);
            if let LeafForm::Is(CellKind::Elements(kind)) = &form
                && kind.len_bytes() != *size
            {
                return Err(format!(
                    "column {name} is {encoding}, and its size {size:?} is another"
                ));
            }
            let len = size.map_or(LeafLen::Stated, LeafLen::Fixed);
            Ok(Leaf { name: name.clone(), len, form })
        };
        columns.map(leaf).collect()
    }
}

/// The form of a column's bytes, from its encoding: <https://docs.mosaicml.com/projects/streaming>, "MDS".
fn mds_form(encoding: &str) -> LeafForm {
    let (name, more) = encoding.split_once(':').unwrap_or((encoding, ""));
    match name {
        "int" => LeafForm::scalar("i64"),
        "ndarray" => {
            let (element, shape) = more.split_once(':').unwrap_or((more, ""));
            match Element::named(element) {
                Some(element) if !shape.is_empty() => {
                    let dims = shape.split(',').map(|dim| dim.parse().ok());
                    let dims = dims.collect::<Option<Vec<u32>>>();
                    LeafForm::elements(
                        dims.and_then(|dims| FieldType::new(element, false, dims).ok()),
                    )
                }
                of => LeafForm::Mds(of),
            }
        }
        _ if more.is_empty() && Element::named(name).is_some() => LeafForm::scalar(name),
        // Strings, pictures, JSON and pickles stay bytes.
        _ => LeafForm::BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_types_or_bytes() {
        let shown = |encoding: &str| match mds_form(encoding) {
            LeafForm::Is(CellKind::Elements(kind)) => kind.to_string(),
            LeafForm::Is(_) => "bytes".to_owned(),
            form => format!("{form:?}"),
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
