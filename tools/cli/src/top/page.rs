//! Parses pages of OpenMetrics, and compares two of one address: growth of counters, and quantiles of durations.
//!
//! The text comes from any process that listens at an address, so it is bounded, and no text causes a panic.
//!
//! The parser is written by hand: the crates for this format depend on regular expressions or parser generators, and a
//! line has only a name, labels and a number.

use std::collections::BTreeMap;

use dlfs::metrics::Metric;

use super::report::Value;

/// The values of one answer whose names begin with `dlfs_`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Page {
    families: BTreeMap<String, Series>,
}

/// The values of one name by their labels.
pub(super) type Series = BTreeMap<Labels, f64>;

/// Names and values of labels, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Labels(Vec<(String, String)>);

impl Labels {
    /// The value of a label.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(label, _)| label == name).map(|(_, value)| &**value)
    }

    /// Returns whether each of `wanted` is among the labels.
    pub(super) fn have(&self, wanted: &[(&str, &str)]) -> bool {
        wanted.iter().all(|(name, value)| self.value(name) == Some(value))
    }
}

impl Page {
    /// Parses an answer; the error says why it is not OpenMetrics.
    pub(super) fn parse(bytes: &[u8]) -> Result<Page, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the answer is not UTF-8")?;
        let mut page = Page::default();
        let mut count = 0;
        let mut lines = (1..).zip(text.lines());
        loop {
            let (number, line) = lines.next().ok_or(NO_END)?;
            if line == "# EOF" {
                return Ok(page);
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, labels, value) = series(line)
                .ok_or_else(|| format!("line {number} of the answer is not OpenMetrics"))?;
            // Values of other programs are parsed and ignored. NaN and infinity say nothing.
            if !name.starts_with("dlfs_") || !value.is_finite() {
                continue;
            }
            count += 1;
            if count > MAX_SERIES {
                return Err(format!("the answer has more than {MAX_SERIES} values"));
            }
            page.families.entry(name.to_owned()).or_default().insert(labels, value);
        }
    }

    /// The series of this name.
    pub(super) fn series(&self, name: &str) -> &Series {
        self.families.get(name).unwrap_or(&NONE)
    }

    /// The sum of the values of a metric with these labels.
    pub(super) fn sum(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        let series = self.series(&metric.name()).iter().filter(|(found, _)| found.have(labels));
        series.map(|(_, value)| *value).reduce(|sum, more| sum + more)
    }

    /// All names with their series.
    fn families(&self) -> impl Iterator<Item = (&str, &Series)> {
        self.families.iter().map(|(name, series)| (&**name, series))
    }

    /// Returns whether any name begins with `prefix`.
    pub(super) fn has(&self, prefix: &str) -> bool {
        let mut from_prefix = self.families.range(prefix.to_owned()..);
        from_prefix.next().is_some_and(|(name, _)| name.starts_with(prefix))
    }
}

/// The series of a name that the page lacks.
static NONE: Series = BTreeMap::new();

/// Parses `name{label="value",...} number [timestamp] [# exemplar]`.
fn series(line: &str) -> Option<(&str, Labels, f64)> {
    let end = line.find(|c: char| !is_name(c))?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels(Vec::new()), rest),
    };
    let value = rest.strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
    (!name.is_empty()).then_some((name, labels, value))
}

/// The labels up to the closing brace, and the rest after it.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((Labels(labels), rest));
        }
        let (name, value) = rest.split_once("=\"")?;
        if name.is_empty() || !name.chars().all(is_name) || labels.len() == MAX_LABELS {
            return None;
        }
        let (value, after) = quoted(value)?;
        labels.push((name.to_owned(), value));
        rest = match after.strip_prefix(',') {
            Some(after) => after,
            None if after.starts_with('}') => after,
            None => return None,
        };
    }
}

/// A string up to its closing quotation mark, without its escapes, and the rest after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        let (at, character) = characters.next()?;
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            character => value.push(character),
        }
    }
}

/// Returns whether a name may have this character.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// The most values of an answer. A process has at most 1,001 series of a metric, and a series of latencies has 28
/// values.
const MAX_SERIES: usize = 100_000;
/// The most labels of a value.
const MAX_LABELS: usize = 16;
const NO_END: &str = "the answer ends early: it has no # EOF";

/// Two pages of one address, `seconds` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Between<'a> {
    /// `None` if the process started in between: its counters have grown from 0.
    before: Option<&'a Page>,
    after: &'a Page,
    /// The time between the pages; if the process started in between, the time since then.
    pub(super) seconds: f64,
}

