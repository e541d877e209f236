//! Weighted order: draws samples in proportion to weights, in a new sequence each epoch.
//!
//! With replacement, the sample at a position depends only on the key and the position, through an alias table
//! (Walker 1977, Vose 1991): 8 bytes per sample. If weights belong to labels, a class is drawn first and then one
//! of its samples: 4 bytes per sample and 12 per class. Without replacement, an epoch is a weighted shuffle: each
//! sample draws an exponentially distributed number and divides it by its weight; the smallest results come first
//! (Efraimidis and Spirakis 2006). This sorts all samples at the start of each epoch, and keeps 4 bytes per sample,
//! besides 8 for its weight.
//!
//! In both cases the state of a run is one counter, as in other orders: the sequence of an epoch depends only on
//! weights, seed and epoch. All arithmetic is that of IEEE 754 without functions of the C library, so the sequence is
//! the same on all machines.
//!
//! The order is not stratified: a class of weight 1/10 gets a tenth of an epoch on average, as with
//! `torch.utils.data.WeightedRandomSampler`. For exact shares, use a [mixture](super::mixture) of views.

use std::collections::BTreeMap;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::spec::{HexId, MAX_EPOCH_SIZE, OrderKind, OrderSpec};
use dlfs_base::error::{Error, Result, ensure, invalid};
use dlfs_base::permutation::Key;

/// The weight of each sample in weighted order.
///
/// Only proportions matter: weights 1 and 3 are equivalent to 0.5 and 1.5. A sample of weight 0 is never drawn.
#[derive(Debug)]
pub struct Weights {
    /// The number of weights, including those that are 0.
    len: u64,
    drawn: Drawn,
    kind: OrderKind,
}

/// Tables that draw samples, as ranks among the samples of the data set or view.
#[derive(Debug)]
enum Drawn {
    /// With replacement, by the weight of each sample.
    Samples(Alias),
    /// With replacement, by the weight of each label.
    Classes(Classes),
    /// Without replacement: the weight of each sample, relative to the largest weight.
    Once(Vec<f64>),
}

/// Draws a class, and then one of its samples.
#[derive(Debug)]
struct Classes {
    alias: Alias,
    /// The index in `members` at which each class starts, and the end.
    starts: Vec<u32>,
    /// The samples, class after class.
    members: Vec<u32>,
}

/// The way samples are drawn by their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draws {
    /// Allows a sample to be drawn several times in an epoch.
    pub replacement: bool,
    /// The number of samples in an epoch. `None`: that of the data set or view; without replacement, the number of
    /// samples with a weight above 0.
    pub epoch_size: Option<u64>,
}

impl Default for Draws {
    fn default() -> Draws {
        Draws { replacement: true, epoch_size: None }
    }
}

/// Weights of labels.
#[derive(Debug, Clone, PartialEq)]
pub enum LabelWeights {
    /// Each label gets the same share of the draws, whatever its number of samples.
    Balanced,
    /// The weight of each sample with this label.
    Each(BTreeMap<i64, f64>),
}

impl Weights {
    /// Weights for each of the `len` samples of a data set or view, in the order of their ids.
    ///
    /// # Errors
    /// A weight is negative or not finite. There are not `len` weights, or too many. All weights are 0. The epoch's
    /// size is out of range.
    pub fn of_samples(len: u64, weights: &[f64], draws: Draws) -> Result<Weights> {
        check_len(len)?;
        if weights.len() as u64 != len {
            return Err(not_one_each(weights.len() as u64, len));
        }
        let bad = weights.iter().position(|weight| !is_weight(*weight));
        if let Some(at) = bad {
            return Err(no_weight(format_args!("the sample at index {at}"), weights[at]));
        }
        let mut hasher = Xxh3::new();
        hasher.update(b"samples");
        weights.iter().for_each(|weight| hasher.update(&weight.to_bits().to_le_bytes()));
        let weights = relative(weights.to_vec())?;
        let num_drawn = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
        let drawn = if draws.replacement {
            Drawn::Samples(Alias::new(&weights))
        } else {
            Drawn::Once(weights)
        };
        Weights::new((len, num_drawn), drawn, draws, &hasher)
    }

