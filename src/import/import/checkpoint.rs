//! Position of an import of shards from a store, saved so that it goes on there. Pure: bytes in, bytes out.
//!
//! A stream is read once, and what is on the media says which samples have come, but not where in which object the
//! next one begins. A block beside the journal says it: after so many samples, so far into this object. It is believed
//! only together with the journal of its import, if the objects up to that place are the same, and if every chunk
//! before it is on the media, which checksums decide. Otherwise the stream is read from its beginning.

use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::import::journal::Journal;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::units::Generation;
use dlfs_format::format::Uuid;
use dlfs_format::format::checksum::crc32c;

/// A checkpoint as it lies on media: one block of 4,096 bytes, on namespace 0.
///
/// | bytes      | field         | meaning                                                        |
/// |------------|---------------|----------------------------------------------------------------|
/// | 0..8       | `magic`       | "DLFSCKPT"                                                     |
/// | 8..10      | `version`     | 2                                                              |
/// | 10..12     | `num_marks`   | marks that are used                                            |
/// | 12..16     | `reserved_a`  | zero                                                           |
/// | 16..32     | `uuid`        | the image                                                      |
/// | 32..40     | `generation`  | the generation that the import makes                           |
/// | 40..48     | `time_ns`     | the time in its journal                                        |
/// | 48..56     | `kind`        | hash of what the objects are read as                           |
/// | 56..64     | `num_objects` | objects that were listed                                       |
/// | 64..144    | `newest`      | the newest point: ten numbers, below                           |
/// | 144..224   | `before`      | the one before it; zero if there is none                       |
/// | 224..4080  | `marks`       | u16 of the hash of each object, or of equally many of them     |
/// | 4080..4092 | `reserved_b`  | zero                                                           |
/// | 4092..4096 | `crc`         | CRC32C of bytes 0..4092                                        |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawCheckpoint {
    magic: [u8; 8],
    version: U16,
    num_marks: U16,
    reserved_a: [u8; 4],
    uuid: [u8; 16],
    generation: U64,
    time_ns: U64,
    kind: U64,
    num_objects: U64,
    newest: RawPoint,
    before: RawPoint,
    marks: [U16; MAX_MARKS],
    reserved_b: [u8; 12],
    crc: [u8; 4],
}
const _: () = assert!(size_of::<RawCheckpoint>() == CHECKPOINT_BYTES);

/// A point of a checkpoint.
///
/// | bytes  | field      | meaning                                                               |
/// |--------|------------|-----------------------------------------------------------------------|
/// | 0..8   | `samples`  | samples before it, from the first one of the import                   |
/// | 8..16  | `windows`  | windows that were shuffled before it                                  |
/// | 16..24 | `input`    | the object in which the next sample begins, from 0                    |
/// | 24..32 | `offset`   | where in it that is, after decompression; of an Arrow file: the batch |
/// | 32..40 | `left_out` | samples from there on that come before it: rows of a group or batch   |
/// | 40..48 | `record`   | the number of that sample in the object, where its name depends on it |
/// | 48..56 | `named`    | hash of other objects that samples before it named, as JSON Lines do  |
/// | 56..64 | `classes`  | classes that samples before it named first                            |
/// | 64..72 | `names`    | hash of their names                                                   |
/// | 72..80 | `objects`  | hash of all objects up to this one                                    |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPoint {
    samples: U64,
    windows: U64,
    input: U64,
    offset: U64,
    left_out: U64,
    record: U64,
    named: U64,
    classes: U64,
    names: U64,
    objects: U64,
}
const _: () = assert!(size_of::<RawPoint>() == 80);

/// A place in the source, between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    /// Samples before it.
    pub(super) samples: u64,
    /// The place where the next one begins.
    pub(super) place: StreamPlace,
    /// The classes that samples before it named first.
    pub(super) classes: PointClasses,
    /// Hash of all objects up to that one.
    objects: u64,
}

