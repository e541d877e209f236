//! The target's end: its connection, and the turn of `src/serve` with a device in simulated time.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use dlfs::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs::nvme::{Sqe, Status};
use dlfs::tcp::Digests;
use dlfs::tcp::budget::{TARGET_RECEIVE_BYTES, TARGET_SEND_SLICES, target_completions};
use dlfs::tcp::controller::{CommandId, Connection, ConnectionOptions, DataTransfer, Event};

use super::ends::{Calls, Clock, is_stamped, stamp};
use super::link::{Pauses, Pipe, Ps};

/// The target's end of the connection, with a device that takes no time except in its pauses.
pub(crate) struct Target {
    connection: Connection,
    scratch: Vec<u8>,
    pool: Pool,
    /// Commands that wait for memory for their data, oldest first.
    waiting: VecDeque<(CommandId, Sqe, u32)>,
    /// Bytes of buffers in use by the device or the host.
    held_bytes: usize,
    device: VecDeque<Work>,
    device_pauses: Option<Pauses>,
    /// The bytes of the I/O that completed last.
    last_len: usize,
    pub(crate) clock: Clock,
    pub(crate) calls: Calls,
    is_blocked: bool,
}

/// An I/O at the device.
struct Work {
    id: CommandId,
    sqe: Sqe,
    buf: IoBuf,
    is_write: bool,
}

impl Target {
    pub(crate) fn new(start: Instant, device_pauses: Option<Pauses>) -> Target {
        let digests = Digests { header: true, data: true };
        let options = ConnectionOptions { digests, max_h2c_data_bytes: MAX_TRANSFER_BYTES };
        let pool =
            PoolOptions { bytes: POOL_BYTES, slot_len_bytes: 4096, huge_pages: HugePages::Off };
        Target {
            connection: Connection::new(options),
            scratch: vec![0; TARGET_RECEIVE_BYTES],
            pool: Pool::new(pool).expect("memory for a pool"),
            waiting: VecDeque::new(),
            held_bytes: 0,
            device: VecDeque::new(),
            device_pauses,
            last_len: 0,
            clock: Clock::new(start),
            calls: Calls::default(),
            is_blocked: false,
        }
    }

    /// Connect has succeeded.
    pub(crate) fn connected(&mut self, depth: u16) {
        self.connection.connected(depth, IN_CAPSULE_BYTES, false);
    }

    /// The time of the next turn.
    pub(crate) fn next_turn(&self, up: &Pipe, down: &Pipe) -> Option<Ps> {
        let work = self
            .device
            .front()
            .map(|_| self.device_pauses.map_or(self.clock.at, |pauses| pauses.over(self.clock.at)));
        let writable = down.writable_at().filter(|_| self.is_blocked);
        let ready = up.readable_at().into_iter().chain(work).chain(writable).min();
        ready.map(|at| at.max(self.clock.at))
    }

    /// One turn.
    pub(crate) fn turn(&mut self, up: &mut Pipe, down: &mut Pipe) {
        self.receive(up);
        self.run_device();
        self.send(down);
        self.start_waiting();
        self.send(down);
    }

    fn receive(&mut self, up: &mut Pipe) {
        if up.readable_at().is_none_or(|at| at > self.clock.at) {
            return;
        }
        self.clock.call();
        self.calls.receives += 1;
        let payload = self.connection.payload().unwrap_or_default();
        let payload_len = payload.len();
        let mut slices = [IoSliceMut::new(payload), IoSliceMut::new(&mut self.scratch)];
        let len = up.receive(self.clock.at, &mut slices);
        let in_place = len.min(payload_len);
        if in_place > 0 {
            self.connection.payload_received(in_place);
        }
        let scratch = std::mem::take(&mut self.scratch);
        let mut input = &scratch[..len - in_place];
        while let Some(event) = self.connection.next(&mut input).expect("the host's PDUs are right")
        {
            self.handle(event);
        }
        self.scratch = scratch;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Command {
                id, data: DataTransfer::FromHost { len, in_capsule: true }, ..
            } => {
                let buf = self.pool.take(len as usize);
                let buf = buf.unwrap_or_else(|| IoBuf::zeroed(len as usize));
                self.held_bytes += len as usize;
                self.connection.receive(id, buf);
            }
            Event::Command { id, sqe, data } => {
                let len = match data {
                    DataTransfer::ToHost(len) | DataTransfer::FromHost { len, .. } => len,
                    DataTransfer::None => panic!("every command here has data"),
                };
                if !self.waiting.is_empty() || !self.start(id, sqe, len) {
                    self.waiting.push_back((id, sqe, len));
                }
            }
            Event::Received { id, sqe, buf } => {
                let number = number_of(&sqe);
                assert!(is_stamped(&buf, number), "write {number} brought other bytes");
                self.device.push_back(Work { id, sqe, buf, is_write: true });
            }
            Event::Damaged { .. } => panic!("there are no digests to be wrong"),
        }
    }

    /// Starts data transfers, if there is memory for them.
    fn start(&mut self, id: CommandId, sqe: Sqe, len: u32) -> bool {
        let len = len as usize;
        let holds = self.held_bytes + self.connection.transmit().len_bytes();
        if holds > 0 && holds + len > POOL_BYTES / 4 {
            return false;
        }
        let Some(buf) = self.pool.take(len) else { return false };
        self.held_bytes += len;
        match sqe.opcode & 3 {
            0b10 => self.device.push_back(Work { id, sqe, buf, is_write: false }),
            _ => self.connection.receive(id, buf),
        }
        true
    }

    fn start_waiting(&mut self) {
        while let Some((id, sqe, len)) = self.waiting.pop_front() {
            if !self.start(id, sqe, len) {
                self.waiting.push_front((id, sqe, len));
                break;
            }
        }
    }

    fn run_device(&mut self) {
        if self.device_pauses.is_some_and(|pauses| pauses.over(self.clock.at) > self.clock.at) {
            return;
        }
        for _ in 0..target_completions(self.last_len) {
            let Some(Work { id, sqe, mut buf, is_write }) = self.device.pop_front() else { return };
            self.last_len = buf.len();
            self.held_bytes -= buf.len();
            if is_write {
                self.connection.finish(id, Status::SUCCESS, 0);
            } else {
                stamp(&mut buf, number_of(&sqe));
                self.connection.send_data(id, buf.freeze());
            }
        }
    }

    fn send(&mut self, down: &mut Pipe) {
        self.is_blocked = false;
        while !self.connection.transmit().is_empty() {
            self.clock.call();
            self.calls.sends += 1;
            let mut slices = [IoSlice::new(&[]); TARGET_SEND_SLICES];
            let used = self.connection.gather(&mut slices);
            let len = down.send(self.clock.at, &slices[..used]);
            if len == 0 {
                self.is_blocked = true;
                return;
            }
            self.connection.sent(len);
        }
    }
}

/// The number of a command, from the address of its data.
fn number_of(sqe: &Sqe) -> u64 {
    sqe.slba().0 / u64::from(sqe.num_blocks())
}

/// The default limits of `dlfs serve`.
pub(crate) const MAX_TRANSFER_BYTES: u32 = 1 << 20;
pub(crate) const IN_CAPSULE_BYTES: u32 = 16 << 10;
const POOL_BYTES: usize = 64 << 20;
