//! `dlfs read`: reads epochs as a training job would, verifies every sample, and prints a report.
//!
//! Options come from the library (`src/options/`), `args.rs` and `job_args.rs`. `reading.rs` takes batches from the
//! loader, and measures. With `--shards --index PLACE`, `shards.rs` reads epochs over shards that were not imported.

mod shards;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use parking_lot::Mutex;
use serde_json::json;

use dlfs::Error;
use dlfs::cache::{Cache, CacheStats, TierOptions};
use dlfs::dataset::{Dataset, Image, Mixture, RunState, Share, TokenOptions};
use dlfs::directory::Directory;
use dlfs::options::{Load, Order, Peers, Read, Rows, Store, Tiers, Tokens};
use dlfs::order::State;
use dlfs::order::budget::Budget;
use dlfs::peers::{Launched, Meeting};
use dlfs::prefetch::{LoaderOptions, LoaderStats};
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::report::Stalls;
use dlfs::store::StoreOptions;
use dlfs::units::{Epoch, Generation};

use self::shards::{indexes_on_the_way, read_shards};
use crate::args::{
    ConnectionArgs, ImageArgs, MetricsArgs, PlacementArgs, WeightArgs, check_shard, engines, tiers,
    unweighted,
};
use crate::exit::{Failure, GRACE, GRACE_FOR_TIERS, Outcome, Stop, about_file, complain, usage};
use crate::job_args::{
    Joined, MixArgs, ReportArgs, RunFiles, Source, Sources, meeting, peer_line, restart, staging,
    store_line,
};
use crate::out::{self, Meter, Out, joined, known};
use crate::reading::{
    Batches, End, RowReader, RowsRead, RunReport, RunStats, Samples, check_complete, check_some,
    read_batches, samples_within, token_loader,
};

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
    /// image and the id (0: IMAGE, 1: the first --mix)
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
    if indexes_on_the_way(&args) {
        return read_shards(&args, setup, quiet);
    }
    let mut run = setup.open(&args)?;
    let total = run.owed()?;
    let delivered = run.deliver(&args, total, quiet)?;
    run.finish(&args, total, delivered)
}

/// The options of a run, checked before anything is opened.
struct Setup {
    options: LoaderOptions,
    rows: Option<TokenOptions>,
    meeting: Option<Meeting>,
    tiers: TierOptions,
    store: Option<StoreOptions>,
    state: StateFile,
    files: RunFiles,
    stop: Stop,
}

impl Setup {
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

    /// Opens the image, to be read through other nodes and this rank's store if there are any. Completes the options by
    /// what the image determines.
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
                let text =
                    "the state is in the first epoch over shards: go on with --shards and --index";
                return Err(Failure::Usage(text.to_owned()));
            }
            Some(RunState::Samples(state)) => Some(state),
            None => None,
        };
        if let Some(rows) = self.rows.as_ref().filter(|_| !args.mix.is_given()) {
            options = rows.run(image.directory(), options)?; // the other ranks compare it when they meet
        }
        restart(&args.store, &image, &mut options)?;
        self.options = options;
        match (self.meeting.take(), self.store.take()) {
            (None, None) => Ok((image, None)),
            (None, Some(store)) => Ok((image.with_store(store, &self.options, None)?, None)),
            (Some(meeting), store) => {
                let connect = args.connection.options(false)?;
                let (image, round) = Joined::join(meeting, image, connect, &self.options, store)?;
                Ok((image, Some(round)))
            }
        }
    }
}

/// A run whose images are open.
struct Run {
    dataset: Dataset,
    mixture: Option<Mixture>,
    rows: Option<RowReader>,
    options: LoaderOptions,
    joined: Option<Joined>,
    ids: Option<IdsFile>,
    state: StateFile,
    files: RunFiles,
    stop: Stop,
}

/// The batches that a run has delivered, to its end or up to an error.
struct Delivered {
    batches: Box<dyn Batches>,
    sources: Sources,
    report: RunReport,
    counted: LoaderStats,
    end: Result<End, Failure>,
}

