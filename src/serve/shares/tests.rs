//! The shares of flows that always wait, of hosts that ask for little, and of any others.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn flow(host: usize, namespace: usize, connection: usize) -> Flow {
    Flow { host, namespace, connection }
}

/// Serves `turns` turns to flows that always wait, each with the cost of its turn; returns what each host got.
fn served(turns: &mut Turns, flows: &[(Flow, u64)], count: usize) -> Vec<u64> {
    let costs: BTreeMap<usize, (Flow, u64)> =
        flows.iter().map(|&(flow, cost)| (flow.connection, (flow, cost))).collect();
    flows.iter().for_each(|&(flow, _)| turns.enter(flow));
    let mut by_connection = vec![0; 1 + *costs.keys().last().unwrap()];
    for _ in 0..count {
        let turn = turns.next().unwrap();
        let (flow, cost) = costs[&turn.flow.connection];
        by_connection[flow.connection] += cost;
        turns.served(turn, cost, Some(flow.namespace));
    }
    by_connection
}

fn assert_close(found: u64, expected: u64) {
    let [found, expected] = [found, expected].map(|value| value as f64);
    assert!((found / expected - 1.0).abs() < 0.05, "{found} instead of {expected}");
}

#[test]
fn a_host_with_64_connections_gets_as_much_as_one_with_1() {
    let mut turns = Turns::default();
    let greedy = (0..64).map(|connection| (flow(0, 0, connection), 1 << 20));
    let flows: Vec<_> = greedy.chain([(flow(1, 0, 64), 8192)]).collect();
    let got = served(&mut turns, &flows, 100_000);
    let greedy: u64 = got[..64].iter().sum();
    assert_close(greedy, got[64]);
    let least = got[..64].iter().min().unwrap();
    assert!(got[..64].iter().all(|one| one - least <= 1 << 20), "they differ by a turn: {got:?}");
}

#[test]
fn hosts_share_by_weight_then_namespaces_alike_then_connections_alike() {
    let mut turns = Turns::default();
    turns.set_weight(0, 300);
    let mut flows: Vec<_> = (0..5).map(|connection| (flow(0, 3, connection), 100_000)).collect();
    flows.push((flow(0, 1, 5), 5000));
    flows.push((flow(1, 1, 6), 70_000));
    let got = served(&mut turns, &flows, 200_000);
    let total: u64 = got.iter().sum();
    assert_close(got[6], total / 4);
    assert_close(got[5], total * 3 / 8);
    got[..5].iter().for_each(|&one| assert_close(one, total * 3 / 8 / 5));
}

#[test]
fn a_small_command_waits_for_at_most_one_turn_of_each_other_host() {
    let mut turns = Turns::default();
    let greedy = |host: usize| (0..8).map(move |number| flow(host, 0, host * 8 + number));
    (1..4).flat_map(greedy).for_each(|flow| turns.enter(flow));
    let polite = flow(0, 0, 0);
    for round in 0..1000 {
        turns.enter(polite);
        let mut waited = Vec::new();
        loop {
            let turn = turns.next().unwrap();
            if turn.flow == polite {
                turns.served(turn, 8192, None);
                break;
            }
            waited.push(turn.flow.host);
            turns.served(turn, 1 << 20, Some(0));
        }
        let once = |host: &usize| waited.iter().filter(|other| *other == host).count() == 1;
        assert!(waited.iter().all(once), "{waited:?}");
        // Turns that it did not use give it no more later.
        for _ in 0..round % 7 {
            let turn = turns.next().unwrap();
            turns.served(turn, 1 << 20, Some(0));
        }
    }
}

#[test]
fn a_pause_saves_no_turns_up_and_turns_that_nobody_wanted_are_not_owed() {
    let mut turns = Turns::default();
    let busy = flow(0, 0, 0);
    (0..10_000).for_each(|_| turns.charge(busy, 1 << 20));
    let got = served(&mut turns, &[(busy, 1 << 20), (flow(1, 0, 1), 1 << 20)], 100);
    assert!(got[0].abs_diff(got[1]) <= 2 << 20, "{got:?}");
}

