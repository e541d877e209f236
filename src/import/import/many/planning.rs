//! Plans an import by many processes: indexes the source, lays out all chunks, and prepares the namespaces.

use std::path::{Path, PathBuf};

use crate::import::columns::ColumnFile;
use crate::import::device::{open_for_import, or_remove};
use crate::import::importer::{Import, OpenSource, Ready, open_source, ready};
use crate::import::lease::Lease;
use crate::import::many::plan_file::Plan;
use crate::import::many::source_plan::{SourceParts, of_part};
use crate::import::mark::State;
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Onto, Progress, Stage};
use crate::import::plan::{self, ChunkLayout};
use crate::import::prepare;
use crate::import::sources::BadEntry;
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::Placement;
use dlfs_format::format::Uuid;
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
        return Err(Error::new(ErrorKind::InvalidArgument, text)
            .hint("run dlfs import-parts part PLAN N again"));
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
        match ready(*source, columns, media, lease, options, progress)? {
            Ready::Import(import) => planned(*import, plan, progress),
            Ready::Done(_) => Err(Error::new(ErrorKind::Internal, "a new image is complete")),
        }
    })
}

fn planned(mut import: Import<'_>, path: &Path, progress: &mut dyn Progress) -> Result<PlanReport> {
    import.size_part()?;
    progress.stage(Stage::Committing, 0, 0);
    let (plan, chunks) = write(&import, path)?;
    let bad = import.all_bad();
    let Import { state, lease, .. } = import;
    // If the plan appends, others may change the image meanwhile. The mark shows whether they have.
    let mark = state.current.as_ref().map(|_| State::Planned);
    let prepared = lease.explain(plan.prepare(&state.media, mark));
    if let Err(error) = prepared {
        // The plan would be useless, and its file would make the next plan fail.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    let count = |part: u16| of_part(&chunks, part).len() as u64;
    Ok(PlanReport {
        id: plan.id,
        uuid: plan.journal.layout.uuid,
        parts: (0..).zip(&plan.image).map(|(at, one)| (one.to_string(), count(at))).collect(),
        samples: plan.journal.part.count,
        sample_bytes: plan.parts.sample_bytes,
        bad,
    })
}

/// Lays out all chunks, and writes the plan with the chunks and their rows to the file at `path`.
fn write(import: &Import<'_>, path: &Path) -> Result<(Plan<SourceParts>, Vec<ChunkLayout>)> {
    let state = &import.state;
    let index = import.source.index();
    let journal = &state.journal;
    let (rows, spec, classes) = import.shape()?;
    let free = prepare::free_space(&state.media, &journal.layout, state.current.as_ref());
    let chunks = plan::Plan::new(&rows, &spec, &Placement::new(journal.part), free)?.chunks;
    let parts = SourceParts {
        kind: import.source.kind(),
        source_fields: rows.source_fields.clone(),
        class_numbers: rows.class_numbers.clone(),
        sample_bytes: (0..index.len()).map(|row| index.payload_bytes(row)).sum(),
        planned_cells: prepare::num_cells(&state.media, &journal.layout),
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
    plan.write(path, &import.source.shared()?, &chunks, &rows)?;
    Ok((plan, chunks))
}

/// The addresses of the namespaces, in the image's order. Paths are absolute, so that processes in any folder
/// can use them.
pub(super) fn addresses(media: &Media) -> Result<Vec<Address>> {
    let address = |text: String| match text.parse::<Address>().map_err(Error::from)? {
        Address::Path(path) => {
            std::path::absolute(path).map(Address::from_path).map_err(Error::from)
        }
        other => Ok(other),
    };
    media.devices().iter().map(|device| address(device.namespace().address)).collect()
}
