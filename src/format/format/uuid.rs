//! The UUID of an image.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The identity of an image: 16 random bytes, the same in every structure of the image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// A version 4 UUID from 16 random bytes that the caller provides.
    pub fn from_random_bytes(mut bytes: [u8; 16]) -> Uuid {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Uuid(bytes)
    }

    /// Seed of all name hashes of this image. So names chosen to collide in one image do not collide in another.
    pub(crate) fn hash_seed(&self) -> u64 {
        let (low, _) = self.0.split_first_chunk().expect("16 bytes begin with 8");
        u64::from_le_bytes(*low)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Uuid, &'static str> {
        let digits = text.replace('-', "");
        let is_whole = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_whole);
        number.map(|number| Uuid(number.to_be_bytes())).ok_or(NOT_A_UUID)
    }
}

const NOT_A_UUID: &str = "not a UUID: 32 hexadecimal digits are expected";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_back_from_its_text_and_nothing_else_does() {
        let uuid = Uuid::from_random_bytes([0xab; 16]);
        assert_eq!(uuid.to_string(), "abababab-abab-4bab-abab-abababababab");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!("abab".parse::<Uuid>(), Err(NOT_A_UUID));
        assert_eq!(format!("{uuid}0").parse::<Uuid>(), Err(NOT_A_UUID));
        assert_eq!("é".repeat(32).parse::<Uuid>(), Err(NOT_A_UUID));
    }
}
