//! Values of Arrow arrays as cells: their bytes, without a copy where they lie together.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    BinaryType, BinaryViewType, ByteArrayType, ByteViewType, LargeBinaryType, LargeUtf8Type,
    StringViewType, Utf8Type,
};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use serde::Deserialize;

use super::column::{CellKind, Cells, Column};
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::FieldBytes;
use dlfs_format::format::field_type::{Element, FieldType};

/// The columns of files of this schema.
pub(super) fn columns(schema: &Schema) -> Vec<Column> {
    let features = Features::of(schema);
    let column = |field: &Arc<Field>| {
        let feature = features.of_column(field.name());
        let shape = feature.and_then(Feature::shape).or_else(|| tensor_shape(field));
        let mut column = Column::new(field.name(), kind_of(field.data_type(), shape));
        column.classes = feature.map(|feature| feature.names.clone()).unwrap_or_default();
        column
    };
    schema.fields().iter().map(column).collect()
}

fn kind_of(data: &DataType, shape: Option<Vec<u32>>) -> CellKind {
    match data {
        DataType::Dictionary(_, values) => kind_of(values, shape),
        DataType::Struct(fields) if is_file(fields) => CellKind::Bytes,
        DataType::Null => CellKind::Nothing,
        data if is_bytes(data) => CellKind::Bytes,
        data => match elements_of(data, shape) {
            Some(kind) => CellKind::Elements(kind),
            None => CellKind::Other(data.to_string()),
        },
    }
}

/// The schema to decode a file with: bytes and text as views, which point into its pages, where that saves a copy.
pub(super) fn with_views(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Struct(inner) if is_file(inner) => {
            let inner = inner.iter().map(viewing).collect();
            Arc::new(field.as_ref().clone().with_data_type(DataType::Struct(inner)))
        }
        _ => viewing(field),
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

fn viewing(field: &Arc<Field>) -> Arc<Field> {
    let view = match field.data_type() {
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        _ => return field.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(view))
}

fn is_bytes(data: &DataType) -> bool {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(
        data,
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) | Utf8 | LargeUtf8 | Utf8View
    )
}

/// Returns whether this is the struct in which Hugging Face stores images and audio: their bytes and their path.
fn is_file(fields: &[Arc<Field>]) -> bool {
    let has = |name: &str| fields.iter().any(|field| field.name() == name);
    fields.len() == 2 && has("bytes") && has("path")
}

/// The type of a field with numbers, or lists of them.
fn elements_of(data: &DataType, shape: Option<Vec<u32>>) -> Option<FieldType> {
    let mut inner = data;
    let mut dims = Vec::new();
    let mut frees = 0;
    loop {
        inner = match inner {
            DataType::FixedSizeList(of, len) => {
                dims.push(u32::try_from(*len).ok()?);
                of.data_type()
            }
            DataType::List(of) | DataType::LargeList(of) => {
                dims.push(0);
                frees += 1;
                of.data_type()
            }
            _ => break,
        };
    }
    let element = element_of(inner)?;
    match shape {
        Some(shape) => FieldType::new(element, false, shape).ok(),
        None if frees == 0 => FieldType::new(element, false, dims).ok(),
        // The number of those that lie outermost may differ from row to row, but no other.
        None if frees == 1 && dims[0] == 0 => FieldType::new(element, true, dims.split_off(1)).ok(),
        None => None,
    }
}

fn element_of(data: &DataType) -> Option<Element> {
    Some(match data {
        DataType::Boolean => Element::Bool,
        DataType::UInt8 => Element::U8,
        DataType::Int8 => Element::I8,
        DataType::UInt16 => Element::U16,
        DataType::Int16 => Element::I16,
        DataType::UInt32 => Element::U32,
        DataType::Int32 => Element::I32,
        DataType::UInt64 => Element::U64,
        DataType::Int64 => Element::I64,
        DataType::Float16 => Element::F16,
        DataType::Float32 => Element::F32,
        DataType::Float64 => Element::F64,
        _ => return None,
    })
}

/// Arrow's own description of a column of tensors.
#[derive(Debug, Deserialize)]
struct Tensor {
    shape: Vec<u32>,
    #[serde(default)]
    permutation: Option<Vec<u32>>,
}

