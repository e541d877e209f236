//! Key of a job, by which its ranks authenticate each other.
//!
//! Every connection between ranks has keys of its own. HKDF (RFC 5869) with SHA-256 derives them from the
//! job's key, the round, the NQN of the host that connects and the rank that it connects to. So the keys of
//! one connection do not help to attack another. Both sides authenticate (DH-HMAC-CHAP in both directions),
//! or connect inside TLS with such a key (a TLS PSK), which proves the same.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use dlfs_base::error::{Result, invalid};
use dlfs_base::random::draw;
use dlfs_io::qpair::ConnectOptions;
use dlfs_nvme::auth::{ConfiguredPsk, Group, Hash, Secret};
use dlfs_nvme::nvme::Nqn;
use dlfs_target::keys::read_job_key;
use dlfs_target::{Access, HostKeys};

/// Source of a job's key: the same on all ranks of the job.
#[derive(Clone, PartialEq, Eq)]
pub enum JobKey {
    /// From the user.
    Given {
        /// The user's option (a path or the key itself), for processes that attach to this rank.
        said: Zeroizing<String>,
        /// The key.
        key: Zeroizing<Vec<u8>>,
    },
    /// Rank 0 generates the key, and the rendezvous carries it. This protects against everybody who cannot
    /// read the rendezvous.
    Drawn,
}

impl JobKey {
    /// Parses the option: `rendezvous`, the path of a key file, or the key itself, which begins with
    /// `DHHC-1:`.
    ///
    /// # Errors
    /// As [`keys::secret_of`](dlfs_target::keys::secret_of).
    pub fn of(text: &str) -> Result<JobKey> {
        match text {
            RENDEZVOUS => Ok(JobKey::Drawn),
            _ => Ok(JobKey::Given { said: text.to_owned().into(), key: read_job_key(text)? }),
        }
    }

    /// The string that [`JobKey::of`] parses to this value.
    pub(super) fn said(&self) -> &str {
        match self {
            JobKey::Given { said, .. } => said,
            JobKey::Drawn => RENDEZVOUS,
        }
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobKey::Given { .. } => "JobKey::Given",
            JobKey::Drawn => "JobKey::Drawn",
        })
    }
}

/// The way in which the ranks of a job authenticate each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerKeys {
    /// The key of the job.
    pub key: JobKey,
    /// Makes ranks connect inside TLS with the key, which needs OpenSSL 3. Otherwise they
    /// authenticate by DH-HMAC-CHAP, and data are sent in clear.
    pub tls: bool,
}

/// The keys of a rank, as its record describes them. A rank with other keys than the rest is reported by name
/// when the job starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyMark {
    /// Equal on ranks with the same key; 0 if rank 0 generates the key. The key cannot be guessed from it.
    fingerprint: u64,
    /// Set if the rank connects inside TLS.
    pub(super) tls: bool,
    /// The generated key, in the record of rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    drawn: Option<Hidden>,
}

/// A string that `Debug` does not print.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Hidden(String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
}

impl KeyMark {
    /// The mark of `rank` in `round`. Rank 0 generates a key if the user has given none.
    ///
    /// # Errors
    /// The operating system provides no random numbers.
    pub(super) fn new(keys: &PeerKeys, round: &str, rank: u32) -> Result<KeyMark> {
        let mut mark = KeyMark { fingerprint: 0, tls: keys.tls, drawn: None };
        match &keys.key {
            JobKey::Given { key, .. } => {
                let digest = Prk::extract(key).expand(b"fingerprint", &[round.as_bytes()]);
                let (first, _) = digest.as_ref().split_first_chunk().expect("32 bytes");
                mark.fingerprint = u64::from_le_bytes(*first).max(1);
            }
            JobKey::Drawn if rank == 0 => {
                let mut bytes = Zeroizing::new([0; 64]);
                draw(&mut *bytes)?;
                mark.drawn = Some(Hidden(Secret::generate(&bytes, None).to_text().to_string()));
            }
            JobKey::Drawn => {}
        }
        Ok(mark)
    }

    /// Describes the parts of a mark that must be the same on all ranks, without revealing a key.
    pub(super) fn describe(mark: Option<&KeyMark>) -> String {
        match mark {
            None => "none".to_owned(),
            Some(KeyMark { fingerprint, tls, .. }) => {
                let key = match fingerprint {
                    0 => "from the rendezvous".to_owned(),
                    fingerprint => format!("with the mark {fingerprint:016x}"),
                };
                format!("{key}{}", if *tls { ", for TLS" } else { "" })
            }
        }
    }
}

/// The keys between the ranks of one round.
#[derive(Clone)]
pub(super) struct RoundKeys {
    prk: Prk,
    round: String,
    tls: bool,
}

