//! Sources of samples: folder trees, lists, tar archives, WebDataset and TFRecord shards, and objects of stores.
//!
//! A source is read twice. Indexing finds the name, length, label and location of every sample, and every entry
//! that cannot be imported; of payloads it reads only labels. Then several threads read the payloads in the
//! order of placement, each with its own [`SourceReader`]. Payloads must match the index: a file or shard that
//! changed meanwhile is a bad entry, never a torn sample.
//!
//! A pipe or a compressed archive can be read only once: it is first copied to a file (`spool.rs`), or is a
//! stream ([`sample_stream`]). Shards in a store and rows (`formats`) are always streams.
//!
//! The kind of a source is detected from the bytes of its files (`detect.rs`, `content.rs`, `survey.rs`), and
//! `file_counts.rs` reports how each file was treated.
//!
//! Read `index.rs` first, then `folder.rs` and `tar_members.rs`, which find samples, and `reader.rs`.

mod bad;
pub(crate) mod beneath;
pub(crate) mod compression;
pub(crate) mod content;
pub(crate) mod detect;
pub mod expansion;
pub(crate) mod file_counts;
mod folder;
mod found;
mod hub_splits;
pub(crate) mod index;
mod indexing;
pub(crate) mod inputs;
mod list;
mod listing;
pub(crate) mod objects;
mod reader;
pub mod sample_stream;
pub(crate) mod shard;
pub(crate) mod shard_index;
mod shuffled;
mod source_kind;
pub(crate) mod spool;
pub mod stream;
mod survey;
pub mod tar;
mod tar_header;
pub(crate) mod tar_members;
mod tfrecord;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Stat;
use xxhash_rust::xxh3::Xxh3;

pub use self::bad::{BadEntry, BadReason};
use self::beneath::Root;
use self::expansion::Expansion;
pub use self::file_counts::{FileCount, Role};
pub(crate) use self::found::Found;
use self::found::ends_of;
pub use self::found::{Decided, FoundFile};
use self::index::MAX_SAMPLE_BYTES;
pub use self::index::{Container, Index, Payload};
pub(crate) use self::indexing::Indexing;
pub(crate) use self::inputs::Inputs;
use self::objects::ObjectRoot;
pub use self::reader::SourceReader;
pub(crate) use self::reader::{PieceError, PieceSink};
use self::shard::{OpenShards, front_to_back};
pub(crate) use self::shuffled::Shuffled;
pub use self::source_kind::SourceKind;
use self::spool::Spooled;
use dlfs_base::folders::{FolderOptions, Links};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::{Origin, OriginsBuilder};

/// An indexed source; any number of threads can read it.
#[derive(Debug)]
pub struct Source {
    kind: SourceKind,
    decided: Option<Decided>,
    pub(crate) index: Index,
    containers: OpenContainers,
    /// The objects found, if the samples are objects; empty otherwise.
    origins: OriginsBuilder,
}

/// The open containers of a source, in the order of [`Index::containers`].
#[derive(Debug)]
enum OpenContainers {
    /// Folders; each sample is a file beneath one.
    Folders(Vec<Root>),
    /// Shards. A shard that has no path any more, as a spooled one, stays open here; others are opened when read.
    Shards(Vec<Option<Arc<File>>>),
    /// Prefixes of keys in stores; each sample is an object beneath one.
    Objects(Vec<ObjectRoot>),
}

/// Options for opening a source.
#[derive(Debug, Clone, Default)]
pub struct SourceOptions {
    /// The kind of the paths; [`SourceKind::Auto`] detects it.
    pub kind: SourceKind,
    /// Folder to which compressed archives and pipes are copied; `None`: these are refused.
    pub spool: Option<PathBuf>,
    /// Files to ignore, as (device, inode): the image itself.
    pub exclude: Vec<(u64, u64)>,
    /// Rules for the entries of folders and archives: hidden files, links.
    pub folders: FolderOptions,
    /// Prefixes each name with its folder, list or shard.
    pub prefix: bool,
    /// Takes the files of archives within archives as samples.
    pub nested: bool,
    /// Limit on the expansion of the bytes read.
    pub expansion: Expansion,
}

impl Source {
    /// Detects and indexes `paths`.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: a path does not open. `BadSource`: a path is not a source, or is empty.
    /// `InvalidArgument`: the paths are of different kinds. Entries that cannot be imported are not an error: they are
    /// in [`Index::bad`].
    pub fn open(paths: &[PathBuf], options: &SourceOptions) -> Result<Source> {
        let silent = &mut ();
        let indexing = &mut Indexing::new(silent, options);
        Source::index_found(detect::find(paths, indexing)?, indexing)
    }

