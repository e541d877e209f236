//! Shares that lie with their ranks, and the exchange between them: real targets, sockets and files.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use dlfs::ErrorKind;
use dlfs::dataset::{Dataset, Image, Loader, OnError, OpenOptions, Query};
use dlfs::import::{ImportOptions, import};
use dlfs::nvme::{Address, Nqn};
use dlfs::order::{OrderKind, OrderSpec, Shares, State};
use dlfs::peers::PeerOptions;
use dlfs::peers::Serving;
use dlfs::peers::rendezvous::Folder;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::ReaderOptions;
use dlfs::store::{Staged, StoreOptions, StoreStats};
use dlfs::target::{Target, TargetOptions};
use dlfs::tier::PAGE_BYTES;
use dlfs::units::{Epoch, Nsid, SampleId};
use support::random::Random;

/// An image behind a target, which may be stopped, and its samples by id.
struct Origin {
    temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
    image: Address,
    target: Option<Target>,
}

impl Origin {
    /// `num` samples, each as long as `len` says.
    fn new(seed: u64, num: usize, mut len: impl FnMut(&mut Random) -> usize) -> Origin {
        println!("seed {seed}");
        let temp = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let source = temp.path().join("source");
        fs::create_dir(&source).unwrap();
        let sample = |nth| {
            let mut bytes = vec![0; len(&mut random)];
            random.fill(&mut bytes);
            fs::write(source.join(format!("{nth:05}")), &bytes).unwrap();
            bytes
        };
        let samples = (0..num).map(sample).collect();
        let image = Address::from_path(temp.path().join("train.dlfs"));
        let options = ImportOptions { chunk_size_bytes: CHUNK_BYTES, ..ImportOptions::default() };
        let connect = ConnectOptions::default();
        import(&[source], std::slice::from_ref(&image), &options, &connect, &mut ()).unwrap();
        let mut origin = Origin { temp, samples, image, target: None };
        origin.serve();
        origin
    }

    fn serve(&mut self) {
        let device = qpair::open(&self.image, &ConnectOptions::default()).unwrap();
        let nqn = "nqn.2026-11.io.dlfs:origin".parse().unwrap();
        self.target = Some(Target::bind(TargetOptions::new(nqn), vec![device]).unwrap());
    }

    fn open(&self) -> Image {
        let mut options = OpenOptions::default();
        options.connect.io_timeout = Duration::from_millis(500);
        options.connect.ctrl_loss_tmo = Duration::from_millis(500);
        let address = self.target.as_ref().unwrap().address(Nsid(1));
        Image::open(&[address], &options).unwrap()
    }

    fn read_bytes(&self) -> u64 {
        self.target.as_ref().unwrap().stats().read_bytes
    }

    fn store_folder(&self) -> PathBuf {
        let folder = self.temp.path().join("stores");
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn folder_spec(&self) -> String {
        format!("file:{}:1G", self.store_folder().display())
    }
}

/// A job: its ranks differ in nothing but their number.
#[derive(Clone)]
struct Job {
    q: f64,
    world_size: u32,
    batch: usize,
    epochs: Range<u64>,
    seed: u64,
    spec: String,
    blocking: bool,
    round: String,
    resume: Option<State>,
    patience: Duration,
    deadline: Duration,
}

impl Job {
    fn new(origin: &Origin, q: f64, world_size: u32, epochs: u64) -> Job {
        Job {
            q,
            world_size,
            batch: 8,
            epochs: 0..epochs,
            seed: 11,
            spec: origin.folder_spec(),
            blocking: false,
            round: "start".to_owned(),
            resume: None,
            patience: Duration::from_secs(30),
            deadline: Duration::from_secs(60),
        }
    }

    fn order(&self) -> OrderSpec {
        let kind = OrderKind::Partial { q: self.q, world_size: self.world_size };
        OrderSpec { kind, seed: self.seed }
    }

