//! An import from sources by many processes, step by step: [`plan_import`] indexes the source, lays out all chunks, and
//! prepares the namespaces; [`import_part`] writes the chunks of one namespace; [`commit_import`] makes all parts one
//! generation. `source_plan.rs` has the plan that these steps share.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::import::bad_entries::BadEntries;
use crate::import::chunks::{ChunkLayout, ChunkPlan};
use crate::import::columns::ColumnFile;
use crate::import::commit::commit;
use crate::import::committed::{free_space, open_base};
use crate::import::device::{open_for_import, or_remove};
use crate::import::importer::{Import, OpenSource, open_source, prepare_import};
use crate::import::lease::Lease;
use crate::import::many::plan_file::{Plan, addresses};
use crate::import::many::source_plan::{SourceParts, SourcePlan};
use crate::import::many::{all_complete, check_stop, commit_once};
use crate::import::marks::{Mark, MarkState};
use crate::import::media::{Channel, Media};
use crate::import::options::{ImportOptions, Onto, Progress, Stage, as_text};
use crate::import::pass::Pass;
use crate::import::prepare;
use crate::import::read_back::is_head_of;
use crate::import::scan::BLOCK_BYTES;
use crate::import::sources::BadEntry;
use crate::import::temporary_column::TemporaryColumn;
use crate::import::writer::WriteReport;
use dlfs_base::error::invalid;
use dlfs_base::units::{Generation, SampleId, total};
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::directory::DirectoryBuilder;
use dlfs_format::directory::commit::Commit;
use dlfs_format::format::{ChunkHead, ChunkHeader, ChunkSpec, FormatError, Placement, Space, Uuid};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;
use dlfs_io::qpair::file::FileCalls;

/// The report of planning an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanReport {
    /// The plan's id.
    pub id: [u8; 16],
    /// The UUID of the new image, or of the image that is appended to.
    pub uuid: Uuid,
    /// The parts: the address of each namespace, and its number of chunks.
    pub parts: Vec<(String, u64)>,
    /// Samples of all parts.
    pub samples: u64,
    /// Bytes of these samples.
    pub sample_bytes: u64,
    /// Entries that are left out, with `OnError::Skip`.
    pub bad: Vec<BadEntry>,
}

/// Plans to import `sources` as a new image at `image`, or with [`Onto::Append`] as its next generation, and
/// writes the plan to the file at `plan`: see [`many`](crate::import::many). Each namespace is a part. A plan
/// to append becomes void when something else changes the image.
///
/// # Errors
/// Errors of an import before it writes. `InvalidArgument`: `options` ask for a resume. `BadSource`: the source
/// can be read only once. `Refused`: the file at `plan` exists.
pub fn plan_import(
    sources: &[PathBuf],
    image: &[Address],
    options: &ImportOptions,
    connect: &ConnectOptions,
    plan: &Path,
    progress: &mut dyn Progress,
) -> Result<PlanReport> {
    if options.onto == Onto::Resume {
        let text = "a plan is not resumed: each of its parts goes on by itself";
        return Err(Error::invalid(text, "run dlfs import-parts part PLAN N again"));
    }
    // A commit refuses an image that may have a newer generation, so a plan for it would be useless.
    let options = &ImportOptions { accept_older_generation: false, ..options.clone() };
    if plan.exists() {
        let text =
            "there is a file here already, which may be the plan of an import that is running";
        return Err(Error::new(ErrorKind::Refused, text)
            .path(plan)
            .hint("remove it, or name another one"));
    }
    let OpenSource::Indexed(source) = open_source(sources, image, options, progress)? else {
        let text = "a pipe, a compressed archive or a file of rows is read once, by one process";
        return Err(
            Error::new(ErrorKind::BadSource, text).hint("unpack it, or import it with dlfs import")
        );
    };
    or_remove(|created| {
        let devices = open_for_import(image, options.onto, connect, FileCalls::Pread, created)?;
        let columns = options.columns.as_ref().map(ColumnFile::read).transpose()?;
        let media = prepare::in_image_order(&Media::new(devices)?)?;
        let lease = Lease::take(&media, options.lease)?;
        match prepare_import(*source, columns, media, lease, options, progress)? {
            Ok(import) => planned(import, plan, progress),
            Err(_) => Err(Error::new(ErrorKind::Internal, "a new image is complete")),
        }
    })
}

