//! A job: every option that has an effect, as a typed value with fio's default.

use super::value::Size;

/// What a job does to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) random: bool,
    /// `rw=samples`: batches of a data set instead of blocks.
    pub(crate) samples: bool,
}

/// Which code moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// What the address says: `tcp` or `file`.
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
    pub(crate) const ALL: [(&'static str, Engine); 8] = [
        ("auto", Engine::Auto),
        ("tcp", Engine::Tcp),
        ("spdk", Engine::Spdk),
        ("file", Engine::File),
        ("mem", Engine::Mem),
        ("null", Engine::Null),
        ("psync", Engine::Psync),
        ("io_uring", Engine::IoUring),
    ];

    pub(crate) fn name(self) -> &'static str {
        let entry = Engine::ALL.iter().find(|entry| entry.1 == self);
        entry.map_or("auto", |entry| entry.0)
    }

    /// Whether the target is a plain file that may be made.
    pub(crate) fn is_plain_file(self) -> bool {
        matches!(self, Engine::Psync | Engine::IoUring)
    }

    /// Whether there is no target to name.
    pub(crate) fn needs_no_target(self) -> bool {
        matches!(self, Engine::Null | Engine::Mem)
    }
}

/// How random offsets are drawn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Distribution {
    Uniform,
    /// Theta, and the centre of the hot part (0 to 1) or none, when it is scattered.
    Zipf(f64, Option<f64>),
    Pareto(f64, Option<f64>),
    /// Standard deviation in percent of the range.
    Normal(f64, Option<f64>),
    /// Percent of the accesses, percent of the range.
    Zoned(Vec<(u32, u32)>),
    /// Percent of the accesses, bytes.
    ZonedAbs(Vec<(u32, u64)>),
}

/// How blocks are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    None,
    /// A header in each interval says where it belongs and what its CRC32C is.
    Crc32c,
    /// Every byte is that of `verify_pattern`.
    Pattern,
}

/// What a steady state is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SteadyOf {
    Iops,
    Bandwidth,
    Latency,
}

/// The end that `steadystate` waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SteadyState {
    pub(crate) of: SteadyOf,
    pub(crate) slope: bool,
    pub(crate) limit: f64,
    pub(crate) percent: bool,
}

/// What the averages of a log keep of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogValue {
    Average,
    Maximum,
}

/// Which errors a job goes on after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ContinueOn {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) verify: bool,
}

/// Options of `rw=samples`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Samples {
    pub(crate) order: String,
    pub(crate) batch_size: u64,
    pub(crate) epochs: u64,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) lanes: u32,
    pub(crate) group: u32,
    pub(crate) exchange: f64,
    pub(crate) window: u64,
    pub(crate) batching: String,
    pub(crate) accelerator_time_us: u64,
    pub(crate) drop_last: bool,
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

