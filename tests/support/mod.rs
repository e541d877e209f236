//! What several test programs share.
#![allow(dead_code, unreachable_pub)] // a module of each test program, which uses a part of it

pub mod breaking;
pub mod contract;
pub mod disk;
pub mod evil;
pub mod faults;
pub mod fork;
pub mod hasty;
#[cfg(feature = "spdk")]
pub mod nvmf_tgt;
pub mod random;
pub mod raw_host;
pub mod warnings;
