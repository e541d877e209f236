//! Files of an ext4 that a kernel reads over its own NVMe/TCP, and through preload from an image of the same target:
//! cold, in a guest (QEMU, `tests/interop`), each file opened, read and closed by one thread along `DLFS_ORDER`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Files, Options as Open, Sampler};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::posix::{File, Node};
use dlfs::prefetch::LoaderOptions;

use crate::places::{Places, built, is_installed};
use crate::report::{Rounds, compared, figure};
use crate::support::Options;
use crate::support::files::make_files;

/// One comparison: files of one size, read in one order from ext4 and from an image.
struct Set {
    part: String,
    name: String,
    bar: f64,
    /// The numbers of its namespaces.
    ext4: usize,
    image: usize,
}

/// Files of 4 KiB and of 110 KiB, each in global and in grouped order.
pub(crate) fn guest(places: &Places, options: &Options) {
    for program in ["qemu-system-x86_64", "mke2fs", "strip", "ldd"] {
        if !is_installed(program) {
            return figure("guest", "not measured", &format!("{program} is not installed"));
        }
    }
    let lab = places.folder("guest");
    let mut namespaces = Vec::new();
    let mut sets = Vec::new();
    for (count, len, bar) in [("guest-files", 4 << 10, 3.0), ("guest-pictures", 110 << 10, 1.0)] {
        let count = options.number(count);
        let plain = places.folder(&format!("guest-{len}"));
        make_files(&plain, count, len);
        namespaces.push(ext4(places, &plain, count, len as u64));
        namespaces.push(places.imported(&plain, &format!("guest-{len}.dlfs")));
        let grouped = OrderKind::Grouped { lanes: 1, group: 4 };
        for (order, kind) in [("global", OrderKind::Global), ("grouped", grouped)] {
            let set = Set {
                part: format!("guest, {} KiB, {order}", len >> 10),
                name: format!("{len}-{order}"),
                bar,
                ext4: namespaces.len() - 1,
                image: namespaces.len(),
            };
            let image = namespaces.last().expect("pushed above");
            write_order(&lab, &set.name, kind, image, options.number("guest-window"));
            sets.push(set);
        }
    }
    let rounds = options.number("rounds");
    let plan = sets
        .iter()
        .map(|Set { name, ext4, image, .. }| format!("{name} {ext4} {image} {rounds}\n"));
    std::fs::write(lab.join("plan"), plan.collect::<String>()).expect("room for the plan");
    let said = boot(&lab, &namespaces);
    for Set { part, name, bar, .. } in &sets {
        let preload = measured(&said, name, "preload");
        let ext4 = measured(&said, name, "ext4");
        compared(part, ("preload", &preload), ("ext4", &ext4), ("files/s", Some(*bar)));
    }
}

/// An ext4 with the files of `plain`.
fn ext4(places: &Places, plain: &Path, count: u64, len: u64) -> PathBuf {
    let path = places.path(&format!("guest-{len}.ext4"));
    let blocks = count * len.div_ceil(4096) + count / 8 + 16384;
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N", &(count + 512).to_string(), "-d"]);
    let status = command.arg(plain).arg(&path).arg(blocks.to_string()).status();
    assert!(status.expect("it is installed").success());
    path
}

/// Writes the file of an order, and the list of the paths that it leads to.
fn write_order(lab: &Path, name: &str, kind: OrderKind, image: &Path, window: u64) {
    let address = [Address::Path(image.to_owned())];
    let dataset = Dataset::open(&address, &Open::default(), &mut ()).expect("the image opens");
    let order = OrderSpec { kind, seed: 7 };
    let mut sampler =
        Sampler::new(&dataset, LoaderOptions::new(order, BATCH, 1)).expect("an order");
    let files = Files::new(dataset, &mut ()).expect("the names");
    let mut ids = Vec::new();
    let mut list = Vec::new();
    while sampler.next(&mut ids).expect("an order").is_some() {
        for &id in &ids {
            let path = files.tree().path(Node::File(File { id, field: 0 })).expect("a name");
            list.extend_from_slice(&path);
            list.push(b'\n');
        }
    }
    let order = serde_json::to_string(&order).expect("an order is text");
    let order = format!("{{\"order\": {order}, \"batch\": {BATCH}, \"window\": {window}}}");
    std::fs::write(lab.join(format!("{name}.order")), order).expect("room for the order");
    std::fs::write(lab.join(format!("{name}.list")), list).expect("room for the list");
}

/// Serves the namespaces, and measures in a guest that reads them; what the guest printed.
fn boot(lab: &Path, namespaces: &[PathBuf]) -> String {
    let own = std::env::current_exe().expect("the path of this program");
    let mut files = BTreeSet::new();
    for (from, name) in [(own, "doors"), (built("libdlfs_preload.so"), "libdlfs_preload.so")] {
        let stripped = lab.join(name);
        let status = Command::new("strip").arg("-o").arg(&stripped).arg(&from).status();
        assert!(status.expect("it is installed").success());
        files.extend(libraries(&from));
        files.insert(stripped);
    }
    for entry in std::fs::read_dir(lab).expect("a folder").flatten() {
        files.insert(entry.path());
    }
    let target = Target::start(namespaces);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("tests/interop/linux-nvme-host"));
    command.args(["--port", &target.port, "--nqn", NQN, "--no-discover", "--timeout", "3000"]);
    command.arg("--script").arg(root.join("benches/doors/guest.sh"));
    files.iter().for_each(|file| _ = command.arg("--file").arg(file));
    if std::env::var_os("DLFS_INTEROP_MEM").is_none() {
        command.env("DLFS_INTEROP_MEM", "1G");
    }
    let output = command.stderr(Stdio::inherit()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "the guest failed:\n{said}");
    eprint!("{said}");
    said
}

/// The libraries of a program, and the loader.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("it is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// `dlfs serve`, until it is dropped.
struct Target {
    child: Child,
    port: String,
}

impl Target {
    fn start(namespaces: &[PathBuf]) -> Target {
        let paths: Vec<_> = namespaces.iter().map(|path| path.to_string_lossy()).collect();
        let mut command = Command::new(built("dlfs"));
        command.args([
            "serve",
            &paths.join(","),
            "--listen",
            "127.0.0.1:0",
            "--nqn",
            NQN,
            "--json",
        ]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped above");
        BufReader::new(output).read_line(&mut line).expect("a line of the target");
        let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let listen = said["listen"].as_str().expect("where it listens");
        let port = listen.rsplit(':').next().unwrap_or_default().to_owned();
        Target { child, port }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        assert!(ended.is_ok(), "the target can be ended");
    }
}

/// Files a second of each round but the first.
fn measured(said: &str, set: &str, side: &str) -> Rounds {
    let mut rates = Rounds(Vec::new());
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [.., "MEASURED", of, by, rate] = words[..]
            && (of, by) == (set, side)
        {
            rates.0.push(rate.parse().expect("a number of the guest"));
        }
    }
    assert!(rates.0.len() > 1, "the guest did not measure {side} of {set}:\n{said}");
    rates.0.remove(0);
    rates
}

const NQN: &str = "nqn.2026-11.io.dlfs:doors";
/// Samples that are read ahead together: the default of an order file.
const BATCH: usize = 64;
