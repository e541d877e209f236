//! Nodes of a job that read from each other's caches: real targets and real connections, in one process.

mod flips;
mod idle;
mod keys;
mod refill;
mod reports;
mod slow;
mod spare;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::import_support::wire::Wire;
use crate::support::ports::bind_again;
use crate::support::random::Random;
use crate::support::raw_host::RawHost;
use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::nvme::identify::IdentifyNamespace;
use dlfs::nvme::sqe::cns;
use dlfs::nvme::{Cc, ConnectData, Nqn, Property, Sqe};
use dlfs::order::{EpochOrder, OrderKind, OrderSpec, Sharding, State};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{Pass, PeerKeys, PeerOptions, PeerStats, Serving, live_page_bytes};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::tier::{PAGE_BYTES, Policy};
use dlfs::units::{Epoch, Nsid, SampleId};

/// An image behind a target, and the bytes of its samples by id.
struct Origin {
    temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
    target: Target,
    /// The most that the copiers of the nodes read, in bytes a second each.
    copier_bytes_per_s: Option<u64>,
    /// The nodes' answer to requests for data that they lack.
    serving: Serving,
    /// The network between the nodes and the target, if a test disturbs it.
    wire: Option<Wire>,
    /// How the nodes prove themselves to each other.
    keys: Option<PeerKeys>,
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
        let nqn = NQN.parse().unwrap();
        let target = Target::bind(TargetOptions::new(nqn), vec![device]).unwrap();
        let copier_bytes_per_s = None;
        let serving = Serving::ReadThrough;
        let wire = None;
        Origin { temp, samples, target, copier_bytes_per_s, serving, wire, keys: None }
    }

    fn peer_options(&self, rank: u32, world_size: u32) -> PeerOptions {
        PeerOptions {
            round: "start".to_owned(),
            rank,
            world_size,
            listen: "127.0.0.1:0".parse().unwrap(),
            node: Some(format!("node {rank}")),
            serving: self.serving,
            keep_shares: false,
            timeout: Duration::from_secs(60),
            connect: ConnectOptions { hostnqn: Some(hostnqn()), ..ConnectOptions::default() },
            keys: self.keys.clone(),
        }
    }

    /// The image on a node that has joined with `options`.
    fn try_join(&self, options: &PeerOptions, tier: &str) -> dlfs::Result<Image> {
        let mut folder = Folder::new(self.rendezvous(), "start").unwrap();
        let image = self.open_on(options.node.clone(), Some(tier));
        image.with_peers(options, None, &mut folder)
    }

    /// Bytes of pages with samples.
    fn data_bytes(&self) -> u64 {
        let image = self.open(None);
        live_page_bytes(image.directory()).iter().sum()
    }

    /// The image over the network, with `tier` in front.
    fn open(&self, tier: Option<&str>) -> Image {
        self.open_on(None, tier)
    }

    /// The same on a node of this name.
    fn open_on(&self, node: Option<String>, tier: Option<&str>) -> Image {
        let tiers = tier.map(|tier| tier.parse().unwrap());
        let tiers = TierOptions {
            tiers: tiers.into_iter().collect(),
            policy: match self.serving {
                Serving::Planned => Policy::Clairvoyant,
                _ => Policy::FirstTouch,
            },
            bandwidth_bytes_per_s: self.copier_bytes_per_s,
            node,
            ..TierOptions::default()
        };
        let options = OpenOptions { tiers, ..OpenOptions::default() };
        let address = match &self.wire {
            None => self.target.address(Nsid(1)),
            Some(wire) => format!("nvme-tcp://{}/{NQN}", wire.address()).parse().unwrap(),
        };
        Image::open(&[address], &options).unwrap()
    }

    fn rendezvous(&self) -> &Path {
        self.temp.path()
    }

    /// The folder of a node's tier.
    fn tier(&self, rank: u32) -> PathBuf {
        self.temp.path().join(format!("tier-{rank}"))
    }
}

