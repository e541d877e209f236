//! The user's choices: section, order, pause. Pure: keys are arguments.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sections::{SECTIONS, Section};

/// The user's choices.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The number of the open section.
    pub(super) open: usize,
    /// The sorting column of each section.
    sorts: [Option<usize>; SECTIONS.len()],
    /// The index of the marked row.
    pub(super) cursor: Option<usize>,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
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

    /// The first row to show, so that the marked row is among the `room` visible ones of `rows`.
    pub(super) fn first_row(&mut self, rows: usize, room: usize) -> usize {
        (self.rows, self.room) = (rows, room.max(1));
        self.cursor =
            self.cursor.and_then(|cursor| rows.checked_sub(1).map(|last| cursor.min(last)));
        self.cursor.map_or(0, |cursor| (cursor + 1).saturating_sub(self.room))
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

    /// Sorts by the next column; after the last column, not at all.
    fn sort_by_next(&mut self) {
        let next = self.sort().map_or(0, |column| column + 1);
        self.sorts[self.open] = Some(next).filter(|next| *next < self.section().titled());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(view: &mut View, code: KeyCode) -> bool {
        view.quits_at(KeyEvent::new(code, KeyModifiers::NONE))
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
