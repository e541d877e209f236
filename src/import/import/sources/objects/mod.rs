//! Objects of stores as sources: folders of objects, shards, and lists.
//!
//! This file detects the kind of an import's objects: samples, shards or lists. Then read `index.rs`.
//!
//! A folder of objects is indexed from its listing alone, in the order of a local folder. Payloads are then read in the
//! order of placement; the payloads of a chunk are requested concurrently. Shards are streams: they are read once,
//! front to back. A local list names objects of any store by address. A list in a store names objects of its folder by
//! key. It names others by address, but only those of that store and of the hosts that the options name.

mod index;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use self::index::{ListText, Listed, only_splits};
pub(crate) use self::index::{ObjectRoot, push_origin, reason};
use super::compression::decompressed;
use super::content::{Content, is_shard_name, is_side_file, is_tokens_name, named_kind};
use super::detect::{SIDE, braces};
use super::expansion::Expansion;
use super::file_counts::{FileCounts, Role};
use super::found::{Decided, Found, FoundFile};
use super::hub_splits::split_of;
use super::indexing::Indexing;
use super::list;
use super::shard_index::{self, INDEX, Indexed, MAX_INDEX_BYTES, MERGED};
use super::source_kind::SourceKind;
use super::tar::{self, Pair};
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_places::{Client, Object, Place, PlaceOptions};

/// Returns whether the paths are addresses of objects, or local lists of addresses.
///
/// # Errors
/// `InvalidArgument`: some are addresses and some are paths.
pub(crate) fn are_objects(paths: &[PathBuf], kind: SourceKind) -> Result<bool> {
    let places = paths.iter().filter(|path| Place::is_place(path)).count();
    if places > 0 && places < paths.len() {
        let text = "some of the sources are objects of a store and some are files";
        return Err(Error::invalid(text, "import them one after the other"));
    }
    let may_be_lists = matches!(kind, SourceKind::Auto | SourceKind::List) && !paths.is_empty();
    Ok(places > 0 || may_be_lists && paths.iter().all(|path| is_list_of_objects(path)))
}

/// Returns whether the first line of a file is the address of an object.
fn is_list_of_objects(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let mut head = Vec::new();
    let mut read = || File::open(path)?.take(MAX_LINE_BYTES).read_to_end(&mut head);
    if !is_file || read().is_err() {
        return false;
    }
    let first = list::lines(&head).next().unwrap_or_default();
    Place::is_place(Path::new(OsStr::from_bytes(list::split(first).0)))
}

/// Finds the objects of `paths`, for which [`are_objects`] is true. Takes only these `splits` of data sets on the
/// Hugging Face Hub; all splits if the list is empty.
///
/// # Errors
/// Errors of the stores. `NotFound`: there is no object. `BadSource`, `InvalidArgument`, `Unsupported`: objects of
/// several kinds, or of a kind that is not read from stores.
pub(crate) fn find(
    paths: &[PathBuf],
    splits: &[String],
    places: &PlaceOptions,
    indexing: &mut Indexing<'_>,
) -> Result<Found> {
    let mut clients = Clients { options: places, open: HashMap::new(), threads: Vec::new() };
    if !paths.iter().any(|path| Place::is_place(path)) {
        let text = |path: &PathBuf| {
            let text = std::fs::read(path).map_err(|error| Error::from(error).path(path))?;
            Ok(ListText { path: path.clone(), text, folder: None })
        };
        let texts = paths.iter().map(text).collect::<Result<Vec<_>>>()?;
        let samples = Some(index::lists(&texts, &mut clients, indexing)?);
        return Ok(Found { kind: SourceKind::List, samples, ..Found::default() });
    }
    let mut listed = list_all(paths, &mut clients, indexing)?;
    only_splits(&mut listed, splits)?;
    if !indexing.options.folders.hidden {
        let beneath = listed.iter_mut().filter(|one| !one.root.is_given);
        beneath.for_each(Listed::leave_out_droppings);
    }
    match indexing.options.kind {
        SourceKind::Folder => samples(listed),
        SourceKind::List => lists(&listed, &mut clients, indexing),
        SourceKind::Auto => auto(listed, &mut clients, indexing),
        kind => shards(&listed, kind, false),
    }
}

