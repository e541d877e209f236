//! Rust source as far as the rules need it: without comments and strings, with its `mod`s and
//! paths.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// One file.
pub(crate) struct Source {
    /// From the project's root.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text without comments and contents of strings; lines stay where they are.
    pub(crate) code: String,
    /// True if only tests use it.
    pub(crate) is_test: bool,
}

impl Source {
    pub(crate) fn read(root: &Path, path: String, is_test: bool) -> Source {
        let text = fs::read_to_string(root.join(&path)).expect("source is UTF-8");
        let code = without_comments_and_strings(&text);
        Source { path, text, code, is_test }
    }

    /// The folder of the library's crate that the file belongs to, below `src/`; nothing for the root's.
    pub(crate) fn crate_folder(&self) -> &str {
        let name = self.path.strip_prefix("src/").unwrap_or_default();
        let folder = name.split('/').next().unwrap_or_default();
        if super::LAYERS.iter().any(|(of, _, _)| *of == folder) { folder } else { "" }
    }

    /// The library's module that the file belongs to; `None` for the page of a crate.
    pub(crate) fn module(&self) -> Option<&str> {
        let folder = self.crate_folder();
        let name = self.path.strip_prefix("src/")?.strip_prefix(folder)?.trim_start_matches('/');
        let module = name.split('/').next()?.trim_end_matches(".rs");
        match super::ROOTS.iter().find(|(of, _)| *of == folder) {
            Some((_, root))
                if !super::LAYERS.iter().any(|row| (row.0, row.1) == (folder, module)) =>
            {
                Some(root)
            }
            _ => Some(module).filter(|&module| module != "lib"),
        }
    }

    /// The code without its tests: items under `#[cfg(test)]` are removed, their lines stay.
    pub(crate) fn without_tests(&self) -> String {
        let mut kept = String::new();
        let mut rest = &*self.code;
        while let Some(at) = rest.find("#[cfg(test)]") {
            let len = item_len(&rest[at..]);
            kept.push_str(&rest[..at]);
            kept.extend(rest[at..at + len].matches('\n'));
            rest = &rest[at + len..];
        }
        kept + rest
    }

    /// Paths behind each `crate::`, also in braces, and each `super::` that means the crate.
    pub(crate) fn crate_paths(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (at, _) in self.code.match_indices("crate::") {
            names.extend(first_names(&self.code[at + "crate::".len()..]));
        }
        let folders = 1 + usize::from(!self.crate_folder().is_empty());
        let depth = self.path.matches('/').count();
        let is_module_root =
            depth == folders || depth == folders + 1 && self.path.ends_with("/mod.rs");
        for line in self.code.lines().filter(|_| is_module_root) {
            // Unindented, so not inside a module of this file.
            let path = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("use super::");
            names.extend(path.map(first_names).unwrap_or_default());
        }
        names
    }

    /// The modules of the library that the code outside of tests names: of this crate, and of others below it.
    pub(crate) fn library_paths(&self) -> BTreeSet<String> {
        let modules: BTreeSet<&str> = super::LAYERS.iter().map(|(_, module, _)| *module).collect();
        let code = self.without_tests();
        let mut names = BTreeSet::new();
        for (at, _) in code.match_indices("dlfs_") {
            let name: String = first_names(&code[at..]).concat();
            match code[at + name.len()..].strip_prefix("::") {
                Some(rest)
                    if super::ROOTS.iter().all(|(_, root)| name != format!("dlfs_{root}")) =>
                {
                    names.extend(first_names(rest));
                }
                _ => names.extend([name]),
            }
        }
        let own = code.match_indices("crate::").flat_map(|(at, _)| first_names(&code[at + 7..]));
        names.extend(own.filter(|name| modules.contains(&**name)));
        names
    }
}

/// Up to the end of the item that begins here: its `;`, or the brace that closes its first one.
fn item_len(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(c, ';' | '}') {
            return at + 1;
        }
    }
    code.len()
}

/// `a::b` gives a; `{a, b::c, d::{e, f}}` gives a, b and d.
fn first_names(code: &str) -> Vec<String> {
    let name = |part: &str| -> String {
        part.trim().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
    };
    let Some(list) = code.strip_prefix('{') else { return vec![name(code)] };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&list[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The files that `mod name;` lines of `path` name, and whether under `#[cfg(test)]`.
pub(crate) fn modules(
    path: &str,
    text: &str,
    is_root: bool,
    all: &[String],
) -> Vec<(String, bool)> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let own = if is_root || file == "mod.rs" {
        folder.to_string()
    } else {
        path.trim_end_matches(".rs").to_string()
    };
    let mut found = Vec::new();
    let mut test_only = false;
    let mut at_path = None;
    for line in text.lines().map(str::trim) {
        if let Some(given) =
            line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"))
        {
            at_path = Some(format!("{folder}/{given}"));
            continue;
        }
        if line.starts_with("#[") {
            test_only |= line.starts_with("#[cfg(") && line.contains("test");
            continue;
        }
        let declared = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")).filter(
            |(before, _)| {
                before.is_empty() || before.starts_with("pub ") || before.starts_with("pub(")
            },
        );
        if let Some((_, name)) = declared {
            let beside = format!("{own}/{name}.rs");
            let inside = format!("{own}/{name}/mod.rs");
            let file =
                at_path.take().unwrap_or(if all.contains(&inside) { inside } else { beside });
            found.push((normal(&file), test_only));
        }
        (test_only, at_path) = (false, None);
    }
    found
}

/// `a/../b` as `b`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// `text` without comments, and with empty strings and characters; line ends stay.
pub(crate) fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(hashes) = raw_string(rest, &code) {
            let open = "#".repeat(hashes);
            let close = format!("\"{}", "#".repeat(hashes));
            let body = 1 + hashes + 1;
            code.push_str(&format!("r{open}\"\"{open}"));
            rest[body..].find(&close).map_or(rest.len(), |end| body + end + close.len())
        } else if c == '"' {
            code.push_str("\"\"");
            quoted(rest, '"')
        } else if c == '\'' && is_char(rest) {
            code.push_str("''");
            quoted(rest, '\'')
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        code.extend(rest[..skipped].matches('\n'));
        rest = &rest[skipped..];
    }
    code
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The number of `#` of a raw string that begins here.
fn raw_string(text: &str, before: &str) -> Option<usize> {
    let in_name =
        before.ends_with(|c: char| c.is_alphanumeric() || c == '_') && !before.ends_with('b');
    let rest = text.strip_prefix('r').filter(|_| !in_name)?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// Returns whether a quote begins a character and not a lifetime.
fn is_char(text: &str) -> bool {
    let mut after = text.chars().skip(1);
    after.next() == Some('\\') || after.next() == Some('\'')
}

/// Length of what is quoted here, with both quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}
