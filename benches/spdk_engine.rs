//! SPDK compared with dlfs, on SPDK's target or read by SPDK's programs: the SPDK engine against a
//! minimal C loop over the same SPDK calls, our TCP host against that loop, and our target against
//! SPDK's.
//!
//! ```text
//! SPDK_DIR=... cargo bench --features spdk --bench spdk_engine [-- ROUNDS [SECONDS [ROWS]]]
//! ```
//! Targets run on processor 0, readers on processor 1; an idle target is stopped. The sides of a
//! row run in turn, ROUNDS times (5) for SECONDS (1) each, in alternating order. A row is the
//! median of the rounds' ratios with its 90 % bootstrap interval. ROWS: parts of names, separated
//! by commas. Other work on the machine invalidates the results.

#[path = "../tests/support/nvmf_tgt.rs"]
#[allow(dead_code, unreachable_pub)] // the rest is for tests
mod nvmf_tgt;
#[path = "support/results.rs"]
mod results;
#[path = "side_by_side/stats.rs"]
#[allow(dead_code, unreachable_pub)] // the rest is for side_by_side
mod stats;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::{Address, SpdkAddress, VfioUserAddress};
use dlfs::buf::{HugePages, Pool, PoolOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device, Io, IoOp, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Lba, Nsid};
use nvmf_tgt::{NQN, NvmfTgt};
use stats::{Estimate, estimate, median};

fn main() {
    results::record("spdk_engine");
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let number = |text: &String| text.parse::<usize>().expect("a number");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--serve"] => serve(),
        ["--side", address, ..] => {
            let [io_bytes, depth, seconds] = [2, 3, 4].map(|at| number(&arguments[at]));
            println!("{:.0}", reads_a_second(address, io_bytes, depth, seconds as u64));
        }
        _ => {
            let at = |at: usize, default| arguments.get(at).map_or(default, number);
            let rows = arguments.get(2).map_or("", String::as_str);
            compare(at(0, 5), at(1, 1), rows);
        }
    }
}

/// A reader, and what it reads from.
enum Side {
    /// This program, through the engine that the address chooses.
    Ours(Address),
    /// The C loop over SPDK.
    Loop(Address),
    /// `spdk_nvme_perf`.
    Perf(Address),
}

fn compare(rounds: usize, seconds: usize, wanted: &str) {
    let Some(spdks) = NvmfTgt::start_as_shipped(REGION_MIB, 4096) else { return };
    spdks.freeze(true);
    let (ours, at_ours) = our_target();
    let programs = Programs {
        this: std::env::current_exe().expect("this program"),
        c_loop: compile(),
        perf: nvmf_tgt::program("spdk_nvme_perf").expect("it is installed beside nvmf_tgt"),
    };
    let tcp = spdks.tcp();
    let by_spdk = spdks.spdk_tcp();
    let vfio_user = spdks.vfio_user();
    let shapes = [(4096, 1), (4096, 32), (4096, 128), (131_072, 8), (131_072, 32)];
    let rows = [
        ("engine vfio-user", Side::Ours(vfio_user.clone()), Side::Loop(vfio_user)),
        ("engine TCP", Side::Ours(by_spdk.clone()), Side::Loop(by_spdk.clone())),
        ("our TCP host", Side::Ours(tcp.clone()), Side::Loop(by_spdk)),
        ("our target", Side::Perf(at_ours), Side::Perf(tcp)),
    ];
    println!("reads a second, {rounds} rounds of {seconds} s; the other: SPDK");
    println!(
        "| {:<33} | {:>9} | {:>9} | {:>5} | {:<12} |",
        "", "dlfs", "the other", "ratio", "90 %"
    );
    println!("|{:-<35}|{:->11}|{:->11}|{:->7}|{:-<14}|", "", "", "", "", "");
    for (name, mine, theirs) in &rows {
        for (io_bytes, depth) in shapes {
            let name = format!("{name}, {} KiB, depth {depth}", io_bytes >> 10);
            if !wanted.split(',').any(|part| name.contains(part)) {
                continue;
            }
            let mut one = Vec::new();
            let mut two = Vec::new();
            for round in 0..rounds {
                let shape = [io_bytes.to_string(), depth.to_string(), seconds.to_string()];
                let mut first = || one.push(programs.run(mine, &spdks, &shape));
                let mut second = || two.push(programs.run(theirs, &spdks, &shape));
                if round % 2 == 0 {
                    first();
                    second();
                } else {
                    second();
                    first();
                }
            }
            let ratios: Vec<f64> = one.iter().zip(&two).map(|(one, two)| one / two).collect();
            let Estimate { median: ratio, low, high } = estimate(&ratios, 1).expect("rounds");
            let one = median(one);
            let two = median(two);
            println!(
                "| {name:<33} | {one:>9.0} | {two:>9.0} | {ratio:>5.2} | {low:.2} to {high:.2} |"
            );
        }
    }
    spdks.freeze(false);
    drop(ours);
}

