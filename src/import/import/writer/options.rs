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
    /// The image: what to do with what it holds (`Onto::Resume` is refused, `Onto::Force` discards it at once), the
    /// seed, chunk size, packing, UUID, time and lease. What concerns sources, and `placement`, is ignored.
    pub image: ImportOptions,
    /// Names of the fields; empty for samples of one field without a name, or for those of the image that is
    /// appended to.
    pub fields: Vec<Vec<u8>>,
    /// Types of these fields, in their order; by default no field has one.
    pub field_types: FieldTypes,
    /// Typed columns, beside those of the image that is appended to.
    pub columns: Vec<ColumnSpec>,
    /// The order of samples on media.
    pub order: WriteOrder,
    /// Bytes of samples that are collected before they are placed. Two such windows are in memory.
    pub window_bytes: usize,
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

/// The order of a writer's samples on media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum WriteOrder {
    /// Each window is shuffled: a chunk is a random sample of its window.
    #[default]
    Windows,
    /// As they are written.
    Written,
    /// All are shuffled together, as an import does it: a chunk is a random sample of the data set. The caller
    /// writes so many samples, each time the one that [`next_id`](super::Writer::next_id) says.
    Whole {
        /// How many are written.
        count: u64,
    },
}

/// A sample to be written.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewSample<'a> {
    /// Its name, unique in the image: up to 4,096 bytes, none of them NUL. `None`: its id, in nine decimal digits or
    /// more.
    pub name: Option<&'a [u8]>,
    /// Its label.
    pub label: Label<'a>,
    /// The bytes of its fields, in the order of the options; `None`: it has no such field.
    pub fields: &'a [Option<&'a [u8]>],
    /// Its values in typed columns, by their names; integers may be those of columns of floats that hold them.
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
    /// It has none.
    #[default]
    None,
    /// A number; any but `i64::MIN`.
    Number(i64),
    /// The name of a class. Classes are numbered as they come first.
    Class(&'a [u8]),
}

/// The report of a writer's commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteReport {
    /// The image.
    pub uuid: Uuid,
    /// The generation that was committed.
    pub generation: Generation,
    /// Samples that were written.
    pub samples: u64,
    /// Their bytes.
    pub sample_bytes: u64,
    /// Samples of the image now.
    pub live_samples: u64,
    /// Chunks that were written.
    pub chunks: u64,
    /// Bytes of the image in use, on all namespaces.
    pub image_bytes: u64,
}

impl WriteReport {
    /// The report of a generation whose samples are all new, but for their bytes.
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

const DEFAULT_WINDOW_BYTES: usize = 64 << 20;