/// One client for each store; clients of the same web server share a thread.
struct Clients<'a> {
    options: &'a PlaceOptions,
    /// The clients, by the address of the whole store.
    open: HashMap<Place, Client>,
    /// The first client of each thread.
    threads: Vec<Client>,
}

impl Clients<'_> {
    /// The client of the store that contains `place`, opened if need be.
    ///
    /// # Errors
    /// Errors of opening. `InvalidArgument`: there are too many stores.
    fn of(&mut self, place: &Place) -> Result<Client> {
        let store = place.with_key("");
        if let Some(client) = self.open.get(&store) {
            return Ok(client.clone());
        }
        let too_many =
            |text: &'static str| Err(Error::invalid(text, "import them in parts, with --append"));
        if self.open.len() == MOST_URLS {
            return too_many("the sources are URLs with more than 100,000 users and queries");
        }
        let beside = self.threads.iter().find(|client| client.place().is_same_server(place));
        let client = match beside {
            Some(client) => client.beside(place)?,
            None if self.threads.len() == MOST_THREADS => {
                return too_many("the sources are in more than 64 stores");
            }
            None => {
                let client = Client::open(place, self.options)?;
                self.threads.push(client.clone());
                client
            }
        };
        self.open.insert(store, client.clone());
        Ok(client)
    }
}

/// Finds the objects of `paths`: each is an object or a prefix.
fn list_all(
    paths: &[PathBuf],
    clients: &mut Clients<'_>,
    indexing: &mut Indexing<'_>,
) -> Result<Vec<Listed>> {
    let mut places = Vec::new();
    for path in paths {
        for path in braces(path).unwrap_or_else(|| vec![path.clone()]) {
            let place = Place::of_path(&path)?;
            places.push((clients.of(&place)?, place));
        }
    }
    // Look up objects concurrently, since each costs a round trip.
    let given = map_at_once(OPENING, &places, |(client, place)| {
        Ok((!place.is_folder()).then(|| client.file(place.key())))
    })?;
    let mut all = Vec::new();
    for ((client, place), given) in places.into_iter().zip(given) {
        // Without an object of this key, the key is a prefix.
        let absent = match given {
            Some(Ok(object)) => {
                indexing.found(1, object.len_bytes);
                all.push(Listed::one(client, &object));
                continue;
            }
            // A store that does not let the client list reports `Refused` for an absent object.
            Some(Err(error))
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Refused) =>
            {
                return Err(error);
            }
            Some(Err(error)) => error,
            None => {
                let text = "there is no object with this prefix";
                Error::new(ErrorKind::NotFound, text).target(place.to_string())
            }
        };
        let prefix = match place.key() {
            "" => String::new(),
            key => format!("{}/", key.trim_end_matches('/')),
        };
        match Listed::beneath(ObjectRoot { client, prefix, cut: 0 }, indexing) {
            Ok(listed) if listed.len() > 0 || !listed.bad.is_empty() => all.push(listed),
            Err(error) if place.is_folder() || is_away(&error) => return Err(error),
            _ => return Err(absent),
        }
    }
    Ok(all)
}

/// Returns whether the store did not answer, so that its contents are unknown.
fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Disconnected | ErrorKind::TimedOut)
}

/// Detects the kind of the objects from the content of some, and finds them as that kind.
fn auto(
    listed: Vec<Listed>,
    clients: &mut Clients<'_>,
    indexing: &mut Indexing<'_>,
) -> Result<Found> {
    let mut contents = Vec::new();
    for one in listed.iter().filter(|one| one.len() > 0) {
        let (row, content) = telling_content(one)?;
        contents.push((one, row, content));
    }
    if let Some((one, _, content)) = contents.iter().find(|(.., content)| content.is_shard()) {
        return match content.kind() {
            SourceKind::Auto => {
                let text =
                    format!("objects of this kind are not read from stores: {}", content.label());
                let hint =
                    "copy them here first, or import each object as one sample with --from folder";
                let address = one.root.at.address();
                Err(Error::new(ErrorKind::Unsupported, text).target(address).hint(hint))
            }
            SourceKind::Tar => tars(&listed),
            kind => shards(&listed, kind, true),
        };
    }
    if !listed.iter().all(|one| one.root.is_given) {
        return samples(listed);
    }
    for (one, row, content) in contents {
        let start = one.start(row, START_BYTES)?;
        if content != Content::Other || !is_text(&start) {
            let text = "cannot tell what this object is";
            return Err(Error::new(ErrorKind::BadSource, text)
                .target(one.address_of(row))
                .hint(list::SAY_KIND));
        }
    }
    lists(&listed, clients, indexing)
}

