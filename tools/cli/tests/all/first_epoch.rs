//! `dlfs read --shards`: the first epoch makes the index, is stopped, killed and resumed, at other world sizes too.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{self, TestDir, run};

const SHARDS: usize = 20;
const SAMPLES: usize = 30;

/// Shards of WebDataset in the folder `shards`.
fn with_shards() -> TestDir {
    let dir = TestDir::new();
    fs::create_dir(dir.path("shards")).unwrap();
    for shard in 0..SHARDS {
        let path = dir.path(&format!("shards/{shard:03}.tar"));
        let mut archive = tar::Builder::new(File::create(path).unwrap());
        for sample in 0..SAMPLES {
            let bytes = vec![(shard * 7 + sample) as u8; 5000 + 13 * sample];
            for (end, bytes) in [("bin", &bytes[..]), ("cls", (sample % 3).to_string().as_bytes())]
            {
                let mut header = tar::Header::new_ustar();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                header.set_cksum();
                let name = format!("{shard:03}-{sample:03}.{end}");
                archive.append_data(&mut header, name, bytes).unwrap();
            }
        }
        archive.finish().unwrap();
    }
    dir
}

/// The ids of all samples in the first epoch.
fn all() -> BTreeSet<u64> {
    let ids =
        (0..SHARDS as u64).flat_map(|shard| (0..SAMPLES as u64).map(move |at| shard << 32 | at));
    ids.collect()
}

