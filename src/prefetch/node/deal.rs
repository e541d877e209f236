//! Decides what the owner of a node's loader does next: read on, send a part of a batch, drop a batch, or read again
//! from another position. It knows neither bytes nor sockets.
//!
//! An *entry* is a batch of the node. Each seat that has a part of it gets a *share*, in the seat's *line*. A share is
//! sent once its client goes on from the position before it, and the client has taken all but [`AHEAD`] of the shares
//! that it was sent. An entry is kept until all its shares are released: by the client, when the client is gone, or
//! when the client has had it before.
//!
//! Seats without a client get no shares, so nobody waits for them; only while the ranks *gather*, at the start, their
//! shares are kept. A client that wants what was dropped, or is not read yet while nobody needs what comes before,
//! makes the owner read again from the smallest position that a client wants. Clients that are further skip what they
//! have had.

use std::collections::{BTreeMap, VecDeque};

use super::link::Position;

/// The shares and the clients of a node.
#[derive(Default)]
pub(super) struct Deal {
    seats: Vec<Seat>,
    /// The bytes of each entry, and the number of its shares that are not released.
    entries: BTreeMap<u64, (u64, u32)>,
    next_entry: u64,
    /// Entries whose shares are all released.
    freed: Vec<u64>,
    bytes: u64,
    /// More entries are read only while there are fewer than `least`, or all of them have fewer bytes.
    least: usize,
    most_bytes: u64,
    /// The position at which the run ends.
    end: Position,
    /// Set once reading has begun, and once it has reached its end.
    begun: bool,
    ended: bool,
    is_pulling: bool,
    pub(super) gathering: bool,
}

/// A rank of the node.
#[derive(Default)]
struct Seat {
    is_taken: bool,
    turn: u32,
    /// The position that the client goes on from, behind all that it was sent.
    wants: Option<Position>,
    /// The shares that it was sent in this turn, and has not taken.
    ahead: u32,
    /// The entries that it was sent, and has not released.
    has: Vec<u64>,
    line: VecDeque<Share>,
    /// The position behind the last share that was in the line.
    read_to: Position,
    was_told_end: bool,
}

/// A rank's part of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) entry: u64,
    pub(super) before: Position,
    /// The earliest position of the share itself: behind `before` if the rank has nothing of the rest of an epoch.
    pub(super) begins: Position,
    pub(super) after: Position,
    /// True if the rank has no more of the epoch.
    pub(super) ends_epoch: bool,
    /// Samples of the share according to the order, including those that could not be read.
    pub(super) planned: u64,
}

/// A part of a new entry for one seat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) epoch: u64,
    pub(super) after: Position,
    pub(super) ends_epoch: bool,
    pub(super) planned: u64,
}

/// A step of the owner.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read from this position; drop what is being read.
    Begin(Position),
    /// Read one more batch.
    Pull,
    /// Send the share of this seat.
    Send(u32, Share),
    /// Tell this seat that nothing follows.
    End(u32),
    /// Tell this seat that no batch begins where it wants to go on.
    Refuse(u32, Position),
    /// Drop the entry.
    Free(u64),
}

impl Deal {
    /// No client yet, `seats` seats, a run that ends at `end`; at least `least` entries are read ahead, and up to
    /// `most_bytes`.
    pub(super) fn new(seats: u32, end: Position, least: usize, most_bytes: u64) -> Deal {
        Deal {
            seats: (0..seats).map(|_| Seat::default()).collect(),
            least,
            most_bytes,
            end,
            gathering: true,
            ..Deal::default()
        }
    }

    /// A client takes a seat; `false`: there is no such seat, or a client has it.
    pub(super) fn sit(&mut self, seat: u64) -> bool {
        let seat = usize::try_from(seat).ok().and_then(|seat| self.seats.get_mut(seat));
        let Some(seat) = seat.filter(|seat| !seat.is_taken) else { return false };
        let Seat { line, read_to, .. } = std::mem::take(seat);
        *seat = Seat { is_taken: true, line, read_to, ..Seat::default() };
        if self.seats.iter().all(|seat| seat.is_taken) {
            self.gathering = false;
        }
        true
    }

    /// The client of a seat takes no more shares. Returns the entries that it was sent and has not released: they stay
    /// until they are [forgotten](Deal::forget).
    #[must_use]
    pub(super) fn leave(&mut self, seat: u32) -> Vec<u64> {
        let seat = &mut self.seats[seat as usize];
        (seat.is_taken, seat.wants, seat.ahead) = (false, None, 0);
        let has = std::mem::take(&mut seat.has);
        let line = std::mem::take(&mut seat.line);
        line.iter().for_each(|share| self.forget(share.entry));
        has
    }

    /// Stops to wait for ranks that have not come.
    pub(super) fn stop_gathering(&mut self) {
        self.gathering = false;
        for seat in 0..self.seats.len() {
            if !self.seats[seat].is_taken {
                let has = self.leave(seat as u32);
                debug_assert!(has.is_empty(), "nobody was sent anything");
            }
        }
    }

