//! A queue pair that loses its connection while no keeper runs.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::qpair::remote::Selection;
use crate::qpair::session::{
    Backlog, Failure, Identified, IdentifiedNamespace, JoinInfo, Portal, SessionState,
};
use crate::qpair::{ConnectOptions, IoError, IoOp};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::ErrorKind;
use dlfs_base::units::{Lba, Nsid};
use dlfs_nvme::nvme::sqe::{fctype, nvm};
use dlfs_nvme::nvme::{Cqe, Nqn, Status};
use dlfs_nvme::tcp::Digests;
use dlfs_nvme::tcp::controller::{Connection, ConnectionOptions, DataTransfer, Event as Command};

/// Answers every command with success. A hostile target drops the connection instead of answering a read.
fn serve(mut stream: TcpStream, hostile: bool) {
    let digests = Digests { header: false, data: false };
    let options = ConnectionOptions { digests, max_h2c_data_bytes: 4096 };
    let mut connection = Connection::new(options);
    let mut received = [0; 64 << 10];
    while let Ok(len) = stream.read(&mut received) {
        let mut input = &received[..len];
        if len == 0 {
            return;
        }
        while let Some(command) = connection.next(&mut input).unwrap() {
            match command {
                Command::Command { id, data: DataTransfer::FromHost { len, .. }, .. } => {
                    connection.receive(id, IoBuf::zeroed(len as usize));
                }
                Command::Command { sqe, .. } if hostile && sqe.opcode == nvm::READ => return,
                Command::Command { id, data: DataTransfer::ToHost(len), .. } => {
                    connection.send_data(id, IoBuf::zeroed(len as usize).freeze());
                }
                Command::Received { id, sqe, .. } if sqe.fctype() == Some(fctype::CONNECT) => {
                    connection.connected(31, 4096, false);
                    connection.finish_with(id, Cqe::new(0, Status::SUCCESS));
                }
                Command::Command { id, .. } | Command::Received { id, .. } => {
                    connection.finish(id, Status::SUCCESS, 0);
                }
                Command::Damaged { .. } => unreachable!("no digests"),
            }
        }
        while !connection.transmit().is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 8];
            let num_slices = connection.gather(&mut slices);
            let len = stream.write_vectored(&slices[..num_slices]).unwrap();
            connection.sent(len);
        }
    }
}

/// Begins a session, as the keeper does when a controller is ready.
fn begin_session(remote: &Remote<Tcp>) {
    let identified = Identified {
        num_io_queues: 1,
        max_entries: 32,
        has_volatile_write_cache: true,
        namespaces: vec![IdentifiedNamespace {
            nsid: Nsid(1),
            block_len_bytes: 512,
            num_blocks: 64,
            ..IdentifiedNamespace::default()
        }],
        ..Identified::default()
    };
    let later = Instant::now() + Duration::from_secs(1); // any wait between rounds is over
    let now = later;
    let namespaces = remote.describe(&identified);
    remote.with(|lifecycle| {
        lifecycle.handle_time(now, ["connecting"; 2]);
        lifecycle.handle_ready(now, 0, JoinInfo::default(), &identified, namespaces);
        assert!(lifecycle.live().is_some(), "{lifecycle:?}");
    });
}

/// Runs one I/O; `None` if it has not completed after `limit`.
fn run(pair: &mut TcpQueuePair, op: IoOp, lba: u64, limit: Duration) -> Option<Completion> {
    let len = if op == IoOp::Flush { 0 } else { 512 };
    let io = Io { op, slba: Lba(lba), buf: IoBuf::zeroed(len), tag: lba };
    let mut pending = VecDeque::from([io]);
    assert_eq!(pair.submit(&mut pending), 1);
    wait(pair, limit)
}

fn wait(pair: &mut TcpQueuePair, limit: Duration) -> Option<Completion> {
    let start = Instant::now();
    let mut done = Vec::new();
    while start.elapsed() < limit {
        if pair.poll(Instant::now(), 1, &mut done) > 0 {
            return done.pop();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

#[test]
fn a_queue_that_lost_its_connection_waits_for_the_next_session_and_its_flush_reports_the_loss() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&accepted);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let hostile = counter.fetch_add(1, Ordering::SeqCst) == 0;
            std::thread::spawn(move || serve(stream.unwrap(), hostile));
        }
    });
    let subnqn = Nqn::new("nqn.2026-11.io.dlfs:queue").unwrap();
    let traddr = address.ip().to_string();
    let portal = Portal {
        address: crate::address::TcpAddress { traddr, trsvcid: address.port(), subnqn, nsid: None },
        socket: address,
        psk: None,
    };
    let options = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let remote = Remote::<Tcp>::new(options, vec![portal], Selection::OfPath, None);
    begin_session(&remote);
    let namespace = remote.namespace(0).unwrap();
    let scope = PairScope::new();
    let mut pair = TcpQueuePair::connect(&remote, 0, namespace, &scope).unwrap();
    let long = Duration::from_secs(60);
    run(&mut pair, IoOp::Write, 0, long).expect("written").result.unwrap();

    // The connection is lost, and no keeper replaces the session yet.
    let early = run(&mut pair, IoOp::Read, 1, Duration::from_millis(300));
    assert!(early.is_none(), "{early:?}");
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "it must not join the old session again");
    let early = run(&mut pair, IoOp::Flush, 0, Duration::from_millis(100));
    assert!(early.is_none(), "{early:?}");

    // Now the keeper runs: it takes the reason, and there is a session again.
    assert!(remote.with(|lifecycle| lifecycle.is_reset(0)));
    assert!(matches!(
        remote.session_state(&mut Backlog::new(Instant::now())),
        SessionState::Pending
    ));
    begin_session(&remote);
    let flush = wait(&mut pair, long).expect("it ends in the next session");
    assert!(matches!(flush.result, Err(IoError::Disconnected(_))), "{flush:?}");
    run(&mut pair, IoOp::Flush, 0, long).expect("told once").result.unwrap();
}

#[test]
fn a_write_answered_after_its_session_ended_is_reported_by_the_next_flush() {
    let subnqn = Nqn::new("nqn.2026-11.io.dlfs:queue").unwrap();
    let socket = SocketAddr::from(([127, 0, 0, 1], 1));
    let traddr = socket.ip().to_string();
    let address = crate::address::TcpAddress { traddr, trsvcid: 1, subnqn, nsid: None };
    let portals = vec![Portal { address, socket, psk: None }];
    let options = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let remote = Remote::<Tcp>::new(options, portals, Selection::OfPath, None);
    begin_session(&remote);
    let SessionState::Live(session) = remote.session_state(&mut Backlog::new(Instant::now()))
    else {
        panic!("it is live")
    };
    let gone = Failure::new(ErrorKind::Disconnected, "gone");
    remote.with(|lifecycle| lifecycle.handle_failed(Instant::now(), 0, gone));
    // The answer had arrived, but the queue pair is polled only now.
    let io = Io { op: IoOp::Write, slba: Lba(0), buf: IoBuf::zeroed(512), tag: 0 };
    let mut backlog = Backlog::new(Instant::now());
    let namespace = &session.namespaces[0].namespace;
    assert_eq!(
        backlog.take((0, 0), &mut VecDeque::from([io]), namespace, None, &mut Vec::new()),
        1
    );
    let attempt = backlog.next_to_issue(&remote, &session).unwrap();
    let now = Instant::now();
    let told =
        backlog.complete_or_retry(now, &remote, &session, attempt, Ok(Status::SUCCESS)).unwrap();
    told.completion.result.unwrap();
    begin_session(&remote);
    assert!(remote.durability(0).take_lost());
}
