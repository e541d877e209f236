//! A buffer on a device: its memory, its events, and the copies into it. [`Parts`] lists what is copied: the arrays of
//! a batch, made of slices of the host's memory.

#![allow(unsafe_code)] // hands addresses of memory to a device

use std::ops::Range;

use crate::driver::{Driver, Handle};
use dlfs_base::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs_base::error::Result;

/// The memory and the events of a buffer.
pub(crate) struct SlotMemory {
    /// The address on the device.
    pub(crate) address: u64,
    /// Length in bytes; 0 if it has no memory.
    capacity: usize,
    /// Recorded behind the last copy into it.
    pub(crate) copied: Handle,
    /// The consumers' streams, each with an event. Free entries keep their event for another stream.
    consumers: Vec<Consumer>,
    /// Registered memory from which short slices are copied.
    staging: IoBuf,
}

/// Host memory that one copy takes to the device.
struct HostSlice {
    /// The offset in the device's buffer, in bytes.
    at: usize,
    from: *const u8,
    len: usize,
}

/// A stream of a consumer, and its event.
struct Consumer {
    stream: Handle,
    event: Handle,
    state: ConsumerState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConsumerState {
    /// The event is free for another stream.
    Free,
    /// The stream waits for the copy, and the consumer has the bytes.
    Used,
    /// The event is recorded behind the stream's work: the next copy has to wait for it.
    Recorded,
}

impl SlotMemory {
    /// A buffer without memory.
    pub(crate) fn new(driver: &Driver) -> Result<SlotMemory> {
        let copied = driver.new_event()?;
        let consumers = Vec::new();
        Ok(SlotMemory { address: 0, capacity: 0, copied, consumers, staging: IoBuf::empty() })
    }

    /// Returns whether it has memory on the device.
    pub(crate) fn is_allocated(&self) -> bool {
        self.capacity > 0
    }

    /// Frees memory and events. Waits for the recorded work of consumers first.
    pub(crate) fn end(mut self, driver: &Driver) -> Result<()> {
        self.free(driver)?;
        self.consumers.iter().try_for_each(|consumer| driver.destroy_event(consumer.event))?;
        driver.destroy_event(self.copied)
    }

    fn consumers_in(&mut self, state: ConsumerState) -> impl Iterator<Item = &mut Consumer> {
        self.consumers.iter_mut().filter(move |consumer| consumer.state == state)
    }

    /// Frees the device's memory, after waiting on the host for the recorded work that uses it.
    fn free(&mut self, driver: &Driver) -> Result<()> {
        for consumer in self.consumers_in(ConsumerState::Recorded) {
            driver.synchronize(consumer.event)?;
        }
        if std::mem::take(&mut self.capacity) > 0 {
            driver.free(self.address)?;
        }
        Ok(())
    }

    /// Makes later work of `stream` wait for the copy, and remembers `stream` as a consumer.
    pub(crate) fn wait_on(&mut self, driver: &Driver, stream: Handle) -> Result<()> {
        driver.wait_on(stream, self.copied)?;
        // A thread's own default stream has no name in other threads; the common one waits for all of them.
        let stream = if stream == DEFAULT_OF_THREAD { DEFAULT } else { stream };
        if self.consumers_in(ConsumerState::Used).any(|consumer| consumer.stream == stream) {
            return Ok(());
        }
        match self.consumers.iter_mut().find(|consumer| consumer.state == ConsumerState::Free) {
            Some(consumer) => (consumer.stream, consumer.state) = (stream, ConsumerState::Used),
            None => {
                let event = driver.new_event()?;
                self.consumers.push(Consumer { stream, event, state: ConsumerState::Used });
            }
        }
        Ok(())
    }

    /// Records the work of the consumer's streams: the next copy waits for it.
    pub(crate) fn release(&mut self, driver: &Driver) -> Result<()> {
        for consumer in self.consumers_in(ConsumerState::Used) {
            driver.record(consumer.event, consumer.stream)?;
            consumer.state = ConsumerState::Recorded;
        }
        Ok(())
    }

    /// Starts the copies into this buffer, on `stream`, behind the recorded work of earlier consumers.
    pub(crate) fn fill(
        &mut self,
        driver: &'static Driver,
        stream: Handle,
        parts: &Parts<'_>,
    ) -> Result<()> {
        self.reserve(driver, parts.len().max(1))?;
        for consumer in self.consumers_in(ConsumerState::Recorded) {
            driver.wait_on(stream, consumer.event)?;
            consumer.state = ConsumerState::Free;
        }
        for HostSlice { at, from, len } in self.stage(driver, parts)? {
            // SAFETY: the bytes are of `parts`, which borrows them from the host that `Slot::upload` keeps unchanged
            // until `copied` has passed or the device is lost, or of `staging`, which is written next when this buffer
            // is taken again: by then `copied` has passed, too. The destination is this buffer's, up to its capacity.
            unsafe { driver.copy(self.address + at as u64, from, len, stream)? };
        }
        driver.record(self.copied, stream)
    }

    /// Makes room for `len` bytes on the device. What the buffer held is lost if it grows.
    fn reserve(&mut self, driver: &Driver, len: usize) -> Result<()> {
        if len > self.capacity {
            self.free(driver)?;
            let capacity = rounded(len);
            self.address = driver.allocate(capacity)?;
            self.capacity = capacity;
        }
        Ok(())
    }

