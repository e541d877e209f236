//! The names of a plan, read piece by piece.

use crate::import::many::source_plan::SourcePlan;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FormatError;
use dlfs_format::format::cursor::Cursor;
use dlfs_format::format::error::enough;

/// The names of a plan, in order from the first.
pub(super) struct PlannedNames<'a> {
    plan: &'a SourcePlan,
    /// The number of the next piece.
    next_piece: usize,
    bytes: Vec<u8>,
    /// Offset of the next name in `bytes`.
    at: usize,
    /// Number of names of the piece that are not read yet.
    left: u64,
    /// Number of rows up to and including the row of `name`.
    num_read: u64,
    name: Vec<u8>,
}

impl<'a> PlannedNames<'a> {
    pub(super) fn new(plan: &'a SourcePlan) -> PlannedNames<'a> {
        let bytes = Vec::new();
        let name = Vec::new();
        PlannedNames { plan, next_piece: 0, bytes, at: 0, left: 0, num_read: 0, name }
    }

    /// The name of a row. Rows must be asked for in ascending order.
    ///
    /// # Errors
    /// `Corrupt`: the plan is damaged. Errors of reading it.
    pub(super) fn name(&mut self, row: u64) -> Result<&[u8]> {
        while self.num_read <= row {
            if self.left == 0 {
                let piece = self.plan.plan.parts.names.get(self.next_piece).ok_or_else(|| {
                    Error::new(ErrorKind::Internal, format!("the plan has no name of row {row}"))
                })?;
                (self.bytes, self.at, self.left) = (self.plan.read_piece(piece)?, 0, piece.count);
                self.next_piece += 1;
                self.name.clear();
            }
            self.advance()?;
        }
        Ok(&self.name)
    }

    fn advance(&mut self) -> std::result::Result<(), FormatError> {
        let mut from = Cursor::new("names of a plan", &self.bytes[self.at..]);
        let shared = from.number()?;
        enough("names of a plan", shared, self.name.len())?;
        self.name.truncate(shared as usize);
        self.name.extend_from_slice(from.string()?);
        self.at = self.bytes.len() - from.len();
        (self.left, self.num_read) = (self.left - 1, self.num_read + 1);
        Ok(())
    }
}
