//! Every kind of work over a faulty network, seeded: flipped bits; lost, duplicated and inserted
//! bytes; connections that are closed or stall in the middle of a PDU; bytes that arrive one by
//! one; in both directions.
//!
//! Guarantees under test:
//!
//! - Reading (epochs in global and grouped order, batches by id, `verify`, `export`) delivers
//!   exactly the right bytes or ends with an error, with or without digests: every sample, the
//!   directory and the superblocks have their own checksums.
//! - Writing (import, append, delete) with header and data digests: if it reports success, it has
//!   done exactly what it reports. If it reports an error, the image is the previous one, the new
//!   one, or one that cannot be opened because it was never committed. Existing data are not
//!   damaged.
//! - Writing without digests: the same for faults that change no byte (cut, stall, drip), and for
//!   faults on the way back from the target. Bytes changed on the way *to* the target are
//!   different: a flipped bit in the SLBA of a write command overwrites existing samples. No
//!   checksum of a sample prevents that; only a header digest does. The guarantee is then that
//!   everything readable is right, and that damage is detected. A first import reads back what it
//!   wrote before it reports success, so its image is intact.
//! - No panic in any thread, and an end in any case.
//!
//! `DLFS_NETWORK_RUNS` (500) sets the number of runs, `DLFS_NETWORK_SEED` (1) the seed of the
//! first; a release runs 20,000. A failing run prints its seed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::import_support::wire::{Direction, Fault, Harm, Wire};
use crate::import_support::{Random, options, paths, tree};
use crate::support::alone::ran_alone;
use dlfs::address::Address;
use dlfs::dataset::OnError;
use dlfs::dataset::{Image, OpenOptions, VerifyOptions};
use dlfs::import::{self, EditOptions, ImportOptions, Onto};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec, SequentialBy};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

const NQN: &str = "nqn.2026-11.io.dlfs:faulty-network";

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Global,
    Grouped,
    Batches,
    Verify,
    Export,
    Import,
    Append,
    Delete,
}

const WORK: [Work; 8] = [
    Work::Global,
    Work::Grouped,
    Work::Batches,
    Work::Verify,
    Work::Export,
    Work::Import,
    Work::Append,
    Work::Delete,
];

impl Work {
    fn writes(self) -> bool {
        matches!(self, Work::Import | Work::Append | Work::Delete)
    }
}

/// The state shared by all runs.
struct World {
    first: tempfile::TempDir,
    second: tempfile::TempDir,
    files: Files,
    more: Files,
    /// Names to delete.
    deleted: Vec<Vec<u8>>,
    /// An image of `files`.
    image: Vec<u8>,
    /// The target that serves the image of `files`, for reading.
    target: Target,
    /// The number of bytes that each connection carries without faults, by work and digests.
    carried: BTreeMap<(usize, bool), Vec<[u64; 2]>>,
}

/// One run, determined by its seed.
#[derive(Debug)]
struct Run {
    work: Work,
    digests: bool,
    faults: Vec<Fault>,
}

fn connect(digests: bool) -> ConnectOptions {
    ConnectOptions {
        hdr_digest: digests,
        data_digest: digests,
        io_timeout: Duration::from_millis(400),
        connect_timeout: Duration::from_secs(3),
        tcp_connect_timeout: Duration::from_secs(1),
        ctrl_loss_tmo: Duration::from_secs(3),
        keep_alive_tmo: Duration::from_millis(500),
        ..ConnectOptions::default()
    }
}

fn disk(bytes: &[u8]) -> MemNamespace {
    let disk = MemNamespace::new(LEN, 512).unwrap();
    if !bytes.is_empty() {
        Blocking::new(disk.queue_pair().unwrap()).unwrap().write_at(0, bytes).unwrap();
    }
    disk
}

fn serve(disk: &MemNamespace) -> Target {
    let nqn = Nqn::new(NQN).unwrap();
    let options =
        TargetOptions { writable: true, buffer_bytes: 8 << 20, ..TargetOptions::new(nqn) };
    Target::bind(options, vec![Arc::new(disk.clone())]).unwrap()
}

fn through(wire: &Wire) -> Address {
    format!("nvme-tcp://{}/{NQN}", wire.address()).parse().unwrap()
}

