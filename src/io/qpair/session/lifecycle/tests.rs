//! The sessions of several paths when some are lost, and namespaces that take the place of others.

use super::*;
use dlfs_base::units::Nsid;

fn namespace() -> Namespace {
    Namespace {
        address: "test".into(),
        block_len_bytes: 512,
        num_blocks: 100,
        max_transfer_bytes: 4096,
        queue_depth: 1,
        nguid: [7; 16],
        read_only: true,
        engine: "tcp".into(),
    }
}

type TestLifecycle = Lifecycle<&'static str, ()>;

/// A lifecycle that keeps two sessions, on these paths.
fn on(now: Instant, portals: &[&'static str]) -> TestLifecycle {
    let limit = Duration::from_secs(10);
    let limits = Limits { connect_timeout: limit, ctrl_loss_tmo: limit };
    Lifecycle::new(now, limits, portals.into(), None, 7).keep_two(true)
}

/// Performs the actions, with paths that can be connected unless they are `down`; returns the portals tried.
fn run(lifecycle: &mut TestLifecycle, now: Instant, down: &[usize]) -> Vec<usize> {
    let attached = || vec![Attached { nsid: Nsid(1), namespace: namespace() }];
    let identified = Identified { num_io_queues: 2, ..Identified::default() };
    let mut tried = Vec::new();
    for _ in 0..4 {
        lifecycle.handle_time(now, [""; NUM_SLOTS]);
        while let Some(action) = lifecycle.poll_action() {
            let Action::Connect { slot, portal } = action else { continue };
            tried.push(portal);
            if down.contains(&portal) {
                let failure = Failure::new(ErrorKind::Refused, "down");
                lifecycle.handle_failed(now, slot, failure);
            } else {
                lifecycle.handle_ready(now, slot, (), &identified, attached());
            }
        }
    }
    tried
}

/// The number and the portal of each session, that of the main session first.
fn sessions(lifecycle: &TestLifecycle) -> Vec<(u64, &'static str)> {
    let slots = [lifecycle.main, 1 - lifecycle.main];
    let live = slots.into_iter().filter_map(|slot| lifecycle.live_in(slot));
    live.map(|session| (session.number, session.portal)).collect()
}

#[test]
fn a_lost_main_session_leaves_its_work_to_the_other_at_once_and_is_replaced_behind_it() {
    let now = Instant::now();
    let mut lifecycle = on(now, &["a", "b", "c"]);
    assert_eq!(run(&mut lifecycle, now, &[]), [0, 1]);
    assert_eq!(sessions(&lifecycle), [(1, "a"), (2, "b")]);
    let gone = || Failure::new(ErrorKind::Disconnected, "gone");
    assert!(lifecycle.reset(1, gone()));
    assert_eq!(sessions(&lifecycle), [(2, "b")], "before its controller is dropped");
    assert!(!lifecycle.reset(1, gone()), "it is over");
    assert!(run(&mut lifecycle, now, &[]).is_empty(), "a session that ended so soon waits");
    // Not on the path of the main session, and the lost path is tried last.
    assert_eq!(run(&mut lifecycle, now + Duration::from_secs(3), &[2]), [2]);
    assert_eq!(run(&mut lifecycle, now + Duration::from_secs(6), &[2]), [0]);
    assert_eq!(sessions(&lifecycle), [(2, "b"), (3, "a")]);
    let stats = lifecycle.stats();
    assert_eq!((stats.failovers, stats.reconnects, stats.failed_paths), (1, 1, 1));
    assert_eq!([0, 1, 2].map(|path| lifecycle.losses(path)), [1, 0, 0]);
}

#[test]
fn a_lost_second_session_does_not_touch_the_main_one() {
    let now = Instant::now();
    let mut lifecycle = on(now, &["a", "b"]);
    run(&mut lifecycle, now, &[]);
    assert!(lifecycle.reset(2, Failure::new(ErrorKind::Disconnected, "gone")));
    assert_eq!(sessions(&lifecycle), [(1, "a")]);
    run(&mut lifecycle, now + Duration::from_secs(3), &[]);
    assert_eq!(sessions(&lifecycle), [(1, "a"), (3, "b")]);
    assert_eq!(lifecycle.stats().failovers, 0);
}

#[test]
fn when_both_sessions_are_lost_every_path_is_tried_until_the_time_is_over() {
    let now = Instant::now();
    let mut lifecycle = on(now, &["a", "b"]);
    run(&mut lifecycle, now, &[]);
    for number in [1, 2] {
        assert!(lifecycle.reset(number, Failure::new(ErrorKind::Disconnected, "gone")));
    }
    assert!(sessions(&lifecycle).is_empty());
    let mut at = now;
    let mut tried = Vec::new();
    while !lifecycle.is_dead() {
        at = lifecycle.poll_timeout().expect("it goes on").max(at);
        assert!(at < now + Duration::from_secs(60), "never given up");
        tried.extend(run(&mut lifecycle, at, &[0, 1]));
    }
    assert!(tried.contains(&0) && tried.contains(&1), "{tried:?}");
}

#[test]
fn a_loss_is_a_warning_only_if_it_is_reconnected() {
    let now = Instant::now();
    for (ctrl_loss_tmo, level) in
        [(Duration::ZERO, Level::Debug), (Duration::from_secs(10), Level::Warn)]
    {
        let limits = Limits { connect_timeout: Duration::from_secs(10), ctrl_loss_tmo };
        let mut lifecycle = TestLifecycle::new(now, limits, ["a"].into(), None, 7);
        run(&mut lifecycle, now, &[]);
        lifecycle.handle_failed(now, 0, Failure::new(ErrorKind::Disconnected, "gone"));
        assert_eq!(lifecycle.is_dead(), ctrl_loss_tmo.is_zero());
        let said = std::iter::from_fn(|| lifecycle.poll_action()).find_map(|action| match action {
            Action::Say { level, .. } => Some(level),
            _ => None,
        });
        assert_eq!(said, Some(level));
    }
}

#[test]
fn a_refusal_to_reconnect_is_a_warning_once_after_each_loss() {
    let now = Instant::now();
    let limit = Duration::from_secs(10);
    let limits = Limits { connect_timeout: limit, ctrl_loss_tmo: limit };
    let mut lifecycle = TestLifecycle::new(now, limits, ["a"].into(), None, 7);
    run(&mut lifecycle, now, &[]);
    let fail = |lifecycle: &mut TestLifecycle, kind, text: &str| {
        lifecycle.handle_failed(now, 0, Failure::new(kind, text));
        let actions: Vec<Action> = std::iter::from_fn(|| lifecycle.poll_action()).collect();
        // The next attempt begins at once or after a wait.
        lifecycle.handle_time(lifecycle.poll_timeout().unwrap_or(now), [""; NUM_SLOTS]);
        let is_warning = |it: &Action| matches!(it, Action::Say { level: Level::Warn, .. });
        actions.into_iter().filter(is_warning).count()
    };
    for _ in 0..2 {
        assert_eq!(fail(&mut lifecycle, ErrorKind::Disconnected, "gone"), 1);
        let refused = [(); 3].map(|()| fail(&mut lifecycle, ErrorKind::Refused, "not you"));
        assert_eq!(refused, [1, 0, 0]);
        let identified = Identified { num_io_queues: 2, ..Identified::default() };
        let attached = vec![Attached { nsid: Nsid(1), namespace: namespace() }];
        lifecycle.handle_ready(now, 0, (), &identified, attached);
    }
}

#[test]
fn every_namespace_must_keep_its_identity_and_the_failure_names_the_one_that_does_not() {
    let set = |nguids: &[u8]| -> Vec<Attached> {
        let one = |(at, nguid): (usize, &u8)| Attached {
            nsid: Nsid(at as u32 + 1),
            namespace: Namespace { nguid: [*nguid; 16], ..namespace() },
        };
        nguids.iter().enumerate().map(one).collect()
    };
    assert_eq!(check_identities(&set(&[7, 8, 9]), &set(&[7, 8, 9])), Ok(()));
    let other = check_identities(&set(&[7, 8, 9]), &set(&[7, 6, 9])).unwrap_err();
    assert_eq!((other.kind, other.nsid), (ErrorKind::Stale, Some(Nsid(2))));
    let fewer = check_identities(&set(&[7, 8]), &set(&[7])).unwrap_err();
    assert!(fewer.message.contains("2 namespaces are expected on this path, it has 1"));
}

#[test]
fn a_namespace_of_another_identity_size_or_block_length_is_refused_naming_both() {
    assert_eq!(check_identity(&namespace(), &namespace()), Ok(()));
    let other = |edit: fn(&mut Namespace)| {
        let mut other = namespace();
        edit(&mut other);
        check_identity(&namespace(), &other).unwrap_err()
    };
    let failure = other(|n| n.nguid = [8; 16]);
    assert_eq!(failure.kind, ErrorKind::Stale);
    assert!(failure.message.contains(&"07".repeat(16)), "{failure}");
    assert!(failure.message.contains(&"08".repeat(16)), "{failure}");
    assert!(other(|n| n.num_blocks = 99).message.contains("found NGUID"));
    assert!(other(|n| n.block_len_bytes = 4096).message.contains("4096"));
}

#[test]
fn a_session_that_is_left_keeps_its_controller_until_its_last_write_has_ended() {
    let mut now = Instant::now();
    let lost = || Identified {
        inaccessible: Some(Failure::new(ErrorKind::Disconnected, "inaccessible")),
        ..Identified::default()
    };
    // A single path: the other slot connects to it at once.
    let mut lifecycle = on(now, &["a"]);
    run(&mut lifecycle, now, &[]);
    let first = Arc::clone(lifecycle.live().unwrap());
    assert!(first.underway.begin());
    now += PROVEN_AFTER;
    lifecycle.handle_changed(now, 0, &lost(), Vec::new());
    assert!(lifecycle.live().is_none() && !first.underway.begin());
    assert_eq!(run(&mut lifecycle, now, &[]), [0]);
    assert_eq!(sessions(&lifecycle), [(2, "a")]);
    assert_eq!((lifecycle.losses(0), lifecycle.stats().reconnects), (1, 1));
    // The second has to be left as well: one of the two must end before there is another.
    let second = Arc::clone(lifecycle.live().unwrap());
    assert!(second.underway.begin());
    now += PROVEN_AFTER;
    lifecycle.handle_changed(now, 1, &lost(), Vec::new());
    assert!(run(&mut lifecycle, now, &[]).is_empty());
    assert!(first.underway.end(2));
    assert_eq!(run(&mut lifecycle, now, &[]), [0]);
    assert_eq!(sessions(&lifecycle), [(3, "a")]);
    // A write without an answer has a limit.
    assert_eq!(lifecycle.poll_timeout(), Some(now + Duration::from_secs(10)));
    run(&mut lifecycle, now + Duration::from_secs(10), &[]);
    assert_eq!(lifecycle.poll_timeout(), None);
    assert_eq!(sessions(&lifecycle), [(3, "a")]);
}

#[test]
fn waits_double_up_to_half_a_second_and_differ_among_hosts() {
    let mut backoff = Backoff::new(7);
    let mut step = BACKOFF_MIN;
    for _ in 0..20 {
        let wait = backoff.next();
        assert!(wait <= step && wait >= step / 2, "{wait:?} of {step:?}");
        step = (step * 2).min(BACKOFF_MAX);
    }
    let one: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
    let two: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
    assert_ne!(one, two);
}
