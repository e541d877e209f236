//! Imports over a network that damages, loses and holds what goes through it.

mod import_support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::import::{self, EditOptions, ImportOptions, Onto, Progress, Stage};
use dlfs::nvme::{Address, Nqn};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use dlfs::volume::{Image, OpenOptions};
use import_support::wire::{Flip, Way, Wire};
use import_support::{Random, contents, options, paths, tree};

const NQN: &str = "nqn.2026-11.io.dlfs:network";

fn serve(disk: &MemNamespace) -> Target {
    serve_all(std::slice::from_ref(disk))
}

fn serve_all(disks: &[MemNamespace]) -> Target {
    let options = TargetOptions { writable: true, ..TargetOptions::new(Nqn::new(NQN).unwrap()) };
    let devices = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Device>);
    Target::bind(options, devices.collect()).unwrap()
}

/// The target's address by way of a network.
fn through(wire: &Wire) -> Address {
    let text = format!("nvme-tcp://{}/{NQN}", wire.address());
    text.parse().unwrap()
}

fn hasty() -> ConnectOptions {
    ConnectOptions {
        io_timeout: Duration::from_millis(400),
        keep_alive_tmo: Duration::from_secs(1),
        ..ConnectOptions::default()
    }
}

fn wanted(onto: Onto) -> ImportOptions {
    ImportOptions { lease: Duration::from_millis(800), ..options(onto) }
}

fn import_to(
    source: &Path,
    image: &[Address],
    options: &ImportOptions,
    connect: &ConnectOptions,
) -> dlfs::Result<()> {
    import::import(&paths(source), image, options, connect, &mut ()).map(drop)
}

#[test]
fn an_import_that_is_gone_on_with_does_not_wait_for_a_write_that_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 100, 9000, 1);
    let disk = MemNamespace::new(4 << 20, 512).unwrap();
    let target = serve(&disk);
    let address = [target.address(Nsid(1))];
    import_to(dir.path(), &address, &wanted(Onto::Empty), &hasty()).unwrap();
    let mut io = Blocking::new(disk.queue_pair().unwrap()).unwrap();
    for round in 1..=4u64 {
        // As if it had stopped before its commit, with one chunk not written: the read that finds the
        // next one in place brings the end of that chunk's write too.
        for offset in COPY_OFFSETS {
            io.write_at(offset, &[0; SUPERBLOCK_BYTES]).unwrap();
        }
        io.write_at(round * (64 << 10), &[0; 4096]).unwrap();
        let begun = Instant::now();
        import_to(dir.path(), &address, &wanted(Onto::Resume), &hasty()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(50), "it slept for a whole deadline");
    }
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
    assert_eq!(contents(&devices).unwrap(), files);
}

#[test]
fn one_flipped_bit_while_connecting_or_opening_does_not_end_a_command() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 60, 9000, 1);
    let disk = MemNamespace::new(2 << 20, 512).unwrap();
    let target = serve(&disk);
    import_to(dir.path(), &[target.address(Nsid(1))], &wanted(Onto::Empty), &hasty()).unwrap();
    let connect = ConnectOptions { hdr_digest: true, data_digest: true, ..hasty() };
    let options = OpenOptions { connect, ..OpenOptions::default() };
    let open = |wire: &Wire| Image::open(&[through(wire)], &options).and_then(|i| i.load_names());
    let calm = Wire::to(target.local_addr());
    open(&calm).unwrap();
    let carried = calm.carried();
    assert!(carried.len() >= 4, "{carried:?}");
    let mut random = Random::new(13);
    for (connection, [_, to_host]) in carried.into_iter().enumerate() {
        for _ in 0..6 {
            // Behind ICResp, which no digest covers.
            let offset = 128 + random.below(to_host as usize - 128) as u64;
            let flip = Flip { connection, way: Way::ToHost, offset, bit: random.next() as u32 };
            let wire = Wire::to(target.local_addr());
            wire.flip(flip);
            open(&wire).unwrap_or_else(|error| panic!("{flip:?}: {}", error.report()));
            assert_eq!(wire.struck(), 1, "{flip:?}");
        }
    }
}

