//! The log of `dlfs serve`: hosts that connected, were refused or left, and why; and its signals.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{self, TestDir, dlfs, run, signal, wait};

const GOOD: &str = "nqn.2026-11.io.dlfs:good";
const BAD: &str = "nqn.2026-11.io.dlfs:bad";

/// A running `dlfs serve` whose log is read.
struct Logged {
    child: Child,
    address: String,
    log: Arc<Mutex<String>>,
}

impl Logged {
    fn start(options: &[&str]) -> Logged {
        let dir = TestDir::with_image();
        let mut command = serve(&dir, options);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("dlfs starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let log = Arc::<Mutex<String>>::default();
        let lines = log.clone();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        // An open image is served even without its folder.
        Logged { address: address(&mut child), child, log }
    }

    fn lines(&self) -> Vec<String> {
        self.log.lock().unwrap().lines().map(str::to_owned).collect()
    }

    /// Waits for a line with all of `words`, and returns it.
    #[track_caller]
    fn line(&self, words: &[&str]) -> String {
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            let lines = self.lines();
            let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
            if let Some(line) = lines.iter().find(has_all) {
                return line.clone();
            }
            assert!(Instant::now() < late, "no line with {words:?} in\n{}", lines.join("\n"));
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(mut self) -> Vec<String> {
        signal(&self.child, "TERM");
        assert_eq!(wait(&mut self.child).code(), Some(0));
        self.lines()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended, unless the test failed
        let _ = self.child.wait();
    }
}

fn serve(dir: &TestDir, options: &[&str]) -> Command {
    let mut command = dlfs();
    command.args(["serve", &dir.arg("train.dlfs"), "--listen", "127.0.0.1:0", "--json"]);
    command.args(options).stdout(Stdio::piped());
    command
}

fn address(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let said: Value = serde_json::from_str(&line).expect("serve says where it listens");
    said["address"].as_str().expect("an address").to_owned()
}

/// Asserts that a line begins with `2026-11-22T19:24:05.123456Z`.
#[track_caller]
fn has_time(line: &str) {
    let time = line.split(' ').next().unwrap_or_default();
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z", "{line}");
}

#[test]
fn the_access_log_has_connects_refusals_and_ends_with_host_reason_and_time() {
    let served = Logged::start(&["-v", "--allow-host", GOOD]);
    run(&["ls", &served.address, "--hostnqn", GOOD]).code(0);
    for _ in 0..3 {
        run(&["ls", &served.address, "--hostnqn", BAD]).code(1);
    }
    run(&["ls", &served.address.replace(":train", ":typo"), "--hostnqn", GOOD]).code(1);
    let listen = served.address[11..].split_once('/').unwrap().0;
    run(&["discover", listen, "--hostnqn", BAD]).code(0);
    served.line(&[" connected ", "peer=127.0.0.1:", GOOD, "cntlid=", "discovery=false"]);
    served.line(&[" connected ", BAD, "discovery=true"]);
    served.line(&["disconnected: the host closed the connection", GOOD, "seconds="]);
    served.line(&["disconnected: the host closed the connection", BAD]);
    served.line(&["refused: there is no subsystem", ":typo", GOOD]);
    served.line(&["WARN", "refused: the host is not on the allow-list", "peer=127.0.0.1:", BAD]);
    let lines = served.end();
    lines.iter().for_each(|line| has_time(line));
    let refused = lines.iter().filter(|line| line.contains("not on the allow-list"));
    assert_eq!(refused.count(), 3, "each refusal is there once:\n{}", lines.join("\n"));
}

#[test]
fn without_v_the_log_has_warnings_and_they_name_the_host_and_the_limit() {
    let served = Logged::start(&["--max-controllers", "1"]);
    let busy = common::Served::start(&served.address, &["--hostnqn", GOOD]); // a relay uses the only connection
    run(&["ls", &served.address, "--hostnqn", BAD, "--ctrl-loss-tmo", "1"]).code(1);
    let words = [
        "WARN",
        "the limit of controllers is reached (--max-controllers 1)",
        "peer=127.0.0.1:",
        BAD,
    ];
    has_time(&served.line(&words));
    drop(busy);
    assert!(!served.end().iter().any(|line| line.contains("connected")));
}

#[test]
fn sighup_is_survived_and_sigusr1_writes_statistics() {
    let served = Logged::start(&[]);
    signal(&served.child, "HUP");
    served.line(&["SIGHUP"]);
    run(&["verify", &served.address]).code(0);
    signal(&served.child, "USR1");
    let line = served.line(&["statistics controllers="]);
    has_time(&line);
    let value = |name: &str| {
        let field = line.split(' ').find_map(|field| field.strip_prefix(name));
        field.expect(name).parse::<u64>().unwrap()
    };
    assert!(value("accepted=") >= 2 && value("reads=") > 0 && value("read_bytes=") > 1 << 20);
    assert_eq!((value("refused="), value("errors=")), (0, 0), "{line}");
    served.end();
}

#[test]
fn a_log_that_nobody_reads_delays_no_host() {
    let dir = TestDir::with_image();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut filler = Command::new("cat");
    filler.arg("/dev/zero").stdout(writer.try_clone().unwrap());
    let mut filler = filler.spawn().expect("cat runs");
    reader.read_exact(&mut [0; 1]).unwrap(); // it has begun to keep the pipe full
    let mut child = serve(&dir, &["-vv"]).stderr(writer).spawn().unwrap();
    let address = address(&mut child);
    for _ in 0..5 {
        run(&["ls", &address]).code(0);
    }
    signal(&child, "TERM");
    assert_eq!(wait(&mut child).code(), Some(0), "nor its own end");
    filler.kill().unwrap();
    filler.wait().unwrap();
}

#[test]
fn hosts_prove_who_they_are_and_sighup_reads_their_keys_again() {
    let dir = TestDir::new();
    let key = |name: &str| {
        let made = run(&["key", "gen", "--hash", "sha384"]).code(0).stdout;
        write_private(&dir.path(name), &made);
        String::from_utf8(made).unwrap().trim().to_owned()
    };
    let first = key("first.key");
    let second = key("second.key");
    let hosts = |secrets: &str| {
        let text = format!(
            "[[host]]\nnqn = {GOOD:?}\ndhchap_secret = {secrets}\ndhchap_ctrl_secret = {second:?}\n"
        );
        write_private(&dir.path("hosts.toml"), text.as_bytes());
    };
    hosts(&format!("{first:?}"));
    let check = run(&["key", "check", &dir.arg("hosts.toml")]).code(0).text().to_owned();
    assert!(check.contains(GOOD) && !check.contains(&first[12..30]), "{check}");
    let served = Logged::start(&["--hosts", &dir.arg("hosts.toml")]);
    let list = |nqn: &str, secrets: &[&str]| {
        run(&[&["ls", &served.address, "--hostnqn", nqn][..], secrets].concat())
    };
    let one = dir.arg("first.key");
    let two = dir.arg("second.key");
    let mutual = ["--dhchap-secret", one.as_str(), "--dhchap-ctrl-secret", two.as_str()];
    list(GOOD, &mutual).code(0);
    let said = list(GOOD, &[]).code(1).stderr;
    assert!(said.contains("requires authentication") && said.contains("--dhchap-secret"), "{said}");
    let said = list(GOOD, &["--dhchap-secret", &two]).code(1).stderr;
    assert!(said.contains("authentication: the other side does not accept the response"), "{said}");
    let line = served.line(&["WARN", "refused: authentication failed: the host's response", GOOD]);
    assert_eq!(line.matches("authentication failed").count(), 1, "{line}");
    list(BAD, &["--dhchap-secret", &one]).code(1);
    hosts("[]");
    signal(&served.child, "HUP");
    served.line(&["SIGHUP", "stays as it was", GOOD]);
    list(GOOD, &mutual).code(0);
    hosts(&format!("{second:?}"));
    signal(&served.child, "HUP");
    served.line(&["SIGHUP", "names 1 host"]);
    list(GOOD, &mutual).code(1);
    list(GOOD, &["--dhchap-secret", &two]).code(0);
    std::fs::set_permissions(&two, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = list(GOOD, &["--dhchap-secret", &two]).code(1).stderr;
    assert!(said.contains("others may read the key file") && said.contains("0644"), "{said}");
    let log = served.end().join("\n");
    assert!(!log.contains(&first[12..30]) && !log.contains(&second[12..30]), "{log}");
}

fn write_private(path: &std::path::Path, text: &[u8]) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
