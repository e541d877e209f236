//! Storage of a store: the pages of all namespaces, one namespace after the other, in a sparse file or in memory, with
//! a bitmap of the pages that are present.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::{TierKind, TierSpec};
use dlfs_base::buf::SharedWords;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::metrics::Place;
use dlfs_base::process::NotInherited;
use dlfs_format::directory::{Directory, ViewMark, by_word};
use dlfs_io::qpair::file::{FileNamespace, FileOptions};
use dlfs_io::qpair::mem::SharedMemory;
use dlfs_io::qpair::{Device, Direct};
use dlfs_order::tier::PAGE_BYTES;

/// The pages of all namespaces, one namespace after the other.
pub(super) struct Media {
    pub(super) storage: Storage,
    /// The first page of each namespace, and the end of the last.
    firsts: Vec<u64>,
    /// A bitmap of the pages that are present, followed by three counters. Shared with forked children.
    present: SharedWords,
    /// Limit of pages that may be present.
    quota_pages: AtomicU64,
}

/// A sparse file, or sparse memory.
pub(super) struct Storage {
    /// The lock of a file; forked children do not keep it. Declared before the owners of the file descriptor, so that
    /// it is dropped first.
    _lock: Option<NotInherited>,
    /// The device with all pages.
    pub(super) device: Arc<dyn Device>,
    /// Frees a range of bytes.
    free: Box<dyn Fn(Range<u64>) -> Result<()> + Send + Sync>,
    /// The place that metrics attribute the store's bytes to.
    pub(super) kind: Place,
    /// Set if the storage had content when it was opened.
    pub(super) was_used: bool,
}

impl Media {
    /// Opens the store at `spec`, whose file is called `name`, for namespaces of `lens_bytes`. It needs about
    /// `most_pages`; a share of long samples needs more.
    ///
    /// # Errors
    /// Errors of [`super::Store::open`].
    pub(super) fn open(
        spec: &TierSpec,
        name: &str,
        lens_bytes: &[u64],
        most_pages: u64,
    ) -> Result<Media> {
        let most_bytes = most_pages * PAGE_BYTES;
        let quota_pages = AtomicU64::new(part_of(spec, 1, most_pages)?);
        let mut firsts = vec![0];
        for len in lens_bytes {
            firsts.push(firsts[firsts.len() - 1] + len.div_ceil(PAGE_BYTES));
        }
        let num_pages = firsts[firsts.len() - 1].max(1);
        let len_bytes = num_pages * PAGE_BYTES;
        let storage = match &spec.kind {
            TierKind::Ram => {
                let memory = SharedMemory::sparse(len_bytes, most_bytes.max(PAGE_BYTES)).map_err(
                    |error| error.hint(format!("the store {spec} must fit into memory")),
                )?;
                let freed = memory.clone();
                Storage {
                    device: Arc::new(memory),
                    free: Box::new(move |bytes| freed.deallocate(bytes)),
                    kind: Place::Memory,
                    was_used: false,
                    _lock: None,
                }
            }
            TierKind::File(folder) => in_file(folder, name, len_bytes, most_bytes, spec)?,
            TierKind::Namespace(_) => {
                let text = format!("{spec}: a store is a folder of this node, or in its memory");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        };
        let present = SharedWords::new(num_pages.div_ceil(64) as usize + NUM_COUNTERS)?;
        Ok(Media { storage, firsts, present, quota_pages })
    }

    /// Limits this rank to its equal share of the quota of `spec`, which `ranks` ranks divide.
    ///
    /// # Errors
    /// `InvalidArgument`: `most_pages` exceeds this share.
    pub(super) fn share_quota(&self, ranks: u64, most_pages: u64, spec: &TierSpec) -> Result<()> {
        self.quota_pages.store(part_of(spec, ranks, most_pages)?, Ordering::Release);
        Ok(())
    }

    /// The pages of `bytes` of a namespace; `None` if any lies after the last sample.
    pub(super) fn pages_of(&self, namespace: u16, bytes: &Range<u64>) -> Option<Range<u64>> {
        let at = usize::from(namespace);
        let first = *self.firsts.get(at)?;
        let end = *self.firsts.get(at + 1)?;
        let pages = bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES);
        (pages.end <= end - first).then_some(first + pages.start..first + pages.end)
    }

    /// Returns whether all of `pages` are present.
    pub(super) fn has(&self, pages: Range<u64>) -> bool {
        let words = self.present.as_ref();
        by_word(pages).all(|(word, mask)| words[word].load(Ordering::Acquire) & mask == mask)
    }

