//! Prints the tables.

use std::collections::BTreeMap;

use crate::cases::Case;
use crate::rows::{Measure, Row};
use crate::slice::Slice;
use crate::stats::{Estimate, estimate, median};
use crate::{Measured, support};

/// Prints one line per row, one per case, and the cases that could not be run.
pub(crate) fn print(
    rows: &[&Row],
    cases: &[Case],
    measured: &Measured,
    missing: &BTreeMap<String, String>,
    seed: u64,
) {
    println!(
        "\n| row | ours | other's | ratio | 90 % interval | bar | |\n|---|---|---|---|---|---|---|"
    );
    let mut met = 0;
    let mut judged = 0;
    for row in rows {
        if let Some((line, verdict)) = row_line(row, measured, seed) {
            println!("{line}");
            judged += usize::from(verdict.is_some());
            met += usize::from(verdict == Some(true));
        }
    }
    println!("\n{met} of {judged} bars met. Machine: {}", support::machine());
    println!(
        "\n| case | ops/s | MB/s | host CPU s/GB | target CPU s/GB | host CPU s/M | target CPU s/M \
         | host busy | target busy |\n|---|---|---|---|---|---|---|---|---|"
    );
    for case in cases {
        if let Some(slices) = measured.get(&case.id) {
            println!("{}", case_line(&case.id, slices));
        }
    }
    if !missing.is_empty() {
        println!("\nNot run:");
        missing.iter().for_each(|(case, why)| println!("- {case}: {why}"));
    }
}

fn row_line(row: &Row, measured: &Measured, seed: u64) -> Option<(String, Option<bool>)> {
    let ours = measured.get(row.ours)?;
    let of = |slices: &BTreeMap<u64, Slice>| {
        row.measure.show(median(slices.values().map(|slice| row.measure.of(slice)).collect()))
    };
    let (values, other) = match row.other {
        None => (ours.values().map(|slice| row.measure.of(slice)).collect(), String::new()),
        Some(other) => {
            let other = measured.get(other)?;
            let both = ours.iter().filter_map(|(round, ours)| Some((ours, other.get(round)?)));
            let ratio = |(a, b): (&Slice, &Slice)| row.measure.of(a) / row.measure.of(b);
            (both.map(ratio).collect::<Vec<f64>>(), of(other))
        }
    };
    let Estimate { median, low, high } = estimate(&values, seed)?;
    let verdict = row.bar.met(low, median, high);
    let word = verdict.map_or("", |met| if met { "met" } else { "MISSED" });
    // The unit determines a value's decimals; a ratio has two.
    let number = |value: f64| match (row.other, row.measure) {
        (None, Measure::WallMs) => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let line = format!(
        "| {} | {} | {other} | {} | {} to {} | {} | {word} |",
        row.title,
        of(ours),
        number(median),
        number(low),
        number(high),
        row.bar.show(),
    );
    Some((line, verdict))
}

fn case_line(id: &str, slices: &BTreeMap<u64, Slice>) -> String {
    let of = |value: &dyn Fn(&Slice) -> f64| median(slices.values().map(value).collect());
    let target = |slice: &Slice| slice.target_cpu_s.unwrap_or(f64::NAN);
    let or_dash = |value: f64, digits: usize| {
        if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
    };
    let host_busy = of(&|s| 100.0 * s.host_cpu_s / s.wall_s);
    let target_busy = of(&|s| 100.0 * target(s) / s.wall_s);
    format!(
        "| {id} | {:.0} | {:.0} | {} | {} | {} | {} | {} % | {} % |",
        of(&|s| s.ops_s()),
        of(&|s| s.bytes_s() / 1e6),
        or_dash(of(&|s| s.host_cpu_s_per_gb()), 3),
        or_dash(of(&|s| target(s) * 1e9 / s.done.bytes as f64), 3),
        or_dash(of(&|s| s.host_cpu_s_per_million()), 3),
        or_dash(of(&|s| target(s) * 1e6 / s.done.ops as f64), 3),
        or_dash(host_busy, 0),
        or_dash(target_busy, 0),
    )
}
