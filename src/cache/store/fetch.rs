//! Reads of samples from one source, several at a time; each sample is compared with its checksum.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dlfs_base::buf::IoBuf;
use dlfs_base::checksum::crc32c;
use dlfs_base::error::{Error, Result};
use dlfs_base::units::SampleId;
use dlfs_format::directory::Directory;
use dlfs_format::format::Extent;
use dlfs_io::qpair::calls::{Calls, Ticket};
use dlfs_io::qpair::{Device, IoError, PairScope};
use dlfs_nvme::nvme::Status;
use dlfs_order::tier::PAGE_BYTES;

/// Adjacent samples, in whole pages.
#[derive(Debug, Clone)]
pub(super) struct SampleRun {
    pub(super) namespace: u16,
    /// Bytes of the namespace.
    pub(super) bytes: Range<u64>,
    pub(super) samples: Vec<(SampleId, Extent)>,
}

impl SampleRun {
    /// The pages of one sample; `None` if it is not live.
    pub(super) fn of(directory: &Directory, id: SampleId) -> Option<SampleRun> {
        let extent = directory.extent(id)?;
        let namespace = extent.namespace;
        let bytes = page_bytes(&extent);
        Some(SampleRun { namespace, bytes, samples: vec![(id, extent)] })
    }

    /// The samples `ids` in runs of up to 1 MiB, or of one longer sample.
    pub(super) fn of_all(directory: &Directory, ids: &[SampleId]) -> Vec<SampleRun> {
        let mut all: Vec<SampleRun> =
            ids.iter().filter_map(|&id| SampleRun::of(directory, id)).collect();
        all.sort_by_key(|run| (run.namespace, run.bytes.start, run.bytes.end));
        let mut runs: Vec<SampleRun> = Vec::new();
        for run in all {
            match runs.last_mut() {
                Some(last) if last.takes(&run) => {
                    last.bytes.end = last.bytes.end.max(run.bytes.end);
                    last.samples.extend(run.samples);
                }
                _ => runs.push(run),
            }
        }
        runs
    }

    fn takes(&self, next: &SampleRun) -> bool {
        let is_next = next.namespace == self.namespace && next.bytes.start <= self.bytes.end;
        is_next && next.bytes.end.max(self.bytes.end) - self.bytes.start <= MAX_RUN_BYTES
    }

    pub(super) fn len(&self) -> usize {
        (self.bytes.end - self.bytes.start) as usize
    }

    /// The samples whose checksums differ; `bytes` are the bytes of the run.
    pub(super) fn wrong(&self, bytes: &[u8]) -> Vec<SampleId> {
        let is_wrong = |(_, extent): &&(SampleId, Extent)| {
            let from = extent.offset_bytes.saturating_sub(self.bytes.start) as usize;
            let sample = bytes.get(from..from + extent.len_bytes as usize).unwrap_or_default();
            sample.len() < extent.len_bytes as usize || crc32c(sample) != extent.crc32c
        };
        self.samples.iter().filter(is_wrong).map(|(id, _)| *id).collect()
    }
}

/// The pages of a sample, as a byte range of its namespace; empty for an empty sample.
pub(super) fn page_bytes(extent: &Extent) -> Range<u64> {
    if extent.len_bytes == 0 {
        let start = extent.offset_bytes / PAGE_BYTES * PAGE_BYTES;
        return start..start;
    }
    let end = extent.offset_bytes + u64::from(extent.len_bytes);
    extent.offset_bytes / PAGE_BYTES * PAGE_BYTES..end.next_multiple_of(PAGE_BYTES)
}

/// Queue pairs on all namespaces of one source.
pub(super) struct SourceReader {
    calls: Calls,
    /// The queue pair of each namespace.
    pairs: Vec<usize>,
}

