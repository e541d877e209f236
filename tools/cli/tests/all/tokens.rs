//! read --seq-len and tokens plan: rows of tokens.

use std::fs;
use std::thread;

use serde_json::Value;

use crate::common::random::Random;
use crate::common::{Ran, TestDir, run};

const SEQ_LEN: u64 = 64;
const ROW: u64 = SEQ_LEN + 1;
const SEPARATOR: u64 = 500;

/// Imports documents of `lens` tokens below 500 as `NAME.dlfs`.
fn import(dir: &TestDir, name: &str, lens: &[u64], random: &mut Random) {
    let mut lines = String::new();
    for &len in lens {
        let tokens: Vec<String> = (0..len).map(|_| random.below(SEPARATOR).to_string()).collect();
        lines += &format!("{{\"tok\": [{}]}}\n", tokens.join(","));
    }
    let source = dir.path(&format!("{name}.jsonl"));
    fs::write(&source, lines).unwrap();
    let image = dir.arg(&format!("{name}.dlfs"));
    let source = source.to_str().unwrap();
    run(&["import", source, &image, "--field-type", "tok:u16[*]"]).code(0);
}

/// `text.dlfs` with 200 documents of up to 150 tokens, and their lengths. Some are empty.
fn corpus() -> (TestDir, Vec<u64>) {
    let mut random = Random::new(11);
    let lens: Vec<u64> =
        (0..200).map(|at| if at % 40 == 7 { 0 } else { random.below(150) }).collect();
    let dir = TestDir::new();
    import(&dir, "text", &lens, &mut random);
    (dir, lens)
}

fn plan(dir: &TestDir, more: &[&str]) -> Value {
    let image = dir.arg("text.dlfs");
    run(&[&["tokens", "plan", &image, "--seq-len", "64", "--json"], more].concat()).code(0).json()
}

fn read(dir: &TestDir, more: &[&str]) -> Ran {
    run(&[&["read", &dir.arg("text.dlfs"), "--seq-len", "64"], more].concat())
}

/// The documents in the order in which a run had them. One that goes on in the next batch is there once.
fn documents(dir: &TestDir) -> Vec<u64> {
    let text = fs::read_to_string(dir.path("ids")).unwrap();
    let mut ids: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    ids.dedup();
    ids
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value}"))
}

#[test]
fn a_plan_counts_the_rows_that_the_rules_make() {
    let (dir, lens) = corpus();
    let separated = ["--separator", "500"];
    let found = plan(&dir, &separated);
    let documents = lens.iter().filter(|&&len| len > 0).count() as u64;
    let tokens: u64 = lens.iter().filter(|&&len| len > 0).map(|len| len + 1).sum();
    let rows = (tokens - 1) / SEQ_LEN;
    assert_eq!((number(&found, "rows"), number(&found, "tokens")), (rows, tokens));
    assert_eq!(number(&found, "documents"), documents);
    assert_eq!(number(&found, "dropped"), tokens - rows * SEQ_LEN - 1);
    assert_eq!((found["padding"].as_f64(), found["pack"].as_str()), (Some(0.0), Some("concat")));
    assert_eq!(number(&plan(&dir, &[]), "tokens"), tokens - documents, "no separator");

    // Each piece of a document is a row of its own.
    let alone = plan(&dir, &[&separated[..], &["--pack", "none"]].concat());
    let pieces: u64 = lens.iter().filter(|&&len| len > 0).map(|len| (len + 1).div_ceil(ROW)).sum();
    let cut = lens.iter().filter(|&&len| len + 1 > ROW).count() as u64;
    assert_eq!((number(&alone, "rows"), number(&alone, "cuts")), (pieces, cut));
    // Each is as wide as its bucket: up to a power of two, or halfway to one.
    let pieces_of = |&len: &u64| (0..len + 1).step_by(ROW as usize).map(move |at| len + 1 - at);
    let all = lens.iter().filter(|len| **len > 0).flat_map(pieces_of).map(|len| len.min(ROW));
    let bounds = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
    let columns = all.map(|len| bounds.iter().find(|bound| **bound + 1 >= len).unwrap() + 1);
    let padding = 1.0 - tokens as f64 / columns.sum::<u64>() as f64;
    assert!((alone["padding"].as_f64().unwrap() - padding).abs() < 1e-9, "{alone}");

    let packed = plan(&dir, &[&separated[..], &["--pack", "best_fit"]].concat());
    let rows = number(&packed, "rows");
    assert!(tokens.div_ceil(ROW) <= rows && rows < pieces, "{packed}");
    assert_eq!((number(&packed, "cuts"), number(&packed, "dropped")), (cut, 0));
    // Smaller windows leave more padding.
    let small = ["--pack", "best_fit", "--pack-window", "4"];
    assert!(number(&plan(&dir, &[&separated[..], &small].concat()), "rows") > rows);
    let image = dir.arg("text.dlfs");
    let text = run(&["tokens", "plan", &image, "--seq-len", "64", "--pack", "best_fit"]).code(0);
    for part in ["rows of 64 tokens, packed best_fit", "padding", "cut", "dropped    0 tokens"] {
        assert!(text.text().contains(part), "{part}: {}", text.text());
    }
}

