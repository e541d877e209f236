//! The points of an import of shards or rows from an object store: positions in the stream at which a resume can
//! continue.
//!
//! A stream is read once. The media show which samples have arrived, but not the object and offset where the next
//! sample begins. So the checkpoint (`checkpoint.rs`) records this position with the number of samples before it: a
//! *point*. A resume continues at the newest point of the same journal before which every chunk is on the media with
//! matching checksums. If there is no such point, the resume reads the stream from its beginning. If an object up to
//! the newest point has changed, the resume is refused. A point is noted while samples arrive, and written when all
//! chunks before it are written.

use std::collections::VecDeque;
use std::ops::Range;

use crate::import::checkpoint::{CHECKPOINT, Checkpoint, ObjectList, Point, packed};
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
    /// The objects that the user gave, then those that lists name.
    objects: ObjectList,
    /// The checkpoint as the media hold it.
    checkpoint: Checkpoint,
    /// First id of the import's samples.
    first: u64,
    /// Points whose chunks are not all written. With each, the names of its classes, if there are more than before.
    pending: VecDeque<(Point, Option<Vec<u8>>)>,
    /// Number of class names that are stored, or will be with the last pending point.
    kept_classes: u64,
    /// Samples before the last point, and bytes of these samples.
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
        if objects.0.is_empty() || !(is_shards || kind.is_rows()) {
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
        let block = CHECKPOINT.bytes(&mut state.media.channel(), 0)?;
        let saved = block.and_then(|block| Checkpoint::parse(&block));
        let Some(saved) = saved else { return Ok(Vec::new()) };
        let points = saved.points_of(&self.checkpoint, &self.objects);
        let points = points.map_err(|among| has_changed(&among, files, shards))?;
        Ok(points.iter().filter_map(|point| Some((*point, saved.classes_of(point)?))).collect())
    }

    /// Continues after a point that is on the media, before which samples have named `classes`.
    pub(super) fn begin_at(&mut self, point: Point, classes: &[Vec<u8>], sample_bytes: u64) {
        self.last = (point.samples, sample_bytes);
        self.kept_classes = point.classes;
        self.checkpoint.push(point, (point.classes > 0).then(|| packed(classes)).flatten());
    }

    /// Notes the position of `source` after these samples, if it is far from the last point.
    pub(super) fn note(&mut self, samples: u64, sample_bytes: u64, source: &dyn SampleStream) {
        let (last_samples, last_bytes) = self.last;
        let is_far =
            sample_bytes - last_bytes >= POINT_BYTES || samples - last_samples >= POINT_SAMPLES;
        let Some(place) = is_far.then(|| source.place()).flatten() else { return };
        self.last = (samples, sample_bytes);
        let classes = source.found_classes();
        let count = classes.len() as u64;
        let mut names = None;
        if count > self.kept_classes {
            names = packed(classes);
            if names.is_none() {
                // The names do not fit. A resume will start at the last point whose names fit.
                return;
            }
            self.kept_classes = count;
        }
        self.pending.push_back((self.objects.point(samples, place, count), names));
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
        while self.pending.front().is_some_and(|(point, _)| point.samples <= written)
            && let Some((point, names)) = self.pending.pop_front()
        {
            self.checkpoint.push(point, names);
            is_new = true;
        }
        if is_new {
            let block = self.checkpoint.encode();
            chunks.writes.channel.write_bytes(0, CHECKPOINT.at, &block)?;
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

/// The address of an object.
fn address(client: &Client, object: &Object) -> String {
    client.place().with_key(&*object.key).to_string()
}

/// The objects among files.
fn objects(files: &[FoundFile]) -> impl Iterator<Item = &(Client, Object)> {
    files.iter().filter_map(|file| file.object.as_ref())
}

/// The objects that the user gave.
pub(super) fn listed_objects(files: &[FoundFile]) -> ObjectList {
    let mut list = ObjectList::default();
    list.extend(objects(files).map(|(client, object)| described(client, object)));
    list
}

/// The properties of an object by which a change is detected.
fn described<'a>(client: &Client, object: &'a Object) -> (String, u64, Option<&'a str>) {
    (address(client, object), object.len_bytes, object.etag.as_deref())
}

/// The error for a change of one of the objects with the numbers `among`.
fn has_changed(among: &Range<u64>, files: &[FoundFile], shards: &[(Client, Object)]) -> Error {
    let mut all = objects(files).chain(shards);
    let count = among.end - among.start;
    let text = match count {
        1 => "the object has changed since the import began, or another one is in its place"
            .to_owned(),
        _ => format!("one of {count} objects from this one on has changed since the import began"),
    };
    let error = Error::new(ErrorKind::BadSource, text)
        .hint("begin again with --force, or with --append if the image had a generation before");
    match usize::try_from(among.start).ok().and_then(|at| all.nth(at)) {
        Some((client, object)) => error.target(address(client, object)),
        None => error,
    }
}

/// A point is noted after this many bytes of samples, or after [`POINT_SAMPLES`] samples. More points would cost time:
/// the import waits for each point's write.
const POINT_BYTES: u64 = 16 << 20;
/// A point is noted after this many samples, too.
const POINT_SAMPLES: u64 = 1 << 17;
