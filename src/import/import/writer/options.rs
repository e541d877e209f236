//! The options of a writer, its samples, and its report.

use crate::import::options::ImportOptions;
use dlfs_base::units::Generation;
use dlfs_format::directory::Directory;
use dlfs_format::format::columns::{ColumnSpec, Value};
use dlfs_format::format::superblock::used_bytes;
use dlfs_format::format::{FieldTypes, Superblock, Uuid};

/// Options of a [`Writer`](super::Writer).
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// The options of the image: `onto` (`Onto::Resume` is refused, `Onto::Force` discards the old contents at
    /// once), seed, chunk size, packing, UUID, time, lease and `accept_older_generation`. All others are
    /// ignored.
    pub image: ImportOptions,
    /// Names of the fields. Empty: samples have a single field without a name, or the fields of the image to
    /// append to.
    pub fields: Vec<Vec<u8>>,
    /// Types of these fields, in the same order. By default no field has a type.
    pub field_types: FieldTypes,
    /// Typed columns, in addition to those of the image to append to.
    pub columns: Vec<ColumnSpec>,
    /// The order of samples on the media.
    pub order: WriteOrder,
    /// Size of a window in bytes: samples are collected up to this size, then placed. Two windows are in
    /// memory.
    pub window_bytes: usize,
}

/// The placement of a writer's samples.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(in crate::import) struct Windows {
    pub(in crate::import) order: WriteOrder,
    /// As [`WriterOptions::window_bytes`].
    pub(in crate::import) window_bytes: usize,
    /// Seed of the first window.
    pub(in crate::import) seed: u64,
}

impl WriterOptions {
    /// The placement of the samples that these options ask for.
    pub(in crate::import) fn windows(&self) -> Windows {
        let WriterOptions { order, window_bytes, .. } = *self;
        Windows { order, window_bytes: window_bytes.max(1), seed: self.image.seed }
    }
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            image: ImportOptions::default(),
            fields: Vec::new(),
            field_types: FieldTypes::default(),
            columns: Vec::new(),
            order: WriteOrder::Windows,
            window_bytes: DEFAULT_WINDOW_BYTES,
        }
    }
}

/// The order of a writer's samples on the media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum WriteOrder {
    /// Each window is shuffled: a chunk is a random sample of its window.
    #[default]
    Windows,
    /// Samples are in the order in which they are written.
    Written,
    /// All samples are shuffled together, as in an import: a chunk is a random sample of the data set. The
    /// caller writes exactly `count` samples, each time the one with the id
    /// [`next_id`](super::Writer::next_id).
    Whole {
        /// Number of samples that will be written.
        count: u64,
    },
}

/// A sample to be written.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewSample<'a> {
    /// Its name, unique in the image: up to 4,096 bytes without NUL. `None`: the name is the id, as a decimal
    /// number of at least nine digits; in a part, after the number of the part.
    pub name: Option<&'a [u8]>,
    /// Its label.
    pub label: Label<'a>,
    /// The bytes of its fields, in the order of the options. `None`: the sample lacks this field.
    pub fields: &'a [Option<&'a [u8]>],
    /// Its values in typed columns, by column name. Integers may be given for columns of floats that can
    /// represent them.
    pub values: &'a [(&'a str, Value<'a>)],
}

impl NewSample<'_> {
    /// Its value in a typed column.
    pub(super) fn value(&self, column: &ColumnSpec) -> Value<'_> {
        let found = self.values.iter().find(|(name, _)| *name == column.name);
        found.map_or(Value::None, |(_, value)| *value)
    }
}

/// The label of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Label<'a> {
    /// No label.
    #[default]
    None,
    /// A number other than `i64::MIN`.
    Number(i64),
    /// The name of a class. Classes that the image lacks are numbered in the order of their first use; in a
    /// part, the plan must have the class.
    Class(&'a [u8]),
}

/// The report of a writer's commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteReport {
    /// The image.
    pub uuid: Uuid,
    /// The committed generation.
    pub generation: Generation,
    /// Number of samples that were written.
    pub samples: u64,
    /// Bytes of these samples.
    pub sample_bytes: u64,
    /// Live samples of the image after the commit.
    pub live_samples: u64,
    /// Number of chunks that were written.
    pub chunks: u64,
    /// Bytes in use by the image, on all namespaces.
    pub image_bytes: u64,
}

impl WriteReport {
    /// The report of a generation whose samples are all new. `sample_bytes` is 0, for the caller to set.
    pub(in crate::import) fn of(directory: &Directory, superblocks: &[Superblock]) -> WriteReport {
        WriteReport {
            uuid: directory.uuid(),
            generation: directory.generation(),
            samples: directory.num_samples(),
            sample_bytes: 0,
            live_samples: directory.num_live(),
            chunks: directory.num_chunks().into(),
            image_bytes: used_bytes(superblocks),
        }
    }
}

/// The default of [`WriterOptions::window_bytes`].
const DEFAULT_WINDOW_BYTES: usize = 64 << 20;
