//! Rows of values from the metrics of all addresses, for the terminal, plain text and `--json`.
//!
//! A value is unknown if the process does not serve the metric, or if the value needs two answers and there was one so
//! far, or the address does not answer now.

use std::collections::BTreeSet;

use ratatui::style::Style;
use serde::Serialize;
use serde_json::{Map, json};

use dlfs::metrics as m;
use dlfs::metrics::Metric;

use super::page::{Between, Labels, Page};
use super::table::{self, BAD, BY_LOADER, DIM, SECTIONS, WARN};
use crate::out::{percent, safe_name};

/// All values known at one moment: the interval of requests, and the rows of each section.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Report {
    pub(super) interval_seconds: f64,
    pub(super) rows: [Vec<Row>; SECTIONS.len()],
}

/// A row of a section.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Row {
    /// `None` in rows about tiers, peers and paths, and if the address has not answered, or not with metrics of dlfs.
    pub(super) role: Option<Role>,
    /// A value for each column of the section.
    pub(super) values: Vec<Value>,
    /// A note that replaces all values after the first two, with its style.
    pub(super) note: Option<(String, Style)>,
    /// The style of the first value.
    pub(super) style: Style,
}

/// A process's role, derived from the metrics that it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Serves namespaces.
    Target,
    /// Reads batches along an order.
    Job,
    /// Serves its tiers to the other nodes of its job.
    Peer,
    /// Keeps tiers for other processes.
    Tiers,
    /// Reads by id or name.
    Reader,
}

impl Role {
    /// The name on the page and in JSON.
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

/// The value of a column in a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Value {
    #[default]
    Unknown,
    Number(f64),
    /// The lower limit of a quantile in the last bucket, which has no upper limit.
    AtLeast(f64),
    Text(String),
    /// A state that should be `false`.
    Is(bool),
    Names(Vec<String>),
    /// Shares of the time by cause, the largest first.
    Causes(Vec<CauseShare>),
}

/// A cause of waits, and its share of the time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct CauseShare {
    pub(super) cause: String,
    pub(super) share: f64,
}

impl Value {
    pub(super) fn is_unknown(&self) -> bool {
        *self == Value::Unknown
    }

    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Value::Number(number) | Value::AtLeast(number) => Some(*number),
            _ => None,
        }
    }

    /// A value without a number, as a string that is harmless on a terminal.
    pub(super) fn text(&self) -> String {
        let text = match self {
            Value::Text(text) => text.clone(),
            Value::Is(true) => "yes".to_owned(),
            Value::Names(names) => names.join(" "),
            Value::Causes(causes) => {
                let shown = causes.iter().filter(|cause| cause.share >= 0.000_5);
                let shown =
                    shown.map(|CauseShare { cause, share }| format!("{cause} {}", percent(*share)));
                shown.collect::<Vec<_>>().join(", ")
            }
            _ => String::new(),
        };
        if text.is_empty() { "-".to_owned() } else { safe_name(text.as_bytes()) }
    }
}

