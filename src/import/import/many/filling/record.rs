//! The records of filled chunks, and reading the chunks back.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::import::journal::Journal;
use crate::import::mark::Lane;
use crate::import::media::{Channel, Media};
use crate::import::state::Block;
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::geometry::CELL_BYTES;

/// Consecutive samples of a shard, on a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FilledChunk {
    /// The number of the shard.
    pub shard: u64,
    /// The number of the first sample in the shard.
    pub first: u64,
    /// The number of samples.
    pub count: u32,
    /// The checksums of the pieces of all large records.
    pub pieces: Vec<u32>,
    /// The attempt to write the shard.
    pub(super) attempt: u64,
    /// The first cell of the data, the cells of the data, and the free ones in front of it.
    pub(super) cell: u64,
    pub(super) cells: u64,
    pub(super) header_cells: u64,
    #[serde(skip)]
    pub(super) namespace: u16,
}

/// The chunks that are durable, by shard.
pub struct Filled {
    media: Media,
    chunks: HashMap<u64, Vec<FilledChunk>>,
    /// The ranks that have begun.
    ranks: BTreeSet<u32>,
}

/// The beginning of a record. The JSON of its chunks follows.
#[derive(Serialize, Deserialize)]
struct Head {
    uuid: [u8; 16],
    namespace: u16,
    /// The rank that wrote it.
    #[serde(default)]
    rank: u32,
    /// The record before.
    previous: Lane,
    /// Bytes of the chunks' JSON.
    len_bytes: usize,
}

impl Filled {
    /// Reads the records of all namespaces.
    ///
    /// # Errors
    /// `Corrupt`: one is damaged. Errors of reading.
    pub(super) fn read(media: Media, journal: &Journal, lanes: &[Lane]) -> Result<Filled> {
        let mut channel = media.channel();
        let mut chunks = HashMap::<u64, Vec<FilledChunk>>::new();
        let mut ranks = BTreeSet::new();
        for (namespace, &lane) in (0..).zip(lanes) {
            let mut lane = lane;
            while lane.last_record != 0 {
                let (head, found) = read(&mut channel, journal, namespace, lane)?;
                ranks.insert(head.rank);
                for chunk in found {
                    chunks.entry(chunk.shard).or_default().push(FilledChunk { namespace, ..chunk });
                }
                lane = head.previous;
            }
        }
        Ok(Filled { media, chunks, ranks })
    }

    /// Returns whether a rank has begun to fill the image.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.contains(&rank)
    }

    /// Returns whether there is any chunk of a shard.
    pub fn has(&self, shard: u64) -> bool {
        self.chunks.contains_key(&shard)
    }

    /// The chunks of a shard of `samples` samples, in their order; `None`: it is not durable as a whole.
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

    /// The records of a chunk, one after the other. They are not verified.
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

/// The record of `chunks` of `rank` on the journal's namespace, as whole cells, behind the one that `previous` names.
pub(super) fn record_of(
    journal: &Journal,
    rank: u32,
    previous: Lane,
    chunks: &[FilledChunk],
) -> Vec<u8> {
    let Journal { layout, namespace, .. } = *journal;
    let tail = serde_json::to_vec(chunks).expect("numbers are JSON");
    let head = Head { uuid: layout.uuid.0, namespace, rank, previous, len_bytes: tail.len() };
    let len = (HEAD_BYTES + tail.len()).next_multiple_of(CELL_BYTES as usize);
    block(len).seal(&head, &tail).expect("a block of the length that it needs")
}

fn read(
    channel: &mut Channel,
    journal: &Journal,
    namespace: u16,
    Lane { last_record, end_cell }: Lane,
) -> Result<(Head, Vec<FilledChunk>)> {
    let layout = &journal.layout;
    let damaged = || {
        let text = format!("the record of filled chunks in cell {last_record} is damaged");
        let error = Error::new(ErrorKind::Corrupt, text);
        error.hint("remove the image, which is not complete, and begin anew")
    };
    let end = layout.offset_of(end_cell)?;
    let len = end.saturating_sub(layout.offset_of(last_record)?) as usize;
    if len == 0 || end > channel.media().namespace(namespace).len_bytes() {
        return Err(damaged());
    }
    let bytes = channel.read(namespace, last_record * CELL_BYTES, len)?;
    let found = block(len).open::<Head>(&bytes).map_err(|error| damaged().source(error))?;
    let (head, tail) = found.ok_or_else(damaged)?;
    let tail = tail.get(..head.len_bytes).ok_or_else(damaged)?;
    let chunks: Vec<FilledChunk> =
        serde_json::from_slice(tail).map_err(|error| damaged().source(error))?;
    let begin = head.previous.end_cell;
    let lies_here = |chunk: &FilledChunk| {
        let start = chunk.cell.checked_sub(chunk.header_cells);
        let end = chunk.cell.checked_add(chunk.cells);
        start.is_some_and(|start| start >= begin) && end.is_some_and(|end| end <= last_record)
    };
    let is_it = (head.uuid, head.namespace) == (layout.uuid.0, namespace)
        && (layout.first_cell()..=last_record).contains(&begin)
        && head.previous.last_record < begin
        && chunks.iter().all(lies_here);
    if is_it { Ok((head, chunks)) } else { Err(damaged()) }
}

fn block(len: usize) -> Block {
    Block { what: "record of filled chunks", magic: *b"DLFSFILL", at: 0, len }
}

/// Enough for the head of a block and [`Head`].
const HEAD_BYTES: usize = 512;
