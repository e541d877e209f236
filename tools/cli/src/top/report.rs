//! Rows of numbers, from the metrics of all addresses. Tables, sentences and `--json` are made of them.
//!
//! `None` stands for what the metrics do not say: there was one answer so far, or the process does not serve that
//! metric.

use std::collections::BTreeMap;

use serde::Serialize;

use super::between::{Between, Quantile};
use super::page::{Labels, Page};
use super::waits::Wait;

/// Everything that is known at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Report {
    /// How often the addresses are asked.
    pub(super) interval_seconds: f64,
    /// A row for each role of each address.
    pub(super) addresses: Vec<AddressRow>,
    pub(super) subsystems: Vec<SubsystemRow>,
    pub(super) loaders: Vec<LoaderRow>,
    pub(super) tiers: Vec<TierRow>,
    pub(super) peers: Vec<PeerRow>,
    /// Sentences on who waits for whom.
    pub(super) waits: Vec<Wait>,
}

/// A process's role, by the metrics that it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// It serves namespaces.
    Target,
    /// It reads batches along an order.
    Job,
    /// It serves its tiers to the other nodes of its job.
    Peer,
    /// It keeps tiers for others.
    Tiers,
    /// It reads by id or name.
    Reader,
}

impl Role {
    pub(super) fn word(self) -> &'static str {
        match self {
            Role::Target => "target",
            Role::Job => "job",
            Role::Peer => "peer",
            Role::Tiers => "tiers",
            Role::Reader => "reader",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct AddressRow {
    pub(super) address: String,
    /// `None` until it has answered.
    pub(super) role: Option<Role>,
    pub(super) version: Option<String>,
    /// Why there is no answer now.
    pub(super) error: Option<String>,
    /// For how long that has been so.
    pub(super) error_seconds: Option<f64>,
    /// How long ago another process began to answer.
    pub(super) restarted_seconds: Option<f64>,
    /// Reads and writes that succeeded, of a target; otherwise reads that have completed.
    pub(super) commands_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) latency_p50_seconds: Option<Quantile>,
    pub(super) latency_p99_seconds: Option<Quantile>,
    /// Controllers: each host has one or more.
    pub(super) controllers: Option<f64>,
    pub(super) connections: Option<f64>,
    /// I/O commands with an error response, of a target; otherwise reads that were repeated.
    pub(super) errors_per_second: Option<f64>,
    /// The share of the time that consumers have waited for batches; several loaders of a process add up.
    pub(super) wait_share: Option<f64>,
    /// Bytes per second in the last intervals, the oldest first. For the terminal alone.
    #[serde(skip)]
    pub(super) trend: Vec<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct SubsystemRow {
    pub(super) address: String,
    pub(super) subsystem: String,
    pub(super) controllers: Option<f64>,
    pub(super) connections: Option<f64>,
    pub(super) reads_per_second: Option<f64>,
    pub(super) writes_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) latency_p50_seconds: Option<Quantile>,
    pub(super) latency_p99_seconds: Option<Quantile>,
    pub(super) errors_per_second: Option<f64>,
    /// In the interval: connections and Connect commands that were refused.
    pub(super) refused: Option<f64>,
    /// In the interval: connections closed because of the host's behaviour or a limit, and evictions.
    pub(super) dropped: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct LoaderRow {
    pub(super) address: String,
    pub(super) samples_per_second: Option<f64>,
    pub(super) batches_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) wait_share: Option<f64>,
    /// The share of the time by cause, the largest first.
    pub(super) waits_by_cause: Vec<CauseShare>,
    pub(super) latency_p50_seconds: Option<Quantile>,
    pub(super) latency_p99_seconds: Option<Quantile>,
    pub(super) repeats_per_second: Option<f64>,
    pub(super) skipped_per_second: Option<f64>,
    /// In the interval: reads that waited for a sample of another rank.
    pub(super) store_waits: Option<f64>,
    /// The subsystems that the process is connected to.
    pub(super) subsystems: Vec<String>,
    /// In the interval: lost controllers that were connected again.
    pub(super) reconnects: Option<f64>,
    /// Addresses of targets that have failed since they were last connected.
    pub(super) failed_paths: Option<f64>,
    /// In the interval: transfers whose data digest was wrong.
    pub(super) digest_errors: Option<f64>,
}

/// Why consumers wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct CauseShare {
    pub(super) cause: String,
    /// Its share of the time.
    pub(super) share: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct TierRow {
    pub(super) address: String,
    /// The tier as its user wrote it; [`ORIGIN`] for the data set itself.
    pub(super) tier: String,
    pub(super) capacity_bytes: Option<f64>,
    pub(super) held_bytes: Option<f64>,
    /// The share of the bytes that the process has read, also for others, that came from there: of all tiers, the data
    /// set and other nodes.
    pub(super) hit_share: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    /// The mean time of a read.
    pub(super) read_mean_seconds: Option<f64>,
    pub(super) filled_bytes_per_second: Option<f64>,
    pub(super) evictions_per_second: Option<f64>,
    /// It accepts no more copies, because a write failed.
    pub(super) is_off: bool,
    /// In the interval: copies that were corrupt, truncated or unreadable.
    pub(super) damaged: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct PeerRow {
    pub(super) address: String,
    /// The number of the node; [`RANKS`] for what ranks exchange.
    pub(super) node: String,
    pub(super) reads_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) read_mean_seconds: Option<f64>,
    /// Bytes that were read elsewhere after a peer had failed; in the row [`FAILED`] alone.
    pub(super) rerouted_bytes_per_second: Option<f64>,
    /// Bytes that a peer delivered with a wrong checksum; in the row [`FAILED`] alone.
    pub(super) mismatched_bytes_per_second: Option<f64>,
}

/// The data set itself, among tiers.
pub(super) const ORIGIN: &str = "(data set)";
/// Samples that ranks send each other, among nodes.
pub(super) const RANKS: &str = "(ranks)";
/// Reads that nodes could not answer, among nodes.
pub(super) const FAILED: &str = "(failed)";

/// The last answers of one address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) address: &'a str,
    /// Its last answer.
    pub(super) page: Option<&'a Page>,
    /// The last two answers, unless it does not answer now.
    pub(super) between: Option<Between<'a>>,
    /// Why it does not answer now, and for how long.
    pub(super) error: Option<(&'a str, f64)>,
    pub(super) restarted_seconds: Option<f64>,
    /// Its [`Known::bytes_per_second`] in the last intervals, the oldest first.
    pub(super) trend: &'a [f64],
}

impl Report {
    /// Adds the rows of one address.
    pub(super) fn add(&mut self, known: &Known) {
        let roles = known.page.map(roles_of).unwrap_or_default();
        let none = roles.is_empty().then_some(None);
        let roles = roles.into_iter().map(Some).chain(none);
        self.addresses.extend(roles.map(|role| known.address_row(role)));
        if known.error.is_some() {
            return;
        }
        self.subsystems.extend(known.subsystem_rows());
        self.loaders.extend(known.loader_row());
        self.tiers.extend(known.tier_rows());
        self.peers.extend(known.peer_rows());
    }
}

/// The roles of the process, the most important first.
fn roles_of(page: &Page) -> Vec<Role> {
    let mut roles = Vec::new();
    if page.has("dlfs_target_") {
        roles.push(if page.has("dlfs_peer_") { Role::Peer } else { Role::Target });
    }
    if page.has("dlfs_loader_") {
        roles.push(Role::Job);
    } else if sum(page, "dlfs_read_commands_total", &[]).unwrap_or(0.0) > 0.0 {
        roles.push(Role::Reader);
    }
    if roles.is_empty() && page.has("dlfs_tier_") {
        roles.push(Role::Tiers);
    }
    if roles.is_empty() && page.has("dlfs_read_") {
        roles.push(Role::Reader);
    }
    roles
}

impl<'a> Known<'a> {
    /// Bytes per second in the last interval, by its most important role.
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        let role = self.page.map(roles_of)?.first().copied();
        self.address_row(role).bytes_per_second
    }

