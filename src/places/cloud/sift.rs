//! Cuts keys that the client library cannot name out of a store's page of a listing.
//!
//! The client library names objects by paths without control characters and without empty, `.` and `..`
//! parts; a single other key makes it refuse the whole page. So such keys are cut out of the page and
//! reported. Objects whose keys end with a slash are cut out without a report: with these, usually empty,
//! some tools mark folders.

/// Returns the page without folder markers and refused keys, and the refused keys.
pub(super) fn sift(page: &str) -> (String, Vec<String>) {
    let mut kept = String::with_capacity(page.len());
    let mut refused = Vec::new();
    let mut rest = page;
    // A page has elements of one service. Looking for those of the others before each takes quadratic time.
    let found = ELEMENTS.iter().filter_map(|names| Some((page.find(names[0])?, names)));
    let names = found.min().map_or(&ELEMENTS[0], |(_, names)| names);
    while let Some((block, key, start, end)) = next_entry(rest, names) {
        kept.push_str(&rest[..start]);
        match sort_of(&key) {
            KeySort::Object => kept.push_str(block),
            KeySort::FolderMarker => {}
            KeySort::Refused => refused.push(key),
        }
        rest = &rest[end..];
    }
    kept.push_str(rest);
    (kept, refused)
}

/// Sorts of listed keys, and their treatment.
enum KeySort {
    /// Stays on the page.
    Object,
    /// Is cut out.
    FolderMarker,
    /// Is cut out and reported: the client library cannot name it.
    Refused,
}

/// The treatment of a key.
fn sort_of(key: &str) -> KeySort {
    let is_odd = |part: &str| matches!(part, "" | "." | "..");
    match key.strip_suffix('/') {
        Some(folder) if !folder.is_empty() && !folder.split('/').any(is_odd) => {
            KeySort::FolderMarker
        }
        _ if key.split('/').any(is_odd) || key.chars().any(char::is_control) => KeySort::Refused,
        _ => KeySort::Object,
    }
}

/// Tags around an object, and the name of its key's element: of S3 and Google, then of Azure.
const ELEMENTS: [[&str; 3]; 2] =
    [["<Contents>", "</Contents>", "Key"], ["<Blob>", "</Blob>", "Name"]];

/// The next object of a page: its element, its key, and the element's start and end.
fn next_entry<'a>(
    page: &'a str,
    [open, close, name]: &[&str; 3],
) -> Option<(&'a str, String, usize, usize)> {
    let start = page.find(open)?;
    let end = start + page[start..].find(close)? + close.len();
    let block = &page[start..end];
    let (_, value) = block.split_once(&format!("<{name}>"))?;
    let (value, _) = value.split_once(&format!("</{name}>"))?;
    Some((block, plain(value), start, end))
}

/// Decodes XML's character references, by name and by number; leaves anything else unchanged.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('&') {
        plain.push_str(before);
        // The search is limited: otherwise, a string of ampersands would take quadratic time.
        let end = behind.bytes().take(MAX_NAME_BYTES).position(|byte| byte == b';');
        let found = end.and_then(|end| Some((character(&behind[..end])?, &behind[end + 1..])));
        let (character, behind) = found.unwrap_or(('&', behind));
        plain.push(character);
        rest = behind;
    }
    plain.push_str(rest);
    plain
}

/// The character with this name or number: `amp`, `#38`, `#x26`.
fn character(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = name.strip_prefix('#')?;
            let hex = number.strip_prefix(['x', 'X']).map(|digits| u32::from_str_radix(digits, 16));
            char::from_u32(hex.unwrap_or_else(|| number.parse()).ok()?)?
        }
    })
}

/// Longer than any character's name, or its number with some leading zeros.
const MAX_NAME_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn page(keys: &[&str]) -> String {
        let entry = |key: &&str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let all: String = keys.iter().map(entry).collect();
        format!(
            "<ListBucketResult><Name>b</Name>{all}<IsTruncated>false</IsTruncated></ListBucketResult>"
        )
    }

    #[test]
    fn keys_that_cannot_be_named_are_cut_out_and_told_and_marks_of_folders_only_cut_out() {
        let good = ["a/b", "a b", "ü", "x&amp;y", "100%", "%2F", "a/.b", "...", "&#65;"];
        assert_eq!(sift(&page(&good)), (page(&good), vec![]));
        let all = ["a/b", "a//b", "/a", "a/../b", "a/", "a/b/", ".", "//", "x&#x1;y", "z"];
        let (kept, refused) = sift(&page(&all));
        assert_eq!(kept, page(&["a/b", "z"]));
        assert_eq!(refused, ["a//b", "/a", "a/../b", ".", "//", "x\u{1}y"]);
    }

    #[test]
    fn a_page_of_many_objects_takes_linear_time() {
        let many = "<Blob><Name>a</Name></Blob>".repeat(300_000);
        let begun = Instant::now();
        assert_eq!(sift(&many), (many.clone(), vec![]));
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn the_pages_of_azure_are_sifted_as_well_and_what_is_no_page_is_left_alone() {
        let blob = |name: &str| format!("<Blob><Name>{name}</Name><Properties/></Blob>");
        let page = |inside: &str| {
            format!("<EnumerationResults><Blobs>{inside}</Blobs></EnumerationResults>")
        };
        let (kept, refused) = sift(&page(&(blob("a//b") + &blob("c"))));
        assert_eq!((kept, refused), (page(&blob("c")), vec!["a//b".to_owned()]));
        for text in ["", "<Contents>", "<Contents><Key>a", "<Contents></Contents>", "no XML & <"] {
            assert_eq!(sift(text), (text.to_owned(), vec![]), "{text}");
        }
    }
}
