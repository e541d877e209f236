//! The I/Os that one handle of a shared queue still owes a completion.
//!
//! Several queue pairs, called handles, may share one queue. If this process cannot continue the queue after a fork,
//! the handle's own record tells which I/Os must fail.

use std::collections::VecDeque;

use super::{Completion, Io, IoError};
use dlfs_base::buf::IoBuf;

/// The I/Os of one handle that were taken and whose completions were not returned yet.
#[derive(Default)]
pub(super) struct Outstanding {
    /// The tags of I/Os that the shared queue has, roughly in the order of submission, in which most complete.
    tags: VecDeque<u64>,
    /// The completions of I/Os that this process cannot continue.
    lost: VecDeque<Completion>,
}

impl Outstanding {
    /// The number of I/Os without a completion.
    pub(super) fn len(&self) -> usize {
        self.tags.len() + self.lost.len()
    }

    /// Returns whether the next poll has an I/O to fail.
    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Calls `take`, which takes at most `most` I/Os from the front of `pending` and returns their number, and records
    /// their tags.
    pub(super) fn take(
        &mut self,
        pending: &mut VecDeque<Io>,
        most: usize,
        take: impl FnOnce(&mut VecDeque<Io>) -> usize,
    ) -> usize {
        let before = self.tags.len();
        self.tags.extend(pending.iter().take(most).map(|io| io.tag));
        let count = take(pending);
        self.tags.truncate(before + count);
        count
    }

    /// Fails all outstanding I/Os for this reason. The shared queue keeps their buffers, so the completions have empty
    /// ones.
    pub(super) fn lose(&mut self, reason: &str) {
        let tags = std::mem::take(&mut self.tags);
        self.lost.extend(tags.into_iter().map(|tag| failed(tag, IoBuf::empty(), reason)));
    }

    /// Takes all of `pending` and fails them for this reason; returns their number.
    pub(super) fn refuse(&mut self, pending: &mut VecDeque<Io>, reason: &str) -> usize {
        let count = pending.len();
        self.lost.extend(pending.drain(..).map(|io| failed(io.tag, io.buf, reason)));
        count
    }

    /// Appends at most `max` failures to `done`; returns their number.
    pub(super) fn fail_lost(&mut self, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = self.lost.len().min(max);
        done.extend(self.lost.drain(..count));
        count
    }

    /// Removes the I/Os of `done`: completions of the shared queue that the caller now returns.
    pub(super) fn forget(&mut self, done: &[Completion]) {
        for completion in done {
            if let Some(at) = self.tags.iter().position(|tag| *tag == completion.tag) {
                self.tags.swap_remove_front(at);
            }
        }
    }
}

fn failed(tag: u64, buf: IoBuf, reason: &str) -> Completion {
    Completion { tag, buf, result: Err(IoError::Disconnected(reason.to_owned())) }
}
