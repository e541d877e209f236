//! The thread of a lane: it decodes the lane's shards, one after the other, and hands over full windows.
//!
//! A window is decoded samples in memory, with a directory that lists them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;

use crate::buf::{IoBuf, Pool, SharedBuf};
use crate::directory::{Directory, DirectoryBuilder, RunSample};
use crate::error::Result;
use crate::format::columns::{ColumnSpec, ColumnTable, OwnedValue, Value};
use crate::format::geometry::CELL_BYTES;
use crate::format::{ImageLayout, SampleMeta};
use crate::order::lanes::{LanePlace, LaneSpec, WindowFill};
use crate::reader::SampleLocation;
use crate::shards::{CopyingReader, ShardFilling, ShardSample, ShardSet};
use crate::units::{Generation, SampleId};

/// State that the lanes of a rank share.
pub(super) struct LanesShared {
    pub(super) set: Arc<ShardSet>,
    /// The image that also gets the samples, if one is filled.
    pub(super) filling: Option<Arc<ShardFilling>>,
    pub(super) spec: LaneSpec,
    /// The layout of the windows' directories.
    pub(super) layout: ImageLayout,
    pub(super) pool: Pool,
    /// Set when nobody waits for windows any more.
    pub(super) stopped: AtomicBool,
}

/// The work of a lane's thread.
pub(super) struct LaneWork {
    pub(super) shared: Arc<LanesShared>,
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

    /// Sends all windows but the last, and returns the last; `None`: the lane has no samples left, or nobody waits for
    /// them.
    fn decode(&self) -> Result<Option<Window>> {
        let LanesShared { set, filling: image, spec, .. } = &*self.shared;
        let own: Vec<u64> = spec.shards_of(self.lane, set.shards().len() as u64).collect();
        let mut window = WindowBuilder::at(*spec, self.begin);
        let mut first = self.begin.sample;
        let mut ahead = None; // the reader of the next shard, once this one is decoded
        for (nth, &shard) in (0..).zip(&own).skip(self.begin.shard as usize) {
            let begin = LanePlace { shard: nth, sample: first, given: 0 };
            let shard = shard as usize;
            let open = || CopyingReader::open(set, image.as_deref(), shard);
            let reader = ahead.take().unwrap_or_else(open)?;
            let next = own.get(nth as usize + 1).map(|&next| next as usize);
            let mut open_next = || {
                if let (None, Some(next)) = (&ahead, next) {
                    ahead = Some(CopyingReader::open_ahead(set, image.as_deref(), next));
                }
            };
            if !self.decode_shard((shard, reader), begin, &mut window, &mut open_next)? {
                return Ok(None);
            }
            first = 0;
        }
        // The run before may have delivered samples of shards that the image does not have whole yet.
        for &shard in own.iter().take(self.begin.shard as usize) {
            let given = LanePlace { sample: u64::MAX, ..self.begin };
            let shard = shard as usize;
            if let Some(image) = image
                && image.filled(shard)?.is_none()
            {
                let reader = CopyingReader::open(set, Some(&**image), shard)?;
                if !self.decode_shard((shard, reader), given, &mut window, &mut || {})? {
                    return Ok(None);
                }
            }
        }
        let end = LanePlace { shard: own.len() as u64, ..LanePlace::default() };
        window.finish(&self.shared, end, true)
    }

