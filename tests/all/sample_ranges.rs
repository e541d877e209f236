//! Ranges of samples: only the pieces that a range touches are read, and every byte of them is verified.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, OpenOptions, Options, SampleRange};
use dlfs::format::names::crc32c;
use dlfs::format::pieces::{PIECE_BYTES, PIECED_ABOVE_BYTES};
use dlfs::format::{ChunkHeader, Pack};
use dlfs::import::{
    EditOptions, ImportOptions, Onto, Progress, Stage, delete_ids, import, purge, rebuild,
};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions, Device, IoOp};
use dlfs::reader::ReaderOptions;
use dlfs::target::{Target, TargetOptions};
use dlfs::tier::Policy;
use dlfs::units::{Nsid, SampleId};

use crate::images::{self, Sample, sample};
use crate::support::faults::{Fault, Faulty, Rule};
use crate::support::random::Random;
use crate::support::warnings::warnings_of;

const PIECE: u64 = PIECE_BYTES as u64;
const ABOVE: u64 = PIECED_ABOVE_BYTES as u64;

/// Small and large samples, on both sides of every limit.
const LENS: [u64; 10] = [
    0,
    700,
    ABOVE,
    ABOVE + 1,
    5 * PIECE,
    5 * PIECE - 1,
    (3 << 20) + 7,
    4096,
    (6 << 20) + PIECE + 1,
    2 * ABOVE,
];

fn seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = since.as_nanos() as u64;
    println!("seed {seed}");
    seed
}

/// Files, and the image that was imported of them.
struct Files {
    dir: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
    random: Random,
}

impl Files {
    fn new() -> Files {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files { dir, samples: Vec::new(), random: Random::new(seed()) };
        files.write("a", &LENS);
        files
    }

    fn write(&mut self, folder: &str, lens: &[u64]) -> PathBuf {
        let folder = self.dir.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        for &len in lens {
            let number = self.samples.len();
            let mut bytes = vec![0; len as usize];
            self.random.fill(&mut bytes);
            fs::write(folder.join(format!("{number:03}")), &bytes).unwrap();
            self.samples.push(bytes);
        }
        folder
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("a.dlfs")
    }

    fn image(&self) -> [Address; 1] {
        [Address::Path(self.path())]
    }

    fn import(&self, folder: &str, onto: Onto) {
        let options = ImportOptions { onto, ..ImportOptions::default() };
        let folder = self.dir.path().join(folder);
        import(&[folder], &self.image(), &options, &ConnectOptions::default(), &mut ()).unwrap();
    }

    fn open(&self) -> Dataset {
        Dataset::open(&self.image(), &Options::default(), &mut ()).unwrap()
    }

    /// The image on a device that counts, and fails as it is told.
    fn counted(&self) -> (Faulty, Image) {
        counted(&fs::read(self.path()).unwrap())
    }

    /// Compares ranges of every class around the edges of pieces and samples, and some at random.
    fn compare(&mut self, dataset: &Dataset, ids: &[u64]) {
        let edges = [0, 1, 4095, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, ABOVE, 4 * PIECE + 1];
        let mut ranges = Vec::new();
        for &id in ids {
            let len = self.samples[id as usize].len() as u64;
            let ends = [len, len + 1, u64::MAX, len.saturating_sub(1), len.saturating_sub(PIECE)];
            for start in edges.into_iter().chain(ends) {
                for end in edges.into_iter().chain(ends) {
                    ranges.push(SampleRange { id: SampleId(id), start, end });
                }
            }
            for _ in 0..20 {
                let start = self.random.below(len + 1);
                let end = start + self.random.below(2 * PIECE);
                ranges.push(SampleRange { id: SampleId(id), start, end });
            }
        }
        self.random.shuffle(&mut ranges);
        let mut rest = &ranges[..];
        while !rest.is_empty() {
            let (now, after) = rest.split_at(rest.len().min(1 + self.random.below(40) as usize));
            let (read, failures) = dataset.read_ranges(now, &mut ()).unwrap();
            assert!(failures.is_empty(), "{failures:?}");
            assert_eq!(read.len(), now.len());
            for (index, range) in now.iter().enumerate() {
                let expected = part(&self.samples[range.id.0 as usize], range.start..range.end);
                assert!(read.bytes(index) == expected, "{range:?}");
            }
            rest = after;
        }
    }
}

fn part(bytes: &[u8], range: Range<u64>) -> &[u8] {
    let len = bytes.len() as u64;
    let start = range.start.min(len);
    let end = range.end.min(len);
    &bytes[start as usize..end.max(start) as usize]
}

