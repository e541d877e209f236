//! Sentences, derived by rule, on who waits for whom. Each gives figures that metrics count. A job and a target
//! belong together if both name the same subsystem.

use serde::Serialize;

use super::between::Quantile;
use super::figures;
use super::report::{
    AddressRow, CauseShare, FAILED, LoaderRow, ORIGIN, PeerRow, RANKS, Report, Role, SubsystemRow,
};

/// One sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub(super) struct Wait {
    pub(super) text: String,
    /// Something is not as it should be.
    pub(super) is_trouble: bool,
    /// The table of addresses says it as well.
    pub(super) is_in_table: bool,
}

impl From<Wait> for String {
    fn from(wait: Wait) -> String {
        wait.text
    }
}

/// The sentences about a report: what is wrong, then jobs, those that wait most first, then targets.
pub(super) fn waits(report: &Report) -> Vec<Wait> {
    let mut waits = Vec::new();
    waits.extend(report.addresses.iter().filter_map(silence));
    waits.extend(report.addresses.iter().filter_map(restart));
    waits.extend(trouble(report).into_iter().map(alarm));
    let mut loaders: Vec<&LoaderRow> = report.loaders.iter().collect();
    loaders.sort_by(|a, b| share_of(b).total_cmp(&share_of(a)));
    waits.extend(loaders.into_iter().filter_map(|loader| job(loader, report)));
    waits.extend(targets(report).map(calm));
    if waits.is_empty() {
        waits.extend(nothing(report).map(calm));
    }
    waits
}

fn calm(text: String) -> Wait {
    Wait { text, is_trouble: false, is_in_table: false }
}

fn alarm(text: String) -> Wait {
    Wait { text, is_trouble: true, is_in_table: false }
}

fn share_of(loader: &LoaderRow) -> f64 {
    loader.wait_share.unwrap_or(0.0)
}

fn silence(row: &AddressRow) -> Option<Wait> {
    let why = row.error.as_ref()?;
    let role = row.role.map_or("", Role::word);
    let name = format!("{role} {}", row.address);
    let long = row
        .error_seconds
        .map_or(String::new(), |seconds| format!(", for {}", figures::age(seconds)));
    let text = match row.error_seconds {
        Some(_) => format!("{} does not answer{long}: {why}.", name.trim_start()),
        None => format!("{}: {why}.", name.trim_start()),
    };
    Some(Wait { is_in_table: true, ..alarm(text) })
}

fn restart(row: &AddressRow) -> Option<Wait> {
    let ago = figures::age(row.restarted_seconds?);
    let role = row.role.map_or("process", Role::word);
    let text = format!("{role} {} was restarted {ago} ago; its counters began at 0.", row.address);
    Some(alarm(text))
}

/// Sentences on counters of errors that are not 0.
fn trouble(report: &Report) -> Vec<String> {
    let mut found = Vec::new();
    let mut tell = |value: Option<f64>, text: &dyn Fn(f64) -> String| {
        found.extend(value.filter(|value| *value > 0.0).map(text));
    };
    for row in &report.subsystems {
        let name = target_name(report, &row.address, &row.subsystem);
        tell(row.errors_per_second, &|rate| {
            format!("{name} answers {} commands/s with an error.", figures::rate(rate))
        });
        tell(row.refused, &|count| {
            format!("{name} refused {} in the last interval.", times(count, "connection"))
        });
        tell(row.dropped, &|count| {
            format!("{name} closed {} in the last interval.", times(count, "connection"))
        });
    }
    for row in &report.loaders {
        let name = format!("job {}", row.address);
        tell(row.repeats_per_second, &|rate| {
            let rate = figures::rate(rate);
            format!("{name} repeats {rate} reads/s, after errors or wrong checksums.")
        });
        tell(row.reconnects, &|count| {
            format!("{name} was connected again {} in the last interval.", times(count, "time"))
        });
        tell(row.failed_paths, &|count| {
            let paths = times(count, "path");
            let have = if count == 1.0 { "has" } else { "have" };
            format!("{paths} of {name} to a target {have} failed.")
        });
        tell(row.digest_errors, &|count| {
            format!(
                "{name} got {} with a wrong digest in the last interval.",
                times(count, "transfer")
            )
        });
        tell(row.skipped_per_second, &|rate| {
            format!("{name} skips {} samples/s that it cannot read.", figures::rate(rate))
        });
    }
    for row in &report.tiers {
        let name = format!("tier {} of {}", row.tier, row.address);
        tell(row.is_off.then_some(1.0), &|_| {
            format!("{name} accepts no more copies, because a write failed.")
        });
        tell(row.damaged, &|count| {
            format!("{name} lost {} to damage in the last interval.", times(count, "unit"))
        });
    }
    for row in &report.peers {
        tell(row.rerouted_bytes_per_second, &|rate| {
            let rate = figures::bytes(rate);
            format!("job {} reads {rate}/s elsewhere, because a node failed.", row.address)
        });
        tell(row.mismatched_bytes_per_second, &|rate| {
            let rate = figures::bytes(rate);
            format!("job {} got {rate}/s with wrong checksums from nodes.", row.address)
        });
    }
    found
}