    /// Indexes detected files.
    ///
    /// # Errors
    /// As [`open`](Self::open). `Interrupted`: indexing was asked to stop.
    pub(crate) fn index_found(mut found: Found, indexing: &mut Indexing<'_>) -> Result<Source> {
        let options = indexing.options;
        let mut opened = open_streams(&mut found, options)?;
        let kind = found.kind;
        if kind.is_rows() {
            let text = format!("a source of rows ({kind}) is read once, and has no index");
            let path = found.files.into_iter().next().map(|file| file.path);
            return Err(Error::new(ErrorKind::BadSource, text).path(path.unwrap_or_default()));
        }
        let mut source = match found.samples.take() {
            Some(samples) => samples,
            None if kind == SourceKind::List => list::index(&found.files, indexing)?,
            None => index_shards(&found, &mut opened, indexing)?,
        };
        indexing.check()?;
        source.decided = found.decided;
        let Source { index, containers, .. } = &mut source;
        file_counts::set_piped_bytes(&mut found.file_counts.0, piped_bytes(index));
        index.file_counts.0.splice(0..0, found.file_counts.0);
        index.bad.splice(0..0, found.bad);
        match containers {
            OpenContainers::Folders(_) if options.prefix => put_containers_in_front(index),
            OpenContainers::Objects(roots) if options.prefix && kind == SourceKind::Folder => {
                put_containers_in_front(index);
                let roots = roots.iter_mut().zip(&index.containers);
                roots.for_each(|(root, container)| root.cut = container.len_bytes as usize);
            }
            _ => {}
        }
        if matches!(kind, SourceKind::Tar | SourceKind::WebDataset) {
            // Later members replace earlier ones, as `tar -u` and `tar -r` intend.
            let replaced = index.take_replaced();
            index.drop_rows(&replaced);
            put_shards_in_front(index, &found.files, options.prefix);
        }
        drop_impossible_rows(index, kind);
        if index.is_empty() && index.bad.is_empty() {
            let path = index.containers.first().map(|container| container.path.clone());
            let counts = std::mem::take(&mut index.file_counts);
            return Err(counts.of_no_sample(kind).path(path.unwrap_or_default()));
        }
        Ok(source)
    }

    /// An indexed source whose samples are not objects of a store.
    fn new(kind: SourceKind, index: Index, containers: OpenContainers) -> Source {
        Source { kind, decided: None, index, containers, origins: OriginsBuilder::default() }
    }

