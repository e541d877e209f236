//! Injected faults, for the tests of the command line and of the C and Python bindings. They exist only in builds with
//! debug assertions.
//!
//! `DLFS_TEST_ENGINE=FAULT:N:THREAD` injects a fault into every device that [`open`](super::open) or
//! [`open_all`](super::open_all) opens. Of each queue pair the first N I/Os are taken without a fault. The fault begins
//! with the first later I/O that is submitted by a thread whose name begins with THREAD (any thread, if THREAD is
//! empty). From then on, FAULT `panics` makes `poll` panic, with `hangs` no I/O completes, with `blocks` `poll` does
//! not return, and with `fails` all completions are EIO.
//!
//! An environment variable selects the fault, because the tests must run a front end as it is built, in the
//! same process and with any address. An address scheme would become part of every build's address grammar. A
//! cargo feature that one package's tests enable would also be enabled in the packages built with it. A release
//! build contains neither the variable's name nor the call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Completion, Device, Io, IoError, Namespace, PairScope, QueuePair};
use dlfs_base::buf::SharedBuf;
use dlfs_base::error::Result;
use dlfs_base::units::Lba;

/// Returns `device`, or wraps it in the fault that the environment variable requests.
pub(super) fn with_test_fault(device: Arc<dyn Device>) -> Arc<dyn Device> {
    match std::env::var("DLFS_TEST_ENGINE") {
        Ok(spec) => broken(device, &spec),
        Err(_) => device,
    }
}

/// Wraps `device` in the fault that `spec`, `FAULT:N:THREAD`, describes. Panics if `spec` has another form.
pub(super) fn broken(device: Arc<dyn Device>, spec: &str) -> Arc<dyn Device> {
    let words: Vec<&str> = spec.splitn(3, ':').collect();
    let [fault, num_good, thread] = words[..] else { panic!("not FAULT:N:THREAD: {spec}") };
    let fault = match fault {
        "panics" => Fault::Panics,
        "hangs" => Fault::Hangs,
        "blocks" => Fault::Blocks,
        "fails" => Fault::Fails,
        other => panic!("no fault is called {other}"),
    };
    let num_good = num_good.parse().expect("a number of I/Os");
    Arc::new(FaultyDevice { device, fault, num_good, thread: thread.into() })
}

/// The faults; the module's page describes each.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Panics,
    Hangs,
    Blocks,
    Fails,
}

/// A device whose queue pairs have the fault.
struct FaultyDevice {
    device: Arc<dyn Device>,
    fault: Fault,
    /// The number of I/Os of each queue pair before the fault.
    num_good: usize,
    /// The beginning of the names of threads whose submissions begin the fault.
    thread: Arc<str>,
}

impl Device for FaultyDevice {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn namespace(&self) -> Namespace {
        self.device.namespace()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let pair = self.device.queue_pair_in(scope)?;
        let FaultyDevice { fault, num_good, .. } = *self;
        let thread = Arc::clone(&self.thread);
        Ok(Box::new(FaultyPair { pair, fault, num_good, thread, is_broken: false }))
    }
}

/// Lends no bytes (`borrow`): each read is an I/O, which the fault can hit.
struct FaultyPair {
    pair: Box<dyn QueuePair>,
    fault: Fault,
    /// The number of I/Os that are left before the fault.
    num_good: usize,
    thread: Arc<str>,
    /// Set once the fault has begun.
    is_broken: bool,
}

impl QueuePair for FaultyPair {
    fn below(&self) -> Option<&dyn QueuePair> {
        Some(&*self.pair)
    }

    fn below_mut(&mut self) -> Option<&mut dyn QueuePair> {
        Some(&mut *self.pair)
    }

    fn namespace(&self) -> &Namespace {
        self.pair.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let taken = self.pair.submit(pending);
        let thread = std::thread::current();
        let is_meant = thread.name().unwrap_or("").starts_with(&*self.thread);
        self.is_broken |= is_meant && taken > self.num_good;
        self.num_good = self.num_good.saturating_sub(taken);
        taken
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        match self.fault {
            Fault::Panics if self.is_broken => panic!("an engine that was told to panic"),
            Fault::Hangs if self.is_broken => return 0,
            Fault::Blocks if self.is_broken => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            _ => {}
        }
        let count = self.pair.poll(now, max, done);
        if self.is_broken {
            let failed = done[before..].iter_mut();
            failed.for_each(|completion| completion.result = Err(IoError::Os(libc::EIO)));
        }
        count
    }

    fn outstanding(&self) -> usize {
        self.pair.outstanding()
    }

    fn borrow(&self, _: Lba, _: usize) -> Option<SharedBuf> {
        None
    }
}
