//! Commits the parts of a plan as one generation.

use std::path::Path;

use crate::import::commit;
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::many::part::{check_prepared, open_planned};
use crate::import::many::plan_file::PlanFile;
use crate::import::many::planned_names::PlannedNames;
use crate::import::mark::{Mark, State};
use crate::import::media::{Channel, Media};
use crate::import::options::{ImportOptions, Progress, Stage};
use crate::import::plan::ChunkLayout;
use crate::import::prepare::{self, Current};
use crate::import::scan::BLOCK_BYTES;
use crate::import::temporary::TemporaryColumn;
use crate::import::writer::WriteReport;
use dlfs_base::units::{Generation, SampleId};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::commit::{freed_by_next, reserve_current};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::superblock::used_bytes;
use dlfs_format::format::{CellRange, ChunkHead, ChunkHeader, ChunkSpec, FormatError, Space};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

/// Commits the plan in the file at `plan`, all of whose parts must be complete; also returns the namespaces of the
/// image. Safe to repeat.
///
/// # Errors
/// `NotFound`: parts that are not complete, all listed. `InvalidArgument`: the namespaces are not prepared for this
/// plan. `Corrupt`: a chunk is not what was planned. `Busy`: another process writes one of the namespaces.
pub fn commit_import(
    plan: &Path,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<(WriteReport, Vec<Address>)> {
    let file = PlanFile::read(plan, None)?;
    let media = open_planned(&file.image, connect)?;
    let lease = Lease::take(&media, ImportOptions::default().lease)?;
    let result = match committed(&file, &media)? {
        Some(done) => Ok(done),
        None => {
            check_parts(&file, &media)?;
            commit_parts(&file, &media, &lease, progress)
        }
    };
    let report = lease.explain(result)?;
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        if Mark::read(&mut channel, namespace)?.is_some() {
            Mark::remove(&mut channel, namespace)?;
        }
    }
    Ok((report, file.image))
}

/// Returns the report of this plan if it is committed already.
fn committed(file: &PlanFile, media: &Media) -> Result<Option<WriteReport>> {
    let found = committed_directory(&file.journal, media)?;
    Ok(found.map(|(directory, used)| report(file, &directory, used)))
}

/// The directory of a plan's generation, and the bytes of the image in use, if it is committed already.
///
/// # Errors
/// `Stale`: the image has changed since. Those of reading it.
pub(super) fn committed_directory(
    journal: &Journal,
    media: &Media,
) -> Result<Option<(Directory, u64)>> {
    let newest = media.channel().superblocks(0)?.newest().copied();
    let is_own = newest.is_some_and(|newest| newest.layout.uuid == journal.layout.uuid);
    if !is_own {
        return Ok(None);
    }
    let opened = prepare::opened(media)?;
    let superblock = opened.superblock();
    if superblock.generation < journal.generation {
        return Ok(None); // the generation that the plan appends to
    }
    if (superblock.generation, superblock.time_ns) != (journal.generation, journal.time_ns) {
        let text = format!(
            "the image has changed since the import was planned or committed: it has generation {}",
            superblock.generation
        );
        return Err(Error::new(ErrorKind::Stale, text));
    }
    let directory = prepare::read_directory(media, superblock)?;
    let used = used_bytes(&opened.superblocks);
    Ok(Some((directory, used)))
}

