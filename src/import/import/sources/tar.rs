//! Indexes tar archives: every file is a sample; or, as in WebDataset, consecutive files with one key form a sample.
//! The records of TFRecord shards are indexed in the same way, each as a file that is named by its number.
//!
//! The key of a member is its path up to the first dot of the last component; its field is the rest after the
//! dot. The labels of a plain archive are its top folders, numbered as in a folder tree. A top folder that
//! contains everything else, but no file directly, is skipped: `train` in `train/n0001/x.jpg`.
//!
//! An archive within a plain archive is a sample, or is expanded (`--nested`): then it acts as a folder with its name
//! without `.tar`. ImageNet's training archive contains one archive per class.
//!
//! If two members of an archive have the same name, the later one replaces the earlier one, as `tar -u` and `tar -r`
//! intend.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::SourceOptions;
use super::bad::{BadEntry, BadReason};
use super::content::{is_note, is_side_file, named_kind};
use super::expansion::{Expands, Expansion};
use super::file_counts::{FileCounts, HIDDEN, NESTED, Role};
use super::folder::join;
use super::index::{
    Index, MAX_NAME_BYTES, MAX_SAMPLE_BYTES, Payload, TOO_LONG_A_NAME, TOO_MANY_FIELDS,
};
use super::indexing::Indexing;
use super::shard::{Input, front_to_back};
use super::source_kind::SourceKind;
use super::tar_members::{Appended, Member, MemberKind, Members, clean_name};
use dlfs_base::folders::{FolderOptions, is_dropping};
use dlfs_base::{Error, ErrorKind};

/// Converts members of archives to rows of an index.
#[derive(Debug, Default)]
pub(super) struct MemberIndexer {
    pub(super) index: Index,
    pub(super) judge: Judge,
    /// The number of the open shard.
    container: u32,
    expansion: Expansion,
    /// Key of the last row, if files are grouped and the group may go on.
    open_key: Option<Vec<u8>>,
    /// The links, whose rows get their payloads at the end.
    links: Vec<Link>,
    /// Every folder, and whether it holds files. The root of the archive has an empty name.
    folders: BTreeMap<Vec<u8>, bool>,
    /// The folder of the last file.
    last_folder: Option<Vec<u8>>,
}

/// Decides which members of archives are samples, or fields of samples.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Set if consecutive files with one key form a sample, as in WebDataset.
    pub(super) grouped: bool,
    /// Set if the archive can be read only once.
    pub(super) is_stream: bool,
    /// Set if the members are the records of TFRecord shards, which are named after their shard and number.
    pub(super) numbered: bool,
    /// Set if hidden files, and files that tools leave behind, are imported.
    hidden: bool,
    /// Set if archives within archives are expanded.
    nested: bool,
    /// The search for a pair, which a plain archive does not have; `None` if the kind was given.
    pairs: Option<Pairs>,
}

impl Judge {
    /// Decides for archives of this kind as `options` say. `is_open`: the kind was not given, so pairs are searched
    /// for.
    pub(super) fn new(kind: SourceKind, options: &SourceOptions, is_open: bool) -> Judge {
        let &SourceOptions { nested, folders: FolderOptions { hidden, .. }, .. } = options;
        let grouped = kind == SourceKind::WebDataset;
        let numbered = kind == SourceKind::TfRecord;
        let pairs = is_open.then(Pairs::default);
        Judge { grouped, is_stream: false, numbered, hidden, nested: nested && !numbered, pairs }
    }

    /// Begins a shard: files of two shards are not a pair.
    pub(super) fn begin_shard(&mut self) {
        self.pairs.iter_mut().for_each(|pairs| pairs.last = None);
    }

    /// The name of a folder whose subfolders or files may be classes; `None`: the folder is left out.
    pub(super) fn folder_name(&self, folder: &Member) -> Option<Vec<u8>> {
        let is_taken = self.hidden || !is_dropping(&folder.name);
        clean_name(&folder.name).ok().filter(|_| is_taken)
    }

    /// The first pair found, which shows that the archive is not a plain one.
    pub(super) fn pair(&self) -> Option<&Pair> {
        self.pairs.as_ref()?.found.as_ref()
    }

