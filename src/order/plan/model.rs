//! The performance model: the time to fetch a sample from each source (HDMLP, section 3.1; SC'21, section 4).
//!
//! In the papers' symbols: `compute` is c, `preprocess` is beta, `network` is b_c, `origin_link` is
//! b_fs, `origin` is t(g), and a [`Stage`] is a storage class with r_j, w_j and p_j; stage 0 is the
//! staging buffer. The rates of a stage are aggregates over its threads, as in the papers.
//!
//! A [`Model`] has all rates of a job, for plans and simulations. At run time, [`SourceRates`] chooses by the same rule
//! from the rates of a machine that are known: the fastest source that has the data, and of equally fast ones the
//! nearest. Both assume the worst case: all processes of the job read from the origin at once.

use serde::{Deserialize, Serialize};

use super::planner::MAX_RANKS;
use dlfs_base::error::{Error, Result, ensure};

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(pub u64);

impl Rate {
    /// `mb` times 10^6 bytes per second, the unit of all published tables; saturates at 2^64 - 1.
    pub const fn mb_per_s(mb: u64) -> Rate {
        Rate(mb.saturating_mul(1_000_000))
    }

    /// Returns an error if the rate is 0, at which a transfer never ends.
    fn check(self, what: &str) -> Result<()> {
        ensure(self.0 > 0, || format!("the rate of {what} is 0"))
    }

    /// Time for `len_bytes` in nanoseconds, rounded up; `u64::MAX` at a rate of 0.
    pub fn time_ns(self, len_bytes: u64) -> u64 {
        match self.0 {
            0 => u64::MAX,
            rate => {
                let ns = (u128::from(len_bytes) * 1_000_000_000).div_ceil(u128::from(rate));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        }
    }

    /// The rate of each of `count` concurrent users; 0 counts as 1.
    #[must_use]
    pub const fn shared_by(self, count: u32) -> Rate {
        Rate(self.0 / if count == 0 { 1 } else { count as u64 })
    }
}

/// Measured rates by the number of clients or threads: a bandwidth table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, Rate)>", into = "Vec<(u32, Rate)>")]
pub struct Curve {
    /// The number of clients and their aggregate rate, by ascending number.
    points: Vec<(u32, Rate)>,
}

impl TryFrom<Vec<(u32, Rate)>> for Curve {
    type Error = Error;

    fn try_from(points: Vec<(u32, Rate)>) -> Result<Curve> {
        Curve::new("a model", points)
    }
}

impl From<Curve> for Vec<(u32, Rate)> {
    fn from(curve: Curve) -> Vec<(u32, Rate)> {
        curve.points
    }
}

impl Curve {
    /// A table of `points` (clients, rate); errors call the table `what`.
    ///
    /// # Errors
    /// It is empty, its client numbers do not ascend, or a rate is 0.
    pub fn new(what: &str, points: Vec<(u32, Rate)>) -> Result<Curve> {
        let curve = Curve { points };
        curve.check(what)?;
        Ok(curve)
    }

    /// The same rate for any number of clients.
    pub fn flat(rate: Rate) -> Curve {
        Curve { points: vec![(1, rate)] }
    }

    /// Checks the table. [`Curve::flat`] skips this check.
    fn check(&self, what: &str) -> Result<()> {
        ensure(!self.points.is_empty(), || format!("the bandwidth table of {what} is empty"))?;
        for pair in self.points.windows(2) {
            let previous = pair[0].0;
            let next = pair[1].0;
            ensure(previous < next, || {
                format!("the bandwidth table of {what} is not sorted: {next} follows {previous}")
            })?;
        }
        self.points.iter().try_for_each(|(_, rate)| rate.check(what))
    }

    /// The aggregate rate of `count` clients: interpolated between two entries, and constant outside the table.
    pub fn at(&self, count: u32) -> Rate {
        let above = self.points.partition_point(|&(at, _)| at < count);
        let Some(&(to, rate_to)) = self.points.get(above) else {
            return self.points.last().expect("a table has an entry").1;
        };
        if to == count || above == 0 {
            return rate_to;
        }
        let (from, rate_from) = self.points[above - 1];
        let step = i128::from(count - from);
        let width = i128::from(to - from);
        let rise = i128::from(rate_to.0) - i128::from(rate_from.0);
        let rate = i128::from(rate_from.0) + (rise * step).div_euclid(width);
        Rate(u64::try_from(rate).expect("between two rates"))
    }
}

/// A storage class: a tier, or the staging buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Threads that fetch into it.
    pub threads: u32,
    /// Aggregate read rate by number of threads.
    pub read: Curve,
    /// Aggregate write rate by number of threads.
    pub write: Curve,
}

impl Stage {
    /// Read rate of one of its threads while all its threads read: r_j(p_j) / p_j.
    pub fn read_of_thread(&self) -> Rate {
        self.read.at(self.threads).shared_by(self.threads)
    }

    /// Write rate of one of its threads while all its threads write: w_j(p_j) / p_j.
    pub fn write_of_thread(&self) -> Rate {
        self.write.at(self.threads).shared_by(self.threads)
    }
}

