//! The poller thread: it advances the driver, hands batches to the consumer, and sleeps when nothing moves: when
//! the window is full or nothing is outstanding.
//!
//! If the caller wants each batch in one buffer, copying threads gather them, in the poller's order: batch k goes to
//! thread k mod n, and the consumer receives from the threads in turn, so batches keep their order without sorting.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};

use crate::buf::{IoBuf, Pool};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::group::Waker;
use crate::reader::{Batch, CHECK_LIMIT, Pump, stale_error};
use crate::threads::{self, Thread};

use super::driver::{Delivery, Driver};
use super::waits::{AfterTurn, Divider, TurnClock};
use super::window::{Memory, Window};
use super::{LoaderOptions, Message, READY_BATCHES, Shared};

/// The consumer's side of the poller thread.
pub(super) struct Poller {
    thread: Option<Thread>,
    pub(super) window: Arc<Window>,
    pub(super) shared: Arc<Shared>,
    pub(super) ready: Vec<Receiver<Message>>,
    pub(super) next: usize,
    pub(super) waker: Waker,
    pub(super) divider: Divider,
}

impl Poller {
    pub(super) fn start(
        (pump, memory): (Pump, Memory),
        driver: Box<dyn Driver>,
        shared: Arc<Shared>,
        directories: Arc<[Arc<Directory>]>,
        options: &LoaderOptions,
        window: Arc<Window>,
    ) -> Result<Poller> {
        let (copiers, ready) = Copiers::start(options.copy_threads, &shared, &window.pool)?;
        let cpus = options.cpus.clone();
        let waker = pump.waker();
        let running = PollerThread {
            pump,
            memory,
            driver,
            shared: Arc::clone(&shared),
            copiers,
            held: None,
            directories,
            check_limit: CHECK_LIMIT.min(options.deadline / 4),
            checked: None,
            clock: TurnClock::new(options.trace.clone()),
            blocked_since: None,
        };
        let fate = shared.fate.clone();
        let thread = threads::start("dlfs-poller", &fate, running, move |running| {
            if let Some(Err(error)) = cpus.map(|cpus| cpus.bind_this_thread()) {
                // The processors existed a moment ago, when the memory was allocated near them.
                tracing::warn!(%error, "the poller runs anywhere");
            }
            running.run();
        })?;
        let divider = Divider::default();
        Ok(Poller { thread: Some(thread), window, shared, ready, next: 0, waker, divider })
    }

    /// Waits for the next message.
    pub(super) fn wait(&self, limit: Duration) -> Result<Message, RecvTimeoutError> {
        self.shared.waiting.store(true, Ordering::Release);
        self.waker.wake();
        let received = self.ready[self.next].recv_timeout(limit);
        self.shared.waiting.store(false, Ordering::Release);
        received
    }

    /// The reason that a channel closed without a last message.
    pub(super) fn death(&self) -> Error {
        self.shared.fate.of_closed_channel("the thread dlfs-poller")
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.ready.clear();
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join_within(JOIN_TIMEOUT);
        }
    }
}

/// The state of the poller thread.
struct PollerThread {
    pump: Pump,
    memory: Memory,
    driver: Box<dyn Driver>,
    shared: Arc<Shared>,
    copiers: Copiers,
    /// A message that the consumer's queue has no room for yet.
    held: Option<Message>,
    /// By source.
    directories: Arc<[Arc<Directory>]>,
    /// The longest that a check of the superblocks may take.
    check_limit: Duration,
    /// The last check of the superblocks because of skipped samples.
    checked: Option<Instant>,
    clock: TurnClock,
    /// The start of the current sleep, if it waits for the consumer.
    blocked_since: Option<Instant>,
}

