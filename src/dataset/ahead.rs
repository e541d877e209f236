//! Readahead along an order, for programs that open files one by one.
//!
//! A program that knows only files does not say which file it opens next. If its order is known ([`OrderFile`]), a
//! thread reads samples along that order with a loader, makes a value of each sample, such as a file in memory, and
//! keeps a window of these values. Samples outside the window are read on demand. The window moves as values are
//! taken: see [`Window::make_room`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{ErrorKind, Result};
use crate::metrics::{self, Measured, Snapshot};
use crate::process::{Condvar, Mutex, MutexGuard};
use crate::reader::Batch;
use crate::registry::Registration;
use crate::threads::caught;
use crate::units::SampleId;

use super::{Dataset, Loader, OrderFile, Sampler};

/// Counters of readahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AheadStats {
    /// Samples read ahead.
    pub samples: u64,
    /// Bytes of these samples.
    pub bytes: u64,
    /// Files handed out from the window, at once or after a wait.
    pub hits: u64,
    /// Files asked for that were not in the window, even after a wait.
    pub misses: u64,
    /// Samples that were read ahead and dropped without having been handed out.
    pub unused: u64,
}

impl Measured for AheadStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        for (metric, value) in [
            (&metrics::AHEAD_SAMPLES, self.samples),
            (&metrics::AHEAD_BYTES, self.bytes),
            (&metrics::AHEAD_HITS, self.hits),
            (&metrics::AHEAD_MISSES, self.misses),
            (&metrics::AHEAD_UNUSED, self.unused),
        ] {
            snapshot.count(metric, &[], value);
        }
    }
}

/// Readahead along an order. Its thread ends when this value is dropped. Each sample is kept as a `T`.
#[derive(Debug)]
pub struct Ahead<T: Clone + Send + 'static> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
    _metered: Registration,
}

#[derive(Debug)]
struct Shared<T> {
    window: Mutex<Window<T>>,
    /// Notified when the thread has read a sample or ends, when the program asks for a sample, and on drop.
    changed: Condvar,
}

#[derive(Debug)]
struct Window<T> {
    /// The entries of the window, in the order of reading.
    kept: VecDeque<Kept<T>>,
    /// The number of the first entry of `kept`; the entries are numbered consecutively.
    first: u64,
    /// For each sample, the number of one of its entries. [`Window::take`] moves on from a taken entry to the next.
    entries: HashMap<SampleId, u64>,
    /// The samples of the current batch that the thread has yet to make values of (`coming`), and those of the batch
    /// after it (`following`). A program that follows the order asks for one of these, also between two batches: it
    /// then waits for the sample instead of reading it itself.
    coming: HashSet<SampleId>,
    following: HashSet<SampleId>,
    /// Bytes of the samples in the window.
    bytes: u64,
    /// Files of a sample. A program asks for the sample once for each.
    num_files: u32,
    /// The window is full at this many bytes or samples.
    most_bytes: u64,
    most_samples: usize,
    /// Files asked for so far.
    asked: u64,
    /// Samples that recently missed, each with the value of `asked`: the program has read them itself, so
    /// they need no room.
    missed: VecDeque<(SampleId, u64)>,
    /// Samples that the program waits for.
    awaited: HashSet<SampleId>,
    /// Misses since the last hit, since the window last had room, or since an awaited sample was kept. Raised to
    /// [`MAX_MISSES`] when the program begins to wait for a sample of the current batch. From [`MAX_MISSES`] on, all
    /// entries of a full window are dropped.
    misses: u64,
    /// Samples skipped in search of the program's position. The search ends at a sample that the program has
    /// recently missed or waits for. `None`: no search is under way.
    skipped: Option<u64>,
    /// Searches since the last hit; [`MAX_SEARCHES`] once a search has skipped more than [`MAX_SKIPPED`] samples. At
    /// [`MAX_SEARCHES`], readahead ends.
    searches: u32,
    /// Set once readahead has ended, or is to end.
    end: Option<End>,
    stats: AheadStats,
}

