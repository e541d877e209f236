//! `dlfs serve --config` and `dlfs ctl`: an operator's verbs against a running service with connected hosts.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{self, TestDir, dlfs, free_port, run, signal, wait};
use crate::service_support::{NQN, Service, one, private, reader, stop, wait_until, write};

#[test]
fn a_file_is_checked_without_serving_and_exit_codes_tell() {
    let dir = TestDir::with_image();
    let file = dir.arg("targets.toml");
    let check = || run(&["serve", "--config", &file, "--check"]);
    check().code(1).complains_of(&["targets.toml"]);
    let good = one("127.0.0.1:0", &[(1, "train.dlfs")], "");
    write(&dir, &good);
    assert!(check().code(0).text().contains("subsystems 1, namespaces 1"));
    write(&dir, &good.replace("listen", "lisen"));
    check().code(1).complains_of(&["targets.toml", "line 3, column 1", "lisen"]);
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs"), (1, "train.dlfs")], ""));
    check().code(1).complains_of(&["line 9, column 8", "two namespaces have the nsid 1"]);
    write(&dir, &one("127.0.0.1:0", &[(1, "gone.dlfs")], ""));
    check().code(1).complains_of(&["gone.dlfs"]);
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], "hosts = \"hosts.toml\""));
    check().code(1).complains_of(&["hosts.toml", "cannot read the hosts file"]);
    let logging = |log: &str| write(&dir, &format!("access_log = {log:?}\n{good}"));
    logging("gone/access.jsonl");
    check().code(1).complains_of(&["cannot open the access log", "gone", "folder writable"]);
    logging("access.jsonl");
    check().code(0);
    assert!(!dir.path("access.jsonl").exists(), "a check leaves no file behind");
    run(&["serve", "--check"]).code(2).complains_of(&["--config"]);
    run(&["serve", "train.dlfs", "--config", &file]).code(2).complains_of(&["--config"]);
    run(&["serve", "--config", &file, "--max-io-queues", "3"])
        .code(2)
        .complains_of(&["--max-io-queues"]);
}

#[test]
fn several_subsystems_listen_where_the_file_says() {
    let dir = TestDir::with_image();
    let other = format!("127.0.0.1:{}", free_port());
    let mut text = one("127.0.0.1:0", &[(2, "train.dlfs"), (7, "train.dlfs")], "");
    text.push_str(&format!(
        "[[subsystem]]\nnqn = \"nqn.2026-11.io.dlfs:two\"\nlisten = [\"127.0.0.1:0\", \"{other}\"]\n\
         [[subsystem.namespace]]\nnsid = 1\naddress = \"train.dlfs\"\n"
    ));
    write(&dir, &text);
    let service = Service::start(&dir, 2, |_| {});
    let second = service.said[1]["listen"].as_str().unwrap().to_owned();
    let two = |listen: &str| format!("nvme-tcp://{listen}/nqn.2026-11.io.dlfs:two");
    for address in [service.address(2), service.address(7), two(&second), two(&other)] {
        run(&["stat", &address]).code(0);
    }
    let listed = service.asked(&["list-subsys"]);
    assert_eq!(listed[0]["nqn"], NQN);
    assert_eq!(listed[0]["namespaces"][1]["nsid"], 7);
    assert_eq!(listed[1]["listen"], json!([second, other]));
    // A method that concerns one subsystem must name it.
    service.ctl(&["remove-ns", "2"]).code(1).complains_of(&["--subsystem"]);
    service.asked(&["remove-ns", "2", "--subsystem", NQN]);
    run(&["stat", &service.address(2)]).code(1);
}

