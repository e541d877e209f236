//! TLS PSKs in a kernel keyring, where nvme-cli (`nvme gen-tls-key --insert`) and tlshd keep them.
//!
//! Each key belongs to one host and one subsystem and is ready for use: its description is the PSK identity,
//! its payload the PSK. nvme-cli gives read permission to the possessor of a key, so the calling thread links
//! the keyring into its own for a moment. The kernel permits this only to the keyring's owner, for `.nvme` root.
#![allow(unsafe_code)] // keyctl(2), which has no safe wrapper here

use std::ffi::c_long;
use std::io;

use rustix::process::getuid;
use zeroize::Zeroizing;

use dlfs_nvme::auth::{IdentityParts, IdentityVersion, Origin, TlsPsk};
use dlfs_nvme::nvme::Nqn;

/// The keyring of Linux's own NVMe/TCP.
pub const NVME: &str = ".nvme";

/// Errors of finding a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// There is no such keyring, or this user may not see it.
    #[error("this user sees no keyring {0:?} in the kernel")]
    NoKeyring(String),
    /// The keyring cannot be read.
    #[error("the keyring {name:?} cannot be read: {why}")]
    Unreadable {
        /// Its name.
        name: String,
        /// The kernel's answer.
        why: io::Error,
    },
    /// The keyring has no key for this host and subsystem.
    #[error("the keyring {name:?} has no key for host {hostnqn} and subsystem {subnqn}")]
    NoKey {
        /// Its name.
        name: String,
        /// The host.
        hostnqn: String,
        /// The subsystem.
        subnqn: String,
    },
}

