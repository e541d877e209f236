//! Jobs whose ranks keep their shares in stores: an origin behind a target, the ranks, and what they read.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, Loader, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec, State};
use dlfs::peers::PeerOptions;
use dlfs::peers::Serving;
use dlfs::peers::rendezvous::Folder;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::ReaderOptions;
use dlfs::store::{StoreOptions, StoreStats};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

use crate::support::random::Random;

/// An image behind a target, which may be stopped, and its samples by id.
pub(crate) struct Origin {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) samples: Vec<Vec<u8>>,
    pub(crate) image: Address,
    pub(crate) target: Option<Target>,
}

impl Origin {
    /// `num` samples, each as long as `len` says.
    pub(crate) fn new(seed: u64, num: usize, mut len: impl FnMut(&mut Random) -> usize) -> Origin {
        println!("seed {seed}");
        let temp = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let source = temp.path().join("source");
        fs::create_dir(&source).unwrap();
        let sample = |nth| {
            let mut bytes = vec![0; len(&mut random)];
            random.fill(&mut bytes);
            fs::write(source.join(format!("{nth:05}")), &bytes).unwrap();
            bytes
        };
        let samples = (0..num).map(sample).collect();
        let image = Address::from_path(temp.path().join("train.dlfs"));
        let options = ImportOptions { chunk_size_bytes: CHUNK_BYTES, ..ImportOptions::default() };
        let connect = ConnectOptions::default();
        import(&[source], std::slice::from_ref(&image), &options, &connect, &mut ()).unwrap();
        let mut origin = Origin { temp, samples, image, target: None };
        origin.serve();
        origin
    }

    pub(crate) fn serve(&mut self) {
        let device = qpair::open(&self.image, &ConnectOptions::default()).unwrap();
        let nqn = "nqn.2026-11.io.dlfs:origin".parse().unwrap();
        self.target = Some(Target::bind(TargetOptions::new(nqn), vec![device]).unwrap());
    }

    pub(crate) fn open(&self) -> Image {
        let mut options = OpenOptions::default();
        options.connect.io_timeout = Duration::from_secs(60); // the origin stops, but never hangs
        options.connect.ctrl_loss_tmo = Duration::from_millis(500);
        let address = self.target.as_ref().unwrap().address(Nsid(1));
        Image::open(&[address], &options).unwrap()
    }

    pub(crate) fn read_bytes(&self) -> u64 {
        self.target.as_ref().unwrap().stats().read_bytes
    }

    pub(crate) fn store_folder(&self) -> PathBuf {
        let folder = self.temp.path().join("stores");
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    pub(crate) fn folder_spec(&self) -> String {
        format!("file:{}:1G", self.store_folder().display())
    }
}

/// A job: its ranks differ in nothing but their number.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) q: f64,
    pub(crate) world_size: u32,
    pub(crate) batch: usize,
    pub(crate) epochs: Range<u64>,
    pub(crate) seed: u64,
    pub(crate) spec: String,
    pub(crate) blocking: bool,
    /// Ranks take turns on so many nodes; 0: all are on this machine.
    pub(crate) nodes: u32,
    pub(crate) round: String,
    pub(crate) resume: Option<State>,
    pub(crate) patience: Duration,
    pub(crate) deadline: Duration,
}

impl Job {
    pub(crate) fn new(origin: &Origin, q: f64, world_size: u32, epochs: u64) -> Job {
        Job {
            q,
            world_size,
            batch: 8,
            epochs: 0..epochs,
            seed: 11,
            spec: origin.folder_spec(),
            blocking: false,
            nodes: 0,
            round: "start".to_owned(),
            resume: None,
            patience: Duration::from_secs(60),
            deadline: Duration::from_secs(60),
        }
    }

    pub(crate) fn order(&self) -> OrderSpec {
        let kind = OrderKind::Partial { q: self.q, world_size: self.world_size };
        OrderSpec { kind, seed: self.seed }
    }

