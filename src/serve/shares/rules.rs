//! The limits and weights of hosts, groups of hosts and namespaces, and the use that each host makes.
//!
//! One [`Limiter`] may serve several targets: a host then has one limit for all of them. Pollers compare the version of
//! the rules with each iteration. They take the lock only when the version has changed, a host connects, a namespace is
//! added, or hosts no longer take turns.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::DEFAULT_WEIGHT;
use super::limits::{Class, Limits, TICKS_PER_NANOSECOND};
use super::pace::Paces;
use dlfs_base::metrics::{self, Snapshot};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::Nqn;

/// A host's NQN, or the beginning of NQNs with `*` at its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPattern(String);

impl HostPattern {
    /// Returns whether the pattern means this host.
    pub fn matches(&self, host: &Nqn) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => host.as_str().starts_with(prefix),
            None => host.as_str() == self.0,
        }
    }
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<HostPattern, String> {
        let prefix = text.strip_suffix('*').unwrap_or(text);
        let why = match Nqn::new(prefix) {
            Ok(_) if !prefix.contains('*') => return Ok(HostPattern(text.to_owned())),
            Ok(_) => "only its last character may be a *".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!("{text:?} names no hosts: {why}; give an NQN, or its beginning and a *"))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The limits of some hosts: of each by itself, or of all together as a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// The name of the group, whose hosts share the rates; each has the weight. `None`: each host has the rates and the
    /// weight to itself.
    pub group: Option<String>,
    /// The hosts.
    pub hosts: Vec<HostPattern>,
    /// Their limits.
    pub limits: Limits,
}

/// The limits of all hosts and namespaces.
///
/// Two rules apply to a host: the first rule without a group whose patterns match it, and the first with a group. The
/// weight is that of the former if it has one, else that of the latter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Limits of hosts and groups.
    pub hosts: Vec<HostRule>,
    /// Limits of namespaces, by subsystem.
    pub namespaces: BTreeMap<(Nqn, Nsid), Limits>,
}

/// Limits hosts and namespaces, and counts what hosts use. Clones are handles on the same limits.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    /// Origin of the ticks of buckets.
    start: Instant,
    /// The number of changes of the rules.
    version: AtomicU64,
    state: Mutex<LimiterState>,
}

#[derive(Default)]
struct LimiterState {
    rules: Rules,
    classes: Classes,
    /// The paces of hosts at each namespace and in each group.
    paces: BTreeMap<Key, Weak<Paces>>,
    /// Counters by subsystem and host: of connected hosts, and of some that have left.
    usage: BTreeMap<(Nqn, Nqn), Arc<Usage>>,
    /// The number of counters at which those of hosts that have left are removed.
    forget_at: usize,
}

/// The buckets in use, and some that no host, group or namespace has any more.
#[derive(Default)]
struct Classes {
    by_key: BTreeMap<Key, Weak<Class>>,
    /// The number of entries at which those out of use are removed.
    forget_at: usize,
}

/// The owner of buckets or paces.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Host(Nqn),
    Group(String),
    Namespace(Nqn, Nsid),
}

/// Counters of a host's use of a subsystem.
#[derive(Debug, Default)]
pub(in super::super) struct Usage {
    /// Reads, bytes read, writes, bytes written.
    pub(in super::super) counts: [AtomicU64; 4],
    /// Time for which a limit kept commands waiting.
    pub(in super::super) throttled_ns: AtomicU64,
}

/// A host's use of a subsystem, and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostUsage {
    /// The host.
    pub host: Nqn,
    /// Reads.
    pub reads: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
    /// Time for which a limit kept commands waiting, on all pollers together.
    pub throttled: Duration,
    /// The host's weight.
    pub weight: u32,
    /// The limits that it has to itself, and those of its group.
    pub limits: Vec<Limits>,
}

impl Default for Limiter {
    fn default() -> Limiter {
        let version = AtomicU64::new(0);
        Limiter(Arc::new(Inner { start: Instant::now(), version, state: Mutex::default() }))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Limiter")
    }
}

