//! A client of one store, for threads that block.
//!
//! A [`Reader`] reads many objects in order: requests ranges ahead, and delivers them in turn.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::list::PaginatedListOptions;
use object_store::path::Path as Key;
use object_store::{GetOptions, ObjectMeta, PutMode, PutOptions, PutPayload};
use tokio::sync::mpsc;

use super::executor::{Asked, Executor};
use super::fetch::{Shared, Version, Wanted};
use super::flow::{Piece, Ranges, ahead};
use super::flowing::{Flowing, flow};
use super::http_client::{Kept, Pool, RangeBuf};
use super::pages;
use super::store::{Pages, Store};
use super::watch::{Failure, LISTING, Listing, Note, Seen};
use super::web::Web;
use crate::{Lent, Object, Place, PlaceOptions, PlaceStats};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_base::registry::Registration;

/// A client of a store. Many threads can use it at once; clones share its connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    executor: Executor,
    _metered: Arc<Registration>,
}

impl Measured for Shared {
    fn measure(&self, snapshot: &mut Snapshot) {
        let PlaceStats { requests, retries, throttled, hedges, bytes } = self.seen.counts.read();
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
        let root = place.with_key("");
        let options = options.clone();
        let seen = Arc::<Seen>::default();
        let opened = executor.ask({
            let root = root.clone();
            async move {
                let store = Store::open(&root, &options, Arc::clone(&seen)).await?;
                Ok(Shared::new(root, store, options, seen))
            }
        })?;
        let shared = opened.wait().map_err(|error| error.target(root.to_string()))?;
        let shared = Arc::new(shared);
        let _metered = Arc::new(Registration::new(&shared));
        Ok(Client(Arc::new(Inner { _metered, shared, executor })))
    }

    /// A client of the same web server for URLs with another user or query, such as signed ones. It shares
    /// this client's thread, connections, window and counters.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn beside(&self, place: &Place) -> Result<Client> {
        let Inner { shared, executor, _metered } = &*self.0;
        let root = place.with_key("");
        let opened = executor.ask({
            let root = root.clone();
            let shared = Arc::clone(shared);
            async move {
                let store = Store::open(&root, &shared.options, Arc::clone(&shared.seen)).await?;
                Ok(shared.beside(root, store))
            }
        })?;
        let shared = opened.wait().map_err(|error| error.target(root.to_string()))?;
        let shared = Arc::new(shared);
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

    /// Returns whether readers of one object take its bytes as they arrive.
    pub(super) fn flows(&self) -> bool {
        self.0.shared.options.flowing && self.0.shared.store.web.is_none()
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

    /// The shortest time from a request to the beginning of its response; `None` before the first.
    pub(super) fn delay(&self) -> Option<Duration> {
        self.0.shared.delay()
    }

    /// The buffers for ranges.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.0.shared.pool
    }

    /// Counters so far.
    pub fn stats(&self) -> PlaceStats {
        self.0.shared.seen.counts.read()
    }

    /// The object with this key.
    ///
    /// # Errors
    /// `NotFound`: no such object. `Refused`: access is denied. `InvalidArgument`: the key cannot be named.
    /// Otherwise those of [`Pending::read_into`].
    pub fn head(&self, key: &str) -> Result<Object> {
        self.look(key, true)
    }

    /// As [`head`](Self::head), but an HTML page counts as `NotFound` unless the key ends like one: web
    /// servers send such pages for folders and for missing files.
    ///
    /// # Errors
    /// The errors of [`head`](Self::head).
    pub fn file(&self, key: &str) -> Result<Object> {
        let pages = [".html", ".htm", ".xhtml"];
        self.look(key, pages.iter().any(|end| key.to_ascii_lowercase().ends_with(end)))
    }

    fn look(&self, key: &str, may_be_page: bool) -> Result<Object> {
        let shared = Arc::clone(&self.0.shared);
        let key = self.key(key)?;
        let asked = self.0.executor.ask(async move {
            match &shared.store.web {
                Some(web) => found_on_web(&shared, web, key.as_ref(), may_be_page).await,
                None => found(&shared, &key).await,
            }
        });
        asked?.wait()
    }