#[test]
fn phases_have_rows_and_batches_of_other_lengths() {
    let (dir, lens) = corpus();
    let phases = ["--row-phase", "640:seq_len=16,batch_size=3", "--row-phase", "800:seq_len=128"];
    let found = plan(&dir, &phases);
    let tokens: u64 = lens.iter().sum();
    let rest = (tokens - 800 - 1) / 128;
    assert_eq!(found["phases"], serde_json::json!([10, 10, rest]));
    assert_eq!(number(&found, "rows"), 20 + rest);
    assert_eq!(number(&found, "dropped"), tokens - 800 - rest * 128 - 1);
    let run = ["--batch-size", "2", "--json"];
    let json = read(&dir, &[&phases[..], &run].concat()).code(0).json();
    // Batches of 3 leave one of the 10 rows of 16.
    let rest = rest / 2 * 2;
    assert_eq!(number(&json["rows"], "rows"), 10 + 9 + rest);
    assert_eq!(number(&json["rows"], "tokens"), 10 * 64 + 9 * 16 + rest * 128);
    let text = self::run(
        &[&["tokens", "plan", &dir.arg("text.dlfs"), "--seq-len", "64"], &phases[..]].concat(),
    );
    assert!(text.code(0).text().contains("phase      640:seq_len=16,batch_size=3: 10 rows"));
    let wrong = read(&dir, &["--batch-size", "2", "--row-phase", "640:window=3"]).code(2);
    assert!(wrong.stderr.contains("is no phase of rows"), "{}", wrong.stderr);
}

#[test]
fn a_run_reads_the_rows_of_the_plan_on_any_ranks() {
    let (dir, _) = corpus();
    for pack in ["concat", "best_fit", "none"] {
        let packed = ["--pack", pack, "--separator", "500", "--seed", "3"];
        let planned = plan(&dir, &packed);
        for (ranks, batch) in [(1, 1), (1, 4), (3, 2)] {
            let mut sum = [0; 2];
            for rank in 0..ranks {
                let rank = rank.to_string();
                let ranks = ranks.to_string();
                let batch = batch.to_string();
                let run = ["--rank", &rank, "--world-size", &ranks, "--batch-size", &batch];
                let json = read(&dir, &[&packed[..], &run, &["--json"]].concat()).code(0).json();
                let rows = &json["rows"];
                sum[0] += number(rows, "rows");
                sum[1] += number(rows, "tokens");
                if planned["rows"] == rows["rows"] && (pack != "none" || batch == "1") {
                    assert_eq!(rows["padding"], planned["padding"], "{pack}");
                }
                assert_eq!(number(rows, "seq_len"), SEQ_LEN);
                assert!(rows["tokens_per_s"].as_f64().unwrap() > 0.0);
            }
            let global = ranks * batch;
            let whole = number(&planned, "rows") / global * global;
            assert_eq!(sum[0], whole, "{pack}, {ranks} ranks");
            let full = whole * SEQ_LEN;
            assert!(if pack == "concat" { sum[1] == full } else { sum[1] < full }, "{pack}");
        }
    }
    let text = read(&dir, &["--batch-size", "2"]).code(0);
    let line = text.text().lines().find(|line| line.starts_with("  rows ")).expect("a line");
    assert!(line.contains("of 64 tokens") && line.ends_with("0.00 % padding"), "{line}");
}

