//! Decodes batches of rows on a separate thread, one batch ahead of the reader. The values of their Arrow arrays become
//! cells: their bytes, without a copy if they are contiguous.
//!
//! Decoders of other crates panic on some damaged files: [`caught`] turns this into an error of the file. The panic
//! hook that is set here suppresses the message and backtrace of such a panic; all other panics go to the previous
//! hook.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    BinaryType, BinaryViewType, ByteArrayType, ByteViewType, LargeBinaryType, LargeUtf8Type,
    StringViewType, Utf8Type,
};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_buffer::{ArrowNativeType, Buffer};
use arrow_schema::{DataType, Field, Schema};
use crossbeam_channel::{Receiver, bounded};
use serde::Deserialize;
use serde_json::Value;

use crate::import::formats::column::{CellKind, Cells, Column};
use crate::import::formats::rows::{RowError, RowReader};
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::{FieldBytes, StreamPlace};
use dlfs_base::Result;
use dlfs_base::threads::panic_message;
use dlfs_format::format::field_type::{Element, FieldType};

/// A batch of rows.
pub(super) struct Batch {
    /// Its rows.
    pub(super) rows: RecordBatch,
    /// The position in the file from which a reader can begin with this batch, if that is possible.
    pub(super) at: Option<u64>,
}

/// The batches of a file from a place on, in order.
pub(super) type Batches = Box<dyn Iterator<Item = Result<Batch, String>> + Send>;

/// Starts a thread that decodes `batches`. It ends after the last batch, or when the result is dropped.
///
/// # Errors
/// The operating system cannot start a thread.
fn decoded(mut batches: Batches) -> Result<Receiver<Result<Batch, String>>> {
    let (send, batch) = bounded(1);
    std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        while let Some(next) = caught(|| batches.next().transpose()).transpose() {
            let is_last = next.is_err();
            if send.send(next).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(batch)
}

/// Decoder of a file from a place on.
type Decode = Box<dyn FnOnce(StreamPlace) -> Result<Batches>>;

/// The rows of decoded batches.
#[derive(Default)]
pub(super) struct AheadRows {
    /// The columns of a batch that are read; `None`: all.
    pub(super) read: Option<Vec<usize>>,
    /// The decoder, until it has begun.
    decode: Option<Decode>,
    /// Set if batches begin at the row of a place, not before it.
    is_exact: bool,
    batches: Option<Receiver<Result<Batch, String>>>,
    batch: Option<BatchCells>,
    /// The place of the next row.
    next: StreamPlace,
    /// Number of rows to skip before the next row.
    unwanted: u64,
    /// The first row and the offset of each row group, if places are rows of these.
    pub(super) groups: Vec<(u64, u64)>,
}

impl AheadRows {
    /// The rows of the batches that `decode` returns. `is_exact`: they begin at the row of the place, not before it.
    pub(super) fn new(
        is_exact: bool,
        decode: impl FnOnce(StreamPlace) -> Result<Batches> + 'static,
    ) -> AheadRows {
        AheadRows { decode: Some(Box::new(decode)), is_exact, ..AheadRows::default() }
    }

    /// Continues with the rows of `batch`.
    ///
    /// # Errors
    /// The decoder's message.
    fn enter(&mut self, batch: &Batch) -> Result<(), String> {
        let mut cells = caught(|| Ok(BatchCells::new(&batch.rows, self.read.as_deref())))?;
        if let Some(at) = batch.at {
            self.next = StreamPlace { offset: at, ..StreamPlace::default() };
        }
        let left_out = cells.leave_out(self.unwanted);
        self.unwanted -= left_out;
        self.next.left_out += left_out;
        self.batch = Some(cells);
        Ok(())
    }
}

impl RowReader for AheadRows {
    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        let Some(decode) = self.decode.take() else { return Ok(()) };
        self.batches = Some(decoded(decode(from)?)?);
        self.unwanted = if self.is_exact { 0 } else { from.left_out };
        self.next = StreamPlace { left_out: from.left_out - self.unwanted, ..from };
        Ok(())
    }

    fn place(&self, rows: u64) -> StreamPlace {
        let begun = self.groups.partition_point(|(first, _)| *first <= rows);
        let Some((first, offset)) = begun.checked_sub(1).map(|at| self.groups[at]) else {
            return self.next;
        };
        StreamPlace { offset, left_out: rows - first, ..self.next }
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        loop {
            if let Some(row) = self.batch.as_mut().and_then(|batch| batch.next_row(cells)) {
                self.next.left_out += 1;
                return row.map(|()| true).map_err(RowError::Row);
            }
            self.batch = None;
            let Some(Ok(batch)) = self.batches.as_ref().map(Receiver::recv) else {
                return Ok(false);
            };
            let entered = batch.and_then(|batch| self.enter(&batch));
            entered.map_err(|what| RowError::File(BadReason::Decoder(what)))?;
        }
    }
}

thread_local! {
    /// Set while this thread runs a decoder.
    static DECODES: Cell<bool> = const { Cell::new(false) };
    /// Description of the decoder's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `decode`. A panic of the decoder becomes an error with the panic's location and message.
pub(super) fn caught<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    set_hook_once();
    let was_set = DECODES.replace(true);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    DECODES.set(was_set);
    decoded.unwrap_or_else(|_| Err(format!("its decoder failed {}", PANIC.take())))
}

