//! import from the user's view: sources, refusals, and lists of bad entries.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::sync::mpsc;

use crate::common::{self, TestDir, dlfs, run};
use crate::doctor::{environment, object_store::ObjectStore};

#[test]
fn an_import_reports_for_people_and_in_json() {
    let dir = TestDir::with_source();
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    let text = run(&["import", &source, &image]).code(0);
    assert!(text.text().contains("imported 300 samples"), "{}", text.text());
    assert!(text.text().contains("dlfs serve"), "it says what to do next");
    let json = run(&["import", &source, &image, "--force", "--json"]).code(0).json();
    assert_eq!(json["samples"], 300);
    assert_eq!(json["from"], "folder");
    assert_eq!(json["bad"].as_array().unwrap().len(), 0);
    assert!(json["uuid"].as_str().unwrap().len() >= 32);
}

#[test]
fn an_image_that_holds_something_is_kept_unless_force_says_otherwise() {
    let dir = TestDir::with_image();
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    let before = fs::read(&image).unwrap();
    run(&["import", &source, &image]).code(1).complains_of(&["train.dlfs", "--force"]);
    assert_eq!(fs::read(&image).unwrap(), before);
    fs::write(dir.path("letter.txt"), "Dear Sir or Madam").unwrap();
    run(&["import", &source, &dir.arg("letter.txt")]).code(1).complains_of(&["letter.txt"]);
    assert_eq!(fs::read(dir.path("letter.txt")).unwrap(), b"Dear Sir or Madam");
    run(&["import", &source, &image, "--force"]).code(0);
}

#[test]
fn append_makes_the_next_generation() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    fs::create_dir_all(dir.path("more/owl")).unwrap();
    fs::write(dir.path("more/owl/1.bin"), "hoot").unwrap();
    run(&["import", &dir.arg("more"), &image, "--append"]).code(0);
    let stat = run(&["stat", &image, "--json"]).code(0).json();
    assert_eq!((&stat["generation"], &stat["samples"]), (&2.into(), &301.into()));
    assert_eq!(run(&["cat", &image, "owl/1.bin"]).code(0).stdout, b"hoot");
    run(&["verify", &image]).code(0);
}

