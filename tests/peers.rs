//! Nodes of a job that read from each other's caches: real targets and real connections, in one process.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::nvme::Address;
use dlfs::order::{EpochOrder, OrderKind, OrderSpec, Positions, Sharding, State};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{PeerOptions, PeerStats, live_page_bytes};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::tier::{PAGE_BYTES, Policy};
use dlfs::units::{Epoch, Nsid, SampleId};
use support::random::Random;

/// An image behind a target, and the bytes of its samples by id.
struct Origin {
    temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
    target: Target,
}

impl Origin {
    fn new(seed: u64, num_samples: usize, most_bytes: u64) -> Origin {
        println!("seed {seed}");
        let temp = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let source = temp.path().join("source");
        fs::create_dir(&source).unwrap();
        let samples: Vec<Vec<u8>> = (0..num_samples)
            .map(|nth| {
                let mut bytes = vec![0; random.below(most_bytes) as usize + 1];
                random.fill(&mut bytes);
                fs::write(source.join(format!("{nth:05}")), &bytes).unwrap();
                bytes
            })
            .collect();
        let image = Address::from_path(temp.path().join("train.dlfs"));
        let options = ImportOptions { chunk_size_bytes: 128 << 10, ..ImportOptions::default() };
        let connect = ConnectOptions::default();
        import(&[source], std::slice::from_ref(&image), &options, &connect, &mut ()).unwrap();
        let device = qpair::open(&image, &connect).unwrap();
        let nqn = "nqn.2026-11.io.dlfs:origin".parse().unwrap();
        let target = Target::bind(TargetOptions::new(nqn), vec![device]).unwrap();
        Origin { temp, samples, target }
    }

    /// Bytes of pages with samples.
    fn data_bytes(&self) -> u64 {
        let image = self.open(None);
        live_page_bytes(image.directory()).iter().sum()
    }

    /// The image over the network, with `tier` in front.
    fn open(&self, tier: Option<&str>) -> Image {
        let tiers = tier.map(|tier| tier.parse().unwrap());
        let tiers = TierOptions {
            tiers: tiers.into_iter().collect(),
            policy: Policy::FirstTouch,
            ..TierOptions::default()
        };
        let options = OpenOptions { tiers, ..OpenOptions::default() };
        Image::open(&[self.target.address(Nsid(1))], &options).unwrap()
    }

    fn rendezvous(&self) -> &Path {
        self.temp.path()
    }

    /// The folder of a node's tier.
    fn tier(&self, rank: u32) -> PathBuf {
        self.temp.path().join(format!("tier-{rank}"))
    }
}

/// A node of one rank.
struct Node {
    rank: u32,
    image: Image,
    order: OrderKind,
    sharding: Sharding,
}

/// `num` nodes whose tiers, each in a folder of its own, together have room for `share` of the data.
fn nodes(origin: &Origin, num: u32, share: f64) -> Vec<Node> {
    nodes_with(origin, num, share, (OrderKind::Global, Sharding::Strided))
}

fn nodes_with(origin: &Origin, num: u32, share: f64, how: (OrderKind, Sharding)) -> Vec<Node> {
    let room_bytes = (origin.data_bytes() as f64 * share) as u64 / u64::from(num);
    let room_bytes = room_bytes.next_multiple_of(PAGE_BYTES);
    (0..num).for_each(|rank| fs::create_dir(origin.tier(rank)).unwrap());
    let tier = |rank| format!("file:{}:{room_bytes}", origin.tier(rank).display());
    thread::scope(|scope| {
        let joining: Vec<_> = (0..num)
            .map(|rank| {
                let tier = tier(rank);
                scope.spawn(move || join(origin, (rank, num), &tier, how))
            })
            .collect();
        joining.into_iter().map(|joined| joined.join().unwrap()).collect()
    })
}

fn join(
    origin: &Origin,
    (rank, world_size): (u32, u32),
    tier: &str,
    (order, sharding): (OrderKind, Sharding),
) -> Node {
    let options = PeerOptions {
        round: "start".to_owned(),
        rank,
        world_size,
        listen: "127.0.0.1:0".parse().unwrap(),
        node: Some(format!("node {rank}")),
        keep_shares: false,
        timeout: Duration::from_secs(30),
        connect: ConnectOptions::default(),
    };
    let mut folder = Folder::new(origin.rendezvous(), "start").unwrap();
    let image = origin.open(Some(tier));
    let run = LoaderOptions { sharding, ..run(rank, world_size, 0..1) };
    let image = image.with_peers(&options, &run, &mut folder).unwrap();
    Node { rank, image, order, sharding }
}

fn run(rank: u32, world_size: u32, epochs: std::ops::Range<u64>) -> LoaderOptions {
    let order = OrderSpec { kind: OrderKind::Global, seed: 4 };
    LoaderOptions {
        epochs,
        rank,
        world_size,
        window_bytes: 4 << 20,
        ..LoaderOptions::new(order, 16, 1)
    }
}

