//! Parses parts, batching modes and phases, as users write them on the command line and in C.

use std::str::FromStr;

use super::{Batching, Part, Phase, Weight};
use dlfs_base::error::{Error, invalid};

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

pub(super) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

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
}
