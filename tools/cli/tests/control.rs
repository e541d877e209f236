//! The control socket of `dlfs serve`, attacked.

mod common;
mod service_support;

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{TestDir, run};
use serde_json::{Value, json};
use service_support::{Client, Service, one, write};

#[test]
fn hostile_clients_of_the_control_socket_harm_nobody() {
    let dir = TestDir::with_image();
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], ""));
    let service = Service::start(&dir, 1, |_| {});
    // Clients that say nothing, half a line, and a line without an end.
    let _silent = UnixStream::connect(&service.socket).unwrap();
    let mut half = Client::of(&service);
    half.say("{\"method\": \"sta");
    let mut endless = Client::of(&service);
    let sent = (0..1600).try_for_each(|_| endless.stream.write_all(&[b'x'; 64 << 10]));
    assert!(sent.is_err(), "a line of 100 MiB was taken");
    let refused = endless.answer();
    assert!(refused["error"]["message"].as_str().unwrap().contains("65536 bytes"), "{refused}");
    assert!(endless.answers.next().is_none_or(|line| line.is_err()), "it hangs up");
    // The longest line that is taken, and one that is longer by a byte.
    let long = |len: usize| format!("{{\"method\":\"stats\"}}{}\n", " ".repeat(len - 18));
    let mut client = Client::of(&service);
    client.say(&long(64 << 10));
    assert!(client.answer()["result"].is_array());
    client.say(&long((64 << 10) + 1));
    assert_eq!(client.answer()["error"]["kind"], "InvalidArgument");
    let mut client = Client::of(&service);
    for wrong in ["", "[]", "{\"method\":3}", "\u{0}\u{1}", "{\"method\":\"stats\",\"more\":1}"] {
        assert_eq!(client.ask(wrong)["error"]["kind"], "InvalidArgument", "{wrong}");
    }
    for deep in ["[".repeat(60_000), "{\"a\":".repeat(10_000)] {
        assert_eq!(client.ask(&deep)["error"]["kind"], "InvalidArgument");
    }
    client.stream.write_all(b"\xFF\xFE{}\n").unwrap();
    assert_eq!(client.answer()["error"]["kind"], "InvalidArgument");
    let error = client.ask("{\"id\":\"x\",\"method\":\"fly\"}");
    assert_eq!(error["id"], "x");
    assert!(error["error"]["message"].as_str().unwrap().contains("list-subsys"), "{error}");
    let error = client.ask("{\"method\":\"add-ns\",\"params\":{\"nsid\":1}}");
    assert!(error["error"]["message"].as_str().unwrap().contains("address"), "{error}");
    assert_eq!(client.ask("{\"id\":7,\"method\":\"stats\"}")["id"], 7);
    half.say("ts\"}\n");
    assert!(half.answer()["result"][0]["read_bytes"].is_u64());
}

