//! read --weights: samples drawn by weights; and read --batch-tokens: batches by a budget of tokens.

use std::fs;

use crate::common::{Ran, TestDir, run};

/// `dlfs read train.dlfs --weights WEIGHTS`, with more options. The image has a hundred samples of each of three
/// classes.
fn read(dir: &TestDir, weights: &str, more: &[&str]) -> Ran {
    run(&[&["read", &dir.arg("train.dlfs"), "--weights", weights][..], more].concat())
}

/// The ids that a run wrote with `--ids`.
fn drawn(dir: &TestDir, weights: &str, more: &[&str]) -> Vec<usize> {
    let list = dir.arg("ids");
    read(dir, weights, &[&["--ids", &list][..], more].concat());
    let text = fs::read_to_string(&list).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn samples_are_drawn_by_label_class_and_file_and_runs_go_on() {
    let dir = TestDir::with_image();
    let classes =
        |ids: &[usize]| [0, 1, 2].map(|class| ids.iter().filter(|id| *id / 100 == class).count());
    let ids = drawn(&dir, "balanced", &["--epoch-size", "3000", "--seed", "3"]);
    // The standard deviation of each is 26.
    assert!(classes(&ids).iter().all(|count| (870..1130).contains(count)), "{:?}", classes(&ids));
    let ids = drawn(&dir, "cat=3,1=1,newt=0", &["--epoch-size", "2000"]);
    let [cats, dogs, newts] = classes(&ids);
    assert!((1400..1600).contains(&cats) && cats + dogs == 2000 && newts == 0, "{cats}, {dogs}");

    let lines: String =
        (0..300).map(|id| format!("{}\n", if id % 2 == 0 { 0.0 } else { 1e-3 })).collect();
    fs::write(dir.path("numbers"), lines).unwrap();
    let file = dir.arg("numbers");
    let mut once = drawn(&dir, &file, &["--without-replacement"]);
    let whole = once.clone();
    once.sort_unstable();
    assert_eq!(once, (0..150).map(|half| 2 * half + 1).collect::<Vec<usize>>());
    // The same sequence, stopped and resumed with another batch.
    let state = dir.arg("state");
    let more =
        ["--without-replacement", "--state", &state, "--batch-size", "32", "--stop-after", "64"];
    let first = drawn(&dir, &file, &more);
    let rest =
        drawn(&dir, &file, &["--without-replacement", "--state", &state, "--batch-size", "7"]);
    assert_eq!([first, rest].concat(), whole);
}

#[test]
fn weights_that_cannot_be_drawn_by_are_refused_before_the_first_batch() {
    let dir = TestDir::with_image();
    let refused = |weights: &str, more: &[&str], code: i32, words: &[&str]| {
        read(&dir, weights, more).code(code).complains_of(words);
    };
    refused("cat=1,dog=1", &[], 1, &["label 2", "index 200", "no weight"]);
    refused("cat=1,dog=1,newt=1,7=1", &[], 1, &["no sample has label 7"]);
    refused("cat=1,dog=-1,newt=1", &[], 1, &["label 1 is -1"]);
    refused("cat=0,dog=0,newt=0", &[], 1, &["no sample has a weight above 0"]);
    refused("cat=1,cow=1", &[], 2, &["cow", "class"]);
    refused("cat=1,cat=2", &[], 2, &["label 0 has two weights"]);
    refused("cat=1,dog=x", &[], 2, &["dog=x"]);
    refused("absent", &[], 1, &["cannot read the weights", "absent"]);
    fs::write(dir.path("numbers"), "1\n2\n").unwrap();
    refused(&dir.arg("numbers"), &[], 1, &["2 weights for 300 samples"]);
    fs::write(dir.path("numbers"), "1\ntwo\n").unwrap();
    refused(&dir.arg("numbers"), &[], 1, &["line 2", "two"]);
    refused("balanced", &["--without-replacement", "--epoch-size", "301"], 1, &["from 1 to 300"]);
    refused("balanced", &["--order", "global"], 2, &["--weights", "--order"]);
    run(&["read", &dir.arg("train.dlfs"), "--epoch-size", "3"])
        .code(2)
        .complains_of(&["--weights"]);
}

#[test]
fn batches_by_tokens_are_read_in_ranks_and_stops_go_on() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let budget = ["--batch-tokens", "30000", "--bucket-window", "100", "--seed", "4"];
    let read = |list: &str, more: &[&str]| {
        let list = dir.arg(list);
        let ran = run(&[&["read", &image, "--ids", &list], &budget[..], more].concat());
        let text = fs::read_to_string(&list).unwrap();
        (ran, text.lines().map(|line| line.parse().unwrap()).collect::<Vec<usize>>())
    };
    let (_, whole) = read("whole", &["--epochs", "2"]);
    for epoch in [&whole[..300], &whole[300..]] {
        let mut sorted = epoch.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..300).collect::<Vec<usize>>());
    }
    let state = dir.arg("state");
    let stopped = ["--epochs", "2", "--state", &state];
    let (ran, front) = read("front", &[&stopped[..], &["--stop-after", "340"]].concat());
    ran.code(4);
    assert!(front.len() >= 340 && front.len() < 600 && whole.starts_with(&front));
    // Two ranks go on with what is left.
    fs::copy(&state, dir.path("other")).unwrap();
    let mut rest = Vec::new();
    for (rank, state) in [("0", state), ("1", dir.arg("other"))] {
        let more = ["--state", &state, "--epochs", "2", "--rank", rank, "--world-size", "2"];
        let (ran, ids) = read("rest", &more);
        ran.code(0);
        rest.extend(ids);
    }
    rest.sort_unstable();
    let mut left = whole[front.len()..].to_vec();
    left.sort_unstable();
    assert_eq!(rest, left);
}

#[test]
fn the_report_tells_the_padding_and_bad_budgets_are_refused() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let report = |more: &[&str]| {
        run(&[&["shuffle-report", &image, "--order", "global", "--batch-tokens"], more].concat())
    };
    let json = report(&["60000", "--json"]).json();
    let part = |name: &str| json[name].as_f64().unwrap();
    assert_eq!((json["samples"].as_u64(), json["budget"].as_u64()), (Some(300), Some(60_000)));
    assert!(part("padding") < 0.2 && part("padding_in_sequence") > 0.3, "{json}");
    assert!(part("filled") > 0.7 && part("filled") <= 1.0, "{json}");
    let text = report(&["60000"]);
    assert!(text.text().contains("without length buckets"), "{}", text.text());
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        run(&[&["read", &image][..], more].concat()).code(code).complains_of(words);
    };
    refused(&["--batch-tokens", "50"], 1, &["more than the 50", "--too-long alone"]);
    refused(&["--batch-tokens", "0"], 2, &["--batch-tokens"]);
    refused(
        &["--batch-tokens", "60000", "--batch-size", "4"],
        2,
        &["--batch-tokens", "--batch-size"],
    );
    refused(&["--max-batch", "4"], 2, &["--batch-tokens"]);
    refused(
        &["--batch-tokens", "60000", "--lengths", "words"],
        1,
        &["no column", "words", "label"],
    );
    let aligned = ["--batch-tokens", "60000", "--order", "grouped", "--shard", "aligned"];
    refused(&aligned, 1, &["leave the shares out"]);
    run(&["read", &image, "--batch-tokens", "50", "--too-long", "alone"]).code(0);
}