fn times(count: f64, noun: &str) -> String {
    crate::text::counted(count as u64, noun)
}

/// How much of its time a job waits, and what the metrics say about why.
fn job(loader: &LoaderRow, report: &Report) -> Option<Wait> {
    let share = loader.wait_share?;
    let name = format!("job {}", loader.address);
    let is_still = loader.batches_per_second == Some(0.0);
    if share == 0.0 && is_still {
        return Some(calm(format!("{name} neither waits nor gets batches: it asks for none.")));
    }
    if share < LITTLE {
        let share = figures::share(share);
        return Some(calm(format!("{name} waits {share} of its time: reading does not limit it.")));
    }
    let mut text = format!("{name} waits {} of its time", figures::share(share));
    text.push_str(&cause(loader).unwrap_or_default());
    text.push('.');
    if is_still {
        text.push_str(" It got no batch in the last interval.");
    }
    let more = [
        latency(loader),
        its_target(loader, report),
        source(loader, report),
        slow_peer(loader, report),
    ];
    for sentence in more.into_iter().flatten() {
        text.push(' ');
        text.push_str(&sentence);
    }
    let ranks = loader.store_waits.filter(|count| *count > 0.0);
    text.extend(
        ranks.map(|count| format!(" {} waited for samples of other ranks.", times(count, "read"))),
    );
    Some(calm(text))
}

/// `, mostly for the network (28 %)`.
fn cause(loader: &LoaderRow) -> Option<String> {
    let CauseShare { cause, share } = loader.waits_by_cause.first().filter(|of| of.share > 0.0)?;
    let all: f64 = loader.waits_by_cause.iter().map(|of| of.share).sum();
    let how = if *share * 2.0 > all { "mostly" } else { "most" };
    let what = match &**cause {
        "start" => "its connections",
        "order" => "the order",
        "window" => "room in the window",
        "network" => "reads to complete",
        "checksum" => "checksums",
        "copy" => "batches to be copied",
        other => other,
    };
    Some(format!(", {how} for {what} ({})", figures::share(*share)))
}

/// How long reads take in the job, and whether the targets here explain it.
fn latency(loader: &LoaderRow) -> Option<String> {
    let (half, most) = loader.latency_p50_seconds.zip(loader.latency_p99_seconds)?;
    Some(format!(
        "Its reads take {} at p50 and {} at p99.",
        figures::quantile(half),
        figures::quantile(most)
    ))
}

/// The slowest target of a subsystem that it is connected to, and whether that explains how long its reads take.
fn its_target(loader: &LoaderRow, report: &Report) -> Option<String> {
    let is_ours = |row: &&SubsystemRow| loader.subsystems.contains(&row.subsystem);
    let (row, half, most) =
        measured(report.subsystems.iter().filter(is_ours)).into_iter().next()?;
    let name = target_name(report, &row.address, &row.subsystem);
    let rest = if loader.latency_p99_seconds.is_some_and(|read| is_much_more(read, most)) {
        ": the rest passes in the network or in the job"
    } else {
        ""
    };
    let half = figures::quantile(half);
    let most = figures::quantile(most);
    Some(format!("Its {name} answers in {half} at p50 and {most} at p99{rest}."))
}

