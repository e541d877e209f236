//! `dlfs shuffle-report` reports how random an order is, compared with chance, from the directory alone. A report about
//! the first epoch over shards also reads shards whose index is missing.
//!
//! The observers of `src/order/order/report/` compute the figures; this file gives them the ids in their order.

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use dlfs::cache::TierOptions;
use dlfs::dataset::{Dataset, FirstEpoch, Mixture, Sampler, shard_set};
use dlfs::directory::Directory;
use dlfs::options::{Choice, Order, Tokens};
use dlfs::order::budget::Cost;
use dlfs::order::report::{
    BudgetObserver, BudgetReport, MixtureObserver, Observed, Observer, RankObserver, RankReport,
    padded_of,
};
use dlfs::order::{Aligner, EpochOrder, OrderSpec, Positions, Shard, Sharding, Tail, mixture};
use dlfs::prefetch::{LoaderOptions, TokenLengths};
use dlfs::units::Epoch;

use crate::args::{ConnectionArgs, ImageArgs, check_shard, unweighted};
use crate::exit::{Failure, Outcome, usage};
use crate::mix::MixArgs;
use crate::out::{self, Out, joined, known};

/// Report how random an order is, compared with chance
///
/// Prints displacement, batch composition and class runs of one epoch, each with its deviation from
/// chance, and a verdict.
///
/// Only the directory is read. A batch here is a global batch, of all ranks together; with
/// --world-size, separate rows describe what each rank reads. Deviations within 3 are as random as
/// chance.
///
/// With --mix it reports what an epoch of the mixture has of each image, how many different samples those
/// are, and how far the global batches are from their shares: the farthest, the spread, and the spread that
/// chance would have. Ranks have no rows of their own then.
///
/// With --batch-tokens it reports how full the batches by tokens are instead: the part of them that is
/// padding, beside that of batches of as many samples without length buckets.
#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES, mut_arg("mix", |arg| arg.conflicts_with_all(OF_ONE_IMAGE)))]
#[command(mut_arg("epoch_size", |arg| arg.requires("mix")))]
pub(crate) struct ShuffleReportArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    mix: MixArgs,
    #[command(flatten)]
    order: Order,
    #[command(flatten)]
    tokens: Tokens,
    /// Samples per global batch
    #[arg(conflicts_with = "batch_tokens")]
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: u64,
    /// The epoch, from 0
    #[arg(long, value_name = "E", default_value_t = 0)]
    epoch: u64,
    /// The number of ranks that share the epoch
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    world_size: u32,
    /// How the ranks share each global batch
    #[arg(long, default_value_t)]
    shard: Choice<Sharding>,
    /// Report the first epoch over shards, which makes their index, instead of the order; each shard counts as a chunk
    #[arg(long, requires = "index", conflicts_with_all = ["mix", "batch_tokens", "shard", "view"])]
    first_epoch: bool,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: ShuffleReportArgs) -> Result<Outcome, Failure> {
    let spec = unweighted(&args.order, args.world_size)?.started(args.world_size);
    if args.shard.0 == Sharding::Local {
        let text =
            "--shard local follows the holders of a running job, which a report does not have";
        return Err(Failure::Usage(text.to_owned()));
    }
    check_shard(&args.order, args.shard, false)?;
    if args.first_epoch {
        return report_first_epoch(&args, &spec);
    }
    let budget = args.tokens.budget().map_err(usage)?;
    let dataset = args.image.open_dataset(&args.connection)?;
    if args.mix.is_given() {
        let mixture = args.mix.mixture(&dataset, &args.connection)?;
        let mixture = mixture.expect("there is something to mix");
        if budget.is_none() {
            return report_mixture(&args, &spec, &mixture);
        }
        let start = |options| mixture.sampler(options);
        return report_budget(&args, &spec, mixture.datasets(), &start);
    }
    if budget.is_some() {
        let start = |options| Sampler::new(&dataset, options);
        return report_budget(&args, &spec, std::slice::from_ref(&dataset), &start);
    }
    report_order(&args, &spec, dataset.directory())
}

/// Reports an epoch of an order over all samples of an image, and each rank's share of it.
fn report_order(
    args: &ShuffleReportArgs,
    spec: &OrderSpec,
    directory: &Directory,
) -> Result<Outcome, Failure> {
    let mut order = EpochOrder::new(spec, Epoch(args.epoch), directory)?;
    let mut observer = Observer::new(args.batch_size);
    let mut positions = Positions::new(0, 1, order.len());
    let mut ids = Vec::new();
    while positions.remaining() > 0 {
        ids.clear();
        order.ids(directory, positions.split_front(STEP), &mut ids);
        for &id in &ids {
            let rank = directory.rank_of(id); // among live samples
            let label = directory.label(id);
            let chunk = directory.chunk_of(id).expect("an order gives only ids of its directory");
            observer.see(Observed { rank, chunk, label });
        }
    }
    let mut report = observer.finish();
    let rank_batch = (args.batch_size / u64::from(args.world_size)).max(1);
    report.ranks = observe_ranks(args, rank_batch, &mut order, directory)?;
    let reads = order.reads(args.shard.0, args.world_size, rank_batch);
    let chunk_reads = reads.filter(|_| args.world_size > 1).map(|reads| reads.by_chunk(1.0));
    let more = json!({"verdict": report.verdict(), "chunk_reads": chunk_reads}); // by all ranks together
    let by_chunk = chunk_reads.map_or_else(String::new, |times| {
        let ranks = args.world_size;
        format!("read by chunk, {ranks} ranks together read {times:.2} times the data\n")
    });
    print_report(args, spec, &report, known(more), &format!("{report}{by_chunk}"))
}

