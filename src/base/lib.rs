//! Units, errors, buffers, threads and metrics: the base of all other crates of dlfs.
//!
//! [`units`] has the integer types, [`error`] the error type, [`buf`] memory for device I/O, and [`metrics`] all
//! metrics by name. [`process`] holds values that a forked child must not use. [`checksum`] and [`permutation`] are
//! arithmetic, and [`folders`] chooses the files of a folder. Hidden modules are small tools of the other crates:
//! files, threads, log messages, random numbers.
//!
//! It is not a general-purpose library, and hidden items may change with any commit. Nothing here does I/O on
//! namespaces, or decodes media or wire. `tests/tidy.rs` lists the pure modules of all crates.
//!
//! Start with [`units`] and [`error`]. Users depend on the crate `dlfs`.

#[doc(hidden)]
pub mod beneath;
pub mod buf;
pub mod checksum;
pub mod error;
pub mod folders;
#[doc(hidden)]
pub mod messages;
pub mod metrics;
#[doc(hidden)]
pub mod nameless_file;
#[doc(hidden)]
pub mod percent;
pub mod permutation;
pub mod process;
#[doc(hidden)]
pub mod random;
#[doc(hidden)]
pub mod registry;
#[doc(hidden)]
pub mod replace_file;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod threads;
pub mod units;

pub use error::{Error, ErrorKind, Result};
