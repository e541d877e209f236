//! Failures of requests: decides which are retried, and describes them without secrets.

use std::error::Error as StdError;
use std::time::Duration;

use http::StatusCode;

use super::http_client::Refused;
use super::watch::{Noted, TooLong};
use dlfs_base::error::{Error, ErrorKind};

/// A failed request.
#[derive(Debug)]
pub(super) enum Failure {
    /// A retry may succeed.
    Passing {
        /// True if the store refused the request because it got too many requests.
        throttled: bool,
        /// The pause that the store asks for.
        after: Option<Duration>,
        /// A description of the failure.
        why: String,
        /// The kind of the error after the last attempt.
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

    /// Classifies an error of the client library. `noted`: the record of the request.
    pub(super) fn of(error: &object_store::Error, noted: Noted) -> Failure {
        use object_store::Error as Cause;
        let status = noted.status.filter(|status| *status != 200 && *status != 206);
        let why = why(status, describe(error));
        let failed =
            |kind, text: &'static str| Error::new(kind, text).source(Described(why.clone()));
        Failure::Final(match (error, status) {
            (_, Some(429 | 503)) => {
                let after = noted.retry_after;
                return Failure::Passing { throttled: true, after, why, kind: ErrorKind::Busy };
            }
            (Cause::NotFound { .. }, _) => failed(ErrorKind::NotFound, "there is no such object"),
            (Cause::PermissionDenied { .. } | Cause::Unauthenticated { .. }, _) => {
                failed(ErrorKind::Refused, "the store refuses access").hint(CREDENTIALS)
            }
            (Cause::Precondition { .. }, _) | (_, Some(412 | 416)) => return Failure::changed(),
            (Cause::NotSupported { .. } | Cause::NotImplemented { .. }, _) => {
                failed(ErrorKind::Unsupported, "the server does not send ranges")
            }
            (Cause::InvalidPath { .. }, _) => {
                failed(ErrorKind::InvalidArgument, "a key that cannot be named")
            }
            (_, Some(300..=399)) => {
                let text =
                    "the store redirects to another place: its region or endpoint is another one";
                failed(ErrorKind::Refused, text).hint(OTHER_PLACE)
            }
            (_, Some(408)) => return Failure::late(why),
            (_, Some(400..=499 | 501)) => {
                failed(ErrorKind::Refused, "the store refuses the request")
            }
            _ if has_cause::<Refused>(error) => {
                failed(ErrorKind::Refused, "a redirect of the server is not followed")
            }
            _ if has_cause::<TooLong>(error) => {
                failed(ErrorKind::BadSource, "the answer of the store is too long")
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
                Error::new(ErrorKind::Refused, text).source(Described(why)).hint(CREDENTIALS)
            }
            Failure::Passing { kind, why, .. } => {
                let text = format!("the store could not be read; {failures} attempts failed");
                Error::new(kind, text).source(Described(why))
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
struct Described(String);

/// Describes an error and its sources. Leaves out URLs, which may be signed, and response bodies, which may
/// quote the request; keeps the provider's code and message from the body.
fn describe(error: &object_store::Error) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut at: Option<&dyn StdError> = Some(error);
    while let Some(error) = at {
        let text = error.to_string();
        let part = match (element(&text, "Code"), element(&text, "Message")) {
            (Some(code), message) => Some(match message {
                Some(message) => format!("{code}: {message}"),
                None => code,
            }),
            _ if text.contains("://") || text.contains(['<', '{']) => None,
            _ => Some(text),
        };
        // An error often repeats the message of its source.
        let is_new = |part: &String| !parts.iter().any(|before| before.ends_with(&**part));
        if let Some(part) = part.filter(is_new) {
            parts.retain(|before| !part.ends_with(&**before));
            parts.push(part);
        }
        at = error.source();
    }
    (!parts.is_empty()).then(|| parts.join(": "))
}

/// The reason of a failure, from the response's status and the description of the error.
fn why(status: Option<u16>, described: Option<String>) -> String {
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    match (status, described) {
        (Some(status), Some(text)) => format!("HTTP status {status}: {text}"),
        (Some(status), None) => format!("HTTP status {status}"),
        (None, text) => text.unwrap_or_else(|| "it gives no reason".to_owned()),
    }
}

/// The text of an XML element, unless it is long or contains a URL.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, value) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = value.split_once(&format!("</{name}>"))?;
    let is_plain = !value.contains("://") && value.len() <= 300;
    is_plain.then(|| value.escape_debug().to_string())
}

/// The hint for a store that refuses access.
const CREDENTIALS: &str = "give credentials as the provider's tools take them (AWS_ACCESS_KEY_ID, \
     AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, HF_TOKEN, ...), or read a public bucket \
     without any: AWS_SKIP_SIGNATURE, GOOGLE_SKIP_SIGNATURE or AZURE_SKIP_SIGNATURE set to true; the signature of a \
     URL may have expired";

/// The hint for a store that redirects.
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
        why(None, describe(&object_store::Error::Generic { store: "S3", source }))
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
