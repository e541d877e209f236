//! Training end to end: a folder is imported, served over NVMe/TCP, and read in epochs, while
//! targets die, images change and processes fork.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::alone::ran_alone;
use crate::support::fork::in_child;
use crate::support::ports::bind_again;
use crate::support::random::Random;
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::{LoaderOptions, Prefetcher};
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};
use dlfs::{Error, ErrorKind};

const ORDERS: [OrderKind; 2] = [OrderKind::Global, OrderKind::Grouped { lanes: 2, group: 2 }];

/// Folders of files with random bytes, and the expected samples by id.
fn make_folder(at: &Path, classes: usize, each: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let mut samples = Vec::new();
    for class in 0..classes {
        let folder = at.join(format!("class{class}"));
        fs::create_dir_all(&folder).unwrap();
        for i in 0..each {
            let mut bytes = vec![0; random.below(20_000) as usize];
            random.fill(&mut bytes);
            fs::write(folder.join(format!("{i:04}")), &bytes).unwrap();
            samples.push(bytes);
        }
    }
    samples
}

/// A folder, its image, and the options to open it.
struct Job {
    temp: tempfile::TempDir,
    samples: Vec<Vec<u8>>,
}

impl Job {
    fn new() -> Job {
        Job::with_seed(9)
    }

    fn with_seed(seed: u64) -> Job {
        let temp = tempfile::tempdir().unwrap();
        let samples = make_folder(&temp.path().join("source"), 3, 60, seed);
        let job = Job { temp, samples };
        job.import("source", Onto::Empty);
        job
    }

    fn image(&self) -> Address {
        Address::from_path(self.temp.path().join("train.dlfs"))
    }

    fn import(&self, source: &str, onto: Onto) {
        let options =
            ImportOptions { chunk_size_bytes: 64 << 10, onto, ..ImportOptions::default() };
        let source = self.temp.path().join(source);
        import(&[source], &[self.image()], &options, &ConnectOptions::default(), &mut ()).unwrap();
    }

    fn serve_at(&self, listen: SocketAddr) -> Target {
        let device = qpair::open(&self.image(), &ConnectOptions::default()).unwrap();
        let nqn = "nqn.2026-11.io.dlfs:train".parse().unwrap();
        let options = TargetOptions { listen, ..TargetOptions::new(nqn) };
        bind_again(|| Target::bind(options.clone(), vec![Arc::clone(&device)]))
    }

    fn serve(&self) -> Target {
        self.serve_at("127.0.0.1:0".parse().unwrap())
    }

    fn assert_right(&self, batch: &Batch) {
        for sample in batch.iter() {
            assert!(sample.bytes == self.samples[sample.id.0 as usize], "sample {}", sample.id);
            assert_eq!(sample.label, Some(sample.id.0 as i64 / 60));
        }
    }

    fn drain(&self, loader: &mut Prefetcher) -> Result<Vec<u64>, Error> {
        let mut ids = Vec::new();
        while let Some(batch) = loader.next() {
            let batch = batch?;
            self.assert_right(&batch);
            ids.extend(batch.ids().map(|id| id.0));
        }
        Ok(ids)
    }
}

fn open(target: &Target, change: impl FnOnce(&mut ConnectOptions)) -> Image {
    let mut connect =
        ConnectOptions { ctrl_loss_tmo: Duration::from_secs(120), ..ConnectOptions::default() };
    change(&mut connect);
    let options = OpenOptions { connect, ..OpenOptions::default() };
    Image::open(&[target.address(Nsid(1))], &options).unwrap()
}

fn options(kind: OrderKind, epochs: u64) -> LoaderOptions {
    // A small window, so that the run is not read ahead completely.
    let order = OrderSpec { kind, seed: 4 };
    LoaderOptions { window_bytes: 512 << 10, ..LoaderOptions::new(order, 8, epochs) }
}

