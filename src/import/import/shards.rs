//! The shards of a source, each decoded alone: for readers that take shards as they are, without an import.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::checked::{Checked, Checks};
use super::columns::FieldColumns;
use super::formats::{self, RowSet, SharedOrigins};
use super::importer::find_sources;
use super::options::{ImportOptions, Progress, source_options};
use super::sources::expansion::Expansion;
use super::sources::sample_stream::{SampleStream, StreamPlace, StreamSample};
use super::sources::spool::is_stream;
use super::sources::tar::{FolderClasses, folder_classes};
use super::sources::{BadEntry, FoundFile, Indexing, Inputs, SourceKind, objects, shard};
use super::streamed::DetectedKind;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_places::Place;

/// A shard, as it was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Path or address.
    pub path: PathBuf,
    /// The prefix of those of its names that an earlier shard has, too.
    pub name: Vec<u8>,
    /// Length in bytes, as stored.
    pub len_bytes: u64,
    /// Changes with the shard: a hash of its entity tag, or of its inode and time.
    pub stamp: u64,
}

/// The shards of a source, in the order of an import.
pub struct Shards {
    /// The kind of the shards.
    detected: DetectedKind,
    /// The file or object of each shard.
    files: Vec<FoundFile>,
    shards: Vec<Shard>,
    /// The columns of the files, if the shards are files of rows.
    rows: Option<Arc<RowSet>>,
    options: ImportOptions,
    /// Entries beside the shards that cannot be imported, such as dangling links.
    bad: Vec<BadEntry>,
    /// Names and types of the fields of all samples.
    layout: OnceLock<(Vec<Vec<u8>>, FieldTypes)>,
    /// The typed columns whose values come from fields. Set by the first sample.
    field_columns: OnceLock<FieldColumns>,
    /// The folders of plain archives that no sample followed at once, as far as readers have told them.
    folders: Mutex<BTreeSet<Vec<u8>>>,
}

