//! Reads ranges of samples: of a large sample, only the touched pieces, each verified separately.
//!
//! A sample up to 1 MiB is read whole. For a larger one, the chunk's header has checksums of pieces of 256 KiB
//! ([`crate::format::pieces`]). The header is read before the first range that leaves out a piece of the sample. Its
//! checksums of pieces must combine to the sample's checksum in the directory. The pump then reads pieces like
//! samples: neighbours share commands, and a piece with a wrong checksum is read again.
//!
//! If the header has no checksums of pieces, for lack of space, or is damaged, the sample is read whole once,
//! through a few megabytes of memory. Its checksum is compared, and the checksums of its pieces are kept
//! (`piece_tables.rs`). Threads that want the same sample meanwhile wait.
//!
//! A plain folder has no checksums of pieces, so a range that leaves out a piece of a large file is not verified.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::fetch::{Fetch, plan_chunk};
use super::pump::Fetched;
use super::{Batch, Call, FETCH_LEN_BYTES, Reader, Watch, not_in_directory, timed_out};
use crate::buf::SharedBuf;
use crate::checksum::crc32c;
use crate::error::{Error, ErrorKind, Result};
use crate::format::pieces::{PIECE_BYTES, num_pieces, piece_len, whole};
use crate::format::{ChunkHeader, Extent};
use crate::units::SampleId;

/// A range of a sample's record, in bytes. Bytes beyond the record's end are left out, as by `pread`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRange {
    /// The sample.
    pub id: SampleId,
    /// First byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
}

/// The verified bytes of ranges, in the order of the request. Ranges share the read buffers.
#[derive(Debug, Default)]
pub struct Ranges {
    bufs: Vec<SharedBuf>,
    places: Vec<RangePlace>,
}

/// The location of one range's bytes: the buffer, and the bytes in it.
#[derive(Debug, Clone, Copy, Default)]
struct RangePlace {
    buf: usize,
    offset: usize,
    len: usize,
}

impl Ranges {
    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// `count` ranges: the ranges of `self` are at `places`, and the others have no bytes.
    pub(crate) fn spread(mut self, places: &[usize], count: usize) -> Ranges {
        let mut spread = vec![RangePlace::default(); count];
        for (&place, &found) in places.iter().zip(&self.places) {
            spread[place] = found;
        }
        self.places = spread;
        self
    }

    /// The bytes of the range at `index`: fewer than requested at the end of the sample, and none if the range
    /// failed.
    ///
    /// # Panics
    /// If `index` is [`Ranges::len`] or more.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let place = self.places[index];
        if place.len == 0 {
            return &[];
        }
        &self.bufs[place.buf][place.offset..place.offset + place.len]
    }
}

/// One range, clamped to its sample.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Position in the request.
    index: usize,
    id: SampleId,
    extent: Extent,
    /// The first byte in the record, and the byte after the last one.
    start: u32,
    end: u32,
}

/// The method of verifying a group of ranges.
enum Verification {
    /// By the checksum of the record.
    Whole,
    /// By the checksums of the record's pieces.
    Pieces(Arc<[u32]>),
    /// Not at all: no checksum is known.
    Unknown,
}

/// Ranges of one sample that share one fetch.
struct Group {
    wanted: Vec<Wanted>,
    verification: Verification,
    /// The bytes of the record to read.
    span: Range<u32>,
    /// The offset of the span in the buffer.
    buf_offset: usize,
}

impl Reader {
    /// Reads `ranges` into `out`, in their order. Reads only the touched pieces of 256 KiB of a sample of more than
    /// 1 MiB.
    ///
    /// Polls on the calling thread until all have arrived.
    ///
    /// # Errors
    /// Errors of [`Reader::read_batch`], for the first range that failed. `Corrupt`: a piece that the range touches
    /// is damaged; the error names the bytes. The other pieces of that sample can still be read, if its chunk has
    /// their checksums.
    pub fn read_ranges(&mut self, ranges: &[SampleRange], out: &mut Ranges) -> Result<()> {
        let mut failures = self.read_ranges_watched(ranges, out, &mut ())?;
        if failures.is_empty() { Ok(()) } else { Err(failures.swap_remove(0).1) }
    }

