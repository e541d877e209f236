//! Sees each request and answer of the client library: statuses, what the store asks for, and pages of listings.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use parking_lot::Mutex;

use super::direct::{Direct, Landing, Limits};
use super::keys::sift;

/// What was seen of one request; it travels with the request.
#[derive(Debug, Clone, Default)]
pub(super) struct Note(Arc<Mutex<Noted>>);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Noted {
    /// Whether the request was sent: otherwise, there were no credentials to sign it with.
    pub(super) was_sent: bool,
    /// The status of the answer.
    pub(super) status: Option<u16>,
    /// How long the store asks to wait.
    pub(super) retry_after: Option<Duration>,
}

impl Note {
    /// Forgets what was seen of an earlier request.
    pub(super) fn reset(&self) {
        *self.0.lock() = Noted::default();
    }

    pub(super) fn read(&self) -> Noted {
        *self.0.lock()
    }
}

/// What was seen of all requests.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) requests: AtomicU64,
    /// Of the last request for a listing: no note travels with those.
    pub(super) list: Note,
    /// Keys that were listed and cannot be named.
    pub(super) refused: Mutex<Vec<String>>,
    /// The connections to the host, for whoever shares them.
    client: OnceLock<HttpClient>,
    direct: OnceLock<Option<Arc<Direct>>>,
}

/// Makes clients that are watched.
#[derive(Debug)]
pub(super) struct Watching {
    seen: Arc<Seen>,
    /// How ranges are received without the client library; `None`: it adds headers of its own.
    direct: Option<Limits>,
}

impl Watching {
    /// For requests that carry all that the host is to know.
    pub(super) fn new(seen: Arc<Seen>, limits: Limits) -> Watching {
        Watching { seen, direct: Some(limits) }
    }

    /// For requests to which the client library adds headers.
    pub(super) fn with_headers(seen: Arc<Seen>) -> Watching {
        Watching { seen, direct: None }
    }
}

impl HttpConnector for Watching {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let seen = Arc::clone(&self.seen);
        let client = match seen.client.get() {
            Some(client) => client.clone(),
            None => {
                let client = ReqwestConnector::default().connect(options)?;
                seen.client.get_or_init(|| client).clone()
            }
        };
        let direct = self.direct.and_then(|limits| {
            let shared = seen.direct.get_or_init(|| Direct::new(limits).map(Arc::new));
            shared.clone()
        });
        Ok(HttpClient::new(Watched { client, direct, seen }))
    }
}

#[derive(Debug)]
struct Watched {
    client: HttpClient,
    direct: Option<Arc<Direct>>,
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
                    Some(self.seen.list.clone())
                }
                note => note.cloned(),
            };
            if let Some(note) = &note {
                *note.0.lock() = Noted { was_sent: true, status: None, retry_after: None };
            }
            self.seen.requests.fetch_add(1, Ordering::Relaxed);
            let wanted = request.extensions().get::<Landing>().map(Landing::len);
            let mut answer = self.execute(request).await?;
            if let Some(len) = wanted {
                // The client library asks for it also where a body comes in chunks; what comes is counted.
                answer.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| len.into());
            }
            if let Some(note) = &note {
                let mut noted = note.0.lock();
                noted.status = Some(answer.status().as_u16());
                noted.retry_after = retry_after(&answer);
            }
            match lists && answer.status().is_success() {
                true => self.sifted(answer).await,
                false => Ok(answer),
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
        self.client.execute(request).await
    }

    async fn sifted(&self, answer: HttpResponse) -> Result<HttpResponse, HttpError> {
        let (parts, body) = answer.into_parts();
        let bytes = body.bytes().await?;
        let page = std::str::from_utf8(&bytes)
            .map_err(|error| HttpError::new(HttpErrorKind::Decode, error))?;
        let (kept, refused) = sift(page);
        self.seen.refused.lock().extend(refused);
        Ok(HttpResponse::from_parts(parts, kept.into()))
    }
}

/// Seconds; the other form, a date, would need clocks that agree.
fn retry_after(answer: &HttpResponse) -> Option<Duration> {
    let value = answer.headers().get("retry-after")?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}
