//! Opens a store: builds the client library's clients from an address, the environment and the user's settings.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, resolve_bucket_region};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, GetOptions, GetResult, ObjectStore, RetryConfig};

use super::aws_profile::profile_settings;
use super::failure::Failure;
use super::http_client::Limits;
use super::hub::{Hub, endpoint_and_headers, with_hint};
use super::watch::{Connections, Note, Noted, Watching};
use super::web::Web;
use crate::{Place, PlaceOptions, Scheme};
use dlfs_base::error::{Error, ErrorKind, Result};

/// A store's clients: for objects, for listings, and for requests that only web servers need.
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
    /// Requests an object, or the range of it that `options` name. On the Hub, requests the pinned commit.
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
        let mut answer = self.objects.get_opts(&pinned, options).await.map_err(with_hint)?;
        answer.meta.location = key.clone();
        answer.meta.e_tag = Some(commit);
        Ok(answer)
    }

    /// The store at `place`. Asks Amazon for the bucket's region if neither region nor endpoint is set.
    ///
    /// # Errors
    /// `InvalidArgument`: the settings contradict each other, or one is missing or invalid. For S3, also the
    /// errors of [`profile_settings`].
    pub(super) async fn open(
        place: &Place,
        options: &PlaceOptions,
        connections: Arc<Connections>,
    ) -> Result<Store> {
        match place.scheme() {
            Scheme::S3 => s3(place, options, connections).await,
            Scheme::Gs => {
                let builder = recognised(options.settings.iter().cloned())
                    .fold(GoogleCloudStorageBuilder::from_env(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    });
                let is_plain = endpoint_is_plain(options, &["GOOGLE_BASE_URL"]);
                let builder = builder
                    .with_bucket_name(place.authority())
                    .with_client_options(client_options(options, is_plain))
                    .with_retry(no_retry())
                    .with_http_connector(Watching::new(connections, limits(options), None));
                store_of(builder.build())
            }
            Scheme::Az => {
                let settings = azure_settings().into_iter().chain(options.settings.iter().cloned());
                let builder = recognised(settings)
                    .fold(MicrosoftAzureBuilder::from_env(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    });
                let is_plain =
                    endpoint_is_plain(options, &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]);
                let builder = builder
                    .with_container_name(place.authority())
                    .with_client_options(client_options(options, is_plain))
                    .with_retry(no_retry())
                    .with_http_connector(Watching::new(connections, limits(options), None));
                store_of(builder.build())
            }
            Scheme::Http | Scheme::Https => {
                let watching = Watching::new(connections, limits(options), None);
                let web = Web::open(place, &watching).map_err(|error| invalid(&error))?;
                let objects = http(place.base_url(), options, watching)?;
                Ok(Store { objects, pages: None, web: Some(web) })
            }
            Scheme::Hf => {
                let (endpoint, headers) = endpoint_and_headers(options)?;
                let limits = limits(options);
                let watching = Watching::new(connections, limits, Some(headers));
                let hub = Hub::open(place, endpoint, &watching)?;
                let objects = http(hub.files(), options, watching)?;
                Ok(Store { objects, pages: Some(Pages::Hub(hub)), web: None })
            }
        }
    }
}

/// A client of objects whose URLs begin with `base`.
fn http(base: String, options: &PlaceOptions, watching: Watching) -> Result<Arc<dyn ObjectStore>> {
    let client = client_options(options, base.starts_with("http://"));
    let builder = HttpBuilder::new()
        .with_url(base)
        .with_client_options(client)
        .with_retry(no_retry())
        .with_http_connector(watching);
    Ok(Arc::new(builder.build().map_err(|error| invalid(&error))?))
}

/// Parses the names of settings for the client of one store; leaves out settings of other stores.
fn recognised<K: FromStr>(
    settings: impl Iterator<Item = (String, String)>,
) -> impl Iterator<Item = (K, String)> {
    settings.filter_map(|(key, value)| Some((key.parse().ok()?, value)))
}

/// Opens a bucket of Amazon S3 or a compatible store. Settings override the environment, which overrides the profile.
async fn s3(place: &Place, options: &PlaceOptions, connections: Arc<Connections>) -> Result<Store> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut builder = AmazonS3Builder::from_env();
    let key_variables = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];
    let is_key =
        |(key, _): &(String, _)| matches!(&**key, "aws_access_key_id" | "aws_skip_signature");
    let has_keys = key_variables.iter().any(|name| environment(name).is_some())
        || options.settings.iter().any(is_key);
    let profile = profile_settings(&environment).or_else(|error| {
        // As with Amazon's tools, keys in the environment suffice; here, keys in the settings do, too.
        if has_keys { Ok(Vec::new()) } else { Err(error) }
    })?;
    // The environment overrides the profile; keys of one source are not mixed with those of another.
    let of_profile = profile.into_iter().filter(|(key, _)| {
        let is_location = matches!(&**key, "aws_region" | "aws_endpoint_url");
        let is_set = environment(&key.to_ascii_uppercase()).is_some();
        !is_set && (is_location || !has_keys)
    });
    for (key, value) in recognised(of_profile.chain(options.settings.iter().cloned())) {
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
        .with_http_connector(Watching::new(connections, limits(options), None));
    store_of(builder.build())
}

/// The store of a built client, which lists objects page by page.
fn store_of<S: ObjectStore + PaginatedListStore>(built: object_store::Result<S>) -> Result<Store> {
    let store = Arc::new(built.map_err(|error| invalid(&error))?);
    Ok(Store { objects: store.clone(), pages: Some(Pages::Store(store)), web: None })
}

/// The error for settings from which no client can be built.
fn invalid(error: &object_store::Error) -> Error {
    let cause = Failure::of(error, Noted::default()).given_up(1, true);
    Error::new(ErrorKind::InvalidArgument, "the settings of the store are invalid or incomplete")
        .source(cause)
}

/// Options of the client library. `is_plain`: the endpoint is HTTP without TLS.
fn client_options(options: &PlaceOptions, is_plain: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(is_plain)
        // The deadline of a request follows from its length, so the client library sets none.
        .with_timeout_disabled()
        .with_connect_timeout(limits(options).connect)
        .with_read_timeout(options.silence)
        .with_pool_idle_timeout(IDLE)
}

/// The timeouts of connections.
fn limits(options: &PlaceOptions) -> Limits {
    let silence = options.silence;
    Limits { connect: silence.min(CONNECT), silence, idle: IDLE }
}

/// No retries in the client library: `fetch.rs` retries, so that it counts them and the window adapts.
fn no_retry() -> RetryConfig {
    let backoff = BackoffConfig::default();
    RetryConfig { backoff, max_retries: 0, retry_timeout: Duration::ZERO }
}

/// Returns whether a setting or one of these environment variables names an endpoint without TLS.
fn endpoint_is_plain(options: &PlaceOptions, variables: &[&str]) -> bool {
    let is_plain = |value: &str| value.starts_with("http://");
    let given = options.settings.iter();
    let mut given = given.filter(|(key, _)| key.contains("endpoint") || key.contains("base_url"));
    given.any(|(_, value)| is_plain(value))
        || variables.iter().any(|name| std::env::var(name).is_ok_and(|value| is_plain(&value)))
}

/// Settings from the environment variables of Azure's own tools.
fn azure_settings() -> Vec<(String, String)> {
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

/// Maximum time for connecting.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum idle time of a connection: stores close their end after about this time.
const IDLE: Duration = Duration::from_secs(15);
