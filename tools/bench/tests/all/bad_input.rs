//! Bad input: each is refused, or told of, with what is wrong, where, and what to do.

use std::fs;
use std::path::Path;

use crate::common::{TestDir, bench, finish, run};

fn refused(text: &str, words: &[&str]) {
    let dir = TestDir::new();
    let file = dir.write("bad.fio", text);
    run(&[file.to_str().unwrap()]).code(1).complains_of(words);
}

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    refused("[a]\nioengine=null\nsize=1m\niodeph=4\n", &["bad.fio:4", "iodeph", "'iodepth'"]);
}

#[test]
fn a_wrong_unit_is_named() {
    refused("[a]\nioengine=null\nsize=1x\n", &["bad.fio:3", "size=1x", "no unit of size"]);
    refused("[a]\nioengine=null\nsize=1m\nruntime=5y\n", &["runtime=5y", "no unit of time"]);
}

#[test]
fn sections_without_a_name_or_without_a_job_are_refused() {
    refused("[]\nrw=read\n", &["bad.fio:1", "needs a name"]);
    refused("[a]\n", &["bad.fio:1", "filename="]);
    refused("[global]\nrw=read\n", &["no job"]);
    refused("rw=read\n", &["before the first [section]"]);
}

#[test]
fn a_missing_target_and_a_missing_size_are_named() {
    refused("[a]\nrw=read\nsize=1m\nioengine=io_uring\n", &["a (", "filename="]);
    refused("[a]\nrw=read\nioengine=null\n", &["null", "size="]);
    refused("[a]\nrw=read\nfilename=/nonexistent/x\n", &["/nonexistent/x"]);
}

#[test]
fn a_write_job_is_refused_where_only_reading_is_allowed() {
    let dir = TestDir::new();
    let file = dir.path("x");
    fs::write(&file, [0; 8192]).unwrap();
    let name = format!("--filename={}", file.display());
    run(&["--readonly", "--name=a", "--rw=randwrite", &name]).code(1).complains_of(&["randwrite"]);
}

#[test]
fn a_size_beyond_the_namespace_is_refused_with_both_sizes() {
    let dir = TestDir::new();
    let file = dir.path("x");
    fs::write(&file, [0; 8192]).unwrap();
    let name = format!("--filename={}", file.display());
    let base = ["--name=a", "--rw=read", "--ioengine=file", &name];
    let with = |more: &[&str]| run(&[&base[..], more].concat()).code(1);
    with(&["--size=1m"]).complains_of(&["8192", "1048576", "beyond"]);
    with(&["--offset=1m"]).complains_of(&["8192", "1048576"]);
    with(&["--bs=16k"]).complains_of(&["less than one block"]);
    with(&["--bs=1000"]).complains_of(&["not a multiple"]);
}

#[test]
fn a_depth_beyond_the_queue_is_refused() {
    let dir = TestDir::new();
    let file = dir.path("x");
    fs::write(&file, [0; 8192]).unwrap();
    let name = format!("--filename={}", file.display());
    let out = run(&["--name=a", "--rw=read", "--ioengine=file", &name, "--iodepth=60000"]);
    out.code(1).complains_of(&["60000", "at a time"]);
}

#[test]
fn unwritable_output_is_reported_before_the_work() {
    let job = ["--name=a", "--ioengine=null", "--size=1m"];
    let with = |more: &[&str]| run(&[&job[..], more].concat()).code(1);
    with(&["--output=/nonexistent/out"]).complains_of(&["/nonexistent/out"]);
}

#[test]
fn a_runtime_of_zero_and_a_time_base_without_a_time_are_refused() {
    refused("[a]\nioengine=null\nsize=1m\nruntime=0\n", &["runtime=0", "measure nothing"]);
    refused("[a]\nioengine=null\nsize=1m\ntime_based\n", &["time_based needs runtime"]);
}

#[test]
fn values_out_of_range_and_wrong_names_are_refused() {
    for (line, word) in [
        ("rw=raedwrite", "not one of read, write"),
        ("rw=randtrim", "randread"),
        ("ioengine=nul", "'null'"),
        ("iodepth=0", "1..=65535"),
        ("bssplit=4k/50:8k/40", "add up"),
        ("bs=0", "a block has"),
        ("percentile_list=101", "0 to 100"),
        ("cpus_allowed=x", "not a list of processors"),
        ("cpus=0-1000", "does not exist"),
        ("rwmixread=101", "0..=100"),
        ("filename=a:b", "one target"),
        ("thinktime=1ms", "rw=samples"),
    ] {
        refused(&format!("[a]\nioengine=null\nsize=1m\n{line}\n"), &[word]);
    }
}

#[test]
fn options_of_fio_alone_are_refused_with_a_pointer_to_fio() {
    let pointer = ["ioengine=external:dlfs-fio.so", "tools/bench/README.md"];
    for line in [
        "steadystate=iops:5%",
        "latency_target=5ms",
        "random_distribution=zipf:1.2",
        "read_iolog=x",
        "exec_prerun=true",
        "ioengine=psync",
        "thread=0",
        "zonemode=zbd",
        "verify=md5",
        "rw=trim",
    ] {
        let key = line.split('=').next().unwrap();
        refused(
            &format!("[a]\nioengine=null\nsize=1m\n{line}\n"),
            &["bad.fio:4", key, pointer[0], pointer[1]],
        );
        let argument = format!("--{line}");
        let out = run(&["--name=a", "--ioengine=null", "--size=1m", &argument]).code(1);
        out.complains_of(&[key, pointer[0]]);
    }
    run(&["--client=host", "x.fio"]).code(1).complains_of(&["client", pointer[0]]);
}