impl PollerThread {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.turn() {
                Turn::Moved => {}
                Turn::Idle => self.sleep(),
                Turn::Over => break,
            }
        }
        self.publish();
    }

    fn turn(&mut self) -> Turn {
        let now = Instant::now();
        if let Some(since) = self.blocked_since.take() {
            let slept_ns = now.saturating_duration_since(since).as_nanos() as u64;
            self.shared.blocked_ns.fetch_add(slept_ns, Ordering::Relaxed);
        }
        self.clock.begin(now, self.shared.waiting.load(Ordering::Acquire), &self.shared.seen);
        let mut moved = self.pump.poll(now);
        while let Some(fetched) = self.pump.next_finished() {
            self.driver.finished(fetched);
            moved = true;
        }
        match self.hand_over() {
            Turn::Over => return Turn::Over,
            Turn::Moved => moved = true,
            Turn::Idle => {}
        }
        let before = self.pump.in_flight();
        let is_idle = before == 0;
        let starving =
            self.shared.waiting.load(Ordering::Acquire) && self.held.is_none() && is_idle;
        self.memory.set_starving(starving);
        let rewritten = std::mem::take(&mut *self.shared.rewritten.lock());
        for (source, chunk, load) in rewritten {
            self.driver.read_again(source, chunk, load);
        }
        let advanced = self.driver.advance(&mut self.pump, &mut self.memory);
        let advanced = advanced.and_then(|more| self.memory.check(more, &self.directories));
        let advanced = advanced.unwrap_or_else(|error| {
            self.held = Some(Message::Failed(error));
            false
        });
        moved |= advanced;
        let after = AfterTurn {
            planned_when_idle: is_idle && advanced,
            is_verifying: self.pump.is_verifying(),
            in_flight: self.pump.in_flight(),
            is_busy: self.pump.is_busy(),
            is_exhausted: self.memory.is_full(),
            begun: self.pump.in_flight().saturating_sub(before),
            moved,
        };
        self.clock.end(after, self.shared.waiting.load(Ordering::Acquire), &self.shared.seen);
        if moved { Turn::Moved } else { Turn::Idle }
    }

    /// Sends the complete batches until the queue is full.
    fn hand_over(&mut self) -> Turn {
        let mut handed = Turn::Idle;
        loop {
            let Some(next) = self.held.take().or_else(|| self.next_message()) else {
                return handed;
            };
            let last = !matches!(next, Message::Batch(_));
            self.publish();
            // The consumer no longer waits, though it may wake later; until then no memory outside the window is
            // used for it. Cleared before the batch is sent, since the consumer's next wait sets it again.
            let awaited = self.shared.waiting.swap(false, Ordering::AcqRel);
            match self.copiers.pass_on(next) {
                Ok(()) if last => return Turn::Over,
                Ok(()) => {
                    self.clock.sent();
                    if awaited {
                        // If both threads share a processor, let the consumer run before this thread fills more
                        // memory: the memory it returns is still cached.
                        std::thread::yield_now();
                    }
                    handed = Turn::Moved;
                }
                Err(TrySendError::Full(next)) => {
                    self.held = Some(next);
                    return handed;
                }
                Err(TrySendError::Disconnected(_)) => return Turn::Over,
            }
        }
    }

    /// The next message: a batch, an error, or the end after the last batch.
    fn next_message(&mut self) -> Option<Message> {
        match self.next_ready() {
            Some(Ok(delivery)) => Some(Message::Batch(delivery)),
            Some(Err(error)) => Some(Message::Failed(error)),
            None => self.driver.is_done().then_some(Message::End),
        }
    }

    /// The driver's next batch or error. If the batch or error looks damaged, and the image has a newer generation,
    /// returns the error of the newer generation instead.
    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        let next = self.driver.next_ready()?;
        let looks_damaged = match &next {
            Err(error) => error.kind() == ErrorKind::Corrupt,
            Ok(delivery) => delivery.skipped > 0 && self.may_check_again(),
        };
        if !looks_damaged {
            return Some(next);
        }
        let until = Instant::now() + self.check_limit;
        let source = self.driver.suspect();
        self.pump.select(source);
        match stale_error(&mut self.pump, &self.directories[source as usize], until) {
            Some(stale) => Some(Err(stale)),
            None => Some(next),
        }
    }

    /// Returns whether the last check of the superblocks was at least [`CHECK_INTERVAL`] ago; if so, records a new
    /// check.
    fn may_check_again(&mut self) -> bool {
        let now = Instant::now();
        let may = self.checked.is_none_or(|at| now.saturating_duration_since(at) >= CHECK_INTERVAL);
        if may {
            self.checked = Some(now);
        }
        may
    }

    fn publish(&self) {
        *self.shared.read.lock() = self.pump.stats();
        self.shared.over_window.store(self.memory.over_window, Ordering::Relaxed);
    }

    /// Sleeps until a completion arrives or the consumer takes a batch.
    fn sleep(&mut self) {
        let blocked = self.held.is_some() || self.memory.exhausted;
        let was_blocked = self.shared.blocked.swap(blocked, Ordering::AcqRel);
        if blocked && !was_blocked {
            return; // the next turn sees everything that the consumer did before it could see this flag
        }
        if blocked {
            std::thread::yield_now(); // the wait below may spin first, on the consumer's processor
        }
        let now = Instant::now();
        self.blocked_since = blocked.then_some(now);
        self.pump.wait(now + MAX_SLEEP);
    }
}

