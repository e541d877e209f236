//! Columns by id, read without I/O: the labels ([`Labels`]), and the typed columns ([`Column`]), which store their
//! values in a [`Labels`] too.
//!
//! The values of typed columns have the same bytes in memory as in the snapshot's section. The section begins with the
//! number of columns. For each column follow its name, the number of its type, the bytes per value and, for type str
//! ([`ColumnType::Text`]), the number of distinct strings and the strings, ascending. Next come the [types of the
//! fields](crate::format::field_type), if any field has a type. The values of each column follow, by id, from a
//! multiple of 8 bytes. Numbers are LEB128; strings have a length prefix.
//!
//! | type       | a value                                                                             |
//! |------------|-------------------------------------------------------------------------------------|
//! | int, bool  | like a label: 1, 2, 4 or 8 bytes; the smallest number means no value                |
//! | str        | likewise; the 0-based index of a string                                             |
//! | float, f32 | f64 or f32; NaN means no value                                                      |

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::directory::Bytes;
use crate::format::FormatError;
use crate::format::columns::{
    ColumnSpec, ColumnTable, ColumnType, MAX_COLUMNS, NONE_FLOAT, Value, value_of,
};
use crate::format::cursor::{Cursor, put_number, put_string, utf8};
use crate::format::error::{at_most, enough, equal, out_of_range};
use crate::format::field_type::FieldTypes;

/// A typed column: a value of each sample, by id.
#[derive(Debug, Clone)]
pub struct Column {
    spec: ColumnSpec,
    /// Ints, bools or indexes of strings, as integers; or the bytes of floats.
    values: Labels,
    /// The distinct strings of a column of type str, ascending. At least one sample has each of them.
    texts: Arc<[String]>,
}

impl Column {
    /// Name of the column.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Type of the values.
    pub fn kind(&self) -> ColumnType {
        self.spec.kind
    }

    /// Name and type.
    pub fn spec(&self) -> &ColumnSpec {
        &self.spec
    }

    /// The distinct strings of a column of type str, ascending. The stored values are indexes into this slice.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The value of `id`, deleted or not.
    pub fn get(&self, id: u64) -> Value<'_> {
        if self.spec.kind.is_float() {
            return self.float(id).map_or(Value::None, Value::Float);
        }
        value_of(self.spec.kind, self.values.get(id).unwrap_or(NO_LABEL), &self.texts)
    }

    /// The value of `id` as an integer: an int, a bool as 0 or 1, or the index of a string. `None` if `id` has no value
    /// or the column has floats.
    #[inline]
    pub fn int(&self, id: u64) -> Option<i64> {
        if self.spec.kind.is_float() { None } else { self.values.get(id) }
    }

    /// The floating-point number of `id`; `None` if `id` has no value or the column has another type.
    #[inline]
    pub fn float(&self, id: u64) -> Option<f64> {
        match self.spec.kind {
            ColumnType::Float => float_of(self.values.bytes_of(id)?, f64::from_le_bytes),
            ColumnType::Float32 => {
                float_of(self.values.bytes_of(id)?, |bytes| f32::from_le_bytes(bytes).into())
            }
            _ => None,
        }
    }

    /// The values by id, little-endian, of [`Column::width_bytes`] each: floats; or integers in two's complement, for
    /// ints, bools as 0 or 1, and indexes of strings. NaN or the smallest integer means no value.
    pub fn as_bytes(&self) -> &[u8] {
        self.values.as_bytes()
    }

    /// Bytes per value.
    pub fn width_bytes(&self) -> usize {
        self.values.width_bytes()
    }

    /// A column in which the first `num_base` ids have the values of `base`, and the following ids have the `new`
    /// values.
    fn extended<'v>(
        spec: &ColumnSpec,
        base: Option<&'v Column>,
        num_base: u64,
        new: impl Iterator<Item = Value<'v>> + Clone,
    ) -> Column {
        let (values, texts) = match spec.kind {
            ColumnType::Float => (floats_of(base, num_base, new, f64::to_le_bytes), Arc::default()),
            ColumnType::Float32 => {
                let narrow = |number| (number as f32).to_le_bytes();
                (floats_of(base, num_base, new, narrow), Arc::default())
            }
            ColumnType::Int | ColumnType::Bool => {
                let number = |value| match value {
                    Value::Int(number) => number,
                    Value::Bool(is_true) => is_true.into(),
                    _ => NO_LABEL,
                };
                let base = base.map(|base| &base.values);
                (ints_of(base, num_base, new.map(number)), Arc::default())
            }
            ColumnType::Text => {
                let old = (0..num_base).map(|id| base.map_or(Value::None, |base| base.get(id)));
                texts_of(old.chain(new))
            }
        };
        Column { spec: spec.clone(), values, texts }
    }

    /// A copy of the column in which ids for which `is_dropped` holds have no value. Strings that no sample uses any
    /// more are left out.
    fn without(&self, num_samples: u64, is_dropped: &dyn Fn(u64) -> bool) -> Column {
        let kept = |id| if is_dropped(id) { Value::None } else { self.get(id) };
        Column::extended(&self.spec, None, 0, (0..num_samples).map(kept))
    }
}

