//! Reads that fail: everything readable is delivered, and only what is unreadable is lost.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::dataset::{
    Dataset, Image, OnError, OpenOptions, Options, Query, SampleRange, VerifyOptions,
};
use dlfs::format::Pack;
use dlfs::nvme::Status;
use dlfs::order::{OrderKind, OrderSpec, SequentialBy};
use dlfs::prefetch::{LoaderOptions, Prefetcher};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device, open};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::units::SampleId;

use crate::images::{self, Sample, sample};
use crate::support::alone::{leave_memory, ran_alone};
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::hostile_target::{HostileTarget, Misbehaviour};

const GROUPED: OrderKind = OrderKind::Grouped { lanes: 3, group: 2 };
/// By chunks, by merged reads of samples, and by chunks as `dlfs export` reads.
const ORDERS: [OrderKind; 3] =
    [GROUPED, OrderKind::Global, OrderKind::Sequential { by: SequentialBy::Slot }];

/// An unrecovered read error with "do not retry".
const BAD: Status = Status { sct: 2, sc: 0x81, dnr: true, crd: 0, more: false };

const EIO: i32 = 5;
/// The longest that a call may take on a heavily loaded machine: a bound, not a speed.
const NOT_FOR_EVER: Duration = Duration::from_secs(60);

/// Samples of many lengths: several per block, and several blocks per sample.
fn source() -> Vec<Sample> {
    let lens = [40, 700, 1, 4096, 9000, 0, 300, 20_000];
    (0..400).map(|i| sample(&format!("{i:04}"), None, lens[i % lens.len()])).collect()
}

fn media(source: &[Sample], pack: Pack) -> Vec<u8> {
    let mut media = images::Image::new(1, pack);
    media.add(source, 7, source.len() as u64, &[]);
    let mut bytes = media.namespaces.swap_remove(0);
    bytes.resize(bytes.len().next_multiple_of(64 << 10), 0);
    bytes
}

struct Fixture {
    source: Vec<Sample>,
    device: Faulty,
    image: Image,
}

fn fixture(pack: Pack, block_len: u32) -> Fixture {
    let source = source();
    let bytes = media(&source, pack);
    let memory = MemNamespace::new(bytes.len() as u64, block_len).unwrap();
    let mut blocking = Blocking::new(memory.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, &bytes).unwrap();
    let device = Faulty::new(Arc::new(memory));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let image = Image::from_devices(devices, &OpenOptions::default()).unwrap();
    Fixture { source, device, image }
}

/// The samples that touch these bytes of the only namespace.
fn samples_in(image: &Image, bytes: Range<u64>) -> BTreeSet<u64> {
    let directory = image.directory();
    let ids = (0..directory.num_samples()).map(SampleId);
    let inside = ids.filter(|&id| {
        let extent = directory.extent(id).unwrap();
        let end = extent.offset_bytes + u64::from(extent.len_bytes);
        extent.len_bytes > 0 && extent.offset_bytes < bytes.end && end > bytes.start
    });
    inside.map(|id| id.0).collect()
}

fn skipping(image: &Image, kind: OrderKind) -> Prefetcher {
    let mut options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, 1);
    options.on_error = OnError::Skip;
    image.prefetcher(options).unwrap()
}

/// Reads everything in each way: exactly `lost` is missing, and the rest is right.
fn assert_lost(image: &Image, source: &[Sample], lost: &BTreeSet<u64>) {
    for kind in ORDERS {
        let mut loader = skipping(image, kind);
        let mut missing: BTreeSet<u64> = (0..source.len() as u64).collect();
        while let Some(batch) = loader.next() {
            for sample in batch.unwrap().iter() {
                assert_eq!(sample.bytes, source[sample.id.0 as usize].record, "{}", sample.id);
                missing.remove(&sample.id.0);
            }
        }
        assert_eq!(missing, *lost, "{kind:?}");
        assert_eq!(loader.stats().skipped, lost.len() as u64, "{kind:?}");
    }
    let ids: Vec<_> = (0..source.len() as u64).map(SampleId).collect();
    let mut batch = Batch::new();
    let mut reader = image.reader(ReaderOptions::default()).unwrap();
    let failures = reader.read_batch_each(&ids, &mut batch).unwrap();
    assert_eq!(failures.iter().map(|(index, _)| *index as u64).collect::<BTreeSet<_>>(), *lost);
    assert!(failures.iter().all(|(index, error)| error.sample_id() == Some(ids[*index])));
    for (index, sample) in source.iter().enumerate() {
        let expected = if lost.contains(&(index as u64)) { &[][..] } else { &sample.record };
        assert_eq!(batch.bytes(index), expected, "{index}");
    }
    let report = image.verify(&VerifyOptions::default(), &mut |_| {}).unwrap();
    let damaged: BTreeSet<u64> =
        report.damages.iter().filter_map(|damage| Some(damage.sample?.0)).collect();
    assert_eq!(damaged, *lost);
    assert_eq!(report.samples, source.len() as u64 - lost.len() as u64);
}

