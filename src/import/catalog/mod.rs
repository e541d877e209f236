//! Catalogues: data sets found by their names.
//!
//! A catalogue maps a name to *versions*. Each version is a [`Record`] of one generation of an
//! image, with the image's addresses. An *alias* (`stable`, `v3`) points to a version and can be
//! moved. A name without a version means the newest record. Opening a data set resolves its name
//! once; afterwards only addresses are used. The state of a training run names image and
//! generation, so moving an alias does not change a run.
//!
//! All mutable state but the index is in logs of numbered entries, which are written only once.
//! The versions of a data set are one log. Each alias has its own log, whose last entry is the
//! current one. To move an alias, a program creates the entry with the next number; all others find
//! that number taken ([`Store::append`]). So a history is linear without locks, in a folder as in a
//! server. No entry is ever deleted: a removal appends an entry that says so, and a missing entry
//! is damage.
//!
//! A catalogue does not cache the directory: the image's own snapshot holds the location of each
//! sample. The [`Index`] holds the list of chunks with time, size, samples and deletions, which
//! DIESEL keeps in its key-value store. The index may be lost: it is rebuilt from the chunk
//! headers.
//!
//! Read [`Catalog`] first, then `store.rs`. To open an image, `resolve.rs` is called.

mod folder;
mod index;
mod places;
mod record;
#[cfg(feature = "catalog")]
mod redis;
mod resolve;
#[cfg(feature = "catalog")]
mod resp;
mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use folder::FolderStore;
pub use index::{ChunkEntry, Index};
pub use record::{Parent, Record};
pub use resolve::{Named, Resolved, resolve};
pub use store::{Log, Store};

use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Generation;
use dlfs_io::address::catalog_name::is_catalog_word;
use dlfs_io::address::{CatalogName, CatalogPlace, CatalogVersion};
use record::{AliasEntry, VersionEntry};
use store::{append, entries_of, newest_entry, read_entry, words};

/// An open catalogue. Each call has a deadline, [`DEADLINE`] by default, which it keeps even if the
/// store hangs.
#[derive(Clone)]
pub struct Catalog {
    /// The name of the catalogue, for messages.
    place: CatalogPlace,
    store: Arc<dyn Store>,
    /// The time that a call may take.
    deadline: Duration,
}

/// An alias, and what it points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The alias itself.
    pub name: String,
    /// The number of its version in the catalogue.
    pub version: u64,
    /// The generation of that version.
    pub generation: Generation,
    /// Number of entries in the alias's log: its creation, moves and removals.
    pub moves: u64,
}

/// The condition on an alias's current target for a move to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No condition.
    Anything,
    /// The alias does not exist.
    Nothing,
    /// The alias points to this generation.
    Generation(Generation),
}

impl Catalog {
    /// Opens the catalogue at `place`. Reads nothing from it yet.
    ///
    /// # Errors
    /// `NotFound`: no such catalogue is configured. `Unsupported`: this build lacks support for its
    /// kind of store. `InvalidArgument`: the configuration is malformed.
    pub fn open(place: &CatalogPlace) -> Result<Catalog> {
        let store = match place {
            CatalogPlace::Folder(path) => Arc::new(FolderStore::new(path)) as Arc<dyn Store>,
            CatalogPlace::Configured(word) => places::store_of(word)?,
        };
        Ok(Catalog { place: place.clone(), store, deadline: DEADLINE })
    }

    /// A catalogue in `store`. Error messages call it `place`.
    pub fn of_store(place: CatalogPlace, store: Arc<dyn Store>) -> Catalog {
        Catalog { place, store, deadline: DEADLINE }
    }

    /// The same catalogue, with another timeout for each call.
    pub fn with_deadline(self, deadline: Duration) -> Catalog {
        Catalog { deadline, ..self }
    }

    /// The names of all data sets that have a version, sorted.
    ///
    /// # Errors
    /// `NotFound`: there is no catalogue. `TimedOut`, `Disconnected`, other errors of the store.
    pub fn names(&self) -> Result<Vec<String>> {
        self.within("listing names", "", |store, _| {
            let mut names = Vec::new();
            for name in words(store.names()?)? {
                names.extend(newest_version(store, &name)?.is_some().then_some(name));
            }
            names.sort_unstable();
            Ok(names)
        })
    }

