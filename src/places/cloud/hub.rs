//! The Hugging Face Hub: lists and reads files of its data sets through its web API.
//!
//! A revision is resolved to a commit once, and all requests name this commit, so all files are of one version. The
//! commit also serves as the entity tag of all objects, since the Hub's listings have no tags.

use std::error::Error as StdError;
use std::io::Read;

use http::HeaderValue;
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::path::Path as Key;
use object_store::{ClientOptions, Error as Cause};
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::failure::Failure;
use super::watch::{LISTING, Listing, Note, Noted, Watching, whole};
use crate::{Object, Place, PlaceOptions, escape, unescape};
use dlfs_base::error::{Error, ErrorKind, Result};

/// A data set of the Hub at one revision.
pub(super) struct Hub {
    client: HttpClient,
    /// The URL of the Hub, without a slash at its end.
    endpoint: String,
    /// `OWNER/NAME`.
    name: String,
    revision: String,
    /// The commit that the revision named at the first request.
    commit: OnceCell<String>,
}

/// The URL of the Hub, and the headers for each request: the token, if there is one. Both come from
/// `options`, or from the environment variables and the file of the Hub's own tools.
///
/// # Errors
/// `InvalidArgument`: the token has invalid characters.
pub(super) fn endpoint_and_headers(options: &PlaceOptions) -> Result<(String, HeaderMap)> {
    let setting = |name: &str| {
        let mut given = options.settings.iter();
        given.find(|(key, _)| key == name).map(|(_, value)| value.clone())
    };
    // As for the Hub's own tools, an empty variable is no token: the stored one counts.
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let endpoint = setting("hf_endpoint").or_else(|| variable("HF_ENDPOINT"));
    let endpoint = endpoint.filter(|endpoint| !endpoint.trim().is_empty());
    let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
    let token = setting("hf_token").or_else(|| variable("HF_TOKEN")).or_else(stored_token);
    let token = token.unwrap_or_default();
    let mut headers = HeaderMap::new();
    if !token.trim().is_empty() {
        let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
        let mut value = value.map_err(|_| {
            let text = "the token for the Hugging Face hub has characters that no token has";
            Error::new(ErrorKind::InvalidArgument, text).hint("set HF_TOKEN")
        })?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok((endpoint.trim().trim_end_matches('/').to_owned(), headers))
}

/// The token stored by `hf auth login`.
fn stored_token() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let at_home = || variable("HOME").map(|home| format!("{home}/.cache"));
    let cache = || variable("XDG_CACHE_HOME").or_else(at_home);
    let home = || variable("HF_HOME").or_else(|| cache().map(|it| format!("{it}/huggingface")));
    let path = variable("HF_TOKEN_PATH").or_else(|| home().map(|home| format!("{home}/token")))?;
    let mut token = String::new();
    std::fs::File::open(path).ok()?.take(MAX_TOKEN_BYTES).read_to_string(&mut token).ok()?;
    Some(token)
}

/// The Hub's description of a revision.
#[derive(Debug, Deserialize)]
struct Revision {
    /// The commit.
    sha: String,
}

/// A listed file or folder.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    /// Set for a file in large file storage (LFS): the outer `size` may then be that of a pointer.
    lfs: Option<Large>,
}

/// A file in large file storage.
#[derive(Debug, Deserialize)]
struct Large {
    size: u64,
}

impl Hub {
    /// The data set at `place`; sends no request yet.
    ///
    /// # Errors
    /// `InvalidArgument`: the settings are invalid.
    pub(super) fn open(place: &Place, endpoint: String, watching: &Watching) -> Result<Hub> {
        let of_hub = place.authority().strip_prefix("datasets/").unwrap_or(place.authority());
        let (name, revision) = of_hub.split_once('@').unwrap_or((of_hub, "main"));
        let revision = match revision {
            "~parquet" => "refs/convert/parquet".to_owned(),
            other => unescape(other).unwrap_or_else(|| other.to_owned()),
        };
        let client = watching.connect(&ClientOptions::new()).map_err(|error| {
            let text = "the settings of the Hugging Face hub are invalid";
            let cause = Failure::of(&error, Noted::default()).given_up(1, true);
            Error::new(ErrorKind::InvalidArgument, text).target(place.to_string()).source(cause)
        })?;
        let name = name.to_owned();
        Ok(Hub { client, endpoint, name, revision, commit: OnceCell::new() })
    }

    /// The base URL of the files.
    pub(super) fn files(&self) -> String {
        format!("{}/datasets/{}/resolve", self.endpoint, self.name)
    }

