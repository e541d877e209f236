//! The superblocks of all namespaces of an image: which namespaces form the image, which generation is committed, and
//! in which order the superblocks of the next one are written. Pure: the caller reads and writes the blocks.
//!
//! [`SuperblockCopies`] decodes the two copies of one namespace. [`choose`] selects the namespaces that form one image:
//! an address without `?ns=` names a subsystem, whose namespaces may belong to several images. [`select_generation`]
//! selects the committed generation, and lists bad copies. [`commit_steps`] orders the writes that commit a generation.
//!
//! The page of [`format`](super) explains the order of writes, and what a bad copy means.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::format::superblock::{
    COPY_OFFSETS, OTHER_COPY_VOID, SUPERBLOCK_BYTES, Superblock, copy_index, copy_offset,
};
use crate::format::{FormatError, Uuid};
use dlfs_base::error::{Error, ErrorKind, Result, ensure, invalid};
use dlfs_base::units::Generation;

/// The consistent superblocks of all namespaces of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperblockSet {
    /// Superblock of each namespace of the image, in the image's order.
    pub superblocks: Vec<Superblock>,
    /// For each superblock, the index of its namespace in the caller's list, which may be in any order.
    pub given: Vec<usize>,
    /// True if some namespace has a newer copy: an import began to commit but did not finish.
    pub unfinished: bool,
    /// Copies that should hold a superblock but do not, even after a second read.
    pub bad_copies: Vec<BadCopy>,
}

impl SuperblockSet {
    /// The superblock of namespace 0, which is authoritative for the image.
    pub fn superblock(&self) -> &Superblock {
        &self.superblocks[0]
    }

    /// Returns whether the superblock of namespace 0 replaces that of `namespace`, whose copy is bad.
    pub(crate) fn stands_in(&self, namespace: u16) -> bool {
        let offset_bytes = copy_offset(self.superblock().generation);
        let is_own = |copy: &BadCopy| copy.offset_bytes == offset_bytes;
        self.bad_copies.iter().any(|copy| copy.namespace == namespace && is_own(copy))
    }

    /// Checks that each namespace, given by length and address, has at least the used length of its superblock. Without
    /// this check, a read past the end would fail later, and a write could extend a truncated file and hide the loss.
    ///
    /// # Errors
    /// `Corrupt`: a namespace is too short.
    pub fn check_lengths(&self, namespaces: impl IntoIterator<Item = (u64, String)>) -> Result<()> {
        for (superblock, (found, address)) in self.superblocks.iter().zip(namespaces) {
            let need = superblock.used_len_bytes;
            if found < need {
                let text = format!("the image needs {need} bytes here, the namespace has {found}");
                return Err(Error::new(ErrorKind::Corrupt, text)
                    .target(address)
                    .hint("was the file or namespace cut off, or copied in part?"));
            }
        }
        Ok(())
    }

    /// The generation after the opened one, if it may have been committed: its copy on namespace 0 is bad, and no other
    /// namespace proves the contrary ([`BadCopy::may_be_newer`]). A torn write of that copy leaves the same bytes, so
    /// the two cases cannot be distinguished.
    pub fn lost_generation(&self) -> Option<Generation> {
        let is_lost = self.bad_copies.iter().any(|copy| copy.may_be_newer);
        is_lost.then(|| self.superblock().generation.next())
    }
}

/// Selects the committed generation from the superblocks of the namespaces that a user gave as one image,
/// in any order.
///
/// Namespace 0's newest valid copy determines the committed generation; all other namespaces must have it too. A newer
/// copy on another namespace belongs to an import that did not finish, and is ignored. If another namespace's copy of
/// the generation is bad, but not zeroes, the superblock of namespace 0 replaces it.
///
/// # Errors
/// `NotFound`: a namespace has no image. `InvalidArgument`: a namespace is missing, given twice or of another image.
/// Other errors: the superblocks are damaged or contradict each other. Messages that say "of the list" number the
/// namespaces by their index in `given`.
pub fn select_generation(given: &[SuperblockCopies]) -> Result<SuperblockSet> {
    let order = put_in_order(given)?;
    let zero = given[order[0]].newest().expect("put_in_order saw a valid copy");
    let bad_copies = bad_copies(given, &order, zero);
    let mut superblocks = Vec::with_capacity(order.len());
    let mut unfinished = false;
    for &index in &order {
        let newest = given[index].newest().expect("put_in_order saw a valid copy");
        let namespace = newest.namespace;
        let stand_in = Superblock { namespace, used_len_bytes: newest.used_len_bytes, ..*zero };
        let superblock = match given[index].of(zero.generation) {
            Some(superblock) => superblock,
            None if given[index].is_bad_at(zero.generation) => &stand_in,
            None => {
                let expected = zero.generation;
                let found = newest.generation;
                let text = format!(
                    "namespace {namespace} of the image is at generation {found}, the image at {expected}"
                );
                return Err(Error::new(ErrorKind::Corrupt, text)
                    .hint("was one namespace restored from a copy?"));
            }
        };
        // Do not compare the snapshot's location: namespace 0 determines it. A rebuild commits the same generation
        // again with another snapshot and writes namespace 0 last, so other namespaces may name the new one already.
        let same = superblock.layout == zero.layout
            && newest.layout == zero.layout
            && superblock.namespace == namespace
            && superblock.time_ns == zero.time_ns;
        if !same {
            return Err(contradiction(namespace));
        }
        unfinished |= newest.generation > zero.generation;
        superblocks.push(*superblock);
    }
    Ok(SuperblockSet { superblocks, given: order, unfinished, bad_copies })
}