impl Run {
    /// The number of samples that this rank is still to get.
    fn owed(&self) -> Result<u64, Failure> {
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

    /// Reads until the end, an error, a signal or the limit of `--stop-after`.
    fn deliver(&mut self, args: &ReadArgs, total: u64, quiet: bool) -> Result<Delivered, Failure> {
        let mut meter = Meter::new("reading", total, quiet);
        let mut stats = RunStats::start();
        let mut sources = args.mix.sources(&args.image.image);
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
        let counted = batches.loader().stats();
        let report = RunReport { stall_s: counted.stall_s, ..stats.finish() };
        Ok(Delivered { batches, sources, report, counted, end })
    }

    /// Leaves the other ranks, writes the files of the run, and prints its report.
    fn finish(
        &self,
        args: &ReadArgs,
        total: u64,
        delivered: Delivered,
    ) -> Result<Outcome, Failure> {
        let Delivered { batches, sources, report, counted, end } = delivered;
        self.joined.iter().for_each(|joined| joined.wait_for_end(self.dataset.image()));
        self.state.save()?; // also after an error, so that the run can resume there
        let written = self.files.write(batches.loader());
        if end.as_ref().is_ok_and(|end| *end == End::Complete) {
            check_complete(report.samples, total)?;
        } else if let Err(error) = &written {
            complain(&error.report()); // the run's own error ends the command
        }
        let end = end?;
        let only = std::slice::from_ref(&self.dataset);
        let datasets = self.mixture.as_ref().map_or(only, Mixture::datasets);
        print_report(args, datasets, &sources, batches.rows(), &report, &counted)?;
        match end {
            End::Complete => Ok(written.map(|()| Outcome::Done)?),
            End::Stopped => Ok(self.state.save_when_stopped()),
        }
    }
}

/// The state of the run, and its file. Clones share both.
#[derive(Clone)]
struct StateFile {
    file: Option<PathBuf>,
    state: Arc<Mutex<Option<RunState>>>,
}

impl StateFile {
    fn of(run: &RunArgs) -> StateFile {
        StateFile { file: run.state.clone(), state: Arc::default() }
    }

    fn set(&self, state: RunState) {
        *self.state.lock() = Some(state);
    }

    fn save(&self) -> Result<(), Error> {
        match (&self.file, &*self.state.lock()) {
            (Some(file), Some(state)) => state.save(file),
            _ => Ok(()),
        }
    }

