//! What views of a batch keep alive: its samples, as they were read or unpickled.
//!
//! On media, a sample of several fields is a record: a table of lengths, followed by the fields.
//! Python never sees the record: a sample is the field that was chosen when the data set was
//! opened, or else an object that has fields and is no buffer.

use std::sync::{Arc, OnceLock};

use dlfs::format::fields::{find, table_len};
use dlfs::{Error, ErrorKind, Result, reader};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::batch::NO_LABEL;
use crate::error::{raise, raise_invalid};
use crate::names;

/// The fields of the samples of a data set, and the one that represents the sample.
#[derive(Default)]
pub(crate) struct Fields {
    names: Vec<Vec<u8>>,
    chosen: Option<usize>,
}

impl Fields {
    /// Fields called `names`, as in the directory, and the one that represents the sample.
    pub(crate) fn new(names: &[Vec<u8>], chosen: Option<&[u8]>) -> Result<Fields> {
        let mut fields = Fields { names: names.to_vec(), chosen: None };
        fields.chosen = chosen.map(|name| fields.number_of(name)).transpose()?;
        Ok(fields)
    }

    pub(crate) fn names(&self) -> &[Vec<u8>] {
        &self.names
    }

    pub(crate) fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    /// Whether a sample is several buffers, of which none was chosen.
    pub(crate) fn are_several(&self) -> bool {
        self.names.len() > 1 && self.chosen.is_none()
    }

    /// The number of the field with this name or number.
    pub(crate) fn numbered(&self, given: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = given.py();
        let number = if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
            self.number_of(&names::to_bytes(given)?)
        } else {
            let number: usize = given.extract()?;
            let is_one = number < self.names.len().max(1);
            is_one.then_some(number).ok_or_else(|| self.absent(&number.to_string()))
        };
        number.map_err(|error| raise(py, &error))
    }

    fn number_of(&self, name: &[u8]) -> Result<usize> {
        let number = self.names.iter().position(|known| known == name);
        number.ok_or_else(|| self.absent(&name.escape_ascii().to_string()))
    }

    fn absent(&self, given: &str) -> Error {
        let text = format!("samples have no field {given}: {}", self.listed());
        Error::new(ErrorKind::NotFound, text)
    }

    fn listed(&self) -> String {
        let names = self.names.iter().map(|name| name.escape_ascii().to_string());
        match self.names.len() {
            0 => "they are not divided into fields".to_owned(),
            _ => format!("they have {}", names.collect::<Vec<_>>().join(", ")),
        }
    }

    /// Why a sample of several fields is not a single buffer.
    pub(crate) fn unnamed(&self) -> Error {
        let name = self.names[0].escape_ascii();
        let text = format!("samples have several fields, and none is named: {}", self.listed());
        Error::new(ErrorKind::InvalidArgument, text).hint(format!(
            "ds[0].field(\"{name}\") or batch.field(\"{name}\"), or open the data set with \
             fields=\"{name}\", which then stands for the sample"
        ))
    }

    /// The total length of the fields of a sample whose record has `record_len` bytes.
    pub(crate) fn len_of(&self, record_len: usize) -> usize {
        record_len.saturating_sub(table_len(self.names.len()) as usize)
    }
}

/// A batch that views keep alive, and its bytes in one buffer once that was requested.
pub(crate) struct Held {
    samples: Samples,
    fields: Arc<Fields>,
    gathered: OnceLock<Box<[u8]>>,
    absent: Absent,
}

enum Samples {
    Read(reader::Batch),
    Copied(Copied),
}

/// The content of a pickle.
pub(crate) struct Copied {
    pub(crate) records: PyBackedBytes,
    /// The end of each record in `records`.
    pub(crate) ends: Vec<usize>,
    pub(crate) ids: Vec<i64>,
    pub(crate) labels: Option<Vec<i64>>,
    pub(crate) epoch: u64,
    pub(crate) ends_epoch: bool,
}

impl Copied {
    /// Checks that the fields agree: a pickle is untrusted.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<Copied> {
        let rises =
            self.ends.is_sorted() && self.ends.last().copied().unwrap_or(0) == self.records.len();
        let labels = self.labels.as_ref().map_or(self.ids.len(), Vec::len);
        if rises && self.ids.len() == self.ends.len() && labels == self.ends.len() {
            return Ok(self);
        }
        Err(raise_invalid(py, "this is not a pickled batch: its parts do not fit together".into()))
    }
}

