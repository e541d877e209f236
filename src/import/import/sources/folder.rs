//! Folder trees: every file is a sample, and its class is the top-level folder.
//!
//! Ids equal those of torchvision's ImageFolder: classes sorted by name, within a class the folders sorted
//! by path, within a folder the files sorted by name. Files outside class folders have no label and come
//! last, so they shift no id. Several trees follow one another, and share their classes.
//!
//! A folder may hold shards instead of samples. Shards are recognised by their bytes. Reading the first bytes of every
//! file in a folder of samples would take ten seconds per million files. So files are grouped by extension, and only
//! the first, second, third, fifth, ninth and so on of each group are read. Files with a shard's extension are read,
//! too, up to a limit. All files are read only if this finds a shard.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{self, Access, AtFlags, FileType, RawDir, Stat};
use rustix::io::Errno;

use super::beneath::{Root, kind_name, push};
use super::content::{self, Content, is_shard_name, is_side_file};
use super::expansion::Expands;
use super::file_counts::{FileCount, FileCounts, HIDDEN, HIDDEN_FOLDER, Indexing, LINK_OUT, Role};
use super::index::{BadEntry, BadReason, Container, Index};
use super::shard::{self, FileAt};
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

/// A folder and its contents.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Its files, indexed as samples.
    pub index: Index,
    /// The open folder.
    pub root: Root,
}

/// A file of a tree: its name beneath the folder, its length, and its content.
pub(crate) type DetectedFile = (Vec<u8>, u64, Content);

impl Tree {
    /// Indexes the folder at `path`.
    ///
    /// # Errors
    /// The folder does not open. `Interrupted`: indexing was asked to stop.
    pub(crate) fn list(path: &Path, indexing: &mut Indexing<'_>) -> Result<Tree> {
        let (index, mut roots) = index(&[path.to_path_buf()], indexing)?;
        let root = roots.pop().expect("one folder has one root");
        Ok(Tree { index, root })
    }

    /// Counts the files by sort, and reads some of each sort if `looks` is set.
    pub(crate) fn survey(&self, looks: bool) -> Survey {
        let mut counts: HashMap<String, Count> = HashMap::new();
        let mut survey = Survey::default();
        let mut named = 0;
        let mut looked_at = 0;
        let mut unread = 0;
        for row in 0..self.index.len() {
            let name = self.index.name(row);
            let len_bytes = self.index.payload_bytes(row);
            let sort = sort_of(name);
            let is_known = counts.len() < MAX_SORTS || counts.contains_key(&sort);
            let sort = if is_known { sort } else { ANOTHER.to_owned() };
            let count = counts.entry(sort).or_insert_with_key(|sort| {
                let what = sort.clone();
                let example = name.to_vec();
                let total = FileCount { what, role: Role::Sample, files: 0, bytes: 0, example };
                Count { total, full: 0, named_as_shards: is_shard_name(name) }
            });
            count.total.files += 1;
            count.total.bytes = count.total.bytes.saturating_add(len_bytes);
            if !looks || len_bytes == 0 && !count.named_as_shards {
                continue;
            }
            let drawn = count.full < 2 || count.full.is_power_of_two();
            count.full += 1;
            let by_name = !drawn && count.named_as_shards && named < MOST_BY_NAME;
            named += u64::from(by_name);
            if drawn || by_name {
                let content = self.content(name);
                survey.shards |= content.is_shard();
                looked_at += u64::from(!is_side_file(name));
                if let Content::Unread(format) = content {
                    unread += 1;
                    survey.unread.get_or_insert((format, name.to_vec()));
                }
            }
        }
        if looks {
            let mut elsewhere = self.elsewhere().take(MOST_BY_NAME as usize);
            survey.shards |= elsewhere.any(|(name, _)| self.content(name).is_shard());
        }
        if unread < looked_at {
            survey.unread = None;
        }
        let mut counts: Vec<_> = counts.into_values().map(|count| count.total).collect();
        counts.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then(a.what.cmp(&b.what)));
        survey.file_counts = FileCounts(counts);
        survey
    }

    /// Detects the content of every file, in the order of their names.
    ///
    /// The second list holds the bad entries that cannot be shards. With `may_give_up`, opens no more files once
    /// many files, shards and others, are found: then nothing is imported anyway.
    pub(crate) fn detect(&self, may_give_up: bool) -> (Vec<DetectedFile>, Vec<BadEntry>) {
        let mut names: Vec<(&[u8], u64)> = (0..self.index.len())
            .map(|row| (self.index.name(row), self.index.payload_bytes(row)))
            .chain(self.elsewhere())
            .collect();
        names.sort_unstable();
        let mut shards = 0_u64;
        let mut others = 0_u64;
        let mut detected = Vec::new();
        for (name, len_bytes) in names {
            // An index tells what the file beside it is, so there may be as many of both.
            let is_index = content::tokens_of(Path::new(OsStr::from_bytes(name))).is_some();
            let is_mixed = shards > 0 && others > 0 && shards + others > MOST_OPENED;
            let known = may_give_up && is_mixed && !is_index;
            let content = if known { NOT_OPENED } else { self.content(name) };
            if content.is_shard() {
                shards += 1
            } else {
                others += u64::from(!is_side_file(name))
            }
            detected.push((name.to_vec(), len_bytes, content));
        }
        let elsewhere: HashSet<&[u8]> = self.elsewhere().map(|(name, _)| name).collect();
        let bad = self.index.bad.iter().filter(|bad| !elsewhere.contains(&bad.name[..]));
        (detected, bad.cloned().collect())
    }

    /// Files that cannot be samples but may be shards: files that are too large, and files behind a link that leads
    /// out of the folder.
    fn elsewhere(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.index.bad.iter().filter_map(|bad| match bad.reason {
            BadReason::TooLarge(len) => Some((&bad.name[..], len)),
            BadReason::LeavesSource => {
                let found = std::fs::metadata(self.path_of(&bad.name)).ok()?;
                found.is_file().then_some((&bad.name[..], found.len()))
            }
            _ => None,
        })
    }

    /// The content of a file; `Other` for an unreadable file, since reading it later reports the error.
    fn content(&self, name: &[u8]) -> Content {
        let is_file = |file: &std::fs::File| file.metadata().is_ok_and(|found| found.is_file());
        let beneath = self.root.open_file(name).ok().map(std::fs::File::from).filter(is_file);
        // The file may be behind a link that leads out of the folder.
        let there = || Some(shard::open(&self.path_of(name)).ok()?.0);
        let content = beneath
            .map(Arc::new)
            .or_else(there)
            .and_then(|file| Content::of(|offset| FileAt::from(&*file, offset), name).ok());
        content.unwrap_or(Content::Other)
    }

    /// The path of a file beneath the folder.
    pub(crate) fn path_of(&self, name: &[u8]) -> PathBuf {
        self.root.path.join(OsStr::from_bytes(name))
    }
}

