//! The thread of a lane: decodes its shards, one after the other, and hands over full windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;

use super::window::{Window, WindowBuilder};
use crate::buf::Pool;
use crate::error::Result;
use crate::format::ChunkSpec;
use crate::order::lanes::{LanePlace, LaneSpec, WindowFill};
use crate::shards::{CopyingReader, ShardFilling, ShardSet};
use crate::units::SampleId;

/// Shared by all lanes of a rank.
pub(super) struct OfLanes {
    pub(super) set: Arc<ShardSet>,
    /// The image that takes the samples, too.
    pub(super) filling: Option<Arc<ShardFilling>>,
    pub(super) spec: LaneSpec,
    pub(super) chunks: ChunkSpec,
    pub(super) pool: Pool,
    /// Set when nobody waits for windows any more.
    pub(super) stopped: AtomicBool,
}

/// The work of a lane's thread.
pub(super) struct LaneWork {
    pub(super) of: Arc<OfLanes>,
    pub(super) lane: u32,
    /// The place at which the first window begins.
    pub(super) begin: LanePlace,
    pub(super) windows: Sender<Result<Option<Window>>>,
}

impl LaneWork {
    /// Sends the windows of the lane: after the last one, or an error, nothing.
    pub(super) fn run(&mut self) {
        let last = self.decode();
        let _ = self.windows.send(last); // a receiver that is gone wants nothing
    }

    /// Sends all windows but the last, and returns that; `None`: the lane has no samples, or nobody waits for them.
    fn decode(&self) -> Result<Option<Window>> {
        let OfLanes { set, filling: image, spec, .. } = &*self.of;
        let own: Vec<u64> = spec.shards_of(self.lane, set.shards().len() as u64).collect();
        let mut filling = Filling {
            window: WindowBuilder::new(self.of.chunks.clone(), &self.of.pool),
            chunks: self.of.chunks.clone(),
            fill: WindowFill::default(),
            record: Vec::new(),
        };
        let mut first = self.begin.sample;
        for (nth, &shard) in (0..).zip(&own).skip(self.begin.shard as usize) {
            let begin = LanePlace { shard: nth, sample: first, given: 0 };
            if !self.decode_shard(shard as usize, begin, &mut filling)? {
                return Ok(None);
            }
            first = 0;
        }
        // The run before may have given more than the image has of it.
        for &shard in own.iter().take(self.begin.shard as usize) {
            let given = LanePlace { sample: u64::MAX, ..self.begin };
            let shard = shard as usize;
            if let Some(image) = image
                && image.filled(shard)?.is_none()
                && !self.decode_shard(shard, given, &mut filling)?
            {
                return Ok(None);
            }
        }
        filling.window.finish(LanePlace { shard: own.len() as u64, ..LanePlace::default() }, true)
    }

    /// Decodes a shard and keeps its index; takes its samples from `begin` on. `false`: nobody waits for them.
    fn decode_shard(&self, shard: usize, begin: LanePlace, filling: &mut Filling) -> Result<bool> {
        let OfLanes { set, filling: image, spec, pool, stopped, .. } = &*self.of;
        let Filling { window, chunks, fill, record } = filling;
        let mut reader = CopyingReader::open(set, image.as_deref(), shard)?;
        for sample in 0.. {
            if stopped.load(Ordering::Relaxed) {
                return Ok(false);
            }
            record.clear();
            let Some(read) = reader.next(record)? else { break };
            if chunks.columns.is_empty() && !read.values.is_empty() {
                chunks.columns = reader.columns(); // known with the first sample
                *window = WindowBuilder::new(chunks.clone(), pool);
            }
            if sample < begin.sample {
                continue;
            }
            if !spec.fits(fill, read.len_bytes) {
                let next = WindowBuilder::new(chunks.clone(), pool);
                let end = LanePlace { sample, ..begin };
                let full = std::mem::replace(window, next).finish(end, false);
                if self.windows.send(full).is_err() {
                    return Ok(false);
                }
                *fill = WindowFill::default();
                spec.fits(fill, read.len_bytes);
            }
            let pushed = window.push(SampleId((shard as u64) << ID_BITS | sample), &read, record);
            pushed.map_err(|error| error.path(&set.shards()[shard].path))?;
        }
        // Kept before a sample of the next shard is given: what a state has passed is indexed.
        let (index, is_new) = reader.finish()?;
        if is_new {
            set.keep(shard, &index)?;
        }
        set.check_entries(shard, &index)?;
        Ok(true)
    }
}

/// The window that a lane fills.
struct Filling {
    window: WindowBuilder,
    /// The properties of its chunks.
    chunks: ChunkSpec,
    fill: WindowFill,
    /// The record of a sample, reused.
    record: Vec<u8>,
}

/// An id of this epoch is the number of the shard, and in so many lower bits the sample's number there.
const ID_BITS: u32 = 32;
