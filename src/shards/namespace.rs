//! Shards as a read-only namespace: the runs of all shards lie one after the other, each at a multiple of 4,096 bytes.
//!
//! A read of a whole run decodes it, from its place in its shard, into the reader's memory. A read of a part decodes
//! the run and copies, and the last such runs stay in memory; tiers keep what is read again. A short read decodes its
//! samples alone, if they have places, unless it goes on where a read just before has ended. A shard whose places
//! cannot be read on from, as a compressed one, is decoded from its beginning, and the runs that come along stay, too.
//!
//! [`assemble`] makes it of the indexes of all shards, and the directory that describes it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use crate::index::{LONGEST_RUN_BYTES, RUN_BYTES, Run, ShardIndex};
use crate::set::ShardSet;
use dlfs_base::checksum::crc32c;
use dlfs_base::process::{Condvar, Forked, Mutex};
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{Directory, DirectoryBuilder, RunSample};
use dlfs_format::format::geometry::{CELL_BYTES, MAX_NAME_BYTES};
use dlfs_format::format::{ImageLayout, Pack, Uuid};
use dlfs_import::import::OnError;
use dlfs_import::import::shards::{Shard, ShardStream};
use dlfs_import::import::sources::sample_stream::{SampleStream, StreamPlace};
use dlfs_io::qpair::folder::helped_pair;
use dlfs_io::qpair::{Device, Io, IoError, IoOp, Namespace, PairScope, QueuePair, SHARDS};

/// The runs of all shards, as blocks.
pub struct ShardNamespace {
    shards: Arc<Decoding>,
    namespace: Namespace,
}

/// The location of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAt {
    /// First byte in the namespace.
    pub(crate) offset_bytes: u64,
    pub(crate) shard: usize,
    /// Its number in the shard.
    pub(crate) run: usize,
}

struct Decoding {
    set: Arc<ShardSet>,
    indexes: Vec<ShardIndex>,
    /// The runs by ascending offset.
    runs: Vec<RunAt>,
    /// A forked child has its own runs in memory.
    kept: Forked<Kept>,
    /// The process that has the threads of the stores' clients.
    home: Forked<()>,
}

/// The runs in memory, and the shards that threads decode.
#[derive(Default)]
struct Kept {
    state: Mutex<KeptState>,
    ended: Condvar,
}

#[derive(Default)]
struct KeptState {
    /// The most recently used last.
    runs: VecDeque<(usize, Arc<Vec<u8>>)>,
    /// The first runs of those that are being decoded.
    busy: HashMap<usize, Busy>,
    /// The runs of which samples alone are being decoded, once for each read.
    touching: Vec<usize>,
    /// The runs of the last such reads that have ended, and where the reads ended in them.
    touched: VecDeque<(usize, usize)>,
}

/// A run that is being decoded.
#[derive(Clone, Copy)]
struct Busy {
    /// The bytes that it becomes.
    len_bytes: u64,
    /// Set if it stays in memory.
    is_kept: bool,
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
        let shards =
            Arc::new(Decoding { set, indexes, runs, kept: Forked::empty(), home: Forked::new(()) });
        ShardNamespace { shards, namespace }
    }
}

impl Device for ShardNamespace {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let shards = Arc::clone(&self.shards);
        let namespace = self.namespace.clone();
        let run = move |io: &mut Io| -> Result<(), IoError> {
            namespace.check(io)?;
            if io.op == IoOp::Read { shards.read(io) } else { Ok(()) }
        };
        helped_pair(self.namespace.clone(), run, MOST_AT_ONCE)
    }
}

