//! The host's end: its connection, and the turn of `src/io/qpair/tcp` in simulated time.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use dlfs::nvme::{Sgl, Sqe};
use dlfs::tcp::Digests;
use dlfs::tcp::budget::{HOST_RECEIVE_BYTES, HOST_RECEIVE_SLICES, HOST_SEND_SLICES};
use dlfs::tcp::host::{Connection, Event, HostOptions, SCRATCH_LEN, Transfer};
use dlfs::units::{Lba, Nsid};

use super::ends::{Calls, Clock, stamp};
use super::link::{Pipe, Ps};

/// One command and the memory of its data.
pub(crate) struct Job {
    pub(crate) slba: u64,
    pub(crate) data: Vec<u8>,
}

impl AsRef<[u8]> for Job {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl AsMut<[u8]> for Job {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

/// The host's end of the connection.
pub(crate) struct Host {
    connection: Connection<Job>,
    scratch: Vec<u8>,
    pub(crate) clock: Clock,
    pub(crate) calls: Calls,
    /// Bytes received outside of their final place, headers included.
    pub(crate) scratch_bytes: u64,
    pub(crate) is_initialised: bool,
    is_blocked: bool,
}

impl Host {
    pub(crate) fn new(start: Instant, depth: u16) -> Host {
        let options = HostOptions {
            digests: Digests { header: false, data: false },
            max_outstanding: depth,
            ic_timeout: LIMIT,
            may_decline: false,
            io_timeout: LIMIT,
            least_progress_bytes: 0,
        };
        Host {
            connection: Connection::new(start, &options),
            scratch: vec![0; SCRATCH_LEN],
            clock: Clock::new(start),
            calls: Calls::default(),
            scratch_bytes: 0,
            is_initialised: false,
            is_blocked: false,
        }
    }

    pub(crate) fn set_max_in_capsule(&mut self, max_in_capsule: u32) {
        self.connection.set_max_in_capsule(max_in_capsule);
    }

    /// The time of the next turn if nothing is submitted.
    pub(crate) fn next_turn(&self, up: &Pipe, down: &Pipe) -> Option<Ps> {
        let writable = up.writable_at().filter(|_| self.is_blocked);
        let ready = down.readable_at().into_iter().chain(writable).min();
        // The first turn sends ICReq.
        let ready =
            if self.connection.wants_transmit() && !self.is_blocked { Some(0) } else { ready };
        ready.map(|at| at.max(self.clock.at))
    }

    /// Transfers bytes in both directions; finished jobs are appended to `done`.
    pub(crate) fn turn(&mut self, up: &mut Pipe, down: &mut Pipe, done: &mut Vec<Job>) {
        self.receive(down);
        self.send(up);
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Initialised => self.is_initialised = true,
                Event::Done { payload, result } => {
                    let cqe = result.expect("no command fails on a whole link");
                    assert!(cqe.status().is_success(), "{}", cqe.status());
                    done.push(payload);
                }
            }
        }
    }

    /// Takes a command; [`Host::send`] sends it.
    pub(crate) fn submit(&mut self, job: Job, is_write: bool) {
        let num_blocks = (job.data.len() / BLOCK_LEN) as u32;
        let len = job.data.len() as u32;
        let slba = Lba(job.slba * u64::from(num_blocks));
        let (sqe, transfer) = if is_write {
            let sgl = Sgl::transport(len); // the connection decides how they are transferred
            (Sqe::write(0, Nsid(1), slba, num_blocks, sgl), Transfer::Out)
        } else {
            (Sqe::read(0, Nsid(1), slba, num_blocks, len), Transfer::In)
        };
        let now = self.clock.instant();
        let taken = self.connection.submit(now, sqe, transfer, false, job);
        assert!(taken.is_ok(), "no more is submitted than the queue holds");
    }

    pub(crate) fn send(&mut self, up: &mut Pipe) {
        self.is_blocked = false;
        while self.connection.wants_transmit() {
            self.clock.call();
            self.calls.sends += 1;
            let mut slices = [IoSlice::new(&[]); HOST_SEND_SLICES];
            let used = self.connection.poll_transmit(&mut slices);
            let len = up.send(self.clock.at, &slices[..used]);
            if len == 0 {
                self.is_blocked = true;
                return;
            }
            self.connection.transmitted(self.clock.instant(), len);
        }
    }

    fn receive(&mut self, down: &mut Pipe) {
        let mut budget = HOST_RECEIVE_BYTES;
        while budget > 0 && down.readable_at().is_some_and(|at| at <= self.clock.at) {
            self.clock.call();
            self.calls.receives += 1;
            let scratch_at = self.scratch.as_ptr_range();
            let (len, asked) = {
                let mut slices: [IoSliceMut<'_>; HOST_RECEIVE_SLICES] =
                    std::array::from_fn(|_| IoSliceMut::new(&mut []));
                let used = self.connection.poll_receive(&mut self.scratch, &mut slices);
                let slices = &mut slices[..used];
                let asked: usize = slices.iter().map(|slice| slice.len()).sum();
                let len = down.receive(self.clock.at, slices);
                let mut left = len;
                for slice in slices {
                    let filled = left.min(slice.len());
                    left -= filled;
                    if scratch_at.contains(&slice.as_ptr()) {
                        self.scratch_bytes += filled as u64;
                    }
                }
                (len, asked)
            };
            let now = self.clock.instant();
            let taken = self.connection.handle_filled(now, &self.scratch, len);
            taken.expect("what the target sends is right");
            if len < asked {
                return;
            }
            budget = budget.saturating_sub(len);
        }
    }
}

/// Marks the data of a write so that the target can identify them.
pub(crate) fn mark(job: &mut Job) {
    stamp(&mut job.data, job.slba);
}

pub(crate) const BLOCK_LEN: usize = 512;

/// Longer than any simulated run.
const LIMIT: Duration = Duration::from_secs(3600);
