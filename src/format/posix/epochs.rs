//! Detects the epochs of a program that knows only files, from the files that it opens.
//!
//! A new epoch begins when the program opens files again that it has opened in the current epoch. A program may open
//! each file twice, and from several threads, so one repeated file is not enough. A new epoch is detected once
//! `IN_A_ROW` different files were repeated without a new file between them, or all files of a shorter epoch; it began
//! with the first of them.
//!
//! If the program follows a known order, the epoch number in that order decides instead.

use std::collections::VecDeque;

use dlfs_base::units::Epoch;

/// The epochs of one program, each with the caller's value `M` at its beginning. Keeps the last 100 epochs.
#[derive(Debug)]
pub struct Epochs<M> {
    /// The value at the beginning of each epoch that is kept, oldest first.
    begins: VecDeque<M>,
    /// Number of epochs that are no longer in `begins`.
    forgotten: u64,
    /// Number of files that the program can open.
    num_files: u64,
    /// One bit per file, set if the file was opened in this epoch; grows to the highest number so far.
    seen: Vec<u64>,
    /// The number of files opened in this epoch.
    num_seen: u64,
    /// The different files that were opened again since the last file that was new or in the known order.
    again: Vec<u64>,
    /// The value of `M` before the first file of `again`.
    at_again: Option<M>,
    /// The latest epoch of the known order that a file has had.
    along: Option<Epoch>,
    /// True if the next file begins an epoch.
    is_over: bool,
    /// True if repeated files have begun an epoch since the last file that was in the known order.
    has_begun: bool,
}

impl<M> Epochs<M> {
    /// For a program that has not opened any of `num_files` files yet.
    pub fn new(num_files: u64) -> Epochs<M> {
        Epochs {
            begins: VecDeque::new(),
            forgotten: 0,
            num_files,
            seen: Vec::new(),
            num_seen: 0,
            again: Vec::new(),
            at_again: None,
            along: None,
            is_over: false,
            has_begun: false,
        }
    }

    /// Records that the program opens the file with number `file`. `along` is the file's epoch in the known order that
    /// the program follows; `None` if the file is not opened along an order. `now` returns the value of `M` before this
    /// open; it is called only if an epoch may begin.
    pub fn opened(&mut self, file: u64, along: Option<Epoch>, now: impl FnOnce() -> M) {
        let is_next = along.is_some_and(|epoch| self.goes_along(epoch));
        if is_next || self.begins.is_empty() || std::mem::take(&mut self.is_over) {
            return self.begin(now(), &[file]);
        }
        if self.see(file) || along.is_some() {
            (self.again, self.at_again) = (Vec::new(), None);
        } else if !self.again.contains(&file) {
            self.at_again.get_or_insert_with(now);
            self.again.push(file);
            let enough = self.num_seen.max(2).min(self.num_files).min(IN_A_ROW);
            if self.again.len() as u64 >= enough
                && let Some(then) = self.at_again.take()
            {
                let again = std::mem::take(&mut self.again);
                self.begin(then, &again);
                self.has_begun = true;
            }
        }
    }

    /// Records that the program starts another known order, or the same one again. The next file begins an epoch.
    pub fn order_begins(&mut self) {
        (self.along, self.is_over) = (None, !self.begins.is_empty());
    }

    /// The epochs that are kept: the number of each, and the value of `M` at its beginning.
    pub fn begins(&self) -> impl Iterator<Item = (u64, &M)> {
        (self.forgotten..).zip(&self.begins)
    }

    /// Records a file of `epoch` in the known order. Returns whether it begins an epoch: it is of a later epoch than
    /// all files before, and repeated files have not begun that epoch already.
    fn goes_along(&mut self, epoch: Epoch) -> bool {
        let has_begun = std::mem::take(&mut self.has_begun);
        let before = self.along.replace(self.along.map_or(epoch, |before| before.max(epoch)));
        before.is_some_and(|before| epoch > before) && !has_begun
    }

    /// Begins an epoch with `files`; `then` is the value of `M` at the beginning.
    fn begin(&mut self, then: M, files: &[u64]) {
        if self.begins.len() == MOST_KEPT {
            self.begins.pop_front();
            self.forgotten += 1;
        }
        self.begins.push_back(then);
        self.seen.fill(0);
        self.num_seen = 0;
        (self.again, self.at_again) = (Vec::new(), None);
        files.iter().for_each(|file| _ = self.see(*file));
    }

    /// Adds a file to the current epoch; returns whether it is new there.
    fn see(&mut self, file: u64) -> bool {
        let word = (file / 64) as usize;
        let bit = 1 << (file % 64);
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        self.num_seen += u64::from(is_new);
        is_new
    }
}

