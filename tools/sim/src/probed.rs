//! Machines as `dlfs probe` has measured them, in place of those of the configuration.

use dlfs::cache::Environment as Probed;
use dlfs::plan::{Curve, Stage};

use crate::environment::{Class, ConfigError, Environment, Sharing};

impl Environment {
    /// These machines with the tiers of `probed`, and with its origin if that was measured.
    ///
    /// The probe ran on one machine. Its rate for a number of clients is taken as the rate of that many clients
    /// on all nodes together; each staging thread of a node is a client. A node alone gets at most the link's
    /// rate or, if that was not measured, the highest rate of the probe. In a table by processes, like HDMLP's,
    /// a node is one process. Not used: the limit of copying (`copy_bandwidth`) and the policy, which are not
    /// properties of the machines.
    ///
    /// # Errors
    /// A table, a size or a policy is invalid.
    pub fn with_probed(self, probed: &Probed) -> Result<Environment, ConfigError> {
        let refuse = |error: dlfs::Error| ConfigError::Probed(error.to_string());
        let quotas = probed.options().map_err(refuse)?.tiers;
        let (stages, origin) = probed.stages().map_err(refuse)?;
        let tiers = stages.iter().zip(&quotas).zip(&probed.tiers).map(|((stage, quota), table)| {
            let read: Vec<u32> = table.read.iter().map(|point| point.threads).collect();
            let write: Vec<u32> = table.write.iter().map(|point| point.threads).collect();
            class(quota.quota_bytes, stage, &read, &write)
        });
        let environment = Environment { tiers: tiers.collect(), ..self };
        let Some(origin) = origin else { return Ok(environment) };
        let rates = probed.origin.iter().map(|point| point.mb_per_s);
        let (clients, origin_shared_by) = match probed.origin_by.as_deref() {
            Some("processes") => (1, Sharing::Nodes),
            _ => (environment.staging.threads, Sharing::Transfers),
        };
        let link = probed.origin_link_mb_per_s;
        Ok(Environment {
            origin_link_mb_s: link.unwrap_or_else(|| rates.fold(0.0, f64::max)),
            origin_mb_s: of_nodes(&origin, environment.nodes, clients),
            origin_shared_by,
            origin_chunks_mb_s: None,
            ..environment
        })
    }
}

/// A tier of `quota_bytes` with the rates of `stage` at the measured numbers of threads.
fn class(quota_bytes: u64, stage: &Stage, read: &[u32], write: &[u32]) -> Class {
    let table = |curve: &Curve, threads: &[u32]| -> Vec<(u32, f64)> {
        threads.iter().map(|&threads| (threads, mb_s(curve, threads))).collect()
    };
    Class {
        capacity_mb: quota_bytes as f64 / 1e6,
        threads: stage.threads,
        read_mb_s: table(&stage.read, read),
        write_mb_s: (!write.is_empty()).then(|| table(&stage.write, write)),
        cost_per_gb: None,
    }
}

/// The rates that 1, 2, 4 ... and all nodes get together, with `clients` each.
fn of_nodes(origin: &Curve, nodes: u32, clients: u32) -> Vec<(u32, f64)> {
    let next = |&count: &u32| (count < nodes).then(|| count.saturating_mul(2).min(nodes));
    let counts = std::iter::successors(Some(1), next);
    counts.map(|count| (count, mb_s(origin, count.saturating_mul(clients)))).collect()
}

fn mb_s(curve: &Curve, count: u32) -> f64 {
    curve.at(count).0 as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thesis;

    const PROBED: &str = r#"
    policy = "clairvoyant"
    origin = [{ threads = 1, mb_per_s = 60 }, { threads = 4, mb_per_s = 150.5 }]
    [[tier]]
    backend = "memory"
    capacity = "4000000000"
    threads = 2
    read = [{ threads = 1, mb_per_s = 9000 }, { threads = 4, mb_per_s = 20000 }]
    write = [{ threads = 1, mb_per_s = 5000 }]
    [[tier]]
    backend = "filesystem"
    path = "/fast"
    capacity = "1G"
    threads = 3
    read = [{ threads = 1, mb_per_s = 500 }]
    "#;

    #[test]
    fn probed_rates_replace_those_of_tiers_and_origin() {
        let probed = Probed::parse(PROBED).unwrap();
        let environment = Environment { nodes: 3, ..thesis::environment() };
        let environment = environment.with_probed(&probed).unwrap();
        let [memory, disk] = &environment.tiers[..] else { panic!("{environment:?}") };
        assert_eq!((memory.capacity_mb, memory.threads), (4_000.0, 2));
        assert_eq!(memory.read_mb_s, [(1, 9_000.0), (4, 20_000.0)]);
        assert_eq!(memory.write_mb_s, Some(vec![(1, 5_000.0)]));
        assert_eq!((disk.capacity_mb, disk.threads), (1_073.741_824, 3));
        assert_eq!((&disk.read_mb_s[..], &disk.write_mb_s), (&[(1, 500.0)][..], &None));
        // A node with two threads is two clients: a third of the way from 1 to 4, then all of it.
        let third = 60.0 + 90.5 / 3.0;
        let [(1, one), (2, two), (3, three)] = environment.origin_mb_s[..] else {
            panic!("{environment:?}")
        };
        assert!((one - third).abs() < 1e-5 && (two, three) == (150.5, 150.5), "{one} {two}");
        assert_eq!(environment.origin_link_mb_s, 150.5);
        assert_eq!(environment.origin_shared_by, Sharing::Transfers);
        assert_eq!(environment.model().unwrap().tiers.len(), 2);
    }

    #[test]
    fn of_a_table_by_processes_a_node_is_one() {
        let text = format!("origin_by = \"processes\"\norigin_link_mb_per_s = 70\n{PROBED}");
        let probed = Probed::parse(&text).unwrap();
        let environment = Environment { nodes: 4, ..thesis::environment() };
        let environment = environment.with_probed(&probed).unwrap();
        let [(1, one), (2, _), (4, four)] = environment.origin_mb_s[..] else {
            panic!("{environment:?}")
        };
        assert_eq!((one, four, environment.origin_link_mb_s), (60.0, 150.5, 70.0));
        assert_eq!(environment.origin_shared_by, Sharing::Nodes);
    }

    #[test]
    fn without_a_measured_origin_the_old_one_stays() {
        let text = PROBED.lines().filter(|line| !line.contains("origin")).collect::<Vec<_>>();
        let probed = Probed::parse(&text.join("\n")).unwrap();
        let environment = thesis::environment().with_probed(&probed).unwrap();
        assert_eq!(environment.origin_mb_s, thesis::environment().origin_mb_s);
        assert_eq!(environment.origin_shared_by, Sharing::Nodes);
    }

    #[test]
    fn nonsensical_tables_are_refused_by_name() {
        for (from, to, says) in [
            ("threads = 4, mb_per_s = 20000", "threads = 1, mb_per_s = 1", "not sorted"),
            ("mb_per_s = 500 }", "mb_per_s = -500 }", "-500 MB/s"),
            ("read = [{ threads = 1, mb_per_s = 500 }]", "read = []", "tier 1, read is empty"),
            ("\"1G\"", "\"much\"", "much"),
        ] {
            assert!(PROBED.contains(from), "{from}");
            // A program may make such a value; a file is refused when it is parsed.
            let probed: Probed = toml::from_str(&PROBED.replacen(from, to, 1)).unwrap();
            let error = thesis::environment().with_probed(&probed).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("probed"), "{to}: {error}");
        }
    }
}
