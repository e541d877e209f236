//! select and --view: parts of a data set, saved and read as data sets of their own.

use std::collections::BTreeSet;
use std::fs;

use crate::common::{TestDir, run};

#[test]
fn parts_of_a_split_are_read_listed_and_exported_as_data_sets_of_their_own() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let parts = dir.arg("parts.view");
    let select =
        ["select", &image, "len > 0", "--split", "train=0.8,val=0.2", "--out", &parts, "--json"];
    let report = run(&select).code(0).json();
    assert_eq!((report["samples"].as_u64(), report["generation"].as_u64()), (Some(300), Some(1)));
    let views = report["views"].as_array().unwrap();
    assert_eq!(views[0]["made"], "len > 0; train of train=0.8,val=0.2, seed 0, by id");
    let sizes: Vec<u64> = views.iter().map(|view| view["samples"].as_u64().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<u64>(), 297);
    let mut all = BTreeSet::new();
    for (view, size) in ["train", "val"].iter().zip(&sizes) {
        let view = format!("{parts}:{view}");
        let ids = dir.arg("ids");
        let read = ["read", &image, "--view", &view, "--order", "grouped", "--json", "--ids", &ids];
        assert_eq!(run(&read).code(0).json()["samples"].as_u64(), Some(*size));
        let ids = fs::read_to_string(&ids).unwrap();
        assert_eq!(ids.lines().count() as u64, *size);
        assert!(ids.lines().all(|id| all.insert(id.to_owned())), "parts overlap");
        let listed = run(&["ls", "-R", &image, "--view", &view]).code(0);
        assert_eq!(listed.text().lines().count() as u64, *size);
        let stat = run(&["stat", &image, "--view", &view, "--json"]).code(0).json();
        assert_eq!((stat["samples"].as_u64(), stat["deleted"].as_u64()), (Some(*size), Some(0)));
        assert!(views.iter().any(|facts| facts["hash"] == stat["view"]));
        run(&["verify", &image, "--view", &view]).code(0);
    }
    let copy = dir.arg("copy");
    run(&["export", &image, &copy, "--view", &format!("{parts}:val")]).code(0);
    let source = dir.files("source");
    let exported = dir.files("copy");
    assert_eq!(exported.len() as u64, sizes[1]);
    assert!(exported.iter().all(|file| source.contains(file)));
}

#[test]
fn a_single_share_leaves_a_rest_and_ids_come_from_a_file() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let view = dir.arg("a.view");
    let ran =
        run(&["select", &image, "--split", "train=0.9", "--by", "name", "--out", &view]).code(0);
    assert!(ran.text().contains("train: ") && ran.text().contains("rest: "), "{}", ran.text());
    let ids = dir.arg("ids");
    fs::write(&ids, "7\n205\n\n3\n").unwrap();
    run(&["select", &image, "label == 'cat'", "--ids", &ids, "--out", &view]).code(0);
    let listed = run(&["ls", "-R", &image, "--view", &view]).code(0);
    assert_eq!(listed.text(), "cat/003.bin\ncat/007.bin\n");
    // A part of a part.
    let some = ["select", &image, "name glob '*7.bin'", "--view", &view, "--json"];
    assert_eq!(run(&some).code(0).json()["views"][0]["samples"], 1);
}

#[test]
fn what_cannot_be_selected_is_refused_with_its_place_and_no_file_is_written() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let out = dir.arg("a.view");
    for (arguments, code, what) in [
        (&["label inn (3)"][..], 1, "at character 7 of the expression `label inn (3)`"),
        (&["labl == 3"], 1, "no column `labl`"),
        (&["label == 'cow'"], 1, "no class `cow` among 3: cat, dog, newt"),
        (&["label == 99"], 1, "none of 300 samples is selected"),
        (&["--split", "train=0.9,val=0.05"], 2, "sum to 1, and these to 0.95"),
        (&["--split", "train"], 2, "`train` is no part of a split"),
        (&["--split", "a=0.9999,b=0.0001"], 1, "part b, a share of 0.0001, has none of 300"),
        (&["--seed", "3"], 2, "--split"),
        (&["--name", "a:b"], 1, "\"a:b\" is none"),
        (&["--ids", "/nowhere/ids"], 1, "/nowhere/ids"),
    ] {
        let ran = run(&[&["select", &image, "--out", &out], arguments].concat()).code(code);
        assert!(ran.stderr.contains(what), "{arguments:?}: {}", ran.stderr);
    }
    assert!(!dir.path("a.view").exists());
    run(&["select", &image, "label == 1", "--out", &out]).code(0);
    run(&["delete", &image, "cat/000.bin"]).code(0);
    let stale = run(&["read", &image, "--view", &out]).code(1);
    assert!(stale.stderr.contains("the view is of generation 1, and the image is at generation 2"));
    assert!(stale.stderr.contains("select or split again"), "{}", stale.stderr);
}

#[test]
fn a_run_over_a_view_resumes_from_its_state_and_not_over_another_view() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let view = dir.arg("a.view");
    let state = dir.arg("state");
    run(&["select", &image, "label in (0, 2)", "--out", &view]).code(0);
    let read = |more: &[&str]| {
        let common = ["read", &image, "--state", &state, "--batch-size", "10", "--order", "global"];
        run(&[&common, more].concat())
    };
    let front = dir.arg("front");
    let rest = dir.arg("rest");
    read(&["--view", &view, "--stop-after", "60", "--ids", &front]).code(4);
    let whole = read(&[]).code(1);
    assert!(whole.stderr.contains("this is the whole data set"), "{}", whole.stderr);
    read(&["--view", &view, "--ids", &rest]).code(0);
    let mut ids: Vec<u64> = [front, rest]
        .iter()
        .flat_map(|path| {
            fs::read_to_string(path)
                .unwrap()
                .lines()
                .map(|id| id.parse().unwrap())
                .collect::<Vec<u64>>()
        })
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq((0..100).chain(200..300)));
}
