//! Bytes of reads, counted by the place that served them.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// The place that served bytes of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The data set itself: a target, a drive, files or an object store.
    Origin,
    /// Another read of the origin on behalf of a tier: by readahead, or a concurrent fetch of the same pages.
    Ahead,
    /// Memory of this node: a tier or the rank's store.
    Memory,
    /// Drives of this node, remote namespaces used as its tiers, or the rank's store.
    Drive,
    /// Tiers of other nodes.
    Peer,
}

impl Place {
    /// The number of places.
    pub(crate) const COUNT: usize = 5;

    /// All places.
    pub const ALL: [Place; Place::COUNT] =
        [Place::Origin, Place::Ahead, Place::Memory, Place::Drive, Place::Peer];

    /// The place's name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Place::Origin => "origin",
            Place::Ahead => "ahead",
            Place::Memory => "memory",
            Place::Drive => "drive",
            Place::Peer => "peer",
        }
    }
}

/// Byte counts by place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceBytes([u64; Place::COUNT]);

impl PlaceBytes {
    /// Adds bytes that came from `place`.
    pub fn add(&mut self, place: Place, bytes: u64) {
        self.0[place as usize] += bytes;
    }

    /// The bytes that came from `place`.
    pub fn of(&self, place: Place) -> u64 {
        self.0[place as usize]
    }

    /// Each place with its bytes.
    pub fn each(&self) -> impl Iterator<Item = (Place, u64)> {
        Place::ALL.into_iter().zip(self.0)
    }

    /// The bytes added since `earlier`, an older copy of these counts.
    #[must_use]
    pub fn since(mut self, earlier: &PlaceBytes) -> PlaceBytes {
        for (sum, before) in self.0.iter_mut().zip(&earlier.0) {
            *sum = sum.saturating_sub(*before);
        }
        self
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(mut self, other: &PlaceBytes) -> PlaceBytes {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
        self
    }

    /// The bytes from all places.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Serializes as a map from place names to bytes.
impl Serialize for PlaceBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Place::COUNT))?;
        for (place, bytes) in self.each() {
            map.serialize_entry(place.name(), &bytes)?;
        }
        map.end()
    }
}

/// Counts bytes of reads by place, except the origin's. Any thread may add and read.
#[derive(Debug, Default)]
pub struct PlaceCounters([AtomicU64; Place::COUNT]);

impl PlaceCounters {
    /// Counts a completed read, or part of one, of `len_bytes` that `place` served. The origin is not
    /// counted: its bytes are the rest of all bytes read.
    pub fn add(&self, place: Place, len_bytes: usize) {
        if place != Place::Origin {
            self.0[place as usize].fetch_add(len_bytes as u64, Ordering::Relaxed);
        }
    }

    /// The byte counts so far.
    pub fn read(&self) -> PlaceBytes {
        PlaceBytes(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}
