//! Generates a small data set for `dlfs demo`: class folders of pseudo-random files, determined by a seed.

use std::fs;
use std::io::Write;
use std::path::Path;

use dlfs::Error;
use dlfs::permutation::Key;

use crate::exit::about_file;

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
