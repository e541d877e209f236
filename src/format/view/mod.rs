//! Views: a part of the samples of one generation, chosen by an expression, by ids, or by a keyed split.
//!
//! A [`View`] is a set of ids of one image and generation, with a hash. [`View::directory`] makes a
//! [`Directory`] of it, in which all other samples are marked as deleted; columns and names are
//! shared. So everything that takes a directory takes a view: orders, shares of ranks, tiers, peers, listings. The
//! checkpoint of a run contains the hash, so that a run over another view refuses the checkpoint.
//!
//! A view belongs to one generation, since orders depend on the number of samples. To get the same view of a later
//! generation, make it again: samples keep their ids, so an expression selects the same samples, and a
//! [`split`](Split) puts each sample into the same part, since the part depends only on a keyed hash of the sample.
//!
//! # What it is not
//! It reads no samples and no files: `dataset` loads and saves [`ViewFile`]s. Views are not stored on the image.
//!
//! Read this file first, then `filter.rs` (the expression language, which `text.rs` parses; `glob.rs` matches patterns)
//! and `file.rs` (the format of a view file).

mod file;
mod filter;
mod glob;
mod text;

use file::check_name;

use crate::directory::{Directory, ViewMark};
use crate::format::{FormatError, Uuid};
use dlfs_base::error::{Error, ErrorKind, Result, ensure, invalid};
use dlfs_base::permutation::Key;
use dlfs_base::units::{Generation, SampleId};

pub use crate::directory::IdSet;
pub use file::{NamedView, VIEW_HEADER_BYTES, ViewFile};
pub use filter::Filter;

/// A nonempty set of samples of one generation of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    image: Uuid,
    generation: Generation,
    ids: IdSet,
    splits: u32,
    hash: [u8; 16],
}

impl View {
    /// The view of `ids`, which must be live samples of `directory`.
    ///
    /// # Errors
    /// There are no ids; or an id is not a live sample of `directory`.
    pub fn of_ids(directory: &Directory, ids: impl IntoIterator<Item = SampleId>) -> Result<View> {
        let mut set = IdSet::new(directory.num_samples());
        for id in ids {
            if !directory.is_live(id) {
                return Err(no_sample(id, directory.num_samples()));
            }
            set.insert(id.0);
        }
        View::of_set(directory, set)
    }

    /// The view of all samples of `directory`, which may be a view itself.
    ///
    /// # Errors
    /// `directory` has no live samples.
    pub fn whole(directory: &Directory) -> Result<View> {
        View::of_set(directory, directory.live_ids())
    }

    /// The view of the samples of `directory` for which `filter` holds. The filter must have been parsed for
    /// this directory. Takes tens of nanoseconds a sample, and more if names are compared.
    ///
    /// # Errors
    /// The filter holds for no sample; or it compares names, and they are not loaded.
    pub fn select(directory: &Directory, filter: &Filter) -> Result<View> {
        let mut set = directory.live_ids();
        filter.restrict(directory, &mut set)?;
        View::of_set(directory, set).map_err(|error| {
            error.hint(format!("no sample fits the expression `{}`", filter.text()))
        })
    }

    /// Divides the samples of `directory` into parts, one for each share of `split`.
    ///
    /// # Errors
    /// A part has no sample; or the split hashes names, and they are not loaded.
    pub fn split(directory: &Directory, split: &Split) -> Result<Vec<View>> {
        let splits = directory.view().map_or(0, |mark| mark.splits);
        let splitter = Splitter::new(split, splits);
        let mut parts = vec![IdSet::new(directory.num_samples()); split.shares().len()];
        let mut name = Vec::new();
        for id in directory.live_ids().iter() {
            parts[splitter.part_of(directory, SampleId(id), &mut name)?].insert(id);
        }
        let parts = parts.into_iter().zip(split.shares());
        let view = |(set, (part, share)): (IdSet, &(String, f64))| {
            View::of_splits(directory, set, splits + 1).map_err(|_| {
                let share = shown(*share);
                let of = directory.num_live();
                invalid(format!("part {part}, a share of {share}, has none of {of} samples"))
                    .hint("take a larger share, or another seed")
            })
        };
        parts.map(view).collect()
    }

    fn of_set(directory: &Directory, set: IdSet) -> Result<View> {
        let splits = directory.view().map_or(0, |mark| mark.splits);
        View::of_splits(directory, set, splits)
    }