/// The paths of the programs.
struct Programs {
    this: PathBuf,
    c_loop: PathBuf,
    perf: PathBuf,
}

impl Programs {
    /// Reads per second of one side, on processor 1; SPDK's target runs only if it is used.
    fn run(&self, side: &Side, spdks: &NvmfTgt, shape: &[String; 3]) -> f64 {
        let [io_bytes, depth, seconds] = shape;
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]);
        let address = match side {
            Side::Ours(address) => {
                command.arg(&self.this).arg("--side").arg(address.to_string()).args(shape);
                address
            }
            Side::Loop(address) => {
                command.arg(&self.c_loop).arg(trid(address)).args(shape);
                address
            }
            Side::Perf(address) => {
                command.arg(&self.perf).args(["-c", "0x2", "--no-huge", "-s", "256"]);
                command.args(["-w", "randread", "-q", depth, "-o", io_bytes, "-t", seconds]);
                command.arg("-r").arg(trid(address) + " hostnqn:nqn.2026-11.io.dlfs:bench");
                address
            }
        };
        let is_spdks = address.to_string().contains(NQN);
        if is_spdks {
            spdks.freeze(false);
        }
        let output = command.output().expect("taskset runs");
        if is_spdks {
            spdks.freeze(true);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let figure = match side {
            // Total   : IOPS MiB/s average min max
            Side::Perf(_) => text.lines().find_map(|line| {
                let rest = line.trim().strip_prefix("Total")?.trim_start_matches([' ', ':']);
                rest.split_whitespace().next()?.parse().ok()
            }),
            _ => text.lines().last().and_then(|line| line.parse().ok()),
        };
        figure.unwrap_or_else(|| panic!("{command:?}: {output:?}"))
    }
}

/// Our target as a process on processor 0, killed on drop.
struct OurTarget(Child);

