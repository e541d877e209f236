//! Measurement of tiers and an origin in a few seconds, as input for planning.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::options::{Environment, Point, TierKind, TierSpec, TierTable, default_threads};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::threads::caught;
use dlfs_io::qpair::blocking::Blocking;
use dlfs_io::qpair::file::{FileNamespace, FileOptions};
use dlfs_io::qpair::mem::MemNamespace;
use dlfs_io::qpair::{Device, Direct};
use dlfs_order::order::gcd;

/// The parameters of a measurement.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Numbers of threads, ascending.
    pub threads: Vec<u32>,
    /// Duration of the measurement of each number of threads, for reads and again for writes.
    pub slice: Duration,
    /// Bytes used to measure each tier: at most its quota, but at least 4 MiB; rounded down to whole MiB.
    pub bytes: u64,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe { threads: vec![1, 2, 4], slice: Duration::from_millis(250), bytes: 256 << 20 }
    }
}

/// Measures each tier and the first namespace of `origin`; the result lists the fastest tier first.
///
/// A tier in a file system is measured with a temporary file in its folder. A tier that is a block device or
/// a single file is only read; its write rate is assumed to equal its read rate.
///
/// # Errors
/// `Unsupported`: a tier in a remote namespace. Errors of opening a tier and of I/O.
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

/// Measures one tier.
fn tier(spec: &TierSpec, options: &Probe) -> Result<TierTable> {
    let bytes = (options.bytes.min(spec.quota_bytes).max(MIN_BYTES)) / IO_BYTES * IO_BYTES;
    let (device, path): (Arc<dyn Device>, _) = match &spec.kind {
        TierKind::Namespace(_) => {
            let text = format!("{spec}: the rates of a remote tier are not measured");
            return Err(Error::new(ErrorKind::Unsupported, text).hint("give it as a tier as it is"));
        }
        TierKind::Ram => (Arc::new(MemNamespace::new(bytes, 4096)?), None),
        TierKind::File(path) => {
            let metadata = std::fs::metadata(path).map_err(|e| Error::from(e).path(path))?;
            let text = Some(path.display().to_string());
            if metadata.is_dir() {
                (create(path, bytes)?, text)
            } else {
                (Arc::new(FileNamespace::open(path, FileOptions::default())?), text)
            }
        }
    };
    let is_writable = !device.namespace().read_only;
    // Written before it is read: reads of holes in a new file need no I/O.
    let write = if is_writable {
        fill(&device, bytes)?;
        table(&device, options, bytes, true)?
    } else {
        Vec::new()
    };
    let read = table(&device, options, bytes.min(device.namespace().len_bytes()), false)?;
    Ok(TierTable {
        backend: if path.is_some() { "filesystem" } else { "memory" }.to_owned(),
        path,
        capacity: spec.quota_bytes.to_string(),
        overwrite: spec.overwrite,
        threads: default_threads(),
        read,
        write,
    })
}

/// Creates a temporary file in `folder`. Bypasses the page cache if possible: memory is a tier of its own.
fn create(folder: &Path, bytes: u64) -> Result<Arc<dyn Device>> {
    let path = folder.join(format!("probe-{}.dlfs", std::process::id()));
    let open = |direct| {
        let options = FileOptions {
            create_len: Some(bytes),
            private: true,
            direct,
            ..FileOptions::default()
        };
        FileNamespace::open(&path, options)
    };
    let file = open(Direct::On).or_else(|_| open(Direct::Off));
    // At once, so that no file stays if the process is killed. May fail: the file may not have been created.
    let _ = std::fs::remove_file(&path);
    Ok(Arc::new(file?))
}

/// Writes `bytes` bytes of a fixed pattern.
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

/// The rate of reads, or with `writes` the rate of writes, of the first `bytes` bytes, for each number of threads.
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
                    let offsets = Offsets::new(bytes, thread, threads);
                    let run = move || run(device, offsets, options.slice, writes);
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

/// The bytes that a thread moved, and the time that it took.
struct Moved {
    bytes: usize,
    began: Instant,
    ended: Instant,
}

