//! A poller's use of shares and limits: the commands that may begin now, and those that wait for a turn.
//!
//! While one host uses a poller and nothing is limited, every command begins at once: it costs a few
//! comparisons, and no lock. A command of another host than the last one makes hosts take turns for [`MIXED`]. They do
//! so at two places, since either may be what limits the target. At the first, commands begin in turns, and only while
//! few bytes are at the namespace's device (`NamespaceQueue::open_limit`): more commands would wait there in the order
//! of their arrival, behind all of a greedy host. Long reads begin in pieces of at most [`PIECE_BYTES`]. At the second,
//! responses are sent in turns of at most [`SLICE_BYTES`]. So the poller looks at other hosts in between.
//!
//! Commands wait in the lines of their connection, without memory, as they do for memory. So as many wait as
//! the host's queue has entries, and other connections are received from. Turns are those of one poller; where
//! a namespace's device or rate or a group's rate is the limit, `shares/pace.rs` keeps hosts in step across pollers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::hosts::HostId;
use super::shares::limits::{Class, TICKS_PER_NANOSECOND};
use super::shares::pace::{Paces, Runner};
use super::shares::rules::{Limiter, Usage};
use super::shares::{DEFAULT_WEIGHT, Flow, Turns};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::Nqn;

/// The hosts of a poller, their limits, and their turns.
#[derive(Debug)]
pub(super) struct Sharing {
    limiter: Limiter,
    subsystem: Nqn,
    /// The number of this poller, and how many there are.
    poller: (usize, usize),
    /// The version of the limiter's rules in use.
    version: u64,
    /// The hosts by [`HostId`]; `None` for the discovery service, and for indices that no host has.
    hosts: Vec<Option<HostShare>>,
    /// Connections with commands that wait to begin.
    pub(super) starts: Turns,
    /// Connections with bytes to send, if there are more than fit into one iteration.
    pub(super) sends: Turns,
    /// True while several hosts use the poller.
    pub(super) is_mixed: bool,
    /// Time at which that ends, unless another host has a command before.
    mixed_until: Instant,
    /// The host of the last command.
    last: Option<HostId>,
    /// Earliest time at which a limit may let a waiting command begin, or at which paces are looked at again.
    pub(super) wake_at: Option<Instant>,
    /// Hosts with counts that are not published yet.
    touched: Vec<usize>,
}

#[derive(Debug)]
struct HostShare {
    nqn: Nqn,
    /// The host's own buckets, then those of its group.
    classes: Vec<Arc<Class>>,
    /// The paces of the group's hosts, if it has buckets.
    group: Option<Arc<Paces>>,
    weight: u32,
    usage: Arc<Usage>,
    /// Counts since they were last published: reads, bytes read, writes, bytes written.
    counts: [u64; 4],
    /// True while the host is in [`Sharing::touched`].
    is_touched: bool,
    /// Time since which a limit keeps commands waiting.
    throttled_since: Option<Instant>,
}

impl Sharing {
    pub(super) fn new(limiter: Limiter, subsystem: Nqn, poller: (usize, usize)) -> Sharing {
        Sharing {
            version: limiter.version(),
            limiter,
            subsystem,
            poller,
            hosts: Vec::new(),
            starts: Turns::default(),
            sends: Turns::default(),
            is_mixed: false,
            mixed_until: Instant::now(),
            last: None,
            wake_at: None,
            touched: Vec::new(),
        }
    }

    /// The buckets of a namespace.
    pub(super) fn class_of(&self, nsid: Nsid) -> Option<Arc<Class>> {
        self.limiter.class_of(&self.subsystem, nsid)
    }

    /// The paces of hosts at a namespace; `None`: no other poller serves it.
    pub(super) fn paces_of(&self, nsid: Nsid) -> Option<Arc<Paces>> {
        (self.poller.1 > 1).then(|| self.limiter.paces_of(&self.subsystem, nsid))
    }

    /// The host on this poller, as paces know it.
    pub(super) fn runner(&self, host: HostId) -> Option<Runner> {
        self.hosts[host.0].as_ref().map(|share| share.runner(self.poller.0))
    }

    /// The time of `now` for paces.
    pub(super) fn ticks(&self, now: Instant) -> u64 {
        self.limiter.ticks(now)
    }

