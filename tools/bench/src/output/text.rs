//! The result as text in fio's layout. Lines about errors, verified blocks, samples and the tool's overhead are added
//! to fio's.

use super::{Entry, VERSION, latency_shares};
use crate::job::{Engine, Job, Pattern, value_name};
use crate::run::Task;
use crate::samples::SampleFigures;
use crate::stats::{CALLS, DIRECTIONS, Direction, LEVELS, Latency, Stats, Summary, ratio, summary};

/// The header, printed before the run.
pub(super) fn header(tasks: &[Task]) -> String {
    let mut text = String::new();
    for Task { job, group, .. } in tasks.iter().filter(|task| task.number == 0) {
        let more = if job.numjobs > 1 { "...\n" } else { "" };
        text += &format!("{}: (g={group}): {}\n{more}", job.name, summary_of(job));
    }
    let threads = tasks.len();
    let plural = if threads == 1 { "" } else { "s" };
    text + &format!("{VERSION}\nStarting {threads} thread{plural}\n")
}

/// The options of a job in the header.
fn summary_of(job: &Job) -> String {
    if job.rw == Pattern::Samples {
        let samples = &job.samples;
        return format!(
            "rw=samples, order={}, batch_size={}, epochs={}, prefetch_window={}",
            value_name(samples.order),
            samples.batch_size,
            samples.epochs,
            binary(samples.prefetch_window as f64)
        );
    }
    let [reads, writes] = [0, 1].map(|direction| {
        let sizes = || job.split(direction).into_iter().map(|piece| piece.0);
        let ends = [sizes().min(), sizes().max()];
        ends.map(|size| binary(size.unwrap_or(0) as f64)).join("-")
    });
    format!(
        "rw={}, bs=(R) {reads}, (W) {writes}, ioengine={}, iodepth={}",
        value_name(job.rw),
        value_name(job.ioengine),
        job.iodepth
    )
}

/// The figures of all entries, then of the groups.
pub(super) fn result(entries: &[Entry]) -> String {
    let mut text: String = entries.iter().map(entry_text).collect();
    let mut groups: Vec<usize> = entries.iter().map(|entry| entry.group).collect();
    groups.dedup();
    for group in groups {
        text += &format!("\nRun status group {group} (all jobs):\n");
        let members: Vec<&Entry> = entries.iter().filter(|entry| entry.group == group).collect();
        text.extend((0..2).filter_map(|direction| group_line(direction, &members)));
    }
    text
}

/// The text about one entry.
fn entry_text(entry: &Entry) -> String {
    let Entry { job, group, jobs, stats } = entry;
    let error = stats.first_error;
    let why = match error {
        0 => String::new(),
        errno => format!(" ({})", std::io::Error::from_raw_os_error(errno)),
    };
    let mut text = format!("\n{}: (groupid={group}, jobs={jobs}): err={error:2}{why}\n", job.name);
    for (label, direction) in DIRECTIONS.iter().zip(&stats.directions) {
        if direction.ios > 0 {
            text += &direction_lines(job, label, direction);
        }
    }
    if !stats.sync.is_empty() {
        text += &format!("  fsync/fdatasync:\n{}", latency_line("sync", &stats.sync));
    }
    for (unit, steps) in latency_shares(stats) {
        let some = steps.iter().filter(|(_, percent)| *percent > 0.0);
        let cells = some.map(|(limit, percent)| format!("{limit}={:.2}%", percent.max(0.01)));
        let cells: Vec<String> = cells.collect();
        if !cells.is_empty() {
            text += &format!("  lat ({unit})   : {}\n", cells.join(", "));
        }
    }
    let [user, sys] = stats.cpu.percent();
    let [switches, majf, minf] = stats.cpu.events();
    text += &format!(
        "  cpu          : usr={user:.2}%, sys={sys:.2}%, ctx={switches}, majf={majf}, minf={minf}\n"
    );
    match &stats.samples {
        Some(samples) => text += &sample_lines(samples),
        None => text += &depth_lines(stats),
    }
    text + &extra_lines(entry)
}

