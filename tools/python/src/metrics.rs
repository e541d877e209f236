//! The metrics of this process, as text, as a dict, and over HTTP: see `dlfs.metrics`.

use std::net::SocketAddr;

use dlfs::exporter::{self, Exporter};
use dlfs::metrics::{Snapshot, Value};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::{detached, raise_invalid};

/// The metrics of this process as OpenMetrics; see `dlfs.metrics.text`.
#[pyfunction]
pub(crate) fn metrics_text(py: Python<'_>) -> String {
    // Detached: a loader that another thread waits for holds its lock for up to 50 ms at a time, and one that is
    // prepared while it allocates the window.
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