/// Number of different repeated files in a row that begin a new epoch.
const IN_A_ROW: u64 = 8;
/// Maximum number of epochs that are kept.
const MOST_KEPT: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    /// For each epoch, the number of opens before it began. The program opens `opens`, of `num_files` files.
    fn begins(num_files: u64, opens: impl IntoIterator<Item = (u64, Option<u64>)>) -> Vec<usize> {
        let mut epochs = Epochs::new(num_files);
        for (nth, (file, along)) in opens.into_iter().enumerate() {
            epochs.opened(file, along.map(Epoch), || nth);
        }
        epochs.begins().map(|(_, begin)| *begin).collect()
    }

    fn plain(opens: impl IntoIterator<Item = u64>) -> Vec<(u64, Option<u64>)> {
        opens.into_iter().map(|file| (file, None)).collect()
    }

    /// The files of epoch `nth`, of `len` files; each epoch has its own order.
    fn shuffled(nth: u64, len: u64) -> impl Iterator<Item = u64> {
        let step = [7, 11, 13][nth as usize % 3]; // coprime to the lengths below
        (0..len).map(move |at| (at * step + nth) % len)
    }

    #[test]
    fn an_epoch_begins_with_the_first_file_that_is_opened_again() {
        for len in [1, 2, 5, 16, 17, 1000] {
            let opens: Vec<u64> = (0..3).flat_map(|nth| shuffled(nth, len)).collect();
            let expected = [0, len as usize, 2 * len as usize];
            assert_eq!(begins(len, plain(opens.clone())), expected, "all {len}");
            if len > 1 {
                assert_eq!(begins(2000, plain(opens)), expected, "{len} of more");
            }
        }
    }

    #[test]
    fn a_program_that_opens_each_file_twice_begins_no_epoch_with_that() {
        let twice = |nth| shuffled(nth, 100).flat_map(|file| [file, file]);
        // The last file of the first epoch was opened again just before, so it counts as the first repeated file.
        assert_eq!(begins(100, plain(twice(0).chain(twice(1)))), [0, 199]);
        // Four threads, each of which opens its file twice.
        let files: Vec<u64> = (0..2).flat_map(|nth| shuffled(nth, 100)).collect();
        let by_threads = files.chunks(4).flat_map(|files| [files, files]).flatten().copied();
        assert_eq!(begins(2000, plain((100..108).chain(by_threads))), [0, 204]);
        assert_eq!(begins(2000, plain((0..50).chain([3, 4, 5]).chain(50..99))), [0], "some again");
    }

    #[test]
    fn a_file_that_is_left_out_or_added_changes_nothing() {
        let first = shuffled(0, 100).filter(|file| file % 37 > 0);
        let second = shuffled(1, 100).filter(|file| file % 17 > 0);
        let opens: Vec<u64> = first.chain(second).collect();
        let found = begins(100, plain(opens));
        assert_eq!((found.len(), found[0]), (2, 0), "{found:?}");
        assert!((90..130).contains(&found[1]), "{found:?}");
    }

    #[test]
    fn along_an_order_its_epochs_count_also_where_some_files_were_not_read_ahead() {
        let epoch = |nth: u64| shuffled(nth, 100).map(move |file| (file, Some(nth)));
        let misses = |nth: u64| epoch(nth).enumerate();
        // An order that contains files more than once.
        let weighted = (0..300).map(|at| (at % 10, Some(5 + at / 100)));
        assert_eq!(begins(100, weighted), [0, 100, 200]);
        let some =
            (0..3).flat_map(misses).map(|(at, (file, nth))| (file, nth.filter(|_| at % 3 > 0)));
        let found = begins(100, some);
        assert_eq!(found.len(), 3, "{found:?}");
        // Many misses in a row: the repeated files show the new epoch before the known order does.
        let late = (0..3).flat_map(misses).map(|(at, (file, nth))| (file, nth.filter(|_| at > 60)));
        assert_eq!(begins(100, late), [0, 100, 200]);
        // Two threads at the end of an epoch.
        let mixed = [(0, 0), (1, 0), (2, 1), (3, 0), (0, 1), (1, 1)];
        assert_eq!(begins(100, mixed.map(|(file, nth)| (file, Some(nth)))), [0, 2]);
    }

    #[test]
    fn an_order_that_begins_again_begins_an_epoch_and_old_ones_are_forgotten() {
        let mut epochs = Epochs::new(10);
        epochs.order_begins();
        for nth in 0..=MOST_KEPT {
            epochs.opened(3, Some(Epoch(0)), || nth);
            epochs.order_begins();
        }
        let kept: Vec<_> = epochs.begins().map(|(number, begin)| (number, *begin)).collect();
        assert_eq!((kept.len(), kept[0], kept[99]), (MOST_KEPT, (1, 1), (100, 100)));
    }
}
