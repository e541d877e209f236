//! The sections of the page, each a table: its columns, the metrics of each column, and the form in which values are
//! shown. `layout.rs` makes lines of the rows.

use std::time::Duration;

use ratatui::style::{Color, Modifier, Style};

use dlfs::metrics as m;

use self::Form::{
    Age, Bad, BadPerS, Bytes, BytesPerS, Count, Name, Rate, Seconds, Share, Text, Waits,
};
use super::report::{FAILED, ORIGIN, RANKS, Role, Subject, Value, plus, ratio};
use crate::out;

/// A section of the page.
pub(super) struct Section {
    /// The name on the page.
    pub(super) name: &'static str,
    /// The key in JSON.
    pub(super) key: &'static str,
    pub(super) columns: &'static [Column],
    /// The text that is shown if the section has no rows.
    pub(super) none: &'static str,
}

/// A column of a section.
pub(super) struct Column {
    /// The title on the page; empty: the column is only in JSON.
    pub(super) title: &'static str,
    /// The key in JSON; empty: the column is only on the page.
    pub(super) key: &'static str,
    pub(super) form: Form,
    /// The column's rank when not all columns fit: the lowest is left out first. The first column always
    /// stays.
    pub(super) keep: u8,
    /// The value of a row, from its subject.
    pub(super) value: fn(&Subject) -> Value,
}

/// The form in which a value is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A name, aligned to the left, which may be shortened to this many terminal columns.
    Name(usize),
    /// A string, aligned to the left, which may be cut after this many terminal columns.
    Text(usize),
    Count,
    Rate,
    Bytes,
    BytesPerS,
    Seconds,
    /// Whole seconds, at least one.
    Age,
    Share,
    /// A share of the time that should be small.
    Waits,
    /// A rate that should be 0.
    Bad,
    /// Bytes per second that should be 0.
    BadPerS,
}

/// A column with these fields, so that most columns below take one line.
const fn column(
    title: &'static str,
    key: &'static str,
    form: Form,
    keep: u8,
    value: fn(&Subject) -> Value,
) -> Column {
    Column { title, key, form, keep, value }
}

impl Section {
    const fn new(
        name: &'static str,
        key: &'static str,
        columns: &'static [Column],
        none: &'static str,
    ) -> Section {
        Section { name, key, columns, none }
    }

    /// The number of columns with a title, which come first.
    pub(super) fn titled(&self) -> usize {
        self.columns.iter().filter(|column| !column.title.is_empty()).count()
    }
}

impl Column {
    /// A value as text, with its style: zero and unknown values are dim.
    pub(super) fn cell(&self, value: &Value) -> (String, Style) {
        let Some(number) = value.number() else {
            let style = match value {
                Value::Unknown | Value::Is(false) => DIM,
                Value::Is(true) => BAD,
                _ => Style::new(),
            };
            return (value.text(), style);
        };
        let text = match self.form {
            Name(_) | Text(_) | Count => out::count(number as u64),
            Rate | Bad => rate(number),
            Bytes => bytes(number),
            BytesPerS | BadPerS => format!("{}/s", bytes(number)),
            Seconds => seconds(number),
            Age => age(number),
            Share | Waits => out::percent(number),
        };
        let at_least = if matches!(value, Value::AtLeast(_)) { "≥" } else { "" };
        let style = match self.form {
            _ if number == 0.0 => DIM,
            Bad | BadPerS => BAD,
            Waits if number >= 0.5 => BAD,
            Waits if number >= 0.05 => WARN,
            _ => Style::new(),
        };
        (format!("{at_least}{text}"), style)
    }
}

/// The sections. The first is the overview, with a row for each role of each address.
pub(super) static SECTIONS: [Section; 6] = [
    Section::new("Overview", "addresses", ADDRESSES, ""),
    Section::new("Targets", "subsystems", SUBSYSTEMS, "No target answers here."),
    Section::new("Jobs", "loaders", LOADERS, "No job answers here."),
    Section::new("Tiers", "tiers", TIERS, "No process here has tiers."),
    Section::new("Peers", "peers", PEERS, "No process here reads from other nodes."),
    Section::new("Paths", "paths", PATHS, "No process here reads a target."),
];

