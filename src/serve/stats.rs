//! Statistics of a target: counters, and latencies of commands from arrival to response.
//!
//! Pollers count and record without touching shared memory for each command: [`Tally`] and [`EndedCommands`] are one
//! poller's, and are added up once per iteration. Only errors are counted at once. A poller reads the clock once per
//! iteration. A command that completes in one iteration is recorded with the next reading; by then, its response has
//! been sent as far as the socket accepted it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use dlfs_base::metrics::{self, Histogram, Recorder, Snapshot};
use dlfs_nvme::nvme::Sqe;
use dlfs_nvme::nvme::sqe::{admin, fctype, nvm};
use dlfs_nvme::tcp::controller::CommandId;

/// Counters of a [`super::Target`] since its start, and the current numbers of controllers and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TargetStats<N = u64> {
    /// Current controllers.
    pub controllers: N,
    /// Current TCP connections.
    pub connections: N,
    /// TCP connections accepted since the start.
    pub accepted: N,
    /// Connections that the target closed because of the host's behaviour or because of a limit.
    pub dropped: N,
    /// Refused connections and Connect commands: a limit was reached, the host is not allowed, or its TLS handshake or
    /// authentication failed.
    pub refused: N,
    /// Controllers and connections closed because a limit was reached, or because file descriptors or
    /// memory ran out. Evicted connections also count as `dropped`.
    pub evicted: N,
    /// Successful reads.
    pub reads: N,
    /// Bytes of successful reads.
    pub read_bytes: N,
    /// Successful writes.
    pub writes: N,
    /// Bytes of successful writes.
    pub written_bytes: N,
    /// I/O commands with an error response.
    pub errors: N,
    /// Wake-ups of pollers that slept.
    pub wakeups: N,
    /// Commands that have arrived, including failed ones.
    pub commands: Commands<N>,
}

impl TargetStats {
    /// Adds these counters to `snapshot`, labelled with the NQN `subsystem`.
    pub(crate) fn measure(&self, subsystem: &str, snapshot: &mut Snapshot) {
        for (metric, value) in [
            (&metrics::TARGET_CONTROLLERS, self.controllers),
            (&metrics::TARGET_CONNECTIONS, self.connections),
            (&metrics::TARGET_CONNECTIONS_ACCEPTED, self.accepted),
            (&metrics::TARGET_CONNECTIONS_DROPPED, self.dropped),
            (&metrics::TARGET_CONNECTIONS_REFUSED, self.refused),
            (&metrics::TARGET_EVICTIONS, self.evicted),
            (&metrics::TARGET_ERRORS, self.errors),
            (&metrics::TARGET_WAKEUPS, self.wakeups),
            (&metrics::TARGET_READS, self.reads),
            (&metrics::TARGET_READ_BYTES, self.read_bytes),
            (&metrics::TARGET_WRITES, self.writes),
            (&metrics::TARGET_WRITTEN_BYTES, self.written_bytes),
        ] {
            snapshot.count(metric, &[subsystem], value);
        }
        for (kind, value) in self.commands.by_kind() {
            snapshot.count(&metrics::TARGET_COMMANDS, &[subsystem, kind], value);
        }
    }
}

/// Counts of arrived commands, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Commands<N = u64>([N; KINDS.len()]);

/// The kinds of commands; related opcodes share one kind.
const KINDS: [&str; 12] = [
    "connect", // one for each queue, including refused attempts
    "authentication",
    "property",
    "identify",
    "get_log_page",
    "features",
    "async_event_request",
    "keep_alive",
    "read",
    "write",
    "flush",
    "other",
];

impl Commands {
    /// Each kind's name in the metrics, with its count.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().zip(self.0)
    }

    /// The commands of one kind.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn of(&self, kind: &str) -> u64 {
        self.by_kind().find(|(name, _)| *name == kind).expect("a kind of commands").1
    }

    /// Index of the counter for `sqe`; `is_io` tells that it arrived on an I/O queue.
    pub(super) fn kind(sqe: &Sqe, is_io: bool) -> usize {
        match (sqe.fctype(), is_io, sqe.opcode) {
            (Some(fctype::CONNECT), ..) => 0,
            (Some(fctype::AUTHENTICATION_SEND | fctype::AUTHENTICATION_RECEIVE), ..) => 1,
            (Some(fctype::PROPERTY_GET | fctype::PROPERTY_SET), ..) => 2,
            (None, false, admin::IDENTIFY) => 3,
            (None, false, admin::GET_LOG_PAGE) => 4,
            (None, false, admin::GET_FEATURES | admin::SET_FEATURES) => 5,
            (None, false, admin::ASYNC_EVENT_REQUEST) => 6,
            (None, false, admin::KEEP_ALIVE) => 7,
            (None, true, nvm::READ) => 8,
            (None, true, nvm::WRITE) => 9,
            (None, true, nvm::FLUSH) => 10,
            _ => 11,
        }
    }
}

