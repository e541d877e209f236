//! Parses options from Python keywords.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlfs::ErrorKind;
use dlfs::auth::Derivation;
use dlfs::buf::SealedLocation;
use dlfs::cache::Environment;
use dlfs::dataset::options::{DEFAULT_EXCHANGE, DEFAULT_GROUP, MAX_QUEUE_PAIRS};
use dlfs::dataset::{OnError, Options, ViewSource};
use dlfs::directory::Directory;
use dlfs::keys::{secret_of, set_tls_key};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Sharding, Tail};
use dlfs::prefetch::{self, LoaderOptions};
use dlfs::qpair::Direct;
use dlfs::tier::{Policy, Stop};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::dataset::addresses;
use crate::error::{raise, raise_invalid};
use crate::{budget, peers, store, weights};

/// The options of `dlfs.open` beside the address.
pub(crate) fn open_options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let py = given.py();
    let mut options = Options::default();
    // First, so that explicit options override the file.
    if let Some(file) = given.get_item("tiers_file")?.filter(|file| !file.is_none()) {
        let file: PathBuf = file.extract()?;
        let found = Environment::read(file).and_then(|environment| environment.options());
        options.open.tiers = found.map_err(|error| raise(py, &error))?;
    }
    for (key, value) in given {
        let key: String = key.extract()?;
        if !about(&key, &value, set_open_option(&mut options, &key, &value))? {
            return Err(PyTypeError::new_err(format!("open() has no option '{key}'")));
        }
    }
    Ok(options)
}

