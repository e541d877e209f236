//! The types of values that options have: times, sizes, and choices by name.

use std::fmt::{self, Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::dataset::LongDocuments;
use crate::folders::Links;
use crate::gpu::Pin;
use crate::order::Sharding;
use crate::order::budget::{Cost, Pack, TooLong};
use crate::peers::Serving;
use crate::prefetch::Batching;
use crate::qpair::Direct;
use crate::reader::OnError;
use crate::tier::Policy;
use crate::units::parse_size;

/// A time, written in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Seconds(pub Duration);

impl TryFrom<f64> for Seconds {
    type Error = String;

    fn try_from(seconds: f64) -> Result<Seconds, String> {
        let wrong = |error| format!("a time in seconds, not {seconds}: {error}");
        Duration::try_from_secs_f64(seconds).map(|time| Seconds(time.min(A_LIFE))).map_err(wrong)
    }
}

impl From<Seconds> for f64 {
    fn from(Seconds(time): Seconds) -> f64 {
        time.as_secs_f64()
    }
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seconds, String> {
        text.parse::<f64>().map_err(|_| "not a number of seconds".to_owned())?.try_into()
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0.as_secs_f64(), f)
    }
}

/// A size in bytes: a number, or a text such as `256M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct Size(pub u64);

impl TryFrom<Value> for Size {
    type Error = String;

    fn try_from(value: Value) -> Result<Size, String> {
        match &value {
            Value::String(text) => text.parse(),
            Value::Number(number) => {
                number.as_u64().map(Size).ok_or_else(|| format!("{number} is no size in bytes"))
            }
            other => Err(format!("invalid type: {other}, expected a size")),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        parse_size(text).map(Size)
    }
}

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |power: u32| self.0.is_multiple_of(1024_u64.pow(power)) && self.0 > 0;
        match (1..=3).rev().find(|&power| of(power)) {
            Some(power) => {
                write!(f, "{}{}", self.0 >> (10 * power), ["", "K", "M", "G"][power as usize])
            }
            None => Display::fmt(&self.0, f),
        }
    }
}

/// Values that options select by name.
pub trait Named: Debug + Clone + Copy + PartialEq + Send + Sync + 'static {
    /// Each value with its name, in the order of C's numbers.
    const NAMES: &'static [(&'static str, Self)];
}

/// One of the values that have names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice<T>(pub T);

impl<T: Named> Choice<T> {
    /// The value with this number in C.
    pub fn at(number: u32) -> Option<Choice<T>> {
        T::NAMES.get(number as usize).map(|&(_, value)| Choice(value))
    }
}

impl<T: Named> FromStr for Choice<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice<T>, String> {
        let found = T::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, value)| Choice(value)).ok_or_else(|| {
            let names: Vec<String> = T::NAMES.iter().map(|(name, _)| format!("{name:?}")).collect();
            let (last, others) = names.split_last().expect("there are names");
            format!("{text:?} is not {} or {last}", others.join(", "))
        })
    }
}

impl<T: Named> Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = T::NAMES.iter().find(|(_, value)| *value == self.0);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl<T: Named> Serialize for Choice<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Named> Deserialize<'de> for Choice<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Choice<T>, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The command's help and completions list the names.
#[cfg(feature = "clap")]
impl<T: Named> clap::builder::ValueParserFactory for Choice<T> {
    type Parser = clap::builder::ValueParser;

    fn value_parser() -> clap::builder::ValueParser {
        use clap::builder::{PossibleValuesParser, TypedValueParser as _, ValueParser};
        let names = PossibleValuesParser::new(T::NAMES.iter().map(|&(name, _)| name));
        ValueParser::new(names.try_map(|name| name.parse::<Choice<T>>()))
    }
}

/// The kinds of orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A full shuffle of all samples.
    #[default]
    Global,
    /// Whole chunks at a time, shuffled in groups.
    Grouped,
    /// No shuffle.
    Sequential,
    /// A share of its own for each rank.
    Local,
    /// Like `Local`, but a fraction of each share moves to other ranks.
    Partial,
    /// Samples that are drawn by weights.
    Weighted,
}

// The names of the values that options choose from, in the order of C's numbers.
macro_rules! names {
    ($($of:ident: $($name:literal $value:ident),+;)+) => {
        $(impl Named for $of {
            const NAMES: &'static [(&'static str, $of)] = &[$(($name, $of::$value)),+];
        })+
    };
}

names! {
    Kind: "global" Global, "grouped" Grouped, "sequential" Sequential, "local" Local, "partial" Partial,
        "weighted" Weighted;
    Direct: "auto" Auto, "on" On, "off" Off;
    Links: "follow" Follow, "inside" Inside, "refuse" Refuse;
    Policy: "first-touch" FirstTouch, "clairvoyant" Clairvoyant, "none" None;
    Sharding: "strided" Strided, "aligned" Aligned, "local" Local;
    Batching: "chunk" Chunk, "sample" Sample;
    OnError: "raise" Raise, "skip" Skip;
    Pin: "auto" Auto, "cuda" Cuda, "hip" Hip;
    Cost: "padded" Padded, "sum" Sum;
    TooLong: "raise" Raise, "alone" Alone;
    Pack: "concat" Concat, "best_fit" BestFit, "none" None;
    LongDocuments: "cut" Cut, "raise" Raise;
}

impl Named for Serving {
    const NAMES: &'static [(&'static str, Serving)] = Serving::NAMES;
}

/// Longer than any wait, and short enough to add to any clock.
const A_LIFE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_as_they_are_shown() {
        for text in ["0", "1000", "3K", "64M", "1G", "1025M"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["0", "0.25", "60"] {
            assert_eq!(text.parse::<Seconds>().unwrap().to_string(), text);
        }
        for text in ["-1", "x", "inf", "NaN"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }
}
