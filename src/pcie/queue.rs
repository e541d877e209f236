//! A submission queue and its completion queue, in memory that the controller reads and writes.
//!
//! The controller writes completions whenever it likes, and whatever it likes. Only one 32-bit word of an entry
//! decides: it has the phase bit, the status and the command identifier, so it is read at once. The identifier is an
//! index and a generation; one that names no outstanding command is ignored, so a completion that comes twice, or for
//! a command that was given up, ends nothing. A command whose completion never comes is found by [`Queue::overdue`].
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use zerocopy::IntoBytes as _;

use crate::area::Area;
use crate::fault::Fault;
use crate::registers::{DOORBELLS, Registers};
use dlfs_nvme::nvme::{Sgl, Sqe, Status};

/// The data of a command: contiguous for the device, at an address that is a multiple of 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The address by which the device knows its first byte.
    pub address: u64,
    /// Length in bytes, at most `MAX_SPAN_BYTES`.
    pub len: u32,
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The command's identifier.
    pub cid: u16,
    /// Its status.
    pub status: Status,
    /// Dword 0 of the completion.
    pub result: u32,
}

/// A queue; `T` is the caller's job behind each command.
pub struct Queue<T> {
    qid: u16,
    entries: u16,
    /// The offset of the submission queue's doorbell; that of the completion queue lies `stride` bytes behind it.
    doorbell: u32,
    stride: u32,
    /// True if the controller takes scatter-gather lists.
    has_sgls: bool,
    commands: Area,
    completions: Area,
    /// For each command, room for a list of pages.
    lists: Area,
    /// The index of the next command.
    tail: u16,
    /// The tail that the controller was told last.
    rung_tail: u16,
    /// The index of the next completion.
    head: u16,
    /// The phase bit of the next completion.
    phase: bool,
    slots: Vec<Slot<T>>,
    /// The indices of slots without a command.
    free: Vec<u8>,
}

/// Room for one outstanding command; its index is the low byte of the identifier.
struct Slot<T> {
    /// The number of commands that had this slot, modulo 256: the high byte of the identifier.
    generation: u8,
    /// `None`: the slot is free.
    command: Option<Outstanding<T>>,
}

/// A command that the controller has not answered.
struct Outstanding<T> {
    job: T,
    /// The time of its submission, or of the request to abort it.
    since: Instant,
    /// True once the controller was asked to abort it.
    aborting: bool,
}

/// A command without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// The command's identifier.
    pub cid: u16,
    /// True if the controller has been asked to abort it, and has not answered either.
    pub aborting: bool,
}

impl<T> Queue<T> {
    /// A queue of `entries`, at most [`MAX_ENTRIES`], in `area`, of at least [`area_bytes`]. It exists for the
    /// controller when that was told.
    pub(crate) fn new(
        qid: u16,
        entries: u16,
        area: &Area,
        stride: u32,
        has_sgls: bool,
    ) -> Queue<T> {
        assert!((2..=MAX_ENTRIES).contains(&entries), "the length of a queue");
        let commands_len = entries_bytes(entries, SQE_LEN);
        let completions_len = entries_bytes(entries, CQE_LEN);
        let lists_start = commands_len + completions_len;
        let num_slots = entries - 1;
        let slot = |_| Slot { generation: 0, command: None };
        Queue {
            qid,
            entries,
            doorbell: DOORBELLS + 2 * u32::from(qid) * stride,
            stride,
            has_sgls,
            commands: area.part(0, commands_len),
            completions: area.part(commands_len, completions_len),
            lists: area.part(lists_start, usize::from(num_slots) * LIST_BYTES),
            tail: 0,
            rung_tail: 0,
            head: 0,
            phase: true,
            slots: (0..num_slots).map(slot).collect(),
            free: (0..num_slots as u8).rev().collect(),
        }
    }

