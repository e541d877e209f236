//! Clusters of up to 1,024 nodes in the simulator: what the table of holders and a simulation cost by the number of
//! nodes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dlfs::order::HexId;
use dlfs::plan::{ChunkHolders, Member};

use crate::simulated;
use crate::support::Options;

/// Prints time and memory for each number of nodes, and checks that nothing grows faster than their number.
pub(crate) fn compare(at: &Path, options: &Options) {
    let Some(simulator) = simulated::simulator() else { return };
    let example = std::fs::read_to_string(EXAMPLE).expect("a file of the simulator");
    println!(
        "\nThe training of tools/sim/examples/thousand-nodes.toml, {BATCH} samples a node and batch."
    );
    println!(
        "\n| nodes | table of holders, ms | table, KiB | policy | seconds predicted | dlfs-sim, s | memory, MB |"
    );
    println!("|---|---|---|---|---|---|---|");
    let nodes =
        options.text("simulate").split(',').map(|num| num.parse().expect("numbers of nodes"));
    for policy in ["peers-by-hash", "shard-local"] {
        let each = nodes.clone().map(|num: u32| {
            let config = at.join("many-machines.toml");
            let text = replaced(&replaced(&example, "nodes", num), "batch", num * BATCH);
            std::fs::write(&config, text).expect("a file");
            let (table_s, table_bytes) = table(num);
            let cost = Cost::of(&simulator, policy, &config);
            println!(
                "| {num} | {:.1} | {:.0} | {policy} | {:.2} | {:.1} | {:.0} |",
                table_s * 1e3,
                table_bytes as f64 / 1024.,
                cost.predicted_s,
                cost.took_s,
                cost.memory_bytes / 1e6
            );
            (f64::from(num), table_s, cost)
        });
        let each: Vec<_> = each.collect();
        for two in each.windows(2) {
            let (before, old_table_s, old) = &two[0];
            let (now, table_s, cost) = &two[1];
            let most = now / before * NOISE;
            for (what, before, now) in [
                ("the table's time", old_table_s, table_s),
                ("the simulator's time", &old.took_s, &cost.took_s),
                ("the simulator's memory", &old.memory_bytes, &cost.memory_bytes),
            ] {
                assert!(*now <= before * most, "{what}: {now}, before {before}");
            }
        }
    }
    println!("No column grows faster than the number of nodes.");
}

/// The time that every rank takes at the start of a round to compute who holds what, where all is held; and the
/// table's length.
fn table(nodes: u32) -> (f64, usize) {
    let room_bytes = CHUNKS as u64 * CHUNK_BYTES * 13 / 10 / u64::from(nodes);
    let member = |id| Member { id: u64::from(id), room_bytes, share_bytes: u64::MAX };
    let members: Vec<Member> = (0..nodes).map(member).collect();
    let mut least_s = f64::INFINITY;
    let mut bytes = 0;
    for _ in 0..3 {
        let began = Instant::now();
        let holders = ChunkHolders::new(HexId([0; 16]), &members, &[CHUNK_BYTES; CHUNKS]);
        bytes = holders.expect("no more nodes than a round may have").memory_bytes();
        least_s = least_s.min(began.elapsed().as_secs_f64());
    }
    (least_s, bytes)
}

/// `text` with another value for the line of `name`.
fn replaced(text: &str, name: &str, value: u32) -> String {
    let prefix = format!("{name} = ");
    let line = |line: &str| {
        if line.starts_with(&prefix) { format!("{prefix}{value}\n") } else { format!("{line}\n") }
    };
    text.lines().map(line).collect()
}

struct Cost {
    predicted_s: f64,
    took_s: f64,
    memory_bytes: f64,
}

impl Cost {
    fn of(simulator: &Path, policy: &str, config: &Path) -> Cost {
        let mut command = Command::new(simulator);
        command.args(["--json", "run", "--policy", policy]).arg(config);
        let began = Instant::now();
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut memory_bytes = 0.;
        while child.try_wait().expect("a child of this process").is_none() {
            memory_bytes = peak_bytes(&child).unwrap_or(memory_bytes);
            std::thread::sleep(Duration::from_millis(2));
        }
        let took_s = began.elapsed().as_secs_f64();
        let output = child.wait_with_output().expect("it has ended");
        let said = String::from_utf8_lossy(&output.stdout);
        Cost { predicted_s: simulated::number(&said, "seconds"), took_s, memory_bytes }
    }
}

/// The most memory that a process has had; `None` at its end.
fn peak_bytes(child: &Child) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<f64>().ok().map(|kib| kib * 1024.)
}

const EXAMPLE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tools/sim/examples/thousand-nodes.toml");
/// Samples of a node's batch.
const BATCH: u32 = 32;
/// ImageNet in chunks of 4 MiB.
const CHUNKS: usize = 33_700;
const CHUNK_BYTES: u64 = 4 << 20;
/// The factor by which times may vary.
const NOISE: f64 = 1.25;