    /// The objects that are samples of the index; empty if the samples are not objects.
    pub(crate) fn origins(&self) -> Cow<'_, OriginsBuilder> {
        let OpenContainers::Objects(roots) = &self.containers else {
            return Cow::Borrowed(&self.origins);
        };
        if self.origins.len() == self.index.len() {
            return Cow::Borrowed(&self.origins);
        }
        // Some objects were left out of the index.
        let kept: HashSet<String> = (0..self.index.len())
            .filter_map(|row| {
                let root = &roots[self.index.container_of(row)? as usize];
                Some(root.address_of(self.index.name(row)))
            })
            .collect();
        let mut origins = OriginsBuilder::default();
        self.origins.for_each(|Origin { address, len_bytes, etag, .. }| {
            if kept.contains(&address) {
                origins.push(&address, len_bytes, etag.as_deref());
            }
        });
        Cow::Owned(origins)
    }

    /// A source with an index that another process made.
    ///
    /// # Errors
    /// A folder does not open.
    pub(crate) fn of_plan(kind: SourceKind, index: Index) -> Result<Source> {
        let containers = index.containers.iter();
        let containers = match kind {
            SourceKind::Folder | SourceKind::List => {
                // The process that listed the files applied the rules for links. Stamps detect changed files.
                let open = |container: &Container| {
                    let path = match kind {
                        SourceKind::List => list::folder_of(&container.path),
                        _ => &container.path,
                    };
                    Root::open(path, Links::Follow)
                };
                let roots = containers.map(open);
                OpenContainers::Folders(roots.collect::<Result<_>>()?)
            }
            _ => OpenContainers::Shards(containers.map(|_| None).collect()),
        };
        Ok(Source::new(kind, index, containers))
    }

    /// The index without its rows. The containers' paths are absolute, so other processes can open them.
    ///
    /// # Errors
    /// `BadSource`: a container has no path any more, or the samples are objects.
    pub(crate) fn shared(&self) -> Result<Index> {
        if matches!(&self.containers, OpenContainers::Shards(files) if files.iter().any(Option::is_some))
        {
            let text =
                "a source that is unpacked while it is imported cannot be shared by processes";
            return Err(Error::new(ErrorKind::BadSource, text).hint("unpack it first"));
        }
        if matches!(self.containers, OpenContainers::Objects(_)) {
            let text = "objects of stores are imported by one process";
            return Err(Error::new(ErrorKind::BadSource, text).hint("use dlfs import"));
        }
        let mut shared = self.index.select(std::iter::empty());
        for container in &mut shared.containers {
            container.path = std::path::absolute(&container.path).map_err(Error::from)?;
        }
        Ok(shared)
    }

    /// Treatment of the source's files.
    pub fn file_counts(&self) -> &[FileCount] {
        &self.index.file_counts.0
    }

    /// The kind of the source; never `Auto`.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    /// Evidence for the kind, if kinds that look alike were told apart.
    pub fn decided(&self) -> Option<&Decided> {
        self.decided.as_ref()
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Drops rows that became unreadable, given in ascending order, and lists them as bad; ids are renumbered without
    /// gaps.
    pub(crate) fn drop_bad(&mut self, bad: Vec<(u64, BadEntry)>) {
        let (rows, bad): (Vec<u64>, Vec<BadEntry>) = bad.into_iter().unzip();
        self.index.drop_rows(&rows);
        self.index.bad.extend(bad);
    }

    /// Replaces each payload by the elements that `find` finds in it; returns the rows for which `find` fails. `find`
    /// gets the number of the field, the payload's length in bytes, and a reader of the payload.
    ///
    /// # Errors
    /// `Interrupted`: `goes_on` returned false.
    pub(crate) fn replace_payloads(
        &mut self,
        find: &mut dyn FnMut(u16, u64, &mut Front<'_>) -> Result<Elements, BadReason>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<(u64, BadEntry)>> {
        let mut open = self.open_shards();
        let mut bad = Vec::new();
        for row in 0..self.index.len() {
            if row.is_multiple_of(ROWS_PER_STEP) && !goes_on() {
                return Err(Error::new(ErrorKind::Interrupted, "the import was stopped"));
            }
            for place in self.index.payload_range(row) {
                let index = &mut self.index;
                let mut payload = index.payloads.get(place);
                let len = u64::from(payload.len_bytes);
                let mut front = |most: u64| {
                    let mut bytes = vec![0; len.min(most) as usize];
                    open.read(&index.containers, &payload, 0, &mut bytes).map(|()| bytes)
                };
                match find(payload.field, len, &mut front) {
                    Ok(Elements::Behind(skipped)) => {
                        payload.offset_or_stamp += u64::from(skipped);
                        payload.len_bytes -= skipped;
                        index.payloads.set(place, payload);
                    }
                    Ok(Elements::Are(bytes)) => index.replace(row, place, &bytes),
                    Err(reason) => {
                        bad.push((row, self.index.bad_row(row, reason)));
                        break;
                    }
                }
            }
        }
        Ok(bad)
    }

    /// The open shards of a new reader: those that have no path.
    fn open_shards(&self) -> OpenShards {
        match &self.containers {
            OpenContainers::Shards(shards) => OpenShards::new(shards),
            _ => OpenShards::default(),
        }
    }

    /// A reader for one thread.
    pub fn reader(&self) -> SourceReader<'_> {
        SourceReader::new(self, self.open_shards())
    }
}

/// The elements of a typed field in its payload.
#[derive(Debug)]
pub(crate) enum Elements {
    /// The payload without this many bytes at its beginning.
    Behind(u32),
    /// These bytes, decoded from the payload.
    Are(Vec<u8>),
}

/// Reads up to this many bytes at the beginning of a payload.
pub(crate) type Front<'a> = dyn FnMut(u64) -> Result<Vec<u8>, BadReason> + 'a;

/// Rows between two checks for cancellation.
const ROWS_PER_STEP: u64 = 4096;

/// A number that changes when a file is modified or replaced.
pub(crate) fn stamp(stat: &Stat) -> u64 {
    let mut hash = Xxh3::new();
    let numbers = [stat.st_ino, stat.st_size as u64, stat.st_mtime as u64, stat.st_mtime_nsec];
    numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
    hash.digest()
}

/// If detection decided for plain archives, copies pipes to the spool, and looks at the beginnings of the copies for a
/// pair, a sign of WebDataset shards. Returns the copies by shard; `None`: the shard is not a pipe, and is opened
/// later.
fn open_streams(found: &mut Found, options: &SourceOptions) -> Result<Vec<Option<Spooled>>> {
    let mut opened = Vec::new();
    if found.decided != Some(Decided::NoPair) {
        return Ok(opened);
    }
    for FoundFile { path, name, .. } in &found.files {
        if !spool::is_stream(path) {
            opened.push(None);
            continue;
        }
        let spooled = spool::open_or_spool(path, options)?;
        let begin = front_to_back(spooled.file.clone(), 0..spooled.container.len_bytes);
        if found.kind == SourceKind::Tar
            && let Some(pair) = tar::pair_at_beginning(begin, tar::MEMBERS_LOOKED_AT)
        {
            found.kind = SourceKind::WebDataset;
            found.decided = Some(Decided::Pair { shard: name.clone(), pair });
        }
        opened.push(Some(spooled));
    }
    Ok(opened)
}

