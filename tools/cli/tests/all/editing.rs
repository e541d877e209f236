//! delete, purge, rebuild, snapshot: commands that change or repair an existing image.

use std::fs;

use crate::common::{Served, TestDir, run};

#[test]
fn deleted_samples_are_gone_and_purge_gives_their_space_back() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let text = run(&["delete", &image, "cat/010.bin", "dog/020.bin"]).code(0);
    assert!(text.text().contains("deleted 2 samples"), "{}", text.text());
    let stat = run(&["stat", &image, "--json"]).code(0).json();
    assert_eq!(
        (&stat["generation"], &stat["samples"], &stat["deleted"]),
        (&2.into(), &298.into(), &2.into())
    );
    run(&["cat", &image, "cat/010.bin"]).code(1).complains_of(&["cat/010.bin"]);
    run(&["stat", &image, "--id", "10"]).code(1).complains_of(&["no sample 10"]);
    assert_eq!(run(&["ls", &image, "cat"]).code(0).text().lines().count(), 99);
    let read = run(&["read", &image, "--epochs", "2", "--json"]).code(0).json();
    assert_eq!(read["samples"], 596);

    let purged = run(&["purge", &image, "--json"]).code(0).json();
    assert_eq!((&purged["generation"], &purged["samples"]), (&3.into(), &2.into()));
    run(&["verify", &image]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    let mut expected = dir.files("source");
    expected.retain(|(path, _)| !path.ends_with("cat/010.bin") && !path.ends_with("dog/020.bin"));
    assert_eq!(dir.files("out"), expected);
    assert!(run(&["purge", &image]).code(0).text().contains("nothing to purge"));
}

#[test]
fn a_data_set_of_deleted_samples_is_not_read_as_if_it_had_been() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let all: Vec<String> = (0..300).map(|id| id.to_string()).collect();
    fs::write(dir.path("list"), all.join("\n")).unwrap();
    run(&["delete", &image, "--from", &dir.arg("list"), "--ids"]).code(0);
    for command in [&["read", &image][..], &["export", &image, &dir.arg("out")]] {
        run(command).code(1).complains_of(&["no sample to read", "are deleted"]);
    }
    assert!(!dir.path("out").exists());
    run(&["verify", &image]).code(0);
}

#[test]
fn a_list_of_names_or_ids_is_deleted_in_one_generation() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let list = dir.arg("list");
    fs::write(&list, "cat/010.bin\ndog/020.bin\n").unwrap();
    let report = run(&["delete", &image, "cat/011.bin", "--from", &list, "--json"]).code(0).json();
    assert_eq!((&report["generation"], &report["samples"]), (&2.into(), &3.into()));
    fs::write(&list, "cat/012.bin\0dog/021.bin").unwrap();
    run(&["delete", &image, "--from", &list, "-0"]).code(0);
    fs::write(&list, "0\n1\n").unwrap();
    let report = run(&["delete", &image, "--from", &list, "--ids", "--json"]).code(0).json();
    assert_eq!((&report["generation"], &report["live_samples"]), (&4.into(), &293.into()));
    fs::write(&list, "300\n2\n").unwrap();
    run(&["delete", &image, "--from", &list, "--ids"]).code(1).complains_of(&["with id 300"]);
    let unknown: Vec<String> = (0..100).map(|number| format!("nobody{number}")).collect();
    fs::write(&list, unknown.join("\n")).unwrap();
    run(&["delete", &image, "--from", &list]).code(1).complains_of(&["nobody19 and 80 more"]);
    assert_eq!(run(&["stat", &image, "--json"]).code(0).json()["generation"], 4);
    run(&["delete", &image, "--from", &dir.arg("nowhere")]).code(1).complains_of(&["nowhere"]);
}

#[test]
fn nothing_is_deleted_when_one_of_the_names_is_wrong() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let before = fs::read(&image).unwrap();
    run(&["delete", &image, "cat/010.bin", "cat/nobody", "dog/nobody"])
        .code(1)
        .complains_of(&["cat/nobody", "dog/nobody"]);
    let stat = run(&["stat", &image, "--json"]).code(0).json();
    assert_eq!((&stat["generation"], &stat["samples"]), (&1.into(), &300.into()));
    assert_eq!(fs::read(&image).unwrap().len(), before.len());
    run(&["delete", &image]).code(2).complains_of(&["NAME"]);
}

