//! Memory between Rust and Python, through the buffer protocol.
//!
//! To Python: a [`Memory`] exports bytes of a [`Source`] that it keeps alive; a `memoryview`, a numpy array or
//! a tensor created from it keeps the `Memory` alive in turn. So bytes live while any view of them
//! does. From Python: an [`Output`] is filled, [`Lent`] bytes are read, and an [`Unshared`] array is filled without the
//! interpreter.
#![allow(unsafe_code)] // passes raw pointers to the interpreter

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlfs::directory::Directory;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::{OrRaise as _, raise_invalid};
use crate::held::Held;

/// Bytes that never change or move while the source lives: what [`Memory`] may export.
#[derive(Clone)]
pub(crate) enum Source {
    /// The samples of a batch, and under [`WHOLE`] all of them gathered.
    Batch(Arc<Held>),
    /// One field of the samples of a batch.
    Field(Arc<Held>, usize),
    /// The records of a batch, for another process.
    Record(Arc<Held>),
    /// The column of labels of a directory.
    Labels(Arc<Directory>),
    /// A typed column of a directory, by its place among them.
    Column(Arc<Directory>, usize),
}

impl Source {
    /// The bytes of the sample at `index`; with [`WHOLE`], which only a `Batch` allows, of all samples. For a column in
    /// any case all its bytes.
    fn bytes(&self, index: usize) -> dlfs::Result<&[u8]> {
        match self {
            Source::Batch(held) if index == WHOLE => held.whole(),
            Source::Batch(held) => Ok(held.shown(index)?.unwrap_or_default()),
            Source::Field(held, field) => Ok(held.field(index, *field)?.unwrap_or_default()),
            Source::Record(held) => Ok(held.record(index)),
            Source::Column(directory, at) => {
                Ok(directory.columns().get(*at).map_or(&[], |column| column.as_bytes()))
            }
            Source::Labels(directory) => {
                Ok(directory.labels().map_or(&[], |labels| labels.as_bytes()))
            }
        }
    }
}

/// The index that means all bytes of a batch or a column.
pub(crate) const WHOLE: usize = usize::MAX;

/// Read-only bytes, exported through the buffer protocol.
#[pyclass(frozen, subclass, module = "dlfs")]
pub(crate) struct Memory {
    source: Source,
    /// The index of the sample that the next export shows, or [`WHOLE`]. Only [`Views`] changes it, and only in the
    /// `Memory` that it created.
    index: AtomicUsize,
}

impl Memory {
    /// All bytes of `source`.
    pub(crate) fn whole(source: Source) -> Memory {
        Memory { source, index: AtomicUsize::new(WHOLE) }
    }
}

#[pymethods]
impl Memory {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let bytes = this.source.bytes(this.index.load(Ordering::Relaxed)).or_raise(slf.py())?;
        let start = bytes.as_ptr().cast_mut().cast();
        let len = bytes.len() as isize;
        // SAFETY: `view` is the structure that the interpreter wants filled. The call takes a
        // reference to `slf`, which owns the source, so the bytes outlive the view. A `Held` and a
        // `Directory` are behind an `Arc` and show their bytes only through `&`, so they neither
        // move nor change. The view is read-only (1): Python code must not write through it.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Creates `memoryview`s of the samples of one source, one after the other, without an exporting object for each.
pub(crate) struct Views<'py> {
    exporter: Bound<'py, Memory>,
}

impl<'py> Views<'py> {
    pub(crate) fn of(py: Python<'py>, source: Source) -> PyResult<Views<'py>> {
        Ok(Views { exporter: Bound::new(py, Memory::whole(source))? })
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.exporter.py()
    }

    /// Python's None, in place of a view.
    pub(crate) fn none(&self) -> Bound<'py, PyAny> {
        self.exporter.py().None().into_bound(self.exporter.py())
    }

