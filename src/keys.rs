//! Reads keys as users keep them: texts, files, and the hosts file of a target.
//!
//! A key file holds one key as printed by nvme-cli (`nvme gen-dhchap-key`) or `dlfs key gen`. It
//! must belong to the user or root, and nobody else may read it. Errors name the file and never
//! repeat a part of its text.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use zeroize::Zeroizing;

use crate::auth::{Hash, Secret};
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::Nqn;
use crate::random;
use crate::target::HostKeys;

/// A new DH-HMAC-CHAP secret from the operating system's random numbers.
///
/// # Errors
/// The operating system provides none.
pub fn generate_secret(transform: Option<Hash>) -> Result<Secret> {
    let mut bytes = Zeroizing::new([0; 64]);
    random::draw(&mut *bytes)?;
    Ok(Secret::generate(&bytes, transform))
}

/// The secret that an option gives: the key itself, which begins with `DHHC-1:`, or the path of a
/// key file.
///
/// # Errors
/// `InvalidArgument`: the text is not a key; otherwise those of [`read_secret`].
pub fn secret_of(text_or_path: &str) -> Result<Secret> {
    match text_or_path.starts_with(PREFIX) {
        true => text_or_path.parse().map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("the key is not usable: {error}"))
        }),
        false => read_secret(Path::new(text_or_path)),
    }
}

/// Reads the secret in a key file.
///
/// # Errors
/// `NotFound`: there is no such file. `Refused`: others may read it. `InvalidArgument`: it holds no
/// key.
pub fn read_secret(path: &Path) -> Result<Secret> {
    let text = read_private(path)?;
    text.trim().parse().map_err(|error| {
        let message = format!("the file holds no usable key: {error}");
        Error::new(ErrorKind::InvalidArgument, message).path(path).hint(MAKE_ONE)
    })
}