    /// Copies short runs into registered memory; returns all copies that the device has to make.
    fn stage(&mut self, driver: &'static Driver, parts: &Parts<'_>) -> Result<Vec<HostSlice>> {
        let short = parts.runs().filter(|run| is_short(run)).flatten();
        let room: usize = short.map(|piece| piece.bytes.len() + Parts::ALIGN).sum();
        if room > self.staging.len() {
            self.staging = registered(driver, rounded(room))?;
        }
        let start = self.staging.as_ptr();
        let mut used = 0;
        let mut staged_to = None; // the offset on the device behind the slice that was staged last
        let mut copies: Vec<HostSlice> = Vec::new();
        for run in parts.runs() {
            let at = run[0].at;
            if !is_short(run) {
                let from = run[0].bytes.as_ptr();
                copies.push(HostSlice { at, from, len: len_of(run) });
                staged_to = None;
                continue;
            }
            // A gap between two arrays is copied with them.
            let gap = staged_to.map(|end| at - end).filter(|gap| *gap < Parts::ALIGN);
            used += gap.unwrap_or(0);
            match (gap, copies.last_mut()) {
                (Some(gap), Some(last)) => last.len += gap + len_of(run),
                _ => {
                    let from = start.wrapping_add(used);
                    copies.push(HostSlice { at, from, len: len_of(run) });
                }
            }
            for piece in run {
                self.staging[used..][..piece.bytes.len()].copy_from_slice(piece.bytes);
                used += piece.bytes.len();
            }
            staged_to = Some(at + len_of(run));
        }
        Ok(copies)
    }

    /// The bytes of `parts` that are copied on the host.
    pub(crate) fn staged(&self, parts: &Parts<'_>) -> u64 {
        parts.runs().filter(|run| is_short(run)).map(|run| len_of(run) as u64).sum()
    }
}

/// The bytes of a run.
fn len_of(run: &[Piece<'_>]) -> usize {
    run.iter().map(|piece| piece.bytes.len()).sum()
}

/// Returns whether a run is copied on the host first.
fn is_short(run: &[Piece<'_>]) -> bool {
    len_of(run) < DIRECT_FROM_BYTES
}

/// A buffer of `len` bytes on the host, registered with the driver if it allows that.
fn registered(driver: &'static Driver, len: usize) -> Result<IoBuf> {
    let pool =
        Pool::new(PoolOptions { bytes: len, slot_len_bytes: len, huge_pages: HugePages::Auto })?;
    let _ = pool.register(driver); // the driver copies other memory too, if slower
    Ok(pool.take(len).expect("the pool is new"))
}

/// Rounds a length up, so that memory seldom has to grow.
fn rounded(len: usize) -> usize {
    let step = (len.checked_next_power_of_two().unwrap_or(len) / 8).max(LEAST_STEP_BYTES);
    len.next_multiple_of(step)
}

/// Arrays that are copied together, one behind the other. Each begins at a multiple of [`Parts::ALIGN`] and is made of
/// slices.
#[derive(Debug, Default)]
pub struct Parts<'a> {
    /// All slices, in the order of their offsets.
    pub(crate) pieces: Vec<Piece<'a>>,
    /// The range of each array on the device, in bytes.
    pub(crate) arrays: Vec<Range<usize>>,
}

/// A slice, and its offset in the device's buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) at: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The alignment of arrays on the device: that of memory that CUDA allocates.
    pub const ALIGN: usize = 256;

    /// No array yet.
    pub fn new() -> Parts<'a> {
        Parts::default()
    }

    /// Begins the next array.
    pub fn begin(&mut self) {
        let at = self.len().next_multiple_of(Parts::ALIGN);
        self.arrays.push(at..at);
    }

    /// Appends bytes to the array that was begun last.
    ///
    /// # Panics
    /// If no array was begun.
    pub fn push(&mut self, bytes: &'a [u8]) {
        let array = self.arrays.last_mut().expect("an array was begun");
        if !bytes.is_empty() {
            self.pieces.push(Piece { at: array.end, bytes });
            array.end += bytes.len();
        }
    }

    /// The length of all arrays on the device.
    pub fn len(&self) -> usize {
        self.arrays.last().map_or(0, |array| array.end)
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Runs of slices that follow each other in both memories, so that one copy takes them.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[Piece<'a>]> {
        self.pieces.chunk_by(|one, next| {
            one.at + one.bytes.len() == next.at
                && std::ptr::eq(one.bytes.as_ptr_range().end, next.bytes.as_ptr())
        })
    }
}

/// The least step by which memory grows.
const LEAST_STEP_BYTES: usize = 64 << 10;

/// Runs of at least this length are not staged: starting a copy of its own takes less time than copying on the host.
const DIRECT_FROM_BYTES: usize = 32 << 10;

// The default stream of a context, and that of the calling thread.
const DEFAULT: Handle = 0;
const DEFAULT_OF_THREAD: Handle = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_aligned_and_slices_that_follow_each_other_are_one_run() {
        let bytes = [7; 1000];
        let mut parts = Parts::new();
        parts.begin();
        for slice in [&bytes[..10], &bytes[10..300], &bytes[400..410], &[]] {
            parts.push(slice);
        }
        parts.begin();
        parts.begin();
        parts.push(&bytes[410..420]);
        assert_eq!(parts.arrays, [0..310, 512..512, 512..522]);
        assert_eq!((parts.len(), parts.is_empty()), (522, false));
        let runs: Vec<(usize, usize)> = parts.runs().map(|run| (run[0].at, len_of(run))).collect();
        assert_eq!(runs, [(0, 300), (300, 10), (512, 10)]);
    }
}