/// The source that a sample is fetched from; equally fast sources are preferred in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A tier of this node, counted from 0.
    Local(u8),
    /// A tier of another node, counted from 0.
    Remote(u8),
    /// The origin of all samples: a parallel file system or a storage target.
    Origin,
}

/// The rates of a job's environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Number of nodes.
    pub nodes: u32,
    /// Rate at which a node's training consumes samples.
    pub compute: Rate,
    /// Rate at which one thread decodes and transforms.
    pub preprocess: Rate,
    /// Rate between two nodes.
    pub network: Rate,
    /// Rate between a node and the origin.
    pub origin_link: Rate,
    /// Aggregate random-read rate of the origin, by number of reading nodes.
    pub origin: Curve,
    /// The buffer from which samples are consumed.
    pub staging: Stage,
    /// Tiers, fastest first.
    pub tiers: Vec<Stage>,
}

impl Model {
    /// Checks that no rate is 0, and that the other numbers are in range.
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn check(&self) -> Result<()> {
        ensure(self.nodes > 0, || format!("a plan is for 1 to {MAX_RANKS} ranks, not 0"))?;
        self.compute.check("compute")?;
        self.preprocess.check("preprocessing")?;
        self.network.check("the network")?;
        self.origin_link.check("the origin's link")?;
        self.origin.check("the origin")?;
        check_stage(&self.staging, "the staging buffer")?;
        for (index, tier) in self.tiers.iter().enumerate() {
            check_stage(tier, &format!("tier {index}"))?;
        }
        Ok(())
    }

    /// The rate of one node from the origin while `readers` nodes read: min(b_fs, t(g) / g).
    pub fn origin_rate(&self, readers: u32) -> Rate {
        self.origin_link.min(self.origin.at(readers.max(1)).shared_by(readers))
    }

    /// The rate of one fetching thread from `source`, while all nodes read from the origin: plans assume this worst
    /// case.
    pub fn rate(&self, source: Source) -> Rate {
        match source {
            Source::Local(tier) => self.tiers[usize::from(tier)].read_of_thread(),
            Source::Remote(tier) => {
                self.network.min(self.tiers[usize::from(tier)].read_of_thread())
            }
            Source::Origin => self.origin_rate(self.nodes),
        }
    }

    /// The fastest of the origin, this node's copy and another node's copy, given by their tiers; of equally fast
    /// ones, this node's copy first, then the other node's.
    pub fn choose(&self, local: Option<u8>, remote: Option<u8>) -> Source {
        let copies = [local.map(Source::Local), remote.map(Source::Remote)];
        let sources = copies.into_iter().flatten().chain([Source::Origin]);
        fastest(sources.map(|source| (source, self.rate(source))))
    }

    /// Time to fetch a sample from `source` with one thread.
    pub fn fetch_ns(&self, source: Source, len_bytes: u64) -> u64 {
        self.rate(source).time_ns(len_bytes)
    }

    /// Time for one thread to decode a sample and write it to the staging buffer; the two overlap.
    pub fn write_ns(&self, len_bytes: u64) -> u64 {
        self.preprocess.min(self.staging.write_of_thread()).time_ns(len_bytes)
    }
}

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

/// The fastest of `sources`; of equally fast ones, the nearest; the origin if `sources` is empty.
fn fastest(sources: impl IntoIterator<Item = (Source, Rate)>) -> Source {
    let by_rate = |&(source, rate): &(Source, Rate)| (std::cmp::Reverse(rate), source);
    sources.into_iter().min_by_key(by_rate).map_or(Source::Origin, |(source, _)| source)
}

