//! `dlfs serve --takeover`: a new process serves in place of an old one, while a job reads on. And `dlfs ctl ana`.

use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

use dlfs::ErrorKind;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{ConnectOptions, open};

use crate::common::{Served, TestDir, free_port, run, wait};
use crate::service_support::{Service, one, reader, stop, wait_until, write};

const HOST: &str = "nqn.2026-11.io.dlfs:job";

fn file(listen: &str, more: &str) -> String {
    one(listen, &[(1, "train.dlfs")], &format!("allow_hosts = [\"{HOST}\"]\n{more}"))
}

#[test]
fn a_job_reads_on_while_services_take_over_from_each_other() {
    let dir = TestDir::with_image();
    let listen = format!("127.0.0.1:{}", free_port());
    let good = file(&listen, "");
    write(&dir, &good);
    let metrics = format!("127.0.0.1:{}", free_port());
    let with_metrics = |command: &mut Command| _ = command.args(["--metrics", &metrics]);
    let mut service = Service::start(&dir, 1, with_metrics);
    let job = reader(&dir, &service.address(1), HOST);
    let is_connected = |service: &Service| {
        service.asked(&["list-hosts"]).as_array().is_some_and(|hosts| hosts.len() == 1)
    };
    for _ in 0..5 {
        wait_until("the job is connected", || is_connected(&service));
        let mut old = service;
        service = Service::start(&dir, 1, |command| with_metrics(command.arg("--takeover")));
        assert!(wait(&mut old.child).success(), "it ends in order");
    }
    wait_until("the job is connected", || is_connected(&service));
    assert!(TcpStream::connect(&metrics).is_ok());
    // A new service that cannot start leaves the old one as it is.
    write(&dir, "nonsense");
    let takes_over = ["serve", "--config", &dir.arg("targets.toml"), "--takeover", "--control"];
    run(&[&takes_over[..], &[service.socket.as_str()]].concat()).code(1).complains_of(&["line 1"]);
    write(&dir, &good);
    run(&[&takes_over[..], &[dir.arg("nobody.sock").as_str()]].concat())
        .code(1)
        .complains_of(&["nobody"]);
    assert!(is_connected(&service));
    stop(job);
}

#[test]
fn a_writer_writes_on_while_services_take_over_and_the_manager_follows_them() {
    let dir = TestDir::with_image();
    std::fs::File::create(dir.path("blank.img")).unwrap().set_len(LEN_BYTES as u64).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let hosts = format!("allow_hosts = [\"{HOST}\"]");
    let text = one(&listen, &[(1, "train.dlfs"), (2, "blank.img")], &hosts);
    write(&dir, &format!("{text}read_only = false\n"));
    let manager = UnixDatagram::bind(dir.path("notify.sock")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let notify = dir.path("notify.sock");
    let told = || {
        let mut said = [0; 200];
        let len = manager.recv(&mut said).unwrap();
        String::from_utf8(said[..len].to_vec()).unwrap()
    };
    let with_manager = |command: &mut Command| _ = command.env("NOTIFY_SOCKET", &notify);
    let mut service = Service::start(&dir, 1, with_manager);
    assert!(told().starts_with("READY=1\n"));
    let options = ConnectOptions {
        writable: true,
        hostnqn: Some(HOST.parse().unwrap()),
        ..ConnectOptions::default()
    };
    let device = open(&service.address(2).parse().unwrap(), &options).unwrap();
    let mut blocking = Blocking::new(device.queue_pair().unwrap()).unwrap();
    let written = AtomicUsize::new(0);
    let mut expected = vec![0; LEN_BYTES];
    let service = std::thread::scope(|scope| {
        let services = scope.spawn(|| {
            for _ in 0..3 {
                let enough = written.load(Ordering::Relaxed) + 20;
                wait_until("it writes", || written.load(Ordering::Relaxed) > enough);
                let mut old = service;
                service =
                    Service::start(&dir, 1, |command| with_manager(command.arg("--takeover")));
                assert!(wait(&mut old.child).success(), "it ends in order");
                assert_eq!(told(), format!("MAINPID={}", service.child.id()));
                assert!(told().starts_with("READY=1\n"), "the old one does not say that it stops");
            }
            service
        });
        while !services.is_finished() {
            let number = written.fetch_add(1, Ordering::Relaxed);
            let at = number * 7 % (LEN_BYTES / BLOCK) * BLOCK;
            let block = &mut expected[at..][..BLOCK];
            block.fill(number as u8);
            // One that meets the end of a connection ends without an answer, and is not issued again by itself.
            let sent = (0..100).any(|_| match blocking.write_at(at as u64, block) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
                    false
                }
            });
            assert!(sent, "no process takes write {number}");
            let mut found = [0; BLOCK];
            blocking.read_at(at as u64, &mut found).unwrap();
            assert!(found == *block, "write {number} is lost");
        }
        services.join().unwrap()
    });
    drop(service);
    assert!(told().starts_with("STOPPING=1\n"));
    assert!(std::fs::read(dir.path("blank.img")).unwrap() == expected);
}

