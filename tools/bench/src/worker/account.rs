//! Processes completions: figures, samples over time, and errors.

use dlfs::qpair::{Completion, IoError};

use super::{FLUSH, Worker, nanoseconds};
use crate::stats::cpu::CpuUse;
use crate::stats::{SAMPLE_INTERVAL, Stats};

impl Worker {
    /// Starts counting now, and returns the CPU use so far; after the ramp it starts a second time.
    pub(super) fn start_counting(&mut self) -> CpuUse {
        self.begin = self.now;
        self.sample_at = self.now + nanoseconds(SAMPLE_INTERVAL);
        self.sampled = [(0, 0); 2];
        self.stats = Stats::default();
        self.stats.began_ms = self.now / 1_000_000;
        CpuUse::of_thread()
    }

    /// Processes the completions of a poll.
    pub(super) fn account(&mut self) {
        self.read_clock();
        self.last_completion = self.now;
        let mut done = std::mem::take(&mut self.done);
        self.in_flight -= done.len();
        self.stats.depths.completed(done.len());
        for completion in done.drain(..) {
            self.complete(completion);
        }
        self.done = done;
        self.at_rest();
    }

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
            return self.failed(number, &error);
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

    fn check(&mut self, number: usize) {
        if !self.content.verifies() {
            return;
        }
        let slot = &mut self.slots[number];
        match self.content.check(slot.offset, &mut slot.buf[..slot.len as usize]) {
            Ok(()) => self.stats.verified += 1,
            Err((offset, what)) => self.fail(libc::EILSEQ, offset, &format!("verify: {what}")),
        }
    }

    fn failed(&mut self, number: usize, error: &IoError) {
        let slot = &self.slots[number];
        if matches!(error, IoError::Short { .. }) {
            self.stats.directions[slot.direction.min(1)].short_ios += 1;
        }
        self.fail(errno_of(error), slot.offset, &error.to_string());
    }

    /// Counts an error, which ends the job.
    fn fail(&mut self, errno: i32, offset: u64, what: &str) {
        self.stats.failed(errno, || format!("{} at offset {offset}: {what}", self.name));
        self.stopped = true;
    }

    /// Samples the rates if an interval has passed; called in each pass of the loop.
    #[inline]
    pub(super) fn at_rest(&mut self) {
        if self.now >= self.sample_at {
            let every = nanoseconds(SAMPLE_INTERVAL);
            let passed = self.now - (self.sample_at - every);
            let totals = self.stats.totals();
            let before = std::mem::replace(&mut self.sampled, totals);
            for (direction, before) in self.stats.directions.iter_mut().zip(before) {
                direction.sample(before, passed as f64 / 1e9);
            }
            self.sample_at = self.now + every;
        }
    }

    /// Ends counting, which began with the CPU use `cpu`.
    pub(super) fn finish_counting(&mut self, cpu: CpuUse) {
        self.read_clock();
        let since = self.now - self.begin;
        self.stats.set_runtime(since.div_ceil(1_000_000).max(1)); // at least a millisecond, as in fio
        self.stats.cpu = CpuUse::of_thread().since(cpu);
    }
}

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
