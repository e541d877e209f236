//! The choice of samples in a folder: names to leave out, and links to follow. Pure.

use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Options for choosing the samples of a folder, for an import and for reading a folder without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FolderOptions {
    /// Takes hidden files, and what file systems and tools leave behind, as samples. Archives and stores, too.
    pub hidden: bool,
    /// The links to follow.
    pub links: Links,
}

/// The links of a folder that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Links {
    /// All of them, as torchvision's ImageFolder does; but none that leads back to a folder around it.
    #[default]
    Follow,
    /// Those that stay in the folder; the others are errors.
    Inside,
    /// None: each is an error.
    Refuse,
}

impl FromStr for Links {
    type Err = Error;

    fn from_str(text: &str) -> Result<Links, Error> {
        match text {
            "follow" => Ok(Links::Follow),
            "inside" => Ok(Links::Inside),
            "refuse" => Ok(Links::Refuse),
            _ => {
                let message = format!("{text:?} is neither follow nor inside nor refuse");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }
}

/// Returns whether a name is hidden, or one that file systems and tools leave behind, or lies in a folder of such a
/// name.
pub fn is_dropping(name: &[u8]) -> bool {
    name.split(|&byte| byte == b'/').any(|part| {
        part.starts_with(b".") && part != b"." && part != b".."
            || DROPPINGS.iter().any(|dropping| part.eq_ignore_ascii_case(dropping))
    })
}

/// Links to folders that are followed in one path: each may multiply the number of files.
#[doc(hidden)]
pub const MAX_LINKED_FOLDERS: usize = 8;

/// Names left behind by Windows, by Synology's disks, and in zip archives of macOS.
const DROPPINGS: &[&[u8]] = &[b"Thumbs.db", b"desktop.ini", b"@eaDir", b"__MACOSX"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_leave_behind_is_recognised_wherever_it_lies() {
        for name in
            ["._a.jpg", "cat/.DS_Store", "a/thumbs.DB", "@eaDir/a.jpg", ".ipynb_checkpoints/x"]
        {
            assert!(is_dropping(name.as_bytes()), "{name}");
        }
        for name in ["a.jpg", "./a", "../a", "a._b", "desktop.ini.jpg", "_a"] {
            assert!(!is_dropping(name.as_bytes()), "{name}");
        }
    }
}
