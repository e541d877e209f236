//! Imports over a network that damages, loses and delays data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::import_support::served::{self, AfterChunks, short_leased, through};
use crate::import_support::wire::{Direction, Flip, Wire};
use crate::import_support::{Random, contents, is_long, paths, tree};
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::import::many::{
    PartPlace, PartWriter, WritePlan, commit_import, import_part, plan_import,
};
use dlfs::import::{
    self, EditOptions, ImportOptions, NewSample, Onto, PlacementOrder, Writer, WriterOptions,
};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device, open};
use dlfs::target::Target;
use dlfs::units::Nsid;

fn serve(disk: &MemNamespace) -> Target {
    served::serve(std::slice::from_ref(disk), None)
}

fn short_timeouts() -> ConnectOptions {
    ConnectOptions {
        io_timeout: Duration::from_millis(400),
        keep_alive_tmo: Duration::from_secs(1),
        ..ConnectOptions::default()
    }
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
fn a_resumed_import_does_not_wait_for_a_write_that_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 100, 9000, 1);
    let disk = MemNamespace::new(4 << 20, 512).unwrap();
    let target = serve(&disk);
    let address = [target.address(Nsid(1))];
    import_to(dir.path(), &address, &short_leased(Onto::Empty), &short_timeouts()).unwrap();
    let mut io = Blocking::new(disk.queue_pair().unwrap()).unwrap();
    let begun = Instant::now();
    for round in 1..=4u64 {
        // As if it had stopped before its commit with one chunk not written: the read that finds the next
        // chunk in place also receives the completion of that chunk's write.
        for offset in COPY_OFFSETS {
            io.write_at(offset, &[0; SUPERBLOCK_BYTES]).unwrap();
        }
        io.write_at(round * (64 << 10), &[0; 4096]).unwrap();
        import_to(dir.path(), &address, &short_leased(Onto::Resume), &short_timeouts()).unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "one slept for a whole deadline");
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
    assert_eq!(contents(&devices).unwrap(), files);
}

#[test]
fn one_flipped_bit_while_connecting_or_opening_does_not_end_a_command() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 60, 9000, 1);
    let disk = MemNamespace::new(2 << 20, 512).unwrap();
    let target = serve(&disk);
    import_to(
        dir.path(),
        &[target.address(Nsid(1))],
        &short_leased(Onto::Empty),
        &short_timeouts(),
    )
    .unwrap();
    let connect = ConnectOptions { hdr_digest: true, data_digest: true, ..short_timeouts() };
    let options = OpenOptions { connect, ..OpenOptions::default() };
    let open = |wire: &Wire| Image::open(&[through(wire)], &options).and_then(|i| i.load_names());
    let calm = Wire::to(target.local_addr());
    open(&calm).unwrap();
    let carried = calm.carried();
    assert!(carried.len() >= 4, "{carried:?}");
    let flips = 6 * carried.len();
    let mut struck = 0;
    let mut random = Random::new(13);
    for (connection, [_, to_host]) in carried.into_iter().enumerate() {
        for _ in 0..6 {
            // After ICResp, which no digest covers.
            let offset = 128 + random.below(to_host as usize - 128) as u64;
            let flip = Flip {
                connection,
                direction: Direction::ToHost,
                offset,
                bit: random.next() as u32,
            };
            let wire = Wire::to(target.local_addr());
            wire.flip(flip);
            open(&wire).unwrap_or_else(|error| panic!("{flip:?}: {}", error.report()));
            struck += wire.struck();
        }
    }
    // The calm one may have carried a little more: keep alives, while the machine was busy.
    assert!(struck * 10 >= flips * 9, "{struck} of {flips}");
}

