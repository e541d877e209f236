//! Latencies of commands, from arrival to response.
//!
//! A poller reads the clock once per poll iteration. A command that completes in one iteration is recorded
//! with the next reading. By then, its response has been sent as far as the socket accepted it.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use dlfs_base::metrics::{self, Histogram, Recorder, Snapshot};
use dlfs_nvme::tcp::controller::CommandId;

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