/// Those whose latencies are known, the slowest first.
fn measured<'a>(
    rows: impl Iterator<Item = &'a SubsystemRow>,
) -> Vec<(&'a SubsystemRow, Quantile, Quantile)> {
    let known =
        rows.filter_map(|row| Some((row, row.latency_p50_seconds?, row.latency_p99_seconds?)));
    let mut known: Vec<_> = known.collect();
    known.sort_by(|a, b| f64::from(b.2).total_cmp(&f64::from(a.2)));
    known
}

/// Buckets are twice as wide as the one before, so less than that may be no difference.
fn is_much_more(read: Quantile, answer: Quantile) -> bool {
    f64::from(read) >= 4.0 * f64::from(answer)
}

/// A sentence on the place that most of its bytes come from, if there is a choice. Where a process serves its tiers,
/// they also count the reads of other processes, so they say nothing of the job.
fn source(loader: &LoaderRow, report: &Report) -> Option<String> {
    if report.subsystems.iter().any(|row| row.address == loader.address) {
        return None;
    }
    let places = report.tiers.iter().filter(|row| row.address == loader.address);
    let known = places.filter_map(|row| Some((row, row.hit_share?)));
    let (place, share) = known.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let name = if place.tier == ORIGIN { "the data set" } else { &*place.tier };
    Some(format!("{} of its bytes come from {name}.", figures::share(share)))
}

/// A node whose reads take at least twice as long as those of the others.
fn slow_peer(loader: &LoaderRow, report: &Report) -> Option<String> {
    let is_node =
        |row: &&PeerRow| row.address == loader.address && ![FAILED, RANKS].contains(&&*row.node);
    let nodes = report.peers.iter().filter(is_node);
    let mut known: Vec<(&PeerRow, f64)> =
        nodes.filter_map(|row| Some((row, row.read_mean_seconds?))).collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    let [(slowest, mean), (_, next), ..] = known[..] else { return None };
    (mean >= 2.0 * next).then(|| {
        let mean = figures::seconds(mean);
        let next = figures::seconds(next);
        format!(
            "Node {} is its slowest: {mean} a read on average, others {next} or less.",
            slowest.node
        )
    })
}

/// The slowest target, and how it compares with what jobs see whose targets are not known.
fn targets(report: &Report) -> impl Iterator<Item = String> {
    let measured = measured(report.subsystems.iter());
    let slowest = measured.first().map(|&(row, half, most)| {
        let name = target_name(report, &row.address, &row.subsystem);
        let half = figures::quantile(half);
        let most = figures::quantile(most);
        match measured.len() {
            1 => format!("{name} answers in {half} at p50 and {most} at p99."),
            count => {
                format!("{name} is the slowest of {count}: {half} at p50 and {most} at p99.")
            }
        }
    });
    let between = measured.first().and_then(|(_, _, most)| between(*most, report));
    slowest.into_iter().chain(between)
}

/// A sentence if the time of reads passes between targets and jobs.
fn between(slowest: Quantile, report: &Report) -> Option<String> {
    let is_linked = |loader: &LoaderRow| {
        report.subsystems.iter().any(|row| loader.subsystems.contains(&row.subsystem))
    };
    let waiting = report.loaders.iter().filter(|loader| share_of(loader) >= LITTLE);
    let unlinked = waiting.filter(|loader| !is_linked(loader));
    let known = unlinked.filter_map(|loader| Some((loader, loader.latency_p99_seconds?)));
    let (loader, most) = known.max_by(|a, b| f64::from(a.1).total_cmp(&f64::from(b.1)))?;
    is_much_more(most, slowest).then(|| {
        format!(
            "Reads of job {} take {} at p99, and no target here takes longer than {}: the rest passes in the network, \
             in the job, or in a target that is not asked.",
            loader.address,
            figures::quantile(most),
            figures::quantile(slowest)
        )
    })
}

fn nothing(report: &Report) -> Option<String> {
    let measured = report.addresses.iter().any(|row| row.commands_per_second.is_some());
    Some(if measured {
        "Nobody waits, as far as these metrics say.".to_owned()
    } else {
        "Rates need two answers of an address.".to_owned()
    })
}