const NQN: &str = "nqn.2026-11.io.dlfs:origin";

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
    (0..num).for_each(|rank| fs::create_dir(origin.tier(rank)).unwrap());
    let room_bytes = room_of_each(origin, num, share);
    nodes_on(origin, num, how, |rank| format!("file:{}:{room_bytes}", origin.tier(rank).display()))
}

/// The room of each of `num` tiers that together have room for `share` of the data.
fn room_of_each(origin: &Origin, num: u32, share: f64) -> u64 {
    let room_bytes = (origin.data_bytes() as f64 * share) as u64 / u64::from(num);
    room_bytes.next_multiple_of(PAGE_BYTES)
}

/// Nodes with these tiers.
fn nodes_on(
    origin: &Origin,
    num: u32,
    how: (OrderKind, Sharding),
    tier: impl Fn(u32) -> String,
) -> Vec<Node> {
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
    let options = origin.peer_options(rank, world_size);
    let mut folder = Folder::new(origin.rendezvous(), "start").unwrap();
    let image = origin.open_on(options.node.clone(), Some(tier));
    let run = LoaderOptions { sharding, ..run(rank, world_size, 0..1) };
    let image = image.with_peers(&options, &run, &mut folder).unwrap();
    Node { rank, image, order, sharding }
}

/// The host NQN of all nodes.
fn hostnqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:node").unwrap()
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

    /// The address at which it serves its peers.
    fn address(&self) -> std::net::SocketAddr {
        self.image.peers().unwrap().round().records()[self.rank as usize].addresses[0]
    }

    /// Bytes of the pages that its tier has.
    fn held_bytes(&self) -> u64 {
        self.image.tiers().unwrap().stats().tiers[0].held_bytes
    }

    /// The chunks that `node` holds.
    fn chunks_of(&self, node: u32) -> Vec<u32> {
        let peers = self.image.peers().unwrap();
        let index = Some(peers.round().node_of(node));
        let chunks = 0..self.image.directory().num_chunks();
        chunks.filter(|&chunk| peers.holders().holder(chunk) == index).collect()
    }

    /// Ids of the samples of `chunks`.
    fn ids_in(&self, chunks: &[u32]) -> Vec<SampleId> {
        let directory = self.image.directory();
        chunks.iter().flat_map(|&c| directory.samples_in_chunk(c)).map(|(id, _)| id).collect()
    }

    /// Reads samples by id and compares each.
    fn read_ids(&self, origin: &Origin, ids: &[SampleId]) {
        let mut reader = self.image.reader(ReaderOptions::default()).unwrap();
        let mut batch = Batch::new();
        for some in ids.chunks(64) {
            reader.read_batch(some, &mut batch).unwrap();
            for sample in batch.iter() {
                let expected = &origin.samples[sample.id.0 as usize];
                assert!(sample.bytes == expected, "sample {}", sample.id);
            }
        }
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
        let mut ids = Vec::new();
        let mut batches = 0;
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

/// Waits until a number is the same at 150 looks in a row: a stall of this process counts as one of them.
fn wait_until_still(what: &str, number: impl Fn() -> u64) {
    let mut last = number();
    let mut looks = 0;
    wait_until(what, || {
        let now = number();
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
        looks >= 150
    });
}

/// Measures until it is right, a few times. A peer without progress for a second is left, and the origin read instead,
/// which a busy machine makes happen, too.
fn measured<T>(mut measure: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) -> T {
    let mut found = measure();
    for _ in 0..9 {
        if is_right(&found) {
            break;
        }
        found = measure();
    }
    found
}

#[test]
fn after_the_first_epoch_no_byte_comes_from_the_origin() {
    let is_right = |&[first, later, from_peers, data]: &[u64; 4]| {
        from_peers > data * 2 && first * 100 <= data * 105 && later * 100 <= data * 3
    };
    let [first, later, from_peers, data] = measured(of_four_epochs, is_right);
    assert!(from_peers > data * 2, "three of four bytes are held elsewhere");
    assert!(first * 100 <= data * 105, "each byte once: {first} of {data}");
    assert!(later * 100 <= data * 3, "at most 1 % an epoch: {later} of {data}");
}

/// Bytes that four nodes read from the origin in the first epoch and in three later ones, from peers, and of the data.
fn of_four_epochs() -> [u64; 4] {
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
    [first, later, from_peers, data]
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
        let first = crossed();
        let data = origin.data_bytes();
        let measure = || {
            let before = crossed();
            let served = origin.target.stats().read_bytes;
            let read = of_epoch_1(&origin, &nodes, 0);
            (read, crossed() - before, origin.target.stats().read_bytes - served)
        };
        let (read, later, served) = measured(measure, |(.., served)| served * 100 <= data * 3);
        let moved = later as f64 / data as f64;
        println!("{order:?}: {first} of {data} bytes crossed in the first epoch, {later} later");
        assert!(moved < most, "{moved} of the data crossed; strided shares move three quarters");
        assert!(served * 100 <= data * 3, "{served} of {data} came from the origin");

        let directory = nodes[0].image.directory();
        let spec = nodes[0].options(4, 0..2).order;
        let mut strided = Vec::new();
        let mut sequence = EpochOrder::new(&spec, Epoch(1), &**directory).unwrap();
        sequence.ids(&**directory, 0..1_500, &mut strided);
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
        let (end, ended) = crossbeam_channel::bounded(3);
        let (gone, is_gone) = crossbeam_channel::bounded::<()>(0);
        for node in &nodes {
            let end = end.clone();
            let is_gone = is_gone.clone();
            let origin = &origin;
            scope.spawn(move || {
                let ids = node.read(origin, 4, 0..4, |batches| {
                    if batches == 30 {
                        end.send(()).unwrap();
                    } else if batches == 40 {
                        is_gone.recv().unwrap_err(); // much is left to be read without it
                    }
                });
                assert_eq!(ids.len(), 1_500 / 4 * 4);
            });
        }
        (0..3).for_each(|_| ended.recv().unwrap());
        drop(last);
        drop(gone);
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
    let read = || {
        read_all(&origin, &nodes, 1..3);
        nodes.iter().map(|node| node.stats().mismatched_bytes).sum::<u64>()
    };
    let mismatched = measured(read, |&mismatched| mismatched > 0);
    println!("{mismatched} bytes differed, none was delivered");
    assert!(mismatched > 0);
}

#[test]
fn a_node_keeps_room_for_the_chunks_that_it_holds() {
    let origin = Origin::new(34, 1_500, 20_000);
    let mut nodes = nodes(&origin, 2, 1.4);
    drop(nodes.pop());
    let node = &nodes[0];
    let served = || origin.target.stats().read_bytes;
    // Alone it reads what the other one held, too.
    node.read(&origin, 1, 0..1, |_| {});
    let tiers = node.image.tiers().unwrap();
    wait_until("all copies", || tiers.is_settled());
    let of_chunk = live_page_bytes(node.image.directory());
    let own = node.chunks_of(0);
    let own_bytes: u64 = own.iter().map(|&chunk| of_chunk[chunk as usize]).sum();
    let data = origin.data_bytes();
    println!("{} of {data} bytes kept, {own_bytes} of them its own", node.held_bytes());
    assert!(node.held_bytes() > own_bytes + data / 20, "the rest of the room is used");
    let before = served();
    node.read_ids(&origin, &node.ids_in(&own));
    let again = served() - before;
    assert!(again * 100 <= own_bytes, "{again} of {own_bytes} bytes came from the origin again");
}

#[test]
fn copies_that_others_hold_now_make_room() {
    let origin = Origin::new(35, 1_500, 20_000);
    let data = origin.data_bytes();
    fs::create_dir(origin.tier(0)).unwrap();
    let tier = format!("file:{}:{}", origin.tier(0).display(), data * 7 / 10);
    // An earlier run alone filled the tier.
    let order = OrderKind::Global;
    let sharding = Sharding::Strided;
    let alone = Node { rank: 0, image: origin.open(Some(&tier)), order, sharding };
    alone.read(&origin, 1, 0..1, |_| {});
    wait_until("all copies", || alone.image.tiers().unwrap().is_settled());
    assert!(alone.held_bytes() * 10 > data * 6);
    drop(alone);
    fs::create_dir(origin.tier(1)).unwrap();
    let other = format!("file:{}:{}", origin.tier(1).display(), data * 7 / 10);
    let nodes: Vec<Node> = thread::scope(|scope| {
        let joining: Vec<_> = [tier, other]
            .into_iter()
            .zip(0..)
            .map(|(tier, rank)| {
                let origin = &origin;
                scope.spawn(move || {
                    join(origin, (rank, 2), &tier, (OrderKind::Global, Sharding::Strided))
                })
            })
            .collect();
        joining.into_iter().map(|joined| joined.join().unwrap()).collect()
    });
    read_all(&origin, &nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    let read = || {
        let before = origin.target.stats().read_bytes;
        read_all(&origin, &nodes, 1..3);
        origin.target.stats().read_bytes - before
    };
    let later = measured(read, |later| later * 100 <= data * 2 * 3);
    println!("{:.3} of the data an epoch from the origin", later as f64 / data as f64 / 2.);
    assert!(later * 100 <= data * 2 * 3, "{later} of {data} bytes");
}

#[test]
fn the_rest_of_a_chunk_is_fetched_behind_its_first_reader() {
    let origin = Origin::new(36, 600, 20_000);
    let nodes = nodes(&origin, 2, 3.);
    let chunk = nodes[0].chunks_of(1)[0];
    let ids = nodes[0].ids_in(&[chunk]);
    let live = live_page_bytes(nodes[0].image.directory())[chunk as usize];
    let served = || origin.target.stats().read_bytes;
    let before = served();
    nodes[0].read_ids(&origin, &ids[..1]);
    wait_until("the chunk", || nodes[1].held_bytes() >= live);
    assert_eq!(nodes[1].held_bytes(), live, "nothing else");
    nodes[0].read_ids(&origin, &ids);
    assert_eq!(nodes[0].held_bytes(), 0, "it is not kept twice");
    assert_eq!(served() - before, live, "each page once, neither header nor gaps");
}

#[test]
fn nodes_that_serve_only_copies_fetch_them_by_themselves() {
    let origin = Origin {
        copier_bytes_per_s: Some(1 << 20),
        serving: Serving::CopiesOnly,
        ..Origin::new(37, 1_000, 20_000)
    };
    let nodes = nodes(&origin, 3, 1.3);
    // At first much is absent, and every node reads it from the origin itself.
    read_all(&origin, &nodes, 0..1);
    let data = origin.data_bytes();
    let held = || nodes.iter().map(Node::held_bytes).sum::<u64>();
    let absent = || nodes.iter().map(|node| node.stats().not_there_bytes).sum::<u64>();
    assert!(absent() > 0, "nothing was absent");
    // Copies of what others hold count, too, so their number alone does not say when all are there.
    wait_until_still("all copies", held);
    let at_first = absent();
    let read = || {
        let before = origin.target.stats().read_bytes;
        read_all(&origin, &nodes, 1..3);
        origin.target.stats().read_bytes - before
    };
    let later = measured(read, |later| later * 100 <= data * 2 * 3);
    println!("{at_first} bytes were absent at first, {later} of {data} read again");
    assert!(later * 100 <= data * 2 * 3, "{later} of {data} bytes");
    assert!(absent() - at_first <= data / 50, "what is there is served");
    // Another process of a rank knows the mode, too.
    let pass = nodes[0].image.peers().unwrap().pass().to_json();
    let pass = Pass::from_json(&pass).unwrap();
    assert_eq!(pass.serving(), Serving::CopiesOnly);
    let from_peers: u64 =
        nodes.iter().flat_map(|node| node.stats().nodes).map(|node| node.bytes).sum();
    assert!(from_peers > data, "two of three bytes are held elsewhere");
}

#[test]
fn nodes_serve_what_the_plan_of_the_run_keeps() {
    let origin = Origin { serving: Serving::Planned, ..Origin::new(43, 1_000, 20_000) };
    let nodes = nodes(&origin, 3, 1.0);
    // Before a run there is no plan, so nobody is asked.
    nodes[0].read_ids(&origin, &[SampleId(7)]);
    assert_eq!(nodes[0].stats().not_there_reads, 0);
    read_all(&origin, &nodes, 0..4);
    let not_there = || nodes.iter().map(|node| node.stats().not_there_reads).sum::<u64>();
    let from_peers =
        || -> u64 { nodes.iter().flat_map(|node| node.stats().nodes).map(|node| node.bytes).sum() };
    let absent = || nodes.iter().map(|node| node.stats().not_there_bytes).sum::<u64>();
    println!("{} wrong guesses while copies were made, of {} bytes", not_there(), absent());
    assert_eq!(not_there() > 0, absent() > 0);
    let held = || nodes.iter().map(Node::held_bytes).sum::<u64>();
    wait_until_still("all copies", held);
    // Now the planned copies are there, and the plan stays.
    let absent_before = absent();
    let peers_before = from_peers();
    let served = origin.target.stats().read_bytes;
    let all: Vec<SampleId> = (0..1_000).map(SampleId).collect();
    nodes.iter().for_each(|node| node.read_ids(&origin, &all));
    let crossed = from_peers() - peers_before;
    let data = origin.data_bytes();
    let absent = absent() - absent_before;
    let served = origin.target.stats().read_bytes - served;
    println!(
        "{crossed} of 3 * {data} bytes came from peers, {absent} were absent, {served} from the origin"
    );
    assert!(crossed > data / 2, "each node reads what others keep from them");
    // A tier may lack room for a page at the border of two units.
    assert!(absent * 50 <= crossed, "{absent} bytes by wrong guesses");
    // By frequency some samples are kept several times, and others nowhere.
    assert!(served > 0 && served < 2 * data);
}

#[test]
fn a_plan_does_without_local_shares_and_with_its_own_policy() {
    let origin = Origin { serving: Serving::Planned, ..Origin::new(44, 100, 20_000) };
    let options = PeerOptions {
        round: "start".to_owned(),
        rank: 0,
        world_size: 1,
        listen: "127.0.0.1:0".parse().unwrap(),
        node: None,
        serving: Serving::Planned,
        keep_shares: false,
        timeout: Duration::from_secs(60),
        connect: ConnectOptions::default(),
        keys: None,
    };
    let mut folder = Folder::new(origin.rendezvous(), "start").unwrap();
    let mut join = |origin: &Origin, sharding| {
        let run = LoaderOptions { sharding, ..run(0, 1, 0..1) };
        origin.open(Some("ram:4M")).with_peers(&options, &run, &mut folder)
    };
    let error = join(&origin, Sharding::Local).map(drop).unwrap_err();
    assert!(error.to_string().contains("follows from the shares"), "{error}");
    let image = join(&origin, Sharding::Strided).unwrap();
    let local = LoaderOptions { sharding: Sharding::Local, ..run(0, 1, 0..1) };
    let error = image.prefetcher(local).map(drop).unwrap_err();
    assert!(error.to_string().contains("follows from the shares"), "{error}");
    drop(image);
    let other_policy = Origin { serving: Serving::ReadThrough, ..origin };
    let error = join(&other_policy, Sharding::Strided).map(drop).unwrap_err();
    assert!(error.report().contains("add --policy clairvoyant"), "{}", error.report());
}

/// The tiers of two ranks, which are on nodes with these names.
#[test]
fn tiers_that_two_nodes_share_count_once_or_are_refused() {
    let origin = Origin::new(45, 100, 20_000);
    for names in [["one", "one"], ["one", "two"]] {
        let tier = origin.temp.path().join(names[1]);
        fs::create_dir(&tier).unwrap();
        let tier = format!("file:{}:4M", tier.display());
        let join = |rank: usize| {
            let options = PeerOptions {
                round: names[1].to_owned(),
                rank: rank as u32,
                world_size: 2,
                listen: "127.0.0.1:0".parse().unwrap(),
                node: Some(names[rank].to_owned()),
                serving: Serving::ReadThrough,
                keep_shares: false,
                timeout: Duration::from_secs(60),
                connect: ConnectOptions { hostnqn: Some(hostnqn()), ..ConnectOptions::default() },
                keys: None,
            };
            let mut folder = Folder::new(origin.rendezvous(), names[1]).unwrap();
            origin.open(Some(&tier)).with_peers(&options, None, &mut folder)
        };
        let joined: Vec<_> = thread::scope(|scope| {
            let joining: Vec<_> = (0..2).map(|rank| scope.spawn(move || join(rank))).collect();
            joining.into_iter().map(|joined| joined.join().unwrap()).collect()
        });
        for joined in joined {
            match (names[1], joined) {
                ("one", Ok(image)) => {
                    let round = image.peers().unwrap().round();
                    let pages: u64 = image.tiers().unwrap().capacities().iter().sum();
                    let rooms: Vec<u64> = round.nodes().iter().map(|n| n.room_bytes()).collect();
                    assert_eq!(rooms, [pages * PAGE_BYTES], "one node, whose room counts once");
                }
                ("two", Err(error)) => {
                    assert!(error.to_string().contains("share their tiers"), "{error}");
                }
                (name, joined) => panic!("{name}: {joined:?}"),
            }
        }
    }
}

#[test]
fn wrong_bytes_make_their_holder_fetch_them_anew() {
    let origin = Origin::new(38, 600, 20_000);
    let nodes = nodes(&origin, 2, 3.);
    read_all(&origin, &nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    let ids = nodes[0].ids_in(&nodes[0].chunks_of(1));
    let id = *ids.iter().find(|id| origin.samples[id.0 as usize].len() > 64).unwrap();
    let sample = &origin.samples[id.0 as usize];
    let path = fs::read_dir(origin.tier(1)).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(64).position(|bytes| bytes == &sample[..64]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[!bytes[at]], at as u64).unwrap();
    let before = origin.target.stats().read_bytes;
    nodes[0].read_ids(&origin, &[id]);
    let stats = nodes[0].stats();
    assert!(stats.mismatched_bytes > 0);
    assert_eq!(stats.rerouted_bytes, 0, "the same peer served it");
    assert!(origin.target.stats().read_bytes > before, "which read it from the origin again");
    assert_eq!(nodes[1].image.tiers().unwrap().stats().tiers[0].damaged, 1);
    wait_until("the copy", || nodes[1].image.tiers().unwrap().is_settled());
    wait_until("the copy in its place", || {
        let now = fs::read(&path).unwrap();
        now.windows(sample.len()).any(|bytes| bytes == &sample[..])
    });
    let before = origin.target.stats().read_bytes;
    nodes[0].read_ids(&origin, &ids);
    assert_eq!(nodes[0].stats().mismatched_bytes, stats.mismatched_bytes);
    assert_eq!(origin.target.stats().read_bytes, before);
}

#[test]
fn a_peer_that_stays_away_makes_no_read_wait() {
    let origin = Origin::new(41, 600, 20_000);
    let mut nodes = nodes(&origin, 2, 3.);
    read_all(&origin, &nodes, 0..1);
    let first = nodes.remove(0);
    let ids = first.ids_in(&first.chunks_of(1));
    let address = nodes[0].address();
    drop(nodes);
    first.read_ids(&origin, &ids);
    let rerouted = first.stats().rerouted_bytes;
    assert!(rerouted > 0);
    // A listener that never answers takes its place: connecting to it takes a second, a read does not.
    let listener = bind_again(|| std::net::TcpListener::bind(address));
    listener.set_nonblocking(true).unwrap();
    let mut connected = Vec::new();
    let mut took = Vec::new();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(4) || connected.is_empty() || took.len() < 100 {
        assert!(started.elapsed() < Duration::from_secs(240), "{} connections", connected.len());
        connected.extend(listener.accept());
        let began = Instant::now();
        first.read_ids(&origin, &ids[..4]);
        took.push(began.elapsed());
        thread::sleep(Duration::from_millis(10));
    }
    // On a machine that stalls, some reads take as long.
    let waited = took.iter().filter(|took| **took >= Duration::from_secs(1)).count();
    println!("{waited} of {} reads took a second, the longest {:?}", took.len(), took.iter().max());
    assert!(2 * waited < took.len(), "{waited} of {} reads waited", took.len());
}

#[test]
fn a_node_serves_thin_namespaces_that_say_what_it_holds() {
    let origin = Origin::new(42, 300, 20_000);
    let nodes = nodes(&origin, 2, 3.);
    read_all(&origin, &nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    let directory = nodes[0].image.directory();
    let image = dlfs::order::HexId(directory.uuid().0);
    let nqn = format!("nqn.2026-11.io.dlfs:cache:{image}:{}", directory.generation().0);
    let address = nodes[0].address();
    let digests = Digests { header: false, data: false };
    let mut host = RawHost::initialised(address, &Nqn::new(nqn).unwrap(), digests);
    host.hostnqn = hostnqn();
    assert!(host.connect(0, 31, ConnectData::CNTLID_DYNAMIC).status().is_success());
    let enable = Sqe::property_set(0, Property::Cc, u64::from(Cc::ENABLE.0));
    assert!(host.call(enable, &[]).0.status().is_success());
    let (_, page) = host.call(Sqe::identify(0, cns::NAMESPACE, Nsid(1)), &[]);
    let id = IdentifyNamespace::decode(&page).unwrap();
    assert_eq!(id.nsfeat & IdentifyNamespace::NSFEAT_THINP, IdentifyNamespace::NSFEAT_THINP);
    let held = nodes[0].held_bytes() / PAGE_BYTES;
    assert!(held > 0 && held < id.nsze.get());
    assert_eq!((id.nuse.get(), id.ncap.get()), (held, id.nsze.get()));
    assert_eq!(id.nsze.get() * PAGE_BYTES, origin.open(None).devices()[0].namespace().len_bytes());
}

#[test]
fn after_its_connect_sequence_a_peer_is_sent_reads_and_keep_alives_alone() {
    const NODES: u32 = 4;
    let origin = Origin::new(44, 1_500, 20_000);
    let nodes = nodes(&origin, NODES, 1.3);
    // One loader a node over all epochs keeps its connections.
    let start = |node: &Node| node.image.prefetcher(node.options(NODES, 0..1_000)).unwrap();
    let mut loaders: Vec<_> = nodes.iter().map(start).collect();
    let mut read_batches = |num: usize| {
        for loader in &mut loaders {
            (0..num).for_each(|_| drop(loader.next().unwrap().unwrap()));
        }
    };
    let served = |node: &Node| node.image.peers().unwrap().served().unwrap();
    let others = u64::from(NODES - 1);
    wait_until("all connections", || {
        read_batches(24);
        nodes.iter().all(|node| served(node).commands.of("connect") >= 2 * others)
    });
    let before: Vec<_> = nodes.iter().map(|node| served(node).commands).collect();
    read_batches(3 * 24);
    for (node, before) in nodes.iter().zip(before) {
        let now = served(node);
        println!("node {}: {:?}", node.rank, now.commands);
        assert_eq!(now.controllers, others, "one controller a peer");
        assert_eq!(before.of("connect"), 2 * others, "an admin queue and an I/O queue a peer");
        assert!(now.commands.of("read") > before.of("read"), "its peers read on");
        for (kind, count) in now.commands.by_kind() {
            let may_rise = ["read", "keep_alive"].contains(&kind);
            assert!(may_rise || count == before.of(kind), "{kind}: {count}");
        }
    }
}
