//! Streams, each with a thread that does its work in order; and events, which say how far they are.
#![allow(unsafe_code)] // does the copies

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::memory::{DeviceMemory, Reading, copy, digest_at};
use crate::state::{DELAYS, IS_HELD, IS_LOST, violation};

/// Work of a stream.
pub(crate) enum Work {
    Copy {
        memory: Arc<DeviceMemory>,
        to: u64,
        from: Source,
        len: usize,
    },
    /// Reads memory of the device, as a kernel does.
    Expect {
        memory: Arc<DeviceMemory>,
        at: u64,
        len: usize,
        digest: u64,
    },
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    End,
}

/// The host's bytes of a copy.
pub(crate) enum Source {
    /// Registered memory, read when the copy is done.
    Registered { address: usize, _reading: Reading },
    /// Bytes of other memory, which the call has copied.
    Copied(Vec<u8>),
}

/// A stream of a context.
pub(crate) struct Stream {
    pub(crate) context: usize,
    queue: Mutex<VecDeque<Work>>,
    changed: Condvar,
}

/// An event of a context.
pub(crate) struct Event {
    pub(crate) context: usize,
    /// How often it was recorded, and how many of these have passed.
    state: Mutex<(u64, u64)>,
    passed: Condvar,
}

impl Stream {
    pub(crate) fn start(context: usize) -> Arc<Stream> {
        let stream = Arc::new(Stream { context, queue: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&stream);
        std::thread::Builder::new()
            .name("fake-stream".into())
            .spawn(move || own.run())
            .expect("a thread for a stream");
        stream
    }

    pub(crate) fn push(&self, work: Work) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(work);
        self.changed.notify_one();
    }

    fn run(&self) {
        let mut random = Random(self as *const Stream as u64 | 1);
        loop {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let work = loop {
                match queue.pop_front() {
                    Some(work) => break work,
                    None => {
                        queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(queue);
            if DELAYS.load(Ordering::Relaxed) {
                random.delay();
            }
            while IS_HELD.load(Ordering::SeqCst) && !IS_LOST.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_micros(100));
            }
            match work {
                Work::End => return,
                // A lost device does nothing more: its events never pass.
                _ if IS_LOST.load(Ordering::SeqCst) => {}
                work => work.run(),
            }
        }
    }
}

impl Work {
    fn run(self) {
        match self {
            Work::Copy { memory, .. } | Work::Expect { memory, .. }
                if memory.is_freed.load(Ordering::SeqCst) =>
            {
                violation("freed memory of a device was used");
            }
            Work::Copy { to, from: Source::Registered { address, .. }, len, .. } => {
                // SAFETY: the range stays registered while a reading exists, and so does memory of the device.
                unsafe { copy(to, address as *const u8, len) }
            }
            Work::Copy { to, from: Source::Copied(bytes), .. } => {
                // SAFETY: as above.
                unsafe { copy(to, bytes.as_ptr(), bytes.len()) }
            }
            Work::Expect { at, len, digest, .. } => {
                // SAFETY: as above.
                if unsafe { digest_at(at, len) } != digest {
                    violation("a device's memory does not have the bytes that its user expects");
                }
            }
            Work::Record(event, count) => event.pass(count),
            Work::Wait(event, count) => event.wait(count),
            Work::End => {}
        }
    }
}

impl Event {
    pub(crate) fn new(context: usize) -> Arc<Event> {
        Arc::new(Event { context, state: Mutex::default(), passed: Condvar::new() })
    }

    /// Begins to record it; returns how often it was.
    pub(crate) fn record(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        state.0
    }

    /// How often it was recorded.
    pub(crate) fn recorded(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn has_passed(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 >= state.0
    }

    fn pass(&self, count: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = state.1.max(count);
        self.passed.notify_all();
    }

    /// Waits until it has passed `count` times, or the device is lost.
    pub(crate) fn wait(&self, count: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.1 < count && !IS_LOST.load(Ordering::SeqCst) {
            let waited = self.passed.wait_timeout(state, Duration::from_millis(10));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Usually none, sometimes a switch of threads, seldom a fraction of a millisecond.
    fn delay(&mut self) {
        match self.next() % 256 {
            0 => std::thread::sleep(Duration::from_micros(self.next() % 200)),
            1..8 => std::thread::yield_now(),
            _ => {}
        }
    }
}
