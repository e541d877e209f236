//! Ports of listeners that have gone.

use std::fmt::Debug;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::fork::{ends_well, spawn_child};

/// Binds where another listener was. A connection of another test may have the port for a moment.
pub fn bind_again<T, E: Debug>(bind: impl Fn() -> Result<T, E>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match bind() {
            Ok(bound) => return bound,
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Forks a child; returns whether it still listens at `address` after `end` has ended the listener of this process.
pub fn is_kept_by_a_child(address: SocketAddr, end: impl FnOnce()) -> bool {
    let notes = tempfile::tempdir().unwrap();
    let note = |name: &str| notes.path().join(name);
    let wait_for = |name: &str| {
        let until = Instant::now() + Duration::from_secs(60);
        while !note(name).exists() {
            assert!(Instant::now() < until, "waited for {name}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let child = spawn_child(|| {
        std::fs::write(note("begun"), "").unwrap();
        wait_for("the end");
        true
    });
    wait_for("begun");
    end();
    let is_kept = TcpStream::connect(address).is_ok();
    std::fs::write(note("the end"), "").unwrap();
    assert!(ends_well(child));
    is_kept
}
