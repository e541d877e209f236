//! The input streams of an import, read one after the other: pipes, compressed files, or objects of stores. A single
//! shard, or a byte range of it, is read in the same way without an import.

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::compression::{self, Compression, HEAD_BYTES, decompressed};
use super::expansion::{CountedBytes, Expansion};
use super::sample_stream::FieldBytes;
use super::shard::{FileAt, Input};
use super::spool::{self, is_stream, open_stream};
use super::{Decided, FoundFile, tar};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_places::{Client, Object, Reader};

/// Input streams, in order.
#[derive(Default)]
pub(crate) struct Inputs {
    /// The streams that are not open yet.
    files: std::vec::IntoIter<FoundFile>,
    /// The bytes of the streams, if they are objects.
    objects: Option<ObjectStreams>,
    /// Number of streams begun, including skipped ones.
    begun: u64,
    /// Set if the first stream is not read from its beginning: the number of decompressed bytes to skip. It is 0 if the
    /// stream is not compressed, since then only the wanted bytes are requested.
    first: Option<u64>,
    /// The next stream, if it is open already.
    ahead: Option<(FoundFile, Stream)>,
    expansion: Expansion,
    /// Set if the input is a single shard, an object or a file. The value becomes true once the shard turns out to be
    /// compressed, or to be an object of less than [`HEAD_BYTES`].
    is_packed: Option<Arc<AtomicBool>>,
    /// The bytes to read of a single shard, which then must not be compressed; `None`: all.
    part: Option<Range<u64>>,
}

/// A stream, decompressed.
pub(super) enum Stream {
    /// An object of at least [`HEAD_BYTES`] that is not compressed.
    Shard(CountedBytes<ObjectBytes>),
    /// Any other stream.
    Bytes(Box<dyn Read + Send>),
}

impl Inputs {
    /// The streams `files` (`-`: standard input). Reading fails beyond the limit of `expansion`.
    pub(crate) fn new(files: Vec<FoundFile>, expansion: Expansion) -> Inputs {
        let are_objects = files.iter().any(|file| file.object.is_some());
        let objects = are_objects.then(|| ObjectStreams::new(&files, 0));
        Inputs { files: files.into_iter(), objects, expansion, ..Inputs::default() }
    }

    /// The objects `files` from number `number` on, the first of these from byte `offset` on, after decompression.
    ///
    /// # Errors
    /// Errors of the store. `BadSource`: the first object is shorter and not compressed.
    pub(crate) fn from(
        files: Vec<FoundFile>,
        number: u64,
        offset: u64,
        expansion: Expansion,
    ) -> Result<Inputs> {
        expansion.read(offset); // the bytes read before the import was interrupted
        let skipped = usize::try_from(number).unwrap_or(usize::MAX);
        let files: Vec<FoundFile> = files.into_iter().skip(skipped).collect();
        let mut first = None;
        let mut begin = 0;
        if let Some((client, object)) = files.first().and_then(|file| file.object.as_ref())
            && offset > 0
        {
            let mut head = vec![0; object.len_bytes.min(HEAD_BYTES) as usize];
            client.fetch(object, 0..head.len() as u64).read_into(&mut head)?;
            if Compression::of(&head).is_some() {
                first = Some(offset);
            } else if offset > object.len_bytes {
                let text = "it is shorter than what was read of it";
                let address = client.place().with_key(&*object.key).to_string();
                return Err(Error::new(ErrorKind::BadSource, text).target(address));
            } else {
                (first, begin) = (Some(0), offset);
            }
        }
        let objects = Some(ObjectStreams::new(&files, begin));
        let files = files.into_iter();
        Ok(Inputs { files, objects, begun: number, first, expansion, ..Inputs::default() })
    }

    /// A single shard, of which only the bytes `part` are read; `None`: all, with at most `ahead_bytes` requested ahead
    /// from a store. A shard of which a `part` is read must not be compressed. For `is_packed` see [`Inputs`].
    pub(crate) fn of_shard(
        file: FoundFile,
        part: Option<Range<u64>>,
        ahead_bytes: u64,
        expansion: Expansion,
        is_packed: Arc<AtomicBool>,
    ) -> Inputs {
        let objects = file.object.as_ref().map(|(client, object)| {
            ObjectStreams::of_shard(client.clone(), object.clone(), part.clone(), ahead_bytes)
        });
        let first = part.as_ref().map(|_| 0);
        let files = vec![file].into_iter();
        let is_packed = Some(is_packed);
        Inputs { files, objects, first, expansion, is_packed, part, ..Inputs::default() }
    }

    /// Number of streams begun, including skipped ones; `None`: they are neither objects nor a single shard.
    pub(super) fn begun_objects(&self) -> Option<u64> {
        (self.objects.is_some() || self.is_packed.is_some()).then_some(self.begun)
    }

