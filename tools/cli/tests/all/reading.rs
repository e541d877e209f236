//! read and shuffle-report: epochs as a training job reads them, stopped and resumed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::units::SampleId;

use crate::common::{self, Served, TestDir, run};

/// The ids that a run wrote with `--ids`.
fn ids(dir: &TestDir, name: &str) -> Vec<u64> {
    let text = fs::read_to_string(dir.path(name)).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Waits until a run has written ids to the file `list`: then it has received batches.
fn wait_until_it_reads(list: &Path) {
    let limit = Instant::now() + Duration::from_secs(120);
    while fs::metadata(list).map_or(0, |metadata| metadata.len()) == 0 {
        assert!(Instant::now() < limit, "the run has received no batch");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn crc_of(ids: &[u64]) -> u32 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    crc32c::crc32c(&bytes)
}

#[test]
fn read_reports_in_the_keys_that_scripts_rely_on() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let list = dir.arg("ids");
    let ran = run(&[
        "read",
        &image,
        "--batch-size",
        "32",
        "--epochs",
        "2",
        "--seed",
        "7",
        "--order",
        "global",
        "--json",
        "--ids",
        &list,
    ])
    .code(0);
    let json = ran.json();
    let bytes: usize = dir.files("source").iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(json["samples"], 600);
    assert_eq!(json["bytes"], 2 * bytes);
    for key in ["seconds", "samples_per_s", "stall_s"] {
        assert!(json[key].as_f64().is_some_and(|value| value >= 0.0), "{key}");
    }
    for key in ["p50", "p99", "max"] {
        assert!(json["batch_us"][key].is_u64(), "{key}");
    }
    assert!(["huge", "transparent", "base"].iter().any(|pages| json["pages"] == *pages));
    assert_eq!(json["resident"], 0, "global order keeps no chunks");
    assert!(json["cpu_s"]["user"].is_f64() && json["cpu_s"]["sys"].is_f64());
    let ids = ids(&dir, "ids");
    assert_eq!(json["order_crc32c"], crc_of(&ids));
    for epoch in ids.chunks(300) {
        assert_eq!(epoch.iter().copied().collect::<BTreeSet<_>>().len(), 300);
    }
    assert_ne!(ids[..300], ids[300..], "each epoch has an order of its own");
    assert!(ran.stderr.is_empty(), "nothing but JSON where nobody watches: {}", ran.stderr);
}

#[test]
fn every_order_delivers_every_sample_once_and_the_seed_decides() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let list = dir.arg("ids");
    let orders: [&[&str]; 5] = [
        &["--order", "sequential"],
        &["--order", "global"],
        &["--order", "grouped", "--lanes", "2", "--group", "2"],
        &["--order", "local"],
        &["--order", "partial", "--exchange", "0.3"],
    ];
    for order in orders {
        let read = |seed: &str| {
            let fixed = ["read", &image, "--json", "--ids", &list, "--seed", seed];
            let json = run(&[&fixed, order].concat()).code(0).json();
            let mut ids = ids(&dir, "ids");
            let crc = json["order_crc32c"].as_u64().unwrap();
            ids.sort_unstable();
            assert_eq!(ids, (0..300).collect::<Vec<_>>(), "{order:?}");
            crc
        };
        let one = read("1");
        let again = read("1");
        let other = read("2");
        assert_eq!(one, again, "{order:?}");
        assert_eq!(one != other, order[1] != "sequential", "{order:?}");
    }
}

#[test]
fn the_ways_to_fetch_differ_in_commands_and_not_in_samples() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let read = |order: &str, batching: &str| {
        let json = run(&["read", &image, "--order", order, "--batching", batching, "--json"])
            .code(0)
            .json();
        (json["order_crc32c"].as_u64().unwrap(), json["commands"].as_u64().unwrap())
    };
    let sample = read("grouped", "sample");
    let chunk = read("grouped", "chunk");
    assert_eq!(sample.0, chunk.0);
    assert!(chunk.1 < sample.1, "{sample:?} {chunk:?}");
    run(&["read", &image, "--batching", "none"]).code(2).complains_of(&["--batching", "none"]);
    run(&["read", &image, "--order", "global", "--batching", "chunk"])
        .code(1)
        .complains_of(&["chunk", "grouped"]);
    let copied = run(&[
        "read",
        &image,
        "--contiguous",
        "--copy-threads",
        "1",
        "--order",
        "grouped",
        "--json",
    ])
    .code(0);
    assert_eq!(copied.json()["order_crc32c"], chunk.0);
}

