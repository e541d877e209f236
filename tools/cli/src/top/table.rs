//! The sections of the page, each a table: its columns, the metrics of each column, and numbers as short strings.
//!
//! A section's rows are laid out as lines: columns that fit the width, and the order of the rows. The terminal and
//! plain text both use these lines.

use std::cmp::Ordering;
use std::time::Duration;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_truncate::UnicodeTruncateStr as _;

use dlfs::metrics as m;

use self::Form::{
    Age, Bad, BadPerS, Bytes, BytesPerS, Count, Name, Rate, Seconds, Share, Text, Waits,
};
use super::report::{FAILED, ORIGIN, RANKS, Role, Row, Subject, Value, plus, ratio};
use crate::out;

/// A section: its name on the page, its key in JSON, its columns, and the text that is shown if it has no
/// rows.
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    pub(super) columns: &'static [Column],
    pub(super) none: &'static str,
}

/// A column. A column without a title is only in JSON; a column without a key is only shown to people.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) key: &'static str,
    pub(super) form: Form,
    /// The column's rank when not all columns fit: the lowest is left out first. The first column always
    /// stays.
    pub(super) keep: u8,
    pub(super) of: fn(&Subject) -> Value,
}

/// The form in which a value is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A name on the left, which may be shortened to this many characters.
    Name(usize),
    /// A string on the left, which may be cut after this many characters.
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

