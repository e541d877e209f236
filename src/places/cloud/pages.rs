//! Parses the HTML pages on which web servers list the files of a folder: Python's `http.server`, nginx, Apache and
//! similar servers.

use std::collections::BTreeSet;

use dlfs_base::percent;

use super::sift::plain;

/// The names on a page that lists the files of a folder. Names of folders end with a slash.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) good: BTreeSet<String>,
    /// Names that are not UTF-8, as the links write them.
    pub(super) refused: BTreeSet<String>,
}

/// The names listed on the page of the folder `prefix`. `None`: the page is no list of files.
pub(super) fn names(page: &str, prefix: &str) -> Option<Names> {
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
    let mut names = Names::default();
    for link in links {
        match name(link, prefix) {
            None => {}
            Some(Ok(name)) => _ = names.good.insert(name),
            Some(Err(name)) => _ = names.refused.insert(name),
        }
    }
    Some(names)
}

/// The name of the link's destination, if it is in the folder; if that is not UTF-8, an error with the name as the link
/// writes it. `None`: the link leads elsewhere, such as to the parent, or sorts the list.
fn name(link: &str, prefix: &str) -> Option<Result<String, String>> {
    let link = plain(link.split(['?', '#']).next()?);
    let bytes = percent::unescape(&link, |_| true);
    let decoded = String::from_utf8_lossy(&bytes);
    let name = match decoded.strip_prefix('/') {
        Some(path) => path.strip_prefix(prefix)?,
        None => decoded.strip_prefix("./").unwrap_or(&decoded),
    };
    let part = name.strip_suffix('/').unwrap_or(name);
    let is_name = !part.contains('/') && !matches!(part, "" | "." | "..") && !is_scheme(part);
    let is_utf8 = std::str::from_utf8(&bytes).is_ok();
    let written = || link.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    is_name.then(|| if is_utf8 { Ok(name.to_owned()) } else { Err(written().to_owned()) })
}

/// Returns whether a link, such as `mailto:a`, begins with a scheme and so leads to no file.
fn is_scheme(link: &str) -> bool {
    ["mailto:", "javascript:", "data:"].iter().any(|scheme| link.starts_with(scheme))
}

/// Beginnings of titles: of Python's pages; of those of nginx, Apache, lighttpd and others.
const TITLES: [&str; 2] = ["directory listing for", "index of"];

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, prefix: &str) -> Option<Vec<String>> {
        names(page, prefix).map(|names| names.good.into_iter().collect())
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
    fn names_that_are_not_utf8_are_refused_and_not_left_out() {
        let page = "<title>Index of /a/</title><a href=\"%FC.png\">x</a><a href=\"b.png\">b</a>\
            <a href=\"/icons/%FC.gif\">i</a><a href=\"/a/%FC/\">d</a>";
        let Names { good, refused } = names(page, "a/").unwrap();
        assert_eq!(good.into_iter().collect::<Vec<_>>(), ["b.png"]);
        assert_eq!(refused.into_iter().collect::<Vec<_>>(), ["%FC", "%FC.png"]);
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
}
