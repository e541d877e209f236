//! The plan of an image whose parts are written by programs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::import::block::Block;
use crate::import::device::{open_for_import, or_remove};
use crate::import::lease::Lease;
use crate::import::many::plan_file::{Parts, Plan, WRITTEN, addresses, damaged, not_prepared};
use crate::import::marks::{Lane, Mark, MarkState};
use crate::import::media::{Channel, Media};
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::prepare::{in_image_order, prepare};
use crate::import::writer::{self, Windows, WriteOrder, WriterOptions};
use dlfs_base::replace_file::{NewMode, replace_file};
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::format::{ImageLayout, Uuid};
use dlfs_io::address::Address;
use dlfs_io::qpair::file::FileCalls;
use dlfs_io::qpair::{ConnectOptions, Device};

/// The plan that all writers of one image share: the image's location, and the properties of its samples. It
/// has a few thousand bytes, is sent to every writer, and does not change while they write.
#[derive(Debug, Clone)]
pub struct WritePlan(pub(super) Plan<WriterParts>);

/// The properties that only plans of written parts have.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WriterParts {
    /// Options for the placement of samples by writers.
    pub(super) windows: Windows,
    /// Duration of a lease in ms.
    lease_ms: u64,
}

impl Parts for WriterParts {
    const HEAD: Block = WRITTEN;
    const OTHERWISE: &str = "its parts come from sources: commit them without --parts";
}

impl WritePlan {
    /// Plans a new image at `image`, and prepares its namespaces. Each namespace takes one part at a time.
    ///
    /// If labels are names, `classes` must list them, so that a class has the same number in all parts.
    ///
    /// # Errors
    /// As [`Writer::create`](crate::import::Writer::create). `InvalidArgument`: the options ask for an append,
    /// a resume, or a shuffle of all samples together.
    pub fn create(
        image: &[Address],
        options: &WriterOptions,
        classes: Vec<Vec<u8>>,
        connect: &ConnectOptions,
    ) -> Result<WritePlan> {
        let refused = match (options.image.onto, options.order) {
            (Onto::Append | Onto::Resume, _) => "a plan is for a new image",
            (_, WriteOrder::Whole { .. }) => {
                "parts are shuffled window by window: nobody knows the number of all samples"
            }
            _ => "",
        };
        if !refused.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, refused));
        }
        or_remove(|created| {
            let devices =
                open_for_import(image, options.image.onto, connect, FileCalls::Pread, created)?;
            WritePlan::prepare(devices, options, classes)
        })
    }

    /// Plans an image on open namespaces.
    fn prepare(
        devices: Vec<Arc<dyn Device>>,
        options: &WriterOptions,
        classes: Vec<Vec<u8>>,
    ) -> Result<WritePlan> {
        let media = in_image_order(&Media::new(devices)?)?;
        let WriterOptions { image, fields, field_types, columns, .. } = options;
        let lease = Lease::take(&media, image.lease)?;
        let layout =
            ImageLayout::new(Uuid([0; 16]), image.chunk_size_bytes, image.pack, media.len())?;
        writer::check(layout, fields, field_types, columns)?;
        let id: [u8; 16] = random::bytes()?;
        let fingerprint = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| id[at]));
        let in_order = ImportOptions { placement: PlacementOrder::Source, ..image.clone() };
        lease.explain(prepare(media, &in_order, fingerprint).and_then(|state| {
            let journal = state.journal;
            let plan = Plan {
                id,
                image: addresses(&state.media)?,
                journal,
                fields: fields.clone(),
                field_types: field_types.clone(),
                columns: columns.clone(),
                classes,
                parts: WriterParts {
                    windows: options.windows(),
                    lease_ms: image.lease.as_millis() as u64, // far below 2^64
                },
            };
            let lane = Lane { last_record: 0, end_cell: journal.layout.first_cell() };
            state.make_way(image)?;
            plan.prepare(&state.media, Some(MarkState::Written(lane)))?;
            Ok(WritePlan(plan))
        }))
    }

    /// The namespaces of the image, in the image's order.
    pub fn image(&self) -> &[Address] {
        &self.0.image
    }

    /// The UUID of the new image.
    pub fn uuid(&self) -> Uuid {
        self.0.journal.layout.uuid
    }

    /// Duration of a lease.
    pub(super) fn lease_limit(&self) -> Duration {
        Duration::from_millis(self.0.parts.lease_ms)
    }

    /// The layout of chunks before the commit. It has the plan's id in place of the image's UUID, so nothing opens or
    /// rebuilds an image of these chunks.
    pub(super) fn draft_layout(&self) -> ImageLayout {
        ImageLayout { uuid: Uuid(self.0.id), ..self.0.journal.layout }
    }

    /// The parts on a namespace, if the namespace is prepared for this plan.
    ///
    /// # Errors
    /// As [`Plan::mark`].
    pub(super) fn lane(&self, namespace: u16, channel: &mut Channel) -> Result<Lane> {
        match self.0.mark(namespace, channel)? {
            Some(Mark { state: MarkState::Written(lane), .. }) => Ok(lane),
            _ => Err(not_prepared(channel.media.address(namespace))),
        }
    }

    /// Writes the plan to a file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn save(&self, path: &Path) -> Result<()> {
        replace_file(path, NewMode::Private, &self.to_bytes())
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes); errors of the file system.
    pub fn load(path: &Path) -> Result<WritePlan> {
        Ok(WritePlan(Plan::read(path)?.0))
    }

    /// Encodes the plan, to be sent to the writers.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&WRITTEN.magic[..], &self.0.tail()].concat()
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// `InvalidArgument`: `bytes` are not such a plan. `Corrupt`: they are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<WritePlan> {
        let read = |at: u64, out: &mut [u8]| {
            let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..out.len()));
            out.copy_from_slice(rest.ok_or_else(damaged)?);
            Ok(())
        };
        Plan::read_from(bytes.len() as u64, read).map(WritePlan)
    }
}
