//! The contract of all engines as one test suite: `contract::check(writable, read_only)`.
//!
//! An engine's test creates a writable namespace of a few MiB that nobody else changes, and a
//! read-only device on the same data, and passes both to [`check`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::{Completion, Device, Io, IoError, IoOp, Namespace, QueuePair};
use dlfs::units::Lba;

use super::random::Random;

/// Runs the whole suite.
pub fn check(writable: Arc<dyn Device>, read_only: Arc<dyn Device>) {
    describes_itself(&*writable);
    writes_what_is_read_later_in_any_order(&*writable);
    completes_each_io_exactly_once_with_its_own_buffer(&*writable);
    respects_its_depth_and_the_callers_max(&*writable);
    refuses_what_cannot_be_and_goes_on(&*writable);
    takes_memory_of_any_alignment(&*writable);
    shows_writes_of_one_queue_pair_to_another(&*writable);
    moves_to_another_thread_with_io_outstanding(&*writable);
    gives_memory_back_when_dropped_with_io_outstanding(&*writable);
    serves_queue_pairs_of_several_threads(&writable);
    refuses_writes_when_read_only(&*writable, &*read_only);
}

/// The part of the suite for engines without a writable side: their data do not change.
pub fn check_read_only(device: Arc<dyn Device>) {
    describes_itself(&*device);
    completes_each_io_exactly_once_with_its_own_buffer(&*device);
    respects_its_depth_and_the_callers_max(&*device);
    refuses_what_cannot_be_and_goes_on(&*device);
    moves_to_another_thread_with_io_outstanding(&*device);
    gives_memory_back_when_dropped_with_io_outstanding(&*device);
    assert!(device.namespace().read_only);
    let len = device.namespace().block_len_bytes as usize;
    let write = Io { op: IoOp::Write, ..read(0, len) };
    assert!(Driver::new(&*device).run(vec![write])[0].1.result.is_err(), "it took a write");
    reads_the_same_bytes_at_any_alignment_on_several_threads(&device);
}

fn reads_the_same_bytes_at_any_alignment_on_several_threads(device: &Arc<dyn Device>) {
    let model = Model::new(&**device);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let model = &model;
            scope.spawn(move || {
                let mut random = Random::new(200 + thread);
                let mut pair = Driver::new(&**device);
                let ranges = (0..200).map(|_| model.range(&mut random));
                let misaligned = |(slba, len): (u64, usize)| {
                    let skip = [0, 1, 8, 512][slba as usize % 4];
                    Io { buf: IoBuf::zeroed(skip + len).split_off(skip), ..read(slba, 0) }
                };
                for (io, completion) in pair.run(ranges.map(misaligned).collect()) {
                    assert_eq!(completion.result, Ok(()), "{io:?}");
                    assert!(model.equals(io.slba, &completion.buf), "{io:?}");
                }
            });
        }
    });
}

fn describes_itself(device: &dyn Device) {
    let namespace = device.namespace();
    let block_len = namespace.block_len_bytes;
    assert!(block_len.is_power_of_two() && (512..=4096).contains(&block_len), "{namespace:?}");
    assert!(namespace.max_transfer_bytes >= 4096, "{namespace:?}");
    assert!(namespace.max_transfer_bytes.is_multiple_of(4096), "{namespace:?}");
    assert!(namespace.queue_depth > 0 && !namespace.engine.is_empty(), "{namespace:?}");
    assert!(namespace.len_bytes() >= 2 << 20, "the suite wants 2 MiB, not {namespace:?}");
    let pair = device.queue_pair().unwrap();
    assert_eq!(pair.namespace().num_blocks, namespace.num_blocks);
    assert_eq!(pair.outstanding(), 0);
}

fn writes_what_is_read_later_in_any_order(device: &dyn Device) {
    let mut random = Random::new(1);
    let mut model = Model::new(device);
    let mut pair = Driver::new(device);
    for _ in 0..40 {
        let ranges = model.disjoint_ranges(&mut random, 20);
        let mut ios: Vec<Io> = ranges.iter().map(|&(slba, len)| read(slba, len)).collect();
        for io in &mut ios {
            if random.one_in(2) {
                io.op = IoOp::Write;
                random.fill(&mut io.buf);
                model.write(io.slba, &io.buf);
            }
        }
        if random.one_in(4) {
            ios.push(Io { op: IoOp::Flush, slba: Lba(0), buf: IoBuf::empty(), tag: 0 });
        }
        for (io, completion) in pair.run(ios) {
            completion.result.unwrap();
            if io.op != IoOp::Flush {
                assert!(model.equals(io.slba, &completion.buf), "{io:?}");
            }
        }
    }
}

