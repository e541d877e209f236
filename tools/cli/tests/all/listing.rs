//! ls, stat, cat, verify: the contents of an image.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

use crate::common::{self, TestDir, run};

#[test]
fn ls_lists_folders_then_samples_and_everything_with_recursive() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    assert_eq!(run(&["ls", &image]).code(0).text(), "cat/\ndog/\nnewt/\n");
    let inside = run(&["ls", &image, "dog"]).code(0);
    assert_eq!(inside.text().lines().count(), 100);
    assert!(inside.text().starts_with("000.bin\n001.bin\n"));
    let all = run(&["ls", "-R", &image]).code(0);
    let expected: Vec<String> =
        dir.files("source").iter().map(|(path, _)| path.display().to_string()).collect();
    assert_eq!(all.text().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn ls_long_and_json_tell_id_length_and_label() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let long = run(&["ls", "-l", &image, "dog"]).code(0);
    let first: Vec<&str> = long.text().lines().nth(3).unwrap().split_whitespace().collect();
    assert_eq!(first, ["103", "35", "1", "003.bin"]);
    let json = run(&["ls", "--json", &image, "newt"]).code(0);
    let entries: Vec<serde_json::Value> =
        json.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), 100);
    assert_eq!(entries[3]["name"], "003.bin");
    assert_eq!(entries[3]["kind"], "sample");
    assert_eq!(entries[3]["id"], 203);
    assert_eq!(entries[3]["bytes"], 52);
    assert_eq!(entries[3]["label"], 2);
}

/// Names, paths and tiers with C1 controls, DEL, direction marks and invisible characters.
#[test]
fn nothing_that_a_name_or_path_holds_reaches_the_terminal_as_it_is() {
    let hostile =
        ["c1\u{9b}31m", "del\u{7f}", "rtl\u{202e}gpj", "zero\u{200b}\u{feff}", "tag\u{e0041}"];
    let dir = TestDir::new();
    for name in hostile {
        let class = dir.path("source").join(format!("class{name}"));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(name), name).unwrap();
    }
    let odd = format!("odd{}.dlfs", hostile.concat());
    let image = dir.arg(&odd);
    let missing = dir.arg("none\u{9b}\u{202e}\u{7f}.dlfs");
    let source = dir.arg("source");
    let tier = format!("file:{}:1M", dir.arg("tier\u{9b}\u{202e}"));
    let out = dir.arg("out\u{9b}\u{202e}");
    run(&["import", &source, &image]).code(0);
    let lists: [&[&str]; 16] = [
        &["import", &source, &image],
        &["import", "--force", &source, &image],
        &["import", "--force", "--json", &source, &image],
        &["ls", &image],
        &["ls", "-Rl", &image],
        &["ls", "-R", "--json", &image],
        &["ls", &image, "none\u{9b}\u{202e}"],
        &["ls", &missing],
        &["ls", &image, "\u{9b}", "\u{202e}"],
        &["stat", &image],
        &["stat", "--json", &image],
        &["verify", &missing],
        &["read", &image, "--tier", &tier],
        &["read", &image, "--tier", &format!("{tier}\u{7f}")],
        &["export", "--json", &image, &out],
        &["export", &image, &format!("{out}/none/\u{7f}")],
    ];
    for arguments in lists {
        let ran = run(arguments);
        for text in [String::from_utf8(ran.stdout).unwrap(), ran.stderr] {
            let harms = |c: char| {
                c != '\n' && c.is_control() || "\u{202e}\u{200b}\u{feff}\u{e0041}".contains(c)
            };
            assert!(!text.contains(harms), "{arguments:?}: {text:?}");
        }
    }
    // JSON has the same names.
    let listed = run(&["ls", "-R", "--json", &image]).code(0);
    let name =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone();
    let names: BTreeSet<String> =
        listed.text().lines().map(|line| name(line).as_str().unwrap().to_owned()).collect();
    assert_eq!(names, hostile.iter().map(|name| format!("class{name}/{name}")).collect());
}

