//! The layer below all bindings: many threads, interrupted calls, forks, states, and batches that
//! outlive their loader.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use crate::support::fork::in_child;
use crate::support::ports::bind_again;
use crate::support::random::Random;
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::dataset::{
    self, Dataset, Loader, OnError, Options, Query, Sampler, VerifyOptions, Watch,
};
use dlfs::import::{ImportOptions, NewSample, Onto, Writer, WriterOptions, import};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, State, Tail};
use dlfs::prefetch::{Batching, LoaderOptions, NodePlace};
use dlfs::qpair::tcp::discover;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};

const GLOBAL: OrderKind = OrderKind::Global;
const GROUPED: OrderKind = OrderKind::Grouped { lanes: 2, group: 2 };
const BY_ID: OrderKind = OrderKind::Sequential { by: SequentialBy::Id };

/// A folder of 3 classes of 60 files, its image, and what each sample must be.
struct Source {
    temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
}

impl Source {
    fn new(seed: u64) -> Source {
        println!("seed {seed}");
        let temp = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let mut samples = Vec::new();
        for id in 0..180 {
            let folder = temp.path().join(format!("files/class{}", id / 60));
            fs::create_dir_all(&folder).unwrap();
            let mut bytes = vec![0; random.below(20_000) as usize];
            random.fill(&mut bytes);
            fs::write(folder.join(format!("{:04}", id % 60)), &bytes).unwrap();
            samples.push(bytes);
        }
        let source = Source { temp, samples };
        let options = ImportOptions {
            chunk_size_bytes: 64 << 10,
            onto: Onto::Empty,
            ..ImportOptions::default()
        };
        let files = source.temp.path().join("files");
        import(&[files], &[source.address()], &options, &ConnectOptions::default(), &mut ())
            .unwrap();
        source
    }

    fn address(&self) -> Address {
        Address::from_path(self.temp.path().join("train.dlfs"))
    }

    fn open(&self) -> Dataset {
        Dataset::open(&[self.address()], &Options::default(), &mut ()).unwrap()
    }

    fn serve(&self) -> Target {
        let device = qpair::open(&self.address(), &ConnectOptions::default()).unwrap();
        let nqn = "nqn.2026-11.io.dlfs:train".parse().unwrap();
        let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let options = TargetOptions { listen, ..TargetOptions::new(nqn) };
        Target::bind(options, vec![device]).unwrap()
    }

    fn open_remote(&self, target: &Target) -> Dataset {
        let mut options = Options::default();
        options.open.connect.io_timeout = Duration::from_millis(500);
        Dataset::open(&[target.address(Nsid(1))], &options, &mut ()).unwrap()
    }

    fn assert_right(&self, batch: &Batch) {
        for sample in batch.iter() {
            assert!(sample.bytes == self.samples[sample.id.0 as usize], "sample {}", sample.id);
            assert_eq!(sample.label, Some(sample.id.0 as i64 / 60));
        }
    }

    fn drain(&self, loader: &Loader) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Some(batch) = loader.next(&mut ()).unwrap() {
            self.assert_right(&batch);
            ids.extend(batch.ids().map(|id| id.0));
        }
        ids
    }
}

fn options(kind: OrderKind, batch_size: usize, epochs: u64) -> LoaderOptions {
    // A small window, so that the run is not read ahead completely.
    let order = OrderSpec { kind, seed: 4 };
    LoaderOptions { window_bytes: 512 << 10, ..LoaderOptions::new(order, batch_size, epochs) }
}

fn sorted(mut ids: Vec<u64>) -> Vec<u64> {
    ids.sort_unstable();
    ids
}

fn ids(ids: &[u64]) -> Vec<SampleId> {
    ids.iter().copied().map(SampleId).collect()
}

/// Ends a call at the first opportunity, and records when that was.
struct EndsCall {
    since: Instant,
    asked_after: Option<Duration>,
}

impl EndsCall {
    fn new() -> EndsCall {
        EndsCall { since: Instant::now(), asked_after: None }
    }
}

impl Watch for EndsCall {
    fn goes_on(&mut self) -> bool {
        self.asked_after = Some(self.since.elapsed());
        false
    }
}