fn completes_each_io_exactly_once_with_its_own_buffer(device: &dyn Device) {
    let mut random = Random::new(2);
    let model = Model::new(device);
    let mut pair = device.queue_pair().unwrap();
    let mut pending = VecDeque::new();
    let mut done = Vec::new();
    let mut owed: HashMap<u64, usize> = HashMap::new();
    for tag in 0..3000 {
        let (slba, len) = model.range(&mut random);
        let io = Io { tag, ..read(slba, len) };
        owed.insert(tag, io.buf.as_ptr().addr());
        pending.push_back(io);
        if random.one_in(8) {
            let before = pending.len();
            let taken = pair.submit(&mut pending);
            assert_eq!(taken, before - pending.len(), "took what it says from the front");
        }
        if random.one_in(4) {
            pair.poll(Instant::now(), random.below(9) as usize, &mut done);
        }
    }
    let deadline = Deadline::new();
    while !pending.is_empty() || pair.outstanding() > 0 {
        pair.submit(&mut pending);
        pair.poll(Instant::now(), 64, &mut done);
        deadline.check(&*pair);
    }
    for completion in done {
        completion.result.unwrap();
        let address = owed.remove(&completion.tag).expect("a tag that was submitted, once");
        assert_eq!(completion.buf.as_ptr().addr(), address, "the buffer of the I/O");
    }
    assert!(owed.is_empty(), "never completed: {:?}", owed.keys());
    assert_eq!(pair.poll(Instant::now(), 64, &mut Vec::new()), 0);
}

fn respects_its_depth_and_the_callers_max(device: &dyn Device) {
    let mut pair = device.queue_pair().unwrap();
    let depth = usize::from(pair.namespace().queue_depth);
    let block_len = pair.namespace().block_len_bytes as usize;
    let mut pending: VecDeque<Io> = (0..depth * 2 + 3).map(|_| read(0, block_len)).collect();
    let all = pending.len();
    let mut done = Vec::new();
    let deadline = Deadline::new();
    while done.len() < all {
        let taken = pair.submit(&mut pending);
        assert!(taken <= depth && pair.outstanding() <= depth, "above its depth");
        assert_eq!(pending.len() + pair.outstanding() + done.len(), all);
        let before = done.len();
        let count = pair.poll(Instant::now(), 3, &mut done);
        assert!(count <= 3 && done.len() - before == count, "more than asked for");
        deadline.check(&*pair);
    }
}

fn refuses_what_cannot_be_and_goes_on(device: &dyn Device) {
    let Namespace { num_blocks, max_transfer_bytes, block_len_bytes, .. } = device.namespace();
    let block_len = block_len_bytes as usize;
    let max_len = max_transfer_bytes as usize;
    let bad = [
        read(0, block_len - 1),
        read(0, block_len + 1),
        read(0, 0),
        read(num_blocks, block_len),
        read(num_blocks - 1, 2 * block_len),
        read(u64::MAX, block_len),
        read(u64::MAX / block_len as u64 + 1, block_len),
        read(0, max_len + block_len),
    ];
    let writes = bad.iter().map(|io| Io { op: IoOp::Write, ..read(io.slba.0, io.buf.len()) });
    let flush = Io { op: IoOp::Flush, ..read(0, block_len) };
    let ios: Vec<Io> = writes.chain([flush]).collect();
    let mut pair = Driver::new(device);
    for (io, completion) in pair.run(bad.into_iter().chain(ios).collect()) {
        let refused = matches!(completion.result, Err(IoError::Invalid(_)));
        assert!(refused, "{io:?}: {:?}", completion.result);
        assert_eq!(completion.buf.len(), io.buf_len, "the buffer comes back");
    }
    for (io, completion) in pair.run(vec![read(num_blocks - 1, block_len), read(0, max_len)]) {
        assert_eq!(completion.result, Ok(()), "{io:?}");
    }
}