#[test]
fn a_reload_changes_namespaces_and_hosts_and_drops_nobody_else() {
    let dir = TestDir::with_image();
    let [stays, goes] = ["stays", "goes"].map(|name| format!("nqn.2026-11.io.dlfs:{name}"));
    let hosts =
        |names: &[&String]| format!("allow_hosts = {}", serde_json::to_string(names).unwrap());
    let listen = format!("127.0.0.1:{}", free_port());
    let file =
        |namespaces, names: &[&String]| write(&dir, &one(&listen, namespaces, &hosts(names)));
    file(&[(1, "train.dlfs"), (2, "train.dlfs")], &[&stays, &goes]);
    let service = Service::start(&dir, 1, |_| {});
    let job = reader(&dir, &service.address(1), &stays);
    let mut lost = reader(&dir, &service.address(1), &goes);
    let connected = || -> Vec<(String, u64)> {
        let entry = |host: &Value| {
            (host["host"].as_str().unwrap().to_owned(), host["cntlid"].as_u64().unwrap())
        };
        service.asked(&["list-hosts"]).as_array().unwrap().iter().map(entry).collect()
    };
    wait_until("both connected", || connected().len() == 2);
    let before = connected();

    // A file that is not valid changes nothing.
    write(&dir, "[[subsystem]]\nnqn = 3\n");
    let line = service.reload();
    assert!(line.contains("stays as it was") && line.contains("line 2"), "{line}");
    file(&[(1, "train.dlfs"), (3, "gone.dlfs")], &[&stays]);
    let line = service.reload();
    assert!(line.contains("stays as it was") && line.contains("gone.dlfs"), "{line}");
    write(&dir, &one(&listen, &[(1, "train.dlfs")], "allow_any_host = true"));
    let line = service.reload();
    assert!(line.contains("stays as it was") && line.contains("restart"), "{line}");
    assert_eq!(connected(), before);

    file(&[(1, "train.dlfs"), (3, "train.dlfs")], &[&stays]);
    let line = service.reload();
    let listed = format!("no longer lists {goes}");
    let gone = format!("disconnects {goes} (1 ");
    for news in ["loses namespace 2", "gains namespace 3", &listed, &gone] {
        assert!(line.contains(news), "{line}");
    }
    run(&["stat", &service.address(3), "--hostnqn", &stays]).code(0);
    run(&["stat", &service.address(2), "--hostnqn", &stays]).code(1);
    run(&["stat", &service.address(1), "--hostnqn", &goes]).code(1).complains_of(&["host"]);
    let _ = lost.kill(); // it may have ended by itself
    wait(&mut lost);
    let first = before.iter().find(|(host, _)| *host == stays).unwrap();
    assert!(connected().contains(first), "the job was never disconnected: {:?}", connected());
    stop(job);
}

#[test]
fn an_operator_adds_and_drops_by_the_control_socket() {
    let dir = TestDir::with_image();
    let [a, b] = ["a", "b"].map(|name| format!("nqn.2026-11.io.dlfs:{name}"));
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], &format!("allow_hosts = [\"{a}\"]")));
    let service = Service::start(&dir, 1, |_| {});
    let mode = std::fs::metadata(&service.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second =
        run(&["serve", "--config", &dir.arg("targets.toml"), "--control", &service.socket]);
    second.code(1).complains_of(&["control.sock", "another service"]);

    assert_eq!(service.asked(&["add-ns", &dir.arg("train.dlfs")]), json!({ "nsid": 2 }));
    run(&["stat", &service.address(2), "--hostnqn", &a]).code(0);
    service.ctl(&["add-ns", &dir.arg("gone.dlfs")]).code(1).complains_of(&["gone.dlfs"]);
    service
        .ctl(&["add-ns", &dir.arg("train.dlfs"), "--nsid", "2"])
        .code(1)
        .complains_of(&["already"]);
    service.asked(&["remove-ns", "2"]);
    service.ctl(&["remove-ns", "2"]).code(1).complains_of(&["no namespace 2"]);

    run(&["stat", &service.address(1), "--hostnqn", &b]).code(1);
    service.asked(&["add-host", &b]);
    run(&["stat", &service.address(1), "--hostnqn", &b]).code(0);
    service.asked(&["drop-host", &b]);
    run(&["stat", &service.address(1), "--hostnqn", &b]).code(1);
    service.ctl(&["drop-host", &b]).code(1).complains_of(&["neither lists"]);
    service.ctl(&["drop-host", &a]).code(1).complains_of(&["the only host", "replace its key"]);

    let stats = service.asked(&["stats"]);
    assert!(
        stats[0]["reads"].as_u64().unwrap() > 0 && stats[0]["refused"].as_u64() == Some(2),
        "{stats}"
    );
    service.asked(&["log-level", "info"]);
    run(&["stat", &service.address(1), "--hostnqn", &a]).code(0);
    assert!(service.line_with(" connected").contains(&a));
    service.ctl(&["log-level", "loud"]).code(2);
    let text = run(&["ctl", "--socket", &service.socket, "list-subsys"]).code(0);
    assert!(text.text().contains(NQN) && text.text().contains("nsid=1"), "{}", text.text());
    run(&["ctl", "--socket", &dir.arg("nobody.sock"), "stats"])
        .code(1)
        .complains_of(&["nobody.sock"]);
}

