//! The file engine without io_uring: `poll` runs each I/O to its end by calls of `pread`, `pwrite` or `fdatasync`,
//! which block.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::transfer::{Files, Step, Transfer};
use super::{Completion, Io, IoOp, Namespace, QueuePair};
use dlfs_base::units::Lba;

/// A queue pair that makes one system call after another.
pub(super) struct PreadPair {
    files: Arc<Files>,
    namespace: Namespace,
    /// I/Os that were taken and that no `poll` has run yet.
    taken: VecDeque<Io>,
}

impl PreadPair {
    pub(super) fn new(files: Arc<Files>, namespace: Namespace) -> PreadPair {
        let taken = VecDeque::with_capacity(usize::from(namespace.queue_depth));
        PreadPair { files, namespace, taken }
    }

    /// Runs an I/O to its end.
    fn run(&self, io: Io) -> Completion {
        if let Err(error) = self.namespace.check(&io) {
            return io.end(Err(error));
        }
        let mut transfer = Transfer::new(io, self.namespace.block_len_bytes);
        loop {
            let result = self.call(&mut transfer);
            if let Step::Ended(result) = transfer.advance(result) {
                return transfer.io.end(result);
            }
        }
    }

    /// Makes the next system call; returns the bytes that it transferred.
    fn call(&self, transfer: &mut Transfer) -> Result<usize, Errno> {
        let file = transfer.file(&self.files);
        let offset = transfer.offset();
        let moved = transfer.moved;
        match transfer.io.op {
            IoOp::Read => rustix::io::pread(file, &mut transfer.io.buf[moved..], offset),
            IoOp::Write => rustix::io::pwrite(file, &transfer.io.buf[moved..], offset),
            IoOp::Flush => rustix::fs::fdatasync(file).map(|()| 0),
        }
    }
}

impl QueuePair for PreadPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.files.refresh(&mut self.namespace);
        let room = usize::from(self.namespace.queue_depth) - self.taken.len();
        let count = room.min(pending.len());
        self.taken.extend(pending.drain(..count));
        count
    }

    fn poll(&mut self, _now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = max.min(self.taken.len()).min(BURST);
        for _ in 0..count {
            let io = self.taken.pop_front().expect("counted above");
            done.push(self.run(io));
        }
        count
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.files.drop_cached(slba, len_bytes, &self.namespace);
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }
}

/// The most I/Os of one `poll`, so that the caller regains control between slow I/Os.
const BURST: usize = 16;
