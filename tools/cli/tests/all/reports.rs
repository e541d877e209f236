//! `dlfs read --report` and `--trace`: the page in a real browser, and the events of the file.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{TestDir, dlfs, end_of, finish, run, signal};
use crate::disk::SmallDisk;

/// Runs three epochs of 300 samples over an image whose name could be a tag, and returns the page and the events.
fn read_with_report(dir: &TestDir) -> (PathBuf, PathBuf) {
    let image = dir.path("<img src=x onerror=alert(1)>&\".dlfs");
    fs::rename(dir.path("train.dlfs"), &image).unwrap();
    let page = dir.path("page.html");
    let events = dir.path("events.json");
    let image = image.to_str().unwrap();
    let html = dir.arg("page.html");
    let json = dir.arg("events.json");
    let ran = run(&[
        "read",
        image,
        "--batch-size",
        "10",
        "--epochs",
        "3",
        "--seed",
        "7",
        "--tier",
        "ram:64M",
        "--report",
        &html,
        "--trace",
        &json,
        "--json",
    ])
    .code(0);
    let told = ran.json();
    let causes = told["stalls_s"].as_object().unwrap().values().map(|s| s.as_f64().unwrap());
    let sum = causes.sum::<f64>();
    let stall_s = told["stall_s"].as_f64().unwrap();
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
    assert!(
        places > 0.0 && places == number(&data["reads"]["bytes"]),
        "each byte read has a place: {data}"
    );
    let advice = data["advice"].as_array().unwrap();
    assert!((1..=3).contains(&advice.len()), "{advice:?}");
    for sentence in advice {
        assert!(sentence.as_str().unwrap().contains(|c: char| c.is_ascii_digit()), "{sentence}");
    }
    assert_eq!(data["settings"]["seed"], "7");
    assert!(data["tiers"][0]["name"].as_str().unwrap().starts_with("ram:"), "{}", data["tiers"]);
}

