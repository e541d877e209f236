//! The engines: their common contract (`support/contract.rs`), and tests of files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::contract::{self, Driver, read};
use crate::support::disk::{LoopDevice, SmallDisk};
use crate::support::faults::{Fault, Faulty, Rule};
use dlfs::ErrorKind;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::file::{FileCalls, FileNamespace, FileOptions};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device, Direct, IoError, open};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

const MIB: u64 = 1 << 20;

#[test]
fn memory_keeps_the_contract() {
    for block_len_bytes in [512, 4096] {
        let device = MemNamespace::new(5 * MIB, block_len_bytes).unwrap();
        contract::check(Arc::new(device.clone()), Arc::new(device.read_only()));
    }
}

#[test]
fn memory_with_small_limits_keeps_the_contract() {
    let device = MemNamespace::new(3 * MIB, 512).unwrap().with_limits(8192, 8);
    contract::check(Arc::new(device.clone()), Arc::new(device.read_only()));
}

#[test]
fn faults_that_only_delay_and_reorder_keep_the_contract() {
    let device = MemNamespace::new(5 * MIB, 512).unwrap();
    let faulty = Faulty::new(Arc::new(device.clone()));
    faulty.shuffle_completions(11);
    faulty.add(Rule::any_read(500, Fault::Delay { polls: 7 }));
    faulty.add(Rule::any_read(20, Fault::DelayTime(Duration::from_millis(3))));
    contract::check(Arc::new(faulty.clone()), Arc::new(Faulty::new(Arc::new(device.read_only()))));
    assert_eq!(faulty.struck(), 520);
}

#[test]
fn files_keep_the_contract_by_every_way_to_read_them() {
    for calls in [FileCalls::Auto, FileCalls::Pread] {
        for direct in [Direct::Off, Direct::On] {
            for len in [4 * MIB, 4 * MIB + 512] {
                let Some(image) = Image::new(len, direct, calls) else { continue };
                contract::check(image.writable(), image.read_only());
            }
        }
    }
}

#[test]
fn a_block_device_keeps_the_contract_bypasses_the_cache_and_cannot_grow() {
    let image = Image::new(4 * MIB, Direct::Off, FileCalls::Auto).unwrap();
    let Some(disk) = LoopDevice::new(&image.path()) else { return };
    for calls in [FileCalls::Auto, FileCalls::Pread] {
        let options = |writable| FileOptions { calls, writable, ..FileOptions::default() };
        let writable = FileNamespace::open(disk.path(), options(true)).unwrap();
        assert!(writable.namespace().engine.ends_with(", O_DIRECT)"), "{:?}", writable.namespace());
        assert_eq!(writable.namespace().len_bytes(), 4 * MIB);
        assert_eq!(writable.grow(5 * MIB).unwrap_err().kind(), ErrorKind::NoSpace);
        let second = FileNamespace::open(disk.path(), options(true)).err().unwrap();
        assert_eq!(second.kind(), ErrorKind::Busy);
        let read_only = FileNamespace::open(disk.path(), options(false)).unwrap();
        contract::check(Arc::new(writable), Arc::new(read_only));
    }
}

#[test]
fn tcp_through_our_target_keeps_the_contract_with_and_without_digests() {
    for (block_len_bytes, hdr_digest, data_digest) in
        [(512, false, false), (4096, true, false), (4096, false, true), (512, true, true)]
    {
        let served = Served::new(block_len_bytes);
        let options = ConnectOptions { hdr_digest, data_digest, ..ConnectOptions::default() };
        contract::check(served.connect(Nsid(1), &options), served.connect(Nsid(2), &options));
    }
}

#[test]
fn tcp_with_a_shallow_queue_keeps_the_contract() {
    let served = Served::new(512);
    let options = ConnectOptions { queue_size: 4, ..ConnectOptions::default() };
    contract::check(served.connect(Nsid(1), &options), served.connect(Nsid(2), &options));
}

