//! One loader for the ranks of a node: each rank gets exactly the batches that a loader of its own would read, whoever
//! reads, and whoever ends meanwhile.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use crate::support::fork::{ends_well, spawn_child};
use crate::support::random::Random;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Loader, Mixture, Options};
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::order::budget::Budget;
use dlfs::order::mixture::{Batching as MixBatching, Part};
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Sharding, State, Tail};
use dlfs::prefetch::{LoaderOptions, NodePlace};
use dlfs::qpair::ConnectOptions;
use dlfs::reader::Batch;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const GROUPED: OrderKind = OrderKind::Grouped { lanes: 0, group: 2 };
const BY_ID: OrderKind = OrderKind::Sequential { by: SequentialBy::Id };

/// Data sets, and the bytes of their samples.
struct Sets {
    temp: tempfile::TempDir,
    samples: Vec<Vec<Vec<u8>>>,
}

impl Sets {
    fn new(seed: u64, lens: &[usize], most: u64) -> Sets {
        println!("seed {seed}");
        let temp = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let mut sets = Sets { temp, samples: Vec::new() };
        for (number, &len) in lens.iter().enumerate() {
            let files = sets.temp.path().join(format!("files{number}"));
            let mut of_set = Vec::new();
            for id in 0..len {
                let folder = files.join(format!("class{}", id * 3 / len));
                fs::create_dir_all(&folder).unwrap();
                let mut bytes = vec![0; random.below(most) as usize];
                random.fill(&mut bytes);
                fs::write(folder.join(format!("{id:05}")), &bytes).unwrap();
                of_set.push(bytes);
            }
            let options = ImportOptions {
                chunk_size_bytes: 64 << 10,
                onto: Onto::Empty,
                ..ImportOptions::default()
            };
            let address = [sets.address(number)];
            import(&[files], &address, &options, &ConnectOptions::default(), &mut ()).unwrap();
            sets.samples.push(of_set);
        }
        sets
    }

    fn address(&self, number: usize) -> Address {
        Address::from_path(self.temp.path().join(format!("{number}.dlfs")))
    }

    fn open(&self, number: usize) -> Dataset {
        Dataset::open(&[self.address(number)], &Options::default(), &mut ()).unwrap()
    }

    /// The batch as it was seen; its bytes must be right.
    fn see(&self, batch: &Batch, state: &State) -> Seen {
        let sources = batch.sources();
        let samples = batch.iter().enumerate().map(|(at, sample)| {
            let source = sources.map_or(0, |sources| sources[at]);
            let bytes = &self.samples[source as usize][sample.id.0 as usize];
            assert!(sample.bytes == bytes, "sample {} of source {source}", sample.id);
            assert!(sample.label.is_some());
            (source, sample.id.0)
        });
        let samples = samples.collect();
        let after = (state.epoch.0, state.consumed);
        Seen { epoch: batch.epoch().0, ends_epoch: batch.ends_epoch(), samples, after }
    }

    /// Reads up to `most` batches.
    fn read(&self, loader: &Loader, most: usize) -> Vec<Seen> {
        let mut batch = Batch::new();
        let mut seen = Vec::new();
        while seen.len() < most && loader.next_into(&mut batch, &mut ()).unwrap() {
            seen.push(self.see(&batch, &loader.state()));
        }
        seen
    }
}

/// A batch that a rank was given.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Seen {
    epoch: u64,
    ends_epoch: bool,
    samples: Vec<(u32, u64)>,
    after: (u64, u64),
}

/// The source of a run.
enum Data {
    One(Dataset),
    Mixed(Mixture),
}

impl Data {
    fn loader(&self, options: LoaderOptions) -> Result<Loader> {
        match self {
            Data::One(dataset) => dataset.loader(options),
            Data::Mixed(mixture) => mixture.loader(options),
        }
    }
}

fn options(kind: OrderKind, batch_size: usize, epochs: u64) -> LoaderOptions {
    let order = OrderSpec { kind, seed: 5 };
    LoaderOptions { window_bytes: 2 << 20, ..LoaderOptions::new(order, batch_size, epochs) }
}

