//! Report on a run: how long, when, and for which cause the consumer of batches waited.
//!
//! `cause` names the causes. A loader divides each wait among them. This module adds up the parts and
//! presents them: `timeline` over the course of the run, `trace` as events for Perfetto, `json` as data,
//! `page` as an HTML page with charts, and `advice` as what to try next. No code here reads a clock: times are
//! arguments.
//!
//! Invariants: memory is bounded for any length of run; the parts of a wait add up to the wait, and all parts
//! of a run to its time.
//!
//! Read `timeline.rs` first.

mod page;
mod run;
pub mod text;
mod timeline;

pub use crate::metrics::{Place, PlaceBytes};
pub use run::{Facts, Reads, Report, StoreUse, TierUse};
pub use timeline::{Cause, Counts, Epoch, Stalls, Timeline};
pub(crate) use timeline::{Delivered, Event, Events, What, to_json as trace_to_json};