#[test]
fn a_service_that_could_not_open_what_it_would_write_to_takes_nothing_over() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let socket = dir.arg("control.sock");
    let served = Served::start(&image, &["--control", &socket, "--writable"]);
    let missing = dir.arg("missing.dlfs");
    run(&["serve", &missing, "--writable", "--control", &socket, "--takeover"])
        .code(1)
        .complains_of(&["missing.dlfs"]);
    run(&["verify", &served.address]).code(0);
}

const LEN_BYTES: usize = 1 << 20;
const BLOCK: usize = 4096;

#[test]
fn a_new_service_serves_if_the_old_one_dies_before_it_hands_over() {
    let dir = TestDir::with_image();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    write(&dir, &file(&listener.local_addr().unwrap().to_string(), ""));
    let control = UnixListener::bind(dir.path("control.sock")).unwrap();
    // It sends its listening socket, and then it is gone.
    let old = std::thread::spawn(move || drop(send_socket(&control, &listener)));
    let service = Service::start(&dir, 1, |command| _ = command.arg("--takeover"));
    old.join().unwrap();
    service.line_with("the old service has not left; end its process");
    run(&["stat", &service.address(1), "--hostnqn", HOST]).code(0);
    assert_eq!(service.asked(&["list-subsys"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_service_that_would_write_gives_up_if_the_old_one_does_not_end() {
    let dir = TestDir::with_image();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = dir.arg("control.sock");
    let control = UnixListener::bind(&socket).unwrap();
    let listen = listener.local_addr().unwrap().to_string();
    // It hands over, and hangs before it ends.
    let old = std::thread::spawn(move || {
        let kept = send_socket(&control, &listener);
        answer(&control, "hand-over", |_| ());
        kept
    });
    let image = dir.arg("train.dlfs");
    let serve = ["serve", &image, "--writable", "--listen", &listen];
    run(&[&serve[..], &["--control", &socket, "--takeover"]].concat()).code(1).complains_of(&[
        "the old service has not ended within 15 s: it may still write",
        "end its process, and start this service again",
    ]);
    old.join().unwrap();
    // Once it has ended, the same command serves.
    std::fs::remove_file(&socket).unwrap();
    run(&["verify", &Served::start(&image, &["--writable", "--control", &socket]).address]).code(0);
}

/// Answers a request on a control socket, once `act` has seen its parameters.
fn answer<R>(control: &UnixListener, method: &str, act: impl FnOnce(&Value) -> R) -> R {
    let (mut stream, _) = control.accept().unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let asked: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(asked["method"], method);
    let result = act(&asked["params"]);
    stream.write_all(b"{\"id\": 1, \"result\": {}}\n").unwrap();
    result
}

/// Hands a listening socket to a service that takes over; returns what is kept until the old service ends.
fn send_socket(control: &UnixListener, listener: &TcpListener) -> UnixStream {
    answer(control, "takeover", |params| {
        let place = UnixStream::connect(params["socket"].as_str().unwrap()).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let sockets = [listener.as_fd()];
        assert!(rights.push(SendAncillaryMessage::ScmRights(&sockets)));
        sendmsg(&place, &[IoSlice::new(&[1])], &mut rights, SendFlags::empty()).unwrap();
        place
    })
}

#[test]
fn an_image_is_served_with_an_ana_state_without_a_file() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let socket = dir.arg("control.sock");
    let served = Served::start(&image, &["--ana-state", "non-optimized", "--control", &socket]);
    let seen = || run(&["list-subsys", &served.address]).code(0).text().to_owned();
    assert!(seen().contains(" live non-optimized"), "{}", seen());
    run(&["ctl", "--socket", &socket, "ana", "optimized"]).code(0);
    assert!(seen().contains(" live optimized"), "{}", seen());
    run(&["serve", &image, "--ana-state", "fast"]).code(2).complains_of(&["non-optimized"]);
}

#[test]
fn the_ana_state_is_set_by_the_file_and_by_the_control_socket() {
    let dir = TestDir::with_image();
    let listen = format!("127.0.0.1:{}", free_port());
    write(&dir, &file(&listen, "ana = \"non-optimized\""));
    let service = Service::start(&dir, 1, |_| {});
    let state = || service.asked(&["list-subsys"])[0]["ana"].as_str().unwrap().to_owned();
    let list = ["list-subsys", &service.address(1), "--hostnqn", HOST];
    let seen = || run(&list).code(0).text().to_owned();
    assert_eq!(state(), "non-optimized");
    assert!(seen().contains(" live non-optimized"), "{}", seen());
    assert_eq!(service.asked(&["ana", "inaccessible"]), json!({ "ana": "inaccessible" }));
    assert_eq!(state(), "inaccessible");
    assert!(seen().contains(" live inaccessible"), "{}", seen());
    run(&["stat", &service.address(1), "--hostnqn", HOST]).code(1).complains_of(&["inaccessible"]);
    service.ctl(&["ana", "fast"]).code(2).complains_of(&["non-optimized"]);
    write(&dir, &file(&listen, ""));
    let line = service.reload();
    assert!(line.contains("is optimized"), "{line}");
    assert!(seen().contains(" live optimized"), "{}", seen());
    run(&["stat", &service.address(1), "--hostnqn", HOST]).code(0);
}