impl World {
    fn new() -> World {
        let first = tempfile::tempdir().unwrap();
        let second = tempfile::tempdir().unwrap();
        let files = tree(first.path(), 24, 9000, 1);
        let more = tree(second.path(), 9, 9000, 2);
        let device = disk(&[]);
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let wanted = options(Onto::Empty);
        import::import_onto(&paths(first.path()), &devices, &wanted, &mut ()).unwrap();
        let image = Blocking::new(device.queue_pair().unwrap()).unwrap();
        let image = { image }.read(0, LEN as usize).unwrap().to_vec();
        let deleted = files.keys().step_by(5).cloned().collect();
        let target = serve(&device);
        let carried = BTreeMap::new();
        let mut world = World { first, second, files, more, deleted, image, target, carried };
        for (index, work) in WORK.into_iter().enumerate() {
            for digests in [false, true] {
                // A busy machine may take longer than the time-outs.
                let carried = (0..5).find_map(|_| match world.calm(work, digests) {
                    (Ok(()), carried) => Some(carried),
                    (Err(error), _) => {
                        println!("{work:?}: {}", error.report());
                        None
                    }
                });
                world.carried.insert((index, digests), carried.expect("there is no fault"));
            }
        }
        world
    }

    /// Does the work without faults, and counts the bytes that it carries.
    fn calm(&self, work: Work, digests: bool) -> (dlfs::Result<()>, Vec<[u64; 2]>) {
        let run = Run { work, digests, faults: Vec::new() };
        let (wire, disk, _target) = self.network(&run);
        let result = self.work(&run, &wire);
        self.check(&run, disk.as_ref(), &result);
        (result, wire.carried())
    }

    fn draw(&self, random: &mut Random) -> Run {
        let index = random.below(WORK.len());
        let digests = random.below(2) == 0;
        let carried = &self.carried[&(index, digests)];
        let faults = (0..1 + random.below(2)).map(|_| {
            let connection = random.below(carried.len());
            let direction =
                if random.below(2) == 0 { Direction::ToTarget } else { Direction::ToHost };
            let offset =
                random.below(carried[connection][direction as usize].max(1) as usize) as u64;
            let count = [1, 4, 8, 24, 72, 512, 4096][random.below(7)];
            let harm = match random.below(10) {
                0..4 => Harm::Flip(random.next() as u32),
                4 => Harm::Cut,
                5 => Harm::Stall,
                6 => Harm::Duplicate(count),
                7 => Harm::Drop(count),
                8 => Harm::Insert(random.bytes(count)),
                _ => Harm::Drip(count),
            };
            Fault { connection, direction, offset, harm }
        });
        let faults = faults.collect();
        Run { work: WORK[index], digests, faults }
    }

    /// The network of a run, and the disk behind it if the work writes.
    fn network(&self, run: &Run) -> (Wire, Option<MemNamespace>, Option<Target>) {
        let (wire, disk, target) = if run.work.writes() {
            let disk = disk(if run.work == Work::Import { &[] } else { &self.image });
            let target = serve(&disk);
            (Wire::to(target.local_addr()), Some(disk), Some(target))
        } else {
            (Wire::to(self.target.local_addr()), None, None)
        };
        if !run.digests {
            wire.without_digests(); // writers request digests nevertheless
        }
        run.faults.iter().cloned().for_each(|fault| wire.harm(fault));
        (wire, disk, target)
    }

    fn work(&self, run: &Run, wire: &Wire) -> dlfs::Result<()> {
        let connect = connect(run.digests);
        let address = [through(wire)];
        let import = |source: &Path, onto| {
            let lease = Duration::from_secs(2);
            let wanted = ImportOptions { lease, ..options(onto) };
            import::import(&paths(source), &address, &wanted, &connect, &mut ()).map(drop)
        };
        match run.work {
            Work::Import => return import(self.first.path(), Onto::Empty),
            Work::Append => return import(self.second.path(), Onto::Append),
            Work::Delete => {
                let edit = EditOptions::default();
                return import::delete(&address, &self.deleted, &edit, &connect).map(drop);
            }
            _ => {}
        }
        let options = OpenOptions { connect, ..OpenOptions::default() };
        let image = Image::open(&address, &options)?;
        image.load_names()?;
        match run.work {
            Work::Global => self.epoch(&image, OrderKind::Global, OnError::Raise),
            Work::Grouped => {
                self.epoch(&image, OrderKind::Grouped { lanes: 2, group: 1 }, OnError::Raise)
            }
            Work::Export => {
                let kind = OrderKind::Sequential { by: SequentialBy::Slot };
                self.epoch(&image, kind, OnError::Skip)
            }
            Work::Verify => {
                let progress_timeout = Duration::from_secs(5);
                let options = VerifyOptions { progress_timeout, ..VerifyOptions::default() };
                let report = image.verify(&options, &mut |_| {})?;
                assert!(report.samples <= self.files.len() as u64);
                assert!(!report.damages.is_empty() || report.samples == self.files.len() as u64);
                Ok(())
            }
            _ => self.batches(&image),
        }
    }

