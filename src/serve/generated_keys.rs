//! TLS PSKs that authentications have generated (secure channel concatenation).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use dlfs_nvme::auth::TlsPsk;

/// Generated PSKs, by identity.
///
/// A PSK is valid while a controller uses it, and for [`UNUSED_FOR`] after its generation, so that its host
/// can connect.
#[derive(Default)]
pub(super) struct GeneratedKeys(Mutex<BTreeMap<String, Generated>>);

struct Generated {
    psk: Arc<TlsPsk>,
    since: Instant,
}

impl Generated {
    fn is_valid(&self, now: Instant) -> bool {
        Arc::strong_count(&self.psk) > 1 || now.saturating_duration_since(self.since) < UNUSED_FOR
    }
}

impl GeneratedKeys {
    /// Adds a PSK, and drops those that are no longer valid.
    pub(super) fn add(&self, psk: TlsPsk, now: Instant) {
        let mut keys = self.0.lock();
        keys.retain(|_, generated| generated.is_valid(now));
        let identity = psk.identity().to_owned();
        keys.insert(identity, Generated { psk: Arc::new(psk), since: now });
    }

    /// The valid PSK with this identity. It stays valid while the returned handle exists.
    pub(super) fn hold(&self, identity: &str, now: Instant) -> Option<Arc<TlsPsk>> {
        let keys = self.0.lock();
        let generated = keys.get(identity).filter(|generated| generated.is_valid(now))?;
        Some(Arc::clone(&generated.psk))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Validity of a generated PSK that no connection uses.
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
        drop(held);
        assert!(keys.hold(&identity(&one), late).is_none());
        keys.add(psk(3), late);
        assert_eq!(keys.0.lock().len(), 1, "the others are dropped");
    }
}
