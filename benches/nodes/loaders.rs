//! Other loaders with their own local caches, as nodes of the same cluster: MosaicML Streaming, LitData and
//! WebDataset, by `loaders.py`. Their origin is nginx behind the same link.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{Cluster, Image, Setting};
use crate::network::Network;
use crate::sides::Read;
use crate::support::{Options, Side, files};

/// Prints the origin's bytes and samples a second of five epochs on four nodes, dlfs first.
pub(crate) fn compare(image: &Image, at: &Path, options: &Options) {
    println!(
        "\n{NODES} nodes, {EPOCHS} epochs from a cold start, each node reads {} MB/s at most.",
        options.number("pace-mb")
    );
    println!(
        "\n| loader | caches together, of the data | origin bytes / data, epochs 1 to {EPOCHS} | in all | epoch 1, \
         samples/s | later epochs, samples/s | CPU s/GB |"
    );
    println!("|---|---|---|---|---|---|---|");
    let chosen: Vec<&str> = options.text("loaders").split(',').collect();
    if let Some(other) = chosen.iter().find(|name| **name != DLFS && !LOADERS.contains(name)) {
        eprintln!("--loaders {other}: there are {DLFS}, {}", LOADERS.join(", "));
        std::process::exit(2);
    }
    if chosen.contains(&DLFS) {
        read_dlfs(image, at, options);
    }
    let others: Vec<&str> = LOADERS.into_iter().filter(|name| chosen.contains(name)).collect();
    if others.is_empty() {
        return;
    }
    let (Some(python), true) = (python(), Path::new(NGINX).exists()) else {
        println!(
            "SKIPPED: no nginx, or no Python with other loaders; benches/peers/install.sh makes one"
        );
        return;
    };
    let source = tempfile::tempdir_in(at).expect("a folder");
    let samples = options.number("samples");
    let len = options.number("len");
    files::make_files(source.path(), samples, len as usize);
    for loader in others {
        let bucket = tempfile::tempdir_in(at).expect("a folder");
        let out = bucket.path().join("data").join(loader);
        let mut prepare = program(&python, loader);
        prepare.args(["prepare", loader]).arg(source.path()).arg(&out);
        std::fs::create_dir(bucket.path().join("data")).expect("a folder");
        if !prepare.status().is_ok_and(|status| status.success()) {
            println!("SKIPPED: {loader} is not installed");
            continue;
        }
        for quotas in [1.02, 1.02 * NODES as f64] {
            read(&python, loader, bucket.path(), quotas, options);
        }
    }
}

fn read_dlfs(image: &Image, at: &Path, options: &Options) {
    let setting = Setting {
        num: NODES,
        order: "global",
        peers: true,
        quotas: 1.02,
        verify: false,
        window_bytes: options.number("window"),
    };
    let mut cluster = Cluster::start(image, at, options, &setting);
    let mut found = Found::new(DLFS, 1.02, image.live_bytes);
    let before = cluster.origin_bytes();
    for epoch in 0..EPOCHS {
        let reads = cluster.read(epoch..epoch + 1, options.number("pace-mb"));
        found.add(&reads, cluster.origin_bytes() - before);
    }
    found.print();
}

fn read(python: &Path, loader: &str, bucket: &Path, quotas: f64, options: &Options) {
    let pace = options.number("pace-mb");
    let network = Network::new(NODES + 1, options.number("origin-mb")).expect("as before");
    let origin = Origin::start(&network, bucket);
    let data = options.number("samples") * options.number("len");
    let quota = ((data as f64 * quotas) as u64 / NODES as u64).to_string();
    let endpoint = format!("http://{}:8080", Network::address(0));
    let shards = bucket.join("data").join(loader).read_dir().expect("it was prepared").count();
    let mut ranks: Vec<Side> = (0..NODES)
        .map(|rank| {
            let mut command = Command::new("ip");
            // Loaders coordinate the processes of a machine by names in shared memory: each node has its own.
            let private = "mount -t tmpfs dlfs /dev/shm && exec \"$@\"";
            command.args(["netns", "exec", network.machine(rank + 1), "sh", "-c", private, "sh"]);
            command.env("TMPDIR", "/dev/shm").arg(python).arg(SCRIPT);
            command.env("PYTHONPATH", overlay(python, loader)).env("SHARDS", shards.to_string());
            // The variables that torchrun sets with one process a node, and those that LitData wants beside them.
            command.envs([
                ("LOCAL_RANK", "0"),
                ("LOCAL_WORLD_SIZE", "1"),
                ("MASTER_PORT", "29500"),
            ]);
            command.env("MASTER_ADDR", Network::address(1)).env("GLOO_SOCKET_IFNAME", "eth0");
            command.env("RANK", rank.to_string()).env("GLOBAL_RANK", rank.to_string());
            command.env("WORLD_SIZE", NODES.to_string()).env("NNODES", NODES.to_string());
            command.args(["read", loader, &endpoint, "/dev/shm/cache", &quota]);
            let place = [rank.to_string(), NODES.to_string()];
            command.args(place).args([options.text("batch"), options.text("samples")]);
            Side::run(&mut command)
        })
        .collect();
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "joined"));
    let mut found = Found::new(loader, quotas, data);
    for epoch in 0..EPOCHS {
        ranks.iter_mut().for_each(|rank| rank.tell(&format!("{epoch} {} {pace}", epoch + 1)));
        let reads: Vec<Read> = ranks.iter_mut().map(|rank| Read::parse(&rank.line())).collect();
        found.add(&reads, origin.bytes());
    }
    found.print();
}

