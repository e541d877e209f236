//! An import, from opening the source to the commit.
//!
//! A source with an index is imported here, by passes of several threads (`pass.rs`). Other sources are streams: see
//! `streamed.rs`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import::bad_entries::{BadEntries, no_samples};
use crate::import::chunks::{ChunkPlan, RowOrder, Rows};
use crate::import::columns::{ColumnFile, FieldColumns, RowColumns, columns_of};
use crate::import::committed::free_space;
use crate::import::device::{open_for_import, remove};
use crate::import::field_types::{self, Typing};
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{
    ImportOptions, ImportReport, OnError, Onto, PlacementOrder, Progress, RowOptions, Stage,
    other_fields, source_options,
};
use crate::import::pass::{BadRows, Discard, Pass};
use crate::import::prepare::{self, ImportState, write_journals};
use crate::import::progress::Metered;
use crate::import::sources::{
    BadEntry, BadReason, Found, Index, Indexing, PieceError, Source, SourceKind, detect, objects,
};
use crate::import::write_behind::PIECE_BYTES;
use crate::import::{commit, streamed};
use dlfs_base::units::SampleId;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::space::without;
use dlfs_format::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs_format::format::{CellRange, ChunkSpec, Placement, Superblock};
use dlfs_io::address::Address;
use dlfs_io::qpair::file::FileCalls;
use dlfs_io::qpair::{ConnectOptions, Device};

