//! A batch of samples, as Python sees it: views of the bytes where the read brought them.

use std::sync::{Arc, OnceLock};

use dlfs::reader;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple};

use crate::error::raise;
use crate::ffi::{Memory, Source, Views};
use crate::index::position;
use crate::numpy;

/// A batch that views may hold on to, and its bytes in one piece once somebody wanted them so.
pub(crate) struct Held {
    batch: reader::Batch,
    gathered: OnceLock<Box<[u8]>>,
    absent: Absent,
}

/// Samples that were asked for and could not be read, by their position, and why.
pub(crate) struct Absent(Vec<(usize, dlfs::Error)>);

impl Absent {
    pub(crate) fn none() -> Absent {
        Absent(Vec::new())
    }

    /// In rising order of position.
    pub(crate) fn of(failures: Vec<(usize, dlfs::Error)>) -> Absent {
        Absent(failures)
    }

    fn has(&self, index: usize) -> bool {
        !self.0.is_empty() && self.0.binary_search_by_key(&index, |failure| failure.0).is_ok()
    }
}

impl Held {
    pub(crate) fn batch(&self) -> &reader::Batch {
        &self.batch
    }

    /// All bytes, one sample behind the other; copied the first time, unless they lie so.
    pub(crate) fn whole(&self) -> &[u8] {
        if let Some(bytes) = self.batch.contiguous() {
            return bytes;
        }
        self.gathered.get_or_init(|| {
            let mut bytes = Vec::with_capacity(self.batch.len_bytes() as usize);
            (0..self.batch.len()).for_each(|i| bytes.extend_from_slice(self.batch.bytes(i)));
            bytes.into()
        })
    }
}

/// Samples that were read together, in the order of the order or of the ids asked for.
///
/// A sequence of read-only memoryviews, one a sample (None where on_error="none" left a gap), of the
/// verified bytes where the read brought them: nothing is copied. batch[i:j] is a list of them. The memory
/// lives while any view of it does, also after the data set was closed. The batch itself has the buffer
/// protocol: all its bytes, one sample behind the other.
///
/// >>> for image in batch: decode(image)
/// >>> numpy.frombuffer(batch[0], dtype="<f4")
#[pyclass(frozen, extends = Memory, sequence, module = "dlfs", name = "Batch")]
pub(crate) struct Batch {
    held: Arc<Held>,
}

