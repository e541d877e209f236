//! The chunks that ranks have made durable, as the records on the namespaces list them.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::import::many::filling::state::PreparedImage;
use crate::import::media::Media;
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::geometry::CELL_BYTES;

/// The location of consecutive samples of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FilledChunk {
    /// The number of the shard.
    pub shard: u64,
    /// The number of the first sample in the shard.
    pub first: u64,
    /// The number of samples.
    pub count: u32,
    /// Checksums of the pieces of all large samples, sample by sample.
    pub pieces: Vec<u32>,
    /// The number of the attempt to write the shard.
    pub(super) attempt: u64,
    /// The first cell of the data.
    pub(super) cell: u64,
    /// The number of cells of the data.
    pub(super) cells: u64,
    /// The number of free cells in front of the data, for the chunk's header.
    pub(super) header_cells: u64,
    /// The index of the namespace, set when the record is read.
    #[serde(skip)]
    pub(super) namespace: u16,
}

/// The chunks that are durable, by shard.
pub struct Filled {
    media: Media,
    /// The chunks of each shard, of all attempts, in no order.
    chunks: HashMap<u64, Vec<FilledChunk>>,
    /// The ranks that have written a record.
    ranks: BTreeSet<u32>,
}

impl Filled {
    /// Reads the records of all namespaces.
    ///
    /// # Errors
    /// `Corrupt`: a record is damaged. Errors of reading.
    pub(super) fn read(prepared: &PreparedImage) -> Result<Filled> {
        let PreparedImage { media, journal, lanes } = prepared;
        let media = media.clone();
        let mut channel = media.channel();
        let mut chunks = HashMap::<u64, Vec<FilledChunk>>::new();
        let mut ranks = BTreeSet::new();
        for (namespace, &lane) in (0..).zip(lanes) {
            let plan_and_namespace = (journal.layout.uuid.0, namespace);
            let records = lane.records(&mut channel, plan_and_namespace, &damaged)?;
            for (record, lane) in records {
                let previous = record.previous;
                let (rank, found): (u32, Vec<FilledChunk>) = record.content;
                let is_in_lane = |chunk: &FilledChunk| {
                    let start = chunk.cell.checked_sub(chunk.header_cells);
                    let end = chunk.cell.checked_add(chunk.cells);
                    start.is_some_and(|start| start >= previous.end_cell)
                        && end.is_some_and(|end| end <= lane.last_record)
                };
                let is_behind_journal = previous.end_cell >= journal.layout.first_cell();
                if !is_behind_journal || !found.iter().all(is_in_lane) {
                    return Err(damaged(lane.last_record));
                }
                ranks.insert(rank);
                for chunk in found {
                    chunks.entry(chunk.shard).or_default().push(FilledChunk { namespace, ..chunk });
                }
            }
        }
        Ok(Filled { media, chunks, ranks })
    }

    /// Returns whether a rank has written a record.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.contains(&rank)
    }

    /// Returns whether any chunk of a shard is durable.
    pub fn has(&self, shard: u64) -> bool {
        self.chunks.contains_key(&shard)
    }

    /// The chunks of a shard of `samples` samples, in the shard's order. `None`: no attempt to write it is complete.
    pub fn shard(&self, shard: u64, samples: u64) -> Option<Vec<FilledChunk>> {
        if samples == 0 {
            return Some(Vec::new());
        }
        let mut chunks = self.chunks.get(&shard)?.clone();
        chunks.sort_by_key(|chunk| (chunk.attempt, chunk.first));
        let follows = |next, chunk: &FilledChunk| {
            (chunk.first == next).then(|| next + u64::from(chunk.count))
        };
        let is_whole =
            |attempt: &&[FilledChunk]| attempt.iter().try_fold(0, follows) == Some(samples);
        let whole = chunks.chunk_by(|a, b| a.attempt == b.attempt).find(is_whole);
        whole.map(<[FilledChunk]>::to_vec)
    }

    /// Reads the data of a chunk: the records of its samples, one after the other. Their checksums are not verified.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn chunk(&self, chunk: &FilledChunk) -> Result<IoBuf> {
        if chunk.cells == 0 {
            return Ok(IoBuf::empty());
        }
        let mut channel = self.media.channel();
        channel.read(chunk.namespace, chunk.cell * CELL_BYTES, (chunk.cells * CELL_BYTES) as usize)
    }
}

fn damaged(cell: u64) -> Error {
    let text = format!("the record of filled chunks in cell {cell} is damaged");
    let error = Error::new(ErrorKind::Corrupt, text);
    error.hint("remove the image, which is not complete, and begin anew")
}
