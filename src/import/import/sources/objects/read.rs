//! Reads objects: the payloads of a chunk's rows concurrently, and shards as streams.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::import::sources::found::FoundFile;
use crate::import::sources::index::{BadReason, Index, Payload};
use crate::import::sources::sample_stream::FieldBytes;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::OriginsBuilder;
use dlfs_places::{Client, Object, Pending, Reader, Scheme};

/// The location of the objects of some rows. A key is `prefix` followed by the row's name without its first `cut`
/// bytes.
#[derive(Debug, Clone)]
pub(crate) struct ObjectRoot {
    pub(super) client: Client,
    pub(super) prefix: String,
    pub(crate) cut: usize,
}

impl ObjectRoot {
    /// The prefix's address, for messages.
    pub(super) fn address(&self) -> String {
        self.client.place().with_key(&*self.prefix).to_string()
    }

    /// Returns whether the objects are on the Hugging Face Hub.
    pub(super) fn is_on_hub(&self) -> bool {
        self.client.place().scheme() == Scheme::Hf
    }

    /// The address of a row's object, for messages.
    pub(crate) fn address_of(&self, name: &[u8]) -> String {
        self.client.place().with_key(self.key_of(name)).to_string()
    }

    pub(super) fn key_of(&self, name: &[u8]) -> String {
        format!("{}{}", self.prefix, String::from_utf8_lossy(&name[self.cut..]))
    }
}

/// Records an imported object.
pub(crate) fn push_origin(origins: &mut OriginsBuilder, client: &Client, object: &Object) {
    let address = client.place().with_key(&*object.key).to_string();
    origins.push(&address, object.len_bytes, object.etag.as_deref());
}

/// The reads of one thread: outstanding requests by row, and the first failure of a store.
#[derive(Debug, Default)]
pub(crate) struct ObjectReads {
    asked: HashMap<u64, Pending>,
    failure: Option<Error>,
}

impl ObjectReads {
    /// Requests the payloads of `rows`, which will be read soon.
    pub(crate) fn ask(
        &mut self,
        roots: &[ObjectRoot],
        index: &Index,
        rows: impl Iterator<Item = u64>,
    ) {
        self.asked.clear(); // requests of an abandoned chunk
        for row in rows {
            for payload in index.payloads(row) {
                let len = payload.len_bytes.into();
                self.asked.insert(row, fetch(roots, index, row, &payload, 0..len));
            }
        }
    }

    /// Reads bytes of a payload from `at` on.
    ///
    /// # Errors
    /// `Changed`: the object was replaced. `Unreadable`, `Name`: this object cannot be read. If the store failed,
    /// `Unreadable`, and [`take_failure`](Self::take_failure) returns the failure.
    pub(crate) fn read(
        &mut self,
        roots: &[ObjectRoot],
        index: &Index,
        row: u64,
        payload: &Payload,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), BadReason> {
        let is_whole = into.len() as u64 == u64::from(payload.len_bytes);
        let asked = self.asked.remove(&row).filter(|_| is_whole);
        let pending =
            asked.unwrap_or_else(|| fetch(roots, index, row, payload, at..at + into.len() as u64));
        pending.read_into(into).map_err(|error| {
            reason(error).unwrap_or_else(|error| {
                self.failure.get_or_insert(error);
                BadReason::Unreadable(libc::EIO)
            })
        })
    }

