//! The human-readable text, in fio's layout.

use std::fmt::Write as _;

use super::numbers::{binary, count, decimal, latency_unit, rate, short};
use super::{Entry, VERSION};
use crate::options::Job;
use crate::options::job::Engine;
use crate::run::Task;
use crate::stats::depths::{CALLS, LEVELS};
use crate::stats::latency::Latency;
use crate::stats::{DIRECTIONS, Direction};

/// The header, printed before the run.
pub(crate) fn header(tasks: &[Task]) -> String {
    let mut text = String::new();
    for task in tasks.iter().filter(|task| task.number == 0) {
        let job = &task.job;
        let _ = writeln!(text, "{}: (g={}): {}", job.name, task.group, what(job)); // to a string
        if job.numjobs > 1 {
            text.push_str("...\n");
        }
    }
    let threads = tasks.len();
    let plural = if threads == 1 { "" } else { "s" };
    let _ = writeln!(text, "{VERSION}\nStarting {threads} thread{plural}");
    text
}

fn what(job: &Job) -> String {
    if job.pattern.samples {
        let samples = &job.samples;
        return format!(
            "rw=samples, order={}, batch_size={}, epochs={}, prefetch_window={}",
            samples.order,
            samples.batch_size,
            samples.epochs,
            binary(samples.window as f64)
        );
    }
    let range = |direction| {
        let (low, high) = job.block_range_of(direction);
        format!("{}-{}", binary(low as f64), binary(high as f64))
    };
    format!(
        "rw={}, bs=(R) {}, (W) {}, ioengine={}, iodepth={}",
        job.rw,
        range(0),
        range(1),
        job.engine.name(),
        job.depth()
    )
}

/// The figures of all entries, then of the groups.
pub(crate) fn result(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        text.push('\n');
        one(entry, &mut text);
    }
    let mut groups: Vec<usize> = entries.iter().map(|entry| entry.group).collect();
    groups.dedup();
    for group in groups {
        let members = entries.iter().filter(|entry| entry.group == group);
        group_status(group, &members.collect::<Vec<_>>(), &mut text);
    }
    text
}

fn one(entry: &Entry, text: &mut String) {
    let Entry { job, stats, .. } = entry;
    let name = &job.name;
    let group = entry.group;
    let jobs = entry.jobs;
    let error = entry.error;
    let why = match error {
        0 => String::new(),
        errno => format!(" ({})", std::io::Error::from_raw_os_error(errno)),
    };
    // Writing to a string does not fail, here and below.
    let _ = writeln!(text, "{name}: (groupid={group}, jobs={jobs}): err={error:2}{why}");
    if let Some(description) = &job.description {
        let _ = writeln!(text, "  Description  : [{description}]");
    }
    for (label, direction) in ["read", "write"].iter().zip(&stats.directions) {
        if direction.ios > 0 {
            direction_lines(job, label, direction, text);
        }
    }
    if stats.sync.count > 0 {
        let _ = writeln!(text, "  fsync/fdatasync:");
        latency_line("sync", &stats.sync, text);
    }
    if !job.disable_clat {
        shares(stats, text);
    }
    let cpu = &stats.cpu;
    let _ = writeln!(
        text,
        "  cpu          : usr={:.2}%, sys={:.2}%, ctx={}, majf={}, minf={}",
        cpu.user_percent(),
        cpu.sys_percent(),
        cpu.switches,
        cpu.major_faults,
        cpu.minor_faults
    );
    if !job.pattern.samples {
        depths(entry, text);
    }
    extras(entry, text);
}

fn direction_lines(job: &Job, label: &str, direction: &Direction, text: &mut String) {
    let bytes = direction.bytes as f64;
    let ms = direction.runtime_ms;
    let _ = writeln!(
        text,
        "  {label}: IOPS={}, BW={}({}/{ms}msec)",
        count(direction.ios_per_s()),
        rate(direction.bytes_per_s()),
        binary(bytes)
    );
    if !job.disable_slat && direction.slat.count > 0 {
        latency_line("slat", &direction.slat, text);
    }
    if !job.disable_clat && direction.clat.count > 0 {
        latency_line("clat", &direction.clat, text);
    }
    if !job.disable_lat && direction.lat.count > 0 {
        latency_line(" lat", &direction.lat, text);
    }
    if job.slat_percentiles {
        percentiles("slat", &direction.slat, &job.percentile_list, text);
    }
    match (job.clat_percentiles && !job.disable_clat, job.lat_percentiles) {
        (_, true) => percentiles("lat", &direction.lat, &job.percentile_list, text),
        (true, false) => percentiles("clat", &direction.clat, &job.percentile_list, text),
        (false, false) => {}
    }
    let bandwidth = direction.bandwidth.summary();
    if bandwidth.samples > 0 {
        let (unit, per) = match bandwidth.max {
            max if max >= 10_240.0 => ("MiB/s", 1024.0),
            _ => ("KiB/s", 1.0),
        };
        let share = direction.bandwidth_share();
        let _ = writeln!(
            text,
            "   bw ({unit:>7}): min={:5.0}, max={:5.0}, per={share:.2}%, avg={:.2}, stdev={:.2}, samples={}",
            bandwidth.min / per,
            bandwidth.max / per,
            bandwidth.mean / per,
            bandwidth.deviation / per,
            bandwidth.samples
        );
    }
    let iops = direction.iops.summary();
    if iops.samples > 0 {
        let _ = writeln!(
            text,
            "   iops        : min={:5.0}, max={:5.0}, avg={:.2}, stdev={:.2}, samples={}",
            iops.min, iops.max, iops.mean, iops.deviation, iops.samples
        );
    }
}

