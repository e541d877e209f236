//! The superblocks of all namespaces of an image: selects the committed generation, and orders the writes of a commit.
//! Pure: the caller reads and writes the blocks.

use crate::format::FormatError;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock, copy_offset};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::Generation;

pub use crate::format::superblock_copies::{BadCopy, SuperblockCopies};

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

    /// Returns whether the superblock of namespace 0 replaces this namespace's own, whose copy is bad.
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
    let superblocks = Vec::new();
    let unfinished = false;
    let bad_copies = crate::format::superblock_copies::bad_copies(given, &order, zero);
    let mut opened = SuperblockSet { superblocks, given: order, unfinished, bad_copies };
    for &index in &opened.given {
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
        opened.unfinished |= newest.generation > zero.generation;
        opened.superblocks.push(*superblock);
    }
    Ok(opened)
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
        if expected != found {
            return Err(invalid(format!(
                "namespace {index} of the list belongs to image {found}, others to {expected}"
            )));
        }
        let namespace = superblock.namespace;
        match order.get_mut(usize::from(namespace)) {
            Some(place @ None) => *place = Some(index),
            Some(Some(first)) => {
                return Err(invalid(format!(
                    "namespaces {first} and {index} of the list are both namespace {namespace} of the image"
                )));
            }
            None => return Err(contradiction(namespace)),
        }
    }
    let find = |(namespace, place): (usize, Option<usize>)| {
        place.ok_or_else(|| {
            invalid(format!(
                "the image has {num_namespaces} namespaces; namespace {namespace} was not given"
            ))
            .hint("name all namespaces, separated by commas")
        })
    };
    order.into_iter().enumerate().map(find).collect()
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

/// Advice for the error that there is no image.
#[doc(hidden)]
pub const IMPORT: &str =
    "check the address, or make an image of a folder, a tar or a list: dlfs import SOURCE IMAGE";
