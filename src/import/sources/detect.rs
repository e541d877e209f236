//! What a path is a source of, and which paths one argument stands for.

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{SourceOptions, list, shard, spool, tar, tfrecord};
use crate::{Error, ErrorKind, Result};

/// Kinds of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceKind {
    /// Look at the first bytes.
    #[default]
    Auto,
    /// A folder tree, its top folders the classes.
    Folder,
    /// A plain tar archive: every file a sample.
    Tar,
    /// Tar shards whose files are grouped by key into samples.
    WebDataset,
    /// TFRecord shards.
    TfRecord,
    /// A list of paths and labels.
    List,
}

/// What a source is and what it is made of.
#[derive(Debug)]
pub struct Found {
    /// Never [`SourceKind::Auto`].
    pub kind: SourceKind,
    /// Folders, lists or shards, in their order.
    pub paths: Vec<PathBuf>,
}

/// Expands `paths` and says what they are.
///
/// # Errors
/// A path does not open, is of no kind known, or of another kind than the first.
pub fn detect(paths: &[PathBuf], options: &SourceOptions) -> Result<Found> {
    let mut expanded = Vec::new();
    for path in paths {
        expand(path, options.kind, &mut expanded)?;
    }
    let Some(first) = expanded.first() else {
        return Err(Error::new(ErrorKind::InvalidArgument, "an import needs a source"));
    };
    let kind = match options.kind {
        SourceKind::Auto => kind_of(first)?,
        kind => kind,
    };
    for path in &expanded {
        let is_folder = path.is_dir();
        if is_folder != (kind == SourceKind::Folder) {
            let message = format!("a source is one kind of thing, and this is no {kind}");
            return Err(Error::new(ErrorKind::InvalidArgument, message).path(path));
        }
    }
    Ok(Found { kind, paths: expanded })
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SourceKind::Auto => "auto",
            SourceKind::Folder => "folder",
            SourceKind::Tar => "tar",
            SourceKind::WebDataset => "webdataset",
            SourceKind::TfRecord => "tfrecord",
            SourceKind::List => "list",
        })
    }
}

impl FromStr for SourceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<SourceKind> {
        Ok(match text {
            "auto" => SourceKind::Auto,
            "folder" => SourceKind::Folder,
            "tar" => SourceKind::Tar,
            "webdataset" => SourceKind::WebDataset,
            "tfrecord" => SourceKind::TfRecord,
            "list" => SourceKind::List,
            _ => {
                let message = format!("{text:?} is no kind of source");
                return Err(Error::new(ErrorKind::InvalidArgument, message)
                    .hint("one of auto, folder, tar, webdataset, tfrecord, list"));
            }
        })
    }
}

fn expand(path: &Path, kind: SourceKind, into: &mut Vec<PathBuf>) -> Result<()> {
    let wants_shards = !matches!(kind, SourceKind::Folder | SourceKind::List);
    if wants_shards && path.is_dir() {
        match shards_in(path)? {
            Some(shards) => into.extend(shards),
            None if kind == SourceKind::Auto => into.push(path.to_path_buf()),
            None => {
                let message = format!("the folder holds no {kind} shards, or other files too");
                return Err(Error::new(ErrorKind::BadSource, message).path(path));
            }
        }
        return Ok(());
    }
    if spool::is_stream(path) || path.symlink_metadata().is_ok() {
        into.push(path.to_path_buf());
        return Ok(());
    }
    match braces(path.as_os_str().as_bytes()) {
        Some(names) => {
            into.extend(names.iter().map(|name| PathBuf::from(OsStr::from_bytes(name))));
            Ok(())
        }
        None => Err(Error::new(ErrorKind::NotFound, "there is no such source").path(path)),
    }
}

/// The files of a folder in order of their names, if all of them are shards.
fn shards_in(folder: &Path) -> Result<Option<Vec<PathBuf>>> {
    let mut shards = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| Error::from(error).path(folder))? {
        let path = entry.map_err(|error| Error::from(error).path(folder))?.path();
        if !is_shard_name(path.file_name().unwrap_or_default().as_bytes()) || !path.is_file() {
            return Ok(None);
        }
        shards.push(path);
    }
    shards.sort_unstable();
    Ok((!shards.is_empty()).then_some(shards))
}

