//! The order file of a program that opens files one by one: the order in which the program reads.

use std::path::Path;

use serde::Deserialize;

use super::Dataset;
use super::saved::load;
use crate::error::{Error, ErrorKind, Result};
use crate::format::superblock::used_bytes;
use crate::order::{HexId, MAX_EPOCHS, OrderKind, OrderSpec, State};
use crate::prefetch::LoaderOptions;
use crate::process::memory_bytes;
use crate::reader::OnError;
use crate::units::{Epoch, Generation};

/// The order that a program reads in, the program's position, and limits of readahead, from a JSON file.
///
/// The file is a reading state as loaders save it, with a few more keys; or only `order` and those keys.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OrderFile {
    /// The order, with its seed.
    pub order: OrderSpec,
    /// The image that the state belongs to; any image if the key is missing.
    image: Option<serde_json::Value>,
    /// The generation that the state belongs to; that of the image if the key is missing.
    generation: Option<Generation>,
    /// The hash of the view that a state belongs to; `None` in a whole state: all samples.
    view: Option<HexId>,
    /// The version of the state; `None`: the file is not a whole state.
    version: Option<u32>,
    /// The epoch that the program begins with.
    #[serde(default)]
    pub epoch: Epoch,
    /// Samples of that epoch that all ranks together have read already.
    #[serde(default)]
    pub consumed: u64,
    /// Samples of one batch. `None`: 64, or fewer if one rank reads alone and four such batches exceed the loader's
    /// window, three quarters of `window`.
    pub batch: Option<usize>,
    /// Memory limit of readahead, in bytes. `None`: 256 MiB, or a quarter of the memory that this process may
    /// use if that is less. A small data set takes less than the limit.
    pub window: Option<u64>,
    /// This rank.
    #[serde(default)]
    pub rank: u32,
    /// Ranks that share each epoch.
    #[serde(default = "one")]
    pub world_size: u32,
}

fn one() -> u32 {
    1
}

impl OrderFile {
    /// Reads an order file.
    ///
    /// # Errors
    /// `NotFound`: there is no such file. `InvalidArgument`: the file does not hold an order. Errors of the file
    /// system.
    pub fn load(path: &Path) -> Result<OrderFile> {
        let refused = || Error::new(ErrorKind::NotFound, "there is no such order file").path(path);
        load(path, OrderFile::parse)?.ok_or_else(refused)
    }

    /// Parses the JSON text of an order file.
    ///
    /// # Errors
    /// `InvalidArgument`: the text does not hold an order.
    pub fn parse(text: &str) -> Result<OrderFile> {
        let refuse = |why: &str| Error::new(ErrorKind::InvalidArgument, why.to_owned());
        let file: OrderFile = serde_json::from_str(text).map_err(|error| {
            let hint = r#"for example {"order": {"kind": "global", "seed": 7}, "epoch": 0}"#;
            refuse("this is not an order to read along").hint(hint).source(error)
        })?;
        if file.version.is_some() {
            let state = State::from_json(text)?; // checks a file that is a whole state
            if let Some(budget) = &state.budget {
                return Err(refuse(if budget.rows.is_some() {
                    "the state counts rows of tokens, and files are read by samples"
                } else {
                    "the state's batches have a budget of tokens, and so another sequence than its order"
                }));
            }
        }
        match file.order.kind {
            OrderKind::Grouped { lanes: 0, .. } => {} // as many as suit the world size
            _ => file.order.check()?,
        }
        file.order.check_epoch(file.epoch)?;
        let is_batch = file.batch.is_none_or(|batch| (1..=MAX_BATCH).contains(&batch));
        if !is_batch || file.window == Some(0) {
            return Err(refuse("batch is from 1 to 65,536, and window more than 0"));
        }
        if file.rank >= file.world_size {
            return Err(refuse("rank is less than world_size"));
        }
        Ok(file)
    }

