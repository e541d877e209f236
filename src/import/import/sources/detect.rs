//! Detects what the paths of an import are: folders of samples, shards, lists or streams.
//!
//! Files are classified by their bytes (`content.rs`, `survey.rs`). If the caller names a kind, files of other kinds
//! in folders are set aside, and files that the caller named are read as that kind. Otherwise only hidden files and
//! files that describe shards are set aside, and files of several kinds are an error that counts each kind.
//! [`Found::file_counts`] reports every decision. Objects of stores are detected in `objects/mod.rs`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::bad::BadEntry;
use super::beneath::Root;
use super::compression::{self, Compression};
use super::content::{Content, is_side_file, is_tokens_name};
use super::expansion::Expansion;
use super::file_counts::{FileCounts, PIPE, Role};
use super::folder;
use super::found::{Decided, Found, FoundFile};
use super::indexing::Indexing;
use super::listing::{self, Listing};
use super::shard::{self, FileAt, front_to_back, read_some};
use super::shard_index::{self, Indexed, MERGED};
use super::source_kind::SourceKind;
use super::spool::{self, is_stream};
use super::survey::{DetectedFile, Survey};
use super::tar::{self, Pair};
use super::{OpenContainers, Source, list};
use dlfs_base::{Error, ErrorKind, Result};

/// Expands `paths` and detects their kind.
///
/// # Errors
/// `NotFound`, `Refused`: a path does not open. `Unsupported`: a path has an unknown scheme. `BadSource`,
/// `InvalidArgument`: the kind is unknown, or there are several kinds; the cause counts them.
pub(crate) fn find(paths: &[PathBuf], indexing: &mut Indexing<'_>) -> Result<Found> {
    let kind = indexing.options.kind;
    let mut expanded = Expanded::default();
    for path in paths {
        let exists = || path.symlink_metadata().is_ok();
        let is_prefix = || shard_index::megatron_index(path).is_some();
        // A path that exists is taken as it is, even if it has braces.
        let is_plain = is_stream(path) || exists() || is_prefix();
        let plain = is_plain.then(|| vec![path.clone()]);
        let all = plain.or_else(|| braces(path)).ok_or_else(|| absent(path))?;
        let (folders, files): (Vec<_>, Vec<_>) = all.into_iter().partition(|path| path.is_dir());
        expanded.folders.extend(folders);
        expanded.files.extend(files);
    }
    if matches!(kind, SourceKind::Auto | SourceKind::Megatron) {
        // Replace each file of Megatron's tokens, and each prefix, by its index.
        let mut taken = HashSet::new();
        let index = |path: PathBuf| match shard_index::megatron_index(&path) {
            Some(index) => taken.insert(index.clone()).then_some(index),
            None => Some(path),
        };
        expanded.files = expanded.files.into_iter().filter_map(index).collect();
    }
    match (kind, &expanded.folders[..], &expanded.files[..]) {
        (_, [], []) => Err(Error::new(ErrorKind::InvalidArgument, "an import needs a source")),
        (SourceKind::Auto, ..) => auto(expanded, indexing),
        (SourceKind::Folder, _, [file, ..]) => Err(not_a(kind, file)),
        (SourceKind::Folder, ..) => {
            let trees = folder::list(&expanded.folders, indexing)?;
            let surveys = trees.iter().map(|tree| tree.survey(false)).collect();
            Ok(folders(trees, surveys))
        }
        (SourceKind::List, [folder, ..], _) => Err(not_a(kind, folder)),
        (SourceKind::List, ..) => Ok(lists(expanded.files)),
        (kind, ..) => shards_of(kind, expanded, indexing),
    }
}

