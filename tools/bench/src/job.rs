//! A job: every option once, with its name, help, default and limits. `values.rs` parses the values.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};

use crate::values::{
    Flag, List, Pair, Size, Split, blocks, bytes, microseconds, pattern, percentiles, rates,
    seconds, size, splits,
};

/// The access pattern of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Pattern {
    Read,
    Write,
    RandRead,
    RandWrite,
    #[value(alias = "readwrite")]
    Rw,
    RandRw,
    /// Batches of a data set instead of blocks
    Samples,
}

impl Pattern {
    pub(crate) fn reads(self) -> bool {
        !matches!(self, Pattern::Write | Pattern::RandWrite)
    }

    pub(crate) fn writes(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::RandRead | Pattern::Samples)
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw)
    }
}

/// The I/O engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Engine {
    /// dlfs's engine for the address: NVMe/TCP, SPDK, or a file or block device
    #[value(aliases = ["tcp", "file", "io_uring", "libaio"])]
    Auto,
    /// SPDK, where the build has it, also for an NVMe/TCP address
    Spdk,
    /// Completes everything at once and moves nothing: measures this tool
    Null,
}

/// The verification of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Verify {
    #[value(name = "0", alias = "none")]
    None,
    /// Each block, or each piece as long as the smallest block, begins with a header of 32 bytes
    Crc32c,
    /// Every byte is that of verify_pattern
    Pattern,
}

/// The order of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    Sequential,
    Global,
    Grouped,
    Local,
    Partial,
}

/// The name of a value on the command line.
pub(crate) fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

/// One job as the user wrote it.
#[derive(Debug, Clone, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Options of a job")]
pub(crate) struct Job {
    /// Name of the job; on the command line it starts a new job
    #[arg(long, default_value = "dlfs-bench")]
    pub(crate) name: String,
    /// Position of the job, such as a line of its file, for messages.
    #[arg(skip)]
    pub(crate) origin: String,
    /// The options of this job alone, as they were written.
    #[arg(skip)]
    pub(crate) given: Vec<(String, String)>,

