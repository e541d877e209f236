//! `--report FILE.html`: one self-contained page, without network or scripts.

use std::fmt::Write as _;

use super::chart::{Chart, Scale, Series};
use super::fio_json::calendar;
use super::normal::{cpu_ns_per_io, latency_shares};
use super::numbers::{binary, count};
use super::{Entry, Head, VERSION};
use crate::stats::Direction;

/// The page.
pub(super) fn page(head: &Head<'_>, entries: &[Entry]) -> String {
    let names: Vec<String> = entries.iter().map(|entry| escaped(&entry.job.name)).collect();
    let title = format!("dlfs-bench: {}", names.join(", "));
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    machine(head, &mut text);
    for entry in entries {
        job(entry, &mut text);
    }
    text.push_str("</body></html>\n");
    text
}

fn machine(head: &Head<'_>, text: &mut String) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':'))
            .map_or(String::new(), |(_, v)| v.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    let mut rows = vec![
        ("begun", format!("{} (universal time)", calendar(head.began_ms / 1000))),
        ("program", VERSION.to_owned()),
        ("processors", format!("{cpus}, {}", field(&read("/proc/cpuinfo"), "model name"))),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
    ];
    for (key, value) in head.global {
        rows.push(("global option", format!("{key}={value}")));
    }
    table("machine and run", &rows, text);
}

fn job(entry: &Entry, text: &mut String) {
    let name = escaped(&entry.job.name);
    // Writing to a string does not fail, here and below.
    let _ = writeln!(text, "<section><h2>{name}</h2>");
    if let Some(message) = &entry.message {
        let _ =
            writeln!(text, "<p class=\"wrong\">error {}: {}</p>", entry.error, escaped(message));
    }
    table("job", &options_of(entry), text);
    table("figures", &figures_of(entry), text);
    let used: Vec<(&str, &Direction)> = ["read", "write"]
        .into_iter()
        .zip(&entry.stats.directions)
        .filter(|(_, direction)| direction.ios > 0)
        .collect();
    percentile_table(entry, &used, text);
    distribution_chart(&used, text);
    throughput_chart(entry, &used, text);
    shares_table(entry, text);
    text.push_str("</section>\n");
}

fn options_of(entry: &Entry) -> Vec<(&str, String)> {
    entry.job.given.iter().map(|(key, value)| (key.as_str(), value.clone())).collect()
}

fn figures_of(entry: &Entry) -> Vec<(&'static str, String)> {
    let mut rows = vec![("jobs", entry.jobs.to_string()), ("error", entry.error.to_string())];
    for (name, direction) in ["read", "write"].into_iter().zip(&entry.stats.directions) {
        if direction.ios > 0 {
            rows.push((
                name,
                format!(
                    "{} IOPS, {}/s, {} in {} ms",
                    count(direction.ios_per_s()),
                    binary(direction.bytes_per_s()),
                    binary(direction.bytes as f64),
                    direction.runtime_ms
                ),
            ));
        }
    }
    let cpu = &entry.stats.cpu;
    rows.push((
        "CPU",
        format!("{:.1} % user, {:.1} % system", cpu.user_percent(), cpu.sys_percent()),
    ));
    if let Some(ns) = cpu_ns_per_io(entry) {
        rows.push(("CPU time an I/O", format!("{ns:.0} ns")));
    }
    if entry.stats.verified > 0 {
        rows.push(("verified", entry.stats.verified.to_string()));
    }
    if let Some(s) = &entry.samples {
        rows.push((
            "samples",
            format!("{} a second, {} in all", count(s.samples_per_s()), s.samples),
        ));
        rows.push((
            "batches",
            format!("{} a second, {} in all", count(s.batches_per_s()), s.batches),
        ));
        rows.push(("first batch", format!("after {:.1} ms", s.first_batch_s * 1e3)));
        rows.push(("stalled", format!("{:.3} s of {:.3} s", s.stall_s, s.seconds)));
        rows.push(("accelerator utilisation", format!("{:.2} %", s.utilisation())));
        rows.push(("CPU time a GB", format!("{:.3} s", s.cpu_s_per_gb())));
        rows.push(("CPU time a million samples", format!("{:.3} s", s.cpu_s_per_million())));
    }
    rows
}

fn percentile_table(entry: &Entry, used: &[(&str, &Direction)], text: &mut String) {
    text.push_str(
        "<h3>Completion latency</h3>\n<table class=\"percentiles\"><tr><th>percentile</th>",
    );
    for (name, _) in used {
        let _ = write!(text, "<th>{name}, &micro;s</th>");
    }
    text.push_str("</tr>\n");
    for &percent in &entry.job.percentile_list {
        let _ = write!(text, "<tr><td>{percent}</td>");
        for (_, direction) in used {
            let _ = write!(text, "<td>{:.2}</td>", direction.clat.percentile(percent) as f64 / 1e3);
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
}

fn distribution_chart(used: &[(&str, &Direction)], text: &mut String) {
    let series = used.iter().map(|(name, direction)| {
        let bins = direction.clat.bins();
        let all: u64 = bins.iter().map(|bin| bin.1).sum();
        let mut sum = 0;
        let points = bins.iter().map(|&(ns, count)| {
            sum += count;
            (ns.max(1) as f64 / 1e3, 100.0 * sum as f64 / all.max(1) as f64)
        });
        Series { name: (*name).to_owned(), points: points.collect() }
    });
    let chart = Chart {
        title: "Share of I/Os that took at most so long",
        x: "completion latency in µs",
        y: "percent",
        scale: Scale::Logarithmic,
        series: series.collect(),
    };
    text.push_str(&chart.svg());
}

fn throughput_chart(entry: &Entry, used: &[(&str, &Direction)], text: &mut String) {
    let every_s = entry.job.bwavgtime_ms as f64 / 1e3;
    let series = used.iter().map(|(name, direction)| {
        let values = direction.bandwidth.values().iter().zip(1..);
        let points = values.map(|(kib, at)| (f64::from(at) * every_s, kib / 1024.0));
        Series { name: (*name).to_owned(), points: points.collect() }
    });
    let chart = Chart {
        title: "Throughput over time",
        x: "seconds",
        y: "MiB/s",
        scale: Scale::Linear,
        series: series.collect(),
    };
    text.push_str(&chart.svg());
}

fn shares_table(entry: &Entry, text: &mut String) {
    let mut rows = Vec::new();
    for (unit, steps) in latency_shares(&entry.stats) {
        for (limit, percent) in steps.into_iter().filter(|(_, percent)| *percent >= 0.005) {
            rows.push((format!("{limit} {unit}"), format!("{percent:.2} %")));
        }
    }
    let rows: Vec<(&str, String)> = rows.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    table("shares of latencies", &rows, text);
}

fn table(caption: &str, rows: &[(&str, String)], text: &mut String) {
    let _ = writeln!(text, "<table><caption>{}</caption>", escaped(caption));
    for (key, value) in rows {
        let _ = writeln!(text, "<tr><th>{}</th><td>{}</td></tr>", escaped(key), escaped(value));
    }
    text.push_str("</table>\n");
}

/// Escapes text for HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;\
background:#fff}h1{font-size:1.5rem}h2{border-top:1px solid #ccc;padding-top:1rem}table{border-collapse:\
collapse;margin:1rem 0}caption{text-align:left;font-weight:600}th,td{padding:.15rem .8rem .15rem 0;\
text-align:left;font-weight:400;vertical-align:top}th{color:#57606a}.percentiles td,.percentiles th{\
text-align:right}.wrong{color:#b00020}svg{display:block;width:100%;height:auto;margin:1rem 0}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_jobs_cannot_become_markup() {
        assert_eq!(escaped("<a href=\"x\">&</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&lt;/a&gt;");
    }
}
