//! Reads many scattered samples through a small window, and copies them into one buffer.
//!
//! A sample of a few hundred bytes needs a block of 4 KiB. Other reads share these blocks with the batch, so a
//! million scattered samples would keep gigabytes. Here blocks live only until their samples are verified and
//! copied to their places in the batch's one buffer. A call takes the length of the samples, at most 32 bytes for
//! each sample, and [`WINDOW_BYTES`].
//!
//! Ids are read in the order on media: a block that several samples share is read once, and neighbours share
//! commands. Samples longer than [`COPIED_UP_TO`] bytes are not copied and keep their read buffers: a copy would
//! cost more than their blocks waste.

use crate::buf::{HugePages, IoBuf, Pool, PoolOptions, SharedBuf};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::units::{Epoch, SampleId};

use super::batch::{Batch, SampleLocation};
use super::fetch::{Fetch, Merge, SamplePlans, SampleRequest};
use super::pump::Fetched;
use super::{Call, FETCH_LEN_BYTES, Reader, SLOT_LEN_BYTES, Watch, not_in_directory};

impl Reader {
    /// Returns whether samples are read through [`Reader::gather`]: there are [`GATHERED_FROM`] or more, and their
    /// blocks may exceed the window.
    pub(super) fn gathers(&self, ids: &[SampleId]) -> bool {
        if ids.len() < GATHERED_FROM {
            return false;
        }
        let block =
            self.plans.geometry.iter().map(|of| u64::from(of.block_len_bytes)).max().unwrap_or(0);
        let mut room = self.options.window_bytes as u64;
        !ids.iter().all(|&id| {
            let len = u64::from(self.directory.len_bytes(id).unwrap_or(0));
            let left = room.checked_sub(len.next_multiple_of(block.max(1)) + block);
            room = left.unwrap_or(0);
            left.is_some()
        })
    }

    /// As [`Reader::read_in_call`], for samples that are [gathered](Reader::gathers). The caller has reset
    /// the batch.
    pub(super) fn gather(
        &mut self,
        ids: &[SampleId],
        batch: &mut Batch,
        call: &mut Call<'_>,
    ) -> Result<Vec<(usize, Error)>> {
        let first_token = self.last_token;
        let failures = Vec::new();
        let mut gathered = Gathered { batch, out: IoBuf::empty(), failures, held_bytes: 0 };
        let result = self.gather_all(ids, &mut gathered, call);
        let Gathered { out, failures, batch, .. } = gathered;
        if let Err(error) = result {
            self.abandon_since(first_token);
            batch.reset(&self.directory, Epoch(0));
            return Err(error);
        }
        batch.set_buf(GATHERED, out.freeze());
        self.judge(failures, call.deadline)
    }

    fn gather_all(
        &mut self,
        ids: &[SampleId],
        gathered: &mut Gathered<'_>,
        call: &mut Call<'_>,
    ) -> Result<()> {
        gathered.lay_out(&self.directory, ids, call)?;
        let mut places = Vec::with_capacity(ids.len().min(SORTED));
        let mut step_ids = Vec::new();
        for (sorted, first) in ids.chunks(SORTED).zip((0..).step_by(SORTED)) {
            by_place(&self.directory, sorted, &mut places);
            call.ask()?;
            for step in places.chunks(STEP) {
                let indices = step.iter().map(|place| (place % SORTED as u64) as usize);
                step_ids.clear();
                step_ids.extend(indices.clone().map(|index| sorted[index]));
                self.plan_step(&step_ids, indices.map(|index| (first + index) as u32));
                let mut fetches = std::mem::take(&mut self.plans.fetches);
                let mut begin = |fetch| self.begin_gathering(fetch, gathered, call);
                let started = fetches.drain(..).try_for_each(&mut begin);
                self.plans.fetches = fetches;
                started?;
            }
        }
        while self.pump()?.in_flight() > 0 {
            self.poll_once(call, &mut |fetched, watch| Some(gathered.take(fetched, watch)))?;
        }
        Ok(())
    }

    /// Plans the reads of a few samples that are neighbours on media: first the samples to copy, then the others.
    fn plan_step(&mut self, ids: &[SampleId], indices: impl Iterator<Item = u32>) {
        self.plans.look_up(&self.directory, ids);
        let SamplePlans { extents, requests, .. } = &mut self.plans;
        for ((&id, index), extent) in ids.iter().zip(indices).zip(&*extents) {
            let extent = extent.expect("only ids with a place are sorted by it");
            requests.push(SampleRequest { index, id, extent });
        }
        requests.sort_by_key(|request| !is_copied(request.extent.len_bytes));
        let copied = requests.partition_point(|request| is_copied(request.extent.len_bytes));
        self.plans.plan(..copied, Merge::Neighbours, GATHERED_FETCH_BYTES);
        self.plans.plan(copied.., Merge::Neighbours, FETCH_LEN_BYTES);
    }

    /// Starts a fetch as soon as the window has room for it, or is empty.
    fn begin_gathering(
        &mut self,
        fetch: Fetch,
        gathered: &mut Gathered<'_>,
        call: &mut Call<'_>,
    ) -> Result<()> {
        let window = WINDOW_BYTES.min(self.options.window_bytes);
        while gathered.held_bytes > 0 && gathered.held_bytes + fetch.len_bytes > window {
            self.poll_once(call, &mut |fetched, watch| Some(gathered.take(fetched, watch)))?;
        }
        let buf = self.pool.take(fetch.len_bytes).map_or_else(|| self.outside(&fetch), Ok)?;
        gathered.held_bytes += fetch.len_bytes;
        self.begin(fetch, buf)
    }
}

