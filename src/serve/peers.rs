//! Limits of connections and of controllers, counted by peer address.
//!
//! An address, unlike a host NQN, is not easily invented. So there is a limit per address beside the total limit. One
//! address cannot exhaust the total: when the total is reached, the address with the most connections or controllers
//! loses one to an address with few.

use std::collections::HashMap;
use std::net::IpAddr;

/// The address that a connection counts for: an IPv4 address, or the /64 of an IPv6 address, since one
/// machine owns a whole /64. Of a link-local address, all bits count.
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
    /// The limit for all peers together.
    max: usize,
    max_per_peer: usize,
    /// The sum of `by_peer`.
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

    /// The value of a limit.
    pub(super) fn value(&self, limit: Limit) -> usize {
        match limit {
            Limit::Peer => self.max_per_peer,
            Limit::All => self.max,
        }
    }

    /// The number of connections or controllers that `peer` has.
    fn of(&self, peer: Peer) -> usize {
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
