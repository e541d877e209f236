//! Shards as a read-only namespace: the runs of all shards lie one after the other, each at a multiple of 4,096 bytes.
//!
//! A *run* is a stretch of samples that are decoded together, and its *place* is where in the shard decoding can begin
//! (`index.rs`). A read takes the bytes of each run in one of these ways:
//!
//! - A whole run is decoded into the reader's buffer.
//! - For a part of a run, the run is decoded into memory, and the part is copied. The last such runs stay in memory
//!   (`run_cache.rs`).
//! - For a short part, only its samples are decoded, if they have places. But if the whole run is likely to be wanted
//!   soon (`run_cache.rs`), it is decoded into memory.
//! - A run without a place, as in a compressed shard, is decoded together with the runs before it, from the last one
//!   with a place on. All of them are decoded into memory.
//!
//! Nothing else is cached here: tiers above do that.

use std::sync::Arc;

use crate::index::{LONGEST_RUN_BYTES, Run, ShardIndex};
use crate::run_cache::{DECODED_BYTES, RunCache, RunToDecode};
use crate::set::ShardSet;
use dlfs_base::buf::{IoBuf, SharedBuf};
use dlfs_base::checksum::crc32c;
use dlfs_base::process::Forked;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_import::import::shards::ShardStream;
use dlfs_import::import::sources::sample_stream::{SampleStream, StreamPlace};
use dlfs_io::qpair::folder::helped_pair;
use dlfs_io::qpair::{Device, Io, IoError, IoOp, Namespace, PairScope, QueuePair, SHARDS};

/// The runs of all shards, as blocks.
pub struct ShardNamespace {
    reader: Arc<RunReader>,
    namespace: Namespace,
}

/// The location of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAt {
    /// Byte offset in the namespace.
    pub(crate) offset_bytes: u64,
    /// Number of the shard in the set.
    pub(crate) shard: usize,
    /// Number of the run in the shard.
    pub(crate) in_shard: usize,
}

/// Reads bytes of the namespace for all queue pairs.
struct RunReader {
    set: Arc<ShardSet>,
    /// The index of each shard.
    indexes: Vec<ShardIndex>,
    /// All runs, by ascending offset. A `number` is a run's index here, unlike [`RunAt::in_shard`].
    runs: Vec<RunAt>,
    /// Each process has its own cache, also a forked child.
    cache: Forked<RunCache>,
    /// Set if at least half of the runs have samples that are decoded alone.
    reads_parts: bool,
    /// Tells the process that opened the set, which has the threads of the stores' clients, from a forked child.
    home: Forked<()>,
}

impl ShardNamespace {
    /// The namespace of `runs`, which end at `len_bytes`.
    pub(crate) fn new(
        set: Arc<ShardSet>,
        indexes: Vec<ShardIndex>,
        runs: Vec<RunAt>,
        len_bytes: u64,
    ) -> ShardNamespace {
        let namespace = Namespace {
            address: set.address().to_owned(),
            block_len_bytes: BLOCK_LEN_BYTES,
            num_blocks: len_bytes / u64::from(BLOCK_LEN_BYTES),
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            queue_depth: QUEUE_DEPTH,
            nguid: set.identity().to_le_bytes(),
            read_only: true,
            engine: SHARDS.to_owned(),
        };
        let parts = runs.iter().filter(|at| {
            let index = &indexes[at.shard];
            let run = &index.runs()[at.in_shard];
            index.place(run, run.first + run.samples as usize - 1).is_some()
        });
        let reads_parts = 2 * parts.count() >= runs.len();
        let cache = Forked::empty();
        let home = Forked::new(());
        let reader = RunReader { set, indexes, runs, cache, reads_parts, home };
        ShardNamespace { reader: Arc::new(reader), namespace }
    }
}

impl Device for ShardNamespace {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let reader = Arc::clone(&self.reader);
        let namespace = self.namespace.clone();
        let serve = move |io: &mut Io| -> Result<(), IoError> {
            namespace.check(io)?;
            if io.op == IoOp::Read { reader.read(io) } else { Ok(()) }
        };
        helped_pair(self.namespace.clone(), serve, MOST_AT_ONCE)
    }

    fn reads_parts(&self) -> bool {
        self.reader.reads_parts
    }
}