/// Requested samples that could not be read, by position, and why.
pub(crate) struct Absent(Vec<(usize, Error)>);

impl Absent {
    pub(crate) fn none() -> Absent {
        Absent(Vec::new())
    }

    /// Ascending by position.
    pub(crate) fn of(failures: Vec<(usize, Error)>) -> Absent {
        Absent(failures)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, (usize, Error)> {
        self.0.iter()
    }
}

impl Held {
    pub(crate) fn read(batch: reader::Batch, fields: Arc<Fields>, absent: Absent) -> Held {
        Held { samples: Samples::Read(batch), fields, gathered: OnceLock::new(), absent }
    }

    pub(crate) fn copied(copied: Copied, fields: Fields, absent: Absent) -> Held {
        let fields = Arc::new(fields);
        Held { samples: Samples::Copied(copied), fields, gathered: OnceLock::new(), absent }
    }

    pub(crate) fn fields(&self) -> &Fields {
        &self.fields
    }

    pub(crate) fn failures(&self) -> &Absent {
        &self.absent
    }

    /// Whether the sample could not be read.
    pub(crate) fn lacks(&self, index: usize) -> bool {
        let absent = &self.absent.0;
        !absent.is_empty() && absent.binary_search_by_key(&index, |failure| failure.0).is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        match &self.samples {
            Samples::Read(batch) => batch.len(),
            Samples::Copied(copied) => copied.ids.len(),
        }
    }

    pub(crate) fn id(&self, index: usize) -> i64 {
        match &self.samples {
            Samples::Read(batch) => batch.id(index).0 as i64,
            Samples::Copied(copied) => copied.ids[index],
        }
    }

    pub(crate) fn has_labels(&self) -> bool {
        match &self.samples {
            Samples::Read(batch) => batch.has_labels(),
            Samples::Copied(copied) => copied.labels.is_some(),
        }
    }

    pub(crate) fn label(&self, index: usize) -> Option<i64> {
        match &self.samples {
            Samples::Read(batch) => batch.label(index),
            Samples::Copied(copied) => copied
                .labels
                .as_ref()
                .map(|labels| labels[index])
                .filter(|label| *label != NO_LABEL),
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        match &self.samples {
            Samples::Read(batch) => batch.epoch().0,
            Samples::Copied(copied) => copied.epoch,
        }
    }

    pub(crate) fn ends_epoch(&self) -> bool {
        match &self.samples {
            Samples::Read(batch) => batch.ends_epoch(),
            Samples::Copied(copied) => copied.ends_epoch,
        }
    }

    /// The sample's record on media: never shown, but copied when it is sent to another process.
    pub(crate) fn record(&self, index: usize) -> &[u8] {
        match &self.samples {
            Samples::Read(batch) => batch.bytes(index),
            Samples::Copied(copied) => {
                let start = index.checked_sub(1).map_or(0, |before| copied.ends[before]);
                &copied.records[start..copied.ends[index]]
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
        match self.fields.chosen {
            Some(field) => self.field(index, field),
            None if self.fields.are_several() => Err(self.fields.unnamed()),
            None => Ok(Some(self.record(index))),
        }
    }

    /// Length of the sample; the total of its fields if it has several.
    pub(crate) fn len_bytes(&self, index: usize) -> Result<usize> {
        if self.fields.are_several() {
            return Ok(self.fields.len_of(self.record(index).len()));
        }
        Ok(self.shown(index)?.map_or(0, <[u8]>::len))
    }

    /// All bytes, samples contiguous; copied the first time, unless they are contiguous already.
    pub(crate) fn whole(&self) -> Result<&[u8]> {
        if let (Samples::Read(batch), None, false) =
            (&self.samples, self.fields.chosen, self.fields.are_several())
            && let Some(bytes) = batch.contiguous()
        {
            return Ok(bytes);
        }
        if let Some(gathered) = self.gathered.get() {
            return Ok(gathered);
        }
        let mut bytes = Vec::with_capacity((0..self.len()).map(|i| self.record(i).len()).sum());
        for index in 0..self.len() {
            bytes.extend_from_slice(self.shown(index)?.unwrap_or_default());
        }
        Ok(self.gathered.get_or_init(|| bytes.into()))
    }
}
