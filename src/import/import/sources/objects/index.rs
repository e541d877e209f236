//! Lists prefixes in compact form, since a bucket may hold many millions of objects; and indexes folders of objects,
//! and lists of objects.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Clients;
use super::read::{ObjectRoot, push_origin};
use crate::import::sources::content::is_side_file;
use crate::import::sources::file_counts::{FileCounts, HIDDEN, Indexing, Role};
use crate::import::sources::found::{canonical, split_of};
use crate::import::sources::index::{BadEntry, BadReason, Container, Index};
use crate::import::sources::{Source, SourceKind, Store, list};
use dlfs_base::folders::is_dropping;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::OriginsBuilder;
use dlfs_format::format::record::{put_tag, tag_at};
use dlfs_places::{Client, Object, Place, shown};

/// The objects beneath a prefix, or one object.
#[derive(Debug)]
pub(super) struct Listed {
    /// The common prefix of all keys; names are keys without it.
    pub(super) root: ObjectRoot,
    /// Set if the user named the object itself, not a prefix.
    pub(super) is_given: bool,
    /// Keys that no address can name.
    pub(super) refused: Vec<String>,
    /// Objects left out because of their names.
    pub(super) set_aside: FileCounts,
    names: String,
    rows: Vec<Row>,
    tags: Vec<u8>,
}

#[derive(Debug)]
struct Row {
    name: u64,
    len_bytes: u64,
    /// Offset of the object's entity tag in `tags`.
    tag: u64,
}

impl Listed {
    /// Lists the objects beneath a prefix.
    ///
    /// # Errors
    /// Errors of the store. `Interrupted`: indexing was asked to stop.
    pub(super) fn beneath(root: &ObjectRoot, indexing: &mut Indexing<'_>) -> Result<Listed> {
        let mut listed = Listed::empty(root.clone());
        listed.refused = root.client.list(&root.prefix, &mut |object| {
            indexing.found(1, object.len_bytes);
            listed.push(object);
            indexing.check()
        })?;
        Ok(listed)
    }

    /// One object, named after the last part of its key.
    pub(super) fn one(client: Client, object: Object) -> Listed {
        let folder = object.key.rfind('/').map_or(0, |slash| slash + 1);
        let prefix = object.key[..folder].to_owned();
        let mut listed = Listed::empty(ObjectRoot { client, prefix, cut: 0 });
        listed.is_given = true;
        listed.push(object);
        listed
    }

    fn empty(root: ObjectRoot) -> Listed {
        Listed {
            root,
            is_given: false,
            refused: Vec::new(),
            set_aside: FileCounts::default(),
            names: String::new(),
            rows: Vec::new(),
            tags: Vec::new(),
        }
    }

    fn push(&mut self, object: Object) {
        // A web server may list objects outside the prefix.
        let Some(name) =
            object.key.strip_prefix(&*self.root.prefix).filter(|name| !name.is_empty())
        else {
            return;
        };
        let at = self.names.len() as u64;
        let tag = self.tags.len() as u64;
        put_tag(&mut self.tags, object.etag.as_deref());
        self.rows.push(Row { name: at, len_bytes: object.len_bytes, tag });
        self.names.push_str(name);
    }

