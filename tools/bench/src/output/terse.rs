//! fio's terse lines, versions 3 and 5: one line a job, fields separated by semicolons.

use super::normal::latency_shares;
use super::{Entry, VERSION};
use crate::options::Job;
use crate::stats::latency::Latency;
use crate::stats::{Direction, PercentileOptions};

/// One line for each entry.
pub(crate) fn lines(entries: &[Entry], version: u64) -> String {
    entries.iter().map(|entry| line(entry, version)).collect()
}

fn line(entry: &Entry, version: u64) -> String {
    let Entry { job, stats, .. } = entry;
    let mut fields = vec![
        version.to_string(),
        VERSION.to_owned(),
        job.name.replace(';', ","),
        entry.group.to_string(),
        entry.error.to_string(),
    ];
    for d in &stats.directions {
        direction(job, d, version, &mut fields);
    }
    if version == 5 {
        direction(job, &Direction::new(PercentileOptions::default()), version, &mut fields);
    }
    let cpu = &stats.cpu;
    fields.push(format!("{:.6}%", cpu.user_percent()));
    fields.push(format!("{:.6}%", cpu.sys_percent()));
    fields.extend([cpu.switches, cpu.major_faults, cpu.minor_faults].map(|n| n.to_string()));
    let [level, _, _] = stats.depths.percent();
    fields.extend(level.iter().map(|share| format!("{share:.1}%")));
    // fio's steps here are microseconds and milliseconds; shorter latencies count in the first step.
    let shares = latency_shares(stats);
    let nanoseconds: f64 = shares[0].1.iter().map(|step| step.1).sum();
    for (at, step) in shares[1].1.iter().enumerate() {
        let percent = step.1 + if at == 0 { nanoseconds } else { 0.0 };
        fields.push(format!("{percent:.2}%"));
    }
    fields.extend(shares[2].1.iter().map(|step| format!("{:.2}%", step.1)));
    if entry.stats.errors > 0 {
        fields.extend([entry.stats.errors.to_string(), entry.stats.first_error.to_string()]);
    }
    if let Some(description) = &job.description {
        fields.push(description.replace(';', ","));
    }
    fields.join(";") + "\n"
}

fn direction(job: &Job, d: &Direction, version: u64, fields: &mut Vec<String>) {
    fields.push((d.bytes / 1024).to_string());
    fields.push(((d.bytes_per_s() / 1024.0) as u64).to_string());
    fields.push((d.ios_per_s() as u64).to_string());
    fields.push(d.runtime_ms.to_string());
    moments(&d.slat, fields);
    moments(&d.clat, fields);
    for at in 0..20 {
        fields.push(match job.percentile_list.get(at).filter(|_| job.clat_percentiles) {
            Some(&percent) => format!("{percent:.6}%={}", d.clat.percentile(percent) / 1000),
            None => "0%=0".to_owned(),
        });
    }
    moments(&d.lat, fields);
    let bandwidth = d.bandwidth.summary();
    fields.push((bandwidth.min as u64).to_string());
    fields.push((bandwidth.max as u64).to_string());
    fields.push(format!("{:.6}%", d.bandwidth_share().min(100.0)));
    fields.extend([bandwidth.mean, bandwidth.deviation].map(|value| format!("{value:.6}")));
    if version == 5 {
        let iops = d.iops.summary();
        fields.push(bandwidth.samples.to_string());
        fields.extend([iops.min as u64, iops.max as u64].map(|value| value.to_string()));
        fields.extend([iops.mean, iops.deviation].map(|value| format!("{value:.6}")));
        fields.push(iops.samples.to_string());
    }
}

/// Minimum, maximum, mean and deviation in microseconds.
fn moments(latency: &Latency, fields: &mut Vec<String>) {
    fields.push((latency.min() / 1000).to_string());
    fields.push((latency.max() / 1000).to_string());
    fields.push(format!("{:.6}", latency.mean() / 1000.0));
    fields.push(format!("{:.6}", latency.deviation() / 1000.0));
}
