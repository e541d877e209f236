//! Bodies of answers that are no objects: each has a limit.

use futures_util::StreamExt;
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};

/// A body that is a page of a listing, or what says who one is.
///
/// # Errors
/// It does not come, or is too long.
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

/// The beginning of a body that says what is wrong, as far as it comes.
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
#[error("a page of the listing has more than 64 MiB")]
pub(super) struct TooLong;

const MAX_PAGE_BYTES: usize = 64 << 20;
const MAX_SAID_BYTES: usize = 64 << 10;