#[test]
fn metadata_of_a_data_set_is_known_without_reading_samples() {
    let source = Source::new(1);
    let dataset = source.open();
    assert_eq!(dataset.len(), 180);
    assert_eq!(
        dataset.directory().classes(),
        [b"class0".to_vec(), b"class1".to_vec(), b"class2".to_vec()]
    );
    assert!(dataset.directory().fields().is_empty(), "a file is one field without a name");
    assert_eq!(dataset.directory().labels().unwrap().get(61), Some(1));
    assert_eq!(dataset.len_bytes(SampleId(7)).unwrap() as usize, source.samples[7].len());
    assert_eq!(dataset.len_bytes(SampleId(180)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(dataset.id_at(179).unwrap(), SampleId(179));
    assert_eq!(dataset.id_at(180).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!dataset.directory().has_names(), "names are read when one is asked for");
    assert_eq!(dataset.lookup(b"class1/0003", &mut ()).unwrap(), SampleId(63));
    assert_eq!(dataset.name(SampleId(63), &mut ()).unwrap(), b"class1/0003");
    let error = dataset.lookup(b"class1/no", &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(dataset.stats().commands, 0);
}

#[test]
fn samples_are_read_by_id_and_by_name_in_the_order_of_the_request() {
    let source = Source::new(2);
    let dataset = source.open();
    let read = dataset.read(Query::Ids(&ids(&[170, 3, 3, 60])), OnError::Raise, &mut ()).unwrap();
    source.assert_right(&read.batch);
    assert_eq!(read.batch.ids().collect::<Vec<_>>(), ids(&[170, 3, 3, 60]));
    let names: [&[u8]; 2] = [b"class2/0000", b"class0/0059"];
    let read = dataset.read(Query::Names(&names), OnError::Raise, &mut ()).unwrap();
    source.assert_right(&read.batch);
    assert_eq!(read.batch.ids().collect::<Vec<_>>(), ids(&[120, 59]));
    assert_eq!(dataset.stats().verified, 6);
    let none = dataset.read(Query::Ids(&[]), OnError::Raise, &mut ()).unwrap();
    assert!(none.batch.is_empty());
}

#[test]
fn a_missing_sample_is_named_and_handled_as_the_caller_says() {
    let source = Source::new(3);
    let dataset = source.open();
    let wanted = ids(&[5, 999, 6, u64::MAX]);
    let error = dataset.read(Query::Ids(&wanted), OnError::Raise, &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.report().contains("sample 999") && error.report().contains("0 to 179"));
    assert_eq!(dataset.stats().commands, 0, "nothing was read for it");
    let read = dataset.read(Query::Ids(&wanted), OnError::Skip, &mut ()).unwrap();
    assert_eq!(read.batch.ids().collect::<Vec<_>>(), ids(&[5, 6]));
    source.assert_right(&read.batch);
    assert_eq!(read.failures.iter().map(|f| f.0).collect::<Vec<_>>(), [1, 3]);
    let read = dataset.read(Query::Ids(&wanted), OnError::Blank, &mut ()).unwrap();
    assert_eq!(read.batch.len(), 4);
    assert_eq!(read.batch.bytes(0), source.samples[5]);
    assert_eq!((read.batch.bytes(1), read.batch.bytes(3)), (&[][..], &[][..]));
    assert_eq!(read.batch.bytes(2), source.samples[6]);
    let names: [&[u8]; 2] = [b"class0/0001", b"class0/none"];
    let error = dataset.read(Query::Names(&names), OnError::Raise, &mut ()).unwrap_err();
    assert!(error.to_string().contains("class0/none"), "{error}");
    let read = dataset.read(Query::Names(&names), OnError::Skip, &mut ()).unwrap();
    assert_eq!(read.batch.ids().collect::<Vec<_>>(), ids(&[1]));
    assert!(read.failures[0].1.to_string().contains("class0/none"));
}

#[test]
fn a_damaged_sample_is_an_error_left_out_or_blank_and_the_loader_restarts_on_request() {
    let source = Source::new(17);
    let path = source.temp.path().join("train.dlfs");
    let bad = (0..180).find(|&id| source.samples[id].len() > 100).unwrap() as u64;
    let extent = source.open().directory().extent(SampleId(bad)).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[extent.offset_bytes as usize + 50] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let dataset = source.open();
    let wanted = ids(&[bad, 170]);
    let error = dataset.read(Query::Ids(&wanted), OnError::Raise, &mut ()).unwrap_err();
    assert_eq!((error.kind(), error.sample_id()), (ErrorKind::Corrupt, Some(SampleId(bad))));
    let read = dataset.read(Query::Ids(&wanted), OnError::Skip, &mut ()).unwrap();
    assert_eq!(read.batch.ids().collect::<Vec<_>>(), ids(&[170]));
    let read = dataset.read(Query::Ids(&wanted), OnError::Blank, &mut ()).unwrap();
    assert_eq!((read.batch.len(), read.batch.bytes(0)), (2, &[][..]));
    assert_eq!(read.failures[0].1.kind(), ErrorKind::Corrupt);

    let loader = dataset.loader(options(GROUPED, 10, 1)).unwrap();
    let until_error = || {
        loop {
            match loader.next(&mut ()) {
                Ok(batch) => source.assert_right(&batch.expect("an error before the end")),
                Err(error) => return error.kind(),
            }
        }
    };
    assert_eq!(until_error(), ErrorKind::Corrupt);
    let at = loader.state();
    let failed = loader.next(&mut ()).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Corrupt, "it stays");
    bytes[extent.offset_bytes as usize + 50] ^= 1; // later repaired, as by another copy
    fs::write(&path, &bytes).unwrap();
    loader.set_state(&at).unwrap();
    let rest = source.drain(&loader);
    assert_eq!(rest.len() as u64 + at.consumed, 180);
    assert_eq!(loader.stats().samples, 180);
}

#[test]
fn samples_are_seen_as_they_arrive_each_once() {
    struct Arrivals<'a>(&'a Source, Vec<usize>);
    impl Watch for Arrivals<'_> {
        fn arrived(&mut self, batch: &Batch, index: usize) {
            assert_eq!(batch.bytes(index), self.0.samples[batch.id(index).0 as usize]);
            self.1.push(index);
        }
    }
    let source = Source::new(4);
    let dataset = source.open();
    let wanted: Vec<SampleId> = (0..180).rev().chain([500]).map(SampleId).collect();
    let mut arrivals = Arrivals(&source, Vec::new());
    dataset.read(Query::Ids(&wanted), OnError::Skip, &mut arrivals).unwrap();
    let mut seen = arrivals.1;
    seen.sort_unstable();
    assert_eq!(seen, (0..180).collect::<Vec<_>>());
}

