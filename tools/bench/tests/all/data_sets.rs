//! Data sets and targets: sample workloads, the NVMe/TCP engine, a target that is lost.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use dlfs::address::Address;
use dlfs::import::{ImportOptions, import};
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};

use crate::common::{TestDir, bench, end_of, finish, run, target, wait_until};

const SAMPLES: u64 = 600;

/// An image of `SAMPLES` files of 1 to 3 KB.
fn image(dir: &TestDir) -> PathBuf {
    let source = dir.path("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..SAMPLES {
        let bytes = vec![number as u8; 1000 + (number as usize * 37) % 2000];
        std::fs::write(source.join(format!("{number:04}.bin")), bytes).unwrap();
    }
    let image = dir.path("train.dlfs");
    let options = ImportOptions { chunk_size_bytes: 64 << 10, ..ImportOptions::default() };
    let address = [Address::from_path(&image)];
    import(&[source], &address, &options, &ConnectOptions::default(), &mut ()).unwrap();
    image
}

#[test]
fn a_data_set_is_overwritten_or_made_longer_only_where_the_job_names_it() {
    let dir = TestDir::new();
    let image = image(&dir);
    let name = image.to_str().unwrap();
    let before = std::fs::read(&image).unwrap();
    let refused = [
        &["--rw=randwrite", "--ioengine=file"][..],
        &["--rw=randrw", "--ioengine=io_uring"],
        &["--rw=write", "--size=64m"],
        &["--rw=write", "--overwrite_data_set=another"],
    ];
    let job = |more: &[&str]| {
        let filename = format!("--filename={name}");
        let fixed = ["--name=j", "--bs=4k", "--number_ios=16", filename.as_str()];
        run(&[&fixed, more].concat())
    };
    for more in refused {
        job(more).code(1).complains_of(&[name, "holds a dlfs data set", "overwrite_data_set="]);
        assert!(std::fs::read(&image).unwrap() == before, "{more:?}");
    }
    job(&["--rw=randread"]).code(0);
    job(&["--rw=write", &format!("--overwrite_data_set={name}")]).code(0);
    assert!(std::fs::read(&image).unwrap() != before);
}