    /// The failure of the store, if it was the reason why the last payloads could not be read.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

fn fetch(
    roots: &[ObjectRoot],
    index: &Index,
    row: u64,
    payload: &Payload,
    range: Range<u64>,
) -> Pending {
    let root = &roots[payload.container as usize];
    let key = root.key_of(index.name(row));
    let len = payload.len_bytes.into();
    root.client.fetch_stamped(&key, len, payload.offset_or_stamp, range)
}

/// The reason why one object cannot be imported.
///
/// # Errors
/// The failure concerns the whole store, not one object.
pub(crate) fn reason(error: Error) -> Result<BadReason> {
    match error.kind() {
        ErrorKind::BadSource => Ok(BadReason::Changed),
        ErrorKind::NotFound => Ok(BadReason::Unreadable(libc::ENOENT)),
        ErrorKind::Refused => Ok(BadReason::Unreadable(libc::EACCES)),
        ErrorKind::InvalidArgument => {
            Ok(BadReason::Name("has empty, . or .. parts: it cannot be asked for"))
        }
        _ => Err(error),
    }
}

/// Shards that are read one after the other.
pub(crate) struct ObjectStreams {
    /// The stores and their objects, in order.
    readers: std::vec::IntoIter<(Client, Vec<Object>)>,
    /// Offset in the first object at which reading begins.
    begin: u64,
    /// A reader that is open before its turn.
    opened: Option<Reader>,
    current: Option<Arc<Mutex<Reader>>>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl ObjectStreams {
    /// The objects among `files`, in order, the first one from byte `begin` on, which lies within it.
    pub(crate) fn new(files: &[FoundFile], begin: u64) -> ObjectStreams {
        let mut stores: Vec<(Client, Vec<Object>)> = Vec::new();
        for (client, object) in files.iter().filter_map(|file| file.object.clone()) {
            match stores.last_mut() {
                Some((last, objects)) if last.place() == client.place() => objects.push(object),
                _ => stores.push((client, vec![object])),
            }
        }
        let readers = stores.into_iter();
        ObjectStreams { readers, begin, opened: None, current: None, failure: Arc::default() }
    }

    /// One object, or a part of it. Asks for at most `ahead_bytes` ahead.
    pub(crate) fn of_shard(
        client: Client,
        object: Object,
        part: Option<Range<u64>>,
        ahead_bytes: u64,
    ) -> ObjectStreams {
        let reader = match part {
            Some(part) => Reader::part(client, object, part),
            None => Reader::from(client, vec![object], 0, ahead_bytes),
        };
        ObjectStreams { opened: Some(reader), ..ObjectStreams::new(&[], 0) }
    }

    /// The next shard; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<Shard> {
        loop {
            if let Some(current) = &self.current
                && current.lock().next_object().is_some()
            {
                let reader = Arc::clone(current);
                let failure = Arc::clone(&self.failure);
                return Some(Shard { reader, failure });
            }
            let reader = match self.opened.take() {
                Some(reader) => reader,
                None => {
                    let (client, objects) = self.readers.next()?;
                    Reader::from(client, objects, std::mem::take(&mut self.begin), u64::MAX)
                }
            };
            self.current = Some(Arc::new(Mutex::new(reader)));
        }
    }

    /// Checks that no failure of the store ended a shard.
    ///
    /// # Errors
    /// The failure.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.lock().take().map_or(Ok(()), Err)
    }
}

/// The shard that is being read.
pub(crate) struct Shard {
    reader: Arc<Mutex<Reader>>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl Shard {
    /// The first object of `reader`. The first failure of its store is put in `failure`.
    pub(crate) fn new(mut reader: Reader, failure: Arc<Mutex<Option<Error>>>) -> Shard {
        reader.next_object();
        Shard { reader: Arc::new(Mutex::new(reader)), failure }
    }

    /// Up to `len` of the next bytes, without consuming them; fewer at the end of the object or of a requested range.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) fn peek(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut reader = self.reader.lock();
        let bytes = reader.fill_buf().map_err(|error| Shard::failed(&self.failure, error))?;
        Ok(bytes[..len.min(bytes.len())].to_vec())
    }

    /// The next `len` bytes without a copy, if they are contiguous in memory. `None`: they must be read instead.
    pub(crate) fn lend(&mut self, len: usize) -> Option<FieldBytes> {
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

impl Read for Shard {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.lock().read(into).map_err(|error| Shard::failed(&self.failure, error))
    }
}
