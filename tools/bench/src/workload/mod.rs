//! Which block comes next, what is in it, and when it may go.
//!
//! Pure: seeds and times are arguments. [`positions::Positions`] says where, [`content::Content`] what,
//! [`rate::Pace`] when, [`depth_search::DepthSearch`] how many at a time, and [`steady`] when the
//! figures have become steady.

pub(crate) mod content;
pub(crate) mod depth_search;
pub(crate) mod draw;
pub(crate) mod positions;
pub(crate) mod random;
pub(crate) mod rate;
pub(crate) mod steady;
