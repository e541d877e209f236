//! The command, as a user runs it: what it prints, and what it refuses.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::cache::{Probe, TierSpec, probe};
use dlfs::import::{ImportOptions, import};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dlfs-sim")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The error text of a refusal; it never panics.
fn refused(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Scenario 1 as a file, with one line replaced.
fn config(folder: &Path, from: &str, to: &str) -> String {
    let text = stdout(&sim(&["config", "--scenario", "1"]));
    assert!(text.contains(from), "{text}");
    let path = folder.join("config.toml");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_thesis_is_printed_as_json_with_the_fields_that_are_promised() {
    let json = stdout(&sim(&["thesis", "--scenario", "1", "--json"]));
    let table: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(table["scenario"], 1);
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 16);
    assert_eq!(rows[1]["policy"], "Naive");
    assert_eq!(rows[1]["thesis"], 27.78);
    let ratio = rows[1]["ratio"].as_f64().unwrap();
    assert!((ratio * 27.78 - rows[1]["seconds"].as_f64().unwrap()).abs() < 1e-9);
}

#[test]
fn a_closed_pipe_ends_the_command_silently() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlfs-sim"));
    let output = command.args(["config", "--scenario", "1"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(2), &b""[..]));
}

#[test]
fn a_configuration_that_was_printed_can_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "samples = 10000", "samples = 500");
    let text = stdout(&sim(&["run", &file]));
    assert!(text.contains("nothing takes less than"));
    for what in ["dlfs clairvoyant", "dlfs peers by hash", "dlfs shard local", "Lower bound"] {
        assert!(text.contains(what), "{what}: {text}");
    }
    assert!(!text.contains("HDMLP") && !text.contains("by plan"), "only what dlfs does: {text}");
    let all = stdout(&sim(&["run", &file, "--all"]));
    assert!(all.contains("HDMLP") && all.contains("dlfs peers by plan"), "{all}");
    let json = stdout(&sim(&["run", &file, "--policy", "naive,hdmlp", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn sizes_come_from_the_files_below_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "batch = 100", "batch = 4");
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("b")).unwrap();
    for (name, len) in [("a", 1_000), ("b/x", 2_000), ("b/y", 3_000), ("c", 4_000)] {
        std::fs::write(data.join(name), vec![0; len]).unwrap();
    }
    let data = data.to_str().unwrap();
    let json = stdout(&sim(&["run", &file, "--policy", "naive", "--dataset", data, "--json"]));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["rows"][0]["outcome"]["origin_bytes"], 10 * 10_000);
    assert!(refused(&["run", &file, "--dataset", "/nowhere/at/all"]).contains("/nowhere/at/all"));
}

#[test]
fn sizes_come_from_a_data_sets_directory_imported_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "batch = 100", "batch = 4");
    let data = folder.path().join("data");
    let image = folder.path().join("data.dlfs");
    std::fs::create_dir(&data).unwrap();
    for (name, len) in [("a", 1_000), ("b", 20_000), ("c", 300_000), ("d", 4)] {
        std::fs::write(data.join(name), vec![7; len]).unwrap();
    }
    let options = ImportOptions::default();
    let connect = ConnectOptions::default();
    let address = [Address::from_path(&image)];
    import(std::slice::from_ref(&data), &address, &options, &connect, &mut ()).unwrap();
    for place in [&data, &image] {
        let place = place.to_str().unwrap();
        let run = ["run", &file, "--policy", "naive", "--json", "--dataset", place];
        let report: serde_json::Value = serde_json::from_str(&stdout(&sim(&run))).unwrap();
        assert_eq!(report["rows"][0]["outcome"]["origin_bytes"], 10 * 321_004);
        let text = stdout(&sim(&["config", "--dataset", place]));
        assert!(text.contains("samples = 4\n") && text.contains("mean_mb = 0.080251"), "{text}");
    }
    let missing = folder.path().join("missing.dlfs");
    assert!(refused(&["run", &file, "--dataset", missing.to_str().unwrap()]).contains("missing"));
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let empty = empty.to_str().unwrap();
    assert!(refused(&["run", &file, "--dataset", empty]).contains("no sample in this folder"));
}

