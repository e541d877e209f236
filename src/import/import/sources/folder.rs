//! Lists folder trees: every file may be a sample. `survey.rs` tells whether the files are shards instead.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use rustix::fs::{self, Access, AtFlags, FileType, RawDir, Stat};
use rustix::io::Errno;

use super::bad::{BadEntry, BadReason};
use super::beneath::{Root, kind_name, push};
use super::expansion::Expands;
use super::file_counts::{HIDDEN, HIDDEN_FOLDER, LINK_OUT, Role};
use super::index::Names;
use super::indexing::Indexing;
use super::listing::Listing;
use super::{SourceOptions, stamp};
use dlfs_base::Result;
use dlfs_base::folders::{MAX_LINKED_FOLDERS, is_dropping};

/// Lists the folders `paths`. Skips the files that the options exclude, since the image may lie in the folder that it
/// is made from.
///
/// # Errors
/// A folder of `paths` does not open. `Interrupted`: indexing was asked to stop.
pub(super) fn list(paths: &[PathBuf], indexing: &mut Indexing<'_>) -> Result<Vec<Listing<Root>>> {
    let options = indexing.options;
    let mut linked = HashSet::new();
    let mut trees = Vec::new();
    for path in paths {
        let mut tree = Listing::new(Root::open(path, options.folders.links)?);
        Walk { tree: &mut tree, linked: &mut linked, options, indexing }.all();
        tree.sort();
        trees.push(tree);
    }
    indexing.check()?;
    Ok(trees)
}

/// The listing of one tree.
struct Walk<'a, 'p> {
    tree: &'a mut Listing<Root>,
    /// Files found so far that may have several names, by device and inode.
    linked: &'a mut HashSet<(u64, u64)>,
    options: &'a SourceOptions,
    indexing: &'a mut Indexing<'p>,
}

/// A folder to list.
struct Folder {
    /// Path beneath the root, which is a prefix of sample names.
    path: Vec<u8>,
    ancestry: Rc<Ancestry>,
}

/// A folder and its ancestors. A walk that follows a link to one of these would never end.
struct Ancestry {
    device_and_inode: (u64, u64),
    /// Number of links followed to reach the folder.
    links: usize,
    /// The folder that contains this one; `None`: this one is the root.
    parent: Option<Rc<Ancestry>>,
}

impl Ancestry {
    /// The ancestry of the folder `stat` in this one, reached through a link or directly. `None`: the folder is its own
    /// ancestor, or too many links lead to it.
    fn enter(self: &Rc<Ancestry>, stat: &Stat, is_link: bool) -> Option<Rc<Ancestry>> {
        let device_and_inode = (stat.st_dev, stat.st_ino);
        let links = self.links + usize::from(is_link);
        let mut all = std::iter::successors(Some(&**self), |folder| folder.parent.as_deref());
        // Only a link can lead to an ancestor.
        let is_ancestor =
            links > 0 && all.any(|folder| folder.device_and_inode == device_and_inode);
        let parent = Some(Rc::clone(self));
        let is_well = links <= MAX_LINKED_FOLDERS && !is_ancestor;
        is_well.then(|| Rc::new(Ancestry { device_and_inode, links, parent }))
    }
}

impl Walk<'_, '_> {
    /// Lists the folder and all folders beneath it, in an order close to that of ids.
    fn all(&mut self) {
        let mut left = vec![Folder::top(&self.tree.root)];
        while let Some(folder) = left.pop()
            && self.indexing.goes_on()
        {
            let mut folders = self.list(&folder);
            folders.sort_unstable_by(|a, b| b.path.cmp(&a.path));
            if folder.path.is_empty() {
                self.tree.tops = folders.iter().map(|top| top.path.clone()).collect();
            }
            left.extend(folders);
        }
    }

    /// Adds the files of a folder to the tree; returns the folders in it.
    fn list(&mut self, folder: &Folder) -> Vec<Folder> {
        let mut folders = Vec::new();
        let names = self.tree.root.open_folder(&folder.path);
        let ((names, mut found), fd) = match names.and_then(|fd| Ok((names_in(&fd)?, fd))) {
            Ok(found) => found,
            Err(reason) => {
                self.tree.bad.push(BadEntry::new(&folder.path, reason));
                return folders;
            }
        };
        // Inodes are sorted on disk, so reading them in this order is fastest.
        found.sort_unstable_by_key(|&(ino, _)| ino);
        let mut files = Vec::new();
        for (_, name) in found {
            if !self.indexing.goes_on() {
                break;
            }
            let name = names.at(name);
            match self.examine(&fd, folder, name, &mut folders) {
                Ok(file) => {
                    files.extend(file.map(|stat| (name, stat.st_size as u64, stamp(&stat))));
                }
                Err(reason) => {
                    self.tree.bad.push(BadEntry::new(&join(&folder.path, name), reason));
                }
            }
        }
        files.sort_unstable_by_key(|(name, ..)| *name);
        for (name, len_bytes, stamp) in files {
            self.tree.push(&join(&folder.path, name), len_bytes, stamp);
        }
        folders
    }