    fn address_row(&self, role: Option<Role>) -> AddressRow {
        let error = self.error.map(|(why, _)| why.to_owned());
        let unknown = self.page.filter(|_| role.is_none()).map(|_| NOT_DLFS.to_owned());
        let mut row = AddressRow {
            address: self.address.to_owned(),
            role,
            version: self.page.and_then(version),
            error: error.or(unknown),
            error_seconds: self.error.map(|(_, seconds)| seconds),
            restarted_seconds: self.restarted_seconds,
            trend: self.trend.to_vec(),
            ..AddressRow::default()
        };
        if let (Some(role), None) = (role, &row.error) {
            self.fill(&mut row, role);
        }
        row
    }

    fn fill(&self, row: &mut AddressRow, role: Role) {
        let rate = |name| self.rate(name, &[]);
        match role {
            Role::Target | Role::Peer => {
                row.controllers = self.gauge("dlfs_target_controllers", &[]);
                row.connections = self.gauge("dlfs_target_connections", &[]);
                row.commands_per_second =
                    plus(rate("dlfs_target_reads_total"), rate("dlfs_target_writes_total"));
                row.bytes_per_second = plus(
                    rate("dlfs_target_read_bytes_total"),
                    rate("dlfs_target_written_bytes_total"),
                );
                row.errors_per_second = rate("dlfs_target_errors_total");
                let quantile = |q| self.quantile(TARGET_LATENCY, is_io, q);
                (row.latency_p50_seconds, row.latency_p99_seconds) =
                    (quantile(0.5), quantile(0.99));
            }
            Role::Job | Role::Reader => {
                row.commands_per_second = rate("dlfs_read_commands_total");
                row.bytes_per_second = rate("dlfs_read_bytes_total");
                row.errors_per_second = rate("dlfs_read_repeats_total");
                row.wait_share = rate("dlfs_loader_stall_seconds_total");
                let quantile = |q| self.quantile(READ_LATENCY, |_| true, q);
                (row.latency_p50_seconds, row.latency_p99_seconds) =
                    (quantile(0.5), quantile(0.99));
            }
            Role::Tiers => {
                row.commands_per_second = rate("dlfs_tier_hits_total");
                row.bytes_per_second = rate("dlfs_tier_hit_bytes_total");
            }
        }
    }

