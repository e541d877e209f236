//! A fence limits the time in which a writer may send writes.
//!
//! A writer with a lease may write only until the lease expires, since another writer may take over then. So it gives
//! its queue pairs a [`Fence`]. The engines NVMe/TCP, PCIe and SPDK, which can hold writes back, check the fence when a
//! write leaves their backlog for the device. NVMe/TCP, where bytes of a write may wait for the socket, checks it again
//! in each turn. Bytes that were already sent cannot be recalled: see
//! [`Capabilities::late_writes`](super::Capabilities::late_writes).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A fence that is open until a time. The time may be changed; it is on the clock of [`Fence::now`].
#[derive(Debug)]
pub struct Fence {
    /// In ns since boot; 0: closed, `u64::MAX`: open for good.
    until_ns: AtomicU64,
}

impl Fence {
    /// Creates a closed fence.
    pub fn closed() -> Arc<Fence> {
        Arc::new(Fence { until_ns: AtomicU64::new(0) })
    }

    /// Creates a fence that is open for good.
    pub(super) fn open() -> Arc<Fence> {
        Arc::new(Fence { until_ns: AtomicU64::new(u64::MAX) })
    }

    /// The time since boot. It also advances while this machine is suspended, as other machines' clocks do.
    pub fn now() -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // Since boot, so neither is negative.
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// Opens the fence until `until`.
    pub fn open_until(&self, until: Duration) {
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// Opens the fence for good.
    pub fn open_for_good(&self) {
        self.until_ns.store(u64::MAX, Ordering::Release);
    }

    /// Closes the fence until it is opened again.
    pub fn close(&self) {
        self.until_ns.store(0, Ordering::Release);
    }

    /// Returns whether writes may be sent. Reads the clock only if the fence is open until a time.
    pub fn is_open(&self) -> bool {
        match self.until_ns.load(Ordering::Acquire) {
            0 => false,
            u64::MAX => true,
            until_ns => Fence::now().as_nanos() < u128::from(until_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_open_until_its_time_and_its_time_can_be_changed() {
        let fence = Fence::closed();
        assert!(!fence.is_open());
        fence.open_until(Fence::now() + Duration::from_secs(3600));
        assert!(fence.is_open());
        fence.open_until(Fence::now());
        assert!(!fence.is_open());
        fence.open_for_good();
        assert!(fence.is_open());
        fence.close();
        assert!(!fence.is_open());
    }
}
