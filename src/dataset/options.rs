//! The options that the command, C and Python share: their names in all three, their defaults, and the
//! sentences that their documentation begins with.
//!
//! Each front end parses them in its own way, and may document more but nothing that differs. The command
//! takes its help from here; `tests/all/options.rs` compares the documentation of C and Python.

/// One option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedOption {
    /// The name by which [`help`] finds it.
    pub name: &'static str,
    /// The option of `dlfs read`, without its dashes; empty: none.
    pub command: &'static str,
    /// The field of the C struct; empty: none.
    pub c: &'static str,
    /// The keyword of Python; empty: none.
    pub python: &'static str,
    /// The default.
    pub default: Value,
    /// Its help text, without units of time: those are seconds or milliseconds, depending on the front end.
    pub help: &'static str,
}

/// A default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// None, or one that depends on other options; the front ends explain it.
    Open,
    /// A switch that is off.
    Off,
    /// A count.
    Number(u64),
    /// A fraction, from 0 to 1.
    Fraction(f64),
    /// A time in seconds.
    Seconds(u64),
    /// A length in bytes.
    Bytes(u64),
}

use crate::order::budget::DEFAULT_WINDOW;

use Value::{Bytes, Fraction, Number, Off, Open, Seconds};

/// The options of opening a data set, and of reads by id or name: `dlfs_mount_options`, `dlfs.open`.
pub const OPENING: &[SharedOption] = &[
    row(
        "hdr_digest",
        ["hdr-digest", "hdr_digest", "hdr_digest"],
        Off,
        "Protect PDU headers with CRC32C",
    ),
    row(
        "data_digest",
        ["data-digest", "data_digest", "data_digest"],
        Off,
        "Protect PDU data with CRC32C",
    ),
    row("hostnqn", ["hostnqn", "hostnqn", "hostnqn"], Open, "The host NQN to present"),
    row(
        "dhchap_secret",
        ["dhchap-secret", "dhchap_secret", "dhchap_secret"],
        Open,
        "The host's key for DH-HMAC-CHAP: the path of a key file with mode 0600, or the key itself",
    ),
    row(
        "dhchap_ctrl_secret",
        ["dhchap-ctrl-secret", "dhchap_ctrl_secret", "dhchap_ctrl_secret"],
        Open,
        "The subsystem's key, with which the target must authenticate itself, too; a file or the key",
    ),
    row(
        "concat",
        ["concat", "concat", "concat"],
        Off,
        "Go on inside TLS with a key that the authentication generates (secure channel concatenation)",
    ),
    row(
        "tls_key",
        ["tls-key", "tls_key", "tls_key"],
        Open,
        "The key with which each connection establishes TLS 1.3: the path of a key file with mode 0600, the \
         key itself, or `keyring` for the kernel's keyring .nvme",
    ),
    row(
        "tls_compat",
        ["tls-compat", "tls_compat", "tls_compat"],
        Off,
        "Derive TLS keys as libnvme before July 2025 did",
    ),
    row(
        "nr_io_queues",
        ["nr-io-queues", "nr_io_queues", "nr_io_queues"],
        Number(16),
        "I/O queues to request",
    ),
    row(
        "queue_size",
        ["queue-size", "queue_size", "queue_size"],
        Number(128),
        "Entries of an I/O queue",
    ),
    row(
        "keep_alive_tmo",
        ["keep-alive-tmo", "keep_alive_tmo_ms", "keep_alive_tmo"],
        Seconds(15),
        "Keep-alive timeout",
    ),
    row(
        "ctrl_loss_tmo",
        ["ctrl-loss-tmo", "ctrl_loss_tmo_ms", "ctrl_loss_tmo"],
        Seconds(600),
        "How long to keep reconnecting",
    ),
    row(
        "io_timeout",
        ["", "io_timeout_ms", "io_timeout"],
        Seconds(5),
        "How long a queue may make no progress",
    ),
    row(
        "connect_timeout",
        ["", "connect_timeout_ms", "connect_timeout"],
        Seconds(10),
        "How long connecting may take",
    ),
    row(
        "paths",
        ["path", "paths", "paths"],
        Open,
        "More addresses of the same namespaces, used while the first is down",
    ),
    row(
        "direct",
        ["direct", "direct", "direct"],
        Open,
        "Bypass of the page cache for image files and block devices",
    ),
    row("links", ["links", "links", "links"], Open, "Links to follow in a plain folder"),
    row(
        "hidden",
        ["hidden", "hidden", "hidden"],
        Off,
        "Take hidden files of a plain folder, and what file systems and tools leave behind",
    ),
    row(
        "snapshot",
        ["snapshot", "snapshot", "snapshot"],
        Open,
        "A directory saved by `dlfs snapshot save`, used instead of the image's own",
    ),
    row(
        "view",
        ["view", "view", "view"],
        Open,
        "A view saved by `dlfs select`: its samples are the data set",
    ),
    row(
        "window",
        ["", "window_bytes", "window_bytes"],
        Bytes(64 << 20),
        "Memory for reads by id or name",
    ),
    row("queue_pairs", ["", "queue_pairs", "queue_pairs"], Number(1), "Queue pairs per namespace"),
    row("busy_poll", ["busy-poll", "busy_poll", "busy_poll"], Off, "Spin instead of sleeping"),
    row(
        "deadline",
        ["", "call_timeout_ms", "deadline"],
        Seconds(60),
        "The longest that one read may take",
    ),
    row(
        "tiers",
        ["tier", "tiers", "tiers"],
        Open,
        "Tiers that keep copies of samples after the first read, fastest first",
    ),
    row(
        "tiers_file",
        ["tiers", "tiers_file", ""], // Python takes either as `tiers`
        Open,
        "A file that describes the tiers, as written by `dlfs probe` or for NoPFS",
    ),
    row("policy", ["policy", "tier_policy", "policy"], Open, "The samples that tiers keep"),
    row(
        "copy_bandwidth",
        ["copy-bandwidth", "tier_bandwidth", "copy_bandwidth"],
        Open,
        "The most that the copier may read from the origin by itself",
    ),
    row(
        "stop_at_first_failure",
        ["stop-at-first-failure", "tier_stop", "stop_at_first_failure"],
        Off,
        "Stop adding copies for good once a sample fits in no tier",
    ),
    row(
        "node",
        ["node", "node", "node"],
        Open,
        "The name of this node, if several run on one machine",
    ),
    row(
        "field",
        ["", "field", "fields"],
        Open,
        "Name of the field that represents the sample, if samples have several",
    ),
];

