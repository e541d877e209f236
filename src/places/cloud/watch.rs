//! Observes each request and response of the client library: notes status and `Retry-After`, counts requests, and
//! limits the length of bodies that are not objects. Cuts keys that the client library cannot name out of pages of
//! listings.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use parking_lot::Mutex;
use reqwest::Client;

use super::direct::{Direct, Landing};
use super::http_client;
use super::sift::sift;
use crate::PlaceStats;

/// The record of one request at a time. A request has a clone of it among its extensions, unless it is for a listing.
#[derive(Debug, Clone, Default)]
pub(super) struct Note(Arc<Mutex<Noted>>);

/// The contents of a [`Note`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Noted {
    /// True if the request was sent. False: there were no credentials to sign it with.
    pub(super) was_sent: bool,
    /// The status of the response.
    pub(super) status: Option<u16>,
    /// The pause that the store asks for.
    pub(super) retry_after: Option<Duration>,
}

impl Note {
    /// Clears the record of an earlier request.
    pub(super) fn reset(&self) {
        *self.0.lock() = Noted::default();
    }

    /// The record so far.
    pub(super) fn read(&self) -> Noted {
        *self.0.lock()
    }
}

/// The counters of [`PlaceStats`]. They need no lock, which a forked child could find held for ever.
pub(super) type Counts = PlaceStats<AtomicU64>;

impl Counts {
    /// The counts so far.
    pub(super) fn read(&self) -> PlaceStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PlaceStats {
            requests: load(&self.requests),
            retries: load(&self.retries),
            throttled: load(&self.throttled),
            hedges: load(&self.hedges),
            bytes: load(&self.bytes),
        }
    }
}

/// The record of one listing.
#[derive(Debug, Clone, Default)]
pub(super) struct Listing {
    /// The record of its last request.
    pub(super) note: Note,
    /// Listed keys that the client library cannot name.
    pub(super) refused: Arc<Mutex<Vec<String>>>,
}

tokio::task_local! {
    /// The listing that the task makes: the client library attaches no [`Note`] to the requests of a listing.
    pub(super) static LISTING: Listing;
}

/// The connections to a host, and the counters of requests to it. All clients of the host share them.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) counts: Counts,
    /// The HTTP client, made when the first client of the host is opened.
    client: OnceLock<Client>,
    /// Connections for ranges over plain HTTP; `None`: the environment names a proxy.
    direct: OnceLock<Option<Arc<Direct>>>,
}

/// Creates HTTP clients whose requests are observed.
#[derive(Debug)]
pub(super) struct Watching {
    connections: Arc<Connections>,
    /// The longest time to wait for the store.
    silence: Duration,
    /// Headers to add to each request. `None`: requests need no more headers, so [`Direct`] may send them.
    headers: Option<HeaderMap>,
}

impl Watching {
    /// Observes requests, which wait for the store for at most `silence`, and adds `headers` to them if given.
    pub(super) fn new(
        connections: Arc<Connections>,
        silence: Duration,
        headers: Option<HeaderMap>,
    ) -> Watching {
        Watching { connections, silence, headers }
    }
}

impl HttpConnector for Watching {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let connections = Arc::clone(&self.connections);
        let client = match connections.client.get() {
            Some(client) => client.clone(),
            None => {
                let client = http_client::client(self.silence).map_err(|error| {
                    object_store::Error::Generic { store: "HTTP", source: Box::new(error) }
                })?;
                connections.client.get_or_init(|| client).clone()
            }
        };
        let direct =
            || connections.direct.get_or_init(|| Direct::new(self.silence).map(Arc::new)).clone();
        let direct = if self.headers.is_none() { direct() } else { None };
        let headers = self.headers.clone().unwrap_or_default();
        Ok(HttpClient::new(Watched { client, direct, headers, connections }))
    }
}

/// An HTTP client whose requests are observed.
#[derive(Debug)]
struct Watched {
    client: Client,
    /// `None`: `client` sends all requests.
    direct: Option<Arc<Direct>>,
    headers: HeaderMap,
    connections: Arc<Connections>,
}

