//! `Report`: the report on what a loader has delivered and waited for, as a page and as data.

use std::path::{Path, PathBuf};

use dlfs::dataset::save_page;
use pyo3::prelude::*;

use crate::convert::json;
use crate::error::OrRaise as _;

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