/// The sorts of files in a tree, judging by the files that were read.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Set if one of the files that were read is a shard.
    pub shards: bool,
    /// An unsupported format, and the name of a file in it, if no file that was read has a supported format.
    pub unread: Option<(&'static str, Vec<u8>)>,
    /// All files, counted by extension, each as a sample.
    pub file_counts: FileCounts,
}

/// Files of one sort.
struct Count {
    total: FileCount,
    /// Number of files that are not empty.
    full: u64,
    /// Set if the extension is a shard's.
    named_as_shards: bool,
}

/// The sort of a file, by its extension in lower case, in which `#` replaces each run of digits.
fn sort_of(name: &[u8]) -> String {
    let base = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    let dot = base.iter().rposition(|&byte| byte == b'.').filter(|&dot| dot > 0);
    let mut extension = dot.map_or(&[][..], |dot| &base[dot + 1..]).to_ascii_lowercase();
    extension.iter_mut().filter(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b'#');
    extension.dedup_by(|a, b| (*a, *b) == (b'#', b'#'));
    match extension.len() {
        0 => "file without extension".to_owned(),
        1..=MAX_EXTENSION_BYTES => format!("file .{}", extension.escape_ascii()),
        _ => ANOTHER.to_owned(),
    }
}

const LIST_BUFFER_BYTES: usize = 64 * 1024;
/// The sort of files with a long extension, or any further one after [`MAX_SORTS`].
const ANOTHER: &str = "file with another extension";
/// Space for `tfrecord-#-of-#`.
const MAX_EXTENSION_BYTES: usize = 16;
/// Extensions that are counted separately: more than a data set has.
const MAX_SORTS: usize = 64;
/// Most files that are read only because of their names.
const MOST_BY_NAME: u64 = 4096;
/// Placeholder for the content of files that were not opened.
const NOT_OPENED: Content = Content::Unread("file not opened");
/// Most files that are opened to count them for an error message.
const MOST_OPENED: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_by_their_extensions() {
        let label = |name: &str| sort_of(name.as_bytes());
        assert_eq!(label("d/a.JPG"), "file .jpg");
        assert_eq!(label("a.tar.gz"), "file .gz");
        assert_eq!(label("a.0001"), "file .#");
        assert_eq!(label("train-00000-of-00002"), "file without extension");
        assert_eq!(label("d.x/a"), "file without extension");
        assert_eq!(label("a.averyveryverylongextension"), "file with another extension");
    }
}