fn set_hook_once() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(
            move |panic| if DECODES.get() { PANIC.set(described(panic)) } else { others(panic) },
        ));
    });
}

/// The panic's location, with a path from the crate's name on, and its message, on one line.
fn described(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map_or_else(String::new, |at| {
        let krate = at.file().rfind("/src/").and_then(|src| at.file()[..src].rfind('/'));
        let file = &at.file()[krate.map_or(0, |slash| slash + 1)..];
        format!("at {file}:{}", at.line())
    });
    let message = panic_message(panic.payload()).replace('\n', " ");
    format!("{place}: {message}")
}

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

fn viewing(field: &Arc<Field>) -> Arc<Field> {
    let view = match field.data_type() {
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        _ => return field.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(view))
}

/// Returns whether this is the struct in which Hugging Face stores images and audio: their bytes and their path.
fn is_file(fields: &[Arc<Field>]) -> bool {
    let has = |name: &str| fields.iter().any(|field| field.name() == name);
    fields.len() == 2 && has("bytes") && has("path")
}

/// The type of a field with numbers, or with lists of numbers.
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
    let fits = matches!(field.data_type(), DataType::FixedSizeList(_, own) if u32::try_from(*own) == Ok(len));
    (fits && permutation.is_none_or(|order| order.is_sorted())).then_some(shape)
}

/// The columns' features that Hugging Face writes into a schema's metadata; `null` if there are none.
fn features(schema: &Schema) -> Value {
    let text = schema.metadata().get("huggingface").map_or("", String::as_str);
    let mut found: Value = serde_json::from_str(text).unwrap_or_default();
    found.pointer_mut("/info/features").map(Value::take).unwrap_or_default()
}

/// The feature of a column.
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
struct BatchCells {
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
    find: Find,
}

/// Finds the bytes of a range of rows, none of which is null. Only numbers, and lists of numbers, are found for several
/// rows at once; their bytes are contiguous.
type Find = Box<dyn Fn(Range<usize>) -> Found>;

type Found = Result<Option<FieldBytes>, BadReason>;

impl Values {
    fn of(array: &ArrayRef) -> Values {
        Values { array: array.clone(), find: find_in(array) }
    }

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

fn find_in(array: &ArrayRef) -> Find {
    match array.data_type() {
        DataType::Binary => slices::<BinaryType>(array),
        DataType::Utf8 => slices::<Utf8Type>(array),
        DataType::LargeBinary => slices::<LargeBinaryType>(array),
        DataType::LargeUtf8 => slices::<LargeUtf8Type>(array),
        DataType::BinaryView => views::<BinaryViewType>(array),
        DataType::Utf8View => views::<StringViewType>(array),
        DataType::FixedSizeBinary(len) => {
            even(array.as_fixed_size_binary().values().clone(), *len as usize)
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
                even(numbers.buffers()[0].slice(numbers.offset() * each), each)
            }
            None => Box::new(|_| Ok(None)),
        },
    }
}

fn shared(bytes: &Arc<Buffer>, range: Range<usize>) -> Found {
    Ok(Some(FieldBytes::Shared(bytes.clone(), range)))
}

/// Values of `each` bytes.
fn even(bytes: Buffer, each: usize) -> Find {
    let bytes = Arc::new(bytes);
    Box::new(move |rows| shared(&bytes, rows.start * each..rows.end * each))
}

fn slices<T: ByteArrayType>(array: &ArrayRef) -> Find {
    let array = array.as_bytes::<T>();
    let bytes = Arc::new(array.values().clone());
    let ends = array.offsets().clone();
    Box::new(move |rows| shared(&bytes, ends[rows.start].as_usize()..ends[rows.end].as_usize()))
}

fn lists<O: OffsetSizeTrait>(array: &ArrayRef) -> Find {
    let array = array.as_list::<O>();
    let inner = Values::of(array.values());
    let ends = array.offsets().clone();
    Box::new(move |rows| inner.of_list(ends[rows.start].as_usize()..ends[rows.end].as_usize()))
}

fn views<T: ByteViewType>(array: &ArrayRef) -> Find {
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

/// The name of the thread.
const NAME: &str = "dlfs-decode";
/// Most bytes that a view contains itself.
const INLINE_BYTES: usize = 12;
const TENSOR: &str = "arrow.fixed_shape_tensor";

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn panics_of_decoders_are_told_on_one_line_and_all_others_are_printed() {
        const AGAIN: &str = "DLFS_TEST_GUARD";
        if std::env::var_os(AGAIN).is_some() {
            let told = caught::<()>(|| panic!("hidden\none")).unwrap_err();
            assert!(told.starts_with("its decoder failed at "), "{told}");
            assert!(told.contains("ahead.rs:") && told.ends_with(": hidden one"), "{told}");
            std::thread::spawn(|| panic!("of a thread")).join().unwrap_err();
            catch_unwind(|| panic!("behind it")).unwrap_err();
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        let name = std::thread::current().name().unwrap().to_owned();
        let ran = again.args(["--exact", &name, "--nocapture"]).env(AGAIN, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{printed}");
        assert!(printed.contains("of a thread") && printed.contains("behind it"), "{printed}");
        assert!(!printed.contains("hidden"), "{printed}");
    }

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
