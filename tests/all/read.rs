//! Reading batches: by id, in an order, and when the media or the engine fail.

use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::buf::Pages;
use dlfs::dataset::{Image, OnError, OpenOptions, VerifyOptions};
use dlfs::format::{ImageLayout, Pack};
use dlfs::nvme::Status;
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Sharding, State, Tail};
use dlfs::prefetch::{Batching, LoaderOptions, Prefetcher};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::file::{FileNamespace, FileOptions};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Device, Direct};
use dlfs::reader::{Batch, Reader, ReaderOptions};
use dlfs::units::SampleId;

use crate::images::{self, Sample, folder, sample};
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::random::Random;
use crate::support::warnings::warnings_of;

/// An image in memory, on devices that fail on request.
struct Fixture {
    source: Vec<Sample>,
    faulty: Vec<Faulty>,
    image: Image,
}

fn fixture(source: Vec<Sample>, num_namespaces: u16, block_len: u32) -> Fixture {
    fixture_deleted(source, num_namespaces, block_len, &[])
}

fn fixture_deleted(
    source: Vec<Sample>,
    num_namespaces: u16,
    block_len: u32,
    deleted: &[u64],
) -> Fixture {
    let media = images::Image::new(num_namespaces, Pack::Aligned);
    fixture_on(media, source, block_len, deleted)
}

fn fixture_on(
    mut media: images::Image,
    source: Vec<Sample>,
    block_len: u32,
    deleted: &[u64],
) -> Fixture {
    media.add(&source, 7, source.len().max(1) as u64, &[]);
    if !deleted.is_empty() {
        media.delete(deleted);
    }
    let faulty: Vec<Faulty> = media
        .namespaces
        .iter()
        .map(|bytes| {
            let len = bytes.len().next_multiple_of(64 << 10);
            let device = MemNamespace::new(len as u64, block_len).unwrap();
            let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
            let mut padded = bytes.clone();
            padded.resize(len, 0);
            blocking.write_at(0, &padded).unwrap();
            Faulty::new(Arc::new(device))
        })
        .collect();
    let devices = faulty.iter().map(|device| Arc::new(device.clone()) as Arc<dyn Device>);
    let image = Image::from_devices(devices.collect(), &OpenOptions::default()).unwrap();
    Fixture { source, faulty, image }
}

impl Fixture {
    fn loader(&self, kind: OrderKind, change: impl FnOnce(&mut LoaderOptions)) -> Prefetcher {
        let mut options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, 1);
        options.deadline = Duration::from_secs(60);
        change(&mut options);
        self.image.prefetcher(options).unwrap()
    }

    fn reader(&self) -> Reader {
        self.image.reader(ReaderOptions::default()).unwrap()
    }

    fn assert_right(&self, batch: &Batch) {
        for sample in batch.iter() {
            let expected = &self.source[sample.id.0 as usize];
            assert_eq!(sample.bytes, expected.record, "bytes of sample {}", sample.id);
            assert_eq!(sample.label, expected.label, "label of sample {}", sample.id);
        }
    }

    /// Verifies every batch; returns the ids in the order of delivery.
    fn drain(&self, loader: &mut Prefetcher) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Some(batch) = loader.next() {
            let batch = batch.unwrap();
            self.assert_right(&batch);
            ids.extend(batch.ids().map(|id| id.0));
        }
        ids
    }
}

fn sorted(mut ids: Vec<u64>) -> Vec<u64> {
    ids.sort_unstable();
    ids
}

const GROUPED: OrderKind = OrderKind::Grouped { lanes: 3, group: 2 };
const ORDERS: [OrderKind; 5] = [
    OrderKind::Sequential { by: SequentialBy::Id },
    OrderKind::Sequential { by: SequentialBy::Slot },
    OrderKind::Global,
    GROUPED,
    OrderKind::Partial { q: 0.3, world_size: 1 },
];

#[test]
fn a_batch_comes_in_the_order_of_its_ids_whatever_order_the_media_answer_in() {
    for block_len in [512, 4096] {
        let fixture = fixture(folder(4, 60), 3, block_len);
        fixture.faulty.iter().for_each(|device| device.shuffle_completions(11));
        let mut reader = fixture.reader();
        let mut random = Random::new(5);
        let mut batch = Batch::new();
        for len in [0, 1, 2, 17, 100] {
            let ids: Vec<_> = (0..len).map(|_| SampleId(random.below(240))).collect();
            reader.read_batch(&ids, &mut batch).unwrap();
            assert_eq!(batch.ids().collect::<Vec<_>>(), ids);
            fixture.assert_right(&batch);
        }
    }
}

