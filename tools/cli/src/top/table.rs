//! A table of text: its columns, what is left out where it is wide, and its order. Both the terminal and plain text
//! are made of its lines.

use std::cmp::Ordering;

use ratatui::text::Span;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) align: Align,
    /// Its rank when not all columns fit: the smallest is left out first. The first column stays.
    pub(super) keep: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Right,
    Left,
    /// On the left; a name, which may be shortened to so many characters.
    Short(usize),
    /// On the left; a text, whose end may be left out from so many characters on.
    Clip(usize),
}

/// How a text looks, where there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Look {
    #[default]
    Plain,
    /// For text of little interest.
    Dim,
    Title,
    Warn,
    Bad,
}

/// The sort key of a cell.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Key {
    Number(f64),
    Text(String),
    /// Comes last.
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) key: Key,
    pub(super) look: Look,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    /// Stands in place of all cells behind the first two.
    pub(super) note: Option<(String, Look)>,
}

#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Row>,
    /// The text in place of rows where there are none.
    pub(super) none: &'static str,
}

/// The column that orders a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    /// Not the usual way, which has large numbers and early letters first.
    pub(super) is_reversed: bool,
}

/// A line of text in parts.
pub(super) type Parts = Vec<(String, Look)>;

impl Cell {
    /// A name that may be anything.
    pub(super) fn name(name: &str) -> Cell {
        let key = Key::Text(name.to_owned());
        Cell { text: crate::text::safe_name(name.as_bytes()), key, look: Look::Plain }
    }

    /// A text of ours.
    pub(super) fn word(word: &str) -> Cell {
        Cell { text: word.to_owned(), key: Key::Text(word.to_owned()), look: Look::Plain }
    }

    /// A number, or `-`. What is 0 is of little interest.
    pub(super) fn number(value: Option<f64>, text: impl FnOnce(f64) -> String) -> Cell {
        match value {
            None => Cell { text: "-".to_owned(), key: Key::Unknown, look: Look::Dim },
            Some(value) => {
                let look = if value == 0.0 { Look::Dim } else { Look::Plain };
                Cell { text: text(value), key: Key::Number(value), look }
            }
        }
    }

    /// With this look if it is true.
    pub(super) fn if_so(mut self, is_so: bool, look: Look) -> Cell {
        if is_so {
            self.look = look;
        }
        self
    }
}

impl Table {
    /// Puts the rows into the order of a column; without one, they keep the order of the addresses.
    pub(super) fn sort(&mut self, sort: Option<Sort>) {
        let Some(Sort { column, is_reversed }) = sort else { return };
        self.rows.sort_by(|a, b| order(&a.cells[column].key, &b.cells[column].key, is_reversed));
    }

    /// The titles, then the rows, in at most `width` characters.
    pub(super) fn lines(&self, width: usize, sort: Option<Sort>) -> Vec<Parts> {
        let fit = self.fit(width);
        let titles = self.titles(sort);
        let cells = fit.columns.iter().map(|&(column, _)| (&*titles[column], Look::Title));
        let mut lines = vec![self.line(&fit, cells)];
        lines.extend(self.rows.iter().map(|row| self.row(&fit, row, width)));
        lines
    }

    /// The titles; the one that orders the rows is marked.
    fn titles(&self, sort: Option<Sort>) -> Vec<String> {
        let mark = |column| match sort.filter(|sort| sort.column == column) {
            Some(Sort { is_reversed: true, .. }) => "^",
            Some(_) => "*",
            None => "",
        };
        let titles = self.columns.iter().enumerate();
        titles.map(|(column, of)| format!("{}{}", of.title, mark(column))).collect()
    }

    fn row(&self, fit: &Fit, row: &Row, width: usize) -> Parts {
        let cells = fit.columns.iter().map(|&(column, _)| &row.cells[column]);
        let cells = cells.map(|cell| (&*cell.text, cell.look));
        let Some((note, look)) = &row.note else { return self.line(fit, cells) };
        let first = Fit { columns: fit.columns.iter().copied().take(2).collect(), ..*fit };
        let mut parts = self.line(&first, cells.take(2));
        let used: usize = parts.iter().map(|(text, _)| width_of(text)).sum();
        let room = width.saturating_sub(used + fit.gap);
        if room > 0 {
            parts.push((format!("{}{}", " ".repeat(fit.gap), clipped(note, room)), *look));
        }
        parts
    }

    fn line<'a>(&self, fit: &Fit, cells: impl Iterator<Item = (&'a str, Look)>) -> Parts {
        let mut parts = Parts::new();
        for (&(column, width), (text, look)) in fit.columns.iter().zip(cells) {
            let align = self.columns[column].align;
            let text = if matches!(align, Align::Clip(_)) {
                clipped(text, width)
            } else {
                shortened(text, width)
            };
            let space = " ".repeat(width - width_of(&text));
            let gap = if parts.is_empty() { "" } else { &*" ".repeat(fit.gap) };
            parts.push(match align {
                Align::Right => (format!("{gap}{space}{text}"), look),
                Align::Left | Align::Short(_) | Align::Clip(_) => {
                    (format!("{gap}{text}{space}"), look)
                }
            });
        }
        parts
    }

    /// Chooses the columns and their widths.
    fn fit(&self, width: usize) -> Fit {
        let natural: Vec<usize> =
            (0..self.columns.len()).map(|column| self.natural(column)).collect();
        let least = |column: usize| match self.columns[column].align {
            Align::Short(least) | Align::Clip(least) => natural[column].min(least),
            Align::Left | Align::Right => natural[column],
        };
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        while shown.len() > 1 && sum(&shown, least, 1) > width {
            let least_kept = (1..shown.len()).min_by_key(|&at| self.columns[shown[at]].keep);
            shown.remove(least_kept.expect("there are two columns"));
        }
        let gap = if sum(&shown, |column| natural[column], 2) <= width { 2 } else { 1 };
        let mut left = width.saturating_sub(sum(&shown, least, gap));
        let columns = shown.into_iter().map(|column| {
            let more = (natural[column] - least(column)).min(left);
            left -= more;
            (column, (least(column) + more).min(width))
        });
        Fit { columns: columns.collect(), gap }
    }

    /// The width that a column needs.
    fn natural(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter(|row| row.note.is_none() || column < 2);
        let cells = cells.map(|row| width_of(&row.cells[column].text));
        // With room for the mark.
        cells.chain([width_of(self.columns[column].title) + 1]).max().unwrap_or(0)
    }
}

