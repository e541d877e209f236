//! Both sides against each other, and each side against faulty and hostile messages.

use proptest::prelude::*;

use super::*;
use crate::nvme::Nqn;

const RUNS: u64 = 10_000;

/// A small random generator: its seed reproduces a run.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        // SplitMix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    fn randomness(&mut self) -> Randomness {
        Randomness { challenge: self.bytes(), exponent: self.bytes(), sequence: self.next() as u32 }
    }
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(format!("nqn.2026-11.io.example:{name}")).unwrap()
}

/// Terms of two sides that know each other's keys.
fn terms(rng: &mut Rng, is_mutual: bool) -> (HostTerms, ControllerTerms) {
    let transform = [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)];
    let transform = transform[rng.below(4)];
    let secret = Secret::generate(&rng.bytes(), transform);
    let ctrl_secret = is_mutual.then(|| Secret::generate(&rng.bytes(), transform));
    let host = HostTerms {
        hostnqn: nqn("host"),
        subnqn: nqn("subsystem"),
        secret: secret.clone(),
        ctrl_secret: ctrl_secret.clone(),
        hashes: Hash::ALL.to_vec(),
        groups: vec![Group::Null],
        concatenation: Concatenation::No,
    };
    let controller = ControllerTerms {
        hostnqn: nqn("host"),
        subnqn: nqn("subsystem"),
        secrets: vec![secret],
        ctrl_secret,
        hashes: Hash::ALL.to_vec(),
        groups: Group::ALL.to_vec(),
        concatenation: Concatenation::No,
    };
    (host, controller)
}

/// The result of an authentication on both sides; `None`: the side still waits.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    host: Option<Result<(), Failed>>,
    controller: Option<Result<(), Failed>>,
}

impl Ends {
    fn both(result: Result<(), Failed>) -> Ends {
        Ends { host: Some(result.clone()), controller: Some(result) }
    }

    /// Returns whether the controller would admit the host.
    fn is_let_in(&self) -> bool {
        self.controller == Some(Ok(()))
    }
}

/// Runs both sides; `damage` may change each message in transit, by its number.
fn run(
    (mut host, mut of_host): (Host, Next),
    mut controller: Controller,
    mut damage: impl FnMut(usize, &mut Vec<u8>),
) -> (Ends, Host, Controller) {
    let mut of_controller = Next::Receive;
    let mut to_host = None::<Vec<u8>>;
    let mut to_controller = None::<Vec<u8>>;
    let mut number = 0;
    let mut ends = Ends { host: None, controller: None };
    for _ in 0..64 {
        match of_host {
            Next::Send(mut message) => {
                damage(number, &mut message);
                number += 1;
                to_controller = Some(message);
                of_host = host.sent();
                continue;
            }
            Next::Compute(work) => {
                of_host = host.computed(work.compute());
                continue;
            }
            Next::Authenticated => ends.host = Some(Ok(())),
            Next::Failed(ref failed) => ends.host = Some(Err(failed.clone())),
            Next::Receive => {
                if let Some(message) = to_host.take() {
                    of_host = host.handle(&message);
                    continue;
                }
            }
        }
        match of_controller {
            Next::Send(mut message) => {
                damage(number, &mut message);
                number += 1;
                to_host = Some(message);
                of_controller = controller.sent();
            }
            Next::Compute(work) => of_controller = controller.computed(work.compute()),
            Next::Authenticated => ends.controller = Some(Ok(())),
            Next::Failed(ref failed) => ends.controller = Some(Err(failed.clone())),
            Next::Receive => match to_controller.take() {
                Some(message) => of_controller = controller.handle(&message),
                None if to_host.is_none() => break,
                None => {}
            },
        }
    }
    (ends, host, controller)
}

/// Runs both sides without damage.
fn between(
    rng: &mut Rng,
    host: HostTerms,
    controller: ControllerTerms,
) -> (Ends, Host, Controller) {
    let host = Host::new(host, &rng.randomness(), 7);
    run(host, Controller::new(controller, &rng.randomness()), |_, _| {})
}