    /// The sample name of a member that is not a folder; `None`: the member is left out, and added to `counts`.
    ///
    /// # Errors
    /// The reason why the member cannot be imported.
    pub(super) fn name_of(
        &mut self,
        member: &Member,
        counts: &mut FileCounts,
    ) -> Result<Option<Vec<u8>>, BadReason> {
        if self.numbered {
            TOO_LONG_A_NAME.unless(member.name.len() <= MAX_NAME_BYTES)?;
            let is_well = member.len_bytes <= MAX_SAMPLE_BYTES;
            BadReason::TooLarge(member.len_bytes).unless(is_well)?;
            return Ok(Some(member.name.clone()));
        }
        let name = clean_name(&member.name)?;
        if let Some(what) = set_aside(&name, self.grouped, self.hidden) {
            counts.add(what, Role::SetAside, member.len_bytes, &name);
            return Ok(None);
        }
        if let Some(pairs) = &mut self.pairs {
            pairs.see(&name);
        }
        match &member.kind {
            MemberKind::Special(kind) => return Err(BadReason::Special(kind)),
            MemberKind::Refused(why) => return Err(BadReason::Syntax(why)),
            MemberKind::HardLink(_) | MemberKind::SymLink(_) if self.is_stream => {
                return Err(BadReason::InStream("is a link, which a stream does not lead back to"));
            }
            _ if member.len_bytes > MAX_SAMPLE_BYTES => {
                return Err(BadReason::TooLarge(member.len_bytes));
            }
            _ if !self.nested || !self.is_archive(&name) => {}
            _ if self.is_stream => {
                return Err(BadReason::InStream(
                    "is an archive, which a stream does not take apart",
                ));
            }
            _ => return Err(NOT_TAKEN_APART),
        }
        Ok(Some(name))
    }

    /// Counts a sample that is itself an archive, for the report.
    pub(super) fn count(&self, name: &[u8], len_bytes: u64, counts: &mut FileCounts) {
        if self.is_archive(name) {
            counts.add(NESTED, Role::Sample, len_bytes, name);
        }
    }

    /// Returns whether a sample of a plain archive has the name of an archive.
    fn is_archive(&self, name: &[u8]) -> bool {
        !self.grouped && named_kind(name) == Some(SourceKind::Tar)
    }
}

/// The location of an archive, and the folder that it acts as.
#[derive(Debug)]
struct Archive {
    /// Byte range in the shard.
    bytes: Range<u64>,
    /// Prefix of the members' names; empty for the shard itself, unless its members are records.
    folder: Vec<u8>,
    /// Number of archives that contain it.
    depth: usize,
}

/// A link member: its row waits for the location of its target.
#[derive(Debug)]
struct Link {
    row: u64,
    /// The sample name of the target.
    target: Vec<u8>,
    /// A target before this row is preferred: a hard link means the file as it was when the link was added, and a
    /// symbolic link a file of its own shard, though a later shard may have one of this name.
    before: u64,
}

impl MemberIndexer {
    /// Indexes the members that `judge` selects. `expansion` limits the bytes that links add.
    pub(super) fn new(judge: Judge, expansion: &Expansion) -> MemberIndexer {
        MemberIndexer { judge, expansion: expansion.clone(), ..MemberIndexer::default() }
    }

    /// Appends the members of one shard, or its records, whose names begin with `stem`. The rest of a broken shard is
    /// one bad entry. Returns the archives that follow the first one in the file.
    pub(super) fn index_shard(
        &mut self,
        file: Arc<File>,
        container: u32,
        stem: &[u8],
        indexing: &mut Indexing<'_>,
    ) -> Option<Appended> {
        let len_bytes = self.index.containers[container as usize].len_bytes;
        // A group ends with its shard.
        self.open_key = None;
        self.container = container;
        self.judge.begin_shard();
        let folder = if self.judge.numbered { stem.to_vec() } else { Vec::new() };
        let whole = Archive { bytes: 0..len_bytes, folder, depth: 0 };
        let first_link = self.links.len();
        let appended = self.index_archive(&file, &whole, indexing);
        let end = self.index.len();
        let links = self.links[first_link..].iter_mut();
        links.for_each(|link| link.before = link.before.min(end));
        appended
    }

