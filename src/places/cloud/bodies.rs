//! Bodies of responses other than objects, each with a size limit.

use futures_util::StreamExt;
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};

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

const MAX_PAGE_BYTES: usize = 64 << 20;
const MAX_SAID_BYTES: usize = 64 << 10;
