//! Reads object stores: Amazon S3 and compatible stores, Google Cloud Storage, Azure Blob Storage, web
//! servers, and data sets of the Hugging Face Hub.
//!
//! # What it is
//! A [`Place`] is the address of an object, or of all objects beneath a prefix. A [`Client`] lists the objects
//! of a store, and creates new ones. It reads byte ranges of objects, or, through a [`Reader`], many objects in order.
//!
//! # What it is not
//! It replaces and deletes nothing. It knows neither samples nor blocks; `dlfs-import` and `dlfs-io` handle these.
//!
//! # Invariants
//! - One thread, `dlfs-cloud`, does all I/O of a client. It runs the library's only asynchronous executor.
//!   Callers block, but not for ever: each request has a deadline, and retries stop after a time limit.
//! - An object that has changed since it was listed is an error, if its entity tag shows the change. Tag, range and
//!   length of each response are compared. For web servers without entity tags, only the length is compared.
//! - Memory use is bounded, whatever the store does.
//! - No message contains a secret: neither a signature nor a URL's user or query.
//!
//! Without the feature `cloud`, addresses can be parsed, but opening a store fails with `Unsupported`.
//!
//! Read this file first, then `cloud/mod.rs`. `without.rs` replaces `cloud/` in builds without the feature.
//!
//! # Addresses
//! `s3://BUCKET/KEY`, `gs://BUCKET/KEY`, `az://CONTAINER/KEY`, `http(s)://HOST/PATH`,
//! `hf://datasets/OWNER/NAME[@REVISION][/PATH]`.
//!
//! Keys in buckets are used unchanged, as the providers' tools do. The path of a URL is percent-encoded.

#[cfg(feature = "cloud")]
mod cloud;
#[cfg(not(feature = "cloud"))]
mod without;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use dlfs_base::error::{Result, invalid};
use dlfs_base::percent;

#[cfg(feature = "cloud")]
pub use cloud::{Client, Pending, Reader};
#[cfg(not(feature = "cloud"))]
pub use without::{Client, Pending, Reader};

/// Bytes lent by a [`Reader`]: shared memory, and the range of the bytes in it.
pub type Lent = (Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>);

/// The form of a source that may be shown and stored: an object's address without secrets, or a file's path.
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
    /// Set: a reader of a single object returns bytes as they arrive, and holds only a few pieces of a range. Ignored
    /// for web servers, which may have to send the whole file.
    pub flowing: bool,
    /// Time limit for the store's silence: before a response begins, and between two parts of it. Also limits
    /// a short request as a whole, such as for a page of a listing.
    pub silence: Duration,
    /// Time limit for retrying a failed request.
    pub patience: Duration,
    /// Stores and servers to which a list in a store may refer, besides that store.
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
            flowing: false,
            silence: Duration::from_secs(20),
            patience: Duration::from_secs(120),
            list_hosts: Vec::new(),
            cancel: Cancel::default(),
        }
    }
}

/// Counters of a client's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceStats<N = u64> {
    /// Requests sent.
    pub requests: N,
    /// Requests that failed and were retried.
    pub retries: N,
    /// Reads of ranges that the store refused because there were too many requests.
    pub throttled: N,
    /// Hedged requests: second requests for bytes that were slow to arrive.
    pub hedges: N,
    /// Bytes of the ranges received.
    pub bytes: N,
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

    /// Returns whether to stop waiting.
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
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for Cancel {}

/// The address of an object, or of all objects whose keys begin with a prefix.
///
/// `Display` and `Debug` show no secrets: they leave out a URL's user and its query, which may hold a
/// signature.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Place {
    scheme: Scheme,
    /// The bucket or container; host and port of a URL; `datasets/OWNER/NAME[@REVISION]`.
    authority: String,
    /// The key or prefix, without the slash that ends the authority; of a URL, decoded.
    key: String,
    /// `user:password` of a URL.
    user: Option<String>,
    /// The query of a URL.
    query: Option<String>,
}