impl<'a> Between<'a> {
    /// Compares two pages; `before` is ignored if another process answers now.
    pub(super) fn new(before: &'a Page, after: &'a Page, seconds: f64) -> Between<'a> {
        let before = (!is_restarted(before, after)).then_some(before);
        Between { before, after, seconds }
    }

    /// The total growth of a metric's counters with these labels; `None` if there are no such counters.
    pub(super) fn growth(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        let grown = self.grown(&metric.name()).filter(|(found, _)| found.have(labels));
        grown.map(|(_, grown)| grown).reduce(|sum, more| sum + more)
    }

    /// The growth per second.
    pub(super) fn rate(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        self.growth(metric, labels).map(|grown| grown / self.seconds)
    }

    /// The growth of a metric's counters, by the value of `label`.
    pub(super) fn growth_by(&self, metric: &Metric, label: &str) -> BTreeMap<&'a str, f64> {
        let mut by = BTreeMap::new();
        for (labels, grown) in self.grown(&metric.name()) {
            if let Some(value) = labels.value(label) {
                *by.entry(value).or_default() += grown;
            }
        }
        by
    }

    /// The quantile `q` of the durations that a metric's histograms have counted in between. Only series
    /// whose labels `select` accepts count.
    pub(super) fn quantile(
        &self,
        metric: &Metric,
        select: impl Fn(&Labels) -> bool,
        q: f64,
    ) -> Value {
        let name = format!("{}_bucket", metric.name());
        let selected = self.grown(&name).filter(|(labels, _)| select(labels));
        let limit = |labels: &Labels| labels.value("le")?.parse::<f64>().ok();
        let counts = selected.map(|(labels, grown)| Some((limit(labels)?, grown)));
        // A histogram without an upper limit in a label is malformed.
        let Some(mut counts) = counts.collect::<Option<Vec<_>>>() else { return Value::Unknown };
        counts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let buckets = counts.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq());
        let buckets = buckets.map(|same| (same[0].0, same.iter().map(|(_, count)| count).sum()));
        quantile(&buckets.collect::<Vec<_>>(), q)
    }

    /// The growth of each series of this name.
    fn grown(&self, name: &str) -> impl Iterator<Item = (&'a Labels, f64)> + use<'a> {
        let before = self.before.map(|page| page.series(name));
        self.after.series(name).iter().map(move |(labels, value)| {
            let before = before.and_then(|series| series.get(labels)).copied().unwrap_or(0.0);
            (labels, (value - before).max(0.0))
        })
    }
}

/// Returns whether a counter of `before` is smaller or missing in `after`: another process then answers.
///
/// Seconds are sums of fractions and may differ by rounding, so only whole numbers are compared.
pub(super) fn is_restarted(before: &Page, after: &Page) -> bool {
    let whole = |name: &str| name.ends_with("_total") && !name.ends_with("_seconds_total");
    let mut counters = before.families().filter(|(name, _)| whole(name));
    counters.any(|(name, series)| {
        let now = after.series(name);
        series.iter().any(|(labels, old)| now.get(labels).is_none_or(|new| new < old))
    })
}

/// The quantile `q` of cumulative counts, sorted by their upper limits, ascending.
fn quantile(buckets: &[(f64, f64)], q: f64) -> Value {
    let total = buckets.last().map_or(0.0, |(_, total)| *total);
    if total <= 0.0 {
        return Value::Unknown;
    }
    let rank = q * total;
    let mut lower = 0.0;
    let mut below = 0.0;
    for &(limit, count) in buckets {
        if count >= rank && count > below {
            if limit.is_infinite() {
                return Value::AtLeast(lower);
            }
            let share = ((rank - below) / (count - below)).clamp(0.0, 1.0);
            return Value::Number(lower + (limit - lower) * share);
        }
        (lower, below) = (limit, f64::max(below, count));
    }
    Value::Unknown
}

#[cfg(test)]
mod tests {
    use dlfs::metrics::{
        BUILD, LOADER_SKIPPED as B, LOADER_STALL_SECONDS, LOADER_STALL_SECONDS as S, OTHER,
        READ_COMMAND_SECONDS as H, READ_COMMANDS as A, Snapshot, TARGET_COMMANDS, TIER_USED_BYTES,
    };

    use super::*;

