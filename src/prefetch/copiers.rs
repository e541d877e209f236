//! Sends batches from the poller to the consumer, through copying threads if each batch is to be in one buffer.
//!
//! The threads keep the poller's order: batch k goes to thread k mod n, and the consumer receives from the threads in
//! turn, so batches need no sorting.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::buf::{IoBuf, Pool};
use crate::error::Result;
use crate::reader::Batch;
use crate::threads;

use super::{LoaderShared, Message, READY_BATCHES};

/// Sends messages from the poller to the consumer, through the copying threads if there are any.
pub(super) struct Copiers {
    /// The channels to the copying threads, or the one to the consumer.
    senders: Vec<Sender<Message>>,
    /// The index of the channel for the next message.
    next: usize,
    /// Set if the poller gathers before it sends.
    by_poller: bool,
    shared: Arc<LoaderShared>,
    pool: Pool,
}

/// The channels that the consumer receives from, in turn.
type Ready = Vec<Receiver<Message>>;

impl Copiers {
    /// `None`: sends batches as they are. `Some(0)`: the poller gathers. `Some(n)`: n threads gather.
    pub(super) fn start(
        threads: Option<usize>,
        shared: &Arc<LoaderShared>,
        pool: &Pool,
    ) -> Result<(Copiers, Ready)> {
        let mut senders = Vec::new();
        let mut ready = Vec::new();
        let count = threads.unwrap_or(0);
        for index in 0..count.max(1) {
            let (sender, receiver) = bounded(READY_BATCHES.div_ceil(count.max(1)));
            senders.push(sender);
            ready.push(match count {
                0 => receiver,
                _ => start_thread(index, receiver, Arc::clone(shared), pool.clone())?,
            });
        }
        let by_poller = threads == Some(0);
        let shared = Arc::clone(shared);
        Ok((Copiers { senders, next: 0, by_poller, shared, pool: pool.clone() }, ready))
    }

    /// Sends a message, gathered if the poller gathers; an error returns it.
    #[allow(clippy::result_large_err)] // the batch itself is returned, and boxing each would allocate
    pub(super) fn pass_on(&mut self, mut next: Message) -> Result<(), TrySendError<Message>> {
        if self.by_poller {
            next = gathered(next, &self.shared, &self.pool);
        }
        self.senders[self.next].try_send(next)?;
        self.next = (self.next + 1) % self.senders.len();
        Ok(())
    }
}

/// Starts a thread that gathers the batches from `work`; returns the channel of its results.
fn start_thread(
    index: usize,
    work: Receiver<Message>,
    shared: Arc<LoaderShared>,
    pool: Pool,
) -> Result<Receiver<Message>> {
    let (done, ready) = bounded(1);
    let fate = shared.fate.clone();
    // Not joined: the thread ends when the poller closes the channel.
    threads::start(format!("dlfs-copy-{index}"), &fate, (work, done), move |(work, done)| {
        for next in &*work {
            if done.send(gathered(next, &shared, &pool)).is_err() {
                return; // the loader was dropped
            }
        }
    })?;
    Ok(ready)
}

/// The message with its batch, if it has one, in one buffer; or the error if there is no memory for the buffer.
fn gathered(message: Message, shared: &LoaderShared, pool: &Pool) -> Message {
    match message {
        Message::Batch(mut delivery) => match gather(&mut delivery.batch, Some(pool)) {
            Ok(copied) => {
                shared.copied_bytes.fetch_add(copied as u64, Ordering::Relaxed);
                Message::Batch(delivery)
            }
            Err(error) => Message::Failed(error),
        },
        Message::Failed(_) | Message::End => message,
    }
}

/// Copies the batch into one buffer, unless it is in one already; returns the number of copied bytes. If the memory of
/// `pool` is registered, so is the buffer.
///
/// # Errors
/// `OutOfMemory`: the system has no memory for the copy.
pub(super) fn gather(batch: &mut Batch, pool: Option<&Pool>) -> Result<usize> {
    if batch.is_one_piece() {
        return Ok(0);
    }
    let len = batch.len_bytes() as usize;
    let mut piece = match pool.filter(|pool| pool.registered_bytes() > 0) {
        Some(pool) => pool.outside(len)?,
        None => IoBuf::try_zeroed(len)?,
    };
    let copied = batch.copy_to(&mut piece).expect("the piece has the batch's length");
    batch.move_to(piece.freeze());
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::super::driver::Delivery;
    use super::super::walk::Head;
    use super::*;
    use crate::buf::{HugePages, PoolOptions};
    use crate::error::ErrorKind;
    use crate::threads::caught;
    use crate::units::Epoch;

    fn shared() -> Arc<LoaderShared> {
        Arc::<LoaderShared>::default()
    }

    fn pool() -> Pool {
        let huge_pages = HugePages::Off;
        Pool::new(PoolOptions { bytes: 4096, slot_len_bytes: 4096, huge_pages }).unwrap()
    }

    fn batch() -> Message {
        let head = Head::new(Epoch(0), false, 1);
        Message::Batch(Delivery { batch: Batch::new(), head, skipped: 0, failures: Vec::new() })
    }

    #[test]
    fn the_end_comes_after_the_last_batch_of_any_thread() {
        for threads in [None, Some(0), Some(1), Some(2), Some(3)] {
            for batches in 0..7 {
                let shared = shared();
                let (mut copiers, ready) = Copiers::start(threads, &shared, &pool()).unwrap();
                (0..batches).for_each(|_| assert!(copiers.pass_on(batch()).is_ok()));
                assert!(copiers.pass_on(Message::End).is_ok());
                drop(copiers);
                for at in 0..batches {
                    let message = ready[at % ready.len()].recv().unwrap();
                    assert!(matches!(message, Message::Batch(_)), "{threads:?}: {at} of {batches}");
                }
                let message = ready[batches % ready.len()].recv().unwrap();
                assert!(matches!(message, Message::End), "{threads:?}: after {batches}");
                assert!(shared.fate.died().is_none());
            }
        }
    }

    /// Like `start_thread`, but the thread dies at its second batch.
    #[test]
    fn the_death_of_a_copying_thread_is_an_error_that_names_it() {
        let shared = shared();
        let (line, work) = bounded(4);
        let (done, ready) = bounded(4);
        threads::start("dlfs-copy-0", &shared.fate, (work, done), |(work, done)| {
            done.send(work.recv().expect("the first batch")).expect("room");
            panic!("message to panic");
        })
        .unwrap();
        let senders = vec![line];
        let of = Arc::clone(&shared);
        let mut copiers = Copiers { senders, next: 0, by_poller: false, shared: of, pool: pool() };
        assert!(copiers.pass_on(batch()).is_ok());
        assert!(matches!(ready.recv(), Ok(Message::Batch(_))));
        assert!(ready.recv().is_err(), "closed, and no end was said");
        let error = shared.fate.of_closed_channel("the thread dlfs-poller");
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(error.to_string(), "the thread dlfs-copy-0 panicked: message to panic");
        let failed = caught("a test", || panic!("message to panic")).unwrap_err();
        assert_eq!(failed.to_string(), "a test panicked: message to panic");
    }
}