    fn of_splits(directory: &Directory, ids: IdSet, splits: u32) -> Result<View> {
        ensure(!ids.is_empty(), || {
            format!("none of {} samples is selected", directory.num_live())
        })?;
        Ok(View::new(directory.uuid(), directory.generation(), ids, splits))
    }

    fn new(image: Uuid, generation: Generation, ids: IdSet, splits: u32) -> View {
        let hash = hash(image, generation, &ids);
        View { image, generation, ids, splits, hash }
    }

    /// UUID of the image.
    pub fn image(&self) -> Uuid {
        self.image
    }

    /// The generation of the image.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The ids of the samples.
    pub fn ids(&self) -> &IdSet {
        &self.ids
    }

    /// The number of samples; never 0.
    pub fn len(&self) -> u64 {
        self.ids.count()
    }

    /// Always returns false: no view is empty.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// A hash of image, generation and ids: views with the same hash have the same samples.
    pub fn hash(&self) -> [u8; 16] {
        self.hash
    }

    /// The directory of only the view's samples. `directory` must be of the same image and generation; it may be a view
    /// itself. Takes tens of nanoseconds for each sample in the view, or for each sample not in it if those are fewer.
    ///
    /// # Errors
    /// The view is of another image or generation; or `directory` lacks a sample of the view.
    pub fn directory(&self, directory: &Directory) -> Result<Directory> {
        if self.image != directory.uuid() {
            return Err(other_image(self.image, directory.uuid()));
        }
        let view = self.generation;
        let open = directory.generation();
        if view != open || self.ids.limit() != directory.num_samples() {
            return Err(other_generation(view, open));
        }
        let mut absent = self.ids.clone();
        absent.remove_all(&directory.live_ids());
        if let Some(id) = absent.iter().next() {
            return Err(no_sample(SampleId(id), directory.num_samples()));
        }
        let mark = ViewMark { hash: self.hash, splits: self.splits };
        Ok(directory.viewed(&self.ids, mark))
    }
}

fn hash(Uuid(image): Uuid, Generation(generation): Generation, ids: &IdSet) -> [u8; 16] {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(&image);
    hasher.update(&generation.to_le_bytes());
    hasher.update(&ids.limit().to_le_bytes());
    ids.words().iter().for_each(|word| hasher.update(&word.to_le_bytes()));
    hasher.digest128().to_be_bytes()
}

fn no_sample(id: SampleId, num_samples: u64) -> Error {
    let text = if id.0 < num_samples {
        format!("there is no sample {id}: it is deleted, or not in the view that was open")
    } else {
        format!("there is no sample {id}: ids are below {num_samples}")
    };
    Error::new(ErrorKind::NotFound, text)
}

fn other_image(view: Uuid, open: Uuid) -> Error {
    invalid(format!("the view is of image {view}, and this is image {open}"))
}

fn other_generation(view: Generation, open: Generation) -> Error {
    let text = format!("the view is of generation {view}, and the image is at generation {open}");
    Error::new(ErrorKind::Stale, text).hint(
        "select or split again at this generation: ids keep their samples, and each stays in its part",
    )
}

/// The error if names cannot be read. They are not loaded: loading verifies their checksum, so only names of a forged
/// image can be damaged here.
fn not_loaded(_: FormatError) -> Error {
    invalid("the names of the samples are not loaded")
}

/// The property of a sample that a split hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum SplitBy {
    /// The id: it stays when samples are appended, deleted and purged
    ///
    /// A new import assigns new ids.
    #[default]
    Id,
    /// The name: it also stays in a new import
    Name,
    /// The folder of the name: all samples of a folder are in one part
    Folder,
}

/// The definition of a split: the name and share of each part, the seed, and the hashed property.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    shares: Vec<(String, f64)>,
    seed: u64,
    by: SplitBy,
}

