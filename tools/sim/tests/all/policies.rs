//! Invariants of every policy, and cases that can be computed by hand.

use clap::ValueEnum;
use dlfs_sim::engine::Outcome;
use dlfs_sim::environment::{Class, Config, Dataset, Environment, Scheme, Sharing, Training};
use dlfs_sim::policy::{Policy, Simulation};
use dlfs_sim::search::{self, Prices};

/// A small training on slow storage: 2,000 samples of about 1 MB on 4 nodes, 3 epochs.
fn config() -> Config {
    Config {
        environment: Environment {
            nodes: 4,
            compute_mb_s: 100.0,
            preprocess_mb_s: 400.0,
            network_mb_s: 5_000.0,
            origin_link_mb_s: 1_000.0,
            origin_mb_s: vec![(1, 60.0), (4, 150.0)],
            origin_shared_by: Sharing::Transfers,
            origin_chunks_mb_s: None,
            staging: Class::new(50.0, 3, &[(1, 9_000.0)]),
            tiers: vec![Class::new(200.0, 2, &[(1, 9_000.0)]), Class::new(200.0, 1, &[(1, 300.0)])],
        },
        dataset: Dataset { samples: 2_000, mean_mb: 1.0, deviation_mb: 0.2 },
        training: Training {
            epochs: 3,
            batch: 40,
            scheme: Scheme::Uniform,
            drop_last: false,
            seed: 9,
        },
    }
}

/// One node, samples of exactly 1 MB, origin throttled to 100 MB/s, a tier for half of the data.
fn throttled(compute_mb_s: f64) -> Config {
    let mut config = config();
    config.environment = Environment {
        nodes: 1,
        compute_mb_s,
        preprocess_mb_s: 5_000.0,
        origin_mb_s: vec![(1, 100.0)],
        tiers: vec![Class::new(1_000.0, 1, &[(1, 9_000.0)])],
        ..config.environment
    };
    config.dataset.deviation_mb = 0.0;
    config.training.epochs = 5;
    config
}

fn seconds(config: &Config, policy: Policy) -> f64 {
    Simulation::new(config).unwrap().run(policy).unwrap().seconds
}

#[test]
fn no_policy_beats_the_lower_bound_and_none_is_slower_than_naive_under_any_scheme() {
    for sharing in [Sharing::Nodes, Sharing::Transfers] {
        for scheme in [Scheme::Uniform, Scheme::Whole, Scheme::Imbalanced] {
            for drop_last in [false, true] {
                let mut config = config();
                config.environment.origin_shared_by = sharing;
                config.training.scheme = scheme;
                config.training.drop_last = drop_last;
                let simulation = Simulation::new(&config).unwrap();
                let bound = simulation.run(Policy::LowerBound).unwrap().seconds;
                let naive = simulation.run(Policy::Naive).unwrap().seconds;
                for &policy in Policy::value_variants() {
                    let Ok(outcome) = simulation.run(policy) else { continue };
                    // Policies that change the order may draw a set of samples that is a little smaller.
                    assert!(outcome.seconds > bound * 0.99, "{policy:?} {scheme:?}");
                    assert!(outcome.seconds < naive * 1.001, "{policy:?} {scheme:?} {sharing:?}");
                }
            }
        }
    }
}

#[test]
fn every_staged_sample_comes_from_one_source() {
    let config = config();
    let simulation = Simulation::new(&config).unwrap();
    let all = simulation.total_bytes() * 3;
    let reorders = [Policy::DeepioOpportunistic, Policy::ParallelStaging, Policy::LowerBound];
    for &policy in Policy::value_variants() {
        let Ok(outcome) = simulation.run(policy) else { continue };
        let staged = outcome.local_bytes + outcome.remote_bytes + outcome.origin_bytes;
        assert!(staged == all || reorders.contains(&policy), "{policy:?}: {staged} of {all}");
        assert_eq!(outcome, simulation.run(policy).unwrap(), "a simulation can be repeated");
    }
}

#[test]
fn a_naive_node_alone_takes_the_sum_of_all_that_it_does() {
    let config = throttled(80.0);
    let by_hand = 10_000.0 * (1.0 / 100.0 + 1.0 / 5_000.0 + 1.0 / 80.0);
    let simulated = seconds(&config, Policy::Naive);
    assert!((simulated / by_hand - 1.0).abs() < 1e-6, "{simulated} against {by_hand}");
}

#[test]
fn threads_share_a_throttled_origin() {
    // Twice as fast as the origin: only its rate counts, with however many threads.
    for threads in [1, 2, 7] {
        let mut config = throttled(200.0);
        config.environment.staging.threads = threads;
        let simulated = seconds(&config, Policy::StagingPool);
        assert!((simulated / 100.0 - 1.0).abs() < 0.01, "{simulated} with {threads}");
    }
    // In the thesis's model each thread gets all of it.
    let mut config = throttled(200.0);
    config.environment.origin_shared_by = Sharing::Nodes;
    config.environment.staging.threads = 2;
    let simulated = seconds(&config, Policy::StagingPool);
    assert!((simulated / 50.0 - 1.0).abs() < 0.02, "{simulated}");
    let bound = Simulation::new(&config).unwrap().cache_bound();
    assert!(simulated >= bound * 0.999, "{simulated} below {bound}");
}

