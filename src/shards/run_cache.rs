//! Decoded runs in memory, and the rules for decoding more: which thread decodes a run, which readers wait for it, and
//! which reads decode their samples alone.
//!
//! Runs are numbered as in the namespace. A run without a place in its shard is decoded together with the runs before
//! it; the first of them stands for all.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use dlfs_base::buf::SharedBuf;
use dlfs_base::process::{Condvar, Mutex};

/// The decoded runs of a namespace. All its readers share them.
#[derive(Default)]
pub(crate) struct RunCache {
    /// Locked for moments only, never while decoding.
    state: Mutex<RunCacheState>,
    /// Notified when a turn or a read of samples ends.
    ended: Condvar,
}

/// The runs in memory, and the decoding that goes on.
#[derive(Default)]
struct RunCacheState {
    /// The runs in memory, with their numbers. The first one is dropped first.
    runs: VecDeque<(usize, SharedBuf)>,
    /// The runs that threads decode now, by the first run of those that are decoded together.
    decoding: HashMap<usize, RunToDecode>,
    /// The run of each read that decodes its samples alone now.
    sample_reads: Vec<usize>,
    /// The last such reads that have ended: the run, and the offset in it at which the read ended. Of reads of one run
    /// at the same time, only the last one to end is here.
    last_sample_reads: VecDeque<(usize, usize)>,
}

/// A run that a thread decodes, or is about to.
#[derive(Clone, Copy)]
pub(crate) struct RunToDecode {
    /// Bytes of the decoded run.
    pub(crate) len_bytes: u64,
    /// Set if the run will be kept in memory; otherwise it is decoded into the buffer of one reader.
    pub(crate) is_kept: bool,
}

impl RunCache {
    /// The bytes of the run `wanted` if it is in memory, or else the turn to decode it, together with the runs from
    /// `first` on. Waits while another thread decodes them, or while there is no room for another run to decode.
    pub(crate) fn turn(
        &self,
        first: usize,
        wanted: usize,
        run: RunToDecode,
    ) -> Result<SharedBuf, Turn<'_>> {
        let mut state = self.state.lock();
        loop {
            if let Some(at) = state.runs.iter().position(|(number, _)| *number == wanted)
                && let Some(found) = state.runs.remove(at)
            {
                let bytes = found.1.clone();
                if run.is_kept {
                    state.runs.push_back(found);
                } else {
                    state.runs.push_front(found); // its reader takes all of the run, and does not come back
                }
                return Ok(bytes);
            }
            if !state.decoding.contains_key(&first) && state.has_room(run) {
                state.decoding.insert(first, run);
                return Err(Turn { cache: self, first });
            }
            state = self.ended.wait(state);
        }
    }

    /// The right to decode only the samples that have the bytes `range` of the run `number`. Waits while too many reads
    /// decode their samples alone. `None`: the run is in memory or will be, the read continues one of the last such
    /// reads, or enough of these were of this run. Then the whole run should be decoded.
    ///
    /// Reads at the same time are of one batch, so they do not count as continued. A run that is being decoded for one
    /// reader alone is not waited for.
    pub(crate) fn sample_read(
        &self,
        first: usize,
        number: usize,
        range: Range<usize>,
    ) -> Option<SampleRead<'_>> {
        let mut state = self.state.lock();
        loop {
            let is_in_memory = state.runs.iter().any(|(other, _)| *other == number);
            let will_be = state.decoding.get(&first).is_some_and(|run| run.is_kept);
            let last = state.last_sample_reads.iter();
            let ends = last.filter(|(other, _)| *other == number).map(|(_, end)| *end);
            let is_next = ends.clone().any(|end| range.start <= end && end < range.end);
            if is_in_memory || will_be || is_next || ends.count() >= MOST_SAMPLE_READS_OF_A_RUN {
                return None;
            }
            if state.sample_reads.len() < MOST_SAMPLE_READS {
                state.sample_reads.push(number);
                return Some(SampleRead { cache: self, number, end: range.end });
            }
            state = self.ended.wait(state);
        }
    }

    /// Keeps a decoded run. Drops runs from the front while all have more than `most` bytes, but keeps at least one.
    pub(crate) fn keep(&self, number: usize, bytes: &SharedBuf, most: u64) {
        let mut state = self.state.lock();
        state.runs.retain(|(other, _)| *other != number);
        state.runs.push_back((number, bytes.clone()));
        let mut sum = state.runs.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        while sum > most && state.runs.len() > 1 {
            let dropped = state.runs.pop_front().map_or(0, |(_, bytes)| bytes.len());
            sum -= dropped as u64;
        }
    }
}