/// A column of integers in which the first `num_base` ids have the values of `base`.
fn ints_of(base: Option<&Labels>, num_base: u64, new: impl Iterator<Item = i64>) -> Labels {
    let new: Vec<i64> = new.collect();
    let mut range = LabelRange::default();
    new.iter().for_each(|number| range.take(*number));
    let count = num_base + new.len() as u64;
    let ints = Labels::extended(base, num_base, new.into_iter(), range);
    ints.unwrap_or_else(|| Labels::none(count))
}

/// A column of floats of `N` bytes in which the first `num_base` ids have the values of `base`.
fn floats_of<'v, const N: usize>(
    base: Option<&Column>,
    num_base: u64,
    new: impl Iterator<Item = Value<'v>>,
    to_bytes: impl Fn(f64) -> [u8; N],
) -> Labels {
    let mut bytes = base.map_or_else(Vec::new, |base| base.as_bytes().to_vec());
    let old = ((bytes.len() / N) as u64..num_base).map(|_| Value::None);
    for value in old.chain(new) {
        let number = if let Value::Float(number) = value { number } else { NONE_FLOAT };
        bytes.extend_from_slice(&to_bytes(number));
    }
    Labels::of_width(bytes.into(), N)
}

#[inline]
fn float_of<const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> f64) -> Option<f64> {
    let number = from(bytes.try_into().ok()?);
    (!number.is_nan()).then_some(number)
}

/// The distinct strings among `values`, ascending, and for each value the index of its string.
///
/// Rows share strings in memory. So each string is looked up by content once, and then found by its address.
fn texts_of<'v>(values: impl Iterator<Item = Value<'v>>) -> (Labels, Arc<[String]>) {
    // Strings are numbered in the order in which they are met, and then by their index in ascending order.
    let mut by_text: BTreeMap<&str, i64> = BTreeMap::new();
    let mut by_address: BTreeMap<(*const u8, usize), i64> = BTreeMap::new();
    let numbers = values.map(|value| {
        let Value::Text(text) = value else { return NO_LABEL };
        *by_address.entry((text.as_ptr(), text.len())).or_insert_with(|| {
            let next = by_text.len() as i64;
            *by_text.entry(text).or_insert(next)
        })
    });
    let numbers: Vec<i64> = numbers.collect();
    let mut index_of = vec![NO_LABEL; by_text.len()];
    for (&number, index) in by_text.values().zip(0..) {
        index_of[number as usize] = index;
    }
    let texts = by_text.into_keys().map(str::to_owned).collect();
    let index = |number| if number == NO_LABEL { NO_LABEL } else { index_of[number as usize] };
    (ints_of(None, 0, numbers.into_iter().map(index)), texts)
}

/// All typed columns of a directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct TypedColumns(Arc<[Column]>);

