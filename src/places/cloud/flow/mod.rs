//! Decides how many requests are in flight, which are retried, and which ranges come next. Pure.
//!
//! Times and random numbers are arguments. `fetch.rs` and `reader.rs` carry out the decisions.

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
