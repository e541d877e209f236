//! The source files of `dlfs demo`: generates a small data set, and compares samples with their files.
//!
//! The data set has class folders of pseudo-random files, determined by a seed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dlfs::directory::Directory;
use dlfs::permutation::Key;
use dlfs::reader::Batch;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::exit::about_file;

/// Generates the files of a data set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Generator {
    /// Determines every size and every byte.
    pub(super) seed: u64,
    /// Files with the sizes of ImageNet's pictures: log-normal, about 110 KB.
    pub(super) pictures: u64,
    /// Files of 1 byte to 4 KiB: icons, captions.
    pub(super) tiny: u64,
}

/// Totals of the generated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generated {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) classes: u64,
}

impl Generator {
    /// The default data set: 4,000 files, about 140 MB.
    pub(super) const DEFAULT: Generator = Generator { seed: 2026, pictures: 1_200, tiny: 2_800 };

    /// Generates the class folders below `root`. `progress` receives the files and bytes so far,
    /// and returns `false` to stop.
    ///
    /// # Errors
    /// Errors of the operating system, with the file.
    pub(super) fn generate(
        &self,
        root: &Path,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Generated, Error> {
        let classes: Vec<&str> = CLASSES.split_whitespace().collect();
        for class in &classes {
            let folder = root.join(class);
            fs::create_dir_all(&folder)
                .map_err(|error| about_file("cannot make the folder", &folder, error))?;
        }
        let mut random = Random(self.seed);
        let mut generated = Generated { files: 0, bytes: 0, classes: classes.len() as u64 };
        let mut contents = Vec::new();
        for index in 0..self.pictures + self.tiny {
            let (len, suffix) = if index < self.pictures {
                (random.picture_len(), "jpg")
            } else {
                (random.below(MAX_TINY_BYTES) as usize + 1, "txt")
            };
            random.fill(&mut contents, len);
            let class = classes[random.below(generated.classes) as usize];
            let path = root.join(class).join(format!("{class}_{index:05}.{suffix}"));
            let written = fs::File::create_new(&path).and_then(|mut f| f.write_all(&contents));
            written.map_err(|error| about_file("cannot write", &path, error))?;
            generated.files += 1;
            generated.bytes += len as u64;
            if !progress(generated.files, generated.bytes) {
                break;
            }
        }
        Ok(generated)
    }
}

/// SplitMix64: pseudo-random numbers from a seed, which compress badly. [`Key::new`] mixes numbers in the same way.
struct Random(u64);

impl Random {
    /// 64 random bits.
    fn next(&mut self) -> u64 {
        let word = Key::new(self.0).word();
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// The length of a picture in bytes: log-normal with ImageNet's mean of 110 KB and a similar spread, within 4 KB
    /// and 1 MB.
    fn picture_len(&mut self) -> usize {
        // The sum of twelve uniform numbers minus six approximates a normal distribution.
        let uniform = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
        let normal = (0..12).map(|_| uniform(self.next())).sum::<f64>() - 6.0;
        let len = MEAN_PICTURE_BYTES * (SIGMA * normal - SIGMA * SIGMA / 2.0).exp();
        len.clamp(4_000.0, 1_000_000.0) as usize
    }

    /// Replaces `contents` by `len` random bytes.
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
/// The standard deviation of the logarithm of a picture's length.
const SIGMA: f64 = 0.6;
const CLASSES: &str = "
    accordion bagel castle dragonfly espresso flamingo goldfish harp iguana jellyfish koala
    lighthouse mitten newt otter pretzel";

/// The files that were imported, by the ids of their samples.
pub(super) struct SourceFiles<'a> {
    root: PathBuf,
    directory: &'a Directory,
}

impl<'a> SourceFiles<'a> {
    /// The source files of `directory`'s samples, below `root`.
    pub(super) fn new(root: &Path, directory: &'a Directory) -> SourceFiles<'a> {
        SourceFiles { root: root.to_path_buf(), directory }
    }

    /// Compares each sample of the batch with its file, byte for byte.
    ///
    /// # Errors
    /// `Corrupt`: a sample differs from its file. Errors of the operating system, with the file.
    pub(super) fn compare(&self, batch: &Batch) -> Result<(), Error> {
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
    pub(super) fn paths(&self) -> Result<Vec<PathBuf>, Error> {
        (0..self.directory.num_samples()).map(|id| self.path(SampleId(id))).collect()
    }

    /// Drops the files from the page cache; returns `false` if they are on an in-memory file system. Dirty pages
    /// stay: writing them out would wait for all other writers.
    ///
    /// # Errors
    /// Errors of the operating system, with the file.
    pub(super) fn drop_pages(&self) -> Result<bool, Error> {
        for id in (0..self.directory.num_samples()).map(SampleId) {
            if !drop_pages_of(&self.path(id)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The file of a sample: its name below `root`.
    fn path(&self, id: SampleId) -> Result<PathBuf, Error> {
        let name = self.directory.name(id)?.unwrap_or_default();
        Ok(self.root.join(OsStr::from_bytes(&name)))
    }
}

/// Drops a file from the page cache; returns `false` if it is on an in-memory file system.
///
/// # Errors
/// Errors of the operating system, with the file.
pub(super) fn drop_pages_of(path: &Path) -> Result<bool, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(seed: u64) -> (tempfile::TempDir, Generated) {
        let root = tempfile::tempdir().unwrap();
        let data = Generator { seed, pictures: 40, tiny: 60 };
        let generated = data.generate(root.path(), |_, _| true).unwrap();
        (root, generated)
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
        let (a, made_a) = generated(1);
        let (b, made_b) = generated(1);
        let (c, _) = generated(2);
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
        let data = Generator { seed: 1, pictures: 5, tiny: 5 };
        let generated = data.generate(root.path(), |files, _| files < 3).unwrap();
        assert_eq!(generated.files, 3);
    }
}