/// The hosts file of a target: for each host its NQN, its secret or several, and the subsystem's
/// secret.
///
/// ```toml
/// [[host]]
/// nqn = "nqn.2014-08.org.nvmexpress:uuid:4f1c7a0e-6b1d-4f1e-9d4e-0c1f0a2b3c4d"
/// dhchap_secret = "DHHC-1:..."        # or ["old", "new"] while one replaces the other
/// dhchap_ctrl_secret = "DHHC-1:..."   # for hosts that want the target to prove itself, too
/// ```
///
/// # Errors
/// As [`read_secret`]; the message names the host whose entry is wrong.
pub fn read_hosts(path: &Path) -> Result<BTreeMap<Nqn, HostKeys>> {
    let text = read_private(path)?;
    let invalid =
        |message: String| Error::new(ErrorKind::InvalidArgument, message).path(path).hint(HOSTS);
    // The parser's own message would show the line, including its secret.
    let file: HostsFile = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text[..at].matches('\n').count() + 1;
        invalid(format!("line {line} is not valid in a hosts file: {}", reason(error.message())))
    })?;
    let mut hosts = BTreeMap::new();
    for HostEntry { nqn, dhchap_secret, dhchap_ctrl_secret } in file.host {
        let parse = |text: &String| {
            text.parse::<Secret>().map_err(|error| invalid(format!("a key of {nqn}: {error}")))
        };
        let secrets = match &dhchap_secret {
            Secrets::One(text) => vec![parse(text)?],
            Secrets::Several(texts) => texts.iter().map(parse).collect::<Result<_>>()?,
        };
        if secrets.is_empty() {
            return Err(invalid(format!("{nqn} has no key: give one, or leave the host out")));
        }
        let ctrl_secret = dhchap_ctrl_secret.as_ref().map(parse).transpose()?;
        if hosts.insert(nqn.clone(), HostKeys { secrets, ctrl_secret }).is_some() {
            return Err(invalid(format!("{nqn} has two entries: put its keys into one")));
        }
    }
    if hosts.is_empty() {
        return Err(invalid("the file names no host".to_owned()));
    }
    Ok(hosts)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsFile {
    #[serde(default)]
    host: Vec<HostEntry>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    nqn: Nqn,
    dhchap_secret: Secrets,
    dhchap_ctrl_secret: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Secrets {
    One(String),
    Several(Vec<String>),
}

/// The parser's message, unless it may repeat a value.
fn reason(message: &str) -> &str {
    if message.contains(PREFIX) { "a value is of the wrong kind" } else { message }
}

/// The text of a file that only its owner may read.
fn read_private(path: &Path) -> Result<Zeroizing<String>> {
    let about = |error: std::io::Error| Error::from(error).path(path);
    let mut file = File::open(path).map_err(about)?;
    let metadata = file.metadata().map_err(about)?;
    let mine = rustix::process::geteuid().as_raw();
    if ![0, mine].contains(&metadata.uid()) {
        let message = "the key file belongs to another user";
        return Err(Error::new(ErrorKind::Refused, message).path(path).hint(OWN));
    }
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        let message = format!("others may read the key file, whose mode is {mode:04o}");
        return Err(Error::new(ErrorKind::Refused, message).path(path).hint("chmod 600 it"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        let message = format!("{} bytes are too many for a key file", metadata.len());
        return Err(Error::new(ErrorKind::InvalidArgument, message).path(path));
    }
    let mut text = Zeroizing::new(String::with_capacity(metadata.len() as usize + 1));
    file.by_ref().take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(about)?;
    Ok(text)
}

const PREFIX: &str = "DHHC-1:";
const MAX_FILE_BYTES: u64 = 16 << 20;
const OWN: &str = "copy it to a file of your own with mode 0600";
const MAKE_ONE: &str = "`dlfs key gen` and `nvme gen-dhchap-key` make keys";
const HOSTS: &str = "see `dlfs serve --help` for an example of a hosts file";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_key_is_the_same_from_a_text_and_from_a_private_file() {
        for transform in [None, Some(Hash::Sha256), Some(Hash::Sha512)] {
            let secret = generate_secret(transform).unwrap();
            let text = secret.to_text();
            assert!(secret_of(&text).unwrap() == secret);
            let file = file(&format!("{}\n", *text), 0o600);
            assert!(secret_of(file.path().to_str().unwrap()).unwrap() == secret);
        }
        assert!(generate_secret(None).unwrap() != generate_secret(None).unwrap());
    }

    #[test]
    fn a_file_that_others_may_read_or_that_holds_no_key_is_refused_without_repeating_it() {
        let text = generate_secret(None).unwrap().to_text();
        let error = read_secret(file(&text, 0o640).path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("0640"), "{error}");
        let changed = text.replace("DHHC-1:00:", "DHHC-1:01:A");
        let error = read_secret(file(&changed, 0o600).path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(!format!("{error:?}").contains(&text[12..20]), "{error:?}");
        let missing = read_secret(Path::new("/nonexistent/key")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_hosts_file_gives_each_host_its_keys_and_mistakes_are_named_without_the_keys() {
        let [one, two, three] = [(); 3].map(|()| generate_secret(None).unwrap());
        let text = |secret: &Secret| secret.to_text().to_string();
        let good = format!(
            "[[host]]\nnqn = \"nqn.2026-11.io.dlfs:a\"\ndhchap_secret = [{:?}, {:?}]\n\n\
             [[host]]\nnqn = \"nqn.2026-11.io.dlfs:b\"\ndhchap_secret = {:?}\ndhchap_ctrl_secret = {:?}\n",
            text(&one),
            text(&two),
            text(&three),
            text(&one)
        );
        let hosts = read_hosts(file(&good, 0o600).path()).unwrap();
        let a = &hosts[&Nqn::new("nqn.2026-11.io.dlfs:a").unwrap()];
        assert!(a.secrets == [one.clone(), two] && a.ctrl_secret.is_none());
        let b = &hosts[&Nqn::new("nqn.2026-11.io.dlfs:b").unwrap()];
        assert!(b.secrets == [three] && b.ctrl_secret == Some(one));
        let key = good.split('"').find(|part| part.starts_with(PREFIX)).unwrap();
        let twice = good.replace("dlfs:b", "dlfs:a");
        let damaged = good.replacen(&key[10..14], "%%%%", 1);
        let misspelt = good.replacen("dhchap_secret", "dhchap_secrets", 1);
        let unfinished = good.replacen("\", \"", "\", ", 1);
        for (wrong, why) in [
            (&twice, "two entries"),
            (&damaged, "a key of"),
            (&misspelt, "line"),
            (&unfinished, "line"),
            (&String::new(), "no host"),
        ] {
            let error = read_hosts(file(wrong, 0o600).path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(why), "{error}");
            assert!(!format!("{error:?}").contains(&key[20..]), "{error:?}");
        }
    }
}
