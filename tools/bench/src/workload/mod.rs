//! The workload: the next block, its contents, and the time from which it may be issued.
//!
//! Pure: seeds and times are arguments. [`positions::Positions`] gives the blocks,
//! [`content::Content`] the contents, and [`rate::Rates`] the times.

pub(crate) mod content;
pub(crate) mod positions;
pub(crate) mod random;
pub(crate) mod rate;
