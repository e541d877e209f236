//! The tokenizer of an import: the file that the options name, and the options that follow from it.
//!
//! Rows with texts become documents of the tokenizer's tokens, and documents of tokens are checked against its
//! vocabulary. Both have a type that names the tokenizer, so an append with another tokenizer is refused like one with
//! another type.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use crate::import::field_types::{FieldSpec, is_named, type_in_image};
use crate::import::formats::{Encoder, TOKENS_FIELD};
use crate::import::options::{ImportOptions, RowOptions};
use crate::import::sources::SourceKind;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::Tokenizer;
use dlfs_format::format::field_type::{Element, FieldType};

/// The parts of a `tokenizer.json` that tell the vocabulary.
#[derive(Deserialize)]
struct Parts {
    model: Model,
    /// Tokens beside those of the model.
    #[serde(default)]
    added_tokens: Vec<Added>,
}

/// The model of a tokenizer.
#[derive(Deserialize)]
struct Model {
    vocab: Vocabulary,
}

/// The tokens of a model.
#[derive(Deserialize)]
#[serde(untagged)]
enum Vocabulary {
    /// The number of each token.
    Numbers(HashMap<String, u32>),
    /// Tokens in the order of their numbers.
    InOrder(Vec<IgnoredAny>),
}

/// A token beside those of the model.
#[derive(Deserialize)]
struct Added {
    /// Its number.
    id: u32,
}

/// The tokenizer in `file`, a `tokenizer.json` of Hugging Face: its hash and its vocabulary.
///
/// # Errors
/// The file cannot be read. `InvalidArgument`: it is no such file.
pub fn tokenizer_in(file: &Path) -> Result<Tokenizer> {
    parsed(file, &read(file)?)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| Error::from(error).path(file))
}

/// The tokenizer in `bytes`, the content of `file`.
fn parsed(file: &Path, bytes: &[u8]) -> Result<Tokenizer> {
    let wrong = |text: &str| {
        let error = Error::new(ErrorKind::InvalidArgument, text.to_owned()).path(file);
        error.hint("a tokenizer is a tokenizer.json of Hugging Face")
    };
    let parts: Parts = serde_json::from_slice(bytes)
        .map_err(|error| wrong("the tokenizer has no vocabulary").source(error))?;
    let added = parts.added_tokens.iter().map(|token| u64::from(token.id) + 1).max();
    let tokens = match &parts.model.vocab {
        Vocabulary::Numbers(numbers) => numbers.values().map(|id| u64::from(*id) + 1).max(),
        Vocabulary::InOrder(tokens) => Some(tokens.len() as u64),
    };
    let vocabulary = tokens.max(added).and_then(|tokens| u32::try_from(tokens).ok());
    let vocabulary = vocabulary.filter(|tokens| *tokens > 0);
    let vocabulary = vocabulary.ok_or_else(|| wrong("the tokenizer has no tokens, or too many"))?;
    Ok(Tokenizer { vocabulary, sha256: Sha256::digest(bytes).into() })
}

/// The tokenizer of an import.
pub(super) struct GivenTokenizer<'a> {
    path: &'a Path,
    /// Hash and vocabulary.
    tokenizer: Tokenizer,
    /// The encoder of texts, if the rows are not tokens already.
    pub(super) encoder: Option<Arc<Encoder>>,
}

impl GivenTokenizer<'_> {
    /// Reads the tokenizer that `options` name, if they do, for sources of `kind`.
    ///
    /// # Errors
    /// As [`tokenizer_in`]. `InvalidArgument`: the options name a column of texts, but no tokenizer or a source without
    /// texts. `Unsupported`: this build does not encode texts.
    pub(super) fn read(
        options: &ImportOptions,
        kind: SourceKind,
    ) -> Result<Option<GivenTokenizer<'_>>> {
        let RowOptions { tokenizer, text, .. } = &options.rows;
        let are_tokens = matches!(kind, SourceKind::Megatron | SourceKind::Tokens);
        if text.is_some() && (are_tokens || tokenizer.is_none()) {
            let error = format!("no text is encoded: sources are {kind}");
            let hint = "--text-field needs --tokenizer, and rows with texts";
            return Err(Error::invalid(error, hint));
        }
        let Some(path) = tokenizer.as_deref() else { return Ok(None) };
        let bytes = read(path)?;
        let tokenizer = parsed(path, &bytes)?;
        if are_tokens {
            return Ok(Some(GivenTokenizer { path, tokenizer, encoder: None }));
        }
        let encoder = Encoder::new(path, &bytes, tokenizer.vocabulary, options.reader_threads)?;
        Ok(Some(GivenTokenizer { path, tokenizer, encoder: Some(Arc::new(encoder)) }))
    }

    /// The options for the import, whose field of tokens has a type that names this tokenizer. `image`: the image that
    /// is appended to.
    ///
    /// # Errors
    /// `InvalidArgument`: another tokenizer made the image's tokens, or the field is given a type that is not of
    /// tokens.
    pub(super) fn options(
        &self,
        options: &ImportOptions,
        image: Option<&Directory>,
    ) -> Result<ImportOptions> {
        let field = TOKENS_FIELD.as_bytes();
        let of_image = type_in_image(image, field);
        if let Some(kind) = &of_image {
            self.check_image(kind)?;
        }
        let mut options = options.clone();
        let types = &mut options.field_types;
        let given = types.iter().position(|spec| is_named(field, &spec.field));
        let given = given.and_then(|at| types.remove(at).kind);
        let kind = match given.or(of_image) {
            Some(kind) => kind,
            None => self.usual_type(),
        };
        let kind = kind.of_tokenizer(self.tokenizer);
        let kind = kind.map_err(|what| Error::new(ErrorKind::InvalidArgument, what))?;
        types.push(FieldSpec { field: field.to_vec(), kind: Some(kind) });
        if self.encoder.is_some() {
            let RowOptions { text, fields, .. } = &mut options.rows;
            let text = text.get_or_insert_with(|| "text".to_owned());
            fields.retain(|field| field != text && field != TOKENS_FIELD);
            fields.insert(0, TOKENS_FIELD.to_owned());
        }
        Ok(options)
    }

    /// The smallest type of tokens that holds the vocabulary.
    fn usual_type(&self) -> FieldType {
        let is_small = self.tokenizer.vocabulary <= 1 << 16;
        let element = if is_small { Element::U16 } else { Element::U32 };
        FieldType::new(element, true, Vec::new()).expect("one dimension is no shape too many")
    }

    /// Refuses an image whose tokens, of the type `kind`, another tokenizer made.
    fn check_image(&self, kind: &FieldType) -> Result<()> {
        let path = self.path.display();
        let hash = self.tokenizer.hash();
        let text = match kind.tokenizer() {
            Some(other) if *other == self.tokenizer => return Ok(()),
            Some(other) => format!(
                "another tokenizer made the image's tokens: its SHA-256 is {}, and that of {path} {hash}",
                other.hash()
            ),
            None => format!(
                "the image does not say which tokenizer made its tokens, and {path} has the SHA-256 {hash}"
            ),
        };
        Err(Error::invalid(text, "import into another image, or append without --tokenizer"))
    }
}
