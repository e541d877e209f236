//! Shards as a read-only namespace: the runs of all shards lie one after the other, each at a multiple of 4,096 bytes.
//!
//! A read of a whole run decodes the run, from its place in its shard, into the reader's buffer. A read of a part of a
//! run decodes the run into memory, and copies; the last such runs stay in memory (`run_cache.rs`). But a short read
//! decodes its samples alone, if they have places, unless it continues a recent read. Runs without a place, as in a
//! compressed shard, are decoded from an earlier run on, and the runs on the way are kept in memory, too. Tiers keep
//! what is read again.

use std::sync::Arc;

use crate::index::{LONGEST_RUN_BYTES, Run, ShardIndex};
use crate::run_cache::{DECODED_BYTES, DecodedRun, RunCache};
use crate::set::ShardSet;
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
    pub(crate) run: usize,
}

/// Reads bytes of the namespace for all queue pairs.
struct RunReader {
    set: Arc<ShardSet>,
    /// The index of each shard.
    indexes: Vec<ShardIndex>,
    /// All runs, by ascending offset; the number of a run is its index here.
    runs: Vec<RunAt>,
    /// Each process has its own cache, also a forked child.
    cache: Forked<RunCache>,
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
        let cache = Forked::empty();
        let reader = RunReader { set, indexes, runs, cache, home: Forked::new(()) };
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
        let run = move |io: &mut Io| -> Result<(), IoError> {
            namespace.check(io)?;
            if io.op == IoOp::Read { reader.read(io) } else { Ok(()) }
        };
        helped_pair(self.namespace.clone(), run, MOST_AT_ONCE)
    }
}

impl RunReader {
    /// Fills the buffer of `io` with the bytes of its runs, and with zeroes between them.
    fn read(&self, io: &mut Io) -> Result<(), IoError> {
        let start = io.slba.0 * u64::from(BLOCK_LEN_BYTES);
        let end = start + io.buf.len() as u64;
        let mut filled = 0;
        let first = self.runs.partition_point(|run| run.offset_bytes <= start).saturating_sub(1);
        for (number, run) in self.runs.iter().enumerate().skip(first) {
            if run.offset_bytes >= end {
                break;
            }
            let from = run.offset_bytes.max(start);
            let skip = (from - run.offset_bytes) as usize;
            let run_len = self.run_of(run).len_bytes as usize;
            let len = run_len.saturating_sub(skip).min((end - from) as usize);
            if len > 0 {
                let at = (from - start) as usize;
                io.buf[filled..at].fill(0);
                filled = at + len;
                let into = &mut io.buf[at..filled];
                let read = if len == run_len {
                    self.read_whole_run(number, into)
                } else {
                    self.read_run(number, skip, into)
                };
                read.map_err(|error| self.io_error(run.shard, &error))?;
            }
        }
        io.buf[filled..].fill(0);
        Ok(())
    }

    /// Reads all bytes of the run `number`. Decodes into the buffer, unless the run is in memory, or is decoded
    /// together with others.
    fn read_whole_run(&self, number: usize, into: &mut [u8]) -> Result<()> {
        let RunAt { shard, run, .. } = self.runs[number];
        let index = &self.indexes[shard];
        let next = index.runs().get(run + 1).map(|next| next.place);
        let is_alone = self.run_of(&self.runs[number]).place.is_some() && next != Some(None);
        if !is_alone {
            return self.read_run(number, 0, into);
        }
        self.check_process()?;
        let decoded = DecodedRun { len_bytes: self.len(number), is_kept: false };
        let _turn = match self.cache().turn(number, number, decoded) {
            Ok(bytes) => {
                into.copy_from_slice(&bytes);
                return Ok(());
            }
            Err(turn) => turn,
        };
        let mut left = into;
        self.decode(number, run, next.flatten(), &mut |_, record, _| {
            let (space, rest) = std::mem::take(&mut left).split_at_mut(record.len());
            space.copy_from_slice(record);
            left = rest;
        })
    }