    /// As [`Reader::read_ranges`], but a range that cannot be read does not fail the call, and `watch` may
    /// interrupt it. Returns the positions in `ranges` that failed, ascending, with their errors.
    ///
    /// # Errors
    /// `Interrupted`: `watch` interrupted it. `TimedOut`, `Stale`, `OutOfMemory`: the whole call failed.
    pub(crate) fn read_ranges_watched(
        &mut self,
        ranges: &[SampleRange],
        out: &mut Ranges,
        watch: &mut dyn Watch,
    ) -> Result<Vec<(usize, Error)>> {
        self.notice_fork()?;
        out.bufs.clear();
        out.places.clear();
        out.places.resize(ranges.len(), RangePlace::default());
        let mut call = Call::new(self.options.deadline, watch);
        let mut wanted = Vec::with_capacity(ranges.len());
        let mut failures = Vec::new();
        for (index, &SampleRange { id, start, end }) in ranges.iter().enumerate() {
            let Some(extent) = self.directory.extent(id) else {
                failures.push((index, not_in_directory(&self.directory, id)));
                continue;
            };
            let len = u64::from(extent.len_bytes);
            let start = start.min(len) as u32;
            let end = end.min(len) as u32;
            if start < end {
                wanted.push(Wanted { index, id, extent, start, end });
            }
        }
        wanted.sort_by_key(|wanted| (wanted.id, wanted.start, wanted.end));
        self.load_tables(&wanted, &mut call)?;
        let mut groups: Vec<Group> = Vec::new();
        for wanted in wanted {
            match self.verification_of(&wanted, &mut call) {
                Ok(verification) => add_to_groups(&mut groups, wanted, verification),
                Err(error) if ends_call(&error) => return Err(error),
                Err(error) => failures.push((wanted.index, error)),
            }
        }
        self.read_groups(&mut groups, out, &mut failures, &mut call)?;
        self.judge(failures, call.deadline)
    }

    /// Reads the headers of the chunks that may have the missing checksums of pieces, [`HEADERS_AT_ONCE`] at a time.
    fn load_tables(&mut self, wanted: &[Wanted], call: &mut Call<'_>) -> Result<()> {
        let mut chunks: Vec<u32> = Vec::new();
        for (nth, wanted) in wanted.iter().enumerate() {
            if self.is_partial(wanted)
                && self.directory.learned().is_none()
                && self.pieces.get(wanted.id).is_none()
            {
                let chunk = self.directory.chunk_of(wanted.id).expect("a sample lies in a chunk");
                let has_header = self.directory.chunk(chunk).header_bytes > 0; // not of shards
                if has_header && (nth == 0 || chunks.last() != Some(&chunk)) {
                    chunks.push(chunk);
                }
            }
        }
        chunks.sort_unstable();
        chunks.dedup();
        // Bursts limit the memory: the headers of one burst need it at the same time.
        for burst in chunks.chunks(HEADERS_AT_ONCE) {
            let fetches = burst.iter().map(|&chunk| {
                let info = self.directory.chunk(chunk);
                self.plan_raw(info.namespace, info.offset_bytes, info.header_bytes as u32).0
            });
            let fetches: Vec<Fetch> = fetches.collect();
            let mut headers = Vec::with_capacity(burst.len());
            self.run(fetches, call, &mut |nth, fetched| headers.push((nth, fetched.into_buf())))?;
            for (nth, header) in headers {
                // A header that cannot be read or used is treated like one without checksums of pieces.
                let kept = header.and_then(|bytes| self.keep_tables(burst[nth], &bytes));
                if let Err(error) = kept {
                    let chunk = burst[nth];
                    tracing::warn!(
                        "the header of chunk {chunk} is not used, so the first range of each of its \
                         samples takes a read of the whole sample: {error}"
                    );
                }
            }
        }
        Ok(())
    }

    /// Keeps the checksums of pieces in a chunk's header.
    fn keep_tables(&self, chunk: u32, bytes: &[u8]) -> Result<()> {
        let info = self.directory.chunk(chunk);
        let header = ChunkHeader::parse(bytes)?;
        let cell = info.offset_bytes / self.directory.layout().cell_bytes();
        header.head().check_location(self.directory.layout(), info.namespace, cell)?;
        for sample in header.samples().filter(|sample| !sample.pieces.is_empty()) {
            let Some(extent) = self.directory.extent(sample.id) else { continue };
            // The header need not be trusted: its checksums must combine to the one in the directory.
            if whole(sample.pieces, extent.len_bytes) == Some(extent.crc32c) {
                self.pieces.insert(sample.id, sample.pieces.into());
            } else {
                let text = "the checksums of its pieces are not those of the sample";
                return Err(Error::new(ErrorKind::Corrupt, text).sample(sample.id));
            }
        }
        Ok(())
    }

    /// Returns whether a range of a large sample leaves out at least one of the sample's pieces.
    fn is_partial(&self, wanted: &Wanted) -> bool {
        let span = pieces_around(wanted.start..wanted.end, wanted.extent.len_bytes);
        num_pieces(wanted.extent.len_bytes) > 0 && span != (0..wanted.extent.len_bytes)
    }