    /// The options of a loader along this order, and the most bytes of samples that may wait for the program beside the
    /// loader's window.
    ///
    /// # Errors
    /// `InvalidArgument`: the order belongs to another image.
    pub(super) fn options(&self, dataset: &Dataset) -> Result<(LoaderOptions, u64)> {
        let directory = dataset.directory();
        let superblocks = dataset.image().superblocks();
        let data_bytes = used_bytes(superblocks);
        let window = self.window.unwrap_or_else(|| (memory_bytes() / 4).min(DEFAULT_WINDOW_BYTES));
        // A quarter of the memory is for samples that wait for the program, the rest for the loader's window.
        let waiting = (window / 4).min(data_bytes).max(1);
        let chunks = 2 * u64::from(directory.layout().chunk_size_bytes);
        let loader = (window - window / 4).min(data_bytes.saturating_add(chunks)).max(1);
        let mean_bytes = data_bytes / directory.num_live().max(1);
        let long = loader / 4 / mean_bytes.max(1);
        let batch = self.batch.unwrap_or_else(|| match self.world_size {
            1 => long.clamp(1, DEFAULT_BATCH) as usize,
            _ => DEFAULT_BATCH as usize, // equal on all ranks, whatever memory each has
        });
        let start = State::start(
            directory.uuid().0,
            self.generation.unwrap_or(directory.generation()),
            self.order.started(self.world_size),
        );
        let view = match (self.version, self.view) {
            (None, None) => directory.view().map(|mark| mark.hash), // an order alone is one of the open samples
            (_, view) => view.map(|HexId(hash)| hash),
        };
        let state = State { epoch: self.epoch, consumed: self.consumed, ..start }.of_view(view);
        if let Some(image) = &self.image
            && serde_json::to_value(state.image).ok().as_ref() != Some(image)
        {
            let text = format!("the order belongs to image {image}, and this is another one");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let epochs = if self.order.check_epoch(Epoch(MAX_EPOCHS - 1)).is_ok() {
            MAX_EPOCHS - 1
        } else {
            self.epoch.0 + 1_000 // an order with fewer epochs: loaders check their number
        };
        let options = LoaderOptions {
            rank: self.rank,
            world_size: self.world_size,
            resume: Some(state),
            window_bytes: usize::try_from(loader).unwrap_or(usize::MAX),
            on_error: OnError::Skip, // the program's own read of the sample reports the error
            ..LoaderOptions::new(self.order, batch, epochs)
        };
        Ok((options, waiting))
    }
}

/// Memory limit of readahead, if the file has no `window`.
const DEFAULT_WINDOW_BYTES: u64 = 256 << 20;
/// Largest default batch, if the file has no `batch`.
const DEFAULT_BATCH: u64 = 64;
/// The largest batch, in samples.
const MAX_BATCH: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::order::budget::{Budget, Cost, Pack, RowSpec};

    #[test]
    fn an_order_file_is_a_state_with_some_keys_more_or_only_an_order() {
        let order = OrderSpec { kind: OrderKind::Global, seed: 7 };
        let state = State::start([3; 16], Generation(2), order);
        let file = OrderFile::parse(&state.to_json()).unwrap();
        assert_eq!((file.order, file.epoch, file.batch), (order, Epoch(0), None));
        let text =
            r#"{"order": {"kind": "global", "seed": 7}, "epoch": 3, "batch": 8, "window": 1000}"#;
        let file = OrderFile::parse(text).unwrap();
        assert_eq!((file.order, file.epoch), (order, Epoch(3)));
        assert_eq!((file.batch, file.window), (Some(8), Some(1000)));
        for wrong in [
            "",
            "7",
            r#"{"epoch": 1}"#,
            r#"{"order": {"kind": "global", "seed": 7}, "batch": 0}"#,
            r#"{"order": {"kind": "global", "seed": 7}, "rank": 1}"#,
            r#"{"order": {"kind": "global", "seed": 7}, "epoch": 99999999}"#,
            r#"{"order": {"kind": "odd", "seed": 7}}"#,
        ] {
            let error = OrderFile::parse(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}: {error}");
        }
        let rows = Some(RowSpec { pack: Pack::Concat, separated: false, cuts: true });
        let budget = Budget { cost: Cost::Sum, rows, ..Budget::new(9) };
        let of_rows = state.by_budget(Some(Arc::new(budget))).to_json();
        let error = OrderFile::parse(&of_rows).unwrap_err().to_string();
        assert!(error.contains("rows of tokens"), "{error}");
        let start = State::start([3; 16], Generation(2), order);
        let by_tokens = start.by_budget(Some(Arc::new(Budget::new(9)))).to_json();
        let error = OrderFile::parse(&by_tokens).unwrap_err().to_string();
        assert!(error.contains("another sequence"), "{error}");
    }
}
