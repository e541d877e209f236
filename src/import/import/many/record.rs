//! The records after the chunks of written parts. A part is complete once the
//! mark of its namespace points to its record; each record points to the previous one.

use crate::import::many::write_plan::WritePlan;
use crate::import::mark::{Lane, State};
use crate::import::media::Channel;
use crate::import::state::BLOCK_BYTES;
use crate::import::written_part::{WrittenPart, parse};
use dlfs_base::{Error, ErrorKind, Result};

impl WritePlan {
    /// Adds a part, whose chunks are written, to a lane. The part is complete afterwards.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn append(&self, record: &WrittenPart, channel: &mut Channel) -> Result<()> {
        let layout = &self.journal().layout;
        let offset = layout.offset_of(record.record_cell)?;
        channel.media().grow(record.namespace, offset + layout.cell_bytes())?;
        channel.write_bytes(record.namespace, offset, &record.to_bytes())?;
        let last_record = record.record_cell;
        let lane = Lane { last_record, end_cell: last_record + 1 };
        self.0.mark_of(record.namespace, State::Written(lane)).write(channel)
    }

    /// The records of all complete parts on a namespace, the last one first.
    ///
    /// # Errors
    /// `Corrupt`: a record is damaged. Errors of reading.
    pub(super) fn records(
        &self,
        lane: Lane,
        namespace: u16,
        channel: &mut Channel,
    ) -> Result<Vec<WrittenPart>> {
        let mut records = Vec::new();
        let Lane { last_record: mut cell, end_cell: mut end } = lane;
        while cell != 0 {
            let offset = self.journal().layout.offset_of(cell)?;
            let block = channel.read(namespace, offset, BLOCK_BYTES)?;
            let of_here = |record: &WrittenPart| {
                record.plan == self.0.id
                    && record.namespace == namespace
                    && record.record_cell == cell
                    && record.first_cell <= cell
                    && record.previous < record.first_cell
                    && cell < end
            };
            let Some(record) = parse(&block).filter(of_here) else {
                let text = format!("the record of a written part, in cell {cell}, is damaged");
                return Err(Error::new(ErrorKind::Corrupt, text)
                    .target(channel.media().namespace(namespace).address));
            };
            records.push(record);
            (cell, end) = (record.previous, record.first_cell);
        }
        Ok(records)
    }
}
