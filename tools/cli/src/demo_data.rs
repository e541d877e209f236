//! A small data set for `dlfs demo`, and three ways of reading the same files: file by file, the image in place, and
//! the image over NVMe/TCP.
//!
//! The data set has class folders of pseudo-random files, determined by a seed.
//!
//! Each way delivers the same batches of the same shuffled epochs to one thread. The ways take turns, so that
//! other load on the machine affects all of them, and the figures are medians over the rounds. Each turn ends
//! with the last epoch of the way's loader, which then has nothing to read ahead during the turns of others.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use dlfs::dataset::{Dataset, Image, Loader, Sampler};
use dlfs::directory::Directory;
use dlfs::permutation::Key;
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::exit::{Failure, Stop, about_file};
use crate::out::Meter;
use crate::reading::{End, RunReport, RunStats, Samples, read_batches};

/// The amount of data to generate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DemoData {
    /// Determines every size and every byte.
    pub(crate) seed: u64,
    /// Files with the sizes of ImageNet's pictures: log-normal, about 110 KB.
    pub(crate) pictures: u64,
    /// Files of 1 byte to 4 KiB: icons, captions.
    pub(crate) tiny: u64,
}

/// Totals of the generated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) classes: u64,
}

impl DemoData {
    /// The default data set: 4,000 files, about 140 MB.
    pub(crate) const DEFAULT: DemoData = DemoData { seed: 2026, pictures: 1_200, tiny: 2_800 };

    /// Generates the class folders below `root`. `progress` receives the files and bytes so far,
    /// and returns `false` to stop.
    ///
    /// # Errors
    /// Errors of the operating system, with the file.
    pub(crate) fn make(
        &self,
        root: &Path,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Made, Error> {
        let classes: Vec<&str> = CLASSES.split_whitespace().collect();
        for class in &classes {
            let folder = root.join(class);
            fs::create_dir_all(&folder)
                .map_err(|error| about_file("cannot make the folder", &folder, error))?;
        }
        let mut random = Random(self.seed);
        let mut made = Made { files: 0, bytes: 0, classes: classes.len() as u64 };
        let mut contents = Vec::new();
        for index in 0..self.pictures + self.tiny {
            let (len, suffix) = if index < self.pictures {
                (random.picture_len(), "jpg")
            } else {
                (random.below(MAX_TINY_BYTES) as usize + 1, "txt")
            };
            random.fill(&mut contents, len);
            let class = classes[random.below(made.classes) as usize];
            let path = root.join(class).join(format!("{class}_{index:05}.{suffix}"));
            let written = fs::File::create_new(&path).and_then(|mut f| f.write_all(&contents));
            written.map_err(|error| about_file("cannot write", &path, error))?;
            made.files += 1;
            made.bytes += len as u64;
            if !progress(made.files, made.bytes) {
                break;
            }
        }
        Ok(made)
    }
}

/// SplitMix64, whose function is that of keys: small, seeded, and incompressible enough.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        let word = Key::new(self.0).word();
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Log-normal with ImageNet's mean of 110 KB and a similar spread, cut off at 4 KB and 1 MB.
    fn picture_len(&mut self) -> usize {
        // The sum of twelve uniform numbers minus six approximates a normal distribution.
        let unit = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
        let normal = (0..12).map(|_| unit(self.next())).sum::<f64>() - 6.0;
        let len = MEAN_PICTURE_BYTES * (SIGMA * normal - SIGMA * SIGMA / 2.0).exp();
        len.clamp(4_000.0, 1_000_000.0) as usize
    }

    fn fill(&mut self, contents: &mut Vec<u8>, len: usize) {
        contents.clear();
        while contents.len() < len {
            contents.extend(self.next().to_le_bytes());
        }
        contents.truncate(len);
    }
}

const MEAN_PICTURE_BYTES: f64 = 110_000.0;
const MAX_TINY_BYTES: u64 = 4096;
const SIGMA: f64 = 0.6;
const CLASSES: &str = "
    accordion bagel castle dragonfly espresso flamingo goldfish harp iguana jellyfish koala
    lighthouse mitten newt otter pretzel";

/// The source file of each sample, by id.
pub(crate) struct Source<'a> {
    root: PathBuf,
    directory: &'a Directory,
}