#[test]
fn ranks_share_an_epoch_and_drop_last_or_pad_make_them_equal() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let shares = |tail: &[&str]| -> Vec<Vec<u64>> {
        (0..7)
            .map(|rank| {
                let list = dir.arg("ids");
                let rank = rank.to_string();
                let fixed = [
                    "read",
                    &image,
                    "--rank",
                    &rank,
                    "--world-size",
                    "7",
                    "--ids",
                    &list,
                    "--batch-size",
                    "6",
                ];
                run(&[&fixed, tail].concat()).code(0);
                ids(&dir, "ids")
            })
            .collect()
    };
    let all = |shares: &[Vec<u64>]| shares.concat().into_iter().collect::<BTreeSet<_>>().len();
    let lens = |shares: &[Vec<u64>]| shares.iter().map(Vec::len).collect::<BTreeSet<_>>();
    let kept = shares(&[]);
    assert_eq!((kept.concat().len(), all(&kept)), (300, 300));
    let dropped = shares(&["--drop-last"]);
    assert_eq!((lens(&dropped), all(&dropped)), (BTreeSet::from([42]), 294));
    let padded = shares(&["--pad"]);
    assert_eq!((lens(&padded), all(&padded)), (BTreeSet::from([43]), 300));
}

#[test]
fn ranks_of_a_node_read_through_one_loader_what_each_would_read_alone() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let job = format!("cli-{}", std::process::id());
    let read = |rank: u32, more: &[&str]| {
        let list = format!("ids-{rank}");
        let path = dir.arg(&list);
        let rank = rank.to_string();
        let fixed = ["read", &image, "--rank", &rank, "--world-size", "3", "--ids", &path];
        run(&[&fixed[..], &["--batch-size", "6", "--epochs", "2"], more].concat()).code(0);
        ids(&dir, &list)
    };
    let alone: Vec<_> = (0..3).map(|rank| read(rank, &[])).collect();
    let together = std::thread::scope(|scope| {
        let ranks = (0..3).map(|rank| {
            let job = &job;
            scope.spawn(move || read(rank, &["--node-loader", "--job", job]))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(together, alone);
    run(&["read", &image, "--local-rank", "0"]).code(2).complains_of(&["--node-loader"]);
}

/// A common complaint about loaders: resuming with another number of ranks and another batch size.
#[test]
fn a_stopped_run_goes_on_with_other_ranks_and_batches_and_delivers_each_sample_once() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    for order in
        [&["--order", "global"][..], &["--order", "grouped", "--lanes", "2", "--group", "2"]]
    {
        let mut delivered = Vec::new();
        let mut state = None;
        // Two epochs of 300: 2 ranks stop in the first epoch, 3 ranks in the second, 1 rank
        // finishes.
        let legs = [("2", "16", Some("64")), ("3", "8", Some("64")), ("1", "50", None)];
        for (world_size, batch, stop_after) in legs {
            let mut states = BTreeSet::new();
            for rank in 0..world_size.parse::<u32>().unwrap() {
                let file = dir.arg("state");
                let list = dir.arg("ids");
                let rank = rank.to_string();
                match &state {
                    Some(text) => fs::write(dir.path("state"), text).unwrap(),
                    None => drop(fs::remove_file(dir.path("state"))),
                }
                let fixed = [
                    "read",
                    &image,
                    "--epochs",
                    "2",
                    "--seed",
                    "5",
                    "--rank",
                    &rank,
                    "--world-size",
                    world_size,
                    "--batch-size",
                    batch,
                    "--state",
                    &file,
                    "--ids",
                    &list,
                    "--json",
                ];
                let mut arguments = [&fixed[..], order].concat();
                if let Some(samples) = stop_after {
                    arguments.extend(["--stop-after", samples]);
                }
                let code = if stop_after.is_some() { 4 } else { 0 };
                run(&arguments).code(code);
                delivered.extend(ids(&dir, "ids"));
                states.insert(fs::read_to_string(dir.path("state")).unwrap());
            }
            assert_eq!(states.len(), 1, "all ranks stop at one point: {states:?}");
            state = states.pop_first();
        }
        let mut counts = vec![0; 300];
        for id in delivered {
            counts[id as usize] += 1;
        }
        assert_eq!(counts, vec![2; 300], "{order:?}: each sample once an epoch");
    }
}

#[test]
fn what_is_refused_names_the_options_of_the_command() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let tiers = dir.arg("tiers.toml");
    for (given, words) in [
        (&["--contiguous", "--copy-threads", "257"][..], &["copy_threads is at most 256"][..]),
        (&["--order", "weighted"], &["--weights", "instead of --order weighted"]),
        (&["--tiers-file", &tiers, "--tier", "ram:1M"], &["--tiers-file", "--tier:"]),
    ] {
        let refused = run(&[&["read", &image][..], given].concat());
        refused.complains_of(words);
    }
    // As the hint says.
    run(&["read", &image, "--weights", "balanced"]).code(0);
}

#[test]
fn a_run_that_is_over_stays_over_and_a_foreign_state_is_refused() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let state = dir.arg("state");
    let read =
        |more: &[&str]| run(&[&["read", &image, "--state", &state, "--json"], more].concat());
    read(&[]).code(0);
    assert_eq!(read(&[]).code(0).json()["samples"], 0);
    assert_eq!(read(&["--epochs", "2"]).code(0).json()["samples"], 300);
    read(&["--epochs", "9", "--seed", "1"]).code(1).complains_of(&["seed"]);
    read(&["--epochs", "9", "--order", "sequential"]).code(1).complains_of(&["order"]);
    fs::write(&state, "{}").unwrap();
    read(&[]).code(1).complains_of(&["state"]);
}

