//! Threads that die: whatever an engine does, in whichever thread, no run ends as if it were
//! complete. `tests/threads.md` has the table of threads; what C, Python and the command report is
//! tested there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::cache::{TierOptions, TierPlan};
use dlfs::dataset::{self, Dataset, Image, OnError, OpenOptions, Query};
use dlfs::format::Pack;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::TcpNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::tier::Policy;
use dlfs::units::{Nsid, SampleId};

use crate::images::{self, Sample, sample};
use crate::support::breaking::{Breaking, How};

/// Short enough for a test, long enough for an engine that is merely slow.
const DEADLINE: Duration = Duration::from_secs(1);
/// For what ends by itself: to write the backtrace of a panic takes seconds on a busy machine.
const LONG_DEADLINE: Duration = Duration::from_secs(60);

fn deadline(how: How) -> Duration {
    if matches!(how, How::Panics | How::Fails) { LONG_DEADLINE } else { DEADLINE }
}

/// The limit above which a wait counts as endless: far above all limits of drops and calls here.
const NOT_FOR_EVER: Duration = Duration::from_secs(60);

fn source() -> Vec<Sample> {
    (0..400).map(|id| sample(&format!("s{id:03}"), Some(id), 3000 + id as usize)).collect()
}

/// An image in memory.
fn medium() -> Arc<dyn Device> {
    let mut image = images::Image::unique(1, Pack::Tight);
    image.add(&source(), 7, 400, &[]);
    let mut bytes = image.namespaces.remove(0);
    bytes.resize(bytes.len().next_multiple_of(64 << 10), 0);
    let device = MemNamespace::new(bytes.len() as u64, 512).unwrap();
    Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    Arc::new(device)
}

/// The image, on a device that breaks in `thread` on request.
fn breaking_image(how: How, thread: &'static str, tiers: &[&str]) -> (Arc<Breaking>, Image) {
    let device = Breaking::new(medium(), how, thread);
    let tiers = tiers.iter().map(|tier| tier.parse().unwrap()).collect();
    let tiers = TierOptions { tiers, policy: Policy::Clairvoyant, ..TierOptions::default() };
    let options = OpenOptions { tiers, ..OpenOptions::default() };
    let image =
        Image::from_devices(vec![Arc::clone(&device) as Arc<dyn Device>], &options).unwrap();
    (device, image)
}

fn run(kind: OrderKind, copy_threads: Option<usize>) -> LoaderOptions {
    LoaderOptions {
        copy_threads,
        deadline: DEADLINE,
        window_bytes: 512 << 10,
        ..LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, 50)
    }
}

/// The expected error of a call that meets the broken engine, by how it is broken.
#[track_caller]
fn check(error: &dlfs::Error, how: How, words: &str) {
    let expected = match how {
        How::Panics => ErrorKind::Internal,
        How::Hangs | How::Blocks => ErrorKind::TimedOut,
        How::Fails => ErrorKind::Io,
    };
    assert_eq!(error.kind(), expected, "{how:?}: {error:?}");
    if how == How::Panics {
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(text.contains("an engine that was told to panic"), "{text}");
    }
}

fn not_for_ever(what: &str, began: Instant) {
    let took = began.elapsed();
    assert!(took < NOT_FOR_EVER, "{what} took {took:?}");
}

#[test]
fn a_run_whose_poller_meets_a_broken_engine_ends_with_its_error_for_good() {
    let grouped = OrderKind::Grouped { lanes: 2, group: 2 };
    for how in How::ALL {
        let runs =
            [(grouped, Some(2)), (grouped, Some(0)), (grouped, None), (OrderKind::Global, None)];
        // Waiting takes time, and does not depend on how batches are read.
        let num_runs = if matches!(how, How::Panics | How::Fails) { runs.len() } else { 1 };
        for (kind, copy_threads) in runs.into_iter().take(num_runs) {
            let (device, image) = breaking_image(how, "dlfs-poller", &[]);
            let options = LoaderOptions { deadline: deadline(how), ..run(kind, copy_threads) };
            let mut loader = at_last("a first batch", || {
                let mut loader = image.prefetcher(options.clone())?;
                loader.next().expect("no end")?;
                Ok(loader)
            });
            device.break_now();
            let began = Instant::now();
            let error = loop {
                match loader.next() {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => panic!("{how:?}, {kind:?}: the run ended as if it were complete"),
                }
            };
            check(&error, how, "the thread dlfs-poller panicked");
            for _ in 0..3 {
                let again = loader.next().expect("no end").unwrap_err();
                assert_eq!((again.kind(), again.to_string()), (error.kind(), error.to_string()));
            }
            while !device.has_struck() {
                not_for_ever("the poller's next turn", began);
            }
            drop(loader);
            not_for_ever(&format!("{how:?}, {kind:?}"), began);
        }
    }
}

