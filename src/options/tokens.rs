//! The options of batches by tokens: a budget of tokens per batch ([`Tokens`]), and rows of tokens, arrays of fixed
//! length that documents fill ([`Rows`]).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(feature = "clap")]
use super::text;
use super::{Choice, within};
use crate::dataset::{LongDocuments, TokenOptions, TokenPhase};
use crate::error::{Result, ensure};
use crate::order::budget::{Budget, Cost, DEFAULT_WINDOW, LengthsOf, Pack, TooLong};

/// Batches by a budget of tokens, instead of a number of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Batches by tokens"))]
pub struct Tokens {
    /// The most tokens of a batch, instead of a number of samples: samples of similar length share a batch, and batches
    /// go to the ranks in turn.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS"))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u64).range(1..)))]
    pub batch_tokens: Option<u64>,
    /// Batches by tokens: positions of the epoch that are sorted by length together.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", requires = "batch_tokens"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Tokens::default().bucket_window))]
    pub bucket_window: u32,
    /// Batches by tokens: the most samples of one [default: as many as have room].
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", requires = "batch_tokens"))]
    pub max_batch: Option<u32>,
    /// Batches by tokens: bytes of a token; a part of one counts as one.
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES", requires = "batch_tokens"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Tokens::default().token_bytes))]
    pub token_bytes: u32,
    /// Batches by tokens: the column of ints with the tokens of each sample, instead of its bytes; label for the label.
    #[cfg_attr(feature = "clap", arg(long, value_name = "COLUMN", requires = "batch_tokens"))]
    pub lengths: Option<String>,
    /// Batches by tokens: what a batch costs: its longest sample times their number, as a padded tensor has it, or the
    /// sum of their tokens.
    #[cfg_attr(feature = "clap", arg(long, requires = "batch_tokens", default_value_t))]
    pub batch_cost: Choice<Cost>,
    /// Batches by tokens: what to do with a sample that is longer than a batch: raise an error before the first batch,
    /// or leave it alone in a batch of its own.
    #[cfg_attr(feature = "clap", arg(long, requires = "batch_tokens", default_value_t))]
    pub too_long: Choice<TooLong>,
}

impl Default for Tokens {
    fn default() -> Tokens {
        Tokens {
            batch_tokens: None,
            bucket_window: DEFAULT_WINDOW,
            max_batch: None,
            token_bytes: 1,
            lengths: None,
            batch_cost: Choice::default(),
            too_long: Choice::default(),
        }
    }
}

impl Tokens {
    /// The budget; `None`: batches have a number of samples.
    ///
    /// # Errors
    /// `InvalidArgument`: an option of a budget without one, or a number out of range.
    pub fn budget(&self) -> Result<Option<Budget>> {
        ensure(
            self.lengths.is_none() || self.token_bytes == 1,
            || "token_bytes counts bytes, and lengths names a column instead: give one of both",
        )?;
        let Some(tokens) = self.batch_tokens else { return self.unused().map(|()| None) };
        within("batch_tokens", tokens, 1)?;
        within("bucket_window", self.bucket_window, 1)?;
        within("max_batch", self.max_batch.unwrap_or(1), 1)?;
        within("token_bytes", self.token_bytes, 1)?;
        let lengths = match &self.lengths {
            Some(column) => LengthsOf::Column(column.clone()),
            None => LengthsOf::Bytes(self.token_bytes),
        };
        let budget = Budget {
            window: self.bucket_window,
            max_samples: self.max_batch,
            cost: self.batch_cost.0,
            lengths,
            ..Budget::new(tokens)
        };
        budget.check()?;
        Ok(Some(budget))
    }

    /// Checks that all options have their defaults.
    fn unused(&self) -> Result<()> {
        let default = Tokens::default();
        for (name, is_given) in [
            ("bucket_window", self.bucket_window != default.bucket_window),
            ("max_batch", self.max_batch.is_some()),
            ("token_bytes", self.token_bytes != default.token_bytes),
            ("lengths", self.lengths.is_some()),
            ("batch_cost", self.batch_cost != default.batch_cost),
            ("too_long", self.too_long != default.too_long),
        ] {
            ensure(!is_given, || {
                format!("{name} is of batches by tokens: give batch_tokens, too")
            })?;
        }
        Ok(())
    }
}

