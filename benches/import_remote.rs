//! Importing onto a remote namespace, compared with raw writes of the same engine and with reading
//! the source alone, in one run.

mod support;

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::buf::IoBuf;
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, Onto, PlacementOrder, Progress, Stage, import};
use dlfs::permutation::{Key, Permutation};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device, Io, IoOp, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Lba, Nsid};
use rustix::thread::{CpuSet, sched_setaffinity};
use support::{Options, Side, Stopwatch};

const USAGE: &str = "cargo bench --bench import_remote -- [--rounds N] [--bytes B] [--dir DIR] [--case NAME]

Import and target are processes of their own, each on one processor; the target serves memory. Each
round, in an order that changes, imports a source of --bytes, writes as many bytes raw with the same
engine (--write-len at --depth), and reads the source alone: opens, reads and closes each file, or reads
the pipe. Rates are of the stage that writes chunks; `whole` is the whole import, its look at the source,
its lease and its commit included. Sources are warm, are made below --dir, and are read alone by one thread
in a shuffled order, as the import reads them.";

/// A source to import: its name, the length of its files, and whether it comes as a tar through a pipe.
const CASES: [(&str, usize, bool); 4] = [
    ("4K", 4 << 10, false),
    ("128K", 128 << 10, false),
    ("16M", 16 << 20, false),
    ("tar", 128 << 10, true),
];

fn main() {
    support::results::record("import_remote");
    let options = Options::parse(
        USAGE,
        &[
            ("rounds", "5"),
            ("bytes", "512M"),
            ("dir", ""),
            ("case", ""),
            ("write-len", "1M"),
            ("depth", "32"),
            ("threads", "0"),
            ("region", "2G"),
            ("side", ""),
        ],
    );
    match options.text("side") {
        "" => run(&options),
        _ => serve_forever(options.number("region")),
    }
}

fn run(options: &Options) {
    println!("{}", support::machine());
    let mut target = Side::start(&["--side", "target", "--region", options.text("region")]);
    let address: Address = target.line().parse().expect("an address");
    bind(&[1]);
    let parent = match options.text("dir") {
        "" => std::env::temp_dir(),
        dir => PathBuf::from(dir),
    };
    let dir = tempfile::tempdir_in(parent).expect("a folder to work in");
    println!(
        "{:<8}{:>6}{:>10}{:>10}{:>10}{:>10}{:>24}{:>22}",
        "",
        "round",
        "import",
        "whole",
        "raw",
        "source",
        "CPU s/GB import+target",
        "raw writes the same"
    );
    for case in CASES {
        let (name, len, is_stream) = case;
        if !options.text("case").is_empty() && options.text("case") != name {
            continue;
        }
        let source = Source::make(&dir.path().join(name), options.number("bytes"), len, is_stream);
        let mut ratios = Vec::new();
        for round in 0..options.number("rounds") {
            ratios.push(one_round(options, name, round, &source, &address, &target));
        }
        report(name, &mut ratios);
        source.remove();
    }
}

/// The result of a round: import over raw writes, over reading the source, over the smaller of
/// both, and over what one processor achieves that alternates between reading and sending.
struct Ratios {
    of_raw: f64,
    of_source: f64,
    of_smaller: f64,
    of_both: f64,
}

