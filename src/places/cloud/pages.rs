//! Pages of listings: those on which web servers list the files of a folder (Python's `http.server`, nginx, Apache and
//! similar servers), and those of stores, without the keys that the client library cannot name.
//!
//! The client library names objects by paths without control characters and without empty, `.` and `..`
//! parts; a single other key makes it refuse the whole page. So such keys are cut out of the page and
//! reported. Folder markers of some tools (empty objects whose keys end with a slash) are cut out without a
//! report.

use std::collections::BTreeSet;

use crate::unescape;

/// The names listed on the page of the folder `prefix`; names of folders end with a slash. `None`: the page
/// is no list of files.
pub(super) fn names(page: &str, prefix: &str) -> Option<BTreeSet<String>> {
    // HTML tags ignore case, and lowering ASCII keeps all offsets.
    let lower = page.to_ascii_lowercase();
    let title = lower.split_once("<title>")?.1.split_once("</title>")?.0.trim_start();
    if !TITLES.iter().any(|begin| title.starts_with(begin)) {
        return None;
    }
    let links = lower.match_indices("href=").filter_map(|(at, word)| {
        let rest = &page[at + word.len()..];
        let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        rest[1..].split(quote).next()
    });
    Some(links.filter_map(|link| name(link, prefix)).collect())
}

/// The name of the link's destination, if it is in the folder. `None`: the link leads elsewhere, such as to
/// the parent, or sorts the list.
fn name(link: &str, prefix: &str) -> Option<String> {
    let link = unescape(&plain(link.split(['?', '#']).next()?))?;
    let name = match link.strip_prefix('/') {
        Some(path) => path.strip_prefix(prefix)?,
        None => link.strip_prefix("./").unwrap_or(&link),
    };
    let part = name.strip_suffix('/').unwrap_or(name);
    let is_name = !part.contains('/') && !matches!(part, "" | "." | "..") && !is_scheme(part);
    is_name.then(|| name.to_owned())
}

/// Returns whether a link, such as `mailto:a`, begins with a scheme and so leads to no file.
fn is_scheme(link: &str) -> bool {
    ["mailto:", "javascript:", "data:"].iter().any(|scheme| link.starts_with(scheme))
}

/// Returns the page without folder markers and keys that cannot be named, and the latter.
pub(super) fn sift(page: &str) -> (String, Vec<String>) {
    let mut kept = String::with_capacity(page.len());
    let mut refused = Vec::new();
    let mut rest = page;
    while let Some((block, key, start, end)) = next_entry(rest) {
        kept.push_str(&rest[..start]);
        match fate(&key) {
            Fate::Kept => kept.push_str(block),
            Fate::Mark => {}
            Fate::Refused => refused.push(key),
        }
        rest = &rest[end..];
    }
    kept.push_str(rest);
    (kept, refused)
}

enum Fate {
    Kept,
    Mark,
    Refused,
}

fn fate(key: &str) -> Fate {
    let is_odd = |part: &str| matches!(part, "" | "." | "..");
    match key.strip_suffix('/') {
        Some(folder) if !folder.is_empty() && !folder.split('/').any(is_odd) => Fate::Mark,
        _ if key.split('/').any(is_odd) || key.chars().any(char::is_control) => Fate::Refused,
        _ => Fate::Kept,
    }
}

/// The next object of a page: its element, its key, and the element's start and end.
fn next_entry(page: &str) -> Option<(&str, String, usize, usize)> {
    // The elements of S3 and Google, then of Azure.
    let found = [("<Contents>", "</Contents>", "Key"), ("<Blob>", "</Blob>", "Name")]
        .into_iter()
        .filter_map(|(open, close, name)| Some((page.find(open)?, close, name)))
        .min()?;
    let (start, close, name) = found;
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

/// Beginnings of titles: of Python's pages; of those of nginx, Apache, lighttpd and others.
const TITLES: [&str; 2] = ["directory listing for", "index of"];

/// Longer than any character's name, or its number with some leading zeros.
const MAX_NAME_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, prefix: &str) -> Option<Vec<String>> {
        names(page, prefix).map(|names| names.into_iter().collect())
    }

    #[test]
    fn the_lists_of_python_nginx_and_apache_give_names_and_nothing_else() {
        let python = "<!DOCTYPE HTML>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
            <title>Directory listing for /a/</title>\n</head>\n<body>\n<h1>Directory listing for /a/</h1>\n<hr>\n<ul>\n\
            <li><a href=\"b%20%26%20c.png\">b &amp; c.png</a></li>\n<li><a href=\"d/\">d/</a></li>\n\
            <li><a href=\"e%3Ff.png\">e?f.png</a></li>\n</ul>\n<hr>\n</body>\n</html>\n";
        assert_eq!(found(python, "a/").unwrap(), ["b & c.png", "d/", "e?f.png"]);
        let nginx = "<html>\r\n<head><title>Index of /a/</title></head>\r\n<body>\r\n<h1>Index of /a/</h1><hr><pre>\
            <a href=\"../\">../</a>\r\n<a href=\"d/\">d/</a>    27-Nov-2026 10:00    -\r\n\
            <a href=\"%C3%BC.png\">ü.png</a>    27-Nov-2026 10:00    3\r\n</pre><hr></body>\r\n</html>\r\n";
        assert_eq!(found(nginx, "a/").unwrap(), ["d/", "ü.png"]);
        let apache = "<HTML>\n <HEAD>\n  <TITLE>Index of /a</TITLE>\n </HEAD>\n <BODY>\n<H1>Index of /a</H1>\n\
            <TABLE>\n   <TR><TH><A HREF=\"?C=N;O=D\">Name</A></TH></TR>\n\
            <TR><TD><A HREF=\"/\">Parent Directory</A></TD></TR>\n<TR><TD><A HREF=\"d/\"><IMG SRC=\"/f.gif\">\
            </A></TD><TD><A HREF=\"d/\">d/</A></TD></TR>\n<TR><TD><A HREF=\"x&amp;y.png\">x&amp;y.png</A></TD></TR>\n";
        assert_eq!(found(apache, "a/").unwrap(), ["d/", "x&y.png"]);
        let absolute = "<title>Index of a/</title><a href='/'>..</a><a href='/a/b.png'>b</a><a href='/c/d.png'>d</a>\
            <a href='https://example.org/e.png'>e</a><a href=\"mailto:a@b\">m</a>";
        assert_eq!(found(absolute, "a/").unwrap(), ["b.png"]);
    }

    #[test]
    fn other_pages_are_no_lists() {
        for page in ["", "<html>", "<title>Index of", "<title>Shop</title><a href=\"a.png\">a</a>"]
        {
            assert_eq!(found(page, ""), None, "{page}");
        }
        let unquoted = "<title>Index of /</title><a href=x><a href";
        assert_eq!(found(unquoted, ""), Some(Vec::new()));
    }

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