#[test]
fn a_run_in_which_a_rank_reads_nothing_is_not_a_success() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let last = ["read", &image, "--json", "--world-size", "301", "--rank", "300"];
    for more in [&[][..], &["--drop-last"], &["--epochs", "9", "--order", "grouped"]] {
        let ran = run(&[&last[..], more].concat()).code(2);
        ran.complains_of(&["rank 300 of 301 has no sample"]);
        assert!(ran.stdout.is_empty(), "{}", ran.text());
    }
    assert_eq!(run(&[&last[..], &["--pad"]].concat()).code(0).json()["samples"], 1);
}

/// Every byte of every sample is wrong, and all metadata are right.
#[test]
fn a_run_that_delivers_no_sample_is_not_a_success() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let opened = Image::open(&[Address::from_path(&image)], &OpenOptions::default()).unwrap();
    let mut bytes = fs::read(&image).unwrap();
    let mut with_bytes = 0;
    for id in 0..300 {
        let extent = opened.directory().extent(SampleId(id)).unwrap();
        let range = extent.offset_bytes as usize..;
        bytes[range][..extent.len_bytes as usize].iter_mut().for_each(|byte| *byte ^= 0xff);
        with_bytes += u64::from(extent.len_bytes > 0);
    }
    drop(opened);
    fs::write(&image, bytes).unwrap();
    for order in ["global", "grouped", "sequential", "local"] {
        let ran = run(&["read", &image, "--order", order]).code(3);
        assert!(!ran.text().contains("every sample verified"), "{order}: {}", ran.text());
    }
    let verified = run(&["verify", &image, "--json"]).code(3).json();
    assert_eq!(verified["samples"], 300 - with_bytes, "empty ones are whole");
    assert_eq!(verified["damages"].as_array().unwrap().len() as u64, with_bytes);
    for more in [&[][..], &["--json"]] {
        let out = dir.arg(&format!("out{}", more.len()));
        run(&[&["export", &image, &out][..], more].concat()).code(3);
    }
}

