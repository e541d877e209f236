//! Plans which copies to keep where, and where to fetch each sample, before the first read (NoPFS, HDMLP).
//!
//! The order of a run is known in advance, so every rank knows how often each rank will read each sample
//! ([`Frequencies`]), and when it will first read it. From this and the capacities of all tiers, which the caller
//! provides, each rank computes the same plan without messages:
//!
//! - *Tiers.* A rank sorts its samples by its own access frequency over all epochs and fills its tiers with them,
//!   the fastest first ([`Planner`]). Nothing is evicted or migrated. Inside a tier, the copies lie in the order of
//!   first access; they are also copied in this order.
//! - *Holders.* If several ranks plan a copy of a sample, one of them holds it for the others: the rank with the
//!   fastest tier, and then with the lowest address, which is copied first ([`HolderMap`]).
//! - *Holders by hash.* [`ChunkHolders`] ignores frequencies: a hash distributes the chunks over the nodes of a job
//!   in proportion to their rooms, so that each chunk is held once if there is room for it.
//! - *Source.* The [`Model`] selects the fastest of own copy, holder's copy and origin; [`SourceRates`] does the
//!   same from the known rates of a machine.
//!
//! A run plans its tiers by the same rule, but for portions of the units that tiers keep, instead of samples
//! (`cache::TierPlan`, with the access strings of [`ByPortion`]).
//!
//! Plans use integers only: if two machines rounded differently, they would look for a sample at different
//! addresses. This module does not read, wait or measure: `tier` admits copies, `cache` moves them, and `tools/sim`
//! runs this very code to simulate the result.
//!
//! *Cost*, for F samples, E epochs and N ranks: a rank walks its E * F / N accesses once, and meanwhile keeps some
//! 30 bytes for each of its samples. The holder map does this for every rank, one after the other, and keeps 8
//! bytes per sample. Nothing grows with F * E.
//!
//! Read `access.rs`, then `planner.rs`. `chunk_holders.rs` and `model.rs` can be read alone.

mod access;
mod chunk_holders;
mod model;
mod planner;

pub use access::{Accesses, ByPortion, TrainingRun};
pub use chunk_holders::{ChunkHolders, Member};
pub use model::{Curve, Model, OriginClient, Rate, Source, SourceRates, Stage};
pub use planner::{Frequencies, Holder, HolderMap, MAX_TIERS, PlannedCopy, Planner};
