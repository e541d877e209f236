//! The state of all addresses: their last two answers, or the error. Pure: time is an argument.

use std::time::{Duration, Instant};

use super::address::MetricsAddress;
use super::between::{Between, is_restarted};
use super::page::Page;
use super::report::{Known, Report};
use super::scrape::{Answer, TIME_LIMIT};

/// The addresses in the order in which they were given.
#[derive(Debug)]
pub(super) struct Fleet {
    watched: Vec<Watched>,
    interval: Duration,
    began: Instant,
}

/// An address, and what it has answered.
#[derive(Debug, Default)]
struct Watched {
    address: String,
    /// The answer before the last one, of the same process or of an earlier one.
    before: Option<(Instant, Page)>,
    last: Option<(Instant, Page)>,
    failure: Option<Failure>,
    /// Time of the last failure, which may be over.
    failed_at: Option<Instant>,
    restarted_at: Option<Instant>,
}

#[derive(Debug)]
struct Failure {
    why: String,
    since: Instant,
}

impl Fleet {
    /// Begins without answers. `interval` is the time between two requests.
    pub(super) fn new(addresses: &[MetricsAddress], interval: Duration, now: Instant) -> Fleet {
        let watched = addresses
            .iter()
            .map(|address| Watched { address: address.to_string(), ..Watched::default() });
        Fleet { watched: watched.collect(), interval, began: now }
    }

    /// Takes an answer from the thread of an address.
    pub(super) fn take(&mut self, answer: Answer) {
        let Answer { index, asked, at, page } = answer;
        match page {
            Ok(page) => self.watched[index].answered(at, page),
            Err(why) => self.watched[index].failed(asked, at, why),
        }
    }

    /// Returns whether every address has answered twice, or failed.
    pub(super) fn is_measured(&self) -> bool {
        self.watched.iter().all(|watched| watched.before.is_some() || watched.failure.is_some())
    }

    /// Everything that is known at `now`.
    pub(super) fn report(&self, now: Instant) -> Report {
        let interval_seconds = self.interval.as_secs_f64();
        let mut report = Report { interval_seconds, ..Report::default() };
        let late = self.interval + TIME_LIMIT + Duration::from_secs(1);
        for watched in &self.watched {
            report.add(&watched.known(now, self.began, late));
        }
        report
    }
}

impl Watched {
    fn answered(&mut self, at: Instant, page: Page) {
        self.failure = None;
        let last = self.last.take();
        if last.as_ref().is_some_and(|(_, before)| is_restarted(before, &page)) {
            self.restarted_at = Some(at);
        }
        self.before = last;
        self.last = Some((at, page));
    }

    fn failed(&mut self, asked: Instant, at: Instant, why: String) {
        self.failed_at = Some(at);
        match &mut self.failure {
            Some(failure) => failure.why = why,
            None => self.failure = Some(Failure { why, since: asked }),
        }
    }

    fn known(&self, now: Instant, began: Instant, late: Duration) -> Known<'_> {
        let error = self.failure.as_ref().map(|failure| (&*failure.why, failure.since));
        // A request may hang without failing, since looking up a host name has no time limit. So an address that has
        // not answered for `late` counts as failed.
        let last = self.last.as_ref().map_or(began, |(at, _)| *at);
        let error =
            error.or_else(|| (now.saturating_duration_since(last) > late).then_some((LATE, last)));
        let seconds_since = |then: Instant| now.saturating_duration_since(then).as_secs_f64();
        let restarted = self.restarted_at.map(seconds_since);
        Known {
            address: &self.address,
            page: self.last.as_ref().map(|(_, page)| page),
            between: if error.is_some() { None } else { self.between() },
            error: error.map(|(why, since)| (why, seconds_since(since))),
            restarted_seconds: restarted.filter(|seconds| *seconds < RESTART_SHOWN_SECONDS),
        }
    }

    fn between(&self) -> Option<Between<'_>> {
        let ((began, before), (at, after)) = self.before.as_ref().zip(self.last.as_ref())?;
        let mut began = *began;
        if self.restarted_at == Some(*at) {
            // A restarted process counts from 0. It began after the last failed request, if there was one since the
            // previous answer; the time before that does not count.
            began = self.failed_at.map_or(began, |failed| failed.max(began));
        }
        let seconds = at.saturating_duration_since(began).as_secs_f64();
        Some(Between::new(before, after, seconds.max(1e-3)))
    }
}

