//! The read path does not allocate once it is warm: counted for each engine.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::alone;
use crate::targets::counting_alloc::{allocations_during, allocations_of_all_during, peak_during};
use dlfs::address::Address;
use dlfs::buf::{HugePages, Pool, PoolOptions, SharedBuf};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::qpair::file::{FileCalls, FileNamespace, FileOptions};
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{Completion, ConnectOptions, Device, Direct, Io, IoOp, open};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Lba, Nsid, SampleId};

const SLOT: usize = 64 << 10;

fn pool(num_slots: usize) -> Pool {
    let slot_len_bytes = SLOT;
    let huge_pages = HugePages::Off;
    Pool::new(PoolOptions { bytes: num_slots * SLOT, slot_len_bytes, huge_pages }).unwrap()
}

#[test]
fn the_allocation_counter_counts() {
    let _alone = alone();
    assert_eq!(allocations_during(|| Box::new(7)).0, 1);
    assert_eq!(allocations_during(|| 7).0, 0);
}

#[test]
fn buffers_are_taken_split_frozen_and_given_back_without_allocating() {
    let _alone = alone();
    let pool = pool(8);
    let (count, slice) = allocations_during(|| {
        let mut last = SharedBuf::empty();
        for _ in 0..1000 {
            drop(std::mem::take(&mut last));
            let mut buf = pool.take(3 * SLOT).unwrap();
            let rest = buf.split_off(100);
            buf.unsplit(rest).unwrap();
            last = buf.split_off(SLOT).freeze().slice(5..50);
        }
        last
    });
    assert_eq!((count, slice.len()), (0, 45));
}

#[test]
fn a_warm_memory_engine_reads_without_allocating() {
    let _alone = alone();
    reads_without_allocating(&MemNamespace::new(4 << 20, 4096).unwrap());
}

#[test]
fn a_warm_file_engine_reads_without_allocating() {
    let _alone = alone();
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(4 << 20).unwrap();
    for (calls, direct) in [
        (FileCalls::Auto, Direct::Off),
        (FileCalls::Pread, Direct::Off),
        (FileCalls::Auto, Direct::On),
    ] {
        let options = FileOptions { calls, direct, ..FileOptions::default() };
        match FileNamespace::open(image.path(), options) {
            Ok(device) => reads_without_allocating(&device),
            Err(error) => println!("skipped: {}", error.report()),
        }
    }
}

#[test]
fn a_warm_tcp_engine_reads_without_allocating() {
    let _alone = alone();
    let device = Arc::new(MemNamespace::new(4 << 20, 4096).unwrap());
    let options = TargetOptions::new("nqn.2026-11.io.dlfs:allocations".parse().unwrap());
    let target = Target::bind(options, vec![device]).unwrap();
    let address = target.address(Nsid(1));
    reads_without_allocating(&*open(&address, &ConnectOptions::default()).unwrap());
}

/// After some epochs all lists have their final size; from then on neither a batch nor the start of
/// an epoch allocates.
#[test]
fn a_warm_loader_goes_from_epoch_to_epoch_without_allocating() {
    let _alone = alone();
    let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = small_image(temp.path());
    let device = open(&image, &ConnectOptions::default()).unwrap();
    let options = TargetOptions::new("nqn.2026-11.io.dlfs:allocations".parse().unwrap());
    let target = Target::bind(options, vec![device]).unwrap();
    for address in [image, target.address(Nsid(1))] {
        for kind in [OrderKind::Global, OrderKind::Grouped { lanes: 4, group: 2 }] {
            epochs_without_allocating(&address, kind);
        }
    }
}

/// An allocator keeps large blocks of varying lengths: without reuse, 12 epochs grew by 170 MiB.
#[test]
fn what_exceeds_the_window_is_not_allocated_elsewhere() {
    let _alone = alone();
    let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let address = image(temp.path(), 200, 60_000, 512 << 10);
    let image = Image::open(std::slice::from_ref(&address), &OpenOptions::default()).unwrap();
    let kind = OrderKind::Grouped { lanes: 4, group: 4 };
    let mut options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, 4);
    (options.window_bytes, options.batching) = (1 << 20, Some(Batching::Chunk));
    let mut loader = image.prefetcher(options).unwrap();
    let (peak, ()) = peak_during(|| while loader.next().transpose().unwrap().is_some() {});
    let outside = loader.stats().over_window;
    println!("loader: {peak} bytes of the heap, {outside} runs outside the window");
    assert!(outside > 0 && peak < 2 << 20, "{peak} bytes of the heap for {outside} runs");

    let options = ReaderOptions { window_bytes: 1 << 20, ..ReaderOptions::default() };
    let mut reader = image.reader(options).unwrap();
    let mut batch = Batch::new();
    let ids: Vec<SampleId> = (0..200).map(SampleId).collect();
    let (peak, result) = peak_during(|| reader.read_batch(&ids, &mut batch));
    result.unwrap();
    println!("reader: {peak} bytes of the heap for a batch of {}", batch.len_bytes());
    assert!(peak < 2 << 20, "{peak} bytes of the heap for a batch of {}", batch.len_bytes());
}

