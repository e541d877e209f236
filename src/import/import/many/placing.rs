//! The thread of a writer of one part. It places full windows in chunks after the parts that its namespace has
//! already, and leaves a record for the commit.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::import::chunk_stream::ChunkStream;
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::many::check::check_part;
use crate::import::many::write_plan::WritePlan;
use crate::import::media::{Channel, Media};
use crate::import::prepare::{self, ImportState};
use crate::import::writer::{Placer, Started, Thread};
use crate::import::written_part::WrittenPart;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::{CellRange, Part};
use dlfs_io::qpair::ConnectOptions;

/// Writes part number `key` of `plan` onto `namespace`, until the part ends, fails, or its writer is dropped. A
/// part that does not end stays free space.
pub(super) fn run(
    plan: &WritePlan,
    key: u64,
    namespace: u16,
    connect: &ConnectOptions,
    thread: &Thread,
) -> Result<WrittenPart> {
    let media = plan.0.open(Some(namespace), connect)?;
    let lease = Lease::take(&media, plan.lease_limit())?;
    let placed = media.placed(namespace, plan.journal().layout.num_namespaces)?;
    lease.explain(write(plan, key, namespace, &placed, &lease, thread))
}

fn write(
    plan: &WritePlan,
    key: u64,
    namespace: u16,
    media: &Media,
    lease: &Lease,
    thread: &Thread,
) -> Result<WrittenPart> {
    let options = &plan.options();
    let layout = plan.journal().layout;
    let lane = {
        let mut channel = media.channel();
        let lane = plan.lane(namespace, &mut channel)?;
        check_uncommitted(plan, namespace, &mut channel)?;
        lane
    };
    thread.start(Started {
        part: Some(key),
        image: None,
        first_id: 0,
        whole: None,
        fields: options.fields.clone(),
        field_types: options.field_types.clone(),
        columns: options.columns.clone(),
        classes: plan.0.classes.clone(),
    })?;
    let next = thread.next()?;
    let state = ImportState {
        media: media.clone(),
        current: None,
        journal: Journal { part: Part::default(), layout: plan.draft_layout(), ..*plan.journal() },
        resumed: false,
        done: false,
    };
    let mut space = prepare::free_space(media, &layout, None);
    space.reserve(CellRange { namespace, cell: 0, cells: lane.end_cell });
    let mut chunks = ChunkStream::of_part(&state, lease, options.columns.clone(), space);
    chunks.set_fields(&options.fields, options.field_types.clone());
    let seed = xxh3_64_with_seed(&key.to_le_bytes(), options.image.seed);
    let mut placer = Placer::new(options, seed, 0, chunks);
    placer.place_all(thread, next)?;
    let Placer { chunks, sample_bytes, .. } = placer;
    let (sum, mut space) = chunks.end_part()?;

    let range = space.allocate(namespace.into(), RECORD_CELLS);
    let range = range.ok_or_else(|| Error::from(space.no_room(RECORD_CELLS)))?;
    let record = WrittenPart {
        plan: plan.0.id,
        key,
        namespace,
        time_ns: prepare::time_ns(None),
        previous: lane.last_record,
        first_cell: lane.end_cell,
        record_cell: range.cell,
        chunks: sum.chunks,
        samples: sum.samples,
        sample_bytes,
        digest: sum.digest(),
    };
    let mut channel = media.channel(); // only now, when the channel of the chunks is closed
    if !media.checks_writes() {
        // The samples cannot be read again, so damage is reported, not repaired.
        check_part(&mut channel, &layout, &record)?;
    }
    lease.check()?;
    plan.append(&record, &mut channel)?;
    Ok(record)
}

/// Refuses to write a part when the plan's commit has written a superblock.
fn check_uncommitted(plan: &WritePlan, namespace: u16, channel: &mut Channel) -> Result<()> {
    let newest = channel.superblocks(namespace)?.newest().copied();
    if newest.is_none_or(|newest| newest.layout.uuid != plan.uuid()) {
        return Ok(());
    }
    let text = "the plan is being committed";
    Err(Error::new(ErrorKind::InvalidArgument, text).hint("commit it again, and read the image"))
}

/// A record is shorter than a cell.
const RECORD_CELLS: u64 = 1;
