//! The report as one HTML page, light and dark: no network, no other file, and no script that runs.

use std::time::Duration;

use super::run::{Report, StoreUse};
use super::stalls::Cause;
use super::text::{bytes, count, duration, percent, share};
use super::timeline::{Counts, Epoch, Timeline};
use crate::metrics::{Histogram, Place};

impl Report {
    /// Returns one HTML page that needs no network and no other file.
    pub fn to_html(&self) -> String {
        let sentences = self.advice();
        let items: String =
            sentences.iter().map(|it| format!("<li>{}</li>", escaped(it))).collect();
        let parts = [
            head(self),
            tiles(self),
            section("What to try next", &format!("<ol class=\"advice\">{items}</ol>")),
            section("Where the time went", &whole(self.timeline.total())),
            charts(self),
            section("Durations", &durations(self)),
            section("Epochs side by side", &epochs(&self.timeline)),
            section("Settings", &settings(self)),
        ];
        let data = self.to_json().replace('<', "\\u003c"); // so that no string ends the element
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'\">\n\
             <title>{} - dlfs report</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{}\n\
             <footer>dlfs {} ({}). The figures are in this page as JSON, in the element dlfs-report.</footer>\n\
             </main>\n\
             <script type=\"application/json\" id=\"dlfs-report\">{data}</script>\n</body>\n</html>\n",
            escaped(&self.name),
            include_str!("page.css"),
            parts.join("\n"),
            env!("CARGO_PKG_VERSION"),
            crate::COMMIT,
        )
    }
}

/// The heading, which says how much of the time the consumer waited.
fn head(report: &Report) -> String {
    let total = report.timeline.total();
    let waited = share(total.stalls.total(), report.timeline.time());
    let main = Cause::ALL.into_iter().max_by_key(|cause| total.stalls.of(*cause));
    let share = percent(waited);
    let title = match main.filter(|_| waited >= 0.01) {
        _ if total.batches == 0 => "No batch was delivered".to_owned(),
        None => format!("The loader kept up: {share} of the time was waiting"),
        Some(cause) => {
            format!("The consumer waited {share} of the time, mostly for {}", cause.noun())
        }
    };
    format!("<header><h1>{title}</h1><p class=\"soft name\">{}</p></header>", escaped(&report.name))
}

/// The figures of the whole run.
fn tiles(report: &Report) -> String {
    let total = report.timeline.total();
    let time = report.timeline.time();
    let tiles = [
        (rate(total.samples_per_s()), "samples/s"),
        (count(total.samples), "samples"),
        (bytes(total.bytes), "of samples"),
        (duration(time), "in all"),
        (percent(share(total.stalls.total(), time)), "of it waiting"),
        (percent(share(total.consumer, time)), "in the program: its step, and transforms"),
    ];
    let tile = |(value, what): (String, &str)| {
        format!("<div class=\"tile\"><b>{value}</b><span>{what}</span></div>")
    };
    format!("<div class=\"tiles\">{}</div>", tiles.map(tile).concat())
}

/// The parts of the consumer's time: the CSS class, name and duration of each.
fn parts(counts: &Counts) -> Vec<(&'static str, String, Duration)> {
    let mut parts = vec![("consumer", "the consumer's own".to_owned(), counts.consumer)];
    let waits = counts.stalls.each();
    parts.extend(
        waits.map(|(cause, time)| (cause.name(), format!("waiting for {}", cause.noun()), time)),
    );
    parts.push(("handing", "handing over what was ready".to_owned(), counts.handing));
    parts.retain(|(.., time)| !time.is_zero());
    parts
}

/// The parts of the whole run's time, as a bar with its legend.
fn whole(total: &Counts) -> String {
    let item = |(class, name, time): (&str, String, Duration)| {
        legend_item(
            class,
            &name,
            &format!("{}, {}", duration(time), percent(share(time, total.time()))),
        )
    };
    let legend: String = parts(total).into_iter().map(item).collect();
    format!("{}<ul class=\"legend\">{legend}</ul>", time_bar(total))
}

