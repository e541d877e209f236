//! Values of options in fio's form: sizes, times, pairs of values for reads and writes, shares.

use std::time::Duration;

/// A boolean option. The alias hides the type from clap, which would make a switch of a `bool`.
pub(crate) type Flag = bool;
/// A list in one value. The alias hides the type from clap, which would make a repeatable option of a `Vec`.
pub(crate) type List<T> = Vec<T>;

/// A value for reads and one for writes; `None`: the user left it out.
pub(crate) type Pair<T> = [Option<T>; 2];

/// Sizes of blocks in bytes, each with its share in percent.
pub(crate) type Split = Vec<(u64, u32)>;

/// A number of bytes, or a percentage of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Bytes(u64),
    Percent(u64),
}

impl Size {
    /// The number of bytes; percent are of `whole` bytes.
    pub(crate) fn of(self, whole: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => (u128::from(whole) * u128::from(percent) / 100) as u64, // at most `whole`
        }
    }
}

/// A number with a unit: `4k`, `0x1000`, `1MiB`. As in fio, `k` is 1,024 and `Ki` 1,000.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text).ok_or_else(|| format!("'{text}' is not a size"))?;
    let factor = size_factor(unit)
        .ok_or_else(|| format!("'{unit}' in '{text}' is no unit of size (k, m, g, t, p, e)"))?;
    match number * factor as f64 {
        value if value <= MAX_BYTES => Ok(value as u64),
        _ => Err(format!("'{text}' is more than 2^60, the most that a size may be")),
    }
}

/// Bytes, or `50%`.
pub(crate) fn size(text: &str) -> Result<Size, String> {
    let Some(percent) = text.strip_suffix('%') else { return bytes(text).map(Size::Bytes) };
    let percent = percent.trim_end_matches('%'); // Python's configparser needs `%%`
    match percent.parse() {
        Ok(percent @ 0..=100) => Ok(Size::Percent(percent)),
        _ => Err(format!("'{text}' is not within 0% to 100%")),
    }
}

/// `0` or `1`, `yes`, `no`, ...; an option without a value means yes.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "" | "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        other => Err(format!("'{other}' is neither 0 nor 1")),
    }
}

/// A time, in seconds unless it has a unit.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    time(text, 1e6)
}

/// A time, in microseconds unless it has a unit.
pub(crate) fn microseconds(text: &str) -> Result<Duration, String> {
    time(text, 1.0)
}

/// A time with a unit; without one, in units of `default_us` microseconds.
fn time(text: &str, default_us: f64) -> Result<Duration, String> {
    let (number, unit) = split_number(text).ok_or_else(|| format!("'{text}' is not a time"))?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" => default_us,
        "us" | "usec" => 1.0,
        "ms" | "msec" => 1e3,
        "s" | "sec" => 1e6,
        "m" | "min" => 60e6,
        "h" => 3600e6,
        "d" => 86_400e6,
        _ => return Err(format!("'{unit}' in '{text}' is no unit of time (d, h, m, s, ms, us)")),
    };
    match (number * factor) as u64 {
        us if us <= MAX_TIME_US => Ok(Duration::from_micros(us)),
        _ => Err(format!("'{text}' is more than 100 years, the longest that a time may be")),
    }
}

/// `READ,WRITE`: a single value applies to both. fio's third value, for trimming, is ignored.
fn pair<T: Clone>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Pair<T>, String> {
    let mut parts = text.split(',').map(|part| (!part.is_empty()).then(|| parse(part)).transpose());
    let read = parts.next().transpose()?.flatten();
    let write = parts.next().transpose()?.unwrap_or_else(|| read.clone());
    Ok([read, write])
}

/// Limits of reads and of writes a second.
pub(crate) fn rates(text: &str) -> Result<Pair<u64>, String> {
    pair(text, bytes)
}

/// Block sizes of reads and of writes.
pub(crate) fn blocks(text: &str) -> Result<Pair<u64>, String> {
    pair(text, block)
}

/// Splits of reads and of writes.
pub(crate) fn splits(text: &str) -> Result<Pair<Split>, String> {
    pair(text, split)
}

/// The size of a block.
fn block(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        size @ 1..=MAX_BLOCK_BYTES => Ok(size),
        _ => Err(format!("a block has 1 to {MAX_BLOCK_BYTES} bytes")),
    }
}

