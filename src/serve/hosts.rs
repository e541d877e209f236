//! Memory accounts of the hosts on one poller: a host may hold as much memory as remains free.
//!
//! A host that stops reading its responses keeps their buffers until it times out. The limit per host
//! therefore falls with the free memory. If requests are small, the first such host gets about half of the memory, and
//! the next one about half of the rest. So several such hosts leave some for hosts that read. Hosts are identified by
//! NQN, as everywhere in the target. As NQNs can be invented, the poller also closes stalled connections that hold
//! memory while others wait for memory.

use std::collections::HashMap;

use slab::Slab;

use dlfs_nvme::nvme::Nqn;

/// The hosts that have queues on one poller.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    hosts: Slab<Host>,
    by_nqn: HashMap<Nqn, usize>,
}

#[derive(Debug)]
struct Host {
    nqn: Nqn,
    /// Queues of the host on this poller.
    num_queues: usize,
    /// Bytes that all its queues hold.
    held_bytes: usize,
}

/// A request for memory by a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryRequest {
    /// The queue's host, once it has connected.
    pub(super) host: Option<HostId>,
    /// Bytes.
    pub(super) len: usize,
}

/// Index of a host that has a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostId(pub(super) usize);

impl Hosts {
    /// Adds a queue of `nqn`, and the host itself with its first queue.
    pub(super) fn enter(&mut self, nqn: &Nqn) -> HostId {
        let index = match self.by_nqn.get(nqn) {
            Some(&index) => index,
            None => {
                let host = Host { nqn: nqn.clone(), num_queues: 0, held_bytes: 0 };
                let index = self.hosts.insert(host);
                self.by_nqn.insert(nqn.clone(), index);
                index
            }
        };
        self.hosts[index].num_queues += 1;
        HostId(index)
    }

    /// Removes a queue of the host; the queue must have returned its memory. Returns whether it was the last.
    pub(super) fn leave(&mut self, host: HostId) -> bool {
        let entry = &mut self.hosts[host.0];
        entry.num_queues -= 1;
        let is_last = entry.num_queues == 0;
        if is_last {
            self.by_nqn.remove(&entry.nqn);
            self.hosts.remove(host.0);
        }
        is_last
    }

    /// Changes the bytes held by one queue of the host from `before` to `now`.
    pub(super) fn change(&mut self, host: HostId, before: usize, now: usize) {
        let held = &mut self.hosts[host.0].held_bytes;
        *held = *held + now - before;
    }

    /// Returns whether the host may take the memory that it requests, while `free_bytes` are free.
    pub(super) fn may_take(&self, request: &MemoryRequest, free_bytes: usize) -> bool {
        let held_bytes = request.host.map_or(0, |host| self.hosts[host.0].held_bytes);
        held_bytes + request.len <= free_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
    }

    fn may_take(hosts: &Hosts, host: HostId, len: usize, free_bytes: usize) -> bool {
        hosts.may_take(&MemoryRequest { host: Some(host), len }, free_bytes)
    }

    #[test]
    fn hosts_at_their_memory_limit_leave_some_for_the_next() {
        let mut hosts = Hosts::default();
        let mut free = 64 << 10;
        for number in 0..8 {
            let queues = [0; 3].map(|_| hosts.enter(&nqn(&number.to_string())));
            assert_eq!(queues, [queues[0]; 3], "one host, however many queues");
            let mut held = 0;
            while may_take(&hosts, queues[held % 3], 1, free) {
                hosts.change(queues[held % 3], held, held + 1);
                (held, free) = (held + 1, free - 1);
            }
            assert_eq!((held, free), (64 << 10 >> (number + 1), 64 << 10 >> (number + 1)));
        }
    }

    #[test]
    fn a_host_that_left_frees_its_memory_and_returns_with_none() {
        let mut hosts = Hosts::default();
        let first = hosts.enter(&nqn("a"));
        hosts.change(first, 0, 10);
        assert!(!may_take(&hosts, first, 1, 10));
        hosts.change(first, 10, 0);
        hosts.leave(first);
        let second = hosts.enter(&nqn("b"));
        assert_eq!(second, first, "its index is used again");
        assert!(may_take(&hosts, second, 10, 10) && hosts.enter(&nqn("a")) != second);
    }
}
