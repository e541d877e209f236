//! Rows of tokens along an order: documents of a data set or mixture, packed into arrays of equal length.
//!
//! The loader reads documents as every loader does. `dlfs-tokens` plans beforehand which tokens of which documents
//! make the rows of a batch, and writes them into the caller's arrays ([`TokenBatch::fill`]). The plan needs only the
//! lengths of documents; so does a mixture whose weights and phases count tokens ([`Mixture::counting`]).

mod batch;
mod fields;
mod row_index;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use batch::TokenSource;
use fields::{Fields, check_tokenizers};
use parking_lot::Mutex;
use row_index::RowIndex;
use serde::Serialize;

use super::mixture::source;
use super::run_data::RunData;
use super::{Dataset, Loader, Mixture};
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::order::Tail;
use crate::order::budget::{Budget, Cost, LengthsOf, Pack, RowPhase, RowSpec, TooLong};
use crate::order::mixture::{Batching, Count, MixtureSpec, Part, Phase};
use crate::prefetch::{LoaderOptions, TokenLengths};
use crate::process::Forked;
use crate::reader::Watch;
use crate::tokens::{Columns, FillRules, Layout, RowCounts};
use crate::units::Epoch;

pub use batch::TokenBatch;

/// Options of a [`TokenLoader`].
#[derive(Debug, Clone)]
pub struct TokenOptions {
    /// The inputs of a row. A row has one token more, so that its labels are the same array, shifted by one.
    pub seq_len: u32,
    /// The rows of a batch on this rank.
    pub batch_size: u32,
    /// The rule by which documents fill rows.
    pub pack: Pack,
    /// The positions of an epoch that are packed together by best fit, or lie in buckets if each document is a row.
    pub window: u32,
    /// The token that follows each document.
    pub separator: Option<u32>,
    /// The treatment of a document that is longer than a row.
    pub too_long: LongDocuments,
    /// The field of tokens: `NAME`, or `NAME:TYPE` for a field without a type, or `TYPE` if samples have one field
    /// without a name. `None`: the only field of tokens.
    pub field: Option<String>,
    /// The column of ints that has the number of tokens of each document. `None`: the length in bytes tells it.
    pub lengths: Option<String>,
    /// The field that has a byte for each token: 0 if it is not learned from. `None`: all are.
    pub loss_field: Option<String>,
    /// The token of columns that documents leave free.
    pub pad: u32,
    /// The size of the vocabulary: each token must be smaller. `None`: tokens are not checked.
    pub vocabulary: Option<u32>,
    /// The file of the tokenizer that the type of each source's field must name. `None`: any tokenizer, but all sources
    /// that name one name the same.
    pub tokenizer: Option<PathBuf>,
    /// Phases of each epoch, ascending, in which rows have another length.
    pub phases: Vec<TokenPhase>,
}

/// The treatment of documents that are longer than a row, unless documents lie end to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LongDocuments {
    /// They are cut into pieces of a whole row, and a rest.
    #[default]
    Cut,
    /// An error before the first batch.
    Raise,
}

/// Batches of rows of tokens along an order. Threads that share it get different batches.
#[derive(Debug)]
pub struct TokenLoader {
    loader: Loader,
    options: TokenOptions,
    sources: Arc<[TokenSource]>,
    /// Rows by number in this process, once some were asked for.
    by_index: Forked<Mutex<Option<RowIndex>>>,
}

/// Counts of an epoch of rows, over all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowPlan {
    /// The counts of all documents.
    #[serde(flatten)]
    pub counts: RowCounts,
    /// Those of each source of a mixture; empty for a single data set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRows>,
}

/// Counts of one source of a mixture in an epoch of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SourceRows {
    /// Documents that are not empty.
    pub documents: u64,
    /// Their tokens, with separators.
    pub tokens: u64,
}

impl Dataset {
    /// A loader of rows of tokens. It takes its order and its share from `run`.
    ///
    /// # Errors
    /// As [`Dataset::loader`]. `InvalidArgument`: samples have no such field of tokens, another tokenizer made them, a
    /// document is no whole number of them, or too long, or all together fill no global batch. The message says which.
    pub fn token_loader(&self, rows: TokenOptions, run: LoaderOptions) -> Result<TokenLoader> {
        TokenLoader::of(RunData::dataset(self), rows, run)
    }
}

impl Mixture {
    /// A loader of rows of tokens, as [`Dataset::token_loader`]. Each row may have documents of all sources.
    ///
    /// # Errors
    /// As [`Dataset::token_loader`]; the message names the source. `InvalidArgument`: tokens of sources have different
    /// widths.
    pub fn token_loader(&self, rows: TokenOptions, run: LoaderOptions) -> Result<TokenLoader> {
        TokenLoader::of(self.run_data(&run)?, rows, run)
    }
}