#[test]
fn an_import_does_with_the_queues_that_a_target_grants() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 120, 9000, 1);
    let more = tempfile::tempdir().unwrap();
    let mut all = files.clone();
    all.extend(tree(more.path(), 40, 9000, 2));
    for (queues, num_namespaces) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
        let disks: Vec<_> =
            (0..num_namespaces).map(|_| MemNamespace::new(4 << 20, 512).unwrap()).collect();
        let target = serve_all(&disks);
        let image: Vec<Address> =
            (1..=num_namespaces).map(|nsid| target.address(Nsid(nsid))).collect();
        let connect = ConnectOptions { nr_io_queues: queues, ..hasty() };
        let wanted = |onto| ImportOptions { reader_threads: 0, ..wanted(onto) };
        import_to(dir.path(), &image, &wanted(Onto::Empty), &connect).unwrap();
        import_to(more.path(), &image, &wanted(Onto::Append), &connect).unwrap();
        let name = all.keys().next().unwrap().clone();
        import::delete(&image, &[name], &EditOptions::default(), &connect).unwrap();
        import::purge(&image, &EditOptions::default(), &connect, &mut ()).unwrap();
        import::rebuild(&image, None, &connect, &mut ()).unwrap();
        let options = OpenOptions { connect, ..OpenOptions::default() };
        let opened = Image::open(&image, &options).unwrap();
        let verify = dlfs::volume::VerifyOptions { queue_pairs: 4, ..Default::default() };
        let report = opened.verify(&verify, &mut |_| ()).unwrap();
        assert_eq!(report.damages.len(), 0, "{:?}", report.damages);
        assert_eq!(report.samples, all.len() as u64 - 1, "{queues} queues");
    }
}

/// Does something once, after some chunks.
struct AfterChunks<'a> {
    left: u32,
    then: &'a mut (dyn FnMut() + Send),
}

impl Progress for AfterChunks<'_> {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}
    fn advance(&mut self, _: u64, _: u64) {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            (self.then)();
        }
    }
}

#[test]
fn an_import_whose_network_was_held_harms_no_image_that_was_committed_meanwhile() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(ours.path(), 500, 20_000, 1);
    let files = tree(theirs.path(), 300, 20_000, 2);
    std::thread::scope(|scope| {
        for after in [2, 9, 20, 33, 41, 55] {
            let (ours, theirs, files) = (ours.path(), theirs.path(), &files);
            scope.spawn(move || {
                let disk = MemNamespace::new(16 << 20, 512).unwrap();
                let target = serve(&disk);
                let wire = Wire::to(target.local_addr());
                let (direct, held) = ([target.address(Nsid(1))], [through(&wire)]);
                let options = ImportOptions { reader_threads: 3, ..wanted(Onto::Empty) };
                let mut hold = || wire.hold();
                let mut progress = AfterChunks { left: after, then: &mut hold };
                let error = std::thread::scope(|scope| {
                    let slow = scope.spawn(|| {
                        import::import(&paths(ours), &held, &options, &hasty(), &mut progress)
                    });
                    std::thread::sleep(Duration::from_millis(100));
                    let other = loop {
                        match import_to(theirs, &direct, &wanted(Onto::Force), &hasty()) {
                            // Not held yet.
                            Err(error) if error.kind() == ErrorKind::Busy => {}
                            result => break result,
                        }
                    };
                    other.unwrap();
                    wire.go_on();
                    slow.join().unwrap().unwrap_err()
                });
                assert_eq!(error.kind(), ErrorKind::Busy, "after {after} chunks: {error:?}");
                let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
                assert_eq!(&contents(&devices).unwrap(), files, "held after {after} chunks");
            });
        }
    });
}

#[test]
fn an_import_that_was_held_goes_on_when_nobody_took_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 300, 20_000, 1);
    let disk = MemNamespace::new(16 << 20, 512).unwrap();
    let target = serve(&disk);
    let wire = Arc::new(Wire::to(target.local_addr()));
    let mut hold = || {
        wire.hold();
        let wire = Arc::clone(&wire);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2)); // longer than the whole lease
            wire.go_on();
        });
    };
    let mut progress = AfterChunks { left: 7, then: &mut hold };
    let options = ImportOptions { reader_threads: 3, ..wanted(Onto::Empty) };
    import::import(&paths(dir.path()), &[through(&wire)], &options, &hasty(), &mut progress)
        .unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
    assert_eq!(contents(&devices).unwrap(), files);
}
