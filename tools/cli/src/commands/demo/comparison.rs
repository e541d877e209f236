//! Compares three ways of reading the same files: file by file, the image in place, and the image over NVMe/TCP.
//!
//! Each way delivers the same batches of the same shuffled epochs to one thread. The ways take turns, so that
//! other load on the machine affects all of them, and the figures with a warm page cache are medians over the rounds.
//! Each turn ends with the last epoch of the way's loader, which then has nothing to read ahead during the turns of
//! others.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use dlfs::Error;
use dlfs::dataset::{Dataset, Image, Loader, Sampler};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::ReaderOptions;
use dlfs::units::SampleId;

use super::files::{SourceFiles, drop_pages_of};
use super::stopped;
use crate::exit::{Failure, Stop, about_file};
use crate::out::Meter;
use crate::reading::{End, Samples, read_batches};
use crate::run_stats::{RunReport, RunStats};

/// The result of a comparison.
#[derive(Serialize)]
pub(super) struct Compared {
    /// The number of measured rounds.
    rounds: usize,
    /// Epochs in a round.
    pub(super) epochs: u64,
    /// One thread opens, reads and closes each file.
    pub(super) files: Figures,
    /// A loader reads the image file.
    pub(super) image: Figures,
    /// A loader reads the image through a socket; the target's processor time counts too.
    pub(super) nvme_tcp: Figures,
}

/// The figures of one way.
#[derive(Serialize)]
pub(super) struct Figures {
    /// True if each sample is checked against its checksum.
    pub(super) verified: bool,
    /// The median with all files in the page cache, like the next two figures.
    pub(super) samples_per_s: f64,
    pub(super) bytes_per_s: f64,
    pub(super) cpu_s_per_gb: f64,
    /// In one epoch from the disk; `None` if the files or the image are in memory, or the demo generated the files.
    pub(super) cold_samples_per_s: Option<f64>,
    /// Checksum over the ids in the order of delivery: the same for all ways.
    pub(super) order_crc32c: u32,
}

/// The three ways, ready to read.
pub(super) struct Comparison<'a> {
    source: &'a SourceFiles<'a>,
    image: &'a Path,
    /// The files, the image in place, and the image over NVMe/TCP.
    ways: [Way; 3],
    stop: Stop,
}

/// One way of reading.
enum Way {
    Files(Box<FileReader>),
    Loader(Box<Loader>),
}