/// Refuses to commit unless all parts are complete.
fn check_parts(file: &PlanFile, media: &Media) -> Result<()> {
    let mut channel = media.channel();
    let mut missing = Vec::new();
    for namespace in 0..media.len() {
        let mark = check_prepared(file, namespace, &mut channel)?;
        if mark.is_none_or(|mark| mark.state != State::Complete) {
            missing.push(namespace.to_string());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let text = match &missing[..] {
        [one] => format!("part {one} is not complete"),
        more => format!("the parts {} are not complete", more.join(", ")),
    };
    Err(Error::new(ErrorKind::NotFound, text)
        .hint("run dlfs import-parts part PLAN N for each of them"))
}

fn commit_parts(
    file: &PlanFile,
    media: &Media,
    lease: &Lease,
    progress: &mut dyn Progress,
) -> Result<WriteReport> {
    let journal = &file.journal;
    let spec = file.spec();
    let base = match journal.generation {
        Generation(1) => None,
        _ => Some(prepare::open_base(media, journal)?.1),
    };
    let mut space = Space::new(&journal.layout, &media.capacities());
    let mut builder = match &base {
        // Nothing reads the checksums before they are in the snapshot.
        None => DirectoryBuilder::new(journal.layout)
            .with_checksums_aside(Box::new(TemporaryColumn::new())),
        Some(Current { directory, superblocks }) => {
            // As long as the namespaces were then, so that what is free is what was.
            reserve_current(&mut space, directory, &superblocks[0], &file.planned_cells);
            DirectoryBuilder::after(directory)?
        }
    }
    .without_names();
    let mut channel = media.channel();
    progress.stage(Stage::Committing, journal.part.count, 0);
    for chunk in &file.chunks {
        if space.allocate(chunk.sequence, chunk.cells.cells) != Some(chunk.cells) {
            let text = "the namespaces are not as long as when the import was planned";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        builder.add_chunk(&header_of(&mut channel, &spec, journal.time_ns, chunk)?)?;
        progress.advance(chunk.num_slots.into(), 0);
        if progress.stop() {
            let text = "the commit was stopped before it changed anything";
            return Err(Error::new(ErrorKind::Interrupted, text).hint("run it again"));
        }
    }
    builder.set_classes(file.classes.clone());
    if let Some(Current { directory, superblocks }) = &base {
        let kept: Vec<CellRange> = builder.cell_ranges().collect();
        builder.set_freed(freed_by_next(directory, &superblocks[0], kept));
    }
    let mut names = PlannedNames::new(file);
    let mut failed = None;
    let finished =
        builder.finish_named(journal.generation, journal.time_ns, &mut |id: SampleId, out| {
            let name = names.name(id.0 - journal.part.first).map_err(|error| {
                let why = error.to_string();
                failed = Some(error);
                FormatError::Unread { what: "names of a plan", why }
            })?;
            out.extend_from_slice(name);
            Ok(())
        });
    let directory = match failed {
        Some(error) => return Err(error),
        None => finished?,
    };
    let commit = commit::prepare(media, directory, &mut space)?;
    commit::write(media, lease, &commit)?;
    let used = used_bytes(&commit.superblocks);
    Ok(report(file, &commit.directory, used))
}

/// The header of a chunk, which is as planned.
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
    let is_planned = head.layout == spec.layout
        && head.id.generation == spec.generation
        && head.id.sequence == chunk.sequence
        && head.time_ns == time_ns
        && head.first_slot == chunk.first_slot
        && u32::from(head.num_samples) == chunk.num_slots
        && head.part == spec.part.uncounted()
        && head.check_location(&spec.layout, namespace, chunk.cells.cell).is_ok();
    if !is_planned {
        return Err(wrong("is not the one that was planned".into()));
    }
    let len = (head.header_len as usize).next_multiple_of(BLOCK_BYTES);
    let bytes = if len == BLOCK_BYTES { block } else { channel.read(namespace, offset, len)? };
    ChunkHeader::parse(&bytes).map_err(|error| wrong(format!("is damaged: {error}")))
}

fn report(file: &PlanFile, directory: &Directory, image_bytes: u64) -> WriteReport {
    WriteReport {
        uuid: directory.uuid(),
        generation: directory.generation(),
        samples: file.journal.part.count,
        sample_bytes: file.sample_bytes,
        live_samples: directory.num_live(),
        chunks: file.chunks.len() as u64,
        image_bytes,
    }
}