const fn column(
    title: &'static str,
    key: &'static str,
    form: Form,
    keep: u8,
    of: fn(&Subject) -> Value,
) -> Column {
    Column { title, key, form, keep, of }
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
        let per_s = || format!("{}/s", bytes(number));
        let text = match self.form {
            Name(_) | Text(_) | Count => crate::out::count(number as u64),
            Rate | Bad => rate(number),
            Bytes => bytes(number),
            BytesPerS | BadPerS => per_s(),
            Seconds => seconds(number),
            Age => age(number),
            Share | Waits => crate::out::percent(number),
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
    column("ROLE", "role", Name(6), 60, |of| of.role.map(Role::word).into()),
    column("IOPS", "commands_per_second", Rate, 90, |of| {
        let of_target: [&m::Metric; 2] = [&m::TARGET_READS, &m::TARGET_WRITES];
        of.by_role([&of_target, &[&m::READ_COMMANDS], &[&m::TIER_HITS]]).into()
    }),
    column("BYTES/S", "bytes_per_second", BytesPerS, 80, |of| of.bytes_per_second().into()),
    column("P50", "latency_p50_seconds", Seconds, 40, |of| of.latency(0.5)),
    column("P99", "latency_p99_seconds", Seconds, 70, |of| of.latency(0.99)),
    column("WAITS", "wait_share", Waits, 75, |of| {
        of.by_role([&[], &[&m::LOADER_STALL_SECONDS], &[]]).into()
    }),
    column("ERR/S", "errors_per_second", Bad, 50, |of| {
        of.by_role([&[&m::TARGET_ERRORS], &[&m::READ_REPEATS], &[]]).into()
    }),
    column("CONN", "connections", Count, 30, |of| of.of_target(&m::TARGET_CONNECTIONS).into()),
    column("HOSTS", "controllers", Count, 20, |of| of.of_target(&m::TARGET_CONTROLLERS).into()),
    column("VERSION", "version", Name(8), 10, |of| of.version().into()),
    column("RESTARTED", "restarted_seconds", Age, 12, |of| of.known.restarted_seconds.into()),
    column("", "error", Text(0), 0, |of| of.error().into()),
    column("", "error_seconds", Age, 0, |of| of.known.error.map(|(_, seconds)| seconds).into()),
];

const SUBSYSTEMS: &[Column] = &[
    column("SUBSYSTEM", "subsystem", Name(26), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("READS/S", "reads_per_second", Rate, 90, |of| of.rate(&m::TARGET_READS).into()),
    column("WRITES/S", "writes_per_second", Rate, 35, |of| of.rate(&m::TARGET_WRITES).into()),
    column("BYTES/S", "bytes_per_second", BytesPerS, 80, |of| of.bytes_per_second().into()),
    column("P50", "latency_p50_seconds", Seconds, 40, |of| of.latency(0.5)),
    column("P99", "latency_p99_seconds", Seconds, 70, |of| of.latency(0.99)),
    column("ERR/S", "errors_per_second", Bad, 65, |of| of.rate(&m::TARGET_ERRORS).into()),
    column("HOSTS", "controllers", Count, 45, |of| of.gauge(&m::TARGET_CONTROLLERS).into()),
    column("CONN", "connections", Count, 30, |of| of.gauge(&m::TARGET_CONNECTIONS).into()),
    column("REFUSED", "refused", Bad, 20, |of| of.growth(&m::TARGET_CONNECTIONS_REFUSED).into()),
    column("CLOSED", "dropped", Bad, 10, |of| {
        plus(of.growth(&m::TARGET_CONNECTIONS_DROPPED), of.growth(&m::TARGET_EVICTIONS)).into()
    }),
];

const LOADERS: &[Column] = &[
    column("ADDRESS", "address", Name(21), 255, address),
    column("SAMPLES/S", "samples_per_second", Rate, 90, |of| of.rate(&m::LOADER_SAMPLES).into()),
    column("BATCHES/S", "batches_per_second", Rate, 35, |of| of.rate(&m::LOADER_BATCHES).into()),
    column("BYTES/S", "bytes_per_second", BytesPerS, 70, |of| {
        of.rate(&m::LOADER_SAMPLE_BYTES).into()
    }),
    column("WAITS", "wait_share", Waits, 85, |of| of.rate(&m::LOADER_STALL_SECONDS).into()),
    column("P50", "latency_p50_seconds", Seconds, 30, |of| of.latency(0.5)),
    column("P99", "latency_p99_seconds", Seconds, 40, |of| of.latency(0.99)),
    column("REPEATS", "repeats_per_second", Bad, 20, |of| {
        of.known.rate(&m::READ_REPEATS, BY_LOADER).into()
    }),
    column("SKIPPED", "skipped_per_second", Bad, 10, |of| of.rate(&m::LOADER_SKIPPED).into()),
    column("READS FROM", "subsystems", Name(26), 25, |of| {
        Value::Names(of.known.values_of(&m::HOST_CONTROLLERS, "subsystem"))
    }),
    column("WAITS FOR", "waits_by_cause", Text(27), 80, |of| {
        Value::Causes(of.known.waits_by_cause())
    }),
    column("RECONNECTS", "reconnects", Bad, 9, |of| of.growth(&m::HOST_RECONNECTS).into()),
    column("FAILOVERS", "failovers", Bad, 8, |of| of.growth(&m::HOST_FAILOVERS).into()),
    column("FAILED PATHS", "failed_paths", Bad, 8, |of| of.gauge(&m::HOST_FAILED_PATHS).into()),
    column("DIGESTS", "digest_errors", Bad, 7, |of| of.growth(&m::HOST_DIGEST_ERRORS).into()),
    column("RANKS", "store_waits", Rate, 6, |of| of.growth(&m::STORE_WAITS).into()),
];

const TIERS: &[Column] = &[
    column("TIER", "tier", Name(18), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("USED", "", Share, 80, |of| {
        ratio(of.gauge(&m::TIER_HELD_BYTES), of.gauge(&m::TIER_CAPACITY_BYTES)).into()
    }),
    column("OF", "capacity_bytes", Bytes, 50, |of| of.gauge(&m::TIER_CAPACITY_BYTES).into()),
    column("HITS", "hit_share", Share, 90, |of| {
        ratio(bytes_of_tier(of), of.known.all_bytes()).into()
    }),
    column("BYTES/S", "bytes_per_second", BytesPerS, 70, |of| bytes_of_tier(of).into()),
    column("MEAN", "read_mean_seconds", Seconds, 40, |of| {
        let mean = ratio(of.rate(&m::TIER_HIT_SECONDS), of.rate(&m::TIER_HITS));
        let seconds = of.of_row(ORIGIN, &m::ORIGIN_READ_SECONDS);
        mean.or_else(|| ratio(seconds, of.of_row(ORIGIN, &m::ORIGIN_READS))).into()
    }),
    column("FILLS", "filled_bytes_per_second", BytesPerS, 45, |of| {
        of.rate(&m::TIER_FILL_BYTES).into()
    }),
    column("EVICTED/S", "evictions_per_second", Rate, 30, |of| of.rate(&m::TIER_EVICTIONS).into()),
    column("DAMAGED", "damaged", Bad, 20, |of| of.growth(&m::TIER_DAMAGED).into()),
    column("OFF", "is_off", Name(3), 35, |of| {
        Value::Is(of.gauge(&m::TIER_OFF).is_some_and(|off| off > 0.0))
    }),
    column("", "held_bytes", Bytes, 0, |of| of.gauge(&m::TIER_HELD_BYTES).into()),
];

const PEERS: &[Column] = &[
    column("NODE", "node", Name(8), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("READS/S", "reads_per_second", Rate, 80, |of| {
        let reads = of.rate(&m::PEER_READS);
        let failed = of.of_row(FAILED, &m::PEER_NOT_THERE_READS);
        reads.or(failed).or(of.of_row(RANKS, &m::STORE_RECEIVED)).into()
    }),
    column("BYTES/S", "bytes_per_second", BytesPerS, 90, |of| {
        let bytes = of.rate(&m::PEER_READ_BYTES);
        let failed = of.of_row(FAILED, &m::PEER_NOT_THERE_BYTES);
        bytes.or(failed).or(of.of_row(RANKS, &m::STORE_RECEIVED_BYTES)).into()
    }),
    column("MEAN", "read_mean_seconds", Seconds, 70, |of| {
        ratio(of.rate(&m::PEER_READ_SECONDS), of.rate(&m::PEER_READS)).into()
    }),
    column("REROUTED", "rerouted_bytes_per_second", BadPerS, 40, |of| {
        of.of_row(FAILED, &m::PEER_REROUTED_BYTES).into()
    }),
    column("WRONG", "mismatched_bytes_per_second", BadPerS, 30, |of| {
        of.of_row(FAILED, &m::PEER_MISMATCHED_BYTES).into()
    }),
];

const PATHS: &[Column] = &[
    column("PATH", "path", Name(21), 255, name),
    column("ADDRESS", "address", Name(21), 60, address),
    column("STATE", "state", Text(13), 95, |of| {
        let is_any = |metric| of.gauge(metric).is_some_and(|sessions| sessions > 0.0);
        let state = match () {
            () if is_any(&m::HOST_PATH_OPTIMIZED) => "optimized",
            () if is_any(&m::HOST_PATH_SESSIONS) => "non-optimized",
            () => "not connected",
        };
        Value::Text(state.to_owned())
    }),
    column("IOPS", "commands_per_second", Rate, 90, |of| of.rate(&m::HOST_PATH_COMMANDS).into()),
    column("MEAN", "command_mean_seconds", Seconds, 80, |of| {
        ratio(of.rate(&m::HOST_PATH_SECONDS), of.rate(&m::HOST_PATH_COMMANDS)).into()
    }),
    column("LOST", "losses", Bad, 70, |of| of.growth(&m::HOST_PATH_LOSSES).into()),
];

fn address(of: &Subject) -> Value {
    Value::Text(of.known.address.to_owned())
}

fn name(of: &Subject) -> Value {
    Value::Text(of.name.to_owned())
}

/// Bytes per second from a tier or from the origin. Those from the origin include readahead, and reads that shared
/// pages with others.
fn bytes_of_tier(of: &Subject) -> Option<f64> {
    of.rate(&m::TIER_HIT_BYTES).or(of.of_row(ORIGIN, &m::ORIGIN_READ_BYTES))
}

/// The label of reads by loaders.
pub(super) const BY_LOADER: &[(&str, &str)] = &[("by", "loader")];

/// `0`, `0.25`, `12.3`, `391k`, `1.20M`.
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

/// `1.42 GB`.
pub(super) fn bytes(bytes: f64) -> String {
    out::bytes(bytes as u64)
}

/// `850 µs`, `12.3 ms`, `1.50 s`, `2 min 30 s`.
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

const SCALES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const TITLE: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
pub(super) const WARN: Style = Style::new().fg(Color::Yellow);
pub(super) const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// The rows sorted by a column; without one, in the order of the addresses.
pub(super) fn sorted(rows: &[Row], column: Option<usize>) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    if let Some(column) = column {
        rows.sort_by(|a, b| order(&a.values[column], &b.values[column]));
    }
    rows
}

/// Large numbers and early letters first, unknown values last.
fn order(a: &Value, b: &Value) -> Ordering {
    match (a.number(), b.number()) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        _ if a.is_unknown() || b.is_unknown() => a.is_unknown().cmp(&b.is_unknown()),
        _ => a.text().cmp(&b.text()),
    }
}

/// The titles, then the rows, at most `width` terminal columns wide. The title of the sorting column is
/// marked.
pub(super) fn lines(
    section: &Section,
    rows: &[&Row],
    width: usize,
    sort: Option<usize>,
) -> Vec<Line<'static>> {
    let mark = |column| if sort == Some(column) { "*" } else { "" };
    let titles = section.columns.iter().enumerate();
    let titles = titles.map(|(nth, column)| (format!("{}{}", column.title, mark(nth)), TITLE));
    let titles: Vec<(String, Style)> = titles.collect();
    let cells: Vec<Vec<(String, Style)>> = rows.iter().map(|row| cells(section, row)).collect();
    let is_told = |nth: usize| rows.iter().any(|row| !row.values[nth].is_unknown());
    let columns = section.columns.iter().enumerate();
    // Ages, and columns without a key in JSON, are shown only if a row has a value.
    let is_always = |of: &Column| !of.key.is_empty() && of.form != Form::Age;
    let shown = columns
        .filter(|(nth, of)| !of.title.is_empty() && (is_always(of) || is_told(*nth)))
        .map(|(nth, column)| {
            let of_rows = rows.iter().zip(&cells).filter(|(row, _)| row.note.is_none() || nth < 2);
            let widths = of_rows.map(|(_, cells)| width_of(&cells[nth].0));
            // One more column, for the mark.
            let natural = widths.fold(width_of(column.title) + 1, usize::max);
            Shown { nth, column, natural }
        });
    let fit = Fit::of(shown.collect(), width);
    let mut lines = vec![Line::from(fit.line(&titles, usize::MAX))];
    lines.extend(rows.iter().zip(&cells).map(|(row, cells)| fit.row(row, cells, width)));
    lines
}

fn cells(section: &Section, row: &Row) -> Vec<(String, Style)> {
    let mut cells: Vec<(String, Style)> =
        section.columns.iter().zip(&row.values).map(|(column, value)| column.cell(value)).collect();
    cells[0].1 = cells[0].1.patch(row.style);
    cells
}

/// A column that may be shown.
struct Shown {
    nth: usize,
    column: &'static Column,
    /// The width that the column needs.
    natural: usize,
}

impl Shown {
    /// The width that the column can be shortened to.
    fn least(&self) -> usize {
        match self.column.form {
            Form::Name(least) | Form::Text(least) => self.natural.min(least),
            _ => self.natural,
        }
    }
}

/// Columns with their widths, and the spaces between them.
struct Fit {
    columns: Vec<(Shown, usize)>,
    gap: usize,
}

impl Fit {
    fn of(mut shown: Vec<Shown>, width: usize) -> Fit {
        let sum = |shown: &[Shown], width: fn(&Shown) -> usize, gap| {
            shown.iter().map(width).sum::<usize>() + shown.len().saturating_sub(1) * gap
        };
        // The first column stays.
        while shown.len() > 1 && sum(&shown, Shown::least, 1) > width {
            let first = (1..shown.len()).min_by_key(|&at| shown[at].column.keep);
            shown.remove(first.expect("there are two columns"));
        }
        let gap = if sum(&shown, |of| of.natural, 2) <= width { 2 } else { 1 };
        let mut left = width.saturating_sub(sum(&shown, Shown::least, gap));
        let columns = shown.into_iter().map(|of| {
            let more = (of.natural - of.least()).min(left);
            left -= more;
            let width = (of.least() + more).min(width);
            (of, width)
        });
        Fit { columns: columns.collect(), gap }
    }

    /// A line of the first `most` cells.
    fn line(&self, cells: &[(String, Style)], most: usize) -> Vec<Span<'static>> {
        let columns = self.columns.iter().take(most).enumerate();
        let span = |(at, (shown, width)): (usize, &(Shown, usize))| {
            let width = *width;
            let (text, style) = &cells[shown.nth];
            let gap = " ".repeat(if at == 0 { 0 } else { self.gap });
            let fitting = match shown.column.form {
                Form::Text(_) => clipped(text, width),
                _ => shortened(text, width),
            };
            let space = " ".repeat(width - width_of(&fitting));
            let text = match shown.column.form {
                Form::Name(_) | Form::Text(_) => format!("{gap}{fitting}{space}"),
                _ => format!("{gap}{space}{fitting}"),
            };
            Span::styled(text, *style)
        };
        columns.map(span).collect()
    }

    /// A row; its note replaces all cells after the first two.
    fn row(&self, row: &Row, cells: &[(String, Style)], width: usize) -> Line<'static> {
        let Some((note, style)) = &row.note else {
            return Line::from(self.line(cells, usize::MAX));
        };
        let mut line = Line::from(self.line(cells, 2));
        let room = width.saturating_sub(line.width() + self.gap);
        if room > 0 {
            let text = format!("{}{}", " ".repeat(self.gap), clipped(note, room));
            line.push_span(Span::styled(text, *style));
        }
        line
    }
}