/// `4k/50:8k/50`: sizes with their shares in percent.
fn split(text: &str) -> Result<Split, String> {
    let piece = |piece: &str| {
        let (size, share) = piece.split_once('/')?;
        Some((size.to_owned(), share.trim_end_matches('%').parse::<u8>().ok()?))
    };
    let pieces: Option<Vec<_>> = text.split(':').map(piece).collect();
    let pieces = pieces.ok_or_else(|| format!("'{text}' is not SIZE/PERCENT:SIZE/PERCENT"))?;
    let sum: u64 = pieces.iter().map(|(_, share)| u64::from(*share)).sum();
    if sum != 100 {
        return Err(format!("the shares of '{text}' add up to {sum}, not 100"));
    }
    pieces.iter().map(|(size, share)| Ok((block(size)?, u32::from(*share)))).collect()
}

/// At most 20 percentiles, separated by colons; sorted.
pub(crate) fn percentiles(text: &str) -> Result<List<f64>, String> {
    let numbers: Option<List<f64>> = text.split(':').map(|number| number.parse().ok()).collect();
    let mut list = numbers
        .filter(|list| list.len() <= 20 && list.iter().all(|p| (0.0..=100.0).contains(p)))
        .ok_or("at most 20 numbers from 0 to 100, with colons between")?;
    list.sort_by(f64::total_cmp);
    Ok(list)
}

/// `"text"`, `0xHEX` (the bytes as written), or a number (its bytes, the lowest first).
pub(crate) fn pattern(text: &str) -> Result<List<u8>, String> {
    let wrong = || format!("'{text}' is neither \"text\" nor a number");
    if let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return Some(inner.into()).filter(|bytes: &Vec<u8>| !bytes.is_empty()).ok_or_else(wrong);
    }
    if let Some(hex) = text.strip_prefix("0x").filter(|hex| !hex.is_empty()) {
        let hex = if hex.len() % 2 == 1 { format!("0{hex}") } else { hex.to_owned() };
        let byte = |at: usize| hex.get(at..at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
        return (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>().ok_or_else(wrong);
    }
    let number: u64 = text.parse().map_err(|_| wrong())?;
    let used = 8 - (number.leading_zeros() / 8).min(7) as usize;
    Ok(number.to_le_bytes()[..used].to_vec())
}

/// A number, decimal or hexadecimal, and the unit behind it.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    if let Some(hex) = text.strip_prefix("0x") {
        let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        return Some((u64::from_str_radix(&hex[..end], 16).ok()? as f64, &hex[end..]));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

/// The number of bytes of a unit of size.
fn size_factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if matches!(unit.as_str(), "" | "b") {
        return Some(1);
    }
    let power = 1 + "kmgtpe".find(unit.chars().next()?)? as u32;
    match &unit[1..] {
        "" | "b" => Some(1024_u64.pow(power)),
        "i" | "ib" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

/// The largest size, 2^60 bytes: the sum of a few sizes stays below 2^64. Products may not.
const MAX_BYTES: f64 = (1_u64 << 60) as f64;
/// The largest block.
const MAX_BLOCK_BYTES: u64 = 1 << 30;
/// The longest time, a hundred years: the sum of a few such times in nanoseconds is below 2^64.
const MAX_TIME_US: u64 = 100 * 31_557_600 * 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_fio_s_units() {
        assert_eq!(bytes("4k"), Ok(4096));
        assert_eq!(bytes("4Ki"), Ok(4000));
        assert_eq!(bytes("0x1000"), Ok(4096));
        assert_eq!(bytes("1.5m"), Ok(3 << 19));
        assert_eq!(size("50%%"), Ok(Size::Percent(50)));
        for wrong in ["4q", "k", "", "-1", "1.2.3", "4kk", "17179869184g", "1025p"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_fio_s_units() {
        assert_eq!(seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(seconds("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(microseconds("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(microseconds("36525d"), Ok(Duration::from_micros(MAX_TIME_US)));
        let endless = "9".repeat(400);
        for wrong in ["2x", "36526d", "99999999999999999999", endless.as_str()] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pairs_and_splits_are_read_as_fio_reads_them() {
        assert_eq!(blocks("4k"), Ok([Some(4096), Some(4096)]));
        assert_eq!(blocks(",8k"), Ok([None, Some(8192)]));
        assert_eq!(blocks("8k,"), Ok([Some(8192), None]));
        assert_eq!(split("4k/50:8k/50"), Ok(vec![(4096, 50), (8192, 50)]));
        for wrong in ["4k/50:8k/40", "4k/10:8k", "4k", "8q/100"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_are_text_hexadecimal_or_a_number() {
        assert_eq!(pattern("\"abc\""), Ok(b"abc".to_vec()));
        assert_eq!(pattern("0xdeadbeef"), Ok(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(pattern("256"), Ok(vec![0, 1]));
        assert_eq!(pattern("0"), Ok(vec![0]));
        assert!(pattern("xyz").is_err() && pattern("").is_err() && pattern("0x").is_err());
    }
}
