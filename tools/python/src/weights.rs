//! The weights of a weighted order, from the option `weights`.

use std::collections::BTreeMap;
use std::sync::Arc;

use dlfs::directory::Directory;
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::units::SampleId;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::error::{OrRaise as _, raise_invalid};

/// The weights that the options give the samples of `directory`.
///
/// # Errors
/// `InvalidArgument`: a mixture (no directory), no weights, or weights that cannot be drawn by.
pub(crate) fn weights(
    given: &Bound<'_, PyDict>,
    draws: Draws,
    directory: Option<&Directory>,
) -> PyResult<Arc<Weights>> {
    let py = given.py();
    let Some(directory) = directory else {
        let text =
            "weights are of the samples of one data set, not of a mixture: weigh its data sets";
        return Err(raise_invalid(py, text.into()));
    };
    let Some(weights) = given.get_item("weights")?.filter(|weights| !weights.is_none()) else {
        let text = "order=\"weighted\" draws by weights: give weights, an array with one for each sample, \
                    {label: weight}, or \"balanced\"";
        return Err(raise_invalid(py, text.into()));
    };
    let made = match by_label(&weights, directory)? {
        Some(weights) => {
            let label_of = |rank| {
                let id: SampleId = directory.id_of_live(rank);
                directory.label(id)
            };
            let labels = (0..directory.num_live()).map(label_of);
            Weights::of_labels(directory.num_live(), labels, &weights, draws)
        }
        None => {
            let numbers = weights.cast::<PyBytes>()?.as_bytes().as_chunks::<8>().0;
            let numbers: Vec<f64> =
                numbers.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
            Weights::of_samples(directory.num_live(), &numbers, draws)
        }
    };
    made.map(Arc::new).or_raise(py)
}

/// The weights as weights of labels; `None` if they are the bytes of numbers, one for each sample.
fn by_label(weights: &Bound<'_, PyAny>, directory: &Directory) -> PyResult<Option<LabelWeights>> {
    let py = weights.py();
    if let Ok(text) = weights.cast::<PyString>() {
        return match text.to_cow()?.as_ref() {
            "balanced" => Ok(Some(LabelWeights::Balanced)),
            other => Err(raise_invalid(
                py,
                format!("weights is \"balanced\", {{label: weight}} or an array, not {other:?}"),
            )),
        };
    }
    let Ok(by_label) = weights.cast::<PyDict>() else {
        return if weights.is_instance_of::<PyBytes>() {
            Ok(None)
        } else {
            Err(PyTypeError::new_err("weights: not an array, a dict or a str"))
        };
    };
    let mut each = BTreeMap::new();
    for (label, weight) in by_label {
        let label = match label.cast::<PyString>() {
            Ok(name) => {
                let name = name.to_cow()?;
                let is_it = |class: &Vec<u8>| *class == name.as_bytes();
                let at = directory.classes().iter().position(is_it).ok_or_else(|| {
                    raise_invalid(py, format!("weights: the data set has no class {name:?}"))
                })?;
                at as i64
            }
            Err(_) => label.extract()?,
        };
        if each.insert(label, weight.extract()?).is_some() {
            return Err(raise_invalid(py, format!("weights: label {label} has two weights")));
        }
    }
    Ok(Some(LabelWeights::Each(each)))
}