    /// Decodes a shard, keeps its index, and adds its samples from `begin` on to windows, of which it sends the full
    /// ones. Calls `open_next` once nothing more is requested for this shard. `false`: nobody waits for windows any
    /// more.
    fn decode_shard(
        &self,
        (shard, mut reader): (usize, CopyingReader<'_>),
        begin: LanePlace,
        window: &mut WindowBuilder,
        open_next: &mut dyn FnMut(),
    ) -> Result<bool> {
        let LanesShared { set, stopped, .. } = &*self.shared;
        let mut record = Vec::new();
        for sample in 0.. {
            if stopped.load(Ordering::Relaxed) {
                return Ok(false);
            }
            record.clear();
            let Some(read) = reader.next(&mut record)? else { break };
            if reader.is_decoded() {
                open_next();
            }
            if window.columns.is_empty() && !read.values.is_empty() {
                window.columns = reader.columns(); // known with the first sample
            }
            if sample < begin.sample {
                continue;
            }
            if !window.fill.fits(read.len_bytes) {
                let full = window.finish(&self.shared, LanePlace { sample, ..begin }, false);
                if self.windows.send(full).is_err() {
                    return Ok(false);
                }
                window.fill.fits(read.len_bytes); // counts it: the first sample of a window always fits
            }
            let id = SampleId((shard as u64) << ID_BITS | sample);
            let pushed = window.push(&self.shared, id, read, &record);
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

/// Decoded samples of a lane.
pub(super) struct Window {
    /// Names, labels and typed values of the samples, whose ids are their numbers in the window.
    pub(super) directory: Arc<Directory>,
    /// The memory of the records.
    pub(super) buf: SharedBuf,
    /// The id and place of each sample in `buf`.
    pub(super) samples: Vec<SampleLocation>,
    /// The place of the sample behind the window.
    pub(super) end: LanePlace,
    /// True if the lane ends with the window.
    pub(super) ends_lane: bool,
}

/// The windows of a lane, one after the other, each while it is being filled.
struct WindowBuilder {
    /// The typed columns of all windows.
    columns: Vec<ColumnSpec>,
    fill: WindowFill,
    /// The records, one after the other.
    buf: IoBuf,
    samples: Vec<ShardSample>,
    /// The typed values of the samples.
    values: ColumnTable,
    /// The ids and places of the samples.
    locations: Vec<SampleLocation>,
}

impl WindowBuilder {
    /// The empty window that begins at `place`.
    fn at(spec: LaneSpec, place: LanePlace) -> WindowBuilder {
        WindowBuilder {
            columns: Vec::new(),
            fill: spec.empty_window(place),
            buf: IoBuf::default(),
            samples: Vec::new(),
            values: ColumnTable::default(),
            locations: Vec::new(),
        }
    }

    /// Adds a sample, whose id in the batch is `id`. The memory of a window is taken from the pool while that has some.
    ///
    /// # Errors
    /// `OutOfMemory`. The sample is none that an image can have.
    fn push(
        &mut self,
        shared: &LanesShared,
        id: SampleId,
        sample: ShardSample,
        bytes: &[u8],
    ) -> Result<()> {
        if self.samples.is_empty() {
            let len = bytes.len().max(shared.spec.window_bytes as usize); // a longer sample is alone
            self.buf = shared.pool.take(len).map_or_else(|| shared.pool.outside(len), Ok)?;
            self.values = ColumnTable::new(&self.columns);
        }
        let mut values = sample.values.iter();
        self.values.push(|_| values.next().map_or(Value::None, OwnedValue::as_value));
        let values = self.values.row(self.samples.len());
        SampleMeta { id, name: &sample.name, label: sample.label, values }.check()?;
        let offset = self.locations.last().map_or(0, |last| last.offset + last.len_bytes as usize);
        self.buf[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.locations.push(SampleLocation { id, buf: 0, len_bytes: sample.len_bytes, offset });
        self.samples.push(sample);
        Ok(())
    }

    /// The complete window, behind which the sample at `end` follows; `None`: it has no samples. Begins the next one.
    ///
    /// # Errors
    /// The samples contradict each other.
    fn finish(
        &mut self,
        shared: &LanesShared,
        end: LanePlace,
        ends_lane: bool,
    ) -> Result<Option<Window>> {
        let columns = self.columns.clone();
        let next = WindowBuilder { columns, ..WindowBuilder::at(shared.spec, end) };
        let full = std::mem::replace(self, next);
        if full.samples.is_empty() {
            return Ok(None);
        }
        let mut directory = DirectoryBuilder::new(shared.layout);
        directory.set_fields(shared.set.fields()?.to_vec(), shared.set.field_types()?.clone());
        directory.grow_columns(&full.columns)?;
        let rows: Vec<_> = full.samples.iter().enumerate().collect();
        for run in rows.chunks(MAX_RUN_SAMPLES) {
            let at = full.locations[run[0].0].offset as u64;
            let samples = run.iter().map(|&(row, sample)| RunSample {
                name: &sample.name,
                len_bytes: sample.len_bytes,
                crc32c: sample.crc32c,
                label: sample.label,
                values: full.values.row(row),
                deleted: false,
            });
            directory.add_run(shared.layout.first_cell() + at.div_ceil(CELL_BYTES), samples)?;
        }
        let directory = Arc::new(directory.finish(Generation(1), 0)?);
        let buf = full.buf.freeze();
        Ok(Some(Window { directory, buf, samples: full.locations, end, ends_lane }))
    }
}

/// An id of this epoch is the number of the shard, and in so many lower bits the sample's number there.
const ID_BITS: u32 = 32;
/// The most samples of a chunk without a header.
const MAX_RUN_SAMPLES: usize = 65_535;
