//! The files beneath a folder, or the objects beneath a prefix, and their index as samples.
//!
//! Each file or object is a sample; its class is the first folder of its name. Ids equal those of torchvision's
//! ImageFolder: classes sorted by name, within a class the folders sorted by path, within a folder the files sorted by
//! name. Files outside class folders have no label and come last, so they shift no id. Several listings follow one
//! another, and share their classes.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::bad::{BadEntry, BadReason};
use super::file_counts::{FileCounts, HIDDEN, Role};
use super::index::{Container, Index, MAX_NAME_BYTES, MAX_SAMPLE_BYTES, Names, TOO_LONG_A_NAME};
use dlfs_base::folders::is_dropping;

/// Files or objects in compact form, since there may be many millions of them.
#[derive(Debug)]
pub(super) struct Listing<R> {
    /// The folder or prefix. Names are paths or keys beneath it.
    pub(super) root: R,
    /// Names, in the order in which files were added.
    names: Names,
    /// The files, in the order of rows.
    files: Vec<ListedFile>,
    /// Folders directly beneath the root, also those without files.
    pub(super) tops: BTreeSet<Vec<u8>>,
    /// Entries that cannot be samples.
    pub(super) bad: Vec<BadEntry>,
    /// Hidden files that were left out, and links out of the root that were followed.
    pub(super) file_counts: FileCounts,
}

/// A file or object.
#[derive(Debug)]
struct ListedFile {
    /// Number of the name.
    name: u32,
    len_bytes: u64,
    /// A number that the caller of [`Listing::push`] chose.
    stamp: u64,
}

impl<R> Listing<R> {
    /// An empty listing.
    pub(super) fn new(root: R) -> Listing<R> {
        Listing {
            root,
            names: Names::default(),
            files: Vec::new(),
            tops: BTreeSet::new(),
            bad: Vec::new(),
            file_counts: FileCounts::default(),
        }
    }

    /// Adds a file. `stamp`: a number for the caller, which [`stamp`](Self::stamp) returns.
    pub(super) fn push(&mut self, name: &[u8], len_bytes: u64, stamp: u64) {
        if name.len() > MAX_NAME_BYTES {
            return self.bad.push(BadEntry::new(name, TOO_LONG_A_NAME));
        }
        self.files.push(ListedFile { name: self.names.len() as u32, len_bytes, stamp });
        self.names.push(name);
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn name(&self, row: usize) -> &[u8] {
        self.names.at(self.files[row].name as usize)
    }

    pub(super) fn len_bytes(&self, row: usize) -> u64 {
        self.files[row].len_bytes
    }

    pub(super) fn stamp(&self, row: usize) -> u64 {
        self.files[row].stamp
    }

    /// Leaves out files whose names are not `wanted`, without counting them.
    pub(super) fn retain(&mut self, wanted: impl Fn(&[u8]) -> bool) {
        self.files.retain(|file| wanted(self.names.at(file.name as usize)));
    }

    /// Leaves out hidden files and the droppings of file systems and tools, and counts them.
    pub(super) fn leave_out_droppings(&mut self) {
        let Listing { names, files, file_counts, .. } = self;
        files.retain(|file| {
            let name = names.at(file.name as usize);
            if is_dropping(name) {
                file_counts.add(HIDDEN, Role::SetAside, file.len_bytes, name);
            }
            !is_dropping(name)
        });
    }

    /// Sorts the files in the order of their ids as samples.
    pub(super) fn sort(&mut self) {
        let name = |file: &ListedFile| self.names.at(file.name as usize);
        self.files.sort_by(|a, b| in_order(name(a), name(b)));
    }
}

/// Indexes sorted listings as samples. `path` returns the path of a root; bad entries name it if `names_roots` is set.
/// `stamp` returns the stamp of a row's file, and is called only for files that become samples.
pub(super) fn index<R>(
    listings: &[Listing<R>],
    names_roots: bool,
    path: impl Fn(&R) -> PathBuf,
    mut stamp: impl FnMut(&Listing<R>, usize) -> u64,
) -> Index {
    let mut index = Index::default();
    index.only_field();
    let mut classes = BTreeSet::new();
    for listing in listings {
        classes.extend(listing.tops.iter().map(|top| &top[..]));
        let tops = (0..listing.len()).filter_map(|row| top_of(listing.name(row)));
        let mut last = None;
        classes.extend(tops.filter(|top| last.replace(*top) != Some(*top)));
    }
    index.classes = classes.into_iter().map(<[u8]>::to_vec).collect();
    for (container, listing) in (0..).zip(listings) {
        let path = path(&listing.root);
        let within = Some(path.clone()).filter(|_| names_roots);
        let bad = |bad: BadEntry| BadEntry { within: within.clone(), ..bad };
        index.containers.push(Container { path, stamp: 0, len_bytes: 0 });
        index.bad.extend(listing.bad.iter().cloned().map(bad));
        for row in 0..listing.len() {
            let name = listing.name(row);
            let class_of = |top| index.classes.binary_search_by(|class| class[..].cmp(top)).ok();
            let label = top_of(name).and_then(class_of).map(|class| class as i64);
            let len = listing.len_bytes(row);
            let is_well = BadReason::TooLarge(len).unless(len <= MAX_SAMPLE_BYTES);
            let pushed = is_well
                .and_then(|()| index.push_file(name, label, len, stamp(listing, row), container));
            if let Err(reason) = pushed {
                index.bad.push(bad(BadEntry::new(name, reason)));
            }
        }
    }
    index
}

/// The first of the folders in a name.
fn top_of(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|&byte| byte == b'/').map(|end| &name[..end])
}

/// The order of names as samples: see the page of this file.
fn in_order(a: &[u8], b: &[u8]) -> Ordering {
    let folder = |name: &[u8]| name.iter().rposition(|&byte| byte == b'/');
    match (folder(a), folder(b)) {
        (Some(a_end), Some(b_end)) => top_of(a)
            .cmp(&top_of(b))
            .then_with(|| a[..a_end].cmp(&b[..b_end]))
            .then_with(|| a[a_end..].cmp(&b[b_end..])),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_by_class_then_by_folder_then_by_name() {
        let sorted = ["a/x/1", "a/x/2", "a-b/1", "b/0", "b/a/0", "b/a-c/0", "0", "z"];
        let mut listing = Listing::new(());
        let mut names = sorted.to_vec();
        names.sort_unstable();
        names.iter().for_each(|name| listing.push(name.as_bytes(), 0, 0));
        listing.sort();
        let found: Vec<&[u8]> = (0..listing.len()).map(|row| listing.name(row)).collect();
        assert_eq!(found, sorted.map(str::as_bytes));
    }
}
