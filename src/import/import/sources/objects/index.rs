//! Indexes folders of objects, and lists of objects.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::listed::Listed;
use super::read::{ObjectRoot, push_origin};
use crate::import::sources::found::Samples;
use crate::import::sources::index::{BadEntry, BadReason, Container, Index};
use crate::import::sources::indexing::Indexing;
use crate::import::sources::{Store, list};
use dlfs_base::Result;
use dlfs_base::threads::map_at_once;
use dlfs_format::format::OriginsBuilder;
use dlfs_places::{Client, Object, Place, shown};

/// Indexes the objects of `folders` as samples, with the ids and classes of a local folder with the same names.
pub(super) fn folders(folders: &[Listed]) -> Samples {
    let mut origins = OriginsBuilder::default();
    let mut index = Index::default();
    index.only_field();
    let tops = folders.iter().flat_map(|listed| (0..listed.len()).map(|row| listed.name(row)));
    let mut classes: Vec<&str> = Vec::new();
    for top in tops.filter_map(|name| name.split_once('/')).map(|(top, _)| top) {
        if classes.last() != Some(&top) {
            classes.push(top);
        }
    }
    classes.sort_unstable();
    classes.dedup();
    index.classes = classes.iter().map(|class| class.as_bytes().to_vec()).collect();
    let mut roots = Vec::new();
    for (container, listed) in folders.iter().enumerate() {
        let path = PathBuf::from(listed.address());
        let mut rows: Vec<u32> = (0..listed.len() as u32).collect();
        rows.sort_unstable_by(|a, b| in_order(listed.name(*a as usize), listed.name(*b as usize)));
        for row in rows {
            let row = row as usize;
            let name = listed.name(row);
            let class = name.split_once('/').and_then(|(top, _)| classes.binary_search(&top).ok());
            let object = listed.object(row);
            let len = object.len_bytes;
            let stamp = object.stamp();
            let label = class.map(|class| class as i64);
            match index.push_file(name.as_bytes(), label, len, stamp, container as u32) {
                Ok(()) => push_origin(&mut origins, &listed.client, &object),
                Err(reason) => {
                    index.bad.push(BadEntry::new(name.as_bytes(), reason).within(&path));
                }
            }
        }
        let refused = listed.refused.iter();
        index.bad.extend(refused.map(|key| BadEntry::new(key.as_bytes(), ODD).within(&path)));
        index.containers.push(Container { path, stamp: 0, len_bytes: 0 });
        let client = listed.client.clone();
        roots.push(ObjectRoot { client, prefix: listed.prefix.clone(), cut: 0 });
    }
    Samples { index, store: Store::Objects(roots), origins }
}

