//! Decides which copies are kept in which tier, and at which location; `cache` moves them. Pure.
//!
//! A *tier* is bounded, faster storage in front of an *origin*: memory, a drive, a file or a folder. Presence is
//! tracked by page of 4 KiB. [`Units`] divide the data set into ranges of at most 64 pages: each gets one location in a
//! tier, and one bit per page records its presence. The [`Ledger`] finds the location and reserves the pages within
//! the quota before anything is copied. The [`CopyTable`] holds location and pages and changes atomically, so for each
//! page a reader sees either the origin or a complete copy. It also records the pages that are being read from the
//! origin, so that each page is read by only one of several readers.
//!
//! The cost: 32 bytes of table and 24 bytes of index per unit. For a terabyte, the table takes 0.3 GB with
//! samples of 110 KB, 0.5 GB with small samples (64 KiB a unit), and 0.12 GB with samples of many megabytes.
//! All processes of a node share the table. A read of a copy loads two words for each touched unit, and the number
//! of evictions before and after.
//!
//! There are two policies that keep copies. Neither replaces a copy by another during a run, since an epoch reads all
//! samples in random order and an eviction would only trade one copy for another:
//!
//! - *first-touch* (Monarch): the first read of a page reserves room in the fastest tier that has some; the read
//!   itself is served from the data's current place. If a sample of 64 KiB or more, or a file of a plain folder, is
//!   read in part, it is kept whole.
//! - *clairvoyant* (NoPFS): a plan of the whole run (`plan`) selects the copies of each tier, ranked by how often
//!   this rank reads them. It selects whole samples of 64 KiB or more, and *portions* of units that
//!   smaller samples share; portions take 20 more bytes per unit. Copies of an earlier run are evicted for copies
//!   that this run reads more often ([`copies_to_evict`]).
//!
//! In a job whose nodes serve their tiers to each other, a node reserves room for the chunks that it holds for all
//! nodes ([`Holding`]). First-touch keeps other pages only in the remaining room; copies of other chunks that take
//! more are evicted when the node learns its chunks.
//!
//! [`Index`] records a tier's copies on local storage across restarts.
//!
//! A tier in a folder keeps each [`LongSample`] of a plain folder as a separate file, so that a program can be
//! given a descriptor of the copy. Its units have locations like all others, but take no room in the address space
//! of the tier's medium: their addresses lie after it ([`OWN_FILES_PAGE`]).
//!
//! Read `units.rs`, `copies.rs` and `ledger.rs`, in this order.

mod copies;
mod eviction;
mod index;
mod ledger;
mod page_set;
mod units;

pub use copies::{CopyLocation, CopyTable, OWN_FILES_PAGE, Room};
pub use eviction::{Candidate, copies_to_evict};
pub use index::{ENTRY_BYTES, HEADER_BYTES, Index, IndexError, Kept, sum_of_pages};
pub use ledger::{Holding, Lacking, Ledger, Policy, Stop, Want};
pub use page_set::PageSet;
pub use units::{LongSample, Unit, Units};

/// Copies start at multiples of this, like everything on media.
pub const PAGE_BYTES: u64 = dlfs_base::units::ALIGN_BYTES as u64;
