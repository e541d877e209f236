//! Data sets by name: `dlfs catalog`, and names in place of addresses.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Ran, Served, TestDir, dlfs, finish, run};

/// Runs `dlfs` with a cache of its own for what it last knew.
fn run_in(dir: &TestDir, cache: &str, arguments: &[&str]) -> Ran {
    let mut command = dlfs();
    command.env("XDG_CACHE_HOME", dir.path(cache)).args(arguments);
    finish(command)
}

fn name_in(dir: &TestDir, name: &str) -> String {
    format!("dlfs://{}/{name}", dir.arg("catalog"))
}

/// The versions that the catalogue has of `name`.
fn versions(dir: &TestDir, name: &str) -> Vec<Value> {
    let shown =
        run_in(dir, "cache", &["catalog", "show", name, "--json"]).code(0).text().to_owned();
    shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_data_set_is_imported_found_changed_and_served_by_its_name() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    let dlfs = |arguments: &[&str]| run_in(&dir, "cache", arguments);
    dlfs(&["import", &dir.arg("source"), &image, "--catalog", &train]).code(0);
    assert_eq!(dlfs(&["read", &train, "--json"]).code(0).json()["samples"], 300);
    assert_eq!(dlfs(&["stat", &train, "--json"]).code(0).json()["samples"], 300);
    assert_eq!(dlfs(&["ls", &train]).code(0).text().lines().count(), 3);

    dlfs(&["catalog", "tag", &train, "stable", "--new"]).code(0);
    dir.make_source("more/new");
    dlfs(&["import", "--append", &dir.arg("more"), &train]).code(0);
    dlfs(&["delete", &train, "cat/010.bin"]).code(0);
    dlfs(&["purge", &train]).code(0);
    dlfs(&["purge", &train]).code(0);
    let versions = versions(&dir, &train);
    let made_by: Vec<&str> = versions.iter().map(|one| one["made_by"].as_str().unwrap()).collect();
    assert_eq!(made_by, ["import", "append", "delete", "purge"]);
    let last = &versions[3];
    assert_eq!((&last["generation"], &last["samples"]), (&4.into(), &599.into()));
    assert_eq!(last["parent"]["generation"], 3);
    assert_eq!(versions[0]["aliases"][0], "stable");
    assert_eq!(versions[0]["sources"][0], dir.arg("source"));
    assert_eq!(last["sites"][0], image);

    // An image holds its newest generation, and a name that means an older one is refused.
    let stable = format!("{train}@stable");
    dlfs(&["read", &stable]).code(1).complains_of(&["generation 1", "the image has 4", "catalog"]);
    dlfs(&["read", &format!("{train}@2")]).code(1).complains_of(&["generation 2"]);
    dlfs(&["delete", &stable, "cat/011.bin"]).code(1).complains_of(&["generation 1"]);
    assert_eq!(dlfs(&["read", &format!("{train}@4"), "--json"]).code(0).json()["samples"], 599);

    let served = Served::start(&image, &[]);
    let add =
        ["catalog", "add", &train, &served.address, "--alias", "served", "--label", "site=here"];
    let added = dlfs(&add).code(0).text().to_owned();
    assert!(added.contains("@served"), "{added}");
    let by_name = dlfs(&["read", &format!("{train}@served"), "--json"]).code(0).json();
    assert_eq!(by_name["samples"], 599);
    let listed = dlfs(&["catalog", "ls", &dir.arg("catalog"), "--json"]).code(0).json();
    assert_eq!(listed["labels"]["site"], "here");
}

#[test]
fn an_alias_moves_only_from_where_it_is_expected_and_keeps_its_history() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    let dlfs = |arguments: &[&str]| run_in(&dir, "cache", arguments);
    dlfs(&["catalog", "add", &train, &image]).code(0);
    dlfs(&["delete", &train, "cat/010.bin"]).code(0);
    let first = format!("{train}@1");
    let second = format!("{train}@2");
    dlfs(&["catalog", "tag", &first, "stable"]).code(0);
    dlfs(&["catalog", "tag", &second, "stable", "--new"]).code(1).complains_of(&["generation 1"]);
    dlfs(&["catalog", "tag", &second, "stable", "--from", "2"])
        .code(1)
        .complains_of(&["generation 1"]);
    dlfs(&["catalog", "tag", &second, "stable", "--from", "1"]).code(0);
    let stable = format!("{train}@stable");
    let shown = dlfs(&["catalog", "show", &stable]).code(0).text().to_owned();
    assert!(shown.contains("1 -> 2"), "{shown}");
    dlfs(&["catalog", "rm", &second]).code(1).complains_of(&["stable"]);
    dlfs(&["catalog", "rm", &stable]).code(0);
    dlfs(&["read", &stable]).code(1).complains_of(&["alias stable"]);
    dlfs(&["catalog", "rm", &train]).code(2).complains_of(&["--all"]);
    dlfs(&["catalog", "rm", &train, "--all"]).code(0);
    dlfs(&["catalog", "show", &train]).code(1).complains_of(&["no data set train", "catalog ls"]);
    assert_eq!(run(&["read", &image, "--json"]).code(0).json()["samples"], 299, "the image stays");
}