#[test]
fn an_image_without_its_directory_is_rebuilt_from_its_chunks() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let listing = run(&["ls", "-R", "-l", &image]).code(0).stdout;
    let snapshot = dir.arg("directory");
    run(&["snapshot", "save", &image, &snapshot]).code(0);
    let mut bytes = fs::read(&image).unwrap();
    // Find the directory's columns, which begin like the saved file, and damage them.
    let saved = fs::read(&snapshot).unwrap();
    let at = bytes.windows(64).position(|window| window == &saved[..64]).unwrap();
    bytes[at + 4_200..at + 4_300].fill(0xee);
    bytes[at + 200..at + 300].fill(0xee);
    fs::write(&image, bytes).unwrap();
    run(&["ls", &image]).code(3).complains_of(&["rebuild"]);
    let json = run(&["rebuild", &image, "--json"]).code(0).json();
    assert_eq!((&json["live_samples"], &json["lost_samples"]), (&300.into(), &0.into()));
    assert_eq!(run(&["ls", "-R", "-l", &image]).code(0).stdout, listing);
    run(&["verify", &image]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
}

/// Chunks do not record which of their samples were deleted later.
#[test]
fn a_rebuild_that_cannot_know_what_was_deleted_says_so_and_ends_with_3() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    run(&["delete", &image, "cat/010.bin"]).code(0);
    let honest = fs::read(&image).unwrap();
    let whole = run(&["rebuild", &image, "--json"]).code(0).json();
    assert_eq!((&whole["live_samples"], &whole["deletions_known"]), (&299.into(), &true.into()));
    // The record of generation 2 is a chunk of kind 2; its snapshot begins with its magic number.
    let mut bytes = honest;
    for at in (0..bytes.len()).step_by(4096) {
        let block = &bytes[at..at + 4096];
        let is_record = block.starts_with(b"DLFSCHNK") && block[10] == 2;
        if is_record || block.starts_with(b"DLFSSNAP") {
            bytes[at..at + 4096].fill(0xee);
        }
    }
    for more in [&["--json"][..], &[]] {
        fs::write(&image, &bytes).unwrap();
        let ran = run(&[&["rebuild", &image][..], more].concat()).code(3);
        ran.complains_of(&["neither record nor snapshot of generation 2", "deleted are back"]);
        if more.is_empty() {
            assert!(ran.text().contains("deletions  unknown"), "{}", ran.text());
        } else {
            let json = ran.json();
            assert_eq!(
                (&json["live_samples"], &json["deletions_known"]),
                (&300.into(), &false.into())
            );
            assert_eq!(json["lost_samples"], 0);
        }
        assert_eq!(run(&["stat", &image, "--json"]).code(0).json()["generation"], 2);
    }
}

#[test]
fn a_rebuild_since_any_generation_says_whose_directory_it_used() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    for name in ["cat/010.bin", "dog/010.bin"] {
        run(&["delete", &image, name]).code(0);
    }
    let since = |generation: &str| run(&["rebuild", &image, "--since", generation]).code(0);
    assert!(since("1").text().contains("base       none"), "{}", since("1").text());
    let two = since("2");
    assert!(two.text().contains("base       the directory of generation 2"), "{}", two.text());
    run(&["rebuild", &image, "--since", "4"]).code(1).complains_of(&["no generation 4 yet"]);
    let json = run(&["rebuild", &image, "--since", "3", "--json"]).code(0).json();
    assert_eq!((&json["base"], &json["live_samples"]), (&3.into(), &298.into()));
    run(&["verify", &image]).code(0);
}