    #[test]
    fn what_the_library_writes_is_read_as_it_was_counted() {
        let tier = "file:/a \"b\"\\c\nd, e=\"}:1G";
        let mut snapshot = Snapshot::new();
        snapshot.count(&TIER_USED_BYTES, &[tier], 4096);
        snapshot.seconds(&LOADER_STALL_SECONDS, &[], 0.000_001_5);
        snapshot.count(&TARGET_COMMANDS, &["nqn.x", "read"], 7);
        snapshot.count(&TARGET_COMMANDS, &[OTHER, OTHER], 8);
        snapshot.count(&BUILD, &["0.1.0", "abc"], 1);
        let page = Page::parse(snapshot.to_openmetrics().as_bytes()).unwrap();
        let only =
            |name: &str| page.series(name).iter().next().map(|(l, v)| (l.clone(), *v)).unwrap();
        let (labels, used) = only("dlfs_tier_used_bytes");
        assert_eq!((labels.value("tier"), used), (Some(tier), 4096.0));
        assert_eq!(only("dlfs_loader_stall_seconds_total").1, 0.000_001_5);
        let commands = page.series("dlfs_target_commands_total");
        let read: Vec<f64> = (commands.iter())
            .filter(|(labels, _)| labels.have(&[("subsystem", "nqn.x"), ("command", "read")]))
            .map(|(_, value)| *value)
            .collect();
        assert_eq!((commands.len(), read), (2, vec![7.0]));
        assert_eq!(only("dlfs_build_info").0.value("version"), Some("0.1.0"));
        assert!(page.has("dlfs_target_") && page.has("dlfs_tier_") && !page.has("dlfs_peer_"));
        assert!(page.series("dlfs_build").is_empty());
    }

    #[test]
    fn timestamps_exemplars_and_other_peoples_metrics_are_passed_over() {
        let text = "# HELP x y\n\
                go_threads{} 5\n\
                dlfs_a_total 1 1700000000.5\n\
                dlfs_b_bucket{le=\"+Inf\"} 2 # {trace=\"x\"} 0.5\n\
                dlfs_c NaN\n\
                # EOF\n";
        let page = Page::parse(text.as_bytes()).unwrap();
        let first = |series: &Series| *series.values().next().unwrap();
        let names: Vec<_> = page.families().map(|(name, series)| (name, first(series))).collect();
        assert_eq!(names, [("dlfs_a_total", 1.0), ("dlfs_b_bucket", 2.0)]);
    }

    #[test]
    fn a_text_that_is_no_page_says_why() {
        let parse = |text: &str| Page::parse(text.as_bytes());
        assert_eq!(Page::parse(b"\xff"), Err("the answer is not UTF-8".to_owned()));
        assert_eq!(parse(""), Err(NO_END.to_owned()));
        assert_eq!(parse("dlfs_a 1\n"), Err(NO_END.to_owned()));
        for wrong in [
            "<html>",
            "dlfs_a",
            "dlfs_a 1x",
            "dlfs_a{ 1",
            "dlfs_a{x} 1",
            "dlfs_a{x=\"} 1",
            "dlfs_a{x=\"\\q\"} 1",
            "dlfs_a{x=\"y\"z} 1",
            "dlfs_a{=\"y\"} 1",
            "{x=\"y\"} 1",
        ] {
            let error = parse(&format!("\n{wrong}\n# EOF\n")).unwrap_err();
            assert_eq!(error, "line 2 of the answer is not OpenMetrics", "{wrong}");
        }
        let many = "dlfs_a 1\n".repeat(MAX_SERIES + 1);
        assert!(parse(&many).unwrap_err().contains("100000"));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let text = "dlfs_a{x=\"é\\n\",y=\"z\"} 1.5e3 # {} 1\n# EOF\n".as_bytes();
        for at in 0..text.len() {
            for byte in 0..=255 {
                let mut changed = text.to_vec();
                changed[at] = byte;
                let _ = Page::parse(&changed); // any result will do, but no panic
                let _ = Page::parse(&changed[at..]);
                let _ = Page::parse(&changed[..at]);
            }
        }
    }

    fn page(lines: &[&str]) -> Page {
        Page::parse(format!("{}\n# EOF\n", lines.join("\n")).as_bytes()).unwrap()
    }