impl RoundKeys {
    /// Keys of a rank with these `keys`; `first` is the record of rank 0.
    ///
    /// # Errors
    /// `InvalidArgument`: the rendezvous has not carried the key that rank 0 generated.
    pub(super) fn new(keys: &PeerKeys, first: Option<&KeyMark>, round: &str) -> Result<RoundKeys> {
        let prk = match &keys.key {
            JobKey::Given { key, .. } => Prk::extract(key),
            JobKey::Drawn => {
                let drawn = first.and_then(|mark| mark.drawn.as_ref()).ok_or_else(|| {
                    invalid("the record of rank 0 has no key for the job")
                        .hint("start all ranks of a job alike")
                })?;
                Prk::extract(&read_job_key(&drawn.0)?)
            }
        };
        Ok(RoundKeys { prk, round: round.to_owned(), tls: keys.tls })
    }

    /// The keys of a rendezvous on a port of rank 0, for [`host_of_all`]. Fails if the rendezvous itself must
    /// carry the key.
    pub(super) fn of_meeting(keys: &PeerKeys) -> Result<RoundKeys> {
        RoundKeys::new(keys, None, MEETING)
    }

    /// The keys for mutual authentication between `hosts` and rank `to`.
    pub(super) fn of_hosts(&self, hosts: impl IntoIterator<Item = Nqn>, to: u32) -> Hosts {
        hosts.into_iter().map(|host| (host.clone(), self.host_keys(&host, to))).collect()
    }

    /// The keys by which `host` connects to rank `to`, for the target of `to`.
    fn host_keys(&self, host: &Nqn, to: u32) -> HostKeys {
        let mut keys = HostKeys {
            access: Access { namespaces: None, read_only: true },
            ..HostKeys::default()
        };
        if self.tls {
            keys.tls_keys = vec![self.psk(host, to)]
        } else {
            keys.secrets = vec![self.secret(b"host", host, to)];
            keys.ctrl_secret = Some(self.secret(b"controller", host, to));
        }
        keys
    }

    /// The options `connect` with the keys by which `host` connects to rank `to`.
    pub(super) fn connect(&self, connect: &ConnectOptions, host: &Nqn, to: u32) -> ConnectOptions {
        let mut connect = ConnectOptions { hostnqn: Some(host.clone()), ..connect.clone() };
        if self.tls {
            connect.tls_key = Some(self.psk(host, to))
        } else {
            connect.dhchap_secret = Some(self.secret(b"host", host, to));
            connect.dhchap_ctrl_secret = Some(self.secret(b"controller", host, to));
        }
        connect
    }

    /// A secret of DH-HMAC-CHAP between `host` and rank `to`; `of` names the side that proves that it has the secret.
    fn secret(&self, of: &[u8], host: &Nqn, to: u32) -> Secret {
        Secret::generate(&self.pair(of, host, to), None)
    }

    /// The TLS PSK between `host` and rank `to`.
    fn psk(&self, host: &Nqn, to: u32) -> ConfiguredPsk {
        ConfiguredPsk::generate(&self.pair(b"tls", host, to), Hash::Sha256)
    }

    /// The bytes from which a key between `host` and rank `to` is generated. Only 32 of the 64 are filled: neither a
    /// secret without a transform nor a PSK with SHA-256 uses more.
    fn pair(&self, of: &[u8], host: &Nqn, to: u32) -> Zeroizing<[u8; 64]> {
        let parts = [self.round.as_bytes(), host.as_str().as_bytes(), &to.to_le_bytes()];
        let mut bytes = Zeroizing::new([0; 64]);
        bytes[..32].copy_from_slice(self.prk.expand(of, &parts).as_ref());
        bytes
    }
}

/// The options `connect` without the keys for the data set's targets: peers do not have those keys.
pub(super) fn without_keys(connect: &ConnectOptions) -> ConnectOptions {
    ConnectOptions {
        dhchap_secret: None,
        dhchap_ctrl_secret: None,
        concat: false,
        tls_key: None,
        tls_keyring: None,
        ..connect.clone()
    }
}

/// Keys of hosts, by NQN.
pub(super) type Hosts = std::collections::BTreeMap<Nqn, HostKeys>;

/// The NQN that all hosts use for a rendezvous on a port of rank 0, since rank 0 does not know their own NQNs
/// yet.
pub(super) fn host_of_all() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:rank").expect("it is short and has no control characters")
}

/// The Diffie-Hellman groups between ranks: none. A group protects keys that can be guessed, and a job's key
/// cannot be guessed. Also, all nodes connect to each other when a job starts, and a target limits the
/// exponentiations of hosts that have not authenticated yet to 2 % of a core: with a group, many nodes would
/// wait for seconds.
pub(super) const GROUPS: [Group; 1] = [Group::Null];

