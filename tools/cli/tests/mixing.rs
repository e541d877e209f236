//! read --mix: several data sets as one sequence.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::{Ran, TestDir, run};
use serde_json::Value;

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
    let (first, second) = (dir.arg("train.dlfs"), format!("{}={}", dir.arg("more.dlfs"), parts[1]));
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
            "--batch",
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
    let options = ["--mix-batching", "per-source", "--batch", "32", "--epoch-size", "320"];
    assert_eq!(read(["1", "1"], &options), [160, 160]);
    for batch in drawn(&dir, "ids").chunks(32) {
        assert!(batch.iter().all(|sample| sample.0 == batch[0].0), "{batch:?}");
    }
    let options = ["--epoch-size", "100", "--epochs", "2", "--phase", "100:0,1", "--batch", "10"];
    assert_eq!(read(["1", "0"], &options), [100, 100]);
    assert!(drawn(&dir, "ids")[..100].iter().all(|sample| sample.0 == 0));
    // A plain folder is mixed as any image is; what was verified is told of all.
    let (image, folder) = (dir.arg("train.dlfs"), format!("{}=choose:100", dir.arg("more")));
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
    let (state, list) = (dir.arg("state"), dir.arg("ids"));
    let read = |parts: [&str; 2], more: &[&str]| {
        read_mixed(
            &dir,
            parts,
            &[&["--epochs", "2", "--order", "grouped", "--ids", &list][..], more].concat(),
        )
    };
    read(["2", "1"], &[]).code(0);
    let mut whole = drawn(&dir, "ids");
    read(["2", "1"], &["--state", &state, "--stop-after", "96", "--batch", "24"]).code(4);
    let mut parts = drawn(&dir, "ids");
    assert_eq!(parts, whole[..96]);
    let stopped = fs::read(&state).unwrap();
    for rank in ["0", "1", "2"] {
        fs::write(&state, &stopped).unwrap();
        read(
            ["2", "1"],
            &["--state", &state, "--batch", "10", "--rank", rank, "--world-size", "3"],
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
