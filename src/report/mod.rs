//! Report on a run: how long, when, and for which cause the consumer of batches waited.
//!
//! A loader divides each wait among the [`Cause`]s. This module adds up the parts and presents them: `stalls` by cause,
//! `timeline` over the course of the run, `trace` as events for Perfetto, `run` as JSON and as advice on what to try
//! next, `page` as an HTML page with charts. `text` writes numbers for people. No code here reads a clock: times are
//! arguments.
//!
//! Invariants: memory is bounded for any length of run; the parts of a wait add up to the wait, and all parts
//! of a run to its time.
//!
//! Read `timeline.rs` first.

mod page;
mod run;
mod stalls;
pub mod text;
mod timeline;
mod trace;

pub use crate::metrics::{Place, PlaceBytes};
pub use run::{Facts, Reads, Report, StoreUse, TierUse};
pub use stalls::{Cause, Stalls};
pub(crate) use timeline::Delivered;
pub use timeline::{Counts, Epoch, Timeline};
pub(crate) use trace::{Event, EventKind, Events, to_json as trace_to_json};
