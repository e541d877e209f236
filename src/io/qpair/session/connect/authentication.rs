//! Authentication after Connect: its messages in Fabrics commands.

use crate::qpair::session::{Failure, Terms};
use dlfs_base::error::{ErrorKind, Result as DlfsResult};
use dlfs_nvme::auth::{
    Concatenation, Failed, Group, Hash, Host, HostTerms, Next, Randomness, Secret,
};
use dlfs_nvme::nvme::fabrics::{CONNECT_ASCR, CONNECT_ATR};
use dlfs_nvme::nvme::{Cqe, RetryClass};
use dlfs_nvme::tcp::host::CommandError;

/// The secrets with which a host authenticates.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The host's secret.
    pub secret: Secret,
    /// The subsystem's secret, if the controller must authenticate too.
    pub ctrl_secret: Option<Secret>,
    /// True if the authentication of an admin queue generates the TLS PSK for all queues.
    pub concatenates: bool,
    /// Random numbers for one authentication.
    pub randomness: fn() -> DlfsResult<Randomness>,
}

/// An authentication in progress.
#[derive(Debug)]
pub(super) struct Authentication {
    pub(super) host: Host,
    pub(super) cntlid: u16,
    pub(super) is_receiving: bool,
}

impl Authentication {
    /// Starts the authentication if the controller requires it: `wanted` has the bits [`CONNECT_ATR`] and
    /// [`CONNECT_ASCR`] of the controller's answer to Connect.
    ///
    /// # Errors
    /// The controller requires a secret or an option that this host lacks; or it must authenticate and does
    /// not.
    pub(super) fn begin(
        terms: &Terms,
        wanted: u32,
        cntlid: u16,
    ) -> Result<Option<(Authentication, Next)>, Failure> {
        let Some(credentials) = &terms.host.credentials else {
            return if wanted == 0 { Ok(None) } else { Err(required()) };
        };
        let is_secured = terms.psk.is_some();
        // With TLS on a generated PSK, both sides were authenticated before.
        let is_generated = credentials.concatenates && is_secured;
        if wanted & CONNECT_ASCR != 0 && !credentials.concatenates {
            let message = "the target requires TLS on keys of the authentication \
                           (secure channel concatenation)";
            return Err(Failure::new(ErrorKind::Unsupported, message).hint("give --concat"));
        }
        if wanted & (CONNECT_ATR | CONNECT_ASCR) == 0 {
            let is_needed = credentials.ctrl_secret.is_some() || credentials.concatenates;
            if is_generated || !is_needed {
                return Ok(None);
            }
            let message = "the controller does not authenticate, although it must";
            let hint = "it may be an impostor, or the target has no key for this host: \
                        give it one, or do not ask the controller to prove itself";
            return Err(Failure::new(ErrorKind::Refused, message).hint(hint));
        }
        let Credentials { secret, ctrl_secret, randomness, .. } = credentials;
        let concatenates = credentials.concatenates && !is_secured;
        let randomness = randomness().map_err(|error| {
            Failure::new(error.kind(), format!("no random numbers for the authentication: {error}"))
        })?;
        let host_terms = HostTerms {
            hostnqn: terms.host.nqn.clone(),
            subnqn: terms.subnqn.clone(),
            secret: secret.clone(),
            ctrl_secret: ctrl_secret.clone(),
            // No cipher suite has SHA-512.
            hashes: Hash::ALL[..if concatenates { 2 } else { 3 }].to_vec(),
            groups: GROUPS.to_vec(),
            concatenation: if concatenates { Concatenation::Required } else { Concatenation::No },
        };
        let tid = (randomness.sequence & 0xFFFF) as u16;
        let (host, next) = Host::new(host_terms, &randomness, tid);
        Ok(Some((Authentication { host, cntlid, is_receiving: false }, next)))
    }

    /// Handles the completion of the last command; `message` is the data of that command.
    pub(super) fn answered(
        &mut self,
        message: &[u8],
        result: Result<Cqe, CommandError>,
    ) -> Result<Next, Failure> {
        match result {
            Ok(cqe) if !cqe.status().is_success() => {
                let text = format!("the controller answered {}", cqe.status());
                // The target is busy authenticating other hosts.
                let kind = match cqe.status().retry_class() {
                    RetryClass::Retry => ErrorKind::Busy,
                    _ => ErrorKind::Refused,
                };
                return Err(Failure::new(kind, text));
            }
            Ok(_) => {}
            Err(error) => return Err(Failure::new(ErrorKind::Corrupt, error.to_string())),
        }
        Ok(if self.is_receiving { self.host.handle(message) } else { self.host.sent() })
    }
}

/// The failure if the target requires authentication and this host has no secret.
pub(super) fn required() -> Failure {
    Failure::new(ErrorKind::Unsupported, "the target requires authentication")
        .hint("give this host's key: --dhchap-secret FILE, or dhchap_secret in Rust, C and Python")
}

pub(super) fn failure(failed: &Failed) -> Failure {
    let hint =
        "check that both sides have the same key for this host's NQN and the subsystem's NQN";
    Failure::new(ErrorKind::Refused, failed.to_string()).hint(hint)
}

/// DH groups that the host offers, in the order of its preference. The controller chooses.
const GROUPS: [Group; 3] = [Group::Ffdhe3072, Group::Ffdhe2048, Group::Null];

/// Longer than any message of the controller.
pub(super) const MESSAGE_ROOM_BYTES: u32 = 4096;
