//! Many scattered samples in one call: bounded memory, each block once, from files and over TCP.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::alone::again;
use crate::support::random::Random;
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, OnError, OpenOptions, Query, Watch};
use dlfs::import::{self, ImportOptions};
use dlfs::qpair::file::{FileNamespace, FileOptions};
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::reader::{Batch, Reader, ReaderOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};

/// The bytes of sample `id`.
fn content(id: u64, len: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().repeat(len / 8 + 1);
    bytes.truncate(len);
    bytes
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Imports `count` samples, whose lengths `len_of` gives, as `a.dlfs` in `folder`.
fn image_of(folder: &Path, count: u64, len_of: fn(u64) -> usize) -> Address {
    let shard = folder.join("a.tfrecord");
    let mut file = std::io::BufWriter::new(fs::File::create(&shard).unwrap());
    for id in 0..count {
        let header = (len_of(id) as u64).to_le_bytes();
        let payload = content(id, len_of(id));
        for part in [&header[..], &masked(&header), &payload, &masked(&payload)] {
            file.write_all(part).unwrap();
        }
    }
    drop(file);
    let address = Address::Path(folder.join("a.dlfs"));
    let options = ImportOptions::default();
    let connect = ConnectOptions::default();
    import::import(&[shard], std::slice::from_ref(&address), &options, &connect, &mut ()).unwrap();
    address
}

fn open(address: &Address) -> Image {
    Image::open(std::slice::from_ref(address), &OpenOptions::default()).unwrap()
}

fn serve(address: &Address) -> (Target, Address) {
    let Address::Path(path) = address else { panic!("only files are served") };
    let device = Arc::new(FileNamespace::open(path, FileOptions::default()).unwrap());
    let nqn = "nqn.2026-11.io.dlfs:scattered".parse().unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = TargetOptions { listen, ..TargetOptions::new(nqn) };
    let target = Target::bind(options, vec![device as Arc<dyn Device>]).unwrap();
    let remote = target.address(Nsid(1));
    (target, remote)
}

fn tiny(id: u64) -> usize {
    200 + (id * 7 % 200) as usize
}

/// One sample of about every block, in random order, some of them twice.
fn scattered(count: u64) -> Vec<SampleId> {
    let mut random = Random::new(23);
    let mut ids: Vec<_> = (0..count).step_by(13).chain(0..50).map(SampleId).collect();
    random.shuffle(&mut ids);
    ids
}

/// The blocks of 4 KiB that hold bytes of the samples, in bytes.
fn blocks_of(image: &Image, ids: &[SampleId]) -> u64 {
    let mut blocks = BTreeSet::new();
    for &id in ids {
        let at = image.directory().extent(id).unwrap();
        let last = at.offset_bytes + u64::from(at.len_bytes).max(1) - 1;
        blocks.extend((at.offset_bytes / 4096..=last / 4096).map(|block| (at.namespace, block)));
    }
    blocks.len() as u64 * 4096
}

fn assert_right(batch: &Batch, ids: &[SampleId], len_of: fn(u64) -> usize) {
    assert_eq!(batch.len(), ids.len());
    for (sample, id) in batch.iter().zip(ids) {
        assert_eq!(sample.id, *id);
        assert_eq!(sample.bytes, content(id.0, len_of(id.0)), "sample {id}");
    }
}

/// A reader that gathers also few bytes.
fn small(image: &Image) -> Reader {
    image.reader(ReaderOptions { window_bytes: 1 << 20, ..ReaderOptions::default() }).unwrap()
}

/// A line of /proc/self/status, in bytes.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    found.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The measured process of `a_call_takes_the_bytes_asked_and_at_most_64_mib`.
fn measure(address: &str) {
    let image = open(&address.parse().unwrap());
    let ids = scattered(image.directory().num_live());
    let mut reader = image.reader(ReaderOptions::default()).unwrap();
    let mut batch = Batch::new();
    reader.read_batch(&ids[..8], &mut batch).unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap(); // sets VmHWM to what is resident now
    let before = memory("VmRSS");
    reader.read_batch(&ids, &mut batch).unwrap();
    let peak = memory("VmHWM") - before;
    let bytes = batch.len_bytes();
    let read = reader.stats().bytes;
    println!("{} samples, {bytes} bytes, {read} bytes read, peak {peak}", ids.len());
    assert!(read > bytes + (96 << 20), "blocks would fit in what is allowed");
    assert!(peak <= bytes + (64 << 20), "{peak} bytes of memory for {bytes}");
    assert_right(&batch, &ids, tiny);
}

#[test]
fn a_call_takes_the_bytes_asked_and_at_most_64_mib() {
    if let Ok(address) = std::env::var("DLFS_TEST_SCATTERED") {
        return measure(&address);
    }
    let temp = tempfile::tempdir().unwrap();
    let address = image_of(temp.path(), 700_000, tiny);
    let (target, remote) = serve(&address);
    for address in [address.to_string(), remote.to_string()] {
        let output = again(a_call_takes_the_bytes_asked_and_at_most_64_mib)
            .env("DLFS_TEST_SCATTERED", &address)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{address}: {text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("bytes read, peak"), "{address}");
    }
    drop(target);
}

#[test]
fn each_block_is_read_once_whatever_the_order_of_the_ids() {
    let temp = tempfile::tempdir().unwrap();
    let address = image_of(temp.path(), 30_000, tiny);
    let (_target, remote) = serve(&address);
    for address in [address, remote] {
        let image = open(&address);
        let mut ids: Vec<_> = (0..30_000).map(SampleId).collect();
        Random::new(5).shuffle(&mut ids);
        for ids in [&ids[..], &ids[..5_000]] {
            let mut reader = small(&image);
            let mut batch = Batch::new();
            reader.read_batch(ids, &mut batch).unwrap();
            assert_right(&batch, ids, tiny);
            let read = reader.stats().bytes;
            let blocks = blocks_of(&image, ids);
            println!("{address}: {read} bytes read, {blocks} in blocks");
            // Two plans of 2,048 samples, or two fetches of 512 KiB, may share a block.
            let shared = ids.len() as u64 / 2048 + read / (512 << 10) + 1;
            assert!(read >= blocks && read <= blocks + shared * 4096);
        }
    }
}

#[test]
fn empty_and_large_samples_come_with_the_others() {
    fn mixed(id: u64) -> usize {
        match id % 1000 {
            0 => 1_500_000,
            1..100 => 0,
            100..200 => 4096,
            _ => 1000,
        }
    }
    let temp = tempfile::tempdir().unwrap();
    let image = open(&image_of(temp.path(), 6_000, mixed));
    let mut ids: Vec<_> = (0..6_000).chain([0, 1, 1000, 250]).map(SampleId).collect();
    Random::new(9).shuffle(&mut ids);
    let mut reader = small(&image);
    let mut batch = Batch::new();
    for _ in 0..2 {
        reader.read_batch(&ids, &mut batch).unwrap();
        assert_right(&batch, &ids, mixed);
    }
}

/// Looks at each sample when it arrives, and interrupts after a number of questions.
struct Looks {
    seen: usize,
    questions: usize,
}

impl Watch for Looks {
    fn goes_on(&mut self) -> bool {
        self.questions = self.questions.saturating_sub(1);
        self.questions > 0
    }

    fn arrived(&mut self, batch: &Batch, index: usize) {
        let id = batch.id(index).0;
        assert_eq!(batch.bytes(index), content(id, tiny(id)), "sample {id}");
        if self.seen == 0 {
            std::thread::sleep(Duration::from_millis(100)); // until it is time for a question
        }
        self.seen += 1;
    }
}

#[test]
fn a_watch_sees_every_sample_and_its_interruption_ends_the_call() {
    let temp = tempfile::tempdir().unwrap();
    let (_target, remote) = serve(&image_of(temp.path(), 20_000, tiny));
    let image = open(&remote);
    let ids = scattered(20_000).repeat(10);
    let mut reader = small(&image);
    let mut batch = Batch::new();
    let mut looks = Looks { seen: 0, questions: 1 };
    let error = reader.read_batch_watched(&ids, &mut batch, &mut looks).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert!(looks.seen < ids.len(), "{} samples came before the end of a call", looks.seen);
    assert!(batch.is_empty());
    let ids = &ids[..5_000];
    let mut looks = Looks { seen: 0, questions: usize::MAX };
    assert!(reader.read_batch_watched(ids, &mut batch, &mut looks).unwrap().is_empty());
    assert_eq!(looks.seen, ids.len());
    assert_right(&batch, ids, tiny);
}

#[test]
fn a_damaged_sample_fails_alone_and_absent_ids_keep_their_positions() {
    let temp = tempfile::tempdir().unwrap();
    let address = image_of(temp.path(), 20_000, tiny);
    let Address::Path(path) = &address else { unreachable!("it was imported to a path") };
    let at = open(&address).directory().extent(SampleId(777)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xEE; 20], at.offset_bytes + 3).unwrap();

    let options = ReaderOptions { window_bytes: 1 << 20, ..ReaderOptions::default() };
    let dataset = Dataset::from_image(open(&address), options);
    let mut ids: Vec<_> = (0..20_000).map(SampleId).collect();
    Random::new(3).shuffle(&mut ids);
    ids[40] = SampleId(1 << 39);
    let damaged = ids.iter().position(|id| id.0 == 777).unwrap();
    let read = dataset.read(Query::Ids(&ids), OnError::Blank, &mut ()).unwrap();
    let mut expected = vec![(40, ErrorKind::NotFound), (damaged, ErrorKind::Corrupt)];
    expected.sort_by_key(|(at, _)| *at);
    let found: Vec<_> = read.failures.iter().map(|(at, error)| (*at, error.kind())).collect();
    assert_eq!(found, expected);
    for (index, sample) in read.batch.iter().enumerate() {
        let right = if expected.iter().any(|(at, _)| *at == index) {
            Vec::new()
        } else {
            content(sample.id.0, tiny(sample.id.0))
        };
        assert_eq!(sample.bytes, right, "position {index}");
    }
    let skipped = dataset.read(Query::Ids(&ids), OnError::Skip, &mut ()).unwrap();
    let left: Vec<_> = ids.iter().filter(|id| ![777, 1 << 39].contains(&id.0)).copied().collect();
    assert_right(&skipped.batch, &left, tiny);
    ids.remove(40);
    let error = dataset.read(Query::Ids(&ids), OnError::Raise, &mut ()).err().unwrap();
    assert_eq!((error.kind(), error.sample_id()), (ErrorKind::Corrupt, Some(SampleId(777))));
}
