//! A queue pair of a controller with queues in memory: its I/Os become commands. Commands without an answer are
//! aborted, and issued again after a reset of the controller.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Drive, Reach};
use crate::qpair::{Completion, Fence, Io, IoError, IoOp, Namespace, Notice, QueuePair};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::{RetryClass, Sgl, Sqe, Status};
use dlfs_pcie::memory::window_memory;
use dlfs_pcie::{Fault, Queue, Span};

/// A queue pair with a queue of its own.
pub(super) struct PciePair {
    drive: Arc<Drive>,
    nsid: Nsid,
    namespace: Namespace,
    queue: Queue<PcieJob>,
    /// [`Drive::num_resets`] when the queue was created.
    num_resets: u64,
    /// Memory that the device reaches.
    reaches: Vec<Reach>,
    /// The version of the pools at which `reaches` was listed.
    reaches_version: u64,
    /// I/Os that are not on the queue.
    waiting: VecDeque<PcieJob>,
    /// I/Os that ended without an answer of the device.
    ended: VecDeque<Completion>,
    /// The fence of writes; `None`: no fence.
    fence: Option<Arc<Fence>>,
    /// The time of the last completion, or of the first command after none was outstanding.
    progress: Instant,
    /// The time of the next check for commands that take too long.
    next_check: Instant,
    /// The time of the last poll.
    now: Instant,
}

/// An I/O that needs a completion.
struct PcieJob {
    io: Io,
    /// The fence of a write, which must be open whenever the write is issued.
    fence: Option<Arc<Fence>>,
    /// The memory that the device uses instead of the I/O's buffer.
    bounce: Option<IoBuf>,
    /// The number of times that it was issued in vain.
    tries: u8,
}

impl PciePair {
    /// Creates a queue pair and its queue.
    pub(super) fn create(drive: Arc<Drive>, nsid: Nsid, namespace: Namespace) -> Result<PciePair> {
        if let Some(reason) = drive.why_over() {
            return Err(Error::new(ErrorKind::Disconnected, reason.to_owned()));
        }
        let mut controller = drive.controller.lock();
        let num_resets = drive.num_resets();
        let queue = controller.create_queue();
        let queue = queue.map_err(|fault| drive.error_after(&mut controller, fault))?;
        drop(controller);
        let now = Instant::now();
        Ok(PciePair {
            drive,
            nsid,
            namespace,
            queue,
            num_resets,
            reaches: Vec::new(),
            reaches_version: u64::MAX,
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
            fence: None,
            progress: now,
            next_check: now,
            now,
        })
    }

    /// Moves I/Os forward; appends at most `max` completions of the device.
    fn advance(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) {
        if self.drive.why_over().is_some() {
            return self.give_up();
        }
        if self.num_resets != self.drive.num_resets() {
            return self.rejoin();
        }
        let PciePair { queue, drive, waiting, .. } = self;
        let done_before = done.len();
        let outstanding_before = queue.outstanding();
        let polled =
            queue.poll(&*drive.bus, max, |job, end| match ended_or_again(job, end.status) {
                Ok(completion) => done.push(completion),
                Err(job) => waiting.push_back(job),
            });
        if queue.outstanding() < outstanding_before {
            self.progress = now;
        }
        if done.len() > done_before {
            self.drive.mark_alive();
        }
        match polled {
            Ok(_) if outstanding_before > 0 && now >= self.next_check => self.check_late(now),
            Ok(_) => {}
            Err(fault) => self.drive.give_up(&fault),
        }
        self.issue(now);
    }

