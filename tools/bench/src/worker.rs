//! The thread of one block job: checks the job against its target, then fills the queue, submits, polls and accounts in
//! a loop.
//!
//! The loop reads the clock at most twice per pass: once after submitting a burst, once after completions
//! have arrived or a wait has ended. The submission latency of an I/O is that of its burst; the completion latency
//! ends with the poll that returned the I/O, which is when a caller could use the data. The loop allocates only for
//! figures and for the list of blocks to verify, which grow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dlfs::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs::qpair::readiness::Readiness;
use dlfs::qpair::{Completion, Io, IoError, IoOp, Notice, QueuePair};
use dlfs::units::Lba;

use crate::content::Content;
use crate::engine::Target;
use crate::job::{Engine, Job};
use crate::positions::Positions;
use crate::random::derive;
use crate::rates::Rates;
use crate::stats::{CpuUse, RATE_INTERVAL, Stats};
use crate::values::Size;

/// An outstanding I/O, or a free buffer.
#[derive(Default)]
struct Slot {
    /// The times at which the I/O was prepared and submitted, in nanoseconds since the start of the run.
    began: u64,
    issued: u64,
    /// The position and the length on the target, in bytes.
    offset: u64,
    len: u64,
    /// 0: read; 1: write; [`FLUSH`].
    direction: usize,
    /// True if the bytes are to be verified.
    check: bool,
    /// The buffer, unless the queue pair has it.
    buf: IoBuf,
    /// The rest of the buffer, beyond this I/O.
    rest: IoBuf,
}

/// The state of a job's thread. Times in `u64` are in nanoseconds since the start of the run.
pub(crate) struct Worker {
    job: Arc<Job>,
    /// Set when a signal ends the run.
    stop: Arc<AtomicBool>,
    /// The name of the target, for messages.
    name: String,
    pair: Box<dyn QueuePair>,
    /// The length of the target's blocks in bytes.
    block: u64,
    readiness: Readiness,
    positions: Positions,
    content: Content,
    rates: Rates,
    /// The direction that was chosen for the next I/O, if a rate delays that I/O.
    chosen: Option<usize>,
    /// As many slots as the queue depth, and the free ones. A slot's index is the tag of its I/O.
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// I/Os that the queue pair has not taken yet.
    pending: VecDeque<Io>,
    /// Slots of `pending`, in order.
    burst: Vec<usize>,
    done: Vec<Completion>,
    /// I/Os that the queue pair has taken and not completed.
    in_flight: usize,
    /// The start of the run of all jobs.
    run_start: Instant,
    /// The last reading of the clock, and the same as nanoseconds since the start of the run.
    at: Instant,
    now: u64,
    /// The start of counting.
    begin: u64,
    /// The time at which the job stops issuing I/Os; `u64::MAX`: never.
    end: u64,
    /// The bytes and the I/Os that the job may still issue; `u64::MAX`: without limit.
    bytes_left: u64,
    ios_left: u64,
    /// Set when the job issues no more I/Os: after an error, at a signal, or at `end`.
    stopped: bool,
    writes_since_flush: u64,
    flush_is_due: bool,
    /// Offset and length of each written block, if blocks are read back at the end.
    written: Option<Vec<(u64, u64)>>,
    stats: Stats,
    /// The end of the interval of rates, and the totals at its start.
    rates_at: u64,
    totals_before: [(u64, u64); 2],
    last_completion: u64,
}

