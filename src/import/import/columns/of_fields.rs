//! Typed columns whose values come from a field of the samples: a number, or a string.

use std::fmt;

use crate::import::field_types::{FieldColumn, is_named, no_field};
use crate::import::sources::{BadEntry, BadReason, Index, Source};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::{
    ColumnSpec, ColumnTable, ColumnType, MAX_TEXTS_BYTES, OwnedValue, Value,
};
use dlfs_format::format::field_type::{Element, FieldType};

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
    field: u16,
    name: String,
    /// The type of the field; `None`: the field is a string.
    from: Option<FieldType>,
}

impl FieldColumns {
    /// The columns `given`, for a source whose fields have these names and types. `file` has further columns.
    ///
    /// # Errors
    /// `InvalidArgument`: a field does not exist, or a column's name or type does not fit.
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
            let own = image.and_then(|image| image.column(&column.column)).map(|own| own.kind());
            let kind = kind_of(column, own, from.as_ref()).map_err(refused)?;
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

    /// `columns`, then these columns.
    pub(crate) fn join(&self, columns: Vec<ColumnSpec>) -> Vec<ColumnSpec> {
        joined(columns, self.columns.iter().map(|own| &own.spec))
    }

    /// A table of these columns and those of the file, without rows.
    pub(crate) fn table(&self) -> ColumnTable {
        ColumnTable::new(&self.specs)
    }

    /// The values of these columns for the sample `name`; `bytes` returns the bytes of a field. `file` is read only to
    /// check the total length of strings.
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

    /// Checks the total length of a sample's strings.
    fn check_texts(
        &self,
        name: &[u8],
        file: Option<&ColumnFile>,
        own: &[OwnedValue],
    ) -> Result<(), BadReason> {
        let longest = own.iter().zip(&self.columns).max_by_key(|(value, _)| value.text_len());
        let Some((_, column)) = longest.filter(|(value, _)| value.text_len() > 0) else {
            return Ok(());
        };
        let row = file.map(|file| file.values(name)).unwrap_or_default();
        let beside = self.specs.iter().map(|spec| match row.get(spec) {
            Value::Text(text) => text.len(),
            _ => 0,
        });
        let len = own.iter().map(OwnedValue::text_len).chain(beside).sum::<usize>();
        if len <= MAX_TEXTS_BYTES {
            return Ok(());
        }
        let what =
            format!("and other columns have {len} bytes of text, more than {MAX_TEXTS_BYTES}");
        Err(BadReason::field(&column.name, what))
    }

    /// Appends the row of a sample: the values of `file`, and the sample's `own` values.
    pub(crate) fn push(
        &self,
        table: &mut ColumnTable,
        name: &[u8],
        file: Option<&ColumnFile>,
        own: &[OwnedValue],
    ) {
        let row = file.map(|file| file.values(name)).unwrap_or_default();
        table.push(|spec| {
            let at = self.columns.iter().position(|column| column.spec.name == spec.name);
            at.map_or_else(|| row.get(spec), |at| own[at].as_value())
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
                let of = |field: u16| read.iter().find(|(own, _)| *own == field);
                let bytes = |field| Ok(of(field).map(|(_, bytes)| &bytes[..]));
                self.values(index.name(row), file, bytes)
            });
            match values {
                Ok(own) => self.push(&mut table, index.name(row), file, &own),
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

/// The type of a column.
fn kind_of(
    column: &FieldColumn,
    own: Option<ColumnType>,
    from: Option<&FieldType>,
) -> Result<ColumnType, String> {
    let name = &column.column;
    let field = column.field.escape_ascii();
    if let (Some(given), Some(own)) = (column.kind, own)
        && given != own
    {
        return Err(format!("column `{name}` is {given}, and in the image it is {own}"));
    }
    let given = column.kind.or(own);
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

/// A number of a field.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    /// Without a fraction.
    Int(i128),
    /// With a fraction.
    Float(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(number) => number.fmt(f),
            Number::Float(number) => number.fmt(f),
        }
    }
}

/// Decodes a number; `bytes` has the length of the element.
pub(crate) fn number(element: Element, bytes: &[u8]) -> Number {
    let mut wide = [0; 8];
    wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    let bits = u64::from_le_bytes(wide);
    match element {
        Element::U8 | Element::U16 | Element::U32 | Element::U64 | Element::Bool => {
            Number::Int(bits.into())
        }
        Element::I8 => Number::Int((bits as i8).into()),
        Element::I16 => Number::Int((bits as i16).into()),
        Element::I32 => Number::Int((bits as i32).into()),
        Element::I64 => Number::Int((bits as i64).into()),
        Element::F16 => Number::Float(of_half(bits as u16)),
        Element::Bf16 => Number::Float(f32::from_bits((bits as u32) << 16).into()),
        Element::F32 => Number::Float(f32::from_bits(bits as u32).into()),
        Element::F64 => Number::Float(f64::from_bits(bits)),
    }
}

/// Encodes `number` as an element and appends it; a float may be rounded within its range. `false`: the element type
/// does not hold the number.
pub(crate) fn put_number(element: Element, number: Number, into: &mut Vec<u8>) -> bool {
    let whole = match number {
        Number::Int(number) => Some(number),
        // The limit excludes larger floats, whose conversion saturates at the largest i128.
        Number::Float(number) => {
            Some(number as i128).filter(|whole| *whole as f64 == number && whole.abs() < 1 << 64)
        }
    };
    let float = match number {
        Number::Int(whole) => Some(whole as f64).filter(|float| *float as i128 == whole),
        Number::Float(number) => Some(number),
    };
    use Element::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    let len = element.len_bytes() as usize;
    let (least, end) = match element {
        Bool => (0, 2),
        U8 | U16 | U32 | U64 => (0, 1 << (8 * len)),
        _ => (-1 << (8 * len - 1), 1 << (8 * len - 1)),
    };
    match element {
        U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64 | Bool => {
            let whole = whole.filter(|whole| (least..end).contains(whole));
            whole.map(|whole| into.extend_from_slice(&whole.to_le_bytes()[..len]))
        }
        F32 => {
            let is_held = |narrow: &f32| match number {
                Number::Int(_) => float == Some(f64::from(*narrow)),
                Number::Float(float) => narrow.is_finite() || !float.is_finite(),
            };
            let narrow = float.map(|float| float as f32).filter(is_held);
            narrow.map(|narrow| into.extend_from_slice(&narrow.to_le_bytes()))
        }
        F64 => float.map(|float| into.extend_from_slice(&float.to_le_bytes())),
        // No caller converts numbers to 16-bit floats.
        F16 | Bf16 => None,
    }
    .is_some()
}

/// Converts an IEEE 754 16-bit float.
fn of_half(bits: u16) -> f64 {
    let wide = u32::from(bits >> 15) << 31 | u32::from(bits & 0x7fff) << 13;
    if bits & 0x7c00 == 0x7c00 {
        f32::from_bits(wide | 0x7f80_0000).into() // infinity or NaN
    } else {
        f64::from(f32::from_bits(wide)) * 2f64.powi(112) // the exponent bias of a 32-bit float is larger by 112
    }
}

/// Rows between two checks for cancellation.
const ROWS_PER_STEP: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_numbers_that_they_are() {
        for (bits, number) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333251953125),
            (0x0001, 2f64.powi(-24)),
            (0x7bff, 65504.0),
            (0x7c00, f64::INFINITY),
            (0x8000, -0.0),
        ] {
            assert_eq!(of_half(bits), number, "{bits:#06x}");
        }
        assert!(of_half(0x7e00).is_nan());
    }
}
