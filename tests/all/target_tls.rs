//! Hosts and targets inside TLS 1.3 with pre-shared keys.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::keyring::Keyring;
use crate::support::raw_host::{RawHost, Reply};
use crate::support::tls_tunnel;
use dlfs::ErrorKind;
use dlfs::address::{Address, TcpAddress};
use dlfs::auth::{ConfiguredPsk, Derivation, Hash, IdentityVersion, Secret, TlsPsk};
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::nvme::{ConnectData, Nqn, Sqe, Status};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{JobKey, PeerKeys, PeerOptions, Serving};
use dlfs::qpair::ConnectOptions;
use dlfs::qpair::Device as _;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::TcpNamespace;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::target::{HostKeys, Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::tls::{Keys, Session};
use dlfs::units::{Lba, Nsid, SampleId};

fn subnqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:secret").unwrap()
}

fn host(name: &str) -> Nqn {
    Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap()
}

fn key(byte: u8, hash: Hash) -> ConfiguredPsk {
    ConfiguredPsk::generate(&[byte; 64], hash)
}

fn keys(of: &[(&str, &[ConfiguredPsk])]) -> BTreeMap<Nqn, HostKeys> {
    let keys = of.iter().map(|(name, tls_keys)| {
        (host(name), HostKeys { tls_keys: tls_keys.to_vec(), ..HostKeys::default() })
    });
    keys.collect()
}

fn connect_options(name: &str, tls_key: Option<ConfiguredPsk>) -> ConnectOptions {
    ConnectOptions {
        hostnqn: Some(host(name)),
        tls_key,
        connect_timeout: Duration::from_secs(60),
        ctrl_loss_tmo: Duration::from_secs(120),
        ..ConnectOptions::default()
    }
}

fn connect(target: &Target, options: &ConnectOptions) -> dlfs::Result<TcpNamespace> {
    let Address::Tcp(address) = target.address(Nsid(1)) else { panic!("it serves TCP") };
    TcpNamespace::connect(&address, options)
}

const NONE: Digests = Digests { header: false, data: false };
const LEN: usize = 4 << 20;

fn pattern(at: usize) -> u8 {
    (at / 512 * 31 + at * 7) as u8
}

/// A target with 4 MiB of a pattern, which knows `alice` by two keys and `bob` by his name.
fn serve(change: impl FnOnce(&mut TargetOptions)) -> Target {
    let device = MemNamespace::new(LEN as u64, 512).unwrap();
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    blocking.write_at(0, &(0..LEN).map(pattern).collect::<Vec<u8>>()).unwrap();
    let mut options = TargetOptions::new(subnqn());
    let both = [key(1, Hash::Sha256), key(2, Hash::Sha384)];
    options.host_keys = keys(&[("alice", &both), ("mallory", &[key(9, Hash::Sha256)])]);
    options.allow_hosts = vec![host("bob")];
    change(&mut options);
    Target::bind(options, vec![Arc::new(device)]).unwrap()
}

fn reads_the_pattern(namespace: &TcpNamespace) {
    let mut blocking = Blocking::new(namespace.queue_pair().unwrap()).unwrap();
    for (offset, len) in [(0, LEN), (4096, 4096), (512, 512), (1 << 20, 300 << 10)] {
        let bytes = blocking.read(offset as u64, len).unwrap();
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == pattern(offset + i)), "{offset}");
    }
}

fn refusal(target: &Target, options: &ConnectOptions) -> (ErrorKind, String) {
    let error = connect(target, options).err().expect("a refusal");
    (error.kind(), error.report().to_string())
}

