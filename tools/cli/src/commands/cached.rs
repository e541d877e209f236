//! `dlfs cached` owns the tiers of an image, so that jobs on this machine share the copies and leave them to later
//! jobs.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use signal_hook::consts::SIGUSR1;

use dlfs::cache::{Cache, CacheStats, TierStats};
use dlfs::dataset::Image;
use dlfs::options::Tiers;
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, ImageArgs, MetricsArgs, tiers};
use crate::exit::{Failure, GRACE_FOR_TIERS, Outcome, Stop, service_signals};
use crate::log;
use crate::out::{self, Out};

/// Keep the tiers of an image between jobs
///
/// Owns the tiers, as the first job on this node does without it. Jobs of the same user that name the same
/// tiers attach: they read its copies and add to them, and what is kept in memory is there for the next job.
/// Keeps what is read first and reads nothing by itself, except what this node holds for the others of a job
/// with --peers; or with --policy clairvoyant keeps and reads what the plans of the jobs name.
#[derive(Debug, Args)]
#[command(after_help = CACHED_EXAMPLES)]
pub(crate) struct CachedArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    tiers: Tiers,
    /// Wait for the end of a job that owns the tiers already, and take over
    #[arg(long)]
    wait: bool,
    /// Write a line of statistics to the log at this interval
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    stats: Option<u32>,
    /// Print what it holds as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn cached(args: CachedArgs) -> Result<Outcome, Failure> {
    let options = tiers(&args.tiers, None)?;
    if !options.is_active() {
        return Err(Failure::Usage("name what to keep: --tier ram:20G, for example".to_owned()));
    }
    let stop = Stop::on_signals(GRACE_FOR_TIERS, || Outcome::Done)?;
    let mut signals = service_signals()?;
    let _metrics = args.metrics.serve()?;
    let image = args.image.open_with_tiers(&args.connection, options)?;
    image.check_copies();
    let cache = image.tiers().expect("opened with active tiers");
    if !wait_for_ownership(cache, args.wait, &stop)? {
        return Ok(Outcome::Done);
    }
    announce(&args, &image, &cache.stats())?;
    let interval = args.stats.map(|seconds| Duration::from_secs(seconds.into()));
    let mut last_line = Instant::now();
    while !stop.is_set_within(CHECK_INTERVAL) {
        let stats = cache.stats();
        if let Some(died) = &stats.died {
            return Err(Error::new(ErrorKind::Internal, died.clone()).into());
        }
        let is_due = interval.is_some_and(|interval| last_line.elapsed() >= interval);
        if is_due {
            last_line = Instant::now();
        }
        let is_asked = signals.pending().filter(|&signal| signal == SIGUSR1).count() > 0;
        if is_asked || is_due {
            log::say(&statistics(&stats));
        }
    }
    let stats = statistics(&cache.stats());
    drop(image);
    log::say(&stats);
    Ok(Outcome::Done)
}

/// Waits until no other process owns the tiers; then this process does. Returns `false` if a signal came first.
///
/// # Errors
/// `Busy`: another process owns the tiers, and `may_wait` is not set.
fn wait_for_ownership(cache: &Cache, may_wait: bool, stop: &Stop) -> Result<bool, Failure> {
    let mut reported = None;
    while let Some(owner) = cache.owner() {
        if !may_wait {
            let text = format!("{} owns these tiers", describe(owner));
            let hint = "jobs share them as they are; --wait takes over when it ends";
            return Err(Error::new(ErrorKind::Busy, text).hint(hint).into());
        }
        if reported != Some(owner) {
            log::say(&format!("{} owns these tiers: waiting for its end", describe(owner)));
            reported = Some(owner);
        }
        if stop.is_set_within(CHECK_INTERVAL) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A process for a message: `process 4711 (python train.py --epochs 9)`.
fn describe(pid: u32) -> String {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = command.split(|&byte| byte == 0).map(out::safe_name).collect();
    let command = words.join(" ");
    match command.trim_end() {
        "" => format!("process {pid}"), // in another PID namespace, or already gone
        command => {
            let short: String = command.chars().take(MAX_COMMAND).collect();
            let more = if short.len() < command.len() { "…" } else { "" };
            format!("process {pid} ({short}{more})")
        }
    }
}

/// Prints the image and the fill of its tiers.
fn announce(args: &CachedArgs, image: &Image, stats: &CacheStats) -> Result<Outcome, Failure> {
    let directory = image.directory();
    let generation = directory.generation().0;
    let name = args.image.image.to_string();
    let facts = json!({
        "pid": std::process::id(), "image": name, "uuid": directory.uuid().to_string(),
        "generation": generation, "tiers": stats.tiers,
    });
    Out::answer(args.json, &facts, |out| {
        out.line(format!("caching {} (generation {generation})", out.bold(&name)))?;
        for tier in &stats.tiers {
            let used = out::bytes(tier.used_bytes);
            let capacity = out::bytes(tier.capacity_bytes);
            out.line(format!("  tier       {}: {used} of {capacity} used", tier.name))?;
        }
        out.line(out.dim("  Ctrl-C ends it"))
    })
}

/// One line with the content and counters of the tiers. Hits are left out, since jobs count their own.
fn statistics(stats: &CacheStats) -> String {
    let mut line = format!("statistics attached={}", stats.attached.unwrap_or_default());
    for (number, tier) in stats.tiers.iter().enumerate() {
        let TierStats { used_bytes, capacity_bytes, fills, fill_bytes, .. } = tier;
        let TierStats { restored, damaged, is_off, .. } = tier;
        line.push_str(&format!(
            " tier={number} used_bytes={used_bytes} capacity_bytes={capacity_bytes} fills={fills} \
             fill_bytes={fill_bytes} restored={restored} damaged={damaged} off={is_off}"
        ));
    }
    let origin = stats.origin;
    line.push_str(&format!(" origin_bytes={}", origin.bytes + origin.copier_bytes));
    line
}

/// Interval of checks for the owner's end, for signals and for the copier.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The most characters of a command line in a message.
const MAX_COMMAND: usize = 120;
const CACHED_EXAMPLES: &str = "\
Examples:
  dlfs cached nvme-tcp://node1/nqn.2026-11.io.dlfs:train --tier ram:20G --tier file:/nvme/cache:200G
  dlfs cached train.dlfs --tier ram:20G --wait       # takes over from a job that runs

A job that names the same tiers attaches: dlfs read, dlfs.open(..., tiers=[...]) in Python. When the
image gets a new generation, end it and start it again: it keeps the generation that it has opened.

Signals: SIGINT and SIGTERM end it, SIGUSR1 writes a line of statistics to the log, SIGHUP changes
nothing.
Exit code 1 when a job owns the tiers already; the message names it.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_with_its_command_where_it_is_known() {
        let own = describe(std::process::id());
        assert!(own.starts_with(&format!("process {} (", std::process::id())), "{own}");
        assert_eq!(describe(0), "process 0");
    }

    #[test]
    fn the_command_line_of_a_process_does_not_reach_the_terminal_as_it_is() {
        use std::io::Read as _;
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read x", "red\x1b[31m\nline"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap(); // its command line is there
        let id = child.id();
        let described = describe(id);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(described, format!("process {id} (sh -c echo; read x red\\u{{1b}}[31m\\nline)"));
    }
}