/// Sets one option; `false` if there is no such option.
fn set_open_option(options: &mut Options, key: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = value.py();
    let connect = &mut options.open.connect;
    let read = &mut options.read;
    match key {
        "window_bytes" => read.window_bytes = value.extract()?,
        "queue_pairs" => read.queue_pairs = queue_pairs(key, value)?,
        "deadline" => read.deadline = seconds(key, value)?,
        "busy_poll" => read.busy_poll = value.extract()?,
        "connect_timeout" => connect.set_connect_timeout(seconds(key, value)?),
        "io_timeout" => connect.io_timeout = seconds(key, value)?,
        "keep_alive_tmo" => connect.keep_alive_tmo = seconds(key, value)?,
        "ctrl_loss_tmo" => connect.ctrl_loss_tmo = seconds(key, value)?,
        "nr_io_queues" => connect.nr_io_queues = at_least_one(key, value)?,
        "queue_size" => connect.queue_size = at_least(2, key, value)?,
        "hdr_digest" => connect.hdr_digest = value.extract()?,
        "data_digest" => connect.data_digest = value.extract()?,
        "hostnqn" if value.is_none() => {}
        "hostnqn" => {
            let text: String = value.extract()?;
            let nqn = text.parse().map_err(|e| raise_invalid(py, format!("hostnqn: {e}")))?;
            connect.hostnqn = Some(nqn);
        }
        "dhchap_secret" | "dhchap_ctrl_secret" | "tls_key" if value.is_none() => {}
        "dhchap_secret" => connect.dhchap_secret = Some(secret(key, value, secret_of)?),
        "dhchap_ctrl_secret" => connect.dhchap_ctrl_secret = Some(secret(key, value, secret_of)?),
        "concat" => connect.concat = value.extract()?,
        "tls_key" => secret(key, value, |text| set_tls_key(connect, text))?,
        "tls_compat" => {
            let is_compatible: bool = value.extract()?;
            connect.tls_derivation =
                if is_compatible { Derivation::Compatible } else { Derivation::Specification };
        }
        "paths" => connect.paths = addresses(value)?,
        "direct" => connect.direct = direct(value)?,
        "links" => {
            let text: String = value.extract()?;
            connect.folders.links = text.parse().map_err(|error| raise(value.py(), &error))?;
        }
        "hidden" => connect.folders.hidden = value.extract()?,
        "tiers_file" | "fields" => {} // handled by the callers
        "node" if value.is_none() => {}
        "node" => options.open.tiers.node = Some(value.extract()?),
        "tiers" => {
            for tier in value.extract::<Vec<String>>()? {
                let tier = tier.parse().map_err(|error| raise(py, &error))?;
                options.open.tiers.tiers.push(tier);
            }
        }
        "policy" if value.is_none() => {}
        "policy" => {
            let text: String = value.extract()?;
            let policy = text.parse::<Policy>();
            options.open.tiers.policy = policy.map_err(|why| raise_invalid(py, why))?;
        }
        "copy_bandwidth" if value.is_none() => {}
        "copy_bandwidth" => {
            options.open.tiers.bandwidth_bytes_per_s = Some(value.extract()?);
        }
        "stop_at_first_failure" => {
            if value.extract()? {
                options.open.tiers.stop = Stop::AtFirstFailure;
            }
        }
        // Set by `Dataset.__reduce__` for the workers of this machine.
        "shared_snapshot" => {
            let (pid, fd, dev, ino) = value.extract()?;
            options.open.shared_snapshot = Some(SealedLocation { pid, fd, dev, ino });
        }
        "view" if value.is_none() => {}
        // The bytes of a view: what `Dataset.__reduce__` gives of one that was selected.
        "view" if value.is_instance_of::<PyBytes>() => {
            options.open.view = Some(ViewSource::Bytes(value.extract()?));
        }
        "view" => options.open.view = Some(ViewSource::of_text(&value.extract::<PathBuf>()?)),
        "snapshot" if value.is_none() => {}
        "snapshot" => options.open.snapshot = Some(value.extract()?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// A key, or the path of a file with one.
fn secret<K>(
    key: &str,
    value: &Bound<'_, PyAny>,
    key_of: impl FnOnce(&str) -> dlfs::Result<K>,
) -> PyResult<K> {
    let py = value.py();
    let text_or_path: PathBuf = value.extract()?;
    key_of(&text_or_path.to_string_lossy()).map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument => raise_invalid(py, format!("{key}: {}", error.report())),
        _ => raise(py, &error),
    })
}

/// The options of `dlfs.Loader` and the samplers beside the data set.
/// `directory` is that of the data set, and `None` for a mixture.
pub(crate) fn loader_options(
    given: &Bound<'_, PyDict>,
    directory: Option<&Directory>,
) -> PyResult<LoaderOptions> {
    let py = given.py();
    let order = OrderSpec { kind: OrderKind::Global, seed: 0 };
    let mut options = LoaderOptions::new(order, 1, EPOCHS);
    options.verify_kept = true; // views of a batch can be made writable
    for (key, value) in given {
        let key: String = key.extract()?;
        if !about(&key, &value, set_loader_option(&mut options, &key, &value))? {
            return Err(PyTypeError::new_err(format!("a loader has no option '{key}'")));
        }
    }
    let drop_last = given_or(given, "drop_last", false)?;
    let pad = given_or(given, "pad", false)?;
    options.drop_short = drop_last;
    options.tail = match (drop_last, pad) {
        (true, true) => {
            let text = "drop_last and pad: an epoch's end is either left out or filled up";
            return Err(raise_invalid(py, text.into()));
        }
        (true, false) => Tail::DropLast,
        (false, true) => Tail::Pad,
        (false, false) => Tail::Keep,
    };
    check_order_options(given, &given_or(given, "order", "grouped".to_owned())?)?;
    match weights::weights(given, directory)? {
        Some(weights) => options = options.weighted(weights),
        None => options.order.kind = order_kind(given, options.world_size)?,
    }
    let options = budget::apply(given, options)?;
    let order = options.order.started(options.world_size);
    order.check().map_err(|error| raise(py, &error.into()))?;
    Ok(options)
}

/// Sets one option; `false` if there is no such option. Options that depend on each other are read
/// by the caller.
fn set_loader_option(
    options: &mut LoaderOptions,
    key: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    match key {
        "order" | "lanes" | "group" | "by" | "exchange" | "drop_last" | "pad" => {}
        key if weights::KEYWORDS.contains(&key) => {} // read with the order
        key if budget::KEYWORDS.contains(&key) => {}  // read together
        "batch_size" if value.is_none() => {}
        "fields" => {} // handled by the loader
        "batch_size" => options.batch_size = at_least_one(key, value)?,
        "seed" => options.order.seed = value.extract()?,
        "epochs" if value.is_none() => {}
        "epochs" => options.epochs = 0..at_least_one::<u64>(key, value)?.min(EPOCHS),
        "rank" => options.rank = value.extract()?,
        "world_size" => options.world_size = at_least_one(key, value)?,
        "prefetch_bytes" if value.is_none() => {}
        "prefetch_bytes" => options.window_bytes = at_least_one(key, value)?,
        "shard" if value.is_none() => {}
        "shard" => options.sharding = sharding(value)?,
        "batching" if value.is_none() => {}
        "batching" => options.batching = Some(loader_batching(value)?),
        "contiguous" => options.copy_threads = value.extract::<bool>()?.then_some(1),
        "on_error" => options.on_error = loader_on_error(value)?,
        "deadline" => options.deadline = seconds(key, value)?,
        "queue_pairs" => options.queue_pairs = queue_pairs(key, value)?,
        "busy_poll" => options.busy_poll = value.extract()?,
        "trace" => options.trace = value.extract::<bool>()?.then(Arc::default),
        key if peers::KEYWORDS.contains(&key) => {} // handled by the data set
        key if store::KEYWORDS.contains(&key) => {} // handled by the loader
        _ => return Ok(false),
    }
    Ok(true)
}

/// The result of parsing `value`, or an error that names the option: the interpreter's own names
/// only the type.
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

fn order_kind(given: &Bound<'_, PyDict>, world_size: u32) -> PyResult<OrderKind> {
    let py = given.py();
    let order = given_or(given, "order", "grouped".to_owned())?;
    match &*order {
        "grouped" => Ok(OrderKind::Grouped {
            lanes: lanes(given)?,
            group: given_or(given, "group", DEFAULT_GROUP)?,
        }),
        "global" => Ok(OrderKind::Global),
        "sequential" => Ok(OrderKind::Sequential {
            by: match &*given_or(given, "by", "id".to_owned())? {
                "id" => SequentialBy::Id,
                "slot" => SequentialBy::Slot,
                by => {
                    return Err(raise_invalid(py, format!("by is \"id\" or \"slot\", not {by:?}")));
                }
            },
        }),
        "local" => Ok(OrderKind::Local { world_size }),
        "partial" => {
            let q = given_or(given, "exchange", DEFAULT_EXCHANGE)?;
            Ok(OrderKind::Partial { q, world_size })
        }
        other => {
            let text = format!(
                "order is \"grouped\", \"global\", \"sequential\", \"local\", \"partial\" or \"weighted\", \
                 not {other:?}"
            );
            Err(raise_invalid(py, text))
        }
    }
}

/// Checks that options of one order are not given for another.
fn check_order_options(given: &Bound<'_, PyDict>, order: &str) -> PyResult<()> {
    let weighted = weights::KEYWORDS.map(|option| (option, "weighted"));
    for (option, fits) in
        [("lanes", "grouped"), ("group", "grouped"), ("by", "sequential"), ("exchange", "partial")]
            .into_iter()
            .chain(weighted)
    {
        let is_given = given.get_item(option)?.is_some_and(|value| !value.is_none());
        if is_given && order != fits {
            let text = format!("{option} goes with order=\"{fits}\" only, not \"{order}\"");
            return Err(raise_invalid(given.py(), text));
        }
    }
    Ok(())
}

/// The number of lanes; 0 if absent: the library then uses as many as suit the run.
fn lanes(given: &Bound<'_, PyDict>) -> PyResult<u32> {
    match given.get_item("lanes")? {
        Some(lanes) if !lanes.is_none() => about("lanes", &lanes, at_least_one("lanes", &lanes)),
        _ => Ok(0),
    }
}

fn sharding(value: &Bound<'_, PyAny>) -> PyResult<Sharding> {
    match &*value.extract::<String>()? {
        "strided" => Ok(Sharding::Strided),
        "aligned" => Ok(Sharding::Aligned),
        "local" => Ok(Sharding::Local),
        other => {
            let text = format!("shard is \"strided\", \"aligned\" or \"local\", not {other:?}");
            Err(raise_invalid(value.py(), text))
        }
    }
}

fn loader_batching(value: &Bound<'_, PyAny>) -> PyResult<prefetch::Batching> {
    match &*value.extract::<String>()? {
        "chunk" => Ok(prefetch::Batching::Chunk),
        "sample" => Ok(prefetch::Batching::Sample),
        "none" => Ok(prefetch::Batching::None),
        other => {
            let text = format!("batching is \"chunk\", \"sample\" or \"none\", not {other:?}");
            Err(raise_invalid(value.py(), text))
        }
    }
}

fn loader_on_error(value: &Bound<'_, PyAny>) -> PyResult<OnError> {
    match &*value.extract::<String>()? {
        "raise" => Ok(OnError::Raise),
        "skip" => Ok(OnError::Skip),
        other => {
            let text = format!("on_error of a loader is \"raise\" or \"skip\", not {other:?}");
            Err(raise_invalid(value.py(), text))
        }
    }
}

fn direct(value: &Bound<'_, PyAny>) -> PyResult<Direct> {
    match &*value.extract::<String>()? {
        "auto" => Ok(Direct::Auto),
        "on" => Ok(Direct::On),
        "off" => Ok(Direct::Off),
        other => {
            let text = format!("direct is \"auto\", \"on\" or \"off\", not {other:?}");
            Err(raise_invalid(value.py(), text))
        }
    }
}

pub(crate) fn seconds(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = value.extract()?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|error| {
        raise_invalid(value.py(), format!("{key} is a time in seconds, not {seconds}: {error}"))
    })?;
    Ok(time.min(A_LIFE))
}

/// Parses a number that must not be zero; the error names the option.
pub(crate) fn at_least_one<T: TryFrom<i64>>(key: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    at_least(1, key, value)
}

fn at_least<T: TryFrom<i64>>(least: i64, key: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    let number: i64 = value.extract()?;
    let text = match T::try_from(number) {
        Ok(fits) if number >= least => return Ok(fits),
        _ if number < least => format!("{key} is at least {least}, not {number}"),
        _ => format!("{key}: {number} is out of range"),
    };
    Err(raise_invalid(value.py(), text))
}

/// Parses a number of queue pairs, with a limit: each is opened before the first read.
fn queue_pairs(key: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let number = at_least_one(key, value)?;
    if number > MAX_QUEUE_PAIRS {
        let text = format!("{key} is at most {MAX_QUEUE_PAIRS} a namespace, not {number}");
        return Err(raise_invalid(value.py(), text));
    }
    Ok(number)
}

/// The most epochs that a loader can count.
const EPOCHS: u64 = (1 << 24) - 1;

/// Longer than any wait, and short enough to add to any clock.
const A_LIFE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
