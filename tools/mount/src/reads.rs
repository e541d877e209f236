//! The kernel's read requests: those that wait at the same time become one batch of the data set.
//!
//! A thread with a new request becomes a *leader* if there are fewer than `max_leaders`: it takes the waiting
//! requests, reads their samples as one batch, answers, and takes the next ones until none is left. Otherwise the
//! thread leaves its request in the queue, for a leader, and goes back to the kernel.
//!
//! The kernel reads a longer file in several requests. So that storage is read once:
//!
//! - a file that does not fit in one request is cached whole;
//! - of a sample above 1 MiB, only the pieces that a request touches are read, and further pieces ahead of a sequential
//!   reader;
//! - files that an [`Ahead`] has read along an order are taken from there.
//!
//! After a target has failed to answer a read, the kernel's repeated reads get less time ([`Unanswered`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::dataset::{Ahead, AheadStats, Files, OnError, OrderFile, Query, SampleFile};
use dlfs::posix::File;
use dlfs::process::memory_bytes;
use dlfs::reader::Watch;
use dlfs::units::{Epoch, SampleId};
use dlfs::{Error, ErrorKind};
use fuser::{Errno, ReplyData};
use parking_lot::Mutex;

use crate::filesystem::errno_of;

/// The kernel's request for a range of a file.
pub(crate) struct ReadRequest {
    pub(crate) file: File,
    /// The first byte of the range.
    pub(crate) offset: u64,
    /// The most bytes to answer with: fewer at the end of the file.
    pub(crate) size: u32,
    /// The time at which the request arrived.
    pub(crate) asked: Instant,
    /// Set if this read counts as an open: it begins at offset 0, and the kernel sends no opens.
    pub(crate) opens: bool,
    pub(crate) reply: ReplyData,
}

/// Waiting requests, and the caches from which requests are answered.
pub(crate) struct Reads {
    files: Arc<Files>,
    max_leaders: usize,
    max_cached_bytes: usize,
    max_in_pieces: usize,
    queue: Mutex<Queue>,
    cache: Mutex<FileCache>,
    /// Readahead along an order, if the mount follows one.
    ahead: Mutex<Option<Arc<Ahead<AheadFields>>>>,
    unanswered: Unanswered,
}

/// A sample that was read ahead: its epoch in the order, and the bytes of each field.
type AheadFields = (Epoch, Arc<[Box<[u8]>]>);

/// The requests that wait, and the leaders.
#[derive(Default)]
struct Queue {
    waiting: Vec<ReadRequest>,
    /// Samples that a leader is reading: further requests for them wait for that leader.
    busy: Vec<SampleId>,
    /// Threads that read batches now.
    leaders: usize,
}

/// The files that the kernel has most recently read in several requests, oldest first.
#[derive(Default)]
struct FileCache {
    /// Whole files.
    files: VecDeque<(File, Arc<[u8]>)>,
    /// Bytes of `files`.
    bytes: usize,
    /// Files that are read in pieces; each caches a few pieces.
    in_pieces: VecDeque<(File, Arc<SampleFile>)>,
}

impl Reads {
    pub(crate) fn new(files: Arc<Files>, max_leaders: usize) -> Reads {
        let max_cached_bytes = (memory_bytes() / 8).min(MAX_CACHED_BYTES) as usize;
        let max_in_pieces =
            (memory_bytes() / 4 / BYTES_PER_FILE_IN_PIECES).clamp(1, MAX_FILES_IN_PIECES) as usize;
        Reads {
            files,
            max_leaders,
            max_cached_bytes,
            max_in_pieces,
            queue: Mutex::default(),
            cache: Mutex::default(),
            ahead: Mutex::default(),
            unanswered: Unanswered::default(),
        }
    }

