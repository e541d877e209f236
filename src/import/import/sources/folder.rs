//! Folder trees: every file is a sample, and its class is the top-level folder.
//!
//! A folder may hold shards instead of samples. Shards are recognised by their bytes. Reading the first bytes of every
//! file in a folder of samples would take ten seconds per million files. So files are grouped by extension, and only
//! the first, second, third, fifth, ninth and so on of each group are read. Files with a shard's extension are read,
//! too, up to a limit. All files are read only if this finds a shard.

use std::collections::{HashMap, HashSet};
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
use super::index::{BadEntry, BadReason, MAX_SAMPLE_BYTES, Names};
use super::listing::Listing;
use super::shard::{self, FileAt};
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
            match self.look(&fd, folder, name, &mut folders) {
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

    /// The status of an entry of a folder, or of the target of a link, if it is a file; adds a folder to `folders`.
    fn look(
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
                let around = folder.around.enter(&stat, is_link).ok_or(BadReason::Cyclic)?;
                folders.push(Folder { path: path(), around });
                None
            }
            special => return Err(BadReason::Special(kind_name(special))),
        };
        if is_link && self.tree.root.leaves(&path()) {
            self.tree.file_counts.add(LINK_OUT, Role::Followed, 0, &path());
        }
        Ok(file)
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
}

impl Folder {
    fn top(root: &Root) -> Folder {
        // A missing root is reported when it is listed.
        let stat = root.stat(b"").map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        let around = Rc::new(Around { device_and_inode: stat, links: 0, outer: None });
        Folder { path: Vec::new(), around }
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

/// A file of a tree: its name beneath the folder, its length, and its content.
pub(crate) type DetectedFile = (Vec<u8>, u64, Content);

impl Listing<Root> {
    /// Counts the files by sort, and reads some of each sort if `looks` is set.
    pub(crate) fn survey(&self, looks: bool) -> Survey {
        let mut counts: HashMap<String, Count> = HashMap::new();
        let mut survey = Survey::default();
        let mut named = 0;
        let mut looked_at = 0;
        let mut unread = 0;
        for (name, len_bytes) in self.files().filter(|(_, len)| *len <= MAX_SAMPLE_BYTES) {
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
            let large = self.files().filter(|(_, len)| *len > MAX_SAMPLE_BYTES);
            let mut elsewhere = large.chain(self.elsewhere()).take(MOST_BY_NAME as usize);
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
        let mut names: Vec<(&[u8], u64)> = self.files().chain(self.elsewhere()).collect();
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
        let bad = self.bad.iter().filter(|bad| !elsewhere.contains(&bad.name[..]));
        (detected, bad.cloned().collect())
    }

    /// The name and length of each file.
    fn files(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.len()).map(|row| (self.name(row), self.len_bytes(row)))
    }

    /// Files behind a link that leads out of the folder: they cannot be samples but may be shards.
    fn elsewhere(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let bad = self.bad.iter().filter(|bad| bad.reason == BadReason::LeavesSource);
        bad.filter_map(|bad| {
            let found = std::fs::metadata(self.path_of(&bad.name)).ok()?;
            found.is_file().then_some((&bad.name[..], found.len()))
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
