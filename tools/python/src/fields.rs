//! The fields of samples, and the choice of those that Python sees.
//!
//! On media, a sample of several fields is a record: a table of lengths, followed by the fields.
//! Python never sees the record: a sample is the field that was chosen, or else a mapping of names
//! to fields, which is no buffer.

use std::sync::Arc;

use dlfs::directory::Directory;
use dlfs::format::fields::table_len;
use dlfs::format::{FieldType, FieldTypes};
use dlfs::{Error, ErrorKind, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

use crate::convert;
use crate::error::{OrRaise as _, raise_lookup};

/// The choice of the option `fields`.
#[derive(Serialize, Deserialize)]
pub(crate) enum Choice {
    /// One name: the field is shown in place of the sample.
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
    /// Names of all fields by number; empty if samples are not divided into fields.
    pub(crate) names: Arc<[Vec<u8>]>,
    /// Types of all fields by number.
    pub(crate) types: Arc<FieldTypes>,
    shown: Shown,
}

/// The fields of a sample that Python sees, by number.
#[derive(Clone)]
enum Shown {
    /// A mapping of all fields; or one buffer, if samples have at most one field.
    All,
    /// This field, in place of the sample.
    One(usize),
    /// A mapping of these fields.
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

    /// The same fields, of which only those of `choice` are shown.
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

    /// The same fields, of which only those of the option `fields` are shown; `None` if the option is None.
    pub(crate) fn chosen(&self, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Fields>> {
        let Some(given) = given else { return Ok(None) };
        let choice = Choice::of(given)?;
        choice.map(|choice| self.choose(&choice)).transpose().or_raise(given.py())
    }

    /// The choice that [`Fields::choose`] was given; `None`: all fields are shown.
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

    /// The type of field number `field`; `None`: the field is bytes.
    pub(crate) fn kind(&self, field: usize) -> Option<&FieldType> {
        self.types.of(field)
    }

    /// The field that was chosen in place of the sample, if one was.
    pub(crate) fn one(&self) -> Option<usize> {
        match &self.shown {
            Shown::One(number) => Some(*number),
            _ => None,
        }
    }

    /// The field that is shown in place of the sample: the one that was chosen, or the only one.
    pub(crate) fn sole(&self) -> Option<usize> {
        self.one().or_else(|| (self.names.len() == 1 && !self.are_several()).then_some(0))
    }

    /// Returns whether a field is shown in place of the sample and is only a part of the record.
    pub(crate) fn divides(&self) -> bool {
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

    /// The numbers of the chosen fields, if a sample is a mapping of chosen fields.
    pub(crate) fn chosen_several(&self) -> Option<&[usize]> {
        if let Shown::Several(numbers) = &self.shown { Some(numbers) } else { None }
    }

    /// The numbers of the fields that a sample maps.
    pub(crate) fn mapped(&self) -> Vec<usize> {
        match &self.shown {
            Shown::All => (0..self.names.len()).collect(),
            Shown::One(number) => vec![*number],
            Shown::Several(numbers) => numbers.clone(),
        }
    }

    /// The number of the field with this name. Raises NameNotFound unless a sample maps the field.
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

    /// The number of the field that `given` means, a name or a number. Raises NameNotFound or NotFound if there is
    /// none.
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

    /// The number of the field with this name.
    fn number_of(&self, name: &[u8]) -> Result<usize> {
        let number = self.names.iter().position(|known| known == name);
        number.ok_or_else(|| self.absent(&name.escape_ascii().to_string()))
    }

    /// The error for a field that does not exist.
    fn absent(&self, given: &str) -> Error {
        let text = format!("samples have no field {given}: {}", self.listed());
        Error::new(ErrorKind::NotFound, text)
    }

    /// The error for a wrong option `fields`.
    fn refused(&self, what: &str) -> Error {
        let text = format!("the option fields {what}; of samples: {}", self.listed());
        Error::new(ErrorKind::InvalidArgument, text)
    }

    /// The fields of samples in words.
    fn listed(&self) -> String {
        match self.names.len() {
            0 => "they are not divided into fields".to_owned(),
            count => format!("they have {}", self.list(&(0..count).collect::<Vec<_>>())),
        }
    }

    /// The names of these fields, separated by commas.
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
