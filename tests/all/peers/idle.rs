//! The cost of an idle node.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::{Origin, nodes, read_all, run, wait_until};
use crate::support::alone::ran_alone;

/// The share of a core that each of `nodes` nodes of this process uses for three seconds.
fn idle_share_of_a_node(nodes: u32) -> f64 {
    let before = cpu_by_thread();
    let span = Duration::from_secs(3);
    thread::sleep(span);
    let used = |(thread, (name, ticks)): (u64, (String, u64))| {
        (name, ticks - before.get(&thread).map_or(0, |(_, ticks)| *ticks))
    };
    let mut by_name: Vec<(String, u64)> = cpu_by_thread().into_iter().map(used).collect();
    by_name.sort();
    // All targets of this process have the same name: that of one node is at most the busiest.
    let (targets, others): (Vec<_>, Vec<_>) =
        by_name.into_iter().partition(|(name, _)| name.starts_with("dlfs-target"));
    let busiest = targets.iter().map(|(_, ticks)| *ticks).max().unwrap_or(0);
    // The keeper serves the connections of all nodes here, and each has a copier.
    let others: u64 = others.iter().map(|(_, ticks)| *ticks).sum();
    let share = |ticks: u64| ticks as f64 / 100. / span.as_secs_f64();
    let one = share(busiest) + share(others) / f64::from(nodes);
    println!(
        "{nodes} nodes: {:.4} of a core idle, target {:.4}, all other threads {:.4}",
        one,
        share(busiest),
        share(others)
    );
    one
}

/// The cost of an idle node that is connected with many others: `DLFS_TEST_PEERS` of them.
#[test]
fn idle_connections_to_many_peers_cost_little() {
    if ran_alone(idle_connections_to_many_peers_cost_little) {
        return;
    }
    let peers: u32 =
        std::env::var("DLFS_TEST_PEERS").map_or(8, |peers| peers.parse().expect("a number"));
    let origin = Origin::new(43, 1_500, 20_000);
    let nodes = nodes(&origin, peers + 1, 3.);
    read_all(&origin, &nodes, 0..1);
    wait_until("all copies", || nodes.iter().all(|node| node.image.tiers().unwrap().is_settled()));
    // Every node has read from every other that holds anything; node 0 keeps its connections open.
    let mut first = nodes[0].image.prefetcher(run(0, peers + 1, 1..1_000)).unwrap();
    for _ in 0..20 {
        first.next().unwrap().unwrap();
    }
    // Other tests run in the same process. When they have ended, only these nodes are left.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        thread::sleep(Duration::from_secs(1));
        let one = idle_share_of_a_node(peers + 1);
        // Counted in hundredths of a second.
        if one <= 0.02 + 0.01 {
            break;
        }
        assert!(Instant::now() < until, "{one} of a core");
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    let window = 4 << 10;
    let pool = 64 << 10;
    let sockets = u64::from(peers) * 2 * 64;
    println!("{resident} kB resident for {} nodes", peers + 1);
    assert!(resident <= u64::from(peers + 1) * (window + pool + sockets) + (64 << 10));
}

/// Name and processor time, in hundredths of a second, of each thread of this process.
fn cpu_by_thread() -> BTreeMap<u64, (String, u64)> {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_thread = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some((entry.file_name().to_str()?.parse().ok()?, (name, ticks(11)? + ticks(12)?)))
    };
    threads.filter_map(of_thread).collect()
}
