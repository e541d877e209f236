//! `dlfs read`: reads epochs as a training job would, verifies every sample, and prints a report.
//!
//! This file checks the options, opens what they name, and drives the run; `reading.rs` takes the batches. `ranks.rs`
//! has the exchange with the other ranks of a job, `run_files.rs` the files that a run writes, and `report.rs` the
//! report. With `--shards --index PLACE`, `shards.rs` reads epochs over shards that were not imported, unless other
//! options need the index of all shards.

mod ranks;
mod report;
mod run_files;
mod shards;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use dlfs::Error;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Dataset, Image, Mixture, RunState, Share, TokenOptions};
use dlfs::directory::Directory;
use dlfs::options::{Load, Order, Peers, Read, Rows, Store, Tiers, Tokens};
use dlfs::order::State;
use dlfs::order::budget::Budget;
use dlfs::peers::{Launched, Meeting};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::ReaderOptions;
use dlfs::store::{Staged, StoreOptions};
use dlfs::units::{Epoch, Generation};

use self::ranks::{Joined, meeting};
use self::report::print_report;
use self::run_files::{IdsFile, ReportArgs, RunFiles, StateFile};
use self::shards::{builds_index_while_reading, read_shards};
use crate::args::{
    ConnectionArgs, ImageArgs, MetricsArgs, PlacementArgs, check_shard, tiers, unweighted,
};
use crate::exit::{Failure, GRACE, GRACE_FOR_TIERS, Outcome, Stop, complain, usage};
use crate::mix::MixArgs;
use crate::out::Meter;
use crate::reading::{
    Batches, End, RowReader, Samples, check_complete, check_some, read_batches, samples_within,
    token_loader,
};
use crate::run_stats::{RunReport, RunStats};
use crate::weights::WeightArgs;

/// Read epochs as a training job would, and report
///
/// Samples are shuffled, batched, read ahead and verified.
///
/// With --state FILE the run resumes from FILE, and stores its state there at the end. Every sample
/// of an epoch is delivered once, also with another --batch-size or --world-size.
///
/// With --mix the run reads several images as one sequence, in given proportions: a mixture. Options
/// that say something of one image do not go with it.
///
/// With --seq-len samples are documents, and a batch is --batch-size rows of their tokens.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("mix", |arg| arg.conflicts_with_all(OF_ONE_IMAGE.split_whitespace())))]
#[command(mut_arg("epochs", |arg| arg.default_value("1").help("The number of epochs to read")))]
#[command(mut_arg("restart_shares", |arg| arg.requires("state")))]
#[command(mut_arg("seq_len", |arg| arg.requires("batch_size").conflicts_with_all(OF_SAMPLES)))]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    order: Order,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    weights: WeightArgs,
    #[command(flatten)]
    tokens: Tokens,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    mix: MixArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    tiers: Tiers,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
struct RunArgs {
    /// Resume from the state in FILE if it exists, and store the state there at the end
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Stop with exit code 4 after the batch that reaches this many samples of this rank
    #[arg(long, value_name = "SAMPLES", requires = "state", value_parser = clap::value_parser!(u64).range(1..))]
    stop_after: Option<u64>,
    /// Write the ids to FILE, one per line, in the order of delivery; of a mixture, the number of the
    /// image and the id (0: IMAGE, 1: the first --mix). A file there is replaced, also by a run that resumes
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Write what the first epoch over --shards reads to IMAGE, and read later epochs from there
    ///
    /// IMAGE has a file or namespace for each rank, ADDRESS[,ADDRESS...], or files that ranks of a node share. It is
    /// committed when all ranks have read their shards. A run that was killed goes on from what is there; if IMAGE is
    /// complete, there is no first epoch.
    #[arg(long, value_name = "IMAGE", requires = "index")]
    import_to: Option<String>,
    /// Print the report as one line of JSON
    ///
    /// order_crc32c is the CRC32C (Castagnoli) of the delivered ids in their order, each as 8 bytes
    /// little-endian; of a mixture, of the image's number << 40 | id. stall_s is the time spent
    /// waiting for batches, stalls_s the same by cause, batch_us its distribution.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: ReadArgs, quiet: bool) -> Result<Outcome, Failure> {
    let setup = Setup::of(&args)?;
    let _metrics = args.metrics.serve()?;
    if builds_index_while_reading(&args) {
        return read_shards(&args, setup, quiet);
    }
    setup.open(&args)?.carry_out(&args, quiet)
}

