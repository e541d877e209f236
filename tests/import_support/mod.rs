//! Sources to import, and disks that record and fail writes.

pub mod disk;
pub mod served;
pub mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::Uuid;
use dlfs::import::{ImportOptions, Onto, Progress, Stage};
use dlfs::qpair::Device;
use dlfs::units::SampleId;

/// Returns whether tests are to try all cases, also those that take long.
pub fn is_long() -> bool {
    std::env::var_os("DLFS_LONG_TESTS").is_some()
}

/// A small generator of test data.
pub struct Random(u64);

impl Random {
    /// Prints its seed, so that a failure can be reproduced.
    pub fn new(seed: u64) -> Random {
        println!("seed {seed}");
        Random::quiet(seed)
    }

    /// As [`Random::new`], for one of many runs, which prints its seed when it fails.
    pub fn quiet(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Makes a folder of `count` files in three classes, up to `max_len` bytes each.
pub fn tree(root: &Path, count: usize, max_len: usize, seed: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut random = Random::new(seed);
    let mut files = BTreeMap::new();
    for i in 0..count {
        let name = format!("class{}/file-{seed}-{i:05}", i % 3);
        let len = random.below(max_len + 1);
        let content = random.bytes(len);
        let path = root.join(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &content).unwrap();
        files.insert(name.into_bytes(), content);
    }
    files
}

/// Options under which the same source gives the same bytes, in small chunks and with one thread.
pub fn options(onto: Onto) -> ImportOptions {
    ImportOptions {
        onto,
        seed: 5,
        chunk_size_bytes: 64 << 10,
        reader_threads: 1,
        uuid: Some(Uuid([7; 16])),
        time_ns: Some(1_000_000_000),
        ..ImportOptions::default()
    }
}

/// Opens the image and reads every sample of it by its name.
pub fn contents(devices: &[Arc<dyn Device>]) -> dlfs::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let image = Image::from_devices(devices.to_vec(), &OpenOptions::default())?;
    let report = image.verify(&Default::default(), &mut |_| ())?;
    // A commit that was cut off by a power loss may have torn the superblock copy that it wrote.
    let damages =
        report.damages.iter().filter(|damage| !damage.what.starts_with("superblock copy"));
    assert_eq!(damages.count(), 0, "{:?}", report.damages);
    image.load_names()?;
    let directory = image.directory();
    let mut samples = BTreeMap::new();
    for rank in 0..directory.num_live() {
        let id: SampleId = directory.id_of_live(rank);
        let extent = directory.extent(id).unwrap();
        let pair = image.devices()[usize::from(extent.namespace)].queue_pair()?;
        let mut io = dlfs::qpair::blocking::Blocking::new(pair)?;
        let bytes = io.read(extent.offset_bytes, extent.len_bytes as usize)?;
        samples.insert(directory.name(id)?.unwrap(), bytes.to_vec());
    }
    Ok(samples)
}

/// The paths of a source, as an import takes them.
pub fn paths(root: &Path) -> Vec<PathBuf> {
    vec![root.to_path_buf()]
}

/// Stops an import after this many progress reports.
pub struct StopAfter(pub u32);

impl Progress for StopAfter {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}
    fn advance(&mut self, _: u64, _: u64) {
        self.0 = self.0.saturating_sub(1);
    }
    fn stop(&mut self) -> bool {
        self.0 == 0
    }
}
