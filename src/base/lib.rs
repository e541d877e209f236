//! Units, errors, buffers, threads and metrics: what every other crate of dlfs stands on.
//!
//! [`units`] has the integers, [`error`] the one error type, [`buf`] memory for device I/O, [`process`] values that a
//! forked child must not use, and [`metrics`] every counter by name. [`checksum`] and [`permutation`] are arithmetic.
//!
//! It is no collection for others: nothing here knows NVMe, samples or files of dlfs, and what is hidden from these
//! pages may change with any commit. The modules that only compute are listed in `tests/tidy.rs`, as for all crates.
//!
//! Begin with [`units`] and [`error`]. The library that users depend on is `dlfs`.

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
