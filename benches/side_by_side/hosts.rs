//! The measured side: a process of its own, on the second processor.
//!
//! It prints `ready` when it is set up. For each line on its standard input it then measures one
//! slice: it prints `go` when it is warm and the time begins, and then a line with the result.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::names::crc32c;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{LoaderOptions, Prefetcher};
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::{ConnectOptions, Device, Direct, Io, IoOp, open};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::units::{Lba, SampleId};

use crate::counting_alloc::allocations_of_all_during;
use crate::opening;
use crate::slice::{Done, Slice};
use crate::stats::Random;
use crate::support::files::{list, read_file};
use crate::support::loaded::loaded;
use crate::support::raw::{Messages, RandomOffsets, receive};
use crate::support::{self, Options, Stopwatch};
use crate::targets::tls;

/// Runs the side given by `--side`.
pub(crate) fn run(side: &str, options: &Options) {
    if options.number("threads") == 1 {
        support::pin(HOST_CPU);
    }
    match side {
        "receive" => receive_raw(options),
        "read" => read_blocks(options),
        "samples" => read_samples(options, &open_image(options)),
        "memory" => read_samples(options, &memory_image(options)),
        "memcpy" => copy_and_check(options),
        "pread" => pread_samples(options),
        "pread-pieces" => pread_pieces(options),
        "files" => read_files(options),
        "first-batch" => first_batch(options),
        "account" => account(options),
        "idle" => idle(options),
        "open" => slices(|| measured(|| opening::open(Path::new(options.text("address"))))),
        _ => unreachable!("the bench names its own sides, '{side}' is none"),
    }
}

/// Calls `work`, which measures one slice, for each line of input.
fn slices(mut work: impl FnMut()) {
    println!("ready");
    for _ in std::io::stdin().lines() {
        work();
    }
}

/// Measures `work`, and prints the result.
fn measured(work: impl FnOnce() -> Done) {
    println!("go");
    let watch = Stopwatch::start();
    let (allocations, done) = allocations_of_all_during(work);
    let (wall_s, host_cpu_s) = watch.seconds();
    println!("{}", Slice { done, wall_s, host_cpu_s, target_cpu_s: None, allocations }.to_line());
}

fn limit(options: &Options) -> Duration {
    Duration::from_millis(options.number("slice-ms"))
}

// Raw TCP and raw blocks.

fn receive_raw(options: &Options) {
    let number = |name| options.number(name) as usize;
    let messages = Messages {
        len: number("len"),
        depth: number("depth"),
        ping_pong: options.is_set("ping-pong"),
        region_bytes: number("region"),
    };
    let port = options.number("address") as u16;
    slices(|| {
        let mut warm = None;
        let ops = receive(port, number("pool"), messages, limit(options), || {
            println!("go");
            warm = Some(Stopwatch::start());
        });
        let ops = ops.expect("loopback");
        let (wall_s, host_cpu_s) = warm.expect("called when warm").seconds();
        let done = Done { ops, bytes: ops * messages.len as u64, batches: 0 };
        let slice = Slice { done, wall_s, host_cpu_s, target_cpu_s: None, allocations: 0 };
        println!("{}", slice.to_line());
    });
}

fn read_blocks(options: &Options) {
    let len = options.number("len") as usize;
    let depth = options.number("depth") as usize;
    let pairs = options.number("queue-pairs") as usize;
    let connect = ConnectOptions {
        nr_io_queues: pairs as u16,
        queue_size: u16::try_from(depth.div_ceil(pairs) + 1)
            .expect("a depth that a queue can have"),
        hdr_digest: options.is_set("digests"),
        data_digest: options.is_set("digests"),
        direct: Direct::On,
        ..ConnectOptions::default()
    };
    let connect = if options.is_set("tls") {
        let (hostnqn, key) = tls();
        ConnectOptions { hostnqn: Some(hostnqn), tls_key: Some(key), ..connect }
    } else {
        connect
    };
    let address = options.text("address").parse().expect("an address of a target of this bench");
    let device = open(&address, &connect).expect("what this bench has started or made");
    let bytes = options.number("pool") as usize;
    let slot_len_bytes = len;
    let huge_pages = HugePages::Auto;
    let pool = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages }).expect("memory");
    let mut reader = Blocks::new(&*device, pool, len, depth, pairs);
    slices(|| {
        reader.read(WARM);
        measured(|| reader.read(limit(options)));
    });
}

