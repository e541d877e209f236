//! Reads one range of an object: waits until the store's window admits the request, hedges a slow request, and retries
//! a failed one. Carries out the decisions of `flow.rs`.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use object_store::{GetOptions, GetRange, GetResult};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::copies::{Copies, FileCopy};
use super::direct::{Body, Landing};
use super::failure::Failure;
use super::flow::{Latencies, Patience, Retry, Window};
use super::range_buf::{Pool, RangeBuf};
use super::store::Store;
use super::wanted::{Version, Wanted};
use super::watch::{Connections, Note};
use super::web::Web;
use crate::{Place, PlaceOptions};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::random;

/// A store, its settings, and the state that all requests to it share.
pub(super) struct StoreShared {
    /// The address of the whole store.
    pub(super) place: Place,
    pub(super) store: Store,
    pub(super) options: PlaceOptions,
    /// Connections to the host, and counters of requests.
    pub(super) connections: Arc<Connections>,
    /// Buffers for ranges.
    pub(super) pool: Arc<Pool>,
    host: Arc<Host>,
}

/// State shared by all requests to one host, also of clients with other users or queries.
#[derive(Default)]
struct Host {
    admission: Admission,
    /// Latencies of requests of up to [`SMALL_BYTES`], and of larger ones.
    latencies: [Mutex<Latencies>; 2],
    /// The shortest time from a request to the beginning of its response.
    delay: Mutex<Option<Duration>>,
    /// Copies of files of which the host sends no ranges or states no length.
    copies: Copies,
    /// Time of the last log line about a failed attempt.
    logged: Mutex<Option<Instant>>,
}

impl Host {
    /// Returns whether to log a failed attempt: attempts often fail together, and one line per interval is enough.
    fn may_log(&self) -> bool {
        let mut logged = self.logged.lock();
        let is_due = logged.is_none_or(|at| at.elapsed() >= BETWEEN_LINES);
        if is_due {
            *logged = Some(Instant::now());
        }
        is_due
    }
}

impl StoreShared {
    /// A store at `place`, the first on its host.
    pub(super) fn new(
        place: Place,
        store: Store,
        options: PlaceOptions,
        connections: Arc<Connections>,
    ) -> StoreShared {
        let host = Arc::<Host>::default();
        let pool = Arc::new(Pool::new(options.range_bytes, options.window_bytes));
        StoreShared { place, store, options, connections, pool, host }
    }

    /// Another store on the same host. It shares the counters, buffers and the host's state.
    pub(super) fn beside(&self, place: Place, store: Store) -> StoreShared {
        let options = self.options.clone();
        let connections = self.connections.clone();
        let pool = self.pool.clone();
        StoreShared { place, store, options, connections, pool, host: self.host.clone() }
    }

    /// Notes that a response began `took` after its request.
    pub(super) fn answered(&self, took: Duration) {
        let mut delay = self.host.delay.lock();
        *delay = Some(delay.map_or(took, |least| least.min(took)));
    }

    /// The shortest time from a request to the beginning of its response; `None` before the first response.
    pub(super) fn delay(&self) -> Option<Duration> {
        *self.host.delay.lock()
    }

    /// Reads a range.
    ///
    /// # Errors
    /// `BadSource`: the object has changed. `NotFound`, `Refused`: as the store says. `Unsupported`: the store
    /// sends no ranges, or several entity tags for one version. `Busy`, `Disconnected`, `TimedOut`, `Io`: all
    /// attempts failed.
    pub(super) async fn fetch(&self, wanted: &Wanted) -> Result<RangeBuf> {
        let place = self.place.with_key(wanted.key.as_ref());
        let note = Note::default();
        let result = match self.host.copies.of(&place, wanted) {
            Some(copy) => {
                copy.read(wanted, &self.pool).map_err(|failure| failure.given_up(1, true))
            }
            None => self.again(place.key(), &note, || self.hedged(wanted, &note)).await,
        };
        let result = match (result, &self.store.web) {
            (Err(error), Some(web)) => self.fall_back(web, wanted, &note, error).await,
            (result, _) => result,
        };
        result.map_err(|error| error.target(place.to_string()))
    }

