//! The native half of the Python package `dlfs`. Thin: what it does, the library does.
//!
//! `ffi.rs` exports bytes to Python and has the only `unsafe`; `batch.rs`, `dataset.rs` and
//! `loader.rs` are the classes; `index.rs`, `names.rs` and `options.rs` read what Python gives; `error.rs`
//! makes exceptions, `log.rs` hands warnings to `logging`. The Python half lies beside, in `python/dlfs`.
//! Read `dataset.rs` first.

mod batch;
mod dataset;
mod error;
mod ffi;
mod index;
mod loader;
mod log;
mod names;
mod numpy;
mod options;
mod watch;

use pyo3::prelude::*;

/// The native half of dlfs; use the package `dlfs`.
#[pymodule]
mod _dlfs {
    use std::ffi::OsString;

    use pyo3::prelude::*;

    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::dataset::{Dataset, Names};
    #[pymodule_export]
    use super::ffi::Memory;
    #[pymodule_export]
    use super::loader::{Epoch, Loader, Sampler};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("NO_LABEL", super::batch::NO_LABEL)
    }

    /// Hands what the library has warned of to `logging`. Every call does that too.
    #[pyfunction]
    fn flush_log(py: Python<'_>) -> PyResult<()> {
        super::log::hand_over(py)
    }

    /// Runs the command `dlfs` with `arguments`, the program's name first; returns its exit code.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| dlfs_cli::main(arguments))
    }
}