#[test]
fn draining_ends_the_service_and_a_job_goes_on_with_the_next_one() {
    let dir = TestDir::with_image();
    let listen = format!("127.0.0.1:{}", free_port());
    write(&dir, &one(&listen, &[(1, "train.dlfs")], ""));
    let mut service = Service::start(&dir, 1, |_| {});
    let host = "nqn.2026-11.io.dlfs:job";
    let mut job = reader(&dir, &service.address(1), host);
    wait_until("the job reads", || service.asked(&["stats"])[0]["reads"].as_u64() > Some(10));
    assert_eq!(service.asked(&["drain"]), json!({ "controllers": 1 }));
    assert_eq!(wait(&mut service.child).code(), Some(0));
    assert!(!Path::new(&service.socket).exists(), "the socket's file is removed");
    assert!(job.try_wait().unwrap().is_none(), "the job waits for its target");

    let service = Service::start(&dir, 1, |_| {});
    wait_until("the job reads again", || service.asked(&["stats"])[0]["reads"].as_u64() > Some(10));
    assert_eq!(service.asked(&["list-hosts"])[0]["host"], host);
    stop(job);
}

#[test]
fn a_namespace_that_takes_long_to_open_delays_no_other_request() {
    let dir = TestDir::with_image();
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], ""));
    let service = Service::start(&dir, 1, |_| {});
    let far = common::Served::start(&dir.arg("train.dlfs"), &[]);
    let target = far.said["listen"].as_str().unwrap().to_owned();
    // A way to it that takes connections, and passes nothing on until it is told to.
    let way = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = far.address.replace(&target, &way.local_addr().unwrap().to_string());
    let mut slow = dlfs();
    slow.args(["ctl", "--socket", &service.socket, "--json", "add-ns", &address]);
    let slow = slow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (host, _) = way.accept().unwrap();
    // It is being opened. Others are answered, and the number is promised to it.
    assert_eq!(service.asked(&["list-subsys"])[0]["namespaces"].as_array().unwrap().len(), 1);
    assert_eq!(service.asked(&["add-ns", &dir.arg("train.dlfs")]), json!({ "nsid": 3 }));
    // A client that waits for one answer may be gone when it is there.
    let mut gone = UnixStream::connect(&service.socket).unwrap();
    gone.write_all(b"{\"method\":\"reload\"}\n{\"method\":\"stats\"}\n").unwrap();
    drop(gone);
    std::thread::spawn(move || {
        pass_on(host, &target);
        way.incoming().map_while(Result::ok).for_each(|host| pass_on(host, &target));
    });
    assert_eq!(common::end_of(slow).code(0).json(), json!({ "nsid": 2 }));
    run(&["verify", &service.address(2)]).code(0);
}

/// Passes bytes on between a host and a target, in both directions, until both have ended.
fn pass_on(host: TcpStream, target: &str) {
    let target = TcpStream::connect(target).unwrap();
    for (mut from, mut to) in
        [(host.try_clone().unwrap(), target.try_clone().unwrap()), (target, host)]
    {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to); // ends with either side
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    }
}