    pub(crate) fn run(&self, rank: u32) -> LoaderOptions {
        LoaderOptions {
            epochs: self.epochs.clone(),
            rank,
            world_size: self.world_size,
            window_bytes: 2 << 20,
            resume: self.resume.clone(),
            ..LoaderOptions::new(self.order(), self.batch, 1)
        }
    }

    /// The data set of a rank that has its share.
    pub(crate) fn join(&self, origin: &Origin, rank: u32) -> dlfs::Result<Dataset> {
        let dataset = self.join_unstaged(origin, rank)?;
        dataset.loader(self.run(rank))?.stage(&mut (), |_| true)?;
        Ok(dataset)
    }

    pub(crate) fn join_unstaged(&self, origin: &Origin, rank: u32) -> dlfs::Result<Dataset> {
        let hostnqn = Nqn::new("nqn.2026-11.io.dlfs:node").unwrap();
        let options = PeerOptions {
            round: self.round.clone(),
            rank,
            world_size: self.world_size,
            listen: "127.0.0.1:0".parse().unwrap(),
            node: (self.nodes > 0).then(|| format!("node {}", rank % self.nodes)),
            serving: Serving::CopiesOnly,
            keep_shares: false,
            timeout: Duration::from_secs(60),
            connect: ConnectOptions { hostnqn: Some(hostnqn), ..ConnectOptions::default() },
            keys: None,
        };
        let mut folder = Folder::new(origin.temp.path(), &self.round).unwrap();
        let store = StoreOptions {
            blocking: self.blocking,
            patience: self.patience,
            deadline: self.deadline,
            ..StoreOptions::new(self.spec.parse().unwrap())
        };
        let run = self.run(rank);
        let image = origin.open().with_store(store, &run, Some((&options, &mut folder)))?;
        Ok(Dataset::from_image(image, ReaderOptions::default()))
    }

    /// All ranks, with their shares.
    pub(crate) fn start(&self, origin: &Origin) -> Vec<Dataset> {
        thread::scope(|scope| {
            let ranks =
                (0..self.world_size).map(|rank| scope.spawn(move || self.join(origin, rank)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
        })
    }
}

/// The samples that one rank has read: for each epoch the ids in their order.
pub(crate) type Read = BTreeMap<u64, Vec<u64>>;

/// Reads to the end, and compares every sample.
pub(crate) fn read(samples: &[Vec<u8>], loader: &Loader) -> Read {
    let mut read = Read::new();
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        for sample in batch.iter() {
            assert!(sample.bytes == samples[sample.id.0 as usize], "sample {}", sample.id);
        }
        read.entry(batch.epoch().0).or_default().extend(batch.ids().map(|id| id.0));
    }
    read
}

pub(crate) fn read_all(origin: &Origin, job: &Job, ranks: &[Dataset]) -> Vec<Read> {
    let samples = &origin.samples;
    thread::scope(|scope| {
        let reading = (0..).zip(ranks).map(|(rank, dataset)| {
            let loader = dataset.loader(job.run(rank)).unwrap();
            scope.spawn(move || read(samples, &loader))
        });
        let reading: Vec<_> = reading.collect();
        reading.into_iter().map(|read| read.join().unwrap()).collect()
    })
}

/// Every epoch of `epochs` has each sample once.
pub(crate) fn check_whole(origin: &Origin, epochs: Range<u64>, reads: &[Read]) {
    for epoch in epochs {
        let mut ids: Vec<u64> = reads.iter().flat_map(|read| read[&epoch].clone()).collect();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(0..origin.samples.len() as u64), "epoch {epoch}");
    }
}

/// The samples that each rank would read from the shared namespaces.
pub(crate) fn expected(origin: &Origin, job: &Job) -> Vec<Read> {
    let dataset = Dataset::from_image(origin.open(), ReaderOptions::default());
    let of = |rank| read(&origin.samples, &dataset.loader(job.run(rank)).unwrap());
    (0..job.world_size).map(of).collect()
}

pub(crate) fn stats(rank: &Dataset) -> StoreStats {
    rank.store_stats().unwrap()
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < until, "waited for: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The chunks of the image.
pub(crate) const CHUNK_BYTES: u32 = 128 << 10;
