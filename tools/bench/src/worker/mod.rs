//! The loop of one job's thread: fill the queue, submit, poll, account.
//!
//! It reads the clock twice per turn, not twice per I/O: once after submitting a burst, once after
//! completions have arrived. An I/O's submission latency is that of its burst; its completion
//! latency ends with the poll that returned it, which is when a caller could use it. Nothing is
//! allocated.
//!
//! `setup` creates what the loop uses, `account` processes completions.

mod account;
pub(crate) mod setup;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlfs::buf::IoBuf;
use dlfs::qpair::readiness::Readiness;
use dlfs::qpair::{Completion, Io, IoOp, Notice, QueuePair};
use dlfs::units::Lba;

use crate::options::Job;
use crate::options::job::Engine;
use crate::stats::log::{Kind, Log};
use crate::stats::{PercentileOptions, Stats, cpu::CpuClock};
use crate::workload::content::Content;
use crate::workload::positions::Positions;
use crate::workload::rate::Rates;

/// Shared by the manager and a job's thread.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The job must end.
    pub(crate) stop: AtomicBool,
    /// The figures so far are requested.
    pub(crate) want_snapshot: AtomicBool,
    pub(crate) snapshot: Mutex<Option<Box<Snapshot>>>,
    /// Totals of both directions, updated every turn.
    pub(crate) ios: [AtomicU64; 2],
    pub(crate) bytes: [AtomicU64; 2],
    /// When counting began, in nanoseconds of the run plus one; 0 before that.
    pub(crate) began_ns: AtomicU64,
    /// The bytes that the job will move, if known.
    pub(crate) goal_bytes: AtomicU64,
    pub(crate) ended: AtomicBool,
}

/// The figures so far, and those of samples if there are any.
pub(crate) type Snapshot = (Stats, Option<crate::samples::SampleFigures>);

impl Shared {
    /// Publishes the figures so far if they are requested.
    pub(crate) fn tell(&self, figures: impl FnOnce() -> Snapshot) {
        if self.want_snapshot.load(Ordering::Relaxed) {
            let told = Some(Box::new(figures()));
            *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = told;
            self.want_snapshot.store(false, Ordering::Release);
        }
    }
}

/// The result of a job's thread.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stats: Stats,
    pub(crate) logs: Vec<Log>,
    /// An errno of the operating system; 0 on success.
    pub(crate) error: i32,
    pub(crate) message: Option<String>,
    pub(crate) began_ms: u64,
    pub(crate) samples: Option<crate::samples::SampleFigures>,
}

/// One target of a job, with its queue pair.
pub(crate) struct Lane {
    name: String,
    pair: Box<dyn QueuePair>,
    block: u64,
    positions: Positions,
    /// The initial positions, for reading back what was written.
    replay: Positions,
    content: Content,
    pending: VecDeque<Io>,
    /// Slots of `pending`, in order.
    burst: Vec<u32>,
    in_flight: usize,
    /// A chosen direction that must wait for its rate.
    chosen: Option<usize>,
    /// The direction of each I/O so far, if rates may change the chosen one and written blocks are
    /// read back.
    directions: Option<Vec<u8>>,
    issued: u64,
    needs_poll: bool,
}

/// An outstanding I/O, or a free buffer.
#[derive(Default)]
pub(crate) struct Slot {
    began: u64,
    issued: u64,
    offset: u64,
    len: u64,
    lane: u32,
    direction: u8,
    /// True if its bytes are to be verified.
    check: bool,
    buf: IoBuf,
    /// The rest of the buffer, which this I/O does not use.
    rest: IoBuf,
}

pub(crate) struct Worker {
    job: Arc<Job>,
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    readiness: Readiness,
    next_lane: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    done: Vec<Completion>,
    epoch: Instant,
    /// The last reading of the clock, and the same in nanoseconds of the run.
    at: Instant,
    now: u64,
    begin: u64,
    depth: usize,
    in_flight: usize,
    goes: Goes,
    think: Think,
    rates: Rates,
    writes_since_flush: u64,
    /// The lane to flush before anything else is issued.
    flush_due: Option<usize>,
    stats: Stats,
    samples: account::Samples,
    logs: Vec<Log>,
    ramping: bool,
    error: i32,
    message: Option<String>,
}

