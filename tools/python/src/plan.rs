//! `WritePlan`: the plan of an image that several processes write in parts.

use std::path::PathBuf;

use dlfs::dataset::Watch;
use dlfs::dataset::cataloging::Origin;
use dlfs::import::many::{PartPlace, PartWriter, WritePlan as Plan, WrittenPart};
use dlfs::qpair::ConnectOptions;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::dataset::addresses;
use crate::error::{OrRaise as _, detached};
use crate::options::{self, given_or};
use crate::writer::{catalog_name, committed, name_of, writer_options, written};

/// The plan that the writers of one image agree on; `dlfs.WritePlan` is its Python half.
#[pyclass(frozen, subclass, module = "dlfs._dlfs")]
pub(crate) struct WritePlan {
    pub(crate) plan: Plan,
    pub(crate) connect: ConnectOptions,
}

#[pymethods]
impl WritePlan {
    /// The plan in these bytes.
    #[new]
    fn new(bytes: &Bound<'_, PyBytes>, connection: &Bound<'_, PyDict>) -> PyResult<WritePlan> {
        let plan = Plan::from_bytes(bytes.as_bytes()).or_raise(bytes.py())?;
        Ok(WritePlan { plan, connect: options::connection(connection)? })
    }

    /// Plans an image, and prepares its namespaces; returns the plan as bytes.
    #[staticmethod]
    fn _create<'py>(
        address: &Bound<'py, PyAny>,
        how: &Bound<'py, PyDict>,
        classes: Vec<Bound<'py, PyAny>>,
        connection: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let py = address.py();
        let options = writer_options(how)?;
        let image = addresses(address)?;
        let connect = options::connection(connection)?;
        let classes = classes.iter().map(|class| Ok(name_of(class)?.as_bytes().to_vec()));
        let classes = classes.collect::<PyResult<_>>()?;
        let plan = detached(py, |_| Plan::create(&image, &options, classes, &connect))?;
        Ok(PyBytes::new(py, &plan.to_bytes()))
    }

    /// The plan as bytes.
    fn _to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.plan.to_bytes())
    }

    /// Writes the plan to a file, from which `dlfs import-parts commit` and `WritePlan.load` read it.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        detached(py, |_| self.plan.save(&path))
    }

    /// The UUID of the image to be.
    #[getter]
    fn image(&self) -> String {
        self.plan.uuid().to_string()
    }

    /// The addresses of the image: as many parts may be written at the same time.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.plan.image().iter().map(ToString::to_string).collect()
    }

    /// The parts that are complete.
    fn _complete<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let parts = detached(py, |_| self.plan.complete(&self.connect))?;
        parts.iter().map(|part| part_dict(py, part)).collect()
    }

    /// Commits the parts 0 to `count` - 1, or these; returns a dict that says what was committed.
    #[pyo3(signature = (count, parts, catalog))]
    fn _commit<'py>(
        &self,
        py: Python<'py>,
        count: Option<u64>,
        parts: Vec<Vec<u8>>,
        catalog: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let catalog = catalog.map(|name| catalog_name(py, name)).transpose()?;
        let parts = parts.iter().map(|bytes| WrittenPart::from_bytes(bytes));
        let parts = parts.collect::<Result<Vec<_>, _>>().or_raise(py)?;
        let plan = &self.plan;
        let connect = &self.connect;
        let report = detached(py, |watch| {
            let asking = &mut (watch as &mut dyn Watch);
            let report = match count {
                Some(count) => plan.commit_all(count, connect, asking)?,
                None => plan.commit(&parts, connect, asking)?,
            };
            let at = (plan.image(), report.generation);
            let origin = Origin { made_by: "import".to_owned(), ..Origin::default() };
            committed(at, connect, catalog.as_ref(), origin, "the samples are written")?;
            Ok(report)
        })?;
        written(py, &report)
    }
}

impl WritePlan {
    /// Begins the part that `which` names.
    pub(crate) fn begin(&self, which: &Bound<'_, PyDict>) -> PyResult<PartWriter> {
        let number = given_or(which, "number", 0)?;
        let is_anywhere = given_or(which, "anywhere", false)?;
        let place = if is_anywhere { PartPlace::AnyFree } else { PartPlace::Own };
        detached(which.py(), |_| PartWriter::begin(&self.plan, number, place, &self.connect))
    }
}

/// The keywords of `dlfs.WrittenPart`.
pub(crate) fn part_dict<'py>(py: Python<'py>, part: &WrittenPart) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("number", part.key)?;
    found.set_item("namespace", part.namespace)?;
    found.set_item("samples", part.samples)?;
    found.set_item("sample_bytes", part.sample_bytes)?;
    found.set_item("data", PyBytes::new(py, &part.to_bytes()))?;
    Ok(found)
}