    /// Forgets what the controller was told and what it wrote, before the queue is created again. The outstanding
    /// commands must have been drained.
    pub(crate) fn rewind(&mut self) {
        assert!(self.outstanding() == 0, "commands are lost");
        self.completions.clear();
        (self.tail, self.rung_tail, self.head, self.phase) = (0, 0, 0, true);
    }

    /// Queue identifier; 0 is the admin queue.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// The number of entries.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// The addresses of the submission and of the completion queue.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.commands.address(), self.completions.address())
    }

    /// The number of commands without an answer.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether [`Queue::push`] has room.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Appends a command, with the identifier that it returns; the controller sees it after [`Queue::ring`].
    ///
    /// # Panics
    /// There is no room, or `data` is longer or aligned worse than a command can say.
    pub fn push(&mut self, now: Instant, mut sqe: Sqe, data: Option<Span>, job: T) -> u16 {
        let index = self.free.pop().expect("room, which the caller has checked");
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.command = Some(Outstanding { job, since: now, aborting: false });
        let cid = u16::from(slot.generation) << 8 | u16::from(index);
        sqe.cid = cid.into();
        sqe.flags = 0;
        sqe.sgl = Sgl::prps(0, 0);
        if let Some(span) = data {
            let can_be_said = span.address.is_multiple_of(4) && span.len <= MAX_SPAN_BYTES;
            assert!(can_be_said, "{} bytes at {:X}h", span.len, span.address);
            // A descriptor in place of a list, which would have to be written and fetched.
            if self.has_sgls && pages_of(span) > 2 {
                sqe.flags = dlfs_nvme::nvme::sqe::FLAGS_SGL;
                sqe.sgl = Sgl::in_memory(span.address, span.len);
            } else {
                sqe.sgl = self.prps(index, span);
            }
        }
        self.commands.write(usize::from(self.tail) * SQE_LEN, sqe.as_bytes());
        self.tail = (self.tail + 1) % self.entries;
        cid
    }

    /// Describes `span` by physical region pages: its first page, and its second or the list of all others.
    fn prps(&self, index: u8, span: Span) -> Sgl {
        let pages = pages_of(span);
        let second = (span.address & !(PAGE_LEN - 1)) + PAGE_LEN;
        match pages {
            0 | 1 => Sgl::prps(span.address, 0),
            2 => Sgl::prps(span.address, second),
            _ => {
                let list = self.lists.part(usize::from(index) * LIST_BYTES, LIST_BYTES);
                for page in 0..pages - 1 {
                    let address = second + page * PAGE_LEN;
                    list.write(page as usize * 8, &address.to_le_bytes());
                }
                Sgl::prps(span.address, list.address())
            }
        }
    }

    /// Tells the controller of the commands that were appended since the last call.
    ///
    /// # Errors
    /// Those of the bus.
    pub fn ring(&mut self, registers: &(impl Registers + ?Sized)) -> Result<(), Fault> {
        if self.rung_tail == self.tail {
            return Ok(());
        }
        self.rung_tail = self.tail;
        registers.write32(self.doorbell, u32::from(self.tail))
    }

    /// Takes at most `max` completions from the controller, and hands each to `done`; returns their number.
    ///
    /// # Errors
    /// Those of the bus.
    pub fn poll(
        &mut self,
        registers: &(impl Registers + ?Sized),
        max: usize,
        mut done: impl FnMut(T, Ended),
    ) -> Result<usize, Fault> {
        let mut count = 0;
        let mut seen = 0;
        // A round at most: a controller may write faster than this looks.
        while count < max && seen < self.entries {
            let entry = usize::from(self.head) * CQE_LEN;
            let cid_and_status = self.completions.load(entry + 12);
            let status = (cid_and_status >> 16) as u16;
            if (status & 1 != 0) != self.phase {
                break;
            }
            let result = self.completions.load(entry);
            seen += 1;
            self.head = (self.head + 1) % self.entries;
            self.phase ^= self.head == 0;
            let cid = cid_and_status as u16;
            if let Some(job) = self.take(cid) {
                count += 1;
                done(job, Ended { cid, status: Status::from_wire(status), result });
            }
        }
        if seen > 0 {
            registers.write32(self.doorbell + self.stride, u32::from(self.head))?;
        }
        Ok(count)
    }

    /// Ends this command, if it is outstanding; returns its job.
    fn take(&mut self, cid: u16) -> Option<T> {
        let [index, generation] = cid.to_le_bytes();
        let slot = self.slots.get_mut(usize::from(index))?;
        if slot.generation != generation {
            return None;
        }
        let command = slot.command.take()?;
        self.free.push(index);
        Some(command.job)
    }

    /// A command that has had no answer for `limit`, counted from its submission or from the request to abort it.
    /// Commands that were to be aborted come first. `None`: no command is overdue.
    pub fn overdue(&self, now: Instant, limit: Duration) -> Option<Overdue> {
        let all_late = self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            let command = slot.command.as_ref()?;
            let is_late = now.saturating_duration_since(command.since) >= limit;
            let cid = u16::from_le_bytes([index, slot.generation]);
            is_late.then_some(Overdue { cid, aborting: command.aborting })
        });
        all_late.max_by_key(|late| late.aborting)
    }

    /// Records that the controller was asked to abort this command, and gives it the time again.
    pub fn mark_aborting(&mut self, now: Instant, cid: u16) {
        let slot = &mut self.slots[usize::from(cid.to_le_bytes()[0])];
        if let Some(command) = &mut slot.command {
            (command.since, command.aborting) = (now, true);
        }
    }

    /// Takes the jobs of all outstanding commands: the controller does not know them any more.
    pub fn drain(&mut self) -> Vec<T> {
        let mut jobs = Vec::new();
        for (slot, index) in self.slots.iter_mut().zip(0..) {
            if let Some(command) = slot.command.take() {
                self.free.push(index);
                jobs.push(command.job);
            }
        }
        jobs
    }
}

