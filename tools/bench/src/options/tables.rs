//! All options of a job, by what they are about.

use super::command_line::{Eta, Format, RunOptions};
use super::job::{ContinueOn, Engine, Job, Pattern, Verify};
use super::table::{Opt, nearest};
use super::value::{
    MAX_TIME_US, boolean, bytes, float, integer, ms, pair, range, size, split, time_us, within,
};

/// A row: the name, aliases, the form of the value, the help, and the setter.
macro_rules! table {
    ($($name:literal $([$($alias:literal),+])? $value:literal $help:literal $set:expr;)*) => {
        &[$(Opt { name: $name, aliases: &[$($($alias),+)?], value: $value, help: $help, set: $set }),*]
    };
}

/// Heading and options, in the order of the help.
pub(crate) const TABLES: &[(&str, &[Opt])] = &[
    ("Job", JOB),
    ("Target", TARGET),
    ("Pattern", PATTERN),
    ("Blocks and buffers", BLOCKS),
    ("Size", SIZE),
    ("Depth", DEPTH),
    ("Rate and thinking", RATE),
    ("Verification and errors", VERIFY),
    ("Samples (rw=samples)", SAMPLES),
    ("Connection (as in nvme-cli)", CONNECTION),
    ("Logs", LOGS),
    ("Measurement", MEASUREMENT),
];

/// The options of the run; `command_line` handles those that only print, such as --help.
pub(crate) const RUN: &[Opt<RunOptions>] = table! {
    "help" "" "Print this." nothing;
    "version" "" "Print the version." nothing;
    "cmdhelp" "" "Print the help of all job options; --cmdhelp=WORD prints that of one." nothing;
    "enghelp" "" "Print the engines." nothing;
    "output" "=VALUE" "Write the result to this file instead of standard output."
        |r, v| set(&mut r.output, Ok(Some(v.into())));
    "output-format" "=VALUE" "normal, json, json+ or terse, or several with commas between."
        |r, v| set(&mut r.formats, v.split(',').map(format).collect());
    "minimal" "" "The same as --output-format=terse."
        |r, _| set(&mut r.formats, Ok(vec![Format::Terse]));
    "terse-version" "=VALUE" "3 (the default) or 5."
        |r, v| set(&mut r.terse_version, choice(v, &[("3", 3), ("5", 5)]));
    "report" "=VALUE" "Also write one self-contained HTML page with plots to this file."
        |r, v| set(&mut r.report, Ok(Some(v.into())));
    "eta" "=VALUE" "Show progress on standard error: auto, always or never."
        |r, v| {
            let kinds = [("auto", Eta::Auto), ("always", Eta::Always), ("never", Eta::Never)];
            set(&mut r.eta, choice(v, &kinds))
        };
    "eta-interval" "=VALUE" "Interval between updates of the progress line; default 1 s."
        |r, v| set(&mut r.eta_interval_us, time_us(v, 1_000_000).map(|us| us.max(100_000)));
    "eta-newline" "=VALUE" "Interval after which progress starts on a new line."
        |r, v| set(&mut r.eta_newline_us, time_us(v, 1_000_000));
    "status-interval" "=VALUE" "Interval at which the figures so far are printed in full."
        |r, v| set(&mut r.status_interval_us, time_us(v, 1_000_000));
    "parse-only" "" "Parse the jobs, report errors, and exit."
        |r, _| set(&mut r.parse_only, Ok(true));
    "showcmd" "" "Print the jobs as command lines."
        |r, _| set(&mut r.showcmd, Ok(true));
    "readonly" "" "Refuse jobs that write."
        |r, _| set(&mut r.readonly, Ok(true));
    "max-jobs" "=VALUE" "Maximum number of threads of all jobs."
        |r, v| set(&mut r.max_jobs, integer(v));
    "section" "=VALUE" "Run only this section of the job files; may be repeated."
        |r, v| { r.sections.push(v.to_owned()); Ok(()) };
};