/// The options of a run, checked before anything is opened.
struct Setup {
    options: LoaderOptions,
    /// `None`: batches are samples, not rows of tokens.
    rows: Option<TokenOptions>,
    /// The meeting with the other ranks, with `--peers`.
    meeting: Option<Meeting>,
    tiers: TierOptions,
    /// `None` without `--store`.
    store: Option<StoreOptions>,
    state: StateFile,
    files: RunFiles,
    stop: Stop,
}

impl Setup {
    /// Checks the options, and makes signals stop the run.
    fn of(args: &ReadArgs) -> Result<Setup, Failure> {
        let place = args.place()?;
        let meeting = meeting(&args.peers, place)?;
        let place = meeting.as_ref().map(|meeting| (meeting.rank, meeting.world_size)).or(place);
        let mut options = args.loader_options(place)?;
        let rows = args.rows.options(args.load.batch_size).map_err(usage)?;
        let state = StateFile::of(&args.run);
        let files = args.report.files()?;
        options.trace = files.trace();
        let last_resort = (state.clone(), files.clone());
        let tiers = tiers(&args.tiers, args.peers.node.clone())?;
        let store = args.store.options().map_err(usage)?;
        let grace = if tiers.tiers.is_empty() { GRACE } else { GRACE_FOR_TIERS };
        let stop = Stop::on_signals(grace, move || {
            let (state, files) = last_resort;
            files.write_events();
            state.save_when_stopped()
        })?;
        Ok(Setup { options, rows, meeting, tiers, store, state, files, stop })
    }

    /// Opens the image, joins the other ranks, and opens the images of a mixture.
    fn open(mut self, args: &ReadArgs) -> Result<Run, Failure> {
        if args.run.import_to.is_some() {
            let text =
                "--import-to goes with none of the options that need the index of all shards";
            return Err(Failure::Usage(text.to_owned()));
        }
        let (image, joined) = self.open_image(args)?;
        let Setup { mut options, rows, state, files, stop, .. } = self;
        let ids = args.run.ids.as_deref().map(IdsFile::create).transpose()?;
        let dataset = Dataset::from_image(image, ReaderOptions::default());
        let mixture = args.mix.mixture(&dataset, &args.connection)?;
        let rows = rows.map(|rows| token_loader(&dataset, mixture.as_ref(), rows, options.clone()));
        let rows = rows.transpose()?.map(RowReader::new);
        if let Some(rows) = &rows {
            options = rows.loader().options().clone(); // with the lengths of rows, which decide the share
        }
        Ok(Run { dataset, mixture, rows, options, joined, ids, state, files, stop })
    }

    /// Opens the image, and joins the other ranks or opens this rank's store if the options say so. Completes the
    /// loader options that depend on the image.
    fn open_image(&mut self, args: &ReadArgs) -> Result<(Image, Option<Joined>), Failure> {
        let tiers = std::mem::take(&mut self.tiers);
        let image = args.image.open_with_tiers(&args.connection, tiers)?;
        let mut options = std::mem::take(&mut self.options);
        if args.load.batch_size.is_none() {
            options.batch_size = default_batch(image.directory());
        }
        options = args.weights.weigh(options, args.mix.epoch_size, image.directory())?;
        options.resume = match args.run.resume_state()? {
            Some(RunState::Lanes(_)) => {
                let text = "the state is in the first epoch over shards: go on with --shards and --index, \
                            without options that need the index of all shards";
                return Err(Failure::Usage(text.to_owned()));
            }
            Some(RunState::Samples(state)) => Some(state),
            None => None,
        };
        if let Some(rows) = self.rows.as_ref().filter(|_| !args.mix.is_given()) {
            options = rows.run(image.directory(), options)?; // the other ranks compare it when they meet
        }
        if let (true, Some(state)) = (args.store.restart_shares, &options.resume) {
            let len = image.directory().num_live();
            options.resume = Some(state.begun_anew(&options.order, len)?);
        }
        self.options = options;
        match (self.meeting.take(), self.store.take()) {
            (None, None) => Ok((image, None)),
            (None, Some(store)) => Ok((image.with_store(store, &self.options, None)?, None)),
            (Some(meeting), store) => {
                let connect = args.connection.options(false)?;
                let (image, joined) = Joined::join(meeting, image, connect, &self.options, store)?;
                Ok((image, Some(joined)))
            }
        }
    }
}