impl SourceReader {
    /// Opens queue pairs on `devices`, one for each namespace. The deadline of a call is `limit`.
    ///
    /// # Errors
    /// Errors of [`Device::queue_pair_in`].
    pub(super) fn new(devices: &[Arc<dyn Device>], limit: Duration) -> Result<SourceReader> {
        let mut calls = Calls::new(limit)?;
        let scope = PairScope::new();
        let add = |device: &Arc<dyn Device>| Ok(calls.add(device.queue_pair_in(&scope)?));
        let pairs = devices.iter().map(add).collect::<Result<Vec<_>>>()?;
        Ok(SourceReader { calls, pairs })
    }

    /// Reads `runs`, and calls `each` for every run as it arrives. If `each` returns `false` or an error,
    /// skips the remaining runs; the reader must not be used again.
    ///
    /// # Errors
    /// Errors of `each`.
    pub(super) fn fetch(
        &mut self,
        runs: impl IntoIterator<Item = SampleRun>,
        each: &mut dyn FnMut(&SampleRun, Fetched) -> Result<bool>,
    ) -> Result<()> {
        let mut runs = runs.into_iter();
        let mut under_way: VecDeque<(SampleRun, Ticket)> = VecDeque::new();
        loop {
            while under_way.len() < DEPTH
                && let Some(run) = runs.next()
            {
                let fetched = match self.begin(&run) {
                    Ok(Some(ticket)) => {
                        under_way.push_back((run, ticket));
                        continue;
                    }
                    Ok(None) => Fetched::Right(IoBuf::empty()),
                    Err(error) => Fetched::Failed(error),
                };
                if !each(&run, fetched)? {
                    return Ok(());
                }
            }
            if under_way.is_empty() {
                return Ok(());
            }
            let moved = self.calls.turn();
            let mut ended = false;
            for _ in 0..under_way.len() {
                let Some((run, ticket)) = under_way.pop_front() else { break };
                match self.calls.take(ticket) {
                    None => under_way.push_back((run, ticket)),
                    Some(read) => {
                        ended = true;
                        if !each(&run, checked(&run, read))? {
                            return Ok(());
                        }
                    }
                }
            }
            if !moved && !ended {
                self.calls.wait();
            }
        }
    }

    /// Reads one page.
    ///
    /// # Errors
    /// As [`Calls::read`].
    pub(super) fn read_page(&mut self, namespace: u16, offset_bytes: u64) -> Result<IoBuf> {
        let pair = self.pairs[usize::from(namespace)];
        self.calls.read(pair, offset_bytes, PAGE_BYTES as usize)
    }

    /// Begins to read a run, unless it is empty.
    fn begin(&mut self, run: &SampleRun) -> Result<Option<Ticket>> {
        let pair = self.pairs[usize::from(run.namespace)];
        let begin = || self.calls.begin_read(pair, run.bytes.start, IoBuf::zeroed(run.len()));
        (run.len() > 0).then(begin).transpose()
    }
}

/// The outcome of reading a run.
pub(super) enum Fetched {
    /// All checksums match.
    Right(IoBuf),
    /// Samples with another checksum than the directory's.
    Wrong(Vec<SampleId>),
    /// The source could not be read.
    Failed(Error),
}

fn checked(run: &SampleRun, read: Result<IoBuf>) -> Fetched {
    match read {
        Ok(buf) => match run.wrong(&buf) {
            wrong if wrong.is_empty() => Fetched::Right(buf),
            wrong => Fetched::Wrong(wrong),
        },
        Err(error) => Fetched::Failed(error),
    }
}

/// Returns whether a store has answered that it does not have the pages.
pub(super) fn is_absent(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<IoError>());
    matches!(cause, Some(IoError::Status(status)) if status.is(Status::UNWRITTEN_BLOCK))
}

/// Maximum length of a run of several samples: the largest transfer of most targets.
const MAX_RUN_BYTES: u64 = 1 << 20;

/// Number of runs in flight.
const DEPTH: usize = 16;