#[test]
fn a_job_gets_the_error_of_a_dead_poller_until_it_begins_anew() {
    let (device, image) = breaking_image(How::Panics, "dlfs-poller", &[]);
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let options = LoaderOptions {
        batching: Some(Batching::Sample),
        deadline: LONG_DEADLINE,
        ..run(OrderKind::Global, None)
    };
    let loader = dataset.loader(options).unwrap();
    loader.next(&mut ()).unwrap().unwrap();
    device.break_now();
    let error = loop {
        match loader.next(&mut ()) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the run ended as if it were complete"),
            Err(error) => break error,
        }
    };
    check(&error, How::Panics, "the thread dlfs-poller panicked");
    let stood = loader.state();
    assert_eq!(loader.next(&mut ()).unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(loader.state(), stood, "nothing was delivered since");
}

#[test]
fn reading_by_id_with_a_broken_engine_fails_and_the_thread_lives_on() {
    for how in [How::Panics, How::Hangs, How::Fails] {
        let (device, image) = breaking_image(how, "", &[]);
        let options = ReaderOptions { deadline: deadline(how), ..ReaderOptions::default() };
        let dataset = Dataset::from_image(image, options);
        let ids: Vec<SampleId> = (0..40).map(SampleId).collect();
        let read = || dataset.read(Query::Ids(&ids), OnError::Raise, &mut ());
        assert_eq!(at_last("a first read", read).batch.len(), 40);
        device.break_now();
        let began = Instant::now();
        check(&read().unwrap_err(), how, "reading by id panicked");
        check(&read().unwrap_err(), how, "reading by id panicked");
        drop(dataset);
        not_for_ever(&format!("{how:?}"), began);
    }
}

#[test]
fn work_in_the_background_with_a_broken_engine_ends_with_its_error() {
    for how in [How::Panics, How::Fails] {
        let (device, image) = breaking_image(how, "dlfs-open", &[]);
        let dataset = Dataset::from_image(image, ReaderOptions::default());
        device.break_now();
        let error = dataset.load_names(&mut ()).unwrap_err();
        check(&error, how, "the thread dlfs-open panicked");
    }
    // A blocked thread is abandoned by whoever stops waiting for it.
    struct GivesUp(Instant);
    impl dataset::Watch for GivesUp {
        fn goes_on(&mut self) -> bool {
            self.0.elapsed() < Duration::from_millis(300)
        }
    }
    let (device, image) = breaking_image(How::Blocks, "dlfs-open", &[]);
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    device.break_now();
    let began = Instant::now();
    let error = dataset.load_names(&mut GivesUp(began)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    drop(dataset);
    not_for_ever("giving up", began);
}

#[test]
fn without_a_copier_readers_go_on_and_the_tiers_say_why_they_take_nothing() {
    for how in How::ALL {
        let (device, image) = breaking_image(how, "dlfs-tiers", &["ram:64M"]);
        device.break_now();
        let began = Instant::now();
        // The copier fetches planned data by itself.
        let tiers = image.tiers().unwrap();
        let units = tiers.units();
        let plan = TierPlan {
            copies: (0..units.num_portions()).map(|portion| (portion, 0)).collect(),
            reads: vec![1; units.num_portions() as usize],
            fingerprint: units.fingerprint(),
        };
        tiers.set_plan(&plan).unwrap();
        let mut reader = image.reader(ReaderOptions::default()).unwrap();
        let source = source();
        let mut batch = Batch::new();
        let mut tries = 0;
        while !device.has_struck() {
            let id = tries % source.len();
            reader.read_batch(&[SampleId(id as u64)], &mut batch).unwrap();
            assert!(batch.bytes(0)[..] == source[id].record[..], "sample {id}");
            std::thread::sleep(Duration::from_millis(1));
            tries += 7;
            not_for_ever("waiting for the copier", began);
        }
        for (id, sample) in source.iter().enumerate() {
            reader.read_batch(&[SampleId(id as u64)], &mut batch).unwrap();
            assert!(batch.bytes(0)[..] == sample.record[..], "sample {id}");
        }
        if how == How::Panics {
            while tiers.stats().died.is_none() {
                not_for_ever("the copier's death", began);
                std::thread::sleep(Duration::from_millis(1));
            }
            let stats = tiers.stats();
            let died = stats.died.unwrap();
            assert!(died.contains("the thread dlfs-tiers panicked"), "{died}");
            assert!(died.contains("an engine that was told to panic"), "{died}");
            assert!(stats.tiers.iter().all(|tier| tier.is_off));
            assert!(tiers.is_settled(), "nobody waits for copies that never come");
        } else {
            assert_eq!(tiers.stats().died, None);
        }
        drop((reader, image));
        not_for_ever(&format!("{how:?}"), began);
    }
}

/// Calls `attempt` until it succeeds; returns its value. A busy machine may take longer than the time-outs.
fn at_last<T>(what: &str, mut attempt: impl FnMut() -> dlfs::Result<T>) -> T {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(_) => not_for_ever(what, began),
        }
    }
}