fn takes_memory_of_any_alignment(device: &dyn Device) {
    let block_len = device.namespace().block_len_bytes as usize;
    let mut pair = Driver::new(device);
    // A pool may use memory that the device can access; a buffer of its own does not.
    let pool = PoolOptions { bytes: 64 << 10, slot_len_bytes: 4096, huge_pages: HugePages::Off };
    let pool = Pool::new(pool).unwrap();
    let takes: [&dyn Fn(usize) -> IoBuf; 2] = [&IoBuf::zeroed, &|len| pool.take(len).unwrap()];
    for (take, offset) in takes.into_iter().flat_map(|take| [1, 8, 512].map(|at| (take, at))) {
        let mut buf = take(offset + 2 * block_len).split_off(offset);
        buf.fill(offset as u8);
        let write = Io { op: IoOp::Write, slba: Lba(1), buf, tag: 0 };
        assert_eq!(pair.run(vec![write])[0].1.result, Ok(()));
        let buf = take(offset + 2 * block_len).split_off(offset);
        let (_, found) = pair.run(vec![Io { buf, ..read(1, 0) }]).remove(0);
        assert_eq!(found.result, Ok(()));
        assert!(found.buf.iter().all(|&byte| byte == offset as u8));
    }
}

fn shows_writes_of_one_queue_pair_to_another(device: &dyn Device) {
    let block_len = u64::from(device.namespace().block_len_bytes);
    let mut writer = Blocking::new(device.queue_pair().unwrap()).unwrap();
    let mut reader = Blocking::new(device.queue_pair().unwrap()).unwrap();
    for mark in 0..10u8 {
        writer.write_at(2 * block_len, &vec![mark; block_len as usize]).unwrap();
        writer.flush().unwrap();
        let found = reader.read(2 * block_len + 1, 100).unwrap();
        assert!(found.iter().all(|&byte| byte == mark));
    }
}

fn moves_to_another_thread_with_io_outstanding(device: &dyn Device) {
    let mut pair = device.queue_pair().unwrap();
    let len = pair.namespace().max_transfer_bytes as usize;
    let depth = pair.namespace().queue_depth.min(8);
    let mut pending: VecDeque<Io> = (0..depth).map(|_| read(0, len)).collect();
    pair.submit(&mut pending);
    let mut done = Vec::new();
    pair.poll(Instant::now(), 1, &mut done);
    let missing = usize::from(depth) - done.len();
    let finish = move || {
        let mut done = Vec::new();
        let deadline = Deadline::new();
        while pair.outstanding() > 0 {
            pair.poll(Instant::now(), 64, &mut done);
            deadline.check(&*pair);
        }
        done
    };
    let done = std::thread::spawn(finish).join().unwrap();
    assert_eq!(done.len(), missing);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
}

fn gives_memory_back_when_dropped_with_io_outstanding(device: &dyn Device) {
    let len = device.namespace().max_transfer_bytes as usize;
    let pool =
        Pool::new(PoolOptions { bytes: 8 * len, slot_len_bytes: len, huge_pages: HugePages::Off })
            .unwrap();
    for polls in 0..3 {
        let mut pair = device.queue_pair().unwrap();
        let with_memory = |_| Io { buf: pool.take(len).unwrap(), ..read(0, 0) };
        let mut pending: VecDeque<Io> = (0..8).map(with_memory).collect();
        pair.submit(&mut pending);
        for _ in 0..polls {
            pair.poll(Instant::now(), 1, &mut Vec::new());
        }
        drop((pair, pending));
        assert_eq!(pool.free_bytes(), pool.capacity_bytes(), "after {polls} polls");
    }
}

fn serves_queue_pairs_of_several_threads(device: &Arc<dyn Device>) {
    let region = device.namespace().len_bytes() / 4;
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let device = Arc::clone(device);
            scope.spawn(move || {
                let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
                let mut random = Random::new(100 + thread);
                for _ in 0..30 {
                    let mut bytes = vec![0; 4096 * (1 + random.below(40) as usize)];
                    random.fill(&mut bytes);
                    let room = (region - bytes.len() as u64) / 4096;
                    let offset =
                        (thread * region).next_multiple_of(4096) + 4096 * random.below(room);
                    io.write_at(offset, &bytes).unwrap();
                    assert!(io.read(offset, bytes.len()).unwrap()[..] == bytes[..]);
                }
            });
        }
    });
}

fn refuses_writes_when_read_only(writable: &dyn Device, read_only: &dyn Device) {
    let Namespace { block_len_bytes, num_blocks, .. } = writable.namespace();
    assert!(read_only.namespace().read_only && !writable.namespace().read_only);
    let mut pair = Driver::new(read_only);
    let write = Io { op: IoOp::Write, ..read(0, block_len_bytes as usize) };
    assert!(pair.run(vec![write])[0].1.result.is_err(), "a read-only namespace took a write");
    let mut before = Blocking::new(writable.queue_pair().unwrap()).unwrap();
    let mut after = Blocking::new(read_only.queue_pair().unwrap()).unwrap();
    let len = (num_blocks * u64::from(block_len_bytes)).min(8 << 20) as usize;
    assert!(before.read(0, len).unwrap()[..] == after.read(0, len).unwrap()[..]);
}

