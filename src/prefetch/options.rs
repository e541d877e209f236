//! Options of a loader.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result, invalid};
use crate::gpu::Pin;
use crate::order::budget::{Budget, TooLong};
use crate::order::weighted::Weights;
use crate::order::{Locality, OrderKind, OrderSpec, Shard, Sharding, State, Tail};
use crate::qpair::Cpus;
use crate::reader::OnError;

use super::dealing::Layouts;
use super::mix::Mix;
use super::trace::Trace;

/// Options of a [`Prefetcher`](super::Prefetcher). Begin with [`LoaderOptions::new`]: defaults alone make no run.
#[derive(Debug, Clone, Default)]
pub struct LoaderOptions {
    /// The order. In grouped order, 0 lanes select the number that suits the world size, or that of the state to
    /// resume from.
    pub order: OrderSpec,
    /// Samples per batch on this rank. With a budget, the loader replaces it by an estimate.
    pub batch_size: usize,
    /// The token budget of each batch, instead of a number of samples; [`LoaderOptions::by_budget`] sets it.
    pub budget: Option<Arc<Budget>>,
    /// The treatment of a sample that is longer than the budget.
    pub too_long: TooLong,
    /// If the budget is of rows of tokens: the rows of a batch on this rank in each phase. The last entry holds for all
    /// later phases.
    pub rows: Vec<u32>,
    /// The queue of the layouts of these rows. A token loader sets it; each of its runs has a queue of its own.
    pub layouts: Option<Arc<Layouts>>,
    /// The epochs to read; the end is not read.
    pub epochs: Range<u64>,
    /// This rank, less than `world_size`.
    pub rank: u32,
    /// The number of ranks that share each epoch.
    pub world_size: u32,
    /// Makes the ranks of this rank's node read together through one window. `None`: each rank reads by itself.
    pub node: Option<NodePlace>,
    /// `Some(n)`: reads for the n ranks of a node. `rank` and `world_size` then count nodes, `batch_size` is that of
    /// all ranks of the node together, and other processes can map the window. A node loader sets it.
    pub seats: Option<u32>,
    /// The rule by which ranks share each global batch.
    pub sharding: Sharding,
    /// The node of each rank and the node that holds each chunk, for [`Sharding::Local`]. A data set with peers
    /// sets it.
    pub locality: Option<Arc<Locality>>,
    /// The treatment of the samples at the end of an epoch that do not fill a global batch.
    pub tail: Tail,
    /// Drops the last batch of an epoch if it has fewer than `batch_size` samples. Has no effect with a budget.
    pub drop_short: bool,
    /// The state to resume from, instead of the start of the first epoch.
    pub resume: Option<State>,
    /// The weights of a weighted order; [`LoaderOptions::weighted`] sets them and the order.
    pub weights: Option<Arc<Weights>>,
    /// The data sets to read as one sequence, each along `order`. [`dataset::Mixture`](crate::dataset::Mixture)
    /// sets it.
    pub mixture: Option<Arc<Mix>>,
    /// The batching mode. `None`: by chunks in grouped order and in the sequential order by slot, by samples otherwise.
    /// Grouped order is also read by samples if the samples are large and in the page cache, if the window is too
    /// small, or if several ranks would read the same chunks or most of a chunk's bytes are of no use. In global order,
    /// tiny samples are read together, far ahead, if the window is large enough for this to halve the bytes.
    pub batching: Option<Batching>,
    /// The most memory for samples that are read ahead and not yet dropped, in bytes. 0: 256 MiB, or up to 1 GiB if
    /// a grouped order of large chunks keeps more than that open.
    pub window_bytes: usize,
    /// `Some(n)`: each batch is gathered into one buffer by `n` threads (0: by the poller). `None`: batches are handed
    /// out as they were read.
    pub copy_threads: Option<usize>,
    /// The driver of accelerators that registers the window. If there is no such driver, a warning says why, and the
    /// window is not registered. Forked children cannot read batches in registered memory.
    pub pin: Option<Pin>,
    /// The number of the device that batches are copied to: the window is allocated near it. `None`: no device.
    pub device: Option<u32>,
    /// Queue pairs per namespace.
    pub queue_pairs: usize,
    /// The treatment of a sample that cannot be read.
    pub on_error: OnError,
    /// The timeout of one [`Prefetcher::next`](super::Prefetcher::next).
    pub deadline: Duration,
    /// Lets the poller spin instead of sleeping.
    pub busy_poll: bool,
    /// Verifies samples in memory that is kept from an earlier epoch again when they are handed out. For callers that
    /// pass batches to code that could write to them. Safe Rust cannot write to them, so this is off by default.
    pub verify_kept: bool,
    /// The processors that the poller is bound to; its memory is allocated near them. `None`: any.
    pub cpus: Option<Cpus>,
    /// The recorder of the newest events of the loader's threads. `None`: nothing is recorded.
    pub trace: Option<Arc<Trace>>,
}