impl Split {
    /// A split into `shares`. If there is a single share below 1, not called `rest`, a second part called `rest` is
    /// added.
    ///
    /// # Errors
    /// There are no shares, a share is not above 0 or above 1, their sum is not 1, or a name is invalid or used twice.
    pub fn new(shares: Vec<(String, f64)>, seed: u64, by: SplitBy) -> Result<Split> {
        let refuse = |why: String| Err(no_shares(why));
        let mut shares = shares;
        for (at, (name, share)) in shares.iter().enumerate() {
            check_name(name).map_err(no_shares)?;
            if !(*share > 0.0 && *share <= 1.0) {
                return refuse(format!(
                    "the share of part {name} is above 0 and at most 1, not {share}"
                ));
            }
            if shares[..at].iter().any(|(other, _)| other == name) {
                return refuse(format!("two parts of the split are called {name}"));
            }
        }
        if let [(name, share)] = &shares[..]
            && *share < 1.0
            && name != REST
        {
            let rest = 1.0 - share;
            shares.push((REST.to_owned(), rest));
        }
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        if (sum - 1.0).abs() > TOLERANCE {
            let list = shares.iter().map(|(name, share)| format!("{name}={share}"));
            let list = list.collect::<Vec<_>>().join(", ");
            let sum = shown(sum);
            return refuse(format!("the shares of a split sum to 1, and these to {sum}: {list}"));
        }
        Ok(Split { shares, seed, by })
    }

    /// Parses a split such as `train=0.9,val=0.1`.
    ///
    /// # Errors
    /// `text` is not a valid split.
    pub fn parse(text: &str, seed: u64, by: SplitBy) -> Result<Split> {
        let share = |part: &str| {
            let (name, share) = part.split_once('=')?;
            Some((name.trim().to_owned(), share.trim().parse().ok()?))
        };
        let refuse = |part| no_shares(format!("`{part}` is no part of a split, such as train=0.9"));
        let shares = text.split(',').map(|part| share(part).ok_or_else(|| refuse(part)));
        Split::new(shares.collect::<Result<_, _>>()?, seed, by)
    }

    /// Name and share of each part.
    pub fn shares(&self) -> &[(String, f64)] {
        &self.shares
    }

    /// The property of a sample that is hashed.
    pub fn by(&self) -> SplitBy {
        self.by
    }

    /// Describes part `part` of the split, for a view file.
    pub fn describe(&self, part: &str) -> String {
        let shares = self.shares.iter().map(|(name, share)| format!("{name}={share}"));
        let by = match self.by {
            SplitBy::Id => "id",
            SplitBy::Name => "name",
            SplitBy::Folder => "folder",
        };
        let shares = shares.collect::<Vec<_>>().join(",");
        format!("{part} of {shares}, seed {}, by {by}", self.seed)
    }
}

/// Computes the part of each sample.
///
/// The function is frozen; `tests/golden/views.txt` pins it:
/// - key = `Key::derive(seed, ["split", splits])`, where `splits` is the number of earlier splits that led to the data
///   set. So a split of a split is independent of the first one, even with the same seed.
/// - h = `key.with(id).word()`, or XXH3-64 of the name or folder with seed `key.word()`.
/// - The sample is in the first part for which the sum of shares, up to and including the part's own, exceeds h / 2^64;
///   or in the last part.
#[derive(Debug, Clone)]
pub struct Splitter {
    key: Key,
    by: SplitBy,
    /// The end of each part's range of hashes, except the last part's.
    ends: Vec<u64>,
}

impl Splitter {
    /// A splitter for a data set that is the result of `splits` earlier splits.
    pub fn new(split: &Split, splits: u32) -> Splitter {
        let key = Key::derive(split.seed, &[LABEL, splits.into()]);
        let mut sum = 0.0;
        let (_, but_last) = split.shares.split_last().expect("a split has a part");
        let ends = but_last.iter().map(|(_, share)| {
            sum += share;
            (sum * TWO_TO_64) as u64 // saturates
        });
        Splitter { key, by: split.by, ends: ends.collect() }
    }

    /// The index of the sample's part; `name` is scratch memory.
    ///
    /// # Errors
    /// The split hashes names, and they are not loaded.
    pub fn part_of(
        &self,
        directory: &Directory,
        id: SampleId,
        name: &mut Vec<u8>,
    ) -> Result<usize> {
        let hash = match self.by {
            SplitBy::Id => self.key.with(id.0).word(),
            SplitBy::Name | SplitBy::Folder => {
                directory.name_into(id, name).map_err(not_loaded)?;
                self.hash_of_name(name)
            }
        };
        Ok(self.ends.partition_point(|&end| end <= hash))
    }

    fn hash_of_name(&self, name: &[u8]) -> u64 {
        let folder = name.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let hashed = if self.by == SplitBy::Folder { &name[..folder] } else { name };
        xxhash_rust::xxh3::xxh3_64_with_seed(hashed, self.key.word())
    }
}

fn no_shares(why: String) -> Error {
    invalid(why).hint("write the shares as in train=0.9,val=0.1")
}

