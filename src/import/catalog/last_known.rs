//! A catalogue's last answer about a name. The user's cache folder keeps it for times when the
//! catalogue is unreachable.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_64;

use super::Record;
use super::json::{decode, encode};
use super::store::MAX_ENTRY_BYTES;
use dlfs_base::replace_file::{NewMode, replace_file};
use dlfs_io::address::CatalogName;

/// The cache file of a name. `None`: the user has no home directory.
pub(super) struct LastKnown(Option<PathBuf>);

impl LastKnown {
    pub(super) fn of(name: &CatalogName) -> LastKnown {
        let variable =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let file = format!("{:016x}.json", xxh3_64(name.to_string().as_bytes()));
        LastKnown(cache.map(|folder| folder.join("dlfs/catalog").join(file)))
    }

    pub(super) fn read(&self) -> Option<Record> {
        decode(&self.bytes()?, "what was known last").ok()
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.0.as_ref()?).ok()?.take(MAX_ENTRY_BYTES).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Stores `record`, unless the file holds it already. A failure is only logged: nothing depends
    /// on the file now.
    pub(super) fn keep(&self, record: &Record) {
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
