//! TLS PSKs that authentications have generated (secure channel concatenation).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use dlfs_nvme::auth::TlsPsk;

/// Generated PSKs, by identity.
///
/// A PSK is valid for [`UNUSED_FOR`] after its generation, so that its host can connect with it, and for as long as a
/// controller uses it.
#[derive(Default)]
pub(super) struct GeneratedKeys(Mutex<BTreeMap<String, Generated>>);

struct Generated {
    psk: Arc<TlsPsk>,
    /// Time of the generation.
    since: Instant,
}

impl Generated {
    fn is_valid(&self, now: Instant) -> bool {
        Arc::strong_count(&self.psk) > 1 || now.saturating_duration_since(self.since) < UNUSED_FOR
    }
}

impl GeneratedKeys {
    /// Adds a PSK.
    pub(super) fn add(&self, psk: TlsPsk, now: Instant) {
        let identity = psk.identity().to_owned();
        self.valid(now).insert(identity, Generated { psk: Arc::new(psk), since: now });
    }

    /// The valid PSK with this identity. It stays valid while the returned handle exists.
    pub(super) fn hold(&self, identity: &str, now: Instant) -> Option<Arc<TlsPsk>> {
        self.valid(now).get(identity).map(|generated| Arc::clone(&generated.psk))
    }

    /// Returns whether no PSK is valid.
    pub(super) fn is_empty(&self, now: Instant) -> bool {
        self.valid(now).is_empty()
    }

    /// The valid PSKs; drops the others.
    fn valid(&self, now: Instant) -> MutexGuard<'_, BTreeMap<String, Generated>> {
        let mut keys = self.0.lock();
        keys.retain(|_, generated| generated.is_valid(now));
        keys
    }
}

/// Validity of a generated PSK that no controller uses.
const UNUSED_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_nvme::auth::{ConfiguredPsk, Derivation, Hash, IdentityVersion};
    use dlfs_nvme::nvme::Nqn;

    fn psk(byte: u8) -> TlsPsk {
        let nqn = |name: &str| Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap();
        let key = ConfiguredPsk::generate(&[byte; 64], Hash::Sha256);
        let derivation = Derivation::Specification;
        key.tls_psk(IdentityVersion::V1, derivation, &nqn("host"), &nqn("subsystem")).unwrap()
    }

    #[test]
    fn a_generated_key_is_valid_for_a_minute_and_while_a_controller_holds_it() {
        let keys = GeneratedKeys::default();
        let now = Instant::now();
        let [one, other] = [psk(1), psk(2)];
        let identity = |psk: &TlsPsk| psk.identity().to_owned();
        keys.add(one.clone(), now);
        keys.add(other.clone(), now);
        let held = keys.hold(&identity(&one), now + UNUSED_FOR / 2).unwrap();
        let late = now + UNUSED_FOR;
        assert!(keys.hold(&identity(&other), late).is_none());
        assert!(keys.hold(&identity(&one), late).is_some());
        assert_eq!(keys.0.lock().len(), 1, "the other is dropped");
        drop(held);
        assert!(keys.is_empty(late) && keys.0.lock().is_empty(), "none is kept");
        keys.add(psk(3), late);
        assert!(!keys.is_empty(late));
    }
}
