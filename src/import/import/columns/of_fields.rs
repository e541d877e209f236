//! Typed columns whose values come from a field of the samples: a number, or a string.

use crate::import::field_types::{FieldColumn, is_named, no_field};
use crate::import::sources::{BadEntry, BadReason, Index, Source};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::{
    ColumnSpec, ColumnTable, ColumnType, MAX_TEXTS_BYTES, OwnedValue, Value,
};
use dlfs_format::format::field_type::{Element, FieldType};

use super::numbers::{Number, number};
use super::records::Cell;
use super::{ColumnFile, check_room, columns_of, joined};

/// An import's columns whose values come from fields.
#[derive(Debug)]
pub(crate) struct FieldColumns {
    columns: Vec<OfField>,
    /// The columns of the file of values, then these columns.
    specs: Vec<ColumnSpec>,
}

/// A column, and the field that its values come from.
#[derive(Debug)]
struct OfField {
    spec: ColumnSpec,
    /// The index of the field.
    field: u16,
    /// The name of the field, escaped for messages.
    name: String,
    /// The type of the field; `None`: the field is a string.
    from: Option<FieldType>,
}

impl FieldColumns {
    /// Resolves the columns `given` against the fields of a source. They must not have names of columns of `file`. A
    /// column that `image` has keeps its type there.
    ///
    /// # Errors
    /// `InvalidArgument`: a field does not exist, a column's name or type does not fit, or there are too many columns.
    pub(crate) fn new(
        given: &[FieldColumn],
        fields: &[Vec<u8>],
        types: &FieldTypes,
        file: Option<&ColumnFile>,
        image: Option<&Directory>,
    ) -> Result<FieldColumns> {
        let refused = |what: String| Error::new(ErrorKind::InvalidArgument, what);
        let mut specs = file.map_or_else(Vec::new, |file| file.columns.clone());
        let mut columns = Vec::new();
        for column in given {
            let name = column.field.escape_ascii().to_string();
            let known =
                fields.iter().position(|field| is_named(field, &column.field) && !field.is_empty());
            let Some(field) = known else { return Err(no_field(&column.field, fields)) };
            if specs.iter().any(|spec| spec.name == column.column) {
                return Err(refused(format!("column `{}` is given twice", column.column)));
            }
            let from = types.of(field).cloned();
            let in_image = image.and_then(|image| image.column(&column.column));
            let image_type = in_image.map(|column| column.kind());
            let kind = kind_of(column, image_type, from.as_ref()).map_err(refused)?;
            let spec = ColumnSpec { name: column.column.clone(), kind };
            specs.push(spec.clone());
            columns.push(OfField { spec, field: field as u16, name, from });
        }
        let mut all = columns_of(image);
        all.extend(specs.iter().filter(|spec| !all.contains(spec)).cloned().collect::<Vec<_>>());
        check_room(all.iter().map(|column| &column.name)).map_err(refused)?;
        Ok(FieldColumns { columns, specs })
    }

    /// Returns whether there are no columns.
    pub(crate) fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// `columns`, then those of these columns that it lacks.
    pub(crate) fn join(&self, columns: Vec<ColumnSpec>) -> Vec<ColumnSpec> {
        joined(columns, self.columns.iter().map(|column| &column.spec))
    }

    /// A table of these columns and those of the file, without rows.
    pub(crate) fn table(&self) -> ColumnTable {
        ColumnTable::new(&self.specs)
    }