#[test]
fn an_image_that_replaces_another_of_its_generation_gets_aliases_and_the_other_one_versions() {
    let dir = TestDir::with_image();
    let train = name_in(&dir, "train");
    let dlfs = |arguments: &[&str]| run_in(&dir, "cache", arguments);
    dlfs(&["catalog", "add", &train, &dir.arg("train.dlfs"), "--alias", "old"]).code(0);
    dir.make_source("more/new");
    dlfs(&["import", &dir.arg("more"), &dir.arg("other.dlfs")]).code(0);
    dlfs(&["catalog", "add", &train, &dir.arg("other.dlfs"), "--alias", "new"]).code(0);
    dlfs(&["catalog", "tag", &train, "newest"]).code(0);
    let first = format!("{train}@1");
    dlfs(&["catalog", "show", &first]).code(1).complains_of(&["two images", "catalog tag"]);
    let aliases: Vec<Value> =
        versions(&dir, &train).iter().map(|one| one["aliases"].clone()).collect();
    assert_eq!(aliases, [serde_json::json!(["old"]), serde_json::json!(["new", "newest"])]);

    // A change by a name is one of the image that the name stands for.
    dlfs(&["delete", &format!("{train}@old"), "cat/010.bin"]).code(0);
    let versions = versions(&dir, &train);
    let [old, _, changed] = &versions[..] else { panic!("{versions:?}") };
    assert_eq!((&changed["image"], &changed["sites"]), (&old["image"], &old["sites"]));
    assert_eq!((&changed["made_by"], &changed["generation"]), (&"delete".into(), &2.into()));
}

#[test]
fn a_run_that_resumes_by_name_refuses_another_generation() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    let dlfs = |arguments: &[&str]| run_in(&dir, "cache", arguments);
    dlfs(&["catalog", "add", &train, &image, "--alias", "stable"]).code(0);
    let stable = format!("{train}@stable");
    let state = dir.arg("state.json");
    dlfs(&["read", &stable, "--state", &state, "--stop-after", "100", "--batch-size", "10"])
        .code(4);
    dlfs(&["delete", &train, "cat/010.bin"]).code(0);
    dlfs(&["catalog", "tag", &train, "stable"]).code(0);
    dlfs(&["read", &stable, "--state", &state, "--batch-size", "10"])
        .code(1)
        .complains_of(&["generation"]);
}

#[test]
fn a_catalogue_that_cannot_be_reached_is_replaced_by_what_was_known_last() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    run_in(&dir, "cache", &["catalog", "add", &train, &image]).code(0);
    run_in(&dir, "cache", &["read", &train]).code(0);
    fs::rename(dir.path("catalog"), dir.path("away")).unwrap();
    let read = run_in(&dir, "cache", &["read", &train, "--json"]).code(0);
    assert_eq!(read.json()["samples"], 300);
    read.complains_of(&["cannot be reached", "generation 1"]);
    run_in(&dir, "no cache", &["read", &train])
        .code(1)
        .complains_of(&["no catalogue in this folder"]);
}

#[test]
fn a_catalogue_that_is_damaged_is_not_replaced_by_what_was_known_last() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    run_in(&dir, "cache", &["catalog", "add", &train, &image]).code(0);
    run_in(&dir, "cache", &["read", &train]).code(0);
    let versions = dir.path("catalog/train/versions");
    fs::write(versions.join("2.json"), "{").unwrap();
    let read = run_in(&dir, "cache", &["read", &train]).code(3);
    read.complains_of(&["train: version 2", "no record of dlfs"]);
    assert!(!read.stderr.contains("cannot be reached"), "{}", read.stderr);
}

#[test]
fn what_a_record_says_is_printed_on_its_own_line() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    run_in(&dir, "cache", &["catalog", "add", &train, &image, "--label", "by=me"]).code(0);
    let show = ["catalog", "show", &train];
    let lines = run_in(&dir, "cache", &show).code(0).text().lines().count();
    let first = dir.path("catalog/train/versions/1.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&first).unwrap()).unwrap();
    for key in ["snapshot", "made_by", "dlfs"] {
        record[key] = "x\n  uuid       forged\u{1b}[31m".into();
    }
    record["sources"] = serde_json::json!(["a\nb"]);
    record["labels"] = serde_json::json!({ "by\n": "me\r\u{202e}" });
    fs::write(&first, serde_json::to_vec(&record).unwrap()).unwrap();
    let shown = run_in(&dir, "cache", &show).code(0).text().to_owned();
    assert_eq!(shown.lines().count(), lines + 2, "{shown}"); // made by, sources
    assert!(shown.contains("by\\n=me\\r\\u{202e}"), "{shown}");
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown}");
}

