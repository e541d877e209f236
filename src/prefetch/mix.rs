//! Mixtures of data sets: the data sets, the order of each, and the samples that positions of the mixture draw.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::order::mixture::{Mixture, MixtureSpec, source_seed};
use crate::order::{HexId, OrderKind, OrderSpec};
use crate::qpair::Device;
use crate::units::{Epoch, SampleId};

use super::run_order::RunOrder;

/// Data sets that are read as one sequence: the *sources* of a mixture.
pub struct Mix {
    pub(crate) spec: Arc<MixtureSpec>,
    /// Draws the source of each position.
    pub(crate) mixture: Mixture,
    /// The namespaces of each source.
    pub(crate) devices: Vec<Vec<Arc<dyn Device>>>,
    /// The directory of each source.
    pub(crate) directories: Arc<[Arc<Directory>]>,
}

impl std::fmt::Debug for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mix").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Mix {
    /// The data sets of `spec`, in its order: directory and namespaces of each.
    ///
    /// # Errors
    /// Errors of [`Mixture::new`].
    pub(crate) fn new(
        spec: MixtureSpec,
        sources: impl Iterator<Item = (Arc<Directory>, Vec<Arc<dyn Device>>)>,
    ) -> Result<Mix> {
        let mixture = Mixture::new(&spec)?;
        let (directories, devices): (Vec<_>, Vec<_>) = sources.unzip();
        Ok(Mix { spec: Arc::new(spec), mixture, devices, directories: directories.into() })
    }

    /// A 128-bit hash of the definition, which tells mixtures apart.
    pub(super) fn hash(&self) -> HexId {
        let text = serde_json::to_vec(&*self.spec).unwrap_or_default(); // numbers and strings always become JSON
        let half = |first: u8| {
            // FNV-1a, 64 bits.
            std::iter::once(&first).chain(&text).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        HexId((u128::from(half(0)) << 64 | u128::from(half(1))).to_be_bytes())
    }

    /// The order of a source in a run with `order`. This order has a seed of its own and, if it is grouped, a share of
    /// the lanes in proportion to the source's chunks, so that all sources together have about as many chunks open as
    /// one image of the same bytes. Frozen: a resumed run must get the same order.
    pub(super) fn order_of(&self, source: usize, order: &OrderSpec) -> OrderSpec {
        let seed = source_seed(order.seed, source);
        let (lanes, group) = match order.kind {
            OrderKind::Grouped { lanes, group } => (lanes, group),
            kind => return OrderSpec { kind, seed },
        };
        let chunks = |directory: &Arc<Directory>| u64::from(directory.num_chunks());
        let all = self.directories.iter().map(chunks).sum::<u64>().max(1);
        let unit = (lanes / LANES_A_UNIT).max(1);
        let share = (chunks(&self.directories[source]) * u64::from(LANES_A_UNIT) + all / 2) / all;
        let lanes = lanes.min(unit * (share as u32).clamp(1, LANES_A_UNIT));
        OrderSpec { kind: OrderKind::Grouped { lanes, group }, seed }
    }
}

/// The sample that a position of the mixture draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) source: u32,
    /// The epoch of the source, and the position in its order.
    pub(super) epoch: Epoch,
    pub(super) position: u64,
    /// Set if the sample is read alone, since another rank reads its chunk.
    pub(super) alone: bool,
}

/// Draws the sample for `position` of the mixture.
#[inline]
pub(super) fn drawn(mixture: &mut Mixture, position: u64) -> Drawn {
    let draw = mixture.draw(position);
    Drawn { source: draw.source, epoch: draw.epoch, position: draw.position, alone: false }
}

/// Maps positions of sources to the ids of their samples.
pub(super) struct SourceIds {
    /// The order of each source, created when it is first needed.
    orders: Vec<Option<RunOrder>>,
    specs: Vec<OrderSpec>,
    directories: Arc<[Arc<Directory>]>,
    /// Memory for one call: indices of samples, sorted by source and epoch, and the ids of one source.
    by_source: Vec<u32>,
    ids: Vec<SampleId>,
}

impl SourceIds {
    /// The ids of a run along `order`.
    pub(super) fn new(mix: &Mix, order: &OrderSpec) -> SourceIds {
        let sources = 0..mix.directories.len();
        SourceIds {
            orders: sources.clone().map(|_| None).collect(),
            specs: sources.map(|source| mix.order_of(source, order)).collect(),
            directories: Arc::clone(&mix.directories),
            by_source: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Calls `visit` with the index and the id of each of `samples`, source by source.
    ///
    /// # Errors
    /// Errors of `visit`; a source's order does not have such an epoch.
    pub(super) fn each(
        &mut self,
        samples: &[Drawn],
        mut visit: impl FnMut(usize, SampleId) -> Result<()>,
    ) -> Result<()> {
        let SourceIds { orders, specs, directories, by_source, ids } = self;
        let source_of = |at: &u32| {
            let Drawn { source, epoch, .. } = samples[*at as usize];
            (source, epoch)
        };
        by_source.clear();
        by_source.extend(0..samples.len() as u32);
        by_source.sort_by_key(source_of);
        for group in by_source.chunk_by(|one, other| source_of(one) == source_of(other)) {
            let (source, epoch) = source_of(&group[0]);
            let source = source as usize;
            let order = orders[source].get_or_insert_with(|| {
                RunOrder::of_source(Arc::clone(&directories[source]), specs[source])
            });
            let positions = group.iter().map(|&at| samples[at as usize].position);
            ids.clear();
            let (order, directory) = order.enter(epoch)?;
            order.ids(directory, positions, ids);
            for (&at, &id) in group.iter().zip(&*ids) {
                visit(at as usize, id)?;
            }
        }
        Ok(())
    }
}

/// The number of units of lanes that are divided among sources: the lanes of one rank by default. Frozen, as the order
/// is.
const LANES_A_UNIT: u32 = crate::order::LANES_A_RANK;
