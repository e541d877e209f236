//! Targets that die, hang, reset their controllers or lose the namespace: reads end in time, and
//! the run continues.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{self, Onto};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{Io, open};
use dlfs::reader::Batch;
use serde_json::json;

use super::import_support::{options, paths, tree};
use super::support::contract::read;
use super::support::nvmf_tgt::NQN;
use super::{both, short_timeouts, target};

#[test]
fn reads_go_on_when_a_killed_target_is_back_and_end_in_time_when_it_is_not() {
    let Some((_alone, mut target)) = target(8) else { return };
    for address in both(&target) {
        let device = open(&address, &short_timeouts(20)).unwrap();
        let mut pair = device.queue_pair().unwrap();
        let mut pending: VecDeque<Io> = (0..40).map(|n| read(n, 65536)).collect();
        pair.submit(&mut pending);
        target.kill();
        let started = Instant::now();
        let mut done = Vec::new();
        while started.elapsed() < Duration::from_millis(300) {
            pair.poll(Instant::now(), 64, &mut done);
        }
        target.restart();
        while done.len() < 40 {
            pair.submit(&mut pending);
            pair.poll(Instant::now(), 64, &mut done);
            assert!(started.elapsed() < Duration::from_secs(60), "{} of 40", done.len());
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        drop((pair, device));

        let device = open(&address, &short_timeouts(2)).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        target.kill();
        let started = Instant::now();
        let error = io.read(0, 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(60), "{error:?}");
        drop((io, device));
        target.restart();
    }
}

#[test]
fn a_target_that_hangs_is_given_up_in_time_and_used_again_when_it_goes_on() {
    let Some((_alone, target)) = target(8) else { return };
    for address in both(&target) {
        let device = open(&address, &short_timeouts(30)).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.read(0, 65536).unwrap();
        target.freeze(true);
        io.set_deadline(Duration::from_secs(3));
        let error = io.read(0, 65536).unwrap_err();
        let kinds = [ErrorKind::TimedOut, ErrorKind::Disconnected];
        assert!(kinds.contains(&error.kind()), "{error:?}");
        target.freeze(false);
        io.set_deadline(Duration::from_secs(60));
        io.read(0, 65536).unwrap();
    }
}

#[test]
fn controllers_that_are_reset_in_mid_batch_are_connected_to_again() {
    let Some((_alone, target)) = target(8) else { return };
    let devices = both(&target).map(|address| open(&address, &short_timeouts(20)).unwrap());
    for device in &devices {
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.write_at(0, &vec![7; 40 * 4096]).unwrap();
    }
    for round in 0..3 {
        let mut pairs = devices.each_ref().map(|device| device.queue_pair().unwrap());
        let mut pending: [VecDeque<Io>; 2] =
            [(); 2].map(|()| (0..40).map(|n| read(n, 4096)).collect());
        let mut done = [Vec::new(), Vec::new()];
        for (pair, pending) in pairs.iter_mut().zip(&mut pending) {
            pair.submit(pending);
        }
        target.throw_all_out();
        let started = Instant::now();
        while done.iter().any(|done| done.len() < 40) {
            for ((pair, pending), done) in pairs.iter_mut().zip(&mut pending).zip(&mut done) {
                pair.submit(pending);
                pair.poll(Instant::now(), 64, done);
            }
            assert!(started.elapsed() < Duration::from_secs(60), "round {round}: {done:?}");
        }
        for completion in done.iter().flatten() {
            assert_eq!(completion.result, Ok(()), "round {round}");
            assert!(completion.buf.iter().all(|&byte| byte == 7));
        }
    }
}

#[test]
fn a_namespace_that_is_removed_is_an_error_and_not_a_hang() {
    let Some((_alone, target)) = target(8) else { return };
    for address in both(&target) {
        let device = open(&address, &short_timeouts(2)).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.read(0, 4096).unwrap();
        target.call("nvmf_subsystem_remove_ns", json!({"nqn": NQN, "nsid": 1}));
        let started = Instant::now();
        let error = io.read(0, 4096).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(60), "{error:?}");
        assert_ne!(error.kind(), ErrorKind::TimedOut, "{error:?}");
        drop((io, device));
        let absent = open(&address, &short_timeouts(2)).err().expect("there is none");
        assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent:?}");
        let namespace = json!({"bdev_name": "Malloc0", "nsid": 1});
        target.call("nvmf_subsystem_add_ns", json!({"nqn": NQN, "namespace": namespace}));
    }
}

/// A hanging device may write late into the reader's memory: the reader gets other memory, and the
/// right bytes.
#[test]
fn epochs_are_read_whole_although_their_target_hangs_again_and_again() {
    let Some((_alone, target)) = target(16) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = tree(folder.path(), 300, 30_000, 3);
    let connect = short_timeouts(60);
    let onto = [target.tcp()];
    import::import(&paths(folder.path()), &onto, &options(Onto::Empty), &connect, &mut ()).unwrap();
    for address in both(&target) {
        let wanted = OpenOptions { connect: connect.clone(), ..OpenOptions::default() };
        let image = Image::open(&[address], &wanted).unwrap();
        let kind = OrderKind::Grouped { lanes: 2, group: 3 };
        let mut options = LoaderOptions::new(OrderSpec { kind, seed: 7 }, 16, 2);
        options.window_bytes = 1 << 20;
        let mut loader = image.prefetcher(options).unwrap();
        let mut batch = Batch::new();
        let mut batches = 0;
        let mut bytes = 0;
        // Every sample is verified against its checksum in the directory.
        while loader.next_into(&mut batch).unwrap() {
            bytes += batch.len_bytes();
            batches += 1;
            if batches % 12 == 5 {
                target.freeze(true);
                std::thread::sleep(Duration::from_millis(1500)); // longer than an I/O may take
                target.freeze(false);
            }
        }
        assert_eq!(bytes, 2 * files.values().map(|file| file.len() as u64).sum::<u64>());
    }
}
