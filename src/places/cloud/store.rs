//! Builds the client library's client of a store from an address, the environment and given settings.
//! AWS profiles give credentials, region and endpoint, from `~/.aws/config` and `~/.aws/credentials`.
//!
//! # The Hugging Face Hub
//! Lists and reads files of its data sets through its web API. A revision is resolved to a commit once, and all
//! requests name this commit. So all files read belong to one version. The commit also serves as the objects' entity
//! tag, since the Hub's listings have none.
//!
//! # Web servers
//! Finds a request that the server answers, and reads its pages that list files.

use std::error::Error as StdError;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, RANGE};
use http::{HeaderValue, Method, StatusCode};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, resolve_bucket_region};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientOptions, Error as Cause, GetOptions, GetResult, ObjectStore, RetryConfig,
};
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::http_client::Limits;
use super::watch::{Failure, LISTING, Listing, Note, Noted, Seen, Watching, beginning, whole};
use crate::{Object, Place, PlaceOptions, Scheme, escape, unescape};
use dlfs_base::error::{Error, ErrorKind, Result};

/// A store, as the client library represents it.
pub(super) struct Store {
    /// Reads objects.
    pub(super) objects: Arc<dyn ObjectStore>,
    /// Lists objects page by page; `None` for web servers.
    pub(super) pages: Option<Pages>,
    /// Further requests to a web server; `None` for other stores.
    pub(super) web: Option<Web>,
}

/// A service that lists objects page by page.
pub(super) enum Pages {
    /// A store, which lists in the order of keys.
    Store(Arc<dyn PaginatedListStore>),
    /// The Hugging Face hub.
    Hub(Hub),
}

impl Store {
    /// Requests an object, or the range of it that `options` name.
    pub(super) async fn get(
        &self,
        key: &Key,
        mut options: GetOptions,
    ) -> object_store::Result<GetResult> {
        let Some(Pages::Hub(hub)) = &self.pages else {
            return self.objects.get_opts(key, options).await;
        };
        let note = options.extensions.get::<Note>().cloned().unwrap_or_default();
        let (pinned, commit) = hub.pinned(key, note).await?;
        // The commit already pins the content, and the storage behind the Hub has entity tags of its own.
        options.if_match = None;
        let mut answer = self.objects.get_opts(&pinned, options).await.map_err(refused)?;
        answer.meta.location = key.clone();
        answer.meta.e_tag = Some(commit);
        Ok(answer)
    }

    /// The store at `place`. Asks Amazon for the bucket's region if neither region nor endpoint is set.
    ///
    /// # Errors
    /// `InvalidArgument`: the settings contradict each other, or one is missing or invalid. For S3, also the
    /// errors of [`settings`].
    pub(super) async fn open(
        place: &Place,
        options: &PlaceOptions,
        seen: Arc<Seen>,
    ) -> Result<Store> {
        match place.scheme() {
            Scheme::S3 => s3(place, options, seen).await,
            Scheme::Gs => {
                let builder = known(options.settings.iter().cloned())
                    .fold(GoogleCloudStorageBuilder::from_env(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    });
                let is_plain = endpoint_is_plain(options, &["GOOGLE_BASE_URL"]);
                let builder = builder
                    .with_bucket_name(place.authority())
                    .with_client_options(client_options(options, is_plain))
                    .with_retry(no_retry())
                    .with_http_connector(Watching::new(seen, limits(options), None));
                made(builder.build())
            }
            Scheme::Az => {
                let settings = azure_words().into_iter().chain(options.settings.iter().cloned());
                let builder = known(settings)
                    .fold(MicrosoftAzureBuilder::from_env(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    });
                let is_plain =
                    endpoint_is_plain(options, &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]);
                let builder = builder
                    .with_container_name(place.authority())
                    .with_client_options(client_options(options, is_plain))
                    .with_retry(no_retry())
                    .with_http_connector(Watching::new(seen, limits(options), None));
                made(builder.build())
            }
            Scheme::Http | Scheme::Https => {
                let watching = Watching::new(seen, limits(options), None);
                let web = Web::open(place, &watching).map_err(|error| invalid(&error))?;
                let objects = http(place.base_url(), options, watching)?;
                Ok(Store { objects, pages: None, web: Some(web) })
            }
            Scheme::Hf => {
                let (endpoint, headers) = access(options)?;
                let limits = limits(options);
                let watching = Watching::new(seen, limits, Some(headers));
                let hub = Hub::open(place, endpoint, &watching)?;
                let objects = http(hub.files(), options, watching)?;
                Ok(Store { objects, pages: Some(Pages::Hub(hub)), web: None })
            }
        }
    }
}