    /// A client goes on from `position`.
    pub(super) fn want(&mut self, seat: u32, turn: u32, position: Position) {
        let seat = &mut self.seats[seat as usize];
        (seat.turn, seat.wants, seat.ahead, seat.was_told_end) = (turn, Some(position), 0, false);
    }

    /// A client has taken a share.
    pub(super) fn took(&mut self, seat: u32, turn: u32) {
        let seat = &mut self.seats[seat as usize];
        if seat.turn == turn {
            seat.ahead = seat.ahead.saturating_sub(1);
        }
    }

    /// A client has dropped its share of `entry`.
    pub(super) fn release(&mut self, seat: u32, entry: u64) {
        let has = &mut self.seats[seat as usize].has;
        if let Some(at) = has.iter().position(|has| *has == entry) {
            has.swap_remove(at);
            self.forget(entry);
        }
    }

    /// The turn of the client of `seat`.
    pub(super) fn turn(&self, seat: u32) -> u32 {
        self.seats[seat as usize].turn
    }

    /// Returns whether the client of `seat` goes on from a position.
    pub(super) fn is_wanting(&self, seat: u32) -> bool {
        self.seats[seat as usize].wants.is_some()
    }

    /// Adds the batch that was read, with the part of each seat; returns its entry.
    pub(super) fn add(&mut self, bytes: u64, parts: impl Iterator<Item = Option<Part>>) -> u64 {
        self.is_pulling = false;
        let entry = self.next_entry;
        self.next_entry += 1;
        let mut shares = 0;
        for (seat, part) in self.seats.iter_mut().zip(parts) {
            let Some(Part { epoch, after, ends_epoch, planned }) = part else { continue };
            let before = std::mem::replace(&mut seat.read_to, after);
            let begins = before.max((epoch, 0));
            if seat.is_taken || self.gathering {
                seat.line.push_back(Share { entry, before, begins, after, ends_epoch, planned });
                shares += 1;
            }
        }
        self.entries.insert(entry, (bytes, shares + 1));
        self.bytes += bytes;
        self.forget(entry);
        entry
    }

    /// Reading has reached its end.
    pub(super) fn end(&mut self) {
        (self.is_pulling, self.ended) = (false, true);
    }

    /// Reading has failed, and all clients know: it begins again when one of them wants something new.
    pub(super) fn fail(&mut self) {
        self.drop_lines();
        (self.begun, self.is_pulling) = (false, false);
        self.seats.iter_mut().for_each(|seat| seat.wants = None);
    }

    /// The seats that hold the oldest entry, if nothing more is read before they drop it: the reason that `seat` gets
    /// nothing.
    pub(super) fn holders(&self, seat: u32) -> Vec<u32> {
        let Some(oldest) = self.entries.keys().next().filter(|_| !self.has_room()) else {
            return Vec::new();
        };
        let holds =
            |it: &Seat| it.has.contains(oldest) || it.line.iter().any(|s| s.entry == *oldest);
        let others = (0..).zip(&self.seats).filter(|(number, it)| *number != seat && holds(it));
        others.map(|(number, _)| number).collect()
    }

    /// The next step; `None`: nothing can be done before something happens.
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
            self.drop_lines();
            self.seats.iter_mut().for_each(|seat| seat.read_to = position);
            (self.begun, self.ended, self.is_pulling) = (true, false, false);
            return Some(Step::Begin(position));
        }
        let is_needed = self.waiting().any(|seat| seat.line.is_empty() && seat.ahead < AHEAD);
        if is_needed && self.begun && !self.ended && !self.is_pulling && self.has_room() {
            self.is_pulling = true;
            return Some(Step::Pull);
        }
        None
    }

    /// The next step for one seat.
    fn next_of(&mut self, number: usize) -> Option<Step> {
        let wants = self.seats[number].wants?;
        while self.seats[number].line.front().is_some_and(|share| share.begins < wants) {
            let share = self.seats[number].line.pop_front()?;
            self.forget(share.entry);
            if share.after > wants && !share.ends_epoch {
                self.seats[number].wants = None;
                return Some(Step::Refuse(number as u32, wants));
            }
        }
        let seat = &mut self.seats[number];
        let is_next = seat.line.front().is_some_and(|share| share.before <= wants);
        if is_next && seat.ahead < AHEAD {
            let share = seat.line.pop_front()?;
            seat.wants = Some(share.after);
            seat.ahead += 1;
            seat.has.push(share.entry);
            return Some(Step::Send(number as u32, share));
        }
        let is_over = self.ended && seat.line.is_empty() && wants >= seat.read_to;
        if (is_over || wants >= self.end) && !seat.was_told_end {
            seat.was_told_end = true;
            return Some(Step::End(number as u32));
        }
        None
    }

    /// The position to begin at, if reading has not begun, or does not come to what a client wants.
    fn to_begin(&self) -> Option<Position> {
        let least = self.waiting().filter_map(|seat| seat.wants).min()?;
        let comes_later =
            |seat: &Seat| seat.line.front().map_or(seat.read_to, |share| share.before);
        let is_behind = self.waiting().any(|seat| seat.wants < Some(comes_later(seat)));
        // Nobody needs what would be read next.
        let all_have_said = self.seats.iter().all(|seat| seat.wants.is_some() || !seat.is_taken);
        let is_ahead =
            self.waiting().all(|seat| seat.line.is_empty() && seat.wants > Some(seat.read_to));
        let is_ahead = is_ahead && all_have_said && !self.gathering && !self.ended;
        (!self.begun || is_behind || is_ahead).then_some(least)
    }

    /// The seats whose clients want more.
    fn waiting(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|seat| seat.wants.is_some_and(|wants| wants < self.end))
    }

    /// Some entries have room whatever their size, so that ranks that hold a batch each, or two, get their next one.
    fn has_room(&self) -> bool {
        self.entries.len() < self.least || self.bytes < self.most_bytes
    }

    fn drop_lines(&mut self) {
        for seat in 0..self.seats.len() {
            let line = std::mem::take(&mut self.seats[seat].line);
            line.iter().for_each(|share| self.forget(share.entry));
        }
    }

    /// Drops a share of `entry`.
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

