//! A batch: ids, labels, and the bytes of each sample in the buffers that the bytes were read into.

use std::sync::Arc;

use crate::buf::SharedBuf;
use crate::checksum::crc32c;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::format::field_type::{Element, FieldArray};
use crate::units::{Epoch, SampleId};

/// Samples that were requested together, in the order of the request, every byte verified.
///
/// The bytes are usually not copied: a batch shares the read buffers. Two cases copy them into one buffer: reads of
/// thousands of scattered samples (`gather.rs`), and loaders with [`copy_threads`](crate::prefetch::LoaderOptions).
/// Chunks that are read in several passes (`prefetch/passes.rs`) are copied into small buffers.
/// Buffers return to their pool when the batch is dropped or reused.
#[derive(Default)]
pub struct Batch {
    directory: Option<Arc<Directory>>,
    /// The directories of a mixture's sources, instead of `directory`.
    mixed: Option<Arc<[Arc<Directory>]>>,
    /// The source of each sample; empty unless the batch is of a mixture.
    sources: Vec<u32>,
    /// In the first epoch of shards without an index: each sample's id in its window's directory. `sources` then
    /// numbers these directories, not data sets.
    rows: Vec<u32>,
    pub(super) samples: Vec<SampleLocation>,
    pub(super) bufs: Vec<SharedBuf>,
    /// Samples to verify again when the batch is delivered, ascending by index.
    rechecks: Vec<Recheck>,
    epoch: Epoch,
    ends_epoch: bool,
}

/// The location of one sample's bytes: a range of one of the batch's buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleLocation {
    pub(crate) id: SampleId,
    /// The index of the buffer: [`MISSING`] if the sample failed and is to be removed, any if it is empty.
    pub(crate) buf: u32,
    pub(crate) len_bytes: u32,
    /// First byte in the buffer.
    pub(crate) offset: usize,
}

/// A sample that is verified again when the batch is delivered: its memory was also part of an earlier epoch's batch,
/// and the caller may have written to it through a writable view.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recheck {
    /// Position in the batch.
    pub(crate) index: u32,
    /// The source, if the batch is of a mixture.
    pub(crate) source: u32,
    /// The checksum that the sample should have.
    pub(crate) crc32c: u32,
    /// The chunk whose memory the batch shares.
    pub(crate) chunk: u32,
    /// The number of the read that filled the chunk's memory.
    pub(crate) load: u32,
}

/// A batch of one source of a mixture. Its samples go one by one to batches of the mixture.
#[derive(Default)]
pub(crate) struct BatchOfSource {
    source: u32,
    batch: Batch,
    /// The number of samples taken so far, and of the rechecks among them.
    taken: usize,
    rechecked: usize,
    /// For each buffer: the number of the batch that took it last, and the buffer's index in that batch.
    bufs: Vec<(u32, u32)>,
}

impl BatchOfSource {
    pub(crate) fn new(source: u32, batch: Batch) -> BatchOfSource {
        let bufs = vec![(MISSING, 0); batch.bufs.len()];
        BatchOfSource { source, batch, taken: 0, rechecked: 0, bufs }
    }

    /// Returns the batch without samples, so that its memory can be reused.
    pub(crate) fn into_empty(mut self) -> Batch {
        self.batch.clear();
        self.batch
    }
}

/// One sample of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// The sample's id in the data set.
    pub id: SampleId,
    /// Its label, if the data set has labels.
    pub label: Option<i64>,
    /// Its whole record; for the parts of a sample with several fields see [`Batch::field`].
    pub bytes: &'a [u8],
}

impl Batch {
    /// An empty batch, to be filled by [`super::Reader::read_batch`].
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch with room for this many samples and buffers: it allocates when it exceeds them.
    pub(crate) fn with_capacity(samples: usize, bufs: usize) -> Batch {
        let samples = Vec::with_capacity(samples);
        let bufs = Vec::with_capacity(bufs);
        Batch { samples, bufs, ..Batch::default() }
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The epoch of the batch; 0 if it was read by ids.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns whether this is the last batch of its epoch on this rank.
    pub fn ends_epoch(&self) -> bool {
        self.ends_epoch
    }

    /// The id of the sample at `index`.
    ///
    /// # Panics
    /// If `index` is [`Batch::len`] or more.
    pub fn id(&self, index: usize) -> SampleId {
        self.samples[index].id
    }

    /// The id of the sample at `index` in [its directory](Batch::directory_of). It differs from [`Batch::id`] only in
    /// the first epoch of [shards without an index](crate::dataset::FirstEpoch).
    ///
    /// # Panics
    /// If `index` is [`Batch::len`] or more.
    pub fn id_in_directory(&self, index: usize) -> SampleId {
        self.rows.get(index).map_or(self.samples[index].id, |&row| SampleId(row.into()))
    }

    /// The ids, in order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = SampleId> + '_ {
        self.samples.iter().map(|location| location.id)
    }

