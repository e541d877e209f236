//! An NVMe/TCP host with short time-outs, for tests of targets that fail or lie.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::Error;
use dlfs::address::Address;
use dlfs::qpair::{Completion, ConnectOptions, Device, Io, open};

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

/// Short time-outs for commands, so that tests see the host give up soon. A connection has longer: a busy machine
/// needs seconds for one, and most tests are about what comes after.
pub fn short_timeouts() -> ConnectOptions {
    ConnectOptions {
        writable: true,
        io_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_secs(20),
        ctrl_loss_tmo: Duration::from_secs(120),
        ..ConnectOptions::default()
    }
}

/// Short time-outs for connections too, for targets that hang while the host connects.
pub fn hasty() -> ConnectOptions {
    ConnectOptions { connect_timeout: Duration::from_millis(1500), ..short_timeouts() }
}

/// Time-outs that a busy machine does not reach, for tests that write, that count commands or connections, or that
/// expect a certain error.
pub fn patient() -> ConnectOptions {
    ConnectOptions { io_timeout: Duration::from_secs(60), ..short_timeouts() }
}

/// Opens a target that answers, again while the machine is too busy for short time-outs.
pub fn opened(address: &Address, options: &ConnectOptions) -> Arc<dyn Device> {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        match open(address, options) {
            Err(_) if Instant::now() < limit => {}
            device => return device.unwrap(),
        }
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