/// The order of `folder.rs`: class folders by name, within a class the folders by path, within a folder the files by
/// name; files outside class folders last.
fn in_order(a: &str, b: &str) -> Ordering {
    // The offsets in the name where the class folder and the folder end.
    let ends = |name: &str| {
        let folder = name.rfind('/')?;
        Some((name.find('/').unwrap_or(folder), folder))
    };
    match (ends(a), ends(b)) {
        (Some((a_top, a_folder)), Some((b_top, b_folder))) => a[..a_top]
            .cmp(&b[..b_top])
            .then_with(|| a[..a_folder].cmp(&b[..b_folder]))
            .then_with(|| a[a_folder..].cmp(&b[b_folder..])),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// A list: its location and content.
pub(super) struct ListText {
    /// Path or address, for messages.
    pub(super) path: PathBuf,
    pub(super) text: Vec<u8>,
    /// The store and folder that keys in the list are relative to; `None`: the list is a local file.
    pub(super) beside: Option<(Client, String)>,
}

/// Indexes the objects that lists name. A line is a key beneath the list's folder or an address, and optionally a
/// label.
///
/// # Errors
/// A store does not open or does not answer. Lines that cannot be imported are in `bad`. A list in a store may name
/// only objects of that store and of `hosts`; other lines are bad.
pub(super) fn lists(
    lists: &[ListText],
    hosts: &[Place],
    open: &mut dyn FnMut(&Place) -> Result<Client>,
    indexing: &mut Indexing<'_>,
) -> Result<Samples> {
    let mut origins = OriginsBuilder::default();
    let mut index = Index::default();
    index.only_field();
    let mut roots = Roots::default();
    for list in lists {
        let bad = |line: &[u8], reason| BadEntry::new(&shown_line(line), reason).within(&list.path);
        let mut lines = Vec::new();
        for line in list::lines(&list.text) {
            match wanted(line, list, hosts, open, &mut roots)? {
                Ok(wanted) => lines.push((line, wanted)),
                Err(reason) => index.bad.push(bad(line, reason)),
            }
        }
        for lines in lines.chunks(AT_ONCE) {
            let found = map_at_once(HEADS, lines, |(_, wanted)| Ok(wanted.head(&roots.all)))?;
            for ((line, wanted), found) in lines.iter().zip(found) {
                let pushed = match found {
                    Ok(object) => {
                        let Wanted { root, name, label } = wanted;
                        let len = object.len_bytes;
                        let name = name.as_bytes();
                        let pushed =
                            index.push_file(name, *label, len, object.stamp(), *root as u32);
                        if pushed.is_ok() {
                            push_origin(&mut origins, &roots.all[*root].client, &object);
                        }
                        pushed.map(|()| len)
                    }
                    Err(error) => Err(super::read::reason(error)?),
                };
                match pushed {
                    Ok(len_bytes) => drop(indexing.found(1, len_bytes)),
                    Err(reason) => index.bad.push(bad(line, reason)),
                }
            }
            indexing.check()?;
        }
    }
    let roots = roots.all;
    for root in &roots {
        let path = PathBuf::from(root.address());
        index.containers.push(Container { path, stamp: 0, len_bytes: 0 });
    }
    Ok(Samples { index, store: Store::Objects(roots), origins })
}

/// The roots of the objects that lines name. Each signed URL has its own root.
#[derive(Default)]
struct Roots {
    all: Vec<ObjectRoot>,
    numbers: HashMap<(Place, String, usize), usize>,
}

impl Roots {
    fn number(&mut self, client: Client, prefix: String, cut: usize) -> usize {
        let key = (client.place().clone(), prefix.clone(), cut);
        *self.numbers.entry(key).or_insert_with(|| {
            self.all.push(ObjectRoot { client, prefix, cut });
            self.all.len() - 1
        })
    }
}

/// The object that a line names, and its label.
struct Wanted {
    root: usize,
    name: String,
    label: Option<i64>,
}

impl Wanted {
    fn head(&self, roots: &[ObjectRoot]) -> Result<Object> {
        let root = &roots[self.root];
        root.client.head(&root.key_of(self.name.as_bytes()))
    }
}

fn wanted(
    line: &[u8],
    list: &ListText,
    hosts: &[Place],
    open: &mut dyn FnMut(&Place) -> Result<Client>,
    roots: &mut Roots,
) -> Result<Result<Wanted, BadReason>> {
    let (path, label) = match list::labelled(line) {
        Ok(labelled) => labelled,
        Err(reason) => return Ok(Err(reason)),
    };
    let Ok(path) = std::str::from_utf8(path) else { return Ok(Err(ODD)) };
    let (client, prefix, cut, name) = match (Place::parse(path), &list.beside) {
        (Ok(place), Some((client, _)))
            if !std::iter::once(client.place()).chain(hosts).any(|own| own.has(&place)) =>
        {
            return Ok(Err(BadReason::OtherHost));
        }
        (Ok(place), _) => {
            let name = format!("{}/{}", place.authority(), place.key());
            (open(&place)?, String::new(), place.authority().len() + 1, name)
        }
        (Err(_), Some((client, folder))) => (client.clone(), folder.clone(), 0, path.to_owned()),
        (Err(_), None) => {
            return Ok(Err(BadReason::Syntax("is no address, unlike the first line of the list")));
        }
    };
    Ok(Ok(Wanted { root: roots.number(client, prefix, cut), name, label }))
}

/// A line for messages, without the parts of an address that may be secret.
fn shown_line(line: &[u8]) -> Vec<u8> {
    let path = Path::new(OsStr::from_bytes(list::split(line).0));
    if Place::is_place(path) { shown(path).into_bytes() } else { line.to_vec() }
}

const ODD: BadReason =
    BadReason::Name("has empty, . or .. parts, or is not UTF-8: it cannot be asked for");
/// Objects looked up together.
const AT_ONCE: usize = 4096;
/// The name of the threads that look objects up.
const HEADS: &str = "dlfs-open";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_as_those_of_a_local_folder() {
        let sorted = ["a/x/1", "a/x/2", "a-b/1", "b/0", "b/a/0", "b/a-c/0", "0", "z"];
        let mut names = sorted.to_vec();
        names.sort_unstable();
        names.sort_unstable_by(|a, b| in_order(a, b));
        assert_eq!(names, sorted);
    }
}