impl TokenOptions {
    /// Batches of `batch_size` rows of `seq_len` inputs, filled end to end.
    pub fn new(seq_len: u32, batch_size: u32) -> TokenOptions {
        TokenOptions {
            seq_len,
            batch_size,
            pack: Pack::Concat,
            window: DEFAULT_WINDOW,
            separator: None,
            too_long: LongDocuments::Cut,
            field: None,
            lengths: None,
            loss_field: None,
            pad: 0,
            vocabulary: None,
            tokenizer: None,
            phases: Vec::new(),
        }
    }

    /// The options `run` completed by these rows, as a loader over a data set with this directory completes them. Ranks
    /// that join before they have a loader compare their rows by the result.
    ///
    /// # Errors
    /// Errors of [`Dataset::token_loader`] about fields.
    pub fn run(&self, directory: &Directory, run: LoaderOptions) -> Result<LoaderOptions> {
        Ok(self.of_width(Fields::find(directory, self)?.token_bytes, run))
    }

    /// The options `run` completed by these rows; a token takes `token_bytes` in all fields together.
    fn of_width(&self, token_bytes: u32, run: LoaderOptions) -> LoaderOptions {
        let lengths = match &self.lengths {
            Some(column) => LengthsOf::Column(column.clone()),
            None => LengthsOf::Bytes(token_bytes),
        };
        LoaderOptions {
            budget: Some(Arc::new(self.budget(lengths))),
            rows: self.batch_sizes(),
            tail: Tail::Keep,
            drop_short: false,
            ..run
        }
    }

    /// The rules by which rows are filled.
    fn rules(&self) -> FillRules {
        let TokenOptions { pack, separator, pad, vocabulary, .. } = *self;
        FillRules { pack, separator, pad, vocabulary }
    }

    /// The budget of a batch that makes it rows of tokens; documents have their lengths from `lengths`.
    fn budget(&self, lengths: LengthsOf) -> Budget {
        Budget {
            tokens: u64::from(self.seq_len) + 1,
            window: self.window,
            max_samples: None,
            cost: Cost::Sum,
            lengths,
            rows: Some(RowSpec {
                pack: self.pack,
                separated: self.separator.is_some(),
                cuts: self.too_long == LongDocuments::Cut,
            }),
            phases: self.phases.iter().map(TokenPhase::of_rows).collect(),
        }
    }

    /// The rows of a batch at the epoch's start, and in each phase.
    fn batch_sizes(&self) -> Vec<u32> {
        let later = self.phases.iter().map(|phase| phase.batch_size.unwrap_or(self.batch_size));
        std::iter::once(self.batch_size).chain(later).collect()
    }
}

impl Default for TokenOptions {
    /// As [`TokenOptions::new`], without the lengths of rows and batches, which a loader needs.
    fn default() -> TokenOptions {
        TokenOptions::new(0, 0)
    }
}

impl TokenLoader {
    fn of(data: RunData, options: TokenOptions, run: LoaderOptions) -> Result<TokenLoader> {
        options.rules().check()?;
        let names = || data.mix.iter().flat_map(|mix| &mix.spec.sources);
        let of_source = |source: usize, error: Error| match names().nth(source) {
            Some(source) => error.target(source.name.clone()),
            None => error,
        };
        let found = data.datasets.iter().enumerate().map(|(source, dataset)| {
            let fields = Fields::find(dataset.directory(), &options);
            fields.map_err(|error| of_source(source, error))
        });
        let found = found.collect::<Result<Vec<Fields>>>()?;
        check_tokenizers(&found, &options, of_source)?;
        let width = match options.lengths {
            Some(_) => found[0].token_bytes,
            None => token_bytes(&found, of_source)?,
        };
        let run = LoaderOptions { layouts: Some(Arc::default()), ..options.of_width(width, run) };
        let loader = Loader::of(data.clone(), run)?;
        let budget = loader.options().budget.as_ref().expect("rows have a budget");
        let mut sources = Vec::new();
        for (source, (fields, dataset)) in found.into_iter().zip(&data.datasets).enumerate() {
            // A length in bytes needs no look-up: the document tells it too.
            let lengths = match options.lengths {
                Some(_) => Some(TokenLengths::new(dataset.directory(), budget, TooLong::Raise)?),
                None => None,
            };
            let name = names().nth(source).map(|source| source.name.clone());
            sources.push(TokenSource { fields, name, lengths });
        }
        let by_index = Forked::default();
        let loader = TokenLoader { loader, options, sources: sources.into(), by_index };
        loader.check_rows()?;
        Ok(loader)
    }

