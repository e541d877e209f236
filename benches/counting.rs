//! The cost of counting a command: its place in the queue of tags, the time of its submission, and its latency.
//!
//! `cargo bench --bench counting -- [COMMANDS]`, by default 20 million. Commands pass through a queue of 128, as
//! those of an I/O queue do; a turn submits and completes 1, 8 or 32 of them and reads the clock once, as the
//! pump does. The first column does the same without counting; the clock is read in both.
//!
//! Limit: 14 ns a command.

#[path = "support/results.rs"]
mod results;

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use dlfs::metrics::Recorder;

/// Outstanding commands.
const DEPTH: usize = 128;

fn main() {
    results::record("counting");
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    let commands = argument.map_or(20_000_000, |text| {
        text.parse::<usize>().expect("the argument is the number of commands")
    });
    println!("| commands a turn | without, ns a command | with, ns a command | counting, ns |");
    println!("|---|---|---|---|");
    for burst in [1, 8, 32] {
        // In turn, and the best of each, as other programs only add time.
        let mut plain_ns = f64::MAX;
        let mut counted_ns = f64::MAX;
        for _ in 0..5 {
            plain_ns = plain_ns.min(run(commands, burst, None));
            counted_ns = counted_ns.min(run(commands, burst, Some(&Recorder::default())));
        }
        let cost_ns = counted_ns - plain_ns;
        println!("| {burst} | {plain_ns:.1} | {counted_ns:.1} | {cost_ns:.1} |");
    }
}

/// Nanoseconds for each command.
fn run(commands: usize, burst: usize, recorder: Option<&Recorder>) -> f64 {
    let mut submitted: Vec<Option<Instant>> = vec![None; DEPTH];
    let mut queued = VecDeque::new();
    let mut outstanding = VecDeque::new();
    let mut next = 0;
    let began = Instant::now();
    for _ in 0..commands / burst {
        let now = Instant::now();
        for _ in 0..burst {
            let tag = black_box(next % DEPTH);
            next += 1;
            if recorder.is_some() {
                queued.push_back(tag);
            }
            outstanding.push_back(tag);
        }
        for tag in queued.drain(..) {
            submitted[tag] = Some(now);
        }
        while outstanding.len() > DEPTH - burst {
            let tag = black_box(outstanding.pop_front()).expect("it is not empty");
            if let Some(recorder) = recorder {
                let since = submitted[tag].unwrap_or(now);
                recorder.record(now.saturating_duration_since(since));
            }
        }
    }
    let per_command_ns = began.elapsed().as_nanos() as f64 / commands as f64;
    assert!(recorder.is_none_or(|recorder| recorder.read().count() as usize > commands - DEPTH));
    per_command_ns
}
