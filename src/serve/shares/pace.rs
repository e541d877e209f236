//! The pace of hosts at a namespace or at a group's rate, on all pollers together.
//!
//! Turns ([`super::Turns`]) are those of one poller. Pollers may share what limits the hosts: the device of a
//! namespace, or the rate of a namespace or a group. A host with queues on more pollers would then get more. So
//! pollers note here the hosts whose commands wait for the device or the rate. While any host waits, commands are
//! counted, and a host may begin one only if it is not far ahead of the waiting host that has had the least. That
//! host itself may always begin one, so the device is never idle for fairness.
//!
//! While no host waits, nothing is counted: the cost is one comparison, and no lock. A host that comes back after a
//! pause starts level with the others. A poller that has commands of a waiting host notes the host again at least at
//! each of its checks of time limits. So a note that is older than [`FORGOTTEN`] is of no poller any more.
//!
//! Time is an argument, in the ticks of buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::limits::TICKS_PER_SECOND;
use super::{SCALE, VirtualTime};

/// The paces at a namespace: of reads and of writes at their rates, and of both at its device. A group has no device.
#[derive(Debug, Default)]
pub(in super::super) struct Paces {
    rates: [Pace; 2],
    device: Pace,
}

/// The progress of hosts at one limit, which pollers share.
#[derive(Debug, Default)]
struct Pace {
    /// The host of the last command that a poller looked at; 0: none yet.
    last: AtomicUsize,
    /// True while a host waits.
    is_contended: AtomicBool,
    hosts: Mutex<Hosts>,
}

/// A host on a poller.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Runner {
    /// A number that no other host has, and not 0.
    pub(in super::super) host: usize,
    pub(in super::super) weight: u32,
    pub(in super::super) poller: usize,
}

#[derive(Debug, Default)]
struct Hosts {
    by_host: BTreeMap<usize, Progress>,
    /// The waiting hosts, by what they have had.
    waiting: BTreeSet<(VirtualTime, usize)>,
    /// The least that a waiting host has had: where hosts start.
    floor: VirtualTime,
    /// The most that a host may be ahead of the floor and begin another command.
    lead: VirtualTime,
    /// A floor of the past and its time, from which the lead is computed.
    measured: (VirtualTime, u64),
}

#[derive(Debug, Default)]
struct Progress {
    /// The cost of the host's commands, divided by its weight.
    had: VirtualTime,
    /// The pollers on which it waits, a bit each.
    pollers: u64,
    /// Time of the last note that it waits.
    noted_at: u64,
}

impl Paces {
    /// Notes a command of a host; returns whether the last command, on any poller, was another host's.
    pub(in super::super) fn meets_another(&self, Runner { host, .. }: Runner) -> bool {
        let last = &self.device.last;
        last.load(Ordering::Relaxed) != host && last.swap(host, Ordering::Relaxed) != 0
    }

    /// Returns whether hosts wait, for the device or for the rate of this kind of commands.
    pub(in super::super) fn is_contended(&self, is_write: bool) -> bool {
        self.rate(is_write).is_contended() || self.device.is_contended()
    }

    /// Notes that a command of a host waits for a rate.
    pub(in super::super) fn waits_for_rate(&self, runner: Runner, is_write: bool, now: u64) {
        self.device.leaves(runner);
        self.rate(is_write).waits(runner, now);
    }

    /// Notes that a command of a host waits for the device.
    pub(in super::super) fn waits_for_device(&self, runner: Runner, is_write: bool, now: u64) {
        self.rate(is_write).leaves(runner);
        self.device.waits(runner, now);
    }

    /// Notes that no command of a host waits on this poller for the device, or for the rate of reads or of writes.
    pub(in super::super) fn leaves(&self, runner: Runner, is_write: bool) {
        self.rate(is_write).leaves(runner);
        self.device.leaves(runner);
    }

    /// Returns whether a host may begin a command now; if not, notes that the host waits.
    pub(in super::super) fn admits(&self, runner: Runner, is_write: bool, now: u64) -> bool {
        self.rate(is_write).admits(runner, now) && self.device.admits(runner, now)
    }

    /// Counts a command that begins, if hosts wait.
    pub(in super::super) fn charge(&self, runner: Runner, is_write: bool, cost: u64) {
        self.rate(is_write).charge(runner, cost);
        self.device.charge(runner, cost);
    }

