//! Imports one part: the chunks of one namespace.

use std::path::Path;

use crate::format::Uuid;
use crate::import::chunks::Job;
use crate::import::device::open_for_import;
use crate::import::importer::{MAX_VERIFY_PASSES, never_whole, threads};
use crate::import::journal::{JOURNAL_BYTES, JOURNAL_OFFSET, Journal};
use crate::import::lease::Lease;
use crate::import::many::mark::{Mark, State};
use crate::import::many::plan_file::PlanFile;
use crate::import::media::{Channel, Media};
use crate::import::options::{BadEntries, ImportOptions, Onto, Progress, Stage};
use crate::import::pass::Pass;
use crate::import::plan::ChunkLayout;
use crate::nvme::Address;
use crate::qpair::ConnectOptions;
use crate::{Error, ErrorKind, Result};

/// What a part wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartReport {
    /// The image to be.
    pub uuid: Uuid,
    /// Which part it is.
    pub part: u16,
    /// The address of its namespace.
    pub address: String,
    /// Its chunks.
    pub chunks: u64,
    /// Those of them that an earlier attempt had written.
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
    let mut file = PlanFile::read(plan)?;
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
    let look = mark.is_some();
    let begun = Mark { state: State::Begun, ..complete };
    let write_mark = |mark: &Mark| mark.write(&mut media.channel(), part);
    let found = lease.explain(write_mark(&begun).and_then(|()| {
        let found = write_chunks(&mut file, &chunks, &media, &lease, look, progress)?;
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
    let layout = &file.journal.layout;
    if mark.is_none() && newest.is_some_and(|newest| newest.layout.uuid == layout.uuid) {
        return refused("the plan is committed already", "read the image");
    }
    let planned = Journal { namespace, ..file.journal };
    let found = Journal::parse(&channel.read(namespace, JOURNAL_OFFSET, JOURNAL_BYTES)?).ok();
    let is_planned = found.is_some_and(|mut found| {
        found.part.count = planned.part.count;
        found == planned
    });
    let is_foreign = mark.is_some_and(|mark| (mark.plan, mark.namespace) != (file.id, namespace));
    match is_planned && !is_foreign {
        true => Ok(mark),
        false => refused(
            "this namespace is not prepared for this plan",
            "use the plan that was made last for it, or plan again with --force",
        ),
    }
}

/// Writes the chunks that are not there yet; returns how many were.
fn write_chunks(
    file: &mut PlanFile,
    chunks: &[ChunkLayout],
    media: &Media,
    lease: &Lease,
    look: bool,
    progress: &mut dyn Progress,
) -> Result<u64> {
    let (source, values) = (file.source()?, file.column_file()?);
    let rows = file.rows(source.index(), values.as_ref())?;
    let (spec, placement, layout) = (file.spec(), file.placement(), &file.journal.layout);
    if let Some(chunk) = chunks.iter().max_by_key(|chunk| chunk.cells.cell) {
        let end = layout.offset_of(chunk.cells.cell + chunk.cells.cells)?;
        media.grow(chunk.cells.namespace, end)?;
    }
    let samples = chunks.iter().map(|chunk| u64::from(chunk.num_slots)).sum();
    progress.stage(Stage::Writing, samples, 0);
    let time_ns = file.journal.time_ns;
    let mut pass = Pass {
        job: Job { rows: &rows, spec: &spec, placement: &placement, time_ns },
        chunks,
        source: &source,
        media,
        lease,
        threads: threads(0, media),
        look,
        skip_chunks: 0,
    };
    let mut outcome = pass.run(None, progress)?;
    let found = outcome.found;
    // Without digests, or after a lost connection, everything is read back.
    let mut is_whole = media.checks_writes() && !outcome.connection_lost;
    pass.look = true;
    for _ in 0..MAX_VERIFY_PASSES {
        if !outcome.bad.is_empty() {
            let bad = outcome.bad.into_iter().map(|(_, bad)| bad).collect();
            return Err(BadEntries(bad).into_error());
        }
        if is_whole {
            return Ok(found);
        }
        outcome = pass.run(None, &mut ())?;
        is_whole = !outcome.connection_lost && outcome.found == outcome.chunks;
    }
    Err(never_whole())
}