impl Limiter {
    /// Replaces all rules. Hosts, groups and namespaces whose limits do not change keep the state of their buckets.
    pub fn set(&self, rules: Rules) {
        self.0.state.lock().rules = rules;
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// The current rules.
    pub fn rules(&self) -> Rules {
        self.0.state.lock().rules.clone()
    }

    /// The use of a subsystem by its connected hosts, by NQN.
    pub fn usage(&self, subsystem: &Nqn) -> Vec<HostUsage> {
        self.usage_if(subsystem, is_connected)
    }

    fn usage_if(&self, subsystem: &Nqn, which: impl Fn(&Arc<Usage>) -> bool) -> Vec<HostUsage> {
        let state = self.0.state.lock();
        let usages = state.usage.iter().filter(|((of, _), usage)| of == subsystem && which(usage));
        let describe = |((_, host), usage): (&(Nqn, Nqn), &Arc<Usage>)| {
            let [reads, read_bytes, writes, written_bytes] =
                usage.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            let throttled = Duration::from_nanos(usage.throttled_ns.load(Ordering::Relaxed));
            let rules: Vec<&HostRule> = state.rules.of(host).collect();
            HostUsage {
                host: host.clone(),
                reads,
                read_bytes,
                writes,
                written_bytes,
                throttled,
                weight: weight_of(&rules),
                limits: rules.iter().map(|rule| rule.limits).collect(),
            }
        };
        usages.map(describe).collect()
    }

    /// Adds the counters of hosts to `snapshot`.
    pub(in super::super) fn measure(&self, subsystem: &Nqn, snapshot: &mut Snapshot) {
        for usage in self.usage_if(subsystem, |_| true) {
            let labels = [subsystem.as_str(), usage.host.as_str()];
            snapshot.count(&metrics::TARGET_HOST_READS, &labels, usage.reads);
            snapshot.count(&metrics::TARGET_HOST_READ_BYTES, &labels, usage.read_bytes);
            snapshot.count(&metrics::TARGET_HOST_WRITES, &labels, usage.writes);
            snapshot.count(&metrics::TARGET_HOST_WRITTEN_BYTES, &labels, usage.written_bytes);
            let throttled = usage.throttled.as_secs_f64();
            snapshot.seconds(&metrics::TARGET_HOST_THROTTLED_SECONDS, &labels, throttled);
        }
    }

    pub(in super::super) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// The time of `now` in the ticks of buckets.
    pub(in super::super) fn ticks(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.0.start);
        since.as_nanos() as u64 * TICKS_PER_NANOSECOND
    }

    /// The counters of a host that connects. Removes those of hosts that have left when there are too many, since names
    /// can be invented.
    pub(in super::super) fn usage_of(&self, subsystem: &Nqn, host: &Nqn) -> Arc<Usage> {
        let LimiterState { usage: all, forget_at, .. } = &mut *self.0.state.lock();
        if all.len() >= MAX_REMEMBERED.max(*forget_at) {
            all.retain(|_, usage| is_connected(usage));
            *forget_at = 2 * all.len(); // so that thousands of hosts are not scanned at each Connect
        }
        all.entry((subsystem.clone(), host.clone())).or_default().clone()
    }

    /// The buckets of a host: its exclusive ones first, then those of its group. And the weight of the host.
    pub(in super::super) fn classes_of(&self, host: &Nqn) -> (Vec<Arc<Class>>, u32) {
        let LimiterState { rules, classes, .. } = &mut *self.0.state.lock();
        let rules: Vec<&HostRule> = rules.of(host).collect();
        let with_rates = rules.iter().filter(|rule| rule.limits.has_rates());
        let make = |rule: &&HostRule| {
            let key = match &rule.group {
                None => Key::Host(host.clone()),
                Some(group) => Key::Group(group.clone()),
            };
            classes.class(key, rule.limits)
        };
        (with_rates.map(make).collect(), weight_of(&rules))
    }

    /// The buckets of a namespace, if it has any.
    pub(in super::super) fn class_of(&self, subsystem: &Nqn, nsid: Nsid) -> Option<Arc<Class>> {
        let LimiterState { rules, classes, .. } = &mut *self.0.state.lock();
        let limits = rules.namespaces.get(&(subsystem.clone(), nsid))?;
        let key = Key::Namespace(subsystem.clone(), nsid);
        limits.has_rates().then(|| classes.class(key, *limits))
    }

    /// The paces of hosts at namespace `nsid` of `subsystem`, for all pollers.
    pub(in super::super) fn paces_of(&self, subsystem: &Nqn, nsid: Nsid) -> Arc<Paces> {
        self.0.state.lock().paces(Key::Namespace(subsystem.clone(), nsid))
    }

    /// The paces of the hosts in a host's group, for all pollers, if the group has a rate.
    pub(in super::super) fn paces_of_group(&self, host: &Nqn) -> Option<Arc<Paces>> {
        let mut state = self.0.state.lock();
        let rule = state.rules.of(host).find(|rule| rule.group.is_some());
        let group = rule.filter(|rule| rule.limits.has_rates())?.group.clone()?;
        Some(state.paces(Key::Group(group)))
    }
}

