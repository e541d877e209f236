//! fio's keys are all there, in every job.

use serde_json::Value;

use crate::common::run;

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
        "--output-format=json",
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