/// A run whose images are open.
struct Run {
    dataset: Dataset,
    /// The mixture of that data set with others, with `--mix`.
    mixture: Option<Mixture>,
    /// The reader of rows of tokens, until the run takes it.
    rows: Option<RowReader>,
    options: LoaderOptions,
    /// The membership in the job, with `--peers`.
    joined: Option<Joined>,
    ids: Option<IdsFile>,
    state: StateFile,
    files: RunFiles,
    stop: Stop,
}

impl Run {
    /// The number of samples that the run will deliver to this rank.
    ///
    /// # Errors
    /// `Usage`: a new run would deliver none to this rank. `NotFound`: the data set is empty.
    fn num_samples(&self) -> Result<u64, Failure> {
        let share = match &self.mixture {
            Some(mixture) => mixture.share(&self.options)?,
            None => Share::new(&self.dataset, &self.options)?,
        };
        let total = samples_to_read(&share, &self.options);
        // A resumed run may be complete and read nothing, but a new run must have samples.
        if total == 0 && self.options.resume.is_none() {
            check_some(self.dataset.directory())?;
            let rank = self.options.rank;
            let world_size = self.options.world_size;
            let text = format!("rank {rank} of {world_size} has no sample to read in any epoch");
            return Err(Failure::Usage(format!(
                "{text}: --drop-last leaves them out, or ranks are too many"
            )));
        }
        Ok(total)
    }

    /// Reads until the end, an error, a signal or the limit of `--stop-after`. Then leaves the other ranks, writes the
    /// files of the run, and prints its report.
    fn carry_out(mut self, args: &ReadArgs, quiet: bool) -> Result<Outcome, Failure> {
        let total = self.num_samples()?;
        let mut meter = Meter::new("reading", total, quiet);
        let mut stats = RunStats::start();
        let mut sources = args.mix.source_counts(&args.image.image);
        let options = self.options.clone();
        let mut batches: Box<dyn Batches> = match (self.rows.take(), &self.mixture) {
            (Some(rows), _) => Box::new(rows),
            (None, Some(mixture)) => Box::new(Samples::of(mixture.loader(options)?)),
            (None, None) => Box::new(Samples::of(self.dataset.loader(options)?)),
        };
        self.state.set(RunState::Samples(batches.loader().state()));
        self.state.save()?; // reports an unwritable file before the work starts
        batches.loader().stage(&mut (), staging(quiet))?;
        let limit = args.run.stop_after.unwrap_or(u64::MAX);
        let end = read_batches(&mut *batches, &mut stats, &mut meter, |stats, batch, loader| {
            self.ids.iter_mut().try_for_each(|ids| ids.append(batch))?;
            sources.count(batch);
            self.state.set(RunState::Samples(loader.state()));
            Ok(!self.stop.is_set() && stats.so_far().0 < limit)
        });
        drop(meter);
        let loader_stats = batches.loader().stats();
        let report = RunReport { stall_s: loader_stats.stall_s, ..stats.finish() };

        self.joined.iter().for_each(|joined| joined.wait_for_end(self.dataset.image()));
        let saved = self.state.save(); // also after an error, so that the run can resume there
        if let (Err(_), Err(error)) = (&end, &saved) {
            complain(&error.report());
        }
        let written = self.files.write(batches.loader());
        if end.as_ref().is_ok_and(|end| *end == End::Complete) {
            check_complete(report.samples, total)?;
        } else if let Err(error) = &written {
            complain(&error.report()); // the run's own error, or its stop, decides the exit code
        }
        let end = end?;
        saved?;
        let only = std::slice::from_ref(&self.dataset);
        let datasets = self.mixture.as_ref().map_or(only, Mixture::datasets);
        print_report(args, datasets, &sources, batches.rows(), &report, &loader_stats)?;
        match end {
            End::Complete => Ok(written.map(|()| Outcome::Done)?),
            End::Stopped => Ok(self.state.save_when_stopped()),
        }
    }
}

impl ReadArgs {
    /// The options of the loader, before the image is open. `place` is the rank and the world size; `None`: 0 of 1.
    fn loader_options(&self, place: Option<(u32, u32)>) -> Result<LoaderOptions, Failure> {
        check_shard(&self.order, self.load.shard, self.peers.peers.is_some())?;
        if self.mix.epoch_size.is_some() && !self.mix.is_given() && !self.weights.are_given() {
            let text = "--epoch-size goes with --mix or --weights only".to_owned();
            return Err(Failure::Usage(text));
        }
        if !self.weights.are_given() {
            unweighted(&self.order, 1)?;
        }
        let by_samples = self.load.batch_size.or(Some(MAX_DEFAULT_SAMPLES as u32));
        let batch_size = by_samples.filter(|_| self.tokens.batch_tokens.is_none());
        let (rank, world_size) =
            place.map_or((None, None), |(rank, size)| (Some(rank), Some(size)));
        let load = Load { batch_size, rank, world_size, ..self.load.clone() };
        let read = Read { busy_poll: self.placement.busy_poll, ..self.read.clone() };
        let options = load.options(&self.order, &self.tokens, &read, None).map_err(usage)?;
        Ok(LoaderOptions { cpus: self.placement.cpus()?, ..options })
    }

