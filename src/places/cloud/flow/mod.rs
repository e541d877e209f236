//! How many requests are in flight, which are tried again, and what is asked for next: pure decisions.
//!
//! Times are passed in, as are random numbers. `fetch.rs` and `reader.rs` carry the decisions out.

mod ahead;
mod hedge;
mod ranges;
mod retry;
mod window;

pub(super) use ahead::ahead;
pub(super) use hedge::Latencies;
pub(super) use ranges::{Piece, Ranges};
pub(super) use retry::{Patience, Retry};
pub(super) use window::Window;