    /// Weights by label. `labels` has the label of each of the `len` samples of a data set or view, in the order of
    /// their ids.
    ///
    /// # Errors
    /// A sample has no label. A label with a weight has no sample. A sample's label has no weight. A weight is
    /// negative or not finite, or not finite for all samples of its label together. And those of
    /// [`Weights::of_samples`].
    pub fn of_labels(
        len: u64,
        labels: impl IntoIterator<Item = Option<i64>>,
        weights: &LabelWeights,
        draws: Draws,
    ) -> Result<Weights> {
        check_len(len)?;
        let mut members: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        let mut given = 0;
        for (label, sample) in labels.into_iter().zip(0_u64..) {
            let label = label.ok_or_else(|| {
                let text = format!("the sample at index {sample} has no label, so it has no weight");
                invalid(text).hint(
                    "give weights by sample, or open a view of the samples with labels (dlfs select)",
                )
            })?;
            members.entry(label).or_default().push(sample as u32);
            given = sample + 1;
        }
        if given != len {
            return Err(not_one_each(given, len));
        }
        if let LabelWeights::Each(each) = weights {
            check_labels(each, &members)?;
        }
        let shares: Vec<f64> = members
            .iter()
            .map(|(label, members)| match weights {
                LabelWeights::Balanced => 1.0,
                LabelWeights::Each(each) => {
                    each.get(label).copied().unwrap_or(0.0) * members.len() as f64
                }
            })
            .collect();
        let mut hasher = Xxh3::new();
        hasher.update(b"labels");
        for ((label, members), share) in members.iter().zip(&shares) {
            hasher.update(&label.to_le_bytes());
            hasher.update(&share.to_bits().to_le_bytes());
            hasher.update(&(members.len() as u64).to_le_bytes());
            members.iter().for_each(|member| hasher.update(&member.to_le_bytes()));
        }
        let shares = relative(shares)?;
        let drawn_of = |(members, share): (&Vec<u32>, &f64)| {
            if *share > 0.0 { members.len() as u64 } else { 0 }
        };
        let num_drawn = members.values().zip(&shares).map(drawn_of).sum();
        let drawn = if draws.replacement {
            Drawn::Classes(Classes::new(members, &shares))
        } else {
            Drawn::Once(of_members(len, &members, &shares))
        };
        Weights::new((len, num_drawn), drawn, draws, &hasher)
    }

    fn new(
        (len, num_drawn): (u64, u64),
        drawn: Drawn,
        Draws { replacement, epoch_size }: Draws,
        hasher: &Xxh3,
    ) -> Result<Weights> {
        let epoch_size = epoch_size.unwrap_or(if replacement { len } else { num_drawn });
        let most = if replacement { MAX_EPOCH_SIZE } else { num_drawn };
        if !(1..=most).contains(&epoch_size) {
            let text = format!("an epoch of {epoch_size} samples: ");
            return Err(if replacement {
                invalid(format!("{text}it has from 1 to {most}"))
            } else {
                let what = "those of a weight above 0";
                invalid(format!("{text}without replacement it has from 1 to {most}, {what}"))
                    .hint("draw with replacement, or take shorter epochs")
            });
        }
        let weights = HexId(hasher.digest128().to_be_bytes());
        let kind = OrderKind::Weighted { weights, replacement, epoch_size };
        Ok(Weights { len, drawn, kind })
    }

    /// The kind of order that draws by these weights; it contains their hash.
    pub fn kind(&self) -> OrderKind {
        self.kind
    }

    /// The order that draws by these weights, with this seed.
    pub fn order(&self, seed: u64) -> OrderSpec {
        OrderSpec { kind: self.kind, seed }
    }

    /// The number of weights: one for each sample of the data set or view.
    pub fn num_samples(&self) -> u64 {
        self.len
    }

    /// Memory between epochs in bytes. Without replacement, an epoch takes 4 more bytes per sample, and 16 while it
    /// begins.
    pub fn memory_bytes(&self) -> u64 {
        let len = match &self.drawn {
            Drawn::Samples(alias) => size_of_val(&alias.slots[..]),
            Drawn::Classes(Classes { alias, starts, members }) => {
                size_of_val(&alias.slots[..]) + size_of_val(&starts[..]) + size_of_val(&members[..])
            }
            Drawn::Once(weights) => size_of_val(&weights[..]),
        };
        len as u64
    }
}

impl Classes {
    fn new(classes: BTreeMap<i64, Vec<u32>>, shares: &[f64]) -> Classes {
        let mut starts = vec![0];
        let mut members = Vec::with_capacity(classes.values().map(Vec::len).sum());
        for class in classes.into_values() {
            members.extend(class);
            starts.push(members.len() as u32);
        }
        Classes { alias: Alias::new(shares), starts, members }
    }

