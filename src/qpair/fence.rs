//! Until when a writer may write.
//!
//! Whoever may write only for some time, because another takes its place then, lets its queue pairs ask
//! a [`Fence`]: when an I/O is submitted, when it leaves a backlog, and each time bytes may leave for the
//! target. What has left by then is out of reach: see [`super::Capabilities::late_writes`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Open until a time, which may be moved. Times are [`Fence::now`]'s.
#[derive(Debug)]
pub struct Fence {
    /// In ns since boot.
    until_ns: AtomicU64,
}

impl Fence {
    /// One that is closed.
    pub fn closed() -> Arc<Fence> {
        Arc::new(Fence { until_ns: AtomicU64::new(0) })
    }

    /// Now, as time since boot: it goes on while the machine sleeps, as the time of others does.
    pub fn now() -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // Since boot, so neither is negative.
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// Is open until `until` from now on.
    pub fn open_until(&self, until: Duration) {
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// Is open for good.
    pub fn open_for_good(&self) {
        self.until_ns.store(u64::MAX, Ordering::Release);
    }

    /// Is closed until it is opened again.
    pub fn close(&self) {
        self.until_ns.store(0, Ordering::Release);
    }

    /// Whether writes may go.
    pub fn is_open(&self) -> bool {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        until_ns == u64::MAX || Fence::now().as_nanos() < u128::from(until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_open_until_its_time_and_when_it_is_moved() {
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
