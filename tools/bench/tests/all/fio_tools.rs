//! fio's own tools read the output unchanged: fio-plot (bars, histogram, log graph), bench-fio's
//! expectations, `fio_jsonplus_clat2csv`; and fio's keys are all there, in every job.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::{TestDir, bench, finish, run};

/// A program of the path, or of the folder that `DLFS_FIO_TOOLS` names.
fn tool(name: &str) -> Option<PathBuf> {
    let folders = std::env::var("DLFS_FIO_TOOLS").unwrap_or_default();
    let path = std::env::var("PATH").unwrap_or_default();
    let all =
        std::env::split_paths(&folders).chain(std::env::split_paths(&path)).collect::<Vec<_>>();
    let found = all.into_iter().map(|folder| folder.join(name)).find(|program| program.is_file());
    if found.is_none() {
        println!("SKIPPED: {name} is not installed");
    }
    found
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn every_key_that_fio_has_is_there() {
    let out = run(&[
        "--name=k",
        "--ioengine=null",
        "--size=4m",
        "--rw=randrw",
        "--bs=4k",
        "--iodepth=4",
        "--fsync=100",
        "--output-format=json+",
    ])
    .quiet();
    let document = out.json();
    assert!(document["fio version"].as_str().unwrap().starts_with("fio-3"));
    assert!(document.get("global options").is_none());
    let job = &document["jobs"][0];
    for key in [
        "jobname",
        "groupid",
        "job_start",
        "error",
        "eta",
        "elapsed",
        "job options",
        "read",
        "write",
        "trim",
        "sync",
        "job_runtime",
        "usr_cpu",
        "sys_cpu",
        "ctx",
        "majf",
        "minf",
        "iodepth_level",
        "iodepth_submit",
        "iodepth_complete",
        "latency_ns",
        "latency_us",
        "latency_ms",
        "latency_depth",
        "latency_target",
        "latency_percentile",
        "latency_window",
    ] {
        assert!(job.get(key).is_some(), "{key}");
    }
    for direction in ["read", "write", "trim"] {
        for key in [
            "io_bytes",
            "io_kbytes",
            "bw_bytes",
            "bw",
            "iops",
            "runtime",
            "total_ios",
            "short_ios",
            "drop_ios",
            "slat_ns",
            "clat_ns",
            "lat_ns",
            "bw_min",
            "bw_max",
            "bw_agg",
            "bw_mean",
            "bw_dev",
            "bw_samples",
            "iops_min",
            "iops_max",
            "iops_mean",
            "iops_stddev",
            "iops_samples",
        ] {
            assert!(job[direction].get(key).is_some(), "{direction}.{key}");
        }
    }
    assert_eq!(keys(&job["latency_ms"]).len(), 12);
    assert_eq!(job["read"]["clat_ns"]["percentile"].as_object().unwrap().len(), 17);
    let bins = job["read"]["clat_ns"]["bins"].as_object().unwrap();
    let counted: u64 = bins.values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(counted, job["read"]["total_ios"].as_u64().unwrap());
    let shares = ["latency_ns", "latency_us", "latency_ms"].iter().flat_map(|unit| {
        job[unit]
            .as_object()
            .unwrap()
            .values()
            .map(|share| share.as_f64().unwrap())
            .collect::<Vec<_>>()
    });
    let sum: f64 = shares.sum();
    assert!((sum - 100.0).abs() < 0.01, "{sum}");
    let options = keys(&job["job options"]);
    for key in ["rw", "iodepth", "bs"] {
        assert!(options.contains(&key), "{key}");
    }
}

#[test]
fn terse_lines_have_as_many_fields_as_fio_s() {
    for (version, fields) in [("3", 121), ("5", 180)] {
        let version = format!("--terse-version={version}");
        let out =
            run(&["--name=t", "--ioengine=null", "--size=1m", "--output-format=terse", &version]);
        let out = out.quiet();
        assert_eq!(out.text().trim_end().split(';').count(), fields, "{version}");
        assert_eq!(out.text().lines().count(), 1);
    }
}

#[test]
fn logs_have_fio_s_names_and_lines() {
    let dir = TestDir::new();
    let prefix = dir.path("logs/l").display().to_string();
    run(&[
        "--name=l",
        "--ioengine=null",
        "--size=1m",
        "--rw=write",
        "--bs=4k",
        "--output-format=json",
        &format!("--write_bw_log={prefix}"),
        &format!("--write_iops_log={prefix}"),
        &format!("--write_lat_log={prefix}"),
        "--log_offset",
    ])
    .quiet();
    for kind in ["bw", "iops", "slat", "clat", "lat"] {
        let text = std::fs::read_to_string(format!("{prefix}_{kind}.1.log")).unwrap();
        assert_eq!(text.lines().count(), 256, "{kind}");
        let last: Vec<u64> =
            text.lines().last().unwrap().split(", ").map(|n| n.parse().unwrap()).collect();
        assert_eq!(
            (last.len(), last[2], last[3], last[4]),
            (5, 1, 4096, (1 << 20) - 4096),
            "{kind}"
        );
    }
}

#[test]
fn fio_jsonplus_clat2csv_reads_the_histograms() {
    let Some(program) = tool("fio_jsonplus_clat2csv") else { return };
    let dir = TestDir::new();
    let json = dir.path("out.json");
    run(&[
        "--name=h",
        "--ioengine=null",
        "--size=4m",
        "--rw=randrw",
        "--iodepth=8",
        "--lat_percentiles=1",
        "--clat_percentiles=1",
        "--slat_percentiles=1",
        "--output-format=json+",
        "--output",
        json.to_str().unwrap(),
    ])
    .quiet();
    let mut command = Command::new(program);
    command.arg(&json).arg(dir.path("out.csv"));
    finish(command).code(0);
    let csv = std::fs::read_to_string(dir.path("out_job0.csv")).unwrap();
    assert!(csv.starts_with("nsec, read_slat_ns_count"), "{csv}");
    assert!(csv.lines().count() > 5, "{csv}");
}

#[test]
fn fio_plot_draws_bars_a_histogram_and_a_log_graph() {
    let Some(program) = tool("fio-plot") else { return };
    let dir = TestDir::new();
    for depth in ["1", "2", "4"] {
        let file = dir.write(
            "job.fio",
            &format!(
                "[FIOJOB]\nrw=randread\nioengine=null\nbs=4k\nsize=64m\niodepth={depth}\nnumjobs=1\n\
                 direct=1\nruntime=1\ntime_based=1\ninvalidate=1\nrwmixread=75\nlog_avg_msec=100\n\
                 rate_iops=20000\nwrite_bw_log={0}\nwrite_lat_log={0}\nwrite_iops_log={0}\n",
                dir.path(&format!("randread-iodepth-{depth}-numjobs-1")).display()
            ),
        );
        let json = dir.path(&format!("randread-{depth}-1.json"));
        let mut command = bench();
        command.arg("--output-format=json").arg("--output").arg(&json).arg(&file);
        finish(command).quiet();
    }
    let keep = std::env::var("DLFS_KEEP_PLOTS").ok();
    for (kind, more) in [("-l", vec![]), ("-H", vec!["-d", "4"]), ("-g", vec!["-t", "iops", "lat"])]
    {
        let image = dir.path(&format!("plot{kind}.png"));
        let mut command = Command::new(&program);
        command.current_dir(dir.folder()).args(["-i", ".", "-T", "null", "-r", "randread", kind]);
        command.args(more).arg("-o").arg(&image).env("MPLBACKEND", "Agg");
        finish(command).code(0);
        assert!(std::fs::metadata(&image).unwrap().len() > 10_000, "{kind}");
        if let Some(folder) = &keep {
            std::fs::copy(&image, format!("{folder}/plot{kind}.png")).unwrap();
        }
    }
}