const LATE: &str = "no answer so far";
const RESTART_SHOWN_SECONDS: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fleet(count: usize, now: Instant) -> Fleet {
        let addresses: Vec<MetricsAddress> =
            (1..=count).map(|port| format!("h:{port}").parse().unwrap()).collect();
        Fleet::new(&addresses, SECOND, now)
    }

    fn target(reads: u64) -> Result<Page, String> {
        let text = format!(
            "dlfs_target_controllers{{subsystem=\"s\"}} 2\ndlfs_target_reads_total{{subsystem=\"s\"}} {reads}\n\
             dlfs_target_read_bytes_total{{subsystem=\"s\"}} {}\n# EOF\n",
            4096 * reads
        );
        Ok(Page::parse(text.as_bytes()).unwrap())
    }

    fn answer(index: usize, at: Instant, page: Result<Page, String>) -> Answer {
        Answer { index, asked: at, at, page }
    }

    fn address(fleet: &Fleet, now: Instant) -> serde_json::Value {
        fleet.report(now).to_json()["addresses"][0].clone()
    }

    fn rate(fleet: &Fleet, now: Instant) -> Option<f64> {
        address(fleet, now)["commands_per_second"].as_f64()
    }

    #[test]
    fn two_answers_make_a_rate_by_the_time_between_them() {
        let now = Instant::now();
        let mut fleet = fleet(1, now);
        fleet.take(answer(0, now, target(100)));
        assert_eq!((rate(&fleet, now), fleet.is_measured()), (None, false));
        assert_eq!(fleet.report(now).to_json()["subsystems"][0]["controllers"], 2.0);
        fleet.take(answer(0, now + SECOND * 4, target(300)));
        assert_eq!((rate(&fleet, now + SECOND * 4), fleet.is_measured()), (Some(50.0), true));
    }

    #[test]
    fn an_address_that_dies_says_so_and_comes_back_by_itself_counting_from_0() {
        let now = Instant::now();
        let mut fleet = fleet(1, now);
        fleet.take(answer(0, now, target(100)));
        fleet.take(answer(0, now + SECOND, target(200)));
        fleet.take(answer(0, now + SECOND * 2, Err("connection refused".into())));
        fleet.take(answer(0, now + SECOND * 9, Err("no route to host".into())));
        let report = fleet.report(now + SECOND * 10).to_json();
        let row = &report["addresses"][0];
        assert_eq!((&row["error"], &row["role"]), (&"no route to host".into(), &"target".into()));
        assert_eq!(row["error_seconds"], 8.0);
        assert!(row["commands_per_second"].is_null(), "{row}");
        assert_eq!(report["subsystems"].as_array().map(Vec::len), Some(0));

        fleet.take(answer(0, now + SECOND * 11, target(30)));
        let row = address(&fleet, now + SECOND * 12);
        assert!(row["error"].is_null(), "{row}");
        assert_eq!(row["restarted_seconds"], 1.0);
        assert_eq!(row["commands_per_second"], 15.0, "30 in the 2 s since it last failed");
        fleet.take(answer(0, now + SECOND * 12, target(40)));
        assert_eq!(rate(&fleet, now + SECOND * 12), Some(10.0));
        assert!(address(&fleet, now + SECOND * 100)["restarted_seconds"].is_null());
    }

    #[test]
    fn an_address_that_never_answers_is_late() {
        let now = Instant::now();
        let fleet = fleet(2, now);
        let second = |at| fleet.report(at).to_json()["addresses"][1].clone();
        assert!(second(now + SECOND)["error"].is_null());
        let row = second(now + SECOND * 20);
        assert_eq!((&row["error"], &row["error_seconds"]), (&LATE.into(), &20.0.into()));
    }
}
