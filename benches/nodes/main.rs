//! Nodes that serve each other: machines as network namespaces, an origin on a slow link, and what peers save.

#[allow(dead_code, unreachable_pub)] // other benches make files
#[path = "../support/origin.rs"]
mod origin;
#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod faults;
mod loaders;
mod many;
mod network;
mod peer_reads;
mod scaling;
mod sides;
mod simulated;
mod thousand;

use std::path::Path;

use cluster::{Cluster, Image, Setting};
use support::{Options, machine};

const USAGE: &str = "cargo bench --bench nodes -- [--rows ROW,ROW...] [--nodes 4,8] [--kills N] [--at FOLDER]

Needs root and the commands ip and tc: each node is a process in a network namespace of its own, on one bridge,
and the origin's link sends --origin-mb megabytes a second. A paced node takes a step of --pace-mb megabytes a second
on each batch, and asks for the next batch meanwhile. The rows:

origin     the bytes that the origin sends in five epochs, beside the data
epochs     paced epochs with everything local, through peers, and without; the same unpaced, with its processor
           time (times begin at the first batch, whose own is of a cold start)
reads      reads of a peer's tier in memory beside reads of a namespace in memory
many       --many nodes as threads of one process: what a node costs by the number of its peers
simulated  paced trainings from a cold start beside what dlfs-sim predicts for them (built by cargo build --release -p
           dlfs-sim, or named by $DLFS_SIM)
thousand   --simulate nodes in the simulator: its time and memory, and those of the table that says who holds what
scaling    samples a second of 1, 2, 4 and 8 paced nodes through dlfs and through a shared file system, sshfs,
           which is skipped where its commands are missing
loaders    MosaicML Streaming, LitData and WebDataset with their local caches beside dlfs, from the same origin, or
           those of --loaders; skipped without nginx, or without the Python of benches/peers/install.sh, or of
           $DLFS_PEERS_PYTHON
faults     one of four nodes is killed or frozen in turns, --kills times at random moments of --seed; then one is
           stopped for ten seconds, and one loses its link";

fn main() {
    support::results::record("nodes");
    let options = Options::parse(
        USAGE,
        &[
            ("rows", "origin,epochs,reads,many,simulated,thousand,scaling,loaders,faults"),
            ("nodes", "4,8"),
            ("many", "16,32,64"),
            ("simulate", "256,512,1024"),
            ("samples", "2400"),
            ("len", "112640"),
            ("chunk", "512K"),
            ("batch", "32"),
            ("origin-mb", "100"),
            ("pace-mb", "120"),
            ("loaders", "dlfs,mosaicml-streaming,litdata,webdataset"),
            ("kills", "6"),
            ("seed", ""),
            ("tier", "file"),
            ("window", "0"),
            ("at", "/dev/shm"),
            ("side", ""),
            ("image", ""),
            ("listen", ""),
            ("port", ""),
            ("rank", "0"),
            ("world", "1"),
            ("order", "global"),
            ("peers", ""),
            ("verify", "no"),
        ],
    );
    match options.text("side") {
        "" => bench(&options),
        "origin" => sides::origin(&options),
        "holder" => peer_reads::holder(&options),
        "reader" => peer_reads::reader(&options),
        "many" => many::nodes(&options),
        "files" => scaling::files(&options),
        "sftp" => scaling::sftp(&options),
        _ => sides::rank(&options),
    }
}

fn bench(options: &Options) {
    println!("{}", machine());
    let work = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
    let image = Image::import(work.path(), options);
    println!(
        "{} samples of {} bytes, {:.0} MB of pages, {} chunks",
        image.samples,
        image.len,
        image.live_bytes as f64 / 1e6,
        image.chunks
    );
    let nodes = options.text("nodes").split(',').map(|num| num.parse().expect("numbers of nodes"));
    let nodes: Vec<usize> = nodes.collect();
    for row in options.text("rows").split(',') {
        let at = work.path();
        match row {
            "origin" => origin_bytes(&image, at, options, &nodes),
            "epochs" => epochs(&image, at, options, nodes[0]),
            "reads" => peer_reads::compare(at),
            "many" => many::compare(at, options),
            "simulated" => simulated::compare(at, options, &nodes),
            "thousand" => thousand::compare(at, options),
            "scaling" => scaling::compare(&image, at, options),
            "loaders" => loaders::compare(&image, at, options),
            "faults" => {
                faults::kill(&image, at, options);
                faults::stop(&image, at, options);
                faults::take_link_down(&image, at, options);
            }
            other => {
                eprintln!("--rows {other}: there is no such row; see --help");
                std::process::exit(2);
            }
        }
    }
}

