//! read --mix: several data sets as one sequence.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{self, Ran, Served, TestDir, run};

/// `train.dlfs` with 300 samples, and `more.dlfs` with 50, all of which have bytes.
fn two_images() -> TestDir {
    let dir = TestDir::with_image();
    fs::create_dir_all(dir.path("more")).unwrap();
    for index in 0..50_usize {
        let bytes: Vec<u8> = (0..2000 + 37 * index).map(|at| (at * (index + 3)) as u8).collect();
        fs::write(dir.path("more").join(format!("{index:03}.bin")), bytes).unwrap();
    }
    run(&["import", &dir.arg("more"), &dir.arg("more.dlfs")]).code(0);
    dir
}

/// `dlfs read train.dlfs --part PART --mix more.dlfs=PART`, with more options.
fn read_mixed(dir: &TestDir, parts: [&str; 2], more: &[&str]) -> Ran {
    let first = dir.arg("train.dlfs");
    let second = format!("{}={}", dir.arg("more.dlfs"), parts[1]);
    run(&[&["read", &first, "--part", parts[0], "--mix", &second][..], more].concat())
}

/// The source and the id of each sample that a run wrote with `--ids`.
fn drawn(dir: &TestDir, name: &str) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(dir.path(name)).unwrap();
    let pair = |line: &str| -> Option<(u64, u64)> {
        let (source, id) = line.split_once(' ')?;
        Some((source.parse().ok()?, id.parse().ok()?))
    };
    text.lines().map(|line| pair(line).unwrap_or_else(|| panic!("{line:?}"))).collect()
}

/// Samples and bytes of each source in a report.
fn counts(json: &Value) -> Vec<(u64, u64)> {
    let sources = json["sources"].as_array().unwrap_or_else(|| panic!("{json}"));
    let number = |source: &Value, key: &str| source[key].as_u64().unwrap();
    sources.iter().map(|source| (number(source, "samples"), number(source, "bytes"))).collect()
}

#[test]
fn a_mixture_has_exact_counts_and_the_bytes_of_each_image() {
    let dir = two_images();
    let list = dir.arg("ids");
    let lens: Vec<Vec<u64>> = ["source", "more"]
        .iter()
        .map(|name| dir.files(name).iter().map(|(_, bytes)| bytes.len() as u64).collect())
        .collect();
    for order in ["global", "grouped", "sequential"] {
        let options = [
            "--epoch-size",
            "400",
            "--epochs",
            "2",
            "--batch-size",
            "40",
            "--seed",
            "7",
            "--order",
            order,
            "--json",
            "--ids",
            &list,
        ];
        let json = read_mixed(&dir, ["0.7", "0.3"], &options).code(0).json();
        let drawn = drawn(&dir, "ids");
        assert_eq!((json["samples"].as_u64(), drawn.len()), (Some(800), 800), "{order}");
        let expected: Vec<(u64, u64)> = (0..2)
            .map(|source| {
                let ids = drawn.iter().filter(|sample| sample.0 == source);
                let lens = ids.map(|sample| lens[source as usize][sample.1 as usize]);
                (lens.clone().count() as u64, lens.sum())
            })
            .collect();
        assert_eq!(counts(&json), expected, "{order}");
        assert_eq!((expected[0].0, expected[1].0), (560, 240), "{order}");
        assert_eq!(json["bytes"], expected[0].1 + expected[1].1);
        for (image, source) in
            ["train.dlfs", "more.dlfs"].iter().zip(json["sources"].as_array().unwrap())
        {
            assert_eq!(source["image"], dir.arg(image));
        }
        for epoch in drawn.chunks(400) {
            assert_eq!(epoch.iter().filter(|sample| sample.0 == 0).count(), 280, "{order}");
        }
        for batch in drawn.chunks(40) {
            let first = batch.iter().filter(|sample| sample.0 == 0).count();
            assert!((26..=30).contains(&first), "{order}: {first} of 40, and the share is 28");
        }
        // The small image comes round each 50 samples, with every sample once.
        let small: Vec<u64> =
            drawn.iter().filter(|sample| sample.0 == 1).map(|sample| sample.1).collect();
        for round in small.chunks_exact(50) {
            assert_eq!(
                round.iter().copied().collect::<BTreeSet<_>>(),
                (0..50).collect(),
                "{order}"
            );
        }
        assert_eq!(small[..50] == small[50..100], order == "sequential", "{order}: shuffled anew");
        let keys: Vec<u8> =
            drawn.iter().flat_map(|(source, id)| (source << 40 | id).to_le_bytes()).collect();
        assert_eq!(json["order_crc32c"], crc32c::crc32c(&keys), "{order}");
    }
}

