//! `dlfs read --shards --index PLACE`: epochs over shards that were not imported. The first epoch makes the indexes of
//! shards that have none; with `--import-to` it also fills an image, which later epochs read.

use std::time::Instant;

use serde_json::json;

use dlfs::Error;
use dlfs::dataset::{Options, ShardLoader};
use dlfs::reader::Batch;
use dlfs::shards::image_to_fill;

use super::report::print_rate;
use super::run_files::IdsFile;
use super::{ReadArgs, Setup};
use crate::exit::{Failure, Outcome, complain, usage};
use crate::out::{Meter, Out, joined};
use crate::reading::{End, keys};
use crate::run_stats::{RunReport, RunStats};

/// Returns whether the run takes its batches from a [`ShardLoader`], whose first epoch makes missing indexes as it
/// reads. With options that need all indexes, the run makes them first instead, like other commands.
pub(super) fn builds_index_while_reading(args: &ReadArgs) -> bool {
    let needs_all = args.mix.is_given()
        || args.weights.are_given()
        || args.rows.seq_len.is_some()
        || args.tokens.batch_tokens.is_some()
        || args.peers.peers.is_some()
        || args.store.store.is_some()
        || args.image.has_view() && args.run.import_to.is_none()
        || args.report.is_given();
    args.image.keeps_index() && !needs_all
}

pub(super) fn read_shards(args: &ReadArgs, setup: Setup, quiet: bool) -> Result<Outcome, Failure> {
    let Setup { options, tiers, state, stop, .. } = setup;
    let resume = args.run.resume_state()?;
    let mut open = args.image.options(&args.connection, tiers)?;
    if let (Some(shards), Some(image)) = (&mut open.shards, &args.run.import_to) {
        shards.import_to = image_to_fill(image).map_err(usage)?;
    }
    let open = Options { open, ..Options::default() };
    let addresses = &args.image.image.0;
    let mut loader = ShardLoader::open(addresses, &open, options, resume.as_ref(), &mut ())?;
    let mut ids = args.run.ids.as_deref().map(IdsFile::create).transpose()?;
    state.set(loader.state());
    state.save()?; // reports an unwritable file before the work starts
    let mut meter = Meter::new("reading", 0, quiet); // the number of samples is not known
    let mut stats = RunStats::start();
    let limit = args.run.stop_after.unwrap_or(u64::MAX);
    let mut read = || -> Result<End, Error> {
        let mut batch = Batch::new();
        loop {
            let asked = Instant::now();
            if loader.next_into(&mut batch, &mut ())? {
                stats.batch(keys(&batch), batch.len_bytes(), asked.elapsed());
                ids.iter_mut().try_for_each(|ids| ids.append(&batch))?;
                state.set(loader.state());
                let (samples, bytes) = stats.so_far();
                meter.update(samples, bytes);
                if stop.is_set() || samples >= limit {
                    return Ok(End::Stopped);
                }
            } else if loader.epoch() >= loader.options().epochs.end {
                return Ok(End::Complete);
            }
        }
    };
    let end = read();
    drop(meter);
    let saved = state.save(); // also after an error, so that the run can resume there
    if let (Err(_), Err(error)) = (&end, &saved) {
        complain(&error.report()); // the run's own error decides the exit code
    }
    let end = end?;
    saved?;
    print_shards(args, &loader, &stats.finish())?;
    match end {
        End::Complete => Ok(Outcome::Done),
        End::Stopped => Ok(state.save_when_stopped()),
    }
}

fn print_shards(args: &ReadArgs, loader: &ShardLoader, report: &RunReport) -> Result<(), Failure> {
    let shards = loader.shards().shards().len();
    let facts = json!({"shards": shards, "indexed": loader.dataset().is_some()});
    let printed = Out::answer(args.run.json, &joined(report, facts), |out| {
        print_rate(out, report)?;
        report.lines().iter().try_for_each(|line| out.line(line))?;
        out.line(format!("  order      CRC32C {:08x}; {shards} shards", report.order_crc32c))
    });
    printed.map(drop)
}
