//! Tiers shared by processes: two in one folder, one that is killed while it copies, and the output
//! of probe.

use std::fs;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{TestDir, dlfs, run, wait};

/// A `dlfs read` that runs until it is killed.
struct Endless(Child);

impl Endless {
    fn start(image: &str, tier: &str) -> Endless {
        let mut command = dlfs();
        command.args(["read", image, "--tier", tier, "--epochs", "1000000", "--json"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Endless(child.expect("dlfs starts"))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        // SIGKILL: none of its code runs any more. It may have ended by itself, with an error.
        let _ = self.0.kill();
        wait(&mut self.0);
    }
}

fn read(image: &str, tiers: &[&str]) -> Value {
    let fixed = ["read", image, "--epochs", "2", "--seed", "5", "--json"];
    run(&[&fixed, tiers].concat()).code(0).json()
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "waited for {what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_second_process_on_a_tier_attaches_to_the_first() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let cache = dir.arg("cache");
    fs::create_dir(&cache).unwrap();
    let tier = format!("file:{cache}:64M");
    let mut first = Endless::start(&image, &tier);
    let owner = Value::from(first.0.id());
    wait_for("the first process to have the tier", || {
        read(&image, &["--tier", &tier])["tiers"]["owner"] == owner
    });
    let with = read(&image, &["--tier", &tier]);
    let without = read(&image, &[]);
    assert_eq!(with["order_crc32c"], without["order_crc32c"]);
    assert_eq!(with["tiers"]["owner"], owner);
    assert!(first.0.try_wait().unwrap().is_none(), "the first one reads on");
    drop(first);
    let alone = read(&image, &["--tier", &tier]);
    assert_eq!(alone["order_crc32c"], without["order_crc32c"], "its lock went with it");
    assert_eq!(alone["tiers"]["owner"], Value::Null);
}

/// Five random moments, or as many as the variable says.
#[test]
fn a_kill_of_the_owner_at_any_moment_harms_no_reader() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let cache = dir.arg("cache");
    fs::create_dir(&cache).unwrap();
    let tier = format!("file:{cache}:64M");
    let epochs = ["--epochs", "300"];
    let plain: Value = {
        let plain = dlfs().args(["read", &image, "--json"]).args(epochs).output().unwrap();
        serde_json::from_slice(&plain.stdout).unwrap()
    };
    let kills: u32 =
        std::env::var("DLFS_TEST_KILLS").map_or(5, |kills| kills.parse().expect("a number"));
    let mut state = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {state}");
    for kill in 0..kills {
        let owner = Endless::start(&image, &tier);
        let pid = Value::from(owner.0.id());
        wait_for("the first process to have the tier", || {
            read(&image, &["--tier", &tier])["tiers"]["owner"] == pid
        });
        let readers = [(); 3].map(|()| {
            let mut command = dlfs();
            command.args(["read", &image, "--tier", &tier, "--json"]).args(epochs);
            command.stdout(Stdio::piped()).spawn().expect("dlfs starts")
        });
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_millis((state >> 33) % 400));
        drop(owner);
        for reader in readers {
            let output = reader.wait_with_output().unwrap();
            assert!(output.status.success(), "kill {kill}: {}", output.status);
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(json["order_crc32c"], plain["order_crc32c"], "kill {kill}");
            assert_eq!(json["bytes"], plain["bytes"], "kill {kill}");
            assert_eq!(json["tiers"]["tiers"][0]["damaged"], 0, "kill {kill}: {json}");
        }
    }
}

#[test]
fn a_run_that_ends_leaves_all_that_it_has_read_in_its_tier() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("source")).unwrap();
    for file in 0..6u8 {
        let bytes: Vec<u8> =
            (0..4 << 20).map(|at: u32| (at >> 8) as u8 ^ at as u8 ^ file).collect();
        fs::write(dir.path("source").join(file.to_string()), bytes).unwrap();
    }
    let image = dir.arg("large.dlfs");
    run(&["import", &dir.arg("source"), &image]).code(0);
    for round in 0..3 {
        let cache = dir.arg(&format!("cache{round}"));
        fs::create_dir(&cache).unwrap();
        let tier = format!("file:{cache}:64M");
        let once = || run(&["read", &image, "--tier", &tier, "--json"]).code(0).json();
        once();
        let again = once();
        assert_eq!(again["tiers"]["origin"]["bytes"], 0, "{again}");
        assert_eq!(again["tiers"]["tiers"][0]["hit_bytes"], 24 << 20, "{again}");
    }
}

