//! In place of the encoder of texts, in a build without it: an error that names the feature.

use std::path::Path;
use std::sync::Arc;

use super::RowFile;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldType;

/// An encoder of texts, which this build does not have.
pub enum Encoder {}

impl Encoder {
    pub(crate) fn new(path: &Path, _: &[u8], _: u32, _: usize) -> Result<Encoder> {
        let error = Error::new(ErrorKind::Unsupported, "this build does not encode texts");
        let hint = "build with --features tokens; released packages and the Python package have it";
        Err(error.path(path).hint(hint))
    }

    pub(super) fn encoding(self: &Arc<Encoder>, _: RowFile, _: &FieldType) -> RowFile {
        match **self {}
    }
}