/// A target, or a node that serves its tiers, by its address, with the subsystem where it has several.
fn target_name(report: &Report, address: &str, subsystem: &str) -> String {
    let ours = report.subsystems.iter().filter(|row| row.address == address);
    let mut rows = report.addresses.iter().filter(|row| row.address == address);
    let is_peer = rows.any(|row| row.role == Some(Role::Peer));
    let role = if is_peer { Role::Peer } else { Role::Target }.word();
    match ours.count() {
        ..=1 => format!("{role} {address}"),
        _ => format!("{role} {address} {subsystem}"),
    }
}

/// Less than this share of waiting is not worth a look.
const LITTLE: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::super::report::TierRow;
    use super::*;

    fn texts(report: &Report) -> Vec<String> {
        waits(report).into_iter().map(String::from).collect()
    }

    fn loader(address: &str, share: f64) -> LoaderRow {
        LoaderRow {
            address: address.to_owned(),
            wait_share: Some(share),
            batches_per_second: Some(10.0),
            ..LoaderRow::default()
        }
    }

    fn target(address: &str, p50: f64, p99: f64) -> SubsystemRow {
        SubsystemRow {
            address: address.to_owned(),
            subsystem: "nqn.x".to_owned(),
            latency_p50_seconds: Some(Quantile::About(p50)),
            latency_p99_seconds: Some(Quantile::About(p99)),
            ..SubsystemRow::default()
        }
    }

    #[test]
    fn the_job_that_waits_most_comes_first_with_the_causes_that_are_known() {
        let waiting = LoaderRow {
            waits_by_cause: [("network", 0.28), ("order", 0.06)]
                .map(|(cause, share)| CauseShare { cause: cause.into(), share })
                .into(),
            latency_p50_seconds: Some(Quantile::About(0.002)),
            latency_p99_seconds: Some(Quantile::About(0.02)),
            ..loader("j:1", 0.34)
        };
        let still = LoaderRow { batches_per_second: Some(0.0), ..loader("j:2", 0.0) };
        let stuck = LoaderRow { batches_per_second: Some(0.0), ..loader("j:3", 1.0) };
        let report = Report {
            loaders: vec![loader("j:0", 0.004), waiting, still, stuck],
            subsystems: vec![target("t:1", 0.0001, 0.0005), target("t:2", 0.0002, 0.004)],
            ..Report::default()
        };
        assert_eq!(
            texts(&report),
            [
                "job j:3 waits 100 % of its time. It got no batch in the last interval.",
                "job j:1 waits 34 % of its time, mostly for reads to complete (28 %). Its reads take 2.00 ms at p50 \
                 and 20.0 ms at p99.",
                "job j:0 waits 0.4 % of its time: reading does not limit it.",
                "job j:2 neither waits nor gets batches: it asks for none.",
                "target t:2 is the slowest of 2: 200 µs at p50 and 4.00 ms at p99.",
                "Reads of job j:1 take 20.0 ms at p99, and no target here takes longer than 4.00 ms: the rest passes \
                 in the network, in the job, or in a target that is not asked.",
            ]
        );
        let similar = Report { subsystems: vec![target("t:2", 0.0002, 0.01)], ..report };
        let last = texts(&similar).pop().unwrap();
        assert_eq!(last, "target t:2 answers in 200 µs at p50 and 10.0 ms at p99.");
    }

    #[test]
    fn a_job_waits_for_the_target_that_serves_its_subsystem() {
        let waiting = LoaderRow {
            subsystems: vec!["nqn.x".into()],
            latency_p50_seconds: Some(Quantile::About(0.005)),
            latency_p99_seconds: Some(Quantile::About(0.006)),
            reconnects: Some(2.0),
            failed_paths: Some(1.0),
            ..loader("j:1", 0.34)
        };
        let other = SubsystemRow { subsystem: "nqn.y".into(), ..target("t:2", 0.5, 0.5) };
        let mut report = Report {
            loaders: vec![waiting],
            subsystems: vec![target("t:1", 0.0002, 0.0041), other],
            ..Report::default()
        };
        let found = texts(&report);
        assert_eq!(
            found[..3],
            [
                "job j:1 was connected again 2 times in the last interval.",
                "1 path of job j:1 to a target has failed.",
                "job j:1 waits 34 % of its time. Its reads take 5.00 ms at p50 and 6.00 ms at p99. Its target t:1 \
                 answers in 200 µs at p50 and 4.10 ms at p99.",
            ]
        );
        report.subsystems[0] = target("t:1", 0.0002, 0.0005);
        let found = texts(&report);
        assert!(
            found[2].ends_with("500 µs at p99: the rest passes in the network or in the job."),
            "{found:#?}"
        );
        assert_eq!(found.len(), 4, "{found:#?}");
    }

    #[test]
    fn a_waiting_job_says_where_its_bytes_come_from_and_which_node_is_slow() {
        let tier = |tier: &str, share| TierRow {
            address: "j:1".into(),
            tier: tier.into(),
            hit_share: Some(share),
            ..TierRow::default()
        };
        let node = |node: &str, mean| PeerRow {
            address: "j:1".into(),
            node: node.into(),
            read_mean_seconds: mean,
            ..PeerRow::default()
        };
        let report = Report {
            loaders: vec![loader("j:1", 0.5)],
            tiers: vec![tier("ram:1G", 0.2), tier(ORIGIN, 0.8)],
            peers: vec![
                node("0", Some(0.002)),
                node("1", Some(0.012)),
                node("2", Some(0.001)),
                node(FAILED, None),
            ],
            ..Report::default()
        };
        assert_eq!(
            texts(&report),
            [
                "job j:1 waits 50 % of its time. 80 % of its bytes come from the data set. Node 1 is its \
              slowest: 12.0 ms a read on average, others 2.00 ms or less."
            ]
        );
    }

    #[test]
    fn tiers_that_are_read_by_others_do_not_say_where_a_jobs_bytes_come_from() {
        let tier = TierRow {
            address: "j:1".into(),
            tier: "ram".into(),
            hit_share: Some(1.0),
            ..TierRow::default()
        };
        let peer =
            AddressRow { address: "j:1".into(), role: Some(Role::Peer), ..AddressRow::default() };
        let report = Report {
            addresses: vec![peer],
            loaders: vec![loader("j:1", 0.5)],
            tiers: vec![tier],
            subsystems: vec![target("j:1", 0.001, 0.002)],
            ..Report::default()
        };
        let expected = [
            "job j:1 waits 50 % of its time.",
            "peer j:1 answers in 1.00 ms at p50 and 2.00 ms at p99.",
        ];
        assert_eq!(texts(&report), expected);
    }

    #[test]
    fn what_is_wrong_comes_before_everything_else() {
        let silent = AddressRow {
            address: "t:1".into(),
            role: Some(Role::Target),
            error: Some("connection refused".into()),
            error_seconds: Some(12.7),
            ..AddressRow::default()
        };
        let restarted = AddressRow {
            address: "t:2".into(),
            role: Some(Role::Target),
            restarted_seconds: Some(0.1),
            ..AddressRow::default()
        };
        let report = Report {
            addresses: vec![silent, restarted],
            loaders: vec![LoaderRow { repeats_per_second: Some(3.0), ..loader("j:1", 0.01) }],
            subsystems: vec![SubsystemRow { refused: Some(2.0), ..target("t:2", 0.1, 0.1) }],
            tiers: vec![TierRow {
                address: "j:1".into(),
                tier: "ram".into(),
                is_off: true,
                ..TierRow::default()
            }],
            ..Report::default()
        };
        let found = waits(&report);
        let texts: Vec<&str> = found.iter().map(|wait| &*wait.text).collect();
        assert_eq!(
            texts[..5],
            [
                "target t:1 does not answer, for 12 s: connection refused.",
                "target t:2 was restarted 1 s ago; its counters began at 0.",
                "target t:2 refused 2 connections in the last interval.",
                "job j:1 repeats 3 reads/s, after errors or wrong checksums.",
                "tier ram of j:1 accepts no more copies, because a write failed.",
            ]
        );
        let troubles = found.iter().filter(|wait| wait.is_trouble).count();
        assert_eq!((troubles, found.len()), (5, 7));
    }

    #[test]
    fn without_figures_nothing_is_claimed() {
        assert_eq!(texts(&Report::default()), ["Rates need two answers of an address."]);
        let row = AddressRow { commands_per_second: Some(0.0), ..AddressRow::default() };
        let report = Report { addresses: vec![row], ..Report::default() };
        assert_eq!(texts(&report), ["Nobody waits, as far as these metrics say."]);
    }
}