/// Takes the record of a sample: the number of its run, the record, and whether it is the last of the run.
type TakeRecord<'a> = &'a mut dyn FnMut(usize, &[u8], bool) -> Result<()>;

impl RunReader {
    /// Fills the buffer of `io` with the bytes of its runs, and with zeroes between them.
    fn read(&self, io: &mut Io) -> Result<(), IoError> {
        let start = io.slba.0 * u64::from(BLOCK_LEN_BYTES);
        let end = start + io.buf.len() as u64;
        let mut filled = 0;
        let after = self.runs.partition_point(|at| at.offset_bytes <= start);
        let first_number = after.saturating_sub(1);
        for (number, at) in self.runs.iter().enumerate().skip(first_number) {
            if at.offset_bytes >= end {
                break;
            }
            let from = at.offset_bytes.max(start);
            let skip = (from - at.offset_bytes) as usize;
            let run_len = self.run(number).len_bytes as usize;
            let len = run_len.saturating_sub(skip).min((end - from) as usize);
            if len > 0 {
                let begin = (from - start) as usize;
                io.buf[filled..begin].fill(0);
                filled = begin + len;
                let into = &mut io.buf[begin..filled];
                let read = if len == run_len {
                    self.read_whole_run(number, into)
                } else {
                    self.read_run(number, skip, into)
                };
                read.map_err(|error| self.io_error(at.shard, &error))?;
            }
        }
        io.buf[filled..].fill(0);
        Ok(())
    }

    /// Reads all bytes of the run `number`. Decodes into the buffer, unless the run is in memory, or is decoded
    /// together with others.
    fn read_whole_run(&self, number: usize, into: &mut [u8]) -> Result<()> {
        let RunAt { shard, in_shard, .. } = self.runs[number];
        let run = self.run(number);
        let end = self.place_behind(shard, in_shard);
        let is_alone = run.place.is_some() && end != Some(None);
        if !is_alone {
            return self.read_run(number, 0, into);
        }
        self.check_process()?;
        let to_decode = RunToDecode { len_bytes: run.len_bytes, is_kept: false };
        let _turn = match self.cache().turn(number, number, to_decode) {
            Ok(bytes) => {
                into.copy_from_slice(&bytes);
                return Ok(());
            }
            Err(turn) => turn,
        };
        let mut left = into;
        self.decode(number, in_shard, end.flatten(), &mut |_, record, _| {
            let (space, rest) = std::mem::take(&mut left).split_at_mut(record.len());
            space.copy_from_slice(record);
            left = rest;
            Ok(())
        })
    }

