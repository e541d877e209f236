//! 128-bit ids of images, views and weights. They are in a module of their own, below state and specification, so
//! that both can contain them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The UUID of an image, or the hash of a view or of weights: 32 hexadecimal digits as text and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct HexId(pub [u8; 16]);

impl fmt::Display for HexId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl From<HexId> for String {
    fn from(id: HexId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for HexId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<HexId, &'static str> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| digits);
        let id = number.map(|number| HexId(number.to_be_bytes()));
        id.ok_or("an image, a view and weights are named by 32 hexadecimal digits")
    }
}