#[test]
fn a_reload_that_fails_late_changes_nothing_and_says_so() {
    let dir = TestDir::with_image();
    let taken = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let first = |more: &str| one("127.0.0.1:0", &[(1, "train.dlfs"), (2, "train.dlfs")], more);
    write(&dir, &first(""));
    let service = Service::start(&dir, 1, |_| {});
    let before = service.asked(&["list-subsys"]);
    let refused = |text: &str, words: &[&str]| {
        write(&dir, text);
        let line = service.reload();
        let said = service.ctl(&["reload"]).code(1).stderr;
        for word in ["all stays as it was"].iter().chain(words) {
            assert!(line.contains(word) && said.contains(word), "no {word} in {line} or {said}");
        }
        assert_eq!(service.asked(&["list-subsys"]), before);
    };
    let host = "allow_hosts = [\"nqn.2026-11.io.dlfs:a\"]";
    let changed = one("127.0.0.1:0", &[(1, "train.dlfs"), (3, "train.dlfs")], host);
    let second = |listen: &str| {
        format!(
            "{changed}[[subsystem]]\nnqn = \"nqn.2026-11.io.dlfs:two\"\nlisten = \"{listen}\"\n\
             [[subsystem.namespace]]\nnsid = 1\naddress = \"train.dlfs\"\n"
        )
    };
    // A port that somebody else has.
    let port = taken.local_addr().unwrap().to_string();
    refused(&second(&port), &["cannot listen on", &port]);
    // An access log, which begins with the service.
    refused(&format!("access_log = \"access.jsonl\"\n{changed}"), &["access log", "restart"]);
    drop(taken);
    write(&dir, &second(&port));
    let told = service.asked(&["reload"]);
    for news in ["loses namespace 2", "gains namespace 3", "lists", ":two begins"] {
        assert!(told["changed"].as_str().unwrap().contains(news), "{told}");
    }
    run(&["stat", &format!("nvme-tcp://{port}/nqn.2026-11.io.dlfs:two")]).code(0);
    // A subsystem with another name takes the place of one that ends, at the same port.
    write(&dir, &second(&port).replace("dlfs:two", "dlfs:three"));
    let told = service.asked(&["reload"])["changed"].as_str().unwrap().to_owned();
    assert!(told.contains(":two ends") && told.contains(":three begins"), "{told}");
    run(&["stat", &format!("nvme-tcp://{port}/nqn.2026-11.io.dlfs:three")]).code(0);
}

#[test]
fn a_socket_file_that_a_dead_service_left_behind_is_replaced() {
    let dir = TestDir::with_image();
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], ""));
    drop(UnixListener::bind(dir.path("control.sock")).unwrap());
    assert!(dir.path("control.sock").exists(), "it is left behind");
    let mut killed = Service::start(&dir, 1, |_| {});
    killed.asked(&["stats"]);
    killed.child.kill().unwrap();
    wait(&mut killed.child);
    assert!(dir.path("control.sock").exists(), "nor does one that is killed remove it");
    Service::start(&dir, 1, |_| {}).asked(&["stats"]);
    // A file that is no socket is not removed.
    std::fs::write(dir.path("file"), "precious").unwrap();
    let refused =
        run(&["serve", "--config", &dir.arg("targets.toml"), "--control", &dir.arg("file")]);
    refused.code(1).complains_of(&["cannot open the control socket", "file"]);
    assert_eq!(std::fs::read(dir.path("file")).unwrap(), b"precious");
}