#[test]
fn host_and_controller_with_the_right_secrets_succeed_with_each_hash_and_group() {
    let rng = &mut Rng(1);
    for is_mutual in [false, true] {
        for hash in Hash::ALL {
            for group in Group::ALL {
                let (host, controller) = terms(rng, is_mutual);
                let host = HostTerms { hashes: vec![hash], groups: vec![group], ..host };
                let (ends, ..) = between(rng, host, controller);
                assert_eq!(ends, Ends::both(Ok(())), "{hash}, {group}, mutual {is_mutual}");
            }
        }
    }
}

#[test]
fn a_wrong_secret_on_either_side_is_reported_to_both_and_refused() {
    let rng = &mut Rng(2);
    let (host, controller) = terms(rng, true);
    let wrong = HostTerms { secret: Secret::generate(&rng.bytes(), None), ..host.clone() };
    let (ends, ..) = between(rng, wrong, controller.clone());
    let explanation = Explanation::AuthenticationFailed;
    assert_eq!(ends.host, Some(Err(Failed::There(explanation))));
    assert!(matches!(ends.controller, Some(Err(Failed::Here(e, _))) if e == explanation));

    let other = Secret::generate(&rng.bytes(), None);
    let impostor = ControllerTerms { ctrl_secret: Some(other), ..controller };
    let (ends, ..) = between(rng, host, impostor);
    assert!(matches!(ends.host, Some(Err(Failed::Here(e, _))) if e == explanation));
    assert_eq!(ends.controller, Some(Err(Failed::There(explanation))));
}

#[test]
fn a_secret_belongs_to_its_nqns() {
    let rng = &mut Rng(3);
    let secret = Secret::generate(&rng.bytes(), Some(Hash::Sha256));
    let (host, controller) = terms(rng, false);
    let host = HostTerms { secret: secret.clone(), ..host };
    let controller = ControllerTerms { secrets: vec![secret], ..controller };
    let renamed = HostTerms { hostnqn: nqn("another"), ..host.clone() };
    assert!(!between(rng, renamed, controller.clone()).0.is_let_in());
    let elsewhere = HostTerms { subnqn: nqn("another"), ..host.clone() };
    assert!(!between(rng, elsewhere, controller.clone()).0.is_let_in());
    assert!(between(rng, host, controller).0.is_let_in());
}

#[test]
fn two_secrets_are_valid_while_one_is_replaced() {
    let rng = &mut Rng(4);
    let (host, controller) = terms(rng, false);
    let next = Secret::generate(&rng.bytes(), Some(Hash::Sha384));
    let secrets = vec![next.clone(), host.secret.clone()];
    let controller = ControllerTerms { secrets, ..controller };
    for secret in [next, host.secret.clone()] {
        let host = HostTerms { secret, ..host.clone() };
        assert!(between(rng, host, controller.clone()).0.is_let_in());
    }
}

#[test]
fn each_failed_agreement_has_its_own_explanation() {
    let rng = &mut Rng(5);
    let (host, controller) = terms(rng, false);
    let told = |rng: &mut Rng, host: HostTerms, controller: ControllerTerms| {
        let (ends, ..) = between(rng, host, controller);
        let Some(Err(Failed::There(explanation))) = ends.host else { panic!("{ends:?}") };
        assert!(matches!(ends.controller, Some(Err(Failed::Here(e, _))) if e == explanation));
        explanation
    };
    let one_hash = ControllerTerms { hashes: vec![Hash::Sha512], ..controller.clone() };
    let another = HostTerms { hashes: vec![Hash::Sha256, Hash::Sha384], ..host.clone() };
    assert_eq!(told(rng, another, one_hash), Explanation::HashNotUsable);
    let groups = vec![Group::Ffdhe2048, Group::Ffdhe3072];
    let with_group = ControllerTerms { groups, ..controller.clone() };
    assert_eq!(told(rng, host.clone(), with_group), Explanation::GroupNotUsable);
    let concatenated = HostTerms {
        groups: vec![Group::Ffdhe2048],
        concatenation: Concatenation::Required,
        ..host.clone()
    };
    assert_eq!(told(rng, concatenated, controller.clone()), Explanation::ConcatenationMismatch);
    let mutual = HostTerms { ctrl_secret: Some(host.secret.clone()), ..host };
    assert_eq!(told(rng, mutual, controller), Explanation::AuthenticationFailed);
}

