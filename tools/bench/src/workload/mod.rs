//! Which block comes next, what is in it, and when it may go.
//!
//! Pure: seeds and times are arguments. [`positions::Positions`] says where, [`content::Content`] what,
//! and [`rate::Rates`] when.

pub(crate) mod content;
pub(crate) mod positions;
pub(crate) mod random;
pub(crate) mod rate;
