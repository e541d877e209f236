//! The entries of a catalogue's logs: records of versions of data sets, and targets of aliases. [`encode`] and
//! [`decode`] convert these entries, and the index of chunks, to JSON and back. Other programs may have written the
//! JSON, so it is not trusted.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_io::address::Address;

/// One generation of an image, as a catalogue describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The UUID of the image.
    #[serde(deserialize_with = "uuid")]
    pub image: String,
    /// The generation of that image.
    pub generation: u64,
    /// Locations of the image: for each site an IMAGE (addresses separated by commas). A reader
    /// takes the first site that it can reach.
    pub sites: Vec<String>,
    /// Number of live samples.
    pub samples: u64,
    /// Bytes of the live samples.
    pub bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// The directory snapshot of this generation: CRC32C of its head, and its length.
    pub snapshot: String,
    /// Names of the fields of a sample. Empty if each sample has a single field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// The generation that this one was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The sources of the import that made this generation, as the user named them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The operation that made this generation: `import`, `append`, `delete`, `purge`. Empty for an
    /// image that was added by hand.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub made_by: String,
    /// The release of dlfs that wrote this record.
    pub dlfs: String,
    /// The commit time of the generation, in seconds since 1970.
    pub committed_s: u64,
    /// The user's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A generation that another one was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The UUID of the image.
    #[serde(deserialize_with = "uuid")]
    pub image: String,
    /// The generation of that image.
    pub generation: u64,
}

impl Record {
    /// The addresses of each site.
    ///
    /// # Errors
    /// `Corrupt`: an entry is not an address, or is itself a name in a catalogue; or the number of
    /// sites is 0 or too large.
    pub fn addresses(&self) -> Result<Vec<Vec<Address>>> {
        let wrong = |site: &String, why: String| {
            let message =
                format!("the catalogue's record names {site:?}, which is not an image: {why}");
            Error::new(ErrorKind::Corrupt, message)
        };
        let parse = |site: &String| {
            // The error quotes the site, so control characters are masked.
            let addresses = Address::parse_list(site)
                .map_err(|error| wrong(site, error.to_string().replace(char::is_control, "?")))?;
            if addresses.iter().any(|address| matches!(address, Address::Named(_))) {
                Err(wrong(site, "names do not lead to names".to_owned()))
            } else {
                Ok(addresses)
            }
        };
        if self.sites.is_empty() || self.sites.len() > MAX_SITES {
            let message = format!("the catalogue's record names {} images", self.sites.len());
            return Err(Error::new(ErrorKind::Corrupt, message)
                .hint(format!("a record has the image at 1 to {MAX_SITES} places")));
        }
        self.sites.iter().map(parse).collect()
    }

    /// Refuses a record whose addresses cannot be read.
    pub(super) fn check(&self) -> Result<()> {
        self.addresses().map(drop).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, "this cannot be added to a catalogue")
                .source(error)
        })
    }

    /// Returns whether both records are equal, apart from the release that wrote them.
    pub(super) fn is_same_as(&self, other: &Record) -> bool {
        *self == Record { dlfs: self.dlfs.clone(), ..other.clone() }
    }
}

/// An entry of a data set's log of versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum VersionEntry {
    /// The versions with these numbers were removed.
    Removed { versions: Vec<u64> },
    /// A version was added. Its number is that of the entry.
    Added(Box<Record>),
}

/// An entry of an alias's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AliasEntry {
    /// `None`: the alias was removed. The key must be present: an entry without it is damaged.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(super) to: Option<PointsTo>,
}

/// The target of an alias.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PointsTo {
    /// The number of the version.
    pub(super) version: u64,
    /// The generation of the version.
    pub(super) generation: u64,
    /// The UUID of the version's image.
    pub(super) image: String,
}

impl AliasEntry {
    /// An alias that points to a version, given by number and record; `None`: the alias is removed.
    pub(super) fn new(to: Option<(u64, &Record)>) -> AliasEntry {
        let to = to.map(|(version, record)| PointsTo {
            version,
            generation: record.generation,
            image: record.image.clone(),
        });
        AliasEntry { to }
    }
}

/// Reads the UUID of an image. It is checked because messages quote it.
fn uuid<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    let is_plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    if text.len() == 36 && text.bytes().all(is_plain) {
        Ok(text)
    } else {
        Err(D::Error::custom("the image is no UUID"))
    }
}

/// Maximum number of sites. Opening an image tries them in turn.
const MAX_SITES: usize = 64;

/// The format of entries. The key `format` is absent in this format; later ones will set it.
const FORMAT: u32 = 0;

/// Encodes an entry as JSON.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let text = serde_json::to_vec_pretty(value);
    text.map_err(|error| Error::new(ErrorKind::Internal, "cannot write JSON").source(error))
}

/// Decodes an entry; `what` names it in errors.
///
/// # Errors
/// `Corrupt`: it is no entry. `Unsupported`: a later release wrote it.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    #[derive(serde::Deserialize)]
    struct Format {
        #[serde(default)]
        format: u32,
    }
    let corrupt = |error: serde_json::Error| {
        Error::new(ErrorKind::Corrupt, format!("{what} in the catalogue is no record of dlfs"))
            .source(error)
    };
    let Format { format } = serde_json::from_slice(bytes).map_err(corrupt)?;
    if format > FORMAT {
        let message = format!(
            "{what} in the catalogue has format {format}, and this release knows {}",
            FORMAT
        );
        return Err(Error::new(ErrorKind::Unsupported, message)
            .hint("use the release that wrote it, or a later one"));
    }
    serde_json::from_slice(bytes).map_err(corrupt)
}