    /// Puts waiting I/Os on the queue, and rings its doorbell.
    fn issue(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        if self.drive.why_over().is_some() || self.num_resets != self.drive.num_resets() {
            return; // the next poll handles this
        }
        if self.reaches_version != window_memory().version() {
            // Before the list is read: a later change of the list is seen the next time.
            self.reaches_version = window_memory().version();
            self.reaches = self.drive.reaches();
        }
        if self.queue.outstanding() == 0 {
            self.progress = now;
        }
        while self.queue.has_room() {
            let Some(job) = self.waiting.pop_front() else { break };
            if job.fence.as_ref().is_some_and(|fence| !fence.is_open()) {
                self.ended.push_back(job.io.end(Err(IoError::Fenced)));
                continue;
            }
            match self.with_span(job) {
                Ok((job, span)) => {
                    let sqe = self.command(&job.io);
                    self.queue.push(now, sqe, span, job);
                }
                Err(job) => {
                    self.waiting.push_front(job);
                    break;
                }
            }
        }
        if let Err(fault) = self.queue.ring(&*self.drive.bus) {
            self.drive.give_up(&fault);
        }
    }

    /// Adds the address by which the device knows the I/O's data: that of the buffer, or of bounce memory if the device
    /// does not reach the buffer or the buffer is not aligned. Returns the job unchanged if all bounce memory is in
    /// use.
    fn with_span(&self, mut job: PcieJob) -> Result<(PcieJob, Option<Span>), PcieJob> {
        if job.io.buf.is_empty() {
            return Ok((job, None));
        }
        let len = job.io.buf.len() as u32;
        let address_of =
            |bytes: &[u8]| self.reaches.iter().find_map(|reach| reach.address_of(bytes));
        let direct = address_of(&job.io.buf).filter(|address| address.is_multiple_of(DMA_ALIGN));
        if let Some(address) = direct {
            return Ok((job, Some(Span { address, len })));
        }
        if job.bounce.is_none() {
            let Some(mut bounce) = self.drive.bounce.take(job.io.buf.len()) else {
                return Err(job);
            };
            if job.io.op == IoOp::Write {
                bounce.copy_from_slice(&job.io.buf);
            }
            job.bounce = Some(bounce);
        }
        let address = address_of(job.bounce.as_deref().expect("taken above"));
        let address = address.expect(
            "checked when the drive was opened; no bounce memory is freed before it is closed",
        );
        Ok((job, Some(Span { address, len })))
    }

    /// The command of an I/O; the queue fills in its identifier and the address of its data.
    fn command(&self, io: &Io) -> Sqe {
        let num_blocks = io.buf.len() as u32 / self.namespace.block_len_bytes;
        match io.op {
            IoOp::Read => Sqe::read(0, self.nsid, io.slba, num_blocks, 0),
            IoOp::Write => Sqe::write(0, self.nsid, io.slba, num_blocks, Sgl::transport(0)),
            IoOp::Flush => Sqe::flush(0, self.nsid),
        }
    }

    /// Checks for commands that take too long, and whether the controller is still there.
    fn check_late(&mut self, now: Instant) {
        self.next_check = now + CHECK_INTERVAL;
        // Another thread uses the controller: the next check comes later.
        let Some(mut controller) = self.drive.controller.try_lock() else { return };
        let limit = self.drive.limit;
        let quiet = now.saturating_duration_since(self.progress);
        let checked = if self.drive.bus.is_wanted_back() {
            Err(Fault::WantedBack)
        } else if quiet >= QUIET {
            controller.check()
        } else {
            Ok(())
        };
        let result = checked.and_then(|()| match self.queue.overdue(now, limit) {
            None => Ok(()),
            Some(late) if late.aborting => {
                Err(Fault::TimedOut { step: "a command, and its abort", limit })
            }
            Some(late) => {
                self.queue.mark_aborting(now, late.cid);
                controller.abort(self.queue.qid(), late.cid)
            }
        });
        if let Err(fault) = result {
            self.drive.recover(&mut controller, &fault);
        }
    }

    /// Creates the queue anew after a reset, and queues again the I/Os whose commands the reset has ended. An I/O that
    /// was issued `MOST_TRIES` times fails. Does nothing while another thread uses the controller.
    fn rejoin(&mut self) {
        let Some(mut controller) = self.drive.controller.try_lock() else { return };
        let num_resets = self.drive.num_resets();
        for mut job in self.queue.drain().into_iter().rev() {
            job.tries += 1;
            if job.tries < MOST_TRIES {
                self.waiting.push_front(job);
            } else {
                let text = "the controller did not answer, also after resets";
                self.ended.push_back(job.io.end(Err(IoError::Disconnected(text.to_owned()))));
            }
        }
        match controller.attach(&mut self.queue) {
            Ok(()) => self.num_resets = num_resets,
            Err(fault) => self.drive.recover(&mut controller, &fault),
        }
    }