/// Writes the plan of a prepared import to the file at `path`, and then prepares the namespaces. Removes the file if
/// the namespaces cannot be prepared.
fn planned(mut import: Import<'_>, path: &Path, progress: &mut dyn Progress) -> Result<PlanReport> {
    import.size_part()?;
    progress.stage(Stage::Committing, 0, 0);
    let plan = write_plan(&import, path)?;
    let bad = import.source.index().bad.clone();
    let Import { state, lease, options, .. } = import;
    // If the plan appends, others may change the image meanwhile. The mark shows whether they have.
    let mark = state.current.as_ref().map(|_| MarkState::Planned);
    let way = state.make_way(options);
    let prepared = lease.explain(way.and_then(|()| plan.prepare(&state.media, mark)));
    if let Err(error) = prepared {
        // The plan would be useless, and its file would make the next plan fail.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    let counts = plan.parts.rows.iter().map(|pieces| total(pieces.iter().map(|piece| piece.count)));
    Ok(PlanReport {
        id: plan.id,
        uuid: plan.journal.layout.uuid,
        parts: plan.image.iter().map(Address::to_string).zip(counts).collect(),
        samples: plan.journal.part.count,
        sample_bytes: plan.parts.sample_bytes,
        bad,
    })
}

/// Lays out all chunks, and writes the plan with the chunks and their rows to the file at `path`.
fn write_plan(import: &Import<'_>, path: &Path) -> Result<Plan<SourceParts>> {
    let state = &import.state;
    let index = import.source.index();
    let journal = &state.journal;
    let (rows, spec, classes) = import.shape()?;
    let free = free_space(&state.media, &journal.layout, state.current.as_ref());
    let chunks = ChunkPlan::new(&rows, &spec, &Placement::new(journal.part), free)?.chunks;
    let parts = SourceParts {
        kind: import.source.kind(),
        source_fields: rows.source_fields.clone(),
        class_numbers: rows.class_numbers.clone(),
        sample_bytes: (0..index.len()).map(|row| index.payload_bytes(row)).sum(),
        planned_cells: state.media.num_cells(&journal.layout),
        ..SourceParts::default()
    };
    let mut plan = Plan {
        id: random::bytes()?,
        image: addresses(&state.media)?,
        journal: *journal,
        fields: spec.fields,
        field_types: spec.field_types,
        columns: spec.columns,
        classes,
        parts,
    };
    plan.write(path, import.source.shared()?, &chunks, &rows)?;
    Ok(plan)
}

/// The report of an imported part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// The UUID of the image.
    #[serde(serialize_with = "as_text")]
    pub uuid: Uuid,
    /// The number of the part.
    pub part: u16,
    /// The address of its namespace.
    pub address: String,
    /// Its number of chunks.
    pub chunks: u64,
    /// Chunks that an earlier attempt had written.
    #[serde(rename = "chunks_found")]
    pub found: u64,
    /// Its number of samples.
    pub samples: u64,
}

