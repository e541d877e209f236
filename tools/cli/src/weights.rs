//! Options of weighted sampling: samples are drawn by weights, instead of in an order that reads each once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use clap::Args;

use dlfs::directory::Directory;
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::prefetch::LoaderOptions;
use dlfs::{Error, ErrorKind};

use crate::exit::{Failure, about_file};

/// The weights by which samples are drawn.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Weights")]
pub(crate) struct WeightArgs {
    /// Draw samples by weights, instead of an order that reads each once: balanced, equally many of each
    /// label; LABEL=WEIGHT,LABEL=WEIGHT..., the weight of each sample with that label, which is a number or
    /// the name of a class; or a FILE with one number a line, one for each sample in the order of ids
    #[arg(long, value_name = "WEIGHTS", conflicts_with_all = OF_OTHER_ORDERS)]
    weights: Option<String>,
    /// Draw no sample twice in an epoch: a weighted shuffle
    #[arg(long, requires = "weights")]
    without_replacement: bool,
}

/// Options of orders that read each sample once.
const OF_OTHER_ORDERS: [&str; 4] = ["order", "lanes", "group", "exchange"];

impl WeightArgs {
    /// Returns whether samples are drawn by weights.
    pub(crate) fn are_given(&self) -> bool {
        self.weights.is_some()
    }

    /// Returns `options` with the weights of the samples of `directory`; without weights, `options` as they are.
    /// `epoch_size` is the number of samples to draw in an epoch; for `None` see [`Draws::epoch_size`].
    ///
    /// # Errors
    /// `Usage`: a pair of LABEL=WEIGHT is wrong. Errors of reading the file; weights that no sample can be drawn by.
    pub(crate) fn weigh(
        &self,
        options: LoaderOptions,
        epoch_size: Option<u64>,
        directory: &Directory,
    ) -> Result<LoaderOptions, Failure> {
        let Some(given) = &self.weights else { return Ok(options) };
        let draws = Draws { replacement: !self.without_replacement, epoch_size };
        let len = directory.num_live();
        let by_label = match &**given {
            "balanced" => Some(LabelWeights::Balanced),
            text => label_weights(text, directory).map_err(Failure::Usage)?,
        };
        let weights = match &by_label {
            Some(by_label) => {
                let labels = (0..len).map(|rank| directory.label(directory.id_of_live(rank)));
                Weights::of_labels(len, labels, by_label, draws)
            }
            None => Weights::of_samples(len, &numbers_of(Path::new(given))?, draws),
        };
        Ok(options.weighted(Arc::new(weights?)))
    }
}

/// Parses `LABEL=WEIGHT,...`; `None`: `text` has no `=`, and is a path. A label is the name of a class or a number.
fn label_weights(text: &str, directory: &Directory) -> Result<Option<LabelWeights>, String> {
    if !text.contains('=') {
        return Ok(None);
    }
    let mut each = BTreeMap::new();
    for part in text.split(',') {
        let wrong = || format!("--weights {part}: LABEL=WEIGHT, such as 3=0.5, is expected");
        let (label, weight) = part.rsplit_once('=').ok_or_else(wrong)?;
        let is_label = |class: &Vec<u8>| class == label.as_bytes();
        let class = directory.classes().iter().position(is_label).map(|at| at as i64);
        let label = class.or_else(|| label.parse().ok()).ok_or_else(|| {
            format!("--weights {part}: {label} is neither a number nor the name of a class")
        })?;
        if each.insert(label, weight.parse().map_err(|_| wrong())?).is_some() {
            return Err(format!("--weights: label {label} has two weights"));
        }
    }
    Ok(Some(LabelWeights::Each(each)))
}

/// The numbers in a file, one per line.
fn numbers_of(path: &Path) -> Result<Vec<f64>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| about_file("cannot read the weights in", path, error))?;
    let number = |(at, line): (usize, &str)| {
        line.trim().parse().map_err(|_| {
            let text = format!("line {} is no number: {:?}", at + 1, line.trim());
            Error::new(ErrorKind::InvalidArgument, text).path(path).into()
        })
    };
    text.lines().enumerate().map(number).collect()
}