/// The row of the object that tells the kind of the others best, and its content. `one` is not empty.
fn telling_content(one: &Listed) -> Result<(usize, Content)> {
    // Prefer the first object with a shard's name, then the first that is not a side file, then the first.
    let named = (0..one.len()).filter(|row| is_shard_name(one.name(*row)));
    let other = (0..one.len()).find(|row| !is_side_file(one.name(*row)));
    let mut candidates = named.chain(other);
    let mut row = candidates.next().unwrap_or(0);
    let mut found = content(one, row)?;
    // An object called `index.json` need not be an index of shards.
    while !found.is_shard()
        && is_index(one.name(row))
        && let Some(next) = candidates.next()
    {
        row = next;
        found = content(one, row)?;
    }
    // Megatron's tokens may look like anything, but their index does not.
    let mut rows = 0..one.len();
    if !found.is_shard()
        && let Some(index) = rows.find(|row| is_index_of(SourceKind::Megatron, one.name(*row)))
    {
        let of_index = content(one, index)?;
        if of_index.is_shard() {
            (row, found) = (index, of_index);
        }
    }
    Ok((row, found))
}

/// Finds tar archives, and detects from up to [`MOST_LOOKED_AT`] of them whether they are WebDataset shards. The first
/// 256 KiB of the first archive usually tell. Otherwise reads more of the first archive, if there is more, and
/// concurrently the beginnings of the others, since each request takes the store's delay.
fn tars(listed: &[Listed]) -> Result<Found> {
    let rows = listed.iter().flat_map(|one| (0..one.len()).map(move |row| (one, row)));
    let tars =
        rows.filter(|(one, row)| one.root.is_given || is_shard_of(SourceKind::Tar, one.name(*row)));
    let tars: Vec<_> = tars.take(MOST_LOOKED_AT).collect();
    let look = |at: usize, most: MostLookedAt| -> Result<_> {
        let (one, row) = tars[at];
        Ok((one.name(row).to_vec(), pair_at_beginning(one, row, most)?))
    };
    let mut looked_at = Vec::new();
    if !tars.is_empty() {
        looked_at.push(look(0, BEGINNING)?);
    }
    if looked_at.iter().all(|(_, pair)| pair.is_none()) {
        let is_longer =
            tars.first().is_some_and(|(one, row)| one.len_bytes(*row) > BEGINNING.bytes);
        let left: Vec<_> = (usize::from(!is_longer)..tars.len()).collect();
        let most = |at: usize| if at == 0 { LONG_MEMBERS } else { BEGINNING };
        looked_at.extend(map_at_once(OPENING, &left, |&at| look(at, most(at)))?);
    }
    let decided = Decided::by(looked_at.into_iter().map(Ok))?;
    let found = shards(listed, decided.kind(), true)?;
    Ok(Found { decided: Some(decided), ..found })
}

/// Returns whether the beginning of an object is text that is not blank.
fn is_text(start: &[u8]) -> bool {
    let whole = start.len() < START_BYTES as usize;
    let text = std::str::from_utf8(start).or_else(|error| match error.error_len() {
        None if !whole => std::str::from_utf8(&start[..error.valid_up_to()]),
        _ => Err(error),
    });
    text.is_ok_and(|text| !text.contains('\0') && !text.trim().is_empty())
}

/// Detects an object's content from its first bytes.
fn content(one: &Listed, row: usize) -> Result<Content> {
    let name = one.name(row);
    let start = one.start(row, if is_index(name) { MAX_INDEX_BYTES } else { START_BYTES })?;
    Ok(Content::of(|at| &start[start.len().min(at as usize)..], name)?)
}

/// How much of an archive is read to find two members with one key.
#[derive(Clone, Copy)]
struct MostLookedAt {
    bytes: u64,
    members: u32,
    /// Length of the first request; each later one has twice the length of the one before.
    first_bytes: u64,
}