#[test]
fn a_client_that_takes_no_answer_or_asks_without_end_delays_no_other() {
    let dir = TestDir::with_image();
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], ""));
    let service = Service::start(&dir, 1, |_| {});
    let request = |id: usize| format!("{{\"id\":{id},\"method\":\"list-subsys\"}}\n");
    // It asks until nothing more is taken from it, and reads no answer.
    let mut deaf = Client::of(&service);
    deaf.stream.set_nonblocking(true).unwrap();
    let (mut asked, mut sent) = (0, 0);
    let mut text = String::new();
    let mut refused = 0;
    while refused < 3 {
        if sent == text.len() {
            (text, sent) = (request(asked), 0);
            asked += 1;
        }
        match deaf.stream.write(&text.as_bytes()[sent..]) {
            Ok(len) => sent += len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                refused += 1; // it may be about to take more
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{error}"),
        }
    }
    // Another one asks without end, and takes the answers.
    let is_over = Arc::new(AtomicBool::new(false));
    let mut restless = Client::of(&service);
    let (mut reader, over) = (restless.stream.try_clone().unwrap(), is_over.clone());
    let takes = std::thread::spawn(move || _ = std::io::copy(&mut reader, &mut std::io::sink()));
    let asks = std::thread::spawn(move || {
        let many: String = (0..1000).map(request).collect();
        while !over.load(Ordering::Relaxed) {
            restless.say(&many);
        }
        restless.stream.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let mut client = Client::of(&service);
    for id in 0..100 {
        let answer = client.ask(&format!("{{\"id\":{id},\"method\":\"stats\"}}"));
        assert_eq!(answer["id"], id);
    }
    let line = service.reload();
    assert!(line.contains("no subsystem, namespace or host has changed"), "{line}");
    is_over.store(true, Ordering::Relaxed);
    asks.join().unwrap();
    takes.join().unwrap();
    // It gets each of its answers when it reads at last.
    deaf.stream.set_nonblocking(false).unwrap();
    for id in 0..asked - 1 {
        assert_eq!(deaf.answer()["id"], id);
    }
    deaf.say(&text[sent..]);
    assert_eq!(deaf.answer()["id"], asked - 1);
}

#[test]
fn clients_that_hang_make_way_for_others() {
    let dir = TestDir::with_image();
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], ""));
    let service = Service::start(&dir, 1, |_| {});
    let mut hanging: Vec<Client> = (0..40).map(|_| Client::of(&service)).collect();
    service.asked(&["stats"]);
    assert!(hanging[0].answers.next().is_none_or(|line| line.is_err()), "the oldest has made way");
    assert!(hanging[39].ask("{\"method\":\"stats\"}")["result"].is_array());
}

#[test]
fn clients_at_once_change_what_they_are_told_and_nothing_else() {
    let dir = TestDir::with_image();
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], ""));
    let service = Service::start(&dir, 1, |_| {});
    std::thread::scope(|scope| {
        for number in 0..4 {
            let mut client = Client::of(&service);
            let image = dir.arg("train.dlfs");
            scope.spawn(move || {
                let mut done = |method: &str, params: Value| {
                    let id = format!("{number} {method}");
                    let request = json!({ "id": id, "method": method, "params": params });
                    let answer = client.ask(&request.to_string());
                    assert!(answer["id"] == id && answer["error"].is_null(), "{answer}");
                };
                let host = |round: u32| format!("nqn.2026-11.io.dlfs:{number}.{round}");
                for round in 0..20 {
                    done("add-host", json!({ "host": host(round) }));
                    let nsid = 10 + number;
                    done("add-ns", json!({ "address": image, "nsid": nsid }));
                    done("remove-ns", json!({ "nsid": nsid }));
                    if round % 2 == 1 {
                        done("drop-host", json!({ "host": host(round) }));
                    }
                }
            });
        }
    });
    let listed = service.asked(&["list-subsys"]);
    let mut expected: Vec<String> = (0..4)
        .flat_map(|number| (0..20).step_by(2).map(move |round| (number, round)))
        .map(|(number, round)| format!("nqn.2026-11.io.dlfs:{number}.{round}"))
        .collect();
    expected.sort();
    assert_eq!(listed[0]["hosts"], json!(expected));
    assert_eq!(listed[0]["namespaces"].as_array().unwrap().len(), 1);
}

#[test]
fn a_service_that_is_stopped_or_gone_keeps_nobody_waiting_for_ever() {
    let dir = TestDir::with_image();
    let listener = UnixListener::bind(dir.path("control.sock")).unwrap();
    // One that accepts, reads nothing more and hangs up.
    let ends = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let ran = run(&["ctl", "--socket", &dir.arg("control.sock"), "stats"]);
    ran.code(1).complains_of(&["control.sock", "dlfs"]);
    ends.join().unwrap();
    // One that accepts nobody: connections queue up until there is no room.
    std::fs::remove_file(dir.path("control.sock")).unwrap();
    let listener = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let address = rustix::net::SocketAddrUnix::new(dir.path("control.sock")).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waits = UnixStream::connect(dir.path("control.sock")).unwrap();
    let ran = run(&["ctl", "--socket", &dir.arg("control.sock"), "stats"]);
    ran.code(1).complains_of(&["control.sock", "timed out"]);
}