impl From<Option<f64>> for Value {
    fn from(number: Option<f64>) -> Value {
        number.map_or(Value::Unknown, Value::Number)
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Value {
        text.map_or(Value::Unknown, |text| Value::Text(text.to_owned()))
    }
}

/// The name of the data set itself in the table of tiers.
pub(super) const ORIGIN: &str = "(data set)";
/// The name of the samples that ranks send each other, in the table of nodes.
pub(super) const RANKS: &str = "(ranks)";
/// The name of the reads that nodes could not answer, in the table of nodes.
pub(super) const FAILED: &str = "(failed)";
/// The name of all loaders of a process together.
const ALL_LOADERS: &str = "(loaders)";

impl Report {
    /// Adds the rows of one address.
    pub(super) fn add(&mut self, answers: &Answers) {
        let roles = answers.page.map(roles_of).unwrap_or_default();
        let none = roles.is_empty().then_some(None);
        for role in roles.into_iter().map(Some).chain(none) {
            self.push(0, &Subject { role, ..Subject::of(answers) });
        }
        let Some(page) = answers.page.filter(|_| answers.error.is_none()) else { return };
        for subsystem in answers.values_of(&m::TARGET_CONTROLLERS, "subsystem") {
            let labelled = Subject::labelled(answers, "subsystem", &subsystem);
            self.push(1, &Subject { role: Some(Role::Target), ..labelled });
        }
        if page.has("dlfs_loader_") {
            let role = Some(Role::Job);
            self.push(2, &Subject { role, name: ALL_LOADERS, ..Subject::of(answers) });
        }
        let tiers = answers.values_of(&m::TIER_CAPACITY_BYTES, "tier");
        let origin = (!tiers.is_empty()).then(|| ORIGIN.to_owned());
        for tier in tiers.into_iter().chain(origin) {
            self.push(3, &Subject::labelled(answers, "tier", &tier));
        }
        let failed = page.has("dlfs_peer_").then(|| FAILED.to_owned());
        let ranks = page.has("dlfs_store_").then(|| RANKS.to_owned());
        let nodes = answers.values_of(&m::PEER_READS, "node");
        for node in nodes.into_iter().chain(failed).chain(ranks) {
            self.push(4, &Subject::labelled(answers, "node", &node));
        }
        for path in answers.values_of(&m::HOST_PATH_SESSIONS, "path") {
            self.push(5, &Subject::labelled(answers, "path", &path));
        }
    }

    /// Adds the row of a subject to the section with this index in [`SECTIONS`].
    fn push(&mut self, section: usize, subject: &Subject) {
        let columns = SECTIONS[section].columns.iter();
        let values = columns.map(|column| (column.value)(subject)).collect();
        let is_overview = section == 0;
        self.rows[section].push(Row {
            role: subject.role,
            values,
            note: is_overview.then(|| subject.note()).flatten(),
            style: match subject.answers.restarted_seconds {
                _ if !is_overview => Style::new(),
                _ if subject.error().is_some() => BAD,
                Some(_) => WARN,
                None => Style::new(),
            },
        });
    }

    /// Returns whether no address has failed, or answered without metrics of dlfs.
    pub(super) fn is_complete(&self) -> bool {
        self.rows[0].iter().all(|row| row.style != BAD)
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        let mut report = json!({"interval_seconds": self.interval_seconds});
        for (section, rows) in SECTIONS.iter().zip(&self.rows) {
            let object = |row: &Row| -> Map<_, _> {
                let named = section.columns.iter().zip(&row.values);
                let named = named.filter(|(column, _)| !column.key.is_empty());
                named.map(|(column, value)| (column.key.to_owned(), json!(value))).collect()
            };
            report[section.key] = rows.iter().map(object).collect();
        }
        report
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
    } else if page.sum(&m::READ_COMMANDS, &[]).unwrap_or(0.0) > 0.0 {
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

/// The last answers of one address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers<'a> {
    pub(super) address: &'a str,
    /// The last answer.
    pub(super) page: Option<&'a Page>,
    /// The last two answers, unless the address does not answer now.
    pub(super) between: Option<Between<'a>>,
    /// The reason why the address does not answer now, and the seconds for which it has not answered.
    pub(super) error: Option<(&'a str, f64)>,
    /// The time since the process was restarted, if it was recently.
    pub(super) restarted_seconds: Option<f64>,
}

impl Answers<'_> {
    /// Bytes per second from all places that this process reads.
    pub(super) fn all_bytes(&self) -> Option<f64> {
        let places = [&m::TIER_HIT_BYTES, &m::ORIGIN_READ_BYTES, &m::PEER_READ_BYTES];
        places.into_iter().fold(None, |sum, place| plus(sum, self.rate(place, &[])))
    }

    /// The shares of the time that loaders waited, by cause.
    pub(super) fn waits_by_cause(&self) -> Vec<CauseShare> {
        let Some(between) = self.between else { return Vec::new() };
        let by = between.growth_by(&m::LOADER_STALLS_SECONDS, "cause");
        let share = |(cause, seconds): (&str, f64)| CauseShare {
            cause: cause.to_owned(),
            share: seconds / between.seconds,
        };
        let mut shares: Vec<CauseShare> = by.into_iter().map(share).take(MAX_ROWS).collect();
        shares.sort_by(|a, b| b.share.total_cmp(&a.share));
        shares
    }

    /// The values of a label in the last answer, sorted, at most [`MAX_ROWS`].
    pub(super) fn values_of(&self, metric: &Metric, label: &str) -> Vec<String> {
        let series = self.page.into_iter().flat_map(|page| page.series(&metric.name()).keys());
        let values = series.filter_map(|labels| labels.value(label));
        // Compare numbers by length first, so that 2 comes before 10.
        let len = |value: &str| value.parse::<u64>().map_or(usize::MAX, |_| value.len());
        let values: BTreeSet<(usize, &str)> = values.map(|value| (len(value), value)).collect();
        values.into_iter().map(|(_, value)| value.to_owned()).take(MAX_ROWS).collect()
    }

    /// The growth per second.
    pub(super) fn rate(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        self.between.and_then(|between| between.rate(metric, labels))
    }
}

/// The subject of a row: an address in a role, its loaders, or one of its subsystems, tiers, nodes or paths.
pub(super) struct Subject<'a> {
    pub(super) answers: &'a Answers<'a>,
    pub(super) role: Option<Role>,
    /// The name in the row, of a subsystem, a tier, a node or a path; otherwise empty, or [`ALL_LOADERS`].
    pub(super) name: &'a str,
    /// The label, with its value, that the subject's metrics have.
    label: Option<(&'a str, &'a str)>,
}

impl<'a> Subject<'a> {
    fn of(answers: &'a Answers<'a>) -> Subject<'a> {
        Subject { answers, role: None, name: "", label: None }
    }