#[test]
fn threads_read_by_id_side_by_side_and_take_different_batches_of_one_loader() {
    let source = Source::new(5);
    let dataset = source.open();
    let loader = dataset.loader(options(GROUPED, 7, 2)).unwrap();
    let delivered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let source = &source;
            let dataset = &dataset;
            let loader = &loader;
            let delivered = &delivered;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..50 {
                    let wanted: Vec<_> = (0..9).map(|_| SampleId(random.below(180))).collect();
                    let read = dataset.read(Query::Ids(&wanted), OnError::Raise, &mut ()).unwrap();
                    source.assert_right(&read.batch);
                }
                delivered.fetch_add(source.drain(loader).len() as u64, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(delivered.into_inner(), 360);
    assert_eq!(loader.stats().samples, 360);
    assert_eq!(dataset.stats().verified, 4 * 50 * 9);
}

#[test]
fn an_epoch_resumes_exactly_once_with_another_world_size_and_batch_size() {
    let source = Source::new(6);
    let dataset = source.open();
    for kind in [GLOBAL, GROUPED, BY_ID] {
        let whole = source.drain(&dataset.loader(options(kind, 10, 2)).unwrap());
        let loader = dataset.loader(options(kind, 10, 2)).unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.extend(loader.next(&mut ()).unwrap().unwrap().ids().map(|id| id.0));
        }
        assert_eq!((loader.epoch(), loader.batches_left()), (0, 14));
        let json = loader.state().to_json();
        for rank in 0..3 {
            let share = LoaderOptions { rank, world_size: 3, ..options(kind, 4, 1) };
            let rest = dataset.loader(share).unwrap();
            rest.set_state(&State::from_json(&json).unwrap()).unwrap();
            seen.extend(source.drain(&rest));
        }
        assert_eq!(sorted(seen), (0..180).collect::<Vec<u64>>(), "{kind:?}");
        loader.set_epoch(1).unwrap();
        assert_eq!(source.drain(&loader), whole[180..], "{kind:?}");
        assert_eq!((loader.epoch(), loader.batches_per_epoch()), (2, 18));
    }
}

