//! A catalogue's record of a version of a data set.

use std::collections::BTreeMap;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_io::address::Address;

/// One generation of an image, as a catalogue has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The UUID of the image.
    #[serde(deserialize_with = "uuid")]
    pub image: String,
    /// Its generation.
    pub generation: u64,
    /// Locations of the image: an IMAGE (addresses with commas between) for each site that has it. The first that can
    /// be reached is read.
    pub sites: Vec<String>,
    /// Live samples.
    pub samples: u64,
    /// Bytes of the live samples.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// The snapshot of the directory that this generation committed: CRC32C of its head, and its length.
    pub snapshot: String,
    /// Names of the fields of a sample; empty if samples have one only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// The generation that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The sources of the import that made it, as they were named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The operation that made it: `import`, `append`, `delete`, `purge`; empty for an image that was added as it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub made_by: String,
    /// The release of dlfs that wrote this record.
    pub dlfs: String,
    /// When the generation was committed, in seconds since 1970.
    pub committed_s: u64,
    /// The labels that users gave it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A generation that another one was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The UUID of the image.
    #[serde(deserialize_with = "uuid")]
    pub image: String,
    /// Its generation.
    pub generation: u64,
}

impl Record {
    /// The addresses of each site.
    ///
    /// # Errors
    /// `Corrupt`: one is none, or is a name in a catalogue itself; there is none, or there are too many.
    pub fn addresses(&self) -> Result<Vec<Vec<Address>>> {
        let wrong = |site: &String, why: String| {
            let message =
                format!("the catalogue's record names {site:?}, which is not an image: {why}");
            Error::new(ErrorKind::Corrupt, message)
        };
        let parse = |site: &String| {
            // The error quotes the site as it is.
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

    pub(super) fn check(&self) -> Result<()> {
        self.addresses().map(drop).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, "this cannot be added to a catalogue")
                .source(error)
        })
    }

    /// Returns whether both say the same about the same generation. The release that wrote them does not matter.
    pub(super) fn is_same_as(&self, other: &Record) -> bool {
        *self == Record { dlfs: self.dlfs.clone(), ..other.clone() }
    }
}

/// An entry of a data set's log of versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum VersionEntry {
    Removed { versions: Vec<u64> },
    Added(Box<Record>),
}

/// An entry of an alias's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AliasEntry {
    /// `None`: it was removed. An entry without it is damaged.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(super) to: Option<PointsTo>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PointsTo {
    /// The number of the version.
    pub(super) version: u64,
    pub(super) generation: u64,
    pub(super) image: String,
}

impl AliasEntry {
    pub(super) fn new(to: Option<(u64, &Record)>) -> AliasEntry {
        let to = to.map(|(version, record)| PointsTo {
            version,
            generation: record.generation,
            image: record.image.clone(),
        });
        AliasEntry { to }
    }
}

/// The UUID of an image, which messages quote.
fn uuid<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    let is_plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    if text.len() == 36 && text.bytes().all(is_plain) {
        Ok(text)
    } else {
        Err(D::Error::custom("the image is no UUID"))
    }
}

/// Each is tried in turn when an image is opened.
const MAX_SITES: usize = 64;

/// The format of entries. A later one has another number in the key `format`, which these lack.
pub(super) const FORMAT: u32 = 0;