const JOB: &[Opt] = table! {
    "name" "TEXT" "Name of the job; on the command line it starts a new job."
        |j, v| set(&mut j.name, text(v));
    "description" ["desc"] "TEXT" "A line about the job, kept in the output."
        |j, v| set(&mut j.description, text(v).map(Some));
    "runtime" ["timeout"] "TIME" "Maximum run time; in seconds unless it has a unit."
        |j, v| match time_us(v, 1_000_000)? {
            0 => Err("a runtime of zero would measure nothing".to_owned()),
            us => set(&mut j.runtime_us, Ok(Some(us))),
        };
    "time_based" "BOOL" "Start over at the end of the size, until the runtime has passed."
        |j, v| set(&mut j.time_based, boolean(v));
    "ramp_time" "TIME" "Run for this time before measuring."
        |j, v| set(&mut j.ramp_time_us, time_us(v, 1_000_000));
    "startdelay" "TIME" "Wait for this time before the start."
        |j, v| set(&mut j.startdelay_us, time_us(v, 1_000_000));
    "loops" "N" "Number of passes over the size."
        |j, v| set(&mut j.loops, within(v, 1, u64::MAX));
    "numjobs" "N" "Run N clones of the job in parallel, each in a thread."
        |j, v| set(&mut j.numjobs, within(v, 1, 1024));
    "stonewall" ["wait_for_previous"] "BOOL" "Start only when all jobs before this one have ended."
        |j, v| set(&mut j.stonewall, boolean(v));
    "group_reporting" "BOOL" "Report the jobs of a group together instead of each by itself."
        |j, v| set(&mut j.group_reporting, boolean(v));
    "new_group" "BOOL" "Start a new reporting group."
        |j, v| set(&mut j.new_group, boolean(v));
    "exitall" "BOOL" "When this job ends, end all jobs that run with it."
        |j, v| set(&mut j.exitall, boolean(v));
    "cpus_allowed" ["cpus"] "LIST"
        "Processors for the job's threads, including the threads that read ahead for rw=samples: 0-2,5."
        |j, v| set(&mut j.cpus_allowed, Ok(Some(v.replace(':', ","))));
    "cpus_allowed_policy" "shared|split" "Whether the clones of a job share the processors or get one each."
        |j, v| set(&mut j.cpus_split, choice(v, &[("shared", false), ("split", true)]));
    "busy_poll" ["busy-poll"] "BOOL"
        "Spin instead of sleeping while I/O is outstanding: lowest latency, at the cost of a core."
        |j, v| set(&mut j.busy_poll, boolean(v));
};

const TARGET: &[Opt] = table! {
    "ioengine" "ENGINE"
        "I/O engine: tcp, spdk, file (dlfs's own engines on a namespace), mem (a namespace in memory), null \
         (no I/O: measures this tool), psync and io_uring (plain files, for comparison), auto (by the \
         address). libaio and posixaio mean io_uring; sync, pvsync and pvsync2 mean psync."
        |j, v| set(&mut j.engine, engine(v));
    "filename" "TARGET[:TARGET...]"
        "A file, a block device, or an address: nvme-tcp://host:4420/NQN?ns=1, trtype:TCP traddr:..., or \
         SPDK's trtype=TCP traddr=... ns=1. Separate several with colons. Write a colon within a name \
         as \\:, except in addresses of these forms."
        |j, v| set(&mut j.filename, text(v).map(Some));
    "directory" "FOLDER" "Folder for the files of a job without filename=: FOLDER/NAME.JOB.FILE."
        |j, v| set(&mut j.directory, Ok(Some(v.replace("\\:", ":"))));
    "nrfiles" ["nr_files"] "N" "Number of files of a job without filename=."
        |j, v| set(&mut j.nrfiles, within(v, 1, 65_536));
    "invalidate" "BOOL" "Drop a file's cached pages before the start; on by default."
        |j, v| set(&mut j.invalidate, boolean(v));
    "pre_read" "BOOL" "Read the whole file into the page cache before the start."
        |j, v| set(&mut j.pre_read, boolean(v));
    "unlink" "BOOL" "Remove the job's files when it ends."
        |j, v| set(&mut j.unlink, boolean(v));
    "allow_mounted_write" "BOOL" "Allow writing to a block device that is mounted or part of a volume."
        |j, v| set(&mut j.allow_mounted_write, boolean(v));
    "overwrite_data_set" "NAME"
        "Allow writing to these targets, named as in filename=, even if they hold a dlfs data set."
        |j, v| set(&mut j.overwrite_data_set, text(v).map(Some));
    "direct" "BOOL" "Bypass the page cache (O_DIRECT)."
        |j, v| set(&mut j.direct, boolean(v).map(Some));
    "buffered" "BOOL" "The opposite of direct."
        |j, v| set(&mut j.direct, boolean(v).map(|buffered| Some(!buffered)));
    "sync" "none|0|sync|1|dsync" "Open plain files with O_SYNC or O_DSYNC."
        |j, v| {
            let sync = libc::O_SYNC;
            let dsync = libc::O_DSYNC;
            let kinds = [("none", 0), ("0", 0), ("sync", sync), ("1", sync), ("dsync", dsync)];
            set(&mut j.sync_flags, choice(v, &kinds))
        };
    "readonly" "BOOL" "Refuse to run if the job would write."
        |j, v| set(&mut j.read_only, boolean(v));
};