#[test]
fn equal_samples_of_whole_blocks_come_as_one_array() {
    let source = (0..40).map(|i| sample(&format!("{i:02}"), None, 8192)).collect();
    let fixture = fixture(source, 2, 4096);
    let ids: Vec<_> = [5, 3, 39, 0, 17].map(SampleId).into();
    let mut batch = Batch::new();
    fixture.reader().read_batch(&ids, &mut batch).unwrap();
    let expected: Vec<u8> =
        ids.iter().flat_map(|id| fixture.source[id.0 as usize].record.clone()).collect();
    assert_eq!(batch.contiguous().unwrap(), expected);
    let mut copy = vec![0; expected.len()];
    assert_eq!(batch.copy_to(&mut copy).unwrap(), expected.len());
    assert_eq!(copy, expected);
    assert_eq!(batch.copy_to(&mut copy[1..]).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_missing_or_deleted_id_is_named_and_nothing_is_read() {
    let fixture = fixture_deleted(folder(1, 10), 1, 4096, &[4]);
    fixture.faulty[0].take_seen();
    let mut reader = fixture.reader();
    for id in [10, 4, u64::MAX] {
        let error = reader.read_batch(&[SampleId(0), SampleId(id)], &mut Batch::new()).unwrap_err();
        assert_eq!((error.kind(), error.sample_id()), (ErrorKind::NotFound, Some(SampleId(id))));
    }
    assert_eq!(fixture.faulty[0].take_seen().len(), 0);
}

#[test]
fn one_flipped_bit_is_read_again_and_a_lasting_one_names_the_sample() {
    let fixture = fixture(folder(2, 30), 1, 4096);
    let id = SampleId(7); // 700 bytes: one block
    let extent = fixture.image.directory().extent(id).unwrap();
    let block = extent.offset_bytes / 4096;
    let bit = (extent.offset_bytes % 4096 + 40) as usize * 8;
    let flip = |times| Rule::read(block..block + 1, times, Fault::FlipBit { bit });
    let mut reader = fixture.reader();
    let mut batch = Batch::new();
    fixture.faulty[0].add(flip(1));
    reader.read_batch(&[id], &mut batch).unwrap();
    fixture.assert_right(&batch);
    assert_eq!(reader.stats().repeated, 1);
    fixture.faulty[0].add(flip(u32::MAX));
    let error = reader.read_batch(&[id], &mut batch).unwrap_err();
    assert_eq!((error.kind(), error.sample_id()), (ErrorKind::Corrupt, Some(id)));
    assert!(error.to_string().contains("LBA") && batch.is_empty(), "{error}");
}

#[test]
fn a_sample_that_cannot_be_read_costs_only_itself_when_each_is_asked_for() {
    let fixture = fixture(folder(2, 60), 1, 4096);
    let bad = SampleId(5); // 4,097 bytes
    let extent = fixture.image.directory().extent(bad).unwrap();
    let block = extent.offset_bytes / 4096;
    let status = Status { sct: 2, sc: 0x81, dnr: true, crd: 0, more: false };
    fixture.faulty[0].add(Rule::read(block..block + 1, u32::MAX, Fault::Status(status)));
    let mut batch = Batch::new();
    let ids: Vec<_> = (0..120).map(SampleId).collect();
    let failures = fixture.reader().read_batch_each(&ids, &mut batch).unwrap();
    assert!(failures.iter().any(|(index, _)| *index == 5));
    for (index, error) in &failures {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(batch.bytes(*index).is_empty());
    }
    for index in (0..120).filter(|index| failures.iter().all(|(failed, _)| failed != index)) {
        assert_eq!(batch.bytes(index), fixture.source[index].record);
    }
}

#[test]
fn transient_errors_are_read_again_once_and_do_not_reach_the_caller() {
    let fixture = fixture(folder(2, 60), 1, 4096);
    let retry = Status { sct: 0, sc: 0x22, dnr: false, crd: 0, more: false };
    let ids: Vec<_> = (0..120).map(SampleId).collect();
    for fault in [Fault::Status(retry), Fault::Short] {
        fixture.faulty[0].add(Rule::any_read(1, fault));
        let mut reader = fixture.reader();
        let mut batch = Batch::new();
        reader.read_batch(&ids, &mut batch).unwrap();
        fixture.assert_right(&batch);
        assert_eq!(reader.stats().repeated, 1);
    }
}

#[test]
fn a_call_ends_at_its_deadline_and_the_late_answer_lands_nowhere() {
    let fixture = fixture(folder(1, 8), 1, 4096);
    let deadline = Duration::from_millis(50);
    let mut reader =
        fixture.image.reader(ReaderOptions { deadline, ..ReaderOptions::default() }).unwrap();
    fixture.faulty[0].add(Rule::any_read(1, Fault::DelayTime(Duration::from_millis(200))));
    let mut batch = Batch::new();
    let ids: Vec<_> = (0..8).map(SampleId).collect();
    assert_eq!(reader.read_batch(&ids, &mut batch).unwrap_err().kind(), ErrorKind::TimedOut);
    std::thread::sleep(Duration::from_millis(250)); // the answer is due, and nobody waits for it
    // On a busy machine a call may take longer than its deadline once more.
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = reader.read_batch(&ids, &mut batch) {
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
        assert!(Instant::now() < until, "no call came to its end");
    }
    fixture.assert_right(&batch);
}

#[test]
fn every_order_delivers_every_live_sample_once_an_epoch_and_right() {
    let deleted = [0, 9, 10, 11, 200];
    let fixture = fixture_deleted(folder(5, 90), 2, 4096, &deleted);
    let live: Vec<u64> = (0..450).filter(|id| !deleted.contains(id)).collect();
    for kind in ORDERS {
        for batching in [None, Some(Batching::Sample), Some(Batching::None)] {
            let mut loader = fixture.loader(kind, |options| {
                options.batching = batching;
                options.epochs = 0..2;
            });
            let ids = fixture.drain(&mut loader);
            let (first, second) = ids.split_at(live.len());
            assert_eq!(sorted(first.to_vec()), live, "{kind:?} {batching:?}");
            assert_eq!(sorted(second.to_vec()), live, "{kind:?} {batching:?}");
            assert_eq!(loader.stats().samples, ids.len() as u64);
        }
    }
}

#[test]
fn the_batching_mode_does_not_change_the_batches() {
    let fixture = fixture(folder(5, 90), 2, 512);
    for kind in [GROUPED, OrderKind::Sequential { by: SequentialBy::Slot }] {
        let mut sequences = Vec::new();
        for batching in [Batching::Chunk, Batching::Sample, Batching::None] {
            for copy_threads in [None, Some(0), Some(2)] {
                let mut loader = fixture.loader(kind, |options| {
                    options.batching = Some(batching);
                    options.copy_threads = copy_threads;
                });
                sequences.push(fixture.drain(&mut loader));
            }
        }
        assert!(sequences.windows(2).all(|pair| pair[0] == pair[1]), "{kind:?}");
    }
}

#[test]
fn batching_modes_differ_in_their_commands() {
    let source = (0..400).map(|i| sample(&format!("{i:03}"), None, 1000)).collect();
    let fixture = fixture(source, 1, 4096);
    let commands = |batching| {
        let mut loader = fixture.loader(OrderKind::Grouped { lanes: 1, group: 2 }, |options| {
            options.batching = Some(batching);
        });
        fixture.drain(&mut loader);
        loader.stats().read.commands
    };
    let chunks = u64::from(fixture.image.directory().num_chunks());
    assert_eq!(commands(Batching::None), 400);
    assert_eq!(commands(Batching::Chunk), chunks, "one command a chunk");
    let sample = commands(Batching::Sample);
    assert!(chunks < sample && sample <= 400, "{sample}");
}

#[test]
fn a_whole_chunk_is_read_by_as_few_commands_as_carry_it_and_no_byte_twice() {
    const CHUNK_LEN: u64 = 1 << 20;
    const READ_LEN: u64 = 256 << 10; // the most that one read carries
    for (count, len) in [(1000, 4096), (60, 80_000), (7, 900_000)] {
        let source: Vec<Sample> =
            (0..count).map(|i| sample(&format!("{i:04}"), None, len - i % 7)).collect();
        let mut media = images::Image::new(1, Pack::Aligned);
        media.layout =
            ImageLayout::new(media.layout.uuid, CHUNK_LEN as u32, Pack::Aligned, 1).unwrap();
        let fixture = fixture_on(media, source, 4096, &[]);
        let mut loader = fixture.loader(OrderKind::Grouped { lanes: 1, group: 2 }, |options| {
            options.batching = Some(Batching::Chunk);
        });
        fixture.drain(&mut loader);
        let read = loader.stats().read;
        let chunks = u64::from(fixture.image.directory().num_chunks());
        assert!(chunks > 3, "{chunks} chunks");
        let most = chunks * (CHUNK_LEN / READ_LEN);
        assert!(read.commands <= most, "{} commands for {chunks} chunks of {len}", read.commands);
        assert!(read.commands > most - chunks, "{} commands: reads became larger", read.commands);
        assert!(read.bytes <= chunks * CHUNK_LEN, "{} bytes", read.bytes);
    }
}

/// The ids of an epoch in grouped order of 60 samples in a file, and the number of commands; `None`
/// if the file system does not support `direct`.
fn grouped_epoch_of_a_file(
    sample_len: usize,
    direct: Direct,
    batching: Option<Batching>,
) -> Option<(Vec<u64>, u64)> {
    let source: Vec<Sample> =
        (0..60).map(|i| sample(&format!("{i:02}"), None, sample_len - i)).collect();
    let mut media = images::Image::new(1, Pack::Aligned);
    media.layout = ImageLayout::new(media.layout.uuid, 1 << 20, Pack::Aligned, 1).unwrap();
    media.add(&source, 7, 60, &[]);
    let mut bytes = media.namespaces[0].clone();
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(&file, bytes).unwrap();
    let options = FileOptions { direct, ..FileOptions::default() };
    let device = match FileNamespace::open(file.path(), options) {
        Err(error) if error.kind() == ErrorKind::Unsupported => return None,
        device => Arc::new(device.unwrap()),
    };
    let image = Image::from_devices(vec![device], &OpenOptions::default()).unwrap();
    let fixture = Fixture { source, faulty: Vec::new(), image };
    let mut loader = fixture.loader(GROUPED, |options| options.batching = batching);
    let ids = fixture.drain(&mut loader);
    Some((ids, loader.stats().read.commands))
}

#[test]
fn large_samples_that_the_page_cache_holds_are_read_one_by_one_also_in_grouped_order() {
    let read = grouped_epoch_of_a_file;
    let (by_chunk, few) = read(80_000, Direct::Off, Some(Batching::Chunk)).unwrap();
    let (ids, commands) = read(80_000, Direct::Off, None).unwrap();
    assert_eq!(ids, by_chunk, "the order is the same");
    assert!(commands > few + 10, "{commands} commands, {few} by chunks");
    let small = read(8_000, Direct::Off, Some(Batching::Chunk));
    assert_eq!(read(8_000, Direct::Off, None), small, "small ones come by chunks");
    match read(80_000, Direct::On, None) {
        Some((_, commands)) => assert_eq!(commands, few, "no cache holds the chunks"),
        None => println!("SKIPPED: O_DIRECT, which this file system has not"),
    }
}

#[test]
fn a_first_batch_that_would_wait_for_many_chunks_is_read_alone_and_unchanged() {
    let source = (0..1200).map(|i| sample(&format!("{i:04}"), None, 20_000 - i % 7)).collect();
    let fixture = fixture(source, 1, 4096);
    let chunks = u64::from(fixture.image.directory().num_chunks());
    let kind = OrderKind::Grouped { lanes: 16, group: 20 };
    let read = |batching, window_bytes, epochs| {
        let mut loader = fixture.loader(kind, |options| {
            (options.batching, options.epochs) = (Some(batching), 0..epochs);
            options.window_bytes = window_bytes;
        });
        let ids = fixture.drain(&mut loader);
        (ids, loader.stats().read.commands)
    };
    let (expected, _) = read(Batching::Sample, 64 << 20, 2);
    let (ids, commands) = read(Batching::Chunk, 64 << 20, 1);
    assert_eq!(ids, expected[..1200]);
    // The first 16 samples are also read separately, neighbours among them with one command.
    assert!(chunks < commands && commands <= chunks + 16, "{commands} for {chunks} chunks");
    // Both epochs fit the window, and only the first batch of the first epoch is read so.
    let (ids, commands) = read(Batching::Chunk, 64 << 20, 2);
    assert_eq!(ids, expected);
    assert!(commands <= 2 * chunks + 16, "{commands}");
    // No room beside the awaited chunks.
    let (ids, commands) = read(Batching::Chunk, 20 << 20, 1);
    assert_eq!((ids, commands), (expected[..1200].to_vec(), chunks));
}

#[test]
fn whole_chunks_need_an_order_that_goes_through_whole_chunks() {
    let fixture = fixture(folder(1, 9), 1, 4096);
    let order = OrderSpec { kind: OrderKind::Global, seed: 0 };
    let options =
        LoaderOptions { batching: Some(Batching::Chunk), ..LoaderOptions::new(order, 4, 1) };
    assert_eq!(fixture.image.prefetcher(options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let options = LoaderOptions::new(order, 0, 1);
    assert_eq!(fixture.image.prefetcher(options).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn ranks_share_an_epoch_and_a_run_resumes_with_another_world_and_batch_size() {
    let fixture = fixture(folder(5, 90), 2, 4096);
    for kind in [OrderKind::Global, GROUPED] {
        let mut seen = Vec::new();
        let mut state = None;
        // Two ranks with batch size 16 take 5 batches each, then three ranks with batch size 7 read
        // the rest.
        for rank in 0..2 {
            let mut loader = fixture.loader(kind, |options| {
                (options.rank, options.world_size) = (rank, 2);
            });
            for _ in 0..5 {
                let batch = loader.next().unwrap().unwrap();
                fixture.assert_right(&batch);
                seen.extend(batch.ids().map(|id| id.0));
            }
            state = Some(loader.state());
        }
        assert_eq!(state.as_ref().unwrap().consumed, 160);
        for rank in 0..3 {
            let mut loader = fixture.loader(kind, |options| {
                (options.rank, options.world_size, options.batch_size) = (rank, 3, 7);
                options.resume.clone_from(&state);
            });
            seen.extend(fixture.drain(&mut loader));
        }
        assert_eq!(sorted(seen), (0..450).collect::<Vec<_>>(), "{kind:?}");
    }
}

/// The reads of all ranks of a run in an epoch, in bytes and as sorted ids, and the warnings.
fn read_by_all(
    fixture: &Fixture,
    kind: OrderKind,
    world_size: u32,
    change: impl Fn(&mut LoaderOptions),
) -> (u64, Vec<u64>, Vec<String>) {
    let mut bytes = 0;
    let mut ids = Vec::new();
    let mut warned = Vec::new();
    for rank in 0..world_size {
        let (mut loader, warnings) = warnings_of(|| {
            fixture.loader(kind, |options| {
                (options.rank, options.world_size) = (rank, world_size);
                change(options);
            })
        });
        ids.extend(fixture.drain(&mut loader));
        bytes += loader.stats().read.bytes;
        warned.extend(warnings);
    }
    (bytes, sorted(ids), warned)
}

#[test]
fn ranks_together_read_each_chunk_once_where_lanes_are_a_multiple_of_them() {
    let source = (0..1800).map(|i| sample(&format!("{i:04}"), None, 3000 + i * 37 % 400)).collect();
    let fixture = fixture(source, 1, 4096);
    let all: Vec<u64> = (0..1800).collect();
    let (once, ids, _) =
        read_by_all(&fixture, OrderKind::Grouped { lanes: 1, group: 2 }, 1, |_| {});
    assert_eq!(ids, all);
    for world_size in [1, 2, 4, 8] {
        for lanes in [0, 8] {
            let kind = OrderKind::Grouped { lanes, group: 2 };
            let (bytes, ids, warned) = read_by_all(&fixture, kind, world_size, |_| {});
            assert!(ids == all && warned.is_empty(), "{world_size} ranks: {warned:?}");
            // A lane begins and ends in the middle of a block.
            let lanes = if lanes == 0 { u64::from(8 * world_size) } else { 8 };
            let most = once + lanes * 2 * 4096;
            assert!(bytes <= most, "{world_size} ranks read {bytes} bytes, one reads {once}");
        }
    }
}

#[test]
fn ranks_that_do_not_divide_the_lanes_are_warned_and_read_less_by_chunks() {
    let source = (0..1800).map(|i| sample(&format!("{i:04}"), None, 3000 + i * 37 % 400)).collect();
    let fixture = fixture(source, 1, 4096);
    let kind = OrderKind::Grouped { lanes: 8, group: 2 };
    let read = |batching, sharding| {
        let (bytes, ids, warned) = read_by_all(&fixture, kind, 3, |options| {
            (options.batching, options.sharding) = (batching, sharding);
        });
        assert_eq!(ids, (0..1800).collect::<Vec<_>>());
        (bytes as f64 / 5_760_000.0, warned)
    };
    let (strided, warned) = read(Some(Batching::Chunk), Sharding::Strided);
    assert!((2.7..3.3).contains(&strided), "each of three ranks reads each chunk: {strided}");
    let [warning] = &warned[..] else { panic!("one rank warns, once: {warned:?}") };
    let (_, says) = warning.split_once("will read ").expect("what it costs");
    let said: f64 = says.split(' ').next().unwrap().parse().unwrap();
    assert!((said / strided - 1.0).abs() < 0.1, "{strided}: {warning}");
    assert!(warning.contains("--shard aligned"), "and the remedy: {warning}");
    let (aligned, warned) = read(Some(Batching::Chunk), Sharding::Aligned);
    assert!(aligned < 1.35, "{aligned}");
    println!("strided {strided:.2}, aligned {aligned:.2} times the data: {warned:?}");
    // Samples of 3 KiB lie in blocks of at most 8 KiB: reading them alone costs less than three
    // chunks.
    let (by_sample, _) = read(None, Sharding::Strided);
    assert!(by_sample < strided, "{by_sample}");
}

#[test]
fn a_state_settles_lanes_that_were_left_open() {
    let fixture = fixture(folder(5, 90), 2, 4096);
    let open = OrderKind::Grouped { lanes: 0, group: 2 };
    for began in
        [OrderKind::Grouped { lanes: 6, group: 2 }, OrderKind::Grouped { lanes: 3, group: 2 }]
    {
        let whole = fixture.drain(&mut fixture.loader(began, |_| {}));
        let mut first = fixture.loader(began, |_| {});
        let front: Vec<u64> = (0..5)
            .flat_map(|_| sorted(first.next().unwrap().unwrap().ids().map(|id| id.0).collect()))
            .collect();
        let state = State::from_json(&first.state().to_json()).unwrap();
        for sharding in [Sharding::Strided, Sharding::Aligned] {
            let mut rest = Vec::new();
            for rank in 0..5 {
                let mut loader = fixture.loader(open, |options| {
                    (options.rank, options.world_size, options.sharding) = (rank, 5, sharding);
                    options.resume = Some(state.clone());
                });
                assert_eq!(loader.state().order.kind, began);
                rest.extend(fixture.drain(&mut loader));
            }
            assert_eq!(
                front,
                (0..5).flat_map(|i| sorted(whole[i * 16..][..16].to_vec())).collect::<Vec<_>>()
            );
            assert_eq!(sorted(rest), sorted(whole[80..].to_vec()), "{began:?}");
        }
    }
    let started = fixture.loader(open, |options| options.world_size = 3);
    assert_eq!(started.state().order.kind, OrderKind::Grouped { lanes: 24, group: 2 });
    let other = LoaderOptions {
        resume: Some(fixture.loader(GROUPED, |_| {}).state()),
        ..LoaderOptions::new(
            OrderSpec { kind: OrderKind::Grouped { lanes: 4, group: 2 }, seed: 3 },
            4,
            1,
        )
    };
    let error = fixture.image.prefetcher(other).unwrap_err();
    assert!(error.to_string().contains("lanes 4"), "{error}");
    let global = OrderSpec { kind: OrderKind::Global, seed: 3 };
    let aligned = LoaderOptions { sharding: Sharding::Aligned, ..LoaderOptions::new(global, 4, 1) };
    let error = fixture.image.prefetcher(aligned).unwrap_err();
    assert!(error.to_string().contains("grouped order"), "{error}");
}

#[test]
fn drop_last_and_pad_give_every_rank_as_many() {
    let fixture = fixture(folder(1, 10), 1, 4096);
    let lens = |tail| -> Vec<usize> {
        let count = |rank| {
            let mut loader = fixture.loader(GROUPED, |options| {
                (options.rank, options.world_size, options.tail) = (rank, 4, tail);
            });
            fixture.drain(&mut loader).len()
        };
        (0..4).map(count).collect()
    };
    assert_eq!(lens(Tail::Keep), [3, 3, 2, 2]);
    assert_eq!(lens(Tail::DropLast), [2; 4]);
    assert_eq!(lens(Tail::Pad), [3; 4]);
}

#[test]
fn a_too_small_window_is_exceeded_only_for_the_next_batch() {
    let mut source = folder(2, 40);
    source.push(sample("large", None, 600_000));
    let fixture = fixture(source, 1, 4096);
    for kind in [GROUPED, OrderKind::Global, OrderKind::Grouped { lanes: 8, group: 4 }] {
        let mut loader = fixture.loader(kind, |options| {
            (options.window_bytes, options.batch_size) = (128 << 10, 4);
        });
        assert_eq!(sorted(fixture.drain(&mut loader)), (0..81).collect::<Vec<_>>(), "{kind:?}");
        assert!(loader.stats().over_window > 0);
    }
}

#[test]
fn a_window_smaller_than_the_working_set_is_reported_with_the_size_it_needs() {
    let fixture = fixture(folder(4, 400), 1, 4096);
    let directory = fixture.image.directory();
    let lanes = 4;
    let group = 2;
    let chunk = directory.layout().chunk_size_bytes as usize;
    assert!(directory.num_chunks() > 3 * lanes * group, "{} chunks", directory.num_chunks());
    let read = |window_bytes, batching| {
        let (mut loader, warnings) = warnings_of(|| {
            fixture.loader(OrderKind::Grouped { lanes, group }, |options| {
                (options.window_bytes, options.batching) = (window_bytes, batching);
            })
        });
        assert_eq!(sorted(fixture.drain(&mut loader)), (0..1600).collect::<Vec<_>>());
        (loader.stats().read.bytes, warnings)
    };
    let open = (lanes * group) as usize * chunk;
    let (more, warnings) = read(open / 2, None);
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    let (_, enough) = warning.split_once("enough_bytes=").expect("it names the number to set");
    let enough: usize = enough.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(enough, (lanes * (group + 1)) as usize * chunk);
    let (less, none) = read(enough, None);
    assert!(none.is_empty(), "{none:?}");
    assert!(less < more, "{less} bytes were read with what it says, {more} before");
    assert_eq!(read(open - chunk, None).1.len(), 1);
    assert_eq!(read(open, None).1.len(), 0);
    assert!(read(open / 2, Some(Batching::Sample)).1.is_empty(), "chunks are not kept then");
}

/// An epoch in a window that is the fraction `window` of grouped order's open chunks: bytes read
/// over bytes delivered, without headers.
fn cost_in_a_window(
    fixture: &Fixture,
    (lanes, group): (u32, u32),
    window: f64,
    batch_size: usize,
    batching: Option<Batching>,
) -> f64 {
    let directory = fixture.image.directory();
    let open = u64::from(lanes * group) * u64::from(directory.layout().chunk_size_bytes);
    let mut loader = fixture.loader(OrderKind::Grouped { lanes, group }, |options| {
        options.window_bytes = (open as f64 * window) as usize;
        (options.batch_size, options.batching) = (batch_size, batching);
    });
    let ids = sorted(fixture.drain(&mut loader));
    assert!(ids.into_iter().eq(0..directory.num_samples()), "each sample once");
    let stats = loader.stats();
    stats.read.bytes as f64 / stats.sample_bytes as f64
}

/// The cost of reading every sample alone: the blocks that it lies in.
fn cost_of_single_reads(fixture: &Fixture) -> f64 {
    let directory = fixture.image.directory();
    let extents = (0..directory.num_samples()).filter_map(|id| directory.extent(SampleId(id)));
    let (blocks, bytes) = extents.fold((0, 0), |(blocks, bytes), extent| {
        let start = extent.offset_bytes;
        let len = u64::from(extent.len_bytes);
        (blocks + (start + len).div_ceil(4096) - start / 4096, bytes + len)
    });
    (blocks * 4096) as f64 / bytes as f64
}

#[test]
fn a_too_small_window_reads_a_little_more_and_not_a_thousandfold() {
    for (len, batch_size) in [(100, 256), (1000, 256), (2500, 256), (5000, 7)] {
        let samples = (0..16_000_000 / len).map(|i| sample(&format!("{i:06}"), None, len - i % 3));
        let fixture = fixture(samples.collect(), 1, 4096);
        let single = cost_of_single_reads(&fixture);
        let chunk = Some(Batching::Chunk);
        for (window, batching) in [
            (1.0, None),
            (0.9, None),
            (0.5, None),
            (0.5, chunk),
            (0.4, None),
            (0.2, None),
            (0.2, chunk),
        ] {
            let cost = cost_in_a_window(&fixture, (16, 12), window, batch_size, batching);
            let most = if window >= 0.5 {
                2.2
            } else if len >= 4096 {
                2.0
            } else {
                1.2 * single.min(1.0 + 1.0 / window)
            };
            let what =
                format!("{len} bytes, window {window}, {batching:?}: {cost:.3} of {most:.3}");
            println!("{what}");
            assert!(cost <= most, "{what}");
        }
    }
}

#[test]
fn several_passes_deliver_the_same_when_media_fail_and_consumers_keep_batches() {
    let samples = (0..20_000).map(|i| sample(&format!("{i:05}"), None, i % 5 * 60));
    let fixture = fixture_deleted(samples.collect(), 2, 4096, &[3, 4, 700]);
    let kind = OrderKind::Grouped { lanes: 4, group: 3 };
    let read = |window_bytes| {
        let mut loader = fixture.loader(kind, |options| {
            options.window_bytes = window_bytes;
            (options.epochs, options.tail) = (0..2, Tail::Pad);
            (options.rank, options.world_size) = (1, 2);
        });
        (fixture.drain(&mut loader), loader.stats())
    };
    let (expected, whole) = read(8 << 20);
    let (ids, few) = read(192 << 10);
    assert_eq!(ids, expected);
    assert!(few.resident == 0 && few.read.bytes > whole.read.bytes && few.skipped == 0);

    let mut loader = fixture.loader(kind, |options| {
        (options.window_bytes, options.batch_size) = (384 << 10, 64);
    });
    let kept: Vec<_> = std::iter::from_fn(|| loader.next()).map(Result::unwrap).collect();
    kept.iter().for_each(|batch| fixture.assert_right(batch));
    assert_eq!(kept.iter().map(Batch::len).sum::<usize>(), 19_997);
    assert!(loader.stats().over_window > 0, "the consumer has the window");

    let bad = fixture.image.directory().extent(SampleId(41)).unwrap();
    let block = bad.offset_bytes / 4096;
    let status = Status { sct: 2, sc: 0x81, dnr: true, crd: 0, more: false };
    let rule = Rule::read(block..block + 1, u32::MAX, Fault::Status(status));
    fixture.faulty[usize::from(bad.namespace)].add(rule);
    let mut loader = fixture.loader(kind, |options| {
        (options.window_bytes, options.on_error) = (384 << 10, OnError::Skip);
    });
    let ids = fixture.drain(&mut loader);
    let skipped = loader.stats().skipped;
    assert!(skipped > 0 && !ids.contains(&41), "{skipped} were left out");
    assert_eq!(ids.len() as u64 + skipped, 19_997);
    let mut loader = fixture.loader(kind, |options| options.window_bytes = 384 << 10);
    let error = std::iter::from_fn(|| loader.next()).find_map(Result::err).expect("it is raised");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_consumer_that_keeps_all_batches_still_gets_every_one() {
    let fixture = fixture(folder(4, 60), 1, 4096);
    for kind in [GROUPED, OrderKind::Global] {
        let mut loader = fixture.loader(kind, |options| options.window_bytes = 256 << 10);
        let batches: Vec<_> = std::iter::from_fn(|| loader.next()).map(Result::unwrap).collect();
        batches.iter().for_each(|batch| fixture.assert_right(batch));
        assert_eq!(batches.iter().map(Batch::len).sum::<usize>(), 240);
    }
}

#[test]
fn the_first_error_stays_and_skipping_leaves_the_bad_sample_out() {
    for kind in [GROUPED, OrderKind::Global] {
        let fixture = fixture(folder(2, 60), 1, 4096);
        let bad = SampleId(6); // 9,000 bytes
        let offset = fixture.image.directory().extent(bad).unwrap().offset_bytes;
        let block = offset / 4096;
        fixture.faulty[0].add(Rule::read(
            block + 1..block + 2,
            u32::MAX,
            Fault::Status(Status { sct: 2, sc: 0x81, dnr: true, crd: 0, more: false }),
        ));
        let mut loader = fixture.loader(kind, |_| {});
        let error = std::iter::from_fn(|| loader.next()).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(loader.next().unwrap().unwrap_err().to_string(), error.to_string());

        let mut loader = fixture.loader(kind, |options| options.on_error = OnError::Skip);
        let ids = fixture.drain(&mut loader);
        assert!(!ids.contains(&bad.0));
        assert_eq!(ids.len() as u64 + loader.stats().skipped, 120);
    }
}

#[test]
fn a_sample_is_resident_exactly_while_its_chunk_is() {
    let source = (0..600).map(|i| sample(&format!("{i:03}"), None, 2000)).collect();
    let fixture = fixture(source, 1, 4096);
    let kind = OrderKind::Grouped { lanes: 2, group: 1 };
    let mut loader = fixture.loader(kind, |options| options.window_bytes = 512 << 10);
    let mut delivered = 0;
    let mut most = 0;
    while let Some(batch) = loader.next() {
        delivered += batch.unwrap().len();
        // The poller may be about to change them: whole chunks are visible when it is idle.
        let resident = (0..60_000).find_map(|_| {
            let resident = resident_by_chunk(&fixture, &loader);
            let whole = resident
                .iter()
                .all(|(chunk, count)| *count == fixture.image.directory().live_in_chunk(*chunk));
            std::thread::sleep(Duration::from_millis(u64::from(!whole)));
            whole.then_some(resident)
        });
        let resident = resident.expect("the bits are those of whole chunks");
        assert!(resident.len() <= 8, "no more chunks than the window holds: {resident:?}");
        most = most.max(resident.values().sum());
    }
    assert_eq!(delivered, 600);
    assert!(most > 0 && most < 600, "some came and went: {most}");
    let stats = loader.stats();
    assert_eq!(stats.resident, loader.num_resident(), "the run is over: nothing comes or goes");
    let pages = stats.pages.expect("it has a window");
    assert!([Pages::Huge, Pages::Transparent, Pages::Base].contains(&pages), "{pages}");
    assert_eq!((stats.ended().resident, stats.ended().pages), (0, Some(pages)));
    assert!(!loader.is_resident(SampleId(600)));
}

fn resident_by_chunk(fixture: &Fixture, loader: &Prefetcher) -> BTreeMap<u32, u32> {
    let mut chunks = BTreeMap::new();
    for id in (0..600).map(SampleId).filter(|&id| loader.is_resident(id)) {
        *chunks.entry(fixture.image.directory().chunk_of(id).unwrap()).or_default() += 1;
    }
    chunks
}

#[test]
fn a_loader_that_is_dropped_in_the_middle_ends_its_thread() {
    let fixture = fixture(folder(4, 60), 1, 4096);
    let held = Arc::strong_count(fixture.image.directory());
    for taken in 0..6 {
        let mut loader = fixture.loader(GROUPED, |_| {});
        for _ in 0..taken {
            loader.next().unwrap().unwrap();
        }
    }
    let now = Arc::strong_count(fixture.image.directory());
    assert_eq!(now, held, "no thread holds the directory");
}

#[test]
fn verify_finds_exactly_what_is_damaged() {
    let fixture = fixture(folder(3, 60), 2, 4096);
    let verify = || fixture.image.verify(&VerifyOptions::default(), &mut |_| {}).unwrap();
    let report = verify();
    assert_eq!((report.samples, report.damages.len()), (180, 0));
    assert_eq!(report.chunks, u64::from(fixture.image.directory().num_chunks()));

    let bad = SampleId(6);
    let extent = fixture.image.directory().extent(bad).unwrap();
    let device = &fixture.faulty[usize::from(extent.namespace)];
    let mut pair = Blocking::new(device.queue_pair().unwrap()).unwrap();
    let block = extent.offset_bytes / 4096 * 4096 + 4096; // the sample has three blocks
    let mut bytes = vec![0; 4096];
    pair.read_at(block, &mut bytes).unwrap();
    bytes[0] ^= 1;
    pair.write_at(block, &bytes).unwrap();
    let report = verify();
    assert_eq!(report.samples, 179);
    assert_eq!(report.damages.len(), 1);
    assert_eq!(report.damages[0].sample, Some(bad));
    assert_eq!(report.damages[0].name.as_deref(), Some(&fixture.source[6].name[..]));
}

/// Writes `bytes` at `at`, like a view of a batch that was made writable.
fn write_through_alias(at: &[u8], bytes: &[u8]) {
    let mut memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    memory.seek(SeekFrom::Start(at.as_ptr() as u64)).unwrap();
    memory.write_all(bytes).unwrap();
}

#[test]
fn bytes_that_a_caller_writes_into_kept_memory_are_never_delivered_later() {
    const EPOCHS: u64 = 4;
    for (copy_threads, num_samples) in [(None, 400), (Some(1), 400), (None, 40)] {
        let fixture = fixture(folder(4, num_samples / 4), 2, 512);
        let (ids, warnings) = warnings_of(|| {
            let mut loader = fixture.loader(GROUPED, |options| {
                options.epochs = 0..EPOCHS;
                options.copy_threads = copy_threads;
                options.verify_kept = true;
            });
            let mut ids = Vec::new();
            while let Some(batch) = loader.next() {
                let batch = batch.unwrap();
                fixture.assert_right(&batch);
                for sample in batch.iter() {
                    write_through_alias(sample.bytes, &vec![0xa5; sample.bytes.len()]);
                }
                ids.extend(batch.ids().map(|id| id.0));
            }
            let stats = loader.stats();
            assert!(copy_threads.is_some() || stats.rewritten > 0, "{stats:?}");
            ids
        });
        let all = (0..num_samples as u64).flat_map(|id| [id; EPOCHS as usize]).collect::<Vec<_>>();
        assert_eq!(sorted(ids), all, "{copy_threads:?}, {num_samples} samples");
        let warned = warnings.iter().filter(|text| text.contains("wrote to the memory")).count();
        assert!(warned == 1 || (warned == 0 && copy_threads.is_some()), "{warnings:?}");
    }
}

#[test]
fn unchanged_kept_chunks_are_verified_without_another_read() {
    let fixture = fixture(folder(4, 100), 2, 512);
    let commands = |epochs: u64| {
        let mut loader = fixture.loader(GROUPED, |options| {
            (options.epochs, options.verify_kept) = (0..epochs, true);
        });
        assert_eq!(fixture.drain(&mut loader).len() as u64, epochs * 400);
        assert_eq!(loader.stats().rewritten, 0);
        loader.stats().read.commands
    };
    assert_eq!(commands(1), commands(5));
}
