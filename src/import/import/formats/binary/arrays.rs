//! Columns of Arrow schemas, and the values of Arrow arrays as cells: their bytes, without a copy if they are
//! contiguous.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    BinaryType, BinaryViewType, ByteArrayType, ByteViewType, LargeBinaryType, LargeUtf8Type,
    StringViewType, Utf8Type,
};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_buffer::{ArrowNativeType, Buffer};
use arrow_schema::{DataType, Field, Schema};
use serde::Deserialize;
use serde_json::Value;

use crate::import::formats::column::{CellKind, Cells, Column};
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::FieldBytes;
use dlfs_format::format::field_type::{Element, FieldType};

/// The columns of files with this schema.
pub(super) fn columns(schema: &Schema) -> Vec<Column> {
    let features = features(schema);
    let column = |field: &Arc<Field>| {
        let feature = Feature::deserialize(&features[field.name().as_str()]).unwrap_or_default();
        let shape = feature.shape().or_else(|| tensor_shape(field));
        let kind = kind_of(field.data_type(), shape);
        Column { classes: feature.names, ..Column::new(field.name(), kind) }
    };
    schema.fields().iter().map(column).collect()
}

/// The kind of the values of a column of the type `data`. `shape`: the shape of its arrays, if the metadata state it.
fn kind_of(data: &DataType, shape: Option<Vec<u32>>) -> CellKind {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary, LargeUtf8, Utf8, Utf8View};
    match data {
        DataType::Dictionary(_, values) => kind_of(values, shape),
        DataType::Struct(fields) if is_file(fields) => CellKind::Bytes,
        DataType::Null => CellKind::Nothing,
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) | Utf8 | LargeUtf8 | Utf8View => {
            CellKind::Bytes
        }
        data => match elements_of(data, shape) {
            Some(kind) => CellKind::Elements(kind),
            None => CellKind::Other(data.to_string()),
        },
    }
}

/// The schema for decoding a file: bytes and strings as views, which point into its pages and so save a copy.
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

/// The field with views in place of bytes and strings.
fn viewing(field: &Arc<Field>) -> Arc<Field> {
    let view = match field.data_type() {
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        _ => return field.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(view))
}

/// Returns whether `fields` are the struct in which Hugging Face stores an image or audio: bytes and a path.
fn is_file(fields: &[Arc<Field>]) -> bool {
    let has = |name: &str| fields.iter().any(|field| field.name() == name);
    fields.len() == 2 && has("bytes") && has("path")
}

/// The type of a field with numbers, or with lists of numbers. `None`: `data` has no such type.
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
        // Only the outermost list may differ in length from row to row.
        None if frees == 1 && dims[0] == 0 => FieldType::new(element, true, dims.split_off(1)).ok(),
        None => None,
    }
}

/// The element type of numbers; `None`: `data` is another type.
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

/// Arrow's metadata of a column of tensors.
#[derive(Debug, Deserialize)]
struct Tensor {
    shape: Vec<u32>,
    #[serde(default)]
    permutation: Option<Vec<u32>>,
}

/// The shape of the tensors in a column; `None` if it does not fit the column, or if the dimensions are permuted.
fn tensor_shape(field: &Field) -> Option<Vec<u32>> {
    let metadata = field.metadata();
    let is_tensor = |name: &&String| *name == TENSOR;
    metadata.get("ARROW:extension:name").filter(is_tensor)?;
    let text = metadata.get("ARROW:extension:metadata")?;
    let Tensor { shape, permutation } = serde_json::from_str(text).ok()?;
    let len = shape.iter().try_fold(1_u32, |len, dim| len.checked_mul(*dim))?;
    let fits = matches!(field.data_type(), DataType::FixedSizeList(_, items) if u32::try_from(*items) == Ok(len));
    (fits && permutation.is_none_or(|order| order.is_sorted())).then_some(shape)
}

