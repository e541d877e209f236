//! A sample as an open file: reads at offsets that take only a part of a large sample.

use std::ops::Range;

use parking_lot::Mutex;

use super::Dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::format::fields::{field_range, table_len};
use crate::format::pieces::{PIECE_BYTES, PIECED_ABOVE_BYTES};
use crate::reader::{Ranges, SampleRange, Watch};
use crate::units::SampleId;

/// An open sample, or one field of it, as bytes or as a file. Reads may come from any thread, and never wait
/// for each other.
///
/// It caches the bytes of the last read: a sample up to 1 MiB whole, of a larger one at most 8 MiB.
/// Sequential reads read ahead, twice as far each time; other reads take only the pieces that they touch.
#[derive(Debug)]
pub struct SampleFile {
    dataset: Dataset,
    id: SampleId,
    /// The first bytes of the file, which the record lacks: the header of its form; or the whole file, if that is a
    /// number as text.
    head: Vec<u8>,
    /// The range of the record that holds the rest of the file, in bytes.
    span: Range<u64>,
    /// Length of the sample's whole record in bytes.
    record_len: u64,
    /// The bytes read last, while no thread uses them: a thread that finds `None` reads without them. The lock is only
    /// tried, so that a lock held at a fork does not block the child.
    window: Mutex<Option<Window>>,
}

/// The bytes that were read last.
#[derive(Debug)]
struct Window {
    /// The range of the record that the bytes are from.
    at: Range<u64>,
    ranges: Ranges,
    /// The end of the last read of the caller, in the record: where a sequential reader continues.
    next: u64,
}

impl Dataset {
    /// Opens a sample: the whole record, or the bytes of `field`, whose position is read from the table of
    /// fields.
    ///
    /// # Errors
    /// `NotFound`: there is no such sample, or it lacks the field. Errors of [`Dataset::read_range`].
    pub fn open_sample(
        &self,
        id: SampleId,
        field: Option<usize>,
        watch: &mut dyn Watch,
    ) -> Result<SampleFile> {
        let record_len = u64::from(self.len_bytes(id)?);
        let num_fields = self.directory().fields().len();
        let span = match field {
            Some(field) if num_fields > 1 => {
                let read = self.read_range(id, 0..table_len(num_fields), watch)?;
                let found = field_range(read.bytes(0), num_fields, field, record_len)?;
                found.ok_or_else(|| without_field(id))?
            }
            _ => 0..record_len,
        };
        let window = Mutex::new(None);
        let head = Vec::new();
        Ok(SampleFile { dataset: self.clone(), id, head, span, record_len, window })
    }

    /// Opens a sample or a field like [`Dataset::open_sample`], but as the file that it came from: if the type of the
    /// field has a [form of files](crate::format::field_type::FileForm), the file shows the elements in that form.
    ///
    /// # Errors
    /// Errors of [`Dataset::open_sample`].
    pub fn open_file(
        &self,
        id: SampleId,
        field: Option<usize>,
        watch: &mut dyn Watch,
    ) -> Result<SampleFile> {
        let mut file = self.open_sample(id, field, watch)?;
        let Some(kind) = field.and_then(|field| self.directory().field_types().of(field)) else {
            return Ok(file);
        };
        match kind.file_head(file.len_bytes()) {
            Some(head) => file.head = head,
            None => {
                let mut number = vec![0; file.len_bytes() as usize]; // one element
                file.read_at(0, &mut number, watch)?;
                file.head = kind.to_file(&number).into_owned();
                file.span.end = file.span.start;
            }
        }
        Ok(file)
    }

    /// Reads ranges of one field of samples, as [`Dataset::read_ranges`] does of whole samples. A sample that lacks the
    /// field fails with `NotFound`.
    ///
    /// # Errors
    /// Errors of [`Dataset::read_ranges`].
    pub fn read_field_ranges(
        &self,
        ranges: &[SampleRange],
        field: usize,
        watch: &mut dyn Watch,
    ) -> Result<(Ranges, Vec<(usize, Error)>)> {
        let num_fields = self.directory().fields().len();
        if num_fields <= 1 {
            return self.read_ranges(ranges, watch);
        }
        let table =
            |range: &SampleRange| SampleRange { start: 0, end: table_len(num_fields), ..*range };
        let (tables, mut failures) =
            self.read_ranges(&ranges.iter().map(table).collect::<Vec<_>>(), watch)?;
        let mut wanted = Vec::new();
        let mut places = Vec::new();
        let without_table = failures.len();
        for (index, range) in ranges.iter().enumerate() {
            let failed = &failures[..without_table];
            if failed.binary_search_by_key(&index, |(failed, _)| *failed).is_ok() {
                continue;
            }
            let found = self.len_bytes(range.id).and_then(|len| {
                Ok(field_range(tables.bytes(index), num_fields, field, len.into())?)
            });
            match found {
                Ok(Some(span)) => {
                    let at = |offset: u64| span.start.saturating_add(offset).min(span.end);
                    wanted.push(SampleRange {
                        start: at(range.start),
                        end: at(range.end),
                        ..*range
                    });
                    places.push(index);
                }
                Ok(None) => failures.push((index, without_field(range.id))),
                Err(error) => failures.push((index, error.sample(range.id))),
            }
        }
        let (read, more) = self.read_ranges(&wanted, watch)?;
        failures.extend(more.into_iter().map(|(nth, error)| (places[nth], error)));
        failures.sort_by_key(|(index, _)| *index);
        Ok((read.spread(&places, ranges.len()), failures))
    }
}