/// A name that no other test has.
fn job() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// `run` as rank `rank` of `nodes` nodes of `local` ranks.
fn on_node(run: &LoaderOptions, rank: u32, (nodes, local): (u32, u32), job: &str) -> LoaderOptions {
    let node = Some(NodePlace { local_world_size: local, job: job.to_owned() });
    LoaderOptions { rank, world_size: nodes * local, node, ..run.clone() }
}

/// Reads with a loader for each rank, and with one for each node, up to `most` batches on each rank; returns the
/// greatest state.
fn compare(
    sets: &Sets,
    data: &Data,
    run: &LoaderOptions,
    places: (u32, u32),
    most: usize,
) -> State {
    let (nodes, local) = places;
    let world_size = nodes * local;
    let alone = (0..world_size).map(|rank| {
        let own = LoaderOptions { rank, world_size, ..run.clone() };
        let loader = data.loader(own).unwrap();
        (sets.read(&loader, most), loader.state())
    });
    let (expected, states): (Vec<_>, Vec<_>) = alone.unzip();
    let job = job();
    thread::scope(|scope| {
        let reading: Vec<_> = (0..world_size)
            .map(|rank| {
                let own = on_node(run, rank, places, &job);
                scope.spawn(move || {
                    let loader = data.loader(own).unwrap();
                    let left = loader.batches_left();
                    let read = sets.read(&loader, most);
                    (read, left, loader.state())
                })
            })
            .collect();
        for (rank, reading) in reading.into_iter().enumerate() {
            let (read, left, state) = reading.join().unwrap();
            let what = format!("rank {rank} of {nodes} nodes of {local}, {run:?}");
            assert_eq!(read.len(), expected[rank].len(), "{what}");
            for (nth, (one, other)) in read.iter().zip(&expected[rank]).enumerate() {
                assert_eq!(one, other, "batch {nth} of {what}");
            }
            assert_eq!(state, states[rank], "{what}");
            let of_epoch = read.iter().filter(|seen| seen.epoch == read[0].epoch).count();
            assert!(left as usize >= of_epoch, "{what}");
        }
    });
    states.into_iter().min_by_key(|state| (state.epoch.0, state.consumed)).unwrap()
}

#[test]
fn ranks_of_a_node_get_the_batches_of_their_own_loaders_for_every_end_of_an_epoch() {
    let sets = Sets::new(1, &[127], 9_000);
    let data = Data::One(sets.open(0));
    for kind in [OrderKind::Global, GROUPED, BY_ID] {
        for (places, batch_size) in
            [((1, 1), 7), ((1, 4), 5), ((2, 3), 4), ((3, 2), 9), ((1, 5), 1)]
        {
            for (tail, drop_short) in [
                (Tail::Keep, false),
                (Tail::Keep, true),
                (Tail::DropLast, false),
                (Tail::DropLast, true),
                (Tail::Pad, false),
            ] {
                let run = LoaderOptions { tail, drop_short, ..options(kind, batch_size, 2) };
                compare(&sets, &data, &run, places, usize::MAX);
            }
        }
    }
}

#[test]
fn a_run_goes_on_with_other_nodes_and_ranks_from_any_state() {
    let sets = Sets::new(2, &[400], 3_000);
    let data = Data::One(sets.open(0));
    for kind in [OrderKind::Global, GROUPED] {
        let mut run = options(kind, 6, 3);
        let order = run.order.started(4);
        run.order = order;
        for (places, batch_size) in
            [((1, 4), 6), ((2, 2), 3), ((1, 3), 11), ((3, 1), 5), ((1, 2), 8)]
        {
            run.batch_size = batch_size;
            let state = compare(&sets, &data, &run, places, 4);
            println!("{places:?} to {} {}", state.epoch, state.consumed);
            run.resume = Some(state);
        }
        compare(&sets, &data, &run, (1, 4), usize::MAX);
    }
}

