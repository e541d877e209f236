//! Object stores: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, web servers, data
//! sets of the Hugging Face hub.
//!
//! # What it is
//! [`Place`] is the address of an object or of all objects beneath a prefix. A [`Client`] lists the objects of a
//! store and reads them: ranges at given offsets, or many objects one after the other, in order, as [`Reader`]
//! hands them over.
//!
//! # What it is not
//! It writes nothing, and knows neither samples nor blocks: `import` and `qpair` do.
//!
//! # Invariants
//! - All of a store's input and output is done by one thread, `dlfs-cloud`, which has the only executor of
//!   asynchronous work in the library. Callers block, and never for ever: each request has a deadline, and each
//!   failure is tried again only for so long.
//! - Bytes of an object that has changed since it was listed are never handed over, as far as its entity tag shows it:
//!   each range is asked for with `If-Match`, and the answer's tag, range and length are compared. Where a web server
//!   gives no tags, only the length is compared.
//! - What is held in memory is bounded, whatever the store does.
//! - No message holds a secret: neither a signature nor a URL's user or query.
//!
//! Without the feature `cloud` only addresses are known, and opening a store says so.
//!
//! Read `address.rs` first, then `cloud/`, which is the feature `cloud`; `without.rs` stands in for it.

mod address;
mod cancel;
#[cfg(feature = "cloud")]
mod cloud;
#[cfg(not(feature = "cloud"))]
mod without;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

pub use address::{Place, Scheme};
pub use cancel::Cancel;
#[cfg(feature = "cloud")]
pub use cloud::{Client, Pending, Reader};
#[cfg(not(feature = "cloud"))]
pub use without::{Client, Pending, Reader};

/// Bytes that a [`Reader`] has lent: a range of what they share their memory with.
pub type Lent = (Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>);

/// A source as it may be shown and kept: the address of an object without its secrets, or the path.
pub fn shown(source: &Path) -> String {
    match Place::is_place(source).then(|| Place::of_path(source)) {
        None => source.display().to_string(),
        Some(Ok(place)) => place.to_string(),
        Some(Err(_)) => "an invalid address".to_owned(),
    }
}

/// An object of a store, as it was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// Its length.
    pub len_bytes: u64,
    /// Its entity tag: another content has another one. Some web servers give none.
    pub etag: Option<String>,
}

impl Object {
    /// A hash of length and entity tag. Without a tag, a change that keeps the length goes unnoticed.
    pub fn stamp(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(&self.len_bytes.to_le_bytes());
        hash.update(self.etag.as_deref().unwrap_or_default().as_bytes());
        hash.digest()
    }
}

/// How a store is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceOptions {
    /// Settings by the names of the crate `object_store`, such as `aws_endpoint_url`, and `hf_endpoint` and `hf_token`;
    /// they precede those of the environment.
    pub settings: Vec<(String, String)>,
    /// The length of the ranges that objects are cut into.
    pub range_bytes: u64,
    /// The most bytes that one reader holds: ranges in flight, and those that arrived before their turn.
    pub window_bytes: u64,
    /// How long one request may stay without an answer, or without another byte.
    pub silence: Duration,
    /// How long a request that fails is tried again.
    pub patience: Duration,
    /// Addresses of stores and servers, beside its own, that a list which a store serves may name.
    pub list_hosts: Vec<Place>,
    /// Ends all waiting for the store with an error of the kind `Interrupted`.
    pub cancel: Cancel,
}

impl Default for PlaceOptions {
    fn default() -> PlaceOptions {
        PlaceOptions {
            settings: Vec::new(),
            range_bytes: 8 << 20,
            window_bytes: 256 << 20,
            silence: Duration::from_secs(20),
            patience: Duration::from_secs(120),
            list_hosts: Vec::new(),
            cancel: Cancel::default(),
        }
    }
}

/// Counts of a client's requests so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceStats {
    /// Requests sent.
    pub requests: u64,
    /// Requests that failed and were tried again.
    pub retries: u64,
    /// Answers that said that there are too many requests.
    pub throttled: u64,
    /// Second requests for bytes that were slow to come.
    pub hedges: u64,
    /// Bytes handed over.
    pub bytes: u64,
}
