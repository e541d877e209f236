//! Samples that come one after the other, and only once: what the streamed import reads.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::file_counts::FileCount;
use super::index::{BadEntry, BadReason};
use dlfs_base::Result;
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::OwnedValue;

/// A source that is read once, front to back.
pub trait SampleStream {
    /// The stream whose samples this one passes on, if it is no source itself: that answers what this one does not.
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

    /// The types that the source itself gives to fields, known with the first sample.
    fn field_types(&self) -> FieldTypes {
        self.inner().map(|inner| inner.field_types()).unwrap_or_default()
    }

    /// The names of the classes so far: labels are indexes into them. Empty: labels are numbers.
    fn classes(&self) -> &[Vec<u8>] {
        self.inner().map_or(&[], |inner| inner.classes())
    }

    /// Those of the classes that samples named first, and nothing else tells.
    fn found_classes(&self) -> &[Vec<u8>] {
        self.inner().map_or(&[], |inner| inner.found_classes())
    }

    /// The next sample; `None` at the end.
    ///
    /// # Errors
    /// What ends the import. What concerns one entry alone is in [`bad`](Self::bad).
    fn next_sample(&mut self) -> Result<Option<StreamSample>>;

    /// Accepts the sample that was read last: it holds its name, and its class has a number.
    fn accept(&mut self, sample: &mut StreamSample) {
        let _ = sample; // where no class is numbered as it comes
    }

    /// Reads on in the sample that was read last, of which so many bytes are unread. 0: there
    /// are no more.
    ///
    /// # Errors
    /// Why it cannot be imported; no more of it can be read.
    fn read_on(&mut self, into: &mut [u8]) -> Result<usize, BadReason> {
        self.inner_mut().map_or(Ok(0), |inner| inner.read_on(into))
    }

    /// Rejects the sample that was read last, which has this name.
    fn reject(&mut self, name: &[u8], reason: BadReason) {
        if let Some(inner) = self.inner_mut() {
            inner.reject(name, reason);
        }
    }

    /// Returns the place of the next sample, if the stream can be read from there on: then [`bad`](Self::bad) and the
    /// like are empty, and only the names, and those of [`found_classes`](Self::found_classes), are to be remembered.
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

    /// Archives after the first one of their file, for the files that have ended.
    fn appended(&self) -> Vec<FileCount> {
        self.inner().map(|inner| inner.appended()).unwrap_or_default()
    }

    /// Decompressed bytes of the pipes that have ended.
    fn piped_bytes(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.piped_bytes())
    }
}

/// A place in a stream, between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamPlace {
    /// The number of its file or object, from 0.
    pub input: u64,
    /// The byte there, after decompression; of an Arrow file with an index, the number of a batch.
    pub offset: u64,
    /// Samples that begin there or later, and before the place.
    pub left_out: u64,
    /// The number there of the next sample, where names depend on it.
    pub record: u64,
    /// Hash of the objects that samples before it named, beside those that are read in order; 0: none.
    pub named: u64,
    /// Windows that were shuffled before it.
    pub windows: u64,
}

/// A complete sample.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSample {
    /// Its name.
    pub name: Vec<u8>,
    /// Its label, if it has one.
    pub label: Option<i64>,
    /// Its fields, in the order of the stream's.
    pub fields: Vec<Option<FieldBytes>>,
    /// Its values in columns from fields.
    pub values: Vec<OwnedValue>,
    /// If its only field is too large for memory: its bytes, which [`SampleStream::read_on`] reads before anything else
    /// is read.
    pub unread: u64,
}

impl StreamSample {
    /// A sample without a label.
    pub(crate) fn new(name: Vec<u8>, fields: Vec<Option<FieldBytes>>) -> StreamSample {
        StreamSample { name, label: None, fields, values: Vec::new(), unread: 0 }
    }

    /// A sample of one field, which is to be read.
    pub(crate) fn unread(name: Vec<u8>, len_bytes: u64) -> StreamSample {
        let field = Some(Vec::new().into());
        StreamSample { unread: len_bytes, ..StreamSample::new(name, vec![field]) }
    }

    /// The lengths of its fields, in bytes.
    pub(crate) fn lens(&self) -> Vec<Option<u64>> {
        let len = |bytes: &FieldBytes| bytes.len() as u64 + self.unread;
        self.fields.iter().map(|field| field.as_ref().map(len)).collect()
    }

    /// The bytes of its fields.
    pub(crate) fn len_bytes(&self) -> usize {
        self.fields.iter().flatten().map(|field| field.len()).sum::<usize>() + self.unread as usize
    }
}

/// The bytes of a field: its own, or some of those that several share.
#[derive(Clone)]
pub enum FieldBytes {
    /// Its own.
    Own(Vec<u8>),
    /// These of the bytes that rows of a file, or members of a shard, share.
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
}

impl FieldBytes {
    /// Leaves the first `len` bytes out.
    pub(crate) fn skip(&mut self, len: usize) {
        match self {
            FieldBytes::Own(bytes) => drop(bytes.drain(..len)),
            FieldBytes::Shared(_, range) => range.start += len,
        }
    }

    /// The memory, if it is its own.
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
