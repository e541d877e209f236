//! A queue pair on a controller with queues in memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Drive, Reach, error_of};
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
    queue: Queue<Job>,
    /// The number of resets when the queue was created.
    epoch: u64,
    /// Memory that the device reaches, as of this version of the pools.
    reaches: Vec<Reach>,
    version: u64,
    /// I/Os that are not on the queue, in order.
    waiting: VecDeque<Job>,
    /// I/Os that ended without the device.
    ended: VecDeque<Completion>,
    fence: Option<Arc<Fence>>,
    /// The time of the last completion, or of the first command after none was outstanding.
    progress: Instant,
    /// The time of the next look at commands that take long.
    look_at: Instant,
    /// The time of the last poll.
    now: Instant,
}

/// An I/O that needs a completion.
struct Job {
    io: Io,
    /// The memory that the device uses instead of the I/O's buffer.
    bounce: Option<IoBuf>,
    /// The times that it was issued in vain.
    tries: u8,
}

impl PciePair {
    /// Creates a queue pair and its queue.
    pub(super) fn create(drive: Arc<Drive>, nsid: Nsid, namespace: Namespace) -> Result<PciePair> {
        if let Some(reason) = drive.why_over() {
            return Err(Error::new(ErrorKind::Disconnected, reason.to_owned()));
        }
        let mut controller = drive.controller.lock();
        let epoch = drive.epoch();
        let queue = controller.create_queue().map_err(error_of)?;
        drop(controller);
        let now = Instant::now();
        Ok(PciePair {
            drive,
            nsid,
            namespace,
            queue,
            epoch,
            reaches: Vec::new(),
            version: u64::MAX,
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
            fence: None,
            progress: now,
            look_at: now,
            now,
        })
    }

    /// Moves I/Os forward; appends at most `max` completions of the device.
    fn turn(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) {
        if self.drive.why_over().is_some() {
            return self.give_up();
        }
        if self.epoch != self.drive.epoch() {
            return self.rejoin();
        }
        let PciePair { queue, drive, waiting, .. } = self;
        let before = (done.len(), queue.outstanding());
        let polled = queue.poll(&*drive.bus, max, |job, end| match judge(job, end.status) {
            Ok(completion) => done.push(completion),
            Err(job) => waiting.push_back(job),
        });
        if queue.outstanding() < before.1 {
            self.progress = now;
        }
        if done.len() > before.0 {
            self.drive.works();
        }
        match polled {
            Ok(_) if before.1 > 0 && now >= self.look_at => self.look(now),
            Ok(_) => {}
            Err(fault) => self.drive.give_up(&fault),
        }
        self.issue(now);
    }

    /// Places waiting I/Os on the queue.
    fn issue(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        if self.drive.why_over().is_some() || self.epoch != self.drive.epoch() {
            return; // the next poll sees to it
        }
        if self.version != window_memory().version() {
            // Before the list is read: what comes meanwhile is seen the next time.
            self.version = window_memory().version();
            self.reaches = self.drive.reaches();
        }
        if self.queue.outstanding() == 0 {
            self.progress = now;
        }
        while self.queue.has_room() {
            let Some(job) = self.waiting.pop_front() else { break };
            let is_write = job.io.op == IoOp::Write;
            if is_write && self.fence.as_ref().is_some_and(|fence| !fence.is_open()) {
                self.ended.push_back(job.io.end(Err(IoError::Fenced)));
                continue;
            }
            match self.place(job) {
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

    /// Finds the place of the I/O's data for the device; copies them if it does not reach the buffer. Returns the job
    /// as it is if all memory for copies is in use.
    fn place(&self, mut job: Job) -> Result<(Job, Option<Span>), Job> {
        if job.io.buf.is_empty() {
            return Ok((job, None));
        }
        let len = job.io.buf.len() as u32;
        let reach = |bytes: &[u8]| self.reaches.iter().find_map(|reach| reach.address_of(bytes));
        let direct = reach(&job.io.buf).filter(|address| address.is_multiple_of(DMA_ALIGN));
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
        let address = reach(job.bounce.as_deref().expect("taken above"));
        // Looked up when the drive was opened, and never freed before it.
        let address = address.expect("the device reaches the memory for copies");
        Ok((job, Some(Span { address, len })))
    }

    fn command(&self, io: &Io) -> Sqe {
        let num_blocks = io.buf.len() as u32 / self.namespace.block_len_bytes;
        match io.op {
            IoOp::Read => Sqe::read(0, self.nsid, io.slba, num_blocks, 0),
            IoOp::Write => Sqe::write(0, self.nsid, io.slba, num_blocks, Sgl::transport(0)),
            IoOp::Flush => Sqe::flush(0, self.nsid),
        }
    }

    /// Looks for commands that take too long, and whether the controller is still there.
    fn look(&mut self, now: Instant) {
        self.look_at = now + LOOK_INTERVAL;
        // Another thread is at the controller: later.
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
        let looked = checked.and_then(|()| match self.queue.overdue(now, limit) {
            None => Ok(()),
            Some(late) if late.aborting => {
                Err(Fault::TimedOut { step: "a command, and its abort", limit })
            }
            Some(late) => {
                self.queue.mark_aborting(now, late.cid);
                controller.abort(self.queue.qid(), late.cid)
            }
        });
        if let Err(fault) = looked {
            self.drive.recover(&mut controller, &fault);
        }
    }

    /// Creates the queue anew after a reset, which has ended all commands without an answer.
    fn rejoin(&mut self) {
        let Some(mut controller) = self.drive.controller.try_lock() else { return };
        let epoch = self.drive.epoch();
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
            Ok(()) => self.epoch = epoch,
            Err(fault) => self.drive.recover(&mut controller, &fault),
        }
    }

    /// Fails all I/Os. A device that was given up may still write to the memory of its commands.
    fn give_up(&mut self) {
        let reason = self.drive.why_over().unwrap_or_default();
        let lost = |job: Job| job.io.end(Err(IoError::Disconnected(reason.to_owned())));
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
                Ok(()) => self.waiting.push_back(Job { io, bounce: None, tries: 0 }),
                Err(error) => self.ended.push_back(io.end(Err(error))),
            }
        }
        self.issue(Instant::now());
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        self.now = now;
        self.turn(now, max, done);
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
        if self.drive.why_over().is_none() {
            let mut controller = self.drive.controller.lock();
            let exists = self.epoch == self.drive.epoch();
            if controller.delete_queue(&self.queue, exists).is_ok() {
                return; // the device has no command any more
            }
        }
        self.queue.drain().into_iter().map(quarantine).for_each(drop);
    }
}

/// The completion of an answered job, or the job, to be issued again.
fn judge(mut job: Job, status: Status) -> Result<Completion, Job> {
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

/// Leaks the memory of a command that the device may still write to, and gives the I/O other memory.
fn quarantine(mut job: Job) -> Job {
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

/// The interval of looks at commands that take long.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The time without a completion after which the controller's status is read.
const QUIET: Duration = Duration::from_secs(1);

/// The longest sleep of a poller while I/Os are outstanding.
const IDLE_NAP: Duration = Duration::from_micros(50);

/// The alignment of data in memory.
const DMA_ALIGN: u64 = 4;