impl Worker {
    /// The worker of the `number`th clone of `job`.
    ///
    /// # Errors
    /// The job does not suit the target, a queue pair cannot be opened, or there is no memory for the buffers.
    pub(crate) fn new(
        job: Arc<Job>,
        number: u64,
        seed: u64,
        target: &Target,
        stop: Arc<AtomicBool>,
        run_start: Instant,
    ) -> Result<Worker, String> {
        check_limits(&job, target)?;
        let (begin, len) = region(&job, number, target)?;
        let mut pair = target.open_pair()?;
        let slots = slots(&job)?;
        let depth = slots.len();
        let readiness = Readiness::new().map_err(|error| error.to_string())?;
        pair.register(&readiness.registry(0));
        let bytes = job.io_size.map_or(len, |size| size.of(len)).saturating_mul(job.loops);
        let content = Content::new(&job, job.randseed.unwrap_or(DEFAULT_SEED));
        let is_read_back = job.do_verify && job.rw.writes() && content.verifies();
        Ok(Worker {
            name: target.name.clone(),
            block: u64::from(pair.namespace().block_len_bytes),
            pair,
            readiness,
            positions: Positions::new(&job, begin, len, seed),
            content,
            rates: Rates::new(&job),
            chosen: None,
            slots,
            free: (0..depth).rev().collect(),
            pending: VecDeque::with_capacity(depth),
            burst: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            in_flight: 0,
            run_start,
            at: run_start,
            now: 0,
            begin: 0,
            end: u64::MAX,
            bytes_left: if job.time_based { u64::MAX } else { bytes },
            ios_left: job.number_ios.unwrap_or(u64::MAX),
            stopped: false,
            writes_since_flush: 0,
            flush_is_due: false,
            written: is_read_back.then(Vec::new),
            stats: Stats::default(),
            rates_at: 0,
            totals_before: [(0, 0); 2],
            last_completion: 0,
            stop,
            job,
        })
    }

    /// Fills the buffers, waits for `start`, and runs the job to its end.
    pub(crate) fn run(mut self, start: impl FnOnce()) -> Stats {
        self.slots.iter_mut().for_each(|slot| self.content.prepare(&mut slot.buf));
        start();
        self.read_clock();
        self.rates.start(self.now);
        let ramp_end = self.now + nanoseconds(self.job.ramp_time);
        self.end = ramp_end.saturating_add(self.job.runtime.map_or(u64::MAX, nanoseconds));
        let mut is_ramp = !self.job.ramp_time.is_zero();
        let mut cpu = self.start_counting();
        while self.pass() {
            if is_ramp && self.now >= ramp_end && self.stats.errors == 0 {
                is_ramp = false;
                cpu = self.start_counting();
            }
        }
        if self.job.end_fsync && self.stats.errors == 0 {
            self.push(FLUSH, 0, 0, false);
            self.drain();
        }
        self.finish_counting(cpu);
        if self.stats.errors == 0 {
            self.read_back();
        }
        self.stats.ended(self.run_start.elapsed());
        self.stats
    }

    /// One pass of the loop; `false` at the end.
    fn pass(&mut self) -> bool {
        self.stopped |= self.stop.load(Ordering::Relaxed) || self.now >= self.end;
        let wait_until = if self.stopped { u64::MAX } else { self.fill() };
        if self.exchange() {
            return true;
        }
        if self.in_flight == 0 {
            let spent = self.bytes_left == 0 || self.ios_left == 0;
            if self.stopped || (spent && !self.flush_is_due) {
                return false;
            }
        }
        self.wait(wait_until);
        self.append_rates();
        true
    }

    /// Prepares I/Os while there is room. Returns the time when the next I/O may be issued, if a rate delays it;
    /// otherwise `u64::MAX`.
    fn fill(&mut self) -> u64 {
        while !self.free.is_empty() {
            if std::mem::take(&mut self.flush_is_due) {
                self.push(FLUSH, 0, 0, false);
                continue;
            }
            if self.bytes_left == 0 || self.ios_left == 0 {
                break;
            }
            let drawn = self.chosen.take().unwrap_or_else(|| self.positions.direction());
            let (direction, due) = self.rates.choose(drawn, self.now);
            if due > self.now {
                self.chosen = Some(direction);
                return due;
            }
            self.issue(direction);
        }
        u64::MAX
    }

    /// Prepares the next I/O of a direction.
    #[inline]
    fn issue(&mut self, direction: usize) {
        let (offset, len) = self.positions.next_of(direction);
        self.rates.count_issued(direction, self.now, len);
        if self.bytes_left != u64::MAX {
            self.bytes_left = self.bytes_left.saturating_sub(len);
        }
        self.ios_left -= 1;
        let check = direction == 0 && !self.job.rw.writes();
        self.push(direction, offset, len, check);
        if direction == 1 {
            if let Some(written) = &mut self.written {
                written.push((offset, len));
            }
            self.writes_since_flush += 1;
            if self.writes_since_flush == self.job.fsync {
                (self.writes_since_flush, self.flush_is_due) = (0, true);
            }
        }
    }

