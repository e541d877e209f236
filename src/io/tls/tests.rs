//! Both sides of a session with each other, and with foreign peers, such as plain OpenSSL.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use ::openssl::pkey::PKey;
use ::openssl::rsa::Rsa;
use ::openssl::ssl::{ErrorCode, SslOptions};
use ::openssl::x509::X509;

use super::*;
use dlfs_nvme::auth::{ConfiguredPsk, Derivation, IdentityVersion};
use dlfs_nvme::nvme::Nqn;

fn nqn(name: &str) -> Nqn {
    Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
}

fn psk(byte: u8, hash: dlfs_nvme::auth::Hash, version: IdentityVersion) -> TlsPsk {
    let key = ConfiguredPsk::generate(&[byte; 64], hash);
    let derivation = Derivation::Specification;
    key.tls_psk(version, derivation, &nqn("host"), &nqn("subsystem")).unwrap()
}

struct These(Vec<TlsPsk>);

impl Keys for These {
    fn find(&self, identity: &str) -> Option<TlsPsk> {
        self.0.iter().find(|psk| psk.identity() == identity).cloned()
    }
}

const HASHES: [dlfs_nvme::auth::Hash; 2] =
    [dlfs_nvme::auth::Hash::Sha256, dlfs_nvme::auth::Hash::Sha384];
const VERSIONS: [IdentityVersion; 2] = [IdentityVersion::V0, IdentityVersion::V1];

/// Passes all ciphertext of `from` to `to` in pieces of `step` bytes; `read` is called after each.
fn pass(
    from: &mut Session,
    to: &mut Session,
    step: usize,
    mut read: impl FnMut(&mut Session) -> Result<(), TlsError>,
) -> Result<(), TlsError> {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    for piece in bytes.chunks(step) {
        to.give(piece.to_vec(), piece.len());
        let result = read(to);
        to.take_back();
        result?;
    }
    Ok(())
}

/// Runs the handshake of both sides; returns the results of the host and of the controller.
fn shake(
    host: &mut Session,
    controller: &mut Session,
    step: usize,
) -> (Result<bool, TlsError>, Result<bool, TlsError>) {
    let mut results = (host.handshake(), Ok(false));
    for _ in 0..4 {
        if results.1.is_ok() {
            let went = pass(host, controller, step, |side| side.handshake().map(drop));
            results.1 = went.and_then(|()| controller.handshake());
        }
        if results.0.is_ok() {
            let went = pass(controller, host, step, |side| side.handshake().map(drop));
            results.0 = went.and_then(|()| host.handshake());
        }
    }
    results
}

fn established(psk: &TlsPsk) -> (Session, Session) {
    let mut host = Session::host(psk).unwrap();
    let mut controller = Session::controller(Arc::new(These(vec![psk.clone()]))).unwrap();
    assert_eq!(shake(&mut host, &mut controller, usize::MAX), (Ok(true), Ok(true)));
    (host, controller)
}

#[test]
fn each_suite_and_identity_carries_bytes_both_ways_however_the_stream_is_cut() {
    for hash in HASHES {
        for version in VERSIONS {
            let key = psk(7, hash, version);
            for step in [1, 3, 100, usize::MAX] {
                let mut host = Session::host(&key).unwrap();
                let others = vec![psk(8, hash, version), key.clone()];
                // Version 0 has one identity for all keys of a host: the first is taken.
                let others =
                    if version == IdentityVersion::V0 { vec![key.clone()] } else { others };
                let mut controller = Session::controller(Arc::new(These(others))).unwrap();
                assert_eq!(controller.identity(), None);
                assert_eq!(shake(&mut host, &mut controller, step), (Ok(true), Ok(true)));
                assert_eq!(controller.identity().as_deref(), Some(key.identity()));
                let message: Vec<u8> = (0..50_000u32).map(|at| (at * 7) as u8).collect();
                let pieces = [24, 16 << 10, 33_000, 592].iter().scan(0, |at, len| {
                    *at += len;
                    Some(&message[*at - len..*at])
                });
                let slices: Vec<IoSlice<'_>> = pieces.map(IoSlice::new).collect();
                for is_back in [false, true] {
                    let (from, to) = if is_back {
                        (&mut controller, &mut host)
                    } else {
                        (&mut host, &mut controller)
                    };
                    assert_eq!(from.seal(&slices, usize::MAX), Ok(message.len()));
                    let mut came = Vec::new();
                    let mut into = [0; 5000];
                    pass(from, to, step, |side| {
                        while let len @ 1.. = side.open(&mut into)? {
                            came.extend_from_slice(&into[..len]);
                        }
                        Ok(())
                    })
                    .unwrap();
                    assert!(came == message, "{hash}, {version:?}, {step}");
                }
            }
        }
    }
}