const ADDRESSES: &[Column] = &[
    column("ADDRESS", "address", Name(21), 255, address),
    column("ROLE", "role", Name(6), 60, |row| row.role.map(Role::word).into()),
    column("IOPS", "commands_per_second", Rate, 90, |row| {
        let of_target: [&m::Metric; 2] = [&m::TARGET_READS, &m::TARGET_WRITES];
        row.by_role([&of_target, &[&m::READ_COMMANDS], &[&m::TIER_HITS]]).into()
    }),
    column("BYTES/S", "bytes_per_second", BytesPerS, 80, |row| row.bytes_per_second().into()),
    column("P50", "latency_p50_seconds", Seconds, 40, |row| row.latency(0.5)),
    column("P99", "latency_p99_seconds", Seconds, 70, |row| row.latency(0.99)),
    column("WAITS", "wait_share", Waits, 75, |row| {
        row.by_role([&[], &[&m::LOADER_STALL_SECONDS], &[]]).into()
    }),
    column("ERR/S", "errors_per_second", Bad, 50, |row| {
        row.by_role([&[&m::TARGET_ERRORS], &[&m::READ_REPEATS], &[]]).into()
    }),
    column("CONN", "connections", Count, 30, |row| row.of_target(&m::TARGET_CONNECTIONS).into()),
    column("HOSTS", "controllers", Count, 20, |row| row.of_target(&m::TARGET_CONTROLLERS).into()),
    column("VERSION", "version", Name(8), 10, |row| row.version().into()),
    column("RESTARTED", "restarted_seconds", Age, 12, |row| row.answers.restarted_seconds.into()),
    column("", "error", Text(0), 0, |row| row.error().into()),
    column("", "error_seconds", Age, 0, |row| row.answers.error.map(|(_, seconds)| seconds).into()),
];

