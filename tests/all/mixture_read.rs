//! Reading mixtures: each global batch has what the arithmetic says, whatever the world size, the batch size, and the
//! point of a resume; ids, labels and bytes are those of the source; what makes no mixture is refused by name.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use crate::support::alone::ran_alone;
use crate::support::random::Random;
use crate::support::warnings::warnings_of;
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Dataset, Mixture, OnError, Options};
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::order::budget::{Budget, Cost, Deal, LengthsOf};
use dlfs::order::mixture::{Batching, Part, Phase};
use dlfs::order::{EpochOrder, OrderKind, OrderSpec, Positions, SequentialBy, Shard, State, Tail};
use dlfs::permutation::Key;
use dlfs::prefetch::{self, LoaderOptions};
use dlfs::qpair::ConnectOptions;
use dlfs::tier::Policy;
use dlfs::units::{Epoch, SampleId};

const GROUPED: OrderKind = OrderKind::Grouped { lanes: 0, group: 2 };
const BY_SLOT: OrderKind = OrderKind::Sequential { by: SequentialBy::Slot };

/// Data sets of random samples.
struct Sets {
    temp: tempfile::TempDir,
    samples: Vec<Vec<Vec<u8>>>,
    sets: Vec<Dataset>,
}

impl Sets {
    /// Data sets of so many samples each, of up to `most` bytes.
    fn new(seed: u64, lens: &[usize], most: u64) -> Sets {
        println!("seed {seed}");
        let temp = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let mut samples = Vec::new();
        let mut sets = Vec::new();
        for (number, &len) in lens.iter().enumerate() {
            let folder = temp.path().join(format!("files{number}/class{number}"));
            fs::create_dir_all(&folder).unwrap();
            let mut of_set = Vec::new();
            for id in 0..len {
                let mut bytes = vec![0; 16 + random.below(most) as usize];
                random.fill(&mut bytes);
                fs::write(folder.join(format!("{id:05}")), &bytes).unwrap();
                of_set.push(bytes);
            }
            let address = address(temp.path(), number);
            let options = ImportOptions {
                chunk_size_bytes: 64 << 10,
                onto: Onto::Empty,
                ..ImportOptions::default()
            };
            let files = temp.path().join(format!("files{number}"));
            let connect = ConnectOptions::default();
            import(&[files], std::slice::from_ref(&address), &options, &connect, &mut ()).unwrap();
            samples.push(of_set);
            sets.push(Dataset::open(&[address], &Options::default(), &mut ()).unwrap());
        }
        Sets { temp, samples, sets }
    }

    fn mix(&self, weights: &[&str], size: Option<u64>, batching: Batching) -> Mixture {
        Mixture::new(self.weighed(weights), size, batching, Vec::new()).unwrap()
    }

    fn weighed(&self, weights: &[&str]) -> Vec<(Dataset, Part)> {
        let parts = weights.iter().map(|weight| Part::Weight(weight.parse().unwrap()));
        self.sets.iter().cloned().zip(parts).collect()
    }

    /// The samples of the whole run, by position, from the description and the orders of single data sets.
    fn model(&self, mixture: &Mixture, options: &LoaderOptions) -> Vec<Drawn> {
        let mut sequence = dlfs::order::mixture::Mixture::new(&mixture.spec(options)).unwrap();
        let started = options.order.started(options.world_size);
        let chunks = |set: &Dataset| u64::from(set.directory().num_chunks());
        let all: u64 = self.sets.iter().map(chunks).sum();
        let specs: Vec<OrderSpec> = (0..)
            .zip(&self.sets)
            .map(|(number, set)| {
                let seed = Key::derive(started.seed, &[7, number]).word();
                let kind = match started.kind {
                    OrderKind::Grouped { lanes, group } => {
                        let share = ((8 * chunks(set) + all / 2) / all).clamp(1, 8) as u32;
                        OrderKind::Grouped { lanes: lanes.min((lanes / 8).max(1) * share), group }
                    }
                    kind => kind,
                };
                OrderSpec { kind, seed }
            })
            .collect();
        let mut orders = HashMap::new();
        let draw = |position| {
            let draw = sequence.draw(position);
            let number = draw.source as usize;
            let directory = self.sets[number].directory();
            let order = orders.entry((draw.source, draw.epoch.0)).or_insert_with(|| {
                EpochOrder::new(&specs[number], draw.epoch, &**directory).unwrap()
            });
            let mut ids = Vec::new();
            order.ids(&**directory, Positions::new(draw.position, 1, 1), &mut ids);
            (draw.source, ids[0].0)
        };
        let epoch =
            dlfs::order::mixture::Mixture::new(&mixture.spec(options)).unwrap().epoch_size();
        (0..epoch * options.epochs.end).map(draw).collect()
    }