impl LoaderOptions {
    /// Options for one rank that reads `epochs` epochs of `order` in batches of `batch_size`.
    pub fn new(order: OrderSpec, batch_size: usize, epochs: u64) -> LoaderOptions {
        LoaderOptions {
            order,
            batch_size,
            rows: vec![1],
            epochs: 0..epochs,
            world_size: 1,
            queue_pairs: 1,
            deadline: Duration::from_secs(60),
            ..LoaderOptions::default()
        }
    }

    /// The same options with samples drawn by `weights`, with the seed of the order.
    #[must_use]
    pub fn weighted(self, weights: Arc<Weights>) -> LoaderOptions {
        let order = weights.order(self.order.seed);
        LoaderOptions { order, weights: Some(weights), ..self }
    }

    /// The same options with batches by a token budget, which are dealt to the ranks in turn. `tail` then applies to
    /// batches: if the last round has fewer batches than ranks, it is read by some ranks, dropped, or filled up.
    #[must_use]
    pub fn by_budget(self, budget: Budget) -> LoaderOptions {
        LoaderOptions { budget: Some(Arc::new(budget)), ..self }
    }

    /// Returns whether batches are rows of tokens.
    pub(crate) fn has_rows(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.rows.is_some())
    }

    /// The share that is read with these options, from the start of an epoch.
    ///
    /// # Errors
    /// `InvalidArgument`: the rank does not exist.
    pub(crate) fn shard(&self) -> Result<Shard> {
        let shard = Shard::new(self.rank, self.world_size, self.tail)?;
        Ok(shard.of_seats(self.seats.unwrap_or(1)))
    }

    /// The number of positions of an epoch over `num_live` samples.
    pub(crate) fn epoch_len(&self, num_live: u64) -> u64 {
        self.order.kind.epoch_len(num_live)
    }

    /// Checks that the options agree with each other, without looking at the image.
    ///
    /// # Errors
    /// `InvalidArgument`: the first option that does not.
    pub(crate) fn check(&self) -> Result<()> {
        if self.on_error == OnError::Blank {
            let text = "a loader raises or skips; only reads by id keep places without bytes";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let is_weighted = matches!(self.order.kind, OrderKind::Weighted { .. });
        if is_weighted != self.weights.is_some() {
            let text = if is_weighted {
                "a weighted order draws by weights, and none are given"
            } else {
                "weights are given, and the order is not weighted"
            };
            let hint = "LoaderOptions::weighted sets both";
            return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
        }
        self.check_budget()?;
        self.check_node()?;
        self.stated_batching().map(drop)
    }

    /// If a node loader is to read the run, checks that it can.
    fn check_node(&self) -> Result<()> {
        let Some(NodePlace { local_world_size: local, .. }) = self.node else { return Ok(()) };
        if local == 0 || !self.world_size.is_multiple_of(local) {
            let text = format!("{} ranks cannot be {local} on each node", self.world_size);
            return Err(Error::invalid(text, "start equally many ranks on each node"));
        }
        let refused = |text: &'static str| {
            Err(Error::invalid(text, "leave the node loader out: each rank then reads by itself"))
        };
        if self.order.kind.world_size().is_some() {
            return refused(
                "this order gives each rank samples of its own, so a node loader shares nothing",
            );
        }
        if self.on_error == OnError::Skip {
            return refused(
                "what is skipped would move samples of a node loader from rank to rank",
            );
        }
        match self.sharding {
            Sharding::Strided => Ok(()),
            Sharding::Aligned => Err(Error::invalid(
                "a node loader reads each chunk once for all its ranks, and aligned shares have no use there",
                "leave the shares out",
            )),
            Sharding::Local => refused("local shares go to ranks by what their nodes hold"),
        }
    }

    /// Checks the budget, and that the other options permit whole batches for each rank.
    fn check_budget(&self) -> Result<()> {
        let Some(budget) = &self.budget else { return Ok(()) };
        budget.check()?;
        if budget.rows.is_some() {
            self.check_rows()?;
        }
        let what = if self.order.kind.world_size().is_some() {
            "this order gives each rank samples of its own"
        } else if self.sharding != Sharding::Strided {
            "leave the shares out"
        } else {
            return Ok(());
        };
        Err(invalid(format!("batches by a budget of tokens go to ranks as wholes: {what}")))
    }

    /// Checks that the other options permit rows of tokens.
    fn check_rows(&self) -> Result<()> {
        if self.rows.is_empty() || self.rows.contains(&0) {
            return Err(Error::invalid("a batch has at least one row", "give a batch size"));
        }
        if self.on_error == OnError::Skip {
            let text = "rows are laid out before documents are read, so none can be skipped";
            return Err(Error::invalid(text, "open a view without the damaged documents"));
        }
        Ok(())
    }
}

