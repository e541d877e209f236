//! A mixture, on the command line: the images beside IMAGE, and the part of each.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;

use dlfs::dataset::{Dataset, Image, Mixture, OpenOptions, Share};
use dlfs::order::mixture::{self, Batching, Part, Phase, Weight};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::{Error, Result};

use crate::args::{ConnectionArgs, ImageAddress};
use crate::text;

/// What IMAGE is mixed with.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Mixture")]
pub(crate) struct MixArgs {
    /// Read this image, too, as one sequence with IMAGE; may be repeated. PART, for each: a weight beside
    /// the others, such as 0.3; or for all repeat:T, T times its samples, or choose:N, N samples
    #[arg(long, value_name = "IMAGE=PART", value_parser = MixedImage::parser(), requires = "part")]
    #[arg(conflicts_with_all = OF_ONE_IMAGE)]
    mix: Vec<MixedImage>,
    /// The part of IMAGE
    #[arg(long, value_name = "PART", requires = "mix")]
    part: Option<PartArg>,
    /// Samples of an epoch [default: what repeat and choose say, or as many as all images have]
    #[arg(long, value_name = "N", requires = "mix", value_parser = clap::value_parser!(u64).range(1..))]
    epoch_size: Option<u64>,
    /// stratified: each global batch has its share of each image; random: what chance gives;
    /// per-source: each is of one image, and per-source:N, N the batch of all ranks, keeps its samples in a
    /// run that resumes with another one
    #[arg(long, value_name = "HOW", requires = "mix", default_value = "stratified")]
    mix_batching: BatchingArg,
    /// The weights of all images, IMAGE first, from this sample of the run on; may be repeated. With
    /// them a weight may be 0
    #[arg(long, value_name = "SAMPLE:WEIGHT,WEIGHT...", requires = "mix")]
    phase: Vec<PhaseArg>,
}

/// Options that say something of one image.
const OF_ONE_IMAGE: [&str; 11] = [
    "snapshot",
    "view",
    "tier",
    "tiers",
    "policy",
    "copy_bandwidth",
    "stop_at_first_failure",
    "peers",
    "store",
    "restart_shares",
    "path",
];

impl MixArgs {
    /// Opens the other images, and mixes them with `first`; `None` without `--mix`.
    ///
    /// # Errors
    /// Those of [`Image::open`] and [`Mixture::new`].
    pub(crate) fn mixture(
        &self,
        first: &Dataset,
        connection: &ConnectionArgs,
    ) -> Result<Option<Mixture>> {
        let Some(PartArg(part)) = self.part else { return Ok(None) };
        let mut parts = vec![(first.clone(), part)];
        for MixedImage { image, part } in &self.mix {
            let connect = connection.options(false)?;
            let image = Image::open(&image.0, &OpenOptions { connect, ..OpenOptions::default() })?;
            parts.push((Dataset::from_image(image, ReaderOptions::default()), part.0));
        }
        let phases = self.phase.iter().map(|phase| phase.0.clone()).collect();
        Mixture::new(parts, self.epoch_size, self.mix_batching.0, phases).map(Some)
    }

    /// What was delivered of each image, `first` being IMAGE.
    pub(crate) fn sources(&self, first: &ImageAddress) -> Sources {
        let images = std::iter::once(first).chain(self.mix.iter().map(|mixed| &mixed.image));
        Sources(images.map(Source::new).collect())
    }
}

/// The share of this rank in an epoch of `mixture`, or of `dataset` alone.
///
/// # Errors
/// `InvalidArgument`: there is no such rank, or the batch does not fit the mixture.
pub(crate) fn share(
    dataset: &Dataset,
    mixture: Option<&Mixture>,
    options: &LoaderOptions,
) -> Result<Share> {
    let Some(mixture) = mixture else { return Share::new(dataset, options) };
    let sequence = mixture::Mixture::new(&mixture.spec(options)).map_err(Error::from)?;
    Share::of_len(sequence.epoch_size(), options)
}

/// What a run has delivered of each of its images.
pub(crate) struct Sources(Vec<Source>);

/// One of them; the names are an interface.
#[derive(Serialize)]
pub(crate) struct Source {
    image: String,
    pub(crate) samples: u64,
    bytes: u64,
    #[serde(skip)]
    shown: String,
}

impl Source {
    fn new(image: &ImageAddress) -> Source {
        Source { image: image.to_string(), samples: 0, bytes: 0, shown: image.in_short() }
    }
}

impl Sources {
    /// Counts the samples of a batch.
    pub(crate) fn count(&mut self, batch: &Batch) {
        let of = batch.sources();
        for index in 0..batch.len() {
            let source = &mut self.0[of.map_or(0, |of| of[index] as usize)];
            source.samples += 1;
            source.bytes += batch.bytes(index).len() as u64;
        }
    }

    /// Each of them, in their order.
    pub(crate) fn all(&self) -> &[Source] {
        &self.0
    }

    /// A line for each, for the report.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let samples: u64 = self.0.iter().map(|source| source.samples).sum();
        self.0.iter().map(move |source| {
            format!(
                "  source     {}: {}, {}: {:.2} % of the samples",
                text::safe_text(&source.shown),
                text::counted(source.samples, "sample"),
                text::bytes(source.bytes),
                100.0 * source.samples as f64 / samples.max(1) as f64
            )
        })
    }
}