#[test]
fn a_target_whose_poller_meets_a_broken_engine_says_so_and_its_hosts_get_errors() {
    for how in How::ALL {
        let device = Breaking::new(medium(), how, "dlfs-target");
        let nqn = "nqn.2026-11.io.dlfs:ends".parse().unwrap();
        let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&device) as Arc<dyn Device>];
        let options = TargetOptions { num_pollers: 2, ..TargetOptions::new(nqn) };
        let target = Target::bind(options, devices).unwrap();
        let dlfs::address::Address::Tcp(address) = target.address(Nsid(1)) else { panic!("TCP") };
        let connect = ConnectOptions {
            io_timeout: Duration::from_millis(300),
            ctrl_loss_tmo: DEADLINE,
            ..ConnectOptions::default()
        };
        let (namespace, mut host) = at_last("a first read", || {
            let namespace = TcpNamespace::connect(&address, &connect)?;
            let mut host = Blocking::new(namespace.queue_pair()?)?;
            host.set_deadline(4 * DEADLINE);
            host.read(0, 4096)?;
            Ok((namespace, host))
        });
        target.check().unwrap();
        device.break_now();
        let began = Instant::now();
        let error = host.read(0, 4096).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::InvalidArgument, "{how:?}: {error:?}");
        match how {
            How::Panics => {
                // The host may give up before the poller has come to its engine.
                let error = loop {
                    match target.check() {
                        Err(error) => break error,
                        Ok(()) => not_for_ever("the poller's death", began),
                    }
                };
                check(&error, how, "the thread dlfs-target-");
                // The other poller ends, too, so no host waits for a dead target.
                while TcpNamespace::connect(&address, &connect).is_ok() {
                    not_for_ever("the other poller's end", began);
                }
            }
            How::Hangs | How::Blocks | How::Fails => target.check().unwrap(),
        }
        drop(host);
        drop(namespace);
        target.stop();
        not_for_ever(&format!("{how:?}"), began);
    }
}

#[test]
fn a_run_that_ended_stays_ended_however_often_it_is_asked() {
    let image = Image::from_devices(vec![medium()], &OpenOptions::default()).unwrap();
    let grouped = OrderKind::Grouped { lanes: 2, group: 2 };
    for copy_threads in [None, Some(0), Some(1), Some(3)] {
        for drop_short in [false, true] {
            let options = LoaderOptions {
                epochs: 0..2,
                batch_size: 33,
                drop_short,
                ..run(grouped, copy_threads)
            };
            let mut loader = image.prefetcher(options).unwrap();
            let mut samples = 0;
            while let Some(batch) = loader.next() {
                samples += batch.unwrap().len();
            }
            assert_eq!(samples, if drop_short { 2 * (400 - 400 % 33) } else { 800 });
            assert!(loader.next().is_none() && loader.next().is_none());
        }
    }
}