#[test]
fn tiers_of_half_the_data_come_near_the_bound_that_no_cache_can_beat() {
    for (compute, bound) in [(80.0, 125.0), (125.0, 20.0 + 4.0 * 16.0), (200.0, 20.0 + 4.0 * 10.0)]
    {
        let config = throttled(compute);
        let simulation = Simulation::new(&config).unwrap();
        assert!((simulation.cache_bound() - bound).abs() < 0.01, "{}", simulation.cache_bound());
        for policy in [Policy::FirstTouch, Policy::Clairvoyant] {
            let ratio = simulation.run(policy).unwrap().seconds / bound;
            assert!((0.999..1.05).contains(&ratio), "{policy:?} at {compute} MB/s: {ratio}");
        }
        let none = simulation.run(Policy::StagingPool).unwrap().seconds;
        let clairvoyant = simulation.run(Policy::Clairvoyant).unwrap().seconds;
        assert!(compute < 200.0 || none / clairvoyant > 1.5, "{none} against {clairvoyant}");
    }
}

#[test]
fn clairvoyance_wins_where_nodes_can_read_from_each_other() {
    let simulation = Simulation::new(&config()).unwrap();
    let first_touch = simulation.run(Policy::FirstTouch).unwrap();
    let clairvoyant = simulation.run(Policy::PeersByPlan).unwrap();
    assert!(clairvoyant.seconds < first_touch.seconds * 0.9);
    assert!(clairvoyant.remote_bytes > 0 && first_touch.remote_bytes == 0);
    // Tiers that keep what the staging threads fetch, and threads that wait for what is on its way,
    // read less from the origin.
    let hdmlp = simulation.run(Policy::Hdmlp).unwrap();
    let from_origin = |outcome: &Outcome| outcome.origin_bytes + outcome.filled_bytes;
    assert!(from_origin(&clairvoyant) < from_origin(&hdmlp));
}

/// The example of `benches/results/sim.md`: each node keeps a quarter of the data, over 20 epochs.
fn four_nodes(network_mb_s: f64) -> Simulation {
    let mut config: Config =
        toml::from_str(include_str!("../../examples/four-nodes.toml")).unwrap();
    config.environment.network_mb_s = network_mb_s;
    Simulation::new(&config).unwrap()
}

#[test]
fn clairvoyance_wins_by_unequal_frequencies_alone() {
    // So slow a network that no node reads from another: what remains is that each keeps the samples
    // that it reads most, of which chance gives it more than a quarter of its reads.
    let simulation = four_nodes(1.0);
    let first_touch = simulation.run(Policy::FirstTouch).unwrap();
    let clairvoyant = simulation.run(Policy::PeersByPlan).unwrap();
    assert_eq!((first_touch.remote_bytes, clairvoyant.remote_bytes), (0, 0));
    assert_eq!(simulation.run(Policy::Clairvoyant).unwrap(), clairvoyant, "nodes without peers");
    let hits = clairvoyant.local_bytes as f64 / first_touch.local_bytes as f64;
    assert!(hits > 1.25, "{hits} times the hits");
    let seconds = clairvoyant.seconds / first_touch.seconds;
    assert!(seconds < 0.95, "{seconds} of the time");
}

#[test]
fn four_nodes_that_hold_the_data_once_read_it_from_the_origin_about_once() {
    let simulation = four_nodes(5_000.0);
    let first_touch = simulation.run(Policy::FirstTouch).unwrap();
    for policy in [Policy::PeersByPlan, Policy::PeersByHash, Policy::ShardLocal] {
        let outcome = simulation.run(policy).unwrap();
        assert!(outcome.seconds < first_touch.seconds * 0.5, "{outcome:?} {first_touch:?}");
        assert!(outcome.seconds >= simulation.cache_bound() * 0.999, "{policy:?}");
    }
    let own = simulation.run(Policy::Clairvoyant).unwrap();
    assert_eq!(own.remote_bytes, 0, "tiers of a node alone");
}