/// For each namespace of the image, its index in `given`. Checks that all are present, none twice, all of one image.
fn put_in_order(given: &[SuperblockCopies]) -> Result<Vec<usize>> {
    let mut newest = Vec::with_capacity(given.len());
    for (index, copies) in given.iter().enumerate() {
        match (copies.newest(), copies.why_not()) {
            (Some(superblock), _) => newest.push(superblock),
            (None, Some(error)) if !copies.is_blank() => {
                return Err(damaged(index, error.clone()));
            }
            _ => {
                let text = format!("namespace {index} of the list holds no dlfs image");
                return Err(Error::new(ErrorKind::NotFound, text).hint(IMPORT));
            }
        }
    }
    let first = newest.first().ok_or_else(|| invalid("no namespace was given"))?;
    let num_namespaces = first.layout.num_namespaces;
    let mut order = vec![None; usize::from(num_namespaces)];
    for (index, superblock) in newest.iter().enumerate() {
        let expected = first.layout.uuid;
        let found = superblock.layout.uuid;
        ensure(expected == found, || {
            format!("namespace {index} of the list belongs to image {found}, others to {expected}")
        })?;
        let namespace = superblock.namespace;
        match order.get_mut(usize::from(namespace)) {
            Some(slot @ None) => *slot = Some(index),
            Some(Some(first)) => {
                return Err(invalid(format!(
                    "namespaces {first} and {index} of the list are both namespace {namespace} of the image"
                )));
            }
            None => return Err(contradiction(namespace)),
        }
    }
    let find = |(namespace, index): (usize, Option<usize>)| {
        index.ok_or_else(|| {
            invalid(format!(
                "the image has {num_namespaces} namespaces; namespace {namespace} was not given"
            ))
            .hint("name all namespaces, separated by commas")
        })
    };
    order.into_iter().enumerate().map(find).collect()
}

/// The two superblock copies of one namespace, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperblockCopies {
    /// Copies A and B: the superblock, or the reason why it is unusable.
    pub copies: [Result<Superblock, FormatError>; 2],
}

impl SuperblockCopies {
    /// Parses the blocks read at [`COPY_OFFSETS`], valid or not. Pass an empty slice for a block past the end of the
    /// namespace.
    pub fn parse(a: &[u8], b: &[u8]) -> SuperblockCopies {
        SuperblockCopies { copies: [parse_copy(a, 0), parse_copy(b, 1)] }
    }

    /// Reads both copies of a namespace of `len_bytes` with `read`. A copy that cannot be read or decoded, and is not
    /// all zeroes, is read once more; if that fails too, the copy is bad.
    ///
    /// `read` gets the offset, and true for a second attempt. It returns the block, or the reason why this block alone
    /// cannot be read.
    ///
    /// # Errors
    /// The outer error of `read`: the namespace as a whole cannot be read.
    pub fn gather<B: Deref<Target = [u8]>, E>(
        len_bytes: u64,
        mut read: impl FnMut(u64, bool) -> Result<Result<B, String>, E>,
    ) -> Result<SuperblockCopies, E> {
        let mut copy = |at: usize| -> Result<_, E> {
            let offset = COPY_OFFSETS[at];
            if offset + SUPERBLOCK_BYTES as u64 > len_bytes {
                return Ok(parse_copy(&[], at));
            }
            let mut attempt = |again| -> Result<_, E> {
                Ok(match read(offset, again)? {
                    Ok(block) => parse_copy(&block, at),
                    Err(why) => Err(FormatError::Unread { what: SUPERBLOCK, why }),
                })
            };
            match attempt(false)? {
                Err(error) if !matches!(error, FormatError::Blank { .. }) => attempt(true),
                found => Ok(found),
            }
        };
        Ok(SuperblockCopies { copies: [copy(0)?, copy(1)?] })
    }