    /// Reads until the end, or `most` batches.
    fn read(
        &self,
        mixture: &Mixture,
        options: LoaderOptions,
        most: usize,
    ) -> (Vec<Vec<Drawn>>, State) {
        let mut left = most;
        let (batches, state) = self.read_while(mixture, options, |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        (batches.into_values().collect(), state)
    }

    /// Reads until the end, or until `goes_on` says no to the place of a batch, its epoch and number; checks bytes
    /// and labels.
    fn read_while(
        &self,
        mixture: &Mixture,
        options: LoaderOptions,
        mut goes_on: impl FnMut((u64, usize)) -> bool,
    ) -> (BTreeMap<(u64, usize), Vec<Drawn>>, State) {
        let loader = mixture.loader(options).unwrap();
        let mut batches = BTreeMap::new();
        let mut next = (0, 0);
        while let Some(batch) = loader.next(&mut ()).unwrap() {
            let epoch = batch.epoch().0;
            let place = if next.0 == epoch { next } else { (epoch, 0) };
            next = (epoch, place.1 + 1);
            let sources = batch.sources().expect("it is of a mixture").to_vec();
            assert_eq!(sources.len(), batch.len());
            for (sample, &source) in batch.iter().zip(&sources) {
                let right = &self.samples[source as usize][sample.id.0 as usize];
                assert!(sample.bytes == right, "sample {} of source {source}", sample.id);
                assert_eq!(sample.label, Some(0), "of the only class of its data set");
            }
            batches.insert(place, sources.into_iter().zip(batch.ids().map(|id| id.0)).collect());
            if !goes_on(place) {
                break;
            }
        }
        (batches, loader.state())
    }

    /// Reads with all ranks from the state of `options`; returns the global batches, and the state afterwards.
    fn read_all(
        &self,
        mixture: &Mixture,
        options: &LoaderOptions,
        most: usize,
    ) -> (Vec<Vec<Drawn>>, State) {
        // Rank 0 has a part of each global batch; others may have none of a short one.
        let mut left = most;
        let (mut together, state) = self.read_while(mixture, options.clone(), |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        let last = *together.keys().last().expect("a batch");
        for rank in 1..options.world_size {
            let own = LoaderOptions { rank, ..options.clone() };
            let (batches, _) = self.read_while(mixture, own, |place| place < last);
            for (place, own) in batches.into_iter().filter(|(place, _)| *place <= last) {
                together.get_mut(&place).expect("rank 0 has it").extend(own);
            }
        }
        (together.into_values().collect(), state)
    }
}

/// Source and id.
type Drawn = (u32, u64);

fn address(folder: &Path, number: usize) -> Address {
    Address::from_path(folder.join(format!("set{number}.dlfs")))
}

fn options(kind: OrderKind, batch_size: usize, epochs: u64) -> LoaderOptions {
    LoaderOptions {
        window_bytes: 8 << 20,
        ..LoaderOptions::new(OrderSpec { kind, seed: 11 }, batch_size, epochs)
    }
}

/// Changes a byte of a sample on its medium.
fn damage(sets: &Sets, source: usize, id: usize) {
    let file = sets.temp.path().join(format!("set{source}.dlfs"));
    let mut bytes = fs::read(&file).unwrap();
    let head = &sets.samples[source][id][..16];
    let at = bytes.windows(16).position(|window| window == head).expect("it lies there");
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
}

/// Asserts that batches are, as sets, what the model has from `position` on; epochs of `size` cut batches.
fn assert_follows(
    batches: &[Vec<Drawn>],
    model: &[Drawn],
    mut position: usize,
    size: usize,
    global: usize,
) {
    for (number, batch) in batches.iter().enumerate() {
        let end = (position + global).min((position / size + 1) * size);
        let mut read = batch.clone();
        let mut right = model[position..end].to_vec();
        read.sort_unstable();
        right.sort_unstable();
        assert_eq!(read, right, "global batch {number}, positions {position}..{end}");
        position = end;
    }
}

fn to_end(batches: &[Vec<Drawn>]) -> usize {
    batches.iter().map(Vec::len).sum()
}

#[test]
fn each_global_batch_has_what_the_arithmetic_says() {
    let sets = Sets::new(1, &[300, 90, 1, 40], 9000);
    let batchings = [Batching::Stratified, Batching::Random, Batching::PerSource { batch: 24 }];
    for kind in [OrderKind::Global, GROUPED, BY_SLOT] {
        for batching in batchings {
            let mixture = sets.mix(&["3", "2", "0.01", "2.5"], Some(240), batching);
            for (world_size, batch_size) in [(1, 24), (2, 12), (3, 8)] {
                let options = LoaderOptions { world_size, ..options(kind, batch_size, 3) };
                let model = sets.model(&mixture, &options);
                let (batches, state) = sets.read_all(&mixture, &options, usize::MAX);
                assert_eq!(to_end(&batches), 720, "{kind:?} {batching:?} {world_size}");
                assert_follows(&batches, &model, 0, 240, 24);
                assert_eq!((state.epoch.0, state.consumed), (3, 0));
            }
        }
    }
}

#[test]
fn one_rank_reads_in_sequence_and_every_epoch_of_a_source_has_each_sample_once() {
    let sets = Sets::new(2, &[60, 25], 3000);
    let mixture = sets.mix(&["1", "2"], Some(90), Batching::Stratified);
    let options = options(GROUPED, 16, 5);
    let (batches, _) = sets.read(&mixture, options.clone(), usize::MAX);
    let read: Vec<Drawn> = batches.into_iter().flatten().collect();
    assert_eq!(read, sets.model(&mixture, &options));
    for (source, len) in [(0, 60), (1, 25)] {
        let ids: Vec<u64> =
            read.iter().filter(|drawn| drawn.0 == source).map(|drawn| drawn.1).collect();
        for (number, epoch) in ids.chunks_exact(len).enumerate() {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert!(
                sorted.iter().copied().eq(0..len as u64),
                "source {source}, its epoch {number}"
            );
        }
        assert!(ids[..len] != ids[len..2 * len] || ids.len() < 2 * len, "shuffled anew");
    }
}

/// The sequence is frozen: of orders that depend on numbers of samples alone, some samples of each kind of batching.
#[test]
fn the_sequence_of_a_mixture_is_frozen() {
    let sets = Sets::new(3, &[50, 7, 20], 200);
    let first = |batching| {
        let mixture = sets.mix(&["0.5", "0.3", "0.2"], Some(40), batching);
        let (batches, _) = sets.read(&mixture, options(OrderKind::Global, 10, 1), 1);
        batches[0].iter().map(|(source, id)| format!("{source}:{id}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(first(Batching::Stratified), FROZEN_STRATIFIED);
    assert_eq!(first(Batching::Random), FROZEN_RANDOM);
}

const FROZEN_STRATIFIED: &str = "0:29 1:2 0:0 2:13 0:23 1:6 0:19 2:12 0:48 1:3";
const FROZEN_RANDOM: &str = "0:29 0:0 2:13 1:2 0:23 0:19 0:48 1:6 1:3 2:12";

/// `DLFS_MIXTURE_CASES` says how many; `tools/check --all` tries three thousand.
#[test]
fn a_run_resumes_anywhere_with_other_ranks_batches_and_orders() {
    let cases = std::env::var("DLFS_MIXTURE_CASES").map_or(40, |text| text.parse().unwrap());
    let seed = std::env::var("DLFS_MIXTURE_SEED").map_or(4, |text| text.parse().unwrap());
    let sets = Sets::new(seed, &[70, 33, 1, 12], 1500);
    let mut random = Random::new(seed);
    for case in 0..cases {
        let kind = [OrderKind::Global, GROUPED, BY_SLOT][random.below(3) as usize];
        // Batches of one source fix their length, whatever the batches of the run; epochs and phases have whole ones.
        let unit = [1, 1, 1 + random.below(12)][random.below(3) as usize];
        let batching = match random.below(3) {
            _ if unit > 1 => Batching::PerSource { batch: unit },
            0 => Batching::Random,
            _ => Batching::Stratified,
        };
        let size = (20 + random.below(120)).next_multiple_of(unit);
        let weights: Vec<String> =
            (0..4).map(|_| format!("{}.{}", random.below(4), 1 + random.below(9))).collect();
        let weights: Vec<&str> = weights.iter().map(String::as_str).collect();
        let phases = vec![Phase {
            from: (1 + random.below(2 * size)).next_multiple_of(unit),
            weights: ["1", "0", "2", "0.5"].map(|weight| weight.parse().unwrap()).to_vec(),
        }];
        let mixture = Mixture::new(sets.weighed(&weights), Some(size), batching, phases).unwrap();
        let mut options = options(kind, 1, 3);
        options.order.seed = random.below(1 << 40);
        // The lanes are those of the first run.
        options.world_size = 1 + random.below(4) as u32;
        let model = sets.model(&mixture, &options);
        let mut position = 0;
        for _ in 0..3 {
            options.batch_size = 1 + random.below(20) as usize;
            let most = 1 + random.below(5) as usize;
            let (batches, state) = sets.read_all(&mixture, &options, most);
            let global = options.batch_size * options.world_size as usize;
            println!("case {case}: {kind:?} {batching:?} size {size} at {position}, {global}");
            assert_follows(&batches, &model, position, size as usize, global);
            position += to_end(&batches);
            let stands = (state.epoch.0 * size + state.consumed) as usize;
            assert_eq!(stands, position, "the state counts what was read");
            options.resume = Some(State::from_json(&state.to_json()).unwrap());
            options.world_size = 1 + random.below(4) as u32;
            if state.epoch.0 == 3 {
                break;
            }
        }
    }
}

#[test]
fn grouped_order_reads_each_chunk_about_once() {
    let sets = Sets::new(5, &[600, 600, 200], 4000);
    let bytes: u64 = sets.samples.iter().flatten().map(|bytes| bytes.len() as u64).sum();
    for (batching, world_size) in
        [Batching::Stratified, Batching::Random].into_iter().flat_map(|b| [1, 2, 4].map(|w| (b, w)))
    {
        let mixture = sets.mix(&["3", "3", "1"], None, batching);
        let mut read = 0;
        for rank in 0..world_size {
            let options = LoaderOptions {
                world_size,
                rank,
                batching: Some(prefetch::Batching::Chunk),
                window_bytes: 16 << 20,
                ..options(GROUPED, 32, 1)
            };
            let loader = mixture.loader(options).unwrap();
            while loader.next(&mut ()).unwrap().is_some() {}
            read += loader.stats().read.bytes;
        }
        println!("{batching:?}: {world_size} ranks read {read} of {bytes} bytes");
        assert!(
            (read as f64) < 1.35 * bytes as f64,
            "{batching:?}: {world_size} ranks read {read} of {bytes} bytes"
        );
    }
}

#[test]
fn a_damaged_sample_is_left_out_with_its_source() {
    let sets = Sets::new(6, &[40, 40], 3000);
    damage(&sets, 1, 17);
    let mixture = sets.mix(&["1", "1"], None, Batching::Stratified);
    for kind in [OrderKind::Global, GROUPED] {
        let skip = LoaderOptions { on_error: OnError::Skip, ..options(kind, 8, 2) };
        let (batches, _) = sets.read(&mixture, skip.clone(), usize::MAX);
        let read = batches.concat();
        let mut model = sets.model(&mixture, &skip);
        model.retain(|&drawn| drawn != (1, 17));
        assert_eq!(read, model, "{kind:?}");
        let loader = mixture.loader(options(kind, 8, 2)).unwrap();
        let error = loop {
            match loader.next(&mut ()) {
                Ok(batch) => assert!(batch.is_some(), "the run ended without the error"),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), error.sample_id()), (ErrorKind::Corrupt, Some(SampleId(17))));
        assert!(error.report().contains("set1.dlfs"), "{}", error.report());
    }
}

#[test]
fn what_makes_no_mixture_is_refused_before_anything_is_read() {
    let sets = Sets::new(7, &[30, 20], 500);
    let new = |weights: &[&str]| {
        let error = Mixture::new(sets.weighed(weights), None, Batching::Stratified, Vec::new());
        error.unwrap_err().report()
    };
    assert!(new(&["1", "0"]).contains("set1.dlfs has a part of 0"), "{}", new(&["1", "0"]));
    assert!(new(&["0", "0"]).contains("set0.dlfs has a part of 0"));
    let part = Part::Weight("1".parse().unwrap());
    let twice = vec![(sets.sets[0].clone(), part), (sets.sets[0].clone(), part)];
    let error = Mixture::new(twice, None, Batching::Stratified, Vec::new()).unwrap_err();
    assert!(error.report().contains("are the same data set"), "{}", error.report());
    assert!(Mixture::new(Vec::new(), None, Batching::Stratified, Vec::new()).is_err());

    let mixture = sets.mix(&["1", "1"], None, Batching::Stratified);
    let refused = |options: LoaderOptions| mixture.loader(options).unwrap_err().report();
    let shares = OrderKind::Partial { q: 0.5, world_size: 1 };
    assert!(refused(options(shares, 4, 1)).contains("no order of shares"));
    assert!(refused(options(GROUPED, 0, 1)).contains("at least one sample"));
    let local = dlfs::order::Sharding::Local;
    let options_local = LoaderOptions { sharding: local, ..options(GROUPED, 4, 1) };
    assert!(refused(options_local).contains("no local shares"));
    let mut sampler = mixture.sampler(options(GROUPED, 4, u64::MAX)).unwrap();
    let error = sampler.set_epoch(1 << 60).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    sampler.set_epoch(1 << 20).unwrap();
    assert!(sampler.next(&mut Vec::new()).unwrap().is_some());
}

#[test]
fn a_state_of_another_mixture_names_the_source_that_differs() {
    let sets = Sets::new(8, &[30, 20, 10], 500);
    let mixture = sets.mix(&["1", "1"], None, Batching::Stratified);
    let (_, state) = sets.read(&mixture, options(GROUPED, 4, 2), 3);
    let refused = |mixture: &Mixture, state: &State| {
        let options = LoaderOptions { resume: Some(state.clone()), ..options(GROUPED, 4, 2) };
        let at_start = mixture.loader(options).unwrap_err().report();
        let loader = mixture.loader(self::options(GROUPED, 4, 2)).unwrap();
        assert_eq!(loader.set_state(state).unwrap_err().report(), at_start);
        at_start
    };
    let part = |weight: &str| Part::Weight(weight.parse().unwrap());
    let other = vec![(sets.sets[0].clone(), part("1")), (sets.sets[2].clone(), part("1"))];
    let other = Mixture::new(other, None, Batching::Stratified, Vec::new()).unwrap();
    let text = refused(&other, &state);
    assert!(text.contains("source") && text.contains("set2.dlfs is"), "{text}");
    let text = refused(&sets.mix(&["1", "2"], None, Batching::Stratified), &state);
    assert!(text.contains("set1.dlfs has another part"), "{text}");
    assert!(refused(&sets.mix(&["1", "1"], None, Batching::Random), &state).contains("batching"));
    let of_one = sets.sets[0].loader(options(GROUPED, 4, 2)).unwrap();
    assert!(refused(&mixture, &of_one.state()).contains("this is a mixture"));
    let error = of_one.set_state(&state).unwrap_err();
    assert!(error.report().contains("belongs to a mixture"), "{}", error.report());
}

#[test]
fn later_phases_may_change_at_a_resume_and_earlier_ones_may_not() {
    let sets = Sets::new(9, &[30, 20], 500);
    let phase = |from, weights: [&str; 2]| Phase {
        from,
        weights: weights.map(|weight| weight.parse().unwrap()).to_vec(),
    };
    let mix = |phases| {
        Mixture::new(sets.weighed(&["1", "1"]), Some(40), Batching::Stratified, phases).unwrap()
    };
    let old = mix(vec![phase(8, ["1", "0"]), phase(40, ["0", "1"])]);
    let (_, state) = sets.read(&old, options(OrderKind::Global, 4, 3), 5);
    assert_eq!((state.epoch, state.consumed), (Epoch(0), 20));
    let resumed = LoaderOptions { resume: Some(state), ..options(OrderKind::Global, 4, 3) };
    let new = mix(vec![phase(8, ["1", "0"]), phase(24, ["0", "1"])]);
    let (batches, after) = sets.read(&new, resumed.clone(), usize::MAX);
    assert_eq!(batches.concat(), sets.model(&new, &resumed)[20..]);
    assert_eq!(after.mixture.unwrap().phases, new.spec(&resumed).phases);
    let past = mix(vec![phase(9, ["1", "0"]), phase(40, ["0", "1"])]);
    let error = past.loader(resumed).unwrap_err().report();
    assert!(error.contains("a phase before sample 20"), "{error}");
}

#[test]
fn padding_and_dropping_keep_the_ranks_equal() {
    let sets = Sets::new(10, &[30, 20], 500);
    let mixture = sets.mix(&["1", "1"], Some(43), Batching::Stratified);
    for (tail, drop_short, each) in
        [(Tail::Pad, false, 15), (Tail::DropLast, false, 14), (Tail::DropLast, true, 12)]
    {
        for rank in 0..3 {
            let options =
                LoaderOptions { rank, world_size: 3, tail, drop_short, ..options(GROUPED, 4, 2) };
            let (batches, _) = sets.read(&mixture, options, usize::MAX);
            assert_eq!(to_end(&batches), 2 * each, "{tail:?} {drop_short} {rank}");
        }
    }
}

#[test]
fn a_loader_over_many_data_sets_has_the_threads_of_one() {
    if ran_alone(a_loader_over_many_data_sets_has_the_threads_of_one) {
        return;
    }
    let lens = [3; 48];
    let sets = Sets::new(11, &lens, 300);
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let weights = vec!["1"; lens.len()];
    let mixture = sets.mix(&weights, None, Batching::Stratified);
    let during = |mixture: &Mixture| {
        let loader = mixture.loader(options(GROUPED, 8, 100)).unwrap();
        loader.next(&mut ()).unwrap().unwrap();
        threads()
    };
    // Other tests run beside this one, in threads of their own: the least of several tries is free of them.
    let most_of_many = (0..5).map(|_| during(&mixture)).min().unwrap();
    println!("{most_of_many} threads with {} data sets", lens.len());
    assert!(most_of_many < lens.len(), "{most_of_many} threads");
}

#[test]
fn a_batch_may_draw_a_tiny_source_hundreds_of_times() {
    // Each time is an epoch of its own of that source, between the samples of the others.
    let sets = Sets::new(12, &[1, 200, 2], 300);
    for kind in [OrderKind::Global, GROUPED] {
        let mixture = sets.mix(&["1", "1", "1"], Some(1800), Batching::Stratified);
        let (batches, _) = sets.read_all(&mixture, &options(kind, 900, 1), usize::MAX);
        let of_tiny = batches[0].iter().filter(|(source, _)| *source == 0).count();
        assert_eq!((batches.len(), of_tiny), (2, 300), "{kind:?}");
    }
}

#[test]
fn small_batches_before_a_damaged_one_are_delivered_and_then_the_reason() {
    let sets = Sets::new(13, &[90, 60], 900);
    damage(&sets, 1, 30);
    for kind in [OrderKind::Global, GROUPED] {
        let mixture = sets.mix(&["3", "2"], Some(150), Batching::Stratified);
        let options = options(kind, 4, 1);
        let model = sets.model(&mixture, &options);
        let damaged = model.iter().position(|drawn| *drawn == (1, 30)).unwrap() / 4;
        let loader = mixture.loader(options).unwrap();
        let mut read = 0;
        let error = loop {
            match loader.next(&mut ()) {
                Ok(batch) => {
                    assert_eq!(batch.expect("the damaged one is not read").len(), 4);
                    read += 1;
                }
                Err(error) => break error,
            }
        };
        assert_eq!((read, error.kind()), (damaged, ErrorKind::Corrupt), "{kind:?}: {error}");
        assert_eq!(loader.state().consumed, 4 * damaged as u64, "{kind:?}");
    }
}

/// The batches by the budget of `options`, of all ranks, of each epoch of `model`.
fn cut(sets: &Sets, model: &[Drawn], options: &LoaderOptions, size: usize) -> Vec<Vec<Vec<Drawn>>> {
    let budget = options.budget.as_ref().unwrap();
    let epochs = (0..).zip(model.chunks(size)).map(|(epoch, samples)| {
        let shard = Shard::new(0, 1, Tail::Keep).unwrap();
        let seed = options.order.seed;
        let mut deal = Deal::new(budget, seed, Epoch(epoch), samples.len() as u64, shard);
        let mut draw =
            |range: std::ops::Range<u64>, out: &mut Vec<Drawn>, tokens: &mut Vec<u32>| {
                let samples = &samples[range.start as usize..range.end as usize];
                let len = |&(source, id): &Drawn| sets.samples[source as usize][id as usize].len();
                tokens.extend(samples.iter().map(|sample| len(sample) as u32));
                out.extend(samples);
                Ok(())
            };
        let mut batches = Vec::new();
        let mut batch = Vec::new();
        while deal.next(&mut draw, &mut batch).unwrap().is_some() {
            batches.push(std::mem::take(&mut batch));
        }
        batches
    });
    epochs.collect()
}

#[test]
fn batches_by_tokens_are_those_of_the_sequence_and_go_on_anywhere_with_other_ranks() {
    let cases =
        std::env::var("DLFS_MIXTURE_CASES").map_or(40, |text| text.parse::<u32>().unwrap() / 3);
    let seed = std::env::var("DLFS_MIXTURE_SEED").map_or(4, |text| text.parse().unwrap());
    let sets = Sets::new(seed, &[70, 33, 1, 12], 1500);
    let mut random = Random::new(seed);
    for case in 0..cases {
        let kind = [OrderKind::Global, GROUPED, BY_SLOT][random.below(3) as usize];
        let batching = [Batching::Random, Batching::Stratified][random.below(2) as usize];
        let size = 20 + random.below(200);
        let mixture = sets.mix(&["3", "1.5", "0.2", "1"], Some(size), batching);
        let budget = Budget {
            window: 1 + random.below(120) as u32,
            max_samples: [None, Some(1 + random.below(9) as u32)][random.below(2) as usize],
            cost: [Cost::Padded, Cost::Sum][random.below(2) as usize],
            ..Budget::new(1516 + random.below(8000))
        };
        let mut asked = options(kind, 1, 2).by_budget(budget);
        asked.order.seed = random.below(1 << 40);
        // The lanes are those of the first run.
        asked.world_size = 1 + random.below(4) as u32;
        let expected = cut(&sets, &sets.model(&mixture, &asked), &asked, size as usize);
        let mut epoch = 0;
        let mut number = 0;
        for _ in 0..3 {
            let ranks = asked.world_size as usize;
            println!("case {case}: {ranks} ranks {kind:?} {batching:?} at {epoch}, {number}");
            for rank in 0..ranks {
                let own = LoaderOptions { rank: rank as u32, ..asked.clone() };
                let of = |at: usize, from: usize| {
                    expected[at][from..].iter().skip(rank).step_by(ranks).cloned()
                };
                let right: Vec<Vec<Drawn>> =
                    of(epoch, number).chain((epoch + 1..2).flat_map(|at| of(at, 0))).collect();
                let loader = mixture.loader(own.clone()).unwrap();
                assert_eq!(loader.batches_left() as usize, of(epoch, number).count());
                assert_eq!(loader.batches_per_epoch() as usize, of(epoch, 0).count());
                assert_eq!(loader.has_batches_left(), of(epoch, number).count() > 0);
                let (read, _) = sets.read_while(&mixture, own.clone(), |_| true);
                assert_eq!(read.into_values().collect::<Vec<_>>(), right, "rank {rank}");
                let mut sampler = mixture.sampler(own).unwrap();
                let mut ids = Vec::new();
                let mut sampled = Vec::<Vec<Drawn>>::new();
                while sampler.next(&mut ids).unwrap().is_some() {
                    let sources = sampler.sources().iter();
                    sampled.push(sources.zip(&ids).map(|(source, id)| (*source, id.0)).collect());
                }
                assert_eq!(sampled, right, "ids of rank {rank}");
            }
            let (read, state) = sets.read(&mixture, asked.clone(), 1 + random.below(5) as usize);
            for _ in read {
                number += ranks;
                if number >= expected[epoch].len() {
                    (epoch, number) = (epoch + 1, 0);
                }
            }
            if epoch == 2 {
                break;
            }
            let consumed = to_end(&expected[epoch][..number]) as u64;
            assert_eq!((state.epoch.0, state.consumed), (epoch as u64, consumed));
            asked.resume = Some(State::from_json(&state.to_json()).unwrap());
            asked.world_size = 1 + random.below(4) as u32;
        }
    }
}

#[test]
fn batches_by_tokens_in_grouped_order_read_each_chunk_about_once() {
    let sets = Sets::new(5, &[600, 600, 200], 4000);
    let bytes: u64 = sets.samples.iter().flatten().map(|bytes| bytes.len() as u64).sum();
    for batching in [Batching::Stratified, Batching::Random] {
        let mixture = sets.mix(&["3", "3", "1"], None, batching);
        let options = LoaderOptions {
            batching: Some(prefetch::Batching::Chunk),
            window_bytes: 96 << 20,
            ..options(GROUPED, 1, 1)
        };
        let budget = Budget { window: 300, ..Budget::new(64 << 10) };
        let loader = mixture.loader(options.by_budget(budget)).unwrap();
        while loader.next(&mut ()).unwrap().is_some() {}
        let read = loader.stats().read.bytes;
        println!("{batching:?}: {read} of {bytes} bytes read");
        assert!((read as f64) < 1.35 * bytes as f64, "{batching:?}: {read} of {bytes} bytes read");
    }
}

#[test]
fn budgets_that_a_mixture_cannot_keep_are_refused_with_the_source() {
    let sets = Sets::new(9, &[30, 20], 500);
    let mixture = sets.mix(&["1", "1"], None, Batching::Stratified);
    let asked = |budget: &Budget| options(OrderKind::Global, 1, 2).by_budget(budget.clone());
    let refused = |options: LoaderOptions| mixture.loader(options).unwrap_err().report();
    let longest = |set: usize| sets.samples[set].iter().map(Vec::len).max().unwrap() as u64;
    let (short, long) = if longest(0) < longest(1) { (0, 1) } else { (1, 0) };
    let text = refused(asked(&Budget::new(longest(short))));
    assert!(text.contains(&format!("set{long}.dlfs")) && text.contains("tokens, more"), "{text}");
    let lengths = LengthsOf::Column("words".into());
    let text = refused(asked(&Budget { lengths, ..Budget::new(1000) }));
    assert!(text.contains("set0.dlfs") && text.contains("no column \"words\""), "{text}");
    let budget = Budget { window: 20, ..Budget::new(1000) };
    let aligned = LoaderOptions { sharding: dlfs::order::Sharding::Aligned, ..asked(&budget) };
    assert!(
        refused(LoaderOptions { order: OrderSpec { kind: GROUPED, seed: 1 }, ..aligned })
            .contains("leave the shares out")
    );
    let per_source = sets.mix(&["1", "1"], Some(40), Batching::PerSource { batch: 4 });
    let text = per_source.loader(asked(&budget)).unwrap_err().report();
    assert!(text.contains("batches per source of one"), "{text}");

    // States of batches of a number of samples, of another budget, and one within a batch.
    let loader = mixture.loader(asked(&budget)).unwrap();
    let resumed = |state: &State| {
        let options = LoaderOptions { resume: Some(state.clone()), ..asked(&budget) };
        let at_start = refused(options);
        assert_eq!(loader.set_state(state).unwrap_err().report(), at_start);
        at_start
    };
    let (_, plain) = sets.read(&mixture, options(OrderKind::Global, 4, 2), 2);
    assert!(resumed(&plain).contains("a number of samples"), "{}", resumed(&plain));
    let wider = Budget { window: 21, ..budget.clone() };
    let (_, other) = sets.read(&mixture, asked(&wider), 2);
    assert!(resumed(&other).contains("by length"), "{}", resumed(&other));
    let model = sets.model(&mixture, &asked(&budget));
    let first = cut(&sets, &model, &asked(&budget), model.len() / 2)[0][0].len();
    assert!(first > 1, "the seed leaves room within a batch");
    let (_, state) = sets.read(&mixture, asked(&budget), 1);
    let text = resumed(&State { consumed: state.consumed - 1, ..state });
    assert!(text.contains("within a batch"), "{text}");
}

#[test]
fn tiers_that_keep_nothing_new_in_a_mixture_are_warned_of() {
    let sets = Sets::new(11, &[20, 20], 100);
    for (policy, expected) in [(Policy::FirstTouch, 0), (Policy::Clairvoyant, 1)] {
        let mut parts = sets.weighed(&["1", "1"]);
        let mut options = Options::default();
        options.open.tiers = TierOptions {
            tiers: vec!["ram:1M".parse().unwrap()],
            policy,
            ..TierOptions::default()
        };
        let tiered = Dataset::open(&[address(sets.temp.path(), 1)], &options, &mut ()).unwrap();
        parts[1].0 = tiered.clone();
        let make = || Mixture::new(parts, None, Batching::Stratified, Vec::new()).unwrap();
        let (mixture, warnings) = warnings_of(make);
        assert_eq!(warnings.len(), expected, "{warnings:?}");
        assert!(warnings.iter().all(|text| text.contains("first-touch")), "{warnings:?}");
        // The promise of the warning, for either policy.
        sets.read(&mixture, self::options(OrderKind::Global, 4, 1), usize::MAX);
        let fills = || tiered.tier_stats().unwrap().tiers[0].fills;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while policy == Policy::FirstTouch && fills() == 0 {
            assert!(std::time::Instant::now() < until, "the policy first-touch keeps no copy");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(fills() > 0, policy == Policy::FirstTouch);
    }
}