/// One job as it was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) origin: String,
    /// The options of this job alone, as they were written.
    pub(crate) given: Vec<(String, String)>,
    /// Options that were accepted and do nothing here.
    pub(crate) without_effect: Vec<String>,
    pub(crate) kb_base: u64,
    pub(crate) unit_base: u64,

    pub(crate) pattern: Pattern,
    pub(crate) rw: String,
    /// `rw=randread:8`: so many in a row; `rw=read:64k`: so many bytes are left out.
    pub(crate) rw_step: u64,
    pub(crate) rw_identical: bool,
    pub(crate) rwmixread: u64,
    pub(crate) rwmixread_given: bool,
    pub(crate) percentage_random: [u64; 2],
    pub(crate) distribution: [Distribution; 2],
    pub(crate) norandommap: bool,
    pub(crate) randrepeat: bool,
    pub(crate) randseed: Option<u64>,

    pub(crate) engine: Engine,
    pub(crate) filename: Option<String>,
    pub(crate) directory: Option<String>,
    pub(crate) nrfiles: u64,
    pub(crate) files_random: bool,
    pub(crate) allow_file_create: bool,
    pub(crate) create_only: bool,
    pub(crate) invalidate: bool,
    pub(crate) pre_read: bool,
    pub(crate) unlink: bool,
    /// Data sets that may be overwritten, named as `filename=` names them.
    pub(crate) overwrite_data_set: Option<String>,
    pub(crate) allow_mounted_write: bool,
    pub(crate) direct: Option<bool>,
    pub(crate) sync_flags: i32,

    pub(crate) size: Option<Size>,
    pub(crate) io_size: Option<Size>,
    pub(crate) offset: Size,
    pub(crate) offset_align: u64,
    pub(crate) offset_increment: Size,
    pub(crate) number_ios: Option<u64>,
    pub(crate) fill_device: bool,
    pub(crate) loops: u64,
    pub(crate) fsync: u64,
    pub(crate) end_fsync: bool,

    pub(crate) bs: [u64; 2],
    pub(crate) bsrange: [Option<(u64, u64)>; 2],
    pub(crate) bssplit: [Vec<(u64, u32)>; 2],
    pub(crate) bs_unaligned: bool,
    pub(crate) blockalign: [Option<u64>; 2],
    pub(crate) zero_buffers: bool,
    pub(crate) refill_buffers: bool,
    pub(crate) scramble_buffers: bool,
    pub(crate) buffer_pattern: Vec<u8>,
    pub(crate) compress_percentage: u64,

    pub(crate) iodepth: u64,
    pub(crate) batch_submit: u64,
    pub(crate) batch_complete_min: u64,
    pub(crate) batch_complete_max: u64,
    pub(crate) iodepth_low: u64,

    pub(crate) rate: [Option<u64>; 2],
    pub(crate) rate_min: [Option<u64>; 2],
    pub(crate) rate_iops: [Option<u64>; 2],
    pub(crate) rate_iops_min: [Option<u64>; 2],
    pub(crate) rate_cycle_us: u64,
    pub(crate) rate_poisson: bool,
    pub(crate) thinktime_us: u64,
    pub(crate) thinktime_spin_us: u64,
    pub(crate) thinktime_blocks: u64,
    pub(crate) max_latency_us: u64,
    pub(crate) latency_target_us: u64,
    pub(crate) latency_window_us: u64,
    pub(crate) latency_percentile: f64,
    pub(crate) latency_run: bool,

    pub(crate) runtime_us: Option<u64>,
    pub(crate) time_based: bool,
    pub(crate) ramp_time_us: u64,
    pub(crate) startdelay_us: (u64, u64),
    pub(crate) numjobs: u64,
    pub(crate) stonewall: bool,
    pub(crate) wait_for: Option<String>,
    pub(crate) new_group: bool,
    pub(crate) group_reporting: bool,
    pub(crate) stats: bool,
    pub(crate) exitall: bool,
    pub(crate) exitall_on_error: bool,
    pub(crate) exec_prerun: Option<String>,
    pub(crate) exec_postrun: Option<String>,
    /// Processors as `0,2-5`, and whether equal jobs take one each.
    pub(crate) cpus_allowed: Option<String>,
    pub(crate) cpus_split: bool,
    pub(crate) busy_poll: bool,

    pub(crate) verify: Verify,
    pub(crate) verify_pattern: Vec<u8>,
    pub(crate) verify_interval: u64,
    pub(crate) verify_fatal: bool,
    pub(crate) do_verify: bool,
    pub(crate) verify_only: bool,
    pub(crate) continue_on: ContinueOn,
    pub(crate) ignore_error: [Vec<i32>; 3],

    pub(crate) steady_state: Option<SteadyState>,
    pub(crate) ss_duration_us: u64,
    pub(crate) ss_ramp_us: u64,
    pub(crate) ss_interval_us: u64,

    pub(crate) bw_log: Option<String>,
    pub(crate) iops_log: Option<String>,
    pub(crate) lat_log: Option<String>,
    pub(crate) log_avg_msec: u64,
    pub(crate) log_value: LogValue,
    pub(crate) log_offset: bool,
    pub(crate) per_job_logs: bool,
    pub(crate) log_unix_epoch: bool,
    pub(crate) bwavgtime_ms: u64,
    pub(crate) iopsavgtime_ms: u64,

    pub(crate) clat_percentiles: bool,
    pub(crate) lat_percentiles: bool,
    pub(crate) slat_percentiles: bool,
    pub(crate) percentile_list: Vec<f64>,
    pub(crate) disable_lat: bool,
    pub(crate) disable_clat: bool,
    pub(crate) disable_slat: bool,
    pub(crate) disable_bw: bool,
    pub(crate) unified: bool,

    pub(crate) samples: Samples,
    pub(crate) connection: Connection,
    pub(crate) read_only: bool,
}

impl Job {
    /// The most and the fewest bytes of a block, of either direction that the job uses.
    pub(crate) fn block_range(&self) -> (u64, u64) {
        let used = [self.pattern.reads, self.pattern.writes];
        let (mut min, mut max) = (u64::MAX, 0);
        for direction in (0..2).filter(|&d| used[d]) {
            let (low, high) = self.block_range_of(direction);
            (min, max) = (min.min(low), max.max(high));
        }
        (min.min(max), max)
    }

