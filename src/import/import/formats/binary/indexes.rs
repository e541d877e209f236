//! Indexes of data sets whose shards have tables of items: MDS of MosaicML Streaming, version 2, and LitData's
//! optimised format, whose items are trees of values.

use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::hashes::Stated;
use super::items::{
    ItemFormat, ItemRows, Leaf, LeafForm, LeafLen, Table, numpy_element, torch_element,
};
use crate::import::formats::RowFile;
use crate::import::formats::column::{CellKind, Column};
use crate::import::formats::input::Input;
use crate::import::options::RowOptions;
use dlfs_base::Result;
use dlfs_format::format::field_type::{Element, FieldType};

/// The shard `name` of the index called `index`. Its rows are named as if it had been given itself.
fn row_file(
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

#[derive(Debug, Deserialize)]
struct MdsIndex {
    version: u64,
    shards: Vec<MdsShard>,
}

#[derive(Debug, Deserialize)]
struct MdsShard {
    format: String,
    #[serde(default)]
    samples: Option<u64>,
    #[serde(flatten)]
    layout: MdsLayout,
    raw_data: MdsPart,
    zip_data: Option<MdsPart>,
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

#[derive(Debug, Deserialize)]
struct MdsPart {
    basename: String,
    #[serde(flatten)]
    stated: Stated,
}

/// The shards of the MDS index `index`, which is called `own`.
///
/// # Errors
/// The index cannot be read, or has shards of another format or version.
pub(super) fn mds(index: &Input, own: &[u8], options: &RowOptions) -> Result<Vec<RowFile>> {
    let MdsIndex { version, shards } = read(index, "MDS shards")?;
    if version != 2 {
        return Err(index.bad(format!("the index has version {version}, and dlfs reads 2")));
    }
    if let Some(shard) = shards.iter().find(|shard| shard.format != "mds") {
        return Err(index.bad(format!("it has shards of the format {}, not mds", shard.format)));
    }
    // A shard may exist only in its compressed form.
    let names = shards.iter().map(|shard| {
        let parts = [Some(&shard.raw_data), shard.zip_data.as_ref()];
        parts.into_iter().flatten().map(|part| part.basename.clone().into()).collect()
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
        let MdsPart { basename, stated } = zip.unwrap_or(shard.raw_data);
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
        row_file(own, &name, input, formats[layout].clone(), stated)
    };
    Ok(files.into_iter().map(file).collect())
}

fn read<T: DeserializeOwned>(index: &Input, what: &str) -> Result<T> {
    serde_json::from_slice(&index.read_index()?)
        .map_err(|error| index.bad(format!("this is no index of {what}: {error}")))
}

impl MdsLayout {
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
        "int" => scalar("i64"),
        "ndarray" => {
            let (element, shape) = more.split_once(':').unwrap_or((more, ""));
            match Element::named(element) {
                Some(element) if !shape.is_empty() => {
                    let dims = shape.split(',').map(|dim| dim.parse().ok());
                    let dims = dims.collect::<Option<Vec<u32>>>();
                    elements(dims.and_then(|dims| FieldType::new(element, false, dims).ok()))
                }
                of => LeafForm::Mds(of),
            }
        }
        _ if more.is_empty() && Element::named(name).is_some() => scalar(name),
        // Strings, pictures, JSON and pickles stay bytes.
        _ => BYTES,
    }
}

fn scalar(element: &str) -> LeafForm {
    elements(FieldType::from_str(element).ok())
}

/// Plain values of this type; bytes if there is none.
fn elements(kind: Option<FieldType>) -> LeafForm {
    kind.map_or(BYTES, |kind| LeafForm::Is(CellKind::Elements(kind)))
}

const BYTES: LeafForm = LeafForm::Is(CellKind::Bytes);

#[derive(Debug, Deserialize)]
struct LitIndex {
    chunks: Vec<LitChunk>,
    config: LitConfig,
}

#[derive(Debug, Deserialize)]
struct LitChunk {
    filename: String,
    /// The number of the chunk's items.
    #[serde(default)]
    chunk_size: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LitConfig {
    data_format: Vec<String>,
    data_spec: Option<String>,
    compression: Option<String>,
    compression_level: Option<String>,
    encryption: Option<Value>,
    item_loader: Option<String>,
}

/// The chunks of the LitData index `index`, which is called `own`.
///
/// # Errors
/// The index cannot be read, or its chunks have a form that is not supported.
pub(super) fn litdata(index: &Input, own: &[u8], options: &RowOptions) -> Result<Vec<RowFile>> {
    let LitIndex { chunks, config } = read(index, "LitData's chunks")?;
    let leaves = config.leaves().map_err(|what| index.bad(what))?;
    let names = chunks.iter().map(|chunk| vec![chunk.filename.clone().into()]);
    let found = index.beside(names.collect())?;
    let inputs: Vec<Input> = found.into_iter().map(|(_, input)| input).collect();
    let format = Arc::new(ItemFormat::new(leaves, &inputs, true, options)?);
    let file = |(chunk, input): (LitChunk, Input)| {
        let stated = Stated { items: chunk.chunk_size, ..Stated::default() };
        row_file(own, &chunk.filename, input, format.clone(), stated)
    };
    Ok(chunks.into_iter().zip(inputs).map(file).collect())
}

impl LitConfig {
    /// The columns of an item, in the order of the leaves of its tree.
    fn leaves(&self) -> Result<Vec<Leaf>, String> {
        let refuse = |what: &str| Err(format!("its chunks are {what}, which dlfs does not read"));
        if self.encryption.is_some() {
            return refuse("encrypted");
        }
        if let Some(level) = self.compression_level.as_deref().filter(|level| *level != "chunk") {
            return refuse(&format!("compressed by {level}"));
        }
        let compression = self.compression.as_deref().unwrap_or("zstd");
        if !compression.starts_with("zstd") && !compression.starts_with("gzip") {
            return refuse(&format!("compressed with {compression}"));
        }
        let len = match self.item_loader.as_deref().unwrap_or("PyTreeLoader") {
            "PyTreeLoader" => LeafLen::Stated,
            "TokensLoader" => LeafLen::Item,
            other => return refuse(&format!("written for {other}")),
        };
        let names = match &self.data_spec {
            Some(spec) => names(spec)?,
            None => (0..self.data_format.len()).map(|at| at.to_string()).collect(),
        };
        if names.len() != self.data_format.len() || names.is_empty() {
            let names = names.len();
            let formats = self.data_format.len();
            return Err(format!("its items have {names} leaves and {formats} formats"));
        }
        let leaf = |(name, format): (String, &String)| Leaf { name, len, form: lit_form(format) };
        Ok(names.into_iter().zip(&self.data_format).map(leaf).collect())
    }
}

/// The form of a leaf's bytes, from the name of its format.
fn lit_form(format: &str) -> LeafForm {
    let (name, more) = format.split_once(':').unwrap_or((format, ""));
    let number = more.parse().ok();
    match name {
        "int" => scalar("i64"),
        "float" => scalar("f64"),
        "bool" => scalar("bool"),
        "numpy" => LeafForm::Numpy,
        "tensor" => LeafForm::Tensor,
        "no_header_numpy" => number.and_then(numpy_element).map_or(BYTES, LeafForm::Bare),
        "no_header_tensor" => number.and_then(torch_element).map_or(BYTES, LeafForm::Bare),
        // Strings, pictures, sounds and pickles stay bytes.
        _ => BYTES,
    }
}

/// The names of the leaves of a tree: keys and indices from the root, joined by dots.
///
/// The tree is PyTorch's `treespec_dumps`: a version, and nodes with a type, a context and children.
fn names(spec: &str) -> Result<Vec<String>, String> {
    let found: Result<(u64, Node), _> = serde_json::from_str(spec);
    let (_, root) = found.map_err(|error| format!("its data_spec is not understood: {error}"))?;
    let mut names = Vec::new();
    root.collect(&mut String::new(), &mut names, 0)?;
    if let [only] = &mut names[..]
        && only.is_empty()
    {
        *only = "data".to_owned();
    }
    Ok(names)
}

#[derive(Debug, Deserialize)]
struct Node {
    #[serde(rename = "type")]
    kind: Option<String>,
    context: Option<String>,
    #[serde(default)]
    children_spec: Vec<Node>,
}

impl Node {
    fn collect(
        &self,
        prefix: &mut String,
        names: &mut Vec<String>,
        depth: usize,
    ) -> Result<(), String> {
        if self.kind.is_none() {
            names.push(prefix.clone());
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return Err("its data_spec is nested too deeply".to_owned());
        }
        let keys = self.context.as_deref().and_then(|keys| serde_json::from_str(keys).ok());
        let keys: Vec<Value> = keys.unwrap_or_default();
        for (at, child) in self.children_spec.iter().enumerate() {
            let key = match keys.get(at) {
                Some(Value::String(key)) => key.clone(),
                Some(key) => key.to_string(),
                None => at.to_string(),
            };
            let len = prefix.len();
            if len > 0 {
                prefix.push('.');
            }
            prefix.push_str(&key);
            child.collect(prefix, names, depth + 1)?;
            prefix.truncate(len);
        }
        Ok(())
    }
}

const MAX_DEPTH: usize = 64;

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

    #[test]
    fn leaves_are_named_by_keys_and_places() {
        let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
        let spec = format!(
            r#"[1, {{"type": "builtins.dict", "context": "[\"image\", \"n\"]", "children_spec": [{leaf},
                {{"type": "builtins.list", "context": "null", "children_spec": [{leaf}, {leaf}]}}]}}]"#
        );
        assert_eq!(names(&spec).unwrap(), ["image", "n.0", "n.1"]);
        assert_eq!(names(&format!("[1, {leaf}]")).unwrap(), ["data"]);
        assert!(names("[1, 2]").unwrap_err().contains("data_spec"));
    }
}