fn latency_line(label: &str, latency: &Latency, text: &mut String) {
    let (unit, per) = latency_unit(latency.min(), latency.max());
    let number = |ns: u64| match ns as f64 / per {
        value if value < 10_000.0 => format!("{value:.0}"),
        value => short(value, 1000.0, &["", "k", "M"]),
    };
    let _ = writeln!(
        text,
        "    {label} ({unit}): min={}, max={}, avg={:.2}, stdev={:.2}",
        number(latency.min()),
        number(latency.max()),
        latency.mean() / per,
        latency.deviation() / per
    );
}

fn percentiles(label: &str, latency: &Latency, list: &[f64], text: &mut String) {
    let (unit, per) = latency_unit(latency.min(), latency.max());
    let _ = writeln!(text, "    {label} percentiles ({unit}):");
    let values: Vec<u64> =
        list.iter().map(|&p| (latency.percentile(p) as f64 / per).round() as u64).collect();
    let width = values.last().map_or(1, |last| last.to_string().len());
    let cells: Vec<String> = list
        .iter()
        .zip(&values)
        .map(|(percent, value)| format!("{percent:5.2}th=[{value:width$}]"))
        .collect();
    for row in cells.chunks(4) {
        let _ = writeln!(text, "     | {}", row.join(", "));
    }
}

/// Shares of latencies by decimal steps, as in fio.
fn shares(stats: &crate::stats::Stats, text: &mut String) {
    for (unit, steps) in latency_shares(stats) {
        let cells: Vec<String> = steps
            .iter()
            .filter(|(_, percent)| *percent > 0.0)
            .map(|(limit, percent)| format!("{limit}={:.2}%", percent.max(0.01)))
            .collect();
        if !cells.is_empty() {
            let _ = writeln!(text, "  lat ({unit})   : {}", cells.join(", "));
        }
    }
}

