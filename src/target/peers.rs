//! Who takes how many places: a count for each peer address, with a limit for one and for all.
//!
//! A host NQN can be invented, an address hardly: so places are counted by address. One address cannot
//! take them all, and when all are taken the address that has most gives way to one that has few.

use std::collections::HashMap;
use std::net::IpAddr;

/// Where connections come from, as far as limits go: an IPv4 address, or the /64 of an IPv6 address,
/// which one machine has all of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Peer(u128);

impl From<IpAddr> for Peer {
    fn from(ip: IpAddr) -> Peer {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Peer(ip.to_ipv6_mapped().to_bits()),
            // Every machine of a link shares this prefix.
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Peer(ip.to_bits()),
            IpAddr::V6(ip) => Peer(ip.to_bits() >> 64 << 64),
        }
    }
}

/// Places that peers take.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    max_per_peer: usize,
    total: usize,
    by_peer: HashMap<Peer, usize>,
}

/// Why there is no place for one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The peer has as many as one may have.
    Peer,
    /// All are taken.
    All,
}

impl Places {
    pub(super) fn new(max: usize, max_per_peer: usize) -> Places {
        Places { max, max_per_peer, total: 0, by_peer: HashMap::new() }
    }

    /// Why `peer` cannot have one more, if it cannot.
    pub(super) fn full(&self, peer: Peer) -> Option<Full> {
        if self.of(peer) >= self.max_per_peer {
            return Some(Full::Peer);
        }
        (self.total >= self.max).then_some(Full::All)
    }

    /// How many there may be.
    pub(super) fn limit(&self, full: Full) -> usize {
        match full {
            Full::Peer => self.max_per_peer,
            Full::All => self.max,
        }
    }

    pub(super) fn of(&self, peer: Peer) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    pub(super) fn enter(&mut self, peer: Peer) {
        self.total += 1;
        *self.by_peer.entry(peer).or_default() += 1;
    }

    pub(super) fn leave(&mut self, peer: Peer) {
        let Some(count) = self.by_peer.get_mut(&peer) else { return };
        self.total -= 1;
        *count -= 1;
        if *count == 0 {
            self.by_peer.remove(&peer);
        }
    }

    /// The peer that has to make room for `peer`: the one with most places, if those are so many more
    /// that the two would not go on driving each other out.
    pub(super) fn greediest(&self, peer: Peer) -> Option<Peer> {
        let (greediest, count) = self.by_peer.iter().max_by_key(|(_, count)| **count)?;
        (*count >= 2 * (self.of(peer) + 1)).then_some(*greediest)
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
    fn one_peer_has_a_limit_and_the_greediest_gives_way_to_one_that_has_few() {
        let (one, two, three) = (peer("192.0.2.1"), peer("192.0.2.2"), peer("192.0.2.3"));
        let mut places = Places::new(10, 6);
        (0..6).for_each(|_| places.enter(one));
        assert_eq!(places.full(one), Some(Full::Peer));
        (0..4).for_each(|_| places.enter(two));
        assert_eq!(places.full(three), Some(Full::All));
        assert_eq!(places.greediest(three), Some(one));
        assert_eq!(places.greediest(two), None, "five against six is no greed");
        places.leave(one);
        assert_eq!((places.of(one), places.full(three)), (5, None));
        (0..5).for_each(|_| places.leave(one));
        assert_eq!((places.of(one), places.greediest(three)), (0, Some(two)));
    }
}
