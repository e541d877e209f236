//! `dlfs read --report` and `--trace`: the page in a real browser, and the events of the file.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{TestDir, dlfs, end_of, finish, run, signal};
use serde_json::Value;

/// Runs three epochs of 300 samples over an image whose name could be a tag, and returns the page and the events.
fn read_with_report(dir: &TestDir) -> (PathBuf, PathBuf) {
    let image = dir.path("<img src=x onerror=alert(1)>&\".dlfs");
    fs::rename(dir.path("train.dlfs"), &image).unwrap();
    let (page, events) = (dir.path("page.html"), dir.path("events.json"));
    let (image, html, json) =
        (image.to_str().unwrap(), dir.arg("page.html"), dir.arg("events.json"));
    let ran = run(&[
        "read", image, "--batch", "10", "--epochs", "3", "--seed", "7", "--tier", "ram:64M",
        "--report", &html, "--trace", &json, "--json",
    ])
    .code(0);
    let told = ran.json();
    let causes = told["stalls_s"].as_object().unwrap().values().map(|s| s.as_f64().unwrap());
    let (sum, stall_s) = (causes.sum::<f64>(), told["stall_s"].as_f64().unwrap());
    assert!((sum - stall_s).abs() < 1e-6, "{sum} of {stall_s}");
    (page, events)
}