    fn subsystem_rows(&self) -> Vec<SubsystemRow> {
        let names = self.values_of("dlfs_target_controllers", "subsystem");
        names.into_iter().map(|subsystem| self.subsystem_row(subsystem)).collect()
    }

    fn subsystem_row(&self, subsystem: &str) -> SubsystemRow {
        let of = [("subsystem", subsystem)];
        let rate = |name| self.rate(name, &of);
        let growth = |name| self.growth(name, &of);
        let is_ours = |labels: &Labels| labels.have(&of) && is_io(labels);
        SubsystemRow {
            address: self.address.to_owned(),
            subsystem: subsystem.to_owned(),
            controllers: self.gauge("dlfs_target_controllers", &of),
            connections: self.gauge("dlfs_target_connections", &of),
            reads_per_second: rate("dlfs_target_reads_total"),
            writes_per_second: rate("dlfs_target_writes_total"),
            bytes_per_second: plus(
                rate("dlfs_target_read_bytes_total"),
                rate("dlfs_target_written_bytes_total"),
            ),
            latency_p50_seconds: self.quantile(TARGET_LATENCY, is_ours, 0.5),
            latency_p99_seconds: self.quantile(TARGET_LATENCY, is_ours, 0.99),
            errors_per_second: rate("dlfs_target_errors_total"),
            refused: growth("dlfs_target_connections_refused_total"),
            dropped: plus(
                growth("dlfs_target_connections_dropped_total"),
                growth("dlfs_target_evictions_total"),
            ),
        }
    }