#[test]
fn the_file_that_probing_writes_takes_the_place_of_tiers_and_origin() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "samples = 10000", "samples = 500");
    let tiers: [TierSpec; 1] = ["ram:4M".parse().unwrap()];
    let origin: Arc<dyn Device> = Arc::new(MemNamespace::new(4 << 20, 4096).unwrap());
    let options = Probe { slice: Duration::from_millis(5), ..Probe::default() };
    let probed = probe(&tiers, &[origin], &options).unwrap();
    let tiers = folder.path().join("tiers.toml");
    std::fs::write(&tiers, probed.to_toml()).unwrap();
    let tiers = tiers.to_str().unwrap();
    let run = stdout(&sim(&["run", &file, "--tiers", tiers, "--policy", "clairvoyant"]));
    assert!(run.contains("dlfs clairvoyant"), "{run}");
    let text = stdout(&sim(&["config", "--scenario", "1", "--nodes", "2", "--tiers", tiers]));
    assert!(text.contains("capacity_mb = 4.194304") && text.contains("nodes = 2"), "{text}");
    let converted = folder.path().join("converted.toml");
    std::fs::write(&converted, text).unwrap();
    stdout(&sim(&["run", converted.to_str().unwrap(), "--policy", "naive"]));
    for (from, to, says) in [
        ("[[tier]]", "[[tiers]]", "tiers"),
        ("capacity = \"4194304\"", "capacity = \"-1\"", "-1"),
        ("4194304\"\nthreads = 2", "4194304\"\nthreads = 0", "no thread"),
        ("mb_per_s = ", "mb_per_s = -", "MB/s"),
    ] {
        let text = probed.to_toml();
        assert!(text.contains(from), "{text}");
        std::fs::write(tiers, text.replacen(from, to, 1)).unwrap();
        let why = refused(&["run", &file, "--tiers", tiers]);
        assert!(why.contains(says) && why.contains("tiers.toml"), "{to}: {why}");
    }
}

#[test]
fn a_configuration_with_an_impossible_value_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to, says) in [
        ("nodes = 4", "nodes = 0", "ranks, not 0"),
        ("nodes = 4", "nodes = -1", "nodes"),
        ("nodes = 4", "nodes = 4\nspeed = 1", "speed"),
        ("compute_mb_s = 100.0", "compute_mb_s = 0.0", "compute is 0"),
        ("compute_mb_s = 100.0", "compute_mb_s = -5.0", "compute_mb_s is -5"),
        ("compute_mb_s = 100.0", "compute_mb_s = nan", "compute_mb_s is NaN"),
        ("network_mb_s = 10000.0", "network_mb_s = inf", "network_mb_s is inf"),
        ("origin_mb_s = [[1, 66.0]", "origin_mb_s = [[3, 66.0]", "not sorted"),
        ("origin_mb_s = [[1, 66.0]", "origin_mb_s = [[1, -66.0]", "origin_mb_s is -66"),
        ("capacity_mb = 1024.0", "capacity_mb = -1.0", "staging.capacity_mb is -1"),
        ("threads = 2", "threads = 0", "no thread"),
        ("read_mb_s = [[2, 21164.0]]", "read_mb_s = []", "empty"),
        ("samples = 10000", "samples = 0", "at least one sample"),
        ("samples = 10000", "samples = 99", "smaller than one batch"),
        ("mean_mb = 0.027", "mean_mb = -0.1", "mean_mb is -0.1"),
        ("mean_mb = 0.027", "mean_mb = 9000.0", "4 GiB"),
        ("epochs = 10", "epochs = 0", "at least one epoch"),
        ("batch = 100", "batch = 0", "at least one epoch and one sample a batch"),
        ("scheme = \"uniform\"", "scheme = \"fair\"", "fair"),
        (
            "[[environment.tiers]]",
            "[[environment.tiers]]\ncost_per_gb = -1",
            "tiers[0].cost_per_gb",
        ),
        ("[[environment.tiers]]", "[[environment.tiers]]\ncost_per_gb = nan", "cost_per_gb is NaN"),
    ] {
        let file = config(folder.path(), from, to);
        let why = refused(&["run", &file]);
        assert!(why.contains(says), "{to}: {why}");
        assert!(!why.contains("panicked"), "{why}");
    }
}

