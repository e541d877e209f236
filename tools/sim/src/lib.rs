//! The simulator of the HDMLP thesis (R. Böhringer, 2020) on dlfs's own planning code.
//!
//! What would a training take on machines that are not there, under each of the policies that have been
//! proposed for its input? The order is dlfs's, frequencies, placement and holders are `dlfs::plan`'s;
//! only the threads, the network and the clock are simulated.
//!
//! Read `environment.rs` (what is simulated), `policy.rs` (what each policy does) and `engine.rs` (the
//! events), in that order.

pub mod chart;
pub mod copies;
pub mod engine;
pub mod environment;
pub mod policy;
pub mod probed;
pub mod sc21;
pub mod schedule;
pub mod search;
pub mod thesis;