/// The samples that one call has read so far.
struct Gathered<'a> {
    batch: &'a mut Batch,
    /// All copied samples, one after the other in the order of the ids.
    out: IoBuf,
    failures: Vec<(usize, Error)>,
    /// The length of the fetches in flight.
    held_bytes: usize,
}

impl Gathered<'_> {
    /// Allocates the buffer, and assigns each sample its place in the buffer. Samples have no bytes until they
    /// arrive.
    fn lay_out(
        &mut self,
        directory: &Directory,
        ids: &[SampleId],
        call: &mut Call<'_>,
    ) -> Result<()> {
        self.batch.resize(ids.len());
        let buf = self.batch.add_buf(SharedBuf::empty());
        let mut end = 0;
        for (index, &id) in ids.iter().enumerate() {
            let location = SampleLocation { id, buf, len_bytes: 0, offset: end };
            self.batch.samples[index] = location;
            match directory.len_bytes(id) {
                Some(len) if is_copied(len) => end += len as usize,
                Some(_) => {}
                None => self.failures.push((index, not_in_directory(directory, id))),
            }
            if index % STEP == 0 {
                call.ask()?;
            }
        }
        self.out = allocate(end)?;
        Ok(())
    }

    /// Copies the samples of a fetch to their places, or shares the fetch's buffer with the batch.
    fn take(&mut self, fetched: Fetched, watch: &mut dyn Watch) -> Fetch {
        let Fetched { fetch, buf, failures, .. } = fetched;
        self.held_bytes -= fetch.len_bytes;
        let are_copied = fetch.samples.iter().all(|sample| is_copied(sample.len_bytes));
        let read_buf = self.batch.add_buf(buf.clone());
        let mut failed = failures.iter().map(|(nth, _)| *nth).peekable();
        for (nth, sample) in fetch.samples.iter().enumerate() {
            if failed.next_if_eq(&nth).is_some() {
                continue;
            }
            let index = sample.index as usize;
            let len = sample.len_bytes as usize;
            let from = sample.buf_offset;
            let place = self.batch.location(index).offset;
            let id = sample.id;
            let len_bytes = sample.len_bytes;
            let location = SampleLocation { id, buf: read_buf, len_bytes, offset: from };
            self.batch.samples[index] = location;
            watch.arrived(self.batch, index); // before the copy, while the bytes are in the batch's buffer
            if are_copied {
                self.out[place..place + len].copy_from_slice(&buf[from..from + len]);
                let location = SampleLocation { id, buf: GATHERED, len_bytes, offset: place };
                self.batch.samples[index] = location;
            }
        }
        if are_copied {
            self.batch.bufs.pop(); // no sample is in it
        }
        let failures = failures.into_iter();
        self.failures
            .extend(failures.map(|(nth, error)| (fetch.samples[nth].index as usize, error)));
        fetch
    }
}

/// Replaces `places` with the live samples of `ids`, sorted by place on media. Each is slot * [`SORTED`] + position in
/// `ids`: integers sort fast, and these do not overflow, since a data set has at most 2^40 slots.
fn by_place(directory: &Directory, ids: &[SampleId], places: &mut Vec<u64>) {
    places.clear();
    places.extend(ids.iter().zip(0..).filter_map(|(&id, position): (_, u64)| {
        let slot = directory.is_live(id).then(|| directory.slot_of(id)).flatten()?;
        Some(slot.0 * SORTED as u64 + position)
    }));
    places.sort_unstable();
}

fn is_copied(len_bytes: u32) -> bool {
    len_bytes <= COPIED_UP_TO
}

/// Allocates one buffer for all samples; returns an error instead of aborting if the system lacks memory.
fn allocate(len: usize) -> Result<IoBuf> {
    if len == 0 {
        return Ok(IoBuf::empty());
    }
    let slot_len_bytes = len.next_multiple_of(SLOT_LEN_BYTES);
    let options = PoolOptions { bytes: slot_len_bytes, slot_len_bytes, huge_pages: HugePages::Off };
    Pool::new(options)?.take(len).ok_or_else(|| {
        Error::new(ErrorKind::OutOfMemory, format!("there are no {len} bytes for the samples"))
    })
}

/// The index of the batch's buffer with all copied samples.
const GATHERED: u32 = 0;

/// The fewest samples that are gathered: fewer waste less than 64 MiB beyond the window.
const GATHERED_FROM: usize = 4096;

/// Longer samples are not copied: their blocks waste at most 8 KiB.
const COPIED_UP_TO: u32 = 1 << 20;

/// The most bytes in flight, unless one fetch is longer: 2,048 blocks of 4 KiB.
const WINDOW_BYTES: usize = 8 << 20;

/// The approximate length of the largest fetch buffer: some 128 scattered blocks.
const GATHERED_FETCH_BYTES: usize = 512 << 10;

/// The number of ids that are sorted together: 8 MiB of places, in about 50 ms.
const SORTED: usize = 1 << 20;

/// The number of samples planned at a time.
const STEP: usize = 2048;