#[test]
fn a_run_resumes_with_other_ranks_in_the_lanes_of_its_state_and_is_told_the_cost() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let state = dir.arg("state.json");
    let options = ["read", &image, "--order", "grouped", "--batch-size", "10", "--state", &state];
    let ids = |name: &str| -> Vec<u64> {
        let text = fs::read_to_string(dir.arg(name)).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let front = dir.arg("front");
    run(&[&options[..], &["--stop-after", "60", "--ids", &front]].concat()).code(4);
    let saved = fs::read_to_string(&state).unwrap();
    assert!(saved.contains(r#""kind":"grouped","lanes":8"#), "{saved}");
    for shard in ["strided", "aligned"] {
        let mut all = ids("front");
        for rank in 0..3 {
            fs::write(&state, &saved).unwrap();
            let number = rank.to_string();
            let out = dir.arg(&format!("{shard}{rank}"));
            let more =
                ["--rank", &number, "--world-size", "3", "--shard", shard, "--batching", "chunk"];
            let ran = run(&[&options[..], &more, &["--ids", &out]].concat()).code(0);
            if rank == 0 && shard == "strided" {
                ran.complains_of(&["times the data", "--shard aligned"]);
            }
            all.extend(ids(&format!("{shard}{rank}")));
        }
        all.sort_unstable();
        assert_eq!(all, (0..300).collect::<Vec<_>>(), "{shard}");
    }
    let report = ["shuffle-report", &image, "--order", "grouped", "--world-size", "3"];
    let of_lanes = |more: &[&str]| run(&[&report[..], more, &["--json"]].concat()).code(0).json();
    assert_eq!(of_lanes(&[])["chunk_reads"], 1.0, "a run of three ranks has lanes for three");
    let times = of_lanes(&["--lanes", "8"])["chunk_reads"].as_f64().unwrap();
    let aligned =
        of_lanes(&["--lanes", "8", "--shard", "aligned"])["chunk_reads"].as_f64().unwrap();
    assert!(times > 2.0 && aligned < times, "{times} strided, {aligned} aligned");
}

#[test]
fn usage_errors_have_exit_code_2_and_name_the_option() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let cases: [(&[&str], &str); 11] = [
        (&["--shard", "aligned"], "--order grouped"),
        (&["--shard", "local"], "goes with --peers only"),
        (&["--shard", "evenly"], "aligned"),
        (&["--rank", "2", "--world-size", "2"], "rank 2"),
        (&["--drop-last", "--pad"], "--pad"),
        (&["--stop-after", "5"], "--state"),
        (&["--order", "random"], "random"),
        (&["--order", "global", "--lanes", "4"], "lanes"),
        (&["--batch-size", "0"], "batch_size"),
        (&["--window", "much"], "256MiB"),
        (&["--order", "partial", "--exchange", "2"], "0 to 1"),
    ];
    for (options, named) in cases {
        run(&[&["read", &image], options].concat()).code(2).complains_of(&[named]);
    }
}

#[test]
fn a_signal_ends_a_run_in_order_and_it_goes_on_from_there() {
    use std::process::Stdio;
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let state = dir.path("state");
    let served = Served::start(&image, &[]);
    let mut command = common::dlfs();
    command.args([
        "read",
        &served.address,
        "--epochs",
        "1000000",
        "--batch-size",
        "10",
        "--order",
        "global",
    ]);
    let list = dir.path("ids");
    command.arg("--state").arg(&state).arg("--ids").arg(&list).arg("--json").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    wait_until_it_reads(&list);
    common::signal(&child, "INT");
    assert_eq!(common::wait(&mut child).code(), Some(4));
    let saved: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
    assert!(saved["epoch"].as_u64().unwrap() + saved["consumed"].as_u64().unwrap() > 0, "{saved}");
    let consumed = saved["consumed"].as_u64().unwrap();
    let epochs = (saved["epoch"].as_u64().unwrap() + 1).to_string();
    let rest =
        run(&["read", &image, "--epochs", &epochs, "--state", state.to_str().unwrap(), "--json"]);
    assert_eq!(rest.code(0).json()["samples"], 300 - consumed);
}

#[test]
fn order_prints_the_ids_and_names_that_a_run_delivers_without_reading() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let orders: [&[&str]; 6] = [
        &["--order", "grouped"],
        &["--order", "grouped", "--lanes", "4", "--group", "2", "--shard", "aligned"],
        &["--order", "global", "--seed", "9"],
        &["--order", "sequential"],
        &["--order", "local"],
        &["--weights", "balanced"],
    ];
    for order in orders {
        let ranks = ["--world-size", "2", "--rank", "1", "--batch-size", "16"];
        let all = dir.arg("all-ids");
        let read = ["read", &image, "--epochs", "3", "--ids", &all];
        run(&[&read, &ranks[..], order].concat()).code(0);
        let read = ids(&dir, "all-ids");
        let (_, last) = read.split_at(read.len() / 3 * 2);
        let ask = ["order", &image, "--epoch", "2"];
        let given = run(&[&ask, &ranks[..], order].concat()).code(0);
        let told: Vec<u64> = given.text().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(told, last, "{order:?}");
        let given = run(&[&ask, &ranks[..], order, &["--names", "-0"]].concat()).code(0);
        let names = given.text().split_terminator('\0').map(str::to_owned).collect::<Vec<_>>();
        let opened =
            Image::open(&[Address::from_path(dir.path("train.dlfs"))], &OpenOptions::default());
        let opened = opened.unwrap();
        let found = names.iter().map(|name| opened.lookup(name.as_bytes()).unwrap().0);
        assert_eq!(found.collect::<Vec<_>>(), told, "{order:?}");
    }
    run(&["order", &image, "--null"]).code(2).complains_of(&["--names"]);
    run(&["order", &image, "--rank", "2", "--world-size", "2"]).code(2).complains_of(&["rank 2"]);
}

