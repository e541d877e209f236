//! Indexes all shards of a set: threads, and processes that share kept indexes, divide the shards.

use std::collections::VecDeque;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::index::ShardIndex;
use crate::set::ShardSet;
use dlfs_base::threads::caught;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_import::import::{Progress, Stage};

/// The indexes of all shards.
#[derive(Debug)]
pub struct Indexed {
    /// In the order of the shards.
    pub indexes: Vec<ShardIndex>,
    /// Number of the indexes that this call made; the others were kept.
    pub made: u64,
}

impl ShardSet {
    /// Makes and keeps the indexes that are not kept yet. Processes that do so at the same time divide the shards.
    ///
    /// # Errors
    /// Errors of reading a shard, and of the folder or store of indexes. `Interrupted`: `progress` asked to stop.
    pub fn index(&self, progress: &mut dyn Progress) -> Result<Indexed> {
        let bytes = self.shards().iter().map(|shard| shard.len_bytes).sum();
        progress.stage(Stage::Indexing, 0, bytes);
        let work = IndexingWork::new(self.kept_indexes()?);
        let count = THREADS.min(work.left.lock().len());
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..count {
                let run = || {
                    let done = caught("the thread dlfs-index", || work.run(self));
                    done.and_then(|done| done).unwrap_or_else(|error| work.fail(error));
                };
                let thread = std::thread::Builder::new().name("dlfs-index".into());
                match thread.spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => work.fail(error.into()),
                }
            }
            while !threads.iter().all(|thread| thread.is_finished()) {
                std::thread::sleep(STEP);
                let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
                progress.advance(take(&work.samples), take(&work.bytes));
                if progress.stop() {
                    work.fail(Error::new(ErrorKind::Interrupted, "indexing was stopped"));
                }
            }
        });
        if let Some(error) = work.error.into_inner() {
            return Err(error);
        }
        let made = work.made.into_inner();
        let mut done = work.done.into_inner();
        done.sort_unstable_by_key(|(shard, _)| *shard);
        let indexes: Vec<_> = done.into_iter().map(|(_, index)| index).collect();
        if let Some(kept) = &self.kept {
            kept.pack(&self.keys, &indexes);
        }
        Ok(Indexed { indexes, made })
    }

    /// The index of a shard, and whether this call made it. `None`: another process is making it.
    fn index_of(&self, shard: usize, work: &IndexingWork) -> Result<Option<(ShardIndex, bool)>> {
        if let Some(index) = self.kept_index(shard)? {
            return Ok(Some((index, false)));
        }
        let Some(kept) = &self.kept else {
            return Ok(Some((self.make(shard, work)?, true)));
        };
        let Some(making) = kept.begin(self.key_of(shard))? else { return Ok(None) };
        // Another process may have kept it before this one got the right to make it.
        if let Some(index) = self.kept_index(shard)? {
            making.give_back();
            return Ok(Some((index, false)));
        }
        let index = self.make(shard, work)?;
        making.end(&index)?;
        Ok(Some((index, true)))
    }

    /// Decodes a whole shard to make its index.
    fn make(&self, shard: usize, work: &IndexingWork) -> Result<ShardIndex> {
        let mut reader = self.reader(shard)?;
        let mut record = Vec::new();
        while let Some(sample) = reader.next(&mut record)? {
            work.samples.fetch_add(1, Ordering::Relaxed);
            work.bytes.fetch_add(sample.len_bytes.into(), Ordering::Relaxed);
            if work.is_over.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Interrupted, "indexing was stopped"));
            }
            record.clear();
        }
        reader.finish()
    }
}

/// State that the threads of one call of [`ShardSet::index`] share.
#[derive(Default)]
struct IndexingWork {
    /// Numbers of the shards that no thread has taken yet.
    left: Mutex<VecDeque<usize>>,
    /// Numbers of shards, and their indexes, in any order.
    done: Mutex<Vec<(usize, ShardIndex)>>,
    /// The first error; it ends the work.
    error: Mutex<Option<Error>>,
    /// Set with the first error: threads then stop.
    is_over: AtomicBool,
    /// Samples and bytes since the last report of progress.
    samples: AtomicU64,
    bytes: AtomicU64,
    /// Number of the indexes that this process made.
    made: AtomicU64,
}

impl IndexingWork {
    /// All shards without an index in `kept`. Each process begins at another shard, so that two processes seldom want
    /// the same one.
    fn new(kept: Vec<Option<ShardIndex>>) -> IndexingWork {
        let mut left = VecDeque::new();
        let mut done = Vec::new();
        for (shard, index) in kept.into_iter().enumerate() {
            match index {
                Some(index) => done.push((shard, index)),
                None => left.push_back(shard),
            }
        }
        let count = left.len().max(1);
        left.rotate_left(xxh3_64(&process::id().to_le_bytes()) as usize % count);
        IndexingWork { left: Mutex::new(left), done: Mutex::new(done), ..IndexingWork::default() }
    }

    /// Indexes shards until none is left or the work is over.
    fn run(&self, set: &ShardSet) -> Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            let Some(shard) = self.left.lock().pop_front() else { break };
            match set.index_of(shard, self)? {
                Some((index, is_made)) => {
                    self.made.fetch_add(is_made.into(), Ordering::Relaxed);
                    self.done.lock().push((shard, index));
                }
                None => {
                    self.left.lock().push_back(shard);
                    std::thread::sleep(STEP);
                }
            }
        }
        Ok(())
    }

    /// Ends the work with `error`, unless it has ended with an earlier one.
    fn fail(&self, error: Error) {
        self.error.lock().get_or_insert(error);
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Enough to hide a store's delay; each thread's reader has a window in memory.
const THREADS: usize = 8;
/// Time between two reports of progress, and between two looks at a shard that another process indexes.
const STEP: Duration = Duration::from_millis(50);