fn counted(bytes: &[u8]) -> (Faulty, Image) {
    let len = bytes.len().next_multiple_of(64 << 10);
    let memory = MemNamespace::new(len as u64, 512).unwrap();
    let mut padded = bytes.to_vec();
    padded.resize(len, 0);
    Blocking::new(memory.queue_pair().unwrap()).unwrap().write_at(0, &padded).unwrap();
    let device = Faulty::new(Arc::new(memory));
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let image = Image::from_devices(devices, &OpenOptions::default()).unwrap();
    device.take_seen();
    (device, image)
}

/// Bytes read since the last call.
fn bytes_read(device: &Faulty) -> u64 {
    let seen = device.take_seen();
    seen.iter().filter(|(op, ..)| *op == IoOp::Read).map(|(_, _, len)| *len as u64).sum()
}

fn dataset(image: Image) -> Dataset {
    Dataset::from_image(image, Default::default())
}

/// Returns whether a range of the sample takes no more than a header and a piece: its chunk has their checksums.
fn has_pieces(files: &Files, id: u64) -> bool {
    let (device, image) = files.counted();
    let dataset = dataset(image);
    let read = dataset.read_range(SampleId(id), PIECE..PIECE + 1, &mut ()).unwrap();
    assert_eq!(read.bytes(0), part(&files.samples[id as usize], PIECE..PIECE + 1));
    bytes_read(&device) < 2 * PIECE
}

#[test]
fn ranges_of_every_kind_are_right_from_a_file_over_tcp_and_from_a_folder() {
    let mut files = Files::new();
    files.import("a", Onto::Empty);
    let ids: Vec<u64> = (0..LENS.len() as u64).collect();
    let local = files.open();
    files.compare(&local, &ids);

    let device = qpair::open(&files.image()[0], &ConnectOptions::default()).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:ranges".parse().unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let target =
        Target::bind(TargetOptions { listen, ..TargetOptions::new(nqn) }, vec![device]).unwrap();
    let address = target.address(Nsid(1));
    let remote = Dataset::open(&[address], &Options::default(), &mut ()).unwrap();
    files.compare(&remote, &ids);

    let folder = Address::Path(files.dir.path().join("a"));
    let plain = Dataset::open(&[folder], &Options::default(), &mut ()).unwrap();
    files.compare(&plain, &ids);
}

#[test]
fn only_the_pieces_that_a_range_touches_and_one_header_are_read() {
    let files = Files::new();
    files.import("a", Onto::Empty);
    let (device, image) = files.counted();
    let dataset = dataset(image);
    let id = SampleId(8); // alone in its chunk
    let read = |range: Range<u64>| {
        let got = dataset.read_range(id, range.clone(), &mut ()).unwrap();
        assert_eq!(got.bytes(0), part(&files.samples[8], range));
        bytes_read(&device)
    };
    // The record may begin within a block of 512 bytes, so a piece touches one block more.
    let slack = 512;
    let first = read(PIECE..2 * PIECE);
    assert!((PIECE..=PIECE + 4096 + slack).contains(&first), "{first} bytes with the header");
    assert!((PIECE..=PIECE + slack).contains(&read(3 * PIECE + 5..3 * PIECE + 6)));
    assert!((2 * PIECE..=2 * PIECE + slack).contains(&read(2 * PIECE - 1..2 * PIECE + 1)));
    assert_eq!(read(7 << 20..8 << 20), 0, "after the end");
    // Two ranges in one piece read it once.
    let ranges =
        [10..20, 30..40].map(|r: Range<u64>| SampleRange { id, start: r.start, end: r.end });
    dataset.read_ranges(&ranges, &mut ()).unwrap();
    assert!(bytes_read(&device) <= PIECE + slack);
}

