//! Turns of the poller's connections: commands that waited begin, and responses are sent.

use std::time::Instant;

use super::super::sharing::{SLICE_BYTES, cost_of};
use super::{Poller, watch};

impl Poller {
    /// Starts commands for which memory is free now, and whose limits and turns permit it. Returns how many.
    pub(super) fn start_waiting(&mut self, now: Instant) -> usize {
        self.backend.sharing.wake_at = None;
        if self.backend.sharing.starts.is_empty() {
            return 0;
        }
        let mut starts = std::mem::take(&mut self.backend.sharing.starts);
        self.backend.queues.iter_mut().for_each(|(_, queue)| queue.is_gated = false);
        let mut num_started = 0;
        while let Some(turn) = starts.next() {
            let index = turn.flow.connection / 2;
            let lane = turn.flow.connection % 2;
            let flow = turn.flow;
            let connection = &mut self.connections[index];
            match connection.start_first(lane, &mut self.backend, now) {
                None => starts.served(turn, 0, None), // its commands have failed
                Some(Err(others)) => {
                    starts.put_off(turn, others);
                    continue;
                }
                Some(Ok(cost)) => {
                    starts.served(turn, cost, connection.next_space(lane));
                    num_started += 1;
                    self.mark_dirty(index);
                }
            }
            self.backend.note_served(flow, &starts);
        }
        starts.end_round();
        self.backend.sharing.starts = starts;
        num_started
    }

    /// Sends what connections have to send; while several hosts use the poller, for one turn.
    pub(super) fn send_dirty(&mut self, now: Instant) {
        if self.backend.sharing.is_mixed || !self.backend.sharing.sends.is_empty() {
            return self.send_in_turns(now);
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            self.send(index, usize::MAX, now);
        }
        self.dirty = dirty;
    }

    /// Sends until the largest slice of a turn is sent. The rest is for the next iteration, when other hosts may
    /// have commands.
    fn send_in_turns(&mut self, now: Instant) {
        let mut sends = std::mem::take(&mut self.backend.sharing.sends);
        for index in self.dirty.drain(..) {
            sends.enter(self.connections[index].sending_flow());
        }
        let mut left = SLICE_BYTES as u64;
        while left > 0
            && let Some(turn) = sends.next()
        {
            let index = turn.flow.connection / 2;
            let sent = self.send(index, SLICE_BYTES, now);
            let cost = cost_of(sent.unwrap_or(0));
            left = left.saturating_sub(cost);
            let goes_on = sent.is_some() && {
                let connection = &mut self.connections[index];
                connection.is_dirty = connection.wants_to_send() && !connection.is_blocked;
                connection.is_dirty
            };
            let more = goes_on.then_some(turn.flow.space);
            sends.served(turn, cost, more);
        }
        self.backend.sharing.sends = sends;
    }

    /// Sends at most about `max` bytes of a connection; returns how many. `None`: the connection has closed.
    fn send(&mut self, index: usize, max: usize, now: Instant) -> Option<usize> {
        let connection = self.connections.get_mut(index)?;
        connection.is_dirty = false;
        let sent = connection.send(&mut self.scratch, max, now);
        connection.account(&mut self.backend);
        match sent {
            Err(closed) => {
                self.close(index, closed, now);
                None
            }
            Ok(len) => {
                if connection.is_blocked {
                    watch(&self.epoll, index, connection);
                }
                self.end_rest_if_busy(index, now);
                Some(len)
            }
        }
    }
}
