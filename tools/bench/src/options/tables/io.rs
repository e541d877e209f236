//! What is read and written, and how fast.

use super::super::job::{Distribution, Job, Pattern};
use super::super::value::{
    boolean, bytes, float, integer, pair, range, size, split, time_us, within,
};
use super::run::choice;
use super::{Opt, opt};

pub(super) const PATTERN: &[Opt] = &[
    opt(
        "rw",
        &["readwrite"],
        "PATTERN[:N]",
        "read, write, randread, randwrite, rw (or readwrite), randrw, or samples (batches of a data set). \
         With :N a random pattern moves on by itself only every N blocks, and a sequential one leaves N \
         bytes out after each block.",
        set_rw,
    ),
    opt(
        "rw_sequencer",
        &[],
        "sequential|identical",
        "With rw=PATTERN:N: what the blocks between two random ones do.",
        |j, v| {
            j.rw_identical = choice(v, &[("sequential", false), ("identical", true)])?;
            Ok(())
        },
    ),
    opt("rwmixread", &[], "PERCENT", "Share of reads in a mixed pattern.", |j, v| {
        j.rwmixread = within(v, 0, 100)?;
        j.rwmixread_given = true;
        Ok(())
    }),
    opt("rwmixwrite", &[], "PERCENT", "Share of writes in a mixed pattern.", |j, v| {
        j.rwmixread = 100 - within(v, 0, 100)?;
        Ok(())
    }),
    opt(
        "percentage_random",
        &[],
        "PERCENT[,PERCENT]",
        "Share of random blocks in a random pattern; the rest follows its predecessor.",
        |j, v| {
            j.percentage_random = pair(v, &[100, 100], |p| within(p, 0, 100))?;
            Ok(())
        },
    ),
    opt(
        "random_distribution",
        &[],
        "DIST[,DIST]",
        "random (uniform), zipf:THETA[/CENTER], pareto:H[/CENTER], normal:PERCENT[/CENTER], \
         zoned:ACCESS/SIZE:..., zoned_abs:ACCESS/BYTES:... Hot blocks are scattered unless a center (0 to 1) \
         is given; normal lies around the middle.",
        |j, v| {
            let kb_base = j.kb_base;
            j.distribution = pair(v, &[Distribution::Uniform, Distribution::Uniform], |d| {
                distribution(d, kb_base)
            })?;
            Ok(())
        },
    ),
    opt(
        "norandommap",
        &[],
        "BOOL",
        "Draw each random block anew, rather than every block once a pass.",
        |j, v| {
            j.norandommap = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "randrepeat",
        &["allrandrepeat"],
        "BOOL",
        "Draw the same blocks in each run; on unless switched off.",
        |j, v| {
            j.randrepeat = boolean(v)?;
            Ok(())
        },
    ),
    opt("randseed", &[], "N", "Seed of all random choices.", |j, v| {
        j.randseed = Some(integer(v)?);
        Ok(())
    }),
];

pub(super) const BLOCKS: &[Opt] = &[
    opt(
        "bs",
        &["blocksize"],
        "SIZE[,SIZE]",
        "Bytes of a block, of reads and of writes.",
        |j, v| {
            let kb_base = j.kb_base;
            j.bs = pair(v, &j.bs, |b| block_size(b, kb_base))?;
            Ok(())
        },
    ),
    opt(
        "bsrange",
        &["blocksize_range"],
        "LOW-HIGH[,LOW-HIGH]",
        "Blocks of random sizes within a range, multiples of LOW.",
        |j, v| {
            let kb_base = j.kb_base;
            j.bsrange = pair(v, &[None, None], |r| range(r, kb_base).map(Some))?;
            let mut ends = j.bsrange.iter().flatten().flat_map(|r| [r.0, r.1]);
            ends.try_for_each(check_block)
        },
    ),
    opt(
        "bssplit",
        &[],
        "SIZE/PERCENT:...[,...]",
        "Blocks of several sizes, each with its share.",
        |j, v| {
            let kb_base = j.kb_base;
            j.bssplit = pair(v, &[Vec::new(), Vec::new()], |s| split(s, kb_base))?;
            j.bssplit.iter().flatten().try_for_each(|s| check_block(s.0))
        },
    ),
    opt("bs_unaligned", &[], "BOOL", "With bsrange: sizes of any number of bytes.", |j, v| {
        j.bs_unaligned = boolean(v)?;
        Ok(())
    }),
    opt(
        "blockalign",
        &["ba"],
        "SIZE[,SIZE]",
        "What random offsets are multiples of; the smallest block unless given.",
        |j, v| {
            let kb_base = j.kb_base;
            j.blockalign = pair(v, &[None, None], |b| block_size(b, kb_base).map(Some))?;
            Ok(())
        },
    ),
    opt("zero_buffers", &[], "BOOL", "Write zeroes rather than random bytes.", |j, v| {
        j.zero_buffers = boolean(v)?;
        Ok(())
    }),
    opt("refill_buffers", &[], "BOOL", "Draw the bytes of every write anew.", |j, v| {
        j.refill_buffers = boolean(v)?;
        Ok(())
    }),
    opt(
        "scramble_buffers",
        &[],
        "BOOL",
        "Change a few bytes of every write, against deduplication; on unless switched off.",
        |j, v| {
            j.scramble_buffers = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "buffer_pattern",
        &[],
        "PATTERN",
        "Bytes to write: \"text\", 0xHEX or a number; repeated.",
        |j, v| {
            j.buffer_pattern = pattern(v)?;
            Ok(())
        },
    ),
    opt(
        "buffer_compress_percentage",
        &[],
        "PERCENT",
        "Share of zeroes in what is written.",
        |j, v| {
            j.compress_percentage = within(v, 0, 100)?;
            Ok(())
        },
    ),
];

pub(super) const SIZE: &[Opt] = &[
    opt(
        "size",
        &[],
        "SIZE|PERCENT%",
        "Bytes of the target that a job uses, shared out over its files.",
        |j, v| {
            j.size = Some(size(v, j.kb_base)?);
            Ok(())
        },
    ),
    opt(
        "io_size",
        &["io_limit"],
        "SIZE|PERCENT%",
        "Bytes that a job moves, if not those of its size.",
        |j, v| {
            j.io_size = Some(size(v, j.kb_base)?);
            Ok(())
        },
    ),
    opt("filesize", &[], "SIZE", "Bytes of a file that is made; the same as size here.", |j, v| {
        if j.size.is_none() {
            j.size = Some(size(v.split('-').next().unwrap_or(v), j.kb_base)?);
        }
        Ok(())
    }),
    opt("fill_device", &["fill_fs"], "BOOL", "Write until the target is full.", |j, v| {
        j.fill_device = boolean(v)?;
        Ok(())
    }),
    opt("offset", &[], "SIZE|PERCENT%", "Where the job's part of the target begins.", |j, v| {
        j.offset = size(v, j.kb_base)?;
        Ok(())
    }),
    opt("offset_align", &[], "SIZE", "What an offset in percent is rounded up to.", |j, v| {
        j.offset_align = bytes(v, j.kb_base)?;
        Ok(())
    }),
    opt(
        "offset_increment",
        &[],
        "SIZE|PERCENT%",
        "Added to the offset of each further equal job.",
        |j, v| {
            j.offset_increment = size(v, j.kb_base)?;
            Ok(())
        },
    ),
    opt("number_ios", &[], "N", "Stop after so many I/Os.", |j, v| {
        j.number_ios = Some(within(v, 1, u64::MAX)?);
        Ok(())
    }),
    opt("fsync", &["fdatasync"], "N", "Flush after every N writes.", |j, v| {
        j.fsync = integer(v)?;
        Ok(())
    }),
    opt("end_fsync", &["fsync_on_close"], "BOOL", "Flush at the job's end.", |j, v| {
        j.end_fsync = boolean(v)?;
        Ok(())
    }),
];

pub(super) const DEPTH: &[Opt] = &[
    opt("iodepth", &[], "N", "I/Os that are on their way at a time; psync has one.", |j, v| {
        j.iodepth = within(v, 1, 65_535)?;
        Ok(())
    }),
    opt(
        "iodepth_batch",
        &["iodepth_batch_submit"],
        "N",
        "The most I/Os that are submitted together; all there is room for unless given.",
        |j, v| {
            j.batch_submit = integer(v)?;
            Ok(())
        },
    ),
    opt(
        "iodepth_batch_complete_min",
        &["iodepth_batch_complete"],
        "N",
        "Completions that are waited for together.",
        |j, v| {
            j.batch_complete_min = integer(v)?;
            Ok(())
        },
    ),
    opt(
        "iodepth_batch_complete_max",
        &[],
        "N",
        "The most completions that are taken together; io_uring one at a time unless given, as fio does, \
         the others all that there are.",
        |j, v| {
            j.batch_complete_max = integer(v)?;
            Ok(())
        },
    ),
    opt("iodepth_low", &[], "N", "Let the queue drain to N before it is filled again.", |j, v| {
        j.iodepth_low = integer(v)?;
        Ok(())
    }),
];

pub(super) const RATE: &[Opt] = &[
    opt("rate", &[], "SIZE[,SIZE]", "The most bytes a second, of reads and of writes.", |j, v| {
        let kb_base = j.kb_base;
        j.rate = pair(v, &[None, None], |r| bytes(r, kb_base).map(Some))?;
        Ok(())
    }),
    opt(
        "rate_min",
        &["ratemin"],
        "SIZE[,SIZE]",
        "Fail when fewer bytes a second are moved.",
        |j, v| {
            let kb_base = j.kb_base;
            j.rate_min = pair(v, &[None, None], |r| bytes(r, kb_base).map(Some))?;
            Ok(())
        },
    ),
    opt("rate_iops", &[], "N[,N]", "The most I/Os a second, of reads and of writes.", |j, v| {
        let kb_base = j.kb_base;
        j.rate_iops = pair(v, &[None, None], |r| bytes(r, kb_base).map(Some))?;
        Ok(())
    }),
    opt("rate_iops_min", &[], "N[,N]", "Fail when there are fewer I/Os a second.", |j, v| {
        let kb_base = j.kb_base;
        j.rate_iops_min = pair(v, &[None, None], |r| bytes(r, kb_base).map(Some))?;
        Ok(())
    }),
    opt(
        "rate_cycle",
        &["ratecycle"],
        "TIME",
        "Over how long rate_min and rate_iops_min average; in milliseconds without a unit.",
        |j, v| {
            j.rate_cycle_us = time_us(v, 1_000)?.max(1_000);
            Ok(())
        },
    ),
    opt(
        "rate_process",
        &[],
        "linear|poisson",
        "Whether limited I/Os come evenly or at random.",
        |j, v| {
            j.rate_poisson = choice(v, &[("linear", false), ("poisson", true)])?;
            Ok(())
        },
    ),
    opt(
        "thinktime",
        &[],
        "TIME",
        "Pause so long after thinktime_blocks blocks, in microseconds without \
         a unit; with rw=samples: computing emulated after each batch.",
        |j, v| {
            j.thinktime_us = time_us(v, 1)?;
            Ok(())
        },
    ),
    opt(
        "thinktime_spin",
        &[],
        "TIME",
        "Spend so much of a pause computing rather than sleeping.",
        |j, v| {
            j.thinktime_spin_us = time_us(v, 1)?;
            Ok(())
        },
    ),
    opt("thinktime_blocks", &[], "N", "Blocks between two pauses.", |j, v| {
        j.thinktime_blocks = within(v, 1, u64::MAX)?;
        Ok(())
    }),
    opt(
        "max_latency",
        &[],
        "TIME",
        "Fail when one I/O takes longer; in microseconds without a unit.",
        |j, v| {
            j.max_latency_us = time_us(v, 1)?;
            Ok(())
        },
    ),
    opt(
        "latency_target",
        &[],
        "TIME",
        "Find the largest depth at which latency_percentile of the I/Os take at most so long.",
        |j, v| {
            j.latency_target_us = time_us(v, 1)?;
            Ok(())
        },
    ),
    opt("latency_window", &[], "TIME", "How long each depth is tried.", |j, v| {
        j.latency_window_us = time_us(v, 1)?;
        Ok(())
    }),
    opt(
        "latency_percentile",
        &[],
        "PERCENT",
        "Share of the I/Os that must meet the target.",
        |j, v| {
            j.latency_percentile = float(v)?;
            Ok(())
        },
    ),
    opt(
        "latency_run",
        &[],
        "BOOL",
        "Go on at the depth that was found, until the runtime is over.",
        |j, v| {
            j.latency_run = boolean(v)?;
            Ok(())
        },
    ),
];

fn set_rw(job: &mut Job, text: &str) -> Result<(), String> {
    let (name, step) = text.split_once(':').unwrap_or((text, ""));
    let pattern = |reads, writes, random| Pattern { reads, writes, random, samples: false };
    job.pattern = match name {
        "read" => pattern(true, false, false),
        "write" => pattern(false, true, false),
        "randread" => pattern(true, false, true),
        "randwrite" => pattern(false, true, true),
        "rw" | "readwrite" => pattern(true, true, false),
        "randrw" => pattern(true, true, true),
        "samples" => Pattern { samples: true, ..pattern(true, false, false) },
        "trim" | "randtrim" | "trimwrite" | "randtrimwrite" => {
            return Err("trimming is not offered".to_owned());
        }
        _ => return Err("no pattern of that name".to_owned()),
    };
    job.rw = name.to_owned();
    job.rw_step = if step.is_empty() { 0 } else { bytes(step, job.kb_base)? };
    Ok(())
}

fn block_size(text: &str, kb_base: u64) -> Result<u64, String> {
    let size = bytes(text, kb_base)?;
    check_block(size)?;
    Ok(size)
}

fn check_block(size: u64) -> Result<(), String> {
    match (1..=MAX_BLOCK_BYTES).contains(&size) {
        true => Ok(()),
        false => Err(format!("a block has 1 to {MAX_BLOCK_BYTES} bytes")),
    }
}

fn distribution(text: &str, kb_base: u64) -> Result<Distribution, String> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let parameter = |default: f64| -> Result<(f64, Option<f64>), String> {
        if rest.is_empty() {
            return Ok((default, None));
        }
        let (value, center) = match rest.split_once('/') {
            Some((value, center)) => (value, Some(float(center)?)),
            None => (rest, None),
        };
        if center.is_some_and(|c| !(0.0..=1.0).contains(&c)) {
            return Err("a center lies within 0 to 1".to_owned());
        }
        Ok((float(value)?, center))
    };
    match name {
        "random" => Ok(Distribution::Uniform),
        "zipf" => match parameter(1.1)? {
            (theta, _) if theta <= 0.0 => Err("theta is above 0".to_owned()),
            (theta, center) => Ok(Distribution::Zipf(theta, center)),
        },
        "pareto" => match parameter(0.2)? {
            (h, _) if h <= 0.0 || h >= 1.0 => Err("h lies between 0 and 1".to_owned()),
            (h, center) => Ok(Distribution::Pareto(h, center)),
        },
        "normal" => match parameter(10.0)? {
            (deviation, _) if !(0.0..=100.0).contains(&deviation) || deviation == 0.0 => {
                Err("a deviation is above 0 and at most 100 percent".to_owned())
            }
            (deviation, center) => Ok(Distribution::Normal(deviation, center)),
        },
        "zoned" => {
            let mut zones = Vec::new();
            for (access, part) in rest.split(':').map(zone) {
                zones.push((within(access?, 0, 100)? as u32, within(part, 0, 100)? as u32));
            }
            let sums = zones.iter().fold((0, 0), |sum, z| (sum.0 + z.0, sum.1 + z.1));
            if sums != (100, 100) {
                return Err(format!("accesses add up to {}, sizes to {}, not 100", sums.0, sums.1));
            }
            Ok(Distribution::Zoned(zones))
        }
        "zoned_abs" => {
            let mut zones = Vec::new();
            for (access, part) in rest.split(':').map(zone) {
                zones.push((within(access?, 0, 100)? as u32, bytes(part, kb_base)?));
            }
            let sum: u32 = zones.iter().map(|z| z.0).sum();
            if sum != 100 {
                return Err(format!("accesses add up to {sum}, not 100"));
            }
            Ok(Distribution::ZonedAbs(zones))
        }
        _ => Err("no distribution of that name".to_owned()),
    }
}

fn zone(text: &str) -> (Result<&str, String>, &str) {
    match text.split_once('/') {
        Some((access, part)) => (Ok(access), part),
        None => (Err(format!("'{text}' is not ACCESS/SIZE")), ""),
    }
}

/// `"text"`, `0xHEX` (the bytes as written), or a number (its bytes, the lowest first).
pub(super) fn pattern(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    if let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return if inner.is_empty() { Err("no byte".to_owned()) } else { Ok(inner.into()) };
    }
    if let Some(hex) = text.strip_prefix("0x") {
        let hex = if hex.len() % 2 == 1 { format!("0{hex}") } else { hex.to_owned() };
        let byte = |at: usize| hex.get(at..at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
        let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
        return bytes.filter(|b| !b.is_empty()).ok_or_else(|| "no hexadecimal number".to_owned());
    }
    let number = integer(text)?;
    let used = 8 - (number.leading_zeros() / 8).min(7) as usize;
    Ok(number.to_le_bytes()[..used].to_vec())
}

/// What one buffer may be.
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

    #[test]
    fn distributions_are_read_with_their_numbers() {
        assert_eq!(distribution("zipf:1.2", 1024), Ok(Distribution::Zipf(1.2, None)));
        assert_eq!(distribution("pareto:0.2/0.5", 1024), Ok(Distribution::Pareto(0.2, Some(0.5))));
        assert_eq!(
            distribution("zoned:60/10:40/90", 1024),
            Ok(Distribution::Zoned(vec![(60, 10), (40, 90)]))
        );
        for wrong in ["zoned:60/10", "zipf:-1", "pareto:1", "normal:0", "zoned:60", "what"] {
            assert!(distribution(wrong, 1024).is_err(), "{wrong}");
        }
    }
}
