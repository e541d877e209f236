//! Changes on a running poller: namespaces added or removed, no more accepting, controllers' events.

use std::time::Instant;

use rustix::event::epoll;

use super::super::io::{Change, What};
use super::Poller;
use dlfs_base::units::Nsid;

impl Poller {
    /// Applies a change and confirms it.
    pub(super) fn apply(&mut self, change: Change, now: Instant) {
        match change.what {
            What::Add(queue) => {
                let index = self.backend.add_queue(queue);
                let registry = self.devices.registry(index);
                self.backend.queues[index].queue_pair.register(&registry);
            }
            What::Remove(nsid) => self.remove(nsid, now),
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
    fn remove(&mut self, nsid: Nsid, now: Instant) {
        let Some(number) = self.backend.remove_queue(nsid) else { return };
        let indices: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in indices {
            self.connections[index].give_up_queue(number, &mut self.backend, now);
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
    pub(super) fn report_events(&mut self, now: Instant) {
        let admins = self.connections.iter().filter(|(_, c)| c.is_admin()).map(|(index, _)| index);
        for index in admins.collect::<Vec<_>>() {
            self.connections[index].report_events();
            self.mark_dirty(index);
        }
        self.next_tick = self.next_tick.min(now);
    }
}
