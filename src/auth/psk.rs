//! Keys of TLS: from the configured text to the pre-shared key and its identity.
//!
//! NVMe/TCP Transport Specification 1.1, 3.6.1. With h the hash of the key:
//!
//! ```text
//! retained = ExpandLabel(Extract(configured), "HostNQN", hostnqn)
//! digest   = base64(HMAC_h(retained, hostnqn " " subnqn " NVMe-over-Fabrics"))
//! identity = "NVMe" version T hh " " hostnqn " " subnqn [" " digest]
//! TLS PSK  = ExpandLabel(Extract(retained), "nvme-tls-psk", context)
//! ```

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::text::{KeyError, decode, encode};
use super::{Digest, Hash};
use crate::nvme::Nqn;

/// A key in the form `NVMeTLSkey-1:hh:<base64>:`, as a site hands it out.
///
/// `hh` says which hash makes the retained key of it; 00: it is the retained key itself, and its length says
/// the hash.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredPsk {
    bytes: Zeroizing<Vec<u8>>,
    transform: Option<Hash>,
}

/// How keys are derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Derivation {
    /// As the specification says, with TLS 1.3's HkdfLabel.
    #[default]
    Specification,
    /// As libnvme did before July 2025: without the lengths of label and context.
    Compatible,
}

/// Where a pre-shared key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was configured: `R`.
    Retained,
    /// An authentication has made it: `G`.
    Generated,
}

/// Version of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityVersion {
    /// 0: without a digest of the key; obsolete, and the only one that some peers know.
    V0,
    /// 1.
    V1,
}

/// The name of a pre-shared key on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity(String);

/// The key that TLS uses, with the identity that it is known by.
#[derive(Clone)]
pub struct TlsPsk {
    identity: Identity,
    key: Digest,
    hash: Hash,
}

impl ConfiguredPsk {
    /// A new key of these random bytes for TLS_AES_128_GCM_SHA256 ([`Hash::Sha256`]) or
    /// TLS_AES_256_GCM_SHA384 ([`Hash::Sha384`]).
    ///
    /// # Panics
    /// The hash is another.
    pub fn generate(random: &[u8; 64], hash: Hash) -> ConfiguredPsk {
        assert_ne!(hash, Hash::Sha512, "no suite of TLS has it");
        let bytes = Zeroizing::new(random[..hash.len_bytes()].to_vec());
        ConfiguredPsk { bytes, transform: Some(hash) }
    }

    /// The text form, which ends in a colon.
    pub fn to_text(&self) -> Zeroizing<String> {
        encode(PREFIX, self.transform.map_or(0, Hash::id), &self.bytes)
    }

    /// The hash of the suite that the key is for.
    pub fn hash(&self) -> Hash {
        let by_length = if self.bytes.len() == 32 { Hash::Sha256 } else { Hash::Sha384 };
        self.transform.unwrap_or(by_length)
    }

    /// The pre-shared key of TLS between these two, and its identity.
    ///
    /// # Errors
    /// `None`: names so long that version 0 has no room for them.
    pub fn tls_psk(
        &self,
        version: IdentityVersion,
        derivation: Derivation,
        hostnqn: &Nqn,
        subnqn: &Nqn,
    ) -> Option<TlsPsk> {
        let hash = self.hash();
        let retained = match self.transform {
            None => self.bytes.clone(),
            Some(_) => {
                let context = hostnqn.as_str().as_bytes();
                let key = derivation.expand(hash, &self.bytes, "HostNQN", context)?;
                Zeroizing::new(key.as_ref().to_vec())
            }
        };
        TlsPsk::derive(&retained, hash, Origin::Retained, version, derivation, hostnqn, subnqn)
    }
}

impl FromStr for ConfiguredPsk {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<ConfiguredPsk, KeyError> {
        let (number, bytes) = decode(text, PREFIX)?;
        let transform = match number {
            0 => None,
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            _ => return Err(KeyError::Hash("00 to 02 are")),
        };
        let found = bytes.len();
        match (transform, found) {
            (None, 32 | 48) | (Some(Hash::Sha256), 32) | (Some(Hash::Sha384), 48) => {
                Ok(ConfiguredPsk { bytes, transform })
            }
            (None, _) => Err(KeyError::Length { found, allowed: "32 or 48" }),
            (Some(Hash::Sha256), _) => Err(KeyError::Length { found, allowed: "32, as 01 says" }),
            (Some(_), _) => Err(KeyError::Length { found, allowed: "48, as 02 says" }),
        }
    }
}

impl fmt::Debug for ConfiguredPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfiguredPsk")
    }
}

impl TlsPsk {
    /// The key that an authentication has generated, for its two.
    ///
    /// # Errors
    /// `None`: see [`ConfiguredPsk::tls_psk`].
    pub fn generated(
        psk: &Digest,
        hash: Hash,
        version: IdentityVersion,
        hostnqn: &Nqn,
        subnqn: &Nqn,
    ) -> Option<TlsPsk> {
        let derivation = Derivation::Specification;
        let origin = Origin::Generated;
        TlsPsk::derive(psk.as_ref(), hash, origin, version, derivation, hostnqn, subnqn)
    }

