//! The samples of a batch, as they were read or unpickled. Views of the batch keep them alive.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use dlfs::directory::{Column, Directory};
use dlfs::format::columns::ColumnType;
use dlfs::format::field_type::Element;
use dlfs::format::fields::find;
use dlfs::{Error, ErrorKind, Result, reader};
use serde::{Deserialize, Serialize};

use crate::batch::NO_LABEL;
use crate::ffi::Lent;
use crate::fields::{Choice, Fields};

/// The samples of a batch, the fields that they show, and the samples that could not be read.
pub(crate) struct Held {
    samples: Arc<Samples>,
    pub(crate) fields: Arc<Fields>,
    /// All samples in one buffer, once that was requested: see [`Held::whole`].
    gathered: OnceLock<Box<[u8]>>,
    pub(crate) failures: Arc<Failures>,
}

enum Samples {
    Read(reader::Batch),
    /// Unpickled: the records one behind the other, and all else.
    Copied(Lent, Beside),
}

/// All that a pickled batch has beside its records.
#[derive(Serialize, Deserialize)]
pub(crate) struct Beside {
    /// The end of each record among all records, in bytes.
    pub(crate) ends: Vec<usize>,
    pub(crate) ids: Vec<i64>,
    pub(crate) labels: Option<Vec<i64>>,
    pub(crate) epoch: u64,
    pub(crate) ends_epoch: bool,
    /// The source of each sample, if they are of a mixture.
    pub(crate) sources: Option<Vec<u32>>,
    pub(crate) columns: Vec<Values>,
    /// Names of all fields.
    pub(crate) names: Vec<Vec<u8>>,
    /// Types of all fields, as text; `None`: bytes.
    pub(crate) types: Vec<Option<String>>,
    /// The fields that are shown; `None`: all.
    pub(crate) choice: Option<Choice>,
    /// Samples that could not be read: positions, ascending, and why.
    pub(crate) failures: Vec<(usize, ErrorKind, String)>,
}

/// The values of the samples of a batch in a typed column.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Values {
    pub(crate) name: String,
    pub(crate) kind: ColumnType,
    /// For ints, bools and texts: the number, or [`NO_LABEL`] for none. For floats: the bits of an f64, or of NaN
    /// for none.
    pub(crate) raw: Vec<i64>,
}

impl Values {
    /// The values as an array: i64, f64 or f32.
    pub(crate) fn elements(&self) -> (Element, Vec<u8>) {
        let floats = self.raw.iter().map(|raw| f64::from_bits(*raw as u64));
        match self.kind {
            ColumnType::Float => (Element::F64, floats.flat_map(f64::to_le_bytes).collect()),
            ColumnType::Float32 => {
                (Element::F32, floats.flat_map(|it| (it as f32).to_le_bytes()).collect())
            }
            _ => (Element::I64, self.raw.iter().flat_map(|raw| raw.to_le_bytes()).collect()),
        }
    }
}

impl Beside {
    /// Returns whether each list has one entry a sample, and the records have `len` bytes: a pickle is untrusted.
    pub(crate) fn fits(&self, len: usize) -> bool {
        let count = self.ends.len();
        self.ends.is_sorted()
            && self.ends.last().copied().unwrap_or(0) == len
            && self.ids.len() == count
            && self.labels.as_ref().is_none_or(|labels| labels.len() == count)
            && self.sources.as_ref().is_none_or(|sources| sources.len() == count)
            && self.columns.iter().all(|column| column.raw.len() == count)
    }
}

/// Requested samples that could not be read: positions, ascending, and why.
type Failures = Vec<(usize, Error)>;

/// The directories of the samples of a batch; neighbours with the same directory have it once. A batch of one data set
/// has its directory also if all its samples were skipped.
fn directories(batch: &reader::Batch) -> impl Iterator<Item = &Arc<Directory>> {
    let mut last: Option<&Arc<Directory>> = None;
    let least = usize::from(batch.sources().is_none()); // without sources, each index has the same directory
    (0..batch.len().max(least)).filter_map(move |index| {
        let directory = batch.directory_of(index)?;
        let is_new = last.is_none_or(|last| !Arc::ptr_eq(last, directory));
        last = Some(directory);
        is_new.then_some(directory)
    })
}