#[test]
fn a_run_goes_on_between_any_two_batches_with_other_ranks() {
    let (dir, _) = corpus();
    let state = dir.arg("state");
    let list = dir.arg("ids");
    for pack in ["concat", "none"] {
        let fixed = ["--pack", pack, "--ids", &list, "--epochs", "2", "--seed", "5", "--json"];
        let run = |more: &[&str]| read(&dir, &[&fixed[..], more].concat());
        let rows = |ran: Ran| number(&ran.json()["rows"], "rows");
        let whole = rows(run(&["--batch-size", "1"]).code(0));
        let whole_documents = documents(&dir);
        let stop = ["--batch-size", "3", "--state", &state, "--stop-after", "60"];
        let front = rows(run(&stop).code(4));
        assert!(front > 0 && front < whole && documents(&dir).len() >= 40, "{pack}");
        assert!(whole_documents.starts_with(&documents(&dir)), "{pack}");
        let kept = fs::read(&state).unwrap();
        let rest = rows(run(&["--batch-size", "1", "--state", &state]).code(0));
        assert_eq!(front + rest, whole, "{pack}");
        assert!(whole_documents.ends_with(&documents(&dir)), "{pack}");
        let mut shares = 0;
        for rank in ["0", "1"] {
            fs::write(&state, &kept).unwrap();
            let ranks = ["--rank", rank, "--world-size", "2", "--batch-size", "1"];
            shares += rows(run(&[&ranks[..], &["--state", &state]].concat()).code(0));
        }
        assert!((rest - 2..=rest).contains(&shares), "{pack}: at most one row an epoch is left");
        fs::write(&state, &kept).unwrap();
        let image = dir.arg("text.dlfs");
        let longer = ["read", &image, "--seq-len", "65", "--batch-size", "1", "--state", &state];
        run_with(&longer, &["--pack", pack, "--seed", "5"]).code(1).complains_of(&["state"]);
        let samples = ["read", &image, "--state", &state, "--seed", "5"];
        run_with(&samples, &[]).code(1).complains_of(&["state"]);
        fs::remove_file(&state).unwrap();
    }
}

fn run_with(command: &[&str], more: &[&str]) -> Ran {
    run(&[command, more].concat())
}

#[test]
fn mixtures_are_packed_together_and_planned_by_image() {
    let (dir, lens) = corpus();
    let mut random = Random::new(12);
    let more: Vec<u64> = (0..50).map(|_| 1 + random.below(40)).collect();
    import(&dir, "more", &more, &mut random);
    let other = format!("{}=repeat:2", dir.arg("more.dlfs"));
    let mixed = ["--part", "repeat:1", "--mix", &other, "--pack", "best_fit"];
    let found = plan(&dir, &mixed);
    let sources = found["sources"].as_array().expect("sources");
    let tokens: [u64; 2] = [lens.iter().sum(), 2 * more.iter().sum::<u64>()];
    let counted: Vec<u64> = sources.iter().map(|source| number(source, "tokens")).collect();
    assert_eq!(counted, tokens);
    assert_eq!(number(&sources[1], "documents"), 100);
    assert_eq!(sources[1]["image"], dir.arg("more.dlfs"));
    assert_eq!(number(&found, "tokens"), tokens[0] + tokens[1]);
    let json = read(&dir, &[&mixed[..], &["--batch-size", "1", "--json"]].concat()).code(0).json();
    assert_eq!(json["rows"]["rows"], found["rows"]);
    assert_eq!(json["rows"]["padding"], found["padding"]);
    let image = dir.arg("text.dlfs");
    let text = run_with(&["tokens", "plan", &image, "--seq-len", "64"], &mixed).code(0);
    assert!(text.text().contains("more.dlfs: 100 documents"), "{}", text.text());
}

