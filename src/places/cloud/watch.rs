//! Observes each request and response of the client library: status, `Retry-After`, and pages of listings.
//! Bodies other than objects have a size limit.
//!
//! Decides which failures of requests are retried, and describes them without secrets.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use parking_lot::Mutex;
use reqwest::Client;

use super::direct::{Direct, Landing};
use super::http_client::{self, Limits, Refused};
use super::pages::sift;
use crate::PlaceStats;
use dlfs_base::error::{Error, ErrorKind};

/// A record of one request, which travels with the request.
#[derive(Debug, Clone, Default)]
pub(super) struct Note(Arc<Mutex<Noted>>);

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

    pub(super) fn read(&self) -> Noted {
        *self.0.lock()
    }
}

/// The counters of [`PlaceStats`]. They need no lock, which a forked child could find held for ever.
pub(super) type Counts = PlaceStats<AtomicU64>;

impl Counts {
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

/// Records of all requests.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) counts: Counts,
    /// The connections to the host, shared by all clients.
    client: OnceLock<Client>,
    direct: OnceLock<Option<Arc<Direct>>>,
}

/// Creates HTTP clients whose requests are observed.
#[derive(Debug)]
pub(super) struct Watching {
    seen: Arc<Seen>,
    limits: Limits,
    /// Headers added to each request. `None`: requests are complete without them, so ranges may be received
    /// without the client library.
    headers: Option<HeaderMap>,
}

impl Watching {
    /// Observes requests, and adds `headers` to them if given.
    pub(super) fn new(seen: Arc<Seen>, limits: Limits, headers: Option<HeaderMap>) -> Watching {
        Watching { seen, limits, headers }
    }
}

impl HttpConnector for Watching {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let seen = Arc::clone(&self.seen);
        let client = match seen.client.get() {
            Some(client) => client.clone(),
            None => {
                let client = http_client::client(self.limits).map_err(|error| {
                    object_store::Error::Generic { store: "HTTP", source: Box::new(error) }
                })?;
                seen.client.get_or_init(|| client).clone()
            }
        };
        let direct = || seen.direct.get_or_init(|| Direct::new(self.limits).map(Arc::new)).clone();
        let direct = if self.headers.is_none() { direct() } else { None };
        let headers = self.headers.clone().unwrap_or_default();
        Ok(HttpClient::new(Watched { client, direct, headers, seen }))
    }
}

#[derive(Debug)]
struct Watched {
    client: Client,
    direct: Option<Arc<Direct>>,
    headers: HeaderMap,
    seen: Arc<Seen>,
}

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
            self.seen.counts.requests.fetch_add(1, Ordering::Relaxed);
            let wanted = request.extensions().get::<Landing>().map(Landing::len);
            // `fetch.rs` limits the bodies of objects; other bodies are limited here.
            let is_object = request.extensions().get::<Note>().is_some();
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
            match (answer.status().is_success(), is_object) {
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
    async fn execute(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(direct) = &self.direct
            && let Some(answer) = direct.get(&request).await?
        {
            return Ok(answer);
        }
        http_client::answer(&self.client, request, &self.headers).await
    }

    /// Limits a response whose body is a page. If the page `lists` keys, cuts out those that cannot be named.
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

#[derive(Debug, thiserror::Error)]
#[error("a page of a listing, or another answer that is read whole, has more than 64 MiB")]
pub(super) struct TooLong;

/// A failed request.
#[derive(Debug)]
pub(super) enum Failure {
    /// A retry may succeed.
    Passing {
        /// True if the store refused the request because there were too many.
        throttled: bool,
        /// The pause that the store asks for.
        after: Option<Duration>,
        /// A description of the failure.
        why: String,
        /// The kind of the error if the retries end.
        kind: ErrorKind,
    },
    /// A retry would fail again.
    Final(Error),
}

impl Failure {
    /// An invalid response.
    pub(super) fn bad_answer(why: impl Into<String>) -> Failure {
        Failure::Passing { throttled: false, after: None, why: why.into(), kind: ErrorKind::Io }
    }

    /// No response in time.
    pub(super) fn late(why: impl Into<String>) -> Failure {
        let kind = ErrorKind::TimedOut;
        Failure::Passing { throttled: false, after: None, why: why.into(), kind }
    }

    /// The object has changed since it was listed.
    pub(super) fn changed() -> Failure {
        let text = "the object has changed since it was listed";
        Failure::Final(
            Error::new(ErrorKind::BadSource, text).hint("begin again: it is listed anew"),
        )
    }

    /// Classifies the client library's error; `noted` is the record of the request.
    pub(super) fn of(error: &object_store::Error, noted: Noted) -> Failure {
        use object_store::Error as Cause;
        let status = noted.status.filter(|status| *status != 200 && *status != 206);
        let why = why(status, words(error));
        let last = |kind, text: &'static str| Error::new(kind, text).source(Told(why.clone()));
        Failure::Final(match (error, status) {
            (_, Some(429 | 503)) => {
                let after = noted.retry_after;
                return Failure::Passing { throttled: true, after, why, kind: ErrorKind::Busy };
            }
            (Cause::NotFound { .. }, _) => last(ErrorKind::NotFound, "there is no such object"),
            (Cause::PermissionDenied { .. } | Cause::Unauthenticated { .. }, _) => {
                last(ErrorKind::Refused, "the store refuses access").hint(CREDENTIALS)
            }
            (Cause::Precondition { .. }, _) | (_, Some(412 | 416)) => return Failure::changed(),
            (Cause::NotSupported { .. } | Cause::NotImplemented { .. }, _) => {
                last(ErrorKind::Unsupported, "the server does not send ranges")
            }
            (Cause::InvalidPath { .. }, _) => {
                last(ErrorKind::InvalidArgument, "a key that cannot be named")
            }
            (_, Some(300..=399)) => {
                let text =
                    "the store redirects to another place: its region or endpoint is another one";
                last(ErrorKind::Refused, text).hint(OTHER_PLACE)
            }
            (_, Some(408)) => return Failure::late(why),
            (_, Some(400..=499 | 501)) => last(ErrorKind::Refused, "the store refuses the request"),
            _ if has_cause::<Refused>(error) => {
                last(ErrorKind::Refused, "a redirect of the server is not followed")
            }
            _ if has_cause::<TooLong>(error) => {
                last(ErrorKind::BadSource, "the answer of the store is too long")
            }
            _ => {
                let after = noted.retry_after;
                let kind = ErrorKind::Disconnected;
                return Failure::Passing { throttled: false, after, why, kind };
            }
        })
    }

    /// The error after the last of `failures` attempts. `was_sent`: the last attempt was sent; otherwise there
    /// were no credentials to sign it with.
    pub(super) fn given_up(self, failures: u32, was_sent: bool) -> Error {
        match self {
            Failure::Final(error) => error,
            Failure::Passing { why, .. } if !was_sent => {
                let text = "there are no credentials for the store";
                Error::new(ErrorKind::Refused, text).source(Told(why)).hint(CREDENTIALS)
            }
            Failure::Passing { kind, why, .. } => {
                let text = format!("the store could not be read; {failures} attempts failed");
                Error::new(kind, text).source(Told(why))
            }
        }
    }
}

/// Returns whether an error or one of its sources has this type.
fn has_cause<E: StdError + 'static>(error: &object_store::Error) -> bool {
    let mut at: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = at {
        if error.is::<E>() {
            return true;
        }
        at = error.source();
    }
    false
}

