//! The shards of a source, their readers, and their indexes, which are made in parallel where none is kept. Several
//! processes share the work.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::index::{LONGEST_RUN_BYTES, MAX_RUN_SAMPLES, RUN_BYTES, ShardIndex, ShardSample};
use crate::kept::KeptIndexes;
use dlfs_base::checksum::crc32c;
use dlfs_base::threads::caught;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_import::import::shards::{Shard, ShardStream, Shards};
use dlfs_import::import::sources::SourceKind;
use dlfs_import::import::sources::sample_stream::{SampleStream, StreamPlace};
use dlfs_import::import::{ImportOptions, Progress, Stage};
use dlfs_io::address::Address;

/// Options to read shards as they are.
#[derive(Debug, Clone, Default)]
pub struct ShardOptions {
    /// The folder, or the prefix of a store, that keeps indexes; `None`: nothing is kept.
    pub index: Option<PathBuf>,
    /// The image that the first epoch writes, and later ones read: a namespace for each rank. Empty: none.
    pub import_to: Vec<Address>,
    /// The options with which an import would take the source: kind, columns of rows, types of fields, bad entries.
    pub import: ImportOptions,
}

/// The shards of a source, in the order of an import. Threads share it.
pub struct ShardSet {
    pub(crate) shards: Shards,
    pub(crate) options: ImportOptions,
    pub(crate) kept: Option<KeptIndexes>,
    address: String,
    keys: Vec<u128>,
}

impl ShardSet {
    /// Lists the shards of `sources`, and finds their kind and fields as an import does. This reads what defines them:
    /// the first sample of WebDataset shards, unless an index is kept; of rows the columns of each file.
    ///
    /// # Errors
    /// `BadSource`: the source has no shards, or shards of several kinds. Errors of reading it, and of the folder of
    /// indexes.
    pub fn open(
        sources: &[PathBuf],
        options: &ShardOptions,
        progress: &mut dyn Progress,
    ) -> Result<ShardSet> {
        let ShardOptions { index, import, .. } = options;
        let mut import = import.clone();
        // Several shards are read at a time, each with a window of its own.
        import.places.window_bytes = import.places.window_bytes.min(WINDOW_BYTES);
        let shards = Shards::look(sources, &import, progress)?;
        let context = shards.fingerprint();
        let keys = shards.shards().iter().map(|shard| key(shard, context)).collect();
        let shown: Vec<String> = sources.iter().map(|path| dlfs_places::shown(path)).collect();
        let address = shown.join(",");
        let mut set = ShardSet { shards, options: import, kept: None, address, keys };
        if let Some(place) = index {
            let hashes = (xxh3_64(set.address.as_bytes()), set.identity());
            set.kept = Some(KeptIndexes::open(place, hashes, &set.options.places)?);
        }
        if set.shards.is_of_first()
            && let Some(first) = set.kept_index(0)?
        {
            set.shards.set_layout(first.fields, first.types);
        }
        set.shards.layout()?;
        Ok(set)
    }

    /// The shards.
    pub fn shards(&self) -> &[Shard] {
        self.shards.shards()
    }

    /// Returns whether a shard has column after column, so that a row is in several places.
    pub fn has_columns(&self) -> bool {
        matches!(self.shards.kind(), SourceKind::Parquet | SourceKind::Arrow)
    }

    /// The address or path that the user gave.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Names of the fields of all samples; empty for one unnamed field.
    pub fn fields(&self) -> Result<&[Vec<u8>]> {
        Ok(&self.shards.layout()?.0)
    }

    /// The types of the fields.
    pub fn field_types(&self) -> Result<&FieldTypes> {
        Ok(&self.shards.layout()?.1)
    }

    /// The identity of the data set: a hash of all shards, in order, and of what defines their samples.
    pub fn identity(&self) -> u128 {
        let mut hash = Xxh3::new();
        self.keys.iter().for_each(|key| hash.update(&key.to_le_bytes()));
        hash.digest128()
    }

    /// The key of a shard's index: a hash of its address, length and stamp, and of what defines its samples.
    pub fn key_of(&self, shard: usize) -> u128 {
        self.keys[shard]
    }

    /// The kept index of a shard, if there is one.
    ///
    /// # Errors
    /// Errors of reading it; a damaged one does not count.
    pub fn kept_index(&self, shard: usize) -> Result<Option<ShardIndex>> {
        match &self.kept {
            Some(kept) => kept.load(self.keys[shard]),
            None => Ok(None),
        }
    }

    /// The kept indexes of all shards; `None`: there is none.
    ///
    /// # Errors
    /// Errors of reading them; a damaged one does not count.
    pub fn kept_indexes(&self) -> Result<Vec<Option<ShardIndex>>> {
        match &self.kept {
            Some(kept) => kept.load_all(&self.keys),
            None => Ok(vec![None; self.keys.len()]),
        }
    }

    /// Keeps the indexes of all shards together, too, where that makes opening them faster.
    pub(crate) fn pack(&self, all: &[ShardIndex]) {
        if let Some(kept) = &self.kept {
            kept.pack(&self.keys, all);
        }
    }

    /// Number of the shards of which no index is kept. Looks at names only.
    ///
    /// # Errors
    /// Errors of listing the indexes.
    pub fn missing(&self) -> Result<usize> {
        let Some(kept) = &self.kept else { return Ok(self.keys.len()) };
        Ok(kept.there(&self.keys)?.into_iter().filter(|is_there| !is_there).count())
    }