#[test]
fn shuffle_report_tells_a_global_order_from_none() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let report = |order: &str| {
        run(&["shuffle-report", &image, "--order", order, "--batch-size", "30", "--json"])
            .code(0)
            .json()
    };
    let deviations =
        |json: &serde_json::Value, what: &str| json[what]["deviations"].as_f64().unwrap();
    let none = report("sequential");
    let global = report("global");
    assert_eq!(none["samples"], 300);
    assert_eq!(none["order"]["kind"], "sequential");
    assert!(deviations(&none, "displacement").abs() > 10.0);
    assert!(deviations(&global, "displacement").abs() < 5.0);
    assert!(global["classes"]["num_classes"] == 3);
    let text = run(&["shuffle-report", &image, "--order", "global"]).code(0);
    assert!(text.text().contains("deviations") && text.text().contains("chance"));
    assert!(text.text().contains("verdict: "), "{}", text.text());
    let none = run(&["shuffle-report", &image, "--batch-size", "301"]).code(0);
    assert!(none.text().contains("no whole batch"), "{}", none.text());
}

/// In source order, `local` gives each of three ranks a class of its own; a global batch has all
/// classes.
#[test]
fn shuffle_report_finds_ranks_that_each_see_one_class() {
    let dir = TestDir::with_source();
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    run(&["import", &source, &image, "--placement", "source"]).code(0);
    let report = |order: &str| {
        let ranks = ["--world-size", "3", "--batch-size", "30", "--json"];
        run(&[&["shuffle-report", &image, "--order", order], &ranks[..]].concat()).code(0).json()
    };
    let local = report("local");
    assert_eq!(local["ranks"]["classes_per_share"]["found"], 1.0, "{local}");
    assert!(local["verdict"].as_str().unwrap().starts_with("classes are not mixed"), "{local}");
    let global = report("global");
    assert_eq!(global["ranks"]["classes_per_share"]["found"], 3.0, "{global}");
    assert_eq!(global["ranks"]["batch"], 10);
}