#[derive(Debug)]
struct Kept<T> {
    id: SampleId,
    /// Bytes of the sample.
    len: u64,
    /// `None`: no value could be made. The entry takes up room all the same: otherwise the window would never be full,
    /// and the thread would read on without end.
    value: Option<T>,
    /// How often the sample was asked for while it was here.
    num_taken: u32,
    /// The number of the next entry of the same sample: near the end of an epoch, the window has entries of
    /// two epochs.
    again: Option<u64>,
}

/// Reason why readahead has ended.
#[derive(Debug, Clone)]
enum End {
    /// The program does not follow the order, or the [`Ahead`] is being dropped.
    Stopped,
    /// The order has no more samples.
    Finished,
    Failed(String),
}

impl<T: Clone + Send + 'static> Ahead<T> {
    /// Starts readahead. `make` makes the value that is handed out, from a sample at an index of a batch; of a
    /// sample for which it returns `None`, nothing is handed out. At most `most_samples` are kept at a time, or one
    /// batch if that is more.
    ///
    /// # Errors
    /// `InvalidArgument`: the order belongs to another image. Errors of [`Dataset::loader`] and of starting a thread.
    pub fn start(
        dataset: &Dataset,
        order: &OrderFile,
        most_samples: usize,
        make: impl FnMut(&Batch, usize) -> Option<T> + Send + 'static,
    ) -> Result<Ahead<T>> {
        let (options, most_bytes) = order.options(dataset)?;
        let most_samples = most_samples.max(options.batch_size);
        let mut sampler = Sampler::new(dataset, options.clone())?;
        let loader = dataset.loader(options)?;
        let mut ids = Vec::new();
        let first = sampler.next(&mut ids); // before the program asks for anything
        let window = Window {
            kept: VecDeque::new(),
            first: 0,
            entries: HashMap::new(),
            coming: HashSet::new(),
            following: ids.into_iter().collect(),
            bytes: 0,
            num_files: dataset.directory().fields().len().max(1) as u32, // at most 65,535
            asked: 0,
            missed: VecDeque::new(),
            awaited: HashSet::new(),
            skipped: None,
            most_bytes,
            most_samples,
            misses: 0,
            searches: 0,
            end: None,
            stats: AheadStats::default(),
        };
        let shared = Arc::new(Shared { window: Mutex::new(window), changed: Condvar::default() });
        let work = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("dlfs-ahead".into()).spawn(move || {
            let ended = caught("dlfs-ahead", || work.run(first, sampler, &loader, make));
            loader.close();
            let end = ended.unwrap_or_else(|error| End::Failed(error.report()));
            let mut window = work.window.lock();
            window.end = Some(end);
            window.coming.clear();
            window.following.clear();
            work.changed.notify_all();
        })?;
        let _metered = Registration::new(&shared);
        Ok(Ahead { shared, thread: Some(thread), _metered })
    }

    /// Hands out the value of the sample, if it is in the window; later calls may get it again. If the sample is in the
    /// batch being read, or in the next one and the window has room, waits at most 10 s for it.
    pub fn take(&self, id: SampleId) -> Option<T> {
        let mut window = self.shared.window.lock();
        let until = Instant::now() + LONGEST_WAIT;
        let mut is_late = false;
        while !is_late && !window.entries.contains_key(&id) && window.is_coming(id) {
            window.awaited.insert(id);
            self.shared.changed.notify_all();
            (window, is_late) = self.shared.changed.wait_until(window, until);
        }
        if is_late {
            // Its place is away: nobody else waits for it, or again.
            window.coming.remove(&id);
            window.following.remove(&id);
        }
        window.awaited.remove(&id);
        let found = window.take(id);
        self.shared.changed.notify_all();
        found
    }

    /// The counters so far.
    pub fn stats(&self) -> AheadStats {
        self.shared.window.lock().stats
    }

    /// The reason why readahead has ended; `None` while it goes on.
    pub fn ended(&self) -> Option<String> {
        match self.shared.window.lock().end.clone()? {
            End::Stopped => Some("the program does not follow the order".to_owned()),
            End::Finished => Some("the order has ended".to_owned()),
            End::Failed(why) => Some(why),
        }
    }
}

impl<T: Send> Measured for Shared<T> {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.window.lock().stats.measure(snapshot);
    }
}

impl<T: Clone + Send + 'static> Drop for Ahead<T> {
    fn drop(&mut self) {
        self.shared.window.lock().end = Some(End::Stopped);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there is already printed, and ended the thread
        }
    }
}

