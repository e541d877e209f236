//! Our host against Linux's own NVMe/TCP target, booted in QEMU.
//!
//! Runs with `DLFS_INTEROP=1`: `cargo test --test all interop_linux_target::`. Without QEMU it is skipped
//! and reported; see tests/interop/README.md for what it needs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::import_support;
use crate::support::linux_target::{LEN, Linux, long_timeouts};
use crate::support::random::Random;
use dlfs::ErrorKind;
use dlfs::address::{Address, TcpAddress};
use dlfs::auth::{Group, Hash, Secret};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{self, Onto};
use dlfs::nvme::Nqn;
use dlfs::nvme::fabrics::DiscoveryRecord;
use dlfs::qpair::file::FileNamespace;
use dlfs::qpair::tcp::discover;
use dlfs::qpair::{ConnectOptions, Device, open};
use dlfs::units::Nsid;
use tempfile::NamedTempFile;

#[test]
fn what_we_write_to_linux_reads_back_with_and_without_digests() {
    let Some(linux) = Linux::boot(1) else { return };
    let seed = 5;
    let mut random = Random::new(seed);
    let mut model = vec![0; LEN];
    for (hdr_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
        let options = ConnectOptions { hdr_digest, data_digest, ..long_timeouts() };
        let mut blocking = linux.connect(&options).unwrap();
        // In the capsule up to 16 KiB, by R2T above; one I/O up to 1 MiB, several above.
        for len in [512, 4096, 16_384, 16_896, 128 << 10, 1 << 20, 3 << 20] {
            let at = random.below((LEN - len) as u64 / 512) as usize * 512;
            random.fill(&mut model[at..at + len]);
            blocking.write_at(at as u64, &model[at..at + len]).unwrap();
            let read = blocking.read(at as u64, len).unwrap();
            assert!(*read == model[at..at + len], "{len} bytes at {at}, seed {seed}");
        }
        blocking.flush().unwrap();
    }
    let read = linux.connect(&long_timeouts()).unwrap().read(0, LEN).unwrap();
    assert!(*read == *model, "seed {seed}");
    assert!(std::fs::read(linux.images[0].path()).unwrap() == model, "the image, seed {seed}");

    let Address::Tcp(address) = &linux.addresses[0] else { unreachable!("it is one of TCP") };
    let records = discover(&address.traddr, address.trsvcid, &long_timeouts()).unwrap();
    let ours = |r: &&DiscoveryRecord| r.subtype == DiscoveryRecord::SUBTYPE_NVM;
    let record = records.iter().find(ours).expect("the subsystem is listed");
    assert_eq!(record.subnqn().unwrap(), address.subnqn);
    assert_eq!((record.traddr(), record.port()), (Some("127.0.0.1"), Some(address.trsvcid)));

    let stranger = Nqn::new("nqn.2026-11.io.dlfs:no-such-subsystem").unwrap();
    let address = Address::Tcp(TcpAddress { subnqn: stranger, ..address.clone() });
    let error = open(&address, &long_timeouts()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.report());
}

#[test]
fn reads_go_on_over_linuxs_other_port_when_the_first_is_down_or_inaccessible() {
    let Some(mut linux) = Linux::boot(2) else { return };
    let mut expected = vec![0; 1 << 20];
    Random::new(6).fill(&mut expected);
    let paths = vec![linux.addresses[1].clone()];
    let options = ConnectOptions { paths, io_timeout: Duration::from_secs(10), ..long_timeouts() };
    let mut blocking = linux.connect(&options).unwrap();
    blocking.write_at(0, &expected).unwrap();
    blocking.flush().unwrap();
    for command in [
        "ana 1 inaccessible", // we are on port 1
        "ana 1 optimized",
        "port-down 2", // and now on port 2
        "port-up 2",
        "port-down 1",
        "port-up 1",
    ] {
        linux.command(command);
        for _ in 0..4 {
            let read = blocking.read(0, expected.len()).unwrap();
            assert!(*read == *expected, "after {command}");
        }
    }
}