enum Turn {
    Moved,
    Idle,
    Over,
}

/// Sends messages from the poller to the consumer, through the copying threads if there are any.
pub(super) struct Copiers {
    lines: Vec<Sender<Message>>,
    next: usize,
    /// Set if the poller gathers before it sends.
    by_poller: bool,
    shared: Arc<Shared>,
    pool: Pool,
}

/// The channels that the consumer receives from, in turn.
type Ready = Vec<Receiver<Message>>;

impl Copiers {
    /// `None`: sends batches as they are. `Some(0)`: the poller gathers. `Some(n)`: n threads gather.
    pub(super) fn start(
        threads: Option<usize>,
        shared: &Arc<Shared>,
        pool: &Pool,
    ) -> Result<(Copiers, Ready)> {
        let mut lines = Vec::new();
        let mut ready = Vec::new();
        let count = threads.unwrap_or(0);
        for index in 0..count.max(1) {
            let (sender, receiver) = bounded(READY_BATCHES.div_ceil(count.max(1)));
            lines.push(sender);
            ready.push(match count {
                0 => receiver,
                _ => start_thread(index, receiver, Arc::clone(shared), pool.clone())?,
            });
        }
        let by_poller = threads == Some(0);
        let shared = Arc::clone(shared);
        Ok((Copiers { lines, next: 0, by_poller, shared, pool: pool.clone() }, ready))
    }

    /// Sends a message; the error `Full` returns it.
    #[allow(clippy::result_large_err)] // the batch itself is returned, and boxing each would allocate
    pub(super) fn pass_on(&mut self, mut next: Message) -> Result<(), TrySendError<Message>> {
        if self.by_poller {
            next = gathered(next, &self.shared, &self.pool);
        }
        self.lines[self.next].try_send(next)?;
        self.next = (self.next + 1) % self.lines.len();
        Ok(())
    }
}

fn start_thread(
    index: usize,
    work: Receiver<Message>,
    shared: Arc<Shared>,
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

fn gathered(message: Message, shared: &Shared, pool: &Pool) -> Message {
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

/// Copies the batch into one buffer, registered if `pool` is, unless it is in one already; returns the number of copied
/// bytes.
///
/// # Errors
/// `OutOfMemory`: the system has no memory for the copy.
pub(super) fn gather(batch: &mut Batch, pool: Option<&Pool>) -> crate::Result<usize> {
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

/// The longest sleep of an idle poller: memory may be returned without a wake-up.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// The interval between checks of the superblocks while samples are skipped.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The timeout for the poller's last turn; only a hanging engine exceeds it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::Delivery;
    use super::super::stream::Head;
    use super::*;
    use crate::buf::{HugePages, PoolOptions};
    use crate::error::ErrorKind;
    use crate::threads::caught;
    use crate::units::Epoch;

    fn shared() -> Arc<Shared> {
        Arc::<Shared>::default()
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
        let lines = vec![line];
        let of = Arc::clone(&shared);
        let mut copiers = Copiers { lines, next: 0, by_poller: false, shared: of, pool: pool() };
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
