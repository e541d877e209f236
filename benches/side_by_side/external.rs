//! External programs: fio, iperf3, SPDK. Each reports why it cannot be run.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::hosts::HOST_CPU;
use crate::slice::{Done, Slice};
use crate::support::{cpu_seconds_of, cpus};
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
fn cpu(nth: usize) -> String {
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
    let (len_text, seconds) = (len.to_string(), ms.div_ceil(1000).to_string());
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
    let (bytes, wall_s) =
        (number(&end["sum_received"]["bytes"]) as u64, number(&end["sum_received"]["seconds"]));
    if bytes == 0 {
        return Err(format!("iperf3 failed: {}", report["error"]));
    }
    let share = |side: &str| number(&end["cpu_utilization_percent"][side]) / 100.0 * wall_s;
    let done = Done { ops: bytes / len as u64, bytes, batches: 0 };
    let (host_cpu_s, target) = (share("remote_total"), share("host_total"));
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

// SPDK

/// SPDK's target with a region of memory, and its `spdk_nvme_perf`. The target spins, so it is
/// stopped while nobody reads from it.
pub(crate) struct Spdk {
    target: Child,
    perf: PathBuf,
    address: String,
    _config: tempfile::TempDir,
}

/// SPDK's target runs while this lives.
pub(crate) struct Awake(Pid);

impl Drop for Awake {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::STOP); // if it has died, that is detected elsewhere
    }
}

impl Spdk {
    /// Starts the target; the programs are in `SPDK_DIR` or on the path.
    pub(crate) fn start(region: u64) -> Result<Spdk, String> {
        let (tgt, perf) = (spdk_program("nvmf_tgt")?, spdk_program("spdk_nvme_perf")?);
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (config, log) = (folder.path().join("config.json"), folder.path().join("log"));
        let text = spdk_config(region).to_string();
        std::fs::write(&config, text).map_err(|error| error.to_string())?;
        let to_log = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let memory_mb = ((region >> 20) + 1024).to_string();
        let mask = format!("{:#x}", 1u64 << cpu(TARGET_CPU).parse::<u32>().unwrap_or(0));
        let target = Command::new(tgt)
            .args(["-m", &mask, "--no-huge", "-s", &memory_mb, "-u", "--json"])
            .arg(&config)
            .args(["-r", &folder.path().join("rpc.sock").to_string_lossy()])
            .stdin(Stdio::null())
            .stdout(to_log.try_clone().map_err(|error| error.to_string())?)
            .stderr(to_log)
            .spawn()
            .map_err(|error| format!("nvmf_tgt: {error}"))?;
        let address = format!("nvme-tcp://127.0.0.1:{SPDK_PORT}/{SPDK_NQN}");
        let spdk = Spdk { target, perf, address, _config: folder };
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", SPDK_PORT)).is_err() {
            if Instant::now() > deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default();
                return Err(format!("nvmf_tgt does not listen: {last}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(Awake(spdk.process())); // stops it
        Ok(spdk)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.target.id()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn awake(&self) -> Awake {
        let _ = kill_process(self.process(), Signal::CONT); // as above
        Awake(self.process())
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.target.id() as i32).expect("a child has a number above zero")
    }

    /// Random reads by `spdk_nvme_perf` for one second from `address`, whose process is `other`.
    pub(crate) fn perf(
        &self,
        address: &str,
        len: usize,
        depth: usize,
        other: u32,
    ) -> Result<Slice, String> {
        let (authority, nqn) = address
            .strip_prefix("nvme-tcp://")
            .and_then(|rest| rest.split_once('/'))
            .ok_or("not an address of a target")?;
        let (host, port) = authority.split_once(':').ok_or("an address without a port")?;
        let nqn = nqn.split('?').next().unwrap_or(nqn);
        let id = format!(
            "trtype:TCP adrfam:IPv4 traddr:{host} trsvcid:{port} subnqn:{nqn} hostnqn:{HOSTNQN}"
        );
        let mask = format!("{:#x}", 1u64 << cpu(HOST_CPU).parse::<u32>().unwrap_or(1));
        let child = Command::new(&self.perf)
            .args(["-c", &mask, "--no-huge", "-s", "128", "-w", "randread", "-t", "1", "-r", &id])
            .args(["-q", &depth.to_string(), "-o", &len.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("spdk_nvme_perf: {error}"))?;
        // It reads from about 0.3 s to 1.3 s after its start: the processor time in the middle of
        // that gives the rate.
        std::thread::sleep(Duration::from_millis(500));
        let (at, before) = (Instant::now(), (cpu_seconds_of(child.id()), cpu_seconds_of(other)));
        std::thread::sleep(Duration::from_millis(400));
        let window_s = at.elapsed().as_secs_f64();
        let share = (
            (cpu_seconds_of(child.id()) - before.0) / window_s,
            (cpu_seconds_of(other) - before.1) / window_s,
        );
        let iops = total_iops(child)?;
        let done = Done { ops: iops as u64, bytes: (iops * len as f64) as u64, batches: 0 };
        let (host_cpu_s, target_cpu_s) = (share.0, Some(share.1));
        Ok(Slice { done, wall_s: 1.0, host_cpu_s, target_cpu_s, allocations: 0 })
    }
}

/// The line "Total : IOPS MiB/s average min max" of `spdk_nvme_perf`. The program is killed after
/// it, or if it does not come in time: with a target that is not SPDK's it may wait for ever.
fn total_iops(mut child: Child) -> Result<f64, String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let output = child.stdout.take().expect("piped at its start");
    let reader = std::thread::spawn(move || {
        for line in std::io::BufReader::new(output).lines().map_while(Result::ok) {
            let total = line.trim().strip_prefix("Total").and_then(|rest| {
                rest.trim_start_matches([' ', ':']).split_whitespace().next()?.parse::<f64>().ok()
            });
            if let Some(iops) = total {
                let _ = sender.send(iops); // the receiver may have given up
            }
        }
    });
    let iops = receiver.recv_timeout(Duration::from_secs(10));
    let _ = child.kill(); // it may have ended
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let _ = reader.join(); // its pipe is closed
    iops.map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        format!("spdk_nvme_perf failed: {}", said.lines().last().unwrap_or("it said nothing"))
    })
}