    /// The next stream, decompressed; `None` after the last.
    ///
    /// # Errors
    /// The stream does not open.
    pub(super) fn next(&mut self) -> Result<Option<(FoundFile, Stream)>> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        let Some(file) = self.files.next() else { return Ok(None) };
        let stream = match &mut self.objects {
            None if self.is_packed.is_some() => self.open_shard(&file.path)?,
            None => Stream::Bytes(open_stream(&file.path, &self.expansion)?),
            Some(objects) => {
                let first = self.first.take();
                let opened = match objects.next() {
                    None => Ok(Stream::Bytes(Box::new(io::empty()))),
                    Some(shard) => Stream::of(shard, first, &file.path, &self.expansion),
                };
                objects.check()?;
                let opened = opened?;
                if let (Some(is_packed), Stream::Bytes(_)) = (&self.is_packed, &opened) {
                    is_packed.store(true, Ordering::Relaxed);
                }
                opened
            }
        };
        self.begun += 1;
        Ok(Some((file, stream)))
    }

    /// Opens the single shard, a file.
    fn open_shard(&self, path: &Path) -> Result<Stream> {
        let (file, container, packed) = spool::open(path)?;
        if let Some(is_packed) = &self.is_packed {
            is_packed.store(packed.is_some(), Ordering::Relaxed);
        }
        let Range { start: offset, end } = self.part.clone().unwrap_or(0..container.len_bytes);
        let bytes = BufReader::with_capacity(BUFFER_BYTES, FileAt { file, offset, end });
        Ok(Stream::Bytes(match self.part {
            Some(_) => Box::new(bytes),
            None => decompressed(Box::new(bytes), path, &self.expansion)?,
        }))
    }

    /// Two consecutive files with one key at the beginning of the first stream, if it is a pipe with a tar archive.
    ///
    /// # Errors
    /// The stream does not open.
    pub(crate) fn pair_at_beginning(&mut self) -> Result<Option<Decided>> {
        let first = self.files.as_slice().first();
        if self.objects.is_some() || first.is_none_or(|first| !is_stream(&first.path)) {
            return Ok(None);
        }
        let Some((file, Stream::Bytes(mut stream))) = self.next()? else { return Ok(None) };
        let mut head = Vec::new();
        let begin = Recorded { from: &mut *stream, read: &mut head };
        let pair = tar::pair_at_beginning(begin.take(MAX_LOOKED_AT_BYTES), tar::MEMBERS_LOOKED_AT);
        let shard = file.name.clone();
        self.ahead = Some((file, Stream::Bytes(Box::new(io::Cursor::new(head).chain(stream)))));
        Ok(pair.map(|pair| Decided::Pair { shard, pair }))
    }

    /// Checks that no stream ended early because its store failed.
    ///
    /// # Errors
    /// The store's failure.
    pub(super) fn check(&self) -> Result<()> {
        self.objects.as_ref().map_or(Ok(()), ObjectStreams::check)
    }
}

impl Stream {
    /// The decompressed content of an object. `first`: see [`Inputs`]; `name` is for messages.
    fn of(
        mut shard: ObjectBytes,
        first: Option<u64>,
        name: &Path,
        expansion: &Expansion,
    ) -> Result<Stream> {
        let plain = |shard| Ok(Stream::Shard(CountedBytes(shard, expansion.clone())));
        if first.is_none() {
            let head = shard.peek(HEAD_BYTES as usize)?;
            let is_packed =
                Compression::of(&head).is_some() || compression::foreign(&head).is_some();
            if !is_packed && head.len() as u64 == HEAD_BYTES {
                return plain(shard);
            }
        }
        let skipped = match first {
            Some(0) => return plain(shard),
            first => first.unwrap_or(0),
        };
        let mut stream = decompressed(Box::new(shard), name, expansion)?;
        io::copy(&mut stream.by_ref().take(skipped), &mut io::sink())?;
        Ok(Stream::Bytes(stream))
    }

    /// The next `len` bytes without a copy, if they are contiguous in memory. `None`: they must be read instead.
    pub(super) fn lend(&mut self, len: usize) -> Option<FieldBytes> {
        match self {
            Stream::Shard(CountedBytes(shard, expansion)) => {
                let lent = shard.lend(len)?;
                expansion.read(len as u64);
                Some(lent)
            }
            Stream::Bytes(_) => None,
        }
    }
}

impl Input for Stream {}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Shard(shard) => shard.read(into),
            Stream::Bytes(bytes) => bytes.read(into),
        }
    }
}