    /// Adds a host with its first queue on this poller. The discovery service has no commands to limit.
    pub(super) fn enter(&mut self, host: HostId, nqn: &Nqn) {
        if self.hosts.len() <= host.0 {
            self.hosts.resize_with(host.0 + 1, || None);
        }
        if self.hosts[host.0].is_none() && nqn.as_str() != Nqn::DISCOVERY {
            self.hosts[host.0] = Some(HostShare {
                nqn: nqn.clone(),
                classes: Vec::new(),
                group: None,
                weight: DEFAULT_WEIGHT,
                usage: self.limiter.usage_of(&self.subsystem, nqn),
                counts: [0; 4],
                is_touched: false,
                throttled_since: None,
            });
            self.apply_rules(host.0);
        }
    }

    /// Removes a host with its last queue.
    pub(super) fn leave(&mut self, host: HostId) {
        self.publish_counts();
        self.hosts[host.0] = None;
        self.last = self.last.filter(|last| *last != host);
    }

    /// Removes a connection that closes.
    pub(super) fn forget(&mut self, index: usize, host: Option<HostId>) {
        let lines = [0, 1].map(|line| Flow::connection_of(index, line));
        for turns in [&mut self.starts, &mut self.sends] {
            turns.leave(|connection| lines.contains(&connection));
        }
        if let Some(share) = host.and_then(|host| self.hosts[host.0].as_mut()) {
            share.throttled_since = None;
        }
    }

    /// Gives a host the buckets, paces and weight of the current rules.
    fn apply_rules(&mut self, host: usize) {
        let Some(share) = &mut self.hosts[host] else { return };
        let (classes, weight) = self.limiter.classes_of(&share.nqn);
        (share.classes, share.weight) = (classes, weight);
        share.group = self.limiter.paces_of_group(&share.nqn);
        for turns in [&mut self.starts, &mut self.sends] {
            turns.set_weight(host + 1, weight);
        }
    }

    /// Notes that a command of `host` has arrived.
    pub(super) fn note(&mut self, host: HostId, now: Instant) {
        if self.last != Some(host) {
            if self.last.is_some() {
                self.mixed_until = now + MIXED;
                self.is_mixed = true;
            }
            self.last = Some(host);
        }
    }

    /// Follows the limiter's rules; returns whether they have changed.
    pub(super) fn follow_rules(&mut self) -> bool {
        let version = self.limiter.version();
        let is_new = version != self.version;
        if is_new {
            self.version = version;
            (0..self.hosts.len()).for_each(|host| self.apply_rules(host));
        }
        is_new
    }

    /// Ends taking turns if one host has been alone for a while; returns whether it does.
    pub(super) fn unmix(&mut self, now: Instant) -> bool {
        let ends = self.is_mixed && now >= self.mixed_until;
        self.is_mixed &= !ends;
        ends
    }

    /// Returns whether rate limits and paces, those of the namespace included, let a command of `host` begin now. If
    /// they do not, sets [`Sharing::wake_at`], and notes with the paces what the host waits for. A limited command also
    /// waits while others wait for turns.
    pub(super) fn is_within_limits(
        &mut self,
        host: HostId,
        (namespace, paces): (Option<&Class>, Option<&Paces>),
        is_write: bool,
        now: Instant,
    ) -> bool {
        let Some(share) = &mut self.hosts[host.0] else { return true };
        let is_paced = paces.is_some_and(|paces| paces.is_contended(is_write));
        if share.classes.is_empty() && namespace.is_none() && !is_paced {
            return true;
        }
        let ticks = self.limiter.ticks(now);
        let ready_at = |classes: &[Arc<Class>]| {
            classes.iter().map(|class| class.ready_at(is_write)).max().unwrap_or(0)
        };
        let num_own = share.classes.len() - usize::from(share.group.is_some());
        let (own, grouped) = share.classes.split_at(num_own);
        let [own, grouped] = [own, grouped].map(ready_at);
        let shared = namespace.map_or(0, |class| class.ready_at(is_write));
        let wait = own.max(grouped).max(shared).saturating_sub(ticks);
        let mut look = Duration::from_nanos(wait.div_ceil(TICKS_PER_NANOSECOND));
        if wait > 0 {
            share.throttled_since.get_or_insert(now);
        }
        let runner = share.runner(self.poller.0);
        let mut waits_elsewhere = own > ticks;
        let group = share.group.as_deref();
        // Paces know the host as waiting at one rate only: the group's or the namespace's, whichever is ready last.
        for (paces, ready, other) in [(group, grouped, shared), (paces, shared, grouped)] {
            let Some(paces) = paces else { continue };
            if waits_elsewhere || other > ready.max(ticks) {
                paces.leaves(runner, is_write);
            } else if ready > ticks {
                paces.waits_for_rate(runner, is_write, ticks);
            } else if !paces.admits(runner, is_write, ticks) {
                look = HELD_BACK;
                waits_elsewhere = true;
            }
        }
        if !look.is_zero() {
            let ready = now + look;
            self.wake_at = Some(self.wake_at.map_or(ready, |at| at.min(ready)));
        }
        look.is_zero() && self.starts.is_empty()
    }

