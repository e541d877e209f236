//! The tables of a report: which column shows what.

use super::between::Quantile;
use super::figures;
use super::report::{AddressRow, LoaderRow, PeerRow, Report, Role, SubsystemRow, TierRow};
use super::table::{Align, Cell, Column, Key, Look, Row, Table};

/// The report as plain text: the tables that have rows, then the sentences.
pub(super) fn as_text(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for table in all(report).into_iter().filter(|table| !table.rows.is_empty()) {
        for parts in table.lines(usize::MAX / 2, None) {
            let line: String = parts.into_iter().map(|(text, _)| text).collect();
            lines.push(line.trim_end().to_owned());
        }
        lines.push(String::new());
    }
    let waits = report.waits.iter().filter(|wait| !wait.is_in_table);
    lines.extend(waits.map(|wait| wait.text.clone()));
    lines
}

/// All tables, in the order of the sections.
pub(super) fn all(report: &Report) -> [Table; 5] {
    [addresses(report), subsystems(report), loaders(report), tiers(report), peers(report)]
}

pub(super) fn addresses(report: &Report) -> Table {
    let rows = report.addresses.iter().map(address).collect();
    let has_trend = report.addresses.iter().any(|row| row.trend.len() > 1);
    let columns = if has_trend { ADDRESSES } else { &ADDRESSES[..ADDRESSES.len() - 1] };
    Table { columns, rows, none: "" }
}

pub(super) fn subsystems(report: &Report) -> Table {
    let rows = report.subsystems.iter().map(subsystem).collect();
    Table { columns: SUBSYSTEMS, rows, none: "No target answers here." }
}

pub(super) fn loaders(report: &Report) -> Table {
    let rows = report.loaders.iter().map(loader).collect();
    Table { columns: LOADERS, rows, none: "No job answers here." }
}

pub(super) fn tiers(report: &Report) -> Table {
    let rows = report.tiers.iter().map(tier).collect();
    Table { columns: TIERS, rows, none: "No process here has tiers." }
}

pub(super) fn peers(report: &Report) -> Table {
    let rows = report.peers.iter().map(peer).collect();
    Table { columns: PEERS, rows, none: "No process here reads from other nodes." }
}

fn address(row: &AddressRow) -> Row {
    let role = row.role.map_or("-", Role::word);
    let restarted = row.restarted_seconds.is_some();
    let why = row.error.as_ref().map(|why| crate::text::safe_name(why.as_bytes()));
    let note = match (why, row.error_seconds) {
        (Some(why), Some(seconds)) => {
            Some((format!("no answer for {}: {why}", figures::age(seconds)), Look::Bad))
        }
        (Some(why), None) => Some((why, Look::Bad)),
        (None, _) => row.role.is_none().then(|| ("is asked for the first time".into(), Look::Dim)),
    };
    Row {
        cells: vec![
            Cell::name(&row.address)
                .if_so(restarted, Look::Warn)
                .if_so(row.error.is_some(), Look::Bad),
            Cell::word(role),
            rate(row.commands_per_second),
            bytes_per_second(row.bytes_per_second),
            quantile(row.latency_p50_seconds),
            quantile(row.latency_p99_seconds),
            wait_share(row.wait_share),
            trouble(row.errors_per_second, figures::rate),
            count(row.connections),
            count(row.controllers),
            Cell::name(row.version.as_deref().unwrap_or("-")),
            Cell {
                text: figures::bars(&row.trend),
                key: row.trend.last().map_or(Key::Unknown, |last| Key::Number(*last)),
                look: Look::Plain,
            },
        ],
        note,
    }
}

fn subsystem(row: &SubsystemRow) -> Row {
    cells(vec![
        Cell::name(&row.subsystem),
        Cell::name(&row.address),
        rate(row.reads_per_second),
        rate(row.writes_per_second),
        bytes_per_second(row.bytes_per_second),
        quantile(row.latency_p50_seconds),
        quantile(row.latency_p99_seconds),
        trouble(row.errors_per_second, figures::rate),
        count(row.controllers),
        count(row.connections),
        trouble(row.refused, figures::rate),
        trouble(row.dropped, figures::rate),
    ])
}

fn loader(row: &LoaderRow) -> Row {
    let causes = row.waits_by_cause.iter().filter(|cause| cause.share >= 0.000_5);
    let causes: Vec<String> =
        causes.map(|of| format!("{} {}", of.cause, figures::share(of.share))).collect();
    cells(vec![
        Cell::name(&row.address),
        rate(row.samples_per_second),
        rate(row.batches_per_second),
        bytes_per_second(row.bytes_per_second),
        wait_share(row.wait_share),
        quantile(row.latency_p50_seconds),
        quantile(row.latency_p99_seconds),
        trouble(row.repeats_per_second, figures::rate),
        trouble(row.skipped_per_second, figures::rate),
        Cell::name(&if row.subsystems.is_empty() {
            "-".to_owned()
        } else {
            row.subsystems.join(" ")
        }),
        Cell::name(&if causes.is_empty() { "-".to_owned() } else { causes.join(", ") }),
    ])
}