/// Rows of tokens: samples are documents, and a batch is a number of rows of equal length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Rows of tokens"))]
pub struct Rows {
    /// The tokens of a row; the batch size is then a number of rows. A row has one token more, so that inputs and
    /// labels are the same array, shifted by one.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS"))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u32).range(1..)))]
    pub seq_len: Option<u32>,
    /// How documents fill rows. concat: end to end, cut wherever a row ends, without padding; best_fit: whole, each
    /// into the row of its window with the least room for it; none: one document a row, in arrays that are only as wide
    /// as their batch needs.
    #[cfg_attr(feature = "clap", arg(long, requires = "seq_len", default_value_t))]
    pub pack: Choice<Pack>,
    /// Positions of the epoch that best_fit packs together, and of which none puts rows of similar length side by side.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", requires = "seq_len"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Rows::default().pack_window))]
    pub pack_window: u32,
    /// The token that follows each document [default: none].
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKEN", requires = "seq_len"))]
    pub separator: Option<u32>,
    /// Handling of a document that is longer than a row, unless pack is concat: cut it into pieces, or raise an error
    /// before the first batch.
    #[cfg_attr(feature = "clap", arg(id = "row_too_long", long = "row-too-long"))]
    #[cfg_attr(feature = "clap", arg(requires = "seq_len", default_value_t))]
    pub too_long: Choice<LongDocuments>,
    /// The field of tokens: NAME, or NAME:TYPE, such as tok:u16, if the field has no type; TYPE alone if samples have
    /// one field without a name [default: the only field of tokens].
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME[:TYPE]", requires = "seq_len"))]
    pub field: Option<String>,
    /// The column of ints with the tokens of each document, instead of its bytes.
    #[cfg_attr(feature = "clap", arg(id = "row_lengths", long = "row-lengths"))]
    #[cfg_attr(feature = "clap", arg(value_name = "COLUMN", requires = "seq_len"))]
    pub lengths: Option<String>,
    /// The field with a byte for each token: 0 for tokens that are not learned from.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FIELD", requires = "seq_len"))]
    pub loss_field: Option<String>,
    /// The token that fills what documents leave free.
    #[cfg_attr(feature = "clap", arg(id = "row_pad", long = "row-pad", value_name = "TOKEN"))]
    #[cfg_attr(feature = "clap", arg(requires = "seq_len", default_value_t))]
    pub pad: u32,
    /// The number of different tokens; one that is not below it is an error [default: any].
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS", requires = "seq_len"))]
    pub vocabulary: Option<u32>,
    /// The tokenizer of the tokens, a file: an image that names another one is an error, and one that names none
    /// [default: any, but one of all images].
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE", requires = "seq_len"))]
    pub tokenizer: Option<PathBuf>,
    /// Phases of each epoch: rows have another length, and batches another number of rows, once the rows before have
    /// counted so many tokens. May be repeated.
    #[cfg_attr(feature = "clap", arg(id = "row_phase", long = "row-phase", requires = "seq_len"))]
    #[cfg_attr(feature = "clap", arg(value_name = "TOKENS:seq_len=N[,batch_size=B]"))]
    #[cfg_attr(feature = "clap", arg(value_parser = text::<TokenPhase>))]
    pub phases: Vec<String>,
}

impl Default for Rows {
    fn default() -> Rows {
        let library = TokenOptions::default();
        Rows {
            seq_len: None,
            pack: Choice(library.pack),
            pack_window: library.window,
            separator: library.separator,
            too_long: Choice(library.too_long),
            field: library.field,
            lengths: library.lengths,
            loss_field: library.loss_field,
            pad: library.pad,
            vocabulary: library.vocabulary,
            tokenizer: library.tokenizer,
            phases: Vec::new(),
        }
    }
}

impl Rows {
    /// The options of a loader with `batch_size` rows a batch; `None`: batches are of samples.
    ///
    /// # Errors
    /// `InvalidArgument`: a number out of range.
    pub fn options(&self, batch_size: Option<u32>) -> Result<Option<TokenOptions>> {
        let Some(seq_len) = self.seq_len else { return Ok(None) };
        let batch_size = batch_size.unwrap_or(0);
        within("batch_size", batch_size, 1)?;
        within("pack_window", self.pack_window, 1)?;
        let phases = self.phases.iter().map(|text| text.parse::<TokenPhase>());
        let phases = phases.collect::<Result<Vec<TokenPhase>>>()?;
        Ok(Some(TokenOptions {
            seq_len,
            batch_size,
            pack: self.pack.0,
            window: self.pack_window,
            separator: self.separator,
            too_long: self.too_long.0,
            field: self.field.clone(),
            lengths: self.lengths.clone(),
            loss_field: self.loss_field.clone(),
            pad: self.pad,
            vocabulary: self.vocabulary,
            tokenizer: self.tokenizer.clone(),
            phases,
        }))
    }
}
