//! Folder trees: every file is a sample, and its class is the top-level folder.
//!
//! Ids equal those of torchvision's ImageFolder: classes sorted by name, within a class the folders sorted
//! by path, within a folder the files sorted by name. Files outside class folders have no label and come
//! last, so they shift no id. Several trees follow one another, and share their classes.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use rustix::fs::{self, Access, AtFlags, FileType, RawDir, Stat};
use rustix::io::Errno;

use super::beneath::{Root, kind_name, push};
use super::expansion::Expands;
use super::found::{HIDDEN, HIDDEN_FOLDER, Indexing, LINK_OUT, Role};
use super::index::{BadEntry, BadReason, Container, Index};
use super::{SourceOptions, stamp};
use dlfs_base::Result;
use dlfs_base::folders::{MAX_LINKED_FOLDERS, is_dropping};

/// Indexes the folders `paths` as one source. Skips the files that the options exclude, since the image may lie in
/// the folder that it is made from.
///
/// # Errors
/// A folder of `paths` does not open. `Interrupted`: indexing was asked to stop. Entries that cannot be imported
/// are in `bad`.
pub(crate) fn index(paths: &[PathBuf], indexing: &mut Indexing<'_>) -> Result<(Index, Vec<Root>)> {
    let options = indexing.options;
    let open = |path: &PathBuf| Root::open(path, options.folders.links);
    let roots = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
    let mut index = Index::default();
    index.only_field();
    for root in &roots {
        let path = root.path.clone();
        index.containers.push(Container { path, stamp: 0, len_bytes: 0 });
    }
    let linked = HashSet::new();
    let mut walk =
        Walk { roots: &roots, container: 0, linked, options, index: &mut index, indexing };
    let list = |walk: &mut Walk<'_, '_>| walk.list(&Folder::top(walk.root()));
    let tops: Vec<_> = (0..roots.len()).map(|container| walk.within(container, list)).collect();
    let folders = tops.iter().flat_map(|top| &top.folders);
    let classes: BTreeSet<_> = folders.map(|folder| folder.path.clone()).collect();
    walk.index.classes = classes.into_iter().collect();
    for (container, top) in tops.into_iter().enumerate() {
        walk.within(container, |walk| walk.classes(top));
    }
    indexing.check()?;
    Ok((index, roots))
}

struct Walk<'a, 'p> {
    roots: &'a [Root],
    /// The number of the root that is walked.
    container: u32,
    /// Files found so far that may have several names, by device and inode.
    linked: HashSet<(u64, u64)>,
    options: &'a SourceOptions,
    index: &'a mut Index,
    indexing: &'a mut Indexing<'p>,
}

/// A folder to list.
#[derive(Clone)]
struct Folder {
    /// Path beneath the root, which is a prefix of sample names.
    path: Vec<u8>,
    around: Rc<Around>,
}

/// A folder and its ancestors. A walk that follows a link to one of these would never end.
struct Around {
    device_and_inode: (u64, u64),
    /// Number of links followed to reach the folder.
    links: usize,
    outer: Option<Rc<Around>>,
}

impl Around {
    /// Enters the folder `stat` in this one, through a link or directly. `None`: it is its own ancestor, or too many
    /// links lead to it.
    fn enter(self: &Rc<Around>, stat: &Stat, is_link: bool) -> Option<Rc<Around>> {
        let inner = (stat.st_dev, stat.st_ino);
        let links = self.links + usize::from(is_link);
        let mut all = std::iter::successors(Some(&**self), |around| around.outer.as_deref());
        // Only a link can lead to an ancestor.
        let is_around = links > 0 && all.any(|around| around.device_and_inode == inner);
        let outer = Some(Rc::clone(self));
        let is_well = links <= MAX_LINKED_FOLDERS && !is_around;
        is_well.then(|| Rc::new(Around { device_and_inode: inner, links, outer }))
    }
}

/// The contents of a folder. Names are concatenated in one buffer: a folder may have millions of them.
#[derive(Default)]
struct Listing {
    text: Vec<u8>,
    files: Vec<File>,
    folders: Vec<Folder>,
}

struct File {
    name: Name,
    len_bytes: u64,
    stamp: u64,
}

/// The location of a name in the buffer.
#[derive(Clone, Copy)]
struct Name {
    start: usize,
    len: u16,
}

impl Name {
    /// Appends `name` to `text`.
    fn push(name: &[u8], text: &mut Vec<u8>) -> Name {
        let start = text.len();
        text.extend_from_slice(name);
        Name { start, len: name.len() as u16 } // the kernel's names have at most 255 bytes
    }

    fn of<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.start..self.start + usize::from(self.len)]
    }
}

impl Listing {
    fn push_file(&mut self, name: &[u8], len_bytes: u64, stamp: u64) {
        let name = Name::push(name, &mut self.text);
        self.files.push(File { name, len_bytes, stamp });
    }
}

