//! Parses values in fio's form: sizes, times, ranges, triples.

/// A number of bytes, or a percentage of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Bytes(u64),
    Percent(u64),
}

impl Size {
    /// The number of bytes if the whole is `of`.
    pub(crate) fn of(self, of: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => (u128::from(of) * u128::from(percent) / 100) as u64, // at most `of`
        }
    }
}

/// A whole number, also hexadecimal, with a unit: `4k`, `0x1000`, `1MiB`. As in fio, `k` is 1,024
/// and `Ki` 1,000.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, unit) = split_number(text).ok_or_else(|| format!("'{text}' is not a size"))?;
    let factor = size_factor(unit)
        .ok_or_else(|| format!("'{unit}' in '{text}' is no unit of size (k, m, g, t, p, e)"))?;
    let whole = number.fract() == 0.0 && number < EXACT;
    let exact = whole.then(|| (number as u64).checked_mul(factor)).flatten();
    let value = exact.unwrap_or((number * factor as f64) as u64);
    if value > MAX_BYTES {
        return Err(format!("'{text}' is more than 2^60, the most that a size may be"));
    }
    Ok(value)
}

/// Bytes, or `50%`.
pub(crate) fn size(text: &str) -> Result<Size, String> {
    match text.trim().strip_suffix('%') {
        None => bytes(text).map(Size::Bytes),
        Some(percent) => {
            let percent = integer(percent.trim_end_matches('%'))?; // configparser doubles the sign
            if percent > 100 {
                return Err(format!("'{text}' is more than 100 %"));
            }
            Ok(Size::Percent(percent))
        }
    }
}

/// A whole number without a unit.
pub(crate) fn integer(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten(),
    };
    parsed.ok_or_else(|| format!("'{text}' is not a whole number"))
}

/// A whole number within `min..=max`.
pub(crate) fn within(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let value = integer(text)?;
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(format!("{value} is not within {min} to {max}"))
}

/// A decimal number.
pub(crate) fn float(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.trim().parse().ok();
    value.filter(|v| v.is_finite()).ok_or_else(|| format!("'{text}' is not a number"))
}

/// `0` or `1`, `yes`, `no`, ...; an option without a value means yes.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        other => Err(format!("'{other}' is neither 0 nor 1")),
    }
}

/// A time in microseconds, at most 100 years; a number without a unit is multiplied by
/// `default_us`.
pub(crate) fn time_us(text: &str, default_us: u64) -> Result<u64, String> {
    let text = text.trim();
    let (number, unit) = split_number(text).ok_or_else(|| format!("'{text}' is not a time"))?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" => default_us,
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(format!("'{unit}' in '{text}' is no unit of time (d, h, m, s, ms, us)")),
    };
    match (number * factor as f64) as u64 {
        us if us <= MAX_TIME_US => Ok(us),
        _ => Err(format!("'{text}' is more than 100 years, the longest that a time may be")),
    }
}

/// A whole number of milliseconds, at least `min`.
pub(crate) fn ms(text: &str, min: u64) -> Result<u64, String> {
    Ok(within(text, 0, MAX_TIME_US / 1000)?.max(min))
}

/// `1k-4k`, or one size for both limits.
pub(crate) fn range(text: &str) -> Result<(u64, u64), String> {
    let (low, high) = text.split_once(['-', ':']).unwrap_or((text, text));
    let low = bytes(low)?;
    let high = bytes(high)?;
    if low > high {
        return Err(format!("'{text}' ends before it begins"));
    }
    Ok((low, high))
}

/// `read,write,trim`: one value applies to all; a missing write equals the read; trim is ignored.
pub(crate) fn pair<T: Clone>(
    text: &str,
    defaults: &[T; 2],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<[T; 2], String> {
    let mut parts = text.split(',').map(str::trim);
    let first = parts.next().unwrap_or("");
    let second = parts.next();
    let read = if first.is_empty() { defaults[0].clone() } else { parse(first)? };
    let write = match second {
        None => read.clone(),
        Some("") => defaults[1].clone(),
        Some(text) => parse(text)?,
    };
    Ok([read, write])
}

/// `4k/50:8k/50`: sizes with their shares in percent; sizes without a share divide the rest
/// equally.
pub(crate) fn split(text: &str) -> Result<Vec<(u64, u32)>, String> {
    let mut pieces = Vec::new();
    for piece in text.split(':') {
        let (size, share) = match piece.split_once('/') {
            Some((size, "")) => (size, None),
            Some((size, share)) => (size, Some(within(share.trim_end_matches('%'), 0, 100)?)),
            None => (piece, None),
        };
        pieces.push((bytes(size)?, share));
    }
    let told: u64 = pieces.iter().filter_map(|piece| piece.1).sum();
    let open = pieces.iter().filter(|piece| piece.1.is_none()).count() as u64;
    if told > 100 || (open == 0 && told != 100) {
        return Err(format!("the shares of '{text}' add up to {told}, not 100"));
    }
    let each = (100 - told).checked_div(open).unwrap_or(0);
    let mut pieces: Vec<(u64, u32)> =
        pieces.into_iter().map(|(size, share)| (size, share.unwrap_or(each) as u32)).collect();
    let sum: u32 = pieces.iter().map(|piece| piece.1).sum();
    if let Some(last) = pieces.last_mut() {
        last.1 += 100 - sum; // the remainder of the division
    }
    Ok(pieces)
}

fn split_number(text: &str) -> Option<(f64, &str)> {
    if let Some(hex) = text.strip_prefix("0x") {
        let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        return Some((u64::from_str_radix(&hex[..end], 16).ok()? as f64, &hex[end..]));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

fn size_factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let Some(letter) = unit.chars().next() else { return Some(1) };
    if unit == "b" {
        return Some(1);
    }
    let power = 1 + "kmgtpe".find(letter)? as u32;
    match &unit[1..] {
        "" | "b" => Some(1024_u64.pow(power)),
        "i" | "ib" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

/// 2^60: sums and products with a job's other numbers stay less than 2^64.
const MAX_BYTES: u64 = 1 << 60;
/// A hundred years: the sum of a few of them in nanoseconds is less than 2^64.
pub(crate) const MAX_TIME_US: u64 = 100 * 31_557_600 * 1_000_000;
/// Whole numbers less than this are exact in floating point.
const EXACT: f64 = 9e15;

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
        assert_eq!(time_us("5", 1_000_000), Ok(5_000_000));
        assert_eq!(time_us("500ms", 1_000_000), Ok(500_000));
        assert_eq!(time_us("2m", 1), Ok(120_000_000));
        assert_eq!(time_us("36525d", 1), Ok(MAX_TIME_US));
        let endless = "9".repeat(400);
        for wrong in ["2x", "36526d", "99999999999999999999", endless.as_str()] {
            assert!(time_us(wrong, 1_000_000).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_pairs_and_splits_are_read_as_fio_reads_them() {
        assert_eq!(range("1k-4k"), Ok((1024, 4096)));
        assert!(range("4k-1k").is_err());
        assert_eq!(pair("4k", &[0, 0], bytes), Ok([4096, 4096]));
        assert_eq!(pair(",8k", &[1, 2], bytes), Ok([1, 8192]));
        assert_eq!(pair("8k,", &[1, 2], bytes), Ok([8192, 2]));
        assert_eq!(split("4k/50:8k/50"), Ok(vec![(4096, 50), (8192, 50)]));
        assert_eq!(split("4k/10:8k:16k"), Ok(vec![(4096, 10), (8192, 45), (16384, 45)]));
        assert!(split("4k/50:8k/40").is_err());
    }
}
