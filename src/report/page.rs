//! The report as one HTML page: no network, no other file, light and dark.

use std::time::Duration;

use super::advice::of as advice_of;
use super::cause::Cause;
use super::chart::{Column, Layer, bar, columns, framed, nice, stacked};
use super::json;
use super::run::{Report, StoreUse};
use super::text::{bytes, count, duration, escaped, percent, rate, share};
use super::timeline::Counts;
use crate::metrics::{Histogram, Place};

/// The page.
pub(super) fn of(report: &Report) -> String {
    let columns = columns(&report.timeline);
    let parts = [
        head(report),
        tiles(report),
        advice(report),
        whole(report),
        rates(report, &columns),
        waits_over_time(report, &columns),
        places(report, &columns),
        format!("<div class=\"two\">{}{}</div>", waits(report), latency(report)),
        epochs(report),
        settings(report),
    ];
    let data = json::of(report).replace('<', "\\u003c"); // so that no text of it ends the element
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{} - dlfs report</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{}\n\
         <footer>dlfs {} ({}). The figures are in this page as JSON, in the element dlfs-report.</footer>\n</main>\n\
         <script type=\"application/json\" id=\"dlfs-report\">{data}</script>\n</body>\n</html>\n",
        escaped(&report.name),
        include_str!("page.css"),
        parts.join("\n"),
        env!("CARGO_PKG_VERSION"),
        crate::COMMIT,
    )
}

fn head(report: &Report) -> String {
    let total = report.timeline.total();
    let time = report.timeline.time();
    let waited = total.stalls.total();
    let main = Cause::ALL.into_iter().max_by_key(|cause| total.stalls.of(*cause));
    let title = match main.filter(|_| share(waited, time) >= 0.01) {
        _ if total.batches == 0 => "No batch was delivered".to_owned(),
        None => format!("The loader kept up: {} of the time was waiting", percent(waited, time)),
        Some(cause) => {
            let share = percent(waited, time);
            format!("The consumer waited {share} of the time, mostly for {}", noun(cause))
        }
    };
    format!("<header><h1>{title}</h1><p class=\"soft name\">{}</p></header>", escaped(&report.name))
}

fn tiles(report: &Report) -> String {
    let total = report.timeline.total();
    let time = report.timeline.time();
    let tiles = [
        (rate(total.samples_per_s()), "samples/s"),
        (count(total.samples), "samples"),
        (bytes(total.bytes), "of samples"),
        (duration(time), "in all"),
        (percent(total.stalls.total(), time), "of it waiting"),
        (percent(total.consumer, time), "in the step itself"),
    ];
    let tile = |(value, what): (String, &str)| {
        format!("<div class=\"tile\"><b>{value}</b><span>{what}</span></div>")
    };
    format!("<div class=\"tiles\">{}</div>", tiles.map(tile).concat())
}

fn advice(report: &Report) -> String {
    let sentences = advice_of(report);
    let items: String =
        sentences.iter().map(|sentence| format!("<li>{}</li>", escaped(sentence))).collect();
    section("What to try next", &format!("<ol class=\"advice\">{items}</ol>"))
}

fn whole(report: &Report) -> String {
    let total = report.timeline.total();
    let parts = parts(total);
    let shown = parts.iter().filter(|(_, _, part)| !part.is_zero());
    let items = shown.map(|(class, what, part)| {
        let time = duration(*part);
        let share = percent(*part, total.time());
        legend_item(class, what, &format!("{time}, {share}"))
    });
    let legend: String = items.collect();
    let body = format!("{}<ul class=\"legend\">{legend}</ul>", time_bar(total));
    section("Where the time went", &body)
}

fn rates(report: &Report, columns: &[Column]) -> String {
    let of = |column: &Column| column.counts.samples as f64 / column.len.as_secs_f64().max(1e-9);
    let heights: Vec<f64> = columns.iter().map(of).collect();
    let top = nice(heights.iter().copied().fold(0.0, f64::max));
    let tell = |column: &Column| {
        let samples = rate(of(column));
        let batches = count(column.counts.batches);
        format!("{}: {samples} samples/s, {batches} batches", when(column))
    };
    let layers = [Layer { class: "rate", heights }];
    let svg = stacked(columns, &layers, top, "samples a second over time", tell);
    let labels = [rate(top), rate(top / 2.0), "0".to_owned()];
    section("Samples a second", &framed(&svg, labels, report.timeline.time()))
}