#[test]
fn concatenation_gives_both_sides_one_key_and_other_runs_none() {
    let rng = &mut Rng(6);
    let (host, controller) = terms(rng, true);
    let (_, a, b) = between(rng, host.clone(), controller.clone());
    assert!(a.generated_psk().is_none() && b.generated_psk().is_none());
    let concatenation = Concatenation::Required;
    let groups = Group::ALL.to_vec();
    let host = HostTerms { concatenation, groups, ..host };
    // The controller prefers a hash that no cipher suite has.
    let hashes = vec![Hash::Sha512, Hash::Sha384, Hash::Sha256];
    let controller = ControllerTerms { hashes, concatenation, ..controller };
    let one_way = HostTerms { ctrl_secret: None, ..host.clone() };
    for host in [host, one_way] {
        let (ends, a, b) = between(rng, host.clone(), controller.clone());
        assert_eq!(ends, Ends::both(Ok(())));
        let psk = a.generated_psk().unwrap();
        assert_eq!(psk.key(), b.generated_psk().unwrap().key());
        assert_eq!((psk.key().len(), psk.hash()), (48, Hash::Sha384));
        let (_, c, _) = between(rng, host, controller.clone());
        assert_ne!(psk.key(), c.generated_psk().unwrap().key());
    }
}

/// The identifiers of NVM Express Base Specification 2.2, 8.3.5.5; Linux's host and target expect these.
#[test]
fn a_host_that_concatenates_says_so_and_sends_a_challenge_without_a_number() {
    let rng = &mut Rng(9);
    let (host, controller) = terms(rng, false);
    let concatenation = Concatenation::Required;
    let groups = vec![Group::Ffdhe2048];
    let host = HostTerms { concatenation, groups, ..host };
    let controller = ControllerTerms { concatenation: Concatenation::Optional, ..controller };
    let host = Host::new(host, &rng.randomness(), 7);
    let mut sent = Vec::new();
    let controller = Controller::new(controller, &rng.randomness());
    let (ends, ..) = run(host, controller, |_, message| sent.push(message.clone()));
    assert_eq!(ends, Ends::both(Ok(())));
    assert_eq!(sent[0][6], 2, "SC_C: a new key of TLS");
    let (_, Message::Reply { cvalid, sequence, challenge, .. }) =
        Message::decode(&sent[2]).unwrap()
    else {
        panic!("the third message answers the challenge")
    };
    assert_eq!((cvalid, sequence), (true, 0));
    assert!(challenge.iter().any(|byte| *byte != 0));
}

#[test]
fn a_host_that_concatenates_neither_offers_nor_takes_what_gives_no_key() {
    let rng = &mut Rng(11);
    let (host, _) = terms(rng, false);
    let groups = Group::ALL.to_vec();
    let host = HostTerms { concatenation: Concatenation::Required, groups, ..host };
    for (hash, group, refusal) in [
        (Hash::Sha512, Group::Ffdhe2048, Explanation::HashNotUsable),
        (Hash::Sha384, Group::Null, Explanation::GroupNotUsable),
    ] {
        let (mut host, next) = Host::new(host.clone(), &rng.randomness(), 7);
        let Next::Send(bytes) = next else { panic!("it begins") };
        let (_, Message::Negotiate { hashes, groups, .. }) = Message::decode(&bytes).unwrap()
        else {
            panic!("with an offer")
        };
        assert!(!hashes.contains(&Hash::Sha512.id()) && !groups.contains(&Group::Null.id()));
        assert!(matches!(host.sent(), Next::Receive));
        let challenge = Message::Challenge {
            hash: hash.id(),
            group: group.id(),
            sequence: 1,
            challenge: vec![1; hash.len_bytes()],
            dh: vec![2; group.len_bytes()],
        };
        let Next::Send(bytes) = host.handle(&challenge.encode(7)) else { panic!("it refuses") };
        let failure = Message::Failure2 { explanation: refusal };
        assert_eq!(Message::decode(&bytes), Ok((7, failure)));
    }
}