    fn run(&self, rank: u32) -> LoaderOptions {
        LoaderOptions {
            epochs: self.epochs.clone(),
            rank,
            world_size: self.world_size,
            window_bytes: 2 << 20,
            resume: self.resume.clone(),
            ..LoaderOptions::new(self.order(), self.batch, 1)
        }
    }

    fn join(&self, origin: &Origin, rank: u32) -> dlfs::Result<Dataset> {
        self.join_watched(origin, rank, &mut |_| true)
    }

    fn join_watched(
        &self,
        origin: &Origin,
        rank: u32,
        goes_on: &mut dyn FnMut(Staged) -> bool,
    ) -> dlfs::Result<Dataset> {
        let hostnqn = Nqn::new("nqn.2026-11.io.dlfs:node").unwrap();
        let options = PeerOptions {
            round: self.round.clone(),
            rank,
            world_size: self.world_size,
            listen: "127.0.0.1:0".parse().unwrap(),
            node: None,
            serving: Serving::CopiesOnly,
            keep_shares: false,
            timeout: Duration::from_secs(60),
            connect: ConnectOptions { hostnqn: Some(hostnqn), ..ConnectOptions::default() },
        };
        let mut folder = Folder::new(origin.temp.path(), &self.round).unwrap();
        let store = StoreOptions {
            blocking: self.blocking,
            patience: self.patience,
            deadline: self.deadline,
            ..StoreOptions::new(self.spec.parse().unwrap())
        };
        let run = self.run(rank);
        let image =
            origin.open().with_store(store, &run, Some((&options, &mut folder)), goes_on)?;
        Ok(Dataset::from_image(image, ReaderOptions::default()))
    }