#[test]
fn a_word_for_a_catalogue_comes_from_the_environment_or_a_file() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    run_in(&dir, "cache", &["catalog", "add", &train, &image]).code(0);
    let with = |variable: &str, value: &str| {
        let mut command = dlfs();
        command.env("XDG_CACHE_HOME", dir.path("cache")).env("XDG_CONFIG_HOME", dir.path("config"));
        command.env(variable, value).args(["read", "dlfs://site/train", "--json"]);
        finish(command)
    };
    with("X", "").code(1).complains_of(&["no catalogue is configured as site", "DLFS_CATALOGS"]);
    let place = format!("site={}", dir.arg("catalog"));
    assert_eq!(with("DLFS_CATALOGS", &place).code(0).json()["samples"], 300);
    with("DLFS_CATALOGS", "site=catalog").code(1).complains_of(&["no absolute path"]);
    with("DLFS_CATALOGS", "site=etcd://host").code(1).complains_of(&["etcd://"]);
    fs::create_dir_all(dir.path("config/dlfs")).unwrap();
    let table = format!("site = {:?}\n", dir.arg("catalog"));
    fs::write(dir.path("config/dlfs/catalogs.toml"), table).unwrap();
    assert_eq!(with("X", "").code(0).json()["samples"], 300);
    for wrong in ["dlfs://site", "dlfs://site/..", "dlfs://site/a b"] {
        run(&["read", wrong]).code(2).complains_of(&["dlfs://CATALOGUE/NAME"]);
    }
    let both = format!("{train},{image}");
    run(&["read", &both]).code(1).complains_of(&["whole image"]);
}

#[test]
fn an_index_that_is_lost_is_rebuilt_from_the_heads_of_chunks_alone() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    let dlfs = |arguments: &[&str]| run_in(&dir, "cache", arguments);
    let import =
        ["import", &dir.arg("source"), &image, "--catalog", &train, "--chunk-size", "256K"];
    dlfs(&import).code(0);
    dir.make_source("more/new");
    dlfs(&["import", "--append", &dir.arg("more"), &train]).code(0);
    dlfs(&["delete", &train, "cat/010.bin", "dog/050.bin"]).code(0);
    let compare = ["catalog", "rebuild", &train, "--compare"];
    dlfs(&compare).code(0);
    let index = dir.path("catalog/train/index.json");
    let written = fs::read(&index).unwrap();
    let told: Value = serde_json::from_slice(&written).unwrap();
    assert_eq!((&told["samples"], &told["deleted"]), (&600.into(), &2.into()));
    let times = |index: &Value| -> Vec<u64> {
        let chunks = index["chunks"].as_object().unwrap();
        chunks.values().map(|chunk| chunk["time_ns"].as_u64().unwrap()).collect()
    };
    assert!(times(&told).len() > 10 && times(&told).is_sorted(), "ids sort by time");

    fs::remove_file(&index).unwrap();
    dlfs(&compare).code(3).complains_of(&[]);
    dlfs(&["catalog", "rebuild", &train]).code(0);
    assert!(fs::read(&index).unwrap() == written, "byte for byte");

    // Since a time: what is older stays as the index has it, also where that is wrong.
    let mut wrong = told.clone();
    let ids: Vec<String> = wrong["chunks"].as_object().unwrap().keys().cloned().collect();
    let last = times(&told).last().unwrap() / 1_000_000_000;
    for id in [&ids[0], ids.last().unwrap()] {
        wrong["chunks"][id]["bytes"] = 1.into();
    }
    wrong["chunks"][&ids[0]]["time_ns"] = 1.into();
    fs::write(&index, serde_json::to_vec(&wrong).unwrap()).unwrap();
    let since = last.to_string();
    let text = dlfs(&[&compare[..], &["--since", &since]].concat()).code(3).text().to_owned();
    assert!(text.contains(ids.last().unwrap()), "{text}");
    dlfs(&["catalog", "rebuild", &train, "--since", &since]).code(0);
    let mended: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    assert_eq!(mended["chunks"][ids.last().unwrap()], told["chunks"][ids.last().unwrap()]);
    assert_eq!(mended["chunks"][&ids[0]]["bytes"], 1);
    dlfs(&["catalog", "rebuild", &train]).code(0);
    assert!(fs::read(&index).unwrap() == written);
}

#[test]
fn writers_that_are_killed_leave_a_catalogue_that_is_whole() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let train = name_in(&dir, "train");
    run_in(&dir, "cache", &["catalog", "add", &train, &image]).code(0);
    let mut moves = 0;
    for kill in 0..12_u64 {
        let mut command: Command = dlfs();
        command
            .args(["catalog", "tag", &train, "stable"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_micros(kill * 700));
        let _ = child.kill(); // it may have ended
        child.wait().unwrap();
        let shown = run_in(&dir, "cache", &["catalog", "show", &format!("{train}@1"), "--json"]);
        let names = shown.code(0).json()["aliases"].as_array().unwrap().len();
        assert!(names >= moves.min(1), "an alias never goes back");
        moves = names;
    }
    run_in(&dir, "cache", &["catalog", "tag", &train, "stable"]).code(0);
    run_in(&dir, "cache", &["read", &format!("{train}@stable")]).code(0);
}