const PATTERN: &[Opt] = table! {
    "rw" ["readwrite"] "PATTERN"
        "read, write, randread, randwrite, rw (or readwrite), randrw, or samples (batches of a data set)."
        set_rw;
    "rwmixread" "PERCENT" "Share of reads in a mixed pattern."
        |j, v| set(&mut j.rwmixread, within(v, 0, 100));
    "rwmixwrite" "PERCENT" "Share of writes in a mixed pattern."
        |j, v| set(&mut j.rwmixread, within(v, 0, 100).map(|writes| 100 - writes));
    "norandommap" "BOOL" "Choose random blocks independently, instead of each block once per pass."
        |j, v| set(&mut j.norandommap, boolean(v));
    "randrepeat" ["allrandrepeat"] "BOOL" "Choose the same blocks in each run; on by default."
        |j, v| set(&mut j.randrepeat, boolean(v));
    "randseed" "N" "Seed of all random choices."
        |j, v| set(&mut j.randseed, integer(v).map(Some));
};

const BLOCKS: &[Opt] = table! {
    "bs" ["blocksize"] "SIZE[,SIZE]" "Block size, for reads and for writes."
        |j, v| {
            j.bs = pair(v, &j.bs, bytes)?;
            j.bs.into_iter().try_for_each(check_block)
        };
    "bsrange" ["blocksize_range"] "LOW-HIGH[,LOW-HIGH]"
        "Random block sizes within a range, in multiples of LOW."
        |j, v| {
            j.bsrange = pair(v, &[None, None], |r| range(r).map(Some))?;
            j.bsrange.iter().flatten().flat_map(|r| [r.0, r.1]).try_for_each(check_block)
        };
    "bssplit" "SIZE/PERCENT:...[,...]" "Several block sizes, each with its share of the blocks."
        |j, v| {
            j.bssplit = pair(v, &[Vec::new(), Vec::new()], split)?;
            j.bssplit.iter().flatten().try_for_each(|s| check_block(s.0))
        };
    "zero_buffers" "BOOL" "Write zeroes instead of random bytes."
        |j, v| set(&mut j.zero_buffers, boolean(v));
    "refill_buffers" "BOOL" "Fill the buffer with new random bytes for every write."
        |j, v| set(&mut j.refill_buffers, boolean(v));
    "scramble_buffers" "BOOL"
        "Change a few bytes of every write to defeat deduplication; on by default."
        |j, v| set(&mut j.scramble_buffers, boolean(v));
    "buffer_pattern" "PATTERN" "Bytes to write: \"text\", 0xHEX or a number; repeated."
        |j, v| set(&mut j.buffer_pattern, pattern(v));
};