/// The import's paths with braces expanded, before any file is opened.
#[derive(Default)]
struct Expanded {
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

/// The files of a tree that are not shards by themselves, because of the indexes there.
fn indexed(tree: &Listing<Root>, detected: &[DetectedFile]) -> Indexed {
    let is_index = |file: &&DetectedFile| file.2.kind().has_index();
    let paths = detected.iter().filter(is_index).map(|(name, ..)| tree.path_of(name));
    let parts = |path: &Path| {
        // An index that cannot be read is reported when it is opened.
        let read = || Ok(std::fs::read(path).unwrap_or_default());
        shard_index::parts_of(path, read).unwrap_or_default()
    };
    Indexed::new(paths.map(|path| (parts(&path), path)).collect())
}

/// The error for a path that does not exist.
fn absent(path: &Path) -> Error {
    let bytes = path.as_os_str().as_bytes();
    let scheme = bytes.windows(3).position(|at| at == b"://").map(|end| &bytes[..end]);
    match scheme {
        Some(scheme) if scheme.iter().all(u8::is_ascii_alphanumeric) && !scheme.is_empty() => {
            let text = "sources are files, folders, pipes and objects: s3://, gs://, az://, http(s)://, hf://";
            let hint =
                "copy it here first, or send a tar through a pipe: ... | dlfs import - IMAGE";
            Error::new(ErrorKind::Unsupported, text).path(path).hint(hint)
        }
        _ => {
            let error = Error::new(ErrorKind::NotFound, "there is no such source").path(path);
            let exists =
                |end: &&[u8]| Path::new(OsStr::from_bytes(&[bytes, *end].concat())).exists();
            let is_prefix = [&b".idx"[..], b".bin"].iter().any(exists);
            let hint = "Megatron's documents need PREFIX.idx, an index of Megatron, and PREFIX.bin";
            if is_prefix { error.hint(hint) } else { error }
        }
    }
}

/// The files of a source by their content, from which the source's kind is decided.
#[derive(Default)]
struct ClassifiedFiles {
    file_counts: FileCounts,
    shards: Vec<(FoundFile, Content)>,
    bad: Vec<BadEntry>,
    /// Set if a file is neither a shard nor a side file.
    has_others: bool,
    /// The name of the first shard in a subfolder of a given folder.
    nested: Option<Vec<u8>>,
}

impl ClassifiedFiles {
    /// Classifies the files of a tree. Takes only files of the `wanted` kind; with `None`, all files.
    fn tree(&mut self, tree: &Listing<Root>, wanted: Option<SourceKind>) {
        let (mut detected, bad) = tree.detect(wanted.is_none());
        if wanted == Some(SourceKind::Tokens) {
            // Tokens may look like anything.
            let named = detected.iter_mut().filter(|(name, ..)| is_tokens_name(name));
            named.for_each(|(.., content)| *content = Content::of_kind(SourceKind::Tokens));
        }
        let is_taken = |content: Content| {
            let is_wanted = |kind| matches!(content, Content::Packed(_)) || content.kind() == kind;
            wanted.is_none_or(is_wanted)
        };
        let (taken, others): (Vec<_>, Vec<_>) =
            detected.into_iter().partition(|(.., content)| is_taken(*content));
        let Indexed { parts, merged } = indexed(tree, &taken);
        self.file_counts.append(tree.file_counts.0.iter().cloned());
        for (name, len_bytes, content) in others.into_iter().chain(taken) {
            let path = tree.path_of(&name);
            if parts.contains(&path) {
                self.file_counts.add("shard of an index", Role::Shard, len_bytes, &name);
            } else if !is_taken(content) {
                let what = sort_of(&name, content);
                self.file_counts.add(&what, Role::SetAside, len_bytes, &name);
            } else if merged.contains(&path) {
                self.file_counts.add(MERGED, Role::SetAside, len_bytes, &name);
            } else {
                if content.is_shard() && name.contains(&b'/') {
                    self.nested.get_or_insert_with(|| name.clone());
                }
                self.file(FoundFile::new(path, name), len_bytes, content);
            }
        }
        for bad in bad {
            if is_side_file(&bad.name) {
                self.file_counts.add(SIDE, Role::SetAside, 0, &bad.name)
            } else {
                self.bad.push(bad)
            }
        }
    }

    /// Classifies one file.
    fn file(&mut self, file: FoundFile, len_bytes: u64, content: Content) {
        let is_shard = content.is_shard();
        let what = sort_of(&file.name, content);
        let role = if is_shard { Role::Shard } else { Role::SetAside };
        self.file_counts.add(&what, role, len_bytes, &file.name);
        self.has_others |= !is_shard && what != SIDE;
        if is_shard {
            self.shards.push((file, content));
        }
    }

    /// Checks that no shard is in an unsupported compression.
    fn check_packed(&self) -> Result<()> {
        self.shards.iter().try_for_each(|(file, content)| match content {
            Content::Packed(program) => Err(compression::packed(&file.path, program)),
            _ => Ok(()),
        })
    }

