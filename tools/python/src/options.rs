//! Options as Python's keywords give them.

use std::path::PathBuf;
use std::time::Duration;

use dlfs::cache::Environment;
use dlfs::job::Options;
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Tail};
use dlfs::prefetch::{self, LoaderOptions};
use dlfs::qpair::Direct;
use dlfs::tier::{Policy, Stop};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::addresses;
use crate::error::{raise, raise_invalid};

/// What `dlfs.open` takes beside the address.
pub(crate) fn open_options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let py = given.py();
    let mut options = Options::default();
    // First: what is said beside the file counts more than what it says.
    if let Some(file) = given.get_item("tiers_file")?.filter(|file| !file.is_none()) {
        let file: PathBuf = file.extract()?;
        let found = Environment::read(file).and_then(|environment| environment.options());
        options.open.tiers = found.map_err(|error| raise(py, &error))?;
    }
    let (connect, read) = (&mut options.open.connect, &mut options.read);
    for (key, value) in given {
        let key: String = key.extract()?;
        match &*key {
            "window_bytes" => read.window_bytes = value.extract()?,
            "queue_pairs" => read.queue_pairs = at_least_one(&key, &value)?,
            "deadline" => read.deadline = seconds(&key, &value)?,
            "busy_poll" => read.busy_poll = value.extract()?,
            "connect_timeout" => connect.connect_timeout = seconds(&key, &value)?,
            "io_timeout" => connect.io_timeout = seconds(&key, &value)?,
            "keep_alive_tmo" => connect.keep_alive_tmo = seconds(&key, &value)?,
            "ctrl_loss_tmo" => connect.ctrl_loss_tmo = seconds(&key, &value)?,
            "nr_io_queues" => connect.nr_io_queues = at_least_one(&key, &value)?,
            "queue_size" => connect.queue_size = value.extract()?,
            "hdr_digest" => connect.hdr_digest = value.extract()?,
            "data_digest" => connect.data_digest = value.extract()?,
            "hostnqn" if value.is_none() => {}
            "hostnqn" => {
                let text: String = value.extract()?;
                let nqn = text.parse().map_err(|e| raise_invalid(py, format!("hostnqn: {e}")))?;
                connect.hostnqn = Some(nqn);
            }
            "paths" => connect.paths = addresses(&value)?,
            "direct" => connect.direct = direct(&value)?,
            "tiers_file" => {}
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
                options.open.tiers.policy = policy.map_err(|e| raise_invalid(py, e.to_string()))?;
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
            "snapshot" if value.is_none() => {}
            "snapshot" => options.open.snapshot = Some(value.extract()?),
            _ => return Err(PyTypeError::new_err(format!("open() has no option '{key}'"))),
        }
    }
    Ok(options)
}

/// What `dlfs.Loader` and the samplers take beside the data set.
pub(crate) fn loader_options(given: &Bound<'_, PyDict>) -> PyResult<LoaderOptions> {
    let py = given.py();
    let get = |key: &str| given.get_item(key).map(|value| value.filter(|value| !value.is_none()));
    let order = OrderSpec { kind: OrderKind::Global, seed: 0 };
    let mut options = LoaderOptions::new(order, 1, EPOCHS);
    let mut drop_last = false;
    let mut pad = false;
    for (key, value) in given {
        let key: String = key.extract()?;
        match &*key {
            "order" | "lanes" | "group" | "by" | "exchange" => {}
            "batch_size" => options.batch_size = at_least_one(&key, &value)?,
            "seed" => options.order.seed = value.extract()?,
            "rank" => options.rank = value.extract()?,
            "world_size" => options.world_size = at_least_one(&key, &value)?,
            "drop_last" => drop_last = value.extract()?,
            "pad" => pad = value.extract()?,
            "prefetch_bytes" => options.window_bytes = at_least_one(&key, &value)?,
            "contiguous" => options.copy_threads = value.extract::<bool>()?.then_some(1),
            "on_error" => options.on_error = loader_on_error(&value)?,
            "deadline" => options.deadline = seconds(&key, &value)?,
            "queue_pairs" => options.queue_pairs = at_least_one(&key, &value)?,
            "busy_poll" => options.busy_poll = value.extract()?,
            _ => return Err(PyTypeError::new_err(format!("a loader has no option '{key}'"))),
        }
    }
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
    options.order.kind = order_kind(py, &get, options.world_size)?;
    options.order.check().map_err(|error| raise(py, &error.into()))?;
    Ok(options)
}

fn order_kind<'py>(
    py: Python<'py>,
    get: &impl Fn(&str) -> PyResult<Option<Bound<'py, PyAny>>>,
    world_size: u32,
) -> PyResult<OrderKind> {
    let order: String = get("order")?.map_or(Ok("grouped".into()), |value| value.extract())?;
    for (option, fits) in
        [("lanes", "grouped"), ("group", "grouped"), ("by", "sequential"), ("exchange", "partial")]
    {
        if get(option)?.is_some() && order != fits {
            let text = format!("{option} goes with order=\"{fits}\" only, not \"{order}\"");
            return Err(raise_invalid(py, text));
        }
    }
    let number = |key: &str, default: u32| get(key)?.map_or(Ok(default), |value| value.extract());
    match &*order {
        "grouped" => Ok(OrderKind::Grouped {
            lanes: number("lanes", DEFAULT_LANES)?,
            group: number("group", DEFAULT_GROUP)?,
        }),
        "global" => Ok(OrderKind::Global),
        "sequential" => Ok(OrderKind::Sequential {
            by: match get("by")?.map(|by| by.extract::<String>()).transpose()?.as_deref() {
                None | Some("id") => SequentialBy::Id,
                Some("slot") => SequentialBy::Slot,
                Some(by) => {
                    return Err(raise_invalid(py, format!("by is \"id\" or \"slot\", not {by:?}")));
                }
            },
        }),
        "local" => Ok(OrderKind::Local { world_size }),
        "partial" => {
            let q = get("exchange")?.map_or(Ok(DEFAULT_EXCHANGE), |value| value.extract())?;
            Ok(OrderKind::Partial { q, world_size })
        }
        other => {
            let text = format!(
                "order is \"grouped\", \"global\", \"sequential\", \"local\" or \"partial\", not {other:?}"
            );
            Err(raise_invalid(py, text))
        }
    }
}

fn loader_on_error(value: &Bound<'_, PyAny>) -> PyResult<prefetch::OnError> {
    match &*value.extract::<String>()? {
        "raise" => Ok(prefetch::OnError::Stop),
        "skip" => Ok(prefetch::OnError::Skip),
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

fn seconds(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = value.extract()?;
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        raise_invalid(value.py(), format!("{key} is a time in seconds, not {seconds}: {error}"))
    })
}

/// A number that must not be zero: said here, where its name is known.
fn at_least_one<'a, 'py, T>(key: &str, value: &'a Bound<'py, PyAny>) -> PyResult<T>
where
    T: TryFrom<i64>,
{
    let number: i64 = value.extract()?;
    let fits = if number >= 1 { T::try_from(number).ok() } else { None };
    fits.ok_or_else(|| raise_invalid(value.py(), format!("{key} is at least 1, not {number}")))
}

/// As many as a loader can count.
const EPOCHS: u64 = (1 << 24) - 1;
const DEFAULT_LANES: u32 = 8;
const DEFAULT_GROUP: u32 = 4;
const DEFAULT_EXCHANGE: f64 = 0.1;
