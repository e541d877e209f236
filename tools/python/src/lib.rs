//! The native half of the Python package `dlfs`: a thin layer over the library.
//!
//! `ffi.rs` exports bytes to Python through buffers and `dlpack.rs` through DLPack; they have the only `unsafe`.
//! `device.rs` brings batches to a device. `batch.rs`, `sample.rs`, `dataset.rs`, `loader.rs` and `shards.rs` are the
//! classes; `held.rs` is what views of a batch keep alive. `numpy.rs` makes arrays, `tokens.rs` fills them with rows
//! of tokens, `writer.rs` and `import.rs` write and change images. `convert.rs` and `options.rs` parse arguments from
//! Python, `peers.rs` those about the other ranks of a job. `error.rs` creates exceptions, checks for signals and
//! passes warnings to `logging`. The Python half is in `python/dlfs`. Read `dataset.rs` first.
//!
//! It does not need the interpreter's lock (`gil_used = false`): each class is frozen, what changes is atomic or has a
//! lock of its own. A lock that is taken while attached to the interpreter is held for no call of Python, where the
//! thread may be stopped for others that wait for the lock; any other lock is waited for detached.

mod batch;
mod convert;
mod dataset;
mod device;
mod dlpack;
mod error;
mod ffi;
mod held;
mod import;
mod loader;
mod mixture;
mod numpy;
mod options;
mod peers;
mod report;
mod sample;
mod shards;
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
    use super::dataset::{Dataset, Names};
    #[pymodule_export]
    use super::device::{DeviceArray, OnDevice, register, unregister};
    #[pymodule_export]
    use super::ffi::Memory;
    #[pymodule_export]
    use super::import::{WritePlan, delete, import_files, purge, save_views};
    #[pymodule_export]
    use super::loader::{Epoch, Loader, Sampler};
    #[pymodule_export]
    use super::mixture::Mixture;
    #[pymodule_export]
    use super::report::{MetricsServer, Report, metrics_text, metrics_values};
    #[pymodule_export]
    use super::sample::{Sample, SampleFile};
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