    /// Returns the shards as `kind`, which is not [`SourceKind::Auto`].
    fn found(self, kind: SourceKind) -> Found {
        let files = self.shards.into_iter().map(|(file, _)| file).collect();
        Found { bad: self.bad, ..Found::of_shards(kind, files, self.file_counts) }
    }

    /// The error for a source of several kinds, with the counts of each.
    fn refuse(self, message: &'static str, hint: impl Into<String>) -> Error {
        Error::new(ErrorKind::BadSource, message).source(self.file_counts).hint(hint.into())
    }
}

/// The description of a file of this content, for the report.
fn sort_of(name: &[u8], content: Content) -> Cow<'static, str> {
    let is_side = !content.is_shard() && is_side_file(name);
    if is_side { SIDE.into() } else { content.label() }
}

/// Detects the kind of the expanded paths.
fn auto(expanded: Expanded, indexing: &mut Indexing<'_>) -> Result<Found> {
    if expanded.files.iter().any(|file| is_stream(file)) {
        // A stream cannot be read twice, so assume the most common kind: tar archives with one file per sample.
        let found = shards_of(SourceKind::Tar, expanded, indexing)?;
        return Ok(Found { decided: Some(Decided::NoPair), ..found });
    }
    let trees = folder::list(&expanded.folders, indexing)?;
    let surveys: Vec<Survey> = trees.iter().map(|tree| tree.survey(true)).collect();
    let mut classified = ClassifiedFiles::default();
    for path in &expanded.files {
        let (content, len_bytes) = content_of(path)?;
        classified.file(given_file(path), len_bytes, content);
    }
    let shards = !classified.shards.is_empty() || surveys.iter().any(|survey| survey.shards);
    if !shards {
        return match (trees.is_empty(), &expanded.files[..]) {
            (false, []) => {
                check_read(&trees, &surveys)?;
                Ok(folders(trees, surveys))
            }
            (true, files) => {
                files.iter().try_for_each(|file| check_list(file))?;
                Ok(lists(expanded.files))
            }
            (false, [file, ..]) => Err(not_a(SourceKind::Folder, file)),
        };
    }
    for tree in &trees {
        classified.tree(tree, None);
    }
    let mut kinds = classified.shards.iter().map(|(_, content)| content.kind());
    let first = kinds.next().unwrap_or_default();
    let all_alike = kinds.all(|kind| kind == first);
    if classified.has_others {
        return Err(classified.refuse("the source holds shards and other files", MIXED));
    }
    if !all_alike {
        return Err(classified.refuse("the source holds shards of several kinds", MIXED));
    }
    classified.check_packed()?;
    if let Some(name) = &classified.nested {
        let folder = name.rsplitn(2, |&byte| byte == b'/').last().unwrap_or_default();
        let folder = String::from_utf8_lossy(folder).escape_debug().to_string();
        let hint = format!(
            "name the folders that belong together, as .../{folder}; or take the shards of all of \
             them with --from webdataset|tar|tfrecord|parquet|...; or each file as one sample with --from folder"
        );
        return Err(classified.refuse("the source holds shards in folders of their own", hint));
    }
    if first != SourceKind::Tar {
        return Ok(classified.found(first));
    }
    let pair = |file: &FoundFile| Ok((file.name.clone(), pair_at_beginning(&file.path)?));
    let decided = Decided::by(classified.shards.iter().map(|(file, _)| pair(file)))?;
    let kind = decided.kind();
    Ok(Found { decided: Some(decided), ..classified.found(kind) })
}

