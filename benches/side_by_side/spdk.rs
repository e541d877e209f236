//! SPDK's target and hosts: plain by `spdk_nvme_perf`, and inside TLS by `bdevperf`, whose sockets have buffers that a
//! configuration can set. Each reports why it cannot be run.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::external::{cpu, find};
use crate::hosts::HOST_CPU;
use crate::slice::{Done, Slice};
use crate::support::cpu_seconds_of;
use crate::targets::{TARGET_CPU, tls};

/// SPDK's target with a region of memory, and its host. The target spins, so it is stopped while nobody reads
/// from it.
pub(crate) struct Spdk {
    target: Child,
    perf: PathBuf,
    is_secured: bool,
    folder: tempfile::TempDir,
}

/// SPDK's target runs while this lives.
pub(crate) struct Awake(Pid);

impl Drop for Awake {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::STOP); // if it has died, that is detected elsewhere
    }
}

impl Spdk {
    /// Starts the target, outside or inside TLS; the programs are in `SPDK_DIR` or on the path.
    ///
    /// # Errors
    /// Why it does not start.
    pub(crate) fn start(region: u64, is_secured: bool) -> Result<Spdk, String> {
        let perf = if is_secured { "bdevperf" } else { "spdk_nvme_perf" };
        let tgt = spdk_program("nvmf_tgt")?;
        let perf = spdk_program(perf)?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let key = if is_secured {
            Some(key_file(folder.path()).map_err(|error| error.to_string())?)
        } else {
            None
        };
        let config = folder.path().join("config.json");
        let log = folder.path().join("log");
        let text = target_config(region, key.as_deref()).to_string();
        std::fs::write(&config, text).map_err(|error| error.to_string())?;
        let to_log = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let memory_mb = ((region >> 20) + 1024).to_string();
        let target = Command::new(tgt)
            .args([
                "-m",
                &mask(TARGET_CPU),
                "--disable-cpumask-locks",
                "--no-huge",
                "-s",
                &memory_mb,
                "-u",
                "--json",
            ])
            .arg(&config)
            .args(["-r", &folder.path().join("rpc.sock").to_string_lossy()])
            .stdin(Stdio::null())
            .stdout(to_log.try_clone().map_err(|error| error.to_string())?)
            .stderr(to_log)
            .spawn()
            .map_err(|error| format!("nvmf_tgt: {error}"))?;
        let spdk = Spdk { target, perf, is_secured, folder };
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port(is_secured))).is_err() {
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

    pub(crate) fn address(&self) -> String {
        format!("nvme-tcp://127.0.0.1:{}/{SPDK_NQN}", port(self.is_secured))
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
        let mut command = Command::new(&self.perf);
        command.args(["-c", &mask(HOST_CPU), "-s", "128", "-t", "1", "-r", &id]);
        random_reads(&mut command, len, depth);
        // It reads from about 0.3 s to 1.3 s after its start.
        measured(command, len, other, Duration::from_millis(500))
    }

    /// Random reads by `bdevperf` for two seconds, inside TLS from this target.
    pub(crate) fn bdevperf(&self, len: usize, depth: usize) -> Result<Slice, String> {
        let folder = self.folder.path();
        let config = folder.join("host.json");
        let text = host_config(&folder.join("psk")).to_string();
        std::fs::write(&config, text).map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.perf);
        command.args(["-m", &mask(HOST_CPU), "-s", "512", "-t", "2", "--json"]).arg(config);
        command.arg("-r").arg(folder.join("host.sock"));
        random_reads(&mut command, len, depth);
        measured(command, len, self.pid(), Duration::from_millis(1200))
    }
}

fn random_reads(command: &mut Command, len: usize, depth: usize) {
    command.args(["--no-huge", "-w", "randread"]);
    command.args(["-q", &depth.to_string(), "-o", &len.to_string()]);
}

