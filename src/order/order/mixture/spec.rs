//! The specification of a mixture, and the check of a state to resume from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, Result, ensure, invalid};

/// A mixture: runs with equal specifications read equal sequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixtureSpec {
    /// The mixed sources.
    pub sources: Vec<Source>,
    /// The number of samples in an epoch. `None`: that of `repeat` and `choose`, or that of all sources together.
    pub epoch_size: Option<u64>,
    /// The rule that deals positions to sources.
    pub batching: Batching,
    /// Later weights, in the order of their starts. The parts of the sources apply before the first phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The seed for dealing positions to sources; each source's order has its own seed.
    pub seed: u64,
}

/// A data set of a mixture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The name for messages.
    pub name: String,
    /// The image and its generation, or another string that identifies the data set.
    pub identity: String,
    /// The number of its samples.
    pub samples: u64,
    /// Its part of an epoch.
    pub part: Part,
}

/// The part of a source in an epoch: MosaicML's `proportion`, `repeat` and `choose`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Its weight relative to the other sources.
    Weight(Weight),
    /// This many times its samples, rounded down.
    Repeat(Weight),
    /// This many samples.
    Choose(u64),
}

/// The rule that deals positions to sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// Every global batch has its share of each source.
    Stratified,
    /// The number of samples of a source in a batch is random.
    Random,
    /// Each global batch has samples of only one source. The sequence depends on the batch size.
    PerSource {
        /// The number of samples in a global batch.
        batch: u64,
    },
}

impl Batching {
    /// The number of positions that are dealt together.
    pub(super) fn unit(self) -> u64 {
        match self {
            Batching::PerSource { batch } => batch.max(1),
            Batching::Stratified | Batching::Random => 1,
        }
    }
}

/// Weights from a position of the run on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// The first position of the run with these weights.
    pub from: u64,
    /// One weight per source; 0 excludes the source.
    pub weights: Vec<Weight>,
}

impl Source {
    /// The number of samples in an epoch, if the part is a number of samples; `None` if it exceeds 64 bits.
    pub(super) fn chosen(&self) -> Option<u64> {
        match self.part {
            Part::Weight(_) => Some(0),
            Part::Repeat(times) => times.times(self.samples),
            Part::Choose(samples) => Some(samples),
        }
    }

    /// Its weight relative to the other sources, in the first phase.
    pub(super) fn weight(&self) -> Weight {
        match self.part {
            Part::Weight(weight) => weight,
            _ => Weight::whole(self.chosen().unwrap_or(0)),
        }
    }

    /// Returns whether the source has no samples in the first phase.
    fn is_nothing(&self) -> bool {
        match self.part {
            Part::Weight(weight) => weight.is_zero(),
            _ => self.chosen() == Some(0),
        }
    }

    /// The difference, in words, between this source (of a state) and `new`.
    fn differs(&self, new: &Source) -> Option<String> {
        let name = &new.name;
        if self.identity != new.identity {
            return Some(format!("source {name} is {}, and was {}", new.identity, self.identity));
        }
        if self.samples != new.samples {
            let [old, new] = [self.samples, new.samples];
            return Some(format!("source {name} has {new} samples, and had {old}"));
        }
        (self.part != new.part).then(|| format!("source {name} has another part"))
    }
}

impl MixtureSpec {
    /// Checks everything that does not depend on the length of an epoch.
    pub(super) fn check_sources(&self) -> Result<()> {
        ensure(!self.sources.is_empty(), || "a mixture has at least one source")?;
        for (i, source) in self.sources.iter().enumerate() {
            let name = &source.name;
            ensure(source.samples > 0, || format!("source {name} has no samples"))?;
            if let Some(same) = self.sources[..i].iter().find(|one| one.identity == source.identity)
            {
                let first = &same.name;
                return Err(invalid(format!(
                    "sources {first} and {name} are the same data set: give it once, with the sum of both parts"
                )));
            }
        }
        self.check_phases()?;
        for (i, source) in self.sources.iter().enumerate() {
            let later = self.phases.iter().any(|phase| !phase.weights[i].is_zero());
            ensure(later || !source.is_nothing(), || {
                format!("source {} has a part of 0 in every phase: leave it out", source.name)
            })?;
        }
        Ok(())
    }

    fn check_phases(&self) -> Result<()> {
        let sources = self.sources.len();
        let mut before = 0;
        for (phase, Phase { from, weights }) in (1..).zip(&self.phases) {
            let weights = weights.len();
            ensure(weights == sources, || {
                format!("phase {phase} has {weights} weights for {sources} sources")
            })?;
            ensure(*from > before, || {
                format!(
                    "phase {phase} begins at {from} of the run, not after the one before, at {before}"
                )
            })?;
            before = *from;
        }
        Ok(())
    }

    /// Checks that a run over this mixture can resume where a run over `old` has consumed `consumed` positions.
    /// Phases that begin later may differ; earlier ones may not.
    ///
    /// # Errors
    /// The difference; the error names the source.
    pub fn check_resumed(&self, old: &MixtureSpec, consumed: u64) -> Result<()> {
        match self.difference(old, consumed) {
            None => Ok(()),
            Some(what) => Err(invalid(format!("the state belongs to another mixture: {what}"))),
        }
    }