fn waits_over_time(report: &Report, columns: &[Column]) -> String {
    let layer = |cause: Cause| {
        let of = |column: &Column| share(column.counts.stalls.of(cause), column.len);
        Layer { class: cause.name(), heights: columns.iter().map(of).collect() }
    };
    let layers = Cause::ALL.map(layer);
    let tell = |column: &Column| {
        let stalls = &column.counts.stalls;
        let causes = stalls.each().filter(|(_, waited)| !waited.is_zero());
        let causes: Vec<String> = causes
            .map(|(cause, waited)| format!("{} {}", noun(cause), percent(waited, column.len)))
            .collect();
        if causes.is_empty() {
            format!("{}: no waiting", when(column))
        } else {
            format!("{}: waiting for {}", when(column), causes.join(", "))
        }
    };
    let svg = stacked(columns, &layers, 1.0, "share of the time spent waiting, by cause", tell);
    let labels = ["100 %", "50 %", "0 %"].map(str::to_owned);
    let total = report.timeline.total();
    let shown = total.stalls.each().filter(|(_, waited)| !waited.is_zero());
    let legend: String = shown
        .map(|(cause, waited)| legend_item(cause.name(), meaning(cause), &duration(waited)))
        .collect();
    let chart = framed(&svg, labels, report.timeline.time());
    section(
        "Waiting, by what was waited for",
        &format!("{chart}<ul class=\"legend\">{legend}</ul>"),
    )
}

fn places(report: &Report, columns: &[Column]) -> String {
    let rate_of = |column: &Column, place| {
        column.counts.places.of(place) as f64 / column.len.as_secs_f64().max(1e-9)
    };
    let all = |column: &Column| Place::ALL.map(|place| rate_of(column, place)).iter().sum::<f64>();
    let top = nice(columns.iter().map(all).fold(0.0, f64::max));
    let layers = Place::ALL.map(|place| Layer {
        class: place.name(),
        heights: columns.iter().map(|column| rate_of(column, place)).collect(),
    });
    let tell = |column: &Column| {
        let shown = Place::ALL.into_iter().filter(|place| column.counts.places.of(*place) > 0);
        let each: Vec<String> = shown
            .map(|place| format!("{} {}/s", place_of(place), bytes(rate_of(column, place) as u64)))
            .collect();
        format!(
            "{}: {}",
            when(column),
            if each.is_empty() { "nothing".into() } else { each.join(", ") }
        )
    };
    let svg = stacked(columns, &layers, top, "bytes read a second, by place", tell);
    let labels = [
        format!("{}/s", bytes(top as u64)),
        format!("{}/s", bytes((top / 2.0) as u64)),
        "0".into(),
    ];
    let totals = &report.timeline.total().places;
    let shown = Place::ALL.into_iter().filter(|place| totals.of(*place) > 0);
    let legend: String = shown
        .map(|place| legend_item(place.name(), place_of(place), &bytes(totals.of(place))))
        .collect();
    let mut body = framed(&svg, labels, report.timeline.time());
    body += &format!("<ul class=\"legend\">{legend}</ul>");
    if !report.tiers.is_empty() {
        body += &tiers(report);
    }
    body += &report.store.map_or_else(String::new, store);
    section("Bytes read, by place", &body)
}

fn tiers(report: &Report) -> String {
    let row = |tier: &super::run::TierUse| {
        format!(
            "<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&tier.name),
            bytes(tier.hit_bytes),
            bytes(tier.used_bytes),
            bytes(tier.capacity_bytes)
        )
    };
    let rows: String = report.tiers.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table><tr><th>Tier</th><th>served</th><th>used</th><th>of</th></tr>{rows}</table></div>"
    )
}

