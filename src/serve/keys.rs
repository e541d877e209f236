//! Keys as users keep them: in options, in key files, and in the hosts file of a target.
//!
//! A key file holds one key as printed by nvme-cli (`nvme gen-dhchap-key`, `nvme gen-tls-key`) or `dlfs key gen`. It
//! must belong to the user or root, and nobody else may read it; so must a hosts file. Errors name the file and never
//! repeat a key.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::str::FromStr;

use zeroize::Zeroizing;

use crate::{Access, HostKeys};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::random;
use dlfs_base::units::Nsid;
use dlfs_io::qpair::ConnectOptions;
use dlfs_io::tls::keyring;
use dlfs_nvme::auth::{ConfiguredPsk, Hash, KeyError, Secret};
use dlfs_nvme::nvme::Nqn;

/// A new DH-HMAC-CHAP secret from the operating system's random numbers.
///
/// # Errors
/// The operating system's error if it provides no random numbers.
pub fn generate_secret(transform: Option<Hash>) -> Result<Secret> {
    let mut bytes = Zeroizing::new([0; 64]);
    random::draw(&mut *bytes)?;
    Ok(Secret::generate(&bytes, transform))
}

/// Reads the secret given in an option: the secret itself, which begins with `DHHC-1:`, or the path of a
/// key file.
///
/// # Errors
/// `InvalidArgument`: the string is not a valid key. For a path, the errors of [`read_secret`].
pub fn secret_of(text_or_path: &str) -> Result<Secret> {
    key_of(text_or_path, PREFIX, MAKE_ONE)
}

/// Reads the TLS PSK given in an option: the PSK itself, which begins with `NVMeTLSkey-1:`, or the path of
/// a key file.
///
/// # Errors
/// The errors of [`secret_of`].
pub fn tls_key_of(text_or_path: &str) -> Result<ConfiguredPsk> {
    key_of(text_or_path, TLS_PREFIX, MAKE_ONE_FOR_TLS)
}

/// Sets the source of the TLS PSK: [`KEYRING`] selects the kernel's keyring `.nvme`, any other string is
/// read as by [`tls_key_of`].
///
/// # Errors
/// The errors of [`tls_key_of`].
pub fn set_tls_key(options: &mut ConnectOptions, text: &str) -> Result<()> {
    if text == KEYRING {
        options.tls_keyring = Some(keyring::NVME.to_owned());
    } else {
        options.tls_key = Some(tls_key_of(text)?);
    }
    Ok(())
}

/// The value of the TLS option that selects the kernel's keyring.
pub const KEYRING: &str = "keyring";

/// Reads the key of a job, given in an option. It has the form of a DH-HMAC-CHAP secret, so that the same programs
/// generate it.
///
/// # Errors
/// The errors of [`secret_of`].
#[doc(hidden)]
pub fn read_job_key(text_or_path: &str) -> Result<Zeroizing<Vec<u8>>> {
    Ok(secret_of(text_or_path)?.bytes().clone())
}

/// Returns whether the value of an option is a key, which `ps` shows to everybody, and not the path of a file.
pub fn is_key_text(text_or_path: &str) -> bool {
    text_or_path.starts_with(PREFIX) || text_or_path.starts_with(TLS_PREFIX)
}

fn key_of<K: FromStr<Err = KeyError>>(
    text_or_path: &str,
    prefix: &str,
    hint: &'static str,
) -> Result<K> {
    if text_or_path.starts_with(prefix) {
        text_or_path.parse().map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("the key is not usable: {error}"))
        })
    } else {
        read_key(Path::new(text_or_path), hint)
    }
}

/// A new TLS PSK from the operating system's random numbers, for the cipher suite with this hash.
///
/// # Errors
/// The operating system's error if it provides no random numbers.
///
/// # Panics
/// If the hash is SHA-512, which no suite has.
pub fn generate_tls_key(hash: Hash) -> Result<ConfiguredPsk> {
    let mut bytes = Zeroizing::new([0; 64]);
    random::draw(&mut *bytes)?;
    Ok(ConfiguredPsk::generate(&bytes, hash))
}

/// Reads the secret in a key file.
///
/// # Errors
/// `NotFound`: the file does not exist. `Refused`: it belongs to another user than this one or root, others may read
/// it, or this user may not. `InvalidArgument`: it is not a regular file, is too long, or holds no key. Otherwise
/// errors of the operating system.
pub fn read_secret(path: &Path) -> Result<Secret> {
    read_key(path, MAKE_ONE)
}