/// How many classes samples have named, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PointClasses {
    /// Their number.
    pub(super) count: u64,
    /// Hash of their names.
    pub(super) names: u64,
}

/// The content of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checkpoint {
    uuid: Uuid,
    generation: Generation,
    time_ns: u64,
    kind: u64,
    num_objects: u64,
    /// The newest first.
    points: Vec<Point>,
    marks: Vec<u16>,
}

/// The objects of an import, as hashes.
#[derive(Default)]
pub(super) struct ObjectList {
    each: Vec<u64>,
    /// Hashes, each of an object and all before it.
    up_to: Vec<u64>,
    /// Hash of all objects.
    all: Xxh3,
}

/// An object is not what it was when the import began.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Changed {
    /// It is one of these, by their numbers.
    pub(super) among: std::ops::Range<u64>,
}

impl ObjectList {
    /// Adds the objects with these addresses, lengths and tags.
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

    /// Returns whether there are no objects.
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// The point after `samples` samples.
    pub(super) fn point(&self, samples: u64, place: StreamPlace, classes: PointClasses) -> Point {
        let objects = self.up_to_place(&place).unwrap_or_default();
        Point { samples, place, classes, objects }
    }

    fn up_to_place(&self, place: &StreamPlace) -> Option<u64> {
        // Behind the last object, the last one counts.
        let at = usize::try_from(place.input).ok()?.min(self.up_to.len().checked_sub(1)?);
        self.up_to.get(at).copied()
    }

    fn marks(&self) -> Vec<u16> {
        let together = self.each.len().div_ceil(MAX_MARKS).max(1);
        let mark = |objects: &[u64]| {
            let mut hash = Xxh3::new();
            objects.iter().for_each(|object| hash.update(&object.to_le_bytes()));
            hash.digest() as u16
        };
        self.each.chunks(together).map(mark).collect()
    }
}

impl Checkpoint {
    /// The checkpoint of the import of `journal`, which reads `objects` as `kind`; it has no point yet.
    pub(super) fn new(journal: &Journal, kind: &str, objects: &ObjectList) -> Checkpoint {
        let mut hash = Xxh3::new();
        hash.update(kind.as_bytes());
        Checkpoint {
            uuid: journal.layout.uuid,
            generation: journal.generation,
            time_ns: journal.time_ns,
            kind: hash.digest(),
            num_objects: objects.each.len() as u64,
            points: Vec::new(),
            marks: objects.marks(),
        }
    }

    /// Adds a point; the last but one is forgotten.
    pub(super) fn push(&mut self, point: Point) {
        self.points.insert(0, point);
        self.points.truncate(2);
    }

    /// The points, the newest first, if `other`, which has none, is of the same import.
    ///
    /// # Errors
    /// One of the objects up to the newest point has changed.
    pub(super) fn points_of(
        &self,
        other: &Checkpoint,
        objects: &ObjectList,
    ) -> Result<&[Point], Changed> {
        let same = (other.uuid, other.generation, other.time_ns, other.kind)
            == (self.uuid, self.generation, self.time_ns, self.kind);
        let Some(newest) = self.points.first().filter(|_| same) else { return Ok(&[]) };
        if self.is_at(newest, objects) {
            return Ok(&self.points);
        }
        let together = self.num_objects.div_ceil(MAX_MARKS as u64).max(1);
        let now = if together == other.num_objects.div_ceil(MAX_MARKS as u64).max(1) {
            &other.marks[..]
        } else {
            &[]
        };
        let differs = |at: &usize| self.marks.get(*at) != now.get(*at);
        let last = newest.place.input / together;
        let at = (0..=last as usize).find(differs).unwrap_or(last as usize) as u64;
        Err(Changed { among: at * together..(at + 1) * together })
    }

    fn is_at(&self, point: &Point, objects: &ObjectList) -> bool {
        // Behind the last object that there was, others may have come.
        let input = point.place.input.min(self.num_objects.saturating_sub(1));
        let place = StreamPlace { input, ..point.place };
        (objects.each.len() as u64) > input && objects.up_to_place(&place) == Some(point.objects)
    }

