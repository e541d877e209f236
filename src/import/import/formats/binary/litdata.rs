//! Indexes of LitData's optimised format, whose items are trees of values.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::hashes::Stated;
use super::items::{ItemFormat, Leaf, LeafLen};
use super::leaf_form::{LeafForm, numpy_element, torch_element};
use super::{parse_index, shard_file};
use crate::import::formats::RowFile;
use crate::import::formats::input::Input;
use crate::import::options::RowOptions;
use dlfs_base::Result;

/// An `index.json`.
#[derive(Debug, Deserialize)]
struct LitIndex {
    chunks: Vec<LitChunk>,
    config: LitConfig,
}

/// A shard in an index.
#[derive(Debug, Deserialize)]
struct LitChunk {
    filename: String,
    /// Number of items. `None`: it is not stated.
    #[serde(default)]
    chunk_size: Option<u64>,
}

/// The properties of all chunks.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LitConfig {
    /// The format of each leaf of an item.
    data_format: Vec<String>,
    /// The tree of an item, as PyTorch writes it.
    data_spec: Option<String>,
    /// The program that compressed the chunks, and its level; `None`: they are not compressed.
    compression: Option<String>,
    /// `chunk`: chunks are compressed as a whole.
    compression_level: Option<String>,
    /// `None`: chunks are not encrypted.
    encryption: Option<Value>,
    /// The class that reads items; `None`: `PyTreeLoader`.
    item_loader: Option<String>,
}

/// The chunks of the LitData index `index`, which is called `name`.
///
/// # Errors
/// The index cannot be read, or its chunks have a form that is not supported.
pub(super) fn litdata(index: &Input, name: &[u8], options: &RowOptions) -> Result<Vec<RowFile>> {
    let LitIndex { chunks, config } = parse_index(index, "LitData's chunks")?;
    let leaves = config.leaves().map_err(|what| index.bad(what))?;
    let names = chunks.iter().map(|chunk| vec![chunk.filename.clone().into()]);
    let found = index.beside(names.collect())?;
    let inputs: Vec<Input> = found.into_iter().map(|(_, input)| input).collect();
    let format = Arc::new(ItemFormat::new(leaves, &inputs, true, options)?);
    let file = |(chunk, input): (LitChunk, Input)| {
        let stated = Stated { items: chunk.chunk_size, ..Stated::default() };
        shard_file(name, &chunk.filename, input, format.clone(), stated)
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
        "int" => LeafForm::scalar("i64"),
        "float" => LeafForm::scalar("f64"),
        "bool" => LeafForm::scalar("bool"),
        "numpy" => LeafForm::Numpy,
        "tensor" => LeafForm::Tensor,
        "no_header_numpy" => number.and_then(numpy_element).map_or(LeafForm::BYTES, LeafForm::Bare),
        "no_header_tensor" => {
            number.and_then(torch_element).map_or(LeafForm::BYTES, LeafForm::Bare)
        }
        // Strings, pictures, sounds and pickles stay bytes.
        _ => LeafForm::BYTES,
    }
}

/// The names of the leaves of a tree: keys and indices from the root, joined by dots; `data` if the root is a leaf.
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

/// A node of a tree.
#[derive(Debug, Deserialize)]
struct Node {
    #[serde(rename = "type")]
    /// `None`: the node is a leaf.
    kind: Option<String>,
    /// The keys of the children, as JSON.
    context: Option<String>,
    #[serde(default)]
    children_spec: Vec<Node>,
}

impl Node {
    /// Appends the names of the leaves below this node, which has the name `prefix`, to `names`.
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

/// Maximum depth of a tree.
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