    /// Checks that the first epoch has a batch for this rank: a run without any would end at once without an error. A
    /// run that resumes at its end needs none.
    fn check_rows(&self) -> Result<()> {
        let mut start = self.loader.state();
        start.move_to((start.epoch, 0), None);
        let is_over = start.epoch.0 >= self.loader.options().epochs.end;
        if is_over || self.loader.share().has_batch_after(&start) {
            return Ok(());
        }
        let RowCounts { rows, tokens, .. } = self.plan(start.epoch.0)?.counts;
        let lens = self.options.phases.iter().map(|phase| phase.seq_len);
        let capacity = lens.fold(self.options.seq_len, u32::min) + 1;
        let batch_size = self.options.batch_size;
        let ranks = self.loader.options().world_size;
        if rows == 0 {
            let text = format!(
                "no row can be filled: an epoch has {tokens} tokens, and a row takes {capacity} of them"
            );
            return Err(Error::invalid(text, "take a smaller seq_len, or pack best_fit"));
        }
        let text = format!(
            "no batch can be filled: an epoch has {rows} rows, and {ranks} ranks take {batch_size} each"
        );
        Err(Error::invalid(text, "take a smaller batch size or fewer ranks"))
    }

    /// Replaces the content of `batch` by the next batch, and waits until it is ready; `false` after the last batch of
    /// the last epoch. [`TokenBatch::fill`] then writes its rows.
    ///
    /// # Errors
    /// As [`Loader::next`].
    pub fn next(&self, batch: &mut TokenBatch, watch: &mut dyn Watch) -> Result<bool> {
        let (samples, layout) = batch.begin(&self.options, &self.sources);
        self.loader.next_with(samples, layout, None, watch)
    }

    /// Replaces the content of `batch` by the rows with these numbers, counted through all epochs of the run from its
    /// first one on and over all ranks. Their documents are read together, on the calling thread. The loader itself
    /// does not move.
    ///
    /// The first call walks over the lengths of all documents before; later ones go on from there, or from less than
    /// 1,024 rows before a row that was passed.
    ///
    /// # Errors
    /// `InvalidArgument`: rows have phases. `NotFound`: the run has fewer rows. As [`Dataset::read`] with
    /// [`OnError::Raise`](super::OnError::Raise). After an error of finding or reading rows, `batch` has no rows.
    pub fn read_rows(
        &self,
        rows: &[u64],
        batch: &mut TokenBatch,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        if !self.options.phases.is_empty() {
            let text = "rows by number have one length, and these have phases of several";
            return Err(Error::invalid(text, "make a loader without phases for each length"));
        }
        let data = self.loader.run_data()?;
        let (samples, layout) = batch.begin(&self.options, &self.sources);
        let mut found = Layout { seq_len: self.options.seq_len, ..Layout::default() };
        let mut by_index = self.by_index.get_or_init(Mutex::default).lock();
        let order = self.loader.state().order; // a state that the run goes on from may have other lanes
        let index = match &mut *by_index {
            Some(index) if index.order() == order => index,
            other => other.insert(RowIndex::new(data.clone(), self.loader.options(), order)?),
        };
        let documents = index.lay_out(rows, &mut found, watch)?;
        drop(by_index);
        *samples = data.read(&documents, watch)?;
        *layout = found;
        Ok(())
    }

    /// The loader that reads the documents, with the run's state, epochs and counters. `consumed` of the state counts
    /// rows. Take batches by [`TokenLoader::next`]: those of this loader have no rows.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// The options of rows.
    pub fn options(&self) -> &TokenOptions {
        &self.options
    }

    /// The most elements of an array of `columns`, which are those of rows at the epoch's start: enough for the batches
    /// of all phases.
    ///
    /// # Errors
    /// `InvalidArgument`: context-parallel ranks cannot share the rows of a phase equally.
    pub fn most_elements(&self, columns: &Columns) -> Result<usize> {
        let mut most = self.options.batch_size as usize * columns.width();
        for phase in &self.options.phases {
            let rows = phase.batch_size.unwrap_or(self.options.batch_size) as usize;
            most = most.max(rows * columns.of_rows(phase.seq_len)?.width());
        }
        Ok(most)
    }

    /// Counts of a whole epoch, over all ranks, from lengths alone.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such epoch.
    pub fn plan(&self, epoch: u64) -> Result<RowPlan> {
        let order = self.loader.state().order;
        order.check_epoch(Epoch(epoch))?;
        let counts = self.loader.share().counts().expect("a token loader has a budget");
        let sources = counts.of_sources(&order, Epoch(epoch))?.into_iter();
        let sources = sources.map(|(documents, tokens)| SourceRows { documents, tokens }).collect();
        Ok(RowPlan { counts: counts.rows(&order, Epoch(epoch))?, sources })
    }
}