/// Bytes that the origin sends in five epochs, beside the pages with samples.
fn origin_bytes(image: &Image, at: &Path, options: &Options, nodes: &[usize]) {
    println!("\n| nodes | order | quotas / data | origin bytes / data, epochs 1 to 5 | in all |");
    println!("|---|---|---|---|---|");
    for &num in nodes {
        for order in ["global", "grouped"] {
            let setting = Setting {
                num,
                order,
                peers: true,
                quotas: 1.02,
                verify: true,
                window_bytes: options.number("window"),
            };
            let mut cluster = Cluster::start(image, at, options, &setting);
            let of_data = |bytes: u64| format!("{:.4}", bytes as f64 / image.live_bytes as f64);
            let mut sent = vec![cluster.origin_bytes()];
            for epoch in 0..5 {
                let reads = cluster.read(epoch..epoch + 1, 0);
                assert!(reads.iter().all(|read| read.wrong == 0.), "wrong bytes");
                sent.push(cluster.origin_bytes());
            }
            let each: Vec<String> = sent.windows(2).map(|two| of_data(two[1] - two[0])).collect();
            let all = of_data(sent[5] - sent[0]);
            println!("| {num} | {order} | 1.02 | {} | {all} |", each.join(", "));
        }
    }
}

/// Epochs after the first with everything local, through peers, and without; paced and unpaced.
fn epochs(image: &Image, at: &Path, options: &Options, num: usize) {
    println!("\n{num} nodes; paced: each reads {} MB/s.", options.number("pace-mb"));
    println!(
        "\n| order | caches | first batch, ms | paced epoch, s | of local | unpaced epoch, s | MB/s | \
         CPU s/GB | from peers |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let pace = options.number("pace-mb");
    let mut bars = Vec::new();
    for order in ["global", "grouped"] {
        let mut local_s = None;
        let mut found = Vec::new();
        let kinds = [
            ("all local", false, 1.02 * num as f64),
            ("peers, 1.02 of the data together", true, 1.02),
            ("a quarter each, no peers", false, num as f64 / 4.),
        ];
        for (name, peers, quotas) in kinds {
            let setting = Setting {
                num,
                order,
                peers,
                quotas,
                verify: false,
                window_bytes: options.number("window"),
            };
            let mut cluster = Cluster::start(image, at, options, &setting);
            let first = cluster.read(0..1, 0);
            if peers {
                cluster.read(1..2, 0); // whatever the first epoch has left to fill
            } else {
                cluster.fill();
            }
            let paced = cluster.read(2..4, pace);
            let free = cluster.read(4..7, 0);
            let longest =
                |reads: &[sides::Read]| reads.iter().map(|read| read.wall_s).fold(0., f64::max);
            let sum = |value: fn(&sides::Read) -> f64| free.iter().map(value).sum::<f64>();
            let paced_s = longest(&paced) / 2.;
            let free_s = longest(&free) / 3.;
            let local_s = *local_s.get_or_insert(paced_s);
            let first_ms = first.iter().map(|read| read.first_batch_s).fold(0., f64::max) * 1e3;
            println!(
                "| {order} | {name} | {first_ms:.0} | {paced_s:.3} | {:.3} | {free_s:.3} | {:.0} | {:.3} | {:.2} |",
                local_s / paced_s,
                sum(|read| read.bytes) / 3e6 / free_s,
                sum(|read| read.cpu_s) / sum(|read| read.bytes) * 1e9,
                sum(|read| read.from_peers) / sum(|read| read.bytes),
            );
            found.push((paced_s, first_ms));
        }
        bars.push(format!(
            "{order}: through peers {:.3} of everything local (bar 0.97), {:.2} times as fast as without peers (bar \
             3), first batch {:.2} of that without (bar 1.5)",
            found[0].0 / found[1].0,
            found[2].0 / found[1].0,
            found[1].1 / found[2].1
        ));
    }
    bars.iter().for_each(|bar| println!("{bar}"));
}