#[test]
fn a_host_with_its_key_reads_and_writes_with_both_suites_and_with_digests_inside() {
    let target = serve(|options| options.writable = true);
    for (byte, hash) in [(1, Hash::Sha256), (2, Hash::Sha384)] {
        for digest in [false, true] {
            let options = connect_options("alice", Some(key(byte, hash)));
            let options = ConnectOptions {
                writable: true,
                hdr_digest: digest,
                data_digest: digest,
                ..options
            };
            let namespace = connect(&target, &options).unwrap();
            assert!(namespace.namespace().engine.starts_with("tcp (TLS"));
            reads_the_pattern(&namespace);
            let mut blocking = Blocking::new(namespace.queue_pair().unwrap()).unwrap();
            let bytes: Vec<u8> = (0..LEN).map(pattern).collect();
            for (offset, len) in [(0, 4096), (8192, 512), (1 << 20, 1 << 20)] {
                blocking.write_at(offset as u64, &bytes[offset..offset + len]).unwrap();
            }
            reads_the_pattern(&namespace);
            let address = target.local_addr();
            let found = dlfs::qpair::tcp::discover("127.0.0.1", address.port(), &options);
            assert_eq!(found.unwrap().len(), 2);
        }
    }
    assert_eq!(target.stats().refused, 0);
}

#[test]
fn a_wrong_key_and_no_key_are_refused_and_hosts_without_keys_stay_plain() {
    let target = serve(|_| {});
    for wrong in [key(3, Hash::Sha256), key(9, Hash::Sha256), key(3, Hash::Sha384)] {
        let (kind, text) = refusal(&target, &connect_options("alice", Some(wrong)));
        assert_eq!(kind, ErrorKind::Refused, "{text}");
        assert!(text.contains("TLS handshake"), "{text}");
    }
    let (kind, text) = refusal(&target, &connect_options("alice", None));
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("--tls-key"), "{text}");
    let plain = connect(&target, &connect_options("bob", None)).unwrap();
    assert_eq!(plain.namespace().engine, "tcp");
    reads_the_pattern(&plain);
    // A target without any key of TLS takes the first byte of TLS for a broken PDU.
    let without = serve(|options| {
        (options.host_keys, options.allow_any_host) = (BTreeMap::new(), true);
    });
    let options = connect_options("alice", Some(key(1, Hash::Sha256)));
    let (kind, text) = refusal(&without, &options);
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("does not speak TLS"), "{text}");
}

fn psk(name: &str, subnqn: &Nqn, key: &ConfiguredPsk) -> TlsPsk {
    let derivation = Derivation::Specification;
    key.tls_psk(IdentityVersion::V1, derivation, &host(name), subnqn).unwrap()
}

/// A raw host that connects inside TLS with the key of `name`.
fn raw(target: &Target, name: &str, key: &ConfiguredPsk) -> RawHost {
    let psk = psk(name, &subnqn(), key);
    let make = move || Session::host(&psk).unwrap();
    let tunnel = tls_tunnel::of_host(target.local_addr(), Box::new(make));
    RawHost::initialised(tunnel, &subnqn(), NONE)
}

#[test]
fn a_key_is_good_for_its_own_host_and_an_io_queue_is_inside_tls_as_its_admin_queue() {
    let target = serve(|_| {});
    let refused = Status::CONNECT_INVALID_HOST.do_not_retry();
    for (name, claims) in [("mallory", "alice"), ("alice", "bob")] {
        let byte = if name == "alice" { 1 } else { 9 };
        let mut queue = raw(&target, name, &key(byte, Hash::Sha256));
        queue.hostnqn = host(claims);
        assert_eq!(queue.connect(0, 31, ConnectData::CNTLID_DYNAMIC).status(), refused);
    }
    let mut admin = raw(&target, "alice", &key(1, Hash::Sha256));
    admin.hostnqn = host("alice");
    let cqe = admin.connect(0, 31, ConnectData::CNTLID_DYNAMIC);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    let enable = u64::from(dlfs::nvme::Cc::ENABLE.0);
    let set = Sqe::property_set(0, dlfs::nvme::Property::Cc, enable);
    assert!(admin.call(set, &[]).0.status().is_success());
    assert!(admin.call(Sqe::set_num_queues(0, 2), &[]).0.status().is_success());
    let cntlid = cqe.dw0.get() as u16;
    let mut plain = RawHost::initialised(target.local_addr(), &subnqn(), NONE);
    plain.hostnqn = host("alice");
    assert_eq!(plain.connect(1, 31, cntlid).status(), refused);
    let mut io = raw(&target, "alice", &key(2, Hash::Sha384));
    io.hostnqn = host("alice");
    assert!(io.connect(1, 31, cntlid).status().is_success());
    let read = io.call(Sqe::read(0, Nsid(1), Lba(0), 8, 4096), &[]).1;
    assert!(read.iter().enumerate().all(|(at, byte)| *byte == pattern(at)));
}