    /// Adds one I/O to the pending ones; there must be a free slot.
    #[inline]
    fn push(&mut self, direction: usize, offset: u64, len: u64, check: bool) {
        let number = self.free.pop().expect("a slot for each place in the queue");
        let slot = &mut self.slots[number];
        let mut buf = std::mem::take(&mut slot.buf);
        if buf.len() as u64 != len {
            slot.rest = buf.split_off(len as usize);
        }
        (slot.began, slot.offset, slot.len) = (self.now, offset, len);
        (slot.direction, slot.check) = (direction, check);
        let op = match direction {
            0 => IoOp::Read,
            1 => {
                self.content.stamp(offset, &mut buf);
                IoOp::Write
            }
            _ => IoOp::Flush,
        };
        let slba = Lba(if self.block == 1 { offset } else { offset / self.block });
        self.pending.push_back(Io { op, slba, buf, tag: number as u64 });
        self.burst.push(number);
    }

    /// Submits, polls and accounts; `false` if nothing completed.
    fn exchange(&mut self) -> bool {
        if !self.pending.is_empty() {
            self.submit();
        }
        self.readiness.look(|_| {}); // notes ready descriptors; the pair is polled anyway
        let came = self.pair.poll(self.at, usize::MAX, &mut self.done) > 0;
        if came {
            self.account();
        }
        came
    }

    /// Submits pending I/Os.
    fn submit(&mut self) {
        let taken = self.pair.submit(&mut self.pending);
        if taken > 0 {
            self.in_flight += taken;
            self.stats.depths.submitted(taken, self.in_flight);
            self.read_clock();
            for number in self.burst.drain(..taken) {
                self.slots[number].issued = self.now;
            }
        }
    }

    /// Sleeps until a completion arrives, but at most [`MAX_SLEEP`], and not past `until`, the end of the job or the
    /// queue pair's timeout. Spins once instead if less than [`SLEEP_MARGIN`] is left; or if I/O is
    /// outstanding and the last completion is recent, the job has `busy_poll`, or the engine gives no events.
    fn wait(&mut self, until: u64) {
        let is_busy = self.in_flight > 0;
        let idle = self.now.saturating_sub(self.last_completion.max(self.begin));
        let spins = self.job.busy_poll || self.pair.notice() == Notice::Poll || idle < SPIN_NS;
        let until = if self.stopped { u64::MAX } else { until.min(self.end) };
        let mut left = Duration::from_nanos(until.saturating_sub(self.now));
        if let Some(timeout) = self.pair.next_timeout() {
            left = left.min(timeout.saturating_duration_since(self.at));
        }
        match left.min(MAX_SLEEP).checked_sub(SLEEP_MARGIN) {
            Some(left) if !(is_busy && spins) => self.readiness.sleep(left),
            _ => std::hint::spin_loop(),
        }
        self.read_clock();
    }

    /// Reads the clock into `at` and `now`.
    #[inline]
    fn read_clock(&mut self) {
        self.at = Instant::now();
        self.now = nanoseconds(self.at.duration_since(self.run_start));
    }

    /// Reads back the written blocks, and verifies them. These reads count as the job's reads only if it had
    /// no other reads.
    fn read_back(&mut self) {
        let Some(mut blocks) = self.written.take() else { return };
        blocks.sort_unstable();
        blocks.dedup();
        let begin = self.now;
        let reads = self.job.rw.reads().then(|| self.stats.directions[0].clone());
        self.end = u64::MAX;
        for (offset, len) in blocks {
            while self.free.is_empty() {
                self.step();
            }
            if self.stats.errors > 0 || self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.push(0, offset, len, true);
            if self.pending.len() >= self.slots.len().div_ceil(2) {
                self.step();
            }
        }
        self.drain();
        let ms = (self.now - begin).div_ceil(1_000_000).max(1);
        self.stats.directions[0].runtime_ms = ms;
        if let Some(reads) = reads {
            self.stats.directions[0] = reads;
        }
    }

    /// Waits for all outstanding I/Os.
    fn drain(&mut self) {
        while self.in_flight > 0 || !self.pending.is_empty() {
            self.step();
        }
    }

