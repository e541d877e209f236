//! `TokenLoader`: rows of tokens, in numpy arrays or on a device. Arrays are filled again once the program has dropped
//! them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dlfs::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs::dataset::{self, TokenBatch, TokenOptions};
use dlfs::format::field_type::Element;
use dlfs::gpu::Parts;
use dlfs::options::Rows;
use dlfs::prefetch::LoaderStats;
use dlfs::process::Forked;
use dlfs::tokens::{Arrays, Columns, TokensMut};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};
use zerocopy::{FromBytes, IntoBytes};

use crate::convert::{self, an_epoch, state_of_dict, state_to_dict};
use crate::dataset::Dataset;
use crate::device::{Device, DeviceArray};
use crate::dlpack::Spec;
use crate::error::{self, OrRaise as _, Signals, detached, raise_invalid};
use crate::ffi::{Unshared, is_shared};
use crate::loader::{has_ended, join_peers, joining};
use crate::mixture::Mixture;
use crate::numpy;
use crate::options::{given_or, loader_options, take, without};

/// Rows of tokens along an order. The subclass dlfs.tokens.Loader documents the class.
#[pyclass(frozen, subclass, module = "dlfs._dlfs", name = "TokenLoader", weakref)]
pub(crate) struct TokenLoader {
    loader: dataset::TokenLoader,
    wanted: Wanted,
    /// Elements of each array: enough for every batch.
    most_elements: usize,
    /// Locked only while detached from the interpreter, for as long as a thread takes a batch.
    turn: Forked<Mutex<Turn>>,
    /// Set if a state was loaded and nothing was read since.
    resumed: AtomicBool,
    /// The arrays of the last batches. Locked only while attached.
    ring: Mutex<Vec<PerArray<Py<PyAny>>>>,
    /// The device that arrays are copied to, and the memory in which they are filled.
    device: Option<(Device, OnceLock<Pool>)>,
}

/// The newest iteration over the loader. Older ones are refused.
struct Turn {
    /// The number of the iteration, from 1.
    iteration: u64,
    /// The epoch that it reads.
    epoch: u64,
    /// True once that epoch has no more batch.
    ended: bool,
    /// The batch that was read last; its memory is reused.
    batch: TokenBatch,
}

/// One thing for each array of a batch: tokens, segment ids, position ids, loss mask, sample ids. `None`: the program
/// does not want the array.
type PerArray<T> = [Option<T>; 5];

/// The shape of an array: rows, chunks, columns of a chunk.
type Shape = (usize, usize, usize);

/// The arrays that the program wants.
struct Wanted {
    /// The type of the elements of each array.
    elements: PerArray<Element>,
    /// The columns of rows at the epoch's start.
    columns: Columns,
    /// True if cu_seqlens are wanted.
    cu_seqlens: bool,
}

