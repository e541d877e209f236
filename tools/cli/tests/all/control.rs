//! The control socket of `dlfs serve`, attacked, and what it does while subsystems and the service end.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{self, TestDir, free_port, run, signal, wait};
use crate::service_support::{Client, NQN, Service, one, reader, stop, wait_until, write};

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
    let mut asked = 0;
    let mut sent = 0;
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
    let mut reader = restless.stream.try_clone().unwrap();
    let over = is_over.clone();
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

/// A way to a target that passes bytes on, until it is closed: then it passes nothing on and holds all connections.
struct Way {
    address: String,
    is_closed: Arc<AtomicBool>,
}

impl Way {
    fn to(target: &str) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_closed = Arc::new(AtomicBool::new(false));
        let target = target.to_owned();
        let closed = is_closed.clone();
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(&target) else { return };
                let ends = [(host.try_clone(), target.try_clone()), (Ok(target), Ok(host))];
                for (from, to) in ends {
                    let mut from = from.unwrap();
                    let mut to = to.unwrap();
                    let closed = closed.clone();
                    std::thread::spawn(move || {
                        let mut part = [0; 64 << 10];
                        while let Ok(len @ 1..) = from.read(&mut part) {
                            while closed.load(Ordering::Relaxed) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            if to.write_all(&part[..len]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both); // the other side may be gone
                    });
                }
            }
        });
        Way { address, is_closed }
    }

    fn close(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Relaxed);
    }
}

/// The subsystem `nqn` with the namespace 1 at `address`.
fn more(nqn: &str, listen: &str, address: &str) -> String {
    format!(
        "[[subsystem]]\nnqn = \"{nqn}\"\nlisten = \"{listen}\"\n\
         [[subsystem.namespace]]\nnsid = 1\naddress = \"{address}\"\n"
    )
}

#[test]
fn a_subsystem_that_takes_long_to_drain_delays_neither_requests_nor_reloads() {
    let dir = TestDir::with_image();
    let far = common::Served::start(&dir.arg("train.dlfs"), &[]);
    let target = far.said["listen"].as_str().unwrap().to_owned();
    let way = Way::to(&target);
    let slow = "nqn.2026-11.io.dlfs:slow";
    let first = one("127.0.0.1:0", &[(1, "train.dlfs")], "");
    let listen = format!("127.0.0.1:{}", free_port());
    let both =
        format!("{first}{}", more(slow, &listen, &far.address.replace(&target, &way.address)));
    write(&dir, &both);
    let log = dir.arg("access.jsonl");
    let service = Service::start(&dir, 2, |command| _ = command.args(["--access-log", &log]));
    let mut job = reader(&dir, &format!("nvme-tcp://{listen}/{slow}"), "nqn.2026-11.io.dlfs:job");
    let reads = || service.asked(&["stats", "--subsystem", slow])[0]["reads"].as_u64();
    wait_until("the job reads", || reads() > Some(1000));
    // From now on its reads do not end, and it does nothing, so it takes the whole limit to send it away.
    way.close(true);
    wait_until_the_job_waits(reads);
    signal(&job, "STOP");
    assert_eq!(service.asked(&["list-hosts"])[0]["host"], "nqn.2026-11.io.dlfs:job");
    write(&dir, &format!("{first}{}", more("nqn.2026-11.io.dlfs:next", &listen, "train.dlfs")));
    let mut client = Client::of(&service);
    client.say(&format!(
        "{{\"method\":\"reload\"}}\n{{\"method\":\"list-subsys\"}}\n{{\"method\":\"reload\"}}\n\
         {{\"method\":\"remove-ns\",\"params\":{{\"subsystem\":{slow:?},\"nsid\":1}}}}\n\
         {{\"method\":\"list-hosts\",\"params\":{{\"subsystem\":{slow:?}}}}}\n"
    ));
    let news = client.answer()["result"]["changed"].as_str().unwrap().to_owned();
    assert!(news.contains(":slow ends") && news.contains(":next begins"), "{news}");
    let listed = client.answer()["result"].clone();
    let state =
        |number: usize| (listed[number]["nqn"].as_str().unwrap(), &listed[number]["draining"]);
    assert_eq!(state(0), (NQN, &false.into()));
    assert_eq!(state(1), ("nqn.2026-11.io.dlfs:next", &false.into()));
    assert_eq!(state(2), (slow, &true.into()), "nobody waits until it is gone");
    let news = client.answer()["result"]["changed"].as_str().unwrap().to_owned();
    assert!(news.contains("no subsystem, namespace or host has changed"), "{news}");
    let refused = client.answer()["error"].clone();
    assert_eq!(refused["kind"], "Busy");
    assert!(refused["message"].as_str().unwrap().contains("draining nqn"), "{refused}");
    let hosts = client.answer()["result"].clone();
    let so_far = std::fs::read_to_string(&log).unwrap();
    assert_eq!(hosts[0]["host"], "nqn.2026-11.io.dlfs:job", "{listed}\n{so_far}");
    // Another subsystem has its address, and only that one is reached there.
    for _ in 0..10 {
        run(&["stat", &format!("nvme-tcp://{listen}/nqn.2026-11.io.dlfs:next")]).code(0);
    }
    // A file that has it again has to wait until it is gone, and no other request has.
    write(&dir, &both);
    client.say("{\"method\":\"reload\"}\n");
    service.asked(&["stats"]);
    way.close(false);
    let news = client.answer()["result"]["changed"].as_str().unwrap().to_owned();
    assert!(news.contains(":next ends") && news.contains(":slow begins"), "{news}");
    service.line_with("subsystem nqn.2026-11.io.dlfs:slow has ended");
    signal(&job, "CONT");
    wait_until("the job reads from the new one", || reads() > Some(10));
    assert!(job.try_wait().unwrap().is_none());
    stop(job);
    drop(service);
    let text = std::fs::read_to_string(&log).unwrap();
    let of_slow = text.lines().filter(|line| line.contains(&format!("{slow:?}")));
    let events: Vec<String> = of_slow
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().to_owned()
        })
        .filter(|event| event.starts_with("subsystem-") || event == "draining")
        .collect();
    assert_eq!(events, ["subsystem-added", "draining", "subsystem-removed", "subsystem-added"]);
}

