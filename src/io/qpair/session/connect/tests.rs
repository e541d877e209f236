//! Channels that connect to the controller's side of a connection in memory.

use std::io::IoSlice;
use std::time::Duration;

use super::*;
use crate::qpair::session::{Goal, HostIdentity};
use dlfs_base::buf::IoBuf;
use dlfs_nvme::auth::{self, Concatenation, ControllerTerms, Group, Hash, Next, Secret};
use dlfs_nvme::nvme::Nqn;
use dlfs_nvme::nvme::sqe::fctype;
use dlfs_nvme::tcp::controller::{self, CommandId, ConnectionOptions, DataTransfer};

fn terms(qid: u16) -> ConnectTerms {
    let nqn = |name: &str| Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).unwrap();
    ConnectTerms {
        common: Terms {
            subnqn: nqn("subsystem"),
            goal: Goal::FirstNamespace,
            host: HostIdentity { nqn: nqn("host"), id: [7; 16], credentials: None },
            digests: Digests::default(),
            required: Digests::default(),
            psk: None,
            psk_v0: None,
            nr_io_queues: 1,
            keep_alive_tmo: Duration::from_secs(if qid == 0 { 5 } else { 0 }),
            tcp_timeout: Duration::from_secs(1),
            io_timeout: Duration::from_secs(2),
            least_progress_bytes: 0,
        },
        cntlid: if qid == 0 { ConnectData::CNTLID_DYNAMIC } else { 5 },
        qid,
        num_entries: 32,
    }
}

/// The controller's side, with the Fabrics commands that arrived whole.
struct Peer {
    connection: controller::Connection,
    came: Vec<(CommandId, Sqe, Vec<u8>)>,
}

impl Peer {
    fn new() -> Peer {
        let digests = Digests::default();
        let options = ConnectionOptions { digests, max_h2c_data_bytes: 4096 };
        Peer { connection: controller::Connection::new(options), came: Vec::new() }
    }

    /// Transfers all bytes in both directions.
    fn exchange(&mut self, now: Instant, channel: &mut Channel<Vec<u8>>) {
        let connection = channel.connection().expect("TCP is connected");
        while connection.wants_transmit() {
            let mut slices = [IoSlice::new(&[]); 8];
            let used = connection.poll_transmit(&mut slices);
            let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
            connection.transmitted(now, bytes.len());
            let mut input = &bytes[..];
            while let Some(event) = self.connection.next(&mut input).unwrap() {
                match event {
                    controller::Event::Command {
                        id,
                        data: DataTransfer::FromHost { len, .. },
                        ..
                    } => self.connection.receive(id, IoBuf::zeroed(len as usize)),
                    controller::Event::Command { id, sqe, .. } => {
                        self.came.push((id, sqe, Vec::new()));
                    }
                    controller::Event::Received { id, sqe, buf } => {
                        self.came.push((id, sqe, buf.to_vec()));
                    }
                    controller::Event::Damaged { .. } => unreachable!("no digests"),
                }
            }
        }
        while !self.connection.transmit().is_empty() {
            let mut slices = [IoSlice::new(&[]); 8];
            let used = self.connection.gather(&mut slices);
            let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
            self.connection.sent(bytes.len());
            connection.handle_received(now, &bytes).unwrap();
        }
    }
}

/// A channel whose Connect command has arrived, and that command.
fn connecting(now: Instant, qid: u16) -> (Channel<Vec<u8>>, Peer, CommandId) {
    let mut channel = Channel::new(now, terms(qid));
    let mut peer = Peer::new();
    assert_eq!(channel.stage(), Some("TCP connect"));
    channel.handle_connected(now);
    assert_eq!(channel.stage(), Some("initialising the connection"));
    peer.exchange(now, &mut channel);
    assert!(channel.poll_event(now).is_none());
    peer.exchange(now, &mut channel);
    assert_eq!((channel.stage(), channel.has_room()), (Some("Connect"), false));
    let (id, sqe, data) = peer.came.pop().expect("Connect has come");
    assert_eq!(sqe.fctype(), Some(fctype::CONNECT));
    assert_eq!(data.len(), size_of::<ConnectData>());
    assert_eq!((sqe.cdw10.get() >> 16, sqe.cdw11.get() & 0xFFFF), (qid.into(), 31));
    (channel, peer, id)
}

