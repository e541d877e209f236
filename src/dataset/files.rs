//! A data set as files: the file tree, reads of files, and counters of their use. The mount and the preload library are
//! thin layers over this.
//!
//! A large sample is read in pieces, as a [`SampleFile`]. Each epoch of a program that knows only files has counters
//! ([`EpochCounts`]): file operations, and reads from each place.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use super::{Dataset, Place, Query, SampleFile};
use crate::error::{Error, ErrorKind, Result};
use crate::format::fields;
use crate::format::pieces::PIECED_ABOVE_BYTES;
use crate::posix::{Attributes, Epochs, File, FileTree, Node};
use crate::process::Forked;
use crate::qpair::folder::FolderNamespace;
use crate::reader::{Batch, OnError, Watch};
use crate::units::{Epoch, SampleId};

/// A data set as a tree of files. All methods may be called from any thread.
#[derive(Debug)]
pub struct Files {
    dataset: Dataset,
    tree: FileTree,
    field_lens: Forked<FieldLens>,
    /// The epochs of this process: a forked child counts its own.
    epochs: Forked<Mutex<Epochs<Counted>>>,
    /// The counters of this process: a forked child has its own.
    counters: Forked<FileCounters>,
}

/// The verified bytes of one file. The read buffer is shared, unless the file's form differs from the bytes of its
/// field.
#[derive(Debug)]
pub struct FileBytes {
    /// The sample alone.
    batch: Batch,
    /// The field that is the file; `None`: the whole sample.
    field: Option<usize>,
    /// The whole file, if its form differs from the bytes of the field.
    file: Option<Vec<u8>>,
}

/// The lengths of the files of all fields of samples that were read lately. The entry of a sample is at its id modulo
/// [`LENS_ENTRIES`].
type FieldLens = Mutex<Vec<Option<(SampleId, Box<[u64]>)>>>;

impl Files {
    /// Makes the files of `dataset`. Loads the names.
    ///
    /// # Errors
    /// As [`Dataset::load_names`].
    pub fn new(dataset: Dataset, watch: &mut dyn Watch) -> Result<Files> {
        dataset.load_names(watch)?;
        let tree = FileTree::new(dataset.directory().clone())?;
        let field_lens = Forked::empty();
        let counters = Forked::new(FileCounters::default());
        Ok(Files { dataset, tree, field_lens, epochs: Forked::empty(), counters })
    }

    /// The data set.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The tree.
    pub fn tree(&self) -> &FileTree {
        &self.tree
    }

    /// The attributes of a node. If samples have fields, reads the sample, or of a large one the table of fields,
    /// unless its lengths are kept: only the sample itself holds the lengths of its fields.
    ///
    /// # Errors
    /// Errors of reading a sample.
    pub fn attributes(&self, node: Node, watch: &mut dyn Watch) -> Result<Attributes> {
        let len = match node {
            Node::File(file) if self.has_fields() => Some(self.field_len(file, watch)?),
            _ => None,
        };
        Ok(self.tree.attributes(node, len))
    }

    /// Reads one file, and verifies it.
    ///
    /// # Errors
    /// Errors of reading a sample.
    pub fn read(&self, file: File, watch: &mut dyn Watch) -> Result<FileBytes> {
        let ids = [file.id];
        let batch = self.dataset.read(Query::Ids(&ids), OnError::Raise, watch)?.batch;
        let whole = match self.bytes(&batch, 0, file)? {
            Cow::Owned(whole) => Some(whole),
            Cow::Borrowed(_) => None,
        };
        let field = self.has_fields().then_some(usize::from(file.field));
        Ok(FileBytes { batch, field, file: whole })
    }

    /// Opens the file of a sample above 1 MiB: a read then takes only the pieces that its range touches. `None`:
    /// the sample is smaller, or lacks the field; the caller then reads it whole.
    ///
    /// # Errors
    /// As [`Dataset::open_sample`].
    pub fn open_in_pieces(&self, file: File, watch: &mut dyn Watch) -> Result<Option<SampleFile>> {
        if self.dataset.len_bytes(file.id)? <= PIECED_ABOVE_BYTES {
            return Ok(None);
        }
        let field = self.has_fields().then_some(usize::from(file.field));
        match self.dataset.open_file(file.id, field, watch) {
            // A field that the sample lacks is an empty file.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The content of `file`, whose sample is number `index` of `batch`. If the type of the field has a
    /// [form of files](crate::format::field_type::FileForm), the content has that form.
    ///
    /// # Errors
    /// `Corrupt`: the fields do not match the sample's record.
    pub fn bytes<'a>(&self, batch: &'a Batch, index: usize, file: File) -> Result<Cow<'a, [u8]>> {
        if !self.has_fields() {
            return Ok(batch.bytes(index).into());
        }
        self.keep_lens(file.id, batch.bytes(index))?;
        let field = usize::from(file.field);
        Ok(batch
            .field(index, field)?
            .map_or(Cow::Borrowed(&[][..]), |bytes| self.file_of(field, bytes)))
    }