    fn labelled(answers: &'a Answers<'a>, label: &'a str, name: &'a str) -> Subject<'a> {
        Subject { name, label: Some((label, name)), ..Subject::of(answers) }
    }

    /// The value of a gauge of the subject.
    pub(super) fn gauge(&self, metric: &Metric) -> Option<f64> {
        self.answers.page.and_then(|page| page.sum(metric, self.label.as_slice()))
    }

    /// The growth per second of a counter of the subject.
    pub(super) fn rate(&self, metric: &Metric) -> Option<f64> {
        self.answers.rate(metric, self.label.as_slice())
    }

    /// The growth of a counter of the subject between the last two answers.
    pub(super) fn growth(&self, metric: &Metric) -> Option<f64> {
        let between = self.answers.between?;
        between.growth(metric, self.label.as_slice())
    }

    /// The rate of a metric without labels, in the row with this name only.
    pub(super) fn of_row(&self, name: &str, metric: &Metric) -> Option<f64> {
        self.answers.rate(metric, &[]).filter(|_| self.name == name)
    }

    /// The sum of the rates of the metrics for the subject's role: target, reader, or keeper of tiers.
    pub(super) fn by_role(&self, [target, reader, tiers]: [&[&Metric]; 3]) -> Option<f64> {
        let metrics = match self.role? {
            Role::Target | Role::Peer => target,
            Role::Job | Role::Reader => reader,
            Role::Tiers => tiers,
        };
        metrics.iter().fold(None, |sum, metric| plus(sum, self.rate(metric)))
    }

    /// Bytes per second by role: sent and received by targets, read by readers, hit in tiers.
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        let of_target: [&Metric; 2] = [&m::TARGET_READ_BYTES, &m::TARGET_WRITTEN_BYTES];
        self.by_role([&of_target, &[&m::READ_BYTES], &[&m::TIER_HIT_BYTES]])
    }

    /// A gauge of a target that answers.
    pub(super) fn of_target(&self, metric: &Metric) -> Option<f64> {
        let is_target = matches!(self.role, Some(Role::Target | Role::Peer));
        self.gauge(metric).filter(|_| is_target && self.answers.error.is_none())
    }

    /// A quantile of latency: for targets from the arrival of a command to its response, otherwise from
    /// submission to completion.
    pub(super) fn latency(&self, quantile: f64) -> Value {
        let Some(between) = self.answers.between else { return Value::Unknown };
        let is_ours = |labels: &Labels| labels.have(self.label.as_slice()) && is_io(labels);
        let is_read = |labels: &Labels| self.name != ALL_LOADERS || labels.have(BY_LOADER);
        match self.role {
            Some(Role::Target | Role::Peer) => {
                between.quantile(&m::TARGET_COMMAND_SECONDS, is_ours, quantile)
            }
            Some(Role::Job | Role::Reader) => {
                between.quantile(&m::READ_COMMAND_SECONDS, is_read, quantile)
            }
            Some(Role::Tiers) | None => Value::Unknown,
        }
    }

    /// The version of dlfs in the process.
    pub(super) fn version(&self) -> Option<&str> {
        let labels = self.answers.page?.series(&m::BUILD.name()).keys().next()?;
        labels.value("version")
    }

    /// The reason why the address does not answer, or the error in its answer.
    pub(super) fn error(&self) -> Option<&str> {
        let unknown = self.answers.page.filter(|_| self.role.is_none()).map(|_| NOT_DLFS);
        self.answers.error.map(|(why, _)| why).or(unknown)
    }

    /// The note in place of values, with its style.
    fn note(&self) -> Option<(String, Style)> {
        match (self.error(), self.answers.error) {
            (_, Some((why, seconds))) => {
                let why = safe_name(why.as_bytes());
                Some((format!("no answer for {}: {why}", table::age(seconds)), BAD))
            }
            (Some(why), None) => Some((why.to_owned(), BAD)),
            (None, _) => self.role.is_none().then(|| ("is asked for the first time".into(), DIM)),
        }
    }
}

