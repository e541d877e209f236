//! Bytes by the place that they came from.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// The place that bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The data set itself: a target, a drive, files or an object store.
    Origin,
    /// Another read of the origin, which brought them for a tier: it read ahead, or fetched the same pages just then.
    Ahead,
    /// Memory of this node: a tier or the rank's store.
    Memory,
    /// Drives of this node, and remote namespaces that are its tiers; or the rank's store.
    Drive,
    /// Tiers of other nodes.
    Peer,
}

impl Place {
    /// The number of places.
    pub(crate) const COUNT: usize = 5;

    /// All of them.
    pub const ALL: [Place; Place::COUNT] =
        [Place::Origin, Place::Ahead, Place::Memory, Place::Drive, Place::Peer];

    /// The name in reports and metrics.
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

/// Bytes by place.
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

    /// The bytes that were added since `earlier`, an earlier value of the same sums.
    #[must_use]
    pub fn since(mut self, earlier: &PlaceBytes) -> PlaceBytes {
        for (sum, before) in self.0.iter_mut().zip(&earlier.0) {
            *sum = sum.saturating_sub(*before);
        }
        self
    }

    /// The sums of both.
    #[must_use]
    pub fn plus(mut self, other: &PlaceBytes) -> PlaceBytes {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
        self
    }

    /// The bytes of all places.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A map from the name of each place to bytes.
impl Serialize for PlaceBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Place::COUNT))?;
        for (place, bytes) in self.each() {
            map.serialize_entry(place.name(), &bytes)?;
        }
        map.end()
    }
}

/// Bytes of reads that other places than the origin have served. One thread adds.
#[derive(Debug, Default)]
pub struct PlaceCounters([AtomicU64; Place::COUNT]);

impl PlaceCounters {
    /// A read, or a piece of one, of `len_bytes` has ended, and `place` served it. The origin is not counted: it has
    /// served the rest of what was read.
    pub fn add(&self, place: Place, len_bytes: usize) {
        if place != Place::Origin {
            self.0[place as usize].fetch_add(len_bytes as u64, Ordering::Relaxed);
        }
    }

    /// The bytes so far.
    pub fn read(&self) -> PlaceBytes {
        PlaceBytes(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}