    /// The commit to read.
    pub(super) async fn commit(&self, note: Note) -> object_store::Result<&str> {
        let resolve = || async {
            let revision = escape(&self.revision).replace('/', "%2F");
            let url = format!("{}/api/datasets/{}/revision/{revision}", self.endpoint, self.name);
            let what = || {
                format!("there is no data set {} with the revision {}", self.name, self.revision)
            };
            let (body, _) = self.ask(&url, what, note).await?;
            let Revision { sha } = serde_json::from_slice(&body).map_err(wrong)?;
            if sha.len() >= 7 && sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                Ok(sha)
            } else {
                Err(wrong("the hub does not say which commit the revision is"))
            }
        };
        self.commit.get_or_try_init(resolve).await.map(|sha| &**sha)
    }

    /// The key of the file `key` beneath the base URL [`files`](Self::files), and the commit.
    pub(super) async fn pinned(
        &self,
        key: &Key,
        note: Note,
    ) -> object_store::Result<(Key, String)> {
        let commit = self.commit(note).await?;
        let pinned = Key::parse(format!("{commit}/{key}"))?;
        Ok((pinned, commit.to_owned()))
    }

    /// A page of the files beneath `prefix`, and the cursor of the next page. The task must have a [`LISTING`].
    pub(super) async fn page(
        &self,
        prefix: &str,
        cursor: Option<&str>,
    ) -> object_store::Result<(Vec<Object>, Option<String>)> {
        let Listing { note, refused } = LISTING.get();
        let commit = self.commit(note.clone()).await?;
        let folder = prefix.trim_end_matches('/');
        let slash = if folder.is_empty() { "" } else { "/" };
        let mut url = format!(
            "{}/api/datasets/{}/tree/{commit}{slash}{}?recursive=true",
            self.endpoint,
            self.name,
            escape(folder)
        );
        if let Some(cursor) = cursor {
            url = format!("{url}&cursor={cursor}");
        }
        let what = || format!("the data set {} has no folder {folder}", self.name);
        let (body, next) = self.ask(&url, what, note).await?;
        let entries: Vec<Entry> = serde_json::from_slice(&body).map_err(wrong)?;
        let mut objects = Vec::new();
        for Entry { kind, path, size, lfs } in entries {
            if kind != "file" {
                continue;
            }
            let len_bytes = lfs.map_or(size, |large| large.size);
            match Key::parse(&path) {
                Ok(_) => {
                    let etag = Some(commit.to_owned());
                    objects.push(Object { key: path, len_bytes, etag });
                }
                Err(_) => refused.lock().push(path),
            }
        }
        Ok((objects, next))
    }

    /// Requests `url`; returns the response's body, and the cursor of the next page. `absent`: the message of
    /// `NotFound`.
    async fn ask(
        &self,
        url: &str,
        absent: impl FnOnce() -> String,
        note: Note,
    ) -> object_store::Result<(Vec<u8>, Option<String>)> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().map_err(wrong)?;
        request.extensions_mut().insert(note);
        let answer = self.client.execute(request).await.map_err(wrong)?;
        let path = self.name.clone();
        match answer.status().as_u16() {
            200 => {}
            401 | 403 => return Err(Cause::PermissionDenied { path, source: GATED_HINT.into() }),
            404 => return Err(Cause::NotFound { path, source: absent().into() }),
            status => return Err(wrong(format!("the hub answers with status {status}"))),
        }
        let link = answer.headers().get("link").and_then(|link| link.to_str().ok());
        let next = link.and_then(cursor_of_next).map(str::to_owned);
        Ok((whole(answer.into_body()).await.map_err(wrong)?, next))
    }
}

/// Replaces the cause of a refusal by the Hub with a hint.
pub(super) fn with_hint(error: Cause) -> Cause {
    match error {
        Cause::PermissionDenied { path, .. } | Cause::Unauthenticated { path, .. } => {
            Cause::PermissionDenied { path, source: GATED_HINT.into() }
        }
        other => other,
    }
}

/// The cursor in the link to the next page. The rest of the link is ignored: it may lead to another host,
/// which must not get the token.
fn cursor_of_next(links: &str) -> Option<&str> {
    let mut rest = links;
    while let Some((_, link)) = rest.split_once('<') {
        let (url, behind) = link.split_once('>')?;
        let parameters = behind.split('<').next().unwrap_or_default();
        if parameters.contains("rel=\"next\"") || parameters.contains("rel=next") {
            let query = url.split_once('?')?.1;
            return query.split('&').find_map(|pair| pair.strip_prefix("cursor="));
        }
        rest = behind;
    }
    None
}

/// The error for an invalid response or a failed request; [`Failure::of`] decides whether it is retried.
fn wrong(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Cause {
    Cause::Generic { store: "Hugging Face hub", source: source.into() }
}

/// The URL of the Hub, unless another one is set.
const ENDPOINT: &str = "https://huggingface.co";
/// The cause of a refusal.
const GATED_HINT: &str = "there is no such data set, or it is private or gated: accept its conditions on its page, and \
     give a token that may read it as HF_TOKEN, or with hf auth login";
/// Maximum length of a stored token: a longer file is not one.
const MAX_TOKEN_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_asked_for_by_the_cursor_of_its_link() {
        let next = "<https://h/api/datasets/o/n/tree/main?recursive=true&cursor=a%3D&limit=2>; rel=\"next\"";
        assert_eq!(cursor_of_next(next), Some("a%3D"));
        assert_eq!(
            cursor_of_next(&format!("<https://h/?cursor=b>; rel=\"prev\", {next}")),
            Some("a%3D")
        );
        for none in ["", "<", "<https://h/?cursor=b>; rel=\"prev\"", "<https://h/>; rel=\"next\""] {
            assert_eq!(cursor_of_next(none), None, "{none}");
        }
    }
}
