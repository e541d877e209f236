//! Draws a report as the user has chosen to see it, on a screen of any size.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::report::{Report, Role};
use super::table::{Look, Parts, Sort, Table, clipped, width_of};
use super::tables;
use super::view::{Section, View};
use super::waits::Wait;

/// Draws all of it. `has_colour`: else only bold, dim and reversed text.
pub(super) fn draw(frame: &mut Frame, report: &Report, view: &mut View, has_colour: bool) {
    let area = frame.area();
    let width = usize::from(area.width);
    let height = usize::from(area.height);
    let paint = Paint { has_colour };
    let mut lines = vec![heading(report, view, width), sections(view, width)];
    // On a low screen what is watched is worth more than the frame around it.
    lines.truncate(height.saturating_sub(3).min(2));
    let has_footer = height > 3;
    let room = height - lines.len() - usize::from(has_footer);
    let mut body = if view.shows_help {
        help(width)
    } else {
        match view.section {
            Section::Overview => overview(report, view, &paint, width, room),
            Section::Waits => all_waits(report, view, &paint, width, room),
            _ => one_table(report, view, &paint, width, room),
        }
    };
    body.resize(room, Line::default());
    lines.extend(body);
    if has_footer {
        lines.push(footer(report, view, width));
    }
    for (row, line) in (area.y..area.bottom()).zip(lines) {
        let place = Rect { y: row, height: 1, ..area };
        frame.render_widget(line, place);
    }
}

/// `dlfs top  2 targets, 1 job, 1 silent      every 2 s`. Peers are jobs as well.
fn heading(report: &Report, view: &View, width: usize) -> Line<'static> {
    let count = |role| report.addresses.iter().filter(|row| row.role == Some(role)).count();
    let silent = report.addresses.iter().filter(|row| row.error.is_some()).count();
    let counts = [
        (count(Role::Target), "target"),
        (count(Role::Job), "job"),
        (count(Role::Tiers) + count(Role::Reader), "other"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let mut told: Vec<String> =
        counts.map(|(count, noun)| crate::text::counted(count as u64, noun)).collect();
    if silent > 0 {
        told.push(format!("{silent} silent"));
    }
    let pace = format!("every {} s", view.interval.as_secs_f64());
    let right = if view.is_paused { "PAUSED ".to_owned() } else { format!("{pace} ") };
    let left = clipped(&format!(" dlfs top  {}", told.join(", ")), width);
    let space = width.saturating_sub(width_of(&left) + width_of(&right));
    let right = if space == 0 { String::new() } else { right };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let right_style = if view.is_paused { bold.add_modifier(Modifier::REVERSED) } else { bold };
    Line::from(vec![
        Span::styled(left, bold),
        Span::raw(" ".repeat(space)),
        Span::styled(right, right_style),
    ])
}

/// The names of the sections; the open one is reversed. Without room, only that.
fn sections(view: &View, width: usize) -> Line<'static> {
    let name = |(number, section): (usize, Section)| format!(" {} {} ", number, section.word());
    let all: Vec<(usize, Section)> = (1..).zip(Section::ALL).collect();
    let wanted: usize = all.iter().map(|section| width_of(&name(*section))).sum();
    let shown = all.into_iter().filter(|(_, section)| wanted <= width || *section == view.section);
    let spans = shown.map(|(number, section)| {
        let is_open = section == view.section;
        let style = if is_open { Modifier::REVERSED | Modifier::BOLD } else { Modifier::empty() };
        Span::styled(clipped(&name((number, section)), width), Style::new().add_modifier(style))
    });
    Line::from(spans.collect::<Vec<_>>())
}