/// The beginning of an archive, which one request reads.
const BEGINNING: MostLookedAt =
    MostLookedAt { bytes: 256 << 10, members: tar::MEMBERS_LOOKED_AT, first_bytes: 256 << 10 };
/// For an archive whose first members are longer than the beginning: a pair is usually among the first few members.
const LONG_MEMBERS: MostLookedAt =
    MostLookedAt { bytes: u64::MAX, members: 8, first_bytes: 1 << 20 };

/// Two consecutive files with one key, in as much of an archive as `most` allows to read.
fn pair_at_beginning(one: &Listed, row: usize, most: MostLookedAt) -> Result<Option<Pair>> {
    let reader = Pieces {
        client: one.root.at.client.clone(),
        object: one.object(row),
        at: 0,
        next_len: most.first_bytes,
        piece: Cursor::default(),
    };
    let reader = reader.take(most.bytes);
    let plain = decompressed(Box::new(reader), one.path(row), &Expansion::default())?;
    Ok(tar::pair_at_beginning(plain, most.members))
}

/// Reads an object front to back, in pieces of increasing length: usually the first piece suffices.
struct Pieces {
    client: Client,
    object: Object,
    /// Offset of the next piece.
    at: u64,
    /// Length of the next piece, if the object has as many bytes left.
    next_len: u64,
    /// The piece that is being read.
    piece: Cursor<Vec<u8>>,
}

impl Read for Pieces {
    /// Wraps the error of a store, which `std::io::Error::downcast` recovers.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let is_read = self.piece.position() == self.piece.get_ref().len() as u64;
        if is_read && self.at < self.object.len_bytes {
            let most = self.client.range_bytes().min(self.object.len_bytes - self.at);
            let len = self.next_len.min(most);
            let mut piece = vec![0; len as usize];
            let asked = self.client.fetch(&self.object, self.at..self.at + len);
            asked.read_into(&mut piece).map_err(io::Error::other)?;
            self.piece = Cursor::new(piece);
            self.at += len;
            self.next_len = 2 * len;
        }
        self.piece.read(into)
    }
}

/// Returns whether an object has the name of an MDS or LitData index.
fn is_index(name: &[u8]) -> bool {
    name.rsplit(|byte| *byte == b'/').next() == Some(INDEX)
}

/// Returns whether an object may be a shard of this kind, judging by its name.
fn is_shard_of(kind: SourceKind, name: &[u8]) -> bool {
    match kind {
        SourceKind::Megatron => return is_index_of(kind, name),
        // Any bytes may be tokens, so only the name tells, as it does in folders.
        SourceKind::Tokens => return is_tokens_name(name),
        _ => {}
    }
    let kind = if kind == SourceKind::WebDataset { SourceKind::Tar } else { kind };
    let is_another = named_kind(name).is_some_and(|named| named != kind);
    is_shard_name(name) && !is_another && (kind.has_index() || !is_index(name))
}

/// Returns whether an object has the name of an index of this kind.
fn is_index_of(kind: SourceKind, name: &[u8]) -> bool {
    match kind {
        SourceKind::Megatron => {
            shard_index::tokens_of(Path::new(OsStr::from_bytes(name))).is_some()
        }
        kind => kind.has_index() && is_index(name),
    }
}

