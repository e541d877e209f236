//! The options of reading: by id or name ([`Read`]), and in a run along an order ([`Load`], [`Order`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::tokens::Tokens;
use super::{Choice, Kind, Seconds, Size, invalid, within};
use crate::error::{Error, Result, ensure};
use crate::gpu::Pin;
use crate::order::weighted::Draws;
use crate::order::{MAX_EPOCHS, OrderKind, OrderSpec, SequentialBy, Shard, Sharding, Tail};
use crate::peers::Launched;
use crate::prefetch::{Batching, LoaderOptions, NodePlace};
use crate::reader::{OnError, ReaderOptions};

/// The memory, queues and time of reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Run"))]
pub struct Read {
    /// The most memory for samples that are read ahead and not yet dropped [default: 256M, and up to 1G where a grouped
    /// order of large chunks has more open at a time; of reads by id or name, 64M for each thread].
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIZE"))]
    pub window: Option<Size>,
    /// Queue pairs per namespace; those of one subsystem share them.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Read::default().queue_pairs))]
    pub queue_pairs: u32,
    /// The longest that one read, or the next batch, may take.
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECONDS"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Read::default().deadline))]
    pub deadline: Seconds,
    /// Spin instead of sleeping while a call, or the thread that reads ahead, waits: the lowest latency, for a core.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub busy_poll: bool,
}

impl Default for Read {
    fn default() -> Read {
        let library = ReaderOptions::default();
        Read {
            window: None,
            queue_pairs: library.queue_pairs as u32,
            deadline: Seconds(library.deadline),
            busy_poll: library.busy_poll,
        }
    }
}

impl Read {
    /// The options of reads by id or name.
    ///
    /// # Errors
    /// `InvalidArgument`: a number out of range.
    pub fn options(&self) -> Result<ReaderOptions> {
        let library = ReaderOptions::default();
        Ok(ReaderOptions {
            window_bytes: self.window_bytes()?.unwrap_or(library.window_bytes),
            queue_pairs: self.pairs()?,
            deadline: self.deadline.0,
            busy_poll: self.busy_poll,
        })
    }

    /// The bytes of the window; `None` for the default.
    fn window_bytes(&self) -> Result<Option<usize>> {
        let Some(window) = self.window else { return Ok(None) };
        match isize::try_from(window.0) {
            Ok(0) => Err(invalid("a window has at least 1 byte, not 0")),
            Ok(bytes) => Ok(Some(bytes.unsigned_abs())),
            Err(_) => {
                Err(invalid(format!("a window of {window} is more than this machine can address")))
            }
        }
    }

    /// The number of queue pairs. It has a limit, since all are opened before the first read.
    fn pairs(&self) -> Result<usize> {
        within("queue_pairs", self.queue_pairs, 1)?;
        let pairs = self.queue_pairs;
        ensure(pairs <= MAX_QUEUE_PAIRS, || {
            format!("queue_pairs is at most {MAX_QUEUE_PAIRS} a namespace, not {pairs}")
        })?;
        Ok(pairs as usize)
    }
}

