//! Everything that writes an image, and the catalogues that name images.
//!
//! [`import`] turns files, archives, tables and objects into chunks and commits them; [`catalog`] maps names to
//! versions and their addresses.
//!
//! This crate does not read samples for users, and defines no format (`dlfs-format` does). It keeps no state but
//! images, plans of imports, catalogues, and a cache of catalogue answers. Sources in object stores need the
//! feature `cloud`, Parquet, Arrow, MDS and LitData `formats`, catalogues in a server `catalog`.
//!
//! Begin with [`import::import`], or with [`import::Writer`] to write samples from memory.

pub mod catalog;
pub mod import;
