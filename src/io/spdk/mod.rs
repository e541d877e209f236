//! The boundary to SPDK: all unsafe code that calls SPDK, and nothing else.
//!
//! SPDK's rules, and where each is enforced:
//!
//! | rule | enforced by |
//! |---|---|
//! | the environment is started once per process, and not used after a fork | `env.rs` |
//! | starting it pins the thread to one core | `env.rs` restores the affinity |
//! | connecting and detaching: one thread at a time | the caller: one keeper thread per process |
//! | an I/O queue is used by one thread at a time | the lock in `queue.rs` |
//! | a queue is freed before its controller is detached | `controller.rs`, [`Controller::shut`] |
//! | a device writes only into memory that it can access | `DriverMemory`, and the submitter |
//! | no background thread is in SPDK when the process exits | `env.rs`, [`at_work`] |
//! | callbacks run in the middle of SPDK's work | they only record |
//!
//! The environment is never stopped: SPDK cannot start it again, and its memory is freed with the
//! process. Controllers are detached when their last user is gone.
//!
//! This module has no policy: `qpair::spdk` chooses the controllers, limits waits and handles failures. Read `queue.rs`
//! first.
#![allow(unsafe_code)] // the only module that calls SPDK

mod controller;
mod env;
mod keys;
mod log;
mod queue;

pub use controller::{Connecting, Controller, ControllerOptions, Identified, TransportId};
pub use env::{DriverMemory, Environment, at_work, driver_memory, start};
pub use keys::Key;
pub use queue::{Command, Core, Gone, IoQueue, Payload, Refusal};

use spdk_sys as sys;

/// SPDK's version, such as `26.01`.
pub fn version() -> String {
    format!("{}.{:02}", sys::SPDK_VERSION_MAJOR, sys::SPDK_VERSION_MINOR)
}

/// The compiled-in transports, by SPDK's names.
pub fn transports() -> Vec<&'static str> {
    let all = [c"PCIE", c"TCP", c"RDMA", c"VFIOUSER"];
    let found = all.into_iter().filter(|name| {
        // SAFETY: a NUL-terminated name; the list that is searched was made before main.
        unsafe { sys::spdk_nvme_transport_available_by_name(name.as_ptr()) }
    });
    found.filter_map(|name| name.to_str().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes and offsets from SPDK's own headers; bindgen checks its layouts against the compiler.
    #[test]
    fn the_structs_that_the_fence_fills_are_laid_out_as_spdk_says() {
        assert_eq!(size_of::<sys::spdk_nvme_cmd>(), 64);
        assert_eq!(size_of::<sys::spdk_nvme_cpl>(), 16);
        assert_eq!(size_of::<sys::spdk_nvme_ctrlr_data>(), 4096);
        assert_eq!(size_of::<sys::spdk_nvme_ns_data>(), 4096);
        if (sys::SPDK_VERSION_MAJOR, sys::SPDK_VERSION_MINOR) >= (25, 1) {
            assert_eq!(size_of::<sys::spdk_env_opts>(), 128);
            assert_eq!(size_of::<sys::spdk_nvme_io_qpair_opts>(), 80);
        }
        assert_eq!(std::mem::offset_of!(sys::spdk_nvme_transport_id, traddr) % 4, 0);
        assert!(size_of::<sys::spdk_nvme_ctrlr_opts>() >= 600);
    }

    #[test]
    fn every_transport_registered_itself_although_the_program_names_none() {
        let there = transports();
        assert!(there.contains(&"TCP") && there.contains(&"PCIE"), "{there:?}");
        assert!(*version() >= *"24.09");
    }
}
