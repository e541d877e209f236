//! Opens a store: builds the client library's clients from an address, the environment and the user's settings. For S3,
//! also reads the AWS profile in `~/.aws/config` and `~/.aws/credentials`.

use std::env::vars_os;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
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

use super::failure::Failure;
use super::http_client::{CONNECT_LIMIT, IDLE_LIMIT};
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
                let account = variable("SERVICE_ACCOUNT");
                let account = account.map(|path| ("google_service_account".to_owned(), path));
                let settings = account.into_iter().chain(settings_in("GOOGLE_", vars_os()));
                let settings = settings.chain(options.settings.iter().cloned());
                let builder = recognised(settings)?
                    .into_iter()
                    .fold(GoogleCloudStorageBuilder::new(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    });
                let is_plain = endpoint_is_plain(options, &["GOOGLE_BASE_URL"]);
                let builder = builder
                    .with_bucket_name(place.authority())
                    .with_client_options(client_options(options, is_plain))
                    .with_retry(no_retry())
                    .with_http_connector(Watching::new(connections, options.silence, None));
                store_of(builder.build())
            }
            Scheme::Az => {
                let settings = settings_in("AZURE_", vars_os()).into_iter();
                let settings = settings.chain(azure_settings(&variable));
                let settings = settings.chain(options.settings.iter().cloned());
                let builder = recognised(settings)?
                    .into_iter()
                    .fold(MicrosoftAzureBuilder::new(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    });
                let is_plain =
                    endpoint_is_plain(options, &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]);
                let builder = builder
                    .with_container_name(place.authority())
                    .with_client_options(client_options(options, is_plain))
                    .with_retry(no_retry())
                    .with_http_connector(Watching::new(connections, options.silence, None));
                store_of(builder.build())
            }
            Scheme::Http | Scheme::Https => {
                let watching = Watching::new(connections, options.silence, None);
                let web = Web::open(place, &watching).map_err(|error| invalid(&error))?;
                let objects = http(place.base_url(), options, watching)?;
                Ok(Store { objects, pages: None, web: Some(web) })
            }
            Scheme::Hf => {
                let (endpoint, headers) = endpoint_and_headers(options)?;
                let watching = Watching::new(connections, options.silence, Some(headers));
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
///
/// # Errors
/// `InvalidArgument`: a setting that becomes part of a header has a character that headers do not have. The client
/// library would panic over it. The message names the setting, and shows no value.
fn recognised<K: FromStr>(
    settings: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<(K, String)>> {
    let is_plain = |value: &str| value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let mut found = Vec::new();
    for (name, value) in settings {
        let Ok(key) = name.parse::<K>() else { continue };
        if IN_HEADERS.iter().any(|end| name.ends_with(end)) && !is_plain(&value) {
            let text = format!("{name} has a line break, or a character outside of ASCII");
            return Err(Error::new(ErrorKind::InvalidArgument, text)
                .hint("a file that holds it may end with a line break: leave that out"));
        }
        found.push((key, value));
    }
    Ok(found)
}

/// Opens a bucket of Amazon S3 or a compatible store. Settings override the environment, which overrides the profile.
async fn s3(place: &Place, options: &PlaceOptions, connections: Arc<Connections>) -> Result<Store> {
    let key_variables = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];
    let gives = |wanted: AmazonS3ConfigKey| {
        let parsed = |name: &str| name.parse::<AmazonS3ConfigKey>().ok();
        options.settings.iter().any(|(name, _)| parsed(name) == Some(wanted))
    };
    let gives_keys = gives(AmazonS3ConfigKey::AccessKeyId);
    let has_keys = key_variables.iter().any(|name| variable(name).is_some())
        || gives_keys
        || gives(AmazonS3ConfigKey::SkipSignature);
    let profile = profile_settings(&variable).or_else(|error| {
        // As with Amazon's tools, keys in the environment suffice; here, keys in the settings do, too.
        if has_keys { Ok(Vec::new()) } else { Err(error) }
    })?;
    let of_profile = below_environment(profile, has_keys, &variable);
    // Keys of one source are not mixed with those of another, and an endpoint for all services that is given is meant.
    let gives_endpoint = gives(AmazonS3ConfigKey::Endpoint);
    let is_replaced = |name: &str| match name.parse::<AmazonS3ConfigKey>() {
        Ok(
            AmazonS3ConfigKey::AccessKeyId
            | AmazonS3ConfigKey::SecretAccessKey
            | AmazonS3ConfigKey::Token,
        ) => gives_keys,
        Ok(AmazonS3ConfigKey::S3Endpoint) => gives_endpoint,
        _ => false,
    };
    let of_environment = settings_in("AWS_", vars_os()).into_iter();
    let of_environment = of_environment.filter(|(name, _)| !is_replaced(name));
    let settings = of_environment.chain(of_profile).chain(options.settings.iter().cloned());
    let mut builder = recognised(settings)?
        .into_iter()
        .fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value));
    let set = |key| builder.get_config_value(&key);
    let endpoint = set(AmazonS3ConfigKey::S3Endpoint).or(set(AmazonS3ConfigKey::Endpoint));
    let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    let has_region = set(AmazonS3ConfigKey::Region).is_some();
    let client = client_options(options, is_plain);
    if endpoint.is_none() && !has_region && variable("AWS_DEFAULT_REGION").is_none() {
        // If this request fails, the first read reports why; this request is not retried.
        if let Ok(region) = resolve_bucket_region(place.authority(), &client).await {
            builder = builder.with_region(region);
        }
    }
    let builder = builder
        .with_bucket_name(place.authority())
        .with_client_options(client)
        .with_retry(no_retry())
        .with_http_connector(Watching::new(connections, options.silence, None));
    store_of(builder.build())
}

