//! Measures tiers and an origin, a few seconds in all, and writes down what a plan needs to know.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::{Environment, Point, TierTable};
use super::options::{TierKind, TierSpec};
use crate::buf::IoBuf;
use crate::error::{Error, Result};
use crate::qpair::Device;
use crate::qpair::Direct;
use crate::qpair::blocking::Blocking;
use crate::qpair::file::{FileNamespace, FileOptions};
use crate::qpair::mem::MemNamespace;
use crate::threads::caught;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Numbers of threads, rising.
    pub threads: Vec<u32>,
    /// How long one number of threads is measured, for reads and for writes each.
    pub slice: Duration,
    /// Bytes that each tier is measured with, at most its quota.
    pub bytes: u64,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe { threads: vec![1, 2, 4], slice: Duration::from_millis(250), bytes: 256 << 20 }
    }
}

/// Measures each tier, and the first of `origin`; the fastest tier comes first in what comes out.
///
/// A tier in a file system is measured with a file of its own in the folder, which is removed again;
/// on a block device or in a file of its own it is read only, and is taken to write as fast.
///
/// # Errors
/// Those of opening a tier and of moving bytes.
pub fn probe(
    tiers: &[TierSpec],
    origin: &[Arc<dyn Device>],
    options: &Probe,
) -> Result<Environment> {
    let mut environment = Environment::default();
    for spec in tiers {
        environment.tiers.push(tier(spec, options)?);
    }
    let speed = |tier: &TierTable| tier.read.iter().map(|point| point.mb_per_s).fold(0.0, f64::max);
    environment.tiers.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    if let Some(device) = origin.first() {
        environment.origin = table(device, options, device.namespace().len_bytes(), false)?;
    }
    Ok(environment)
}

fn tier(spec: &TierSpec, options: &Probe) -> Result<TierTable> {
    let bytes = (options.bytes.min(spec.quota_bytes).max(MIN_BYTES)) / IO_BYTES * IO_BYTES;
    let (device, path, own): (Arc<dyn Device>, _, _) = match &spec.kind {
        TierKind::Ram => (Arc::new(MemNamespace::new(bytes, 4096)?), None, None),
        TierKind::File(path) => {
            let metadata = std::fs::metadata(path).map_err(|e| Error::from(e).path(path))?;
            let text = Some(path.display().to_string());
            match metadata.is_dir() {
                true => {
                    let own = OwnFile(path.join(format!("probe-{}.dlfs", std::process::id())));
                    (create(&own.0, bytes)?, text, Some(own))
                }
                false => (Arc::new(FileNamespace::open(path, FileOptions::default())?), text, None),
            }
        }
    };
    let is_writable = !device.namespace().read_only;
    // Written first: holes of a new file would be read from nowhere.
    let write = if is_writable {
        fill(&device, bytes)?;
        table(&device, options, bytes, true)?
    } else {
        Vec::new()
    };
    let read = table(&device, options, bytes.min(device.namespace().len_bytes()), false)?;
    drop(own);
    Ok(TierTable {
        backend: if path.is_some() { "filesystem" } else { "memory" }.to_owned(),
        path,
        capacity: spec.quota_bytes.to_string(),
        overwrite: spec.overwrite,
        threads: 2,
        read,
        write,
    })
}

/// Bypasses the page cache where that can be: memory is a tier of its own.
fn create(path: &Path, bytes: u64) -> Result<Arc<dyn Device>> {
    let open = |direct| {
        let options = FileOptions { create_len: Some(bytes), direct, ..FileOptions::default() };
        FileNamespace::open(path, options)
    };
    Ok(Arc::new(open(Direct::On).or_else(|_| open(Direct::Off))?))
}

/// A file that is gone with its owner.
struct OwnFile(std::path::PathBuf);

impl Drop for OwnFile {
    fn drop(&mut self) {
        // It may not have been made.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn fill(device: &Arc<dyn Device>, bytes: u64) -> Result<()> {
    let mut io = Blocking::new(device.queue_pair()?)?;
    let mut buf = IoBuf::zeroed(IO_BYTES as usize);
    buf.iter_mut()
        .zip(0_u32..)
        .for_each(|(byte, at)| *byte = (at.wrapping_mul(2_654_435_761) >> 24) as u8);
    for at in (0..bytes).step_by(IO_BYTES as usize) {
        buf = io.write(at, buf)?;
    }
    io.flush()
}

fn table(
    device: &Arc<dyn Device>,
    options: &Probe,
    bytes: u64,
    writes: bool,
) -> Result<Vec<Point>> {
    let mut points = Vec::with_capacity(options.threads.len());
    for &threads in &options.threads {
        let runs = std::thread::scope(|scope| -> Result<Vec<Moved>> {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    let places = Places::new(bytes, thread, threads);
                    let run = move || run(device, places, options.slice, writes);
                    scope.spawn(move || caught("a thread of the probe", run).and_then(|run| run))
                })
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("panics are caught in it"))
                .collect()
        })?;
        points.push(Point { threads, mb_per_s: mb_per_s(&runs) });
    }
    Ok(points)
}

