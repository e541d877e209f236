//! Both sides of a session with each other, and with the program `openssl`.

use std::io::{BufRead as _, BufReader, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

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

/// Opens into one place.
fn open(session: &mut Session, into: &mut [u8]) -> Result<usize, TlsError> {
    session.open(&mut [IoSliceMut::new(into)])
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
                assert_eq!(controller.identity(), Some(key.identity()));
                let message: Vec<u8> = (0..50_000u32).map(|at| (at * 7) as u8).collect();
                let pieces = [24, 16 << 10, 33_000, 592].iter().scan(0, |at, len| {
                    *at += len;
                    Some(&message[*at - len..*at])
                });
                let slices: Vec<&[u8]> = pieces.collect();
                for is_back in [false, true] {
                    let (from, to) = if is_back {
                        (&mut controller, &mut host)
                    } else {
                        (&mut host, &mut controller)
                    };
                    let mut slices: Vec<IoSlice<'_>> =
                        slices.iter().map(|slice| IoSlice::new(slice)).collect();
                    assert_eq!(from.seal(&mut slices, usize::MAX), Ok(message.len()));
                    let mut came = Vec::new();
                    let mut into = [0; 5000];
                    pass(from, to, step, |side| {
                        while let len @ 1.. = open(side, &mut into)? {
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
    host.seal(&mut [IoSlice::new(&[9; 100])], usize::MAX).unwrap();
    let mut bytes = host.outgoing().to_vec();
    host.sent(bytes.len());
    let last = bytes.len() - 1;
    bytes[last / 2] ^= 4;
    controller.give(bytes, last + 1);
    assert_eq!(open(&mut controller, &mut [0; 200]), Err(TlsError::BadRecord));
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
    controller.seal(&mut [IoSlice::new(&[9; 1000])], usize::MAX).unwrap();
    let bytes = controller.outgoing().to_vec();
    let half = bytes.len() / 2;
    host.give(bytes[..half].to_vec(), half);
    assert_eq!(open(&mut host, &mut [0; 2000]), Ok(0), "nothing before the record is authentic");
    host.take_back();
    host.give(bytes[half..].to_vec(), bytes.len() - half);
    assert_eq!(open(&mut host, &mut [0; 2000]), Ok(1000));
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

#[test]
fn what_is_sealed_is_opened_into_slices_of_any_lengths() {
    let key = psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1);
    let (mut host, mut controller) = established(&key);
    let message: Vec<u8> = (0..100_000u32).map(|at| (at * 13) as u8).collect();
    for lens in
        [&[100_000][..], &[0, 24, 4096, 0, 24, 4096, 91_760], &[1, 16_383, 83_616], &[7, 50]]
    {
        let sealed = controller.seal(&mut [IoSlice::new(&message)], usize::MAX);
        assert_eq!(sealed, Ok(message.len()));
        let bytes = controller.outgoing().to_vec();
        controller.sent(bytes.len());
        let mut came = Vec::new();
        for piece in bytes.chunks(30_000) {
            host.give(piece.to_vec(), piece.len());
            loop {
                let mut places: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
                let mut slices: Vec<IoSliceMut<'_>> =
                    places.iter_mut().map(|place| IoSliceMut::new(place)).collect();
                let len = host.open(&mut slices).unwrap();
                came.extend_from_slice(&places.concat()[..len]);
                if len < lens.iter().sum() {
                    break;
                }
            }
            host.take_back();
        }
        assert!(came == message, "{lens:?}");
    }
}

/// A host of TLS 1.2: a ClientHello with one cipher suite and no extension.
#[test]
fn a_host_with_an_older_protocol_is_refused_with_an_alert() {
    let key = psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1);
    let mut hello = vec![22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    hello.extend([9; 32]);
    hello.extend([0, 0, 2, 0xC0, 0x2F, 1, 0]);
    let mut controller = Session::controller(Arc::new(These(vec![key]))).unwrap();
    let len = hello.len();
    controller.give(hello, len);
    let error = controller.handshake().unwrap_err();
    assert!(matches!(error, TlsError::Failed(_) | TlsError::NoKey), "{error}");
    assert_eq!(controller.outgoing()[..2], [21, 3], "an alert says why");
}

/// A run of `openssl s_server`, and a host's session with it.
struct Foreign {
    server: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stream: TcpStream,
}

impl Foreign {
    /// `None`, with a word about it, where the program is not installed.
    fn start(arguments: &[&str]) -> Option<Foreign> {
        let mut command = Command::new("openssl");
        command.args(["s_server", "-accept", "127.0.0.1:0", "-tls1_3"]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut server) = command.spawn() else {
            println!("SKIPPED: the program openssl is not installed");
            return None;
        };
        let stdin = server.stdin.take().unwrap();
        let mut stdout = BufReader::new(server.stdout.take().unwrap());
        let accepts = line_with(&mut stdout, "ACCEPT ");
        let stream = TcpStream::connect(accepts.trim().trim_start_matches("ACCEPT ")).unwrap();
        Some(Foreign { server, stdin, stdout, stream })
    }

    /// Sends what is to be sent, and receives once; then `read` has its turn.
    fn exchange<T>(
        &mut self,
        session: &mut Session,
        read: impl FnOnce(&mut Session) -> Result<T, TlsError>,
    ) -> Result<T, TlsError> {
        self.flush(session);
        let mut memory = vec![0; 100_000];
        let len = self.stream.read(&mut memory).unwrap();
        assert!(len > 0, "the other side has closed the connection");
        session.give(memory, len);
        let result = read(session);
        session.take_back();
        result
    }

    fn flush(&mut self, session: &mut Session) {
        self.stream.write_all(session.outgoing()).unwrap();
        session.sent(session.outgoing().len());
    }

    fn handshake(&mut self, session: &mut Session) -> Result<(), TlsError> {
        let mut is_over = session.handshake()?;
        while !is_over {
            is_over = self.exchange(session, Session::handshake)?;
        }
        Ok(())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

fn line_with(stdout: &mut BufReader<ChildStdout>, text: &str) -> String {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "openssl has ended");
    }
    line
}

#[test]
fn a_controller_that_has_a_certificate_instead_of_the_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [secret, certificate] = ["key", "certificate"].map(|name| folder.path().join(name));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=impostor"]);
    command.arg("-keyout").arg(&secret).arg("-out").arg(&certificate).stderr(Stdio::null());
    let Ok(status) = command.status() else {
        return println!("SKIPPED: the program openssl is not installed");
    };
    assert!(status.success());
    let arguments = ["-key", &text(&secret), "-cert", &text(&certificate)];
    let mut impostor = Foreign::start(&arguments).unwrap();
    let mut host =
        Session::host(&psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1)).unwrap();
    assert_eq!(impostor.handshake(&mut host), Err(TlsError::NoKey));
}

/// Our records and those of OpenSSL, with its session tickets, and with changes of keys that it makes and asks for. The
/// program takes keys with SHA-256 alone.
#[test]
fn openssl_reads_what_is_sealed_and_is_read_also_after_changes_of_keys() {
    let key = psk(7, dlfs_nvme::auth::Hash::Sha256, IdentityVersion::V1);
    let digits: String = key.key().iter().map(|byte| format!("{byte:02x}")).collect();
    let arguments = ["-nocert", "-psk", &digits, "-psk_identity", key.identity()];
    let Some(mut openssl) = Foreign::start(&arguments) else { return };
    let mut host = Session::host(&key).unwrap();
    openssl.handshake(&mut host).unwrap();
    for (round, command) in ["", "k\n", "K\n", "k\n"].into_iter().enumerate() {
        openssl.stdin.write_all(command.as_bytes()).unwrap();
        if !command.is_empty() {
            // Its change of keys arrives; a command is the beginning of what openssl reads at once.
            let change = openssl.exchange(&mut host, |host| open(host, &mut [0; 1]));
            assert_eq!(change, Ok(0));
        }
        let said = format!("round {round}, {}\n", "x".repeat(9_000));
        openssl.stdin.write_all(said.as_bytes()).unwrap();
        let mut heard = Vec::new();
        while heard.len() < said.len() {
            let mut into = [0; 5_000];
            openssl
                .exchange(&mut host, |host| {
                    while let len @ 1.. = open(host, &mut into)? {
                        heard.extend_from_slice(&into[..len]);
                    }
                    Ok(())
                })
                .unwrap();
        }
        assert!(heard == said.as_bytes(), "round {round}");
        let words = format!("answer {round}\n");
        host.seal(&mut [IoSlice::new(words.as_bytes())], usize::MAX).unwrap();
        openssl.flush(&mut host);
        line_with(&mut openssl.stdout, words.trim());
    }
}