fn all(times: usize) -> Vec<u64> {
    let mut ids: Vec<u64> = (0..180).flat_map(|id| vec![id; times]).collect();
    ids.sort_unstable();
    ids
}

fn sorted(mut ids: Vec<u64>) -> Vec<u64> {
    ids.sort_unstable();
    ids
}

#[test]
fn two_shuffled_epochs_over_the_socket_deliver_every_sample_right_with_and_without_digests() {
    let job = Job::new();
    let target = job.serve();
    for digest in [false, true] {
        let image = open(&target, |connect| {
            (connect.hdr_digest, connect.data_digest) = (digest, digest);
        });
        for kind in ORDERS {
            let mut loader = image.prefetcher(options(kind, 2)).unwrap();
            let ids = job.drain(&mut loader).unwrap();
            assert_ne!(ids[..180], ids[180..], "epochs differ");
            assert_eq!(sorted(ids), all(2), "{kind:?}");
        }
    }
}

#[test]
fn a_target_that_restarts_in_mid_epoch_costs_only_time() {
    let job = Job::new();
    for kind in ORDERS {
        let target = job.serve();
        let listen = target.local_addr();
        let image = open(&target, |_| {});
        let mut loader = image.prefetcher(options(kind, 3)).unwrap();
        let mut ids = Vec::new();
        for _ in 0..3 {
            let batch = loader.next().unwrap().unwrap();
            job.assert_right(&batch);
            ids.extend(batch.ids().map(|id| id.0));
        }
        target.stop();
        std::thread::sleep(Duration::from_millis(100));
        let again = job.serve_at(listen);
        ids.extend(job.drain(&mut loader).unwrap());
        assert_eq!(sorted(ids), all(3), "{kind:?}");
        drop(again);
    }
}

