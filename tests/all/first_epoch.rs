//! The first epoch over shards that have no index yet, from a store over HTTP: batches, states, ends and failures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::archives::member;
use crate::support::object_store::{Fault, ObjectStore};
use dlfs::ErrorKind;
use dlfs::dataset::{Options, RunState, ShardLoader};
use dlfs::import::ImportOptions;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Device;
use dlfs::reader::Batch;
use dlfs::shards::{ShardOptions, assemble};
use dlfs::{Error, Result};

const SHARDS: u64 = 96;

/// The payload of a sample: a few kilobytes that name it.
fn payload(shard: u64, sample: u64) -> Vec<u8> {
    let len = 3000 + (shard * 31 + sample * 17) % 900;
    format!("{shard}/{sample} ").into_bytes().into_iter().cycle().take(len as usize).collect()
}

/// The number of samples in a shard; one shard has none.
fn samples_of(shard: u64) -> u64 {
    if shard == 5 { 0 } else { 40 + shard % 7 }
}

fn key(shard: u64) -> String {
    format!("set/{shard:03}.tar")
}

fn shard(shard: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sample in 0..samples_of(shard) {
        let name = format!("{shard:03}-{sample:03}");
        bytes.extend(member(&format!("{name}.bin"), b'0', "", &payload(shard, sample)));
        let label = (shard + sample) % 10;
        bytes.extend(member(&format!("{name}.cls"), b'0', "", label.to_string().as_bytes()));
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn put_all(store: &ObjectStore) {
    (0..SHARDS).for_each(|number| store.put(&key(number), shard(number)));
}

/// The payload and label of each sample, by name.
fn expected() -> BTreeMap<Vec<u8>, (Vec<u8>, Option<i64>)> {
    let all = (0..SHARDS).flat_map(|shard| (0..samples_of(shard)).map(move |at| (shard, at)));
    let of = |(shard, sample): (u64, u64)| {
        let name = format!("{shard:03}-{sample:03}").into_bytes();
        (name, (payload(shard, sample), Some(((shard + sample) % 10) as i64)))
    };
    all.map(of).collect()
}

fn options(store: &ObjectStore, index: &Path) -> Options {
    let mut options = Options::default();
    options.open.connect.places = store.options();
    options.open.shards = Some(ShardOptions {
        index: Some(index.to_owned()),
        import: ImportOptions { places: store.options(), ..ImportOptions::default() },
        ..ShardOptions::default()
    });
    options
}

/// Options with windows of 56 KiB, so that each shard has several.
fn load(batch_size: usize, epochs: u64) -> LoaderOptions {
    let order = OrderSpec { kind: OrderKind::Global, seed: 7 };
    LoaderOptions { window_bytes: 3 << 19, ..LoaderOptions::new(order, batch_size, epochs) }
}

fn open(
    store: &ObjectStore,
    index: &Path,
    load: LoaderOptions,
    resume: Option<&RunState>,
) -> Result<ShardLoader> {
    let addresses = ["s3://bucket/set/".parse().unwrap()];
    ShardLoader::open(&addresses, &options(store, index), load, resume, &mut ())
}

/// A sample as the batch has it.
fn sample(batch: &Batch, index: usize) -> (Vec<u8>, (Vec<u8>, Option<i64>)) {
    let directory = batch.directory_of(index).unwrap();
    let name = directory.name(batch.id_in_directory(index)).unwrap().unwrap();
    let field = directory.fields().iter().position(|name| name == b"bin").unwrap();
    let bytes = batch.field(index, field).unwrap().unwrap().to_vec();
    (name, (bytes, batch.label(index)))
}

/// Takes up to `most` batches of the epoch: the names in their order.
fn take(loader: &mut ShardLoader, most: usize) -> Result<Vec<Vec<u8>>> {
    let all = expected();
    let mut names = Vec::new();
    let mut batch = Batch::new();
    for _ in 0..most {
        if !loader.next_into(&mut batch, &mut ())? {
            break;
        }
        for index in 0..batch.len() {
            let (name, found) = sample(&batch, index);
            assert_eq!(Some(&found), all.get(&name), "{}", name.escape_ascii());
            names.push(name);
        }
    }
    Ok(names)
}

fn sorted(mut names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    names.sort();
    names
}

fn names() -> Vec<Vec<u8>> {
    expected().into_keys().collect()
}

/// A store that notes the keys of the objects that are read.
fn noting() -> (ObjectStore, Arc<Mutex<Vec<String>>>) {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&keys);
    let store = ObjectStore::with_faults(move |request| {
        if request.method == "GET" && !request.key.is_empty() {
            noted.lock().unwrap().push(request.key.clone());
        }
        Fault::None
    });
    put_all(&store);
    (store, keys)
}

/// Returns whether a later loader reads samples of its first batch alone.
fn reads_parts(loader: &ShardLoader) -> bool {
    let indexes = loader.shards().kept_indexes().unwrap().into_iter().map(Option::unwrap);
    assemble(loader.shards(), indexes.collect()).unwrap().namespace.reads_parts()
}

fn num_indexes(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "index")).count()
}