    #[test]
    fn counters_grow_by_their_difference_and_new_series_from_0() {
        let before =
            page(&["dlfs_read_commands_total{x=\"1\"} 10", "dlfs_read_commands_total{x=\"2\"} 5"]);
        let after = page(&[
            "dlfs_read_commands_total{x=\"1\"} 14",
            "dlfs_read_commands_total{x=\"2\"} 5",
            "dlfs_read_commands_total{x=\"3\"} 2",
        ]);
        let between = Between::new(&before, &after, 2.0);
        assert_eq!(between.growth(&A, &[]), Some(6.0));
        assert_eq!(between.rate(&A, &[("x", "1")]), Some(2.0));
        assert_eq!(between.growth(&A, &[("x", "4")]), None);
        assert_eq!(between.growth(&B, &[]), None);
        let by = between.growth_by(&A, "x");
        assert_eq!(by, BTreeMap::from([("1", 4.0), ("2", 0.0), ("3", 2.0)]));
    }

    #[test]
    fn a_counter_that_went_backwards_or_away_is_another_process() {
        let before = page(&["dlfs_read_commands_total 10", "dlfs_loader_skipped_total 3"]);
        for after in [
            &["dlfs_read_commands_total 9", "dlfs_loader_skipped_total 30"][..],
            &["dlfs_loader_skipped_total 30"],
        ] {
            let after = page(after);
            assert!(is_restarted(&before, &after));
            let between = Between::new(&before, &after, 1.0);
            assert_eq!(between.growth(&B, &[]), Some(30.0));
        }
        let gauges =
            page(&["dlfs_read_commands_total 10", "dlfs_loader_skipped_total 3", "dlfs_c 1"]);
        assert!(!is_restarted(&gauges, &before));
        let more = page(&["dlfs_loader_stall_seconds_total 0.3"]);
        let less = page(&["dlfs_loader_stall_seconds_total 0.299999"]);
        assert!(!is_restarted(&more, &less), "rounding is no restart");
        let between = Between::new(&more, &less, 1.0);
        assert_eq!(between.growth(&S, &[]), Some(0.0));
    }

    fn histogram(counts: [u32; 3], x: &str) -> Vec<String> {
        let limits = ["0.001", "0.002", "+Inf"];
        let line = |(le, count)| {
            format!("dlfs_read_command_seconds_bucket{{x=\"{x}\",le=\"{le}\"}} {count}")
        };
        limits.into_iter().zip(counts).map(line).collect()
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted_in_between() {
        let lines = |parts: &[Vec<String>]| {
            let lines = parts.concat();
            page(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let before = lines(&[histogram([1000, 1000, 1000], "a"), histogram([0, 0, 0], "b")]);
        let after = lines(&[histogram([1010, 1090, 1100], "a"), histogram([50, 100, 100], "b")]);
        let between = Between::new(&before, &after, 1.0);
        let of = |x: &'static str| move |labels: &Labels| labels.have(&[("x", x)]);
        let a = |q| between.quantile(&H, of("a"), q);
        assert_eq!(a(0.5), Value::Number(0.0015));
        assert_eq!(a(0.05), Value::Number(0.0005));
        assert_eq!(a(0.99), Value::AtLeast(0.002));
        assert_eq!(
            between.quantile(&H, |_| true, 0.25),
            Value::Number(50.0 / 60.0 * 0.001),
            "series add up"
        );
        assert_eq!(between.quantile(&H, of("c"), 0.5), Value::Unknown);
        let still = Between::new(&after, &after, 1.0);
        assert_eq!(still.quantile(&H, |_| true, 0.5), Value::Unknown, "nothing was counted");
    }

    #[test]
    fn buckets_that_make_no_sense_make_no_panic() {
        for lines in [
            &["dlfs_read_command_seconds_bucket 1"][..],
            &["dlfs_read_command_seconds_bucket{le=\"x\"} 1"],
            &["dlfs_read_command_seconds_bucket{le=\"NaN\"} 1"],
            &[
                "dlfs_read_command_seconds_bucket{le=\"1\"} 5",
                "dlfs_read_command_seconds_bucket{le=\"2\"} 3",
            ],
            &["dlfs_read_command_seconds_bucket{le=\"+Inf\"} -3"],
            &["dlfs_read_command_seconds_bucket{le=\"-Inf\"} 3"],
        ] {
            let before = Page::default();
            let after = page(lines);
            for q in [0.0, 0.5, 0.99, 1.0] {
                let _ = Between::new(&before, &after, 1.0).quantile(&H, |_| true, q);
            }
        }
    }
}
