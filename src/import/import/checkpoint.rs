//! The checkpoint of an import of shards or rows from an object store: positions in the stream, so that a
//! resume continues there.
//!
//! A stream is read once. The media show which samples have arrived, but not the object and offset where the
//! next sample begins. So a block beside the journal records this position with the number of samples before
//! it: a *point*. A resume continues at the newest point of the same journal before which every chunk is on the
//! media with matching checksums; if there is none, it reads the stream from its beginning. If an object up to
//! the newest point has changed, the resume is refused. A point is noted while samples arrive, and written when all
//! chunks before it are written.
//!
//! The image's list of class names exists only after the commit. Until then the class names that rows have used
//! are stored between the first superblock copy and the journal. A point states how many of these names it
//! needs, with their hash.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::ops::Range;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::import::chunk_stream::ChunkStream;
use crate::import::columns::ColumnFile;
use crate::import::journal::{BLOCK_BYTES, Block, Journal};
use crate::import::options::ImportOptions;
use crate::import::prepare::ImportState;
use crate::import::sources::sample_stream::{SampleStream, StreamPlace};
use crate::import::sources::{FoundFile, SourceKind};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::cursor::{Cursor, put_string};
use dlfs_places::{Client, Object};

/// A place in the source, between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    /// Samples before it.
    pub(super) samples: u64,
    /// The place where the next sample begins.
    pub(super) place: StreamPlace,
    /// The classes that occur in the samples before this point.
    pub(super) classes: PointClasses,
    /// Hash of all objects up to and including the one at `place`.
    objects: u64,
}

/// The number of classes that samples have named, and a hash of the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct PointClasses {
    /// Number of classes.
    pub(super) count: u64,
    /// Hash of the class names.
    pub(super) names: u64,
}

/// The content of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Hash of the journal, and of the kind and options by which the objects are read.
    import: u64,
    /// Number of listed objects.
    num_objects: u64,
    /// At most two points, the newest first.
    points: Vec<Point>,
    /// A 16-bit hash of each group of [`at_once`] consecutive objects; the last group may be shorter. They tell
    /// which object has changed. Stored after the JSON.
    #[serde(skip)]
    marks: Vec<u16>,
}

/// The objects of an import, as hashes.
#[derive(Default)]
pub(super) struct ObjectList {
    each: Vec<u64>,
    /// For each object, the hash of it and all objects before it.
    up_to: Vec<u64>,
    /// The hash state over all objects.
    all: Xxh3,
}

impl ObjectList {
    /// Adds objects, given by address, length and entity tag.
    pub(super) fn extend<'a>(
        &mut self,
        objects: impl Iterator<Item = (String, u64, Option<&'a str>)>,
    ) {
        let hash = |(address, len, etag): (String, u64, Option<&str>)| {
            let mut hash = Xxh3::new();
            hash.update(&(address.len() as u64).to_le_bytes());
            hash.update(address.as_bytes());
            hash.update(&len.to_le_bytes());
            hash.update(etag.unwrap_or_default().as_bytes());
            hash.digest()
        };
        for own in objects.map(hash) {
            self.each.push(own);
            self.all.update(&own.to_le_bytes());
            self.up_to.push(self.all.digest());
        }
    }

    /// The point after `samples` samples.
    pub(super) fn point(&self, samples: u64, place: StreamPlace, classes: PointClasses) -> Point {
        let objects = self.up_to_place(&place).unwrap_or_default();
        Point { samples, place, classes, objects }
    }

    fn up_to_place(&self, place: &StreamPlace) -> Option<u64> {
        // A place behind the last object counts as a place in the last object.
        let at = usize::try_from(place.input).ok()?.min(self.up_to.len().checked_sub(1)?);
        self.up_to.get(at).copied()
    }

    fn marks(&self) -> Vec<u16> {
        let together = at_once(self.each.len() as u64) as usize; // at most the number of objects
        let mark = |objects: &[u64]| {
            let mut hash = Xxh3::new();
            objects.iter().for_each(|object| hash.update(&object.to_le_bytes()));
            hash.digest() as u16
        };
        self.each.chunks(together).map(mark).collect()
    }
}

