//! The result as fio's JSON: the same keys in the same order; what fio does not have is under `dlfs`.

use super::json::Json;
use super::normal::{cpu_ns_per_io, latency_shares};
use super::{Entry, Head, VERSION};
use crate::options::Job;
use crate::options::job::Engine;
use crate::stats::depths::{CALLS, LEVELS};
use crate::stats::latency::Latency;
use crate::stats::{Direction, PercentileOptions};

/// The whole document; `plus`: with the bins of the histograms.
pub(super) fn document(head: &Head<'_>, entries: &[Entry], plus: bool) -> Json {
    let now_ms = head.began_ms + entries.iter().map(|e| e.elapsed_s * 1000).max().unwrap_or(0);
    let mut top = Json::object()
        .with("fio version", VERSION)
        .with("timestamp", now_ms / 1000)
        .with("timestamp_ms", now_ms)
        .with("time", calendar(now_ms / 1000));
    if !head.global.is_empty() {
        top = top.with("global options", options(head.global));
    }
    let jobs = entries.iter().map(|entry| job(entry, head, plus)).collect();
    top.with("jobs", Json::Array(jobs))
}

fn options(given: &[(String, String)]) -> Json {
    let text = |value: &str| if value.is_empty() { "1".to_owned() } else { value.to_owned() };
    Json::Object(given.iter().map(|(key, value)| (key.clone(), text(value).into())).collect())
}

fn job(entry: &Entry, head: &Head<'_>, plus: bool) -> Json {
    let Entry { job, stats, .. } = entry;
    let mut out = Json::object()
        .with("jobname", job.name.as_str())
        .with("groupid", entry.group)
        .with("job_start", head.began_ms + entry.began_ms)
        .with("error", entry.error)
        .with("eta", 0_u64)
        .with("elapsed", entry.elapsed_s)
        .with("job options", options(&job.given));
    if let Some(description) = &job.description {
        out = out.with("desc", description.as_str());
    }
    let [read, write] = &stats.directions;
    let trim = Direction::new(PercentileOptions::default());
    out = out
        .with("read", direction(job, read, plus))
        .with("write", direction(job, write, plus))
        .with("trim", direction(job, &trim, plus));
    let sync = Json::object()
        .with("total_ios", stats.sync.count)
        .with("lat_ns", latency(&stats.sync, Some(&job.percentile_list), plus));
    let [level, submit, complete] = stats.depths.percent();
    let cpu = &stats.cpu;
    out = out
        .with("sync", sync)
        .with("job_runtime", stats.runtime_ms)
        .with("usr_cpu", cpu.user_percent())
        .with("sys_cpu", cpu.sys_percent())
        .with("ctx", cpu.switches)
        .with("majf", cpu.major_faults)
        .with("minf", cpu.minor_faults)
        .with("iodepth_level", named(&LEVELS, level))
        .with("iodepth_submit", named(&CALLS, submit))
        .with("iodepth_complete", named(&CALLS, complete));
    for ((_, steps), key) in
        latency_shares(stats).into_iter().zip(["latency_ns", "latency_us", "latency_ms"])
    {
        let steps = steps.into_iter().map(|(limit, percent)| (limit, percent.into()));
        out = out.with(key, Json::Object(steps.collect()));
    }
    out = out
        .with("latency_depth", job.depth())
        .with("latency_target", 0_u64)
        .with("latency_percentile", 100.0)
        .with("latency_window", 0_u64);
    if stats.errors > 0 {
        out = out.with("total_err", stats.errors).with("first_error", stats.first_error);
    }
    out.with("dlfs", ours(entry))
}