/// Objects that are read one after the other. One reader reads consecutive objects of a store, so that it can request
/// the next objects ahead.
struct ObjectStreams {
    /// The stores and their objects, for each reader that has not begun.
    readers: std::vec::IntoIter<(Client, Vec<Object>)>,
    /// Offset in the first object at which reading begins.
    begin: u64,
    /// The reader of the current object, which the current stream shares.
    current: Option<Arc<Mutex<Reader>>>,
    /// The first failure of a store.
    failure: Arc<Mutex<Option<Error>>>,
}

impl ObjectStreams {
    /// The objects among `files`, in order, the first one from byte `begin` on, which lies within it.
    fn new(files: &[FoundFile], begin: u64) -> ObjectStreams {
        let mut stores: Vec<(Client, Vec<Object>)> = Vec::new();
        for (client, object) in files.iter().filter_map(|file| file.object.clone()) {
            match stores.last_mut() {
                Some((last, objects)) if last.place() == client.place() => objects.push(object),
                _ => stores.push((client, vec![object])),
            }
        }
        let readers = stores.into_iter();
        ObjectStreams { readers, begin, current: None, failure: Arc::default() }
    }

    /// The bytes `part` of an object; `None`: the whole object, with at most `ahead_bytes` requested ahead.
    fn of_shard(
        client: Client,
        object: Object,
        part: Option<Range<u64>>,
        ahead_bytes: u64,
    ) -> ObjectStreams {
        let reader = match part {
            Some(part) => Reader::part(client, object, part),
            None => Reader::from(client, vec![object], 0, ahead_bytes),
        };
        let current = Some(Arc::new(Mutex::new(reader)));
        ObjectStreams { current, ..ObjectStreams::new(&[], 0) }
    }

    /// The next object; `None` after the last.
    fn next(&mut self) -> Option<ObjectBytes> {
        loop {
            if let Some(current) = &self.current
                && current.lock().next_object().is_some()
            {
                let reader = Arc::clone(current);
                let failure = Arc::clone(&self.failure);
                return Some(ObjectBytes { reader, failure });
            }
            let (client, objects) = self.readers.next()?;
            let begin = std::mem::take(&mut self.begin);
            let reader = Reader::from(client, objects, begin, u64::MAX);
            self.current = Some(Arc::new(Mutex::new(reader)));
        }
    }

    /// Checks that no failure of a store ended an object early.
    ///
    /// # Errors
    /// The failure.
    fn check(&self) -> Result<()> {
        self.failure.lock().take().map_or(Ok(()), Err)
    }
}

/// The bytes of one object.
pub(crate) struct ObjectBytes {
    reader: Arc<Mutex<Reader>>,
    /// Gets the first failure of the store.
    failure: Arc<Mutex<Option<Error>>>,
}

impl ObjectBytes {
    /// The first object of `reader`. `failure` gets the first failure of the store.
    pub(crate) fn new(mut reader: Reader, failure: Arc<Mutex<Option<Error>>>) -> ObjectBytes {
        reader.next_object();
        ObjectBytes { reader: Arc::new(Mutex::new(reader)), failure }
    }

    /// Up to `len` of the next bytes, without consuming them; fewer at the end of the object or of a requested range.
    ///
    /// # Errors
    /// The store failed.
    fn peek(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut reader = self.reader.lock();
        let bytes = reader.fill_buf().map_err(|error| ObjectBytes::failed(&self.failure, error))?;
        Ok(bytes[..len.min(bytes.len())].to_vec())
    }

    /// The next `len` bytes without a copy, if they are contiguous in memory. `None`: they must be read instead.
    fn lend(&mut self, len: usize) -> Option<FieldBytes> {
        let (bytes, range) = self.reader.lock().lend(len)?;
        Some(FieldBytes::Shared(bytes, range))
    }

    /// Keeps the store's error in `failure`; the returned error says only that the store failed.
    pub(crate) fn failed(failure: &Mutex<Option<Error>>, error: io::Error) -> io::Error {
        let error = error.downcast::<Error>().unwrap_or_else(Error::from);
        failure.lock().get_or_insert(error);
        io::Error::other("the store failed")
    }
}

impl Read for ObjectBytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.lock().read(into).map_err(|error| ObjectBytes::failed(&self.failure, error))
    }
}

/// Reader that keeps a copy of the bytes read.
struct Recorded<'a> {
    from: &'a mut dyn Read,
    read: &'a mut Vec<u8>,
}

impl Read for Recorded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.from.read(into)?;
        self.read.extend_from_slice(&into[..len]);
        Ok(len)
    }
}

/// Most bytes of a pipe that are kept while its content is detected; usually a few members suffice.
const MAX_LOOKED_AT_BYTES: u64 = 16 << 20;
/// Bytes that are read of a file at once.
const BUFFER_BYTES: usize = 1 << 20;
