//! Turns of the poller's connections: commands that waited begin, and responses are sent. Between them come changes:
//! namespaces added or removed, no more accepting, controllers' events.
//!
//! Rest: a poller whose connections are all idle checks their time limits rarely.
//!
//! A connection is idle if nothing but its host, or its Keep Alive Timeout, can change anything. An event
//! that leaves a connection with something to do ends the rest.

use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::{IDLE_TICK, Poller, TICK, watch};
use crate::io::{Change, What};
use crate::sharing::{SLICE_BYTES, cost_of};
use dlfs_base::units::Nsid;

impl Poller {
    /// Starts commands for which memory is free now, and whose limits and turns permit it. Returns how many.
    pub(super) fn start_waiting(&mut self) -> usize {
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
            match connection.start_first(lane, &mut self.backend) {
                None => starts.served(turn, 0, None), // its commands have failed
                Some(Err(blocked)) => {
                    starts.postpone(turn, blocked);
                    continue;
                }
                Some(Ok(cost)) => {
                    starts.served(turn, cost, connection.next_namespace(lane));
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

    /// Sends until the largest slice of a turn is sent. The rest is for the next iteration, when other hosts may
    /// have commands.
    fn send_in_turns(&mut self) {
        let mut sends = std::mem::take(&mut self.backend.sharing.sends);
        for index in self.dirty.drain(..) {
            sends.enter(self.connections[index].sending_flow());
        }
        let mut left = SLICE_BYTES as u64;
        while left > 0
            && let Some(turn) = sends.next()
        {
            let index = turn.flow.connection / 2;
            let sent = self.send(index, SLICE_BYTES);
            let cost = cost_of(sent.unwrap_or(0));
            left = left.saturating_sub(cost);
            let goes_on = sent.is_some() && {
                let connection = &mut self.connections[index];
                connection.is_dirty = connection.wants_to_send() && !connection.is_blocked;
                connection.is_dirty
            };
            let more = goes_on.then_some(turn.flow.namespace);
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

impl Poller {
    /// Applies a change and confirms it.
    pub(super) fn apply(&mut self, change: Change) {
        match change.what {
            What::Add(queue) => {
                let index = self.backend.add_queue(queue);
                let registry = self.devices.registry(index);
                self.backend.queues[index].queue_pair.register(&registry);
            }
            What::Remove(nsid) => self.remove(nsid),
            What::StopListening => self.stop_listening(),
        }
        let _ = change.applied.send(()); // the thread that asked may have given up
    }

    /// Accepts no more connections.
    pub(super) fn stop_listening(&mut self) {
        for listener in self.listeners.drain(..) {
            // A clone of the listener elsewhere would keep its registration alive after closing. The call
            // cannot fail: the listener is registered.
            let _ = epoll::delete(&self.epoll, &listener);
        }
    }

    /// Removes a namespace: its new commands fail, and so do its commands that wait for memory.
    fn remove(&mut self, nsid: Nsid) {
        let Some(number) = self.backend.remove_queue(nsid) else { return };
        let indices: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in indices {
            self.connections[index].give_up_queue(number, &mut self.backend);
            self.mark_dirty(index);
        }
        self.forget_if_over(number);
    }

    /// Drops the queue pair of a removed namespace once its last I/O has completed.
    pub(super) fn forget_if_over(&mut self, number: usize) {
        let queue = &self.backend.queues[number];
        if queue.is_removed && !queue.is_busy() {
            self.backend.queues.remove(number);
        }
    }

    /// Sends the asynchronous events that controllers have to report, and finds controllers that have ended.
    pub(super) fn report_events(&mut self) {
        let admins = self.connections.iter().filter(|(_, c)| c.is_admin()).map(|(index, _)| index);
        for index in admins.collect::<Vec<_>>() {
            self.connections[index].report_events();
            self.mark_dirty(index);
        }
        self.next_tick = self.next_tick.min(self.backend.now);
    }
}

impl Poller {
    /// The time of the next check of time limits.
    pub(super) fn following_tick(&self) -> Instant {
        let now = self.backend.now;
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
    pub(super) fn end_rest_if_busy(&mut self, index: usize) {
        let soon = self.backend.now + TICK;
        if self.next_tick > soon && !self.connections[index].is_idle() {
            self.next_tick = soon;
        }
    }
}

/// Interval between checks while all connections are idle: a poller learns late of a controller that another
/// poller has evicted or disabled.
const REST: Duration = Duration::from_secs(5);
