//! Streams of samples, which the streamed import reads once, in order.
//!
//! `Shuffled` shuffles them, a window at a time. A stream may be sorted by class, but the samples of a chunk should
//! be a random choice. The order depends only on the seed and the samples, so that a resumed import writes the same
//! chunks.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::file_counts::FileCount;
use super::index::{BadEntry, BadReason};
use dlfs_base::Result;
use dlfs_base::permutation::{Key, Permutation};
use dlfs_format::format::columns::OwnedValue;
use dlfs_format::format::{FieldTypes, fields};

/// A source that is read once, front to back.
pub trait SampleStream {
    /// The stream that this one wraps, if it is not a source itself. Methods that this one does not override are
    /// answered by the inner stream.
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

    /// The next sample; `None` at the end.
    ///
    /// # Errors
    /// Errors that end the import. An error of a single entry is in [`bad`](Self::bad) instead.
    fn next_sample(&mut self) -> Result<Option<StreamSample>>;

    /// Accepts the last sample read: its name is taken from now on, and its class gets a number.
    fn accept(&mut self, sample: &mut StreamSample) {
        let _ = sample; // most streams keep nothing of accepted samples
    }

    /// Reads the next piece of the last sample, if it has [`unread`](StreamSample::unread) bytes; 0 at its end.
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

    /// The place of the next sample, if reading can resume there. Then [`bad`](Self::bad) is empty, and to resume, only
    /// the samples' names and [`found_classes`](Self::found_classes) must be remembered.
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

    /// Takes the entries that could not be imported so far, so that [`place`](Self::place) has places behind them, too.
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
    /// Hash of the objects that earlier samples named, besides the inputs themselves; 0: none.
    pub named: u64,
    /// Number of windows shuffled before the place.
    pub windows: u64,
}

/// A complete sample.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSample {
    /// Its name.
    pub name: Vec<u8>,
    /// Its label, if it has one.
    pub label: Option<i64>,
    /// Its fields, in the order of the stream's fields; `None`: the sample lacks the field.
    pub fields: Vec<Option<FieldBytes>>,
    /// Its values of typed columns that are made from fields.
    pub values: Vec<OwnedValue>,
    /// If its only field is too large to be read at once, the field's length; [`SampleStream::read_on`] must read these
    /// bytes before the next sample is read. Otherwise 0.
    pub unread: u64,
}

impl StreamSample {
    /// A sample without a label.
    pub(crate) fn new(name: Vec<u8>, fields: Vec<Option<FieldBytes>>) -> StreamSample {
        StreamSample { name, label: None, fields, values: Vec::new(), unread: 0 }
    }

    /// The lengths of its fields, in bytes.
    pub(crate) fn lens(&self) -> Vec<Option<u64>> {
        let len = |bytes: &FieldBytes| bytes.len() as u64 + self.unread;
        self.fields.iter().map(|field| field.as_ref().map(len)).collect()
    }

    /// Appends its record to `out`: the length table if there are several fields, then the fields. Returns the record's
    /// length.
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

    /// The total length of its fields, in bytes.
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

    /// The memory, if it is owned.
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

/// A stream whose samples are shuffled within each window.
pub(crate) struct Shuffled<'a> {
    from: Box<dyn SampleStream + 'a>,
    key: Key,
    window_bytes: usize,
    windows: u64,
    /// The samples of the current window that were not returned yet.
    window: VecDeque<StreamSample>,
}

impl<'a> Shuffled<'a> {
    /// Shuffles `from` in windows of `window_bytes`, after `windows` earlier windows.
    pub(crate) fn new(
        from: Box<dyn SampleStream + 'a>,
        seed: u64,
        window_bytes: usize,
        windows: u64,
    ) -> Shuffled<'a> {
        let key = Key::derive(seed, &[STREAM_WINDOW]);
        Shuffled { from, key, window_bytes, windows, window: VecDeque::new() }
    }

    fn fill(&mut self) -> Result<()> {
        let mut samples = Vec::new();
        let mut alone = None;
        let mut bytes = 0;
        while bytes < self.window_bytes
            && samples.len() < MAX_SAMPLES
            && let Some(sample) = self.from.next_sample()?
        {
            if sample.unread > 0 {
                // It must be read before the next sample, so it ends the window, and is returned last.
                alone = Some(sample);
                break;
            }
            bytes += sample.len_bytes();
            samples.push(Some(sample));
        }
        let count = samples.len() as u64;
        if count > 0 {
            let order = Permutation::new(count, self.key.with(self.windows));
            let take = |at| samples[order.forward(at) as usize].take();
            self.window.extend((0..count).filter_map(take));
        }
        self.window.extend(alone);
        self.windows += 1;
        Ok(())
    }
}

impl SampleStream for Shuffled<'_> {
    fn inner(&self) -> Option<&(dyn SampleStream + '_)> {
        Some(&*self.from)
    }

    fn inner_mut(&mut self) -> Option<&mut (dyn SampleStream + '_)> {
        Some(&mut *self.from)
    }

    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        if self.window.is_empty() {
            self.fill()?;
        }
        Ok(self.window.pop_front())
    }

    fn place(&self) -> Option<StreamPlace> {
        let place = self.from.place().filter(|_| self.window.is_empty())?;
        Some(StreamPlace { windows: self.windows, ..place })
    }
}

/// Separates the keys of stream windows from other keys derived from the seed.
const STREAM_WINDOW: u64 = u64::from_be_bytes(*b"window_1");
/// Most samples of a window, since a small sample takes more memory than its bytes.
const MAX_SAMPLES: usize = 1 << 18;