    /// Creates an object, whole or not at all. Returns false if there is one with this key.
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

async fn found(shared: &Shared, key: &Key) -> Result<Object> {
    let note = Note::default();
    let head = || async {
        let mut options = GetOptions { head: true, ..GetOptions::default() };
        options.extensions.insert(note.clone());
        let sent = Instant::now();
        let answer = limited(shared, shared.store.get(key, options), &note).await?;
        shared.answered(sent.elapsed());
        Ok(object(answer.meta))
    };
    shared.again(key.as_ref(), &note, head).await
}

async fn found_on_web(shared: &Shared, web: &Web, key: &str, may_be_page: bool) -> Result<Object> {
    let note = Note::default();
    let head = || async {
        let sent = Instant::now();
        let info = limited(shared, web.describe(key, &note), &note).await?;
        shared.answered(sent.elapsed());
        if info.is_page && !may_be_page {
            let text = "the web server answers with a page (text/html) and no file";
            return Err(Failure::Final(Error::new(ErrorKind::NotFound, text)));
        }
        match info.len_bytes {
            Some(len_bytes) => Ok(Object { key: key.to_owned(), len_bytes, etag: info.etag }),
            None => Ok(shared.copy(web, key, &note).await?.object.clone()),
        }
    };
    shared.again(key, &note, head).await
}

/// Sends the pages of a listing, that of this task; ends early if the receiver is gone.
async fn list(shared: &Shared, prefix: &str, send: &mpsc::Sender<Vec<Object>>) -> Result<()> {
    let Some(pages) = &shared.store.pages else {
        // Fails if the receiver is gone; then nobody waits for the page.
        let _ = send.send(list_of_web(shared, prefix).await?).await;
        return Ok(());
    };
    let mut token = None;
    let mut unsorted = Vec::new();
    let mut found = 0;
    let mut empty = 0;
    loop {
        let note = LISTING.get().note;
        let page = shared.again(prefix, &note, || {
            note.reset();
            limited(shared, page(pages, prefix, token.clone()), &note)
        });
        let (objects, next) = page.await?;
        found += objects.len();
        empty = if objects.is_empty() { empty + 1 } else { 0 };
        if empty > MOST_EMPTY_PAGES || found > MOST_OBJECTS {
            return Err(Error::new(ErrorKind::BadSource, "the listing of the store has no end"));
        }
        if let Pages::Store(_) = pages {
            if send.send(objects).await.is_err() {
                return Ok(());
            }
        } else {
            unsorted.extend(objects);
        }
        match next {
            None => break,
            // Following the same token again would never end.
            same if same == token => {
                let text = "the store gives the same page of its listing again and again";
                return Err(Error::new(ErrorKind::Io, text));
            }
            next => token = next,
        }
    }
    unsorted.sort_unstable_by(|a: &Object, b| a.key.cmp(&b.key));
    // Fails if the receiver is gone; then nobody waits for the objects.
    let _ = send.send(unsorted).await;
    Ok(())
}

/// A page of a listing, and the token of the next page.
async fn page(
    pages: &Pages,
    prefix: &str,
    page_token: Option<String>,
) -> object_store::Result<(Vec<Object>, Option<String>)> {
    match pages {
        Pages::Hub(hub) => hub.page(prefix, page_token.as_deref()).await,
        Pages::Store(store) => {
            let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
            let options = PaginatedListOptions { page_token, ..PaginatedListOptions::default() };
            let page = store.list_paginated(prefix, options).await?;
            Ok((page.result.objects.into_iter().map(object).collect(), page.page_token))
        }
    }
}

/// Lists a web server: in one response if it supports WebDAV. Otherwise, and if WebDAV lists nothing, from
/// its pages that list files.
async fn list_of_web(shared: &Shared, prefix: &str) -> Result<Vec<Object>> {
    let mut all = match (list_by_webdav(shared, prefix).await, &shared.store.web) {
        (Ok(all), Some(web)) if all.is_empty() => list_by_pages(shared, web, prefix).await?,
        (Err(error), Some(web)) if !is_away(error.kind()) => {
            list_by_pages(shared, web, prefix).await?
        }
        (listed, _) => listed?,
    };
    all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(all)
}

/// Returns whether an error says nothing about the methods that the server supports.
fn is_away(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Busy | ErrorKind::Disconnected | ErrorKind::TimedOut)
}

async fn list_by_webdav(shared: &Shared, prefix: &str) -> Result<Vec<Object>> {
    let note = LISTING.get().note;
    note.reset();
    // Some servers answer an unknown method as they answer GET.
    let failed = |failure: Failure| match note.read().status {
        Some(200..=299) => {
            let error = Error::new(ErrorKind::Unsupported, "it does not list by WebDAV");
            Failure::Final(error.source(failure.given_up(1, true)))
        }
        _ => failure,
    };
    let all = shared.again(prefix, &note, || async {
        let prefix = Key::parse(prefix).map_err(|error| Failure::of(&error.into(), note.read()))?;
        let mut found = shared.store.objects.list(Some(&prefix)).map_ok(object);
        let mut objects = Vec::new();
        while let Some(object) = limited(shared, found.try_next(), &note).await.map_err(failed)? {
            objects.push(object);
        }
        Ok(objects)
    });
    all.await
}