    /// Target: a file, a block device, nvme-tcp://host:4420/NQN?ns=1, trtype:TCP traddr:..., or SPDK's trtype=TCP
    /// traddr=... ns=1; in the name of a file, a colon is written as \:
    #[arg(long)]
    pub(crate) filename: Option<String>,
    /// Folder for filename=; without that, the file is FOLDER/NAME.CLONE.0
    #[arg(long)]
    pub(crate) directory: Option<String>,
    /// I/O engine
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) ioengine: Engine,
    /// Bypass the page cache (O_DIRECT); by default dlfs's file engine chooses
    #[arg(long)]
    pub(crate) direct: Option<Flag>,
    /// Allow writing to this target, named as in filename=, even if it holds a dlfs data set
    #[arg(long)]
    pub(crate) overwrite_data_set: Option<String>,
    /// Allow writing to a block device that is mounted or part of a volume
    #[arg(long)]
    pub(crate) allow_mounted_write: Flag,

    /// Access pattern
    #[arg(long, visible_alias = "readwrite", value_enum, default_value = "read")]
    pub(crate) rw: Pattern,
    /// Share of reads in a mixed pattern, in percent
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u64).range(..=100))]
    pub(crate) rwmixread: u64,
    /// Choose random blocks independently, instead of each block once per pass
    #[arg(long)]
    pub(crate) norandommap: Flag,
    /// Choose the same blocks in each run
    #[arg(long, default_value = "1")]
    pub(crate) randrepeat: Flag,
    /// Seed of all random choices
    #[arg(long)]
    pub(crate) randseed: Option<u64>,
    /// Block size, for reads and for writes
    #[arg(long, visible_alias = "blocksize", default_value = "4k", value_parser = blocks)]
    pub(crate) bs: Pair<u64>,
    /// Several block sizes, each with its share in percent: 4k/60:64k/40
    #[arg(long, default_value = ",", hide_default_value = true, value_parser = splits)]
    bssplit: Pair<Split>,
    /// Fill the buffer with new random bytes for every write
    #[arg(long)]
    pub(crate) refill_buffers: Flag,

    /// Bytes of the target that the job uses, or percent
    #[arg(long, value_parser = size)]
    pub(crate) size: Option<Size>,
    /// Bytes that the job transfers; default its size
    #[arg(long, visible_alias = "io_limit", value_parser = size)]
    pub(crate) io_size: Option<Size>,
    /// Begin of the job's part of the target
    #[arg(long, default_value = "0", value_parser = size)]
    pub(crate) offset: Size,
    /// Added to the offset for each further clone of the job
    #[arg(long, default_value = "0", value_parser = size)]
    pub(crate) offset_increment: Size,
    /// Stop after this many I/Os
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    pub(crate) number_ios: Option<u64>,
    /// Number of passes over the size
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    pub(crate) loops: u64,
    /// Flush after this many writes
    #[arg(long, visible_alias = "fdatasync", default_value_t = 0)]
    pub(crate) fsync: u64,
    /// Flush when the job ends
    #[arg(long, visible_alias = "fsync_on_close")]
    pub(crate) end_fsync: Flag,

    /// I/Os that are outstanding at a time
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=65_535))]
    pub(crate) iodepth: u64,
    /// Maximum bytes a second, for reads and for writes
    #[arg(long, default_value = ",", hide_default_value = true, value_parser = rates)]
    pub(crate) rate: Pair<u64>,
    /// Maximum I/Os a second, for reads and for writes
    #[arg(long, default_value = ",", hide_default_value = true, value_parser = rates)]
    pub(crate) rate_iops: Pair<u64>,

    /// Maximum run time; in seconds unless it has a unit
    #[arg(long, visible_alias = "timeout", value_parser = seconds)]
    pub(crate) runtime: Option<Duration>,
    /// Start over at the end of the size, until the run time has passed
    #[arg(long)]
    pub(crate) time_based: Flag,
    /// Run for this time before measuring
    #[arg(long, default_value = "0", value_parser = seconds)]
    pub(crate) ramp_time: Duration,
    /// Run clones of the job in parallel, each in a thread
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=1024))]
    pub(crate) numjobs: u64,
    /// Start only when all jobs before this one have ended
    #[arg(long, visible_alias = "wait_for_previous")]
    pub(crate) stonewall: Flag,
    /// Report the jobs of a group together instead of each by itself
    #[arg(long)]
    pub(crate) group_reporting: Flag,
    /// Start a new reporting group
    #[arg(long)]
    pub(crate) new_group: Flag,
    /// Processors for the job's threads, with those that read ahead for rw=samples: 0-2,5
    #[arg(long, visible_alias = "cpus")]
    pub(crate) cpus_allowed: Option<String>,
    /// Spin instead of sleeping while I/O is outstanding: lowest latency, at the cost of a core
    #[arg(long, visible_alias = "busy-poll")]
    pub(crate) busy_poll: Flag,

    /// Write blocks that can be checked; check blocks that are read by a job without writes
    #[arg(long, value_enum, default_value = "0")]
    pub(crate) verify: Verify,
    /// Read everything back at the end of a job that writes
    #[arg(long, default_value = "1")]
    pub(crate) do_verify: Flag,
    /// Bytes of verify=pattern: "text", 0xHEX or a number
    #[arg(long, default_value = "0", value_parser = pattern)]
    pub(crate) verify_pattern: List<u8>,

    /// Percentiles of completion latency to report
    #[arg(long, default_value = PERCENTILES, value_parser = percentiles)]
    pub(crate) percentile_list: List<f64>,

    #[command(flatten)]
    pub(crate) samples: Samples,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Options of `rw=samples`.