    /// Reads ahead along `order`, instead of any other order.
    pub(crate) fn follow(&self, order: &OrderFile) -> dlfs::Result<()> {
        let files = Arc::clone(&self.files);
        let ahead = Ahead::start(self.files.dataset(), order, usize::MAX, move |batch, index| {
            let fields = files.tree().directory().fields().len().max(1);
            let all = (0..fields).map(|field| File { id: batch.id(index), field: field as u16 });
            let bytes = all.map(|file| {
                files.bytes(batch, index, file).ok().map(|bytes| bytes.into_owned().into())
            });
            Some((batch.epoch(), bytes.collect::<Option<_>>()?))
        })?;
        let before = self.ahead.lock().replace(Arc::new(ahead));
        self.files.order_begins();
        drop(before); // after unlocking: dropping it waits for its thread
        Ok(())
    }

    /// Counters of readahead so far, as JSON; `None` without an order.
    pub(crate) fn order(&self) -> Option<String> {
        let ahead = Arc::clone(self.ahead.lock().as_ref()?);
        let AheadStats { samples, bytes, hits, misses, unused } = ahead.stats();
        let ended = ahead.ended().map_or("null".to_owned(), |why| format!("{why:?}"));
        Some(format!(
            "{{\"samples\": {samples}, \"bytes\": {bytes}, \"hits\": {hits}, \"misses\": {misses}, \
             \"unused\": {unused}, \"ended\": {ended}}}"
        ))
    }

    /// Answers `request`: on this thread, or later on a leader's.
    pub(crate) fn read(&self, request: ReadRequest) {
        if let Some(bytes) = self.cached(request.file) {
            self.count(&request, None);
            return self.answer(request, &bytes);
        }
        let ahead = self.ahead.lock().clone();
        let fields = ahead.and_then(|ahead| ahead.take(request.file.id));
        self.count(&request, fields.as_ref().map(|(epoch, _)| *epoch));
        if let Some((_, fields)) = fields
            && let Some(bytes) = fields.get(usize::from(request.file.field))
        {
            if request.offset > 0 || bytes.len() > request.size as usize {
                self.insert(request.file, bytes);
            }
            return self.answer(request, bytes);
        }
        let mut batch = Vec::new();
        {
            let mut queue = self.queue.lock();
            queue.waiting.push(request);
            if queue.leaders >= self.max_leaders {
                return; // a leader takes the request before it stops leading
            }
            queue.leaders += 1;
            queue.take(&mut batch);
            if batch.is_empty() {
                queue.leaders -= 1; // a leader reads this very sample, and then takes the request
                return;
            }
        }
        while !batch.is_empty() {
            let ids = self.lead(&mut batch);
            let mut queue = self.queue.lock();
            queue.busy.retain(|id| !ids.contains(id));
            queue.take(&mut batch);
            if batch.is_empty() {
                queue.leaders -= 1;
            }
        }
    }

    fn count(&self, request: &ReadRequest, along: Option<Epoch>) {
        if request.opens {
            self.files.opened(request.file, along);
        }
    }

    /// Reads and answers the requests of `batch`, and empties it; returns its samples.
    fn lead(&self, batch: &mut Vec<ReadRequest>) -> Vec<SampleId> {
        let mut ids: Vec<SampleId> = batch.iter().map(|request| request.file.id).collect();
        ids.sort_unstable();
        ids.dedup();
        // Another leader may have cached some of the files since they were queued.
        let mut absent = Vec::with_capacity(batch.len());
        for request in batch.drain(..) {
            match self.cached(request.file) {
                Some(bytes) => self.answer(request, &bytes),
                None => absent.push(request),
            }
        }
        let absent = self.answer_in_pieces(absent);
        // Requests with a short time limit form a second batch: the limit would end the other reads, too.
        let limited = absent.into_iter().map(|request| (self.limit(&request), request));
        let (again, first): (Vec<_>, Vec<_>) = limited.partition(|(limit, _)| limit.is_some());
        for requests in [first, again].into_iter().filter(|requests| !requests.is_empty()) {
            let limit = requests.iter().filter_map(|(limit, _)| *limit).max();
            self.answer_whole(requests.into_iter().map(|(_, request)| request).collect(), limit);
        }
        ids
    }