/// The protocol of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3 and compatible stores.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// Files on a web server.
    Http,
    /// Files on a web server, over TLS.
    Https,
    /// Data sets of the Hugging Face Hub.
    Hf,
}

impl Scheme {
    /// The scheme's name, before `://`.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::S3 => "s3",
            Scheme::Gs => "gs",
            Scheme::Az => "az",
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Hf => "hf",
        }
    }

    /// Splits an address into its scheme and the rest after `://`; `None`: it begins with no scheme of a store.
    fn of(text: &str) -> Option<(Scheme, &str)> {
        let (name, rest) = text.split_once("://")?;
        use Scheme::{Az, Gs, Hf, Http, Https, S3};
        let all = [S3, Gs, Az, Http, Https, Hf];
        let scheme = all.into_iter().find(|scheme| scheme.name().eq_ignore_ascii_case(name))?;
        Some((scheme, rest))
    }

    /// Returns whether the store is a web server, so that its addresses are URLs.
    fn is_url(self) -> bool {
        matches!(self, Scheme::Http | Scheme::Https)
    }
}

impl Place {
    /// Returns whether `path` is an address of an object store, rather than a file's path.
    pub fn is_place(path: &Path) -> bool {
        // Bytes that are not UTF-8 may follow a valid scheme.
        Scheme::of(&path.to_string_lossy()).is_some()
    }

    /// Parses an address.
    ///
    /// # Errors
    /// `InvalidArgument`: the string is no address, or an invalid one.
    pub fn parse(text: &str) -> Result<Place> {
        let invalid = |why: &'static str| {
            let shown = text.split(['?', '#']).next().unwrap_or_default();
            let shown = match shown.split_once("://").zip(shown.rsplit_once('@')) {
                Some(((scheme, _), (_, host))) => format!("{scheme}://{host}"),
                None => shown.to_owned(),
            };
            invalid(why).target(shown).hint(FORMS)
        };
        let Some((scheme, rest)) = Scheme::of(text) else {
            return Err(invalid("this is no address of an object store"));
        };
        if text.chars().any(char::is_control) {
            return Err(invalid("an address of an object store has no control characters"));
        }
        let place = |authority: &str, key: &str| {
            let authority = authority.to_owned();
            Place { scheme, authority, key: key.to_owned(), user: None, query: None }
        };
        if scheme == Scheme::Hf {
            let (authority, key) = data_set(rest).ok_or_else(|| {
                invalid("a source on the hub is hf://datasets/OWNER/NAME, with @REVISION and /PATH if need be")
            })?;
            return Ok(place(authority, key));
        }
        if !scheme.is_url() {
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() || bucket.contains(['?', '@', ':', '\\']) {
                return Err(invalid("the name of the bucket is missing or invalid"));
            }
            return Ok(place(bucket, key));
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let query = rest.split_once('?').map(|(_, query)| query.to_owned());
        let rest = rest.split('?').next().unwrap_or_default();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let user = authority.rsplit_once('@').map(|(user, _)| user.to_owned());
        let authority = authority.rsplit('@').next().unwrap_or_default();
        if authority.is_empty() || authority.contains(char::is_whitespace) {
            return Err(invalid("the host is missing or invalid"));
        }
        let key = unescape(path).ok_or_else(|| invalid("the path of the URL is not UTF-8"))?;
        Ok(Place { user, query, ..place(authority, &key) })
    }

    /// Parses an address given as a path.
    ///
    /// # Errors
    /// The errors of [`Place::parse`].
    pub fn of_path(path: &Path) -> Result<Place> {
        let text =
            path.to_str().ok_or_else(|| invalid("an address of an object store is UTF-8"))?;
        Place::parse(text)
    }

