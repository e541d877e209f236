//! Sample workloads, and the connection to a target.

use super::super::value::{MAX_TIME_US, boolean, bytes, float, time_us, within};
use super::run::choice;
use super::{Opt, opt};

pub(super) const SAMPLES: &[Opt] = &[
    opt("order", &[], "KIND", "sequential, slot, global, grouped, local or partial.", |j, v| {
        let kinds = ["sequential", "slot", "global", "grouped", "local", "partial"];
        let names: Vec<(&str, &str)> = kinds.iter().map(|kind| (*kind, *kind)).collect();
        j.samples.order = choice(v, &names)?.to_owned();
        Ok(())
    }),
    opt("batch_size", &["batch"], "N", "Samples of a batch.", |j, v| {
        j.samples.batch_size = within(v, 1, 1 << 24)?;
        Ok(())
    }),
    opt("epochs", &[], "N", "Epochs to read; with time_based again and again.", |j, v| {
        j.samples.epochs = within(v, 1, u64::from(u32::MAX))?;
        Ok(())
    }),
    opt(
        "rank",
        &[],
        "N",
        "Which of the ranks this is; equal jobs (numjobs) count on from it.",
        |j, v| {
            j.samples.rank = within(v, 0, u64::from(u32::MAX) - 1)? as u32;
            Ok(())
        },
    ),
    opt("world_size", &[], "N", "How many ranks share each epoch.", |j, v| {
        j.samples.world_size = within(v, 1, u64::from(u32::MAX))? as u32;
        Ok(())
    }),
    opt("lanes", &[], "N", "grouped: lanes that take turns.", |j, v| {
        j.samples.lanes = within(v, 1, 65_536)? as u32;
        Ok(())
    }),
    opt("group", &[], "N", "grouped: chunks whose samples are shuffled together.", |j, v| {
        j.samples.group = within(v, 1, u64::from(u32::MAX))? as u32;
        Ok(())
    }),
    opt(
        "exchange",
        &[],
        "PART",
        "partial: part of a share that moves on each epoch, 0 to 1.",
        |j, v| {
            j.samples.exchange = float(v)?;
            Ok(())
        },
    ),
    opt(
        "prefetch_window",
        &["window"],
        "SIZE",
        "The most memory for samples read ahead.",
        |j, v| {
            j.samples.window = bytes(v, j.kb_base)?.max(1);
            Ok(())
        },
    ),
    opt(
        "batching",
        &[],
        "none|sample|chunk",
        "How samples are fetched; chunk for grouped and slot, else sample.",
        |j, v| {
            let kinds = [("none", "none"), ("sample", "sample"), ("chunk", "chunk")];
            j.samples.batching = choice(v, &kinds)?.to_owned();
            Ok(())
        },
    ),
    opt(
        "accelerator_time",
        &["compute_time"],
        "TIME",
        "Computing emulated after each batch, by sleeping; in microseconds without a unit. thinktime says the same.",
        |j, v| {
            j.samples.accelerator_time_us = time_us(v, 1)?;
            Ok(())
        },
    ),
    opt(
        "drop_last",
        &[],
        "BOOL",
        "Leave out the end of an epoch that does not give each rank the same.",
        |j, v| {
            j.samples.drop_last = boolean(v)?;
            Ok(())
        },
    ),
];

pub(super) const CONNECTION: &[Opt] = &[
    opt("hdr_digest", &["hdr-digest"], "BOOL", "Protect PDU headers with CRC32C.", |j, v| {
        j.connection.hdr_digest = boolean(v)?;
        Ok(())
    }),
    opt("data_digest", &["data-digest"], "BOOL", "Protect PDU data with CRC32C.", |j, v| {
        j.connection.data_digest = boolean(v)?;
        Ok(())
    }),
    opt(
        "digest_enable",
        &[],
        "NONE|HEADER|DATA|BOTH",
        "Both of the above, as SPDK's fio plug-in writes it.",
        |j, v| {
            let kinds = [
                ("NONE", (false, false)),
                ("HEADER", (true, false)),
                ("DATA", (false, true)),
                ("BOTH", (true, true)),
            ];
            (j.connection.hdr_digest, j.connection.data_digest) = choice(v, &kinds)?;
            Ok(())
        },
    ),
    opt("hostnqn", &[], "NQN", "The host NQN to present.", |j, v| {
        j.connection.hostnqn = Some(v.to_owned());
        Ok(())
    }),
    opt(
        "queue_size",
        &["queue-size"],
        "N",
        "Entries of an I/O queue; iodepth must be below it. The next \
         power of two above iodepth, from 128, unless given.",
        |j, v| {
            j.connection.queue_size = Some(within(v, 2, 65_535)? as u16);
            Ok(())
        },
    ),
    opt(
        "ctrl_loss_tmo",
        &["ctrl-loss-tmo"],
        "SECONDS",
        "How long a lost target is waited for; 10 unless given.",
        |j, v| {
            j.connection.ctrl_loss_tmo_s = Some(within(v, 0, MAX_TIME_US / 1_000_000)?);
            Ok(())
        },
    ),
    opt(
        "io_timeout",
        &["io-timeout"],
        "SECONDS",
        "How long an I/O may go without progress before its connection is made anew.",
        |j, v| {
            j.connection.io_timeout_s = Some(within(v, 1, 86_400)?);
            Ok(())
        },
    ),
];