/// The options of reading along an order: `dlfs_sequence_options`, `dlfs.Loader`.
pub const LOADING: &[SharedOption] = &[
    row("order", ["order", "order", "order"], Open, "How to shuffle samples"),
    row("lanes", ["lanes", "lanes", "lanes"], Open, "Grouped: number of lanes, which take turns"),
    row(
        "group",
        ["group", "group", ""], // Python explains it with `lanes`
        Number(DEFAULT_GROUP as u64),
        "Grouped: chunks of one lane that are shuffled together",
    ),
    row(
        "exchange",
        ["exchange", "exchange", "exchange"],
        Fraction(DEFAULT_EXCHANGE),
        "Partial: fraction of each share that moves to other ranks in an epoch",
    ),
    row("seed", ["seed", "seed", "seed"], Open, "The same seed gives the same epochs"),
    row(
        "batch_size",
        ["batch", "batch_size", "batch_size"],
        Open,
        "Samples per batch on this rank",
    ),
    row(
        "batch_tokens",
        ["batch-tokens", "batch_tokens", "batch_tokens"],
        Open,
        "The most tokens of a batch, instead of a number of samples",
    ),
    row(
        "bucket_window",
        ["bucket-window", "bucket_window", "bucket_window"],
        Number(DEFAULT_WINDOW as u64),
        "Batches by tokens: positions of the epoch that are sorted by length together",
    ),
    row(
        "max_batch",
        ["max-batch", "max_batch", "max_batch"],
        Open,
        "Batches by tokens: the most samples of one",
    ),
    row(
        "token_bytes",
        ["token-bytes", "token_bytes", "token_bytes"],
        Number(1),
        "Batches by tokens: bytes of a token",
    ),
    row(
        "lengths",
        ["lengths", "lengths", "lengths"],
        Open,
        "Batches by tokens: the column of ints with the tokens of each sample, instead of its bytes",
    ),
    row(
        "batch_cost",
        ["batch-cost", "batch_cost", "batch_cost"],
        Open,
        "Batches by tokens: what a batch costs",
    ),
    row(
        "too_long",
        ["too-long", "too_long", "too_long"],
        Open,
        "Batches by tokens: what to do with a sample that is longer than a batch",
    ),
    row("epochs", ["epochs", "epochs", "epochs"], Open, "The number of epochs"),
    row("rank", ["rank", "rank", "rank"], Open, "The rank of this process, from 0"),
    row(
        "world_size",
        ["world-size", "world_size", "world_size"],
        Number(1),
        "The number of ranks that share each epoch",
    ),
    row("shard", ["shard", "shard", "shard"], Open, "How the ranks share each global batch"),
    row(
        "window",
        ["window", "window_bytes", "prefetch_bytes"],
        Open,
        "The most memory for samples that are read ahead",
    ),
    row("batching", ["batching", "batching", "batching"], Open, "How samples are read"),
    row(
        "one_piece",
        ["copy-threads", "one_piece", "contiguous"],
        Off,
        "Gather each batch into one buffer",
    ),
    row("on_error", ["", "on_error", "on_error"], Open, "Handling of a sample that cannot be read"),
    row(
        "deadline",
        ["", "call_timeout_ms", "deadline"],
        Seconds(60),
        "The longest that the next batch may take",
    ),
    row("queue_pairs", ["", "queue_pairs", "queue_pairs"], Number(1), "Queue pairs per namespace"),
    row("busy_poll", ["busy-poll", "busy_poll", "busy_poll"], Off, "Spin instead of sleeping"),
    row(
        "peers",
        ["peers", "peers", "peers"],
        Open,
        "Meeting place of the ranks, which then share the tiers of all nodes of the job",
    ),
    row("round", ["round", "round", "round"], Open, "A name for this start of the job"),
    row(
        "peer_mode",
        ["peer-mode", "peer_mode", "peer_mode"],
        Open,
        "Placement of data on the nodes, and a node's answer to a peer that asks for data which its tiers lack",
    ),
    row(
        "peer_address",
        ["peer-address", "peer_address", "peer_address"],
        Open,
        "Address at which peers reach this rank",
    ),
    row(
        "rendezvous_port",
        ["rendezvous-port", "rendezvous_port", "rendezvous_port"],
        Open,
        "The port on which rank 0 gathers the addresses of all ranks",
    ),
    row(
        "job_key",
        ["job-key", "job_key", "job_key"],
        Open,
        "The key by which the ranks of the job prove themselves to each other",
    ),
    row(
        "peer_tls",
        ["peer-tls", "peer_tls", "peer_tls"],
        Off,
        "Connect to peers inside TLS with the job's key",
    ),
    row(
        "trace",
        ["", "trace", "trace"], // the command takes a file
        Off,
        "Keep the newest events of the run",
    ),
    row("store", ["store", "store", "store"], Open, "Store for this rank's share of the samples"),
    row(
        "blocking_exchange",
        ["blocking-exchange", "blocking_exchange", "blocking_exchange"],
        Off,
        "Exchange samples at the end of each epoch instead of during it",
    ),
    row(
        "restart_shares",
        ["restart-shares", "restart_shares", "restart_shares"],
        Off,
        "Resume between epochs with another world size: the ranks begin with new shares",
    ),
    row(
        "peer_timeout",
        ["peer-timeout", "peer_timeout_ms", "peer_timeout"],
        Seconds(60),
        "How long to wait for all ranks",
    ),
];

