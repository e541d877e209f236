//! Draws a report with the user's choices, on a screen of any size. Pure: keys are arguments.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::layout::{self, clipped, width_of};
use super::report::{Report, Role, Row};
use super::table::{BAD, DIM, SECTIONS, Section};
use crate::out::counted;

/// Draws the whole page. Without `has_colour`, only bold, dim and reversed text is used.
pub(super) fn draw(frame: &mut Frame, report: &Report, view: &mut View, has_colour: bool) {
    let area = frame.area();
    let width = usize::from(area.width);
    let height = usize::from(area.height);
    let mut lines = vec![heading(report, view, width), sections(view, width)];
    // On a low screen, rows are worth more than the lines around them.
    lines.truncate(height.saturating_sub(3).min(2));
    let has_footer = height > 3;
    let room = height - lines.len() - usize::from(has_footer);
    let mut body = if view.shows_help { help(width) } else { rows(report, view, width, room) };
    body.resize(room, Line::default());
    lines.extend(body);
    if has_footer {
        lines.push(footer(report, view, width));
    }
    for (row, line) in (area.y..area.bottom()).zip(lines) {
        let place = Rect { y: row, height: 1, ..area };
        frame.render_widget(line, place);
    }
    if !has_colour {
        frame.buffer_mut().content.iter_mut().for_each(|cell| cell.fg = Color::Reset);
    }
}

/// The first line: `dlfs top  2 targets, 1 job, 1 silent      every 2 s`. A process that is a peer and has another
/// role counts only by the other role.
fn heading(report: &Report, view: &View, width: usize) -> Line<'static> {
    let rows = &report.rows[0];
    let count = |role| rows.iter().filter(|row| row.role == Some(role)).count() as u64;
    let is_peer = |row: &&Row| row.role == Some(Role::Peer);
    let of_its_process =
        |row: &&Row| rows.iter().filter(|one| one.values.first() == row.values.first()).count();
    let peers = rows.iter().filter(is_peer).filter(|row| of_its_process(row) == 1).count() as u64;
    let silent = rows.iter().filter(|row| row.style == BAD).count();
    let counts = [
        (count(Role::Target), "target"),
        (count(Role::Job), "job"),
        (peers, "peer"),
        (count(Role::Tiers) + count(Role::Reader), "other"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let mut told: Vec<String> = counts.map(|(count, noun)| counted(count, noun)).collect();
    told.extend((silent > 0).then(|| format!("{silent} silent")));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let (right, right_style) = if view.is_paused {
        ("PAUSED ".to_owned(), bold.add_modifier(Modifier::REVERSED))
    } else {
        (format!("every {} s ", report.interval_seconds), bold)
    };
    let left = clipped(&format!(" dlfs top  {}", told.join(", ")), width);
    let space = width.saturating_sub(width_of(&left) + width_of(&right));
    let right = if space == 0 { String::new() } else { right };
    Line::from(vec![
        Span::styled(left, bold),
        Span::raw(" ".repeat(space)),
        Span::styled(right, right_style),
    ])
}

/// The names of the sections; the open one is reversed. If there is no room, only the open one.
fn sections(view: &View, width: usize) -> Line<'static> {
    let names = SECTIONS.iter().enumerate();
    let names: Vec<_> = names
        .map(|(at, section)| (at == view.open, format!(" {} {} ", at + 1, section.name)))
        .collect();
    let wanted: usize = names.iter().map(|(_, name)| width_of(name)).sum();
    let shown = names.into_iter().filter(|(is_open, _)| wanted <= width || *is_open);
    let spans = shown.map(|(is_open, name)| {
        let style = if is_open { Modifier::REVERSED | Modifier::BOLD } else { Modifier::empty() };
        Span::styled(clipped(&name, width), Style::new().add_modifier(style))
    });
    Line::from(spans.collect::<Vec<_>>())
}

