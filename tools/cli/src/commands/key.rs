//! `dlfs key`: keys for DH-HMAC-CHAP and TLS.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};

use dlfs::auth::Hash;
use dlfs::keys::{generate_secret, generate_tls_key, read_hosts, read_secret, read_tls_key};
use dlfs::target::HostKeys;

use crate::exit::{Failure, Outcome};
use crate::out::{Out, counted};

/// Generate and check the keys with which hosts and targets authenticate each other, by DH-HMAC-CHAP or TLS
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum KeyCommand {
    /// Print a new key, in nvme-cli's format
    Gen {
        /// A key of TLS; its hash, sha256 (the default) or sha384, selects the cipher suite
        #[arg(long)]
        tls: bool,
        /// The hash that transforms the key, as in `nvme gen-dhchap-key --hmac`
        #[arg(long, value_enum, default_value_t = HashArg::None)]
        hash: HashArg,
    },
    /// Check a key file or a hosts file, without showing any secret
    Check {
        /// A file with one key, or a hosts file of `dlfs serve`
        file: PathBuf,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HashArg {
    /// The key is used as it is printed
    None,
    Sha256,
    Sha384,
    Sha512,
}

impl HashArg {
    fn hash(self) -> Option<Hash> {
        match self {
            HashArg::None => None,
            HashArg::Sha256 => Some(Hash::Sha256),
            HashArg::Sha384 => Some(Hash::Sha384),
            HashArg::Sha512 => Some(Hash::Sha512),
        }
    }
}

pub(crate) fn run(command: KeyCommand) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    match command {
        KeyCommand::Gen { tls: true, hash } => {
            if hash == HashArg::Sha512 {
                let message = "--hash sha512: a key of TLS has sha256 or sha384";
                return Err(Failure::Usage(message.to_owned()));
            }
            let hash = hash.hash().unwrap_or(Hash::Sha256);
            out.line(generate_tls_key(hash)?.to_text().as_str())?;
        }
        KeyCommand::Gen { tls: false, hash } => {
            let secret = generate_secret(hash.hash())?;
            out.line(secret.to_text().as_str())?;
        }
        KeyCommand::Check { file } => match read_secret(&file) {
            Ok(secret) => match secret.transform() {
                None => out.line("one key, used as it is")?,
                Some(hash) => out.line(format!("one key, transformed with {hash}"))?,
            },
            Err(secret_error) => check_other_file(&mut out, &file, secret_error)?,
        },
    }
    out.end(Outcome::Done)
}

/// Checks a file that has no DH-HMAC-CHAP key: it may have a key of TLS, or be a hosts file. `secret_error` is the
/// error of reading a DH-HMAC-CHAP key.
fn check_other_file(out: &mut Out, file: &Path, secret_error: dlfs::Error) -> Result<(), Failure> {
    // A file that is not regular may never end.
    if !std::fs::metadata(file).is_ok_and(|found| found.is_file()) {
        return Err(secret_error.into());
    }
    let begins_with = |start: &[u8]| {
        std::fs::read(file).is_ok_and(|text| text.trim_ascii_start().starts_with(start))
    };
    // The prefix shows the intended format.
    if begins_with(b"NVMeTLSkey-1:") {
        let key = read_tls_key(file)?;
        let suite =
            if key.hash() == Hash::Sha256 { "AES_128_GCM_SHA256" } else { "AES_256_GCM_SHA384" };
        return out.line(format!("one key of TLS, for TLS_{suite}"));
    }
    match read_hosts(file) {
        Ok(hosts) => {
            hosts.iter().try_for_each(|(nqn, keys)| out.line(format!("{nqn}: {}", describe(keys))))
        }
        Err(hosts_error) => {
            Err(if begins_with(b"[[host]]") { hosts_error } else { secret_error }.into())
        }
    }
}

/// The keys of a host in a hosts file, in words.
fn describe(keys: &HostKeys) -> String {
    let mutual = match keys.ctrl_secret {
        Some(_) => "the target proves itself on demand",
        None => "the target has no key to prove itself with",
    };
    let secrets = format!("{} of the host; {mutual}", counted(keys.secrets.len() as u64, "key"));
    let tls = format!(
        "{} of TLS, without which it is refused",
        counted(keys.tls_keys.len() as u64, "key")
    );
    match (keys.secrets.is_empty(), keys.tls_keys.is_empty()) {
        (false, true) => secrets,
        (true, _) => tls,
        (false, false) => format!("{secrets}; {tls}"),
    }
}

const EXAMPLES: &str = "\
Examples:
  (umask 077; dlfs key gen > host.key)         # a file that only you can read
  dlfs key check host.key
  dlfs read nvme-tcp://HOST/NQN --hostnqn NQN --dhchap-secret host.key
  (umask 077; dlfs key gen --tls > tls.key)    # for --tls-key

A hosts file, for dlfs serve --hosts, also with mode 0600:
  [[host]]
  nqn = \"nqn.2026-11.com.example:node7\"
  dhchap_secret = \"DHHC-1:00:...:\"            # or [\"OLD\", \"NEW\"] while one replaces the other
  dhchap_ctrl_secret = \"DHHC-1:00:...:\"       # optional: with this the target proves itself
  concat = true                               # optional: the host must go on inside TLS (--concat)
  tls_key = \"NVMeTLSkey-1:01:...:\"            # or several; the host must then connect inside TLS
  namespaces = [1, 3]                         # optional: the others do not exist for the host
  read_only = true                            # optional: also if hosts may write (--writable)";