/// The columns' features that Hugging Face writes into a schema's metadata; `null` if there are none.
fn features(schema: &Schema) -> Value {
    let text = schema.metadata().get("huggingface").map_or("", String::as_str);
    let mut found: Value = serde_json::from_str(text).unwrap_or_default();
    found.pointer_mut("/info/features").map(Value::take).unwrap_or_default()
}

/// The feature of a column, which Hugging Face's metadata define.
#[derive(Debug, Default, Deserialize)]
struct Feature {
    #[serde(rename = "_type", default)]
    kind: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    shape: Option<Vec<Option<u32>>>,
}

impl Feature {
    /// The shape of the arrays, if all have the same shape.
    fn shape(&self) -> Option<Vec<u32>> {
        let is_array = self.kind.starts_with("Array") && self.kind.ends_with('D');
        self.shape.as_ref().filter(|_| is_array)?.iter().copied().collect()
    }
}

/// The rows of a batch.
pub(super) struct BatchCells {
    columns: Vec<Values>,
    /// The rows that were not read yet.
    rows: Range<usize>,
}

impl BatchCells {
    /// The rows of `batch`, with the columns `read`; `None`: all columns.
    pub(super) fn new(batch: &RecordBatch, read: Option<&[usize]>) -> BatchCells {
        let columns = match read {
            Some(read) => read.iter().map(|at| Values::of(batch.column(*at))).collect(),
            None => batch.columns().iter().map(Values::of).collect(),
        };
        BatchCells { columns, rows: 0..batch.num_rows() }
    }

    /// Skips `rows` rows, or all that are left; returns the number skipped.
    pub(super) fn leave_out(&mut self, rows: u64) -> u64 {
        let rows = self.rows.len().min(usize::try_from(rows).unwrap_or(usize::MAX));
        self.rows.start += rows;
        rows as u64
    }

    /// Reads the next row; `None` after the last.
    pub(super) fn next_row(&mut self, cells: &mut Cells) -> Option<Result<(), BadReason>> {
        let row = self.rows.next()?;
        cells.clear();
        let cell = |column: &Values| column.cell(row).map(|cell| cells.push(cell));
        Some(self.columns.iter().try_for_each(cell))
    }
}

/// The values of a column.
struct Values {
    array: ArrayRef,
    find: FindBytes,
}

/// Finds the bytes of a range of rows, none of which is null. Only numbers, and lists of numbers, are found for several
/// rows at once; their bytes are contiguous.
type FindBytes = Box<dyn Fn(Range<usize>) -> Found>;

type Found = Result<Option<FieldBytes>, BadReason>;

impl Values {
    fn of(array: &ArrayRef) -> Values {
        Values { array: array.clone(), find: find_in(array) }
    }

    /// The bytes of a row; `None` for a null.
    fn cell(&self, row: usize) -> Found {
        if self.array.is_null(row) { Ok(None) } else { (self.find)(row..row + 1) }
    }

    /// The bytes of `rows`, the elements of a list.
    fn of_list(&self, rows: Range<usize>) -> Found {
        if self.array.null_count() > 0 && rows.clone().any(|row| self.array.is_null(row)) {
            return Err(BadReason::Syntax(if self.array.data_type().is_nested() {
                "a list of lists has one that is null"
            } else {
                "a list of numbers has one that is null"
            }));
        }
        (self.find)(rows)
    }
}

