//! Processes completions: figures, logs, samples over time, and errors.

use std::sync::atomic::Ordering;

use dlfs::qpair::{Completion, IoError};

use super::{FLUSH, Worker};
use crate::options::Job;
use crate::stats::log::Kind;

/// When bandwidth and IOPS are sampled next, and the totals at the last sample.
pub(super) struct Samples {
    pub(super) last_completion_ns: u64,
    bandwidth: Sampler,
    iops: Sampler,
}

struct Sampler {
    every_ns: u64,
    since_ns: u64,
    totals: [u64; 2],
}

impl Samples {
    pub(super) fn new(job: &Job) -> Samples {
        let sampler = |ms: u64| Sampler { every_ns: ms * 1_000_000, since_ns: 0, totals: [0; 2] };
        let off = if job.disable_bw { u64::MAX / 2_000_000 } else { 0 };
        Samples {
            last_completion_ns: 0,
            bandwidth: sampler(job.bwavgtime_ms.max(off)),
            iops: sampler(job.iopsavgtime_ms.max(off)),
        }
    }
}

impl Worker {
    /// Counting starts now.
    pub(super) fn start_counting(&mut self) {
        self.begin = self.now;
        self.shared.began_ns.store(self.now + 1, Ordering::Relaxed);
        for sampler in [&mut self.samples.bandwidth, &mut self.samples.iops] {
            (sampler.since_ns, sampler.totals) = (self.now, [0; 2]);
        }
    }

    /// Processes the completions of `poll`.
    pub(super) fn account(&mut self) {
        self.read_clock();
        self.samples.last_completion_ns = self.now;
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
        self.free.push(number as u32);
        if let Err(error) = completion.result {
            return self.failed(number, &error);
        }
        let lat = self.now - slot.began;
        let clat = self.now - slot.issued;
        if slot.direction == FLUSH {
            return self.stats.sync.record(lat);
        }
        let direction = usize::from(slot.direction);
        let stats = &mut self.stats.directions[direction];
        stats.ios += 1;
        stats.bytes = stats.bytes.saturating_add(slot.len); // the null engine moves 2^64 bytes in an hour
        if !self.job.disable_slat {
            stats.slat.record(slot.issued - slot.began);
        }
        if !self.job.disable_clat {
            stats.clat.record(clat);
        }
        if !self.job.disable_lat {
            stats.lat.record(lat);
        }
        if slot.check {
            self.check(number);
        }
        if !self.logs.is_empty() {
            self.log(number, lat, clat);
        }
    }

    fn log(&mut self, number: usize, lat: u64, clat: u64) {
        let slot = &self.slots[number];
        let slat = slot.issued - slot.began;
        for log in &mut self.logs {
            let ns = match log.kind() {
                Kind::Slat => slat,
                Kind::Clat => clat,
                Kind::Lat | Kind::Bandwidth | Kind::Iops => lat,
            };
            let since_begin = self.now - self.begin.min(self.now);
            log.record(since_begin, ns, usize::from(slot.direction), slot.len, slot.offset);
        }
    }

    fn check(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let lane = slot.lane as usize;
        let offset = slot.offset;
        let len = slot.len as usize;
        let content = &self.lanes[lane].content;
        if !content.verifies() {
            return;
        }
        match content.check(offset, &mut slot.buf[..len]) {
            Ok(()) => self.stats.verified += 1,
            Err(wrong) => {
                self.count_error(libc::EILSEQ);
                if self.job.continue_on.verify && !self.job.verify_fatal {
                    self.error = libc::EILSEQ;
                    self.tell(lane, wrong.offset, &format!("verify: {}", wrong.what));
                    self.error = 0;
                    return;
                }
                self.fail(libc::EILSEQ, lane, wrong.offset, &format!("verify: {}", wrong.what));
            }
        }
    }

    fn failed(&mut self, number: usize, error: &IoError) {
        let slot = &self.slots[number];
        let direction = slot.direction;
        let lane = slot.lane as usize;
        let offset = slot.offset;
        let errno = errno_of(error);
        let what = usize::from(direction.min(1));
        if matches!(error, IoError::Short { .. }) {
            self.stats.directions[what].short_ios += 1;
        }
        self.count_error(errno);
        let go_on =
            if direction == 0 { self.job.continue_on.read } else { self.job.continue_on.write };
        if go_on {
            return self.tell(lane, offset, &error.to_string());
        }
        self.fail(errno, lane, offset, &error.to_string());
    }

    fn count_error(&mut self, errno: i32) {
        self.stats.errors += 1;
        if self.stats.first_error == 0 {
            self.stats.first_error = errno;
        }
    }

    /// Ends the job with this error, unless it has one already.
    pub(super) fn fail(&mut self, errno: i32, lane: usize, offset: u64, what: &str) {
        self.tell(lane, offset, what);
        if self.error == 0 {
            self.error = errno;
            if self.stats.first_error == 0 {
                self.stats.first_error = errno;
            }
        }
        self.goes.stopped = true;
    }

    /// Keeps the first error as text.
    fn tell(&mut self, lane: usize, offset: u64, what: &str) {
        let name = &self.lanes[lane].name;
        self.message.get_or_insert_with(|| format!("{name} at offset {offset}: {what}"));
    }

    /// At the end of a turn: samples, and requests of the manager.
    pub(super) fn at_rest(&mut self) {
        let bytes = [0, 1].map(|d| self.stats.directions[d].bytes);
        let ios = [0, 1].map(|d| self.stats.directions[d].ios);
        if let Some(rates) = self.samples.bandwidth.turn(self.now, bytes) {
            for (stats, rate) in self.stats.directions.iter_mut().zip(rates) {
                if stats.ios > 0 {
                    stats.bandwidth.push(rate / 1024.0);
                }
            }
        }
        if let Some(rates) = self.samples.iops.turn(self.now, ios) {
            for (stats, rate) in self.stats.directions.iter_mut().zip(rates) {
                if stats.ios > 0 {
                    stats.iops.push(rate);
                }
            }
        }
        self.publish();
    }

    /// How long it has counted; at least a millisecond, as in fio.
    pub(super) fn elapsed_ms(&self) -> u64 {
        self.now.saturating_sub(self.begin).div_ceil(1_000_000).max(1)
    }

    /// Ends counting.
    pub(super) fn finish_counting(&mut self) {
        self.read_clock();
        let since = self.now.saturating_sub(self.begin);
        self.logs.iter_mut().for_each(|log| log.finish(since));
        let ms = self.elapsed_ms();
        self.stats.set_runtime(ms);
    }
}

impl Sampler {
    /// Rates per second since the last sample, if another sample is due.
    #[inline]
    fn turn(&mut self, now_ns: u64, totals: [u64; 2]) -> Option<[f64; 2]> {
        let passed = now_ns.saturating_sub(self.since_ns);
        if passed < self.every_ns {
            return None;
        }
        let before = std::mem::replace(&mut self.totals, totals);
        self.since_ns = now_ns;
        Some([0, 1].map(|d| totals[d].saturating_sub(before[d]) as f64 * 1e9 / passed as f64))
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
