//! Who holds how much of a poller's memory: no host more than it leaves free.
//!
//! A host that stops reading its answers keeps their buffers until its time is up. So what one host may
//! hold falls with what is free: the first such host gets half of the memory, the next a half of the
//! rest, and something is always left for those that go on reading. Hosts are told apart by their NQN,
//! as everywhere in the target; against names that are invented there is the poller, which closes those
//! that hold memory and do not read while others wait for it.

use std::collections::HashMap;

use crate::nvme::Nqn;

/// The hosts that have queues on one poller.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    hosts: Vec<Host>,
    by_nqn: HashMap<Nqn, usize>,
    /// Places of hosts that left.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Host {
    nqn: Nqn,
    num_queues: usize,
    held_bytes: usize,
}

/// Memory that a queue waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hunger {
    /// Whose queue it is, once it has connected.
    pub(super) host: Option<HostId>,
    pub(super) len: usize,
}

/// Names a host that has a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostId(usize);

impl Hosts {
    /// A host has one queue more.
    pub(super) fn enter(&mut self, nqn: &Nqn) -> HostId {
        let index = match self.by_nqn.get(nqn) {
            Some(&index) => index,
            None => {
                let host = Host { nqn: nqn.clone(), num_queues: 0, held_bytes: 0 };
                let index = self.free.pop().unwrap_or(self.hosts.len());
                match self.hosts.get_mut(index) {
                    Some(place) => *place = host,
                    None => self.hosts.push(host),
                }
                self.by_nqn.insert(nqn.clone(), index);
                index
            }
        };
        self.hosts[index].num_queues += 1;
        HostId(index)
    }

    /// A host has one queue fewer; what that held has been given back.
    pub(super) fn leave(&mut self, host: HostId) {
        let place = &mut self.hosts[host.0];
        place.num_queues -= 1;
        if place.num_queues == 0 {
            self.by_nqn.remove(&place.nqn);
            self.free.push(host.0);
        }
    }

    /// What a queue of the host holds has changed.
    pub(super) fn change(&mut self, host: HostId, before: usize, now: usize) {
        let held = &mut self.hosts[host.0].held_bytes;
        *held = *held + now - before;
    }

    /// Whether a host may have what it waits for while `free_bytes` are free.
    pub(super) fn may_take(&self, hunger: &Hunger, free_bytes: usize) -> bool {
        let held_bytes = hunger.host.map_or(0, |host| self.hosts[host.0].held_bytes);
        held_bytes + hunger.len <= free_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
    }

    fn may_take(hosts: &Hosts, host: HostId, len: usize, free_bytes: usize) -> bool {
        hosts.may_take(&Hunger { host: Some(host), len }, free_bytes)
    }

    #[test]
    fn hosts_that_take_all_they_may_leave_something_for_the_next() {
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
    fn a_host_that_left_makes_room_and_comes_back_with_nothing() {
        let mut hosts = Hosts::default();
        let first = hosts.enter(&nqn("a"));
        hosts.change(first, 0, 10);
        assert!(!may_take(&hosts, first, 1, 10));
        hosts.change(first, 10, 0);
        hosts.leave(first);
        let second = hosts.enter(&nqn("b"));
        assert_eq!(second, first, "its place is used again");
        assert!(may_take(&hosts, second, 10, 10) && hosts.enter(&nqn("a")) != second);
    }
}
