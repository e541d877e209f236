//! `dlfs key`: keys for DH-HMAC-CHAP.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use dlfs::auth::{Hash, Secret};
use dlfs::keys::{generate_secret, read_hosts, read_secret};

use crate::exit::{Failure, Outcome};
use crate::out::Out;

/// Generate and check the keys with which hosts and targets authenticate each other
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Print a new key, in nvme-cli's format
    Gen {
        /// The hash that transforms the key, as in `nvme gen-dhchap-key --hmac`
        #[arg(long, value_enum, default_value_t = HashArg::None)]
        hash: HashArg,
    },
    /// Check a key file or a hosts file, without showing any secret
    Check {
        /// A file with one key, or a hosts file of `dlfs serve`
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HashArg {
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

pub(crate) fn run(args: KeyArgs) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    match args.command {
        KeyCommand::Gen { hash } => {
            let secret = generate_secret(hash.hash())?;
            out.line(secret.to_text().as_str())?;
        }
        KeyCommand::Check { file } => match read_secret(&file) {
            Ok(secret) => out.line(format!("one key, {}", form(&secret)))?,
            Err(of_key) => match read_hosts(&file) {
                Ok(hosts) => {
                    for (nqn, keys) in &hosts {
                        let mutual = match keys.ctrl_secret {
                            Some(_) => "the target proves itself on demand",
                            None => "the target has no key to prove itself with",
                        };
                        out.line(format!(
                            "{nqn}: {} of the host; {mutual}",
                            count(keys.secrets.len())
                        ))?;
                    }
                }
                // The first word tells which of the two it was meant to be.
                Err(of_hosts) => {
                    let is_hosts =
                        std::fs::read(&file).is_ok_and(|text| text.starts_with(b"[[host]]"));
                    return Err(if is_hosts { of_hosts } else { of_key }.into());
                }
            },
        },
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn form(secret: &Secret) -> String {
    match secret.transform() {
        None => "used as it is".to_owned(),
        Some(hash) => format!("transformed with {hash}"),
    }
}

fn count(keys: usize) -> String {
    if keys == 1 { "1 key".to_owned() } else { format!("{keys} keys") }
}

const EXAMPLES: &str = "\
Examples:
  (umask 077; dlfs key gen > host.key)         # a file that only you can read
  dlfs key check host.key
  dlfs read nvme-tcp://HOST/NQN --hostnqn NQN --dhchap-secret host.key

A hosts file, for dlfs serve --hosts, also with mode 0600:
  [[host]]
  nqn = \"nqn.2026-11.com.example:node7\"
  dhchap_secret = \"DHHC-1:00:...:\"            # or [\"OLD\", \"NEW\"] while one replaces the other
  dhchap_ctrl_secret = \"DHHC-1:00:...:\"       # optional: with this the target proves itself";