    /// The block to write at [`CHECKPOINT_OFFSET`].
    pub(super) fn encode(&self) -> [u8; CHECKPOINT_BYTES] {
        let mut raw = RawCheckpoint::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.num_marks = (self.marks.len() as u16).into();
        raw.uuid = self.uuid.0;
        raw.generation = self.generation.0.into();
        raw.time_ns = self.time_ns.into();
        raw.kind = self.kind.into();
        raw.num_objects = self.num_objects.into();
        for (to, point) in [&mut raw.newest, &mut raw.before].into_iter().zip(&self.points) {
            let StreamPlace { input, offset, left_out, record, named, windows } = point.place;
            *to = RawPoint {
                samples: point.samples.into(),
                windows: windows.into(),
                input: input.into(),
                offset: offset.into(),
                left_out: left_out.into(),
                record: record.into(),
                named: named.into(),
                classes: point.classes.count.into(),
                names: point.classes.names.into(),
                objects: point.objects.into(),
            };
        }
        for (to, mark) in raw.marks.iter_mut().zip(&self.marks) {
            *to = (*mark).into();
        }
        raw.crc = crc32c(&raw.as_bytes()[..CHECKPOINT_BYTES - 4]).to_le_bytes();
        zerocopy::transmute!(raw)
    }

    /// Reads a checkpoint. `None`: there is none, or it is damaged, or a later release wrote it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Checkpoint> {
        let (raw, _) = RawCheckpoint::read_from_prefix(bytes).ok()?;
        let crc = crc32c(&bytes[..CHECKPOINT_BYTES - 4]).to_le_bytes();
        if (raw.magic, raw.version.get(), raw.crc) != (MAGIC, VERSION, crc) {
            return None;
        }
        let points = [raw.newest, raw.before].map(|point| Point {
            samples: point.samples.get(),
            place: StreamPlace {
                input: point.input.get(),
                offset: point.offset.get(),
                left_out: point.left_out.get(),
                record: point.record.get(),
                named: point.named.get(),
                windows: point.windows.get(),
            },
            classes: PointClasses { count: point.classes.get(), names: point.names.get() },
            objects: point.objects.get(),
        });
        let marks = raw.marks.get(..usize::from(raw.num_marks.get()))?;
        Some(Checkpoint {
            uuid: Uuid(raw.uuid),
            generation: Generation(raw.generation.get()),
            time_ns: raw.time_ns.get(),
            kind: raw.kind.get(),
            num_objects: raw.num_objects.get(),
            points: points.into_iter().filter(|point| point.samples > 0).collect(),
            marks: marks.iter().map(|mark| mark.get()).collect(),
        })
    }
}

/// Offset of the checkpoint on namespace 0: behind the journal.
pub(super) const CHECKPOINT_OFFSET: u64 = 20 << 10;

/// Bytes of a checkpoint.
pub(super) const CHECKPOINT_BYTES: usize = 4096;

const MAX_MARKS: usize = 1928;
const VERSION: u16 = 2;
const MAGIC: [u8; 8] = *b"DLFSCKPT";

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_format::format::{ImageLayout, Pack, Part};

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

    /// So many objects, the `changed` one of them another one than usual.
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
            let mut damaged = bytes;
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
        for count in [1, 5, 1928, 1929, 20_000] {
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
                let Changed { among } = now(count, Some(changed)).unwrap_err();
                assert!(among.contains(&changed), "{changed} of {count}: {among:?}");
                assert!(count > 1928 || among.end - among.start == 1, "{among:?}");
            }
            if input + 1 < count {
                assert_eq!(now(count, Some(count - 1)), Ok(1), "it is not read yet");
                assert_eq!(now(input + 1, None), Ok(1), "others are gone");
                assert!(now(input, None).is_err(), "the one that was being read is gone");
            }
            assert_eq!(now(count + 3, None), Ok(1), "others have come");
        }
    }
}