#[test]
fn the_service_manager_is_told_and_its_sockets_are_used() {
    let dir = TestDir::with_image();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = listener.local_addr().unwrap().to_string();
    write(&dir, &one(&listen, &[(1, "train.dlfs")], ""));
    let manager = UnixDatagram::bind(dir.path("notify.sock")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut bytes = [0; 4096];
        let len = manager.recv(&mut bytes).expect("the service tells its manager");
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    // The shell sets LISTEN_PID, which no parent can know; the socket becomes descriptor 3.
    let script = "exec 3<&0; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let socket = dir.arg("control.sock");
    let program = dlfs();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh"]).arg(program.get_program());
    command.args(["serve", "--config", &dir.arg("targets.toml"), "--json", "--control", &socket]);
    command.env("NOTIFY_SOCKET", dir.path("notify.sock"));
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    assert!(told().starts_with("READY=1\n"));
    run(&["stat", &format!("nvme-tcp://{listen}/{NQN}")]).code(0);
    signal(&child, "HUP");
    let reloading = told();
    let us =
        reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("a reload with its time");
    assert!(us.parse::<u64>().unwrap() > 0, "{reloading}");
    assert!(told().starts_with("READY=1\n"));
    signal(&child, "TERM");
    assert!(told().starts_with("STOPPING=1\n"));
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn systemd_s_own_socket_activation_starts_it_with_the_first_host() {
    let activate = || std::process::Command::new("systemd-socket-activate");
    if activate().arg("--version").output().is_err() {
        eprintln!("NOT TESTED: systemd-socket-activate is not installed");
        return;
    }
    let dir = TestDir::with_image();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    write(&dir, &one(&listen, &[(1, "train.dlfs")], ""));
    let program = dlfs();
    let mut command = activate();
    command.args(["--listen", &listen]).arg(program.get_program());
    command.args(["serve", "--config", &dir.arg("targets.toml")]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    // Not by connecting: the first host is to start the service.
    let listens = format!("0100007F:{port:04X} 00000000:0000 0A");
    let until = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&listens) {
        assert!(Instant::now() < until, "it never listens");
        std::thread::sleep(Duration::from_millis(5));
    }
    run(&["verify", &format!("nvme-tcp://{listen}/{NQN}")]).code(0);
    // The service has taken the place of the program that started it.
    signal(&child, "TERM");
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn the_unit_files_are_valid() {
    if std::process::Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("NOT TESTED: systemd-analyze is not installed");
        return;
    }
    let dir = TestDir::new();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/target_service");
    let program = dlfs().get_program().to_str().unwrap().to_owned();
    let mut paths = Vec::new();
    for name in ["dlfs-serve.service", "dlfs-serve.socket"] {
        let text = std::fs::read_to_string(units.join(name)).unwrap();
        std::fs::write(dir.path(name), text.replace("/usr/bin/dlfs", &program)).unwrap();
        paths.push(dir.arg(name));
    }
    let mut verify = std::process::Command::new("systemd-analyze");
    let checked = verify.args(["--man=no", "verify"]).args(paths).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    // Each setting that systemd does not know is ignored, with a line.
    assert!(!said.contains("dlfs-serve"), "{said}");
}

#[test]
fn keys_are_rotated_by_the_hosts_file_while_a_host_reads() {
    let dir = TestDir::with_image();
    let host = "nqn.2026-11.io.dlfs:keyed";
    let key = |name: &str| {
        let made = run(&["key", "gen"]).code(0).text().trim().to_owned();
        private(&dir, name, &made);
        made
    };
    let old = key("old.key");
    let new = key("new.key");
    let hosts = |secrets: &[&String]| {
        let secrets = serde_json::to_string(secrets).unwrap();
        let text = format!("[[host]]\nnqn = \"{host}\"\ndhchap_secret = {secrets}\n");
        private(&dir, "hosts.toml", &text);
    };
    hosts(&[&old]);
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], "hosts = \"hosts.toml\""));
    let service = Service::start(&dir, 1, |_| {});
    let stat = |name: &str| {
        run(&["stat", &service.address(1), "--hostnqn", host, "--dhchap-secret", &dir.arg(name)])
    };
    stat("old.key").code(0);
    stat("new.key").code(1);
    for (secrets, old_code, new_code) in [(&[&old, &new][..], 0, 0), (&[&new], 1, 0)] {
        hosts(secrets);
        let line = service.reload();
        assert!(line.contains("new keys for 1 host"), "{line}");
        stat("old.key").code(old_code);
        stat("new.key").code(new_code);
    }
    let line = service.reload();
    assert!(line.contains("keys are as the files say"), "{line}");
}