    /// Selects the method of verifying the range. Computes the checksums of pieces if the range needs them and the
    /// header has none.
    fn verification_of(&mut self, wanted: &Wanted, call: &mut Call<'_>) -> Result<Verification> {
        if num_pieces(wanted.extent.len_bytes) == 0 {
            return Ok(Verification::Whole);
        }
        if self.directory.learned().is_some() {
            return Ok(if self.is_partial(wanted) {
                Verification::Unknown
            } else {
                Verification::Whole
            });
        }
        let tables = Arc::clone(&self.pieces);
        loop {
            if let Some(table) = tables.get(wanted.id) {
                return Ok(Verification::Pieces(table));
            }
            if !self.is_partial(wanted) {
                return Ok(Verification::Whole);
            }
            if let Some(task) = tables.begin(wanted.id) {
                // Another thread may have finished the task just before this thread began it.
                if tables.get(wanted.id).is_none() {
                    let table = self.compute_table(wanted.id, wanted.extent, call)?;
                    tables.insert(wanted.id, table);
                }
                drop(task);
            } else {
                tables.wait(wanted.id, call.until());
                call.ask()?;
                if Instant::now() >= call.deadline {
                    return Err(timed_out(self.options.deadline, &self.devices));
                }
            }
        }
    }

    /// Computes the checksums of a sample's pieces from all its bytes, and compares the checksum of the whole
    /// sample.
    fn compute_table(
        &mut self,
        id: SampleId,
        extent: Extent,
        call: &mut Call<'_>,
    ) -> Result<Arc<[u32]>> {
        let len = extent.len_bytes;
        let mut sums = vec![0; num_pieces(len)];
        let mut unread = false;
        let starts: Vec<u32> = (0..len).step_by(FETCH_LEN_BYTES).collect();
        for burst in starts.chunks(FETCHES_AT_ONCE) {
            let mut begins = Vec::with_capacity(burst.len());
            let mut fetches = Vec::with_capacity(burst.len());
            for &start in burst {
                let part = (len - start).min(FETCH_LEN_BYTES as u32);
                let at = extent.offset_bytes + u64::from(start);
                let (fetch, begin) = self.plan_raw(extent.namespace, at, part);
                fetches.push(fetch);
                begins.push((begin, start, part));
            }
            self.run(fetches, call, &mut |nth, fetched| {
                let (begin, start, part) = begins[nth];
                unread |= !fetched.unread.is_empty();
                let bytes = fetched.buf.get(begin..begin + part as usize).unwrap_or_default();
                let first = (start / PIECE_BYTES) as usize;
                for (piece, bytes) in bytes.chunks(PIECE_BYTES as usize).enumerate() {
                    sums[first + piece] = crc32c(bytes);
                }
            })?;
        }
        if !unread && whole(&sums, len) == Some(extent.crc32c) {
            return Ok(sums.into());
        }
        // Damaged, or changed during the transfer: the sample is read again like any other. If that fails, the error
        // names the sample.
        let mut batch = Batch::new();
        let failures = self.read_in_call(&[id], &mut batch, call)?;
        match failures.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(batch.bytes(0).chunks(PIECE_BYTES as usize).map(crc32c).collect()),
        }
    }

    /// Reads the pieces of the groups and puts the ranges in `out`.
    fn read_groups(
        &mut self,
        groups: &mut [Group],
        out: &mut Ranges,
        failures: &mut Vec<(usize, Error)>,
        call: &mut Call<'_>,
    ) -> Result<()> {
        let mut fetches = Vec::with_capacity(groups.len());
        for group in groups.iter_mut() {
            fetches.push(self.plan_group(group));
        }
        self.run(fetches, call, &mut |nth, fetched| {
            let group = &groups[nth];
            let Fetched { fetch, buf, failures: of_pieces, unread, .. } = fetched;
            let mut failed: Vec<(Range<u32>, Error)> = Vec::new();
            for (piece, error) in of_pieces {
                let sample = fetch.samples[piece];
                let start = group.span.start + (sample.buf_offset - group.buf_offset) as u32;
                failed.push((start..start + sample.len_bytes, error));
            }
            if matches!(group.verification, Verification::Unknown) {
                failed.extend(unread.into_iter().map(|(_, error)| (group.span.clone(), error)));
            }
            for wanted in &group.wanted {
                let touches = |(bytes, _): &&(Range<u32>, Error)| {
                    bytes.start < wanted.end && wanted.start < bytes.end
                };
                if let Some((bytes, error)) = failed.iter().find(touches) {
                    failures.push((wanted.index, of_bytes(error, bytes, wanted)));
                    continue;
                }
                let offset = group.buf_offset + (wanted.start - group.span.start) as usize;
                let len = (wanted.end - wanted.start) as usize;
                out.places[wanted.index] = RangePlace { buf: out.bufs.len(), offset, len };
            }
            out.bufs.push(buf);
        })
    }

    /// The fetch of a group's pieces, as one contiguous range.
    fn plan_group(&self, group: &mut Group) -> Fetch {
        let Wanted { id, extent, .. } = group.wanted[0];
        let mut fetch = Fetch::default();
        match &group.verification {
            Verification::Whole => {
                plan_chunk([(id, extent)].into_iter(), None, &self.plans.geometry, &mut fetch)
            }
            Verification::Unknown => {
                let start = group.span.start;
                let len = group.span.end - group.span.start;
                let at = extent.offset_bytes + u64::from(start);
                (fetch, group.buf_offset) = self.plan_raw(extent.namespace, at, len);
                return fetch;
            }
            Verification::Pieces(table) => {
                let first = (group.span.start / PIECE_BYTES) as usize;
                let end = group.span.end.div_ceil(PIECE_BYTES) as usize;
                let pieces = (first..end).map(|piece| {
                    let skip = piece as u64 * u64::from(PIECE_BYTES);
                    let offset_bytes = extent.offset_bytes + skip;
                    let crc32c = table[piece];
                    let len_bytes = piece_len(extent.len_bytes, piece);
                    (id, Extent { offset_bytes, len_bytes, crc32c, ..extent })
                });
                plan_chunk(pieces, None, &self.plans.geometry, &mut fetch);
            }
        }
        group.buf_offset = fetch.samples[0].buf_offset;
        fetch
    }

    /// A fetch of `len` bytes at `offset_bytes` that the pump does not verify, and the offset of the bytes in its
    /// buffer.
    fn plan_raw(&self, namespace: u16, offset_bytes: u64, len: u32) -> (Fetch, usize) {
        let extent = Extent { namespace, offset_bytes, len_bytes: len, crc32c: 0 };
        let mut fetch = Fetch::default();
        plan_chunk([(SampleId(0), extent)].into_iter(), None, &self.plans.geometry, &mut fetch);
        let at = fetch.samples[0].buf_offset;
        fetch.samples.clear();
        (fetch, at)
    }

    /// Starts `fetches` and polls until all have finished; passes each of them to `take`, with its number.
    fn run(
        &mut self,
        fetches: Vec<Fetch>,
        call: &mut Call<'_>,
        take: &mut dyn FnMut(usize, Fetched),
    ) -> Result<()> {
        let first_token = self.begin_all(fetches)?;
        self.finish(first_token, call, &mut |fetched, _| {
            take((fetched.token - first_token - 1) as usize, fetched);
            None
        })
    }
}

