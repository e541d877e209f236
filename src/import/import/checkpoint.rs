//! The checkpoint on the media: a block beside the journal, with the newest points of an import. `points.rs` tells
//! when points are written and used.
//!
//! The image's list of class names exists only after the commit. Until then the block holds the names of the classes
//! that samples have used; a point states how many of them occur before it.

use std::io::{Read, Write};
use std::ops::Range;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use crate::import::block::Block;
use crate::import::journal::Journal;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_format::format::cursor::{Cursor, put_string};

/// A place in the source, between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    /// Number of samples before this point.
    pub(super) samples: u64,
    /// The place where the next sample begins.
    pub(super) place: StreamPlace,
    /// Number of classes that occur in the samples before this point.
    pub(super) classes: u64,
    /// Hash of all objects up to and including the one at `place`.
    objects: u64,
}

/// The content of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// The names of the classes that samples have used, as [`packed`] returns them. Stored after the marks.
    #[serde(skip)]
    names: Vec<u8>,
    /// Pads the JSON to [`JSON_BYTES`], so that marks and names keep their place. A new point that changes no names
    /// changes only the block's first bytes, and a write torn behind these leaves a valid block.
    space: String,
}

/// The objects of an import, as a hash of each.
#[derive(Default)]
pub(super) struct ObjectList(pub(super) Vec<u64>);

impl ObjectList {
    /// Adds objects, given by address, length and entity tag.
    pub(super) fn extend<'a>(
        &mut self,
        objects: impl Iterator<Item = (String, u64, Option<&'a str>)>,
    ) {
        self.0.extend(objects.map(|object| xxh3_64(format!("{object:?}").as_bytes())));
    }

    /// The point at `place`, after `samples` samples, which have named `classes` classes.
    pub(super) fn point(&self, samples: u64, place: StreamPlace, classes: u64) -> Point {
        // A place behind the last object counts as a place in the last object.
        let last = place.input.min((self.0.len() as u64).saturating_sub(1));
        Point { samples, place, classes, objects: self.up_to(last).unwrap_or_default() }
    }

    /// The hash of all objects up to and including number `input`.
    fn up_to(&self, input: u64) -> Option<u64> {
        let objects = self.0.get(..=usize::try_from(input).ok()?)?;
        Some(xxh3_64(objects.as_bytes()))
    }

    /// The marks of all groups of objects: see [`Checkpoint`].
    fn marks(&self) -> Vec<u16> {
        let together = at_once(self.0.len() as u64) as usize; // at most the number of objects
        self.0.chunks(together).map(|objects| xxh3_64(objects.as_bytes()) as u16).collect()
    }
}

impl Checkpoint {
    /// The checkpoint of the import of `journal`, which reads `objects` as `kind`. It has no point yet.
    pub(super) fn new(journal: &Journal, kind: &str, objects: &ObjectList) -> Checkpoint {
        let import = (journal.layout.uuid, journal.generation, journal.time_ns, kind);
        Checkpoint {
            import: xxh3_64(format!("{import:?}").as_bytes()),
            num_objects: objects.0.len() as u64,
            points: Vec::new(),
            marks: objects.marks(),
            names: Vec::new(),
            space: String::new(),
        }
    }

    /// Adds a point, and the names of its classes if there are more than before. Drops all older points but one.
    pub(super) fn push(&mut self, point: Point, names: Option<Vec<u8>>) {
        self.points.insert(0, point);
        self.points.truncate(2);
        self.names = names.unwrap_or(std::mem::take(&mut self.names));
    }

    /// The points, newest first; none if `other`, the new checkpoint of the resuming import, is of another
    /// import.
    ///
    /// # Errors
    /// One of the objects up to the newest point has changed: the range of numbers in which it is.
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

    /// Returns whether the objects up to `point` are the same as when it was written.
    fn is_at(&self, point: &Point, objects: &ObjectList) -> bool {
        // If the place was behind the last object, objects may have been added there since.
        let input = point.place.input.min(self.num_objects.saturating_sub(1));
        objects.up_to(input) == Some(point.objects)
    }

    /// The names of the classes that occur before a point. `None`: they are not there.
    pub(super) fn classes_of(&self, point: &Point) -> Option<Vec<Vec<u8>>> {
        let names = if point.classes == 0 { Vec::new() } else { unpacked(&self.names)? };
        names.get(..usize::try_from(point.classes).ok()?).map(<[_]>::to_vec)
    }

    /// The block to write at [`CHECKPOINT`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut tail: Vec<u8> = self.marks.iter().flat_map(|mark| mark.to_le_bytes()).collect();
        tail.extend_from_slice(&self.names);
        let mut padded = Checkpoint { space: String::new(), ..self.clone() };
        let len = serde_json::to_vec(&padded).map_or(0, |json| json.len());
        padded.space = " ".repeat(JSON_BYTES.saturating_sub(len));
        CHECKPOINT.seal(&padded, &tail).expect("two points, all marks and limited names fit")
    }

    /// Reads a checkpoint. `None`: there is none, or it is damaged, or another release wrote it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Checkpoint> {
        let (checkpoint, tail) = CHECKPOINT.open::<Checkpoint>(bytes).ok()??;
        let count = checkpoint.num_objects.div_ceil(at_once(checkpoint.num_objects)) as usize;
        let (marks, names) = tail.split_at_checked(2 * count)?;
        let marks = marks.as_chunks().0.iter().map(|mark| u16::from_le_bytes(*mark)).collect();
        Some(Checkpoint { marks, names: names.to_vec(), ..checkpoint })
    }
}