/// Returns whether the commands move data. Others, such as Asynchronous Event Requests, may stay outstanding
/// for ever.
fn is_io(labels: &Labels) -> bool {
    ["read", "write"].into_iter().any(|command| labels.have(&[("command", command)]))
}

/// The sum of the known values.
pub(super) fn plus(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// The quotient; `None` if a value is unknown or the divisor is 0.
pub(super) fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b)
}

const NOT_DLFS: &str = "it answers, but has no metrics of a target, a job or tiers";
/// The most rows of one kind for an address, since an address may serve any labels.
const MAX_ROWS: usize = 200;

#[cfg(test)]
mod tests {
    use dlfs::metrics::{
        BUILD, LOADER_SAMPLES, LOADER_STALL_SECONDS, LOADER_STALLS_SECONDS, ORIGIN_READ_BYTES,
        PEER_NOT_THERE_READS, PEER_READ_BYTES, PEER_READ_SECONDS, PEER_READS, READ_COMMANDS,
        Snapshot, TARGET_CONNECTIONS, TARGET_CONTROLLERS, TARGET_READ_BYTES, TARGET_READS,
        TIER_CAPACITY_BYTES, TIER_HELD_BYTES, TIER_HIT_BYTES, TIER_HIT_SECONDS, TIER_HITS,
        TIER_OFF,
    };

    use super::*;

    fn page(count: impl FnOnce(&mut Snapshot)) -> Page {
        let mut snapshot = Snapshot::new();
        snapshot.count(&BUILD, &["0.1.0", "abc"], 1);
        count(&mut snapshot);
        Page::parse(snapshot.to_openmetrics().as_bytes()).unwrap()
    }