/// The source of an error, as a string without secrets.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Told(String);

/// Describes an error and its sources. Leaves out URLs, which may be signed, and response bodies, which may
/// quote the request; keeps the provider's code and message from the body.
fn words(error: &object_store::Error) -> Option<String> {
    let mut told: Vec<String> = Vec::new();
    let mut at: Option<&dyn StdError> = Some(error);
    while let Some(error) = at {
        let text = error.to_string();
        let said = match (element(&text, "Code"), element(&text, "Message")) {
            (Some(code), message) => Some(match message {
                Some(message) => format!("{code}: {message}"),
                None => code,
            }),
            _ if text.contains("://") || text.contains(['<', '{']) => None,
            _ => Some(text),
        };
        // An error often repeats the message of its source.
        if let Some(said) = said.filter(|said| !told.iter().any(|before| before.ends_with(&**said)))
        {
            told.retain(|before| !said.ends_with(&**before));
            told.push(said);
        }
        at = error.source();
    }
    (!told.is_empty()).then(|| told.join(": "))
}

fn why(status: Option<u16>, words: Option<String>) -> String {
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    match (status, words) {
        (Some(status), Some(words)) => format!("HTTP status {status}: {words}"),
        (Some(status), None) => format!("HTTP status {status}"),
        (None, words) => words.unwrap_or_else(|| "it gives no reason".to_owned()),
    }
}

fn element(text: &str, name: &str) -> Option<String> {
    let (_, value) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = value.split_once(&format!("</{name}>"))?;
    let is_plain = !value.contains("://") && value.len() <= 300;
    is_plain.then(|| value.escape_debug().to_string())
}

const MAX_PAGE_BYTES: usize = 64 << 20;
const MAX_SAID_BYTES: usize = 64 << 10;

pub(super) const CREDENTIALS: &str = "give credentials as the provider's tools take them (AWS_ACCESS_KEY_ID, \
     AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, HF_TOKEN, ...), or read a public bucket \
     without any: AWS_SKIP_SIGNATURE, GOOGLE_SKIP_SIGNATURE or AZURE_SKIP_SIGNATURE set to true; the signature of a \
     URL may have expired";

const OTHER_PLACE: &str = "set AWS_REGION or AWS_ENDPOINT_URL for S3, GOOGLE_BASE_URL, AZURE_STORAGE_ENDPOINT or \
     HF_ENDPOINT; of a web server, give the address that it redirects to";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Level {
        text: &'static str,
        source: Option<Box<Level>>,
    }

    fn told(levels: &[&'static str]) -> String {
        let chain =
            levels.iter().rev().fold(None, |source, text| Some(Box::new(Level { text, source })));
        let source = chain.expect("some levels");
        why(None, words(&object_store::Error::Generic { store: "S3", source }))
    }

    #[test]
    fn causes_are_told_without_urls_and_bodies() {
        let text =
            told(&["Error performing GET https://h/b?sig=SECRET", "error sending", "refused"]);
        assert_eq!(text, "error sending: refused");
        let body = "status 403: <Error><Code>AccessDenied</Code><Message>Access Denied</Message>\
                    <StringToSign>SECRET</StringToSign></Error>";
        assert_eq!(told(&[body]), "AccessDenied: Access Denied");
        assert_eq!(told(&["{\"token\": \"SECRET\"}"]), "it gives no reason");
    }
}
