//! Steady state, logs, percentiles.

use super::super::job::{Job, LogValue, SteadyOf, SteadyState};
use super::super::value::{boolean, float, ms, time_us};
use super::run::choice;
use super::{Opt, opt};

pub(super) const STEADY: &[Opt] = &[
    opt(
        "steadystate",
        &["ss"],
        "iops|bw|lat[_slope]:LIMIT[%]",
        "End the job once its rate (or mean latency) has been steady: each value of \
         the duration within LIMIT of their mean, or their slope below it.",
        set_steady_state,
    ),
    opt(
        "steadystate_duration",
        &["ss_dur"],
        "TIME",
        "How long it must have been steady.",
        |j, v| {
            j.ss_duration_us = time_us(v, 1_000_000)?;
            Ok(())
        },
    ),
    opt(
        "steadystate_ramp_time",
        &["ss_ramp"],
        "TIME",
        "How long nothing is looked at first.",
        |j, v| {
            j.ss_ramp_us = time_us(v, 1_000_000)?;
            Ok(())
        },
    ),
    opt(
        "steadystate_check_interval",
        &["ss_interval"],
        "TIME",
        "How often it is looked at; a second unless given.",
        |j, v| {
            j.ss_interval_us = time_us(v, 1_000_000)?.max(10_000);
            Ok(())
        },
    ),
];

pub(super) const LOGS: &[Opt] = &[
    opt("write_bw_log", &[], "[PREFIX]", "Bandwidth over time, in PREFIX_bw.N.log.", |j, v| {
        j.bw_log = Some(v.to_owned());
        Ok(())
    }),
    opt(
        "write_lat_log",
        &[],
        "[PREFIX]",
        "Latencies over time, in PREFIX_lat.N.log, _clat and _slat.",
        |j, v| {
            j.lat_log = Some(v.to_owned());
            Ok(())
        },
    ),
    opt(
        "write_iops_log",
        &[],
        "[PREFIX]",
        "I/Os a second over time, in PREFIX_iops.N.log.",
        |j, v| {
            j.iops_log = Some(v.to_owned());
            Ok(())
        },
    ),
    opt(
        "log_avg_msec",
        &[],
        "MS",
        "One line for so many milliseconds, rather than one for each I/O.",
        |j, v| {
            j.log_avg_msec = ms(v, 0)?;
            Ok(())
        },
    ),
    opt(
        "log_window_value",
        &["log_max_value"],
        "avg|max",
        "What such a line says of a latency.",
        |j, v| {
            let kinds = [
                ("avg", LogValue::Average),
                ("0", LogValue::Average),
                ("max", LogValue::Maximum),
                ("1", LogValue::Maximum),
            ];
            j.log_value = choice(v, &kinds)?;
            Ok(())
        },
    ),
    opt("log_offset", &[], "BOOL", "Put the offset of each I/O in its line.", |j, v| {
        j.log_offset = boolean(v)?;
        Ok(())
    }),
    opt(
        "per_job_logs",
        &[],
        "BOOL",
        "Number the logs of equal jobs; on unless switched off.",
        |j, v| {
            j.per_job_logs = boolean(v)?;
            Ok(())
        },
    ),
    opt("log_unix_epoch", &[], "BOOL", "Times in logs count from 1970.", |j, v| {
        j.log_unix_epoch = boolean(v)?;
        Ok(())
    }),
];

pub(super) const MEASUREMENT: &[Opt] = &[
    opt(
        "bwavgtime",
        &[],
        "MS",
        "Over how long bandwidth is averaged for its minimum, mean and maximum.",
        |j, v| {
            j.bwavgtime_ms = ms(v, 10)?;
            Ok(())
        },
    ),
    opt("iopsavgtime", &[], "MS", "The same for I/Os a second.", |j, v| {
        j.iopsavgtime_ms = ms(v, 10)?;
        Ok(())
    }),
    opt(
        "clat_percentiles",
        &[],
        "BOOL",
        "Percentiles of completion latency; on unless switched off.",
        |j, v| {
            j.clat_percentiles = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "lat_percentiles",
        &[],
        "BOOL",
        "Percentiles of total latency, instead of completion latency.",
        |j, v| {
            j.lat_percentiles = boolean(v)?;
            if j.lat_percentiles && !j.given.iter().any(|(key, _)| key == "clat_percentiles") {
                j.clat_percentiles = false;
            }
            Ok(())
        },
    ),
    opt("slat_percentiles", &[], "BOOL", "Percentiles of submission latency.", |j, v| {
        j.slat_percentiles = boolean(v)?;
        Ok(())
    }),
    opt(
        "percentile_list",
        &[],
        "P:P:...",
        "Which percentiles are reported, at most 20.",
        |j, v| {
            let mut list = v.split(':').map(float).collect::<Result<Vec<_>, _>>()?;
            list.sort_by(f64::total_cmp);
            if list.len() > 20 || list.iter().any(|p| !(0.0..=100.0).contains(p)) {
                return Err("at most 20 numbers from 0 to 100".to_owned());
            }
            j.percentile_list = list;
            Ok(())
        },
    ),
    opt("disable_lat", &[], "BOOL", "Do not keep total latency.", |j, v| {
        j.disable_lat = boolean(v)?;
        Ok(())
    }),
    opt("disable_clat", &[], "BOOL", "Do not keep completion latency.", |j, v| {
        j.disable_clat = boolean(v)?;
        Ok(())
    }),
    opt(
        "disable_slat",
        &[],
        "BOOL",
        "Do not keep submission latency; saves a clock reading a burst.",
        |j, v| {
            j.disable_slat = boolean(v)?;
            Ok(())
        },
    ),
    opt("disable_bw_measurement", &["disable_bw"], "BOOL", "Do not sample bandwidth.", |j, v| {
        j.disable_bw = boolean(v)?;
        Ok(())
    }),
    opt("gtod_reduce", &[], "BOOL", "All four above.", |j, v| {
        let off = boolean(v)?;
        (j.disable_lat, j.disable_clat, j.disable_slat, j.disable_bw) = (off, off, off, off);
        Ok(())
    }),
    opt("unified_rw_reporting", &[], "none|mixed", "Report reads and writes together.", |j, v| {
        let kinds = [("none", false), ("0", false), ("mixed", true), ("1", true)];
        j.unified = choice(v, &kinds)?;
        Ok(())
    }),
];

fn set_steady_state(job: &mut Job, text: &str) -> Result<(), String> {
    let (criterion, limit) = text.split_once(':').ok_or("no limit is given")?;
    let (name, slope) = match criterion.strip_suffix("_slope") {
        Some(name) => (name, true),
        None => (criterion, false),
    };
    let of = [("iops", SteadyOf::Iops), ("bw", SteadyOf::Bandwidth), ("lat", SteadyOf::Latency)];
    let percent = limit.ends_with('%');
    let limit = float(limit.trim_end_matches('%'))?;
    job.steady_state = Some(SteadyState { of: choice(name, &of)?, slope, limit, percent });
    Ok(())
}
