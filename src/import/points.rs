//! The points where an import of shards from a store may go on: noted as samples come, written when their chunks are.

use std::collections::VecDeque;

use crate::import::checkpoint::{
    CHECKPOINT_BYTES, CHECKPOINT_OFFSET, Changed, Checkpoint, ObjectList, Point,
};
use crate::import::chunk_stream::ChunkStream;
use crate::import::columns::ColumnFile;
use crate::import::media::Media;
use crate::import::options::ImportOptions;
use crate::import::prepare::ImportState;
use crate::import::sources::sample_stream::SampleStream;
use crate::import::sources::{Found, SourceKind};
use crate::places::{Client, Object};
use crate::{Error, ErrorKind, Result};

/// The points of one import.
pub(super) struct Points {
    objects: ObjectList,
    checkpoint: Checkpoint,
    /// First id of the part.
    first: u64,
    /// Points whose chunks are not all written.
    pending: VecDeque<Point>,
    /// Samples and bytes before the last point.
    last: (u64, u64),
}

impl Points {
    /// Those of the import of `found`, if it can go on where it was: of a source that a place in an object and what is
    /// on the media describe.
    pub(super) fn of(
        found: &Found,
        columns: Option<&ColumnFile>,
        state: &ImportState,
        options: &ImportOptions,
    ) -> Option<Points> {
        let kind = found.kind;
        let is_shards =
            matches!(kind, SourceKind::Tar | SourceKind::WebDataset | SourceKind::TfRecord);
        if found.objects.is_empty() || !is_shards {
            return None;
        }
        let objects = ObjectList::new(found.objects.iter().flat_map(|(client, objects)| {
            objects
                .iter()
                .map(|object| (address(client, object), object.len_bytes, object.etag.as_deref()))
        }));
        let checkpoint =
            Checkpoint::new(&state.journal, &read_as(kind, columns, options), &objects);
        let (first, pending) = (state.journal.part.first, VecDeque::new());
        Some(Points { objects, checkpoint, first, pending, last: (0, 0) })
    }

    /// The points that an interrupted import has written, the newest first.
    ///
    /// # Errors
    /// `BadSource`: an object that it had read is another one by now.
    pub(super) fn saved(
        &self,
        media: &Media,
        objects: &[(Client, Vec<Object>)],
    ) -> Result<Vec<Point>> {
        let block = media.channel().read(0, CHECKPOINT_OFFSET, CHECKPOINT_BYTES)?;
        let Some(saved) = Checkpoint::parse(&block) else { return Ok(Vec::new()) };
        let points = saved.points_of(&self.checkpoint, &self.objects);
        points.map(<[Point]>::to_vec).map_err(|changed| error(&changed, objects))
    }

    /// Goes on behind a point that was written.
    pub(super) fn begin_at(&mut self, point: Point, sample_bytes: u64) {
        self.last = (point.samples, sample_bytes);
        self.checkpoint.push(point);
    }

    /// Notes where `source` is behind these samples, if it is far from the last point.
    pub(super) fn note(&mut self, samples: u64, sample_bytes: u64, source: &dyn SampleStream) {
        let (last_samples, last_bytes) = self.last;
        let is_far =
            sample_bytes - last_bytes >= POINT_BYTES || samples - last_samples >= POINT_SAMPLES;
        if let Some(place) = is_far.then(|| source.place()).flatten() {
            self.pending.push_back(self.objects.point(samples, place));
            self.last = (samples, sample_bytes);
        }
    }

    /// Writes the last point before which all chunks are on the media, and waits for none.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn write(&mut self, chunks: &mut ChunkStream<'_>) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = chunks.written_slot()?.0 - self.first;
        let mut is_new = false;
        while let Some(point) = self.pending.front().filter(|point| point.samples <= written) {
            self.checkpoint.push(*point);
            self.pending.pop_front();
            is_new = true;
        }
        if is_new {
            let block = self.checkpoint.encode();
            chunks.writes.channel().write_bytes(0, CHECKPOINT_OFFSET, &block)?;
        }
        Ok(())
    }
}

/// What becomes of the bytes of the objects: whoever asks for something else begins again.
fn read_as(kind: SourceKind, columns: Option<&ColumnFile>, options: &ImportOptions) -> String {
    let ImportOptions { placement, seed, rows, field_types, field_columns, .. } = options;
    let columns = columns.map(ColumnFile::fingerprint);
    format!("{kind} {placement:?} {seed} {rows:?} {field_types:?} {field_columns:?} {columns:?}")
}

fn address(client: &Client, object: &Object) -> String {
    client.place().with_key(&*object.key).to_string()
}

fn error(changed: &Changed, objects: &[(Client, Vec<Object>)]) -> Error {
    let mut all = objects
        .iter()
        .flat_map(|(client, objects)| objects.iter().map(move |object| address(client, object)));
    let count = changed.among.end - changed.among.start;
    let text = match count {
        1 => "the object has changed since the import began, or another one is in its place"
            .to_owned(),
        _ => format!("one of {count} objects from this one on has changed since the import began"),
    };
    let error = Error::new(ErrorKind::BadSource, text)
        .hint("begin again with --force, or with --append if the image had a generation before");
    match usize::try_from(changed.among.start).ok().and_then(|at| all.nth(at)) {
        Some(address) => error.target(address),
        None => error,
    }
}

/// Points are so far apart, since each is a write that is waited for.
const POINT_BYTES: u64 = 16 << 20;
const POINT_SAMPLES: u64 = 1 << 17;