#[test]
fn the_engine_says_how_it_reads() {
    let image = Image::new(MIB, Direct::Off, FileCalls::Pread).unwrap();
    assert_eq!(image.read_only().namespace().engine, "file (pread)");
    let image = Image::new(MIB, Direct::Auto, FileCalls::Auto).unwrap();
    let engine = image.read_only().namespace().engine;
    assert!(["file (io_uring)", "file (pread)"].contains(&&*engine), "{engine}");
    if let Some(image) = Image::new(MIB, Direct::On, FileCalls::Pread) {
        assert_eq!(image.read_only().namespace().engine, "file (pread, O_DIRECT)");
    }
}

#[test]
fn a_second_writer_is_refused_while_the_first_lives_and_readers_are_not() {
    let image = Image::new(MIB, Direct::Off, FileCalls::Auto).unwrap();
    let first = image.writable();
    let second = FileNamespace::open(image.path(), image.options(true)).err().unwrap();
    assert_eq!(second.kind(), ErrorKind::Busy, "{second}");
    assert!(second.to_string().contains("image.dlfs"), "{second}");
    let pair = first.queue_pair().unwrap();
    drop((image.read_only(), first));
    assert!(FileNamespace::open(image.path(), image.options(true)).is_err(), "a pair still writes");
    drop(pair);
    image.writable();
}

#[test]
fn a_file_that_became_shorter_is_an_error_not_zeroes() {
    for calls in [FileCalls::Auto, FileCalls::Pread] {
        for direct in [Direct::Off, Direct::On] {
            let Some(image) = Image::new(MIB, direct, calls) else { continue };
            let mut pair = Driver::new(&*image.read_only());
            File::options().write(true).open(image.path()).unwrap().set_len(10_000).unwrap();
            let ends = pair.run(vec![read(0, 8192), read(1, 65536), read(100, 4096)]);
            assert_eq!(ends[0].1.result, Ok(()));
            let short = |found| Err(IoError::Short { expected: 65536, found });
            assert_eq!(ends[1].1.result, short(10_000 - 4096), "{calls:?} {direct:?}");
            let beyond = Err(IoError::Short { expected: 4096, found: 0 });
            assert_eq!(ends[2].1.result, beyond);
            let said = ends[2].1.result.as_ref().unwrap_err().to_string();
            assert!(said.contains("the rest is missing") && !said.contains("target"), "{said}");
        }
    }
}

#[test]
fn blocks_follow_from_the_length_of_the_file() {
    for (len, block_len_bytes, num_blocks) in
        [(8192, 4096, 2), (8192 + 512, 512, 17), (8192 + 513, 512, 17), (0, 4096, 0), (1, 512, 0)]
    {
        let image = Image::new(len, Direct::Off, FileCalls::Auto).unwrap();
        let namespace = image.read_only().namespace();
        let found = (namespace.block_len_bytes, namespace.num_blocks);
        assert_eq!(found, (block_len_bytes, num_blocks), "{len} bytes");
        assert!(
            Driver::new(&*image.read_only()).run(vec![read(num_blocks, 4096)])[0].1.result.is_err()
        );
    }
}

