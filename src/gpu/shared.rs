//! The state of a ring that its threads share, and its buffers outlive it with.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use dlfs_base::error::{Error, Result};
use dlfs_base::process::{Condvar, Mutex};
use dlfs_base::threads::Fate;
use dlfs_base::units::deadline;

use crate::buffer::SlotMemory;
use crate::driver::{Driver, Handle};

/// A device, its stream, and the buffers that nobody has.
pub(crate) struct RingShared {
    pub(crate) driver: &'static Driver,
    pub(crate) ordinal: u32,
    context: Handle,
    /// The stream of all copies.
    pub(crate) stream: Handle,
    pub(crate) num_slots: usize,
    state: Mutex<RingState>,
    /// A buffer was returned, or the ring has failed.
    returned: Condvar,
    /// A copy was started, or the ring is dropped.
    started: Condvar,
    pub(crate) fate: Fate,
    pub(crate) staged_bytes: AtomicU64,
}

#[derive(Default)]
struct RingState {
    free: VecDeque<SlotMemory>,
    /// Copies in the order of the stream.
    copies: VecDeque<HostCopy>,
    failed: Option<Error>,
    is_dropped: bool,
}

/// A copy that the device may not have done.
struct HostCopy {
    copied: Handle,
    /// The owners of the memory that is read and of the buffer.
    _owners: Box<dyn Send>,
}

impl RingShared {
    /// A device with `num_slots` empty buffers.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(
        driver: &'static Driver,
        ordinal: u32,
        num_slots: usize,
    ) -> Result<RingShared> {
        let context = driver.context(ordinal)?;
        let shared = RingShared {
            driver,
            ordinal,
            context,
            stream: driver.within(context, || driver.new_stream())?,
            num_slots,
            state: Mutex::default(),
            returned: Condvar::default(),
            started: Condvar::default(),
            fate: Fate::default(),
            staged_bytes: AtomicU64::new(0),
        };
        for _ in 0..num_slots {
            let memory = shared.run(SlotMemory::new)?;
            shared.give_back(memory);
        }
        Ok(shared)
    }

    /// The device's name, as frameworks write it.
    pub(crate) fn device(&self) -> String {
        format!("{}:{}", self.driver.name(), self.ordinal)
    }

    /// Does `work` in the context of the device, which errors then name.
    pub(crate) fn run<T>(&self, work: impl FnOnce(&'static Driver) -> Result<T>) -> Result<T> {
        let done = self.driver.within(self.context, || work(self.driver));
        done.map_err(|error| error.target(self.device()))
    }

    /// A buffer that is free within `limit`.
    ///
    /// # Errors
    /// The first failure of the ring.
    pub(crate) fn take(&self, limit: Duration) -> Result<Option<SlotMemory>> {
        let until = deadline(Instant::now(), limit);
        let mut is_late = false;
        loop {
            self.reap();
            let mut state = self.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.to_others());
            }
            if let Some(error) = self.fate.died() {
                return Err(error);
            }
            // Memory that is there already first: a ring grows only with the buffers that are in use together.
            let filled = state.free.iter().position(SlotMemory::is_allocated);
            let free = state.free.remove(filled.unwrap_or(0));
            if free.is_some() || is_late {
                return Ok(free);
            }
            is_late = self.returned.wait_until(state, until).1;
        }
    }

    /// Keeps `owners` until the copies in front of the event `copied` are done.
    pub(crate) fn keep(&self, copied: Handle, owners: Box<dyn Send>) {
        self.state.lock().copies.push_back(HostCopy { copied, _owners: owners });
        self.started.notify_all();
    }

    /// Lets the thread that polls end when no copies are left.
    pub(crate) fn end(&self) {
        self.state.lock().is_dropped = true;
        self.started.notify_all();
    }

    pub(crate) fn give_back(&self, memory: SlotMemory) {
        self.state.lock().free.push_back(memory);
        self.returned.notify_all();
    }

    /// Makes all later calls fail with `error`, unless others have made them fail before.
    pub(crate) fn fail(&self, error: Error) {
        self.state.lock().failed.get_or_insert(error);
        self.returned.notify_all();
    }

    /// Drops the memory of the copies that are done; of all, if the ring has failed. Returns their number.
    fn reap(&self) -> usize {
        let mut done = Vec::new();
        let mut state = self.state.lock();
        if state.copies.is_empty() {
            return 0;
        }
        let asked = self.run(|driver| {
            while let Some(oldest) = state.copies.front()
                && driver.has_passed(oldest.copied)?
            {
                done.extend(state.copies.pop_front());
            }
            Ok(())
        });
        if let Err(error) = asked {
            state.failed.get_or_insert(error);
            self.returned.notify_all();
        }
        if state.failed.is_some() {
            done.extend(state.copies.drain(..));
        }
        drop(state);
        done.len() // dropped without the lock, which their buffers take
    }

    /// Polls copies until the ring is dropped and none is left.
    pub(crate) fn poll(&self) {
        let _ = self.driver.make_current(self.context); // saves a change for each call
        let mut pause = LEAST_PAUSE;
        loop {
            let mut state = self.state.lock();
            while state.copies.is_empty() {
                if state.is_dropped {
                    return;
                }
                state = self.started.wait(state);
            }
            drop(state);
            if self.reap() > 0 {
                pause = LEAST_PAUSE;
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(MOST_PAUSE);
            }
        }
    }
}

impl Drop for RingShared {
    fn drop(&mut self) {
        if !self.driver.is_ours() {
            return;
        }
        let free = std::mem::take(&mut self.state.lock().free);
        let ended = self.run(|driver| {
            free.into_iter().try_for_each(|memory| memory.end(driver))?;
            driver.destroy_stream(self.stream)
        });
        let _ = ended; // of a lost device, or at the process's end, nothing is left
    }
}

/// The pauses between two looks at the oldest copy, which take a processor little: a batch takes about a millisecond.
const LEAST_PAUSE: Duration = Duration::from_micros(50);
const MOST_PAUSE: Duration = Duration::from_millis(1);