#[test]
fn repeat_choose_ways_to_batch_and_phases_say_what_an_epoch_has() {
    let dir = two_images();
    let list = dir.arg("ids");
    let read = |parts: [&str; 2], more: &[&str]| {
        let json = read_mixed(&dir, parts, &[&["--json", "--ids", &list][..], more].concat())
            .code(0)
            .json();
        counts(&json).iter().map(|count| count.0).collect::<Vec<_>>()
    };
    assert_eq!(read(["repeat:0.5", "repeat:3"], &[]), [150, 150]);
    assert_eq!(
        read(["choose:30", "choose:120"], &["--mix-batching", "random", "--epochs", "2"]),
        [60, 240]
    );
    assert_eq!(
        read(["6", "1"], &[]),
        [300, 50],
        "an epoch of weights has as many samples as all images"
    );
    let options = ["--mix-batching", "per-source", "--batch-size", "32", "--epoch-size", "320"];
    assert_eq!(read(["1", "1"], &options), [160, 160]);
    for batch in drawn(&dir, "ids").chunks(32) {
        assert!(batch.iter().all(|sample| sample.0 == batch[0].0), "{batch:?}");
    }
    let options =
        ["--epoch-size", "100", "--epochs", "2", "--phase", "100:0,1", "--batch-size", "10"];
    assert_eq!(read(["1", "0"], &options), [100, 100]);
    assert!(drawn(&dir, "ids")[..100].iter().all(|sample| sample.0 == 0));
    // A plain folder is mixed as any image is; what was verified is told of all.
    let image = dir.arg("train.dlfs");
    let folder = format!("{}=choose:100", dir.arg("more"));
    let ran = run(&["read", &image, "--part", "choose:10", "--mix", &folder]).code(0);
    let text = ran.text();
    for part in [
        "train.dlfs: 10 samples",
        "more: 100 samples",
        "90.91 % of the samples",
        "50 checksums learned",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("60 later reads verified"), "{text}");
}

#[test]
fn a_mixture_goes_on_with_other_ranks_and_batches_and_refuses_another_s_state() {
    let dir = two_images();
    let state = dir.arg("state");
    let list = dir.arg("ids");
    let read = |parts: [&str; 2], more: &[&str]| {
        read_mixed(
            &dir,
            parts,
            &[&["--epochs", "2", "--order", "grouped", "--ids", &list][..], more].concat(),
        )
    };
    read(["2", "1"], &[]).code(0);
    let mut whole = drawn(&dir, "ids");
    read(["2", "1"], &["--state", &state, "--stop-after", "96", "--batch-size", "24"]).code(4);
    let mut parts = drawn(&dir, "ids");
    assert_eq!(parts, whole[..96]);
    let stopped = fs::read(&state).unwrap();
    for rank in ["0", "1", "2"] {
        fs::write(&state, &stopped).unwrap();
        read(
            ["2", "1"],
            &["--state", &state, "--batch-size", "10", "--rank", rank, "--world-size", "3"],
        )
        .code(0);
        parts.extend(drawn(&dir, "ids"));
    }
    whole.sort_unstable();
    parts.sort_unstable();
    assert_eq!(parts, whole);
    fs::write(&state, &stopped).unwrap();
    read(["2", "2"], &["--state", &state]).code(1).complains_of(&["more.dlfs", "another part"]);
    let alone = run(&["read", &dir.arg("train.dlfs"), "--state", &state, "--order", "grouped"]);
    alone.code(1).complains_of(&["state"]);
    assert_eq!(fs::read(&state).unwrap(), stopped, "a refused state is left as it is");
}