/// nginx on the origin's machine.
struct Origin {
    nginx: Child,
    folder: tempfile::TempDir,
}

impl Origin {
    fn start(network: &Network, bucket: &Path) -> Origin {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display();
        // Forked workers of MosaicML Streaming share the connection of their parent if it is kept, and hang.
        let configuration = format!(
            "daemon off; user root; worker_processes 1; pid {at}/pid; error_log {at}/errors;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ log_format bytes '$bytes_sent'; access_log {at}/bytes bytes; sendfile on; keepalive_timeout 0;\n\
             server {{ listen 8080; root {}; }} }}\n",
            bucket.display()
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, configuration).expect("a file");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", network.machine(0), NGINX, "-c"]).arg(&file);
        let nginx = command.stdin(Stdio::null()).spawn().expect("it was there");
        Origin { nginx, folder }
    }

    /// Bytes of all answers so far.
    fn bytes(&self) -> u64 {
        let log = std::fs::read_to_string(self.folder.path().join("bytes")).unwrap_or_default();
        log.lines().map(|line| line.parse::<u64>().expect("a number")).sum()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // `ip netns exec` has become nginx, which ends its worker. It may be dead already.
        let pid = Pid::from_raw(self.nginx.id() as i32).expect("a process has a number");
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.nginx.wait();
    }
}

/// A loader's results, epoch by epoch.
struct Found {
    loader: String,
    quotas: f64,
    data: u64,
    /// Bytes of the origin at the end of each epoch.
    sent: Vec<u64>,
    samples_s: Vec<f64>,
    cpu_s: f64,
    bytes: f64,
}

impl Found {
    fn new(loader: &str, quotas: f64, data: u64) -> Found {
        let sent = vec![0];
        let samples_s = vec![];
        Found { loader: loader.to_owned(), quotas, data, sent, samples_s, cpu_s: 0., bytes: 0. }
    }

    fn add(&mut self, reads: &[Read], sent: u64) {
        let longest = reads.iter().map(|read| read.first_batch_s + read.wall_s).fold(0., f64::max);
        let sum = |value: fn(&Read) -> f64| reads.iter().map(value).sum::<f64>();
        self.samples_s.push(sum(|read| read.samples) / longest);
        self.sent.push(sent);
        self.cpu_s += sum(|read| read.cpu_s);
        self.bytes += sum(|read| read.bytes);
    }

    fn print(&self) {
        let of_data = |bytes: u64| bytes as f64 / self.data as f64;
        let each = self.sent.windows(2).map(|two| format!("{:.2}", of_data(two[1] - two[0])));
        let all = of_data(self.sent[self.sent.len() - 1]);
        // Epochs are of equal length, so their mean speed is the harmonic mean of their speeds.
        let later = &self.samples_s[1..];
        let later_s = later.len() as f64 / later.iter().map(|speed| 1. / speed).sum::<f64>();
        println!(
            "| {} | {:.2} | {} | {all:.2} | {:.0} | {later_s:.0} | {:.2} |",
            self.loader,
            self.quotas,
            each.collect::<Vec<_>>().join(", "),
            self.samples_s[0],
            self.cpu_s / self.bytes * 1e9
        );
    }
}

fn program(python: &Path, loader: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(SCRIPT).env("PYTHONPATH", overlay(python, loader));
    command
}

/// MosaicML Streaming has packages of its own beside the environment of benches/peers.
fn overlay(python: &Path, loader: &str) -> PathBuf {
    let root = python.ancestors().nth(3).expect("ROOT/venv/bin/python");
    if loader == LOADERS[0] { root.join("overlay-mosaic") } else { PathBuf::new() }
}

/// The Python of benches/peers/install.sh, or the one that `$DLFS_PEERS_PYTHON` names.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("DLFS_PEERS_PYTHON").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let installed = home.map(|home| home.join(".cache/dlfs-peers/venv/bin/python"));
    named.or(installed).filter(|path| path.exists())
}

const DLFS: &str = "dlfs";
const LOADERS: [&str; 3] = ["mosaicml-streaming", "litdata", "webdataset"];
const NODES: usize = 4;
const EPOCHS: u64 = 5;
const NGINX: &str = "/usr/sbin/nginx";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/nodes/loaders.py");
