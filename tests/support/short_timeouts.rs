//! An NVMe/TCP host with short time-outs, for tests of targets that fail or lie.

use std::time::Duration;

use dlfs::Error;
use dlfs::address::Address;
use dlfs::qpair::{Completion, ConnectOptions, Io, open};

use super::contract::Driver;
use super::random::Random;

/// Size of the namespace, in bytes.
pub const LEN: usize = 1 << 20;

/// Contents of the namespace.
pub fn bytes(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Short time-outs, so that tests see the host give up soon.
pub fn short_timeouts() -> ConnectOptions {
    ConnectOptions {
        writable: true,
        io_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(1500),
        ctrl_loss_tmo: Duration::from_secs(120),
        ..ConnectOptions::default()
    }
}

/// Runs one command to completion.
pub fn one(driver: &mut Driver, io: Io) -> Completion {
    driver.run(vec![io]).remove(0).1
}

/// The error with which connecting fails.
pub fn refusal(address: &Address, options: &ConnectOptions) -> Error {
    match open(address, options) {
        Err(error) => error,
        Ok(device) => device.queue_pair().map(drop).expect_err("connecting cannot succeed"),
    }
}