#[test]
fn peers_read_each_byte_from_the_origin_once_if_they_have_room() {
    let mut config: Config =
        toml::from_str(include_str!("../../examples/four-nodes.toml")).unwrap();
    // Room for 1.5 times the data, in two tiers.
    config.environment.tiers[0].capacity_mb = 800.0;
    let disk = Class { capacity_mb: 700.0, ..config.environment.tiers[0].clone() };
    config.environment.tiers.push(disk);
    for network_mb_s in [5_000.0, 20.0] {
        config.environment.network_mb_s = network_mb_s;
        let simulation = Simulation::new(&config).unwrap();
        let all = simulation.total_bytes();
        let hash = simulation.run(Policy::PeersByHash).unwrap();
        let local = simulation.run(Policy::ShardLocal).unwrap();
        for outcome in [&hash, &local] {
            assert_eq!(outcome.origin_bytes + outcome.filled_bytes, all, "{outcome:?}");
        }
        // Three of four samples are held elsewhere; with batches of 10 a node, local shares leave a fifth.
        let crossed = |outcome: &Outcome| outcome.remote_bytes as f64 / (19 * all) as f64;
        assert!((0.70..0.82).contains(&crossed(&hash)), "{}", crossed(&hash));
        assert!((0.05..0.25).contains(&crossed(&local)), "{}", crossed(&local));
        // On a slow network, shares decide.
        let ratio = local.seconds / hash.seconds;
        assert!(if network_mb_s < 100.0 { ratio < 0.6 } else { ratio < 1.05 }, "{ratio}");
    }
}

#[test]
fn what_no_peer_has_room_for_comes_from_the_origin_in_every_epoch() {
    let mut config: Config =
        toml::from_str(include_str!("../../examples/four-nodes.toml")).unwrap();
    config.environment.tiers[0].capacity_mb = 500.0;
    let simulation = Simulation::new(&config).unwrap();
    let all = simulation.total_bytes() as f64;
    let outcome = simulation.run(Policy::PeersByHash).unwrap();
    let from_origin = (outcome.origin_bytes + outcome.filled_bytes) as f64;
    // Half of the data is held, and is read once.
    let expected = all * (0.5 + 0.5 * 20.0);
    assert!((from_origin / expected - 1.0).abs() < 0.03, "{from_origin} against {expected}");
}

#[test]
fn a_thousand_nodes_with_peers_read_the_origin_once() {
    let text = include_str!("../../examples/thousand-nodes.toml");
    let mut config: Config = toml::from_str(text).unwrap();
    // A fifth of the example, and room for three times the data. `cargo bench --bench nodes` has it whole.
    config.dataset.samples /= 5;
    config.training.epochs = 2;
    config.environment.tiers[0].capacity_mb = 80.0;
    config.environment.tiers.truncate(1);
    let simulation = Simulation::new(&config).unwrap();
    let all = simulation.total_bytes();
    for policy in [Policy::PeersByHash, Policy::ShardLocal] {
        let outcome = simulation.run(policy).unwrap();
        let read = outcome.local_bytes + outcome.remote_bytes + outcome.origin_bytes;
        assert_eq!(read, 2 * all, "{policy:?}");
        assert_eq!(outcome.origin_bytes + outcome.filled_bytes, all, "{policy:?}: {outcome:?}");
    }
}

#[test]
fn policies_that_cannot_run_say_why() {
    let mut config = config();
    let simulation = Simulation::new(&config).unwrap();
    for policy in [Policy::LbannDynamic, Policy::LbannPreloading] {
        let error = simulation.run(policy).unwrap_err().to_string();
        assert!(error.contains("larger than all memories"), "{error}");
    }
    config.environment.tiers.clear();
    let simulation = Simulation::new(&config).unwrap();
    for &policy in Policy::value_variants() {
        let needs_tiers = [
            Policy::LbannDynamic,
            Policy::LbannPreloading,
            Policy::DeepioOrdered,
            Policy::DeepioOpportunistic,
            Policy::ParallelStaging,
        ];
        assert_eq!(simulation.run(policy).is_err(), needs_tiers.contains(&policy), "{policy:?}");
    }
}

#[test]
fn a_sample_larger_than_the_staging_buffer_passes_alone() {
    let mut config = config();
    config.environment.staging.capacity_mb = 0.1;
    let simulated = seconds(&config, Policy::StagingPool);
    assert!(simulated <= seconds(&config, Policy::Naive) * 1.001);
}

#[test]
fn advice_is_the_cheapest_environment_of_the_whole_sweep() {
    let config = config();
    let memory = [0.0, 100.0, 300.0, 600.0];
    let disk = [0.0, 200.0, 500.0];
    let sizes = config.dataset.sizes(config.training.seed).unwrap();
    let points = search::sweep(&config, &sizes, Policy::Clairvoyant, &memory, &disk).unwrap();
    let bound = seconds(&config, Policy::LowerBound);
    let prices = Prices { memory_gb: 5.0, disk_gb: 1.0 };
    for fraction in [0.5, 0.7, 0.8, 1.0] {
        let cost = |p: &search::Point| 4.0 * (p.memory_mb * 5.0 + p.disk_mb) / 1e3;
        let enough = points.iter().filter(|point| point.seconds * fraction <= bound);
        let expected = enough.map(cost).min_by(f64::total_cmp);
        let policy = Policy::Clairvoyant;
        let advice =
            search::advise(&config, &sizes, policy, &memory, &disk, prices, fraction).unwrap();
        assert_eq!(advice.cheapest.map(|(_, cost)| cost), expected, "for {fraction}");
        assert!(advice.simulated <= points.len());
    }
}