impl Drop for Spdk {
    fn drop(&mut self) {
        // Stopped processes react only to this signal.
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

fn spdk_program(name: &str) -> Result<PathBuf, String> {
    if let Some(folder) = std::env::var_os("SPDK_DIR") {
        for inner in ["bin", "build/bin", "build/examples", ""] {
            let path = Path::new(&folder).join(inner).join(name);
            if path.is_file() {
                return Ok(path);
            }
        }
    }
    find(name).map_err(|_| format!("{name} is neither below SPDK_DIR nor in PATH"))
}

fn spdk_config(region: u64) -> Value {
    let method = |method: &str, params: Value| json!({"method": method, "params": params});
    let listen = json!({"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1",
        "trsvcid": SPDK_PORT.to_string()});
    json!({"subsystems": [
        {"subsystem": "bdev", "config": [method("bdev_malloc_create",
            json!({"name": "Malloc0", "num_blocks": region / 4096, "block_size": 4096}))]},
        {"subsystem": "nvmf", "config": [
            method("nvmf_create_transport", json!({"trtype": "TCP"})),
            method("nvmf_create_subsystem",
                json!({"nqn": SPDK_NQN, "allow_any_host": true, "serial_number": "SPDK1"})),
            method("nvmf_subsystem_add_ns",
                json!({"nqn": SPDK_NQN, "namespace": {"bdev_name": "Malloc0", "nsid": 1}})),
            method("nvmf_subsystem_add_listener",
                json!({"nqn": SPDK_NQN, "listen_address": listen})),
        ]},
    ]})
}

const HOSTNQN: &str = "nqn.2014-08.org.example:side-by-side";
const SPDK_PORT: u16 = 4471;
const SPDK_NQN: &str = "nqn.2016-06.io.spdk:side-by-side";
