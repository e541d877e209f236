//! The user's choices: section, order, pause, interval. Pure: keys in, wishes out.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sections::{SECTIONS, Section};
use super::table::Sort;

/// The user's choices.
#[derive(Debug)]
pub(super) struct View {
    /// The number of the open section.
    pub(super) open: usize,
    /// The order of each section's rows.
    sorts: [Option<Sort>; SECTIONS.len()],
    /// The row that is marked, by its place.
    pub(super) cursor: Option<usize>,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) interval: Duration,
    /// How many rows the last drawing had, and how many there were room for.
    pub(super) rows: usize,
    pub(super) room: usize,
}

/// A key's request beyond another view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Quit,
    /// The addresses are to be asked at the interval of the view.
    Interval,
}

impl View {
    pub(super) fn new(interval: Duration) -> View {
        View {
            open: 0,
            sorts: [None; SECTIONS.len()],
            cursor: None,
            is_paused: false,
            shows_help: false,
            interval,
            rows: 0,
            room: 1,
        }
    }

    /// The open section.
    pub(super) fn section(&self) -> &'static Section {
        &SECTIONS[self.open]
    }

    /// The order of the section's rows.
    pub(super) fn sort(&self) -> Option<Sort> {
        self.sorts[self.open]
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Wish {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control {
            return if key.code == KeyCode::Char('c') { Wish::Quit } else { Wish::Nothing };
        }
        if self.shows_help {
            self.shows_help = false;
            return if key.code == KeyCode::Char('q') { Wish::Quit } else { Wish::Nothing };
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('+' | '=') => return self.paced(longer(self.interval)),
            KeyCode::Char('-') => return self.paced(shorter(self.interval)),
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(-1),
            KeyCode::Char('r') => {
                if let Some(sort) = &mut self.sorts[self.open] {
                    sort.is_reversed = !sort.is_reversed;
                }
            }
            KeyCode::Tab | KeyCode::Right => self.step(1),
            KeyCode::BackTab | KeyCode::Left => self.step(-1),
            KeyCode::Char(digit @ '1'..='5') => self.open(digit as usize - '1' as usize),
            KeyCode::Down => self.move_by(1),
            KeyCode::Up => self.move_by(-1),
            KeyCode::PageDown => self.move_by(self.room as isize),
            KeyCode::PageUp => self.move_by(-(self.room as isize)),
            KeyCode::Home => self.cursor = (self.rows > 0).then_some(0),
            KeyCode::End => self.cursor = self.rows.checked_sub(1),
            KeyCode::Esc => self.cursor = None,
            _ => {}
        }
        Wish::Nothing
    }

    /// The first row to show, so that the marked one is seen in `room` rows of `rows`.
    pub(super) fn first_row(&mut self, rows: usize, room: usize) -> usize {
        (self.rows, self.room) = (rows, room.max(1));
        self.cursor =
            self.cursor.and_then(|cursor| rows.checked_sub(1).map(|last| cursor.min(last)));
        self.cursor.map_or(0, |cursor| (cursor + 1).saturating_sub(self.room))
    }

    fn paced(&mut self, interval: Duration) -> Wish {
        self.interval = interval;
        Wish::Interval
    }

    fn open(&mut self, section: usize) {
        self.open = section;
        self.cursor = None;
    }

    fn step(&mut self, by: isize) {
        let count = SECTIONS.len() as isize;
        self.open((self.open as isize + by).rem_euclid(count) as usize);
    }

    fn move_by(&mut self, by: isize) {
        let Some(last) = self.rows.checked_sub(1) else { return };
        self.cursor = Some(match self.cursor {
            Some(cursor) => cursor.saturating_add_signed(by).min(last),
            None if by > 0 => 0,
            None => last,
        });
    }

    /// Orders by the next column, or after the last by none.
    fn sort_by_next(&mut self, by: isize) {
        let count = self.section().titled() as isize + 1;
        let sort = &mut self.sorts[self.open];
        let place = sort.map_or(0, |sort| sort.column as isize + 1);
        let column = usize::try_from((place + by).rem_euclid(count) - 1).ok();
        *sort = column.map(|column| Sort { column, is_reversed: false });
    }
}

fn longer(interval: Duration) -> Duration {
    let mut steps = STEPS_MS.into_iter().map(Duration::from_millis);
    steps.find(|step| *step > interval).unwrap_or(interval)
}

fn shorter(interval: Duration) -> Duration {
    let mut steps = STEPS_MS.into_iter().rev().map(Duration::from_millis);
    steps.find(|step| *step < interval).unwrap_or(interval)
}

/// The intervals that keys select.
const STEPS_MS: [u64; 7] = [500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

#[cfg(test)]
mod tests {
    use super::*;

    fn press(view: &mut View, code: KeyCode) -> Wish {
        view.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_change_section_order_pause_and_interval() {
        let mut view = View::new(Duration::from_secs(3));
        for (code, section) in [
            (KeyCode::Tab, 1),
            (KeyCode::Right, 2),
            (KeyCode::Left, 1),
            (KeyCode::Char('1'), 0),
            (KeyCode::BackTab, 4),
            (KeyCode::Tab, 0),
        ] {
            assert_eq!((press(&mut view, code), view.open), (Wish::Nothing, section));
        }
        let mut paced = |key| (press(&mut view, KeyCode::Char(key)), view.interval.as_millis());
        assert_eq!(paced('+'), (Wish::Interval, 5000));
        assert_eq!(paced('-'), (Wish::Interval, 2000));
        for expected in [1000, 500, 500] {
            assert_eq!(paced('-').1, expected);
        }
        for expected in [1000, 2000, 5000, 10_000, 30_000, 60_000, 60_000] {
            assert_eq!(paced('+').1, expected);
        }
        press(&mut view, KeyCode::Char('p'));
        assert!(view.is_paused);
        press(&mut view, KeyCode::Char('?'));
        assert!(view.shows_help);
        press(&mut view, KeyCode::Char('p'));
        assert!(view.is_paused && !view.shows_help, "any key closes the help");
        assert_eq!(press(&mut view, KeyCode::Char('q')), Wish::Quit);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(control), Wish::Quit);
    }

    #[test]
    fn each_section_has_an_order_of_its_own() {
        let mut view = View::new(Duration::from_secs(2));
        assert_eq!(view.sort(), None);
        press(&mut view, KeyCode::Char('r'));
        assert_eq!(view.sort(), None, "there is nothing to reverse");
        for _ in 0..3 {
            press(&mut view, KeyCode::Char('s'));
        }
        press(&mut view, KeyCode::Char('r'));
        assert_eq!(view.sort(), Some(Sort { column: 2, is_reversed: true }));
        press(&mut view, KeyCode::Tab);
        assert_eq!(view.sort(), None);
        press(&mut view, KeyCode::Char('S'));
        let last = SECTIONS[1].titled() - 1;
        assert_eq!(view.sort(), Some(Sort { column: last, is_reversed: false }));
        press(&mut view, KeyCode::Char('s'));
        assert_eq!(view.sort(), None);
    }

    #[test]
    fn the_marked_row_is_always_seen() {
        let mut view = View::new(Duration::from_secs(2));
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