/// Objects by their URLs, beneath `base`.
fn http(base: String, options: &PlaceOptions, watching: Watching) -> Result<Arc<dyn ObjectStore>> {
    let client = client_options(options, base.starts_with("http://"));
    let builder = HttpBuilder::new()
        .with_url(base)
        .with_client_options(client)
        .with_retry(no_retry())
        .with_http_connector(watching);
    Ok(Arc::new(builder.build().map_err(|error| invalid(&error))?))
}

/// The settings that the client of a store knows by name.
fn known<K: FromStr>(
    settings: impl Iterator<Item = (String, String)>,
) -> impl Iterator<Item = (K, String)> {
    settings.filter_map(|(key, value)| Some((key.parse().ok()?, value)))
}

async fn s3(place: &Place, options: &PlaceOptions, seen: Arc<Seen>) -> Result<Store> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut builder = AmazonS3Builder::from_env();
    let own_keys = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];
    let is_own =
        |(key, _): &(String, _)| matches!(&**key, "aws_access_key_id" | "aws_skip_signature");
    let has_own = own_keys.iter().any(|name| environment(name).is_some())
        || options.settings.iter().any(is_own);
    let profile = settings(&environment).or_else(|error| {
        // As with Amazon's tools, keys in the environment suffice; here, keys in the settings do, too.
        if has_own { Ok(Vec::new()) } else { Err(error) }
    })?;
    let of_profile = profile.into_iter().filter(|(key, _)| {
        let is_key = !matches!(&**key, "aws_region" | "aws_endpoint_url");
        let is_set = environment(&key.to_ascii_uppercase()).is_some();
        !(is_set || is_key && has_own)
    });
    for (key, value) in known(of_profile.chain(options.settings.iter().cloned())) {
        builder = builder.with_config(key, value);
    }
    let set = |key| builder.get_config_value(&key);
    let endpoint = set(AmazonS3ConfigKey::S3Endpoint).or(set(AmazonS3ConfigKey::Endpoint));
    let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    let has_region = set(AmazonS3ConfigKey::Region).is_some();
    let client = client_options(options, is_plain);
    if endpoint.is_none() && !has_region && environment("AWS_DEFAULT_REGION").is_none() {
        // If this request fails, the first read reports why; this one is not retried.
        if let Ok(region) = resolve_bucket_region(place.authority(), &client).await {
            builder = builder.with_region(region);
        }
    }
    let builder = builder
        .with_bucket_name(place.authority())
        .with_client_options(client)
        .with_retry(no_retry())
        .with_http_connector(Watching::new(seen, limits(options), None));
    made(builder.build())
}

fn made<S: ObjectStore + PaginatedListStore>(built: object_store::Result<S>) -> Result<Store> {
    let store = Arc::new(built.map_err(|error| invalid(&error))?);
    Ok(Store { objects: store.clone(), pages: Some(Pages::Store(store)), web: None })
}

fn invalid(error: &object_store::Error) -> Error {
    let cause = Failure::of(error, Noted::default()).given_up(1, true);
    Error::new(ErrorKind::InvalidArgument, "the settings of the store are invalid or incomplete")
        .source(cause)
}

fn client_options(options: &PlaceOptions, is_plain: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(is_plain)
        // The deadline of a request follows from its length, so the client library sets none.
        .with_timeout_disabled()
        .with_connect_timeout(limits(options).connect)
        .with_read_timeout(options.silence)
        .with_pool_idle_timeout(IDLE)
}

fn limits(options: &PlaceOptions) -> Limits {
    let silence = options.silence;
    Limits { connect: silence.min(CONNECT), silence, idle: IDLE }
}