impl<T: Clone> Shared<T> {
    /// The thread: reads batch after batch, and keeps the values of the samples. `first` is the result of the sampler's
    /// first draw, whose ids are in the window as `following`.
    fn run(
        &self,
        first: Result<Option<bool>>,
        mut sampler: Sampler,
        loader: &Loader,
        mut make: impl FnMut(&Batch, usize) -> Option<T>,
    ) -> End {
        let mut ids = Vec::new();
        let mut batch = Batch::new();
        let mut current = first;
        loop {
            match current {
                Ok(Some(_)) => {}
                Ok(None) => return End::Finished,
                Err(error) => return End::Failed(error.report()),
            }
            current = sampler.next(&mut ids);
            {
                let mut window = self.window.lock();
                let Window { coming, following, .. } = &mut *window;
                std::mem::swap(coming, following);
                following.clear();
                if matches!(current, Ok(Some(_))) {
                    following.extend(&ids);
                }
                if self.with_room(window).is_none() {
                    return End::Stopped;
                }
            }
            let mut is_wanted = || self.window.lock().end.is_none();
            let next = loop {
                let asked = Instant::now();
                match loader.next_into(&mut batch, &mut is_wanted) {
                    // After its deadline the loader goes on if it is asked again; an error for good comes at once.
                    Err(error)
                        if error.kind() == ErrorKind::TimedOut
                            && asked.elapsed() >= loader.options().deadline
                            && is_wanted() => {}
                    next => break next,
                }
            };
            match next {
                Ok(true) => {}
                Ok(false) => return End::Finished,
                Err(_) if self.window.lock().end.is_some() => return End::Stopped,
                Err(error) => return End::Failed(error.report()),
            }
            for index in 0..batch.len() {
                let id = batch.id(index);
                let len = batch.bytes(index).len() as u64;
                let made = make(&batch, index); // without the lock: it may take long
                let window = self.window.lock();
                let Some(mut window) = self.with_room(window) else { return End::Stopped };
                window.coming.remove(&id);
                window.keep(id, len, made);
                self.changed.notify_all();
            }
        }
    }

    /// Waits until the window has room; `None` if readahead has ended, or `searches` has reached [`MAX_SEARCHES`].
    fn with_room<'a>(
        &self,
        mut window: MutexGuard<'a, Window<T>>,
    ) -> Option<MutexGuard<'a, Window<T>>> {
        while window.end.is_none() && window.searches < MAX_SEARCHES {
            if window.make_room() {
                return Some(window);
            }
            window = self.changed.wait(window);
        }
        None
    }
}

impl<T: Clone> Window<T> {
    /// A copy of the sample's value if the sample is in the window, whose entry is then taken; otherwise, or if it has
    /// no value, counts a miss.
    fn take(&mut self, id: SampleId) -> Option<T> {
        self.asked += 1;
        while self.missed.front().is_some_and(|(_, asked)| self.asked - asked > MAX_MISSES) {
            self.missed.pop_front();
        }
        let num_files = self.num_files;
        while let Some(again) =
            self.entry(id).filter(|kept| kept.num_taken >= num_files).and_then(|kept| kept.again)
        {
            self.entries.insert(id, again);
        }
        let Some(kept) = self.entry(id) else {
            self.stats.misses += 1;
            self.misses += 1;
            self.missed.push_back((id, self.asked));
            return None;
        };
        kept.num_taken = kept.num_taken.saturating_add(1);
        let value = kept.value.clone();
        (self.misses, self.searches) = (0, 0); // also without a value: the program is here
        match value {
            Some(_) => self.stats.hits += 1,
            None => self.stats.misses += 1,
        }
        value
    }

    /// The entry of the sample that [`Window::entries`] names.
    fn entry(&mut self, id: SampleId) -> Option<&mut Kept<T>> {
        let number = *self.entries.get(&id)?;
        self.kept.get_mut((number - self.first) as usize)
    }