/// A run: its batches, its epochs, and this rank's share of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Run"))]
pub struct Load {
    /// Samples per batch on this rank [default of the command: 256, or fewer that have 256 MiB].
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", conflicts_with = "batch_tokens"))]
    pub batch_size: Option<u32>,
    /// The number of epochs to read [default: endless].
    #[cfg_attr(feature = "clap", arg(long, value_name = "E"))]
    pub epochs: Option<u64>,
    /// The rank of this process, from 0 [default: the launcher's (torchrun, Open MPI, PMI, Slurm) if it has set one].
    #[cfg_attr(feature = "clap", arg(long, value_name = "R"))]
    pub rank: Option<u32>,
    /// The number of ranks that share each epoch [default: the launcher's, else 1].
    #[cfg_attr(feature = "clap", arg(long, value_name = "W"))]
    pub world_size: Option<u32>,
    /// How the ranks share each global batch; its samples and how many each rank gets are the same. strided: every
    /// W-th sample; aligned, of grouped order: whole chunks to one rank, as far as equal shares allow, for a run that
    /// resumes with another world size; local, with peers: what the rank's node holds, as far as equal shares allow.
    #[cfg_attr(feature = "clap", arg(long, default_value_t))]
    pub shard: Choice<Sharding>,
    /// Drop what does not fill a batch on every rank at the end of an epoch.
    #[cfg_attr(feature = "clap", arg(long))]
    pub drop_last: bool,
    /// Repeat the first samples of an epoch so that each rank has the same number.
    #[cfg_attr(feature = "clap", arg(long, conflicts_with = "drop_last"))]
    pub pad: bool,
    /// How samples are read: chunk: whole chunks, which are kept until their samples are delivered; sample: each
    /// sample just before it is needed, many at a time [default: chunk for grouped, except for large samples in the
    /// page cache; else sample].
    #[cfg_attr(feature = "clap", arg(long))]
    pub batching: Option<Choice<Batching>>,
    /// Gather each batch into one buffer, its samples contiguous, at the cost of a copy.
    #[cfg_attr(feature = "clap", arg(long))]
    pub contiguous: bool,
    /// Register the window with a driver, whose devices then copy batches by DMA: auto: with the driver that the
    /// process uses when it takes the first batch; cuda, hip: start it [default: none]. Forked children then cannot
    /// read batches of their parent.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub pin: Option<Choice<Pin>>,
    /// Threads that gather contiguous batches, at most 256; 0: the one that polls.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    #[cfg_attr(feature = "clap", arg(requires = "contiguous", default_value_t = 1))]
    pub copy_threads: u16,
    /// Handling of a sample that cannot be read: raise its error, or skip it; stats counts them.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub on_error: Choice<OnError>,
    /// Weighted: samples of an epoch [default: as many as the data set has, or without replacement as many as have a
    /// weight above 0].
    #[cfg_attr(feature = "clap", arg(skip))]
    pub epoch_size: Option<u64>,
    /// Weighted: draw no sample twice in an epoch: a weighted shuffle.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub without_replacement: bool,
    /// Keep the newest events of the run, up to 65,536 of each thread.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub trace: bool,
    /// Read with one process for all ranks of this node, which take their batches from its window without a copy.
    #[cfg_attr(feature = "clap", arg(long))]
    pub node_loader: bool,
    /// Node loader: the rank among those of this node [default: the launcher's, else the rank].
    #[cfg_attr(feature = "clap", arg(long, value_name = "R", requires = "node_loader"))]
    pub local_rank: Option<u32>,
    /// Node loader: the number of ranks on each node [default: the launcher's, else that of all ranks].
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", requires = "node_loader"))]
    pub local_world_size: Option<u32>,
    /// Node loader: a name of the job, which no other job on the machine has at the same time [default: the
    /// launcher's].
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", requires = "node_loader"))]
    pub job: Option<String>,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            batch_size: None,
            epochs: None,
            rank: None,
            world_size: None,
            shard: Choice::default(),
            drop_last: false,
            pad: false,
            batching: None,
            contiguous: false,
            pin: None,
            copy_threads: 1,
            on_error: Choice::default(),
            epoch_size: None,
            without_replacement: false,
            trace: false,
            node_loader: false,
            local_rank: None,
            local_world_size: None,
            job: None,
        }
    }
}

