//! Our host on our target over loopback, against raw TCP with the same messages in the same run.

mod support;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::buf::{HugePages, Pool, PoolOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device, Io, IoOp, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Lba, Nsid};
use support::raw::{self, Rate};
use support::{Options, Side, Stopwatch};

const USAGE: &str = "cargo bench --bench loopback -- [--seconds S] [--rounds N] [--hdr-digest 1] [--data-digest 1]

Host and target are processes of their own, each on one processor. The target serves --region bytes
of memory; the host reads at random places into a pool of --pool bytes. Each round first runs raw TCP
(see raw_tcp) with the same sizes, on the same processors. --case LEN,DEPTH runs that one alone.";

fn main() {
    let options = Options::parse(
        USAGE,
        &[
            ("region", "1G"),
            ("pool", "16M"),
            ("seconds", "2"),
            ("rounds", "3"),
            ("case", ""),
            ("hdr-digest", "0"),
            ("data-digest", "0"),
            ("side", ""),
            ("len", "128K"),
            ("burst", "32"),
        ],
    );
    match options.text("side") {
        "" => run(&options),
        side => {
            std::thread::spawn(|| {
                support::wait_for_end_of_input();
                std::process::exit(0);
            });
            support::pin(1);
            let number = |name| options.number(name) as usize;
            match side {
                "sender" => raw::send_forever(number("region"), number("len"), number("burst")),
                _ => serve_forever(options.number("region")),
            }
        }
    }
}

fn run(options: &Options) {
    println!("{}", support::machine());
    support::pin(0);
    println!(
        "{:<10}{:>9}{:>7}{:>12}{:>10}{:>22}{:>9}",
        "", "bytes", "depth", "reads/s", "MB/s", "CPU s/GB host+target", "of raw"
    );
    let one_case: Vec<usize> =
        options.text("case").split(',').filter_map(|number| number.parse().ok()).collect();
    let cases = match one_case[..] {
        [len, depth] => vec![(len, depth)],
        _ => vec![(131_072, 32), (4096, 32), (4096, 128)],
    };
    for (len, depth) in cases {
        let mut ratios: Vec<f64> = Vec::new();
        for _ in 0..options.number("rounds") {
            let raw = raw_round(options, len, depth);
            show("raw TCP", len, depth, raw, None);
            let ours = our_round(options, len, depth);
            let ratio = ours.mb_s / raw.mb_s;
            show("dlfs", len, depth, ours, Some(ratio));
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        println!("{len} bytes at depth {depth}: {:.0} % of raw TCP (median)\n", median * 100.0);
    }
}

fn show(name: &str, len: usize, depth: usize, rate: Rate, ratio: Option<f64>) {
    let Rate { messages_s, mb_s, cpu_s_gb: (host, target) } = rate;
    let ratio = ratio.map(|ratio| format!("{:.0} %", ratio * 100.0)).unwrap_or_default();
    println!(
        "{name:<10}{len:>9}{depth:>7}{messages_s:>12.0}{mb_s:>10.0}{host:>14.3}{target:>8.3}{ratio:>9}"
    );
}

fn raw_round(options: &Options, len: usize, depth: usize) -> Rate {
    let (len_text, burst, region) = (len.to_string(), depth.to_string(), options.text("region"));
    let arguments = ["--side", "sender", "--region", region, "--len", &len_text, "--burst", &burst];
    let mut sender = Side::start(&arguments);
    let port = sender.line().parse().expect("a port");
    let limit = Duration::from_secs(options.number("seconds"));
    raw::receive(port, options.number("pool") as usize, len, limit, &sender).expect("loopback")
}

/// The target's side: prints its address and serves until this process is ended.
fn serve_forever(region: u64) {
    let device = MemNamespace::new(region, 4096).expect("memory for the namespace");
    let mut io = Blocking::new(device.queue_pair().expect("a queue pair")).expect("a poll group");
    for offset in (0..region).step_by(1 << 20) {
        io.write_at(offset, &[(offset >> 20) as u8; 1 << 20]).expect("a write to memory");
    }
    let nqn = "nqn.2026-11.io.dlfs:loopback".parse().expect("a valid name");
    let target = Target::bind(TargetOptions::new(nqn), vec![Arc::new(device.read_only())]);
    let target = target.expect("a free port");
    println!("{}", target.address(Nsid(1)));
    loop {
        std::thread::park();
    }
}

fn our_round(options: &Options, len: usize, depth: usize) -> Rate {
    let mut target = Side::start(&["--side", "target", "--region", options.text("region")]);
    let address = target.line().parse().expect("an address");
    let connect = ConnectOptions {
        nr_io_queues: 1,
        queue_size: u16::try_from(depth + 1).expect("a depth that a queue can have"),
        hdr_digest: options.number("hdr-digest") == 1,
        data_digest: options.number("data-digest") == 1,
        ..ConnectOptions::default()
    };
    let device = open(&address, &connect).expect("the target was started");
    let bytes = options.number("pool") as usize;
    let (slot_len_bytes, huge_pages) = (len, HugePages::Auto);
    let pool = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages }).expect("memory");
    let mut reader = Reader::new(&*device, pool, len, depth);
    reader.read(Duration::from_millis(100), &target); // connections and memory are warm
    reader.read(Duration::from_secs(options.number("seconds")), &target)
}

/// Reads at random places, `depth` at a time.
struct Reader {
    group: PollGroup,
    pool: Pool,
    len: usize,
    blocks: u64,
    places: u64,
    depth: usize,
    state: u64,
}

impl Reader {
    fn new(device: &dyn Device, pool: Pool, len: usize, depth: usize) -> Reader {
        let namespace = device.namespace();
        let blocks = len as u64 / u64::from(namespace.block_len_bytes);
        let mut group = PollGroup::new().expect("a poll group");
        group.add(device.queue_pair().expect("a queue pair"));
        let places = namespace.num_blocks / blocks;
        Reader { group, pool, len, blocks, places, depth, state: 1 }
    }

    fn read(&mut self, limit: Duration, target: &Side) -> Rate {
        let (mut pending, mut done) = (VecDeque::new(), Vec::with_capacity(self.depth));
        let (other, watch) = (target.cpu_seconds(), Stopwatch::start());
        let end = Instant::now() + limit;
        let mut count = 0u64;
        loop {
            let now = Instant::now();
            while now < end && self.group.outstanding() + pending.len() < self.depth {
                pending.push_back(self.next_read());
            }
            self.group.submit(0, &mut pending);
            if self.group.outstanding() == 0 {
                break;
            }
            if self.group.poll(now, self.depth, &mut done) == 0 {
                self.group.wait(now + Duration::from_secs(1));
            }
            for (_, completion) in done.drain(..) {
                completion.result.expect("a read");
                count += 1;
            }
        }
        Rate::new(count, self.len, &watch, target.cpu_seconds() - other)
    }

    fn next_read(&mut self) -> Io {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let slba = Lba((((self.state >> 32) * self.places) >> 32) * self.blocks);
        let buf = self.pool.take(self.len).expect("a pool of more slots than the depth");
        Io { op: IoOp::Read, slba, buf, tag: 0 }
    }
}
