//! Plans what to keep where, and what to fetch from where, before the first read (NoPFS, HDMLP).
//!
//! The order of a run is known in advance, so every rank knows how often each rank will read each
//! sample ([`Frequencies`]), and when for the first time. From that and the capacities of all
//! tiers, which its caller knows, each rank computes the same plan without messages:
//!
//! - *Tiers.* A rank sorts its samples by its own access frequency over all epochs and fills its
//!   tiers with them, the fastest first ([`Planner`]). Nothing is evicted or migrated. Inside a
//!   tier, the copies lie in the order of first access, which is also the order in which they are
//!   copied.
//! - *Holders.* Of all ranks that plan a copy of a sample, the one with the fastest tier, and in it
//!   the lowest address, holds it for the others ([`HolderMap`]): the lowest address is copied
//!   first.
//! - *Holders by hash.* [`ChunkHolders`] ignores frequencies: a hash distributes the chunks over the nodes
//!   of a job in proportion to their rooms, so that everything is held once wherever there is room for it.
//! - *Source.* The [`Model`] says which of own copy, holder's copy and origin is read fastest;
//!   [`SourceRates`] chooses in the same way by what a run knows of its machine.
//!
//! A run plans its tiers by the same rule, of the portions of units that tiers keep instead of samples
//! (`cache::TierPlan`, of the access string that [`ByPortion`] gives).
//!
//! Plans use integers only: if two machines rounded differently, they would look for a sample at
//! different addresses. Nothing here reads, waits or measures: `tier` admits copies, `cache` moves
//! them, and `tools/sim` runs this very code to simulate the result.
//!
//! *Cost*, for F samples, E epochs and N ranks: a rank walks its E * F / N accesses twice and keeps some 30 bytes
//! for each sample among them while it is planned; the holder map does so for every rank, one after the other,
//! and keeps 8 bytes a sample. Nothing grows with F * E.
//!
//! Read `access.rs`, `planner.rs` and `holders.rs`, in that order; `chunk_holders.rs`, and `model.rs`
//! with `sources.rs`, stand alone.

mod access;
mod by_portion;
mod chunk_holders;
mod frequency;
mod holders;
mod model;
mod planner;
mod population;
mod sources;

pub use access::{Accesses, TrainingRun};
pub use by_portion::ByPortion;
pub use chunk_holders::{ChunkHolders, Member};
pub use frequency::Frequencies;
pub use holders::{Holder, HolderMap, PlannedCopy};
pub use model::{Curve, Model, Rate, Source, Stage};
pub use planner::Planner;
pub use sources::{OriginClient, SourceRates};
