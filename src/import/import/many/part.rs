//! Imports one part: the chunks of one namespace.

use std::path::Path;

use serde::Serialize;

use crate::import::chunks::Job;
use crate::import::device::open_for_import;
use crate::import::importer::{MAX_VERIFY_PASSES, never_whole, threads};
use crate::import::journal::{JOURNAL_BYTES, JOURNAL_OFFSET, Journal};
use crate::import::lease::Lease;
use crate::import::many::plan_file::PlanFile;
use crate::import::mark::{Mark, State};
use crate::import::media::{Channel, Media};
use crate::import::options::{BadEntries, ImportOptions, Onto, Progress, Stage, as_text};
use crate::import::plan::ChunkLayout;
use crate::import::retry::is_transient;
use crate::import::sources::BadEntry;
use crate::import::worker::Pass;
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::Uuid;
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

/// The report of a written part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// The image to be.
    #[serde(serialize_with = "as_text")]
    pub uuid: Uuid,
    /// The number of the part.
    pub part: u16,
    /// The address of its namespace.
    pub address: String,
    /// Its chunks.
    pub chunks: u64,
    /// Those of them that an earlier attempt had written.
    #[serde(rename = "chunks_found")]
    pub found: u64,
    /// Its samples.
    pub samples: u64,
}

/// Imports part number `part`, from 0, of the plan in the file at `plan`. Safe to repeat.
///
/// # Errors
/// `InvalidArgument`: there is no such part, or the namespace is not prepared for this plan. `BadSource`: an entry of
/// the source has changed since it was planned; all such entries of this part are listed. `Busy`: another attempt is
/// running. `NoSpace`, `Disconnected`, `Interrupted`: run it again.
pub fn import_part(
    plan: &Path,
    part: u16,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<PartReport> {
    let file = PlanFile::read(plan, Some(part))?;
    let Some(address) = file.image.get(usize::from(part)).cloned() else {
        let text =
            format!("the plan has the parts 0 to {}, and no part {part}", file.image.len() - 1);
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(plan));
    };
    let media = open_planned(std::slice::from_ref(&address), connect)?;
    let options = ImportOptions::default();
    let lease = Lease::take(&media, options.lease)?;
    let chunks = file.chunks_of(part);
    let report = PartReport {
        uuid: file.journal.layout.uuid,
        part,
        address: address.to_string(),
        chunks: chunks.len() as u64,
        found: chunks.len() as u64,
        samples: chunks.iter().map(|chunk| u64::from(chunk.num_slots)).sum(),
    };
    let complete = Mark {
        plan: file.id,
        namespace: part,
        state: State::Complete,
        chunks: chunks.len() as u64,
    };
    let media = media.placed(part, file.journal.layout.num_namespaces)?;
    let mark = check_prepared(&file, part, &mut media.channel())?;
    if mark == Some(complete) {
        return Ok(report);
    }
    let look = mark.is_some_and(|mark| mark.state != State::Planned);
    let begun = Mark { state: State::Begun, ..complete };
    let write_mark = |mark: &Mark| mark.write(&mut media.channel(), part);
    let found = lease.explain(write_mark(&begun).and_then(|()| {
        let found = write_chunks(&file, &chunks, &media, &lease, look, progress)?;
        lease.check()?;
        write_mark(&complete)?;
        Ok(found)
    }));
    Ok(PartReport { found: found?, ..report })
}

/// Opens namespaces of a plan, which prepared them.
pub(super) fn open_planned(image: &[Address], connect: &ConnectOptions) -> Result<Media> {
    let mut created = Vec::new();
    let devices = open_for_import(image, Onto::Resume, connect, &mut created)?;
    if let Some(missing) = created.first() {
        for path in &created {
            // If this fails, an empty file is left.
            let _ = std::fs::remove_file(path);
        }
        let text = "the namespace that was planned with is not there";
        return Err(Error::new(ErrorKind::NotFound, text).path(missing));
    }
    Media::new(devices)
}

/// The mark of the namespace, if it is prepared for this plan.
pub(super) fn check_prepared(
    file: &PlanFile,
    namespace: u16,
    channel: &mut Channel,
) -> Result<Option<Mark>> {
    let address = channel.media().devices()[usize::from(namespace)].namespace().address;
    let refused = |text: &'static str, hint: &'static str| {
        let error = Error::new(ErrorKind::InvalidArgument, text);
        Err(error.target(address.clone()).hint(hint))
    };
    let mark = Mark::read(channel, namespace)?;
    let newest = channel.superblocks(namespace)?.newest().copied();
    let journal = &file.journal;
    let own = newest.filter(|newest| newest.layout.uuid == journal.layout.uuid);
    if let Some(newest) = own.filter(|newest| newest.generation >= journal.generation) {
        let is_it = (newest.generation, newest.time_ns) == (journal.generation, journal.time_ns);
        match mark {
            _ if !is_it => {
                let text = "the image has changed since the import was planned";
                return Err(Error::new(ErrorKind::Stale, text).target(address).hint("plan again"));
            }
            None => return refused("the plan is committed already", "read the image"),
            Some(_) => {} // its commit has begun, and may be run again
        }
    }
    let planned = Journal { namespace, ..*journal };
    let found = Journal::parse(&channel.read(namespace, JOURNAL_OFFSET, JOURNAL_BYTES)?).ok();
    // The mark of an append is there from the beginning, until the image changes.
    let is_planned = (mark.is_some() || journal.generation == Generation(1))
        && found.is_some_and(|mut found| {
            found.part.count = planned.part.count;
            found == planned
        });
    let is_foreign = mark.is_some_and(|mark| (mark.plan, mark.namespace) != (file.id, namespace));
    if is_planned && !is_foreign {
        Ok(mark)
    } else {
        refused(
            "this namespace is not prepared for this plan",
            "use the plan that was made last for it, or plan again with --force",
        )
    }
}

/// Writes the chunks that are not there yet; returns how many were.
fn write_chunks(
    file: &PlanFile,
    chunks: &[ChunkLayout],
    media: &Media,
    lease: &Lease,
    look: bool,
    progress: &mut dyn Progress,
) -> Result<u64> {
    let layout = &file.journal.layout;
    let Some(last) = chunks.iter().max_by_key(|chunk| chunk.cells.cell) else { return Ok(0) };
    let part = last.cells.namespace;
    media.grow(part, layout.offset_of(last.cells.cell + last.cells.cells)?)?;
    let samples = chunks.iter().map(|chunk| u64::from(chunk.num_slots)).sum();
    progress.stage(Stage::Writing, samples, 0);
    let spec = file.spec();
    let placement = file.placement();
    let mut rest = chunks;
    let mut found = 0;
    let mut bad = Vec::new();
    for piece in &file.rows[usize::from(part)] {
        let (own, after) = rest.split_at(piece.count as usize);
        rest = after;
        let num_rows = own.iter().map(|chunk| u64::from(chunk.num_slots)).sum();
        let source = file.source(piece, num_rows)?;
        let rows = file.rows(source.index(), own);
        let time_ns = file.journal.time_ns;
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

/// Writes the chunks of one piece, durably; returns how many were there, or the rows that cannot be imported.
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
        // The next piece does not look at the chunks of this one again, should a connection be lost.
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