    /// Fails all I/Os. A device that was given up may still write to the memory of its commands.
    fn give_up(&mut self) {
        let reason = self.drive.why_over().unwrap_or_default();
        let lost = |job: PcieJob| job.io.end(Err(IoError::Disconnected(reason.to_owned())));
        self.ended.extend(self.queue.drain().into_iter().map(quarantine).map(lost));
        self.ended.extend(self.waiting.drain(..).map(lost));
    }
}

impl QueuePair for PciePair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.namespace.queue_depth).saturating_sub(self.outstanding());
        let count = room.min(pending.len());
        for io in pending.drain(..count) {
            match self.namespace.check(&io) {
                Ok(()) => {
                    let fence = self.fence.clone().filter(|_| io.op == IoOp::Write);
                    self.waiting.push_back(PcieJob { io, fence, bounce: None, tries: 0 });
                }
                Err(error) => self.ended.push_back(io.end(Err(error))),
            }
        }
        self.issue(Instant::now());
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        self.now = now;
        self.advance(now, max, done);
        let left = self.ended.len().min(max - (done.len() - before));
        done.extend(self.ended.drain(..left));
        done.len() - before
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn outstanding(&self) -> usize {
        self.queue.outstanding() + self.waiting.len() + self.ended.len()
    }

    /// The device gives no descriptor, so sleeps are short.
    fn notice(&self) -> Notice {
        Notice::Look
    }

    fn next_timeout(&self) -> Option<Instant> {
        (self.outstanding() > 0).then(|| self.now + IDLE_NAP)
    }
}

impl Drop for PciePair {
    fn drop(&mut self) {
        while self.drive.why_over().is_none() {
            let mut controller = self.drive.controller.lock();
            let exists = self.num_resets == self.drive.num_resets();
            match controller.delete_queue(&self.queue, exists) {
                Ok(()) => return, // the device has none of its commands any more
                // After a reset the queue does not exist; otherwise its number would stay in use.
                Err(fault @ Fault::TimedOut { .. }) => self.drive.recover(&mut controller, &fault),
                Err(_) => break,
            }
        }
        self.queue.drain().into_iter().map(quarantine).for_each(drop);
    }
}

/// The completion of an answered job; `Err`: the job, which is to be issued again.
fn ended_or_again(mut job: PcieJob, status: Status) -> Result<Completion, PcieJob> {
    if status.is_success() {
        if let Some(bounce) = job.bounce.take()
            && job.io.op == IoOp::Read
        {
            job.io.buf.copy_from_slice(&bounce);
        }
        return Ok(job.io.end(Ok(())));
    }
    // The aborts are ours: the command took too long.
    let may_help = status.is(Status::ABORT_REQUESTED) || status.retry_class() == RetryClass::Retry;
    job.tries += 1;
    if may_help && job.tries < MOST_TRIES {
        return Err(job);
    }
    Ok(job.io.end(Err(IoError::Status(status))))
}

/// Leaks the memory of a command, to which the device may still write, and gives the I/O other memory.
fn quarantine(mut job: PcieJob) -> PcieJob {
    let written = match job.bounce.take() {
        Some(bounce) => bounce,
        None => {
            let fresh = IoBuf::zeroed(job.io.buf.len());
            std::mem::replace(&mut job.io.buf, fresh)
        }
    };
    std::mem::forget(written);
    job
}

/// The most times that an I/O is issued.
const MOST_TRIES: u8 = 4;

/// The interval of checks for commands that take too long.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The time without a completion after which the controller's status is read.
const QUIET: Duration = Duration::from_secs(1);

/// The longest sleep of a poller while I/Os are outstanding.
const IDLE_NAP: Duration = Duration::from_micros(50);

/// The alignment of data in memory.
const DMA_ALIGN: u64 = 4;