#[test]
fn a_block_that_cannot_be_read_costs_the_samples_in_it_and_no_other() {
    for (pack, block_len) in [(Pack::Aligned, 4096), (Pack::Aligned, 512), (Pack::Tight, 4096)] {
        for fault in [Fault::Os(EIO), Fault::Status(BAD), Fault::Short] {
            let fixture = fixture(pack, block_len);
            // In the middle of the third chunk, between other samples.
            let block = (3 * (64 << 10) + (40 << 10)) / u64::from(block_len);
            fixture.device.add(Rule::read(block..block + 1, u32::MAX, fault.clone()));
            let start = block * u64::from(block_len);
            let lost = samples_in(&fixture.image, start..start + u64::from(block_len));
            assert!((1..20).contains(&lost.len()), "{lost:?}");
            assert_lost(&fixture.image, &fixture.source, &lost);
        }
    }
}

#[test]
fn a_single_transient_error_loses_nothing() {
    let fixture = fixture(Pack::Tight, 4096);
    let retry = Status { sct: 0, sc: 0x22, dnr: false, crd: 0, more: false };
    for fault in [Fault::Os(EIO), Fault::Status(retry), Fault::Short] {
        for times in [1, 3] {
            fixture.device.add(Rule::any_read(times, fault.clone()));
            assert_lost(&fixture.image, &fixture.source, &BTreeSet::new());
        }
    }
}

#[test]
fn an_error_stops_a_run_with_the_sample_that_it_is_about() {
    for kind in ORDERS {
        let fixture = fixture(Pack::Tight, 4096);
        fixture.device.add(Rule::read(58..59, u32::MAX, Fault::Os(EIO)));
        let lost = samples_in(&fixture.image, 58 * 4096..59 * 4096);
        let options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, 1);
        let mut loader = fixture.image.prefetcher(options).unwrap();
        let error = std::iter::from_fn(|| loader.next()).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
        assert!(lost.contains(&error.sample_id().unwrap().0), "{kind:?}: {error}");
    }
}

#[test]
fn a_header_that_cannot_be_read_is_damage_and_its_samples_are_not() {
    let fixture = fixture(Pack::Aligned, 4096);
    let chunk = fixture.image.directory().chunk(2);
    let header = chunk.offset_bytes / 4096;
    fixture.device.add(Rule::read(header..header + 1, u32::MAX, Fault::Os(EIO)));
    let report = fixture.image.verify(&VerifyOptions::default(), &mut |_| {}).unwrap();
    assert_eq!(report.samples, fixture.source.len() as u64);
    assert_eq!(report.damages.len(), 1, "{:?}", report.damages);
    assert!(report.damages[0].what.contains("header of chunk 2"), "{:?}", report.damages);
}

/// Samples of 64 bytes in blocks of 512: thousands of pieces.
fn fixture_of_pieces() -> Fixture {
    let source: Vec<Sample> = (0..20_000).map(|i| sample(&format!("{i}"), None, 64)).collect();
    let bytes = media(&source, Pack::Tight);
    let memory = MemNamespace::new(bytes.len() as u64, 512).unwrap();
    let mut blocking = Blocking::new(memory.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, &bytes).unwrap();
    let device = Faulty::new(Arc::new(memory));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let image = Image::from_devices(devices, &OpenOptions::default()).unwrap();
    Fixture { source, device, image }
}

#[test]
fn a_device_that_is_gone_is_not_read_piece_by_piece() {
    for (fault, most) in [(Fault::Os(EIO), 4000), (Fault::Disconnect, 1000)] {
        let fixture = fixture_of_pieces();
        let ids: Vec<_> = (0..20_000).map(SampleId).collect();
        let mut reader = fixture.image.reader(ReaderOptions::default()).unwrap();
        fixture.device.add(Rule::any_read(u32::MAX, fault));
        for _ in 0..10 {
            let failures = reader.read_batch_each(&ids, &mut Batch::new()).unwrap();
            assert_eq!(failures.len(), ids.len());
        }
        // Ten times 1.3 MB: 26,000 blocks and as many pieces.
        let commands = reader.stats().commands;
        assert!(commands < most, "{commands} commands");
    }
}