/// The figures in the page, as programs read them.
fn data_of(html: &str) -> Value {
    let (_, data) = html.split_once("id=\"dlfs-report\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn the_page_says_what_was_read_and_its_parts_add_up() {
    let dir = TestDir::with_image();
    let bytes: usize = dir.files("source").iter().map(|(_, bytes)| bytes.len()).sum();
    let (page, _) = read_with_report(&dir);
    let html = fs::read_to_string(page).unwrap();
    assert!(!html.contains("<img"), "the name of the image is text");
    for outside in ["http://", "https://", "src=", "href=", "url(", "@import"] {
        let found = html.split("id=\"dlfs-report\"").next().unwrap().replace("&lt;img src=x", "");
        assert!(!found.contains(outside), "{outside}");
    }
    let data = data_of(&html);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    assert_eq!(data["total"]["samples"], 900);
    assert_eq!(data["total"]["batches"], 90);
    assert_eq!(data["total"]["bytes"], 3 * bytes);
    let sum = |of: &Value, key: &str| -> f64 {
        of.as_array().unwrap().iter().map(|part| number(&part[key])).sum()
    };
    assert_eq!(sum(&data["buckets"], "samples"), 900.0);
    assert_eq!(sum(&data["epochs"], "samples"), 900.0);
    assert_eq!(sum(&data["wait_s"], "count"), 90.0);
    assert_eq!(data["epochs"].as_array().map(Vec::len), Some(3));
    let total = &data["total"];
    let stalls: f64 = total["stalls_s"].as_object().unwrap().values().map(number).sum();
    let parts = number(&total["consumer_s"]) + number(&total["handing_s"]) + stalls;
    assert!((parts - number(&data["seconds"])).abs() < 1e-6, "{data}");
    assert!(number(&total["stalls_s"]["start"]) > 0.0, "it was opened: {total}");
    let places: f64 = total["read_bytes"].as_object().unwrap().values().map(number).sum();
    assert!(places > 0.0, "{total}");
    let advice = data["advice"].as_array().unwrap();
    assert_eq!(advice.len(), 3);
    for sentence in advice {
        assert!(sentence.as_str().unwrap().contains(|c: char| c.is_ascii_digit()), "{sentence}");
    }
    assert_eq!(data["settings"]["seed"], "7");
    assert!(data["tiers"][0]["name"].as_str().unwrap().starts_with("ram:"), "{}", data["tiers"]);
}

/// The slices of each thread by their begins, which must nest; the values of all counters.
fn check_trace(text: &str) -> BTreeMap<String, usize> {
    let trace: Value = serde_json::from_str(text).unwrap();
    assert!(trace["otherData"]["dropped_events"].is_string(), "{}", trace["otherData"]);
    let events = trace["traceEvents"].as_array().unwrap();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut threads: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut counters: BTreeMap<&str, f64> = BTreeMap::new();
    let mut named = Vec::new();
    for event in events {
        let name = event["name"].as_str().unwrap();
        *names.entry(name.to_owned()).or_default() += 1;
        assert_eq!(event["pid"], 1, "{event}");
        let ts = event["ts"].as_f64();
        match event["ph"].as_str().unwrap() {
            "M" => named.push(event["tid"].as_u64().unwrap()),
            "X" => {
                let (begin, len) = (ts.unwrap(), event["dur"].as_f64().unwrap());
                assert!(begin >= 0.0 && len >= 0.0, "{event}");
                let open = threads.entry(event["tid"].as_u64().unwrap()).or_default();
                let last = open.last().copied().unwrap_or((0.0, 0.0));
                assert!(begin >= last.0 || open.is_empty(), "goes back: {event}");
                // Slices that have ended before this one begins; what remains open contains it.
                open.retain(|(_, end)| *end > begin + ROUNDING);
                assert!(open.iter().all(|(_, end)| begin + len <= *end + ROUNDING), "{event}");
                open.push((begin, begin + len));
            }
            "C" => {
                let last = counters.entry(name).or_default();
                assert!(ts.unwrap() >= *last, "goes back: {event}");
                *last = ts.unwrap();
                let values = event["args"].as_object().unwrap().values();
                assert!(values.into_iter().all(|value| value.as_f64() >= Some(0.0)), "{event}");
            }
            other => panic!("{other} in {event}"),
        }
    }
    assert!(threads.keys().all(|thread| named.contains(thread)), "{named:?}");
    names
}

/// Microseconds: the text has three decimals.
const ROUNDING: f64 = 0.0015;

#[test]
fn the_events_nest_and_every_batch_is_there() {
    let dir = TestDir::with_image();
    let (_, events) = read_with_report(&dir);
    let names = check_trace(&fs::read_to_string(events).unwrap());
    assert_eq!(names["next batch"], 90);
    assert!(names["burst"] >= 1, "{names:?}");
    for counter in ["fetches in flight", "samples/s", "MB/s read, by place"] {
        assert!(names.get(counter).is_some_and(|times| *times >= 1), "{counter}: {names:?}");
    }
}

#[test]
fn both_files_are_complete_after_an_interruption() {
    let dir = TestDir::with_image();
    let (html, json) = (dir.arg("page.html"), dir.arg("events.json"));
    let ids = dir.arg("ids");
    let child = dlfs()
        .args(["read", &dir.arg("train.dlfs"), "--epochs", "10000000", "--batch", "8"])
        .args(["--report", &html, "--trace", &json, "--ids", &ids])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while fs::metadata(&ids).map_or(0, |ids| ids.len()) < 10_000 {
        assert!(Instant::now() < until, "it does not read");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "INT");
    let ran = end_of(child);
    assert_ne!(ran.status.code(), Some(0), "it was stopped");
    assert!(check_trace(&fs::read_to_string(json).unwrap())["next batch"] > 100);
    let data = data_of(&fs::read_to_string(html).unwrap());
    assert!(data["total"]["samples"].as_u64() > Some(1000), "{}", data["total"]);
}

#[test]
fn a_file_that_cannot_be_written_is_reported_before_anything_is_read() {
    let dir = TestDir::with_image();
    let nowhere = dir.arg("absent/page.html");
    for option in ["--report", "--trace"] {
        let ran = run(&["read", &dir.arg("train.dlfs"), option, &nowhere]).code(1);
        ran.complains_of(&["page.html"]);
        assert!(ran.text().is_empty(), "{}", ran.text());
    }
}

/// A frame of each width with the page, and a script that says what the browser has made of it.
const FRAMES: &str = r#"<!doctype html><title>measure</title>
<iframe id="a" src="page.html" style="width:1200px;height:800px"></iframe>
<iframe id="b" src="page.html" style="width:360px;height:800px"></iframe>
<pre id="told"></pre>
<script>
addEventListener("load", () => {
  const told = ["a", "b"].map(id => {
    const page = document.getElementById(id).contentDocument;
    const charts = [...page.querySelectorAll("svg")].map(svg => {
      const box = svg.getBoundingClientRect();
      const shapes = [...svg.querySelectorAll("path:not(.grid)")];
      return {width: box.width, height: box.height, shapes: shapes.length};
    });
    return {
      headings: [...page.querySelectorAll("h2")].map(heading => heading.textContent),
      name: page.querySelector("header .name").textContent,
      images: page.querySelectorAll("img").length,
      width: page.documentElement.clientWidth,
      needed: page.documentElement.scrollWidth,
      charts: charts,
      advice: page.querySelectorAll("ol.advice li").length,
    };
  });
  document.getElementById("told").textContent = "TOLD" + JSON.stringify(told) + "END";
});
</script>"#;

#[test]
fn a_browser_shows_the_page_wide_and_narrow() {
    let Some(browser) = browser() else {
        println!("SKIPPED: chromium is not installed");
        return;
    };
    let dir = TestDir::with_image();
    read_with_report(&dir);
    fs::write(dir.path("frames.html"), FRAMES).unwrap();
    let dom =
        browse(&browser, &dir, &["--allow-file-access-from-files", "--dump-dom"], "frames.html");
    let (_, told) = dom.split_once(">TOLD").unwrap_or_else(|| panic!("no script ran:\n{dom}"));
    let (told, _) = told.split_once("END<").unwrap();
    let plain = told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let frames: Value = serde_json::from_str(&plain).unwrap();
    for frame in frames.as_array().unwrap() {
        let headings = frame["headings"].as_array().unwrap();
        assert!(headings.len() >= 8, "{frame}");
        assert!(headings.contains(&"Epochs side by side".into()), "{frame}");
        assert!(
            frame["name"].as_str().unwrap().contains("<img src=x onerror=alert(1)>"),
            "{frame}"
        );
        assert_eq!((&frame["images"], &frame["advice"]), (&0.into(), &3.into()), "{frame}");
        let (width, needed) = (frame["width"].as_u64(), frame["needed"].as_u64());
        assert!(needed <= width, "it must be scrolled sideways: {frame}");
        let charts = frame["charts"].as_array().unwrap();
        assert_eq!(charts.len(), 3, "{frame}");
        for chart in charts {
            assert!(chart["width"].as_f64() > Some(200.0), "{frame}");
            assert!(chart["height"].as_f64() > Some(100.0), "{frame}");
            assert!(chart["shapes"].as_u64() >= Some(1), "an empty chart: {frame}");
        }
    }
    let picture = dir.path("page.png");
    let screenshot = format!("--screenshot={}", picture.display());
    browse(
        &browser,
        &dir,
        &["--window-size=1200,2200", "--hide-scrollbars", &screenshot],
        "page.html",
    );
    let picture = fs::read(picture).unwrap();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 30_000, "{} bytes", picture.len());
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let candidates = names.iter().flat_map(|name| folders.iter().map(move |at| at.join(name)));
    candidates.into_iter().find(|program| program.is_file())
}

/// What the browser prints of a file of `dir`, without a window.
fn browse(browser: &Path, dir: &TestDir, options: &[&str], file: &str) -> String {
    let profile = format!("--user-data-dir={}", dir.path("profile").display());
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile])
        .args(options)
        .arg(format!("file://{}", dir.path(file).display()));
    finish(command).code(0).text().to_owned()
}
