//! Registered ranges of the host's memory, and memory of devices.
#![allow(unsafe_code)] // reads and writes by address, as a device does

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::state::{Code, INVALID_VALUE};

/// A registered range of the host's memory.
pub(crate) struct HostRange {
    len: usize,
    /// Copies that are queued or under way.
    reads: AtomicUsize,
}

/// Registered ranges, by address.
pub(crate) struct HostMemory(BTreeMap<usize, Arc<HostRange>>);

impl HostMemory {
    pub(crate) const fn new() -> HostMemory {
        HostMemory(BTreeMap::new())
    }

    pub(crate) fn overlaps(&self, start: usize, len: usize) -> bool {
        let before = self.0.range(..start + len).next_back();
        before.is_some_and(|(at, range)| at + range.len > start)
    }

    pub(crate) fn insert(&mut self, start: usize, len: usize) {
        self.0.insert(start, Arc::new(HostRange { len, reads: AtomicUsize::new(0) }));
    }

    /// Removes the range that begins at `start`; returns its length, and whether a copy still reads it.
    pub(crate) fn remove(&mut self, start: usize) -> Option<(usize, bool)> {
        let range = self.0.remove(&start)?;
        let is_read = range.reads.load(Ordering::SeqCst) > 0;
        while range.reads.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now(); // what is wrong is counted, and must not crash
        }
        Some((range.len, is_read))
    }

    /// The range that has all these bytes, noted as read.
    pub(crate) fn reading(&self, start: usize, len: usize) -> Option<Reading> {
        let (begin, range) = self.0.range(..=start).next_back()?;
        if begin + range.len < start + len {
            return None;
        }
        range.reads.fetch_add(1, Ordering::SeqCst);
        Some(Reading(Arc::clone(range)))
    }
}

/// A copy's note on a range that it reads.
pub(crate) struct Reading(Arc<HostRange>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.reads.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes the pages there, as pinning does.
pub(crate) fn pin(start: usize, len: usize, is_read_only: bool) -> Result<(), Code> {
    let page = start / PAGE_LEN * PAGE_LEN;
    let advice = if is_read_only { MADV_POPULATE_READ } else { MADV_POPULATE_WRITE };
    // SAFETY: the kernel refuses what is not mapped; the advice changes no bytes.
    let done = unsafe { libc::madvise(page as *mut _, start + len - page, advice) };
    if done == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Memory of a device.
pub(crate) struct DeviceMemory {
    bytes: Box<[u8]>,
    pub(crate) is_freed: AtomicBool,
}

impl DeviceMemory {
    pub(crate) fn new(len: usize) -> Arc<DeviceMemory> {
        let bytes = vec![0xfa; len].into_boxed_slice();
        Arc::new(DeviceMemory { bytes, is_freed: AtomicBool::new(false) })
    }

    pub(crate) fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// Returns whether it has the bytes `at..at + len`.
    pub(crate) fn has(&self, at: u64, len: usize) -> bool {
        at >= self.address() && at + len as u64 <= self.address() + self.bytes.len() as u64
    }
}

/// Copies `len` bytes by their addresses.
///
/// # Safety
/// Both ranges are there.
pub(crate) unsafe fn copy(to: u64, from: *const u8, len: usize) {
    // SAFETY: as the caller says. Nobody else accesses them at this time, unless the user is wrong.
    unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, len) }
}

/// The digest of bytes of a device.
///
/// # Safety
/// The range is there.
pub(crate) unsafe fn digest_at(at: u64, len: usize) -> u64 {
    // SAFETY: as the caller says.
    digest(unsafe { std::slice::from_raw_parts(at as *const u8, len) })
}

/// Tells bytes apart, by some of them: it has to be quick.
pub fn digest(bytes: &[u8]) -> u64 {
    let some = bytes.iter().step_by(509).chain(bytes.last());
    let begin = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    some.fold(begin, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

const PAGE_LEN: usize = 4096;
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;