#[test]
fn a_batch_that_was_taken_moves_the_run_once_it_is_delivered_unless_the_run_was_moved() {
    let source = Source::new(6);
    let loader = source.open().loader(options(GROUPED, 10, 2)).unwrap();
    let whole = source.drain(&source.open().loader(options(GROUPED, 10, 2)).unwrap());
    let mut seen = Vec::new();
    let mut ahead = None;
    while loader.epoch() == 0 {
        let before = loader.state();
        let (batch, taken) = match ahead.take() {
            Some(ahead) => ahead,
            None => loader.take(&mut ()).unwrap().unwrap(),
        };
        source.assert_right(&batch);
        assert_eq!(loader.state(), before);
        loader.set_state(&before).unwrap(); // where it is already
        assert!(loader.is_next(&taken) && loader.deliver(&taken));
        seen.extend(batch.ids().map(|id| id.0));
        ahead = loader.take_ready().unwrap();
    }
    assert_eq!(seen, whole[..180]);
    loader.set_epoch(0).unwrap();
    assert!(ahead.is_none_or(|(_, taken)| !loader.deliver(&taken)));
    assert_eq!((loader.epoch(), loader.state().consumed), (0, 0));
    let (_, taken) = loader.take(&mut ()).unwrap().unwrap();
    loader.close();
    assert!(!loader.is_next(&taken) && !loader.deliver(&taken));
}

#[test]
fn a_state_of_another_data_set_or_order_is_refused_and_the_run_stays_where_it_was() {
    let source = Source::new(7);
    let other = Source::new(8);
    let loader = source.open().loader(options(GLOBAL, 10, 2)).unwrap();
    let foreign = other.open().loader(options(GLOBAL, 10, 2)).unwrap().state();
    loader.next(&mut ()).unwrap().unwrap();
    let before = loader.state();
    let error = loader.set_state(&foreign).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("image"), "{error}");
    let grouped = source.open().loader(options(GROUPED, 10, 2)).unwrap().state();
    let error = loader.set_state(&grouped).unwrap_err();
    assert!(error.to_string().contains("grouped"), "{error}");
    let mut seeded = options(GLOBAL, 10, 2);
    seeded.order.seed = 5;
    let error = loader.set_state(&source.open().loader(seeded).unwrap().state()).unwrap_err();
    assert!(error.to_string().contains("seed"), "{error}");
    assert!(loader.set_epoch(3).is_err(), "there is no epoch 3 of 2");
    assert!(loader.set_epoch(1 << 24).is_err());
    assert_eq!(loader.state(), before);
    assert_eq!(source.drain(&loader).len(), 350);
}

