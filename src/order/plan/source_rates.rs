//! Chooses the source of a read at run time, from the known rates of the machine.
//!
//! The rule is that of the [`Model`](super::Model): the fastest source that has the data; of equally fast sources, the
//! nearest. The rates assume the worst case: all processes of the job read from the origin at once.

use super::model::{Curve, Rate, Source, Stage, fastest};

/// The known rates of a machine's tiers and of its origin. An unknown tier or network counts as faster than any
/// origin, and an unknown origin as slower than any tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceRates {
    /// Tiers, fastest first.
    pub tiers: Vec<Option<Stage>>,
    /// Aggregate read rate of the origin by number of clients.
    pub origin: Option<Curve>,
    /// The kind of client that this table counts.
    pub client: OriginClient,
    /// The highest rate of one process from the origin.
    pub origin_link: Option<Rate>,
    /// The highest rate of one process from another node.
    pub network: Option<Rate>,
}

/// The kind of client that the origin's table counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OriginClient {
    /// One reading thread: a process counts as many clients as it has threads for a tier.
    #[default]
    Thread,
    /// One process, whatever its number of threads, as in HDMLP's configuration.
    Process,
}

impl SourceRates {
    /// Read rate of one thread of `tier` while all threads of the tier read: r_j(p_j) / p_j. `None` if it is unknown.
    pub fn of_tier(&self, tier: u8) -> Option<Rate> {
        self.stage(tier).map(Stage::read_of_thread)
    }

    /// The rate of one client that reads from the origin instead of from `tier`, while `processes` (at least 1) read
    /// from the origin: min(b_fs, t(g) / g). If clients are threads, each process has as many as the tier, or 1 if that
    /// number is unknown. `None` if the rate is unknown.
    pub fn of_origin(&self, processes: u32, tier: u8) -> Option<Rate> {
        let threads = match self.client {
            OriginClient::Thread => self.threads(tier).unwrap_or(1),
            OriginClient::Process => 1,
        };
        let clients = processes.max(1).saturating_mul(threads.max(1));
        let of_client = self.origin.as_ref().map(|curve| curve.at(clients).shared_by(clients));
        match (of_client, self.origin_link) {
            (Some(rate), Some(link)) => Some(rate.min(link)),
            (rate, link) => rate.or(link),
        }
    }

    /// The rate of one thread that reads a copy in `tier` of another node, whose tiers are assumed to be like this
    /// node's: min(b_c, r_j(p_j) / p_j).
    pub fn of_peer(&self, tier: u8) -> Option<Rate> {
        match (self.of_tier(tier), self.network) {
            (Some(rate), Some(network)) => Some(rate.min(network)),
            (rate, network) => rate.or(network),
        }
    }

    /// Chooses the source of data that has copies in tier `own` of this node and in tier `other` of another node, where
    /// `None` is no copy.
    pub fn choose(&self, own: Option<u8>, other: Option<u8>, processes: u32) -> Source {
        let known = |rate: Option<Rate>| rate.unwrap_or(Rate(u64::MAX));
        let tier = own.or(other).unwrap_or(0);
        let origin = self.of_origin(processes, tier).unwrap_or(Rate(0));
        let own = own.map(|tier| (Source::Local(tier), known(self.of_tier(tier))));
        let other = other.map(|tier| (Source::Remote(tier), known(self.of_peer(tier))));
        fastest(own.into_iter().chain(other).chain([(Source::Origin, origin)]))
    }

    /// The number of threads of `tier`; `None` if it is unknown.
    pub fn threads(&self, tier: u8) -> Option<u32> {
        self.stage(tier).map(|stage| stage.threads)
    }