/// A batch for Python: its arrays [rows, chunks, columns of a chunk], cu_seqlens with their largest difference, its
/// epoch.
type Taken = (PerArray<Py<PyAny>>, Option<(Py<PyAny>, u32)>, u64);

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
        let rows = token_options(rows, &options)?;
        let wanted = Wanted::of(arrays, rows.seq_len)?;
        let device = Device::of(&options)?.map(|device| (device, OnceLock::new()));
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
        let loader = loader.or_raise(py)?;
        let most_elements = loader.most_elements(&wanted.columns).or_raise(py)?;
        let batch = TokenBatch::new();
        let turn = Turn { iteration: 0, epoch: 0, ended: true, batch };
        let turn = Forked::new(Mutex::new(turn));
        Ok(TokenLoader {
            loader,
            wanted,
            most_elements,
            turn,
            resumed: AtomicBool::new(false),
            ring: Mutex::default(),
            device,
        })
    }

    /// Joins the peers that the options of a loader name, unless that was done before. The options then have the rank
    /// and the world size, and no peers.
    #[staticmethod]
    fn _join(
        source: &Bound<'_, Dataset>,
        rows: &Bound<'_, PyDict>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let rows = token_options(rows, options)?;
        join_peers(source, options, |directory, run| rows.run(directory, run))?;
        without(options, joining())
    }

    /// Begins to read the current epoch from its start, or from a loaded state; returns the number of the iteration.
    fn _begin(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, |watch| {
            let mut turn = error::turn(self.turn(), watch)?;
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
    fn _take(&self, py: Python<'_>, iteration: u64) -> PyResult<Option<Taken>> {
        error::hand_over_warnings(py)?;
        if let Some((device, pool)) = &self.device {
            return self.take_to(py, device, pool, iteration);
        }
        let mut each = self.free_arrays(py)?;
        let mut cu_seqlens = Vec::new();
        let filled = detached(py, |watch| {
            let mut turn = error::turn(self.turn(), watch)?;
            if !self.next(&mut turn, iteration, watch)? {
                return Ok(None);
            }
            let Turn { batch, epoch, .. } = &*turn;
            let mut arrays = self.wanted.arrays(memory(&mut each), &mut cu_seqlens);
            batch.fill(&self.wanted.columns, &mut arrays)?;
            let shape = self.wanted.shape(batch)?;
            Ok(Some((shape, batch.max_seqlen(), *epoch)))
        });
        let each = each.map(|array| array.map(Unshared::into_array));
        self.keep(py, &each);
        let Some((shape, max_seqlen, epoch)) = filled? else { return Ok(None) };
        let each = shaped(py, each, shape)?;
        let cu_seqlens = self.wanted.cu_seqlens.then(|| {
            (PyByteArray::new(py, cu_seqlens[..].as_bytes()).into_any().unbind(), max_seqlen)
        });
        Ok(Some((each, cu_seqlens, epoch)))
    }

    /// The arrays of rows by their numbers, counted through all epochs and over all ranks. They are new ones.
    fn _rows_at(&self, py: Python<'_>, rows: Vec<u64>) -> PyResult<PerArray<Py<PyAny>>> {
        let (batch, shape) = detached(py, |watch| {
            let mut batch = TokenBatch::new();
            self.loader.read_rows(&rows, &mut batch, watch)?;
            let shape = self.wanted.shape(&batch)?;
            Ok((batch, shape))
        })?;
        let mut each = self.arrays_in(py, PerArray::default(), shape.0 * shape.1 * shape.2)?;
        detached(py, |_| {
            let mut starts = Vec::new();
            let mut arrays = self.wanted.arrays(memory(&mut each), &mut starts);
            batch.fill(&self.wanted.columns, &mut arrays)
        })?;
        shaped(py, each.map(|array| array.map(Unshared::into_array)), shape)
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
        detached(epoch.py(), |_| loader.set_epoch(number))?;
        self.resumed.store(false, Ordering::Relaxed); // not after an error: the loaded state stays
        Ok(())
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
    /// documents: documents that are not empty. tokens: their tokens, with separators. columns: those of all rows;
    /// with pack="none" of each by itself. padding: columns without a token. cuts: documents that lie in more than
    /// one piece. dropped: tokens at the end that fill no row. phases: the rows of each phase, from the epoch's start
    /// on.
    #[pyo3(signature = (epoch=None))]
    fn plan<'py>(&self, py: Python<'py>, epoch: Option<u64>) -> PyResult<Bound<'py, PyDict>> {
        let epoch = epoch.unwrap_or_else(|| self.epoch());
        convert::dict(py, &detached(py, |_| self.loader.plan(epoch))?)
    }

    /// The counters so far, as dlfs.Loader.stats has them; samples are documents.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let copied = self.device.as_ref().map_or(0, |(device, _)| device.copied_bytes());
        let stats = py.detach(|| self.loader.loader().stats());
        let copied_bytes = stats.copied_bytes + copied;
        convert::dict(py, &LoaderStats { copied_bytes, ..stats })
    }

    /// Ends readahead and releases the data set; arrays stay valid.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.loader.loader().close());
    }
}

impl TokenLoader {
    /// The newest iteration of this process. A forked child continues the parent's, unless a thread of the parent
    /// held the lock at the fork: then the child has no iteration yet.
    fn turn(&self) -> &Mutex<Turn> {
        self.turn.get_or_init(|| {
            let parents = self.turn.inherited().and_then(|turn| turn.try_lock());
            let (iteration, epoch, ended) =
                parents.map_or((0, 0, true), |turn| (turn.iteration, turn.epoch, turn.ended));
            Mutex::new(Turn { iteration, epoch, ended, batch: TokenBatch::new() })
        })
    }