/// The shape of each tensor in a column of them; none where its dimensions do not lie in their order.
fn tensor_shape(field: &Field) -> Option<Vec<u32>> {
    let metadata = field.metadata();
    let is_tensor = |name: &&String| *name == TENSOR;
    metadata.get("ARROW:extension:name").filter(is_tensor)?;
    let text = metadata.get("ARROW:extension:metadata")?;
    let Tensor { shape, permutation } = serde_json::from_str(text).ok()?;
    let len = shape.iter().try_fold(1_u32, |len, dim| len.checked_mul(*dim))?;
    let fits = matches!(field.data_type(), DataType::FixedSizeList(_, own) if u32::try_from(*own) == Ok(len));
    (fits && permutation.is_none_or(|order| order.is_sorted())).then_some(shape)
}

/// The features that Hugging Face writes beside a schema.
#[derive(Debug, Default, Deserialize)]
struct Features {
    #[serde(default)]
    info: Info,
}

#[derive(Debug, Default, Deserialize)]
struct Info {
    #[serde(default)]
    features: serde_json::Map<String, serde_json::Value>,
    #[serde(skip)]
    parsed: Vec<(String, Feature)>,
}

/// The feature of a column.
#[derive(Debug, Clone, Deserialize)]
struct Feature {
    #[serde(rename = "_type", default)]
    kind: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    shape: Option<Vec<Option<u32>>>,
}

impl Features {
    /// Those of a schema; none where there are none, or where they are not understood.
    fn of(schema: &Schema) -> Features {
        let text = schema.metadata().get("huggingface").map_or("{}", String::as_str);
        let mut found: Features = serde_json::from_str(text).unwrap_or_default();
        let features = std::mem::take(&mut found.info.features).into_iter();
        let parse = |(name, value)| Some((name, serde_json::from_value(value).ok()?));
        found.info.parsed = features.filter_map(parse).collect();
        found
    }

    fn of_column(&self, name: &str) -> Option<&Feature> {
        self.info.parsed.iter().find(|(own, _)| own == name).map(|(_, feature)| feature)
    }
}

impl Feature {
    /// The shape of each array, where all have the same.
    fn shape(&self) -> Option<Vec<u32>> {
        let is_array = self.kind.starts_with("Array") && self.kind.ends_with('D');
        self.shape.as_ref().filter(|_| is_array)?.iter().copied().collect()
    }
}

/// The rows of a batch.
pub(super) struct BatchCells {
    columns: Vec<Values>,
    rows: usize,
    next: usize,
}

impl BatchCells {
    /// The rows of `batch`.
    pub(super) fn new(batch: &RecordBatch, read: Option<&[usize]>) -> BatchCells {
        let columns = match read {
            Some(read) => read.iter().map(|at| Values::of(batch.column(*at))).collect(),
            None => batch.columns().iter().map(Values::of).collect(),
        };
        BatchCells { columns, rows: batch.num_rows(), next: 0 }
    }

    /// Leaves out so many rows, or all that are left; returns how many.
    pub(super) fn leave_out(&mut self, rows: u64) -> u64 {
        let rows = (self.rows - self.next).min(usize::try_from(rows).unwrap_or(usize::MAX));
        self.next += rows;
        rows as u64
    }

    /// The next row. `None`: there is none.
    pub(super) fn next_row(&mut self, cells: &mut Cells) -> Option<Result<(), BadReason>> {
        if self.next == self.rows {
            return None;
        }
        let row = self.next;
        self.next += 1;
        cells.clear();
        for column in &self.columns {
            match column.cell(row) {
                Ok(cell) => cells.push(cell),
                Err(reason) => return Some(Err(reason)),
            }
        }
        Some(Ok(()))
    }
}

/// Memory that Arrow holds.
struct Held(Buffer);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// The values of a column.
struct Values {
    array: ArrayRef,
    at: Place,
}