    fn stage(&self, tier: u8) -> Option<&Stage> {
        self.tiers.get(usize::from(tier))?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, u64)]) -> Curve {
        let points = points.iter().map(|&(at, rate)| (at, Rate::mb_per_s(rate)));
        Curve::new("a test", points.collect()).unwrap()
    }

    fn tier(threads: u32, points: &[(u32, u64)]) -> Option<Stage> {
        Some(Stage { threads, read: curve(points), write: curve(points) })
    }

    #[test]
    fn what_is_faster_is_read_and_of_equals_the_copy() {
        let rates = |origin| SourceRates {
            tiers: vec![tier(2, &[(2, 200)])], // 100 a thread
            origin: Some(curve(&[(1, origin), (2, 2 * origin), (4, 2 * origin)])),
            ..SourceRates::default()
        };
        let choose = |origin, processes| rates(origin).choose(Some(0), None, processes);
        assert_eq!(choose(99, 1), Source::Local(0));
        assert_eq!(choose(100, 1), Source::Local(0), "a tie");
        assert_eq!(choose(101, 1), Source::Origin);
        assert_eq!(choose(101, 2), Source::Local(0), "two processes get half of it each");
        assert_eq!(choose(300, 2), Source::Origin);
    }

    #[test]
    fn another_node_s_copy_is_read_unless_the_network_is_slower_than_the_origin() {
        let rates = |network| SourceRates {
            tiers: vec![tier(1, &[(1, 1_000)]), tier(1, &[(1, 80)])],
            origin: Some(curve(&[(1, 100), (4, 200)])),
            network: Some(Rate::mb_per_s(network)),
            ..SourceRates::default()
        };
        assert_eq!(rates(99).choose(None, Some(0), 1), Source::Origin);
        assert_eq!(rates(100).choose(None, Some(0), 1), Source::Remote(0), "a tie");
        assert_eq!(rates(99).choose(None, Some(0), 4), Source::Remote(0), "four get 50 each");
        assert_eq!(rates(500).choose(None, Some(1), 1), Source::Origin, "its drive is slow");
        assert_eq!(rates(500).choose(Some(1), Some(0), 4), Source::Remote(0), "its memory is fast");
        assert_eq!(rates(80).choose(Some(1), Some(0), 4), Source::Local(1), "a tie");
    }

    #[test]
    fn a_client_is_a_thread_or_a_process() {
        let rates = |client| SourceRates {
            tiers: vec![tier(4, &[(1, 100), (4, 200)])],
            origin: Some(curve(&[(1, 80), (4, 160), (8, 160)])),
            client,
            ..SourceRates::default()
        };
        let by_thread = rates(OriginClient::Thread);
        assert_eq!(by_thread.of_tier(0), Some(Rate::mb_per_s(50)));
        assert_eq!(by_thread.of_origin(1, 0), Some(Rate::mb_per_s(40)));
        assert_eq!(by_thread.of_origin(2, 0), Some(Rate::mb_per_s(20)));
        let by_process = rates(OriginClient::Process);
        assert_eq!(by_process.of_origin(1, 0), Some(Rate::mb_per_s(80)));
        assert_eq!(by_process.choose(Some(0), None, 1), Source::Origin);
        let linked = SourceRates { origin_link: Some(Rate::mb_per_s(50)), ..by_process };
        let chosen = linked.choose(Some(0), None, 1);
        assert_eq!(chosen, Source::Local(0), "as fast as the link, and nearer");
    }

    #[test]
    fn what_is_unknown_leaves_the_copy_first() {
        let nothing = SourceRates::default();
        assert_eq!(nothing.choose(Some(3), Some(0), 1), Source::Local(3));
        assert_eq!(
            (nothing.choose(None, Some(3), 1), nothing.threads(3)),
            (Source::Remote(3), None)
        );
        let origin = SourceRates { origin: Some(curve(&[(1, 1 << 40)])), ..nothing.clone() };
        assert_eq!(origin.choose(Some(0), None, 0), Source::Local(0));
        let tiers = SourceRates { tiers: vec![None, tier(1, &[(1, 1)])], ..nothing };
        assert_eq!((tiers.choose(Some(1), None, 9), tiers.threads(1)), (Source::Local(1), Some(1)));
    }
}