/// Reports the first epoch over shards. This makes missing indexes of shards.
fn report_first_epoch(args: &ShuffleReportArgs, spec: &OrderSpec) -> Result<Outcome, Failure> {
    let open = args.image.options(&args.connection, TierOptions::default())?;
    let shards = open.shards.unwrap_or_default();
    let set = shard_set(&args.image.image.0, &shards, &open.connect, &mut ())?;
    let indexes = set.index(&mut ())?.indexes;
    let mut next = 0;
    let firsts = indexes.iter().map(|index| {
        next += index.len() as u64;
        next - index.len() as u64
    });
    let firsts: Vec<u64> = firsts.collect();
    let world_size = args.world_size;
    let options = LoaderOptions { world_size, ..LoaderOptions::new(*spec, 1, 1) };
    let lanes = FirstEpoch::order(&set, &options, Epoch(args.epoch));
    let mut observer = Observer::new(args.batch_size);
    let rank_batch = (args.batch_size / u64::from(world_size)).max(1);
    let lens_of = |shard: u64| indexes[shard as usize].lens_bytes();
    lanes.visit((indexes.len() as u64, &lens_of), (world_size, rank_batch), |shard, sample| {
        let rank = firsts[shard as usize] + sample; // among the samples of all shards
        let label = indexes[shard as usize].label(sample as usize);
        observer.see(Observed { rank, chunk: shard as u32, label });
    })?;
    let report = observer.finish();
    let more = json!({"verdict": report.verdict(), "lanes": lanes});
    print_report(args, spec, &report, more, &report.to_string())
}

/// Reports an epoch of `mixture`, whose sources are read in the order `spec`.
fn report_mixture(
    args: &ShuffleReportArgs,
    spec: &OrderSpec,
    mixture: &Mixture,
) -> Result<Outcome, Failure> {
    let batch = usize::try_from(args.batch_size).unwrap_or(usize::MAX);
    let mut options = LoaderOptions::new(*spec, batch, 1);
    options.epochs = args.epoch..args.epoch.saturating_add(1);
    let sequence = mixture::Mixture::new(&mixture.spec(&options))?;
    let counts = sequence.counts(Epoch(args.epoch));
    let names = args.mix.images(&args.image.image).map(|image| {
        if args.json { image.to_string() } else { out::safe_text(&image.in_short()).to_string() }
    });
    let samples = mixture.datasets().iter().map(Dataset::len);
    let sources = names.zip(samples).zip(counts);
    let sources = sources.map(|((name, samples), count)| (name, samples, count));
    let mut observer = MixtureObserver::new(args.batch_size, sources);
    let first = args.epoch.saturating_mul(sequence.epoch_size());
    let mut sampler = mixture.sampler(options)?;
    let mut ids = Vec::new();
    while sampler.next(&mut ids)?.is_some() {
        for (&source, &id) in sampler.sources().iter().zip(&ids) {
            observer.see(source, id.0, |before| {
                sequence.shares(first.saturating_add(before), args.batch_size)
            });
        }
    }
    let report = observer.finish();
    print_report(args, spec, &report, json!({"verdict": report.verdict()}), &report.to_string())
}

/// Reports how full the batches by tokens of an epoch are. `start` begins a run with the given options over `datasets`.
fn report_budget(
    args: &ShuffleReportArgs,
    spec: &OrderSpec,
    datasets: &[Dataset],
    start: &dyn Fn(LoaderOptions) -> dlfs::Result<Sampler>,
) -> Result<Outcome, Failure> {
    let mut plain = LoaderOptions::new(*spec, 1, 1);
    plain.epochs = args.epoch..args.epoch.saturating_add(1);
    let too_long = args.tokens.too_long.0;
    let wanted = args.tokens.budget()?.expect("the caller saw one");
    let options = LoaderOptions { too_long, ..plain.clone().by_budget(wanted) };
    let budget = options.budget.clone().expect("`by_budget` has set it");
    let batches = start(options)?; // its error names the source
    let lengths =
        datasets.iter().map(|dataset| TokenLengths::new(dataset.directory(), &budget, too_long));
    let lengths = lengths.collect::<dlfs::Result<Vec<TokenLengths>>>()?;
    let mut observer = BudgetObserver::new(budget.tokens, budget.cost == Cost::Padded);
    each_batch(batches, &lengths, |tokens| observer.see(tokens))?;
    plain.batch_size = observer.samples_of_batch();
    let mut in_sequence = 0;
    each_batch(start(plain)?, &lengths, |tokens| in_sequence += padded_of(tokens))?;
    let report = observer.finish(in_sequence);
    print_report(args, spec, &report, Value::Null, &budget_text(&report))
}