    /// The versions of a data set with their numbers, oldest first. Removed versions are left out.
    ///
    /// # Errors
    /// `NotFound`: there is no catalogue, or no such data set. Otherwise as [`Catalog::names`].
    pub fn versions(&self, name: &str) -> Result<Vec<(u64, Record)>> {
        let versions = self.within("reading versions", name, live_versions)?;
        if versions.is_empty() { Err(no_such(&self.place, name)) } else { Ok(versions) }
    }

    /// The aliases of a data set, sorted by name.
    ///
    /// # Errors
    /// As [`Catalog::names`].
    pub fn aliases(&self, name: &str) -> Result<Vec<Alias>> {
        self.within("reading aliases", name, aliases_of)
    }

    /// All targets of an alias, oldest first. `None`: the alias was removed at that point.
    ///
    /// # Errors
    /// As [`Catalog::names`].
    pub fn history(&self, name: &str, alias: &str) -> Result<Vec<Option<Generation>>> {
        let log = Log::Alias(name.to_owned(), alias.to_owned());
        self.within("reading an alias", name, move |store, _| {
            let to = |(_, entry): (u64, AliasEntry)| entry.to.map(|to| Generation(to.generation));
            Ok(entries_of(store, &log)?.into_iter().map(to).collect())
        })
    }

    /// The version that a name stands for, with its number.
    ///
    /// # Errors
    /// `NotFound`: there is no such catalogue, data set, generation or alias. `InvalidArgument`:
    /// several images with this name have the generation. Otherwise as [`Catalog::names`].
    pub fn find(&self, name: &str, version: Option<&CatalogVersion>) -> Result<(u64, Record)> {
        let asked = self.asked(name, version);
        self.within("finding a data set", name, move |store, _| find(store, &asked))
    }

    /// Adds a version, and returns its number. If the newest version is equal to `record`, nothing
    /// is added and that version's number is returned.
    ///
    /// # Errors
    /// `InvalidArgument`: the name is not valid, or the record has no valid addresses. `Refused`: the newest version is
    /// a later generation of the same image, or other data is where the catalogue would be created. Otherwise as
    /// [`Catalog::names`].
    pub fn add(&self, name: &str, record: &Record) -> Result<u64> {
        check_word("the name of a data set", name)?;
        record.check()?;
        let record = record.clone();
        self.within("adding a version", name, move |store, name| {
            store.create()?;
            let log = Log::Versions(name.to_owned());
            loop {
                let entry = newest_entry::<VersionEntry>(store, &log)?;
                let last = entry.as_ref().map_or(0, |(number, _)| *number);
                if let Some((number, newest)) = living_at(store, name, entry)? {
                    if newest.is_same_as(&record) {
                        return Ok(number);
                    }
                    if newest.image == record.image && newest.generation > record.generation {
                        let message = format!(
                            "{name} has generation {} of image {} already, and this is generation {}",
                            newest.generation, record.image, record.generation
                        );
                        return Err(Error::new(ErrorKind::Refused, message)
                            .hint("give an alias to an older generation: dlfs catalog tag"));
                    }
                }
                let entry = VersionEntry::Added(Box::new(record.clone()));
                if append(store, &log, last + 1, &entry)? {
                    return Ok(last + 1);
                }
            }
        })
    }

    /// Moves an alias to a version of the data set, and returns [`Alias::moves`]. If several callers move it at once,
    /// they succeed one after another, or fail because the alias no longer matches `expect`.
    ///
    /// # Errors
    /// `InvalidArgument`: the alias is not valid. `NotFound`: the version was removed while the alias was moved to it.
    /// `Busy`: the alias does not point to what `expect` says. Otherwise as [`Catalog::find`].
    pub fn tag(
        &self,
        name: &str,
        alias: &str,
        version: &CatalogVersion,
        expect: Expect,
    ) -> Result<u64> {
        let asked = self.asked(name, Some(version));
        self.tag_found(name, alias, expect, move |store| find(store, &asked))
    }

