//! The fields of samples that rows of tokens are made of: tokens, and loss bytes. They are found by name or by type;
//! the type may also name the tokenizer that made the tokens.

use super::{NAME_LENGTHS, TokenOptions};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Tokenizer;
use crate::format::field_type::FieldType;
use crate::format::fields::table_len;
use crate::import::tokenizer_in;
use crate::tokens::TokenType;

/// The fields of a data set's samples that rows are made of.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    /// The index of the field of tokens.
    pub(super) tokens: usize,
    /// The type of a token there.
    pub(super) token_type: TokenType,
    /// The tokenizer that the type of the field names.
    pub(super) tokenizer: Option<Tokenizer>,
    /// The index of the field with a byte for each token.
    pub(super) loss: Option<usize>,
    /// Bytes that each token takes in all fields together; 0 if a column has the lengths of documents.
    pub(super) token_bytes: u32,
    /// Bytes of a record before its fields.
    pub(super) table_bytes: usize,
}

impl Fields {
    /// The fields that `options` name; without a name, the only field that can have tokens.
    ///
    /// # Errors
    /// `NotFound`: there is no such field. `InvalidArgument`: it does not hold tokens, it is unclear which one is
    /// meant, or a length in bytes does not tell the number of tokens.
    pub(super) fn find(directory: &Directory, options: &TokenOptions) -> Result<Fields> {
        let loss = match &options.loss_field {
            Some(name) => Some(loss_field(directory, name)?),
            None => None,
        };
        let (tokens, token_type) = match &options.field {
            Some(text) => named(directory, text)?,
            None => only(directory, loss)?,
        };
        let num_fields = directory.fields().len().max(1);
        let mut found = Fields {
            tokens,
            token_type,
            tokenizer: directory.field_types().of(tokens).and_then(FieldType::tokenizer).copied(),
            loss,
            token_bytes: 0,
            table_bytes: table_len(num_fields) as usize, // at most 4 bytes a field
        };
        if options.lengths.is_none() {
            for field in 0..num_fields {
                found.token_bytes += found.bytes_of(directory, field)?;
            }
        }
        Ok(found)
    }

    /// Bytes that `field` has for each token.
    fn bytes_of(&self, directory: &Directory, field: usize) -> Result<u32> {
        if field == self.tokens {
            return Ok(self.token_type.len_bytes() as u32); // at most 4
        }
        match directory.field_types().of(field) {
            Some(kind) if is_list(kind) => Ok(kind.element().len_bytes()),
            None if Some(field) == self.loss => Ok(1),
            _ => {
                let name = shown(directory, field);
                let text = format!(
                    "the length of a sample does not tell its tokens: field {name} is no list of one element a token"
                );
                Err(Error::invalid(text, NAME_LENGTHS))
            }
        }
    }
}

/// The field that `text` names, and the type that it or the data set gives it.
fn named(directory: &Directory, text: &str) -> Result<(usize, TokenType)> {
    if let Some(field) = index(directory, text) {
        return Ok((field, token_type(directory, field, None)?));
    }
    let (name, kind) = match text.rsplit_once(':') {
        Some((name, kind)) => (Some(name), kind.parse().ok()),
        None => (None, text.parse().ok()),
    };
    let field = match name {
        Some(name) => index(directory, name),
        None => (directory.fields().len() <= 1).then_some(0),
    };
    match (field, kind) {
        (Some(field), Some(kind)) => Ok((field, token_type(directory, field, Some(kind))?)),
        _ => Err(no_field(directory, text)),
    }
}

/// The only field that can have tokens.
fn only(directory: &Directory, loss: Option<usize>) -> Result<(usize, TokenType)> {
    let types = directory.field_types();
    let can_have = |&(field, kind): &(usize, &FieldType)| {
        Some(field) != loss && is_list(kind) && TokenType::of(kind.element()).is_some()
    };
    let all: Vec<usize> = types.iter().filter(can_have).map(|(field, _)| field).collect();
    let text = match all[..] {
        [field] => return Ok((field, token_type(directory, field, None)?)),
        [] => "no field of the samples has tokens by its type".to_owned(),
        [..] => {
            let names: Vec<String> = all.iter().map(|&field| shown(directory, field)).collect();
            format!("several fields of the samples could have tokens: {}", names.join(", "))
        }
    };
    Err(Error::invalid(
        text,
        "name the field, and its type if the data set does not tell it: field=\"NAME:u16\", or \"u16\" if samples have \
         one field",
    ))
}