    fn assert_right(&self, image: &Image, batch: &Batch) {
        for sample in batch.iter() {
            let name = image.directory().name(sample.id).unwrap().unwrap();
            assert!(self.files[&name] == sample.bytes, "wrong bytes of sample {}", sample.id);
        }
    }

    fn epoch(&self, image: &Image, kind: OrderKind, on_error: OnError) -> dlfs::Result<()> {
        let mut options = LoaderOptions::new(OrderSpec { kind, seed: 7 }, 5, 1);
        (options.on_error, options.deadline) = (on_error, Duration::from_secs(8));
        options.window_bytes = 1 << 20;
        let mut loader = image.prefetcher(options)?;
        let mut seen = 0;
        let mut batch = Batch::new();
        while loader.next_into(&mut batch)? {
            self.assert_right(image, &batch);
            seen += batch.len() as u64;
        }
        let skipped = loader.stats().skipped;
        assert_eq!(seen + skipped, self.files.len() as u64, "an epoch that ended is whole");
        assert!(on_error == OnError::Skip || skipped == 0);
        Ok(())
    }

    fn batches(&self, image: &Image) -> dlfs::Result<()> {
        let deadline = Duration::from_secs(8);
        let options = ReaderOptions { deadline, ..ReaderOptions::default() };
        let mut reader = image.reader(options)?;
        let ids: Vec<_> = (0..self.files.len() as u64).rev().map(SampleId).collect();
        let mut batch = Batch::new();
        for ids in ids.chunks(7) {
            reader.read_batch(ids, &mut batch)?;
            assert_eq!(batch.len(), ids.len());
            self.assert_right(image, &batch);
        }
        Ok(())
    }

    /// Compares the contents of the disk after the work with its report.
    fn check(&self, run: &Run, disk: Option<&MemNamespace>, result: &dlfs::Result<()>) {
        let Some(disk) = disk else { return };
        let all = || self.files.iter().chain(&self.more).map(|(k, v)| (k.clone(), v.clone()));
        let (before, after): (Option<Files>, Files) = match run.work {
            Work::Import => (None, self.files.clone()),
            Work::Append => (Some(self.files.clone()), all().collect()),
            _ => {
                let mut left = self.files.clone();
                self.deleted.iter().for_each(|name| drop(left.remove(name)));
                (Some(self.files.clone()), left)
            }
        };
        let changed = |fault: &Fault| {
            let harmless = matches!(fault.harm, Harm::Cut | Harm::Stall | Harm::Drip(_));
            fault.direction == Direction::ToTarget && !harmless
        };
        // A first import reads back everything that it wrote; an append does not.
        let is_checked = run.work == Work::Import && result.is_ok();
        let may_be_misled = !run.digests && !is_checked && run.faults.iter().any(changed);
        let found = contents(disk);
        match (found, result) {
            (Ok(Found { files, damaged: 0 }), Ok(())) => {
                // A superblock that arrived damaged leaves the previous generation.
                let is_before = Some(&files) == before.as_ref();
                assert!(files == after || may_be_misled && is_before, "success, and another image")
            }
            (Ok(Found { files, damaged: 0 }), Err(_)) => {
                assert!(files == after || Some(&files) == before.as_ref(), "neither old nor new")
            }
            (Ok(Found { files, damaged }), _) => {
                assert!(may_be_misled, "{damaged} damaged");
                let all: Files = all().collect();
                let is_right = |(name, bytes)| all.get(&name) == Some(&bytes);
                assert!(files.into_iter().all(is_right), "wrong bytes that nobody sees");
            }
            (Err(error), result) => {
                let nothing_yet = before.is_none() && result.is_err();
                assert!(nothing_yet || may_be_misled, "it does not open: {}", error.report());
            }
        }
    }
}

