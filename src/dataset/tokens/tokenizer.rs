//! The tokenizers that made the tokens of sources, as the types of their fields name them.

use crate::error::{Error, Result};
use crate::format::Tokenizer;
use crate::import::tokenizer_in;

use super::TokenOptions;
use super::fields::Fields;

/// Checks that the tokenizer of `options` made the tokens of all sources, or that one did, and that the vocabulary is
/// not smaller.
///
/// # Errors
/// `InvalidArgument`: it is another one; the message has both hashes. Errors of reading the tokenizer's file.
pub(super) fn check(
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
