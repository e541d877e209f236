//! A ring of buffers on a device, with a stream that fills them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::process::Forked;
use dlfs_base::threads::{self, Thread};

use crate::buffer::SlotMemory;
use crate::bytes::{DeviceBytes, Held};
use crate::driver::Driver;
use crate::parts::Parts;
use crate::shared::RingShared;

/// Buffers on one device, which batches are copied into in turn.
///
/// A thread, `dlfs-device`, polls the copies and drops what they read from.
pub struct Ring {
    shared: Arc<RingShared>,
    thread: Option<Forked<Thread>>,
}

/// A buffer that the caller has to itself. Dropping it returns it.
pub struct Slot {
    shared: Arc<RingShared>,
    /// `None` once it is filled.
    memory: Option<SlotMemory>,
}

impl Ring {
    /// A ring of at most `slots` buffers on device number `ordinal`. One is allocated when none of the earlier ones is
    /// free.
    ///
    /// # Errors
    /// `NotFound`: there is no such device. `InvalidArgument`: no slot. Other errors of the driver.
    pub fn new(driver: &'static Driver, ordinal: u32, slots: usize) -> Result<Ring> {
        driver.check_ours()?;
        if slots == 0 {
            return Err(invalid("a ring has at least one buffer"));
        }
        let shared = Arc::new(RingShared::new(driver, ordinal, slots)?);
        let fate = shared.fate.clone();
        let polled = Arc::clone(&shared);
        let thread = threads::start("dlfs-device", &fate, polled, |shared| shared.poll())?;
        Ok(Ring { shared, thread: Some(Forked::new(thread)) })
    }

    /// A buffer that is free within `limit`; `None`: consumers hold all of them, or copies are under way. Call it again
    /// as long as the caller may wait, and then fail with [`Ring::full`].
    ///
    /// # Errors
    /// `DeviceLost`, and all other failures of earlier calls that leave the ring unusable. `Unsupported`: the process
    /// is a forked child.
    pub fn slot(&self, limit: Duration) -> Result<Option<Slot>> {
        let shared = &self.shared;
        shared.driver.check_ours()?;
        let free = shared.take(limit)?;
        Ok(free.map(|memory| Slot { shared: Arc::clone(shared), memory: Some(memory) }))
    }

    /// The error of a wait of `limit` for a buffer.
    pub fn full(&self, limit: Duration) -> Error {
        let text = format!("none of the ring's {} buffers was free within {limit:?}", self.slots());
        Error::new(ErrorKind::TimedOut, text)
            .target(self.shared.device())
            .hint("drop batches before the next is taken, or make a ring of more buffers")
    }

    /// The number of buffers.
    pub fn slots(&self) -> usize {
        self.shared.num_slots
    }

    /// The bytes that were copied on the host, in front of the device's copy: slices too short for a copy of their own.
    pub fn staged_bytes(&self) -> u64 {
        self.shared.staged_bytes.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} buffers on {})", self.slots(), self.shared.device())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().and_then(Forked::into_inner) else { return };
        self.shared.end();
        thread.join_within(JOIN_TIMEOUT);
    }
}

impl Slot {
    /// Starts to copy `parts` of `host` to the device, and keeps `host` until the device has read them. It is then
    /// dropped by any thread.
    ///
    /// Copies are ordered behind the work of all who had the buffer before. Slices from 32 KiB on are read by the
    /// device from where they are, shorter ones through registered memory of the ring.
    ///
    /// # Errors
    /// `OutOfMemory`: the device has no memory for them; the ring goes on. `DeviceLost`: it does not.
    pub fn upload<H: Send + 'static>(
        mut self,
        host: H,
        parts: impl FnOnce(&H) -> Parts<'_>,
    ) -> Result<DeviceBytes> {
        let shared = &self.shared;
        let host = Box::new(host);
        let parts = parts(&host);
        let memory = self.memory.as_mut().expect("taken below only");
        let stream = shared.stream;
        if let Err(error) = shared.run(|driver| memory.fill(driver, stream, &parts)) {
            // Copies that were started may still read the host's memory.
            let ended = shared.run(|driver| {
                driver.record(memory.copied, stream)?;
                driver.synchronize(memory.copied)
            });
            if error.kind() == ErrorKind::DeviceLost || ended.is_err() {
                shared.fail(error.to_others());
            }
            return Err(error);
        }
        shared.staged_bytes.fetch_add(memory.staged(&parts), Ordering::Relaxed);
        let len = parts.len();
        let arrays = parts.arrays;
        let memory = self.memory.take().expect("as above");
        let copied = memory.copied;
        let held = Held::new(Arc::clone(shared), memory, len, arrays);
        let bytes = DeviceBytes::of(&held);
        shared.keep(copied, Box::new((host, held)));
        Ok(bytes)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.shared.driver.is_ours()
            && let Some(memory) = self.memory.take()
        {
            self.shared.give_back(memory);
        }
    }
}

/// The timeout for the copies of a dropped ring.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