    /// The protocol.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The bucket or container; host and port of a URL; `datasets/OWNER/NAME[@REVISION]`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The key or prefix.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns whether the key is a prefix of keys: it is empty or ends with a slash.
    pub fn is_folder(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// The address of another object in the same store.
    pub fn with_key(&self, key: impl Into<String>) -> Place {
        Place { key: key.into(), ..self.clone() }
    }

    /// Returns whether both addresses are URLs of one web server.
    pub fn is_same_server(&self, other: &Place) -> bool {
        self.scheme.is_url() && self.has(other)
    }

    /// Returns whether `other` is in the same bucket, container or data set, or on the same server.
    pub fn has(&self, other: &Place) -> bool {
        self.scheme == other.scheme && self.authority == other.authority
    }

    /// The URL of the web server. It contains user and query, so it must not be shown.
    #[cfg(feature = "cloud")]
    fn base_url(&self) -> String {
        self.with_key("").url()
    }

    /// The URL of the file. It contains user and query, so it must not be shown.
    #[cfg(feature = "cloud")]
    fn url(&self) -> String {
        let user = self.user.as_ref().map(|user| format!("{}@", mended(user, "[\\]^`{|}")));
        let user = user.unwrap_or_default();
        let query = self.query.as_ref().map(|query| format!("?{}", mended(query, "")));
        let query = query.unwrap_or_default();
        format!("{}://{user}{}/{}{query}", self.scheme.name(), self.authority, escape(&self.key))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/", self.scheme.name(), self.authority)?;
        if self.scheme.is_url() {
            f.write_str(&escape(&self.key))?
        } else {
            f.write_str(&self.key)?
        }
        if self.query.is_some() { f.write_str("?...") } else { Ok(()) }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Splits `datasets/OWNER/NAME[@REVISION][/PATH]` into data set and path.
fn data_set(text: &str) -> Option<(&str, &str)> {
    let mut slashes = text.match_indices('/').map(|(at, _)| at);
    let _ = slashes.next()?;
    let _ = slashes.next()?;
    let end = slashes.next().unwrap_or(text.len());
    let authority = &text[..end];
    let key = text[end..].trim_start_matches('/');
    let (owner, name) = authority.strip_prefix("datasets/")?.split_once('/')?;
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    let is_plain = |text: &str, more: &[u8]| {
        let is_of = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !text.is_empty() && text.bytes().all(|byte| is_of(byte) || more.contains(&byte))
    };
    let is_one = is_plain(owner, b"") && is_plain(name, b"") && is_plain(revision, b"~%");
    (is_one && ![owner, name, revision].iter().any(|part| matches!(*part, "." | "..")))
        .then_some((authority, key))
}

/// Decodes `%XX`; `None`: the result is not UTF-8.
fn unescape(text: &str) -> Option<String> {
    String::from_utf8(percent::unescape(text, |_| true)).ok()
}

/// Percent-encodes all bytes except slashes and a URL's unreserved characters.
fn escape(text: &str) -> String {
    let is_special = |c: char| !c.is_ascii_alphanumeric() && !"/-_.~".contains(c);
    let mut escaped = String::with_capacity(text.len());
    // Writing to a string cannot fail.
    let _ = percent::escape(&mut escaped, text.as_bytes(), is_special);
    escaped
}

/// Percent-encodes the characters of a user or a query that no URL has, those in `more` among them, as browsers do.
/// All others stay as they were given.
#[cfg(feature = "cloud")]
fn mended(text: &str, more: &str) -> String {
    let is_special = |c: char| !c.is_ascii_graphic() || "\"<>".contains(c) || more.contains(c);
    let mut mended = String::with_capacity(text.len());
    // Writing to a string cannot fail.
    let _ = percent::escape(&mut mended, text.as_bytes(), is_special);
    mended
}

/// The hint for an invalid address.
const FORMS: &str = "one of s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, https://HOST/PATH, \
                     hf://datasets/OWNER/NAME";

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (Scheme, String, String) {
        let place = Place::parse(text).unwrap();
        (place.scheme, place.authority, place.key)
    }

    #[test]
    fn keys_of_buckets_are_taken_as_they_are_and_paths_of_urls_are_decoded() {
        let all = |scheme, authority: &str, key: &str| (scheme, authority.into(), key.into());
        assert_eq!(parts("s3://b/a%2Fb/c?d#e"), all(Scheme::S3, "b", "a%2Fb/c?d#e"));
        assert_eq!(parts("S3://b"), all(Scheme::S3, "b", ""));
        assert_eq!(parts("gs://b/a/"), all(Scheme::Gs, "b", "a/"));
        assert_eq!(parts("https://h:8/a%20b?q=1"), all(Scheme::Https, "h:8", "a b"));
        assert_eq!(parts("http://h/100%"), all(Scheme::Http, "h", "100%"));
        let hub = |text: &str, authority: &str, key: &str| {
            assert_eq!(parts(text), all(Scheme::Hf, authority, key), "{text}");
        };
        hub("hf://datasets/o/n", "datasets/o/n", "");
        hub("hf://datasets/o/n@v1.0/a b/c@d", "datasets/o/n@v1.0", "a b/c@d");
        hub("hf://datasets/o/n@refs%2Fpr%2F1/", "datasets/o/n@refs%2Fpr%2F1", "");
        for wrong in [
            "hf://o/n",
            "hf://datasets/o",
            "hf://datasets//n",
            "hf://datasets/o/n@",
            "hf://datasets/o/../x",
        ] {
            assert!(Place::parse(wrong).is_err(), "{wrong:?}");
        }
        for wrong in
            ["s3://", "s3:///k", "https:///p", "http://h/%ff", "/p", "ftp://h/p", "s3://a\n"]
        {
            assert!(Place::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(Place::is_place(Path::new("az://c/k")) && !Place::is_place(Path::new("az:/c")));
    }

    #[test]
    fn no_user_and_no_query_is_ever_shown() {
        let text = "https://me:SECRET@h/a%20b.tar?X-Amz-Signature=SECRET";
        let place = Place::parse(text).unwrap();
        assert_eq!(place.to_string(), "https://h/a%20b.tar?...");
        assert!(!format!("{place:?}").contains("SECRET"));
        for wrong in
            ["https://me:SECRET@/x?SECRET", "ftp://me:SECRET@h/x?SECRET", "https://:SECRET@/\n"]
        {
            let report = Place::parse(wrong).unwrap_err().report();
            assert!(!report.contains("SECRET"), "{report}");
        }
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn characters_that_no_url_has_are_encoded_and_all_others_stay() {
        let url = |text: &str| Place::parse(text).unwrap().url();
        let given = "https://me:a b^@h/x y?name=a b\"ü&sig=%2B+{1}";
        let mended = "https://me:a%20b%5E@h/x%20y?name=a%20b%22%C3%BC&sig=%2B+{1}";
        assert_eq!(url(given), mended);
        assert_eq!(url(mended), mended);
        assert!(mended.parse::<http::Uri>().is_ok());
    }

    #[test]
    fn a_source_is_shown_without_its_secrets() {
        use crate::shown;
        assert_eq!(shown(Path::new("a/b c")), "a/b c");
        assert_eq!(shown(Path::new("https://me:SECRET@h/x.tar?SECRET")), "https://h/x.tar?...");
        assert_eq!(shown(Path::new("https://me:SECRET@/x")), "an invalid address");
    }

    #[test]
    fn an_address_that_is_shown_leads_to_the_same_object() {
        for text in [
            "s3://b/a b/%20/ü",
            "http://h:1/a%20b/%25/%C3%BC",
            "az://c/",
            "hf://datasets/o/n@v/a b/ü",
        ] {
            let place = Place::parse(text).unwrap();
            assert_eq!(Place::parse(&place.to_string()).unwrap(), place, "{text}");
        }
    }
}
