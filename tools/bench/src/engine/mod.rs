//! I/O engines: the library's queue pairs, and `null`, which measures this tool.

mod consent;
mod null;
pub(crate) mod target;

pub(crate) use target::{Target, Targets};
