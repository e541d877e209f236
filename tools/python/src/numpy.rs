//! Numpy arrays: new ones, and arrays over the memory that samples were read into, as fields with types are.
//!
//! They are made through numpy's Python interface, so that the package needs no C headers of numpy.

use std::sync::Arc;

use dlfs::format::field_type::{Element, FieldType};
use dlfs::units::SampleId;
use dlfs::{Error, Result};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PySlice, PyString, PyTuple};

use crate::convert;
use crate::error::{OrRaise as _, raise_no_array};
use crate::ffi::{Memory, Source, Views};
use crate::fields::Fields;
use crate::held::Held;

/// A new array int64[n].
pub(crate) fn int64(
    py: Python<'_>,
    values: impl Iterator<Item = i64>,
) -> PyResult<Bound<'_, PyAny>> {
    of_bytes(py, values.flat_map(i64::to_le_bytes), "<i8")
}

/// A new array of these bytes.
pub(crate) fn of_bytes<'py>(
    py: Python<'py>,
    bytes: impl Iterator<Item = u8>,
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes: Vec<u8> = bytes.collect();
    let len = bytes.len();
    view(PyBytes::new(py, &bytes).as_any(), len, dtype)
}

/// A read-only array over the `len` bytes of an object with the buffer protocol. The array keeps the object alive.
pub(crate) fn view<'py>(
    object: &Bound<'py, PyAny>,
    len: usize,
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    view_as(object, len, PyString::new(object.py(), dtype).as_any())
}

/// A read-only array like that of [`view`], with the dtype as an object.
fn view_as<'py>(
    object: &Bound<'py, PyAny>,
    len: usize,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if len == 0 {
        // frombuffer refuses empty buffers.
        return empty(PyTuple::new(py, [0])?, dtype);
    }
    let options = PyDict::new(py);
    options.set_item("dtype", dtype)?;
    numpy(py)?.call_method("frombuffer", (object,), Some(&options))
}

/// A new array of this shape, which has no elements.
pub(crate) fn empty<'py>(
    shape: Bound<'py, PyTuple>,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    numpy(shape.py())?.call_method1("empty", (shape, dtype))
}

/// A new array of `len` zeros.
pub(crate) fn zeros<'py>(py: Python<'py>, len: usize, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    numpy(py)?.call_method1("zeros", (len, dtype))
}

/// A view of the first elements of an array of one dimension, in this shape.
pub(crate) fn first_as<'py>(
    array: &Bound<'py, PyAny>,
    shape: (usize, usize, usize),
) -> PyResult<Bound<'py, PyAny>> {
    let len = (shape.0 * shape.1 * shape.2) as isize;
    array.get_item(PySlice::new(array.py(), 0, len, 1))?.call_method1("reshape", (shape,))
}

fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind))?;
    Ok(module.bind(py))
}

/// One field of a sample: an array if the field has a type, else a memoryview; None if the sample does not have the
/// field. `views` makes the memoryviews of this field.
pub(crate) fn shown<'py>(
    held: &Held,
    views: &Views<'py>,
    index: usize,
    field: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let py = views.py();
    let Some(bytes) = held.field(index, field).or_raise(py)? else {
        return Ok(views.none());
    };
    let Some(kind) = held.fields.kind(field) else { return views.view(index) };
    let shape = shape_of(held, index, kind, bytes).or_raise(py)?;
    over(py, kind.element(), &shape, bytes, || views.view(index))
}

/// A field of all samples as one array [B, ...].
///
/// # Errors
/// `NoArray`: a sample lacks the field, or their shapes differ.
pub(crate) fn stacked<'py>(
    py: Python<'py>,
    held: &Held,
    field: usize,
    kind: &FieldType,
) -> PyResult<Bound<'py, PyAny>> {
    let (one, shape) = stack(py, held, field, kind)?;
    let bytes = one.whole().or_raise(py)?;
    over(py, kind.element(), &shape, bytes, || {
        Ok(Bound::new(py, Memory::whole(Source::Batch(Arc::clone(&one))))?.into_any())
    })
}

