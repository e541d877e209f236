//! Streams of samples: sources that the streamed import reads once, front to back.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::bad::{BadEntry, BadReason};
use super::file_counts::FileCount;
use dlfs_base::Result;
use dlfs_format::format::columns::OwnedValue;
use dlfs_format::format::{FieldTypes, fields};

/// A source that is read once, front to back.
pub trait SampleStream {
    /// The stream that this one wraps; `None`: this one is a source itself. Methods that an implementation does not
    /// define call the inner stream, except [`accept`](Self::accept).
    fn inner(&self) -> Option<&(dyn SampleStream + '_)> {
        None
    }

    /// As [`inner`](Self::inner).
    fn inner_mut(&mut self) -> Option<&mut (dyn SampleStream + '_)> {
        None
    }

    /// Names of the fields, known with the first sample; empty for one unnamed field.
    fn fields(&self) -> &[Vec<u8>] {
        self.inner().map_or(&[], |inner| inner.fields())
    }

    /// The types of fields that the source itself defines, known with the first sample.
    fn field_types(&self) -> FieldTypes {
        self.inner().map(|inner| inner.field_types()).unwrap_or_default()
    }

    /// The names of the classes so far, indexed by label; empty if labels are numbers of the source.
    fn classes(&self) -> &[Vec<u8>] {
        self.inner().map_or(&[], |inner| inner.classes())
    }

    /// The classes that are known only from samples, in the order of their numbers.
    fn found_classes(&self) -> &[Vec<u8>] {
        self.inner().map_or(&[], |inner| inner.found_classes())
    }

    /// The folders of plain archives so far, without those that a sample followed at once. They count as classes, too.
    fn folders(&self) -> &[Vec<u8>] {
        self.inner().map_or(&[], |inner| inner.folders())
    }

    /// The next sample; `None` at the end.
    ///
    /// # Errors
    /// Errors that end the import. An error of a single entry is in [`bad`](Self::bad) instead.
    fn next_sample(&mut self) -> Result<Option<StreamSample>>;

    /// Begins to decode, if this stream decodes ahead of [`next_sample`](Self::next_sample).
    ///
    /// # Errors
    /// As [`next_sample`](Self::next_sample).
    fn begin_ahead(&mut self) -> Result<()> {
        self.inner_mut().map_or(Ok(()), |inner| inner.begin_ahead())
    }

    /// Returns whether all samples were decoded ahead, so that nothing more is requested for this stream.
    fn is_decoded(&self) -> bool {
        self.inner().is_some_and(|inner| inner.is_decoded())
    }

    /// Accepts the last sample read: reserves its name, and gives its class a number.
    fn accept(&mut self, sample: &mut StreamSample) {
        let _ = sample; // most streams remember nothing of accepted samples
    }

    /// Reads the next bytes of the last sample, if it has [`unread`](StreamSample::unread) bytes; returns their number,
    /// 0 at the sample's end.
    ///
    /// # Errors
    /// The reason why the sample cannot be imported; the rest of it cannot be read.
    fn read_on(&mut self, into: &mut [u8]) -> Result<usize, BadReason> {
        self.inner_mut().map_or(Ok(0), |inner| inner.read_on(into))
    }

    /// Rejects the last sample read, which is called `name`.
    fn reject(&mut self, name: &[u8], reason: BadReason) {
        if let Some(inner) = self.inner_mut() {
            inner.reject(name, reason);
        }
    }

    /// The place of the next sample; `None`: reading cannot resume there. With a place, [`bad`](Self::bad) is empty; to
    /// resume there, the caller needs only the names of the samples before and [`found_classes`](Self::found_classes).
    fn place(&self) -> Option<StreamPlace> {
        self.inner()?.place()
    }

    /// Takes back the memory of a sample for reuse.
    fn give_back(&mut self, sample: StreamSample) {
        if let Some(inner) = self.inner_mut() {
            inner.give_back(sample);
        }
    }

    /// Entries that could not be imported so far.
    fn bad(&self) -> &[BadEntry] {
        self.inner().map_or(&[], |inner| inner.bad())
    }

    /// Takes the entries that could not be imported so far, so that [`place`](Self::place) is known again.
    fn take_bad(&mut self) -> Vec<BadEntry> {
        self.inner_mut().map(|inner| inner.take_bad()).unwrap_or_default()
    }

