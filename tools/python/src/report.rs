//! `Report`: what a loader has waited for, as a page, as data, and as events; and the metrics of this process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dlfs::dataset::save_page;
use dlfs::exporter::{self, Exporter};
use dlfs::metrics::{Snapshot, Value};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::{OrRaise as _, detached, raise_invalid};
use crate::loader::json;

/// The report on what a loader has delivered and waited for, from Loader.report().
///
/// In a notebook it shows itself. str(report) is the page, one HTML document without scripts that needs no other file.
#[pyclass(frozen, module = "dlfs._dlfs")]
pub(crate) struct Report {
    html: String,
    json: String,
    advice: Vec<String>,
}

#[pymethods]
impl Report {
    /// The figures as a dict: total, epochs, buckets (the run in the course of time), wait_s, reads, tiers, settings
    /// and advice. Times are in seconds, lengths in bytes.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json(py)?.call_method1("loads", (&self.json,))
    }

    /// Advice on what to try next: up to three sentences, each with its figure, the most useful first.
    #[getter]
    fn advice(&self) -> Vec<String> {
        self.advice.clone()
    }

    /// Writes the page to `path`. A file there is replaced in one step: after an error, such as a full disk, it is as
    /// it was.
    pub(crate) fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        save(py, &path, &self.html)
    }

    fn __str__(&self) -> &str {
        &self.html
    }

    fn __repr__(&self) -> String {
        format!("<dlfs.Report: {}>", self.advice.first().map_or("", String::as_str))
    }

    /// The page in a frame, so that its style and the notebook's do not affect each other.
    fn _repr_html_(&self) -> String {
        let page = self.html.replace('&', "&amp;").replace('"', "&quot;");
        format!(
            "<iframe srcdoc=\"{page}\" style=\"width:100%;height:900px;border:0\" sandbox></iframe>"
        )
    }
}

/// Writes a page, or the events of a run, to `path`.
pub(crate) fn save(py: Python<'_>, path: &Path, text: &str) -> PyResult<()> {
    py.detach(|| save_page(path, text)).or_raise(py)
}

impl Report {
    /// Makes the report, detached from the interpreter: the page has thousands of figures.
    pub(crate) fn of(py: Python<'_>, loader: &dlfs::dataset::Loader) -> Report {
        py.detach(|| {
            let report = loader.report();
            Report { html: report.to_html(), json: report.to_json(), advice: report.advice() }
        })
    }
}

/// The metrics of this process as OpenMetrics; see `dlfs.metrics.text`.
#[pyfunction]
pub(crate) fn metrics_text(py: Python<'_>) -> String {
    // Without the interpreter: a loader that is waited for holds its lock for up to 100 ms.
    py.detach(|| exporter::snapshot().to_openmetrics())
}

/// The metrics of this process by series; see `dlfs.metrics.values`.
#[pyfunction]
pub(crate) fn metrics_values(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    to_dict(py, &py.detach(exporter::snapshot))
}

/// The values of `snapshot` by the name of their series, as in the text: `name{label="value"}`.
pub(crate) fn to_dict<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (series, value) in snapshot.by_series() {
        match value {
            Value::Count(count) => dict.set_item(series, count)?,
            Value::Seconds(seconds) => dict.set_item(series, seconds)?,
            // The count and the sum of a histogram are series of their own.
            Value::Histogram(_) => {}
        }
    }
    Ok(dict)
}

/// Serves the metrics of this process over HTTP; see `dlfs.metrics.serve`.
#[pyclass(frozen, module = "dlfs._dlfs")]
pub(crate) struct MetricsServer {
    address: SocketAddr,
    exporter: Mutex<Option<Exporter>>,
}

#[pymethods]
impl MetricsServer {
    #[new]
    fn new(py: Python<'_>, address: &str) -> PyResult<MetricsServer> {
        let parsed = address.parse::<SocketAddr>().map_err(|_| {
            raise_invalid(py, format!("{address:?} is not IP:PORT, such as \"127.0.0.1:9410\""))
        })?;
        let exporter = detached(py, |_| Exporter::serve(parsed))?;
        Ok(MetricsServer { address: exporter.local_addr(), exporter: Mutex::new(Some(exporter)) })
    }

    /// The address that it listens on, "IP:PORT".
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// The address of the metrics' page.
    #[getter]
    fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Ends it. Leaving a `with` does the same.
    fn close(&self, py: Python<'_>) {
        let exporter = self.exporter.lock().take();
        py.detach(|| drop(exporter));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}