/// A read of `len` bytes, tag 0.
pub fn read(slba: u64, len: usize) -> Io {
    Io { op: IoOp::Read, slba: Lba(slba), buf: IoBuf::zeroed(len), tag: 0 }
}

/// The driver's record of an I/O whose buffer is in flight.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    pub op: IoOp,
    pub slba: Lba,
    pub buf_len: usize,
}

/// Runs lists of I/Os to completion.
pub struct Driver(PollGroup);

impl Driver {
    pub fn new(device: &dyn Device) -> Driver {
        let mut group = PollGroup::new().unwrap();
        group.add(device.queue_pair().unwrap());
        Driver(group)
    }

    /// Each I/O with its completion, in the order of `ios`.
    pub fn run(&mut self, ios: Vec<Io>) -> Vec<(Sent, Completion)> {
        let sent: Vec<Sent> =
            ios.iter().map(|io| Sent { op: io.op, slba: io.slba, buf_len: io.buf.len() }).collect();
        let number = |(tag, io)| Io { tag, ..io };
        let mut pending: VecDeque<Io> = (0..).zip(ios).map(number).collect();
        let mut done = Vec::new();
        let deadline = Deadline::new();
        while done.len() < sent.len() {
            self.0.submit(0, &mut pending);
            if self.0.poll(Instant::now(), 64, &mut done) == 0 {
                self.0.wait(Instant::now() + Duration::from_millis(100));
            }
            deadline.check(self.0.pair(0));
        }
        done.sort_by_key(|(_, completion)| completion.tag);
        assert!(done.iter().zip(0..).all(|((_, c), tag)| c.tag == tag), "each tag once");
        sent.into_iter().zip(done.into_iter().map(|(_, completion)| completion)).collect()
    }
}

/// Ends a test that would hang, also on a machine whose other programs leave it little time.
struct Deadline(Instant);

impl Deadline {
    fn new() -> Deadline {
        Deadline(Instant::now() + Duration::from_secs(300))
    }

    fn check(&self, pair: &dyn QueuePair) {
        assert!(Instant::now() < self.0, "{} I/Os never completed", pair.outstanding());
    }
}

/// The expected contents of the first blocks of a namespace.
struct Model {
    bytes: Vec<u8>,
    block_len: usize,
    max_len: usize,
}

impl Model {
    /// Reads the current contents of the device.
    fn new(device: &dyn Device) -> Model {
        let namespace = device.namespace();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        let len = namespace.len_bytes().min(16 << 20) as usize;
        Model {
            bytes: io.read(0, len).unwrap().to_vec(),
            block_len: namespace.block_len_bytes as usize,
            max_len: namespace.max_transfer_bytes as usize,
        }
    }

    fn range(&self, random: &mut Random) -> (u64, usize) {
        let longest = if random.one_in(8) { self.max_len / self.block_len } else { 16 };
        let num_blocks = self.bytes.len() / self.block_len;
        let blocks = 1 + random.below(longest.min(num_blocks) as u64);
        (random.below(num_blocks as u64 - blocks + 1), blocks as usize * self.block_len)
    }

    /// Up to `count` ranges that do not touch each other, in random order.
    fn disjoint_ranges(&self, random: &mut Random, count: usize) -> Vec<(u64, usize)> {
        let mut ranges: Vec<(u64, usize)> = Vec::new();
        for _ in 0..count {
            let (slba, len) = self.range(random);
            let blocks = |len: usize| (len / self.block_len) as u64;
            let apart = |&(other, other_len): &(u64, usize)| {
                slba + blocks(len) <= other || other + blocks(other_len) <= slba
            };
            if ranges.iter().all(apart) {
                ranges.push((slba, len));
            }
        }
        ranges
    }

    fn write(&mut self, slba: Lba, bytes: &[u8]) {
        let start = slba.0 as usize * self.block_len;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn equals(&self, slba: Lba, bytes: &[u8]) -> bool {
        let start = slba.0 as usize * self.block_len;
        self.bytes[start..start + bytes.len()] == *bytes
    }
}