    /// Reads bytes of the run `number` from offset `skip` on: decodes the run into memory, or, for a short read, only
    /// its samples.
    fn read_run(&self, number: usize, skip: usize, into: &mut [u8]) -> Result<()> {
        let RunAt { shard, run, .. } = self.runs[number];
        let index = &self.indexes[shard];
        let run = &index.runs()[run];
        let is_short = (into.len() as u64).saturating_mul(SHORT) <= run.len_bytes;
        let range = skip..skip + into.len();
        if is_short
            && let Some(_read) = self.cache().sample_read(self.first_of(number), number, range)
        {
            match self.read_samples(number, skip, into) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The shard has changed, or bad entries lie between the samples: decoding the run tells which.
                Err(error) if error.kind() == ErrorKind::BadSource => {}
                Err(error) => return Err(error),
            }
        }
        let bytes = self.run(number)?;
        into.copy_from_slice(&bytes[skip..skip + into.len()]);
        Ok(())
    }

    /// As [`read_run`](Self::read_run), but decodes only the samples with these bytes; `false`: a sample has no place.
    fn read_samples(&self, number: usize, skip: usize, into: &mut [u8]) -> Result<bool> {
        self.check_process()?;
        let RunAt { shard, run: run_number, .. } = self.runs[number];
        let index = &self.indexes[shard];
        let run = &index.runs()[run_number];
        let lens = &index.lens_bytes()[run.first..run.first + run.samples as usize];
        let ends = || {
            lens.iter().scan(0, |end, len| {
                *end += *len as usize;
                Some(*end)
            })
        };
        // The samples with the first and the last byte, counted from the first sample of the run.
        let first = ends().take_while(|end| *end <= skip).count();
        let last = ends().take_while(|end| *end < skip + into.len()).count();
        let start: usize = lens[..first].iter().map(|len| *len as usize).sum();
        let Some(place) = index.place(run, run.first + first) else { return Ok(false) };
        let end = if last + 1 < lens.len() {
            Some(index.place(run, run.first + last + 1))
        } else {
            index.runs().get(run_number + 1).map(|next| next.place)
        };
        if end == Some(None) {
            return Ok(false);
        }
        let mut stream = self.set.shards.stream(shard, place, end.flatten())?;
        let mut bytes = Vec::new();
        for sample in run.first + first..=run.first + last {
            self.decode_sample(&mut stream, shard, sample, &mut bytes)?;
        }
        self.set.shards.check(shard)?;
        into.copy_from_slice(&bytes[skip - start..][..into.len()]);
        Ok(true)
    }

    /// The run at which decoding the run `number` begins: itself, or the last one before it that has a place.
    fn first_of(&self, number: usize) -> usize {
        let first = (0..=number).rev().find(|at| self.run_of(&self.runs[*at]).place.is_some());
        first.expect("the first run of each shard has a place")
    }

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

    fn run_of(&self, at: &RunAt) -> &Run {
        &self.indexes[at.shard].runs()[at.run]
    }

    fn len(&self, number: usize) -> u64 {
        self.run_of(&self.runs[number]).len_bytes
    }

    /// The bytes of the run `wanted`: from memory, or decoded by one thread for all that wait for them.
    fn run(&self, wanted: usize) -> Result<Arc<Vec<u8>>> {
        self.check_process()?;
        let first = self.first_of(wanted);
        let cache = self.cache();
        let decoded = DecodedRun { len_bytes: self.len(wanted), is_kept: true };
        let _turn = match cache.turn(first, wanted, decoded) {
            Ok(bytes) => return Ok(bytes),
            Err(turn) => turn,
        };
        // Also decode the runs without a place that follow, up to half of the memory for runs.
        let RunAt { shard, run, .. } = self.runs[wanted];
        let mut last = run;
        let mut ahead = 0;
        let end = loop {
            match self.indexes[shard].runs().get(last + 1) {
                None => break None,
                Some(Run { place: Some(place), .. }) => break Some(*place),
                Some(next) if ahead + next.len_bytes > KEPT_BYTES / 2 => break None,
                Some(next) => (last, ahead) = (last + 1, ahead + next.len_bytes),
            }
        };
        let index = &self.indexes[shard];
        let run = &index.runs()[run];
        let has_places = index.place(run, run.first + run.samples as usize - 1).is_some();
        let most_kept = if has_places { KEPT_BESIDE_PLACES_BYTES } else { KEPT_BYTES };
        let mut found = None;
        let mut bytes = Vec::new();
        self.decode(first, last, end, &mut |number, record, ends_run| {
            if bytes.is_empty() {
                bytes.reserve_exact(self.len(number) as usize);
            }
            bytes.extend_from_slice(record);
            if ends_run {
                let whole = Arc::new(std::mem::take(&mut bytes));
                cache.keep(number, &whole, most_kept);
                if number == wanted {
                    found = Some(whole);
                }
            }
        })?;
        Ok(found.expect("the wanted run is one of them"))
    }

    /// Decodes consecutive runs of a shard: from `first`, numbered in the namespace, which has a place, to `last`,
    /// numbered in the shard. `end`: the place behind `last`, if it is known. Calls `take` for each record with the
    /// number of its run in the namespace, the record, and whether it is the last record of the run.
    fn decode(
        &self,
        first: usize,
        last: usize,
        end: Option<StreamPlace>,
        take: &mut dyn FnMut(usize, &[u8], bool),
    ) -> Result<()> {
        let RunAt { shard, run, .. } = self.runs[first];
        let index = &self.indexes[shard];
        let from = index.runs()[run].place.unwrap_or_default();
        let mut stream = self.set.shards.stream(shard, from, end)?;
        let mut record = Vec::new();
        for (number, run) in (first..).zip(&index.runs()[run..=last]) {
            let samples = run.first..run.first + run.samples as usize;
            for sample in samples.clone() {
                record.clear();
                self.decode_sample(&mut stream, shard, sample, &mut record)?;
                take(number, &record, sample + 1 == samples.end);
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
/// A whole run can be read at once.
const MAX_TRANSFER_BYTES: u32 = LONGEST_RUN_BYTES as u32;
/// Maximum reads of a queue pair at a time, including those that wait for the same run.
const MOST_AT_ONCE: usize = 128;
const QUEUE_DEPTH: u16 = 128;
/// A read is short if its run has this many times its bytes. A reader that wants the whole run reads more at a time.
const SHORT: u64 = 8;
/// Maximum bytes of decoded runs in memory, but always one run. A thread that waits for a run must still find it there
/// after the runs that are decoded together with it.
const KEPT_BYTES: u64 = DECODED_BYTES;
/// The same for runs whose samples can be decoded alone: these are seldom read again from memory.
const KEPT_BESIDE_PLACES_BYTES: u64 = 8 << 20;