impl Batch {
    pub(crate) fn new(
        py: Python<'_>,
        batch: reader::Batch,
        absent: Absent,
    ) -> PyResult<Bound<'_, Batch>> {
        let held = Arc::new(Held { batch, gathered: OnceLock::new(), absent });
        let memory = Memory::whole(Source::Batch(Arc::clone(&held)));
        Bound::new(py, PyClassInitializer::from(memory).add_subclass(Batch { held }))
    }

    fn batch(&self) -> &reader::Batch {
        &self.held.batch
    }

    fn lens(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.batch().len()).map(|index| self.batch().bytes(index).len())
    }

    fn views<'py>(&self, py: Python<'py>) -> PyResult<Views<'py>> {
        Views::of(py, Source::Batch(Arc::clone(&self.held)))
    }

    /// The sample at `index`, which is below the length.
    pub(crate) fn view<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        self.show(&self.views(py)?, index)
    }

    fn show<'py>(&self, views: &Views<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        match self.held.absent.has(index) {
            true => Ok(views.none()),
            false => views.view(index),
        }
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.batch().len()
    }

    /// batch[i]: the bytes of sample i, as a read-only memoryview; batch[i:j]: a list of them.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        let len = self.batch().len() as isize;
        if let Ok(slice) = index.cast::<PySlice>() {
            let slice = slice.indices(len)?;
            let views = self.views(py)?;
            let picked = (0..slice.slicelength as isize).map(|n| slice.start + n * slice.step);
            let picked = picked.map(|at| self.show(&views, at as usize));
            return Ok(PyList::new(py, picked.collect::<PyResult<Vec<_>>>()?)?.into_any());
        }
        self.view(py, position(index, len as u64, "batch")? as usize)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tolist(py)?.try_iter()?.into_any())
    }

    /// All samples: a list of read-only memoryviews. One call, for loops that want no other.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let views = self.views(py)?;
        let views = (0..self.batch().len()).map(|index| self.show(&views, index));
        PyList::new(py, views.collect::<PyResult<Vec<_>>>()?)
    }

    /// The samples' bytes as bytes objects: copies, which may be kept and pickled. Empty where a sample
    /// could not be read.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let batch = self.batch();
        PyList::new(py, (0..batch.len()).map(|i| pyo3::types::PyBytes::new(py, batch.bytes(i))))
    }

    /// Ids of the samples: int64[B].
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        numpy::int64(py, self.batch().ids().map(|id| id.0 as i64))
    }

    /// Labels, from memory: int64[B], or None when no sample of the data set has one. dlfs.NO_LABEL
    /// stands where a sample has none.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let batch = self.batch();
        if !batch.has_labels() {
            return Ok(None);
        }
        let labels = (0..batch.len()).map(|index| batch.label(index).unwrap_or(NO_LABEL));
        numpy::int64(py, labels).map(Some)
    }

    /// Lengths in bytes: int64[B].
    #[getter]
    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        numpy::int64(py, self.lens().map(|len| len as i64))
    }

    /// Where each sample begins in `data`, and behind the last one its end: int64[B + 1].
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut at = 0;
        let ends = self.lens().map(|len| {
            at += len as i64;
            at
        });
        let ends: Vec<i64> = ends.collect();
        numpy::int64(py, std::iter::once(0).chain(ends))
    }

    /// All bytes, one sample behind the other: read-only uint8[sum of lengths]. Made of the read's own
    /// memory where the samples lie side by side, else copied together once.
    #[getter]
    fn data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        numpy::view(slf.as_any(), slf.get().nbytes(), "u1")
    }

    /// The batch as one read-only array uint8[B, L]; `data` says when it is a copy.
    ///
    /// Raises InvalidArgument (a ValueError) when lengths differ.
    #[getter]
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let (count, len) = (slf.get().batch().len(), slf.get().lens().next().unwrap_or(0));
        if let Some(other) = slf.get().lens().find(|other| *other != len) {
            let text = format!(
                "samples of {len} and of {other} bytes make no array: use data and offsets"
            );
            return Err(crate::error::raise_invalid(py, text));
        }
        Batch::data(slf)?.call_method1("reshape", (count, len))
    }

    /// Sum of the lengths.
    #[getter]
    fn nbytes(&self) -> usize {
        self.lens().sum()
    }

    /// What could not be read, with on_error="none": a list of (position, exception).
    #[getter]
    fn failures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let failures = self.held.absent.0.iter();
        PyList::new(py, failures.map(|(at, error)| (*at, raise(py, error).into_value(py))))
    }

    /// The epoch it belongs to; 0 for samples read by ids.
    #[getter]
    fn epoch(&self) -> u64 {
        self.batch().epoch().0
    }

    /// Whether it is the last of its epoch on this rank.
    #[getter]
    fn ends_epoch(&self) -> bool {
        self.batch().ends_epoch()
    }

    /// One field of every sample, by its number in `Dataset.fields`: a list of read-only memoryviews,
    /// empty where a sample does not have the field.
    fn field<'py>(&self, py: Python<'py>, field: usize) -> PyResult<Bound<'py, PyList>> {
        let source = Source::Field(Arc::clone(&self.held), field);
        let views = Views::of(py, source)?;
        let found = (0..self.batch().len()).map(|index| {
            if self.held.absent.has(index) {
                return Ok(views.none());
            }
            // Asked here too: an export could only raise a BufferError.
            self.batch().field(index, field).map_err(|error| raise(py, &error))?;
            views.view(index)
        });
        PyList::new(py, found.collect::<PyResult<Vec<_>>>()?)
    }

    /// The bytes for any library that takes DLPack: as `array` where lengths are equal, else as `data`. A
    /// copy for those that ask in a way older than DLPack 1.0, which cannot say that memory is read-only.
    #[pyo3(signature = (*, max_version = None, **options))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        max_version: Option<(u32, u32)>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut array = Batch::shaped(slf)?;
        let options = options.map_or_else(|| PyDict::new(slf.py()), Clone::clone);
        match max_version {
            Some(version) if version >= (1, 0) => options.set_item("max_version", version)?,
            _ => array = array.call_method0("copy")?,
        }
        array.call_method("__dlpack__", (), Some(&options))
    }

    /// Where the bytes are: the memory of the CPU.
    fn __dlpack_device__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, [DLPACK_CPU, 0])
    }

    /// A copy as torch tensors in page-locked memory: a dlfs.torch.TensorBatch. For
    /// DataLoader(pin_memory=True), which calls it.
    fn pin_memory<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Batch::tensors(slf)?.call_method0("pin_memory")
    }

    /// A copy as torch tensors on `device`: a dlfs.torch.TensorBatch.
    #[pyo3(signature = (device, non_blocking = false))]
    fn to<'py>(
        slf: &Bound<'py, Self>,
        device: &Bound<'py, PyAny>,
        non_blocking: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        Batch::tensors(slf)?.call_method1("to", (device, non_blocking))
    }

    fn __repr__(&self) -> String {
        format!("<dlfs.Batch of {} samples, {} bytes>", self.batch().len(), self.nbytes())
    }
}

impl Batch {
    fn shaped<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let first = slf.get().lens().next();
        let equal = slf.get().lens().all(|len| Some(len) == first);
        if equal { Batch::array(slf) } else { Batch::data(slf) }
    }

    fn tensors<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("dlfs.torch")?;
        module.getattr("TensorBatch")?.call_method1("of", (slf,))
    }
}

/// What stands in a column of labels where a sample has none.
pub(crate) const NO_LABEL: i64 = i64::MIN;

/// `kDLCPU`.
const DLPACK_CPU: i32 = 1;
