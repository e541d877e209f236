//! The shares of hosts at a limit that two to four pollers share, in simulated time.

use std::collections::VecDeque;

use super::super::limits::{Class, Limits};
use super::super::{Blocked, Flow, Turns};
use super::*;

const MS: u64 = TICKS_PER_SECOND / 1000;
/// A poller looks every 200 µs, each at its own time.
const STEP: u64 = MS / 20;
const STEPS_OF_LOOK: u64 = 4;
/// The bytes that a poller lets to the device.
const WINDOW: u64 = 1 << 20;

/// The limit that pollers share.
enum Limit {
    Rate(Class),
    /// A device that serves its I/Os in the order of their arrival: so many bytes each step.
    Device {
        speed: u64,
        credit: u64,
        queue: VecDeque<(usize, u64)>,
    },
}

/// A host: its weight, the bytes of a command, its pollers, and the times, in steps, between which its commands wait.
#[derive(Clone)]
struct Host {
    weight: u32,
    len: u32,
    pollers: Vec<usize>,
    waits: (u64, u64),
}

fn host(weight: u32, len: u32, pollers: &[usize]) -> Host {
    Host { weight, len, pollers: pollers.to_vec(), waits: (0, u64::MAX) }
}

fn reads_a_second(read_iops: u64) -> Limit {
    Limit::Rate(Class::new(Limits { read_iops: Some(read_iops), ..Limits::default() }))
}

fn device(bytes_a_second: u64) -> Limit {
    Limit::Device { speed: bytes_a_second / 20_000, credit: 0, queue: VecDeque::new() }
}

struct Run {
    pace: Pace,
    limit: Limit,
    hosts: Vec<Host>,
    turns: Vec<Turns>,
    open: Vec<u64>,
    /// The cost of each host's commands that have begun.
    got: Vec<u64>,
    step: u64,
}

impl Run {
    fn new(limit: Limit, hosts: &[Host]) -> Run {
        let num_pollers = 1 + hosts.iter().flat_map(|host| &host.pollers).max().unwrap();
        let mut turns: Vec<Turns> = (0..num_pollers).map(|_| Turns::default()).collect();
        for (number, host) in hosts.iter().enumerate() {
            for &poller in &host.pollers {
                turns[poller].set_weight(number, host.weight);
                turns[poller].enter(Flow { host: number, namespace: 0, connection: number });
            }
        }
        let open = vec![0; num_pollers];
        let got = vec![0; hosts.len()];
        Run { pace: Pace::default(), limit, hosts: hosts.to_vec(), turns, open, got, step: 0 }
    }

    /// Runs for so many milliseconds; returns what each host got meanwhile.
    fn go_on(&mut self, ms: u64) -> Vec<u64> {
        let before = self.got.clone();
        for _ in 0..ms * 20 {
            self.step += 1;
            if let Limit::Device { speed, credit, queue } = &mut self.limit {
                *credit += *speed;
                while queue.front().is_some_and(|(_, len)| *len <= *credit) {
                    let (poller, len) = queue.pop_front().unwrap();
                    *credit -= len;
                    self.open[poller] -= len;
                }
                *credit = if queue.is_empty() { 0 } else { *credit };
            }
            let looks = |poller: &usize| (self.step + *poller as u64).is_multiple_of(STEPS_OF_LOOK);
            for poller in (0..self.turns.len()).filter(looks).collect::<Vec<_>>() {
                self.look(poller);
            }
        }
        self.got.iter().zip(before).map(|(got, before)| got - before).collect()
    }

    fn look(&mut self, poller: usize) {
        let now = 1000 * MS + self.step * STEP;
        let mut turns = std::mem::take(&mut self.turns[poller]);
        while let Some(turn) = turns.next() {
            let number = turn.flow.host;
            let Host { weight, len, waits: (from, to), .. } = self.hosts[number];
            let runner = Runner { host: number + 1, weight, poller };
            if !(from..to).contains(&self.step) {
                self.pace.leaves(runner);
                turns.postpone(turn, Blocked::Namespace);
                continue;
            }
            let has_room = match &self.limit {
                Limit::Rate(class) => class.ready_at(false) <= now,
                Limit::Device { .. } => self.open[poller] < WINDOW,
            };
            if !has_room {
                self.pace.waits(runner, now);
            }
            if !has_room || !self.pace.admits(runner, now) {
                turns.postpone(turn, Blocked::Namespace);
                continue;
            }
            match &mut self.limit {
                Limit::Rate(class) => class.take(false, len, now),
                Limit::Device { queue, .. } => queue.push_back((poller, len.into())),
            }
            self.open[poller] += u64::from(len);
            let cost = u64::from(len) + 4096;
            self.got[number] += cost;
            self.pace.charge(runner, cost);
            turns.served(turn, cost, Some(0));
        }
        turns.end_round();
        self.turns[poller] = turns;
    }
}

