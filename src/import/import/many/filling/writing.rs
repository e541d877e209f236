//! Fills a namespace: chunks one behind the other, and records that make them durable.

use std::time::{Duration, Instant};

use super::look::mark_of;
use super::record::{FilledChunk, record_of};
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::mark::Lane;
use crate::import::media::{Channel, Media};
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, Result};

/// A namespace that is being filled.
pub(super) struct Writing {
    channel: Channel,
    lease: Lease,
    /// The journal of the namespace.
    journal: Journal,
    rank: u32,
    /// The last record, and the cell behind it.
    lane: Lane,
    /// The next free cell.
    next_cell: u64,
    /// The chunks behind the last record.
    chunks: Vec<FilledChunk>,
    /// The end of the last mark, and the time that it took.
    marked: Instant,
    took: Duration,
}

impl Writing {
    pub(super) fn new(
        media: &Media,
        lease: Lease,
        (journal, rank): (Journal, u32),
        lane: Lane,
    ) -> Writing {
        Writing {
            channel: media.channel(),
            lease,
            journal,
            rank,
            lane,
            next_cell: lane.end_cell,
            chunks: Vec::new(),
            marked: Instant::now(),
            took: Duration::ZERO,
        }
    }

    pub(super) fn write(
        &mut self,
        chunk: FilledChunk,
        header_bytes: u64,
        data: IoBuf,
    ) -> Result<()> {
        let layout = &self.journal.layout;
        let header_cells = layout.cells_of(header_bytes);
        let cells = layout.cells_of(data.len() as u64);
        let cell = self.next_cell + header_cells;
        self.put(cell, data)?;
        self.next_cell = cell + cells;
        self.chunks.push(FilledChunk { cell, cells, header_cells, ..chunk });
        Ok(())
    }

    /// Makes the shard durable, unless a record was written just now: records take at most a fifth of the time.
    pub(super) fn end_shard(&mut self) -> Result<()> {
        if self.marked.elapsed() < 4 * self.took { Ok(()) } else { self.mark() }
    }

    /// Makes all chunks so far durable.
    pub(super) fn mark(&mut self) -> Result<()> {
        if self.chunks.is_empty() { Ok(()) } else { self.record() }
    }

    /// Writes a record, also without chunks: it says that the rank has begun.
    pub(super) fn record(&mut self) -> Result<()> {
        let begun = Instant::now();
        let record = record_of(&self.journal, self.rank, self.lane, &self.chunks);
        let last_record = self.next_cell;
        let end_cell = last_record + self.journal.layout.cells_of(record.len() as u64);
        let mut buf = IoBuf::zeroed(record.len());
        buf.copy_from_slice(&record);
        self.put(last_record, buf)?;
        let lane = Lane { last_record, end_cell };
        mark_of(&self.journal, lane).write(&mut self.channel)?;
        self.lane = lane;
        self.next_cell = end_cell;
        self.chunks.clear();
        self.marked = Instant::now();
        self.took = self.marked - begun;
        Ok(())
    }

    fn put(&mut self, cell: u64, data: IoBuf) -> Result<()> {
        self.lease.check()?;
        let namespace = self.journal.namespace;
        let offset = self.journal.layout.offset_of(cell)?;
        self.channel.media().grow(namespace, offset + data.len() as u64)?;
        if !data.is_empty() {
            self.channel.write(namespace, offset, data)?;
        }
        Ok(())
    }

    /// Runs `work`, whose error then says which image it is and what to do.
    pub(super) fn explained(
        &mut self,
        work: impl FnOnce(&mut Writing) -> Result<()>,
    ) -> Result<()> {
        let done = work(self);
        self.lease.explain(done).map_err(|error| {
            let hint =
                "begin again once there is room, and nobody else writes: what is there stays";
            let text = "the shards cannot be written into the image";
            let address = self.channel.media().namespace(self.journal.namespace).address;
            Error::new(error.kind(), text).source(error).target(address).hint(hint)
        })
    }
}