#[test]
fn a_damaged_piece_fails_the_ranges_that_touch_it_by_name_and_no_others() {
    let files = Files::new();
    files.import("a", Onto::Empty);
    let mut bytes = fs::read(files.path()).unwrap();
    let extent = files.open().directory().extent(SampleId(6)).unwrap();
    bytes[extent.offset_bytes as usize + 2 * PIECE as usize + 9] ^= 4;
    let (device, image) = counted(&bytes);
    let dataset = dataset(image);
    let at = |start, end| SampleRange { id: SampleId(6), start, end };
    let ranges =
        [at(0, PIECE), at(2 * PIECE - 1, 2 * PIECE + 1), at(0, u64::MAX), at(3 * PIECE, 4 * PIECE)];
    let (read, failures) = dataset.read_ranges(&ranges, &mut ()).unwrap();
    assert_eq!(failures.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2]);
    for (_, error) in &failures {
        assert_eq!((error.kind(), error.sample_id()), (ErrorKind::Corrupt, Some(SampleId(6))));
        let text = error.report();
        assert!(text.contains("bytes 524288 to 786432") && text.contains("sample 6"), "{text}");
    }
    for index in [0, 3] {
        let SampleRange { start, end, .. } = ranges[index];
        assert!(read.bytes(index) == part(&files.samples[6], start..end));
    }
    // A bit that flips on the way is read again.
    let block = (extent.offset_bytes + 3 * PIECE) / 512;
    device.add(Rule::read(block..block + 1, 1, Fault::FlipBit { bit: 8 * 4000 }));
    let read = dataset.read_range(SampleId(6), 3 * PIECE..4 * PIECE, &mut ()).unwrap();
    assert!(read.bytes(0) == part(&files.samples[6], 3 * PIECE..4 * PIECE));
    assert_eq!(device.struck(), 1);
}

/// The bytes of an image whose headers have no room for the checksums of pieces.
fn without_pieces(bytes: &[u8]) -> Vec<u8> {
    let (_, image) = counted(bytes);
    let mut bytes = bytes.to_vec();
    for chunk in 0..image.directory().num_chunks() {
        let info = image.directory().chunk(chunk);
        let at = info.offset_bytes as usize;
        let header = ChunkHeader::parse(&bytes[at..]).unwrap();
        let sums: usize = header.samples().map(|sample| sample.pieces.len()).sum();
        if sums == 0 {
            continue;
        }
        // The last column: its kind, the length of its content, the size of a piece, and the checksums.
        let content = 1 + 4 * sums;
        let column = 1 + if content < 128 { 1 } else { 2 } + content;
        let end = header.head().header_len as usize;
        bytes[at + end - column..at + end].fill(0);
        let table_crc = crc32c(&bytes[at + 128..at + end - column]);
        bytes[at + 12..at + 16].copy_from_slice(&((end - column) as u32).to_le_bytes());
        bytes[at + 120..at + 124].copy_from_slice(&table_crc.to_le_bytes());
        let head_crc = crc32c(&bytes[at..at + 124]);
        bytes[at + 124..at + 128].copy_from_slice(&head_crc.to_le_bytes());
    }
    bytes
}

fn image_without_pieces(samples: &[Sample]) -> Vec<u8> {
    let mut media = images::Image::new(1, Pack::Tight);
    media.add(samples, 0, 0, &[]);
    without_pieces(&media.namespaces.swap_remove(0))
}

#[test]
fn a_sample_without_checksums_of_pieces_is_read_whole_once_however_many_threads_ask() {
    let len = (9 << 20) + 77;
    let samples = [sample("a", None, len), sample("b", None, 3000)];
    let bytes = image_without_pieces(&samples);
    let (device, image) = counted(&bytes);
    let reads = dataset(image);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let reads = reads.clone();
            let samples = &samples;
            scope.spawn(move || {
                let range = thread * 2 * PIECE + 9..thread * 2 * PIECE + 99;
                let read = reads.read_range(SampleId(0), range.clone(), &mut ()).unwrap();
                assert_eq!(read.bytes(0), part(&samples[0].record, range));
            });
        }
    });
    let once = len as u64 + 4 * (PIECE + 4096) + 4 * (16 << 10) + 4096;
    let read = bytes_read(&device);
    assert!(read > len as u64 && read <= once, "{read} of {once} bytes");

    // Damaged anywhere, no part of it can be verified.
    let mut damaged = bytes;
    let extent = reads.directory().extent(SampleId(0)).unwrap();
    damaged[extent.offset_bytes as usize + len - 1] ^= 1;
    let (_, image) = counted(&damaged);
    let error = dataset(image).read_range(SampleId(0), 0..10, &mut ()).unwrap_err();
    assert_eq!((error.kind(), error.sample_id()), (ErrorKind::Corrupt, Some(SampleId(0))));
}