fn one_round(
    options: &Options,
    name: &str,
    round: u64,
    source: &Source,
    address: &Address,
    target: &Side,
) -> Ratios {
    let mut imported = None;
    let mut raw = None;
    let mut read = None;
    // 0 1 2, 2 1 0, 1 2 0, ... so that none always follows the same other one.
    const ORDERS: [[u8; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];
    for what in ORDERS[round as usize % ORDERS.len()] {
        match what {
            0 => imported = Some(import_once(options, source, address, target)),
            1 => raw = Some(write_raw(options, source.bytes, address, target)),
            _ => read = Some(source.read_alone()),
        }
    }
    let imported = imported.expect("done");
    let raw = raw.expect("done");
    let read = read.expect("done");
    println!(
        "{name:<8}{round:>6}{:>10.0}{:>10.0}{:>10.0}{read:>10.0}{:>16.3}{:>8.3}{:>14.3}{:>8.3}",
        imported.mb_s,
        imported.whole_mb_s,
        raw.mb_s,
        imported.cpu.0,
        imported.cpu.1,
        raw.cpu.0,
        raw.cpu.1
    );
    Ratios {
        of_raw: imported.mb_s / raw.mb_s,
        of_source: imported.mb_s / read,
        of_smaller: imported.mb_s / raw.mb_s.min(read),
        of_both: imported.mb_s * (1.0 / raw.mb_s + 1.0 / read),
    }
}

fn report(name: &str, ratios: &mut [Ratios]) {
    let mut middle = |of: fn(&Ratios) -> f64| {
        ratios.sort_by(|a, b| of(a).total_cmp(&of(b)));
        let low = of(&ratios[0]);
        let high = of(&ratios[ratios.len() - 1]);
        format!("{:.2} ({low:.2} to {high:.2})", of(&ratios[ratios.len() / 2]))
    };
    println!(
        "{name}: of raw writes {}, of reading the source {}, of the smaller {}, \
         of both by turns {}\n",
        middle(|r| r.of_raw),
        middle(|r| r.of_source),
        middle(|r| r.of_smaller),
        middle(|r| r.of_both)
    );
}

/// Rate of a piece of work, and processor seconds per GB of this side and of the target.
struct Rate {
    mb_s: f64,
    whole_mb_s: f64,
    cpu: (f64, f64),
}

/// Files of one length in a folder, and a tar of them if it comes through a pipe.
struct Source {
    folder: PathBuf,
    files: Vec<PathBuf>,
    /// The baseline reads the files in shuffled order, like an import.
    order: Vec<usize>,
    tar: Option<PathBuf>,
    len: usize,
    bytes: u64,
}

impl Source {
    fn make(folder: &Path, bytes: u64, len: usize, is_stream: bool) -> Source {
        std::fs::create_dir_all(folder).expect("a folder for the source");
        let count = bytes / len as u64;
        support::files::make_files(folder, count, len);
        let mut files = Vec::new();
        support::files::list(folder, &mut files);
        files.sort_unstable();
        let tar = is_stream.then(|| {
            let tar = folder.with_extension("tar");
            let mut command = Command::new("tar");
            command.arg("cf").arg(&tar).arg("-C").arg(folder).arg(".");
            let status = command.status().expect("tar is installed");
            assert!(status.success(), "tar failed");
            tar
        });
        let permutation = Permutation::new(count, Key::new(1));
        let order = (0..count).map(|at| permutation.forward(at) as usize).collect();
        let bytes = count * len as u64;
        let source = Source { folder: folder.to_path_buf(), files, order, tar, len, bytes };
        source.read_alone(); // warm
        source
    }

    /// The path to import, and the process that feeds it.
    fn open(&self) -> (PathBuf, Option<Feeder>) {
        match &self.tar {
            None => (self.folder.clone(), None),
            Some(tar) => {
                let feeder = Feeder::start(tar);
                (feeder.pipe.clone(), Some(feeder))
            }
        }
    }

    /// MB/s of reading everything once, with one thread.
    fn read_alone(&self) -> f64 {
        let (path, feeder) = self.open();
        let watch = Stopwatch::start();
        let mut buffer = vec![0; self.len.max(1 << 20)];
        if feeder.is_some() {
            let mut pipe = File::open(path).expect("the pipe opens");
            while pipe.read(&mut buffer).expect("the pipe reads") > 0 {}
        } else {
            for &at in &self.order {
                let mut file = File::open(&self.files[at]).expect("a file that was listed");
                file.read_exact(&mut buffer[..self.len]).expect("a readable file");
            }
        }
        self.bytes as f64 / 1e6 / watch.seconds().0
    }

    fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.folder); // the temporary folder is removed at the end anyway
        if let Some(tar) = &self.tar {
            let _ = std::fs::remove_file(tar);
        }
    }
}

/// A process that writes a file into a named pipe.
struct Feeder {
    pipe: PathBuf,
    child: Child,
}

impl Feeder {
    fn start(tar: &Path) -> Feeder {
        let pipe = tar.with_extension("pipe");
        let _ = std::fs::remove_file(&pipe); // there is none the first time
        let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is installed");
        assert!(made.success(), "mkfifo failed");
        let script = r#"exec cat "$1" > "$2""#;
        // On any processor: it stands for a source on another machine.
        bind(&[0, 1]);
        let child = Command::new("sh").args(["-c", script, "sh"]).arg(tar).arg(&pipe).spawn();
        bind(&[1]);
        Feeder { pipe, child: child.expect("sh starts") }
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        let _ = self.child.wait(); // it has ended with its file
    }
}

/// Records when chunks began and ended to be written.
struct Stages<'a> {
    target: &'a Side,
    writing: Option<(Stopwatch, f64)>,
    wrote: Option<(f64, f64, f64)>,
}