    /// Handles `error` of a web server. If the server sends no ranges of the file, copies the whole file and reads the
    /// copy. If the file seems to change all the time, returns an error that explains this. Otherwise returns `error`.
    async fn fall_back(
        &self,
        web: &Web,
        wanted: &Wanted,
        note: &Note,
        error: Error,
    ) -> Result<RangeBuf> {
        let place = self.place.with_key(wanted.key.as_ref());
        match error.kind() {
            // Another request may be copying the same file.
            ErrorKind::Unsupported => {
                let _turn = self.host.copies.turn.lock().await;
                self.again(place.key(), note, || async {
                    let copy = match self.host.copies.of(&place, wanted) {
                        Some(copy) => copy,
                        None => self.copy(web, wanted.key.as_ref(), note).await?,
                    };
                    copy.read(wanted, &self.pool)
                })
                .await
            }
            ErrorKind::BadSource if self.has_many_tags(web, wanted).await => {
                let text = "the web server gives several entity tags for one version of this file, as machines that do \
                            not agree do: its ranges cannot be told to be of one version";
                Err(Error::new(ErrorKind::Unsupported, text).hint(
                    "read it from one of the machines, or let them send no entity tags (nginx: etag off; Apache: \
                     FileETag None)",
                ))
            }
            _ => Err(error),
        }
    }

    /// Copies a file of a web server, and keeps the copy for later requests.
    pub(super) async fn copy(
        &self,
        web: &Web,
        key: &str,
        note: &Note,
    ) -> Result<Arc<FileCopy>, Failure> {
        let copy = Arc::new(FileCopy::from(web, key, note, self.options.silence).await?);
        self.host.copies.keep(self.place.with_key(key), Arc::clone(&copy));
        Ok(copy)
    }

    /// Returns whether a file that seems to have changed alternates between entity tags, or still has the
    /// wanted tag.
    async fn has_many_tags(&self, web: &Web, wanted: &Wanted) -> bool {
        let mut tags = BTreeSet::new();
        for _ in 0..PROBES {
            let note = Note::default();
            let info = web.describe(wanted.key.as_ref(), &note);
            match tokio::time::timeout(self.options.silence, info).await {
                Ok(Ok(info)) => tags.insert(info.etag),
                Ok(Err(_)) | Err(_) => return false,
            };
        }
        tags.len() > 1 || tags.iter().any(|tag| wanted.version.is_of(wanted.len_bytes, tag))
    }