/// A bar divided in proportion to the parts of the consumer's time.
fn time_bar(counts: &Counts) -> String {
    let part = |(class, name, time): (&str, String, Duration)| {
        let share = share(time, counts.time());
        format!(
            "<span class=\"{class}\" style=\"width:{:.3}%\" title=\"{name}: {}, {}\"></span>",
            100.0 * share,
            duration(time),
            percent(share)
        )
    };
    let parts: String = parts(counts).into_iter().map(part).collect();
    format!("<div class=\"bar\" role=\"img\" aria-label=\"shares of the time\">{parts}</div>")
}

/// A part of the run as a column of the charts.
struct Column {
    /// Start, from the start of the run.
    begin: Duration,
    len: Duration,
    counts: Counts,
}

impl Column {
    fn per_second(&self, amount: u64) -> f64 {
        amount as f64 / self.len.as_secs_f64().max(1e-9)
    }
}

/// The columns of a run: at most one for every [`BATCHES_A_COLUMN`] batches, or [`MIN_COLUMNS`] if that is more, and
/// never more than [`MAX_COLUMNS`].
fn columns(timeline: &Timeline) -> Vec<Column> {
    let buckets: Vec<_> = timeline.buckets().collect();
    let batches = usize::try_from(timeline.total().batches).unwrap_or(usize::MAX);
    let wanted = (batches / BATCHES_A_COLUMN).clamp(MIN_COLUMNS, MAX_COLUMNS);
    let of_column = buckets.len().div_ceil(wanted).max(1);
    let column = |buckets: &[(Duration, Duration, &Counts)]| Column {
        begin: buckets[0].0,
        len: buckets.iter().map(|(_, len, _)| *len).sum(),
        counts: buckets.iter().fold(Counts::default(), |sum, (.., counts)| sum.plus(counts)),
    };
    let mut columns: Vec<Column> = buckets.chunks(of_column).map(column).collect();
    // Merge a short rest into the column before: a rate over a short time says little.
    if let [.., before, last] = &mut columns[..]
        && last.len < before.len / 2
    {
        before.len += last.len;
        before.counts = before.counts.plus(&last.counts);
        columns.pop();
    }
    columns
}

/// A layer of a chart: its CSS class (for the colour), its name, its sum, and a height for each column.
struct Layer {
    class: &'static str,
    name: &'static str,
    sum: String,
    heights: Vec<f64>,
}

/// The charts over the course of the run: samples a second, waits by cause, and bytes by place.
fn charts(report: &Report) -> String {
    let columns = columns(&report.timeline);
    let total = report.timeline.total();
    let heights = |of: &dyn Fn(&Column) -> f64| columns.iter().map(of).collect();
    let samples = Layer {
        class: "rate",
        name: "samples/s",
        sum: rate(total.samples_per_s()),
        heights: heights(&|column| column.per_second(column.counts.samples)),
    };
    let waits = total.stalls.each().map(|(cause, waited)| Layer {
        class: cause.name(),
        name: cause.noun(),
        sum: duration(waited),
        heights: heights(&|column| share(column.counts.stalls.of(cause), column.len)),
    });
    let places = total.places.each().map(|(place, read)| Layer {
        class: place.name(),
        name: noun(place),
        sum: bytes(read),
        heights: heights(&|column| column.per_second(column.counts.places.of(place))),
    });
    let mut by_place =
        chart(&columns, places.collect(), None, |value| format!("{}/s", bytes(value as u64)));
    if !report.tiers.is_empty() {
        by_place += &tiers(report);
    }
    by_place += &report.store.map_or_else(String::new, store);
    [
        section("Samples a second", &chart(&columns, vec![samples], None, rate)),
        section(
            "Waiting, by what was waited for",
            &chart(&columns, waits.collect(), Some(1.0), percent),
        ),
        section("Bytes read, by place", &by_place),
    ]
    .concat()
}

