//! Parses sizes as users write them: `4096`, `4M`, `256MiB`, `1G`, `100MB`.

/// Parses a size with the units of dd: `K`, `M`, ... `E` and `KiB`, `MiB`, ... are powers of 1,024; `KB`,
/// `MB`, ... are powers of 1,000; `B` and no unit are bytes. Case does not matter.
///
/// # Errors
/// A sentence for users: not a number, an unknown unit, or 2^64 bytes or more.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| NOT_A_SIZE.to_owned())?;
    let factor = factor_of(unit.trim()).ok_or_else(|| NOT_A_SIZE.to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "more than 2^64 - 1 bytes".to_owned())
}

fn factor_of(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    let (letter, rest) = match unit.as_str() {
        "" | "B" => return Some(1),
        unit => unit.split_at_checked(1)?,
    };
    let power = 1 + "KMGTPE".find(letter)? as u32;
    match rest {
        "" | "IB" => Some(1024_u64.pow(power)),
        "B" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

const NOT_A_SIZE: &str = "not a size; examples: 4096, 4M, 256MiB, 1G, 100MB";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_and_decimal_units_follow_dd() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4M"), Ok(4 << 20));
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("100MB"), Ok(100_000_000));
        assert_eq!(parse_size("2 kib"), Ok(2048));
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("15E"), Ok(15 << 60));
    }

    #[test]
    fn an_invalid_size_is_refused_with_examples() {
        for text in ["", "M", "4X", "4MBs", "-1", "1.5G", "4é", "0x10"] {
            assert!(parse_size(text).unwrap_err().contains("256MiB"), "{text}");
        }
        assert!(parse_size("16E").unwrap_err().contains("2^64"));
    }
}