#[test]
fn weights_of_a_mixture_count_tokens_if_asked() {
    let (dir, _) = corpus();
    let mut random = Random::new(13);
    let more: Vec<u64> = (0..50).map(|_| 1 + random.below(40)).collect();
    import(&dir, "more", &more, &mut random);
    let other = format!("{}=1", dir.arg("more.dlfs"));
    let share = |count: &[&str]| {
        let mixed = ["--part", "3", "--mix", &other, "--epoch-size", "20000"];
        let found = plan(&dir, &[&mixed[..], count].concat());
        number(&found["sources"][0], "tokens") as f64 / number(&found, "tokens") as f64
    };
    let by_tokens = share(&["--mix-count", "tokens"]);
    assert!((by_tokens - 0.75).abs() < 0.002, "{by_tokens}");
    assert_eq!(share(&["--mix-count", "tokens:tok"]), by_tokens);
    // Later tokens are those of the second image.
    let turned = share(&["--mix-count", "tokens", "--phase", "100000:0,1"]);
    assert!(turned < 0.3, "{turned}");
    assert!(share(&[]) > 0.85, "documents of the first image are longer");
    let image = dir.arg("text.dlfs");
    let mixed = ["read", &image, "--part", "1", "--mix", &other, "--mix-count"];
    run_with(&mixed, &["lengths:words"]).code(1).complains_of(&["text.dlfs", "words"]);
    run_with(&mixed, &["words"]).code(2).complains_of(&["--mix-count", "tokens:FIELD"]);
    run(&["read", &image, "--mix-count", "tokens"]).code(2).complains_of(&["--mix"]);
}

#[test]
fn what_makes_no_rows_is_refused_before_the_first_batch() {
    let (dir, lens) = corpus();
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        let command = ["read", &dir.arg("text.dlfs"), "--ids", &dir.arg("never")];
        run_with(&command, more).code(code).complains_of(words);
    };
    refused(&["--seq-len", "64"], 2, &["--batch-size"]);
    refused(&["--seq-len", "0", "--batch-size", "1"], 2, &["--seq-len"]);
    refused(&["--pack", "best_fit", "--batch-size", "1"], 2, &["--seq-len"]);
    let rows = ["--seq-len", "64", "--batch-size", "1"];
    let rows_and = |more: &[&'static str]| [&rows[..], more].concat();
    refused(&rows_and(&["--drop-last"]), 2, &["--drop-last"]);
    refused(&rows_and(&["--pack", "best-fit"]), 2, &["best_fit", "concat", "none"]);
    refused(&rows_and(&["--pack-window", "0"]), 2, &["pack_window"]);
    refused(&rows_and(&["--field", "words"]), 1, &["words"]);
    refused(&rows_and(&["--row-lengths", "words"]), 1, &["no column", "words"]);
    let whole = ["--pack", "best_fit", "--row-too-long", "raise"];
    refused(&rows_and(&whole), 1, &["document", "the 65 of a row", "--row-too-long cut"]);
    let all = lens.iter().sum::<u64>().to_string();
    refused(&["--seq-len", &all, "--batch-size", "1"], 1, &["no row can be filled"]);
    refused(&["--seq-len", "64", "--batch-size", "100000"], 1, &["no batch can be filled"]);
    let image = dir.arg("text.dlfs");
    run(&["tokens", "plan", &image]).code(2).complains_of(&["--seq-len"]);
    // Tokens are looked at while they are read.
    read(&dir, &rows_and(&["--vocabulary", "100"])[2..]).code(3).complains_of(&["vocabulary"]);
    read(&dir, &rows_and(&["--vocabulary", "500"])[2..]).code(0);
}