/// The batching modes of DLFS: how the samples of a batch are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// One command at a time, as in a plain synchronous reader.
    None,
    /// Many reads of single samples at once, neighbours merged, up to the queue depth.
    Sample,
    /// Whole chunks, with samples handed out of them; needs an order that reads whole chunks.
    Chunk,
}

/// The ranks of a node, which read through one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    /// The number of ranks on each node. Of N nodes, node n has the ranks n, n + N, n + 2N ...:
    /// [`NodePlace::rank_of`].
    pub local_world_size: u32,
    /// The name of the job. No other job of this user on this machine may have it at the same time.
    pub job: String,
}

impl NodePlace {
    /// The rank, as a node loader counts, of the process that its launcher calls `rank`. Launchers give the ranks of
    /// one node consecutive numbers; a node loader gives consecutive numbers to different nodes. On one node both are
    /// the same.
    ///
    /// # Errors
    /// `InvalidArgument`: the numbers contradict each other.
    pub fn rank_of(
        (rank, world_size): (u32, u32),
        (local_rank, local_world_size): (u32, u32),
    ) -> Result<u32> {
        let place = format!("local rank {local_rank} of {local_world_size}");
        let hint = "give local_rank and local_world_size: the rank among those of this node, and the number \
                    of these, which is the same on all nodes";
        if local_world_size == 0 || local_rank >= local_world_size {
            return Err(Error::invalid(format!("{place}: local ranks count from 0"), hint));
        }
        let is_first =
            rank.checked_sub(local_rank).is_some_and(|of| of.is_multiple_of(local_world_size));
        if !world_size.is_multiple_of(local_world_size) || !is_first {
            let text = format!("rank {rank} of {world_size} cannot be {place}");
            return Err(Error::invalid(text, hint));
        }
        Ok(rank / local_world_size + local_rank * (world_size / local_world_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_loader_cannot_share_is_refused_with_the_reason() {
        let run = |kind| LoaderOptions {
            world_size: 4,
            node: Some(NodePlace { local_world_size: 2, job: "a".into() }),
            ..LoaderOptions::new(OrderSpec { kind, seed: 1 }, 8, 1)
        };
        run(OrderKind::Global).check().unwrap();
        let why = |options: LoaderOptions| options.check().unwrap_err().to_string();
        assert!(why(run(OrderKind::Local { world_size: 4 })).contains("samples of its own"));
        let shared = |sharding| LoaderOptions { sharding, ..run(OrderKind::Global) };
        assert!(why(shared(Sharding::Local)).contains("local shares"));
        assert!(why(shared(Sharding::Aligned)).contains("aligned shares"));
        let skips = LoaderOptions { on_error: OnError::Skip, ..run(OrderKind::Global) };
        assert!(why(skips).contains("skipped"));
        assert!(why(LoaderOptions { world_size: 3, ..run(OrderKind::Global) }).contains("3 ranks"));
    }

    #[test]
    fn the_ranks_of_a_node_are_those_that_its_launcher_has_started_there() {
        let rank = |place, local| NodePlace::rank_of(place, local);
        let of_node = |node: u32| (0..4).map(move |local| rank((node * 4 + local, 12), (local, 4)));
        for node in 0..3 {
            let ranks: Vec<u32> = of_node(node).map(Result::unwrap).collect();
            assert_eq!(ranks, [node, node + 3, node + 6, node + 9]);
        }
        assert_eq!(rank((5, 8), (5, 8)).unwrap(), 5, "one node");
        for (place, local) in
            [((3, 8), (2, 4)), ((3, 9), (3, 4)), ((0, 8), (4, 4)), ((1, 8), (2, 4))]
        {
            let error = rank(place, local).unwrap_err();
            assert!(error.report().contains("local_world_size"), "{error}");
        }
    }
}
