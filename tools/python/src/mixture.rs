//! `Mixture`: data sets that a loader reads as one sequence.

use std::str::FromStr;
use std::sync::Arc;

use dlfs::dataset::{self, OnError};
use dlfs::order::mixture::{self, Batching, Count, Part, Phase};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::units::{Epoch, SampleId};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::batch::Batch;
use crate::dataset::Dataset;
use crate::error::{OrRaise as _, detached, raise_invalid};
use crate::fields::Fields;

/// Data sets, and the part of each. Parts and phases count samples. The subclass dlfs.Mixture documents the class.
#[pyclass(frozen, subclass, module = "dlfs._dlfs", name = "Mixture")]
pub(crate) struct Mixture {
    datasets: Vec<Py<Dataset>>,
    parts: Vec<Part>,
    epoch_size: Option<u64>,
    batching: Batching,
    phases: Vec<Phase>,
}

#[pymethods]
impl Mixture {
    #[new]
    fn new(
        py: Python<'_>,
        datasets: Vec<Py<Dataset>>,
        parts: Vec<String>,
        epoch_size: Option<u64>,
        batching: &str,
        phases: Vec<String>,
        count: &str,
    ) -> PyResult<Mixture> {
        let parts = parts.iter().map(|text| parsed(py, text)).collect::<PyResult<_>>()?;
        let batching = parsed(py, batching)?;
        let phases = phases.iter().map(|text| parsed(py, text)).collect::<PyResult<_>>()?;
        let made = Mixture { datasets, parts, epoch_size, batching, phases };
        let counted = made.counting(py, &parsed(py, count)?)?; // raises errors here, not in a loader
        let order = OrderSpec { kind: OrderKind::Global, seed: 0 }; // parts and phases do not depend on it
        let spec = counted.spec(&LoaderOptions::new(order, 1, 1));
        let parts = spec.sources.iter().map(|source| source.part).collect();
        Ok(Mixture { parts, phases: spec.phases, ..made })
    }

    /// Samples of an epoch.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.sequence(py)?.epoch_size() as usize)
    }

    /// How many samples of each data set an epoch has.
    #[pyo3(signature = (epoch=0))]
    fn counts(&self, py: Python<'_>, epoch: u64) -> PyResult<Vec<u64>> {
        Ok(self.sequence(py)?.counts(Epoch(epoch)))
    }

    /// The data sets: `Batch.sources` has their numbers, from 0.
    #[getter]
    fn datasets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.datasets)
    }

    /// Samples by their keys, source << 40 | id, as a Batch with sources.
    #[pyo3(signature = (keys, on_error="raise", fields=None))]
    fn _read<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<u64>,
        on_error: &str,
        fields: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Batch>> {
        let shown = self.fields_shown(py, fields)?;
        let on_error = if on_error == "skip" { OnError::Skip } else { OnError::Raise };
        let mixture = self.mixture(py)?;
        let ids: Vec<(u32, SampleId)> = keys.iter().map(|&key| of_key(key)).collect();
        let read = detached(py, |watch| mixture.read(&ids, on_error, watch))?;
        Batch::new(py, read.batch, shown, Vec::new())
    }
}

impl Mixture {
    /// The library's mixture of the data sets, which must be open.
    pub(crate) fn mixture(&self, py: Python<'_>) -> PyResult<dataset::Mixture> {
        self.counting(py, &Count::Samples)
    }

    /// The library's mixture, whose parts and phases count in the unit `count`.
    fn counting(&self, py: Python<'_>, count: &Count) -> PyResult<dataset::Mixture> {
        let opened = self.datasets.iter().zip(&self.parts);
        let opened = opened.map(|(dataset, part)| Ok((dataset.get().dataset(py)?, *part)));
        let opened = opened.collect::<PyResult<Vec<_>>>()?;
        let phases = self.phases.clone();
        dataset::Mixture::counting(count, opened, self.epoch_size, self.batching, phases)
            .or_raise(py)
    }

    /// The sequence of the mixture, without reading samples.
    fn sequence(&self, py: Python<'_>) -> PyResult<mixture::Mixture> {
        self.mixture(py)?.sequence().or_raise(py)
    }

    /// The fields that samples show with the option `fields`. They must be the same in all data sets.
    pub(crate) fn fields_shown(
        &self,
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arc<Fields>> {
        let each = self.datasets.iter().map(|dataset| dataset.get().fields_shown(given));
        let each = each.collect::<PyResult<Vec<_>>>()?;
        let first = &each[0];
        let differs = |what: &str, of: &dyn Fn(&Fields) -> bool| {
            let at = each.iter().position(|fields| of(fields))?;
            Some(raise_invalid(
                py,
                format!(
                    "the samples of data sets 0 and {at} have other {what}: a mixture's samples have the same"
                ),
            ))
        };
        let names = differs("fields", &|fields| fields.names != first.names);
        let differing =
            names.or_else(|| differs("types of fields", &|fields| fields.types != first.types));
        differing.map_or_else(|| Ok(Arc::clone(first)), Err)
    }
}

/// Parses a part, a batching or a phase from its text.
fn parsed<T: FromStr<Err = dlfs::Error>>(py: Python<'_>, text: &str) -> PyResult<T> {
    text.parse().or_raise(py)
}

/// The key of a sample of a source: one number for both.
pub(crate) fn key_of((source, id): (u32, SampleId)) -> u64 {
    u64::from(source) << ID_BITS | id.0
}

/// The source and the id of a key.
fn of_key(key: u64) -> (u32, SampleId) {
    ((key >> ID_BITS) as u32, SampleId(key & ((1 << ID_BITS) - 1)))
}

/// Bits of a key for the id: a data set has at most 2^40 samples.
const ID_BITS: u32 = 40;