impl Shards {
    /// Finds the shards of `sources` and their kind as an import with these options does. Opens all files of rows, to
    /// find their columns.
    ///
    /// # Errors
    /// Errors of opening a source. `BadSource`: the samples of the sources are files. `Unsupported`: a shard is a pipe,
    /// or the options need an import.
    pub fn look(
        sources: &[PathBuf],
        options: &ImportOptions,
        progress: &mut dyn Progress,
    ) -> Result<Shards> {
        if options.columns.is_some() || options.rows.tokenizer.is_some() || options.nested {
            let text = "tables of values, tokenizers and archives in archives need an import";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let given = source_options(options, Vec::new());
        let are_objects = objects::are_objects(sources, given.kind)?;
        let found =
            find_sources(sources, are_objects, options, &mut Indexing::new(progress, &given))?;
        let source = sources.first().cloned().unwrap_or_default();
        if found.files.is_empty() || found.kind == SourceKind::List {
            let text = format!("the source is a {}, and no shards", found.kind);
            let hint = "a folder of samples needs no index: open it without --shards";
            return Err(Error::new(ErrorKind::BadSource, text).path(source).hint(hint));
        }
        if let Some(pipe) = found.files.iter().find(|file| is_stream(&file.path)) {
            let text = "a pipe can be read only once";
            return Err(Error::new(ErrorKind::Unsupported, text).path(&pipe.path));
        }
        let mut files = found.files;
        let mut rows = None;
        if found.kind.is_rows() {
            let expansion = Expansion::new(options.max_expansion);
            let origins = SharedOrigins::default();
            let kind = found.kind;
            let set = formats::survey(files, kind, None, options, None, &origins, &expansion)?;
            let set = set.with_all_classes()?;
            files = set.files().collect();
            rows = Some(Arc::new(set));
        }
        let shards = files.iter().map(listed).collect::<Result<_>>()?;
        Ok(Shards {
            detected: DetectedKind { kind: found.kind, decided: found.decided },
            files,
            shards,
            rows,
            options: options.clone(),
            bad: found.bad,
            layout: OnceLock::new(),
            field_columns: OnceLock::new(),
            folders: Mutex::default(),
        })
    }

    /// The shards.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The kind of the shards; never `Auto`.
    pub fn kind(&self) -> SourceKind {
        self.detected.kind
    }

    /// Entries beside the shards that cannot be imported, such as dangling links.
    pub fn bad(&self) -> &[BadEntry] {
        &self.bad
    }

    /// Returns whether the shards are objects of stores.
    pub fn are_objects(&self) -> bool {
        self.files.iter().any(|file| file.object.is_some())
    }

    /// Names and types of the fields. Unless [`set_layout`](Self::set_layout) has set them, reads the first sample if
    /// it [defines them](Self::is_of_first).
    ///
    /// # Errors
    /// Errors of reading the sample.
    pub fn layout(&self) -> Result<&(Vec<Vec<u8>>, FieldTypes)> {
        if let Some(layout) = self.layout.get() {
            return Ok(layout);
        }
        let mut layout = self.rows.as_ref().map(|rows| rows.layout()).unwrap_or_default();
        // The first sample may be in a later shard, since shards may be empty.
        for number in (0..self.files.len()).take_while(|_| self.is_of_first()) {
            let mut first = self.open(number, StreamPlace::default(), None, Some(0))?;
            let is_there = first.next_sample()?.is_some();
            layout = (first.fields().to_vec(), first.field_types());
            if is_there {
                break;
            }
        }
        Ok(self.layout.get_or_init(|| layout))
    }

    /// Returns whether the first sample defines the fields or their types.
    pub fn is_of_first(&self) -> bool {
        self.kind() == SourceKind::WebDataset || !self.options.field_types.is_empty()
    }

    /// A hash of what defines the samples of a shard, besides its bytes: options, and what other shards define.
    pub fn fingerprint(&self) -> u64 {
        let ImportOptions { rows, field_types, field_columns, prefix, classes, folders, .. } =
            &self.options;
        let first = self.shards.first().filter(|_| self.is_of_first());
        let of_rows = self.rows.as_ref().map(|rows| (rows.layout(), rows.classes()));
        let given = (self.kind(), rows, field_types, field_columns, prefix, classes, folders);
        xxh3_64(format!("{given:?} {first:?} {of_rows:?}").as_bytes())
    }

    /// Returns whether all names are distinct, since they are made of the shards' names and numbers.
    pub fn is_numbered(&self) -> bool {
        self.kind() == SourceKind::TfRecord
    }

    /// The pages within long row groups of a Parquet shard that its readers have met: offsets and numbers of values.
    pub fn pages(&self, number: usize) -> Vec<(u64, u64)> {
        let rows = self.rows.as_ref();
        rows.map(|rows| rows.pages(number).lock().clone()).into_iter().flatten().collect()
    }

    /// Adds pages that readers of another process have met, for the readers of this process.
    pub fn add_pages(&self, number: usize, pages: &[(u64, u64)]) {
        if let Some(rows) = &self.rows {
            rows.pages(number).lock().extend(pages.iter().copied());
        }
    }

    /// Adds [`folders`](SampleStream::folders) of a shard that was read to its end, for
    /// [`folder_classes`](Self::folder_classes).
    pub fn add_folders(&self, folders: &[Vec<u8>]) {
        self.folders.lock().extend(folders.iter().cloned());
    }

    /// Sets the layout that was found before, by another process.
    pub fn set_layout(&self, fields: Vec<Vec<u8>>, types: FieldTypes) {
        // Another thread may have found it meanwhile: the same one.
        let _ = self.layout.set((fields, types));
    }

    /// Opens shard `number` at `from`. `end`: the place at which reading ends, in a shard that is not compressed.
    ///
    /// # Errors
    /// Errors of opening it. `BadSource`: it has changed since it was listed.
    pub fn stream(
        &self,
        number: usize,
        from: StreamPlace,
        end: Option<StreamPlace>,
    ) -> Result<ShardStream<'_>> {
        self.layout()?;
        self.check(number)?;
        self.open(number, from, end, None)
    }

    /// Checks that a file is still as it was listed. Objects are checked by each request.
    ///
    /// # Errors
    /// `BadSource`: it has changed.
    pub fn check(&self, number: usize) -> Result<()> {
        let same = |now: Shard| now == self.shards[number];
        if self.files[number].object.is_some() || listed(&self.files[number]).is_ok_and(same) {
            return Ok(());
        }
        let text = "the shard has changed since it was listed";
        let error = Error::new(ErrorKind::BadSource, text).path(&self.shards[number].path);
        Err(error.hint("open the data set again"))
    }

