//! TLS PSKs of hosts that connect inside TLS, looked up by the identity that the host offers.

use std::time::Instant;

use super::subsystem::Subsystem;
use dlfs_io::tls::Keys;
use dlfs_nvme::auth::{Derivation, IdentityParts, IdentityVersion, Origin, TlsPsk};
use dlfs_nvme::nvme::Nqn;

impl Keys for Subsystem {
    /// A version 1 identity determines the PSK and its derivation. A version 0 identity does not: it means
    /// the host's first PSK with its hash, derived as the options say.
    fn find(&self, identity: &str) -> Option<TlsPsk> {
        let parts = IdentityParts::parse(identity)?;
        let is_ours = parts.subnqn == self.options.nqn || parts.subnqn.as_str() == Nqn::DISCOVERY;
        if !is_ours {
            return None;
        }
        if parts.origin == Origin::Generated {
            return Some((*self.generated.hold(identity, Instant::now())?).clone());
        }
        let keys = self.keys_of(&parts.hostnqn)?;
        let derivations = match parts.version {
            IdentityVersion::V0 => &[self.options.tls_derivation][..],
            IdentityVersion::V1 => &[Derivation::Specification, Derivation::Compatible],
        };
        let mut of_hash = keys.tls_keys.iter().filter(|key| key.hash() == parts.hash);
        of_hash.find_map(|key| {
            let of = |derivation: &Derivation| {
                key.tls_psk(parts.version, *derivation, &parts.hostnqn, &parts.subnqn)
            };
            let mut psks = derivations.iter().filter_map(of);
            psks.find(|psk| psk.identity() == identity)
        })
    }
}