/// Waits until no read ends any more. A job without a read under way would be gone as soon as the service drains.
fn wait_until_the_job_waits(reads: impl Fn() -> Option<u64>) {
    wait_until("the job waits", || {
        let before = reads();
        std::thread::sleep(Duration::from_secs(3)); // on a busy machine a job that goes on may pause for one
        before == reads()
    });
}

#[test]
fn a_service_that_drains_still_answers_and_takes_no_change() {
    let dir = TestDir::with_image();
    let far = common::Served::start(&dir.arg("train.dlfs"), &[]);
    let target = far.said["listen"].as_str().unwrap().to_owned();
    let way = Way::to(&target);
    let address = far.address.replace(&target, &way.address);
    write(&dir, &one("127.0.0.1:0", &[(1, &address)], ""));
    let mut service = Service::start(&dir, 1, |_| {});
    let mut job = reader(&dir, &service.address(1), "nqn.2026-11.io.dlfs:job");
    let reads = || service.asked(&["stats"])[0]["reads"].as_u64();
    wait_until("the job reads", || reads() > Some(1000));
    way.close(true);
    wait_until_the_job_waits(reads);
    signal(&job, "STOP");
    let mut client = Client::of(&service);
    client.say(
        "{\"method\":\"drain\"}\n{\"method\":\"list-hosts\"}\n{\"method\":\"reload\"}\n\
         {\"method\":\"add-ns\",\"params\":{\"address\":\"/x\"}}\n{\"method\":\"drain\"}\n",
    );
    assert_eq!(client.answer()["result"], json!({ "controllers": 1 }));
    assert_eq!(client.answer()["result"][0]["host"], "nqn.2026-11.io.dlfs:job");
    for _ in 0..2 {
        let refused = client.answer()["error"].clone();
        assert_eq!(refused["kind"], "Busy");
        assert!(refused["message"].as_str().unwrap().contains("draining"), "{refused}");
    }
    assert_eq!(client.answer()["result"], json!({ "controllers": 1 }));
    way.close(false);
    assert_eq!(wait(&mut service.child).code(), Some(0));
    job.kill().unwrap();
    wait(&mut job);
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

#[test]
fn an_answer_without_an_end_or_in_drops_is_an_error_and_takes_no_memory() {
    let dir = TestDir::new();
    let socket = dir.path("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let ask = || {
        let mut command = common::dlfs_in_little_memory();
        command.args(["ctl", "--socket", &dir.arg("control.sock"), "stats"]);
        common::finish(command)
    };
    let answers: [&[u8]; 3] = [b"x", b"{\"id\":1,\"result\":[", b"["];
    let ends = std::thread::spawn(move || {
        for answer in answers {
            let (mut client, _) = listener.accept().unwrap();
            let part = answer.repeat(1000);
            while client.write_all(&part).is_ok() {} // until it hangs up
        }
        listener
    });
    for _ in answers {
        ask().code(1).complains_of(&["more than 16777216 bytes", "ss -xlp"]);
    }
    let listener = ends.join().unwrap();
    // Nested deeply, and with characters that move a terminal's cursor.
    let ends = std::thread::spawn(move || {
        let deep = [&b"{\"id\":1,\"result\":"[..], &b"[".repeat(1 << 20), b"\n"].concat();
        let escapes = b"{\"id\":1,\"result\":[{\"a\":\"\\u001b[31m\"}]}\n".to_vec();
        for answer in [deep, escapes] {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 4096]).and_then(|_| client.write_all(&answer)); // it may hang up
        }
    });
    ask().code(1);
    assert_eq!(ask().code(0).text(), "a=\\u{1b}[31m\n");
    ends.join().unwrap();
}

#[test]
fn the_end_of_a_service_removes_its_own_socket_and_nothing_that_took_its_place() {
    let dir = TestDir::with_image();
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], ""));
    let socket = dir.path("control.sock");
    drop(Service::start(&dir, 1, |_| {}));
    assert!(!socket.exists(), "its own");
    let service = Service::start(&dir, 1, |_| {});
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "precious").unwrap();
    drop(service);
    assert_eq!(std::fs::read(&socket).unwrap(), b"precious");
    std::fs::remove_file(&socket).unwrap();
    let service = Service::start(&dir, 1, |_| {});
    std::fs::rename(&socket, dir.path("moved.sock")).unwrap();
    let other = UnixListener::bind(&socket).unwrap();
    drop(service);
    assert!(socket.exists(), "another service's");
    drop(other);
}
