//! dlfs: a user-level NVMe-oF file system for deep-learning training.
//!
//! A data set is *imported* onto one or more NVMe *namespaces*. A *directory* in memory holds the place of
//! each *sample*. An *order* (seed, epoch, rank, world size) fixes the sequence of samples for the whole run
//! in advance. A *reader* turns each batch into few large reads. A *queue pair*, polled in user space, moves
//! the bytes from a local or a remote namespace. A *target* serves namespaces.
//!
//! # The map
//!
//! ```text
//!  4  dlfs         options -> dataset -> prefetch -> reader, report; exporter    wires the parts and owns them
//!  3  dlfs-import  import -> catalog   dlfs-cache   store -> cache, peers        what runs
//!     dlfs-target  keys -> target
//!     dlfs-tokens  tokens        dlfs-gpu  gpu        dlfs-shards  shards -> dlfs-import
//!  2  dlfs-io  qpair -> address, tls, spdk  |  dlfs-order   plan -> order, tier
//!  1  dlfs-nvme    tcp, auth -> nvme   |  dlfs-format  view, posix -> directory -> format
//!     dlfs-pcie    pcie -> dlfs-nvme   |  left: how blocks and bytes travel; right: samples, and how they lie
//!     dlfs-places  places              |
//!  0  dlfs-base    units  error  buf  checksum  permutation  process  threads  metrics  registry  folders
//!                  random  sync  replace_file  nameless_file  beneath  percent  messages
//! ```
//!
//! Each crate is a folder below `src/`; this one re-exports the modules that users need. A crate uses only
//! lower crates that its manifest names. The crates on the left know no samples; those on the right do no
//! I/O. Inside a crate, a module uses only the modules that its arrow names; `tests/tidy.rs` checks this. The
//! first page of each crate and module says what it is, what it deliberately is not, and which file to read
//! first.
//!
//! | to | begin with |
//! |---|---|
//! | read samples by id, or along an order | [`dataset`], then [`prefetch`] |
//! | take options from a user | [`options`] |
//! | look samples up by name or id | [`directory`] |
//! | put files onto a namespace | [`import`] |
//! | read tar archives and other shards as they are | [`shards`] |
//! | serve a namespace to any NVMe/TCP host | [`target`] |
//! | know which sample comes next, on any rank | [`order`] |
//! | show samples as files | [`posix`] |
//! | find a data set by its name | [`catalog`] |
//! | take some of the samples | [`view`] |
//! | keep copies in faster places | [`cache`], which does what [`tier`] and [`plan`] decide |
//! | keep a rank's share with the rank | [`store`] |
//! | move blocks, and nothing else | [`qpair`] |
//! | read objects of a store | [`places`] |
//! | pack documents of tokens into rows | [`dataset::TokenLoader`], [`tokens`] |
//! | copy batches to a GPU | [`gpu`] |
//! | know what a process has counted | [`metrics`], then [`exporter`] |
//! | know what a consumer of batches waited for | [`report`] |
//!
//! The page of [`reader`] draws the path of a batch. That path has no system call, lock, allocation or log
//! line per sample, only per burst or batch.

pub mod dataset;
pub mod exporter;
pub mod options;
pub mod prefetch;
pub mod reader;
pub mod report;

#[doc(inline)]
pub use dlfs_base::{buf, error, folders, metrics, units};
#[doc(inline)]
pub use dlfs_cache::{cache, peers, store};
#[doc(inline)]
pub use dlfs_format::{directory, format, posix, view};
#[doc(inline)]
pub use dlfs_gpu as gpu;
#[doc(inline)]
pub use dlfs_import::{catalog, import};
#[doc(inline)]
pub use dlfs_io::{address, qpair};
#[doc(inline)]
pub use dlfs_nvme::nvme;
#[doc(inline)]
pub use dlfs_order::{order, plan, tier};
#[doc(inline)]
pub use dlfs_places as places;
#[doc(inline)]
pub use dlfs_shards as shards;
#[doc(inline)]
pub use dlfs_target as target;
#[doc(inline)]
pub use dlfs_target::keys;
#[doc(inline)]
pub use dlfs_tokens as tokens;

// For the tools and tests of the workspace.
#[doc(hidden)]
pub use dlfs_base::{checksum, messages, permutation, process};
#[cfg(feature = "spdk")]
#[doc(hidden)]
pub use dlfs_io::spdk;
#[doc(hidden)]
pub use dlfs_io::tls;
#[doc(hidden)]
pub use dlfs_nvme::{auth, tcp};

use dlfs_base::{registry, replace_file, threads};

pub use error::{Error, ErrorKind, Result};

/// The commit that the library is built from, in twelve digits; `unknown` if the build was not told.
pub const COMMIT: &str = env!("DLFS_COMMIT");

/// The date of [`COMMIT`], as `2026-11-22`, or `unknown`.
pub const COMMIT_DATE: &str = env!("DLFS_COMMIT_DATE");

/// The Rust in the manual runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../docs/training.md")]
pub mod training {}