#[test]
fn a_data_set_behind_a_target_is_not_overwritten_either() {
    let dir = TestDir::new();
    let image = image(&dir);
    let before = std::fs::read(&image).unwrap();
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let device = qpair::open(&Address::from_path(&image), &connect).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:kept".parse().unwrap();
    let options = TargetOptions { writable: true, ..TargetOptions::new(nqn) };
    let target = Target::bind(options, vec![device]).unwrap();
    let filename = format!("--filename={}", target.address(dlfs::units::Nsid(1)));
    run(&["--name=j", "--bs=4k", "--rw=randwrite", "--number_ios=16", &filename])
        .code(1)
        .complains_of(&["holds a dlfs data set"]);
    target.stop();
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn every_sample_of_every_epoch_is_read_and_verified_in_every_order() {
    let dir = TestDir::new();
    let image = image(&dir);
    let name = format!("--filename={}", image.display());
    for order in ["sequential", "global", "grouped", "local", "partial"] {
        let out = run(&[
            "--name=s",
            "--rw=samples",
            &name,
            &format!("--order={order}"),
            "--batch_size=64",
            "--epochs=2",
            "--randseed=7",
            "--output-format=json",
        ])
        .quiet();
        let job = &out.json()["jobs"][0];
        let samples = &job["dlfs"]["samples"];
        assert_eq!(samples["samples"], 2 * SAMPLES, "{order}");
        assert_eq!(samples["verified"], 2 * SAMPLES, "{order}");
        assert_eq!(samples["batches"], job["read"]["total_ios"], "{order}");
        assert_eq!(samples["bytes"], job["read"]["io_bytes"], "{order}");
        assert!(samples["first_batch_ms"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_data_set_of_two_files_of_a_folder_is_named_without_the_folder() {
    let dir = TestDir::new();
    image(&dir); // makes the source
    let addresses = ["a.dlfs", "b.dlfs"].map(|name| Address::from_path(dir.path(name)));
    let options = ImportOptions { chunk_size_bytes: 64 << 10, ..ImportOptions::default() };
    let source = dir.path("source");
    import(&[source], &addresses, &options, &ConnectOptions::default(), &mut ()).unwrap();
    let folder = format!("--directory={}", dir.folder().display());
    let more = ["--filename=a.dlfs,b.dlfs", "--output-format=json"];
    let out = run(&[&["--name=s", "--rw=samples", &folder][..], &more].concat()).code(0);
    assert_eq!(out.json()["jobs"][0]["dlfs"]["samples"]["samples"], SAMPLES);
}

#[test]
fn ranks_share_an_epoch_and_computing_counts_as_utilisation() {
    let dir = TestDir::new();
    let image = image(&dir);
    let out = run(&[
        "--name=s",
        "--rw=samples",
        &format!("--filename={}", image.display()),
        "--order=grouped",
        "--lanes=2",
        "--group=2",
        "--numjobs=2",
        "--group_reporting",
        "--batch_size=50",
        "--thinktime=5ms",
        "--output-format=json",
    ])
    .quiet();
    let samples = out.json()["jobs"][0]["dlfs"]["samples"].clone();
    assert_eq!(
        (samples["samples"].clone(), samples["accelerators"].clone()),
        (SAMPLES.into(), 2.into())
    );
    // 12 batches of 5 ms on two accelerators.
    assert!((samples["compute_s"].as_f64().unwrap() - 0.060).abs() < 1e-6);
    let utilisation = samples["accelerator_utilisation_percent"].as_f64().unwrap();
    assert!(utilisation > 0.0 && utilisation <= 100.0, "{utilisation}");
}

#[test]
fn a_file_that_is_no_image_is_refused() {
    let dir = TestDir::new();
    let file = dir.path("x");
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let out = run(&["--name=s", "--rw=samples", &format!("--filename={}", file.display())]);
    out.code(1).complains_of(&["s (command line)"]);
}

#[test]
fn a_remote_namespace_is_written_verified_and_read() {
    let (target, name) = target(8 << 20, true);
    let escaped = name.replace(':', "\\:");
    for name in [&name, &escaped] {
        let out = run(&[
            "--name=t",
            &format!("--filename={name}"),
            "--ioengine=tcp",
            "--rw=randwrite",
            "--bs=8k",
            "--iodepth=16",
            "--size=4m",
            "--verify=crc32c",
            "--output-format=json",
        ])
        .quiet();
        assert_eq!(out.json()["jobs"][0]["dlfs"]["verified"], 512);
    }
    let port = target.local_addr().port();
    let spdk = format!(
        "--filename=trtype=TCP adrfam=IPv4 traddr=127.0.0.1 trsvcid={port} \
         subnqn=nqn.2026-11.io.dlfs\\:bench ns=1"
    );
    let out = run(&["--name=t", &spdk, "--rw=randread", "--bs=4k", "--output-format=json"]).quiet();
    assert_eq!(out.json()["jobs"][0]["read"]["io_bytes"], 8 << 20);
    // The same namespace by SPDK's host, where the build has it.
    for filename in [spdk, format!("--filename=spdk:{name}")] {
        let more = ["--ioengine=spdk", "--rw=randread", "--bs=4k", "--output-format=json"];
        let out = run(&[&["--name=t", &filename], &more[..]].concat());
        if cfg!(feature = "spdk") {
            assert_eq!(out.quiet().json()["jobs"][0]["read"]["io_bytes"], 8 << 20);
        } else {
            out.code(1).complains_of(&["cannot use SPDK", "--features spdk"]);
        }
    }
    let deep = format!("--filename={name}");
    let deep = run(&["--name=t", &deep, "--rw=randread", "--iodepth=500", "--queue_size=128"]);
    deep.code(1).complains_of(&["127", "500", "queue_size"]);
}

#[test]
fn a_job_shares_the_connection_of_another_only_if_it_wants_the_same_options() {
    let dir = TestDir::new();
    let accepted = |second: &str| {
        let (target, name) = target(1 << 20, false);
        let job = |more: &str| format!("filename={name}\nrw=read\nsize=64k\n{more}\n");
        let file = dir.write("x.fio", &format!("[a]\n{}[b]\n{}", job("iodepth=4"), job(second)));
        run(&[file.to_str().unwrap(), "--output-format=json"]).quiet();
        target.stats().accepted
    };
    let shared = accepted("iodepth=4");
    for second in ["data_digest=1", "iodepth=200", "hostnqn=nqn.2026-11.io.dlfs:other"] {
        assert!(accepted(second) > shared, "{second}");
    }
}

#[test]
fn a_read_only_target_refuses_a_write_job_before_the_work() {
    let (_target, name) = target(1 << 20, false);
    let out = run(&["--name=t", &format!("--filename={name}"), "--rw=write", "--bs=4k"]);
    out.code(1).complains_of(&["read-only"]);
}

#[test]
fn a_target_lost_in_mid_run_ends_the_job() {
    let (target, name) = target(8 << 20, false);
    let mut command = bench();
    command.args(["--name=l", "--rw=randread", "--bs=4k", "--iodepth=4", "--time_based"]);
    command.args(["--runtime=600", "--ctrl_loss_tmo=1", "--io_timeout=1"]);
    command.arg("--output-format=json").arg(format!("--filename={name}"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // More than iodepth= I/Os: some have ended, and are counted.
    wait_until("the job reads", || target.stats().read_bytes > 1 << 20);
    target.stop();
    let ran = end_of(child);
    let job = ran.json()["jobs"][0].clone();
    ran.code(1).complains_of(&["l:", "disconnected"]);
    assert!(job["read"]["total_ios"].as_u64().unwrap() > 0);
    assert!(job["total_err"].as_u64().unwrap() > 0, "{job}");
    assert_eq!(job["error"], 107);
}

#[test]
fn the_job_files_run_and_fio_moves_as_much_where_it_can() {
    let dir = TestDir::new();
    let image = image(&dir);
    let jobs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/jobs");
    let mut names: Vec<_> = std::fs::read_dir(jobs).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 11);
    let environment = |command: &mut Command, file: &str| {
        command.env("BENCH_FILE", dir.path(file)).env("BENCH_IMAGE", &image);
        command.env("BENCH_SIZE", "16m").env("BENCH_RUNTIME", "1").env("BENCH_DIRECT", "0");
    };
    let fio = Command::new("fio").arg("--version").output().is_ok();
    if !fio {
        println!("SKIPPED: fio is not installed; only dlfs-bench ran the job files");
    }
    for job in names {
        let mut command = bench();
        command.arg(&job).arg("--output-format=json");
        environment(&mut command, "ours");
        let ours = finish(command).quiet().json();
        for entry in ours["jobs"].as_array().unwrap() {
            assert_eq!(entry["error"], 0, "{job:?}");
            let moved = |d: &str| entry[d]["io_bytes"].as_u64().unwrap();
            assert!(moved("read") + moved("write") > 0, "{job:?}");
        }
        let for_fio = !std::fs::read_to_string(&job).unwrap().contains("Not for fio");
        if fio && for_fio {
            let mut command = Command::new("fio");
            command.arg(&job).arg("--output-format=json").current_dir(dir.folder());
            environment(&mut command, "theirs");
            let theirs = finish(command).code(0).json();
            let names = |document: &serde_json::Value| -> Vec<String> {
                let jobs = document["jobs"].as_array().unwrap().iter();
                jobs.map(|j| j["jobname"].as_str().unwrap().to_owned()).collect()
            };
            assert_eq!(names(&ours), names(&theirs), "{job:?}");
        }
    }
}