/// Stacked layers as SVG that stretches to any width. The axis ends at `top`, or at a round number above the highest
/// column; `tell` writes its values. Labels are HTML beside the SVG, so that they keep their size.
fn chart(
    columns: &[Column],
    mut layers: Vec<Layer>,
    top: Option<f64>,
    tell: impl Fn(f64) -> String,
) -> String {
    layers.retain(|layer| layer.heights.iter().any(|height| *height > 0.0));
    let sum = |nth: usize| layers.iter().map(|layer| layer.heights[nth]).sum();
    let top = top.unwrap_or_else(|| nice((0..columns.len()).map(sum).fold(0.0, f64::max)));
    let end = columns.last().map_or(Duration::ZERO, |last| last.begin + last.len);
    let x = |time: Duration| 1000.0 * share(time, end);
    let y = |value: f64| 200.0 * (1.0 - (value / top).min(1.0));
    let mut svg = "<path class=\"grid\" d=\"M0 0H1000M0 100H1000M0 200H1000\"/>".to_owned();
    let mut floor = vec![0.0; columns.len()];
    for layer in &layers {
        let mut path = String::new();
        for ((column, height), floor) in columns.iter().zip(&layer.heights).zip(&mut floor) {
            let left = x(column.begin);
            let right = x(column.begin + column.len);
            let ceiling = *floor + height;
            path += &format!("M{left:.2} {:.2}H{right:.2}V{:.2}H{left:.2}Z", y(ceiling), y(*floor));
            *floor = ceiling;
        }
        svg += &format!("<path class=\"{}\" d=\"{path}\"/>", layer.class);
    }
    for (nth, column) in columns.iter().enumerate() {
        let there = layers.iter().filter(|layer| layer.heights[nth] > 0.0);
        let told: Vec<String> =
            there.map(|layer| format!("{} {}", layer.name, tell(layer.heights[nth]))).collect();
        svg += &format!(
            "<rect class=\"hover\" x=\"{:.2}\" width=\"{:.2}\" y=\"0\" height=\"200\"><title>{} to {}: {}</title>\
             </rect>",
            x(column.begin),
            x(column.len),
            duration(column.begin),
            duration(column.begin + column.len),
            if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
        );
    }
    let legend: String =
        layers.iter().map(|layer| legend_item(layer.class, layer.name, &layer.sum)).collect();
    let ticks = [0, 1, 2, 3, 4].map(|n| format!("<span>{}</span>", duration(end * n / 4))).concat();
    let marks = [top, top / 2.0, 0.0].map(|value| format!("<span>{}</span>", tell(value))).concat();
    format!(
        "<div class=\"plot\"><div class=\"y\">{marks}</div><svg viewBox=\"0 0 1000 200\" preserveAspectRatio=\"none\" \
         role=\"img\">{svg}</svg><div class=\"x\">{ticks}</div></div><ul class=\"legend\">{legend}</ul>"
    )
}

/// The smallest number of at least `value` that is 1, 2, 2.5 or 5 times a power of ten; 1 if `value` is not
/// positive and finite.
fn nice(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0];
    let found = steps.into_iter().find(|step| step * power >= value * (1.0 - 1e-9));
    found.unwrap_or(10.0) * power
}

/// A table of the tiers.
fn tiers(report: &Report) -> String {
    let rows = report.tiers.iter().map(|tier| {
        let sizes = [tier.hit_bytes, tier.used_bytes, tier.capacity_bytes].map(bytes);
        [vec![escaped(&tier.name)], sizes.to_vec()].concat()
    });
    table("", &["Tier", "served", "used", "of"], rows)
}

/// A table of the bytes in the rank's store.
fn store(store: StoreUse) -> String {
    let rows = [
        ("from the data set, before epochs", store.staged_bytes),
        ("from other ranks", store.received_bytes),
        ("of them on this node", store.near_bytes),
        ("from the data set, for a late or dead rank or a damaged copy", store.from_origin_bytes),
        ("held now", store.held_bytes),
    ];
    let rows = rows.into_iter().map(|(what, of)| vec![what.to_owned(), bytes(of)]);
    table("", &["The store of this rank was brought", "bytes"], rows)
}

/// A table of the durations of calls for a batch and of read commands.
fn durations(report: &Report) -> String {
    let calls = Some(("calls for a batch: ready ones take microseconds", report.timeline.waits()));
    let reads = report.latency.as_ref().filter(|latency| latency.count() > 0);
    let reads = reads.map(|latency| ("read commands, from submission to completion", latency));
    let row = |(what, of): (&str, &Histogram)| {
        let at = |quantile| of.quantile(quantile).map_or_else(|| "-".to_owned(), duration);
        vec![what.to_owned(), count(of.count()), at(0.5), at(0.99), at(0.999)]
    };
    table("", &["", "count", "p50", "p99", "p99.9"], calls.into_iter().chain(reads).map(row))
}

