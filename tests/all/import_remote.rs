//! Imports onto a remote namespace: over a socket, one at a time, and onto a target that restarts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::import_support::served::{AfterChunks, NQN, serve, short_leased};
use crate::import_support::{StopAfter, contents, paths, tree};
use dlfs::address::Address;
use dlfs::import::sources::SourceKind;
use dlfs::import::{self, ImportOptions, Onto, PlacementOrder, Progress};
use dlfs::nvme::Nqn;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use dlfs::{ErrorKind, Result};

fn address(target: &Target) -> Address {
    target.address(Nsid(1))
}

fn wanted(onto: Onto) -> ImportOptions {
    ImportOptions { reader_threads: 3, ..short_leased(onto) }
}

fn import_to(
    source: &Path,
    address: Address,
    onto: Onto,
    progress: &mut dyn Progress,
) -> Result<()> {
    import_with(source, address, &wanted(onto), progress)
}

fn import_with(
    source: &Path,
    address: Address,
    options: &ImportOptions,
    progress: &mut dyn Progress,
) -> Result<()> {
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    import::import(&paths(source), &[address], options, &connect, progress).map(drop)
}

#[test]
fn an_import_over_a_socket_gives_the_bytes_of_a_local_one() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 150, 9000, 1);
    let local = MemNamespace::new(4 << 20, 512).unwrap();
    let remote = MemNamespace::new(4 << 20, 512).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(local.clone())];
    import::import_onto(&paths(dir.path()), &devices, &wanted(Onto::Empty), &mut ()).unwrap();
    let target = serve(std::slice::from_ref(&remote), None);
    import_to(dir.path(), address(&target), Onto::Empty, &mut ()).unwrap();
    target.stop();
    let remote: Vec<Arc<dyn Device>> = vec![Arc::new(remote)];
    assert_eq!(contents(&remote).unwrap(), files);
    assert!(bytes(&remote[0]) == bytes(&devices[0]));
}

fn bytes(device: &Arc<dyn Device>) -> Vec<u8> {
    let len = device.namespace().len_bytes() as usize;
    let pair = device.queue_pair().unwrap();
    dlfs::qpair::blocking::Blocking::new(pair).unwrap().read(0, len).unwrap().to_vec()
}

/// Imports from `source` onto a target that is restarted after this many chunks.
fn import_over_a_restart(source: &Path, disk_bytes: u64, after: u32) -> Arc<dyn Device> {
    let disk = MemNamespace::new(disk_bytes, 512).unwrap();
    let first = serve(std::slice::from_ref(&disk), None);
    let listen = first.local_addr();
    let address = address(&first);
    let mut first = Some(first);
    let mut second = None;
    let mut restart = || {
        first.take().unwrap().stop();
        second = Some(serve(std::slice::from_ref(&disk), Some(listen)));
    };
    let mut progress = AfterChunks { left: after, then: &mut restart };
    import_to(source, address, Onto::Empty, &mut progress).unwrap();
    assert!(second.is_some(), "the target was not restarted");
    Arc::new(disk)
}

#[test]
fn a_target_that_dies_in_the_middle_and_returns_does_not_end_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 400, 9000, 1);
    let disk = import_over_a_restart(dir.path(), 8 << 20, 5);
    assert_eq!(contents(&[disk]).unwrap(), files);
}

/// Small files and some of several cells and MiB, so that chunks and pieces are in flight together.
fn mixed_tree(root: &std::path::Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut files = tree(root, 200, 9000, 1);
    files.extend(tree(root, 9, 3 << 20, 2));
    files
}

#[test]
fn samples_larger_than_a_chunk_go_over_a_socket_among_small_ones() {
    let dir = tempfile::tempdir().unwrap();
    let files = mixed_tree(dir.path());
    let local = MemNamespace::new(64 << 20, 512).unwrap();
    let remote = MemNamespace::new(64 << 20, 512).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(local)];
    import::import_onto(&paths(dir.path()), &devices, &wanted(Onto::Empty), &mut ()).unwrap();
    let target = serve(std::slice::from_ref(&remote), None);
    import_to(dir.path(), address(&target), Onto::Empty, &mut ()).unwrap();
    target.stop();
    let remote: Vec<Arc<dyn Device>> = vec![Arc::new(remote)];
    assert_eq!(contents(&remote).unwrap(), files);
    assert!(bytes(&remote[0]) == bytes(&devices[0]));
}

#[test]
fn a_target_that_dies_under_samples_larger_than_a_chunk_does_not_end_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let files = mixed_tree(dir.path());
    for after in [1, 4, 11] {
        let disk = import_over_a_restart(dir.path(), 64 << 20, after);
        assert_eq!(contents(&[disk]).unwrap(), files, "after {after} chunks");
    }
}

#[test]
fn a_stream_over_a_socket_arrives_whole_and_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let files = mixed_tree(&dir.path().join("files"));
    let archive = dir.path().join("a.tar.gz");
    let gzip = flate2::write::GzEncoder::new(
        std::fs::File::create(&archive).unwrap(),
        flate2::Compression::fast(),
    );
    let mut tar = tar::Builder::new(gzip);
    for (name, content) in &files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        let name = std::str::from_utf8(name).unwrap();
        tar.append_data(&mut header, name, &content[..]).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap();
    let wanted = |onto| ImportOptions {
        from: SourceKind::Tar,
        placement: PlacementOrder::Source,
        ..wanted(onto)
    };
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let disks = [(); 2].map(|()| MemNamespace::new(64 << 20, 512).unwrap());
    let targets = disks.each_ref().map(|disk| serve(std::slice::from_ref(disk), None));
    let stream_to = |at: usize, onto, progress: &mut dyn Progress| {
        let image = [address(&targets[at])];
        import::import(std::slice::from_ref(&archive), &image, &wanted(onto), &connect, progress)
    };
    stream_to(0, Onto::Empty, &mut ()).unwrap();
    let error = stream_to(1, Onto::Empty, &mut StopAfter(120)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error:?}");
    stream_to(1, Onto::Resume, &mut ()).unwrap();
    targets.into_iter().for_each(Target::stop);
    let devices = disks.map(|disk| Arc::new(disk) as Arc<dyn Device>);
    assert_eq!(contents(&devices[..1]).unwrap(), files);
    assert!(bytes(&devices[0]) == bytes(&devices[1]));
}

#[test]
fn a_second_import_from_elsewhere_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 100, 9000, 1);
    let disk = MemNamespace::new(4 << 20, 512).unwrap();
    let target = serve(std::slice::from_ref(&disk), None);
    // So long that a busy machine renews it in time.
    let leased = |onto| ImportOptions { lease: Duration::from_secs(8), ..wanted(onto) };
    let mut tried = 0;
    let mut try_another = || {
        let another = leased(Onto::Force);
        let error = import_with(dir.path(), address(&target), &another, &mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
        tried += 1;
    };
    let mut progress = AfterChunks { left: 3, then: &mut try_another };
    import_with(dir.path(), address(&target), &leased(Onto::Empty), &mut progress).unwrap();
    assert_eq!(tried, 1);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(disk)];
    assert_eq!(contents(&devices).unwrap(), files);
}

#[test]
fn a_read_only_target_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 5, 100, 1);
    let disk = MemNamespace::new(2 << 20, 512).unwrap();
    let nqn = Nqn::new(NQN).unwrap();
    let target = Target::bind(TargetOptions::new(nqn), vec![Arc::new(disk)]).unwrap();
    let error = import_to(dir.path(), address(&target), Onto::Empty, &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    assert!(error.report().contains("--writable"), "{}", error.report());
}