    /// All ranks, with their shares.
    fn start(&self, origin: &Origin) -> Vec<Dataset> {
        thread::scope(|scope| {
            let ranks =
                (0..self.world_size).map(|rank| scope.spawn(move || self.join(origin, rank)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
        })
    }
}

/// What one rank has read: for each epoch the ids in their order.
type Read = BTreeMap<u64, Vec<u64>>;

/// Reads to the end, and compares every sample.
fn read(samples: &[Vec<u8>], loader: &Loader) -> Read {
    let mut read = Read::new();
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        for sample in batch.iter() {
            assert!(sample.bytes == samples[sample.id.0 as usize], "sample {}", sample.id);
        }
        read.entry(batch.epoch().0).or_default().extend(batch.ids().map(|id| id.0));
    }
    read
}

fn read_all(origin: &Origin, job: &Job, ranks: &[Dataset]) -> Vec<Read> {
    let samples = &origin.samples;
    thread::scope(|scope| {
        let reading = (0..).zip(ranks).map(|(rank, dataset)| {
            let loader = dataset.loader(job.run(rank)).unwrap();
            scope.spawn(move || read(samples, &loader))
        });
        let reading: Vec<_> = reading.collect();
        reading.into_iter().map(|read| read.join().unwrap()).collect()
    })
}

/// Every epoch of `epochs` has each sample once.
fn check_whole(origin: &Origin, epochs: Range<u64>, reads: &[Read]) {
    for epoch in epochs {
        let mut ids: Vec<u64> = reads.iter().flat_map(|read| read[&epoch].clone()).collect();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(0..origin.samples.len() as u64), "epoch {epoch}");
    }
}

/// What each rank would read from the shared namespaces.
fn expected(origin: &Origin, job: &Job) -> Vec<Read> {
    let dataset = Dataset::from_image(origin.open(), ReaderOptions::default());
    let of = |rank| read(&origin.samples, &dataset.loader(job.run(rank)).unwrap());
    (0..job.world_size).map(of).collect()
}

fn stats(rank: &Dataset) -> StoreStats {
    rank.store_stats().unwrap()
}

/// The most bytes of pages that the share of any rank takes in any of `epochs`.
fn largest_share(ranks: &[Dataset], job: &Job) -> u64 {
    let directory = ranks[0].directory();
    let shares = Shares::new(&job.order(), &**directory).unwrap();
    let pages_of = |rank, epoch| -> u64 {
        let ids = shares.ids(&**directory, rank, Epoch(epoch));
        let extents = ids.iter().map(|&id| directory.extent(id).unwrap());
        extents
            .map(|e| {
                let end = (e.offset_bytes + u64::from(e.len_bytes)).div_ceil(PAGE_BYTES);
                end - e.offset_bytes / PAGE_BYTES
            })
            .sum()
    };
    let all = (0..job.world_size).flat_map(|r| job.epochs.clone().map(move |e| (r, e)));
    all.map(|(rank, epoch)| pages_of(rank, epoch)).max().unwrap() * PAGE_BYTES
}

#[test]
fn eight_ranks_exchange_for_twenty_epochs_without_the_origin_within_their_room() {
    for (seed, num, len) in [(1, 1_600, 4 << 10), (2, 96, 110 << 10)] {
        let mut origin = Origin::new(seed, num, |_| len);
        let job = Job::new(&origin, 0.3, 8, 20);
        let expected = expected(&origin, &job);
        let ranks = job.start(&origin);
        let shares: u64 = ranks.iter().map(|rank| stats(rank).held_bytes).sum();
        origin.target = None;
        let reads = read_all(&origin, &job, &ranks);
        check_whole(&origin, job.epochs.clone(), &reads);
        assert!(reads == expected, "as the order says");
        let share = largest_share(&ranks, &job);
        let room = share as f64 * 1.3 * 1.05 + f64::from(CHUNK_BYTES);
        for (rank, stats) in ranks.iter().map(stats).enumerate() {
            println!("rank {rank}: {stats:?}");
            assert!(stats.peak_bytes as f64 <= room, "{} of {room}", stats.peak_bytes);
            assert_eq!((stats.from_origin, stats.mismatched), (0, 0));
            assert_eq!(
                stats.steps,
                19 * (0.3 * num as f64 / 8.).floor() as u64,
                "the last prepares none"
            );
            assert!(stats.received > 0);
        }
        wait_until("all has left", || ranks.iter().all(|rank| stats(rank).held_bytes <= share));
        let now: u64 = ranks.iter().map(|rank| stats(rank).held_bytes).sum();
        assert_eq!(now, shares, "every sample lies in one store, and no other byte");
        assert!(ranks.iter().all(|rank| stats(rank).deleted == stats(rank).received));
    }
}

#[test]
fn after_staging_an_epoch_reads_the_store_and_nothing_else() {
    let origin = Origin::new(3, 400, |random| random.below(9_000) as usize);
    for spec in [origin.folder_spec(), "ram:64M".to_owned()] {
        let round = spec.chars().filter(char::is_ascii_alphanumeric).take(9).collect();
        let job = Job { spec, round, ..Job::new(&origin, 0.25, 3, 4) };
        let expected = expected(&origin, &job);
        let ranks = job.start(&origin);
        let staged = origin.read_bytes();
        let reads = read_all(&origin, &job, &ranks);
        assert!(reads == expected);
        let all: u64 = ranks.iter().map(|rank| stats(rank).staged + stats(rank).found).sum();
        assert_eq!(all, 400, "each sample was brought once");
        assert!(ranks.iter().all(|rank| stats(rank).from_origin == 0));
        assert_eq!(origin.read_bytes(), staged, "no byte of the origin after staging");
        // Reads by id are not of the run.
        let by_id = ranks[0].read(Query::Ids(&[SampleId(7)]), OnError::Raise, &mut ()).unwrap();
        assert_eq!(by_id.batch.bytes(0), origin.samples[7]);
    }
}

#[test]
fn nothing_moves_without_a_part_and_all_but_fixed_points_with_all_of_it() {
    let origin = Origin::new(4, 300, |_| 3_000);
    for (q, round) in [(0.0, "none"), (1.0, "all")] {
        let job = Job {
            round: round.to_owned(),
            spec: "ram:64M".to_owned(),
            ..Job::new(&origin, q, 4, 3)
        };
        let expected = expected(&origin, &job);
        let ranks = job.start(&origin);
        let reads = read_all(&origin, &job, &ranks);
        assert!(reads == expected);
        let directory = ranks[0].directory();
        let shares = Shares::new(&job.order(), &**directory).unwrap();
        for (rank, stats) in (0..).zip(ranks.iter().map(stats)) {
            let moving = |epoch| {
                let all = shares.exchanges(&**directory, rank, Epoch(epoch));
                all.iter().filter(|one| one.to != rank).count() as u64
            };
            assert_eq!(stats.received, moving(0) + moving(1), "rank {rank}");
            assert!(q == 1.0 || stats.received == 0);
        }
    }
}

#[test]
fn an_exchange_at_the_end_of_each_epoch_changes_no_sequence() {
    let origin = Origin::new(5, 300, |random| random.below(30_000) as usize + 1);
    let job = Job { blocking: true, spec: "ram:64M".to_owned(), ..Job::new(&origin, 0.4, 3, 4) };
    let expected = expected(&origin, &job);
    let ranks = job.start(&origin);
    assert!(read_all(&origin, &job, &ranks) == expected);
}

/// Reads at most `batches` batches on each rank in step; returns what was read and the state.
fn read_some(origin: &Origin, job: &Job, ranks: &[Dataset], batches: u64) -> (Vec<Read>, State) {
    let barrier = Barrier::new(ranks.len());
    let (samples, barrier) = (&origin.samples, &barrier);
    let read = |loader: Loader| {
        let mut read = Read::new();
        for _ in 0..batches {
            barrier.wait();
            let Some(batch) = loader.next(&mut ()).unwrap() else { break };
            for sample in batch.iter() {
                assert!(sample.bytes == samples[sample.id.0 as usize], "sample {}", sample.id);
            }
            read.entry(batch.epoch().0).or_default().extend(batch.ids().map(|id| id.0));
        }
        (read, loader.state())
    };
    thread::scope(|scope| {
        let reading = (0..).zip(ranks).map(|(rank, dataset)| {
            let loader = dataset.loader(job.run(rank)).unwrap();
            scope.spawn(move || read(loader))
        });
        let reading: Vec<_> = reading.collect();
        let ended: Vec<_> = reading.into_iter().map(|read| read.join().unwrap()).collect();
        let state = ended[0].1.clone();
        assert!(ended.iter().all(|(_, other)| *other == state), "the ranks went in step");
        (ended.into_iter().map(|(read, _)| read).collect(), state)
    })
}

#[test]
fn a_job_that_ends_at_any_moment_goes_on_with_the_same_sequence() {
    let origin = Origin::new(6, 240, |random| random.below(6_000) as usize + 1);
    let mut job = Job::new(&origin, 0.3, 3, 10);
    let expected = expected(&origin, &job);
    let mut random = Random::new(66);
    let mut reads: Vec<Read> = vec![Read::new(); 3];
    let (mut starts, mut found) = (0, 0);
    loop {
        job.round = format!("start {starts}");
        let ranks = job.start(&origin);
        if starts > 0 {
            found += ranks.iter().map(|rank| stats(rank).found).sum::<u64>();
        }
        starts += 1;
        let (some, state) = read_some(&origin, &job, &ranks, random.below(4) + 1);
        for (read, some) in reads.iter_mut().zip(some) {
            some.into_iter().for_each(|(epoch, ids)| read.entry(epoch).or_default().extend(ids));
        }
        let is_end = state.epoch.0 == 10;
        job.resume = Some(state);
        if is_end {
            break;
        }
    }
    println!("{starts} starts, {found} samples found in the stores");
    assert!(reads == expected && starts >= 30, "{starts} starts");
    assert!(found as f64 > 0.95 * 240. * f64::from(starts - 1), "{found} of {starts} shares");
}

#[test]
fn samples_are_exchanged_while_the_epoch_runs_as_they_become_due_or_at_its_end() {
    let origin = Origin::new(13, 480, |_| 4_096);
    for blocking in [false, true] {
        let round = format!("blocking {blocking}");
        let job =
            Job { blocking, round, spec: "ram:64M".to_owned(), ..Job::new(&origin, 0.5, 3, 2) };
        let ranks = job.start(&origin);
        let (samples, directory) = (&origin.samples, ranks[0].directory());
        let shares = Shares::new(&job.order(), &**directory).unwrap();
        let due = |rank: u32, taken| {
            let all = shares.exchanges(&**directory, rank, Epoch(0));
            let due = all[..shares.steps_due(taken) as usize].iter();
            due.filter(|one| one.to != rank).count() as u64
        };
        let loaders: Vec<Loader> = (0..)
            .zip(&ranks)
            .map(|(rank, dataset)| dataset.loader(job.run(rank)).unwrap())
            .collect();
        for batch in 1..=20 {
            for loader in &loaders {
                let batch = loader.next(&mut ()).unwrap().unwrap();
                assert!(batch.iter().all(|one| one.bytes == samples[one.id.0 as usize]));
            }
            let expected = |rank| match (blocking, batch < 20) {
                (true, true) => 0,
                (true, false) => due(rank, 160),
                (false, _) => due(rank, batch * 8),
            };
            let received =
                || (0..).zip(&ranks).map(|(rank, of)| (stats(of).received, expected(rank)));
            wait_until("what is due", || received().all(|(received, due)| received == due));
        }
    }
}

#[test]
fn a_dead_rank_s_samples_come_from_the_origin() {
    let origin = Origin::new(7, 320, |_| 4_096);
    let job = Job { patience: Duration::from_millis(100), ..Job::new(&origin, 0.5, 4, 4) };
    let expected = expected(&origin, &job);
    let mut ranks = job.start(&origin);
    drop(ranks.pop());
    let reads = read_all(&origin, &job, &ranks);
    assert!(reads[..] == expected[..3]);
    let from_origin: u64 = ranks.iter().map(|rank| stats(rank).from_origin).sum();
    assert!(from_origin > 0, "the fourth rank's samples");
}

#[test]
fn without_the_origin_a_dead_rank_is_named_at_the_end_of_the_epoch() {
    let mut origin = Origin::new(8, 320, |_| 4_096);
    let job = Job {
        patience: Duration::from_millis(50),
        deadline: Duration::from_millis(300),
        ..Job::new(&origin, 0.5, 4, 4)
    };
    let mut ranks = job.start(&origin);
    drop(ranks.pop());
    origin.target = None;
    let loader = ranks[0].loader(job.run(0)).unwrap();
    let mut epochs = BTreeSet::new();
    let error = loop {
        match loader.next(&mut ()) {
            Ok(batch) => epochs.insert(batch.unwrap().epoch().0),
            Err(error) => break error,
        };
    };
    println!("{}", error.report());
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("rank 3"), "{error}");
    assert!(epochs.contains(&0), "the epoch itself needs nobody");
}