#[test]
fn keys_are_replaced_while_hosts_are_connected_and_two_are_valid_in_between() {
    let mut target = serve(|_| {});
    let options = |byte| connect_options("alice", Some(key(byte, Hash::Sha256)));
    let before = connect(&target, &options(1)).unwrap();
    let mut blocking = Blocking::new(before.queue_pair().unwrap()).unwrap();
    let both = [key(1, Hash::Sha256), key(5, Hash::Sha256)];
    target.set_host_keys(keys(&[("alice", &both)])).unwrap();
    reads_the_pattern(&connect(&target, &options(1)).unwrap());
    reads_the_pattern(&connect(&target, &options(5)).unwrap());
    target.set_host_keys(keys(&[("alice", &both[1..])])).unwrap();
    assert_eq!(refusal(&target, &options(1)).0, ErrorKind::Refused);
    assert_eq!(blocking.read(0, 512).unwrap()[3], pattern(3), "what is connected stays");
}

#[test]
fn a_key_that_an_old_libnvme_derived_works_with_the_option_for_it() {
    let target = serve(|_| {});
    let old = connect_options("alice", Some(key(1, Hash::Sha256)));
    let old = ConnectOptions { tls_derivation: Derivation::Compatible, ..old };
    reads_the_pattern(&connect(&target, &old).unwrap());
}

fn secret(byte: u8) -> Secret {
    Secret::generate(&[byte; 64], Some(Hash::Sha256))
}

/// `carol` must generate keys of TLS by her authentication, `dave` may.
fn concatenating() -> Target {
    serve(|options| {
        for (name, must_concat) in [("carol", true), ("dave", false)] {
            let secrets = vec![secret(1)];
            let ctrl_secret = Some(secret(2));
            let keys = HostKeys { secrets, ctrl_secret, must_concat, ..HostKeys::default() };
            options.host_keys.insert(host(name), keys);
        }
        // SHA-512 is preferred, and no suite of TLS has it.
        options.dhchap_hashes.reverse();
    })
}

fn concat_options(name: &str, concat: bool, is_mutual: bool) -> ConnectOptions {
    ConnectOptions {
        concat,
        dhchap_secret: Some(secret(1)),
        dhchap_ctrl_secret: is_mutual.then(|| secret(2)),
        ..connect_options(name, None)
    }
}

#[test]
fn an_authentication_generates_the_key_of_tls_for_all_queues() {
    let target = concatenating();
    for (name, is_mutual) in [("carol", true), ("carol", false), ("dave", true)] {
        let namespace = connect(&target, &concat_options(name, true, is_mutual)).unwrap();
        assert_eq!(namespace.namespace().engine, "tcp (TLS)");
        reads_the_pattern(&namespace);
        let mut other = Blocking::new(namespace.queue_pair().unwrap()).unwrap();
        assert_eq!(other.read(0, 512).unwrap()[9], pattern(9), "a queue of its own");
    }
    let plain = connect(&target, &concat_options("dave", false, true)).unwrap();
    assert_eq!(plain.namespace().engine, "tcp");
    reads_the_pattern(&plain);
}

