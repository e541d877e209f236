//! Catalogues in a Redis or Valkey server, of those that are installed.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ran, TestDir, dlfs, finish, free_port, signal, wait};

/// A server on a free port, with a user's password; it ends when this is dropped.
struct Redis {
    child: Child,
    port: u16,
    /// The command to ask it.
    cli: &'static str,
}

/// Runs a test with each kind of server.
fn with_each(test: impl Fn(&TestDir, &mut Redis)) {
    for (server, cli) in [("redis-server", "redis-cli"), ("valkey-server", "valkey-cli")] {
        let dir = TestDir::with_image();
        if let Some(mut redis) = Redis::start(&dir, server, cli) {
            println!("{server}");
            test(&dir, &mut redis);
        }
    }
}

impl Redis {
    /// `None`: there is no server on this machine.
    fn start(dir: &TestDir, server: &str, cli: &'static str) -> Option<Redis> {
        // Another program may take the port before the server does, which then ends.
        for _ in 0..10 {
            let port = free_port();
            let mut command = Command::new(server);
            command.args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--requirepass",
                PASSWORD,
            ]);
            command.args(["--dir", &dir.arg(""), "--save", "", "--appendonly", "no"]);
            let Ok(mut child) = command.stdout(Stdio::null()).spawn() else {
                println!("SKIPPED: {server} is not installed");
                return None;
            };
            let began = Instant::now();
            while child.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(60) {
                if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Some(Redis { child, port, cli });
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill(); // it may have ended
            child.wait().unwrap();
        }
        panic!("{server} does not start");
    }

    fn run(&self, dir: &TestDir, arguments: &[&str]) -> Ran {
        self.run_with(dir, PASSWORD, "cache", arguments)
    }

    fn run_with(&self, dir: &TestDir, password: &str, cache: &str, arguments: &[&str]) -> Ran {
        let mut command = dlfs();
        command.env("XDG_CACHE_HOME", dir.path(cache));
        command.env("DLFS_CATALOGS", format!("site=redis://:{password}@127.0.0.1:{}/0", self.port));
        command.args(arguments);
        finish(command)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill(); // a test may have done so, as with the next line
        let _ = self.child.wait();
    }
}

const PASSWORD: &str = "v3ry-s3cret";

#[test]
fn names_aliases_and_the_index_are_kept_in_a_server() {
    with_each(keeps_names);
}

fn keeps_names(dir: &TestDir, redis: &mut Redis) {
    let dlfs = |arguments: &[&str]| redis.run(dir, arguments);
    dlfs(&["catalog", "add", "dlfs://site/train", &dir.arg("train.dlfs"), "--alias", "stable"])
        .code(0);
    assert_eq!(
        dlfs(&["read", "dlfs://site/train@stable", "--json"]).code(0).json()["samples"],
        300
    );
    dlfs(&["delete", "dlfs://site/train", "cat/010.bin"]).code(0);
    assert_eq!(dlfs(&["catalog", "ls", "dlfs://site", "--json"]).code(0).json()["generation"], 2);
    dlfs(&["read", "dlfs://site/train@stable"]).code(1).complains_of(&["generation 1"]);
    dlfs(&["catalog", "tag", "dlfs://site/train", "stable", "--from", "2"]).code(1);
    dlfs(&["catalog", "tag", "dlfs://site/train", "stable", "--from", "1"]).code(0);
    assert_eq!(
        dlfs(&["read", "dlfs://site/train@stable", "--json"]).code(0).json()["samples"],
        299
    );

    let rebuild = ["catalog", "rebuild", "dlfs://site/train"];
    let compare = [&rebuild[..], &["--compare"]].concat();
    dlfs(&compare).code(0);
    let ask = |command: &[&str]| {
        let port = redis.port.to_string();
        let mut cli = Command::new(redis.cli);
        cli.args(["-p", &port, "--no-auth-warning", "-a", PASSWORD]).args(command);
        let output = cli.output().expect("it is installed beside the server");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let chunks = ask(&["HGETALL", "dlfs:chunks:train"]);
    assert!(chunks.starts_with("0000000001-"), "{chunks}");
    assert_eq!(ask(&["HGET", "dlfs:dataset:train", "deleted"]), "1");
    // The server loses the data set's entries.
    assert_eq!(ask(&["DEL", "dlfs:dataset:train", "dlfs:chunks:train"]), "2");
    dlfs(&compare).code(3);
    dlfs(&rebuild).code(0);
    dlfs(&compare).code(0);
    assert_eq!(ask(&["HGETALL", "dlfs:chunks:train"]), chunks);
    dlfs(&["catalog", "rm", "dlfs://site/train@stable"]).code(0);
    dlfs(&["catalog", "rm", "dlfs://site/train", "--all"]).code(0);
    assert_eq!(dlfs(&["catalog", "ls", "dlfs://site"]).code(0).text(), "");
    assert_eq!(ask(&["EXISTS", "dlfs:chunks:train"]), "0");
}

#[test]
fn moves_by_many_processes_at_once_leave_one_history() {
    with_each(orders_moves);
}

fn orders_moves(dir: &TestDir, redis: &mut Redis) {
    let redis = &*redis; // several threads have it
    redis.run(dir, &["catalog", "add", "dlfs://site/train", &dir.arg("train.dlfs")]).code(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    redis.run(dir, &["catalog", "tag", "dlfs://site/train", "stable"]).code(0);
                }
            });
        }
    });
    let shown =
        redis.run(dir, &["catalog", "show", "dlfs://site/train@stable"]).code(0).text().to_owned();
    assert_eq!(shown.matches("1 -> ").count(), 19, "{shown}");
}

#[test]
fn a_server_that_freezes_or_dies_is_replaced_by_what_was_known_last_and_no_password_is_shown() {
    with_each(may_freeze_or_die);
}

fn may_freeze_or_die(dir: &TestDir, redis: &mut Redis) {
    let image = dir.arg("train.dlfs");
    redis.run(dir, &["catalog", "add", "dlfs://site/train", &image]).code(0);
    let read = ["read", "dlfs://site/train", "--json"];
    redis.run(dir, &read).code(0);
    let wrong = redis.run_with(dir, "wr0ng-s3cret", "none", &read).code(1);
    wrong.complains_of(&["site", "did not answer"]);
    assert!(!wrong.stderr.contains("s3cret"), "{}", wrong.stderr);

    signal(&redis.child, "STOP");
    let frozen = redis.run(dir, &read).code(0);
    frozen.complains_of(&["cannot be reached", "generation 1"]);
    assert_eq!(frozen.json()["samples"], 300);
    redis.child.kill().unwrap();
    wait(&mut redis.child);
    let dead = redis.run(dir, &read).code(0);
    dead.complains_of(&["cannot be reached"]);
    let unknown = redis.run_with(dir, PASSWORD, "none", &read).code(1);
    unknown.complains_of(&["site"]);
    for ran in [&unknown, &dead, &frozen] {
        assert!(!ran.stderr.contains("s3cret"), "{}", ran.stderr);
    }
}
