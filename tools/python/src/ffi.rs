//! Exports bytes to Python through the buffer protocol. The only `unsafe` of this package.
//!
//! A [`Memory`] exports bytes of a [`Source`] that it keeps alive; a `memoryview`, a numpy array or
//! a tensor created from it keeps the `Memory` alive in turn. So bytes live while any view of them
//! does.
#![allow(unsafe_code)] // passes raw pointers to the interpreter

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlfs::directory::Directory;
use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::{raise, raise_invalid};
use crate::held::Held;

/// Bytes that never change or move while the source lives: what [`Memory`] may export.
#[derive(Clone)]
pub(crate) enum Source {
    /// A batch: its parts are its samples, and [`WHOLE`] is all of them gathered.
    Batch(Arc<Held>),
    /// One field of the samples of a batch.
    Field(Arc<Held>, usize),
    /// The column of labels of a directory.
    Labels(Arc<Directory>),
    /// A typed column of a directory, by its place among them.
    Column(Arc<Directory>, usize),
}

impl Source {
    fn bytes(&self, part: usize) -> dlfs::Result<&[u8]> {
        match self {
            Source::Batch(held) if part == WHOLE => held.whole(),
            Source::Batch(held) => Ok(held.shown(part)?.unwrap_or_default()),
            Source::Field(held, field) => Ok(held.field(part, *field)?.unwrap_or_default()),
            Source::Column(directory, at) => {
                Ok(directory.columns().get(*at).map_or(&[], |column| column.as_bytes()))
            }
            Source::Labels(directory) => {
                Ok(directory.labels().map_or(&[], |labels| labels.as_bytes()))
            }
        }
    }
}

/// The part that means everything.
pub(crate) const WHOLE: usize = usize::MAX;

/// Read-only bytes, exported through the buffer protocol.
#[pyclass(frozen, subclass, module = "dlfs")]
pub(crate) struct Memory {
    source: Source,
    /// The part that the next export shows. Only [`Views`] changes it, and only in the `Memory` that it
    /// created.
    part: AtomicUsize,
}

impl Memory {
    /// All bytes of `source`.
    pub(crate) fn whole(source: Source) -> Memory {
        Memory { source, part: AtomicUsize::new(WHOLE) }
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
        let bytes = this
            .source
            .bytes(this.part.load(Ordering::Relaxed))
            .map_err(|error| raise(slf.py(), &error))?;
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

/// Creates `memoryview`s of parts of one source, one after the other, without an object for each.
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

    /// None, for a missing part.
    pub(crate) fn none(&self) -> Bound<'py, PyAny> {
        self.exporter.py().None().into_bound(self.exporter.py())
    }

    /// A read-only view of `part`.
    pub(crate) fn view(&self, part: usize) -> PyResult<Bound<'py, PyAny>> {
        self.exporter.get().part.store(part, Ordering::Relaxed);
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

    /// The bytes, while the interpreter is attached, so that no other Python code can access them.
    pub(crate) fn bytes<'a>(&'a mut self, _py: Python<'a>) -> &'a mut [u8] {
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: `new` has checked that the bytes are writable and contiguous; the export holds the memory in
        // place until the buffer is dropped; Python code that could read or write it needs the interpreter, which
        // `_py` holds for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast(), self.len()) }
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

    /// The elements, which must be of the type that the array was made with.
    pub(crate) fn elements<T: Element>(&mut self) -> &mut [T] {
        let typed = self.buffer.as_typed::<T>().expect("the array was made with this type");
        // SAFETY: `of` has checked that the elements are writable, contiguous, and reached by no other reference, and
        // `self` keeps the array, so none appears while the slice borrows `self`. `as_typed` has checked type and
        // alignment. The export holds the memory in place.
        unsafe { std::slice::from_raw_parts_mut(typed.buf_ptr().cast(), typed.item_count()) }
    }

    /// Ends the export.
    pub(crate) fn into_array(self) -> Py<PyAny> {
        self.array
    }
}

/// Returns whether there is another reference to the object. A view of a numpy array has one, and so does a tensor.
pub(crate) fn is_shared(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is live, and the interpreter is attached.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) != 1 }
}