/// Adds a range to the last group if they share a piece or are neighbours; otherwise begins another group. Ranges
/// are sorted by sample and first byte.
fn add_to_groups(groups: &mut Vec<Group>, wanted: Wanted, verification: Verification) {
    let len = wanted.extent.len_bytes;
    let span = match verification {
        Verification::Whole => 0..len,
        Verification::Pieces(_) => pieces_around(wanted.start..wanted.end, len),
        Verification::Unknown => wanted.start..wanted.end,
    };
    if let Some(last) = groups.last_mut()
        && last.wanted[0].id == wanted.id
        && span.start <= last.span.end
        && std::mem::discriminant(&last.verification) == std::mem::discriminant(&verification)
    {
        last.span.end = last.span.end.max(span.end);
        last.wanted.push(wanted);
        return;
    }
    groups.push(Group { wanted: vec![wanted], verification, span, buf_offset: 0 });
}

/// The byte range of all pieces that `bytes` touches.
fn pieces_around(bytes: Range<u32>, len: u32) -> Range<u32> {
    let end = u64::from(bytes.end).next_multiple_of(PIECE_BYTES.into()).min(len.into());
    bytes.start - bytes.start % PIECE_BYTES..end as u32
}

/// Returns whether the error ends the whole call, and not only one range of it.
fn ends_call(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::TimedOut | ErrorKind::Stale | ErrorKind::OutOfMemory
    )
}

/// The error of a range that touches the unusable `bytes` of its sample.
fn of_bytes(error: &Error, bytes: &Range<u32>, wanted: &Wanted) -> Error {
    if *bytes == (0..wanted.extent.len_bytes) {
        return error.to_others();
    }
    let Range { start, end } = bytes;
    let text = format!("bytes {start} to {end} of the sample cannot be used: {error}");
    let hint = "other parts of the sample may be readable; dlfs verify lists what is damaged";
    Error::new(error.kind(), text).sample(wanted.id).hint(hint)
}

/// The number of headers read together: usually of 4 KiB each.
const HEADERS_AT_ONCE: usize = 1024;

/// The number of fetches of 4 MiB in flight while a sample is read whole.
const FETCHES_AT_ONCE: usize = 4;