fn store(store: StoreUse) -> String {
    let StoreUse { held_bytes, staged_bytes, received_bytes, near_bytes, from_origin_bytes } =
        store;
    let rows = [
        ("from the data set, before epochs", staged_bytes),
        ("from other ranks", received_bytes),
        ("of them on this node", near_bytes),
        ("from the data set, because a rank was late or dead", from_origin_bytes),
        ("held now", held_bytes),
    ];
    let row = |(what, of): (&str, u64)| format!("<tr><td>{what}</td><td>{}</td></tr>", bytes(of));
    format!(
        "<div class=\"scroll\"><table><tr><th>The store of this rank was brought</th><th>bytes</th></tr>{}</table>\
         </div>",
        rows.map(row).concat()
    )
}

fn waits(report: &Report) -> String {
    let note = "The time of each call for a batch. A call that finds one ready takes microseconds.";
    section("How long a batch was waited for", &histogram(report.timeline.waits(), "calls", note))
}

fn latency(report: &Report) -> String {
    let Some(latency) = report.latency.as_ref().filter(|latency| latency.count() > 0) else {
        return String::new();
    };
    let note = "From submission to completion, at whatever served the read.";
    section("How long a read command took", &histogram(latency, "commands", note))
}

/// Bars from the first bucket with a count to the last.
fn histogram(durations: &Histogram, what: &str, note: &str) -> String {
    let counts = durations.octaves();
    let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
    let most = counts.iter().max().copied().unwrap_or(0).max(1);
    let mut bars = String::new();
    let mut labels = String::new();
    for (nth, bucket) in (first..=last).enumerate() {
        let count_of = counts[bucket];
        let limit = match Histogram::octave_limit(bucket) {
            Some(limit) => format!("up to {}", duration(limit)),
            None => "longer".to_owned(),
        };
        let share = 100.0 * count_of as f64 / most as f64;
        let tell = format!("{limit}: {} {what}", count(count_of));
        let bar = match count_of {
            0 => String::new(),
            _ => format!("<b style=\"height:{share:.2}%\"></b>"),
        };
        bars += &format!("<div title=\"{tell}\">{bar}</div>");
        // The label of the last bar would not fit.
        let is_labelled = nth.is_multiple_of(LABEL_EVERY) && (bucket < last || nth == 0);
        let label = Histogram::octave_limit(bucket).filter(|_| is_labelled);
        labels += &format!("<span>{}</span>", label.map_or_else(String::new, short));
    }
    let quantiles = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];
    let quantiles = quantiles.map(|(quantile, name)| format!("{name} {}", at(durations, quantile)));
    format!(
        "<div class=\"hist\" role=\"img\" aria-label=\"{what} by duration\">{bars}</div>\
         <div class=\"hist-x\">{labels}</div>\
         <p class=\"note\">{} {what}: {}. {note}</p>",
        count(durations.count()),
        quantiles.join(", ")
    )
}

/// A quantile of the durations, as text.
fn at(durations: &Histogram, quantile: f64) -> String {
    durations.quantile(quantile).map_or_else(|| "-".to_owned(), duration)
}

/// A limit of a bucket in few characters.
fn short(limit: Duration) -> String {
    match limit.as_micros() {
        us if us < 1000 => format!("{us} µs"),
        us if us < 1_000_000 => format!("{} ms", us.div_ceil(1024)),
        us => format!("{} s", us.div_ceil(1 << 20)),
    }
}

fn epochs(report: &Report) -> String {
    let epochs = report.timeline.epochs();
    let longest = epochs.iter().map(|epoch| epoch.counts.time()).max().unwrap_or_default();
    let row = |epoch: &super::timeline::Epoch| {
        let counts = &epoch.counts;
        let width = 100.0 * share(counts.time(), longest);
        format!(
            "<tr><td>{}</td><td class=\"wide\"><div style=\"width:{width:.2}%\">{}</div></td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td></tr>",
            epoch.epoch,
            time_bar(counts),
            duration(counts.time()),
            percent(counts.stalls.total(), counts.time()),
            rate(counts.samples_per_s()),
            bytes(counts.places.total()),
            count(counts.batches),
        )
    };
    let rows: String = epochs.iter().map(row).collect();
    let left_out = match report.timeline.epochs_left_out() {
        0 => String::new(),
        left_out => format!(
            "<p class=\"note\">{} epochs between the first ones and the last ones are left out.</p>",
            count(left_out)
        ),
    };
    let table = format!(
        "<div class=\"scroll\"><table><tr><th>Epoch</th><th class=\"wide\">where its time went</th><th>time</th>\
         <th>waiting</th><th>samples/s</th><th>read</th><th>batches</th></tr>{rows}</table></div>{left_out}\
         <p class=\"note\">An epoch begins when the last batch of the one before was delivered. What is read ahead for \
         the next epoch counts where it was read.</p>"
    );
    section("Epochs side by side", &table)
}