    /// Reads the samples of `requests` whole, as one batch, and answers. `limit` bounds the read; `None`: only the
    /// usual deadline does.
    fn answer_whole(&self, requests: Vec<ReadRequest>, limit: Option<Duration>) {
        let mut wanted: Vec<SampleId> = requests.iter().map(|request| request.file.id).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let began = Instant::now();
        let mut until = ReadDeadline::after(limit);
        let read = self.files.dataset().read(Query::Ids(&wanted), OnError::Blank, &mut until);
        let read = match read {
            Ok(read) => read,
            Err(error) => return self.fail(&error, began, requests),
        };
        for request in requests {
            let index = wanted.binary_search(&request.file.id).unwrap_or(0); // it has every request's id
            if let Some((_, error)) = read.failures.iter().find(|(at, _)| *at == index) {
                self.fail(error, began, vec![request]);
                continue;
            }
            match self.files.bytes(&read.batch, index, request.file) {
                Err(error) => request.reply.error(errno_of(&error)),
                Ok(bytes) => {
                    if request.offset > 0 || bytes.len() > request.size as usize {
                        self.insert(request.file, &bytes);
                    }
                    self.answer(request, &bytes);
                }
            }
        }
    }

    /// Answers the requests of samples that are read in pieces, in ascending order of offset, so that each file
    /// is read sequentially; returns the other requests.
    fn answer_in_pieces(&self, requests: Vec<ReadRequest>) -> Vec<ReadRequest> {
        let mut others = Vec::with_capacity(requests.len());
        let mut pieces = Vec::new();
        for request in requests {
            let began = Instant::now();
            let mut until = ReadDeadline::after(self.limit(&request));
            match self.in_pieces(request.file, &mut until) {
                Ok(None) => others.push(request),
                Ok(Some(opened)) => pieces.push((request, opened)),
                Err(error) => self.fail(&error, began, vec![request]),
            }
        }
        pieces.sort_by_key(|(request, _)| (request.file.id, request.file.field, request.offset));
        let mut buffer = Vec::new();
        let mut pieces = pieces.into_iter();
        while let Some((request, opened)) = pieces.next() {
            buffer.resize(request.size as usize, 0);
            let began = Instant::now();
            let mut until = ReadDeadline::after(self.limit(&request));
            match opened.read_at(request.offset, &mut buffer, &mut until) {
                Ok(len) => {
                    self.files.counters().read(len as u64);
                    request.reply.data(&buffer[..len]);
                }
                Err(error) => {
                    // If the target did not answer, the remaining requests fail, too, instead of waiting each.
                    let behind = is_unanswered(&error).then(|| pieces.by_ref());
                    let behind = behind.into_iter().flatten().map(|(request, _)| request);
                    self.fail(&error, began, std::iter::once(request).chain(behind).collect());
                }
            }
        }
        others
    }

    /// The short time limit of the request, if it repeats an unanswered read or has waited behind one.
    fn limit(&self, request: &ReadRequest) -> Option<Duration> {
        self.unanswered.limit(request.file, request.asked)
    }

    /// Answers `requests` with an error.
    fn fail(&self, error: &Error, began: Instant, requests: Vec<ReadRequest>) {
        // Noted before the replies, since the kernel repeats such a read at once.
        self.unanswered.note(
            error,
            began,
            requests.iter().map(|request| (request.file, request.asked)),
        );
        let errno = match error.kind() {
            ErrorKind::Interrupted => Errno::ETIMEDOUT, // it had the short limit
            _ => errno_of(error),
        };
        requests.into_iter().for_each(|request| request.reply.error(errno));
    }