#[test]
fn a_state_file_is_replaced_as_a_whole_and_nothing_stays_beside_it() {
    let source = Source::new(9);
    let loader = source.open().loader(options(GLOBAL, 10, 2)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    assert!(dataset::load_state(&path).unwrap().is_none());
    for _ in 0..2 {
        loader.next(&mut ()).unwrap().unwrap();
        dataset::save_state(&path, &loader.state()).unwrap();
        assert_eq!(dataset::load_state(&path).unwrap().unwrap(), loader.state());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    for wrong in [&b"{}"[..], b"\xff\xfe", &[b' '; 1 << 17]] {
        fs::write(&path, wrong).unwrap();
        let error = dataset::load_state(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("run.json"), "{error}");
    }
    let nowhere = folder.path().join("no/run.json");
    assert!(dataset::save_state(&nowhere, &loader.state()).is_err());
}

#[test]
fn impossible_options_are_refused_before_anything_is_read() {
    let dataset = Source::new(10).open();
    let refused = |change: &dyn Fn(&mut LoaderOptions)| {
        let mut options = options(GLOBAL, 10, 1);
        change(&mut options);
        let error = dataset.loader(options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.to_string()
    };
    assert!(refused(&|options| options.batch_size = 0).contains("at least one sample"));
    assert!(refused(&|options| options.on_error = OnError::Blank).contains("raises or skips"));
    assert!(refused(&|options| options.rank = 1).contains("rank 1 of a world of 1"));
    assert!(refused(&|options| options.world_size = 0).contains("world size"));
    let chunk = Some(dlfs::prefetch::Batching::Chunk);
    assert!(refused(&|options| options.batching = chunk).contains("whole chunks"));
    assert!(
        refused(&|options| options.order.kind = OrderKind::Local { world_size: 2 }).contains("2")
    );
    let none = Dataset::open(&[], &Options::default(), &mut ()).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    let absent = Address::from_path("/nonexistent/train.dlfs");
    let error = Dataset::open(&[absent], &Options::default(), &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn short_batches_are_left_out_on_request_and_epochs_without_any_end_the_run() {
    let source = Source::new(11);
    let dataset = source.open();
    let short = LoaderOptions { drop_short: true, ..options(GROUPED, 50, 3) };
    let loader = dataset.loader(short.clone()).unwrap();
    assert_eq!(loader.batches_per_epoch(), 3);
    let mut ends = Vec::new();
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        assert_eq!(batch.len(), 50);
        ends.push(batch.ends_epoch());
    }
    assert_eq!(ends, [false, false, true].repeat(3));
    let huge = LoaderOptions { batch_size: 181, epochs: 0..u64::MAX, ..short };
    let loader = dataset.loader(huge).unwrap();
    assert_eq!(loader.batches_per_epoch(), 0);
    assert!(loader.next(&mut ()).unwrap().is_none());
    let shares = (0..200).map(|rank| {
        let share =
            LoaderOptions { rank, world_size: 200, tail: Tail::Keep, ..options(BY_ID, 2, 1) };
        source.drain(&dataset.loader(share).unwrap()).len()
    });
    assert_eq!(shares.sum::<usize>(), 180);
}

#[test]
fn a_sampler_names_what_a_loader_would_read() {
    let source = Source::new(12);
    let dataset = source.open();
    for kind in [GLOBAL, GROUPED] {
        let read = source.drain(&dataset.loader(options(kind, 7, 2)).unwrap());
        let mut sampler = Sampler::new(&dataset, options(kind, 7, 2)).unwrap();
        let mut named = Vec::new();
        let mut batch = Vec::new();
        let mut epochs = 0;
        while let Some(ends_epoch) = sampler.next(&mut batch).unwrap() {
            named.extend(batch.iter().map(|id| id.0));
            epochs += u32::from(ends_epoch);
        }
        assert_eq!((&named, epochs), (&read, 2), "{kind:?}");
        sampler.set_epoch(1).unwrap();
        sampler.next(&mut batch).unwrap();
        assert_eq!(batch[0].0, read[180]);
        assert_eq!(sampler.batches_left(), 25);
        let loader = dataset.loader(options(kind, 7, 2)).unwrap();
        loader.set_state(&sampler.state()).unwrap();
        assert_eq!(source.drain(&loader), read[187..]);
    }
}

#[test]
fn a_batch_outlives_loader_data_set_and_target() {
    let source = Source::new(13);
    let target = source.serve();
    let dataset = source.open_remote(&target);
    let loader = dataset.loader(options(GROUPED, 20, 1)).unwrap();
    let batch = loader.next(&mut ()).unwrap().unwrap();
    let read = dataset.read(Query::Ids(&ids(&[8, 9])), OnError::Raise, &mut ()).unwrap();
    drop(loader);
    drop(dataset);
    target.stop();
    source.assert_right(&batch);
    source.assert_right(&read.batch);
}

#[test]
fn a_wait_for_a_silent_target_asks_its_watch_and_ends_when_told() {
    let source = Source::new(14);
    let target = source.serve();
    let dataset = source.open_remote(&target);
    let loader = dataset.loader(options(GLOBAL, 180, 1000)).unwrap();
    let address = target.address(Nsid(1));
    target.stop();
    let told = |what: &str, error: dlfs::Error, watch: &EndsCall| {
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error:?}");
        println!("{what}: asked after {:?}", watch.asked_after.expect("it was asked"));
    };
    let mut watch = EndsCall::new();
    let error = dataset.read(Query::Ids(&ids(&[1])), OnError::Raise, &mut watch).unwrap_err();
    told("read", error, &watch);
    let mut watch = EndsCall::new();
    told("next", loader.next(&mut watch).unwrap_err(), &watch);
    // A listener that never answers: the kernel accepts, but nobody replies.
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = address.to_string();
    let from = text.find("127.0.0.1:").unwrap();
    let to = from + text[from..].find('/').unwrap();
    let text = format!("{}{}{}", &text[..from], listen.local_addr().unwrap(), &text[to..]);
    let mut watch = EndsCall::new();
    let opened = Dataset::open(&[text.parse().unwrap()], &Options::default(), &mut watch);
    told("open", opened.unwrap_err(), &watch);
}

/// `Duration::MAX` is how a program says "for ever": no sum of it and a clock may overflow.
#[test]
fn infinite_limits_are_infinite_waits_and_no_panic() {
    let source = Source::new(31);
    let target = source.serve();
    let mut options = Options::default();
    let forever = Duration::MAX;
    options.open.connect = ConnectOptions {
        keep_alive_tmo: forever,
        ctrl_loss_tmo: forever,
        io_timeout: forever,
        connect_timeout: forever,
        tcp_connect_timeout: forever,
        ..ConnectOptions::default()
    };
    options.read.deadline = forever;
    let address = target.address(Nsid(1));
    let Address::Tcp(tcp) = &address else { panic!("{address} is served over TCP") };
    let connect = &options.open.connect;
    discover(&tcp.traddr, tcp.trsvcid, connect).unwrap();
    let dataset = Dataset::open(&[address], &options, &mut ()).unwrap();
    let read = dataset.read(Query::Ids(&ids(&[1, 2])), OnError::Raise, &mut ()).unwrap();
    source.assert_right(&read.batch);
    let run = LoaderOptions { deadline: forever, ..self::options(GROUPED, 50, 1) };
    assert_eq!(sorted(source.drain(&dataset.loader(run).unwrap())), (0..180).collect::<Vec<_>>());
    target.stop();

    let path = source.temp.path().join("train.dlfs");
    let mut bytes = fs::read(&path).unwrap();
    let extent = source.open().directory().extent(SampleId(7)).unwrap();
    bytes[extent.offset_bytes as usize] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let no_limit = VerifyOptions { progress_timeout: forever, ..VerifyOptions::default() };
    let report = source.open().image().verify(&no_limit, &mut |_| {}).unwrap();
    assert_eq!(report.damages.len(), 1, "{report:?}");
}

#[test]
fn closing_a_loader_ends_the_waits_of_other_threads() {
    let source = Source::new(15);
    let target = source.serve();
    let dataset = source.open_remote(&target);
    let loader = dataset.loader(options(GLOBAL, 5, 1000)).unwrap();
    loader.next(&mut ()).unwrap().unwrap();
    target.stop();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            loop {
                match loader.next(&mut ()) {
                    Ok(Some(_)) => {}
                    other => return other,
                }
            }
        });
        loader.close();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    });
}

