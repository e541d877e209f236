//! Two importers of one remote image, of which one is stopped while the other takes its place.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, Served, dlfs, end_of, run, signal};

/// Starts an import that is to be stopped in the middle.
fn start(source: &str, address: &str) -> Child {
    let mut command = dlfs();
    command.args(["import", source, address, "--chunk-size", "1M", "--keep-alive-tmo", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

#[test]
fn an_importer_that_is_stopped_harms_no_image_that_was_committed_meanwhile() {
    let place = Place::with_source();
    fs::create_dir_all(place.path("large/a")).unwrap();
    for number in 0..200u8 {
        fs::write(place.path(&format!("large/a/{number}")), vec![number; 500_000]).unwrap();
    }
    let (large, small) = (place.arg("large"), place.arg("source"));
    thread::scope(|scope| {
        for megabytes in [8, 30, 55] {
            let (place, large, small) = (&place, &large, &small);
            scope.spawn(move || {
                let image = format!("image{megabytes}");
                let file = fs::File::create(place.path(&image)).unwrap();
                file.set_len(128 << 20).unwrap();
                let served = Served::start(&place.arg(&image), &["--writable"]);
                let address = &served.address;
                let stopped = start(large, address);
                let until = Instant::now() + Duration::from_secs(60);
                // Blocks of 512 bytes that the file takes up.
                while file.metadata().unwrap().blocks() < megabytes << 11 && Instant::now() < until
                {
                    thread::sleep(Duration::from_millis(1));
                }
                signal(&stopped, "STOP");
                run(&["import", small, address, "--force", "--keep-alive-tmo", "1"]).code(0);
                signal(&stopped, "CONT");
                let ended = end_of(stopped);
                let out = format!("out{megabytes}");
                run(&["verify", address]).code(0);
                run(&["export", address, &place.arg(&out)]).code(0);
                assert_eq!(place.files(&out), place.files("source"), "{}", ended.stderr);
                // Unless it was done before it could be stopped.
                if ended.status.code() != Some(0) {
                    ended.complains_of(&["another has taken its place"]);
                }
            });
        }
    });
}
