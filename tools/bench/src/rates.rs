//! The limits of a job's rates: the time from which each block may be issued. Times are arguments, in nanoseconds since
//! the start of the run. A direction is 0 (read) or 1 (write).

use crate::job::Job;

/// The limits of both directions: reads, and writes.
pub(crate) struct Rates {
    /// Nanoseconds per I/O and per byte; 0 without a limit.
    ns_per_io: [f64; 2],
    ns_per_byte: [f64; 2],
    /// The time from which the next I/O of each direction may be issued.
    due_ns: [f64; 2],
    /// True if the job both reads and writes, so that one direction may proceed while the other is
    /// delayed.
    is_mixed: bool,
}

impl Rates {
    pub(crate) fn new(job: &Job) -> Rates {
        let per = |limit: Option<u64>| limit.filter(|&l| l > 0).map_or(0.0, |l| 1e9 / l as f64);
        Rates {
            ns_per_io: job.rate_iops.map(per),
            ns_per_byte: job.rate.map(per),
            due_ns: [0.0; 2],
            is_mixed: job.rw.reads() && job.rw.writes() && (1..100).contains(&job.rwmixread),
        }
    }

    /// Starts the job at `now_ns`; I/Os that it did not issue before are not made up for.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.due_ns = [now_ns as f64; 2];
    }

    /// The direction of the next I/O, and the time from which it may be issued. As in fio, if the rate of the `drawn`
    /// direction of a mixed job delays it, the other direction comes first unless its own rate delays it even longer.
    /// Each direction thus keeps its own rate whatever the mix.
    #[inline]
    pub(crate) fn choose(&self, drawn: usize, now_ns: u64) -> (usize, u64) {
        let [mine, others] = [drawn, 1 - drawn].map(|direction| self.due_ns[direction] as u64);
        if mine > now_ns && self.is_mixed && others < mine {
            (1 - drawn, others)
        } else {
            (drawn, mine)
        }
    }

    /// Counts an I/O of `len` bytes that was issued at `now_ns`.
    #[inline]
    pub(crate) fn count_issued(&mut self, direction: usize, now_ns: u64, len: u64) {
        let cost = (self.ns_per_byte[direction] * len as f64).max(self.ns_per_io[direction]);
        if cost > 0.0 {
            // A job that is behind its rate issues faster to catch up, but for the last second's delay only.
            let due_ns = &mut self.due_ns[direction];
            *due_ns = due_ns.max(now_ns as f64 - MAX_CATCH_UP_NS) + cost;
        }
    }
}

/// The longest delay for which a job catches up.
const MAX_CATCH_UP_NS: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::job_of_options;

    fn went_until(rates: &mut Rates, end_ns: u64, len: u64) -> u64 {
        for count in 0.. {
            let (_, due_ns) = rates.choose(0, 0);
            if due_ns >= end_ns {
                return count;
            }
            rates.count_issued(0, due_ns, len);
        }
        unreachable!("an I/O takes time");
    }

    #[test]
    fn a_job_that_begins_late_is_no_faster_for_it() {
        let job = job_of_options(&[("rate_iops", "1000,")]);
        let mut rates = Rates::new(&job);
        rates.start(5_000_000_000);
        assert_eq!(went_until(&mut rates, 6_000_000_000, 4096), 1000);
    }

    #[test]
    fn the_limit_of_ios_is_kept() {
        let job = job_of_options(&[("rate_iops", "1000,")]);
        let mut rates = Rates::new(&job);
        assert_eq!(went_until(&mut rates, 1_000_000_000, 4096), 1000);
        rates.count_issued(1, 0, 4096);
        assert_eq!(rates.choose(1, 0), (1, 0), "writes have no limit");
        let job = job_of_options(&[("rate", "1m,")]);
        assert_eq!(went_until(&mut Rates::new(&job), 1_000_000_000, 4096), 256);
    }

    #[test]
    fn a_direction_that_is_held_back_lets_the_other_go_on() {
        let job = |rates, rwmixread| {
            let options = [("rw", "rw"), ("rate_iops", rates), ("rwmixread", rwmixread)];
            job_of_options(&options)
        };
        let rates = Rates::new(&job("10,", "50"));
        assert_eq!(rates.choose(0, 0), (0, 0), "nothing is held back at the begin");
        let mut rates = Rates::new(&job("1000,100", "50"));
        rates.start(0);
        let mut now = 0;
        let mut counts = [0_u64; 2];
        for number in 0.. {
            let (direction, due) = rates.choose(number % 2, now);
            now = now.max(due);
            if now > 1_000_000_000 {
                break;
            }
            rates.count_issued(direction, now, 4096);
            counts[direction] += 1;
        }
        assert!((999..=1001).contains(&counts[0]) && (99..=101).contains(&counts[1]), "{counts:?}");
        let mut only = Rates::new(&job("10,", "100"));
        only.count_issued(0, 0, 4096);
        assert_eq!(only.choose(0, 0).0, 0, "a mix without writes never writes");
    }
}