const SUBSYSTEMS: &[Column] = &[
    column("SUBSYSTEM", "subsystem", Name(26), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("READS/S", "reads_per_second", Rate, 90, |row| row.rate(&m::TARGET_READS).into()),
    column("WRITES/S", "writes_per_second", Rate, 35, |row| row.rate(&m::TARGET_WRITES).into()),
    column("BYTES/S", "bytes_per_second", BytesPerS, 80, |row| row.bytes_per_second().into()),
    column("P50", "latency_p50_seconds", Seconds, 40, |row| row.latency(0.5)),
    column("P99", "latency_p99_seconds", Seconds, 70, |row| row.latency(0.99)),
    column("ERR/S", "errors_per_second", Bad, 65, |row| row.rate(&m::TARGET_ERRORS).into()),
    column("HOSTS", "controllers", Count, 45, |row| row.gauge(&m::TARGET_CONTROLLERS).into()),
    column("CONN", "connections", Count, 30, |row| row.gauge(&m::TARGET_CONNECTIONS).into()),
    column("REFUSED", "refused", Bad, 20, |row| row.growth(&m::TARGET_CONNECTIONS_REFUSED).into()),
    column("CLOSED", "dropped", Bad, 10, |row| {
        plus(row.growth(&m::TARGET_CONNECTIONS_DROPPED), row.growth(&m::TARGET_EVICTIONS)).into()
    }),
];

const LOADERS: &[Column] = &[
    column("ADDRESS", "address", Name(21), 255, address),
    column("SAMPLES/S", "samples_per_second", Rate, 90, |row| row.rate(&m::LOADER_SAMPLES).into()),
    column("BATCHES/S", "batches_per_second", Rate, 35, |row| row.rate(&m::LOADER_BATCHES).into()),
    column("BYTES/S", "bytes_per_second", BytesPerS, 70, |row| {
        row.rate(&m::LOADER_SAMPLE_BYTES).into()
    }),
    column("WAITS", "wait_share", Waits, 85, |row| row.rate(&m::LOADER_STALL_SECONDS).into()),
    column("P50", "latency_p50_seconds", Seconds, 30, |row| row.latency(0.5)),
    column("P99", "latency_p99_seconds", Seconds, 40, |row| row.latency(0.99)),
    column("REPEATS", "repeats_per_second", Bad, 20, |row| {
        row.answers.rate(&m::READ_REPEATS, BY_LOADER).into()
    }),
    column("SKIPPED", "skipped_per_second", Bad, 10, |row| row.rate(&m::LOADER_SKIPPED).into()),
    column("READS FROM", "subsystems", Name(26), 25, |row| {
        Value::Names(row.answers.values_of(&m::HOST_CONTROLLERS, "subsystem"))
    }),
    column("WAITS FOR", "waits_by_cause", Text(27), 80, |row| {
        Value::Causes(row.answers.waits_by_cause())
    }),
    column("RECONNECTS", "reconnects", Bad, 9, |row| row.growth(&m::HOST_RECONNECTS).into()),
    column("FAILOVERS", "failovers", Bad, 8, |row| row.growth(&m::HOST_FAILOVERS).into()),
    column("FAILED PATHS", "failed_paths", Bad, 8, |row| row.gauge(&m::HOST_FAILED_PATHS).into()),
    column("DIGESTS", "digest_errors", Bad, 7, |row| row.growth(&m::HOST_DIGEST_ERRORS).into()),
    column("RANKS", "store_waits", Rate, 6, |row| row.growth(&m::STORE_WAITS).into()),
];

const TIERS: &[Column] = &[
    column("TIER", "tier", Name(18), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("USED", "", Share, 80, |row| {
        ratio(row.gauge(&m::TIER_HELD_BYTES), row.gauge(&m::TIER_CAPACITY_BYTES)).into()
    }),
    column("OF", "capacity_bytes", Bytes, 50, |row| row.gauge(&m::TIER_CAPACITY_BYTES).into()),
    column("HITS", "hit_share", Share, 90, |row| {
        ratio(bytes_of_tier(row), row.answers.all_bytes()).into()
    }),
    column("BYTES/S", "bytes_per_second", BytesPerS, 70, |row| bytes_of_tier(row).into()),
    column("MEAN", "read_mean_seconds", Seconds, 40, |row| {
        let mean = ratio(row.rate(&m::TIER_HIT_SECONDS), row.rate(&m::TIER_HITS));
        let seconds = row.of_row(ORIGIN, &m::ORIGIN_READ_SECONDS);
        mean.or_else(|| ratio(seconds, row.of_row(ORIGIN, &m::ORIGIN_READS))).into()
    }),
    column("FILLS", "filled_bytes_per_second", BytesPerS, 45, |row| {
        row.rate(&m::TIER_FILL_BYTES).into()
    }),
    column("EVICTED/S", "evictions_per_second", Rate, 30, |row| {
        row.rate(&m::TIER_EVICTIONS).into()
    }),
    column("DAMAGED", "damaged", Bad, 20, |row| row.growth(&m::TIER_DAMAGED).into()),
    column("OFF", "is_off", Name(3), 35, |row| {
        Value::Is(row.gauge(&m::TIER_OFF).is_some_and(|off| off > 0.0))
    }),
    column("", "held_bytes", Bytes, 0, |row| row.gauge(&m::TIER_HELD_BYTES).into()),
];

const PEERS: &[Column] = &[
    column("NODE", "node", Name(8), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("READS/S", "reads_per_second", Rate, 80, |row| {
        let reads = row.rate(&m::PEER_READS);
        let failed = row.of_row(FAILED, &m::PEER_NOT_THERE_READS);
        reads.or(failed).or(row.of_row(RANKS, &m::STORE_RECEIVED)).into()
    }),
    column("BYTES/S", "bytes_per_second", BytesPerS, 90, |row| {
        let bytes = row.rate(&m::PEER_READ_BYTES);
        let failed = row.of_row(FAILED, &m::PEER_NOT_THERE_BYTES);
        bytes.or(failed).or(row.of_row(RANKS, &m::STORE_RECEIVED_BYTES)).into()
    }),
    column("MEAN", "read_mean_seconds", Seconds, 70, |row| {
        ratio(row.rate(&m::PEER_READ_SECONDS), row.rate(&m::PEER_READS)).into()
    }),
    column("REROUTED", "rerouted_bytes_per_second", BadPerS, 40, |row| {
        row.of_row(FAILED, &m::PEER_REROUTED_BYTES).into()
    }),
    column("WRONG", "mismatched_bytes_per_second", BadPerS, 30, |row| {
        row.of_row(FAILED, &m::PEER_MISMATCHED_BYTES).into()
    }),
];

const PATHS: &[Column] = &[
    column("PATH", "path", Name(21), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("STATE", "state", Text(13), 95, |row| {
        let is_any = |metric| row.gauge(metric).is_some_and(|sessions| sessions > 0.0);
        let state = if is_any(&m::HOST_PATH_OPTIMIZED) {
            "optimized"
        } else if is_any(&m::HOST_PATH_SESSIONS) {
            "non-optimized"
        } else {
            "not connected"
        };
        Value::Text(state.to_owned())
    }),
    column("IOPS", "commands_per_second", Rate, 90, |row| row.rate(&m::HOST_PATH_COMMANDS).into()),
    column("MEAN", "command_mean_seconds", Seconds, 80, |row| {
        ratio(row.rate(&m::HOST_PATH_SECONDS), row.rate(&m::HOST_PATH_COMMANDS)).into()
    }),
    column("LOST", "losses", Bad, 70, |row| row.growth(&m::HOST_PATH_LOSSES).into()),
];

fn address(row: &Subject) -> Value {
    Value::Text(row.answers.address.to_owned())
}

fn name(row: &Subject) -> Value {
    Value::Text(row.name.to_owned())
}

/// Bytes per second from a tier or from the origin. Those from the origin include readahead, and reads that shared
/// pages with others.
fn bytes_of_tier(row: &Subject) -> Option<f64> {
    row.rate(&m::TIER_HIT_BYTES).or(row.of_row(ORIGIN, &m::ORIGIN_READ_BYTES))
}

/// The label of reads by loaders.
pub(super) const BY_LOADER: &[(&str, &str)] = &[("by", "loader")];

/// A number with three digits and a unit: `0`, `0.25`, `12.3`, `391k`, `1.20M`.
pub(super) fn rate(per_second: f64) -> String {
    let mut value = per_second;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < SCALES.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if value < 0.005 => "0".to_owned(),
        _ if value < 9.995 && value.fract() != 0.0 => format!("{value:.2}"),
        _ if value < 99.95 && value.fract() != 0.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    format!("{digits}{}", SCALES[unit])
}

/// A number of bytes: `1.42 GB`.
pub(super) fn bytes(bytes: f64) -> String {
    out::bytes(bytes as u64)
}

/// A duration: `850 µs`, `12.3 ms`, `1.50 s`, `2 min 30 s`.
pub(super) fn seconds(seconds: f64) -> String {
    out::duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// A duration in whole seconds, at least one: `12 s`, `2 min 30 s`.
pub(super) fn age(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{:.0} s", seconds.floor().max(1.0)),
        _ => self::seconds(seconds),
    }
}

/// The units of [`rate`], each a thousand of the one before.
const SCALES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// Zero and unknown values.
pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
/// Values that need attention.
pub(super) const WARN: Style = Style::new().fg(Color::Yellow);
/// Values that mean trouble.
pub(super) const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        for (value, text) in [
            (0.0, "0"),
            (0.001, "0"),
            (0.25, "0.25"),
            (3.0, "3"),
            (12.34, "12.3"),
            (99.96, "100"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (391_396.0, "391k"),
            (1_200_000.0, "1.20M"),
            (1e30, "1000000000000E"),
        ] {
            assert_eq!(rate(value), text, "{value}");
        }
        assert_eq!(
            (age(0.3), age(12.9), age(150.0)),
            ("1 s".into(), "12 s".into(), "2 min 30 s".into())
        );
        assert_eq!(seconds(0.000_85), "850 µs");
        assert_eq!((seconds(f64::MAX), bytes(-1.0)), (seconds(1e300), "0 B".to_owned()));
    }
}