/// The keys, or the names of the marked row in full.
fn footer(report: &Report, view: &View, width: usize) -> Line<'static> {
    let marked = view.cursor.zip(sorted(report, view)).and_then(|(cursor, table)| {
        let row = table.rows.get(cursor)?;
        let names = row.cells.iter().take(2).map(|cell| &*cell.text).collect::<Vec<_>>().join("  ");
        Some(format!(" {names}  {}", row.note.as_ref().map_or("", |(note, _)| note)))
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

const KEYS: [&str; 3] = [
    " q quit  Tab section  s order  r reverse  p pause  +/- interval  ? help",
    " q quit  Tab section  s order  ? help",
    " q  Tab  s  ?",
];

fn sorted(report: &Report, view: &View) -> Option<Table> {
    let mut table = view.section.table(report)?;
    table.sort(view.sort());
    Some(table)
}

/// The addresses, the sentences, and then the other tables for which there is room.
fn overview(
    report: &Report,
    view: &mut View,
    paint: &Paint,
    width: usize,
    room: usize,
) -> Vec<Line<'static>> {
    let Some(table) = sorted(report, view) else { return Vec::new() };
    let sentences = report.waits.iter().filter(|wait| !wait.is_in_table);
    let sentences = wrapped(sentences, width, paint);
    let wanted = table.rows.len() + 1;
    // Both get a half, unless one needs less. A single line that is not all of them is no use.
    let for_waits = (sentences.len() + 2).min((room / 2).max(room.saturating_sub(wanted)));
    let has_waits = for_waits > 2 && for_waits >= sentences.len().min(2) + 2;
    let for_table = room.saturating_sub(if has_waits { for_waits } else { 0 }).min(wanted);
    let mut lines = rows(&table, view, paint, width, for_table, view.sort());
    if has_waits {
        lines.push(Line::default());
        lines.push(title("Who waits"));
        lines.extend(fitting(sentences, for_waits - 2));
    }
    for other in tables::all(report).into_iter().skip(1) {
        if !other.rows.is_empty() && lines.len() + other.rows.len() + 2 <= room {
            lines.push(Line::default());
            lines.extend(other.lines(width, None).into_iter().map(|parts| paint.line(parts)));
        }
    }
    lines
}

fn one_table(
    report: &Report,
    view: &mut View,
    paint: &Paint,
    width: usize,
    room: usize,
) -> Vec<Line<'static>> {
    let Some(table) = sorted(report, view) else { return Vec::new() };
    if table.rows.is_empty() {
        view.first_row(0, room);
        return vec![Line::default(), Line::from(clipped(&format!(" {}", table.none), width))];
    }
    rows(&table, view, paint, width, room, view.sort())
}

/// The sentences; the cursor scrolls.
fn all_waits(
    report: &Report,
    view: &mut View,
    paint: &Paint,
    width: usize,
    room: usize,
) -> Vec<Line<'static>> {
    let sentences = wrapped(report.waits.iter(), width, paint);
    let last = sentences.len().saturating_sub(room);
    view.first_row(last + 1, 1);
    view.room = room.max(1); // of a page of keys
    let first = view.cursor.unwrap_or(0).min(last);
    sentences.into_iter().skip(first).collect()
}

/// The titles and as many rows as there is room for, those around the cursor.
fn rows(
    table: &Table,
    view: &mut View,
    paint: &Paint,
    width: usize,
    room: usize,
    sort: Option<Sort>,
) -> Vec<Line<'static>> {
    let mut lines = table.lines(width, sort).into_iter().map(|parts| paint.line(parts));
    let titles = lines.next();
    let first = view.first_row(table.rows.len(), room.saturating_sub(1));
    let mut shown: Vec<Line> = lines.skip(first).collect();
    if let Some(line) = view.cursor.and_then(|cursor| shown.get_mut(cursor - first)) {
        *line = std::mem::take(line).patch_style(Style::new().add_modifier(Modifier::REVERSED));
    }
    let room = room.saturating_sub(1);
    let shown = if view.cursor.is_some() {
        shown.into_iter().take(room).collect()
    } else {
        fitting(shown, room)
    };
    titles.into_iter().chain(shown).collect()
}