    /// The sample that the random number `word` and the key `second` draw.
    #[inline]
    fn draw(&self, word: u64, second: Key) -> u64 {
        let class = self.alias.draw(word) as usize;
        let first = self.starts[class];
        let end = self.starts[class + 1];
        let nth = (u128::from(second.word()) * u128::from(end - first)) >> 64;
        self.members[first as usize + nth as usize].into()
    }
}

/// The sequence of one epoch: position -> rank of a sample.
#[derive(Debug, Clone)]
pub(super) struct Weighted {
    pub(super) weights: Arc<Weights>,
    key: Key,
    /// Without replacement: the samples of the epoch.
    shuffled: Option<Arc<[u32]>>,
}

impl Weighted {
    pub(super) fn new(weights: &Arc<Weights>, key: Key) -> Weighted {
        let shuffled = match &weights.drawn {
            Drawn::Once(each) => {
                Some(shuffled(each, weights.kind.epoch_len(weights.len), key).into())
            }
            Drawn::Samples(_) | Drawn::Classes(_) => None,
        };
        Weighted { weights: Arc::clone(weights), key, shuffled }
    }

    /// The rank of the sample at `position`; the position is below the epoch's size.
    #[inline]
    pub(super) fn rank_at(&self, position: u64) -> u64 {
        if let Some(shuffled) = &self.shuffled {
            return shuffled[position as usize].into();
        }
        let at = self.key.with(position);
        match &self.weights.drawn {
            Drawn::Classes(classes) => classes.draw(at.word(), at.with(1)),
            Drawn::Samples(alias) => alias.draw(at.word()),
            Drawn::Once(_) => 0, // unreachable: `shuffled` is set
        }
    }
}

/// Checks that weights are possible for `len` samples.
fn check_len(len: u64) -> Result<()> {
    ensure(len > 0, || ALL_ZERO)?;
    ensure(len <= MAX_SAMPLES, || format!("{len} samples: weights are for at most {MAX_SAMPLES}"))
}

/// Checks that each weight is valid, and that weights and samples have the same labels.
fn check_labels(weights: &BTreeMap<i64, f64>, members: &BTreeMap<i64, Vec<u32>>) -> Result<()> {
    for (&label, &weight) in weights {
        if !is_weight(weight) {
            return Err(no_weight(format_args!("label {label}"), weight));
        }
        ensure(members.contains_key(&label), || {
            format!("no sample has label {label}, for which a weight is given")
        })?;
    }
    for (&label, members) in members {
        if !weights.contains_key(&label) {
            let sample = members.first().copied().unwrap_or(0);
            let text = format!(
                "label {label}, which the sample at index {sample} has, is given no weight"
            );
            return Err(invalid(text).hint("0 leaves the samples of a label out"));
        }
    }
    Ok(())
}

fn is_weight(weight: f64) -> bool {
    weight.is_finite() && weight >= 0.0
}

fn no_weight(of: std::fmt::Arguments<'_>, weight: f64) -> Error {
    invalid(format!("the weight of {of} is {weight}: weights are finite numbers, at least 0"))
}

/// The error for a number of weights or labels that differs from the number of samples.
pub fn not_one_each(given: u64, samples: u64) -> Error {
    invalid(format!("there are {given} weights for {samples} samples"))
        .hint("give one for each sample of the data set or view that is open, in the order of ids")
}

/// `weights` divided by the largest, so that their sum is finite.
fn relative(mut weights: Vec<f64>) -> Result<Vec<f64>> {
    let most = weights.iter().copied().fold(0.0, f64::max);
    ensure(most > 0.0, || ALL_ZERO)?;
    ensure(most.is_finite(), || TOO_LARGE)?;
    weights.iter_mut().for_each(|weight| *weight /= most);
    Ok(weights)
}

/// The weight of each sample, if the members of each class divide its entry of `shares` equally.
fn of_members(len: u64, members: &BTreeMap<i64, Vec<u32>>, shares: &[f64]) -> Vec<f64> {
    let mut weights = vec![0.0; len as usize];
    for (members, share) in members.values().zip(shares) {
        let weight = share / members.len() as f64;
        members.iter().for_each(|&member| weights[member as usize] = weight);
    }
    weights
}

/// N equal slots; each is divided between its own index and one other index.
#[derive(Debug)]
struct Alias {
    /// By index.
    slots: Vec<AliasSlot>,
}