#[test]
fn a_range_whose_sample_is_read_whole_twice_ends_at_the_deadline_of_the_call() {
    let samples = [sample("a", None, 3 << 20)];
    let (device, image) = counted(&image_without_pieces(&samples));
    let deadline = Duration::from_secs(2);
    let options = ReaderOptions { deadline, ..ReaderOptions::default() };
    let dataset = Dataset::from_image(image, options);
    let extent = dataset.directory().extent(SampleId(0)).unwrap();
    // The checksum of the whole is wrong after the first read, and each read takes more than half of the deadline.
    let first = extent.offset_bytes / 512 + 1;
    let last = (extent.offset_bytes + (3 << 20)) / 512 - 1;
    device.add(Rule::read(first..first + 1, 1, Fault::FlipBit { bit: 8 * 1024 }));
    device.add(Rule::read(last..last + 1, 2, Fault::DelayTime(deadline * 3 / 5)));
    let error = dataset.read_range(SampleId(0), PIECE..PIECE + 9, &mut ()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

#[test]
pub(crate) fn a_header_that_is_damaged_or_of_another_sample_is_not_believed() {
    let samples = [sample("a", None, 3 << 20), sample("b", None, 3 << 20)];
    let mut media = images::Image::new(1, Pack::Tight);
    media.add(&samples, 0, 0, &[]);
    let (directory, _) = media.open();
    let place =
        |id| directory.chunk(directory.chunk_of(SampleId(id)).unwrap()).offset_bytes as usize;
    let bytes = media.namespaces.swap_remove(0);
    let mut flipped = bytes.clone();
    flipped[place(0) + 180] ^= 1;
    let mut moved = bytes.clone();
    moved.copy_within(place(1)..place(1) + 4096, place(0));
    for damaged in [flipped, moved] {
        let (device, image) = counted(&damaged);
        let reads = dataset(image);
        let (read, warnings) =
            warnings_of(|| reads.read_range(SampleId(0), PIECE..PIECE + 9, &mut ()).unwrap());
        assert_eq!(read.bytes(0), part(&samples[0].record, PIECE..PIECE + 9));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(bytes_read(&device) > 3 << 20, "verified by the checksum of the whole");
    }
}

/// Stops an import once it has read this many bytes.
struct StopAt(u64, AtomicU64);

impl Progress for StopAt {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}

    fn advance(&mut self, _: u64, bytes: u64) {
        self.1.fetch_add(bytes, Ordering::Relaxed);
    }

    fn stop(&mut self) -> bool {
        self.1.load(Ordering::Relaxed) >= self.0
    }
}

#[test]
fn imported_appended_deleted_purged_rebuilt_and_resumed_images_keep_them() {
    let mut files = Files::new();
    files.import("a", Onto::Empty);
    let large = [3, 4, 5, 6, 8, 9];
    assert!(large.iter().all(|&id| has_pieces(&files, id)));
    let connect = ConnectOptions::default();

    files.write("b", &[ABOVE + 5, 10, 5 << 20]);
    files.import("b", Onto::Append);
    delete_ids(&files.image(), &[SampleId(4), SampleId(1)], &EditOptions::default(), &connect)
        .unwrap();
    let kept = [3, 5, 6, 8, 9, 10, 12];
    assert!(kept.iter().all(|&id| has_pieces(&files, id)), "after a deletion");
    purge(&files.image(), &EditOptions::default(), &connect, &mut ()).unwrap();
    assert!(kept.iter().all(|&id| has_pieces(&files, id)), "after a purge");
    let purged = files.open();
    files.compare(&purged, &[0, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]);
    let gone = purged.read_range(SampleId(4), 0..1, &mut ()).unwrap_err();
    assert_eq!((gone.kind(), gone.sample_id()), (ErrorKind::NotFound, Some(SampleId(4))));
    rebuild(&files.image(), None, &connect, &mut ()).unwrap();
    assert!(kept.iter().all(|&id| has_pieces(&files, id)), "after a rebuild");

    let mut again = Files::new();
    let seeded = |onto| ImportOptions { onto, seed: 5, ..ImportOptions::default() };
    let folder = again.dir.path().join("a");
    let mut stop = StopAt(9 << 20, AtomicU64::new(0));
    let empty = seeded(Onto::Empty);
    let stopped =
        import(std::slice::from_ref(&folder), &again.image(), &empty, &connect, &mut stop);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    import(&[folder], &again.image(), &seeded(Onto::Resume), &connect, &mut ()).unwrap();
    assert!(large.iter().all(|&id| has_pieces(&again, id)), "after resuming");
    let resumed = again.open();
    again.compare(&resumed, &large);
    let report = resumed.image().verify(&Default::default(), &mut |_| ()).unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
}

#[test]
fn an_open_sample_reads_like_a_file_and_ahead_only_in_sequence() {
    let mut files = Files::new();
    files.import("a", Onto::Empty);
    let (device, image) = files.counted();
    let reads = dataset(image);
    for id in [0u64, 1, 2, 3, 6, 8] {
        let file = reads.open_sample(SampleId(id), None, &mut ()).unwrap();
        let bytes = files.samples[id as usize].clone();
        assert_eq!(file.len_bytes(), bytes.len() as u64);
        bytes_read(&device);
        let mut at = 0;
        let mut piece = vec![0; 100_000];
        loop {
            let got = file.read_at(at, &mut piece, &mut ()).unwrap();
            assert!(piece[..got] == *part(&bytes, at..at + got as u64));
            at += got as u64;
            if got == 0 {
                break;
            }
        }
        assert_eq!(at, bytes.len() as u64);
        let read = bytes_read(&device);
        assert!(read <= at + 64 * 512 + 8192, "each byte once: {read} of {at}");
        for _ in 0..50 {
            let at = files.random.below(bytes.len() as u64 + 10);
            let len = files.random.below(700_000) as usize;
            let mut piece = vec![0; len];
            let got = file.read_at(at, &mut piece, &mut ()).unwrap();
            assert!(piece[..got] == *part(&bytes, at..at + len as u64), "{id}: {len} at {at}");
        }
    }
    let file = reads.open_sample(SampleId(8), None, &mut ()).unwrap();
    bytes_read(&device);
    let mut some = [0; 4096];
    file.read_at(5 << 20, &mut some, &mut ()).unwrap();
    assert!(bytes_read(&device) <= PIECE + 512, "a single read takes its piece alone");
}

#[test]
fn a_field_of_a_large_sample_is_a_file_of_its_own() {
    let mut record = Vec::new();
    let image = vec![7u8; (2 << 20) + 11];
    for len in [image.len() as u32, 3, u32::MAX] {
        record.extend_from_slice(&len.to_le_bytes());
    }
    record.extend_from_slice(&image);
    record.extend_from_slice(b"cat");
    let one = Sample { record, ..sample("s", None, 0) };
    let mut media = images::Image::new(1, Pack::Aligned);
    media.add(&[one], 0, 0, &["jpg", "cls", "txt"]);
    let (device, image_of_fields) = counted(&media.namespaces[0]);
    let reads = dataset(image_of_fields);
    let class = reads.open_sample(SampleId(0), Some(1), &mut ()).unwrap();
    let mut found = [0; 10];
    assert_eq!(class.read_at(0, &mut found, &mut ()).unwrap(), 3);
    assert_eq!(&found[..3], b"cat");
    assert_eq!((class.len_bytes(), class.read_at(3, &mut found, &mut ()).unwrap()), (3, 0));
    assert!(bytes_read(&device) < 3 * PIECE, "the table and the end, not what lies between");
    let absent = reads.open_sample(SampleId(0), Some(2), &mut ()).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

#[test]
fn the_first_range_is_served_while_the_whole_sample_is_copied_once_and_later_ones_come_from_the_copy()
 {
    let mut files = Files::new();
    files.import("a", Onto::Empty);
    let folder = tempfile::tempdir().unwrap();
    let tier = format!("file:{}:64M", folder.path().display());
    let mut options = Options::default();
    options.open.tiers.tiers = vec![tier.parse().unwrap()];
    options.open.tiers.policy = Policy::FirstTouch;
    let reads = Dataset::open(&files.image(), &options, &mut ()).unwrap();
    let large = &files.samples[8];
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let reads = reads.clone();
            scope.spawn(move || {
                let range = thread * PIECE..thread * PIECE + 10;
                let read = reads.read_range(SampleId(8), range.clone(), &mut ()).unwrap();
                assert_eq!(read.bytes(0), part(large, range));
            });
        }
    });
    settle(&reads);
    let stats = reads.tier_stats().unwrap();
    let from_origin = stats.origin.bytes + stats.origin.copier_bytes;
    let len = large.len() as u64;
    // Four threads may each have read the header of the chunk.
    assert!(stats.tiers[0].fill_bytes >= len, "all was copied: {stats:?}");
    assert!(from_origin <= len + 16 * 4096, "each byte came once: {stats:?}");
    let origin_bytes = |reads: &Dataset| reads.tier_stats().unwrap().origin.bytes;
    let before = origin_bytes(&reads);
    files.compare(&reads, &[8]);
    assert!(origin_bytes(&reads) - before <= 2 * 4096, "the rest comes from the copy");

    let ids: Vec<u64> = (0..LENS.len() as u64).collect();
    files.compare(&reads, &ids);
    settle(&reads);
    files.compare(&reads, &ids);
}

fn settle(dataset: &Dataset) {
    let tiers = dataset.image().tiers().expect("it was opened with tiers");
    let until = Instant::now() + Duration::from_secs(60);
    while !tiers.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", tiers.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}