/// Otherwise an attacker in between could free the controller of its proof, or remove a challenge from the
/// key.
#[test]
fn a_challenge_that_was_not_agreed_on_is_refused() {
    let rng = &mut Rng(10);
    let (host, controller) = terms(rng, true);
    let numberless: fn(&mut Vec<u8>) = |message| message[12..16].fill(0);
    let invalid: fn(&mut Vec<u8>) = |message| message[8] = 0;
    let groups = vec![Group::Ffdhe2048];
    let with_key = HostTerms { concatenation: Concatenation::Required, groups, ..host.clone() };
    for (host, damage) in [(host, numberless), (with_key, invalid)] {
        let controller =
            ControllerTerms { concatenation: Concatenation::Optional, ..controller.clone() };
        let host = Host::new(host, &rng.randomness(), 7);
        let (ends, ..) =
            run(host, Controller::new(controller, &rng.randomness()), |number, message| {
                if number == 2 {
                    damage(message);
                }
            });
        let Some(Err(Failed::Here(explanation, _))) = ends.controller else { panic!("{ends:?}") };
        assert_eq!(explanation, Explanation::IncorrectPayload);
    }
}

/// A man in the middle returns the controller's own challenge, so that the controller answers it.
#[test]
fn a_reflected_challenge_is_not_answered() {
    let rng = &mut Rng(7);
    let (_, controller) = terms(rng, true);
    let mut controller = Controller::new(controller, &rng.randomness());
    let negotiate = Message::Negotiate { sc_c: 0, hashes: vec![1], groups: vec![0] };
    let Next::Send(bytes) = controller.handle(&negotiate.encode(1)) else { panic!("a challenge") };
    let (_, Message::Challenge { challenge, .. }) = Message::decode(&bytes).unwrap() else {
        panic!()
    };
    assert!(matches!(controller.sent(), Next::Receive));
    let reply = Message::Reply {
        response: vec![1; 32],
        cvalid: true,
        sequence: 5,
        challenge,
        dh: Vec::new(),
    };
    let Next::Send(bytes) = controller.handle(&reply.encode(1)) else { panic!("a failure") };
    assert!(matches!(Message::decode(&bytes).unwrap(), (1, Message::Failure1 { .. })));
}

/// A response recorded in one authentication is useless in another.
#[test]
fn a_replayed_answer_is_refused() {
    let rng = &mut Rng(8);
    let (host, controller) = terms(rng, false);
    let mut heard = Vec::new();
    let first = Host::new(host.clone(), &rng.randomness(), 7);
    let of_first = Controller::new(controller.clone(), &rng.randomness());
    run(first, of_first, |number, message| {
        if number == 2 {
            heard = message.clone();
        }
    });
    let second = Host::new(host, &rng.randomness(), 7);
    let of_second = Controller::new(controller, &rng.randomness());
    let (ends, ..) = run(second, of_second, |number, message| {
        if number == 2 {
            message.clone_from(&heard);
        }
    });
    assert!(!ends.is_let_in() && ends.controller.is_some(), "{ends:?}");
}

/// Returns whether the byte has bits that no proof covers, so that a change may have no effect: reserved
/// bytes, and the host's offer; see `message` for the bytes.
fn is_uncovered(number: usize, byte: usize, message: &[u8]) -> bool {
    match number {
        0 => byte == 2 || byte == 3 || byte >= 7,
        1 => [2, 3, 7].contains(&byte),
        2 => {
            [2, 3, 7, 9].contains(&byte)
                || (message[8] == 0 && is_of_second_challenge(byte, message))
        }
        3 => [2, 3, 7].contains(&byte) || (9..16).contains(&byte) || (message[8] == 0 && byte == 6),
        _ => true, // Success2 says only that the host accepts
    }
}

/// Returns whether the host's proof depends on the byte. The other bytes belong to the controller's proof:
/// the host rejects a change there, after the controller has rightly admitted it.
fn is_of_host(number: usize, byte: usize, message: &[u8]) -> bool {
    match number {
        0 | 1 => true,
        2 => byte != 8 && !is_of_second_challenge(byte, message),
        _ => false,
    }
}

/// Returns whether the byte belongs to C2 or its sequence number, which are not answered without CVALID.
fn is_of_second_challenge(byte: usize, message: &[u8]) -> bool {
    let len = usize::from(message[6]);
    (12..16).contains(&byte) || (16 + len..16 + 2 * len).contains(&byte)
}

