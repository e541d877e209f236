//! dlfs: a user-level NVMe-oF file system for deep-learning training.
//!
//! A data set is *imported* onto one or more NVMe *namespaces*. A *directory* in memory knows where
//! each *sample* lies. An *order* (seed, epoch, rank, world size) says which samples come next, for
//! the whole run in advance. A *reader* turns a batch of them into few large reads. A *queue pair*,
//! polled in user space, moves them from a local or a remote namespace. A *target* serves namespaces.
//!
//! Read `reader/pump.rs`, `qpair/mod.rs` and `tcp/host.rs`, in that order: that is the path of a batch.

pub mod buf;
pub mod directory;
pub mod error;
pub mod format;
pub mod import;
pub mod nvme;
pub mod order;
pub mod permutation;
pub mod plan;
pub mod prefetch;
pub mod qpair;
pub mod reader;
pub mod target;
pub mod tcp;
pub mod units;
pub mod volume;

pub use error::{Error, ErrorKind, Result};
