//! Rest: a poller whose connections are all idle checks their time limits rarely.
//!
//! A connection is idle if nothing but its host, or its Keep Alive Timeout, can change anything. An event
//! that leaves a connection with something to do ends the rest.

use std::time::{Duration, Instant};

use super::{IDLE_TICK, Poller, TICK};

impl Poller {
    /// The time of the next check of time limits.
    pub(super) fn following_tick(&self, now: Instant) -> Instant {
        if self.connections.is_empty() {
            return now + IDLE_TICK;
        }
        let subsystem = &self.backend.subsystem;
        let is_busy = subsystem.draining_since().is_some()
            || self.connections.iter().any(|(_, connection)| !connection.is_idle());
        if is_busy {
            return now + TICK;
        }
        let ends = self.connections.iter().filter_map(|(_, c)| c.keep_alive_deadline());
        ends.min().map_or(now + REST, |end| end.clamp(now + TICK, now + REST))
    }

    /// Checks time limits soon if the connection has something to do.
    pub(super) fn end_rest_if_busy(&mut self, index: usize, now: Instant) {
        let soon = now + TICK;
        if self.next_tick > soon && !self.connections[index].is_idle() {
            self.next_tick = soon;
        }
    }
}

/// Interval between checks while all connections are idle: a poller learns late of a controller that another
/// poller has evicted or disabled.
const REST: Duration = Duration::from_secs(5);
