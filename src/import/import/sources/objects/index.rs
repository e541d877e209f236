//! Indexes objects: those beneath a prefix, from the store's listing, and those that lists name. [`ObjectRoot`] finds
//! the object of a row of the index again.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Clients;
use crate::import::sources::bad::{BadEntry, BadReason};
use crate::import::sources::content::is_side_file;
use crate::import::sources::hub_splits::{canonical, split_of};
use crate::import::sources::index::{Container, Index, Payload};
use crate::import::sources::indexing::Indexing;
use crate::import::sources::listing::{self, Listing};
use crate::import::sources::{OpenContainers, Source, SourceKind, list};
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::OriginsBuilder;
use dlfs_format::format::record::{put_tag, tag_at};
use dlfs_places::{Client, Object, Pending, Place, Scheme, shown};

/// The objects beneath a prefix, or one object.
pub(super) type Listed = Listing<Prefix>;

/// The common prefix of some objects; names are keys without it.
#[derive(Debug)]
pub(super) struct Prefix {
    /// The location of the objects.
    pub(super) at: ObjectRoot,
    /// Set if the user named the object itself, not a prefix.
    pub(super) is_given: bool,
    /// The entity tags, encoded; the stamp of an object in the listing is the offset of its tag here.
    tags: Vec<u8>,
}

impl Listing<Prefix> {
    /// Lists the objects beneath a prefix.
    ///
    /// # Errors
    /// Errors of the store. `Interrupted`: indexing was asked to stop.
    pub(super) fn beneath(at: ObjectRoot, indexing: &mut Indexing<'_>) -> Result<Listed> {
        let mut listed = Listing::new(Prefix { at: at.clone(), is_given: false, tags: Vec::new() });
        let refused = at.client.list(&at.prefix, &mut |object| {
            indexing.found(1, object.len_bytes);
            listed.push_object(&object);
            indexing.check()
        })?;
        listed.bad.extend(refused.iter().map(|key| BadEntry::new(key.as_bytes(), BAD_KEY)));
        Ok(listed)
    }

    /// One object, named after the last component of its key.
    pub(super) fn one(client: Client, object: &Object) -> Listed {
        let folder = object.key.rfind('/').map_or(0, |slash| slash + 1);
        let prefix = object.key[..folder].to_owned();
        let at = ObjectRoot { client, prefix, cut: 0 };
        let mut listed = Listing::new(Prefix { at, is_given: true, tags: Vec::new() });
        listed.push_object(object);
        listed
    }

    /// Adds an object beneath the prefix.
    fn push_object(&mut self, object: &Object) {
        // A web server may also list objects outside the prefix.
        let name = object.key.strip_prefix(&*self.root.at.prefix);
        let Some(name) = name.filter(|name| !name.is_empty()) else { return };
        self.push(name.as_bytes(), object.len_bytes, self.root.tags.len() as u64);
        put_tag(&mut self.root.tags, object.etag.as_deref());
    }

    /// The name as a path.
    pub(super) fn path(&self, row: usize) -> &Path {
        Path::new(OsStr::from_bytes(self.name(row)))
    }

    /// The object, with its entity tag.
    pub(super) fn object(&self, row: usize) -> Object {
        let key = self.root.at.key_of(self.name(row));
        let etag = tag_at(&self.root.tags[self.stamp(row) as usize..]);
        let etag = etag.expect("a tag that was put there");
        Object { key, len_bytes: self.len_bytes(row), etag }
    }

    /// The first `len` bytes of an object, or all if it is shorter.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) fn start(&self, row: usize, len: u64) -> Result<Vec<u8>> {
        let object = self.object(row);
        let mut bytes = vec![0; object.len_bytes.min(len) as usize];
        self.root.at.client.fetch(&object, 0..bytes.len() as u64).read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// An object's address, for messages.
    pub(super) fn address_of(&self, row: usize) -> String {
        self.root.at.address_of(self.name(row))
    }
}

/// The location of the objects of some rows. A key is `prefix` followed by the row's name without its first `cut`
/// bytes.
#[derive(Debug, Clone)]
pub(crate) struct ObjectRoot {
    pub(super) client: Client,
    /// Empty, or with a slash at its end.
    pub(super) prefix: String,
    /// Bytes at the beginning of names that are not part of keys.
    pub(crate) cut: usize,
}

impl ObjectRoot {
    /// The prefix's address, for messages.
    pub(super) fn address(&self) -> String {
        self.client.place().with_key(&*self.prefix).to_string()
    }

    /// Returns whether the objects are on the Hugging Face Hub.
    pub(super) fn is_on_hub(&self) -> bool {
        self.client.place().scheme() == Scheme::Hf
    }