/// The bytes of memory of a queue of `entries`.
pub(crate) fn area_bytes(entries: u16) -> usize {
    let lists = usize::from(entries - 1) * LIST_BYTES;
    let rings = entries_bytes(entries, SQE_LEN) + entries_bytes(entries, CQE_LEN);
    rings + lists.next_multiple_of(PAGE_LEN as usize)
}

/// Whole pages for `entries` of `len` bytes.
fn entries_bytes(entries: u16, len: usize) -> usize {
    (usize::from(entries) * len).next_multiple_of(PAGE_LEN as usize)
}

/// The pages that the data touch.
fn pages_of(span: Span) -> u64 {
    let start = span.address % PAGE_LEN;
    (start + u64::from(span.len)).div_ceil(PAGE_LEN)
}

/// The entries of the longest queue: an identifier has 8 bits for the index.
pub const MAX_ENTRIES: u16 = 256;

/// The most data of a command: one list of half a page describes them.
pub(crate) const MAX_SPAN_BYTES: u32 = 1 << 20;

/// Length of a list of pages: an address for each page of the most data.
const LIST_BYTES: usize = 2048;

/// Length of a command.
const SQE_LEN: usize = 64;

/// Length of a completion.
const CQE_LEN: usize = 16;

/// Length of the controller's memory pages.
pub(crate) const PAGE_LEN: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::area::Words;
    use dlfs_base::units::{Lba, Nsid};

    struct Silent;

    impl Registers for Silent {
        fn read32(&self, _: u32) -> Result<u32, Fault> {
            Ok(0)
        }

        fn write32(&self, _: u32, _: u32) -> Result<(), Fault> {
            Ok(())
        }
    }

    fn queue(entries: u16, has_sgls: bool) -> (Queue<u32>, Area) {
        let words: Vec<AtomicU32> =
            (0..area_bytes(entries) / 4).map(|_| AtomicU32::new(0)).collect();
        let words: Words = Arc::new(words);
        let area = Area::new(words, 1 << 32);
        (Queue::new(1, entries, &area, 4, has_sgls), area)
    }

    fn entry(area: &Area, at: usize, len: usize) -> Vec<u64> {
        let mut bytes = vec![0; len];
        area.part(at, len).read(&mut bytes);
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn data_are_described_by_pages_a_list_or_one_descriptor() {
        const BASE: u64 = 7 << 32;
        let lists = (1u64 << 32) + 2 * 4096;
        let cases = [
            (0, 4096, vec![BASE, 0]),
            (0, 8192, vec![BASE, BASE + 4096]),
            (512, 4096, vec![BASE + 512, BASE + 4096]),
            (4092, 8, vec![BASE + 4092, BASE + 4096]),
            (512, 8192, vec![BASE + 512, lists]),
        ];
        for (offset, len, expected) in cases {
            let (mut queue, area) = queue(4, false);
            let read = Sqe::read(0, Nsid(1), Lba(0), 1, 0);
            let span = Span { address: BASE + offset, len };
            queue.push(Instant::now(), read, Some(span), 0);
            assert_eq!(entry(&area, 24, 16), expected, "{offset} {len}");
        }
        let (mut queue, area) = queue(4, false);
        let span = Span { address: BASE + 4, len: MAX_SPAN_BYTES };
        queue.push(Instant::now(), Sqe::flush(0, Nsid(1)), Some(span), 0);
        let list = entry(&area, 2 * 4096, 2048);
        assert_eq!((list[0], list[255]), (BASE + 4096, BASE + (1 << 20)));
        let (mut queue, area) = self::queue(4, true);
        queue.push(Instant::now(), Sqe::flush(0, Nsid(1)), Some(span), 0);
        assert_eq!(entry(&area, 24, 16), [BASE + 4, 1 << 20]);
        assert_eq!(entry(&area, 0, 8)[0].to_le_bytes()[1], 0x40);
    }

    #[test]
    fn a_completion_ends_its_command_once_and_none_that_took_its_place() {
        let (mut queue, area) = queue(4, false);
        let now = Instant::now();
        let complete = |at: usize, cid: u16, phase: u32| {
            area.write(4096 + at * 16 + 12, &(u32::from(cid) | phase << 16).to_le_bytes());
        };
        let first = queue.push(now, Sqe::flush(0, Nsid(1)), None, 10);
        complete(0, first, 1);
        complete(1, first, 1);
        let mut ended = Vec::new();
        queue.poll(&Silent, 9, |job, _| ended.push(job)).unwrap();
        let second = queue.push(now, Sqe::flush(0, Nsid(1)), None, 11);
        assert_ne!(first, second, "the same place, another identifier");
        complete(2, first, 1);
        complete(3, 0xFFFF, 1);
        queue.poll(&Silent, 9, |job, _| ended.push(job)).unwrap();
        assert_eq!((&*ended, queue.outstanding()), (&[10][..], 1));
        complete(0, second, 1);
        queue.poll(&Silent, 9, |job, _| ended.push(job)).unwrap();
        assert_eq!(ended, [10], "the phase bit has turned: this entry is old");
        complete(0, second, 0);
        queue.poll(&Silent, 9, |job, _| ended.push(job)).unwrap();
        assert_eq!((&*ended, queue.outstanding()), (&[10, 11][..], 0));
    }

    #[test]
    fn a_command_without_an_answer_is_overdue_then_again_after_its_abort() {
        let (mut queue, _) = queue(4, false);
        let now = Instant::now();
        let limit = Duration::from_secs(1);
        let cid = queue.push(now, Sqe::flush(0, Nsid(1)), None, 10);
        assert_eq!(queue.overdue(now, limit), None);
        let late = now + limit;
        assert_eq!(queue.overdue(late, limit), Some(Overdue { cid, aborting: false }));
        queue.mark_aborting(late, cid);
        assert_eq!(queue.overdue(late, limit), None);
        assert_eq!(queue.overdue(late + limit, limit), Some(Overdue { cid, aborting: true }));
        assert_eq!((queue.drain(), queue.outstanding()), (vec![10], 0));
    }
}