    /// The valid copy of the newest generation; `None` if no copy is valid.
    pub fn newest(&self) -> Option<&Superblock> {
        self.copies.iter().flatten().max_by_key(|copy| copy.generation)
    }

    /// The valid copy of `generation`; `None` if there is none.
    pub fn of(&self, generation: Generation) -> Option<&Superblock> {
        self.copies.iter().flatten().find(|copy| copy.generation == generation)
    }

    /// Returns whether the copy at the offset for `generation` is neither valid nor all zeroes.
    pub fn is_bad_at(&self, generation: Generation) -> bool {
        let copy = &self.copies[copy_index(generation)];
        copy.as_ref().is_err_and(|error| !matches!(error, FormatError::Blank { .. }))
    }

    /// Returns whether neither copy has the superblock magic: the namespace holds no image.
    pub fn is_blank(&self) -> bool {
        self.copies.iter().all(|copy| copy.as_ref().is_err_and(is_no_superblock))
    }

    /// The reason why a copy is not valid, preferably of a copy that has the magic. `None` if both copies are valid.
    pub(crate) fn why_not(&self) -> Option<&FormatError> {
        let mut errors = self.copies.iter().filter_map(|copy| copy.as_ref().err());
        let of_an_image = errors.clone().find(|error| !is_no_superblock(error));
        of_an_image.or_else(|| errors.next())
    }
}

fn parse_copy(bytes: &[u8], at: usize) -> Result<Superblock, FormatError> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Err(FormatError::Blank { what: SUPERBLOCK });
    }
    let superblock = Superblock::parse(bytes)?;
    // A copy at the wrong offset for its generation is a misdirected write: the next commit would not replace it.
    if copy_index(superblock.generation) != at {
        let what = "offset of a superblock copy";
        let found = COPY_OFFSETS[at];
        let expected = copy_offset(superblock.generation);
        return Err(FormatError::Mismatch { what, expected, found });
    }
    Ok(superblock)
}

fn is_no_superblock(error: &FormatError) -> bool {
    matches!(error, FormatError::Magic { .. } | FormatError::Blank { .. })
}

/// A copy that should hold a superblock but does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadCopy {
    /// Index of the namespace in the image.
    pub namespace: u16,
    /// Offset of the copy.
    pub offset_bytes: u64,
    /// The reason why it is bad.
    pub error: FormatError,
    /// True if the copy may have held a newer generation than the opened one.
    pub may_be_newer: bool,
}

impl BadCopy {
    /// Advice for a user who reads generation `opened`: the consequences of this bad copy, and the remedy.
    pub fn advice(&self, opened: Generation) -> String {
        if self.may_be_newer {
            format!(
                "generation {opened} is used, and a newer one may be lost: {self}; `dlfs rebuild` \
                 looks for it and mends the copy"
            )
        } else {
            format!("{self}; the image does without, `dlfs rebuild` mends it")
        }
    }
}

impl std::fmt::Display for BadCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BadCopy { namespace, offset_bytes, error, .. } = self;
        write!(f, "superblock copy at byte {offset_bytes} of namespace {namespace}: {error}")
    }
}

/// The copies that should hold a superblock but do not. `zero` is the committed superblock of namespace 0. `order` has
/// the index in `given` of each namespace of the image.
fn bad_copies(given: &[SuperblockCopies], order: &[usize], zero: &Superblock) -> Vec<BadCopy> {
    let opened = copy_index(zero.generation);
    let other = 1 - opened;
    // The first generation has no other copy; a superblock may declare the other copy void.
    let other_is_void =
        zero.generation == Generation(1) || zero.optional_features & OTHER_COPY_VOID != 0;
    // A commit writes the other namespaces first, so an older copy on one of them proves that namespace 0 did not
    // commit a newer generation.
    let is_older = |copies: &SuperblockCopies| {
        copies.copies[other].as_ref().is_ok_and(|copy| copy.generation < zero.generation)
    };
    let older_exists = order[1..].iter().any(|&index| is_older(&given[index]));
    let mut bad = Vec::new();
    for (namespace, &index) in (0..).zip(order) {
        for at in [opened, other] {
            let Err(error) = &given[index].copies[at] else { continue };
            if at == other && other_is_void && matches!(error, FormatError::Blank { .. }) {
                continue;
            }
            bad.push(BadCopy {
                namespace,
                offset_bytes: COPY_OFFSETS[at],
                error: error.clone(),
                may_be_newer: namespace == 0 && at == other && !older_exists,
            });
        }
    }
    bad
}