    /// The address of a row's object, for messages.
    pub(crate) fn address_of(&self, name: &[u8]) -> String {
        self.client.place().with_key(self.key_of(name)).to_string()
    }

    /// Requests bytes of the payload of the row called `name`.
    pub(crate) fn fetch(&self, name: &[u8], payload: &Payload, bytes: Range<u64>) -> Pending {
        let Payload { len_bytes, offset_or_stamp, .. } = *payload;
        self.client.fetch_stamped(&self.key_of(name), len_bytes.into(), offset_or_stamp, bytes)
    }

    /// The key of the object of the row called `name`.
    pub(super) fn key_of(&self, name: &[u8]) -> String {
        format!("{}{}", self.prefix, String::from_utf8_lossy(&name[self.cut..]))
    }
}

/// Records an imported object.
pub(crate) fn push_origin(origins: &mut OriginsBuilder, client: &Client, object: &Object) {
    let address = client.place().with_key(&*object.key).to_string();
    origins.push(&address, object.len_bytes, object.etag.as_deref());
}

/// The reason why one object cannot be imported.
///
/// # Errors
/// The failure concerns the whole store, not one object.
pub(crate) fn reason(error: Error) -> Result<BadReason> {
    match error.kind() {
        ErrorKind::BadSource => Ok(BadReason::Changed),
        ErrorKind::NotFound => Ok(BadReason::Unreadable(libc::ENOENT)),
        ErrorKind::Refused => Ok(BadReason::Unreadable(libc::EACCES)),
        ErrorKind::InvalidArgument => {
            Ok(BadReason::Name("has empty, . or .. parts: it cannot be asked for"))
        }
        _ => Err(error),
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
    if let Some(other) = listed.iter().find(|one| !one.root.at.is_on_hub()) {
        let text = "splits are taken of data sets on the hub: hf://datasets/OWNER/NAME";
        return Err(Error::new(ErrorKind::InvalidArgument, text).target(other.root.at.address()));
    }
    let names = listed.iter().flat_map(|one| (0..one.len()).map(|row| one.name(row)));
    let found: BTreeSet<Cow<'_, str>> =
        names.filter(|name| !is_side_file(name)).filter_map(split_of).collect();
    let wanted: Vec<&str> = splits.iter().map(|split| canonical(split).unwrap_or(split)).collect();
    if let Some(missing) = wanted.iter().find(|split| !found.contains(**split)) {
        let text = if found.is_empty() {
            format!("the files do not say of which split they are, so {missing} cannot be taken")
        } else {
            let found = found.iter().map(|split| &**split).collect::<Vec<_>>().join(", ");
            format!("there is no split {missing}; there are {found}")
        };
        let address = listed.first().map(|one| one.root.at.address()).unwrap_or_default();
        return Err(Error::new(ErrorKind::InvalidArgument, text).target(address));
    }
    let is_wanted = |name: &[u8]| {
        is_side_file(name) || split_of(name).is_some_and(|split| wanted.contains(&&*split))
    };
    listed.iter_mut().for_each(|one| one.retain(is_wanted));
    listed.retain(|one| one.len() > 0);
    Ok(())
}

/// Indexes the objects of `folders` as samples, with the ids and classes of a local folder with the same names.
pub(super) fn folders(mut folders: Vec<Listed>) -> Source {
    folders.iter_mut().for_each(Listing::sort);
    let mut origins = OriginsBuilder::default();
    let path = |root: &Prefix| PathBuf::from(root.at.address());
    let index = listing::index(&folders, true, path, |listed, row| {
        let object = listed.object(row);
        push_origin(&mut origins, &listed.root.at.client, &object);
        object.stamp()
    });
    let roots = folders.into_iter().map(|listed| listed.root.at).collect();
    Source { origins, ..Source::new(SourceKind::Folder, index, OpenContainers::Objects(roots)) }
}

/// A list: its location and content.
pub(super) struct ListText {
    /// Path or address, for messages.
    pub(super) path: PathBuf,
    /// The content.
    pub(super) text: Vec<u8>,
    /// The folder of the list, to which keys in it are relative; `None`: the list is a local file.
    pub(super) folder: Option<ObjectRoot>,
}

/// Indexes the objects that lists name. A line is a key beneath the list's folder or an address, and optionally a
/// label. A list in a store may name only objects of that store and of the hosts that the options name. Other lines,
/// and lines that cannot be imported, are in [`Index::bad`].
///
/// # Errors
/// A store does not open or does not answer. `Interrupted`: indexing was asked to stop.
pub(super) fn lists(
    lists: &[ListText],
    clients: &mut Clients<'_>,
    indexing: &mut Indexing<'_>,
) -> Result<Source> {
    let mut index = Index::default();
    index.only_field();
    let mut origins = OriginsBuilder::default();
    let mut roots = Roots::default();
    for list in lists {
        let bad = |line: &[u8], reason| BadEntry::new(&shown_line(line), reason).within(&list.path);
        let mut lines = Vec::new();
        for line in list::lines(&list.text) {
            match parse_line(line, list, clients, &mut roots)? {
                Ok(named) => lines.push((line, named)),
                Err(reason) => index.bad.push(bad(line, reason)),
            }
        }
        for lines in lines.chunks(AT_ONCE) {
            let found = map_at_once(HEADS, lines, |(_, (root, name, _))| {
                let root = &roots.all[*root];
                Ok(root.client.head(&root.key_of(name.as_bytes())))
            })?;
            for ((line, (root, name, label)), found) in lines.iter().zip(found) {
                let pushed = match found {
                    Ok(object) => {
                        let len = object.len_bytes;
                        let stamp = object.stamp();
                        let name = name.as_bytes();
                        index.push_file(name, *label, len, stamp, *root as u32).map(|()| {
                            push_origin(&mut origins, &roots.all[*root].client, &object);
                            len
                        })
                    }
                    Err(error) => Err(reason(error)?),
                };
                match pushed {
                    Ok(len_bytes) => drop(indexing.found(1, len_bytes)),
                    Err(reason) => index.bad.push(bad(line, reason)),
                }
            }
            indexing.check()?;
        }
    }
    for root in &roots.all {
        let path = PathBuf::from(root.address());
        index.containers.push(Container { path, stamp: 0, len_bytes: 0 });
    }
    Ok(Source {
        origins,
        ..Source::new(SourceKind::List, index, OpenContainers::Objects(roots.all))
    })
}

/// The distinct roots of the objects that lines name. Each signed URL has its own root.
#[derive(Default)]
struct Roots {
    all: Vec<ObjectRoot>,
    /// The index in `all` of the root with this store, prefix and `cut`.
    numbers: HashMap<(Place, String, usize), usize>,
}

impl Roots {
    /// The number of a root, which is added if it is new.
    fn number(&mut self, root: ObjectRoot) -> usize {
        let key = (root.client.place().clone(), root.prefix.clone(), root.cut);
        *self.numbers.entry(key).or_insert_with(|| {
            self.all.push(root);
            self.all.len() - 1
        })
    }
}

/// An object that a line names: the number of its root, its name, and its label.
type NamedObject = (usize, String, Option<i64>);

/// Parses a line of a list. The inner error: the line is bad.
fn parse_line(
    line: &[u8],
    list: &ListText,
    clients: &mut Clients<'_>,
    roots: &mut Roots,
) -> Result<Result<NamedObject, BadReason>> {
    let (path, label) = match list::labelled(line) {
        Ok(labelled) => labelled,
        Err(reason) => return Ok(Err(reason)),
    };
    let Ok(path) = std::str::from_utf8(path) else { return Ok(Err(BAD_KEY)) };
    let hosts = &clients.options.list_hosts;
    let (root, name) = match (Place::parse(path), &list.folder) {
        (Ok(place), Some(folder))
            if !hosts.iter().chain([folder.client.place()]).any(|host| host.has(&place)) =>
        {
            return Ok(Err(BadReason::OtherHost));
        }
        (Ok(place), _) => {
            let name = format!("{}/{}", place.authority(), place.key());
            let cut = place.authority().len() + 1;
            (ObjectRoot { client: clients.of(&place)?, prefix: String::new(), cut }, name)
        }
        (Err(_), Some(folder)) => (folder.clone(), path.to_owned()),
        (Err(_), None) => {
            return Ok(Err(BadReason::Syntax("is no address, unlike the first line of the list")));
        }
    };
    Ok(Ok((roots.number(root), name, label)))
}

/// A line in the form for messages: without the parts of an address that may be secret.
fn shown_line(line: &[u8]) -> Vec<u8> {
    let path = Path::new(OsStr::from_bytes(list::split(line).0));
    if Place::is_place(path) { shown(path).into_bytes() } else { line.to_vec() }
}

/// The reason why an object of this key cannot be imported.
const BAD_KEY: BadReason =
    BadReason::Name("has empty, . or .. parts, or is not UTF-8: it cannot be asked for");
/// Objects looked up together.
const AT_ONCE: usize = 4096;
/// The name of the threads that look objects up.
const HEADS: &str = "dlfs-open";