    /// Rank and world size from the command line, or else from the launcher.
    fn place(&self) -> Result<Option<(u32, u32)>, Error> {
        if let Some(place) = self.load.place() {
            return Ok(Some(place));
        }
        Ok(Launched::from_env()?.map(|launched| (launched.rank, launched.world_size)))
    }
}

impl RunArgs {
    /// The state in the file of `--state`, if it exists.
    fn resume_state(&self) -> Result<Option<RunState>, Error> {
        self.state.as_deref().map_or(Ok(None), RunState::load)
    }
}

/// Returns a callback that shows the progress of staging the rank's share, and never stops it.
fn staging(quiet: bool) -> impl FnMut(Staged) -> bool {
    let mut meter = None;
    move |Staged { samples, done, bytes, .. }| {
        let shown = meter.get_or_insert_with(|| Meter::new("storing", samples, quiet));
        shown.update(done, bytes);
        if done == samples {
            meter = None;
        }
        true
    }
}

/// The number of samples that the run will deliver to this rank.
fn samples_to_read(share: &Share, options: &LoaderOptions) -> u64 {
    let start = options.resume.clone().unwrap_or_else(|| {
        // The counts depend only on the order, so any image and generation will do.
        State::start([0; 16], Generation(0), options.order.started(options.world_size))
    });
    let first = start.epoch.0;
    let Some(epochs_after) = options.epochs.end.checked_sub(first + 1) else { return 0 };
    let whole = |epoch| {
        let mut start = start.clone();
        start.move_to((Epoch(epoch), 0), None);
        share.samples_after(&start)
    };
    let varies = |budget: &Arc<Budget>| budget.rows.is_some() || options.world_size > 1;
    let later = if options.budget.as_ref().is_some_and(varies) {
        (first + 1..options.epochs.end).map(whole).sum() // other epochs have other batches
    } else {
        epochs_after.saturating_mul(whole(first))
    };
    share.samples_after(&start).saturating_add(later)
}

/// The default batch size: as many samples as the limits below allow for the lengths of samples.
fn default_batch(directory: &Directory) -> usize {
    let step = directory.num_samples() as usize / SAMPLED_LENGTHS;
    samples_within(directory, step, MAX_DEFAULT_SAMPLES, MAX_DEFAULT_BYTES)
}

/// The most samples of a batch by default.
const MAX_DEFAULT_SAMPLES: usize = 256;
/// About the most bytes of a batch by default.
const MAX_DEFAULT_BYTES: u64 = 256 << 20;
/// The default batch size follows from the lengths of this many samples, or up to twice as many.
const SAMPLED_LENGTHS: usize = 4096;
/// Options of batches of samples.
const OF_SAMPLES: [&str; 4] = ["batch_tokens", "drop_last", "pad", "contiguous"];
/// Options that apply to one image only.
const OF_ONE_IMAGE: &str = "
    weights snapshot view tiers tiers_file policy copy_bandwidth stop_at_first_failure peers store
    restart_shares paths";
const EXAMPLES: &str = "\
Examples:
  dlfs read train.dlfs --batch-size 256 --epochs 2 --seed 7 --order global
  dlfs read nvme-tcp://node1/nqn.2026-11.io.dlfs:train --order grouped --rank 3 --world-size 8
  dlfs read train.dlfs --tier ram:4G --tier file:/fast/cache:20G --policy clairvoyant --epochs 5
  dlfs read web.dlfs --part 0.7 --mix code.dlfs=0.2 --mix books.dlfs=0.1 --epoch-size 1000000
  torchrun --no-python dlfs read train.dlfs --tier ram:20G --peers auto --shard local
  torchrun --no-python dlfs read train.dlfs --order partial --exchange 0.3 --store file:/nvme:200G --peers auto
  dlfs read text.dlfs --batch-tokens 16384 --token-bytes 2 --max-batch 64
  dlfs read text.dlfs --seq-len 2048 --batch-size 8 --pack best_fit --separator 50256
  dlfs read train.dlfs --state run.json --stop-after 10000    # exit code 4; once more goes on";
