//! Counts of programs' opens and reads, as seen by FUSE: reads that the kernel answers itself, from its page
//! cache or by passthrough, are not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs::dataset::{EpochCounts, FileCounts, Files};
use dlfs::posix::File;
use dlfs::units::Epoch;

pub(crate) struct Counters {
    files: Arc<Files>,
    opens: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn new(files: Arc<Files>) -> Counters {
        let (opens, reads, bytes) = Default::default();
        Counters { files, opens, reads, bytes }
    }

    /// Counts an open: a program starts to read `file`. `along` is the file's epoch in the order, if it was read
    /// ahead.
    pub(crate) fn opened(&self, file: File, along: Option<Epoch>) {
        self.files.opened(file, along, self.so_far());
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read answered with `bytes`.
    pub(crate) fn answered(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The counters of each epoch, as JSON.
    pub(crate) fn epochs(&self) -> String {
        EpochCounts::to_json(&self.files.epochs_so_far(self.so_far()))
    }

    fn so_far(&self) -> FileCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FileCounts { opens: load(&self.opens), reads: load(&self.reads), bytes: load(&self.bytes) }
    }
}
