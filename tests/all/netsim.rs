//! The throughput of one queue pair in simulated time: the pure connections of both sides over a link of a
//! given round trip and rate. It is the same on every machine, so that a change of planning or flow control
//! shows as a difference of `tests/golden/netsim.txt`. And the behaviour of sessions under faults:
//! `netsim/sessions.rs`.

mod ends;
mod host;
mod link;
mod oracle;
mod random;
mod run;
mod schedule;
mod sessions;
mod subsystem;
mod table;
mod target;
mod wire;
mod world;

use std::sync::OnceLock;

use run::{Outcome, Setting, Stall};
use table::DEPTHS;

type Line = [(Setting, Outcome); DEPTHS.len()];

const GOLDEN: &str = include_str!("../golden/netsim.txt");

/// All settings, run once for all tests.
fn lines() -> &'static [Line] {
    static LINES: OnceLock<Vec<Line>> = OnceLock::new();
    LINES.get_or_init(|| {
        let run = |setting: Setting| (setting, setting.run());
        table::settings().into_iter().map(|line| line.map(run)).collect()
    })
}

fn cells() -> impl Iterator<Item = &'static (Setting, Outcome)> {
    lines().iter().flatten()
}

#[test]
fn throughput_equals_the_reviewed_snapshot() {
    let text = table::text(lines());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/netsim.txt");
    if std::env::var_os("DLFS_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(path, &text).expect("the snapshot can be written");
        return;
    }
    let changed: Vec<String> = GOLDEN
        .lines()
        .zip(text.lines())
        .filter(|(old, new)| old != new)
        .map(|(old, new)| format!("- {old}\n+ {new}"))
        .collect();
    assert!(
        text == GOLDEN,
        "planning or flow control has changed, {} lines of {path}:\n{}\nIf this is wanted, write it \
         anew with `DLFS_UPDATE_GOLDEN=1 cargo test --test all netsim::` and review the difference.",
        changed.len(),
        changed.join("\n")
    );
}

#[test]
fn throughput_never_exceeds_link_and_depth() {
    for (setting, outcome) in cells() {
        assert!(outcome.took >= outcome.least, "{setting:?}: {outcome:?}");
    }
}

#[test]
fn every_setting_reaches_a_stated_share_of_what_is_possible() {
    for (setting, outcome) in cells() {
        let share = match setting.stall {
            Stall::None => SHARE,
            Stall::Link => SHARE_LINK_STOPS,
            Stall::Device => SHARE_DEVICE_STOPS,
        };
        let reached = outcome.share();
        assert!(reached >= share, "{reached:.3} of the bound, not {share}: {setting:?}");
    }
}

#[test]
fn more_depth_is_never_slower() {
    for line in lines() {
        for pair in line.windows(2) {
            let [(_, shallow), (setting, deep)] = pair else { unreachable!("windows of two") };
            let shallow = shallow.mb_per_s();
            let deep = deep.mb_per_s();
            assert!(deep >= shallow * (1.0 - NOISE), "{deep} after {shallow} MB/s: {setting:?}");
        }
    }
}

#[test]
fn a_simulation_is_repeatable() {
    let (setting, outcome) = cells().nth(30).expect("there are more");
    let again = setting.run();
    assert_eq!((again.took, again.scratch_bytes), (outcome.took, outcome.scratch_bytes));
}

/// The least fraction of the bound.
const SHARE: f64 = 0.65;
const SHARE_LINK_STOPS: f64 = 0.7;
const SHARE_DEVICE_STOPS: f64 = 0.7;

/// How much a deeper queue may differ because of the end of the run alone.
const NOISE: f64 = 0.02;
