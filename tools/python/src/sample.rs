//! `Sample`: a sample of several fields, which is the element of a batch if no field was chosen.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::batch::{mapped_names, pickled};
use crate::error::OrRaise as _;
use crate::ffi::{Memory, Source, Views};
use crate::held::Held;
use crate::{convert, numpy};

/// A sample of several fields, all of them read: a read-only mapping of names to fields.
///
/// sample["jpg"] is one of them, as a read-only memoryview; None if this sample lacks the field. A field
/// with a type is a read-only array instead, or a number if its shape is (). A sample is not a buffer
/// itself: using it as one raises InvalidArgument, since the field is ambiguous.
///
/// >>> label = int(bytes(sample["cls"]))
#[pyclass(frozen, extends = Memory, mapping, module = "dlfs", name = "Sample")]
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
        numpy::shown(&self.held, &views, self.index, field)
    }
}

#[pymethods]
impl Sample {
    /// The field of this name, or of this number in `fields`: a read-only memoryview, an array if the field has
    /// a type, or None if the sample does not have it.
    ///
    /// Raises NotFound if samples have no such field.
    fn field<'py>(&self, field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.shown(field.py(), self.held.fields.numbered(field)?)
    }

    /// Names of the fields that the sample maps.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        mapped_names(py, &self.held.fields)
    }

    fn __len__(&self) -> usize {
        self.held.fields.mapped().len()
    }

    /// sample[name]: a read-only memoryview, an array if the field has a type, or None if the sample lacks it. Raises
    /// NameNotFound, a KeyError, which names the fields that there are.
    fn __getitem__<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = name.py();
        self.shown(py, self.held.fields.mapped_as(py, &convert::to_bytes(name)?)?)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.fields(py)?.try_iter()?.into_any())
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(convert::is_name(name)
            && self.held.fields.mapped_as(name.py(), &convert::to_bytes(name)?).is_ok())
    }

    /// Names of the fields, as `fields`.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.fields(py)
    }

    /// The fields in the order of their names.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let fields = self.held.fields.mapped();
        let values = fields.into_iter().map(|field| self.shown(py, field));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// Pairs of name and field.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        Ok(self.asdict(py)?.items())
    }

    /// sample[name], or `default` if samples have no such field.
    #[pyo3(signature = (name, default = None))]
    fn get<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.__contains__(name)? {
            self.__getitem__(name)
        } else {
            Ok(default.unwrap_or_else(|| name.py().None().into_bound(name.py())))
        }
    }

    /// The fields that have a type, of those that the sample maps: {name: dlfs.FieldType}.
    #[getter]
    fn field_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        numpy::mapped_types(py, &self.held.fields)
    }

    /// All fields by name: {name: memoryview, array or None}.
    fn asdict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        let fields = &self.held.fields;
        for field in fields.mapped() {
            all.set_item(convert::to_str(py, &fields.names[field])?, self.shown(py, field)?)?;
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

    /// The total length of the fields.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.held.len_bytes(self.index).or_raise(py)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let make = py.import("dlfs._dlfs")?.getattr("sample_of")?;
        Ok((make, pickled(py, &self.held, self.index..self.index + 1)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<dlfs.Sample {} with fields {}>", self.id(), self.fields(py)?.repr()?))
    }
}
