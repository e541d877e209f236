//! Makes the indexes of all shards in parallel, where none is kept. Several processes share the work.

use std::collections::VecDeque;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlfs_base::threads::caught;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_import::import::{Progress, Stage};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::index::ShardIndex;
use crate::set::ShardSet;

/// The indexes of all shards.
#[derive(Debug)]
pub struct Indexed {
    /// In the order of the shards.
    pub indexes: Vec<ShardIndex>,
    /// Number of the indexes that this call made; the others were kept.
    pub made: u64,
}

impl ShardSet {
    /// Makes the indexes that are not kept, and keeps them. Another process that does so at the same time makes others.
    ///
    /// # Errors
    /// Errors of reading a shard, and of the folder of indexes. `Interrupted`: asked to stop.
    pub fn index(&self, progress: &mut dyn Progress) -> Result<Indexed> {
        let bytes = self.shards().iter().map(|shard| shard.len_bytes).sum();
        progress.stage(Stage::Indexing, 0, bytes);
        let work = Work::new(self.kept_indexes()?);
        let threads = THREADS.min(work.left.lock().len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let run = || {
                    let result = caught("the thread dlfs-index", || work.run(self));
                    work.end(result.and_then(|done| done));
                };
                let thread = std::thread::Builder::new().name("dlfs-index".into());
                if let Err(error) = thread.spawn_scoped(scope, run) {
                    work.end(Err(error.into()));
                }
            }
            while work.ended.load(Ordering::Acquire) < threads as u64 {
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
        let mut indexes = work.done.into_inner();
        indexes.sort_unstable_by_key(|(shard, _)| *shard);
        let indexes: Vec<_> = indexes.into_iter().map(|(_, index)| index).collect();
        self.pack(&indexes);
        Ok(Indexed { indexes, made })
    }

    /// The index of a shard, and whether it was made now. `None`: another process is making it.
    fn index_of(&self, shard: usize, work: &Work) -> Result<Option<(ShardIndex, bool)>> {
        if let Some(index) = self.kept_index(shard)? {
            return Ok(Some((index, false)));
        }
        let Some(kept) = &self.kept else {
            return Ok(Some((self.make(shard, work)?, true)));
        };
        let Some(making) = kept.begin(self.key_of(shard))? else { return Ok(None) };
        // Another process may have ended it before this one was given the right.
        if let Some(index) = self.kept_index(shard)? {
            making.give_back();
            return Ok(Some((index, false)));
        }
        let index = self.make(shard, work)?;
        making.end(&index)?;
        Ok(Some((index, true)))
    }

    fn make(&self, shard: usize, work: &Work) -> Result<ShardIndex> {
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

/// The work that threads share.
struct Work {
    /// The shards left.
    left: Mutex<VecDeque<usize>>,
    done: Mutex<Vec<(usize, ShardIndex)>>,
    error: Mutex<Option<Error>>,
    is_over: AtomicBool,
    samples: AtomicU64,
    bytes: AtomicU64,
    made: AtomicU64,
    /// Number of threads that have ended.
    ended: AtomicU64,
}

impl Work {
    /// All shards without an index in `kept`. Each process begins at another place, so that they seldom meet.
    fn new(kept: Vec<Option<ShardIndex>>) -> Work {
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
        Work {
            left: Mutex::new(left),
            done: Mutex::new(done),
            error: Mutex::default(),
            is_over: AtomicBool::new(false),
            samples: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            made: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

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

    fn fail(&self, error: Error) {
        self.error.lock().get_or_insert(error);
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn end(&self, result: Result<()>) {
        if let Err(error) = result {
            self.fail(error);
        }
        self.ended.fetch_add(1, Ordering::Release);
    }
}

/// Readers at a time: enough to hide a store's delay, few enough for their windows.
const THREADS: usize = 8;
/// Time between two reports, and before a shard is looked at again that another process indexes.
const STEP: Duration = Duration::from_millis(50);