fn direction(job: &Job, d: &Direction, plus: bool) -> Json {
    let kib = |bytes: f64| Json::Whole((bytes / 1024.0) as i128);
    let bandwidth = d.bandwidth.summary();
    let iops = d.iops.summary();
    let whole_rate = d.bytes_per_s();
    let list = |wanted: bool| wanted.then_some(&job.percentile_list);
    Json::object()
        .with("io_bytes", d.bytes)
        .with("io_kbytes", d.bytes / 1024)
        .with("bw_bytes", Json::Whole(whole_rate as i128))
        .with("bw", kib(whole_rate))
        .with("iops", d.ios_per_s())
        .with("runtime", d.runtime_ms)
        .with("total_ios", d.ios)
        .with("short_ios", d.short_ios)
        .with("drop_ios", 0_u64)
        .with("slat_ns", latency(&d.slat, list(job.slat_percentiles), plus))
        .with("clat_ns", latency(&d.clat, list(job.clat_percentiles), plus))
        .with("lat_ns", latency(&d.lat, list(job.lat_percentiles), plus))
        .with("bw_min", Json::Whole(bandwidth.min as i128))
        .with("bw_max", Json::Whole(bandwidth.max as i128))
        .with("bw_agg", d.bandwidth_share().min(100.0))
        .with("bw_mean", bandwidth.mean)
        .with("bw_dev", bandwidth.deviation)
        .with("bw_samples", bandwidth.samples)
        .with("iops_min", Json::Whole(iops.min as i128))
        .with("iops_max", Json::Whole(iops.max as i128))
        .with("iops_mean", iops.mean)
        .with("iops_stddev", iops.deviation)
        .with("iops_samples", iops.samples)
}

fn latency(latency: &Latency, list: Option<&Vec<f64>>, plus: bool) -> Json {
    let mut out = Json::object()
        .with("min", latency.min())
        .with("max", latency.max())
        .with("mean", latency.mean())
        .with("stddev", latency.deviation())
        .with("N", latency.count);
    if let Some(list) = list.filter(|_| latency.count > 0) {
        let values = list.iter().map(|&p| (format!("{p:.6}"), latency.percentile(p).into()));
        out = out.with("percentile", Json::Object(values.collect()));
        if plus {
            let bins = latency.bins().into_iter().map(|(ns, count)| (ns.to_string(), count.into()));
            out = out.with("bins", Json::Object(bins.collect()));
        }
    }
    out
}

fn named(names: &[&str; 7], shares: [f64; 7]) -> Json {
    Json::Object(
        names.iter().zip(shares).map(|(n, share)| ((*n).to_owned(), share.into())).collect(),
    )
}

/// Figures that fio does not have.
fn ours(entry: &Entry) -> Json {
    let mut out = Json::object().with("verified", entry.stats.verified);
    if let Some(ns) = cpu_ns_per_io(entry) {
        out = out.with("cpu_ns_per_io", ns);
    }
    if entry.job.engine == Engine::Null {
        out = out.with("overhead_ns_per_io", cpu_ns_per_io(entry).unwrap_or(0.0));
    }
    if let Some(message) = &entry.message {
        out = out.with("first_error_message", message.as_str());
    }
    if let Some(s) = &entry.samples {
        let samples = Json::object()
            .with("samples", s.samples)
            .with("bytes", s.bytes)
            .with("batches", s.batches)
            .with("epochs", s.epochs)
            .with("seconds", s.seconds)
            .with("samples_per_s", s.samples_per_s())
            .with("batches_per_s", s.batches_per_s())
            .with("first_batch_ms", s.first_batch_s * 1e3)
            .with("stall_s", s.stall_s)
            .with("compute_s", s.compute_s)
            .with("accelerators", s.accelerators)
            .with("accelerator_utilisation_percent", s.utilisation())
            .with("cpu_s", s.cpu_s)
            .with("cpu_s_per_gb", s.cpu_s_per_gb())
            .with("cpu_s_per_million_samples", s.cpu_s_per_million())
            .with("commands", s.commands)
            .with("read_bytes", s.read_bytes)
            .with("verified", s.verified);
        out = out.with("samples", samples);
    }
    out
}

/// `Sat Nov 21 23:50:04 2026`, in universal time.
pub(crate) fn calendar(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = seconds / 86_400;
    let rest = seconds % 86_400;
    // Days of eras of 400 years that begin on the first of March (Howard Hinnant's algorithm).
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 2 } else { month - 10 };
    let year = year_of_era + era * 400 + u64::from(month < 2);
    let weekday = DAYS[(days % 7) as usize];
    let name = MONTHS[month as usize];
    let hour = rest / 3600;
    let minute = rest / 60 % 60;
    let second = rest % 60;
    format!("{weekday} {name} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_c_library_writes_them() {
        assert_eq!(calendar(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(calendar(1_795_305_004), "Sat Nov 21 23:50:04 2026");
        assert_eq!(calendar(1_709_164_800), "Thu Feb 29 00:00:00 2024");
    }
}
