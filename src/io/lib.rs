//! I/O on namespaces, through polled queue pairs: over NVMe/TCP, PCIe, vfio-user and SPDK, in files, folders, object
//! stores and memory.
//!
//! [`qpair`] has the trait, its engines and the lifecycle of a remote controller. [`tls`] is TLS 1.3 for an NVMe/TCP
//! connection. [`address`] is the syntax in which users name a namespace. The crate `dlfs-nvme` has the protocol,
//! `dlfs-pcie` the driver of controllers whose queues lie in memory, and `dlfs-places` the object stores.
//!
//! This crate transfers blocks and knows nothing of samples, images or caches. Without OpenSSL 3, connections with TLS
//! are refused; without the feature `spdk`, SPDK addresses are refused.
//!
//! Begin with [`qpair::QueuePair`], then [`qpair::open`].

pub mod address;
pub mod qpair;
#[cfg(feature = "spdk")]
pub mod spdk;
pub mod tls;