    /// Charges limits and paces for a command of `len` bytes that begins.
    pub(super) fn charge(
        &mut self,
        host: HostId,
        (namespace, paces): (Option<&Class>, Option<&Paces>),
        (is_write, len): (bool, u32),
        now: Instant,
    ) {
        let Some(share) = &mut self.hosts[host.0] else { return };
        for paces in share.group.as_deref().into_iter().chain(paces) {
            paces.charge(share.runner(self.poller.0), is_write, cost_of(len as usize));
        }
        if share.classes.is_empty() && namespace.is_none() {
            return;
        }
        let ticks = self.limiter.ticks(now);
        share.all(namespace).for_each(|class| class.take(is_write, len, ticks));
        if let Some(since) = share.throttled_since.take() {
            let throttled = now.saturating_duration_since(since).as_nanos() as u64;
            share.usage.throttled_ns.fetch_add(throttled, Ordering::Relaxed);
        }
    }

    /// Notes that no command of `host` waits for the rate of its group, so far as this poller knows.
    pub(super) fn leave_group(&self, host: HostId, is_write: bool) {
        if let Some(share) = &self.hosts[host.0]
            && let Some(group) = &share.group
        {
            group.leaves(share.runner(self.poller.0), is_write);
        }
    }

    /// Counts a command that has succeeded.
    pub(super) fn count(&mut self, host: HostId, is_write: bool, len: u64) {
        let Some(share) = &mut self.hosts[host.0] else { return };
        let first = 2 * usize::from(is_write);
        share.counts[first] += 1;
        share.counts[first + 1] += len;
        if !std::mem::replace(&mut share.is_touched, true) {
            self.touched.push(host.0);
        }
    }

    /// Adds this iteration's counts to those that all pollers share.
    pub(super) fn publish_counts(&mut self) {
        for host in self.touched.drain(..) {
            let Some(share) = &mut self.hosts[host] else { continue };
            share.is_touched = false;
            for (counter, count) in share.usage.counts.iter().zip(&mut share.counts) {
                if *count > 0 {
                    counter.fetch_add(std::mem::take(count), Ordering::Relaxed);
                }
            }
        }
    }
}

impl HostShare {
    fn runner(&self, poller: usize) -> Runner {
        Runner { host: Arc::as_ptr(&self.usage).addr(), weight: self.weight, poller }
    }

    /// The buckets of the host, its group and a namespace.
    fn all<'a>(&'a self, namespace: Option<&'a Class>) -> impl Iterator<Item = &'a Class> {
        self.classes.iter().map(|class| &**class).chain(namespace)
    }
}

/// The cost of a turn that moves `len` bytes: a command of no bytes takes as long as some bytes do.
pub(super) fn cost_of(len: usize) -> u64 {
    (COMMAND_BYTES + len) as u64
}

/// The cost of a command without data, in bytes.
const COMMAND_BYTES: usize = 4096;
/// Bytes of the longest turn of sending. Sending takes about twice as long as copying from the page cache, which takes
/// 140 µs for 1 MiB. So a turn of sending, or of reading [`PIECE_BYTES`], takes less than 20 µs.
pub(super) const SLICE_BYTES: usize = 64 << 10;
/// Bytes of the longest turn of reading; a multiple of all block lengths.
pub(super) const PIECE_BYTES: u32 = 128 << 10;
/// The time for which hosts take turns after commands of two of them.
pub(super) const MIXED: Duration = Duration::from_secs(1);
/// The time after which a poller looks again whether a host that is ahead of others may go on.
const HELD_BACK: Duration = Duration::from_micros(200);