    /// Returns whether the sample is being read, so that waiting for it is worthwhile. Lets the window drop entries
    /// to make room for it.
    fn is_coming(&mut self, id: SampleId) -> bool {
        if self.coming.contains(&id) {
            self.misses = self.misses.max(MAX_MISSES); // the program is past the window: all entries may be dropped
            return true;
        }
        // Other threads of the program have yet to take some entries: these stay, so there may be no room.
        self.following.contains(&id) && self.make_room()
    }

    /// Keeps the value of a sample that was read ahead; drops it instead if the program has read the sample itself, or
    /// while the program's position is sought. Dropped samples need no room, so a thread that has fallen behind catches
    /// up.
    fn keep(&mut self, id: SampleId, len: u64, value: Option<T>) {
        let is_missed = self.missed.iter().any(|(missed, _)| *missed == id);
        let is_awaited = self.awaited.contains(&id);
        if is_missed || is_awaited {
            self.skipped = None;
        }
        if is_awaited {
            self.misses = 0; // the program's position is found
        }
        if let Some(skipped) = &mut self.skipped {
            *skipped += 1;
        }
        if (is_missed || self.skipped.is_some()) && !is_awaited {
            self.stats.samples += 1;
            self.stats.bytes += len;
            self.stats.unused += 1;
            return;
        }
        let number = self.first + self.kept.len() as u64;
        let mut before = *self.entries.entry(id).or_insert(number);
        while before != number {
            let Some(kept) = self.kept.get_mut((before - self.first) as usize) else { break };
            before = *kept.again.get_or_insert(number);
        }
        self.kept.push_back(Kept { id, len, value, num_taken: 0, again: None });
        self.bytes += len;
        self.stats.samples += 1;
        self.stats.bytes += len;
    }

    /// Returns whether the window has reached a limit.
    fn is_full(&self) -> bool {
        self.bytes >= self.most_bytes || self.kept.len() >= self.most_samples
    }

    /// Drops entries of a full window, the oldest first, until there is room: an entry that is taken for each of its
    /// files, or while an entry in the newer half of the window is taken, since the program has then skipped the older
    /// ones. Drops all entries and begins a search if the window is still full and the program asks only for other
    /// samples. Returns whether there is room.
    fn make_room(&mut self) -> bool {
        if self.skipped.is_some_and(|skipped| skipped > MAX_SKIPPED) {
            self.searches = MAX_SEARCHES;
            return false;
        }
        while self.is_full() {
            let half = self.kept.len() / 2;
            let is_done = self.kept.front().is_some_and(|kept| kept.num_taken >= self.num_files);
            if !is_done && !self.kept.iter().skip(half).any(Kept::is_taken) {
                break;
            }
            self.drop_first();
        }
        // If a thread of the program waits for an entry, nothing is dropped until it has woken up and taken the entry.
        let is_awaited = |kept: &Kept<T>| !kept.is_taken() && self.awaited.contains(&kept.id);
        if self.is_full() && self.misses >= MAX_MISSES && !self.kept.iter().any(is_awaited) {
            (0..self.kept.len()).for_each(|_| self.drop_first());
            self.misses = 0;
            self.searches += 1;
            self.skipped = Some(0);
        }
        if self.is_full() {
            return false;
        }
        self.misses = 0;
        true
    }

    /// Drops the oldest entry.
    fn drop_first(&mut self) {
        let Some(kept) = self.kept.pop_front() else { return };
        self.bytes -= kept.len;
        self.stats.unused += u64::from(!kept.is_taken());
        if self.entries.get(&kept.id) == Some(&self.first) {
            match kept.again {
                Some(again) => self.entries.insert(kept.id, again),
                None => self.entries.remove(&kept.id),
            };
        }
        self.first += 1;
    }
}

impl<T> Kept<T> {
    /// Returns whether the program has asked for the sample since it is here.
    fn is_taken(&self) -> bool {
        self.num_taken > 0
    }
}