/// Imports `sources` onto the image at `image`.
///
/// Creates files that do not exist, except for an append; files grow as needed. If the import fails because of
/// its source, or before there is anything to resume, the files that it created are removed. After any other
/// failure, [`Onto::Resume`](crate::import::Onto::Resume) continues the import.
///
/// # Errors
/// `BadSource`: some entries cannot be imported; the cause lists all of them, and nothing is committed.
/// `Refused`: the image holds data that the options do not allow to overwrite. `Busy`: another import is
/// running. `NoSpace`, `Disconnected`, `Interrupted`: resume with `Onto::Resume`.
pub fn import(
    sources: &[PathBuf],
    image: &[Address],
    options: &ImportOptions,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<ImportReport> {
    let progress = &mut Metered::new(progress);
    let source = open_source(sources, image, options, progress)?;
    let mut created = Vec::new();
    let calls = match &source {
        // Each thread waits for its own writes. A write to the page cache copies in the calling thread; with a
        // ring, yet another thread would copy.
        OpenSource::Indexed(_) => FileCalls::Pread,
        // One thread reads the stream. Meanwhile other threads copy into the page cache, and flush it.
        OpenSource::Streams(_) => FileCalls::Auto,
    };
    let result = open_for_import(image, options.onto, connect, calls, &mut created)
        .and_then(|devices| run(source, devices, options, progress));
    let is_useless = |error: &Error| {
        error.kind() == ErrorKind::BadSource || created.iter().all(|path| is_blank(path))
    };
    if result.as_ref().is_err_and(is_useless) {
        remove(&created);
    }
    result
}

/// Returns whether a new file has neither a superblock, nor a journal to resume from, nor the lease of another
/// process that has begun to write it.
fn is_blank(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    read.is_ok() && head.iter().all(|byte| *byte == 0)
}

/// Imports onto open namespaces. Otherwise the same as [`import`].
///
/// # Errors
/// As [`import`].
pub fn import_onto(
    sources: &[PathBuf],
    devices: &[Arc<dyn Device>],
    options: &ImportOptions,
    progress: &mut dyn Progress,
) -> Result<ImportReport> {
    let progress = &mut Metered::new(progress);
    let source = open_source(sources, &[], options, progress)?;
    run(source, devices.to_vec(), options, progress)
}

/// An indexed source, or streams that are imported while they are read.
pub(super) enum OpenSource {
    /// All entries are known.
    Indexed(Box<Source>),
    /// Entries become known as the streams are read, once.
    Streams(Box<Found>),
}

/// Finds and opens the sources of an import onto the image at `image`, whose files are no samples.
///
/// # Errors
/// `BadSource`: some entries cannot be imported, and the options do not allow to leave them out. `InvalidArgument`: the
/// options do not fit the source. Errors of opening.
pub(super) fn open_source(
    sources: &[PathBuf],
    image: &[Address],
    options: &ImportOptions,
    progress: &mut dyn Progress,
) -> Result<OpenSource> {
    let identity =
        |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let files = image.iter().filter_map(|address| match address {
        Address::Path(path) => identity(path),
        _ => None,
    });
    let source_options = source_options(options, files.collect());
    let indexing = &mut Indexing::new(progress, &source_options);
    let are_objects = objects::are_objects(sources, source_options.kind)?;
    let found = find_sources(sources, are_objects, options, indexing)?;
    let in_order = options.placement == PlacementOrder::Source && options.spool.is_none();
    let are_shards = are_objects && !found.files.is_empty();
    if are_shards || found.kind.is_rows() || in_order && found.is_streams()? {
        return Ok(OpenSource::Streams(Box::new(found)));
    }
    let source = Source::index_found(found, indexing)?;
    if options.on_error == OnError::Stop && !source.index().bad.is_empty() {
        return Err(BadEntries(all_bad(&source, progress)).into_error());
    }
    Ok(OpenSource::Indexed(Box::new(source)))
}

/// Detects the kind of an import's sources. `are_objects`: they are objects of stores.
pub(super) fn find_sources(
    sources: &[PathBuf],
    are_objects: bool,
    options: &ImportOptions,
    indexing: &mut Indexing<'_>,
) -> Result<Found> {
    let ImportOptions { splits, places, .. } = options;
    let found = if are_objects {
        objects::find(sources, splits, places, indexing)?
    } else if splits.is_empty() {
        detect::find(sources, indexing)?
    } else {
        let text = "splits are taken of data sets on the hub: hf://datasets/OWNER/NAME";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    };
    let RowOptions { tokens, end_of_document, tokenizer, .. } = &options.rows;
    let are_tokens = tokens.is_some() || end_of_document.is_some() || tokenizer.is_some();
    let is_refused = !are_objects || are_tokens;
    if is_refused && !found.kind.is_rows() && options.rows != RowOptions::default() {
        let text = format!("columns are chosen of rows, and the source is a {}", found.kind);
        let hint = "leave out --name, --label, --fields, --files, --tokens and --tokenizer";
        return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
    }
    Ok(found)
}

/// All bad entries of a refused source. Some are found only by reading the payloads: those that are found until
/// `progress` asks to stop.
fn all_bad(source: &Source, progress: &mut dyn Progress) -> Vec<BadEntry> {
    let mut bad = source.index().bad.clone();
    if source.kind() == SourceKind::TfRecord {
        let mut reader = source.reader();
        let mut piece = vec![0; PIECE_BYTES];
        for row in (0..source.index().len()).take_while(|_| !progress.stop()) {
            for payload in source.index().payloads(row) {
                if let Err(PieceError::Bad(reason)) =
                    reader.read_in_pieces(row, &payload, &mut Discard(&mut piece))
                {
                    bad.push(source.index().bad_row(row, reason));
                }
            }
        }
    }
    bad
}

/// Imports an open source onto open namespaces.
fn run(
    source: OpenSource,
    devices: Vec<Arc<dyn Device>>,
    options: &ImportOptions,
    progress: &mut dyn Progress,
) -> Result<ImportReport> {
    let columns = options.columns.as_ref().map(ColumnFile::read).transpose()?;
    let media = prepare::in_image_order(&Media::new(devices)?)?;
    let lease = Lease::take(&media, options.lease)?;
    let source = match source {
        OpenSource::Indexed(source) => *source,
        OpenSource::Streams(found) => {
            let result = streamed::run(*found, columns, media, &lease, options, progress);
            return lease.explain(result);
        }
    };
    match prepare_import(source, columns, media, lease, options, progress)? {
        Err(report) => Ok(report),
        Ok(mut import) => {
            let result = import.run(progress);
            import.lease.explain(result)
        }
    }
}

/// Inspects source and image, decides what to write, and prepares the media for it. The inner error: the report of an
/// import that is complete.
pub(super) fn prepare_import<'a>(
    mut source: Source,
    columns: Option<ColumnFile>,
    media: Media,
    lease: Lease,
    options: &'a ImportOptions,
    progress: &mut dyn Progress,
) -> Result<Result<Import<'a>, ImportReport>> {
    let index = source.index();
    options.check_classes(&index.classes)?;
    let of_columns = columns.as_ref().map_or(0, ColumnFile::fingerprint);
    let told = field_types::fingerprint(&options.field_types, &options.field_columns);
    let fingerprint = index.fingerprint() ^ of_columns ^ told;
    // A new image has only the types that are given. They are checked while the old image still exists.
    let is_new = matches!(options.onto, Onto::Empty | Onto::Force);
    let mut give = |image| give_types(&mut source, options, columns.as_ref(), image, progress);
    let given = is_new.then(|| give(None)).transpose()?;
    let state = prepare::prepare(media, options, fingerprint)?;
    if state.done {
        return Ok(Err(report_of_done(&state, &source)));
    }
    let image = state.image();
    let columns = columns.map(|columns| columns.for_image(image)).transpose()?;
    let (typing, field_columns) = match given {
        Some(given) => given,
        None => give_types(&mut source, options, columns.as_ref(), image, progress)?,
    };
    let mut import = Import { source, state, options, lease, columns, typing, field_columns };
    import.leave_out_duplicate_names()?;
    Ok(Ok(import))
}

