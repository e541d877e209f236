//! Starts a prefetcher: determines its state, allocates its window, and selects the driver of its batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::process::Forked;
use crate::qpair::Device;
use crate::reader::{Batch, FETCH_LEN_BYTES, Pump, SLOT_LEN_BYTES};

use super::chunks::ChunkDriver;
use super::driver::{Driver, PollerInput, Residency};
use super::passes::PassDriver;
use super::poller::Poller;
use super::sample_driver::SampleDriver;
use super::stream::Stream;
use super::window::{Memory, Window};
use super::working_set::{self, FIRST_BATCH_ROOM_CHUNKS, page_cached};
use super::{
    Batching, Course, LoaderOptions, LoaderShared, Prefetcher, READY_BATCHES, mix_driver, mix_plan,
};

impl Prefetcher {
    /// Allocates the window of a loader with these options. A background thread faults it in.
    ///
    /// # Errors
    /// `InvalidArgument`: as [`Prefetcher::new`]. `OutOfMemory`: the system does not provide the memory.
    pub(crate) fn window(
        directory: &Directory,
        devices: &[Arc<dyn Device>],
        options: &LoaderOptions,
    ) -> Result<Arc<Window>> {
        if let Some(mix) = &options.mixture {
            return mix_plan::window(mix, options);
        }
        let batching = options.batching_on(directory, devices)?;
        if batching == Batching::Chunk {
            working_set::warn_of_small_window(directory, options);
        }
        working_set::warn_of_shared_reads(directory, options, batching == Batching::Chunk);
        let layout = directory.layout();
        let window_bytes = working_set::window_bytes_on(directory, devices, options);
        let chunk = u64::from(layout.chunk_size_bytes);
        let num_chunks = u64::from(directory.num_chunks());
        let num_samples = directory.num_samples();
        let all = (num_chunks + FIRST_BATCH_ROOM_CHUNKS).saturating_mul(chunk);
        let ready = (options.batch_size as u64).saturating_mul(READY_BATCHES as u64);
        let lengths = options.pass_lengths(batching, directory);
        let used_bytes = match batching {
            Batching::Chunk => all,
            Batching::Sample if lengths.is_some() => all,
            Batching::Sample => all.min(all.div_ceil(num_samples.max(1)).saturating_mul(ready)),
            Batching::None => 0,
        };
        // If most buffers have about the same length, slots of that length avoid gaps that are too small for a
        // buffer.
        let slot_len_bytes = match (batching, lengths) {
            (_, Some(lengths)) => lengths.copies_bytes,
            (Batching::Chunk, None) => layout.chunk_size_bytes as usize,
            (Batching::Sample | Batching::None, None) => SLOT_LEN_BYTES,
        };
        let used_bytes = usize::try_from(used_bytes).unwrap_or(usize::MAX);
        Ok(Arc::new(Window::new(window_bytes, slot_len_bytes, used_bytes, options)?))
    }

    /// As [`Prefetcher::new`], in a window that was allocated for the same options.
    ///
    /// # Errors
    /// As [`Prefetcher::new`].
    pub(crate) fn in_window(
        directory: Arc<Directory>,
        devices: Vec<Arc<dyn Device>>,
        options: LoaderOptions,
        window: Option<Arc<Window>>,
    ) -> Result<Prefetcher> {
        options.check()?;
        let (start, len) = match &options.mixture {
            Some(mix) => (mix.start_state(&options)?, mix.mixture.epoch_size()),
            None => {
                let len = options.epoch_len(directory.num_live());
                (Stream::start_state(&directory, &options)?, len)
            }
        };
        let mut options = LoaderOptions { order: start.order, ..options };
        if options.mixture.is_none() {
            options.batching = settled_batching(&directory, &devices, &options)?;
        }
        let mut loader = Prefetcher {
            owed: Stream::owed(len, &options, &start)?,
            directory,
            devices,
            options,
            poller: None,
            course: Course::new(start),
            head: None,
            readers: BTreeMap::new(),
        };
        loader.poller = Some(Forked::new(loader.start(window)?));
        Ok(loader)
    }

