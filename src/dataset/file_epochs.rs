//! Counters of each epoch of a program that knows only files: its file operations, and the reads from each place.

use serde::Serialize;

use super::Place;

/// Counters of a program's file operations, as seen by the mount or the preload library.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FileCounts {
    /// Files opened.
    pub opens: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
}

/// The counters of one epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpochCounts {
    /// Its number, from 0: epochs of this process since the data set was opened.
    pub epoch: u64,
    /// The program's use of files.
    #[serde(flatten)]
    pub files: FileCounts,
    /// The reads from each place; empty without tiers.
    pub places: Vec<Place>,
}

impl EpochCounts {
    /// The counters of epochs as one line of JSON.
    pub fn to_json(epochs: &[EpochCounts]) -> String {
        serde_json::to_string(epochs).expect("numbers and names always become JSON")
    }
}

/// Counters at one moment.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) files: FileCounts,
    pub(super) places: Vec<Place>,
}

impl Counted {
    /// The counts of `epoch`, from `begin` to this moment.
    pub(super) fn since(&self, begin: &Counted, epoch: u64) -> EpochCounts {
        let files = FileCounts {
            opens: self.files.opens.saturating_sub(begin.files.opens),
            reads: self.files.reads.saturating_sub(begin.files.reads),
            bytes: self.files.bytes.saturating_sub(begin.files.bytes),
        };
        let places = self.places.iter().zip(&begin.places).map(|(now, then)| Place {
            reads: now.reads.saturating_sub(then.reads),
            bytes: now.bytes.saturating_sub(then.bytes),
            read_s: (now.read_s - then.read_s).max(0.0),
            ..now.clone()
        });
        EpochCounts { epoch, files, places: places.collect() }
    }
}
