//! Samples as they lie on media and in memory: the format, the directory, views and file trees. Pure.
//!
//! [`mod@format`] is the layout of an image, [`directory`] the map from id and name to place, [`view`] a part of the
//! samples, and [`posix`] the samples as a tree of files.
//!
//! It does no I/O: bytes go in and come out. It neither writes images (`dlfs-import` does) nor chooses the next
//! sample (`dlfs-order` does).
//!
//! Begin with [`mod@format`], or with [`directory::Directory`] to look samples up.

pub mod directory;
pub mod format;
pub mod posix;
pub mod view;