/// A table of the epochs, with a bar for the time of each.
fn epochs(timeline: &Timeline) -> String {
    let longest = timeline.epochs().iter().map(|epoch| epoch.counts.time()).max();
    let row = |epoch: &Epoch| {
        let counts = &epoch.counts;
        let width = 100.0 * share(counts.time(), longest.unwrap_or_default());
        let bar = time_bar(counts);
        vec![
            epoch.epoch.to_string(),
            format!("<div class=\"wide\"><div style=\"width:{width:.2}%\">{bar}</div></div>"),
            duration(counts.time()),
            percent(share(counts.stalls.total(), counts.time())),
            rate(counts.samples_per_s()),
            bytes(counts.places.total()),
            count(counts.batches),
        ]
    };
    let titles =
        ["Epoch", "where its time went", "time", "waiting", "samples/s", "read", "batches"];
    let left_out = match timeline.epochs_left_out() {
        0 => String::new(),
        some => format!(
            "{} epochs between the first ones and the last ones are left out. ",
            count(some)
        ),
    };
    format!(
        "{}<p class=\"note\">{left_out}An epoch begins when the last batch of the one before was delivered. What is \
         read ahead for the next epoch counts where it was read.</p>",
        table("", &titles, timeline.epochs().iter().map(row))
    )
}

/// A table of the options of the run.
fn settings(report: &Report) -> String {
    let rows = report.settings.iter();
    table("settings", &[], rows.map(|(name, value)| vec![escaped(name), escaped(value)]))
}

/// A table whose cells are HTML.
fn table(class: &str, titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let titles: String = titles.iter().map(|title| format!("<th>{title}</th>")).collect();
    let cell = |cell: String| format!("<td>{cell}</td>");
    let row = |cells: Vec<String>| cells.into_iter().map(cell).collect::<String>();
    let rows: String = rows.map(|cells| format!("<tr>{}</tr>", row(cells))).collect();
    format!("<div class=\"scroll\"><table class=\"{class}\"><tr>{titles}</tr>{rows}</table></div>")
}

fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{title}</h2>{body}</section>")
}

fn legend_item(class: &str, what: &str, value: &str) -> String {
    format!("<li class=\"{class}\"><i></i><em>{what}</em> <small>{value}</small></li>")
}

/// A rate per second, with as many digits as are useful.
fn rate(per_second: f64) -> String {
    if per_second >= 10.0 { count(per_second.round() as u64) } else { format!("{per_second:.2}") }
}

/// The place in words.
fn noun(place: Place) -> &'static str {
    match place {
        Place::Origin => "origin",
        Place::Ahead => "read together with others",
        Place::Memory => "memory of this node",
        Place::Drive => "drives of this node",
        Place::Peer => "other nodes",
    }
}

