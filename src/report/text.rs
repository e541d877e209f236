//! Numbers for people, and text that is safe in HTML.

use std::time::Duration;

/// `1234567` as `1,234,567`.
pub(super) fn count(number: u64) -> String {
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

/// Bytes in powers of 1000: `1.23 GB`.
pub(super) fn bytes(number: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{} {}", figures(value), units[unit]) }
}

/// A number a second, with as many digits as matter.
pub(super) fn rate(per_second: f64) -> String {
    if per_second >= 100.0 { count(per_second.round() as u64) } else { figures(per_second) }
}

/// `1.5 ms`, `2 min 5 s`.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds >= 3600.0 {
        format!("{} h {} min", time.as_secs() / 3600, time.as_secs() % 3600 / 60)
    } else if seconds >= 99.5 {
        format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60)
    } else if seconds >= 0.9995 {
        format!("{} s", figures(seconds))
    } else if seconds >= 0.000_999_5 {
        format!("{} ms", figures(seconds * 1e3))
    } else if seconds > 0.0 {
        format!("{} µs", figures(seconds * 1e6))
    } else {
        "0 s".to_owned()
    }
}

/// A share of a whole in per cent.
pub(super) fn percent(part: Duration, whole: Duration) -> String {
    let share = share(part, whole);
    if share > 0.0 && share < 0.001 { "< 0.1 %".to_owned() } else { percent_of(share) }
}

/// A fraction in per cent.
pub(super) fn percent_of(fraction: f64) -> String {
    let percent = 100.0 * fraction;
    if percent >= 9.95 || percent == 0.0 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.1} %")
    }
}

/// A share of a whole; 0 of nothing.
pub(super) fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// Text as it may stand in HTML, also within an attribute in quotation marks.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Such characters could turn the text that follows around, or hide it.
            c if c.is_control() || is_format(c) => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Marks of direction and the like.
fn is_format(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Three digits that matter.
fn figures(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        assert_eq!(
            (count(0), count(999), count(1_234_567)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
        assert_eq!(
            (bytes(999), bytes(1_000), bytes(12_345_678)),
            ("999 B".into(), "1.00 kB".into(), "12.3 MB".into())
        );
        assert_eq!(
            (bytes(999_600), rate(12.34), rate(391_396.2)),
            ("1.00 MB".into(), "12.3".into(), "391,396".into())
        );
        let told = [0, 1_500, 1_500_000, 2_500_000_000, 125_000_000_000, 7_300_000_000_000];
        let told = told.map(|ns| duration(Duration::from_nanos(ns)));
        assert_eq!(told, ["0 s", "1.50 µs", "1.50 ms", "2.50 s", "2 min 5 s", "2 h 1 min"]);
        let whole = Duration::from_secs(1000);
        let told =
            [0, 10, 1000, 50_000, 340_000].map(|ms| percent(Duration::from_millis(ms), whole));
        assert_eq!(told, ["0 %", "< 0.1 %", "0.1 %", "5.0 %", "34 %"]);
    }

    #[test]
    fn text_of_users_cannot_leave_its_place() {
        let hostile = "<script>alert('x')</script>\" onload=\"&\u{202e}\u{7}";
        let safe = escaped(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{202e}', '\u{7}']), "{safe}");
        assert_eq!(escaped("größe 1&2"), "größe 1&amp;2");
    }
}
