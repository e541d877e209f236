//! Plays the day of a service in `operators_day.sh`, as it is written there, and checks what the jobs have read.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{TestDir, finish, free_port, run};

const DAY: &str = include_str!("operators_day.sh");

/// Preconditions of the day's commands: pages of metrics can be fetched, and nothing outlives the day.
const BEFORE: &str = r#"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
command -v curl >/dev/null || curl() {
    local address=${2#http://}
    exec 3<>"/dev/tcp/${address%%:*}/$(echo "${address#*:}" | cut -d/ -f1)"
    printf 'GET /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "${address#*/}" >&3
    cat <&3
}
"#;

#[test]
fn the_operators_day_goes_as_written_and_no_job_misses_or_repeats_a_sample() {
    let dir = TestDir::with_image();
    std::fs::copy(dir.path("train.dlfs"), dir.path("more.dlfs")).unwrap();
    let commands = with_free_ports(DAY);
    for must in ["list-hosts", "curl", "add-ns", "kill -HUP", "new.key", "drain", "wait $SERVICE"] {
        assert!(commands.contains(must), "the day is not what it was: no {must}");
    }
    let mut shell = Command::new("bash");
    shell.args(["-euc", &format!("{BEFORE}{commands}")]).current_dir(dir.path(""));
    let program = Path::new(env!("CARGO_BIN_EXE_dlfs")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", program.display())).env("HOME", dir.path("home"));
    let ran = finish(shell);
    let said = format!("{}\n{}", ran.text(), ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{commands}\n{said}");
    for part in
        ["dlfs_target_controllers{", "nsid=3", "no subsystem, namespace or host has changed"]
    {
        assert!(ran.text().contains(part), "nothing says {part}:\n{said}");
    }
    let samples = run(&["stat", &dir.arg("train.dlfs"), "--json"]).code(0).json();
    let samples = samples["samples"].as_u64().expect("a number of samples") as usize;
    let shuffled = each_once(&dir, "node7", samples);
    let sequential = each_once(&dir, "eval", samples);
    assert!(shuffled > 2 * samples && sequential > 2 * samples, "{shuffled} and {sequential}");
    check_access_log(&dir);
}

/// Checks that a job had each sample once an epoch, also in the epochs in which the service was away, and that its
/// report counts what it had; returns how many samples that were.
fn each_once(dir: &TestDir, job: &str, samples: usize) -> usize {
    let ids = std::fs::read_to_string(dir.path(&format!("{job}.ids"))).unwrap();
    let ids: Vec<u64> = ids.lines().map(|line| line.parse().unwrap()).collect();
    for (epoch, ids) in ids.chunks(samples).enumerate() {
        let different: BTreeSet<u64> = ids.iter().copied().collect();
        assert_eq!(different.len(), ids.len(), "{job} had a sample twice in epoch {epoch}");
        assert!(different.iter().all(|id| (*id as usize) < samples));
    }
    let report = std::fs::read_to_string(dir.path(&format!("{job}.json"))).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["samples"].as_u64(), Some(ids.len() as u64), "{report}");
    ids.len()
}

fn check_access_log(dir: &TestDir) {
    let text = std::fs::read_to_string(dir.path("access.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |event: &str, host: &str| {
        let host = format!("nqn.2026-11.com.example:{host}");
        lines.iter().filter(|line| line["event"] == event && line["host"] == host.as_str()).count()
    };
    let at = |event: &str| lines.iter().position(|line| line["event"] == event).unwrap();
    let sent_away = lines[at("draining")..at("stopped")].iter();
    let sent_away = sent_away.filter(|line| line["event"] == "disconnected").count();
    assert_eq!(sent_away, 2, "both jobs were sent away for the upgrade:\n{text}");
    let refused = lines.iter().filter(|line| line["event"] == "refused");
    for line in refused {
        let why = line["why"].as_str().unwrap();
        assert_eq!(why, "the target drains before it stops", "{line}");
    }
    assert_eq!(count("not-authenticated", "node7"), 1, "only the old key in the evening:\n{text}");
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!((of("started"), of("stopped"), of("reload-refused")), (2, 2, 0), "{text}");
    for name in ["old.key", "new.key"] {
        let key = std::fs::read_to_string(dir.path(name)).unwrap();
        assert!(!text.contains(&key[10..30]), "a key is in the log");
    }
}

fn with_free_ports(commands: &str) -> String {
    let mut commands = commands.to_owned();
    for port in ["4420", "9410"] {
        let free = format!("127.0.0.1:{}", free_port());
        commands = commands.replace(&format!("127.0.0.1:{port}"), &free);
    }
    commands
}