/// Unit, then limit and percent of each step; latencies above all limits come last, as `>=2000`.
pub(crate) fn latency_shares(
    stats: &crate::stats::Stats,
) -> Vec<(&'static str, Vec<(String, f64)>)> {
    let steps = [2_u64, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
    let units = [("nsec", 1_u64), ("usec", 1_000), ("msec", 1_000_000)];
    let mut limits: Vec<u64> = units.iter().flat_map(|u| steps.iter().map(|s| s * u.1)).collect();
    limits.push(2_000_000_000);
    let mut counts = vec![0; limits.len() + 1];
    for direction in &stats.directions {
        for (sum, more) in counts.iter_mut().zip(direction.clat.below(&limits)) {
            *sum += more;
        }
    }
    let all: u64 = counts.iter().sum();
    let percent = |count: u64| if all == 0 { 0.0 } else { 100.0 * count as f64 / all as f64 };
    let mut shares: Vec<(&str, Vec<(String, f64)>)> = Vec::new();
    for (at, (unit, _)) in units.iter().enumerate() {
        let of_unit = &counts[at * steps.len()..(at + 1) * steps.len()];
        let named = steps.iter().zip(of_unit).map(|(step, &n)| (step.to_string(), percent(n)));
        shares.push((unit, named.collect()));
    }
    if let Some((_, milliseconds)) = shares.last_mut() {
        milliseconds.push(("2000".to_owned(), percent(counts[30])));
        milliseconds.push((">=2000".to_owned(), percent(counts[31])));
    }
    shares
}

fn depths(entry: &Entry, text: &mut String) {
    let [level, submit, complete] = entry.stats.depths.percent();
    let line = |label: &str, names: &[&str; 7], shares: [f64; 7]| {
        let cells = names.iter().zip(shares).map(|(name, share)| format!("{name}={share:.1}%"));
        format!("  {label}: {}\n", cells.collect::<Vec<_>>().join(", "))
    };
    text.push_str(&line("IO depths    ", &LEVELS, level));
    text.push_str(&line("   submit    ", &CALLS, submit));
    text.push_str(&line("   complete  ", &CALLS, complete));
    let [read, write] = &entry.stats.directions;
    let _ = writeln!(
        text,
        "     issued rwts: total={},{},0,{} short={},{},0,0 dropped=0,0,0,0",
        read.ios, write.ios, entry.stats.sync.count, read.short_ios, write.short_ios
    );
    if entry.stats.errors > 0 {
        let errors = entry.stats.errors;
        let _ = writeln!(
            text,
            "     errors    : total={errors}, first_error={}",
            entry.stats.first_error
        );
    }
    let depth = entry.job.depth();
    let _ =
        writeln!(text, "     latency   : target=0, window=0, percentile=100.00%, depth={depth}");
}

/// Appends the figures that fio does not have.
fn extras(entry: &Entry, text: &mut String) {
    if let Some(message) = &entry.message {
        let _ = writeln!(text, "     first error: {}", message.replace('\n', " "));
    }
    if entry.stats.verified > 0 {
        let _ = writeln!(text, "     verified  : {}", entry.stats.verified);
    }
    if entry.job.engine == Engine::Null
        && let Some(ns) = cpu_ns_per_io(entry)
    {
        let _ = writeln!(text, "  overhead     : {ns:.1} ns of CPU time an I/O: the tool itself");
    }
    if let Some(samples) = &entry.samples {
        sample_lines(samples, text);
    }
}

/// CPU time of the job's threads per I/O.
pub(crate) fn cpu_ns_per_io(entry: &Entry) -> Option<f64> {
    let ios: u64 = entry.stats.directions.iter().map(|direction| direction.ios).sum();
    (ios > 0).then(|| entry.stats.cpu.total_s() * 1e9 / ios as f64)
}

fn sample_lines(samples: &crate::samples::SampleFigures, text: &mut String) {
    let _ = writeln!(
        text,
        "  samples      : {} samples/s, {} batches/s; {} samples, {} batches, {} epochs, {} verified",
        count(samples.samples_per_s()),
        count(samples.batches_per_s()),
        samples.samples,
        samples.batches,
        samples.epochs,
        samples.verified
    );
    let stalled =
        100.0 * samples.stall_s / (samples.seconds * samples.accelerators as f64).max(1e-9);
    let _ = writeln!(
        text,
        "     waiting   : first batch after {:.1} ms, stalled {:.3} s ({stalled:.1}% of the time)",
        samples.first_batch_s * 1e3,
        samples.stall_s
    );
    let _ = writeln!(
        text,
        "     computing : emulated {:.3} s, accelerator utilisation {:.2}%",
        samples.compute_s,
        samples.utilisation()
    );
    let _ = writeln!(
        text,
        "     CPU time  : {:.3} s a GB, {:.3} s a million samples; {} commands, {} read",
        samples.cpu_s_per_gb(),
        samples.cpu_s_per_million(),
        samples.commands,
        binary(samples.read_bytes as f64)
    );
}

fn group_status(group: usize, members: &[&Entry], text: &mut String) {
    let _ = writeln!(text, "\nRun status group {group} (all jobs):");
    for (direction, name) in DIRECTIONS.iter().enumerate() {
        let all: Vec<&Direction> =
            members.iter().map(|e| &e.stats.directions[direction]).filter(|d| d.ios > 0).collect();
        if all.is_empty() {
            continue;
        }
        let bytes = all.iter().fold(0_u64, |sum, d| sum.saturating_add(d.bytes));
        let longest = all.iter().map(|d| d.runtime_ms).max().unwrap_or(1).max(1);
        let shortest = all.iter().map(|d| d.runtime_ms).min().unwrap_or(1);
        let rates = all.iter().map(|d| d.bytes_per_s());
        let (low, high) =
            rates.fold((f64::INFINITY, 0.0_f64), |ends, r| (ends.0.min(r), ends.1.max(r)));
        let together = bytes as f64 * 1000.0 / longest as f64;
        let _ = writeln!(
            text,
            "{:>7}: bw={}, {}/s-{}/s ({}/s-{}/s), io={} ({}), run={shortest}-{longest}msec",
            name.to_uppercase(),
            rate(together),
            binary(low),
            binary(high),
            decimal(low),
            decimal(high),
            binary(bytes as f64),
            decimal(bytes as f64)
        );
    }
}