impl Progress for Stages<'_> {
    fn stage(&mut self, stage: Stage, _: u64, _: u64) {
        match stage {
            Stage::Writing => self.writing = Some((Stopwatch::start(), self.target.cpu_seconds())),
            Stage::Committing => {
                let (watch, other) = self.writing.take().expect("written before it is committed");
                let (wall, cpu) = watch.seconds();
                self.wrote = Some((wall, cpu, self.target.cpu_seconds() - other));
            }
            _ => {}
        }
    }

    fn advance(&mut self, _: u64, _: u64) {}
}

fn import_once(options: &Options, source: &Source, address: &Address, target: &Side) -> Rate {
    let (path, feeder) = source.open();
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let is_stream = feeder.is_some();
    let import_options = ImportOptions {
        onto: Onto::Force,
        from: if is_stream { SourceKind::Tar } else { SourceKind::Folder },
        placement: if is_stream { PlacementOrder::Source } else { PlacementOrder::Shuffled },
        reader_threads: options.number("threads") as usize,
        ..ImportOptions::default()
    };
    let mut stages = Stages { target, writing: None, wrote: None };
    let whole = Instant::now();
    let report =
        import(&[path], std::slice::from_ref(address), &import_options, &connect, &mut stages)
            .expect("imported");
    let whole = whole.elapsed().as_secs_f64();
    assert_eq!(report.sample_bytes, source.bytes);
    let (wall, cpu, other) = stages.wrote.expect("it went through its stages");
    let gb = source.bytes as f64 / 1e9;
    Rate { mb_s: gb * 1e3 / wall, whole_mb_s: gb * 1e3 / whole, cpu: (cpu / gb, other / gb) }
}

fn write_raw(options: &Options, bytes: u64, address: &Address, target: &Side) -> Rate {
    let depth = options.number("depth") as usize;
    let len = options.number("write-len") as usize;
    let connect = ConnectOptions {
        writable: true,
        queue_size: u16::try_from(depth + 1).expect("a depth that a queue can have"),
        ..ConnectOptions::default()
    };
    let device = open(address, &connect).expect("the target was started");
    let blocks = len as u64 / u64::from(device.namespace().block_len_bytes);
    let mut group = PollGroup::new().expect("a poll group");
    group.add(device.queue_pair().expect("a queue pair"));
    let mut free: Vec<IoBuf> = (0..depth).map(|_| IoBuf::zeroed(len)).collect();
    free.iter_mut().for_each(|buf| buf.fill(1));
    let mut pending = VecDeque::new();
    let mut done = Vec::with_capacity(depth);
    let count = bytes / len as u64;
    let mut next = 0;
    let mut ended = 0;
    let other = target.cpu_seconds();
    let watch = Stopwatch::start();
    while ended < count {
        while next < count
            && let Some(buf) = free.pop()
        {
            pending.push_back(Io { op: IoOp::Write, slba: Lba(next * blocks), buf, tag: next });
            next += 1;
        }
        group.submit(0, &mut pending);
        let now = Instant::now();
        if group.poll(now, depth, &mut done) == 0 {
            group.wait(now + Duration::from_secs(1));
        }
        for (_, completion) in done.drain(..) {
            completion.result.expect("a write");
            free.push(completion.buf);
            ended += 1;
        }
    }
    let (wall, cpu) = watch.seconds();
    let gb = (count * len as u64) as f64 / 1e9;
    let mb_s = gb * 1e3 / wall;
    Rate { mb_s, whole_mb_s: mb_s, cpu: (cpu / gb, (target.cpu_seconds() - other) / gb) }
}

/// The target's side: prints its address and serves until its standard input closes.
fn serve_forever(region: u64) {
    std::thread::spawn(|| {
        support::wait_for_end_of_input();
        std::process::exit(0);
    });
    bind(&[0]);
    let device = MemNamespace::new(region, 4096).expect("memory for the namespace");
    let mut io = Blocking::new(device.queue_pair().expect("a queue pair")).expect("a poll group");
    for offset in (0..region).step_by(1 << 20) {
        io.write_at(offset, &[1; 1 << 20]).expect("a write to memory");
    }
    let nqn = "nqn.2026-11.io.dlfs:import".parse().expect("a valid name");
    let options = TargetOptions { writable: true, ..TargetOptions::new(nqn) };
    let target = Target::bind(options, vec![Arc::new(device)]).expect("a free port");
    println!("{}", target.address(Nsid(1)));
    loop {
        std::thread::park();
    }
}

/// Binds this thread, and those that it starts, to processors, whatever the parent was bound to.
fn bind(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    if sched_setaffinity(None, &set).is_err() {
        println!("processors {cpus:?} are not to be had: rates are those of shared processors");
    }
}