    /// Keeps the index of a shard, unless another process does so.
    ///
    /// # Errors
    /// Errors of the folder.
    pub fn keep(&self, shard: usize, index: &ShardIndex) -> Result<()> {
        let making = self.kept.as_ref().map(|kept| kept.begin(self.keys[shard])).transpose()?;
        making.flatten().map_or(Ok(()), |making| making.end(index))
    }

    /// The error for a shard that is no longer what its index says.
    pub(crate) fn changed(&self, shard: usize) -> Error {
        let text = "the shard has changed since it was indexed";
        Error::new(ErrorKind::BadSource, text).path(&self.shards()[shard].path)
    }
}

fn key(shard: &Shard, context: u64) -> u128 {
    let mut hash = Xxh3::new();
    let Shard { path, len_bytes, stamp, .. } = shard;
    hash.update(path.as_os_str().as_encoded_bytes());
    [*len_bytes, *stamp, context].iter().for_each(|number| hash.update(&number.to_le_bytes()));
    hash.digest128()
}

/// Decodes a shard. It stays in the thread that opened it; any number of readers may be open.
pub struct ShardReader<'a> {
    set: &'a ShardSet,
    shard: usize,
    stream: ShardStream<'a>,
    /// The index so far.
    index: ShardIndex,
    /// The place where the last run begins, if it is one to read on from.
    run_at: Option<StreamPlace>,
}

impl ShardSet {
    /// Decodes a shard from its beginning.
    ///
    /// # Errors
    /// Errors of opening it. `BadSource`: it has changed since it was listed.
    pub fn reader(&self, shard: usize) -> Result<ShardReader<'_>> {
        let stream = self.shards.stream(shard, StreamPlace::default(), None)?;
        let index = ShardIndex::default();
        Ok(ShardReader { set: self, shard, stream, index, run_at: None })
    }
}

impl ShardReader<'_> {
    /// The next sample; appends its record to `record`. `None` after the last.
    ///
    /// # Errors
    /// Errors of reading the shard. Entries that cannot be read are no errors: they are in the index.
    pub fn next(&mut self, record: &mut Vec<u8>) -> Result<Option<ShardSample>> {
        let mut place = self.stream.place();
        let next = self.stream.next_sample();
        self.index.note_bad(self.stream.take_bad());
        let Some(mut sample) = next? else { return Ok(None) };
        let start = record.len();
        let len_bytes = sample.put_record(record)?;
        let found = ShardSample {
            name: std::mem::take(&mut sample.name),
            label: sample.label,
            len_bytes,
            crc32c: crc32c(&record[start..]),
            values: std::mem::take(&mut sample.values),
        };
        self.stream.give_back(sample);
        // In a compressed shard, a place is reached only through all that comes before it.
        place = place.filter(|_| !self.stream.is_packed());
        if self.index.runs().is_empty() {
            self.run_at = Some(StreamPlace::default());
            self.index.begin_run(self.run_at);
        } else if self.is_full(place, len_bytes) {
            self.run_at = place;
            self.index.begin_run(self.run_at);
        }
        self.index.push(&found, place, || self.stream.columns());
        Ok(Some(found))
    }

    /// Returns whether the sample just read, from `place`, begins a run, so that the run before is read by one range.
    fn is_full(&self, place: Option<StreamPlace>, len_bytes: u32) -> bool {
        let Some(run) = self.index.runs().last() else { return true };
        let read = self.stream.place().zip(self.run_at).map(|(place, begin)| {
            if self.stream.is_packed() { 0 } else { place.offset.saturating_sub(begin.offset) }
        });
        let len_bytes = run.len_bytes + u64::from(len_bytes);
        // A row within a row group shares pages with those before it, so a run has whole groups.
        let is_within = place.is_some_and(is_within_group);
        let is_long = len_bytes > RUN_BYTES || read.unwrap_or(0) > RUN_BYTES;
        run.samples == MAX_RUN_SAMPLES || is_long && !is_within || len_bytes > LONGEST_RUN_BYTES
    }

    /// The typed columns, known with the first sample.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        self.stream.columns()
    }

    /// Reads on to the end of the shard, and returns its index.
    ///
    /// # Errors
    /// As [`next`](Self::next). `BadSource`: the shard changed while it was read.
    pub fn finish(mut self) -> Result<ShardIndex> {
        let mut record = Vec::new();
        while self.next(&mut record)?.is_some() {
            record.clear();
        }
        self.set.shards.check(self.shard)?;
        let (fields, types) = self.set.shards.layout()?;
        self.index.describe(fields, types, self.stream.classes());
        if self.index.runs().iter().any(|run| run.place.is_some_and(is_within_group)) {
            self.index.pages = self.set.shards.pages(self.shard);
        }
        Ok(self.index)
    }
}

/// Returns whether rows of the same row group lie before a place in a Parquet file.
fn is_within_group(place: StreamPlace) -> bool {
    place.offset > 0 && place.left_out > 0
}

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
#[derive(Default)]
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
        Work { left: Mutex::new(left), done: Mutex::new(done), ..Work::default() }
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

/// Enough ranges in flight for one of several readers.
const WINDOW_BYTES: u64 = 32 << 20;

/// Readers at a time: enough to hide a store's delay, few enough for their windows.
const THREADS: usize = 8;
/// Time between two reports, and before a shard is looked at again that another process indexes.
const STEP: Duration = Duration::from_millis(50);