/// Escapes `text` for HTML, also inside a quoted attribute.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // These characters could hide the text that follows, or reverse its direction.
            '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => {
                safe.push('\u{fffd}');
            }
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The most columns of a chart.
const MAX_COLUMNS: usize = 240;
/// The most columns of a run of few batches.
const MIN_COLUMNS: usize = 12;
/// The fewest batches per column in a chart of more than [`MIN_COLUMNS`].
const BATCHES_A_COLUMN: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::Stalls;
    use super::super::run::{Facts, Reads, TierUse};
    use super::super::timeline::{Delivered, Timeline};
    use super::*;
    use crate::metrics::PlaceBytes;

    /// A run of `batches` in `epochs`, with each cause and place.
    fn report(batches: u64, epochs: u64) -> Report {
        let mut timeline = Timeline::new();
        let mut places = PlaceBytes::default();
        let mut at = Duration::ZERO;
        for number in 0..batches {
            let mut stalls = Stalls::default();
            let cause = Cause::ALL[(number / 7 % 6) as usize];
            stalls.add(cause, Duration::from_micros(number % 90));
            let asked = at + Duration::from_micros(300);
            at = asked + stalls.total() + Duration::from_micros(9);
            let epoch = number * epochs / batches;
            if timeline.is_due(at, epoch) {
                timeline.record_places(places);
            }
            places.add(Place::ALL[(number % 5) as usize], 1_000_000);
            timeline.batch(&Delivered { asked, at, epoch, samples: 32, bytes: 90_000, stalls });
        }
        timeline.record_places(places);
        let bytes = batches * 100_000;
        Report {
            name: "train.dlfs".to_owned(),
            settings: vec![("order".to_owned(), "global".to_owned())],
            facts: Facts { data_bytes: bytes / 3, window_bytes: 256 << 20, ..Facts::default() },
            reads: Reads { commands: batches, bytes, ..Reads::default() },
            tiers: Vec::new(),
            store: None,
            latency: None,
            timeline,
        }
    }

    #[test]
    fn a_page_of_a_million_batches_stays_small() {
        let html = report(1_000_000, 300).to_html();
        println!("{} bytes", html.len());
        assert!(html.len() < 2_000_000, "{} bytes", html.len());
        for heading in
            ["What to try next", "Bytes read, by place", "Epochs side by side", "Settings"]
        {
            assert!(html.contains(heading), "{heading}");
        }
    }

    #[test]
    fn a_run_without_a_batch_has_a_page_too() {
        let report = report(0, 1);
        assert_eq!(report.advice().len(), 1);
        let html = report.to_html();
        assert!(html.contains("No batch was delivered") && !html.contains("NaN"), "{html}");
    }

    #[test]
    fn what_users_write_is_text_wherever_it_appears() {
        let hostile = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\u{202e}";
        let tier = TierUse {
            name: hostile.to_owned(),
            capacity_bytes: 100,
            used_bytes: 100,
            hit_bytes: 5,
        };
        let report = Report {
            name: hostile.to_owned(),
            settings: vec![(hostile.to_owned(), hostile.to_owned())],
            tiers: vec![tier],
            ..report(2000, 2)
        };
        let html = report.to_html();
        for (what, times) in [("<script", 1), ("</script", 1), ("<img", 0)] {
            assert_eq!(html.matches(what).count(), times, "{what}");
        }
        let (before, data) = html.split_once("id=\"dlfs-report\">").unwrap();
        assert!(!before.contains("onerror='"), "an attribute of a tag that is none");
        let (data, _) = data.split_once("</script>").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["name"], hostile, "and programs read what it was");
    }

    #[test]
    fn advice_has_a_figure_in_each_sentence_and_the_greatest_loss_first() {
        for (batches, epochs) in [(1, 1), (500, 1), (5000, 4)] {
            for sentence in report(batches, epochs).advice() {
                assert!(sentence.contains(|c: char| c.is_ascii_digit()), "{sentence}");
                assert!(sentence.ends_with('.'), "{sentence}");
            }
        }
        let mut slow = report(10, 3);
        let mut stalls = Stalls::default();
        stalls.add(Cause::Network, Duration::from_secs(10));
        let asked = slow.timeline.time();
        let at = slow.timeline.time() + Duration::from_secs(10);
        slow.timeline.batch(&Delivered { asked, at, epoch: 3, samples: 1, bytes: 1, stalls });
        assert!(slow.advice()[0].contains("--tier"), "{:?}", slow.advice());
        let tier =
            TierUse { name: "ram:1M".into(), capacity_bytes: 100, used_bytes: 99, hit_bytes: 5 };
        slow.tiers.push(tier);
        assert!(slow.advice()[0].contains("ram:1M is full"), "{:?}", slow.advice());
    }

    #[test]
    fn a_tier_of_any_size_gets_advice() {
        let mut report = report(2000, 2);
        report.tiers = vec![TierUse {
            name: "huge".into(),
            capacity_bytes: u64::MAX,
            used_bytes: u64::MAX / 2,
            hit_bytes: 5,
        }];
        assert!(report.advice().iter().all(|advice| !advice.contains("huge is full")));
    }

    #[test]
    fn a_tier_that_holds_all_data_is_not_too_small() {
        let mut held = Report { timeline: Timeline::new(), ..report(0, 1) };
        held.tiers = vec![TierUse {
            name: "ram:1G".into(),
            capacity_bytes: 100,
            used_bytes: 100,
            hit_bytes: 200,
        }];
        let mut places = PlaceBytes::default();
        for number in 0..30 {
            let epoch = number / 10;
            let mut stalls = Stalls::default();
            stalls.add(Cause::Network, Duration::from_millis(if epoch == 0 { 9 } else { 0 }));
            let at = Duration::from_millis(10 * (number + 1));
            let asked = at - stalls.total();
            if held.timeline.is_due(at, epoch) {
                held.timeline.record_places(places);
            }
            held.timeline.batch(&Delivered { asked, at, epoch, samples: 32, bytes: 10, stalls });
            places.add(if epoch == 0 { Place::Origin } else { Place::Memory }, 10);
        }
        held.timeline.record_places(places);
        let advice = held.advice();
        assert!(advice[0].contains("was for reads") && !advice[0].contains("full"), "{advice:?}");
    }

    #[test]
    fn a_run_that_waits_for_nothing_says_that_the_loader_kept_up() {
        let mut quick = Report { timeline: Timeline::new(), ..report(0, 1) };
        for number in 1..=100 {
            let at = Duration::from_millis(number);
            let stalls = Stalls::default();
            quick.timeline.batch(&Delivered {
                asked: at,
                at,
                epoch: 0,
                samples: 32,
                bytes: 1,
                stalls,
            });
        }
        let [sentence] = &quick.advice()[..] else { panic!("{:?}", quick.advice()) };
        assert!(sentence.contains("kept up: 100 %"), "{sentence}");
    }

    #[test]
    fn a_run_that_mostly_computes_hears_so_first_and_a_small_window_is_named() {
        let mut busy = Report { timeline: Timeline::new(), ..report(0, 1) };
        let mut late = Report { timeline: Timeline::new(), ..report(0, 1) };
        for number in 1..=100 {
            let mut stalls = Stalls::default();
            stalls.add(Cause::Order, Duration::from_millis(2));
            let [begin, asked, at] = [0, 8, 10].map(|ms| Duration::from_millis(10 * number + ms));
            let batch = Delivered { asked, at, epoch: 0, samples: 32, bytes: 1 << 20, stalls };
            late.timeline.batch(&Delivered { asked: begin, at, ..batch });
            busy.timeline.batch(&batch);
        }
        assert!(busy.advice()[0].contains("reading faster saves at most 200 ms"), "{busy:?}");
        late.reads = Reads { over_window: 7, ..Reads::default() };
        late.facts.window_bytes = 1 << 20;
        let advice = late.advice().join(" ");
        assert!(advice.contains("7 buffers did not fit the window of 1.05 MB"), "{advice}");
    }

    #[test]
    fn text_of_users_cannot_leave_its_place() {
        let hostile = "<script>alert('x')</script>\" onload=\"&\u{202e}\u{7}";
        let safe = escaped(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{202e}', '\u{7}']), "{safe}");
        assert_eq!(escaped("größe 1&2"), "größe 1&amp;2");
    }

    #[test]
    fn scales_end_at_round_numbers() {
        for (value, top) in [(0.0, 1.0), (1.0, 1.0), (3.1, 5.0), (991.0, 1000.0), (0.021, 0.025)] {
            assert!((nice(value) - top).abs() < 1e-9, "{value}: {}", nice(value));
        }
    }

    #[test]
    fn columns_cover_the_run_and_have_several_batches_each() {
        for batches in [1, 50, 2000] {
            let mut timeline = Timeline::new();
            for number in 1..=batches {
                let at = Duration::from_millis(21 * number);
                let stalls = Stalls::default();
                timeline.batch(&Delivered {
                    asked: at,
                    at,
                    epoch: 0,
                    samples: 5,
                    bytes: 50,
                    stalls,
                });
            }
            let columns = columns(&timeline);
            assert!(columns.len() <= MAX_COLUMNS, "{} for {batches}", columns.len());
            let samples: u64 = columns.iter().map(|column| column.counts.samples).sum();
            let time: Duration = columns.iter().map(|column| column.len).sum();
            assert_eq!((samples, time), (5 * batches, timeline.time()));
        }
    }
}
