//! A job: every option once, with its name, help, default and limits; and the values of options in fio's form: sizes,
//! times, pairs, shares.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};

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

/// The word of a value on the command line.
pub(crate) fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

/// One job as the user wrote it.
#[derive(Debug, Clone, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Options of a job")]
pub(crate) struct Job {
    /// Name of the job; on the command line it starts a new job
    #[arg(long, default_value = "dlfs-bench")]
    pub(crate) name: String,
    /// Place where the job is written, such as a line of its file, for messages.
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

    /// Sizes of blocks in the directions that the job uses.
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
/// As in fio.
const PERCENTILES: &str = "1:5:10:20:30:40:50:60:70:80:90:95:99:99.5:99.9:99.95:99.99";

// Aliases that hide a type from clap, which would take a `bool` for a switch and a `Vec` for a repeatable
// option.
pub(crate) type Flag = bool;
pub(crate) type List<T> = Vec<T>;

/// A value for reads and one for writes; `None` where the user left it out.
pub(crate) type Pair<T> = [Option<T>; 2];

/// Sizes of blocks, each with its share in percent.
pub(crate) type Split = Vec<(u64, u32)>;

/// A number of bytes, or a percentage of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Bytes(u64),
    Percent(u64),
}

impl Size {
    /// The number of bytes, of a whole of `of` bytes.
    pub(crate) fn of(self, of: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => (u128::from(of) * u128::from(percent) / 100) as u64, // at most `of`
        }
    }
}

/// A number with a unit: `4k`, `0x1000`, `1MiB`. As in fio, `k` is 1,024 and `Ki` 1,000.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text).ok_or_else(|| format!("'{text}' is not a size"))?;
    let factor = size_factor(unit)
        .ok_or_else(|| format!("'{unit}' in '{text}' is no unit of size (k, m, g, t, p, e)"))?;
    match number * factor as f64 {
        value if value <= MAX_BYTES => Ok(value as u64),
        _ => Err(format!("'{text}' is more than 2^60, the most that a size may be")),
    }
}

/// Bytes, or `50%`.
pub(crate) fn size(text: &str) -> Result<Size, String> {
    let Some(percent) = text.strip_suffix('%') else { return bytes(text).map(Size::Bytes) };
    let percent = percent.trim_end_matches('%'); // Python's configparser needs `%%`
    match percent.parse() {
        Ok(percent @ 0..=100) => Ok(Size::Percent(percent)),
        _ => Err(format!("'{text}' is not within 0% to 100%")),
    }
}

/// `0` or `1`, `yes`, `no`, ...; an option without a value means yes.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "" | "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        other => Err(format!("'{other}' is neither 0 nor 1")),
    }
}

/// A time, in seconds unless it has a unit.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    time(text, 1e6)
}

/// A time, in microseconds unless it has a unit.
fn microseconds(text: &str) -> Result<Duration, String> {
    time(text, 1.0)
}

fn time(text: &str, default_us: f64) -> Result<Duration, String> {
    let (number, unit) = split_number(text).ok_or_else(|| format!("'{text}' is not a time"))?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" => default_us,
        "us" | "usec" => 1.0,
        "ms" | "msec" => 1e3,
        "s" | "sec" => 1e6,
        "m" | "min" => 60e6,
        "h" => 3600e6,
        "d" => 86_400e6,
        _ => return Err(format!("'{unit}' in '{text}' is no unit of time (d, h, m, s, ms, us)")),
    };
    match (number * factor) as u64 {
        us if us <= MAX_TIME_US => Ok(Duration::from_micros(us)),
        _ => Err(format!("'{text}' is more than 100 years, the longest that a time may be")),
    }
}

/// `read,write`: one value applies to both; fio's third, for trimming, is ignored.
fn pair<T: Clone>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Pair<T>, String> {
    let mut parts = text.split(',').map(|part| (!part.is_empty()).then(|| parse(part)).transpose());
    let read = parts.next().transpose()?.flatten();
    let write = parts.next().transpose()?.unwrap_or_else(|| read.clone());
    Ok([read, write])
}

/// Limits of reads and of writes a second.
pub(crate) fn rates(text: &str) -> Result<Pair<u64>, String> {
    pair(text, bytes)
}

/// Block sizes of reads and of writes.
pub(crate) fn blocks(text: &str) -> Result<Pair<u64>, String> {
    pair(text, block)
}

/// Splits of reads and of writes.
fn splits(text: &str) -> Result<Pair<Split>, String> {
    pair(text, split)
}

fn block(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        size @ 1..=MAX_BLOCK_BYTES => Ok(size),
        _ => Err(format!("a block has 1 to {MAX_BLOCK_BYTES} bytes")),
    }
}

