//! Parser of OpenMetrics. The text comes from any process that listens at an address, so it is bounded, and
//! no text causes a panic.
//!
//! No crate is used: those that read the format bring a regular expression or a parser generator, for lines
//! of a name, labels and a number.

use std::collections::BTreeMap;

use dlfs::metrics::Metric;

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
    pub(super) fn families(&self) -> impl Iterator<Item = (&str, &Series)> {
        self.families.iter().map(|(name, series)| (&**name, series))
    }

    /// Returns whether any name begins with `prefix`.
    pub(super) fn has(&self, prefix: &str) -> bool {
        let mut at = self.families.range(prefix.to_owned()..);
        at.next().is_some_and(|(name, _)| name.starts_with(prefix))
    }
}

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

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// The most values of an answer. A process has at most 1,000 series of a metric, and a series of latencies has 28
/// values.
const MAX_SERIES: usize = 100_000;
const MAX_LABELS: usize = 16;
const NO_END: &str = "the answer ends early: it has no # EOF";

#[cfg(test)]
mod tests {
    use dlfs::metrics::{
        BUILD, LOADER_STALL_SECONDS, OTHER, Snapshot, TARGET_COMMANDS, TIER_USED_BYTES,
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
}