impl Node {
    fn stats(&self) -> PeerStats {
        self.image.peers().unwrap().stats()
    }

    /// Reads `epochs` of its share and compares each sample; returns the ids. `each` is called after each batch.
    fn read(
        &self,
        origin: &Origin,
        world_size: u32,
        epochs: std::ops::Range<u64>,
        each: impl FnMut(u64),
    ) -> Vec<u64> {
        self.read_from(origin, self.options(world_size, epochs), each)
    }

    fn options(&self, world_size: u32, epochs: std::ops::Range<u64>) -> LoaderOptions {
        let options = run(self.rank, world_size, epochs);
        let order = OrderSpec { kind: self.order, ..options.order };
        LoaderOptions { order, sharding: self.sharding, ..options }
    }

    fn read_from(
        &self,
        origin: &Origin,
        options: LoaderOptions,
        mut each: impl FnMut(u64),
    ) -> Vec<u64> {
        let mut prefetcher = self.image.prefetcher(options).unwrap();
        let (mut ids, mut batches) = (Vec::new(), 0);
        while let Some(batch) = prefetcher.next() {
            let batch = batch.unwrap();
            for sample in batch.iter() {
                assert!(
                    sample.bytes == origin.samples[sample.id.0 as usize],
                    "sample {}",
                    sample.id
                );
            }
            ids.extend(batch.ids().map(|id| id.0));
            batches += 1;
            each(batches);
        }
        ids
    }
}

/// All nodes read `epochs`; every sample comes once an epoch.
fn read_all(origin: &Origin, nodes: &[Node], epochs: std::ops::Range<u64>) {
    let num = nodes.len() as u32;
    let mut ids: Vec<u64> = thread::scope(|scope| {
        let reading: Vec<_> = nodes
            .iter()
            .map(|node| {
                let epochs = epochs.clone();
                scope.spawn(move || node.read(origin, num, epochs, |_| {}))
            })
            .collect();
        reading.into_iter().flat_map(|read| read.join().unwrap()).collect()
    });
    ids.sort_unstable();
    let each = (epochs.end - epochs.start) as usize;
    let expected: Vec<u64> =
        (0..origin.samples.len() as u64).flat_map(|id| std::iter::repeat_n(id, each)).collect();
    assert!(ids == expected, "{} samples, not {}", ids.len(), expected.len());
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "waited for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn after_the_first_epoch_no_byte_comes_from_the_origin() {
    let origin = Origin::new(31, 1_500, 20_000);
    let nodes = nodes(&origin, 4, 1.3);
    let served = || origin.target.stats().read_bytes;
    let before = served();
    read_all(&origin, &nodes, 0..1);
    let first = served() - before;
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    let before = served();
    read_all(&origin, &nodes, 1..4);
    let later = served() - before;
    let data = origin.data_bytes();
    println!(
        "first epoch {:.3} of the data from the origin, later ones {:.3} each",
        first as f64 / data as f64,
        later as f64 / data as f64 / 3.
    );
    let from_peers: u64 =
        nodes.iter().flat_map(|node| node.stats().nodes).map(|node| node.bytes).sum();
    println!("{:.3} of what was read came from peers", from_peers as f64 / data as f64 / 4.);
    assert!(from_peers > data * 2, "three of four bytes are held elsewhere");
    assert!(first * 100 <= data * 105, "each byte once: {first} of {data}");
    assert!(later * 100 <= data * 3, "at most 1 % an epoch: {later} of {data}");
}

/// Samples of epoch 1 that each node reads, by node.
fn of_epoch_1(origin: &Origin, nodes: &[Node], consumed: u64) -> Vec<Vec<u64>> {
    let num = nodes.len() as u32;
    let read = |node: &Node| {
        let options = node.options(num, 1..2);
        let directory = node.image.directory();
        let start = State::start(directory.uuid().0, directory.generation(), options.order);
        let state = State { epoch: Epoch(1), consumed, ..start };
        let resume = Some(State { order: options.order.started(num), ..state });
        node.read_from(origin, LoaderOptions { resume, ..options }, |_| {})
    };
    thread::scope(|scope| {
        let reading: Vec<_> = nodes.iter().map(|node| scope.spawn(|| read(node))).collect();
        reading.into_iter().map(|read| read.join().unwrap()).collect()
    })
}

/// The samples of each global batch of 16 for each of `num` ranks, sorted, from what each rank has read.
fn global_batches(read: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let steps = read.iter().map(|ids| ids.len().div_ceil(16)).max().unwrap();
    let of_step = |step: usize| {
        let batches = read.iter().map(|ids| ids.chunks(16).nth(step).unwrap_or_default());
        let mut ids = batches.collect::<Vec<_>>().concat();
        ids.sort_unstable();
        ids
    };
    (0..steps).map(of_step).collect()
}