/// Shards of the kind that the caller named; other files in folders are set aside.
fn shards_of(kind: SourceKind, expanded: Expanded, indexing: &mut Indexing<'_>) -> Result<Found> {
    let wanted = Content::of_kind(kind);
    let mut classified = ClassifiedFiles::default();
    for path in &expanded.files {
        let file = given_file(path);
        if is_stream(path) {
            classified.file_counts.add(PIPE, Role::Shard, 0, &file.name);
            classified.shards.push((file, wanted));
            continue;
        }
        let (content, len_bytes) = content_of(path)?;
        // A file that the caller named is read as the kind that the caller named; reading reports any error.
        // But a shell pattern also matches files that describe shards.
        let is_taken = content.is_shard() || expanded.files.len() == 1 || !is_side_file(&file.name);
        let is_packed = matches!(content, Content::Packed(_));
        if is_packed || is_taken && content.kind() == wanted.kind() {
            classified.file(file, len_bytes, content);
        } else if is_taken {
            let what = format!("{} read as {kind}", content.label());
            classified.file_counts.add(&what, Role::Shard, len_bytes, &file.name);
            classified.shards.push((file, wanted));
        } else {
            classified.file_counts.add(SIDE, Role::SetAside, len_bytes, &file.name);
        }
    }
    for tree in folder::list(&expanded.folders, indexing)? {
        classified.tree(&tree, Some(wanted.kind()));
    }
    classified.check_packed()?;
    if classified.shards.is_empty() {
        let message = format!("the source holds no {kind} shards");
        let path = expanded.folders.into_iter().next().unwrap_or_default();
        return Err(Error::new(ErrorKind::BadSource, message)
            .path(path)
            .source(classified.file_counts));
    }
    Ok(classified.found(kind))
}

/// Indexes folders whose files are samples.
fn folders(trees: Vec<Listing<Root>>, surveys: Vec<Survey>) -> Found {
    let mut file_counts = FileCounts::default();
    surveys.into_iter().for_each(|survey| file_counts.append(survey.file_counts.0));
    trees.iter().for_each(|tree| file_counts.append(tree.file_counts.0.iter().cloned()));
    // In a single folder, the name tells the file's location.
    let path = |root: &Root| root.path.clone();
    let index = listing::index(&trees, trees.len() > 1, path, |tree, row| tree.stamp(row));
    let roots = trees.into_iter().map(|tree| tree.root).collect();
    let samples = Some(Source::new(SourceKind::Folder, index, OpenContainers::Folders(roots)));
    Found { kind: SourceKind::Folder, samples, file_counts, ..Found::default() }
}

/// The files `paths` as lists.
fn lists(paths: Vec<PathBuf>) -> Found {
    let mut file_counts = FileCounts::default();
    let mut files = Vec::new();
    for path in paths {
        let file = given_file(&path);
        let len_bytes = std::fs::metadata(&path).map_or(0, |found| found.len());
        file_counts.add("list", Role::List, len_bytes, &file.name);
        files.push(file);
    }
    Found { kind: SourceKind::List, files, file_counts, ..Found::default() }
}

/// Rejects folders in which every file that was read is in an unsupported format of many samples.
fn check_read(trees: &[Listing<Root>], surveys: &[Survey]) -> Result<()> {
    for (tree, survey) in trees.iter().zip(surveys) {
        if let Some((format, name)) = &survey.unread {
            let message = format!("the folder holds {format}s, which dlfs does not read");
            return Err(Error::new(ErrorKind::BadSource, message)
                .path(tree.path_of(name))
                .source(survey.file_counts.clone())
                .hint(UNREAD));
        }
    }
    Ok(())
}

/// Rejects a file, which is not a shard, if it is no list either; the error says what the file is.
fn check_list(path: &Path) -> Result<()> {
    let (content, _) = content_of(path)?;
    let bad = |message: String| Error::new(ErrorKind::BadSource, message).path(path);
    match content {
        Content::Unread(format) => {
            let article = if format.starts_with('A') { "an" } else { "a" };
            let text = format!("this is {article} {format}, which dlfs does not read");
            return Err(bad(text).hint(UNREAD));
        }
        Content::Empty => return Err(bad("the source is empty".to_owned())),
        _ => {}
    }
    let (file, _) = shard::open(path)?;
    let mut head = vec![0; LIST_HEAD_BYTES];
    let len = read_some(&mut FileAt::from(&*file, 0), &mut head)
        .map_err(|error| Error::from(error).path(path))?;
    let head = &head[..len];
    let compression = Compression::of(head).map(Compression::name);
    if let Some(program) = compression.or(compression::foreign(head)) {
        let message = format!("the source is compressed with {program} and does not hold a shard");
        return Err(match compression {
            Some(_) => bad(message).hint(list::SAY_KIND),
            None => compression::packed(path, program),
        });
    }
    list::check(head, path)
}