    /// Moves an alias as [`Catalog::tag`] does, to the version with this number: also if another image of that name has
    /// the same generation.
    ///
    /// # Errors
    /// `NotFound`: no version that was not removed has the number. Otherwise as [`Catalog::tag`].
    pub fn tag_version(
        &self,
        name: &str,
        alias: &str,
        version: u64,
        expect: Expect,
    ) -> Result<u64> {
        let of = name.to_owned();
        self.tag_found(name, alias, expect, move |store| {
            let mut versions = live_versions(store, &of)?.into_iter();
            let found = versions.find(|(number, _)| *number == version);
            found.ok_or_else(|| none_of(&of, &format!("version {version}")))
        })
    }

    /// Moves an alias to the version that `find` finds.
    fn tag_found(
        &self,
        name: &str,
        alias: &str,
        expect: Expect,
        find: impl FnOnce(&dyn Store) -> Result<(u64, Record)> + Send + 'static,
    ) -> Result<u64> {
        check_word("an alias", alias)?;
        if alias.bytes().all(|byte| byte.is_ascii_digit()) {
            let message = format!("the alias {alias} would be taken for a generation");
            return Err(Error::new(ErrorKind::InvalidArgument, message).hint("use a letter, too"));
        }
        let log = Log::Alias(name.to_owned(), alias.to_owned());
        let alias = alias.to_owned();
        self.within("moving an alias", name, move |store, name| {
            let (number, record) = find(store)?;
            let moves = move_alias(store, &log, Some((number, &record)), expect)?;
            // A removal that is not seen here is appended later, and sees the alias.
            if live_versions(store, name)?.iter().any(|(live, _)| *live == number) {
                return Ok(moves);
            }
            let message = format!(
                "the alias {alias} now points to version {number} of {name}, which was removed meanwhile"
            );
            Err(Error::new(ErrorKind::NotFound, message).hint("move or remove the alias"))
        })
    }

    /// Removes an alias. Its history stays.
    ///
    /// # Errors
    /// `NotFound`: there is no such alias. Otherwise as [`Catalog::names`].
    pub fn remove_alias(&self, name: &str, alias: &str) -> Result<()> {
        let log = Log::Alias(name.to_owned(), alias.to_owned());
        let no_alias = none_of(name, &format!("alias {alias}"));
        self.within("removing an alias", name, move |store, _| {
            match newest_entry::<AliasEntry>(store, &log)? {
                Some((_, AliasEntry { to: Some(_), .. })) => {
                    move_alias(store, &log, None, Expect::Anything).map(drop)
                }
                _ => Err(no_alias),
            }
        })
    }

    /// Removes the versions with this generation; `None`: all versions, and the index of the data set. Returns the
    /// number of removed versions. The image and the history stay.
    ///
    /// # Errors
    /// `NotFound`: there is no such data set or generation. `Busy`: an alias points to it, or was
    /// moved to it while it was removed. Otherwise as [`Catalog::names`].
    pub fn remove(&self, name: &str, generation: Option<Generation>) -> Result<u64> {
        let place = self.place.clone();
        let is_meant =
            move |record: &Record| generation.is_none_or(|one| one.0 == record.generation);
        self.within("removing a version", name, move |store, name| {
            let log = Log::Versions(name.to_owned());
            let numbers = loop {
                let entries = entries_of::<VersionEntry>(store, &log)?;
                let last = entries.last().map_or(0, |(number, _)| *number);
                let versions = living(entries);
                if versions.is_empty() {
                    return Err(no_such(&place, name));
                }
                let meant = versions.iter().filter(|(_, record)| is_meant(record));
                let numbers: Vec<u64> = meant.map(|(number, _)| *number).collect();
                if numbers.is_empty() {
                    let what = format!("generation {}", generation.unwrap_or_default());
                    return Err(none_of(name, &what));
                }
                if let Some(busy) = pointed_to(store, name, &numbers)? {
                    return Err(busy.hint("move or remove the alias first"));
                }
                let entry = VersionEntry::Removed { versions: numbers.clone() };
                if append(store, &log, last + 1, &entry)? {
                    break numbers;
                }
            };
            if generation.is_none() {
                store.write_index(name, None)?;
            }
            // An alias that is not seen here is moved later, and its mover sees the removal.
            let busy = pointed_to(store, name, &numbers)?;
            busy.map_or(Ok(numbers.len() as u64), |busy| {
                Err(busy.hint("it is removed nevertheless: move or remove the alias"))
            })
        })
    }