    fn loader_row(&self) -> Option<LoaderRow> {
        let page = self.page.filter(|page| page.has("dlfs_loader_"))?;
        let rate = |name| self.rate(name, &[]);
        let by_loader = |labels: &Labels| labels.have(&[("by", "loader")]);
        Some(LoaderRow {
            address: self.address.to_owned(),
            samples_per_second: rate("dlfs_loader_samples_total"),
            batches_per_second: rate("dlfs_loader_batches_total"),
            bytes_per_second: rate("dlfs_loader_sample_bytes_total"),
            wait_share: rate("dlfs_loader_stall_seconds_total"),
            waits_by_cause: self.waits_by_cause(),
            latency_p50_seconds: self.quantile(READ_LATENCY, by_loader, 0.5),
            latency_p99_seconds: self.quantile(READ_LATENCY, by_loader, 0.99),
            repeats_per_second: self.rate("dlfs_read_repeats_total", &[("by", "loader")]),
            skipped_per_second: rate("dlfs_loader_skipped_total"),
            store_waits: page
                .has("dlfs_store_")
                .then(|| self.growth("dlfs_store_waits_total", &[]))
                .flatten(),
            subsystems: self
                .values_of("dlfs_host_controllers", "subsystem")
                .into_iter()
                .map(str::to_owned)
                .collect(),
            reconnects: self.growth("dlfs_host_reconnects_total", &[]),
            failed_paths: self.gauge("dlfs_host_failed_paths", &[]),
            digest_errors: self.growth("dlfs_host_digest_errors_total", &[]),
        })
    }

    fn waits_by_cause(&self) -> Vec<CauseShare> {
        let Some(between) = self.between else { return Vec::new() };
        let by = between.growth_by("dlfs_loader_stalls_seconds_total", "cause");
        let share = |(cause, seconds): (&str, f64)| CauseShare {
            cause: cause.to_owned(),
            share: seconds / between.seconds(),
        };
        let mut shares: Vec<CauseShare> = by.into_iter().map(share).take(MAX_ROWS).collect();
        shares.sort_by(|a, b| b.share.total_cmp(&a.share));
        shares
    }

    fn tier_rows(&self) -> Vec<TierRow> {
        let names = self.values_of("dlfs_tier_capacity_bytes", "tier");
        let mut rows: Vec<TierRow> = names.into_iter().map(|tier| self.tier_row(tier)).collect();
        rows.extend((!rows.is_empty()).then(|| self.origin_row()));
        let read: Option<f64> = rows.iter().map(|row| row.bytes_per_second).sum();
        let total = plus(read, self.rate("dlfs_peer_read_bytes_total", &[]));
        for row in &mut rows {
            let share = row.bytes_per_second.zip(total.filter(|total| *total > 0.0));
            row.hit_share = share.map(|(bytes, total)| bytes / total);
        }
        rows
    }

    fn tier_row(&self, tier: &str) -> TierRow {
        let of = [("tier", tier)];
        let rate = |name| self.rate(name, &of);
        TierRow {
            address: self.address.to_owned(),
            tier: tier.to_owned(),
            capacity_bytes: self.gauge("dlfs_tier_capacity_bytes", &of),
            held_bytes: self.gauge("dlfs_tier_held_bytes", &of),
            hit_share: None,
            bytes_per_second: rate("dlfs_tier_hit_bytes_total"),
            read_mean_seconds: ratio(
                rate("dlfs_tier_hit_seconds_total"),
                rate("dlfs_tier_hits_total"),
            ),
            filled_bytes_per_second: rate("dlfs_tier_fill_bytes_total"),
            evictions_per_second: rate("dlfs_tier_evictions_total"),
            is_off: self.gauge("dlfs_tier_off", &of).unwrap_or(0.0) > 0.0,
            damaged: self.growth("dlfs_tier_damaged_total", &of),
        }
    }

    fn origin_row(&self) -> TierRow {
        let rate = |name| self.rate(name, &[]);
        TierRow {
            address: self.address.to_owned(),
            tier: ORIGIN.to_owned(),
            // Bytes of the origin include what was read ahead, and what reads of the same pages shared.
            bytes_per_second: rate("dlfs_origin_read_bytes_total"),
            read_mean_seconds: ratio(
                rate("dlfs_origin_read_seconds_total"),
                rate("dlfs_origin_reads_total"),
            ),
            ..TierRow::default()
        }
    }