impl Held {
    /// Samples that were read.
    pub(crate) fn read(batch: reader::Batch, fields: Arc<Fields>, failures: Failures) -> Held {
        Held::new(Samples::Read(batch), fields, failures)
    }

    /// Samples that were unpickled.
    pub(crate) fn copied(
        records: Lent,
        beside: Beside,
        fields: Fields,
        failures: Failures,
    ) -> Held {
        Held::new(Samples::Copied(records, beside), Arc::new(fields), failures)
    }

    fn new(samples: Samples, fields: Arc<Fields>, failures: Failures) -> Held {
        let samples = Arc::new(samples);
        Held { samples, fields, gathered: OnceLock::new(), failures: Arc::new(failures) }
    }

    /// The same samples, showing other fields.
    pub(crate) fn showing(&self, fields: Fields) -> Held {
        let samples = Arc::clone(&self.samples);
        let failures = Arc::clone(&self.failures);
        Held { samples, fields: Arc::new(fields), gathered: OnceLock::new(), failures }
    }

    /// Returns whether the sample could not be read.
    pub(crate) fn lacks(&self, index: usize) -> bool {
        let failures = &self.failures;
        !failures.is_empty() && failures.binary_search_by_key(&index, |failure| failure.0).is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        match &*self.samples {
            Samples::Read(batch) => batch.len(),
            Samples::Copied(_, copied) => copied.ids.len(),
        }
    }

    /// Id of the sample at `index`; in a mixture, in its data set.
    pub(crate) fn id(&self, index: usize) -> i64 {
        match &*self.samples {
            Samples::Read(batch) => batch.id(index).0 as i64,
            Samples::Copied(_, copied) => copied.ids[index],
        }
    }

    /// The source of each sample, if they are of a mixture.
    pub(crate) fn sources(&self) -> Option<&[u32]> {
        match &*self.samples {
            Samples::Read(batch) => batch.sources(),
            Samples::Copied(_, copied) => copied.sources.as_deref(),
        }
    }

    pub(crate) fn has_labels(&self) -> bool {
        match &*self.samples {
            Samples::Read(batch) => batch.has_labels(),
            Samples::Copied(_, copied) => copied.labels.is_some(),
        }
    }

    /// Label of the sample at `index`; `None`: it has none.
    pub(crate) fn label(&self, index: usize) -> Option<i64> {
        match &*self.samples {
            Samples::Read(batch) => batch.label(index),
            Samples::Copied(_, copied) => copied
                .labels
                .as_ref()
                .map(|labels| labels[index])
                .filter(|label| *label != NO_LABEL),
        }
    }

    /// Names of the typed columns. In a batch of a mixture: of all data sets that have a sample in the batch.
    pub(crate) fn column_names(&self) -> Vec<String> {
        match &*self.samples {
            Samples::Read(batch) => {
                let mut names: Vec<String> = Vec::new();
                for directory in directories(batch) {
                    for column in directory.columns() {
                        if !names.iter().any(|name| name == column.name()) {
                            names.push(column.name().to_owned());
                        }
                    }
                }
                names
            }
            Samples::Copied(_, copied) => {
                copied.columns.iter().map(|column| column.name.clone()).collect()
            }
        }
    }

