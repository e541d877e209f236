//! Support code that test programs share.
#![allow(dead_code, unreachable_pub)] // a module of each test program, which uses a part of it

pub mod breaking;
pub mod contract;
pub mod disk;
pub mod faults;
pub mod fork;
pub mod hostile_target;
#[cfg(feature = "tls")]
pub mod keyring;
pub mod linux_host;
pub mod linux_target;
pub mod nvmf_tgt;
pub mod origin;
pub mod random;
pub mod raw_host;
pub mod short_timeouts;
#[cfg(feature = "tls")]
pub mod tls_tunnel;
pub mod warnings;