/// Reads the TLS PSK in a key file.
///
/// # Errors
/// The errors of [`read_secret`].
pub fn read_tls_key(path: &Path) -> Result<ConfiguredPsk> {
    read_key(path, MAKE_ONE_FOR_TLS)
}

fn read_key<K: FromStr<Err = KeyError>>(path: &Path, hint: &'static str) -> Result<K> {
    let text = read_private(path, "cannot read the key file")?;
    text.trim().parse().map_err(|error| {
        let message = format!("the file holds no usable key: {error}");
        invalid(message).path(path).hint(hint)
    })
}

/// Reads the hosts file of a target. It lists each host's NQN with its secrets, its TLS PSKs, or both. The
/// subsystem's secret is optional.
///
/// ```toml
/// [[host]]
/// nqn = "nqn.2014-08.org.nvmexpress:uuid:4f1c7a0e-6b1d-4f1e-9d4e-0c1f0a2b3c4d"
/// dhchap_secret = "DHHC-1:..."        # or ["old", "new"] while one replaces the other
/// dhchap_ctrl_secret = "DHHC-1:..."   # for hosts that want the target to prove itself, too
/// concat = true                       # the host must go on inside TLS with a key that this generates
/// tls_key = "NVMeTLSkey-1:..."        # or ["old", "new"]; the host must then connect inside TLS
/// namespaces = [1, 3]                 # all unless given; the others do not exist for the host
/// read_only = true                    # also if hosts may write
/// ```
///
/// # Errors
/// The errors of [`read_secret`]; the message names the host whose entry is wrong.
pub fn read_hosts(path: &Path) -> Result<BTreeMap<Nqn, HostKeys>> {
    let text = read_private(path, "cannot read the hosts file")?;
    let invalid = |message: String| invalid(message).path(path).hint(HOSTS);
    // The parser's own message would repeat the line, including its secret.
    let file: HostsFile = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..at).unwrap_or(&text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let why = reason(error.message());
        invalid(format!("line {line}, column {column} is not valid in a hosts file: {why}"))
    })?;
    let mut hosts = BTreeMap::new();
    for entry in file.host {
        let HostEntry { nqn, dhchap_secret, dhchap_ctrl_secret, concat, tls_key, .. } = entry;
        let unusable = |error| invalid(format!("a key of {nqn}: {error}"));
        let secrets = dhchap_secret.parse::<Secret>().map_err(unusable)?;
        let tls_keys = tls_key.parse::<ConfiguredPsk>().map_err(unusable)?;
        if secrets.is_empty() && tls_keys.is_empty() {
            return Err(invalid(format!("{nqn} has no key: give one, or leave the host out")));
        }
        let ctrl_secret =
            dhchap_ctrl_secret.map(|text| text.parse().map_err(unusable)).transpose()?;
        if ctrl_secret.is_some() && secrets.is_empty() {
            let message = format!("{nqn} has dhchap_ctrl_secret and no dhchap_secret");
            return Err(invalid(message));
        }
        let namespaces = entry.namespaces.map(|nsids| nsids.into_iter().map(Nsid).collect());
        let access = Access { namespaces, read_only: entry.read_only };
        if concat && secrets.is_empty() {
            return Err(invalid(format!(
                "{nqn} has concat and no dhchap_secret to generate keys with"
            )));
        }
        let keys = HostKeys { secrets, ctrl_secret, must_concat: concat, tls_keys, access };
        if hosts.insert(nqn.clone(), keys).is_some() {
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
    #[serde(default)]
    dhchap_secret: Texts,
    dhchap_ctrl_secret: Option<String>,
    #[serde(default)]
    concat: bool,
    #[serde(default)]
    tls_key: Texts,
    namespaces: Option<Vec<u32>>,
    #[serde(default)]
    read_only: bool,
}

/// One key, or several, of a host.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
}

impl Default for Texts {
    fn default() -> Texts {
        Texts::Several(Vec::new())
    }
}

impl Texts {
    fn parse<K: FromStr>(&self) -> std::result::Result<Vec<K>, K::Err> {
        match self {
            Texts::One(text) => Ok(vec![text.parse()?]),
            Texts::Several(texts) => texts.iter().map(|text| text.parse()).collect(),
        }
    }
}

/// The parser's message, unless it may contain a key.
fn reason(message: &str) -> &str {
    if message.contains(PREFIX) || message.contains(TLS_PREFIX) {
        "a value is of the wrong kind"
    } else {
        message
    }
}