    /// The fewest and the most bytes of a block in one direction (0 read, 1 write).
    pub(crate) fn block_range_of(&self, direction: usize) -> (u64, u64) {
        let split = &self.bssplit[direction];
        if let (Some(min), Some(max)) =
            (split.iter().map(|s| s.0).min(), split.iter().map(|s| s.0).max())
        {
            return (min, max);
        }
        self.bsrange[direction].unwrap_or((self.bs[direction], self.bs[direction]))
    }

    /// The depth that the engine can have.
    pub(crate) fn depth(&self) -> u64 {
        if self.engine == Engine::Psync { 1 } else { self.iodepth }
    }
}

impl Default for Job {
    fn default() -> Job {
        Job {
            name: String::new(),
            description: None,
            origin: String::new(),
            given: Vec::new(),
            without_effect: Vec::new(),
            kb_base: 1024,
            unit_base: 0,
            pattern: Pattern { reads: true, writes: false, random: false, samples: false },
            rw: "read".to_owned(),
            rw_step: 0,
            rw_identical: false,
            rwmixread: 50,
            rwmixread_given: false,
            percentage_random: [100, 100],
            distribution: [Distribution::Uniform, Distribution::Uniform],
            norandommap: false,
            randrepeat: true,
            randseed: None,
            engine: Engine::Auto,
            filename: None,
            directory: None,
            nrfiles: 1,
            files_random: false,
            allow_file_create: true,
            create_only: false,
            invalidate: true,
            pre_read: false,
            unlink: false,
            overwrite_data_set: None,
            allow_mounted_write: false,
            direct: None,
            sync_flags: 0,
            size: None,
            io_size: None,
            offset: Size::Bytes(0),
            offset_align: 0,
            offset_increment: Size::Bytes(0),
            number_ios: None,
            fill_device: false,
            loops: 1,
            fsync: 0,
            end_fsync: false,
            bs: [4096, 4096],
            bsrange: [None, None],
            bssplit: [Vec::new(), Vec::new()],
            bs_unaligned: false,
            blockalign: [None, None],
            zero_buffers: false,
            refill_buffers: false,
            scramble_buffers: true,
            buffer_pattern: Vec::new(),
            compress_percentage: 0,
            iodepth: 1,
            batch_submit: 0,
            batch_complete_min: 1,
            batch_complete_max: 0,
            iodepth_low: 0,
            rate: [None; 2],
            rate_min: [None; 2],
            rate_iops: [None; 2],
            rate_iops_min: [None; 2],
            rate_cycle_us: 1_000_000,
            rate_poisson: false,
            thinktime_us: 0,
            thinktime_spin_us: 0,
            thinktime_blocks: 1,
            max_latency_us: 0,
            latency_target_us: 0,
            latency_window_us: 0,
            latency_percentile: 100.0,
            latency_run: false,
            runtime_us: None,
            time_based: false,
            ramp_time_us: 0,
            startdelay_us: (0, 0),
            numjobs: 1,
            stonewall: false,
            wait_for: None,
            new_group: false,
            group_reporting: false,
            stats: true,
            exitall: false,
            exitall_on_error: false,
            exec_prerun: None,
            exec_postrun: None,
            cpus_allowed: None,
            cpus_split: false,
            busy_poll: false,
            verify: Verify::None,
            verify_pattern: Vec::new(),
            verify_interval: 0,
            verify_fatal: false,
            do_verify: true,
            verify_only: false,
            continue_on: ContinueOn::default(),
            ignore_error: [Vec::new(), Vec::new(), Vec::new()],
            steady_state: None,
            ss_duration_us: 0,
            ss_ramp_us: 0,
            ss_interval_us: 1_000_000,
            bw_log: None,
            iops_log: None,
            lat_log: None,
            log_avg_msec: 0,
            log_value: LogValue::Average,
            log_offset: false,
            per_job_logs: true,
            log_unix_epoch: false,
            bwavgtime_ms: 500,
            iopsavgtime_ms: 500,
            clat_percentiles: true,
            lat_percentiles: false,
            slat_percentiles: false,
            percentile_list: DEFAULT_PERCENTILES.to_vec(),
            disable_lat: false,
            disable_clat: false,
            disable_slat: false,
            disable_bw: false,
            unified: false,
            samples: Samples {
                order: "global".to_owned(),
                batch_size: 256,
                epochs: 1,
                rank: 0,
                world_size: 1,
                lanes: 8,
                group: 4,
                exchange: 0.1,
                window: 256 << 20,
                batching: String::new(),
                accelerator_time_us: 0,
                drop_last: false,
            },
            connection: Connection::default(),
            read_only: false,
        }
    }
}

/// fio's.
pub(crate) const DEFAULT_PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];