    fn peer_rows(&self) -> Vec<PeerRow> {
        let Some(page) = self.page else { return Vec::new() };
        let address = || self.address.to_owned();
        let node = |node: &str| {
            let rate = |name| self.rate(name, &[("node", node)]);
            let reads = rate("dlfs_peer_reads_total");
            PeerRow {
                address: address(),
                node: node.to_owned(),
                reads_per_second: reads,
                bytes_per_second: rate("dlfs_peer_read_bytes_total"),
                read_mean_seconds: ratio(rate("dlfs_peer_read_seconds_total"), reads),
                ..PeerRow::default()
            }
        };
        let nodes = self.values_of("dlfs_peer_reads_total", "node");
        let mut rows: Vec<PeerRow> = nodes.into_iter().map(node).collect();
        let rate = |name| self.rate(name, &[]);
        if page.has("dlfs_peer_") {
            rows.push(PeerRow {
                address: address(),
                node: FAILED.to_owned(),
                reads_per_second: rate("dlfs_peer_not_there_reads_total"),
                bytes_per_second: rate("dlfs_peer_not_there_bytes_total"),
                rerouted_bytes_per_second: rate("dlfs_peer_rerouted_bytes_total"),
                mismatched_bytes_per_second: rate("dlfs_peer_mismatched_bytes_total"),
                ..PeerRow::default()
            });
        }
        if page.has("dlfs_store_") {
            rows.push(PeerRow {
                address: address(),
                node: RANKS.to_owned(),
                reads_per_second: rate("dlfs_store_received_total"),
                bytes_per_second: rate("dlfs_store_received_bytes_total"),
                ..PeerRow::default()
            });
        }
        rows
    }

    /// The values of a label in the last answer.
    fn values_of(&self, name: &str, label: &str) -> Vec<&'a str> {
        let mut values: BTreeMap<(usize, &str), ()> = BTreeMap::new();
        for labels in self.page.into_iter().flat_map(|page| page.series(name).keys()) {
            // Numbers by their length, so that 2 comes before 10.
            values.extend(labels.value(label).map(|value| match value.parse::<u64>() {
                Ok(_) => ((value.len(), value), ()),
                Err(_) => ((usize::MAX, value), ()),
            }));
        }
        values.into_keys().map(|(_, value)| value).take(MAX_ROWS).collect()
    }

    fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.page.and_then(|page| sum(page, name, labels))
    }

    fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.between.and_then(|between| between.rate(name, labels))
    }

    fn growth(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.between.and_then(|between| between.growth(name, labels))
    }

    fn quantile(&self, name: &str, select: impl Fn(&Labels) -> bool, q: f64) -> Option<Quantile> {
        self.between.and_then(|between| between.quantile(name, select, q))
    }
}

/// Commands that move data. Others, such as a request for events, may take for ever.
fn is_io(labels: &Labels) -> bool {
    ["read", "write"].into_iter().any(|command| labels.have(&[("command", command)]))
}

fn version(page: &Page) -> Option<String> {
    let labels = page.series("dlfs_build_info").keys().next()?;
    labels.value("version").map(str::to_owned)
}

fn sum(page: &Page, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let series = page.series(name).iter().filter(|(found, _)| found.have(labels));
    series.map(|(_, value)| *value).reduce(|sum, more| sum + more)
}

/// The sum of what is known.
fn plus(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b)
}

/// From the arrival of a command at the target to its response.
const TARGET_LATENCY: &str = "dlfs_target_command_seconds";
/// From submission to completion at the host.
const READ_LATENCY: &str = "dlfs_read_command_seconds";
const NOT_DLFS: &str = "it answers, but has no metrics of a target, a job or tiers";
/// The most rows of one kind for an address, whose labels may be anything.
const MAX_ROWS: usize = 200;

