//! The order in which a poller serves its connections: waiting commands begin, and responses are sent, in turns.
//!
//! `shares.rs` decides the order of turns, which flows wait for. A flow is one of the two lines of waiting commands of
//! a connection (`connection/waiting.rs`), or a connection with bytes to send.

use super::{Poller, watch};
use crate::sharing::{SLICE_BYTES, cost_of};

impl Poller {
    /// Starts waiting commands that memory, rate limits and turns now permit. Returns how many.
    pub(super) fn start_waiting(&mut self) -> usize {
        self.backend.sharing.wake_at = None; // set again below by the commands that still cannot begin
        if self.backend.sharing.starts.is_empty() {
            return 0;
        }
        // Not taken only for the borrow: `is_within_limits` and `has_room_at_device` keep commands waiting while others
        // are in `sharing.starts`, so this must be empty for the command whose turn it is.
        let mut starts = std::mem::take(&mut self.backend.sharing.starts);
        // Set again below by the commands that still have no room at their device.
        self.backend.queues.iter_mut().for_each(|(_, queue)| queue.is_gated = false);
        let mut num_started = 0;
        while let Some(turn) = starts.next() {
            let flow = turn.flow;
            let index = flow.connection_index();
            let line = flow.line();
            let connection = &mut self.connections[index];
            match connection.start_first(line, &mut self.backend) {
                None => starts.served(turn, 0, None), // the line's commands have failed meanwhile
                Some(Err(blocked)) => {
                    starts.postpone(turn, blocked);
                    continue;
                }
                Some(Ok(cost)) => {
                    starts.served(turn, cost, connection.next_namespace(line));
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

    /// Sends the responses of dirty connections: all of them, or some of them in turns while several hosts use the
    /// poller or connections still wait to send.
    pub(super) fn send_dirty(&mut self) {
        if self.backend.sharing.is_mixed || !self.backend.sharing.sends.is_empty() {
            return self.send_in_turns();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            self.send(index, usize::MAX);
        }
        self.dirty = dirty;
    }

    /// Sends in turns until their costs reach [`SLICE_BYTES`]: the bytes, and 4 KiB for each turn. The next iteration
    /// sends more, after it has looked for commands of other hosts.
    fn send_in_turns(&mut self) {
        let mut sends = std::mem::take(&mut self.backend.sharing.sends);
        for index in self.dirty.drain(..) {
            sends.enter(self.connections[index].sending_flow());
        }
        let mut left = SLICE_BYTES as u64;
        while left > 0
            && let Some(turn) = sends.next()
        {
            let index = turn.flow.connection_index();
            let sent = self.send(index, SLICE_BYTES);
            let cost = cost_of(sent.unwrap_or(0));
            left = left.saturating_sub(cost);
            let mut more = None;
            if sent.is_some() {
                let connection = &mut self.connections[index];
                connection.is_dirty = connection.wants_to_send() && !connection.is_blocked;
                more = connection.is_dirty.then_some(turn.flow.namespace);
            }
            sends.served(turn, cost, more);
        }
        self.backend.sharing.sends = sends;
    }

    /// Sends at most about `max` bytes of a connection; returns how many. `None`: the connection has closed.
    fn send(&mut self, index: usize, max: usize) -> Option<usize> {
        let connection = self.connections.get_mut(index)?;
        connection.is_dirty = false;
        let sent = connection.send(&mut self.scratch, max, self.backend.now);
        connection.account(&mut self.backend);
        match sent {
            Err(closed) => {
                self.close(index, closed);
                None
            }
            Ok(len) => {
                if connection.is_blocked {
                    watch(&self.epoll, index, connection);
                }
                self.end_rest_if_busy(index);
                Some(len)
            }
        }
    }
}