/// No retries in the client library: `fetch.rs` retries, so that it counts them and the window adapts.
fn no_retry() -> RetryConfig {
    let backoff = BackoffConfig::default();
    RetryConfig { backoff, max_retries: 0, retry_timeout: Duration::ZERO }
}

fn endpoint_is_plain(options: &PlaceOptions, variables: &[&str]) -> bool {
    let is_plain = |value: &str| value.starts_with("http://");
    let given = options.settings.iter();
    let mut given = given.filter(|(key, _)| key.contains("endpoint") || key.contains("base_url"));
    given.any(|(_, value)| is_plain(value))
        || variables.iter().any(|name| std::env::var(name).is_ok_and(|value| is_plain(&value)))
}

/// Settings from the environment variables of Azure's own tools.
fn azure_words() -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut add = |key: &str, value: Option<&str>| {
        settings.extend(value.map(|value| (key.to_owned(), value.to_owned())));
    };
    let environment = |name: &str| std::env::var(name).ok();
    let connection = environment("AZURE_STORAGE_CONNECTION_STRING").unwrap_or_default();
    let of_connection = |name: &str| {
        let mut parts = connection.split(';').filter_map(|part| part.split_once('='));
        parts.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    add("azure_storage_account_name", of_connection("AccountName"));
    add("azure_storage_account_key", of_connection("AccountKey"));
    add("azure_storage_sas_token", of_connection("SharedAccessSignature"));
    add("azure_storage_endpoint", of_connection("BlobEndpoint"));
    add("azure_storage_account_name", environment("AZURE_STORAGE_ACCOUNT").as_deref());
    add("azure_storage_account_key", environment("AZURE_STORAGE_KEY").as_deref());
    settings
}