#[cfg(test)]
mod tests {
    use dlfs::metrics::{
        ALL, BUILD, LOADER_SAMPLES, LOADER_STALL_SECONDS, LOADER_STALLS_SECONDS, ORIGIN_READ_BYTES,
        PEER_NOT_THERE_READS, PEER_READ_BYTES, PEER_READ_SECONDS, PEER_READS, READ_COMMANDS,
        Snapshot, TARGET_CONNECTIONS, TARGET_CONTROLLERS, TARGET_READ_BYTES, TARGET_READS,
        TIER_CAPACITY_BYTES, TIER_HELD_BYTES, TIER_HIT_BYTES, TIER_HIT_SECONDS, TIER_HITS,
        TIER_OFF,
    };

    use super::*;

    /// A name that changes is no error of the compiler's.
    #[test]
    fn every_metric_that_it_reads_is_one_of_the_library() {
        let source = include_str!("report.rs").split("#[cfg(test)]").next().unwrap();
        let quoted = source.split('"').skip(1).step_by(2).filter(|text| text.starts_with("dlfs_"));
        let mut count = 0;
        for name in quoted.filter(|name| !name.ends_with('_')) {
            count += 1;
            assert!(ALL.iter().any(|metric| metric.name() == name), "{name}");
        }
        assert!(count > 40, "{count}");
    }

    fn page(count: impl FnOnce(&mut Snapshot)) -> Page {
        let mut snapshot = Snapshot::new();
        snapshot.count(&BUILD, &["0.1.0", "abc"], 1);
        count(&mut snapshot);
        Page::parse(snapshot.to_openmetrics().as_bytes()).unwrap()
    }

    /// The rows of two pages that are two seconds apart.
    fn report(before: &Page, after: &Page) -> Report {
        let mut report = Report::default();
        report.add(&Known {
            address: "h:1",
            page: Some(after),
            between: Some(Between::new(before, after, 2.0)),
            error: None,
            restarted_seconds: None,
            trend: &[],
        });
        report
    }

    #[test]
    fn a_target_has_a_row_and_one_for_each_subsystem() {
        let at = |reads: u64| {
            page(|snapshot| {
                for (name, times) in [("nqn.a", 1), ("nqn.b", 3)] {
                    snapshot.count(&TARGET_CONTROLLERS, &[name], times);
                    snapshot.count(&TARGET_CONNECTIONS, &[name], 2 * times);
                    snapshot.count(&TARGET_READS, &[name], reads * times);
                    snapshot.count(&TARGET_READ_BYTES, &[name], 4096 * reads * times);
                }
            })
        };
        let report = report(&at(100), &at(200));
        let row = &report.addresses[0];
        assert_eq!((row.role, row.version.as_deref()), (Some(Role::Target), Some("0.1.0")));
        assert_eq!((row.controllers, row.connections), (Some(4.0), Some(8.0)));
        assert_eq!(row.commands_per_second, Some(200.0));
        assert_eq!(row.bytes_per_second, Some(4096.0 * 200.0));
        assert_eq!((row.latency_p99_seconds, row.wait_share), (None, None), "nobody counts it");
        let of: Vec<_> =
            report.subsystems.iter().map(|row| (&*row.subsystem, row.reads_per_second)).collect();
        assert_eq!(of, [("nqn.a", Some(50.0)), ("nqn.b", Some(150.0))]);
        assert!(report.loaders.is_empty() && report.tiers.is_empty() && report.peers.is_empty());
    }

