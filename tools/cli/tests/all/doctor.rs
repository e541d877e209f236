//! `dlfs doctor` of targets, data sets, folders and object stores: each line is right, and the last says what bounds.

#[path = "../../../../tests/support/object_store.rs"]
#[allow(dead_code, unreachable_pub)] // a part of it is used
pub(crate) mod object_store;

use std::collections::BTreeMap;

use object_store::ObjectStore;
use serde_json::Value;

use crate::common::{self, Ran, Served, TestDir, dlfs, finish, refusing};

/// The checks by their names, in a run that measures for a moment, and the run.
struct Checks {
    order: Vec<String>,
    by_name: BTreeMap<String, Value>,
    ran: Ran,
}

fn doctor(arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    let mut command = dlfs();
    command.args(["doctor", "--seconds", "0.1"]).args(arguments).envs(environment.iter().copied());
    finish(command)
}

/// The environment variables that lead to a store of a test.
pub(crate) fn environment(endpoint: &str) -> [(&str, &str); 5] {
    [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ALLOW_HTTP", "true"),
    ]
}

#[track_caller]
fn checks(address: &str, environment: &[(&str, &str)], code: i32) -> Checks {
    let ran = doctor(&[address, "--json"], environment).code(code);
    let lines = ran.text().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let name = |line: &Value| line["check"].as_str().unwrap().to_owned();
    for line in &lines {
        assert_eq!(
            line["good"] == false,
            name(line) != "bound" && line["mend"].is_string(),
            "{line}"
        );
    }
    Checks {
        order: lines.iter().map(name).collect(),
        by_name: lines.iter().map(|line| (name(line), line.clone())).collect(),
        ran,
    }
}

impl Checks {
    #[track_caller]
    fn found(&self, check: &str, words: &[&str]) {
        let line =
            self.by_name.get(check).unwrap_or_else(|| panic!("no {check}: {:?}", self.order));
        let found = line["found"].as_str().unwrap();
        assert!(words.iter().all(|word| found.contains(word)), "{words:?}: {line}");
    }

    #[track_caller]
    fn is_unneeded(&self, check: &str) {
        self.found(check, &["not needed for what you do: "]);
        assert_eq!(self.by_name[check]["needed"], false);
    }

    /// Checks the measurements that are made whatever is read.
    #[track_caller]
    fn have_rates(&self) {
        self.found("round trip", &["the median of"]);
        for check in ["one queue pair", "four queue pairs", "small reads"] {
            self.found(check, &["B/s", "reads/s of", "our busiest thread ran"]);
        }
        self.found("clock", &[" x "]);
        assert_eq!(self.order.last().map(|name| &**name), Some("bound"));
        self.found("bound", &["bound", "/s"]);
    }
}

#[test]
fn a_target_is_read_and_its_path_is_looked_at() {
    let dir = TestDir::with_image();
    let served = Served::start(&dir.arg("train.dlfs"), &[]);
    let found = checks(&served.address, &[], 0);
    found.have_rates();
    assert_eq!(found.order[..2], ["reachable", "data"]);
    found.found("reachable", &["TCP connects in"]);
    found.found("data", &["300 samples of about", "engine tcp"]);
    found.found("MTU", &["loopback"]);
    found.found("buffers", &["tcp_rmem allows"]);
    assert!(found.by_name.contains_key("congestion"));
    found.is_unneeded("digests");
    found.is_unneeded("SPDK");
    found.found("bound", &["Samples of", "a second"]);
    // For people: no JSON, and a mark before each line.
    let text = doctor(&[&served.address], &[]).code(0);
    let marks = ["  ok    ", "  look  ", "  -     ", "      "];
    let mut lines = text.text().lines();
    assert_eq!(lines.next(), Some(&*served.address));
    assert!(lines.all(|line| marks.iter().any(|mark| line.starts_with(mark))), "{}", text.text());

    let digests = checks(&served.address, &[], 0);
    digests.is_unneeded("digests");
    let ran = doctor(&[&served.address, "--data-digest", "--json"], &[]).code(0);
    assert!(ran.text().contains("the digests of NVMe/TCP are on"), "{}", ran.text());
}