/// Calls `visit` with the numbers of tokens of the samples of each batch. `lengths` has the lengths of each source.
fn each_batch(
    mut batches: Sampler,
    lengths: &[TokenLengths],
    mut visit: impl FnMut(&[u32]),
) -> dlfs::Result<()> {
    let mut ids = Vec::new();
    let mut tokens = Vec::new();
    while batches.next(&mut ids)?.is_some() {
        tokens.clear();
        for (at, &id) in ids.iter().enumerate() {
            let source = batches.sources().get(at).copied().unwrap_or(0);
            tokens.push(lengths[source as usize].of(id)?);
        }
        visit(&tokens);
    }
    Ok(())
}

/// The report about batches by tokens as text.
fn budget_text(report: &BudgetReport) -> String {
    let percent = |part: f64| format!("{:.2} %", 100.0 * part);
    let mean = report.samples as f64 / report.batches.max(1) as f64;
    let mut lines = vec![
        format!(
            "{} of {} in {}: {mean:.1} samples each",
            out::counted(report.samples, "sample"),
            out::counted(report.tokens, "token"),
            out::counted(report.batches, "batch"),
        ),
        format!(
            "  padding    {} of the padded batches; {} without length buckets",
            percent(report.padding),
            percent(report.padding_in_sequence)
        ),
        format!("  filled     {} of {} tokens", percent(report.filled), out::count(report.budget)),
    ];
    if report.too_long > 0 {
        let count = out::counted(report.too_long, "sample");
        lines.push(format!("  too long   {count}, each a batch of its own"));
    }
    lines.join("\n") + "\n"
}

/// Observes the ranks' shares, one rank after the other. `rank_batch` is the number of samples that a rank takes of a
/// global batch.
fn observe_ranks(
    args: &ShuffleReportArgs,
    rank_batch: u64,
    order: &mut EpochOrder,
    directory: &Directory,
) -> Result<Option<RankReport>, Failure> {
    if args.world_size < 2 {
        return Ok(None);
    }
    let mut observer = RankObserver::new(args.world_size, args.batch_size);
    let mut ids = Vec::new();
    let mut picks = Vec::new();
    let mut aligner = Aligner::default();
    let is_aligned = args.shard.0 == Sharding::Aligned;
    // Aligned shares are computed by global batch.
    let step = if is_aligned { rank_batch } else { STEP };
    for rank in 0..args.world_size {
        let shard = Shard::new(rank, args.world_size, Tail::Keep)?;
        let mut positions = shard.positions(order.len());
        let mut taken = 0;
        while positions.remaining() > 0 {
            ids.clear();
            let strided = positions.split_front(step);
            if is_aligned {
                let batch = shard.global_batch(order.len(), taken, step);
                picks.clear();
                order.aligned_picks(directory, &mut aligner, &shard, batch, &mut picks);
                ids.extend(picks.iter().map(|pick| directory.id_in_chunk(pick.chunk, pick.nth)));
            } else {
                order.ids(directory, strided, &mut ids);
            }
            taken += strided.remaining();
            ids.iter().for_each(|&id| observer.see(directory.label(id)));
        }
        observer.end_rank();
    }
    Ok(observer.finish())
}

/// Prints a report: as JSON together with `more`, or as `text`.
fn print_report(
    args: &ShuffleReportArgs,
    order: &OrderSpec,
    report: &impl Serialize,
    more: Value,
    text: &str,
) -> Result<Outcome, Failure> {
    let report = joined(report, json!({"order": order, "epoch": args.epoch}));
    Out::answer(args.json, &joined(&report, more), |out| out.text(text))
}

/// Ids that are computed at a time.
const STEP: u64 = 4096;
/// Options that apply to one image only.
const OF_ONE_IMAGE: [&str; 3] = ["snapshot", "view", "shard"];
const REPORT_EXAMPLES: &str = "\
Examples:
  dlfs shuffle-report train.dlfs --order grouped --lanes 8 --group 4
  dlfs shuffle-report train.dlfs --order global --json
  dlfs shuffle-report s3://bucket/shards/ --shards --index ix --first-epoch --world-size 8
  dlfs shuffle-report text.dlfs --batch-tokens 16384 --token-bytes 2
  dlfs shuffle-report web.dlfs --part 0.7 --mix code.dlfs=0.3 --batch-size 1024";