#[test]
fn batches_come_before_the_index_is_complete_and_later_epochs_have_every_sample_in_any_order() {
    let (store, keys) = noting();
    let folder = tempfile::tempdir().unwrap();
    let mut loader = open(&store, folder.path(), load(16, 3), None).unwrap();
    let first = take(&mut loader, 1).unwrap();
    assert_eq!(first.len(), 16);
    assert!(num_indexes(folder.path()) < SHARDS as usize / 2, "windows bound what is decoded");
    let read: BTreeSet<String> = keys.lock().unwrap().iter().cloned().collect();
    // Those of 32 lanes, one behind an empty one, and the one that has the fields.
    assert!(read.len() <= 34, "{read:?}");
    assert!(loader.dataset().is_none());
    let rest = take(&mut loader, usize::MAX).unwrap();
    assert_eq!(loader.epoch(), 1);
    assert_eq!(num_indexes(folder.path()), SHARDS as usize);
    assert!(reads_parts(&loader));
    // Nothing was read twice, but what shards have of the fields, and their beginnings. On a busy machine a few
    // requests are sent twice.
    let reads = keys.lock().unwrap().len();
    assert!(reads <= 2 * SHARDS as usize + 2 + 6, "{reads} requests");
    let in_first = [first, rest].concat();
    assert_ne!(in_first, sorted(in_first.clone()));
    assert_eq!(sorted(in_first.clone()), names());
    for epoch in 1..3 {
        let again = take(&mut loader, usize::MAX).unwrap();
        assert_eq!(sorted(again.clone()), names());
        assert_ne!(again, in_first);
        assert_eq!(loader.epoch(), epoch + 1);
    }
    assert_eq!(loader.dataset().unwrap().len(), names().len() as u64);
    assert_eq!(take(&mut loader, 1).unwrap(), Vec::<Vec<u8>>::new());
    // A later run has all orders from its first epoch on.
    let mut loader = open(&store, folder.path(), load(16, 1), None).unwrap();
    assert!(loader.dataset().is_some());
    assert_eq!(sorted(take(&mut loader, usize::MAX).unwrap()), names());
}