/// Location of the bytes of the values.
enum Place {
    /// In this buffer, each at its offsets.
    Slices(Arc<Held>, Offsets),
    /// In this buffer, so many bytes each.
    Even(Arc<Held>, usize),
    /// Within the elements of these lists.
    Lists(Box<Values>, Offsets),
    /// The value of this key.
    Keys(Box<Values>, Vec<usize>),
    /// The bytes of this field of a struct.
    File(Box<Values>),
    /// In one of these buffers, or within its view.
    Views(Vec<Arc<Held>>, ScalarBuffer<u128>),
    /// Booleans.
    Copied,
    /// There are none.
    Nothing,
}

/// The start and end of each value.
enum Offsets {
    Short(OffsetBuffer<i32>),
    Long(OffsetBuffer<i64>),
    Even(usize),
}

impl Offsets {
    fn range(&self, row: usize) -> Range<usize> {
        match self {
            Offsets::Short(ends) => ends[row] as usize..ends[row + 1] as usize,
            Offsets::Long(ends) => ends[row] as usize..ends[row + 1] as usize,
            Offsets::Even(len) => row * len..(row + 1) * len,
        }
    }
}

impl Values {
    fn of(array: &ArrayRef) -> Values {
        let at = place_of(array);
        Values { array: array.clone(), at }
    }

    fn cell(&self, row: usize) -> Result<Option<FieldBytes>, BadReason> {
        if self.array.is_null(row) {
            return Ok(None);
        }
        if let Place::File(bytes) = &self.at {
            return match bytes.cell(row)? {
                None => Err(BadReason::Syntax(
                    "its file is not in the row, only the path: embed the files first",
                )),
                some => Ok(some),
            };
        }
        self.range(row..row + 1)
    }

    /// The bytes of these rows, one after the other.
    fn range(&self, rows: Range<usize>) -> Result<Option<FieldBytes>, BadReason> {
        let shared = |held: &Arc<Held>, range| Some(FieldBytes::Shared(held.clone(), range));
        if self.array.null_count() > 0 && rows.clone().any(|row| self.array.is_null(row)) {
            return Err(BadReason::Syntax(match &self.at {
                Place::Lists(..) => "a list of lists has one that is null",
                _ => "a list of numbers has one that is null",
            }));
        }
        Ok(match &self.at {
            Place::Slices(held, offsets) => shared(held, offsets.range(rows.start)),
            Place::Even(held, each) => shared(held, rows.start * each..rows.end * each),
            Place::Lists(inner, offsets) => {
                let start = if rows.is_empty() { 0 } else { offsets.range(rows.start).start };
                let end = if rows.is_empty() { 0 } else { offsets.range(rows.end - 1).end };
                inner.range(start..end)?
            }
            Place::Keys(values, keys) => values.cell(keys[rows.start])?,
            Place::File(bytes) => bytes.cell(rows.start)?,
            Place::Views(held, views) => Some(viewed(held, views[rows.start])),
            Place::Copied => Some(self.copied(rows).into()),
            Place::Nothing => None,
        })
    }

    fn copied(&self, rows: Range<usize>) -> Vec<u8> {
        let bools = self.array.as_boolean();
        rows.map(|row| u8::from(bools.value(row))).collect()
    }
}

/// The bytes of a view, whose first 4 bytes are their number. Up to 12 bytes follow there; more are in a buffer, of
/// which bytes 8 to 12 of the view are the number, and the last 4 the place in it.
fn viewed(held: &[Arc<Held>], view: u128) -> FieldBytes {
    let part = |shift: u32| (view >> shift) as u32 as usize;
    let len = part(0);
    if len <= INLINE_BYTES {
        return view.to_le_bytes()[4..4 + len].to_vec().into();
    }
    let buffer = part(64);
    let at = part(96);
    FieldBytes::Shared(held[buffer].clone(), at..at + len)
}

