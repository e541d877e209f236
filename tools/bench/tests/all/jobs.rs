//! Jobs from files and command lines, run by the real `dlfs-bench`.

use std::fs;

use crate::common::{self, TestDir, bench, finish, run, target, wait_until};

#[test]
fn a_random_read_of_a_plain_file_by_every_engine_moves_what_was_asked() {
    let dir = TestDir::new();
    for engine in ["auto", "io_uring", "libaio", "null", "file"] {
        let file = dir.path(&format!("{engine}.img"));
        if engine == "file" {
            fs::write(&file, vec![1; 1 << 20]).unwrap();
        }
        let out = run(&[
            "--name=r",
            "--rw=randread",
            "--bs=4k",
            "--size=1m",
            "--iodepth=8",
            &format!("--filename={}", file.display()),
            &format!("--ioengine={engine}"),
            "--output-format=json",
        ])
        .quiet();
        let job = &out.json()["jobs"][0];
        assert_eq!(job["read"]["io_bytes"], 1 << 20, "{engine}");
        assert_eq!(job["read"]["total_ios"], 256, "{engine}");
        assert_eq!(job["write"]["total_ios"], 0, "{engine}");
        assert_eq!(job["error"], 0, "{engine}");
        assert_eq!(job["read"]["clat_ns"]["N"], 256, "{engine}");
    }
}