#[test]
fn a_run_stopped_in_its_first_epoch_goes_on_at_other_world_sizes_without_loss_or_repetition() {
    let store = ObjectStore::good();
    put_all(&store);
    let folder = tempfile::tempdir().unwrap();
    let of_ranks = |folder: &Path, world_size: u32, state: Option<&RunState>, batches: usize| {
        let ranks: Vec<_> = (0..world_size).collect();
        let run = |rank: u32| {
            let load = LoaderOptions { rank, world_size, ..load(7, 1) };
            let mut loader = open(&store, folder, load, state).unwrap();
            let names = take(&mut loader, batches).unwrap();
            (names, loader.state().to_json())
        };
        std::thread::scope(|scope| {
            let ranks = ranks.iter().map(|&rank| scope.spawn(move || run(rank)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let another = tempfile::tempdir().unwrap();
    let unstopped = of_ranks(another.path(), 2, None, usize::MAX);
    let mut given = Vec::new();
    let mut state = None;
    for (world_size, batches) in [(2, 9), (5, 4), (1, 11), (3, 6), (2, usize::MAX)] {
        let ranks = of_ranks(folder.path(), world_size, state.as_ref(), batches);
        let states: Vec<String> = ranks.iter().map(|(_, state)| state.clone()).collect();
        given.extend(ranks.into_iter().flat_map(|(names, _)| names));
        state = Some(RunState::from_json(&states.join("\n")).unwrap());
        let alone = RunState::from_json(&states[0]).unwrap();
        let one = LoaderOptions { rank: 0, world_size: 1, ..load(7, 1) };
        if world_size > 1 {
            let lacks = open(&store, folder.path(), one, Some(&alone)).err().unwrap();
            assert!(lacks.to_string().contains("lacks lane"), "{lacks}");
        }
    }
    assert_eq!(sorted(given), names());
    assert_eq!(sorted(unstopped.into_iter().flat_map(|(names, _)| names).collect()), names());
    let other =
        LoaderOptions { order: OrderSpec { kind: OrderKind::Global, seed: 8 }, ..load(7, 1) };
    let refused = open(&store, folder.path(), other, state.as_ref()).err().unwrap();
    assert!(refused.to_string().contains("seed is 7"), "{refused}");
}

#[test]
fn states_are_read_in_any_layout_and_those_of_one_order_must_be_of_one_step() {
    let store = ObjectStore::good();
    put_all(&store);
    let folder = tempfile::tempdir().unwrap();
    let mut loader = open(&store, folder.path(), load(16, 2), None).unwrap();
    for batches in [3, usize::MAX, 2] {
        take(&mut loader, batches).unwrap();
        let state = loader.state();
        let value: serde_json::Value = serde_json::from_str(&state.to_json()).unwrap();
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        assert_eq!(RunState::from_json(&pretty).unwrap(), state);
        assert_eq!(RunState::from_json(&format!("{pretty}{pretty}\n")).unwrap(), state);
        let file = folder.path().join("state");
        state.save(&file).unwrap();
        assert_eq!(RunState::load(&file).unwrap(), Some(state));
    }
    let before = loader.state().to_json();
    take(&mut loader, 1).unwrap();
    let differ = RunState::from_json(&(before + &loader.state().to_json())).unwrap_err();
    assert!(differ.to_string().contains("different steps"), "{differ}");
    for text in ["", "{}", "[]", "{\"places\":{}}", "{\"places\":{}", "7"] {
        assert_eq!(RunState::from_json(text).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(RunState::load(&folder.path().join("none")).unwrap(), None);
}

#[test]
fn behind_the_first_epoch_ranks_wait_for_each_others_indexes_and_share_the_next_one() {
    let store = ObjectStore::good();
    put_all(&store);
    let folder = tempfile::tempdir().unwrap();
    let run = |rank: u32| {
        let load = LoaderOptions { rank, world_size: 3, ..load(7, 2) };
        let mut loader = open(&store, folder.path(), load, None).unwrap();
        [0, 1].map(|_| take(&mut loader, usize::MAX).unwrap())
    };
    let ranks: Vec<[Vec<Vec<u8>>; 2]> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for epoch in 0..2 {
        let all = ranks.iter().flat_map(|epochs| epochs[epoch].iter().cloned());
        assert_eq!(sorted(all.collect()), names(), "epoch {epoch}");
    }
    assert_eq!(num_indexes(folder.path()), SHARDS as usize);
}

#[test]
fn a_resumed_rank_has_the_batches_of_a_run_that_was_not_stopped() {
    let store = ObjectStore::good();
    put_all(&store);
    let runs = |stop: usize| {
        let folder = tempfile::tempdir().unwrap();
        let mut loader = open(&store, folder.path(), load(12, 1), None).unwrap();
        let mut names = take(&mut loader, stop).unwrap();
        let state = RunState::from_json(&loader.state().to_json()).unwrap();
        drop(loader);
        let mut loader = open(&store, folder.path(), load(12, 1), Some(&state)).unwrap();
        names.extend(take(&mut loader, usize::MAX).unwrap());
        names
    };
    let unstopped = runs(0);
    for stop in [1, 8, 33, 70] {
        assert_eq!(runs(stop), unstopped, "stopped after {stop} batches");
    }
}

#[test]
fn a_short_last_batch_is_left_out_if_that_is_asked_for_and_the_epoch_says_where_it_ends() {
    let store = ObjectStore::good();
    put_all(&store);
    let all = names().len();
    for drop_short in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let load = LoaderOptions { drop_short, ..load(32, 1) };
        let mut loader = open(&store, folder.path(), load, None).unwrap();
        let mut sizes = Vec::new();
        let mut batch = Batch::new();
        while loader.next_into(&mut batch, &mut ()).unwrap() {
            sizes.push((batch.len(), batch.ends_epoch()));
        }
        let ended: Vec<bool> = sizes.iter().map(|(_, ends)| *ends).collect();
        assert_eq!(ended.iter().filter(|ends| **ends).count(), 1);
        assert_eq!(ended.last(), Some(&true));
        let batches = if drop_short { all / 32 } else { all.div_ceil(32) };
        assert_eq!(sizes.len(), batches);
        assert!(sizes.iter().rev().skip(1).all(|(len, _)| *len == 32), "{sizes:?}");
    }
}

/// Reads the first epoch until it fails.
fn failure(loader: &mut ShardLoader) -> Error {
    let mut batch = Batch::new();
    loop {
        match loader.next_into(&mut batch, &mut ()) {
            Ok(true) => {}
            Ok(false) => panic!("the epoch ended without an error"),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_shard_that_changes_during_the_epoch_is_an_error_that_names_it() {
    let (store, keys) = noting();
    let folder = tempfile::tempdir().unwrap();
    let mut loader = open(&store, folder.path(), load(8, 2), None).unwrap();
    take(&mut loader, 1).unwrap();
    // All that were not read: one of them may be on its way.
    let read: BTreeSet<String> = keys.lock().unwrap().iter().cloned().collect();
    let changed: Vec<String> = (0..SHARDS).map(key).filter(|key| !read.contains(key)).collect();
    for key in &changed {
        let mut bytes = store.bytes(key);
        bytes[500] ^= 1;
        store.put(key, bytes);
    }
    let error = failure(&mut loader);
    assert!(changed.iter().any(|key| error.report().contains(key)), "{}", error.report());
    let again = failure(&mut loader);
    assert_eq!(again.to_string(), error.to_string(), "and so does each later call");
}

#[test]
fn a_shard_that_ends_early_is_an_error_that_names_it_or_is_read_as_far_as_it_goes() {
    let store = ObjectStore::good();
    put_all(&store);
    let mut cut = shard(11);
    let inside = cut.windows(11).position(|name| name == b"011-020.bin").unwrap() + 1000;
    cut.truncate(inside);
    store.put(&key(11), cut);
    let folder = tempfile::tempdir().unwrap();
    let mut loader = open(&store, folder.path(), load(8, 1), None).unwrap();
    let error = failure(&mut loader);
    assert_eq!(error.kind(), ErrorKind::BadSource);
    assert!(error.report().contains(&key(11)), "{}", error.report());
    // Skipping is what import does with --on-error skip.
    let mut options = options(&store, folder.path());
    let shards = options.open.shards.as_mut().unwrap();
    shards.import.on_error = dlfs::import::OnError::Skip;
    let addresses = ["s3://bucket/set/".parse().unwrap()];
    let mut loader = ShardLoader::open(&addresses, &options, load(8, 1), None, &mut ()).unwrap();
    let names = take(&mut loader, usize::MAX).unwrap();
    assert_eq!(names.len(), self::names().len() - samples_of(11) as usize + 20);
}

/// A Parquet file of 20 rows of 20,000 bytes: several windows of one row group.
#[cfg(feature = "formats")]
fn table(number: u64) -> Vec<u8> {
    use arrow_array::{ArrayRef, BinaryArray, RecordBatch};

    let rows = (0..20).map(|row| vec![(20 * number + row) as u8; 20_000]);
    let column = Arc::new(BinaryArray::from_iter_values(rows)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let mut bytes = Vec::new();
    let set = parquet::file::properties::WriterProperties::builder();
    let set = set.set_dictionary_enabled(false).build();
    let writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(set));
    let mut writer = writer.unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[cfg(feature = "formats")]
#[test]
fn a_lane_requests_its_next_table_while_it_hands_out_the_one_before() {
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let store = ObjectStore::with_faults(move |request| {
        *count.lock().unwrap() += usize::from(request.method == "GET" && !request.key.is_empty());
        Fault::None
    });
    (0..24).for_each(|number| store.put(&format!("set/{number:02}.parquet"), table(number)));
    let folder = tempfile::tempdir().unwrap();
    let mut loader = open(&store, folder.path(), load(8, 1), None).unwrap();
    let mut batch = Batch::new();
    assert!(loader.next_into(&mut batch, &mut ()).unwrap());
    // The footers of all, and the rows of two tables of each of 8 lanes, although a table has 10 windows.
    let mut rows = batch.len();
    let until = Instant::now() + Duration::from_secs(120);
    while *asked.lock().unwrap() < 24 + 16 {
        assert!(Instant::now() < until, "{} requests", asked.lock().unwrap());
        std::thread::sleep(Duration::from_millis(10));
        // A decoder's thread ends a moment after its last batch, and its lane notices that with a later sample.
        if rows < 80 {
            assert!(loader.next_into(&mut batch, &mut ()).unwrap());
            rows += batch.len();
        }
    }
    while loader.next_into(&mut batch, &mut ()).unwrap() {
        rows += batch.len();
    }
    assert_eq!(rows, 24 * 20);
    assert!(!reads_parts(&loader), "a row group of one page is read whole");
}

#[test]
fn dropping_ends_within_its_limit_although_the_store_answers_nothing_more() {
    let stalls = Arc::new(Mutex::new(false));
    let is_stalled = Arc::clone(&stalls);
    let store = ObjectStore::with_faults(move |request| {
        let is_stalled = *is_stalled.lock().unwrap() && !request.key.is_empty();
        if is_stalled { Fault::Stall } else { Fault::None }
    });
    put_all(&store);
    let folder = tempfile::tempdir().unwrap();
    let load = LoaderOptions { deadline: Duration::from_millis(300), ..load(8, 1) };
    let mut loader = open(&store, folder.path(), load, None).unwrap();
    loop {
        match take(&mut loader, 1) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {} // the machine is busy
            taken => break drop(taken.unwrap()),
        }
    }
    *stalls.lock().unwrap() = true;
    assert_eq!(failure(&mut loader).kind(), ErrorKind::TimedOut);
    drop(loader); // a test that does not end here fails by the harness
}