fn no_flipped_bit_lets_anybody_in(group: Group, runs: u64) {
    for seed in 0..runs {
        let rng = &mut Rng(seed);
        let (host, controller) = terms(rng, seed % 2 == 0);
        let host = Host::new(HostTerms { groups: vec![group], ..host }, &rng.randomness(), 7);
        let controller = Controller::new(controller, &rng.randomness());
        let which = rng.below(4);
        let place = rng.next();
        let mut covered = false;
        let mut of_host = false;
        let (ends, ..) = run(host, controller, |number, message| {
            if number == which {
                let bit = (place % (message.len() as u64 * 8)) as usize;
                covered = !is_uncovered(number, bit / 8, message);
                of_host = covered && is_of_host(number, bit / 8, message);
                message[bit / 8] ^= 1 << (bit % 8);
            }
        });
        let succeeded = ends == Ends::both(Ok(()));
        assert!(!(covered && succeeded), "seed {seed}, {group}: message {which}, {ends:?}");
        assert!(!(of_host && ends.is_let_in()), "seed {seed}, {group}: message {which}, {ends:?}");
    }
}

#[test]
fn a_response_with_a_flipped_bit_is_never_accepted() {
    no_flipped_bit_lets_anybody_in(Group::Null, runs(RUNS));
    no_flipped_bit_lets_anybody_in(Group::Ffdhe2048, runs(RUNS) / 100);
}

/// The number of runs: `DLFS_AUTH_RUNS`, or `default`.
fn runs(default: u64) -> u64 {
    let given = std::env::var("DLFS_AUTH_RUNS").ok().and_then(|runs| runs.parse().ok());
    given.unwrap_or(default)
}

proptest! {
    #[test]
    fn arbitrary_bytes_neither_panic_nor_authenticate(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 1..6),
        shapes in proptest::collection::vec((0u8..2, 0u8..6, 0u8..3, 0usize..700), 6),
        seed in any::<u64>(),
    ) {
        let rng = &mut Rng(seed);
        let (host, controller) = terms(rng, seed % 2 == 0);
        let mut controller = Controller::new(controller, &rng.randomness());
        let (mut host, _) = Host::new(host, &rng.randomness(), 7);
        let _ = host.sent();
        for (bytes, (kind, id, choice, len)) in messages.iter().zip(&shapes) {
            // Half of the byte strings look like messages.
            let mut bytes = bytes.clone();
            if *choice > 0 {
                bytes.resize(bytes.len().max(*len).max(16), 0);
                bytes[..6].copy_from_slice(&[*kind, *id, 0, 0, 7, 0]);
                bytes[6] = [32, 48, 64][usize::from(*id) % 3];
            }
            let mut next = controller.handle(&bytes);
            loop {
                next = match next {
                    Next::Send(_) => controller.sent(),
                    Next::Compute(work) => controller.computed(work.compute()),
                    Next::Authenticated => panic!("let in"),
                    Next::Receive | Next::Failed(_) => break,
                };
            }
            if let Next::Send(message) = host.handle(&bytes) {
                prop_assert!(Message::decode(&message).is_ok());
                let _ = host.sent();
            }
        }
    }
}

#[test]
fn an_invalid_key_is_refused_with_the_reason_and_without_its_text() {
    let good = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    assert!(good.parse::<Secret>().is_ok());
    assert!(format!("  {good}\n").parse::<Secret>().is_ok(), "as it stands in a file");
    let cases = [
        ("", KeyError::Form("DHHC-1:")),
        ("DHHC-2:00:AAEC:", KeyError::Form("DHHC-1:")),
        (&good[..good.len() - 1], KeyError::Form("DHHC-1:")),
        (&good.replace(":00:", ":04:"), KeyError::Hash("00 to 03 are")),
        (&good.replace("AAEC", "AA*C"), KeyError::Base64),
        (&good.replace("AAEC", "AAED"), KeyError::Checksum),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Secret>().unwrap_err();
        assert_eq!(error, expected, "{text}");
        assert!(!error.to_string().contains("AwQFBgcI"));
    }
    let secret: Secret = good.parse().unwrap();
    assert!(!format!("{secret:?}").contains("AAEC"));
}
