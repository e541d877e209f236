//! Opening a data set of ten million samples: its snapshot, from the page cache.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use dlfs::buf::IoBuf;
use dlfs::directory::Directory;

use crate::slice::Done;
use crate::support::snapshot::directory_of;

/// The snapshot of ten million samples in `folder`, created if it does not exist.
pub(crate) fn snapshot(folder: &Path) -> PathBuf {
    let path = folder.join("ten-million.snapshot");
    if !path.exists() {
        eprintln!("making a directory of {SAMPLES} samples, once");
        let bytes = directory_of(SAMPLES).to_snapshot().expect("it has its names");
        let half = folder.join("ten-million.half");
        std::fs::write(&half, bytes).expect("room for a snapshot");
        std::fs::rename(&half, &path).expect("a name in the same folder");
    }
    path
}

/// Reads the snapshot and builds the directory from it, as opening an image does.
pub(crate) fn open(path: &Path) -> Done {
    let mut file = File::open(path).expect("the snapshot made before");
    let mut bytes = IoBuf::zeroed(file.metadata().expect("its length").len() as usize);
    file.read_exact(&mut bytes).expect("as long as it says");
    let bytes_read = bytes.len() as u64;
    let directory = Directory::from_snapshot(bytes).expect("a snapshot just made");
    assert_eq!(directory.num_samples(), SAMPLES, "all of them");
    Done { ops: SAMPLES, bytes: bytes_read, batches: 0 }
}

const SAMPLES: u64 = 10_000_000;