    fn derive(
        retained: &[u8],
        hash: Hash,
        origin: Origin,
        version: IdentityVersion,
        derivation: Derivation,
        hostnqn: &Nqn,
        subnqn: &Nqn,
    ) -> Option<TlsPsk> {
        let names = format!("{} {}", hostnqn.as_str(), subnqn.as_str());
        let number = hash.id();
        let letter = match origin {
            Origin::Retained => 'R',
            Origin::Generated => 'G',
        };
        let (identity, context) = match version {
            IdentityVersion::V0 => {
                let identity = format!("NVMe0{letter}{number:02} {names}");
                (identity.clone(), identity)
            }
            IdentityVersion::V1 => {
                let of = hash.hmac(retained, &[names.as_bytes(), b" NVMe-over-Fabrics"]);
                let digest = STANDARD.encode(of.as_ref());
                let identity = format!("NVMe1{letter}{number:02} {names} {digest}");
                (identity, format!("{number:02} {digest}"))
            }
        };
        let key = derivation.expand(hash, retained, "nvme-tls-psk", context.as_bytes())?;
        Some(TlsPsk { identity: Identity(identity), key, hash })
    }

    /// What it is known by.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The key: as many bytes as the hash has.
    pub fn key(&self) -> &[u8] {
        self.key.as_ref()
    }

    /// The hash of its suite.
    pub fn hash(&self) -> Hash {
        self.hash
    }
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPsk({})", self.identity.0)
    }
}

impl Identity {
    /// Its text, at most 512 bytes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Derivation {
    /// HKDF-Expand-Label of HKDF-Extract without salt (RFC 8446, 7.1), as long as the hash: one block.
    fn expand(self, hash: Hash, key: &[u8], label: &str, context: &[u8]) -> Option<Digest> {
        let zeros = [0; 64];
        let prk = hash.hmac(&zeros[..hash.len_bytes()], &[key]);
        let len = (hash.len_bytes() as u16).to_be_bytes();
        let label_len = [(TLS_LABEL.len() + label.len()) as u8];
        let context_len = [u8::try_from(context.len()).ok()?];
        let (label_len, context_len) = match self {
            Derivation::Specification => (&label_len[..], &context_len[..]),
            Derivation::Compatible => (&[][..], &[][..]),
        };
        let label = label.as_bytes();
        let parts = [&len, label_len, TLS_LABEL, label, context_len, context, &[1]];
        Some(hash.hmac(prk.as_ref(), &parts))
    }
}

const PREFIX: &str = "NVMeTLSkey-1:";
const TLS_LABEL: &[u8] = b"tls13 ";

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The values are libnvme's, of its own tests.
    #[test]
    fn keys_and_identities_are_those_of_libnvme() {
        let cases = [
            (
                "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
                "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
                "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys",
                "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
            ),
            (
                "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
                "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys \
                 QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
                "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
                "NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys",
                "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
            ),
        ];
        let host = Nqn::new("nqn.psk-test-host").unwrap();
        let subsystem = Nqn::new("nqn.psk-test-subsys").unwrap();
        for (text, identity1, key1, identity0, key0) in cases {
            let configured: ConfiguredPsk = text.parse().unwrap();
            assert_eq!(*configured.to_text(), text);
            let psk = |version| {
                configured.tls_psk(version, Derivation::Specification, &host, &subsystem).unwrap()
            };
            let (v1, v0) = (psk(IdentityVersion::V1), psk(IdentityVersion::V0));
            assert_eq!((v1.identity().as_str(), hex(v1.key())), (identity1, key1.to_owned()));
            assert_eq!((v0.identity().as_str(), hex(v0.key())), (identity0, key0.to_owned()));
        }
    }

    /// The values are those of Linux's KUnit tests of its authentication code.
    #[test]
    fn keys_generated_by_an_authentication_are_those_of_linux() {
        let cases = [
            (
                Hash::Sha256,
                "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
                "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
                "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
            ),
            (
                Hash::Sha384,
                "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
                "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
                "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
            ),
        ];
        let (host, subsystem) = (Nqn::new("hostnqn").unwrap(), Nqn::new("subsysnqn").unwrap());
        for (hash, expected_psk, digest, expected_key) in cases {
            let len = hash.len_bytes() as u8;
            let session_key: Vec<u8> = (0..len).map(|i| b'A' + i).collect();
            let c1: Vec<u8> = (0..len).collect();
            let c2: Vec<u8> = (0..len).map(|i| 0xFF - i).collect();
            let psk = hash.hmac(&session_key, &[&c1, &c2]);
            assert_eq!(hex(psk.as_ref()), expected_psk);
            let tls =
                TlsPsk::generated(&psk, hash, IdentityVersion::V1, &host, &subsystem).unwrap();
            let identity = format!("NVMe1G{:02} hostnqn subsysnqn {digest}", hash.id());
            assert_eq!(tls.identity().as_str(), identity);
            assert_eq!(hex(tls.key()), expected_key);
        }
    }

    #[test]
    fn what_libnvme_derived_before_july_2025_is_another_key_of_the_same_text() {
        let text = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let configured: ConfiguredPsk = text.parse().unwrap();
        let (host, subsystem) = (Nqn::new("h").unwrap(), Nqn::new("s").unwrap());
        let key = |derivation| {
            let psk = configured.tls_psk(IdentityVersion::V1, derivation, &host, &subsystem);
            psk.unwrap().key().to_vec()
        };
        assert_ne!(key(Derivation::Specification), key(Derivation::Compatible));
    }

    #[test]
    fn names_that_do_not_fit_into_version_0_have_no_key_of_it() {
        let long = Nqn::new("n".repeat(200)).unwrap();
        let configured = ConfiguredPsk::generate(&[7; 64], Hash::Sha256);
        let psk = |version| configured.tls_psk(version, Derivation::Specification, &long, &long);
        assert!(psk(IdentityVersion::V0).is_none());
        assert!(psk(IdentityVersion::V1).is_some());
    }
}