fn is_shard_name(name: &[u8]) -> bool {
    let ends = [&b".tar"[..], b".tar.gz", b".tgz", b".tfrecord", b".tfrecords"];
    let numbered = name.windows(10).any(|part| part == b".tfrecord-");
    numbered || ends.iter().any(|end| name.ends_with(end))
}

fn kind_of(path: &Path) -> Result<SourceKind> {
    if path.is_dir() {
        return Ok(SourceKind::Folder);
    }
    if spool::is_stream(path) {
        // Nothing can be looked at twice; archives of one file a sample are the common case.
        return Ok(SourceKind::Tar);
    }
    let (file, container) = shard::open(path)?;
    let mut head = Vec::new();
    let mut from = &*file;
    from.by_ref()
        .take(HEAD_BYTES)
        .read_to_end(&mut head)
        .map_err(|error| Error::from(error).path(path))?;
    if spool::is_gzip(&head) {
        let head = spool::gunzip_head(&head);
        return match tfrecord::looks_like(&head) {
            true => Ok(SourceKind::TfRecord),
            false => Ok(SourceKind::Tar),
        };
    }
    if let Some(name) = spool::foreign_compression(&head) {
        let message = format!("the source is compressed with {name}, which is not read here");
        return Err(Error::new(ErrorKind::BadSource, message)
            .path(path)
            .hint(format!("pipe it: `{name} -dc FILE | dlfs import - IMAGE --spool DIR`")));
    }
    if head.len() >= 512 && &head[257..262] == b"ustar" || path.extension() == Some("tar".as_ref())
    {
        return Ok(match tar::looks_grouped(file, container.len_bytes) {
            true => SourceKind::WebDataset,
            false => SourceKind::Tar,
        });
    }
    if tfrecord::looks_like(&head) {
        return Ok(SourceKind::TfRecord);
    }
    if list::looks_like(&head) {
        return Ok(SourceKind::List);
    }
    Err(Error::new(ErrorKind::BadSource, "cannot tell what kind of source this is")
        .path(path)
        .hint("say it with --from tar|webdataset|tfrecord|list"))
}

/// What a name with `{000..123}` or `{a,b}` stands for, in order; `None` without a pair of braces.
fn braces(name: &[u8]) -> Option<Vec<Vec<u8>>> {
    let open = name.iter().position(|&byte| byte == b'{')?;
    let close = open + name[open..].iter().position(|&byte| byte == b'}')?;
    let (head, inside, tail) = (&name[..open], &name[open + 1..close], &name[close + 1..]);
    let middles = match range(inside) {
        Some(numbers) => numbers,
        None => inside.split(|&byte| byte == b',').map(<[u8]>::to_vec).collect(),
    };
    let tails = braces(tail).unwrap_or_else(|| vec![tail.to_vec()]);
    let names = middles
        .iter()
        .flat_map(|middle| tails.iter().map(move |tail| [head, middle, tail].concat()));
    Some(names.collect())
}

/// `000..010`: numbers as wide as the first one is written.
fn range(inside: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (first, last) = std::str::from_utf8(inside).ok()?.split_once("..")?;
    let width = first.len();
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    if last < first || last - first > MAX_RANGE {
        return None;
    }
    Some((first..=last).map(|number| format!("{number:0width$}").into_bytes()).collect())
}

const HEAD_BYTES: u64 = 4096;

/// More shards than any data set has, few enough for their names to fit memory.
const MAX_RANGE: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_numbers_as_wide_as_written_and_for_words() {
        let expand = |text: &str| {
            let names = braces(text.as_bytes()).unwrap();
            names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(expand("s-{008..010}.tar"), ["s-008.tar", "s-009.tar", "s-010.tar"]);
        assert_eq!(expand("{a,b}-{1..2}"), ["a-1", "a-2", "b-1", "b-2"]);
        assert_eq!(braces(b"plain.tar"), None);
        assert_eq!(expand("{5..1}"), ["5..1"]);
    }

    #[test]
    fn shards_are_known_by_their_names() {
        for yes in ["a.tar", "a.tar.gz", "train.tfrecord-00001-of-00010", "x.tgz"] {
            assert!(is_shard_name(yes.as_bytes()), "{yes}");
        }
        assert!(!is_shard_name(b"a.jpg"));
    }
}