/// If all chunks fit the window, only the poller's own limit stops it from planning.
#[test]
fn no_more_is_planned_ahead_than_can_be_of_use() {
    let _alone = alone();
    let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let address = small_image(temp.path());
    let image = Image::open(std::slice::from_ref(&address), &OpenOptions::default()).unwrap();
    let kind = OrderKind::Grouped { lanes: 8, group: 4 };
    let options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 600, 10_000);
    let mut loader = image.prefetcher(options).unwrap();
    let (peak, ()) = peak_during(|| {
        assert_eq!(loader.next().unwrap().unwrap().len(), 600);
        settle();
    });
    println!("{peak} bytes of the heap");
    assert!(peak < 16 << 20, "{peak} bytes of the heap");
}

/// An image of 600 samples, 13 per chunk.
fn small_image(at: &Path) -> Address {
    image(at, 600, 4096, 64 << 10)
}

fn image(at: &Path, count: usize, len: usize, chunk_size_bytes: u32) -> Address {
    let source = at.join("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..count {
        std::fs::write(source.join(format!("{number:04}")), vec![number as u8; len]).unwrap();
    }
    let image = Address::from_path(at.join("image.dlfs"));
    let options = ImportOptions { chunk_size_bytes, ..ImportOptions::default() };
    let connect = ConnectOptions::default();
    import(&[source], std::slice::from_ref(&image), &options, &connect, &mut ()).unwrap();
    image
}

fn epochs_without_allocating(address: &Address, kind: OrderKind) {
    const WARM: u64 = 50;
    const EPOCHS: u64 = 250;
    let image = Image::open(std::slice::from_ref(address), &OpenOptions::default()).unwrap();
    let mut options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, 16, WARM + EPOCHS);
    options.window_bytes = 4 << 20;
    let mut loader = image.prefetcher(options).unwrap();
    let mut batch = Batch::new();
    let mut take = |epochs: u64| {
        let mut ended = 0;
        let mut batches = 0;
        while ended < epochs {
            assert!(loader.next_into(&mut batch).unwrap(), "there are epochs enough");
            ended += u64::from(batch.ends_epoch());
            batches += 1;
        }
        batches
    };
    take(WARM);
    settle();
    let (count, batches) = allocations_of_all_during(|| take(EPOCHS));
    println!("{count} allocations in {batches} batches of {EPOCHS} epochs, {kind:?}, {address}");
    // A burst deeper than any before still grows a list once; an epoch that rebuilt its order would
    // allocate about twenty times.
    assert!(count < EPOCHS / 2, "{count} allocations in {batches} batches, {kind:?}, {address}");
}

/// Waits until the poller has planned as far ahead as it will.
fn settle() {
    let pause = || std::thread::sleep(Duration::from_millis(50));
    let rests = (0..100).any(|_| allocations_of_all_during(pause).0 == 0);
    assert!(rests, "something allocates without an end");
}

/// Reads at depth 32 with buffers from a pool: the first rounds may allocate, the later ones must
/// not.
///
/// Other threads (of a target, of a keeper) must not either, except a few times when they sleep.
fn reads_without_allocating(device: &dyn Device) {
    let mut group = PollGroup::new().unwrap();
    group.add(device.queue_pair().unwrap());
    let mut reader = Reader {
        group,
        pool: pool(32),
        pending: VecDeque::with_capacity(32),
        done: Vec::with_capacity(32),
    };
    reader.read(200);
    // A list has its final size once as many reads have completed together as ever do, which depends on the drive.
    let round = || {
        let (all, (here, ())) =
            allocations_of_all_during(|| allocations_during(|| reader.read(5000)));
        (all, here)
    };
    let rounds = std::iter::repeat_with(round).take(10);
    let engine = device.namespace().engine;
    let warm =
        rounds.inspect(|(_, here)| println!("{here} allocations")).find(|(_, here)| *here == 0);
    let (all, _) = warm.unwrap_or_else(|| panic!("each 5,000 reads by {engine} allocate"));
    println!("{all} allocations of all threads in 5,000 reads by {}", device.namespace().engine);
    assert!(all < 500, "{all} allocations of all threads in 5,000 reads");
}

struct Reader {
    group: PollGroup,
    pool: Pool,
    pending: VecDeque<Io>,
    done: Vec<(usize, Completion)>,
}

impl Reader {
    fn read(&mut self, count: u64) {
        let mut asked = 0;
        let mut ended = 0;
        let deadline = Instant::now() + Duration::from_secs(60);
        while ended < count {
            while asked < count
                && let Some(buf) = self.pool.take(4096)
            {
                let slba = Lba(asked * 7 % 1024);
                self.pending.push_back(Io { op: IoOp::Read, slba, buf, tag: asked });
                asked += 1;
            }
            self.group.submit(0, &mut self.pending);
            ended += self.group.poll(Instant::now(), 32, &mut self.done) as u64;
            self.done.drain(..).for_each(|(_, completion)| completion.result.unwrap());
            assert!(Instant::now() < deadline, "{ended} of {count} reads ended");
        }
    }
}