/// The lines about reads, or about writes.
fn direction_lines(job: &Job, label: &str, direction: &Direction) -> String {
    let Direction { slat, clat, lat, .. } = direction;
    let mut text = format!(
        "  {label}: IOPS={}, BW={}({}/{}msec)\n",
        count(direction.ios_per_s()),
        rate(direction.bytes_per_s()),
        binary(direction.bytes as f64),
        direction.runtime_ms
    );
    for (label, latency) in [("slat", slat), ("clat", clat), (" lat", lat)] {
        if !latency.is_empty() {
            text += &latency_line(label, latency);
        }
    }
    text += &percentiles(clat, &job.percentile_list);
    let bandwidth = summary(&direction.bandwidth);
    let share = format!("per={:.2}%, ", direction.bandwidth_share());
    let (unit, per) = if bandwidth.max >= 10_240.0 { ("MiB/s", 1024.0) } else { ("KiB/s", 1.0) };
    text += &series_line(&format!("bw ({unit:>7})"), bandwidth, per, &share);
    text + &series_line("iops        ", summary(&direction.iops), 1.0, "")
}

/// The line about a rate over time; empty without a value. The values are shown divided by `per`.
fn series_line(label: &str, found: Summary, per: f64, share: &str) -> String {
    let Summary { min, max, mean, deviation, count } = found;
    if count == 0 {
        return String::new();
    }
    let [min, max, mean, deviation] = [min, max, mean, deviation].map(|value| value / per);
    format!(
        "   {label}: min={min:5.0}, max={max:5.0}, {share}avg={mean:.2}, stdev={deviation:.2}, samples={count}\n"
    )
}

/// The line about a kind of latency.
fn latency_line(label: &str, latency: &Latency) -> String {
    let (unit, per) = latency_unit(latency.min(), latency.max());
    let [min, max] = [latency.min(), latency.max()].map(|ns| match ns as f64 / per {
        value if value < 10_000.0 => format!("{value:.0}"),
        value => short(value, 1000.0, &["", "k", "M"]),
    });
    let mean = latency.mean() / per;
    let deviation = latency.stdev() / per;
    format!("    {label} ({unit}): min={min}, max={max}, avg={mean:.2}, stdev={deviation:.2}\n")
}

/// The table of the percentiles of completion latency.
fn percentiles(clat: &Latency, list: &[f64]) -> String {
    let (unit, per) = latency_unit(clat.min(), clat.max());
    let value = |percent: f64| (clat.percentile(percent) as f64 / per).round();
    let width = list.last().map_or(1, |&last| value(last).to_string().len());
    let mut text = format!("    clat percentiles ({unit}):\n");
    for row in list.chunks(4) {
        let cells = row.iter().map(|&p| format!("{p:5.2}th=[{:width$}]", value(p)));
        text += &format!("     | {}\n", cells.collect::<Vec<_>>().join(", "));
    }
    text
}

/// The lines about queue depths.
fn depth_lines(stats: &Stats) -> String {
    let [level, submit, complete] = stats.depths.percent();
    let line = |label: &str, names: &[&str; 7], shares: [f64; 7]| {
        let cells = names.iter().zip(shares).map(|(name, share)| format!("{name}={share:.1}%"));
        format!("  {label}: {}\n", cells.collect::<Vec<_>>().join(", "))
    };
    let [read, write] = &stats.directions;
    line("IO depths    ", &LEVELS, level)
        + &line("   submit    ", &CALLS, submit)
        + &line("   complete  ", &CALLS, complete)
        + &format!(
            "     issued rwts: total={},{},0,{} short={},{},0,0 dropped=0,0,0,0\n",
            read.ios,
            write.ios,
            stats.sync.len(),
            read.short_ios,
            write.short_ios
        )
}

/// Errors, and figures that fio lacks.
fn extra_lines(entry: &Entry) -> String {
    let Stats { errors, first_error, verified, message, .. } = &entry.stats;
    let mut text = String::new();
    if *errors > 0 {
        text += &format!("     errors    : total={errors}, first_error={first_error}\n");
        text += &format!("     first error: {}\n", message.replace('\n', " "));
    }
    if *verified > 0 {
        text += &format!("     verified  : {verified}\n");
    }
    if let Some(ns) = entry.stats.cpu_ns_per_io().filter(|_| entry.job.ioengine == Engine::Null) {
        text += &format!("  overhead     : {ns:.1} ns of CPU time an I/O: the tool itself\n");
    }
    text
}