#[test]
fn an_import_works_with_the_queues_that_a_target_grants() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 120, 9000, 1);
    let more = tempfile::tempdir().unwrap();
    let mut all = files.clone();
    all.extend(tree(more.path(), 40, 9000, 2));
    for (queues, num_namespaces) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
        let disks: Vec<_> =
            (0..num_namespaces).map(|_| MemNamespace::new(4 << 20, 512).unwrap()).collect();
        let target = served::serve(&disks, None);
        let image: Vec<Address> =
            (1..=num_namespaces).map(|nsid| target.address(Nsid(nsid))).collect();
        let connect = ConnectOptions { nr_io_queues: queues, ..short_timeouts() };
        let wanted = |onto| ImportOptions { reader_threads: 0, ..short_leased(onto) };
        import_to(dir.path(), &image, &wanted(Onto::Empty), &connect).unwrap();
        import_to(more.path(), &image, &wanted(Onto::Append), &connect).unwrap();
        let name = all.keys().next().unwrap().clone();
        import::delete(&image, &[name], &EditOptions::default(), &connect).unwrap();
        import::purge(&image, &EditOptions::default(), &connect, &mut ()).unwrap();
        import::rebuild(&image, None, &connect, &mut ()).unwrap();
        let options = OpenOptions { connect, ..OpenOptions::default() };
        let opened = Image::open(&image, &options).unwrap();
        let verify = dlfs::dataset::VerifyOptions { queue_pairs: 4, ..Default::default() };
        let report = opened.verify(&verify, &mut |_| ()).unwrap();
        assert_eq!(report.damages.len(), 0, "{:?}", report.damages);
        assert_eq!(report.samples, all.len() as u64 - 1, "{queues} queues");
    }
}

