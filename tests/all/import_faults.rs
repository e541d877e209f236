//! An import whose disk fails, fills up, or loses its connection or power: the previous generation stays
//! complete, and resuming ends with the bytes of an undisturbed import.

use std::collections::BTreeMap;

use crate::import_support::disk::{Disks, Event, Failure};
use crate::import_support::{Random, contents, options, paths, tree};
use crate::support::archives::member;
use dlfs::import::{ImportOptions, Onto, PlacementOrder, import_onto};
use dlfs::qpair::IoError;
use dlfs::{ErrorKind, Result};

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// A source, and one to append.
struct Scene {
    first: tempfile::TempDir,
    second: tempfile::TempDir,
    first_files: Files,
    all_files: Files,
    namespaces: usize,
}

impl Scene {
    fn new(namespaces: usize) -> Scene {
        let first = tempfile::tempdir().unwrap();
        let second = tempfile::tempdir().unwrap();
        let first_files = tree(first.path(), 30, 20_000, 1);
        let mut all_files = first_files.clone();
        all_files.extend(tree(second.path(), 25, 20_000, 2));
        Scene { first, second, first_files, all_files, namespaces }
    }

    fn empty(&self) -> Disks {
        Disks::new(self.namespaces, DISK_BYTES)
    }

    /// The image after the first import.
    fn imported(&self) -> Vec<Vec<u8>> {
        let disks = self.empty();
        self.import(&disks, Onto::Empty).unwrap();
        assert_eq!(contents(&disks.devices()).unwrap(), self.first_files);
        disks.contents()
    }

    /// The image after the second.
    fn appended(&self) -> Vec<Vec<u8>> {
        let disks = Disks::holding(&self.imported());
        self.append(&disks, Onto::Append).unwrap();
        assert_eq!(contents(&disks.devices()).unwrap(), self.all_files);
        disks.contents()
    }

    fn import(&self, disks: &Disks, onto: Onto) -> Result<()> {
        import_onto(&paths(self.first.path()), &disks.devices(), &options(onto), &mut ()).map(drop)
    }

    fn append(&self, disks: &Disks, onto: Onto) -> Result<()> {
        let options = ImportOptions { time_ns: Some(2_000_000_000), ..options(onto) };
        import_onto(&paths(self.second.path()), &disks.devices(), &options, &mut ()).map(drop)
    }

    /// Appends to what is there: with `Append` if the append's journal was never written.
    fn go_on_appending(&self, disks: &Disks) {
        match self.append(disks, Onto::Resume) {
            // The journal is that of the first import, of another source.
            Err(error) if matches!(error.kind(), ErrorKind::BadSource | ErrorKind::NotFound) => {
                self.append(disks, Onto::Append).unwrap();
            }
            result => result.unwrap(),
        }
    }
}

const DISK_BYTES: u64 = 3 << 20;

fn no_space(first: u64, count: u64) -> Failure {
    Failure { first, count, error: IoError::Os(28), loses_unflushed: false }
}

#[test]
fn every_write_of_an_import_may_fail_once_or_for_good() {
    let scene = Scene::new(2);
    let expected = scene.imported();
    let disks = scene.empty();
    disks.fail(None);
    scene.import(&disks, Onto::Empty).unwrap();
    let operations = disks.operations();
    assert!(operations > 15, "{operations}");
    for first in 0..operations {
        for count in [1, u64::MAX] {
            let disks = scene.empty();
            disks.fail(Some(no_space(first, count)));
            let error = scene.import(&disks, Onto::Empty).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "operation {first}: {error:?}");
            disks.fail(None);
            // The last write may have been done although its flush failed.
            match contents(&disks.devices()) {
                Ok(found) => assert_eq!(found, scene.first_files, "operation {first}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}"),
            }
            scene.import(&disks, Onto::Resume).unwrap();
            assert!(disks.contents() == expected, "operation {first} x {count}: other bytes");
        }
    }
}

#[test]
fn every_write_of_an_append_may_fail_and_the_generation_before_stays() {
    let scene = Scene::new(2);
    let before = scene.imported();
    let expected = scene.appended();
    let disks = Disks::holding(&before);
    disks.fail(None);
    scene.append(&disks, Onto::Append).unwrap();
    for first in 0..disks.operations() {
        let disks = Disks::holding(&before);
        disks.fail(Some(no_space(first, u64::MAX)));
        scene.append(&disks, Onto::Append).unwrap_err();
        disks.fail(None);
        let found = contents(&disks.devices()).unwrap();
        assert!(found == scene.first_files || found == scene.all_files, "operation {first}");
        scene.go_on_appending(&disks);
        assert!(disks.contents() == expected, "operation {first}: other bytes");
    }
}

#[test]
fn a_connection_that_is_lost_and_comes_back_does_not_end_an_import() {
    let scene = Scene::new(2);
    let expected = scene.imported();
    let disks = scene.empty();
    disks.fail(None);
    scene.import(&disks, Onto::Empty).unwrap();
    let operations = disks.operations();
    for first in 0..operations {
        for loses_unflushed in [false, true] {
            let disks = scene.empty();
            let error = IoError::Disconnected("cut".into());
            disks.fail(Some(Failure { first, count: 2, error, loses_unflushed }));
            scene.import(&disks, Onto::Empty).unwrap();
            assert!(disks.contents() == expected, "operation {first}: other bytes");
        }
    }
}

