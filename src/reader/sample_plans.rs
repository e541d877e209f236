//! Plans reads of samples by id, and reuses the memory of earlier plans.

use std::slice::SliceIndex;

use crate::directory::Directory;
use crate::format::Extent;
use crate::units::{SampleId, Slot};

use super::fetch::{Fetch, Geometry, Merge, SampleRequest, plan_samples};

/// The plans of one reader or driver, one after the other.
pub(crate) struct SamplePlans {
    pub(crate) geometry: Vec<Geometry>,
    slots: Vec<Slot>,
    /// Extents of the last looked up samples; `None` for a sample that does not exist.
    pub(crate) extents: Vec<Option<Extent>>,
    /// The samples to plan.
    pub(crate) requests: Vec<SampleRequest>,
    /// The planned reads.
    pub(crate) fetches: Vec<Fetch>,
    free: Vec<Fetch>,
}

impl SamplePlans {
    /// Plans for namespaces with this geometry.
    pub(crate) fn new(geometry: Vec<Geometry>) -> SamplePlans {
        SamplePlans {
            geometry,
            slots: Vec::new(),
            extents: Vec::new(),
            requests: Vec::new(),
            fetches: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Begins a plan: looks up the extents of `ids`.
    pub(crate) fn look_up(&mut self, directory: &Directory, ids: &[SampleId]) {
        self.requests.clear();
        self.extents.clear();
        directory.extents(ids, &mut self.slots, &mut self.extents);
    }

    /// Appends to `fetches` the reads of this range of `requests`, each of about `max_fetch_bytes` at most.
    pub(crate) fn plan(
        &mut self,
        requests: impl SliceIndex<[SampleRequest], Output = [SampleRequest]>,
        merge: Merge,
        max_fetch_bytes: usize,
    ) {
        let SamplePlans { geometry, fetches, free, .. } = self;
        let requests = &mut self.requests[requests];
        plan_samples(requests, geometry, merge, max_fetch_bytes, free, fetches);
    }

    /// Takes back the plan of a read that has ended, to reuse its memory.
    pub(crate) fn recycle(&mut self, mut fetch: Fetch) {
        fetch.clear();
        self.free.push(fetch);
    }

    /// Returns an empty plan.
    pub(crate) fn empty(&mut self) -> Fetch {
        self.free.pop().unwrap_or_default()
    }
}