/// Reads a file of at most [`MAX_FILE_BYTES`] that belongs to this user or root, and that only its owner may read.
/// `cannot` is the message if the operating system refuses.
fn read_private(path: &Path, cannot: &'static str) -> Result<Zeroizing<String>> {
    let about = |error: std::io::Error| Error::of_file(cannot, path, error).hint(READABLE);
    refuse_other_kinds(path, &std::fs::metadata(path).map_err(about)?)?;
    // Does not block if a FIFO has replaced the file since the check.
    let mut file = File::options();
    let mut file = file
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(about)?;
    let metadata = file.metadata().map_err(about)?;
    refuse_other_kinds(path, &metadata)?;
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
        return Err(
            invalid(format!("{} bytes are too many for a key file", metadata.len())).path(path)
        );
    }
    let mut text = Zeroizing::new(String::with_capacity(metadata.len() as usize + 1));
    file.by_ref().take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(about)?;
    Ok(text)
}

fn refuse_other_kinds(path: &Path, metadata: &Metadata) -> Result<()> {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(invalid(format!("a key file is a regular file, and this is {kind}")).path(path).hint(OWN))
}

const PREFIX: &str = "DHHC-1:";
const TLS_PREFIX: &str = "NVMeTLSkey-1:";
const MAX_FILE_BYTES: u64 = 16 << 20;
const OWN: &str = "copy it to a file of your own with mode 0600";
const READABLE: &str =
    "name a file that exists and that this user may read; `dlfs key gen` makes a key";
const MAKE_ONE: &str = "`dlfs key gen` and `nvme gen-dhchap-key` make keys";
const MAKE_ONE_FOR_TLS: &str = "`dlfs key gen --tls` and `nvme gen-tls-key` make keys";
const HOSTS: &str = "`dlfs key --help` shows a hosts file";

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
    fn a_key_of_tls_is_read_as_a_secret_is_and_each_is_refused_for_the_other() {
        for hash in [Hash::Sha256, Hash::Sha384] {
            let key = generate_tls_key(hash).unwrap();
            let text = key.to_text();
            assert!(is_key_text(&text) && !is_key_text("/a/path"));
            assert!(tls_key_of(&text).unwrap() == key);
            let file = file(&format!("{}\n", *text), 0o600);
            assert!(tls_key_of(file.path().to_str().unwrap()).unwrap() == key);
            let error = read_secret(file.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(!format!("{error:?}").contains(&text[20..30]), "{error:?}");
        }
        let shared = file(&generate_tls_key(Hash::Sha256).unwrap().to_text(), 0o644);
        assert_eq!(read_tls_key(shared.path()).unwrap_err().kind(), ErrorKind::Refused);
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
        assert!(missing.report().starts_with("cannot read the key file"), "{missing:?}");
        assert!(missing.report().contains("dlfs key gen"), "{missing:?}");
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
        let of_tls = [(); 2].map(|()| generate_tls_key(Hash::Sha384).unwrap());
        let with_tls = format!(
            "[[host]]\nnqn = \"nqn.2026-11.io.dlfs:a\"\ntls_key = [{:?}, {:?}]\n",
            *of_tls[0].to_text(),
            *of_tls[1].to_text()
        );
        let hosts = read_hosts(file(&with_tls, 0o600).path()).unwrap();
        let a = &hosts[&Nqn::new("nqn.2026-11.io.dlfs:a").unwrap()];
        assert!(a.tls_keys == of_tls && a.secrets.is_empty() && a.access == Access::default());
        let limited = format!("{with_tls}namespaces = [1, 3]\nread_only = true\n");
        let hosts = read_hosts(file(&limited, 0o600).path()).unwrap();
        let access = &hosts[&Nqn::new("nqn.2026-11.io.dlfs:a").unwrap()].access;
        assert!(access.read_only && access.namespaces == Some(vec![Nsid(1), Nsid(3)]));
        let key = good.split('"').find(|part| part.starts_with(PREFIX)).unwrap();
        let twice = good.replace("dlfs:b", "dlfs:a");
        let damaged = good.replacen(&key[10..14], "%%%%", 1);
        let misspelt = good.replacen("dhchap_secret", "dhchap_secrets", 1);
        let unfinished = good.replacen("\", \"", "\", ", 1);
        for (wrong, why) in [
            (&twice, "two entries"),
            (&damaged, "a key of"),
            (&misspelt, "line 3, column 1 is"),
            (&unfinished, "line 3, column"),
            (&String::new(), "no host"),
        ] {
            let error = read_hosts(file(wrong, 0o600).path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(why), "{error}");
            assert!(!format!("{error:?}").contains(&key[20..]), "{error:?}");
        }
    }
}