/// Reads blocks at random addresses, `depth` reads at a time over all queue pairs.
struct Blocks {
    group: PollGroup,
    pool: Pool,
    offsets: RandomOffsets,
    block_len: u64,
    len: usize,
    depth_each: usize,
    pending: Vec<VecDeque<Io>>,
    busy: Vec<usize>,
}

impl Blocks {
    fn new(device: &dyn Device, pool: Pool, len: usize, depth: usize, pairs: usize) -> Blocks {
        let namespace = device.namespace();
        let mut group = PollGroup::new().expect("a poll group");
        for _ in 0..pairs {
            group.add(device.queue_pair().expect("a queue pair"));
        }
        group.use_pool(&pool);
        Blocks {
            group,
            pool,
            offsets: RandomOffsets::new(namespace.len_bytes() as usize, len),
            block_len: u64::from(namespace.block_len_bytes),
            len,
            depth_each: depth / pairs,
            pending: (0..pairs).map(|_| VecDeque::with_capacity(depth)).collect(),
            busy: vec![0; pairs],
        }
    }

    fn read(&mut self, limit: Duration) -> Done {
        let mut done = Vec::with_capacity(self.depth_each * self.busy.len());
        let end = Instant::now() + limit;
        let mut ops = 0u64;
        loop {
            let now = Instant::now();
            for pair in 0..self.busy.len() {
                while now < end && self.busy[pair] < self.depth_each {
                    let io = self.next_read();
                    self.pending[pair].push_back(io);
                    self.busy[pair] += 1;
                }
                self.group.submit(pair, &mut self.pending[pair]);
            }
            if self.busy.iter().all(|&busy| busy == 0) {
                return Done { ops, bytes: ops * self.len as u64, batches: 0 };
            }
            if self.group.poll(now, usize::MAX, &mut done) == 0 {
                self.group.wait(now + Duration::from_secs(1));
            }
            for (pair, completion) in done.drain(..) {
                completion.result.expect("a read");
                self.busy[pair] -= 1;
                ops += 1;
            }
        }
    }

    fn next_read(&mut self) -> Io {
        let slba = Lba(self.offsets.next() as u64 / self.block_len);
        let buf = self.pool.take(self.len).expect("a pool of more slots than the depth");
        Io { op: IoOp::Read, slba, buf, tag: 0 }
    }
}

// Samples.

fn open_image(options: &Options) -> Image {
    let address = options.text("address").parse().expect("an address of this bench");
    let connect = ConnectOptions { direct: Direct::Off, ..ConnectOptions::default() };
    let open = OpenOptions { connect, ..OpenOptions::default() };
    Image::open(&[address], &open).expect("the image that was imported")
}

fn memory_image(options: &Options) -> Image {
    let device = loaded(Path::new(options.text("address")));
    Image::from_devices(vec![Arc::new(device)], &OpenOptions::default()).expect("an image")
}

/// Consumes all batches.
fn take_all(loader: &mut Prefetcher, batch: &mut Batch) -> Done {
    let mut done = Done { ops: 0, bytes: 0, batches: 0 };
    while loader.next_into(batch).expect("samples") {
        done.ops += batch.len() as u64;
        done.bytes += batch.len_bytes();
        done.batches += 1;
    }
    done
}

fn loader(image: &Image, options: &Options, epochs: u64) -> Prefetcher {
    let kind = match options.text("order") {
        "global" => OrderKind::Global,
        _ => OrderKind::Grouped {
            lanes: options.number("lanes") as u32,
            group: options.number("group") as u32,
        },
    };
    let batch = options.number("batch") as usize;
    let mut how = LoaderOptions::new(OrderSpec { kind, seed: 7 }, batch, epochs);
    how.window_bytes = options.number("window") as usize;
    how.queue_pairs = options.number("queue-pairs") as usize;
    image.prefetcher(how).expect("a loader")
}

/// Reads samples for the length of a slice, after a warm-up; with `--epochs 1` one whole epoch
/// instead.
fn read_samples(options: &Options, image: &Image) {
    crate::set_unverified(options.is_set("without-checksums"));
    slices(|| {
        let mut batch = Batch::new();
        if options.number("epochs") > 0 {
            return measured(|| {
                take_all(&mut loader(image, options, options.number("epochs")), &mut batch)
            });
        }
        let mut loader = loader(image, options, MANY_EPOCHS);
        // After this many bytes every buffer of the window has been used once, and the thread that
        // faults the window in, here on the same processor, has finished.
        let warm_bytes = 4 * options.number("window");
        take_batches(&mut loader, &mut batch, WARM, warm_bytes);
        measured(|| take_batches(&mut loader, &mut batch, limit(options), 0));
    });
}

