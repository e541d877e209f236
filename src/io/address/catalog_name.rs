//! Names of data sets in a catalogue: `dlfs://CATALOGUE/NAME[@GENERATION|@ALIAS]`.
//!
//! ```text
//! dlfs://site/imagenet            the newest version, in the catalogue that is configured as `site`
//! dlfs://site/imagenet@7          generation 7 of the data set
//! dlfs://site/imagenet@stable     the version to which the alias `stable` points
//! dlfs:///srv/data/imagenet       the newest version, in the catalogue in the folder /srv/data
//! dlfs://./data/imagenet          the newest version, in the catalogue in a relative folder
//! ```
//! Names, aliases and configured catalogues are words: 1 to 100 letters, digits, `.`, `_` and `-` that begin with a
//! letter or digit, so as file names they never lead out of a folder. In a folder's path every `%XX` stands for a byte.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use super::parts::{AddressError, unescape_all_bytes};
use dlfs_base::percent::escape;
use dlfs_base::units::Generation;

/// A data set by its name in a catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CatalogName {
    /// The catalogue.
    pub catalog: CatalogPlace,
    /// The data set's name in the catalogue, a word.
    pub name: String,
    /// The version; `None`: the newest.
    pub version: Option<CatalogVersion>,
}

/// The place of a catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CatalogPlace {
    /// A word, for which the configuration of this machine or user has the place.
    Configured(String),
    /// A folder.
    Folder(PathBuf),
}

/// A version of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CatalogVersion {
    /// A generation of the data set's image.
    Generation(Generation),
    /// An alias, which points to a version: a word that is not a number.
    Alias(String),
}

impl CatalogName {
    /// Parses the address `text`; `rest` is the part after `dlfs://`.
    pub(super) fn parse(text: &str, rest: &str) -> Result<CatalogName, AddressError> {
        let malformed = || AddressError::CatalogName(text.to_owned());
        let (place, last) = rest.rsplit_once('/').ok_or_else(malformed)?;
        let (name, version) = match last.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (last, None),
        };
        if !is_catalog_word(name) {
            return Err(malformed());
        }
        let version = version.map(|version| CatalogVersion::parse(version).ok_or_else(malformed));
        Ok(CatalogName {
            catalog: CatalogPlace::parse(place, text)?,
            name: name.to_owned(),
            version: version.transpose()?,
        })
    }

    /// The same data set in another version.
    pub fn with_version(&self, version: Option<CatalogVersion>) -> CatalogName {
        CatalogName { version, ..self.clone() }
    }
}

impl CatalogPlace {
    /// Parses a catalogue without a data set: `dlfs://site`, `dlfs:///srv/data`, a path that contains a slash, or a
    /// word.
    ///
    /// # Errors
    /// `CatalogName`, `Escape`: `text` has none of these forms.
    pub fn from_text(text: &str) -> Result<CatalogPlace, AddressError> {
        let Some(rest) = text.strip_prefix(CATALOG_SCHEME) else {
            return if text.contains('/') {
                Ok(CatalogPlace::Folder(text.into()))
            } else {
                CatalogPlace::parse(text, text)
            };
        };
        CatalogPlace::parse(rest.strip_suffix('/').unwrap_or(rest), text)
    }

    /// Parses `text`, the part of the address `whole` that names the catalogue: a folder or a word.
    fn parse(text: &str, whole: &str) -> Result<CatalogPlace, AddressError> {
        if is_catalog_word(text) {
            return Ok(CatalogPlace::Configured(text.to_owned()));
        }
        let malformed = || AddressError::CatalogName(whole.to_owned());
        let first = text.split('/').next().unwrap_or_default();
        if text.is_empty() || !["", ".", ".."].contains(&first) {
            return Err(malformed());
        }
        let path = unescape_all_bytes(text)?;
        if path.contains(&0) {
            return Err(malformed());
        }
        Ok(CatalogPlace::Folder(OsString::from_vec(path).into()))
    }
}

impl CatalogVersion {
    /// Parses a generation (digits, below 2^64) or an alias (any other word); `None`: `text` is neither.
    pub fn parse(text: &str) -> Option<CatalogVersion> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().ok().map(|number| CatalogVersion::Generation(Generation(number)));
        }
        is_catalog_word(text).then(|| CatalogVersion::Alias(text.to_owned()))
    }
}

/// Returns whether `text` is a word: the name of a data set, an alias or a configured catalogue.
pub fn is_catalog_word(text: &str) -> bool {
    text.len() <= MAX_WORD_BYTES
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

impl fmt::Display for CatalogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CATALOG_SCHEME}{}/{}", self.catalog, self.name)?;
        match &self.version {
            Some(version) => write!(f, "@{version}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for CatalogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self {
            CatalogPlace::Configured(word) => return f.write_str(word),
            CatalogPlace::Folder(path) => path.as_os_str().as_bytes(),
        };
        escape(f, path, |c| !c.is_ascii_alphanumeric() && !"/._-".contains(c))
    }
}

impl fmt::Display for CatalogVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CatalogVersion::Generation(generation) => generation.fmt(f),
            CatalogVersion::Alias(alias) => f.write_str(alias),
        }
    }
}

/// The scheme of a data set's name in a catalogue.
pub(super) const CATALOG_SCHEME: &str = "dlfs://";

/// The most bytes of a word.
const MAX_WORD_BYTES: usize = 100;