impl RunCacheState {
    /// Returns whether one more run may be decoded now. The number and the bytes of runs that are decoded at a time are
    /// limited, and a run for one reader alone gives way to reads of samples. A run of any length may be decoded while
    /// no other is.
    fn has_room(&self, run: RunToDecode) -> bool {
        let all = self.decoding.values();
        let bytes = all.clone().map(|other| other.len_bytes).sum::<u64>();
        // A first batch waits for samples and kept runs; whole runs fill a loader's window, which can wait.
        let has_samples = !self.sample_reads.is_empty() || all.clone().any(|other| other.is_kept);
        let gives_way = !run.is_kept && has_samples;
        let whole = all.filter(|other| !other.is_kept).count();
        let may_begin = !gives_way || whole < MOST_WHOLE_RUNS_BESIDE_SAMPLES;
        self.decoding.is_empty()
            || may_begin
                && self.decoding.len() < MOST_RUNS_AT_ONCE
                && bytes + run.len_bytes <= DECODED_BYTES
    }
}

/// The turn of a thread to decode runs; other threads that want them wait until it is dropped.
pub(crate) struct Turn<'a> {
    cache: &'a RunCache,
    /// The first run of those that are decoded together.
    first: usize,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.cache.state.lock().decoding.remove(&self.first);
        self.cache.ended.notify_all();
    }
}

/// A read that decodes only its samples of a run.
pub(crate) struct SampleRead<'a> {
    cache: &'a RunCache,
    /// Number of the run.
    number: usize,
    /// Offset in the run at which the read ends.
    end: usize,
}

impl Drop for SampleRead<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        let at = state.sample_reads.iter().position(|number| *number == self.number);
        at.map(|at| state.sample_reads.swap_remove(at));
        if !state.sample_reads.contains(&self.number) {
            state.last_sample_reads.push_back((self.number, self.end));
            if state.last_sample_reads.len() > MOST_LAST_SAMPLE_READS {
                state.last_sample_reads.pop_front();
            }
        }
        drop(state);
        self.cache.ended.notify_all();
    }
}

/// Maximum runs that are decoded at a time. A store's delay is hidden by as many requests.
const MOST_RUNS_AT_ONCE: usize = 32;
/// Maximum bytes of runs that are decoded at a time; one run may have more.
pub(crate) const DECODED_BYTES: u64 = 32 << 20;
/// Maximum whole runs that are decoded for loaders' windows while samples are wanted.
const MOST_WHOLE_RUNS_BESIDE_SAMPLES: usize = 2;
/// Maximum reads at a time that decode their samples alone.
const MOST_SAMPLE_READS: usize = 32;
/// Number of ended sample reads that are remembered, to recognise readers in order: enough for two readers that
/// alternate. Samples in random order seldom come from so few runs.
const MOST_LAST_SAMPLE_READS: usize = 2;
/// With this many remembered sample reads of one run, the next read decodes the whole run.
const MOST_SAMPLE_READS_OF_A_RUN: usize = 2;

#[cfg(test)]
mod tests {
    use dlfs_base::buf::IoBuf;

    use super::*;

    #[test]
    fn runs_are_decoded_side_by_side_within_a_limit_of_bytes_and_one_of_any_length() {
        let cache = RunCache::default();
        let turn = |run, len_bytes| cache.turn(run, run, RunToDecode { len_bytes, is_kept: true });
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
        assert_eq!(cache.state.lock().decoding.len(), 2);
        drop((one, two));
        cache.keep(3, &IoBuf::zeroed(1).freeze(), DECODED_BYTES);
        assert_eq!(*turn(3, 1).ok().unwrap(), [0]);
    }

    #[test]
    fn reads_of_a_run_at_once_decode_samples_alone_and_one_that_goes_on_decodes_the_run() {
        let cache = RunCache::default();
        let read = |first, run, at| cache.sample_read(first, run, at..at + 10);
        let batch: Vec<_> = (0..5).map(|_| read(3, 3, 50)).collect();
        assert!(batch.iter().all(Option::is_some));
        drop(batch);
        assert!(read(3, 3, 55).is_none(), "one that goes on");
        (1..MOST_SAMPLE_READS_OF_A_RUN).for_each(|_| drop(read(3, 3, 20).expect("one elsewhere")));
        assert!(read(3, 3, 80).is_none(), "too many, also elsewhere");
        let run = |is_kept| RunToDecode { len_bytes: 1, is_kept };
        let in_place = cache.turn(5, 5, run(false)).unwrap_err();
        assert!(read(5, 5, 0).is_some());
        drop(in_place);
        let turn = cache.turn(6, 6, run(true)).unwrap_err();
        assert!(read(6, 7, 0).is_none(), "it comes along");
        drop(turn);
        (10..10 + MOST_LAST_SAMPLE_READS).for_each(|other| drop(read(other, other, 0)));
        assert!(read(3, 3, 55).is_some(), "the last reads were of others");
    }
}