/// The atomic counters that [`TargetStats`] is read from; that of controllers is not used.
pub(super) type Counters = TargetStats<AtomicU64>;

/// One poller's counts since it last published them.
///
/// All pollers share the counters, so each first counts by itself: it touches shared cache lines per poll iteration,
/// not per command.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
    /// Indexed by [`Commands::kind`].
    pub(super) commands: [u64; KINDS.len()],
}

impl Tally {
    /// Adds the counts to `counters` and resets them to zero.
    pub(super) fn publish_counts(&mut self, counters: &Counters) {
        let Tally { reads, read_bytes, writes, written_bytes, commands } = std::mem::take(self);
        if reads > 0 {
            Counters::add(&counters.reads, reads);
            Counters::add(&counters.read_bytes, read_bytes);
        }
        if writes > 0 {
            Counters::add(&counters.writes, writes);
            Counters::add(&counters.written_bytes, written_bytes);
        }
        for (counter, value) in counters.commands.0.iter().zip(commands).filter(|of| of.1 > 0) {
            Counters::add(counter, value);
        }
    }
}

impl Counters {
    /// Adds `value` to a counter.
    pub(super) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// The current values; `controllers`: the number of controllers, which is not counted here.
    pub(super) fn read(&self, controllers: u64) -> TargetStats {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TargetStats {
            controllers,
            connections: value(&self.connections),
            accepted: value(&self.accepted),
            dropped: value(&self.dropped),
            refused: value(&self.refused),
            evicted: value(&self.evicted),
            reads: value(&self.reads),
            read_bytes: value(&self.read_bytes),
            writes: value(&self.writes),
            written_bytes: value(&self.written_bytes),
            errors: value(&self.errors),
            wakeups: value(&self.wakeups),
            commands: Commands(self.commands.0.each_ref().map(value)),
        }
    }
}

/// Latencies of reads, writes and flushes, from arrival to response. Refused commands are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct CommandLatency {
    /// Reads.
    pub read: Histogram,
    /// Writes.
    pub write: Histogram,
    /// Flushes.
    pub flush: Histogram,
}

impl CommandLatency {
    /// Adds these durations to `snapshot`, labelled with the NQN `subsystem`.
    pub(crate) fn measure(&self, subsystem: &str, snapshot: &mut Snapshot) {
        for (command, durations) in
            [("read", &self.read), ("write", &self.write), ("flush", &self.flush)]
        {
            let labels = [subsystem, command];
            snapshot.durations(&metrics::TARGET_COMMAND_SECONDS, &labels, durations);
        }
    }
}

/// The latencies recorded by a target's pollers; each poller has recorders of its own.
#[derive(Debug, Default)]
pub(super) struct Latencies(Mutex<Vec<Arc<Recorders>>>);

/// The recorders of a poller: reads, writes and flushes. [`Kind::recorder`](super::io::Kind::recorder)
/// gives a command's index.
type Recorders = [Recorder; 3];

impl Latencies {
    /// Creates the recorders of one more poller.
    pub(super) fn of_poller(&self) -> EndedCommands {
        let recorders = Arc::<Recorders>::default();
        self.0.lock().push(Arc::clone(&recorders));
        EndedCommands { ended: Vec::new(), recorders }
    }

    pub(super) fn read(&self) -> CommandLatency {
        let mut sum = CommandLatency::default();
        for recorders in self.0.lock().iter() {
            let [read, write, flush] = &**recorders;
            sum.read.add(&read.read());
            sum.write.add(&write.read());
            sum.flush.add(&flush.read());
        }
        sum
    }
}

/// Commands that have completed in this iteration of a poller.
#[derive(Debug)]
pub(super) struct EndedCommands {
    ended: Vec<(usize, Instant)>,
    recorders: Arc<Recorders>,
}

impl EndedCommands {
    /// Adds a completed command: the index of its recorder, and its arrival time.
    pub(super) fn push(&mut self, command: (usize, Instant)) {
        self.ended.push(command);
    }

    /// Records the commands of the previous iteration.
    pub(super) fn record(&mut self, now: Instant) {
        for (recorder, arrived) in self.ended.drain(..) {
            self.recorders[recorder].record(now.saturating_duration_since(arrived));
        }
    }
}

/// Recorder index and arrival time of each outstanding command of a connection, by command identifier.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Vec<Option<(usize, Instant)>>);

impl Arrivals {
    /// Notes the arrival of a command, and the index of its recorder.
    pub(super) fn set(&mut self, id: CommandId, recorder: usize, now: Instant) {
        let index = usize::from(id.0);
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some((recorder, now));
    }

    /// Removes a command, which has completed.
    pub(super) fn take(&mut self, id: CommandId) -> Option<(usize, Instant)> {
        self.0.get_mut(usize::from(id.0))?.take()
    }
}
