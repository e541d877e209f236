//! dlfs: a user-level NVMe-oF file system for deep-learning training.
//!
//! A data set is *imported* onto one or more NVMe *namespaces*. A *directory* in memory knows where
//! each *sample* lies. An *order* (seed, epoch, rank, world size) says which samples come next, for
//! the whole run in advance. A *reader* turns a batch of them into few large reads. A *queue pair*,
//! polled in user space, moves them from a local or a remote namespace. A *target* serves namespaces.
//!
//! # The map
//!
//! ```text
//!  4  dataset                                             wires the parts and owns them
//!  3  prefetch -> reader    import -> catalog    target    store -> cache, peers    what runs
//!  2  qpair (engines)   |  plan -> order, tier, posix, view -> directory
//!  1  tcp    auth  tls    places  |  format        left: how blocks and bytes travel; right: samples, and how they lie
//!  0  nvme    buf    permutation    checksum    units    process    sync    threads    replace_file    random    error
//!     metrics    registry    exporter    report    nameless_file    folders    beneath
//! ```
//!
//! A module uses what stands lower and what an arrow names; the left side knows no samples and the
//! right side does no I/O. `tests/tidy.rs` holds this. Each module's first page says what it is, what
//! it deliberately is not, and which file to read first.
//!
//! | to | begin with |
//! |---|---|
//! | read samples by id, or along an order | [`dataset`], then [`prefetch`] |
//! | look samples up by name or id | [`directory`] |
//! | put files onto a namespace | [`import`] |
//! | serve a namespace to any NVMe/TCP host | [`target`] |
//! | know which sample comes next, on any rank | [`order`] |
//! | show samples as files | [`posix`] |
//! | find a data set by its name | [`catalog`] |
//! | take some of the samples | [`view`] |
//! | keep copies in faster places | [`cache`], which does what [`tier`] and [`plan`] decide |
//! | keep a rank's share with the rank | [`store`] |
//! | move blocks, and nothing else | [`qpair`] |
//! | read objects of a store | [`places`] |
//! | know what a process has counted | [`metrics`], then [`exporter`] |
//! | know what a consumer of batches waited for | [`report`] |
//!
//! The path of a batch is drawn on the page of [`reader`]. On it there is no system call, lock, allocation
//! or log line for a sample, only for a burst or a batch.

pub mod auth;
mod beneath;
pub mod buf;
pub mod cache;
pub mod catalog;
pub mod checksum;
pub mod dataset;
pub mod directory;
pub mod error;
pub mod exporter;
pub mod folders;
pub mod format;
pub mod import;
pub mod keys;
pub mod metrics;
mod nameless_file;
pub mod nvme;
pub mod order;
pub mod peers;
pub mod permutation;
pub mod places;
pub mod plan;
pub mod posix;
pub mod prefetch;
pub mod process;
pub mod qpair;
mod random;
pub mod reader;
mod registry;
mod replace_file;
pub mod report;
#[cfg(feature = "spdk")]
pub mod spdk;
pub mod store;
mod sync;
pub mod target;
pub mod tcp;
mod threads;
pub mod tier;
pub mod tls;
pub mod units;
pub mod view;

pub use error::{Error, ErrorKind, Result};

/// The commit that the library is built from, twelve digits of it; `unknown` where nobody told.
pub const COMMIT: &str = env!("DLFS_COMMIT");

/// The date of [`COMMIT`], as `2026-11-22`, or `unknown`.
pub const COMMIT_DATE: &str = env!("DLFS_COMMIT_DATE");

/// The Rust in the manual runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../docs/training.md")]
pub mod training {}
