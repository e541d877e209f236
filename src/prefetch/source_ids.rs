//! Maps the samples that a mixture draws to their ids.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::order::OrderSpec;
use crate::units::SampleId;

use super::mix::{Drawn, Mix};
use super::run_order::RunOrder;

/// The orders of all sources, created when first drawn from.
pub(super) struct SourceIds {
    orders: Vec<Option<RunOrder>>,
    specs: Vec<OrderSpec>,
    directories: Arc<[Arc<Directory>]>,
    /// The places of samples, sorted by source and epoch.
    by_source: Vec<u32>,
    ids: Vec<SampleId>,
}

impl SourceIds {
    /// The orders of a run along `order`.
    pub(super) fn new(mix: &Mix, order: &OrderSpec) -> SourceIds {
        let sources = 0..mix.sources().len();
        SourceIds {
            orders: sources.clone().map(|_| None).collect(),
            specs: sources.map(|source| mix.order_of(source, order)).collect(),
            directories: Arc::clone(mix.directories()),
            by_source: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Calls `visit` with the place and the id of each of `samples`, source by source.
    ///
    /// # Errors
    /// Errors of `visit`; a source's order does not have such an epoch.
    pub(super) fn each(
        &mut self,
        samples: &[Drawn],
        mut visit: impl FnMut(usize, SampleId) -> Result<()>,
    ) -> Result<()> {
        let SourceIds { orders, specs, directories, by_source, ids } = self;
        let place = |at: &u32| {
            let Drawn { source, epoch, .. } = samples[*at as usize];
            (source, epoch)
        };
        by_source.clear();
        by_source.extend(0..samples.len() as u32);
        by_source.sort_by_key(place);
        for group in by_source.chunk_by(|one, other| place(one) == place(other)) {
            let (source, epoch) = place(&group[0]);
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
