//! Gathers batches into one piece each, on threads of its own, the poller's order kept.
//!
//! Batch k goes to thread k mod n, and the consumer takes it from there, so nothing has to be sorted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};

use crate::buf::IoBuf;
use crate::error::{Error, Result};

use super::{Delivery, READY_BATCHES, Shared};

/// The way from the poller to the consumer.
pub(super) struct Copiers {
    lines: Vec<Sender<Result<Delivery>>>,
    next: usize,
    /// The poller gathers before it sends.
    by_poller: bool,
    shared: Arc<Shared>,
}

/// Where the consumer takes batches from, in turn.
type Ready = Vec<Receiver<Result<Delivery>>>;

impl Copiers {
    /// `None`: batches pass as they are. `Some(0)`: the poller gathers. `Some(n)`: n threads do.
    pub(super) fn start(threads: Option<usize>, shared: &Arc<Shared>) -> Result<(Copiers, Ready)> {
        let mut lines = Vec::new();
        let mut ready = Vec::new();
        let count = threads.unwrap_or(0);
        for index in 0..count.max(1) {
            let (sender, receiver) = bounded(READY_BATCHES.div_ceil(count.max(1)));
            lines.push(sender);
            ready.push(match count {
                0 => receiver,
                _ => start_thread(index, receiver, Arc::clone(shared))?,
            });
        }
        let by_poller = threads == Some(0);
        Ok((Copiers { lines, next: 0, by_poller, shared: Arc::clone(shared) }, ready))
    }

    /// Sends the batch on; `Full` gives it back.
    pub(super) fn pass_on(
        &mut self,
        mut next: Result<Delivery>,
    ) -> Result<(), TrySendError<Result<Delivery>>> {
        if self.by_poller {
            next = next.map(|delivery| gather(delivery, &self.shared));
        }
        self.lines[self.next].try_send(next)?;
        self.next = (self.next + 1) % self.lines.len();
        Ok(())
    }
}

fn start_thread(
    index: usize,
    work: Receiver<Result<Delivery>>,
    shared: Arc<Shared>,
) -> Result<Receiver<Result<Delivery>>> {
    let (done, ready) = bounded(1);
    std::thread::Builder::new()
        .name(format!("dlfs-copy-{index}"))
        .spawn(move || {
            for next in work {
                let next = next.map(|delivery| gather(delivery, &shared));
                if done.send(next).is_err() {
                    return; // the loader was dropped
                }
            }
        })
        .map_err(|error| Error::from(error).hint("the process may start no more threads"))?;
    Ok(ready)
}

/// The batch in one piece: as it is, where it lies so already.
fn gather(mut delivery: Delivery, shared: &Shared) -> Delivery {
    if !delivery.batch.is_one_piece() {
        let mut piece = IoBuf::zeroed(delivery.batch.len_bytes() as usize);
        let copied = delivery.batch.copy_to(&mut piece).expect("the piece has the batch's length");
        shared.copied_bytes.fetch_add(copied as u64, Ordering::Relaxed);
        delivery.batch.move_to(piece.freeze());
    }
    delivery
}