    /// The index of a data set's chunks, if there is one.
    ///
    /// # Errors
    /// `Corrupt`: the index cannot be read; rebuild it. Otherwise as [`Catalog::names`].
    pub fn index(&self, name: &str) -> Result<Option<Index>> {
        self.within("reading an index", name, |store, name| store.read_index(name))
    }

    /// Replaces the index of a data set's chunks.
    ///
    /// # Errors
    /// As [`Catalog::names`].
    pub fn set_index(&self, name: &str, index: &Index) -> Result<()> {
        check_word("the name of a data set", name)?;
        let index = index.clone();
        self.within("writing an index", name, move |store, name| {
            store.create()?;
            store.write_index(name, Some(&index))
        })
    }

    /// The name of a version in this catalogue.
    fn asked(&self, name: &str, version: Option<&CatalogVersion>) -> CatalogName {
        CatalogName {
            catalog: self.place.clone(),
            name: name.to_owned(),
            version: version.cloned(),
        }
    }

    /// Runs `work` for the data set `name` in its own thread, and waits for it until the deadline: a call to a
    /// hung network file system cannot be interrupted. After the deadline the thread exits at the end of its
    /// current step.
    fn within<T: Send + 'static>(
        &self,
        what: &'static str,
        name: &str,
        work: impl FnOnce(&dyn Store, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = self.place.to_string();
        let (tell, told) = crossbeam_channel::bounded(1);
        let fate = dlfs_base::threads::Fate::default();
        let store = Arc::clone(&self.store);
        let name = name.to_owned();
        let until = Instant::now() + self.deadline;
        let thread = dlfs_base::threads::start("dlfs-catalog", &fate, (), move |()| {
            let limited = store.until(until);
            let _ = tell.send(work(limited.as_deref().unwrap_or(&*store), &name)); // the caller may be gone
        })?;
        let found = match told.recv_timeout(self.deadline) {
            Ok(found) => found,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                let message =
                    format!("{what} has taken more than {} s", self.deadline.as_secs_f32());
                return Err(Error::new(ErrorKind::TimedOut, message)
                    .target(place)
                    .hint("see whether the catalogue's file system or server hangs"));
            }
            Err(_) => Err(fate.of_closed_channel("the thread dlfs-catalog")),
        };
        thread.join_within(self.deadline);
        found.map_err(|error| error.target(place))
    }
}

/// The error for a version or alias, `what`, that a data set does not have.
fn none_of(name: &str, what: &str) -> Error {
    let message = format!("the catalogue has no {what} of {name}");
    Error::new(ErrorKind::NotFound, message).hint("dlfs catalog show lists what there is")
}

/// The error for a data set that the catalogue does not have.
fn no_such(place: &CatalogPlace, name: &str) -> Error {
    let message = format!("the catalogue has no data set {name}");
    Error::new(ErrorKind::NotFound, message).hint(format!("dlfs catalog ls dlfs://{place}"))
}

/// The version that `asked` names, with its number.
fn find(store: &dyn Store, asked: &CatalogName) -> Result<(u64, Record)> {
    let name = &asked.name;
    let absent = |what: String| none_of(name, &what);
    match &asked.version {
        None => newest_version(store, name)?.ok_or_else(|| no_such(&asked.catalog, name)),
        Some(CatalogVersion::Generation(generation)) => {
            let versions = live_versions(store, name)?;
            if versions.is_empty() {
                return Err(no_such(&asked.catalog, name));
            }
            let has_it = |(_, record): &(u64, Record)| record.generation == generation.0;
            let mut found = versions.into_iter().rev().filter(has_it);
            let first = found.next().ok_or_else(|| absent(format!("generation {generation}")))?;
            if let Some((_, other)) = found.find(|(_, record)| record.image != first.1.image) {
                let message = format!(
                    "{name} has generation {generation} of two images, {} and {}",
                    other.image, first.1.image
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message)
                    .hint("name an alias; dlfs catalog tag NAME ALIAS lets one point to the newest version"));
            }
            Ok(first)
        }
        Some(CatalogVersion::Alias(alias)) => {
            let log = Log::Alias(name.clone(), alias.clone());
            let to = newest_entry::<AliasEntry>(store, &log)?.and_then(|(_, entry)| entry.to);
            let to = to.ok_or_else(|| absent(format!("alias {alias}")))?;
            match read_entry(store, &Log::Versions(name.clone()), to.version)? {
                VersionEntry::Added(record) => Ok((to.version, *record)),
                VersionEntry::Removed { .. } => {
                    Err(absent(format!("version {} (alias {alias})", to.version)))
                }
            }
        }
    }
}