#[test]
fn what_makes_no_mixture_is_refused_before_the_first_batch() {
    let dir = two_images();
    let refused = |parts: [&str; 2], more: &[&str], code: i32, words: &[&str]| {
        let list = dir.arg("never");
        read_mixed(&dir, parts, &[&["--ids", &list][..], more].concat())
            .code(code)
            .complains_of(words);
        assert!(fs::read(&list).unwrap_or_default().is_empty(), "{words:?}: a batch was read");
    };
    refused(["1", "0"], &[], 1, &["more.dlfs", "part of 0"]);
    refused(["choose:0", "choose:1"], &[], 1, &["train.dlfs", "part of 0"]);
    let again = format!("{}=1", dir.arg("train.dlfs"));
    refused(["1", "1"], &["--mix", &again], 1, &["train.dlfs", "the same data set", "once"]);
    refused(["1", "repeat:2"], &[], 1, &["train.dlfs", "weight", "more.dlfs", "number of samples"]);
    refused(["choose:1", "choose:2"], &["--epoch-size", "9"], 1, &["3 samples", "size of 9"]);
    refused(["1", "1"], &["--phase", "9:1,2,3"], 1, &["3 weights for 2 sources"]);
    refused(["1", "1"], &["--order", "local"], 1, &["mixture", "order"]);
    refused(["1", "x"], &[], 2, &["--mix", "weight"]);
    refused(["1", "1"], &["--mix-batching", "chunk"], 2, &["--mix-batching", "per-source"]);
    for option in [["--tier", "ram:1M"], ["--view", "v"], ["--snapshot", "s"], ["--peers", "auto"]]
    {
        refused(["1", "1"], &option, 2, &["--mix", option[0]]);
    }
    let image = dir.arg("train.dlfs");
    for option in ["--part", "--epoch-size", "--phase"] {
        let value = if option == "--phase" { "1:1" } else { "1" };
        run(&["read", &image, option, value]).code(2).complains_of(&["--mix"]);
    }
    run(&["read", &image, "--mix", &dir.arg("more.dlfs"), "--part", "1"])
        .code(2)
        .complains_of(&["--mix", "no part"]);
    run(&["read", &image, "--mix", &again]).code(2).complains_of(&["--part"]);
    run(&["read", &image, "--part", "1", "--mix", "nowhere.dlfs=1"])
        .code(1)
        .complains_of(&["nowhere.dlfs"]);
}

#[test]
fn a_damaged_sample_of_a_mixture_is_refused() {
    let dir = two_images();
    let mut bytes = fs::read(dir.path("more.dlfs")).unwrap();
    // A stretch that stands in one sample of the data set: found by its bytes, wherever it lies.
    let sample = fs::read(dir.path("more").join("031.bin")).unwrap();
    let at = bytes.windows(sample.len()).position(|window| window == sample).unwrap();
    bytes[at + 1000] ^= 1;
    fs::write(dir.path("more.dlfs"), bytes).unwrap();
    read_mixed(&dir, ["choose:300", "choose:50"], &[])
        .code(3)
        .complains_of(&["sample 31", "more.dlfs"]);
    let ran = read_mixed(&dir, ["repeat:1", "choose:1"], &["--order", "sequential"]).code(0);
    assert!(ran.text().starts_with("301 samples"), "what is not damaged is read: {}", ran.text());
}

#[test]
fn ranks_of_a_mixture_are_made_equal_by_drop_last_or_pad() {
    let dir = two_images();
    let list = dir.arg("ids");
    for order in ["global", "grouped"] {
        let shares = |tail: &[&str]| -> Vec<Vec<(u64, u64)>> {
            let share = |rank: u32| {
                let rank = rank.to_string();
                let fixed =
                    ["--rank", &rank, "--world-size", "7", "--ids", &list, "--batch-size", "7"];
                let fixed = [&fixed[..], &["--order", order, "--epoch-size", "251"], tail].concat();
                read_mixed(&dir, ["0.7", "0.3"], &fixed).code(0);
                drawn(&dir, "ids")
            };
            (0..7).map(share).collect()
        };
        let lens =
            |shares: &[Vec<(u64, u64)>]| shares.iter().map(Vec::len).collect::<BTreeSet<_>>();
        let sorted = |shares: &[Vec<(u64, u64)>]| {
            let mut all = shares.concat();
            all.sort_unstable();
            all
        };
        let kept = shares(&[]);
        assert_eq!(lens(&kept), BTreeSet::from([35, 36]), "{order}");
        let whole = sorted(&kept);
        assert_eq!(whole.len(), 251);
        assert_eq!(whole.iter().filter(|sample| sample.0 == 0).count(), 176, "{order}");
        // 251 is 7 * 35 + 6.
        let dropped = shares(&["--drop-last"]);
        assert_eq!(lens(&dropped), BTreeSet::from([35]), "{order}");
        let mut left = whole.clone();
        for sample in sorted(&dropped) {
            let at = left.iter().position(|one| *one == sample);
            left.remove(at.unwrap_or_else(|| panic!("{order}: {sample:?} is not in the epoch")));
        }
        assert_eq!(left.len(), 6);
        let mut padded = sorted(&shares(&["--pad"]));
        assert_eq!(padded.len(), 252, "{order}");
        for sample in &whole {
            let at = padded.iter().position(|one| one == sample);
            padded.remove(at.unwrap_or_else(|| panic!("{order}: {sample:?} was left out")));
        }
        assert_eq!(padded.len(), 1, "{order}: one sample is repeated");
        assert!(whole.contains(&padded[0]));
    }
}

