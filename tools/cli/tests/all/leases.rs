//! Two importers of one remote image: one is stopped while the other takes over.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Served, TestDir, dlfs, end_of, run, signal};

/// Starts an import that will be stopped midway.
fn start(source: &str, address: &str) -> Child {
    let mut command = dlfs();
    command.args(["import", source, address, "--chunk-size", "1M", "--keep-alive-tmo", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

#[test]
fn an_importer_that_is_stopped_harms_no_image_that_was_committed_meanwhile() {
    let dir = TestDir::with_source();
    fs::create_dir_all(dir.path("large/a")).unwrap();
    for number in 0..200u8 {
        fs::write(dir.path(&format!("large/a/{number}")), vec![number; 500_000]).unwrap();
    }
    let (large, small) = (dir.arg("large"), dir.arg("source"));
    thread::scope(|scope| {
        for megabytes in [8, 30, 55] {
            let (dir, large, small) = (&dir, &large, &small);
            scope.spawn(move || {
                let image = format!("image{megabytes}");
                let file = fs::File::create(dir.path(&image)).unwrap();
                file.set_len(128 << 20).unwrap();
                let served = Served::start(&dir.arg(&image), &["--writable"]);
                let address = &served.address;
                let stopped = start(large, address);
                let until = Instant::now() + Duration::from_secs(60);
                // Allocated blocks of 512 bytes.
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
                run(&["export", address, &dir.arg(&out)]).code(0);
                assert_eq!(dir.files(&out), dir.files("source"), "{}", ended.stderr);
                // Unless it had finished before it could be stopped.
                if ended.status.code() != Some(0) {
                    ended.complains_of(&["another has taken its place"]);
                }
            });
        }
    });
}
