//! Brace expansion of names: `train-{000..123}.tar`, `{a,b}.tar`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The expansion of a path with `{000..123}` or `{a,b}`, in order; `None` without a pair of braces.
pub(super) fn braces(path: &Path) -> Option<Vec<PathBuf>> {
    let names = expanded(path.as_os_str().as_bytes())?.into_iter();
    Some(names.map(|name| OsString::from_vec(name).into()).collect())
}

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