    /// The values of some samples in the typed column called `name`.
    ///
    /// # Errors
    /// `NotFound`: there is none. `InvalidArgument`: the data sets of a mixture have columns of this name and
    /// different types.
    pub(crate) fn column(&self, name: &str, picked: Range<usize>) -> dlfs::Result<Values> {
        let not_found = || {
            let known = self.column_names().join(", ");
            let known = if known.is_empty() { "none".to_owned() } else { known };
            let text = format!("there is no typed column {name:?}: there are {known}");
            Error::new(ErrorKind::NotFound, text)
        };
        let batch = match &*self.samples {
            Samples::Read(batch) => batch,
            Samples::Copied(_, copied) => {
                let found = copied.columns.iter().find(|column| column.name == name);
                let found = found.ok_or_else(not_found)?;
                return Ok(Values { raw: found.raw[picked].to_vec(), ..found.clone() });
            }
        };
        let kinds = directories(batch).filter_map(|directory| directory.column(name));
        let mut kinds = kinds.map(|column| column.kind());
        let kind = kinds.next().ok_or_else(not_found)?;
        if let Some(other) = kinds.find(|other| *other != kind) {
            let text = format!("column {name:?} is {kind} in one data set and {other} in another");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // Neighbours are mostly of one data set, so the column is looked up only when the data set changes.
        let mut last: Option<(&Arc<Directory>, Option<&Column>)> = None;
        let raw = picked.map(|index| {
            let directory = batch.directory_of(index);
            let column = match (last, directory) {
                (Some((known, column)), Some(directory)) if Arc::ptr_eq(known, directory) => column,
                (_, Some(directory)) => {
                    let column = directory.column(name);
                    last = Some((directory, column));
                    column
                }
                (_, None) => None,
            };
            let id = batch.id_in_directory(index).0;
            if kind.is_float() {
                column.and_then(|c| c.float(id)).unwrap_or(f64::NAN).to_bits() as i64
            } else {
                column.and_then(|c| c.int(id)).unwrap_or(NO_LABEL)
            }
        });
        Ok(Values { name: name.to_owned(), kind, raw: raw.collect() })
    }

    pub(crate) fn epoch(&self) -> u64 {
        match &*self.samples {
            Samples::Read(batch) => batch.epoch().0,
            Samples::Copied(_, copied) => copied.epoch,
        }
    }

    pub(crate) fn ends_epoch(&self) -> bool {
        match &*self.samples {
            Samples::Read(batch) => batch.ends_epoch(),
            Samples::Copied(_, copied) => copied.ends_epoch,
        }
    }

    /// The sample's record on media: the sample itself, unless samples are divided into fields.
    pub(crate) fn record(&self, index: usize) -> &[u8] {
        match &*self.samples {
            Samples::Read(batch) => batch.bytes(index),
            Samples::Copied(records, copied) => {
                let start = index.checked_sub(1).map_or(0, |before| copied.ends[before]);
                &records[start..copied.ends[index]]
            }
        }
    }

    /// One field of a sample; `None` if the sample does not have it or could not be read.
    pub(crate) fn field(&self, index: usize, field: usize) -> Result<Option<&[u8]>> {
        if self.lacks(index) {
            return Ok(None);
        }
        let record = self.record(index);
        let found = find(record, self.fields.names.len(), field).map_err(|error| {
            Error::from(error).sample(dlfs::units::SampleId(self.id(index) as u64))
        })?;
        Ok(found.map(|range| &record[range]))
    }

    /// The sample as one buffer; `None` if it does not have the field that represents it.
    pub(crate) fn shown(&self, index: usize) -> Result<Option<&[u8]>> {
        match self.fields.one() {
            Some(field) => self.field(index, field),
            None if self.fields.are_several() => Err(self.fields.unnamed()),
            None => Ok(Some(self.record(index))),
        }
    }

    /// Length of the sample; the total of the fields that it shows if they are several.
    pub(crate) fn len_bytes(&self, index: usize) -> Result<usize> {
        if let Some(fields) = self.fields.chosen_several() {
            let lens =
                fields.iter().map(|&field| Ok(self.field(index, field)?.map_or(0, <[u8]>::len)));
            return lens.sum();
        }
        if self.fields.are_several() {
            return Ok(self.fields.len_of(self.record(index).len()));
        }
        Ok(self.shown(index)?.map_or(0, <[u8]>::len))
    }

    /// All bytes, samples contiguous. Copied at the first call, unless whole samples of one length are contiguous
    /// already.
    pub(crate) fn whole(&self) -> Result<&[u8]> {
        if let (Samples::Read(batch), false, false) =
            (&*self.samples, self.fields.divides(), self.fields.are_several())
            && let Some(bytes) = batch.contiguous()
        {
            return Ok(bytes);
        }
        if let Some(gathered) = self.gathered.get() {
            return Ok(gathered);
        }
        let len = (0..self.len()).map(|i| self.record(i).len()).sum::<usize>();
        let mut bytes = dlfs::buf::zeroed_vec(len as u64)?;
        bytes.clear();
        for index in 0..self.len() {
            bytes.extend_from_slice(self.shown(index)?.unwrap_or_default());
        }
        Ok(self.gathered.get_or_init(|| bytes.into()))
    }
}
