//! A ring of buffers on a device, with a stream that fills them. The ring, the thread that polls its copies, and the
//! batches on the device share one state, which lives until all of them are gone.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Driver;
use crate::buffer::{Parts, SlotMemory};
use crate::driver::Handle;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::process::{Condvar, Forked, Mutex};
use dlfs_base::threads::{self, Fate, Thread};
use dlfs_base::units::deadline;

/// Buffers on one device, which batches are copied into in turn.
///
/// A thread, `dlfs-device`, polls the copies and drops what they read from.
pub struct Ring {
    shared: Arc<RingShared>,
    thread: Option<Forked<Thread>>,
}

/// A buffer that the caller has to itself. Dropping the `Slot` returns the buffer to the ring.
pub struct Slot {
    shared: Arc<RingShared>,
    /// `None` once it is filled.
    memory: Option<SlotMemory>,
}

impl Ring {
    /// A ring of `slots` buffers on device number `ordinal`. A buffer gets memory when it is first filled, and a buffer
    /// that has memory is taken first.
    ///
    /// # Errors
    /// `NotFound`: there is no such device. `InvalidArgument`: `slots` is 0. `Unsupported`: the process is a forked
    /// child. Other errors of the driver, and of starting a thread.
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

    /// A buffer that is free within `limit`; `None`: consumers hold all of them, or copies are under way. A caller that
    /// may wait longer calls again, and at last fails with [`Ring::full`].
    ///
    /// # Errors
    /// `DeviceLost`, and all other failures of earlier calls that leave the ring unusable. The thread that polls has
    /// died. `Unsupported`: the process is a forked child.
    pub fn slot(&self, limit: Duration) -> Result<Option<Slot>> {
        let shared = &self.shared;
        shared.driver.check_ours()?;
        let memory = shared.take(limit)?;
        Ok(memory.map(|memory| Slot { shared: Arc::clone(shared), memory: Some(memory) }))
    }

    /// The error for a caller that has waited `limit` for a buffer in vain.
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
        self.shared.state.lock().is_dropped = true; // the thread ends when no copies are left
        self.shared.started.notify_all();
        thread.join_within(JOIN_TIMEOUT);
    }
}