/// Rate of all threads together, from the start of the first thread to the end of the last. A thread that
/// ends early leaves its share to the others, so the sum of the threads' own rates would be too high.
fn mb_per_s(runs: &[Moved]) -> f64 {
    let bytes: usize = runs.iter().map(|run| run.bytes).sum();
    let began = runs.iter().map(|run| run.began).min();
    let ended = runs.iter().map(|run| run.ended).max();
    let time = began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began);
    (bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)).max(0.001)
}

/// Offsets of one thread's I/O: every offset comes once before any repeats, and unless there are very few, no two
/// in a row are adjacent; repeated or adjacent ones would measure the CPU cache.
struct Offsets {
    /// Number of different offsets, which are the multiples of [`IO_BYTES`] from 0 on.
    count: u64,
    /// Distance from one offset to the next, in I/Os, modulo `count`.
    step: u64,
    /// The next offset, in I/Os.
    next: u64,
}

impl Offsets {
    /// Offsets in `bytes`; each thread starts at a different offset.
    fn new(bytes: u64, thread: u32, threads: u32) -> Offsets {
        let count = (bytes / IO_BYTES).max(1);
        // The golden ratio is far from every simple fraction. A step that has no common divisor with the
        // count reaches all offsets.
        let mut step = (count as f64 * 0.618) as u64 | 1;
        while gcd(step, count) != 1 {
            step += 2;
        }
        Offsets { count, step, next: count * u64::from(thread) / u64::from(threads) }
    }

    /// Offset of the next I/O, in bytes.
    fn next(&mut self) -> u64 {
        let offset = self.next;
        self.next = (offset + self.step) % self.count;
        offset * IO_BYTES
    }
}

/// Reads or writes of one thread, with one buffer that is already faulted in, as in sample readers.
fn run(
    device: &Arc<dyn Device>,
    mut offsets: Offsets,
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
        let offset = offsets.next();
        buf = if writes { io.write(offset, buf)? } else { io.read_into(offset, buf)? };
        moved += len;
    }
    if writes {
        io.flush()?;
    }
    Ok(Moved { bytes: moved, began, ended: Instant::now() })
}

/// Length of one read or write.
const IO_BYTES: u64 = 1 << 20;
/// Fewest bytes used to measure a tier.
const MIN_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_returns_usable_tables_with_the_fastest_tier_first() {
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
        assert!(stages[0].read.at(1) > dlfs_order::plan::Rate(0) && origin.is_some());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn every_offset_is_used_before_any_repeats_and_no_two_are_neighbours() {
        for count in (1..200).chain([256, 4096, 65_536, 104_729]) {
            for thread in 0..3 {
                let mut offsets = Offsets::new(count * IO_BYTES, thread, 3);
                let mut seen = vec![false; count as usize];
                let mut before = None;
                for _ in 0..count {
                    let offset = offsets.next() / IO_BYTES;
                    assert!(
                        !std::mem::replace(&mut seen[offset as usize], true),
                        "{offset} of {count}"
                    );
                    let near = before.is_some_and(|before: u64| before.abs_diff(offset) == 1);
                    assert!(!near || count < 8, "{offset} of {count} comes behind its neighbour");
                    before = Some(offset);
                }
                assert_eq!(
                    offsets.next() / IO_BYTES,
                    count * u64::from(thread) / 3,
                    "from the start"
                );
            }
        }
        assert_eq!(Offsets::new(100, 0, 1).next(), 0, "less than one I/O is one offset");
    }

    #[test]
    fn threads_that_share_a_link_are_measured_together() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        // Four threads on one link of 100 MB/s end one after another, with equal amounts.
        let runs =
            [250, 260, 270, 280].map(|end| Moved { bytes: 7_000_000, began: zero, ended: at(end) });
        assert_eq!(mb_per_s(&runs).round(), 100.0);
        assert_eq!(mb_per_s(&[]), 0.001);
    }

    #[test]
    fn a_missing_tier_cannot_be_probed() {
        let tiers = ["file:/nonexistent/tier:8M".parse().unwrap()];
        assert!(probe(&tiers, &[], &Probe::default()).is_err());
    }
}