/// Finds the TLS PSK for this host and subsystem in the keyring `name`. Like Linux, it prefers an identity of
/// version 1 to version 0, and SHA-384 to SHA-256. It ignores keys that have expired or were revoked or removed, and
/// keys that an authentication has generated.
///
/// # Errors
/// There is no such keyring or key, or this user may not read it.
pub fn find(name: &str, hostnqn: &Nqn, subnqn: &Nqn) -> Result<TlsPsk, KeyringError> {
    let unreadable = |why| KeyringError::Unreadable { name: name.to_owned(), why };
    let keys = std::fs::read_to_string("/proc/keys").map_err(unreadable)?;
    let uid = getuid().as_raw();
    let keyring = keys.lines().find_map(|line| keyring_of(line, name, uid));
    let keyring = keyring.ok_or_else(|| KeyringError::NoKeyring(name.to_owned()))?;
    let _linked = LinkedKeyring::new(keyring);
    let members = read_key(READ, keyring).map_err(unreadable)?;
    let mut found = Vec::new();
    let mut unread = None;
    for member in members.as_chunks().0 {
        let serial = i32::from_le_bytes(*member); // in the byte order of the processor, x86-64
        let Some(identity) = identity_of(serial) else { continue };
        let Some(parts) = IdentityParts::parse(&identity) else { continue };
        let is_theirs = parts.hostnqn == *hostnqn && parts.subnqn == *subnqn;
        if !is_theirs || parts.origin != Origin::Retained {
            continue;
        }
        match read_key(READ, serial) {
            Ok(key) => {
                let rank = (parts.version == IdentityVersion::V1, parts.hash);
                found.extend(TlsPsk::stored(&identity, &key).map(|psk| (rank, psk)));
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => unread = Some(error),
        }
    }
    let best = found.into_iter().max_by_key(|(rank, _)| *rank);
    best.map(|(_, psk)| psk).ok_or_else(|| match unread {
        Some(why) => unreadable(why),
        None => KeyringError::NoKey {
            name: name.to_owned(),
            hostnqn: hostnqn.to_string(),
            subnqn: subnqn.to_string(),
        },
    })
}

/// Returns whether the key has expired, was revoked, or was removed meanwhile.
fn is_gone(error: &io::Error) -> bool {
    [libc::EKEYEXPIRED, libc::EKEYREVOKED, libc::ENOKEY].map(Some).contains(&error.raw_os_error())
}

/// A keyring that is linked into the calling thread's keyring, so that the thread possesses its keys.
struct LinkedKeyring(i32);

impl LinkedKeyring {
    fn new(keyring: i32) -> LinkedKeyring {
        link(LINK, keyring); // if this is refused, the keys may be readable anyway
        LinkedKeyring(keyring)
    }
}

impl Drop for LinkedKeyring {
    fn drop(&mut self) {
        link(UNLINK, self.0); // fails if `new` could not link it
    }
}

/// Links a keyring into the thread's keyring, or unlinks it.
fn link(operation: c_long, keyring: i32) {
    // SAFETY: both operations take two serial numbers and no address.
    unsafe { libc::syscall(libc::SYS_keyctl, operation, c_long::from(keyring), THREAD_KEYRING) };
}

/// Parses the serial number of the keyring `name` from a line of /proc/keys, if root or the user owns the
/// keyring.
fn keyring_of(line: &str, name: &str, uid: u32) -> Option<i32> {
    let mut fields = line.split_whitespace();
    let serial = fields.next()?;
    let owner = fields.nth(4)?;
    let kind = fields.nth(1)?;
    let described = fields.next()?.strip_suffix(':')?;
    let is_trusted = owner.parse().is_ok_and(|owner: u32| owner == 0 || owner == uid);
    let is_wanted = kind == "keyring" && described == name && is_trusted;
    is_wanted.then(|| i32::from_str_radix(serial, 16).ok()).flatten()
}

/// The description of a key; `None`: it cannot be read, or the key's type is not one of `KINDS`.
fn identity_of(serial: i32) -> Option<String> {
    let text = read_key(DESCRIBE, serial).ok()?;
    let text = std::str::from_utf8(&text).ok()?.trim_end_matches('\0');
    let mut fields = text.splitn(5, ';');
    let kind = fields.next()?;
    let description = fields.nth(3)?;
    KINDS.contains(&kind).then(|| description.to_owned())
}

/// Calls KEYCTL_READ or KEYCTL_DESCRIBE for a key; returns the answer.
fn read_key(operation: c_long, serial: i32) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; 1024]);
    loop {
        // SAFETY: the kernel writes at most as many bytes as `bytes` has, and keeps no address.
        let len = unsafe {
            let at = bytes.as_mut_ptr();
            let room = bytes.len();
            libc::syscall(libc::SYS_keyctl, operation, c_long::from(serial), at, room)
        };
        let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
        if len <= bytes.len() {
            bytes.truncate(len);
            return Ok(bytes);
        }
        // The kernel has returned the length of the answer, which may grow until the next call.
        bytes = Zeroizing::new(vec![0; len]);
    }
}

// linux/keyctl.h.
const DESCRIBE: c_long = 6;
const LINK: c_long = 8;
const UNLINK: c_long = 9;
const READ: c_long = 11;
const THREAD_KEYRING: c_long = -1;
/// The key types of TLS PSKs: that of Linux's own NVMe driver, and that of other keyrings.
const KINDS: [&str; 2] = ["psk", "user"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyring_is_found_by_its_name_if_root_or_the_user_owns_it() {
        let of = |owner: u32, kind: &str, name: &str| {
            let line = format!(
                "1a26ff5d I------     1 perm 1f030000 {owner:>5}     0 {kind} {name}: empty"
            );
            keyring_of(&line, ".nvme", 1000)
        };
        assert_eq!(of(0, "keyring  ", ".nvme"), Some(0x1a26_ff5d));
        assert_eq!(of(1000, "keyring  ", ".nvme"), Some(0x1a26_ff5d));
        assert_eq!(of(1001, "keyring  ", ".nvme"), None);
        assert_eq!(of(0, "user     ", ".nvme"), None);
        assert_eq!(of(0, "keyring  ", ".nvme2"), None);
        assert_eq!(keyring_of("", ".nvme", 0), None);
    }
}