#[test]
fn a_flush_that_fails_while_a_stream_is_read_ends_the_import() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tar.zst");
    let members = (0..80).flat_map(|n| member(&n.to_string(), b'0', "", &vec![n; 1 << 20]));
    let archive: Vec<u8> = members.chain([0; 1024]).collect();
    std::fs::write(&path, zstd::encode_all(&archive[..], 1).unwrap()).unwrap();
    let import = |disks: &Disks| {
        let options = ImportOptions {
            placement: PlacementOrder::Source,
            chunk_size_bytes: 4 << 20,
            ..options(Onto::Empty)
        };
        import_onto(&paths(&path), &disks.devices(), &options, &mut ())
    };
    let disks = Disks::new(1, 128 << 20);
    disks.keep_events();
    assert_eq!(import(&disks).unwrap().samples, 80);
    let events = disks.events();
    let is_chunk =
        |event: &Event| matches!(event, Event::Write { bytes, .. } if bytes.len() > 500_000);
    let first = events.iter().position(is_chunk);
    let last = events.iter().rposition(is_chunk);
    let mut flushes = (0..events.len()).filter(|at| matches!(events[*at], Event::Flush { .. }));
    let flush = flushes.find(|at| first < Some(*at) && Some(*at) < last);
    let flush = flush.expect("one flush while the stream is read") as u64;
    // It may have been sent somewhat earlier, between writes.
    for first in flush - 4..=flush {
        let disks = Disks::new(1, 128 << 20);
        disks.fail(Some(no_space(first, 1)));
        assert!(import(&disks).is_err(), "operation {first} failed unseen");
    }
}

/// The disks' contents after a power loss following `events`: everything that was flushed, and of the rest
/// what `keep` selects, sector by sector.
fn after_power_cut(
    start: &[Vec<u8>],
    events: &[Event],
    mut keep: impl FnMut() -> bool,
) -> Vec<Vec<u8>> {
    let mut disks = start.to_vec();
    for (at, event) in events.iter().enumerate() {
        let Event::Write { disk, offset, bytes } = event else { continue };
        let flushed = events[at..].iter().any(|later| match later {
            Event::Flush { disk: flushed } => flushed == disk,
            Event::Write { .. } => false,
        });
        // Sectors are atomic; a write of several may be torn.
        for (sector, bytes) in
            bytes.chunks(if flushed { usize::MAX } else { TEAR_BYTES }).enumerate()
        {
            let at = *offset as usize + sector * TEAR_BYTES;
            if flushed || keep() {
                disks[*disk][at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
    disks
}

const TEAR_BYTES: usize = 2048;

#[test]
fn a_power_cut_anywhere_leaves_the_generation_before_or_the_new_one() {
    let scene = Scene::new(2);
    let before = scene.imported();
    let expected = scene.appended();
    let disks = Disks::holding(&before);
    disks.keep_events();
    scene.append(&disks, Onto::Append).unwrap();
    let events = disks.events();
    let mut random = Random::new(11);
    let mut old = 0;
    let mut new = 0;
    for cut in 0..=events.len() {
        for luck in [0, 100, 50, 50, 90] {
            let keep = || random.below(100) < luck;
            let disks = Disks::holding(&after_power_cut(&before, &events[..cut], keep));
            let found = contents(&disks.devices()).unwrap();
            old += usize::from(found == scene.first_files);
            new += usize::from(found == scene.all_files);
            assert!(found == scene.first_files || found == scene.all_files, "event {cut}");
            if luck == 50 {
                scene.go_on_appending(&disks);
                assert!(disks.contents() == expected, "event {cut}: other bytes");
            }
        }
    }
    assert!(old > 50 && new > 3, "{old} old and {new} new generations");
}

#[test]
fn a_power_cut_in_the_first_import_leaves_nothing_or_all_of_it() {
    let scene = Scene::new(1);
    let expected = scene.imported();
    let disks = scene.empty();
    let start = disks.contents();
    disks.keep_events();
    scene.import(&disks, Onto::Empty).unwrap();
    let events = disks.events();
    let mut random = Random::new(12);
    for cut in 0..=events.len() {
        for luck in [0, 100, 50] {
            let keep = || random.below(100) < luck;
            let disks = Disks::holding(&after_power_cut(&start, &events[..cut], keep));
            match contents(&disks.devices()) {
                Ok(found) => assert_eq!(found, scene.first_files),
                Err(error) => assert!(
                    // A torn first superblock is neither an image nor blank.
                    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt),
                    "event {cut}: {error:?}"
                ),
            }
            scene.import(&disks, Onto::Resume).unwrap();
            assert!(disks.contents() == expected, "event {cut}: other bytes");
        }
    }
}

#[test]
fn a_full_disk_says_what_it_needs_before_anything_is_written() {
    let scene = Scene::new(1);
    let disks = Disks::new(1, 256 << 10);
    let error = scene.import(&disks, Onto::Empty).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    assert!(disks.contents()[0].iter().all(|&byte| byte == 0));
}
