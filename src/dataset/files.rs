//! A data set as files: its file tree, and reads of the files. The mount and the preload library are thin
//! layers over this.
//!
//! A large sample is an open file ([`SampleFile`]), read and verified in pieces. Each epoch of a program that knows
//! only files has its counters ([`EpochCounts`]): file operations, and reads from each place.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use super::{Dataset, Place, Query};
use crate::error::{Error, ErrorKind, Result};
use crate::format::fields::{self, field_range, table_len};
use crate::format::pieces::{PIECE_BYTES, PIECED_ABOVE_BYTES};
use crate::posix::{Attributes, Epochs, File, FileTree, Node};
use crate::process::Forked;
use crate::qpair::folder::FolderNamespace;
use crate::reader::{Batch, OnError, Ranges, SampleRange, Watch};
use crate::units::{Epoch, SampleId};

/// A data set as a tree of files. All methods may be called from any thread.
#[derive(Debug)]
pub struct Files {
    dataset: Dataset,
    tree: FileTree,
    field_lens: Forked<FieldLens>,
    /// The epochs of this process: a forked child counts its own.
    epochs: Forked<Mutex<Epochs<Counted>>>,
    counters: FileCounters,
}

/// The verified bytes of one file. They share the buffer that they were read into.
#[derive(Debug)]
pub struct FileBytes {
    batch: Batch,
    field: Option<usize>,
    /// The whole file, if its form differs from the bytes of the field.
    file: Option<Vec<u8>>,
}

/// The lengths of the fields of the samples read last: at most one sample a slot.
type FieldLens = Mutex<Vec<Option<(SampleId, Box<[u64]>)>>>;

impl Files {
    /// Makes the files of `dataset`. Loads the names.
    ///
    /// # Errors
    /// As [`Dataset::load_names`].
    pub fn new(dataset: Dataset, watch: &mut dyn Watch) -> Result<Files> {
        dataset.load_names(watch)?;
        let tree = FileTree::new(dataset.directory().clone())?;
        let counters = FileCounters::default();
        Ok(Files { dataset, tree, field_lens: Forked::empty(), epochs: Forked::empty(), counters })
    }

    /// The data set.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The tree.
    pub fn tree(&self) -> &FileTree {
        &self.tree
    }

    /// The attributes of a node. If samples have fields, reads the sample unless it was read recently: only
    /// the sample itself holds the lengths of its fields.
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

    /// Opens the file's copy in a tier, if that copy is a complete file of its own: see
    /// [`Cache::open_copy`](crate::cache::Cache::open_copy).
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

    /// Counts that the program opens `file`. `along` is the epoch of the order that readahead follows, if the
    /// file was read ahead.
    pub fn opened(&self, file: File, along: Option<Epoch>) {
        let so_far = self.counters.so_far();
        self.counters.opened();
        let mut epochs = self.epochs().lock();
        epochs.opened(self.tree.number(file), along, || self.counted(so_far));
    }

    /// Notes that the program begins another order, or the same order again.
    pub fn order_begins(&self) {
        self.epochs().lock().order_begins();
    }

    /// The counters of the program's use of files.
    pub fn counters(&self) -> &FileCounters {
        &self.counters
    }

    /// The counters of the last 100 epochs, with the current one up to now.
    pub fn epochs_so_far(&self) -> Vec<EpochCounts> {
        let now = self.counted(self.counters.so_far());
        let epochs = self.epochs().lock();
        let ends = epochs.begins().skip(1).map(|(_, begin)| begin).chain([&now]);
        epochs.begins().zip(ends).map(|((epoch, begin), end)| end.since(begin, epoch)).collect()
    }

    fn epochs(&self) -> &Mutex<Epochs<Counted>> {
        self.epochs.get_or_init(|| Mutex::new(Epochs::new(self.tree.num_files())))
    }

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

    fn field_len(&self, file: File, watch: &mut dyn Watch) -> Result<u64> {
        let slot = file.id.0 as usize % KEPT;
        // Without a wait: a read is the alternative if another thread has the lock.
        if let Some(kept) = self.kept().try_lock()
            && let Some((id, lens)) = &kept[slot]
            && *id == file.id
        {
            return Ok(lens[usize::from(file.field)]);
        }
        match self.open_in_pieces(file, watch)? {
            Some(opened) => Ok(opened.len_bytes()), // opening has read the table of fields
            None => Ok(self.read(file, watch)?.len() as u64),
        }
    }

    fn keep_lens(&self, id: SampleId, record: &[u8]) -> Result<()> {
        let ranges = fields::split(record, self.dataset.directory().fields().len())
            .map_err(|error| Error::from(error).sample(id))?;
        let lens = ranges.into_iter().enumerate().map(|(field, range)| {
            range.map_or(0, |range| self.file_of(field, &record[range]).len() as u64)
        });
        if let Some(mut kept) = self.kept().try_lock() {
            kept[id.0 as usize % KEPT] = Some((id, lens.collect()));
        }
        Ok(())
    }