    /// As [`index_shard`](Self::index_shard), for an archive within the file.
    fn index_archive(
        &mut self,
        file: &Arc<File>,
        archive: &Archive,
        indexing: &mut Indexing<'_>,
    ) -> Option<Appended> {
        let input = front_to_back(file.clone(), archive.bytes.clone());
        let mut members = Members::from(input, archive.bytes.start);
        if self.judge.numbered {
            members = members.records(0);
        }
        let shard = self.index.containers[self.container as usize].path.clone();
        loop {
            let mut member = match members.next_member() {
                Ok(Some(member)) => member,
                Ok(None) => return members.appended,
                Err(reason) => {
                    self.index.bad.push(members.lost(&archive.folder, &shard, reason));
                    return members.appended;
                }
            };
            member.put_in_front(&archive.folder);
            if let Some(within) = self.archive_within(&member, archive.depth) {
                self.index_archive(file, &within, indexing);
                if !indexing.goes_on() {
                    return None;
                }
                continue;
            }
            let before = self.index.len();
            let is_label = self.take(&member).unwrap_or_else(|reason| {
                self.index.bad.push(BadEntry::new(&member.name, reason).within(&shard));
                false
            });
            if is_label && let Some(label) = read_label(&mut members, &member) {
                self.index.set_last_label(label);
            }
            if !indexing.found(self.index.len() - before, member.len_bytes) {
                return None;
            }
        }
    }

    /// The archive in a member, if the member is an archive that is to be expanded.
    fn archive_within(&self, member: &Member, depth: usize) -> Option<Archive> {
        let is_file = member.kind == MemberKind::File;
        if !self.judge.nested || self.judge.grouped || !is_file || depth == MAX_NESTED {
            return None;
        }
        let name = clean_name(&member.name).ok()?;
        let is_taken = set_aside(&name, false, self.judge.hidden).is_none();
        let folder = name.strip_suffix(b".tar").filter(|name| is_taken && !name.ends_with(b"/"))?;
        let bytes = member.offset..member.offset + member.len_bytes;
        Some(Archive { bytes, folder: folder.to_vec(), depth: depth + 1 })
    }

    /// Sets the payloads of link rows, and the labels of plain archives. Leaves out the rows of links that cannot be
    /// imported.
    pub(super) fn finish(mut self) -> Index {
        let dead = self.resolve_links();
        let (above, classes) = self.classes();
        let mut index = self.index;
        if !self.judge.grouped && !classes.is_empty() {
            index.classes = classes;
            index.label_by(|name, classes| class_of(name, &above, classes));
        }
        index.drop_rows(&dead);
        index
    }

    /// The folder whose subfolders are the classes, and the names of the classes, sorted.
    fn classes(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let above = self.folder_of_classes();
        let classes: BTreeSet<&[u8]> =
            self.folders.keys().filter_map(|folder| first_below(folder, &above)).collect();
        let classes = classes.into_iter().map(<[u8]>::to_vec).collect();
        (above, classes)
    }

    /// The folder whose subfolders are the classes: the deepest folder that has all files beneath it, but none directly
    /// in it.
    fn folder_of_classes(&self) -> Vec<u8> {
        let holds_files = |folder: &[u8]| self.folders.get(folder).copied().unwrap_or(false);
        let below = |folder: &[u8]| -> Vec<&[u8]> {
            let all = self.folders.keys().filter_map(|other| first_below(other, folder));
            all.collect::<BTreeSet<_>>().into_iter().collect()
        };
        let mut above = Vec::new();
        while !holds_files(&above)
            && let [only] = below(&above)[..]
        {
            let next = join(&above, only);
            if holds_files(&next) || below(&next).is_empty() {
                break;
            }
            above = next;
        }
        above
    }