#[test]
fn a_signal_ends_a_run_whose_target_has_frozen_and_its_state_is_kept() {
    let dir = TestDir::with_image();
    let state = dir.path("state");
    let served = Served::start(&dir.arg("train.dlfs"), &[]);
    let mut command = common::dlfs();
    command.args(["read", &served.address, "--epochs", "1000000", "--batch-size", "10", "--quiet"]);
    let list = dir.path("ids");
    command.arg("--state").arg(&state).arg("--ids").arg(&list).stdout(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let consumed = || {
        let text = fs::read_to_string(&state).unwrap_or_default();
        let saved: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        saved["epoch"].as_u64().unwrap_or(0) * 300 + saved["consumed"].as_u64().unwrap_or(0)
    };
    wait_until_it_reads(&list);
    common::signal(&served.child, "STOP");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(consumed(), 0, "the state is written when the run ends");
    common::signal(&child, "TERM");
    let code = common::wait(&mut child).code();
    common::signal(&served.child, "CONT");
    assert_eq!(code, Some(4));
    assert!(consumed() > 0);
}

#[test]
fn an_unwritable_state_file_is_reported_before_the_work() {
    let dir = TestDir::with_image();
    let ran = run(&["read", &dir.arg("train.dlfs"), "--state", &dir.arg("no/such/folder")]);
    ran.code(1).complains_of(&["cannot write the file", "no/such/folder"]);
}

#[test]
fn a_plain_folder_is_described_and_read_without_an_import() {
    let dir = TestDir::with_image();
    let folder = dir.arg("source");
    let stat = run(&["stat", &folder, "--json"]).code(0).json();
    assert_eq!((&stat["samples"], &stat["checksums_learned"]), (&300.into(), &0.into()));
    let stat = run(&["stat", &folder]).code(0);
    assert!(stat.text().contains("0 of 300 known"), "{}", stat.text());
    let image = dir.arg("train.dlfs");
    let batch = ["--seed", "7", "--order", "global", "--json"];
    let read = |what: &String| {
        let json = run(&[&["read", what, "--epochs", "2"], &batch[..]].concat()).code(0).json();
        (json["samples"].clone(), json["bytes"].clone(), json["order_crc32c"].clone())
    };
    assert_eq!(read(&folder), read(&image), "ids are those of the import");
    // A folder stores no checksums, so the first epoch verifies nothing.
    for (epochs, later) in [("1", "0 later reads verified"), ("3", "600 later reads verified")] {
        let ran = run(&["read", &folder, "--epochs", epochs]).code(0);
        let told = format!("300 checksums learned at first read, {later}");
        assert!(ran.text().contains(&told), "{}", ran.text());
    }
    let ran = run(&["read", &image]).code(0);
    assert!(ran.text().contains("every sample verified"), "{}", ran.text());
}

#[test]
fn tiers_change_where_samples_come_from_and_nothing_else() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let cache = dir.arg("cache");
    fs::create_dir(&cache).unwrap();
    let read = |more: &[&str]| {
        let fixed = ["read", &image, "--epochs", "3", "--order", "global", "--json"];
        run(&[&fixed, more].concat()).code(0).json()
    };
    let plain = read(&[]);
    assert!(plain["tiers"].is_null());
    let file = format!("file:{cache}:64M");
    for policy in ["none", "first-touch", "clairvoyant"] {
        let json = read(&["--tier", "ram:200K", "--tier", &file, "--policy", policy]);
        assert_eq!(json["order_crc32c"], plain["order_crc32c"], "{policy}");
        assert_eq!(json["bytes"], plain["bytes"], "{policy}");
        let tiers = json["tiers"]["tiers"].as_array();
        assert_eq!(tiers.map(Vec::len), (policy != "none").then_some(2), "{json}");
    }
    let toml = dir.arg("tiers.toml");
    let tiers = ["--tier", "ram:1M", "--tier", &file, "--threads", "1", "-o", &toml];
    run(&[&["probe", &image], &tiers[..]].concat()).code(0);
    let json = read(&["--tiers-file", &toml]);
    assert_eq!(json["order_crc32c"], plain["order_crc32c"]);
    let json = read(&["--tiers-file", "auto", "--tier", "ram:8M"]);
    assert_eq!(json["tiers"]["tiers"][0]["name"], format!("ram:{}", 8 << 20), "{json}");
    run(&["read", &image, "--tier", "ram:4X"]).code(2).complains_of(&["ram:4X"]);
    run(&["read", &image, "--tier", "file:/nonexistent:4M"]).code(1).complains_of(&["nonexistent"]);
    fs::write(dir.path("bad.toml"), "[[tier]]\nbackend = \"tape\"").unwrap();
    run(&["read", &image, "--tiers-file", &dir.arg("bad.toml")])
        .code(1)
        .complains_of(&["bad.toml"]);
}