/// The lines about a sample job.
fn sample_lines(samples: &SampleFigures) -> String {
    let SampleFigures { seconds, first_batch_ms, stall_s, compute_s, .. } = samples;
    let stalled = 100.0 * ratio(*stall_s, seconds * samples.accelerators as f64);
    [
        format!(
            "  samples      : {} samples/s, {} batches/s; {} samples, {} batches, {} epochs",
            count(samples.samples_per_s()),
            count(samples.batches_per_s()),
            samples.samples,
            samples.batches,
            samples.epochs
        ),
        format!(
            "     waiting   : first batch after {first_batch_ms:.1} ms, \
             stalled {stall_s:.3} s ({stalled:.1}% of the time)"
        ),
        format!(
            "     computing : emulated {compute_s:.3} s, accelerator utilisation {:.2}%",
            samples.utilisation()
        ),
        format!(
            "     CPU time  : {:.3} s a GB, {:.3} s a million samples; {} commands, {} read\n",
            samples.cpu_s_per_gb(),
            samples.cpu_s_per_million(),
            samples.commands,
            binary(samples.read_bytes as f64)
        ),
    ]
    .join("\n")
}

/// The line of one direction of a group, if the group transferred data in it.
fn group_line(direction: usize, members: &[&Entry]) -> Option<String> {
    let all = members.iter().map(|entry| &entry.stats.directions[direction]);
    let all: Vec<&Direction> = all.filter(|direction| direction.ios > 0).collect();
    let bytes = all.iter().fold(0_u64, |sum, d| sum.saturating_add(d.bytes)) as f64;
    let longest = all.iter().map(|d| d.runtime_ms).max()?;
    let shortest = all.iter().map(|d| d.runtime_ms).min()?;
    let low = all.iter().map(|d| d.bytes_per_s()).fold(f64::INFINITY, f64::min);
    let high = all.iter().map(|d| d.bytes_per_s()).fold(0.0, f64::max);
    Some(format!(
        "{:>7}: bw={}, {}/s-{}/s ({}/s-{}/s), io={} ({}), run={shortest}-{longest}msec\n",
        DIRECTIONS[direction].to_uppercase(),
        rate(1000.0 * ratio(bytes, longest as f64)),
        binary(low),
        binary(high),
        decimal(low),
        decimal(high),
        binary(bytes),
        decimal(bytes)
    ))
}

/// `value` with at most four digits: `1607k`, `12.3G`.
fn short(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value.max(0.0);
    let mut unit = 0;
    while value >= 9999.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 && value.fract() == 0.0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", units[unit])
}

/// A plain count: `950`, `1607k`.
fn count(value: f64) -> String {
    short(value.round(), 1000.0, &["", "k", "M", "G", "T"])
}

/// Bytes in powers of 1,024.
fn binary(bytes: f64) -> String {
    short(bytes.round(), 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Bytes in powers of 1,000.
fn decimal(bytes: f64) -> String {
    short(bytes.round(), 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Bytes per second in both units.
fn rate(bytes_per_s: f64) -> String {
    format!("{}/s ({}/s)", binary(bytes_per_s), decimal(bytes_per_s))
}

/// The unit for latencies from `min` to `max` nanoseconds: its name, and its length in nanoseconds.
fn latency_unit(min: u64, max: u64) -> (&'static str, f64) {
    match (min, max) {
        (2_000_001.., 100_000_000..) => ("msec", 1e6),
        (2_001.., 100_000..) => ("usec", 1e3),
        _ => ("nsec", 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_figures() {
        assert_eq!(count(950.0), "950");
        assert_eq!(count(1_607_000.0), "1607k");
        assert_eq!(count(12_345.0), "12.3k");
        assert_eq!(binary(13_207_024_435.2), "12.3GiB");
        assert_eq!(binary(6279.0 * 1048576.0), "6279MiB");
        assert_eq!(decimal(6_584_000_000.0), "6584MB");
    }
}