/// The settings of `profile` that the environment does not override. `has_keys`: the keys come from elsewhere.
fn below_environment(
    profile: Pairs,
    has_keys: bool,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Pairs {
    let is_set = |names: &[&str]| names.iter().any(|name| environment(name).is_some());
    let is_overridden = |name: &str| match name {
        "aws_region" => is_set(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
        "aws_endpoint_url" => is_set(&["AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
        _ => has_keys || is_set(&[name.to_ascii_uppercase().as_str()]),
    };
    profile.into_iter().filter(|(name, _)| !is_overridden(name)).collect()
}

/// The settings of the profile that the environment names, or of the profile `default`.
///
/// # Errors
/// `NotFound`: neither file has the named profile. `Unsupported`: the profile's credentials come from a
/// program, single sign-on or another profile, or are those of a role.
fn profile_settings(environment: &dyn Fn(&str) -> Option<String>) -> Result<Vec<(String, String)>> {
    let named = environment("AWS_PROFILE").or_else(|| environment("AWS_DEFAULT_PROFILE"));
    // Without a home there are no files: those of the working folder may be anybody's.
    let at_home = |name: &str| Some(PathBuf::from(environment("HOME")?).join(".aws").join(name));
    let file = |variable: &str, name: &str| {
        environment(variable).map(PathBuf::from).or_else(|| at_home(name))
    };
    let config = file("AWS_CONFIG_FILE", "config");
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let text = |file: &Option<PathBuf>| file.as_deref().map(text_of).unwrap_or_default();
    let profile = named.as_deref().unwrap_or("default");
    let found = of_profile(&text(&config), &text(&credentials), profile);
    match (found, &named) {
        (None, Some(profile)) => {
            let text = format!("there is no profile {profile:?} (AWS_PROFILE)");
            let error = Error::new(ErrorKind::NotFound, text)
                .hint("aws configure list-profiles shows those that there are");
            Err(config.into_iter().fold(error, |error, config| error.path(config)))
        }
        (None, None) => Ok(Vec::new()),
        (Some(found), _) => settings_of(found, profile),
    }
}

/// The contents of a file; a file that cannot be read counts as empty.
fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Names and values of settings.
type Pairs = Vec<(String, String)>;

/// The settings of a profile from both files; `None` if neither file has the profile.
fn of_profile(config: &str, credentials: &str, profile: &str) -> Option<Pairs> {
    let in_config = section(config, |name| {
        let name = name.strip_prefix("profile ").map_or(name, str::trim);
        let quoted = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
        quoted.unwrap_or(name) == profile
    });
    let in_credentials = section(credentials, |name| name == profile);
    match (in_config, in_credentials) {
        (None, None) => None,
        // The later settings win, so the credentials file takes precedence.
        (config, credentials) => Some(config.into_iter().chain(credentials).flatten().collect()),
    }
}

/// The settings of the section whose name `is_wanted`; `None` if there is no such section. Skips indented lines, which
/// belong to the setting above.
fn section(text: &str, is_wanted: impl Fn(&str) -> bool) -> Option<Pairs> {
    let mut found: Option<Pairs> = None;
    let mut is_inside = false;
    for line in text.lines().filter(|line| !line.starts_with(['#', ';', ' ', '\t'])) {
        if let Some(rest) = line.strip_prefix('[') {
            // A comment may follow.
            is_inside = rest.split_once(']').is_some_and(|(name, _)| is_wanted(name.trim()));
            if is_inside {
                found.get_or_insert_default();
            }
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_inside) {
            let pair = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
            found.get_or_insert_default().push(pair);
        }
    }
    found
}

/// The settings of a profile that the client library knows, under the library's names.
fn settings_of(found: Pairs, profile: &str) -> Result<Pairs> {
    let has = |name: &str| found.iter().any(|(key, _)| key == name);
    let elsewhere = ["credential_process", "sso_session", "sso_start_url", "source_profile"];
    let has_keys = has("aws_access_key_id");
    // Keys beside a role are those with which it is assumed.
    let role = Some("role_arn").filter(|name| has(name));
    let elsewhere = elsewhere.into_iter().find(|name| has(name) && !has_keys);
    if let Some(name) = role.or(elsewhere) {
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
        .with_connect_timeout(options.silence.min(CONNECT_LIMIT))
        .with_read_timeout(options.silence)
        .with_pool_idle_timeout(IDLE_LIMIT)
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
        || variables.iter().any(|name| variable(name).is_some_and(|value| is_plain(&value)))
}

/// The value of an environment variable. An empty one counts as unset, as it does for the providers' tools.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The settings in environment variables whose names begin with `prefix`. Leaves out empty ones: the client library
/// would take them for empty keys, tokens and endpoints.
fn settings_in(prefix: &str, variables: impl Iterator<Item = (OsString, OsString)>) -> Pairs {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let is_set = |(name, value): &(String, String)| name.starts_with(prefix) && !value.is_empty();
    let of_environment = variables.filter_map(text).filter(is_set);
    of_environment.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect()
}

/// Settings from the environment variables of Azure's own tools.
fn azure_settings(environment: &dyn Fn(&str) -> Option<String>) -> Pairs {
    let mut settings = Vec::new();
    let mut add = |key: &str, value: Option<String>| {
        settings.extend(value.map(|value| (key.to_owned(), value)));
    };
    let connection = environment("AZURE_STORAGE_CONNECTION_STRING").unwrap_or_default();
    let of_connection = |name: &str| {
        let mut parts = connection.split(';').filter_map(|part| part.split_once('='));
        let found = parts.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    // Another cloud than the public one, unless the endpoint is named.
    let of_cloud = || {
        let suffix = of_connection("EndpointSuffix").filter(|suffix| suffix != PUBLIC_SUFFIX)?;
        let names = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"];
        let is_named = names.iter().any(|name| environment(name).is_some());
        let account = of_connection("AccountName").filter(|_| !is_named)?;
        let protocol = of_connection("DefaultEndpointsProtocol");
        let protocol = protocol.unwrap_or_else(|| "https".to_owned());
        Some(format!("{protocol}://{account}.blob.{suffix}"))
    };
    add("azure_storage_account_name", of_connection("AccountName"));
    add("azure_storage_account_key", of_connection("AccountKey"));
    add("azure_storage_sas_token", of_connection("SharedAccessSignature"));
    add("azure_storage_endpoint", of_connection("BlobEndpoint").or_else(of_cloud));
    add("azure_storage_account_name", environment("AZURE_STORAGE_ACCOUNT"));
    add("azure_storage_account_key", environment("AZURE_STORAGE_KEY"));
    add("azure_msi_endpoint", environment("IDENTITY_ENDPOINT"));
    settings
}

/// The ends of the names of settings that become parts of headers.
const IN_HEADERS: [&str; 5] = ["key_id", "access_key", "token", "region", "account_name"];
/// The suffix of hosts in Azure's public cloud, which is the client library's default.
const PUBLIC_SUFFIX: &str = "core.windows.net";

#[cfg(test)]
mod tests {
    use object_store::azure::AzureConfigKey;

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
    fn a_comment_behind_the_name_of_a_section_or_quotes_around_it_do_not_hide_it() {
        let credentials =
            "[default]\naws_access_key_id = D\n[work] # of the team\naws_access_key_id = W\n";
        let config = "[default]\n[profile \"two words\"]\nregion = r\n";
        let found = |profile: &str| of_profile(config, credentials, profile);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(found("default"), Some(vec![pair("aws_access_key_id", "D")]));
        assert_eq!(found("work"), Some(vec![pair("aws_access_key_id", "W")]));
        assert_eq!(found("two words"), Some(vec![pair("region", "r")]));
    }

    #[test]
    fn the_keys_of_a_role_are_not_those_of_its_profile() {
        let role = ("role_arn", "arn:aws:iam::1:role/r");
        for others in [
            &[("credential_source", "Ec2InstanceMetadata")][..],
            &[("source_profile", "me"), ("aws_access_key_id", "A"), ("aws_secret_access_key", "S")],
            &[("web_identity_token_file", "/t")],
        ] {
            let profile = others.iter().chain([&role]);
            let profile = profile.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let error = settings_of(profile.collect(), "p").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{others:?}");
            assert!(error.to_string().contains("role_arn"), "{error}");
        }
    }

    #[test]
    fn each_variable_for_region_and_endpoint_overrides_the_profile() {
        let pair = |key: &str| (key.to_owned(), "of the profile".to_owned());
        let all = || vec![pair("aws_region"), pair("aws_endpoint_url"), pair("aws_access_key_id")];
        let left = |set: &'static str, has_keys: bool| {
            below_environment(all(), has_keys, &move |name| (name == set).then(String::new))
        };
        assert_eq!(left("", false), all());
        assert_eq!(left("", true), all()[..2]);
        for set in ["AWS_REGION", "AWS_DEFAULT_REGION"] {
            assert_eq!(left(set, false), all()[1..], "{set}");
        }
        for set in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"] {
            assert_eq!(left(set, false), [pair("aws_region"), pair("aws_access_key_id")], "{set}");
        }
    }

    /// The number of settings that the client of the keys `K` takes.
    fn taken<K: FromStr>(name: &str, value: &str) -> Result<usize> {
        recognised::<K>([(name.to_owned(), value.to_owned())]).map(|found| found.len())
    }

    #[test]
    fn settings_that_no_header_can_have_are_refused_without_showing_them() {
        for wrong in ["SECRET\n", "SECRET\r\nx: y", "SECR\u{c9}T", "\u{feff}SECRET"] {
            for name in ["aws_session_token", "token", "access_key_id", "aws_region"] {
                let error = taken::<AmazonS3ConfigKey>(name, wrong).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                let report = error.report();
                assert!(report.contains(name) && !report.contains("SECR"), "{report}");
            }
            for name in ["azure_storage_token", "azure_storage_account_name"] {
                assert!(taken::<AzureConfigKey>(name, wrong).is_err(), "{name}");
            }
            // A setting of others, and one that is no header.
            assert_eq!(taken::<AmazonS3ConfigKey>("aws_other_token", wrong).unwrap(), 0);
            assert_eq!(taken::<AmazonS3ConfigKey>("web_identity_token_file", wrong).unwrap(), 1);
        }
        assert_eq!(taken::<AmazonS3ConfigKey>("aws_session_token", "Secret/+=: 1").unwrap(), 1);
    }

    #[test]
    fn a_connection_string_leads_to_its_own_cloud() {
        let endpoint = |connection: &'static str, named: bool| {
            let found = azure_settings(&move |name| match name {
                "AZURE_STORAGE_CONNECTION_STRING" => Some(connection.to_owned()),
                "AZURE_STORAGE_ENDPOINT" if named => Some("https://h".to_owned()),
                _ => None,
            });
            found
                .into_iter()
                .find(|(key, _)| key == "azure_storage_endpoint")
                .map(|(_, value)| value)
        };
        let china = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a==;EndpointSuffix=core.chinacloudapi.cn";
        assert_eq!(
            endpoint(china, false).as_deref(),
            Some("https://me.blob.core.chinacloudapi.cn")
        );
        assert_eq!(endpoint(china, true), None);
        assert_eq!(endpoint("AccountName=me;EndpointSuffix=core.windows.net", false), None);
        let both = "AccountName=me;EndpointSuffix=s;BlobEndpoint=http://h:1/me";
        assert_eq!(endpoint(both, false).as_deref(), Some("http://h:1/me"));
    }

    #[test]
    fn empty_variables_of_the_environment_are_no_settings() {
        let variables = [
            ("AWS_ACCESS_KEY_ID", "A"),
            ("AWS_SESSION_TOKEN", ""),
            ("AWS_ENDPOINT_URL", ""),
            ("HOME", "/h"),
        ];
        let variables =
            variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let found = settings_in("AWS_", variables.into_iter());
        assert_eq!(found, [("aws_access_key_id".to_owned(), "A".to_owned())]);
    }

    #[test]
    fn what_is_missing_or_not_supported_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, CONFIG).unwrap();
        let ask = |profile: &'static str| {
            let file = file.clone();
            profile_settings(&move |name| match name {
                "AWS_PROFILE" => Some(profile.to_owned()),
                "AWS_CONFIG_FILE" => Some(file.display().to_string()),
                _ => None,
            })
        };
        assert_eq!(ask("none").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(ask("sso").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(ask("lab").unwrap().len(), 2);
        assert_eq!(profile_settings(&|_| None).unwrap(), vec![]);
    }
}