#[test]
fn local_shares_leave_the_global_batches_and_little_crosses_after_the_first_epoch() {
    // A grouped order draws a batch from few chunks, which nodes hold less evenly than all chunks.
    let grouped = OrderKind::Grouped { lanes: 8, group: 4 };
    for (order, most) in [(OrderKind::Global, 0.2), (grouped, 0.3)] {
        let origin = Origin::new(34, 1_500, 20_000);
        let nodes = nodes_with(&origin, 4, 1.3, (order, Sharding::Local));
        let crossed = || -> u64 {
            nodes.iter().flat_map(|node| node.stats().nodes).map(|node| node.bytes).sum()
        };
        read_all(&origin, &nodes, 0..1);
        wait_until("all copies", || {
            nodes.iter().all(|node| node.image.tiers().unwrap().is_settled())
        });
        let (before, served) = (crossed(), origin.target.stats().read_bytes);
        let read = of_epoch_1(&origin, &nodes, 0);
        let (later, served) = (crossed() - before, origin.target.stats().read_bytes - served);
        let data = origin.data_bytes();
        let moved = later as f64 / data as f64;
        println!("{order:?}: {before} of {data} bytes crossed in the first epoch, {later} later");
        assert!(moved < most, "{moved} of the data crossed; strided shares move three quarters");
        assert!(served * 100 <= data * 3, "{served} of {data} came from the origin");

        let directory = nodes[0].image.directory();
        let spec = nodes[0].options(4, 0..2).order;
        let mut strided = Vec::new();
        let mut sequence = EpochOrder::new(&spec, Epoch(1), &**directory).unwrap();
        sequence.ids(&**directory, Positions::from(0..1_500), &mut strided);
        let expected = strided.chunks(64).map(|batch: &[SampleId]| {
            let mut ids: Vec<u64> = batch.iter().map(|id| id.0).collect();
            ids.sort_unstable();
            ids
        });
        let expected: Vec<Vec<u64>> = expected.collect();
        assert_eq!(global_batches(&read), expected);
        assert!(read.iter().all(|ids| ids.len() == 375));
        // The same nodes take up the run after five global batches.
        let resumed = of_epoch_1(&origin, &nodes, 5 * 64);
        for (resumed, read) in resumed.iter().zip(&read) {
            assert_eq!(resumed[..], read[5 * 16..]);
        }
    }
}

#[test]
fn local_shares_without_peers_are_refused_with_the_reason() {
    let origin = Origin::new(35, 100, 20_000);
    let options = LoaderOptions { sharding: Sharding::Local, ..run(0, 1, 0..1) };
    let error = origin.open(None).prefetcher(options.clone()).map(drop).unwrap_err();
    assert!(error.to_string().contains("without peers"), "{error}");
    let nodes = nodes_with(&origin, 2, 1.3, (OrderKind::Global, Sharding::Local));
    let three = LoaderOptions { world_size: 3, ..options };
    let error = nodes[0].image.prefetcher(three).map(drop).unwrap_err();
    assert!(error.to_string().contains("2 ranks have joined"), "{error}");
    let own = OrderKind::Local { world_size: 2 };
    let order = OrderSpec { kind: own, seed: 4 };
    let own = LoaderOptions { order, ..nodes[0].options(2, 0..1) };
    let error = nodes[0].image.prefetcher(own).map(drop).unwrap_err();
    assert!(error.to_string().contains("samples of its own"), "{error}");
}

#[test]
fn a_node_that_ends_fails_no_batch_of_others() {
    let origin = Origin::new(32, 1_500, 20_000);
    let mut nodes = nodes(&origin, 4, 1.3);
    let last = nodes.pop().unwrap();
    thread::scope(|scope| {
        let (end, ended) = crossbeam::channel::bounded(3);
        for node in &nodes {
            let (end, origin) = (end.clone(), &origin);
            scope.spawn(move || {
                let ids = node.read(origin, 4, 0..4, |batches| {
                    if batches == 30 {
                        end.send(()).unwrap();
                    }
                });
                assert_eq!(ids.len(), 1_500 / 4 * 4);
            });
        }
        (0..3).for_each(|_| ended.recv().unwrap());
        drop(last);
    });
    let rerouted: u64 = nodes.iter().map(|node| node.stats().rerouted_bytes).sum();
    println!("{rerouted} bytes went elsewhere");
    assert!(rerouted > 0);
}

#[test]
fn wrong_bytes_from_a_peer_are_never_delivered() {
    let origin = Origin::new(33, 1_000, 20_000);
    let nodes = nodes(&origin, 3, 3.);
    read_all(&origin, &nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    // Every copy on node 2 is damaged, where it lies.
    let file = fs::read_dir(origin.tier(2)).unwrap().next().unwrap().unwrap().path();
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let len = file.metadata().unwrap().len();
    for page in (16..len / PAGE_BYTES).map(|page| page * PAGE_BYTES) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, page + 77).unwrap();
        file.write_all_at(&[!byte[0]], page + 77).unwrap();
    }
    read_all(&origin, &nodes, 1..3);
    let mismatched: u64 = nodes.iter().map(|node| node.stats().mismatched_bytes).sum();
    println!("{mismatched} bytes differed, none was delivered");
    assert!(mismatched > 0);
}