#[test]
fn a_saved_directory_opens_the_image_until_the_image_moves_on() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let file = dir.arg("directory");
    let served = Served::start(&image, &[]);
    let saved = run(&["snapshot", "save", &served.address, &file, "--json"]).code(0).json();
    assert_eq!((&saved["generation"], &saved["live_samples"]), (&1.into(), &300.into()));
    run(&["snapshot", "check", &served.address, &file]).code(0);
    drop(served);
    let ls = |more: &[&str]| run(&[&["ls", "-R", &image], more].concat()).code(0).stdout;
    assert_eq!(ls(&["--snapshot", &file]), ls(&[]));
    run(&["read", &image, "--snapshot", &file]).code(0);
    run(&["delete", &image, "cat/000.bin"]).code(0);
    run(&["snapshot", "check", &image, &file]).code(1).complains_of(&["generation"]);
    run(&["ls", &image, "--snapshot", &file])
        .code(1)
        .complains_of(&["generation", "snapshot save"]);
    run(&["import", &dir.arg("source"), &dir.arg("other.dlfs")]).code(0);
    run(&["ls", &dir.arg("other.dlfs"), "--snapshot", &file]).code(1).complains_of(&["image"]);
    fs::write(&file, "nonsense").unwrap();
    run(&["ls", &image, "--snapshot", &file]).code(3);
}

#[test]
fn a_newer_generation_that_may_be_lost_is_reported_and_not_overwritten() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    dir.make_source("more");
    fs::rename(dir.path("more"), dir.path("below")).unwrap();
    fs::create_dir(dir.path("more")).unwrap();
    fs::rename(dir.path("below"), dir.path("more/below")).unwrap();
    run(&["import", &dir.arg("more"), &image, "--append"]).code(0);
    let snapshot = dir.arg("directory");
    run(&["snapshot", "save", &image, &snapshot]).code(0);
    run(&["read", &image, "--state", &dir.arg("state")]).code(0);
    // The first copy has generation 2.
    let mut bytes = fs::read(&image).unwrap();
    bytes[1000] ^= 1;
    fs::write(&image, &bytes).unwrap();

    let said = ["generation 1 is used, and a newer one may be lost", "dlfs rebuild"];
    let read = run(&["read", &image, "--json"]).code(0);
    read.complains_of(&said);
    assert_eq!(read.json()["samples"], 300);
    let stat = run(&["stat", &image, "--json"]).code(0);
    stat.complains_of(&said);
    let stat = stat.json();
    let copy = &stat["bad_superblock_copies"][0];
    assert_eq!((&copy["offset_bytes"], &copy["may_be_newer"]), (&0.into(), &true.into()));
    assert!(run(&["stat", &image]).code(0).text().contains("generation 2 may be lost"));
    let verified = run(&["verify", &image]).code(3);
    assert!(verified.text().contains("generation 2 may be lost"), "{}", verified.text());
    let newer = ["generation 2", "opened at", "superblock may be damaged", "dlfs verify"];
    run(&["snapshot", "check", &image, &snapshot]).code(1).complains_of(&newer);
    run(&["read", &image, "--snapshot", &snapshot]).code(1).complains_of(&newer);
    run(&["read", &image, "--state", &dir.arg("state")]).code(1).complains_of(&newer);

    let refused = ["generation 2", "dlfs rebuild", "--accept-older-generation"];
    run(&["delete", &image, "cat/010.bin"]).code(1).complains_of(&refused);
    run(&["purge", &image]).code(1).complains_of(&refused);
    fs::create_dir_all(dir.path("new/class")).unwrap();
    fs::write(dir.path("new/class/file"), "x").unwrap();
    let new = dir.arg("new");
    run(&["import", &new, &image, "--append"]).code(1).complains_of(&refused);
    assert!(fs::read(&image).unwrap() == bytes, "nothing was written");

    let other = dir.arg("other.dlfs");
    fs::write(&other, &bytes).unwrap();
    let accepted = ["delete", &other, "cat/010.bin", "--accept-older-generation", "--json"];
    assert_eq!(run(&accepted).code(0).json()["live_samples"], 299);
    let rebuilt = run(&["rebuild", &image, "--json"]).code(0).json();
    assert_eq!((&rebuilt["generation"], &rebuilt["live_samples"]), (&2.into(), &600.into()));
    assert_eq!(rebuilt["mended_copies"], 1);
    run(&["verify", &image]).code(0);
    run(&["delete", &image, "cat/010.bin"]).code(0);
}
