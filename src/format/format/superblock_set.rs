//! Determines the generation that the superblocks of a set of namespaces commit, and the order in which a commit
//! writes them. Pure: the caller reads and writes the blocks.

use crate::format::FormatError;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock, copy_offset};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::Generation;

pub use crate::format::superblock_copies::{BadCopy, SuperblockCopies};

/// The superblocks of an image whose namespaces agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperblockSet {
    /// Superblock of each namespace of the image, in the image's order.
    pub superblocks: Vec<Superblock>,
    /// For each of them, its index in the caller's list: namespaces may be given in any order.
    pub given: Vec<usize>,
    /// True if some namespace has a newer copy: an import began to commit and did not finish.
    pub unfinished: bool,
    /// Copies that should hold a superblock and do not, even after a second read.
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

    /// Checks that each namespace, given by length and address, is as long as the image says. Otherwise a
    /// read past its end would fail later, and a write would extend it and hide what is missing.
    ///
    /// # Errors
    /// `Corrupt`.
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

    /// The generation that may have been committed after the one that was opened: its copy on namespace 0
    /// is bad. A commit cut off by a power loss leaves the same bytes, so the two cases cannot be
    /// distinguished.
    pub fn lost_generation(&self) -> Option<Generation> {
        let is_lost = self.bad_copies.iter().any(|copy| copy.may_be_newer);
        is_lost.then(|| self.superblock().generation.next())
    }
}

/// Selects the committed generation from the superblocks of the namespaces that a user gave as one image,
/// in any order.
///
/// Namespace 0's newest valid copy determines the committed generation; all others must have it. A newer
/// copy on another namespace belongs to an import that did not finish, and is ignored. Where another
/// namespace's copy of the generation is bad, the superblock of namespace 0 replaces it.
///
/// # Errors
/// `NotFound`: a namespace has no image. `InvalidArgument`: one is missing, twice there or of another image. Otherwise
/// they are damaged or contradict each other. Numbers of namespaces are indexes of `given` where the text says so.
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
        // The snapshot is where namespace 0 says. A rebuild commits the same generation again with another
        // snapshot, and writes namespace 0 last: until then the other namespaces are ahead.
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

/// Maps the given namespaces to their indexes in the image: all present, none twice, all of one image.
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

/// Superblocks of one generation describe different images.
fn contradiction(namespace: u16) -> Error {
    let text = format!(
        "the superblocks of namespaces 0 and {namespace} of the image contradict each other"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// Both copies of a namespace are unusable, one of them for this reason.
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
        /// A superblock.
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

/// Advice where there is no image.
#[doc(hidden)]
pub const IMPORT: &str =
    "check the address, or make an image of a folder, a tar or a list: dlfs import SOURCE IMAGE";