/// A slot of an [`Alias`].
#[derive(Debug, Clone, Copy)]
struct AliasSlot {
    /// The part of the slot that belongs to its own index, in units of 2^-32. The rest belongs to `other`.
    own: u32,
    /// The other index.
    other: u32,
}

impl Alias {
    /// The table of `weights`: from 0 to 1, the largest being 1; at most 2^32 - 1 of them.
    fn new(weights: &[f64]) -> Alias {
        let sum: f64 = weights.iter().sum();
        let mean = sum / weights.len() as f64;
        let mut left: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let heaviest = weights.iter().position(|weight| *weight == 1.0).unwrap_or(0) as u32;
        let mut slots: Vec<AliasSlot> =
            (0..weights.len() as u32).map(|index| AliasSlot { own: 0, other: index }).collect();
        let mut small = Vec::new();
        let mut large = Vec::new();
        for (&weight, index) in left.iter().zip(0_u32..) {
            if weight < 1.0 { small.push(index) } else { large.push(index) }
        }
        while let (Some(&low), Some(&high)) = (small.last(), large.last()) {
            small.pop();
            let part = left[low as usize];
            // `part` is below 1, so `own` is at most 2^32 - 1; a part of 0 is never drawn.
            slots[low as usize] = AliasSlot { own: (part * UNIT) as u32, other: high };
            left[high as usize] -= 1.0 - part;
            if left[high as usize] < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        // Without rounding errors, nothing would be left in `small`. The slots left keep their own index, unless its
        // weight is 0.
        for low in small {
            if weights[low as usize] == 0.0 {
                slots[low as usize].other = heaviest;
            }
        }
        Alias { slots }
    }

    /// The index that the random number `word` draws.
    #[inline]
    fn draw(&self, word: u64) -> u64 {
        let product = u128::from(word) * self.slots.len() as u128;
        let index = (product >> 64) as u64;
        let within = (product as u64) >> 32;
        let AliasSlot { own, other } = self.slots[index as usize];
        // Without a branch: the outcome cannot be predicted.
        let is_other = u64::from(within >= u64::from(own));
        index ^ ((index ^ u64::from(other)) & is_other.wrapping_neg())
    }
}

/// The first `count` samples of a sequence of draws without replacement: each draw is in proportion to the
/// remaining samples' `weights`. At least `count` weights are above 0.
fn shuffled(weights: &[f64], count: u64, key: Key) -> Vec<u32> {
    let mut drawn: Vec<(u64, u32)> = Vec::with_capacity(weights.len());
    drawn.extend(weights.iter().zip(0_u32..).filter(|(weight, _)| **weight > 0.0).map(
        |(weight, index)| {
            // The bits of non-negative numbers are in the order of the numbers.
            (((0.0 - ln(unit(key.with(index.into()).word()))) / weight).to_bits(), index)
        },
    ));
    let count = count as usize;
    if count < drawn.len() {
        drawn.select_nth_unstable(count);
        drawn.truncate(count);
    }
    drawn.sort_unstable();
    drawn.into_iter().map(|(_, index)| index).collect()
}

/// A number from 2^-53 to 1.
fn unit(word: u64) -> f64 {
    ((word >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// The natural logarithm of a normal number above 0, within 2e-15. Its arithmetic is the same on all machines. The
/// last bit of the C library's logarithm differs between versions, which could change the order of two samples.
fn ln(x: f64) -> f64 {
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(x.to_bits() & MANTISSA | ONE);
    if mantissa > std::f64::consts::SQRT_2 {
        (exponent, mantissa) = (exponent + 1, mantissa / 2.0);
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); its series up to the 19th power is exact enough.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / odd;
    }
    2.0 * s * sum + exponent as f64 * std::f64::consts::LN_2
}

const ALL_ZERO: &str = "no sample has a weight above 0, so none can be drawn";
const TOO_LARGE: &str = "the weights of all samples of a label add up to more than any number";
/// The most samples: entries of tables have 32 bits.
const MAX_SAMPLES: u64 = u32::MAX as u64;

/// The unit of [`AliasSlot::own`].
const UNIT: f64 = (1_u64 << 32) as f64;
/// The bits of the mantissa of an f64.
const MANTISSA: u64 = (1 << 52) - 1;
/// The bits of 1.0.
const ONE: u64 = 1023 << 52;

#[cfg(test)]
mod tests;
