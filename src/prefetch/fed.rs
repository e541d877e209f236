//! A source's part of a mixture as a stream of batches: positions of its order, in any of its epochs.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::order::{EpochOrder, OrderSpec, Pick};
use crate::units::{Epoch, SampleId};

use super::head::Head;
use super::run_order::RunOrder;

/// The positions of one epoch of a source in one batch of the mixture.
pub(super) struct Piece {
    pub(super) epoch: Epoch,
    pub(super) positions: Vec<Placed>,
    /// True for the last piece fed for this batch.
    pub(super) is_last: bool,
}

/// A position of a source's epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) position: u64,
    /// Its sample is read alone, since another rank reads its chunk.
    pub(super) alone: bool,
}

/// The batches that a source was fed with.
pub(super) struct Fed {
    order: RunOrder,
    pieces: VecDeque<Piece>,
    free: Vec<Vec<Placed>>,
}

impl Fed {
    pub(super) fn new(directory: Arc<Directory>, spec: OrderSpec) -> Fed {
        let order = RunOrder::of_source(directory, spec);
        Fed { order, pieces: VecDeque::new(), free: Vec::new() }
    }

    pub(super) fn push(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
    }

    pub(super) fn free_positions(&mut self) -> Vec<Placed> {
        self.free.pop().unwrap_or_default()
    }

    pub(super) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The order of the piece that was returned last.
    pub(super) fn order(&self) -> Option<&EpochOrder> {
        self.order.current()
    }

    /// Appends the ids of the next piece.
    pub(super) fn next_ids(&mut self, ids: &mut Vec<SampleId>) -> Result<Option<Head>> {
        self.next(|order, directory, positions| {
            order.ids(directory, positions.iter().map(|placed| placed.position), ids);
        })
    }

    /// Appends the picks of the next piece.
    pub(super) fn next_picks(&mut self, picks: &mut Vec<Pick>) -> Result<Option<Head>> {
        self.next(|order, _, positions| {
            let first = picks.len();
            order.picks(positions.iter().map(|placed| placed.position), picks);
            for (pick, placed) in picks[first..].iter_mut().zip(positions) {
                pick.alone = placed.alone;
            }
        })
    }

    fn next(
        &mut self,
        visit: impl FnOnce(&mut EpochOrder, &Directory, &[Placed]),
    ) -> Result<Option<Head>> {
        let Some(Piece { epoch, mut positions, is_last }) = self.pieces.pop_front() else {
            return Ok(None);
        };
        let (order, directory) = self.order.enter(epoch)?;
        visit(order, directory, &positions);
        positions.clear();
        self.free.push(positions);
        // Chunks of the next piece may belong to another epoch.
        Ok(Some(Head { epoch, ends_epoch: is_last, after: (epoch, 0), place: None, left: 0 }))
    }
}
