//! The samples that views of a batch keep alive, as they were read or unpickled.
//!
//! On media, a sample of several fields is a record: a table of lengths, followed by the fields.
//! Python never sees the record: a sample is the field that was chosen, or else a mapping of names
//! to fields, which is no buffer.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use dlfs::directory::{Column, Directory};
use dlfs::format::columns::ColumnType;
use dlfs::format::field_type::Element;
use dlfs::format::fields::{find, table_len};
use dlfs::format::{FieldType, FieldTypes};
use dlfs::{Error, ErrorKind, Result, reader};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

use crate::batch::NO_LABEL;
use crate::convert;
use crate::error::{OrRaise as _, raise_lookup};
use crate::ffi::Lent;

/// The names in the option `fields`.
#[derive(Serialize, Deserialize)]
pub(crate) enum Choice {
    /// One name: this field is the sample.
    One(Vec<u8>),
    /// A sequence of names: the sample is a mapping of them.
    Several(Vec<Vec<u8>>),
}

impl Choice {
    /// Parses the option `fields`; `None` if it is None.
    pub(crate) fn of(given: &Bound<'_, PyAny>) -> PyResult<Option<Choice>> {
        if given.is_none() {
            return Ok(None);
        }
        if convert::is_name(given) {
            return Ok(Some(Choice::One(convert::to_bytes(given)?)));
        }
        let refused = || {
            let text = "fields: the name of a field, as a str, or a tuple of names, not ";
            given.repr().map(|given| PyTypeError::new_err(format!("{text}{given}")))
        };
        let Ok(items) = given.try_iter() else { return Err(refused()?) };
        let mut several = Vec::new();
        for name in items {
            let name = name?;
            if !convert::is_name(&name) {
                return Err(refused()?);
            }
            several.push(convert::to_bytes(&name)?);
        }
        Ok(Some(Choice::Several(several)))
    }
}

/// The fields of the samples of a data set, and those that are shown.
#[derive(Clone)]
pub(crate) struct Fields {
    pub(crate) names: Arc<[Vec<u8>]>,
    pub(crate) types: Arc<FieldTypes>,
    shown: Shown,
}

#[derive(Clone)]
enum Shown {
    /// All; a sample that is not divided is one buffer.
    All,
    /// This field represents the sample.
    One(usize),
    /// A mapping of these.
    Several(Vec<usize>),
}

impl Fields {
    /// The fields of the samples of `directory`, of which all are shown.
    pub(crate) fn of(directory: &Directory) -> Fields {
        Fields::new(directory.fields(), directory.field_types().clone())
    }

    /// Fields called `names`, as in the directory, with these types, of which all are shown.
    pub(crate) fn new(names: &[Vec<u8>], types: FieldTypes) -> Fields {
        Fields { names: names.into(), types: types.into(), shown: Shown::All }
    }

    /// The same fields, of which only this one is shown.
    pub(crate) fn only(&self, field: usize) -> Fields {
        Fields { shown: Shown::One(field), ..self.clone() }
    }

    /// The same fields, of which only `choice` is shown.
    ///
    /// # Errors
    /// `NotFound`: there is no such field. `InvalidArgument`: no field, or one of them twice.
    pub(crate) fn choose(&self, choice: &Choice) -> Result<Fields> {
        let shown = match choice {
            Choice::One(name) => Shown::One(self.number_of(name)?),
            Choice::Several(given) => {
                let mut numbers = Vec::with_capacity(given.len());
                for name in given {
                    let number = self.number_of(name)?;
                    if numbers.contains(&number) {
                        return Err(self.refused(&format!("has {} twice", name.escape_ascii())));
                    }
                    numbers.push(number);
                }
                if numbers.is_empty() {
                    return Err(self.refused("names no field"));
                }
                Shown::Several(numbers)
            }
        };
        Ok(Fields { shown, ..self.clone() })
    }

