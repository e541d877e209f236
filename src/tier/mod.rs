//! Decides which copies are kept in which tier, and where; `cache` moves them. Pure.
//!
//! A *tier* is a bounded, faster place in front of an *origin*: memory, or a local file. Data are
//! kept in [`Units`]: ranges of samples that are copied as a whole. The [`Ledger`] reserves room
//! before anything is copied, within the quota. The [`CopyTable`] holds the location of each unit's
//! copy and changes atomically, so a reader sees either the origin or a complete copy.
//!
//! There are two policies. Neither evicts or migrates during a run, since an epoch reads everything
//! in random order and eviction would only churn:
//!
//! - *first-touch* (Monarch): the first read of a unit reserves room in the fastest tier that has
//!   some; the read itself is served from where the data are now.
//! - *clairvoyant* (NoPFS): a plan of the whole run (`plan`) selects the units of each tier, ranked
//!   by how often this rank reads them. Copies of an earlier run are evicted for copies that this
//!   run reads more often ([`copies_to_evict`]).
//!
//! [`Index`] is what a tier on local storage keeps across restarts.
//!
//! Read `units.rs`, `copies.rs`, `ledger.rs`, in that order.

mod copies;
mod eviction;
mod index;
mod ledger;
mod page_allocator;
mod units;

pub use copies::{CopyLocation, CopyState, CopyTable, Words};
pub use eviction::{Candidate, copies_to_evict};
pub use index::{ENTRY_BYTES, HEADER_BYTES, Index, IndexError, Kept};
pub use ledger::{Ledger, Policy, Stop};
pub use units::{Unit, Units};

/// Copies start at multiples of this, like everything on media.
pub const PAGE_BYTES: u64 = crate::units::ALIGN_BYTES as u64;