/// Checks that the rates of `stage`, called `what`, are above 0.
fn check_stage(stage: &Stage, what: &str) -> Result<()> {
    ensure(stage.threads > 0, || format!("{what} has no thread"))?;
    stage.read.check(what)?;
    stage.write.check(what)?;
    // A rate below one byte per second and thread would be rounded to 0 per thread.
    stage.read_of_thread().check(what)?;
    stage.write_of_thread().check(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mb(table: &[(u32, u64)]) -> Vec<(u32, Rate)> {
        table.iter().map(|&(at, rate)| (at, Rate::mb_per_s(rate))).collect()
    }

    /// The environment of the thesis's simulations, section 5.2.1.
    fn thesis() -> Model {
        let stage = |rate| {
            let rate = Curve::flat(Rate::mb_per_s(rate));
            Stage { threads: 2, read: rate.clone(), write: rate }
        };
        Model {
            nodes: 4,
            compute: Rate::mb_per_s(100),
            preprocess: Rate::mb_per_s(200),
            network: Rate::mb_per_s(10_000),
            origin_link: Rate::mb_per_s(2_000),
            origin: Curve::new("t", mb(&[(1, 66), (2, 86), (3, 129), (4, 146)])).unwrap(),
            staging: stage(21_164),
            tiers: vec![stage(21_164), stage(86)],
        }
    }

    #[test]
    fn a_curve_is_linear_between_its_entries_and_flat_outside() {
        let curve = Curve::new("t", mb(&[(2, 86), (4, 146), (8, 326), (16, 324)])).unwrap();
        let at = |count| curve.at(count).0;
        assert_eq!([at(0), at(1), at(2)], [86_000_000; 3]);
        assert_eq!([at(3), at(4), at(5)], [116_000_000, 146_000_000, 191_000_000]);
        assert_eq!(at(12), 325_000_000, "rates may fall");
        assert_eq!([at(16), at(17), at(u32::MAX)], [324_000_000; 3]);
    }

    #[test]
    fn a_curve_rounds_down_also_where_it_falls() {
        let curve = Curve::new("t", vec![(1, Rate(10)), (4, Rate(2))]).unwrap();
        assert_eq!([1, 2, 3, 4].map(|count| curve.at(count).0), [10, 7, 4, 2]);
        let top = Curve::new("t", vec![(1, Rate(1)), (u32::MAX, Rate(u64::MAX))]).unwrap();
        assert!(top.at(u32::MAX - 1) < Rate(u64::MAX));
    }

    #[test]
    fn tables_that_are_empty_unsorted_or_zero_are_refused_by_name() {
        let refuse = |points| Curve::new("disk", points).unwrap_err().to_string();
        assert_eq!(refuse(vec![]), "the bandwidth table of disk is empty");
        for next in [2, 1] {
            let text = format!("the bandwidth table of disk is not sorted: {next} follows 2");
            assert_eq!(refuse(mb(&[(2, 5), (next, 7)])), text);
        }
        assert_eq!(refuse(mb(&[(1, 5), (2, 0)])), "the rate of disk is 0");
    }

    #[test]
    fn an_invalid_table_is_not_deserialized() {
        let json = serde_json::to_string(&thesis()).unwrap();
        assert_eq!(serde_json::from_str::<Model>(&json).unwrap(), thesis());
        let table = serde_json::to_string(&thesis().origin).unwrap();
        for wrong in ["[]", "[[2,5],[1,7]]", "[[1,0]]"] {
            let refused = serde_json::from_str::<Model>(&json.replace(&table, wrong)).unwrap_err();
            assert!(refused.to_string().contains("a model"), "{wrong}: {refused}");
        }
    }

    #[test]
    fn an_environment_with_an_impossible_number_is_refused_by_name() {
        thesis().check().unwrap();
        let refuse = |change: fn(&mut Model)| {
            let mut model = thesis();
            change(&mut model);
            model.check().unwrap_err().to_string()
        };
        assert!(refuse(|m| m.nodes = 0).contains("ranks, not 0"));
        assert!(refuse(|m| m.compute = Rate(0)).contains("compute is 0"));
        assert!(refuse(|m| m.network = Rate(0)).contains("network is 0"));
        assert!(refuse(|m| m.tiers[1].threads = 0).contains("tier 1 has no thread"));
        assert!(refuse(|m| m.tiers[0].read = Curve::flat(Rate(1))).contains("tier 0 is 0"));
        assert!(refuse(|m| m.staging.read = Curve { points: vec![] }).contains("staging buffer"));
        assert!(refuse(|m| m.origin = Curve { points: vec![] }).contains("the origin is empty"));
    }

    #[test]
    fn rates_of_sources_are_those_of_the_model() {
        let model = thesis();
        assert_eq!(model.rate(Source::Origin), Rate(36_500_000));
        assert_eq!(model.origin_rate(1), Rate(66_000_000));
        assert_eq!(model.rate(Source::Local(0)), Rate(10_582_000_000));
        assert_eq!(model.rate(Source::Remote(0)), Rate(10_000_000_000), "the network limits");
        assert_eq!(model.rate(Source::Remote(1)), Rate(43_000_000));
        assert_eq!(model.write_ns(1_000_000), 5_000_000, "preprocessing limits");
        assert_eq!(model.fetch_ns(Source::Origin, 36_500_000), 1_000_000_000);
    }

    #[test]
    fn the_fastest_source_is_chosen_and_of_equals_the_nearest() {
        let mut model = thesis();
        assert_eq!(model.choose(None, None), Source::Origin);
        assert_eq!(model.choose(Some(1), Some(0)), Source::Remote(0));
        assert_eq!(model.choose(Some(1), Some(1)), Source::Local(1));
        model.tiers[1].read = Curve::flat(Rate::mb_per_s(73));
        assert_eq!(model.choose(Some(1), None), Source::Local(1), "as fast as the origin, nearer");
        assert_eq!(model.choose(None, Some(1)), Source::Remote(1));
        model.tiers[1].read = Curve::flat(Rate::mb_per_s(60));
        assert_eq!(model.choose(Some(1), Some(1)), Source::Origin);
    }

    #[test]
    fn times_round_up_and_never_overflow() {
        assert_eq!(Rate(3).time_ns(1), 333_333_334);
        assert_eq!(Rate(1).time_ns(u64::MAX), u64::MAX);
        assert_eq!(Rate(0).time_ns(1), u64::MAX);
    }

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