impl Load {
    /// The options of a loader along `order`. `place` is a rank and a world size, for options that have neither.
    ///
    /// # Errors
    /// `InvalidArgument`: a number out of range, or options that do not go together.
    pub fn options(
        &self,
        order: &Order,
        tokens: &Tokens,
        read: &Read,
        place: Option<(u32, u32)>,
    ) -> Result<LoaderOptions> {
        let (rank, world_size) = self.place().or(place).unwrap_or((0, 1));
        within("world_size", world_size, 1)?;
        Shard::new(rank, world_size, Tail::Keep)?;
        within("batch_size", self.batch_size.unwrap_or(1), 1)?;
        let epochs = self.epochs.unwrap_or(MOST_EPOCHS).min(MOST_EPOCHS);
        within("epochs", epochs, 1)?;
        let threads = self.copy_threads;
        ensure(threads <= MOST_COPY_THREADS, || {
            format!("copy_threads is at most {MOST_COPY_THREADS}, not {threads}")
        })?;
        ensure(
            self.contiguous || threads == Load::default().copy_threads,
            || "copy_threads goes with contiguous only",
        )?;
        let budget = tokens.budget()?;
        ensure(
            self.batch_size.is_none() || budget.is_none(),
            || "batches have either a number of samples or a budget of tokens, not both",
        )?;
        ensure(
            self.batch_size.is_some() || budget.is_some(),
            || "a batch has a number of samples or of tokens: give batch_size or batch_tokens",
        )?;
        let batch_size = self.batch_size.unwrap_or(1) as usize;
        let (rank, node) = self.node(rank, world_size)?;
        let options = LoaderOptions {
            rank,
            world_size,
            node,
            sharding: self.shard.0,
            tail: self.tail()?,
            drop_short: self.drop_last,
            batching: self.batching.map(|batching| batching.0),
            window_bytes: read.window_bytes()?.unwrap_or(0),
            copy_threads: self.contiguous.then_some(self.copy_threads.into()),
            pin: self.pin.map(|pin| pin.0),
            queue_pairs: read.pairs()?,
            on_error: self.on_error.0,
            deadline: read.deadline.0,
            busy_poll: read.busy_poll,
            trace: self.trace.then(Arc::default),
            too_long: tokens.too_long.0,
            ..LoaderOptions::new(order.spec(world_size)?, batch_size, epochs)
        };
        Ok(budget.into_iter().fold(options, LoaderOptions::by_budget))
    }

    /// `rank` and `None`; or, if one loader reads for the node, the rank as node loaders count it
    /// ([`NodePlace::rank_of`]), and its node.
    fn node(&self, rank: u32, world_size: u32) -> Result<(u32, Option<NodePlace>)> {
        let is_given = self.local_rank.is_some() || self.local_world_size.is_some();
        if !self.node_loader {
            ensure(
                !is_given && self.job.is_none(),
                || "local_rank, local_world_size and job go with node_loader only",
            )?;
            return Ok((rank, None));
        }
        let launched = Launched::from_env()?;
        // The default of local rank and local world size: the launcher's, if it has launched this rank; without a
        // launcher, one node has all ranks; otherwise they are unknown.
        let known = match &launched {
            None if !is_given => (Some(rank), Some(world_size)),
            Some(it) if (it.rank, it.world_size) == (rank, world_size) => {
                (it.local_rank, it.local_world_size)
            }
            _ => (None, None),
        };
        let local = self.local_rank.or(known.0).zip(self.local_world_size.or(known.1));
        let local = local.ok_or_else(unknown_node)?;
        let rank = NodePlace::rank_of((rank, world_size), local)?;
        let job = self.job.clone().or_else(|| launched.map(|launched| launched.job()));
        Ok((rank, Some(NodePlace { local_world_size: local.1, job: job.unwrap_or_default() })))
    }

    /// Rank and world size, if one of them is given.
    pub fn place(&self) -> Option<(u32, u32)> {
        let is_given = self.rank.is_some() || self.world_size.is_some();
        is_given.then_some((self.rank.unwrap_or(0), self.world_size.unwrap_or(1)))
    }

    /// How a weighted order draws.
    pub fn draws(&self) -> Draws {
        Draws { replacement: !self.without_replacement, epoch_size: self.epoch_size }
    }

    /// The treatment of an epoch's end.
    fn tail(&self) -> Result<Tail> {
        match (self.drop_last, self.pad) {
            (true, true) => {
                Err(invalid("drop_last and pad: an epoch's end is either left out or filled up"))
            }
            (true, false) => Ok(Tail::DropLast),
            (false, true) => Ok(Tail::Pad),
            (false, false) => Ok(Tail::Keep),
        }
    }
}

