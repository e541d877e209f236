//! Polled queue pairs over NVMe/TCP, files, folders, memory and SPDK.
//!
//! [`qpair`] has the trait, its engines and the life of a remote controller; [`tls`] is TLS 1.3 around a connection.
//! [`address`] is how users name a namespace.
//! The protocol itself is `dlfs-nvme`, and the addresses of objects come from `dlfs-places`.
//!
//! It transfers blocks and knows nothing of samples, images or caches. Without the feature `tls` a connection with
//! TLS is refused; without `spdk` an address of SPDK is.
//!
//! Begin with [`qpair::QueuePair`], then [`qpair::open`].

pub mod address;
pub mod qpair;
#[cfg(feature = "spdk")]
pub mod spdk;
pub mod tls;