const SIZE: &[Opt] = table! {
    "size" "SIZE|PERCENT%" "Bytes of the target that a job uses, divided among its files."
        |j, v| set(&mut j.size, size(v).map(Some));
    "io_size" ["io_limit"] "SIZE|PERCENT%" "Bytes that a job transfers; default its size."
        |j, v| set(&mut j.io_size, size(v).map(Some));
    "filesize" "SIZE" "Bytes of a file to create; here the same as size, which overrides it."
        |j, v| {
            let found = size(v.split('-').next().unwrap_or(v))?;
            j.size = j.size.or(Some(found));
            Ok(())
        };
    "offset" "SIZE|PERCENT%" "Where the job's part of the target begins."
        |j, v| set(&mut j.offset, size(v));
    "offset_increment" "SIZE|PERCENT%" "Added to the offset for each further clone of the job."
        |j, v| set(&mut j.offset_increment, size(v));
    "number_ios" "N" "Stop after N I/Os."
        |j, v| set(&mut j.number_ios, within(v, 1, u64::MAX).map(Some));
    "fsync" ["fdatasync"] "N" "Flush after every N writes."
        |j, v| set(&mut j.fsync, integer(v));
    "end_fsync" ["fsync_on_close"] "BOOL" "Flush when the job ends."
        |j, v| set(&mut j.end_fsync, boolean(v));
};

const DEPTH: &[Opt] = table! {
    "iodepth" "N" "I/Os that are on their way at a time; psync has one."
        |j, v| set(&mut j.iodepth, within(v, 1, 65_535));
    "iodepth_batch" ["iodepth_batch_submit"] "N"
        "Maximum number of I/Os to submit at once; default as many as there is room for."
        |j, v| set(&mut j.batch_submit, integer(v));
    "iodepth_batch_complete_min" ["iodepth_batch_complete"] "N"
        "Minimum number of completions to wait for."
        |j, v| set(&mut j.batch_complete_min, integer(v));
    "iodepth_batch_complete_max" "N"
        "Maximum number of completions to take at once. By default io_uring takes one, as in fio; the other \
         engines take all that there are."
        |j, v| set(&mut j.batch_complete_max, integer(v));
};

const RATE: &[Opt] = table! {
    "rate" "SIZE[,SIZE]" "Maximum bytes per second, for reads and for writes."
        |j, v| set(&mut j.rate, pair(v, &[None, None], |r| bytes(r).map(Some)));
    "rate_iops" "N[,N]" "Maximum I/Os per second, for reads and for writes."
        |j, v| set(&mut j.rate_iops, pair(v, &[None, None], |r| bytes(r).map(Some)));
    "thinktime" "TIME"
        "Pause after thinktime_blocks blocks; in microseconds unless it has a unit. With rw=samples: \
         compute time after each batch, emulated by sleeping."
        |j, v| set(&mut j.thinktime_us, time_us(v, 1));
    "thinktime_blocks" "N" "Blocks between two pauses."
        |j, v| set(&mut j.thinktime_blocks, within(v, 1, u64::MAX));
};

const VERIFY: &[Opt] = table! {
    "verify" "crc32c|pattern|0"
        "Write blocks that can be checked, and check what is read. crc32c: each block, or each piece of it as \
         long as the smallest block, begins with 32 bytes (magic, CRC32C, offset, seed, length); pattern: \
         every byte is that of verify_pattern. A job that writes then reads everything back."
        |j, v| match v {
            "0" | "none" | "null" => set(&mut j.verify, Ok(Verify::None)),
            "crc32c" | "crc32c-intel" | "1" => set(&mut j.verify, Ok(Verify::Crc32c)),
            "pattern" => set(&mut j.verify, Ok(Verify::Pattern)),
            _ => Err(format!("only crc32c and pattern are offered; {}", super::fio::POINTER)),
        };
    "do_verify" "BOOL" "Whether a job that writes then reads everything back; on by default."
        |j, v| set(&mut j.do_verify, boolean(v));
    "verify_pattern" "PATTERN" "Bytes of verify=pattern: \"text\", 0xHEX or a number."
        |j, v| set(&mut j.verify_pattern, pattern(v));
    "verify_fatal" "BOOL" "End the job at the first block that fails verification."
        |j, v| set(&mut j.verify_fatal, boolean(v));
    "continue_on_error" "none|read|write|io|verify|all" "Errors to count instead of ending the job."
        |j, v| {
            let on = |read, write, verify| ContinueOn { read, write, verify };
            let all = on(true, true, true);
            let none = on(false, false, false);
            let kinds = [
                ("none", none), ("0", none), ("read", on(true, false, false)),
                ("write", on(false, true, false)), ("io", on(true, true, false)),
                ("verify", on(false, false, true)), ("all", all), ("1", all),
            ];
            set(&mut j.continue_on, choice(v, &kinds))
        };
};