/// The longest that a program waits for a sample that is being read ahead, before it reads the sample itself.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Misses after which a full window is dropped, since the program is elsewhere in the order. A miss is recent during as
/// many further requests.
const MAX_MISSES: u64 = 64;
/// Searches without a hit after which readahead stops: the program has another order.
const MAX_SEARCHES: u32 = 16;
/// The most samples that one search skips.
const MAX_SKIPPED: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn window(most_samples: usize) -> Window<u64> {
        Window {
            kept: VecDeque::new(),
            first: 0,
            entries: HashMap::new(),
            coming: HashSet::new(),
            following: HashSet::new(),
            bytes: 0,
            num_files: 1,
            asked: 0,
            missed: VecDeque::new(),
            awaited: HashSet::new(),
            skipped: None,
            most_bytes: u64::MAX,
            most_samples,
            misses: 0,
            searches: 0,
            end: None,
            stats: AheadStats::default(),
        }
    }

    fn fill(window: &mut Window<u64>, ids: &mut std::ops::RangeFrom<u64>) {
        while window.make_room() {
            let id = ids.next().unwrap_or(0);
            window.keep(SampleId(id), 1, Some(id));
        }
    }

    #[test]
    fn a_window_moves_with_what_is_taken_in_order() {
        let mut window = window(10);
        let mut ids = 0..;
        for id in 0..1000 {
            fill(&mut window, &mut ids);
            assert_eq!(window.take(SampleId(id)), Some(id));
            assert_eq!(window.take(SampleId(id)), Some(id), "twice");
        }
        let AheadStats { hits, misses, unused, .. } = window.stats;
        assert_eq!((hits, misses, unused), (2000, 0, 0));
    }

    #[test]
    fn a_window_passes_over_what_the_program_leaves_out() {
        let mut window = window(10);
        let mut ids = 0..;
        for id in (0..1000).filter(|id| id % 3 > 0) {
            fill(&mut window, &mut ids);
            assert_eq!(window.take(SampleId(id)), Some(id));
        }
        assert!(window.stats.unused > 300);
    }

    #[test]
    fn a_window_moves_on_to_a_program_that_is_further_and_gives_up_on_another_order() {
        let mut window = window(10);
        let mut ids = 0..;
        fill(&mut window, &mut ids);
        let mut id = 40;
        while window.take(SampleId(id)).is_none() {
            id += 1;
            fill(&mut window, &mut ids);
            assert!(window.stats.misses < 1000, "it never comes");
        }
        for _ in 0..100 {
            id += 1;
            fill(&mut window, &mut ids);
            assert!(window.take(SampleId(id)).is_some(), "sample {id}");
        }
        for other in 0..MAX_MISSES * u64::from(MAX_SEARCHES) {
            assert_eq!(window.take(SampleId(1_000_000 + other)), None);
            fill(&mut window, &mut ids);
        }
        assert_eq!(window.searches, MAX_SEARCHES);
    }

    #[test]
    fn a_thread_that_has_fallen_behind_catches_up() {
        let mut window = window(10);
        (0..30).for_each(|id| assert_eq!(window.take(SampleId(id)), None));
        for id in 0..40 {
            assert!(window.make_room(), "sample {id} has room without a wait");
            window.keep(SampleId(id), 1, Some(id));
        }
        (30..40).for_each(|id| assert_eq!(window.take(SampleId(id)), Some(id)));
        assert_eq!((window.stats.unused, window.stats.misses), (30, 30));
        // Much later, the same sample belongs to another epoch.
        window.take(SampleId(100));
        (0..=MAX_MISSES).for_each(|_| _ = window.take(SampleId(39)));
        window.make_room();
        window.keep(SampleId(100), 1, Some(100));
        assert_eq!(window.take(SampleId(100)), Some(100));
    }

    #[test]
    fn a_sample_that_is_awaited_is_kept_whatever_is_sought() {
        let mut window = window(10);
        window.awaited.insert(SampleId(7));
        (window.skipped, window.misses) = (Some(0), 0);
        (0..10).for_each(|id| window.keep(SampleId(id), 1, Some(id)));
        assert_eq!((window.take(SampleId(6)), window.take(SampleId(7))), (None, Some(7)));
        assert_eq!(window.take(SampleId(8)), Some(8), "the program is here");
    }

    #[test]
    fn a_sample_of_the_next_batch_is_waited_for_unless_others_need_the_room() {
        let mut window = window(10);
        window.coming.insert(SampleId(10));
        window.following.insert(SampleId(11));
        (0..10).for_each(|id| window.keep(SampleId(id), 1, Some(id)));
        assert!(!window.is_coming(SampleId(11)), "ten that nobody has taken are in the way");
        (0..10).for_each(|id| assert_eq!(window.take(SampleId(id)), Some(id)));
        assert!(window.is_coming(SampleId(11)));
        assert!(!window.is_coming(SampleId(12)));
        assert_eq!((window.misses, window.stats.unused), (0, 0));
        assert!(window.is_coming(SampleId(10)));
    }

    #[test]
    fn a_sample_of_two_epochs_in_the_window_is_there_in_both() {
        let mut window = window(4);
        for (id, what) in [(1, 10), (2, 20), (1, 11), (3, 30)] {
            window.keep(SampleId(id), 1, Some(what));
        }
        // The end of the first epoch, while the second one's beginning has been read ahead.
        assert_eq!(window.take(SampleId(1)), Some(10));
        assert_eq!(window.take(SampleId(2)), Some(20));
        assert!(window.make_room());
        window.keep(SampleId(1), 1, Some(12));
        assert!(window.make_room(), "20 is dropped");
        assert_eq!(window.kept.front().and_then(|kept| kept.value), Some(11));
        assert_eq!(window.take(SampleId(1)), Some(11));
        window.drop_first();
        assert_eq!(window.take(SampleId(1)), Some(12));
        assert_eq!(window.take(SampleId(1)), Some(12), "the last one is there again and again");
    }

    #[test]
    fn a_sample_that_is_awaited_stays_until_its_thread_has_woken_up() {
        let mut window = window(2);
        window.coming.extend([5, 6, 7].map(SampleId));
        assert!(window.is_coming(SampleId(5)), "the program waits for it");
        window.awaited.insert(SampleId(5));
        window.keep(SampleId(5), 1, Some(5));
        window.keep(SampleId(6), 1, Some(6));
        assert!(
            !window.make_room(),
            "the thread that reads ahead is faster than the one that waits"
        );
        assert!(window.is_coming(SampleId(7)), "another thread waits for one that has no room");
        assert!(!window.make_room());
        assert_eq!(window.take(SampleId(5)), Some(5));
        window.awaited.clear();
        assert!(window.make_room());
        assert_eq!(window.take(SampleId(6)), Some(6));
    }

    #[test]
    fn one_that_is_passed_over_and_small_does_not_keep_those_behind_it() {
        let mut window = window(usize::MAX);
        window.most_bytes = 100;
        for (id, len) in [(0, 1), (1, 40), (2, 60)] {
            window.keep(SampleId(id), len, Some(id));
        }
        window.following.insert(SampleId(3));
        assert_eq!(window.take(SampleId(1)), Some(1));
        assert_eq!(window.take(SampleId(2)), Some(2));
        assert!(window.is_coming(SampleId(3)));
    }

    #[test]
    fn samples_of_which_nothing_can_be_made_fill_the_window_too() {
        let mut window = window(4);
        for id in 0..4 {
            assert!(window.make_room());
            window.keep(SampleId(id), 1, None);
        }
        assert!(!window.make_room(), "the thread waits");
        assert_eq!(window.take(SampleId(0)), None);
        assert_eq!((window.stats.hits, window.stats.misses, window.misses), (0, 1, 0));
        assert!(window.make_room(), "the program has gone on");
        window.keep(SampleId(4), 1, Some(4));
        assert_eq!(window.take(SampleId(4)), Some(4));
    }

    #[test]
    fn a_sample_of_several_files_stays_until_the_program_has_opened_each() {
        let mut window = window(4);
        window.num_files = 2;
        (0..4).for_each(|id| window.keep(SampleId(id), 1, Some(id)));
        assert_eq!(window.take(SampleId(0)), Some(0));
        assert!(!window.make_room(), "its other file comes next");
        assert_eq!(window.take(SampleId(0)), Some(0));
        assert!(window.make_room());
        window.keep(SampleId(4), 1, Some(4));
        // A program that opens one file of each moves the window from its newer half.
        (1..=2).for_each(|id| assert_eq!(window.take(SampleId(id)), Some(id)));
        assert!(!window.make_room());
        assert_eq!(window.take(SampleId(3)), Some(3));
        assert!(window.make_room());
        assert_eq!((window.stats.misses, window.stats.unused), (0, 0));
    }
}
