//! Which copies are kept in which tier, and where: decided here, moved by `cache`. Pure.
//!
//! A *tier* is a bounded, faster place in front of an *origin*: memory, a local file. What is kept is
//! cut into [`Units`]: runs of samples that are copied as a whole. The [`Ledger`] reserves room before
//! anything is copied and never more than the quota; [`Places`] says for each unit where its copy is,
//! and changes in one step, so that a reader sees the origin or a whole copy and nothing between.
//!
//! Two policies, both without eviction during a run and without migration, since an epoch goes through
//! everything in random order and evicting would only churn:
//!
//! - *first-touch* (Monarch): the first read of a unit reserves room for it in the first tier that has
//!   some, top down; the read itself is served from where the bytes are now.
//! - *clairvoyant* (NoPFS): a plan made of the whole run (`plan`) says which units each tier keeps,
//!   ranked by how often this rank reads them. Copies that an earlier run left give way to those that
//!   this one reads more often ([`give_way`]).
//!
//! [`index`](Index) is what a tier on local storage remembers across a restart.
//!
//! Read `units.rs`, `places.rs`, `ledger.rs`, in that order.

mod change;
mod index;
mod ledger;
mod places;
mod room;
mod units;

pub use change::{Candidate, give_way};
pub use index::{ENTRY_BYTES, HEADER_BYTES, Index, IndexError, Kept};
pub use ledger::{Ledger, Policy, Stop};
pub use places::{Place, Places, State};
pub use units::{Unit, Units};

/// Copies begin at multiples of this, as everything on media does.
pub const PAGE_BYTES: u64 = crate::units::ALIGN_BYTES as u64;