    /// Checks that `pages` may be added.
    ///
    /// # Errors
    /// `NoSpace`: the store would exceed its quota.
    pub(super) fn has_room(&self, pages: Range<u64>) -> Result<()> {
        let words = self.present.as_ref();
        let missing: u64 = by_word(pages)
            .map(|(word, mask)| {
                u64::from((mask & !words[word].load(Ordering::Acquire)).count_ones())
            })
            .sum();
        let quota_pages = self.quota_pages.load(Ordering::Acquire);
        if self.counter(HELD).load(Ordering::Acquire) + missing <= quota_pages {
            return Ok(());
        }
        let text = format!("this rank's {} bytes of the store are full", quota_pages * PAGE_BYTES);
        let hint = "this rank's samples are longer than the average: give the store a larger size";
        Err(Error::new(ErrorKind::NoSpace, text).hint(hint))
    }

    /// Marks `pages` as present; all of their bytes must have been written.
    pub(super) fn set(&self, pages: Range<u64>) {
        let words = self.present.as_ref();
        for (word, mask) in by_word(pages) {
            let before = words[word].fetch_or(mask, Ordering::AcqRel);
            self.counter(HELD)
                .fetch_add(u64::from((mask & !before).count_ones()), Ordering::AcqRel);
        }
        self.counter(PEAK).fetch_max(self.counter(HELD).load(Ordering::Acquire), Ordering::AcqRel);
    }

    /// Marks `pages` as absent.
    pub(super) fn clear(&self, pages: Range<u64>) {
        let words = self.present.as_ref();
        for (word, mask) in by_word(pages) {
            let before = words[word].fetch_and(!mask, Ordering::AcqRel);
            self.counter(HELD).fetch_sub(u64::from((mask & before).count_ones()), Ordering::AcqRel);
        }
    }

    /// Deletes `pages`, and frees their room in the file system.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn delete(&self, pages: Range<u64>) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        self.clear(pages.clone());
        self.counter(DELETIONS).fetch_add(1, Ordering::AcqRel);
        (self.storage.free)(pages.start * PAGE_BYTES..pages.end * PAGE_BYTES)
    }

    /// Number of deletions: a read during a deletion may have returned zeroes.
    pub(super) fn deletions(&self) -> u64 {
        self.counter(DELETIONS).load(Ordering::Acquire)
    }

    /// The word at position `number` from the end.
    fn counter(&self, number: usize) -> &AtomicU64 {
        let words = self.present.as_ref();
        &words[words.len() - number]
    }

    /// Frees the storage of all pages that are not marked as present: a process that was killed leaves some.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn delete_others(&self) -> Result<()> {
        let end = self.firsts[self.firsts.len() - 1];
        let words = self.present.as_ref();
        let has =
            |page: u64| words[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64) & 1;
        let mut from = 0;
        while from < end {
            if from.is_multiple_of(64)
                && words[(from / 64) as usize].load(Ordering::Acquire) == u64::MAX
            {
                from += 64;
                continue;
            }
            let run = (from..end).find(|&page| has(page) == 1).unwrap_or(end);
            self.delete(from..run)?;
            from = (run..end).find(|&page| has(page) == 0).unwrap_or(end);
        }
        Ok(())
    }

    /// The number of pages that are present, and its maximum so far.
    pub(super) fn pages(&self) -> (u64, u64) {
        (self.counter(HELD).load(Ordering::Acquire), self.counter(PEAK).load(Ordering::Acquire))
    }
}

/// The quota in pages of each of the `ranks` ranks that divide the quota of `spec` equally; 0 ranks count as 1.
///
/// # Errors
/// `InvalidArgument`: `most_pages` exceeds this quota.
fn part_of(spec: &TierSpec, ranks: u64, most_pages: u64) -> Result<u64> {
    let pages = spec.quota_bytes / PAGE_BYTES / ranks.max(1);
    if most_pages <= pages {
        return Ok(pages);
    }
    let whom = match ranks {
        0 | 1 => "this rank".to_owned(),
        _ => format!("the {ranks} ranks of this node that share it"),
    };
    let bytes = most_pages * PAGE_BYTES;
    let text = format!(
        "the store {spec} is too small for {whom}: the share of each and what it receives in an epoch take {bytes} \
         bytes"
    );
    let hint = format!("give the store {} bytes, or exchange less", bytes * ranks.max(1));
    Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint))
}

/// The name of the file of a rank's store.
pub(super) fn file_name(directory: &Directory, rank: u32) -> String {
    let image = directory.uuid();
    let generation = directory.generation();
    let view = directory.view().map_or(String::new(), |ViewMark { hash, .. }| {
        format!("-v{:032x}", u128::from_be_bytes(hash))
    });
    format!("dlfs-share-{image}-g{generation}{view}-r{rank}.store")
}