fn tier(row: &TierRow) -> Row {
    let used = row.held_bytes.zip(row.capacity_bytes).filter(|(_, capacity)| *capacity > 0.0);
    let used = used.map(|(held, capacity)| held / capacity);
    let state = if row.is_off {
        Cell { text: "off".into(), key: Key::Text("off".into()), look: Look::Bad }
    } else {
        Cell::word("-").if_so(true, Look::Dim)
    };
    cells(vec![
        Cell::name(&row.tier),
        Cell::name(&row.address),
        Cell::number(used, figures::share),
        Cell::number(row.capacity_bytes, figures::bytes),
        Cell::number(row.hit_share, figures::share),
        bytes_per_second(row.bytes_per_second),
        Cell::number(row.read_mean_seconds, figures::seconds),
        bytes_per_second(row.filled_bytes_per_second),
        rate(row.evictions_per_second),
        state,
    ])
}

fn peer(row: &PeerRow) -> Row {
    cells(vec![
        Cell::name(&row.node),
        Cell::name(&row.address),
        rate(row.reads_per_second),
        bytes_per_second(row.bytes_per_second),
        Cell::number(row.read_mean_seconds, figures::seconds),
        trouble(row.rerouted_bytes_per_second, |rate| format!("{}/s", figures::bytes(rate))),
        trouble(row.mismatched_bytes_per_second, |rate| format!("{}/s", figures::bytes(rate))),
    ])
}

fn cells(cells: Vec<Cell>) -> Row {
    Row { cells, note: None }
}

fn rate(value: Option<f64>) -> Cell {
    Cell::number(value, figures::rate)
}

fn count(value: Option<f64>) -> Cell {
    Cell::number(value, |value| crate::text::count(value as u64))
}

fn bytes_per_second(value: Option<f64>) -> Cell {
    Cell::number(value, |value| format!("{}/s", figures::bytes(value)))
}

fn quantile(value: Option<Quantile>) -> Cell {
    let number = value.map(f64::from);
    Cell::number(number, |_| value.map_or_else(String::new, figures::quantile))
}

/// A number that should be 0.
fn trouble(value: Option<f64>, text: impl FnOnce(f64) -> String) -> Cell {
    Cell::number(value, text).if_so(value.is_some_and(|value| value > 0.0), Look::Bad)
}

fn wait_share(value: Option<f64>) -> Cell {
    let is_over = |limit| value.is_some_and(|value| value >= limit);
    Cell::number(value, figures::share)
        .if_so(is_over(0.05), Look::Warn)
        .if_so(is_over(0.5), Look::Bad)
}

const fn column(title: &'static str, align: Align, keep: u8) -> Column {
    Column { title, align, keep }
}

const ADDRESSES: &[Column] = &[
    column("ADDRESS", Align::Short(21), 255),
    column("ROLE", Align::Left, 60),
    column("IOPS", Align::Right, 90),
    column("BYTES/S", Align::Right, 80),
    column("P50", Align::Right, 40),
    column("P99", Align::Right, 70),
    column("WAITS", Align::Right, 75),
    column("ERR/S", Align::Right, 50),
    column("CONN", Align::Right, 30),
    column("HOSTS", Align::Right, 20),
    column("VERSION", Align::Left, 10),
    column("TREND OF BYTES", Align::Left, 15),
];

const SUBSYSTEMS: &[Column] = &[
    column("SUBSYSTEM", Align::Short(26), 255),
    column("ADDRESS", Align::Short(21), 60),
    column("READS/S", Align::Right, 90),
    column("WRITES/S", Align::Right, 35),
    column("BYTES/S", Align::Right, 80),
    column("P50", Align::Right, 40),
    column("P99", Align::Right, 70),
    column("ERR/S", Align::Right, 65),
    column("HOSTS", Align::Right, 45),
    column("CONN", Align::Right, 30),
    column("REFUSED", Align::Right, 20),
    column("CLOSED", Align::Right, 10),
];

const LOADERS: &[Column] = &[
    column("ADDRESS", Align::Short(21), 255),
    column("SAMPLES/S", Align::Right, 90),
    column("BATCHES/S", Align::Right, 35),
    column("BYTES/S", Align::Right, 70),
    column("WAITS", Align::Right, 85),
    column("P50", Align::Right, 30),
    column("P99", Align::Right, 40),
    column("REPEATS", Align::Right, 20),
    column("SKIPPED", Align::Right, 10),
    column("READS FROM", Align::Short(26), 25),
    column("WAITS FOR", Align::Clip(27), 80),
];

const TIERS: &[Column] = &[
    column("TIER", Align::Short(18), 255),
    column("ADDRESS", Align::Short(21), 60),
    column("USED", Align::Right, 80),
    column("OF", Align::Right, 50),
    column("HITS", Align::Right, 90),
    column("BYTES/S", Align::Right, 70),
    column("MEAN", Align::Right, 40),
    column("FILLS", Align::Right, 45),
    column("EVICTED/S", Align::Right, 30),
    column("STATE", Align::Left, 35),
];

const PEERS: &[Column] = &[
    column("NODE", Align::Left, 255),
    column("ADDRESS", Align::Short(21), 60),
    column("READS/S", Align::Right, 80),
    column("BYTES/S", Align::Right, 90),
    column("MEAN", Align::Right, 70),
    column("REROUTED", Align::Right, 40),
    column("WRONG", Align::Right, 30),
];