    /// Returns whether the epoch of an iteration has a batch left.
    fn has_next(&self, turn: &mut Turn, iteration: u64) -> dlfs::Result<bool> {
        if turn.iteration != iteration {
            return Err(dlfs::Error::invalid(
                "another iteration over this loader has begun, which reads from here on",
                "make a loader for each loop",
            ));
        }
        turn.ended = turn.ended || has_ended(self.loader.loader(), turn.epoch)?;
        Ok(!turn.ended)
    }

    /// Takes the next batch of an iteration; `false` once its epoch has ended.
    fn next(&self, turn: &mut Turn, iteration: u64, watch: &mut Signals) -> dlfs::Result<bool> {
        if !self.has_next(turn, iteration)? {
            return Ok(false);
        }
        let taken = self.loader.next(&mut turn.batch, watch)?;
        self.resumed.store(false, Ordering::Relaxed);
        turn.ended = !taken || turn.batch.samples().ends_epoch();
        Ok(taken)
    }

    /// Takes the next batch to a device. If the copy cannot begin, the run goes back before the batch.
    fn take_to(
        &self,
        py: Python<'_>,
        device: &Device,
        pool: &OnceLock<Pool>,
        iteration: u64,
    ) -> PyResult<Option<Taken>> {
        let most = self.wanted.places((1, 1, self.most_elements)).len;
        let mut max_seqlen = 0;
        let sent = detached(py, |watch| {
            let mut turn = error::turn(self.turn(), watch)?;
            // Before the wait for a buffer: a program that holds all of them may have the epoch's last batch.
            if !self.has_next(&mut turn, iteration)? {
                return Ok(None);
            }
            let loader = self.loader.loader();
            let slot = device.slot(loader.options().deadline, watch)?;
            let before = loader.state();
            if !self.next(&mut turn, iteration, watch)? {
                return Ok(None);
            }
            let shape = self.wanted.shape(&turn.batch)?;
            let places = self.wanted.places(shape);
            let mut rows = places.memory(most, device, pool)?;
            let mut starts = Vec::new();
            let mut arrays = self.wanted.arrays(places.split(&mut rows), &mut starts);
            turn.batch.fill(&self.wanted.columns, &mut arrays)?;
            max_seqlen = turn.batch.max_seqlen();
            let sent = slot.upload((rows, starts), |(rows, starts)| {
                let mut parts = Parts::new();
                for bytes in [&rows[..], starts[..].as_bytes()] {
                    parts.begin();
                    parts.push(bytes);
                }
                parts
            });
            let sent = sent.inspect_err(|_| {
                // If the run cannot go back either, the iteration ends; the error of the upload is returned.
                turn.ended = loader.set_state(&before).is_err();
            })?;
            Ok(Some((sent, places, turn.epoch)))
        })?;
        let Some((sent, places, epoch)) = sent else { return Ok(None) };
        let of = |spec: Spec| -> PyResult<Py<PyAny>> {
            Ok(Py::new(py, DeviceArray::new(&sent, spec))?.into_any())
        };
        let mut each = PerArray::default();
        for (array, spec) in each.iter_mut().zip(places.specs) {
            *array = spec.map(of).transpose()?;
        }
        let starts = self.wanted.cu_seqlens.then(|| sent.array(1)).flatten();
        let starts = starts.map(|(address, len)| {
            let offset = (address - sent.address()) as usize;
            of(Spec::compact(Element::I32, vec![len as i64 / 4], offset))
        });
        let starts = starts.transpose()?.map(|starts| (starts, max_seqlen));
        Ok(Some((each, starts, epoch)))
    }

    /// Arrays that nobody else references: those of an earlier batch, or new ones.
    fn free_arrays(&self, py: Python<'_>) -> PyResult<PerArray<Unshared>> {
        let is_free = |each: &PerArray<Py<PyAny>>| {
            each.iter().flatten().all(|array| !is_shared(array.bind(py)))
        };
        let mut ring = self.ring.lock();
        let found = ring.iter().position(is_free).map(|at| ring.remove(at));
        drop(ring);
        self.arrays_in(py, found.unwrap_or_default(), self.most_elements)
    }

