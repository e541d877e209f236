//! Commits the parts of a plan as one generation.

use std::path::Path;

use crate::import::chunks::is_head_of;
use crate::import::lease::Lease;
use crate::import::many::commit::{check_stop, not_complete, once, write};
use crate::import::many::plan_file::Plan;
use crate::import::many::planned_names::PlannedNames;
use crate::import::many::source_plan::{SourceParts, SourcePlan};
use crate::import::mark::State;
use crate::import::media::{Channel, Media};
use crate::import::options::{ImportOptions, Progress, Stage};
use crate::import::plan::ChunkLayout;
use crate::import::prepare::{self, Current};
use crate::import::scan::BLOCK_BYTES;
use crate::import::temporary::TemporaryColumn;
use crate::import::writer::WriteReport;
use dlfs_base::units::{Generation, SampleId};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::DirectoryBuilder;
use dlfs_format::directory::commit::{freed_by_next, reserve_current};
use dlfs_format::format::{CellRange, ChunkHead, ChunkHeader, ChunkSpec, FormatError, Space};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

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
    let done = once(&plan.journal, &media, std::slice::from_ref(&lease), || {
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
        if mark.is_none_or(|mark| mark.state != State::Complete) {
            missing.push(namespace.into());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(not_complete(&missing, "run dlfs import-parts part PLAN N for each of them"))
}

fn commit_parts(
    file: &SourcePlan,
    media: &Media,
    lease: &Lease,
    progress: &mut dyn Progress,
) -> Result<Current> {
    let plan = &file.plan;
    let journal = &plan.journal;
    let spec = plan.spec();
    let base = match journal.generation {
        Generation(1) => None,
        _ => Some(prepare::open_base(media, journal)?.1),
    };
    let mut space = Space::new(&journal.layout, &media.capacities());
    let mut builder = match &base {
        // Checksums are not read before the snapshot contains them, so they stay out of memory.
        None => DirectoryBuilder::new(journal.layout)
            .with_checksums_aside(Box::new(TemporaryColumn::new())),
        Some(Current { directory, superblocks }) => {
            // Uses the lengths of the namespaces at planning time, so that the same cells are free as then.
            reserve_current(&mut space, directory, &superblocks[0], &plan.parts.planned_cells);
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
        check_stop(progress)?;
    }
    builder.set_classes(plan.classes.clone());
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
    write(directory, media, std::slice::from_ref(lease), &mut space)
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