/// The first of them; the last line says how many are left.
fn fitting(mut lines: Vec<Line<'static>>, room: usize) -> Vec<Line<'static>> {
    if lines.len() > room {
        let left = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        let more = Span::styled(format!("… {left} more"), Style::new().add_modifier(Modifier::DIM));
        lines.extend((room > 0).then(|| Line::from(more)));
    }
    lines
}

/// The sentences as lines that break between words.
fn wrapped<'a>(
    waits: impl Iterator<Item = &'a Wait>,
    width: usize,
    paint: &Paint,
) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for wait in waits {
        let look = if wait.is_trouble { Look::Bad } else { Look::Plain };
        let text = crate::text::safe_text(&wait.text).into_owned();
        let mut line = String::new();
        for word in words(&text) {
            if !line.trim().is_empty() && width_of(&line) + 1 + width_of(&word) > width {
                lines.push(paint.line(vec![(std::mem::replace(&mut line, "  ".to_owned()), look)]));
            } else if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
        lines.push(paint.line(vec![(clipped(&line, width), look)]));
    }
    lines
}

/// The words of a text; a number and its unit are one.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut() {
            Some(last) if last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn title(text: &'static str) -> Line<'static> {
    Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)))
}

fn help(width: usize) -> Vec<Line<'static>> {
    HELP.lines().map(|line| Line::from(clipped(line, width))).collect()
}

const HELP: &str = " q, Ctrl-C   quit               Tab, ←, →, 1-6   another section
 s, S        order by the next column (*), the previous one
 r           reverse the order (^)               p, space   pause
 +, -        ask less often, more often          ↑, ↓, Page, Home, End   mark

 IOPS     targets: reads and writes that succeeded; jobs: reads completed
 P50 P99  targets: from a command's arrival to its response; jobs: from
          submission to completion. By buckets, each twice the one before
 WAITS    the share of the time that consumers wait for batches; several
          loaders of a process add up
 ERR/S    targets: commands with an error response; jobs: reads repeated
 HOSTS    controllers: each host has one or more
 HITS     the share of the bytes read, also for others, that came from there
 MEAN     the mean time of a read
 -        the address does not serve that, or there was one answer so far

 Any key closes this page.";

/// Looks as styles.
struct Paint {
    has_colour: bool,
}

