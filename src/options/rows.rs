//! Rows of tokens: how documents fill arrays of fixed length.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(feature = "clap")]
use super::text;
use super::{Choice, within};
use crate::dataset::{LongDocuments, TokenOptions, TokenPhase};
use crate::error::Result;
use crate::order::budget::Pack;

/// Rows of tokens: samples are documents, and a batch is a number of rows of equal length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Rows of tokens"))]
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