#[test]
fn a_mixture_over_the_network_is_the_same_and_goes_on_elsewhere_when_its_target_is_killed() {
    let dir = two_images();
    let image = dir.arg("train.dlfs");
    let state = dir.path("state");
    let list = dir.arg("ids");
    let more = |address: &str| format!("{address}=1");
    let at_hand = more(&dir.arg("more.dlfs"));
    let mut served = Served::start(&dir.arg("more.dlfs"), &[]);
    let far = more(&served.address);
    let run_of = |second: &str, order: &str| -> Vec<String> {
        let fixed = ["--batch-size", "16", "--seed", "3", "--part", "2", "--order", order];
        let begin = ["read", &image, "--mix", second];
        [&begin[..], &fixed].concat().iter().map(|word| word.to_string()).collect()
    };
    let ids_of = |read: &[String], epochs: &str| {
        let read: Vec<&str> = read.iter().map(String::as_str).collect();
        run(&[&read[..], &["--epochs", epochs, "--ids", &list]].concat()).code(0);
        drawn(&dir, "ids")
    };
    for order in ["grouped", "global"] {
        let expected = ids_of(&run_of(&at_hand, order), "2");
        let found = ids_of(&run_of(&far, order), "2");
        assert!(found == expected, "{order}: the same sequence over the network");
    }

    // In this order each batch is read; in a grouped one a small image can stay in memory from epoch to epoch.
    let files = run_of(&at_hand, "global");
    let remote = run_of(&far, "global");
    let mut command = common::dlfs();
    command.args(&remote).args(["--epochs", "1000000", "--quiet", "--ids", &list]);
    command.args(["--ctrl-loss-tmo", "1", "--state"]).arg(&state);
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped());
    fs::remove_file(&list).unwrap();
    let child = output.spawn().unwrap();
    let begun = || fs::metadata(&list).is_ok_and(|file| file.len() > 1000);
    let limit = Instant::now() + Duration::from_secs(60);
    while !begun() {
        assert!(Instant::now() < limit, "no batch within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("127.0.0.1"), "it says which image: {told}");
    let had = drawn(&dir, "ids");
    assert!(had.len() >= 16 && had.len().is_multiple_of(2), "{}", had.len());

    // The state is of the images, wherever they are.
    let saved: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    let epoch = saved["epoch"].as_u64().unwrap();
    let consumed = saved["consumed"].as_u64().unwrap();
    assert_eq!(epoch * 350 + consumed, had.len() as u64, "what was had, and nothing of a batch");
    let epochs = (epoch + 1).to_string();
    let state = state.to_str().unwrap();
    let resumed: Vec<String> = ["--state", state].map(str::to_owned).into();
    let rest = ids_of(&[files.clone(), resumed].concat(), &epochs);
    let whole = ids_of(&files, &epochs);
    assert!([had, rest].concat() == whole, "each sample once, in the same sequence");
}

#[test]
fn shuffle_report_knows_mixtures() {
    let dir = two_images();
    let image = dir.arg("train.dlfs");
    let more = format!("{}=0.3", dir.arg("more.dlfs"));
    let report = |options: &[&str]| {
        let fixed =
            ["shuffle-report", &image, "--part", "0.7", "--mix", &more, "--batch-size", "40"];
        run(&[&fixed[..], &["--epoch-size", "410", "--seed", "7"], options].concat()).code(0)
    };
    let number = |source: &Value, key: &str| source[key].as_f64().unwrap();
    for (how, farthest) in [("stratified", 2.0), ("random", 12.0)] {
        for epoch in ["0", "3"] {
            let options = ["--mix-batching", how, "--epoch", epoch, "--order", "grouped", "--json"];
            let json = report(&options).json();
            let keys = (&json["samples"], &json["batches"], &json["batch"]);
            assert_eq!(keys, (&410.into(), &10.into(), &40.into()), "{json}");
            assert!(json["order"]["kind"].as_str().unwrap().starts_with("grouped"), "{json}");
            let [first, second] = &json["sources"].as_array().unwrap()[..] else {
                panic!("{json}")
            };
            assert_eq!((first["drawn"].as_u64(), second["drawn"].as_u64()), (Some(287), Some(123)));
            // In its first epoch a source has each sample once; in a later one it can come round.
            let distinct = [first, second].map(|source| source["distinct"].as_u64().unwrap());
            assert!(distinct[0] == 287 || epoch == "3" && distinct[0] < 287, "{json}");
            assert_eq!(distinct[1], 50);
            assert_eq!((&first["samples"], &second["samples"]), (&300.into(), &50.into()));
            assert_eq!(second["name"], dir.arg("more.dlfs"));
            for (source, share) in [(first, 28.0), (second, 12.0)] {
                assert!((number(source, "share") - share).abs() < 1e-9, "{json}");
                let largest = number(source, "largest_deviation");
                let spread = number(source, "spread");
                assert!(largest <= farthest && spread <= largest, "{how}: {json}");
                assert!(how == "stratified" || largest > 0.0, "{json}");
                assert!(how == "random" || spread < number(source, "chance"), "{json}");
            }
            let verdict = json["verdict"].as_str().unwrap();
            assert!(verdict.starts_with("counts are exact; batches are within"), "{verdict}");
        }
    }
    let ran = report(&["--mix-batching", "per-source:41"]);
    assert!(ran.text().contains("verdict: counts are exact"), "{}", ran.text());
    // A phase within the epoch: shares are those of each piece.
    let phased = report(&["--phase", "200:0,1", "--json"]).json();
    let sources = phased["sources"].as_array().unwrap();
    assert_eq!((&sources[0]["drawn"], &sources[1]["drawn"]), (&140.into(), &270.into()));
    assert!(sources.iter().all(|source| number(source, "largest_deviation") <= 2.0), "{phased}");
    assert!(phased["batches_with_repeats"].as_u64() > Some(0), "50 samples come round: {phased}");
    for option in [["--snapshot", "s"], ["--view", "v"], ["--shard", "aligned"]] {
        let given = ["shuffle-report", &image, "--part", "1", "--mix", &more];
        run(&[&given[..], &option].concat()).code(2).complains_of(&["--mix", option[0]]);
    }
    run(&["shuffle-report", &image, "--part", "1", "--mix", &more, "--order", "local"])
        .code(1)
        .complains_of(&["mixture", "order"]);
}

#[test]
fn a_mixture_has_batches_by_tokens() {
    let dir = two_images();
    let budget = ["--batch-tokens", "60000", "--bucket-window", "90", "--seed", "4"];
    let run_of = |ids: &str, more: &[&str]| {
        let ids = dir.arg(ids);
        let fixed = ["--order", "global", "--epoch-size", "410", "--epochs", "1", "--ids", &ids];
        read_mixed(&dir, ["0.7", "0.3"], &[&fixed[..], &budget, more].concat())
    };
    let json = run_of("ids", &["--json"]).code(0).json();
    assert_eq!(counts(&json).iter().map(|(samples, _)| *samples).collect::<Vec<_>>(), [287, 123]);
    let state = dir.arg("state");
    run_of("first", &["--state", &state, "--stop-after", "200"]).code(4);
    run_of("rest", &["--state", &state]).code(0);
    let whole = drawn(&dir, "ids");
    let mut parts = drawn(&dir, "first");
    parts.extend(drawn(&dir, "rest"));
    assert!(whole == parts, "it goes on where it stopped");

    let image = dir.arg("train.dlfs");
    let more = format!("{}=0.3", dir.arg("more.dlfs"));
    let fixed = ["shuffle-report", &image, "--part", "0.7", "--mix", &more, "--epoch-size", "410"];
    let report = run(&[&fixed[..], &budget, &["--order", "global", "--json"]].concat());
    let report = report.code(0).json();
    assert_eq!(report["samples"], 410, "{report}");
    let part = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("no {key}: {report}"));
    assert!(part("padding") < part("padding_in_sequence"), "{report}");
    read_mixed(&dir, ["0.7", "0.3"], &["--batch-tokens", "50"])
        .code(1)
        .complains_of(&["more than the 50", ".dlfs"]);
}
