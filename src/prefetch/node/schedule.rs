//! Schedule of a node's loader: decides what the owner does next. The owner reads another batch, sends a share of a
//! batch, drops a batch, or begins to read at another position. This file knows neither contents nor sockets.
//!
//! A batch of the node is an *entry*. Each seat that has samples of the entry gets a *share* of it, in its queue.
//! A share is sent once the client has reached the position before the share, and has fewer than [`MAX_UNTAKEN`] shares
//! that it has not taken. An entry is kept until all of its shares are released: by the client, when the client has
//! disconnected, when the client has had the share before, or when shares that are not sent yet are dropped.
//!
//! A seat without a client gets no shares, so no client waits for it. Only at the start, while the ranks *gather*, the
//! shares of such seats are kept. The owner reads again, from the smallest position that a client wants, in three
//! cases: reading has failed; a client wants a position before its next queued share or, if its queue is empty, before
//! the end of its shares so far; or all clients want positions that are not read yet, so that no client needs the
//! batches before them. Clients at later positions skip the shares that they have had.

use std::collections::{BTreeMap, VecDeque};

use super::messages::Position;

/// The entries of a node, and the seats that have shares of them.
#[derive(Default)]
pub(super) struct Schedule {
    /// The ranks of the node.
    seats: Vec<Seat>,
    /// By number: the bytes of each entry, and how many of its shares are not released.
    entries: BTreeMap<u64, (u64, u32)>,
    /// The number of the next entry.
    next_entry: u64,
    /// Entries whose shares are all released, and which the owner must drop.
    freed: Vec<u64>,
    /// The bytes of all entries.
    bytes: u64,
    /// Another entry is read only while there are fewer than `least` entries, or they have fewer than `most_bytes`.
    least: usize,
    most_bytes: u64,
    /// The position at which the run ends.
    end: Position,
    /// Set once reading has begun.
    begun: bool,
    /// Set once reading has reached the end of the run.
    ended: bool,
    /// Set while the owner reads an entry.
    is_reading: bool,
    /// Set while the ranks gather: the shares of seats without a client are kept.
    pub(super) gathering: bool,
}

/// A rank of the node.
#[derive(Default)]
struct Seat {
    /// Set while a client has the seat.
    is_taken: bool,
    /// The number of the client's current request: see [`ToOwner::Want`](super::messages::ToOwner::Want).
    turn: u32,
    /// The position behind the last share that the client was sent; at first the one that it asked for. `None`: the
    /// client has asked for none, its request was refused, or reading has failed since.
    wants: Option<Position>,
    /// The number of shares that the client was sent in this turn and has not taken.
    untaken: u32,
    /// The entries of which the client has a share that it has not released.
    unreleased: Vec<u64>,
    /// Shares that are not sent yet, in order.
    queue: VecDeque<Share>,
    /// The position behind the last share that was queued.
    read_to: Position,
    /// Set once the client was sent the end of the run, in this turn.
    end_sent: bool,
}

/// A rank's part of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) entry: u64,
    /// The rank's position before the share: that behind its previous share.
    pub(super) before: Position,
    /// The first position of the share: `before`, or the start of the epoch if the rank had no samples at the end of
    /// the previous epoch.
    pub(super) begins: Position,
    /// The rank's position behind the share.
    pub(super) after: Position,
    /// True if the rank has no more of the epoch.
    pub(super) ends_epoch: bool,
    /// Samples of the share according to the order, including those that could not be read.
    pub(super) planned: u64,
}

/// A share of a new entry for one seat. The fields are those of [`Share`], and the epoch of the entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewShare {
    pub(super) epoch: u64,
    pub(super) after: Position,
    pub(super) ends_epoch: bool,
    pub(super) planned: u64,
}

/// A step of the owner.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Begin to read at this position; drop the batch that is being read.
    Begin(Position),
    /// Read another batch.
    Read,
    /// Send this share to the client of this seat.
    Send(u32, Share),
    /// Send the end of the run to this seat.
    End(u32),
    /// Refuse the request of this seat: no batch begins at this position.
    Refuse(u32, Position),
    /// Drop this entry.
    Free(u64),
}

