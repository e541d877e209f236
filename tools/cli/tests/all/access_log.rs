//! `dlfs serve --access-log`: each host that comes, is refused or goes, and each change, is a line of JSON.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::nvme::Nqn;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{ConnectOptions, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use crate::common::{self, Served, TestDir, dlfs, run, signal, wait};

const GOOD: &str = "nqn.2026-11.io.dlfs:good";
const BAD: &str = "nqn.2026-11.io.dlfs:bad";

/// The lines of a log, each of which is an object with a time and an event.
#[track_caller]
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(line).collect()
}

#[track_caller]
fn line(text: &str) -> Value {
    let line: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let time = line["time"].as_str().expect("a time");
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z", "{text}");
    assert!(text.starts_with("{\"time\":\"") && line["event"].is_string(), "{text}");
    line
}

/// Waits for a line of the file that is as wanted.
#[track_caller]
fn wait_for(path: &Path, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let late = Instant::now() + Duration::from_secs(60);
    loop {
        // The last line may be under way.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        if let Some(found) = whole.lines().map(line).find(&is_it) {
            return found;
        }
        assert!(Instant::now() < late, "no line with {what} in\n{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn wait_for_event(path: &Path, event: &str, host: &str) -> Value {
    wait_for(path, event, |line| line["event"] == event && line["host"] == host)
}

fn private(path: PathBuf, text: &str) {
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn hosts_that_come_are_refused_and_go_are_lines_with_reasons_and_counts() {
    let dir = TestDir::with_image();
    let log = dir.path("access.jsonl");
    let options = ["--allow-host", GOOD, "--access-log", &dir.arg("access.jsonl")];
    let mut served = Served::start(&dir.arg("train.dlfs"), &options);
    run(&["verify", &served.address, "--hostnqn", GOOD]).code(0);
    run(&["ls", &served.address, "--hostnqn", BAD]).code(1);
    run(&["ls", &served.address.replace(":train", ":typo"), "--hostnqn", GOOD]).code(1);
    let listen = served.address[11..].split_once('/').unwrap().0;
    run(&["discover", listen, "--hostnqn", BAD]).code(0);

    let connected = wait_for_event(&log, "connected", GOOD);
    assert_eq!(connected["subsystem"], "nqn.2026-11.io.dlfs:train");
    assert!(connected["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{connected}");
    assert_eq!((&connected["discovery"], &connected["tls"]), (&false.into(), &false.into()));
    let gone = wait_for_event(&log, "disconnected", GOOD);
    assert_eq!((&gone["cntlid"], &gone["peer"]), (&connected["cntlid"], &connected["peer"]));
    assert_eq!(gone["why"], "the host closed the connection");
    // The image was read as a whole, by commands of which none is larger than a MiB.
    let image = std::fs::metadata(dir.path("train.dlfs")).unwrap().len();
    let count = |key: &str| gone[key].as_u64().unwrap();
    assert!(
        count("sent_bytes") > image / 2 && count("commands") >= image / 2 / (1 << 20),
        "{gone}"
    );
    assert!(count("received_bytes") >= 72 * count("commands"), "{gone}");
    let refused = wait_for_event(&log, "refused", BAD);
    assert_eq!(refused["why"], "the host is not on the allow-list");
    let typo = wait_for_event(&log, "refused", GOOD);
    assert!(typo["why"].as_str().unwrap().contains(":typo"), "{typo}");
    assert_eq!(wait_for_event(&log, "connected", BAD)["discovery"], true);

    signal(&served.child, "TERM");
    assert_eq!(wait(&mut served.child).code(), Some(0));
    let lines = lines(&log);
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events[..3], ["started", "subsystem-added", "namespace-added"]);
    assert_eq!(lines[2]["bytes"], image);
    assert_eq!(events[events.len() - 2..], ["draining", "stopped"]);
    let mode = std::fs::metadata(&log).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "others cannot read it: {mode:o}");
}

#[test]
fn wrong_keys_are_lines_and_no_line_holds_a_key() {
    let dir = TestDir::with_image();
    let [right, wrong] = ["right.key", "wrong.key"].map(|name| {
        let made = run(&["key", "gen"]).code(0).text().trim().to_owned();
        private(dir.path(name), &made);
        made
    });
    let hosts = format!("[[host]]\nnqn = {GOOD:?}\ndhchap_secret = {right:?}\n");
    private(dir.path("hosts.toml"), &hosts);
    let log = dir.path("access.jsonl");
    let options = ["--hosts", &dir.arg("hosts.toml"), "--access-log", &dir.arg("access.jsonl")];
    let served = Served::start(&dir.arg("train.dlfs"), &options);
    let list = |key: &str| {
        run(&["ls", &served.address, "--hostnqn", GOOD, "--dhchap-secret", &dir.arg(key)])
    };
    list("right.key").code(0);
    list("wrong.key").code(1);
    let proved = wait_for_event(&log, "authenticated", GOOD);
    let connected = wait_for_event(&log, "connected", GOOD);
    assert_eq!(
        (&connected["must_authenticate"], &connected["cntlid"]),
        (&true.into(), &proved["cntlid"])
    );
    let failed = wait_for_event(&log, "not-authenticated", GOOD);
    assert!(failed["why"].as_str().unwrap().contains("authentication failed"), "{failed}");
    wait_for(&log, "the end of the host that failed", |line| {
        line["event"] == "disconnected" && line["why"] == "the host did not authenticate itself"
    });
    signal(&served.child, "HUP");
    wait_for(&log, "a reload", |line| {
        line["event"] == "reloaded" && line["what"] == "the hosts file names 1 host"
    });
    drop(served);
    let text = std::fs::read_to_string(&log).unwrap();
    for secret in [&right, &wrong] {
        assert!(!text.contains(&secret[10..30]), "{text}");
    }
}

#[test]
fn a_log_that_was_moved_away_is_begun_anew_on_sighup_and_no_line_is_lost() {
    let dir = TestDir::with_image();
    let log = dir.path("access.jsonl");
    let moved = dir.path("access.jsonl.1");
    let options = ["--access-log", &dir.arg("access.jsonl")];
    let served = Served::start(&dir.arg("train.dlfs"), &options);
    run(&["ls", &served.address, "--hostnqn", GOOD]).code(0);
    wait_for_event(&log, "disconnected", GOOD);
    std::fs::rename(&log, &moved).unwrap();
    signal(&served.child, "HUP");
    wait_for(&log, "the reload", |line| line["event"] == "reloaded");
    run(&["ls", &served.address, "--hostnqn", BAD]).code(0);
    wait_for_event(&log, "disconnected", BAD);
    drop(served);
    let before = lines(&moved);
    let after = lines(&log);
    let of = |lines: &[Value], host: &str| lines.iter().filter(|line| line["host"] == host).count();
    assert_eq!((of(&before, GOOD), of(&before, BAD)), (2, 0));
    assert_eq!((of(&after, GOOD), of(&after, BAD)), (0, 2));
    assert_eq!(after.last().unwrap()["event"], "stopped");
}

#[test]
fn a_full_disk_delays_no_host_and_the_lines_that_it_costs_are_counted() {
    let dir = TestDir::with_image();
    let log = dir.path("access.jsonl");
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let mut command = dlfs();
    command.args(["serve", &dir.arg("train.dlfs"), "--listen", "127.0.0.1:0", "--json"]);
    command.args(["--access-log", &dir.arg("access.jsonl")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    let address = said["address"].as_str().unwrap();
    let mut complaints = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut complaint = |words: &str| {
        let mut lines = complaints.by_ref().map_while(Result::ok);
        lines.find(|line| line.contains(words)).unwrap_or_else(|| panic!("nobody says {words:?}"))
    };
    for _ in 0..3 {
        run(&["ls", address, "--hostnqn", GOOD]).code(0);
    }
    complaint("the access log cannot be written, its lines are lost: No space left");
    // There is room again: somewhere else.
    std::fs::remove_file(&log).unwrap();
    signal(&child, "HUP");
    let lost = wait_for(&log, "the number of lost lines", |line| line["event"] == "lost");
    let lines_lost = lost["lines"].as_u64().unwrap();
    // Three of the start and two of each host; the last one may have left after the reload.
    assert!((8..=9).contains(&lines_lost), "{lost}");
    complaint(&format!("{lines_lost} lines of the access log were lost"));
    signal(&child, "TERM");
    assert_eq!(wait(&mut child).code(), Some(0));
    assert_eq!(lines(&log).last().unwrap()["event"], "stopped");
}

#[test]
fn a_log_that_nobody_reads_delays_no_host_nor_the_end() {
    let dir = TestDir::with_image();
    let mut command = dlfs();
    command.args(["serve", &dir.arg("train.dlfs"), "--listen", "127.0.0.1:0", "--json"]);
    command.args(["--access-log", &dir.arg("pipe")]);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    // Without a reader it cannot be opened, which is said instead of waiting for one.
    common::finish(command).code(1).complains_of(&["access log", "pipe"]);

    // On stdout, which is a small pipe that nobody reads.
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut command = dlfs();
    command.args(["serve", &dir.arg("train.dlfs"), "--listen", "127.0.0.1:0", "--json"]);
    command.args(["--access-log", "-"]);
    let mut child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    let mut stdout = BufReader::new(reader);
    let mut address = None;
    while address.is_none() {
        let mut said = String::new();
        stdout.read_line(&mut said).unwrap();
        let said: Value = serde_json::from_str(&said).unwrap();
        address =
            said["address"].as_str().filter(|_| said["listen"].is_string()).map(str::to_owned);
    }
    let address = address.unwrap();
    let listen = address[11..].split_once('/').unwrap().0;
    // Connections that break the protocol are the cheapest ones that make lines.
    let mut streams: Vec<_> = (0..100).map(|_| TcpStream::connect(listen).unwrap()).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(&[0xFF; 128]).unwrap());
    for stream in &mut streams {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // Ends by a message or a reset, whichever comes first.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    run(&["verify", &address]).code(0);
    signal(&child, "TERM");
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn hundreds_of_hosts_that_come_and_go_at_once_are_a_line_each_with_right_counts() {
    // Each host has several files, and all of them are in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let dir = TestDir::with_image();
    let log = dir.path("access.jsonl");
    let moved = dir.path("access.jsonl.1");
    let control = dir.arg("control.sock");
    let options = ["--access-log", &dir.arg("access.jsonl"), "--control", &control];
    let served = Served::start(
        &dir.arg("train.dlfs"),
        &[&options[..], &["--pollers", "3", "--allow-any-host"]].concat(),
    );
    let address: Address = served.address.parse().unwrap();
    let name = |host: usize| format!("nqn.2026-11.io.dlfs:host-{host}");
    let num_commands = |host: usize| host % 7 + 1;
    // All are there before the first one goes, and while the log is moved away.
    let all_there = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let address = &address;
            let all_there = &all_there;
            scope.spawn(move || {
                let mut hosts = Vec::new();
                for host in (thread..HOSTS).step_by(THREADS) {
                    let hostnqn = Some(Nqn::new(name(host)).unwrap());
                    let connect = ConnectOptions { hostnqn, ..ConnectOptions::default() };
                    let device = open(address, &connect).unwrap();
                    let mut pair = Blocking::new(device.queue_pair().unwrap()).unwrap();
                    for _ in 0..num_commands(host) {
                        pair.read_at(0, &mut [0; 4096]).unwrap();
                    }
                    hosts.push((device, pair));
                }
                all_there.wait();
            });
        }
        all_there.wait();
        std::fs::rename(&log, &moved).unwrap();
        signal(&served.child, "HUP");
    });
    wait_for(&log, "a reload", |line| line["event"] == "reloaded");
    let drained = || {
        let hosts = run(&["ctl", "--socket", &control, "--json", "list-hosts"]).code(0).json();
        hosts.as_array().unwrap().is_empty()
    };
    let late = Instant::now() + Duration::from_secs(60);
    while !drained() {
        assert!(Instant::now() < late, "some are never gone");
        std::thread::sleep(Duration::from_millis(20));
    }
    let stats = run(&["ctl", "--socket", &control, "--json", "stats"]).code(0).json();
    drop(served);
    let mut lines = lines(&moved);
    lines.extend(self::lines(&log));
    assert!(lines.iter().all(|line| line["event"] != "lost"));
    let of_hosts: Vec<&Value> = lines.iter().filter(|line| line["host"].is_string()).collect();
    assert_eq!(of_hosts.len(), 2 * HOSTS, "each comes once and goes once");
    let mut commands = 0;
    for host in 0..HOSTS {
        let name = name(host);
        let its: Vec<&&Value> = of_hosts.iter().filter(|line| line["host"] == *name).collect();
        let [came, went] = its[..] else { panic!("{its:?}") };
        assert_eq!((&came["event"], &went["event"]), (&"connected".into(), &"disconnected".into()));
        assert_eq!((&came["cntlid"], &came["peer"]), (&went["cntlid"], &went["peer"]));
        let count = |key: &str| went[key].as_u64().unwrap() as usize;
        assert_eq!(count("commands"), num_commands(host), "{went}");
        let sent = count("sent_bytes");
        let received = count("received_bytes");
        assert!(sent > 4096 * num_commands(host) && received > 72 * num_commands(host), "{went}");
        assert!(sent < 4096 * num_commands(host) + (64 << 10), "with those of another: {went}");
        commands += count("commands");
    }
    assert_eq!(stats[0]["reads"], commands, "{stats}");
    assert_eq!(stats[0]["read_bytes"], 4096 * commands, "{stats}");
}

const THREADS: usize = 16;
const HOSTS: usize = 400;