#[test]
fn behind_a_long_stretch_that_cannot_be_read_samples_are_read_as_before_it() {
    let fixture = fixture_of_pieces();
    let start = fixture.image.directory().extent(SampleId(0)).unwrap();
    assert!(start.len_bytes == 64);
    // Longer than the allowed number of consecutive failures, and it ends inside a read.
    let blocks = 700..2_101;
    fixture.device.add(Rule::read(blocks.clone(), u32::MAX, Fault::Os(EIO)));
    let lost = samples_in(&fixture.image, blocks.start * 512..blocks.end * 512);
    assert!(lost.len() > 4_000, "{}", lost.len());
    assert_lost(&fixture.image, &fixture.source, &lost);
}

#[test]
fn a_target_that_fails_a_read_loses_the_samples_that_it_cannot_read() {
    let source = source();
    let target = HostileTarget::start(media(&source, Pack::Tight));
    let device = open(&target.address(), &ConnectOptions::default()).unwrap();
    let image = Image::from_devices(vec![device], &OpenOptions::default()).unwrap();
    let block = 3 * 128 + 70;
    for (misbehaviour, lost) in [
        (Misbehaviour::BadBlocks(block..block + 1, BAD), block * 512..(block + 1) * 512),
        (
            Misbehaviour::BadBlocks(block..block + 9, Status::INTERNAL_ERROR),
            block * 512..(block + 9) * 512,
        ),
    ] {
        target.behave(misbehaviour, None);
        let lost = samples_in(&image, lost);
        assert!((1..20).contains(&lost.len()), "{lost:?}");
        assert_lost(&image, &source, &lost);
        target.be_good();
    }
}

#[test]
fn a_missing_file_costs_one_sample() {
    let folder = tempfile::tempdir().unwrap();
    let lens = [5000, 1, 300, 0, 4096, 70_000];
    let source: Vec<Sample> = (0..300)
        .map(|index| sample(&format!("{index:04}"), None, lens[index % lens.len()]))
        .collect();
    let path = |index: usize| folder.path().join(format!("{index:04}"));
    source.iter().enumerate().for_each(|(i, s)| fs::write(path(i), &s.record).unwrap());
    let open =
        || Image::open(&[Address::from_path(folder.path())], &OpenOptions::default()).unwrap();
    let image = open();
    let mut lost = BTreeSet::new();
    for index in [100, 101, 103, 5] {
        fs::remove_file(path(index)).unwrap();
        lost.insert(index as u64);
        assert_lost(&image, &source, &lost);
    }
    // Nearly all samples of a class.
    for index in (0..300).filter(|index| index % 50 != 0 && lens[index % lens.len()] > 0) {
        let _ = fs::remove_file(path(index)); // some are gone already
        lost.insert(index as u64);
    }
    assert_lost(&image, &source, &lost);
    drop(open());
}

#[test]
fn damage_is_told_although_the_superblocks_cannot_be_looked_at() {
    for fault in [Fault::Os(EIO), Fault::Swallow, Fault::Disconnect] {
        let bad = SampleId(4); // 9,000 bytes
        let read = |what: &dyn Fn(&Image) -> dlfs::Error| {
            let fixture = fixture(Pack::Aligned, 4096);
            let extent = fixture.image.directory().extent(bad).unwrap();
            let mut blocking = Blocking::new(fixture.device.queue_pair().unwrap()).unwrap();
            let at = extent.offset_bytes / 4096 * 4096 + 4096;
            let mut block = blocking.read(at, 4096).unwrap();
            block[0] ^= 1;
            blocking.write(at, block).unwrap();
            for copy in [0, 8] {
                fixture.device.add(Rule::read(copy..copy + 1, u32::MAX, fault.clone()));
            }
            let error = what(&fixture.image);
            assert_eq!(
                (error.kind(), error.sample_id()),
                (ErrorKind::Corrupt, Some(bad)),
                "{fault:?}: {}",
                error.report()
            );
        };
        let deadline = Duration::from_secs(2);
        read(&|image| {
            let options = ReaderOptions { deadline, ..ReaderOptions::default() };
            let mut reader = image.reader(options).unwrap();
            let began = Instant::now();
            let error = reader.read_batch(&[SampleId(7), bad], &mut Batch::new()).unwrap_err();
            assert!(began.elapsed() < NOT_FOR_EVER, "{:?}", began.elapsed());
            error
        });
        for kind in ORDERS {
            read(&|image| {
                let mut options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, 1);
                options.deadline = 4 * deadline; // the check of the superblocks gets a quarter of it
                let mut loader = image.prefetcher(options).unwrap();
                std::iter::from_fn(|| loader.next()).find_map(Result::err).unwrap()
            });
        }
    }
}

