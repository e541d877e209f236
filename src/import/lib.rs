//! Everything that writes an image, and the catalogues that name images.
//!
//! [`import`] turns files, archives, tables and objects into chunks and commits them; [`catalog`] maps names to
//! versions and their addresses.
//!
//! It reads no samples for users, defines no format (`dlfs-format` does) and keeps no state outside the image.
//! Sources of objects need the feature `cloud`, those in tables `formats`, catalogues in a server `catalog`.
//!
//! Begin with [`import::import`], or with [`import::Writer`] to write samples from memory.

pub mod catalog;
pub mod import;
