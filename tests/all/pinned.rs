//! Loaders whose memory is registered with the driver of accelerators: a driver without a device, which checks its use.

use std::fs;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Loader, Options};
use dlfs::gpu::{Driver, Parts, Pin, Ring};
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{Batching, LoaderOptions, NodePlace};
use dlfs::qpair::ConnectOptions;
use dlfs::reader::Batch;
use dlfs_fake_cuda::Fake;

use crate::support::alone::ran_alone;
use crate::support::fork::in_child;
use crate::support::object_store::wait_until;
use crate::support::random::Random;
use crate::support::warnings::warnings_of;

/// A data set in a file.
struct Data {
    _temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
    dataset: Dataset,
}

impl Data {
    fn new() -> Data {
        let temp = tempfile::tempdir().unwrap();
        let source = temp.path().join("source");
        fs::create_dir(&source).unwrap();
        let mut random = Random::new(11);
        let mut samples = Vec::new();
        for id in 0..300 {
            let mut bytes = vec![0; random.below(60_000) as usize];
            random.fill(&mut bytes);
            fs::write(source.join(format!("{id:04}")), &bytes).unwrap();
            samples.push(bytes);
        }
        let image = Address::from_path(temp.path().join("train.dlfs"));
        let images = std::slice::from_ref(&image);
        let options = ImportOptions {
            chunk_size_bytes: 256 << 10,
            onto: Onto::Empty,
            ..ImportOptions::default()
        };
        import(&[source], images, &options, &ConnectOptions::default(), &mut ()).unwrap();
        let dataset = Dataset::open(images, &Options::default(), &mut ()).unwrap();
        Data { _temp: temp, samples, dataset }
    }

    fn loader(&self, options: LoaderOptions) -> Loader {
        self.dataset.loader(options).unwrap()
    }

    /// Checks the bytes of a batch, and calls `each` for each sample that has some.
    fn check(&self, batch: &Batch, each: impl Fn(&[u8])) {
        for sample in batch.iter() {
            assert!(sample.bytes == self.samples[sample.id.0 as usize], "sample {}", sample.id);
            if !sample.bytes.is_empty() {
                each(sample.bytes);
            }
        }
    }

    /// Reads to the end; returns the number of samples.
    fn read(&self, loader: &Loader, each: impl Fn(&[u8])) -> usize {
        let mut count = 0;
        while let Some(batch) = loader.next(&mut ()).unwrap() {
            self.check(&batch, &each);
            count += batch.len();
        }
        count
    }
}

fn pinned(kind: OrderKind) -> LoaderOptions {
    let order = OrderSpec { kind, seed: 3 };
    let pin = Some(Pin::Cuda);
    LoaderOptions { window_bytes: 16 << 20, pin, ..LoaderOptions::new(order, 16, 2) }
}

const GROUPED: OrderKind = OrderKind::Grouped { lanes: 2, group: 2 };

#[test]
fn every_byte_of_every_batch_lies_in_registered_memory() {
    if ran_alone(every_byte_of_every_batch_lies_in_registered_memory) {
        return;
    }
    let fake = Fake::open();
    let data = Data::new();
    let node = || Some(NodePlace { local_world_size: 1, job: format!("{}", std::process::id()) });
    for options in [
        LoaderOptions { batching: Some(Batching::Chunk), ..pinned(GROUPED) },
        LoaderOptions { batching: Some(Batching::Sample), ..pinned(GROUPED) },
        pinned(OrderKind::Global),
        LoaderOptions { copy_threads: Some(0), ..pinned(GROUPED) },
        LoaderOptions { copy_threads: Some(2), ..pinned(OrderKind::Global) },
        LoaderOptions { batch_size: 1, copy_threads: Some(1), ..pinned(OrderKind::Global) },
        LoaderOptions { device: Some(1), ..pinned(GROUPED) },
        LoaderOptions { node: node(), ..pinned(GROUPED) },
    ] {
        let shown = format!("{options:?}");
        let loader = data.loader(options);
        assert_eq!(loader.stats().registered_bytes, 0);
        let is_registered = |bytes: &[u8]| assert!(fake.is_registered(bytes), "{shown}");
        assert_eq!(data.read(&loader, is_registered), 600);
        let stats = loader.stats();
        assert_eq!(stats.registered_bytes, fake.counts().registered_bytes.min(16 << 20), "{shown}");
        assert!(stats.registered_bytes >= 16 << 20, "{stats:?}");
        loader.set_epoch(0).unwrap();
        let before = fake.counts().registered;
        assert_eq!(data.read(&loader, is_registered), 600);
        // A run that is moved keeps its window; a busy machine may need some buffers beside it.
        assert_eq!(loader.stats().registered_bytes, stats.registered_bytes, "{shown}");
        assert!(fake.counts().registered - before < 600 / 16, "{shown}");
        loader.close();
        drop(loader);
        // Threads that copy end behind the loader, and have a batch until then.
        wait_until(&shown, || fake.counts().registered_bytes == 0);
        let counts = fake.counts();
        assert_eq!(counts.registered, counts.unregistered, "{shown}");
    }
    assert_eq!(fake.violations(), 0);
}

