//! The HTTP client under the client library. This file follows redirects itself, and sends no `Referer`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, LOCATION};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use tokio::net::{ToSocketAddrs, lookup_host};

use super::redirect::{MOST_REDIRECTS, Refused, follow};
use dlfs_base::random;

/// Timeouts for connecting, for silence during a response, and for an idle connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connect: Duration,
    pub(super) silence: Duration,
    pub(super) idle: Duration,
}

/// A client with connections to any host.
///
/// # Errors
/// TLS cannot be set up: for example, the operating system has no certificates.
pub(super) fn client(limits: Limits) -> reqwest::Result<Client> {
    Client::builder()
        .user_agent(concat!("dlfs-places/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .referer(false)
        .http1_only()
        .connect_timeout(limits.connect)
        .read_timeout(limits.silence)
        .pool_idle_timeout(limits.idle)
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

fn redirected(mut request: HttpRequest, location: &str) -> Result<HttpRequest, Refused> {
    let from = Url::parse(&request.uri().to_string()).map_err(|_| Refused::Nowhere)?;
    let to = follow(&from, location, request.headers_mut())?;
    *request.uri_mut() = to.as_str().parse().map_err(|_| Refused::Nowhere)?;
    Ok(request)
}

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

struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let addresses = addresses((name.as_str(), 0)).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