    /// Examines the entry `name` of a folder, or the target of a link. Returns the status of a file to take. Adds a
    /// folder to `folders`. `None`: there is no file to take.
    fn examine(
        &mut self,
        fd: &OwnedFd,
        folder: &Folder,
        name: &[u8],
        folders: &mut Vec<Folder>,
    ) -> Result<Option<Stat>, BadReason> {
        let path = || join(&folder.path, name);
        let mut stat =
            fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| match errno {
                Errno::NOENT => BadReason::Changed, // it was listed a moment ago
                errno => errno.into(),
            })?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !self.options.folders.hidden && is_dropping(name) {
            let is_folder = kind == FileType::Directory;
            let what = if is_folder { HIDDEN_FOLDER } else { HIDDEN };
            let bytes = if is_folder { 0 } else { stat.st_size as u64 };
            self.tree.file_counts.add(what, Role::SetAside, bytes, &path());
            return Ok(None);
        }
        let is_link = kind == FileType::Symlink;
        if is_link {
            stat = self.tree.root.stat(&path()).map_err(|reason| match reason {
                BadReason::Unreadable(libc::ENOENT) => BadReason::Dangling,
                reason => reason,
            })?;
        }
        let file = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let is_taken = !self.options.exclude.contains(&(stat.st_dev, stat.st_ino));
                if is_taken {
                    if is_link {
                        self.tree.root.open_file(&path())?;
                    } else if stat.st_mode & 0o444 != 0o444 {
                        // The check costs a system call, so it is skipped if everyone may read.
                        fs::accessat(fd, name, Access::READ_OK, AtFlags::EACCESS)?;
                    }
                    self.count(folder, &stat, is_link)?;
                    self.indexing.found(1, stat.st_size as u64);
                }
                is_taken.then_some(stat)
            }
            FileType::Directory => {
                let ancestry = folder.ancestry.enter(&stat, is_link).ok_or(BadReason::Cyclic)?;
                folders.push(Folder { path: path(), ancestry });
                None
            }
            special => return Err(BadReason::Special(kind_name(special))),
        };
        if is_link && self.tree.root.leaves(&path()) {
            self.tree.file_counts.add(LINK_OUT, Role::Followed, 0, &path());
        }
        Ok(file)
    }

    /// Counts the bytes of a file as read or, if the file was found before under another name, as produced by a link.
    fn count(&mut self, folder: &Folder, stat: &Stat, is_link: bool) -> Result<(), BadReason> {
        let expansion = &self.options.expansion;
        let len = stat.st_size as u64;
        let may_have_names = is_link || stat.st_nlink > 1 || folder.ancestry.links > 0;
        if may_have_names && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return expansion.make(Expands::Links, len);
        }
        expansion.read(len);
        Ok(())
    }
}

impl Folder {
    /// The root of a tree.
    fn top(root: &Root) -> Folder {
        // A missing root is reported when it is listed.
        let stat = root.stat(b"").map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        let ancestry = Rc::new(Ancestry { device_and_inode: stat, links: 0, parent: None });
        Folder { path: Vec::new(), ancestry }
    }
}

/// The names of a folder's entries without `.` and `..`, and the inode and number of each.
fn names_in(fd: &OwnedFd) -> Result<(Names, Vec<(u64, usize)>), BadReason> {
    let mut buffer = Vec::with_capacity(LIST_BUFFER_BYTES);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    let mut names = Names::default();
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(BadReason::from)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push((entry.ino(), names.len()));
            names.push(name);
        }
    }
    Ok((names, found))
}

/// The path of `name` in `folder`; an empty `folder` is the root.
pub(super) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    push(&mut path, name);
    path
}

/// Length of the buffer that one system call fills with entries of a folder.
const LIST_BUFFER_BYTES: usize = 64 * 1024;