    /// The open file, which the first call opens; `None` if the file is not read in pieces.
    fn in_pieces(
        &self,
        file: File,
        until: &mut ReadDeadline,
    ) -> dlfs::Result<Option<Arc<SampleFile>>> {
        if let Some((_, opened)) =
            self.cache.lock().in_pieces.iter().find(|(known, _)| *known == file)
        {
            return Ok(Some(Arc::clone(opened)));
        }
        let opened = self.files.open_in_pieces(file, until)?.map(Arc::new);
        if let Some(opened) = &opened {
            let mut cache = self.cache.lock();
            if cache.in_pieces.len() == self.max_in_pieces {
                cache.in_pieces.pop_front();
            }
            cache.in_pieces.push_back((file, Arc::clone(opened)));
        }
        Ok(opened)
    }

    /// Answers with the request's range of `bytes`, which are the whole file.
    fn answer(&self, request: ReadRequest, bytes: &[u8]) {
        let from = usize::try_from(request.offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = from.saturating_add(request.size as usize).min(bytes.len());
        self.files.counters().read((end - from) as u64);
        request.reply.data(&bytes[from..end]);
    }

    fn cached(&self, file: File) -> Option<Arc<[u8]>> {
        let cache = self.cache.lock();
        cache.files.iter().find(|(known, _)| *known == file).map(|(_, bytes)| Arc::clone(bytes))
    }

    fn insert(&self, file: File, bytes: &[u8]) {
        let mut cache = self.cache.lock();
        if cache.files.iter().any(|(known, _)| *known == file) {
            return;
        }
        cache.bytes += bytes.len();
        cache.files.push_back((file, bytes.into()));
        while cache.bytes > self.max_cached_bytes && cache.files.len() > 1 {
            if let Some((_, oldest)) = cache.files.pop_front() {
                cache.bytes -= oldest.len();
            }
        }
    }
}

impl Queue {
    /// Moves the requests that may be read now to `batch`, and marks their samples as busy.
    fn take(&mut self, batch: &mut Vec<ReadRequest>) {
        let mut left = Vec::new();
        for request in self.waiting.drain(..) {
            let is_busy = self.busy.contains(&request.file.id);
            if is_busy || batch.len() >= MAX_BATCH_READS {
                left.push(request)
            } else {
                batch.push(request)
            }
        }
        self.waiting = left;
        self.busy.extend(batch.iter().map(|request| request.file.id));
    }
}

/// The unanswered reads of the last second, which limit the time of repeated ones.
///
/// The kernel repeats the read of a page that it could not read, and reads queue behind a batch that waits for the
/// target. If each read waited for its own deadline, a program would wait for all these deadlines in turn. So for a
/// second after a failure, a *repeated* read gets an eighth of the time that the failed read took: a read of the same
/// file, or one that the kernel requested before the failure. That is enough if the target is back, and a program waits
/// for little more than one deadline. Other reads get the full time.
#[derive(Default)]
struct Unanswered(Mutex<Vec<Failure>>);

/// Reads that ended without an answer.
struct Failure {
    /// The time at which they ended.
    at: Instant,
    /// The time for which they waited.
    waited: Duration,
    files: Vec<File>,
}

impl Unanswered {
    /// Records reads that began at `began` and failed with `error`, unless `error` is an answer of the target.
    /// `reads` holds their files, and the time of the kernel's request for each.
    fn note(&self, error: &Error, began: Instant, reads: impl Iterator<Item = (File, Instant)>) {
        let mut failures = self.0.lock();
        let has_waited = |asked: Instant| failures.iter().any(|failure| asked < failure.at);
        let files = match error.kind() {
            ErrorKind::TimedOut | ErrorKind::Disconnected => reads.map(|(file, _)| file).collect(),
            // The short limit ended these reads. Only those that the kernel requested before an earlier failure are
            // recorded, so that short limits end even if programs continue to read.
            ErrorKind::Interrupted => {
                reads.filter(|(_, asked)| has_waited(*asked)).map(|(file, _)| file).collect()
            }
            _ => return,
        };
        let at = Instant::now();
        failures.push(Failure { at, waited: at - began, files });
    }

