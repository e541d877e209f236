//! A range of an object to request, and the version of the object that the response must have.

use std::ops::Range;

use object_store::path::Path as Key;

use crate::Object;

/// A range of an object to request.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) key: Key,
    /// The bytes of the object.
    pub(super) range: Range<u64>,
    /// The object's length.
    pub(super) len_bytes: u64,
    pub(super) version: Version,
}

/// The version of an object's content.
#[derive(Debug, Clone)]
pub(super) enum Version {
    /// The version with this entity tag; `None`: the store sends no tags, so only the length is compared.
    Tag(Option<String>),
    /// The version with this stamp: [`Object::stamp`].
    Stamp(u64),
}

impl Version {
    /// Returns whether an object with this length and entity tag has this version.
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