impl Decoding {
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
            let of_run = self.run_of(run).len_bytes as usize;
            let len = of_run.saturating_sub(skip).min((end - from) as usize);
            if len > 0 {
                let at = (from - start) as usize;
                io.buf[filled..at].fill(0);
                filled = at + len;
                let into = &mut io.buf[at..filled];
                let read = if len == of_run {
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

    /// Reads all bytes of a run: decodes it in place, unless it is in memory, or others are decoded with it.
    fn read_whole_run(&self, number: usize, into: &mut [u8]) -> Result<()> {
        let RunAt { shard, run, .. } = self.runs[number];
        let index = &self.indexes[shard];
        let next = index.runs().get(run + 1).map(|next| next.place);
        let is_alone = self.run_of(&self.runs[number]).place.is_some() && next != Some(None);
        if !is_alone {
            return self.read_run(number, 0, into);
        }
        self.check_process()?;
        let kept = self.kept.get_or_init(Kept::default);
        let busy = Busy { len_bytes: self.len(number), is_kept: false };
        let _turn = match kept.turn(number, number, busy) {
            Ok(bytes) => {
                into.copy_from_slice(&bytes);
                return Ok(());
            }
            Err(turn) => turn,
        };
        let mut left = into;
        self.decode(number, run, next.flatten(), &mut |_, record, _| {
            let (own, rest) = std::mem::take(&mut left).split_at_mut(record.len());
            own.copy_from_slice(record);
            left = rest;
        })
    }

    /// Reads bytes of a run: of the decoded run, or of the samples that have them.
    fn read_run(&self, number: usize, skip: usize, into: &mut [u8]) -> Result<()> {
        let RunAt { shard, run, .. } = self.runs[number];
        let index = &self.indexes[shard];
        let run = &index.runs()[run];
        let is_short = (into.len() as u64).saturating_mul(SHORT) <= run.len_bytes;
        let kept = self.kept.get_or_init(Kept::default);
        let bytes = skip..skip + into.len();
        if is_short && let Some(_touch) = kept.touch(self.first_of(number), number, bytes) {
            match self.read_samples(number, skip, into) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // Entries left out before a sample give it another place: the run tells them from a change.
                Err(error) if error.kind() == ErrorKind::BadSource => {}
                Err(error) => return Err(error),
            }
        }
        let bytes = self.run(number)?;
        into.copy_from_slice(&bytes[skip..skip + into.len()]);
        Ok(())
    }

    /// Decodes only the samples that have the bytes from `skip` on; `false`: some have no place.
    fn read_samples(&self, number: usize, skip: usize, into: &mut [u8]) -> Result<bool> {
        self.check_process()?;
        let RunAt { shard, run, .. } = self.runs[number];
        let index = &self.indexes[shard];
        let next = index.runs().get(run + 1);
        let run = &index.runs()[run];
        let lens = &index.lens_bytes()[run.first..run.first + run.samples as usize];
        let ends = lens.iter().scan(0, |end, len| {
            *end += *len as usize;
            Some(*end)
        });
        let end = skip + into.len();
        let mut first = None;
        let mut last = run.first;
        let mut before = 0;
        for (sample, sample_end) in (run.first..).zip(ends) {
            if sample_end > skip && first.is_none() {
                first = Some((sample, before));
            }
            if before < end {
                last = sample;
            }
            before = sample_end;
        }
        let Some((first, start)) = first else { return Ok(false) };
        let Some(place) = index.place(run, first) else { return Ok(false) };
        let until = if last + 1 < run.first + run.samples as usize {
            Some(index.place(run, last + 1))
        } else {
            next.map(|next| next.place)
        };
        if until == Some(None) {
            return Ok(false);
        }
        let mut stream = self.set.shards.stream(shard, place, until.flatten())?;
        let mut bytes = Vec::new();
        for sample in first..=last {
            self.decode_sample(&mut stream, shard, sample, &mut bytes)?;
        }
        self.set.shards.check(shard)?;
        into.copy_from_slice(&bytes[skip - start..][..into.len()]);
        Ok(true)
    }

    /// The first run of those that are decoded together with this one: runs without a place need those before.
    fn first_of(&self, number: usize) -> usize {
        let first = (0..=number).rev().find(|at| self.run_of(&self.runs[*at]).place.is_some());
        first.expect("the first run of each shard has a place")
    }

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

    /// The bytes of a run: in memory, or decoded by one thread for all that wait for them.
    fn run(&self, wanted: usize) -> Result<Arc<Vec<u8>>> {
        self.check_process()?;
        let first = self.first_of(wanted);
        let kept = self.kept.get_or_init(Kept::default);
        let busy = Busy { len_bytes: self.len(wanted), is_kept: true };
        let _turn = match kept.turn(first, wanted, busy) {
            Ok(bytes) => return Ok(bytes),
            Err(turn) => turn,
        };
        // On to the runs that have no place, as far as memory permits.
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
        let of_run = &index.runs()[run];
        let has_places = index.place(of_run, of_run.first + of_run.samples as usize - 1).is_some();
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
                kept.keep(number, &whole, most_kept);
                if number == wanted {
                    found = Some(whole);
                }
            }
        })?;
        Ok(found.expect("the wanted run is one of them"))
    }

    /// Decodes the runs of a shard from `first`, which has a place, to the one with number `last` in the shard, behind
    /// which is `end`. Hands over each record, with the number of its run, and whether it is the last one there.
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

    /// Appends the record of a sample, the next one of `stream`.
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
            stream.give_back(next); // an entry that the index has left out
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

    fn io_error(&self, shard: usize, error: &Error) -> IoError {
        match error.kind() {
            ErrorKind::BadSource | ErrorKind::NotFound => {
                IoError::Changed(self.set.shards()[shard].path.display().to_string())
            }
            _ => IoError::Disconnected(error.report()),
        }
    }
}

