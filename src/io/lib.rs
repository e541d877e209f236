//! Polled queue pairs over NVMe/TCP, files, folders, memory and SPDK.
//!
//! [`qpair`] has the trait, its engines and the lifecycle of a remote controller. [`tls`] is TLS 1.3 for a
//! connection. [`address`] is the syntax in which users name a namespace. `dlfs-nvme` has the protocol itself,
//! and `dlfs-places` the addresses of objects.
//!
//! This crate transfers blocks and knows nothing of samples, images or caches. Where there is no
//! OpenSSL 3, connections with TLS are refused; without the feature `spdk`, SPDK addresses are refused.
//!
//! Begin with [`qpair::QueuePair`], then [`qpair::open`].

pub mod address;
pub mod qpair;
#[cfg(feature = "spdk")]
pub mod spdk;
pub mod tls;