#[test]
fn postponed_turns_keep_their_priorities() {
    let mut turns = Turns::default();
    turns.set_weight(0, 400);
    let flows = [flow(0, 0, 0), flow(1, 0, 1), flow(2, 1, 2)];
    flows.iter().for_each(|&flow| turns.enter(flow));
    let mut got = [0; 3];
    for round in 0..90_000 {
        // Only each third round, the first two can use a turn, and then only one of them.
        let mut is_open = round % 3 == 0;
        while let Some(turn) = turns.next() {
            let Flow { host, namespace, .. } = turn.flow;
            if host == 2 && got[2] <= round * 10 {
                got[2] += 1000;
                turns.served(turn, 1000, Some(namespace));
            } else if host < 2 && std::mem::take(&mut is_open) {
                got[host] += 1000;
                turns.served(turn, 1000, Some(namespace));
            } else {
                turns.postpone(
                    turn,
                    if host == 0 { Blocked::Namespace } else { Blocked::Connection },
                );
            }
        }
        turns.end_round();
    }
    assert_close(got[0], 4 * got[1]);
}

#[test]
fn a_weight_changes_the_shares_from_then_on() {
    let mut turns = Turns::default();
    let flows = [(flow(0, 0, 0), 4096), (flow(1, 0, 1), 4096)];
    let first = served(&mut turns, &flows, 1000);
    assert_close(first[0], first[1]);
    turns.set_weight(1, 900);
    let mut got = [0_u64; 2];
    for _ in 0..10_000 {
        let turn = turns.next().unwrap();
        let Flow { host, namespace, .. } = turn.flow;
        got[host] += 4096;
        turns.served(turn, 4096, Some(namespace));
    }
    assert_close(got[1], 9 * got[0]);
}

proptest! {
    /// Connections come, wait for other namespaces, are postponed and leave: each that waits has its turn
    /// once, and none is served twice or after it has left.
    #[test]
    fn each_connection_that_waits_has_its_turn_and_no_other_has(
        steps in prop::collection::vec((0_u8..6, 0_usize..12, 0_usize..3, 1_u64..5000), 1..300),
    ) {
        let mut turns = Turns::default();
        let mut waiting: BTreeMap<usize, usize> = BTreeMap::new();
        for (what, connection, namespace, cost) in steps {
            let host = connection % 4;
            match what {
                0 | 1 if !waiting.contains_key(&connection) => {
                    turns.enter(flow(host, namespace, connection));
                    waiting.insert(connection, namespace);
                }
                2 => {
                    turns.leave(|other| other == connection);
                    waiting.remove(&connection);
                }
                3 if turns.is_empty() => turns.charge(flow(host, namespace, connection), cost),
                _ => match turns.next() {
                    None => prop_assert!(waiting.is_empty()),
                    Some(turn) => {
                        prop_assert_eq!(waiting.get(&turn.flow.connection), Some(&turn.flow.namespace));
                        if what == 4 {
                            let blocked = if namespace == 0 { Blocked::Connection } else { Blocked::Namespace };
                            turns.postpone(turn, blocked);
                            turns.end_round();
                        } else {
                            let connection = turn.flow.connection;
                            let more = (what == 5).then_some(namespace);
                            turns.served(turn, cost, more);
                            waiting.remove(&connection);
                            if let Some(namespace) = more {
                                waiting.insert(connection, namespace);
                            }
                        }
                    }
                },
            }
        }
        while let Some(turn) = turns.next() {
            prop_assert_eq!(waiting.remove(&turn.flow.connection), Some(turn.flow.namespace));
            turns.served(turn, 1, None);
        }
        prop_assert!(waiting.is_empty() && turns.is_empty());
    }
}
