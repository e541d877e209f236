//! The poller thread: advances the driver and hands batches to the consumer. After a turn that did nothing it sleeps
//! until a read completes, the consumer or the window's thread wakes it, or [`MAX_SLEEP`] has passed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TrySendError};

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::group::Waker;
use crate::reader::{CHECK_LIMIT, Pump, stale_error};
use crate::threads::{self, Thread};

use super::copiers::Copiers;
use super::driver::{Delivery, Driver};
use super::waits::{AfterTurn, Divider, TurnClock};
use super::window::{Memory, Window};
use super::{LoaderOptions, LoaderShared, Message};

/// The consumer's side of the poller thread.
pub(super) struct Poller {
    thread: Option<Thread>,
    pub(super) window: Arc<Window>,
    pub(super) shared: Arc<LoaderShared>,
    /// The channels that the consumer receives from in turn, and the index of the next one.
    pub(super) ready: Vec<Receiver<Message>>,
    pub(super) next: usize,
    /// Wakes the thread.
    pub(super) waker: Waker,
    pub(super) divider: Divider,
}

impl Poller {
    pub(super) fn start(
        (pump, memory): (Pump, Memory),
        driver: Box<dyn Driver>,
        shared: Arc<LoaderShared>,
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
    shared: Arc<LoaderShared>,
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
    /// The start of the last sleep, if this thread slept because it waited for the consumer.
    blocked_since: Option<Instant>,
}

impl PollerThread {
    /// Polls until the consumer ends the loader, or the last message is sent.
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

    /// Polls once: takes completions, hands batches over, and lets the driver start reads.
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

    /// Publishes the counters for the consumer.
    fn publish(&self) {
        *self.shared.read.lock() = self.pump.stats();
        self.shared.over_window.store(self.memory.over_window, Ordering::Relaxed);
    }

    /// Sleeps until a completion arrives or another thread wakes this one, at most [`MAX_SLEEP`]. If it must wait for
    /// the consumer, the first call only sets [`LoaderShared::blocked`], and one more turn follows.
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

/// The result of one turn of the poller.
enum Turn {
    /// Something was done: another turn follows at once.
    Moved,
    /// Nothing was done: the poller sleeps.
    Idle,
    /// The last message has been sent, or the consumer is gone.
    Over,
}

/// The longest sleep of an idle poller: memory may be returned without a wake-up.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// The interval between checks of the superblocks while samples are skipped.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The timeout for the poller's last turn; only a hanging engine exceeds it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