impl Schedule {
    /// A schedule for `seats` seats without clients, and a run that ends at `end`. Reads ahead until there are `least`
    /// entries, and then until they have `most_bytes`.
    pub(super) fn new(seats: u32, end: Position, least: usize, most_bytes: u64) -> Schedule {
        Schedule {
            seats: (0..seats).map(|_| Seat::default()).collect(),
            least,
            most_bytes,
            end,
            gathering: true,
            ..Schedule::default()
        }
    }

    /// Gives a seat to a client. `false`: there is no such seat, or a client has it.
    pub(super) fn take_seat(&mut self, seat: u32) -> bool {
        let seat = self.seats.get_mut(seat as usize);
        let Some(seat) = seat.filter(|seat| !seat.is_taken) else { return false };
        let Seat { queue, read_to, .. } = std::mem::take(seat);
        *seat = Seat { is_taken: true, queue, read_to, ..Seat::default() };
        if self.seats.iter().all(|seat| seat.is_taken) {
            self.gathering = false;
        }
        true
    }

    /// Frees the seat of a client that takes no more shares. Returns the entries that the client has not released: they
    /// stay until the caller [forgets](Schedule::forget) them.
    #[must_use]
    pub(super) fn leave(&mut self, seat: u32) -> Vec<u64> {
        let seat = &mut self.seats[seat as usize];
        (seat.is_taken, seat.wants, seat.untaken) = (false, None, 0);
        let unreleased = std::mem::take(&mut seat.unreleased);
        let queue = std::mem::take(&mut seat.queue);
        queue.iter().for_each(|share| self.forget(share.entry));
        unreleased
    }

    /// Ends the gathering: drops the shares of seats without a client.
    pub(super) fn stop_gathering(&mut self) {
        self.gathering = false;
        for seat in 0..self.seats.len() {
            if !self.seats[seat].is_taken {
                let unreleased = self.leave(seat as u32);
                debug_assert!(unreleased.is_empty(), "a seat without a client was sent nothing");
            }
        }
    }

    /// Handles a request: the client wants the shares from `position` on.
    pub(super) fn want(&mut self, seat: u32, turn: u32, position: Position) {
        let seat = &mut self.seats[seat as usize];
        (seat.turn, seat.wants, seat.untaken, seat.end_sent) = (turn, Some(position), 0, false);
    }

    /// Handles that a client has taken a share of this turn.
    pub(super) fn took(&mut self, seat: u32, turn: u32) {
        let seat = &mut self.seats[seat as usize];
        if seat.turn == turn {
            seat.untaken = seat.untaken.saturating_sub(1);
        }
    }

    /// Handles that a client has released its share of `entry`.
    pub(super) fn release(&mut self, seat: u32, entry: u64) {
        let unreleased = &mut self.seats[seat as usize].unreleased;
        if let Some(at) = unreleased.iter().position(|held| *held == entry) {
            unreleased.swap_remove(at);
            self.forget(entry);
        }
    }

    /// The current turn of a seat.
    pub(super) fn turn(&self, seat: u32) -> u32 {
        self.seats[seat as usize].turn
    }

    /// Returns whether the client of `seat` has a request.
    pub(super) fn is_wanting(&self, seat: u32) -> bool {
        self.seats[seat as usize].wants.is_some()
    }

    /// Adds the batch that was read as an entry, with the share of each seat; returns the entry's number.
    pub(super) fn add(&mut self, bytes: u64, parts: impl Iterator<Item = Option<NewShare>>) -> u64 {
        self.is_reading = false;
        let entry = self.next_entry;
        self.next_entry += 1;
        let mut shares = 0;
        for (seat, part) in self.seats.iter_mut().zip(parts) {
            let Some(NewShare { epoch, after, ends_epoch, planned }) = part else { continue };
            let before = std::mem::replace(&mut seat.read_to, after);
            let begins = before.max((epoch, 0));
            if seat.is_taken || self.gathering {
                seat.queue.push_back(Share { entry, before, begins, after, ends_epoch, planned });
                shares += 1;
            }
        }
        // One more share, which is forgotten at once: so an entry without shares is freed, too.
        self.entries.insert(entry, (bytes, shares + 1));
        self.bytes += bytes;
        self.forget(entry);
        entry
    }

    /// Handles the end of the run.
    pub(super) fn end(&mut self) {
        (self.is_reading, self.ended) = (false, true);
    }

