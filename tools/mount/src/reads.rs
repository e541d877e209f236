//! Reads of files. Reads that wait at the same time become one batch. A file that the kernel reads in parts is
//! cached, so that it is read from storage once.
//!
//! A thread with a new read becomes a *leader* if there are fewer than `most_leaders`: it takes the waiting
//! reads, reads them as one batch, answers them, and takes the next ones until none is left. Otherwise the
//! thread leaves its read in the queue, for a leader, and takes further requests.
//!
//! For a sample above 1 MiB, only the pieces that a read touches are read, and further pieces ahead of a
//! sequential reader.
//!
//! # Reads that the target left unanswered
//!
//! The kernel repeats the read of a page that it could not read, and reads queue behind a batch that waits
//! for the target. If each read waited for its own deadline, a program would wait for all these deadlines in
//! turn. So for a second after a failure, a *repeated* read gets an eighth of the time that the failed read
//! took: a read of the same file, or one that the kernel requested before the failure. That is enough if the
//! target is back, and a program waits for little more than one deadline. Other reads get the full time.

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

/// A part of a file that the kernel waits for.
pub(crate) struct Part {
    pub(crate) file: File,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    /// The time of the kernel's request.
    pub(crate) asked: Instant,
    /// Set if this read counts as an open: it begins at offset 0, and the kernel sends no opens.
    pub(crate) opens: bool,
    pub(crate) reply: ReplyData,
}

/// Waiting reads, and cached files that were read in part.
pub(crate) struct Reads {
    files: Arc<Files>,
    most_leaders: usize,
    kept_bytes: usize,
    most_in_pieces: usize,
    queue: Mutex<Queue>,
    kept: Mutex<Kept>,
    ahead: Mutex<Option<Arc<Ahead<Fields>>>>,
    unanswered: Unanswered,
}

/// The files of one sample, and its epoch in the order.
type Fields = (Epoch, Arc<[Box<[u8]>]>);

#[derive(Default)]
struct Queue {
    waiting: Vec<Part>,
    /// Samples that a leader is reading: further parts of them wait for that leader.
    busy: Vec<SampleId>,
    leaders: usize,
}

/// The files that were read in part most recently.
#[derive(Default)]
struct Kept {
    files: VecDeque<(File, Arc<[u8]>)>,
    bytes: usize,
    /// Files that are read in pieces; each caches a few pieces.
    in_pieces: VecDeque<(File, Arc<SampleFile>)>,
}