    fn kept(&self) -> &FieldLens {
        self.field_lens.get_or_init(|| Mutex::new((0..KEPT).map(|_| None).collect()))
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

/// An open sample, or one field of it, as bytes or as a file. Reads may come from any thread, and never wait
/// for each other.
///
/// It caches the bytes of the last read: a sample up to 1 MiB whole, of a larger one at most 8 MiB.
/// Sequential reads read ahead, twice as far each time; other reads take only the pieces that they touch.
#[derive(Debug)]
pub struct SampleFile {
    dataset: Dataset,
    id: SampleId,
    /// The first bytes of the file, which the record lacks: the header of its form, or a whole number as text.
    head: Vec<u8>,
    /// The range of the record that holds the rest of the file.
    span: Range<u64>,
    record_len: u64,
    /// Taken out while a thread uses it: a thread that finds none reads for itself. The lock is only tried,
    /// so that a lock held at a fork does not block the child.
    window: Mutex<Option<Window>>,
}

/// The bytes that were read last.
#[derive(Debug)]
struct Window {
    /// The range of the record that the bytes are from.
    at: Range<u64>,
    ranges: Ranges,
    /// The end of the last read.
    next: u64,
}

impl Dataset {
    /// Opens a sample: the whole record, or the bytes of `field`, whose position is read from the table of
    /// fields.
    ///
    /// # Errors
    /// `NotFound`: there is no such sample, or it lacks the field. Errors of [`Dataset::read_range`].
    pub fn open_sample(
        &self,
        id: SampleId,
        field: Option<usize>,
        watch: &mut dyn Watch,
    ) -> Result<SampleFile> {
        let record_len = u64::from(self.len_bytes(id)?);
        let num_fields = self.directory().fields().len();
        let span = match field {
            Some(field) if num_fields > 1 => {
                let read = self.read_range(id, 0..table_len(num_fields), watch)?;
                let found = field_range(read.bytes(0), num_fields, field, record_len)?;
                found.ok_or_else(|| without_field(id))?
            }
            _ => 0..record_len,
        };
        let window = Mutex::new(None);
        let head = Vec::new();
        Ok(SampleFile { dataset: self.clone(), id, head, span, record_len, window })
    }

    /// As [`Dataset::open_sample`], of the file of a field: if its type has a [form of
    /// files](crate::format::field_type::FileForm), the file shows the elements in that form.
    ///
    /// # Errors
    /// As [`Dataset::open_sample`].
    pub fn open_file(
        &self,
        id: SampleId,
        field: Option<usize>,
        watch: &mut dyn Watch,
    ) -> Result<SampleFile> {
        let mut file = self.open_sample(id, field, watch)?;
        let Some(kind) = field.and_then(|field| self.directory().field_types().of(field)) else {
            return Ok(file);
        };
        match kind.file_head(file.len_bytes()) {
            Some(head) => file.head = head,
            None => {
                let mut number = vec![0; file.len_bytes() as usize]; // at most 8 bytes as text
                file.read_at(0, &mut number, watch)?;
                file.head = kind.to_file(&number).into_owned();
                file.span.end = file.span.start;
            }
        }
        Ok(file)
    }

    /// As [`Dataset::read_ranges`], of one field of each sample. A sample that lacks the field fails with
    /// `NotFound`.
    ///
    /// # Errors
    /// As [`Dataset::read_ranges`].
    pub fn read_field_ranges(
        &self,
        ranges: &[SampleRange],
        field: usize,
        watch: &mut dyn Watch,
    ) -> Result<(Ranges, Vec<(usize, Error)>)> {
        let num_fields = self.directory().fields().len();
        if num_fields <= 1 {
            return self.read_ranges(ranges, watch);
        }
        let table =
            |range: &SampleRange| SampleRange { start: 0, end: table_len(num_fields), ..*range };
        let (tables, mut failures) =
            self.read_ranges(&ranges.iter().map(table).collect::<Vec<_>>(), watch)?;
        let mut wanted = Vec::new();
        let mut places = Vec::new();
        let without_table = failures.len();
        for (index, range) in ranges.iter().enumerate() {
            let failed = &failures[..without_table];
            if failed.binary_search_by_key(&index, |(failed, _)| *failed).is_ok() {
                continue;
            }
            let found = self.len_bytes(range.id).and_then(|len| {
                Ok(field_range(tables.bytes(index), num_fields, field, len.into())?)
            });
            match found {
                Ok(Some(span)) => {
                    let at = |offset: u64| span.start.saturating_add(offset).min(span.end);
                    wanted.push(SampleRange {
                        start: at(range.start),
                        end: at(range.end),
                        ..*range
                    });
                    places.push(index);
                }
                Ok(None) => failures.push((index, without_field(range.id))),
                Err(error) => failures.push((index, error.sample(range.id))),
            }
        }
        let (read, more) = self.read_ranges(&wanted, watch)?;
        failures.extend(more.into_iter().map(|(nth, error)| (places[nth], error)));
        failures.sort_by_key(|(index, _)| *index);
        Ok((read.spread(&places, ranges.len()), failures))
    }
}

fn without_field(id: SampleId) -> Error {
    Error::new(ErrorKind::NotFound, "the sample does not have the field").sample(id)
}

impl SampleFile {
    /// The sample.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// The length of the file in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.head.len() as u64 + self.body_len()
    }

    fn body_len(&self) -> u64 {
        self.span.end - self.span.start
    }

    /// Reads at `offset` into `buf`, as `pread`: returns how many bytes there are, 0 at and after the end.
    ///
    /// # Errors
    /// Errors of [`Dataset::read_range`]; `buf` then has no meaning.
    pub fn read_at(&self, offset: u64, buf: &mut [u8], watch: &mut dyn Watch) -> Result<usize> {
        let head_len = self.head.len() as u64;
        let Some(front) = self.head.get(offset.min(head_len) as usize..) else { return Ok(0) };
        let taken = front.len().min(buf.len());
        buf[..taken].copy_from_slice(&front[..taken]);
        let at = offset.saturating_sub(head_len);
        Ok(taken + self.read_body(at, &mut buf[taken..], watch)?)
    }

    fn read_body(&self, offset: u64, buf: &mut [u8], watch: &mut dyn Watch) -> Result<usize> {
        let left = self.body_len().saturating_sub(offset);
        let len = left.min(buf.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let start = self.span.start + offset;
        let mut window = self.window.try_lock().and_then(|mut window| window.take());
        let mut done = 0;
        while done < len {
            let at = start + done as u64;
            let kept = match window.take() {
                Some(window) if window.at.contains(&at) => window,
                other => self.read_window(at..start + len as u64, other.as_ref(), watch)?,
            };
            let from = (at - kept.at.start) as usize;
            let bytes = kept.ranges.bytes(0).get(from..).unwrap_or_default();
            let taken = bytes.len().min(len - done);
            if taken == 0 {
                let text = "a read of the sample returned fewer bytes than it has";
                return Err(Error::new(ErrorKind::Internal, text).sample(self.id));
            }
            buf[done..done + taken].copy_from_slice(&bytes[..taken]);
            done += taken;
            window = Some(Window { next: start + done as u64, ..kept });
        }
        if let Some(mut place) = self.window.try_lock() {
            *place = window;
        }
        Ok(len)
    }

    /// Calls `work` with verified bytes of the file at `offset`, as many as one read brings; with none at the
    /// end of the file. Uses neither cached bytes nor readahead: for callers that read the whole file and need no
    /// copy of the bytes.
    ///
    /// # Errors
    /// Errors of [`Dataset::read_range`].
    pub fn with_bytes_at<T>(
        &self,
        offset: u64,
        watch: &mut dyn Watch,
        work: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let head_len = self.head.len() as u64;
        if offset < head_len {
            return Ok(work(&self.head[offset as usize..]));
        }
        let start = (self.span.start + offset - head_len).min(self.span.end);
        let end = start - start % STEP_BYTES + STEP_BYTES;
        let read = self.dataset.read_range(self.id, start..end.min(self.span.end), watch)?;
        Ok(work(read.bytes(0)))
    }

    /// Drops the cached bytes, unless another thread uses them.
    pub fn release(&self) {
        if let Some(mut window) = self.window.try_lock() {
            *window = None;
        }
    }

    /// Reads the range `wanted` of the record, or the first [`MAX_WINDOW_BYTES`] of it: of a small record all bytes,
    /// of a large one whole pieces, and more of them if `wanted` continues the last read.
    fn read_window(
        &self,
        wanted: Range<u64>,
        last: Option<&Window>,
        watch: &mut dyn Watch,
    ) -> Result<Window> {
        let at = if self.record_len <= PIECED_ABOVE_BYTES.into() {
            0..self.record_len
        } else {
            let piece = u64::from(PIECE_BYTES);
            let ahead = match last {
                Some(last) if last.next == wanted.start => 2 * (last.at.end - last.at.start),
                _ => 0,
            };
            let start = wanted.start - wanted.start % piece;
            let end = wanted.end.max(start + ahead).min(start + MAX_WINDOW_BYTES);
            start..end.next_multiple_of(piece).min(self.record_len)
        };
        let ranges = self.dataset.read_range(self.id, at.clone(), watch)?;
        Ok(Window { at, ranges, next: wanted.start })
    }
}

/// The extended attribute with the number of bytes of a file's sample that have copies in a tier.
const KEPT_IN_TIERS: &str = "user.dlfs.kept";

/// Slots for the lengths of fields, one sample each.
const KEPT: usize = 4096;

/// Bytes per step through a whole file: a step stays in the processor's cache until it is copied.
const STEP_BYTES: u64 = 1 << 20;
/// The most that one file caches, and reads at once.
const MAX_WINDOW_BYTES: u64 = 8 << 20;