/// The most batches that a client was sent and has not taken: the next one is there when it is asked for.
const AHEAD: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// A deal among `seats`, whose batches consume 10 positions each, in epochs of 40.
    struct Node {
        deal: Deal,
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
            let deal = Deal::new(seats, (2, 0), 2, most_bytes);
            let sent = (0..seats).map(|_| Vec::new()).collect();
            let begun = Vec::new();
            let freed = Vec::new();
            let at = (9, 9);
            let refused = Vec::new();
            let ended = Vec::new();
            Node { deal, at, last_is_short: false, sent, begun, freed, refused, ended }
        }

        fn join(&mut self, seat: u32, position: Position) {
            assert!(self.deal.sit(seat.into()));
            self.deal.want(seat, 1, position);
        }

        /// The client is gone.
        fn leave(&mut self, seat: u32) {
            self.deal.leave(seat).into_iter().for_each(|entry| self.deal.forget(entry));
            self.sent[seat as usize].clear();
        }

        /// Does all that can be done.
        fn run(&mut self) {
            while let Some(step) = self.deal.next() {
                match step {
                    Step::Begin(at) => {
                        self.begun.push(at);
                        self.at = at;
                    }
                    Step::Pull if self.at >= (2, 0) => self.deal.end(),
                    Step::Pull => {
                        let epoch = self.at.0;
                        let ends_epoch = self.at.1 == 30;
                        self.at = if ends_epoch {
                            (self.at.0 + 1, 0)
                        } else {
                            (self.at.0, self.at.1 + 10)
                        };
                        let part = Part { epoch, after: self.at, ends_epoch, planned: 5 };
                        let left_out =
                            (ends_epoch && self.last_is_short).then(|| self.sent.len() - 1);
                        let parts = (0..self.sent.len())
                            .map(|seat| (Some(seat) != left_out).then_some(part));
                        self.deal.add(100, parts);
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
            self.deal.took(seat, self.deal.turn(seat));
            self.deal.release(seat, entry);
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
        assert_eq!(node.deal.bytes, 0);
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
        assert_eq!(node.deal.holders(0), [1], "rank 2 has had the first");
        node.take(1);
        assert_eq!(node.sent[0].len(), 1);
        assert_eq!(node.deal.holders(0), [1, 2]);
        node.leave(1);
        node.leave(2);
        node.run();
        assert_eq!(node.deal.holders(0), [0_u32; 0]);
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
        assert!(node.sent[0].is_empty() && node.deal.gathering);
        assert_eq!(node.deal.holders(0), [1]);
        node.deal.stop_gathering();
        assert_eq!(node.take(0), (1, 0));
        node.join(1, (0, 0));
        assert_eq!((node.take(1), node.begun.len()), ((0, 10), 2));
        assert!(!node.deal.sit(1) && !node.deal.sit(2));
    }

    #[test]
    fn all_ranks_move_together_without_reading_what_lies_between() {
        let mut node = Node::new(2, 250);
        node.join(0, (0, 0));
        node.join(1, (0, 0));
        node.take(0);
        for seat in [0, 1] {
            node.deal.want(seat, 2, (1, 10));
            node.run();
            for (entry, _) in std::mem::take(&mut node.sent[seat as usize]) {
                node.deal.release(seat, entry);
            }
            assert_eq!(node.begun.len(), 1 + seat as usize, "rank 1 may still read on");
        }
        node.run();
        assert_eq!((node.begun.last(), node.begun.len()), (Some(&(1, 10)), 2));
        node.deal.want(0, 3, (0, 0));
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
        node.deal.fail();
        node.run();
        assert_eq!(node.begun.len(), 1);
        node.deal.want(0, 2, (0, 0));
        node.run();
        assert_eq!(node.begun, [(0, 0), (0, 0)]);
    }
}
