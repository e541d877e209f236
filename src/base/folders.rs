//! The choice of samples in a folder: hidden files, and symbolic links. Pure.

use std::str::FromStr;

use crate::error::{Error, invalid};

/// Options for choosing the samples of a folder, for importing it or for reading it directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FolderOptions {
    /// Includes hidden files and folders, and those that file systems and tools leave behind: see [`is_dropping`].
    /// Applies to archives and stores, too.
    pub hidden: bool,
    /// The symbolic links to follow.
    pub links: Links,
}

/// The symbolic links of a folder that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Links {
    /// All links, as torchvision's ImageFolder does. Skips a link to a folder that contains it, and paths through more
    /// than [`MAX_LINKED_FOLDERS`].
    #[default]
    Follow,
    /// Links that stay within the folder; others are errors.
    Inside,
    /// No links: each is an error.
    Refuse,
}

impl FromStr for Links {
    type Err = Error;

    fn from_str(text: &str) -> Result<Links, Error> {
        match text {
            "follow" => Ok(Links::Follow),
            "inside" => Ok(Links::Inside),
            "refuse" => Ok(Links::Refuse),
            _ => Err(invalid(format!("{text:?} is neither follow nor inside nor refuse"))),
        }
    }
}

/// Returns whether a component of the path `name` begins with a dot (except `.` and `..`), or is a file or folder that
/// file systems and tools leave behind.
pub fn is_dropping(name: &[u8]) -> bool {
    name.split(|&byte| byte == b'/').any(|component| {
        component.starts_with(b".") && component != b"." && component != b".."
            || DROPPINGS.iter().any(|dropping| component.eq_ignore_ascii_case(dropping))
    })
}

/// The most linked folders that are followed in one path: each may multiply the number of files.
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
