//! A plain io_uring: one entry for each read or write, as in fio's io_uring.
//!
//! Like fio, and unlike what the trait requires of an engine, it waits in the kernel when the queue is
//! full: the job has nothing else to do then, and completions need no interrupt of its thread.
#![allow(unsafe_code)] // hands buffers to the kernel by address

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use dlfs::buf::{Pool, SharedBuf};
use dlfs::qpair::readiness::{Registry, Watched};
use dlfs::qpair::{Completion, Fence, Io, IoError, IoOp, Namespace, Notice, QueuePair};
use dlfs::units::Lba;

pub(super) struct UringPair {
    ring: IoUring,
    /// The same ring, for the epoll set.
    fd: Watched<OwnedFd>,
    file: Arc<File>,
    namespace: Namespace,
    slots: Box<[Option<Io>]>,
    free: Vec<u32>,
    /// Entries that are not submitted to the kernel yet.
    unsubmitted: usize,
}

impl UringPair {
    pub(super) fn new(
        file: Arc<File>,
        namespace: Namespace,
        depth: u64,
    ) -> std::io::Result<UringPair> {
        let depth = depth as u32; // at most 32,768
        let ring = IoUring::builder().setup_clamp().build(depth.next_power_of_two())?;
        // SAFETY: the ring's descriptor is open, since `ring` lives.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) }.try_clone_to_owned()?;
        let slots = (0..depth).map(|_| None).collect();
        let free = (0..depth).rev().collect();
        Ok(UringPair { ring, fd: Watched::new(fd), file, namespace, slots, free, unsubmitted: 0 })
    }

    /// Submits new entries to the kernel, and waits for at least `want` completions.
    fn enter(&mut self, want: usize) {
        // If the call fails, the entries stay in the queue; the next turn tries again.
        if let Ok(told) = self.ring.submit_and_wait(want) {
            self.unsubmitted = self.unsubmitted.saturating_sub(told);
        }
    }

    /// Waits for a completion, at most [`LONGEST_WAIT`].
    fn wait(&self) {
        let limit = types::Timespec::from(LONGEST_WAIT);
        let arguments = types::SubmitArgs::new().timespec(&limit);
        // The caller polls next, whatever ended the wait. On a kernel without this call it spins.
        let _ = self.ring.submitter().submit_with_args(1, &arguments);
    }

    /// Takes completions from the ring.
    fn take(&mut self, max: usize, done: &mut Vec<Completion>) -> usize {
        let mut count = 0;
        while count < max {
            let Some((slot, result)) =
                self.ring.completion().next().map(|entry| (entry.user_data(), entry.result()))
            else {
                break;
            };
            done.push(self.complete(slot, result));
            count += 1;
        }
        count
    }

    fn complete(&mut self, slot: u64, result: i32) -> Completion {
        let index = usize::try_from(slot).expect("a slot number that was sent");
        let io = self.slots[index].take().expect("the kernel answers each entry once");
        self.free.push(slot as u32);
        let expected = io.buf.len() as u64;
        let result = match u64::try_from(result) {
            Ok(_) if io.op == IoOp::Flush => Ok(()),
            Ok(found) => IoError::check_count(expected, found),
            Err(_) => Err(IoError::Os(-result)),
        };
        Completion { tag: io.tag, buf: io.buf, result }
    }
}

impl QueuePair for UringPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let mut count = 0;
        while let Some(&slot) = self.free.last() {
            let Some(mut io) = pending.pop_front() else { break };
            let fd = types::Fd(self.file.as_raw_fd());
            let start = io.buf.as_mut_ptr();
            let len = io.buf.len() as u32;
            let offset = io.slba.0 * u64::from(self.namespace.block_len_bytes);
            let entry = match io.op {
                IoOp::Read => opcode::Read::new(fd, start, len).offset(offset).build(),
                IoOp::Write => opcode::Write::new(fd, start, len).offset(offset).build(),
                IoOp::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            };
            // SAFETY: the buffer lies in `slots` until the kernel has answered, and `drop` waits for
            // all answers; its memory does not move with the `Io`.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(u64::from(slot))) };
            if pushed.is_err() {
                pending.push_front(io); // the ring is full until its entries are submitted
                break;
            }
            self.free.pop();
            self.slots[slot as usize] = Some(io);
            count += 1;
        }
        self.unsubmitted += count;
        if count > 0 {
            self.enter(0);
        }
        count
    }

    fn poll(&mut self, _now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        if self.unsubmitted > 0 {
            self.enter(0);
        }
        let count = self.take(max, done);
        if count > 0 || !self.free.is_empty() {
            return count;
        }
        self.wait();
        self.take(max, done)
    }

    fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn start(&mut self) {}

    fn use_pool(&mut self, _: &Pool) {}

    fn use_fence(&mut self, _: &Arc<Fence>) {}

    fn report_corrupt(&mut self, _: Lba, _: usize) {}

    fn borrow(&self, _: Lba, _: usize) -> Option<SharedBuf> {
        None
    }

    fn has_copies(&self, _: Lba, _: usize) -> bool {
        false
    }

    fn shared_queue(&self) -> Option<usize> {
        None
    }

    fn register(&mut self, registry: &Registry) {
        self.fd.register_for_sleep(registry);
    }

    fn notice(&self) -> Notice {
        Notice::Look
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}

impl Drop for UringPair {
    fn drop(&mut self) {
        let until = Instant::now() + LAST_IOS;
        let mut done = Vec::new();
        while self.outstanding() > 0 && Instant::now() < until {
            self.wait();
            self.take(usize::MAX, &mut done);
            done.clear();
        }
        if self.outstanding() > 0 {
            eprintln!("dlfs-bench: the device does not answer; the memory of its I/Os is given up");
            // The kernel may still write there.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

/// Short, so that signals and the end of the run are noticed.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// How long to wait for outstanding I/O at the end: a device may hang for ever.
const LAST_IOS: Duration = Duration::from_secs(10);
