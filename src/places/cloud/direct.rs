//! Receives ranges over plain HTTP/1.1 directly into the readers' buffers.
//!
//! The client library's HTTP client receives a body into memory that it allocates, from which the body must be copied
//! again. Here the kernel's copy is the only one. After a redirect, a chunked body or a body without a length, the
//! request, and all later requests to the same host, go to the HTTP client. So do requests over TLS, through a proxy,
//! or with a user in the URL.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::http_client::{CONNECT_LIMIT, IDLE_LIMIT, addresses};
use super::range_buf::{Pool, RangeBuf};
use dlfs_base::process::Forked;

/// Destination of a response's body, if the body has the requested length. The request has a clone of it among its
/// extensions.
#[derive(Debug, Clone)]
pub(super) struct Landing(Arc<Mutex<Landed>>);

/// The contents of a [`Landing`].
#[derive(Debug)]
struct Landed {
    /// Provides the buffer.
    pool: Arc<Pool>,
    /// Expected length of the body in bytes.
    len: usize,
    /// Time at which the response began; `None`: it was not received here.
    begun: Option<Instant>,
    /// The body, once it has arrived or turned out to have another length.
    body: Option<Body>,
}

/// The body of a successful response received here.
#[derive(Debug)]
pub(super) enum Body {
    /// A body of the right length.
    Whole(RangeBuf),
    /// A body of this other length, which was not received.
    OfLen(u64),
}

impl Landing {
    /// Expects a body of `len` bytes, to be received into a buffer of `pool`.
    pub(super) fn new(pool: &Arc<Pool>, len: usize) -> Landing {
        let pool = Arc::clone(pool);
        Landing(Arc::new(Mutex::new(Landed { pool, len, begun: None, body: None })))
    }

    /// Expected length of the body.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len
    }

    /// Time at which the response began, if it was received here.
    pub(super) fn begun(&self) -> Option<Instant> {
        self.0.lock().begun
    }

    /// Notes that a response with a body of this length begins; returns a buffer if the length is right and
    /// there is memory.
    fn begin(&self, len: u64) -> Option<RangeBuf> {
        let mut landed = self.0.lock();
        landed.begun = Some(Instant::now());
        if len != landed.len as u64 {
            landed.body = Some(Body::OfLen(len));
            return None;
        }
        landed.pool.take(landed.len).ok() // without memory, `fetch.rs` finds no body, and reports the lack
    }

    /// Takes the body, or its wrong length, if the response was received here.
    pub(super) fn take(&self) -> Option<Body> {
        self.0.lock().body.take()
    }
}

/// Connections for requesting ranges.
#[derive(Debug)]
pub(super) struct Direct {
    /// The longest time to wait for the store.
    silence: Duration,
    /// Idle connections. A forked child must not close them: that would remove the parent's epoll
    /// registrations.
    idle: Forked<Mutex<Vec<Idle>>>,
    /// Hosts whose responses cannot be handled here.
    irregular: Mutex<HashSet<String>>,
}

/// A connection without a request.
#[derive(Debug)]
struct Idle {
    /// Host and port.
    host: String,
    stream: TcpStream,
    since: Instant,
}

/// Result of an exchange.
enum End {
    /// A response, and the connection if it can be reused.
    Answer(HttpResponse, Option<TcpStream>),
    /// A response that cannot be handled here.
    Irregular,
    /// The request could not be sent, or the host closed the connection before the response. An idle
    /// connection may have been closed because it had been idle for too long.
    Closed(io::Error),
}

