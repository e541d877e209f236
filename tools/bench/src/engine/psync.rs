//! `pread` and `pwrite`, one at a time, as fio's psync does.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use dlfs::qpair::plain::PlainEngine;
use dlfs::qpair::{Completion, Io, IoError, IoOp, Namespace};

pub(super) struct PsyncPair {
    file: Arc<File>,
    namespace: Namespace,
    taken: Option<Io>,
}

impl PsyncPair {
    pub(super) fn new(file: Arc<File>, namespace: Namespace) -> PsyncPair {
        PsyncPair { file, namespace, taken: None }
    }
}

impl PlainEngine for PsyncPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        if self.taken.is_some() {
            return 0;
        }
        self.taken = pending.pop_front();
        usize::from(self.taken.is_some())
    }

    fn poll(&mut self, _: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let Some(mut io) = self.taken.take_if(|_| max > 0) else { return 0 };
        let file = &*self.file;
        let offset = io.slba.0 * u64::from(self.namespace.block_len_bytes);
        let moved = match io.op {
            IoOp::Read => rustix::io::pread(file, &mut io.buf[..], offset),
            IoOp::Write => rustix::io::pwrite(file, &io.buf, offset),
            IoOp::Flush => rustix::fs::fdatasync(file).map(|()| 0),
        };
        let expected = io.buf.len() as u64;
        let result = match moved {
            Ok(_) if io.op == IoOp::Flush => Ok(()),
            Ok(found) => IoError::check_count(expected, found as u64),
            Err(errno) => Err(IoError::Os(errno.raw_os_error())),
        };
        done.push(Completion { tag: io.tag, buf: io.buf, result });
        1
    }

    fn outstanding(&self) -> usize {
        usize::from(self.taken.is_some())
    }
}
