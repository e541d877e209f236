//! Accounts a poller's memory to hosts: a host may hold as much memory as remains free.
//!
//! A host that stops reading its responses keeps their buffers until it times out. The limit per host
//! therefore falls with the free memory: the first such host gets half of it, the next one half of the
//! rest, and some memory always remains for hosts that read. Hosts are identified by NQN, as everywhere in
//! the target. As NQNs can be invented, the poller also closes connections that hold memory without reading
//! while others wait for it.
//!
//! An address is not easily invented, so limits of connections and controllers count addresses ([`Peers`]): there is
//! a limit per address and a total limit. One address cannot exhaust the total limit. When the total is reached, the
//! address with the most loses one to an address with few.

use std::collections::HashMap;
use std::net::IpAddr;

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
    num_queues: usize,
    held_bytes: usize,
}

/// A queue's unmet request for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryWait {
    /// The queue's host, once it has connected.
    pub(super) host: Option<HostId>,
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

    /// Returns whether the waiting host may take the memory it asks for, while `free_bytes` are free.
    pub(super) fn may_take(&self, memory_wait: &MemoryWait, free_bytes: usize) -> bool {
        let held_bytes = memory_wait.host.map_or(0, |host| self.hosts[host.0].held_bytes);
        held_bytes + memory_wait.len <= free_bytes
    }
}

/// The address that a connection counts for: an IPv4 address, or the /64 of an IPv6 address, since one
/// machine owns a whole /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Peer(u128);

impl From<IpAddr> for Peer {
    fn from(ip: IpAddr) -> Peer {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Peer(ip.to_ipv6_mapped().to_bits()),
            // All machines on a link share the prefix of link-local addresses.
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Peer(ip.to_bits()),
            IpAddr::V6(ip) => Peer(ip.to_bits() >> 64 << 64),
        }
    }
}

/// The number of connections or controllers of each peer, and the limits.
#[derive(Debug)]
pub(super) struct PeerLimits {
    max: usize,
    max_per_peer: usize,
    total: usize,
    by_peer: HashMap<Peer, usize>,
}

/// The limit that prevents one more connection or controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// The limit per peer address.
    Peer,
    /// The limit for all peers together.
    All,
}

impl PeerLimits {
    pub(super) fn new(max: usize, max_per_peer: usize) -> PeerLimits {
        PeerLimits { max, max_per_peer, total: 0, by_peer: HashMap::new() }
    }

    /// The limit that prevents one more for `peer`, if one is reached.
    pub(super) fn reached(&self, peer: Peer) -> Option<Limit> {
        if self.of(peer) >= self.max_per_peer {
            return Some(Limit::Peer);
        }
        (self.total >= self.max).then_some(Limit::All)
    }

    /// The value of that limit.
    pub(super) fn value(&self, limit: Limit) -> usize {
        match limit {
            Limit::Peer => self.max_per_peer,
            Limit::All => self.max,
        }
    }

    pub(super) fn of(&self, peer: Peer) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, peer: Peer) {
        self.total += 1;
        *self.by_peer.entry(peer).or_default() += 1;
    }

    pub(super) fn remove(&mut self, peer: Peer) {
        let Some(count) = self.by_peer.get_mut(&peer) else { return };
        self.total -= 1;
        *count -= 1;
        if *count == 0 {
            self.by_peer.remove(&peer);
        }
    }

    /// The peer that must lose one to `peer`: the one with the most, if it has at least twice as many as
    /// `peer` would have. With a smaller difference, the two would keep evicting each other.
    pub(super) fn peer_with_most(&self, peer: Peer) -> Option<Peer> {
        let (peer_with_most, count) = self.by_peer.iter().max_by_key(|(_, count)| **count)?;
        (*count >= 2 * (self.of(peer) + 1)).then_some(*peer_with_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
    }

    fn may_take(hosts: &Hosts, host: HostId, len: usize, free_bytes: usize) -> bool {
        hosts.may_take(&MemoryWait { host: Some(host), len }, free_bytes)
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

    fn peer(ip: &str) -> Peer {
        ip.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn an_ipv6_host_is_one_peer_whatever_address_of_its_network_it_uses() {
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_ne!(peer("fe80::1"), peer("fe80::2"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.2"), peer("192.0.2.1"));
    }

    #[test]
    fn one_peer_has_a_limit_and_the_largest_is_evicted_for_a_small_one() {
        let one = peer("192.0.2.1");
        let two = peer("192.0.2.2");
        let three = peer("192.0.2.3");
        let mut peer_limits = PeerLimits::new(10, 6);
        (0..6).for_each(|_| peer_limits.add(one));
        assert_eq!(peer_limits.reached(one), Some(Limit::Peer));
        (0..4).for_each(|_| peer_limits.add(two));
        assert_eq!(peer_limits.reached(three), Some(Limit::All));
        assert_eq!(peer_limits.peer_with_most(three), Some(one));
        assert_eq!(peer_limits.peer_with_most(two), None, "five against six is no greed");
        peer_limits.remove(one);
        assert_eq!((peer_limits.of(one), peer_limits.reached(three)), (5, None));
        (0..5).for_each(|_| peer_limits.remove(one));
        assert_eq!((peer_limits.of(one), peer_limits.peer_with_most(three)), (0, Some(two)));
    }
}