    /// The first difference from `old` that prevents it, in words.
    fn difference(&self, old: &MixtureSpec, consumed: u64) -> Option<String> {
        let begun = |spec: &MixtureSpec| spec.phases.partition_point(|phase| phase.from < consumed);
        let had = old.sources.len();
        let has = self.sources.len();
        if had != has {
            return Some(format!("it has {had} sources, not {has}"));
        }
        let mut sources = old.sources.iter().zip(&self.sources);
        if let Some(what) = sources.find_map(|(old, new)| old.differs(new)) {
            return Some(what);
        }
        let what = if old.epoch_size != self.epoch_size {
            "the epoch's size"
        } else if old.batching != self.batching {
            "the batching"
        } else if old.seed != self.seed {
            "the seed"
        } else if old.phases[..begun(old)] != self.phases[..begun(self)] {
            return Some(format!(
                "a phase before sample {consumed} of the run differs; only later ones may change"
            ));
        } else {
            return None;
        };
        Some(format!("{what} differs"))
    }
}

/// A weight, `repeat:T` or `choose:N`.
impl FromStr for Part {
    type Err = Error;

    fn from_str(text: &str) -> Result<Part, Error> {
        if let Some(times) = text.strip_prefix("repeat:") {
            return times.parse().map(Part::Repeat);
        }
        if let Some(samples) = text.strip_prefix("choose:") {
            let wrong = || {
                let text = shortened(samples);
                format!("choose takes a number of samples, such as choose:1000, not {text:?}")
            };
            return samples.parse().map(Part::Choose).map_err(|_| invalid(wrong()));
        }
        text.parse().map(Part::Weight)
    }
}

/// `stratified`, `random`, `per-source` (a batch of 0: that of the run) or `per-source:N`.
impl FromStr for Batching {
    type Err = Error;

    fn from_str(text: &str) -> Result<Batching, Error> {
        let batch = match text {
            "stratified" => return Ok(Batching::Stratified),
            "random" => return Ok(Batching::Random),
            "per-source" => Some(0),
            _ => {
                let batch = text.strip_prefix("per-source:").and_then(|batch| batch.parse().ok());
                batch.filter(|&batch| batch > 0)
            }
        };
        batch.map(|batch| Batching::PerSource { batch }).ok_or_else(|| {
            let text = shortened(text);
            invalid(format!("it is stratified, random, per-source or per-source:N, not {text:?}"))
        })
    }
}

/// `SAMPLE:WEIGHT,WEIGHT...`.
impl FromStr for Phase {
    type Err = Error;

    fn from_str(text: &str) -> Result<Phase, Error> {
        let wrong = || {
            let text = shortened(text);
            invalid(format!(
                "a phase is SAMPLE:WEIGHT,WEIGHT..., such as 500000:0.2,0.8, not {text:?}"
            ))
        };
        let (from, weights) = text.split_once(':').ok_or_else(wrong)?;
        let from = from.parse().map_err(|_| wrong())?;
        let weights = weights.split(',').map(str::parse::<Weight>).collect::<Result<_, _>>()?;
        Ok(Phase { from, weights })
    }
}

/// The beginning of `text`, for an error message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A decimal number of at least 0, such as `0.7`: the weight of a source relative to other sources, or the number
/// of times that it is repeated. It has at most 18 digits.
///
/// It is a string in JSON, since many parsers convert JSON numbers to binary fractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Weight {
    /// All digits, as a whole number.
    digits: u64,
    /// Digits after the decimal point. The last digit is not 0.
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
    fn parts_ways_to_batch_and_phases_are_read_and_nothing_else_is() {
        let weight = |text: &str| text.parse::<Weight>().unwrap();
        let part = |text: &str| text.parse::<Part>().unwrap();
        assert_eq!(part("0.3"), Part::Weight(weight("0.3")));
        assert_eq!(part("repeat:2.5"), Part::Repeat(weight("2.5")));
        assert_eq!(part("choose:7"), Part::Choose(7));
        for wrong in ["", "-1", "x", "repeat:", "choose:1.5", "choose:-1", "choose:"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
        let batching = |text: &str| text.parse::<Batching>().unwrap();
        assert_eq!(batching("random"), Batching::Random);
        assert_eq!(batching("per-source"), Batching::PerSource { batch: 0 });
        assert_eq!(batching("per-source:64"), Batching::PerSource { batch: 64 });
        for wrong in ["", "per-source:", "per-source:0", "per_source:-1", "chunk"] {
            assert!(wrong.parse::<Batching>().is_err(), "{wrong}");
        }
        let phase: Phase = "500:0.2,0".parse().unwrap();
        assert_eq!((phase.from, phase.weights), (500, vec![weight("0.2"), Weight::ZERO]));
        for wrong in ["", "500", "500:", ":1", "-1:1,2", "5:1,,2", "5:1;2"] {
            assert!(wrong.parse::<Phase>().is_err(), "{wrong}");
        }
    }

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
