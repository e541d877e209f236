//! The files that rows of JSON Lines name: files in the folder of the lines, or objects beside them in a store.
//!
//! Objects are looked up for many lines at once, and requested before their rows are read.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::RowError;
use super::column::Column;
use super::input::{InStore, Input, LOOKING_UP};
use super::json::Object;
use crate::import::sources::beneath::Root;
use crate::import::sources::index::MAX_SAMPLE_BYTES;
use crate::import::sources::objects::{self, push_origin};
use crate::import::sources::sample_stream::FieldBytes;
use crate::import::sources::tar_members::clean_name;
use crate::import::sources::{BadReason, shard_index, stamp};
use dlfs_base::error::zeroed_vec;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, Result};
use dlfs_places::Pending;

/// The files that lines name.
pub(super) struct NamedFiles {
    /// The key that names the files.
    pub(super) key: String,
    /// The index of the column that holds the files.
    pub(super) column: usize,
    pub(super) from: FilesFrom,
}

/// The location of the files.
pub(super) enum FilesFrom {
    /// The files are in this folder.
    Folder(Root),
    /// The files are in a store, beside the file of lines.
    Store(Box<LinesAhead>),
}

/// A line, and the file that it names: the file's name, or the object of a store.
pub(super) struct Line<F> {
    pub(super) object: Object,
    /// `None`: the line names no file.
    pub(super) file: Option<F>,
    /// Offset of the line's end.
    pub(super) end: u64,
}

/// A line with the name of its file, or the reason why the line cannot be read.
pub(super) type Named = Result<Line<String>, RowError>;

impl NamedFiles {
    /// The files that lines name for `column`, which has the index `at`.
    pub(super) fn new(at: usize, column: &Column, input: &Input) -> Result<NamedFiles> {
        let key = column.files_of.clone().unwrap_or_default();
        let from = match &input.object {
            Some(file) => FilesFrom::Store(Box::new(LinesAhead {
                file: file.clone(),
                lines: VecDeque::new(),
                has_ended: false,
                asked_bytes: 0,
            })),
            None => FilesFrom::Folder(input.folder()?),
        };
        Ok(NamedFiles { key, column: at, from })
    }
}

/// The file that a line names under `key`, without `.` and repeated slashes; `None`: the line lacks the key.
pub(super) fn name_in(key: &str, object: &Object) -> Result<Option<String>, BadReason> {
    match object.0.iter().find(|(other, _)| other == key) {
        None => Ok(None),
        Some((_, Value::String(name))) => {
            BadReason::LeavesSource
                .unless(!name.starts_with('/') && name.split('/').all(|part| part != ".."))?;
            let clean = clean_name(name.as_bytes())?;
            Ok(Some(String::from_utf8_lossy(&clean).into_owned()))
        }
        Some(_) => Err(BadReason::field(key, "names no file")),
    }
}

/// Reads the file `name` in a folder. The number is the file's, whatever its name.
pub(super) fn read_file(folder: &Root, name: &[u8]) -> Result<(FieldBytes, u64), BadReason> {
    let stat = folder.stat_file(name)?; // a pipe or a device has no length
    let file = File::from(folder.open_file(name)?);
    let len = file.metadata().map_err(BadReason::from)?.len();
    BadReason::TooLarge(len).unless(len <= MAX_SAMPLE_BYTES)?;
    let mut bytes = zeroed_vec(len).map_err(|_| BadReason::Unreadable(libc::ENOMEM))?;
    file.read_exact_at(&mut bytes, 0).map_err(|error| {
        BadReason::Unreadable(error.raw_os_error().unwrap_or(libc::EIO)) // EIO: the file is shorter now
    })?;
    Ok((bytes.into(), stamp(&stat)))
}

/// Lines that were read ahead, so that the objects they name are requested early.
pub(super) struct LinesAhead {
    /// The object that holds the lines.
    file: InStore,
    /// The lines that were not taken yet.
    lines: VecDeque<Result<Line<Asked>, RowError>>,
    /// Set once no lines follow those read ahead.
    has_ended: bool,
    /// Bytes of the outstanding requests.
    asked_bytes: u64,
}

/// An object that a line names.
pub(super) struct Asked {
    pub(super) object: dlfs_places::Object,
    /// The request for its bytes; `None` until there is room to send it.
    pending: Option<Pending>,
}

impl LinesAhead {
    /// Returns whether the next [`MAX_LINES`] lines should be added now, if there are as many.
    pub(super) fn needs_lines(&self) -> bool {
        !self.has_ended && self.lines.len() <= MAX_LINES
    }