/// The keys; or the first two values of the marked row in full, and its note.
fn footer(report: &Report, view: &View, width: usize) -> Line<'static> {
    let marked = view.cursor.and_then(|cursor| {
        let row = *layout::sorted(&report.rows[view.open], view.sort()).get(cursor)?;
        let names: Vec<String> = row.values.iter().take(2).map(|value| value.text()).collect();
        let note = row.note.as_ref().map_or("", |(note, _)| note);
        Some(format!(" {}  {note}", names.join("  ")))
    });
    let text = marked.unwrap_or_else(|| {
        KEYS.iter().find(|keys| width_of(keys) <= width).map_or("", |keys| keys).to_owned()
    });
    let text = clipped(&text, width);
    let space = " ".repeat(width.saturating_sub(width_of(&text)));
    Line::from(Span::styled(
        format!("{text}{space}"),
        Style::new().add_modifier(Modifier::REVERSED),
    ))
}

/// The line of keys, the longest first: the first that fits is shown.
const KEYS: [&str; 3] = [
    " q quit  Tab section  s order  p pause  arrows mark  ? help",
    " q quit  Tab section  s order  ? help",
    " q  Tab  s  ?",
];

/// The rows of the open section; below the overview, the other tables that fit.
fn rows(report: &Report, view: &mut View, width: usize, room: usize) -> Vec<Line<'static>> {
    let section = view.section();
    let sorted = layout::sorted(&report.rows[view.open], view.sort());
    let first = view.first_row(sorted.len(), room.saturating_sub(1));
    if sorted.is_empty() {
        return vec![Line::default(), Line::from(clipped(&format!(" {}", section.none), width))];
    }
    let mut lines = layout::lines(section, &sorted, width, view.sort());
    lines.drain(1..=first);
    if let Some(line) = view.cursor.and_then(|cursor| lines.get_mut(1 + cursor - first)) {
        *line = std::mem::take(line).patch_style(Style::new().add_modifier(Modifier::REVERSED));
    }
    if view.cursor.is_none() && lines.len() > room {
        let left = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        lines.push(Line::from(Span::styled(format!("… {left} more"), DIM)));
    }
    lines.truncate(room);
    let others = SECTIONS.iter().zip(&report.rows).skip(1).filter(|(_, rows)| !rows.is_empty());
    for (section, rows) in others.filter(|_| view.open == 0) {
        if lines.len() + rows.len() + 2 <= room {
            lines.push(Line::default());
            lines.extend(layout::lines(section, &rows.iter().collect::<Vec<_>>(), width, None));
        }
    }
    lines
}

/// The page of help.
fn help(width: usize) -> Vec<Line<'static>> {
    HELP.lines().map(|line| Line::from(clipped(line, width))).collect()
}

const HELP: &str = " q, Ctrl-C   quit               Tab, ←, →, 1-6   another section
 s           order by the next column (*)        p, space   pause
 ↑, ↓, Page, Home, End   mark a row

 IOPS     targets: reads and writes that succeeded; jobs: reads completed
 P50 P99  targets: from a command's arrival to its response; jobs: from
          submission to completion. By buckets, each twice the one before
 WAITS    the share of the time that consumers wait for batches; several
          loaders of a process add up
 ERR/S    targets: commands with an error response; jobs: reads repeated
 HOSTS    controllers: each host has one or more
 HITS     the share of the bytes read, also for others, that came from there
 MEAN     the mean time of a read
 RANKS    reads that waited for a sample of another rank, in the interval
 -        the address does not serve that, or there was one answer so far

 Any key closes this page.";

/// The user's choices.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The number of the open section.
    pub(super) open: usize,
    /// The sorting column of each section; `None`: the order of the addresses.
    sorts: [Option<usize>; SECTIONS.len()],
    /// The index of the marked row.
    cursor: Option<usize>,
    pub(super) is_paused: bool,
    shows_help: bool,
    /// The number of rows in the last drawing, and the number that there was room for.
    pub(super) rows: usize,
    pub(super) room: usize,
}

