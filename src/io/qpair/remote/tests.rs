//! The keeper with controllers that panic, hang and fail.

use std::fmt;
use std::time::Duration;

use super::*;
use crate::qpair::ConnectOptions;
use crate::qpair::remote::{self, Identified, Phase, Selection};
use crate::qpair::session::IdentifiedNamespace;
use dlfs_base::units::Nsid;

#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Works,
    Hangs,
    Fails,
    PanicsWhileConnecting,
    PanicsOnceLive,
    /// Panics outside of the serving of one controller: while the keeper computes how long it may sleep.
    PanicsAsleep,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl remote::Portal for How {
    fn address(&self, _nsid: Option<Nsid>) -> String {
        self.to_string()
    }
}

struct Fake;

static KEEPERS: Keepers<Fake> = Keepers::new();

impl Transport for Fake {
    type Portal = How;
    type Admin = FakeAdmin;
    type JoinInfo = ();
    type Counters = ();
    const SCRATCH_LEN_BYTES: usize = 16;

    fn keepers() -> &'static Keepers<Fake> {
        &KEEPERS
    }

    fn engine(_remote: &Remote<Fake>, _facts: &Identified) -> String {
        "fake".to_owned()
    }
}

struct FakeAdmin {
    how: How,
    is_ready: bool,
    identified: Identified,
}

impl Admin<Fake> for FakeAdmin {
    fn start(_now: Instant, _remote: &Remote<Fake>, portal: &How) -> Result<FakeAdmin, Failure> {
        let namespaces =
            vec![IdentifiedNamespace { block_len_bytes: 512, ..IdentifiedNamespace::default() }];
        let identified =
            Identified { num_io_queues: 1, max_entries: 2, namespaces, ..Identified::default() };
        Ok(FakeAdmin { how: *portal, is_ready: false, identified })
    }

    fn poll(&mut self, _now: Instant, _scratch: &mut [u8]) -> Result<AdminEvent, Failure> {
        match self.how {
            How::PanicsWhileConnecting => panic!("told to panic"),
            How::PanicsOnceLive if self.is_ready => panic!("told to panic"),
            How::Hangs => return Ok(AdminEvent::Nothing),
            How::Fails => return Err(Failure::new(ErrorKind::Io, "told to fail")),
            _ => {}
        }
        Ok(if std::mem::replace(&mut self.is_ready, true) {
            AdminEvent::Nothing
        } else {
            AdminEvent::Ready
        })
    }

    fn identified(&self) -> &Identified {
        &self.identified
    }

    fn join_info(&self) {}

    fn stage(&self) -> &'static str {
        "connecting"
    }

    fn poll_timeout(&self) -> Option<Instant> {
        assert_ne!(self.how, How::PanicsAsleep, "told to panic");
        Some(Instant::now() + Duration::from_millis(5))
    }

    fn wait(&self) -> Option<PollFd<'_>> {
        None
    }
}

fn keep(how: How) -> Arc<Remote<Fake>> {
    let limit = Duration::from_millis(500);
    let options = ConnectOptions {
        connect_timeout: limit,
        ctrl_loss_tmo: limit,
        ..ConnectOptions::default()
    };
    let remote = Remote::new(options, vec![how], Selection::OfPath, None);
    KEEPERS.of_this_process().unwrap().keep(&remote);
    remote
}

fn open(how: How) -> (Arc<Remote<Fake>>, Result<()>) {
    let remote = keep(how);
    let opened = remote.wait_open(Instant::now() + Duration::from_secs(60)).map(drop);
    (remote, opened)
}

#[track_caller]
fn wait_for_death(remote: &Remote<Fake>) -> Failure {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        if let Phase::Dead(failure) = remote.phase() {
            return failure;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("still looked after");
}

const WORDS: &str = "the thread dlfs-keeper panicked: told to panic";

#[test]
fn a_controller_that_panics_the_keeper_is_given_up_and_the_others_continue() {
    let (healthy, opened) = open(How::Works);
    opened.unwrap();
    for (how, kind, words) in [
        (How::PanicsWhileConnecting, ErrorKind::Internal, WORDS),
        (How::Hangs, ErrorKind::TimedOut, "no answer within its time"),
        (How::Fails, ErrorKind::Io, "told to fail"),
    ] {
        let error = open(how).1.unwrap_err();
        assert_eq!(error.kind(), kind, "{how:?}: {error:?}");
        assert!(error.to_string().contains(words), "{how:?}: {error:?}");
    }
    let (remote, opened) = open(How::PanicsOnceLive);
    opened.unwrap();
    let failure = wait_for_death(&remote);
    assert_eq!((failure.kind, &*failure.message), (ErrorKind::Internal, WORDS));
    assert!(matches!(healthy.phase(), Phase::Live(_)), "it is looked after as before");

    // The whole thread dies: all its remotes are given up, and another thread serves the next one.
    let remote = keep(How::PanicsAsleep);
    for remote in [&remote, &healthy] {
        let failure = wait_for_death(remote);
        assert_eq!(failure.kind, ErrorKind::Internal);
        assert!(failure.message.starts_with("the thread dlfs-keeper panicked: "), "{failure}");
    }
    open(How::Works).1.unwrap();
}
