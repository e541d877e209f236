//! `dlfs top`: the current activity of targets and jobs, from the metrics that they serve.
//!
//! Pages of metrics go in, tables come out. Threads ask the addresses (`fleet.rs`), `page.rs` parses answers and
//! compares two of one address, `sections.rs` defines the tables and the metric of each column, and `report.rs` makes
//! the rows. `table.rs` turns the rows into lines, which `draw.rs` and `screen.rs` show on a terminal, with the choices
//! that the user made by keys, and [`once`] prints.
//!
//! Everything but this file, the threads of `fleet.rs` and `screen.rs` is pure: time and keys are arguments. Every
//! answer is limited in size and made harmless for the terminal; a slow address does not delay the others.
//!
//! Read `sections.rs` first.

mod draw;
pub(crate) mod fleet;
mod page;
mod report;
pub(crate) mod screen;
mod sections;
mod table;

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use self::fleet::{Fleet, MetricsAddress};
use self::report::Report;
use self::sections::SECTIONS;
use crate::exit::{Failure, Outcome};
use crate::out::Out;

/// Asks all addresses twice, `interval` apart, and prints the difference: as text, or as one JSON value.
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
        out.json(&report.to_json())?
    } else {
        print(&mut out, &report)?
    }
    out.end(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}

/// Prints the tables that have rows.
fn print(out: &mut Out, report: &Report) -> Result<(), Failure> {
    let tables = SECTIONS.iter().zip(&report.rows).filter(|(_, rows)| !rows.is_empty());
    for (nth, (section, rows)) in tables.enumerate() {
        if nth > 0 {
            out.line("")?;
        }
        for line in table::lines(section, &table::sorted(rows, None), usize::MAX / 2, None) {
            out.line(line.to_string().trim_end())?;
        }
    }
    Ok(())
}

fn measure(addresses: Vec<MetricsAddress>, interval: Duration) -> Result<Report, Failure> {
    let mut fleet = Fleet::new(&addresses, interval, Instant::now());
    let answers = fleet::start(addresses, interval)?;
    // Two answers take an interval, plus at most the time limit of each answer.
    let until = Instant::now() + interval + fleet::TIME_LIMIT * 2;
    while !fleet.is_measured() {
        let left = until.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok(answer) => fleet.take(answer),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(fleet.report(Instant::now()))
}