/// The storage in the file `name` of `folder`, with `len_bytes` of address space, of which about `most_bytes` are used.
fn in_file(
    folder: &Path,
    name: &str,
    len_bytes: u64,
    most_bytes: u64,
    spec: &TierSpec,
) -> Result<Storage> {
    if !folder.is_dir() {
        let text = "a store is a file in a folder, and this is no folder";
        let hint = format!("make the folder of the store {spec} first");
        let kind = if folder.exists() { ErrorKind::InvalidArgument } else { ErrorKind::NotFound };
        return Err(Error::new(kind, text).path(folder).hint(hint));
    }
    let path = folder.join(name);
    let was_used = std::fs::metadata(&path).is_ok_and(|found| found.len() > 0);
    let direct = Direct::for_sparse(most_bytes);
    let options = FileOptions {
        create_len: Some(len_bytes),
        private: true,
        direct,
        ..FileOptions::default()
    };
    let file = FileNamespace::open(&path, options).map_err(|error| match error.kind() {
        ErrorKind::Busy => {
            error.hint("another process is this rank: give each its own rank or folder")
        }
        _ => error.hint(format!("the error concerns the store {spec}")),
    })?;
    let end = file.namespace().len_bytes();
    // Tests whether the file system supports freeing; there is nothing to free beyond the file's end.
    file.deallocate(end..end + PAGE_BYTES).map_err(|error| {
        error.hint("samples that leave are freed one by one; use a file system with sparse files, or ram:SIZE")
    })?;
    let lock = Some(file.keep_lock_from_children());
    let file = Arc::new(file);
    let freed = Arc::clone(&file);
    let free = Box::new(move |bytes| freed.deallocate(bytes));
    Ok(Storage { device: file, free, kind: Place::Drive, was_used, _lock: lock })
}

/// Positions of the counters in [`Media::present`], counted from the end: deletions; pages that are present, and their
/// maximum so far.
const DELETIONS: usize = 1;
const HELD: usize = 2;
const PEAK: usize = 3;
const NUM_COUNTERS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn media(spec: &str) -> Media {
        Media::open(&spec.parse().unwrap(), "store", &[10 * PAGE_BYTES, 200 * PAGE_BYTES], 50)
            .unwrap()
    }

    #[test]
    fn pages_are_there_between_set_and_delete_and_the_peak_stays() {
        let media = media("ram:1M");
        assert_eq!(media.pages_of(1, &(PAGE_BYTES + 1..3 * PAGE_BYTES)), Some(11..13));
        assert_eq!(
            media.pages_of(0, &(9 * PAGE_BYTES..11 * PAGE_BYTES)),
            None,
            "behind the samples"
        );
        assert_eq!(media.pages_of(2, &(0..1)), None);
        media.set(60..190);
        media.set(100..110);
        assert_eq!(media.pages(), (130, 130));
        assert!(
            media.has(60..190) && !media.has(59..61) && !media.has(189..191) && media.has(5..5)
        );
        media.delete(64..128).unwrap();
        assert!(media.has(60..64) && media.has(128..190) && !media.has(127..128));
        media.clear(0..61);
        assert_eq!(media.pages(), (65, 130));
    }

    #[test]
    fn what_is_not_said_to_be_there_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let spec = format!("file:{}:1M", folder.path().display());
        let path = folder.path().join("store");
        let written = |bytes: usize| std::fs::write(&path, vec![1; bytes]).unwrap();
        written(210 * 4096);
        let media = media(&spec);
        assert!(media.storage.was_used);
        media.set(3..5);
        media.set(64..130);
        media.delete_others().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for (page, bytes) in bytes.chunks(4096).enumerate() {
            let is_there = (3..5).contains(&page) || (64..130).contains(&page);
            assert!(bytes.iter().all(|&byte| byte == u8::from(is_there)), "page {page}");
        }
    }

    #[test]
    fn a_store_that_is_too_small_or_no_folder_is_refused() {
        let open = |spec: &str| {
            let opened = Media::open(&spec.parse().unwrap(), "store", &[1 << 20], 50);
            opened.err().map(|error| (error.kind(), error.report())).unwrap()
        };
        let (kind, text) = open("ram:100K");
        assert!(kind == ErrorKind::InvalidArgument && text.contains("204800 bytes"), "{text}");
        assert_eq!(open("file:/nowhere/at/all:1M").0, ErrorKind::NotFound);
        assert_eq!(open("file:/dev/null:1M").0, ErrorKind::InvalidArgument);
    }
}