    fn rate(&self, is_write: bool) -> &Pace {
        &self.rates[usize::from(is_write)]
    }
}

impl Pace {
    fn is_contended(&self) -> bool {
        self.is_contended.load(Ordering::Relaxed)
    }

    fn waits(&self, runner: Runner, now: u64) {
        self.change(|hosts| hosts.waits(runner, now));
    }

    fn leaves(&self, runner: Runner) {
        if self.is_contended() {
            self.change(|hosts| hosts.leaves(runner));
        }
    }

    fn admits(&self, runner: Runner, now: u64) -> bool {
        !self.is_contended() || self.change(|hosts| hosts.admits(runner, now))
    }

    fn charge(&self, runner: Runner, cost: u64) {
        if self.is_contended() {
            self.change(|hosts| hosts.charge(runner, cost));
        }
    }

    /// Changes the hosts under the lock, and updates `is_contended`.
    fn change<T>(&self, how: impl FnOnce(&mut Hosts) -> T) -> T {
        let mut hosts = self.hosts.lock();
        let result = how(&mut hosts);
        self.is_contended.store(!hosts.waiting.is_empty(), Ordering::Relaxed);
        result
    }
}

impl Hosts {
    fn waits(&mut self, runner: Runner, now: u64) {
        let progress = self.progress(runner.host);
        progress.noted_at = now;
        progress.pollers |= bit(runner.poller);
        let entry = (progress.had, runner.host);
        self.waiting.insert(entry);
    }

    fn leaves(&mut self, runner: Runner) {
        let Some(progress) = self.by_host.get_mut(&runner.host) else { return };
        progress.pollers &= !bit(runner.poller);
        if progress.pollers == 0 {
            self.waiting.remove(&(progress.had, runner.host));
        }
    }

    fn admits(&mut self, runner: Runner, now: u64) -> bool {
        let most = self.raise_floor(now) + self.lead;
        let is_admitted = self.progress(runner.host).had <= most;
        if !is_admitted {
            self.waits(runner, now);
        }
        is_admitted
    }

    fn charge(&mut self, runner: Runner, cost: u64) {
        let progress = self.progress(runner.host);
        let before = progress.had;
        progress.had += VirtualTime::from(cost) * SCALE / VirtualTime::from(runner.weight.max(1));
        let entry = (progress.had, runner.host);
        if self.waiting.remove(&(before, runner.host)) {
            self.waiting.insert(entry);
        }
    }

    /// The progress of a host. One that does not wait has at least what the waiting ones have had.
    fn progress(&mut self, host: usize) -> &mut Progress {
        let floor = self.floor;
        let num_hosts = self.by_host.len();
        if num_hosts.is_power_of_two() && !self.by_host.contains_key(&host) {
            self.by_host.retain(|_, known| known.pollers != 0 || known.had > floor);
        }
        let progress = self.by_host.entry(host).or_default();
        if progress.pollers == 0 {
            progress.had = progress.had.max(floor);
        }
        progress
    }

    /// Raises the floor to the waiting host that has had the least, and measures the lead; returns the floor. Hosts
    /// whose last note is too old wait no longer.
    fn raise_floor(&mut self, now: u64) -> VirtualTime {
        while let Some(&(had, host)) = self.waiting.first() {
            let progress = self.by_host.get_mut(&host).expect("waiting hosts have a progress");
            if now.saturating_sub(progress.noted_at) < FORGOTTEN {
                self.floor = had;
                break;
            }
            progress.pollers = 0;
            self.waiting.pop_first();
        }
        let (floor, since) = self.measured;
        let passed = now.saturating_sub(since);
        if passed >= MEASURED {
            self.lead = (self.floor - floor) * VirtualTime::from(LEAD) / VirtualTime::from(passed);
            self.measured = (self.floor, now);
        }
        self.floor
    }
}

/// Pollers whose numbers differ by 64 share a bit: one that leaves is noted again when the other one looks.
fn bit(poller: usize) -> u64 {
    1 << (poller % 64)
}

/// The progress of the floor in this time is the lead that a host may have: a poller that holds a host back looks
/// again several times meanwhile.
const LEAD: u64 = TICKS_PER_SECOND / 1000;
/// The time over which the progress of the floor is measured.
const MEASURED: u64 = 10 * LEAD;
/// The age at which a note that a host waits is dropped.
const FORGOTTEN: u64 = 250 * LEAD;

#[cfg(test)]
mod tests;
