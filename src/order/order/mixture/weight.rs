//! Decimal numbers: the weights of the sources of a mixture.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, invalid};

/// A decimal number of at least 0, such as `0.7`: the weight of a source relative to other sources, or the number
/// of times that it is repeated. It has at most 18 digits.
///
/// It is a string in JSON, since many parsers convert JSON numbers to binary fractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Weight {
    /// All digits, as a whole number.
    digits: u64,
    /// The number of digits after the decimal point; if there are any, the last one is not 0.
    decimals: u32,
}

impl Weight {
    /// The weight 0.
    pub const ZERO: Weight = Weight { digits: 0, decimals: 0 };

    /// Returns whether it is 0.
    pub const fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// The product with `count`, rounded down; `None` if it exceeds 64 bits.
    pub(super) fn times(self, count: u64) -> Option<u64> {
        let product = u128::from(self.digits) * u128::from(count);
        (product / 10u128.pow(self.decimals)).try_into().ok()
    }

    /// A whole number, below 10^18.
    pub(super) const fn whole(digits: u64) -> Weight {
        Weight { digits, decimals: 0 }
    }

    /// The weight `digits` / 10^`decimals`, without trailing zeros after the decimal point.
    fn normal(mut digits: u64, mut decimals: u32) -> Weight {
        while decimals > 0 && digits.is_multiple_of(10) {
            (digits, decimals) = (digits / 10, decimals - 1);
        }
        Weight { digits, decimals }
    }
}

/// `weights` as integers in the same proportions; `None` if their digits span more than 64 bits.
pub(super) fn as_integers(weights: &[Weight]) -> Option<Vec<u64>> {
    let decimals = weights.iter().map(|weight| weight.decimals).max().unwrap_or(0);
    let scaled = |weight: &Weight| weight.digits.checked_mul(10u64.pow(decimals - weight.decimals));
    weights.iter().map(scaled).collect()
}

impl From<u32> for Weight {
    fn from(whole: u32) -> Weight {
        Weight::whole(whole.into())
    }
}

/// Reads a decimal number: `3`, `0.25`, `1e-3`.
impl FromStr for Weight {
    type Err = Error;

    fn from_str(text: &str) -> Result<Weight, Error> {
        parse(text).ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            invalid(format!(
                "{text:?} is no weight: weights are decimal numbers of at most 18 digits, such as 0.7"
            ))
        })
    }
}

/// Parses a decimal number; `None` if it is none, or has too many digits.
fn parse(text: &str) -> Option<Weight> {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let written = [whole, part].concat();
    if written.is_empty() || !written.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = written.trim_start_matches('0');
    if significant.is_empty() {
        return Some(Weight::ZERO);
    }
    // Trailing zeros are not significant digits.
    let kept = significant.trim_end_matches('0');
    let dropped = i32::try_from(significant.len() - kept.len()).ok()?;
    let decimals = i32::try_from(part.len()).ok()?.checked_sub(exponent)?.checked_sub(dropped)?;
    let digits: u64 = if kept.len() <= MAX_DIGITS { kept.parse().ok()? } else { return None };
    match u32::try_from(decimals) {
        Ok(decimals) if decimals as usize <= MAX_DIGITS => Some(Weight::normal(digits, decimals)),
        Ok(_) => None,
        Err(_) => {
            let digits = digits.checked_mul(10u64.checked_pow(decimals.unsigned_abs())?)?;
            (digits < 10u64.pow(MAX_DIGITS as u32)).then_some(Weight::whole(digits))
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10u64.pow(self.decimals);
        match self.decimals {
            0 => write!(f, "{}", self.digits),
            width => {
                let width = width as usize;
                write!(f, "{}.{:0width$}", self.digits / unit, self.digits % unit)
            }
        }
    }
}

impl TryFrom<String> for Weight {
    type Error = Error;

    fn try_from(text: String) -> Result<Weight, Error> {
        text.parse()
    }
}

impl From<Weight> for String {
    fn from(weight: Weight) -> String {
        weight.to_string()
    }
}

/// The most digits of a weight, before and after the decimal point together.
const MAX_DIGITS: usize = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_numbers_are_read_exactly() {
        for (text, digits, decimals, shown) in [
            ("0.7", 7, 1, "0.7"),
            ("3", 3, 0, "3"),
            (".5", 5, 1, "0.5"),
            ("2.", 2, 0, "2"),
            ("1.500", 15, 1, "1.5"),
            ("1e-3", 1, 3, "0.001"),
            ("2.5E2", 250, 0, "250"),
            ("0.000", 0, 0, "0"),
            ("100000000000000000", 100_000_000_000_000_000, 0, "100000000000000000"),
            ("0.100000000000000001", 100_000_000_000_000_001, 18, "0.100000000000000001"),
        ] {
            let weight: Weight = text.parse().unwrap();
            assert_eq!((weight.digits, weight.decimals), (digits, decimals), "{text}");
            assert_eq!(weight.to_string(), shown);
            assert_eq!(serde_json::to_string(&weight).unwrap(), format!("{shown:?}"));
        }
    }

    #[test]
    fn what_is_no_decimal_number_is_refused_by_name() {
        for text in
            ["", ".", "-1", "+1", "1e", "e3", "0x10", "nan", "inf", "1,5", "1 ", "1e99", "1e-19"]
        {
            let error = text.parse::<Weight>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        assert!("1.0000000000000000001".parse::<Weight>().is_err(), "20 digits");
        assert!(format!("1e{}", i32::MIN).parse::<Weight>().is_err());
    }

    #[test]
    fn proportions_are_kept() {
        let weights: Vec<Weight> = ["0.7", "2", "0.25"].map(|text| text.parse().unwrap()).into();
        assert_eq!(as_integers(&weights), Some(vec![70, 200, 25]));
        let far = ["1e17", "1e-18"].map(|text| text.parse().unwrap());
        assert_eq!(as_integers(&far), None);
        assert_eq!("1.5".parse::<Weight>().unwrap().times(7), Some(10));
        assert_eq!("1e17".parse::<Weight>().unwrap().times(u64::MAX), None);
    }
}
