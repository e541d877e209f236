//! What a binding is thin over: a data set that many threads share, and loaders along an order.
//!
//! It wires [`crate::volume`], [`crate::reader`] and [`crate::prefetch`], owns what they made, and adds
//! what a language binding needs and must not invent twice: every method takes `&self` and may be
//! called from any thread; a wait asks its [`Watch`] at least every 100 ms, so that an interpreter can
//! look for signals; a forked child goes on by itself and leaves its parent alone; a batch outlives
//! whatever it was read by. It decides nothing about orders, reads or retries, and knows no language.
//!
//! ```no_run
//! use dlfs::job::{Dataset, OnError, Options, Wanted};
//! use dlfs::order::{OrderKind, OrderSpec};
//! use dlfs::prefetch::LoaderOptions;
//! use dlfs::units::SampleId;
//!
//! # fn main() -> dlfs::Result<()> {
//! let dataset = Dataset::open(&["train.dlfs".parse()?], &Options::default(), &mut ())?;
//! let read = dataset.read(Wanted::Ids(&[SampleId(3)]), OnError::Raise, &mut ())?;
//! println!("{} bytes", read.batch.bytes(0).len());
//!
//! let order = OrderSpec { kind: OrderKind::Grouped { lanes: 8, group: 4 }, seed: 7 };
//! let loader = dataset.loader(LoaderOptions::new(order, 256, 2))?;
//! while let Some(batch) = loader.next(&mut ())? {
//!     println!("epoch {}, {} samples", batch.epoch(), batch.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Threads and forks
//! [`Dataset`], [`Loader`] and [`Batch`](crate::reader::Batch) are `Send` and `Sync`. Threads that read
//! by id do so side by side, each through a reader of its own; threads that take from one loader take
//! turns and get different batches. After a fork the child may use all of them: at first use it opens
//! queue pairs of its own, and a loader goes on behind the batch that the parent was given last.
//!
//! Read `dataset.rs` first, then `loader.rs`; `per_process.rs` is the fork rule.

mod background;
mod dataset;
mod loader;
mod per_process;
mod sampler;
mod state_file;
mod stats;

pub use crate::reader::Watch;
pub use dataset::{Dataset, NOBODY, OnError, Options, Read, Wanted};
pub use loader::Loader;
pub use sampler::{Sampler, Share};
pub use state_file::{load_state, save_state};
pub use stats::sum as sum_stats;
