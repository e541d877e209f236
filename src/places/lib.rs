//! Reads object stores: Amazon S3 and compatible stores, Google Cloud Storage, Azure Blob Storage, web
//! servers, and data sets of the Hugging Face Hub.
//!
//! # What it is
//! [`Place`] is the address of an object or of all objects beneath a prefix. A [`Client`] lists the objects
//! of a store. It reads byte ranges of objects, or, through a [`Reader`], many objects in order.
//!
//! # What it is not
//! It replaces and deletes nothing, creates only what it is told to, and knows neither samples nor blocks;
//! `dlfs-import` and `dlfs-io` handle these.
//!
//! # Invariants
//! - One thread, `dlfs-cloud`, does all I/O of a client. It runs the library's only asynchronous executor.
//!   Callers block, but never for ever: each request has a deadline, and retries stop after a time limit.
//! - An object that has changed since it was listed is never read, if its entity tag shows the change: tag,
//!   range and length of each response are compared. For web servers without entity tags, only the length
//!   is compared.
//! - Memory use is bounded, whatever the store does.
//! - No message contains a secret: neither a signature nor a URL's user or query.
//!
//! Without the feature `cloud`, addresses can be parsed, but opening a store fails with `Unsupported`.
//!
//! Read `address.rs` first, then `cloud/`, the code of the feature `cloud`; `without.rs` is its stand-in.

mod address;
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
#[cfg(feature = "cloud")]
pub use cloud::{Client, Pending, Reader};
#[cfg(not(feature = "cloud"))]
pub use without::{Client, Pending, Reader};

/// Bytes lent by a [`Reader`]: shared memory, and the range of the bytes in it.
pub type Lent = (Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>);

/// A source in a form that may be shown and stored: an object's address without its secrets, or a file's
/// path.
pub fn shown(source: &Path) -> String {
    match Place::is_place(source).then(|| Place::of_path(source)) {
        None => source.display().to_string(),
        Some(Ok(place)) => place.to_string(),
        Some(Err(_)) => "an invalid address".to_owned(),
    }
}

/// An object of a store, as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The object's key.
    pub key: String,
    /// The object's length in bytes.
    pub len_bytes: u64,
    /// The object's entity tag, which changes with its content. Some web servers send none.
    pub etag: Option<String>,
}

impl Object {
    /// A hash of length and entity tag. Without a tag, it misses a change that keeps the length.
    pub fn stamp(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(&self.len_bytes.to_le_bytes());
        hash.update(self.etag.as_deref().unwrap_or_default().as_bytes());
        hash.digest()
    }
}

/// Settings and limits for reading a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceOptions {
    /// Settings named as in the crate `object_store`, such as `aws_endpoint_url`, and `hf_endpoint` and
    /// `hf_token`. They take precedence over the environment.
    pub settings: Vec<(String, String)>,
    /// Length of the ranges into which objects are split.
    pub range_bytes: u64,
    /// Maximum bytes that one reader holds: ranges in flight, and ranges that arrived before their turn. A
    /// reader always holds at least one range.
    pub window_bytes: u64,
    /// Time limit for the store's silence: before a response begins, and between two parts of it. Also limits
    /// the whole of a short request, such as for a page of a listing.
    pub silence: Duration,
    /// Time limit for retrying a failed request.
    pub patience: Duration,
    /// Further stores and servers to which a list of URLs that a store serves may refer.
    pub list_hosts: Vec<Place>,
    /// Cancels waiting for the store; the error has the kind `Interrupted`.
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

/// Counters of a client's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceStats {
    /// Requests sent.
    pub requests: u64,
    /// Requests that failed and were retried.
    pub retries: u64,
    /// Reads of ranges that the store refused because there were too many requests.
    pub throttled: u64,
    /// Hedged requests: second requests for bytes that were slow to arrive.
    pub hedges: u64,
    /// Bytes of the ranges received.
    pub bytes: u64,
}

/// Cancels waiting for a store: each waiting thread asks it several times a second whether to give up.
///
/// The default never cancels: failed requests are then retried for as long as the options say.
#[derive(Clone, Default)]
pub struct Cancel(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Cancel {
    /// Cancels as soon as `asked` returns true. Waiting threads call `asked`.
    pub fn when(asked: impl Fn() -> bool + Send + Sync + 'static) -> Cancel {
        Cancel(Some(Arc::new(asked)))
    }

    /// Returns whether to give up.
    #[cfg(feature = "cloud")]
    fn is_asked(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked())
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Cancel(..)" } else { "Cancel(never)" })
    }
}

impl PartialEq for Cancel {
    /// Equal if both call the same function, or neither calls one.
    fn eq(&self, other: &Cancel) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for Cancel {}
