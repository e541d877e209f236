//! Modules that name each other: `use` lines and paths, followed through re-exports.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// A path in the crate: modules, then perhaps items.
type Path = Vec<String>;

/// Modules of the same folder that name each other in a circle: the folder, then the modules of each.
pub(crate) fn circles(sources: &[Source]) -> BTreeSet<(String, String)> {
    let mut circles = BTreeSet::new();
    for (folder, edges) in edges_by_folder(sources) {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            edges.keys().map(|from| (from, reachable(from, &edges))).collect();
        for (module, there) in &reached {
            let back =
                |other: &&&String| reached.get(**other).is_some_and(|set| set.contains(module));
            let circle: Vec<&str> = there.iter().filter(back).map(|name| name.as_str()).collect();
            if !circle.is_empty() {
                circles.insert((format!("src/{}", folder.join("/")), circle.join(" ")));
            }
        }
    }
    circles
}

fn reachable<'a>(
    from: &'a String,
    edges: &'a BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut queue = vec![from];
    while let Some(module) = queue.pop() {
        let next = edges.get(module).into_iter().flatten();
        queue.extend(next.filter(|&name| found.insert(name)));
    }
    found
}

/// For each folder, which of its modules name which others; everything beneath a module counts as
/// part of it.
fn edges_by_folder(sources: &[Source]) -> BTreeMap<Path, BTreeMap<String, BTreeSet<String>>> {
    let modules: BTreeSet<Path> = sources.iter().map(|source| module_of(&source.path)).collect();
    let code: Vec<(Path, String)> =
        sources.iter().map(|source| (module_of(&source.path), source.without_tests())).collect();
    let mut handed_on = BTreeMap::new();
    for (module, code) in &code {
        for path in uses(code, true) {
            let name = path.last().cloned().unwrap_or_default();
            if let Some(path) = absolute(module, &path, &modules) {
                handed_on.insert((module.clone(), name), path);
            }
        }
    }
    let mut folders: BTreeMap<Path, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, code) in &code {
        let named = uses(code, false).into_iter().chain(paths(code));
        let named = named.filter_map(|path| absolute(module, &path, &modules));
        for other in named.map(|path| file_of(path, &modules, &handed_on)) {
            let same = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (module.get(same), other.get(same)) {
                let edges = folders.entry(module[..same].to_vec()).or_default();
                edges.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    folders
}

/// `src/a/b.rs` and `src/a/b/mod.rs` are a, b.
fn module_of(path: &str) -> Path {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').filter(|&name| name != "lib").map(str::to_owned).collect()
}

/// The module that defines what `path` names.
fn file_of(
    mut path: Path,
    modules: &BTreeSet<Path>,
    handed_on: &BTreeMap<(Path, String), Path>,
) -> Path {
    for _ in 0..MAX_HOPS {
        let len = (0..=path.len()).rev().find(|&len| modules.contains(&path[..len]));
        let (module, rest) = path.split_at(len.unwrap_or(0));
        let next = rest.first().and_then(|name| handed_on.get(&(module.to_vec(), name.clone())));
        let Some(next) = next else { return module.to_vec() };
        path = [next, &rest[1..]].concat();
    }
    path
}

/// The root of the crate that `module` belongs to.
fn crate_of(module: &Path) -> Path {
    let folder = module.iter().take(1);
    folder.filter(|name| super::LAYERS.iter().any(|(of, _, _)| of == name)).cloned().collect()
}

/// From `src`; `None`: a path into another crate.
fn absolute(module: &Path, path: &Path, modules: &BTreeSet<Path>) -> Option<Path> {
    let mut base = module.clone();
    let mut rest = &path[..];
    match rest.first()?.as_str() {
        "crate" => (base, rest) = (crate_of(module), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        child => {
            let child = [&base[..], &[child.to_owned()]].concat();
            modules.contains(&child).then_some(())?;
        }
    }
    Some([&base[..], rest].concat())
}

/// The names in `use` lines: re-exports, or the others.
fn uses(code: &str, hand_on: bool) -> Vec<Path> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
        let before = code[line..at].trim();
        if (before.is_empty() && !hand_on) || (before.starts_with("pub") && hand_on) {
            let tree = code[at + "use ".len()..].split(';').next().unwrap_or_default();
            expand(&Path::new(), tree, &mut found);
        }
    }
    found
}

/// `a::{b, c as d}` is a, b and a, c.
fn expand(prefix: &Path, tree: &str, found: &mut Vec<Path>) {
    let mut depth = 0;
    let mut start = 0;
    for (at, c) in tree.char_indices().chain([(tree.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = tree[start..at].trim();
                start = (at + 1).min(tree.len());
                let (names, list) = part.split_once('{').unwrap_or((part, ""));
                let names =
                    names.split("::").map(|name| name.split(" as ").next().unwrap_or(name).trim());
                let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
                let path: Path = prefix.iter().cloned().chain(names).collect();
                match list.strip_suffix('}') {
                    Some(list) => expand(&path, list, found),
                    None if path.len() > prefix.len() => found.push(path),
                    None => {}
                }
            }
            _ => {}
        }
    }
}

/// Paths in code, outside of `use`.
fn paths(code: &str) -> Vec<Path> {
    let lines = code.lines().filter(|line| !line.contains("use "));
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = lines.flat_map(|line| line.split(move |c| !is_path(c)));
    let words = words.filter(|word| word.contains("::") && !word.starts_with("::"));
    words.map(|word| word.split("::").map(str::to_owned).collect()).collect()
}

/// The longest chain of re-exports.
const MAX_HOPS: usize = 8;

#[test]
fn a_cycle_through_a_re_export_is_found() {
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
        code: text.to_owned(),
        is_test: false,
    };
    let mut sources = vec![
        source("src/lib.rs", "mod a;"),
        source("src/a/mod.rs", "mod b;\nmod c;\nmod d;\npub use b::{One, Two};\nuse c::Three;"),
        source("src/a/b.rs", "use super::c::{self, Three};\npub struct One;"),
        source("src/a/c.rs", "pub struct Three;"),
        source("src/a/d/mod.rs", "mod e;"),
        source("src/a/d/e.rs", "fn f() { crate::a::One }"),
    ];
    assert!(circles(&sources).is_empty(), "{:?}", circles(&sources));
    sources[3] = source("src/a/c.rs", "use super::{\n    d,\n};");
    assert_eq!(circles(&sources), [("src/a".to_owned(), "b c d".to_owned())].into());
}
