//! Misuse of the C interface, threads, forks, signals, exhausted resources, absent targets: calls
//! return an error in time, and nothing worse happens.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use dlfs::units::Nsid;

use crate::common::ports::free_port;
use crate::common::{How, Program, Source, here, prefix, run};

#[test]
fn every_wrong_call_is_an_error_and_nothing_worse() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/wrong.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address, source.temp.path().to_str().unwrap()]);
        }
    }
}

#[test]
fn random_calls_succeed_or_fail_with_a_reason() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
    println!("seed {seed}");
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/chance.c"), how);
        let calls = if how == How::Plain { "10000" } else { "1000" };
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            run(without_leaks(&mut program.command(&[&address, &seed, calls])));
        }
    }
}

#[test]
fn every_function_may_be_in_use_by_all_threads_at_once() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/crowd.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address, source.temp.path().to_str().unwrap()]);
        }
    }
}

#[test]
fn a_child_uses_and_closes_what_its_parent_had_in_every_state() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    for how in How::all() {
        if how == How::Asan {
            continue; // a child may hang in the sanitizer's allocator, see below
        }
        let program = Program::build(prefix, &here().join("tests/c/forks.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            // A child leaks the state of its parent's threads, as documented.
            run(program.command(&[&address]).env("VALGRIND_OPTS", "--leak-check=no"));
        }
    }
}

/// Like `tests/all/ends.rs` in Rust; this build of libdlfs has the breaking engine, see
/// `src/io/qpair/broken.rs`.
#[test]
#[cfg(debug_assertions)]
fn no_epoch_ends_as_if_it_were_complete_when_an_engine_breaks() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let program = Program::build(prefix, &here().join("tests/c/ends.c"), How::Plain);
    let internal = "-17";
    let io = "-13";
    let timed_out = "-6";
    let interrupted = "-12";
    let panicked = |thread| format!("{thread} panicked: an engine that was told to panic");
    for (how, engine, code, text) in [
        ("mount", "panics:0:dlfs-open", internal, panicked("the thread dlfs-open")),
        ("mount", "fails:0:dlfs-open", io, "os error 5".to_owned()),
        ("mount", "blocks:0:dlfs-open", interrupted, String::new()),
        ("sequence", "panics:3:dlfs-poller", internal, panicked("the thread dlfs-poller")),
        ("sequence", "fails:3:dlfs-poller", io, "failed".to_owned()),
        ("sequence", "hangs:3:dlfs-poller", timed_out, "no batch was ready".to_owned()),
        ("sequence", "blocks:3:dlfs-poller", timed_out, "no batch was ready".to_owned()),
        ("id", "panics:30:", internal, panicked("reading by id")),
        ("id", "fails:30:", io, "failed".to_owned()),
        ("id", "hangs:30:", timed_out, "within 1s".to_owned()),
    ] {
        println!("{how}, {engine}");
        let mut command = program.command(&[&source.address(), how, code, &text]);
        run(command.env("DLFS_TEST_ENGINE", engine));
    }
}

#[test]
fn signals_that_interrupt_every_call_change_nothing() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    // In valgrind a program makes no progress between two signals.
    for how in How::all().into_iter().filter(|how| *how != How::Valgrind) {
        let program = Program::build(prefix, &here().join("tests/c/signals.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address]);
        }
    }
}

#[test]
fn refusals_of_the_system_are_errors() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    // The sanitizer and valgrind use files and addresses of their own.
    for how in [How::Plain, How::Static] {
        let program = Program::build(prefix, &here().join("tests/c/starved.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address]);
        }
    }
}

#[test]
fn a_silent_target_is_given_up() {
    let Some(prefix) = prefix() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap(); // connects by the kernel, and nobody accepts
    let address = format!("nvme-tcp://{}/nqn.2026-11.io.dlfs:x", listener.local_addr().unwrap());
    for how in How::all() {
        println!("{how:?}");
        let program = Program::build(prefix, &here().join("tests/c/silent.c"), how);
        // The connecting thread is not joined: its memory is still in use.
        run(without_leaks(&mut program.command(&[&address])));
    }
}

/// For a program that ends while threads are active: their memory looks leaked.
fn without_leaks(command: &mut Command) -> &mut Command {
    command.env("ASAN_OPTIONS", "detect_leaks=0").env("VALGRIND_OPTS", "--leak-check=no")
}

#[test]
fn a_plugin_may_be_closed_with_everything_open() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    let program = source.path("plugin");
    let mut cc = Command::new("cc"); // not linked with the library: it is loaded, and closed
    cc.args(["-std=gnu99", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"]);
    cc.arg("-I").arg(prefix.join("include")).arg(here().join("tests/c/plugin.c"));
    run(cc.arg("-ldl").arg("-o").arg(&program));
    for address in [source.address(), target.address(Nsid(1)).to_string()] {
        println!("{address}");
        run(Command::new(&program).arg(address).arg(prefix.join("lib/libdlfs.so")));
    }
}

#[test]
fn threads_share_handles_and_children_of_forks_read_on() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/threads.c"), how);
        let forks = match how {
            // A thousand forks in all if they are quick, half of them while threads read.
            How::Plain => "250",
            // A child may find the sanitizer's allocator locked by a thread that does not exist
            // there (google/sanitizers issue 774, gcc before 14): only threads there.
            How::Asan => "0",
            How::Static | How::Valgrind => "3",
        };
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            // A child leaves its parent's threads alone, and so leaks their state, as documented.
            run(program.command(&[&address, forks]).env("VALGRIND_OPTS", "--leak-check=no"));
        }
    }
}

#[test]
fn a_target_that_goes_away_is_an_error_in_time_and_the_run_goes_on_when_it_is_back() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let ways = How::all().into_iter().filter(|how| *how != How::Static);
    for how in ways {
        // It comes back at the same port.
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let target = source.serve_at(at);
        let address = target.address(Nsid(1)).to_string();
        let program = Program::build(prefix, &here().join("tests/c/away.c"), how);
        let mut command = program.command(&[&address]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap(); // it reads
        target.stop();
        lines.next().expect("it says that the target is gone").unwrap();
        let target = source.serve_at(at);
        writeln!(child.stdin.take().unwrap()).unwrap();
        let output = child.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{how:?}: {complaints}");
        target.stop();
    }
}

#[test]
fn a_program_may_end_with_everything_open_and_reads_under_way() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/leave.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            for _ in 0..5 {
                run(without_leaks(&mut program.command(&[&address])));
            }
        }
    }
}