    /// Repeats `attempt`, a request about the object or folder `key`, until it succeeds or is given up.
    pub(super) async fn again<T, F>(
        &self,
        key: &str,
        note: &Note,
        attempt: impl Fn() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let address = || self.place.with_key(key).to_string();
        let mut retry = Retry::default();
        loop {
            let failure = match attempt().await {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let was_sent = note.read().was_sent;
            let Failure::Passing { after, why, .. } = &failure else {
                return Err(failure.given_up(1, was_sent).target(address()));
            };
            // If nothing was sent, there are no credentials. The providers of credentials retry by
            // themselves, so give up early.
            let most = if was_sent { Duration::MAX } else { UNSIGNED };
            let PlaceOptions { patience, silence, .. } = self.options;
            let patience = Patience { total: patience.min(most), longest: silence };
            let pause = retry.failed(Instant::now(), *after, random::number()?, &patience);
            let failures = retry.failures;
            let Some(pause) = pause else {
                return Err(failure.given_up(failures, was_sent).target(address()));
            };
            self.connections.counts.retries.fetch_add(1, Ordering::Relaxed);
            if self.host.may_log() {
                let address = address();
                tracing::warn!("{address}: attempt {failures} failed, and is made again: {why}");
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Makes one attempt, with a second request if the first is unusually slow.
    async fn hedged(&self, wanted: &Wanted, note: &Note) -> Result<RangeBuf, Failure> {
        let large = wanted.range.end - wanted.range.start > SMALL_BYTES;
        let latencies = &self.host.latencies[usize::from(large)];
        let admission = &self.host.admission;
        let permit = admission.enter().await;
        let sent = Instant::now();
        let mut first = pin!(self.attempt(wanted, note));
        let hedge_after = latencies.lock().hedge_after();
        let early = match hedge_after {
            None => Some(first.as_mut().await),
            Some(after) => match select(first.as_mut(), pin!(tokio::time::sleep(after))).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            },
        };
        let result = match early {
            Some(done) => done,
            None => match admission.try_enter().filter(|_| latencies.lock().may_hedge()) {
                None => first.await,
                Some(_permit) => {
                    self.connections.counts.hedges.fetch_add(1, Ordering::Relaxed);
                    match select(first, pin!(self.attempt(wanted, &Note::default()))).await {
                        Either::Left((Ok(done), _)) | Either::Right((Ok(done), _)) => Ok(done),
                        // If both fail, the later failure counts.
                        Either::Left((Err(_), second)) => second.await,
                        Either::Right((Err(_), first)) => first.await,
                    }
                }
            },
        };
        if let Ok(bytes) = &result {
            latencies.lock().succeeded(sent.elapsed());
            self.count_bytes(bytes.len() as u64);
        }
        self.ended(sent, result.as_ref().err());
        drop(permit);
        result
    }

    /// Requests a range once, within the time that its length allows.
    async fn attempt(&self, wanted: &Wanted, note: &Note) -> Result<RangeBuf, Failure> {
        let len = wanted.range.end - wanted.range.start;
        let limit = self.most_time(len);
        match tokio::time::timeout(limit, self.request(wanted, note)).await {
            Ok(done) => done,
            Err(_) => Err(Failure::late(format!("the answer is not complete after {limit:?}"))),
        }
    }

    /// Requests a range, and waits until its response begins. Checks that the response is of the wanted version.
    /// `landing`: where the body goes if this crate receives it itself.
    pub(super) async fn answer(
        &self,
        wanted: &Wanted,
        landing: Option<&Landing>,
        note: &Note,
    ) -> Result<GetResult, Failure> {
        let mut options = GetOptions::default();
        options.extensions.insert(note.clone());
        if let Some(landing) = landing {
            options.extensions.insert(landing.clone());
        }
        // Requests a whole object without a range: some web servers cannot send ranges.
        let is_whole = wanted.range.end - wanted.range.start == wanted.len_bytes;
        options.range = (!is_whole).then(|| GetRange::Bounded(wanted.range.clone()));
        if let Version::Tag(Some(etag)) = &wanted.version {
            options.if_match = Some(etag.clone()).filter(|etag| !etag.starts_with("W/"));
        }
        let failed = |error: object_store::Error| Failure::of(&error, note.read());
        let answer = self.store.get(&wanted.key, options).await.map_err(failed)?;
        let meta = &answer.meta;
        let same = wanted.version.is_of(wanted.len_bytes, &meta.e_tag);
        if !same || meta.size != wanted.len_bytes {
            let has_tags = meta.e_tag.is_some() && !matches!(wanted.version, Version::Tag(None));
            // A version has only one length. With equal tags the version is the same, so the response is wrong.
            return Err(if same && has_tags {
                Failure::bad_answer(format!("the answer is of {} bytes", meta.size))
            } else {
                Failure::changed()
            });
        }
        Ok(answer)
    }

    /// The longest time in which `len` bytes must arrive.
    pub(super) fn most_time(&self, len: u64) -> Duration {
        self.options.silence + Duration::from_secs(len / SLOWEST_BYTES_A_SECOND)
    }

    /// Notes that the request sent at `sent` has ended: the window of requests in flight adapts.
    pub(super) fn ended(&self, sent: Instant, failure: Option<&Failure>) {
        let now = Instant::now();
        match failure {
            None => self.host.admission.ended(|window, is_full| window.succeeded(now, is_full)),
            Some(Failure::Passing { throttled: true, .. }) => {
                self.connections.counts.throttled.fetch_add(1, Ordering::Relaxed);
                self.host.admission.ended(|window, _| window.throttled(now, sent));
            }
            Some(_) => {}
        }
    }

    /// Waits in line for a permit to make a request.
    pub(super) async fn enter(&self) -> Permit<'_> {
        self.host.admission.enter().await
    }

    /// Counts bytes of a range that have arrived.
    pub(super) fn count_bytes(&self, bytes: u64) {
        self.connections.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Requests a range once, and receives it.
    async fn request(&self, wanted: &Wanted, note: &Note) -> Result<RangeBuf, Failure> {
        let len = wanted.range.end - wanted.range.start;
        let landing = Landing::new(&self.pool, len as usize);
        let sent = Instant::now();
        let answer = self.answer(wanted, Some(&landing), note).await?;
        self.answered(landing.begun().unwrap_or_else(Instant::now) - sent);
        let failed = |error: object_store::Error| Failure::of(&error, note.read());
        let of_len =
            |other| Failure::bad_answer(format!("the answer has {other} bytes instead of {len}"));
        match landing.take() {
            Some(Body::Whole(bytes)) => return Ok(bytes),
            Some(Body::OfLen(other)) => return Err(of_len(other)),
            None => {}
        }
        let mut body = answer.into_stream();
        // Copies each piece at once: the HTTP client then reuses its memory, which is in the CPU caches,
        // for the next piece. The copy goes to a buffer whose pages are already faulted in.
        let mut bytes = self.pool.take(len as usize).map_err(Failure::Final)?;
        let mut filled = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(failed)?;
            filled += piece.len() as u64;
            if filled > len {
                break;
            }
            bytes.extend(&piece);
        }
        if filled == len { Ok(bytes) } else { Err(of_len(filled)) }
    }
}

/// Admits as many requests at a time as the window permits.
struct Admission {
    /// Has a permit for each request that may begin.
    semaphore: Semaphore,
    state: Mutex<AdmissionState>,
}

/// The window, and the permits that it has withdrawn.
struct AdmissionState {
    window: Window,
    /// Number of permits to remove as they are returned, because the window has shrunk.
    excess: usize,
}

impl Default for Admission {
    fn default() -> Admission {
        let window = Window::new(Instant::now());
        let semaphore = Semaphore::new(window.size());
        Admission { semaphore, state: Mutex::new(AdmissionState { window, excess: 0 }) }
    }
}

impl Admission {
    /// Waits in line for a permit.
    async fn enter(&self) -> Permit<'_> {
        let permit = self.semaphore.acquire().await;
        Permit { admission: self, permit: Some(permit.expect("the semaphore is never closed")) }
    }

    /// A permit, if one is free now.
    fn try_enter(&self) -> Option<Permit<'_>> {
        let permit = self.semaphore.try_acquire().ok()?;
        Some(Permit { admission: self, permit: Some(permit) })
    }

