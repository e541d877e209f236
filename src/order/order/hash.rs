//! Hashes that a state names: of weights. They stand below what names them, so that an order's kind may hold one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A hash of weights: 32 hexadecimal digits in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WeightsId(pub [u8; 16]);

impl fmt::Display for WeightsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_hash(self.0, f)
    }
}

impl From<WeightsId> for String {
    fn from(id: WeightsId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for WeightsId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<WeightsId, &'static str> {
        parse_hash(&text).map(WeightsId).ok_or("a hash of weights has 32 hexadecimal digits")
    }
}

pub(super) fn fmt_hash(hash: [u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:032x}", u128::from_be_bytes(hash))
}

/// 32 hexadecimal digits.
pub(super) fn parse_hash(text: &str) -> Option<[u8; 16]> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| digits);
    number.map(u128::to_be_bytes)
}