impl TypedColumns {
    pub(crate) fn all(&self) -> &[Column] {
        &self.0
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let texts = |column: &Column| column.texts.iter().map(String::len).sum::<usize>();
        self.0.iter().map(|column| (column.as_bytes().len() + texts(column)) as u64).sum()
    }

    /// The columns of `base`, which has the first `num_base` ids, extended by the rows of `new`. The columns of `new`
    /// begin with those of `base`, and its rows are in the order of slots. `slots` gives the row of each new id, in the
    /// order of ids.
    pub(crate) fn extended<I: Iterator<Item = u64> + Clone>(
        base: &TypedColumns,
        num_base: u64,
        new: &ColumnTable,
        slots: impl Fn() -> I,
    ) -> TypedColumns {
        let extended = |(index, column): (usize, &crate::format::columns::TableColumn)| {
            let values = slots().map(|slot| column.value(slot as usize));
            Column::extended(&column.spec, base.0.get(index), num_base, values)
        };
        TypedColumns(new.columns().iter().enumerate().map(extended).collect())
    }

    /// A copy of the columns in which ids for which `is_dropped` holds have no value.
    pub(crate) fn without(&self, num_samples: u64, is_dropped: &dyn Fn(u64) -> bool) -> Self {
        let columns = self.0.iter();
        TypedColumns(columns.map(|column| column.without(num_samples, is_dropped)).collect())
    }

    /// Encodes the section, with the types of the fields. Returns its bytes, and how many of them precede the values.
    pub(crate) fn encode(&self, field_types: &FieldTypes) -> (Vec<u8>, u64) {
        let mut out = Vec::new();
        put_number(&mut out, self.0.len() as u64);
        for column in self.0.iter() {
            put_string(&mut out, column.spec.name.as_bytes());
            put_number(&mut out, column.spec.kind.number());
            put_number(&mut out, column.width_bytes() as u64);
            if column.spec.kind == ColumnType::Text {
                put_number(&mut out, column.texts.len() as u64);
                column.texts.iter().for_each(|text| put_string(&mut out, text.as_bytes()));
            }
        }
        if !field_types.is_empty() {
            field_types.encode(&mut out);
        }
        let head_len = out.len() as u64;
        for column in self.0.iter() {
            out.resize(out.len().next_multiple_of(ALIGN), 0);
            out.extend_from_slice(column.as_bytes());
        }
        (out, head_len)
    }

    /// Decodes the section: the columns, whose values are slices of `bytes`, and the types of the fields. `head_len` is
    /// the number of bytes before the values.
    pub(crate) fn decode(
        bytes: &Bytes,
        head_len: u64,
        num_samples: u64,
        num_fields: usize,
    ) -> Result<(TypedColumns, FieldTypes), FormatError> {
        enough(WHAT, head_len, bytes.len())?;
        let mut head = Cursor::new(WHAT, &bytes[..head_len as usize]);
        let count = at_most("number of typed columns", head.number()?, MAX_COLUMNS as u64)?;
        let mut columns = Vec::new();
        let mut at = head_len as usize;
        for _ in 0..count {
            let name = utf8(WHAT, head.string()?)?.to_owned();
            let number = head.number()?;
            let width = head.number()?;
            let kind = ColumnType::from_number(number); // skip a column whose type a later release added
            let mut texts = Vec::new();
            if kind == Some(ColumnType::Text) {
                for _ in 0..head.count(1)? {
                    texts.push(utf8(WHAT, head.string()?)?.to_owned());
                }
            }
            let len = num_samples.saturating_mul(width);
            let start = at.next_multiple_of(ALIGN);
            enough(WHAT, (start as u64).saturating_add(len), bytes.len())?;
            at = start + len as usize;
            let stored = bytes.slice(start..at).expect("they are there");
            let Some(kind) = kind else { continue };
            let values = match kind {
                ColumnType::Float | ColumnType::Float32 => {
                    let expected = if kind == ColumnType::Float { 8 } else { 4 };
                    equal("bytes of a value of a typed column", expected, width)?;
                    Labels::of_width(stored, width as usize)
                }
                _ => Labels::from_bytes(stored, width, num_samples)?,
            };
            let spec = ColumnSpec { name, kind };
            columns.push(Column { spec, values, texts: texts.into() });
        }
        let field_types = match head.len() {
            0 => FieldTypes::default(),
            _ => FieldTypes::read(&mut head, num_fields)?,
        };
        // Ignore extra bytes after the field types and after the values: a later release may add them.
        let specs: Vec<ColumnSpec> = columns.iter().map(|column| column.spec.clone()).collect();
        crate::format::columns::check_columns(&specs)?;
        Ok((TypedColumns(columns.into()), field_types))
    }
}