    /// Appends a member to the index, as a row or as a payload of the last row. Returns whether the member is the field
    /// `cls`, whose payload is the row's label if it is a number.
    fn take(&mut self, member: &Member) -> Result<bool, BadReason> {
        let MemberIndexer { judge, index, container, .. } = self;
        if member.kind == MemberKind::Folder {
            if let Some(name) = judge.folder_name(member) {
                self.folders.entry(name).or_insert(false);
            }
            return Ok(false);
        }
        let Some(name) = judge.name_of(member, &mut index.file_counts)? else {
            return Ok(false);
        };
        let target = match &member.kind {
            MemberKind::HardLink(target) => Some((clean_name(target)?, index.len())),
            MemberKind::SymLink(target) => Some((beside(&name, target)?, u64::MAX)),
            _ => None,
        };
        let offset_or_stamp = member.offset;
        let len_bytes = member.len_bytes as u32; // `name_of` checked the limit
        let mut payload = Payload { field: 0, len_bytes, offset_or_stamp, container: *container };
        if judge.grouped {
            let (key, field) = key_and_field(&name)?;
            BadReason::Special("link in a shard of grouped files").unless(target.is_none())?;
            payload.field = index.field(&field).ok_or(TOO_MANY_FIELDS)?;
            self.push_grouped(key, payload);
            return Ok(field == b"cls");
        }
        index.only_field();
        index.push(&name, None);
        index.push_payload(payload);
        if judge.numbered {
            return Ok(false);
        }
        match target {
            Some((target, before)) => {
                self.links.push(Link { row: index.len() - 1, target, before });
            }
            None => judge.count(&name, member.len_bytes, &mut index.file_counts),
        }
        self.note_folder_of(&name);
        Ok(false)
    }

    /// Appends a payload to the last row if that has the key, otherwise as a new row.
    fn push_grouped(&mut self, key: &[u8], payload: Payload) {
        let last = self.index.len().wrapping_sub(1);
        if self.open_key.as_deref() != Some(key) {
            self.index.push(key, None);
            self.open_key = Some(key.to_vec());
        } else if self.index.field_len_bytes(last, payload.field).is_some() {
            return self.index.replace_payload(last, payload);
        }
        self.index.push_payload(payload);
    }

    /// Notes that the folder of a file holds files.
    fn note_folder_of(&mut self, name: &[u8]) {
        let slash = name.iter().rposition(|&byte| byte == b'/');
        let folder = slash.map_or(&name[..0], |slash| &name[..slash]);
        if self.last_folder.as_deref() != Some(folder) {
            self.folders.insert(folder.to_vec(), true);
            self.last_folder = Some(folder.to_vec());
        }
    }

    /// Gives each link the payload of its target. Returns the rows of links that cannot be imported, sorted.
    fn resolve_links(&mut self) -> Vec<u64> {
        if self.links.is_empty() {
            return Vec::new();
        }
        let MemberIndexer { index, links, .. } = self;
        let named = index.by_name();
        let targets: HashMap<u64, Option<u64>> =
            links.iter().map(|link| (link.row, target(link, &named, index))).collect();
        let mut dead = Vec::new();
        for link in links {
            let count = |row| self.expansion.make(Expands::Links, index.payload_bytes(row));
            match follow(link, &targets).and_then(|row| count(row).map(|()| row)) {
                Ok(row) => {
                    // Each row of a plain archive has one payload, with the row's number.
                    index.payloads.set(link.row as usize, index.payloads.get(row as usize));
                    let name = index.name(link.row).to_vec();
                    self.judge.count(&name, index.payload_bytes(row), &mut index.file_counts);
                }
                Err(reason) => {
                    index.bad.push(index.bad_row(link.row, reason));
                    dead.push(link.row);
                }
            }
        }
        dead
    }
}

/// The row that a link leads to: the last row with the target's name before the row `before`, otherwise the first
/// such row after it. `named`: all rows, sorted by name and then by id.
fn target(link: &Link, named: &[u64], index: &Index) -> Option<u64> {
    let Link { target, before, .. } = link;
    let end = named.partition_point(|&row| (index.name(row), row) < (&target[..], *before));
    let at = |at: usize| named.get(at).copied().filter(|&row| index.name(row) == &target[..]);
    end.checked_sub(1).and_then(at).or_else(|| at(end))
}