/// The progress of the job.
struct Goes {
    bytes_left: u64,
    ios_left: u64,
    end_ns: u64,
    stopped: bool,
}

/// Pauses after blocks.
#[derive(Default)]
struct Think {
    after: u64,
    issued: u64,
    until_ns: u64,
    due: bool,
}

impl Worker {
    /// # Errors
    /// Those of [`setup`].
    pub(crate) fn new(
        job: Arc<Job>,
        shared: Arc<Shared>,
        mut lanes: Vec<Lane>,
        epoch: Instant,
    ) -> Result<Worker, String> {
        let slots = setup::slots(&job)?;
        let readiness = Readiness::new().map_err(|error| error.to_string())?;
        for (number, lane) in lanes.iter_mut().enumerate() {
            lane.pair.register(&readiness.registry(number));
        }
        let range: u64 = lanes.iter().map(|lane| lane.positions.len()).sum();
        let bytes = job.io_size.map_or(range, |size| size.of(range)).saturating_mul(job.loops);
        let endless = job.time_based && job.runtime_us.is_some();
        let goes = Goes {
            bytes_left: if endless { u64::MAX } else { bytes },
            ios_left: job.number_ios.unwrap_or(u64::MAX),
            end_ns: u64::MAX,
            stopped: false,
        };
        shared.goal_bytes.store(if endless { 0 } else { bytes }, Ordering::Relaxed);
        let wanted = PercentileOptions { slat: job.slat_percentiles, lat: job.lat_percentiles };
        Ok(Worker {
            free: (0..slots.len() as u32).rev().collect(),
            done: Vec::with_capacity(slots.len()),
            slots,
            shared,
            lanes,
            readiness,
            next_lane: 0,
            epoch,
            at: epoch,
            now: 0,
            begin: 0,
            depth: job.depth() as usize,
            in_flight: 0,
            goes,
            think: Think {
                after: if job.thinktime_us > 0 { job.thinktime_blocks } else { 0 },
                ..Think::default()
            },
            rates: Rates::new(&job),
            writes_since_flush: 0,
            flush_due: None,
            stats: Stats::new(wanted),
            samples: account::Samples::new(&job),
            logs: logs_of(&job),
            ramping: job.ramp_time_us > 0,
            error: 0,
            message: None,
            job,
        })
    }

    /// Fills the buffers, waits for `start`, and runs the job to its end.
    pub(crate) fn run(mut self, start: impl FnOnce()) -> Outcome {
        if let Some(lane) = self.lanes.first_mut() {
            self.slots.iter_mut().for_each(|slot| lane.content.prepare(&mut slot.buf));
        }
        start();
        self.read_clock();
        let start_ns = self.now;
        self.begin = start_ns;
        self.rates.start(start_ns);
        self.shared.began_ns.store(start_ns + 1, Ordering::Relaxed);
        let mut cpu = CpuClock::of_thread();
        let ramp_end = start_ns + self.job.ramp_time_us * 1000;
        let runtime_ns = self.job.runtime_us.map_or(u64::MAX, |us| us * 1000);
        self.goes.end_ns = ramp_end.saturating_add(runtime_ns);
        self.start_counting();
        while self.turn() {
            if self.ramping && self.now >= ramp_end {
                self.ramping = false;
                self.stats.reset();
                self.logs.iter_mut().for_each(Log::reset);
                self.start_counting();
                cpu = CpuClock::of_thread();
            }
        }
        if self.job.end_fsync && self.error == 0 {
            self.flush_all();
        }
        self.finish_counting();
        self.stats.cpu = cpu.used(self.now.saturating_sub(self.begin) as f64 / 1e9);
        let logs = std::mem::take(&mut self.logs);
        let verify = self.job.do_verify && self.job.pattern.writes;
        if verify && self.lanes.iter().any(|lane| lane.content.verifies()) && self.error == 0 {
            self.read_again();
        }
        self.publish();
        Outcome {
            began_ms: self.begin / 1_000_000,
            stats: self.stats,
            logs,
            error: self.error,
            message: self.message,
            samples: None,
        }
    }

