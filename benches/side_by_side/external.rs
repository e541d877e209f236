//! External programs: fio, iperf3, openssl. Each reports why it cannot be run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::hosts::HOST_CPU;
use crate::slice::{Done, Slice};
use crate::support::cpus;
use crate::targets::TARGET_CPU;

/// The path of `program`.
///
/// # Errors
/// It is not installed.
pub(crate) fn find(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found.into_iter().find(|path| path.is_file()).ok_or(format!("{program} is not installed"))
}

/// The processor's number in the form that other programs expect.
pub(crate) fn cpu(nth: usize) -> String {
    let cpus = cpus();
    cpus[nth % cpus.len()].to_string()
}

// fio

/// The depth at which fio reads fastest.
pub(crate) fn best_fio_depth(file: &Path, len: usize) -> Result<u32, String> {
    find("fio")?;
    let mut best = (0.0, 0);
    for depth in [16, 32, 64, 128, 256] {
        let slice = fio(file, len, depth, 500)?;
        best = if slice.ops_s() > best.0 { (slice.ops_s(), depth) } else { best };
    }
    Ok(best.1)
}

/// Random reads with O_DIRECT by fio's io_uring engine.
pub(crate) fn fio(file: &Path, len: usize, depth: u32, ms: u64) -> Result<Slice, String> {
    let argument = |name: &str, value: String| format!("--{name}={value}");
    let output = Command::new("fio")
        .args([
            "--name=bench",
            "--rw=randread",
            "--direct=1",
            "--ioengine=io_uring",
            "--time_based",
        ])
        .args([
            "--thread",
            "--norandommap",
            "--gtod_reduce=1",
            "--output-format=json",
            "--readonly",
        ])
        .arg(argument("filename", file.display().to_string()))
        .arg(argument("bs", len.to_string()))
        .arg(argument("iodepth", depth.to_string()))
        .arg(argument("runtime", format!("{ms}ms")))
        .arg(argument("cpus_allowed", cpu(HOST_CPU)))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let json = text.find('{').map_or("", |at| &text[at..]); // notes may precede it
    let report: Value = serde_json::from_str(json)
        .map_err(|_| format!("fio failed: {}", String::from_utf8_lossy(&output.stderr)))?;
    let job = &report["jobs"][0];
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let wall_s = number(&job["read"]["runtime"]) / 1e3;
    let ops = number(&job["read"]["total_ios"]) as u64;
    let share = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
    if ops == 0 {
        return Err("fio read nothing".into());
    }
    let done = Done { ops, bytes: ops * len as u64, batches: 0 };
    let host_cpu_s = share * wall_s;
    Ok(Slice { done, wall_s, host_cpu_s, target_cpu_s: None, allocations: 0 })
}

// iperf3

/// One stream of iperf3, its two sides bound like ours.
pub(crate) fn iperf3(len: usize, ms: u64) -> Result<Slice, String> {
    let port = "5211";
    let mut server = Command::new("iperf3")
        .args(["-s", "-1", "-p", port, "-A", &cpu(HOST_CPU)])
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("iperf3: {error}"))?;
    std::thread::sleep(Duration::from_millis(200)); // it does not report when it listens
    let len_text = len.to_string();
    let seconds = ms.div_ceil(1000).to_string();
    let output = Command::new("iperf3")
        .args(["-c", "127.0.0.1", "-p", port, "-t", &seconds, "-l", &len_text, "-C", "reno", "-J"])
        .args(["-A", &cpu(TARGET_CPU)])
        .output();
    let _ = server.kill(); // it may have ended
    let _ = server.wait(); // its result does not matter
    let output = output.map_err(|error| format!("iperf3: {error}"))?;
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    let end = &report["end"];
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let bytes = number(&end["sum_received"]["bytes"]) as u64;
    let wall_s = number(&end["sum_received"]["seconds"]);
    if bytes == 0 {
        return Err(format!("iperf3 failed: {}", report["error"]));
    }
    let share = |side: &str| number(&end["cpu_utilization_percent"][side]) / 100.0 * wall_s;
    let done = Done { ops: bytes / len as u64, bytes, batches: 0 };
    let host_cpu_s = share("remote_total");
    let target = share("host_total");
    Ok(Slice { done, wall_s, host_cpu_s, target_cpu_s: Some(target), allocations: 0 })
}

// OpenSSL

/// How fast one processor encrypts with the cipher of TLS_AES_128_GCM_SHA256.
pub(crate) fn openssl_speed() -> Result<Slice, String> {
    let output = Command::new("taskset")
        .args(["-c", &cpu(HOST_CPU), "openssl", "speed", "-elapsed", "-mr", "-seconds", "1"])
        .args(["-bytes", "16384", "-evp", "aes-128-gcm"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("taskset: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // +F:NUMBER:NAME:BYTES PER SECOND
    let rate = text.lines().find_map(|line| line.strip_prefix("+F:")?.rsplit(':').next());
    let rate: f64 = rate.and_then(|rate| rate.parse().ok()).ok_or_else(|| {
        format!("openssl speed failed: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    let done = Done { ops: (rate / 16384.0) as u64, bytes: rate as u64, batches: 0 };
    Ok(Slice { done, wall_s: 1.0, host_cpu_s: 1.0, target_cpu_s: None, allocations: 0 })
}