/// Consumes batches for `limit`, and until at least `bytes` have arrived.
fn take_batches(loader: &mut Prefetcher, batch: &mut Batch, limit: Duration, bytes: u64) -> Done {
    let end = Instant::now() + limit;
    let mut done = Done { ops: 0, bytes: 0, batches: 0 };
    while Instant::now() < end || done.bytes < bytes {
        assert!(loader.next_into(batch).expect("samples"), "there are epochs enough");
        done.ops += batch.len() as u64;
        done.bytes += batch.len_bytes();
        done.batches += 1;
    }
    done
}

/// Reads this many batches and exits, while another program counts.
fn account(options: &Options) {
    let image = open_image(options);
    let mut loader = loader(&image, options, MANY_EPOCHS);
    let mut batch = Batch::new();
    let batches = options.number("batches");
    let (allocations, ()) = allocations_of_all_during(|| {
        for _ in 0..batches {
            assert!(loader.next_into(&mut batch).expect("samples"), "there are epochs enough");
        }
    });
    println!("{allocations} {}", loader.stats().copied_bytes);
}

fn first_batch(options: &Options) {
    let image = open_image(options);
    slices(|| {
        measured(|| {
            let mut loader = loader(&image, options, MANY_EPOCHS);
            take_batches(&mut loader, &mut Batch::new(), Duration::ZERO, 1)
        });
    });
}

/// An open data set with queue pairs that has been read, and then is idle for a while.
fn idle(options: &Options) {
    let image = open_image(options);
    let mut reader = image.reader(ReaderOptions::default()).expect("a reader");
    reader.read_batch(&[SampleId(1)], &mut Batch::new()).expect("a sample");
    slices(|| {
        std::thread::sleep(WARM);
        measured(|| {
            std::thread::sleep(Duration::from_secs(3));
            Done { ops: 1, bytes: 0, batches: 0 }
        });
    });
}

// Other ways to read the same bytes.

/// Offsets and lengths of all samples, in shuffled order.
fn shuffled_samples(image: &Image) -> Vec<(u64, usize)> {
    let directory = image.directory();
    let ids = (0..directory.num_samples()).map(SampleId);
    let extents = ids.map(|id| directory.extent(id).expect("nothing was deleted"));
    let mut samples: Vec<(u64, usize)> =
        extents.map(|extent| (extent.offset_bytes, extent.len_bytes as usize)).collect();
    Random(7).shuffle(&mut samples);
    samples
}

/// Calls `read` for each sample in turn; checks the clock once per batch.
fn each_sample(
    samples: &[(u64, usize)],
    limit: Duration,
    mut read: impl FnMut(u64, usize),
) -> Done {
    let end = Instant::now() + limit;
    let mut done = Done { ops: 0, bytes: 0, batches: 0 };
    for batch in samples.chunks(256).cycle() {
        for &(offset, len) in batch {
            read(offset, len);
            done.bytes += len as u64;
        }
        done.ops += batch.len() as u64;
        done.batches += 1;
        if Instant::now() > end {
            break;
        }
    }
    done
}

/// The minimal loop: one thread, one buffer, one system call per sample, nothing verified.
fn pread_samples(options: &Options) {
    let samples = shuffled_samples(&open_image(options));
    let Ok(Address::Path(path)) = options.text("address").parse() else {
        unreachable!("this side is given a file")
    };
    let file = File::open(path).expect("an image that was imported");
    let mut buffer = vec![0u8; 1 << 20];
    let mut read = |offset, len| {
        file.read_exact_at(&mut buffer[..len], offset).expect("a sample");
        std::hint::black_box(&mut buffer);
    };
    slices(|| {
        each_sample(&samples, WARM, &mut read);
        measured(|| each_sample(&samples, limit(options), &mut read));
    });
}

/// Pieces of 256 KiB in shuffled order into a ring of the window's size, nothing verified: the cost
/// of copying this many bytes from the page cache into memory of this size.
fn pread_pieces(options: &Options) {
    const PIECE_LEN: usize = 256 << 10;
    let file = File::open(options.text("address")).expect("an image that was imported");
    let len = file.metadata().expect("its length").len();
    let mut samples: Vec<(u64, usize)> =
        (0..len / PIECE_LEN as u64).map(|piece| (piece * PIECE_LEN as u64, PIECE_LEN)).collect();
    Random(7).shuffle(&mut samples);
    let mut ring = buffer(options.number("window") as usize);
    let mut at = 0;
    let mut read = |offset, len| {
        file.read_exact_at(&mut ring[at..at + len], offset).expect("a piece");
        at = (at + len) % ring.len();
    };
    slices(|| {
        each_sample(&samples, WARM, &mut read);
        measured(|| {
            let done = each_sample(&samples, limit(options), &mut read);
            Done { ops: done.bytes / 4096, ..done }
        });
    });
}

