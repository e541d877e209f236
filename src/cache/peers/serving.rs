//! A node's answer to a peer that asks for data which its tiers lack, and the rule by which nodes hold data.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, ErrorKind};

/// A node's answer to a peer that asks for data which its tiers lack, and the rule by which nodes hold data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serving {
    /// It reads them from the origin, keeps those of chunks that it holds, and answers.
    #[default]
    ReadThrough,
    /// It answers that it has not got them: it serves copies only, and fetches those of chunks that it holds by
    /// itself.
    #[serde(rename = "copies")]
    CopiesOnly,
    /// As `CopiesOnly`; and who holds what follows not from a hash, but from the plan of the run: each node keeps
    /// what its own ranks read most often, and serves that (NoPFS).
    #[serde(rename = "plan")]
    Planned,
}

impl Serving {
    /// All of them, by the names that the command, Python and C have.
    pub const NAMES: &[(&str, Serving)] = &[
        ("read-through", Serving::ReadThrough),
        ("copies", Serving::CopiesOnly),
        ("plan", Serving::Planned),
    ];

    /// Returns whether peers never make this node read the origin.
    pub fn is_copies_only(self) -> bool {
        self != Serving::ReadThrough
    }
}

impl FromStr for Serving {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument`: no mode has this name.
    fn from_str(text: &str) -> Result<Serving, Error> {
        let found = Serving::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, serving)| serving).ok_or_else(|| {
            let names: Vec<&str> = Serving::NAMES.iter().map(|&(name, _)| name).collect();
            let text = format!("peers have no mode {text:?}");
            Error::new(ErrorKind::InvalidArgument, text)
                .hint(format!("one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_has_the_same_name_everywhere_and_others_are_refused_with_the_names() {
        for (name, serving) in Serving::NAMES {
            assert_eq!(name.parse::<Serving>().unwrap(), *serving);
            assert_eq!(serde_json::to_value(serving).unwrap(), *name);
        }
        let error = "through".parse::<Serving>().unwrap_err().report();
        assert!(
            error.contains("\"through\"") && error.contains("read-through, copies, plan"),
            "{error}"
        );
    }
}
