//! AWS profiles: credentials, region and endpoint from `~/.aws/config` and `~/.aws/credentials`.

use std::path::{Path, PathBuf};

use dlfs_base::error::{Error, ErrorKind, Result};

/// The settings of the profile that the environment names, or of the profile `default`.
///
/// # Errors
/// `NotFound`: neither file has the named profile. `Unsupported`: the profile's credentials come from a
/// program, single sign-on or another profile.
pub(super) fn profile_settings(
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

/// Names and values of settings.
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

/// The settings of the section whose name `is_wanted`; `None` if there is no such section. Skips indented lines, which
/// belong to the setting above.
fn section(text: &str, is_wanted: impl Fn(&str) -> bool) -> Option<Pairs> {
    let mut found: Option<Pairs> = None;
    let mut is_inside = false;
    for line in text.lines().filter(|line| !line.starts_with(['#', ';', ' ', '\t'])) {
        if let Some(name) =
            line.trim_end().strip_prefix('[').and_then(|line| line.strip_suffix(']'))
        {
            is_inside = is_wanted(name.trim());
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