/// Labels of all samples, by id, all as wide as the widest label. Typed columns store integers in the same form, and
/// floats as plain values of 4 or 8 bytes.
#[derive(Debug, Clone)]
pub struct Labels {
    pub(super) bytes: Bytes,
    /// Bytes per label: 1, 2, 4 or 8.
    width: usize,
}

impl Labels {
    /// Appends `labels` to the column of `base`, which has the first `num_base` ids. `labels` are in the order of ids,
    /// [`NO_LABEL`] for a sample without one; all others are within `range`. `None` if no sample has a label.
    pub(crate) fn extended(
        base: Option<&Labels>,
        num_base: u64,
        labels: impl Iterator<Item = i64>,
        mut range: LabelRange,
    ) -> Option<Labels> {
        let base_label = |id| base.and_then(|base| base.get(id)).unwrap_or(NO_LABEL);
        if base.is_some() {
            (0..num_base).for_each(|id| range.take(base_label(id)));
        }
        let (least, most) = range.0?;
        let fits = |width: &usize| least > absent(*width) && most <= max(*width);
        let width = WIDTHS.into_iter().find(fits).unwrap_or(8);
        let mut bytes = Vec::new();
        let mut from = 0;
        if let Some(base) = base.filter(|base| base.width == width) {
            bytes.extend_from_slice(&base.bytes);
            from = num_base;
        }
        for label in (from..num_base).map(base_label).chain(labels) {
            let label = if label == NO_LABEL { absent(width) } else { label };
            bytes.extend_from_slice(&label.to_le_bytes()[..width]);
        }
        Some(Labels { bytes: bytes.into(), width })
    }

    /// The column of `count` samples that have no label.
    pub(crate) fn none(count: u64) -> Labels {
        Labels { bytes: vec![absent(1) as u8; count as usize].into(), width: 1 }
    }

    /// The column from `bytes`, with `width` bytes a label, for `num_samples` samples.
    ///
    /// # Errors
    /// The width is invalid, or the length does not match.
    pub(crate) fn from_bytes(
        bytes: Bytes,
        width: u64,
        num_samples: u64,
    ) -> Result<Labels, FormatError> {
        let Some(width) = WIDTHS.into_iter().find(|known| *known as u64 == width) else {
            return Err(out_of_range("bytes of a label", width, 8));
        };
        let len = num_samples.saturating_mul(width as u64);
        equal("length of the labels", len, bytes.len() as u64)?;
        Ok(Labels { bytes, width })
    }

    /// A column of values of `width` bytes each, which are not labels.
    pub(super) fn of_width(bytes: Bytes, width: usize) -> Labels {
        Labels { bytes, width }
    }

    /// The bytes of the value of `id`.
    #[inline]
    pub(super) fn bytes_of(&self, id: u64) -> Option<&[u8]> {
        let at = usize::try_from(id).ok()?.checked_mul(self.width)?;
        self.bytes.get(at..at.checked_add(self.width)?)
    }

    /// The label of sample `id`, deleted or not; `None` if it has no label.
    #[inline]
    pub fn get(&self, id: u64) -> Option<i64> {
        let bytes = self.bytes_of(id)?;
        let mut wide = [0; 8];
        wide[8 - self.width..].copy_from_slice(bytes);
        let label = i64::from_le_bytes(wide) >> (64 - self.width * 8);
        (label != absent(self.width)).then_some(label)
    }