impl Checkpoint {
    /// The checkpoint of the import of `journal`, which reads `objects` as `kind`. It has no point yet.
    pub(super) fn new(journal: &Journal, kind: &str, objects: &ObjectList) -> Checkpoint {
        let import = (journal.layout.uuid, journal.generation, journal.time_ns, kind);
        Checkpoint {
            import: xxh3_64(format!("{import:?}").as_bytes()),
            num_objects: objects.each.len() as u64,
            points: Vec::new(),
            marks: objects.marks(),
        }
    }

    /// Adds a point, and drops all older points but one.
    pub(super) fn push(&mut self, point: Point) {
        self.points.insert(0, point);
        self.points.truncate(2);
    }

    /// The points, newest first; none if `other`, the new checkpoint of the resuming import, is of another
    /// import.
    ///
    /// # Errors
    /// One of the objects up to the newest point has changed: the numbers of those among which it is.
    pub(super) fn points_of(
        &self,
        other: &Checkpoint,
        objects: &ObjectList,
    ) -> Result<&[Point], Range<u64>> {
        let is_same = other.import == self.import;
        let Some(newest) = self.points.first().filter(|_| is_same) else { return Ok(&[]) };
        if self.is_at(newest, objects) {
            return Ok(&self.points);
        }
        let together = at_once(self.num_objects);
        let now = if together == at_once(other.num_objects) { &other.marks[..] } else { &[] };
        let differs = |at: &usize| self.marks.get(*at) != now.get(*at);
        let last = newest.place.input / together;
        let at = (0..=last as usize).find(differs).unwrap_or(last as usize) as u64;
        Err(at * together..(at + 1) * together)
    }

    fn is_at(&self, point: &Point, objects: &ObjectList) -> bool {
        // If the place was behind the last object, objects may have been added there since.
        let input = point.place.input.min(self.num_objects.saturating_sub(1));
        let place = StreamPlace { input, ..point.place };
        (objects.each.len() as u64) > input && objects.up_to_place(&place) == Some(point.objects)
    }

    /// The block to write at [`CHECKPOINT`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let marks: Vec<u8> = self.marks.iter().flat_map(|mark| mark.to_le_bytes()).collect();
        CHECKPOINT.seal(self, &marks).expect("two points and all marks fit into a block")
    }

    /// Reads a checkpoint. `None`: there is none, or it is damaged, or another release wrote it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Checkpoint> {
        let (checkpoint, tail) = CHECKPOINT.open::<Checkpoint>(bytes).ok()??;
        let count = checkpoint.num_objects.div_ceil(at_once(checkpoint.num_objects)) as usize;
        let marks = tail.as_chunks().0.get(..count)?;
        let marks = marks.iter().map(|mark| u16::from_le_bytes(*mark)).collect();
        Some(Checkpoint { marks, ..checkpoint })
    }
}

/// The number of objects in a group that shares a mark.
fn at_once(num_objects: u64) -> u64 {
    num_objects.div_ceil(MAX_MARKS).max(1)
}

impl PointClasses {
    /// The classes with these names.
    pub(super) fn of(names: &[Vec<u8>]) -> PointClasses {
        let mut hash = Xxh3::new();
        for name in names {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        PointClasses { count: names.len() as u64, names: hash.digest() }
    }

    /// Returns the prefix of `names` that holds these classes, or `None` if their hash differs.
    pub(super) fn among<'n>(&self, names: &'n [Vec<u8>]) -> Option<&'n [Vec<u8>]> {
        let names = names.get(..usize::try_from(self.count).ok()?)?;
        (PointClasses::of(names) == *self).then_some(names)
    }
}

/// The block of class names to write at [`CLASSES`]. `None`: the names do not fit.
pub(super) fn encode_names(names: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for name in names {
        put_string(&mut all, name);
        if all.len() > MAX_NAMES_BYTES {
            return None;
        }
    }
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&all).ok()?;
    CLASSES.seal(&names.len(), &encoder.finish().ok()?)
}