/// The row of a file that a link leads to, possibly through other links. `targets`: where each link row leads.
fn follow(link: &Link, targets: &HashMap<u64, Option<u64>>) -> Result<u64, BadReason> {
    let mut row = link.row;
    for _ in 0..=MAX_LINKS {
        match targets.get(&row) {
            None => return Ok(row),
            Some(next) => row = next.ok_or(BadReason::Dangling)?,
        }
    }
    Err(BadReason::Cyclic)
}

/// The name of the member that the link `name` with `target` leads to.
fn beside(name: &[u8], target: &[u8]) -> Result<Vec<u8>, BadReason> {
    BadReason::LeavesSource.unless(!target.starts_with(b"/"))?;
    let mut path: Vec<&[u8]> = name.split(|&byte| byte == b'/').collect();
    path.pop();
    for component in target.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(path.pop().ok_or(BadReason::LeavesSource)?),
            component => path.push(component),
        }
    }
    clean_name(&path.join(&b'/')).map_err(|_| BadReason::Dangling)
}

/// Splits a member's name into key and field: `a/b.seg.png` is the field `seg.png` of the key `a/b`.
///
/// # Errors
/// `Name`: there is no key before a dot, or no field after it.
pub(crate) fn key_and_field(name: &[u8]) -> Result<(&[u8], Vec<u8>), BadReason> {
    let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dot = name[base..].iter().position(|&byte| byte == b'.').map(|dot| base + dot);
    match dot {
        Some(dot) if dot > base && dot + 1 < name.len() => {
            Ok((&name[..dot], name[dot + 1..].to_ascii_lowercase()))
        }
        _ => Err(BadReason::Name("has no key before a dot and no field behind it")),
    }
}

/// The label in a `.cls` member, whose payload is read; `None`: it is not a class number.
fn read_label<I: Input>(members: &mut Members<I>, member: &Member) -> Option<i64> {
    let mut text = [0; MAX_LABEL_BYTES];
    let text = text.get_mut(..usize::try_from(member.len_bytes).ok()?)?;
    members.fill(text).ok()?; // reading the next header reports the error
    parse_label(text)
}

/// The name of the subfolder of `above` that is, or contains, `folder`; `None` if `folder` is not beneath `above`.
pub(super) fn first_below<'a>(folder: &'a [u8], above: &[u8]) -> Option<&'a [u8]> {
    let rest = match above {
        [] => folder,
        _ => folder.strip_prefix(above)?.strip_prefix(b"/")?,
    };
    rest.split(|&byte| byte == b'/').next().filter(|name| !name.is_empty())
}

/// The class of a file: its number in `classes`, the folders beneath `above`. `None`: the file is in none of them.
fn class_of(name: &[u8], above: &[u8], classes: &[Vec<u8>]) -> Option<i64> {
    let folder = &name[..name.iter().rposition(|&byte| byte == b'/')?];
    let name = first_below(folder, above)?;
    let class = classes.binary_search_by(|class| class[..].cmp(name));
    Some(class.expect("every folder there is a class") as i64)
}

/// The names of classes, and the class of each file.
pub type FolderClasses = (Vec<Vec<u8>>, Vec<Option<i64>>);

/// The classes of the files of plain archives, as an import finds them. `folders`: further folders of the archives,
/// without files.
pub(crate) fn folder_classes<'n>(
    names: impl Iterator<Item = &'n [u8]> + Clone,
    folders: impl IntoIterator<Item = Vec<u8>>,
) -> FolderClasses {
    let mut indexer = MemberIndexer::default();
    names.clone().for_each(|name| indexer.note_folder_of(name));
    for folder in folders {
        indexer.folders.entry(folder).or_insert(false);
    }
    let (above, classes) = indexer.classes();
    let labels = names.map(|name| class_of(name, &above, &classes)).collect();
    (classes, labels)
}

/// Parses a class number; `None`: the text is not a number from 0 on.
pub fn parse_label(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().filter(|&label: &i64| label >= 0)
}

