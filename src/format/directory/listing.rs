//! Lists the samples of a folder, and reads the order of names. A binary search in the order of names skips a subfolder
//! in one step.

use std::ops::Range;

use crate::directory::Directory;
use crate::directory::names::Names;
use crate::format::FormatError;
use dlfs_base::units::SampleId;

/// A direct child of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the child within the folder.
    pub name: Vec<u8>,
    /// Folder or sample.
    pub kind: EntryKind,
}

/// The kind of an [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder with at least one live sample below it.
    Folder,
    /// A sample.
    Sample(SampleId),
}

impl Directory {
    /// Calls `visit` with each direct child of `folder`, in the order of names, until `visit` returns false. A
    /// subfolder costs one search, and a look at its samples up to the first live one.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub fn for_each_in(
        &self,
        folder: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), FormatError> {
        let names = self.names()?;
        let prefix = prefix_of(folder);
        let mut rank = names.lower_bound(0, &prefix)?;
        let mut name = Vec::new();
        while rank < names.num_samples {
            let id = SampleId(names.at_rank(rank));
            name.clear();
            names.get(id.0, &mut name)?;
            let Some(within) = name.strip_prefix(&prefix[..]) else { break };
            let first = rank;
            let (len, kind, is_live) = match within.iter().position(|byte| *byte == b'/') {
                None => {
                    rank += 1;
                    (within.len(), EntryKind::Sample(id), self.is_live(id))
                }
                Some(slash) => {
                    // A slash sorts before all other bytes, and no name has NUL. So all names of the subfolder sort
                    // before its path with \x01, the next byte, in place of the slash.
                    let past = [&name[..prefix.len() + slash], b"\x01"].concat();
                    rank = names.lower_bound(rank + 1, &past)?;
                    (slash, EntryKind::Folder, self.any_live(first..rank, names))
                }
            };
            if is_live && !visit(Entry { name: within[..len].to_vec(), kind }) {
                break;
            }
        }
        Ok(())
    }

    /// Calls `visit` with the id and name of every live sample below `folder`, in the order of names, until `visit`
    /// returns false.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub fn for_each_below(
        &self,
        folder: &[u8],
        visit: &mut dyn FnMut(SampleId, &[u8]) -> bool,
    ) -> Result<(), FormatError> {
        let names = self.names()?;
        let prefix = prefix_of(folder);
        let mut name = Vec::new();
        for rank in names.lower_bound(0, &prefix)?..names.num_samples {
            let id = SampleId(names.at_rank(rank));
            name.clear();
            names.get(id.0, &mut name)?;
            if !name.starts_with(&prefix) || (self.is_live(id) && !visit(id, &name)) {
                break;
            }
        }
        Ok(())
    }

    /// The first rank at or after `from`, in the order of names, whose name is greater than or equal to `name`; the
    /// number of samples if there is none. A slash sorts before all other bytes.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub(crate) fn rank_by_name(&self, from: u64, name: &[u8]) -> Result<u64, FormatError> {
        self.names()?.lower_bound(from, name)
    }

    /// The sample at `rank` in the order of names, deleted or not; its name is written to `name`. `None` if `rank` is
    /// past the last sample.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: the name is damaged.
    pub(crate) fn at_rank_by_name(
        &self,
        rank: u64,
        name: &mut Vec<u8>,
    ) -> Result<Option<SampleId>, FormatError> {
        let names = self.names()?;
        name.clear();
        if rank >= names.num_samples {
            return Ok(None);
        }
        let id = names.at_rank(rank);
        names.get(id, name)?;
        Ok(Some(SampleId(id)))
    }

    /// Returns whether any sample at these ranks, in the order of names, is live.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media.
    pub(crate) fn any_live_by_name(&self, ranks: Range<u64>) -> Result<bool, FormatError> {
        let names = self.names()?;
        Ok(self.any_live(ranks.start..ranks.end.min(names.num_samples), names))
    }

    fn any_live(&self, ranks: Range<u64>, names: &Names) -> bool {
        ranks.into_iter().any(|rank| self.is_live(SampleId(names.at_rank(rank))))
    }
}

/// The prefix of all names in `folder`.
fn prefix_of(folder: &[u8]) -> Vec<u8> {
    let mut prefix = folder.to_vec();
    if !prefix.is_empty() && prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}
