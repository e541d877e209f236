//! Sources, chunks and commits: everything that writes an image.