/// The number of terminal columns that a string takes.
pub(super) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// The beginning of a string that fits.
pub(super) fn clipped(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let (begin, _) = text.unicode_truncate(width.saturating_sub(1));
    if width == 0 { String::new() } else { format!("{begin}…") }
}

/// The beginning and the end of a string, since names differ at their ends.
fn shortened(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else { return String::new() };
    let (begin, _) = text.unicode_truncate(room / 3);
    let (end, _) = text.unicode_truncate_start(room - room / 3);
    format!("{begin}…{end}")
}

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

    const COLUMNS: &[Column] = &[
        column("NAME", "name", Form::Name(8), 0),
        column("ROLE", "role", Form::Name(4), 9),
        column("RATE", "rate", Form::Rate, 8),
        column("MORE", "more", Form::Count, 1),
        column("", "hidden", Form::Count, 0),
        column("TREND", "", Form::Text(9), 2),
    ];

    const SECTION: Section = Section { name: "", key: "", columns: COLUMNS, none: "" };

    const fn column(title: &'static str, key: &'static str, form: Form, keep: u8) -> Column {
        Column { title, key, form, keep, of: |_| Value::Unknown }
    }

    fn rows() -> Vec<Row> {
        let row = |name: &str, rate: Option<f64>| Row {
            values: vec![
                Value::Text(name.to_owned()),
                Value::Text("job".to_owned()),
                rate.into(),
                Value::Number(0.0),
                Value::Number(1.0),
                Value::Unknown,
            ],
            ..Row::default()
        };
        let mut rows =
            vec![row("a-long-name:1", Some(5.0)), row("b:2", None), row("c:3", Some(7.0))];
        rows[1].note = Some(("does not answer: connection refused".into(), BAD));
        rows
    }

    fn text(width: usize) -> Vec<String> {
        let rows = rows();
        let lines = lines(&SECTION, &sorted(&rows, None), width, None);
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_are_aligned_and_a_note_takes_the_place_of_figures() {
        assert_eq!(
            text(80),
            [
                "NAME           ROLE    RATE   MORE",
                "a-long-name:1  job        5      0",
                "b:2            job    does not answer: connection refused",
                "c:3            job        7      0",
            ]
        );
    }

    #[test]
    fn names_are_shortened_before_columns_are_left_out() {
        assert_eq!(text(28)[1], "a-l…-name:1 job      5     0");
        let narrow = ["NAME       ROLE  RATE", "a-l…name:1 job      5", "b:2        job  does…"];
        assert_eq!(text(21)[..3], narrow);
        assert_eq!(text(5)[1], "a…e:1");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in 0..60 {
            for line in text(width) {
                assert!(width_of(&line) <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn large_numbers_and_early_letters_come_first_and_the_unknown_last() {
        let rows = rows();
        let order = |sort| {
            let names = sorted(&rows, sort).into_iter().map(|row| row.values[0].text());
            names.map(|name| name.chars().next().unwrap()).collect::<String>()
        };
        assert_eq!(order(None), "abc");
        assert_eq!(order(Some(2)), "cab");
        assert_eq!(order(Some(0)), "abc");
        let titles = &lines(&SECTION, &sorted(&rows, None), 80, Some(2))[0];
        assert!(titles.to_string().contains("RATE*"), "{titles}");
    }

    #[test]
    fn hostile_and_wide_names_are_shown_as_harmless_text_of_known_width() {
        assert_eq!(Value::Text("a\u{1b}[2J".to_owned()).text(), "a\\u{1b}[2J");
        assert_eq!(shortened("日本語のなまえ", 7), "日…まえ");
        assert_eq!(clipped("日本語", 4), "日…");
        assert_eq!((clipped("abc", 0), shortened("abc", 0)), (String::new(), String::new()));
    }
}