/// Checks a trace against the rules of Chrome's trace event format for its phases: metadata (M), complete events (X)
/// and counters (C). Complete events of a thread nest, and each track goes forward in time. Returns how often each name
/// occurs.
fn check_trace(text: &str) -> BTreeMap<String, usize> {
    let trace: Value = serde_json::from_str(text).unwrap();
    assert_eq!(trace["displayTimeUnit"], "ms");
    assert!(trace["otherData"]["dropped_events"].is_string(), "{}", trace["otherData"]);
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut threads: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut counters: BTreeMap<&str, f64> = BTreeMap::new();
    let mut named = Vec::new();
    let mut processes = 0;
    for event in trace["traceEvents"].as_array().unwrap() {
        let name = event["name"].as_str().filter(|name| !name.is_empty()).unwrap();
        *names.entry(name.to_owned()).or_default() += 1;
        assert_eq!(event["pid"], 1, "{event}");
        let thread = event["tid"].as_u64().unwrap_or_else(|| panic!("no thread: {event}"));
        let args = event["args"].as_object().unwrap();
        // Microseconds since the begin of the run; metadata have no time.
        let time = |key: &str| {
            let time = event[key].as_f64().filter(|time| time.is_finite() && *time >= 0.0);
            time.unwrap_or_else(|| panic!("no {key}: {event}"))
        };
        match event["ph"].as_str().unwrap() {
            "M" => {
                assert!(args["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
                match name {
                    "process_name" => processes += 1,
                    "thread_name" => named.push(thread),
                    other => panic!("metadata of no meaning: {other}"),
                }
            }
            "X" => {
                assert!(event["cat"].is_string(), "{event}");
                let begin = time("ts");
                let len = time("dur");
                let open = threads.entry(thread).or_default();
                let last = open.last().copied().unwrap_or((0.0, 0.0));
                assert!(begin >= last.0, "goes back: {event}");
                // Slices that have ended before this one begins; what remains open contains it.
                open.retain(|(_, end)| *end > begin + ROUNDING);
                assert!(open.iter().all(|(_, end)| begin + len <= *end + ROUNDING), "{event}");
                open.push((begin, begin + len));
            }
            "C" => {
                let last = counters.entry(name).or_default();
                assert!(time("ts") >= *last, "goes back: {event}");
                *last = time("ts");
                assert!(!args.is_empty(), "{event}");
                let mut values = args.values();
                assert!(values.all(|value| value.as_f64() >= Some(0.0)), "{event}");
            }
            other => panic!("{other} in {event}"),
        }
    }
    assert_eq!(processes, 1, "one process, with one name");
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
    let html = dir.arg("page.html");
    let json = dir.arg("events.json");
    let ids = dir.arg("ids");
    let child = dlfs()
        .args(["read", &dir.arg("train.dlfs"), "--epochs", "10000000", "--batch-size", "8"])
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

/// Both files are on a disk that is full when the second run ends.
#[test]
fn a_full_disk_is_an_error_that_names_the_files_and_leaves_what_was_there() {
    let Some(disk) = SmallDisk::new(1 << 20) else { return };
    let dir = TestDir::with_image();
    let at = |name: &str| disk.path().join(name);
    let page = at("page.html");
    let events = at("events.json");
    let image = dir.arg("train.dlfs");
    let args = ["read", &image, "--report", page.to_str().unwrap(), "--trace"];
    let args = [&args[..], &[events.to_str().unwrap()]].concat();
    run(&args).code(0);
    let before = (fs::read(&page).unwrap(), fs::read(&events).unwrap());
    check_trace(std::str::from_utf8(&before.1).unwrap());
    fill_up(&at("filler"));
    let ran = run(&args).code(1);
    ran.complains_of(&["page.html", "events.json", "No space left on device"]);
    assert!(ran.text().contains("300 samples"), "the run itself is told: {}", ran.text());
    assert!((fs::read(&page).unwrap(), fs::read(&events).unwrap()) == before, "they were replaced");
    let mut names: Vec<_> =
        fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["events.json", "filler", "page.html"], "no draft stays");
}

fn fill_up(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

/// `/dev/full` has no room, needs no root, and is no file that could be replaced.
#[test]
fn what_ended_the_run_is_its_exit_code_and_a_page_without_room_is_told_beside_it() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let with_page = ["read", &image, "--report", "/dev/full", "--json"];
    let ran = run(&with_page).code(1);
    ran.complains_of(&["/dev/full", "No space left on device"]);
    assert_eq!(ran.json()["samples"], 300, "the run was complete");
    damage(&dir);
    let ran = run(&with_page).code(3);
    ran.complains_of(&["/dev/full", "No space left on device", "checksum"]);
    assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    // Without a page the same.
    run(&with_page[..2]).code(3);
}

/// Flips a byte of each copy of the longest sample's bytes.
fn damage(dir: &TestDir) {
    let files = dir.files("source");
    let longest = files.iter().map(|(_, bytes)| bytes).max_by_key(|bytes| bytes.len()).unwrap();
    let mut image = fs::read(dir.path("train.dlfs")).unwrap();
    let found = image.windows(longest.len()).position(|bytes| bytes == &longest[..]).unwrap();
    image[found + longest.len() / 2] ^= 1;
    fs::write(dir.path("train.dlfs"), image).unwrap();
}

#[test]
fn a_run_that_does_not_begin_writes_no_page_and_keeps_an_older_one() {
    let dir = TestDir::with_image();
    let html = dir.arg("page.html");
    let absent = dir.arg("absent.dlfs");
    run(&["read", &absent, "--report", &html]).code(1);
    assert!(!Path::new(&html).exists(), "an empty page");
    fs::write(&html, "an older page").unwrap();
    run(&["read", &absent, "--report", &html]).code(1);
    assert_eq!(fs::read_to_string(&html).unwrap(), "an older page");
    // One that begins and fails has a page.
    damage(&dir);
    run(&["read", &dir.arg("train.dlfs"), "--report", &html]).code(3);
    assert!(data_of(&fs::read_to_string(&html).unwrap())["total"]["samples"].is_u64());
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
        assert_eq!(frame["images"], 0, "{frame}");
        assert!(frame["advice"].as_u64() >= Some(1), "{frame}");
        let width = frame["width"].as_u64();
        let needed = frame["needed"].as_u64();
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

/// The browser's output for a file of `dir`, without a window.
fn browse(browser: &Path, dir: &TestDir, options: &[&str], file: &str) -> String {
    let profile = format!("--user-data-dir={}", dir.path("profile").display());
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile])
        .args(options)
        .arg(format!("file://{}", dir.path(file).display()));
    finish(command).code(0).text().to_owned()
}