    /// The source of each sample, counted from 0, if the batch is of a mixture: ids and labels belong to the
    /// source's data set. `None` for a batch of one data set.
    pub fn sources(&self) -> Option<&[u32]> {
        (self.mixed.is_some() && self.rows.is_empty()).then_some(&self.sources)
    }

    /// The directory of the data set of the sample at `index`; it has the typed columns. `None` before the batch
    /// was read. In a batch of one data set it is the same for any index, also without samples.
    ///
    /// # Panics
    /// If `index` is [`Batch::len`] or more, and the batch is of a mixture.
    pub fn directory_of(&self, index: usize) -> Option<&Arc<Directory>> {
        match &self.mixed {
            Some(directories) => directories.get(self.sources[index] as usize),
            None => self.directory.as_ref(),
        }
    }

    /// The verified bytes of the sample at `index`: its whole record. If samples have several fields, the record is
    /// a table of lengths and then the fields: see [`Batch::field`].
    ///
    /// # Panics
    /// If `index` is [`Batch::len`] or more.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let location = &self.samples[index];
        if location.len_bytes == 0 {
            return &[];
        }
        &self.bufs[location.buf as usize]
            [location.offset..location.offset + location.len_bytes as usize]
    }

    /// Returns whether the data set, or a source of the mixture, has labels. The samples of this batch may still have
    /// none.
    pub fn has_labels(&self) -> bool {
        let mut directories =
            self.directory.iter().chain(self.mixed.iter().flat_map(|all| all.iter()));
        directories.any(|directory| directory.labels().is_some())
    }

    /// The label of the sample at `index`. Does no I/O.
    ///
    /// # Panics
    /// If `index` is [`Batch::len`] or more.
    pub fn label(&self, index: usize) -> Option<i64> {
        self.directory_of(index)?.label(self.id_in_directory(index))
    }

    /// The bytes of field number `field` of the sample at `index`; [`Directory::fields`] lists the names of fields.
    /// `None`: this sample does not have the field.
    ///
    /// # Errors
    /// `NotFound`: the field does not exist. `Corrupt`: the record's table of lengths does not fit the record.
    ///
    /// # Panics
    /// If `index` is [`Batch::len`] or more.
    pub fn field(&self, index: usize, field: usize) -> Result<Option<&[u8]>> {
        let fields =
            self.directory_of(index).map_or(1, |directory| directory.fields().len().max(1));
        let record = self.bytes(index);
        if field >= fields {
            let text = format!("there is no field {field}, samples have {fields}");
            return Err(Error::new(ErrorKind::NotFound, text).sample(self.id(index)));
        }
        let range = crate::format::fields::find(record, fields, field)
            .map_err(|error| Error::from(error).sample(self.id(index)))?;
        Ok(range.map(|range| &record[range]))
    }

    /// The field as [`Batch::field`] finds it, as an array of its type; a field without a type is a `u8[*]`.
    ///
    /// # Errors
    /// As [`Batch::field`]. `Corrupt`: the length of the field does not match its type.
    ///
    /// # Panics
    /// If `index` is [`Batch::len`] or more.
    pub fn array(&self, index: usize, field: usize) -> Result<Option<FieldArray<'_>>> {
        let Some(bytes) = self.field(index, field)? else { return Ok(None) };
        let directory = self.directory_of(index);
        let kind = directory.and_then(|directory| directory.field_types().of(field));
        let Some(kind) = kind else {
            let shape = vec![bytes.len() as u64];
            return Ok(Some(FieldArray { element: Element::U8, shape, bytes }));
        };
        let array = kind.array(bytes);
        array.map(Some).map_err(|error| Error::from(error).sample(self.id(index)))
    }

    /// The samples, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Sample<'_>> {
        (0..self.len()).map(|index| Sample {
            id: self.id(index),
            label: self.label(index),
            bytes: self.bytes(index),
        })
    }

    /// The sum of the samples' lengths.
    pub fn len_bytes(&self) -> u64 {
        self.samples.iter().map(|location| u64::from(location.len_bytes)).sum()
    }

    /// The whole batch as one `[batch, length]` array, without a copy.
    ///
    /// `None` if lengths differ or are 0, or the samples are not contiguous; [`Batch::copy_to`] makes them contiguous.
    pub fn contiguous(&self) -> Option<&[u8]> {
        let first = self.samples.first()?;
        let len = first.len_bytes as usize;
        let is_contiguous = self.samples.iter().enumerate().all(|(index, location)| {
            location.buf == first.buf
                && location.len_bytes == first.len_bytes
                && location.offset == first.offset + index * len
        });
        if !is_contiguous || len == 0 {
            return None;
        }
        let buf = &self.bufs[first.buf as usize];
        Some(&buf[first.offset..first.offset + len * self.samples.len()])
    }

    /// Copies all samples, one after the other, into `out`; returns the number of bytes written.
    ///
    /// # Errors
    /// `InvalidArgument`: `out` is shorter than [`Batch::len_bytes`]; nothing was written.
    pub fn copy_to(&self, out: &mut [u8]) -> Result<usize> {
        let need = self.len_bytes() as usize;
        if out.len() < need {
            return Err(invalid(format!("the batch has {need} bytes, the buffer {}", out.len())));
        }
        let mut at = 0;
        for index in 0..self.len() {
            let bytes = self.bytes(index);
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        Ok(at)
    }

    pub(crate) fn reset(&mut self, directory: &Arc<Directory>, epoch: Epoch) {
        self.clear();
        self.epoch = epoch;
        self.ends_epoch = false;
        if !self.directory.as_ref().is_some_and(|known| Arc::ptr_eq(known, directory)) {
            self.directory = Some(Arc::clone(directory));
        }
        self.mixed = None;
    }

    /// As [`Batch::reset`], for samples of several data sets.
    pub(crate) fn reset_mixed(&mut self, directories: &Arc<[Arc<Directory>]>, epoch: Epoch) {
        self.clear();
        self.epoch = epoch;
        self.ends_epoch = false;
        self.directory = None;
        if !self.mixed.as_ref().is_some_and(|known| Arc::ptr_eq(known, directories)) {
            self.mixed = Some(Arc::clone(directories));
        }
    }

    /// Appends the source of the next sample, in a batch of several data sets.
    pub(crate) fn push_source(&mut self, source: u32) {
        self.sources.push(source);
    }

    /// Appends a sample, which is number `row` in the directory `source`.
    pub(crate) fn push_row(&mut self, location: SampleLocation, source: u32, row: u32) {
        self.samples.push(location);
        self.sources.push(source);
        self.rows.push(row);
    }

    /// Appends the next sample of the batch `of`, and returns the sample's index there. `number` identifies this batch
    /// among all that take samples of `of`; 0: the last of them, which takes the buffers instead of sharing them.
    #[inline]
    pub(crate) fn push_next_of(&mut self, of: &mut BatchOfSource, number: u32) -> u32 {
        let nth = of.taken;
        of.taken += 1;
        let mut location = of.batch.samples[nth];
        if let Some(recheck) = of.batch.rechecks.get(of.rechecked)
            && recheck.index as usize == nth
        {
            of.rechecked += 1;
            let index = self.samples.len() as u32;
            self.rechecks.push(Recheck { index, source: of.source, ..*recheck });
        }
        if let Some(buf) = of.bufs.get_mut(location.buf as usize) {
            if buf.0 != number {
                *buf = (number, self.bufs.len() as u32);
                let buf = &mut of.batch.bufs[location.buf as usize];
                self.bufs.push(if number == 0 { std::mem::take(buf) } else { buf.clone() });
            }
            location.buf = buf.1;
        }
        self.samples.push(location);
        self.sources.push(of.source);
        nth as u32
    }

    /// Returns the buffers to their pool and keeps the vectors for the next use.
    pub(crate) fn clear(&mut self) {
        self.samples.clear();
        self.sources.clear();
        self.rows.clear();
        self.bufs.clear();
        self.rechecks.clear();
    }

    /// Returns whether all samples are contiguous in one buffer.
    pub(crate) fn is_one_piece(&self) -> bool {
        let mut end = None;
        self.samples.iter().filter(|location| location.len_bytes > 0).all(|location| {
            let here = (location.buf, location.offset);
            let follows = end.is_none_or(|end| end == here);
            end = Some((location.buf, location.offset + location.len_bytes as usize));
            follows
        })
    }

    /// Replaces the buffers with `buf`; the caller has copied all samples into it, one after the other.
    pub(crate) fn move_to(&mut self, buf: SharedBuf) {
        let mut offset = 0;
        for location in &mut self.samples {
            (location.buf, location.offset) = (0, offset);
            offset += location.len_bytes as usize;
        }
        self.bufs.clear();
        self.bufs.push(buf);
    }

    pub(crate) fn set_ends_epoch(&mut self) {
        self.ends_epoch = true;
    }

    /// Resizes to `count` samples; their locations may be set in any order.
    pub(crate) fn resize(&mut self, count: usize) {
        let missing = SampleLocation { id: SampleId(0), buf: MISSING, len_bytes: 0, offset: 0 };
        self.samples.resize(count, missing);
    }

    /// Reserves memory for `count` samples of later `push` calls.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.samples.reserve(count);
    }

    /// Reserves memory for `count` buffers of later `add_buf` calls.
    pub(crate) fn reserve_bufs(&mut self, count: usize) {
        self.bufs.reserve(count);
    }

    pub(crate) fn push(&mut self, location: SampleLocation) {
        self.samples.push(location);
    }

    /// Appends a failed sample: it has no location, and keeps its place until [`Batch::remove_missing`].
    pub(crate) fn push_missing(&mut self, id: SampleId) {
        self.samples.push(SampleLocation { id, buf: MISSING, len_bytes: 0, offset: 0 });
    }

    pub(crate) fn add_buf(&mut self, buf: SharedBuf) -> u32 {
        self.bufs.push(buf);
        (self.bufs.len() - 1) as u32
    }

    /// Replaces the buffer at `index`; the caller has copied samples into the new one.
    pub(crate) fn set_buf(&mut self, index: u32, buf: SharedBuf) {
        self.bufs[index as usize] = buf;
    }

    pub(crate) fn location(&self, index: usize) -> SampleLocation {
        self.samples[index]
    }

    /// Marks the next pushed sample: its checksum is compared again when the batch is delivered.
    pub(crate) fn recheck_next(&mut self, crc32c: u32, chunk: u32, load: u32) {
        let index = self.samples.len() as u32;
        self.rechecks.push(Recheck { index, source: 0, crc32c, chunk, load });
    }

    /// The samples to recheck whose bytes have changed since they were read. Compares checksums; allocates only if
    /// one differs.
    pub(crate) fn rewritten(&self) -> Vec<Recheck> {
        #[cfg(feature = "unverified")]
        if super::unverified::is_set() {
            return Vec::new();
        }
        let differs =
            |recheck: &&Recheck| crc32c(self.bytes(recheck.index as usize)) != recheck.crc32c;
        self.rechecks.iter().filter(differs).copied().collect()
    }

    /// Replaces the sample at `index` with sample `nth` of `other`.
    pub(crate) fn replace(&mut self, index: usize, other: &Batch, nth: usize) {
        let location = other.samples[nth];
        let buf = match location.len_bytes {
            0 => 0,
            _ => self.add_buf(other.bufs[location.buf as usize].clone()),
        };
        self.samples[index] = SampleLocation { buf, ..location };
    }

    /// Marks the sample at `index` as missing; [`Batch::remove_missing`] then removes it.
    pub(crate) fn clear_location(&mut self, index: usize) {
        self.samples[index].buf = MISSING;
    }

    /// Removes the samples without a location: they failed and are skipped.
    pub(crate) fn remove_missing(&mut self) {
        let missing = (0_u32..).zip(&self.samples).filter(|(_, location)| location.buf == MISSING);
        let mut missing = missing.map(|(index, _)| index).peekable();
        let mut num_before = 0;
        self.rechecks.retain_mut(|recheck| {
            while missing.next_if(|&index| index < recheck.index).is_some() {
                num_before += 1;
            }
            let is_missing = missing.peek() == Some(&recheck.index);
            recheck.index -= num_before;
            !is_missing
        });
        if !self.sources.is_empty() {
            let mut locations = self.samples.iter();
            self.sources
                .retain(|_| locations.next().is_some_and(|location| location.buf != MISSING));
        }
        self.samples.retain(|location| location.buf != MISSING);
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} samples, {} bytes)", self.len(), self.len_bytes())
    }
}

/// Buffer index of a sample without a location; in [`BatchOfSource::bufs`], the number of no batch.
const MISSING: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::IoBuf;

    #[test]
    fn samples_to_recheck_are_the_same_after_missing_ones_are_removed() {
        let mut batch = Batch::new();
        let mut bytes = IoBuf::zeroed(3);
        bytes.copy_from_slice(b"abc");
        let buf = batch.add_buf(bytes.freeze());
        let sample = |id, offset| SampleLocation { id: SampleId(id), buf, len_bytes: 1, offset };
        batch.push(sample(0, 0));
        batch.push_missing(SampleId(1));
        batch.recheck_next(crc32c(b"b"), 0, 0);
        batch.push(sample(2, 1));
        batch.recheck_next(crc32c(b"c before"), 0, 0);
        batch.push(sample(3, 2));
        batch.recheck_next(crc32c(b"any"), 0, 0);
        batch.push_missing(SampleId(4));
        batch.remove_missing();
        let rewritten = batch.rewritten();
        let ids: Vec<SampleId> = rewritten.iter().map(|it| batch.id(it.index as usize)).collect();
        assert_eq!(ids, [SampleId(3)]);
    }
}