#[test]
fn names_that_would_move_the_cursor_are_escaped_and_raw_with_null() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let dir = TestDir::new();
    let source = dir.path("source");
    std::fs::create_dir(&source).unwrap();
    for name in [&b"a\nb"[..], b"\x1b[31mred", b"\xff\xfe", b"plain"] {
        std::fs::write(source.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let image = dir.arg("odd.dlfs");
    run(&["import", &dir.arg("source"), &image]).code(0);
    let listed = run(&["ls", &image]).code(0);
    let lines: BTreeSet<&str> = listed.text().lines().collect();
    assert_eq!(lines, BTreeSet::from(["\\u{1b}[31mred", "a\\nb", "plain", "\\xff\\xfe"]));
    let raw = run(&["ls", "-0", &image]).code(0);
    let names: BTreeSet<&[u8]> =
        raw.stdout.split(|&b| b == 0).filter(|name| !name.is_empty()).collect();
    assert_eq!(names, BTreeSet::from([&b"a\nb"[..], b"\x1b[31mred", b"\xff\xfe", b"plain"]));
    let json = run(&["ls", "--json", &image]).code(0);
    assert!(json.text().lines().any(|line| line.contains("\"name_hex\":\"fffe\"")));
    let mut cat = common::dlfs();
    cat.args(["cat", &image]).arg(OsStr::from_bytes(b"\xff\xfe"));
    assert_eq!(common::finish(cat).code(0).stdout, b"\xff\xfe");
}

#[test]
fn cat_gives_the_bytes_of_samples_by_name_and_by_id() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let files = dir.files("source");
    let (name, bytes) = &files[150];
    let by_name = run(&["cat", &image, name.to_str().unwrap()]).code(0);
    assert_eq!(&by_name.stdout, bytes);
    let by_id = run(&["cat", &image, "--id", "150", "151"]).code(0);
    assert_eq!(by_id.stdout, [bytes.as_slice(), &files[151].1].concat());
    assert_eq!(run(&["cat", &image, "cat/000.bin"]).code(0).stdout, b"");
}

#[test]
fn cat_gives_a_range_of_each_sample() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let files = dir.files("source");
    let range = |range: &str| run(&["cat", &image, "--id", "150", "151", "--range", range]);
    for (text, start, end) in
        [("2..7", 2, 7), ("3..", 3, usize::MAX), ("..1K", 0, 1024), ("7..2", 7, 2)]
    {
        let part = |bytes: &[u8]| {
            let end = end.min(bytes.len());
            bytes[start.min(end)..end].to_vec()
        };
        let expected = [part(&files[150].1), part(&files[151].1)].concat();
        assert_eq!(range(text).code(0).stdout, expected, "{text}");
    }
    for wrong in ["7", "a..b", "1..-2"] {
        range(wrong).code(2).complains_of(&["--range"]);
    }
}

#[test]
fn a_name_or_folder_that_is_not_there_is_named() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    run(&["cat", &image, "cat/nobody.bin"]).code(1).complains_of(&["cat/nobody.bin", "dlfs ls"]);
    run(&["cat", &image, "--id", "300"]).code(1).complains_of(&["no sample 300", "below 300"]);
    run(&["cat", &image, "--id", "first"]).code(2).complains_of(&["first"]);
    run(&["cat", &image, "--field", "jpg", "--id", "1"]).code(1).complains_of(&["jpg"]);
    run(&["ls", &image, "bird"]).code(1).complains_of(&["bird"]);
    run(&["stat", &image, "bird"]).code(1).complains_of(&["bird"]);
    assert_eq!(run(&["ls", &image, "dog/007.bin"]).code(0).text(), "dog/007.bin\n");
}

#[test]
fn stat_tells_image_engine_generation_and_what_the_directory_costs() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let text = run(&["stat", &image]).code(0);
    for word in ["generation 1", "300", "engine     file", "bytes a sample", "checksums", "tree"] {
        assert!(text.text().contains(word), "{word} in {}", text.text());
    }
    let json = run(&["stat", &image, "--json"]).code(0).json();
    let bytes: usize = dir.files("source").iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(json["generation"], 1);
    assert_eq!(json["samples"], 300);
    assert_eq!(json["sample_bytes"], bytes);
    assert_eq!(json["classes"], 3);
    assert_eq!(json["labels"], true);
    assert!(json["namespaces"][0]["engine"].as_str().unwrap().starts_with("file"));
    let parts = json["directory"]["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| part["bytes"].as_u64().unwrap()).sum();
    assert_eq!(json["directory"]["bytes"], sum);
}