    /// The file with these bytes of a field.
    fn file_of<'a>(&self, field: usize, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let kind = self.dataset.directory().field_types().of(field);
        kind.map_or(Cow::Borrowed(bytes), |kind| kind.to_file(bytes))
    }

    /// Bytes of the file's sample that have copies in a tier; 0 without tiers.
    pub fn kept_bytes(&self, file: File) -> u64 {
        let image = self.dataset.image();
        let extent = image.directory().extent(file.id);
        image.tiers().zip(extent).map_or(0, |(tiers, extent)| {
            let start = extent.offset_bytes;
            tiers.kept_bytes(extent.namespace, &(start..start + u64::from(extent.len_bytes)))
        })
    }

    /// Opens the file's copy in a tier, if that copy is a complete file of its own; returns the tier's number and the
    /// result of `open`. See [`Cache::open_copy`](crate::cache::Cache::open_copy).
    pub fn open_copy<T>(&self, file: File, open: impl FnOnce(&Path) -> T) -> Option<(u8, T)> {
        if self.has_fields() {
            return None;
        }
        let image = self.dataset.image();
        let extent = image.directory().extent(file.id)?;
        let end = extent.offset_bytes + u64::from(extent.len_bytes);
        image.tiers()?.open_copy(extent.namespace, &(extent.offset_bytes..end), open)
    }

    /// The plain folder, if the data set is one, and the number of the file in it.
    pub fn listed(&self, file: File) -> Option<(&FolderNamespace, usize)> {
        let folder = self.dataset.image().folder()?;
        let extent = self.dataset.directory().extent(file.id)?;
        Some((folder, folder.index_at(extent.offset_bytes)?))
    }

    /// Counts that the program opens `file`. `along`: if the file was read ahead, the epoch in the order of readahead.
    pub fn opened(&self, file: File, along: Option<Epoch>) {
        let so_far = self.counters().so_far();
        self.counters().opened();
        let mut epochs = self.epochs().lock();
        epochs.opened(self.tree.number(file), along, || self.counted(so_far));
    }

    /// Notes that the program begins another order, or the same order again.
    pub fn order_begins(&self) {
        self.epochs().lock().order_begins();
    }

    /// The counters of this process's use of files.
    pub fn counters(&self) -> &FileCounters {
        self.counters.get_or_init(FileCounters::default)
    }

    /// The counters of the last 100 epochs, with the current one up to now.
    pub fn epochs_so_far(&self) -> Vec<EpochCounts> {
        let now = self.counted(self.counters().so_far());
        let epochs = self.epochs().lock();
        let ends = epochs.begins().skip(1).map(|(_, begin)| begin).chain([&now]);
        epochs.begins().zip(ends).map(|((epoch, begin), end)| end.since(begin, epoch)).collect()
    }

    fn epochs(&self) -> &Mutex<Epochs<Counted>> {
        self.epochs.get_or_init(|| Mutex::new(Epochs::new(self.tree.num_files())))
    }

    /// The counters of places now, beside those of `files`.
    fn counted(&self, files: FileCounts) -> Counted {
        let places = self.dataset.places().map_or(Vec::new(), |places| places.places);
        Counted { files, places }
    }

    /// The value of an extended attribute as a string; `None` if the node lacks it. Files of a data set with
    /// tiers also have `user.dlfs.kept`, the number of bytes with copies in a tier.
    pub fn xattr(&self, node: Node, name: &[u8]) -> Option<String> {
        match node {
            Node::File(file) if name == KEPT_IN_TIERS.as_bytes() && self.has_tiers() => {
                Some(self.kept_bytes(file).to_string())
            }
            _ => self.tree.xattr(node, name),
        }
    }

    /// The names of the node's extended attributes, each followed by a zero byte.
    pub fn xattr_names(&self, node: Node) -> Vec<u8> {
        let mut names = self.tree.xattr_names(node);
        if self.has_tiers() && matches!(node, Node::File(_)) {
            names.extend_from_slice(KEPT_IN_TIERS.as_bytes());
            names.push(0);
        }
        names
    }

    fn has_tiers(&self) -> bool {
        self.dataset.image().tiers().is_some()
    }

    fn has_fields(&self) -> bool {
        !self.dataset.directory().fields().is_empty()
    }

    /// The length of the file of a field: kept, or read with the sample.
    fn field_len(&self, file: File, watch: &mut dyn Watch) -> Result<u64> {
        let at = file.id.0 as usize % LENS_ENTRIES;
        // Without a wait: a read is the alternative if another thread has the lock.
        if let Some(kept) = self.kept().try_lock()
            && let Some((id, lens)) = &kept[at]
            && *id == file.id
        {
            return Ok(lens[usize::from(file.field)]);
        }
        match self.open_in_pieces(file, watch)? {
            Some(opened) => Ok(opened.len_bytes()), // opening has read the table of fields
            None => Ok(self.read(file, watch)?.len() as u64),
        }
    }

    /// Keeps the lengths of the files of all fields of a sample, unless another thread has the lock.
    fn keep_lens(&self, id: SampleId, record: &[u8]) -> Result<()> {
        let ranges = fields::split(record, self.dataset.directory().fields().len())
            .map_err(|error| Error::from(error).sample(id))?;
        let lens = ranges.into_iter().enumerate().map(|(field, range)| {
            range.map_or(0, |range| self.file_of(field, &record[range]).len() as u64)
        });
        if let Some(mut kept) = self.kept().try_lock() {
            kept[id.0 as usize % LENS_ENTRIES] = Some((id, lens.collect()));
        }
        Ok(())
    }

    fn kept(&self) -> &FieldLens {
        self.field_lens.get_or_init(|| Mutex::new((0..LENS_ENTRIES).map(|_| None).collect()))
    }
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if let Some(file) = &self.file {
            return file;
        }
        match self.field {
            None => self.batch.bytes(0),
            // The same record was split when it was read, so this succeeds.
            Some(field) => self.batch.field(0, field).ok().flatten().unwrap_or_default(),
        }
    }
}