/// Replaces the files of typed fields by their elements, and reads the values of columns that come from fields.
/// Leaves out samples for which this fails.
///
/// # Errors
/// `BadSource`: some files have the wrong content, and the options do not allow to leave them out.
fn give_types(
    source: &mut Source,
    options: &ImportOptions,
    file: Option<&ColumnFile>,
    image: Option<&Directory>,
    progress: &mut dyn Progress,
) -> Result<(Typing, FieldColumns)> {
    let mut typing = Typing::new(&options.field_types, &source.index().fields, image)?;
    let bad = typing.of_source(source, &mut || !progress.stop())?;
    drop_bad(source, bad, options)?;
    // Now all types are known, including those that a field's first file determines.
    let fields = &source.index().fields;
    let types = typing.types();
    let columns = FieldColumns::new(&options.field_columns, fields, &types, file, image)?;
    if !columns.is_empty() {
        let bad = columns.of_source(source, file, &mut || !progress.stop())?;
        drop_bad(source, bad, options)?;
    }
    Ok((typing, columns))
}

/// Leaves out rows of a source, or refuses the source because of them.
fn drop_bad(source: &mut Source, bad: BadRows, options: &ImportOptions) -> Result<()> {
    if options.on_error == OnError::Stop && !bad.is_empty() {
        let bad = bad.into_iter().map(|(_, bad)| bad);
        let all = source.index().bad.iter().cloned().chain(bad).collect();
        return Err(BadEntries(all).into_error());
    }
    source.drop_bad(bad);
    Ok(())
}

/// An import in progress.
pub(super) struct Import<'a> {
    pub(super) source: Source,
    /// The image, and the journal.
    pub(super) state: ImportState,
    pub(super) options: &'a ImportOptions,
    pub(super) lease: Lease,
    /// The file with values of typed columns, if one is given.
    pub(super) columns: Option<ColumnFile>,
    /// The types of the source's fields.
    typing: Typing,
    /// The typed columns whose values come from fields.
    field_columns: FieldColumns,
}