#[test]
fn impossible_arguments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "samples = 10000", "samples = 500");
    assert!(refused(&["thesis", "--scenario", "7"]).contains("scenarios 1 to 4"));
    assert!(refused(&["run", "/nowhere.toml"]).contains("/nowhere.toml"));
    assert!(refused(&["advise", &file, "--fraction", "1.5"]).contains("not 1.5"));
    for policy in ["hdmlp", "peers-by-plan"] {
        let why = refused(&["advise", &file, "--policy", policy]);
        assert!(why.contains("what `dlfs read` does") && why.contains("peers-by-hash"), "{why}");
    }
    assert!(refused(&["advise", &file, "--disk-price=-1"]).contains("cost_per_gb is -1"));
    assert!(refused(&["advise", &file, "--memory-price=inf"]).contains("cost_per_gb is inf"));
    assert!(refused(&["sweep", &file]).contains("--memory-gb"));
    assert!(refused(&["sweep", "--memory-gb", "1", "--disk-gb", "1"]).contains("name a file"));
    assert!(refused(&["advise", &file, "--memory-gb=-1"]).contains("capacity_mb is -1000"));
}

#[test]
fn sizes_of_a_tier_that_the_file_lacks_are_refused_and_never_paid_for() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/four-nodes.toml");
    let sizes = ["--memory-gb", "0,0.1", "--fraction", "0.01", "--json"];
    for command in ["advise", "sweep"] {
        let sizes = &sizes[..if command == "advise" { 4 } else { 2 }];
        let why = refused(&[&[command, file, "--disk-gb", "1"], sizes].concat());
        assert!(why.contains("a tier that the configuration lacks"), "{why}");
    }
    let json = stdout(&sim(&[&["advise", file], &sizes[..]].concat()));
    let advice: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(advice["cheapest"][0]["disk_mb"], 0.0, "{advice}");
}

#[test]
fn the_smallest_set_up_of_sc21_runs_and_naive_is_the_slowest() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sc21/mnist.toml");
    let json = stdout(&sim(&["run", "--all", file, "--json"]));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let seconds = |row: &serde_json::Value| row["outcome"]["seconds"].as_f64().unwrap();
    let rows = report["rows"].as_array().unwrap();
    let bound = seconds(&rows[0]);
    let naive = seconds(&rows[1]);
    assert!(rows.iter().all(|row| seconds(row) <= naive && seconds(row) >= bound * 0.99));
}

#[test]
fn advice_names_an_environment_and_its_cost() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "samples = 10000", "samples = 2000");
    let sizes = ["--memory-gb", "0,0.01,0.05,1", "--disk-gb", "0,1"];
    let json =
        stdout(&sim(&[&["advise", &file, "--json", "--fraction", "0.8"], &sizes[..]].concat()));
    let advice: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(advice["cheapest"][1].as_f64().is_some(), "{advice}");
    let text = stdout(&sim(&[&["advise", &file, "--fraction", "0.8"], &sizes[..]].concat()));
    assert!(text.contains("cheapest: "), "{text}");
}

#[test]
fn what_is_cheapest_follows_from_the_costs_in_the_file_and_from_those_that_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let cost = |from: &str, line: &str, more: &[&str]| {
        let file = config(folder.path(), from, &format!("{from}\n{line}"));
        let sizes = ["--fraction", "0.95", "--memory-gb", "0,1", "--disk-gb", "0", "--json"];
        let json = stdout(&sim(&[&["advise", &file], &sizes[..], more].concat()));
        let advice: serde_json::Value = serde_json::from_str(&json).unwrap();
        (advice["cheapest"][0]["memory_mb"].as_f64(), advice["cheapest"][1].as_f64())
    };
    let tiers = "[[environment.tiers]]";
    // A node needs its memory; there are four.
    assert_eq!(cost(tiers, "", &[]), (Some(1_000.0), Some(16.0)));
    assert_eq!(cost(tiers, "cost_per_gb = 2.5", &[]), (Some(1_000.0), Some(10.0)));
    let named = ["--memory-price", "0.25"];
    assert_eq!(cost(tiers, "cost_per_gb = 2.5", &named), (Some(1_000.0), Some(1.0)));
}