#[test]
fn the_figures_of_a_stage_are_printed_though_the_next_one_cannot_begin() {
    let dir = TestDir::new();
    let jobs = dir.write(
        "stages.fio",
        "[a]\nioengine=null\nsize=1m\nrw=read\n\n\
         [b]\nstonewall\nrw=read\nfilename=/nonexistent/x\n",
    );
    let ran = run(&[jobs.to_str().unwrap(), "--output-format=json"]).code(1);
    ran.complains_of(&["/nonexistent/x"]);
    let json = ran.json();
    assert_eq!(json["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(json["jobs"][0]["read"]["io_bytes"], 1 << 20);
}

#[test]
fn a_file_is_made_as_long_as_the_job_that_needs_most_of_it() {
    let dir = TestDir::new();
    let file = dir.path("x.img");
    let text = format!(
        "[global]\nfilename={}\nrw=write\nbs=4k\nstonewall\n[a]\nsize=1m\n[b]\nsize=2m\n",
        file.display()
    );
    let ran = run(&[dir.write("two.fio", &text).to_str().unwrap(), "--output-format=json"]).code(0);
    assert_eq!(ran.json()["jobs"][1]["write"]["io_bytes"], 2 << 20);
}

#[test]
fn what_was_written_is_verified_and_a_changed_byte_is_found() {
    let dir = TestDir::new();
    for (engine, verify) in [("auto", "crc32c"), ("io_uring", "pattern")] {
        let file = dir.path(&format!("{engine}-{verify}"));
        fs::write(&file, vec![0; 256 << 10]).unwrap();
        let name = format!("--filename={}", file.display());
        let engine = format!("--ioengine={engine}");
        let verify = format!("--verify={verify}");
        let common = [
            &*name,
            &engine,
            &verify,
            "--verify_pattern=0xabcd",
            "--bs=4k",
            "--size=256k",
            "--iodepth=4",
            "--output-format=json",
        ];
        let with = |more: &[&str]| run(&[&["--name=v"], &common[..], more].concat());
        let written = with(&["--rw=randwrite"]).quiet();
        assert_eq!(written.json()["jobs"][0]["dlfs"]["verified"], 64, "{engine} {verify}");
        let read = with(&["--rw=read"]).quiet();
        assert_eq!(read.json()["jobs"][0]["dlfs"]["verified"], 64, "{engine} {verify}");
        let mut bytes = fs::read(&file).unwrap();
        bytes[100_000] ^= 1;
        fs::write(&file, bytes).unwrap();
        let damaged = with(&["--rw=read"]).code(1);
        damaged.complains_of(&["verify", "offset"]);
        assert_eq!(damaged.json()["jobs"][0]["error"], 84, "{engine} {verify}");
    }
}

#[test]
fn stages_follow_each_other_and_equal_jobs_are_reported_together() {
    let dir = TestDir::new();
    let file = dir.write(
        "stages.fio",
        "[global]\nioengine=null\nsize=4m\nbs=64k\n[first]\nrw=read\nnumjobs=3\ngroup_reporting\n\
         [second]\nstonewall\nrw=write\n[third]\nstonewall\nrw=read\n",
    );
    let out = run(&[file.to_str().unwrap(), "--output-format=json"]).quiet();
    let jobs = out.json()["jobs"].clone();
    let names: Vec<_> = jobs.as_array().unwrap().iter().map(|j| j["jobname"].clone()).collect();
    assert_eq!(names, ["first", "second", "third"]);
    assert_eq!(jobs[0]["read"]["io_bytes"], 3 * (4 << 20));
    assert_eq!((jobs[0]["groupid"].clone(), jobs[1]["groupid"].clone()), (0.into(), 1.into()));
    assert_eq!(out.json()["global options"]["ioengine"], "null");
    assert_eq!(jobs[1]["job options"]["rw"], "write");
}

#[test]
fn variables_are_read() {
    let dir = TestDir::new();
    let text = "[global]\nioengine=null\nsize=${BENCH_SIZE}\n[a]\nrw=randread\n";
    let file = dir.write("job.fio", text);
    let mut command = bench();
    command.arg(&file).arg("--output-format=json").env("BENCH_SIZE", "2m");
    let out = finish(command).quiet();
    assert_eq!(out.json()["jobs"][0]["read"]["io_bytes"], 2 << 20);
    let mut command = bench();
    command.arg(&file).env_remove("BENCH_SIZE");
    finish(command).code(1).complains_of(&["job.fio:3", "BENCH_SIZE"]);
}

#[test]
fn a_flush_follows_every_nth_write_at_any_depth() {
    let dir = TestDir::new();
    for (engine, depth) in [("null", 1), ("null", 8), ("file", 1), ("file", 4)] {
        for (every, flushes) in [(1, 300), (7, 42), (300, 1)] {
            let file = dir.path("flushed");
            fs::write(&file, vec![0; 2 << 20]).unwrap();
            let out = run(&[
                "--name=f",
                "--rw=randwrite",
                "--bs=4k",
                "--number_ios=300",
                &format!("--filename={}", file.display()),
                &format!("--ioengine={engine}"),
                &format!("--iodepth={depth}"),
                "--size=2m",
                &format!("--fsync={every}"),
                "--output-format=json",
            ])
            .quiet();
            let job = &out.json()["jobs"][0];
            assert_eq!(job["write"]["total_ios"], 300, "{engine}, depth {depth}, fsync={every}");
            assert_eq!(job["sync"]["total_ios"], flushes, "{engine}, depth {depth}, fsync={every}");
        }
    }
}

/// 5,000 reads and 500 writes a second for a second; a mix of half and half would hold reads to 500.
#[test]
fn each_side_of_a_mixed_job_keeps_its_own_rate_and_what_was_written_is_verified() {
    let dir = TestDir::new();
    let out = run(&[
        "--name=m",
        "--rw=randrw",
        "--bs=4k",
        "--size=16m",
        "--runtime=1",
        "--rate_iops=5000,500",
        "--verify=crc32c",
        &format!("--filename={}", dir.path("mixed").display()),
        "--output-format=json",
    ])
    .quiet();
    let job = &out.json()["jobs"][0];
    let of = |count: &serde_json::Value| count.as_u64().unwrap();
    let verified = of(&job["dlfs"]["verified"]);
    let writes = of(&job["write"]["total_ios"]);
    let reads = of(&job["read"]["total_ios"]);
    assert!(reads > 4 * writes, "{reads} reads, {writes} writes");
    assert!(verified >= writes.min(1) && verified <= writes, "{verified} of {writes} verified");
}

#[test]
fn limits_of_rate_count_and_size_are_kept() {
    let base = ["--name=l", "--ioengine=null", "--bs=4k", "--output-format=json"];
    let with = |more: &[&str]| run(&[&base[..], more].concat()).quiet();
    let count = with(&["--rw=read", "--size=1m", "--number_ios=10"]);
    assert_eq!(count.json()["jobs"][0]["read"]["total_ios"], 10);
    let moved = with(&["--rw=write", "--size=1m", "--io_size=3m"]);
    assert_eq!(moved.json()["jobs"][0]["write"]["io_bytes"], 3 << 20);
    let looped = with(&["--rw=read", "--size=1m", "--loops=3"]);
    assert_eq!(looped.json()["jobs"][0]["read"]["io_bytes"], 3 << 20);
    // 50 I/Os at 1000 a second take at least 49 ms, however slow the machine is.
    let slow = with(&["--rw=read", "--size=200k", "--rate_iops=1000"]);
    assert!(slow.json()["jobs"][0]["read"]["runtime"].as_u64().unwrap() >= 49);
}

#[test]
fn flushes_and_blocks_of_many_sizes_share_the_buffers() {
    let dir = TestDir::new();
    // Its length makes its blocks 512 bytes long.
    fs::write(dir.path("x"), vec![0; (1 << 20) + 512]).unwrap();
    let file = format!("--filename={}", dir.path("x").display());
    let out = run(&[
        "--name=f",
        "--rw=randwrite",
        "--bssplit=512/30:4k/40:64k/30",
        "--size=1m",
        "--io_size=8m",
        "--iodepth=8",
        "--fsync=7",
        "--end_fsync=1",
        &file,
        "--output-format=json",
    ])
    .quiet();
    let job = &out.json()["jobs"][0];
    assert!(job["write"]["io_bytes"].as_u64().unwrap() >= 8 << 20);
    let writes = job["write"]["total_ios"].as_u64().unwrap();
    let flushes = job["sync"]["total_ios"].as_u64().unwrap();
    assert!(flushes > 0 && flushes <= writes / 7 + 1, "{flushes} of {writes}");
}

/// A split may have sizes that are not multiples of the smallest one.
#[test]
fn blocks_of_4096_and_6144_bytes_work_on_a_namespace_of_512() {
    let (_target, name) = target(1 << 20, true);
    let file = format!("--filename={name}");
    let split = "--bssplit=4096/50:6144/50";
    let arguments = ["--name=m", &file, "--rw=randrw", split, "--size=1m"];
    let out = run(&[&arguments[..], &["--output-format=json"]].concat()).quiet();
    let job = &out.json()["jobs"][0];
    let write = |key: &str| job["write"][key].as_u64().unwrap();
    assert!(write("io_bytes") > 4096 * write("total_ios"), "6,144 bytes were never drawn");
    assert_eq!(job["error"], 0);
}

#[test]
fn options_that_hold_anyway_are_accepted_and_help_explains_all() {
    let job = ["--name=w", "--ioengine=null", "--size=1m", "--output-format=json"];
    let holds = ["--thread", "--overwrite=1", "--disk_util=0"];
    let out = run(&[&job[..], &holds].concat()).quiet();
    assert_eq!(out.json()["jobs"][0]["job options"]["overwrite"], "1");
    assert!(run(&["--version"]).quiet().text().contains("fio-3"));
    let help = run(&["--help"]).quiet();
    for words in ["--output-format", "--iodepth <IODEPTH>", "--ioengine", "--ctrl_loss_tmo", "null"]
    {
        assert!(help.text().contains(words), "{words}");
    }
}

#[test]
fn only_reading_the_jobs_does_no_io() {
    let dir = TestDir::new();
    let file = dir.write("p.fio", "[a]\nfilename=/nonexistent/x\nrw=write\nsize=1m\nbs=8k\n");
    assert!(run(&[file.to_str().unwrap(), "--parse-only"]).quiet().stdout.is_empty());
}

#[test]
fn jobs_run_on_the_processors_that_are_named_and_may_poll_without_a_pause() {
    let out = run(&[
        "--name=p",
        "--ioengine=null",
        "--size=1m",
        "--cpus=0",
        "--busy-poll",
        "--output-format=json",
    ]);
    let dir = TestDir::new();
    assert_eq!(out.quiet().json()["jobs"][0]["read"]["io_bytes"], 1 << 20);
    // The thread that runs the job is asked where it may run, by way of what the kernel says of it.
    let mut command = bench();
    command.current_dir(dir.folder()).args([
        "--name=bound",
        "--ioengine=null",
        "--size=1g",
        "--rw=read",
        "--rate_iops=100",
        "--time_based",
        "--runtime=600",
        "--cpus_allowed=0",
        "--busy_poll=1",
    ]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let bound = |id: u32| {
        let tasks = fs::read_dir(format!("/proc/{id}/task")).ok()?;
        let threads = tasks.filter_map(|task| Some(task.ok()?.path()));
        let mut status = threads.filter_map(|path| fs::read_to_string(path.join("status")).ok());
        let status = status.find(|status| status.starts_with("Name:\tbench-1\n"))?;
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"))?;
        line.ends_with("\t0").then_some(())
    };
    wait_until("its thread is bound to processor 0", || bound(child.id()).is_some());
    common::signal(&child, "INT");
    common::end_of(child).code(128);
}

#[test]
fn a_file_that_is_not_there_is_laid_out_and_json_stands_alone() {
    let dir = TestDir::new();
    let path = dir.path("new/file");
    let name = format!("--filename={}", path.display());
    for rw in ["write", "read", "randrw"] {
        let rw_is = format!("--rw={rw}");
        let out = run(&[&*name, "--size=4m", &rw_is, "--output-format=json"]);
        let json: serde_json::Value = serde_json::from_slice(&out.code(0).stdout).unwrap();
        assert_eq!(json["jobs"][0]["error"], 0, "{rw}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20, "{rw}");
        std::fs::remove_file(&path).unwrap();
    }
    let out = run(&[&*name, "--rw=write", "--output-format=json"]).code(1);
    out.complains_of(&["does not exist", "size="]);
    assert!(out.stdout.is_empty(), "{}", out.text());
    assert!(!path.exists());
}