#[test]
fn another_key_is_refused_by_both_sides_whether_its_identity_is_known_or_not() {
    for hash in HASHES {
        let ours = psk(7, hash, IdentityVersion::V1);
        let theirs = psk(8, hash, IdentityVersion::V1);
        let mut host = Session::host(&ours).unwrap();
        let mut controller = Session::controller(Arc::new(These(vec![theirs]))).unwrap();
        let (host_says, controller_says) = shake(&mut host, &mut controller, usize::MAX);
        assert_eq!(controller_says, Err(TlsError::NoKey));
        let error = host_says.unwrap_err();
        assert!(error.may_be_identity(), "{error}");
        assert!(!host.is_established() && !controller.is_established());
        // Version 0 has the same identity for each key: only the binder shows that the keys differ.
        let ours = psk(7, hash, IdentityVersion::V0);
        let theirs = psk(8, hash, IdentityVersion::V0);
        let mut host = Session::host(&ours).unwrap();
        let mut controller = Session::controller(Arc::new(These(vec![theirs]))).unwrap();
        let (host_says, controller_says) = shake(&mut host, &mut controller, usize::MAX);
        assert_eq!(controller_says, Err(TlsError::NoKey));
        assert!(host_says.unwrap_err().may_be_identity());
        assert_eq!(controller.identity(), None);
    }
}

/// A flipped bit causes an error in its flight, or no progress, but never an established session of
/// both sides.
#[test]
fn a_flipped_bit_anywhere_in_the_handshake_or_in_a_record_is_noticed() {
    let key = psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1);
    let mut flights = [0; 2];
    for (flight, flight_len) in flights.iter_mut().enumerate() {
        let mut at = 0;
        loop {
            let mut host = Session::host(&key).unwrap();
            let mut controller = Session::controller(Arc::new(These(vec![key.clone()]))).unwrap();
            assert_eq!(host.handshake(), Ok(false));
            if flight == 1 {
                pass(&mut host, &mut controller, usize::MAX, |side| side.handshake().map(drop))
                    .unwrap();
            }
            let (from, to) = if flight == 0 {
                (&mut host, &mut controller)
            } else {
                (&mut controller, &mut host)
            };
            let mut bytes = from.outgoing().to_vec();
            from.sent(bytes.len());
            *flight_len = bytes.len();
            if at >= 8 * bytes.len() {
                break;
            }
            bytes[at / 8] ^= 1 << (at % 8);
            let len = bytes.len();
            to.give(bytes, len);
            let first = to.handshake();
            to.take_back();
            let (mut host_says, mut controller_says) = match flight {
                0 => (Ok(false), first),
                _ => (first, Ok(false)),
            };
            if host_says.is_ok() && controller_says.is_ok() {
                (host_says, controller_says) = shake(&mut host, &mut controller, usize::MAX);
            }
            let both = host_says == Ok(true) && controller_says == Ok(true);
            assert!(!both || is_ignored(flight, at / 8, *flight_len), "flight {flight}, bit {at}");
            at += 13; // every byte within a dozen runs of the seed, each bit within a hundred
        }
    }
    assert!(flights.iter().all(|len| *len > 100), "{flights:?}");
    let (mut host, mut controller) = established(&key);
    host.seal(&[IoSlice::new(&[9; 100])], usize::MAX).unwrap();
    let mut bytes = host.outgoing().to_vec();
    host.sent(bytes.len());
    let last = bytes.len() - 1;
    bytes[last / 2] ^= 4;
    controller.give(bytes, last + 1);
    assert_eq!(controller.open(&mut [0; 200]), Err(TlsError::BadRecord));
}

/// The legacy version of a record header and the compatibility record (RFC 8446, 5.1 and D.4) are the only
/// bytes that receivers ignore.
fn is_ignored(flight: usize, at: usize, len: usize) -> bool {
    // The first record begins with type, version and length.
    let in_header = at == 1 || at == 2;
    // The controller's flight: ServerHello, change_cipher_spec of 6 bytes, encrypted records.
    in_header || flight == 1 && at < len
}