/// The channel's event after an answer to Connect.
fn answered(qid: u16, answer: Cqe) -> (Channel<Vec<u8>>, Peer, Event<Vec<u8>>) {
    let now = Instant::now();
    let (mut channel, mut peer, id) = connecting(now, qid);
    peer.connection.connected(31, 0, false);
    peer.connection.finish_with(id, answer);
    peer.exchange(now, &mut channel);
    let event = channel.poll_event(now).expect("it is answered");
    peer.exchange(now, &mut channel);
    (channel, peer, event)
}

fn cqe(status: Status, dw0: u32) -> Cqe {
    let mut cqe = Cqe::new(0, status);
    cqe.dw0 = dw0.into();
    cqe
}

#[test]
fn admin_and_io_queues_connect_in_the_same_way() {
    for qid in [0, 3] {
        let (mut channel, mut peer, event) = answered(qid, cqe(Status::SUCCESS, 5));
        assert!(matches!(event, Event::Ready { cntlid: 5 }), "{event:?}");
        assert_eq!((channel.stage(), channel.has_room()), (None, true));
        let now = Instant::now();
        channel.submit(now, Sqe::keep_alive(0), Transfer::None, false, vec![1]).unwrap();
        peer.exchange(now, &mut channel);
        let (id, ..) = peer.came.pop().unwrap();
        peer.connection.finish(id, Status::SUCCESS, 0);
        peer.exchange(now, &mut channel);
        let Some(Event::Done { payload, result: Ok(_) }) = channel.poll_event(now) else {
            panic!("it has not ended")
        };
        assert_eq!(payload, [1]);
    }
}

#[test]
fn nothing_is_sent_on_a_queue_whose_controller_wants_authentication_first() {
    let required = cqe(Status::AUTHENTICATION_REQUIRED, 0);
    for qid in [0, 3] {
        for wanted in [CONNECT_ATR, CONNECT_ASCR, CONNECT_ATR | CONNECT_ASCR] {
            let (mut channel, peer, event) = answered(qid, cqe(Status::SUCCESS, wanted | 5));
            assert_unauthenticated(&event);
            let now = Instant::now();
            let sqe = Sqe::keep_alive(0);
            assert!(channel.submit(now, sqe, Transfer::None, false, vec![1]).is_err());
            assert!(!channel.has_room() && !channel.wants_transmit());
            assert_eq!(peer.came.len(), 0);
        }
        assert_unauthenticated(&answered(qid, required).2);
    }
}

#[track_caller]
fn assert_unauthenticated(event: &Event<Vec<u8>>) {
    let Event::Failed { failure, refused: false } = event else { panic!("{event:?}") };
    assert_eq!(failure.kind, ErrorKind::Refused);
    assert_eq!(failure.message, "Connect: the target requires authentication");
}

#[test]
fn a_refused_connect_names_the_reason_and_may_be_retried() {
    let invalid = |offset, in_data| InvalidParameter { offset, in_data }.to_wire();
    let parameters = Status::CONNECT_INVALID_PARAMETERS;
    for (status, dw0, kind, words) in [
        (Status::CONNECT_INVALID_HOST, 0, ErrorKind::Refused, "host (nqn.2026-11.io.dlfs:host): "),
        (parameters, invalid(256, true), ErrorKind::NotFound, "no such subsystem"),
        (parameters, invalid(42, false), ErrorKind::Refused, "offset 42 of the command"),
        (Status::INTERNAL_ERROR, 0, ErrorKind::Refused, "the controller answered"),
    ] {
        let (channel, _, event) = answered(1, cqe(status, dw0));
        let Event::Failed { failure, refused: true } = event else { panic!("{event:?}") };
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(failure.message.starts_with("Connect: "), "{failure}");
        assert!(failure.message.contains(words), "{failure}");
        assert!(!channel.has_room());
    }
}

