//! Numbers, times and names as text for people.

pub(crate) use dlfs::report::text::{bytes, count, duration, percent, safe_text};

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use dlfs::report::text::is_unsafe;

/// A number with its noun, which is given in the singular: `1 sample`, `2 samples`, `3 entries`, `4 keys`, `5 batches`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let count = count(number);
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("{count} {noun}"),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{count} {stem}ies"),
        _ if noun.ends_with("ch") => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

/// A number of bytes in the largest unit, up to GiB, of which it is a multiple: `4 MiB`, `64 KiB`, `1000 B`.
pub(crate) fn binary_size(number: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(bits, _)| number > 0 && number.trailing_zeros() >= *bits);
    unit.map_or_else(|| format!("{number} B"), |(bits, unit)| format!("{} {unit}", number >> bits))
}

/// A rate of bytes per time: `1.42 GB/s`.
pub(crate) fn rate(number: u64, time: Duration) -> String {
    format!("{}/s", bytes(per_second(number, time) as u64))
}

/// Items per second; 0 if no time has passed.
pub(crate) fn per_second(number: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { number as f64 / seconds } else { 0.0 }
}

/// Microseconds as `850 µs`, `12.3 ms` or `1.50 s`.
pub(crate) fn micros(us: u64) -> String {
    duration(Duration::from_micros(us))
}

/// Seconds since 1970 as `2026-11-20 11:40:07 UTC`.
pub(crate) fn utc(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// The last second of the year 9999: a time from media may be any number.
const LAST_SECOND: u64 = 253_402_300_799;

/// A name on one line that cannot move the cursor, change the terminal's colours or imitate another name.
///
/// Control and direction characters become `\n`, `\t`, `\r`, `\u{..}`; bytes that are not UTF-8 become
/// `\xNN`; backslashes are doubled, so that the result is unambiguous.
pub(crate) fn safe_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                character if is_unsafe(character) => text.extend(character.escape_default()),
                character => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("writing to a String does not fail");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_their_noun() {
        assert_eq!(counted(1, "sample"), "1 sample");
        assert_eq!(counted(1000, "sample"), "1,000 samples");
        assert_eq!(
            (counted(1, "entry"), counted(0, "entry")),
            ("1 entry".into(), "0 entries".into())
        );
        assert_eq!((counted(1, "key"), counted(2, "key")), ("1 key".into(), "2 keys".into()));
    }

    #[test]
    fn binary_sizes_are_whole_numbers_of_their_unit() {
        assert_eq!(binary_size(4 << 20), "4 MiB");
        assert_eq!(binary_size(64 << 10), "64 KiB");
        assert_eq!(binary_size((1 << 20) + 1), "1048577 B");
        assert_eq!(binary_size(0), "0 B");
    }

    #[test]
    fn times_are_dates_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_795_000_000), "2026-11-18 11:06:40 UTC");
        assert_eq!(utc(4_102_444_799), "2099-12-31 23:59:59 UTC");
    }

    #[test]
    fn a_rate_over_no_time_is_zero() {
        assert_eq!(per_second(5, Duration::ZERO), 0.0);
        assert_eq!(rate(2_000_000, Duration::from_secs(2)), "1.00 MB/s");
    }

    #[test]
    fn a_hostile_name_prints_as_one_harmless_line() {
        assert_eq!(safe_name(b"cat/1.jpg"), "cat/1.jpg");
        assert_eq!(safe_name("größe é".as_bytes()), "größe é");
        assert_eq!(safe_name(b"a\nb\x1b[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(safe_name(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(safe_name(b"a\\nb"), "a\\\\nb");
        assert_eq!(safe_name("evil\u{202e}gpj".as_bytes()), "evil\\u{202e}gpj");
    }

    #[test]
    fn two_names_never_print_alike() {
        assert_ne!(safe_name(b"\xff"), safe_name(b"\\xff"));
        assert_ne!(safe_name(b"\n"), safe_name(b"\\n"));
    }
}