    /// As [`Fields::choose`], of the option `fields`; `None` if it is None.
    pub(crate) fn chosen(&self, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Fields>> {
        let Some(given) = given else { return Ok(None) };
        let choice = Choice::of(given)?;
        choice.map(|choice| self.choose(&choice)).transpose().or_raise(given.py())
    }

    /// The choice from which [`Fields::choose`] made these.
    pub(crate) fn choice(&self) -> Option<Choice> {
        match &self.shown {
            Shown::All => None,
            Shown::One(number) => Some(Choice::One(self.names[*number].clone())),
            Shown::Several(numbers) => {
                let names = numbers.iter().map(|number| self.names[*number].clone());
                Some(Choice::Several(names.collect()))
            }
        }
    }

    /// The type of field number `field`; `None`: it is bytes.
    pub(crate) fn kind(&self, field: usize) -> Option<&FieldType> {
        self.types.of(field)
    }

    /// The field that represents the sample.
    pub(crate) fn one(&self) -> Option<usize> {
        match &self.shown {
            Shown::One(number) => Some(*number),
            _ => None,
        }
    }

    /// The field that represents the sample: the one that was chosen, or the only one.
    pub(crate) fn sole(&self) -> Option<usize> {
        self.one().or_else(|| (self.names.len() == 1 && !self.are_several()).then_some(0))
    }

    /// Returns whether the field that represents the sample is a part of its record.
    fn divides(&self) -> bool {
        self.names.len() > 1 && self.one().is_some()
    }

    /// Returns whether a sample is a mapping of fields, and no buffer.
    pub(crate) fn are_several(&self) -> bool {
        match &self.shown {
            Shown::All => self.names.len() > 1,
            Shown::One(_) => false,
            Shown::Several(_) => true,
        }
    }

    /// The numbers of the fields that a sample maps.
    pub(crate) fn mapped(&self) -> Vec<usize> {
        match &self.shown {
            Shown::All => (0..self.names.len()).collect(),
            Shown::One(number) => vec![*number],
            Shown::Several(numbers) => numbers.clone(),
        }
    }

    /// The number of the field with this name, if a sample maps it.
    pub(crate) fn mapped_as(&self, py: Python<'_>, name: &[u8]) -> PyResult<usize> {
        let number = self.number_of(name).and_then(|number| match &self.shown {
            Shown::Several(numbers) if !numbers.contains(&number) => {
                let name = name.escape_ascii();
                let list = self.list(numbers);
                let text =
                    format!("the field {name} was not chosen: samples are shown with {list}");
                Err(Error::new(ErrorKind::NotFound, text))
            }
            _ => Ok(number),
        });
        number.map_err(|error| raise_lookup(py, &error))
    }

    /// The number of the field with this name or number.
    pub(crate) fn numbered(&self, given: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = given.py();
        let number = if convert::is_name(given) {
            let number = self.number_of(&convert::to_bytes(given)?);
            return number.map_err(|error| raise_lookup(py, &error));
        } else {
            let number: usize = given.extract()?;
            let is_one = number < self.names.len().max(1);
            is_one.then_some(number).ok_or_else(|| self.absent(&number.to_string()))
        };
        number.or_raise(py)
    }

    fn number_of(&self, name: &[u8]) -> Result<usize> {
        let number = self.names.iter().position(|known| known == name);
        number.ok_or_else(|| self.absent(&name.escape_ascii().to_string()))
    }

    fn absent(&self, given: &str) -> Error {
        let text = format!("samples have no field {given}: {}", self.listed());
        Error::new(ErrorKind::NotFound, text)
    }

    fn refused(&self, what: &str) -> Error {
        let text = format!("the option fields {what}; of samples: {}", self.listed());
        Error::new(ErrorKind::InvalidArgument, text)
    }

    fn listed(&self) -> String {
        match self.names.len() {
            0 => "they are not divided into fields".to_owned(),
            count => format!("they have {}", self.list(&(0..count).collect::<Vec<_>>())),
        }
    }

    fn list(&self, numbers: &[usize]) -> String {
        let names = numbers.iter().map(|number| self.names[*number].escape_ascii().to_string());
        names.collect::<Vec<_>>().join(", ")
    }

    /// The error for using a sample of several fields as a single buffer.
    pub(crate) fn unnamed(&self) -> Error {
        let name = self.names[self.mapped()[0]].escape_ascii();
        let list = self.list(&self.mapped());
        let text = format!("samples have several fields, and none is named: they have {list}");
        Error::new(ErrorKind::InvalidArgument, text).hint(format!(
            "ds[0][\"{name}\"] or batch[\"{name}\"], or batch.select(\"{name}\") for arrays, or \
             fields=\"{name}\" of dlfs.open or of a loader, which then stands for the sample"
        ))
    }

    /// The total length of the fields of a sample whose record has `record_len` bytes.
    pub(crate) fn len_of(&self, record_len: usize) -> usize {
        record_len.saturating_sub(table_len(self.names.len()) as usize)
    }
}

/// A batch that views keep alive, and its bytes in one buffer once that was requested.
pub(crate) struct Held {
    samples: Arc<Samples>,
    pub(crate) fields: Arc<Fields>,
    gathered: OnceLock<Box<[u8]>>,
    pub(crate) failures: Arc<Failures>,
}

enum Samples {
    Read(reader::Batch),
    /// Those of a pickle, and their records.
    Copied(Lent, Beside),
}

/// The parts of a pickled batch beside its records.
#[derive(Serialize, Deserialize)]
pub(crate) struct Beside {
    /// The end of each record.
    pub(crate) ends: Vec<usize>,
    pub(crate) ids: Vec<i64>,
    pub(crate) labels: Option<Vec<i64>>,
    pub(crate) epoch: u64,
    pub(crate) ends_epoch: bool,
    /// The source of each sample, if they are of a mixture.
    pub(crate) sources: Option<Vec<u32>>,
    pub(crate) columns: Vec<Values>,
    /// Names and types of all fields, and those that are shown if some were chosen.
    pub(crate) names: Vec<Vec<u8>>,
    pub(crate) types: Vec<Option<String>>,
    pub(crate) choice: Option<Choice>,
    /// Samples that could not be read: positions, ascending, and why.
    pub(crate) failures: Vec<(usize, ErrorKind, String)>,
}

/// The values of the samples of a batch in a typed column.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Values {
    pub(crate) name: String,
    pub(crate) kind: ColumnType,
    /// Ints, bools, numbers of texts, or the bits of f64; [`NO_LABEL`] or NaN for none.
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
    /// Returns whether the parts fit together, and to records of `len` bytes: a pickle is untrusted.
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

/// The directories of the samples of a batch; samples in a row with the same directory count once.
fn directories(batch: &reader::Batch) -> impl Iterator<Item = &Arc<Directory>> {
    let mut last: Option<&Arc<Directory>> = None;
    (0..batch.len()).filter_map(move |index| {
        let directory = batch.directory_of(index)?;
        let is_new = last.is_none_or(|last| !Arc::ptr_eq(last, directory));
        last = Some(directory);
        is_new.then_some(directory)
    })
}

impl Held {
    pub(crate) fn read(batch: reader::Batch, fields: Arc<Fields>, failures: Failures) -> Held {
        Held::new(Samples::Read(batch), fields, failures)
    }

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
        // Neighbours are mostly of one data set: its column is looked up once.
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

    /// The sample's record on media: never shown, but copied when it is sent to another process.
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
        if let Shown::Several(numbers) = &self.fields.shown {
            let lens =
                numbers.iter().map(|field| Ok(self.field(index, *field)?.map_or(0, <[u8]>::len)));
            return lens.sum();
        }
        if self.fields.are_several() {
            return Ok(self.fields.len_of(self.record(index).len()));
        }
        Ok(self.shown(index)?.map_or(0, <[u8]>::len))
    }

    /// All bytes, samples contiguous; copied the first time, unless they are contiguous already.
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
