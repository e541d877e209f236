//! Events of a target's hosts in its access log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::support::raw_host::RawHost;
use dlfs::nvme::{ConnectData, Nqn, Sqe, Status};
use dlfs::qpair::mem::MemNamespace;
use dlfs::target::keys::generate_secret;
use dlfs::target::{AccessEvent, AccessKind, AccessLog, HostKeys, Target, TargetOptions};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};
use zerocopy::IntoBytes as _;

const NONE: Digests = Digests { header: false, data: false };

/// An event, with texts of its own.
#[derive(Debug, PartialEq)]
struct Told {
    host: Option<Nqn>,
    peer: Option<SocketAddr>,
    cntlid: Option<u16>,
    what: &'static str,
    why: String,
    /// Commands, sent and received bytes of a host that has left.
    counts: [u64; 3],
}

/// Sends on what it is told.
#[derive(Debug)]
struct Log(Sender<Told>);

impl AccessLog for Log {
    fn tell(&self, event: &AccessEvent<'_>) {
        assert_eq!(event.subsystem, &nqn());
        let mut counts = [0; 3];
        let (what, why) = match event.kind {
            AccessKind::Connected { discovery: false, tls: false, must_authenticate: false } => {
                ("connected", "")
            }
            AccessKind::Connected { must_authenticate: true, .. } => ("connected unproven", ""),
            AccessKind::Connected { .. } => ("connected in another way", ""),
            AccessKind::Authenticated => ("authenticated", ""),
            AccessKind::NotAuthenticated { why } => ("not authenticated", why),
            AccessKind::Refused { why } => ("refused", why),
            AccessKind::Evicted { why } => ("evicted", why),
            AccessKind::BrokeProtocol { why } => ("broke the protocol", why),
            AccessKind::TimedOut { why } => ("timed out", why),
            AccessKind::Disconnected { why, commands, sent_bytes, received_bytes, .. } => {
                counts = [commands, sent_bytes, received_bytes];
                ("disconnected", why)
            }
        };
        let host = event.host.cloned();
        let peer = event.peer;
        let cntlid = event.cntlid;
        let why = why.into();
        let _ = self.0.send(Told { host, peer, cntlid, what, why, counts }); // the test may be over
    }
}

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.io.dlfs:told").unwrap()
}

fn serve(change: impl FnOnce(&mut TargetOptions)) -> (Target, Receiver<Told>) {
    let (sender, told) = channel();
    let mut options = TargetOptions { num_pollers: 2, ..TargetOptions::new(nqn()) };
    options.access_log = Some(Arc::new(Log(sender)));
    change(&mut options);
    let target = Target::bind(options, vec![Arc::new(MemNamespace::new(1 << 20, 512).unwrap())]);
    (target.unwrap(), told)
}

/// The next event, which must be of this kind.
#[track_caller]
fn next(told: &Receiver<Told>, what: &str) -> Told {
    let event = told.recv_timeout(Duration::from_secs(60)).expect(what);
    assert_eq!(event.what, what, "{event:?}");
    event
}

fn connect(host: &mut RawHost) -> Status {
    let data = ConnectData::new(host.hostid, 0xFFFF, &host.subnqn, &host.hostnqn);
    host.call(Sqe::connect(0, 0, 31, 0), data.as_bytes()).0.status()
}

#[test]
fn a_host_that_leaves_is_told_once_all_its_connections_have_ended_with_what_crossed_them() {
    let (target, told) = serve(|_| {});
    let (admin, [mut one, mut two]) = RawHost::with_queues(target.local_addr(), &nqn(), NONE);
    let connected = next(&told, "connected");
    assert_eq!(connected.host.as_ref(), Some(&admin.hostnqn));
    for number in [0, 1, 0] {
        let io = if number == 0 { &mut one } else { &mut two };
        let (cqe, bytes) = io.call(Sqe::read(0, Nsid(1), Lba(0), 8, 4096), &[]);
        assert!(cqe.status().is_success() && bytes.len() == 4096);
    }
    assert_eq!(target.disconnect(&admin.hostnqn), 1);
    let gone = next(&told, "disconnected");
    assert_eq!(
        (&gone.host, gone.peer, gone.cntlid),
        (&connected.host, connected.peer, connected.cntlid)
    );
    assert_eq!(gone.why, "the operator disconnects the host");
    let [commands, sent, received] = gone.counts;
    assert_eq!(commands, 3);
    // Three blocks of data and a response to each of the commands, of which some were for setting up.
    assert!((3 * 4096..4 * 4096).contains(&sent) && received > 3 * 72, "{gone:?}");
    drop(target);
    assert!(told.recv().is_err(), "nothing else has happened");
}

#[test]
fn a_host_that_makes_way_or_breaks_the_protocol_is_told_with_the_reason() {
    let (target, told) = serve(|options| {
        (options.max_controllers, options.num_pollers) = (2, 1);
    });
    let open = |octet| {
        let mut host = RawHost::open_from(octet, target.local_addr(), &nqn());
        host.initialise(NONE);
        host
    };
    let mut hosts = [open(1), open(1)];
    for host in &mut hosts {
        assert!(connect(host).is_success());
        next(&told, "connected");
    }
    // The address that has both controllers loses one to another address.
    let mut other = open(2);
    assert!(connect(&mut other).is_success());
    let evicted = next(&told, "evicted");
    assert!(evicted.why.starts_with("in favour of another controller"), "{evicted:?}");
    let both = [(); 2].map(|()| told.recv_timeout(Duration::from_secs(60)).unwrap());
    let of = |what: &str| both.iter().find(|event| event.what == what).expect(what);
    assert_eq!(of("connected").peer.unwrap().ip().to_string(), "127.0.0.2");
    assert_eq!(of("disconnected").why, "evicted in favour of another controller");
    assert_eq!(of("disconnected").peer, evicted.peer);

    other.send(&[0xFF; 64]);
    let wrong = next(&told, "broke the protocol");
    assert!(wrong.why.starts_with("a protocol error: "), "{wrong:?}");
    assert_eq!(next(&told, "disconnected").why, "protocol error");
}

#[test]
fn a_host_that_leaves_without_authenticating_is_told_once_before_its_end() {
    let (target, told) = serve(|options| {
        let secrets = vec![generate_secret(None).unwrap()];
        let host = Nqn::new("nqn.2026-11.io.dlfs:raw-host").unwrap();
        options.host_keys.insert(host, HostKeys { secrets, ..HostKeys::default() });
    });
    let mut host = RawHost::open(target.local_addr(), &nqn());
    host.initialise(NONE);
    assert!(connect(&mut host).is_success());
    let connected = next(&told, "connected unproven");
    drop(host);
    let left = next(&told, "not authenticated");
    assert_eq!(left.why, "the host left without authenticating");
    assert_eq!((&left.host, left.cntlid), (&connected.host, connected.cntlid));
    next(&told, "disconnected");
    drop(target);
    assert!(told.recv().is_err(), "nothing else has happened");
}

#[test]
fn one_that_says_nothing_has_no_name_and_no_controller_that_could_leave() {
    let (target, told) = serve(|options| options.connect_timeout = Duration::from_millis(50));
    let _silent = RawHost::open(target.local_addr(), &nqn());
    let late = next(&told, "timed out");
    assert_eq!((&late.host, late.cntlid), (&None, None));
    assert_eq!(late.why, "no Connect succeeded in time");
    drop(target);
    assert!(told.recv().is_err(), "nothing else has happened");
}