impl View {
    /// The open section.
    pub(super) fn section(&self) -> &'static Section {
        &SECTIONS[self.open]
    }

    /// The sorting column of the open section.
    pub(super) fn sort(&self) -> Option<usize> {
        self.sorts[self.open]
    }

    /// Takes a key; returns whether it ends the page.
    pub(super) fn quits_at(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        if std::mem::take(&mut self.shows_help) {
            return key.code == KeyCode::Char('q');
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Tab | KeyCode::Right => self.step(1),
            KeyCode::BackTab | KeyCode::Left => self.step(-1),
            KeyCode::Char(digit @ '1'..='6') => self.open(digit as usize - '1' as usize),
            KeyCode::Down => self.move_by(1),
            KeyCode::Up => self.move_by(-1),
            KeyCode::PageDown => self.move_by(self.room as isize),
            KeyCode::PageUp => self.move_by(-(self.room as isize)),
            KeyCode::Home => self.cursor = (self.rows > 0).then_some(0),
            KeyCode::End => self.cursor = self.rows.checked_sub(1),
            KeyCode::Esc => self.cursor = None,
            _ => {}
        }
        false
    }

    /// Notes `rows` and `room` for keys; returns the first row to show, so that the marked row is among the `room`
    /// visible ones of `rows`.
    fn first_row(&mut self, rows: usize, room: usize) -> usize {
        (self.rows, self.room) = (rows, room.max(1));
        self.cursor =
            self.cursor.and_then(|cursor| rows.checked_sub(1).map(|last| cursor.min(last)));
        self.cursor.map_or(0, |cursor| (cursor + 1).saturating_sub(self.room))
    }

    /// Opens a section.
    fn open(&mut self, section: usize) {
        self.open = section;
        self.cursor = None;
    }

    /// Opens the section that is `by` sections further.
    fn step(&mut self, by: isize) {
        let count = SECTIONS.len() as isize;
        self.open((self.open as isize + by).rem_euclid(count) as usize);
    }

    /// Moves the mark by this many rows; without a mark, to the first or the last row.
    fn move_by(&mut self, by: isize) {
        let Some(last) = self.rows.checked_sub(1) else { return };
        self.cursor = Some(match self.cursor {
            Some(cursor) => cursor.saturating_add_signed(by).min(last),
            None if by > 0 => 0,
            None => last,
        });
    }

    /// Sorts by the next column; after the last column, not at all.
    fn sort_by_next(&mut self) {
        let next = self.sort().map_or(0, |column| column + 1);
        self.sorts[self.open] = Some(next).filter(|next| *next < self.section().titled());
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;

    use super::*;
    use crate::top::report::{CauseShare, Value};

    /// A row of a section, with the values of some of its columns.
    fn row(section: usize, role: Option<Role>, known: &[(&str, Value)]) -> Row {
        let value = |key| known.iter().find(|(its, _)| *its == key).map(|(_, value)| value.clone());
        let columns = SECTIONS[section].columns.iter();
        let values = columns.map(|column| value(column.key).unwrap_or_default()).collect();
        Row { role, values, ..Row::default() }
    }

    fn text(text: impl Into<String>) -> Value {
        Value::Text(text.into())
    }

    fn report(count: usize) -> Report {
        let target = |index: usize| {
            row(
                0,
                Some(Role::Target),
                &[
                    ("address", text(format!("192.168.100.{index}:9410"))),
                    ("role", text("target")),
                    ("version", text("0.1.0")),
                    ("commands_per_second", Value::Number(1000.0 * index as f64)),
                    ("bytes_per_second", Value::Number(1e9)),
                    ("latency_p50_seconds", Value::Number(0.000_18)),
                    ("latency_p99_seconds", Value::AtLeast(0.0041)),
                    ("controllers", Value::Number(2.0)),
                    ("connections", Value::Number(18.0)),
                    ("errors_per_second", Value::Number(0.0)),
                ],
            )
        };
        let silent = Row {
            note: Some(("no answer for 12 s: connection refused".into(), BAD)),
            style: BAD,
            ..row(0, None, &[("address", text("node9:9410"))])
        };
        let subsystem = [
            ("address", text("192.168.100.1:9410")),
            ("subsystem", text("nqn.2026-11.io.dlfs:train")),
        ];
        let causes = vec![CauseShare { cause: "network".into(), share: 0.3 }];
        let loader = [
            ("address", text("node3:9410")),
            ("wait_share", Value::Number(0.34)),
            ("samples_per_second", Value::Number(391_396.0)),
            ("waits_by_cause", Value::Causes(causes)),
        ];
        let tier = [("address", text("node3:9410")), ("tier", text("ram:\u{1b}[2J"))];
        Report {
            interval_seconds: 2.0,
            rows: [
                (1..=count).map(target).chain([silent]).collect(),
                vec![row(1, None, &subsystem)],
                vec![row(2, None, &loader)],
                vec![row(3, None, &tier)],
                Vec::new(),
                Vec::new(),
            ],
        }
    }

    fn drawn(report: &Report, view: &mut View, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, report, view, true)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn rows_of(buffer: &Buffer) -> Vec<String> {
        let cells = buffer.content().chunks(usize::from(buffer.area.width).max(1));
        let text = |row: &[ratatui::buffer::Cell]| {
            row.iter().map(|cell| cell.symbol()).collect::<String>()
        };
        cells.map(|row| text(row).trim_end().to_owned()).collect()
    }

    fn press(view: &mut View, code: KeyCode) -> bool {
        view.quits_at(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn the_heading_counts_each_process_once_also_one_that_only_serves_its_tiers() {
        let mut report = report(1);
        for (address, role) in
            [("node1:9410", Role::Peer), ("node1:9410", Role::Job), ("node2:9410", Role::Peer)]
        {
            report.rows[0].push(row(0, Some(role), &[("address", text(address))]));
        }
        let rows = rows_of(&drawn(&report, &mut View::default(), 80, 24));
        assert!(rows[0].starts_with(" dlfs top  1 target, 1 job, 1 peer, 1 silent "), "{rows:#?}");
    }

    #[test]
    fn the_overview_has_addresses_and_what_else_there_is_room_for() {
        let report = report(2);
        let mut view = View::default();
        let rows = rows_of(&drawn(&report, &mut view, 80, 24));
        assert_eq!(rows[0], format!(" dlfs top  2 targets, 1 silent{:>49}", "every 2 s"));
        assert_eq!(rows[1], " 1 Overview  2 Targets  3 Jobs  4 Tiers  5 Peers  6 Paths");
        assert!(rows[2].starts_with("ADDRESS            ROLE    IOPS   BYTES/S"), "{rows:#?}");
        assert!(rows[3].starts_with("192.168.100.1:9410 target"), "{rows:#?}");
        assert!(
            rows[5].starts_with("node9:9410         -      no answer for 12 s: conn"),
            "{rows:#?}"
        );
        assert!(rows.iter().any(|row| row.starts_with("SUBSYSTEM")), "{rows:#?}");
        assert!(rows.iter().any(|row| row.contains("391k")), "{rows:#?}");
        assert!(rows.iter().any(|row| row.contains("ram:\\u{1b}[2J")), "{rows:#?}");
        assert!(rows[23].starts_with(" q quit  Tab section"), "{rows:#?}");
    }

    #[test]
    fn more_addresses_than_rows_can_be_scrolled_through() {
        let report = report(60);
        let mut view = View::default();
        let rows = rows_of(&drawn(&report, &mut view, 80, 24));
        assert!(
            rows.iter().any(|row| row.starts_with("… ") && row.ends_with(" more")),
            "{rows:#?}"
        );
        press(&mut view, KeyCode::End);
        let buffer = drawn(&report, &mut view, 80, 24);
        let rows = rows_of(&buffer);
        let at = rows.iter().position(|row| row.starts_with("node9:9410")).unwrap();
        assert!(buffer[(0, at as u16)].modifier.contains(Modifier::REVERSED));
        assert!(rows[23].starts_with(" node9:9410  -  no answer"), "{rows:#?}");
    }

    #[test]
    fn rows_are_ordered_by_the_column_that_was_chosen() {
        let report = report(3);
        let mut view = View::default();
        for _ in 0..3 {
            press(&mut view, KeyCode::Char('s'));
        }
        let rows = rows_of(&drawn(&report, &mut view, 80, 24));
        assert!(rows[2].contains("IOPS*"), "{rows:#?}");
        let order: Vec<&str> =
            rows[3..7].iter().map(|row| row.split(':').next().unwrap()).collect();
        assert_eq!(order, ["192.168.100.3", "192.168.100.2", "192.168.100.1", "node9"]);
    }

    #[test]
    fn every_section_and_the_help_fit_screens_of_any_size() {
        let many = report(60);
        let none = Report::default();
        for report in [&many, &none] {
            for width in [0, 1, 2, 5, 10, 21, 40, 80, 120, 300] {
                for height in [0, 1, 2, 3, 4, 5, 6, 10, 24, 100] {
                    for key in ['1', '2', '3', '4', '5', '6', '?'] {
                        let mut view = View::default();
                        press(&mut view, KeyCode::Char(key));
                        drawn(report, &mut view, width, height);
                        press(&mut view, KeyCode::Down);
                        press(&mut view, KeyCode::End);
                        drawn(report, &mut view, width, height);
                    }
                }
            }
        }
    }

    #[test]
    fn the_help_fits_a_screen_of_80_by_24() {
        assert!(HELP.lines().count() <= 21);
        assert!(HELP.lines().all(|line| width_of(line) <= 80));
    }

    #[test]
    fn without_colours_nothing_has_one() {
        let report = report(2);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut view = View::default();
        let mut has_colour = |with| {
            terminal.draw(|frame| draw(frame, &report, &mut view, with)).unwrap();
            terminal.backend().buffer().content().iter().any(|cell| cell.fg != Color::Reset)
        };
        assert_eq!((has_colour(false), has_colour(true)), (false, true));
    }

    #[test]
    fn keys_change_section_and_pause() {
        let mut view = View::default();
        for (code, section) in [
            (KeyCode::Tab, 1),
            (KeyCode::Right, 2),
            (KeyCode::Left, 1),
            (KeyCode::Char('1'), 0),
            (KeyCode::BackTab, 5),
            (KeyCode::Tab, 0),
        ] {
            assert_eq!((press(&mut view, code), view.open), (false, section));
        }
        press(&mut view, KeyCode::Char('p'));
        assert!(view.is_paused);
        press(&mut view, KeyCode::Char('?'));
        assert!(view.shows_help);
        press(&mut view, KeyCode::Char('p'));
        assert!(view.is_paused && !view.shows_help, "any key closes the help");
        assert!(press(&mut view, KeyCode::Char('q')));
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(view.quits_at(control));
    }

    #[test]
    fn each_section_has_an_order_of_its_own() {
        let mut view = View::default();
        assert_eq!(view.sort(), None);
        for _ in 0..3 {
            press(&mut view, KeyCode::Char('s'));
        }
        assert_eq!(view.sort(), Some(2));
        press(&mut view, KeyCode::Tab);
        assert_eq!(view.sort(), None);
        for _ in 0..SECTIONS[1].titled() {
            press(&mut view, KeyCode::Char('s'));
        }
        assert_eq!(view.sort(), Some(SECTIONS[1].titled() - 1));
        press(&mut view, KeyCode::Char('s'));
        assert_eq!(view.sort(), None);
    }

    #[test]
    fn the_marked_row_is_always_seen() {
        let mut view = View::default();
        press(&mut view, KeyCode::Down);
        assert_eq!((view.cursor, view.first_row(10, 4)), (None, 0));
        for (code, cursor, first) in [
            (KeyCode::Down, 0, 0),
            (KeyCode::PageDown, 4, 1),
            (KeyCode::End, 9, 6),
            (KeyCode::Down, 9, 6),
            (KeyCode::PageUp, 5, 2),
            (KeyCode::Home, 0, 0),
            (KeyCode::Up, 0, 0),
        ] {
            press(&mut view, code);
            let found = view.first_row(10, 4);
            assert_eq!((view.cursor, found), (Some(cursor), first), "{code:?}");
        }
        press(&mut view, KeyCode::End);
        assert_eq!((view.first_row(3, 4), view.cursor), (0, Some(2)), "rows have gone");
        assert_eq!((view.first_row(0, 0), view.cursor), (0, None));
        press(&mut view, KeyCode::Esc);
        assert_eq!(view.cursor, None);
    }
}
