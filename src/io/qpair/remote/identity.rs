//! The identity of this host: its NQN, its identifier and its secrets.

use std::fs;

use xxhash_rust::xxh3::xxh3_128;

use crate::qpair::ConnectOptions;
use crate::qpair::session::{Credentials, HostIdentity};
use dlfs_base::error::Result;
use dlfs_base::random::draw;
use dlfs_nvme::auth::Randomness;
use dlfs_nvme::nvme::Nqn;

impl HostIdentity {
    /// The NQN from the options, else from nvme-cli's file, else derived from the machine's identity. The identifier
    /// from the options, else from nvme-cli's file if the NQN comes from there, too, else derived from the NQN.
    pub(in crate::qpair) fn new(options: &ConnectOptions) -> HostIdentity {
        let nqn_file = || Nqn::new(fs::read_to_string("/etc/nvme/hostnqn").ok()?.trim()).ok();
        let id_file = || parse_uuid(&fs::read_to_string("/etc/nvme/hostid").ok()?);
        let (nqn, configured_id) = match &options.hostnqn {
            Some(nqn) => (nqn.clone(), None),
            None => match nqn_file() {
                Some(nqn) => (nqn, id_file()),
                None => (Nqn::host_of_uuid(machine_uuid()), None),
            },
        };
        let id = options.hostid.or(configured_id).unwrap_or_else(|| id_of_nqn(&nqn));
        HostIdentity { nqn, id, credentials: credentials(options) }
    }
}

/// The NQN and the identifier that this host presents with `options`: see [`ConnectOptions::hostnqn`] and
/// [`ConnectOptions::hostid`].
pub fn host_identity(options: &ConnectOptions) -> (Nqn, [u8; 16]) {
    let HostIdentity { nqn, id, .. } = HostIdentity::new(options);
    (nqn, id)
}

/// The NQN that this host presents with `options`.
pub fn hostnqn(options: &ConnectOptions) -> Nqn {
    HostIdentity::new(options).nqn
}

/// The secrets with which the host authenticates; `None`: the options have no secret of the host.
fn credentials(options: &ConnectOptions) -> Option<Credentials> {
    let secret = options.dhchap_secret.clone()?;
    let ctrl_secret = options.dhchap_ctrl_secret.clone();
    Some(Credentials { secret, ctrl_secret, concatenates: options.concat, randomness })
}

/// Random numbers for one authentication.
fn randomness() -> Result<Randomness> {
    let mut bytes = [0; Randomness::LEN_BYTES];
    draw(&mut bytes)?;
    Ok(Randomness::from_bytes(bytes))
}

/// The host identifier for an NQN: the UUID in an NQN of the UUID format; for any other NQN a hash, which is never zero
/// in practice.
fn id_of_nqn(nqn: &Nqn) -> [u8; 16] {
    let uuid = nqn.as_str().split_once(":uuid:").and_then(|(_, uuid)| parse_uuid(uuid));
    uuid.unwrap_or_else(|| xxh3_128(nqn.as_str().as_bytes()).to_be_bytes())
}

/// A UUID that is the same on every start on this machine, derived from the machine id without revealing it. On
/// a machine without a machine id, it changes when the machine boots.
pub fn machine_uuid() -> [u8; 16] {
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"];
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let mut uuid = xxh3_128(format!("dlfs host {}", text.trim()).as_bytes()).to_be_bytes();
    uuid[6] = uuid[6] & 0x0F | 0x80; // version 8: custom
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

/// Parses 32 hexadecimal digits, with hyphens anywhere; `None`: `text` is something else.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> =
        text.trim().chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks(2).map(|p| p.iter().fold(0, |b, d| b << 4 | *d as u8)).collect();
    (digits.len() == 32).then(|| bytes.try_into().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identifier_of_a_customary_name_is_its_uuid() {
        let uuid = std::array::from_fn(|i| i as u8 * 0x11);
        assert_eq!(id_of_nqn(&Nqn::host_of_uuid(uuid)), uuid);
    }

    #[test]
    fn one_name_has_one_identifier_and_another_name_another() {
        let options = |nqn: &str| ConnectOptions {
            hostnqn: Some(Nqn::new(nqn).unwrap()),
            ..ConnectOptions::default()
        };
        let a = options("nqn.2026-11.io.example:a");
        let b = options("nqn.2026-11.io.example:b");
        assert_eq!(HostIdentity::new(&a).id, HostIdentity::new(&a).id);
        assert_ne!(HostIdentity::new(&a).id, HostIdentity::new(&b).id);
        let given = ConnectOptions { hostid: Some([7; 16]), ..a };
        assert_eq!(HostIdentity::new(&given).id, [7; 16]);
    }

    #[test]
    fn without_options_the_host_has_the_same_name_each_time() {
        let a = ConnectOptions::default();
        let b = ConnectOptions::default();
        assert_eq!(HostIdentity::new(&a).nqn, HostIdentity::new(&b).nqn);
        assert_ne!(HostIdentity::new(&a).id, [0; 16]);
    }

    #[test]
    fn only_thirty_two_digits_are_a_uuid() {
        assert!(parse_uuid("00112233-4455-6677-8899-aabbccddeeff\n").is_some());
        for text in ["", "0011", "00112233-4455-6677-8899-aabbccddeefg", "0".repeat(33).as_str()] {
            assert_eq!(parse_uuid(text), None);
        }
    }
}