    /// Reads bytes of the run `number` from offset `skip` on: decodes the run into memory, or, for a short read, only
    /// its samples.
    fn read_run(&self, number: usize, skip: usize, into: &mut [u8]) -> Result<()> {
        let is_short = (into.len() as u64).saturating_mul(SHORT) <= self.run(number).len_bytes;
        let range = skip..skip + into.len();
        if is_short
            && let Some(_read) = self.cache().sample_read(self.first_of(number), number, range)
        {
            match self.read_samples(number, skip, into) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The shard has changed, or bad entries lie in the run. The latter are no error: but as places of
                // samples do not count them, the names of rows are then wrong, or the stream ends too early. Decoding
                // the run, which skips bad entries, tells which.
                Err(error) if error.kind() == ErrorKind::BadSource => {}
                Err(error) => return Err(error),
            }
        }
        let bytes = self.decoded_run(number)?;
        into.copy_from_slice(&bytes[skip..skip + into.len()]);
        Ok(())
    }

    /// As [`read_run`](Self::read_run), but decodes only the samples with these bytes. `false`: the first of these
    /// samples has no place, or the sample or run behind the last one has none.
    fn read_samples(&self, number: usize, skip: usize, into: &mut [u8]) -> Result<bool> {
        self.check_process()?;
        let RunAt { shard, in_shard, .. } = self.runs[number];
        let index = &self.indexes[shard];
        let run = self.run(number);
        let lens = &index.lens_bytes()[run.first..run.first + run.samples as usize];
        let ends = || {
            lens.iter().scan(0, |end, len| {
                *end += *len as usize;
                Some(*end)
            })
        };
        // The samples with the first and the last byte, counted from the first sample of the run.
        let first_in_run = ends().take_while(|end| *end <= skip).count();
        let last_in_run = ends().take_while(|end| *end < skip + into.len()).count();
        let start: usize = lens[..first_in_run].iter().map(|len| *len as usize).sum();
        let Some(place) = index.place(run, run.first + first_in_run) else { return Ok(false) };
        let end = if last_in_run + 1 < lens.len() {
            Some(index.place(run, run.first + last_in_run + 1))
        } else {
            self.place_behind(shard, in_shard)
        };
        if end == Some(None) {
            return Ok(false);
        }
        let mut stream = self.set.shards.stream(shard, place, end.flatten())?;
        let decoded: u64 = lens[first_in_run..=last_in_run].iter().map(|len| u64::from(*len)).sum();
        // An index may state more than the shard has: more is reserved as it is decoded.
        let mut bytes = Vec::with_capacity(decoded.min(LONGEST_RUN_BYTES) as usize);
        for sample in run.first + first_in_run..=run.first + last_in_run {
            self.decode_sample(&mut stream, shard, sample, &mut bytes)?;
        }
        self.set.shards.check(shard)?;
        into.copy_from_slice(&bytes[skip - start..][..into.len()]);
        Ok(true)
    }

    /// The run at which decoding the run `number` begins: itself, or the last one before it that has a place.
    fn first_of(&self, number: usize) -> usize {
        let first_number = (0..=number).rev().find(|earlier| self.run(*earlier).place.is_some());
        first_number.expect("the first run of each shard has a place")
    }

    /// The place of the run behind run `in_shard` of a shard. `Some(None)`: a run follows, and its place is unknown.
    /// `None`: the shard ends.
    fn place_behind(&self, shard: usize, in_shard: usize) -> Option<Option<StreamPlace>> {
        self.indexes[shard].runs().get(in_shard + 1).map(|next| next.place)
    }

    /// The decoded runs of this process; the first call creates the cache.
    fn cache(&self) -> &RunCache {
        self.cache.get_or_init(RunCache::default)
    }

    /// Checks that this process may read the shards.
    ///
    /// # Errors
    /// `Unsupported`: the shards are objects, and this is a forked child.
    fn check_process(&self) -> Result<()> {
        if !self.set.shards.are_objects() || self.home.is_ours() {
            return Ok(());
        }
        let text = "a forked process has no connections to the store";
        let error = Error::new(ErrorKind::Unsupported, text);
        Err(error.hint("open the data set there, or start processes with spawn"))
    }

    /// The index entry of the run `number`.
    fn run(&self, number: usize) -> &Run {
        let RunAt { shard, in_shard, .. } = self.runs[number];
        &self.indexes[shard].runs()[in_shard]
    }

    /// The bytes of the run `wanted`: from memory, or decoded by one thread for all that wait for them.
    fn decoded_run(&self, wanted: usize) -> Result<SharedBuf> {
        self.check_process()?;
        let run = self.run(wanted);
        let first_number = self.first_of(wanted);
        let cache = self.cache();
        let to_decode = RunToDecode { len_bytes: run.len_bytes, is_kept: true };
        let _turn = match cache.turn(first_number, wanted, to_decode) {
            Ok(bytes) => return Ok(bytes),
            Err(turn) => turn,
        };
        // Also decode the runs without a place that follow, up to half of the memory for runs.
        let RunAt { shard, in_shard, .. } = self.runs[wanted];
        let index = &self.indexes[shard];
        let mut last_in_shard = in_shard;
        let mut ahead_bytes = 0;
        let end = loop {
            let Some(next) = index.runs().get(last_in_shard + 1) else { break None };
            if next.place.is_some() || ahead_bytes + next.len_bytes > KEPT_BYTES / 2 {
                break next.place;
            }
            last_in_shard += 1;
            ahead_bytes += next.len_bytes;
        };
        let has_places = index.place(run, run.first + run.samples as usize - 1).is_some();
        let most_kept = if has_places { KEPT_BESIDE_PLACES_BYTES } else { KEPT_BYTES };
        let mut found = None;
        let mut bytes = IoBuf::empty();
        let mut filled = 0;
        self.decode(first_number, last_in_shard, end, &mut |number, record, ends_run| {
            if bytes.is_empty() {
                bytes = IoBuf::try_temporary(self.run(number).len_bytes as usize)?;
            }
            bytes[filled..][..record.len()].copy_from_slice(record);
            filled += record.len();
            if ends_run {
                filled = 0;
                let whole = std::mem::take(&mut bytes).freeze();
                cache.keep(number, &whole, most_kept);
                if number == wanted {
                    found = Some(whole);
                }
            }
            Ok(())
        })?;
        Ok(found.expect("the wanted run is one of them"))
    }

    /// Decodes consecutive runs of a shard: from run `first_number`, which has a place, to run `last_in_shard` of the
    /// shard. `end`: the place behind the last run, if it is known. Calls `take` for each record with the number of its
    /// run in the namespace, the record, and whether it is the last record of the run.
    fn decode(
        &self,
        first_number: usize,
        last_in_shard: usize,
        end: Option<StreamPlace>,
        take: TakeRecord<'_>,
    ) -> Result<()> {
        let RunAt { shard, in_shard, .. } = self.runs[first_number];
        let runs = &self.indexes[shard].runs()[in_shard..=last_in_shard];
        let from = runs[0].place.unwrap_or_default();
        let mut stream = self.set.shards.stream(shard, from, end)?;
        let mut record = Vec::new();
        for (number, run) in (first_number..).zip(runs) {
            let samples = run.first..run.first + run.samples as usize;
            for sample in samples.clone() {
                record.clear();
                self.decode_sample(&mut stream, shard, sample, &mut record)?;
                take(number, &record, sample + 1 == samples.end)?;
            }
        }
        self.set.shards.check(shard)
    }

    /// Appends the record of a sample to `bytes`. `stream` must be at the sample, or at bad entries before it.
    ///
    /// # Errors
    /// `BadSource`: the sample differs from the index. Errors of reading the shard.
    fn decode_sample(
        &self,
        stream: &mut ShardStream<'_>,
        shard: usize,
        sample: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let index = &self.indexes[shard];
        let changed = || self.set.changed(shard);
        let name = index.name(sample);
        let next = loop {
            let next = stream.next_sample()?.ok_or_else(changed)?;
            if next.name == name {
                break next;
            }
            stream.give_back(next); // a bad entry, which the index leaves out
        };
        let start = bytes.len();
        let len = next.put_record(bytes)?;
        let is_same =
            len == index.len_bytes(sample) && crc32c(&bytes[start..]) == index.crc32c(sample);
        if !is_same {
            return Err(changed());
        }
        stream.give_back(next);
        Ok(())
    }

    /// The error of an I/O for an error of reading a shard.
    fn io_error(&self, shard: usize, error: &Error) -> IoError {
        match error.kind() {
            ErrorKind::BadSource | ErrorKind::NotFound => {
                IoError::Changed(self.set.shards()[shard].path.display().to_string())
            }
            _ => IoError::Disconnected(error.report()),
        }
    }
}

const BLOCK_LEN_BYTES: u32 = 4096;
/// A whole run can be read at once, unless it is one longer sample.
const MAX_TRANSFER_BYTES: u32 = LONGEST_RUN_BYTES as u32;
/// Maximum reads of a queue pair at a time, including those that wait for the same run.
const MOST_AT_ONCE: usize = 128;
/// Maximum I/Os that a queue pair takes at a time.
const QUEUE_DEPTH: u16 = 128;
/// A read is short if its run is at least this many times as long. Readers of whole runs read longer pieces.
const SHORT: u64 = 8;
/// Maximum bytes of decoded runs in memory, but always one run. A thread that waits for a run must still find it in
/// memory after the runs that are decoded together with it. So at most half of this is decoded ahead.
const KEPT_BYTES: u64 = DECODED_BYTES;
/// The same for runs whose samples can be decoded alone: these are seldom read again from memory.
const KEPT_BESIDE_PLACES_BYTES: u64 = 8 << 20;
