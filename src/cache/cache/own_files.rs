//! Long samples of a plain folder as files of their own, so that programs can open the copies.
//!
//! The files lie in a folder beside the tier's file, `tier-UUID-gGENERATION.files`. The tier's index lists their
//! units like all others; a unit that the index does not list has no copy, whatever the file contains. A sample is
//! kept whole or not at all. An evicted copy is unlinked and never changed, so a program that has it open keeps
//! the bytes.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Cache, TierShared};
use dlfs_base::error::{Error, Result};
use dlfs_io::qpair::Device;
use dlfs_io::qpair::beside::{BesideFile, WithFiles};
use dlfs_order::tier::{
    CopyLocation, CopyTable, Kept, Ledger, LongSample, OWN_FILES_PAGE, PAGE_BYTES, Units,
};

/// The files of one tier: one for each long sample that it keeps.
pub(super) struct OwnFiles {
    folder: PathBuf,
    /// The long samples of the data set.
    samples: Vec<LongSample>,
}

impl OwnFiles {
    /// The files beside the tier at `path`; `None` if the data set has no long sample.
    pub(super) fn beside(path: &Path, units: &Units) -> Option<OwnFiles> {
        let samples = units.long().to_vec();
        (!samples.is_empty()).then(|| OwnFiles { folder: folder_of(path), samples })
    }

    /// Creates the folder, with access for its owner only.
    pub(super) fn create(&self) -> Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(_) if fs::symlink_metadata(&self.folder).is_ok_and(|found| found.is_dir()) => {
                // The folder exists. An earlier version may have given it wider permissions, so they are set
                // again. This fails if another user owns the folder; its permissions then stay.
                let _ = fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o700));
                Ok(())
            }
            made => made.map_err(|error| Error::from(error).path(&self.folder)),
        }
    }

    /// Returns a device that appends the files to `medium`: the file of a sample begins at the address of the
    /// sample's pages. Copies begin at `data_offset` of the medium.
    pub(super) fn behind(&self, medium: Arc<dyn Device>, data_offset: u64) -> Arc<dyn Device> {
        let file = |sample: &LongSample| BesideFile {
            name: name_of(sample),
            offset_bytes: data_offset + (OWN_FILES_PAGE + sample.page) * PAGE_BYTES,
            len_bytes: sample.len_bytes,
        };
        let files = self.samples.iter().map(file).collect();
        Arc::new(WithFiles::new(medium, self.folder.clone(), files))
    }

    /// The path of a sample's file, which need not exist.
    fn path_of(&self, sample: &LongSample) -> PathBuf {
        self.folder.join(name_of(sample))
    }

    /// Removes the copy of a sample.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn remove(&self, sample: &LongSample) -> Result<()> {
        let path = self.path_of(sample);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from(error).path(path))
            }
            _ => Ok(()),
        }
    }

    /// Removes all copies without a page in `used`, ascending ranges of pages of the tier.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn remove_all_but(&self, used: &[Range<u64>]) -> Result<()> {
        for sample in &self.samples {
            let start = OWN_FILES_PAGE + sample.page;
            let end = start + sample.len_bytes.div_ceil(PAGE_BYTES);
            let next = used.partition_point(|pages| pages.end <= start);
            if used.get(next).is_none_or(|pages| pages.start >= end) {
                self.remove(sample)?;
            }
        }
        Ok(())
    }
}

/// The folder of the files beside the tier at `path`.
fn folder_of(path: &Path) -> PathBuf {
    path.with_extension("files")
}

fn name_of(sample: &LongSample) -> String {
    format!("copy-{:x}", sample.page)
}