#[test]
fn views_weights_and_budgets_are_shared_like_whole_data_sets() {
    let sets = Sets::new(3, &[300], 5_000);
    let whole = sets.open(0);
    let view = whole.select_ids((0..300).filter(|id| id % 3 > 0).map(SampleId)).unwrap();
    let labels = (0..300).map(|id| whole.directory().label(SampleId(id)));
    let weights = Weights::of_labels(300, labels, &LabelWeights::Balanced, Draws::default());
    let weights = std::sync::Arc::new(weights.unwrap());
    let budget = Budget { window: 64, ..Budget::new(20_000) };
    for places in [(1, 1), (1, 3), (2, 2)] {
        for tail in [Tail::Keep, Tail::DropLast, Tail::Pad] {
            for kind in [OrderKind::Global, GROUPED] {
                let run = LoaderOptions { tail, ..options(kind, 1, 2).by_budget(budget.clone()) };
                let state = compare(&sets, &Data::One(whole.clone()), &run, places, 2);
                compare(&sets, &Data::One(view.clone()), &run, places, usize::MAX);
                let run = LoaderOptions { resume: Some(state), ..run };
                compare(&sets, &Data::One(whole.clone()), &run, places, usize::MAX);
            }
            let run = LoaderOptions { tail, ..options(OrderKind::Global, 7, 2) };
            compare(&sets, &Data::One(view.clone()), &run, places, usize::MAX);
            let run = run.weighted(std::sync::Arc::clone(&weights));
            compare(&sets, &Data::One(whole.clone()), &run, places, usize::MAX);
        }
    }
}

#[test]
fn mixtures_are_shared_like_data_sets() {
    let sets = Sets::new(4, &[150, 60, 90], 4_000);
    let mix = |batching| {
        let weights = ["3", "1", "2"].map(|weight| Part::Weight(weight.parse().unwrap()));
        let parts = (0..3).map(|number| sets.open(number)).zip(weights).collect();
        Data::Mixed(Mixture::new(parts, Some(240), batching, Vec::new()).unwrap())
    };
    for (batching, batch_size) in [
        (MixBatching::Stratified, 7),
        (MixBatching::Random, 5),
        (MixBatching::PerSource { batch: 6 }, 6),
        (MixBatching::PerSource { batch: 12 }, 6),
    ] {
        let data = mix(batching);
        for kind in [OrderKind::Global, GROUPED] {
            for places in [(1, 4), (2, 2), (1, 1)] {
                let run = options(kind, batch_size, 2);
                compare(&sets, &data, &run, places, usize::MAX);
                let pad = LoaderOptions { tail: Tail::Pad, ..run.clone() };
                compare(&sets, &data, &pad, places, usize::MAX);
                if batching == MixBatching::Random {
                    let budget = Budget { window: 50, ..Budget::new(9_000) };
                    compare(&sets, &data, &run.by_budget(budget), places, usize::MAX);
                }
            }
        }
    }
}

#[test]
fn ranks_move_to_other_epochs_and_states_and_keep_batches_that_they_hold() {
    let sets = Sets::new(5, &[200], 6_000);
    let dataset = sets.open(0);
    let job = job();
    let run = options(GROUPED, 5, 4);
    let ranks: Vec<Loader> =
        (0..2).map(|rank| dataset.loader(on_node(&run, rank, (1, 2), &job)).unwrap()).collect();
    let alone: Vec<Loader> = (0..2)
        .map(|rank| dataset.loader(LoaderOptions { rank, world_size: 2, ..run.clone() }).unwrap())
        .collect();
    let together = |most: usize| {
        thread::scope(|scope| {
            let read = ranks.iter().map(|rank| scope.spawn(|| sets.read(rank, most)));
            let read: Vec<_> =
                read.collect::<Vec<_>>().into_iter().map(|it| it.join().unwrap()).collect();
            for (rank, read) in read.iter().enumerate() {
                assert_eq!(*read, sets.read(&alone[rank], most), "rank {rank}");
            }
        });
    };
    together(3);
    let kept = ranks[0].next(&mut ()).unwrap().unwrap();
    let then = sets.see(&kept, &ranks[0].state());
    drop(alone[0].next(&mut ()).unwrap());
    sets.read(&ranks[1], 1);
    sets.read(&alone[1], 1);
    let state = ranks[0].state();
    for loader in ranks.iter().chain(&alone) {
        loader.set_epoch(2).unwrap();
    }
    together(30);
    for loader in ranks.iter().chain(&alone) {
        loader.set_state(&state).unwrap();
    }
    together(usize::MAX);
    assert_eq!(sets.see(&kept, &state), then, "nobody has written to it");
    // One rank after the other: the second makes the owner go back.
    for loader in ranks.iter().chain(&alone) {
        loader.set_epoch(3).unwrap();
    }
    for (rank, alone) in ranks.iter().zip(&alone) {
        let first = sets.read(rank, 2);
        assert_eq!(first, sets.read(alone, 2));
    }
    together(usize::MAX);
}

