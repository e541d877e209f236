//! A client of one store. Its methods block the calling thread; the client's thread does the I/O.

use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{PutMode, PutOptions, PutPayload};
use tokio::sync::mpsc;

use super::executor::{Asked, Executor};
use super::fetch::StoreShared;
use super::flowing::{Flowing, flow};
use super::listing::{find, limited, list};
use super::range_buf::RangeBuf;
use super::store::Store;
use super::wanted::{Version, Wanted};
use super::watch::{Connections, LISTING, Listing, Note};
use crate::{Object, Place, PlaceOptions, PlaceStats};
use dlfs_base::error::{Result, invalid};
use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_base::registry::Registration;

/// A client of a store. Many threads can use it at once; clones share its connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

/// The state that clones of a client share.
struct Inner {
    shared: Arc<StoreShared>,
    executor: Executor,
    /// Makes the counters part of the process's metrics. Clients of one web server share it.
    _metered: Arc<Registration>,
}

impl Measured for StoreShared {
    fn measure(&self, snapshot: &mut Snapshot) {
        let PlaceStats { requests, retries, throttled, hedges, bytes } =
            self.connections.counts.read();
        for (metric, value) in [
            (&metrics::OBJECT_REQUESTS, requests),
            (&metrics::OBJECT_RETRIES, retries),
            (&metrics::OBJECT_THROTTLED, throttled),
            (&metrics::OBJECT_HEDGES, hedges),
            (&metrics::OBJECT_BYTES, bytes),
        ] {
            snapshot.count(metric, &[self.place.scheme().name()], value);
        }
    }
}

impl Client {
    /// A client of the store with the address `place`.
    ///
    /// # Errors
    /// `InvalidArgument`: the settings are invalid or incomplete. `NotFound`: the environment names an AWS
    /// profile that does not exist. `Unsupported`: the profile's credentials come from elsewhere, or this
    /// build lacks the feature `cloud`. `Interrupted`: the wait was cancelled.
    pub fn open(place: &Place, options: &PlaceOptions) -> Result<Client> {
        // Fails if a provider is installed already; any provider works.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let executor = Executor::start(options.cancel.clone())?;
        let options = options.clone();
        let shared = opened(&executor, place, |root| async move {
            let connections = Arc::<Connections>::default();
            let store = Store::open(&root, &options, Arc::clone(&connections)).await?;
            Ok(StoreShared::new(root, store, options, connections))
        })?;
        let _metered = Arc::new(Registration::new(&shared));
        Ok(Client(Arc::new(Inner { _metered, shared, executor })))
    }