#[test]
fn copies_of_a_killed_process_are_whole_or_not_there() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let plain = read(&image, &[]);
    let mut restored = 0;
    for (round, delay_ms) in [Some(0), Some(5), Some(20), Some(60), None].into_iter().enumerate() {
        let cache = dir.arg(&format!("cache{round}"));
        fs::create_dir(&cache).unwrap();
        let tier = format!("file:{cache}:64M");
        let process = Endless::start(&image, &tier);
        wait_for("the tier's file", || fs::read_dir(&cache).unwrap().next().is_some());
        match delay_ms {
            Some(delay_ms) => sleep(Duration::from_millis(delay_ms)),
            // The last one has copied all.
            None => wait_for("jobs that read nothing from the image", || {
                read(&image, &["--tier", &tier])["tiers"]["origin"]["bytes"] == 0
            }),
        }
        drop(process);
        let json = read(&image, &["--tier", &tier]);
        assert_eq!(json["order_crc32c"], plain["order_crc32c"], "after {delay_ms:?} ms");
        assert_eq!(json["bytes"], plain["bytes"]);
        let tier = &json["tiers"]["tiers"][0];
        assert_eq!(tier["damaged"], 0, "after {delay_ms:?} ms: {tier}");
        restored += tier["restored"].as_u64().unwrap();
    }
    assert!(restored > 0, "not even the last had copied anything");
}

#[test]
fn a_probe_file_is_read_unchanged_and_edited() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let cache = dir.arg("cache");
    let toml = dir.arg("t.toml");
    fs::create_dir(&cache).unwrap();
    let file = format!("file:{cache}:8M");
    run(&["probe", &image, "--tier", "ram:1M", "--tier", &file, "--threads", "1,2", "-o", &toml])
        .code(0);
    let text = fs::read_to_string(&toml).unwrap();
    for key in
        ["[[tier]]", "backend = \"memory\"", "backend = \"filesystem\"", "capacity", "mb_per_s"]
    {
        assert!(text.contains(key), "{key} in:\n{text}");
    }
    assert_eq!(
        read(&image, &["--tiers-file", &toml])["tiers"]["tiers"].as_array().unwrap().len(),
        2
    );
    let edited = format!("policy = \"clairvoyant\"\ncopy_bandwidth = \"50M\"\n{text}");
    fs::write(&toml, edited.replacen("\n[[", "\nstop_at_first_failure = true\n\n[[", 1)).unwrap();
    let with = read(&image, &["--tiers-file", &toml]);
    let without = read(&image, &[]);
    assert_eq!(with["order_crc32c"], without["order_crc32c"]);
    let both = ["read", &image, "--tiers-file", &toml, "--tier", "ram:1M"];
    run(&both).code(1).complains_of(&["--tiers-file", "tiers"]);
    fs::write(&toml, text.replacen("mb_per_s = ", "mb_per_s = -", 1)).unwrap();
    run(&["read", &image, "--tiers-file", &toml]).code(1).complains_of(&["t.toml", "MB/s"]);
}

#[test]
fn a_run_reports_hits_and_waiting_time_of_each_tier() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let json = read(&image, &["--tier", "ram:64M"]);
    let tier = &json["tiers"]["tiers"][0];
    for key in ["hits", "hit_bytes", "hit_s", "fills", "fill_bytes", "fill_s"] {
        assert!(tier[key].as_f64().is_some_and(|value| value >= 0.0), "{key} in {tier}");
    }
    let origin = &json["tiers"]["origin"];
    assert!(origin["bytes"].as_u64() > Some(0), "{origin}");
    assert!(json["stall_s"].is_f64());
    let ran = run(&["read", &image, "--tier", "ram:64M", "--epochs", "3"]).code(0);
    for word in ["tier ", "hits", "copied", "origin", "stall"] {
        assert!(ran.text().contains(word), "{word} in:\n{}", ran.text());
    }
}
