//! The cost of authentication, and a check that the time of a verdict reveals nothing.
//!
//! `cargo bench --bench auth`. *Constant time*: a controller judges responses that are wrong in their first byte and
//! ones that are wrong in their last, in random turns; Welch's t of the two lists of times says whether they can be
//! told apart (as dudect does: Reparaz, Balasch, Verbauwhede, "Dude, is my code constant time?", DATE 2017). The
//! slowest hundredth, which the machine has interrupted, does not count. *Connect*: one connect after the other to a
//! target on loopback, without keys, with each group, and in both directions, in turn; beside it the exponentiations
//! alone.

#[path = "../tests/support/random.rs"]
#[allow(dead_code, unreachable_pub)] // a module of tests, of which this uses a part
mod random;
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::auth::{
    Concatenation, Controller, ControllerTerms, Group, Hash, Host, HostTerms, Message, Next,
    Randomness, Secret,
};
use dlfs::nvme::Nqn;
use dlfs::qpair::ConnectOptions;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::TcpNamespace;
use dlfs::target::{HostKeys, Target, TargetOptions};
use dlfs::units::Nsid;

use random::Random;
use support::{Options, machine, results};

fn main() -> dlfs::Result<()> {
    results::record("auth");
    let options = Options::parse(
        "What authentication costs, and whether its verdicts take a time that tells something.",
        &[("verdicts", "1M"), ("connects", "200")],
    );
    println!("{}\n", machine());
    let mut random = Random::new(24);
    println!();
    constant_time(&mut random, options.number("verdicts"));
    connects(&mut random, options.number("connects") as usize)
}

/// Judges wrong responses, and prints Welch's t for each hash.
fn constant_time(random: &mut Random, count: u64) {
    println!(
        "| verdict on a response | verdicts | wrong in the first byte | in the last | t | bar | |"
    );
    println!("|---|---|---|---|---|---|---|");
    for hash in Hash::ALL {
        let mut times: [Vec<f64>; 2] = [const { Vec::new() }; 2];
        for _ in 0..count / Hash::ALL.len() as u64 {
            let wrong_at = random.below(2) as usize;
            times[wrong_at].push(verdict(random, hash, wrong_at));
        }
        let [first, last] = times.map(without_the_slowest);
        let t = (first.mean - last.mean) / (first.of_mean + last.of_mean).sqrt();
        let met = if t.abs() < 4.5 { "met" } else { "MISSED" };
        println!(
            "| {hash} | {} | {:.1} ns | {:.1} ns | {t:.2} | < 4.5 | {met} |",
            first.count + last.count,
            first.mean,
            last.mean
        );
    }
    println!();
}

/// Nanoseconds that a controller takes for a response that is wrong in its first byte (0) or its last (1).
fn verdict(random: &mut Random, hash: Hash, wrong_at: usize) -> f64 {
    let (of_host, of_controller) = terms(random, hash, Group::Null);
    let mut controller = Controller::new(of_controller, &randomness(random));
    let (mut host, negotiate) = Host::new(of_host, &randomness(random), 1);
    let challenge = sent(controller.handle(&sent(negotiate)));
    let _ = host.sent();
    let _ = controller.sent();
    let (tid, mut reply) = Message::decode(&sent(host.handle(&challenge))).expect("the host's own");
    let Message::Reply { response, .. } = &mut reply else {
        panic!("a host answers a challenge with a reply")
    };
    let at = if wrong_at == 0 { 0 } else { response.len() - 1 };
    response[at] ^= 1;
    let reply = reply.encode(tid);
    let began = Instant::now();
    let next = controller.handle(&reply);
    let lasted = began.elapsed();
    assert!(matches!(next, Next::Send(_)), "a failure is reported");
    lasted.as_nanos() as f64
}

fn sent(next: Next) -> Vec<u8> {
    let Next::Send(message) = next else { panic!("{next:?} is no message") };
    message
}

struct Summary {
    count: usize,
    mean: f64,
    /// The variance of the mean.
    of_mean: f64,
}

fn without_the_slowest(mut times: Vec<f64>) -> Summary {
    times.sort_by(f64::total_cmp);
    times.truncate(times.len() - times.len() / 100);
    let count = times.len();
    let mean = times.iter().sum::<f64>() / count as f64;
    let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
    Summary { count, mean, of_mean: squares / (count as f64 - 1.) / count as f64 }
}

