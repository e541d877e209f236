//! What an import is asked to do, how it reports on the way, and what it hands back.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::format::Pack;
use crate::format::Uuid;
use crate::format::geometry::DEFAULT_CHUNK_BYTES;
use crate::import::sources::{BadEntry, FileCount, SourceKind};
use crate::units::Generation;
use crate::{Error, ErrorKind, Result};

/// Options of an import; the defaults are those of the command line.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// What the sources are.
    pub from: SourceKind,
    /// What becomes of what the image holds.
    pub onto: Onto,
    /// In which order samples lie on the media.
    pub placement: PlacementOrder,
    /// Seed of the shuffled placement.
    pub seed: u64,
    /// Bytes of a chunk: a power of two from 64 KiB to 256 MiB.
    pub chunk_size_bytes: u32,
    /// How samples are packed.
    pub pack: Pack,
    /// What to do about entries that cannot be imported.
    pub on_error: OnError,
    /// Where pipes and compressed archives are copied to before they are imported.
    pub spool: Option<PathBuf>,
    /// Threads that read the source; 0: as many as suit this machine.
    pub reader_threads: usize,
    /// UUID of a new image; `None`: a random one. With `time_ns` set too, the same source gives the
    /// same bytes.
    pub uuid: Option<Uuid>,
    /// The time that the image says it was written at, in ns since 1970; `None`: now.
    pub time_ns: Option<u64>,
    /// How long a namespace without a lock of its own stays reserved after its importer's last sign
    /// of life.
    pub lease: Duration,
    /// Whether to add to the older generation, and give up a newer one, where a superblock copy is
    /// bad that may have committed it; otherwise that is refused.
    pub accept_older_generation: bool,
}

/// Options of a delete or purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EditOptions {
    /// As [`ImportOptions::accept_older_generation`].
    pub accept_older_generation: bool,
}

/// What an import does about what the image already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Onto {
    /// It must hold nothing: a new file, or zeroes.
    #[default]
    Empty,
    /// Its samples stay; the new ones come after them, as a new generation.
    Append,
    /// Goes on with an import that did not end, with the options that it began with.
    Resume,
    /// Whatever it holds is given up.
    Force,
}

/// In which order samples lie on the media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlacementOrder {
    /// Shuffled by the seed, so that each chunk is a fair draw of the data set.
    #[default]
    Shuffled,
    /// As the source has them.
    Source,
}

/// What to do about entries that cannot be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// Name them all and import nothing.
    #[default]
    Stop,
    /// Import the rest and report them.
    Skip,
}

/// Told how an import goes, on the thread that imports.
pub trait Progress {
    /// A new stage begins, of so many samples and bytes where that is known.
    fn stage(&mut self, stage: Stage, samples: u64, bytes: u64);

    /// So many more samples and bytes of the stage are done.
    fn advance(&mut self, samples: u64, bytes: u64);

    /// Asked now and then: whether to stop. What is done stays done for a later `Resume`.
    fn stop(&mut self) -> bool {
        false
    }
}

/// No report.
impl Progress for () {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}
    fn advance(&mut self, _: u64, _: u64) {}
}

/// What an import is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Finding out what the source holds.
    Indexing,
    /// Reading samples and writing chunks.
    Writing,
    /// Writing the directory and making all of it durable.
    Committing,
}

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportReport {
    /// The image.
    pub uuid: Uuid,
    /// The generation that was committed.
    pub generation: Generation,
    /// What the source was.
    pub kind: SourceKind,
    /// Samples that this import added.
    pub samples: u64,
    /// Their bytes.
    pub sample_bytes: u64,
    /// Samples of the image now.
    pub live_samples: u64,
    /// Chunks that it has written, and those that a resumed import found in place.
    pub chunks: u64,
    /// Chunks that a resumed import found in place.
    pub chunks_found: u64,
    /// Bytes of the image on all namespaces that are in use now.
    pub image_bytes: u64,
    /// Entries that were left out, with `OnError::Skip`.
    pub bad: Vec<BadEntry>,
    /// What every file of the source was taken as.
    pub file_counts: Vec<FileCount>,
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions {
            from: SourceKind::Auto,
            onto: Onto::Empty,
            placement: PlacementOrder::Shuffled,
            seed: 0,
            chunk_size_bytes: DEFAULT_CHUNK_BYTES,
            pack: Pack::Aligned,
            on_error: OnError::Stop,
            spool: None,
            reader_threads: 0,
            uuid: None,
            time_ns: None,
            lease: Duration::from_secs(10),
            accept_older_generation: false,
        }
    }
}

impl FromStr for PlacementOrder {
    type Err = Error;

    fn from_str(text: &str) -> Result<PlacementOrder> {
        match text {
            "shuffled" => Ok(PlacementOrder::Shuffled),
            "source" => Ok(PlacementOrder::Source),
            _ => Err(unknown(text, "shuffled or source")),
        }
    }
}

impl FromStr for OnError {
    type Err = Error;

    fn from_str(text: &str) -> Result<OnError> {
        match text {
            "stop" => Ok(OnError::Stop),
            "skip" => Ok(OnError::Skip),
            _ => Err(unknown(text, "stop or skip")),
        }
    }
}

fn unknown(text: &str, known: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{text:?} is neither {known}"))
}

/// All entries that keep an import from being made, one a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadEntries(pub Vec<BadEntry>);

impl fmt::Display for BadEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, entry) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n    " };
            write!(f, "{separator}{entry}")?;
        }
        Ok(())
    }
}

impl std::error::Error for BadEntries {}

impl BadEntries {
    /// The refusal that names all of them.
    pub fn into_error(self) -> Error {
        let count = self.0.len();
        Error::new(
            ErrorKind::BadSource,
            format!("{count} entries of the source cannot be imported"),
        )
        .hint("mend them, or leave them out with --on-error skip")
        .source(self)
    }
}

/// The refusal of a source of which nothing is left to import.
pub(super) fn no_samples(bad: Vec<BadEntry>, kind: SourceKind) -> Error {
    match bad.is_empty() {
        true => Error::new(ErrorKind::BadSource, format!("there is no sample in this {kind}")),
        false => BadEntries(bad).into_error(),
    }
}