/// Parses the block of class names. `None`: the block is damaged, or another release wrote it.
pub(super) fn parse_names(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (count, packed) = CLASSES.open::<usize>(bytes).ok()??;
    let mut all = Vec::new();
    DeflateDecoder::new(packed).take(MAX_NAMES_BYTES as u64).read_to_end(&mut all).ok()?;
    let mut from = Cursor::new(CLASSES.what, &all);
    let mut names = Vec::new();
    while from.len() > 0 {
        names.push(from.string().ok()?.to_vec());
    }
    (names.len() == count).then_some(names)
}

/// On namespace 0, after the journal.
pub(super) const CHECKPOINT: Block =
    Block { what: "checkpoint of an import", magic: *b"DLFSCKPT", at: 20 << 10, len: BLOCK_BYTES };

/// On namespace 0, after the first superblock copy.
pub(super) const CLASSES: Block =
    Block { what: "classes of an import", magic: *b"DLFSCLSN", at: 4 << 10, len: 12 << 10 };

/// This many marks fit after the longest JSON of two points.
const MAX_MARKS: u64 = 1600;
/// Maximum length of a list of names. It also limits the memory for decompressing what the media hold.
const MAX_NAMES_BYTES: usize = 1 << 20;

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
        if objects.each.is_empty() || !(is_shards || kind.is_rows()) {
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
        let points = points.map_err(|among| error(&among, files, shards))?;
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
                chunks.writes.channel.write_bytes(0, CLASSES.at, &blocks)?;
            }
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

fn described<'a>(client: &Client, object: &'a Object) -> (String, u64, Option<&'a str>) {
    (address(client, object), object.len_bytes, object.etag.as_deref())
}

