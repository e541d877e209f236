//! Requests that only web servers need: for the description of a file, a whole file, or an HTML page.

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, RANGE};
use http::{HeaderValue, Method, StatusCode};
use object_store::client::{
    HttpClient, HttpConnector, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
};
use object_store::{ClientOptions, Error as Cause};

use super::watch::{Note, Watching, beginning, whole};
use crate::Place;

/// A web server.
pub(super) struct Web {
    client: HttpClient,
    /// The address of the server, with user and query.
    place: Place,
}

/// A server's description of a file, from the headers of a response.
#[derive(Debug)]
pub(super) struct FileInfo {
    /// The file's length, if the server states it.
    pub(super) len_bytes: Option<u64>,
    pub(super) etag: Option<String>,
    /// True for an HTML page.
    pub(super) is_page: bool,
}

impl FileInfo {
    /// The description in the headers of a response, also of one to a request of a range.
    fn of(answer: &HttpResponse) -> FileInfo {
        let header = |name: HeaderName| answer.headers().get(name).and_then(|it| it.to_str().ok());
        let len = match header(CONTENT_RANGE) {
            Some(range) => range.rsplit('/').next(),
            None => header(CONTENT_LENGTH),
        };
        let kind = header(CONTENT_TYPE).unwrap_or_default().trim_start().to_ascii_lowercase();
        FileInfo {
            len_bytes: len.and_then(|len| len.trim().parse().ok()),
            etag: header(ETAG).map(str::to_owned),
            is_page: kind.starts_with("text/html"),
        }
    }
}

impl Web {
    /// The server at `place`; sends no request yet.
    pub(super) fn open(place: &Place, watching: &Watching) -> object_store::Result<Web> {
        Ok(Web { client: watching.connect(&ClientOptions::new())?, place: place.clone() })
    }

    /// Gets a file's description by HEAD, or, if that response is useless, by a GET of its first byte. URLs
    /// signed for GET refuse HEAD, some servers do not support it, and others omit the length or state 0.
    pub(super) async fn describe(&self, key: &str, note: &Note) -> object_store::Result<FileInfo> {
        if let Ok(answer) = self.send(Method::HEAD, key, None, note).await {
            let info = FileInfo::of(&answer);
            match answer.status() {
                // The client is to wait, whatever the request.
                status if matches!(status.as_u16(), 408 | 429 | 503) => {
                    return Err(refusal(key, status, ""));
                }
                status if status.is_success() && info.len_bytes.is_some_and(|len| len > 0) => {
                    return Ok(info);
                }
                _ => {}
            }
        }
        let answer = self.send(Method::GET, key, Some("bytes=0-0"), note).await?;
        let info = FileInfo::of(&answer);
        match answer.status() {
            // The file is empty: it has no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(FileInfo { len_bytes: Some(0), ..info }),
            _ => checked(key, answer).await.map(|_| info),
        }
    }

    /// Gets a file: the server's description, and the body.
    pub(super) async fn get(
        &self,
        key: &str,
        note: &Note,
    ) -> object_store::Result<(FileInfo, HttpResponseBody)> {
        let answer = checked(key, self.send(Method::GET, key, None, note).await?).await?;
        Ok((FileInfo::of(&answer), answer.into_body()))
    }

    /// Gets a page as a string; replaces bytes that are not UTF-8.
    pub(super) async fn page(&self, key: &str, note: &Note) -> object_store::Result<String> {
        let bytes = whole(self.get(key, note).await?.1).await.map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends a request for a file or, with the header `Range`, for a part of it.
    async fn send(
        &self,
        method: Method,
        key: &str,
        range: Option<&'static str>,
        note: &Note,
    ) -> object_store::Result<HttpResponse> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method;
        *request.uri_mut() = self.place.with_key(key).url().parse().map_err(failed)?;
        request.extensions_mut().insert(note.clone());
        if let Some(range) = range {
            request.headers_mut().insert(RANGE, HeaderValue::from_static(range));
        }
        self.client.execute(request).await.map_err(failed)
    }
}

/// The response if it has a status of success, otherwise an error.
async fn checked(key: &str, answer: HttpResponse) -> object_store::Result<HttpResponse> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    // The body may tell why a signature is invalid.
    let body = beginning(answer.into_body()).await;
    Err(refusal(key, status, &String::from_utf8_lossy(&body)))
}

/// The client library's error for a status without success.
fn refusal(key: &str, status: StatusCode, body: &str) -> Cause {
    // `failure.rs` leaves out text in angle brackets, except the store's code and message: so no page is printed.
    let path = key.to_owned();
    let source = format!("<{body}>").into();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Cause::PermissionDenied { path, source }
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => Cause::NotFound { path, source },
        _ => Cause::Generic { store: STORE, source },
    }
}

/// The client library's error for a request that could not be made or answered.
fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Cause::Generic { store: STORE, source: Box::new(error) }
}

/// The name of this kind of store in errors of the client library.
const STORE: &str = "web server";
