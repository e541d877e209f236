//! NVMe Qualified Name (NQN): the name of a subsystem or of a host.

use std::fmt;
use std::str::FromStr;

/// The name of a subsystem or of a host: 1 to 223 bytes of UTF-8, without control characters or trailing
/// spaces.
///
/// The prefix `nqn.` is not required, since some targets have names without it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nqn(String);

/// Reasons why a string is not an NQN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// No bytes, or none before the first NUL of a field.
    #[error("an NQN must not be empty")]
    Empty,
    /// Longer than `Nqn::MAX_LEN_BYTES`.
    #[error("an NQN has at most 223 bytes, this has {0}")]
    TooLong(usize),
    /// A control character, NUL included.
    #[error("an NQN must not contain control characters")]
    Control,
    /// A trailing space, which the other side would take for padding.
    #[error("an NQN must not end in a blank")]
    Blank,
    /// The field is not UTF-8.
    #[error("an NQN must be UTF-8")]
    NotUtf8,
}

impl Nqn {
    /// The longest NQN, in bytes.
    pub(crate) const MAX_LEN_BYTES: usize = 223;

    /// The NQN of every discovery service.
    pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

    /// Checks that `text` is a valid NQN.
    pub fn new(text: impl Into<String>) -> Result<Nqn, NqnError> {
        let text = text.into();
        match text.len() {
            0 => Err(NqnError::Empty),
            len if len > Nqn::MAX_LEN_BYTES => Err(NqnError::TooLong(len)),
            _ if text.chars().any(char::is_control) => Err(NqnError::Control),
            _ if text.ends_with(' ') => Err(NqnError::Blank),
            _ => Ok(Nqn(text)),
        }
    }

    /// The NQN of the discovery service.
    pub fn discovery() -> Nqn {
        Nqn(Nqn::DISCOVERY.to_owned())
    }

    /// The conventional NQN of the host with this UUID.
    pub fn host_of_uuid(uuid: [u8; 16]) -> Nqn {
        let mut text = String::from("nqn.2014-08.org.nvmexpress:uuid:");
        for (i, byte) in uuid.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        Nqn(text)
    }

    /// The NQN as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 256-byte wire field, padded with NUL.
    pub fn to_field(&self) -> [u8; 256] {
        let mut field = [0; 256];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// Decodes a wire field: the bytes before the first NUL, without trailing spaces.
    pub fn from_field(field: &[u8]) -> Result<Nqn, NqnError> {
        let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        let text = std::str::from_utf8(&field[..len]).map_err(|_| NqnError::NotUtf8)?;
        Nqn::new(text.trim_end_matches(' '))
    }
}

impl FromStr for Nqn {
    type Err = NqnError;
    fn from_str(text: &str) -> Result<Nqn, NqnError> {
        Nqn::new(text)
    }
}

impl TryFrom<String> for Nqn {
    type Error = NqnError;
    fn try_from(text: String) -> Result<Nqn, NqnError> {
        Nqn::new(text)
    }
}

impl From<Nqn> for String {
    fn from(nqn: Nqn) -> String {
        nqn.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_for_length_and_control_characters() {
        assert_eq!(Nqn::new(""), Err(NqnError::Empty));
        assert_eq!(Nqn::new("x".repeat(224)), Err(NqnError::TooLong(224)));
        assert_eq!(Nqn::new("a\nb"), Err(NqnError::Control));
        assert_eq!(
            Nqn::new("a b "),
            Err(NqnError::Blank),
            "it would come back from a field as another"
        );
        assert_eq!(Nqn::from_field(&Nqn::new(" a b").unwrap().to_field()), Nqn::new(" a b"));
        assert!(Nqn::new("x".repeat(223)).is_ok());
    }

    #[test]
    fn a_field_ends_at_nul_or_at_its_end_and_may_be_padded_with_spaces() {
        let nqn = Nqn::new("nqn.2026-11.io.dlfs:train").unwrap();
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn.clone()));
        assert_eq!(Nqn::from_field(b"nqn.2026-11.io.dlfs:train   "), Ok(nqn));
        assert_eq!(Nqn::from_field(&[0; 256]), Err(NqnError::Empty));
        assert_eq!(Nqn::from_field(&[b'a'; 256]), Err(NqnError::TooLong(256)));
        assert_eq!(Nqn::from_field(&[0xFF, 0]), Err(NqnError::NotUtf8));
    }

    #[test]
    fn a_host_is_named_after_its_uuid() {
        let uuid = std::array::from_fn(|i| i as u8 * 0x11);
        assert_eq!(
            Nqn::host_of_uuid(uuid).as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff"
        );
    }
}