impl Kept {
    /// The bytes of a run that is in memory, or else the turn to decode it, with those from `first` on, once its bytes
    /// fit beside what others decode.
    fn turn(&self, first: usize, wanted: usize, busy: Busy) -> Result<Arc<Vec<u8>>, Turn<'_>> {
        let mut state = self.state.lock();
        loop {
            if let Some(at) = state.runs.iter().position(|(own, _)| *own == wanted)
                && let Some(found) = state.runs.remove(at)
            {
                let bytes = Arc::clone(&found.1);
                if busy.is_kept {
                    state.runs.push_back(found);
                } else {
                    state.runs.push_front(found); // its reader has all of it now
                }
                return Ok(bytes);
            }
            let bytes = state.busy.values().map(|busy| busy.len_bytes).sum::<u64>();
            // A first batch waits for samples, alone or of kept runs, and its loader's window for whole runs.
            let has_samples = || state.busy.values().any(|other| other.is_kept);
            let gives_way = !busy.is_kept && (!state.touching.is_empty() || has_samples());
            let whole = state.busy.values().filter(|other| !other.is_kept).count();
            let may_begin = !gives_way || whole < RUNS_BESIDE_SAMPLES;
            let has_room = state.busy.is_empty()
                || may_begin
                    && state.busy.len() < MOST_RUNS_AT_ONCE
                    && bytes + busy.len_bytes <= DECODED_BYTES;
            if has_room && !state.busy.contains_key(&first) {
                state.busy.insert(first, busy);
                return Err(Turn { kept: self, first });
            }
            state = self.ended.wait(state);
        }
    }

    /// The right to read samples with these bytes of a run alone, which is decoded with those from `first` on, once few
    /// such reads go on. `None`: the run is in memory or will be, or the read goes on where one of the last has ended,
    /// or the last reads were of this run. Reads at the same time are of one batch, and a run that is decoded for one
    /// reader alone is no reason to wait.
    fn touch(&self, first: usize, number: usize, bytes: Range<usize>) -> Option<Touch<'_>> {
        let mut state = self.state.lock();
        loop {
            let is_kept = state.runs.iter().any(|(own, _)| *own == number);
            let will_be_kept = state.busy.get(&first).is_some_and(|busy| busy.is_kept);
            let ends = state.touched.iter().filter(|(own, _)| *own == number).map(|(_, end)| *end);
            let is_next = ends.clone().any(|end| bytes.start <= end && end < bytes.end);
            if is_kept || will_be_kept || is_next || ends.count() >= MOST_ALONE {
                return None;
            }
            if state.touching.len() < MOST_TOUCHING {
                state.touching.push(number);
                return Some(Touch { kept: self, number, end: bytes.end });
            }
            state = self.ended.wait(state);
        }
    }

    /// Keeps a run, and lets go of those that were used least recently beyond `most` bytes.
    fn keep(&self, number: usize, bytes: &Arc<Vec<u8>>, most: u64) {
        let mut state = self.state.lock();
        state.runs.retain(|(own, _)| *own != number);
        state.runs.push_back((number, Arc::clone(bytes)));
        let mut sum = state.runs.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        while sum > most && state.runs.len() > 1 {
            let gone = state.runs.pop_front().map_or(0, |(_, bytes)| bytes.len());
            sum -= gone as u64;
        }
    }
}

