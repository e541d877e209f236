//! The tokenizer of a field of tokens, as its type names it: `u16[*];vocabulary=50257;tokenizer=HASH`.
//!
//! HASH is the SHA-256 of the tokenizer's file, in hexadecimal digits. Tokens of one tokenizer mean nothing to another,
//! so types with different tokenizers are different types.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// The tokenizer that made the tokens of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tokenizer {
    /// The number of its tokens, with gaps: each token is below it.
    pub vocabulary: u32,
    /// SHA-256 of its file.
    pub sha256: [u8; 32],
}

impl Tokenizer {
    /// The hash in hexadecimal digits.
    pub fn hash(&self) -> String {
        self.sha256.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}"); // a String takes everything
            digits
        })
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vocabulary={};tokenizer={}", self.vocabulary, self.hash())
    }
}

impl FromStr for Tokenizer {
    type Err = String;

    fn from_str(text: &str) -> Result<Tokenizer, String> {
        let parts =
            text.strip_prefix("vocabulary=").and_then(|rest| rest.split_once(";tokenizer="));
        let parsed = parts.and_then(|(vocabulary, hash)| {
            let mut sha256 = [0; 32];
            for (byte, digits) in sha256.iter_mut().zip(hash.as_bytes().chunks(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            }
            Some(Tokenizer { vocabulary: vocabulary.parse().ok()?, sha256 })
        });
        // Only what is written so: other spellings of the same numbers would be other types.
        let parsed = parsed.filter(|found| found.to_string() == text);
        parsed.ok_or_else(|| format!("{text:?} is not vocabulary=TOKENS;tokenizer=SHA256"))
    }
}
