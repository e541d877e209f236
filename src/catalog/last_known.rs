//! What a catalogue said last about a name, kept in the user's cache for when it cannot be reached.

use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_64;

use super::Record;
use super::json::{decode, encode};
use crate::nvme::CatalogName;

/// The place of a name in the user's cache; `None` if there is no home.
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
        let bytes = std::fs::read(self.0.as_ref()?).ok()?;
        decode(&bytes, "what was known last").ok()
    }

    /// Keeps `record`, unless it is there already. Failing to do so costs nothing now.
    pub(super) fn keep(&self, record: &Record) {
        let Some(path) = &self.0 else { return };
        let Ok(bytes) = encode(record) else { return };
        if std::fs::read(path).is_ok_and(|known| known == bytes) {
            return;
        }
        let draft = path.with_extension(std::process::id().to_string());
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(path.parent().unwrap_or(path))?;
            std::fs::write(&draft, &bytes)?;
            std::fs::rename(&draft, path)
        };
        if let Err(error) = write() {
            tracing::debug!("{} is not kept: {error}", path.display());
        }
    }
}