    /// Starts the poller. Uses `window` if given: it belongs to a loader with the same options.
    pub(super) fn start(&self, window: Option<Arc<Window>>) -> Result<Poller> {
        let options = &self.options;
        let pump = Pump::new(&self.devices, options.queue_pairs, options.busy_poll)?;
        let PollerInput { mut pump, driver, residency, directories, spares } =
            match &options.mixture {
                Some(mix) => mix_driver::poller_input(pump, mix, options, &self.course.state)?,
                None => self.poller_input(pump)?,
            };
        // As many as can be ready at a time. Otherwise the first peak would allocate them, late in an epoch.
        for _ in 0..READY_BATCHES + 2 {
            let room = options.batch_size.min(ROOM_SAMPLES);
            spares.keep(Batch::with_capacity(room, ROOM_BUFFERS));
        }
        let shared = Arc::new(LoaderShared { residency, spares, ..LoaderShared::default() });
        let window = window
            .map_or_else(|| Prefetcher::window(&self.directory, &self.devices, options), Ok)?;
        window.wakes(pump.waker());
        pump.use_pool(&window.pool);
        pump.record_latency(&shared.latency);
        let memory = Memory::new(Arc::clone(&window));
        Poller::start((pump, memory), driver, shared, directories, options, window)
    }

    /// The input of a poller that reads one data set.
    fn poller_input(&self, mut pump: Pump) -> Result<PollerInput> {
        let options = &self.options;
        let on_error = options.on_error;
        let batching = options.batching_on(&self.directory, &self.devices)?;
        pump.learn(&self.directory);
        let geometry = pump.geometry();
        let state = &self.course.state;
        let stream = Stream::new(Arc::clone(&self.directory), options, state)?;
        let passes = options.pass_lengths(batching, &self.directory);
        let residency = Arc::new(Residency::new(match (batching, passes) {
            (Batching::Chunk, None) => self.directory.num_samples(),
            _ => 0,
        }));
        let spares = stream.spares.clone();
        let directory = Arc::clone(&self.directory);
        let driver: Box<dyn Driver> = match (batching, passes) {
            (_, Some(lengths)) => {
                Box::new(PassDriver::new(directory, geometry, stream, on_error, lengths))
            }
            (Batching::Chunk, None) => {
                let keep = options.verify_kept;
                let shown = Arc::clone(&residency);
                let patience = working_set::patience(options);
                let chunks =
                    ChunkDriver::new(directory, geometry, stream, on_error, keep, shown, patience);
                if working_set::reads_first_batch_apart(&self.directory, options)
                    && working_set::reads_parts(&self.devices)
                {
                    Box::new(chunks.beginning_early(state.order)?)
                } else {
                    Box::new(chunks)
                }
            }
            (Batching::Sample | Batching::None, None) => {
                let one_by_one = batching == Batching::None;
                if one_by_one {
                    pump.limit_outstanding(1);
                }
                let run = FETCH_LEN_BYTES
                    .min(working_set::window_bytes(&self.directory, options) / 8)
                    .max(1);
                Box::new(SampleDriver::new(directory, geometry, stream, one_by_one, run, on_error))
            }
        };
        let directories = Arc::from([Arc::clone(&self.directory)]);
        Ok(PollerInput { pump, driver, residency, directories, spares })
    }
}

/// The batching of one data set on these devices. `None` if a global order is read in passes: they require that the
/// options leave the batching open. Warns if a small window keeps a grouped order from being read by chunks.
fn settled_batching(
    directory: &Directory,
    devices: &[Arc<dyn Device>],
    options: &LoaderOptions,
) -> Result<Option<Batching>> {
    let batching = options.batching_on(directory, devices)?;
    let is_declined = match options.batching {
        None => !page_cached(devices),
        Some(asked) => asked == Batching::Chunk,
    };
    if batching == Batching::Sample && is_declined {
        working_set::warn_of_small_window(directory, options);
    }
    let is_passes =
        batching == Batching::Sample && options.pass_lengths(batching, directory).is_some();
    Ok(if is_passes { None } else { Some(batching) })
}

/// The number of samples and of buffers that a new batch has room for; a larger batch grows once.
const ROOM_SAMPLES: usize = 1024;
const ROOM_BUFFERS: usize = 64;
