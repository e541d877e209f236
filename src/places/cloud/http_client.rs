//! The HTTP client under the client library. It follows redirects itself, and sends no `Referer`.
//!
//! Only headers that select bytes go to another origin (scheme, host and port), since other headers may be
//! credentials. A redirect to another origin is not followed if its URL repeats a credential of the request.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, LOCATION, RANGE,
};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use tokio::net::{ToSocketAddrs, lookup_host};

use dlfs_base::random;

/// A client with connections to any host. `silence`: the longest time to wait for more bytes of a response.
///
/// # Errors
/// TLS cannot be set up: for example, the operating system has no certificates.
pub(super) fn client(silence: Duration) -> reqwest::Result<Client> {
    Client::builder()
        .user_agent(concat!("dlfs-places/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .referer(false)
        .http1_only()
        .connect_timeout(silence.min(CONNECT_LIMIT))
        .read_timeout(silence)
        .pool_idle_timeout(IDLE_LIMIT)
        .dns_resolver(Arc::new(Shuffled))
        .build()
}

/// Sends a request and follows redirects, unless the request may change something; returns the last
/// response. `headers` go to the first origin only.
pub(super) async fn answer(
    client: &Client,
    mut request: HttpRequest,
    headers: &HeaderMap,
) -> Result<HttpResponse, HttpError> {
    request.headers_mut().extend(headers.clone());
    add_user(client, &mut request)?;
    let follows = matches!(request.method().as_str(), "GET" | "HEAD" | "PROPFIND");
    for _ in 0..=MOST_REDIRECTS {
        let again = request.clone();
        let answer = client.call(request).await?;
        let location = answer.headers().get(LOCATION).filter(|_| answer.status().is_redirection());
        let Some(location) = location.filter(|_| follows) else { return Ok(answer) };
        let location = String::from_utf8_lossy(location.as_bytes());
        request = redirected(again, &location).map_err(refused)?;
    }
    Err(refused(Refused::Circle))
}

/// Adds the header for the user in the URL, if there is one: nobody below makes it of the URL.
fn add_user(client: &Client, request: &mut HttpRequest) -> Result<(), HttpError> {
    let authority = request.uri().authority();
    let has_user = authority.is_some_and(|authority| authority.as_str().contains('@'));
    if !has_user || request.headers().contains_key(AUTHORIZATION) {
        return Ok(()); // a signature or a token goes before the user of an endpoint
    }
    let of_user = client.get(request.uri().to_string()).build();
    let of_user = of_user.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
    if let Some(user) = of_user.headers().get(AUTHORIZATION) {
        request.headers_mut().insert(AUTHORIZATION, user.clone());
    }
    Ok(())
}

/// The request that follows a redirect to `location`.
fn redirected(mut request: HttpRequest, location: &str) -> Result<HttpRequest, Refused> {
    let from = Url::parse(&request.uri().to_string()).map_err(|_| Refused::Nowhere)?;
    let to = follow(&from, location, request.headers_mut())?;
    *request.uri_mut() = to.as_str().parse().map_err(|_| Refused::Nowhere)?;
    Ok(request)
}

/// The client library's error for a redirect that is not followed.
fn refused(why: Refused) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, why)
}

/// The addresses of a host name, starting at a random one: several addresses are there to share the load.
pub(super) async fn addresses(name: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<SocketAddr> = lookup_host(name).await?.collect();
    let len = addresses.len().max(1) as u64;
    let first = random::number().map_err(io::Error::other)? % len;
    addresses.rotate_left(first as usize);
    Ok(addresses)
}

/// A resolver that returns the addresses of a host in another order each time.
struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let addresses = addresses((name.as_str(), 0)).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Reasons for not following a redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("it redirects in a circle, or too often")]
    Circle,
    #[error("it redirects to an address that is none")]
    Nowhere,
    #[error("it redirects to another scheme than http and https")]
    Scheme,
    #[error("it redirects from https to http, where all could read what is sent")]
    Plain,
    #[error("it redirects to another host with what signs the request")]
    Credential,
}

