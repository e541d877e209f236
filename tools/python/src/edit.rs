//! The calls `dlfs.delete` and `dlfs.purge`, which change an image, and `dlfs.save_views`, which writes a view file.

use std::path::PathBuf;

use dlfs::address::Address;
use dlfs::dataset::{self, Watch, cataloging};
use dlfs::import::{self, EditOptions};
use dlfs::qpair::ConnectOptions;
use dlfs::view::NamedView;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::dataset::{Dataset, addresses};
use crate::error::detached;
use crate::keys::Keys;
use crate::options::{given_or, open_options, without};

/// Deletes samples; see `dlfs.delete`. Returns how many there were.
#[pyfunction]
#[pyo3(signature = (address, samples, **options))]
pub(crate) fn delete(
    address: &Bound<'_, PyAny>,
    samples: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<u64> {
    let py = address.py();
    if convert::is_name(samples) {
        // As a sequence, it would delete samples called like its letters, or with its bytes as ids.
        return Err(PyTypeError::new_err(
            "dlfs.delete takes a sequence of ids or names, not one name",
        ));
    }
    let (image, options, connect) = target(address, options)?;
    let keys = Keys::of(samples)?;
    let report = detached(py, |_| {
        let report = match &keys {
            Keys::Ids(ids) => import::delete_ids(&image, ids, &options, &connect)?,
            Keys::Names(names) => import::delete(&image, names, &options, &connect)?,
        };
        cataloging::committed(&image, report.generation, &connect, "delete");
        Ok(report)
    })?;
    Ok(report.samples)
}

/// Frees the space of deleted samples; see `dlfs.purge`. Returns the bytes that can be reused two generations later.
#[pyfunction]
#[pyo3(signature = (address, **options))]
pub(crate) fn purge(
    address: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<u64> {
    let (image, options, connect) = target(address, options)?;
    let report = detached(address.py(), |watch| {
        let report = import::purge(&image, &options, &connect, &mut (watch as &mut dyn Watch))?;
        cataloging::committed(&image, report.generation, &connect, "purge");
        Ok(report)
    })?;
    Ok(report.freed_bytes)
}

/// Saves data sets as named views in the file at `path`; see `dlfs.save_views`.
#[pyfunction]
pub(crate) fn save_views(path: PathBuf, views: &Bound<'_, PyDict>) -> PyResult<()> {
    let py = views.py();
    let named = views.iter().map(|(name, dataset)| {
        let dataset = dataset.cast::<Dataset>()?.get().dataset(py)?;
        Ok((name.extract::<String>()?, dataset))
    });
    let named = named.collect::<PyResult<Vec<_>>>()?;
    detached(py, |_| {
        let views = named.into_iter().map(|(name, dataset)| {
            Ok(NamedView { name, made: "from Python".to_owned(), view: dataset.as_view()? })
        });
        dataset::save_views(&path, views.collect::<dlfs::Result<_>>()?)
    })
}

/// The addresses of the image to edit, and the options for editing and for connecting.
fn target(
    address: &Bound<'_, PyAny>,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Vec<Address>, EditOptions, ConnectOptions)> {
    let py = address.py();
    let given = given.map_or_else(|| Ok(PyDict::new(py)), |given| given.copy())?;
    let accept_older_generation = given_or(&given, ACCEPT, false)?;
    without(&given, [ACCEPT.to_owned()])?;
    let connect = open_options(&given)?.open.connect;
    Ok((addresses(address)?, EditOptions { accept_older_generation }, connect))
}

/// The option of all edits that may lose a newer generation.
const ACCEPT: &str = "accept_older_generation";
