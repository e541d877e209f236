//! The time that the exchange of partial local shuffling costs an epoch: overlapped with its steps, and at its end.
//!
//! `cargo bench --bench store`. Ranks of this process keep their shares in memory and meet over loopback. A step of
//! training is a sleep as long as the exchange of a step takes by itself, so that an exchange that overlaps has just
//! time enough.

#[path = "support/origin.rs"]
#[allow(dead_code, unreachable_pub)] // in_memory_copy
mod origin;
#[path = "support/results.rs"]
mod results;

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{PeerOptions, Serving};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::reader::ReaderOptions;
use dlfs::store::{StoreOptions, StoreStats};
use origin::make_files;

const RANKS: u32 = 2;
const BATCH: usize = 32;
const Q: f64 = 0.3;
/// The first has nothing to wait for, and the last exchanges nothing: those between are timed.
const EPOCHS: u64 = 6;
const RUNS: u32 = 3;

fn main() -> dlfs::Result<()> {
    results::record("store");
    let mut rows = Vec::new();
    for (count, len) in [(6_400, 110_000), (48_000, 4_096)] {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("source");
        let image = folder.path().join("train.dlfs");
        std::fs::create_dir(&source)?;
        make_files(&source, count, len)?;
        let image = Address::from_path(image);
        let connect = ConnectOptions::default();
        let to = std::slice::from_ref(&image);
        import(std::slice::from_ref(&source), to, &ImportOptions::default(), &connect, &mut ())?;
        std::fs::remove_dir_all(&source)?;
        let job = Job { folder: folder.path(), image: &image };
        let steps = (count / u64::from(RANKS)).div_ceil(BATCH as u64) as u32;
        // The exchange alone.
        let still = job.median("still", 0.0, false, Duration::ZERO)?;
        let (alone, moved) = job.median("alone", Q, true, Duration::ZERO)?;
        let step = (alone.saturating_sub(still.0)) / steps;
        let bytes_per_s = moved.received_bytes as f64
            / (EPOCHS - 1) as f64
            / (alone.saturating_sub(still.0)).as_secs_f64();
        let (none, _) = job.median("none", 0.0, false, step)?;
        let (overlapped, _) = job.median("overlapped", Q, false, step)?;
        let (blocking, _) = job.median("blocking", Q, true, step)?;
        let ratio = |epoch: Duration| epoch.as_secs_f64() / none.as_secs_f64();
        let verdict = if ratio(overlapped) <= 1.05 { "met" } else { "MISSED" };
        let ms = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        let beside = |epoch| format!("{}, {:.3}", ms(epoch), ratio(epoch));
        rows.push(format!(
            "| {count} x {len} B | {}, {:.0} MB/s a rank | {} | {} | {} | {verdict} |",
            ms(step),
            bytes_per_s / 1e6,
            ms(none),
            beside(overlapped),
            beside(blocking),
        ));
    }
    println!("{RANKS} ranks, batches of {BATCH}, Q = {Q}; bar: overlapped <= 1.05");
    println!("The median of {RUNS} runs, each of them the median of {} epochs", EPOCHS - 2);
    print!("| samples | exchange of a step alone | epoch, Q = 0 ");
    println!("| overlapped, of Q = 0 | blocking, of Q = 0 | |");
    println!("|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{row}"));
    Ok(())
}

struct Job<'a> {
    folder: &'a Path,
    image: &'a Address,
}

impl Job<'_> {
    /// The median time of an epoch over some runs, and what a rank of the last run has exchanged.
    fn median(
        &self,
        name: &str,
        q: f64,
        blocking: bool,
        step: Duration,
    ) -> dlfs::Result<(Duration, StoreStats)> {
        let mut runs = Vec::new();
        for number in 0..RUNS {
            runs.push(self.run(&format!("{name} {number}"), q, blocking, step)?);
        }
        runs.sort_by_key(|(epoch, _)| *epoch);
        Ok(runs[runs.len() / 2])
    }

    fn run(
        &self,
        round: &str,
        q: f64,
        blocking: bool,
        step: Duration,
    ) -> dlfs::Result<(Duration, StoreStats)> {
        let together = Barrier::new(RANKS as usize);
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..RANKS)
                .map(|rank| {
                    let together = &together;
                    scope.spawn(move || self.rank(rank, round, q, blocking, step, together))
                })
                .collect();
            let mut all = Vec::new();
            for rank in ranks {
                all.push(rank.join().expect("a rank's thread")?);
            }
            Ok(all.into_iter().max_by_key(|(epoch, _)| *epoch).expect("there are ranks"))
        })
    }

    fn rank(
        &self,
        rank: u32,
        round: &str,
        q: f64,
        blocking: bool,
        step: Duration,
        together: &Barrier,
    ) -> dlfs::Result<(Duration, StoreStats)> {
        let peers = PeerOptions {
            round: round.to_owned(),
            rank,
            world_size: RANKS,
            listen: "127.0.0.1:0".parse().expect("an address"),
            node: None,
            serving: Serving::CopiesOnly,
            keep_shares: false,
            timeout: Duration::from_secs(60),
            connect: ConnectOptions::default(),
            keys: None,
        };
        let order = OrderSpec { kind: OrderKind::Partial { q, world_size: RANKS }, seed: 7 };
        let run =
            LoaderOptions { rank, world_size: RANKS, ..LoaderOptions::new(order, BATCH, EPOCHS) };
        let store = StoreOptions { blocking, ..StoreOptions::new("ram:4G".parse()?) };
        let mut meeting = Folder::new(self.folder, round)?;
        let image = Image::open(std::slice::from_ref(self.image), &OpenOptions::default())?;
        let image = image.with_store(store, &run, Some((&peers, &mut meeting)))?;
        let dataset = Dataset::from_image(image, ReaderOptions::default());
        let loader = dataset.loader(run)?;
        loader.stage(&mut (), |_| true)?;
        together.wait();
        let mut ends = Vec::new();
        let mut epoch = 0;
        while let Some(batch) = loader.next(&mut ())? {
            if batch.epoch().0 != epoch {
                // With its first batch, the one before has ended in every way.
                ends.push(Instant::now());
                epoch = batch.epoch().0;
            }
            drop(batch);
            if !step.is_zero() {
                thread::sleep(step);
            }
            // As gradients are averaged.
            together.wait();
        }
        let stats = dataset.store_stats().expect("a store");
        let mut epochs: Vec<Duration> = ends.windows(2).map(|ends| ends[1] - ends[0]).collect();
        epochs.sort_unstable();
        together.wait(); // the other one may still fetch
        Ok((epochs[epochs.len() / 2], stats))
    }
}
