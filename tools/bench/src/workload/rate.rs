//! Rate limits: the time when the next I/O may be issued.

use crate::options::Job;

/// The limits of both directions.
#[derive(Debug, Clone)]
pub(crate) struct Rates {
    paces: [Option<Pace>; 2],
    /// True if the job both reads and writes, so that one direction may proceed while the other is
    /// delayed.
    is_mixed: bool,
}

impl Rates {
    pub(crate) fn new(job: &Job) -> Rates {
        let is_mixed = job.rw.reads() && job.rw.writes() && (1..100).contains(&job.rwmixread);
        Rates { paces: [0, 1].map(|direction| Pace::new(job, direction)), is_mixed }
    }

    /// Starts the limits: the job starts at `now_ns`.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.paces.iter_mut().flatten().for_each(|pace| pace.start(now_ns));
    }

    /// The direction to issue, and the time from which it may be issued. As in fio, a drawn direction that its
    /// rate delays gives way to the other, so that each keeps its own rate whatever the mix.
    #[inline]
    pub(crate) fn choose(&self, drawn: usize, now_ns: u64) -> (usize, u64) {
        let due_ns = |direction: usize| self.paces[direction].as_ref().map_or(0, Pace::due_ns);
        let mine = due_ns(drawn);
        let others = due_ns(1 - drawn);
        if mine > now_ns && self.is_mixed && others < mine {
            (1 - drawn, others)
        } else {
            (drawn, mine)
        }
    }

    /// Counts an I/O of `len` bytes that was issued at `now_ns`.
    #[inline]
    pub(crate) fn went(&mut self, direction: usize, now_ns: u64, len: u64) {
        if let Some(pace) = &mut self.paces[direction] {
            pace.went(now_ns, len);
        }
    }
}

/// The limits of one direction.
#[derive(Debug, Clone)]
struct Pace {
    /// Nanoseconds per I/O and per byte.
    ns_per_io: f64,
    ns_per_byte: f64,
    /// The time when the next I/O may be issued.
    due_ns: f64,
}

impl Pace {
    /// The limit of `direction`, if the job has one.
    fn new(job: &Job, direction: usize) -> Option<Pace> {
        let per = |limit: Option<u64>| limit.filter(|&l| l > 0).map_or(0.0, |l| 1e9 / l as f64);
        let ns_per_io = per(job.rate_iops[direction]);
        let ns_per_byte = per(job.rate[direction]);
        (ns_per_io + ns_per_byte > 0.0).then_some(Pace { ns_per_io, ns_per_byte, due_ns: 0.0 })
    }

    /// The time when the next I/O may be issued.
    #[inline]
    fn due_ns(&self) -> u64 {
        self.due_ns as u64
    }

    /// Starts the job now: earlier time is not made up for.
    fn start(&mut self, now_ns: u64) {
        self.due_ns = now_ns as f64;
    }

    /// Counts an I/O of `len` bytes that was issued at `now_ns`.
    fn went(&mut self, now_ns: u64, len: u64) {
        let cost = (self.ns_per_byte * len as f64).max(self.ns_per_io);
        // Lost time is made up for, unless it is more than a second ago.
        self.due_ns = self.due_ns.max(now_ns as f64 - MOST_CAUGHT_UP_NS) + cost;
    }
}

const MOST_CAUGHT_UP_NS: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::request::job_of_options;

    fn went_until(pace: &mut Pace, end_ns: u64, len: u64) -> u64 {
        let mut count = 0;
        while pace.due_ns() < end_ns {
            pace.went(pace.due_ns(), len);
            count += 1;
        }
        count
    }

    #[test]
    fn a_job_that_begins_late_is_no_faster_for_it() {
        let job = job_of_options(&[("rate_iops", "1000,")]);
        let mut pace = Pace::new(&job, 0).unwrap();
        pace.start(5_000_000_000);
        assert_eq!(went_until(&mut pace, 6_000_000_000, 4096), 1000);
    }

    #[test]
    fn the_limit_of_ios_is_kept() {
        let job = job_of_options(&[("rate_iops", "1000,")]);
        assert_eq!(went_until(&mut Pace::new(&job, 0).unwrap(), 1_000_000_000, 4096), 1000);
        assert!(Pace::new(&job, 1).is_none());
        let job = job_of_options(&[("rate", "1m,")]);
        assert_eq!(went_until(&mut Pace::new(&job, 0).unwrap(), 1_000_000_000, 4096), 256);
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
            rates.went(direction, now, 4096);
            counts[direction] += 1;
        }
        assert!((999..=1001).contains(&counts[0]) && (99..=101).contains(&counts[1]), "{counts:?}");
        let mut only = Rates::new(&job("10,", "100"));
        only.went(0, 0, 4096);
        assert_eq!(only.choose(0, 0).0, 0, "a mix without writes never writes");
    }
}