fn settings(report: &Report) -> String {
    let row = |(name, value): &(String, String)| {
        format!("<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(value))
    };
    let rows: String = report.settings.iter().map(row).collect();
    section("Settings", &format!("<table class=\"settings\">{rows}</table>"))
}

fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{title}</h2>{body}</section>")
}

fn legend_item(class: &str, what: &str, value: &str) -> String {
    format!("<li class=\"{class}\"><i></i><em>{what}</em> <small>{value}</small></li>")
}

/// The parts of the consumer's time: of each, its class, its description and how long it took.
fn parts(counts: &Counts) -> Vec<(&'static str, &'static str, Duration)> {
    let own = ("consumer", "the consumer's own", counts.consumer);
    let waits = counts.stalls.each().map(|(cause, waited)| (cause.name(), waiting(cause), waited));
    let handing = ("handing", "handing over what was ready", counts.handing);
    std::iter::once(own).chain(waits).chain([handing]).collect()
}

fn time_bar(counts: &Counts) -> String {
    let whole = counts.time();
    let parts = parts(counts).into_iter();
    let shares: Vec<_> = parts
        .map(|(class, what, part)| {
            (
                class,
                share(part, whole),
                format!("{what}: {}, {}", duration(part), percent(part, whole)),
            )
        })
        .collect();
    bar(&shares, "shares of the time")
}

fn when(column: &Column) -> String {
    format!("{} to {}", duration(column.begin), duration(column.begin + column.len))
}

/// A noun phrase for what is waited for, to end a sentence with.
fn noun(cause: Cause) -> &'static str {
    match cause {
        Cause::Start => "the loader to start",
        Cause::Order => "the order",
        Cause::Window => "room in the window",
        Cause::Network => "reads",
        Cause::Checksum => "checksums",
        Cause::Copy => "copies into one buffer",
    }
}

fn waiting(cause: Cause) -> &'static str {
    match cause {
        Cause::Start => "waiting: start",
        Cause::Order => "waiting: order",
        Cause::Window => "waiting: window full",
        Cause::Network => "waiting: reads (network, drive)",
        Cause::Checksum => "waiting: checksums",
        Cause::Copy => "waiting: copy",
    }
}

fn meaning(cause: Cause) -> &'static str {
    match cause {
        Cause::Start => "start: connecting, allocating",
        Cause::Order => "order: being computed",
        Cause::Window => "window: full of batches held or needed later",
        Cause::Network => "network: reads outstanding, at whatever place",
        Cause::Checksum => "checksum: reads arrived faster than they are verified",
        Cause::Copy => "copy: gathering a batch into one buffer",
    }
}

fn place_of(place: Place) -> &'static str {
    match place {
        Place::Origin => "origin",
        Place::Ahead => "read together with others",
        Place::Memory => "memory of this node",
        Place::Drive => "drives of this node",
        Place::Peer => "other nodes",
    }
}

/// Every so many bars have a label.
const LABEL_EVERY: usize = 3;

#[cfg(test)]
mod tests {
    use super::super::Stalls;
    use super::super::run::{Facts, Reads, TierUse};
    use super::super::timeline::{Delivered, Timeline};
    use super::*;
    use crate::metrics::PlaceBytes;

    /// A run of so many batches in so many epochs, with each cause and place.
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
                timeline.places(places);
            }
            places.add(Place::ALL[(number % 5) as usize], 1_000_000);
            timeline.batch(&Delivered { asked, at, epoch, samples: 32, bytes: 90_000, stalls });
        }
        timeline.places(places);
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
    fn a_run_without_a_batch_has_a_page_and_three_sentences_too() {
        let report = report(0, 1);
        assert_eq!(report.advice().len(), 3);
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
}