    /// Bytes per label: 1, 2, 4 or 8.
    pub fn width_bytes(&self) -> usize {
        self.width
    }

    /// The column: little-endian two's complement, by id; the smallest value means "no label".
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The smallest and the largest label; `None` if no sample has a label.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LabelRange(Option<(i64, i64)>);

impl LabelRange {
    /// Extends the range to include `label`; ignores [`NO_LABEL`].
    pub(crate) fn take(&mut self, label: i64) {
        if label != NO_LABEL {
            let (least, most) = self.0.unwrap_or((label, label));
            self.0 = Some((least.min(label), most.max(label)));
        }
    }
}

/// The value for "no label" while the column is built.
pub(crate) const NO_LABEL: i64 = i64::MIN;

/// The value for "no label" in a column of this width: the smallest one. So `i64::MIN` is not a valid label.
fn absent(width: usize) -> i64 {
    i64::MIN >> (64 - width * 8)
}

/// The largest label in a column of this width.
fn max(width: usize) -> i64 {
    i64::MAX >> (64 - width * 8)
}

/// Alignment of the start of a column's values, in bytes.
const ALIGN: usize = 8;
/// The widths of a label, in bytes.
const WIDTHS: [usize; 4] = [1, 2, 4, 8];
/// The name of these columns in errors.
const WHAT: &str = "typed columns of a snapshot";

#[cfg(test)]
mod tests {
    use super::*;

    fn column_of(labels: &[Option<i64>]) -> Option<Labels> {
        let labels = labels.iter().map(|label| label.unwrap_or(NO_LABEL));
        let mut range = LabelRange::default();
        labels.clone().for_each(|label| range.take(label));
        Labels::extended(None, 0, labels, range)
    }

    #[test]
    fn labels_take_the_bytes_that_the_widest_needs() {
        let cases = [
            (vec![Some(0), None, Some(127), Some(-127)], 1),
            (vec![Some(-128)], 2),
            (vec![Some(1000), Some(-32_767)], 2),
            (vec![Some(-32_768), None], 4),
            (vec![Some(1 << 31)], 8),
            (vec![Some(i64::MAX), Some(i64::MIN + 1), None], 8),
        ];
        for (labels, width) in cases {
            let column = column_of(&labels).unwrap();
            assert_eq!(column.width_bytes(), width, "{labels:?}");
            for (id, label) in labels.iter().enumerate() {
                assert_eq!(column.get(id as u64), *label);
            }
            assert_eq!(column.get(labels.len() as u64), None);
            assert_eq!(column.get(u64::MAX), None);
        }
        assert!(column_of(&[None, None]).is_none());
    }

    #[test]
    fn a_column_grows_to_what_it_is_when_made_at_once() {
        let labels = [None, Some(5), Some(-7), Some(300), None, Some(1 << 40)];
        for cut in 0..=labels.len() {
            let (before, after) = labels.split_at(cut);
            let base = column_of(before);
            let mut range = LabelRange::default();
            let after = after.iter().map(|label| label.unwrap_or(NO_LABEL));
            after.clone().for_each(|label| range.take(label));
            let grown = Labels::extended(base.as_ref(), cut as u64, after, range).unwrap();
            assert_eq!(grown.as_bytes(), column_of(&labels).unwrap().as_bytes(), "cut at {cut}");
        }
    }

    #[test]
    fn a_column_of_another_length_or_width_is_refused() {
        assert!(Labels::from_bytes(vec![0; 8].into(), 3, 2).is_err());
        assert!(Labels::from_bytes(vec![0; 8].into(), 4, 3).is_err());
        assert!(Labels::from_bytes(vec![0; 8].into(), 8, u64::MAX).is_err());
        assert!(Labels::from_bytes(vec![0; 8].into(), 4, 2).is_ok());
    }
}