impl Slot {
    /// Starts to copy `parts` of `host` to the device, and keeps `host` until the device has read them. Then any thread
    /// may drop `host`.
    ///
    /// Copies are ordered behind the work of all who had the buffer before. The device reads a run of adjacent slices
    /// in place if it has 32 KiB or more; shorter runs are copied to registered memory of the ring first.
    ///
    /// # Errors
    /// `OutOfMemory`: the device has no memory for `parts`; the ring remains usable. `DeviceLost`: the ring is
    /// unusable. `Unsupported`: the process is a forked child. Other errors of the driver; if it then fails to wait for
    /// the copies that were started, the ring is unusable and `host` is never dropped.
    pub fn upload<H: Send + 'static>(
        mut self,
        host: H,
        parts: impl FnOnce(&H) -> Parts<'_>,
    ) -> Result<DeviceBytes> {
        let shared = &self.shared;
        shared.driver.check_ours()?;
        let host = Box::new(host);
        let parts = parts(&host);
        let memory = self.memory.as_mut().expect("taken below only");
        let stream = shared.stream;
        if let Err(error) = shared.run(|driver| memory.fill(driver, stream, &parts)) {
            // Copies that were started may still read the host's memory.
            let waited = shared.run(|driver| {
                driver.record(memory.copied, stream)?;
                driver.synchronize(memory.copied)
            });
            let is_lost = |error: &Error| error.kind() == ErrorKind::DeviceLost;
            if is_lost(&error) || waited.is_err() {
                shared.fail(error.to_others());
            }
            if waited.is_err_and(|waited| !is_lost(&waited)) && !is_lost(&error) {
                // The device may still read both, and nothing tells when it is done: `copied` may be recorded in front
                // of the copies.
                std::mem::forget((host, self.memory.take()));
            }
            return Err(error);
        }
        shared.staged_bytes.fetch_add(memory.staged(&parts), Ordering::Relaxed);
        let len = parts.len();
        let arrays = parts.arrays;
        let memory = self.memory.take().expect("as above");
        let copied = memory.copied;
        let address = memory.address;
        let filled = Arc::new(FilledSlot {
            shared: Arc::clone(shared),
            memory: Mutex::new(Some(memory)),
            address,
            len,
            arrays,
        });
        let owners = Box::new((host, Arc::clone(&filled)));
        shared.state.lock().copies.push_back(HostCopy { copied, _owners: owners });
        shared.started.notify_all();
        Ok(DeviceBytes(Arc::new(Lease(filled))))
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

/// The state of a ring: a device, the stream of copies to it, the buffers that nobody has, and the copies under way.
struct RingShared {
    driver: &'static Driver,
    /// The number of the device.
    ordinal: u32,
    context: Handle,
    /// The stream of all copies.
    stream: Handle,
    /// The number of buffers, also of those in use.
    num_slots: usize,
    state: Mutex<RingState>,
    /// A buffer was returned, or the ring has failed.
    returned: Condvar,
    /// A copy was started, or the ring is dropped.
    started: Condvar,
    /// Tells whether the thread has died.
    fate: Fate,
    /// The bytes that were copied on the host.
    staged_bytes: AtomicU64,
}

#[derive(Default)]
struct RingState {
    /// The buffers that nobody has.
    free: VecDeque<SlotMemory>,
    /// Copies in the order of the stream.
    copies: VecDeque<HostCopy>,
    /// The first failure that leaves the ring unusable.
    failed: Option<Error>,
    /// True once the ring is dropped; batches may still use its state.
    is_dropped: bool,
}

/// A copy that the device may not have done.
struct HostCopy {
    /// The event behind it.
    copied: Handle,
    /// The owners of the memory that is read and of the buffer, which are kept until the event has passed.
    _owners: Box<dyn Send>,
}

impl RingShared {
    /// A device with `num_slots` empty buffers.
    ///
    /// # Errors
    /// The driver's.
    fn new(driver: &'static Driver, ordinal: u32, num_slots: usize) -> Result<RingShared> {
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
    fn device(&self) -> String {
        format!("{}:{}", self.driver.name(), self.ordinal)
    }

    /// Does `work` in the context of the device, which errors then name.
    fn run<T>(&self, work: impl FnOnce(&'static Driver) -> Result<T>) -> Result<T> {
        let done = self.driver.within(self.context, || work(self.driver));
        done.map_err(|error| error.target(self.device()))
    }

    /// A buffer that is free within `limit`.
    ///
    /// # Errors
    /// The first failure of the ring.
    fn take(&self, limit: Duration) -> Result<Option<SlotMemory>> {
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
            // Buffers with memory go first, so the ring allocates only as many as are in use at once.
            let filled = state.free.iter().position(SlotMemory::is_allocated);
            let free = state.free.remove(filled.unwrap_or(0));
            if free.is_some() || is_late {
                return Ok(free);
            }
            is_late = self.returned.wait_until(state, until).1;
        }
    }

    /// Makes a buffer free.
    fn give_back(&self, memory: SlotMemory) {
        self.state.lock().free.push_back(memory);
        self.returned.notify_all();
    }

    /// Makes all later calls of [`take`](Self::take) fail with `error`, unless they fail with an earlier one.
    fn fail(&self, error: Error) {
        self.state.lock().failed.get_or_insert(error);
        self.returned.notify_all();
    }

    /// Drops the owners of the copies that are done, or of all copies if the device is lost. Returns their number.
    ///
    /// After another error the device may still read: the ring has failed, and keeps the owners until a later query
    /// says that the copy is done.
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
            if error.kind() == ErrorKind::DeviceLost {
                done.extend(state.copies.drain(..)); // a lost device reads no more
            }
            state.failed.get_or_insert(error);
            self.returned.notify_all();
        }
        drop(state);
        done.len() // dropped without the lock, which their buffers take
    }

    /// Polls copies until the ring is dropped and none is left.
    fn poll(&self) {
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

/// A batch's bytes on a device. Clones share them. The buffer returns to its ring once the last clone is dropped and
/// the copy is done; the next copy into it waits on the device for the work that consumers' streams had by then.
#[derive(Clone)]
pub struct DeviceBytes(Arc<Lease>);

/// The consumers' hold on a buffer: when the last clone is dropped, the work of their streams is recorded.
struct Lease(Arc<FilledSlot>);

/// A filled buffer, which its consumers and its copy hold. It returns to the ring when neither holds it.
struct FilledSlot {
    shared: Arc<RingShared>,
    /// `None` once returned.
    memory: Mutex<Option<SlotMemory>>,
    /// The address of `memory`.
    address: u64,
    /// The number of bytes that were copied.
    len: usize,
    arrays: Vec<Range<usize>>,
}

impl DeviceBytes {
    /// The address on the device, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.0.0.address
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.0.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address and length of array number `nth` of the [`Parts`](crate::Parts) that were copied.
    pub fn array(&self, nth: usize) -> Option<(u64, usize)> {
        let array = self.0.0.arrays.get(nth)?;
        Some((self.address() + array.start as u64, array.len()))
    }

    /// The number of the device.
    pub fn ordinal(&self) -> u32 {
        self.0.0.shared.ordinal
    }

    /// The driver of the device.
    pub fn driver(&self) -> &'static Driver {
        self.0.0.shared.driver
    }

    /// Makes later work of the consumer's `stream` wait for the copy; 0 is the default stream. The buffer is written
    /// again only after the work that the stream has when the last clone is dropped. Does not wait on the host.
    ///
    /// # Errors
    /// `InvalidArgument`: the stream does not exist. `DeviceLost`. `Unsupported`: the process is a forked child.
    pub fn ready_on(&self, stream: u64) -> Result<()> {
        let FilledSlot { shared, memory, .. } = &*self.0.0;
        shared.driver.check_ours()?;
        let mut memory = memory.lock();
        let memory = memory.as_mut().expect("returned by the last handle only");
        shared.run(|driver| memory.wait_on(driver, stream as usize))
    }

    /// Waits on the host until the bytes are there.
    ///
    /// # Errors
    /// As [`DeviceBytes::ready_on`].
    pub fn wait(&self) -> Result<()> {
        let FilledSlot { shared, memory, .. } = &*self.0.0;
        shared.driver.check_ours()?;
        let copied = memory.lock().as_ref().expect("returned by the last handle only").copied;
        shared.run(|driver| driver.synchronize(copied))
    }
}

impl std::fmt::Debug for DeviceBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBytes({} bytes on {})", self.len(), self.0.0.shared.device())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let FilledSlot { shared, memory, .. } = &*self.0;
        if !shared.driver.is_ours() {
            return; // a forked child: the parent has it
        }
        if let Some(memory) = memory.lock().as_mut()
            && let Err(error) = shared.run(|driver| memory.release(driver))
        {
            shared.fail(error); // the buffer cannot be written safely any more
        }
    }
}

impl Drop for FilledSlot {
    fn drop(&mut self) {
        if self.shared.driver.is_ours()
            && let Some(memory) = self.memory.lock().take()
        {
            self.shared.give_back(memory);
        }
    }
}

/// The timeout for the copies of a dropped ring.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

// The shortest and the longest pause between two looks at the oldest copy: a batch takes about a millisecond.
const LEAST_PAUSE: Duration = Duration::from_micros(50);
const MOST_PAUSE: Duration = Duration::from_millis(1);