#[test]
fn stat_of_a_sample_tells_where_it_lies() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let json = run(&["stat", &image, "newt/050.bin", "--json"]).code(0).json();
    let bytes = &dir.files("source")[250].1;
    assert_eq!(json["id"], 250);
    assert_eq!(json["bytes"], bytes.len());
    assert_eq!(json["label"], 2);
    assert_eq!(json["class"], "newt");
    let crc = json["crc32c"].as_u64().unwrap() as u32;
    assert_eq!(crc, crc32c::crc32c(bytes));
    let at = json["offset_bytes"].as_u64().unwrap() as usize;
    let image_bytes = std::fs::read(&image).unwrap();
    assert_eq!(&image_bytes[at..at + bytes.len()], &bytes[..], "stat says where the bytes are");
    let text = run(&["stat", &image, "--id", "250"]).code(0);
    assert!(text.text().contains("newt/050.bin"));
}

#[test]
fn verify_finds_nothing_in_a_whole_image_and_names_a_flipped_bit() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    assert!(run(&["verify", &image]).code(0).text().contains("no damage: 300 samples"));
    let json = run(&["stat", &image, "dog/060.bin", "--json"]).code(0).json();
    flip(&dir, json["offset_bytes"].as_u64().unwrap() + 5);
    let found = run(&["verify", &image]).code(3);
    assert!(found.text().contains("damaged: dog/060.bin (sample 160"), "{}", found.text());
    let json = run(&["verify", &image, "--json"]).code(3).json();
    assert_eq!(json["verified"], false);
    assert_eq!(json["damages"].as_array().unwrap().len(), 1);
    assert_eq!(json["damages"][0]["name"], "dog/060.bin");
    let cat = run(&["cat", &image, "dog/060.bin"]).code(3);
    cat.complains_of(&["sample 160"]);
    assert_eq!(cat.stdout, b"", "damaged bytes are not handed out");
}

fn flip(dir: &TestDir, at: u64) {
    let path = dir.path("train.dlfs");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at as usize] ^= 0x10;
    std::fs::File::create(path).unwrap().write_all(&bytes).unwrap();
}

#[test]
fn a_closed_pipe_ends_a_listing_silently() {
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    let dir = TestDir::new();
    let source = dir.path("source");
    std::fs::create_dir(&source).unwrap();
    for index in 0..3_000 {
        // Names long enough to fill any pipe.
        std::fs::write(source.join(format!("{index:0200}")), b"x").unwrap();
    }
    let image = dir.arg("train.dlfs");
    run(&["import", &dir.arg("source"), &image]).code(0);
    let mut command = common::dlfs();
    command.args(["ls", &image]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let status = common::wait(&mut child);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(status.signal(), Some(13), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn an_error_that_nobody_can_read_still_decides_the_exit_code() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = common::dlfs();
    command.args(["ls", "/nowhere/train.dlfs"]).stderr(full);
    let status = common::wait(&mut command.spawn().unwrap());
    assert_eq!(status.code(), Some(1));
}

#[test]
fn stat_counts_samples_without_a_label() {
    let dir = TestDir::new();
    fs::create_dir_all(dir.path("source/cat")).unwrap();
    fs::write(dir.path("source/cat/1"), "purr").unwrap();
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    run(&["import", &source, &image]).code(0);
    let stat = run(&["stat", &image]).code(0);
    assert!(stat.text().contains("a label each"), "{}", stat.text());
    fs::write(dir.path("source/stray"), "?").unwrap();
    run(&["import", &source, &image, "--force"]).code(0);
    let stat = run(&["stat", &image]).code(0);
    assert!(stat.text().contains("1 of 2 samples has no label"), "{}", stat.text());
    assert_eq!(run(&["stat", &image, "--json"]).code(0).json()["unlabelled"], 1);
}