    /// A client of the same web server for URLs with another user or query, such as signed ones. It shares this
    /// client's thread, connections, window of requests and counters.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn beside(&self, place: &Place) -> Result<Client> {
        let Inner { shared, executor, _metered } = &*self.0;
        let shared = Arc::clone(shared);
        let shared = opened(executor, place, |root| async move {
            let store =
                Store::open(&root, &shared.options, Arc::clone(&shared.connections)).await?;
            Ok(shared.beside(root, store))
        })?;
        let executor = executor.clone();
        let _metered = _metered.clone();
        Ok(Client(Arc::new(Inner { shared, executor, _metered })))
    }

    /// The store's address.
    pub fn place(&self) -> &Place {
        &self.0.shared.place
    }

    /// Length of the ranges into which objects are split.
    pub fn range_bytes(&self) -> u64 {
        self.0.shared.options.range_bytes
    }

    /// Maximum bytes that one reader holds.
    pub fn window_bytes(&self) -> u64 {
        self.0.shared.options.window_bytes
    }

    /// The store, for readers.
    pub(super) fn shared(&self) -> &StoreShared {
        &self.0.shared
    }

    /// The bytes `range` of an object, as they arrive.
    pub(super) fn flow(&self, object: &Object, range: Range<u64>) -> Flowing {
        Flowing::begin(|send| {
            let Object { key, len_bytes, etag } = object.clone();
            let wanted =
                Wanted { key: self.key(&key)?, range, len_bytes, version: Version::Tag(etag) };
            let shared = Arc::clone(&self.0.shared);
            self.0.executor.ask(async move { flow(&shared, wanted, &send).await })
        })
    }

    /// Counters so far.
    pub fn stats(&self) -> PlaceStats {
        self.0.shared.connections.counts.read()
    }

    /// The object with this key.
    ///
    /// # Errors
    /// `NotFound`: no such object. `Refused`: access is denied. `InvalidArgument`: the key cannot be named.
    /// Otherwise those of [`Pending::read_into`].
    pub fn head(&self, key: &str) -> Result<Object> {
        self.find(key, true)
    }

    /// As [`head`](Self::head), but an HTML page counts as `NotFound` unless the key ends like one: web
    /// servers send such pages for folders and for missing files.
    ///
    /// # Errors
    /// The errors of [`head`](Self::head).
    pub fn file(&self, key: &str) -> Result<Object> {
        let pages = [".html", ".htm", ".xhtml"];
        self.find(key, pages.iter().any(|end| key.to_ascii_lowercase().ends_with(end)))
    }

    /// The object with this key. `may_be_page`: on a web server, an HTML page counts as one.
    fn find(&self, key: &str, may_be_page: bool) -> Result<Object> {
        let shared = Arc::clone(&self.0.shared);
        let key = self.key(key)?;
        self.0.executor.ask(async move { find(&shared, &key, may_be_page).await })?.wait()
    }

    /// Creates an object, whole or not at all. Returns false if there is already an object with this key.
    ///
    /// # Errors
    /// `Refused`: the store does not let this client write, or cannot create without replacing. Errors of the store.
    pub fn create(&self, key: &str, bytes: Vec<u8>) -> Result<bool> {
        let key = self.key(key)?;
        let shared = Arc::clone(&self.0.shared);
        let bytes = PutPayload::from(bytes);
        let asked = self.0.executor.ask(async move {
            let note = Note::default();
            let put = || async {
                let mut options = PutOptions::from(PutMode::Create);
                options.extensions.insert(note.clone());
                match shared.store.objects.put_opts(&key, bytes.clone(), options).await {
                    Ok(_) => Ok(true),
                    Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                    Err(error) => Err(error),
                }
            };
            let create = || limited(&shared, put(), &note);
            shared.again(key.as_ref(), &note, create).await
        });
        asked?.wait()
    }

    /// Calls `found` for all objects whose keys begin with `prefix`, which is empty or ends with a slash.
    /// Stores list them in the byte order of keys; listings of web servers and the Hub are sorted so.
    /// Returns the keys that the client library cannot name and therefore cannot read.
    ///
    /// # Errors
    /// The errors of `found` and of [`head`](Self::head). A prefix without objects is `NotFound` only on the
    /// Hub.
    pub fn list(
        &self,
        prefix: &str,
        found: &mut dyn FnMut(Object) -> Result<()>,
    ) -> Result<Vec<String>> {
        let (send, mut pages) = mpsc::channel(PAGES_AHEAD);
        let shared = Arc::clone(&self.0.shared);
        let prefix = prefix.to_owned();
        let listing = Listing::default();
        let listed = self.0.executor.ask(LISTING.scope(listing.clone(), async move {
            let result = list(&shared, &prefix, &send).await;
            result.map_err(|error| error.target(shared.place.with_key(prefix).to_string()))
        }))?;
        while let Some(page) = listed.next_of(&mut pages)? {
            page.into_iter().try_for_each(&mut *found)?;
        }
        listed.wait()?;
        let mut refused = std::mem::take(&mut *listing.refused.lock());
        refused.sort_unstable();
        refused.dedup(); // a page may have been listed twice
        Ok(refused)
    }

    /// Requests a range of an object, in the version that `object` describes.
    pub fn fetch(&self, object: &Object, range: Range<u64>) -> Pending {
        let version = Version::Tag(object.etag.clone());
        self.ask(&object.key, range, object.len_bytes, version)
    }

    /// Requests a range of an object that had this length and this stamp when it was listed.
    pub fn fetch_stamped(
        &self,
        key: &str,
        len_bytes: u64,
        stamp: u64,
        range: Range<u64>,
    ) -> Pending {
        self.ask(key, range, len_bytes, Version::Stamp(stamp))
    }

    /// Requests a range of an object of `len_bytes` in this version.
    fn ask(&self, key: &str, range: Range<u64>, len_bytes: u64, version: Version) -> Pending {
        let len = range.end - range.start;
        let asked = self.key(key).and_then(|key| {
            let wanted = Wanted { key, range, len_bytes, version };
            let shared = Arc::clone(&self.0.shared);
            self.0.executor.ask(async move {
                if wanted.range.is_empty() {
                    shared.pool.take(0)
                } else {
                    shared.fetch(&wanted).await
                }
            })
        });
        Pending { asked, len }
    }

    /// The key as the client library takes it.
    fn key(&self, key: &str) -> Result<Key> {
        Key::parse(key).map_err(|_| {
            invalid("a key with empty, . or .. parts cannot be named")
                .target(self.place().with_key(key).to_string())
        })
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Client").field(self.place()).finish()
    }
}

/// Runs `open` with the address of the whole store on the client's thread.
fn opened<F>(
    executor: &Executor,
    place: &Place,
    open: impl FnOnce(Place) -> F,
) -> Result<Arc<StoreShared>>
where
    F: Future<Output = Result<StoreShared>> + Send + 'static,
{
    let root = place.with_key("");
    let address = root.to_string();
    let shared = executor.ask(open(root))?.wait();
    shared.map(Arc::new).map_err(|error| error.target(address))
}

/// A requested range. Dropping it cancels the request.
#[derive(Debug)]
pub struct Pending {
    /// The request, or the reason why it could not be made.
    asked: Result<Asked<RangeBuf>>,
    /// Number of requested bytes.
    len: u64,
}

impl Pending {
    /// Number of requested bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Waits for the bytes and copies them; `into` must have their length.
    ///
    /// # Errors
    /// `BadSource`: the object has changed since it was listed. `NotFound`, `Refused`: as the store says.
    /// `Unsupported`: the store sends no ranges, or several entity tags for one version. `Busy`,
    /// `Disconnected`, `TimedOut`, `Io`: all attempts within the time limit of the options failed.
    /// `Interrupted`: the wait was cancelled.
    pub fn read_into(self, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.bytes()?);
        Ok(())
    }

    /// Waits for the bytes, and returns them without a copy.
    ///
    /// # Errors
    /// Those of [`read_into`](Self::read_into).
    pub fn take(self) -> Result<impl AsRef<[u8]> + Send + use<>> {
        self.bytes()
    }

    /// Waits for the bytes.
    pub(super) fn bytes(self) -> Result<RangeBuf> {
        self.asked?.wait()
    }
}

/// Pages of a listing that are buffered ahead.
const PAGES_AHEAD: usize = 2;