/// The turn of a thread that decodes; others that want the same wait until it ends.
struct Turn<'a> {
    kept: &'a Kept,
    first: usize,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.kept.state.lock().busy.remove(&self.first);
        self.kept.ended.notify_all();
    }
}

/// A read of samples of a run alone.
struct Touch<'a> {
    kept: &'a Kept,
    number: usize,
    end: usize,
}

impl Drop for Touch<'_> {
    fn drop(&mut self) {
        let mut state = self.kept.state.lock();
        let at = state.touching.iter().position(|number| *number == self.number);
        at.map(|at| state.touching.swap_remove(at));
        if !state.touching.contains(&self.number) {
            state.touched.push_back((self.number, self.end));
            if state.touched.len() > MOST_TOUCHED {
                state.touched.pop_front();
            }
        }
        drop(state);
        self.kept.ended.notify_all();
    }
}

/// Shards as an image: its only namespace, and its directory.
pub struct ShardImage {
    /// The directory, with the checksums of all samples.
    pub directory: Directory,
    /// The runs of all shards.
    pub namespace: Arc<ShardNamespace>,
}

/// Makes the image of all shards of `set`, whose `indexes` are in their order. Treats names and bad entries as an
/// import does: a name that an earlier shard has gets its shard in front.
///
/// # Errors
/// `BadSource`: there are entries that cannot be read, and the options do not leave them out; or there is no sample.
pub fn assemble(set: &Arc<ShardSet>, indexes: Vec<ShardIndex>) -> Result<ShardImage> {
    let all_names =
        || indexes.iter().flat_map(|index| (0..index.len()).map(|at| index.name(at))).collect();
    let folders = set.shards.folder_classes(all_names);
    let runs = indexes.iter().flat_map(|index| index.runs()).filter(|run| run.samples > 1);
    let longest = runs.map(|run| run.len_bytes).max().unwrap_or(0);
    let longest = longest.clamp(RUN_BYTES, LONGEST_RUN_BYTES) as u32;
    let layout = ImageLayout::new(
        Uuid::from_random_bytes(set.identity().to_le_bytes()),
        longest.next_power_of_two(),
        Pack::Tight,
        1,
    )?;
    let mut assembly = Assembly {
        set,
        builder: DirectoryBuilder::new(layout),
        labels: folders.as_ref().map(|(_, labels)| &labels[..]),
        runs: Vec::new(),
        at: FIRST_RUN,
        names: HashSet::new(),
        bad: set.shards.bad().iter().map(ToString::to_string).collect(),
        is_refused: false,
    };
    let layout = set.shards.layout()?;
    assembly.builder.set_fields(layout.0.clone(), layout.1.clone());
    for (shard, index) in indexes.iter().enumerate() {
        assembly.add(shard, index)?;
    }
    let Assembly { mut builder, runs, at, bad, is_refused, .. } = assembly;
    if is_refused || set.options.on_error == OnError::Stop && !bad.is_empty() {
        return Err(refused(&bad).target(set.address()));
    }
    bad.iter().for_each(|bad| tracing::warn!("left out: {bad}"));
    if runs.is_empty() {
        let error = Error::new(ErrorKind::BadSource, "the shards have no sample");
        return Err(error.target(set.address()));
    }
    let of_rows = || indexes.iter().map(|index| &index.classes).max_by_key(|all| all.len());
    let classes = folders.map(|(classes, _)| classes).or_else(|| of_rows().cloned());
    builder.set_classes(classes.unwrap_or_default());
    let directory = builder.finish(Generation(1), 0)?;
    let namespace = ShardNamespace::new(Arc::clone(set), indexes, runs, at);
    Ok(ShardImage { directory, namespace: Arc::new(namespace) })
}

