//! Resolves a name in a catalogue to the addresses of an image. The user's cache folder keeps the last answer about
//! each name for times when the catalogue is unreachable.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_64;

use crate::catalog::places::user_folder;
use crate::catalog::record::{decode, encode};
use crate::catalog::store::MAX_ENTRY_BYTES;
use crate::catalog::{Catalog, Record};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::replace_file::{NewMode, replace_file};
use dlfs_base::units::Generation;
use dlfs_format::format::Uuid;
use dlfs_io::address::{Address, CatalogName};

/// The addresses that an IMAGE stands for.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The addresses of each site that has the image, in the order in which to try the sites. Never
    /// empty.
    pub sites: Vec<Vec<Address>>,
    /// The name and its record, if the IMAGE was a name in a catalogue.
    pub named: Option<Named>,
}

/// A name in a catalogue, and the version that it stands for.
#[derive(Debug, Clone)]
pub struct Named {
    /// The name.
    pub name: CatalogName,
    /// The record of that version.
    pub record: Record,
}

/// Resolves `image` to addresses. A name in a catalogue takes one look-up; after that the catalogue
/// is not contacted again.
///
/// If the catalogue is unreachable, the answer that this user got when last opening the name is
/// used, with a warning.
///
/// # Errors
/// `InvalidArgument`: a name stands beside other addresses. `NotFound`: the catalogue has no such
/// name. `TimedOut`, `Disconnected`: the catalogue is unreachable, and this user never opened
/// the name. Other errors of the store.
pub fn resolve(image: &[Address]) -> Result<Resolved> {
    let is_named = |address: &Address| matches!(address, Address::Named(_));
    match image {
        [Address::Named(name)] => {
            let record = look_up(name)?;
            let sites = record.addresses().map_err(|error| error.target(name.to_string()))?;
            Ok(Resolved { sites, named: Some(Named { name: name.clone(), record }) })
        }
        _ if image.iter().any(is_named) => {
            let message =
                "a name in a catalogue stands for a whole image, with no other address beside it";
            Err(Error::new(ErrorKind::InvalidArgument, message)
                .target(Address::list_to_string(image)))
        }
        _ => Ok(Resolved { sites: vec![image.to_vec()], named: None }),
    }
}

/// The record of the version that a name stands for: from the catalogue, or if it is unreachable, the last known one.
fn look_up(name: &CatalogName) -> Result<Record> {
    let catalog = Catalog::open(&name.catalog)?;
    let last_known = LastKnown::of(name);
    match catalog.find(&name.name, name.version.as_ref()) {
        Ok((_, record)) => {
            last_known.keep(&record);
            Ok(record)
        }
        Err(error) if is_unreachable(&error) => {
            let Some(record) = last_known.read() else { return Err(error) };
            tracing::warn!(
                "the catalogue cannot be reached ({error}): {name} is taken for generation {} of image {}, as it was \
                 when it was last opened here",
                record.generation,
                record.image
            );
            Ok(record)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether the store gave no answer. Damaged data and refusals are answers.
fn is_unreachable(error: &Error) -> bool {
    use ErrorKind::{Disconnected, Io, TimedOut};
    // If the catalogue's folder is missing, its file system may not be mounted.
    matches!(error.kind(), TimedOut | Disconnected | Io)
        || error.kind() == ErrorKind::NotFound && error.file().is_some()
}

impl Named {
    /// Checks that the image at the addresses is the one that the name stands for.
    ///
    /// # Errors
    /// `Stale`: it is another image, or another generation than the name says. If the name has no
    /// version, a later generation is accepted with a warning.
    pub fn check(&self, image: Uuid, generation: Generation) -> Result<()> {
        let Named { name, record } = self;
        let stale = |message: String, hint: &'static str| {
            Err(Error::new(ErrorKind::Stale, message).target(name.to_string()).hint(hint))
        };
        if image.to_string() != record.image {
            let message = format!(
                "there is image {image} at the addresses, and the name stands for {}",
                record.image
            );
            return stale(message, "add what is there now to the catalogue: dlfs catalog add");
        }
        if generation.0 == record.generation {
            return Ok(());
        }
        let message = format!(
            "the name stands for generation {}, and the image has {generation}",
            record.generation
        );
        if name.version.is_some() || generation.0 < record.generation {
            return stale(
                message,
                "an image holds its newest generation: dlfs catalog add adds that; an older one needs a copy",
            );
        }
        tracing::warn!("{name}: {message}; dlfs catalog add adds it");
        Ok(())
    }
}

/// The cache file of a name. `None`: the user has no home directory.
struct LastKnown(Option<PathBuf>);

impl LastKnown {
    /// The cache file of `name`.
    fn of(name: &CatalogName) -> LastKnown {
        let cache = user_folder("XDG_CACHE_HOME", ".cache");
        let file = format!("{:016x}.json", xxh3_64(name.to_string().as_bytes()));
        LastKnown(cache.map(|folder| folder.join("dlfs/catalog").join(file)))
    }

    /// The record that the file holds, if it holds one.
    fn read(&self) -> Option<Record> {
        decode(&self.bytes()?, "what was known last").ok()
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.0.as_ref()?).ok()?.take(MAX_ENTRY_BYTES).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Stores `record`, unless the file holds it already. A failure is only logged: nothing depends
    /// on the file now.
    fn keep(&self, record: &Record) {
        let Some(path) = &self.0 else { return };
        let Ok(bytes) = encode(record) else { return };
        if self.bytes().is_some_and(|known| known == bytes) {
            return;
        }
        let folder = path.parent().unwrap_or(path);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let kept =
            made.map_err(Into::into).and_then(|()| replace_file(path, NewMode::Private, &bytes));
        if let Err(error) = kept {
            tracing::debug!("{} is not kept: {error}", path.display());
        }
    }
}