    /// Handles a failure of reading, of which all clients were told. Reading begins again with the next request.
    pub(super) fn fail(&mut self) {
        self.drop_queues();
        (self.begun, self.is_reading) = (false, false);
        self.seats.iter_mut().for_each(|seat| seat.wants = None);
    }

    /// The other seats with a share of the oldest entry, if the next entry is read only once they release it: the
    /// reason that `seat` gets no share. Otherwise none.
    pub(super) fn holders(&self, seat: u32) -> Vec<u32> {
        let Some(oldest) = self.entries.keys().next().filter(|_| !self.has_room()) else {
            return Vec::new();
        };
        let holds = |it: &Seat| {
            it.unreleased.contains(oldest) || it.queue.iter().any(|s| s.entry == *oldest)
        };
        let others = (0..).zip(&self.seats).filter(|(number, it)| *number != seat && holds(it));
        others.map(|(number, _)| number).collect()
    }

    /// The next step of the owner; `None`: no step is due before the next message, batch or timeout.
    pub(super) fn next(&mut self) -> Option<Step> {
        if let Some(entry) = self.freed.pop() {
            return Some(Step::Free(entry));
        }
        for number in 0..self.seats.len() {
            if let Some(step) = self.next_of(number) {
                return Some(step);
            }
        }
        if let Some(position) = self.to_begin() {
            self.drop_queues();
            self.seats.iter_mut().for_each(|seat| seat.read_to = position);
            (self.begun, self.ended, self.is_reading) = (true, false, false);
            return Some(Step::Begin(position));
        }
        let is_needed =
            self.waiting().any(|seat| seat.queue.is_empty() && seat.untaken < MAX_UNTAKEN);
        if is_needed && self.begun && !self.ended && !self.is_reading && self.has_room() {
            self.is_reading = true;
            return Some(Step::Read);
        }
        None
    }

    /// The next step for one seat.
    fn next_of(&mut self, number: usize) -> Option<Step> {
        let wants = self.seats[number].wants?;
        while self.seats[number].queue.front().is_some_and(|share| share.begins < wants) {
            let share = self.seats[number].queue.pop_front()?;
            self.forget(share.entry);
            if share.after > wants && !share.ends_epoch {
                self.seats[number].wants = None;
                return Some(Step::Refuse(number as u32, wants));
            }
        }
        let seat = &mut self.seats[number];
        let is_next = seat.queue.front().is_some_and(|share| share.before <= wants);
        if is_next && seat.untaken < MAX_UNTAKEN {
            let share = seat.queue.pop_front()?;
            seat.wants = Some(share.after);
            seat.untaken += 1;
            seat.unreleased.push(share.entry);
            return Some(Step::Send(number as u32, share));
        }
        let is_over = self.ended && seat.queue.is_empty() && wants >= seat.read_to;
        if (is_over || wants >= self.end) && !seat.end_sent {
            seat.end_sent = true;
            return Some(Step::End(number as u32));
        }
        None
    }

    /// The position to begin at, if reading has not begun, or never reaches a position that a client wants, or would
    /// read entries first that no client needs.
    fn to_begin(&self) -> Option<Position> {
        let least = self.waiting().filter_map(|seat| seat.wants).min()?;
        let comes_later =
            |seat: &Seat| seat.queue.front().map_or(seat.read_to, |share| share.before);
        let is_behind = self.waiting().any(|seat| seat.wants < Some(comes_later(seat)));
        // No client needs the entry that would be read next.
        let all_have_asked = self.seats.iter().all(|seat| seat.wants.is_some() || !seat.is_taken);
        let is_ahead =
            self.waiting().all(|seat| seat.queue.is_empty() && seat.wants > Some(seat.read_to));
        let is_ahead = is_ahead && all_have_asked && !self.gathering && !self.ended;
        (!self.begun || is_behind || is_ahead).then_some(least)
    }

    /// The seats whose clients want a share before the end of the run.
    fn waiting(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|seat| seat.wants.is_some_and(|wants| wants < self.end))
    }

    /// Returns whether another entry may be read. The first `least` entries are read whatever their size, so that a
    /// rank that keeps a batch or two gets its next one.
    fn has_room(&self) -> bool {
        self.entries.len() < self.least || self.bytes < self.most_bytes
    }

    /// Releases all shares that are not sent yet.
    fn drop_queues(&mut self) {
        for seat in 0..self.seats.len() {
            let queue = std::mem::take(&mut self.seats[seat].queue);
            queue.iter().for_each(|share| self.forget(share.entry));
        }
    }

    /// Releases a share of `entry`; frees the entry if it was the last.
    pub(super) fn forget(&mut self, entry: u64) {
        let Some((bytes, shares)) = self.entries.get_mut(&entry) else { return };
        *shares -= 1;
        if *shares == 0 {
            self.bytes -= *bytes;
            self.entries.remove(&entry);
            self.freed.push(entry);
        }
    }
}

