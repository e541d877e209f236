//! Outstanding commands, by command identifier.

use std::collections::VecDeque;

use super::{CommandError, DIRECT_MIN, Event, Transfer};
use crate::nvme::Cqe;

/// A command that the connection has accepted and not returned.
#[derive(Debug)]
pub(super) struct Outstanding<B> {
    pub(super) payload: B,
    pub(super) transfer: Transfer,
    /// Bytes of the command's data.
    pub(super) len: u32,
    /// Bytes received so far, or requested by R2Ts so far.
    pub(super) at: u32,
    /// Bytes of the payload that are queued and not yet taken by the socket.
    pub(super) unsent: u32,
    /// True if its data go in the capsule.
    pub(super) in_capsule: bool,
    /// True if the command may take any time.
    pub(super) no_timeout: bool,
    /// True if the controller may send less than the buffer has room for.
    pub(super) may_be_short: bool,
    /// True once a data digest was wrong.
    pub(super) digest_failed: bool,
    /// Index of this payload in the receive being planned; `None`: it is not in the plan.
    pub(super) piece: Option<usize>,
    /// For a read: the number of reads submitted before it.
    serial: u64,
    /// The controller's completion, once it has arrived.
    pub(super) outcome: Option<Result<Cqe, CommandError>>,
}

impl<B> Outstanding<B> {
    pub(super) fn new(
        payload: B,
        transfer: Transfer,
        len: u32,
        in_capsule: bool,
        no_timeout: bool,
    ) -> Outstanding<B> {
        Outstanding {
            payload,
            transfer,
            len,
            at: 0,
            unsent: 0,
            in_capsule,
            no_timeout,
            may_be_short: false,
            digest_failed: false,
            piece: None,
            serial: 0,
            outcome: None,
        }
    }

    fn is_bulk_read(&self) -> bool {
        self.transfer == Transfer::In && self.len as usize >= DIRECT_MIN
    }
}

/// Slots for commands. A CID combines the slot's index with a count of the slot's uses, so that a late or
/// duplicate response does not match the slot's next command.
#[derive(Debug)]
pub(super) struct Slots<B> {
    slots: Vec<Slot<B>>,
    /// The indices of free slots.
    free: Vec<usize>,
    /// Slots of reads in the order of submission, each with the read's serial number, because CIDs repeat
    /// after sixteen uses of a slot. Completed reads are removed lazily.
    reads: VecDeque<(usize, u64)>,
    /// The number of reads that were submitted.
    num_reads_taken: u64,
    /// The number of outstanding commands without a timeout.
    num_untimed: usize,
    /// The number of outstanding reads of at least [`DIRECT_MIN`].
    pub(super) num_bulk_reads: usize,
    /// The number of all other outstanding reads.
    pub(super) num_small_reads: usize,
}

/// Room for one command.
#[derive(Debug)]
struct Slot<B> {
    /// The number of commands that it had, as far as a CID has bits for it.
    use_count: u16,
    command: Option<Outstanding<B>>,
}