/// A connected namespace that may belong to the image.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Superblock copies of the namespace.
    pub copies: SuperblockCopies,
    /// True if the user's address names this namespace with `?ns=`; false if it names only the subsystem.
    pub is_named: bool,
}

/// The error if the candidates hold several images: for each image, the indexes of its candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Several(pub BTreeMap<Uuid, Vec<usize>>);

/// Chooses the candidates to open as one image. Returns their indexes, ascending.
///
/// The first named candidate with a valid superblock selects the image. If there is none, the other candidates must
/// hold at most one image, which is selected. Chosen are:
/// - all named candidates,
/// - the other candidates with the UUID of the image,
/// - the other candidates with damaged superblocks, if namespaces of the image are missing or no image was found: they
///   may be the missing ones, and opening reports the damage.
///
/// An unnamed blank candidate is never chosen.
///
/// # Errors
/// The candidates that are not named hold several images, and no named candidate selects one.
pub fn choose(candidates: &[Candidate]) -> Result<Vec<usize>, Several> {
    let uuid = |candidate: &Candidate| Some(candidate.copies.newest()?.layout.uuid);
    let named = candidates.iter().filter(|candidate| candidate.is_named).find_map(uuid);
    let mut images: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
    for (at, candidate) in candidates.iter().enumerate().filter(|(_, one)| !one.is_named) {
        if let Some(uuid) = uuid(candidate) {
            images.entry(uuid).or_default().push(at);
        }
    }
    let image = match named {
        Some(uuid) => Some(uuid),
        None if images.len() > 1 => return Err(Several(images)),
        None => images.keys().next().copied(),
    };
    let is_of = |candidate: &Candidate| image.is_some() && uuid(candidate) == image;
    let count = candidates.iter().filter(|candidate| is_of(candidate)).count();
    let first = candidates.iter().find(|candidate| is_of(candidate));
    let first = first.and_then(|candidate| candidate.copies.newest());
    let is_whole = first.is_some_and(|one| count >= usize::from(one.layout.num_namespaces));
    let is_damaged = |candidate: &Candidate| {
        !is_whole && candidate.copies.newest().is_none() && !candidate.copies.is_blank()
    };
    let chosen = (0..candidates.len()).filter(|&at| {
        let candidate = &candidates[at];
        candidate.is_named || is_of(candidate) || is_damaged(candidate)
    });
    Ok(chosen.collect())
}

/// One step of a commit. The caller completes each step before the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitStep {
    /// Flush this namespace.
    Flush {
        /// Index in the image.
        namespace: u16,
    },
    /// Write this block.
    Write {
        /// Index in the image.
        namespace: u16,
        /// First byte.
        offset_bytes: u64,
        /// The encoded superblock.
        block: Box<[u8; SUPERBLOCK_BYTES]>,
    },
}

/// The steps that commit a generation whose chunks, record and snapshot are written but not yet flushed.
/// `superblocks` has one entry for each namespace, in the image's order. The last write commits the
/// generation; the last step makes it durable.
pub fn commit_steps(superblocks: &[Superblock]) -> Vec<CommitStep> {
    let flush = |superblock: &Superblock| CommitStep::Flush { namespace: superblock.namespace };
    let write = |superblock: &Superblock| CommitStep::Write {
        namespace: superblock.namespace,
        offset_bytes: copy_offset(superblock.generation),
        block: Box::new(superblock.encode()),
    };
    let (zero, others) = superblocks.split_at(1.min(superblocks.len()));
    let mut steps: Vec<CommitStep> = superblocks.iter().map(flush).collect();
    for group in [others, zero] {
        steps.extend(group.iter().map(write));
        steps.extend(group.iter().map(flush));
    }
    steps
}