const SAMPLES: &[Opt] = table! {
    "order" "KIND" "sequential, slot, global, grouped, local or partial."
        |j, v| {
            let orders = ["sequential", "slot", "global", "grouped", "local", "partial"];
            set(&mut j.samples.order, word(v, &orders))
        };
    "batch_size" ["batch"] "N" "Samples per batch."
        |j, v| set(&mut j.samples.batch_size, within(v, 1, 1 << 24));
    "epochs" "N" "Epochs to read; repeated with time_based."
        |j, v| set(&mut j.samples.epochs, within(v, 1, u64::from(u32::MAX)));
    "rank" "N" "Rank of this job; its clones (numjobs) get the following ranks."
        |j, v| set(&mut j.samples.rank, number(v, 0, u32::MAX - 1));
    "world_size" "N" "Number of ranks that share each epoch."
        |j, v| set(&mut j.samples.world_size, number(v, 1, u32::MAX));
    "lanes" "N" "grouped: lanes that take turns; default 8 per rank."
        |j, v| set(&mut j.samples.lanes, number(v, 1, 65_536));
    "group" "N" "grouped: chunks whose samples are shuffled together."
        |j, v| set(&mut j.samples.group, number(v, 1, u32::MAX));
    "exchange" "PART" "partial: fraction of each share that is exchanged every epoch, 0 to 1."
        |j, v| set(&mut j.samples.exchange, float(v));
    "prefetch_window" ["window"] "SIZE" "Maximum memory for samples read ahead."
        |j, v| set(&mut j.samples.window, bytes(v).map(|window| window.max(1)));
    "batching" "none|sample|chunk" "How samples are fetched; default chunk for grouped and slot, otherwise sample."
        |j, v| set(&mut j.samples.batching, word(v, &["none", "sample", "chunk"]));
    "accelerator_time" ["compute_time"] "TIME"
        "Compute time after each batch, emulated by sleeping, as with thinktime; in microseconds unless it has a unit."
        |j, v| set(&mut j.samples.accelerator_time_us, time_us(v, 1));
    "drop_last" "BOOL" "Drop the samples at the end of an epoch that do not divide evenly among the ranks."
        |j, v| set(&mut j.samples.drop_last, boolean(v));
};

const CONNECTION: &[Opt] = table! {
    "hdr_digest" ["hdr-digest"] "BOOL" "Protect PDU headers with CRC32C."
        |j, v| set(&mut j.connection.hdr_digest, boolean(v));
    "data_digest" ["data-digest"] "BOOL" "Protect PDU data with CRC32C."
        |j, v| set(&mut j.connection.data_digest, boolean(v));
    "digest_enable" "NONE|HEADER|DATA|BOTH" "Both of the above, as SPDK's fio plug-in writes it."
        |j, v| {
            let both = [(false, false), (true, false), (false, true), (true, true)];
            let kinds = ["NONE", "HEADER", "DATA", "BOTH"];
            let kinds: Vec<(&str, (bool, bool))> = kinds.into_iter().zip(both).collect();
            (j.connection.hdr_digest, j.connection.data_digest) = choice(v, &kinds)?;
            Ok(())
        };
    "hostnqn" "NQN" "The host NQN to present."
        |j, v| set(&mut j.connection.hostnqn, text(v).map(Some));
    "queue_size" ["queue-size"] "N"
        "Entries of an I/O queue; iodepth must be below it. By default the next power of two above \
         iodepth, at least 128."
        |j, v| set(&mut j.connection.queue_size, within(v, 2, 65_535).map(|n| Some(n as u16)));
    "ctrl_loss_tmo" ["ctrl-loss-tmo"] "SECONDS" "How long to wait for a lost target; default 10."
        |j, v| set(&mut j.connection.ctrl_loss_tmo_s, within(v, 0, MAX_TIME_US / 1_000_000).map(Some));
    "io_timeout" ["io-timeout"] "SECONDS"
        "How long an I/O may make no progress before its connection is replaced."
        |j, v| set(&mut j.connection.io_timeout_s, within(v, 1, 86_400).map(Some));
};