/// The number of objects in a group that shares a mark.
fn at_once(num_objects: u64) -> u64 {
    num_objects.div_ceil(MAX_MARKS).max(1)
}

/// The names of classes, in Deflate. `None`: they are too long to be kept.
pub(super) fn packed(names: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for name in names {
        put_string(&mut all, name);
        if all.len() > MAX_NAMES_BYTES {
            return None;
        }
    }
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&all).ok()?;
    encoder.finish().ok().filter(|packed| packed.len() <= MAX_PACKED_BYTES)
}

/// The names in `packed`, which may have other bytes behind them. `None`: it has none.
fn unpacked(packed: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    DeflateDecoder::new(packed).take(MAX_NAMES_BYTES as u64).read_to_end(&mut all).ok()?;
    let mut from = Cursor::new(CHECKPOINT.what, &all);
    let mut names = Vec::new();
    while from.len() > 0 {
        names.push(from.string().ok()?.to_vec());
    }
    Some(names)
}

/// On namespace 0, between the first superblock copy and the journal.
pub(super) const CHECKPOINT: Block =
    Block { what: "checkpoint of an import", magic: *b"DLFSCKPT", at: 4 << 10, len: 12 << 10 };

/// The longest JSON of two points.
const JSON_BYTES: usize = 768;
/// Maximum number of marks, which are behind the JSON.
const MAX_MARKS: u64 = 1600;
/// Maximum length of the names of classes in Deflate, which are behind the marks.
const MAX_PACKED_BYTES: usize = 8 << 10;
/// Maximum length of a list of names. It also limits the memory for decompressing what the media hold.
const MAX_NAMES_BYTES: usize = 1 << 20;

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

    #[test]
    fn a_checkpoint_reads_back_and_every_flipped_bit_is_seen() {
        let objects = list(5, None);
        let mut checkpoint = Checkpoint::new(&journal(), "tar", &objects);
        let names = numbered(25);
        for samples in [10, 20, 30] {
            let point = objects.point(samples, place(samples / 10), samples - 10);
            checkpoint.push(point, packed(&names));
        }
        let bytes = checkpoint.encode();
        let found = Checkpoint::parse(&bytes).unwrap();
        assert_eq!(found.encode(), bytes);
        assert_eq!(found.classes_of(&found.points[0]).unwrap(), names[..20]);
        assert_eq!(found.classes_of(&Point { classes: 26, ..found.points[0] }), None);
        assert_eq!(found.classes_of(&Point { classes: 0, ..found.points[0] }), Some(Vec::new()));
        let samples: Vec<u64> = found.points.iter().map(|point| point.samples).collect();
        assert_eq!(samples, [30, 20], "the newest, and the one before it");
        for bit in (0..bytes.len() * 8).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Checkpoint::parse(&damaged).is_none(), "bit {bit}");
        }
        assert!(Checkpoint::parse(&bytes[..CHECKPOINT.len - 1]).is_none());
    }

    #[test]
    fn it_counts_only_for_its_import() {
        let objects = list(5, None);
        let mut checkpoint = Checkpoint::new(&journal(), "tar", &objects);
        checkpoint.push(objects.point(10, place(1), 0), None);
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
            checkpoint.push(objects.point(10, place(input), 0), None);
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
        let point = Point { samples: most, place, classes: most, objects: most };
        let marks = vec![7; MAX_MARKS as usize];
        let points = vec![point, point];
        let names = vec![5; MAX_PACKED_BYTES];
        let checkpoint = Checkpoint {
            import: most,
            num_objects: MAX_MARKS,
            points,
            marks,
            names,
            space: String::new(),
        };
        assert!(serde_json::to_vec(&checkpoint).unwrap().len() <= JSON_BYTES);
        let bytes = checkpoint.encode();
        assert_eq!(Checkpoint::parse(&bytes).unwrap().encode(), bytes);
    }

    #[test]
    fn a_point_of_which_only_the_first_block_arrived_is_whole() {
        let mut checkpoint = Checkpoint::new(&journal(), "tar", &list(2000, None));
        let names = packed(&numbered(1000));
        checkpoint.push(list(2000, None).point(9, place(1), 1000), names.clone());
        let before = checkpoint.encode();
        checkpoint.push(list(2000, None).point(1 << 60, place(1999), 1000), names);
        let after = checkpoint.encode();
        assert!(after[4096..].iter().any(|&byte| byte != 0), "names lie behind the first block");
        let torn = [&after[..4096], &before[4096..]].concat();
        assert_eq!(Checkpoint::parse(&torn).unwrap().points[0].samples, 1 << 60);
    }

    fn numbered(count: u64) -> Vec<Vec<u8>> {
        (0..count).map(|at| format!("n{:08}", at * 7919).into_bytes()).collect()
    }

    #[test]
    fn names_of_classes_read_back_in_their_order() {
        let names = [numbered(1000), vec![Vec::new(), vec![b'x'; 9000]]].concat();
        let bytes = packed(&names).unwrap();
        assert_eq!(unpacked(&[&bytes[..], &[0; 99]].concat()), Some(names));
        assert_eq!(unpacked(&bytes[..bytes.len() / 2]), None);
    }

    #[test]
    fn names_of_classes_that_have_no_room_are_not_kept() {
        assert_eq!(packed(&numbered(1 << 20)), None);
        assert_eq!(packed(&[vec![0; 1 << 21]]), None);
    }
}