#[cfg(feature = "tokens")]
#[test]
fn texts_become_tokens_and_their_tokenizer_is_shown_and_checked() {
    let dir = TestDir::new();
    let tokenizer = |name: &str, last: &str| {
        let parts = serde_json::json!({
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1, last: 2}},
        });
        fs::write(dir.path(name), parts.to_string()).unwrap();
        dir.arg(name)
    };
    let [one, other] = [tokenizer("one.json", "c"), tokenizer("other.json", "d")];
    fs::write(dir.path("a.jsonl"), "{\"body\": \"a b c a\"}\n{\"body\": \"c c\"}\n").unwrap();
    let source = dir.arg("a.jsonl");
    let image = dir.arg("text.dlfs");
    let into = ["import", &source, &image, "--text-field", "body", "--tokenizer"];
    run(&[&into[..5], &["--json"]].concat()).code(2).complains_of(&["--tokenizer"]);
    run(&[&into[..], &[&one]].concat()).code(0);
    let shown = run(&["stat", &image, "--json"]).code(0).json();
    let kind = shown["field_types"]["tok"].as_str().unwrap();
    let hash = kind.strip_prefix("u16[*];vocabulary=3;tokenizer=").expect(kind);
    assert_eq!(hash.len(), 64);
    let appended = run(&[&into[..], &[&other, "--append"]].concat());
    appended.code(1).complains_of(&["another tokenizer", hash, "other.json"]);
    let rows = ["--seq-len", "2", "--tokenizer"];
    let read =
        |file: &str| run(&[&["read", &image, "--batch-size", "1"], &rows[..], &[file]].concat());
    read(&one).code(0);
    read(&other).code(1).complains_of(&["another tokenizer", hash]);
    run(&[&["tokens", "plan", &image], &rows[..], &[&other]].concat())
        .code(1)
        .complains_of(&[hash]);
}

/// Two ranks in processes of their own, with these options and those of each; the reports or what was said.
fn two_ranks(dir: &TestDir, more: &[&str], of_each: [&[&str]; 2]) -> [Ran; 2] {
    thread::scope(|scope| {
        let ranks = of_each.iter().enumerate().map(|(rank, own)| {
            let rank = rank.to_string();
            scope.spawn(move || {
                let place = ["--rank", &rank, "--world-size", "2", "--json"];
                read(dir, &[&place[..], more, own].concat())
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let ran: Vec<Ran> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        ran.try_into().ok().expect("two ranks")
    })
}

#[test]
fn ranks_in_processes_share_a_loader_or_their_tiers_and_compare_their_rows() {
    let (dir, _) = corpus();
    let rows = ["--pack", "best_fit", "--batch-size", "2", "--seed", "3", "--epochs", "2"];
    let crcs = |more: &[&str], of_each| {
        two_ranks(&dir, &[&rows[..], more].concat(), of_each)
            .map(|ran| number(&ran.code(0).json(), "order_crc32c"))
    };
    let alone = crcs(&[], [&[], &[]]);
    assert_ne!(alone[0], alone[1]);
    let job = format!("rows-{}", std::process::id());
    assert_eq!(crcs(&["--node-loader", "--job", &job], [&[], &[]]), alone);

    let meet = dir.arg("meet");
    fs::create_dir(&meet).unwrap();
    let peers =
        ["--peers", &meet, "--tier", "ram:4M", "--peer-address", "127.0.0.1", "--round", "same"];
    let nodes: [&[&str]; 2] = [&["--node", "rows 0"], &["--node", "rows 1"]];
    assert_eq!(crcs(&peers, nodes), alone);
    let peers = [&rows[..], &peers[..7], &["other"]].concat();
    let other: [&[&str]; 2] = [nodes[0], &["--node", "rows 1", "--pack-window", "50"]];
    for ran in two_ranks(&dir, &peers, other) {
        ran.code(1).complains_of(&["has order", "rows of tokens"]);
    }
}
