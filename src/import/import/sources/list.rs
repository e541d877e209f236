//! List files: one sample per line, `path` or `path<TAB>label`, relative to the list's folder.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use super::bad::{BadEntry, BadReason};
use super::beneath::Root;
use super::expansion::{Expands, Expansion};
use super::index::{Container, Index};
use super::indexing::Indexing;
use super::tar_members::clean_name;
use super::{FoundFile, OpenContainers, Source, SourceKind, stamp};
use dlfs_base::folders::Links;
use dlfs_base::{Error, ErrorKind, Result};

/// Indexes the lists `files` as one source, in the order of their lines.
///
/// # Errors
/// A list or its folder does not open. Lines that cannot be imported are in `bad`.
pub(super) fn index(files: &[FoundFile], indexing: &mut Indexing<'_>) -> Result<Source> {
    let mut index = Index::default();
    index.only_field();
    let mut roots = Vec::new();
    let mut found = HashSet::new();
    for (container, FoundFile { path, .. }) in files.iter().enumerate() {
        let text = std::fs::read(path).map_err(|error| Error::from(error).path(path))?;
        let root = Root::open(folder_of(path), indexing.options.folders.links)?;
        let stamp = xxhash_rust::xxh3::xxh3_64(&text);
        index.containers.push(Container { path: path.clone(), stamp, len_bytes: 0 });
        for line in lines(&text) {
            let expansion = &indexing.options.expansion;
            let pushed = push(line, &root, container as u32, &mut index, &mut found, expansion);
            if let Err(reason) = pushed {
                index.bad.push(BadEntry::new(line, reason).within(path));
            } else if !indexing.found(1, index.payload_bytes(index.len() - 1)) {
                break;
            }
        }
        roots.push(root);
    }
    Ok(Source::new(SourceKind::List, index, OpenContainers::Folders(roots)))
}

/// Checks that the file at `path`, which begins with `head`, is a list: one of its first lines names a file.
///
/// # Errors
/// The list's folder does not open. `BadSource`: the file is not a list; the error says why.
pub(crate) fn check(head: &[u8], path: &Path) -> Result<()> {
    let root = Root::open(folder_of(path), Links::Follow)?;
    let names_a_file = |line: &[u8]| {
        let name = clean_name(split(line).0);
        // A path that exists but is not a file makes a bad line, yet still shows that this is a list.
        name.is_ok_and(|name| root.stat(&name).is_ok())
    };
    let bad = |text: String| Error::new(ErrorKind::BadSource, text).path(path);
    let first = lines(head).next().unwrap_or_default();
    if may_be(head) {
        if lines(head).take(LINES_LOOKED_AT).any(names_a_file) {
            return Ok(());
        }
        let text = "its lines name no file beneath its folder, so it is not a list";
        let hint = "a list has path or path<TAB>label on each line; if it is one, say --from list";
        let line = format!("its first line is {}", shown(first));
        return Err(bad(text.to_owned()).source(io::Error::other(line)).hint(hint));
    }
    Err(match split(first).1.filter(|_| !head.contains(&0) && names_a_file(first)) {
        Some(label) => {
            let label = shown(label);
            let text =
                format!("a label in a list is a number, and that of its first line is {label}");
            bad(text).hint("number the classes, or import folders that are called as the classes")
        }
        None => bad("cannot tell what kind of source this is".to_owned()).hint(SAY_KIND),
    })
}

/// The beginning of a text, for messages.
fn shown(text: &[u8]) -> String {
    let text = &text[..text.len().min(MAX_LINE_SHOWN)];
    String::from_utf8_lossy(text).escape_debug().to_string()
}

/// Returns whether the first line has the syntax of a list.
fn may_be(head: &[u8]) -> bool {
    let first = lines(head).next().unwrap_or_default();
    let (path, label) = split(first);
    !head.contains(&0)
        && clean_name(path).is_ok()
        && label.is_none_or(|text| number(text).is_some())
}

/// The folder that a list's paths are relative to.
pub(crate) fn folder_of(list: &Path) -> &Path {
    list.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Adds the sample of a line to `index`. `found`: the stamps of the files of earlier lines. A file that is found again,
/// by a link, counts as expansion.
fn push(
    line: &[u8],
    root: &Root,
    container: u32,
    index: &mut Index,
    found: &mut HashSet<u64>,
    expansion: &Expansion,
) -> Result<(), BadReason> {
    let (path, label) = labelled(line)?;
    BadReason::Name("is not beneath the list's folder").unless(!path.starts_with(b"/"))?;
    let name = clean_name(path)?;
    let stat = root.stat_file(&name)?;
    if stat.st_mode & 0o444 != 0o444 {
        // Checks the permission; files that everyone may read need no check.
        root.open_file(&name)?;
    }
    let len_bytes = stat.st_size as u64;
    if found.insert(stamp(&stat)) {
        expansion.read(len_bytes);
    } else {
        expansion.make(Expands::Links, len_bytes)?;
    }
    index.push_file(&name, label, len_bytes, stamp(&stat), container)
}

/// The lines that are not empty.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty())
}

/// Splits a line at its last TAB into path and label: a path may contain TABs.
pub(super) fn split(line: &[u8]) -> (&[u8], Option<&[u8]>) {
    match line.iter().rposition(|&byte| byte == b'\t') {
        Some(tab) => (&line[..tab], Some(&line[tab + 1..])),
        None => (line, None),
    }
}

/// Path and label of a line.
///
/// # Errors
/// `Syntax`: the label is not a number.
pub(super) fn labelled(line: &[u8]) -> Result<(&[u8], Option<i64>), BadReason> {
    let (path, label) = split(line);
    let number = |text| number(text).ok_or(BadReason::Syntax("its label is not a number"));
    Ok((path, label.map(number).transpose()?))
}

/// Parses a label.
fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Enough lines to find an existing file even if some are missing.
const LINES_LOOKED_AT: usize = 64;
/// Maximum bytes of a line that a message shows.
const MAX_LINE_SHOWN: usize = 80;
/// The hint for a source whose kind is unknown.
pub(super) const SAY_KIND: &str = "say it with --from tar|webdataset|tfrecord|list|parquet|...";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_distinguished_from_other_text() {
        for yes in ["a/b.jpg\t3\nc.jpg\t4\n", "a.jpg\n", "a\tb.jpg\t-1\r\n"] {
            assert!(may_be(yes.as_bytes()), "{yes:?}");
        }
        for no in ["", "\n", "a.jpg\tdog\n", "../a\t1\n", "a\0b\n"] {
            assert!(!may_be(no.as_bytes()), "{no:?}");
        }
    }
}
