//! Lays out the rows of a section as lines: their order, and the columns that fit the width. The terminal and plain
//! text both show these lines.

use std::cmp::Ordering;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_truncate::UnicodeTruncateStr as _;

use super::report::{Row, Value};
use super::table::{Column, Form, Section};

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
    let has_value = |nth: usize| rows.iter().any(|row| !row.values[nth].is_unknown());
    let columns = section.columns.iter().enumerate();
    // Ages, and columns without a key in JSON, are shown only if a row has a value.
    let is_always_shown = |column: &Column| !column.key.is_empty() && column.form != Form::Age;
    let shown = columns
        .filter(|(nth, column)| {
            !column.title.is_empty() && (is_always_shown(column) || has_value(*nth))
        })
        .map(|(nth, column)| {
            let of_rows = rows.iter().zip(&cells).filter(|(row, _)| row.note.is_none() || nth < 2);
            let widths = of_rows.map(|(_, cells)| width_of(&cells[nth].0));
            // One terminal column more, for the mark.
            let natural = widths.fold(width_of(column.title) + 1, usize::max);
            ShownColumn { nth, column, natural }
        });
    let fit = Fit::of(shown.collect(), width);
    let mut lines = vec![Line::from(fit.line(&titles, usize::MAX))];
    lines.extend(rows.iter().zip(&cells).map(|(row, cells)| fit.row(row, cells, width)));
    lines
}

/// The cells of a row, as text with a style.
fn cells(section: &Section, row: &Row) -> Vec<(String, Style)> {
    let mut cells: Vec<(String, Style)> =
        section.columns.iter().zip(&row.values).map(|(column, value)| column.cell(value)).collect();
    cells[0].1 = cells[0].1.patch(row.style);
    cells
}

/// A column that is shown if it fits.
struct ShownColumn {
    /// The index of the column in the section.
    nth: usize,
    column: &'static Column,
    /// The width that the column needs, in terminal columns.
    natural: usize,
}

impl ShownColumn {
    /// The width that the column can be shortened to.
    fn least(&self) -> usize {
        match self.column.form {
            Form::Name(least) | Form::Text(least) => self.natural.min(least),
            _ => self.natural,
        }
    }
}

/// The columns that fit, with their widths.
struct Fit {
    columns: Vec<(ShownColumn, usize)>,
    /// The number of spaces between two columns.
    gap: usize,
}

impl Fit {
    /// Leaves out columns until the rest fit `width`, then divides the width among them.
    fn of(mut shown: Vec<ShownColumn>, width: usize) -> Fit {
        let sum = |shown: &[ShownColumn], width: fn(&ShownColumn) -> usize, gap| {
            shown.iter().map(width).sum::<usize>() + shown.len().saturating_sub(1) * gap
        };
        // The first column stays.
        while shown.len() > 1 && sum(&shown, ShownColumn::least, 1) > width {
            let first = (1..shown.len()).min_by_key(|&at| shown[at].column.keep);
            shown.remove(first.expect("there are two columns"));
        }
        let gap = if sum(&shown, |column| column.natural, 2) <= width { 2 } else { 1 };
        let mut left = width.saturating_sub(sum(&shown, ShownColumn::least, gap));
        let columns = shown.into_iter().map(|column| {
            let more = (column.natural - column.least()).min(left);
            left -= more;
            let width = (column.least() + more).min(width);
            (column, width)
        });
        Fit { columns: columns.collect(), gap }
    }

    /// A line of the first `most` cells.
    fn line(&self, cells: &[(String, Style)], most: usize) -> Vec<Span<'static>> {
        let columns = self.columns.iter().take(most).enumerate();
        let span = |(at, (shown, width)): (usize, &(ShownColumn, usize))| {
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

/// The style of titles.
const TITLE: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);

#[cfg(test)]
mod tests {
    use super::super::table::BAD;
    use super::*;

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
        Column { title, key, form, keep, value: |_| Value::Unknown }
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
