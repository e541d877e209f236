//! Decides which copies are kept in which tier, and where; `cache` moves them. Pure.
//!
//! A *tier* is a bounded, faster place in front of an *origin*: memory, or a local file. Presence is by
//! page of 4 KiB. [`Units`] divide the data set into ranges of at most 64 pages: each gets one place in
//! a tier, and a bit per page says whether it is there. The [`Ledger`] finds the place and reserves the
//! pages within the quota before anything is copied. The [`CopyTable`] holds place and pages and changes
//! atomically, so for each page a reader sees either the origin or a complete copy. It also says which
//! pages are under way, so that only one of many readers reads a page from the origin.
//!
//! The cost: 32 bytes of table and 24 bytes of index per unit. For a terabyte, the table takes 0.3 GB with
//! samples of 110 KB, 0.5 GB with small samples (64 KiB a unit), and 0.12 GB with samples of many megabytes.
//! All processes of a node share the table. A read of a copy loads two words for each unit that it
//! crosses, and the number of evictions before and after.
//!
//! There are two policies. Neither evicts or migrates during a run, since an epoch reads everything
//! in random order and eviction would only churn:
//!
//! - *first-touch* (Monarch): the first read of a page reserves room in the fastest tier that has
//!   some; the read itself is served from where the data are now. A sample of 64 KiB or more that is
//!   read in part is kept whole.
//! - *clairvoyant* (NoPFS): a plan of the whole run (`plan`) selects what each tier keeps, ranked by how often this
//!   rank reads it: samples of 64 KiB or more, and of units that smaller ones share the *portions* (`portions.rs`),
//!   which take 20 bytes more a unit. Copies of an earlier run are evicted for copies that this run reads more often
//!   ([`copies_to_evict`]).
//!
//! In a job whose nodes serve their tiers to each other, a node keeps room for the chunks that it holds for
//! all ([`Holding`]); first-touch keeps other pages only in the room that those leave.
//!
//! [`Index`] is what a tier on local storage keeps across restarts.
//!
//! A tier in a folder keeps each [`LongSample`] of a plain folder as a file of its own, so that a program can be given
//! a descriptor of the copy. Its units have places as all others, but no room in the address space of the tier's
//! medium: they lie at their own addresses behind it ([`OWN_FILES_PAGE`]).
//!
//! Read `units.rs`, `copies.rs`, `ledger.rs`, in that order.

mod copies;
mod eviction;
mod holding;
mod index;
mod ledger;
mod page_allocator;
mod page_set;
mod portions;
mod units;

pub use copies::{CopyLocation, CopyTable, OWN_FILES_PAGE, Room, Words};
pub use eviction::{Candidate, copies_to_evict};
pub use holding::{Holding, Lacking};
pub use index::{ENTRY_BYTES, HEADER_BYTES, Index, IndexError, Kept, sum_of_pages};
pub use ledger::{Ledger, Policy, Stop, Want};
pub use page_set::PageSet;
pub use units::{LongSample, Unit, Units};

/// Copies start at multiples of this, like everything on media.
pub const PAGE_BYTES: u64 = dlfs_base::units::ALIGN_BYTES as u64;