    /// Arrays of `len` elements: those in `each`, and new ones where it has none.
    fn arrays_in(
        &self,
        py: Python<'_>,
        mut each: PerArray<Py<PyAny>>,
        len: usize,
    ) -> PyResult<PerArray<Unshared>> {
        let mut free = PerArray::default();
        for (at, element) in self.wanted.elements.iter().enumerate() {
            let Some(element) = element else { continue };
            let array = match each[at].take() {
                Some(array) => array.into_bound(py),
                None => numpy::zeros(py, len, element.numpy_name())?,
            };
            free[at] = Some(Unshared::of(array)?);
        }
        Ok(free)
    }

    /// Remembers the arrays of a batch for later batches, at most [`RING`] batches.
    fn keep(&self, py: Python<'_>, each: &PerArray<Py<PyAny>>) {
        let mut ring = self.ring.lock();
        ring.push(std::array::from_fn(|at| each[at].as_ref().map(|array| array.clone_ref(py))));
        let oldest = (ring.len() > RING).then(|| ring.remove(0));
        drop(ring);
        drop(oldest);
    }
}

impl Wanted {
    /// Parses the arrays that are wanted of rows of `seq_len` tokens.
    fn of(given: &Bound<'_, PyDict>, seq_len: u32) -> PyResult<Wanted> {
        let py = given.py();
        let is_wanted = |name| given_or(given, name, false);
        let dtype = given_or(given, "dtype", String::from("i64"))?;
        let tokens =
            TOKENS.into_iter().find(|element| element.name() == dtype).ok_or_else(|| {
                let known = TOKENS.map(Element::name).join(", ");
                raise_invalid(py, format!("dtype is one of {known}, not {dtype:?}"))
            })?;
        let place = (given_or(given, "cp_rank", 0_u32)?, given_or(given, "cp_size", 1_u32)?);
        let columns =
            Columns::slice(seq_len, place.0, place.1, is_wanted("cp_zigzag")?).or_raise(py)?;
        let elements = [
            Some(tokens),
            is_wanted("segment_ids")?.then_some(Element::I32),
            is_wanted("position_ids")?.then_some(Element::I32),
            is_wanted("loss_mask")?.then_some(Element::U8),
            is_wanted("sample_ids")?.then_some(Element::I64),
        ];
        let cu_seqlens = is_wanted("cu_seqlens")?;
        if cu_seqlens && place.1 > 1 {
            let text = "cu_seqlens are of whole rows, and a context-parallel rank has slices: take segment_ids";
            return Err(raise_invalid(py, text.into()));
        }
        Ok(Wanted { elements, columns, cu_seqlens })
    }

    /// The arrays in the memory of `each`, as elements of the types that the program wants.
    fn arrays<'a>(&self, each: PerArray<&'a mut [u8]>, starts: &'a mut Vec<i32>) -> Arrays<'a> {
        let [tokens, segment_ids, position_ids, loss_mask, sample_ids] = each;
        let tokens = tokens.expect("each batch has tokens");
        Arrays {
            tokens: match self.elements[0] {
                Some(Element::U16) => TokensMut::U16(elements(tokens)),
                Some(Element::U32) => TokensMut::U32(elements(tokens)),
                Some(Element::I32) => TokensMut::I32(elements(tokens)),
                _ => TokensMut::I64(elements(tokens)),
            },
            segment_ids: segment_ids.map(elements),
            position_ids: position_ids.map(elements),
            loss_mask,
            cu_seqlens: self.cu_seqlens.then_some(starts),
            sample_ids: sample_ids.map(elements),
        }
    }

    /// The shape of the arrays of a batch: rows, chunks, columns of a chunk.
    fn shape(&self, batch: &TokenBatch) -> dlfs::Result<Shape> {
        let columns = batch.columns(&self.columns)?;
        Ok((batch.num_rows(), columns.num_chunks(), columns.chunk_len()))
    }