/// Finds the shards of a kind that the caller named, or that was `detected`. Beneath a prefix, shards are the objects
/// with shard names of the kind; if there are none, all objects that are not side files. Other objects beside shards of
/// a detected kind must be side files, or be named by an index.
fn shards(listed: &[Listed], kind: SourceKind, detected: bool) -> Result<Found> {
    let mut files = Vec::new();
    let mut file_counts = FileCounts::default();
    let label = Content::of_kind(kind).label();
    for one in listed {
        file_counts.append(one.file_counts.0.iter().cloned());
        let by_name = (0..one.len()).any(|row| is_shard_of(kind, one.name(row)));
        let indexes = (0..one.len()).filter(|row| is_index_of(kind, one.name(*row)));
        let indexes = indexes.map(|row| {
            let path = one.path(row).to_path_buf();
            let parts = shard_index::parts_of(&path, || one.start(row, MAX_INDEX_BYTES))?;
            Ok((parts, path))
        });
        let Indexed { parts, merged } = Indexed::new(indexes.collect::<Result<_>>()?);
        for row in 0..one.len() {
            let name = one.name(row);
            let is_side = is_side_file(name);
            let is_shard = is_shard_of(kind, name);
            let is_part = kind.has_index() && !is_index_of(kind, name);
            let is_known = if is_part { parts.contains(one.path(row)) } else { is_shard };
            if detected && by_name && !one.root.is_given && !is_known && !is_side {
                let text = "there are shards and other objects";
                let error = Error::new(ErrorKind::BadSource, text).target(one.address_of(row));
                return Err(error.hint(OTHERS));
            }
            let is_taken = one.root.is_given || if by_name { is_shard } else { !is_side };
            let (what, role) = if is_part && !is_side {
                (Cow::from("shard of an index"), Role::Shard)
            } else if !is_part && merged.contains(one.path(row)) {
                (MERGED.into(), Role::SetAside)
            } else if is_part || !is_taken {
                (SIDE.into(), Role::SetAside)
            } else {
                let path = PathBuf::from(one.address_of(row));
                let object = Some((one.root.at.client.clone(), one.object(row)));
                files.push(FoundFile { path, name: name.to_vec(), object });
                // The counts show a user who names a whole data set which splits are taken.
                let split = split_of(name).filter(|_| one.root.at.is_on_hub());
                let named = split.map(|split| format!("{label}, split {split}").into());
                (named.unwrap_or(label.clone()), Role::Shard)
            };
            file_counts.add(&what, role, one.len_bytes(row), name);
        }
    }
    if files.is_empty() {
        let text = format!("there are no {kind} shards");
        return Err(Error::new(ErrorKind::BadSource, text).target(listed[0].root.at.address()));
    }
    Ok(Found::of_shards(kind, files, file_counts))
}

/// Indexes the objects beneath prefixes, each as a sample.
fn samples(listed: Vec<Listed>) -> Result<Found> {
    if let Some(one) = listed.iter().find(|one| one.root.is_given) {
        let text = "a folder of samples is a prefix, and this is an object";
        return Err(Error::new(ErrorKind::InvalidArgument, text).target(one.address_of(0)));
    }
    let mut file_counts = FileCounts::default();
    for one in &listed {
        file_counts.append(one.file_counts.0.iter().cloned());
        (0..one.len()).for_each(|row| {
            file_counts.add("object", Role::Sample, one.len_bytes(row), one.name(row));
        });
    }
    let samples = Some(index::folders(listed));
    Ok(Found { kind: SourceKind::Folder, samples, file_counts, ..Found::default() })
}

/// Indexes the objects that lists in stores name.
fn lists(
    listed: &[Listed],
    clients: &mut Clients<'_>,
    indexing: &mut Indexing<'_>,
) -> Result<Found> {
    let mut texts = Vec::new();
    let mut file_counts = FileCounts::default();
    for (one, row) in listed.iter().flat_map(|one| (0..one.len()).map(move |row| (one, row))) {
        let text = one.start(row, u64::MAX)?;
        file_counts.add("list", Role::List, text.len() as u64, one.name(row));
        let path = PathBuf::from(one.address_of(row));
        texts.push(ListText { path, text, folder: Some(one.root.at.clone()) });
    }
    let samples = Some(index::lists(&texts, clients, indexing)?);
    Ok(Found { kind: SourceKind::List, samples, file_counts, ..Found::default() })
}

/// The hint for shards beside other objects.
const OTHERS: &str = "--from webdataset|tar|tfrecord|parquet|... imports the shards and sets the rest aside; --from \
                      folder imports each object as one sample, as it is";
/// Maximum clients: each takes some kilobytes.
const MOST_URLS: usize = 100_000;
/// Archives whose beginnings are read, to tell WebDataset shards from plain archives.
const MOST_LOOKED_AT: usize = 4;
/// Limit of stores: each takes a thread and its connections.
const MOST_THREADS: usize = 64;
/// Bytes that suffice to detect an object's content.
const START_BYTES: u64 = 64 << 10;
/// Bytes read to find the first line of a list: more than an address has.
const MAX_LINE_BYTES: u64 = 8 << 10;
/// The name of the threads that look objects up.
const OPENING: &str = "dlfs-open";
