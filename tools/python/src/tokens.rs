//! `TokenLoader`: rows of tokens in numpy arrays, which are used again once the program has dropped them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use dlfs::dataset::{self, TokenBatch};
use dlfs::options::Rows;
use dlfs::tokens::{Arrays, Columns, TokensMut};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};

use crate::dataset::Dataset;
use crate::error::{raise, raise_invalid};
use crate::ffi::{Unshared, is_shared};
use crate::loader::{an_epoch, state_of_dict, state_to_dict};
use crate::mixture::Mixture;
use crate::options::{given_or, loader_options, take};
use crate::watch::{self, Signals, detached};
use crate::{log, numpy, shapes};

/// Rows of tokens along an order. The subclass dlfs.tokens.Loader documents the class.
#[pyclass(frozen, subclass, module = "dlfs._dlfs", name = "TokenLoader", weakref)]
pub(crate) struct TokenLoader {
    loader: dataset::TokenLoader,
    wanted: Wanted,
    /// Locked only while detached from the interpreter, for as long as a thread takes a batch.
    turn: parking_lot::Mutex<Turn>,
    /// Set if a state was loaded and nothing was read since.
    resumed: AtomicBool,
    /// The arrays of the last batches. Locked only while attached.
    ring: Mutex<Vec<Slot<Py<PyAny>>>>,
}

/// The newest iteration, of which older ones are refused.
struct Turn {
    iteration: u64,
    epoch: u64,
    ended: bool,
    batch: TokenBatch,
}

/// The arrays of a batch: tokens, segment ids, position ids, loss mask, sample ids.
type Slot<T> = [Option<T>; 5];

/// The arrays that the program wants.
struct Wanted {
    /// The dtype of each.
    dtypes: Slot<&'static str>,
    columns: Columns,
    cu_seqlens: bool,
}

/// The parts of a batch in Python: its arrays, cu_seqlens and their largest difference, and its epoch.
type Taken<'py> = (Slot<Py<PyAny>>, Option<(Bound<'py, PyByteArray>, u32)>, u64);

#[pymethods]
impl TokenLoader {
    #[new]
    #[pyo3(signature = (source, rows, arrays, **options))]
    fn new(
        source: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyDict>,
        arrays: &Bound<'_, PyDict>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<TokenLoader> {
        let py = source.py();
        let options = options.map_or_else(|| PyDict::new(py), Clone::clone);
        let batch_size = given_or(&options, "batch_size", 1)?;
        let rows = take::<Rows>(rows)?.options(Some(batch_size));
        let rows = rows.map_err(|error| raise(py, &error))?;
        let rows = rows.ok_or_else(|| raise_invalid(py, "seq_len: a row has a length".into()))?;
        let wanted = Wanted::of(arrays, rows.seq_len)?;
        let loader = match source.cast::<Mixture>() {
            Ok(mixture) => {
                let parsed = loader_options(&options, None)?;
                mixture.get().mixture(py)?.token_loader(rows, parsed)
            }
            Err(_) => {
                let dataset = source.cast::<Dataset>()?.get().dataset(py)?;
                let parsed = loader_options(&options, Some(dataset.directory()))?;
                dataset.token_loader(rows, parsed)
            }
        };
        let loader = loader.map_err(|error| raise(py, &error))?;
        let batch = TokenBatch::new();
        let turn = Turn { iteration: 0, epoch: 0, ended: true, batch };
        let turn = parking_lot::Mutex::new(turn);
        Ok(TokenLoader {
            loader,
            wanted,
            turn,
            resumed: AtomicBool::new(false),
            ring: Mutex::default(),
        })
    }