impl Import<'_> {
    /// Writes and commits, again without the bad rows as long as reading finds some.
    fn run(&mut self, progress: &mut dyn Progress) -> Result<ImportReport> {
        let mut used: Vec<CellRange> = Vec::new();
        loop {
            self.size_part()?;
            match self.write_and_commit(&mut used, progress)? {
                Ok(report) => return Ok(report),
                Err(bad) => drop_bad(&mut self.source, bad, self.options)?,
            }
        }
    }

    /// Sets the size of the part, and of its shuffle window if it has one, to the current number of rows of the source.
    ///
    /// # Errors
    /// `BadSource`: there are no rows.
    pub(super) fn size_part(&mut self) -> Result<()> {
        let samples = self.source.index().len();
        let part = &mut self.state.journal.part;
        part.count = samples;
        if part.window > 0 {
            part.window = samples.max(1);
        }
        if samples == 0 {
            let counts = self.source.file_counts();
            let bad = self.source.index().bad.clone();
            return Err(no_samples(bad, self.source.kind(), counts));
        }
        Ok(())
    }

    /// Writes and commits everything. The inner error is the rows that cannot be read. `used`: the cells that the last
    /// call used; set to those of this call.
    fn write_and_commit(
        &self,
        used: &mut Vec<CellRange>,
        progress: &mut dyn Progress,
    ) -> Result<Result<ImportReport, BadRows>> {
        let journal = &self.state.journal;
        let current = self.state.current.as_ref();
        let (rows, spec, classes) = self.shape()?;
        let placement = Placement::new(journal.part);
        let free = free_space(&self.state.media, &journal.layout, current);
        let plan = ChunkPlan::new(&rows, &spec, &placement, free)?;
        let index = self.source.index();
        let sample_bytes = (0..index.len()).map(|row| index.payload_bytes(row)).sum();
        for namespace in 0..self.state.media.len() {
            let end = journal.layout.offset_of(plan.space.end_cell(namespace))?;
            self.state.media.grow(namespace, end)?;
        }
        if used.is_empty() {
            // The first call: later ones find what it wrote.
            self.state.make_way(self.options)?;
        }
        self.state.media.retry_budget.retry(|| write_journals(&self.state.media, journal))?;
        let ranges: Vec<CellRange> = plan.chunks.iter().map(|chunk| chunk.cells).collect();
        self.clear_unused(used, &ranges)?;
        *used = ranges;
        let mut builder = self.state.builder()?.without_names();
        progress.stage(Stage::Writing, index.len(), sample_bytes);
        let mut pass = Pass {
            rows: &rows,
            spec: &spec,
            placement: &placement,
            time_ns: journal.time_ns,
            chunks: &plan.chunks,
            source: &self.source,
            media: &self.state.media,
            lease: &self.lease,
            threads: self.options.reader_threads,
            may_exist: self.state.resumed,
            skip_chunks: 0,
            only_check: false,
        };
        let outcome = pass.run(Some(&mut builder), progress)?;
        if !outcome.bad.is_empty() {
            return Ok(Err(outcome.bad));
        }
        let directory = self.finish_directory(builder, classes, progress)?;
        let commit = commit::prepare(&self.state.media, directory, &mut plan.space.clone())?;
        let write = || commit::write(&self.state.media, &self.lease, &commit);
        let bad = pass.finish(&outcome, write)?;
        if !bad.is_empty() {
            return Ok(Err(bad));
        }
        Ok(Ok(ImportReport {
            chunks: outcome.chunks,
            chunks_found: outcome.found,
            media: plan.media.with_commit(&commit),
            columns: rows.values.as_ref().map(RowColumns::counts),
            ..report_of(&self.source, &commit.directory, &commit.superblocks)
        }))
    }

    /// Completes the directory of the new generation, whose chunks `builder` has, with classes, origins and names.
    fn finish_directory(
        &self,
        mut builder: DirectoryBuilder,
        classes: Vec<Vec<u8>>,
        progress: &mut dyn Progress,
    ) -> Result<Directory> {
        let journal = &self.state.journal;
        let index = self.source.index();
        builder.set_classes(classes);
        let mut origins = Vec::new();
        self.source.origins().encode(journal.generation, &mut origins);
        builder.add_origins(&origins);
        if let Some(current) = &self.state.current {
            builder.set_freed(current.freed(builder.cell_ranges()));
        }
        progress.stage(Stage::Committing, 0, 0);
        let mut named = 0;
        let mut name = |id: SampleId, out: &mut Vec<u8>| {
            named += 1;
            if named == NAMES_PER_STEP {
                progress.advance(std::mem::take(&mut named), 0);
            }
            out.extend_from_slice(index.name(id.0 - journal.part.first));
            Ok(())
        };
        Ok(builder.finish_named(journal.generation, journal.time_ns, &mut name)?)
    }

    /// Maps fields and classes of the source to those of the image. Returns the rows, the properties of all chunks, and
    /// the names of the image's classes.
    pub(super) fn shape(&self) -> Result<(Rows<'_>, ChunkSpec, Vec<Vec<u8>>)> {
        let index = self.source.index();
        let journal = &self.state.journal;
        let given_fields = || match &index.fields[..] {
            [only] if only.is_empty() => Vec::new(),
            fields => fields.to_vec(),
        };
        let directory = self.state.image();
        let mut classes = self.options.numbered(directory)?;
        let (fields, field_types) = match directory {
            Some(directory) => (directory.fields().to_vec(), directory.field_types().clone()),
            None => (given_fields(), self.typing.types()),
        };
        let mut number_of: HashMap<Vec<u8>, i64> = classes.iter().cloned().zip(0..).collect();
        let class_numbers = index.classes.iter().map(|class| {
            *number_of.entry(class.clone()).or_insert_with(|| {
                classes.push(class.clone());
                classes.len() as i64 - 1
            })
        });
        let class_numbers = class_numbers.collect();
        let source_fields = match_fields(&fields, &given_fields(), index)?;
        let columns = match &self.columns {
            Some(given) => given.join(directory),
            None => columns_of(directory),
        };
        let columns = self.field_columns.join(columns);
        let values = self.columns.as_ref().map(|given| given.of_rows(index)).transpose()?;
        let spec = journal.spec(fields, field_types, columns);
        let order = RowOrder::Ids;
        Ok((Rows { index, source_fields, class_numbers, values, order }, spec, classes))
    }

    /// Clears cells that only an earlier round with more rows used: the chunks there must not be taken for
    /// chunks of the image.
    fn clear_unused(&self, before: &[CellRange], now: &[CellRange]) -> Result<()> {
        let mut channel = self.state.media.channel();
        let layout = &self.state.journal.layout;
        for range in without(before.iter().copied(), now.iter().copied()) {
            let len = range.cells * layout.cell_bytes();
            channel.zero(range.namespace, layout.offset_of(range.cell)?, len)?;
        }
        Ok(())
    }

    /// Finds rows of an append whose names the image already has, and leaves them out or refuses the append.
    fn leave_out_duplicate_names(&mut self) -> Result<()> {
        let Some(current) = &self.state.current else { return Ok(()) };
        let mut taken = Vec::new();
        for row in 0..self.source.index().len() {
            let name = self.source.index().name(row);
            if current.directory.lookup(name)?.is_some() {
                taken.push((row, self.source.index().bad_row(row, BadReason::NameTaken)));
            }
        }
        drop_bad(&mut self.source, taken, self.options)
    }
}