/// The error if the superblocks of two namespaces contradict each other.
fn contradiction(namespace: u16) -> Error {
    let text = format!(
        "the superblocks of namespaces 0 and {namespace} of the image contradict each other"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// The error if both copies of a namespace are unusable. `source` is the reason of one of them.
fn damaged(given: usize, source: FormatError) -> Error {
    let is_of_later_release = matches!(source, FormatError::Version { .. });
    let kind = Error::from(source.clone()).kind();
    let text = format!("namespace {given} of the list has no valid superblock");
    let error = Error::new(kind, text).source(source);
    if is_of_later_release {
        error
    } else {
        error.hint("dlfs rebuild finds the samples by their chunks")
    }
}

/// The error for a saved snapshot of a generation other than the `opened` one.
#[doc(hidden)]
pub fn saved_at_another_generation(saved: Generation, opened: Generation) -> Error {
    let stale = |text| Error::new(ErrorKind::Stale, text);
    if saved > opened {
        let text = format!(
            "the snapshot belongs to generation {saved}, and the image opened at {opened}: its \
             newest superblock may be damaged"
        );
        return stale(text).hint("dlfs verify checks it; dlfs rebuild finds the newest generation");
    }
    let text = format!("the snapshot belongs to generation {saved}, and the image is at {opened}");
    stale(text).hint("save it again: dlfs snapshot save")
}

/// Advice for the error that there is no image.
#[doc(hidden)]
pub const IMPORT: &str =
    "check the address, or make an image of a folder, a tar or a list: dlfs import SOURCE IMAGE";

const SUPERBLOCK: &str = "superblock";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::{SUPERBLOCK_BYTES, SnapshotLocation, copy_index};
    use crate::format::{ImageLayout, Pack, Superblock};
    use dlfs_base::units::Generation;

    fn bytes(image: u8, namespace: u16, num_namespaces: u16) -> [u8; SUPERBLOCK_BYTES] {
        let uuid = Uuid([image; 16]);
        let superblock = Superblock {
            layout: ImageLayout::new(uuid, 1 << 20, Pack::Aligned, num_namespaces).unwrap(),
            namespace,
            generation: Generation(2),
            time_ns: 0,
            optional_features: 0,
            placement_seed: 0,
            used_len_bytes: 2 << 20,
            snapshot: SnapshotLocation { offset_bytes: 1 << 20, ..SnapshotLocation::default() },
            num_samples: 0,
            features_to_write: 0,
            num_live: 0,
        };
        superblock.encode()
    }

    fn of(block: &[u8], is_named: bool) -> Candidate {
        assert_eq!(copy_index(Generation(2)), 0);
        Candidate { copies: SuperblockCopies::parse(block, &[0; SUPERBLOCK_BYTES]), is_named }
    }

    fn unnamed(image: u8, namespace: u16) -> Candidate {
        of(&bytes(image, namespace, 2), false)
    }

    fn blank() -> Candidate {
        of(&[0; SUPERBLOCK_BYTES], false)
    }

    fn damaged() -> Candidate {
        let mut block = bytes(1, 1, 2);
        block[100] ^= 1;
        of(&block, false)
    }

    #[test]
    fn of_a_subsystem_the_namespaces_that_hold_the_image_are_taken() {
        assert_eq!(choose(&[blank(), unnamed(1, 1), blank(), unnamed(1, 0)]), Ok(vec![1, 3]));
        assert_eq!(choose(&[blank(), blank()]), Ok(vec![]));
        assert_eq!(choose(&[]), Ok(vec![]));
    }

    #[test]
    fn of_several_images_one_must_be_named() {
        let two = [unnamed(1, 0), unnamed(2, 0), unnamed(1, 1), unnamed(2, 1)];
        let several = choose(&two).unwrap_err().0;
        assert_eq!(several[&Uuid([1; 16])], [0, 2]);
        assert_eq!(several[&Uuid([2; 16])], [1, 3]);
        let named = of(&bytes(2, 0, 2), true);
        assert_eq!(choose(&[named, unnamed(1, 0), unnamed(2, 1), unnamed(1, 1)]), Ok(vec![0, 2]));
    }

    #[test]
    fn a_named_namespace_is_taken_whatever_it_holds() {
        let named = of(&[0; SUPERBLOCK_BYTES], true);
        assert_eq!(choose(&[named, unnamed(1, 0), unnamed(1, 1)]), Ok(vec![0, 1, 2]));
    }

    #[test]
    fn a_damaged_namespace_is_taken_only_if_the_image_is_incomplete_without_it() {
        assert_eq!(choose(&[damaged(), unnamed(1, 0), unnamed(1, 1)]), Ok(vec![1, 2]));
        assert_eq!(choose(&[damaged(), unnamed(1, 0), blank()]), Ok(vec![0, 1]));
        assert_eq!(choose(&[damaged(), blank()]), Ok(vec![0]));
    }
}