/// `IMAGE=PART`. The part has no `=`, so that addresses may have it.
#[derive(Debug, Clone)]
struct MixedImage {
    image: ImageAddress,
    part: PartArg,
}

impl MixedImage {
    fn parser() -> impl TypedValueParser<Value = MixedImage> {
        OsStringValueParser::new().try_map(|text: OsString| {
            let bytes = text.as_bytes();
            let Some(at) = bytes.iter().rposition(|&byte| byte == b'=') else {
                let text = "there is no part: IMAGE=PART, such as more.dlfs=0.3, more.dlfs=repeat:2 or \
                            more.dlfs=choose:1000";
                return Err(text.to_owned());
            };
            let image = dlfs::nvme::Address::parse_list_os(&OsString::from_vec(bytes[..at].to_vec()));
            let image = image.map_err(|error| error.to_string())?;
            let part = String::from_utf8_lossy(&bytes[at + 1..]).parse()?;
            Ok(MixedImage { image: ImageAddress(image), part })
        })
    }
}

/// A weight, `repeat:T` or `choose:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PartArg(Part);

impl FromStr for PartArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<PartArg, String> {
        let weight = |text: &str| text.parse::<Weight>().map_err(|error| error.to_string());
        if let Some(times) = text.strip_prefix("repeat:") {
            return weight(times).map(|times| PartArg(Part::Repeat(times)));
        }
        if let Some(samples) = text.strip_prefix("choose:") {
            let samples = samples.parse().map_err(|_| {
                format!("choose takes a number of samples, such as choose:1000, not {samples:?}")
            })?;
            return Ok(PartArg(Part::Choose(samples)));
        }
        weight(text).map(|weight| PartArg(Part::Weight(weight)))
    }
}

/// `stratified`, `random`, `per-source` or `per-source:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BatchingArg(Batching);

impl FromStr for BatchingArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<BatchingArg, String> {
        let wrong =
            || format!("it is stratified, random, per-source or per-source:N, not {text:?}");
        let batching = match text {
            "stratified" => Batching::Stratified,
            "random" => Batching::Random,
            "per-source" => Batching::PerSource { batch: 0 }, // that of the run
            _ => {
                let batch = text.strip_prefix("per-source:").and_then(|batch| batch.parse().ok());
                Batching::PerSource { batch: batch.filter(|&batch| batch > 0).ok_or_else(wrong)? }
            }
        };
        Ok(BatchingArg(batching))
    }
}

/// `SAMPLE:WEIGHT,WEIGHT...`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PhaseArg(Phase);

impl FromStr for PhaseArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<PhaseArg, String> {
        let wrong =
            || format!("a phase is SAMPLE:WEIGHT,WEIGHT..., such as 500000:0.2,0.8, not {text:?}");
        let (from, weights) = text.split_once(':').ok_or_else(wrong)?;
        let from = from.parse().map_err(|_| wrong())?;
        let weights =
            weights.split(',').map(str::parse::<Weight>).collect::<std::result::Result<_, _>>();
        Ok(PhaseArg(Phase { from, weights: weights.map_err(|error| error.to_string())? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(text: &str) -> std::result::Result<(String, Part), String> {
        let command = clap::Command::new("dlfs")
            .arg(clap::Arg::new("mix").value_parser(MixedImage::parser()));
        let found =
            command.try_get_matches_from(["dlfs", text]).map_err(|error| error.to_string())?;
        let mixed = found.get_one::<MixedImage>("mix").unwrap();
        Ok((mixed.image.to_string(), mixed.part.0))
    }

    #[test]
    fn a_part_stands_behind_the_last_equals_sign() {
        let weight = |text: &str| text.parse::<Weight>().unwrap();
        assert_eq!(mixed("a.dlfs=0.3"), Ok(("a.dlfs".into(), Part::Weight(weight("0.3")))));
        let found = mixed("lr=1/a.dlfs,b.dlfs=repeat:2");
        assert_eq!(found, Ok(("lr=1/a.dlfs,b.dlfs".into(), Part::Repeat(weight("2")))));
        assert_eq!(mixed("a=choose:7"), Ok(("a".into(), Part::Choose(7))));
        for wrong in
            ["a.dlfs", "a.dlfs=", "=1", "a=-1", "a=x", "a=repeat:", "a=choose:1.5", "a=choose:-1"]
        {
            assert!(mixed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ways_to_batch_and_phases_are_read_and_nothing_else_is() {
        let batching = |text: &str| text.parse::<BatchingArg>().map(|found| found.0);
        assert_eq!(batching("random"), Ok(Batching::Random));
        assert_eq!(batching("per-source:64"), Ok(Batching::PerSource { batch: 64 }));
        for wrong in ["", "per-source:", "per-source:0", "per_source:-1", "chunk"] {
            assert!(batching(wrong).is_err(), "{wrong}");
        }
        let phase = "500:0.2,0".parse::<PhaseArg>().unwrap().0;
        assert_eq!((phase.from, phase.weights), (500, vec!["0.2".parse().unwrap(), Weight::ZERO]));
        for wrong in ["", "500", "500:", ":1", "-1:1,2", "5:1,,2", "5:1;2"] {
            assert!(wrong.parse::<PhaseArg>().is_err(), "{wrong}");
        }
    }
}