/// Runs a host of SPDK, and takes the processor time of both sides from this long after its start on for 0.4 s, which
/// gives the rate: by then it reads.
fn measured(
    mut command: Command,
    len: usize,
    other: u32,
    after: Duration,
) -> Result<Slice, String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    std::thread::sleep(after);
    let at = Instant::now();
    let before = (cpu_seconds_of(child.id()), cpu_seconds_of(other));
    std::thread::sleep(Duration::from_millis(400));
    let window_s = at.elapsed().as_secs_f64();
    let share = (
        (cpu_seconds_of(child.id()) - before.0) / window_s,
        (cpu_seconds_of(other) - before.1) / window_s,
    );
    let iops = total_iops(child)?;
    let done = Done { ops: iops as u64, bytes: (iops * len as f64) as u64, batches: 0 };
    let host_cpu_s = share.0;
    let target_cpu_s = Some(share.1);
    Ok(Slice { done, wall_s: 1.0, host_cpu_s, target_cpu_s, allocations: 0 })
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

/// The target's configuration: with the key's file, it listens inside TLS alone.
fn target_config(region: u64, key: Option<&Path>) -> Value {
    let is_secured = key.is_some();
    let listen = json!({"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1",
        "trsvcid": port(is_secured).to_string()});
    let mut nvmf = vec![
        method("nvmf_create_transport", json!({"trtype": "TCP"})),
        method(
            "nvmf_create_subsystem",
            json!({"nqn": SPDK_NQN, "allow_any_host": !is_secured, "serial_number": "SPDK1"}),
        ),
        method(
            "nvmf_subsystem_add_ns",
            json!({"nqn": SPDK_NQN, "namespace": {"bdev_name": "Malloc0", "nsid": 1}}),
        ),
    ];
    let mut listener = json!({"nqn": SPDK_NQN, "listen_address": listen});
    if is_secured {
        let host = json!({"nqn": SPDK_NQN, "host": tls().0.as_str(), "psk": "psk"});
        nvmf.push(method("nvmf_subsystem_add_host", host));
        listener["secure_channel"] = true.into();
    }
    nvmf.push(method("nvmf_subsystem_add_listener", listener));
    let disk = json!({"name": "Malloc0", "num_blocks": region / 4096, "block_size": 4096});
    let mut subsystems = key.map_or(Vec::new(), secured);
    subsystems.push(subsystem("bdev", vec![method("bdev_malloc_create", disk)]));
    subsystems.push(subsystem("nvmf", nvmf));
    json!({"subsystems": subsystems})
}

/// The configuration of `bdevperf`, which reads from the target inside TLS.
fn host_config(key: &Path) -> Value {
    let controller = json!({
        "name": "Nvme0", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1",
        "trsvcid": port(true).to_string(), "subnqn": SPDK_NQN, "hostnqn": tls().0.as_str(), "psk": "psk",
    });
    let attach = method("bdev_nvme_attach_controller", controller);
    let mut subsystems = secured(key);
    subsystems.push(subsystem("bdev", vec![attach]));
    json!({"subsystems": subsystems})
}

/// The key, and buffers of sockets inside TLS: with SPDK's own size of 4 KiB, 128 KiB come at 39 reads a second.
fn secured(key: &Path) -> Vec<Value> {
    let sockets = json!({"impl_name": "ssl", "recv_buf_size": 2 << 20, "send_buf_size": 2 << 20});
    let key = json!({"name": "psk", "path": key});
    vec![
        subsystem("sock", vec![method("sock_impl_set_options", sockets)]),
        subsystem("keyring", vec![method("keyring_file_add_key", key)]),
    ]
}

fn method(method: &str, params: Value) -> Value {
    json!({"method": method, "params": params})
}

fn subsystem(name: &str, methods: Vec<Value>) -> Value {
    json!({"subsystem": name, "config": methods})
}

/// The same key as that of our own target.
fn key_file(folder: &Path) -> std::io::Result<PathBuf> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = folder.join("psk");
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(tls().1.to_text().as_bytes())?;
    Ok(path)
}

/// The processor, as a mask.
fn mask(nth: usize) -> String {
    format!("{:#x}", 1_u64 << cpu(nth).parse::<u32>().unwrap_or(0))
}

fn port(is_secured: bool) -> u16 {
    if is_secured { 4472 } else { 4471 }
}

const HOSTNQN: &str = "nqn.2014-08.org.example:side-by-side";
const SPDK_NQN: &str = "nqn.2016-06.io.spdk:side-by-side";
