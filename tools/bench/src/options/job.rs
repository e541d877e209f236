//! A job: every option that has an effect, as a typed value with fio's default.

use super::value::Size;

/// The access pattern of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) random: bool,
    /// `rw=samples`: batches of a data set instead of blocks.
    pub(crate) samples: bool,
}

/// The I/O engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// The engine that the address says: `tcp` or `file`.
    Auto,
    Tcp,
    Spdk,
    File,
    Mem,
    Null,
    Psync,
    IoUring,
}

impl Engine {
    /// Name, engine, and the help.
    #[rustfmt::skip] // a row for each
    pub(crate) const ALL: [(&'static str, Engine, &'static str); 8] = [
        ("auto", Engine::Auto, "tcp for an nvme-tcp:// or trtype:TCP address, spdk for spdk:, else file"),
        ("tcp", Engine::Tcp, "dlfs's own NVMe/TCP host"),
        ("spdk", Engine::Spdk, "SPDK, where the build has it: spdk:ADDRESS, trtype:PCIE|RDMA|VFIOUSER"),
        ("file", Engine::File, "dlfs's engine for image files and block devices (io_uring, or pread)"),
        ("mem", Engine::Mem, "a namespace in memory, of size= bytes"),
        ("null", Engine::Null, "completes everything at once, moves nothing: measures this tool"),
        ("psync", Engine::Psync, "pread and pwrite on plain files, one at a time, to compare with"),
        ("io_uring", Engine::IoUring, "a plain io_uring on plain files, to compare with"),
    ];

    pub(crate) fn name(self) -> &'static str {
        let entry = Engine::ALL.iter().find(|entry| entry.1 == self);
        entry.map_or("auto", |entry| entry.0)
    }

    /// Returns whether the target is a plain file, which is created if it does not exist.
    pub(crate) fn is_plain_file(self) -> bool {
        matches!(self, Engine::Psync | Engine::IoUring)
    }

    /// Returns whether the engine needs no `filename=`.
    pub(crate) fn needs_no_target(self) -> bool {
        matches!(self, Engine::Null | Engine::Mem)
    }
}

/// How blocks are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    None,
    /// A header in each block says where it belongs and what its CRC32C is.
    Crc32c,
    /// Every byte is that of `verify_pattern`.
    Pattern,
}

/// The kinds of errors after which a job continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ContinueOn {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) verify: bool,
}

/// Declares a struct with the default of each field beside it.
macro_rules! with_defaults {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) struct $name { $($(#[$about])* pub(crate) $field: $type,)* }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* }
            }
        }
    };
}
pub(super) use with_defaults;

with_defaults! {
    /// Options of `rw=samples`.
    Samples {
        order: String = "global".to_owned(),
        batch_size: u64 = 256,
        epochs: u64 = 1,
        rank: u32 = 0,
        world_size: u32 = 1,
        lanes: u32 = 0,
        group: u32 = 4,
        exchange: f64 = 0.1,
        window: u64 = 256 << 20,
        batching: String = String::new(),
        accelerator_time_us: u64 = 0,
        drop_last: bool = false,
    }
}

/// Options of the connection, named as in nvme-cli.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) hdr_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) hostnqn: Option<String>,
    pub(crate) queue_size: Option<u16>,
    pub(crate) ctrl_loss_tmo_s: Option<u64>,
    pub(crate) io_timeout_s: Option<u64>,
}

