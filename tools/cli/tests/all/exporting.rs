//! export: the output equals the input, and nothing is written outside the folder.

#[path = "../../../../tests/images/mod.rs"]
mod images;

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;

use crate::common::{self, TestDir, dlfs, run};

#[test]
fn a_folder_comes_out_as_it_went_in() {
    let dir = TestDir::with_image();
    let out = run(&["export", &dir.arg("train.dlfs"), &dir.arg("out")]).code(0);
    assert!(out.text().contains("exported 300 samples"));
    assert_eq!(dir.files("out"), dir.files("source"));
}

#[test]
fn more_folders_than_files_may_be_open_come_out_as_they_went_in() {
    let dir = TestDir::new();
    for folder in 0..300 {
        // Media have the samples shuffled, so that an export visits the folders in no order.
        let path = dir.path("source").join(format!("{}/{folder}", folder % 7));
        fs::create_dir_all(&path).unwrap();
        for file in 0..5 {
            fs::write(path.join(format!("{file}.bin")), format!("{folder} {file}")).unwrap();
        }
    }
    run(&["import", &dir.arg("source"), &dir.arg("x.dlfs")]).code(0);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\""]).arg(common::dlfs().get_program());
    let out = command.args(["export", &dir.arg("x.dlfs"), &dir.arg("out")]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(dir.files("out"), dir.files("source"));
}

#[test]
fn a_tar_comes_out_to_a_file_and_to_standard_output() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let tar = dir.arg("out.tar");
    let json = run(&["export", &image, &tar, "--json"]).code(0).json();
    assert_eq!((&json["samples"], &json["files"]), (&300.into(), &300.into()));
    let streamed = run(&["export", &image, "-"]).code(0).stdout;
    assert_eq!(fs::read(&tar).unwrap(), streamed);
    let mut archive = tar::Archive::new(&streamed[..]);
    archive.unpack(dir.path("unpacked")).unwrap();
    assert_eq!(dir.files("unpacked"), dir.files("source"));
}

#[test]
fn no_existing_file_is_overwritten() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    fs::create_dir(dir.path("mine")).unwrap();
    fs::write(dir.path("mine").join("precious"), "mine").unwrap();
    run(&["export", &image, &dir.arg("mine")]).code(1).complains_of(&["not empty", "mine"]);
    fs::write(dir.path("mine.tar"), "precious").unwrap();
    run(&["export", &image, &dir.arg("mine.tar")]).code(1).complains_of(&["mine.tar"]);
    assert_eq!(fs::read(dir.path("mine.tar")).unwrap(), b"precious");
    assert_eq!(dir.files("mine").len(), 1);
}

#[test]
fn samples_of_several_fields_come_out_as_a_file_each() {
    let dir = TestDir::new();
    let mut archive = tar::Builder::new(File::create(dir.path("shard-000.tar")).unwrap());
    let files = [
        ("train/001.jpg", "picture one"),
        ("train/001.cls", "3"),
        ("train/002.jpg", "picture two"),
        ("train/002.cls", "5"),
    ];
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, bytes.as_bytes()).unwrap();
    }
    archive.finish().unwrap();
    let image = dir.arg("web.dlfs");
    run(&["import", &dir.arg("shard-000.tar"), &image, "--from", "webdataset"]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    for (name, bytes) in files {
        assert_eq!(fs::read(dir.path("out").join(name)).unwrap(), bytes.as_bytes(), "{name}");
    }
    assert_eq!(dir.files("out").len(), 4);
    let field = |name| run(&["cat", &image, "train/002", "--field", name]).code(0).stdout;
    assert_eq!(field("jpg"), b"picture two");
    assert_eq!(field("cls"), b"5");
    run(&["cat", &image, "train/002"]).code(2).complains_of(&["--field", "jpg", "cls"]);
    run(&["cat", &image, "train/002", "--field", "png"]).code(1).complains_of(&["png", "jpg"]);
}