/// Columns with their widths, and the spaces between them.
#[derive(Debug, Clone)]
struct Fit {
    columns: Vec<(usize, usize)>,
    gap: usize,
}

fn sum(columns: &[usize], width: impl Fn(usize) -> usize, gap: usize) -> usize {
    let widths: usize = columns.iter().map(|&column| width(column)).sum();
    widths + columns.len().saturating_sub(1) * gap
}

fn order(a: &Key, b: &Key, is_reversed: bool) -> Ordering {
    let usual = match (a, b) {
        (Key::Unknown, Key::Unknown) => return Ordering::Equal,
        (Key::Unknown, _) => return Ordering::Greater,
        (_, Key::Unknown) => return Ordering::Less,
        (Key::Number(a), Key::Number(b)) => b.total_cmp(a),
        (Key::Text(a), Key::Text(b)) => a.cmp(b),
        (Key::Number(_), Key::Text(_)) => Ordering::Less,
        (Key::Text(_), Key::Number(_)) => Ordering::Greater,
    };
    if is_reversed { usual.reverse() } else { usual }
}

/// The number of columns of a terminal that a text takes.
pub(super) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// The begin of a text that fits.
pub(super) fn clipped(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let begin = taken(text.chars(), width.saturating_sub(1));
    if width == 0 { begin } else { format!("{begin}…") }
}

/// The begin and the end of a text, since names differ at their ends.
fn shortened(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else { return String::new() };
    let end: String = taken(text.chars().rev(), room - room / 3);
    let begin = taken(text.chars(), room / 3);
    format!("{begin}…{}", end.chars().rev().collect::<String>())
}

fn taken(characters: impl Iterator<Item = char>, width: usize) -> String {
    let mut text = String::new();
    for character in characters {
        text.push(character);
        if width_of(&text) > width {
            text.pop();
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { title: "NAME", align: Align::Short(8), keep: 0 },
        Column { title: "ROLE", align: Align::Left, keep: 9 },
        Column { title: "RATE", align: Align::Right, keep: 8 },
        Column { title: "MORE", align: Align::Right, keep: 1 },
    ];

    fn table() -> Table {
        let row = |name: &str, rate: Option<f64>| Row {
            cells: vec![
                Cell::name(name),
                Cell::word("job"),
                Cell::number(rate, |rate| format!("{rate}/s")),
                Cell::number(Some(0.0), |_| "0".into()),
            ],
            note: None,
        };
        let mut rows =
            vec![row("a-long-name:1", Some(5.0)), row("b:2", None), row("c:3", Some(7.0))];
        rows[1].note = Some(("does not answer: connection refused".into(), Look::Bad));
        Table { columns: COLUMNS, rows, none: "" }
    }

    fn text(width: usize) -> Vec<String> {
        let lines = table().lines(width, None);
        lines.iter().map(|parts| parts.iter().map(|(text, _)| &**text).collect()).collect()
    }

    #[test]
    fn columns_are_aligned_and_a_note_takes_the_place_of_figures() {
        assert_eq!(
            text(80),
            [
                "NAME           ROLE    RATE   MORE",
                "a-long-name:1  job      5/s      0",
                "b:2            job    does not answer: connection refused",
                "c:3            job      7/s      0",
            ]
        );
    }

    #[test]
    fn names_are_shortened_before_columns_are_left_out() {
        assert_eq!(text(28)[1], "a-l…name:1 job     5/s     0");
        let narrow = ["NAME       ROLE   RATE", "a-l…name:1 job     5/s", "b:2        job   does…"];
        assert_eq!(text(22)[..3], narrow);
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
        let order = |sort| {
            let mut table = table();
            table.sort(sort);
            table
                .rows
                .iter()
                .map(|row| row.cells[0].text.chars().next().unwrap())
                .collect::<String>()
        };
        let by = |column, is_reversed| Some(Sort { column, is_reversed });
        assert_eq!(order(None), "abc");
        assert_eq!(order(by(2, false)), "cab");
        assert_eq!(order(by(2, true)), "acb");
        assert_eq!(order(by(0, true)), "cba");
        let titles = table().lines(80, by(2, false));
        assert!(titles[0].iter().any(|(text, _)| text.trim() == "RATE*"), "{titles:?}");
    }

    #[test]
    fn hostile_and_wide_names_are_shown_as_harmless_text_of_known_width() {
        assert_eq!(Cell::name("a\u{1b}[2J").text, "a\\u{1b}[2J");
        assert_eq!(shortened("日本語のなまえ", 7), "日…まえ");
        assert_eq!(clipped("日本語", 4), "日…");
        assert_eq!((clipped("abc", 0), shortened("abc", 0)), (String::new(), String::new()));
    }
}