#[test]
fn a_target_that_is_not_there_is_named_with_what_to_do() {
    let dir = TestDir::with_image();
    let (_bound, free) = refusing();
    let gone = format!("nvme-tcp://{free}/nqn.2026-11.io.dlfs:train");
    let found = checks(&gone, &[], 1);
    assert_eq!(found.order, ["reachable"]);
    found.found("reachable", &["no TCP connection", &free]);
    let found = checks("nvme-tcp://no-such-host.invalid/nqn.2026-11.io.dlfs:train", &[], 1);
    found.found("reachable", &["no-such-host.invalid does not resolve"]);
    // Each of several hosts is tried.
    let served = Served::start(&dir.arg("train.dlfs"), &[]);
    let found = checks(&format!("{},{gone}", served.address), &[], 1);
    assert_eq!(found.order, ["reachable", "reachable"]);
    assert!(found.ran.text().contains(&free), "{}", found.ran.text());
    // A target that answers and has no such subsystem.
    let found = checks(&served.address.replace(":train", ":typo"), &[], 1);
    assert_eq!(found.order, ["reachable", "data"]);
    found.found("data", &["no such subsystem", "typo"]);
    assert!(found.by_name["data"]["mend"].as_str().unwrap().contains("dlfs discover"));
    found.ran.complains_of(&["typo"]);
}

#[test]
fn data_on_this_machine_need_no_network() {
    let dir = TestDir::with_image();
    std::fs::write(dir.path("raw"), vec![7; 1 << 20]).unwrap();
    let named = format!("dlfs://{}/train", dir.arg("catalog"));
    common::run(&["catalog", "add", &named, &dir.arg("train.dlfs")]).code(0);
    for address in ["train.dlfs", "raw", "source"].map(|name| dir.arg(name)).iter().chain([&named])
    {
        let found = checks(address, &[], 0);
        found.have_rates();
        for check in ["network", "digests", "SPDK"] {
            found.is_unneeded(check);
        }
        assert!(!found.by_name.contains_key("MTU"), "{:?}", found.order);
    }
    checks(&dir.arg("raw"), &[], 0).found("data", &["no data set"]);
    checks(&named, &[], 0).found("name", &["stands for", "train.dlfs", "the first of 1 site"]);
    let found = checks(&format!("{named}-typo"), &[], 1);
    assert_eq!(found.order, ["name"]);
    // Nothing is there, and nothing can be read.
    let found = checks(&dir.arg("gone.dlfs"), &[], 1);
    assert_eq!(found.order, ["data"]);
    found.found("data", &["gone.dlfs", "No such file"]);
    std::fs::write(dir.path("empty"), b"").unwrap();
    let found = checks(&dir.arg("empty"), &[], 1);
    assert_eq!(found.by_name["data"]["good"], false);
}

#[test]
fn objects_of_a_store_are_read_and_what_cannot_be_seen_is_said() {
    let dir = TestDir::with_source();
    let store = ObjectStore::good();
    for (path, bytes) in dir.files("source") {
        store.put(&format!("train/{}", path.to_str().unwrap()), bytes);
    }
    let endpoint = store.endpoint();
    let environment = environment(&endpoint);
    let found = checks("s3://bucket/train", &environment, 0);
    found.have_rates();
    found.found("data", &["300 samples", "engine objects (s3)"]);
    found.found("network", &["not looked at", "the client of the store"]);
    found.is_unneeded("digests");
    found.is_unneeded("SPDK");
    let found = checks("s3://bucket/typo", &environment, 1);
    assert_eq!(found.by_name["data"]["good"], false);
    assert!(!found.ran.text().contains("secret") && !found.ran.stderr.contains("secret"));
}

#[test]
fn without_an_address_this_machine_is_healthy_and_options_are_what_spdk_needs() {
    let ran = doctor(&[], &[]).code(0);
    assert!(ran.text().starts_with("healthy: "), "{}", ran.text());
    assert!(ran.text().contains("huge pages"), "{}", ran.text());
}
