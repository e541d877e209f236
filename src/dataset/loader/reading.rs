//! The reader of a run: a prefetcher of this process, or a client of the process that reads for all ranks of the node.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::dataset::run_data::RunData;
use crate::error::{Error, Result};
use crate::order::State;
use crate::prefetch::{
    Course, LoaderOptions, LoaderStats, NextBatch, NodeClient, Origin, Prefetcher, Window, reading,
};
use crate::reader::Batch;
use crate::tokens::Layout;
use crate::units::SampleId;

/// The reader of a run.
pub(super) enum Reading {
    /// This process reads.
    Alone(Box<Prefetcher>),
    /// One process of the node reads for all of its ranks.
    Node(Box<NodeClient>),
}

impl Reading {
    /// Begins to read from `state`. If this process reads for its node, `reads` gets the counters of these reads.
    pub(super) fn start(
        data: RunData,
        options: LoaderOptions,
        state: State,
        window: Option<Arc<Window>>,
        reads: Arc<Mutex<LoaderStats>>,
    ) -> Result<Reading> {
        let Some(place) = options.node.clone() else {
            let options = LoaderOptions { resume: Some(state), ..options };
            return Ok(Reading::Alone(Box::new(data.prefetcher_in(options, window)?)));
        };
        let mixture = data.mix.clone();
        let options = LoaderOptions { mixture, ..options };
        let directory = Arc::clone(data.directory());
        let len = data.len(&options);
        let node_options = reading(&place, &options, state.clone());
        // The run may later be moved to a state whose order has other lanes.
        let origin = Origin {
            window: {
                let data = data.clone();
                let options = node_options.clone();
                Arc::new(move |order| {
                    let options = LoaderOptions { order, ..options.clone() };
                    Prefetcher::window(data.directory(), &data.devices(), &options)
                })
            },
            open: Arc::new(move |state, window| {
                let order = state.order;
                let options = LoaderOptions { order, resume: Some(state), ..node_options.clone() };
                data.prefetcher_in(options, Some(window))
            }),
            reads,
        };
        let client = NodeClient::start(origin, (options, place), (directory, len), state)?;
        Ok(Reading::Node(Box::new(client)))
    }

    /// Continues from another state with the same memory; `len` is the number of positions of an epoch.
    pub(super) fn restart(self, state: State, len: u64) -> Result<Reading> {
        match self {
            Reading::Alone(alone) => Ok(Reading::Alone(Box::new(alone.restart(state)?))),
            Reading::Node(node) => Ok(Reading::Node(Box::new(node.restart(state, len)?))),
        }
    }

    pub(super) fn next_within(&mut self, batch: &mut Batch, limit: Duration) -> Result<NextBatch> {
        match self {
            Reading::Alone(alone) => alone.next_within(batch, limit),
            Reading::Node(node) => node.next_within(batch, limit),
        }
    }

    /// The consumer's course, with the counters of deliveries and stalls. Takes no lock.
    pub(super) fn course(&self) -> &Course {
        match self {
            Reading::Alone(alone) => &alone.course,
            Reading::Node(node) => &node.course,
        }
    }

    /// Replaces `layout` by that of the batch that was just delivered, if batches are rows of tokens.
    pub(super) fn take_layout(&mut self, layout: &mut Layout) {
        match self {
            Reading::Alone(alone) => {
                if let Some(layouts) = &alone.options.layouts
                    && let Some(of_batch) = layouts.take()
                {
                    layouts.recycle(std::mem::replace(layout, of_batch));
                }
            }
            Reading::Node(node) => std::mem::swap(&mut node.layout, layout),
        }
    }

    /// The counters, without those of a node's reads.
    pub(super) fn stats(&self) -> LoaderStats {
        match self {
            Reading::Alone(alone) => alone.stats(),
            Reading::Node(node) => node.stats(),
        }
    }

    pub(super) fn window_bytes(&self) -> usize {
        match self {
            Reading::Alone(alone) => alone.window_bytes(),
            Reading::Node(node) => node.window_bytes(),
        }
    }

    /// Always `false` for a node: the window is not of this process.
    pub(super) fn is_resident(&self, id: SampleId) -> bool {
        matches!(self, Reading::Alone(alone) if alone.is_resident(id))
    }

    /// The error of a wait of `limit`, if other ranks of the node caused it.
    pub(super) fn why_late(&mut self, limit: Duration) -> Option<Error> {
        match self {
            Reading::Alone(_) => None,
            Reading::Node(node) => node.why_late(limit),
        }
    }
}