/// Chunks of one lane that a grouped order shuffles together by default.
pub const DEFAULT_GROUP: u32 = 4;

/// The fraction of each share that a partial order moves by default.
pub const DEFAULT_EXCHANGE: f64 = 0.1;

/// The most queue pairs per namespace that a front end accepts. No target grants a host more, and this many
/// are still opened quickly; all are opened before the first read.
pub const MAX_QUEUE_PAIRS: usize = 1024;

/// The help of `name`, one of `options`.
///
/// # Panics
/// There is no such option. The program, not the user, chooses the name.
pub fn help(options: &[SharedOption], name: &str) -> &'static str {
    let found = options.iter().find(|option| option.name == name);
    found.unwrap_or_else(|| panic!("no shared option is called {name}")).help
}

const fn row(
    name: &'static str,
    [command, c, python]: [&'static str; 3],
    default: Value,
    help: &'static str,
) -> SharedOption {
    SharedOption { name, command, c, python, default, help }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dataset::Options;
    use crate::order::{OrderKind, OrderSpec};
    use crate::peers::rendezvous::DEFAULT_TIMEOUT;
    use crate::prefetch::LoaderOptions;

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let seconds = |time: Duration| Seconds(time.as_secs());
        let Options { open, read } = Options::default();
        let connect = open.connect;
        let loader = LoaderOptions::new(OrderSpec { kind: OrderKind::Global, seed: 0 }, 1, 1);
        let number = |number: usize| Number(number as u64);
        let opening = [
            ("nr_io_queues", Number(connect.nr_io_queues.into())),
            ("queue_size", Number(connect.queue_size.into())),
            ("keep_alive_tmo", seconds(connect.keep_alive_tmo)),
            ("ctrl_loss_tmo", seconds(connect.ctrl_loss_tmo)),
            ("io_timeout", seconds(connect.io_timeout)),
            ("connect_timeout", seconds(connect.connect_timeout)),
            ("window", Bytes(read.window_bytes as u64)),
            ("queue_pairs", number(read.queue_pairs)),
            ("deadline", seconds(read.deadline)),
        ];
        let loading = [
            ("world_size", Number(loader.world_size.into())),
            ("queue_pairs", number(loader.queue_pairs)),
            ("deadline", seconds(loader.deadline)),
            ("peer_timeout", seconds(DEFAULT_TIMEOUT)),
        ];
        for (options, library) in [(OPENING, &opening[..]), (LOADING, &loading[..])] {
            for (name, expected) in library {
                let found = options.iter().find(|option| option.name == *name).map(|o| o.default);
                assert_eq!(found, Some(*expected), "{name}");
            }
        }
    }

    #[test]
    fn no_option_is_listed_twice() {
        for options in [OPENING, LOADING] {
            let names: std::collections::BTreeSet<&str> = options.iter().map(|o| o.name).collect();
            assert_eq!(names.len(), options.len());
        }
    }
}