#[derive(Debug, Clone, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Samples (rw=samples)")]
pub(crate) struct Samples {
    /// Order of the samples
    #[arg(long, value_enum, default_value = "global")]
    pub(crate) order: Order,
    /// Samples per batch
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u64).range(1..=1 << 24))]
    pub(crate) batch_size: u64,
    /// Epochs to read; repeated with time_based
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    pub(crate) epochs: u32,
    /// Rank of this job; its clones (numjobs) get the following ranks
    #[arg(long, default_value_t = 0)]
    pub(crate) rank: u32,
    /// Number of ranks that share each epoch
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    pub(crate) world_size: u32,
    /// grouped: lanes that take turns; 0: 8 per rank
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u32).range(..=65_536))]
    pub(crate) lanes: u32,
    /// grouped: chunks whose samples are shuffled together
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..))]
    pub(crate) group: u32,
    /// partial: fraction of each share that is exchanged every epoch, 0 to 1
    #[arg(long, default_value_t = 0.1)]
    pub(crate) exchange: f64,
    /// Maximum memory for samples read ahead
    #[arg(long, default_value = "256m", value_parser = bytes)]
    pub(crate) prefetch_window: u64,
    /// Compute time after each batch, emulated by sleeping; in microseconds unless it has a unit
    #[arg(long, default_value = "0", value_parser = microseconds)]
    pub(crate) thinktime: Duration,
    /// Drop the samples at the end of an epoch that do not divide evenly among the ranks
    #[arg(long)]
    pub(crate) drop_last: Flag,
}

/// Options of the connection, named as in nvme-cli.
#[derive(Debug, Clone, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Connection (as in nvme-cli)")]
pub(crate) struct Connection {
    /// Protect PDU headers with CRC32C
    #[arg(long, visible_alias = "hdr-digest")]
    pub(crate) hdr_digest: Flag,
    /// Protect PDU data with CRC32C
    #[arg(long, visible_alias = "data-digest")]
    pub(crate) data_digest: Flag,
    /// Host NQN to present
    #[arg(long)]
    pub(crate) hostnqn: Option<String>,
    /// Entries of an I/O queue, more than iodepth; default the next power of two, at least 128
    #[arg(long, visible_alias = "queue-size", value_parser = value_parser!(u16).range(2..))]
    pub(crate) queue_size: Option<u16>,
    /// Seconds to wait for a lost target
    #[arg(long, visible_alias = "ctrl-loss-tmo", default_value = "10", value_parser = seconds)]
    pub(crate) ctrl_loss_tmo: Duration,
    /// Seconds that an I/O may make no progress before its connection is replaced
    #[arg(long, visible_alias = "io-timeout", value_parser = seconds)]
    pub(crate) io_timeout: Option<Duration>,
}

impl Job {
    /// Sizes of blocks in one direction (0 read, 1 write), with their shares.
    pub(crate) fn split(&self, direction: usize) -> Split {
        let one = || vec![(self.bs[direction].unwrap_or(DEFAULT_BLOCK_BYTES), 100)];
        self.bssplit[direction].clone().unwrap_or_else(one)
    }

    /// Sizes of blocks in the directions that the job uses, in bytes.
    pub(crate) fn block_sizes(&self) -> Vec<u64> {
        let used = [self.rw.reads(), self.rw.writes()];
        let directions = (0..2).filter(|&direction| used[direction]);
        directions.flat_map(|direction| self.split(direction)).map(|piece| piece.0).collect()
    }

    /// The smallest and the largest of [`Job::block_sizes`].
    pub(crate) fn block_range(&self) -> (u64, u64) {
        let sizes = self.block_sizes();
        let ends = (sizes.iter().min(), sizes.iter().max());
        (*ends.0.expect("a job has blocks"), *ends.1.expect("a job has blocks"))
    }
}

/// The block size of a direction for which none is given: fio's default.
const DEFAULT_BLOCK_BYTES: u64 = 4096;
/// fio's default percentiles.
const PERCENTILES: &str = "1:5:10:20:30:40:50:60:70:80:90:95:99:99.5:99.9:99.95:99.99";
