//! Imports from web servers with the habits of real ones: signed URLs, programs, listings, several machines.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::import_support::{Random, contents, options};
use crate::support::archives::member;
use crate::support::web_server::WebServer;
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, ImportReport, Onto, import_onto};
use dlfs::places::PlaceOptions;
use dlfs::qpair::Device;
use dlfs::qpair::mem::MemNamespace;
use dlfs::{ErrorKind, Result};

type Samples = BTreeMap<Vec<u8>, Vec<u8>>;

/// Files of two classes, one of them empty, and a tar archive of two members.
fn files() -> BTreeMap<String, Vec<u8>> {
    let mut random = Random::new(11);
    let mut files = BTreeMap::new();
    for name in ["set/cat/a.bin", "set/cat/b & c.bin", "set/dog/d.bin"] {
        let len = 1 + random.below(200_000);
        files.insert(name.to_owned(), random.bytes(len));
    }
    files.insert("set/dog/empty".to_owned(), Vec::new());
    let long = random.bytes(150_000);
    let tar = [member("x", b'0', "", &long), member("y", b'0', "", b"two"), vec![0; 1024]].concat();
    files.insert("shard.tar".to_owned(), tar);
    files
}

fn import(server: &WebServer, how: &str, name: &str) -> Result<(ImportReport, Samples)> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
    // One that refuses the first request is asked again, also by a busy machine.
    let patience = Duration::from_millis(if how == "once" { 60_000 } else { 300 });
    let places = PlaceOptions {
        range_bytes: 50_000,
        window_bytes: 200_000,
        patience,
        ..PlaceOptions::default()
    };
    let options = ImportOptions { places, ..options(Onto::Empty) };
    let source = PathBuf::from(server.url(how, name));
    let report = import_onto(&[source], &devices, &options, &mut ())?;
    Ok((report, contents(&devices)?))
}

fn of_folder(files: &BTreeMap<String, Vec<u8>>) -> Samples {
    let inside = |(name, bytes): (&String, &Vec<u8>)| {
        name.strip_prefix("set/").map(|name| (name.as_bytes().to_vec(), bytes.clone()))
    };
    files.iter().filter_map(inside).collect()
}

#[test]
fn shards_are_read_from_servers_that_refuse_head_send_no_length_or_no_ranges() {
    let files = files();
    let server = WebServer::new(files.clone());
    let (_, expected) = import(&server, "plain", "shard.tar").unwrap();
    assert_eq!((expected.len(), &*expected[&b"y"[..]]), (2, &b"two"[..]));
    for how in [
        "nohead405",
        "nohead403",
        "nohead404",
        "nohead500",
        "nohead501",
        "zero",
        "chunked",
        "closing",
        "chunks206",
        "norange",
        "once",
    ] {
        let (report, found) = import(&server, how, "shard.tar").unwrap_or_else(|error| {
            panic!("{how}: {}", error.report());
        });
        assert_eq!(report.kind, SourceKind::Tar, "{how}");
        assert!(found == expected, "{how}: other samples");
    }
}

#[test]
fn the_pages_on_which_servers_list_files_are_followed() {
    let files = files();
    let server = WebServer::new(files.clone());
    for (how, name) in [
        ("plain", "set/"),
        ("plain", "set"),
        ("nginx", "set/"),
        ("dav", "set/"),
        ("chunked", "set/"),
    ] {
        let (report, found) = import(&server, how, name).unwrap_or_else(|error| {
            panic!("{how}: {}", error.report());
        });
        assert_eq!((report.kind, report.samples), (SourceKind::Folder, 4), "{how}");
        assert!(found == of_folder(&files), "{how}: other samples");
    }
    let image: Address = server.url("nginx", "set/").parse().unwrap();
    let image = Image::open(&[image], &OpenOptions::default()).unwrap();
    assert_eq!(image.directory().num_samples(), 4, "read without an import");
}

#[test]
fn pages_that_list_nothing_are_refused_by_name_and_the_hint_leads_further() {
    let files = files();
    let server = WebServer::new(files.clone());
    let error = import(&server, "odd", "set/").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let report = error.report();
    assert!(report.contains("/odd/set/") && report.contains("lists no files"), "{report}");
    assert!(report.contains("--from list"), "{report}");
    let urls: Vec<String> = files
        .keys()
        .filter(|name| name.starts_with("set/"))
        .map(|name| server.url("odd", &name.replace(' ', "%20").replace('&', "%26")))
        .collect();
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), urls.join("\n")).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemNamespace::new(16 << 20, 4096).unwrap())];
    let given = ImportOptions { from: SourceKind::List, ..options(Onto::Empty) };
    let list = list.path().to_path_buf();
    let report = import_onto(std::slice::from_ref(&list), &devices, &given, &mut ()).unwrap();
    assert_eq!(report.samples, 4);
    for (how, name) in [("html404", "gone.tar"), ("html404", "gone")] {
        let error = import(&server, how, name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{how}");
        assert!(error.report().contains("page"), "{}", error.report());
    }
}

#[test]
fn what_is_final_is_asked_for_once_and_told_with_its_status() {
    let server = WebServer::new(files());
    let error = import(&server, "final501", "shard.tar").unwrap_err();
    assert!(error.report().contains("501 Not Implemented"), "{}", error.report());
    let asked = server.asked();
    assert!(asked.len() <= 4, "{asked:?}");
    let gone = import(&server, "plain", "gone.tar").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    let away = import(&server, "away", "shard.tar").unwrap_err();
    assert_eq!(away.kind(), ErrorKind::Busy);
    assert!(away.report().contains("503 Service Unavailable"), "{}", away.report());
}

#[test]
fn machines_that_give_one_file_several_entity_tags_are_told_as_that() {
    let server = WebServer::new(files());
    let error = import(&server, "etags", "shard.tar").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
    assert!(error.report().contains("several entity tags"), "{}", error.report());
    assert!(error.report().contains("/etags/shard.tar"), "{}", error.report());
}