/// The settings of the profile that the environment names, or of the profile `default`.
///
/// # Errors
/// `NotFound`: neither file has the named profile. `Unsupported`: the profile's credentials come from a
/// program, single sign-on or another profile.
pub(super) fn settings(
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>> {
    let named = environment("AWS_PROFILE").or_else(|| environment("AWS_DEFAULT_PROFILE"));
    let home = environment("HOME").map(PathBuf::from).unwrap_or_default();
    let file = |variable: &str, name: &str| {
        environment(variable).map_or_else(|| home.join(".aws").join(name), PathBuf::from)
    };
    let config = text_of(&file("AWS_CONFIG_FILE", "config"));
    let credentials = text_of(&file("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
    let profile = named.as_deref().unwrap_or("default");
    let found = of_profile(&config, &credentials, profile);
    match (found, &named) {
        (None, Some(profile)) => {
            let text = format!("there is no profile {profile:?} (AWS_PROFILE)");
            Err(Error::new(ErrorKind::NotFound, text)
                .path(file("AWS_CONFIG_FILE", "config"))
                .hint("aws configure list-profiles shows those that there are"))
        }
        (None, None) => Ok(Vec::new()),
        (Some(found), _) => settings_of(found, profile),
    }
}

/// The contents of a file; a file that cannot be read counts as empty.
fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

type Pairs = Vec<(String, String)>;

/// The settings of a profile from both files; `None` if neither file has the profile.
fn of_profile(config: &str, credentials: &str, profile: &str) -> Option<Pairs> {
    let in_config = section(config, |name| {
        let name = name.strip_prefix("profile ").map_or(name, str::trim);
        name == profile
    });
    let in_credentials = section(credentials, |name| name == profile);
    match (in_config, in_credentials) {
        (None, None) => None,
        // The later settings win, so the credentials file takes precedence.
        (config, credentials) => Some(config.into_iter().chain(credentials).flatten().collect()),
    }
}

/// The key-value pairs of a section; `None` if there is no such section. Skips indented lines, which belong
/// to the setting above.
fn section(text: &str, is_it: impl Fn(&str) -> bool) -> Option<Pairs> {
    let mut found: Option<Pairs> = None;
    let mut inside: bool = false;
    for line in text.lines().filter(|line| !line.starts_with(['#', ';', ' ', '\t'])) {
        if let Some(name) =
            line.trim_end().strip_prefix('[').and_then(|line| line.strip_suffix(']'))
        {
            inside = is_it(name.trim());
            if inside {
                found.get_or_insert_default();
            }
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside) {
            let pair = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
            found.get_or_insert_default().push(pair);
        }
    }
    found
}

/// The settings that the client library knows, renamed for it.
fn settings_of(found: Pairs, profile: &str) -> Result<Pairs> {
    let has = |name: &str| found.iter().any(|(key, _)| key == name);
    let elsewhere = ["credential_process", "sso_session", "sso_start_url", "source_profile"];
    if let Some(name) = elsewhere.into_iter().find(|name| has(name) && !has("aws_access_key_id")) {
        let text = format!("the profile {profile:?} takes its credentials from elsewhere ({name})");
        return Err(Error::new(ErrorKind::Unsupported, text)
            .hint("eval \"$(aws configure export-credentials --format env)\" sets them in the environment"));
    }
    let name_of = |key: &str| match key {
        "aws_access_key_id" | "aws_secret_access_key" | "aws_session_token" => Some(key.to_owned()),
        "region" => Some("aws_region".to_owned()),
        "endpoint_url" => Some("aws_endpoint_url".to_owned()),
        _ => None,
    };
    Ok(found.into_iter().filter_map(|(key, value)| Some((name_of(&key)?, value))).collect())
}

/// A data set of the Hub at one revision.
pub(super) struct Hub {
    client: HttpClient,
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
pub(super) fn access(options: &PlaceOptions) -> Result<(String, HeaderMap)> {
    let setting = |name: &str| {
        let mut given = options.settings.iter();
        given.find(|(key, _)| key == name).map(|(_, value)| value.clone())
    };
    let variable = |name: &str| std::env::var(name).ok();
    let endpoint = setting("hf_endpoint").or_else(|| variable("HF_ENDPOINT"));
    let endpoint = endpoint.filter(|endpoint| !endpoint.trim().is_empty());
    let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
    let token = setting("hf_token").or_else(|| variable("HF_TOKEN")).or_else(kept_token);
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
fn kept_token() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let at_home = || variable("HOME").map(|home| format!("{home}/.cache"));
    let cache = || variable("XDG_CACHE_HOME").or_else(at_home);
    let home = || variable("HF_HOME").or_else(|| cache().map(|it| format!("{it}/huggingface")));
    let path = variable("HF_TOKEN_PATH").or_else(|| home().map(|home| format!("{home}/token")))?;
    let mut token = String::new();
    std::fs::File::open(path).ok()?.take(MAX_TOKEN_BYTES).read_to_string(&mut token).ok()?;
    Some(token)
}

#[derive(Debug, Deserialize)]
struct Revision {
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
    /// Set for a file in large file storage (LFS) instead of the repository.
    lfs: Option<Large>,
}

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
        let ask = || async {
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
        self.commit.get_or_try_init(ask).await.map(|sha| &**sha)
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

    /// Files beneath `prefix`, and the cursor of the next page. For tasks with a [`LISTING`].
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

    /// The response's body, and the cursor of the next page. `absent` describes the request's object, for
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
            401 | 403 => return Err(Cause::PermissionDenied { path, source: GATED.into() }),
            404 => return Err(Cause::NotFound { path, source: absent().into() }),
            status => return Err(wrong(format!("the hub answers with status {status}"))),
        }
        let link = answer.headers().get("link").and_then(|link| link.to_str().ok());
        let next = link.and_then(cursor_of_next).map(str::to_owned);
        Ok((whole(answer.into_body()).await.map_err(wrong)?, next))
    }
}

/// Replaces the source of the Hub's refusal by a hint.
pub(super) fn refused(error: Cause) -> Cause {
    match error {
        Cause::PermissionDenied { path, .. } | Cause::Unauthenticated { path, .. } => {
            Cause::PermissionDenied { path, source: GATED.into() }
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
        let own = behind.split('<').next().unwrap_or_default();
        if own.contains("rel=\"next\"") || own.contains("rel=next") {
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

/// A web server.
pub(super) struct Web {
    client: HttpClient,
    place: Place,
}

/// A server's description of a file, from the headers of a response.
#[derive(Debug)]
pub(super) struct Told {
    /// The file's length, if the server states it.
    pub(super) len_bytes: Option<u64>,
    pub(super) etag: Option<String>,
    /// True for an HTML page.
    pub(super) is_page: bool,
}

impl Told {
    fn of(answer: &HttpResponse) -> Told {
        let header = |name: HeaderName| answer.headers().get(name).and_then(|it| it.to_str().ok());
        let len = match header(CONTENT_RANGE) {
            Some(range) => range.rsplit('/').next(),
            None => header(CONTENT_LENGTH),
        };
        let kind = header(CONTENT_TYPE).unwrap_or_default().trim_start().to_ascii_lowercase();
        Told {
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
    pub(super) async fn look(&self, key: &str, note: &Note) -> object_store::Result<Told> {
        if let Ok(answer) = self.send(Method::HEAD, key, None, note).await {
            let told = Told::of(&answer);
            match answer.status() {
                // The client is to wait, whatever the request.
                status if matches!(status.as_u16(), 408 | 429 | 503) => {
                    return Err(refusal(key, status, ""));
                }
                status if status.is_success() && told.len_bytes.is_some_and(|len| len > 0) => {
                    return Ok(told);
                }
                _ => {}
            }
        }
        let answer = self.send(Method::GET, key, Some("bytes=0-0"), note).await?;
        let told = Told::of(&answer);
        match answer.status() {
            // The file is empty: it has no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(Told { len_bytes: Some(0), ..told }),
            _ => checked(key, answer).await.map(|_| told),
        }
    }

    /// Gets a file: the server's description, and the body.
    pub(super) async fn get(
        &self,
        key: &str,
        note: &Note,
    ) -> object_store::Result<(Told, HttpResponseBody)> {
        let answer = checked(key, self.send(Method::GET, key, None, note).await?).await?;
        Ok((Told::of(&answer), answer.into_body()))
    }

    /// Gets a page as a string; replaces bytes that are not UTF-8.
    pub(super) async fn page(&self, key: &str, note: &Note) -> object_store::Result<String> {
        let bytes = whole(self.get(key, note).await?.1).await.map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

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

fn refusal(key: &str, status: StatusCode, body: &str) -> Cause {
    // Messages show nothing inside angle brackets except the store's code and message.
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

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Cause::Generic { store: STORE, source: Box::new(error) }
}

const CONNECT: Duration = Duration::from_secs(10);
/// Maximum idle time of a connection: stores close their end after about this time.
const IDLE: Duration = Duration::from_secs(15);

const ENDPOINT: &str = "https://huggingface.co";
const GATED: &str = "there is no such data set, or it is private or gated: accept its conditions on its page, and give \
     a token that may read it as HF_TOKEN, or with hf auth login";
const MAX_TOKEN_BYTES: u64 = 4096;

const STORE: &str = "web server";

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n# no\n[profile lab]\nendpoint_url = http://h:9000\n\
                          s3 =\n  addressing_style = path\nregion=x\n[profile sso]\nsso_session = me\n";
    const CREDENTIALS: &str =
        "[lab]\naws_access_key_id = A=B\naws_secret_access_key = S\n[other]\n";

    fn pairs(profile: &str) -> Option<Vec<(String, String)>> {
        of_profile(CONFIG, CREDENTIALS, profile).map(|found| settings_of(found, profile).unwrap())
    }

    #[test]
    fn a_profile_is_read_from_both_files() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(pairs("default"), Some(vec![pair("aws_region", "eu-west-1")]));
        let lab = [
            pair("aws_endpoint_url", "http://h:9000"),
            pair("aws_region", "x"),
            pair("aws_access_key_id", "A=B"),
            pair("aws_secret_access_key", "S"),
        ];
        assert_eq!(pairs("lab"), Some(lab.to_vec()));
        assert_eq!((pairs("other"), pairs("none")), (Some(vec![]), None));
    }

    #[test]
    fn what_is_missing_or_not_supported_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, CONFIG).unwrap();
        let ask = |profile: &'static str| {
            let file = file.clone();
            settings(&move |name| match name {
                "AWS_PROFILE" => Some(profile.to_owned()),
                "AWS_CONFIG_FILE" => Some(file.display().to_string()),
                _ => None,
            })
        };
        assert_eq!(ask("none").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(ask("sso").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(ask("lab").unwrap().len(), 2);
        assert_eq!(settings(&|_| None).unwrap(), vec![]);
    }

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