/// The description of a member that is left out because of its name; `None`: the member is not left out.
fn set_aside(name: &[u8], grouped: bool, hidden: bool) -> Option<&'static str> {
    if !hidden && is_dropping(name) {
        return Some(HIDDEN);
    }
    let is_side = || is_note(name) || is_side_file(name) && key_and_field(name).is_err();
    (grouped && is_side()).then_some("side file")
}

/// Two consecutive members with one key and different fields.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The search for two consecutive members that WebDataset takes as one sample.
#[derive(Debug, Default)]
struct Pairs {
    /// The name of the last member.
    last: Option<Vec<u8>>,
    /// The first pair.
    found: Option<Pair>,
}

impl Pairs {
    /// Compares the next member, which is not hidden, with the last one. Ignores side files.
    fn see(&mut self, name: &[u8]) {
        if self.found.is_some() || set_aside(name, true, true).is_some() {
            return;
        }
        let last = self.last.replace(name.to_vec());
        let (Some(last), Ok((key, field))) = (last, key_and_field(name)) else { return };
        if key_and_field(&last).is_ok_and(|(before, other)| before == key && other != field) {
            self.found = Some((last, name.to_vec()));
        }
    }
}

/// The error for archives that were taken as plain until a pair was found.
pub(super) fn undecided(shard: &Path, pair: &Pair) -> Error {
    let [first, second] = [&pair.0, &pair.1].map(|name| name.escape_ascii());
    let text = format!(
        "the archives begin with one file for each sample, and then come {first} and {second}"
    );
    let hint =
        "--from webdataset takes files of one key as one sample, --from tar each file as a sample";
    Error::new(ErrorKind::BadSource, text).path(shard).hint(hint)
}

/// Two consecutive files with one key and different fields among the first `most_files` of an archive: a sign of a
/// WebDataset shard.
pub(crate) fn pair_at_beginning(archive: impl Input, most_files: u32) -> Option<Pair> {
    let mut members = Members::new(archive);
    let mut pairs = Pairs::default();
    let mut files = 0;
    while files < most_files && pairs.found.is_none() {
        let Ok(Some(member)) = members.next_member() else { break };
        let Ok(name) = clean_name(&member.name) else { continue };
        if member.kind == MemberKind::File && !is_dropping(&name) {
            files += 1;
            pairs.see(&name);
        }
    }
    pairs.found
}

/// Maximum links from a link to a file, as in Linux.
const MAX_LINKS: u32 = 40;
/// Maximum archives that are nested in each other.
const MAX_NESTED: usize = 8;
/// The reason for refusing an archive that should have been expanded.
const NOT_TAKEN_APART: BadReason = BadReason::Syntax(
    "is an archive within an archive that is compressed, or within 8 others, and is not taken apart",
);
/// Maximum length of a label in a `.cls` member.
const MAX_LABEL_BYTES: usize = 32;
/// Files at the beginning of an archive that are searched for a pair.
pub(super) const MEMBERS_LOOKED_AT: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_at_the_first_dot_of_the_last_part() {
        let split = |name: &'static str| key_and_field(name.as_bytes());
        assert_eq!(split("a.b/c.seg.PNG"), Ok((&b"a.b/c"[..], b"seg.png".to_vec())));
        assert_eq!(split("c.jpg"), Ok((&b"c"[..], b"jpg".to_vec())));
        for none in ["a.b/c", "a/.hidden", "c.", "c"] {
            assert!(split(none).is_err(), "{none}");
        }
    }

    #[test]
    fn links_are_seen_from_their_folder_and_may_not_climb_out() {
        assert_eq!(beside(b"a/b/link", b"../c").unwrap(), b"a/c");
        assert_eq!(beside(b"link", b"./x//y").unwrap(), b"x/y");
        assert_eq!(beside(b"a/link", b"../../c"), Err(BadReason::LeavesSource));
        assert_eq!(beside(b"a/link", b"/a/c"), Err(BadReason::LeavesSource));
    }

    #[test]
    fn labels_are_numbers_from_0() {
        assert_eq!(parse_label(b" 12\n"), Some(12));
        for none in [&b"-3"[..], b"dog", b"", b"\xff", b"99999999999999999999"] {
            assert_eq!(parse_label(none), None);
        }
    }
}
