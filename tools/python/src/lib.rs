//! The native half of the Python package `dlfs`: a thin layer over the library.
//!
//! Read `dataset.rs` first. The Python half of the package is in `python/dlfs`.
//!
//! | files | what |
//! |---|---|
//! | `dataset.rs`, `mixture.rs`, `sample_file.rs` | data sets, mixtures of them, parts of samples |
//! | `loader.rs`, `sampler.rs`, `shards.rs`, `tokens.rs` | batches along an order, its ids, shards, rows of tokens |
//! | `batch.rs`, `sample.rs`, `held.rs`, `fields.rs` | a batch, its samples, and their fields |
//! | `ffi.rs`, `dlpack.rs`, `numpy.rs`, `device.rs` | bytes as buffers, through DLPack, as arrays, on a device |
//! | `writer.rs`, `plan.rs`, `import.rs`, `edit.rs` | write and change images |
//! | `peers.rs`, `store.rs` | the other ranks of a job |
//! | `keys.rs`, `convert.rs`, `options.rs` | arguments from Python, and states of runs |
//! | `report.rs`, `metrics.rs`, `error.rs` | reports and metrics; exceptions, signals and warnings |
//!
//! Only `ffi.rs` and `dlpack.rs` have `unsafe` code.
//!
//! The module does not need the interpreter's lock (`gil_used = false`): each class is frozen, and state that changes
//! is atomic or behind a lock. A lock that is taken while attached to the interpreter is not held during calls of
//! Python: the interpreter may stop the thread there for other threads that wait for the lock. Any other lock is
//! waited for while detached.

mod batch;
mod convert;
mod dataset;
mod device;
mod dlpack;
mod edit;
mod error;
mod ffi;
mod fields;
mod held;
mod import;
mod keys;
mod loader;
mod metrics;
mod mixture;
mod numpy;
mod options;
mod peers;
mod plan;
mod report;
mod sample;
mod sample_file;
mod sampler;
mod shards;
mod store;
mod tokens;
mod writer;

use pyo3::prelude::*;

/// The native half of dlfs; use the package `dlfs`.
#[pymodule(gil_used = false)]
mod _dlfs {
    use std::ffi::OsString;

    use pyo3::prelude::*;

    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::dataset::Dataset;
    #[pymodule_export]
    use super::device::{DeviceArray, OnDevice, register, unregister};
    #[pymodule_export]
    use super::edit::{delete, purge, save_views};
    #[pymodule_export]
    use super::ffi::Memory;
    #[pymodule_export]
    use super::import::import_files;
    #[pymodule_export]
    use super::keys::Names;
    #[pymodule_export]
    use super::loader::{Epoch, Loader};
    #[pymodule_export]
    use super::metrics::{MetricsServer, metrics_text, metrics_values};
    #[pymodule_export]
    use super::mixture::Mixture;
    #[pymodule_export]
    use super::plan::WritePlan;
    #[pymodule_export]
    use super::report::Report;
    #[pymodule_export]
    use super::sample::Sample;
    #[pymodule_export]
    use super::sample_file::SampleFile;
    #[pymodule_export]
    use super::sampler::Sampler;
    #[pymodule_export]
    use super::shards::ShardLoader;
    #[pymodule_export]
    use super::tokens::TokenLoader;
    #[pymodule_export]
    use super::writer::Writer;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::error::raise_internal(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("__commit__", dlfs::COMMIT)?;
        module.add("NO_LABEL", super::batch::NO_LABEL)
    }

    /// Passes the library's warnings to `logging`, as every call that may wait does.
    #[pyfunction]
    fn flush_log(py: Python<'_>) -> PyResult<()> {
        super::error::hand_over_warnings(py)
    }

    /// Unpickles a Batch, over the bytes of the records.
    #[pyfunction]
    fn batch_of<'py>(records: &Bound<'py, PyAny>, beside: &[u8]) -> PyResult<Bound<'py, Batch>> {
        Batch::of(records.py(), super::batch::held_of(records, beside)?, None)
    }

    /// Unpickles a Sample, as a copy.
    #[pyfunction]
    fn sample_of<'py>(records: &Bound<'py, PyAny>, beside: &[u8]) -> PyResult<Bound<'py, Sample>> {
        let held = super::batch::held_of(records, beside)?;
        match held.len() {
            1 => Sample::of(records.py(), &held, 0),
            _ => {
                let text = "this is not a pickled sample";
                Err(super::error::raise_invalid(records.py(), text.into()))
            }
        }
    }

    /// Runs the command `dlfs` with `arguments`, the program's name first; returns its exit code.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| dlfs_cli::main(arguments))
    }
}