fn ids(dir: &TestDir, name: &str) -> Vec<u64> {
    let text = fs::read_to_string(dir.path(name)).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn options(dir: &TestDir) -> Vec<String> {
    let index = dir.arg("index");
    let given = ["read", &dir.arg("shards"), "--shards", "--index", &index, "--batch-size", "10"];
    let window = ["--window", "1572864", "--order", "global"].map(String::from); // several windows a shard
    given.map(String::from).into_iter().chain(window).collect()
}

fn with(options: &[String], more: &[&str]) -> Vec<String> {
    options.iter().cloned().chain(more.iter().map(ToString::to_string)).collect()
}

#[test]
fn the_first_epoch_makes_the_index_and_later_runs_read_in_the_order_that_is_asked_for() {
    let dir = with_shards();
    let list = dir.arg("ids");
    let ran = run(&with(&options(&dir), &["--epochs", "2", "--ids", &list, "--json"])).code(0);
    let json = ran.json();
    assert_eq!((&json["samples"], &json["shards"]), (&1200.into(), &20.into()));
    let read = ids(&dir, "ids");
    let first: BTreeSet<u64> = read[..600].iter().copied().collect();
    let second: BTreeSet<u64> = read[600..].iter().copied().collect();
    assert_eq!((first, second), (all(), (0..600).collect()));
    let indexes = fs::read_dir(dir.path("index")).unwrap().count();
    assert_eq!(indexes, SHARDS);
    run(&with(&options(&dir), &["--ids", &list])).code(0);
    let again: BTreeSet<u64> = ids(&dir, "ids").into_iter().collect();
    assert_eq!(again, (0..600).collect());
}

#[test]
fn a_run_that_was_stopped_or_killed_goes_on_from_its_state_and_at_another_world_size_from_all_states()
 {
    let dir = with_shards();
    let state = |rank: &str| dir.arg(&format!("state{rank}"));
    let mut read = Vec::new();
    for rank in ["0", "1", "2"] {
        let list = format!("ids{rank}");
        let place = ["--rank", rank, "--world-size", "3", "--state", &state(rank)];
        let more = ["--ids", &dir.arg(&list), "--stop-after", "60"];
        run(&with(&options(&dir), &[&place[..], &more].concat())).code(4);
        read.extend(ids(&dir, &list));
    }
    let alone = ["--rank", "0", "--world-size", "2", "--state", &state("0")];
    run(&with(&options(&dir), &alone)).code(1).complains_of(&["lacks lane", "all ranks"]);
    let states: Vec<String> =
        (0..3).map(|rank| fs::read_to_string(state(&rank.to_string())).unwrap()).collect();
    for rank in ["0", "1"] {
        let merged = dir.path(&format!("merged{rank}"));
        fs::write(&merged, states.concat()).unwrap();
        let list = format!("more{rank}");
        let place =
            ["--rank", rank, "--world-size", "2", "--state", &dir.arg(&format!("merged{rank}"))];
        run(&with(&options(&dir), &[&place[..], &["--ids", &dir.arg(&list)]].concat())).code(0);
        read.extend(ids(&dir, &list));
    }
    let once: BTreeSet<u64> = read.iter().copied().collect();
    assert_eq!((read.len(), once), (SHARDS * SAMPLES, all()));
}

#[test]
fn a_run_with_a_report_makes_the_index_first_and_writes_its_files() {
    let dir = with_shards();
    let html = dir.arg("report.html");
    let events = dir.arg("events.json");
    run(&with(&options(&dir), &["--report", &html, "--trace", &events])).code(0);
    for file in [html, events] {
        assert!(fs::metadata(&file).unwrap().len() > 0, "{file}");
    }
    let state = dir.arg("state");
    fs::remove_dir_all(dir.path("index")).unwrap();
    run(&with(&options(&dir), &["--state", &state, "--stop-after", "60"])).code(4);
    run(&with(&options(&dir), &["--state", &state, "--report", &dir.arg("never")]))
        .code(2)
        .complains_of(&["without options that need the index of all shards"]);
}

#[test]
fn a_view_is_read_alone_though_the_shards_have_no_index_yet() {
    let dir = with_shards();
    let view = dir.arg("some.view");
    let shards = ["--shards", "--index", &dir.arg("index")];
    let select = ["select", &dir.arg("shards"), "name glob '*-001'", "--out", &view];
    run(&[&select[..], &shards].concat()).code(0);
    fs::remove_dir_all(dir.path("index")).unwrap();
    let of_view = ["--view", &view, "--ids", &dir.arg("ids")];
    let filled = format!("file:{}", dir.arg("filled.dlfs"));
    run(&with(&options(&dir), &[&of_view[..], &["--import-to", &filled]].concat()))
        .code(1)
        .complains_of(&[
            "the first epoch over shards reads all samples",
            "make the index with dlfs index",
        ]);
    run(&with(&options(&dir), &of_view)).code(0); // makes the index, too
    assert_eq!(ids(&dir, "ids").len(), SHARDS);
}

/// A killed process has no newer state than that of its start: here it begins anew, and makes only what is missing.
#[test]
fn what_a_killed_run_has_indexed_is_kept() {
    let dir = with_shards();
    let list = dir.path("ids");
    let mut command = common::dlfs();
    command.args(with(&options(&dir), &["--epochs", "1000000"]));
    let mut child = command.arg("--ids").arg(&list).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(120);
    let is_index = |path: &PathBuf| path.extension().is_some_and(|name| name == "index");
    let indexes = || {
        let files = fs::read_dir(dir.path("index")).map(|all| all.map(|it| it.unwrap().path()));
        files.map_or(0, |all| all.filter(is_index).count())
    };
    while indexes() < 3 {
        assert!(Instant::now() < limit, "no shard was indexed");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(indexes() >= 3);
    let ran = run(&with(&options(&dir), &["--json"])).code(0);
    assert_eq!(ran.json()["samples"], 600);
    assert_eq!(indexes(), SHARDS);
}

#[test]
fn ranks_fill_an_image_that_verify_finds_whole_and_a_killed_rank_goes_on() {
    for files in [&["a.dlfs", "b.dlfs"][..], &["shared.dlfs"]] {
        kill_and_fill(files);
    }
}

/// Ranks are processes, which are killed in the middle and run again.
fn kill_and_fill(files: &[&str]) {
    let dir = with_shards();
    let image = files.iter().map(|file| dir.arg(file)).collect::<Vec<_>>().join(",");
    let fill = |rank: &str, epochs: &str| {
        let place = ["--rank", rank, "--world-size", "2", "--epochs", epochs];
        let mut command = common::dlfs();
        command.args(with(&options(&dir), &[&place[..], &["--import-to", &image]].concat()));
        command.stdout(Stdio::null());
        command
    };
    let mut killed = fill("0", "1").spawn().unwrap();
    let begun = Instant::now();
    while !dir.path("index").exists() || fs::read_dir(dir.path("index")).unwrap().count() < 4 {
        assert!(begun.elapsed() < Duration::from_secs(120), "no shard was indexed");
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    run(&["verify", &image]).code(1);
    let ranks: Vec<_> = ["0", "1"].map(|rank| fill(rank, "2").spawn().unwrap()).into();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
    run(&["verify", &image]).code(0);
    let list = dir.arg("list");
    run(&with(&options(&dir), &["--import-to", &image, "--ids", &list])).code(0);
    let read: BTreeSet<u64> = ids(&dir, "list").into_iter().collect();
    assert_eq!(read, (0..600).collect(), "there is no first epoch");
}

#[test]
fn shuffle_report_says_how_random_the_first_epoch_is() {
    let dir = with_shards();
    let index = dir.arg("index");
    let given = ["shuffle-report", &dir.arg("shards"), "--shards", "--index", &index, "--json"];
    let report = |more: &[&str]| run(&[&given[..], more].concat()).code(0).json();
    let first = report(&["--first-epoch", "--batch-size", "40"]);
    assert_eq!((&first["samples"], &first["lanes"]["lanes"]), (&600.into(), &32.into()));
    let shards = first["chunks_per_batch"]["found"].as_f64().unwrap();
    assert!((8.0..=20.0).contains(&shards), "each of eight lanes gives samples: {shards}");
    assert!(first["displacement"]["deviations"].as_f64().unwrap().abs() < 1e9);
    let all = report(&["--order", "global", "--batch-size", "40"]);
    assert_eq!(all["samples"], 600);
    run(&["shuffle-report", &dir.arg("shards"), "--first-epoch"])
        .code(2)
        .complains_of(&["--index"]);
}
