//! SPDK's own target as a child process: a RAM disk over TCP and vfio-user, without huge pages or
//! root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dlfs::address::Address;
use serde_json::{Value, json};

/// A running `nvmf_tgt`, killed on drop.
pub struct NvmfTgt {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
    memory_mib: u64,
}

/// SPDK's program `name`, below `SPDK_DIR` or on the path.
pub fn program(name: &str) -> Option<PathBuf> {
    let below = std::env::var_os("SPDK_DIR").map(PathBuf::from);
    let below = below.into_iter().flat_map(|dir| [dir.join("bin"), dir.join("build/bin")]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    below.chain(std::env::split_paths(&path)).map(|dir| dir.join(name)).find(|path| path.is_file())
}

impl NvmfTgt {
    /// A target with one namespace of `mib` MiB; prints why if the program does not exist.
    pub fn start(mib: u64, block_len_bytes: u64) -> Option<NvmfTgt> {
        NvmfTgt::start_with(mib, block_len_bytes, true, None)
    }

    /// [`NvmfTgt::start`] with SPDK's default pool sizes: a gigabyte besides the disk.
    pub fn start_as_shipped(mib: u64, block_len_bytes: u64) -> Option<NvmfTgt> {
        NvmfTgt::start_with(mib, block_len_bytes, false, None)
    }

    /// [`NvmfTgt::start`] with these parameters of SPDK's method `nvmf_set_config`.
    pub fn start_configured(mib: u64, block_len_bytes: u64, nvmf: Value) -> Option<NvmfTgt> {
        NvmfTgt::start_with(mib, block_len_bytes, true, Some(nvmf))
    }

    fn start_with(
        mib: u64,
        block_len_bytes: u64,
        is_small: bool,
        nvmf: Option<Value>,
    ) -> Option<NvmfTgt> {
        let Some(program) = program("nvmf_tgt") else {
            println!("SKIPPED: nvmf_tgt is neither below SPDK_DIR nor on the path");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        std::fs::create_dir(folder.path().join("vfu")).unwrap();
        let mut config = config(folder.path(), port, mib, block_len_bytes, is_small);
        if let Some(parameters) = nvmf {
            let subsystems = config["subsystems"].as_array_mut().unwrap();
            let methods = subsystems.last_mut().unwrap()["config"].as_array_mut().unwrap();
            methods.insert(0, json!({"method": "nvmf_set_config", "params": parameters}));
        }
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let memory_mib = mib + if is_small { 128 } else { 1024 };
        let child = spawn(&program, folder.path(), memory_mib);
        let mut target = NvmfTgt { child, folder, port, memory_mib };
        target.wait_ready();
        Some(target)
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after [`NvmfTgt::kill`], with an empty disk of the same identity.
    pub fn restart(&mut self) {
        let _ = std::fs::remove_dir_all(self.folder.path().join("vfu")); // left behind by the killed process
        std::fs::create_dir(self.folder.path().join("vfu")).unwrap();
        self.child = spawn(&program("nvmf_tgt").unwrap(), self.folder.path(), self.memory_mib);
        self.wait_ready();
    }

    /// Stops it, like a machine that hangs, or continues it.
    pub fn freeze(&self, freeze: bool) {
        let signal = if freeze { "-STOP" } else { "-CONT" };
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn wait_ready(&mut self) {
        // It answers this once it has applied its configuration.
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.try_call("framework_wait_init", json!({})).is_none() {
            assert!(Instant::now() < deadline, "nvmf_tgt does not start: {}", self.log());
            assert!(self.child.try_wait().unwrap().is_none(), "nvmf_tgt has ended: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Calls a JSON-RPC method.
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|| panic!("{method}: {}", self.log()))
    }

    /// Calls a JSON-RPC method; `None`: it fails.
    pub fn try_call(&self, method: &str, params: Value) -> Option<Value> {
        let mut socket = UnixStream::connect(self.folder.path().join("rpc")).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut request = json!({"jsonrpc": "2.0", "id": 1, "method": method});
        if params.as_object().is_some_and(|params| !params.is_empty()) {
            request["params"] = params;
        }
        socket.write_all(request.to_string().as_bytes()).ok()?;
        let mut text = Vec::new();
        let mut reader = BufReader::new(socket).take(1 << 20);
        loop {
            reader.read_until(b'}', &mut text).ok().filter(|&count| count > 0)?;
            if let Ok(answer) = serde_json::from_slice::<Value>(&text) {
                return answer.get("result").cloned();
            }
        }
    }

    /// The address of the namespace over NVMe/TCP, with our host.
    pub fn tcp(&self) -> Address {
        format!("nvme-tcp://127.0.0.1:{}/{NQN}", self.port).parse().unwrap()
    }

    /// The same with SPDK's host.
    pub fn spdk_tcp(&self) -> Address {
        format!("spdk:{}", self.tcp()).parse().unwrap()
    }

    /// The same over vfio-user.
    pub fn vfio_user(&self) -> Address {
        format!("spdk:{}", self.own_vfio_user()).parse().unwrap()
    }

    /// The same with our own driver.
    pub fn own_vfio_user(&self) -> Address {
        let folder = self.folder.path().join("vfu");
        format!("trtype:VFIOUSER traddr:{} subnqn:{NQN}", folder.display()).parse().unwrap()
    }

    /// The port of [`NvmfTgt::tcp`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on, [`NvmfTgt::tcp`] uses TLS.
    pub fn listen_with_tls(&self) {
        let [address, _] = listen_addresses(self.folder.path(), self.port);
        let listener = json!({"nqn": NQN, "listen_address": address});
        self.call("nvmf_subsystem_remove_listener", listener.clone());
        let listener = json!({"nqn": NQN, "listen_address": address, "secure_channel": true});
        self.call("nvmf_subsystem_add_listener", listener);
    }

    /// Closes both of its listeners and opens them again: every controller is reset.
    pub fn throw_all_out(&self) {
        for address in listen_addresses(self.folder.path(), self.port) {
            let listener = json!({"nqn": NQN, "listen_address": address});
            self.call("nvmf_subsystem_remove_listener", listener.clone());
            self.call("nvmf_subsystem_add_listener", listener);
        }
    }
}

impl Drop for NvmfTgt {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn spawn(program: &Path, folder: &Path, memory_mib: u64) -> Child {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    Command::new(program)
        .current_dir(folder) // where a core file may lie
        .args(["-m", "0x1", "--no-huge", "-u", "--msg-mempool-size", "4095", "-s"])
        .arg(memory_mib.to_string())
        .arg("--disable-cpumask-locks")
        .arg("-r")
        .arg(folder.join("rpc"))
        .arg("--json")
        .arg(folder.join("config.json"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Its listen addresses: TCP and vfio-user.
fn listen_addresses(folder: &Path, port: u16) -> [Value; 2] {
    let vfu = folder.join("vfu");
    [
        json!({"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string()}),
        json!({"trtype": "VFIOUSER", "traddr": vfu.display().to_string(), "trsvcid": "0"}),
    ]
}

/// Its configuration. A small target has pools of 128 MiB besides the disk.
fn config(folder: &Path, port: u16, mib: u64, block_len_bytes: u64, is_small: bool) -> Value {
    let method = |method: &str, params: Value| json!({"method": method, "params": params});
    let iobuf = json!({"small_pool_count": 1024, "large_pool_count": 128});
    let bdev = json!({
        "bdev_io_pool_size": 2048, "bdev_io_cache_size": 64,
        "iobuf_small_cache_size": 16, "iobuf_large_cache_size": 4,
    });
    let accel = json!({
        "small_cache_size": 16, "large_cache_size": 4,
        "task_count": 512, "sequence_count": 512, "buf_count": 512,
    });
    let disk = json!({
        "name": "Malloc0", "num_blocks": (mib << 20) / block_len_bytes, "block_size": block_len_bytes,
        "uuid": "11223344-5566-7788-99aa-bbccddeeff00",
    });
    let tcp = if is_small {
        json!({"trtype": "TCP", "num_shared_buffers": 127, "buf_cache_size": 8})
    } else {
        // As deep as that of vfio-user.
        json!({"trtype": "TCP", "max_queue_depth": 256})
    };
    let [tcp_listener, vfio_user_listener] = listen_addresses(folder, port)
        .map(|address| json!({"nqn": NQN, "listen_address": address}));
    let make_disk = method("bdev_malloc_create", disk);
    let pools = if is_small {
        vec![
            json!({"subsystem": "iobuf", "config": [method("iobuf_set_options", iobuf)]}),
            json!({"subsystem": "accel", "config": [method("accel_set_options", accel)]}),
            json!({"subsystem": "bdev", "config": [method("bdev_set_options", bdev), make_disk]}),
        ]
    } else {
        vec![json!({"subsystem": "bdev", "config": [make_disk]})]
    };
    let nvmf = json!(
        {"subsystem": "nvmf", "config": [
            method("nvmf_create_transport", tcp),
            method("nvmf_create_transport", json!({"trtype": "VFIOUSER"})),
            method("nvmf_create_subsystem", json!({
                "nqn": NQN, "allow_any_host": true, "serial_number": "DLFS1",
            })),
            method("nvmf_subsystem_add_ns", json!({
                "nqn": NQN, "namespace": {"bdev_name": "Malloc0", "nsid": 1},
            })),
            method("nvmf_subsystem_add_listener", tcp_listener),
            method("nvmf_subsystem_add_listener", vfio_user_listener),
        ]}
    );
    let subsystems: Vec<Value> = pools.into_iter().chain([nvmf]).collect();
    json!({"subsystems": subsystems})
}

/// NQN of the subsystem.
pub const NQN: &str = "nqn.2026-11.io.dlfs:spdk";
