//! The cost of sleeping when idle: the latency of single reads with pauses between them, with both
//! sides backing off by default, compared with both sides spinning.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::buf::IoBuf;
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::{ConnectOptions, Io, IoOp, open};
use dlfs::units::Lba;
use hdrhistogram::Histogram;

use crate::hosts::HOST_CPU;
use crate::support::raw::RandomOffsets;
use crate::support::{self, Options, Side};

/// Prints one line for each pause.
pub(crate) fn run(options: &Options) {
    println!("{}, one for each side", support::machine());
    println!(
        "\n| pause between reads of 4 KiB | backing off: median, 99 % | target, of a core \
         | busy polling: median, 99 % | target, of a core |\n|---|---|---|---|---|"
    );
    let region = options.text("region");
    for pause_us in PAUSES_US {
        let mut columns = String::new();
        for busy in [&[][..], &["--busy-poll"]] {
            // One at a time: a spinning target would take the other's processor.
            let mut target =
                Side::start(&[&["--side", "target", "--region", region], busy].concat());
            let address = target.line();
            let pause = pause_us.to_string();
            let words = ["--side", "pause", "--address", &address, "--pause-us", &pause];
            let mut host = Side::start(&[&words, busy].concat());
            assert_eq!(host.line(), "go", "what a side says first");
            let start = Instant::now();
            let before = target.cpu_seconds();
            let latencies = host.line();
            let share = (target.cpu_seconds() - before) / start.elapsed().as_secs_f64();
            columns.push_str(&format!(" {latencies} | {:.1} % |", share * 100.0));
        }
        println!("| {} |{columns}", pause_text(pause_us));
    }
}

fn pause_text(pause_us: u64) -> String {
    match pause_us {
        0 => "none".into(),
        us if us < 1000 => format!("{us} us"),
        us => format!("{} ms", us / 1000),
    }
}

/// The measured side: reads one block, pauses, reads the next.
pub(crate) fn read_with_pauses(options: &Options) {
    support::pin(HOST_CPU);
    let address: Address = options.text("address").parse().expect("an address of this bench");
    let device = open(&address, &ConnectOptions::default()).expect("a target of this bench");
    let mut reader = OneByOne {
        group: PollGroup::new().expect("a poll group"),
        offsets: RandomOffsets::new(device.namespace().len_bytes() as usize, LEN),
        pending: VecDeque::new(),
    };
    reader.group.add(device.queue_pair().expect("a queue pair"));
    reader.group.set_busy_poll(options.is_set("busy-poll"));
    let pause = Duration::from_micros(options.number("pause-us"));
    let mut nanos = Histogram::<u64>::new(3).expect("three digits");
    let mut buf = IoBuf::zeroed(LEN);
    println!("go");
    let start = Instant::now();
    while start.elapsed() < MEASURED || nanos.len() < MIN_READS {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let asked = Instant::now();
        buf = reader.read(buf);
        nanos.record(asked.elapsed().as_nanos() as u64).expect("less than 500 years");
    }
    let us = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e3;
    println!("{:.0} us, {:.0} us", us(0.5), us(0.99));
}

struct OneByOne {
    group: PollGroup,
    offsets: RandomOffsets,
    pending: VecDeque<Io>,
}

impl OneByOne {
    fn read(&mut self, buf: IoBuf) -> IoBuf {
        let slba = Lba(self.offsets.next() as u64 / 4096);
        self.pending.push_back(Io { op: IoOp::Read, slba, buf, tag: 0 });
        assert_eq!(self.group.submit(0, &mut self.pending), 1, "a queue with room");
        let mut done = Vec::with_capacity(1);
        loop {
            let now = Instant::now();
            if self.group.poll(now, usize::MAX, &mut done) == 0 {
                self.group.wait(now + Duration::from_secs(1));
            } else if let Some((_, completion)) = done.pop() {
                completion.result.expect("a read");
                return completion.buf;
            }
        }
    }
}

const LEN: usize = 4096;
const PAUSES_US: [u64; 5] = [0, 100, 1_000, 10_000, 100_000];
const MEASURED: Duration = Duration::from_secs(2);
const MIN_READS: u64 = 100;