/// A data set whose target was replaced by a listener that never answers: the kernel accepts, but
/// nobody replies.
fn silenced(source: &Source) -> (Dataset, std::net::TcpListener) {
    let target = source.serve();
    let dataset = source.open_remote(&target);
    let address = target.address(Nsid(1)).to_string();
    target.stop();
    let from = address.find("127.0.0.1:").unwrap();
    let to = from + address[from..].find('/').unwrap();
    (dataset, bind_again(|| std::net::TcpListener::bind(&address[from..to])))
}

#[test]
fn a_loader_that_does_not_get_connected_is_late_at_the_deadline_of_the_call() {
    let source = Source::new(17);
    let (dataset, _listener) = silenced(&source);
    let deadline = Duration::from_millis(100);
    let loader = LoaderOptions { deadline, ..options(GLOBAL, 5, 1) };
    let loader = dataset.loader(loader).unwrap();
    // Each call has its own deadline; the connection attempt of the first one continues.
    for _ in 0..3 {
        let error = loader.next(&mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
    }
    loader.set_epoch(0).unwrap();
}

#[test]
fn a_loader_may_be_closed_and_moved_while_it_is_being_connected() {
    let source = Source::new(18);
    let (dataset, _listener) = silenced(&source);
    let loader = dataset.loader(options(GLOBAL, 5, 9)).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| loader.next(&mut ()));
        loader.set_epoch(3).unwrap();
        assert_eq!((loader.epoch(), loader.stats().batches), (3, 0));
        loader.close();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error:?}");
    });
    assert_eq!(loader.next(&mut ()).unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn batches_stay_as_they_are_while_the_run_is_moved_and_goes_on_in_the_same_memory() {
    let source = Source::new(20);
    let dataset = source.open();
    for kind in [GLOBAL, GROUPED] {
        let loader = dataset.loader(options(kind, 7, 1000)).unwrap();
        let mut kept = Vec::new();
        for epoch in [0, 5, 2, 9, 2] {
            loader.set_epoch(epoch).unwrap();
            for _ in 0..9 {
                let batch = loader.next(&mut ()).unwrap().unwrap();
                assert_eq!(batch.epoch().0, epoch);
                source.assert_right(&batch);
                kept.push(batch);
            }
        }
        kept.iter().for_each(|batch| source.assert_right(batch));
        assert_eq!(loader.stats().batches, 45);
    }
}

#[test]
fn a_loader_that_was_closed_reads_no_further_and_keeps_its_place_and_figures() {
    let source = Source::new(19);
    let dataset = source.open();
    let loader = dataset.loader(options(GLOBAL, 5, 1000)).unwrap();
    let batch = loader.next(&mut ()).unwrap().unwrap();
    let state = loader.state();
    loader.close();
    loader.close();
    let done = loader.stats();
    assert_eq!((done.batches, done.samples), (1, 5));
    assert_eq!(loader.state(), state);
    assert_eq!(loader.next(&mut ()).unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(loader.stats(), done, "nothing was read since");
    source.assert_right(&batch);
}

#[test]
fn a_loader_that_was_closed_leaves_its_tiers_to_others_while_its_batches_stay() {
    let source = Source::new(20);
    let cache = tempfile::tempdir().unwrap();
    let mut opening = Options::default();
    opening.open.tiers.tiers = vec![format!("file:{}:8M", cache.path().display()).parse().unwrap()];
    let open = || Dataset::open(&[source.address()], &opening, &mut ());
    let dataset = open().unwrap();
    let loader = dataset.loader(options(GROUPED, 5, 1000)).unwrap();
    let prepared = dataset.loader(options(GROUPED, 5, 1000)).unwrap();
    prepared.prepare().unwrap();
    let batch = loader.next(&mut ()).unwrap().unwrap();
    drop(dataset);
    prepared.close();
    let owner = |dataset: &Dataset| dataset.tier_stats().unwrap().owner;
    let beside = open().unwrap();
    assert_eq!(owner(&beside), Some(std::process::id()), "one loader reads still");
    drop(beside);
    let state = loader.state();
    loader.close();
    let again = open().unwrap();
    assert_eq!(owner(&again), None, "the tiers were left to it");
    source.drain(&again.loader(options(GROUPED, 5, 1)).unwrap());
    source.assert_right(&batch);
    assert_eq!((loader.state(), loader.batches_left()), (state, 35));
    assert_eq!(loader.next(&mut ()).unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn forked_children_and_their_parent_read_at_the_same_time() {
    if ran_alone(forked_children_and_their_parent_read_at_the_same_time) {
        return;
    }
    let source = Source::new(16);
    let target = source.serve();
    for dataset in [source.open(), source.open_remote(&target)] {
        let loader = dataset.loader(options(GROUPED, 5, u64::MAX)).unwrap();
        loader.next(&mut ()).unwrap().unwrap();
        let stop = AtomicU64::new(0);
        std::thread::scope(|scope| {
            // The other threads are active during every fork.
            for _ in 0..2 {
                scope.spawn(|| {
                    while stop.load(Ordering::Relaxed) == 0 {
                        source.assert_right(&loader.next(&mut ()).unwrap().unwrap());
                        let wanted = ids(&[1, 170, 60]);
                        let read = dataset.read(Query::Ids(&wanted), OnError::Raise, &mut ());
                        source.assert_right(&read.unwrap().batch);
                    }
                });
            }
            for round in 0..20 {
                let right = in_child(|| {
                    let wanted = ids(&[3, 170]);
                    let read = dataset.read(Query::Ids(&wanted), OnError::Raise, &mut ()).unwrap();
                    source.assert_right(&read.batch);
                    let at = loader.state();
                    let stats = loader.stats();
                    let batch = loader.next(&mut ()).unwrap().unwrap();
                    source.assert_right(&batch);
                    stats.batches == 0 && loader.state() != at
                });
                assert!(right, "round {round}");
            }
            stop.store(1, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_child_that_is_forked_in_any_call_of_another_thread_reads_on() {
    if ran_alone(a_child_that_is_forked_in_any_call_of_another_thread_reads_on) {
        return;
    }
    let source = Source::new(17);
    let dataset = source.open();
    let loader = dataset.loader(options(GROUPED, 5, u64::MAX)).unwrap();
    let start = loader.state();
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(Ordering::Relaxed) == 0 {
                loader.set_state(&start).unwrap();
            }
        });
        let mut wrong = 0;
        for _ in 0..100 {
            let right = in_child(|| {
                source.assert_right(&loader.next(&mut ()).unwrap().unwrap());
                true
            });
            wrong += u32::from(!right);
        }
        stop.store(1, Ordering::Relaxed);
        assert_eq!(wrong, 0, "children of 100");
    });
}

#[test]
fn a_window_has_room_for_the_lanes_of_the_state_that_a_run_is_moved_to() {
    // Each sample is in a chunk of its own, which is short but may be 8 MiB long.
    const CHUNKS: u32 = 48;
    let temp = tempfile::tempdir().unwrap();
    let address = [Address::from_path(temp.path().join("train.dlfs"))];
    let image =
        ImportOptions { chunk_size_bytes: 8 << 20, onto: Onto::Empty, ..ImportOptions::default() };
    let one_by_one = WriterOptions { image, window_bytes: 1, ..WriterOptions::default() };
    let mut writer = Writer::create(&address, one_by_one, &ConnectOptions::default()).unwrap();
    for _ in 0..CHUNKS {
        let fields = [Some(&b"sample"[..])];
        writer.write(&NewSample { fields: &fields, ..NewSample::default() }).unwrap();
    }
    writer.finish().unwrap();
    let dataset = Dataset::open(&address, &Options::default(), &mut ()).unwrap();
    assert_eq!(dataset.directory().num_chunks(), CHUNKS);
    // Without a batching, the background faults in no part of the window.
    let run = LoaderOptions {
        window_bytes: 0,
        batching: Some(Batching::None),
        ..options(OrderKind::Grouped { lanes: 0, group: 1 }, 4, 2)
    };
    let of_four = LoaderOptions { world_size: 4, ..run.clone() };
    let state = dataset.loader(of_four).unwrap().state();
    let read = |loader: &Loader| {
        assert_eq!(loader.next(&mut ()).unwrap().unwrap().len(), 4);
        let until = Instant::now() + Duration::from_secs(120);
        while loader.stats().window_bytes == 0 {
            assert!(Instant::now() < until, "a node's loader shows its counters later");
            std::thread::sleep(Duration::from_millis(5));
        }
        loader.stats().window_bytes
    };
    let resumed = LoaderOptions { resume: Some(state.clone()), ..run.clone() };
    let wanted = read(&dataset.loader(resumed).unwrap());
    let job = format!("{}-lanes", std::process::id());
    let node = Some(NodePlace { local_world_size: 1, job });
    for of_node in [run.clone(), LoaderOptions { node, ..run }] {
        for reads_before in [false, true] {
            let loader = dataset.loader(of_node.clone()).unwrap();
            loader.prepare().unwrap();
            if reads_before {
                assert!(read(&loader) < wanted);
            }
            loader.set_state(&state).unwrap();
            assert_eq!(read(&loader), wanted);
        }
    }
}