/// Imports part number `part`, counted from 0, of the plan in the file at `plan`. Safe to repeat.
///
/// # Errors
/// `InvalidArgument`: there is no such part, or the namespace is not prepared for this plan. `BadSource`:
/// entries of the source have changed since it was planned; all such entries of this part are listed. `Busy`:
/// another attempt is running. `NoSpace`, `Disconnected`, `Interrupted`: call it again.
pub fn import_part(
    plan: &Path,
    part: u16,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<PartReport> {
    let file = SourcePlan::read(plan, Some(part))?;
    let SourcePlan { plan: Plan { image, journal, .. }, chunks, .. } = &file;
    let Some(address) = image.get(usize::from(part)) else {
        let text = format!("the plan has the parts 0 to {}, and no part {part}", image.len() - 1);
        return Err(invalid(text).path(plan));
    };
    let media = file.plan.open(Some(part), connect)?;
    let lease = Lease::take(&media, ImportOptions::default().lease)?;
    let media = media.placed(part, journal.layout.num_namespaces)?;
    let report = PartReport {
        uuid: journal.layout.uuid,
        part,
        address: address.to_string(),
        chunks: chunks.len() as u64,
        found: chunks.len() as u64,
        samples: chunks.iter().map(|chunk| u64::from(chunk.num_slots)).sum(),
    };
    let mark = file.plan.mark(part, &mut media.channel())?;
    let complete = file.plan.mark_of(part, MarkState::Complete);
    if mark == Some(complete) {
        return Ok(report);
    }
    let may_exist = mark.is_some_and(|mark| mark.state != MarkState::Planned);
    let begun = Mark { state: MarkState::Begun, ..complete };
    let write_mark = |mark: &Mark| mark.write(&mut media.channel());
    let found = lease.explain(write_mark(&begun).and_then(|()| {
        let found = write_chunks(&file, &media, &lease, may_exist, progress)?;
        lease.check()?;
        write_mark(&complete)?;
        Ok(found)
    }));
    Ok(PartReport { found: found?, ..report })
}

/// Writes the missing chunks. Returns the number of chunks that were on the media already.
fn write_chunks(
    file: &SourcePlan,
    media: &Media,
    lease: &Lease,
    may_exist: bool,
    progress: &mut dyn Progress,
) -> Result<u64> {
    let SourcePlan { plan, chunks, .. } = file;
    let layout = &plan.journal.layout;
    let Some(last) = chunks.iter().max_by_key(|chunk| chunk.cells.cell) else { return Ok(0) };
    let part = last.cells.namespace;
    media.grow(part, layout.offset_of(last.cells.cell + last.cells.cells)?)?;
    let samples = chunks.iter().map(|chunk| u64::from(chunk.num_slots)).sum();
    progress.stage(Stage::Writing, samples, 0);
    let spec = plan.spec();
    let placement = Placement::new(plan.journal.part);
    let mut rest = &chunks[..];
    let mut found = 0;
    let mut bad = Vec::new();
    for piece in &plan.parts.rows[usize::from(part)] {
        let (in_piece, after) = rest.split_at(piece.count as usize);
        rest = after;
        let num_rows = in_piece.iter().map(|chunk| u64::from(chunk.num_slots)).sum();
        let source = file.source(piece, num_rows)?;
        let rows = file.rows(source.index(), in_piece);
        let mut pass = Pass {
            rows: &rows,
            spec: &spec,
            placement: &placement,
            time_ns: plan.journal.time_ns,
            chunks: in_piece,
            source: &source,
            media,
            lease,
            threads: 0,
            may_exist,
            skip_chunks: 0,
            only_check: !bad.is_empty(),
        };
        let mut outcome = pass.run(None, progress)?;
        found += outcome.found;
        if outcome.bad.is_empty() && bad.is_empty() {
            // Flush now: if a connection is lost later, the chunks of this piece are not checked again.
            outcome.bad = pass.finish(&outcome, || media.channel().flush(part))?;
        }
        bad.extend(outcome.bad.into_iter().map(|(_, bad)| bad));
    }
    if !bad.is_empty() {
        bad.sort_by(|a: &BadEntry, b| a.name.cmp(&b.name));
        return Err(BadEntries(bad).into_error());
    }
    Ok(found)
}

/// Commits the plan in the file at `plan`. All parts must be complete. Also returns the namespaces of the
/// image. Safe to repeat.
///
/// # Errors
/// `NotFound`: some parts are not complete. `InvalidArgument`: the namespaces are not prepared for this plan.
/// `Corrupt`: a chunk is not the planned one. `Busy`: another process writes one of the namespaces.
pub fn commit_import(
    plan: &Path,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<(WriteReport, Vec<Address>)> {
    let file = SourcePlan::read(plan, None)?;
    let plan = &file.plan;
    let media = plan.open(None, connect)?;
    let lease = Lease::take(&media, ImportOptions::default().lease)?;
    let done = commit_once(&plan.journal, &media, std::slice::from_ref(&lease), || {
        check_parts(plan, &media)?;
        commit_parts(&file, &media, &lease, progress)
    })?;
    let report = WriteReport {
        samples: plan.journal.part.count,
        sample_bytes: plan.parts.sample_bytes,
        chunks: file.chunks.len() as u64,
        ..WriteReport::of(&done.directory, &done.superblocks)
    };
    Ok((report, plan.image.clone()))
}

/// Refuses to commit unless all parts are complete.
fn check_parts(plan: &Plan<SourceParts>, media: &Media) -> Result<()> {
    let mut channel = media.channel();
    let mut missing = Vec::new();
    for namespace in 0..media.len() {
        let mark = plan.mark(namespace, &mut channel)?;
        if mark.is_none_or(|mark| mark.state != MarkState::Complete) {
            missing.push(namespace.into());
        }
    }
    all_complete(&missing, "run dlfs import-parts part PLAN N for each of them")
}

/// Makes the chunks of all parts one generation, with the names from the plan.
fn commit_parts(
    file: &SourcePlan,
    media: &Media,
    lease: &Lease,
    progress: &mut dyn Progress,
) -> Result<Commit> {
    let plan = &file.plan;
    let journal = &plan.journal;
    let base = match journal.generation {
        Generation(1) => None,
        _ => Some(open_base(media, journal)?.1),
    };
    let mut space = Space::new(&journal.layout, &media.capacities());
    let mut builder = match &base {
        // Checksums are not read before the snapshot contains them, so they stay out of memory.
        None => DirectoryBuilder::new(journal.layout)
            .with_checksums_aside(Box::new(TemporaryColumn::default())),
        Some(base) => {
            // Uses the lengths of the namespaces at planning time, so that the same cells are free as then.
            base.reserve(&mut space, &plan.parts.planned_cells);
            DirectoryBuilder::after(&base.directory)?
        }
    }
    .without_names();
    progress.stage(Stage::Committing, journal.part.count, 0);
    add_chunks(&mut builder, file, media, &mut space, progress)?;
    builder.set_classes(plan.classes.clone());
    if let Some(base) = &base {
        builder.set_freed(base.freed(builder.cell_ranges()));
    }
    let mut pieces = plan.parts.names.iter();
    let mut names = Vec::new();
    let mut first = 0; // the row of the first of `names`
    let mut failed = None;
    let mut name = |id: SampleId, out: &mut Vec<u8>| -> Result<(), FormatError> {
        let row = id.0 - journal.part.first;
        while row - first >= names.len() as u64 {
            first += names.len() as u64;
            let piece = pieces.next().expect("a plan has as many names as samples");
            names = file.names(piece).map_err(|error| {
                let why = error.to_string();
                failed = Some(error);
                FormatError::Unread { what: "names of a plan", why }
            })?;
        }
        out.extend_from_slice(&names[(row - first) as usize]);
        Ok(())
    };
    let finished = builder.finish_named(journal.generation, journal.time_ns, &mut name);
    let directory = match failed {
        Some(error) => return Err(error),
        None => finished?,
    };
    commit(media, std::slice::from_ref(lease), directory, &mut space)
}

/// Adds the planned chunks to `builder`, by their headers on the media. Takes their cells from `space`.
fn add_chunks(
    builder: &mut DirectoryBuilder,
    file: &SourcePlan,
    media: &Media,
    space: &mut Space,
    progress: &mut dyn Progress,
) -> Result<()> {
    let spec = file.plan.spec();
    let mut channel = media.channel();
    for chunk in &file.chunks {
        if space.allocate(chunk.sequence, chunk.cells.cells) != Some(chunk.cells) {
            return Err(invalid("the namespaces are not as long as when the import was planned"));
        }
        let header = header_of(&mut channel, &spec, file.plan.journal.time_ns, chunk)?;
        builder.add_chunk(&header)?;
        progress.advance(chunk.num_slots.into(), 0);
        check_stop(progress)?;
    }
    Ok(())
}

/// Reads the header of a chunk. It must be the planned one.
fn header_of(
    channel: &mut Channel,
    spec: &ChunkSpec,
    time_ns: u64,
    chunk: &ChunkLayout,
) -> Result<ChunkHeader> {
    let namespace = chunk.cells.namespace;
    let offset = spec.layout.offset_of(chunk.cells.cell)?;
    let wrong = |what: String| {
        let text = format!("chunk {} of part {namespace} {what}", chunk.sequence);
        Error::new(ErrorKind::Corrupt, text)
            .hint("something else has written there: plan again with --force")
    };
    let block = channel.read(namespace, offset, BLOCK_BYTES)?;
    let head = ChunkHead::parse(&block).map_err(|error| wrong(format!("is damaged: {error}")))?;
    let is_planned = is_head_of(&head, spec, &chunk.location(time_ns), chunk.first_slot);
    if !is_planned || u32::from(head.num_samples) != chunk.num_slots {
        return Err(wrong("is not the one that was planned".into()));
    }
    let len = (head.header_len as usize).next_multiple_of(BLOCK_BYTES);
    let bytes = if len == BLOCK_BYTES { block } else { channel.read(namespace, offset, len)? };
    ChunkHeader::parse(&bytes).map_err(|error| wrong(format!("is damaged: {error}")))
}