impl Direct {
    /// Starts without connections; returns `None` if the environment names a proxy. `silence`: the longest time to wait
    /// for the store.
    pub(super) fn new(silence: Duration) -> Option<Direct> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let has_proxy = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].iter().any(is_set);
        (!has_proxy).then(|| Direct {
            silence,
            idle: Forked::new(Mutex::default()),
            irregular: Mutex::default(),
        })
    }

    /// Sends a request and returns the response; `None`: the HTTP client must send the request. If an idle connection
    /// turns out to be closed, tries another one.
    ///
    /// # Errors
    /// No response, or an incomplete or invalid one.
    pub(super) async fn get(
        &self,
        request: &HttpRequest,
    ) -> Result<Option<HttpResponse>, HttpError> {
        let Some((host, landing)) = self.regular(request) else { return Ok(None) };
        let head = head_of(request, &host);
        loop {
            let idle = self.take_idle(&host);
            let is_idle = idle.is_some();
            let stream = match idle {
                Some(stream) => stream,
                None => (self.connect(&host).await)
                    .map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?,
            };
            match self.exchange(stream, &head, &landing).await.map_err(broken)? {
                End::Answer(answer, stream) => {
                    if let Some((idle, stream)) = self.idle.get().zip(stream) {
                        idle.lock().push(Idle { host, stream, since: Instant::now() });
                    }
                    return Ok(Some(answer));
                }
                End::Irregular => {
                    self.irregular.lock().insert(host);
                    return Ok(None);
                }
                End::Closed(_) if is_idle => {}
                End::Closed(error) => return Err(broken(error)),
            }
        }
    }

    /// Host and port of a request that can be sent here, and the destination of its response.
    fn regular(&self, request: &HttpRequest) -> Option<(String, Landing)> {
        let uri = request.uri();
        let is_plain = uri.scheme_str() == Some("http")
            && request.method() == "GET"
            && request.body().is_empty();
        let landing = request.extensions().get::<Landing>().filter(|_| is_plain)?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
        (!self.irregular.lock().contains(&host)).then(|| (host, landing.clone()))
    }

    /// An idle connection to the host.
    fn take_idle(&self, host: &str) -> Option<TcpStream> {
        let mut idle = self.idle.get()?.lock();
        idle.retain(|connection| connection.since.elapsed() < IDLE_LIMIT);
        let at = idle.iter().rposition(|connection| connection.host == host)?;
        Some(idle.swap_remove(at).stream)
    }

    /// Connects to a host and port.
    async fn connect(&self, host: &str) -> io::Result<TcpStream> {
        let connect = async { TcpStream::connect(&*addresses(host).await?).await };
        let stream = self.within(self.silence.min(CONNECT_LIMIT), connect).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends a request and receives its response.
    async fn exchange(
        &self,
        mut stream: TcpStream,
        request: &[u8],
        landing: &Landing,
    ) -> io::Result<End> {
        if let Err(error) = self.within(self.silence, stream.write_all(request)).await {
            return Ok(End::Closed(error));
        }
        let mut received = Received::default();
        let head = self.receive_head(&mut stream, &mut received).await;
        let Head { mut answer, len, closes } = match head {
            Ok(head) => head,
            Err(error) if received.filled == 0 && is_closing(&error) => {
                return Ok(End::Closed(error));
            }
            Err(error) => return Err(error),
        };
        let is_elsewhere =
            answer.status().is_redirection() || answer.headers().contains_key(TRANSFER_ENCODING);
        let Some(len) = len.filter(|_| !is_elsewhere) else { return Ok(End::Irregular) };
        let is_wanted = answer.status().is_success();
        let body = if is_wanted {
            landing.begin(len)
        } else {
            (len <= MOST_SAID).then(|| RangeBuf::new(len as usize).ok()).flatten()
        };
        let Some(mut body) = body else { return Ok(End::Answer(answer, None)) };
        let is_exact = received.give(&mut body);
        while !body.is_full() {
            let more = self.receive(&mut stream, body.room()).await?;
            body.advance(more);
        }
        if is_wanted {
            landing.0.lock().body = Some(Body::Whole(body))
        } else {
            *answer.body_mut() = body.to_vec().into()
        }
        Ok(End::Answer(answer, (is_exact && !closes).then_some(stream)))
    }

    /// Receives until the head of a response is complete.
    async fn receive_head(
        &self,
        stream: &mut TcpStream,
        received: &mut Received,
    ) -> io::Result<Head> {
        loop {
            if let Some(head) = received.head()? {
                return Ok(head);
            }
            received.filled += self.receive(stream, received.room()?).await?;
        }
    }

    /// Receives at least one byte.
    async fn receive(&self, stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        match self.within(self.silence, stream.read(into)).await? {
            0 => {
                let text = "the store closed the connection early";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
            }
            len => Ok(len),
        }
    }

    /// Runs `work`; the store may be silent for `limit`.
    async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let late = || {
            io::Error::new(io::ErrorKind::TimedOut, format!("the store was silent for {limit:?}"))
        };
        timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
    }
}

/// The received part of a response: the head, and bytes of the body that arrived with the head.
#[derive(Debug, Default)]
struct Received {
    /// The buffer; the first `filled` bytes were received.
    bytes: Vec<u8>,
    filled: usize,
    /// The offset at which the body begins, once the head is complete; before, the end of interim responses.
    body: usize,
}