/// Follows pages that list files, starting at `prefix`; lists nothing if that page does not exist.
async fn list_by_pages(shared: &Shared, web: &Web, prefix: &str) -> Result<Vec<Object>> {
    let mut folders = vec![prefix.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let note = Note::default();
        if folder[prefix.len()..].matches('/').count() > MOST_DEPTH {
            return Err(Error::new(
                ErrorKind::BadSource,
                "the folders of a web server have no end",
            ));
        }
        let page =
            shared.again(&folder, &note, || limited(shared, web.page(&folder, &note), &note));
        let page = match page.await {
            Err(error) if folder == prefix && error.kind() == ErrorKind::NotFound => break,
            page => page?,
        };
        let Some(names) = pages::names(&page, &folder) else {
            let text = "the web server lists no files here: neither by WebDAV nor on a page of a known kind (Python's \
                        http.server, nginx, Apache)";
            return Err(Error::new(ErrorKind::Unsupported, text)
                .hint("name its files, or give a list of their URLs with --from list"));
        };
        for name in names {
            let list = if name.ends_with('/') { &mut folders } else { &mut files };
            list.push(format!("{folder}{name}"));
        }
    }
    let look = |key: String| async move { found_on_web(shared, web, &key, true).await };
    let looks = files.into_iter().map(look);
    stream::iter(looks).buffer_unordered(LOOKS).try_collect().await
}

/// Runs a short request within its time limit.
async fn limited<T>(
    shared: &Shared,
    request: impl Future<Output = object_store::Result<T>>,
    note: &Note,
) -> Result<T, Failure> {
    let limit = shared.options.silence;
    match tokio::time::timeout(limit, request).await {
        Ok(done) => done.map_err(|error| Failure::of(&error, note.read())),
        Err(_) => Err(Failure::late(format!("there is no answer after {limit:?}"))),
    }
}

fn object(meta: ObjectMeta) -> Object {
    Object { key: meta.location.into(), len_bytes: meta.size, etag: meta.e_tag }
}

/// A requested range. Dropping it cancels the request.
pub struct Pending {
    asked: Result<Asked<RangeBuf>>,
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

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Reads objects one after another. [`next_object`](Reader::next_object) goes to the first or next object.
/// Then [`Read`] copies its bytes, and [`BufRead`] gives them without a copy; both end with the object.
///
/// Meanwhile, ranges of the following objects are in flight: enough to hide the store's delay, within the
/// window.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    objects: Vec<Object>,
    ranges: Ranges,
    /// Requested ranges, in the order of the objects.
    pending: VecDeque<(Piece, Pending)>,
    /// Number of objects that [`next_object`](Self::next_object) has returned.
    begun: usize,
    /// The range that is being read.
    current: Option<Current>,
    /// The bytes of the only object, if they are taken as they arrive, and not as ranges.
    flowing: Option<Flowing>,
    /// Earlier ranges with bytes still on loan.
    lent: Vec<Weak<RangeBuf>>,
    /// Must be the last field: all other fields return their buffers before it is dropped.
    _kept: Kept,
}

/// A range that has arrived.
#[derive(Debug)]
struct Current {
    bytes: Arc<RangeBuf>,
    /// Number of bytes read.
    read: usize,
}

impl Reader {
    /// Reads `objects` in this order.
    pub fn new(client: Client, objects: Vec<Object>) -> Reader {
        Reader::from(client, objects, 0, u64::MAX)
    }

    /// Reads `objects` in this order, the first from offset `begin`, which must not exceed its length.
    /// Holds at most the lesser of `ahead_bytes` and the client's window, but always one range.
    pub fn from(client: Client, objects: Vec<Object>, begin: u64, ahead_bytes: u64) -> Reader {
        let lens = objects.iter().map(|object| object.len_bytes).collect();
        Reader::with(client, objects, lens, begin, ahead_bytes)
    }

    /// Reads the bytes `part` of `object` as if they were all of it up to the end of `part`.
    ///
    /// # Panics
    /// If the object has no such bytes.
    pub fn part(client: Client, object: Object, part: Range<u64>) -> Reader {
        assert!(part.end <= object.len_bytes, "a part of the object");
        Reader::with(client, vec![object], vec![part.end], part.start, u64::MAX)
    }