/// The name of the second part if only one share is given.
const REST: &str = "rest";

/// Tolerance of the sum of shares: decimal fractions are not exact in binary.
const TOLERANCE: f64 = 1e-9;

/// The number of hashes of 64 bits.
const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

/// Domain separator for keys of splits: "split" in ASCII.
const LABEL: u64 = u64::from_be_bytes(*b"\0\0\0split");

/// A share rounded for messages: sums and differences of decimal fractions are not exact in binary.
fn shown(share: f64) -> f64 {
    (share * 1e10).round() / 1e10
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryBuilder;
    use crate::format::{ImageLayout, Pack};

    #[test]
    fn a_view_of_another_image_or_generation_is_refused() {
        let directory = |uuid| {
            let layout = ImageLayout::new(Uuid([uuid; 16]), 1 << 20, Pack::Tight, 1).unwrap();
            DirectoryBuilder::new(layout).finish(Generation(1), 0).unwrap()
        };
        let one = directory(1);
        let two = directory(2);
        assert_eq!(View::whole(&one).unwrap_err().to_string(), "none of 0 samples is selected");
        let view = View::new(one.uuid(), one.generation(), IdSet::new(0), 0);
        let error = view.directory(&two).unwrap_err();
        assert!(error.to_string().contains("is of image"), "{error}");
        let view = View::new(one.uuid(), Generation(one.generation().0 + 1), IdSet::new(0), 0);
        assert_eq!(view.directory(&one).unwrap_err().kind(), ErrorKind::Stale);
    }

    fn of(text: &str) -> Result<Split> {
        Split::parse(text, 7, SplitBy::Id)
    }

    #[test]
    fn shares_that_do_not_sum_to_1_are_refused_and_a_single_one_leaves_a_rest() {
        let why = |text: &str| of(text).unwrap_err().to_string();
        assert!(why("train=0.9,val=0.05").contains("sum to 1, and these to 0.95"));
        assert!(why("train=0.9,val=0.2").contains("train=0.9, val=0.2"));
        assert!(
            why("train=0.7,val=0.2").contains("these to 0.9: "),
            "without the error of 64 bits"
        );
        assert!(why("train=0").contains("above 0"), "{}", why("train=0"));
        assert!(why("a=NaN").contains("above 0") && why("a=1.5").contains("at most 1"));
        assert!(why("a=0.5,a=0.5").contains("called a"));
        assert!(why("train").contains("`train`") && why("a=x").contains("`a=x`"));
        assert!(why("a:b=1").contains("name") && why("=1").contains("name"));
        assert!(of("a=0.7,b=0.2,c=0.1").is_ok() && of("all=1").is_ok());
        let split = of("train=0.9").unwrap();
        assert_eq!(split.shares()[1].0, "rest");
        assert!(why("rest=0.9").contains("sum to 1"));
    }

    #[test]
    fn hashes_divide_as_the_shares_say_and_a_second_split_is_independent() {
        let splits =
            [0, 1].map(|splits| Splitter::new(&of("a=0.25,b=0.5,c=0.25").unwrap(), splits));
        let part = |splitter: &Splitter, id| {
            let hash = splitter.key.with(id).word();
            splitter.ends.partition_point(|&end| end <= hash)
        };
        let mut counts = [[0; 3]; 3];
        for id in 0..100_000 {
            counts[part(&splits[0], id)][part(&splits[1], id)] += 1;
        }
        let expected = [[6250, 12500, 6250], [12500, 25000, 12500], [6250, 12500, 6250]];
        for (count, expected) in counts.iter().flatten().zip(expected.iter().flatten()) {
            let deviation = f64::from(*count - expected) / f64::from(*expected).sqrt();
            assert!(deviation.abs() < 4.0, "{counts:?}");
        }
    }

    #[test]
    fn samples_of_a_folder_stay_together_and_names_do_not() {
        let by = |by| Splitter::new(&Split::parse("a=0.5,b=0.5", 7, by).unwrap(), 0);
        let folder = by(SplitBy::Folder);
        let name = by(SplitBy::Name);
        assert_eq!(folder.hash_of_name(b"x/y/1"), folder.hash_of_name(b"x/y/2"));
        assert_ne!(folder.hash_of_name(b"x/y/1"), folder.hash_of_name(b"x/z/1"));
        assert_ne!(name.hash_of_name(b"x/y/1"), name.hash_of_name(b"x/y/2"));
    }
}
