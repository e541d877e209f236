//! Formulas of the responses to challenges (NVM Express Base Specification 2.1, 8.3.5.5).
//!
//! With H the negotiated hash, HMAC with H, and dh the shared secret:
//!
//! ```text
//! KS = H(dh)
//! Ca = C without a group, HMAC(KS, C) with one
//! R1 = HMAC(host's key,       Ca1 | SEQ1 | TID | SC_C | "HostHost"   | hostnqn | 00 | subnqn)
//! R2 = HMAC(controller's key, Ca2 | SEQ2 | TID | SC_C | "Controller" | subnqn  | 00 | hostnqn)
//! ```
//!
//! [`Secret::key`] gives the keys.

use super::{Digest, Hash, Power, Secret, TlsPsk};
use crate::nvme::Nqn;

/// Values that both sides of one authentication share.
pub(super) struct Transcript<'a> {
    pub(super) hash: Hash,
    /// The number of the transaction.
    pub(super) tid: u16,
    /// SC_C: the kind of TLS PSK generation.
    pub(super) sc_c: u8,
    pub(super) hostnqn: &'a Nqn,
    pub(super) subnqn: &'a Nqn,
    /// KS; `None` without a group.
    pub(super) session_key: Option<&'a Digest>,
}

impl Transcript<'_> {
    /// R1: the response to `challenge` of the host that has this secret.
    pub(super) fn of_host(&self, secret: &Secret, challenge: &[u8], sequence: u32) -> Digest {
        self.response(secret, challenge, sequence, "HostHost", [self.hostnqn, self.subnqn])
    }

    /// R2: the response to `challenge` of the controller that has this secret.
    pub(super) fn of_controller(&self, secret: &Secret, challenge: &[u8], sequence: u32) -> Digest {
        self.response(secret, challenge, sequence, "Controller", [self.subnqn, self.hostnqn])
    }

    /// The TLS PSK that this authentication generates, from the session key and both challenges; `None` without a
    /// group.
    pub(super) fn tls_psk(&self, c1: &[u8], c2: &[u8]) -> Option<TlsPsk> {
        let psk = generated_psk(self.hash, self.session_key?, c1, c2);
        TlsPsk::generated(&psk, self.hash, self.hostnqn, self.subnqn)
    }

    /// The response of the side that `who` and `own` name, and that has this secret.
    fn response(
        &self,
        secret: &Secret,
        challenge: &[u8],
        sequence: u32,
        who: &str,
        [own, other]: [&Nqn; 2],
    ) -> Digest {
        let augmented = self.session_key.map(|ks| self.hash.hmac(ks.as_ref(), &[challenge]));
        let parts = [
            augmented.as_ref().map_or(challenge, Digest::as_ref),
            &sequence.to_le_bytes(),
            &self.tid.to_le_bytes(),
            &[self.sc_c],
            who.as_bytes(),
            own.as_str().as_bytes(),
            &[0],
            other.as_str().as_bytes(),
        ];
        self.hash.hmac(&secret.key(own), &parts)
    }
}

/// KS, from the shared secret.
pub(super) fn session_key(hash: Hash, shared: &Power) -> Digest {
    hash.digest(&shared.0)
}

/// The key material for the TLS PSK, from the session key and both challenges.
fn generated_psk(hash: Hash, session_key: &Digest, c1: &[u8], c2: &[u8]) -> Digest {
    hash.hmac(session_key.as_ref(), &[c1, c2])
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::auth::Secret;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Expected values were computed from the formulas with Python's hashlib and hmac.
    #[test]
    fn responses_are_those_of_the_reference() {
        let hostnqn = Nqn::new(HOSTNQN).unwrap();
        let subnqn = Nqn::new(SUBNQN).unwrap();
        let key: Vec<u8> = (0..32).collect();
        let plain = Secret::generate(&std::array::from_fn(|i| i as u8), None);
        assert_eq!(*plain.to_text(), "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
        assert_eq!(*plain.key(&hostnqn), key);
        let hashed: Secret =
            "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:".parse().unwrap();
        let kh = hashed.key(&hostnqn);
        assert_eq!(hex(&kh), "28d14f536e0964e21224259a3a12ef423511b493944c6262f893c083c5f7baca");

        let c1: Vec<u8> = (0xA0..=0xBF).collect();
        let c2: Vec<u8> = (0x40..=0x5F).collect();
        let bare = Transcript {
            hash: Hash::Sha256,
            tid: 1,
            sc_c: 0,
            hostnqn: &hostnqn,
            subnqn: &subnqn,
            session_key: None,
        };
        let r1 = |secret: &Secret| bare.of_host(secret, &c1, 0x1122_3344);
        assert_eq!(
            hex(r1(&plain).as_ref()),
            "52ef49ef9b6809dc9fbd7f183affc4e79cca0c1b4c37a3492459951704d1e951"
        );
        assert_eq!(
            hex(r1(&hashed).as_ref()),
            "6798f5b8b3c23fe3170ed075f74a04b8097f33c66dceeb377905e68dca0824da"
        );

        let dh = (0..256u32).map(|i| (7 * i + 3) as u8).collect();
        let ks = session_key(Hash::Sha256, &Power(Zeroizing::new(dh)));
        assert_eq!(
            hex(ks.as_ref()),
            "d9c76fa34978cb9620dab8c3f46bbe075fddc145eb282b39009141f98d0cfe82"
        );
        let with_group = Transcript { session_key: Some(&ks), ..bare };
        let r1 = with_group.of_host(&hashed, &c1, 0x1122_3344);
        assert_eq!(
            hex(r1.as_ref()),
            "aee85b1ca51b2e388020ee93508f6efcda12e249a7a2b8ee953bbb3f483a8cc1"
        );
        let r2 = with_group.of_controller(&hashed, &c2, 0x5566_7788);
        assert_eq!(
            hex(r2.as_ref()),
            "e830cd38f218a84a49129da876ad1982a3154fcbecb4d3dafe55e3a477d2464a"
        );
        let psk = generated_psk(Hash::Sha256, &ks, &c1, &c2);
        assert_eq!(
            hex(psk.as_ref()),
            "96e9135a18967cdaa37c64da49381c989475df5fbef6be0198016c780171f57d"
        );
    }

    const HOSTNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
    const SUBNQN: &str = "nqn.2024-01.io.example:ds0";
}