/// The bytes that a token takes, which must be equal in all sources.
fn token_bytes(found: &[Fields], of_source: impl Fn(usize, Error) -> Error) -> Result<u32> {
    let first = found[0].token_bytes;
    match found.iter().position(|fields| fields.token_bytes != first) {
        None => Ok(first),
        Some(other) => {
            let bytes = found[other].token_bytes;
            let text = format!(
                "tokens have {bytes} bytes here, and {first} in the mixture's first source"
            );
            Err(of_source(other, Error::invalid(text, NAME_LENGTHS)))
        }
    }
}

/// A phase of each epoch in which rows have another length. Each row counts as its whole length in tokens. If
/// documents lie end to end, the phase begins with the first row that has at least `from` tokens of the epoch before
/// it; otherwise with the first window whose first row does.
///
/// As text: `TOKENS:seq_len=N`, followed by `,batch_size=B` if batches have another size, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenPhase {
    /// The tokens of the epoch before the phase.
    pub from: u64,
    /// The inputs of a row.
    pub seq_len: u32,
    /// The rows of a batch on this rank. `None`: as at the epoch's start.
    pub batch_size: Option<u32>,
}

impl TokenPhase {
    /// The phase as it defines the sequence of rows.
    fn of_rows(&self) -> RowPhase {
        RowPhase { from: self.from, seq_len: self.seq_len }
    }
}

impl fmt::Display for TokenPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenPhase { from, seq_len, batch_size } = self;
        write!(f, "{from}:seq_len={seq_len}")?;
        batch_size.map_or(Ok(()), |batch_size| write!(f, ",batch_size={batch_size}"))
    }
}

impl FromStr for TokenPhase {
    type Err = Error;

    fn from_str(text: &str) -> Result<TokenPhase, Error> {
        let parsed = || {
            let (from, rest) = text.split_once(':')?;
            let mut phase = TokenPhase { from: from.parse().ok()?, seq_len: 0, batch_size: None };
            for part in rest.split(',') {
                match part.split_once('=')? {
                    ("seq_len", value) => phase.seq_len = value.parse().ok()?,
                    ("batch_size", value) => phase.batch_size = Some(value.parse().ok()?),
                    _ => return None,
                }
            }
            Some(phase)
        };
        parsed().filter(|phase| phase.seq_len > 0 && phase.batch_size != Some(0)).ok_or_else(|| {
            Error::invalid(
                format!("{text:?} is no phase of rows"),
                "such as 1000000:seq_len=32768,batch_size=4: tokens, and what rows have from there on",
            )
        })
    }
}

impl Mixture {
    /// A mixture like that of [`Mixture::new`] whose weights and starts of phases are in the unit `count`. Tokens are
    /// those of documents, without separators; `repeat`, `choose` and `epoch_size` count samples in any case. The
    /// result counts samples: lengths are read here, in a few nanoseconds each, and not again.
    ///
    /// # Errors
    /// Errors of [`Mixture::new`]. `NotFound` and `InvalidArgument`: a data set has no such field or column, or no
    /// tokens, or a document's bytes are no whole number of them. The message names the data set.
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

/// The sum of the units of `count` over all samples: samples, or tokens without separators.
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
    Ok(TokenLengths::new(directory, &budget, TooLong::Raise)?.measure()?.tokens)
}

/// The default number of positions that are packed together.
const DEFAULT_WINDOW: u32 = 16_384;

const NAME_LENGTHS: &str = "name a column of ints with the tokens of each document: lengths";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_read_back_from_its_text_and_others_are_refused() {
        for text in ["1000:seq_len=32768", "18446744073709551615:seq_len=1,batch_size=4"] {
            assert_eq!(text.parse::<TokenPhase>().unwrap().to_string(), text);
        }
        let swapped = "5:batch_size=4,seq_len=8".parse::<TokenPhase>().unwrap();
        assert_eq!(swapped, TokenPhase { from: 5, seq_len: 8, batch_size: Some(4) });
        for wrong in [
            "",
            "5",
            "5:",
            "x:seq_len=8",
            "-1:seq_len=8",
            "5:seq_len=0",
            "5:batch_size=4",
            "5:seq_len=8,batch_size=0",
            "5:seq_len=8,window=3",
            "5:seq_len=4294967296",
        ] {
            let error = wrong.parse::<TokenPhase>().unwrap_err();
            assert!(error.to_string().contains("is no phase of rows"), "{wrong}: {error}");
        }
    }
}