    /// Leaves out objects whose names are not `wanted`.
    fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        let mut some = Listed::empty(self.root.clone());
        (0..self.len())
            .filter(|row| wanted(self.name(*row)))
            .for_each(|row| some.push(self.object(row)));
        (self.names, self.rows, self.tags) = (some.names, some.rows, some.tags);
    }

    /// Leaves out hidden objects and the droppings of file systems and tools, unless the user named the object itself.
    pub(super) fn leave_out_droppings(&mut self) {
        let is_dropping = |name: &str| is_dropping(name.as_bytes());
        let rows = (0..self.len()).filter(|row| !self.is_given && is_dropping(self.name(*row)));
        let mut counts = FileCounts::default();
        rows.for_each(|row| {
            counts.add(HIDDEN, Role::SetAside, self.len_bytes(row), self.name(row).as_bytes());
        });
        if !counts.0.is_empty() {
            self.retain(|name| !is_dropping(name));
            self.set_aside = counts;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn name(&self, row: usize) -> &str {
        let end = self.rows.get(row + 1).map_or(self.names.len(), |next| next.name as usize);
        &self.names[self.rows[row].name as usize..end]
    }

    pub(super) fn len_bytes(&self, row: usize) -> u64 {
        self.rows[row].len_bytes
    }

    /// The object, with its entity tag.
    pub(super) fn object(&self, row: usize) -> Object {
        let key = format!("{}{}", self.root.prefix, self.name(row));
        let tag = &self.tags[self.rows[row].tag as usize..];
        let etag = tag_at(tag).expect("a tag that was put there");
        Object { key, len_bytes: self.len_bytes(row), etag }
    }

    /// The first `len` bytes of an object, or all if it is shorter.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) fn start(&self, row: usize, len: u64) -> Result<Vec<u8>> {
        let object = self.object(row);
        let mut bytes = vec![0; object.len_bytes.min(len) as usize];
        self.root.client.fetch(&object, 0..bytes.len() as u64).read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// An object's address, for messages.
    pub(super) fn address_of(&self, row: usize) -> String {
        self.root.address_of(self.name(row).as_bytes())
    }
}

/// Keeps only the objects of these splits, and side files, such as the data set's description.
///
/// # Errors
/// `InvalidArgument`: a source is not on the Hub, or the sources have no splits or lack one of these; the error names
/// the splits that exist.
pub(super) fn only_splits(listed: &mut Vec<Listed>, splits: &[String]) -> Result<()> {
    if splits.is_empty() {
        return Ok(());
    }
    if let Some(other) = listed.iter().find(|one| !one.root.is_on_hub()) {
        let text = "splits are taken of data sets on the hub: hf://datasets/OWNER/NAME";
        return Err(Error::new(ErrorKind::InvalidArgument, text).target(other.root.address()));
    }
    let data = |name: &str| !is_side_file(name.as_bytes());
    let names = listed.iter().flat_map(|one| (0..one.len()).map(|row| one.name(row)));
    let found: BTreeSet<Cow<'_, str>> =
        names.filter(|name| data(name)).filter_map(split_of).collect();
    let wanted: Vec<&str> = splits.iter().map(|own| canonical(own).unwrap_or(own)).collect();
    if let Some(missing) = wanted.iter().find(|own| !found.contains(**own)) {
        let text = if found.is_empty() {
            format!("the files do not say of which split they are, so {missing} cannot be taken")
        } else {
            let found = found.iter().map(|split| &**split).collect::<Vec<_>>().join(", ");
            format!("there is no split {missing}; there are {found}")
        };
        let address = listed.first().map(|one| one.root.address()).unwrap_or_default();
        return Err(Error::new(ErrorKind::InvalidArgument, text).target(address));
    }
    let is_wanted = |name: &str| match split_of(name) {
        Some(split) => wanted.contains(&&*split) || !data(name),
        None => !data(name),
    };
    listed.iter_mut().for_each(|one| one.retain(is_wanted));
    listed.retain(|one| !one.is_empty());
    Ok(())
}

/// An index of objects, and the objects themselves.
struct Objects {
    index: Index,
    origins: OriginsBuilder,
}

impl Objects {
    fn new() -> Objects {
        let mut index = Index::default();
        index.only_field();
        Objects { index, origins: OriginsBuilder::default() }
    }

    /// Appends the row of an object in root number `number`, which is `root`.
    fn push(
        &mut self,
        (number, root): (usize, &ObjectRoot),
        name: &str,
        label: Option<i64>,
        object: &Object,
    ) -> Result<(), BadReason> {
        let Object { len_bytes, .. } = object;
        let stamp = object.stamp();
        self.index.push_file(name.as_bytes(), label, *len_bytes, stamp, number as u32)?;
        push_origin(&mut self.origins, &root.client, object);
        Ok(())
    }

    fn source(mut self, kind: SourceKind, roots: Vec<ObjectRoot>) -> Source {
        for root in &roots {
            let path = PathBuf::from(root.address());
            self.index.containers.push(Container { path, stamp: 0, len_bytes: 0 });
        }
        let Objects { index, origins } = self;
        Source { origins, ..Source::new(kind, index, Store::Objects(roots)) }
    }
}

/// Indexes the objects of `folders` as samples, with the ids and classes of a local folder with the same names.
pub(super) fn folders(folders: &[Listed]) -> Source {
    let mut objects = Objects::new();
    let tops = folders.iter().flat_map(|listed| (0..listed.len()).map(|row| listed.name(row)));
    let mut classes: Vec<&str> = Vec::new();
    for top in tops.filter_map(|name| name.split_once('/')).map(|(top, _)| top) {
        if classes.last() != Some(&top) {
            classes.push(top);
        }
    }
    classes.sort_unstable();
    classes.dedup();
    objects.index.classes = classes.iter().map(|class| class.as_bytes().to_vec()).collect();
    for (number, listed) in folders.iter().enumerate() {
        let path = PathBuf::from(listed.root.address());
        let bad = |name: &str, reason| BadEntry::new(name.as_bytes(), reason).within(&path);
        let mut rows: Vec<u32> = (0..listed.len() as u32).collect();
        rows.sort_unstable_by(|a, b| in_order(listed.name(*a as usize), listed.name(*b as usize)));
        for row in rows {
            let name = listed.name(row as usize);
            let class = name.split_once('/').and_then(|(top, _)| classes.binary_search(&top).ok());
            let label = class.map(|class| class as i64);
            let object = listed.object(row as usize);
            if let Err(reason) = objects.push((number, &listed.root), name, label, &object) {
                objects.index.bad.push(bad(name, reason));
            }
        }
        objects.index.bad.extend(listed.refused.iter().map(|key| bad(key, ODD)));
    }
    let roots = folders.iter().map(|listed| listed.root.clone()).collect();
    objects.source(SourceKind::Folder, roots)
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
    pub(super) beside: Option<ObjectRoot>,
}

/// Indexes the objects that lists name. A line is a key beneath the list's folder or an address, and optionally a
/// label.
///
/// # Errors
/// A store does not open or does not answer. Lines that cannot be imported are in `bad`. A list in a store may name
/// only objects of that store and of the hosts that the options name; other lines are bad.
pub(super) fn lists(
    lists: &[ListText],
    clients: &mut Clients<'_>,
    indexing: &mut Indexing<'_>,
) -> Result<Source> {
    let mut objects = Objects::new();
    let mut roots = Roots::default();
    for list in lists {
        let bad = |line: &[u8], reason| BadEntry::new(&shown_line(line), reason).within(&list.path);
        let mut lines = Vec::new();
        for line in list::lines(&list.text) {
            match wanted(line, list, clients, &mut roots)? {
                Ok(wanted) => lines.push((line, wanted)),
                Err(reason) => objects.index.bad.push(bad(line, reason)),
            }
        }
        for lines in lines.chunks(AT_ONCE) {
            let found = map_at_once(HEADS, lines, |(_, wanted)| Ok(wanted.head(&roots.all)))?;
            for ((line, Wanted { root, name, label }), found) in lines.iter().zip(found) {
                let pushed = match found {
                    Ok(object) => {
                        let pushed =
                            objects.push((*root, &roots.all[*root]), name, *label, &object);
                        pushed.map(|()| object.len_bytes)
                    }
                    Err(error) => Err(super::read::reason(error)?),
                };
                match pushed {
                    Ok(len_bytes) => drop(indexing.found(1, len_bytes)),
                    Err(reason) => objects.index.bad.push(bad(line, reason)),
                }
            }
            indexing.check()?;
        }
    }
    Ok(objects.source(SourceKind::List, roots.all))
}

/// The roots of the objects that lines name. Each signed URL has its own root.
#[derive(Default)]
struct Roots {
    all: Vec<ObjectRoot>,
    numbers: HashMap<(Place, String, usize), usize>,
}

impl Roots {
    fn number(&mut self, root: ObjectRoot) -> usize {
        let key = (root.client.place().clone(), root.prefix.clone(), root.cut);
        *self.numbers.entry(key).or_insert_with(|| {
            self.all.push(root);
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
    clients: &mut Clients<'_>,
    roots: &mut Roots,
) -> Result<Result<Wanted, BadReason>> {
    let (path, label) = match list::labelled(line) {
        Ok(labelled) => labelled,
        Err(reason) => return Ok(Err(reason)),
    };
    let Ok(path) = std::str::from_utf8(path) else { return Ok(Err(ODD)) };
    let hosts = &clients.options.list_hosts;
    let (root, name) = match (Place::parse(path), &list.beside) {
        (Ok(place), Some(own))
            if !hosts.iter().chain([own.client.place()]).any(|own| own.has(&place)) =>
        {
            return Ok(Err(BadReason::OtherHost));
        }
        (Ok(place), _) => {
            let name = format!("{}/{}", place.authority(), place.key());
            let cut = place.authority().len() + 1;
            (ObjectRoot { client: clients.of(&place)?, prefix: String::new(), cut }, name)
        }
        (Err(_), Some(own)) => (own.clone(), path.to_owned()),
        (Err(_), None) => {
            return Ok(Err(BadReason::Syntax("is no address, unlike the first line of the list")));
        }
    };
    Ok(Ok(Wanted { root: roots.number(root), name, label }))
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