fn error(among: &Range<u64>, files: &[FoundFile], shards: &[(Client, Object)]) -> Error {
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

/// Bytes or samples between two points. Fewer would cost time: the import waits for each point's write.
const POINT_BYTES: u64 = 16 << 20;
const POINT_SAMPLES: u64 = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::units::Generation;
    use dlfs_format::format::{ImageLayout, Pack, Part, Uuid};

    fn journal() -> Journal {
        Journal {
            layout: ImageLayout::new(Uuid([3; 16]), 1 << 20, Pack::Tight, 4).unwrap(),
            namespace: 0,
            generation: Generation(7),
            time_ns: 1234,
            part: Part { first: 1000, count: 0, seed: 9, window: 0 },
            fingerprint: 0,
        }
    }

    /// A list of `count` objects. The object `changed` has another entity tag than usual.
    fn list(count: u64, changed: Option<u64>) -> ObjectList {
        let etag = |at| if Some(at) == changed { Some("new") } else { None };
        let mut list = ObjectList::default();
        list.extend((0..count).map(|at| (format!("s3://bucket/{at}"), at, etag(at))));
        list
    }

    fn place(input: u64) -> StreamPlace {
        StreamPlace { input, offset: 512, left_out: 5, record: 3, named: 4, windows: 2 }
    }

    fn classes(count: u64) -> PointClasses {
        PointClasses { count, names: !count }
    }

    #[test]
    fn a_checkpoint_reads_back_and_every_flipped_bit_is_seen() {
        let objects = list(5, None);
        let mut checkpoint = Checkpoint::new(&journal(), "tar", &objects);
        for samples in [10, 20, 30] {
            checkpoint.push(objects.point(samples, place(samples / 10), classes(samples)));
        }
        let bytes = checkpoint.encode();
        let found = Checkpoint::parse(&bytes).unwrap();
        assert_eq!(found, checkpoint);
        let samples: Vec<u64> = found.points.iter().map(|point| point.samples).collect();
        assert_eq!(samples, [30, 20], "the newest, and the one before it");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Checkpoint::parse(&damaged), None, "bit {bit}");
        }
        assert_eq!(Checkpoint::parse(&bytes[..4095]), None);
    }

    #[test]
    fn it_counts_only_for_its_import() {
        let objects = list(5, None);
        let mut checkpoint = Checkpoint::new(&journal(), "tar", &objects);
        checkpoint.push(objects.point(10, place(1), classes(0)));
        let points = |journal: &Journal, kind: &str| {
            let other = Checkpoint::new(journal, kind, &objects);
            checkpoint.points_of(&other, &objects).unwrap().len()
        };
        assert_eq!(points(&journal(), "tar"), 1);
        assert_eq!(points(&journal(), "webdataset"), 0);
        assert_eq!(points(&Journal { time_ns: 5, ..journal() }, "tar"), 0);
        assert_eq!(points(&Journal { generation: Generation(8), ..journal() }, "tar"), 0);
    }

    #[test]
    fn an_object_that_changed_before_the_point_is_named_and_later_ones_do_not_matter() {
        for count in [1, 5, MAX_MARKS, MAX_MARKS + 1, 20_000] {
            let objects = list(count, None);
            let mut checkpoint = Checkpoint::new(&journal(), "tar", &objects);
            let input = count / 2;
            checkpoint.push(objects.point(10, place(input), classes(7)));
            let checkpoint = Checkpoint::parse(&checkpoint.encode()).unwrap();
            let now = |count, changed| {
                let objects = list(count, changed);
                let other = Checkpoint::new(&journal(), "tar", &objects);
                checkpoint.points_of(&other, &objects).map(<[Point]>::len)
            };
            assert_eq!(now(count, None), Ok(1), "{count}");
            for changed in [0, input / 2, input] {
                let among = now(count, Some(changed)).unwrap_err();
                assert!(among.contains(&changed), "{changed} of {count}: {among:?}");
                assert!(count > MAX_MARKS || among.end - among.start == 1, "{among:?}");
            }
            if input + 1 < count {
                assert_eq!(now(count, Some(count - 1)), Ok(1), "it is not read yet");
                assert_eq!(now(input + 1, None), Ok(1), "others are gone");
                assert!(now(input, None).is_err(), "the one that was being read is gone");
            }
            assert_eq!(now(count + 3, None), Ok(1), "others have come");
        }
    }

    #[test]
    fn the_longest_checkpoint_has_room() {
        let most = u64::MAX;
        let place = StreamPlace {
            input: most,
            offset: most,
            left_out: most,
            record: most,
            named: most,
            windows: most,
        };
        let classes = PointClasses { count: most, names: most };
        let point = Point { samples: most, place, classes, objects: most };
        let marks = vec![7; MAX_MARKS as usize];
        let points = vec![point, point];
        let checkpoint = Checkpoint { import: most, num_objects: MAX_MARKS, points, marks };
        assert_eq!(Checkpoint::parse(&checkpoint.encode()), Some(checkpoint));
    }

    fn numbered(count: u64) -> Vec<Vec<u8>> {
        (0..count).map(|at| format!("n{:08}", at * 7919).into_bytes()).collect()
    }

    #[test]
    fn names_of_classes_read_back_in_their_order_and_a_point_knows_its_own() {
        let names = [numbered(1000), vec![Vec::new(), vec![b'x'; 9000]]].concat();
        let bytes = encode_names(&names).unwrap();
        assert_eq!((bytes.len(), parse_names(&bytes).as_ref()), (CLASSES.len, Some(&names)));
        assert_eq!(parse_names(&bytes[..8192]), None);
        let point = PointClasses::of(&names[..700]);
        assert_eq!(point.among(&names), Some(&names[..700]));
        assert_eq!(point.among(&names[1..]), None);
        assert_eq!(point.among(&names[..699]), None);
    }

    #[test]
    fn names_of_classes_that_have_no_room_are_not_kept() {
        assert_eq!(encode_names(&numbered(1 << 20)), None);
        assert_eq!(encode_names(&[vec![0; 1 << 21]]), None);
    }

    #[test]
    fn every_flipped_bit_of_the_names_is_seen() {
        let bytes = encode_names(&numbered(20)).unwrap();
        for bit in (0..bytes.len() * 8).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_names(&damaged), None, "bit {bit}");
        }
    }
}
