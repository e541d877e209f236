//! The two superblock copies of a namespace: selects a usable copy, and classifies bad ones. Pure: the caller
//! reads the blocks.

use std::ops::Deref;

use crate::format::FormatError;
use crate::format::superblock::{COPY_OFFSETS, OTHER_COPY_VOID, SUPERBLOCK_BYTES, copy_offset};
use crate::format::superblock::{Superblock, copy_index};
use dlfs_base::units::Generation;

/// The two superblock copies of one namespace, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperblockCopies {
    /// Copies A and B: the superblock, or the reason why it is unusable.
    pub copies: [Result<Superblock, FormatError>; 2],
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

    /// The valid copy of the newest generation.
    pub fn newest(&self) -> Option<&Superblock> {
        self.copies.iter().flatten().max_by_key(|copy| copy.generation)
    }

    /// The valid copy of `generation`.
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

/// The copies that should hold a superblock but do not. `zero` is the committed superblock of namespace 0. `order` maps
/// the image's namespaces to indexes of `given`.
pub(super) fn bad_copies(
    given: &[SuperblockCopies],
    order: &[usize],
    zero: &Superblock,
) -> Vec<BadCopy> {
    let own = copy_index(zero.generation);
    let other = 1 - copy_index(zero.generation);
    // The first generation has no other copy; a rebuild may have declared the other copy void.
    let other_is_void =
        zero.generation == Generation(1) || zero.optional_features & OTHER_COPY_VOID != 0;
    // A commit writes the other namespaces first, so an older copy on one of them proves that namespace 0 did not
    // commit a newer generation.
    let is_older = |copies: &SuperblockCopies| {
        copies.copies[other].as_ref().is_ok_and(|copy| copy.generation < zero.generation)
    };
    let is_vouched_for = order[1..].iter().any(|&index| is_older(&given[index]));
    let mut bad = Vec::new();
    for (namespace, &index) in (0..).zip(order) {
        for at in [own, other] {
            let Err(error) = &given[index].copies[at] else { continue };
            if at == other && other_is_void && matches!(error, FormatError::Blank { .. }) {
                continue;
            }
            bad.push(BadCopy {
                namespace,
                offset_bytes: COPY_OFFSETS[at],
                error: error.clone(),
                may_be_newer: namespace == 0 && at == other && !is_vouched_for,
            });
        }
    }
    bad
}

const SUPERBLOCK: &str = "superblock";