fn assert_close(found: u64, expected: u64, what: &str) {
    let [found, expected] = [found, expected].map(|value| value as f64);
    assert!((found / expected - 1.0).abs() < 0.05, "{what}: {found} instead of {expected}");
}

#[test]
fn a_host_on_more_pollers_gets_no_more_of_a_rate() {
    for rate in [400, 20_000, 100_000] {
        for pollers in [2, 3, 4] {
            let all: Vec<usize> = (0..pollers).collect();
            let mut run =
                Run::new(reads_a_second(rate), &[host(100, 4096, &all), host(100, 4096, &[0])]);
            let _ = run.go_on(100);
            let got = run.go_on(1000);
            let what = format!("{rate} reads a second, {pollers} pollers");
            assert_close(got[0], got[1], &what);
            assert_close(got[0] + got[1], rate * 8192, &what);
        }
    }
}

#[test]
fn a_host_on_more_pollers_gets_no_more_of_a_device_which_is_never_idle() {
    for speed in [200_000_000, 1_000_000_000, 3_000_000_000] {
        for pollers in [2, 3, 4] {
            let all: Vec<usize> = (0..pollers).collect();
            let hosts = [host(100, 1 << 20, &all), host(100, 128 << 10, &[pollers - 1])];
            let mut run = Run::new(device(speed), &hosts);
            let _ = run.go_on(100);
            let got = run.go_on(1000);
            let what = format!("{speed} B/s, {pollers} pollers");
            assert_close(got[0], got[1], &what);
            assert_close(got[0] + got[1], speed, &what);
        }
    }
}

#[test]
fn weights_hold_across_pollers() {
    let hosts =
        [host(100, 64 << 10, &[0, 1, 2, 3]), host(300, 4096, &[1]), host(200, 1 << 20, &[2, 3])];
    for limit in [device(1_000_000_000), reads_a_second(50_000)] {
        let mut run = Run::new(limit, &hosts);
        let _ = run.go_on(100);
        let got = run.go_on(2000);
        assert_close(got[1], 3 * got[0], "300 to 100");
        assert_close(got[2], 2 * got[0], "200 to 100");
    }
}

#[test]
fn fifty_hosts_on_any_pollers_get_the_same() {
    let on = |number: usize| (0..=number % 4).collect::<Vec<_>>();
    let hosts: Vec<Host> = (0..50).map(|number| host(100, 16 << 10, &on(number))).collect();
    let mut run = Run::new(device(2_000_000_000), &hosts);
    let _ = run.go_on(100);
    let got = run.go_on(1000);
    let mean = got.iter().sum::<u64>() / 50;
    got.iter().for_each(|&one| assert_close(one, mean, &format!("{got:?}")));
}

#[test]
fn a_pause_saves_nothing_up_and_leaves_everything_to_the_others() {
    let mut hosts = [host(100, 128 << 10, &[0, 1, 2]), host(100, 128 << 10, &[0])];
    hosts[1].waits = (2001, 40_000);
    let mut run = Run::new(device(1_000_000_000), &hosts);
    let first = run.go_on(100);
    assert_eq!(first[1], 0);
    assert_close(first[0], 103_000_000, "alone");
    let _ = run.go_on(100);
    let both = run.go_on(1500);
    assert_close(both[0], both[1], "together");
    let _ = run.go_on(400);
    let alone = run.go_on(500);
    assert_eq!(alone[1], 0);
    assert_close(alone[0], 515_000_000, "alone again");
}

#[test]
fn a_host_that_is_gone_without_a_word_holds_the_others_back_for_a_quarter_of_a_second() {
    let pace = Pace::default();
    let [gone, here] = [1, 2].map(|host| Runner { host, weight: 100, poller: host });
    pace.waits(gone, 0);
    pace.waits(here, 0);
    assert!(pace.is_contended() && pace.admits(here, 1));
    pace.charge(here, 1 << 20);
    assert!(!pace.admits(here, FORGOTTEN - 1));
    assert!(pace.admits(here, FORGOTTEN), "it has not waited for so long");
    pace.leaves(here);
    assert!(!pace.is_contended(), "nobody waits");
}

#[test]
fn a_host_waits_until_it_has_left_all_its_pollers_and_is_forgotten_behind_the_others() {
    let pace = Pace::default();
    let on = |host: usize, poller: usize| Runner { host, weight: 0, poller };
    pace.waits(on(1, 0), 0);
    pace.waits(on(1, 1), 0);
    pace.leaves(on(1, 0));
    assert!(pace.is_contended());
    pace.leaves(on(1, 1));
    pace.leaves(on(1, 1));
    assert!(!pace.is_contended());
    for host in 2..10_000 {
        pace.waits(on(host, 0), 0);
        pace.leaves(on(host, 0));
    }
    assert!(pace.hosts.lock().by_host.len() < 10);
}
