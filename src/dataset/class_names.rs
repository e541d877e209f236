//! Names of classes for an import, from another data set or from a text file.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Image, OpenOptions};
use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::ConnectOptions;

/// The class names in the order of their numbers: those of the data set at the address `from`, or the lines
/// of the text file `from`. An import with the training set's class names gives each class the same number.
///
/// # Errors
/// Errors of parsing the address, and of opening. `BadSource`: there are no classes, a line is empty or occurs twice,
/// or the text is longer than 64 MiB.
pub fn class_names(from: &OsStr, connect: &ConnectOptions) -> Result<Vec<Vec<u8>>> {
    let addresses = Address::parse_list_os(from)?;
    let text = match &addresses[..] {
        [Address::Path(path)] => text_of(path)?,
        _ => None,
    };
    let names = match text {
        Some(text) => lines(&text).map_err(|error| error.path(Path::new(from)))?,
        None => {
            let connect = ConnectOptions { writable: false, ..connect.clone() };
            let options = OpenOptions { connect, ..OpenOptions::default() };
            Image::open(&addresses, &options)?.directory().classes().to_vec()
        }
    };
    if names.is_empty() {
        return Err(Error::new(ErrorKind::BadSource, "it names no classes").path(Path::new(from)));
    }
    Ok(names)
}

/// The content of a text file; `None`: `path` is not a regular file, or its first [`HEAD_BYTES`] have a zero byte, as
/// those of an image.
fn text_of(path: &Path) -> Result<Option<Vec<u8>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let failed = |error| Error::from(error).path(path);
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(HEAD_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.contains(&0) {
        return Ok(None);
    }
    file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        let text = "it has more than 64 MiB, and an image has room for fewer names of classes";
        return Err(Error::new(ErrorKind::BadSource, text).path(path));
    }
    Ok(Some(bytes))
}

/// The lines of a text file, with or without a byte order mark and carriage returns.
fn lines(text: &[u8]) -> Result<Vec<Vec<u8>>> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut names = Vec::new();
    let mut seen = HashSet::new();
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let name = line.strip_suffix(b"\r").unwrap_or(line);
        if name.is_empty() || !seen.insert(name) {
            let what = if name.is_empty() { "is empty" } else { "names a class again" };
            return Err(Error::new(ErrorKind::BadSource, format!("line {} {what}", at + 1)));
        }
        names.push(name.to_vec());
    }
    Ok(names)
}

/// The first bytes of an image hold a superblock, which has zero bytes; text has none.
const HEAD_BYTES: u64 = 4096;
/// More bytes than the class names of any image.
const MAX_TEXT_BYTES: u64 = 64 << 20;