#[test]
fn a_rank_moves_to_a_state_whose_order_has_other_lanes() {
    let sets = Sets::new(16, &[200], 3_000);
    let dataset = sets.open(0);
    let run = options(GROUPED, 5, 2);
    let of_three = LoaderOptions { world_size: 3, ..run.clone() };
    let state = dataset.loader(of_three).unwrap().state();
    let rank = dataset.loader(on_node(&run, 0, (1, 1), &job())).unwrap();
    let alone = dataset.loader(run).unwrap();
    assert_ne!(rank.state().order, state.order);
    assert_eq!(sets.read(&rank, 2), sets.read(&alone, 2));
    for loader in [&rank, &alone] {
        loader.set_state(&state).unwrap();
    }
    let read = sets.read(&rank, usize::MAX);
    assert_eq!(read.len(), 80);
    assert_eq!(read, sets.read(&alone, usize::MAX));
}

#[test]
fn counters_of_reads_go_on_when_a_rank_moves_and_when_its_loader_ends() {
    let sets = Sets::new(19, &[200], 3_000);
    let dataset = sets.open(0);
    let of_epoch: u64 = sets.samples[0].iter().map(|bytes| bytes.len() as u64).sum();
    let run = options(GROUPED, 5, 3);
    let of_three = LoaderOptions { world_size: 3, ..run.clone() };
    let other_lanes = dataset.loader(of_three).unwrap().state();
    let rank = dataset.loader(on_node(&run, 0, (1, 1), &job())).unwrap();
    let mut before = 0;
    // Each move begins anew, so that each reads an epoch at least.
    for passes in 1..=3 {
        match passes {
            1 => {}
            2 => rank.set_epoch(2).unwrap(),
            _ => rank.set_state(&other_lanes).unwrap(),
        }
        let mut batches = 0;
        let until = Instant::now() + Duration::from_secs(120);
        while batches < 40 || before < passes * of_epoch {
            if batches < 40 {
                batches += sets.read(&rank, 1).len();
            } else {
                thread::sleep(Duration::from_millis(5)); // they are published later
            }
            let bytes = rank.stats().read.bytes;
            assert!(bytes >= before, "{bytes} bytes after {before}");
            before = bytes;
            assert!(Instant::now() < until, "{before} bytes in {passes} passes of {of_epoch}");
        }
    }
    rank.close();
    let done = rank.stats();
    assert!(done.read.bytes >= before);
    assert_eq!((done.batches, done.samples, done.window_bytes), (120, 600, 0));
}

#[test]
fn batches_stay_as_they_are_behind_the_end_of_their_loader_and_of_the_owner() {
    let sets = Sets::new(15, &[400], 9_000);
    let dataset = sets.open(0);
    let job = job();
    let run = LoaderOptions { window_bytes: 512 << 10, ..options(OrderKind::Global, 4, 2) };
    let loader = |rank| dataset.loader(on_node(&run, rank, (1, 3), &job)).unwrap();
    let ranks: Vec<Loader> = (0..3).map(loader).collect();
    let kept: Vec<(Batch, State)> = ranks
        .iter()
        .map(|rank| {
            let batch = rank.next(&mut ()).unwrap().unwrap();
            (batch, rank.state())
        })
        .collect();
    let then: Vec<Seen> = kept.iter().map(|(batch, state)| sets.see(batch, state)).collect();
    let state = ranks[2].state();
    ranks[2].close();
    let again = loader(2);
    again.set_state(&state).unwrap();
    let [owner, second, _] = <[Loader; 3]>::try_from(ranks).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            sets.read(&owner, 20);
            owner.close(); // another rank takes over
        });
        for rank in [&second, &again] {
            scope.spawn(|| assert_eq!(sets.read(rank, usize::MAX).len(), 67));
        }
    });
    let now: Vec<Seen> = kept.iter().map(|(batch, state)| sets.see(batch, state)).collect();
    assert_eq!(now, then);
}

