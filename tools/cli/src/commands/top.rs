//! `dlfs top`: shows the current activity of targets and jobs.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use crate::exit::{Failure, Outcome};
use crate::top::fleet::MetricsAddress;
use crate::top::{once, screen};

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

const EXAMPLES: &str = "\
Keys: q quits, Tab and 1 to 5 choose a section, s the order, p pauses, ? explains the rest.

Examples:
  dlfs top 127.0.0.1:9410                               one target
  dlfs top node{1..8}:9410 trainer:9411                 targets and a job
  dlfs top 127.0.0.1:9410 --json | jq .loaders          for programs";