#[test]
fn a_missing_target_is_named() {
    let out =
        run(&["--name=a", "--filename=nvme-tcp://127.0.0.1:1/nqn.2026-11.io.dlfs:x", "--rw=read"]);
    out.code(1).complains_of(&["127.0.0.1:1"]);
    run(&["--name=a", "--filename=nvme-tcp://h", "--rw=read"])
        .code(1)
        .complains_of(&["nvme-tcp://h"]);
}

#[test]
fn a_job_file_that_is_not_there_is_named() {
    run(&["/nonexistent.fio"]).code(1).complains_of(&["/nonexistent.fio"]);
    let mut command = bench();
    command.arg("-x");
    finish(command).code(1).complains_of(&["-x"]);
}

/// A named pipe that nobody writes to.
fn pipe(dir: &TestDir) -> std::path::PathBuf {
    let path = dir.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("mkfifo runs").success());
    path
}

#[test]
fn a_job_file_that_never_ends_is_refused() {
    let dir = TestDir::new();
    let refused = |path: &Path, words: &[&str]| run(&[path]).code(1).complains_of(words);
    refused(Path::new("/dev/zero"), &["/dev/zero", "neither a regular file nor a pipe"]);
    refused(dir.folder(), &["neither a regular file nor a pipe"]);
    let long = dir.path("long.fio");
    fs::File::create(&long).unwrap().set_len(1 << 40).unwrap();
    refused(&long, &["long.fio", "more than 1048576 bytes"]);
    refused(&dir.write("jobs.fio", &"[a]\n".repeat(1 << 15)), &["more than 4096"]);
    let mut command = bench();
    command.arg("-").stdin(fs::File::open("/dev/zero").unwrap());
    finish(command).code(1).complains_of(&["1048576 bytes"]);
}

#[test]
fn a_job_file_may_come_through_a_pipe() {
    let dir = TestDir::new();
    let path = pipe(&dir);
    let mut command = bench();
    command.arg(&path);
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        fs::write(path, "[a]\nioengine=null\nsize=1m\n").unwrap();
    });
    assert!(finish(command).quiet().text().contains("io=1024KiB"));
    writer.join().unwrap();
}

#[test]
fn a_target_that_has_no_blocks_is_refused_before_it_is_opened() {
    let dir = TestDir::new();
    let path = pipe(&dir);
    let names = [path.to_str().unwrap(), "/dev/zero", dir.folder().to_str().unwrap()];
    for name in names {
        for engine in ["io_uring", "file"] {
            let file = format!("--filename={name}");
            let engine = format!("--ioengine={engine}");
            let out = run(&["--name=a", &file, &engine, "--size=8k", "--rw=write"]);
            out.code(1).complains_of(&[name, "neither"]);
        }
    }
    let file = format!("--filename={}", path.display());
    run(&["--name=a", "--rw=samples", &file]).code(1).complains_of(&["pipe", "neither"]);
}

#[test]
fn a_file_that_the_disk_has_no_room_for_is_not_begun() {
    let dir = TestDir::new();
    let path = dir.path("large");
    let file = format!("--filename={}", path.display());
    let out = run(&["--name=a", &file, "--rw=read", "--size=1e"]);
    out.code(1).complains_of(&["large", "no storage space"]);
    assert_eq!(fs::metadata(path).unwrap().len(), 0);
}

#[test]
fn huge_numbers_are_refused_or_harmless() {
    let times = ["18446744073709551615", "99999999999999999999999", "36526d"];
    for (key, time) in
        ["runtime", "ramp_time", "thinktime"].iter().flat_map(|key| times.map(|time| (key, time)))
    {
        let line = format!("{key}={time}");
        refused(&format!("[a]\nioengine=null\nsize=1m\n{line}\n"), &[&line, "100 years"]);
    }
    let line = "epochs=18446744073709551615";
    refused(&format!("[a]\nioengine=null\nsize=1m\n{line}\n"), &[line, "too large"]);
    for line in ["size=15e", "offset=15e", "io_size=2e", "rate=1025p", "offset_increment=15e"] {
        refused(&format!("[a]\nioengine=null\n{line}\nsize=1m\n"), &[line, "2^60"]);
    }
    for line in ["bssplit=4k/50:1e/50", "bs=1e"] {
        refused(&format!("[a]\nioengine=null\nsize=1m\n{line}\n"), &[line, "a block has"]);
    }
    // The largest that is taken, together.
    let most = "[a]\nioengine=null\nnumber_ios=8\nruntime=36525d\nramp_time=0\nsize=1e\noffset=1e\n\
                offset_increment=1e\nnumjobs=4\nloops=18446744073709551615\n\
                rw=randrw\nio_size=1e\nrate=1e\nfsync=18446744073709551615\n";
    let dir = TestDir::new();
    run(&[dir.write("most.fio", most)]).quiet();
    let more = "[a]\nioengine=null\nsize=1e\noffset_increment=1e\nnumjobs=64\n";
    run(&[dir.write("more.fio", more)]).code(1).complains_of(&["ends beyond it"]);
    refused("[a]\nioengine=null\nsize=1e\nbs=1g\niodepth=65535\n", &["no memory"]);
}