impl<'a> Walk<'a, '_> {
    /// Does `work` in the root with the number `container`. If there are several roots, adds the root's path to new
    /// bad entries, since a name does not say which root it is in.
    fn within<T>(&mut self, container: usize, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.index.bad.len();
        self.container = container as u32;
        let done = work(self);
        let bad = self.index.bad[before..].iter_mut().filter(|_| self.roots.len() > 1);
        bad.for_each(|bad| bad.within = Some(self.roots[container].path.clone()));
        done
    }

    fn root(&self) -> &'a Root {
        &self.roots[self.container as usize]
    }

    fn classes(&mut self, mut top: Listing) {
        top.folders.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        for folder in top.folders {
            let class = self.index.classes.binary_search(&folder.path);
            let class = class.expect("the classes are the names of these folders");
            self.class(folder, class as i64);
        }
        self.emit(b"", &top.text, top.files, None);
    }

    /// Indexes all files beneath a class folder, in the order of `sorted(os.walk(folder))`.
    fn class(&mut self, folder: Folder, label: i64) {
        let mut left = vec![folder];
        let mut listed = Vec::new();
        while let Some(folder) = left.pop()
            && self.indexing.goes_on()
        {
            let Listing { text, files, folders } = self.list(&folder);
            listed.push((folder.path, text, files));
            left.extend(folders);
        }
        listed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (path, text, files) in listed {
            self.emit(&path, &text, files, Some(label));
        }
    }

    fn emit(&mut self, folder: &[u8], text: &[u8], mut files: Vec<File>, label: Option<i64>) {
        files.sort_unstable_by(|a, b| a.name.of(text).cmp(b.name.of(text)));
        for file in files {
            let name = join(folder, file.name.of(text));
            let File { len_bytes, stamp, .. } = file;
            if let Err(reason) =
                self.index.push_file(&name, label, len_bytes, stamp, self.container)
            {
                self.bad(name, reason);
            }
        }
    }

    fn list(&mut self, folder: &Folder) -> Listing {
        let mut listing = Listing::default();
        let names = self.root().open_folder(&folder.path).and_then(|fd| Ok((names(&fd)?, fd)));
        let ((text, mut found), fd) = match names {
            Ok(found) => found,
            Err(reason) => {
                self.bad(folder.path.clone(), reason);
                return listing;
            }
        };
        // Inodes are sorted on disk, so reading them in this order is fastest.
        found.sort_unstable_by_key(|&(ino, _)| ino);
        for (_, name) in found {
            if !self.indexing.goes_on() {
                break;
            }
            let name = name.of(&text);
            if let Err(reason) = self.look(&fd, folder, name, &mut listing) {
                self.bad(join(&folder.path, name), reason);
            }
        }
        listing
    }

    /// Adds an entry of a folder, or the target of a link, to `listing`.
    fn look(
        &mut self,
        fd: &OwnedFd,
        folder: &Folder,
        name: &[u8],
        listing: &mut Listing,
    ) -> Result<(), BadReason> {
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
            self.index.file_counts.add(what, Role::SetAside, bytes, &path());
            return Ok(());
        }
        let is_link = kind == FileType::Symlink;
        let root = self.root();
        if is_link {
            stat = root.stat(&path()).map_err(|reason| match reason {
                BadReason::Unreadable(libc::ENOENT) => BadReason::Dangling,
                reason => reason,
            })?;
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                if !self.options.exclude.contains(&(stat.st_dev, stat.st_ino)) {
                    if is_link {
                        root.open_file(&path())?;
                    } else if stat.st_mode & 0o444 != 0o444 {
                        // The check costs a system call, so it is skipped if everyone may read.
                        fs::accessat(fd, name, Access::READ_OK, AtFlags::EACCESS)?;
                    }
                    self.count(folder, &stat, is_link)?;
                    listing.push_file(name, stat.st_size as u64, stamp(&stat));
                    self.indexing.found(1, stat.st_size as u64);
                }
            }
            FileType::Directory => {
                let around = folder.around.enter(&stat, is_link).ok_or(BadReason::Cyclic)?;
                listing.folders.push(Folder { path: path(), around });
            }
            special => return Err(BadReason::Special(kind_name(special))),
        }
        if is_link && root.leaves(&path()) {
            self.index.file_counts.add(LINK_OUT, Role::Followed, 0, &path());
        }
        Ok(())
    }

    /// Counts a file as read; if it was found before under another name, as produced by a link.
    fn count(&mut self, folder: &Folder, stat: &Stat, is_link: bool) -> Result<(), BadReason> {
        let expansion = &self.options.expansion;
        let len = stat.st_size as u64;
        let has_names = is_link || stat.st_nlink > 1 || folder.around.links > 0;
        if has_names && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return expansion.make(Expands::Links, len);
        }
        expansion.read(len);
        Ok(())
    }

    fn bad(&mut self, name: Vec<u8>, reason: BadReason) {
        self.index.bad.push(BadEntry::new(&name, reason));
    }
}

impl Folder {
    fn top(root: &Root) -> Folder {
        // A missing root is reported when it is listed.
        let stat = root.stat(b"").map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        let around = Rc::new(Around { device_and_inode: stat, links: 0, outer: None });
        Folder { path: Vec::new(), around }
    }
}

/// Names and inodes of a folder's entries, and the buffer with the names.
type Names = (Vec<u8>, Vec<(u64, Name)>);

/// Lists a folder, without `.` and `..`.
fn names(fd: &OwnedFd) -> Result<Names, BadReason> {
    let mut buffer = Vec::with_capacity(LIST_BUFFER_BYTES);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    let mut text = Vec::new();
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(BadReason::from)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((entry.ino(), Name::push(name, &mut text)));
        }
    }
    Ok((text, names))
}

/// The path of `name` in `folder`; an empty `folder` is the root.
pub(super) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    push(&mut path, name);
    path
}

const LIST_BUFFER_BYTES: usize = 64 * 1024;