    /// Begins to read the current epoch from its start, or from a loaded state; returns the number of the iteration.
    fn _begin(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, |watch| {
            let mut turn = watch::turn(&self.turn, watch)?;
            let loader = self.loader.loader();
            let epoch = loader.epoch();
            if !self.resumed.load(Ordering::Relaxed) {
                loader.set_epoch(epoch)?;
            }
            turn.iteration += 1;
            turn.epoch = epoch;
            turn.ended = false;
            Ok(turn.iteration)
        })
    }

    /// The next batch of an iteration; None once its epoch has ended.
    fn _take<'py>(&self, py: Python<'py>, iteration: u64) -> PyResult<Option<Taken<'py>>> {
        log::hand_over(py)?;
        let mut slot = self.free_slot(py)?;
        let mut cu_seqlens = Vec::new();
        let filled = detached(py, |watch| {
            let mut turn = watch::turn(&self.turn, watch)?;
            if !self.next(&mut turn, iteration, watch)? {
                return Ok(None);
            }
            let Turn { batch, epoch, .. } = &*turn;
            let mut arrays = self.wanted.arrays(&mut slot, &mut cu_seqlens);
            batch.fill(&self.wanted.columns, &mut arrays)?;
            Ok(Some((batch.max_seqlen(), *epoch)))
        });
        let slot = slot.map(|array| array.map(Unshared::into_array));
        self.keep(py, &slot);
        let Some((max_seqlen, epoch)) = filled? else { return Ok(None) };
        let cu_seqlens = self.wanted.cu_seqlens.then(|| {
            let bytes: Vec<u8> = cu_seqlens.iter().flat_map(|start| start.to_ne_bytes()).collect();
            (PyByteArray::new(py, &bytes), max_seqlen)
        });
        Ok(Some((slot, cu_seqlens, epoch)))
    }

    /// Batches of a whole epoch on this rank.
    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.loader.loader().batches_per_epoch() as usize)
    }

    /// Batches left in the current epoch.
    #[getter]
    fn batches_left(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.loader.loader().batches_left())
    }

    /// The epoch of the next batch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.loader.loader().epoch()
    }

    /// Moves to the start of `epoch`. Right after load_state_dict, the epoch of the state resumes from the state.
    fn set_epoch(&self, epoch: &Bound<'_, PyAny>) -> PyResult<()> {
        let number = an_epoch(epoch)?;
        let loader = self.loader.loader();
        if self.resumed.load(Ordering::Relaxed) && number == loader.epoch() {
            return Ok(());
        }
        self.resumed.store(false, Ordering::Relaxed);
        detached(epoch.py(), |_| loader.set_epoch(number))
    }

    /// Allocates the readahead memory in the background, as dlfs.Loader.prepare.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| self.loader.loader().prepare())
    }

    /// The state of the run after the batches delivered so far: a dict that JSON can store. `consumed` counts the rows
    /// of the epoch that all ranks have had.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        state_to_dict(py, &self.loader.loader().state())
    }

    /// Resumes from `state`, also with another world size or batch size.
    ///
    /// Raises InvalidArgument (a ValueError) if it belongs to another data set, order, seed, or other rows, Stale if
    /// samples were added or deleted since; the run is then unchanged.
    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let parsed = state_of_dict(state)?;
        detached(state.py(), |_| self.loader.loader().set_state(&parsed))?;
        self.resumed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Counts of a whole epoch, by default the current one, over all ranks, from lengths alone: a dict. rows: rows.
    /// documents: documents that are not empty. tokens: their tokens, with separators. padding: columns without a
    /// token. cuts: documents that lie in more than one piece. dropped: tokens at the end that fill no row.
    #[pyo3(signature = (epoch=None))]
    fn plan<'py>(&self, py: Python<'py>, epoch: Option<u64>) -> PyResult<Bound<'py, PyDict>> {
        let epoch = epoch.unwrap_or_else(|| self.epoch());
        shapes::dict(py, &detached(py, |_| self.loader.plan(epoch))?)
    }

    /// The counters so far, as dlfs.Loader.stats has them; samples are documents.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        shapes::dict(py, &py.detach(|| self.loader.loader().stats()))
    }

    /// Ends readahead and releases the data set; arrays stay valid.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.loader.loader().close());
    }
}

impl TokenLoader {
    /// Takes the next batch of an iteration; `false` once its epoch has ended.
    fn next(&self, turn: &mut Turn, iteration: u64, watch: &mut Signals) -> dlfs::Result<bool> {
        if turn.iteration != iteration {
            return Err(dlfs::Error::invalid(
                "another iteration over this loader has begun, which reads from here on",
                "make a loader for each loop",
            ));
        }
        let loader = self.loader.loader();
        if turn.ended || loader.epoch() != turn.epoch {
            turn.ended = true;
            return Ok(false);
        }
        if !loader.has_batches_left() {
            turn.ended = true;
            if turn.epoch < loader.options().epochs.end {
                loader.set_epoch(turn.epoch + 1)?; // the rest of the epoch is no whole batch
            }
            return Ok(false);
        }
        let taken = self.loader.next(&mut turn.batch, watch)?;
        self.resumed.store(false, Ordering::Relaxed);
        turn.ended = !taken || turn.batch.samples().ends_epoch();
        Ok(taken)
    }