    /// Reports the end of a request to the window through `tell`, which also gets whether the window was
    /// full. Then adds permits if the window has grown.
    fn ended(&self, tell: impl FnOnce(&mut Window, bool)) {
        let is_full = self.semaphore.available_permits() == 0;
        let mut state = self.state.lock();
        let before = state.window.size();
        tell(&mut state.window, is_full);
        let size = state.window.size();
        let growth = size.saturating_sub(before);
        let kept = growth.min(state.excess); // permits that need not be removed any more
        state.excess = state.excess - kept + before.saturating_sub(size);
        self.semaphore.add_permits(growth - kept);
    }
}

/// A permit for one request in flight.
pub(super) struct Permit<'a> {
    admission: &'a Admission,
    /// `None` only while the value is dropped.
    permit: Option<SemaphorePermit<'a>>,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        if state.excess > 0 {
            state.excess -= 1;
            if let Some(permit) = self.permit.take() {
                permit.forget();
            }
        }
    }
}

/// Requests up to this length take about as long as empty ones.
const SMALL_BYTES: u64 = 256 << 10;
/// The deadline of a request allows for this rate, in addition to the permitted silence.
const SLOWEST_BYTES_A_SECOND: u64 = 128 << 10;
/// Requests for the description of a file that seems to have changed: the machines behind a server's address may take
/// turns in answering.
const PROBES: usize = 8;
/// Minimum time between two log lines about one host.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// Time limit for retrying requests without credentials.
const UNSIGNED: Duration = Duration::from_secs(5);