    /// As [`stream`](Self::stream), without checks. `ahead_bytes`: bytes to request ahead from a store; `None`: as many
    /// as the client's window allows.
    fn open(
        &self,
        number: usize,
        from: StreamPlace,
        end: Option<StreamPlace>,
        ahead_bytes: Option<u64>,
    ) -> Result<ShardStream<'_>> {
        let Shards { options, field_columns, .. } = self;
        let is_packed = Arc::new(AtomicBool::new(false));
        let expansion = Expansion::new(options.max_expansion);
        let types = self.layout.get().map(|(_, types)| types.clone()).unwrap_or_default();
        let samples: Box<dyn SampleStream> = match &self.rows {
            Some(rows) => {
                let is_part =
                    from != StreamPlace::default() || end.is_some() || ahead_bytes.is_some();
                // Both places may have one offset, as in formats that count rows or batches. Then the offset at which
                // the part ends is not known, and `part_rows` ends it.
                let part_end = end.map(|end| end.offset).filter(|end| *end > from.offset);
                let part_end = part_end.or(is_part.then_some(u64::MAX));
                let part_rows = end.map(|end| end.record.saturating_sub(from.record));
                let part_rows = part_rows.or(ahead_bytes.map(|_| 1));
                is_packed.store(has_packed_name(&self.files[number].path), Ordering::Relaxed);
                Box::new(rows.alone(number, from, (part_end, part_rows), expansion)?)
            }
            None => {
                let file = self.files[number].clone();
                let len = self.shards[number].len_bytes;
                let is_part = from.offset > 0 || end.is_some();
                let begin = from.offset.min(len);
                let end = end.map_or(len, |end| end.offset);
                let part = is_part.then(|| begin..end.clamp(begin, len));
                let ahead_bytes = ahead_bytes.unwrap_or(u64::MAX);
                let packed = Arc::clone(&is_packed);
                let inputs = Inputs::of_shard(file, part, ahead_bytes, expansion, packed);
                let fields = self.layout.get().map(|(fields, _)| fields.clone());
                let place = StreamPlace { input: 0, ..from };
                self.detected.samples(inputs, fields, options, u64::MAX, place, HashSet::new())?
            }
        };
        let checks = Checks { image: None, file: None, options, field_columns };
        Ok(ShardStream { from: Checked::new(samples, checks, types), is_packed, shards: self })
    }

    /// The names of the classes and the label of each sample. `None`: they do not follow from the `names` of all
    /// samples, as they do in plain archives that are files, or there are no classes.
    pub fn folder_classes(&self, names: impl FnOnce() -> Vec<Vec<u8>>) -> Option<FolderClasses> {
        let is_plain = self.kind() == SourceKind::Tar && !self.are_objects();
        let names = is_plain.then(names)?;
        let folders = self.folders.lock().clone();
        let found = folder_classes(names.iter().map(Vec::as_slice), folders);
        Some(found).filter(|(classes, _)| !classes.is_empty())
    }
}

/// The samples of a shard, checked as an import checks them.
pub struct ShardStream<'a> {
    from: Checked<'a>,
    /// Set once the shard is known to be compressed.
    is_packed: Arc<AtomicBool>,
    shards: &'a Shards,
}

impl ShardStream<'_> {
    /// Returns whether the shard is compressed, as far as is known: places in it are reached only by decompressing all
    /// that comes before.
    pub fn is_packed(&self) -> bool {
        self.is_packed.load(Ordering::Relaxed)
    }

    /// The typed columns of the samples.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        self.shards.field_columns.get().map(|columns| columns.join(Vec::new())).unwrap_or_default()
    }
}

impl SampleStream for ShardStream<'_> {
    fn inner(&self) -> Option<&(dyn SampleStream + '_)> {
        Some(&self.from)
    }

    fn inner_mut(&mut self) -> Option<&mut (dyn SampleStream + '_)> {
        Some(&mut self.from)
    }

    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        self.from.next_sample()
    }
}

/// Describes a file or object as it is now.
fn listed(file: &FoundFile) -> Result<Shard> {
    let FoundFile { path, name, object } = file;
    let (len_bytes, stamp) = match object {
        Some((_, object)) => (object.len_bytes, object.stamp()),
        None => {
            let (_, container) = shard::open(path)?;
            (container.len_bytes, container.stamp)
        }
    };
    // An address without its secrets; a path that other processes of the job have, too.
    let path = if Place::is_place(path) {
        dlfs_places::shown(path).into()
    } else {
        std::path::absolute(path).map_err(|error| Error::from(error).path(path))?
    };
    Ok(Shard { path, name: name.clone(), len_bytes, stamp })
}

/// Returns whether a file of rows has the name of a compressed one. LitData puts the kind before its ending:
/// `.zstd.bin` or, with a level, `.zstd:4.bin`.
fn has_packed_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let name = match name.strip_suffix(b".bin") {
        Some(name) => name.split(|byte| *byte == b':').next().unwrap_or_default(),
        None => name,
    };
    let ends = [&b".gz"[..], b".gzip", b".zst", b".zstd", b".bz2", b".xz"];
    ends.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_compressed_files_of_rows() {
        for name in ["a.jsonl.gz", "shard.00000.mds.zstd", "chunk-0-0.zstd.bin", "c.zstd:4.bin"] {
            assert!(has_packed_name(&Path::new("s3://bucket/rows").join(name)), "{name}");
        }
        for name in ["a.jsonl", "shard.00000.mds", "chunk-0-0.bin", "part-0.zstd.parquet"] {
            assert!(!has_packed_name(&Path::new("/data/rows.gz").join(name)), "{name}");
        }
    }
}