#[test]
fn a_batch_in_one_piece_is_gathered_by_its_rank() {
    let sets = Sets::new(6, &[100], 5_000);
    let dataset = sets.open(0);
    let job = job();
    let run = LoaderOptions { copy_threads: Some(1), ..options(OrderKind::Global, 8, 1) };
    let loader = dataset.loader(on_node(&run, 0, (1, 1), &job)).unwrap();
    let alone = dataset.loader(run.clone()).unwrap();
    assert_eq!(sets.read(&loader, usize::MAX), sets.read(&alone, usize::MAX));
    assert!(loader.stats().copied_bytes > 0);
    let stats = loader.stats();
    assert_eq!((stats.samples, stats.batches), (100, 13));
}

#[test]
fn samples_longer_than_the_window_come_beside_it() {
    let sets = Sets::new(7, &[30], 60_000);
    let dataset = sets.open(0);
    let run = LoaderOptions { window_bytes: 16 << 10, ..options(OrderKind::Global, 2, 1) };
    compare(&sets, &Data::One(dataset), &run, (1, 2), usize::MAX);
}

#[test]
fn a_rank_without_a_part_of_an_epochs_last_batch_begins_the_next_epoch() {
    let sets = Sets::new(16, &[127], 3_000);
    let dataset = sets.open(0);
    let job = job();
    let run = options(OrderKind::Global, 1, 2);
    let rank = |rank, job: Option<&str>| {
        let alone = LoaderOptions { rank, world_size: 4, ..run.clone() };
        let own = job.map_or(alone, |job| on_node(&run, rank, (1, 4), job));
        let loader = dataset.loader(own).unwrap();
        // Three samples are left to four ranks: the last one goes on with the next epoch, as in Python.
        let state = State { consumed: 124, ..loader.state() };
        loader.set_state(&state).unwrap();
        if rank == 3 {
            loader.set_epoch(1).unwrap();
        }
        loader
    };
    let sets = &sets;
    thread::scope(|scope| {
        let ranks = (0..4).map(|number| {
            let loader = rank(number, Some(&job));
            (number, scope.spawn(move || sets.read(&loader, usize::MAX)))
        });
        let ranks: Vec<_> = ranks.collect();
        for (number, read) in ranks {
            assert_eq!(read.join().unwrap(), sets.read(&rank(number, None), usize::MAX));
        }
    });
}