/// The content and the length in bytes of the file at `path`.
fn content_of(path: &Path) -> Result<(Content, u64)> {
    let (file, container) = shard::open(path)?;
    let name = path.as_os_str().as_bytes();
    let content = Content::of(|offset| FileAt::from(&*file, offset), name);
    let content = content.map_err(|error| Error::from(error).path(path))?;
    Ok((content, container.len_bytes))
}

/// A file that the caller named.
pub(super) fn given_file(path: &Path) -> FoundFile {
    let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
    FoundFile::new(path.to_path_buf(), name)
}

/// Two consecutive files with one key at the beginning of the archive: a sign of a WebDataset shard.
fn pair_at_beginning(path: &Path) -> Result<Option<Pair>> {
    let (file, container, packed) = spool::open(path)?;
    Ok(match packed {
        None => tar::pair_at_beginning(
            front_to_back(file, 0..container.len_bytes),
            tar::MEMBERS_LOOKED_AT,
        ),
        Some(compression) => {
            let undone = compression.undo(FileAt::from(&*file, 0), &Expansion::default());
            let undone = undone.map_err(|error| Error::from(error).path(path))?;
            tar::pair_at_beginning(undone, tar::MEMBERS_LOOKED_AT)
        }
    })
}

/// The error for a path that is not of the kind of the source.
fn not_a(kind: SourceKind, path: &Path) -> Error {
    let message = format!("a source has one kind, and this is not a {kind}");
    Error::new(ErrorKind::InvalidArgument, message).path(path)
}

/// The expansion of a path with `{000..123}` or `{a,b}`, in order; `None` without a pair of braces.
pub(super) fn braces(path: &Path) -> Option<Vec<PathBuf>> {
    let names = expanded(path.as_os_str().as_bytes())?.into_iter();
    Some(names.map(|name| OsString::from_vec(name).into()).collect())
}

/// As [`braces`], for a name.
fn expanded(name: &[u8]) -> Option<Vec<Vec<u8>>> {
    let open = name.iter().position(|&byte| byte == b'{')?;
    let close = open + name[open..].iter().position(|&byte| byte == b'}')?;
    let head = &name[..open];
    let inside = &name[open + 1..close];
    let tail = &name[close + 1..];
    let middles = match range(inside) {
        Some(numbers) => numbers,
        None => inside.split(|&byte| byte == b',').map(<[u8]>::to_vec).collect(),
    };
    let tails = expanded(tail).unwrap_or_else(|| vec![tail.to_vec()]);
    let names = middles
        .iter()
        .flat_map(|middle| tails.iter().map(move |tail| [head, middle, tail].concat()));
    Some(names.collect())
}

/// `000..010`: numbers zero-padded to the width of the first one.
fn range(inside: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (first, last) = std::str::from_utf8(inside).ok()?.split_once("..")?;
    let width = first.len();
    let first: u32 = first.parse().ok()?;
    let last: u32 = last.parse().ok()?;
    if last < first || last - first > MAX_RANGE {
        return None;
    }
    Some((first..=last).map(|number| format!("{number:0width$}").into_bytes()).collect())
}

/// The hint for files in formats that are not read.
const UNREAD: &str = "turn them into files, tar shards or Parquet; or import each file as one sample \
                      with --from folder FOLDER";
/// The hint for files of several kinds.
const MIXED: &str = "--from webdataset|tar|tfrecord|parquet|... imports what the shards of that kind hold and sets \
                     the rest aside; --from folder imports each file of a folder as one sample, as it is";
/// Bytes of a file that are examined to tell a list.
const LIST_HEAD_BYTES: usize = 64 * 1024;
/// The description of files that accompany shards.
pub(super) const SIDE: &str = "side file";
/// More shards than any data set has, yet few enough that their names fit in memory.
const MAX_RANGE: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_expand_to_zero_padded_numbers_and_to_words() {
        let expand = |text: &str| {
            let names = expanded(text.as_bytes()).unwrap();
            names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(expand("s-{008..010}.tar"), ["s-008.tar", "s-009.tar", "s-010.tar"]);
        assert_eq!(expand("{a,b}-{1..2}"), ["a-1", "a-2", "b-1", "b-2"]);
        assert_eq!(braces(Path::new("plain.tar")), None);
        assert_eq!(expand("{5..1}"), ["5..1"]);
    }
}
