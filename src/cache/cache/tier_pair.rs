//! Queue pairs of tiers, including tiers whose target is lost.

use std::collections::VecDeque;
use std::time::Instant;

use super::Shared;
use dlfs_base::error::{ErrorKind, Result};
use dlfs_io::qpair::plain::{Plain, PlainEngine};
use dlfs_io::qpair::{Completion, Io, IoError, Namespace, PairScope, QueuePair};

/// Opens a queue pair of a tier. If a tier's target is lost, its copies are lost, but reads continue from the
/// origin.
///
/// # Errors
/// `Refused`: other hosts use all queues that a target grants. Errors of opening a local tier.
pub(super) fn pair_of(shared: &Shared, tier: u8, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
    let media = &shared.media[usize::from(tier)];
    match media.device.queue_pair_in(scope) {
        Err(error) if media.is_remote() && error.kind() != ErrorKind::Refused => {
            shared.switch_off(tier, &error.report());
            let namespace = media.device.namespace();
            Ok(Box::new(Plain(Lost { namespace, taken: Vec::new(), why: error.to_string() })))
        }
        opened => opened,
    }
}

/// Queue pair of a tier whose target cannot be reached: each read fails here, and then goes to the origin.
struct Lost {
    namespace: Namespace,
    taken: Vec<Io>,
    why: String,
}

impl PlainEngine for Lost {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let count = pending.len();
        self.taken.extend(pending.drain(..));
        count
    }

    fn poll(&mut self, _: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = self.taken.len().min(max);
        done.extend(self.taken.drain(..count).map(|io| Completion {
            tag: io.tag,
            buf: io.buf,
            result: Err(IoError::Disconnected(self.why.clone())),
        }));
        count
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }
}