/// The same samples showing this field only, and the shape [B, ...] of the array of all.
///
/// # Errors
/// Those of [`stacked`].
pub(crate) fn stack(
    py: Python<'_>,
    held: &Held,
    field: usize,
    kind: &FieldType,
) -> PyResult<(Arc<Held>, Vec<u64>)> {
    let name = held.fields.names[field].escape_ascii().to_string();
    let mut common: Option<Vec<u64>> = None;
    for index in 0..held.len() {
        let Some(bytes) = held.field(index, field).or_raise(py)? else {
            let id = held.id(index);
            let text = format!(
                "sample {id}, number {index} of the batch, has no field {name}, so there is no array of all: \
                 batch.field(\"{name}\") has None there"
            );
            return Err(raise_no_array(py, text));
        };
        let shape = shape_of(held, index, kind, bytes).or_raise(py)?;
        match &common {
            None => common = Some(shape),
            Some(first) if *first == shape => {}
            Some(first) => {
                let text = format!(
                    "samples of the shapes {first:?} and {shape:?} make no array: take batch.field(\"{name}\")"
                );
                return Err(raise_no_array(py, text));
            }
        }
    }
    let each = common.unwrap_or_else(|| {
        kind.dims().map(|dim| dim.unwrap_or(0).into()).collect() // of no samples
    });
    let shape = std::iter::once(held.len() as u64).chain(each).collect();
    Ok((Arc::new(held.showing(held.fields.only(field))), shape))
}

/// The dlfs.FieldType of a type.
pub(crate) fn described<'py>(py: Python<'py>, kind: &FieldType) -> PyResult<Bound<'py, PyAny>> {
    let shape = PyTuple::new(py, kind.dims())?;
    let class = py.import("dlfs._fields")?.getattr("FieldType")?;
    class.call1((kind.element().numpy_name(), shape))
}

/// The fields that a sample maps and that have a type: {name: dlfs.FieldType}.
pub(crate) fn mapped_types<'py>(py: Python<'py>, fields: &Fields) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for field in fields.mapped() {
        if let Some(kind) = fields.kind(field) {
            all.set_item(convert::to_str(py, &fields.names[field])?, described(py, kind)?)?;
        }
    }
    Ok(all)
}

/// The shape of a field of a sample.
pub(crate) fn shape_of(
    held: &Held,
    index: usize,
    kind: &FieldType,
    bytes: &[u8],
) -> Result<Vec<u64>> {
    let array = kind.array(bytes);
    let array = array.map_err(|error| {
        Error::from(error).sample(SampleId(held.id(index) as u64)) // the writer ignored the type
    });
    Ok(array?.shape)
}

/// An array over `bytes`, which `view` exports; over a copy if they are not aligned for the element. A number if
/// `shape` has no dimension.
fn over<'py>(
    py: Python<'py>,
    element: Element,
    shape: &[u64],
    bytes: &[u8],
    view: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let dtype = dtype(py, element)?;
    if bytes.is_empty() {
        return empty(PyTuple::new(py, shape)?, &dtype);
    }
    let is_aligned = (bytes.as_ptr() as usize).is_multiple_of(element.len_bytes() as usize);
    let memory = if is_aligned { view()? } else { PyBytes::new(py, bytes).into_any() };
    let flat = view_as(&memory, bytes.len(), &dtype)?;
    match shape {
        [] => flat.get_item(0),
        [_] => Ok(flat),
        _ => flat.call_method1("reshape", (PyTuple::new(py, shape)?,)),
    }
}

/// The dtype of an element. numpy has none for bf16: that of `ml_dtypes` if it is installed, else uint16.
fn dtype(py: Python<'_>, element: Element) -> PyResult<Bound<'_, PyAny>> {
    match element {
        Element::Bf16 => Ok(py.import("dlfs._fields")?.getattr("BF16")?),
        _ => Ok(py.import("numpy")?.getattr("dtype")?.call1((element.numpy_name(),))?),
    }
}