    /// The time limit of a read that the kernel requested at `asked`; `None`: the usual deadline.
    fn limit(&self, file: File, asked: Instant) -> Option<Duration> {
        let mut failures = self.0.lock();
        failures.retain(|failure| failure.at.elapsed() < LIMITS_FOR);
        let is_repeated = |failure: &&Failure| asked < failure.at || failure.files.contains(&file);
        let waited = failures.iter().filter(is_repeated).map(|failure| failure.waited).max();
        waited.map(|waited| waited / LIMIT_DIVISOR)
    }
}

/// Returns whether a read ended without an answer of the target: by a deadline, a short limit, or a lost connection.
fn is_unanswered(error: &Error) -> bool {
    use ErrorKind::{Disconnected, Interrupted, TimedOut};
    matches!(error.kind(), TimedOut | Disconnected | Interrupted)
}

/// The short time limit of one read; `None`: only the usual deadline.
struct ReadDeadline(Option<Instant>);

impl ReadDeadline {
    /// Ends the read `limit` from now.
    fn after(limit: Option<Duration>) -> ReadDeadline {
        ReadDeadline(limit.map(|limit| Instant::now() + limit))
    }
}

impl Watch for ReadDeadline {
    fn goes_on(&mut self) -> bool {
        self.0.is_none_or(|until| Instant::now() < until)
    }
}

/// A failure limits reads for this time.
const LIMITS_FOR: Duration = Duration::from_secs(1);
/// A repeated read gets the failed read's time divided by this.
const LIMIT_DIVISOR: u32 = 8;
/// Memory limit of the cache of whole files; also at most an eighth of the memory. The newest file is cached even if it
/// is longer.
const MAX_CACHED_BYTES: u64 = 64 << 20;
/// The most files that stay open to be read in pieces; together they take at most a quarter of the memory.
const MAX_FILES_IN_PIECES: u64 = 16;
/// The most bytes that each file that is read in pieces caches.
const BYTES_PER_FILE_IN_PIECES: u64 = 8 << 20;
/// The most reads that one batch answers.
const MAX_BATCH_READS: usize = 256;

#[cfg(test)]
mod tests {
    use dlfs::units::SampleId;

    use super::*;

    #[test]
    fn what_waited_and_what_comes_again_get_less_time_and_all_others_as_much_as_any() {
        let file = |id| File { id: SampleId(id), field: 0 };
        let unanswered = Unanswered::default();
        let asked = Instant::now();
        let begun = asked - Duration::from_secs(8);
        let one = || [(file(1), asked)].into_iter();
        unanswered.note(&Error::new(ErrorKind::Corrupt, "damaged"), begun, one());
        assert_eq!(unanswered.limit(file(1), asked), None, "somebody has answered");
        unanswered.note(&Error::new(ErrorKind::TimedOut, "late"), begun, one());
        let later = Instant::now() + Duration::from_millis(1);
        let least = Duration::from_secs(1);
        assert!(unanswered.limit(file(2), asked).is_some_and(|limit| limit >= least), "it waited");
        assert_eq!(unanswered.limit(file(2), later), None);
        assert!(unanswered.limit(file(1), later).is_some_and(|limit| limit >= least), "again");
        let short = Error::new(ErrorKind::Interrupted, "it had less time");
        let reads = [(file(3), asked), (file(4), later)].into_iter();
        unanswered.note(&short, Instant::now(), reads);
        let latest = Instant::now() + Duration::from_secs(1);
        assert!(unanswered.limit(file(3), latest).is_some(), "the kernel asks for it again");
        assert_eq!(unanswered.limit(file(4), latest), None, "the kernel has asked for it again");
    }
}