impl Reads {
    pub(crate) fn new(files: Arc<Files>, most_leaders: usize) -> Reads {
        let (queue, kept, ahead, unanswered) = Default::default();
        let kept_bytes = (memory_bytes() / 8).min(MOST_KEPT_BYTES) as usize;
        let most_in_pieces =
            (memory_bytes() / 4 / OF_PIECES_BYTES).clamp(1, MOST_IN_PIECES) as usize;
        Reads { files, most_leaders, kept_bytes, most_in_pieces, queue, kept, ahead, unanswered }
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

    /// Answers `part`: on this thread, or later on a leader's.
    pub(crate) fn read(&self, part: Part) {
        if let Some(bytes) = self.kept(part.file) {
            self.count(&part, None);
            return self.answer(part, &bytes);
        }
        let ahead = self.ahead.lock().clone();
        let fields = ahead.and_then(|ahead| ahead.take(part.file.id));
        self.count(&part, fields.as_ref().map(|(epoch, _)| *epoch));
        if let Some((_, fields)) = fields
            && let Some(bytes) = fields.get(usize::from(part.file.field))
        {
            if part.offset > 0 || bytes.len() > part.size as usize {
                self.keep(part.file, bytes);
            }
            return self.answer(part, bytes);
        }
        let mut batch = Vec::new();
        {
            let mut queue = self.queue.lock();
            queue.waiting.push(part);
            if queue.leaders >= self.most_leaders {
                return; // a leader takes the part before it stops leading
            }
            queue.leaders += 1;
            queue.take(&mut batch);
            if batch.is_empty() {
                queue.leaders -= 1; // a leader reads this very sample, and then takes the part
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

    fn count(&self, part: &Part, along: Option<Epoch>) {
        if part.opens {
            self.files.opened(part.file, along);
        }
    }

    /// Reads the batch and answers it; returns its samples.
    fn lead(&self, batch: &mut Vec<Part>) -> Vec<SampleId> {
        let mut ids: Vec<SampleId> = batch.iter().map(|part| part.file.id).collect();
        ids.sort_unstable();
        ids.dedup();
        // Another leader may have cached some of the files since they were queued.
        let (there, absent): (Vec<_>, Vec<_>) = batch
            .drain(..)
            .map(|part| (self.kept(part.file), part))
            .partition(|(k, _)| k.is_some());
        for (bytes, part) in there {
            self.answer(part, &bytes.unwrap_or_default());
        }
        let absent = absent.into_iter().map(|(_, part)| part).collect();
        let absent = self.answer_in_pieces(absent);
        // Limited parts are read in a batch of their own: the limit would end the others' reads, too.
        let limited = absent.into_iter().map(|part| (self.limit(&part), part));
        let (again, first): (Vec<_>, Vec<_>) = limited.partition(|(limit, _)| limit.is_some());
        for parts in [first, again].into_iter().filter(|parts| !parts.is_empty()) {
            let limit = parts.iter().filter_map(|(limit, _)| *limit).max();
            self.answer_whole(parts.into_iter().map(|(_, part)| part).collect(), limit);
        }
        ids
    }

    /// Reads the samples of `parts` whole, as one batch, and answers.
    fn answer_whole(&self, parts: Vec<Part>, limit: Option<Duration>) {
        let mut wanted: Vec<SampleId> = parts.iter().map(|part| part.file.id).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let began = Instant::now();
        let mut until = Until::after(limit);
        let read = self.files.dataset().read(Query::Ids(&wanted), OnError::Blank, &mut until);
        let read = match read {
            Ok(read) => read,
            Err(error) => return self.fail(&error, began, parts),
        };
        for part in parts {
            let index = wanted.binary_search(&part.file.id).unwrap_or(0); // it has every part's id
            if let Some((_, error)) = read.failures.iter().find(|(at, _)| *at == index) {
                self.fail(error, began, vec![part]);
                continue;
            }
            match self.files.bytes(&read.batch, index, part.file) {
                Err(error) => part.reply.error(errno_of(&error)),
                Ok(bytes) => {
                    if part.offset > 0 || bytes.len() > part.size as usize {
                        self.keep(part.file, &bytes);
                    }
                    self.answer(part, &bytes);
                }
            }
        }
    }

    /// Answers the parts of samples that are read in pieces, in ascending order of offset, so that each file
    /// is read sequentially; returns the other parts.
    fn answer_in_pieces(&self, parts: Vec<Part>) -> Vec<Part> {
        let mut others = Vec::with_capacity(parts.len());
        let mut pieces = Vec::new();
        for part in parts {
            let began = Instant::now();
            let mut until = Until::after(self.limit(&part));
            match self.in_pieces(part.file, &mut until) {
                Ok(None) => others.push(part),
                Ok(Some(opened)) => pieces.push((part, opened)),
                Err(error) => self.fail(&error, began, vec![part]),
            }
        }
        pieces.sort_by_key(|(part, _)| (part.file.id, part.file.field, part.offset));
        let mut buffer = Vec::new();
        let mut pieces = pieces.into_iter();
        while let Some((part, opened)) = pieces.next() {
            buffer.resize(part.size as usize, 0);
            let began = Instant::now();
            let mut until = Until::after(self.limit(&part));
            match opened.read_at(part.offset, &mut buffer, &mut until) {
                Ok(len) => {
                    self.files.counters().read(len as u64);
                    part.reply.data(&buffer[..len]);
                }
                Err(error) => {
                    // If the target did not answer, the remaining parts fail, too, instead of waiting each.
                    let behind = is_unanswered(&error).then(|| pieces.by_ref());
                    let behind = behind.into_iter().flatten().map(|(part, _)| part);
                    self.fail(&error, began, std::iter::once(part).chain(behind).collect());
                }
            }
        }
        others
    }

    /// The time limit of the part, if it is a repeated read or has already waited.
    fn limit(&self, part: &Part) -> Option<Duration> {
        self.unanswered.limit(part.file, part.asked)
    }

    /// Answers `parts` with an error.
    fn fail(&self, error: &Error, began: Instant, parts: Vec<Part>) {
        // Noted before the replies, since the kernel repeats such a read at once.
        self.unanswered.note(error, began, parts.iter().map(|part| (part.file, part.asked)));
        let errno = match error.kind() {
            ErrorKind::Interrupted => Errno::ETIMEDOUT, // it had the short limit
            _ => errno_of(error),
        };
        parts.into_iter().for_each(|part| part.reply.error(errno));
    }

    /// The open file, if it is read in pieces.
    fn in_pieces(&self, file: File, until: &mut Until) -> dlfs::Result<Option<Arc<SampleFile>>> {
        if let Some((_, opened)) =
            self.kept.lock().in_pieces.iter().find(|(known, _)| *known == file)
        {
            return Ok(Some(Arc::clone(opened)));
        }
        let opened = self.files.open_in_pieces(file, until)?.map(Arc::new);
        if let Some(opened) = &opened {
            let mut kept = self.kept.lock();
            if kept.in_pieces.len() == self.most_in_pieces {
                kept.in_pieces.pop_front();
            }
            kept.in_pieces.push_back((file, Arc::clone(opened)));
        }
        Ok(opened)
    }

    fn answer(&self, part: Part, bytes: &[u8]) {
        let from = usize::try_from(part.offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = from.saturating_add(part.size as usize).min(bytes.len());
        self.files.counters().read((end - from) as u64);
        part.reply.data(&bytes[from..end]);
    }

    fn kept(&self, file: File) -> Option<Arc<[u8]>> {
        let kept = self.kept.lock();
        kept.files.iter().find(|(known, _)| *known == file).map(|(_, bytes)| Arc::clone(bytes))
    }

    fn keep(&self, file: File, bytes: &[u8]) {
        let mut kept = self.kept.lock();
        if kept.files.iter().any(|(known, _)| *known == file) {
            return;
        }
        kept.bytes += bytes.len();
        kept.files.push_back((file, bytes.into()));
        while kept.bytes > self.kept_bytes && kept.files.len() > 1 {
            if let Some((_, oldest)) = kept.files.pop_front() {
                kept.bytes -= oldest.len();
            }
        }
    }
}

impl Queue {
    /// Moves the parts that may be read now to `batch`, and marks their samples as busy.
    fn take(&mut self, batch: &mut Vec<Part>) {
        let mut left = Vec::new();
        for part in self.waiting.drain(..) {
            let is_busy = self.busy.contains(&part.file.id);
            if is_busy || batch.len() >= MOST_AT_ONCE { left.push(part) } else { batch.push(part) }
        }
        self.waiting = left;
        self.busy.extend(batch.iter().map(|part| part.file.id));
    }
}

/// Memory limit of the cache of files that were read in part; also at most an eighth of the memory. The newest
/// file is cached even if it is longer.
const MOST_KEPT_BYTES: u64 = 64 << 20;
/// The most files that stay open to be read in pieces; together they take at most a quarter of the memory.
const MOST_IN_PIECES: u64 = 16;
/// The most bytes that each of these files caches.
const OF_PIECES_BYTES: u64 = 8 << 20;
/// The most reads that one batch answers.
const MOST_AT_ONCE: usize = 256;

/// The most recent unanswered reads.
#[derive(Default)]
struct Unanswered(Mutex<Vec<Failure>>);

struct Failure {
    at: Instant,
    waited: Duration,
    files: Vec<File>,
}

impl Unanswered {
    /// Notes the failure of reads that began at `began`, if `error` says that the target did not answer.
    /// `reads` holds their files, and the time of the kernel's request for each.
    fn note(&self, error: &Error, began: Instant, reads: impl Iterator<Item = (File, Instant)>) {
        let mut failures = self.0.lock();
        let has_waited = |asked: Instant| failures.iter().any(|failure| asked < failure.at);
        let files = match error.kind() {
            ErrorKind::TimedOut | ErrorKind::Disconnected => reads.map(|(file, _)| file).collect(),
            // These reads had the short limit. Only those that the kernel requested before an earlier failure are
            // noted, so that the short limits end even if programs go on to read.
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
        failures.retain(|failure| failure.at.elapsed() < AGAIN_WITHIN);
        let comes_again = |failure: &&Failure| asked < failure.at || failure.files.contains(&file);
        let waited = failures.iter().filter(comes_again).map(|failure| failure.waited).max();
        waited.map(|waited| waited / AGAIN_SHARE)
    }
}

/// Returns whether the error says that the target did not answer in time.
fn is_unanswered(error: &Error) -> bool {
    use ErrorKind::{Disconnected, Interrupted, TimedOut};
    matches!(error.kind(), TimedOut | Disconnected | Interrupted)
}

/// Ends a read at this time, if there is one.
struct Until(Option<Instant>);

impl Until {
    /// The time `limit` from now; `None`: no limit.
    fn after(limit: Option<Duration>) -> Until {
        Until(limit.map(|limit| Instant::now() + limit))
    }
}

impl Watch for Until {
    fn goes_on(&mut self) -> bool {
        self.0.is_none_or(|until| Instant::now() < until)
    }
}

/// A failure limits reads for this time.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// A repeated read gets the failed read's time divided by this.
const AGAIN_SHARE: u32 = 8;

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
