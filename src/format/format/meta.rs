//! Valid names and labels of a sample.

use crate::format::FormatError;
use crate::format::columns::RowValues;
use crate::format::error::{at_most, out_of_range};
use crate::format::geometry::MAX_NAME_BYTES;
use dlfs_base::units::SampleId;

/// The metadata of a sample in a chunk's table, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleMeta<'a> {
    /// Its id.
    pub id: SampleId,
    /// Its name: up to 4,096 bytes, none of them NUL.
    pub name: &'a [u8],
    /// Its label, if it has one: any number but `i64::MIN`, which the directory uses for "no label".
    pub label: Option<i64>,
    /// Its values in the typed columns.
    pub values: RowValues<'a>,
}

impl SampleMeta<'_> {
    /// An error unless name and label are valid.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), FormatError> {
        check_name(self.name)?;
        check_label(self.label)?;
        self.values.check()
    }
}

/// An error if a label is the reserved "no label" value.
#[doc(hidden)]
pub fn check_label(label: Option<i64>) -> Result<(), FormatError> {
    if label == Some(i64::MIN) {
        return Err(out_of_range("label", i64::MIN as u64, i64::MAX as u64));
    }
    Ok(())
}

/// An error unless `name` is a valid sample name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FormatError> {
    at_most("length of a name", name.len() as u64, MAX_NAME_BYTES as u64)?;
    if name.contains(&0) {
        return Err(out_of_range("byte of a name", 0u64, 255));
    }
    Ok(())
}
