//! The snapshot's text: a table of settings, reached throughput, and bound.

use std::fmt::Write as _;

use super::link::{PS_PER_US, WINDOW_BYTES};
use super::run::{Kind, Outcome, Setting, Stall};

pub(crate) const WORKLOADS: [(Kind, usize); 6] = [
    (Kind::Read, 4 << 10),
    (Kind::Read, 128 << 10),
    (Kind::Read, 1 << 20),
    (Kind::WriteInCapsule, 4 << 10),
    (Kind::WriteByR2t, 128 << 10),
    (Kind::WriteByR2t, 1 << 20),
];
pub(crate) const DEPTHS: [u16; 4] = [1, 8, 32, 128];
pub(crate) const RTTS_US: [u64; 3] = [10, 100, 1_000];
pub(crate) const RATES: [u64; 3] = [1, 10, 100];

/// All settings of the snapshot in its order: a line has all depths.
pub(crate) fn settings() -> Vec<[Setting; DEPTHS.len()]> {
    let line = |(kind, len), gbit_per_s, rtt_us, stall| {
        let rtt = rtt_us * PS_PER_US;
        DEPTHS.map(|depth| Setting { kind, len, depth, rtt, gbit_per_s, stall })
    };
    let mut lines = Vec::new();
    for workload in WORKLOADS {
        for gbit_per_s in RATES {
            lines.extend(RTTS_US.map(|rtt_us| line(workload, gbit_per_s, rtt_us, Stall::None)));
        }
        lines.extend([Stall::Link, Stall::Device].map(|stall| line(workload, 10, 100, stall)));
    }
    lines
}

/// The whole snapshot.
pub(crate) fn text(lines: &[[(Setting, Outcome); DEPTHS.len()]]) -> String {
    let mut text = introduction();
    let mut last = None;
    for line in lines {
        let setting = line[0].0;
        if last != Some((setting.kind, setting.len)) {
            last = Some((setting.kind, setting.len));
            heading(&mut text, &setting);
        }
        let speed = line.map(|(_, outcome)| speed_cell(&outcome)).join(" ");
        writeln!(
            text,
            "{:>8} us {:>4} Gbit/s  {:<14} {speed}",
            setting.rtt / PS_PER_US,
            setting.gbit_per_s,
            stall_name(setting.stall)
        )
        .expect("a String takes it");
    }
    text += "\nCalls that moved bytes, and bytes that the host received elsewhere than in their place\n\
             (headers included), per command; round trip 100 us, 10 Gbit/s.\n\n";
    writeln!(
        text,
        "{:<24} {:>5}  {:>12} {:>12} {:>12} {:>14} {:>14}",
        "", "depth", "host sends", "receives", "target sends", "receives", "copied bytes"
    )
    .expect("a String takes it");
    let counted = |setting: &Setting| {
        setting.rtt == 100 * PS_PER_US && setting.gbit_per_s == 10 && setting.stall == Stall::None
    };
    for (setting, outcome) in lines.iter().flatten().filter(|(setting, _)| counted(setting)) {
        let per = |count: u64| count as f64 / outcome.num_commands as f64;
        writeln!(
            text,
            "{:<24} {:>5}  {:>12.3} {:>12.3} {:>12.3} {:>14.3} {:>14.1}",
            name(setting),
            setting.depth,
            per(outcome.host_sends),
            per(outcome.host_receives),
            per(outcome.target_sends),
            per(outcome.target_receives),
            per(outcome.scratch_bytes)
        )
        .expect("a String takes it");
    }
    text
}

fn introduction() -> String {
    format!(
        "Throughput of one queue pair in simulated time: the library's host connection and controller\n\
         connection with the limits of their pumps, on a link of this round trip and rate. Each cell is\n\
         MB/s of payload, the most that link and depth allow, and the share reached in %. The most is\n\
         the smaller of rate after headers and depth x size / (round trips + sending of one command),\n\
         counted for the commands of the run, its start and end included; a write by R2T takes two\n\
         round trips. A call costs either side 1 us, a byte nothing. The window is {} MiB.\n\
         \"link stops\" and \"device stops\": for 2 ms of every 10.\n",
        WINDOW_BYTES >> 20
    )
}

fn heading(text: &mut String, setting: &Setting) {
    let depths = DEPTHS.map(|depth| format!("{:>25}", format!("depth {depth}"))).join(" ");
    write!(text, "\n{:<40}{depths}\n", name(setting)).expect("a String takes it");
}

fn name(setting: &Setting) -> String {
    let size = match setting.len >> 20 {
        0 => format!("{} KiB", setting.len >> 10),
        mib => format!("{mib} MiB"),
    };
    match setting.kind {
        Kind::Read => format!("read {size}"),
        Kind::WriteInCapsule => format!("write {size} in capsule"),
        Kind::WriteByR2t => format!("write {size} by R2T"),
    }
}

fn stall_name(stall: Stall) -> &'static str {
    match stall {
        Stall::None => "",
        Stall::Link => "link stops",
        Stall::Device => "device stops",
    }
}

fn speed_cell(outcome: &Outcome) -> String {
    let speed = outcome.mb_per_s();
    let bound = outcome.bound_mb_per_s();
    format!("{speed:>9.1} {bound:>9.1} {:>5.1}", outcome.share() * 100.0)
}