    #[test]
    fn a_job_has_rows_for_its_loaders_tiers_and_nodes() {
        let at = |times: u64| {
            page(|snapshot| {
                snapshot.count(&READ_COMMANDS, &["loader"], 10 * times);
                snapshot.count(&LOADER_SAMPLES, &[], 100 * times);
                snapshot.seconds(&LOADER_STALL_SECONDS, &[], 0.5 * times as f64);
                snapshot.seconds(&LOADER_STALLS_SECONDS, &["order"], 0.1 * times as f64);
                snapshot.seconds(&LOADER_STALLS_SECONDS, &["network"], 0.4 * times as f64);
                snapshot.count(&TIER_CAPACITY_BYTES, &["ram"], 1000);
                snapshot.count(&TIER_HELD_BYTES, &["ram"], 250);
                snapshot.count(&TIER_OFF, &["ram"], 1);
                snapshot.count(&TIER_HITS, &["ram"], 10 * times);
                snapshot.count(&TIER_HIT_BYTES, &["ram"], 300 * times);
                snapshot.seconds(&TIER_HIT_SECONDS, &["ram"], 0.02 * times as f64);
                snapshot.count(&ORIGIN_READ_BYTES, &[], 100 * times);
                for node in ["10", "2"] {
                    snapshot.count(&PEER_READS, &[node], 5 * times);
                    snapshot.count(&PEER_READ_BYTES, &[node], 50 * times);
                    snapshot.seconds(&PEER_READ_SECONDS, &[node], 0.01 * times as f64);
                }
            })
        };
        let report = report(&at(1), &at(2));
        let row = &report.addresses[0];
        assert_eq!((row.role, row.wait_share), (Some(Role::Job), Some(0.25)));
        assert_eq!(report.loaders[0].samples_per_second, Some(50.0));
        let causes: Vec<_> =
            report.loaders[0].waits_by_cause.iter().map(|of| (&*of.cause, of.share)).collect();
        assert_eq!(causes, [("network", 0.2), ("order", 0.05)]);
        let [ram, origin] = &report.tiers[..] else { panic!("{:?}", report.tiers) };
        assert_eq!((&*ram.tier, ram.hit_share, ram.is_off), ("ram", Some(0.6), true));
        assert!((ram.read_mean_seconds.unwrap() - 0.002).abs() < 1e-9);
        assert_eq!((&*origin.tier, origin.hit_share), (ORIGIN, Some(0.2)));
        let nodes: Vec<_> =
            report.peers.iter().map(|row| (&*row.node, row.bytes_per_second)).collect();
        assert_eq!(nodes, [("2", Some(25.0)), ("10", Some(25.0)), (FAILED, None)]);
    }

    #[test]
    fn a_process_that_is_target_and_job_has_a_row_for_each_and_one_that_is_neither_says_so() {
        let both = page(|snapshot| {
            snapshot.count(&TARGET_READS, &["nqn.a"], 1);
            snapshot.count(&LOADER_SAMPLES, &[], 1);
        });
        let roles =
            |page| report(page, page).addresses.into_iter().map(|row| row.role).collect::<Vec<_>>();
        assert_eq!(roles(&both), [Some(Role::Target), Some(Role::Job)]);
        let node = page(|snapshot| {
            snapshot.count(&TARGET_READS, &["nqn.a"], 1);
            snapshot.count(&PEER_NOT_THERE_READS, &[], 0);
        });
        assert_eq!(roles(&node), [Some(Role::Peer)]);
        let neither = page(|_| {});
        let row = &report(&neither, &neither).addresses[0];
        assert_eq!((row.role, row.error.as_deref()), (None, Some(NOT_DLFS)));
        let later = page(|snapshot| snapshot.count(&TARGET_READS, &["nqn.a"], 7));
        let report = report(&both, &later);
        assert_eq!(
            report.addresses[0].commands_per_second,
            Some(3.5),
            "another process answers, and has counted 7"
        );
    }

    #[test]
    fn without_a_second_answer_there_are_no_rates() {
        let first = page(|snapshot| snapshot.count(&TARGET_CONTROLLERS, &["nqn.a"], 2));
        let mut report = Report::default();
        report.add(&Known {
            address: "h:1",
            page: Some(&first),
            between: None,
            error: None,
            restarted_seconds: None,
            trend: &[],
        });
        let row = &report.addresses[0];
        assert_eq!((row.controllers, row.commands_per_second), (Some(2.0), None));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["addresses"][0]["role"], "target");
        assert!(json["addresses"][0]["commands_per_second"].is_null());
    }
}
