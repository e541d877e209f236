//! What to keep where, and what to fetch from where, decided before the first read (NoPFS, HDMLP).
//!
//! The order of a run is known in advance, so every rank knows how often each rank will read each
//! sample ([`Frequencies`]) and when for the first time. From that and the capacities of all tiers,
//! gathered once at the start ([`Inputs`]), each rank computes the same plan without a message:
//!
//! - *Placement.* A rank ranks its samples by its own access frequency over all epochs and fills its
//!   tiers with them, the fastest first ([`Planner`]). Nothing is evicted, nothing migrates. Inside a
//!   tier the copies lie in the order of first access, which is also the order of filling them.
//! - *Holders.* Of all ranks that plan a copy of a sample, the one with the fastest tier and in it the
//!   lowest address holds it for the others ([`HolderMap`]): lowest address is earliest filled. A
//!   [`Plan`] is that map, bound to the inputs and to the data set: of another one it is refused.
//! - *Source.* Of own copy, holder's copy and origin, the [`Model`] says which is read fastest.
//!
//! Plans are integers throughout: two machines that rounded differently would look for a sample at
//! different addresses. Nothing here reads, waits or measures: `tier` admits copies, `cache` moves
//! them, and `tools/sim` simulates what comes of it with this very code.
//!
//! *Cost*, for F samples, E epochs and N ranks: one rank walks its E * F / N accesses two times, once
//! more for each further tier, and keeps 2.2 bytes a sample; the holder map does so for every rank and
//! keeps 8 bytes more. Nothing grows with F * E.
//!
//! Read `access.rs`, `placement.rs` and `holders.rs`, in that order; `model.rs` stands alone.

mod access;
mod by_unit;
mod error;
mod frequency;
mod holders;
mod inputs;
mod joint;
mod model;
mod placement;

pub use access::{Accesses, Lengths, Run};
pub use by_unit::ByUnit;
pub use error::PlanError;
pub use frequency::Frequencies;
pub use holders::{Holder, HolderMap, Placement};
pub use inputs::{Inputs, RankInputs, TierInputs};
pub use joint::Plan;
pub use model::{Curve, Model, Rate, Source, Stage};
pub use placement::{PlannedCopy, Planner, Tier};
