//! Changes to a running poller that other threads ask for: namespaces, listeners, events of controllers.

use std::sync::mpsc::Sender;

use rustix::event::epoll;

use super::Poller;
use crate::io::NamespaceQueue;
use dlfs_base::units::Nsid;

/// A change that a poller applies and then confirms.
pub(crate) struct Change {
    pub(crate) kind: ChangeKind,
    /// Receives one message once the change is applied.
    pub(crate) applied: Sender<()>,
}

/// A change of a poller's namespaces or listeners.
pub(crate) enum ChangeKind {
    /// Adds a namespace.
    Add(NamespaceQueue),
    /// Removes a namespace: its new and its waiting commands fail, the others complete normally.
    Remove(Nsid),
    /// Stops accepting connections.
    StopListening,
}

impl Poller {
    /// Applies a change and confirms it.
    pub(super) fn apply(&mut self, change: Change) {
        match change.kind {
            ChangeKind::Add(queue) => {
                let index = self.backend.add_queue(queue);
                let registry = self.devices.registry(index);
                self.backend.queues[index].queue_pair.register(&registry);
            }
            ChangeKind::Remove(nsid) => self.remove(nsid),
            ChangeKind::StopListening => self.stop_listening(),
        }
        let _ = change.applied.send(()); // the thread that asked may have given up
    }

    /// Stops accepting connections, for good.
    pub(super) fn stop_listening(&mut self) {
        for listener in self.listeners.drain(..) {
            // A clone of the listener elsewhere would keep its registration alive after closing. The call
            // cannot fail: the listener is registered.
            let _ = epoll::delete(&self.epoll, &listener.socket);
        }
    }

    /// Removes a namespace: its new commands fail, and so do those that wait to begin.
    fn remove(&mut self, nsid: Nsid) {
        let Some(number) = self.backend.remove_queue(nsid) else { return };
        let indices: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in indices {
            self.connections[index].give_up_queue(number, &mut self.backend);
            self.mark_dirty(index);
        }
        self.drop_queue_if_done(number);
    }

    /// Drops the queue pair of a removed namespace once its last I/O has completed.
    pub(super) fn drop_queue_if_done(&mut self, number: usize) {
        let queue = &self.backend.queues[number];
        if queue.is_removed && !queue.is_busy() {
            self.backend.queues.remove(number);
        }
    }

    /// Reports the asynchronous events of the controllers whose admin queues are here, and checks time limits soon:
    /// controllers may have been removed.
    pub(super) fn report_events(&mut self) {
        let admins = self.connections.iter().filter(|(_, c)| c.is_admin()).map(|(index, _)| index);
        for index in admins.collect::<Vec<_>>() {
            self.connections[index].report_events();
            self.mark_dirty(index);
        }
        self.next_tick = self.next_tick.min(self.backend.now);
    }
}