with_defaults! {
    /// One job as the user wrote it.
    Job {
        name: String = String::new(),
        description: Option<String> = None,
        origin: String = String::new(),
        /// The options of this job alone, as they were written.
        given: Vec<(String, String)> = Vec::new(),

        pattern: Pattern = Pattern { reads: true, writes: false, random: false, samples: false },
        rw: String = "read".to_owned(),
        rwmixread: u64 = 50,
        norandommap: bool = false,
        randrepeat: bool = true,
        randseed: Option<u64> = None,

        engine: Engine = Engine::Auto,
        filename: Option<String> = None,
        directory: Option<String> = None,
        nrfiles: u64 = 1,
        invalidate: bool = true,
        pre_read: bool = false,
        unlink: bool = false,
        /// Data sets that may be overwritten, named as `filename=` names them.
        overwrite_data_set: Option<String> = None,
        allow_mounted_write: bool = false,
        direct: Option<bool> = None,
        sync_flags: i32 = 0,
        read_only: bool = false,

        size: Option<Size> = None,
        io_size: Option<Size> = None,
        offset: Size = Size::Bytes(0),
        offset_increment: Size = Size::Bytes(0),
        number_ios: Option<u64> = None,
        loops: u64 = 1,
        fsync: u64 = 0,
        end_fsync: bool = false,

        bs: [u64; 2] = [4096, 4096],
        bsrange: [Option<(u64, u64)>; 2] = [None, None],
        bssplit: [Vec<(u64, u32)>; 2] = [Vec::new(), Vec::new()],
        zero_buffers: bool = false,
        refill_buffers: bool = false,
        scramble_buffers: bool = true,
        buffer_pattern: Vec<u8> = Vec::new(),

        iodepth: u64 = 1,
        batch_submit: u64 = 0,
        batch_complete_min: u64 = 1,
        batch_complete_max: u64 = 0,

        rate: [Option<u64>; 2] = [None; 2],
        rate_iops: [Option<u64>; 2] = [None; 2],
        thinktime_us: u64 = 0,
        thinktime_blocks: u64 = 1,

        runtime_us: Option<u64> = None,
        time_based: bool = false,
        ramp_time_us: u64 = 0,
        startdelay_us: u64 = 0,
        numjobs: u64 = 1,
        stonewall: bool = false,
        new_group: bool = false,
        group_reporting: bool = false,
        exitall: bool = false,
        /// Processors as `0,2-5`, and whether the clones of a job get one each.
        cpus_allowed: Option<String> = None,
        cpus_split: bool = false,
        busy_poll: bool = false,

        verify: Verify = Verify::None,
        verify_pattern: Vec<u8> = Vec::new(),
        verify_fatal: bool = false,
        do_verify: bool = true,
        continue_on: ContinueOn = ContinueOn::default(),

        bw_log: Option<String> = None,
        iops_log: Option<String> = None,
        lat_log: Option<String> = None,
        log_avg_msec: u64 = 0,
        log_offset: bool = false,
        per_job_logs: bool = true,
        bwavgtime_ms: u64 = 500,
        iopsavgtime_ms: u64 = 500,

        clat_percentiles: bool = true,
        lat_percentiles: bool = false,
        slat_percentiles: bool = false,
        percentile_list: Vec<f64> = DEFAULT_PERCENTILES.to_vec(),
        disable_lat: bool = false,
        disable_clat: bool = false,
        disable_slat: bool = false,
        disable_bw: bool = false,

        samples: Samples = Samples::default(),
        connection: Connection = Connection::default(),
    }
}

impl Job {
    /// The smallest and the largest block in bytes, over the directions that the job uses.
    pub(crate) fn block_range(&self) -> (u64, u64) {
        let used = [self.pattern.reads, self.pattern.writes];
        let mut min = u64::MAX;
        let mut max = 0;
        for direction in (0..2).filter(|&d| used[d]) {
            let (low, high) = self.block_range_of(direction);
            (min, max) = (min.min(low), max.max(high));
        }
        (min.min(max), max)
    }

    /// The smallest and the largest block in bytes in one direction (0 read, 1 write).
    pub(crate) fn block_range_of(&self, direction: usize) -> (u64, u64) {
        let split = &self.bssplit[direction];
        if let (Some(min), Some(max)) =
            (split.iter().map(|s| s.0).min(), split.iter().map(|s| s.0).max())
        {
            return (min, max);
        }
        self.bsrange[direction].unwrap_or((self.bs[direction], self.bs[direction]))
    }

    /// The sizes of all blocks in the directions that the job uses; of a range its ends.
    pub(crate) fn block_sizes(&self) -> Vec<u64> {
        let used = [self.pattern.reads, self.pattern.writes];
        let mut sizes = Vec::new();
        for direction in (0..2).filter(|&d| used[d]) {
            let (low, high) = self.block_range_of(direction);
            sizes.extend([low, high]);
            sizes.extend(self.bssplit[direction].iter().map(|(size, _)| size));
        }
        sizes
    }

    /// The queue depth that the engine supports.
    pub(crate) fn depth(&self) -> u64 {
        if self.engine == Engine::Psync { 1 } else { self.iodepth }
    }
}

/// As in fio.
const DEFAULT_PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];
