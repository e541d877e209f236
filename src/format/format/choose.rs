//! Chooses the namespaces that form one image, among all namespaces of the given addresses. Pure: the caller reads the
//! superblocks.
//!
//! An address without `?ns=` names a subsystem, whose namespaces may belong to several images.

use std::collections::BTreeMap;

use crate::format::Uuid;
use crate::format::superblock_set::SuperblockCopies;

/// An opened namespace that may belong to the image.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Superblock copies of the namespace.
    pub copies: SuperblockCopies,
    /// Set if the user's address names this namespace with `?ns=`; otherwise the address names only its subsystem.
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
    let is_chosen = |candidate: &Candidate| candidate.is_named || is_of(candidate);
    let count = candidates.iter().filter(|candidate| is_of(candidate)).count();
    let whole = candidates.iter().find(|candidate| is_of(candidate));
    let whole = whole.and_then(|candidate| candidate.copies.newest());
    let is_whole = whole.is_some_and(|one| count >= usize::from(one.layout.num_namespaces));
    let is_damaged = |candidate: &Candidate| {
        !is_whole && candidate.copies.newest().is_none() && !candidate.copies.is_blank()
    };
    let chosen = (0..candidates.len()).filter(|&at| {
        let candidate = &candidates[at];
        is_chosen(candidate) || is_damaged(candidate)
    });
    Ok(chosen.collect())
}

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
