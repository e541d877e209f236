//! The catalogues that this machine and user have configured.
//!
//! `dlfs://site/NAME` names the catalogue `site`. It is looked up in the environment variable
//! `DLFS_CATALOGS` (`site=/srv/catalog other=redis://host/0`, separated by spaces), then in the
//! user's file `~/.config/dlfs/catalogs.toml` (or in the folder that `XDG_CONFIG_HOME` names), then in
//! `/etc/dlfs/catalogs.toml`:
//!
//! ```toml
//! site = "/srv/catalog"
//! other = "redis://host:6379/0"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folder::FolderStore;
use super::store::Store;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};

/// The store of the catalogue that is configured under the name `catalog`.
///
/// # Errors
/// `NotFound`: no catalogue has this name. `InvalidArgument`: the configuration is wrong. `Unsupported`: this build
/// does not know the kind of server. Errors of reading the files.
pub(super) fn store_of(catalog: &str) -> Result<Arc<dyn Store>> {
    let (place, told_by) = configured(catalog)?;
    match place.split_once("://") {
        Some(("redis" | "valkey", _)) => redis(catalog, &place),
        Some((scheme, _)) => {
            let message = format!(
                "{told_by} says {scheme}:// for the catalogue {catalog}, which is not known"
            );
            Err(Error::new(ErrorKind::Unsupported, message)
                .hint("name a folder, or redis://HOST:6379/0"))
        }
        None if Path::new(&place).is_absolute() => Ok(Arc::new(FolderStore::new(&place))),
        None => Err(invalid(format!(
            "{told_by} says {place:?} for the catalogue {catalog}, which is no absolute path"
        ))),
    }
}

#[cfg(feature = "catalog")]
fn redis(catalog: &str, place: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(super::redis::RedisStore::new(catalog, place)?))
}

#[cfg(not(feature = "catalog"))]
fn redis(catalog: &str, _: &str) -> Result<Arc<dyn Store>> {
    let message = format!("the catalogue {catalog} is in Redis, which this build cannot use");
    Err(Error::new(ErrorKind::Unsupported, message)
        .hint("build with --features catalog; released packages have it"))
}

/// The path or URL that is configured for `catalog`, and the variable or file that configures it.
fn configured(catalog: &str) -> Result<(String, String)> {
    let variable = std::env::var(VARIABLE).unwrap_or_default();
    if let Some(place) = in_variable(&variable, catalog)? {
        return Ok((place, VARIABLE.to_owned()));
    }
    for path in files() {
        if let Some(place) = in_file(&path, catalog)? {
            return Ok((place, path.display().to_string()));
        }
    }
    let message = format!("no catalogue is configured as {catalog}");
    Err(Error::new(ErrorKind::NotFound, message).hint(format!(
        "set {VARIABLE}=\"{catalog}=/path\" or ~/.config/dlfs/catalogs.toml, or name its folder: dlfs:///path/NAME"
    )))
}

/// The path or URL of `catalog` in the value of [`VARIABLE`]. `None`: the value does not name the catalogue.
fn in_variable(variable: &str, catalog: &str) -> Result<Option<String>> {
    for entry in variable.split_whitespace() {
        let Some((name, place)) = entry.split_once('=') else {
            return Err(invalid(format!("{VARIABLE} has {entry:?}, which is not NAME=PLACE")));
        };
        if name == catalog {
            return Ok(Some(place.to_owned()));
        }
    }
    Ok(None)
}

/// The path or URL of `catalog` in the file at `path`. `None`: there is no file, or it does not name the catalogue.
fn in_file(path: &Path, catalog: &str) -> Result<Option<String>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::from(error).path(path)),
    };
    let mut places: BTreeMap<String, String> = toml::from_str(&text).map_err(|error| {
        invalid("this file is not a table of catalogues: NAME = \"PLACE\"").path(path).source(error)
    })?;
    Ok(places.remove(catalog))
}

fn files() -> impl Iterator<Item = PathBuf> {
    let folders =
        user_folder("XDG_CONFIG_HOME", ".config").into_iter().chain([PathBuf::from("/etc")]);
    folders.map(|folder| folder.join("dlfs/catalogs.toml"))
}

/// The user's folder that a variable of the environment names, or else `usual` in the home directory. `None`: the user
/// has no home directory.
pub(super) fn user_folder(variable: &str, usual: &str) -> Option<PathBuf> {
    let value = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    value(variable).or_else(|| Some(value("HOME")?.join(usual)))
}

const VARIABLE: &str = "DLFS_CATALOGS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_looked_up_in_the_variable_and_in_files() {
        let both = "site=/srv/catalog other=redis://h/0";
        assert_eq!(in_variable(both, "site").unwrap().unwrap(), "/srv/catalog");
        assert_eq!(in_variable(both, "other").unwrap().unwrap(), "redis://h/0");
        assert_eq!(in_variable(both, "third").unwrap(), None);
        assert!(in_variable("site", "site").unwrap_err().to_string().contains("NAME=PLACE"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalogs.toml");
        assert_eq!(in_file(&path, "site").unwrap(), None);
        std::fs::write(&path, "site = \"/srv/catalog\"\n").unwrap();
        assert_eq!(in_file(&path, "site").unwrap().unwrap(), "/srv/catalog");
        assert_eq!(in_file(&path, "other").unwrap(), None);
        std::fs::write(&path, "site = 7\n").unwrap();
        assert_eq!(in_file(&path, "site").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