/// Limit of the shares that a client was sent and has not taken: the next batch is at the client when it is needed.
const MAX_UNTAKEN: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule for seats, whose batches consume 10 positions each, in epochs of 40.
    struct Node {
        schedule: Schedule,
        at: Position,
        /// Set if the last seat has nothing of an epoch's last batch.
        last_is_short: bool,
        /// The entries that each seat was sent, with the position behind each.
        sent: Vec<Vec<(u64, Position)>>,
        begun: Vec<Position>,
        freed: Vec<u64>,
        refused: Vec<u32>,
        ended: Vec<u32>,
    }

    impl Node {
        fn new(seats: u32, most_bytes: u64) -> Node {
            let schedule = Schedule::new(seats, (2, 0), 2, most_bytes);
            let sent = (0..seats).map(|_| Vec::new()).collect();
            let begun = Vec::new();
            let freed = Vec::new();
            let at = (9, 9);
            let refused = Vec::new();
            let ended = Vec::new();
            Node { schedule, at, last_is_short: false, sent, begun, freed, refused, ended }
        }

        fn join(&mut self, seat: u32, position: Position) {
            assert!(self.schedule.take_seat(seat));
            self.schedule.want(seat, 1, position);
        }

        /// The client is gone.
        fn leave(&mut self, seat: u32) {
            self.schedule.leave(seat).into_iter().for_each(|entry| self.schedule.forget(entry));
            self.sent[seat as usize].clear();
        }

        /// Does all that can be done.
        fn run(&mut self) {
            while let Some(step) = self.schedule.next() {
                match step {
                    Step::Begin(at) => {
                        self.begun.push(at);
                        self.at = at;
                    }
                    Step::Read if self.at >= (2, 0) => self.schedule.end(),
                    Step::Read => {
                        let epoch = self.at.0;
                        let ends_epoch = self.at.1 == 30;
                        self.at = if ends_epoch {
                            (self.at.0 + 1, 0)
                        } else {
                            (self.at.0, self.at.1 + 10)
                        };
                        let part = NewShare { epoch, after: self.at, ends_epoch, planned: 5 };
                        let left_out =
                            (ends_epoch && self.last_is_short).then(|| self.sent.len() - 1);
                        let parts = (0..self.sent.len())
                            .map(|seat| (Some(seat) != left_out).then_some(part));
                        self.schedule.add(100, parts);
                    }
                    Step::Send(seat, share) => {
                        self.sent[seat as usize].push((share.entry, share.after));
                    }
                    Step::End(seat) => self.ended.push(seat),
                    Step::Refuse(seat, _) => self.refused.push(seat),
                    Step::Free(entry) => self.freed.push(entry),
                }
            }
        }

        /// The client takes a batch and drops it.
        fn take(&mut self, seat: u32) -> Position {
            self.run();
            let (entry, after) = self.sent[seat as usize].remove(0);
            self.schedule.took(seat, self.schedule.turn(seat));
            self.schedule.release(seat, entry);
            self.run();
            after
        }
    }

    #[test]
    fn ranks_take_the_same_batches_and_each_is_freed_behind_the_last() {
        let mut node = Node::new(2, 1000);
        node.join(0, (0, 0));
        node.join(1, (0, 0));
        for turn in 1..=8 {
            let expected = if turn % 4 == 0 { (turn / 4, 0) } else { (turn / 4, turn % 4 * 10) };
            assert_eq!(node.take(0), expected);
            assert!(!node.freed.contains(&(turn - 1)));
            assert_eq!(node.take(1), expected);
            assert!(node.freed.contains(&(turn - 1)));
        }
        assert_eq!((node.begun, node.ended), (vec![(0, 0)], vec![0, 1]));
        assert_eq!(node.schedule.bytes, 0);
    }

    #[test]
    fn no_more_is_read_than_has_room_and_who_holds_it_is_named() {
        let mut node = Node::new(3, 250);
        (0..3).for_each(|seat| node.join(seat, (0, 0)));
        for _ in 0..3 {
            node.take(0);
        }
        node.take(2);
        assert_eq!(node.sent[0].len(), 0, "three entries of 100 are there");
        assert_eq!(node.schedule.holders(0), [1], "rank 2 has had the first");
        node.take(1);
        assert_eq!(node.sent[0].len(), 1);
        assert_eq!(node.schedule.holders(0), [1, 2]);
        node.leave(1);
        node.leave(2);
        node.run();
        assert_eq!(node.schedule.holders(0), [0_u32; 0]);
        assert_eq!(node.take(0), (1, 0), "nobody waits for those that are gone");
    }

    #[test]
    fn a_rank_that_comes_back_gets_what_it_missed_and_others_skip_what_they_had() {
        let mut node = Node::new(2, 1000);
        node.join(0, (0, 0));
        node.join(1, (0, 0));
        assert_eq!((node.take(0), node.take(0), node.take(1)), ((0, 10), (0, 20), (0, 10)));
        node.leave(1);
        assert_eq!(node.take(0), (0, 30));
        node.join(1, (0, 10));
        node.run();
        assert_eq!(node.begun, [(0, 0), (0, 10)]);
        assert_eq!((node.take(1), node.take(1), node.take(1)), ((0, 20), (0, 30), (1, 0)));
        assert_eq!((node.take(0), node.take(0)), ((1, 0), (1, 10)));
    }

    #[test]
    fn ranks_that_come_late_are_awaited_for_a_while_only() {
        let mut node = Node::new(2, 250);
        node.join(0, (0, 0));
        (0..3).for_each(|_| _ = node.take(0));
        assert!(node.sent[0].is_empty() && node.schedule.gathering);
        assert_eq!(node.schedule.holders(0), [1]);
        node.schedule.stop_gathering();
        assert_eq!(node.take(0), (1, 0));
        node.join(1, (0, 0));
        assert_eq!((node.take(1), node.begun.len()), ((0, 10), 2));
        assert!(!node.schedule.take_seat(1) && !node.schedule.take_seat(2));
    }

    #[test]
    fn all_ranks_move_together_without_reading_what_lies_between() {
        let mut node = Node::new(2, 250);
        node.join(0, (0, 0));
        node.join(1, (0, 0));
        node.take(0);
        for seat in [0, 1] {
            node.schedule.want(seat, 2, (1, 10));
            node.run();
            for (entry, _) in std::mem::take(&mut node.sent[seat as usize]) {
                node.schedule.release(seat, entry);
            }
            assert_eq!(node.begun.len(), 1 + seat as usize, "rank 1 may still read on");
        }
        node.run();
        assert_eq!((node.begun.last(), node.begun.len()), (Some(&(1, 10)), 2));
        node.schedule.want(0, 3, (0, 0));
        node.run();
        assert_eq!(node.begun.last(), Some(&(0, 0)), "back");
    }

    #[test]
    fn a_position_within_a_batch_of_the_others_is_refused() {
        let mut node = Node::new(2, 1000);
        node.join(0, (0, 0));
        node.join(1, (0, 15));
        node.run();
        assert_eq!((node.refused, node.begun), (vec![1], vec![(0, 0)]));
    }

    #[test]
    fn a_rank_without_a_part_of_an_epochs_end_goes_on_with_the_next_epoch() {
        let mut node = Node::new(2, 1000);
        node.last_is_short = true;
        node.join(0, (0, 30));
        node.join(1, (1, 0));
        assert_eq!((node.take(0), node.take(0), node.take(1)), ((1, 0), (1, 10), (1, 10)));
        assert_eq!((node.refused, node.begun), (Vec::new(), vec![(0, 30)]));
    }

    #[test]
    fn behind_a_failure_reading_begins_again_when_a_rank_asks() {
        let mut node = Node::new(1, 1000);
        node.join(0, (0, 0));
        node.run();
        node.schedule.fail();
        node.run();
        assert_eq!(node.begun.len(), 1);
        node.schedule.want(0, 2, (0, 0));
        node.run();
        assert_eq!(node.begun, [(0, 0), (0, 0)]);
    }
}