fn without_field(id: SampleId) -> Error {
    Error::new(ErrorKind::NotFound, "the sample does not have the field").sample(id)
}

impl SampleFile {
    /// The sample.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// The length of the file in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.head.len() as u64 + self.body_len()
    }

    /// Bytes of the file behind its head.
    fn body_len(&self) -> u64 {
        self.span.end - self.span.start
    }

    /// Reads at `offset` into `buf`, as `pread` does; returns the number of bytes, 0 at and after the end.
    ///
    /// # Errors
    /// Errors of [`Dataset::read_range`]; the content of `buf` is then undefined.
    pub fn read_at(&self, offset: u64, buf: &mut [u8], watch: &mut dyn Watch) -> Result<usize> {
        let head_len = self.head.len() as u64;
        let front = &self.head[offset.min(head_len) as usize..];
        let taken = front.len().min(buf.len());
        buf[..taken].copy_from_slice(&front[..taken]);
        let at = offset.saturating_sub(head_len);
        Ok(taken + self.read_body(at, &mut buf[taken..], watch)?)
    }

    /// Reads at `offset` behind the head.
    fn read_body(&self, offset: u64, buf: &mut [u8], watch: &mut dyn Watch) -> Result<usize> {
        let left = self.body_len().saturating_sub(offset);
        let len = left.min(buf.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let start = self.span.start + offset;
        let mut window = self.window.try_lock().and_then(|mut window| window.take());
        let mut done = 0;
        while done < len {
            let at = start + done as u64;
            let kept = match window.take() {
                Some(window) if window.at.contains(&at) => window,
                other => self.read_window(at..start + len as u64, other.as_ref(), watch)?,
            };
            let from = (at - kept.at.start) as usize;
            let bytes = kept.ranges.bytes(0).get(from..).unwrap_or_default();
            let taken = bytes.len().min(len - done);
            if taken == 0 {
                let text = "a read of the sample returned fewer bytes than it has";
                return Err(Error::new(ErrorKind::Internal, text).sample(self.id));
            }
            buf[done..done + taken].copy_from_slice(&bytes[..taken]);
            done += taken;
            window = Some(Window { next: start + done as u64, ..kept });
        }
        if let Some(mut kept) = self.window.try_lock() {
            *kept = window;
        }
        Ok(len)
    }

    /// Calls `work` with verified bytes of the file at `offset`, as many as one read brings; with none at the
    /// end of the file. Uses neither cached bytes nor readahead: for callers that read the whole file and need no
    /// copy of the bytes.
    ///
    /// # Errors
    /// Errors of [`Dataset::read_range`].
    pub fn with_bytes_at<T>(
        &self,
        offset: u64,
        watch: &mut dyn Watch,
        work: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let head_len = self.head.len() as u64;
        if offset < head_len {
            return Ok(work(&self.head[offset as usize..]));
        }
        let start = (self.span.start + offset - head_len).min(self.span.end);
        let end = start - start % STEP_BYTES + STEP_BYTES;
        let read = self.dataset.read_range(self.id, start..end.min(self.span.end), watch)?;
        Ok(work(read.bytes(0)))
    }

    /// Drops the cached bytes, unless another thread uses them.
    pub fn release(&self) {
        if let Some(mut window) = self.window.try_lock() {
            *window = None;
        }
    }

    /// Reads the range `wanted` of the record, or the first [`MAX_WINDOW_BYTES`] of it: of a small record all bytes,
    /// of a large one whole pieces, and more of them if `wanted` continues the last read.
    fn read_window(
        &self,
        wanted: Range<u64>,
        last: Option<&Window>,
        watch: &mut dyn Watch,
    ) -> Result<Window> {
        let at = if self.record_len <= PIECED_ABOVE_BYTES.into() {
            0..self.record_len
        } else {
            let piece = u64::from(PIECE_BYTES);
            let ahead = match last {
                Some(last) if last.next == wanted.start => 2 * (last.at.end - last.at.start),
                _ => 0,
            };
            let start = wanted.start - wanted.start % piece;
            let end = wanted.end.max(start + ahead).min(start + MAX_WINDOW_BYTES);
            start..end.next_multiple_of(piece).min(self.record_len)
        };
        let ranges = self.dataset.read_range(self.id, at.clone(), watch)?;
        Ok(Window { at, ranges, next: wanted.start })
    }
}

/// Bytes per step through a whole file: a step stays in the processor's cache until it is copied.
const STEP_BYTES: u64 = 1 << 20;
/// The most that one file caches, and reads at once.
const MAX_WINDOW_BYTES: u64 = 8 << 20;
