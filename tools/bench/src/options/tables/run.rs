//! How jobs run, and on what.

use super::super::job::Engine;
use super::super::nearest::nearest;
use super::super::value::{boolean, integer, time_us, within};
use super::{Opt, opt};

pub(super) const JOB: &[Opt] = &[
    opt(
        "name",
        &[],
        "TEXT",
        "Name of the job; on the command line it begins a new one.",
        |j, v| {
            j.name = v.to_owned();
            Ok(())
        },
    ),
    opt("description", &["desc"], "TEXT", "A line about the job, kept in the output.", |j, v| {
        j.description = Some(v.to_owned());
        Ok(())
    }),
    opt(
        "runtime",
        &["timeout"],
        "TIME",
        "The most time that the job runs; without a unit in seconds.",
        |j, v| {
            let us = time_us(v, 1_000_000)?;
            if us == 0 {
                return Err("a runtime of zero would measure nothing".to_owned());
            }
            j.runtime_us = Some(us);
            Ok(())
        },
    ),
    opt(
        "time_based",
        &[],
        "BOOL",
        "Begin again at the end of the size, until the runtime is over.",
        |j, v| {
            j.time_based = boolean(v)?;
            Ok(())
        },
    ),
    opt("ramp_time", &[], "TIME", "Run for so long before anything is counted.", |j, v| {
        j.ramp_time_us = time_us(v, 1_000_000)?;
        Ok(())
    }),
    opt(
        "startdelay",
        &[],
        "TIME[-TIME]",
        "Wait so long, or a random time of the range, before the start.",
        |j, v| {
            let (low, high) = v.split_once('-').unwrap_or((v, v));
            j.startdelay_us = (time_us(low, 1_000_000)?, time_us(high, 1_000_000)?);
            Ok(())
        },
    ),
    opt("loops", &[], "N", "Go through the size so many times.", |j, v| {
        j.loops = within(v, 1, u64::MAX)?;
        Ok(())
    }),
    opt("numjobs", &[], "N", "Run so many equal jobs side by side, each a thread.", |j, v| {
        j.numjobs = within(v, 1, 1024)?;
        Ok(())
    }),
    opt(
        "stonewall",
        &["wait_for_previous"],
        "BOOL",
        "Wait for all jobs before this one to end.",
        |j, v| {
            j.stonewall = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "wait_for",
        &[],
        "NAME",
        "Wait for the job of this name, which stands earlier, to end.",
        |j, v| {
            j.wait_for = Some(v.to_owned());
            Ok(())
        },
    ),
    opt(
        "group_reporting",
        &[],
        "BOOL",
        "Report the jobs of a group together, not each.",
        |j, v| {
            j.group_reporting = boolean(v)?;
            Ok(())
        },
    ),
    opt("new_group", &[], "BOOL", "Begin a new reporting group.", |j, v| {
        j.new_group = boolean(v)?;
        Ok(())
    }),
    opt(
        "stats",
        &[],
        "BOOL",
        "Whether the job appears in the output; on unless switched off.",
        |j, v| {
            j.stats = boolean(v)?;
            Ok(())
        },
    ),
    opt("exitall", &[], "BOOL", "When this job ends, end all that run with it.", |j, v| {
        j.exitall = boolean(v)?;
        Ok(())
    }),
    opt("exitall_on_error", &[], "BOOL", "When this job fails, end all.", |j, v| {
        j.exitall_on_error = boolean(v)?;
        Ok(())
    }),
    opt(
        "exec_prerun",
        &[],
        "COMMAND",
        "Run a shell command before the job; its output goes to NAME.prerun.txt.",
        |j, v| {
            j.exec_prerun = Some(v.to_owned());
            Ok(())
        },
    ),
    opt(
        "exec_postrun",
        &[],
        "COMMAND",
        "Run a shell command after the job; its output goes to NAME.postrun.txt.",
        |j, v| {
            j.exec_postrun = Some(v.to_owned());
            Ok(())
        },
    ),
    opt(
        "cpus_allowed",
        &["cpus"],
        "LIST",
        "Processors that the job's threads may use, those that read ahead for rw=samples included: 0-2,5.",
        |j, v| {
            j.cpus_allowed = Some(v.replace(':', ","));
            Ok(())
        },
    ),
    opt("cpumask", &[], "N", "As cpus_allowed, as a bit mask.", |j, v| {
        let mask = integer(v)?;
        let cpus = (0..64).filter(|bit| mask >> bit & 1 == 1).map(|cpu: u64| cpu.to_string());
        j.cpus_allowed = Some(cpus.collect::<Vec<_>>().join(","));
        Ok(())
    }),
    opt(
        "cpus_allowed_policy",
        &[],
        "shared|split",
        "Whether equal jobs share the processors or have one each.",
        |j, v| {
            j.cpus_split = choice(v, &[("shared", false), ("split", true)])?;
            Ok(())
        },
    ),
    opt(
        "busy_poll",
        &["busy-poll"],
        "BOOL",
        "Never sleep while I/Os are on their way: the lowest latency, at the price of a whole core.",
        |j, v| {
            j.busy_poll = boolean(v)?;
            Ok(())
        },
    ),
    opt("kb_base", &[], "1024|1000", "What k, m, g mean in this job's later options.", |j, v| {
        j.kb_base = choice(v, &[("1024", 1024), ("1000", 1000)])?;
        Ok(())
    }),
    opt(
        "unit_base",
        &[],
        "0|8|1",
        "Unit of bandwidth in the text output: 8 bytes, 1 bits.",
        |j, v| {
            j.unit_base = choice(v, &[("0", 0), ("8", 8), ("1", 1)])?;
            Ok(())
        },
    ),
];

pub(super) const TARGET: &[Opt] = &[
    opt(
        "ioengine",
        &[],
        "ENGINE",
        "What moves the bytes: tcp, spdk, file (dlfs's own engines on a namespace), mem (a namespace in \
         memory), null (nothing: measures this tool), psync and io_uring (plain files, to compare with), \
         auto (what the address says). libaio, posixaio and sync are taken for io_uring and psync.",
        |j, v| {
            let known = v.to_ascii_lowercase();
            let entry = Engine::ALL.iter().find(|entry| entry.0 == known);
            j.engine = match (entry, known.as_str()) {
                (Some(entry), _) => entry.1,
                (None, "libaio" | "posixaio") => Engine::IoUring,
                (None, "sync" | "pvsync" | "pvsync2") => Engine::Psync,
                (None, other) => {
                    let near = nearest(other, Engine::ALL.iter().map(|e| e.0));
                    let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
                    return Err(format!("no engine of that name{near}"));
                }
            };
            Ok(())
        },
    ),
    opt(
        "filename",
        &[],
        "TARGET[:TARGET...]",
        "A file, a block device, or an address: nvme-tcp://host:4420/NQN?ns=1, trtype:TCP traddr:..., or \
         SPDK's trtype=TCP traddr=... ns=1. Several are separated by colons; a colon that belongs to a \
         name is written \\:, which addresses that begin as above need not.",
        |j, v| {
            j.filename = Some(v.to_owned());
            Ok(())
        },
    ),
    opt(
        "directory",
        &[],
        "FOLDER",
        "Folder for files that are not named: FOLDER/NAME.JOB.FILE.",
        |j, v| {
            j.directory = Some(v.replace("\\:", ":"));
            Ok(())
        },
    ),
    opt("nrfiles", &[], "N", "Files of a job without filename=.", |j, v| {
        j.nrfiles = within(v, 1, 65_536)?;
        Ok(())
    }),
    opt(
        "file_service_type",
        &[],
        "roundrobin|random|sequential",
        "How the next of several files is chosen.",
        |j, v| {
            let kind = v.split(':').next().unwrap_or(v);
            j.files_random =
                choice(kind, &[("roundrobin", false), ("sequential", false), ("random", true)])?;
            Ok(())
        },
    ),
    opt(
        "allow_file_create",
        &[],
        "BOOL",
        "Whether a file that is missing or short is made; on unless switched off.",
        |j, v| {
            j.allow_file_create = boolean(v)?;
            Ok(())
        },
    ),
    opt("create_only", &[], "BOOL", "Only make the files.", |j, v| {
        j.create_only = boolean(v)?;
        Ok(())
    }),
    opt(
        "invalidate",
        &[],
        "BOOL",
        "Drop a file's cached pages before the start; on unless switched off.",
        |j, v| {
            j.invalidate = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "pre_read",
        &[],
        "BOOL",
        "Read the whole file into the page cache before the start.",
        |j, v| {
            j.pre_read = boolean(v)?;
            Ok(())
        },
    ),
    opt("unlink", &[], "BOOL", "Remove the job's files at its end.", |j, v| {
        j.unlink = boolean(v)?;
        Ok(())
    }),
    opt(
        "allow_mounted_write",
        &[],
        "BOOL",
        "Write also to a block device that is mounted or part of a volume.",
        |j, v| {
            j.allow_mounted_write = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "overwrite_data_set",
        &[],
        "NAME",
        "Write also to these targets, named as in filename=, where they hold a dlfs data set.",
        |j, v| {
            j.overwrite_data_set = Some(v.to_owned());
            Ok(())
        },
    ),
    opt("direct", &[], "BOOL", "Bypass the page cache (O_DIRECT).", |j, v| {
        j.direct = Some(boolean(v)?);
        Ok(())
    }),
    opt("buffered", &[], "BOOL", "The opposite of direct.", |j, v| {
        j.direct = Some(!boolean(v)?);
        Ok(())
    }),
    opt("sync", &[], "none|0|sync|1|dsync", "Open plain files with O_SYNC or O_DSYNC.", |j, v| {
        let kinds = [
            ("none", 0),
            ("0", 0),
            ("sync", libc::O_SYNC),
            ("1", libc::O_SYNC),
            ("dsync", libc::O_DSYNC),
        ];
        j.sync_flags = choice(v, &kinds)?;
        Ok(())
    }),
    opt("readonly", &[], "BOOL", "Refuse to run if the job would write.", |j, v| {
        j.read_only = boolean(v)?;
        Ok(())
    }),
];

/// The value that a word stands for.
pub(super) fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(word, _)| *word == text.trim());
    found.map(|(_, value)| *value).ok_or_else(|| format!("'{text}' is not one of them"))
}
