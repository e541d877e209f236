//! The thread of a lane: decodes its shards, one after the other, and hands over full windows.
//!
//! A window has decoded samples, as chunks in memory that a directory of their own lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;

use crate::buf::{IoBuf, Pool, SharedBuf};
use crate::directory::{Directory, DirectoryBuilder};
use crate::error::Result;
use crate::format::builder::ChunkLocation;
use crate::format::columns::{ColumnTable, OwnedValue, Value};
use crate::format::{ChunkBuilder, ChunkHeader, ChunkSpec, Fit, RecordSums, SampleMeta};
use crate::order::lanes::{LanePlace, LaneSpec, WindowFill};
use crate::reader::SampleLocation;
use crate::shards::{CopyingReader, ShardFilling, ShardSample, ShardSet};
use crate::units::{Generation, SampleId, Slot};

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

/// Decoded samples of a lane.
pub(super) struct Window {
    /// Names, labels and typed values of the samples, whose ids are their numbers in the window.
    pub(super) directory: Arc<Directory>,
    /// The memory of the records.
    pub(super) bufs: Vec<SharedBuf>,
    /// The id and place of each sample; the buffer is one of `bufs`.
    pub(super) samples: Vec<SampleLocation>,
    /// The place of the sample behind the window.
    pub(super) end: LanePlace,
    /// True if the lane ends with the window.
    pub(super) ends_lane: bool,
}

/// A window that is being filled.
pub(super) struct WindowBuilder {
    spec: ChunkSpec,
    pool: Pool,
    directory: DirectoryBuilder,
    open: Option<ChunkBuilder>,
    /// A table of one row, for the typed values of a sample.
    row: ColumnTable,
    next_cell: u64,
    sequence: u64,
    bufs: Vec<SharedBuf>,
    samples: Vec<SampleLocation>,
}

impl WindowBuilder {
    /// An empty window of samples with the fields and columns of `spec`. Its memory is taken from `pool` while that has
    /// some.
    pub(super) fn new(spec: ChunkSpec, pool: &Pool) -> WindowBuilder {
        WindowBuilder {
            row: ColumnTable::new(&spec.columns),
            directory: DirectoryBuilder::new(spec.layout),
            next_cell: spec.layout.first_cell(),
            sequence: 0,
            open: None,
            bufs: Vec::new(),
            samples: Vec::new(),
            spec,
            pool: pool.clone(),
        }
    }

    /// Adds a sample, whose id in the batch is `id`.
    ///
    /// # Errors
    /// `OutOfMemory`. The sample is none that an image can have.
    pub(super) fn push(&mut self, id: SampleId, sample: &ShardSample, record: &[u8]) -> Result<()> {
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        let mut values = sample.values.iter();
        row.push(|_| values.next().map_or(Value::None, OwnedValue::as_value));
        let meta = SampleMeta {
            id: SampleId(self.samples.len() as u64),
            name: &sample.name,
            label: sample.label,
            values: row.row(0),
        };
        let pushed = self.push_meta(&meta, record);
        self.row = row;
        let buf = pushed?;
        let len_bytes = record.len() as u32; // a shard's reader lets no longer record through
        self.samples.push(SampleLocation { id, buf, len_bytes, offset: 0 });
        Ok(())
    }

    /// Adds a record, and returns the number of its buffer.
    fn push_meta(&mut self, meta: &SampleMeta<'_>, record: &[u8]) -> Result<u32> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                closed => {
                    let len = ChunkBuilder::buf_len_bytes(&self.spec.layout);
                    let buf = self.pool.take(len).map_or_else(|| self.pool.outside(len), Ok)?;
                    closed.insert(ChunkBuilder::new(self.spec.clone(), Slot(meta.id.0), buf)?)
                }
            };
            match open.push(meta, record)? {
                Fit::Here => return Ok(self.bufs.len() as u32),
                Fit::NextChunk => self.close()?,
                Fit::Oversize => {
                    self.close()?;
                    return self.push_oversize(meta, record);
                }
            }
        }
    }

    fn push_oversize(&mut self, meta: &SampleMeta<'_>, record: &[u8]) -> Result<u32> {
        let mut buf = IoBuf::try_zeroed(record.len())?;
        buf.copy_from_slice(record);
        let location = self.location();
        let sums = RecordSums::of(record);
        let len = record.len() as u32;
        let header =
            ChunkBuilder::oversize(&self.spec, Slot(meta.id.0), meta, len, &sums, location)?;
        self.add(&header, buf)
    }

    /// Ends the open chunk.
    fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take().filter(|open| open.num_samples() > 0) else {
            return Ok(());
        };
        let first = self.samples.len() - open.num_samples() as usize;
        let chunk = open.finish(self.location());
        for (sample, entry) in self.samples[first..].iter_mut().zip(chunk.header.samples()) {
            sample.offset = chunk.range.start + entry.offset_bytes as usize;
        }
        self.add(&chunk.header, chunk.buf).map(drop)
    }

    fn location(&self) -> ChunkLocation {
        ChunkLocation { sequence: self.sequence, cell: self.next_cell, ..ChunkLocation::default() }
    }

    /// Adds a complete chunk; returns the number of its buffer.
    fn add(&mut self, header: &ChunkHeader, buf: IoBuf) -> Result<u32> {
        self.directory.add_chunk(header)?;
        self.next_cell += header.head().cell_range().cells;
        self.sequence += 1;
        self.bufs.push(buf.freeze());
        Ok(self.bufs.len() as u32 - 1)
    }

    /// The complete window, behind which the sample at `end` follows; `None`: it has no samples.
    ///
    /// # Errors
    /// The samples contradict each other.
    pub(super) fn finish(mut self, end: LanePlace, ends_lane: bool) -> Result<Option<Window>> {
        self.close()?;
        if self.samples.is_empty() {
            return Ok(None);
        }
        let directory = Arc::new(self.directory.finish(Generation(1), 0)?);
        let WindowBuilder { bufs, samples, .. } = self;
        Ok(Some(Window { directory, bufs, samples, end, ends_lane }))
    }
}

/// An id of this epoch is the number of the shard, and in so many lower bits the sample's number there.
const ID_BITS: u32 = 32;
