//! The engine by SPDK against the least C loop over the same SPDK calls, and our host against SPDK's, on
//! SPDK's target.
//!
//! ```text
//! SPDK_DIR=... cargo bench --features spdk --bench spdk_engine [-- ROUNDS [SECONDS]]
//! ```
//! The target has processor 0, the reader processor 1. Each row's sides run in turn, ROUNDS times (5) for
//! SECONDS (2) each, and the medians are compared. Other work on the machine makes all of it worthless.

#[path = "../tests/support/nvmf_tgt.rs"]
#[allow(dead_code, unreachable_pub)] // what the tests need beside
mod nvmf_tgt;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dlfs::buf::{HugePages, Pool, PoolOptions};
use dlfs::nvme::{Address, SpdkAddress};
use dlfs::qpair::{ConnectOptions, Io, IoOp, open};
use dlfs::units::Lba;
use nvmf_tgt::{NQN, NvmfTgt};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [side, address, io_bytes, depth, seconds] = &arguments[..]
        && side == "--side"
    {
        let number = |text: &String| text.parse::<usize>().expect("a number");
        println!(
            "{:.0}",
            reads_a_second(address, number(io_bytes), number(depth), number(seconds) as u64)
        );
        return;
    }
    let number = |at: usize, default: usize| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    compare(number(0, 5), number(1, 2));
}

fn compare(rounds: usize, seconds: usize) {
    let Some(target) = NvmfTgt::start(256, 4096) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let c_loop = compile(folder.path());
    let ours = std::env::current_exe().expect("this program");
    let this = |address: &Address| vec!["--side".to_owned(), address.to_string()];
    println!("{:<34} {:>10} {:>10} {:>6}", "reads a second", "ours", "theirs", "ratio");
    let rows = [
        ("engine / C loop, vfio-user", target.vfio_user(), target.vfio_user()),
        ("engine / C loop, TCP", target.spdk_tcp(), target.spdk_tcp()),
        ("our TCP host / C loop, TCP", target.tcp(), target.spdk_tcp()),
    ];
    for (name, mine, theirs) in &rows {
        for (io_bytes, depth) in [(4096, 1), (4096, 32), (4096, 127), (131_072, 8), (131_072, 32)] {
            let (mut one, mut two) = (Vec::new(), Vec::new());
            let shape = [io_bytes.to_string(), depth.to_string(), seconds.to_string()];
            for _ in 0..rounds {
                one.push(run(&ours, this(mine), &shape));
                two.push(run(&c_loop, vec![trid(theirs)], &shape));
            }
            let (one, two) = (median(one), median(two));
            let row = format!("{name}, {} KiB, {depth}", io_bytes >> 10);
            println!("{row:<34} {one:>10.0} {two:>10.0} {:>6.2}", one / two);
        }
    }
}

/// What a program prints, on processor 1.
fn run(program: &Path, mut arguments: Vec<String>, shape: &[String]) -> f64 {
    arguments.extend_from_slice(shape);
    let output = Command::new("taskset").args(["-c", "1"]).arg(program).args(arguments).output();
    let output = output.expect("taskset runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().and_then(|line| line.parse().ok());
    last.unwrap_or_else(|| panic!("{output:?}"))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// An address as SPDK writes it.
fn trid(address: &Address) -> String {
    match address {
        Address::Spdk(SpdkAddress::VfioUser { traddr, .. }) => {
            format!("trtype:VFIOUSER traddr:{traddr} subnqn:{NQN}")
        }
        Address::Spdk(SpdkAddress::Tcp(tcp)) => {
            let (traddr, trsvcid) = (&tcp.traddr, tcp.trsvcid);
            format!("trtype:TCP adrfam:IPv4 traddr:{traddr} trsvcid:{trsvcid} subnqn:{NQN}")
        }
        other => panic!("{other} has no C loop"),
    }
}

/// The C loop, linked as `vendor/spdk-sys` links.
fn compile(folder: &Path) -> PathBuf {
    let program = folder.join("spdk_loop");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/spdk_loop.c");
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

/// Random reads of one size at one depth through one queue pair, never sleeping.
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
    let (mut done, mut count) = (Vec::with_capacity(depth), 0_u64);
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