/// What a thread moved, and when.
struct Moved {
    bytes: usize,
    began: Instant,
    ended: Instant,
}

/// From the first thread's begin to the last one's end: those that end earlier leave what is shared to the
/// others, so their own rates add up to more than there is.
fn mb_per_s(runs: &[Moved]) -> f64 {
    let bytes: usize = runs.iter().map(|run| run.bytes).sum();
    let began = runs.iter().map(|run| run.began).min();
    let ended = runs.iter().map(|run| run.ended).max();
    let time = began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began);
    (bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)).max(0.001)
}

/// Where one thread moves bytes: each place once before any comes again, none beside the one before it.
/// Otherwise it would be the processor's cache that is measured.
struct Places {
    count: u64,
    step: u64,
    next: u64,
}

impl Places {
    /// Places in `bytes`; those of several threads begin apart.
    fn new(bytes: u64, thread: u32, threads: u32) -> Places {
        let count = (bytes / IO_BYTES).max(1);
        // The golden section lies far from every simple fraction. A step with no divisor in common
        // with the count comes to all places.
        let mut step = (count as f64 * 0.618) as u64 | 1;
        while gcd(step, count) != 1 {
            step += 2;
        }
        Places { count, step, next: count * u64::from(thread) / u64::from(threads) }
    }

    /// Where the next I/O begins, in bytes.
    fn next(&mut self) -> u64 {
        let place = self.next;
        self.next = (place + self.step) % self.count;
        place * IO_BYTES
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Reads or writes of one thread, with one buffer that has all its pages: those that read samples have.
fn run(
    device: &Arc<dyn Device>,
    mut places: Places,
    slice: Duration,
    writes: bool,
) -> Result<Moved> {
    let mut io = Blocking::new(device.queue_pair()?)?;
    let len = IO_BYTES.min(device.namespace().len_bytes()) as usize;
    let mut buf = IoBuf::zeroed(len);
    buf.fill(0xA5);
    let mut moved = 0;
    let began = Instant::now();
    while began.elapsed() < slice {
        let offset = places.next();
        buf = if writes { io.write(offset, buf)? } else { io.read_into(offset, buf)? };
        moved += len;
    }
    if writes {
        io.flush()?;
    }
    Ok(Moved { bytes: moved, began, ended: Instant::now() })
}

const IO_BYTES: u64 = 1 << 20;
const MIN_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_probed_is_a_table_that_can_be_used_fastest_tier_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("file:{}:8M", folder.path().display());
        let tiers: Vec<TierSpec> = [&*file, "ram:8M"].map(|text| text.parse().unwrap()).into();
        let options =
            Probe { threads: vec![1, 2], slice: Duration::from_millis(5), bytes: 4 << 20 };
        let origin: Arc<dyn Device> = Arc::new(MemNamespace::new(4 << 20, 512).unwrap());
        let environment = probe(&tiers, &[origin], &options).unwrap();
        let parsed = Environment::parse(&environment.to_toml()).unwrap();
        assert_eq!(parsed.options().unwrap().tiers.len(), 2);
        let (stages, origin) = parsed.stages().unwrap();
        assert!(stages[0].read.at(1) > crate::plan::Rate(0) && origin.is_some());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn every_place_is_come_to_before_any_comes_again_and_no_two_are_neighbours() {
        for count in (1..200).chain([256, 4096, 65_536, 104_729]) {
            for thread in 0..3 {
                let mut places = Places::new(count * IO_BYTES, thread, 3);
                let mut seen = vec![false; count as usize];
                let mut before = None;
                for _ in 0..count {
                    let place = places.next() / IO_BYTES;
                    assert!(
                        !std::mem::replace(&mut seen[place as usize], true),
                        "{place} of {count}"
                    );
                    let near = before.is_some_and(|before: u64| before.abs_diff(place) == 1);
                    assert!(!near || count < 8, "{place} of {count} comes behind its neighbour");
                    before = Some(place);
                }
                assert_eq!(
                    places.next() / IO_BYTES,
                    count * u64::from(thread) / 3,
                    "from the start"
                );
            }
        }
        assert_eq!(Places::new(100, 0, 1).next(), 0, "less than one I/O is one place");
    }

    #[test]
    fn threads_that_share_a_link_are_measured_together() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        // Four threads of one link of 100 MB/s: one ends after the other, all have moved as much.
        let runs =
            [250, 260, 270, 280].map(|end| Moved { bytes: 7_000_000, began: zero, ended: at(end) });
        assert_eq!(mb_per_s(&runs).round(), 100.0);
        assert_eq!(mb_per_s(&[]), 0.001);
    }

    #[test]
    fn a_tier_that_is_not_there_cannot_be_probed() {
        let tiers = ["file:/nonexistent/tier:8M".parse().unwrap()];
        assert!(probe(&tiers, &[], &Probe::default()).is_err());
    }
}