#[test]
fn a_file_grows_under_the_queue_pairs_that_have_it() {
    let image = Image::new(MIB, Direct::Off, FileCalls::Auto).unwrap();
    let device = image.writable();
    let reader = image.read_only();
    let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
    device.grow(MIB - 1).unwrap();
    assert_eq!(device.namespace().len_bytes(), MIB);
    device.grow(3 * MIB + 1).unwrap();
    assert_eq!(device.namespace().len_bytes(), 3 * MIB + 4096);
    io.flush().unwrap(); // after this submission the queue pair knows the new size
    io.write_at(3 * MIB, &[7; 4096]).unwrap();
    assert_eq!(reader.namespace().len_bytes(), 3 * MIB + 4096);
    let mut io = Blocking::new(reader.queue_pair().unwrap()).unwrap();
    assert_eq!(io.read(3 * MIB - 1, 2).unwrap()[..], [0, 7]);
    assert_eq!(reader.grow(9 * MIB).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(device.grow(u64::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(device.grow(1 << 62).unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn a_namespace_of_fixed_size_says_that_it_cannot_grow() {
    let device = MemNamespace::new(MIB, 512).unwrap();
    device.grow(MIB).unwrap();
    assert_eq!(device.grow(MIB + 1).unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn a_file_is_created_at_its_length_and_kept_when_it_is_longer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.dlfs");
    let create = |len| FileOptions { create_len: Some(len), ..FileOptions::default() };
    let missing = FileNamespace::open(&path, FileOptions::default()).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let device = FileNamespace::open(&path, create(MIB)).unwrap();
    assert!(!device.namespace().read_only);
    drop(device);
    assert_eq!(FileNamespace::open(&path, create(5)).unwrap().namespace().len_bytes(), MIB);
}

#[test]
fn a_path_that_is_no_file_or_device_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let directory = File::open(folder.path()).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(&directory, "fifo", rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for path in [folder.path(), &*fifo, Path::new("/dev/null")] {
        let error = FileNamespace::open(path, FileOptions::default()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&*path.display().to_string()), "{error}");
    }
}

#[test]
fn a_full_disk_is_no_space_and_what_was_written_stays() {
    let Some(disk) = SmallDisk::new(2 * MIB) else { return };
    for calls in [FileCalls::Auto, FileCalls::Pread] {
        let path = disk.path().join(format!("{calls:?}.dlfs"));
        let options = FileOptions { create_len: Some(8 * MIB), calls, ..FileOptions::default() };
        let device = FileNamespace::open(&path, options).unwrap();
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        io.write_at(0, &vec![1; MIB as usize]).unwrap();
        let error = io.write_at(MIB, &vec![2; 7 * MIB as usize]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
        assert!(io.read(0, MIB as usize).unwrap().iter().all(|&byte| byte == 1));
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_path_opens_with_the_options_of_a_connection() {
    let image = Image::new(MIB, Direct::Off, FileCalls::Auto).unwrap();
    let address = dlfs::address::Address::from_path(image.path());
    let mut options = ConnectOptions::default();
    assert!(open(&address, &options).unwrap().namespace().read_only);
    options.writable = true;
    assert!(!open(&address, &options).unwrap().namespace().read_only);
}

/// A target that serves memory: namespace 1 is writable, namespace 2 is the same memory, read-only.
struct Served(Target);

impl Served {
    fn new(block_len_bytes: u32) -> Served {
        let device = MemNamespace::new(5 * MIB, block_len_bytes).unwrap();
        let mut options = TargetOptions::new("nqn.2026-11.io.dlfs:engines".parse().unwrap());
        options.writable = true;
        let read_only = Arc::new(device.read_only());
        Served(Target::bind(options, vec![Arc::new(device), read_only]).unwrap())
    }

    fn connect(&self, nsid: Nsid, options: &ConnectOptions) -> Arc<dyn Device> {
        let options = ConnectOptions { writable: true, ..options.clone() };
        open(&self.0.address(nsid), &options).unwrap()
    }
}

/// An image file of random bytes in a folder of its own.
struct Image {
    folder: tempfile::TempDir,
    direct: Direct,
    calls: FileCalls,
}

impl Image {
    /// `None` if the file system has no direct I/O, which is printed.
    fn new(len: u64, direct: Direct, calls: FileCalls) -> Option<Image> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = Image { folder, direct, calls };
        let mut bytes = vec![0; len as usize];
        crate::support::random::Random::new(len).fill(&mut bytes);
        File::create(image.path()).unwrap().write_all_at(&bytes, 0).unwrap();
        match FileNamespace::open(image.path(), image.options(false)) {
            Ok(_) => Some(image),
            Err(error) if direct == Direct::On && error.kind() == ErrorKind::Unsupported => {
                println!("skipped: {}", error.report());
                None
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("image.dlfs")
    }

    fn options(&self, writable: bool) -> FileOptions {
        FileOptions { direct: self.direct, calls: self.calls, writable, ..FileOptions::default() }
    }

    fn writable(&self) -> Arc<dyn Device> {
        Arc::new(FileNamespace::open(self.path(), self.options(true)).unwrap())
    }

    fn read_only(&self) -> Arc<dyn Device> {
        Arc::new(FileNamespace::open(self.path(), self.options(false)).unwrap())
    }
}
