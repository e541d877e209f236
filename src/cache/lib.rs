//! Caches of samples in faster places: tiers in front of an origin, the tiers of other nodes, a rank's
//! own share.
//!
//! [`cache`] creates and serves copies in memory, local files and remote namespaces, [`peers`] shares these
//! copies between the nodes of a job, and [`store`] keeps a rank's share under partial local shuffling.
//!
//! This crate does not plan: `dlfs-order` does. It leaves verification to the reader, which compares the
//! checksum of every sample, from whichever source the sample came.
//!
//! Begin with [`cache::Cache`].

pub mod cache;
pub mod peers;
pub mod store;
