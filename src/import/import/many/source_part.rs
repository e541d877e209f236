//! Imports one part: the chunks of one namespace.

use std::path::Path;

use serde::Serialize;

use crate::import::chunks::Job;
use crate::import::importer::{MAX_VERIFY_PASSES, never_whole, threads};
use crate::import::lease::Lease;
use crate::import::many::plan_file::Plan;
use crate::import::many::source_plan::SourcePlan;
use crate::import::mark::{Mark, State};
use crate::import::media::Media;
use crate::import::options::{BadEntries, ImportOptions, Progress, Stage, as_text};
use crate::import::retry::is_transient;
use crate::import::sources::BadEntry;
use crate::import::worker::Pass;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::{Placement, Uuid};
use dlfs_io::qpair::ConnectOptions;

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
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(plan));
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
    let complete = file.plan.mark_of(part, State::Complete);
    if mark == Some(complete) {
        return Ok(report);
    }
    let look = mark.is_some_and(|mark| mark.state != State::Planned);
    let begun = Mark { state: State::Begun, ..complete };
    let write_mark = |mark: &Mark| mark.write(&mut media.channel());
    let found = lease.explain(write_mark(&begun).and_then(|()| {
        let found = write_chunks(&file, &media, &lease, look, progress)?;
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
    look: bool,
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
        let (own, after) = rest.split_at(piece.count as usize);
        rest = after;
        let num_rows = own.iter().map(|chunk| u64::from(chunk.num_slots)).sum();
        let source = file.source(piece, num_rows)?;
        let rows = file.rows(source.index(), own);
        let time_ns = plan.journal.time_ns;
        let pass = Pass {
            job: Job { rows: &rows, spec: &spec, placement: &placement, time_ns },
            chunks: own,
            source: &source,
            media,
            lease,
            threads: threads(0, media),
            look,
            skip_chunks: 0,
            only_check: !bad.is_empty(),
        };
        match write_piece(pass, part, progress)? {
            Ok(already) => found += already,
            Err(entries) => bad.extend(entries),
        }
    }
    if !bad.is_empty() {
        bad.sort_by(|a: &BadEntry, b| a.name.cmp(&b.name));
        return Err(BadEntries(bad).into_error());
    }
    Ok(found)
}

/// Writes the chunks of a piece, durably. Returns the number of chunks that were on the media already. The
/// inner error is the rows that cannot be imported.
fn write_piece(
    mut pass: Pass<'_>,
    part: u16,
    progress: &mut dyn Progress,
) -> Result<Result<u64, Vec<BadEntry>>> {
    let mut outcome = pass.run(None, progress)?;
    let found = outcome.found;
    // Without digests, or after a lost connection, everything is read back.
    let mut is_whole = pass.media.checks_writes() && !outcome.connection_lost;
    pass.look = true;
    for _ in 0..MAX_VERIFY_PASSES {
        if pass.only_check || !outcome.bad.is_empty() {
            return Ok(Err(outcome.bad.into_iter().map(|(_, bad)| bad).collect()));
        }
        // Flush now: if a connection is lost later, the chunks of this piece are not checked again.
        match pass.media.channel().flush(part) {
            Ok(()) if is_whole => return Ok(Ok(found)),
            Ok(()) => {}
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        outcome = pass.run(None, &mut ())?;
        is_whole = !outcome.connection_lost && outcome.found == outcome.chunks;
    }
    Err(never_whole())
}