impl ShardSet {
    /// Checks the entries of a shard that cannot be read, as [`assemble`] checks those of all.
    ///
    /// # Errors
    /// `BadSource`: there are some, and the options do not leave them out.
    pub fn check_entries(&self, shard: usize, index: &ShardIndex) -> Result<()> {
        let stops = self.options.on_error == OnError::Stop;
        if !index.bad.iter().any(|bad| bad.is_newer || stops) {
            return Ok(());
        }
        let bad: Vec<String> = index.bad.iter().map(|bad| bad.text.clone()).collect();
        Err(refused(&bad).path(&self.shards()[shard].path))
    }
}

struct Assembly<'a> {
    set: &'a ShardSet,
    builder: DirectoryBuilder,
    /// The labels of all samples, if the shards do not give them.
    labels: Option<&'a [Option<i64>]>,
    runs: Vec<RunAt>,
    /// Offset of the next run.
    at: u64,
    /// Hashes of all names so far.
    names: HashSet<u128>,
    bad: Vec<String>,
    /// Set if an import would refuse the shards in any case.
    is_refused: bool,
}

impl Assembly<'_> {
    fn add(&mut self, shard: usize, index: &ShardIndex) -> Result<()> {
        let (fields, types) = self.set.shards.layout()?;
        let Shard { path, name: prefix, .. } = &self.set.shards()[shard];
        if !index.is_empty() && (&index.fields, &index.types) != (fields, types) {
            let text = "the index of the shard has other fields than those of the first shard";
            return Err(Error::new(ErrorKind::Stale, text).path(path));
        }
        self.set.shards.add_pages(shard, &index.pages);
        self.is_refused |= index.bad.iter().any(|bad| bad.is_newer);
        self.bad.extend(index.bad.iter().map(|bad| bad.text.clone()));
        self.builder.grow_columns(&index.columns())?;
        // Names of one shard are distinct, so only earlier shards count.
        let names: Vec<Option<Vec<u8>>> =
            (0..index.len()).map(|at| self.name(index.name(at), prefix)).collect();
        for (number, run) in index.runs().iter().enumerate() {
            let first = self.builder.next_slot().0 as usize;
            let labels = self.labels;
            let samples = (0..run.samples as usize).map(|at| {
                let sample = run.first + at;
                let own = index.label(sample);
                RunSample {
                    name: names[sample].as_deref().unwrap_or_default(),
                    len_bytes: index.len_bytes(sample),
                    crc32c: index.crc32c(sample),
                    label: labels.map_or(own, |labels| labels[first + at]),
                    values: index.values(sample),
                    deleted: names[sample].is_none(),
                }
            });
            self.builder.add_run(self.at / CELL_BYTES, samples)?;
            self.runs.push(RunAt { offset_bytes: self.at, shard, run: number });
            self.at += run.len_bytes.next_multiple_of(CELL_BYTES).max(CELL_BYTES);
        }
        Ok(())
    }

    /// The name of a sample in the data set; `None`: an earlier sample has it.
    fn name(&mut self, own: Vec<u8>, prefix: &[u8]) -> Option<Vec<u8>> {
        if self.set.shards.is_numbered() || self.names.insert(xxh3_128(&own)) {
            return Some(own);
        }
        let name = [prefix, b"/", &own].concat();
        if name.len() <= MAX_NAME_BYTES && self.names.insert(xxh3_128(&name)) {
            return Some(name);
        }
        self.bad.push(format!("{}: name appears twice, or is too long", name.escape_ascii()));
        None
    }
}

