//! The result as JSON with fio's keys. Figures that fio lacks are under `dlfs`.

use serde_json::{Map, Value, json};

use super::{Entry, VERSION, latency_shares};
use crate::job::Engine;
use crate::request::Given;
use crate::stats::{CALLS, Direction, LEVELS, Latency, summary};

/// The JSON document of a run that began at `began_ms` milliseconds since 1970.
pub(super) fn document(began_ms: u64, global: &Given, entries: &[Entry]) -> String {
    let now_ms =
        began_ms + entries.iter().map(|entry| entry.stats.elapsed_s * 1000).max().unwrap_or(0);
    let mut top = json!({
        "fio version": VERSION,
        "timestamp": now_ms / 1000,
        "timestamp_ms": now_ms,
        "jobs": entries.iter().map(|entry| job(entry, began_ms)).collect::<Vec<_>>(),
    });
    if !global.is_empty() {
        top["global options"] = options(global);
    }
    format!("{top:#}\n")
}

/// Options as a JSON object.
fn options(given: &Given) -> Value {
    given.iter().map(|(key, value)| (key.clone(), value.as_str())).collect()
}

/// An entry as a JSON object.
fn job(entry: &Entry, began_ms: u64) -> Value {
    let Entry { job, stats, .. } = entry;
    let [read, write] = &stats.directions;
    let [level, submit, complete] = stats.depths.percent();
    let [user, sys] = stats.cpu.percent();
    let [switches, majf, minf] = stats.cpu.events();
    let mut out = json!({
        "jobname": job.name,
        "groupid": entry.group,
        "job_start": began_ms + stats.counts_after_ms,
        "error": stats.first_error,
        "eta": 0,
        "elapsed": stats.elapsed_s,
        "job options": options(&job.given),
        "read": direction(&job.percentile_list, read),
        "write": direction(&job.percentile_list, write),
        "trim": direction(&job.percentile_list, &Direction::default()),
        "sync": {
            "total_ios": stats.sync.len(),
            "lat_ns": latency(&stats.sync, &job.percentile_list),
        },
        "job_runtime": stats.runtime_ms,
        "usr_cpu": user,
        "sys_cpu": sys,
        "ctx": switches,
        "majf": majf,
        "minf": minf,
        "iodepth_level": named(&LEVELS, level),
        "iodepth_submit": named(&CALLS, submit),
        "iodepth_complete": named(&CALLS, complete),
        "latency_depth": job.iodepth,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
        "dlfs": dlfs_figures(entry),
    });
    for ((_, steps), key) in
        latency_shares(stats).into_iter().zip(["latency_ns", "latency_us", "latency_ms"])
    {
        out[key] = steps.into_iter().collect();
    }
    if stats.errors > 0 {
        out["total_err"] = stats.errors.into();
        out["first_error"] = stats.first_error.into();
    }
    out
}

/// The figures of one direction as a JSON object.
fn direction(percentiles: &[f64], d: &Direction) -> Value {
    let bandwidth = summary(&d.bandwidth);
    let iops = summary(&d.iops);
    json!({
        "io_bytes": d.bytes,
        "io_kbytes": d.bytes / 1024,
        "bw_bytes": d.bytes_per_s() as u64,
        "bw": (d.bytes_per_s() / 1024.0) as u64,
        "iops": d.ios_per_s(),
        "runtime": d.runtime_ms,
        "total_ios": d.ios,
        "short_ios": d.short_ios,
        "drop_ios": 0,
        "slat_ns": latency(&d.slat, &[]),
        "clat_ns": latency(&d.clat, percentiles),
        "lat_ns": latency(&d.lat, &[]),
        "bw_min": bandwidth.min as u64,
        "bw_max": bandwidth.max as u64,
        "bw_agg": d.bandwidth_share().min(100.0),
        "bw_mean": bandwidth.mean,
        "bw_dev": bandwidth.deviation,
        "bw_samples": bandwidth.count,
        "iops_min": iops.min as u64,
        "iops_max": iops.max as u64,
        "iops_mean": iops.mean,
        "iops_stddev": iops.deviation,
        "iops_samples": iops.count,
    })
}

/// A kind of latency as a JSON object.
fn latency(latency: &Latency, percentiles: &[f64]) -> Value {
    let mut out = json!({
        "min": latency.min(),
        "max": latency.max(),
        "mean": latency.mean(),
        "stddev": latency.stdev(),
        "N": latency.len(),
    });
    if !latency.is_empty() && !percentiles.is_empty() {
        let values = percentiles.iter().map(|&p| (format!("{p:.6}"), latency.percentile(p)));
        out["percentile"] = values.collect();
    }
    out
}

/// Shares with their names as a JSON object.
fn named(names: &[&str; 7], shares: [f64; 7]) -> Value {
    names.iter().zip(shares).map(|(name, share)| (*name, share)).collect()
}

/// Figures that fio lacks.
fn dlfs_figures(entry: &Entry) -> Value {
    let mut out = Map::new();
    out.insert("verified".to_owned(), entry.stats.verified.into());
    if let Some(ns) = entry.stats.cpu_ns_per_io() {
        out.insert("cpu_ns_per_io".to_owned(), ns.into());
        if entry.job.ioengine == Engine::Null {
            out.insert("overhead_ns_per_io".to_owned(), ns.into());
        }
    }
    if entry.stats.errors > 0 {
        out.insert("first_error_message".to_owned(), entry.stats.message.as_str().into());
    }
    if let Some(figures) = &entry.stats.samples {
        let mut samples = json!(figures);
        samples["samples_per_s"] = figures.samples_per_s().into();
        samples["batches_per_s"] = figures.batches_per_s().into();
        samples["accelerator_utilisation_percent"] = figures.utilisation().into();
        samples["cpu_s_per_gb"] = figures.cpu_s_per_gb().into();
        samples["cpu_s_per_million_samples"] = figures.cpu_s_per_million().into();
        out.insert("samples".to_owned(), samples);
    }
    out.into()
}