    /// One turn of the loop; `false` at the end.
    fn turn(&mut self) -> bool {
        if self.shared.stop.load(Ordering::Relaxed) || self.now >= self.goes.end_ns {
            self.goes.stopped = true;
        }
        let wait_until = if self.goes.stopped { u64::MAX } else { self.fill() };
        self.submit();
        self.poll();
        if self.has_enough() {
            self.account();
            return true;
        }
        if self.in_flight == 0 {
            let spent = self.goes.bytes_left == 0 || self.goes.ios_left == 0;
            if self.goes.stopped || (spent && self.flush_due.is_none()) {
                return false;
            }
            self.sleep_until(wait_until);
        } else {
            self.wait_for_completions(wait_until);
        }
        self.at_rest();
        true
    }

    /// Prepares I/Os while there is room; returns when the next one may be issued, if a rate delays
    /// it.
    fn fill(&mut self) -> u64 {
        let room = self.depth.saturating_sub(self.in_flight);
        if self.think.after > 0 && !self.may_think_on() {
            return self.think.until_ns;
        }
        let mut made = 0;
        let room = match self.job.batch_submit {
            0 => room,
            most => room.min(most as usize),
        };
        while made < room {
            if let Some(index) = self.flush_due.take() {
                self.push(index, FLUSH, 0, 0, false);
                made += 1;
                continue;
            }
            if self.goes.bytes_left == 0 || self.goes.ios_left == 0 {
                break;
            }
            let index = self.pick_lane();
            let lane = &mut self.lanes[index];
            let direction = match lane.chosen.take() {
                Some(direction) => direction,
                None => lane.positions.direction(),
            };
            let (direction, due_ns) = self.rates.choose(direction, self.now);
            if due_ns > self.now {
                lane.chosen = Some(direction);
                return due_ns;
            }
            let block = lane.positions.next_of(direction);
            lane.issued += 1;
            if let Some(directions) = &mut lane.directions {
                directions.push(direction as u8);
            }
            self.rates.went(direction, self.now, block.len);
            self.goes.bytes_left = match self.goes.bytes_left {
                u64::MAX => u64::MAX,
                left => left.saturating_sub(block.len),
            };
            self.goes.ios_left -= 1;
            let check = direction == 0 && !self.job.pattern.writes;
            self.push(index, direction as u8, block.offset, block.len, check);
            made += 1;
            if self.job.fsync > 0 && direction == 1 {
                self.writes_since_flush += 1;
                if self.writes_since_flush >= self.job.fsync {
                    (self.writes_since_flush, self.flush_due) = (0, Some(index));
                }
            }
            if self.think.after > 0 {
                self.think.issued += 1;
                if self.think.issued >= self.think.after {
                    (self.think.issued, self.think.due) = (0, true);
                    break;
                }
            }
        }
        u64::MAX
    }

    /// Returns whether no pause is due or under way; a pause begins when no I/O is outstanding.
    fn may_think_on(&mut self) -> bool {
        if self.think.due {
            if self.in_flight > 0 {
                self.think.until_ns = u64::MAX;
                return false;
            }
            self.think.due = false;
            self.think.until_ns = self.now + self.job.thinktime_us * 1000;
        }
        if self.think.until_ns != u64::MAX && self.now < self.think.until_ns {
            return false;
        }
        true
    }