    /// Adds lines: looks up the objects that they name, concurrently, and requests them. `has_ended`: no lines follow.
    pub(super) fn add(&mut self, lines: Vec<Named>, has_ended: bool) -> Result<(), RowError> {
        self.has_ended = has_ended;
        let found = self.find(&lines).map_err(|error| self.failed(error))?;
        for (line, found) in lines.into_iter().zip(found) {
            let line = line.and_then(|Line { object, end, .. }| {
                let file = found.transpose()?.map(|object| Asked { object, pending: None });
                Ok(Line { object, file, end })
            });
            self.lines.push_back(line);
        }
        self.ask();
        Ok(())
    }

    /// Takes the next line. `None`: all lines that were added are taken.
    pub(super) fn take_next(&mut self) -> Option<Result<Line<Asked>, RowError>> {
        self.lines.pop_front()
    }

    /// Adds the objects that `lines` name to the origins of the import, and to the hash `named`. `None`: one of them is
    /// missing, or cannot be imported.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) fn recall(&self, lines: &[Named], mut named: u64) -> Result<Option<u64>> {
        for found in self.find(lines)?.into_iter().flatten() {
            let Ok(object) = found else { return Ok(None) };
            push_origin(&mut self.file.origins.lock(), &self.file.client, &object);
            named = hash_with(named, &object);
        }
        Ok(Some(named))
    }

    /// Looks up the objects that lines name, concurrently.
    fn find(&self, lines: &[Named]) -> Result<Vec<Option<Result<dlfs_places::Object, BadReason>>>> {
        let InStore { client, object: of, .. } = &self.file;
        map_at_once(LOOKING_UP, lines, |line| {
            let Ok(Line { file: Some(name), .. }) = line else { return Ok(None) };
            let Some(key) = shard_index::beside(Path::new(&of.key), name.as_ref()) else {
                return Ok(Some(Err(BadReason::LeavesSource)));
            };
            match client.head(&key.to_string_lossy()) {
                Ok(object) if object.len_bytes > MAX_SAMPLE_BYTES => {
                    Ok(Some(Err(BadReason::TooLarge(object.len_bytes))))
                }
                Ok(object) => Ok(Some(Ok(object))),
                Err(error) => objects::reason(error).map(|reason| Some(Err(reason))),
            }
        })
    }

    /// Requests the objects of the next lines, up to the client's window.
    fn ask(&mut self) {
        let client = &self.file.client;
        let asked = self.lines.iter_mut().flatten().filter_map(|line| line.file.as_mut());
        for Asked { object, pending } in asked.filter(|asked| asked.pending.is_none()) {
            if self.asked_bytes > 0 && self.asked_bytes + object.len_bytes > client.window_bytes() {
                break;
            }
            self.asked_bytes += object.len_bytes;
            *pending = Some(client.fetch(object, 0..object.len_bytes));
        }
    }

    /// Reads the object of the line that was taken last.
    pub(super) fn read(&mut self, asked: Asked) -> Result<FieldBytes, RowError> {
        let Asked { object, pending } = asked;
        let InStore { client, origins, .. } = &self.file;
        let pending = match pending {
            Some(pending) => {
                self.asked_bytes -= object.len_bytes;
                pending
            }
            None => client.fetch(&object, 0..object.len_bytes),
        };
        let mut bytes = zeroed_vec(object.len_bytes).map_err(|error| {
            let address = client.place().with_key(&*object.key).to_string();
            self.failed(error.target(address))
        })?;
        match pending.read_into(&mut bytes) {
            Ok(()) => push_origin(&mut origins.lock(), client, &object),
            Err(error) => {
                let reason = objects::reason(error).map_err(|error| self.failed(error))?;
                return Err(reason.into());
            }
        }
        self.ask();
        Ok(bytes.into())
    }

    /// Records a failure of the store, which ends the import.
    fn failed(&self, error: Error) -> RowError {
        self.file.failure.lock().get_or_insert(error);
        RowError::File(BadReason::Decoder("the store failed".to_owned()))
    }
}

/// The hash `named` of the named objects, with `object` added; 0 is the hash of none.
pub(super) fn hash_with(named: u64, object: &dlfs_places::Object) -> u64 {
    let mut hash = Xxh3::with_seed(named);
    hash.update(&(object.key.len() as u64).to_le_bytes());
    hash.update(object.key.as_bytes());
    hash.update(&object.len_bytes.to_le_bytes());
    hash.update(object.etag.as_deref().unwrap_or_default().as_bytes());
    hash.digest().max(1)
}

/// Maximum number of lines that are added at once. At most twice as many are read ahead.
pub(super) const MAX_LINES: usize = 64;