#[test]
fn a_host_that_must_generate_a_key_is_refused_without_and_contradictions_are_named() {
    let target = concatenating();
    let (kind, text) = refusal(&target, &concat_options("carol", false, true));
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("--concat"), "{text}");
    let without = ConnectOptions { concat: true, ..connect_options("carol", None) };
    assert_eq!(refusal(&target, &without).0, ErrorKind::InvalidArgument);
    let both = concat_options("carol", true, true);
    let both = ConnectOptions { tls_key: Some(key(1, Hash::Sha256)), ..both };
    assert_eq!(refusal(&target, &both).0, ErrorKind::InvalidArgument);
    // A target that asks for nothing could be anybody.
    let anybody = serve(|options| {
        (options.host_keys, options.allow_any_host) = (BTreeMap::new(), true);
    });
    let (kind, text) = refusal(&anybody, &concat_options("carol", true, false));
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("although it must"), "{text}");
}

#[test]
fn a_target_that_requires_tls_takes_no_connection_without_it() {
    let target = serve(|options| {
        options.require_tls = true;
        let keys = HostKeys { secrets: vec![secret(1)], ..HostKeys::default() };
        options.host_keys.insert(host("carol"), keys);
    });
    for name in ["alice", "bob", "stranger"] {
        let (kind, text) = refusal(&target, &connect_options(name, None));
        assert_eq!(kind, ErrorKind::Refused, "{text}");
        assert!(text.contains("requires TLS"), "{text}");
        let mut plain = RawHost::initialised(target.local_addr(), &subnqn(), NONE);
        plain.hostnqn = host(name);
        let status = plain.connect(0, 31, ConnectData::CNTLID_DYNAMIC).status();
        assert_eq!(status, Status::CONNECT_INVALID_HOST.do_not_retry());
    }
    // Secrets alone prove a host, and do not hide its bytes.
    let (kind, text) = refusal(&target, &concat_options("carol", false, false));
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    assert!(text.contains("--concat"), "{text}");
    let port = target.local_addr().port();
    dlfs::qpair::tcp::discover("127.0.0.1", port, &connect_options("bob", None)).unwrap_err();
    let keyed = connect_options("alice", Some(key(1, Hash::Sha256)));
    for options in [&keyed, &concat_options("carol", true, false)] {
        let namespace = connect(&target, options).unwrap();
        assert_eq!(namespace.namespace().engine, "tcp (TLS)");
        reads_the_pattern(&namespace);
    }
    let found = dlfs::qpair::tcp::discover("127.0.0.1", port, &keyed).unwrap();
    assert!(found.iter().all(|record| (record.treq & 3, record.tsas[0]) == (1, 2)), "required");
}

/// As on a machine where nvme-cli has put keys into the kernel's keyring.
#[test]
fn a_key_in_the_kernels_keyring_connects_its_host_and_its_subsystem_alone() {
    let target = serve(|_| {});
    let name = format!("dlfs-test-{}", std::process::id());
    let options =
        |of: &str| ConnectOptions { tls_keyring: Some(name.clone()), ..connect_options(of, None) };
    let (kind, text) = refusal(&target, &options("alice"));
    assert_eq!(kind, ErrorKind::NotFound, "{text}");
    assert!(text.contains(&name) && text.contains("--tls-key FILE"), "{text}");
    let Some(keyring) = Keyring::make(&name) else { return };
    for (of, subnqn) in [("alice", subnqn()), ("alice", Nqn::discovery()), ("bob", subnqn())] {
        let psk = psk(of, &subnqn, &key(1, Hash::Sha256));
        keyring.put(psk.identity(), psk.key());
    }
    keyring.put("NVMe1R01 no identity", &[1; 32]);
    let namespace = connect(&target, &options("alice")).unwrap();
    assert!(namespace.namespace().engine.starts_with("tcp (TLS"));
    reads_the_pattern(&namespace);
    let address = target.local_addr();
    let found = dlfs::qpair::tcp::discover("127.0.0.1", address.port(), &options("alice"));
    assert_eq!(found.unwrap().len(), 2);
    // The key with SHA-384 goes first, as with Linux; a wrong one does not let in.
    let wrong = psk("alice", &subnqn(), &key(9, Hash::Sha384));
    keyring.put(wrong.identity(), wrong.key());
    let (kind, text) = refusal(&target, &options("alice"));
    assert_eq!(kind, ErrorKind::Refused, "{text}");
    let (kind, text) = refusal(&target, &options("mallory"));
    assert_eq!(kind, ErrorKind::NotFound, "{text}");
    assert!(text.contains("mallory"), "{text}");
    let both = ConnectOptions { tls_key: Some(key(1, Hash::Sha256)), ..options("alice") };
    assert_eq!(refusal(&target, &both).0, ErrorKind::InvalidArgument);
}

