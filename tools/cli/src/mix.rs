//! Options of a mixture: the images that are read with IMAGE as one sequence, and counters of what each has delivered.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;

use dlfs::Result;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, Mixture, OpenOptions};
use dlfs::order::mixture::{Batching, Count, Part, Phase};
use dlfs::reader::{Batch, ReaderOptions};

use crate::args::{ConnectionArgs, ImageAddress};
use crate::out;

/// Options of the images that IMAGE is mixed with.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Mixture")]
pub(crate) struct MixArgs {
    /// Read this image, too, as one sequence with IMAGE; may be repeated. PART, for each: a weight beside
    /// the others, such as 0.3; or for all repeat:T, T times its samples, or choose:N, N samples
    #[arg(long, value_name = "IMAGE=PART", value_parser = MixedImage::parser(), requires = "part")]
    mix: Vec<MixedImage>,
    /// The part of IMAGE
    #[arg(long, value_name = "PART", requires = "mix")]
    part: Option<Part>,
    /// Samples of an epoch of a mixture, or drawn by weights [default: what repeat and choose say, or as many as all
    /// images have]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epoch_size: Option<u64>,
    /// stratified: each global batch has its share of each image; random: what chance gives;
    /// per-source: each is of one image, and per-source:N, N the batch of all ranks, keeps its samples in a
    /// run that resumes with another one
    #[arg(long, value_name = "HOW", requires = "mix", default_value = "stratified")]
    mix_batching: Batching,
    /// Count weights and the starts of phases in samples; or in tokens of documents: tokens, tokens:FIELD if the field
    /// is to be named, as by --field, or lengths:COLUMN for those that a column of ints has
    #[arg(long, value_name = "UNIT", requires = "mix", default_value = "samples")]
    mix_count: Count,
    /// The weights of all images, IMAGE first, from this sample of the run on, or from this token with
    /// --mix-count tokens; may be repeated. With them a weight may be 0
    #[arg(long, value_name = "SAMPLE:WEIGHT,WEIGHT...", requires = "mix")]
    phase: Vec<Phase>,
}

impl MixArgs {
    /// Opens the other images, and mixes them with `first`; `None` without `--mix`.
    ///
    /// # Errors
    /// Errors of [`Image::open`] and [`Mixture::counting`].
    pub(crate) fn mixture(
        &self,
        first: &Dataset,
        connection: &ConnectionArgs,
    ) -> Result<Option<Mixture>> {
        let Some(part) = self.part else { return Ok(None) };
        let mut parts = vec![(first.clone(), part)];
        for MixedImage { image, part } in &self.mix {
            let connect = connection.options(false)?;
            let image = Image::open(&image.0, &OpenOptions { connect, ..OpenOptions::default() })?;
            parts.push((Dataset::from_image(image, ReaderOptions::default()), *part));
        }
        let phases = self.phase.clone();
        Mixture::counting(&self.mix_count, parts, self.epoch_size, self.mix_batching, phases)
            .map(Some)
    }

    /// Returns whether other images were given.
    pub(crate) fn is_given(&self) -> bool {
        self.part.is_some()
    }

    /// All images, with `first` (IMAGE) in front.
    pub(crate) fn images<'a>(
        &'a self,
        first: &'a ImageAddress,
    ) -> impl Iterator<Item = &'a ImageAddress> {
        std::iter::once(first).chain(self.mix.iter().map(|mixed| &mixed.image))
    }

    /// Counters of delivered samples by image; `first` is IMAGE.
    pub(crate) fn source_counts(&self, first: &ImageAddress) -> SourceCounts {
        SourceCounts(self.images(first).map(SourceCount::new).collect())
    }
}

/// Counters of the samples that a run has delivered, by image, IMAGE first.
pub(crate) struct SourceCounts(pub(crate) Vec<SourceCount>);

/// The counters of one image. The names of the fields are an interface.
#[derive(Serialize)]
pub(crate) struct SourceCount {
    image: String,
    pub(crate) samples: u64,
    bytes: u64,
    /// The image's addresses for a line of the report.
    #[serde(skip)]
    label: String,
}

impl SourceCount {
    fn new(image: &ImageAddress) -> SourceCount {
        SourceCount { image: image.to_string(), samples: 0, bytes: 0, label: image.in_short() }
    }
}

impl SourceCounts {
    /// Counts the samples of a batch.
    pub(crate) fn count(&mut self, batch: &Batch) {
        let sources = batch.sources();
        for index in 0..batch.len() {
            let source = &mut self.0[sources.map_or(0, |sources| sources[index] as usize)];
            source.samples += 1;
            source.bytes += batch.bytes(index).len() as u64;
        }
    }

    /// A report line for each image.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let samples: u64 = self.0.iter().map(|source| source.samples).sum();
        self.0.iter().map(move |source| {
            format!(
                "  source     {}: {}, {}: {:.2} % of the samples",
                out::safe_text(&source.label),
                out::counted(source.samples, "sample"),
                out::bytes(source.bytes),
                100.0 * source.samples as f64 / samples.max(1) as f64
            )
        })
    }
}

/// `IMAGE=PART`. PART contains no `=`, so the address may contain it.
#[derive(Debug, Clone)]
struct MixedImage {
    image: ImageAddress,
    part: Part,
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
            let image = Address::parse_list_os(&OsString::from_vec(bytes[..at].to_vec()));
            let image = image.map_err(|error| error.to_string())?;
            let part = String::from_utf8_lossy(&bytes[at + 1..]).parse();
            let part = part.map_err(|error: dlfs::Error| error.to_string())?;
            Ok(MixedImage { image: ImageAddress(image), part })
        })
    }
}

#[cfg(test)]
mod tests {
    use dlfs::order::mixture::Weight;

    use super::*;

    fn mixed(text: &str) -> Result<(String, Part), String> {
        let command = clap::Command::new("dlfs")
            .arg(clap::Arg::new("mix").value_parser(MixedImage::parser()));
        let found =
            command.try_get_matches_from(["dlfs", text]).map_err(|error| error.to_string())?;
        let mixed = found.get_one::<MixedImage>("mix").unwrap();
        Ok((mixed.image.to_string(), mixed.part))
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
}