/// The URL to which the response from `from` redirects with `location`. If that URL has another origin,
/// removes from `headers` those that must not go there.
pub(super) fn follow(from: &Url, location: &str, headers: &mut HeaderMap) -> Result<Url, Refused> {
    let to = from.join(location).map_err(|_| Refused::Nowhere)?;
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") => {}
        (_, "http") => return Err(Refused::Plain),
        _ => return Err(Refused::Scheme),
    }
    if from.origin() == to.origin() {
        return Ok(to);
    }
    let decoded: Vec<String> = to.query_pairs().map(|(_, value)| value.into_owned()).collect();
    let is_repeated = |secret: &str| {
        secret.len() >= SHORTEST_SECRET
            && (to.as_str().contains(secret) || decoded.iter().any(|value| value.contains(secret)))
    };
    let mut in_url = from.query_pairs().filter(|(name, _)| is_credential(name));
    let in_headers = headers.iter().filter(|(name, _)| is_credential(name.as_str()));
    let mut in_headers =
        in_headers.filter_map(|(_, value)| value.to_str().ok()?.rsplit(' ').next());
    if in_url.any(|(_, value)| is_repeated(&value)) || in_headers.any(is_repeated) {
        return Err(Refused::Credential);
    }
    let kept = headers.iter().filter(|(name, _)| GOES_ALONG.contains(name));
    *headers = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    Ok(to)
}

/// Returns whether a URL parameter or header of this name may be a credential, by the names that Amazon,
/// Google, Microsoft and others use. The common names `key` and `author` must not match.
fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "sig" || name == "auth" || CREDENTIALS.split(' ').any(|part| name.contains(part))
}

/// Maximum time for connecting.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Maximum idle time of a connection: stores close their end after about this time.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(15);
/// Headers that select bytes.
const GOES_ALONG: [HeaderName; 6] =
    [ACCEPT, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE];
/// Parts of the names of credentials, separated by blanks.
const CREDENTIALS: &str = "signature token credential secret password authorization cookie apikey api_key api-key \
                           accesskey";
/// Minimum length of a credential: shorter values are numbers and flags.
const SHORTEST_SECRET: usize = 8;
/// Maximum redirects. Stores need one or two.
pub(super) const MOST_REDIRECTS: usize = 10;

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::{COOKIE, REFERER};

    use super::*;

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (AUTHORIZATION, "Bearer hf_SECRETSECRET"),
            (COOKIE, "session=SECRETSECRET"),
            (REFERER, "http://a/x?sig=SECRETSECRET"),
            (HeaderName::from_static("x-amz-security-token"), "SECRETSECRET"),
            (HeaderName::from_static("x-amz-content-sha256"), "UNSIGNED-PAYLOAD"),
            (RANGE, "bytes=0-9"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn followed(from: &str, location: &str) -> (Result<String, Refused>, Vec<String>) {
        let mut left = headers();
        let to = follow(&Url::parse(from).unwrap(), location, &mut left);
        (to.map(String::from), left.keys().map(ToString::to_string).collect())
    }

    #[test]
    fn another_origin_gets_nothing_that_may_be_a_credential() {
        let from = "https://a.example/set/x?sig=SECRETSECRET&sv=2024";
        for other in
            ["https://b.example/x", "https://a.example:444/x", "//b.example/x?name=longer-than-8"]
        {
            let (to, left) = followed(from, other);
            assert!(to.is_ok_and(|to| !to.contains("SECRET")), "{other}");
            assert_eq!(left, ["range"], "{other}");
        }
        let (to, left) = followed(from, "../y");
        assert_eq!((to, left.len()), (Ok("https://a.example/y".to_owned()), 6));
        // An object's key and the list of signed headers are no credentials.
        let named = "https://a.example/get?key=train/shard-0001.tar&author=somebody";
        let signed = "https://b.example/train/shard-0001.tar?X-Amz-Content-Sha256=UNSIGNED-PAYLOAD";
        assert!(followed(named, &format!("{signed}&by=somebody")).0.is_ok());
        for told in ["sig=SECRETSECRET", "x=hf%5FSECRETSECRET", "x=session%3DSECRETSECRET"] {
            let to = followed(from, &format!("https://b.example/x?{told}")).0;
            assert_eq!(to, Err(Refused::Credential), "{told}");
        }
    }

    #[test]
    fn other_schemes_are_refused() {
        for (to, why) in [
            ("ftp://a.example/x", Refused::Scheme),
            ("file:///etc/passwd", Refused::Scheme),
            ("http://a.example/x", Refused::Plain),
            ("https://", Refused::Nowhere),
        ] {
            assert_eq!(followed("https://a.example/x", to).0, Err(why), "{to}");
        }
        assert!(followed("http://a.example/x", "https://a.example/x").0.is_ok());
    }
}