/// The way to find values in `array`. Of types that are not named here, only `Null` is read, which has no values.
fn find_in(array: &ArrayRef) -> FindBytes {
    match array.data_type() {
        DataType::Binary => slices::<BinaryType>(array),
        DataType::Utf8 => slices::<Utf8Type>(array),
        DataType::LargeBinary => slices::<LargeBinaryType>(array),
        DataType::LargeUtf8 => slices::<LargeUtf8Type>(array),
        DataType::BinaryView => views::<BinaryViewType>(array),
        DataType::Utf8View => views::<StringViewType>(array),
        DataType::FixedSizeBinary(len) => {
            fixed_size(array.as_fixed_size_binary().values().clone(), *len as usize)
        }
        DataType::List(_) => lists::<i32>(array),
        DataType::LargeList(_) => lists::<i64>(array),
        DataType::FixedSizeList(_, len) => {
            let inner = Values::of(array.as_fixed_size_list().values());
            let len = *len as usize;
            Box::new(move |rows| inner.of_list(rows.start * len..rows.end * len))
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            if dictionary.values().is_empty() {
                return Box::new(|_| Ok(None)); // all keys are null
            }
            let values = Values::of(dictionary.values());
            let keys = dictionary.normalized_keys();
            Box::new(move |rows| values.cell(keys[rows.start]))
        }
        DataType::Struct(fields) if is_file(fields) => {
            let bytes = array.as_struct().column_by_name("bytes").map(Values::of);
            Box::new(move |rows| {
                let found = bytes.as_ref().map_or(Ok(None), |bytes| bytes.cell(rows.start))?;
                let what = "its file is not in the row, only the path: embed the files first";
                found.map(Some).ok_or(BadReason::Syntax(what))
            })
        }
        DataType::Boolean => {
            let bools = array.as_boolean().clone();
            Box::new(move |rows| {
                let bytes: Vec<u8> = rows.map(|row| u8::from(bools.value(row))).collect();
                Ok(Some(bytes.into()))
            })
        }
        data => match element_of(data) {
            Some(element) => {
                let numbers = array.to_data();
                let each = element.len_bytes() as usize;
                fixed_size(numbers.buffers()[0].slice(numbers.offset() * each), each)
            }
            None => Box::new(|_| Ok(None)),
        },
    }
}

fn shared(bytes: &Arc<Buffer>, range: Range<usize>) -> Found {
    Ok(Some(FieldBytes::Shared(bytes.clone(), range)))
}

/// Values of `each` bytes.
fn fixed_size(bytes: Buffer, each: usize) -> FindBytes {
    let bytes = Arc::new(bytes);
    Box::new(move |rows| shared(&bytes, rows.start * each..rows.end * each))
}

/// Bytes or strings, which follow one another.
fn slices<T: ByteArrayType>(array: &ArrayRef) -> FindBytes {
    let array = array.as_bytes::<T>();
    let bytes = Arc::new(array.values().clone());
    let ends = array.offsets().clone();
    Box::new(move |rows| shared(&bytes, ends[rows.start].as_usize()..ends[rows.end].as_usize()))
}

/// Lists, whose elements follow one another.
fn lists<O: OffsetSizeTrait>(array: &ArrayRef) -> FindBytes {
    let array = array.as_list::<O>();
    let inner = Values::of(array.values());
    let ends = array.offsets().clone();
    Box::new(move |rows| inner.of_list(ends[rows.start].as_usize()..ends[rows.end].as_usize()))
}

/// Bytes or strings that views refer to.
fn views<T: ByteViewType>(array: &ArrayRef) -> FindBytes {
    let array = array.as_byte_view::<T>();
    let buffers: Vec<Arc<Buffer>> = array.data_buffers().iter().cloned().map(Arc::new).collect();
    let views = array.views().clone();
    Box::new(move |rows| viewed(&buffers, views[rows.start]))
}

/// The bytes that a view refers to. The view's first 4 bytes are their length. Up to 12 bytes follow in the view
/// itself. Longer values are in a buffer: bytes 8..12 of the view are the buffer's number, bytes 12..16 the offset.
fn viewed(buffers: &[Arc<Buffer>], view: u128) -> Found {
    let part = |shift: u32| (view >> shift) as u32 as usize;
    let len = part(0);
    if len <= INLINE_BYTES {
        return Ok(Some(view.to_le_bytes()[4..4 + len].to_vec().into()));
    }
    let at = part(96);
    shared(&buffers[part(64)], at..at + len)
}

/// Most bytes that a view contains itself.
const INLINE_BYTES: usize = 12;
/// The name of Arrow's extension type for a column of tensors.
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
        // The dimensions are permuted; the shape has another length; the metadata is broken; there is no shape.
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