    /// A read-only view of the sample at `index`.
    pub(crate) fn view(&self, index: usize) -> PyResult<Bound<'py, PyAny>> {
        self.exporter.get().index.store(index, Ordering::Relaxed);
        let object = self.exporter.as_ptr();
        // SAFETY: the exporter is a live object; the result is a new reference or null with an error
        // set, which is what `from_owned_ptr_or_err` takes.
        unsafe {
            Bound::from_owned_ptr_or_err(self.exporter.py(), ffi::PyMemoryView_FromObject(object))
        }
    }
}

/// The caller's memory, to be filled.
pub(crate) struct Output {
    buffer: PyBuffer<u8>,
}

impl Output {
    /// Takes any object with a writable, contiguous buffer of bytes.
    ///
    /// # Errors
    /// `TypeError`: it is not a buffer, or its items are not bytes. `InvalidArgument`: it is
    /// read-only or not contiguous.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Output> {
        let buffer = PyBuffer::<u8>::get(object).map_err(|error| {
            let text =
                format!("out must be a writable buffer of uint8, as tensor.numpy() is: {error}");
            PyTypeError::new_err(text)
        })?;
        let wrong = match (buffer.readonly(), buffer.is_c_contiguous()) {
            (true, _) => "out is read-only; it must be writable",
            (_, false) => "out has gaps; it must be contiguous",
            _ => return Ok(Output { buffer }),
        };
        Err(raise_invalid(object.py(), wrong.into()))
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len_bytes()
    }

    /// Copies `bytes` to the offset `at`.
    ///
    /// # Panics
    /// If they exceed the buffer.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len()), "the caller has compared the lengths");
        let start = self.buffer.buf_ptr().cast::<u8>();
        // SAFETY: `new` has checked that the bytes are writable and contiguous, the export holds them in place until
        // the buffer is dropped, and the range lies within them. No reference into them exists: where threads of Python
        // run at the same time, another may access them, too, and both get any bytes, as with arrays of numpy.
        unsafe { std::ptr::copy(bytes.as_ptr(), start.add(at), bytes.len()) }
    }
}

/// Read-only bytes that an object of Python lends, such as `bytes`, or a memoryview of memory that processes share.
pub(crate) struct Lent {
    buffer: PyBuffer<u8>,
}

impl Lent {
    /// Takes any object with a read-only, contiguous buffer of bytes.
    ///
    /// # Errors
    /// `TypeError`: it is not a buffer of bytes. `InvalidArgument`: it is writable, or has gaps.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Lent> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if buffer.readonly() && buffer.is_c_contiguous() {
            return Ok(Lent { buffer });
        }
        Err(raise_invalid(object.py(), "bytes are lent read-only and without gaps".into()))
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.buffer.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: `new` has checked that the bytes are contiguous and read-only; the export holds them in place until
        // the buffer is dropped. `_workers.py` lends memory that another process writes only once this export has
        // ended.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.buffer.len_bytes()) }
    }
}

/// A numpy array that nothing else references, so that it may be filled without the interpreter.
pub(crate) struct Unshared {
    array: Py<PyAny>,
    buffer: PyUntypedBuffer,
}

impl Unshared {
    /// Takes the only reference to a writable, contiguous array; see [`is_shared`].
    pub(crate) fn of(array: Bound<'_, PyAny>) -> PyResult<Unshared> {
        assert!(!is_shared(&array), "another reference would show the array while it is filled");
        let buffer = PyUntypedBuffer::get(&array)?;
        assert!(!buffer.readonly() && buffer.is_c_contiguous(), "numpy has just made the array");
        Ok(Unshared { array: array.unbind(), buffer })
    }

    /// The bytes of the elements.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let len = self.buffer.len_bytes();
        // SAFETY: `of` has checked that the elements are writable, contiguous, and reached by no other reference, and
        // `self` keeps the array, so none appears while the slice borrows `self`. The export holds the memory in place.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast(), len) }
    }

    /// The array; ends the export of its memory.
    pub(crate) fn into_array(self) -> Py<PyAny> {
        self.array
    }
}

/// Returns whether there is another reference to the object. A view of a numpy array has one, and so does a tensor.
pub(crate) fn is_shared(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is live, and the interpreter is attached.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) != 1 }
}
