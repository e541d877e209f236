//! `dlfs top`: what targets and jobs do now, by the metrics that they serve.
//!
//! Pages of metrics go in, tables and sentences come out. Threads ask the addresses (`scrape.rs`), `page.rs` reads
//! the text of an answer, `between.rs` compares two pages of one address, `report.rs` makes rows of that, and
//! `waits.rs` says in words who waits for whom. `tables.rs` turns the rows into text, which `draw.rs` and `screen.rs`
//! show on a terminal and [`once`] prints; `view.rs` is what the user's keys have chosen.
//!
//! Everything but `scrape.rs` and `screen.rs` is pure: time and keys are arguments. Whatever an address answers is
//! limited in size and made harmless for the terminal; a slow address delays no other.
//!
//! Read `report.rs` first.

pub(crate) mod address;
mod between;
mod draw;
mod figures;
mod fleet;
mod page;
mod report;
mod scrape;
pub(crate) mod screen;
mod table;
mod tables;
mod view;
mod waits;

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use self::address::MetricsAddress;
use self::fleet::Fleet;
use self::report::Report;
use self::scrape::Scraper;
use crate::exit::{Failure, Outcome};
use crate::out::Out;

/// Asks all addresses twice, `interval` apart, and prints the difference: as text, or as one value of JSON.
///
/// `Incomplete`: an address did not answer; the report says why.
pub(crate) fn once(
    addresses: Vec<MetricsAddress>,
    interval: Duration,
    json: bool,
) -> Result<Outcome, Failure> {
    let report = measure(addresses, interval)?;
    let mut out = Out::new();
    if json {
        out.json(&report)?
    } else {
        tables::as_text(&report).into_iter().try_for_each(|line| out.line(line))?
    }
    out.flush()?;
    let answered = report.addresses.iter().all(|row| row.error.is_none());
    Ok(if answered { Outcome::Done } else { Outcome::Incomplete })
}

fn measure(addresses: Vec<MetricsAddress>, interval: Duration) -> Result<Report, Failure> {
    let mut fleet = Fleet::new(&addresses, interval, Instant::now());
    let scraper = Scraper::start(addresses, interval)?;
    // Two answers take an interval, and each at most as long as an answer may take.
    let until = Instant::now() + interval + scrape::TIME_LIMIT * 2;
    while !fleet.is_measured() {
        let left = until.saturating_duration_since(Instant::now());
        match scraper.answers.recv_timeout(left) {
            Ok(answer) => fleet.take(answer),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(fleet.report(Instant::now()))
}