/// Indexes archives or TFRecord shards.
fn index_shards(
    found: &Found,
    opened: &mut [Option<Spooled>],
    indexing: &mut Indexing<'_>,
) -> Result<Source> {
    let options = indexing.options;
    let kind = found.kind;
    let is_open = found.decided == Some(Decided::NoPair);
    let judge = tar::Judge::new(kind, options, is_open);
    let mut indexer = tar::MemberIndexer::new(judge, &options.expansion);
    indexing.again(); // detection counted the shards themselves
    let mut files = Vec::new();
    for (number, FoundFile { path, name, .. }) in found.files.iter().enumerate() {
        if !indexing.goes_on() {
            break;
        }
        let Spooled { file, container, is_copy } =
            match opened.get_mut(number).and_then(Option::take) {
                Some(opened) => opened,
                None => spool::open_or_spool(path, options)?,
            };
        let len_bytes = container.len_bytes;
        indexer.index.containers.push(container);
        let number = u32::try_from(number).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument, "more than 2^32 shards in one import")
        })?;
        files.push(is_copy.then(|| file.clone()));
        if let Some(appended) = indexer.index_shard(file, number, name, indexing) {
            let bytes = len_bytes - appended.from;
            let name = path.as_os_str().as_bytes();
            indexer.index.file_counts.add_appended(appended.archives, bytes, name);
        }
        if let Some(pair) = indexer.judge.pair() {
            return Err(tar::undecided(path, pair));
        }
    }
    Ok(Source::new(kind, indexer.finish(), OpenContainers::Shards(files)))
}

/// Decompressed bytes of the shards that came through pipes.
fn piped_bytes(index: &Index) -> u64 {
    let piped = index.containers.iter().filter(|shard| spool::is_stream(&shard.path));
    piped.map(|shard| shard.len_bytes).sum()
}

/// Prefixes the names of each container with the end of its path that distinguishes it from the others.
fn put_containers_in_front(index: &mut Index) {
    let paths: Vec<&Path> = index.containers.iter().map(|container| &*container.path).collect();
    let ends = ends_of(&paths);
    index.put_in_front(|_, container| Some(&ends[container as usize]));
    for (container, end) in index.containers.iter_mut().zip(&ends) {
        container.len_bytes = end.len() as u64 + 1;
    }
}

/// Prefixes names that an earlier shard has, or `all` names, with their shard.
fn put_shards_in_front(index: &mut Index, files: &[FoundFile], all: bool) {
    let differ = |&(row, first): &(u64, u64)| index.container_of(row) != index.container_of(first);
    let taken = index.rows_with_a_taken_name();
    let taken: HashSet<u64> =
        taken.iter().filter(|pair| differ(pair)).map(|(row, _)| *row).collect();
    if !all && taken.is_empty() {
        return;
    }
    index.put_in_front(|row, container| {
        let file = files.get(container as usize)?;
        (all || taken.contains(&row)).then_some(&file.name[..])
    });
}

/// Moves rows that no image can hold to the bad entries.
fn drop_impossible_rows(index: &mut Index, kind: SourceKind) {
    let taken = match kind {
        // Names in one folder are unique; in several folders, or other sources, they may repeat.
        SourceKind::Folder if index.containers.len() == 1 => Vec::new(),
        _ => index.rows_with_a_taken_name(),
    };
    for &(row, first) in &taken {
        let differ = index.container_of(row) != index.container_of(first);
        let reason = if differ { BadReason::TwiceInFolders } else { BadReason::Twice };
        index.bad.push(index.bad_row(row, reason));
    }
    let mut drop: Vec<u64> = taken.into_iter().map(|(row, _)| row).collect();
    if index.fields.len() > 1 {
        let table = 4 * index.fields.len() as u64;
        let mut too_large = Vec::new();
        for row in 0..index.len() {
            let len = table + index.payload_bytes(row);
            if len > MAX_SAMPLE_BYTES && drop.binary_search(&row).is_err() {
                index.bad.push(index.bad_row(row, BadReason::TooLarge(len)));
                too_large.push(row);
            }
        }
        drop.extend(too_large);
        drop.sort_unstable();
    }
    index.drop_rows(&drop);
}
