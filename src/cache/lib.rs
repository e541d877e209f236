//! Copies of samples in faster places: tiers in front of an origin, the tiers of other nodes, a rank's own share.
//!
//! [`cache`] serves and makes copies in memory and local files, [`peers`] shares them between the nodes of a job, and
//! [`store`] keeps a rank's share under partial local shuffling.
//!
//! It decides nothing about the future: `dlfs-order` plans. It verifies nothing: the reader compares the checksum of
//! every sample, wherever it came from.
//!
//! Begin with [`cache::Cache`].

pub mod cache;
pub mod peers;
pub mod store;