/// The status line and headers of a response.
struct Head {
    answer: HttpResponse,
    /// The length of the body, if stated.
    len: Option<u64>,
    /// True if the connection closes after the response.
    closes: bool,
}

impl Received {
    /// Makes room for more of the head.
    fn room(&mut self) -> io::Result<&mut [u8]> {
        if self.filled == self.bytes.len() {
            if self.filled >= MOST_HEAD {
                return Err(invalid("the head of the answer has no end"));
            }
            self.bytes.resize((2 * self.filled).max(LEAST_HEAD), 0);
        }
        Ok(&mut self.bytes[self.filled..])
    }

    /// The head, once it is complete; skips interim responses (status 1xx).
    fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
            let mut parsed = httparse::Response::new(&mut headers);
            let received = &self.bytes[self.body..self.filled];
            match parsed.parse(received).map_err(|error| invalid(&error.to_string()))? {
                httparse::Status::Partial => return Ok(None),
                httparse::Status::Complete(len) => {
                    let head = head_from(&parsed)?;
                    self.body += len;
                    if let Some(head) = head {
                        return Ok(Some(head));
                    }
                }
            }
        }
    }

    /// Moves the body's bytes that arrived with the head into `body`; returns whether no other bytes arrived.
    fn give(&self, body: &mut RangeBuf) -> bool {
        let early = &self.bytes[self.body..self.filled];
        let taken = early.len().min(body.room().len());
        body.extend(&early[..taken]);
        taken == early.len()
    }
}

/// The parsed head; `None` for an interim response, which another head follows.
fn head_from(parsed: &httparse::Response<'_, '_>) -> io::Result<Option<Head>> {
    let status = parsed.code.unwrap_or_default();
    if (100..200).contains(&status) {
        return Ok(None);
    }
    let mut answer = HttpResponse::new(Vec::new().into());
    *answer.status_mut() = status.try_into().map_err(|_| invalid("its status is invalid"))?;
    let headers = answer.headers_mut();
    for header in &*parsed.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|_| invalid("the name of a header is invalid"))?;
        let value = HeaderValue::from_bytes(header.value)
            .map_err(|_| invalid("the value of a header is invalid"))?;
        headers.append(name, value);
    }
    let len = content_len(headers)?;
    let closes = parsed.version != Some(1) || closes(headers);
    Ok(Some(Head { answer, len, closes }))
}

/// The stated length of the body. Several headers must agree.
fn content_len(headers: &HeaderMap) -> io::Result<Option<u64>> {
    let mut all = headers.get_all(CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    let Some(first) = all.next() else { return Ok(None) };
    let is_number = first.iter().all(u8::is_ascii_digit);
    let len = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok());
    match len.filter(|_| is_number && all.all(|other| other == first)) {
        Some(len) => Ok(Some(len)),
        None => Err(invalid("the length of its body is invalid")),
    }
}

/// Returns whether the server closes the connection after the response.
fn closes(headers: &HeaderMap) -> bool {
    let words = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    words.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("close"))
}

/// Encodes the request (RFC 9112). Neither the URI nor a header can contain a line break.
fn head_of(request: &HttpRequest, host: &str) -> Vec<u8> {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let mut head = format!("GET {target} HTTP/1.1\r\n").into_bytes();
    if !request.headers().contains_key(HOST) {
        let authority = request.uri().authority().map_or(host, |authority| authority.as_str());
        head.extend_from_slice(format!("host: {authority}\r\n").as_bytes());
    }
    for (name, value) in request.headers() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head.extend_from_slice(
        concat!("user-agent: dlfs/", env!("CARGO_PKG_VERSION"), "\r\n\r\n").as_bytes(),
    );
    head
}

/// Returns whether the server closed the connection.
fn is_closing(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// The error for a response that is not HTTP.
fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer is no HTTP: {what}"))
}

/// The client library's error for a failed exchange.
fn broken(error: io::Error) -> HttpError {
    let kind = match error.kind() {
        io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
        io::ErrorKind::InvalidData => HttpErrorKind::Decode,
        _ => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error)
}

/// Initial buffer for a head: most heads are shorter. It is small, since bytes of the body that arrive with
/// the head are copied once more.
const LEAST_HEAD: usize = 2 << 10;
/// Maximum length of a head in bytes.
const MOST_HEAD: usize = 64 << 10;
/// Maximum headers of a response.
const MOST_HEADERS: usize = 128;
/// Maximum length of an error response's body; longer ones are not read.
const MOST_SAID: u64 = 64 << 10;
