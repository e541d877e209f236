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
mod fleet;
mod page;
mod report;
mod screen;
mod sections;
mod table;

use std::io::IsTerminal;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Args;

use self::fleet::{Fleet, MetricsAddress};
use self::report::Report;
use self::sections::SECTIONS;
use crate::exit::{Failure, Outcome};
use crate::out::Out;

/// Show what targets and jobs do now, by the metrics that they serve
///
/// Asks each address for its metrics every few seconds and shows rates, latencies, waits, hosts, tiers and nodes. An
/// address that does not answer delays no other, and comes back by itself.
///
/// Where standard input or output is no terminal, and with --once or --json, it prints the page once, after one
/// interval. The exit code is then 1 if an address did not answer, else 0.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Addresses that serve metrics (--metrics, dlfs.metrics.serve): HOST:PORT or http://HOST:PORT/metrics
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<MetricsAddress>,
    /// How often the addresses are asked
    #[arg(long, short = 'i', value_name = "SECONDS", default_value_t = 2.0, value_parser = interval)]
    interval: f64,
    /// Print the page as text once, after one interval
    #[arg(long)]
    once: bool,
    /// Print the page as one line of JSON once, after one interval
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: TopArgs) -> Result<Outcome, Failure> {
    let TopArgs { addresses, interval, json, .. } = args;
    let interval = Duration::from_secs_f64(interval);
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if args.once || json || is_dumb || !has_terminal {
        return once(addresses, interval, json);
    }
    screen::show(addresses, interval)
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds from 0.1 to 3600".to_owned()),
    }
}

/// Asks all addresses twice, `interval` apart, and prints the difference: as text, or as one JSON value.
///
/// `Incomplete`: an address did not answer; the report says why.
fn once(
    addresses: Vec<MetricsAddress>,
    interval: Duration,
    json: bool,
) -> Result<Outcome, Failure> {
    let report = measure(addresses, interval)?;
    Out::answer(json, &report.to_json(), |out| print(out, &report))?;
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
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

const EXAMPLES: &str = "\
Keys: q quits, Tab and 1 to 5 choose a section, s the order, p pauses, ? explains the rest.

Examples:
  dlfs top 127.0.0.1:9410                               one target
  dlfs top node{1..8}:9410 trainer:9411                 targets and a job
  dlfs top 127.0.0.1:9410 --json | jq .loaders          for programs";