    /// The values of these columns for the sample `name`; `bytes` returns the bytes of a field. `file` only counts for
    /// the total length of strings.
    ///
    /// # Errors
    /// `Field`: a field does not hold a value of its column.
    pub(crate) fn values<'b>(
        &self,
        name: &[u8],
        file: Option<&ColumnFile>,
        bytes: impl Fn(u16) -> Result<Option<&'b [u8]>, BadReason>,
    ) -> Result<Vec<OwnedValue>, BadReason> {
        let value = |column: &OfField| {
            let value =
                bytes(column.field)?.map_or(Ok(OwnedValue::None), |bytes| column.value(bytes));
            value.map_err(|what| BadReason::field(&column.name, what))
        };
        let values: Vec<OwnedValue> = self.columns.iter().map(value).collect::<Result<_, _>>()?;
        self.check_texts(name, file, &values)?;
        Ok(values)
    }

    /// Checks the total length of a sample's strings: those among `values`, and those in `file`.
    fn check_texts(
        &self,
        name: &[u8],
        file: Option<&ColumnFile>,
        values: &[OwnedValue],
    ) -> Result<(), BadReason> {
        let longest = values.iter().zip(&self.columns).max_by_key(|(value, _)| value.text_len());
        let Some((_, column)) = longest.filter(|(value, _)| value.text_len() > 0) else {
            return Ok(());
        };
        let row = file.map(|file| file.values(name)).unwrap_or_default();
        let beside = self.specs.iter().map(|spec| match row.get(spec) {
            Value::Text(text) => text.len(),
            _ => 0,
        });
        let len = values.iter().map(OwnedValue::text_len).chain(beside).sum::<usize>();
        if len <= MAX_TEXTS_BYTES {
            return Ok(());
        }
        let what =
            format!("and other columns have {len} bytes of text, more than {MAX_TEXTS_BYTES}");
        Err(BadReason::field(&column.name, what))
    }

    /// Appends the row of a sample: the values of `file`, and the `values` of its fields.
    pub(crate) fn push(
        &self,
        table: &mut ColumnTable,
        name: &[u8],
        file: Option<&ColumnFile>,
        values: &[OwnedValue],
    ) {
        let row = file.map(|file| file.values(name)).unwrap_or_default();
        table.push(|spec| {
            let at = self.columns.iter().position(|column| column.spec.name == spec.name);
            at.map_or_else(|| row.get(spec), |at| values[at].as_value())
        });
    }

    /// Sets the values of a source's rows; returns the rows whose fields hold no valid values.
    ///
    /// # Errors
    /// `Interrupted`: `goes_on` returned false.
    pub(crate) fn of_source(
        &self,
        source: &mut Source,
        file: Option<&ColumnFile>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<(u64, BadEntry)>> {
        let mut table = self.table();
        let mut bad = Vec::new();
        let index: &Index = source.index();
        let mut reader = source.reader();
        for row in 0..index.len() {
            if row.is_multiple_of(ROWS_PER_STEP) && !goes_on() {
                return Err(Error::new(ErrorKind::Interrupted, "the import was stopped"));
            }
            let is_wanted = |field: u16| self.columns.iter().any(|column| column.field == field);
            let wanted = index.payloads(row).filter(|payload| is_wanted(payload.field));
            let read = wanted.map(|payload| {
                self.check_len(payload.field, payload.len_bytes.into())?;
                let mut bytes = vec![0; payload.len_bytes as usize];
                reader.read(row, &payload, &mut bytes).map(|()| (payload.field, bytes))
            });
            let values = read.collect::<Result<Vec<_>, _>>().and_then(|read| {
                let of = |field: u16| read.iter().find(|(number, _)| *number == field);
                let bytes = |field| Ok(of(field).map(|(_, bytes)| &bytes[..]));
                self.values(index.name(row), file, bytes)
            });
            match values {
                Ok(values) => self.push(&mut table, index.name(row), file, &values),
                Err(reason) => {
                    bad.push((row, index.bad_row(row, reason)));
                    table.push(|_| Value::None); // so that later rows keep their numbers
                }
            }
        }
        source.index.columns = Some(table);
        Ok(bad)
    }

    /// Checks that a field of `len` bytes is not too long for its column.
    pub(crate) fn check_len(&self, field: u16, len: u64) -> Result<(), BadReason> {
        let column = self.columns.iter().find(|column| column.field == field);
        let Some(column) = column.filter(|_| len > MAX_TEXTS_BYTES as u64) else { return Ok(()) };
        let what = format!("has {len} bytes, and a column takes {MAX_TEXTS_BYTES} at most");
        Err(BadReason::field(&column.name, what))
    }
}

impl OfField {
    /// Converts the bytes of the field to a value.
    fn value(&self, bytes: &[u8]) -> Result<OwnedValue, String> {
        let column = &self.spec.name;
        let kind = self.spec.kind;
        let Some(from) = &self.from else {
            let text = std::str::from_utf8(bytes)
                .map_err(|_| format!("is no text, which column `{column}` takes"))?
                .trim();
            if text.is_empty() {
                return Ok(OwnedValue::None);
            }
            let value = Cell::Word(text).to_value(kind);
            return value.ok_or_else(|| format!("is `{text}`, and column `{column}` is {kind}"));
        };
        let number = number(from.element(), bytes);
        let value = match number {
            Number::Int(bit @ 0..=1) if kind == ColumnType::Bool => {
                Some(OwnedValue::Bool(bit == 1))
            }
            Number::Int(number) => i64::try_from(number).ok().map(OwnedValue::Int),
            Number::Float(number) if number.is_nan() => Some(OwnedValue::None),
            Number::Float(number) => Some(OwnedValue::Float(number)),
        };
        let value = value.filter(|value| kind.holds(value.as_value()));
        value.ok_or_else(|| format!("is {number}, which a column of type {kind} does not hold"))
    }
}

/// The type of a column: the given one, that of the image, or the natural one of its field. Refuses a type that cannot
/// hold the field.
fn kind_of(
    column: &FieldColumn,
    image_type: Option<ColumnType>,
    from: Option<&FieldType>,
) -> Result<ColumnType, String> {
    let name = &column.column;
    let field = column.field.escape_ascii();
    if let (Some(given), Some(image_type)) = (column.kind, image_type)
        && given != image_type
    {
        return Err(format!("column `{name}` is {given}, and in the image it is {image_type}"));
    }
    let given = column.kind.or(image_type);
    let Some(from) = from else {
        let without =
            || format!("column `{name}`: give its type as {field}:TYPE, since the field has none");
        return given.ok_or_else(without);
    };
    if from.dims().len() > 0 {
        return Err(format!(
            "column `{name}` has a number of each sample, and field {field} is {from}"
        ));
    }
    let fits: &[ColumnType] = match from.element() {
        Element::F16 | Element::Bf16 | Element::F32 => &[ColumnType::Float32, ColumnType::Float],
        Element::F64 => &[ColumnType::Float, ColumnType::Float32],
        Element::Bool => &[ColumnType::Bool, ColumnType::Int],
        _ => &[ColumnType::Int, ColumnType::Float, ColumnType::Float32],
    };
    let kind = given.unwrap_or(fits[0]);
    let wrong = || format!("column `{name}` is {kind}, and field {field} is {from}");
    fits.contains(&kind).then_some(kind).ok_or_else(wrong)
}

/// Rows between two checks for cancellation.
const ROWS_PER_STEP: u64 = 4096;
