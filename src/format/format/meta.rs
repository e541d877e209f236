//! Metadata of a sample, and checks of its name and label.

use crate::format::FormatError;
use crate::format::columns::RowValues;
use crate::format::error::{at_most, out_of_range};
use crate::format::geometry::MAX_NAME_BYTES;
use dlfs_base::units::SampleId;

/// The metadata of a sample in a chunk's table, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleMeta<'a> {
    /// Id of the sample.
    pub id: SampleId,
    /// Name: up to 4,096 bytes without NUL.
    pub name: &'a [u8],
    /// Label, if any: any number except `i64::MIN`, which the directory uses for "no label".
    pub label: Option<i64>,
    /// Values in the typed columns.
    pub values: RowValues<'a>,
}

impl SampleMeta<'_> {
    /// Checks name, label and values.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), FormatError> {
        check_name(self.name)?;
        check_label(self.label)?;
        self.values.check()
    }
}

/// Checks that a label is not `i64::MIN`, the reserved "no label" value.
#[doc(hidden)]
pub fn check_label(label: Option<i64>) -> Result<(), FormatError> {
    if label == Some(i64::MIN) {
        return Err(out_of_range("label", i64::MIN as u64, i64::MAX as u64));
    }
    Ok(())
}

/// Checks that `name` is a valid sample name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FormatError> {
    at_most("length of a name", name.len() as u64, MAX_NAME_BYTES as u64)?;
    if name.contains(&0) {
        return Err(out_of_range("byte of a name", 0u64, 255));
    }
    Ok(())
}