impl LimiterState {
    /// The paces of `key`: those in use, or else new ones.
    fn paces(&mut self, key: Key) -> Arc<Paces> {
        if let Some(known) = self.paces.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        self.paces.retain(|_, known| known.strong_count() > 0);
        let made = Arc::default();
        self.paces.insert(key, Arc::downgrade(&made));
        made
    }
}

impl Classes {
    /// The buckets of `key` if they are in use and have these limits, else new ones.
    fn class(&mut self, key: Key, limits: Limits) -> Arc<Class> {
        let known = self.by_key.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.limits == limits) {
            return known;
        }
        if self.by_key.len() >= self.forget_at {
            self.by_key.retain(|_, known| known.strong_count() > 0);
            self.forget_at = 2 * self.by_key.len();
        }
        let made = Arc::new(Class::new(limits));
        self.by_key.insert(key, Arc::downgrade(&made));
        made
    }
}

impl Rules {
    /// The rules that apply to a host: the one without a group, then the one of its group.
    fn of<'a>(&'a self, host: &'a Nqn) -> impl Iterator<Item = &'a HostRule> {
        [false, true].into_iter().filter_map(move |is_group| {
            let applies = |rule: &&HostRule| {
                rule.group.is_some() == is_group && rule.hosts.iter().any(|one| one.matches(host))
            };
            self.hosts.iter().find(applies)
        })
    }
}

/// Returns whether the host is connected: a poller holds its counters.
fn is_connected(usage: &Arc<Usage>) -> bool {
    Arc::strong_count(usage) > 1
}

fn weight_of(rules: &[&HostRule]) -> u32 {
    rules.iter().find_map(|rule| rule.limits.weight).unwrap_or(DEFAULT_WEIGHT)
}

/// Number of counters below which those of hosts that have left are kept.
const MAX_REMEMBERED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
    }

    fn rule(group: Option<&str>, host: &str, limits: Limits) -> HostRule {
        let hosts = vec![format!("nqn.2026-11.io.dlfs:{host}").parse().unwrap()];
        HostRule { group: group.map(str::to_owned), hosts, limits }
    }

    #[test]
    fn hosts_of_a_group_share_its_buckets_and_have_others_to_themselves() {
        let limiter = Limiter::default();
        let fast = Limits { read_bytes: Some(1 << 30), weight: Some(7), ..Limits::default() };
        let slow = Limits { read_iops: Some(10), weight: Some(9), ..Limits::default() };
        let hosts = vec![rule(None, "a*", fast), rule(Some("all"), "*", slow)];
        limiter.set(Rules { hosts, ..Rules::default() });
        let [a1, a2, b] = ["a1", "a2", "b"].map(|name| limiter.classes_of(&nqn(name)));
        assert_eq!((a1.1, b.1), (7, 9));
        assert!(!Arc::ptr_eq(&a1.0[0], &a2.0[0]), "each host has the rate");
        assert!(Arc::ptr_eq(&a1.0[1], &a2.0[1]) && Arc::ptr_eq(&a1.0[1], &b.0[0]));
        assert_eq!(limiter.classes_of(&Nqn::new("nqn.other").unwrap()).0.len(), 0);
    }

    #[test]
    fn buckets_keep_their_state_until_their_limits_change() {
        let limiter = Limiter::default();
        let with = |read_iops| {
            let limits = Limits { read_iops: Some(read_iops), ..Limits::default() };
            Rules { hosts: vec![rule(None, "a", limits)], ..Rules::default() }
        };
        limiter.set(with(10));
        let version = limiter.version();
        let before = limiter.classes_of(&nqn("a")).0.remove(0);
        limiter.set(with(10));
        assert!(Arc::ptr_eq(&before, &limiter.classes_of(&nqn("a")).0[0]));
        limiter.set(with(11));
        assert!(!Arc::ptr_eq(&before, &limiter.classes_of(&nqn("a")).0[0]));
        assert_eq!(limiter.version(), version + 2);
    }

    #[test]
    fn a_pattern_is_an_nqn_or_its_beginning_with_a_star() {
        let pattern = |text: &str| text.parse::<HostPattern>();
        assert!(pattern("nqn.x").unwrap().matches(&Nqn::new("nqn.x").unwrap()));
        assert!(!pattern("nqn.x").unwrap().matches(&Nqn::new("nqn.xy").unwrap()));
        assert!(pattern("nqn.x*").unwrap().matches(&Nqn::new("nqn.xy").unwrap()));
        for wrong in ["*", "", "nqn.*x", "nqn.**", "nqn.x "] {
            assert!(pattern(wrong).unwrap_err().contains("beginning and a *"), "{wrong}");
        }
    }
}
