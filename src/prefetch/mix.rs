//! The data sets of a mixture, the order of each, and the sample that a position draws.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::order::mixture::{Mixture, MixtureSpec, source_seed};
use crate::order::{HexId, OrderKind, OrderSpec};
use crate::qpair::Device;
use crate::units::Epoch;

/// Data sets that are read as one sequence.
pub struct Mix {
    spec: Arc<MixtureSpec>,
    mixture: Mixture,
    sources: Vec<MixSource>,
    directories: Arc<[Arc<Directory>]>,
}

impl std::fmt::Debug for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mix").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// A data set of a mixture.
pub(crate) struct MixSource {
    pub(crate) directory: Arc<Directory>,
    pub(crate) devices: Vec<Arc<dyn Device>>,
}

/// The source and position that a position of the mixture draws, and whether its sample is read alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) source: u32,
    pub(super) epoch: Epoch,
    pub(super) position: u64,
    pub(super) alone: bool,
}

/// Draws the source and its position for `position` of the mixture.
#[inline]
pub(super) fn drawn(mixture: &mut Mixture, position: u64) -> Drawn {
    let draw = mixture.draw(position);
    Drawn { source: draw.source, epoch: draw.epoch, position: draw.position, alone: false }
}

impl Mix {
    /// The data sets of `spec`, in its order.
    ///
    /// # Errors
    /// Errors of [`Mixture::new`].
    pub(crate) fn new(spec: MixtureSpec, sources: Vec<MixSource>) -> Result<Mix> {
        let mixture = Mixture::new(&spec)?;
        let directories = sources.iter().map(|source| Arc::clone(&source.directory)).collect();
        Ok(Mix { spec: Arc::new(spec), mixture, sources, directories })
    }

    /// The definition of the mixture.
    pub(crate) fn spec(&self) -> &Arc<MixtureSpec> {
        &self.spec
    }

    /// The sequence.
    pub(crate) fn mixture(&self) -> &Mixture {
        &self.mixture
    }

    /// The directories of the sources.
    pub(crate) fn directories(&self) -> &Arc<[Arc<Directory>]> {
        &self.directories
    }

    /// The directory and the namespaces of a source.
    pub(crate) fn source(&self, source: u32) -> (&Arc<Directory>, &[Arc<dyn Device>]) {
        let MixSource { directory, devices } = &self.sources[source as usize];
        (directory, devices)
    }

    pub(super) fn sources(&self) -> &[MixSource] {
        &self.sources
    }

    /// The namespaces of all sources.
    pub(super) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.sources.iter().flat_map(|source| source.devices.iter().cloned()).collect()
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

    /// The order of a source in a run with `order`. It has its own seed, and a share of the lanes in proportion to
    /// its chunks, so that all sources together have about as many chunks open as one image of the same bytes.
    /// Frozen.
    pub(super) fn order_of(&self, source: usize, order: &OrderSpec) -> OrderSpec {
        let seed = source_seed(order.seed, source);
        let (lanes, group) = match order.kind {
            OrderKind::Grouped { lanes, group } => (lanes, group),
            kind => return OrderSpec { kind, seed },
        };
        let chunks = |source: &MixSource| u64::from(source.directory.num_chunks());
        let all = self.sources.iter().map(chunks).sum::<u64>().max(1);
        let unit = (lanes / LANES_A_UNIT).max(1);
        let share = (chunks(&self.sources[source]) * u64::from(LANES_A_UNIT) + all / 2) / all;
        let lanes = lanes.min(unit * (share as u32).clamp(1, LANES_A_UNIT));
        OrderSpec { kind: OrderKind::Grouped { lanes, group }, seed }
    }
}

/// The number of parts that the lanes are divided into among sources: the lanes of one rank by default. Frozen.
const LANES_A_UNIT: u32 = crate::order::LANES_A_RANK;