#[test]
fn a_target_that_stays_away_is_an_error_within_the_controller_loss_time() {
    let job = Job::new();
    let target = job.serve();
    let image = open(&target, |connect| connect.ctrl_loss_tmo = Duration::from_millis(700));
    let mut loader = image.prefetcher(options(OrderKind::Global, 50)).unwrap();
    loader.next().unwrap().unwrap();
    target.stop();
    let error = job.drain(&mut loader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error:?}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

#[test]
fn a_second_path_takes_over_when_the_first_dies_for_good() {
    let job = Job::new();
    let first = job.serve();
    let second = job.serve();
    let image = open(&first, |connect| connect.paths = vec![second.address(Nsid(1))]);
    for kind in ORDERS {
        let mut loader = image.prefetcher(options(kind, 1)).unwrap();
        assert_eq!(sorted(job.drain(&mut loader).unwrap()), all(1));
    }
    let mut loader = image.prefetcher(options(OrderKind::Global, 3)).unwrap();
    let batch = loader.next().unwrap().unwrap();
    let mut ids: Vec<u64> = batch.ids().map(|id| id.0).collect();
    drop(batch);
    let before = second.stats();
    first.stop();
    ids.extend(job.drain(&mut loader).unwrap());
    assert_eq!(sorted(ids), all(3));
    assert!(second.stats() != before, "the second path carried reads");
}

#[test]
fn a_target_that_returns_with_another_image_is_refused_and_named() {
    let job = Job::new();
    let other = Job::with_seed(10);
    let target = job.serve();
    let listen = target.local_addr();
    let image = open(&target, |connect| connect.ctrl_loss_tmo = Duration::from_secs(3));
    let mut loader = image.prefetcher(options(OrderKind::Global, 50)).unwrap();
    loader.next().unwrap().unwrap();
    target.stop();
    let _other = other.serve_at(listen);
    // Everything read from it is refused, because of its identity or its checksums.
    let error = job.drain(&mut loader).expect_err("another image is not read");
    let kinds = [ErrorKind::Stale, ErrorKind::Disconnected, ErrorKind::Refused];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

#[test]
fn a_job_that_its_target_no_longer_allows_is_told_so_at_its_deadline() {
    let job = Job::new();
    let target = job.serve();
    let host: Nqn = "nqn.2026-11.io.dlfs:job".parse().unwrap();
    let image = open(&target, |connect| connect.hostnqn = Some(host.clone()));
    let options = options(OrderKind::Global, 50);
    let options = LoaderOptions { deadline: Duration::from_secs(2), ..options };
    let mut loader = image.prefetcher(options).unwrap();
    loader.next().unwrap().unwrap();
    target.set_allowed_hosts(vec!["nqn.2026-11.io.dlfs:other".parse().unwrap()]);
    assert!(target.disconnect(&host) > 0);
    let error = job.drain(&mut loader).expect_err("nothing comes any more");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    let text = error.report();
    for part in ["the last attempt to connect failed", "does not allow this host", "--allow-host"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_reader_of_an_older_generation_goes_on_while_its_chunks_are_there() {
    let job = Job::new();
    let target = job.serve();
    let image = open(&target, |_| {});
    let mut loader = image.prefetcher(options(OrderKind::Global, 1)).unwrap();
    let first = loader.next().unwrap().unwrap();
    let mut ids: Vec<u64> = first.ids().map(|id| id.0).collect();
    drop(first);
    make_folder(&job.temp.path().join("more"), 1, 5, 77);
    fs::rename(job.temp.path().join("more/class0"), job.temp.path().join("more/extra")).unwrap();
    job.import("more", Onto::Append);
    ids.extend(job.drain(&mut loader).unwrap());
    assert_eq!(sorted(ids), all(1));
    // A target that serves the file's current contents shows the new generation.
    let newer = Image::open(&[job.image()], &OpenOptions::default()).unwrap();
    assert_eq!(newer.directory().num_live(), 185);
    assert!(newer.directory().generation() > image.directory().generation());
}

#[test]
fn a_forked_child_reads_on_and_leaves_the_parent_undisturbed() {
    if ran_alone(a_forked_child_reads_on_and_leaves_the_parent_undisturbed) {
        return;
    }
    let job = Job::new();
    let target = job.serve();
    let image = open(&target, |_| {});
    for kind in ORDERS {
        let mut loader = image.prefetcher(options(kind, 1)).unwrap();
        let mut reader = image.reader(ReaderOptions::default()).unwrap();
        let first = loader.next().unwrap().unwrap();
        let mut ids: Vec<u64> = first.ids().map(|id| id.0).collect();
        for _ in 0..3 {
            let done = ids.len();
            let child_is_right = in_child(|| {
                let mut batch = Batch::new();
                reader.read_batch(&[SampleId(3), SampleId(170)], &mut batch).unwrap();
                job.assert_right(&batch);
                job.drain(&mut loader).unwrap().len() == 180 - done
            });
            assert!(child_is_right, "the child reads the rest of the epoch: {kind:?}");
            let batch = loader.next().unwrap().unwrap();
            job.assert_right(&batch);
            ids.extend(batch.ids().map(|id| id.0));
        }
        ids.extend(job.drain(&mut loader).unwrap());
        assert_eq!(sorted(ids), all(1), "{kind:?}");
        let mut batch = Batch::new();
        reader.read_batch(&[SampleId(0)], &mut batch).unwrap();
        job.assert_right(&batch);
    }
}

#[test]
fn many_readers_share_one_target() {
    let job = Arc::new(Job::new());
    let target = job.serve();
    let threads: Vec<_> = (0..4)
        .map(|rank| {
            let job = Arc::clone(&job);
            let image = open(&target, |_| {});
            std::thread::spawn(move || {
                let mut options = options(ORDERS[1], 2);
                (options.rank, options.world_size, options.queue_pairs) = (rank, 4, 2);
                job.drain(&mut image.prefetcher(options).unwrap()).unwrap()
            })
        })
        .collect();
    let ids = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(sorted(ids), all(2));
}