const LOGS: &[Opt] = table! {
    "write_bw_log" "[PREFIX]" "Bandwidth over time, in PREFIX_bw.N.log."
        |j, v| set(&mut j.bw_log, text(v).map(Some));
    "write_lat_log" "[PREFIX]" "Latencies over time, in PREFIX_lat.N.log, _clat and _slat."
        |j, v| set(&mut j.lat_log, text(v).map(Some));
    "write_iops_log" "[PREFIX]" "I/Os per second over time, in PREFIX_iops.N.log."
        |j, v| set(&mut j.iops_log, text(v).map(Some));
    "log_avg_msec" "MS" "Log one average per this many milliseconds instead of one line per I/O."
        |j, v| set(&mut j.log_avg_msec, ms(v, 0));
    "log_offset" "BOOL" "Log the offset of each I/O."
        |j, v| set(&mut j.log_offset, boolean(v));
    "per_job_logs" "BOOL" "Write one numbered log per clone; on by default."
        |j, v| set(&mut j.per_job_logs, boolean(v));
};

const MEASUREMENT: &[Opt] = table! {
    "bwavgtime" "MS" "Interval over which bandwidth is averaged for its minimum, mean and maximum."
        |j, v| set(&mut j.bwavgtime_ms, ms(v, 10));
    "iopsavgtime" "MS" "The same for I/Os per second."
        |j, v| set(&mut j.iopsavgtime_ms, ms(v, 10));
    "clat_percentiles" "BOOL" "Report percentiles of completion latency; on by default."
        |j, v| set(&mut j.clat_percentiles, boolean(v));
    "lat_percentiles" "BOOL" "Report percentiles of total latency instead of completion latency."
        |j, v| {
            j.lat_percentiles = boolean(v)?;
            j.clat_percentiles &= !j.lat_percentiles || j.given.iter().any(|g| g.0 == "clat_percentiles");
            Ok(())
        };
    "slat_percentiles" "BOOL" "Report percentiles of submission latency."
        |j, v| set(&mut j.slat_percentiles, boolean(v));
    "percentile_list" "P:P:..." "Percentiles to report, at most 20."
        |j, v| {
            let mut list = v.split(':').map(float).collect::<Result<Vec<_>, _>>()?;
            list.sort_by(f64::total_cmp);
            if list.len() > 20 || list.iter().any(|p| !(0.0..=100.0).contains(p)) {
                return Err("at most 20 numbers from 0 to 100".to_owned());
            }
            set(&mut j.percentile_list, Ok(list))
        };
    "disable_lat" "BOOL" "Do not record total latency."
        |j, v| set(&mut j.disable_lat, boolean(v));
    "disable_clat" "BOOL" "Do not record completion latency."
        |j, v| set(&mut j.disable_clat, boolean(v));
    "disable_slat" "BOOL" "Do not record submission latency; saves one clock reading per burst."
        |j, v| set(&mut j.disable_slat, boolean(v));
    "disable_bw_measurement" ["disable_bw"] "BOOL" "Do not sample bandwidth."
        |j, v| set(&mut j.disable_bw, boolean(v));
    "gtod_reduce" "BOOL" "All four above."
        |j, v| {
            let off = boolean(v)?;
            (j.disable_lat, j.disable_clat, j.disable_slat, j.disable_bw) = (off, off, off, off);
            Ok(())
        };
};

fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn text(value: &str) -> Result<String, String> {
    Ok(value.to_owned())
}

fn number(text: &str, min: u32, max: u32) -> Result<u32, String> {
    within(text, min.into(), max.into()).map(|number| number as u32)
}

fn nothing(_: &mut RunOptions, _: &str) -> Result<(), String> {
    Ok(())
}

fn format(name: &str) -> Result<Format, String> {
    let normal = Format::Normal;
    let json = Format::Json;
    let plus = Format::JsonPlus;
    choice(name, &[("normal", normal), ("json", json), ("json+", plus), ("terse", Format::Terse)])
}

/// The value that a word stands for.
fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(word, _)| *word == text.trim());
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        format!("'{text}' is not one of {}", words.join(", "))
    })
}

fn word(text: &str, words: &[&'static str]) -> Result<String, String> {
    let words: Vec<(&str, &str)> = words.iter().map(|word| (*word, *word)).collect();
    choice(text, &words).map(str::to_owned)
}

fn engine(text: &str) -> Result<Engine, String> {
    let name = text.to_ascii_lowercase();
    let known = Engine::ALL.iter().find(|entry| entry.0 == name);
    match (known, name.as_str()) {
        (Some(entry), _) => Ok(entry.1),
        (None, "libaio" | "posixaio") => Ok(Engine::IoUring),
        (None, "sync" | "pvsync" | "pvsync2") => Ok(Engine::Psync),
        (None, other) => {
            let near = nearest(other, Engine::ALL.iter().map(|entry| entry.0));
            let near = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
            Err(format!("no engine of that name{near}"))
        }
    }
}

fn set_rw(job: &mut Job, text: &str) -> Result<(), String> {
    let pattern = |reads, writes, random| Pattern { reads, writes, random, samples: false };
    job.pattern = match text {
        "read" => pattern(true, false, false),
        "write" => pattern(false, true, false),
        "randread" => pattern(true, false, true),
        "randwrite" => pattern(false, true, true),
        "rw" | "readwrite" => pattern(true, true, false),
        "randrw" => pattern(true, true, true),
        "samples" => Pattern { samples: true, ..pattern(true, false, false) },
        text if text.contains(":") || text.contains("trim") => {
            return Err(format!(
                "neither trimming nor PATTERN:N is offered; {}",
                super::fio::POINTER
            ));
        }
        _ => return Err("no pattern of that name".to_owned()),
    };
    set(&mut job.rw, Ok(text.to_owned()))
}

fn check_block(size: u64) -> Result<(), String> {
    if (1..=MAX_BLOCK_BYTES).contains(&size) {
        Ok(())
    } else {
        Err(format!("a block has 1 to {MAX_BLOCK_BYTES} bytes"))
    }
}

/// `"text"`, `0xHEX` (the bytes as written), or a number (its bytes, the lowest first).
fn pattern(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    if let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return if inner.is_empty() { Err("no byte".to_owned()) } else { Ok(inner.into()) };
    }
    if let Some(hex) = text.strip_prefix("0x") {
        let hex = if hex.len() % 2 == 1 { format!("0{hex}") } else { hex.to_owned() };
        let byte = |at: usize| hex.get(at..at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
        let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
        return bytes
            .filter(|b| !b.is_empty())
            .ok_or_else(|| "not a hexadecimal number".to_owned());
    }
    let number = integer(text)?;
    let used = 8 - (number.leading_zeros() / 8).min(7) as usize;
    Ok(number.to_le_bytes()[..used].to_vec())
}

/// The largest buffer.
const MAX_BLOCK_BYTES: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_text_hexadecimal_or_a_number() {
        assert_eq!(pattern("\"abc\""), Ok(b"abc".to_vec()));
        assert_eq!(pattern("0xdeadbeef"), Ok(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(pattern("256"), Ok(vec![0, 1]));
        assert_eq!(pattern("0"), Ok(vec![0]));
        assert!(pattern("xyz").is_err() && pattern("").is_err() && pattern("0x").is_err());
    }
}
