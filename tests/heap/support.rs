//! The parts of the common test support that these tests need.
#![allow(dead_code, unreachable_pub)] // they use a part of it

#[path = "../support/faults.rs"]
pub mod faults;
#[path = "../support/fork.rs"]
pub mod fork;
#[path = "../support/random.rs"]
pub mod random;
