//! Options from Python's keywords: the fields of the library's structs of options are taken by their names. The option
//! `weights` of a weighted order, which these structs lack, is bytes, a dict or the str "balanced".

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use dlfs::buf::SealedLocation;
use dlfs::dataset::{Options, ViewSource};
use dlfs::directory::Directory;
use dlfs::options::{Connect, Kind, Load, Open, Order, Peers, Read, Seconds, Tiers, Tokens};
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::dataset::addresses;
use crate::error::{OrRaise as _, raise_invalid};
use crate::{convert, device};

/// The options of `dlfs.open`, apart from the address.
pub(crate) fn open_options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let py = given.py();
    let own = ["node", "fields", "shared_snapshot"].map(String::from).to_vec();
    let known =
        [names::<Connect>(), names::<Tiers>(), names::<Read>(), names::<Open>(), own].concat();
    check_names(given, "open", &known)?;
    // Addresses and paths may have bytes that are not UTF-8, which serde cannot represent: they are taken out first.
    let rest = given.copy()?;
    let apart = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        let value = rest.get_item(name)?.filter(|value| !value.is_none());
        if value.is_some() {
            rest.del_item(name)?;
        }
        Ok(value)
    };
    let path = |name: &str, value: Option<Bound<'_, PyAny>>| {
        value.map(|value| about(name, &value, value.extract::<PathBuf>())).transpose()
    };
    let paths = apart("paths")?;
    let snapshot = path("snapshot", apart("snapshot")?)?;
    let tiers_file = path("tiers_file", apart("tiers_file")?)?;
    let view = apart("view")?;
    let (view, bytes_of_view) = match view {
        Some(view) if view.is_instance_of::<PyBytes>() => (None, Some(view)),
        view => (path("view", view)?, None),
    };
    let connect: Connect = take(&rest)?;
    let tiers = Tiers { tiers_file, ..take(&rest)? };
    let read: Read = take(&rest)?;
    let index = path("index", apart("index")?)?;
    let open = Open { snapshot, view, index, ..take(&rest)? };
    let node = given_or(given, "node", None::<String>)?;
    let made = || {
        let open = open.options(connect.options(false)?, tiers.options(node)?);
        Ok(Options { open, read: read.options()? })
    };
    let mut options = made().or_raise(py)?;
    if let Some(paths) = paths {
        options.open.connect.paths = about("paths", &paths, addresses(&paths))?;
    }
    if let Some(bytes) = bytes_of_view {
        // A selected data set has the bytes of its view among its options, for `Dataset.__reduce__`.
        options.open.view = Some(ViewSource::Bytes(bytes.extract()?));
    }
    if let Some(location) = given.get_item("shared_snapshot")? {
        // Set by `Dataset.__reduce__` for the workers of this machine.
        let (pid, fd, dev, ino) = location.extract()?;
        options.open.shared_snapshot = Some(SealedLocation { pid, fd, dev, ino });
    }
    Ok(options)
}

/// The options of `dlfs.Loader` and the samplers, apart from the data set. `directory` is that of the data set; `None`
/// for a mixture and for shards.
pub(crate) fn loader_options(
    given: &Bound<'_, PyDict>,
    directory: Option<&Directory>,
) -> PyResult<LoaderOptions> {
    let py = given.py();
    let own = ["weights", "fields", "device"].map(String::from).to_vec();
    let joining = [of_peers(), names::<dlfs::options::Store>()].concat(); // read by the data set
    let known =
        [names::<Order>(), names::<Load>(), names::<Tokens>(), names::<Read>(), own, joining];
    check_names(given, "Loader", &known.concat())?;
    let order: Order = take(given)?;
    let load: Load = take(given)?;
    let tokens: Tokens = take(given)?;
    let read: Read = take(given)?;
    let mut options = load.options(&order, &tokens, &read, None).or_raise(py)?;
    options.device = device::parse(given)?.map(|(_, ordinal)| ordinal);
    options.verify_kept = true; // Python code may write into a batch, and later epochs use some of its memory
    if order.order.0 == Kind::Weighted {
        let weights = weights(given, load.draws(), directory)?;
        return Ok(options.weighted(weights));
    }
    for name in ["weights", "without_replacement", "epoch_size"] {
        let is_given = given.get_item(name)?.is_some_and(|value| !value.is_none());
        if is_given && (name != "without_replacement" || load.without_replacement) {
            let text = format!("{name} goes with order=\"weighted\" only, not \"{}\"", order.order);
            return Err(raise_invalid(py, text));
        }
    }
    Ok(options)
}

/// Removes options, if they are there.
pub(crate) fn without(
    given: &Bound<'_, PyDict>,
    keys: impl IntoIterator<Item = String>,
) -> PyResult<()> {
    for key in keys {
        if given.contains(&key)? {
            given.del_item(key)?;
        }
    }
    Ok(())
}

/// The options of a connection for writing.
pub(crate) fn connection(given: &Bound<'_, PyDict>) -> PyResult<ConnectOptions> {
    let connect = open_options(given)?.open.connect;
    Ok(ConnectOptions { writable: true, ..connect })
}

/// The names of the options for joining peers, without `node`: `dlfs.open` takes it, since it also names the tiers.
pub(crate) fn of_peers() -> Vec<String> {
    names::<Peers>().into_iter().filter(|name| name != "node").collect()
}