    fn with(
        client: Client,
        objects: Vec<Object>,
        lens: Vec<u64>,
        begin: u64,
        ahead_bytes: u64,
    ) -> Reader {
        let range_bytes = client.range_bytes();
        let window_bytes = client.window_bytes().min(ahead_bytes);
        let ahead = ahead(client.delay(), range_bytes, window_bytes);
        let flowing = match &objects[..] {
            [only] if client.flows() => Some(client.flow(only, begin..lens[0])),
            _ => None,
        };
        Reader {
            ranges: Ranges::new(lens, begin, range_bytes, ahead),
            objects,
            pending: VecDeque::new(),
            begun: 0,
            current: None,
            flowing,
            lent: Vec::new(),
            _kept: client.pool().keep(),
            client,
        }
    }

    /// Skips the rest of the current object and goes to the next one; returns `None` after the last.
    pub fn next_object(&mut self) -> Option<&Object> {
        let next = self.begun;
        if next == self.objects.len() {
            return None;
        }
        self.begun += 1;
        if self.flowing.is_some() {
            return self.objects.get(next);
        }
        self.let_go();
        while self.pending.front().is_some_and(|(piece, _)| piece.object < next) {
            if let Some((piece, _)) = self.pending.pop_front() {
                self.ranges.give_back(piece.len());
            }
        }
        self.ranges.skip_to(next);
        self.ask_ahead();
        self.objects.get(next)
    }

    /// The next bytes of the object; empty at its end.
    ///
    /// # Errors
    /// The errors of [`Pending::read_into`].
    fn next_bytes(&mut self) -> Result<&[u8]> {
        if self.flowing.is_none() {
            return self.next_of_ranges();
        }
        self.flowing.as_mut().map_or(Ok(&[]), Flowing::bytes)
    }

    fn next_of_ranges(&mut self) -> Result<&[u8]> {
        if self.current.as_ref().is_none_or(|current| current.read == current.bytes.len()) {
            self.let_go();
            self.ask_ahead();
            let is_of_this = |(piece, _): &(Piece, Pending)| piece.object + 1 == self.begun;
            if self.pending.front().is_some_and(is_of_this)
                && let Some((piece, pending)) = self.pending.pop_front()
            {
                // The range counts as held until `let_go`.
                let bytes = pending.bytes().inspect_err(|_| self.ranges.give_back(piece.len()))?;
                self.current = Some(Current { bytes: Arc::new(bytes), read: 0 });
            }
        }
        Ok(self.current.as_ref().map_or(&[], |current| &current.bytes[current.read..]))
    }

    fn let_go(&mut self) {
        if let Some(current) = self.current.take() {
            self.ranges.give_back(current.bytes.len() as u64);
            if Arc::strong_count(&current.bytes) > 1 {
                self.lent.push(Arc::downgrade(&current.bytes));
            }
        }
    }

    /// Lends the next `len` bytes of the object, if they lie in the range that is being read and no more
    /// than 32 MiB of ranges are then on loan; otherwise returns `None`, and the caller reads the bytes. A
    /// loan keeps the memory of its whole range, in addition to the window.
    pub fn lend(&mut self, len: usize) -> Option<Lent> {
        let Current { bytes, read } = self.current.as_mut()?;
        self.lent.retain(|range| range.strong_count() > 0);
        let lent: usize = self.lent.iter().filter_map(Weak::upgrade).map(|range| range.len()).sum();
        if len > bytes.len() - *read || lent + bytes.len() > MOST_LENT_BYTES {
            return None;
        }
        let range = *read..*read + len;
        *read = range.end;
        Some((Arc::clone(bytes) as _, range))
    }

    fn ask_ahead(&mut self) {
        while let Some(piece) = self.ranges.next() {
            let pending = self.client.fetch(&self.objects[piece.object], piece.range.clone());
            self.pending.push_back((piece, pending));
        }
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.next_bytes().map_err(io::Error::other)
    }

    fn consume(&mut self, len: usize) {
        if let Some(flowing) = &mut self.flowing {
            flowing.consume(len);
        } else if let Some(current) = &mut self.current {
            current.read += len;
        }
    }
}

impl Read for Reader {
    /// Wraps the store's error; `std::io::Error::downcast` returns it.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let bytes = self.fill_buf()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        self.consume(len);
        Ok(len)
    }
}

/// Files of a listing whose descriptions are requested at once.
const LOOKS: usize = 32;
/// Maximum depth of a web server's folders: a link may lead back to a parent.
const MOST_DEPTH: usize = 32;
/// Limits for a store whose listing never ends: consecutive pages without an object, and objects in total.
const MOST_EMPTY_PAGES: u32 = 100;
const MOST_OBJECTS: usize = 1 << 28;
/// Pages of a listing that are buffered ahead.
const PAGES_AHEAD: usize = 2;

/// Maximum bytes of ranges on loan, including the current one.
const MOST_LENT_BYTES: usize = 32 << 20;