/// An image whose samples have `names` that our import would not create.
fn crafted_image(dir: &TestDir, name: &str, names: &[&[u8]]) -> String {
    let samples: Vec<images::Sample> = names
        .iter()
        .map(|name| images::Sample {
            name: name.to_vec(),
            label: None,
            record: b"planted".to_vec(),
        })
        .collect();
    let mut image = images::Image::new(1, dlfs::format::Pack::Aligned);
    image.add(&samples, 0, 0, &[]);
    fs::write(dir.path(name), &image.namespaces[0]).unwrap();
    dir.arg(name)
}

#[test]
fn hostile_names_cannot_leave_the_folder_and_are_listed() {
    let dir = TestDir::new();
    let long = vec![b'x'; 256];
    let absolute = dir.path("absolute").as_os_str().as_bytes().to_vec();
    let hostile: [&[u8]; 9] = [
        b"../escaped",
        b"a/../../escaped",
        &absolute,
        b"..",
        b".",
        b"a//b",
        b"b/",
        b"c/./d",
        &long,
    ];
    let harmless: [&[u8]; 4] = [b"plain", b"new\nline", b"\x1b[31m", b"...three"];
    let image = crafted_image(&dir, "hostile.dlfs", &[&hostile[..], &harmless].concat());
    let ran = run(&["export", &image, &dir.arg("out")]).code(1);
    ran.complains_of(&["../escaped", "absolute path", "256 bytes", "--escape"]);
    assert_eq!(ran.stderr.matches("not exported").count(), hostile.len(), "{}", ran.stderr);
    assert!(ran.text().contains("exported 4 samples"), "{}", ran.text());
    let mut found: Vec<Vec<u8>> =
        dir.files("out").iter().map(|(path, _)| path.as_os_str().as_bytes().to_vec()).collect();
    let mut expected: Vec<Vec<u8>> = harmless.iter().map(|name| name.to_vec()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_only(&dir, &["hostile.dlfs", "out"]);
    // A tar with such names would attack whoever unpacks it.
    let tar = run(&["export", &image, &dir.arg("out.tar"), "--json"]).code(1).json();
    assert_eq!(tar["refused"].as_array().unwrap().len(), hostile.len());
    assert_eq!((&tar["samples"], &tar["files"]), (&4.into(), &harmless.len().into()));
}

#[test]
fn escaped_names_keep_all_samples_inside_the_folder() {
    let dir = TestDir::new();
    let long = vec![b'x'; 300];
    let names: [&[u8]; 6] = [b"../50%", b"/etc/passwd", b"a//b", b".", &long, b"50%"];
    let image = crafted_image(&dir, "hostile.dlfs", &names);
    let json = run(&["export", &image, &dir.arg("out"), "--escape", "--json"]).code(0).json();
    assert_eq!(json["files"], names.len());
    let found: Vec<String> =
        dir.files("out").iter().map(|(path, _)| path.display().to_string()).collect();
    let long = format!("{}%~{:08x}", "x".repeat(200), crc32c::crc32c(&long));
    for name in ["%2E%2E/50%25", "%-/etc/passwd", "a/%-/b", "%2E", "50%", &long] {
        assert!(found.iter().any(|found| found == name), "{name} in {found:?}");
    }
    assert_only(&dir, &["hostile.dlfs", "out"]);
}

#[test]
fn where_a_sample_lies_there_is_no_folder_whichever_comes_first() {
    let dir = TestDir::new();
    let image = crafted_image(&dir, "x.dlfs", &[b"a", b"a/b", b"a/c/d", b"ab/c"]);
    for dest in ["out", "out.tar"] {
        let ran = run(&["export", &image, &dir.arg(dest)]).code(1);
        ran.complains_of(&["a/b", "a/c/d", "is a sample"]);
    }
    let found = dir.files("out");
    assert_eq!(found.len(), 2);
    assert!(dir.path("out/a").is_file() && dir.path("out/ab/c").is_file());
    let mut archive = tar::Archive::new(File::open(dir.path("out.tar")).unwrap());
    assert_eq!(archive.entries().unwrap().count(), 2);
}

#[test]
fn two_samples_with_one_path_are_not_both_written() {
    let dir = TestDir::new();
    let image = crafted_image(&dir, "x.dlfs", &[b"..", b"%2E%2E", b"plain"]);
    for dest in ["out", "out.tar"] {
        let ran = run(&["export", &image, &dir.arg(dest), "--escape", "--json"]).code(1);
        let json = ran.json();
        assert_eq!(
            (&json["files"], &json["refused"].as_array().map(Vec::len)),
            (&2.into(), &Some(1))
        );
    }
    assert_eq!(dir.files("out").len(), 2);
    let mut archive = tar::Archive::new(File::open(dir.path("out.tar")).unwrap());
    assert_eq!(archive.entries().unwrap().count(), 2);
}

#[test]
fn a_sample_of_fields_is_no_file_so_that_a_folder_may_have_its_name() {
    let dir = TestDir::new();
    let mut archive = tar::Builder::new(File::create(dir.path("in.tar")).unwrap());
    for name in ["cat.jpg", "cat.cls", "cat/1.jpg", "cat/1.cls"] {
        let mut header = tar::Header::new_ustar();
        header.set_size(1);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append_data(&mut header, name, &b"5"[..]).unwrap();
    }
    archive.finish().unwrap();
    let image = dir.arg("x.dlfs");
    run(&["import", &dir.arg("in.tar"), &image, "--from", "webdataset"]).code(0);
    run(&["export", &image, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out").len(), 4);
}

#[test]
fn a_failed_export_leaves_no_table_of_columns() {
    let dir = TestDir::with_source();
    let image = dir.arg("train.dlfs");
    fs::write(dir.path("table.csv"), "file,width\ncat/003.bin,5\n").unwrap();
    let columns = ["--columns", &dir.arg("table.csv")];
    run(&[&["import", &dir.arg("source"), &image][..], &columns].concat()).code(0);
    fs::create_dir(dir.path("mine")).unwrap();
    fs::write(dir.path("mine/precious"), "mine").unwrap();
    let table = dir.arg("out.csv");
    let export = |dest: &str| run(&["export", &image, &dir.arg(dest), "--columns", &table]);
    export("mine").code(1).complains_of(&["not empty"]);
    assert!(!dir.path("out.csv").exists());
    export("out").code(0);
    assert!(dir.path("out.csv").exists());
}

#[test]
fn a_damaged_sample_is_left_out_with_exit_code_3() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let json = run(&["stat", &image, "cat/077.bin", "--json"]).code(0).json();
    let mut bytes = fs::read(&image).unwrap();
    bytes[json["offset_bytes"].as_u64().unwrap() as usize] ^= 1;
    fs::write(&image, bytes).unwrap();
    let ran = run(&["export", &image, &dir.arg("out")]).code(3);
    assert!(ran.text().contains("1 sample"), "{}", ran.text());
    assert_eq!(dir.files("out").len(), 299);
    assert!(!dir.path("out/cat/077.bin").exists());
}

#[test]
fn a_closed_pipe_ends_an_export_silently() {
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    let dir = TestDir::with_image();
    let mut command = common::dlfs();
    command.args(["export", &dir.arg("train.dlfs"), "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 512]).unwrap();
    let status = common::wait(&mut child);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.signal(), stderr.as_str()), (Some(13), ""));
}

#[test]
fn messages_that_nobody_reads_do_not_change_the_end_of_an_export() {
    let dir = TestDir::new();
    let image = crafted_image(&dir, "x.dlfs", &[b"..", b"plain"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = common::dlfs();
    command.args(["export", &image, &dir.arg("out")]).stderr(writer);
    assert_eq!(command.status().unwrap().code(), Some(1));
}

#[track_caller]
fn assert_only(dir: &TestDir, expected: &[&str]) {
    let mut found: Vec<String> = fs::read_dir(dir.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, expected, "something was written elsewhere");
}

#[test]
fn fields_with_types_are_told_and_exported_as_the_files_that_they_were() {
    let dir = TestDir::new();
    let vector = |x: f32| {
        let header = dlfs::format::npy::header(dlfs::format::field_type::Element::F32, &[3]);
        [header, [x, 0.5, -1.0].map(f32::to_le_bytes).concat()].concat()
    };
    let files = |i: u8| {
        let tokens = vec![i; 2 * usize::from(i)];
        [("cls", i.to_string().into_bytes()), ("tok", tokens), ("vec.npy", vector(i.into()))]
    };
    let mut archive = tar::Builder::new(File::create(dir.path("shard-000.tar")).unwrap());
    for (i, (field, bytes)) in (0..9).flat_map(|i| files(i).map(|file| (i, file))) {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, format!("{i:03}.{field}"), &bytes[..]).unwrap();
    }
    archive.finish().unwrap();
    let shard = dir.arg("shard-000.tar");
    let image = dir.arg("typed.dlfs");
    let out = dir.arg("out");
    let import = |more: &[&str]| run(&[&["import", &shard, &image, "--force"], more].concat());
    let types =
        ["--field-type", "cls:i64", "--field-type", "tok:u16[*]", "--field-type", "vec.npy:npy"];
    let said = import(&types).code(0);
    let shown = "cls i64=text, tok u16[*], vec.npy f32[3]=npy";
    assert!(said.text().contains(&format!("  types      {shown}")), "{}", said.text());
    let json = import(&[&types[..], &["--json"]].concat()).code(0).json();
    assert_eq!(json["field_types"]["vec.npy"], "f32[3]=npy");
    let stat = run(&["stat", &image]).code(0);
    assert!(stat.text().contains(&format!("fields       {shown}")), "{}", stat.text());
    let stat = run(&["stat", &image, "--json"]).code(0).json();
    assert_eq!(stat["field_types"], json["field_types"]);
    run(&["export", &image, &out]).code(0);
    for (i, (field, bytes)) in (0..9).flat_map(|i| files(i).map(|file| (i, file))) {
        let name = format!("{i:03}");
        assert_eq!(
            fs::read(dir.path(&format!("out/{name}.{field}"))).unwrap(),
            bytes,
            "{name}.{field}"
        );
        let cat = run(&["cat", &image, &name, "--field", field]).code(0);
        assert_eq!(cat.stdout, bytes, "{name}.{field}");
        let cat = run(&["cat", &image, &name, "--field", field, "--range", "1..9"]).code(0);
        assert_eq!(cat.stdout, bytes[1.min(bytes.len())..9.min(bytes.len())], "{name}.{field}");
    }
    for (spec, what) in [
        ("tok", "is not FIELD:TYPE"),
        ("tok:u17", "\"u17\" is no element type: u8, i8, u16"),
        ("png:u8[3]", "no field png: they have cls, tok, vec.npy"),
        ("tok:u16[3]", "field tok is u16[3], which has 6 bytes, and this has 0"),
    ] {
        let ran = import(&["--field-type", spec]);
        assert!(ran.stderr.contains(what), "{spec}: {}", ran.stderr);
    }
}

#[test]
fn long_samples_are_held_by_their_bytes_and_not_by_their_number() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("source")).unwrap();
    for file in 0..40_u8 {
        fs::write(dir.path(&format!("source/{file}")), vec![file; 8 << 20]).unwrap();
    }
    fs::write(dir.path("source/short"), "short").unwrap();
    run(&["import", &dir.arg("source"), &dir.arg("train.dlfs")]).code(0);
    let mut command = dlfs();
    command.args(["export", &dir.arg("train.dlfs"), &dir.arg("out"), "--quiet"]);
    let mut child = command.spawn().unwrap();
    let mut most_kib = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let said = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = said.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        most_kib = most_kib.max(kib.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    assert!(status.success());
    assert_eq!(dir.files("out"), dir.files("source"));
    println!("held {most_kib} KiB of 320 MiB");
    assert!(most_kib < 300 << 10, "{most_kib} KiB");
    let read = run(&["read", &dir.arg("train.dlfs"), "--json"]).code(0).json();
    assert_eq!((&read["samples"], &read["loader"]["batches"]), (&41.into(), &2.into()), "{read}");
}