impl<B> Slots<B> {
    pub(super) fn new(capacity: u16) -> Slots<B> {
        let capacity = usize::from(capacity.clamp(1, MAX_SLOTS));
        Slots {
            slots: (0..capacity).map(|_| Slot { use_count: 0, command: None }).collect(),
            // The lowest index is used first.
            free: (0..capacity).rev().collect(),
            reads: VecDeque::with_capacity(2 * capacity),
            num_reads_taken: 0,
            num_untimed: 0,
            num_bulk_reads: 0,
            num_small_reads: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Number of commands with a timeout.
    pub(super) fn num_timed(&self) -> usize {
        self.len() - self.num_untimed
    }

    /// Inserts a command; returns its slot. The caller has checked that there is room.
    pub(super) fn insert(&mut self, mut command: Outstanding<B>) -> usize {
        let slot = self.free.pop().expect("the caller asked for room");
        self.count(&command, 1);
        if command.transfer == Transfer::In {
            if self.reads.len() == 2 * self.slots.len() {
                self.drop_ended_reads();
            }
            command.serial = self.num_reads_taken;
            self.num_reads_taken += 1;
            self.reads.push_back((slot, command.serial));
        }
        self.slots[slot].command = Some(command);
        slot
    }

    /// Forgets reads that have ended.
    fn drop_ended_reads(&mut self) {
        let mut reads = std::mem::take(&mut self.reads);
        reads.retain(|&(slot, serial)| self.awaits(slot, serial));
        self.reads = reads;
    }

    /// Returns whether this read is outstanding without a response.
    fn awaits(&self, slot: usize, serial: u64) -> bool {
        let command = self.slots[slot].command.as_ref();
        command.is_some_and(|command| {
            command.transfer == Transfer::In
                && command.serial == serial
                && command.outcome.is_none()
        })
    }

    /// Iterates over the reads without a response in the order of submission: start with `next` at 0 and call
    /// until it returns `None`.
    pub(super) fn next_read(&mut self, next: &mut usize) -> Option<usize> {
        while let Some(&(slot, serial)) = self.reads.get(*next) {
            if self.awaits(slot, serial) {
                *next += 1;
                return Some(slot);
            }
            match *next {
                0 => _ = self.reads.pop_front(),
                _ => *next += 1,
            }
        }
        None
    }

    /// All outstanding commands.
    pub(super) fn commands(&self) -> impl Iterator<Item = &Outstanding<B>> {
        self.slots.iter().filter_map(|slot| slot.command.as_ref())
    }

    /// All outstanding commands, mutable.
    pub(super) fn commands_mut(&mut self) -> impl Iterator<Item = &mut Outstanding<B>> {
        self.slots.iter_mut().filter_map(|slot| slot.command.as_mut())
    }

    pub(super) fn cid(&self, slot: usize) -> u16 {
        self.slots[slot].use_count << INDEX_BITS | slot as u16
    }

    /// The slot of an outstanding command without a response.
    pub(super) fn find(&self, cid: u16) -> Option<usize> {
        let index = usize::from(cid & MAX_SLOTS);
        let slot = self.slots.get(index)?;
        let command = slot.command.as_ref()?;
        (slot.use_count == cid >> INDEX_BITS && command.outcome.is_none()).then_some(index)
    }

    pub(super) fn get(&self, slot: usize) -> &Outstanding<B> {
        self.slots[slot].command.as_ref().expect("the slot is in use")
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> &mut Outstanding<B> {
        self.slots[slot].command.as_mut().expect("the slot is in use")
    }

    /// Notes that the socket took `len` bytes of the payload; returns whether this was the last thing that
    /// a command with a response waited for.
    pub(super) fn sent(&mut self, slot: usize, len: u32) -> bool {
        let command = self.get_mut(slot);
        command.unsent -= len;
        command.unsent == 0 && command.outcome.is_some()
    }

    /// Frees the slot of a command that has its response.
    pub(super) fn remove(&mut self, slot: usize) -> Event<B> {
        let command = self.take(slot).expect("the slot is in use");
        let result = command.outcome.expect("the command is answered");
        Event::Done { payload: command.payload, result }
    }

    /// Frees a slot if it is in use.
    pub(super) fn take(&mut self, slot: usize) -> Option<Outstanding<B>> {
        let entry = &mut self.slots[slot];
        let command = entry.command.take()?;
        entry.use_count = (entry.use_count + 1) & (u16::MAX >> INDEX_BITS);
        self.free.push(slot);
        self.count(&command, -1);
        Some(command)
    }

    /// Adds `change` to the counts that this command is part of.
    fn count(&mut self, command: &Outstanding<B>, change: isize) {
        let count = match command.transfer {
            _ if command.no_timeout => &mut self.num_untimed,
            Transfer::In if command.is_bulk_read() => &mut self.num_bulk_reads,
            Transfer::In => &mut self.num_small_reads,
            Transfer::None | Transfer::Out => return,
        };
        *count = count.checked_add_signed(change).expect("as many in as out");
    }
}

/// Bits of a CID that hold the slot's index; the others count its uses.
const INDEX_BITS: u32 = 12;

/// One fewer than the bits allow, since CID FFFFh means "no command" in some fields. Also the mask of the index.
const MAX_SLOTS: u16 = (1 << INDEX_BITS) - 1;

#[cfg(test)]
impl<B> Slots<B> {
    pub(super) fn num_remembered_reads(&self) -> usize {
        self.reads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_listed_once_however_often_its_slot_was_used() {
        let mut slots = Slots::new(64);
        let read = || Outstanding::new((), Transfer::In, 4096, false, false);
        for _ in 0..100 {
            let slot = slots.insert(read());
            let mut next = 0;
            let reads: Vec<usize> = std::iter::from_fn(|| slots.next_read(&mut next)).collect();
            assert_eq!(reads, [slot]);
            slots.take(slot);
            for _ in 0..17 {
                let slot = slots.insert(read()); // a completed read that nobody iterates over
                slots.take(slot);
            }
        }
    }
}