#[test]
fn a_damaged_store_is_mended_from_the_origin() {
    let origin = Origin::new(9, 200, |_| 5_000);
    let mut job = Job::new(&origin, 0.0, 2, 2);
    let expected = expected(&origin, &job);
    let damage = |byte: u8| {
        for file in fs::read_dir(origin.store_folder()).unwrap() {
            let path = file.unwrap().path();
            let file = fs::OpenOptions::new().write(true).read(true).open(&path).unwrap();
            let len = file.metadata().unwrap().len();
            for at in (0..len).step_by(40_000) {
                file.write_all_at(&[byte; 16], at).unwrap();
            }
        }
    };
    let ranks = job.start(&origin);
    let mended = || origin.read_bytes();
    let before = mended();
    damage(1);
    assert!(read_all(&origin, &job, &ranks) == expected, "damaged while it is open");
    assert!(mended() > before);
    drop(ranks);
    damage(2);
    job.round = "again".to_owned();
    let ranks = job.start(&origin);
    let found: u64 = ranks.iter().map(|rank| stats(rank).found).sum();
    assert!(found > 50 && found < 200, "{found} of 200 are right");
    assert!(read_all(&origin, &job, &ranks) == expected, "damaged before it was opened");
}

#[test]
fn another_number_of_ranks_begins_anew_between_epochs_and_uses_what_lies_there() {
    let origin = Origin::new(10, 360, |_| 2_000);
    let job = Job::new(&origin, 0.3, 4, 6);
    let ranks = job.start(&origin);
    let (_, within) = read_some(&origin, &job, &ranks, 5);
    drop(ranks);
    let few =
        Job { world_size: 3, round: "few".to_owned(), resume: Some(within.clone()), ..job.clone() };
    let dataset = Dataset::from_image(origin.open(), ReaderOptions::default());
    let error = dataset.loader(few.run(0)).unwrap_err();
    assert!(error.report().contains("--restart-shares"), "{}", error.report());
    assert!(within.begun_anew(&few.order(), 360).is_err(), "within an epoch");

    let job = Job { resume: Some(within), round: "rest".to_owned(), ..job };
    let ranks = job.start(&origin);
    let (_, border) = read_some(&origin, &job, &ranks, 7);
    assert_eq!((border.epoch, border.consumed), (Epoch(1), 0));
    drop(ranks);
    let anew = border.begun_anew(&few.order(), 360).unwrap();
    let few = Job { resume: Some(anew), ..few };
    let ranks = few.start(&origin);
    let found: u64 = ranks.iter().map(|rank| stats(rank).found).sum();
    println!("{found} of 360 samples lay there");
    assert!(found > 60, "{found}");
    let reads = read_all(&origin, &few, &ranks);
    check_whole(&origin, 1..6, &reads);
    assert!(reads == expected(&origin, &few));
}