impl Drop for OurTarget {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn our_target() -> (OurTarget, Address) {
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(this).arg("--serve").stdout(Stdio::piped());
    let mut child = OurTarget(command.spawn().expect("taskset runs"));
    let mut line = String::new();
    let stdout = child.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("it says where it listens");
    (child, line.trim().parse().expect("an address"))
}

/// Serves memory of which every page has been written: pages that never were are all the same page,
/// which every cache holds.
fn serve() {
    let device = MemNamespace::new(REGION_MIB << 20, 4096).expect("memory");
    let mut io = Blocking::new(device.queue_pair().expect("a queue pair")).expect("a poll group");
    for mib in 0..REGION_MIB {
        io.write_at(mib << 20, &[mib as u8; 1 << 20]).expect("a write to memory");
    }
    let options = TargetOptions::new("nqn.2026-11.io.dlfs:ours".parse().expect("a name"));
    let target = Target::bind(options, vec![Arc::new(device.read_only())]).expect("a free port");
    println!("{}", target.address(Nsid(1)));
    loop {
        std::thread::park();
    }
}

/// An address in SPDK's form.
fn trid(address: &Address) -> String {
    match address {
        Address::Spdk(SpdkAddress::VfioUser(VfioUserAddress { traddr, .. })) => {
            format!("trtype:VFIOUSER traddr:{traddr} subnqn:{NQN}")
        }
        Address::Spdk(SpdkAddress::Tcp(tcp)) => {
            let traddr = &tcp.traddr;
            let trsvcid = tcp.trsvcid;
            let subnqn = tcp.subnqn.as_str();
            format!("trtype:TCP adrfam:IPv4 traddr:{traddr} trsvcid:{trsvcid} subnqn:{subnqn}")
        }
        Address::Tcp(tcp) => trid(&Address::Spdk(SpdkAddress::Tcp(tcp.clone()))),
        other => panic!("SPDK's host is not asked to reach {other}"),
    }
}

/// The C loop beside this program, linked as in `vendor/spdk-sys`; rebuilt if its source is newer.
fn compile() -> PathBuf {
    let program = std::env::current_exe().expect("this program").with_file_name("spdk_loop");
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/spdk_loop.c"));
    let made = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    if made(&program).is_some_and(|at| Some(at) > made(source)) {
        return program;
    }
    let script = "\
        export PKG_CONFIG_PATH=\"${SPDK_DIR:+$SPDK_DIR/lib/pkgconfig:}$PKG_CONFIG_PATH\"; \
        whole=; rest=; \
        for word in $(pkg-config --libs spdk_nvme spdk_env_dpdk spdk_syslibs); do case $word in \
            -lspdk_*) whole=\"$whole $word\";; -lrte_*) whole=\"$whole -l:lib${word#-l}.a\";; \
            -lvfio-user|-ljson-c|-laio) ;; *) rest=\"$rest $word\";; esac; done; \
        exec cc -O2 -o \"$1\" \"$2\" $(pkg-config --cflags spdk_nvme) $(pkg-config --libs-only-L spdk_nvme) \
            -Wl,--whole-archive $whole -Wl,--no-whole-archive $rest";
    let built = Command::new("sh").args(["-c", script, "sh"]).arg(&program).arg(source).status();
    assert!(built.expect("sh runs").success(), "the C loop does not compile");
    program
}

/// Random reads of one size at one depth through one queue pair, spinning.
fn reads_a_second(address: &str, io_bytes: usize, depth: usize, seconds: u64) -> f64 {
    let address: Address = address.parse().expect("an address");
    let options = ConnectOptions { queue_size: depth as u16 + 1, ..ConnectOptions::default() };
    let device = open(&address, &options).expect("the target is there");
    let mut pair = device.queue_pair().expect("a queue");
    let bytes = (2 * depth * io_bytes).max(4 << 20);
    let options = PoolOptions { bytes, slot_len_bytes: 4096, huge_pages: HugePages::Auto };
    let pool = Pool::new(options).expect("memory");
    let blocks = io_bytes as u64 / u64::from(pair.namespace().block_len_bytes);
    let places = pair.namespace().num_blocks / blocks;
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        Lba(random % places * blocks)
    };
    let mut pending: VecDeque<Io> = VecDeque::with_capacity(depth);
    let read = |slba, buf| Io { op: IoOp::Read, slba, buf, tag: 0 };
    pending.extend((0..depth).map(|_| read(next(), pool.take(io_bytes).expect("room"))));
    let mut done = Vec::with_capacity(depth);
    let mut count = 0_u64;
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let mut now = begin;
    while now < end {
        pair.submit(&mut pending);
        now = Instant::now();
        pair.poll(now, usize::MAX, &mut done);
        count += done.len() as u64;
        for completion in done.drain(..) {
            completion.result.expect("a read");
            pending.push_back(read(next(), completion.buf));
        }
    }
    count as f64 / begin.elapsed().as_secs_f64()
}

/// Each target's memory.
const REGION_MIB: u64 = 256;
