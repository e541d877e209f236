//! Mixtures with weights and phases that count tokens.

use std::sync::Arc;

use crate::dataset::mixture::source;
use crate::dataset::{Dataset, Mixture};
use crate::error::Result;
use crate::order::budget::{LengthsOf, TooLong};
use crate::order::mixture::{Batching, Count, MixtureSpec, Part, Phase};
use crate::prefetch::TokenLengths;

use super::TokenOptions;
use super::fields::Fields;

impl Mixture {
    /// As [`Mixture::new`], but weights and starts of phases are in the unit `count`. Tokens are those of documents,
    /// without separators; `repeat`, `choose` and `epoch_size` stay numbers of samples. The mixture's definition counts
    /// samples: lengths are read here, in a few nanoseconds each, and not again.
    ///
    /// # Errors
    /// As [`Mixture::new`]. `NotFound` and `InvalidArgument`: a data set has no such field or column, or no tokens, or
    /// a document's bytes are no whole number of them. The message names the data set.
    pub fn counting(
        count: &Count,
        parts: Vec<(Dataset, Part)>,
        epoch_size: Option<u64>,
        batching: Batching,
        phases: Vec<Phase>,
    ) -> Result<Mixture> {
        if *count == Count::Samples {
            return Mixture::new(parts, epoch_size, batching, phases);
        }
        let sources = parts.iter().map(|(dataset, part)| source(dataset, *part)).collect();
        let spec = MixtureSpec { sources, epoch_size, batching, phases, seed: 0 };
        let tokens = parts.iter().zip(&spec.sources).map(|((dataset, _), source)| {
            tokens_of(dataset, count).map_err(|error| error.target(source.name.clone()))
        });
        let tokens = tokens.collect::<Result<Vec<u64>>>()?;
        let MixtureSpec { sources, phases, .. } = spec.counted_in_tokens(&tokens)?;
        let parts = parts.into_iter().zip(sources);
        let parts = parts.map(|((dataset, _), source)| (dataset, source.part)).collect();
        Mixture::new(parts, epoch_size, batching, phases)
    }
}

/// The tokens of all documents together, without separators.
fn tokens_of(dataset: &Dataset, count: &Count) -> Result<u64> {
    let directory = dataset.directory();
    let mut options = TokenOptions::new(1, 1); // of rows that take any document
    let lengths = match count {
        Count::Samples => return Ok(dataset.len()),
        Count::Lengths(column) => LengthsOf::Column(column.clone()),
        Count::Tokens(field) => {
            options.field.clone_from(field);
            LengthsOf::Bytes(Fields::find(directory, &options)?.token_bytes)
        }
    };
    let budget = Arc::new(options.budget(lengths));
    Ok(TokenLengths::new(directory, &budget, TooLong::Raise)?.measure()?.tokens())
}