/// `4k/50:8k/50`: sizes with their shares in percent.
fn split(text: &str) -> Result<Split, String> {
    let piece = |piece: &str| {
        let (size, share) = piece.split_once('/')?;
        Some((size.to_owned(), share.trim_end_matches('%').parse::<u8>().ok()?))
    };
    let pieces: Option<Vec<_>> = text.split(':').map(piece).collect();
    let pieces = pieces.ok_or_else(|| format!("'{text}' is not SIZE/PERCENT:SIZE/PERCENT"))?;
    let sum: u64 = pieces.iter().map(|(_, share)| u64::from(*share)).sum();
    if sum != 100 {
        return Err(format!("the shares of '{text}' add up to {sum}, not 100"));
    }
    pieces.iter().map(|(size, share)| Ok((block(size)?, u32::from(*share)))).collect()
}

/// Percentiles with colons between.
pub(crate) fn percentiles(text: &str) -> Result<List<f64>, String> {
    let numbers: Option<List<f64>> = text.split(':').map(|number| number.parse().ok()).collect();
    let mut list = numbers
        .filter(|list| list.len() <= 20 && list.iter().all(|p| (0.0..=100.0).contains(p)))
        .ok_or("at most 20 numbers from 0 to 100, with colons between")?;
    list.sort_by(f64::total_cmp);
    Ok(list)
}

/// `"text"`, `0xHEX` (the bytes as written), or a number (its bytes, the lowest first).
pub(crate) fn pattern(text: &str) -> Result<List<u8>, String> {
    let wrong = || format!("'{text}' is neither \"text\" nor a number");
    if let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return Some(inner.into()).filter(|bytes: &Vec<u8>| !bytes.is_empty()).ok_or_else(wrong);
    }
    if let Some(hex) = text.strip_prefix("0x").filter(|hex| !hex.is_empty()) {
        let hex = if hex.len() % 2 == 1 { format!("0{hex}") } else { hex.to_owned() };
        let byte = |at: usize| hex.get(at..at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
        return (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>().ok_or_else(wrong);
    }
    let number: u64 = text.parse().map_err(|_| wrong())?;
    let used = 8 - (number.leading_zeros() / 8).min(7) as usize;
    Ok(number.to_le_bytes()[..used].to_vec())
}

fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    if let Some(hex) = text.strip_prefix("0x") {
        let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        return Some((u64::from_str_radix(&hex[..end], 16).ok()? as f64, &hex[end..]));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

fn size_factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if matches!(unit.as_str(), "" | "b") {
        return Some(1);
    }
    let power = 1 + "kmgtpe".find(unit.chars().next()?)? as u32;
    match &unit[1..] {
        "" | "b" => Some(1024_u64.pow(power)),
        "i" | "ib" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

/// 2^60: sums and products with a job's other numbers stay below 2^64.
const MAX_BYTES: f64 = (1_u64 << 60) as f64;
/// The largest buffer.
const MAX_BLOCK_BYTES: u64 = 1 << 30;
/// A hundred years: the sum of a few such times in nanoseconds is below 2^64.
const MAX_TIME_US: u64 = 100 * 31_557_600 * 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_fio_s_units() {
        assert_eq!(bytes("4k"), Ok(4096));
        assert_eq!(bytes("4Ki"), Ok(4000));
        assert_eq!(bytes("0x1000"), Ok(4096));
        assert_eq!(bytes("1.5m"), Ok(3 << 19));
        assert_eq!(size("50%%"), Ok(Size::Percent(50)));
        for wrong in ["4q", "k", "", "-1", "1.2.3", "4kk", "17179869184g", "1025p"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_fio_s_units() {
        assert_eq!(seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(seconds("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(microseconds("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(microseconds("36525d"), Ok(Duration::from_micros(MAX_TIME_US)));
        let endless = "9".repeat(400);
        for wrong in ["2x", "36526d", "99999999999999999999", endless.as_str()] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pairs_and_splits_are_read_as_fio_reads_them() {
        assert_eq!(blocks("4k"), Ok([Some(4096), Some(4096)]));
        assert_eq!(blocks(",8k"), Ok([None, Some(8192)]));
        assert_eq!(blocks("8k,"), Ok([Some(8192), None]));
        assert_eq!(split("4k/50:8k/50"), Ok(vec![(4096, 50), (8192, 50)]));
        for wrong in ["4k/50:8k/40", "4k/10:8k", "4k", "8q/100"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_are_text_hexadecimal_or_a_number() {
        assert_eq!(pattern("\"abc\""), Ok(b"abc".to_vec()));
        assert_eq!(pattern("0xdeadbeef"), Ok(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(pattern("256"), Ok(vec![0, 1]));
        assert_eq!(pattern("0"), Ok(vec![0]));
        assert!(pattern("xyz").is_err() && pattern("").is_err() && pattern("0x").is_err());
    }
}
