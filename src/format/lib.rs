//! The image format, the sample directory, views and file trees. Pure: bytes go in and come out, without I/O.
//!
//! [`mod@format`] encodes and decodes an image, [`directory`] maps ids and names of samples to their locations,
//! [`view`] selects some of the samples, and [`posix`] presents the samples as a tree of files.
//!
//! This crate neither writes images (`dlfs-import` does) nor chooses the next sample (`dlfs-order` does).
//!
//! Begin with [`mod@format`], or with [`directory::Directory`] to look samples up.

pub mod directory;
pub mod format;
pub mod posix;
pub mod view;