/// The names of the fields of a struct of options.
pub(crate) fn names<T: Serialize + Default>() -> Vec<String> {
    fields::<T>().into_iter().map(|(name, _)| name).collect()
}

/// The fields of a struct of options, with their defaults.
fn fields<T: Serialize + Default>() -> Map<String, Value> {
    match serde_json::to_value(T::default()) {
        Ok(Value::Object(fields)) => fields,
        other => unreachable!("options are a struct, not {other:?}"),
    }
}

/// Refuses keywords of the function `whose` that are not `known`.
fn check_names(given: &Bound<'_, PyDict>, whose: &str, known: &[String]) -> PyResult<()> {
    for key in given.keys() {
        let key: String = key.extract()?;
        if !known.contains(&key) {
            let text = format!("{whose}() got an unexpected keyword argument '{key}'");
            return Err(PyTypeError::new_err(text));
        }
    }
    Ok(())
}

/// Parses those of the given options that are fields of `T`; fields that are absent or None get their defaults.
pub(crate) fn take<T: Serialize + DeserializeOwned + Default>(
    given: &Bound<'_, PyDict>,
) -> PyResult<T> {
    let mut fields = fields::<T>();
    let mut taken = T::default();
    for (key, value) in given {
        let key: String = key.extract()?;
        if value.is_none() || !fields.contains_key(&key) {
            continue;
        }
        let found = about(&key, &value, to_json(&value))?;
        fields.insert(key.clone(), found);
        // One by one, so that an error names the option.
        taken = T::deserialize(Value::Object(fields.clone())).map_err(|error| {
            let text = error.to_string();
            if text.starts_with("invalid type") {
                PyTypeError::new_err(format!("{key}: {text}"))
            } else if text.starts_with("invalid value: integer") {
                raise_invalid(value.py(), format!("{key}: {value} is out of range"))
            } else {
                raise_invalid(value.py(), format!("{key}: {text}"))
            }
        })?;
    }
    Ok(taken)
}

/// A Python value as JSON, for serde. A path becomes its text.
fn to_json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = value.py();
    // Also accepts NumPy's bool.
    if let Ok(flag) = value.extract::<bool>() {
        return Ok(Value::Bool(flag));
    }
    if value.is_instance_of::<PyFloat>() {
        let number: f64 = value.extract()?;
        let json = serde_json::Number::from_f64(number).map(Value::Number);
        return json.ok_or_else(|| PyOverflowError::new_err("not finite"));
    }
    if value.is_instance_of::<PyInt>() || value.hasattr("__index__")? {
        let is_negative = value.lt(0)?;
        return Ok(if is_negative {
            value.extract::<i64>()?.into()
        } else {
            value.extract::<u64>()?.into()
        });
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let each = value.try_iter()?.map(|value| to_json(&value?));
        return each.collect::<PyResult<Vec<Value>>>().map(Value::Array);
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Value::String(value.extract()?));
    }
    if value.hasattr("__float__")? {
        return to_json(&value.call_method0("__float__")?);
    }
    let path = py.import("os")?.call_method1("fsdecode", (value,))?;
    Ok(Value::String(path.extract()?))
}

/// Adds the name of the option `key` to the error of converting its `value`: the interpreter's message names only
/// types.
pub(crate) fn about<T>(key: &str, value: &Bound<'_, PyAny>, read: PyResult<T>) -> PyResult<T> {
    read.map_err(|error| {
        let py = value.py();
        if error.is_instance_of::<PyTypeError>(py) {
            PyTypeError::new_err(format!("{key}: {}", error.value(py)))
        } else if error.is_instance_of::<PyOverflowError>(py) {
            raise_invalid(py, format!("{key}: {value} is out of range"))
        } else {
            error
        }
    })
}

/// The option `key`, or `default` if it is absent or None.
pub(crate) fn given_or<'py, T>(given: &Bound<'py, PyDict>, key: &str, default: T) -> PyResult<T>
where
    T: FromPyObjectOwned<'py, Error = PyErr>,
{
    match given.get_item(key)? {
        Some(value) if !value.is_none() => about(key, &value, value.extract()),
        _ => Ok(default),
    }
}

/// Parses a time in seconds, the option `key`.
pub(crate) fn seconds(key: &str, value: &Bound<'_, PyAny>) -> PyResult<std::time::Duration> {
    let seconds: f64 = value.extract()?;
    let time = Seconds::try_from(seconds);
    time.map(|time| time.0).map_err(|why| raise_invalid(value.py(), format!("{key}: {why}")))
}

/// The weights that the options give the samples of `directory`.
///
/// # Errors
/// `InvalidArgument`: there is no directory, as of a mixture; no weights, or weights that cannot be drawn by.
/// `TypeError`: `weights` is neither bytes nor a dict nor a str.
fn weights(
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
            let live = 0..directory.num_live();
            let labels = live.map(|rank| directory.label(directory.id_of_live(rank)));
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
                let bytes = convert::to_bytes(name)?; // a class may be named by other bytes than UTF-8
                let at = directory.classes().iter().position(|class| *class == bytes);
                let at = at.ok_or_else(|| {
                    let name = bytes.escape_ascii();
                    raise_invalid(py, format!("weights: the data set has no class \"{name}\""))
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
