//! Sources, chunks and commits: everything that writes an image.

pub mod sources;
