//! Numbers as short strings, for columns of tables.

use std::time::Duration;

use crate::text;

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
    text::bytes(bytes as u64)
}

/// `850 µs`, `12.3 ms`, `1.50 s`, `2 min 30 s`.
pub(super) fn seconds(seconds: f64) -> String {
    text::duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// A duration in whole seconds, at least one: `12 s`, `2 min 30 s`.
pub(super) fn age(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{:.0} s", seconds.floor().max(1.0)),
        _ => self::seconds(seconds),
    }
}

const SCALES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

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
}
