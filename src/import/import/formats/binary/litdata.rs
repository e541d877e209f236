//! The index of a data set in LitData's optimised format: chunks of items, each a tree of values.

use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::hashes::Stated;
use super::items::{HeaderForm, ItemFormat, Leaf, LeafForm, LeafLen, numpy_element, torch_element};
use super::shard;
use crate::import::formats::column::CellKind;
use crate::import::formats::input::Input;
use crate::import::formats::{Given, RowFile};
use crate::import::options::RowOptions;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::field_type::FieldType;

#[derive(Debug, Deserialize)]
struct Index {
    chunks: Vec<Chunk>,
    config: Config,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    filename: String,
    /// The number of the chunk's items.
    #[serde(default)]
    chunk_size: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    data_format: Vec<String>,
    #[serde(default)]
    data_spec: Option<String>,
    #[serde(default)]
    compression: Option<String>,
    #[serde(default)]
    compression_level: Option<String>,
    #[serde(default)]
    encryption: Option<Value>,
    #[serde(default)]
    item_loader: Option<String>,
}

/// The chunks of the index `given`.
///
/// # Errors
/// The index cannot be read, or its chunks have a form that is not supported.
pub(super) fn shards(given: &Given, options: &RowOptions) -> Result<Vec<RowFile>> {
    let path = &given.input.path;
    let bad = |what: String| Error::new(ErrorKind::BadSource, what).path(path);
    let bytes = given.input.read_index()?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| bad(format!("this is no index of LitData's chunks: {error}")))?;
    let leaves = leaves(&index.config).map_err(bad)?;
    let names = index.chunks.iter().map(|chunk| vec![chunk.filename.clone()]);
    let chunks = given.input.beside(names.collect())?;
    let inputs: Vec<Input> = chunks.iter().map(|(_, input)| input.clone()).collect();
    let format = Arc::new(ItemFormat::new(leaves, &inputs, true, options)?);
    let file = |(chunk, named): (Chunk, (String, Input))| {
        let stated = Stated::default().with_items(chunk.chunk_size);
        shard(given, named, format.clone(), stated)
    };
    Ok(index.chunks.into_iter().zip(chunks).map(file).collect())
}

/// The columns of an item, in the order of the leaves of its tree.
fn leaves(config: &Config) -> Result<Vec<Leaf>, String> {
    let refuse = |what: &str| Err(format!("its chunks are {what}, which dlfs does not read"));
    if config.encryption.is_some() {
        return refuse("encrypted");
    }
    if let Some(level) = config.compression_level.as_deref().filter(|level| *level != "chunk") {
        return refuse(&format!("compressed by {level}"));
    }
    let compression = config.compression.as_deref().unwrap_or("zstd");
    if !compression.starts_with("zstd") && !compression.starts_with("gzip") {
        return refuse(&format!("compressed with {compression}"));
    }
    let tokens = match config.item_loader.as_deref().unwrap_or("PyTreeLoader") {
        "PyTreeLoader" => false,
        "TokensLoader" => true,
        other => return refuse(&format!("written for {other}")),
    };
    let names = match &config.data_spec {
        Some(spec) => names(spec)?,
        None => (0..config.data_format.len()).map(|at| at.to_string()).collect(),
    };
    if names.len() != config.data_format.len() || names.is_empty() {
        let names = names.len();
        let formats = config.data_format.len();
        return Err(format!("its items have {names} leaves and {formats} formats"));
    }
    let len = if tokens { LeafLen::Item } else { LeafLen::Stated };
    let leaf = |(name, format): (String, &String)| Leaf { name, len, form: form_of(format) };
    Ok(names.into_iter().zip(&config.data_format).map(leaf).collect())
}

/// The form of a leaf's bytes, from the name of its format.
fn form_of(format: &str) -> LeafForm {
    let bytes = LeafForm::Is(CellKind::Bytes);
    let scalar = |element: &str| {
        let kind = FieldType::from_str(element).map(CellKind::Elements);
        kind.map_or(bytes.clone(), LeafForm::Is)
    };
    let (name, more) = format.split_once(':').unwrap_or((format, ""));
    let number = more.parse().ok();
    let bare = |element| LeafForm::Array(HeaderForm::Bare(element));
    match name {
        "int" => scalar("i64"),
        "float" => scalar("f64"),
        "bool" => scalar("bool"),
        "numpy" => LeafForm::Array(HeaderForm::Numpy),
        "tensor" => LeafForm::Array(HeaderForm::Tensor),
        "no_header_numpy" => number.and_then(numpy_element).map_or(bytes, bare),
        "no_header_tensor" => number.and_then(torch_element).map_or(bytes, bare),
        // Strings, pictures, sounds and pickles stay bytes.
        _ => bytes,
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