/// An image, and its namespace after the next generation has reused the space of the first one's
/// samples.
fn moved_on() -> Fixture {
    let fixture = fixture(Pack::Aligned, 4096);
    let mut next = images::Image::new(1, Pack::Aligned);
    let source: Vec<Sample> =
        (0..400).map(|i| sample(&format!("other{i:04}"), None, 3000)).collect();
    next.add(&source[..200], 7, 200, &[]);
    next.add(&source[200..], 7, 200, &[]);
    let mut blocking = Blocking::new(fixture.device.queue_pair().unwrap()).unwrap();
    let len = fixture.device.namespace().len_bytes() as usize;
    let mut bytes = next.namespaces.swap_remove(0);
    bytes.resize(len, 0);
    blocking.write_at(0, &bytes).unwrap();
    fixture
}

#[test]
fn an_image_that_has_moved_on_is_stale_and_not_damaged_in_every_way_of_reading() {
    let fixture = moved_on();
    let ids: Vec<_> = (0..400).map(SampleId).collect();
    let mut reader = fixture.image.reader(ReaderOptions::default()).unwrap();
    let error = reader.read_batch_each(&ids, &mut Batch::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error:?}");
    for (kind, on_error) in
        ORDERS.into_iter().flat_map(|kind| [(kind, OnError::Raise), (kind, OnError::Skip)])
    {
        let mut options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, 1);
        options.on_error = on_error;
        let mut loader = fixture.image.prefetcher(options).unwrap();
        let error = std::iter::from_fn(|| loader.next()).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Stale, "{kind:?} {on_error:?}: {error:?}");
    }
    let error = fixture.image.verify(&VerifyOptions::default(), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error:?}");
}

#[test]
fn a_call_that_keeps_failing_ends_at_its_deadline() {
    let fixture = fixture_of_pieces();
    let deadline = Duration::from_millis(300);
    let mut reader =
        fixture.image.reader(ReaderOptions { deadline, ..ReaderOptions::default() }).unwrap();
    // Each command fails slowly.
    fixture.device.add(Rule::any_read(u32::MAX, Fault::LateOs(Duration::from_millis(40), EIO)));
    let ids: Vec<_> = (0..20_000).map(SampleId).collect();
    let began = Instant::now();
    let mut ended = false;
    for _ in 0..3 {
        match reader.read_batch_each(&ids, &mut Batch::new()) {
            Ok(failures) => assert_eq!(failures.len(), ids.len()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
                ended = true;
            }
        }
    }
    assert!(began.elapsed() < NOT_FOR_EVER, "{:?}", began.elapsed());
    assert!(ended, "no call took as long as that");
}

#[test]
fn a_call_that_finds_no_memory_leaves_nothing_to_the_next_one() {
    if ran_alone(a_call_that_finds_no_memory_leaves_nothing_to_the_next_one) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), b"first").unwrap();
    fs::write(folder.path().join("b"), b"second").unwrap();
    fs::write(folder.path().join("empty"), b"").unwrap();
    fs::File::create(folder.path().join("huge")).unwrap().set_len(3 << 30).unwrap();
    let address = Address::from_path(folder.path());
    let dataset = Dataset::open(&[address], &Options::default(), &mut ()).unwrap();
    leave_memory(2 << 30);
    let all = [0, 1, 2, 3].map(SampleId);
    // So many are gathered; empty ones have arrived as soon as their read begins.
    let many = [vec![SampleId(2); 5000], vec![SampleId(3)]].concat();
    let read = |ids: &[SampleId]| dataset.read(Query::Ids(ids), OnError::Raise, &mut ());
    let ranges = |ids: &[SampleId]| {
        let whole = |&id| SampleRange { id, start: 0, end: u64::MAX };
        dataset.read_ranges(&ids.iter().map(whole).collect::<Vec<_>>(), &mut ())
    };
    for _ in 0..2 {
        for ids in [&all[..], &many] {
            assert_eq!(read(ids).map(drop).unwrap_err().kind(), ErrorKind::OutOfMemory);
            assert_eq!(read(&all[1..2]).unwrap().batch.bytes(0), b"second");
        }
        assert_eq!(ranges(&all).map(drop).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(ranges(&all[1..2]).unwrap().0.bytes(0), b"second");
    }
}