    /// Arrays that nobody else references: earlier ones, or new ones.
    fn free_slot(&self, py: Python<'_>) -> PyResult<Slot<Unshared>> {
        let is_free =
            |slot: &Slot<Py<PyAny>>| slot.iter().flatten().all(|array| !is_shared(array.bind(py)));
        let mut ring = self.ring();
        let found = ring.iter().position(is_free).map(|at| ring.remove(at));
        drop(ring);
        let mut slot = found.unwrap_or_default();
        let columns = self.wanted.columns;
        let rows = self.loader.options().batch_size as usize;
        let shape = (rows, columns.num_chunks(), columns.chunk_len());
        let mut free = Slot::default();
        for (at, dtype) in self.wanted.dtypes.iter().enumerate() {
            let Some(dtype) = dtype else { continue };
            let array = match slot[at].take() {
                Some(array) => array.into_bound(py),
                None => numpy::zeros(py, shape, dtype)?,
            };
            free[at] = Some(Unshared::of(array)?);
        }
        Ok(free)
    }

    /// Remembers the arrays of a batch, for a later one.
    fn keep(&self, py: Python<'_>, slot: &Slot<Py<PyAny>>) {
        let mut ring = self.ring();
        ring.push(std::array::from_fn(|at| slot[at].as_ref().map(|array| array.clone_ref(py))));
        let oldest = (ring.len() > RING).then(|| ring.remove(0));
        drop(ring);
        drop(oldest);
    }

    fn ring(&self) -> MutexGuard<'_, Vec<Slot<Py<PyAny>>>> {
        self.ring.lock().unwrap_or_else(|held| held.into_inner())
    }
}

impl Wanted {
    /// Parses the arrays that are wanted of rows of `seq_len` tokens.
    fn of(given: &Bound<'_, PyDict>, seq_len: u32) -> PyResult<Wanted> {
        let py = given.py();
        let is_wanted = |name| given_or(given, name, false);
        let dtype = given_or(given, "dtype", String::from("i64"))?;
        let tokens = DTYPES.into_iter().find(|(name, _)| *name == dtype).ok_or_else(|| {
            let known = DTYPES.map(|(name, _)| name).join(", ");
            raise_invalid(py, format!("dtype is one of {known}, not {dtype:?}"))
        })?;
        let place = (given_or(given, "cp_rank", 0_u32)?, given_or(given, "cp_size", 1_u32)?);
        let columns = Columns::slice(seq_len, place.0, place.1, is_wanted("cp_zigzag")?);
        let columns = columns.map_err(|error| raise(py, &error))?;
        let dtypes = [
            Some(tokens.1),
            is_wanted("segment_ids")?.then_some("i4"),
            is_wanted("position_ids")?.then_some("i4"),
            is_wanted("loss_mask")?.then_some("u1"),
            is_wanted("sample_ids")?.then_some("i8"),
        ];
        let cu_seqlens = is_wanted("cu_seqlens")?;
        if cu_seqlens && place.1 > 1 {
            let text = "cu_seqlens are of whole rows, and a context-parallel rank has slices: take segment_ids";
            return Err(raise_invalid(py, text.into()));
        }
        Ok(Wanted { dtypes, columns, cu_seqlens })
    }

    /// The elements of the arrays in `slot`, which have these dtypes.
    fn arrays<'a>(&self, slot: &'a mut Slot<Unshared>, starts: &'a mut Vec<i32>) -> Arrays<'a> {
        let [tokens, segment_ids, position_ids, loss_mask, sample_ids] = slot;
        let tokens = tokens.as_mut().expect("each batch has tokens");
        Arrays {
            tokens: match self.dtypes[0] {
                Some("u2") => TokensMut::U16(tokens.elements()),
                Some("u4") => TokensMut::U32(tokens.elements()),
                Some("i4") => TokensMut::I32(tokens.elements()),
                _ => TokensMut::I64(tokens.elements()),
            },
            segment_ids: segment_ids.as_mut().map(Unshared::elements),
            position_ids: position_ids.as_mut().map(Unshared::elements),
            loss_mask: loss_mask.as_mut().map(Unshared::elements),
            cu_seqlens: self.cu_seqlens.then_some(starts),
            sample_ids: sample_ids.as_mut().map(Unshared::elements),
        }
    }
}

/// The types of tokens in arrays, and numpy's names of them.
const DTYPES: [(&str, &str); 4] = [("i64", "i8"), ("i32", "i4"), ("u32", "u4"), ("u16", "u2")];

/// The most batches whose arrays are kept.
const RING: usize = 4;