/// The pseudorandom key of HKDF, from which keys are expanded.
#[derive(Clone)]
struct Prk(dlfs_nvme::auth::Digest);

impl Prk {
    /// The extraction step of HKDF.
    fn extract(key: &[u8]) -> Prk {
        Prk(Hash::Sha256.hmac(SALT, &[key]))
    }

    /// The first block of the expansion: 32 bytes. The length of each part precedes it, so that two different
    /// lists of parts never give the same bytes.
    fn expand(&self, of: &[u8], parts: &[&[u8]]) -> dlfs_nvme::auth::Digest {
        let mut info = of.to_vec();
        for part in parts {
            info.extend_from_slice(&(part.len() as u32).to_le_bytes());
            info.extend_from_slice(part);
        }
        Hash::Sha256.hmac(self.0.as_ref(), &[&info, &[1]])
    }
}

/// The user's option for [`JobKey::Drawn`].
const RENDEZVOUS: &str = "rendezvous";
/// Salt of HKDF.
const SALT: &[u8] = b"dlfs peers";
/// Stands for the round during the rendezvous: rank 0 serves several rounds at one port.
const MEETING: &str = "rendezvous of ranks";

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::error::ErrorKind;
    use dlfs_target::keys::generate_secret;

    fn given() -> PeerKeys {
        let text = generate_secret(None).unwrap().to_text();
        PeerKeys { key: JobKey::of(&text).unwrap(), tls: false }
    }

    fn host(name: &str) -> Nqn {
        Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
    }

    #[test]
    fn each_connection_has_keys_of_its_own_and_both_sides_have_the_same() {
        let keys = given();
        let others = given();
        let [one, again, next, other] = [(&keys, "a"), (&keys, "a"), (&keys, "b"), (&others, "a")]
            .map(|(keys, round)| RoundKeys::new(keys, None, round).unwrap());
        let secrets = |keys: &RoundKeys, host: &Nqn, to| {
            let connect = keys.connect(&ConnectOptions::default(), host, to);
            let accepted = keys.of_hosts([host.clone()], to).remove(host).unwrap();
            assert!(Some(&accepted.secrets[0]) == connect.dhchap_secret.as_ref());
            assert!(accepted.ctrl_secret == connect.dhchap_ctrl_secret);
            assert_eq!(connect.hostnqn.as_ref(), Some(host));
            [connect.dhchap_secret.unwrap(), connect.dhchap_ctrl_secret.unwrap()]
        };
        assert!(secrets(&one, &host("x"), 3) == secrets(&again, &host("x"), 3));
        let all: Vec<Secret> = [
            secrets(&one, &host("x"), 3),
            secrets(&one, &host("x"), 4),
            secrets(&one, &host("y"), 3),
            secrets(&next, &host("x"), 3),
            secrets(&other, &host("x"), 3),
        ]
        .concat();
        for (index, secret) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != secret), "{index}");
        }
    }

    #[test]
    fn ranks_with_the_same_key_have_the_same_mark_and_a_mark_reveals_no_key() {
        let keys = given();
        let mark = |keys: &PeerKeys, rank| KeyMark::new(keys, "a", rank).unwrap();
        assert_eq!(mark(&keys, 0), mark(&keys, 5));
        let describe = |mark: &KeyMark| KeyMark::describe(Some(mark));
        assert_ne!(describe(&mark(&keys, 0)), describe(&mark(&given(), 0)));
        let with_tls = PeerKeys { tls: true, ..keys.clone() };
        assert_ne!(describe(&mark(&keys, 0)), describe(&mark(&with_tls, 0)));
        let drawn = PeerKeys { key: JobKey::Drawn, tls: false };
        let first = mark(&drawn, 0);
        let second = mark(&drawn, 1);
        assert_eq!(describe(&first), describe(&second));
        assert!(!format!("{first:?} {drawn:?} {keys:?}").contains("DHHC"));
        assert!(RoundKeys::new(&drawn, Some(&second), "a").is_err());
        let [a, b] = [0, 1].map(|_| RoundKeys::new(&drawn, Some(&first), "a").unwrap());
        assert!(a.secret(b"host", &host("x"), 1) == b.secret(b"host", &host("x"), 1));
        let other = KeyMark::new(&drawn, "a", 0).unwrap();
        let other = RoundKeys::new(&drawn, Some(&other), "a").unwrap();
        assert!(a.secret(b"host", &host("x"), 1) != other.secret(b"host", &host("x"), 1));
    }

    #[test]
    fn a_job_key_is_a_file_or_a_text_and_says_so_otherwise() {
        assert_eq!(JobKey::of("rendezvous").unwrap(), JobKey::Drawn);
        let error = JobKey::of("DHHC-1:00:short:").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(JobKey::of("/nonexistent/key").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
