//! The state of the driver: contexts, ranges, memory, streams, events and counters.
#![allow(unsafe_code)] // ends the process

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::{DeviceMemory, HostMemory};
use crate::stream::{Event, Stream};

pub(crate) type Code = i32;

/// Counters of a driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Ranges that were registered.
    pub registered: u64,
    /// Those of them that were unregistered.
    pub unregistered: u64,
    /// The bytes that are registered now.
    pub registered_bytes: u64,
    /// Copies from registered memory, and their bytes.
    pub copies: u64,
    /// The bytes of these copies.
    pub copied_bytes: u64,
    /// The bytes of copies from other memory.
    pub pageable_bytes: u64,
    /// Allocations on devices that are not freed.
    pub allocations: u64,
    /// Streams and events that are not destroyed.
    pub handles: u64,
    /// Devices whose primary context was retained, as a set of bits.
    pub devices: u64,
}

pub(crate) struct State {
    /// The process that began to use the driver; 0: none.
    pid: u32,
    pub(crate) has_ended: bool,
    pub(crate) counts: Counts,
    pub(crate) active: BTreeSet<i32>,
    pub(crate) host: HostMemory,
    pub(crate) memory: BTreeMap<u64, Arc<DeviceMemory>>,
    pub(crate) streams: BTreeMap<(usize, usize), Arc<Stream>>,
    pub(crate) events: BTreeMap<usize, Arc<Event>>,
    last_handle: usize,
    pub(crate) registrations_left: Option<u64>,
    pub(crate) allocations_left: Option<u64>,
    pub(crate) copies_left: Option<u64>,
    pub(crate) copies_taken_left: Option<u64>,
}

impl State {
    /// Begins to use the driver.
    pub(crate) fn begin(&mut self) {
        if self.pid == 0 {
            self.pid = std::process::id();
            let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
            let refuse = number("FAKE_CUDA_REFUSE_REGISTRATION");
            self.registrations_left = self.registrations_left.or(refuse);
            self.copies_left = self.copies_left.or(number("FAKE_CUDA_LOSE_AFTER"));
            // SAFETY: the handler is a function of this library, which is never closed.
            unsafe { libc::atexit(end) };
        }
    }

    /// The state of the driver in use.
    pub(crate) fn used() -> Result<MutexGuard<'static, State>, Code> {
        let state = state();
        if state.pid == 0 {
            return Err(NOT_INITIALIZED);
        }
        if state.has_ended {
            return Err(DEINITIALIZED);
        }
        if IS_LOST.load(Ordering::SeqCst) { Err(ILLEGAL_ADDRESS) } else { Ok(state) }
    }

    pub(crate) fn new_handle(&mut self) -> usize {
        self.last_handle += 1;
        self.counts.handles += 1;
        0x10_000 + 16 * self.last_handle
    }

    /// The stream of the thread's context; 0, 1 and 2 are the context's own.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<Arc<Stream>, Code> {
        let context = current()?;
        if handle <= 2 {
            let default = self.streams.entry((context, 0));
            return Ok(Arc::clone(default.or_insert_with(|| Stream::start(context))));
        }
        self.streams.get(&(context, handle)).cloned().ok_or(INVALID_HANDLE)
    }

    pub(crate) fn event(&self, handle: usize) -> Result<Arc<Event>, Code> {
        current()?;
        self.events.get(&handle).cloned().ok_or(INVALID_HANDLE)
    }

    /// The memory with these bytes.
    pub(crate) fn memory_at(&self, at: u64, len: usize) -> Option<Arc<DeviceMemory>> {
        let (_, memory) = self.memory.range(..=at).next_back()?;
        memory.has(at, len).then(|| Arc::clone(memory))
    }
}

/// Takes one of a number of times that are left; an error behind the last one.
pub(crate) fn take_one(left: &mut Option<u64>, code: Code) -> Result<(), Code> {
    match left {
        Some(0) => Err(code),
        Some(left) => {
            *left -= 1;
            Ok(())
        }
        None => Ok(()),
    }
}

/// The state, also of a driver that nobody uses. A forked child ends here.
pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: Mutex<State> = Mutex::new(State {
        pid: 0,
        has_ended: false,
        counts: Counts {
            registered: 0,
            unregistered: 0,
            registered_bytes: 0,
            copies: 0,
            copied_bytes: 0,
            pageable_bytes: 0,
            allocations: 0,
            handles: 0,
            devices: 0,
        },
        active: BTreeSet::new(),
        host: HostMemory::new(),
        memory: BTreeMap::new(),
        streams: BTreeMap::new(),
        events: BTreeMap::new(),
        last_handle: 0,
        registrations_left: None,
        allocations_left: None,
        copies_left: None,
        copies_taken_left: None,
    });
    static USER: AtomicU64 = AtomicU64::new(0);
    // Looked at before the lock, which another thread of the parent may have held.
    let user = USER.load(Ordering::SeqCst);
    if user != 0 && user != u64::from(std::process::id()) {
        eprintln!("fake driver: called in a forked child");
        std::process::abort();
    }
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    USER.store(state.pid.into(), Ordering::SeqCst);
    state
}

/// The context of the calling thread.
pub(crate) fn current() -> Result<usize, Code> {
    match CURRENT.get() {
        0 => Err(INVALID_CONTEXT),
        context => Ok(context),
    }
}

/// Begins a call that invalidates the graph that another thread captures, unless the calling thread is in relaxed mode.
pub(crate) fn disturb_captures() -> Result<(), Code> {
    if IS_CAPTURING.load(Ordering::SeqCst) && CAPTURE_MODE.get() != RELAXED {
        violation("a call invalidated the graph that another thread captures");
        return Err(CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// Asks for an event, or waits for one: fails as `fake_fail_events` says.
pub(crate) fn ask_event() -> Result<(), Code> {
    disturb_captures()?;
    match EVENT_FAULT.load(Ordering::SeqCst) {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Counts a wrong use.
pub(crate) fn violation(what: &str) {
    VIOLATIONS.fetch_add(1, Ordering::SeqCst);
    eprintln!("fake driver: {what}");
}

/// The end of the process: the driver ends, and later calls fail.
extern "C" fn end() {
    state().has_ended = true;
    let wrong = VIOLATIONS.load(Ordering::SeqCst);
    if wrong > 0 {
        eprintln!("fake driver: it was used wrongly {wrong} times");
        std::process::abort();
    }
}

thread_local! {
    pub(crate) static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// Threads begin in global mode.
    pub(crate) static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
}

pub(crate) static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
pub(crate) static IS_LOST: AtomicBool = AtomicBool::new(false);
pub(crate) static DELAYS: AtomicBool = AtomicBool::new(true);
pub(crate) static IS_HELD: AtomicBool = AtomicBool::new(false);
pub(crate) static IS_CAPTURING: AtomicBool = AtomicBool::new(false);
pub(crate) static EVENT_FAULT: AtomicI32 = AtomicI32::new(0);

const RELAXED: i32 = 2;

pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
const NOT_INITIALIZED: Code = 3;
const DEINITIALIZED: Code = 4;
pub(crate) const INVALID_DEVICE: Code = 101;
const INVALID_CONTEXT: Code = 201;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const ALREADY_REGISTERED: Code = 712;
pub(crate) const NOT_REGISTERED: Code = 713;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