fn place_of(array: &ArrayRef) -> Place {
    match array.data_type() {
        DataType::Binary => slices::<BinaryType>(array, Offsets::Short),
        DataType::Utf8 => slices::<Utf8Type>(array, Offsets::Short),
        DataType::LargeBinary => slices::<LargeBinaryType>(array, Offsets::Long),
        DataType::LargeUtf8 => slices::<LargeUtf8Type>(array, Offsets::Long),
        DataType::BinaryView => views::<BinaryViewType>(array),
        DataType::Utf8View => views::<StringViewType>(array),
        DataType::FixedSizeBinary(len) => {
            Place::Even(held(array.as_fixed_size_binary().values()), *len as usize)
        }
        DataType::List(_) => lists(array, Offsets::Short),
        DataType::LargeList(_) => lists(array, Offsets::Long),
        DataType::FixedSizeList(_, len) => {
            let inner = Box::new(Values::of(array.as_fixed_size_list().values()));
            Place::Lists(inner, Offsets::Even(*len as usize))
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            if dictionary.values().is_empty() {
                return Place::Nothing; // all keys are null
            }
            let values = Box::new(Values::of(dictionary.values()));
            Place::Keys(values, dictionary.normalized_keys())
        }
        DataType::Struct(fields) if is_file(fields) => {
            let bytes = array.as_struct().column_by_name("bytes");
            bytes.map_or(Place::Nothing, |bytes| Place::File(Box::new(Values::of(bytes))))
        }
        DataType::Boolean => Place::Copied,
        data => match element_of(data) {
            Some(element) => {
                let numbers = array.to_data();
                let each = element.len_bytes() as usize;
                Place::Even(held(&numbers.buffers()[0].slice(numbers.offset() * each)), each)
            }
            None => Place::Nothing,
        },
    }
}

fn held(buffer: &Buffer) -> Arc<Held> {
    Arc::new(Held(buffer.clone()))
}

fn slices<T: ByteArrayType>(
    array: &ArrayRef,
    offsets: fn(OffsetBuffer<T::Offset>) -> Offsets,
) -> Place {
    let array = array.as_bytes::<T>();
    Place::Slices(held(array.values()), offsets(array.offsets().clone()))
}

fn views<T: ByteViewType>(array: &ArrayRef) -> Place {
    let array = array.as_byte_view::<T>();
    Place::Views(array.data_buffers().iter().map(held).collect(), array.views().clone())
}

fn lists<O: OffsetSizeTrait>(array: &ArrayRef, offsets: fn(OffsetBuffer<O>) -> Offsets) -> Place {
    let array = array.as_list::<O>();
    Place::Lists(Box::new(Values::of(array.values())), offsets(array.offsets().clone()))
}

/// The most bytes that lie in a view itself.
const INLINE_BYTES: usize = 12;
const TENSOR: &str = "arrow.fixed_shape_tensor";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_the_shape_that_arrow_says_where_it_can_be_so() {
        let shown = |len: i32, metadata: &str| {
            let item = Arc::new(Field::new_list_field(DataType::Float32, true));
            let field = Field::new("t", DataType::FixedSizeList(item, len), true).with_metadata([
                ("ARROW:extension:name".to_owned(), TENSOR.to_owned()),
                ("ARROW:extension:metadata".to_owned(), metadata.to_owned()),
            ]);
            columns(&Schema::new(vec![field]))[0].shown()
        };
        assert_eq!(shown(6, r#"{"shape": [2, 3]}"#), "f32[2,3]");
        assert_eq!(shown(6, r#"{"shape": [2, 3], "permutation": [0, 1]}"#), "f32[2,3]");
        // The bytes are those of another order; the shape is that of another length; there is none.
        for flat in
            [r#"{"shape": [2, 3], "permutation": [1, 0]}"#, r#"{"shape": [2, 4]}"#, "{", "{}"]
        {
            assert_eq!(shown(6, flat), "f32[6]", "{flat}");
        }
    }

    #[test]
    fn rows_of_a_dictionary_without_values_have_none() {
        let values = Arc::new(arrow_array::StringArray::new_null(0));
        let keys = arrow_array::Int8Array::new_null(2);
        let column: ArrayRef = Arc::new(arrow_array::DictionaryArray::new(keys, values));
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let mut rows = BatchCells::new(&batch, None);
        let mut cells = Cells::new();
        for _ in 0..2 {
            rows.next_row(&mut cells).unwrap().unwrap();
            assert!(cells[0].is_none());
        }
        assert!(rows.next_row(&mut cells).is_none());
    }
}
