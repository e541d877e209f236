//! A sample of several fields: the element of a batch if no field was chosen.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::batch::parts;
use crate::error::raise;
use crate::ffi::{Memory, Source, Views};
use crate::held::Held;
use crate::names;

/// A sample of several fields, all of them read.
///
/// sample.field("jpg") is one of them, as a read-only memoryview. A sample is not a buffer itself:
/// using it as one raises InvalidArgument, since the field is ambiguous.
///
/// >>> label = int(bytes(sample.field("cls")))
#[pyclass(frozen, extends = Memory, module = "dlfs", name = "Sample")]
pub(crate) struct Sample {
    held: Arc<Held>,
    index: usize,
}

impl Sample {
    /// The sample at `index`, which must be less than the length.
    pub(crate) fn of<'py>(
        py: Python<'py>,
        held: &Arc<Held>,
        index: usize,
    ) -> PyResult<Bound<'py, Sample>> {
        // Exporting it raises the error that it is not a buffer.
        let memory = Memory::whole(Source::Batch(Arc::clone(held)));
        let sample = Sample { held: Arc::clone(held), index };
        Bound::new(py, PyClassInitializer::from(memory).add_subclass(sample))
    }

    fn shown<'py>(&self, py: Python<'py>, field: usize) -> PyResult<Bound<'py, PyAny>> {
        let views = Views::of(py, Source::Field(Arc::clone(&self.held), field))?;
        match self.held.field(self.index, field).map_err(|error| raise(py, &error))? {
            Some(_) => views.view(self.index),
            None => Ok(views.none()),
        }
    }
}

#[pymethods]
impl Sample {
    /// The field of this name, or of this number in `fields`: a read-only memoryview, or None if
    /// the sample does not have it.
    ///
    /// Raises NotFound if samples have no such field.
    fn field<'py>(&self, field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.shown(field.py(), self.held.fields().numbered(field)?)
    }

    /// Names of the fields.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        names::tuple(py, self.held.fields().names())
    }

    /// All fields by name: {name: memoryview or None}.
    fn asdict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (field, name) in self.held.fields().names().iter().enumerate() {
            all.set_item(names::to_str(py, name)?, self.shown(py, field)?)?;
        }
        Ok(all)
    }

    /// Id of the sample.
    #[getter]
    fn id(&self) -> i64 {
        self.held.id(self.index)
    }

    /// Its label, or None.
    #[getter]
    fn label(&self) -> Option<i64> {
        self.held.label(self.index)
    }

    /// The total length of all fields.
    #[getter]
    fn nbytes(&self) -> usize {
        self.held.fields().len_of(self.held.record(self.index).len())
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let make = py.import("dlfs._dlfs")?.getattr("sample_of")?;
        Ok((make, parts(py, &self.held, self.index..self.index + 1)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<dlfs.Sample {} with fields {}>", self.id(), self.fields(py)?.repr()?))
    }
}
