//! Modes of serving: a node's answer to a peer that asks for data that its tiers lack, and the rule by which
//! nodes hold data.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, ErrorKind};

/// A node's answer to a peer that asks for data that its tiers lack, and the rule by which nodes hold data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serving {
    /// The node reads the data from the origin, keeps them if it holds their chunk, and answers.
    #[default]
    ReadThrough,
    /// The node answers that it does not have the data. It serves only copies, and fetches the chunks that it
    /// holds without being asked.
    #[serde(rename = "copies")]
    CopiesOnly,
    /// Like `CopiesOnly`, but the plan of the run instead of a hash decides which node holds which data. Each
    /// node keeps the data that its own ranks read most often, and serves these (NoPFS).
    #[serde(rename = "plan")]
    Planned,
}

impl Serving {
    /// All modes, with their names in the command line, Python and C.
    pub const NAMES: &[(&str, Serving)] = &[
        ("read-through", Serving::ReadThrough),
        ("copies", Serving::CopiesOnly),
        ("plan", Serving::Planned),
    ];

    /// Returns whether peers can never make this node read the origin.
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
