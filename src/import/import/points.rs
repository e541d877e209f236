//! The points where an import of shards or rows from an object store may resume. A point is noted while samples
//! arrive, and written when all chunks before it are written. `checkpoint.rs` has the format.

use std::collections::VecDeque;

use crate::import::checkpoint::{
    CHECKPOINT, CLASSES, Changed, Checkpoint, ObjectList, Point, PointClasses, encode_names,
    parse_names,
};
use crate::import::chunk_stream::ChunkStream;
use crate::import::columns::ColumnFile;
use crate::import::options::ImportOptions;
use crate::import::prepare::ImportState;
use crate::import::sources::sample_stream::SampleStream;
use crate::import::sources::{FoundFile, SourceKind};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_places::{Client, Object};

/// The points of one import.
pub(super) struct Points {
    objects: ObjectList,
    checkpoint: Checkpoint,
    /// First id of the part.
    first: u64,
    /// Points whose chunks are not all written. With each, the block with the class names that it needs, if
    /// this block has changed.
    pending: VecDeque<(Point, Option<Vec<u8>>)>,
    /// Number of class names that are stored, or will be with the last pending point.
    kept_classes: u64,
    /// Samples and bytes before the last point.
    last: (u64, u64),
}

impl Points {
    /// The points of an import of `objects` and of the `shards` that these list. `None`: the import cannot
    /// resume at a point, because a position in an object and the data on the media do not describe its state.
    pub(super) fn of(
        kind: SourceKind,
        mut objects: ObjectList,
        shards: &[(Client, Object)],
        columns: Option<&ColumnFile>,
        state: &ImportState,
        options: &ImportOptions,
    ) -> Option<Points> {
        let is_shards =
            matches!(kind, SourceKind::Tar | SourceKind::WebDataset | SourceKind::TfRecord);
        if objects.is_empty() || !(is_shards || kind.is_rows()) {
            return None;
        }
        objects.extend(shards.iter().map(|(client, object)| described(client, object)));
        let checkpoint =
            Checkpoint::new(&state.journal, &read_as(kind, columns, options), &objects);
        let first = state.journal.part.first;
        let pending = VecDeque::new();
        Some(Points { objects, checkpoint, first, pending, kept_classes: 0, last: (0, 0) })
    }

    /// The points that an interrupted import has written, newest first. With each, the names of the classes
    /// that occur in the samples before it. Points whose class names are not on the media are left out.
    ///
    /// # Errors
    /// `BadSource`: an object that the import had read has changed.
    pub(super) fn saved(
        &self,
        state: &ImportState,
        files: &[FoundFile],
        shards: &[(Client, Object)],
    ) -> Result<Vec<(Point, Vec<Vec<u8>>)>> {
        let media = &state.media;
        let block = CHECKPOINT.bytes(&mut media.channel(), 0)?;
        let saved = block.and_then(|block| Checkpoint::parse(&block));
        let Some(saved) = saved else { return Ok(Vec::new()) };
        let points = saved.points_of(&self.checkpoint, &self.objects);
        let points = points.map_err(|changed| error(&changed, files, shards))?;
        let mut names = Vec::new();
        if points.iter().any(|point| point.classes.count > 0) {
            let block = CLASSES.bytes(&mut media.channel(), 0)?;
            names = block.and_then(|block| parse_names(&block)).unwrap_or_default();
        }
        let with_names =
            |point: &Point| point.classes.among(&names).map(|names| (*point, names.to_vec()));
        Ok(points.iter().filter_map(with_names).collect())
    }

    /// Continues after a point that is on the media.
    pub(super) fn begin_at(&mut self, point: Point, sample_bytes: u64) {
        self.last = (point.samples, sample_bytes);
        self.kept_classes = point.classes.count;
        self.checkpoint.push(point);
    }

    /// Notes the position of `source` after these samples, if it is far from the last point.
    pub(super) fn note(&mut self, samples: u64, sample_bytes: u64, source: &dyn SampleStream) {
        let (last_samples, last_bytes) = self.last;
        let is_far =
            sample_bytes - last_bytes >= POINT_BYTES || samples - last_samples >= POINT_SAMPLES;
        let Some(place) = is_far.then(|| source.place()).flatten() else { return };
        self.last = (samples, sample_bytes);
        let names = source.found_classes();
        let count = names.len() as u64;
        let mut blocks = None;
        if count > self.kept_classes {
            blocks = encode_names(names);
            if blocks.is_none() {
                // The names do not fit. A resume will start at the last point whose names fit.
                return;
            }
            self.kept_classes = count;
        }
        let point = self.objects.point(samples, place, PointClasses::of(names));
        self.pending.push_back((point, blocks));
    }

    /// Writes the last point before which all chunks are on the media. It does not wait for chunks.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn write(&mut self, chunks: &mut ChunkStream<'_>) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = chunks.written_slot()?.0 - self.first;
        let mut is_new = false;
        let mut classes = None;
        while self.pending.front().is_some_and(|(point, _)| point.samples <= written)
            && let Some((point, blocks)) = self.pending.pop_front()
        {
            self.checkpoint.push(point);
            (is_new, classes) = (true, blocks.or(classes));
        }
        if is_new {
            if let Some(blocks) = classes {
                chunks.writes.channel().write_bytes(0, CLASSES.at, &blocks)?;
            }
            let block = self.checkpoint.encode();
            chunks.writes.channel().write_bytes(0, CHECKPOINT.at, &block)?;
        }
        Ok(())
    }
}

/// Describes how the bytes of the objects are interpreted. If this differs, a resume starts from the beginning.
fn read_as(kind: SourceKind, columns: Option<&ColumnFile>, options: &ImportOptions) -> String {
    let ImportOptions { placement, seed, rows, field_types, field_columns, .. } = options;
    let columns = columns.map(ColumnFile::fingerprint);
    format!("{kind} {placement:?} {seed} {rows:?} {field_types:?} {field_columns:?} {columns:?}")
}

fn address(client: &Client, object: &Object) -> String {
    client.place().with_key(&*object.key).to_string()
}

/// The objects among files.
fn objects(files: &[FoundFile]) -> impl Iterator<Item = &(Client, Object)> {
    files.iter().filter_map(|file| file.object.as_ref())
}

/// The objects that the user gave.
pub(super) fn listed(files: &[FoundFile]) -> ObjectList {
    let mut list = ObjectList::default();
    list.extend(objects(files).map(|(client, object)| described(client, object)));
    list
}

fn described<'a>(client: &Client, object: &'a Object) -> (String, u64, Option<&'a str>) {
    (address(client, object), object.len_bytes, object.etag.as_deref())
}

fn error(changed: &Changed, files: &[FoundFile], shards: &[(Client, Object)]) -> Error {
    let mut all = objects(files).chain(shards);
    let count = changed.among.end - changed.among.start;
    let text = match count {
        1 => "the object has changed since the import began, or another one is in its place"
            .to_owned(),
        _ => format!("one of {count} objects from this one on has changed since the import began"),
    };
    let error = Error::new(ErrorKind::BadSource, text)
        .hint("begin again with --force, or with --append if the image had a generation before");
    match usize::try_from(changed.among.start).ok().and_then(|at| all.nth(at)) {
        Some((client, object)) => error.target(address(client, object)),
        None => error,
    }
}

/// Bytes or samples between two points. Fewer would cost time: the import waits for each point's write.
const POINT_BYTES: u64 = 16 << 20;
const POINT_SAMPLES: u64 = 1 << 17;