    /// Waits until something completes, or for at most [`MAX_SLEEP`].
    fn step(&mut self) {
        if !self.exchange() {
            self.wait(u64::MAX);
        }
    }

    /// Starts counting now, and returns the CPU use so far; after the ramp it starts a second time.
    fn start_counting(&mut self) -> CpuUse {
        self.begin = self.now;
        self.rates_at = self.now + nanoseconds(RATE_INTERVAL);
        self.totals_before = [(0, 0); 2];
        self.stats = Stats::default();
        self.stats.counts_after_ms = self.now / 1_000_000;
        CpuUse::of_thread()
    }

    /// Processes the completions of a poll.
    fn account(&mut self) {
        self.read_clock();
        self.last_completion = self.now;
        let mut done = std::mem::take(&mut self.done);
        self.in_flight -= done.len();
        self.stats.depths.completed(done.len());
        for completion in done.drain(..) {
            self.complete(completion);
        }
        self.done = done;
        self.append_rates();
    }

    /// Takes back the slot of a completed I/O, and counts it.
    #[inline]
    fn complete(&mut self, completion: Completion) {
        let number = completion.tag as usize; // a tag is the index of a slot
        let slot = &mut self.slots[number];
        slot.buf = completion.buf;
        if !slot.rest.is_empty() {
            let rest = std::mem::take(&mut slot.rest);
            slot.buf.unsplit(rest).expect("the two parts of one buffer");
        }
        self.free.push(number);
        if let Err(error) = completion.result {
            if matches!(error, IoError::Short { .. }) {
                self.stats.directions[slot.direction.min(1)].short_ios += 1;
            }
            let offset = slot.offset;
            return self.fail(errno_of(&error), offset, &error.to_string());
        }
        let [slat, clat, lat] =
            [slot.issued - slot.began, self.now - slot.issued, self.now - slot.began];
        if slot.direction == FLUSH {
            return self.stats.sync.count(lat);
        }
        let stats = &mut self.stats.directions[slot.direction];
        stats.ios += 1;
        stats.bytes = stats.bytes.saturating_add(slot.len); // the null engine moves 2^64 bytes in an hour
        stats.slat.count(slat);
        stats.clat.count(clat);
        stats.lat.count(lat);
        if slot.check {
            self.check(number);
        }
    }

    /// Verifies the bytes of a slot, if the job verifies at all.
    fn check(&mut self, number: usize) {
        if !self.content.verifies() {
            return;
        }
        let slot = &self.slots[number];
        match self.content.check(slot.offset, &slot.buf[..slot.len as usize]) {
            Ok(()) => self.stats.verified += 1,
            Err((offset, what)) => self.fail(libc::EILSEQ, offset, &format!("verify: {what}")),
        }
    }

    /// Counts an error, which ends the job.
    fn fail(&mut self, errno: i32, offset: u64, what: &str) {
        self.stats.failed(errno, || format!("{} at offset {offset}: {what}", self.name));
        self.stopped = true;
    }

    /// Appends the rates if an interval has passed; called in each pass of the loop.
    #[inline]
    fn append_rates(&mut self) {
        if self.now >= self.rates_at {
            let every = nanoseconds(RATE_INTERVAL);
            let passed = self.now - (self.rates_at - every);
            let totals = self.stats.totals();
            let before = std::mem::replace(&mut self.totals_before, totals);
            for (direction, before) in self.stats.directions.iter_mut().zip(before) {
                direction.append_rates(before, passed as f64 / 1e9);
            }
            self.rates_at = self.now + every;
        }
    }

    /// Ends counting, which began with the CPU use `cpu`.
    fn finish_counting(&mut self, cpu: CpuUse) {
        self.read_clock();
        let since = self.now - self.begin;
        self.stats.set_runtime(since.div_ceil(1_000_000).max(1)); // at least a millisecond, as in fio
        self.stats.cpu = CpuUse::of_thread().since(cpu);
    }
}

/// A time in nanoseconds; the sum of a few times from options is below 2^64.
fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The direction of a flush.
const FLUSH: usize = 2;
/// The time after the last completion for which a thread spins before it sleeps.
const SPIN_NS: u64 = 20_000;
/// Limit of a sleep, so that signals and the end are noticed.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// A sleep ends this time before the wait does, since the kernel wakes a thread late; the thread spins for the rest.
const SLEEP_MARGIN: Duration = Duration::from_micros(60);