impl<'a> Source<'a> {
    /// The source files of `directory`'s samples, below `root`.
    pub(crate) fn new(root: &Path, directory: &'a Directory) -> Source<'a> {
        Source { root: root.to_path_buf(), directory }
    }

    /// Compares each sample of the batch with its file, byte for byte.
    ///
    /// # Errors
    /// `Corrupt`: a sample differs from its file. Errors of the operating system, with the file.
    pub(crate) fn compare(&self, batch: &Batch) -> Result<(), Error> {
        for index in 0..batch.len() {
            let id = batch.id(index);
            let path = self.path(id)?;
            let file = fs::read(&path);
            let file =
                file.map_err(|error| about_file("cannot read the source again", &path, error))?;
            if file != batch.bytes(index) {
                let text = "what was read differs from the source file";
                return Err(Error::new(ErrorKind::Corrupt, text).sample(id).path(path));
            }
        }
        Ok(())
    }

    /// The file of each sample, by id.
    ///
    /// # Errors
    /// `Corrupt`: a name cannot be decoded.
    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>, Error> {
        (0..self.directory.num_samples()).map(|id| self.path(SampleId(id))).collect()
    }

    /// Drops the files from the page cache; `false` if they are on an in-memory file system. Dirty pages
    /// stay: writing them out would wait for all other writers.
    ///
    /// # Errors
    /// Errors of the operating system, with the file.
    fn drop_pages(&self) -> Result<bool, Error> {
        for id in (0..self.directory.num_samples()).map(SampleId) {
            if !drop_pages_of(&self.path(id)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn path(&self, id: SampleId) -> Result<PathBuf, Error> {
        let name = self.directory.name(id)?.unwrap_or_default();
        Ok(self.root.join(OsStr::from_bytes(&name)))
    }
}

/// Drops a file from the page cache; `false` if it is on an in-memory file system.
///
/// # Errors
/// Errors of the operating system, with the file.
fn drop_pages_of(path: &Path) -> Result<bool, Error> {
    let failed = |error: rustix::io::Errno| {
        about_file("cannot drop the pages of", path, std::io::Error::from(error))
    };
    let file = File::open(path).map_err(|error| about_file("cannot open", path, error))?;
    if IN_MEMORY.contains(&rustix::fs::fstatfs(&file).map_err(failed)?.f_type) {
        return Ok(false);
    }
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(failed)?;
    Ok(true)
}

/// The magic numbers of tmpfs and ramfs in statfs(2).
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// The figures of each way.
#[derive(Serialize)]
pub(crate) struct Compared {
    /// Number of rounds behind the medians.
    rounds: usize,
    /// Epochs in a round.
    pub(crate) epochs: u64,
    /// One thread opens, reads and closes each file.
    pub(crate) files: Figures,
    /// A loader reads the image file.
    pub(crate) image: Figures,
    /// A loader reads the image through a socket; the target's processor time counts too.
    pub(crate) nvme_tcp: Figures,
}

#[derive(Serialize)]
pub(crate) struct Figures {
    /// True if each sample is checked against its checksum.
    pub(crate) verified: bool,
    /// With everything in the page cache, as the next two fields.
    pub(crate) samples_per_s: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) cpu_s_per_gb: f64,
    /// From the disk; `None` if the files or the image are in memory, or the files were generated by the demo.
    pub(crate) cold_samples_per_s: Option<f64>,
    /// Checksum over the ids in the order of delivery: the same for all ways.
    pub(crate) order_crc32c: u32,
}

/// The three ways, ready to read.
pub(crate) struct Comparison<'a> {
    source: &'a Source<'a>,
    image: &'a Path,
    ways: [Way; 3],
    stop: Stop,
}

enum Way {
    Files(Box<FileReader>),
    Loader(Box<Loader>),
}

impl<'a> Comparison<'a> {
    /// Compares `source` with the image at `image`, and with `served`, the same image over NVMe/TCP, along
    /// the order of `options`.
    ///
    /// # Errors
    /// As [`Image::open`] and [`Dataset::loader`].
    pub(crate) fn new(
        source: &'a Source<'a>,
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
    pub(crate) fn run(mut self, cold: bool) -> Result<Compared, Failure> {
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

    fn round(&mut self, epochs: u64) -> Result<[RunReport; 3], Failure> {
        Ok([self.read(0, epochs)?, self.read(1, epochs)?, self.read(2, epochs)?])
    }

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

/// The error of a demo that the user stopped.
pub(crate) fn stopped() -> Failure {
    Error::new(ErrorKind::Interrupted, "the demo was stopped").into()
}

/// The shortest turn: long enough that the start of a loader does not matter.
const TURN_S: f64 = 0.4;
const MAX_EPOCHS: u64 = 256;
const MAX_ROUNDS: usize = 7;
/// A round that would end after this limit is not started.
const LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn made(seed: u64) -> (tempfile::TempDir, Made) {
        let root = tempfile::tempdir().unwrap();
        let data = DemoData { seed, pictures: 40, tiny: 60 };
        let made = data.make(root.path(), |_, _| true).unwrap();
        (root, made)
    }

    fn listing(root: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for class in fs::read_dir(root).unwrap() {
            for file in fs::read_dir(class.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                files.push((
                    path.strip_prefix(root).unwrap().to_path_buf(),
                    fs::read(&path).unwrap(),
                ));
            }
        }
        files.sort();
        files
    }

    #[test]
    fn the_same_seed_makes_the_same_files() {
        let (a, made_a) = made(1);
        let (b, made_b) = made(1);
        let (c, _) = made(2);
        assert_eq!(made_a, made_b);
        assert_eq!(made_a.files, 100);
        let files = listing(a.path());
        assert_eq!(files.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>(), made_a.bytes);
        assert_eq!(files, listing(b.path()));
        assert_ne!(files, listing(c.path()));
    }

    #[test]
    fn pictures_are_about_as_large_as_imagenet_s() {
        let mut random = Random(7);
        let lens: Vec<usize> = (0..20_000).map(|_| random.picture_len()).collect();
        let mean = lens.iter().sum::<usize>() / lens.len();
        assert!((100_000..120_000).contains(&mean), "mean {mean}");
        assert!(lens.iter().all(|len| (4_000..=1_000_000).contains(len)));
    }

    #[test]
    fn making_demo_data_stops_on_request() {
        let root = tempfile::tempdir().unwrap();
        let data = DemoData { seed: 1, pictures: 5, tiny: 5 };
        let made = data.make(root.path(), |files, _| files < 3).unwrap();
        assert_eq!(made.files, 3);
    }
}