/// Opens, reads and closes files in shuffled order, with one thread or several; with `--epochs 1`
/// each of them once, otherwise for the length of a slice.
fn read_files(options: &Options) {
    let mut files = Vec::new();
    list(Path::new(options.text("address")), &mut files);
    files.sort_unstable();
    Random(7).shuffle(&mut files);
    let threads = options.number("threads") as usize;
    let limit = match options.number("epochs") {
        0 => limit(options),
        _ => Duration::MAX,
    };
    slices(|| {
        measured(|| {
            std::thread::scope(|scope| {
                let files = &files;
                let share = |thread| move || read_share(files, thread, threads, limit);
                let workers: Vec<_> = (0..threads).map(|t| scope.spawn(share(t))).collect();
                let none = Done { ops: 0, bytes: 0, batches: 0 };
                workers.into_iter().fold(none, |sum, worker| {
                    let done = worker.join().expect("a reader of files");
                    Done { ops: sum.ops + done.ops, bytes: sum.bytes + done.bytes, batches: 0 }
                })
            })
        });
    });
}

/// One thread's share: every `step`-th file.
fn read_share(files: &[PathBuf], first: usize, step: usize, limit: Duration) -> Done {
    let start = Instant::now();
    let mut buffer = vec![0u8; 1 << 20];
    let mut done = Done { ops: 0, bytes: 0, batches: 0 };
    let once = limit == Duration::MAX;
    loop {
        for path in files.iter().skip(first).step_by(step) {
            done.bytes += read_file(path, &mut buffer) as u64;
            done.ops += 1;
            if !once && start.elapsed() > limit {
                return done;
            }
        }
        if once {
            return done;
        }
    }
}

/// Copies each sample from a region of the namespace's size into a ring of the window's size, and
/// computes the checksum of the copy.
fn copy_and_check(options: &Options) {
    let path = options.text("address");
    let samples = shuffled_samples(&open_image(options));
    let pieces = region(Path::new(path));
    let mut ring = buffer(options.number("window") as usize);
    let mut at = 0;
    let mut sum = 0u32;
    let mut read = |offset: u64, len: usize| {
        let piece = offset as usize / PIECE;
        let start = offset as usize % PIECE;
        let head = len.min(PIECE - start);
        let copy = &mut ring[at..at + len];
        copy[..head].copy_from_slice(&pieces[piece][start..start + head]);
        if head < len {
            copy[head..].copy_from_slice(&pieces[piece + 1][..len - head]);
        }
        sum ^= crc32c(copy);
        at = (at + len) % (ring.len() - PIECE);
    };
    slices(|| {
        each_sample(&samples, WARM, &mut read);
        measured(|| each_sample(&samples, limit(options), &mut read));
    });
    std::hint::black_box(sum);
}

/// The file's bytes, in the same kind of memory as that of a memory namespace.
fn region(path: &Path) -> Vec<IoBuf> {
    let file = File::open(path).expect("an image that was imported");
    let len = file.metadata().expect("its length").len() as usize;
    let bytes = len.next_multiple_of(PIECE);
    let options = PoolOptions { bytes, slot_len_bytes: PIECE, huge_pages: HugePages::Auto };
    let pool = Pool::new(options).expect("memory for the region");
    let piece = |offset: usize| {
        let mut piece = pool.take(PIECE).expect("as many slots as pieces");
        let count = PIECE.min(len - offset);
        file.read_exact_at(&mut piece[..count], offset as u64).expect("a whole image");
        piece
    };
    (0..len).step_by(PIECE).map(piece).collect()
}

fn buffer(len: usize) -> IoBuf {
    let options = PoolOptions { bytes: len, slot_len_bytes: PIECE, huge_pages: HugePages::Auto };
    Pool::new(options).expect("memory").take(len).expect("all of the pool")
}

/// More than any slice reads.
const MANY_EPOCHS: u64 = 1 << 20;
/// The warm-up before each slice: connections and memory are warm after it.
const WARM: Duration = Duration::from_millis(100);
const PIECE: usize = 1 << 20;
/// The processor of hosts and receivers, as an index into those that the bench may use.
pub(crate) const HOST_CPU: usize = 1;