/// Number of names between two progress reports while the directory is built.
const NAMES_PER_STEP: u64 = 1 << 16;

/// For each field of the image, the index of the source's field with that name. `given`: the fields of the source, of
/// which there are none if the only one has no name.
///
/// # Errors
/// `InvalidArgument`: the source has fields that the image lacks.
fn match_fields(image: &[Vec<u8>], given: &[Vec<u8>], index: &Index) -> Result<Vec<Option<u16>>> {
    let foreign = given.iter().find(|field| !image.contains(field));
    if foreign.is_some() || image.is_empty() != given.is_empty() {
        return Err(other_fields("source", given, image));
    }
    if image.is_empty() {
        return Ok(vec![Some(0)]);
    }
    let number = |field: &Vec<u8>| {
        index.fields.iter().position(|other| other == field).and_then(|at| u16::try_from(at).ok())
    };
    Ok(image.iter().map(number).collect())
}

/// The report of an import that was complete already.
fn report_of_done(state: &ImportState, source: &Source) -> ImportReport {
    let current = state.current.as_ref().expect("what is done is committed");
    let directory = &current.directory;
    let first = state.journal.part.first;
    let is_new = |chunk: &u32| directory.chunk(*chunk).first_slot.0 >= first;
    let chunks = (0..directory.num_chunks()).filter(is_new).count() as u64;
    ImportReport {
        samples: directory.num_samples() - first,
        chunks,
        chunks_found: chunks,
        ..report_of(source, directory, &current.superblocks)
    }
}

/// The report of an import of all rows of `source`, without the counts of chunks and bytes on media.
fn report_of(source: &Source, directory: &Directory, superblocks: &[Superblock]) -> ImportReport {
    let index = source.index();
    ImportReport {
        decided: source.decided().cloned(),
        samples: index.len(),
        sample_bytes: (0..index.len()).map(|row| index.payload_bytes(row)).sum(),
        bad: index.bad.clone(),
        file_counts: source.file_counts().to_vec(),
        ..ImportReport::of(source.kind(), directory, superblocks)
    }
}

/// Length of the region with both superblock copies and the states of an unfinished import between them.
const HEAD_BYTES: u64 = COPY_OFFSETS[1] + SUPERBLOCK_BYTES as u64;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use crate::import::importer::*;
    use crate::import::journal::JOURNAL_OFFSET;
    use crate::import::lease::LEASE_OFFSET;

    #[test]
    fn a_file_with_a_superblock_a_journal_or_a_lease_is_not_blank() {
        for at in [COPY_OFFSETS[0], JOURNAL_OFFSET, LEASE_OFFSET, COPY_OFFSETS[1]] {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            assert!(is_blank(file.path()));
            file.as_file().set_len(1 << 20).expect("room");
            assert!(is_blank(file.path()));
            file.as_file().write_all_at(b"DLFS", at).expect("room");
            assert!(!is_blank(file.path()), "{at}");
        }
    }
}
