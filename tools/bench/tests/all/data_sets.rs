//! Data sets and targets: sample workloads, the NVMe/TCP engine, the report, a target that is lost.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use dlfs::address::Address;
use dlfs::import::{ImportOptions, import};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};

use crate::common::{Reporting, TestDir, bench, end_of, finish, run, wait_until};

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
fn a_data_set_is_overwritten_made_longer_or_removed_only_where_the_job_names_it() {
    let dir = TestDir::new();
    let image = image(&dir);
    let name = image.to_str().unwrap();
    let before = std::fs::read(&image).unwrap();
    let refused = [
        &["--rw=randwrite", "--ioengine=file"][..],
        &["--rw=randwrite", "--ioengine=psync"],
        &["--rw=randrw", "--ioengine=io_uring"],
        &["--rw=read", "--ioengine=psync", "--size=64m"],
        &["--rw=read", "--ioengine=file", "--unlink=1"],
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
    for order in ["sequential", "slot", "global", "grouped", "local", "partial"] {
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
fn figures_of_samples_so_far_are_printed_on_request_and_the_run_goes_on() {
    let dir = TestDir::new();
    let image = image(&dir);
    let mut command = bench();
    command.args(["--name=s", "--rw=samples", "--batch_size=10", "--thinktime=2ms"]);
    command.args(["--time_based", "--runtime=60", "--cpus=0", "--output-format=json"]);
    command.arg(format!("--filename={}", image.display()));
    let verified = |figures: &serde_json::Value| {
        figures["jobs"][0]["dlfs"]["samples"]["verified"].as_u64().unwrap_or(0)
    };
    let mut running = Reporting::start(command);
    let first = running.report_until(|figures| verified(figures) > 0);
    let second = running.report_until(|figures| verified(figures) > verified(&first));
    assert!(verified(&running.interrupt()) >= verified(&second));
}

#[test]
fn a_file_that_is_no_image_is_refused() {
    let dir = TestDir::new();
    let file = dir.path("x");
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let out = run(&["--name=s", "--rw=samples", &format!("--filename={}", file.display())]);
    out.code(1).complains_of(&["s (command line)"]);
}

/// A served namespace in memory.
fn target(len: u64, writable: bool) -> (Target, String) {
    let nqn = "nqn.2026-11.io.dlfs:bench".parse().unwrap();
    let options = TargetOptions { writable, ..TargetOptions::new(nqn) };
    let device: Arc<dyn qpair::Device> = Arc::new(MemNamespace::new(len, 512).unwrap());
    let target = Target::bind(options, vec![device]).unwrap();
    let address = target.local_addr();
    let name = format!("nvme-tcp://{address}/nqn.2026-11.io.dlfs:bench?ns=1");
    (target, name)
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
fn a_read_only_target_refuses_a_write_job_before_the_work() {
    let (_target, name) = target(1 << 20, false);
    let out = run(&["--name=t", &format!("--filename={name}"), "--rw=write", "--bs=4k"]);
    out.code(1).complains_of(&["read-only"]);
}

#[test]
fn a_target_lost_in_mid_run_ends_the_job_or_is_counted() {
    for go_on in [false, true] {
        let (target, name) = target(8 << 20, false);
        let mut command = bench();
        command.args(["--name=l", "--rw=randread", "--bs=4k", "--iodepth=4", "--time_based"]);
        command.args(["--runtime=600", "--ctrl_loss_tmo=1", "--io_timeout=1"]);
        command.arg("--output-format=json").arg(format!("--filename={name}"));
        // More than iodepth= I/Os: some have ended, and are counted.
        let reads = || target.stats().read_bytes > 1 << 20;
        let job = if go_on {
            command.arg("--continue_on_error=all");
            let mut running = Reporting::start(command);
            wait_until("the job reads", reads);
            target.stop();
            running.report_until(|figures| figures["jobs"][0]["total_err"].as_u64() > Some(0));
            running.interrupt()["jobs"][0].clone()
        } else {
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            let child = command.spawn().unwrap();
            wait_until("the job reads", reads);
            target.stop();
            let ran = end_of(child);
            let job = ran.json()["jobs"][0].clone();
            ran.code(1).complains_of(&["l:", "disconnected"]);
            job
        };
        assert!(job["read"]["total_ios"].as_u64().unwrap() > 0);
        assert!(job["total_err"].as_u64().unwrap() > 0, "{job}");
        assert_eq!(job["error"], if go_on { 0 } else { 107 });
    }
}

#[test]
fn the_report_is_one_page_that_a_browser_shows_without_a_network() {
    let dir = TestDir::new();
    let page = dir.path("report.html");
    run(&[
        "--name=read <me>",
        "--ioengine=null",
        "--size=1g",
        "--rw=randrw",
        "--time_based",
        "--runtime=1",
        "--rate_iops=5000",
        "--bwavgtime=100",
        "--bs=4k",
        "--output-format=json",
        "--report",
        page.to_str().unwrap(),
    ])
    .quiet();
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("read &lt;me&gt;") && !text.contains("<me>"));
    assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("<script"));
    for words in ["Share of I/Os", "Throughput over time", "99.99", "randrw", "processors"] {
        assert!(text.contains(words), "{words}");
    }
    let names = ["chromium", "chromium-headless-shell", "google-chrome"];
    let path = std::env::var("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let Some(browser) = found.into_iter().find(|program| program.is_file()) else {
        println!("SKIPPED: no chromium is installed");
        return;
    };
    let image = dir.path("page.png");
    let mut command = Command::new(&browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,2400"]);
    command.arg(format!("--user-data-dir={}", dir.path("profile").display()));
    command.arg(format!("--screenshot={}", image.display()));
    command.arg(format!("file://{}", page.display()));
    finish(command).code(0);
    assert!(std::fs::metadata(&image).unwrap().len() > 20_000);
    let mut command = Command::new(&browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", dir.path("profile2").display()));
    command.arg(format!("file://{}", page.display()));
    let shown = finish(command).code(0);
    let lines = shown.text().split("<polyline").filter(|line| line.contains("stroke-width=\"2\""));
    assert_eq!(lines.count(), 4); // two charts of two directions
    if let Ok(folder) = std::env::var("DLFS_KEEP_PLOTS") {
        std::fs::copy(&image, format!("{folder}/report.png")).unwrap();
    }
}

#[test]
fn the_twelve_job_files_run_and_fio_moves_as_much_where_it_can() {
    let dir = TestDir::new();
    let image = image(&dir);
    let jobs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/jobs");
    let mut names: Vec<_> = std::fs::read_dir(jobs).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 12);
    let environment = |command: &mut Command, file: &str| {
        command.env("BENCH_FILE", dir.path(file)).env("BENCH_IMAGE", &image);
        command.env("BENCH_LOGS", dir.folder()).env("BENCH_SIZE", "16m");
        command.env("BENCH_RUNTIME", "1").env("BENCH_DIRECT", "0");
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