    /// The places in one buffer of arrays of this shape.
    fn places(&self, shape: Shape) -> Places {
        let shape = [shape.0, shape.1, shape.2];
        let mut len = 0;
        let specs = self.elements.map(|element| {
            let element = element?;
            let offset = len;
            let bytes = shape.iter().product::<usize>() * element.len_bytes() as usize;
            len = (offset + bytes).next_multiple_of(Parts::ALIGN);
            // numpy's array of the loss mask becomes one of bool in Python.
            let element = if element == Element::U8 { Element::Bool } else { element };
            Some(Spec::compact(element, shape.map(|len| len as i64).to_vec(), offset))
        });
        Places { specs, len }
    }
}

/// Views of the first elements of each array, in this shape.
fn shaped(
    py: Python<'_>,
    each: PerArray<Py<PyAny>>,
    shape: Shape,
) -> PyResult<PerArray<Py<PyAny>>> {
    let mut shaped = PerArray::default();
    for (to, array) in shaped.iter_mut().zip(each) {
        let first = array.map(|array| numpy::first_as(array.bind(py), shape));
        *to = first.transpose()?.map(Bound::unbind);
    }
    Ok(shaped)
}

/// The places of a batch's arrays in one buffer.
struct Places {
    specs: PerArray<Spec>,
    /// Length of the buffer in bytes.
    len: usize,
}

impl Places {
    /// A buffer for the arrays, registered with the device's driver if possible. `most`: bytes of the longest buffer.
    fn memory(&self, most: usize, device: &Device, pool: &OnceLock<Pool>) -> dlfs::Result<IoBuf> {
        let pool = match pool.get() {
            Some(pool) => pool,
            None => {
                let slot_len_bytes = most.next_multiple_of(dlfs::units::ALIGN_BYTES);
                let bytes = slot_len_bytes * COPIES;
                let huge_pages = HugePages::Auto;
                let made = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages })?;
                let _ = made.register(device.driver); // the driver copies other memory too, if slower
                pool.get_or_init(|| made)
            }
        };
        pool.take(self.len).map_or_else(|| pool.outside(self.len), Ok)
    }

    /// Divides a buffer into the bytes of each array.
    fn split<'a>(&self, buffer: &'a mut [u8]) -> PerArray<&'a mut [u8]> {
        let mut rest = buffer;
        let mut each = PerArray::default();
        for (bytes, spec) in each.iter_mut().zip(&self.specs) {
            let Some(spec) = spec else { continue };
            let len =
                spec.shape.iter().product::<i64>() as usize * spec.element.len_bytes() as usize;
            let (array, behind) = rest.split_at_mut(len.next_multiple_of(Parts::ALIGN));
            *bytes = Some(&mut array[..len]);
            rest = behind;
        }
        each
    }
}

/// The memory of each array.
fn memory(each: &mut PerArray<Unshared>) -> PerArray<&mut [u8]> {
    each.each_mut().map(|array| array.as_mut().map(Unshared::bytes))
}

/// The elements of an array, of the type that its memory was made for.
fn elements<T: FromBytes + IntoBytes>(bytes: &mut [u8]) -> &mut [T] {
    <[T]>::mut_from_bytes(bytes).expect("whole elements, at a multiple of their length")
}

/// The types that tokens may have in arrays.
const TOKENS: [Element; 4] = [Element::I64, Element::I32, Element::U32, Element::U16];

/// Buffers in the pool: one for each copy to the device that is under way. More copies at a time are rare, and take
/// memory outside the pool.
const COPIES: usize = 4;

/// Parses the options of rows; the number of rows of a batch is among the options of the loader.
fn token_options(rows: &Bound<'_, PyDict>, options: &Bound<'_, PyDict>) -> PyResult<TokenOptions> {
    let py = rows.py();
    let batch_size = given_or(options, "batch_size", 1)?;
    let rows = take::<Rows>(rows)?.options(Some(batch_size)).or_raise(py)?;
    rows.ok_or_else(|| raise_invalid(py, "seq_len: a row has a length".into()))
}

/// The most batches whose arrays are kept.
const RING: usize = 4;