impl Paint {
    fn line(&self, parts: Parts) -> Line<'static> {
        let spans = parts.into_iter().map(|(text, look)| Span::styled(text, self.style(look)));
        Line::from(spans.collect::<Vec<_>>())
    }

    fn style(&self, look: Look) -> Style {
        let style = Style::new();
        let colour = |colour| if self.has_colour { style.fg(colour) } else { style };
        match look {
            Look::Plain => style,
            Look::Dim => style.add_modifier(Modifier::DIM),
            Look::Title => colour(Color::Cyan).add_modifier(Modifier::BOLD),
            Look::Warn => colour(Color::Yellow),
            Look::Bad => colour(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::between::Quantile;
    use super::super::report::{AddressRow, CauseShare, LoaderRow, SubsystemRow, TierRow};
    use super::super::waits::waits;
    use super::*;

    fn report(count: usize) -> Report {
        let target = |index: usize| AddressRow {
            address: format!("192.168.100.{index}:9410"),
            role: Some(Role::Target),
            version: Some("0.1.0".into()),
            commands_per_second: Some(1000.0 * index as f64),
            bytes_per_second: Some(1e9),
            latency_p50_seconds: Some(Quantile::About(0.000_18)),
            latency_p99_seconds: Some(Quantile::About(0.0041)),
            controllers: Some(2.0),
            connections: Some(18.0),
            errors_per_second: Some(0.0),
            ..AddressRow::default()
        };
        let silent = AddressRow {
            address: "node9:9410".into(),
            error: Some("connection refused".into()),
            error_seconds: Some(12.0),
            ..AddressRow::default()
        };
        let subsystem = SubsystemRow {
            address: "192.168.100.1:9410".into(),
            subsystem: "nqn.2026-11.io.dlfs:train".into(),
            ..SubsystemRow::default()
        };
        let loader = LoaderRow {
            address: "node3:9410".into(),
            wait_share: Some(0.34),
            samples_per_second: Some(391_396.0),
            waits_by_cause: vec![CauseShare { cause: "network".into(), share: 0.3 }],
            ..LoaderRow::default()
        };
        let tier = TierRow {
            address: "node3:9410".into(),
            tier: "ram:\u{1b}[2J".into(),
            ..TierRow::default()
        };
        let mut report = Report {
            interval_seconds: 2.0,
            addresses: (1..=count).map(target).chain([silent]).collect(),
            subsystems: vec![subsystem],
            loaders: vec![loader],
            tiers: vec![tier],
            ..Report::default()
        };
        report.waits = waits(&report);
        report
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

    fn press(view: &mut View, report: &Report, code: KeyCode) {
        view.key(KeyEvent::new(code, KeyModifiers::NONE), report);
    }

    #[test]
    fn the_overview_has_addresses_sentences_and_what_else_there_is_room_for() {
        let report = report(2);
        let mut view = View::new(Duration::from_secs(2));
        let rows = rows_of(&drawn(&report, &mut view, 80, 24));
        assert_eq!(rows[0], format!(" dlfs top  2 targets, 1 silent{:>49}", "every 2 s"));
        assert_eq!(rows[1], " 1 Overview  2 Targets  3 Jobs  4 Tiers  5 Peers  6 Waits");
        assert!(rows[2].starts_with("ADDRESS            ROLE    IOPS   BYTES/S"), "{rows:#?}");
        assert!(rows[3].starts_with("192.168.100.1:9410 target"), "{rows:#?}");
        assert!(
            rows[5].starts_with("node9:9410         -      no answer for 12 s: conn"),
            "{rows:#?}"
        );
        assert_eq!(rows[7], "Who waits");
        assert!(
            rows[8].starts_with("job node3:9410 waits 34 % of its time, mostly for"),
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
        let mut view = View::new(Duration::from_secs(2));
        let rows = rows_of(&drawn(&report, &mut view, 80, 24));
        assert!(rows.iter().any(|row| row == "Who waits"), "{rows:#?}");
        assert!(
            rows.iter().any(|row| row.starts_with("… ") && row.ends_with(" more")),
            "{rows:#?}"
        );
        press(&mut view, &report, KeyCode::End);
        let buffer = drawn(&report, &mut view, 80, 24);
        let rows = rows_of(&buffer);
        let at = rows.iter().position(|row| row.starts_with("node9:9410")).unwrap();
        assert!(buffer[(0, at as u16)].modifier.contains(Modifier::REVERSED));
        assert!(rows[23].starts_with(" node9:9410  -  no answer"), "{rows:#?}");
    }

    #[test]
    fn rows_are_ordered_by_the_column_that_was_chosen() {
        let report = report(3);
        let mut view = View::new(Duration::from_secs(2));
        (0..3).for_each(|_| press(&mut view, &report, KeyCode::Char('s')));
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
                        let mut view = View::new(Duration::from_secs(2));
                        press(&mut view, report, KeyCode::Char(key));
                        drawn(report, &mut view, width, height);
                        press(&mut view, report, KeyCode::Down);
                        press(&mut view, report, KeyCode::End);
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
    fn sentences_break_between_words_and_not_before_units() {
        assert_eq!(
            words("waits 34 % (2.00 ms) of 3 targets."),
            ["waits", "34 %", "(2.00 ms)", "of", "3 targets."]
        );
        let wait = Wait {
            text: "job a:1 waits 34 % of its time".into(),
            is_trouble: false,
            is_in_table: false,
        };
        let lines = wrapped([&wait].into_iter(), 16, &Paint { has_colour: false });
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["job a:1 waits", "  34 % of its", "  time"]);
    }

    #[test]
    fn without_colours_nothing_has_one() {
        let report = report(2);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut view = View::new(Duration::from_secs(2));
        let mut has_colour = |with| {
            terminal.draw(|frame| draw(frame, &report, &mut view, with)).unwrap();
            terminal.backend().buffer().content().iter().any(|cell| cell.fg != Color::Reset)
        };
        assert_eq!((has_colour(false), has_colour(true)), (false, true));
    }
}
