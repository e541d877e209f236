//! The causes for which a consumer waits for batches, and the time waited for each.

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// The reason why no batch was ready when the consumer asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The loader was starting: it connected, met its peers, or allocated the window.
    Start,
    /// The order was being computed, and no read was outstanding.
    Order,
    /// The window was full, with batches that the consumer holds or with chunks that later batches need.
    Window,
    /// Reads were outstanding, at a target, a drive, a tier or a peer.
    Network,
    /// Reads had arrived, and their checksums were still being computed.
    Checksum,
    /// The batch was being gathered into one buffer.
    Copy,
}

impl Cause {
    /// The number of causes.
    pub(crate) const COUNT: usize = 6;

    /// All causes, in the order in which a batch meets them.
    pub const ALL: [Cause; Cause::COUNT] =
        [Cause::Start, Cause::Order, Cause::Window, Cause::Network, Cause::Checksum, Cause::Copy];

    /// The name in metrics and statistics.
    pub const fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// The awaited thing, to complete "waiting for ...".
    pub(super) const fn noun(self) -> &'static str {
        NAMES[self as usize].1
    }
}

/// Name and noun phrase of each cause, in their order.
const NAMES: [(&str, &str); Cause::COUNT] = [
    ("start", "the loader to start"),
    ("order", "the order"),
    ("window", "room in the window"),
    ("network", "reads"),
    ("checksum", "checksums"),
    ("copy", "copies into one buffer"),
];

/// The time that a consumer has waited, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Nanoseconds by cause, in the order of [`Cause::ALL`].
    ns: [u64; Cause::COUNT],
}

impl Stalls {
    /// Adds a wait.
    pub(crate) fn add(&mut self, cause: Cause, waited: Duration) {
        let waited_ns = nanos(waited);
        let sum = &mut self.ns[cause as usize];
        *sum = sum.saturating_add(waited_ns);
    }

    /// Adds a wait, divided in proportion to `shares`, one for each cause. Returns false, and adds nothing, if all
    /// shares are 0.
    pub(crate) fn divide(&mut self, waited: Duration, shares: &[u64; Cause::COUNT]) -> bool {
        let waited_ns = nanos(waited);
        let sum: u128 = shares.iter().map(|&share| u128::from(share)).sum();
        if sum == 0 {
            return false;
        }
        // Each part is a difference of rounded running totals, so that the parts add up to the whole.
        let mut before = 0_u128;
        let mut given = 0_u64;
        for (total, &share) in self.ns.iter_mut().zip(shares) {
            before += u128::from(share);
            let end = (u128::from(waited_ns) * before / sum) as u64;
            *total = total.saturating_add(end - given);
            given = end;
        }
        true
    }

    /// The time waited for `cause`.
    pub fn of(&self, cause: Cause) -> Duration {
        Duration::from_nanos(self.ns[cause as usize])
    }

    /// The time of all causes.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.ns.iter().fold(0, |sum, &ns| sum.saturating_add(ns)))
    }

    /// Each cause with its time.
    pub fn each(&self) -> impl Iterator<Item = (Cause, Duration)> + '_ {
        Cause::ALL.into_iter().map(|cause| (cause, self.of(cause)))
    }

    /// The sum of both.
    #[must_use]
    pub(crate) fn plus(mut self, other: &Stalls) -> Stalls {
        for (sum, more) in self.ns.iter_mut().zip(&other.ns) {
            *sum = sum.saturating_add(*more);
        }
        self
    }

    /// Stalls of `total` in all, in the same proportions.
    #[must_use]
    pub(crate) fn scaled(&self, total: Duration) -> Stalls {
        let mut scaled = Stalls::default();
        scaled.divide(total, &self.ns);
        scaled
    }

    /// The waits since `earlier`, an earlier value of the same sums.
    #[must_use]
    pub(crate) fn since(mut self, earlier: &Stalls) -> Stalls {
        for (sum, before) in self.ns.iter_mut().zip(&earlier.ns) {
            *sum = sum.saturating_sub(*before);
        }
        self
    }
}

/// A map from the name of each cause to seconds.
impl Serialize for Stalls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Cause::COUNT))?;
        for (cause, waited) in self.each() {
            map.serialize_entry(cause.name(), &waited.as_secs_f64())?;
        }
        map.end()
    }
}

/// Nanoseconds, at most `u64::MAX`.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_wait_add_up_to_it_whatever_the_shares() {
        let mut stalls = Stalls::default();
        let waited = Duration::from_nanos(1_000_003);
        for shares in [[1, 1, 1, 0, 0, 0], [0, 7, 0, u64::MAX, 3, 1], [0, 0, 0, 0, 0, 1]] {
            let before = stalls;
            assert!(stalls.divide(waited, &shares));
            let added = stalls.since(&before);
            assert_eq!(added.total(), waited);
            for (cause, part) in added.each() {
                assert!(shares[cause as usize] > 0 || part == Duration::ZERO, "{cause:?} {part:?}");
            }
        }
        assert!(!stalls.divide(waited, &[0; Cause::COUNT]), "nobody has a share");
        assert_eq!(stalls.total(), 3 * waited);
    }

    #[test]
    fn causes_have_their_own_places_and_names() {
        let mut stalls = Stalls::default();
        for (nth, cause) in (1..).zip(Cause::ALL) {
            assert_eq!(cause as usize + 1, nth as usize);
            stalls.add(cause, Duration::from_secs(nth));
        }
        let json = serde_json::to_string(&stalls).unwrap();
        let expected =
            r#"{"start":1.0,"order":2.0,"window":3.0,"network":4.0,"checksum":5.0,"copy":6.0}"#;
        assert_eq!(json, expected);
        assert_eq!(stalls.plus(&stalls).since(&stalls), stalls);
    }
}