impl<'a> Comparison<'a> {
    /// Prepares to read `source`, the image at `image` in place, and `served`, the same image over NVMe/TCP, along the
    /// order of `options`.
    ///
    /// # Errors
    /// As [`SourceFiles::paths`], [`Sampler::new`] and [`Dataset::loader`].
    pub(super) fn new(
        source: &'a SourceFiles<'a>,
        image: &'a Path,
        [in_place, served]: [Image; 2],
        options: LoaderOptions,
        stop: Stop,
    ) -> Result<Comparison<'a>, Error> {
        // Verify chunks that stay in the window too; otherwise later epochs would not count as verified.
        let options = LoaderOptions { verify_kept: true, epochs: 0..MAX_EPOCHS, ..options };
        let [in_place, served] =
            [in_place, served].map(|it| Dataset::from_image(it, ReaderOptions::default()));
        let files = FileReader {
            paths: source.paths()?,
            sampler: Sampler::new(&in_place, options.clone())?,
            ids: Vec::new(),
            bytes: Vec::new(),
        };
        let loaders = [in_place.loader(options.clone())?, served.loader(options)?];
        let [in_place, served] = loaders.map(|loader| Way::Loader(Box::new(loader)));
        let ways = [Way::Files(Box::new(files)), in_place, served];
        Ok(Comparison { source, image, ways, stop })
    }

    /// Measures for a few seconds, or for as long as two rounds take; also from the disk if `cold` is set and
    /// the files are on a disk.
    ///
    /// # Errors
    /// `Interrupted`: the user stopped it. Errors of reading.
    pub(super) fn run(mut self, cold: bool) -> Result<Compared, Failure> {
        let began = Instant::now();
        // An unmeasured round: fills the page cache, and allocates the memory of each way.
        let shortest_s = self.round(1)?.iter().fold(f64::MAX, |least, it| least.min(it.seconds));
        let epochs = (TURN_S / shortest_s).clamp(1.0, MAX_EPOCHS as f64) as u64;
        let mut rounds = Vec::new();
        let mut longest = Duration::ZERO;
        while rounds.len() < MAX_ROUNDS && (rounds.is_empty() || began.elapsed() + longest < LIMIT)
        {
            let round_began = Instant::now();
            rounds.push(self.round(epochs)?);
            longest = longest.max(round_began.elapsed());
        }
        let mut ways = [0, 1, 2].map(|way| self.figures(way, &rounds));
        if cold {
            self.measure_cold(&mut ways)?;
        }
        let [files, image, nvme_tcp] = ways;
        Ok(Compared { rounds: rounds.len(), epochs, files, image, nvme_tcp })
    }

    /// Reads by each way in turn.
    fn round(&mut self, epochs: u64) -> Result<[RunReport; 3], Failure> {
        Ok([self.read(0, epochs)?, self.read(1, epochs)?, self.read(2, epochs)?])
    }

    /// Reads an epoch by each way from the disk, unless the files or the image are in memory.
    fn measure_cold(&mut self, ways: &mut [Figures; 3]) -> Result<(), Failure> {
        for (way, figures) in ways.iter_mut().enumerate() {
            if self.source.drop_pages()? && drop_pages_of(self.image)? {
                let report = self.read(way, 1)?;
                figures.cold_samples_per_s = Some(report.samples_per_s);
            }
        }
        Ok(())
    }

    /// Reads the last `epochs` epochs, so that the loader has nothing left to read ahead in other turns.
    fn read(&mut self, way: usize, epochs: u64) -> Result<RunReport, Failure> {
        let first = MAX_EPOCHS - epochs;
        let mut stats = RunStats::start();
        let goes_on = || !self.stop.is_set();
        let end = match &mut self.ways[way] {
            Way::Files(files) => files.read(first, &mut stats, goes_on)?,
            Way::Loader(loader) => {
                loader.set_epoch(first)?;
                let mut silent = Meter::new("", 0, true);
                let mut batches = Samples::of(&**loader);
                read_batches(&mut batches, &mut stats, &mut silent, |_, _, _| Ok(goes_on()))?
            }
        };
        match end {
            End::Complete => Ok(stats.finish()),
            End::Stopped => Err(stopped()),
        }
    }

    /// The medians of one way over all rounds.
    fn figures(&self, way: usize, rounds: &[[RunReport; 3]]) -> Figures {
        let median = |of: fn(&RunReport) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(|reports| of(&reports[way])).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Figures {
            verified: matches!(self.ways[way], Way::Loader(_)),
            samples_per_s: median(|report| report.samples_per_s),
            bytes_per_s: median(|report| report.bytes as f64 / report.seconds),
            cpu_s_per_gb: median(RunReport::cpu_s_per_gb),
            cold_samples_per_s: None,
            order_crc32c: rounds[0][way].order_crc32c,
        }
    }
}

/// One thread that opens, reads and closes the files of each batch, as a trainer does.
struct FileReader {
    /// By id.
    paths: Vec<PathBuf>,
    sampler: Sampler,
    ids: Vec<SampleId>,
    /// The files of a batch, concatenated.
    bytes: Vec<u8>,
}

impl FileReader {
    fn read(
        &mut self,
        first: u64,
        stats: &mut RunStats,
        goes_on: impl Fn() -> bool,
    ) -> Result<End, Failure> {
        self.sampler.set_epoch(first)?;
        loop {
            let asked = Instant::now();
            if self.sampler.next(&mut self.ids)?.is_none() {
                return Ok(End::Complete);
            }
            self.read_batch()?;
            stats.batch(self.ids.iter().map(|id| id.0), self.bytes.len() as u64, asked.elapsed());
            if !goes_on() {
                return Ok(End::Stopped);
            }
        }
    }

    fn read_batch(&mut self) -> Result<(), Error> {
        self.bytes.clear();
        for id in &self.ids {
            let path = &self.paths[id.0 as usize];
            let read = File::open(path).and_then(|mut file| file.read_to_end(&mut self.bytes));
            read.map_err(|error| about_file("cannot read the source again", path, error))?;
        }
        Ok(())
    }
}

/// The intended length of the fastest way's turns, in seconds: long enough that the start of a loader does not matter.
/// A single epoch may take longer.
const TURN_S: f64 = 0.4;
/// The most epochs of a turn. Each loader's order has as many: a turn reads the last ones.
const MAX_EPOCHS: u64 = 256;
/// The most rounds.
const MAX_ROUNDS: usize = 7;
/// After the first measured round, a round that would end after this limit is not started.
const LIMIT: Duration = Duration::from_secs(5);