struct Only(TlsPsk);

impl Keys for Only {
    fn find(&self, identity: &str) -> Option<TlsPsk> {
        (identity == self.0.identity()).then(|| self.0.clone())
    }
}

#[test]
fn a_target_that_knows_only_identities_of_version_0_is_reached_by_the_second_attempt() {
    let target = serve(|options| {
        (options.host_keys, options.allow_any_host) = (BTreeMap::new(), true);
    });
    let of = |version| {
        let hostnqn = host("alice");
        let derivation = Derivation::Specification;
        key(1, Hash::Sha256).tls_psk(version, derivation, &hostnqn, &subnqn()).unwrap()
    };
    let old: Arc<dyn Keys> = Arc::new(Only(of(IdentityVersion::V0)));
    let make = move || Session::controller(Arc::clone(&old)).unwrap();
    let tunnel = tls_tunnel::of_controller(target.local_addr(), Box::new(make));
    let options = connect_options("alice", Some(key(1, Hash::Sha256)));
    reads_the_pattern(&TcpNamespace::connect(&address(tunnel), &options).unwrap());
}

fn address(at: SocketAddr) -> TcpAddress {
    TcpAddress {
        traddr: at.ip().to_string(),
        trsvcid: at.port(),
        subnqn: subnqn(),
        nsid: Some(Nsid(1)),
    }
}

/// A path that flips a bit of the bytes from the target, or ends there, `at` bytes from the start of a
/// connection; `at` doubles with every connection, so that in the end one gets through.
fn bad_path(target: SocketAddr, is_cut: bool, num_harmed: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let path = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut harm_at = 60;
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(target).unwrap();
            let mut to = far.try_clone().unwrap();
            let mut from = near.try_clone().unwrap();
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let harmed = Arc::clone(&num_harmed);
            std::thread::spawn(move || harm(far, near, harm_at, is_cut, &harmed));
            harm_at = harm_at * 3 / 2;
        }
    });
    path
}

fn harm(mut far: TcpStream, mut near: TcpStream, at: usize, is_cut: bool, harmed: &AtomicU64) {
    let mut bytes = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(len @ 1..) = far.read(&mut bytes) {
        let mut piece = &mut bytes[..len];
        if (passed..passed + len).contains(&at) {
            harmed.fetch_add(1, Ordering::Relaxed);
            if is_cut { piece = &mut piece[..at - passed] } else { piece[at - passed] ^= 0x10 }
        }
        passed += len;
        if near.write_all(piece).is_err() || is_cut && passed > at {
            break;
        }
    }
    let _ = near.shutdown(std::net::Shutdown::Both);
    let _ = far.shutdown(std::net::Shutdown::Both);
}

/// In the handshake, in the admin queue's answers and in data: reads are right, or wait for a connection
/// on which they are.
#[test]
fn a_flipped_bit_or_a_cut_anywhere_costs_a_connection_and_never_a_byte() {
    for is_cut in [false, true] {
        let target = serve(|_| {});
        let num_harmed = Arc::<AtomicU64>::default();
        let path = bad_path(target.local_addr(), is_cut, Arc::clone(&num_harmed));
        let options = connect_options("alice", Some(key(1, Hash::Sha256)));
        let options = ConnectOptions { io_timeout: Duration::from_secs(1), ..options };
        let opened = (0..20).find_map(|_| TcpNamespace::connect(&address(path), &options).ok());
        let namespace = opened.expect("the harm moves behind the handshake");
        reads_the_pattern(&namespace);
        assert!(num_harmed.load(Ordering::Relaxed) > 3, "{num_harmed:?}");
    }
}

