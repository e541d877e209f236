//! Text for people: numbers (counts in full, other quantities with a unit and mostly three digits), and strings from
//! elsewhere, escaped for a terminal.

use std::borrow::Cow;
use std::time::Duration;

/// `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in powers of 1000: `512 B`, `138 MB`, `1.42 GB`.
pub fn bytes(number: u64) -> String {
    if number < 1000 {
        return format!("{number} B");
    }
    let mut value = number as f64;
    let mut unit = 0;
    // Without this, 999.5 of one unit would be printed as 1000 of it.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// `0 s`, `850 µs`, `12.3 ms`, `1.50 s`, `2 min 5 s`, `3 h 5 min`.
pub fn duration(time: Duration) -> String {
    let us = time.as_micros();
    match time.as_secs() {
        _ if time.is_zero() => "0 s".to_owned(),
        0 if us < 1000 => format!("{us} µs"),
        0 => format!("{} ms", three_digits(us as f64 / 1e3)),
        1..120 => format!("{} s", three_digits(us as f64 / 1e6)),
        seconds @ 120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A fraction in per cent: `0 %`, `0.4 %`, `34 %`.
pub fn percent(fraction: f64) -> String {
    match 100.0 * fraction {
        percent if percent < 0.05 => "0 %".to_owned(),
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// A part's fraction of the whole; 0 if the whole is 0.
pub(super) fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// A string that may quote names, paths or strings from a target, for a terminal: control and
/// direction characters are escaped, but line breaks and tabs stay.
pub fn safe_text(text: &str) -> Cow<'_, str> {
    let harms = |character| is_unsafe(character) && !matches!(character, '\n' | '\t');
    if !text.contains(harms) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            character if harms(character) => safe.extend(character.escape_default()),
            character => safe.push(character),
        }
    }
    Cow::Owned(safe)
}

/// Returns whether a character affects the terminal or its neighbours: control characters, including C1 and
/// DEL, direction marks, and invisible characters.
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}')
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}')
        || matches!(character, '\u{e0000}'..='\u{e007f}')
}

fn three_digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Units of bytes, each 1000 times the one before.
const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_three() {
        assert_eq!([0, 999, 1_000, 12_345_678].map(count), ["0", "999", "1,000", "12,345,678"]);
    }

    #[test]
    fn bytes_change_unit_before_they_show_four_digits() {
        let numbers = [999, 1_000, 12_345_678, 138_400_000, 999_600, u64::MAX];
        let told = ["999 B", "1.00 kB", "12.3 MB", "138 MB", "1.00 MB", "18.4 EB"];
        assert_eq!(numbers.map(bytes), told);
    }

    #[test]
    fn times_are_in_the_unit_that_fits() {
        let us = [0, 850, 12_300, 1_500_000, 125_000_000, 150_000_000, 7_300_000_000];
        let told = ["0 s", "850 µs", "12.3 ms", "1.50 s", "2 min 5 s", "2 min 30 s", "2 h 1 min"];
        assert_eq!(us.map(|us| duration(Duration::from_micros(us))), told);
    }

    #[test]
    fn shares_have_the_digits_that_matter() {
        let told = [0.0, 0.001, 0.004, 0.05, 0.344, 1.5].map(percent);
        assert_eq!(told, ["0 %", "0.1 %", "0.4 %", "5.0 %", "34 %", "150 %"]);
        assert_eq!(share(Duration::from_secs(1), Duration::ZERO), 0.0);
    }

    #[test]
    fn a_text_keeps_its_lines_and_nothing_else_that_moves_the_cursor() {
        assert_eq!(safe_text("größe\n  because: \t x"), "größe\n  because: \t x");
        let hostile = "a\u{9b}31m\u{7f}\u{202e}\rb\u{1b}[2J\u{ad}";
        assert_eq!(safe_text(hostile), "a\\u{9b}31m\\u{7f}\\u{202e}\\rb\\u{1b}[2J\\u{ad}");
    }
}
