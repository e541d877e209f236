//! Checks the samples of a stream as they arrive: files of typed fields, values of columns, lengths, names.
//!
//! The check comes before the shuffle, so a rejected sample takes no place in any order.

use std::sync::OnceLock;

use crate::import::columns::{ColumnFile, FieldColumns, columns_of};
use crate::import::field_types::{FieldSpec, Typing, is_named};
use crate::import::options::ImportOptions;
use crate::import::sources::BadReason;
use crate::import::sources::index::MAX_SAMPLE_BYTES;
use crate::import::sources::sample_stream::{SampleStream, StreamSample};
use dlfs_base::Result;
use dlfs_format::directory::Directory;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_format::format::{FieldTypes, fields};

/// The references that samples are checked against.
#[derive(Clone, Copy)]
pub(super) struct Checks<'a> {
    /// The image that the samples are appended to. `None`: they begin a new image, or none.
    pub(super) image: Option<&'a Directory>,
    /// The file of column values. `None`: none is given.
    pub(super) file: Option<&'a ColumnFile>,
    pub(super) options: &'a ImportOptions,
    /// The columns whose values come from fields. Set by the first sample whose fields have their types; never, if the
    /// options name no such columns.
    pub(super) field_columns: &'a OnceLock<FieldColumns>,
}

impl Checks<'_> {
    /// The typed columns of the image, and those of the file.
    pub(super) fn columns(&self) -> Vec<ColumnSpec> {
        self.file.map_or_else(|| columns_of(self.image), |file| file.join(self.image))
    }
}

/// The samples of a stream that pass the checks. Files of typed fields are replaced by their elements, and the values
/// of columns that come from fields are filled in.
pub(super) struct Checked<'a> {
    /// The stream to check.
    from: Box<dyn SampleStream + 'a>,
    checks: Checks<'a>,
    /// The types of the fields in the samples that an interrupted import has written.
    known_types: FieldTypes,
    /// The types of the fields. Set by the first sample.
    typing: Option<Typing>,
}

impl<'a> Checked<'a> {
    /// Checks the samples of `from`. They follow samples of `known_types`.
    pub(super) fn new(
        from: Box<dyn SampleStream + 'a>,
        checks: Checks<'a>,
        known_types: FieldTypes,
    ) -> Checked<'a> {
        Checked { from, checks, known_types, typing: None }
    }

    /// Checks a sample. The inner error is the reason to reject it.
    fn check(&mut self, sample: &mut StreamSample) -> Result<Result<(), BadReason>> {
        if let Err(reason) = self.typing()?.of_sample(sample) {
            return Ok(Err(reason));
        }
        if let Err(reason) = self.values(sample)? {
            return Ok(Err(reason));
        }
        if let Some(image) = self.checks.image
            && image.lookup(&sample.name)?.is_some()
        {
            return Ok(Err(BadReason::NameTaken));
        }
        let len = sample.len_bytes() as u64 + fields::table_len(sample.fields.len());
        Ok(if len > MAX_SAMPLE_BYTES { Err(BadReason::TooLarge(len)) } else { Ok(()) })
    }

    /// The types of the fields. The options take precedence over the source.
    fn typing(&mut self) -> Result<&mut Typing> {
        let typing = match self.typing.take() {
            Some(typing) => typing,
            None => {
                let given = &self.checks.options.field_types;
                let is_given = |known: &FieldSpec| {
                    given.iter().any(|spec| is_named(&known.field, &spec.field))
                };
                let fields = self.from.fields();
                let types = self.from.field_types();
                let of_source = types.iter().map(|(field, kind)| FieldSpec {
                    field: fields[field].clone(),
                    kind: Some(kind.clone()),
                });
                let of_source = of_source.filter(|known| !is_given(known));
                let specs: Vec<FieldSpec> = given.iter().cloned().chain(of_source).collect();
                Typing::new(&specs, fields, self.checks.image)?.with_known(&self.known_types)
            }
        };
        Ok(self.typing.insert(typing))
    }

    /// Fills in the column values that come from the sample's fields.
    fn values(&mut self, sample: &mut StreamSample) -> Result<Result<(), BadReason>> {
        let Checks { image, file, options, field_columns } = self.checks;
        if options.field_columns.is_empty() {
            return Ok(Ok(()));
        }
        let columns = match field_columns.get() {
            Some(columns) => columns,
            None => {
                let given = &options.field_columns;
                let types = self.field_types();
                let columns = FieldColumns::new(given, self.from.fields(), &types, file, image)?;
                field_columns.get_or_init(|| columns)
            }
        };
        let values = columns.values(&sample.name, file, |field| {
            let bytes = sample.fields.get(usize::from(field)).and_then(Option::as_deref);
            let len = bytes.map_or(0, <[u8]>::len) as u64;
            columns.check_len(field, len).map(|()| bytes)
        });
        Ok(values.map(|values| sample.values = values))
    }
}

impl SampleStream for Checked<'_> {
    fn inner(&self) -> Option<&(dyn SampleStream + '_)> {
        Some(&*self.from)
    }

    fn inner_mut(&mut self) -> Option<&mut (dyn SampleStream + '_)> {
        Some(&mut *self.from)
    }

    fn field_types(&self) -> FieldTypes {
        self.typing.as_ref().map(Typing::types).unwrap_or_default()
    }

    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        while let Some(mut sample) = self.from.next_sample()? {
            match self.check(&mut sample)? {
                Ok(()) => {
                    self.from.accept(&mut sample);
                    return Ok(Some(sample));
                }
                Err(reason) => {
                    self.from.reject(&sample.name, reason);
                    self.from.give_back(sample);
                }
            }
        }
        Ok(None)
    }
}