#[test]
fn a_host_that_begins_tls_and_falls_silent_is_closed_in_its_time() {
    let target = serve(|_| {});
    let mut silent = RawHost::open(target.local_addr(), &subnqn());
    silent.send(&[22, 3, 1]);
    let mut other = RawHost::open(target.local_addr(), &subnqn());
    other.send(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0]);
    // The second one has sent a whole record, which is no ClientHello: an alert says so.
    let mut alert = [0; 7];
    other.stream.read_exact(&mut alert).unwrap();
    assert_eq!((alert[0], alert[5]), (21, 2), "a fatal alert");
    assert_eq!(silent.receive(), Reply::Closed);
}

/// Two ranks of a job, each a node with a tier of its own.
#[test]
fn ranks_with_a_jobs_key_read_from_each_other_inside_tls() {
    let temp = tempfile::tempdir().unwrap();
    let source = temp.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..200_usize {
        let bytes: Vec<u8> = (0..5_000).map(|at| pattern(at + number)).collect();
        std::fs::write(source.join(format!("{number:03}")), bytes).unwrap();
    }
    let image = Address::from_path(temp.path().join("train.dlfs"));
    let options = ImportOptions { chunk_size_bytes: 64 << 10, ..ImportOptions::default() };
    let connect = ConnectOptions::default();
    import(&[source], std::slice::from_ref(&image), &options, &connect, &mut ()).unwrap();
    let keys = PeerKeys { key: JobKey::Drawn, tls: true };
    let join = |rank| {
        let tiers = vec!["ram:8M".parse().unwrap()];
        let tiers = TierOptions { tiers, node: Some(format!("tls {rank}")), ..Default::default() };
        let open = OpenOptions { tiers, ..OpenOptions::default() };
        let peers = PeerOptions {
            round: "tls".to_owned(),
            rank,
            world_size: 2,
            listen: "127.0.0.1:0".parse().unwrap(),
            node: Some(format!("tls {rank}")),
            serving: Serving::ReadThrough,
            keep_shares: false,
            timeout: Duration::from_secs(60),
            connect: ConnectOptions { hostnqn: Some(host("rank")), ..ConnectOptions::default() },
            keys: Some(keys.clone()),
        };
        let image = Image::open(std::slice::from_ref(&image), &open).unwrap();
        let mut folder = Folder::new(temp.path(), "tls").unwrap();
        image.with_peers(&peers, None, &mut folder).unwrap()
    };
    let ranks: Vec<Image> = std::thread::scope(|scope| {
        let joining: Vec<_> = (0..2).map(|rank| scope.spawn(move || join(rank))).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let ids: Vec<SampleId> = (0..200).map(SampleId).collect();
    for rank in &ranks {
        let mut reader = rank.reader(ReaderOptions::default()).unwrap();
        let mut batch = Batch::new();
        reader.read_batch(&ids, &mut batch).unwrap();
        for sample in batch.iter() {
            assert!(
                sample
                    .bytes
                    .iter()
                    .enumerate()
                    .all(|(at, &byte)| { byte == pattern(at + sample.id.0 as usize) })
            );
        }
        let peers = rank.peers().unwrap();
        assert!(peers.stats().nodes.iter().any(|node| node.bytes > 0));
        let commands = peers.served().unwrap().commands;
        assert_eq!(commands.of("authentication"), 0, "the keys of TLS prove enough");
    }
    // Neither in clear nor with another key.
    let address = ranks[0].peers().unwrap().round().records()[0].addresses[0];
    let Address::Tcp(address) = format!("nvme-tcp://{address}/{}", subnqn()).parse().unwrap()
    else {
        panic!("an address of TCP")
    };
    for tls_key in [None, Some(key(7, Hash::Sha256))] {
        let options =
            ConnectOptions { ctrl_loss_tmo: Duration::ZERO, ..connect_options("rank", tls_key) };
        TcpNamespace::connect_all(&address, &options).map(drop).unwrap_err();
    }
}
