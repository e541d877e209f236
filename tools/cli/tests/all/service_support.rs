//! A service that runs, an operator's ways to it, and jobs that read from it.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{self, TestDir, dlfs, run, signal, wait};

pub(crate) const NQN: &str = "nqn.2026-11.io.dlfs:served";

/// A service that runs, with a control socket.
pub(crate) struct Service {
    pub(crate) child: Child,
    pub(crate) said: Vec<Value>,
    pub(crate) socket: String,
    log: std::sync::mpsc::Receiver<String>,
}

impl Service {
    /// Serves the file `targets.toml` of the folder, which has `subsystems` subsystems.
    pub(crate) fn start(
        dir: &TestDir,
        subsystems: usize,
        change: impl FnOnce(&mut std::process::Command),
    ) -> Service {
        let socket = dir.arg("control.sock");
        let mut command = dlfs();
        command.args([
            "serve",
            "--config",
            &dir.arg("targets.toml"),
            "--json",
            "--control",
            &socket,
        ]);
        change(&mut command);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dlfs starts");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.take(subsystems).map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let said: Vec<Value> = said.collect();
        if said.len() < subsystems {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("it ended: {why}");
        }
        let (to, log) = std::sync::mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| _ = to.send(line))
        });
        Service { child, said, socket, log }
    }

    pub(crate) fn ctl(&self, verb: &[&str]) -> common::Ran {
        run(&[&["ctl", "--socket", &self.socket, "--json"], verb].concat())
    }

    pub(crate) fn asked(&self, verb: &[&str]) -> Value {
        self.ctl(verb).code(0).json()
    }

    /// Sends SIGHUP and returns the line that tells of it.
    pub(crate) fn reload(&self) -> String {
        signal(&self.child, "HUP");
        self.line_with("SIGHUP")
    }

    pub(crate) fn line_with(&self, word: &str) -> String {
        loop {
            let line = self.log.recv_timeout(Duration::from_secs(60)).expect("a line of the log");
            if line.contains(word) {
                return line;
            }
        }
    }

    pub(crate) fn listen(&self) -> &str {
        self.said[0]["listen"].as_str().unwrap()
    }

    pub(crate) fn address(&self, nsid: u32) -> String {
        format!("nvme-tcp://{}/{NQN}?ns={nsid}", self.listen())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(&self.child, "TERM");
            wait(&mut self.child);
        }
    }
}

pub(crate) fn write(dir: &TestDir, text: &str) {
    std::fs::write(dir.path("targets.toml"), text).unwrap();
}

/// Writes a file that others cannot read.
pub(crate) fn private(dir: &TestDir, name: &str, text: &str) {
    std::fs::write(dir.path(name), text).unwrap();
    std::fs::set_permissions(dir.path(name), Permissions::from_mode(0o600)).unwrap();
}

pub(crate) fn one(listen: &str, namespaces: &[(u32, &str)], more: &str) -> String {
    let mut text = format!("[[subsystem]]\nnqn = \"{NQN}\"\nlisten = \"{listen}\"\n{more}\n");
    for (nsid, address) in namespaces {
        text.push_str(&format!(
            "[[subsystem.namespace]]\nnsid = {nsid}\naddress = \"{address}\"\n"
        ));
    }
    text
}

/// A job that reads on and on; it can be stopped with code 4.
pub(crate) fn reader(dir: &TestDir, address: &str, hostnqn: &str) -> Child {
    let state = dir.arg(&format!("{}.state", hostnqn.rsplit(':').next().unwrap()));
    let mut command = dlfs();
    command.args(["read", address, "--epochs", "1000000", "--hostnqn", hostnqn, "--quiet"]);
    command.args(["--state", &state]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Stops a job that must not have failed.
pub(crate) fn stop(job: Child) {
    signal(&job, "INT");
    common::end_of(job).code(4);
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "{what} never became so");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client of the control socket that speaks for itself.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) answers: std::io::Lines<BufReader<UnixStream>>,
}

impl Client {
    pub(crate) fn of(service: &Service) -> Client {
        let stream = UnixStream::connect(&service.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(120))).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap()).lines();
        Client { stream, answers }
    }

    pub(crate) fn say(&mut self, lines: &str) {
        self.stream.write_all(lines.as_bytes()).unwrap();
    }

    pub(crate) fn answer(&mut self) -> Value {
        let line = self.answers.next().expect("the service has not hung up").unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.say(&format!("{line}\n"));
        self.answer()
    }
}