/// Counts a program's file operations, as seen by the mount or the preload library.
#[derive(Debug, Default)]
pub struct FileCounters {
    opens: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl FileCounters {
    /// Counts a file that is opened.
    pub fn opened(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read of `bytes`.
    pub fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counts up to now.
    pub fn so_far(&self) -> FileCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FileCounts { opens: load(&self.opens), reads: load(&self.reads), bytes: load(&self.bytes) }
    }
}

/// Counts of a program's file operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FileCounts {
    /// Files opened.
    pub opens: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
}

/// The counters of one epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpochCounts {
    /// Its number, from 0: epochs of this process since the data set was opened.
    pub epoch: u64,
    /// The program's use of files.
    #[serde(flatten)]
    pub files: FileCounts,
    /// The reads from each place; empty without tiers.
    pub places: Vec<Place>,
}

impl EpochCounts {
    /// The counters of epochs as one line of JSON.
    pub fn to_json(epochs: &[EpochCounts]) -> String {
        serde_json::to_string(epochs).expect("numbers and names always become JSON")
    }
}

/// Counters at one moment.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) files: FileCounts,
    pub(super) places: Vec<Place>,
}

impl Counted {
    /// The counts of `epoch`, from `begin` to this moment.
    pub(super) fn since(&self, begin: &Counted, epoch: u64) -> EpochCounts {
        let files = FileCounts {
            opens: self.files.opens.saturating_sub(begin.files.opens),
            reads: self.files.reads.saturating_sub(begin.files.reads),
            bytes: self.files.bytes.saturating_sub(begin.files.bytes),
        };
        let places = self.places.iter().zip(&begin.places).map(|(now, then)| Place {
            reads: now.reads.saturating_sub(then.reads),
            bytes: now.bytes.saturating_sub(then.bytes),
            read_s: (now.read_s - then.read_s).max(0.0),
            ..now.clone()
        });
        EpochCounts { epoch, files, places: places.collect() }
    }
}

/// The extended attribute with the number of bytes of a file's sample that have copies in a tier.
const KEPT_IN_TIERS: &str = "user.dlfs.kept";

/// Entries of [`FieldLens`], one sample each.
const LENS_ENTRIES: usize = 4096;