#[test]
fn half_a_record_is_no_data_and_a_stream_that_ends_there_is_lost() {
    let key = psk(7, dlfs_nvme::auth::Hash::Sha384, IdentityVersion::V1);
    let (mut host, mut controller) = established(&key);
    controller.seal(&[IoSlice::new(&[9; 1000])], usize::MAX).unwrap();
    let bytes = controller.outgoing().to_vec();
    let half = bytes.len() / 2;
    host.give(bytes[..half].to_vec(), half);
    assert_eq!(host.open(&mut [0; 2000]), Ok(0), "nothing before the record is authentic");
    host.take_back();
    host.give(bytes[half..].to_vec(), bytes.len() - half);
    assert_eq!(host.open(&mut [0; 2000]), Ok(1000));
    host.take_back();
}

#[test]
fn what_is_not_tls_is_named_so() {
    let key = psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1);
    let mut host = Session::host(&key).unwrap();
    assert_eq!(host.handshake(), Ok(false));
    // A target without TLS answers with a termination request.
    let answer = [3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    host.give(answer.to_vec(), answer.len());
    assert_eq!(host.handshake(), Err(TlsError::NotTls));
}

/// Ciphertext that a test passes on by hand.
#[derive(Default)]
struct ByHand {
    received: VecDeque<u8>,
    sent: Vec<u8>,
}

impl Read for ByHand {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.received.read(into)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            len => Ok(len),
        }
    }
}

impl Write for ByHand {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An endpoint of plain OpenSSL, whose ciphertext a test passes on by hand.
fn plain_endpoint(
    is_host: bool,
    change: impl FnOnce(&mut ::openssl::ssl::SslContextBuilder),
) -> ::openssl::ssl::SslStream<ByHand> {
    use ::openssl::ssl::{Ssl, SslContextBuilder, SslMethod, SslStream};
    let mut builder = SslContextBuilder::new(SslMethod::tls()).unwrap();
    change(&mut builder);
    let mut ssl = Ssl::new(&builder.build()).unwrap();
    if is_host {
        ssl.set_connect_state()
    } else {
        ssl.set_accept_state()
    }
    SslStream::new(ssl, ByHand::default()).unwrap()
}

#[test]
fn a_controller_that_has_a_certificate_instead_of_the_key_is_refused() {
    let rsa = PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap();
    let mut certificate = X509::builder().unwrap();
    certificate.set_pubkey(&rsa).unwrap();
    let time = |days| ::openssl::asn1::Asn1Time::days_from_now(days).unwrap();
    certificate.set_not_before(&time(0)).unwrap();
    certificate.set_not_after(&time(1)).unwrap();
    certificate.sign(&rsa, ::openssl::hash::MessageDigest::sha256()).unwrap();
    let certificate = certificate.build();
    let mut impostor = plain_endpoint(false, |builder| {
        builder.set_certificate(&certificate).unwrap();
        builder.set_private_key(&rsa).unwrap();
    });
    let mut host =
        Session::host(&psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1)).unwrap();
    assert_eq!(host.handshake(), Ok(false));
    let hello = host.outgoing().to_vec();
    impostor.get_mut().received = hello.into();
    assert_eq!(impostor.do_handshake().unwrap_err().code(), ErrorCode::WANT_READ);
    let answer = std::mem::take(&mut impostor.get_mut().sent);
    host.give(answer.clone(), answer.len());
    assert_eq!(host.handshake(), Err(TlsError::NoKey));
}

#[test]
fn a_host_without_an_ephemeral_exchange_or_with_an_older_protocol_is_refused() {
    use ::openssl::ssl::SslVersion;
    let key = psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1);
    let mut old = plain_endpoint(true, |builder| {
        builder.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
        builder.set_options(SslOptions::NO_TICKET);
    });
    assert_eq!(old.do_handshake().unwrap_err().code(), ErrorCode::WANT_READ);
    let hello = std::mem::take(&mut old.get_mut().sent);
    let mut controller = Session::controller(Arc::new(These(vec![key]))).unwrap();
    controller.give(hello.clone(), hello.len());
    let error = controller.handshake().unwrap_err();
    assert!(matches!(error, TlsError::Failed(_) | TlsError::NoKey), "{error}");
    assert!(!controller.outgoing().is_empty(), "an alert says why");
}