#[test]
fn an_import_does_with_one_queue_of_each_namespace_if_linux_grants_no_more() {
    let Some(linux) = Linux::boot_with(1, 2, &["--max-queues", "1"]) else { return };
    let source = tempfile::tempdir().unwrap();
    let mut files = import_support::tree(source.path(), 120, 60_000, 7);
    let Address::Tcp(first) = &linux.addresses[0] else { unreachable!("it is one of TCP") };
    let address = |nsid| Address::Tcp(TcpAddress { nsid: Some(Nsid(nsid)), ..first.clone() });
    let image = [address(1), address(2)];
    let one = open(&image[0], &long_timeouts()).unwrap();
    let _only = one.queue_pair().unwrap();
    let refused = one.queue_pair().map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "one queue is all: {}", refused.report());
    drop((_only, one));

    let paths = import_support::paths;
    let import_to = |source: &Path, onto| {
        let options = import_support::options(onto);
        import::import(&paths(source), &image, &options, &long_timeouts(), &mut ()).unwrap();
    };
    import_to(source.path(), Onto::Empty);
    let more = tempfile::tempdir().unwrap();
    files.extend(import_support::tree(more.path(), 30, 60_000, 8));
    import_to(more.path(), Onto::Append);
    let options = OpenOptions { connect: long_timeouts(), ..OpenOptions::default() };
    let opened = Image::open(&image, &options).unwrap();
    let report = opened.verify(&Default::default(), &mut |_| ()).unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
    drop(opened);

    // The contents of the files on this side of the guest, without a network in between.
    let device = |image: &NamedTempFile| -> Arc<dyn Device> {
        Arc::new(FileNamespace::open(image.path(), Default::default()).unwrap())
    };
    let devices: Vec<_> = linux.images.iter().map(device).collect();
    assert!(import_support::contents(&devices).unwrap() == files);
}

/// One guest; its keys, hash and group are set before each connect.
#[test]
fn we_and_linuxs_target_authenticate_with_every_hash_and_group_one_way_and_both_ways() {
    let hostnqn = "nqn.2026-11.io.dlfs:a-host-with-a-key";
    let secret = |byte, transform| Secret::generate(&[byte; 64], transform);
    let first = secret(1, None).to_text();
    let options =
        ["--allow-host", hostnqn, "--dhchap-key", &first, "--dhchap-ctrl-key", &first, "--debug"];
    let Some(mut linux) = Linux::boot_with(1, 1, &options) else { return };
    let set = |linux: &mut Linux, attribute: &str, value: &str| {
        linux.command(&format!("sh echo '{value}' >$CFG/hosts/{hostnqn}/dhchap_{attribute}"));
    };
    let connect_options = |secret: &Secret, ctrl: Option<&Secret>| ConnectOptions {
        hostnqn: Some(Nqn::new(hostnqn).unwrap()),
        dhchap_secret: Some(secret.clone()),
        dhchap_ctrl_secret: ctrl.cloned(),
        ..long_timeouts()
    };
    // The secret as it is, and those that a hash makes the key of, of each length.
    for (hash, transform) in
        Hash::ALL.into_iter().zip([None, Some(Hash::Sha256), Some(Hash::Sha512)])
    {
        let host = secret(2, transform);
        let ctrl = secret(3, transform);
        set(&mut linux, "key", &host.to_text());
        set(&mut linux, "ctrl_key", &ctrl.to_text());
        let hash_name = format!("hmac({})", name_of(hash));
        set(&mut linux, "hash", &hash_name);
        for group in Group::ALL {
            let group_name =
                if group == Group::Null { "null".to_owned() } else { group.to_string() };
            set(&mut linux, "dhgroup", &group_name);
            for ctrl in [None, Some(&ctrl)] {
                linux.command("sh dmesg -c >/dev/null");
                let mut blocking =
                    linux.connect(&connect_options(&host, ctrl)).unwrap_or_else(|error| {
                        panic!(
                            "{hash_name}, {group_name}, both: {}: {}",
                            ctrl.is_some(),
                            error.report()
                        )
                    });
                assert_eq!(blocking.read(0, 4096).unwrap()[..], [0; 4096]);
                drop(blocking);
                // It says what it has chosen, so that no other choice passes for this one.
                linux.command("sh ! dmesg | grep -F 'no usable hash found'");
                linux.command(&format!("sh dmesg | grep -F 'selected DH group {group_name}'"));
            }
        }
        let wrong = secret(4, transform);
        for (host, ctrl) in [(&wrong, None), (&host, Some(&wrong))] {
            let error = linux.connect(&connect_options(host, ctrl)).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{hash_name}: {}", error.report());
        }
    }
    let without = ConnectOptions { hostnqn: Some(Nqn::new(hostnqn).unwrap()), ..long_timeouts() };
    let error = linux.connect(&without).map(drop).unwrap_err();
    assert!(error.to_string().contains("requires authentication"), "{}", error.report());
}

fn name_of(hash: Hash) -> &'static str {
    match hash {
        Hash::Sha256 => "sha256",
        Hash::Sha384 => "sha384",
        Hash::Sha512 => "sha512",
    }
}