    /// The rows of two pages that are two seconds apart.
    fn report(before: &Page, after: &Page) -> serde_json::Value {
        let mut report = Report::default();
        report.add(&Answers {
            address: "h:1",
            page: Some(after),
            between: Some(Between::new(before, after, 2.0)),
            error: None,
            restarted_seconds: None,
        });
        report.to_json()
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
        let row = &report["addresses"][0];
        assert_eq!((&row["role"], &row["version"]), (&json!("target"), &json!("0.1.0")));
        assert_eq!((&row["controllers"], &row["connections"]), (&json!(4.0), &json!(8.0)));
        assert_eq!(row["commands_per_second"], 200.0);
        assert_eq!(row["bytes_per_second"], 4096.0 * 200.0);
        assert!(row["latency_p99_seconds"].is_null() && row["wait_share"].is_null(), "{row}");
        let rows = report["subsystems"].as_array().unwrap().iter();
        let of: Vec<_> = rows.map(|row| (&row["subsystem"], &row["reads_per_second"])).collect();
        let expected = [("nqn.a", 50.0), ("nqn.b", 150.0)].map(|(a, b)| (json!(a), json!(b)));
        assert_eq!(of, expected.each_ref().map(|(a, b)| (a, b)));
        for key in ["loaders", "tiers", "peers"] {
            assert_eq!(report[key], json!([]), "{key}");
        }
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
        let row = &report["addresses"][0];
        assert_eq!((&row["role"], &row["wait_share"]), (&json!("job"), &json!(0.25)));
        assert_eq!(report["loaders"][0]["samples_per_second"], 50.0);
        let causes = &report["loaders"][0]["waits_by_cause"];
        let expected = [("network", 0.2), ("order", 0.05)];
        assert_eq!(
            *causes,
            json!(expected.map(|(cause, share)| json!({"cause": cause, "share": share})))
        );
        let [ram, origin] = &report["tiers"].as_array().unwrap()[..] else { panic!("{report}") };
        assert_eq!((&ram["tier"], &ram["hit_share"]), (&json!("ram"), &json!(0.6)));
        assert_eq!((&ram["is_off"], &origin["is_off"]), (&json!(true), &json!(false)));
        assert!((ram["read_mean_seconds"].as_f64().unwrap() - 0.002).abs() < 1e-9);
        assert_eq!((&origin["tier"], &origin["hit_share"]), (&json!(ORIGIN), &json!(0.2)));
        let rows = report["peers"].as_array().unwrap().iter();
        let nodes: Vec<_> = rows.map(|row| json!([row["node"], row["bytes_per_second"]])).collect();
        assert_eq!(nodes, [json!(["2", 25.0]), json!(["10", 25.0]), json!([FAILED, null])]);
    }

    #[test]
    fn a_process_that_is_target_and_job_has_a_row_for_each_and_one_that_is_neither_says_so() {
        let both = page(|snapshot| {
            snapshot.count(&TARGET_READS, &["nqn.a"], 1);
            snapshot.count(&LOADER_SAMPLES, &[], 1);
        });
        let roles = |page| {
            let report = report(page, page);
            let rows = report["addresses"].as_array().unwrap().iter();
            rows.map(|row| row["role"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(roles(&both), ["target", "job"]);
        let node = page(|snapshot| {
            snapshot.count(&TARGET_READS, &["nqn.a"], 1);
            snapshot.count(&PEER_NOT_THERE_READS, &[], 0);
        });
        assert_eq!(roles(&node), ["peer"]);
        let neither = page(|_| {});
        let row = &report(&neither, &neither)["addresses"][0];
        assert_eq!((&row["role"], &row["error"]), (&json!(null), &json!(NOT_DLFS)));
        let later = page(|snapshot| snapshot.count(&TARGET_READS, &["nqn.a"], 7));
        let row = &report(&both, &later)["addresses"][0];
        assert_eq!(row["commands_per_second"], 3.5, "another process answers, and has counted 7");
    }

    #[test]
    fn without_a_second_answer_there_are_no_rates() {
        let first = page(|snapshot| snapshot.count(&TARGET_CONTROLLERS, &["nqn.a"], 2));
        let mut report = Report::default();
        report.add(&Answers {
            address: "h:1",
            page: Some(&first),
            between: None,
            error: None,
            restarted_seconds: None,
        });
        let row = &report.to_json()["addresses"][0];
        assert_eq!((&row["controllers"], &row["role"]), (&json!(2.0), &json!("target")));
        assert!(row["commands_per_second"].is_null(), "{row}");
    }
}
