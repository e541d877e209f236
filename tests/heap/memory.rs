//! How much memory reading takes: the window and the directory, whatever the size of the data set.

use std::sync::Arc;
use std::time::Duration;

use crate::alone;
use crate::support::faults::{Fault, Faulty, Rule};
use crate::targets::counting_alloc::peak_during;
use crate::targets::images::{self, Sample, sample};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Pack;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Cpus, Device};
use dlfs::reader::Batch;

const WINDOW_BYTES: usize = 1 << 20;

/// An image of `count` samples of these lengths in memory that the heap does not count.
fn image_of(count: usize, len: impl Fn(usize) -> usize) -> Arc<dyn Device> {
    let source: Vec<Sample> =
        (0..count).map(|i| sample(&format!("class/{i:08}"), Some(1), len(i))).collect();
    let mut media = images::Image::new(1, Pack::Tight);
    media.add(&source, 7, count as u64, &[]);
    let mut bytes = std::mem::take(&mut media.namespaces[0]);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let device = MemNamespace::new(bytes.len() as u64, 4096).unwrap();
    Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
    Arc::new(device)
}

/// The most heap that opening and two epochs take, and what of it is the directory; in bytes.
fn heap_of_two_epochs(device: &Arc<dyn Device>, kind: OrderKind) -> (usize, usize) {
    let (peak, directory) = peak_during(|| {
        let devices = vec![Arc::clone(device)];
        let image = Image::from_devices(devices, &OpenOptions::default()).unwrap();
        let mut options = LoaderOptions::new(OrderSpec { kind, seed: 7 }, 64, 2);
        options.window_bytes = WINDOW_BYTES;
        let mut loader = image.prefetcher(options).unwrap();
        let mut batch = Batch::new();
        let mut samples = 0;
        while loader.next_into(&mut batch).unwrap() {
            samples += batch.len() as u64;
        }
        assert_eq!(samples, 2 * image.directory().num_live());
        assert_eq!(loader.stats().over_window, 0, "everything fits the window");
        image.directory().memory_bytes().total()
    });
    (peak, directory as usize)
}

#[test]
fn a_memory_namespace_near_processors_has_all_its_pages_at_once() {
    let _alone = alone();
    const LEN_BYTES: u64 = 192 << 20; // much more than what else this program does at a time
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    let device = MemNamespace::near(&Cpus::of_node(0).unwrap(), LEN_BYTES + 4096, 4096).unwrap();
    assert!(resident() >= before + LEN_BYTES / 2, "its pages are there before anybody writes");
    let mut bytes = vec![1; 8192];
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    io.read_at(LEN_BYTES - 4096, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0), "and hold zeroes");
}

#[test]
fn reading_takes_the_window_and_the_directory_whatever_the_size_of_the_data_set() {
    let _alone = alone();
    let images = [image_of(1_000, |i| 3000 + i % 1000), image_of(10_000, |i| 3000 + i % 1000)];
    for kind in [OrderKind::Grouped { lanes: 1, group: 4 }, OrderKind::Global] {
        let [small, large] = images.each_ref().map(|device| heap_of_two_epochs(device, kind));
        println!("{kind:?}: heap and directory {small:?} of 4 MB, {large:?} of 35 MB");
        let rest = |(peak, directory): (usize, usize)| peak.saturating_sub(directory);
        assert!(rest(large) <= rest(small) + large.1 + (64 << 10), "{kind:?}: it grows");
        assert!(rest(large) <= WINDOW_BYTES + large.1, "{kind:?}: beyond its bounds");
    }
}

/// Each position that is planned takes memory: counted while no read of the first batch completes.
#[test]
fn nothing_is_planned_behind_the_first_batch_of_tiny_samples_before_it_is_requested() {
    let _alone = alone();
    let device = Faulty::new(image_of(60_000, |_| 100));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let image = Image::from_devices(devices, &OpenOptions::default()).unwrap();
    device.add(Rule::any_read(u32::MAX, Fault::Swallow));
    let order = OrderSpec { kind: OrderKind::Global, seed: 3 };
    let mut options = LoaderOptions::new(order, 256, 1);
    (options.window_bytes, options.deadline) = (64 << 20, Duration::from_secs(2));
    let mut loader = image.prefetcher(options).unwrap();
    let peak = std::thread::scope(|scope| {
        // Before the deadline: reads that have failed make room for more.
        let (peak, next) = peak_during(|| {
            let next = scope.spawn(|| loader.next());
            std::thread::sleep(Duration::from_millis(700));
            next
        });
        assert!(next.join().unwrap().unwrap().is_err(), "no read completes");
        peak
    });
    println!("{peak} bytes of the heap");
    assert!(peak < PLANNED_BYTES, "{peak} bytes of the heap: more is planned than the first batch");
}

/// Far less than what 60,000 planned samples take, of 24 bytes and a place of 8 each.
const PLANNED_BYTES: usize = 60_000 * 32 / 3;
