//! A row file as input: a local file, or an object of a store. If the file is an index, [`Input::beside`] finds the
//! files that the index names.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::SharedOrigins;
use crate::import::sources::beneath::Root;
use crate::import::sources::compression::{Compression, decompressed};
use crate::import::sources::expansion::{CountedBytes, Expansion};
use crate::import::sources::inputs::ObjectBytes;
use crate::import::sources::objects::push_origin;
use crate::import::sources::spool::is_stream;
use crate::import::sources::{BadReason, shard_index};
use dlfs_base::error::invalid;
use dlfs_base::folders::Links;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_places::{Client, Object, Reader, Scheme};

/// The first failure of a store, which ends the import: later rows were not read, and are not bad entries.
pub(super) type Failure = Arc<Mutex<Option<Error>>>;

/// The data pages of long row groups in a Parquet file, as far as readers have met them: the offset of each, and its
/// number of values. Readers of one file share it.
pub(super) type FoundPages = Arc<Mutex<BTreeMap<u64, u64>>>;

/// A row file.
#[derive(Debug, Clone)]
pub(super) struct Input {
    /// The path or address of the file.
    pub(super) path: PathBuf,
    /// The object, if the file is in a store. `None`: the file is local.
    pub(super) object: Option<InStore>,
    /// The policy for links to the files that this file names: in its lines, or as an index.
    pub(super) links: Links,
    /// Limit on the expansion of the bytes read.
    pub(super) expansion: Expansion,
    /// For a reader of a part of the file, which requests nothing ahead from a store: the offset before which rows are
    /// wanted, or `u64::MAX` if it is not known. `None`: the whole file is read.
    pub(super) part_end: Option<u64>,
    /// The number of rows that a reader of a part wants. `None`: it is not known, or the whole file is read.
    #[cfg_attr(not(feature = "formats"), allow(dead_code, reason = "for Parquet alone"))]
    pub(super) part_rows: Option<u64>,
    /// The pages that are known.
    pub(super) pages: FoundPages,
}

/// An object of a store, and where to record failures.
#[derive(Debug, Clone)]
pub(super) struct InStore {
    pub(super) client: Client,
    pub(super) object: Object,
    /// Receives the first failure of the store.
    pub(super) failure: Failure,
    /// Receives the objects that samples come from, for [`Input::record`] and for rows that name objects.
    pub(super) origins: SharedOrigins,
}