#[test]
fn ranks_that_step_together_go_on_though_their_batches_exceed_the_window() {
    let sets = Sets::new(17, &[300], 5_000);
    let dataset = sets.open(0);
    let job = job();
    // Each rank holds its batch until all have theirs, as with a collective operation: some 120 KB of 64 KiB.
    let budget = Budget { window: 64, ..Budget::new(20_000) };
    let run = LoaderOptions {
        window_bytes: 64 << 10,
        tail: Tail::DropLast,
        ..options(OrderKind::Global, 1, 2).by_budget(budget)
    };
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for rank in 0..6 {
            let loader = dataset.loader(on_node(&run, rank, (1, 6), &job)).unwrap();
            let taken = &taken;
            scope.spawn(move || {
                let until = Instant::now() + Duration::from_secs(120);
                for step in 1.. {
                    let Some(_batch) = loader.next(&mut ()).unwrap() else { return };
                    taken.fetch_add(1, Ordering::AcqRel);
                    while taken.load(Ordering::Acquire) < step * 6 {
                        assert!(Instant::now() < until, "rank {rank} waits in step {step}");
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
    });
    assert!(taken.into_inner() >= 60, "ten steps");
}

#[test]
fn a_forked_child_does_not_have_the_batches_of_its_parent() {
    if ran_alone(a_forked_child_does_not_have_the_batches_of_its_parent) {
        return;
    }
    let sets = Sets::new(18, &[40], 3_000);
    let dataset = sets.open(0);
    let loader = dataset.loader(on_node(&options(OrderKind::Global, 8, 1), 0, (1, 1), &job()));
    let batch = loader.unwrap().next(&mut ()).unwrap().unwrap();
    let long = (0..8).find(|&at| !batch.bytes(at).is_empty()).unwrap();
    assert!(ends_well(spawn_child(|| true)));
    let reads = || {
        std::hint::black_box(batch.bytes(long)[0]);
        true
    };
    assert!(!ends_well(spawn_child(reads)));
}

/// The next batch, however often a busy machine exceeds the deadline.
fn next_at_last(loader: &Loader) -> Option<Batch> {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        match loader.next(&mut ()) {
            Err(error) if error.kind() == ErrorKind::TimedOut && Instant::now() < until => {}
            next => return next.unwrap(),
        }
    }
}

fn error_of(result: Result<Option<Batch>>) -> Error {
    result.map(drop).unwrap_err()
}

#[test]
fn who_holds_the_others_up_is_named() {
    let sets = Sets::new(8, &[600], 9_000);
    let dataset = sets.open(0);
    let job = job();
    let deadline = Duration::from_secs(2);
    let run =
        LoaderOptions { window_bytes: 256 << 10, deadline, ..options(OrderKind::Global, 8, 1) };
    let ranks: Vec<Loader> =
        (0..3).map(|rank| dataset.loader(on_node(&run, rank, (1, 3), &job)).unwrap()).collect();
    let held = [next_at_last(&ranks[1]), next_at_last(&ranks[2])];
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        match ranks[0].next(&mut ()) {
            Ok(batch) => assert!(batch.is_some(), "the others hold it up"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                if error.to_string().ends_with(": 1, 2") {
                    break;
                }
                // The machine is so busy that the process that reads is late itself.
                assert!(Instant::now() < until, "{error}");
            }
        }
    }
    drop(held);
    thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| {
                while let Some(batch) = next_at_last(rank) {
                    sets.see(&batch, &rank.state());
                }
            });
        }
    });
}

#[test]
fn a_seat_is_taken_once_and_what_does_not_fit_is_refused() {
    let sets = Sets::new(9, &[60], 2_000);
    let dataset = sets.open(0);
    let job = job();
    let run = options(OrderKind::Global, 4, 1);
    let own = on_node(&run, 0, (1, 1), &job);
    let first = dataset.loader(own.clone()).unwrap();
    first.next(&mut ()).unwrap();
    let second = dataset.loader(own.clone()).unwrap();
    let error = error_of(second.next(&mut ()));
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error.report().contains("job=") && error.to_string().contains("local rank 0"),
        "{error}"
    );
    // Another job, or other options, are another node.
    for other in [
        on_node(&run, 0, (1, 1), &format!("{job}-b")),
        LoaderOptions { batch_size: 5, ..own.clone() },
    ] {
        dataset.loader(other).unwrap().next(&mut ()).unwrap();
    }
    first.close();
    assert_eq!(sets.read(&dataset.loader(own.clone()).unwrap(), usize::MAX).len(), 15);
    let refused = |options: LoaderOptions| dataset.loader(options).unwrap_err();
    let local = LoaderOptions {
        order: OrderSpec { kind: OrderKind::Local { world_size: 1 }, seed: 1 },
        ..own.clone()
    };
    assert_eq!(refused(local).kind(), ErrorKind::InvalidArgument);
    let aligned = LoaderOptions {
        sharding: Sharding::Aligned,
        order: OrderSpec { kind: GROUPED, seed: 1 },
        ..own
    };
    assert!(refused(aligned).report().contains("leave the shares out"));
    let uneven = on_node(&run, 0, (1, 4), &job);
    assert!(refused(LoaderOptions { world_size: 6, ..uneven }).to_string().contains("6 ranks"));
}