/// The error of a node loader that cannot tell which ranks are on this node.
fn unknown_node() -> Error {
    invalid("a node loader knows neither the launcher's local rank of this rank nor another one")
        .hint("give rank, world_size, local_rank and local_world_size")
}

/// The order of samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Order"))]
pub struct Order {
    /// How to shuffle samples. global: a full shuffle; grouped: whole chunks at a time, shuffled in groups, the fastest
    /// (DIESEL); sequential: no shuffle; local: each rank shuffles a share of its own; partial: like local, but a
    /// fraction of each share moves to other ranks every epoch; weighted: samples are drawn by weights.
    #[cfg_attr(feature = "clap", arg(long, default_value_t))]
    pub order: Choice<Kind>,
    /// The same seed gives the same epochs, on any number of ranks.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t))]
    pub seed: u64,
    /// Grouped: number of lanes, which take turns; with a multiple of the world size no chunk is read twice [default: 8
    /// per rank, or as in the state that the run resumes from].
    #[cfg_attr(feature = "clap", arg(long, value_name = "K"))]
    pub lanes: Option<u32>,
    /// Grouped: chunks of one lane that are shuffled together [default: 4].
    #[cfg_attr(feature = "clap", arg(long, value_name = "G"))]
    pub group: Option<u32>,
    /// Partial: fraction of each share that moves to other ranks in an epoch, 0 to 1 [default: 0.1].
    #[cfg_attr(feature = "clap", arg(long, value_name = "Q"))]
    pub exchange: Option<f64>,
}

impl Order {
    /// The order for `world_size` ranks. Of a weighted order it is the seed alone:
    /// [`LoaderOptions::weighted`](crate::prefetch::LoaderOptions::weighted) says the rest.
    ///
    /// # Errors
    /// `InvalidArgument`: an option of another order, or a number out of range.
    pub fn spec(&self, world_size: u32) -> Result<OrderSpec> {
        for (name, is_given, fits) in [
            ("lanes", self.lanes.is_some(), Kind::Grouped),
            ("group", self.group.is_some(), Kind::Grouped),
            ("exchange", self.exchange.is_some(), Kind::Partial),
        ] {
            ensure(!is_given || self.order.0 == fits, || {
                let fits = Choice(fits);
                format!("{name} goes with the order {fits} only, not {}", self.order)
            })?;
        }
        within("lanes", self.lanes.unwrap_or(1), 1)?;
        let kind = match self.order.0 {
            Kind::Global | Kind::Weighted => OrderKind::Global,
            Kind::Grouped => OrderKind::Grouped {
                lanes: self.lanes.unwrap_or(0), // as many as suit the run
                group: self.group.unwrap_or(DEFAULT_GROUP),
            },
            Kind::Sequential => OrderKind::Sequential { by: SequentialBy::Id },
            Kind::Local => OrderKind::Local { world_size },
            Kind::Partial => {
                OrderKind::Partial { q: self.exchange.unwrap_or(DEFAULT_EXCHANGE), world_size }
            }
        };
        let spec = OrderSpec { kind, seed: self.seed };
        spec.started(world_size).check()?;
        Ok(spec)
    }
}

/// Chunks of one lane that a grouped order shuffles together by default.
pub const DEFAULT_GROUP: u32 = 4;

/// The fraction of each share that a partial order moves by default.
pub const DEFAULT_EXCHANGE: f64 = 0.1;

/// The most threads that gather batches.
const MOST_COPY_THREADS: u16 = 256;

/// The most epochs that a loader counts.
const MOST_EPOCHS: u64 = MAX_EPOCHS - 1;

/// The most queue pairs per namespace: all are opened before the first read, and this many are still opened quickly.
const MAX_QUEUE_PAIRS: u32 = 1024;
