//! Formats numbers as fio does: at most four digits, and a unit.

/// `value` with at most four digits: `1607k`, `12.3G`.
pub(crate) fn short(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value.max(0.0);
    let mut unit = 0;
    while value >= 9999.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 && value.fract() == 0.0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", units[unit])
}

/// A plain count: `950`, `1607k`.
pub(crate) fn count(value: f64) -> String {
    short(value.round(), 1000.0, &["", "k", "M", "G", "T"])
}

/// Bytes in powers of 1,024.
pub(crate) fn binary(bytes: f64) -> String {
    short(bytes.round(), 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Bytes in powers of 1,000.
pub(crate) fn decimal(bytes: f64) -> String {
    short(bytes.round(), 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Bytes per second in both units.
pub(crate) fn rate(bytes_per_s: f64) -> String {
    format!("{}/s ({}/s)", binary(bytes_per_s), decimal(bytes_per_s))
}

/// The unit for latencies from `min` to `max` nanoseconds: its name and its length.
pub(crate) fn latency_unit(min: u64, max: u64) -> (&'static str, f64) {
    match (min, max) {
        (2_000_001.., 100_000_000..) => ("msec", 1e6),
        (2_001.., 100_000..) => ("usec", 1e3),
        _ => ("nsec", 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_figures() {
        assert_eq!(count(950.0), "950");
        assert_eq!(count(1_607_000.0), "1607k");
        assert_eq!(count(12_345.0), "12.3k");
        assert_eq!(binary(13_207_024_435.2), "12.3GiB");
        assert_eq!(binary(6279.0 * 1048576.0), "6279MiB");
        assert_eq!(decimal(6_584_000_000.0), "6584MB");
    }
}