    /// Counts for the report: members that were left out or replaced, and, in files that have ended, archives after the
    /// first one.
    fn appended(&self) -> Vec<FileCount> {
        self.inner().map(|inner| inner.appended()).unwrap_or_default()
    }

    /// Decompressed bytes of the pipes that have ended.
    fn piped_bytes(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.piped_bytes())
    }
}

/// A place in a stream, between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct StreamPlace {
    /// Number of the input, a file or object, from 0.
    pub input: u64,
    /// Byte offset in the input, after decompression; in an Arrow file with an index, the number of a batch.
    pub offset: u64,
    /// Number of samples between that offset and the place.
    pub left_out: u64,
    /// Number of the next sample in the input, if names depend on it.
    pub record: u64,
    /// Hash of the objects, other than the inputs, that earlier samples named; 0: they named none.
    pub named: u64,
    /// Number of windows shuffled before the place.
    pub windows: u64,
}

/// A complete sample.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSample {
    /// The name.
    pub name: Vec<u8>,
    /// The label, if it has one.
    pub label: Option<i64>,
    /// The fields, in the order of the stream's fields; `None`: the sample lacks the field.
    pub fields: Vec<Option<FieldBytes>>,
    /// Values of the typed columns that are made from fields.
    pub values: Vec<OwnedValue>,
    /// Length in bytes of the only field, if the field is too large to be read at once: [`SampleStream::read_on`] must
    /// read it before the next sample is read. Otherwise 0.
    pub unread: u64,
}

impl StreamSample {
    /// A sample without a label.
    pub(crate) fn new(name: Vec<u8>, fields: Vec<Option<FieldBytes>>) -> StreamSample {
        StreamSample { name, label: None, fields, values: Vec::new(), unread: 0 }
    }

    /// The lengths of the fields in bytes; `None`: the sample lacks the field.
    pub(crate) fn lens(&self) -> Vec<Option<u64>> {
        let len = |bytes: &FieldBytes| bytes.len() as u64 + self.unread;
        self.fields.iter().map(|field| field.as_ref().map(len)).collect()
    }

    /// Appends the record of the sample to `out`: the length table if there are several fields, then the fields.
    /// Returns the length of the record.
    ///
    /// # Errors
    /// The record has 4 GiB or more; then nothing is appended.
    pub fn put_record(&self, out: &mut Vec<u8>) -> Result<u32> {
        let lens = self.lens();
        let len = fields::record_len(&lens)?;
        out.extend_from_slice(&fields::table(&lens));
        self.fields.iter().flatten().for_each(|field| out.extend_from_slice(field));
        Ok(len)
    }

    /// The total length of the fields in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.fields.iter().flatten().map(|field| field.len()).sum::<usize>() + self.unread as usize
    }
}

/// The bytes of a field: owned, or a range of a shared buffer.
#[derive(Clone)]
pub enum FieldBytes {
    /// Owned bytes.
    Own(Vec<u8>),
    /// A range of a buffer that several rows of a file, or members of a shard, share.
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
}

impl FieldBytes {
    /// Removes the first `len` bytes.
    pub(crate) fn skip(&mut self, len: usize) {
        match self {
            FieldBytes::Own(bytes) => drop(bytes.drain(..len)),
            FieldBytes::Shared(_, range) => range.start += len,
        }
    }

    /// The buffer, if it is owned.
    pub(crate) fn into_own(self) -> Option<Vec<u8>> {
        match self {
            FieldBytes::Own(bytes) => Some(bytes),
            FieldBytes::Shared(..) => None,
        }
    }
}

impl Deref for FieldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FieldBytes::Own(bytes) => bytes,
            FieldBytes::Shared(all, range) => &(**all).as_ref()[range.clone()],
        }
    }
}

impl From<Vec<u8>> for FieldBytes {
    fn from(bytes: Vec<u8>) -> FieldBytes {
        FieldBytes::Own(bytes)
    }
}

impl PartialEq for FieldBytes {
    fn eq(&self, other: &FieldBytes) -> bool {
        **self == **other
    }
}

impl Eq for FieldBytes {}

impl fmt::Debug for FieldBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