/// Removes the files beside the tier at `path`.
pub(super) fn remove_beside(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder_of(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Bytes that the files beside the tier at `path` occupy on their file system.
pub(super) fn bytes_beside(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder_of(path)) else { return 0 };
    let bytes = |entry: fs::DirEntry| entry.metadata().map_or(0, |found| blocks_bytes(&found));
    entries.flatten().map(bytes).fold(0, u64::saturating_add)
}

/// Bytes that the file occupies on its file system. `st_blocks` counts in units of 512 bytes, whatever the block
/// size of the file system (`stat(2)`).
pub(super) fn blocks_bytes(file: &fs::Metadata) -> u64 {
    file.blocks().saturating_mul(512)
}

/// Finds the long samples of which an earlier run has left only some pages. Reserves room for the missing pages and
/// returns the units of each such sample, which the caller must fetch. If the quota has no room, drops the sample
/// instead: removes its units from `to_check`, frees their pages, and calls `forget` with the tier and each unit that
/// has a place.
pub(super) fn complete(
    units: &Units,
    ledger: &mut Ledger,
    copies: &CopyTable,
    to_check: &mut Vec<(u8, Kept)>,
    forget: &dyn Fn(u8, u32),
) -> Vec<Range<u32>> {
    let mut incomplete = Vec::new();
    for sample in units.long() {
        let together = units.together_with(sample.unit);
        let Some(location) = together.clone().find_map(|unit| copies.location(unit)) else {
            continue;
        };
        if !location.is_in_own_file() {
            continue;
        }
        let tier = location.tier;
        let missing = |unit: u32| units.get(unit).all().without(copies.reserved(unit));
        let pages: u64 = together.clone().map(|unit| u64::from(missing(unit).len())).sum();
        if pages == 0 {
            continue;
        }
        if ledger.reserve(sample.unit, tier, pages) {
            for unit in together.clone() {
                copies.place(unit, CopyLocation::in_own_file(tier, units.get(unit).page));
                copies.reserve(unit, units.get(unit).all());
            }
            incomplete.push(together);
            continue;
        }
        to_check.retain(|(_, kept)| !together.contains(&kept.unit));
        for unit in together.filter(|&unit| copies.location(unit).is_some()) {
            ledger.unreserve(unit, tier, copies.reserved(unit).len().into());
            copies.clear(unit);
            forget(tier, unit);
        }
    }
    incomplete
}

impl Cache {
    /// Opens the copy of the sample at `range` (bytes) of a namespace. Calls `open` with the path of the file, counts
    /// an open of the tier, and returns the tier's number and the result of `open`. `None`: no tier keeps the whole
    /// sample as a file, or the copy was evicted meanwhile; the result of `open` is then dropped.
    ///
    /// The file has exactly the sample's length and the bytes of the origin; after a restart, it is used only once its
    /// checksum matches the tier's index. The file is unlinked when the copy is evicted. It changes only where a page
    /// was found corrupt and is written again.
    pub fn open_copy<T>(
        &self,
        namespace: u16,
        range: &Range<u64>,
        open: impl FnOnce(&Path) -> T,
    ) -> Option<(u8, T)> {
        let shared = self.tiers.latest();
        let evictions = shared.copies.evictions();
        let (tier, path) = shared.whole_copy(namespace, range)?;
        let opened = open(&path);
        let is_there = shared.whole_copy(namespace, range).is_some_and(|(now, _)| now == tier);
        if !is_there || !shared.is_unchanged_since(evictions) {
            return None;
        }
        shared.counters.count(tier, |of| &of.opens);
        Some((tier, opened))
    }

    /// Counts a read of a copy that [`Cache::open_copy`] has opened.
    pub fn count_read(&self, tier: u8, len: usize, took: Duration) {
        self.tiers.latest().counters.hit(tier, len, took);
    }
}

impl TierShared {
    /// The tier and the path of the copy of a long sample, if the copy is complete.
    fn whole_copy(&self, namespace: u16, range: &Range<u64>) -> Option<(u8, PathBuf)> {
        let first = self.units.within(namespace, range).next()?;
        let sample = self.units.long_of(first)?;
        if self.units.get(first).start_bytes() != range.start
            || sample.len_bytes != range.end - range.start
        {
            return None;
        }
        let tier = self.copies_to_read(first)?.0.tier;
        let is_there = |unit: u32| {
            self.copies_to_read(unit).is_some_and(|(location, there)| {
                location.tier == tier
                    && location.is_in_own_file()
                    && self.units.get(unit).all().without(there).is_empty()
            })
        };
        let files = self.media[usize::from(tier)].own_files.as_ref()?;
        let all = self.units.together_with(first).all(is_there);
        all.then(|| (tier, files.path_of(sample)))
    }

    /// Removes the file of a long sample, unless any of its units still has a place.
    pub(super) fn remove_own_file(&self, tier: u8, unit: u32) -> Result<()> {
        let mut together = self.units.together_with(unit);
        let is_gone = together.all(|unit| self.copies.location(unit).is_none());
        match (&self.media[usize::from(tier)].own_files, self.units.long_of(unit)) {
            (Some(files), Some(sample)) if is_gone => files.remove(sample),
            _ => Ok(()),
        }
    }
}
