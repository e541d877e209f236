//! Splits: divide the samples of a data set into parts by a keyed hash of each sample.

use super::file::check_name;
use super::not_loaded;
use crate::directory::Directory;
use dlfs_base::error::{Error, Result, invalid};
use dlfs_base::permutation::Key;
use dlfs_base::units::SampleId;

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
    /// Name and share of each part; the shares sum to 1.
    shares: Vec<(String, f64)>,
    seed: u64,
    by: SplitBy,
}

impl Split {
    /// A split into `shares`. If there is a single share below 1, not called `rest`, a second part called `rest` is
    /// added.
    ///
    /// # Errors
    /// There are no shares, a share is 0, negative or more than 1, their sum is not 1, or a name is invalid or used
    /// twice.
    pub fn new(mut shares: Vec<(String, f64)>, seed: u64, by: SplitBy) -> Result<Split> {
        let refuse = |why: String| Err(no_shares(why));
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
            let list = list(&shares, ", ");
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
        let by = match self.by {
            SplitBy::Id => "id",
            SplitBy::Name => "name",
            SplitBy::Folder => "folder",
        };
        let shares = list(&self.shares, ",");
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

    /// The hash of a sample's name, or of its folder.
    fn hash_of_name(&self, name: &[u8]) -> u64 {
        let folder = name.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let hashed = if self.by == SplitBy::Folder { &name[..folder] } else { name };
        xxhash_rust::xxh3::xxh3_64_with_seed(hashed, self.key.word())
    }
}

/// The parts and their shares as text.
fn list(shares: &[(String, f64)], separator: &str) -> String {
    let shares = shares.iter().map(|(name, share)| format!("{name}={share}"));
    shares.collect::<Vec<_>>().join(separator)
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
pub(super) fn shown(share: f64) -> f64 {
    (share * 1e10).round() / 1e10
}

#[cfg(test)]
mod tests {
    use super::*;

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