#[test]
fn each_step_has_a_time_limit() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut channel = Channel::<Vec<u8>>::new(start, terms(0));
    assert_eq!(channel.poll_timeout(), Some(after(1)));
    channel.handle_timeout(start).unwrap();
    let failure = channel.handle_timeout(after(1)).unwrap_err();
    assert_eq!((failure.kind, &*failure.message), (ErrorKind::TimedOut, "no answer within 1s"));

    let mut channel = Channel::<Vec<u8>>::new(start, terms(0));
    channel.handle_connected(start);
    assert_eq!(channel.poll_timeout(), Some(after(2)));
    assert_eq!(channel.handle_timeout(after(2)).unwrap_err().kind, ErrorKind::TimedOut);

    let (mut channel, ..) = connecting(start, 0);
    assert_eq!(channel.poll_timeout(), Some(after(2)));
    assert_eq!(channel.handle_timeout(after(2)).unwrap_err().kind, ErrorKind::TimedOut);
}

/// The channel's last event after a connect to a controller with these terms, and the commands that arrived.
fn authenticated(
    credentials: Credentials,
    terms_of_controller: impl FnOnce(&ConnectTerms) -> ControllerTerms,
) -> (Channel<Vec<u8>>, Event<Vec<u8>>, Vec<u8>) {
    let now = Instant::now();
    let mut terms = terms(0);
    let mut controller = auth::Controller::new(terms_of_controller(&terms), &randomness_of(0x55));
    terms.common.host.credentials = Some(credentials);
    let mut channel = Channel::new(now, terms);
    let mut peer = Peer::new();
    channel.handle_connected(now);
    let mut sends = None::<Vec<u8>>;
    let mut fctypes = Vec::new();
    for _ in 0..32 {
        peer.exchange(now, &mut channel);
        while let Some((id, sqe, data)) = peer.came.pop() {
            fctypes.push(sqe.fctype().unwrap());
            match sqe.fctype() {
                Some(fctype::CONNECT) => {
                    peer.connection.connected(31, 8192, false);
                    peer.connection.finish_with(id, cqe(Status::SUCCESS, CONNECT_ATR | 5));
                }
                Some(fctype::AUTHENTICATION_SEND) => {
                    assert_eq!(
                        (sqe.cdw10.get(), sqe.cdw11.get()),
                        (0xE901_0100, data.len() as u32)
                    );
                    peer.connection.finish(id, Status::SUCCESS, 0);
                    sends = drive(controller.handle(&data), &mut controller);
                }
                Some(fctype::AUTHENTICATION_RECEIVE) => {
                    assert_eq!(sqe.cdw11.get(), 4096);
                    let message = sends.take().expect("the controller has something to say");
                    // Shorter than the room for it, as some targets send it.
                    let mut buf = IoBuf::zeroed(message.len());
                    buf.copy_from_slice(&message);
                    peer.connection.send_data(id, buf.freeze());
                    let next = controller.sent();
                    assert!(drive(next, &mut controller).is_none());
                }
                _ => panic!("{sqe:?}"),
            }
        }
        peer.exchange(now, &mut channel);
        if let Some(event) = channel.poll_event(now) {
            return (channel, event, fctypes);
        }
    }
    panic!("it did not end: {:?}", channel.stage())
}

/// Runs a controller's computation; returns its next message.
fn drive(mut next: Next, controller: &mut auth::Controller) -> Option<Vec<u8>> {
    loop {
        next = match next {
            Next::Compute(work) => controller.computed(work.compute()),
            Next::Send(message) => return Some(message),
            Next::Receive | Next::Authenticated | Next::Failed(_) => return None,
        }
    }
}

fn randomness_of(byte: u8) -> auth::Randomness {
    auth::Randomness { challenge: [byte; 64], exponent: [byte; 48], sequence: byte.into() }
}

fn credentials(is_mutual: bool) -> Credentials {
    let ctrl_secret = is_mutual.then(|| Secret::generate(&[9; 64], None));
    let secret = Secret::generate(&[8; 64], Some(Hash::Sha256));
    Credentials { secret, ctrl_secret, concatenates: false, randomness: || Ok(randomness_of(0x77)) }
}

