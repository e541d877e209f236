//! A host over NVMe/TCP that gives up soon, for tests of targets that fail or lie.

use std::time::Duration;

use dlfs::Error;
use dlfs::nvme::Address;
use dlfs::qpair::{Completion, ConnectOptions, Io, open};

use super::contract::Driver;
use super::random::Random;

/// The size of the namespace, in bytes.
pub const LEN: usize = 1 << 20;

/// The namespace's bytes.
pub fn bytes(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Short waits, so that giving up is seen soon.
pub fn hasty() -> ConnectOptions {
    ConnectOptions {
        writable: true,
        io_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(1500),
        ctrl_loss_tmo: Duration::from_secs(20),
        ..ConnectOptions::default()
    }
}

/// Runs one command to its completion.
pub fn one(driver: &mut Driver, io: Io) -> Completion {
    driver.run(vec![io]).remove(0).1
}

/// Why connecting does not succeed.
pub fn refusal(address: &Address, options: &ConnectOptions) -> Error {
    match open(address, options) {
        Err(error) => error,
        Ok(device) => device.queue_pair().map(drop).expect_err("connecting cannot succeed"),
    }
}