#[test]
fn an_import_whose_network_was_held_harms_no_image_that_was_committed_meanwhile() {
    let ours = tempfile::tempdir().unwrap();
    let theirs = tempfile::tempdir().unwrap();
    tree(ours.path(), 500, 20_000, 1);
    let files = tree(theirs.path(), 300, 20_000, 2);
    std::thread::scope(|scope| {
        for after in [2, 9, 20, 33, 41, 55] {
            let ours = ours.path();
            let theirs = theirs.path();
            let files = &files;
            scope.spawn(move || {
                let disk = MemNamespace::new(16 << 20, 512).unwrap();
                let target = serve(&disk);
                let wire = Wire::to(target.local_addr());
                let direct = [target.address(Nsid(1))];
                let held = [through(&wire)];
                let options = ImportOptions { reader_threads: 3, ..short_leased(Onto::Empty) };
                let is_held = AtomicBool::new(false);
                let mut hold = || {
                    wire.hold();
                    is_held.store(true, Ordering::SeqCst);
                };
                let mut progress = AfterChunks { left: after, then: &mut hold };
                let error = std::thread::scope(|scope| {
                    let slow = scope.spawn(|| {
                        import::import(
                            &paths(ours),
                            &held,
                            &options,
                            &short_timeouts(),
                            &mut progress,
                        )
                    });
                    while !is_held.load(Ordering::SeqCst) {
                        assert!(!slow.is_finished(), "it ended before its network was held");
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let other = loop {
                        match import_to(
                            theirs,
                            &direct,
                            &short_leased(Onto::Force),
                            &short_timeouts(),
                        ) {
                            // A renewal was on its way.
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
    let options = ImportOptions { reader_threads: 3, ..short_leased(Onto::Empty) };
    import::import(
        &paths(dir.path()),
        &[through(&wire)],
        &options,
        &short_timeouts(),
        &mut progress,
    )
    .unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
    assert_eq!(contents(&devices).unwrap(), files);
}

/// Imports through a network with one flipped bit, several times in parallel; returns how many succeeded.
/// Those images are intact.
fn import_over_flipped_bits(seed: u64, without_digests: bool, stream: bool) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(&dir.path().join("files"), 60, 9000, seed);
    let source = if stream { archive_of(dir.path(), &files) } else { dir.path().join("files") };
    let source = &source;
    let files = &files;
    let ended_well = &AtomicUsize::new(0);
    let import_through = |flip: Option<Flip>| {
        let disk = MemNamespace::new(2 << 20, 512).unwrap();
        let target = serve(&disk);
        let wire = Wire::to(target.local_addr());
        if without_digests {
            wire.without_digests();
        }
        flip.into_iter().for_each(|flip| wire.flip(flip));
        let placement = if stream { PlacementOrder::Source } else { PlacementOrder::Shuffled };
        let options = ImportOptions { placement, reader_threads: 2, ..short_leased(Onto::Empty) };
        let result = import_to(source, &[through(&wire)], &options, &short_timeouts());
        if result.is_ok() {
            let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
            assert_eq!(&contents(&devices).unwrap(), files, "{flip:?}");
        }
        (result, wire.carried())
    };
    let (calm, carried) = import_through(None);
    calm.unwrap();
    // Connections that carry chunks, not the commit: without digests nobody detects a misdirected write.
    let bulky: Vec<(usize, u64)> = carried.iter().map(|bytes| bytes[0]).enumerate().collect();
    let bulky: Vec<_> = bulky.into_iter().filter(|&(_, to_target)| to_target > 60_000).collect();
    assert!(!bulky.is_empty(), "{carried:?}");
    let mut random = Random::new(seed);
    let mut flips: Vec<Flip> = Vec::new();
    for _ in 0..24 {
        let (connection, to_target) = bulky[random.below(bulky.len())];
        let offset = 128 + random.below(to_target as usize * 6 / 10) as u64;
        flips.push(Flip {
            connection,
            direction: Direction::ToTarget,
            offset,
            bit: random.next() as u32,
        });
    }
    std::thread::scope(|scope| {
        for part in flips.chunks(8) {
            scope.spawn(move || {
                for flip in part {
                    match import_through(Some(*flip)).0 {
                        Ok(()) => _ = ended_well.fetch_add(1, Ordering::SeqCst),
                        Err(error) => println!("{flip:?}: {}", error.report()),
                    }
                }
            });
        }
    });
    ended_well.load(Ordering::SeqCst)
}

fn archive_of(dir: &Path, files: &BTreeMap<Vec<u8>, Vec<u8>>) -> PathBuf {
    let path = dir.join("a.tar.gz");
    let gzip = flate2::write::GzEncoder::new(
        std::fs::File::create(&path).unwrap(),
        flate2::Compression::fast(),
    );
    let mut tar = tar::Builder::new(gzip);
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, std::str::from_utf8(name).unwrap(), &content[..]).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap();
    path
}

#[test]
fn one_flipped_bit_is_detected_by_digests_and_repaired() {
    let ended_well = import_over_flipped_bits(1, false, false);
    assert!(ended_well >= 20, "only {ended_well} of 24 went on");
}

#[test]
fn writes_without_a_digest_are_read_back_and_repaired_before_the_commit() {
    let ended_well = import_over_flipped_bits(2, true, false);
    assert!(ended_well >= 20, "only {ended_well} of 24 went on");
}

#[test]
fn a_stream_that_no_digest_covers_is_read_back_before_the_commit() {
    // A stream cannot be read again: damage ends the import, and resuming it repairs the damage.
    let ended_well = import_over_flipped_bits(3, true, true);
    assert!(ended_well < 24, "no flipped bit was seen");
}

#[test]
fn writers_ask_for_digests_and_readers_for_what_they_are_told() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 5, 9000, 1);
    let disk = MemNamespace::new(2 << 20, 512).unwrap();
    let target = serve(&disk);
    let address = target.address(Nsid(1));
    import_to(
        dir.path(),
        std::slice::from_ref(&address),
        &short_leased(Onto::Empty),
        &short_timeouts(),
    )
    .unwrap();
    let engine = |options: ConnectOptions| open(&address, &options).unwrap().namespace().engine;
    assert_eq!(engine(short_timeouts()), "tcp");
    let preferring = ConnectOptions { prefer_digests: true, ..short_timeouts() };
    assert_eq!(engine(preferring.clone()), "tcp (header and data digest)");
    assert!(open(&address, &preferring).unwrap().capabilities().checks_writes);
    assert!(!open(&address, &short_timeouts()).unwrap().capabilities().checks_writes);
    let wire = Wire::to(target.local_addr());
    wire.without_digests();
    let without = open(&through(&wire), &preferring).unwrap();
    assert_eq!(
        (without.namespace().engine.as_str(), without.capabilities().checks_writes),
        ("tcp", false)
    );
    let required = ConnectOptions { hdr_digest: true, ..preferring };
    let error = open(&through(&wire), &required).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
}

/// Writes samples number `ids` to the image.
fn write(
    writer: &mut dyn FnMut(&NewSample<'_>) -> dlfs::Result<()>,
    ids: std::ops::Range<u32>,
) -> dlfs::Result<()> {
    for id in ids {
        let name = format!("sample-{id}");
        let content = vec![id as u8; 3000];
        let fields = [Some(&content[..])];
        writer(&NewSample {
            name: Some(name.as_bytes()),
            fields: &fields,
            ..NewSample::default()
        })?;
    }
    Ok(())
}

fn writer_options(onto: Onto) -> WriterOptions {
    WriterOptions { window_bytes: 100_000, image: short_leased(onto), ..WriterOptions::default() }
}

#[test]
fn a_target_that_goes_in_the_middle_ends_a_writer_and_the_generation_before_stands() {
    let disk = MemNamespace::new(16 << 20, 512).unwrap();
    let target = serve(&disk);
    let listen = target.local_addr();
    let image = [target.address(Nsid(1))];
    let connect = ConnectOptions { ctrl_loss_tmo: Duration::from_secs(4), ..short_timeouts() };
    let begin = |onto| Writer::create(&image, writer_options(onto), &connect);
    let mut out = begin(Onto::Empty).unwrap();
    write(&mut |sample| out.write(sample).map(drop), 0..200).unwrap();
    out.finish().unwrap();
    let first = contents(&[Arc::new(disk.clone()) as Arc<dyn Device>]).unwrap();
    assert_eq!(first.len(), 200);

    let mut out = begin(Onto::Append).unwrap();
    // Six windows: the writer takes the last ones when the first are written.
    write(&mut |sample| out.write(sample).map(drop), 200..400).unwrap();
    target.stop();
    let error = write(&mut |sample| out.write(sample).map(drop), 400..800)
        .and_then(|()| out.finish().map(drop))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error:?}");
    assert_eq!(contents(&[Arc::new(disk.clone()) as Arc<dyn Device>]).unwrap(), first);

    let target = served::serve(std::slice::from_ref(&disk), Some(listen));
    let mut out = begin(Onto::Append).unwrap();
    write(&mut |sample| out.write(sample).map(drop), 200..300).unwrap();
    assert_eq!(out.finish().unwrap().generation.0, 2);
    target.stop();
    let devices = [Arc::new(disk) as Arc<dyn Device>];
    assert_eq!(contents(&devices).unwrap().len(), 300);
}

#[test]
fn while_a_part_of_an_append_runs_where_no_lock_is_no_other_change_begins() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first");
    let later = dir.path().join("later");
    let files = tree(&first, 40, 3000, 1);
    tree(&later, 80, 6000, 2);
    let disks = [(); 2].map(|()| MemNamespace::new(16 << 20, 512).unwrap());
    let target = served::serve(&disks, None);
    let image = [1, 2].map(|nsid| target.address(Nsid(nsid)));
    let connect = ConnectOptions::default();
    import_to(&first, &image, &short_leased(Onto::Empty), &connect).unwrap();
    let plan = dir.path().join("append.plan");
    // So long that a busy machine renews it in time.
    let append = ImportOptions { lease: Duration::from_secs(8), ..short_leased(Onto::Append) };
    plan_import(&paths(&later), &image, &append, &connect, &plan, &mut ()).unwrap();
    let name = files.keys().next().unwrap().clone();
    let delete =
        || import::delete(&image, std::slice::from_ref(&name), &EditOptions::default(), &connect);
    let mut error = None;
    let mut meanwhile = || error = delete().err();
    let mut progress = AfterChunks { left: 2, then: &mut meanwhile };
    let report = import_part(&plan, 1, &connect, &mut progress).unwrap();
    assert!(report.chunks > 1, "{report:?}");
    assert_eq!(error.expect("the image is deleted from").kind(), ErrorKind::Busy);
    // It has changed nothing, and the part counts; the next change gives the plan up.
    assert_eq!(import_part(&plan, 1, &connect, &mut ()).unwrap().found, report.chunks);
    import_part(&plan, 0, &connect, &mut ()).unwrap();
    delete().unwrap();
    for part in 0..2 {
        let error = import_part(&plan, part, &connect, &mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale, "{error:?}");
    }
    assert_eq!(commit_import(&plan, &connect, &mut ()).unwrap_err().kind(), ErrorKind::Stale);
    target.stop();
    let devices = disks.map(|disk| Arc::new(disk) as Arc<dyn Device>);
    assert_eq!(contents(&devices).unwrap().len(), 39);
}

/// Long: set `DLFS_LONG_TESTS`. Calls end after 5 s here; an import tries again for 45 s.
#[test]
fn a_network_that_hangs_for_good_ends_whatever_writes() {
    if !is_long() {
        println!("SKIPPED: set DLFS_LONG_TESTS; it takes a minute");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"), 300, 20_000, 1);
    let source = paths(&dir.path().join("source"));
    let connect = ConnectOptions {
        connect_timeout: Duration::from_secs(5),
        ctrl_loss_tmo: Duration::from_secs(5),
        ..ConnectOptions::default()
    };
    let options = ImportOptions { reader_threads: 3, ..short_leased(Onto::Empty) };
    let plan_of = |image: &[Address], name: &str| {
        let plan = dir.path().join(name);
        plan_import(&source, image, &options, &connect, &plan, &mut ()).unwrap();
        plan
    };
    let written = |image: &[Address]| {
        let options = writer_options(Onto::Empty);
        WritePlan::create(image, &options, Vec::new(), &connect).unwrap()
    };
    let begin = |plan: &WritePlan| PartWriter::begin(plan, 0, PartPlace::Own, &connect).unwrap();
    let jobs: [(&str, &Job<'_>); 6] = [
        ("import", &|image, hold| {
            let mut progress = AfterChunks { left: 7, then: hold };
            import::import(&source, image, &options, &connect, &mut progress).map(drop)
        }),
        ("part", &|image, hold| {
            let plan = plan_of(image, "part.plan");
            let mut progress = AfterChunks { left: 7, then: hold };
            import_part(&plan, 0, &connect, &mut progress).map(drop)
        }),
        ("commit", &|image, hold| {
            let plan = plan_of(image, "commit.plan");
            import_part(&plan, 0, &connect, &mut ()).unwrap();
            let mut progress = AfterChunks { left: 7, then: hold };
            commit_import(&plan, &connect, &mut progress).map(drop)
        }),
        ("writer", &|image, hold| {
            let mut out = Writer::create(image, writer_options(Onto::Empty), &connect).unwrap();
            write(&mut |sample| out.write(sample).map(drop), 0..200).unwrap();
            hold();
            write(&mut |sample| out.write(sample).map(drop), 200..1000)?;
            out.finish().map(drop)
        }),
        ("written part", &|image, hold| {
            let mut out = begin(&written(image));
            write(&mut |sample| out.write(sample).map(drop), 0..200).unwrap();
            hold();
            write(&mut |sample| out.write(sample).map(drop), 200..1000)?;
            out.finish().map(drop)
        }),
        ("commit of written parts", &|image, hold| {
            let plan = written(image);
            let mut out = begin(&plan);
            write(&mut |sample| out.write(sample).map(drop), 0..200).unwrap();
            out.finish().unwrap();
            let mut progress = AfterChunks { left: 1, then: hold };
            plan.commit_all(1, &connect, &mut progress).map(drop)
        }),
    ];
    std::thread::scope(|scope| {
        for (name, job) in jobs {
            scope.spawn(move || {
                let disk = MemNamespace::new(16 << 20, 512).unwrap();
                let target = serve(&disk);
                let wire = Wire::to(target.local_addr());
                let held_at = std::sync::Mutex::new(None);
                let mut hold = || {
                    wire.hold();
                    *held_at.lock().unwrap() = Some(Instant::now());
                };
                let error = job(&[through(&wire)], &mut hold).unwrap_err();
                let lasted = held_at.lock().unwrap().unwrap().elapsed();
                println!("{name}: ended after {lasted:?}: {error}");
                // 46 s at most, and what a busy machine takes to see that they are over.
                assert!(lasted < Duration::from_secs(120), "{name}: {lasted:?}");
            });
        }
    });
}

/// Holds the network.
type Hold<'a> = dyn FnMut() + Send + 'a;
/// Writes onto an image, and calls what holds the network on the way.
type Job<'a> = dyn Fn(&[Address], &mut Hold<'_>) -> dlfs::Result<()> + Sync + 'a;