/// The type of the tokens of a field; `given` is the type that the user gives a field without one.
fn token_type(directory: &Directory, field: usize, given: Option<FieldType>) -> Result<TokenType> {
    let name = shown(directory, field);
    let own = directory.field_types().of(field);
    let Some(kind) = own.or(given.as_ref()) else {
        let text = format!("field {name} has no type, so its bytes could be any tokens");
        return Err(Error::invalid(text, "give its type with its name: field=\"NAME:u16\""));
    };
    if let Some(given) = given.as_ref().filter(|given| given.element() != kind.element()) {
        let text = format!("field {name} is of {kind}, and {given} was expected");
        return Err(Error::invalid(text, "leave the type out: the data set has it"));
    }
    let has_shape = is_list(kind) || own.is_none() && kind.dims().len() == 0;
    match TokenType::of(kind.element()).filter(|_| has_shape) {
        Some(kind) => Ok(kind),
        None => {
            let text = format!("field {name} is of {kind}, and these are no tokens to take");
            let hint = "tokens are a list of u8, u16, u32 or i32, such as u16[*]";
            Err(Error::invalid(text, hint))
        }
    }
}

/// The index of the field called `name`, which must have a byte for each token.
fn loss_field(directory: &Directory, name: &str) -> Result<usize> {
    let field = index(directory, name).ok_or_else(|| no_field(directory, name))?;
    match directory.field_types().of(field) {
        Some(kind) if !is_list(kind) || kind.element().len_bytes() != 1 => {
            let text = format!("field {name} is of {kind}, which is no byte for each token");
            Err(Error::invalid(text, "a loss field is u8[*] or bool[*]: 0 or 1 for each token"))
        }
        _ => Ok(field),
    }
}

fn index(directory: &Directory, name: &str) -> Option<usize> {
    directory.fields().iter().position(|known| known == name.as_bytes())
}

fn is_list(kind: &FieldType) -> bool {
    kind.dims().eq([None])
}

/// The name of a field, for messages.
pub(super) fn shown(directory: &Directory, field: usize) -> String {
    match directory.fields().get(field) {
        Some(name) => name.escape_ascii().to_string(),
        None => "without a name".to_owned(),
    }
}

fn no_field(directory: &Directory, text: &str) -> Error {
    let fields = directory.fields();
    let names: Vec<String> = (0..fields.len()).map(|field| shown(directory, field)).collect();
    let has = match names[..] {
        [] => "one field without a name".to_owned(),
        _ => names.join(", "),
    };
    let error =
        Error::new(ErrorKind::NotFound, format!("there is no field {text}: samples have {has}"));
    error.hint("name one of them, with a type if it has none: field=\"NAME:u16\"")
}

/// Checks that one tokenizer made the tokens of all sources: that of `options`, if they name one. Checks also that
/// the vocabulary of `options` is not smaller than the tokenizer's. Sources that name no tokenizer pass if `options`
/// name none.
///
/// # Errors
/// `InvalidArgument`: a source names another tokenizer (the message has both hashes), or none although `options` do;
/// the vocabulary is too small. Errors of reading the tokenizer's file.
pub(super) fn check_tokenizers(
    found: &[Fields],
    options: &TokenOptions,
    of_source: impl Fn(usize, Error) -> Error,
) -> Result<()> {
    let given = match &options.tokenizer {
        Some(path) => Some((tokenizer_in(path)?, path.display().to_string())),
        None => {
            let named = found.iter().find_map(|fields| fields.tokenizer);
            named.map(|tokenizer| (tokenizer, "an earlier source of the mixture".to_owned()))
        }
    };
    for (source, fields) in found.iter().enumerate() {
        let own = fields.tokenizer;
        let refused =
            |text: String, hint: &'static str| Err(of_source(source, Error::invalid(text, hint)));
        match (own, &given) {
            (Some(own), Some((given, whose))) if own.sha256 != given.sha256 => {
                let text = format!(
                    "another tokenizer made the tokens: its SHA-256 is {}, and that of {whose} {}",
                    own.hash(),
                    given.hash()
                );
                return refused(text, "tokens of different tokenizers do not mix");
            }
            (None, Some((given, whose))) if options.tokenizer.is_some() => {
                let text = format!(
                    "the data set does not say which tokenizer made its tokens, and {whose} has the SHA-256 {}",
                    given.hash()
                );
                return refused(text, "import it with --tokenizer, or name no tokenizer here");
            }
            _ => {}
        }
        match (own, options.vocabulary) {
            (Some(Tokenizer { vocabulary, .. }), Some(given)) if given < vocabulary => {
                let text = format!(
                    "the vocabulary has {given} tokens, and the tokenizer that made them {vocabulary}"
                );
                return refused(text, "a vocabulary may be larger, not smaller");
            }
            _ => {}
        }
    }
    Ok(())
}
