//! A range of an object, as it is asked for: of one version alone.

use std::ops::Range;

use object_store::path::Path as Key;

use crate::Object;

/// A range to ask for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) key: Key,
    pub(super) range: Range<u64>,
    /// The object's length.
    pub(super) len_bytes: u64,
    pub(super) version: Version,
}

/// The wanted version of the object's content.
#[derive(Debug, Clone)]
pub(super) enum Version {
    /// The one with this tag, if there is one.
    Tag(Option<String>),
    /// The one with this stamp: [`Object::stamp`].
    Stamp(u64),
}

impl Version {
    /// Returns whether an object of this length and tag has this version.
    pub(super) fn is_of(&self, len_bytes: u64, etag: &Option<String>) -> bool {
        match self {
            Version::Tag(None) => true,
            Version::Tag(tag) => tag == etag,
            Version::Stamp(stamp) => {
                let key = String::new();
                let etag = etag.clone();
                Object { key, len_bytes, etag }.stamp() == *stamp
            }
        }
    }
}
