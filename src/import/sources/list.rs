//! A list file: one sample a line, `path` or `path<TAB>label`, paths beneath the list's folder.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::beneath::Root;
use super::index::{BadEntry, BadReason, Container, Index, MAX_SAMPLE_BYTES, Part};
use super::stamp;
use super::tar_members::clean_name;
use crate::{Error, Result};

/// Indexes the lists `paths` as one source, in the order of their lines.
///
/// # Errors
/// A list or its folder does not open. Lines that cannot be imported are in `bad`.
pub fn index(paths: &[PathBuf]) -> Result<(Index, Vec<Root>)> {
    let mut index = Index::default();
    index.only_field();
    let mut roots = Vec::new();
    for (container, path) in paths.iter().enumerate() {
        let text = std::fs::read(path).map_err(|error| Error::from(error).path(path))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let root = Root::open(folder.unwrap_or(Path::new(".")))?;
        index.containers.push(Container {
            path: path.clone(),
            stamp: xxhash_rust::xxh3::xxh3_64(&text),
            len_bytes: text.len() as u64,
        });
        for line in lines(&text) {
            if let Err(reason) = push(line, &root, container as u32, &mut index) {
                index.bad.push(BadEntry::new(line, reason));
            }
        }
        roots.push(root);
    }
    Ok((index, roots))
}

/// Whether these first bytes of a file are a list's: text, its first line a path.
pub fn looks_like(head: &[u8]) -> bool {
    let first = lines(head).next().unwrap_or_default();
    let (path, label) = split(first);
    !head.contains(&0)
        && clean_name(path).is_ok()
        && label.is_none_or(|text| number(text).is_some())
}

fn push(line: &[u8], root: &Root, container: u32, index: &mut Index) -> Result<(), BadReason> {
    let (path, label) = split(line);
    let label = match label {
        None => None,
        Some(text) => Some(number(text).ok_or(BadReason::Syntax("its label is no number"))?),
    };
    if path.starts_with(b"/") {
        return Err(BadReason::Name("is not beneath the list's folder"));
    }
    let name = clean_name(path)?;
    let stat = root.stat(&name)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(BadReason::Special("folder")),
        FileType::Fifo => return Err(BadReason::Special("FIFO")),
        FileType::Socket => return Err(BadReason::Special("socket")),
        _ => return Err(BadReason::Special("device")),
    }
    if stat.st_mode & 0o444 != 0o444 {
        root.open_file(&name)?;
    }
    let len = stat.st_size as u64;
    if len > MAX_SAMPLE_BYTES {
        return Err(BadReason::TooLarge(len));
    }
    index.push(&name, label);
    let len_bytes = len as u32; // within the limit just tested
    index.push_part(Part { field: 0, len_bytes, place: stamp(&stat), container });
    Ok(())
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty())
}

fn split(line: &[u8]) -> (&[u8], Option<&[u8]>) {
    // The last TAB: a path may hold one.
    match line.iter().rposition(|&byte| byte == b'\t') {
        Some(tab) => (&line[..tab], Some(&line[tab + 1..])),
        None => (line, None),
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_told_from_other_text() {
        for yes in ["a/b.jpg\t3\nc.jpg\t4\n", "a.jpg\n", "a\tb.jpg\t-1\r\n"] {
            assert!(looks_like(yes.as_bytes()), "{yes:?}");
        }
        for no in ["", "\n", "a.jpg\tdog\n", "../a\t1\n", "a\0b\n"] {
            assert!(!looks_like(no.as_bytes()), "{no:?}");
        }
    }
}