/// The readable contents of an image, and the number of unreadable samples.
struct Found {
    files: Files,
    damaged: usize,
}

fn contents(disk: &MemNamespace) -> dlfs::Result<Found> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk.clone())];
    let image = Image::from_devices(devices, &OpenOptions::default())?;
    image.load_names()?;
    let report = image.verify(&VerifyOptions::default(), &mut |_| {})?;
    // An incomplete commit may have torn the superblock copy that it wrote.
    let damages = report.damages.iter().filter(|d| !d.what.starts_with("superblock copy"));
    let directory = image.directory();
    let ids: Vec<_> = (0..directory.num_live()).map(|rank| directory.id_of_live(rank)).collect();
    let mut batch = Batch::new();
    let failures = image.reader(ReaderOptions::default())?.read_batch_each(&ids, &mut batch)?;
    let read = (0..ids.len()).filter(|index| failures.iter().all(|(failed, _)| failed != index));
    let files = read
        .map(|index| (directory.name(ids[index]).unwrap().unwrap(), batch.bytes(index).to_vec()));
    Ok(Found { files: files.collect(), damaged: damages.count() })
}

/// How runs ended.
#[derive(Default)]
struct Tally {
    done: u64,
    errors: BTreeMap<String, u64>,
    struck: u64,
    fell: Vec<String>,
    longest: Duration,
}

fn run(world: &World, seed: u64, tally: &Mutex<Tally>) {
    let mut random = Random::quiet(seed);
    let run = world.draw(&mut random);
    let begun = Instant::now();
    let mut struck = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (wire, disk, target) = world.network(&run);
        let result = world.work(&run, &wire);
        let took = begun.elapsed();
        struck = wire.struck();
        drop(wire);
        if let Some(target) = target {
            target.stop(); // nothing is written after this
        }
        world.check(&run, disk.as_ref(), &result);
        assert!(took < LIMIT, "it took {took:?}");
        result.map_err(|error: Error| error.kind())
    }));
    let mut tally = tally.lock().unwrap();
    tally.longest = tally.longest.max(begun.elapsed());
    tally.struck += u64::from(struck > 0);
    match outcome {
        Ok(Ok(())) => tally.done += 1,
        Ok(Err(kind)) => *tally.errors.entry(format!("{kind:?}")).or_default() += 1,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            tally.fell.push(format!("seed {seed}: {run:?}: {}", text.unwrap_or_default()));
        }
    }
}

#[test]
fn work_over_a_faulty_network_is_right_or_ends_with_an_error() {
    if ran_alone(work_over_a_faulty_network_is_right_or_ends_with_an_error) {
        return;
    }
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    };
    let runs = number("DLFS_NETWORK_RUNS", 150);
    let first = number("DLFS_NETWORK_SEED", 1);
    // Panics of the library's threads would not end the run, so they are counted here.
    static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let in_library = info.location().is_some_and(|at| !at.file().starts_with("tests/"));
        if in_library {
            PANICS.lock().unwrap().push(info.to_string());
        }
        usual(info);
    }));
    let world = World::new();
    let tally = Mutex::new(Tally::default());
    let next = AtomicU64::new(first);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + runs {
                        return;
                    }
                    run(&world, seed, &tally);
                }
            });
        }
    });
    let Tally { done, errors, struck, fell, longest } = tally.into_inner().unwrap();
    println!(
        "{runs} runs from seed {first} in {:?}, the longest {longest:?}: harm in {struck}, {done} done, \
         errors {errors:?}, {} fell",
        begun.elapsed(),
        fell.len()
    );
    assert!(struck * 2 > runs, "harm was done in {struck} runs");
    assert!(done > 0 && fell.is_empty(), "{}", fell.join("\n"));
    let panics = PANICS.lock().unwrap();
    assert!(panics.is_empty(), "{}", panics.join("\n"));
    assert!(!errors.contains_key(&format!("{:?}", ErrorKind::InvalidArgument)), "{errors:?}");
}

/// Length of a disk: the image, the appended data, and free space.
const LEN: u64 = 2 << 20;

/// Concurrent runs: a run waits most of its time.
const WORKERS: usize = 6;

/// No run takes this long, except on a heavily loaded machine.
const LIMIT: Duration = Duration::from_secs(100);