#[test]
fn ranks_that_go_on_from_different_places_are_told() {
    let sets = Sets::new(10, &[200], 2_000);
    let dataset = sets.open(0);
    let job = job();
    let run = options(OrderKind::Global, 5, 1);
    let ranks: Vec<Loader> =
        (0..2).map(|rank| dataset.loader(on_node(&run, rank, (1, 2), &job)).unwrap()).collect();
    ranks[0].next(&mut ()).unwrap();
    let state = State { consumed: 13, ..ranks[1].state() };
    ranks[1].set_state(&state).unwrap();
    let error = error_of(ranks[1].next(&mut ()));
    assert!(error.to_string().contains("the same state"), "{error}");
    ranks[1].set_epoch(0).unwrap();
    ranks[1].next(&mut ()).unwrap();
}

#[test]
fn damage_is_an_error_of_every_rank() {
    let sets = Sets::new(11, &[80], 3_000);
    let dataset = sets.open(0);
    let path = sets.temp.path().join("0.dlfs");
    let damaged = &sets.samples[0][40];
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(damaged.len()).position(|found| found == damaged).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let read = |run: LoaderOptions| {
        let job = job();
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..2)
                .map(|rank| {
                    let loader = dataset.loader(on_node(&run, rank, (1, 2), &job)).unwrap();
                    scope.spawn(move || {
                        let mut batch = Batch::new();
                        loop {
                            match loader.next_into(&mut batch, &mut ()) {
                                Ok(true) => {}
                                Ok(false) => return (None, loader.stats()),
                                Err(error) => return (Some(error), loader.stats()),
                            }
                        }
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        })
    };
    for (error, _) in read(options(OrderKind::Global, 4, 1)) {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("sample 40"), "{error}");
    }
}

/// A rank in a process of its own, which writes down each batch that it takes.
struct Rank {
    process: Pid,
    log: PathBuf,
}

impl Rank {
    /// Reads from what is written down on; stops behind `most` batches in all, and lives on.
    fn start(sets: &Sets, run: &LoaderOptions, most: usize) -> Rank {
        let log = sets.temp.path().join(format!("rank-{}", run.rank));
        let process = spawn_child(|| {
            let dataset = sets.open(0);
            let before = seen(&log);
            let loader = dataset.loader(run.clone()).unwrap();
            if let Some(last) = before.last() {
                let (epoch, consumed) = last.after;
                loader
                    .set_state(&State {
                        epoch: dlfs::units::Epoch(epoch),
                        consumed,
                        ..loader.state()
                    })
                    .unwrap();
            }
            let mut file = fs::File::options().create(true).append(true).open(&log).unwrap();
            let mut batch = Batch::new();
            let mut count = before.len();
            while count < most && loader.next_into(&mut batch, &mut ()).unwrap() {
                let line = serde_json::to_string(&sets.see(&batch, &loader.state())).unwrap();
                file.write_all(format!("{line}\n").as_bytes()).unwrap();
                count += 1;
            }
            if most != usize::MAX {
                loop {
                    thread::sleep(Duration::from_secs(1)); // until it is killed
                }
            }
            true
        });
        Rank { process, log }
    }

