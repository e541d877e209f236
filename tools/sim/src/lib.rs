//! A simulator of the HDMLP thesis (R. Böhringer, 2020), built on dlfs's own planning code.
//!
//! It predicts how long a training takes on hypothetical machines under each of the thesis's input policies and
//! dlfs's own. The order and the ranks' shares are dlfs's; frequencies, placement and holders come from
//! `dlfs::plan`. Only the threads, the storage, the network and the clock are simulated.
//!
//! Read `environment.rs` (the inputs), `schedule.rs` (which node reads which sample), `policy.rs`, `copies.rs` (the
//! copies that nodes hold) and `engine.rs` (the events), in that order. `thesis.rs` has the scenarios and results of
//! the thesis, and `search.rs` simulates many environments.

mod by_hash;
mod copies;
pub mod engine;
pub mod environment;
pub mod policy;
mod schedule;
pub mod search;
pub mod thesis;
