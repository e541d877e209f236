//! Catalogues in a Redis or Valkey server, of those that are installed.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ran, TestDir, dlfs, dlfs_in_little_memory, finish, free_port, signal, wait};

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

#[test]
fn answers_of_a_server_have_a_limit_and_damage_is_not_replaced_by_what_was_known_last() {
    let dir = TestDir::with_image();
    let run_at = |place: &str, arguments: &[&str]| {
        let mut command = dlfs_in_little_memory();
        command.env("XDG_CACHE_HOME", dir.path("cache"));
        command.env("DLFS_CATALOGS", format!("site={place}")).args(arguments);
        finish(command)
    };
    // It would do if the server could not be reached.
    let folder = dir.arg("catalog");
    run_at(&folder, &["catalog", "add", "dlfs://site/train", &dir.arg("train.dlfs")]).code(0);
    run_at(&folder, &["read", "dlfs://site/train"]).code(0);
    let endless = |start: &'static [u8], more: &'static [u8]| {
        fake(move |client| {
            client.write_all(start)?;
            let many = more.repeat((64 << 10) / more.len());
            loop {
                client.write_all(&many)?;
            }
        })
    };
    let servers = [
        endless(b"$1000000000000\r\n", b"x"),
        endless(b"*2000000000\r\n", b"$1\r\nx\r\n"),
        endless(b"*1000000\r\n", b"$300\r\n"),
        endless(b"+", b"x"),
        endless(b"", b">2\r\n+a\r\n+b\r\n"),
        endless(b"", b"*1\r\n"),
        fake(|client| client.write_all(b"*1\r\n$9\r\n../\n\x1b[31m\r\n")),
        fake(|client| client.write_all(b"*-2\r\n")),
        fake(|client| client.write_all(b"-WRONGTYPE Operation against s3cret\r\n")),
    ];
    let refuses = fake(|client| client.write_all(b"-NOPERM for s3cret\x1b\r\n"));
    let servers = servers.map(|port| (port, 3)).into_iter().chain([(refuses, 1)]);
    for (number, (port, code)) in servers.enumerate() {
        for command in [&["catalog", "ls", "dlfs://site"][..], &["read", "dlfs://site/train"]] {
            let ran = run_at(&format!("redis://127.0.0.1:{port}/0"), command).code(code);
            let text = &ran.stderr;
            assert!(text.contains("the catalogue"), "server {number}: {text}");
            for word in ["cannot be reached", "s3cret", "\x1b"] {
                assert!(!text.contains(word), "server {number}: {text}");
            }
        }
    }
    let gone =
        run_at(&format!("redis://127.0.0.1:{}/0", free_port()), &["read", "dlfs://site/train"]);
    gone.code(0).complains_of(&["cannot be reached", "generation 1"]);
}

/// A server that answers the first command of each connection by `answer`. Returns its port.
fn fake(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 4096]).and_then(|_| answer(&mut client)); // it hangs up
        }
    });
    port
}