    /// Saves the state of a run that was stopped; without a file for it, prints that --state would make the run
    /// resumable.
    fn save_when_stopped(&self) -> Outcome {
        if self.file.is_none() {
            eprintln!("dlfs: stopped; with --state FILE the run could be resumed");
            return Outcome::Incomplete;
        }
        match self.save() {
            Ok(()) => Outcome::Stopped,
            Err(error) => {
                complain(&error.report());
                Outcome::Incomplete
            }
        }
    }
}

impl ReadArgs {
    fn loader_options(&self, place: Option<(u32, u32)>) -> Result<LoaderOptions, Failure> {
        check_shard(&self.order, self.load.shard, self.peers.peers.is_some())?;
        let has_epoch = self.mix.is_given() || self.weights.are_given();
        if self.mix.epoch_size.is_some() && !has_epoch {
            let text = "--epoch-size goes with --mix or --weights only".to_owned();
            return Err(Failure::Usage(text));
        }
        if !self.weights.are_given() {
            unweighted(&self.order, 1)?;
        }
        let by_samples = self.load.batch_size.or(Some(MOST_SAMPLES as u32));
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

/// The ids of a run, one per line.
struct IdsFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl IdsFile {
    fn create(path: &Path) -> Result<IdsFile, Error> {
        let file = File::create(path).map_err(|error| about_file("cannot make", path, error))?;
        Ok(IdsFile { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    fn append(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut write = || {
            match batch.sources() {
                None => batch.ids().try_for_each(|id| writeln!(self.file, "{id}"))?,
                Some(sources) => (sources.iter().zip(batch.ids()))
                    .try_for_each(|(source, id)| writeln!(self.file, "{source} {id}"))?,
            }
            self.file.flush() // the file is never behind the state, however the process ends
        };
        write().map_err(|error| about_file("cannot write", &self.path, error))
    }
}

fn print_report(
    args: &ReadArgs,
    datasets: &[Dataset],
    sources: &Sources,
    rows: Option<RowsRead>,
    report: &RunReport,
    stats: &LoaderStats,
) -> Result<(), Failure> {
    let image = datasets[0].image(); // tiers, peers and stores do not go with a mixture
    let engine = engines(datasets.iter().map(Dataset::image));
    let mixed = args.mix.is_given().then_some(sources);
    let tiers = image.tiers().map(Cache::stats);
    let store = image.store().map(|store| store.stats());
    // The exchange of a store is not counted as reads through peers.
    let peers = image.peers().filter(|_| store.is_none()).map(dlfs::peers::Peers::stats);
    let mut out = Out::new();
    if args.run.json {
        let facts = json!({
            "stalls_s": stats.stalls,
            "commands": stats.read.commands,
            "read_bytes": stats.read.bytes,
            "engine": engine,
            "resident": stats.resident, // samples in the window at the end
            "pages": stats.pages,
            "loader": stats, // all counters, as in Python
        });
        let some = known(json!({
            "tiers": tiers,
            "peers": peers,
            "store": store,
            "places": image.places(), // with the same keys as in Python and C
            "sources": mixed.map(|sources| &sources.0),
            "rows": rows.map(|rows| rows.json(report.time())),
        }));
        out.json(&joined(&joined(report, facts), some))?;
        return out.flush();
    }
    print_rate(&mut out, report)?;
    let of_rows = rows.map(|rows| rows.line(report.time())).into_iter();
    let lines = of_rows.chain(mixed.iter().flat_map(|sources| sources.lines()));
    let mut lines = lines.chain(report.lines()).chain(stall_line(&stats.stalls));
    lines.try_for_each(|line| out.line(line))?;
    out.line(format!(
        "  commands   {}, {} read; engine {engine}",
        out::count(stats.read.commands),
        out::bytes(stats.read.bytes)
    ))?;
    if let Some(pages) = stats.pages {
        let resident = out::counted(stats.resident, "sample");
        out.line(format!("  window     {pages}; {resident} in it at the end"))?;
    }
    let lines = tiers.iter().flat_map(tier_lines).chain(peers.iter().map(peer_line));
    lines.chain(store.iter().map(store_line)).try_for_each(|line| out.line(line))?;
    let verified = verified(datasets, sources);
    out.line(format!("  order      CRC32C {:08x}; {verified}", report.order_crc32c))?;
    out.flush()
}

fn print_rate(out: &mut Out, report: &RunReport) -> Result<(), Failure> {
    let samples = out.bold(&out::counted(report.samples, "sample"));
    let line = format!(
        "{samples}, {}, in {}: {} samples/s, {}",
        out::bytes(report.bytes),
        out::duration(report.time()),
        out.bold(&out::count(report.samples_per_s as u64)),
        out.bold(&out::rate(report.bytes, report.time())),
    );
    out.line(line)
}

/// The causes with more than a hundredth of the stalls, the longest first; `None` without a stall.
fn stall_line(stalls: &Stalls) -> Option<String> {
    let least = stalls.total() / 100;
    let mut causes: Vec<_> = stalls.each().filter(|(_, waited)| *waited > least).collect();
    causes.sort_by_key(|(_, waited)| std::cmp::Reverse(*waited));
    let causes = causes
        .iter()
        .map(|(cause, waited)| format!("{} {:.2} s", cause.name(), waited.as_secs_f64()));
    let causes: Vec<String> = causes.collect();
    (!causes.is_empty()).then(|| format!("  stalls     {}", causes.join(", ")))
}

/// Describes the verification. A plain folder stores no checksums: the first read of a sample only learns its
/// checksum.
fn verified(datasets: &[Dataset], sources: &Sources) -> String {
    let mut is_learned = false;
    let mut learned = 0;
    let mut later = 0;
    for (dataset, Source { samples, .. }) in datasets.iter().zip(&sources.0) {
        let first = dataset.directory().learned().map(|learned| learned.count().min(*samples));
        is_learned |= first.is_some();
        learned += first.unwrap_or(0);
        later += samples - first.unwrap_or(0);
    }
    if !is_learned {
        return "every sample verified".to_owned();
    }
    let checksums = out::counted(learned, "checksum");
    let later = out::counted(later, "later read");
    format!("{checksums} learned at first read, {later} verified")
}

/// The contribution of each tier and of the origin.
fn tier_lines(stats: &CacheStats) -> Vec<String> {
    let mut lines = Vec::new();
    for tier in &stats.tiers {
        let mut line = format!(
            "  tier       {}: {} hits, {}, {:.0} us each; {} copied, {} of {} used",
            tier.name,
            out::count(tier.hits),
            out::bytes(tier.hit_bytes),
            1e6 * tier.hit_s / tier.hits.max(1) as f64,
            out::bytes(tier.fill_bytes),
            out::bytes(tier.used_bytes),
            out::bytes(tier.capacity_bytes)
        );
        for (count, what) in [
            (tier.restored, "reused"),
            (tier.left, "evicted"),
            (tier.damaged, "damaged and read again"),
        ] {
            if count > 0 {
                line.push_str(&format!(", {} {what}", out::count(count)));
            }
        }
        if tier.is_off {
            line.push_str(", switched off");
        }
        lines.push(line);
    }
    if let Some(died) = &stats.died {
        lines.push(format!("  tiers      copy nothing more: {died}"));
    }
    let origin = stats.origin;
    lines.push(format!(
        "  origin     {} reads, {}, {:.0} us each; and {} by copying",
        out::count(origin.reads),
        out::bytes(origin.bytes),
        1e6 * origin.read_s / origin.reads.max(1) as f64,
        out::bytes(origin.copier_bytes)
    ));
    lines
}

/// The default batch size.
fn default_batch(directory: &Directory) -> usize {
    let step = directory.num_samples() as usize / LENGTHS_LOOKED_AT;
    samples_within(directory, step, MOST_SAMPLES, MOST_BYTES)
}

/// The most samples of a batch by default, and about the most bytes of one.
const MOST_SAMPLES: usize = 256;
const MOST_BYTES: u64 = 256 << 20;
/// The default batch size follows from the lengths of this many samples, or up to twice as many.
const LENGTHS_LOOKED_AT: usize = 4096;
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