impl Input {
    /// Reads the file from byte `begin` on; a shorter file has no more bytes. From a store, requests at most
    /// `ahead_bytes` ahead, but at least one range; `None`: as many as the client's window allows, or for a part none.
    ///
    /// # Errors
    /// The file does not open.
    pub(super) fn read(
        &self,
        begin: u64,
        ahead_bytes: Option<u64>,
    ) -> Result<Box<dyn Read + Send>> {
        let Some(InStore { client, object, failure, .. }) = &self.object else {
            let mut file = File::open(&self.path).map_err(|error| self.named(error))?;
            file.seek(SeekFrom::Start(begin)).map_err(|error| self.named(error))?;
            return Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)));
        };
        let begin = begin.min(object.len_bytes);
        let ahead_bytes = ahead_bytes.or(self.part_end.map(|_| 0)).unwrap_or(u64::MAX);
        let reader = Reader::from(client.clone(), vec![object.clone()], begin, ahead_bytes);
        Ok(Box::new(ObjectBytes::new(reader, failure.clone())))
    }

    /// The length of the file.
    ///
    /// # Errors
    /// There is no such file. `InvalidArgument`: it is a pipe, which has no length.
    pub(super) fn len_bytes(&self) -> Result<u64> {
        match &self.object {
            Some(InStore { object, .. }) => Ok(object.len_bytes),
            None if is_stream(&self.path) => {
                let text = "tokens are read from files, and this is a pipe";
                let error = invalid(text).path(&self.path);
                Err(error.hint("write them to a file first"))
            }
            None => {
                let found = std::fs::metadata(&self.path);
                found.map(|found| found.len()).map_err(|error| self.named(error))
            }
        }
    }

    /// Reads a few bytes from `at` on, which the file has.
    ///
    /// # Errors
    /// The file does not open, or cannot be read.
    pub(super) fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        if let Some(InStore { client, object, .. }) = &self.object {
            return client.fetch(object, at..at + into.len() as u64).read_into(into);
        }
        let read = File::open(&self.path).and_then(|file| file.read_exact_at(into, at));
        read.map_err(|error| self.named(error))
    }

    /// Reads the file, or its part, as it is from byte `begin` on, and counts the bytes read.
    ///
    /// # Errors
    /// The file does not open.
    pub(super) fn read_counted(&self, begin: u64) -> Result<Box<dyn Read + Send>> {
        self.expansion.read(begin); // the bytes read before the import was interrupted
        let from = match (&self.object, self.part_end) {
            (Some(InStore { client, object, failure, .. }), Some(end))
                if begin <= end && end < object.len_bytes =>
            {
                let reader = Reader::part(client.clone(), object.clone(), begin..end);
                Box::new(ObjectBytes::new(reader, failure.clone()))
            }
            _ => self.read(begin, None)?,
        };
        Ok(Box::new(CountedBytes(from, self.expansion.clone())))
    }

    /// Reads the whole file, decompressed if it is compressed.
    ///
    /// # Errors
    /// As [`read`](Self::read), and errors of reading the first bytes.
    pub(super) fn read_plain(&self, ahead_bytes: Option<u64>) -> Result<Box<dyn Read + Send>> {
        let plain = decompressed(self.read(0, ahead_bytes)?, &self.path, &self.expansion);
        self.check()?;
        plain
    }

    /// As [`read_plain`](Self::read_plain), from byte `begin` of the decompressed data on.
    ///
    /// # Errors
    /// As [`read_plain`](Self::read_plain).
    pub(super) fn read_plain_from(&self, begin: u64) -> Result<Box<dyn Read + Send>> {
        let mut head = [0; 6];
        let len = self.len_bytes()?.min(head.len() as u64) as usize;
        self.read_at(0, &mut head[..len])?;
        if Compression::of(&head[..len]).is_none() {
            return self.read_counted(begin);
        }
        let mut from = self.read_plain(None)?;
        let left_out = io::copy(&mut from.by_ref().take(begin), &mut io::sink());
        self.check()?;
        left_out.map_err(|error| self.named(error))?;
        Ok(from)
    }

    /// Records the object, if it is one, as an origin of samples.
    pub(super) fn record(&self) {
        if let Some(InStore { client, object, origins, .. }) = &self.object {
            push_origin(&mut origins.lock(), client, object);
        }
    }

    /// Checks that the store has not failed.
    ///
    /// # Errors
    /// The store's first failure, which is returned once.
    pub(super) fn check(&self) -> Result<()> {
        let failure = self.object.as_ref().and_then(|object| object.failure.lock().take());
        failure.map_or(Ok(()), Err)
    }

    /// A `BadSource` error that names this file.
    pub(super) fn bad(&self, text: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::BadSource, text).path(&self.path)
    }

    /// Converts an error of reading to an error that names this file.
    pub(super) fn named(&self, error: io::Error) -> Error {
        if let Some(reason) = BadReason::within(&error) {
            return self.bad(reason.to_string());
        }
        let is_decoder = matches!(error.kind(), io::ErrorKind::Other | io::ErrorKind::InvalidData);
        if is_decoder && error.raw_os_error().is_none() {
            return self.bad("the file is damaged, or not what it seems to be").source(error);
        }
        Error::from(error).path(&self.path)
    }

    /// Finds the files that this index names. `files` has the possible names of each file; returns the first one that
    /// exists, or else the first one, with its input. Looks files up in a store concurrently.
    ///
    /// # Errors
    /// `BadSource`: a name leads out of the index's folder, or to a link that is not to be followed, or to what is no
    /// file. Errors of the store: `NotFound` if no name of a file exists.
    pub(super) fn beside(&self, files: Vec<Vec<OsString>>) -> Result<Vec<(OsString, Input)>> {
        let is_outside =
            |name: &&OsString| shard_index::beside(&self.path, name.as_ref()).is_none();
        if let Some(name) = files.iter().flatten().find(is_outside) {
            let name = name.display();
            return Err(self.bad(format!("it names a file outside of its folder: {name}")));
        }
        let folder = self.object.is_none().then(|| self.folder()).transpose()?;
        let listed = self.listed_beside(files.len());
        map_at_once(LOOKING_UP, &files, |names| {
            let mut first = None;
            for name in names {
                match self.find(name.as_ref(), folder.as_ref(), &listed) {
                    Ok(Some(input)) => return Ok((name.clone(), input)),
                    Ok(None) => {}
                    // A store refuses a client that may not list, instead of reporting that the object is absent.
                    Err(error)
                        if [ErrorKind::NotFound, ErrorKind::Refused].contains(&error.kind()) =>
                    {
                        first.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let name = names.first().cloned().unwrap_or_default();
            // A missing local file is reported when it is opened.
            let path = shard_index::beside(&self.path, name.as_ref()).unwrap_or_default();
            first.map_or(Ok((name, Input { path, object: None, ..self.clone() })), Err)
        })
    }

    /// The objects beside this one, by keys, where so many are wanted that one listing takes less time than looking up
    /// each. May lack some.
    fn listed_beside(&self, wanted: usize) -> HashMap<String, Object> {
        let mut listed = HashMap::new();
        let Some(InStore { client, object, .. }) = &self.object else { return listed };
        let lists = matches!(client.place().scheme(), Scheme::S3 | Scheme::Gs | Scheme::Az);
        if lists && wanted >= WORTH_A_LIST {
            let folder = object.key.rfind('/').map_or("", |at| &object.key[..=at]);
            // The error, also that of a store that may not be listed, is that of looking up what was not listed.
            let _ = client.list(folder, &mut |object| {
                listed.insert(object.key.clone(), object);
                let is_long = listed.len() > MOST_BESIDE * wanted;
                if is_long { Err(invalid("there are too many other objects")) } else { Ok(()) }
            });
        }
        listed
    }

    /// The folder of this file, which is local.
    ///
    /// # Errors
    /// As [`Root::open`].
    pub(super) fn folder(&self) -> Result<Root> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Root::open(folder.unwrap_or(Path::new(".")), self.links)
    }

    /// The file called `name` beside this one: in `folder`, or in the store, perhaps one of those `listed`. `None`:
    /// there is no such local file, or the name leads out of the folder.
    fn find(
        &self,
        name: &Path,
        folder: Option<&Root>,
        listed: &HashMap<String, Object>,
    ) -> Result<Option<Input>> {
        let in_store = self.object.as_ref();
        let index = in_store.map_or(&*self.path, |index| Path::new(&index.object.key));
        let Some(path) = shard_index::beside(index, name) else { return Ok(None) };
        if let Some(index) = in_store {
            let key = path.to_string_lossy();
            let object = listed.get(&*key).cloned();
            let object = object.map_or_else(|| index.client.head(&key), Ok)?;
            let path = index.client.place().with_key(&*object.key).to_string().into();
            let object = Some(InStore { object, ..index.clone() });
            return Ok(Some(Input { path, object, ..self.clone() }));
        }
        let Some(folder) = folder else { return Ok(None) };
        // Opening a pipe would wait for its writer, so do not open it.
        match folder.stat_file(name.as_os_str().as_bytes()) {
            Ok(_) => Ok(Some(Input { path, ..self.clone() })),
            Err(BadReason::Unreadable(_) | BadReason::Dangling) => Ok(None),
            Err(reason) => Err(self.bad(format!("it names {}, which {reason}", name.display()))),
        }
    }

    /// All bytes of an index.
    ///
    /// # Errors
    /// The index cannot be read, or is longer than 1 GiB.
    #[cfg(feature = "formats")]
    pub(super) fn read_index(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read =
            self.read(0, None)?.take(shard_index::MAX_INDEX_BYTES + 1).read_to_end(&mut bytes);
        self.check()?;
        let read = read.map_err(|error| self.named(error))?;
        if read as u64 > shard_index::MAX_INDEX_BYTES {
            return Err(self.bad("an index of more than 1 GiB is not read"));
        }
        Ok(bytes)
    }
}

/// Bytes that are read of a file at once.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// The number of files of an index from which on their folder in a store is listed.
const WORTH_A_LIST: usize = 8;
/// The maximum number of objects that are listed for each of these files.
const MOST_BESIDE: usize = 8;
/// The name of the threads that open row files, or look up files that an index or a line names.
pub(super) const LOOKING_UP: &str = "dlfs-open";