#[test]
fn batches_of_a_loader_go_to_the_device_and_their_memory_returns_to_the_window() {
    if ran_alone(batches_of_a_loader_go_to_the_device_and_their_memory_returns_to_the_window) {
        return;
    }
    let fake = Fake::open();
    let data = Data::new();
    let driver = Driver::find(Pin::Cuda).unwrap().unwrap();
    let ring = Ring::new(driver, 0, 3).unwrap();
    // A window of a few batches: it is filled again only by what copies return.
    let loader = data.loader(LoaderOptions { window_bytes: 3 << 20, ..pinned(GROUPED) });
    let mut held = Vec::new();
    let mut count = 0;
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        let expected: Vec<u8> = batch.iter().flat_map(|sample| sample.bytes.to_vec()).collect();
        count += batch.len();
        let slot = ring.slot(Duration::from_secs(60)).unwrap().expect("a buffer");
        let uploaded = slot.upload(batch, |batch| {
            let mut parts = Parts::new();
            parts.begin();
            batch.iter().for_each(|sample| parts.push(sample.bytes));
            parts
        });
        let bytes = uploaded.unwrap();
        bytes.wait().unwrap();
        assert!(fake.bytes(bytes.array(0).unwrap()) == expected);
        held.truncate(1);
        held.insert(0, bytes);
    }
    assert_eq!(count, 600);
    let stats = loader.stats();
    assert_eq!((stats.copied_bytes, stats.over_window), (0, 0));
    assert_eq!((fake.counts().pageable_bytes, fake.violations()), (0, 0));
}

#[test]
fn without_a_driver_or_with_one_that_refuses_a_loader_warns_once_and_reads_the_same() {
    if ran_alone(without_a_driver_or_with_one_that_refuses_a_loader_warns_once_and_reads_the_same) {
        return;
    }
    let data = Data::new();
    let read = |options: LoaderOptions| {
        let loader = data.loader(options);
        let (_, warnings) = warnings_of(|| loader.prepare().unwrap());
        assert_eq!(data.read(&loader, |_| ()), 600);
        assert_eq!(loader.stats().registered_bytes, 0);
        warnings
    };
    let auto = LoaderOptions { pin: Some(Pin::Auto), device: Some(0), ..pinned(GROUPED) };
    assert_eq!(read(auto), Vec::<String>::new());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("cuda") && !maps.contains("amdhip"), "nothing is opened");
    if std::env::var_os("DLFS_HIP_LIBRARY").is_none() {
        let warnings = read(LoaderOptions { pin: Some(Pin::Hip), ..pinned(GROUPED) });
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("libamdhip64.so") && warnings[0].contains("not pinned"));
    }
    let fake = Fake::open();
    fake.refuse_registration(0);
    let warnings = read(pinned(GROUPED));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("CUDA_ERROR_NOT_SUPPORTED"), "{warnings:?}");
    assert_eq!((fake.counts().registered, fake.violations()), (0, 0));
}

/// The fake driver aborts a forked child that calls it.
#[test]
fn a_forked_child_reads_on_in_memory_of_its_own_and_so_does_the_parent() {
    if ran_alone(a_forked_child_reads_on_in_memory_of_its_own_and_so_does_the_parent) {
        return;
    }
    let fake = Fake::open();
    let data = Data::new();
    let is_registered = |bytes: &[u8]| assert!(fake.is_registered(bytes));
    for kind in [GROUPED, OrderKind::Global] {
        let loader = data.loader(pinned(kind));
        let first = loader.next(&mut ()).unwrap().unwrap();
        let child = in_child(|| {
            assert_eq!(data.read(&loader, |_| ()), 600 - 16);
            loader.stats().registered_bytes == 0
        });
        assert!(child, "{kind:?}");
        data.check(&first, is_registered);
        assert_eq!(data.read(&loader, is_registered), 600 - 16);
    }
    let counts = fake.counts();
    assert_eq!((counts.registered, fake.violations()), (counts.unregistered, 0));
}