/// Connects in each way in turn, and prints the medians.
fn connects(random: &mut Random, count: usize) -> dlfs::Result<()> {
    let ways: Vec<(String, Option<(Group, bool)>)> = std::iter::once(("no keys".to_owned(), None))
        .chain([Group::Null, Group::Ffdhe2048, Group::Ffdhe3072].into_iter().flat_map(|group| {
            [false, true].map(|both| {
                let sides = if both { "both sides" } else { "the host" };
                (format!("{group:?}, {sides}"), Some((group, both)))
            })
        }))
        .collect();
    let hostnqn = Nqn::new("nqn.2026-11.io.dlfs:host").expect("a valid name");
    let secrets = [1, 2].map(|byte| Secret::generate(&[byte; 64], None));
    let mut sides = Vec::new();
    for (_, way) in &ways {
        let mut options =
            TargetOptions::new(Nqn::new("nqn.2026-11.io.dlfs:auth").expect("a valid name"));
        let mut connect =
            ConnectOptions { hostnqn: Some(hostnqn.clone()), ..ConnectOptions::default() };
        if let Some((group, both)) = *way {
            let ctrl_secret = both.then(|| secrets[1].clone());
            let keys = HostKeys {
                secrets: vec![secrets[0].clone()],
                ctrl_secret: ctrl_secret.clone(),
                ..HostKeys::default()
            };
            options.host_keys = BTreeMap::from([(hostnqn.clone(), keys)]);
            options.dhchap_groups = vec![group];
            connect.dhchap_secret = Some(secrets[0].clone());
            connect.dhchap_ctrl_secret = ctrl_secret;
        }
        let target = Target::bind(options, vec![Arc::new(MemNamespace::new(1 << 20, 4096)?)])?;
        sides.push((target, connect, Vec::new()));
    }
    for _ in 0..count {
        for (target, connect, times) in &mut sides {
            let Address::Tcp(address) = target.address(Nsid(1)) else { panic!("it serves TCP") };
            let began = Instant::now();
            let connected = TcpNamespace::connect(&address, connect)?;
            times.push(began.elapsed());
            drop(connected);
        }
    }
    println!("| connect | median | more than without keys | exponentiations a side | bar | |");
    println!("|---|---|---|---|---|---|");
    let medians: Vec<Duration> = sides.iter_mut().map(|(_, _, times)| median(times)).collect();
    for ((name, way), lasted) in ways.iter().zip(&medians) {
        let more = lasted.saturating_sub(medians[0]);
        let Some((group, _)) = *way else {
            println!("| {name} | {:.2} ms | | | | |", ms(*lasted));
            continue;
        };
        let each = exponentiations(random, group);
        let bar = each * 2 + Duration::from_millis(2);
        let met = if more <= bar { "met" } else { "MISSED" };
        println!(
            "| {name} | {:.2} ms | {:.2} ms | {:.2} ms | <= {:.2} ms | {met} |",
            ms(*lasted),
            ms(more),
            ms(each),
            ms(bar)
        );
    }
    Ok(())
}

/// The median time of the two exponentiations of one side: its public value, and what both share.
fn exponentiations(random: &mut Random, group: Group) -> Duration {
    if group == Group::Null {
        return Duration::ZERO;
    }
    let mut times: Vec<Duration> = (0..15).map(|_| authentication(random, group)).collect();
    median(&mut times)
}

/// How long the host's exponentiations of one authentication take.
fn authentication(random: &mut Random, group: Group) -> Duration {
    let (of_host, of_controller) = terms(random, Hash::Sha256, group);
    let mut controller = Controller::new(of_controller, &randomness(random));
    let (mut host, negotiate) = Host::new(of_host, &randomness(random), 1);
    let mut next = controller.handle(&sent(negotiate));
    while let Next::Compute(work) = next {
        next = controller.computed(work.compute());
    }
    let _ = host.sent();
    let mut next = host.handle(&sent(next));
    let mut lasted = Duration::ZERO;
    while let Next::Compute(work) = next {
        let began = Instant::now();
        let power = work.compute();
        lasted += began.elapsed();
        next = host.computed(power);
    }
    assert!(matches!(next, Next::Send(_)), "{next:?}");
    lasted
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn randomness(random: &mut Random) -> Randomness {
    Randomness::from_bytes(bytes(random))
}

fn bytes<const N: usize>(random: &mut Random) -> [u8; N] {
    let mut bytes = [0; N];
    random.fill(&mut bytes);
    bytes
}

/// Terms of two that know each other.
fn terms(random: &mut Random, hash: Hash, group: Group) -> (HostTerms, ControllerTerms) {
    let nqn = |name| Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).expect("a valid name");
    let secret = Secret::generate(&bytes(random), None);
    let host = HostTerms {
        hostnqn: nqn("host"),
        subnqn: nqn("subsystem"),
        secret: secret.clone(),
        ctrl_secret: None,
        hashes: vec![hash],
        groups: vec![group],
        concatenation: Concatenation::No,
    };
    let controller = ControllerTerms {
        hostnqn: nqn("host"),
        subnqn: nqn("subsystem"),
        secrets: vec![secret],
        ctrl_secret: None,
        hashes: vec![hash],
        groups: vec![group],
        concatenation: Concatenation::No,
    };
    (host, controller)
}