#[test]
fn what_cannot_be_imported_is_all_named_and_left_out_on_request() {
    let dir = TestDir::with_source();
    let folder = dir.path("source");
    symlink("nowhere", folder.join("cat/dangling")).unwrap();
    symlink("/etc/hostname", folder.join("dog/outside")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(folder.join("newt/pipe")).status();
    assert!(fifo.unwrap().success());
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    let bad = ["cat/dangling", "dog/outside", "newt/pipe"];
    let refused = run(&["import", &source, &image, "--links", "inside"]).code(1);
    refused.complains_of(&bad);
    refused.complains_of(&["--on-error skip"]);
    run(&["ls", &image]).code(1);
    let skip = ["import", &source, &image, "--on-error", "skip"];
    let json = run(&[&skip[..], &["--links", "inside", "--json"]].concat()).code(0).json();
    assert_eq!(json["samples"], 300);
    let named: Vec<&str> = json["bad"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    assert_eq!(named, bad);
    let text = run(&[&skip[..], &["--links", "inside", "--force"]].concat()).code(0);
    assert!(bad.iter().all(|name| text.text().contains(name)), "{}", text.text());
    // By default links are followed.
    let text = run(&[&skip[..], &["--force"]].concat()).code(0);
    assert!(text.text().contains("imported 301 samples"), "{}", text.text());
    let told = "followed   1 link out of the source (0 B): dog/outside";
    assert!(text.text().contains(told), "{}", text.text());
}

#[test]
fn an_import_of_nothing_is_an_error_whatever_is_left_out() {
    let dir = TestDir::new();
    fs::create_dir_all(dir.path("source/cat")).unwrap();
    symlink("/nowhere/at/all", dir.path("source/cat/dangling")).unwrap();
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    for more in [&["--on-error", "skip"][..], &["--on-error", "skip", "--json"], &[]] {
        run(&[&["import", &source, &image][..], more].concat()).code(1);
    }
    run(&["ls", &image]).code(1);
}

#[test]
fn bad_commands_say_what_is_wrong_and_end_with_2() {
    let dir = TestDir::with_source();
    let source = dir.arg("source");
    let image = dir.arg("x.dlfs");
    let cases: [(&[&str], &str); 7] = [
        (&["import", &source], "IMAGE"),
        (&["import", &source, &image, "--append", "--force"], "--force"),
        (&["import", &source, &image, "--from", "zip"], "zip"),
        (&["import", &source, &image, "--chunk-size", "3M"], "power of two"),
        (&["import", &source, "nvme-tcp://host"], "nvme-tcp://host"),
        (&["frobnicate"], "frobnicate"),
        (&[], "Usage"),
    ];
    for (arguments, named) in cases {
        run(arguments).code(2).complains_of(&[named]);
    }
    assert!(!dir.path("x.dlfs").exists());
}

#[test]
fn sources_and_images_that_are_not_there_are_named() {
    let dir = TestDir::with_source();
    run(&["import", &dir.arg("nothing"), &dir.arg("x.dlfs")]).code(1).complains_of(&["nothing"]);
    fs::create_dir(dir.path("empty")).unwrap();
    run(&["import", &dir.arg("empty"), &dir.arg("x.dlfs")]).code(1).complains_of(&["empty"]);
    for command in ["ls", "stat", "verify", "read", "shuffle-report"] {
        run(&[command, &dir.arg("absent.dlfs")]).code(1).complains_of(&["absent.dlfs"]);
    }
    fs::write(dir.path("letter.txt"), "Dear Sir or Madam").unwrap();
    run(&["ls", &dir.arg("letter.txt")]).code(1).complains_of(&["letter.txt"]);
}

#[test]
fn namespaces_of_different_images_are_refused() {
    let dir = TestDir::with_image();
    run(&["import", &dir.arg("source"), &dir.arg("other.dlfs")]).code(0);
    let both = format!("{},{}", dir.arg("train.dlfs"), dir.arg("other.dlfs"));
    run(&["ls", &both]).code(1).complains_of(&["image"]);
}

#[test]
fn an_import_that_a_signal_stops_goes_on_with_resume() {
    let dir = TestDir::new();
    let folder = dir.path("source/big");
    fs::create_dir_all(&folder).unwrap();
    for index in 0..64_u8 {
        fs::write(folder.join(format!("{index}.bin")), vec![index; 1 << 20]).unwrap();
    }
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    let mut command = common::dlfs();
    command.args(["import", &source, &image, "--chunk-size", "1M"]);
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    // As soon as something is written; on a fast machine the import may be over by then.
    while fs::metadata(&image).map_or(0, |found| found.len()) == 0
        && child.try_wait().unwrap().is_none()
    {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    if child.try_wait().unwrap().is_none() {
        common::signal(&child, "TERM");
    }
    let code = common::wait(&mut child).code();
    if code != Some(0) {
        assert_eq!(code, Some(4), "stopped, and can be resumed");
        run(&["ls", &image]).code(1);
        run(&["import", &source, &image]).code(1).complains_of(&["--resume"]);
        run(&["import", &source, &image, "--chunk-size", "1M", "--resume"]).code(0);
    }
    run(&["verify", &image]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
}

#[test]
fn a_signal_ends_the_wait_for_a_store_that_is_tried_again_and_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (send, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Whoever asked may be gone by now.
            let _ = stream.set_nodelay(true).and_then(|()| {
                let mut lines = BufReader::new(&stream).lines();
                while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
                let busy =
                    "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                (&stream).write_all(busy.as_bytes())
            });
            if send.send(()).is_err() {
                return;
            }
        }
    });
    let dir = TestDir::new();
    let mut command = common::dlfs();
    command.args(["import", "s3://bucket/folder/", &dir.arg("train.dlfs")]);
    command.envs([("AWS_ENDPOINT_URL", &*endpoint), ("AWS_SKIP_SIGNATURE", "true")]);
    command.env("AWS_REGION", "us-east-1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    asked.iter().take(3).for_each(drop);
    common::signal(&child, "INT");
    common::end_of(child).code(4).complains_of(&["stopped while waiting for the store"]);
}

#[test]
fn files_of_several_splits_are_said_of_a_folder_and_of_a_store() {
    let dir = TestDir::new();
    let store = ObjectStore::good();
    let image = dir.arg("train.dlfs");
    let import = |source: &str| {
        let mut command = common::dlfs();
        command.args(["import", source, &image, "--force"]).envs(environment(&store.endpoint()));
        common::finish(command).code(0).stderr
    };
    let says = "files of the splits test, train become one data set";
    // By the names of files, and by those of their folders.
    for (train, test) in [("train-0.jsonl", "test-0.jsonl"), ("train/0.jsonl", "test/0.jsonl")] {
        let source = dir.arg(&train.replace(['/', '.'], "-"));
        for name in [train, test] {
            let path = std::path::Path::new(&source).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{\"x\": 1}\n").unwrap();
            store.put(&format!("{train}/{name}"), "{\"x\": 1}\n");
        }
        let local =
            if train.contains('/') { format!("{source}/{{train,test}}/0.jsonl") } else { source };
        for source in [local, format!("s3://bucket/{train}/")] {
            let said = import(&source);
            assert!(said.contains(says), "{source}: {said}");
        }
    }
    // Naming the files of one split, as the hint says, silences it.
    assert!(!import(&dir.arg("train-0-jsonl/train-0.jsonl")).contains("splits"));
}

#[test]
fn a_compressed_shard_is_spooled_on_request_and_the_options_are_named_without() {
    let dir = TestDir::with_source();
    let tar = dir.arg("shard.tar.gz");
    let image = dir.arg("train.dlfs");
    let made = std::process::Command::new("tar")
        .args(["czf", &tar, "-C", &dir.arg("source"), "."])
        .status()
        .unwrap();
    assert!(made.success());
    run(&["import", &tar, &image]).code(1).complains_of(&["--spool", "--placement source"]);
    fs::create_dir(dir.path("spool")).unwrap();
    run(&["import", &tar, &image, "--spool", &dir.arg("spool")]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
    assert_eq!(dir.files("spool").len(), 0);
}

#[test]
fn a_folder_of_shards_and_other_files_is_counted_and_taken_as_the_user_says() {
    let dir = TestDir::with_source();
    let shards = dir.arg("shards");
    let image = dir.arg("train.dlfs");
    fs::create_dir(&shards).unwrap();
    for class in ["cat", "dog", "newt"] {
        let tar = format!("{shards}/{class}.tar");
        tar_of(&["-cf", &tar, "-C", &dir.arg("source"), class]);
    }
    fs::write(dir.path("shards/README.md"), "hello").unwrap();
    let report = run(&["import", &shards, &image]).code(0);
    let text = report.text();
    assert!(text.contains("imported 300 samples"), "{text}");
    assert!(text.contains("taken      3 tar archives"), "{text}");
    assert!(text.contains("set aside  1 side file (5 B): README.md"), "{text}");
    fs::write(dir.path("shards/notes.docx"), "notes").unwrap();
    let refused = run(&["import", &shards, &image, "--force"]).code(1);
    refused.complains_of(&[
        "3 tar archives",
        "1 other file, 5 bytes (notes.docx)",
        "--from folder",
    ]);
    let json = run(&["import", &shards, &image, "--force", "--from", "tar", "--json"]);
    let json = json.code(0).json();
    assert_eq!(json["samples"], 300);
    let taken = |what: &str, kind: &str| {
        let all = json["taken"].as_array().unwrap();
        let found = all.iter().find(|it| it["what"] == what && it["as"] == kind);
        found.unwrap_or_else(|| panic!("{what} in {json}"))["files"].clone()
    };
    assert_eq!(
        (taken("tar archive", "shard"), taken("other file", "set aside")),
        (3.into(), 1.into())
    );
    let text = run(&["import", &shards, &image, "--force", "--from", "folder"]).code(0);
    assert!(text.text().contains("taken      3 files .tar"), "{}", text.text());
}

#[test]
fn archives_within_an_archive_are_said_and_taken_apart_by_the_option_that_is_named() {
    let dir = TestDir::with_source();
    let classes = dir.arg("classes");
    let outer = dir.arg("outer.tar");
    let image = dir.arg("train.dlfs");
    fs::create_dir(&classes).unwrap();
    for class in ["cat", "dog", "newt"] {
        let tar = format!("{classes}/{class}.tar");
        tar_of(&["-cf", &tar, "-C", &dir.arg(&format!("source/{class}")), "."]);
    }
    tar_of(&["-cf", &outer, "-C", &classes, "cat.tar", "dog.tar", "newt.tar"]);
    let whole = run(&["import", &outer, &image]).code(0);
    assert!(whole.text().contains("3 archives within an archive"), "{}", whole.text());
    assert!(whole.text().contains("; --nested takes their files"), "{}", whole.text());
    run(&["import", &outer, &image, "--force", "--nested"]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
}

#[test]
fn a_small_archive_becomes_no_larger_image_than_the_option_says() {
    let dir = TestDir::with_source();
    let folder = dir.arg("zeroes");
    let tar = dir.arg("a.tar.gz");
    let image = dir.arg("train.dlfs");
    fs::create_dir(&folder).unwrap();
    fs::File::create(format!("{folder}/a")).unwrap().set_len(270 << 20).unwrap();
    tar_of(&["-czf", &tar, "-C", &folder, "a"]);
    let import = ["import", &tar, &image, "--placement", "source"];
    let refused = run(&import).code(1);
    refused.complains_of(&["more than 100 times", "--max-expansion allows more"]);
    run(&[&import[..], &["--max-expansion", "100000"]].concat()).code(0);
}

#[test]
fn a_sparse_member_is_refused_by_name_and_what_follows_it_is_imported() {
    let dir = TestDir::with_source();
    let tar = dir.arg("a.tar");
    let image = dir.arg("train.dlfs");
    let file = fs::File::create(dir.path("source/cat/holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", 1 << 20).unwrap();
    let all = ["source/cat/000.bin", "source/cat/holes", "source/dog"];
    tar_of(&[&["--sparse", "--format=gnu", "-cf", &tar, "-C", &dir.arg("")][..], &all].concat());
    // Followed by another archive, as from `cat`.
    tar_of(&["-cf", &dir.arg("b.tar"), "-C", &dir.arg(""), "source/newt"]);
    let both = [fs::read(&tar).unwrap(), fs::read(dir.path("b.tar")).unwrap()].concat();
    fs::write(&tar, both).unwrap();
    for placement in ["shuffled", "source"] {
        let arguments = ["import", &tar, &image, "--force", "--placement", placement];
        run(&arguments)
            .code(1)
            .complains_of(&["source/cat/holes", "pack it again without --sparse"]);
        let skip = [&arguments[..], &["--on-error", "skip", "--json"]].concat();
        let json = run(&skip).quiet().json();
        assert_eq!(
            (&json["samples"], &json["bad"][0]["name"]),
            (&201.into(), &"source/cat/holes".into())
        );
        assert_eq!(json["taken"][1]["as"], "appended archive", "{json}");
    }
}

/// A buffer of the file's second batch begins behind its end, on which the `arrow-buffer` of today panics.
#[cfg(feature = "formats")]
#[test]
fn a_file_on_which_a_decoder_panics_is_named_on_one_line() {
    let dir = TestDir::new();
    let rows = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/rows/file.arrow");
    let mut bytes = fs::read(rows).unwrap();
    bytes[4970] = 1;
    fs::write(dir.path("bad.arrow"), bytes).unwrap();
    let import = |more: &[&str]| {
        let mut command = dlfs();
        command.args(["import", &dir.arg("bad.arrow"), &dir.arg("train.dlfs")]).args(more);
        command.env("RUST_BACKTRACE", "1");
        common::finish(command)
    };
    let refused = import(&[]).code(1);
    refused.complains_of(&["bad.arrow/11: its decoder failed at ", "--on-error skip"]);
    assert_eq!(refused.stderr.lines().count(), 3, "{}", refused.stderr);
    let json = import(&["--on-error", "skip", "--json"]).quiet().json();
    assert_eq!((&json["samples"], &json["bad"][0]["name"]), (&11.into(), &"bad.arrow/11".into()));
}

#[test]
fn a_zstd_shard_is_imported_as_it_comes() {
    let dir = TestDir::with_source();
    let tar = dir.arg("shard.tar");
    let image = dir.arg("train.dlfs");
    tar_of(&["-cf", &tar, "-C", &dir.arg("source"), "."]);
    let packed = zstd_stored(&fs::read(&tar).unwrap());
    fs::create_dir(dir.path("shards")).unwrap();
    fs::write(dir.path("shards/shard.tar.zst"), packed).unwrap();
    let shards = dir.arg("shards");
    run(&["import", &shards, &image]).code(1).complains_of(&["shard.tar.zst", "--spool"]);
    run(&["import", &shards, &image, "--placement", "source"]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
}

/// A zstd frame of stored blocks (RFC 8878, section 3.1.1).
fn zstd_stored(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0]; // one segment, four bytes of length
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    let mut blocks = bytes.chunks(128 << 10).peekable();
    while let Some(block) = blocks.next() {
        let header = u32::from(blocks.peek().is_none()) | (block.len() as u32) << 3;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.extend_from_slice(block);
    }
    frame
}

fn tar_of(arguments: &[&str]) {
    assert!(std::process::Command::new("tar").args(arguments).status().unwrap().success());
}

#[test]
fn streams_are_imported_as_they_come_where_the_source_s_order_is_kept() {
    let dir = TestDir::with_source();
    let plain = dir.arg("shard.tar");
    let packed = dir.arg("shard.tar.gz");
    for (flags, tar) in [("cf", &plain), ("czf", &packed)] {
        let made = std::process::Command::new("tar")
            .args([flags, tar, "-C", &dir.arg("source"), "."])
            .status()
            .unwrap();
        assert!(made.success());
    }
    run(&["import", &packed, &dir.arg("packed.dlfs"), "--placement", "source"]).code(0);
    let mut piped = common::dlfs();
    piped.args(["import", "/dev/stdin", &dir.arg("piped.dlfs"), "--placement", "source"]);
    piped.arg("--json");
    let mut cat = std::process::Command::new("cat");
    let mut cat = cat.arg(&plain).stdout(std::process::Stdio::piped()).spawn().unwrap();
    piped.stdin(cat.stdout.take().unwrap());
    let report = common::finish(piped).code(0);
    let len = fs::metadata(&plain).unwrap().len();
    assert_eq!(report.json()["taken"][0]["bytes"], len, "{}", report.text());
    cat.wait().unwrap();
    for image in ["packed.dlfs", "piped.dlfs"] {
        let out = format!("out-{image}");
        run(&["export", &dir.arg(image), &dir.arg(&out)]).code(0);
        assert_eq!(dir.files(&out), dir.files("source"), "{image}");
    }
}

#[test]
fn the_beginning_of_a_pipe_tells_a_webdataset_and_what_it_does_not_tell_ends_the_import() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("in")).unwrap();
    let names = |from: u32, to: u32, ends: &[&str]| -> Vec<String> {
        (from..to).flat_map(|at| ends.iter().map(move |end| format!("{at:03}.{end}"))).collect()
    };
    let early = names(0, 20, &["jpg", "txt"]);
    let late = [names(0, 70, &["jpg"]), names(70, 90, &["jpg", "txt"])].concat();
    late.iter().chain(&early).for_each(|name| fs::write(dir.path("in").join(name), name).unwrap());
    let input = dir.arg("in");
    let import = |tar: &str, more: &[&str]| {
        let mut command = common::dlfs();
        command.args(["import", "-", &dir.arg("image.dlfs"), "--force", "--json"]).args(more);
        command.stdin(fs::File::open(dir.path(tar)).unwrap());
        let mut cat = std::process::Command::new("cat");
        let mut cat = cat.arg(dir.path(tar)).stdout(Stdio::piped()).spawn().unwrap();
        command.stdin(cat.stdout.take().unwrap());
        let ran = common::finish(command);
        let _ = cat.wait(); // it may have been left alone
        ran
    };
    for (tar, members) in [("early.tar", &early), ("late.tar", &late)] {
        let mut arguments = vec!["cf".to_owned(), dir.arg(tar), "-C".to_owned(), input.clone()];
        arguments.extend(members.iter().cloned());
        tar_of(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let spool = dir.arg("in");
    for way in [&["--placement", "source"][..], &["--spool", &spool]] {
        let json = import("early.tar", way).code(0).json();
        assert_eq!((&json["samples"], &json["from"]), (&20.into(), &"webdataset".into()));
        assert!(json["decided"].as_str().unwrap().contains("000.jpg and 000.txt"), "{json}");
        let stopped = import("late.tar", way).code(1);
        stopped.complains_of(&["070.jpg", "--from webdataset", "--from tar"]);
        let from = |kind| import("late.tar", &[way, &["--from", kind]].concat());
        if way[0] == "--spool" {
            assert_eq!(from("webdataset").code(0).json()["samples"], 90);
        } else {
            from("webdataset").code(1).complains_of(&["070.txt", "--spool DIR"]);
        }
        assert_eq!(from("tar").code(0).json()["samples"], 110);
    }
}

#[test]
fn a_line_that_names_a_pipe_or_a_device_names_no_sample() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("set")).unwrap();
    fs::write(dir.path("set/a.jpg"), "bytes").unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(dir.path("set/pipe")).status();
    assert!(fifo.unwrap().success());
    symlink("/dev/zero", dir.path("set/zero")).unwrap();
    let names = ["a.jpg", "pipe", "zero"].map(|name| format!("{{\"file_name\": \"{name}\"}}\n"));
    fs::write(dir.path("set/metadata.jsonl"), names.concat()).unwrap();
    let lines = dir.arg("set/metadata.jsonl");
    let image = dir.arg("image.dlfs");
    let refused = run(&["import", &lines, &image]).code(1);
    refused.complains_of(&[
        "metadata.jsonl/1",
        "is a FIFO",
        "metadata.jsonl/2",
        "is a character device",
    ]);
    let json = run(&["import", &lines, &image, "--on-error", "skip", "--json"]).code(0).json();
    assert_eq!(json["samples"], 1);
}

#[test]
fn a_table_gives_samples_columns_that_are_shown_selected_and_exported() {
    let dir = TestDir::with_source();
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    let table = dir.arg("table.csv");
    let mut text = "file,width,score:f32,lang,good\n".to_owned();
    for at in 0..100 {
        let half = at as f64 / 2.0;
        let lang = ["de", "\"a, b\"", ""][at % 3];
        text += &format!("cat/{at:03}.bin,{},{half},{lang},{}\n", 500 + at, at % 2 == 0);
    }
    fs::write(&table, text + "cow/000.bin,1,1,de,true\n").unwrap();
    let import = |image: &str, more: &[&str]| run(&[&["import", &source, image], more].concat());
    let said = import(&image, &["--columns", &table]).code(0);
    let counts = "values of 100 samples; 200 samples have none; 1 rows name no sample";
    assert!(said.text().contains(counts), "{}", said.text());
    let stat = run(&["stat", &image]).code(0);
    let columns = "columns      width int, score f32, lang str, good bool";
    assert!(stat.text().contains(columns), "{}", stat.text());
    let one = run(&["stat", &image, "cat/003.bin", "--json"]).code(0).json();
    let expected = serde_json::json!({"width": 503, "score": 1.5, "lang": "de", "good": false});
    assert_eq!(one["columns"], expected);
    let listed = run(&["ls", "-R", &image, "--json"]).code(0);
    let last = listed.text().lines().last().unwrap().to_owned();
    assert!(last.contains("\"width\":null"), "{last}");
    let select = |expression: &str| run(&["select", &image, expression, "--json"]).code(0).json();
    assert_eq!(select("width >= 510 and lang == 'a, b'")["views"][0]["samples"], 30);
    assert_eq!(select("score < 2.5 and good == true or width == none")["views"][0]["samples"], 203);

    let out = dir.arg("out");
    let again = dir.arg("again.dlfs");
    let csv = dir.arg("out.csv");
    run(&["export", &image, &out, "--columns", &csv]).code(0);
    import(&again, &["--columns", &csv]).code(0);
    let line = |image: &str| run(&["ls", "-R", image, "--json"]).code(0).stdout;
    assert_eq!(line(&again), line(&image));
    run(&["export", &image, &dir.arg("other"), "--columns", &csv])
        .code(1)
        .complains_of(&["out.csv"]);

    let chosen = ["--columns", &table, "--column", "width:str", "--column", "good", "--force"];
    import(&again, &chosen).code(0);
    let stat = run(&["stat", &again]).code(0);
    assert!(stat.text().contains("columns      width str, good bool"), "{}", stat.text());
    for (more, what) in [
        (&["--column", "width:i3"][..], "none of int, float, f32, bool and str"),
        (&["--column", "wide"], "no column `wide` among file, width, score, lang, good"),
        (&["--columns-key", "lang"], "line 4: there is no name of a sample"),
    ] {
        let ran = import(&again, &[&["--columns", &table, "--force"], more].concat());
        assert!(ran.stderr.contains(what), "{more:?}: {}", ran.stderr);
    }
    run(&["verify", &again]).code(0);
}

#[test]
fn options_stand_between_the_sources_and_the_image() {
    let dir = TestDir::with_source();
    let source = dir.arg("source");
    let image = dir.arg("train.dlfs");
    for _ in 0..2 {
        run(&["import", &source, "--force", &image]).code(0);
    }
    fs::create_dir(dir.path("more")).unwrap();
    fs::write(dir.path("more/one"), "one").unwrap();
    let more = dir.arg("more");
    run(&["import", &source, "--force", &more, "--seed", "3", &image, "--quiet"]).code(0);
    assert_eq!(run(&["stat", &image, "--json"]).code(0).json()["samples"], 301);
    // Folders may be called as the steps of an import by many.
    fs::rename(dir.path("source"), dir.path("plan")).unwrap();
    let mut import = dlfs();
    import.args(["import", "plan", "--force", "plan.dlfs"]).current_dir(dir.path(""));
    assert!(import.status().unwrap().success());
    let mut plan = dlfs();
    plan.args(["import-parts", "plan", "plan", "-o", "a.plan", "0.dlfs,1.dlfs"]);
    assert!(plan.current_dir(dir.path("")).status().unwrap().success());
}

#[cfg(feature = "cloud")]
#[test]
fn a_request_that_is_made_again_is_told_from_its_second_attempt_on() {
    let dir = TestDir::new();
    let files = [("set/a.bin".to_owned(), b"purr".to_vec())].into();
    let server = crate::web_server::WebServer::new(files);
    let source = server.url("once", "set/");
    let image = dir.arg("train.dlfs");
    let told = run(&["import", &source, &image]).code(0);
    told.complains_of(&["/once/set/", "attempt 1 failed", "HTTP status 503 Service Unavailable"]);
    assert_eq!(run(&["cat", &image, "a.bin"]).code(0).stdout, b"purr");
}
