//! Reads payloads of objects: many at once for the rows of a chunk, or shards as streams.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::import::sources::found::FoundFile;
use crate::import::sources::index::{BadReason, Index, Payload};
use crate::import::sources::sample_stream::FieldBytes;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::OriginsBuilder;
use dlfs_places::{Client, Object, Pending, Reader};

/// The location of the objects of some rows: a key is the prefix, and the row's name without its first bytes.
#[derive(Debug)]
pub(in crate::import) struct ObjectRoot {
    client: Client,
    prefix: String,
    cut: usize,
}

impl ObjectRoot {
    pub(super) fn new(client: Client, prefix: String, cut: usize) -> ObjectRoot {
        ObjectRoot { client, prefix, cut }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Its address, to be shown.
    pub(super) fn address(&self) -> String {
        self.client.place().with_key(&*self.prefix).to_string()
    }

    /// Notes that so many bytes are in front of the names of its rows.
    pub(in crate::import::sources) fn put_in_front(&mut self, len: usize) {
        self.cut = len;
    }

    /// The address of a row's object, to be shown.
    pub(in crate::import) fn address_of(&self, name: &[u8]) -> String {
        self.client.place().with_key(self.key_of(name)).to_string()
    }

    pub(super) fn key_of(&self, name: &[u8]) -> String {
        format!("{}{}", self.prefix, String::from_utf8_lossy(&name[self.cut..]))
    }
}

/// Notes an object that is imported.
pub(in crate::import) fn push_origin(
    origins: &mut OriginsBuilder,
    client: &Client,
    object: &Object,
) {
    let address = client.place().with_key(&*object.key).to_string();
    origins.push(&address, object.len_bytes, object.etag.as_deref());
}

/// The reads of one thread: payloads that were asked for, and the failure of a store, if there was one.
#[derive(Debug, Default)]
pub(in crate::import) struct ObjectReads {
    asked: HashMap<u64, Pending>,
    failure: Option<Error>,
}

impl ObjectReads {
    /// Asks for the payloads of `rows`, which are read soon.
    pub(in crate::import) fn ask(
        &mut self,
        roots: &[ObjectRoot],
        index: &Index,
        rows: impl Iterator<Item = u64>,
    ) {
        self.asked.clear(); // of a chunk that was given up
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
    /// `Changed`: the object is another one by now, or gone. Any other failure is that of the store, which
    /// [`take_failure`](Self::take_failure) gives.
    pub(in crate::import) fn read(
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

    /// Why the last payloads could not be read, if it was the store's failure and not that of one object.
    pub(in crate::import) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

fn fetch(
    roots: &[ObjectRoot],
    index: &Index,
    row: u64,
    payload: &Payload,
    range: std::ops::Range<u64>,
) -> Pending {
    let root = &roots[payload.container as usize];
    let key = root.key_of(index.name(row));
    let len = payload.len_bytes.into();
    root.client.fetch_stamped(&key, len, payload.offset_or_stamp, range)
}

/// Why one object cannot be imported.
///
/// # Errors
/// The failure concerns the store.
pub(in crate::import) fn reason(error: Error) -> Result<BadReason> {
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
pub(in crate::import) struct ObjectStreams {
    /// The stores and their objects, in order.
    readers: std::vec::IntoIter<(Client, Vec<Object>)>,
    /// Offset in the first object at which reading begins.
    begin: u64,
    current: Option<Arc<Mutex<Reader>>>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl ObjectStreams {
    /// The objects among `files` in order, the first one from this byte on, which it has.
    pub(in crate::import) fn new(files: &[FoundFile], begin: u64) -> ObjectStreams {
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

    /// The next shard; `None` after the last.
    pub(in crate::import) fn next(&mut self) -> Option<Shard> {
        loop {
            if let Some(current) = &self.current
                && current.lock().next_object().is_some()
            {
                let reader = Arc::clone(current);
                let failure = Arc::clone(&self.failure);
                return Some(Shard { reader, failure });
            }
            let (client, objects) = self.readers.next()?;
            let reader = Reader::from(client, objects, std::mem::take(&mut self.begin), u64::MAX);
            self.current = Some(Arc::new(Mutex::new(reader)));
        }
    }

    /// The store's failure, if one ended a shard.
    ///
    /// # Errors
    /// The failure.
    pub(in crate::import) fn check(&self) -> Result<()> {
        self.failure.lock().take().map_or(Ok(()), Err)
    }
}

/// The shard that is being read.
pub(in crate::import) struct Shard {
    reader: Arc<Mutex<Reader>>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl Shard {
    /// The first object of `reader`. The first failure of its store goes to `failure`.
    pub(in crate::import) fn new(mut reader: Reader, failure: Arc<Mutex<Option<Error>>>) -> Shard {
        reader.next_object();
        Shard { reader: Arc::new(Mutex::new(reader)), failure }
    }

    /// The next bytes, at most `len`, which are not read by that; fewer also where a range ends.
    ///
    /// # Errors
    /// The store failed.
    pub(in crate::import) fn peek(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut reader = self.reader.lock();
        let bytes = reader.fill_buf().map_err(|error| Shard::failed(&self.failure, error))?;
        Ok(bytes[..len.min(bytes.len())].to_vec())
    }

    /// The next `len` bytes without a copy, if they are at hand in one piece; else they are to be read.
    pub(in crate::import) fn lend(&mut self, len: usize) -> Option<FieldBytes> {
        let (bytes, range) = self.reader.lock().lend(len)?;
        Some(FieldBytes::Shared(bytes, range))
    }

    /// Keeps what is wrong with a store; the error that is returned says only that something is.
    pub(in crate::import) fn failed(failure: &Mutex<Option<Error>>, error: io::Error) -> io::Error {
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