#[test]
fn a_store_that_cannot_be_is_refused_with_the_reason() {
    let origin = Origin::new(12, 60, |_| 2_000);
    let job = Job::new(&origin, 0.5, 1, 1);
    let refuse = |spec: &str, change: &dyn Fn(&mut LoaderOptions)| {
        let mut run = job.run(0);
        change(&mut run);
        let options = StoreOptions::new(spec.parse().unwrap());
        let made = origin.open().with_store(options, &run, None, &mut |_| true);
        made.map(drop).unwrap_err().report()
    };
    let global = |run: &mut LoaderOptions| run.order.kind = OrderKind::Global;
    assert!(refuse("ram:1G", &global).contains("partial or local"));
    assert!(refuse("ram:8K", &|_| ()).contains("too small"));
    assert!(refuse("file:/nowhere:1G", &|_| ()).contains("make the folder"));
    let alone = |run: &mut LoaderOptions| {
        run.world_size = 2;
        run.order.kind = OrderKind::Partial { q: 0.5, world_size: 2 };
    };
    assert!(refuse("ram:1G", &alone).contains("--peers"));
    let mut calls = 0;
    let stopped = job.join_watched(&origin, 0, &mut |_| {
        calls += 1;
        calls < 2
    });
    assert_eq!(stopped.map(drop).unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn a_share_that_exceeds_its_store_is_an_error_and_no_larger_store() {
    let mut nth = 0;
    let origin = Origin::new(13, 20, |_| {
        nth += 1;
        if nth == 7 { 100 << 10 } else { 3_000 }
    });
    let job = Job { spec: "ram:112K".to_owned(), ..Job::new(&origin, 0.0, 2, 1) };
    let stored = |rank| {
        let options = StoreOptions::new(job.spec.parse().unwrap());
        origin.open().with_store(options, &job.run(rank), None, &mut |_| true).map(drop)
    };
    // Shares of average samples take 108 KiB, the one with the long sample at least 128 KiB.
    let (mut fits, mut full) = (0, 0);
    for error in [stored(0), stored(1)].map(Result::err) {
        match error {
            None => fits += 1,
            Some(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{}", error.report());
                full += 1;
            }
        }
    }
    assert_eq!((fits, full), (1, 1));
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < until, "waited for: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

const CHUNK_BYTES: u32 = 128 << 10;