/// The response to a request, once it has begun.
type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Watched {
    fn call<'s, 'a>(&'s self, request: HttpRequest) -> Answer<'a>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async move {
            let query = request.uri().query().unwrap_or_default();
            let lists = query.split('&').any(|part| matches!(part, "list-type=2" | "comp=list"));
            let note = match request.extensions().get::<Note>() {
                None if lists || request.method().as_str() == "PROPFIND" => {
                    LISTING.try_with(|listing| listing.note.clone()).ok()
                }
                note => note.cloned(),
            };
            if let Some(note) = &note {
                *note.0.lock() = Noted { was_sent: true, status: None, retry_after: None };
            }
            self.connections.counts.requests.fetch_add(1, Ordering::Relaxed);
            let wanted = request.extensions().get::<Landing>().map(Landing::len);
            // The sender of a request with a note limits the body; other bodies are limited here.
            let has_note = request.extensions().get::<Note>().is_some();
            let mut answer = self.execute(request).await?;
            if let Some(len) = wanted {
                // The client library requires a length even if the body is chunked. The bytes received are
                // counted anyway.
                answer.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| len.into());
            }
            if let Some(note) = &note {
                let mut noted = note.0.lock();
                noted.status = Some(answer.status().as_u16());
                noted.retry_after = retry_after(&answer);
            }
            match (answer.status().is_success(), has_note) {
                (true, true) => Ok(answer),
                (true, false) => self.bounded(answer, lists).await,
                (false, _) => {
                    let (parts, body) = answer.into_parts();
                    Ok(HttpResponse::from_parts(parts, beginning(body).await.into()))
                }
            }
        })
    }
}

impl Watched {
    /// Sends a request: by [`Direct`] if that can, otherwise by the HTTP client.
    async fn execute(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(direct) = &self.direct
            && let Some(answer) = direct.get(&request).await?
        {
            return Ok(answer);
        }
        http_client::answer(&self.client, request, &self.headers).await
    }

    /// Receives a whole body. If it is a page that `lists` keys, cuts out those that cannot be named.
    async fn bounded(&self, answer: HttpResponse, lists: bool) -> Result<HttpResponse, HttpError> {
        let (parts, body) = answer.into_parts();
        let bytes = whole(body).await?;
        if !lists {
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)));
        }
        let page = std::str::from_utf8(&bytes)
            .map_err(|error| HttpError::new(HttpErrorKind::Decode, error))?;
        let (kept, refused) = sift(page);
        // Fails outside a listing; there nobody asks for these keys.
        let _ = LISTING.try_with(|listing| listing.refused.lock().extend(refused));
        Ok(HttpResponse::from_parts(parts, kept.into()))
    }
}

/// The pause in seconds. Ignores the other form, a date, because it needs synchronised clocks.
fn retry_after(answer: &HttpResponse) -> Option<Duration> {
    let value = answer.headers().get("retry-after")?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Reads a whole body: a page of a listing, or a response about a commit or about credentials.
///
/// # Errors
/// The body does not arrive, or is too long.
pub(super) async fn whole(body: HttpResponseBody) -> Result<Vec<u8>, HttpError> {
    let mut body = body.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() > MAX_PAGE_BYTES {
            return Err(HttpError::new(HttpErrorKind::Decode, TooLong));
        }
    }
    Ok(bytes)
}

/// Reads the beginning of an error response's body, or the part of it that arrives.
pub(super) async fn beginning(body: HttpResponseBody) -> Vec<u8> {
    let mut body = body.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(Ok(piece)) = body.next().await {
        bytes.extend_from_slice(&piece[..piece.len().min(MAX_SAID_BYTES - bytes.len())]);
        if bytes.len() == MAX_SAID_BYTES {
            break;
        }
    }
    bytes
}

/// The error for a body that is read whole and exceeds [`MAX_PAGE_BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("a page of a listing, or another answer that is read whole, has more than 64 MiB")]
pub(super) struct TooLong;

/// Maximum bytes of a body that is read whole.
const MAX_PAGE_BYTES: usize = 64 << 20;
/// Bytes read of an error response's body.
const MAX_SAID_BYTES: usize = 64 << 10;
