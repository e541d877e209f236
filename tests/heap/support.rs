//! What these tests need of the support of all others.
#![allow(dead_code, unreachable_pub)] // they use a part of it

#[path = "../support/faults.rs"]
pub mod faults;
#[path = "../support/fork.rs"]
pub mod fork;
#[path = "../support/random.rs"]
pub mod random;