/// The error that lists entries which cannot be read.
fn refused(bad: &[String]) -> Error {
    let shown = bad.iter().take(MOST_SHOWN).map(|bad| format!("\n    {bad}"));
    let more = bad.len().saturating_sub(MOST_SHOWN);
    let more = if more == 0 { String::new() } else { format!("\n    and {more} more") };
    let text = format!(
        "{} entries of the shards cannot be read:{}{more}",
        bad.len(),
        shown.collect::<String>()
    );
    Error::new(ErrorKind::BadSource, text).hint("leave them out, or repair the shards")
}

const BLOCK_LEN_BYTES: u32 = 4096;
/// A run is read as a whole.
const MAX_TRANSFER_BYTES: u32 = LONGEST_RUN_BYTES as u32;
/// The most reads of a queue pair at a time: also those that wait for the same run.
const MOST_AT_ONCE: usize = 128;
/// A read is short if the run has so many times its bytes: a reader of all of it asks for more at a time.
const SHORT: u64 = 8;
/// Readers in turn are recognized, as many as have runs in memory. Samples in random order seldom come from so few.
const MOST_TOUCHED: usize = 2;
/// The most of these reads that are of one run: the next one decodes all of it.
const MOST_ALONE: usize = 2;
/// The most runs that are decoded at a time, and their bytes: as many are in requests. One run may have more.
const MOST_RUNS_AT_ONCE: usize = 32;
const DECODED_BYTES: u64 = 32 << 20;
/// The most reads of samples alone at a time.
const MOST_TOUCHING: usize = 32;
/// The most runs that loaders' windows wait for meanwhile.
const RUNS_BESIDE_SAMPLES: usize = 2;
const QUEUE_DEPTH: u16 = 128;
/// The most bytes of decoded runs in memory, but always one run: those that wait for a run find it behind all that are
/// decoded with it. Samples that can be decoded alone seldom need theirs.
const KEPT_BYTES: u64 = DECODED_BYTES;
const KEPT_BESIDE_PLACES_BYTES: u64 = 8 << 20;

/// The first run lies behind the cells that an image reserves.
const FIRST_RUN: u64 = 1 << 20;
const MOST_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_decoded_side_by_side_within_a_limit_of_bytes_and_one_of_any_length() {
        let kept = Kept::default();
        let turn = |run, len_bytes| kept.turn(run, run, Busy { len_bytes, is_kept: true });
        let long = turn(0, 1 << 40).unwrap_err();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turn(1, 20 << 20).unwrap_err().first);
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!waits.is_finished());
            drop(long);
            assert_eq!(waits.join().unwrap(), 1);
        });
        let one = turn(2, 20 << 20).unwrap_err();
        let two = turn(3, 12 << 20).unwrap_err();
        assert_eq!(kept.state.lock().busy.len(), 2);
        drop((one, two));
        kept.keep(3, &Arc::new(vec![7]), KEPT_BYTES);
        assert_eq!(*turn(3, 1).ok().unwrap(), [7]);
    }

    #[test]
    fn reads_of_a_run_at_once_decode_samples_alone_and_one_that_goes_on_decodes_the_run() {
        let kept = Kept::default();
        let touch = |first, run, at| kept.touch(first, run, at..at + 10);
        let batch: Vec<_> = (0..5).map(|_| touch(3, 3, 50)).collect();
        assert!(batch.iter().all(Option::is_some));
        drop(batch);
        assert!(touch(3, 3, 55).is_none(), "one that goes on");
        (1..MOST_ALONE).for_each(|_| drop(touch(3, 3, 20).expect("one elsewhere")));
        assert!(touch(3, 3, 80).is_none(), "too many, also elsewhere");
        let busy = |is_kept| Busy { len_bytes: 1, is_kept };
        let in_place = kept.turn(5, 5, busy(false)).unwrap_err();
        assert!(touch(5, 5, 0).is_some());
        drop(in_place);
        let turn = kept.turn(6, 6, busy(true)).unwrap_err();
        assert!(touch(6, 7, 0).is_none(), "it comes along");
        drop(turn);
        (10..10 + MOST_TOUCHED).for_each(|other| drop(touch(other, other, 0)));
        assert!(touch(3, 3, 55).is_some(), "the last reads were of others");
    }
}
