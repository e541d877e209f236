//! `dlfs order` prints an epoch's samples in their order, without reading them.

use clap::Args;

use dlfs::dataset::{Dataset, Sampler};
use dlfs::directory::Directory;
use dlfs::options::{Choice, Order};
use dlfs::order::Sharding;
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::ReaderOptions;
use dlfs::units::SampleId;

use crate::args::{ConnectionArgs, ImageArgs, check_shard, unweighted};
use crate::exit::{Failure, Outcome, usage};
use crate::out::{Out, safe_name};
use crate::weights::WeightArgs;

/// Print the samples of an epoch in their order
///
/// Prints one id per line, of those that a loader with the same options delivers to this rank. Only the
/// directory is read. Names are escaped as by `dlfs ls`; -0 prints them unescaped.
#[derive(Debug, Args)]
#[command(after_help = ORDER_EXAMPLES)]
pub(crate) struct OrderArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    order: Order,
    #[command(flatten)]
    weights: WeightArgs,
    /// The epoch, from 0
    #[arg(long, value_name = "E", default_value_t = 0)]
    epoch: u64,
    /// Print names instead of ids; an empty line for a sample without one
    #[arg(long)]
    names: bool,
    /// Print names unescaped, each followed by a NUL byte
    #[arg(short = '0', long, requires = "names")]
    null: bool,
    /// Samples per batch of a rank, which decides aligned shares; dlfs read chooses its own unless it is given
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// The rank whose samples are printed, from 0
    #[arg(long, value_name = "R", default_value_t = 0)]
    rank: u32,
    /// The number of ranks that share the epoch
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    world_size: u32,
    /// How the ranks share each global batch
    #[arg(long, default_value_t)]
    shard: Choice<Sharding>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn order(args: OrderArgs) -> Result<Outcome, Failure> {
    let spec = unweighted(&args.order, args.world_size)?;
    check_shard(&args.order, args.shard, false)?;
    let image = args.image.open(&args.connection)?;
    if args.names {
        image.load_names()?;
    }
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let directory = dataset.directory();
    let options = LoaderOptions {
        rank: args.rank,
        world_size: args.world_size,
        sharding: args.shard.0,
        ..LoaderOptions::new(spec, args.batch_size as usize, u64::MAX)
    };
    let options = args.weights.weigh(options, None, directory)?;
    let mut sampler = Sampler::new(&dataset, options).map_err(usage)?;
    sampler.set_epoch(args.epoch)?;
    let mut out = Out::new();
    let mut ids = Vec::new();
    while let Some(is_last) = sampler.next(&mut ids)? {
        for &id in &ids {
            print_sample(&args, directory, id, &mut out)?;
        }
        if is_last {
            break;
        }
    }
    out.end(Outcome::Done)
}

/// Prints one sample: its id, or its name with `--names`.
fn print_sample(
    args: &OrderArgs,
    directory: &Directory,
    id: SampleId,
    out: &mut Out,
) -> Result<(), Failure> {
    if !args.names {
        return out.line(id.to_string());
    }
    let name = directory.name(id).map_err(dlfs::Error::from)?.unwrap_or_default();
    if args.null {
        out.bytes(&name)?;
        return out.bytes(b"\0");
    }
    out.line(safe_name(&name))
}

const ORDER_EXAMPLES: &str = "\
Examples:
  dlfs order train.dlfs --order global --seed 7 --epoch 3 --names
  dlfs order train.dlfs --world-size 4 --rank 1 > ids";