/// The seed of everything random in the `number`th clone of job `index`.
pub(crate) fn seed_of(job: &Job, index: u64, number: u64) -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let by_default = if job.randrepeat { DEFAULT_SEED } else { since_1970.as_nanos() as u64 };
    let base = job.randseed.unwrap_or(by_default);
    derive(base, index << 16 | number)
}

/// The region of `target` that the `number`th clone works on: begin and length in bytes.
///
/// # Errors
/// A sentence with the job's demand and the target's capacity.
fn region(job: &Job, number: u64, target: &Target) -> Result<(u64, u64), String> {
    let name = &target.name;
    let has = target.namespace.len_bytes();
    let align = u64::from(target.namespace.block_len_bytes);
    let begin = (number.checked_mul(job.offset_increment.of(has)))
        .and_then(|more| job.offset.of(has).checked_add(more))
        .and_then(|begin| begin.checked_next_multiple_of(align))
        .ok_or_else(|| format!("{name}: the offset is past 2^64 bytes"))?;
    let rest = has.saturating_sub(begin);
    let wanted = match job.size {
        None => rest,
        Some(Size::Bytes(bytes)) => bytes,
        Some(percent) => percent.of(has).min(rest),
    };
    if begin.checked_add(wanted).is_none_or(|end| end > has) {
        return Err(format!(
            "{name} has {has} bytes; size={wanted} from offset {begin} ends beyond it"
        ));
    }
    let (min, max) = job.block_range();
    let len = wanted / min * min;
    if len < max {
        return Err(format!(
            "{name}: {wanted} bytes from offset {begin} are less than one block of {max}"
        ));
    }
    Ok((begin, len))
}

/// Refuses blocks and depths that the target does not support.
fn check_limits(job: &Job, Target { name, namespace, .. }: &Target) -> Result<(), String> {
    let block = u64::from(namespace.block_len_bytes);
    if let Some(size) = job.block_sizes().iter().find(|size| !size.is_multiple_of(block)) {
        return Err(format!(
            "{name} has blocks of {block} bytes, and bs={size} is not a multiple of them"
        ));
    }
    let (_, max) = job.block_range();
    let most = namespace.max_transfer_bytes;
    if max > most.into() {
        return Err(format!("{name} takes {most} bytes at a time, bs is {max}"));
    }
    let depth = job.iodepth;
    let most = namespace.queue_depth;
    if depth > most.into() {
        let is_remote = namespace.engine.starts_with("tcp");
        let longer = if is_remote { "; queue_size= asks for a longer queue" } else { "" };
        return Err(format!("{name} takes {most} I/Os at a time, iodepth is {depth}{longer}"));
    }
    Ok(())
}

/// One buffer for each outstanding I/O.
fn slots(job: &Job) -> Result<Vec<Slot>, String> {
    let (_, max) = job.block_range();
    let depth = job.iodepth as usize;
    let slot_len_bytes = (max as usize).next_multiple_of(4096);
    let bytes = slot_len_bytes.saturating_mul(depth);
    let huge_pages = if job.ioengine == Engine::Null { HugePages::Off } else { HugePages::Auto };
    let pool = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages })
        .map_err(|error| format!("no memory for iodepth times bs: {}", error.report()))?;
    let slot = |_| Slot { buf: pool.take(max as usize).unwrap_or_default(), ..Slot::default() };
    let slots: Vec<Slot> = (0..depth).map(slot).collect();
    if slots.iter().all(|slot| slot.buf.len() as u64 == max) {
        Ok(slots)
    } else {
        Err("no memory for iodepth times bs".to_owned())
    }
}

/// The seed if the user gives none: the same in every run, as in fio. With `randrepeat=0`, only the contents of blocks
/// are generated from it.
const DEFAULT_SEED: u64 = 0x89;

/// The errno that fio would show for this failure.
fn errno_of(error: &IoError) -> i32 {
    match error {
        IoError::Os(errno) => *errno,
        IoError::Disconnected(_) => libc::ENOTCONN,
        IoError::DataDigest => libc::EILSEQ,
        IoError::Invalid(_) => libc::EINVAL,
        _ => libc::EIO,
    }
}