fn controller_terms(terms: &ConnectTerms, credentials: Credentials) -> ControllerTerms {
    ControllerTerms {
        hostnqn: terms.common.host.nqn.clone(),
        subnqn: terms.common.subnqn.clone(),
        secrets: vec![credentials.secret],
        ctrl_secret: credentials.ctrl_secret,
        hashes: vec![Hash::Sha384],
        groups: vec![Group::Ffdhe2048],
        concatenation: Concatenation::No,
    }
}

#[test]
fn a_queue_whose_controller_wants_authentication_is_used_once_that_has_succeeded() {
    for is_mutual in [false, true] {
        let theirs = credentials(is_mutual);
        let (channel, event, fctypes) =
            authenticated(credentials(is_mutual), |terms| controller_terms(terms, theirs));
        assert!(matches!(event, Event::Ready { cntlid: 5 }), "{event:?}");
        assert_eq!((channel.stage(), channel.has_room()), (None, true));
        let mut expected = vec![1, 5, 6, 5, 6];
        expected.extend(is_mutual.then_some(5));
        assert_eq!(fctypes, expected);
    }
}

#[test]
fn an_authentication_that_concatenates_ends_with_the_same_key_of_tls_on_both_sides() {
    let ours = Credentials { concatenates: true, ..credentials(true) };
    let theirs = credentials(true);
    let (_, event, _) = authenticated(ours.clone(), |terms| ControllerTerms {
        concatenation: Concatenation::Optional,
        ..controller_terms(terms, theirs)
    });
    let Event::Concatenated { psk } = event else { panic!("{event:?}") };
    assert!(psk.identity().starts_with("NVMe1G02 nqn.2026-11.io.dlfs:host "));
    assert_eq!(psk.key().len(), 48);
    // A controller that generates no key is refused, and so is one that requires no authentication.
    let theirs = credentials(true);
    let (_, event, _) = authenticated(ours, |terms| controller_terms(terms, theirs));
    let Event::Failed { failure, .. } = event else { panic!("{event:?}") };
    assert!(failure.message.contains("secure channel concatenation"), "{}", failure.message);
}

#[test]
fn a_wrong_key_is_reported_with_its_cause_and_without_the_key() {
    let theirs = Credentials { secret: Secret::generate(&[1; 64], None), ..credentials(false) };
    let (channel, event, _) =
        authenticated(credentials(false), |terms| controller_terms(terms, theirs));
    let Event::Failed { failure, refused: false } = event else { panic!("{event:?}") };
    assert_eq!(failure.kind, ErrorKind::Refused);
    assert_eq!(failure.message, "authentication: the other side does not accept the response");
    assert!(!channel.has_room());
}

#[test]
fn without_random_numbers_authentication_and_the_queue_fail() {
    let none = || Err(dlfs_base::error::Error::new(ErrorKind::Io, "the generator is away"));
    let ours = Credentials { randomness: none, ..credentials(false) };
    let (channel, event, fctypes) =
        authenticated(ours, |terms| controller_terms(terms, credentials(false)));
    let Event::Failed { failure, refused: false } = event else { panic!("{event:?}") };
    assert!(failure.message.contains("the generator is away"), "{failure}");
    assert_eq!((channel.has_room(), fctypes), (false, vec![1]));
}

#[test]
fn a_controller_that_must_authenticate_and_does_not_is_refused() {
    let now = Instant::now();
    let mut terms = terms(0);
    terms.common.host.credentials = Some(credentials(true));
    let mut channel = Channel::<Vec<u8>>::new(now, terms);
    let mut peer = Peer::new();
    channel.handle_connected(now);
    peer.exchange(now, &mut channel);
    assert!(channel.poll_event(now).is_none());
    peer.exchange(now, &mut channel);
    let (id, ..) = peer.came.pop().unwrap();
    peer.connection.connected(31, 0, false);
    peer.connection.finish_with(id, cqe(Status::SUCCESS, 5));
    peer.exchange(now, &mut channel);
    let Some(Event::Failed { failure, .. }) = channel.poll_event(now) else { panic!("it went on") };
    assert!(failure.message.contains("although it must"), "{failure}");
}