/// Moves an alias to a version, or removes it if `to` is `None`. Returns [`Alias::moves`].
///
/// # Errors
/// `Busy`: the alias does not point to what `expect` says. Errors of the store.
fn move_alias(
    store: &dyn Store,
    log: &Log,
    to: Option<(u64, &Record)>,
    expect: Expect,
) -> Result<u64> {
    loop {
        let newest = newest_entry::<AliasEntry>(store, log)?;
        let (last, now) = newest.map_or((0, None), |(number, entry)| (number, entry.to));
        let is_expected = match expect {
            Expect::Anything => true,
            Expect::Nothing => now.is_none(),
            Expect::Generation(generation) => {
                now.as_ref().is_some_and(|now| now.generation == generation.0)
            }
        };
        if !is_expected {
            let at = match now {
                Some(now) => format!("points to generation {}", now.generation),
                None => "does not exist".to_owned(),
            };
            let message = format!("the alias {at}, so it was not moved");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        if append(store, log, last + 1, &AliasEntry::new(to))? {
            return Ok(last + 1);
        }
    }
}

/// The aliases of a data set, sorted by name.
fn aliases_of(store: &dyn Store, name: &str) -> Result<Vec<Alias>> {
    let mut aliases = Vec::new();
    for alias in words(store.aliases(name)?)? {
        let log = Log::Alias(name.to_owned(), alias.clone());
        if let Some((moves, AliasEntry { to: Some(to), .. })) = newest_entry(store, &log)? {
            let version = to.version;
            let generation = Generation(to.generation);
            aliases.push(Alias { name: alias, version, generation, moves });
        }
    }
    aliases.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(aliases)
}

/// The error for an alias that points to one of the versions `numbers`. `None`: no alias does.
fn pointed_to(store: &dyn Store, name: &str, numbers: &[u64]) -> Result<Option<Error>> {
    let aliases = aliases_of(store, name)?;
    let pointing = aliases.iter().find(|alias| numbers.contains(&alias.version));
    Ok(pointing.map(|Alias { name: alias, generation, .. }| {
        let message = format!("the alias {alias} points to generation {generation} of {name}");
        Error::new(ErrorKind::Busy, message)
    }))
}

/// All versions of a data set that were not removed.
fn live_versions(store: &dyn Store, name: &str) -> Result<Vec<(u64, Record)>> {
    Ok(living(entries_of(store, &Log::Versions(name.to_owned()))?))
}

/// The newest version of a data set that was not removed.
fn newest_version(store: &dyn Store, name: &str) -> Result<Option<(u64, Record)>> {
    let entry = newest_entry(store, &Log::Versions(name.to_owned()))?;
    living_at(store, name, entry)
}

/// The newest version of a data set that was not removed; `entry` is the last entry of its log. Usually that is the
/// version, and nothing else is read.
fn living_at(
    store: &dyn Store,
    name: &str,
    entry: Option<(u64, VersionEntry)>,
) -> Result<Option<(u64, Record)>> {
    match entry {
        Some((number, VersionEntry::Added(record))) => Ok(Some((number, *record))),
        Some(_) => Ok(live_versions(store, name)?.pop()),
        None => Ok(None),
    }
}

/// The versions that were added and not removed, with their numbers.
fn living(entries: Vec<(u64, VersionEntry)>) -> Vec<(u64, Record)> {
    let mut versions: Vec<(u64, Record)> = Vec::with_capacity(entries.len());
    for (number, entry) in entries {
        match entry {
            VersionEntry::Added(record) => versions.push((number, *record)),
            VersionEntry::Removed { versions: removed } => {
                versions.retain(|(number, _)| !removed.contains(number));
            }
        }
    }
    versions
}

/// Refuses a word that no name or alias may be. `what` describes it.
fn check_word(what: &str, word: &str) -> Result<()> {
    if is_catalog_word(word) {
        return Ok(());
    }
    let message = format!(
        "{:?} is not {what}: 1 to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        word
    );
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

/// Default timeout of a call.
pub const DEADLINE: Duration = Duration::from_secs(10);