    #[inline]
    fn pick_lane(&mut self) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        if let Some(waiting) = self.lanes.iter().position(|lane| lane.chosen.is_some()) {
            return waiting; // for its rate
        }
        self.next_lane = (self.next_lane + 1) % self.lanes.len();
        self.next_lane
    }

    /// Adds one I/O to its lane; there must be a free slot.
    #[inline]
    fn push(&mut self, index: usize, direction: u8, offset: u64, len: u64, check: bool) {
        let number = self.free.pop().expect("a slot for each place in the queue");
        let slot = &mut self.slots[number as usize];
        let lane = &mut self.lanes[index];
        let mut buf = std::mem::take(&mut slot.buf);
        if buf.len() as u64 != len {
            slot.rest = buf.split_off(len as usize);
        }
        (slot.began, slot.offset, slot.len) = (self.now, offset, len);
        (slot.lane, slot.direction, slot.check) = (index as u32, direction, check);
        let op = match direction {
            0 => IoOp::Read,
            1 => {
                lane.content.stamp(offset, &mut buf);
                IoOp::Write
            }
            _ => IoOp::Flush,
        };
        let slba = Lba(if lane.block == 1 { offset } else { offset / lane.block });
        lane.pending.push_back(Io { op, slba, buf, tag: u64::from(number) });
        lane.burst.push(number);
    }

    fn submit(&mut self) {
        let mut any = false;
        for lane in &mut self.lanes {
            if !lane.pending.is_empty() {
                let taken = lane.pair.submit(&mut lane.pending);
                lane.in_flight += taken;
                self.in_flight += taken;
                any |= taken > 0;
                if taken > 0 {
                    self.stats.depths.submitted(taken, self.in_flight);
                }
            }
        }
        if !any {
            return;
        }
        if !self.job.disable_slat {
            self.read_clock();
        }
        for lane in &mut self.lanes {
            let taken = lane.burst.len() - lane.pending.len();
            for number in lane.burst.drain(..taken) {
                self.slots[number as usize].issued = self.now;
            }
        }
    }

    fn poll(&mut self) {
        let max = match (self.job.batch_complete_max, self.job.engine) {
            // As in fio, which replaces each completion at once: completing several together would
            // leave the disk with fewer to do. The library's engines gain more from sending a
            // burst.
            (0, Engine::IoUring) => self.job.batch_complete_min.max(1) as usize,
            (0, _) => usize::MAX,
            (max, _) => max.max(self.job.batch_complete_min) as usize,
        };
        self.readiness.look(|_| {}); // all are polled: this is for their descriptors
        for lane in &mut self.lanes {
            if lane.in_flight > 0 || lane.needs_poll {
                lane.in_flight -= lane.pair.poll(self.at, max, &mut self.done);
            }
        }
    }

    /// Returns whether as many have completed as must be taken together, or as are outstanding.
    #[inline]
    fn has_enough(&self) -> bool {
        let came = self.done.len();
        came > 0 && came >= (self.job.batch_complete_min as usize).min(self.in_flight)
    }

    /// Spins for a moment, then sleeps until a completion arrives or something is due.
    fn wait_for_completions(&mut self, wait_until: u64) {
        let at_work = self.lanes.iter().filter(|lane| lane.in_flight > 0);
        let notice = at_work.map(|lane| lane.pair.notice()).max();
        if self.job.busy_poll || notice == Some(Notice::Poll) {
            return self.read_clock();
        }
        if self.idle_since_ns() < SPIN_NS {
            std::hint::spin_loop();
            return self.read_clock();
        }
        let due = [wait_until, self.goes.end_ns].into_iter().min().unwrap_or(u64::MAX);
        let mut limit = Duration::from_nanos(due.saturating_sub(self.now)).min(LONGEST_SLEEP);
        for timeout in self.lanes.iter().filter_map(|lane| lane.pair.next_timeout()) {
            limit = limit.min(timeout.saturating_duration_since(self.at));
        }
        self.readiness.sleep(limit);
        self.read_clock();
    }

    fn idle_since_ns(&self) -> u64 {
        self.now.saturating_sub(self.samples.last_completion_ns.max(self.begin))
    }

    /// Sleeps while nothing is outstanding and a rate delays the next I/O.
    fn sleep_until(&mut self, until: u64) {
        let until = until.min(self.goes.end_ns);
        let left = Duration::from_nanos(until.saturating_sub(self.now)).min(LONGEST_SLEEP);
        if left > SHORTEST_SLEEP {
            std::thread::sleep(left - SHORTEST_SLEEP);
        } else {
            std::hint::spin_loop();
        }
        self.read_clock();
    }

    #[inline]
    fn read_clock(&mut self) {
        self.at = Instant::now();
        self.now = self.at.duration_since(self.epoch).as_nanos() as u64;
    }

    /// Flushes every target and waits.
    fn flush_all(&mut self) {
        for index in 0..self.lanes.len() {
            self.push(index, FLUSH, 0, 0, false);
            self.drain();
        }
    }

    /// Reads back what was written, and verifies it. These reads count as the job's reads only if
    /// it had no others.
    fn read_again(&mut self) {
        let begin = self.now;
        let reads = self.stats.directions[0].clone();
        self.goes.end_ns = u64::MAX;
        self.read_all_again();
        if self.job.pattern.reads {
            self.stats.directions[0] = reads;
        } else {
            let ms = self.now.saturating_sub(begin).div_ceil(1_000_000);
            self.stats.directions[0].runtime_ms = ms.max(1);
        }
    }

    fn read_all_again(&mut self) {
        for index in 0..self.lanes.len() {
            let lane = &mut self.lanes[index];
            let mut replay = lane.replay.clone();
            let once = lane.positions.len() / self.job.block_range().0;
            let ordered =
                !self.job.pattern.random || self.job.block_range().0 == self.job.block_range().1;
            // A whole pass covers everything; later passes overwrote it with data that are verified
            // in the same way.
            let count = if ordered { lane.issued.min(once.max(1)) } else { lane.issued };
            let directions = lane.directions.take();
            for number in 0..count {
                // Drawn in any case: the following blocks depend on it.
                let drawn = replay.direction();
                let taken = directions.as_ref().and_then(|taken| taken.get(number as usize));
                let direction = taken.map_or(drawn, |&taken| taken.into());
                let block = replay.next_of(direction);
                if direction == 0 && self.job.pattern.writes {
                    continue;
                }
                while self.free.is_empty() {
                    self.step();
                }
                if self.error != 0 || self.shared.stop.load(Ordering::Relaxed) {
                    break;
                }
                self.push(index, 0, block.offset, block.len, true);
                if self.lanes[index].pending.len() >= self.depth.div_ceil(2) {
                    self.step();
                }
            }
            self.drain();
        }
    }

    /// Waits for all outstanding I/Os.
    fn drain(&mut self) {
        while self.in_flight > 0 || self.lanes.iter().any(|lane| !lane.pending.is_empty()) {
            self.step();
        }
    }

    fn step(&mut self) {
        self.submit();
        self.poll();
        if self.has_enough() {
            self.account();
        } else {
            self.wait_for_completions(u64::MAX);
        }
    }

    /// Publishes what the manager may read.
    fn publish(&mut self) {
        for direction in 0..2 {
            let stats = &self.stats.directions[direction];
            self.shared.ios[direction].store(stats.ios, Ordering::Relaxed);
            self.shared.bytes[direction].store(stats.bytes, Ordering::Relaxed);
        }
        self.shared.tell(|| {
            let mut stats = self.stats.clone();
            stats.set_runtime(self.elapsed_ms());
            (stats, None)
        });
    }
}

fn logs_of(job: &Job) -> Vec<Log> {
    let wanted = |kind| match kind {
        Kind::Bandwidth => job.bw_log.is_some(),
        Kind::Iops => job.iops_log.is_some(),
        Kind::Slat => job.lat_log.is_some() && !job.disable_slat,
        Kind::Clat => job.lat_log.is_some() && !job.disable_clat,
        Kind::Lat => job.lat_log.is_some() && !job.disable_lat,
    };
    let kinds = Kind::ALL.into_iter().filter(|&kind| wanted(kind));
    kinds.map(|kind| Log::new(kind, job.log_avg_msec, job.log_offset)).collect()
}

/// The direction of a flush.
const FLUSH: u8 = 2;
/// How long a thread spins before it sleeps.
const SPIN_NS: u64 = 20_000;
/// So that signals and the end are noticed.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// The least delay of a sleep.
const SHORTEST_SLEEP: Duration = Duration::from_micros(60);