    fn wait_for(&self, count: usize) {
        let until = Instant::now() + Duration::from_secs(120);
        while seen(&self.log).len() < count {
            assert!(Instant::now() < until, "{:?} has {} batches", self.log, seen(&self.log).len());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&self) {
        kill_process(self.process, Signal::KILL).unwrap();
        waitpid(Some(self.process), WaitOptions::empty()).unwrap();
    }
}

/// The batches that are written down.
fn seen(log: &Path) -> Vec<Seen> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_as_alone(sets: &Sets, run: &LoaderOptions, world_size: u32) {
    let dataset = sets.open(0);
    for rank in 0..world_size {
        let own = LoaderOptions { rank, world_size, ..run.clone() };
        let expected = sets.read(&dataset.loader(own).unwrap(), usize::MAX);
        let read = seen(&sets.temp.path().join(format!("rank-{rank}")));
        assert_eq!(read.len(), expected.len(), "rank {rank}");
        assert!(read == expected, "rank {rank}");
    }
}

#[test]
fn ranks_go_on_without_loss_or_repetition_when_the_process_that_reads_is_killed() {
    if ran_alone(ranks_go_on_without_loss_or_repetition_when_the_process_that_reads_is_killed) {
        return;
    }
    for kind in [OrderKind::Global, GROUPED] {
        let sets = Sets::new(12, &[900], 4_000);
        let job = job();
        let run = options(kind, 4, 2);
        let place = |rank| on_node(&run, rank, (1, 4), &job);
        let owner = Rank::start(&sets, &place(0), 20);
        owner.wait_for(1);
        let mut others: Vec<Rank> =
            (1..4).map(|rank| Rank::start(&sets, &place(rank), usize::MAX)).collect();
        owner.wait_for(20);
        owner.kill();
        // The next owner is one of the others: each is killed in turn, and started again.
        others[0].wait_for(30);
        for (rank, other) in (1..).zip(&mut others[..2]) {
            other.kill();
            *other = Rank::start(&sets, &place(rank), usize::MAX);
        }
        others.push(Rank::start(&sets, &place(0), usize::MAX));
        assert!(others.iter().all(|rank| ends_well(rank.process)));
        assert_as_alone(&sets, &run, 4);
    }
}

#[test]
fn a_stopped_rank_that_is_killed_holds_nobody_up_any_more() {
    if ran_alone(a_stopped_rank_that_is_killed_holds_nobody_up_any_more) {
        return;
    }
    let sets = Sets::new(13, &[400], 9_000);
    let job = job();
    let run = LoaderOptions { window_bytes: 256 << 10, ..options(OrderKind::Global, 8, 1) };
    let ranks: Vec<Rank> = [usize::MAX, 2]
        .into_iter()
        .enumerate()
        .map(|(rank, most)| Rank::start(&sets, &on_node(&run, rank as u32, (1, 2), &job), most))
        .collect();
    ranks[1].wait_for(2);
    ranks[1].kill();
    assert!(ends_well(ranks[0].process), "it goes on alone");
    assert!(ends_well(Rank::start(&sets, &on_node(&run, 1, (1, 2), &job), usize::MAX).process));
    assert_as_alone(&sets, &run, 2);
}

#[test]
fn a_rank_takes_little_memory_beside_the_window_of_its_node() {
    if ran_alone(a_rank_takes_little_memory_beside_the_window_of_its_node) {
        return;
    }
    let sets = Sets::new(14, &[4_000], 40_000);
    let job = job();
    let run = LoaderOptions { window_bytes: 64 << 20, ..options(OrderKind::Global, 16, 3) };
    let memory = |rank: u32| sets.temp.path().join(format!("memory-{rank}"));
    let ranks: Vec<Pid> = (0..4)
        .map(|rank| {
            let own = on_node(&run, rank, (1, 4), &job);
            spawn_child(|| {
                let dataset = sets.open(0);
                let before = private_bytes();
                let loader = dataset.loader(own).unwrap();
                let read = sets.read(&loader, usize::MAX).len();
                fs::write(memory(rank), (private_bytes().saturating_sub(before)).to_string())
                    .unwrap();
                read > 0
            })
        })
        .collect();
    assert!(ranks.into_iter().all(ends_well));
    for rank in 0..4 {
        let bytes: u64 = fs::read_to_string(memory(rank)).unwrap().parse().unwrap();
        println!("rank {rank}: {} KiB", bytes >> 10);
        assert!(bytes < 16 << 20, "rank {rank}: {bytes}");
    }
}

/// Memory that this process shares with nobody. Windows do not count: the last process has one to itself.
fn private_bytes() -> u64 {
    let mut is_window = false;
    let mut kib = 0;
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap();
        if !name.ends_with(':') {
            is_window = line.contains("/memfd:dlfs");
        } else if name.starts_with("Private_") && !is_window {
            kib += words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    kib << 10
}
