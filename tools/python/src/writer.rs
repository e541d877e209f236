//! `Writer`: writes an image, or a part of one, sample by sample; and the conversion of Python's values for that.

use std::fmt;

use dlfs::ErrorKind;
use dlfs::address::{Address, CatalogName};
use dlfs::dataset::cataloging::{self, Origin};
use dlfs::format::columns::{ColumnSpec, ColumnType, Value};
use dlfs::format::field_type::FieldType;
use dlfs::format::npy::Element;
use dlfs::format::{FieldTypes, Pack};
use dlfs::import::many::Output;
use dlfs::import::{
    self, ImportOptions, Label, NewSample, Onto, WriteOrder, WriteReport, WriterOptions,
};
use dlfs::qpair::ConnectOptions;
use dlfs::units::Generation;
use parking_lot::Mutex;
use pyo3::exceptions::{PyKeyError, PyTypeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyMemoryView, PyString};

use crate::dataset::addresses;
use crate::error::{OrRaise as _, detached, raise_invalid};
use crate::options::given_or;
use crate::plan::{WritePlan, part_dict};
use crate::{convert, options};

/// Writes the samples of a program; `dlfs.Writer` and `dlfs.PartWriter` are its Python halves.
#[pyclass(frozen, subclass, module = "dlfs._dlfs")]
pub(crate) struct Writer {
    /// `None` once it is finished or discarded.
    writer: Mutex<Option<Output>>,
    /// The keys of a sample that are fields, and their types; empty for one field without a name.
    fields: Vec<(Py<PyString>, Option<FieldType>)>,
    /// The keys of a sample that are columns.
    columns: Vec<(Py<PyString>, ColumnSpec)>,
    /// The addresses of the image.
    image: Vec<Address>,
    connect: ConnectOptions,
    /// Treatment of the image's earlier contents.
    onto: Onto,
    /// The name that the image gets in a catalogue.
    catalog: Option<CatalogName>,
}

#[pymethods]
impl Writer {
    /// A writer of the image at `address`; or, where that is a plan, of the part that `how` names.
    #[new]
    fn new(
        address: &Bound<'_, PyAny>,
        how: &Bound<'_, PyDict>,
        connection: &Bound<'_, PyDict>,
    ) -> PyResult<Writer> {
        let py = address.py();
        if let Ok(plan) = address.cast::<WritePlan>() {
            let plan = plan.get();
            let held = Output::Part(Box::new(plan.begin(how)?));
            let image = plan.plan.image().to_vec();
            return Writer::of(py, held, image, plan.connect.clone(), Onto::Empty, None);
        }
        let image = addresses(address)?;
        let connect = options::connection(connection)?;
        let options = writer_options(how)?;
        let onto = options.image.onto;
        let catalog = given_or(how, "catalog", None::<String>)?;
        let catalog = catalog.map(|name| catalog_name(py, &name)).transpose()?;
        let made = detached(py, |_| {
            let made = import::Writer::create(&image, options, &connect);
            made.map_err(|error| match error.kind() {
                ErrorKind::Refused => error.hint(
                    "append=True adds to the image that is there, overwrite=True replaces it",
                ),
                _ => error,
            })
        })?;
        Writer::of(py, Output::Image(Box::new(made)), image, connect, onto, catalog)
    }

    /// Writes a sample: a mapping of fields and columns, or the bytes of the only field. Returns its id.
    #[pyo3(signature = (sample, *, name=None, label=None))]
    fn write(
        &self,
        sample: &Bound<'_, PyAny>,
        name: Option<&Bound<'_, PyAny>>,
        label: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let py = sample.py();
        let name = name.map(name_of).transpose()?;
        let label = label.map(Labelled::of).transpose()?;
        let numbered = |error| match self.look(py, import::Writer::len) {
            Ok(number) => prefixed(py, format_args!("sample {number}"), &error),
            Err(_) => error,
        };
        let converted = self.converted(sample).map_err(numbered)?;
        let fields: Vec<Option<&[u8]>> =
            converted.fields.iter().map(|it| it.as_ref().map(|bytes| bytes.as_bytes())).collect();
        let values = converted.values.iter().map(|(at, value)| {
            let (key, column) = &self.columns[*at];
            Ok((&*column.name, about(key, value_of(value, column.kind))?))
        });
        let values: Vec<(&str, Value<'_>)> = values.collect::<PyResult<_>>().map_err(numbered)?;
        let new = NewSample {
            name: name.as_ref().map(|name| name.as_bytes()),
            label: label.as_ref().map_or(Label::None, Labelled::label),
            fields: &fields,
            values: &values,
        };
        let written = py.detach(|| Some(self.writer.lock().as_mut()?.samples().write(&new)));
        Ok(written.ok_or_else(ended)?.or_raise(py)?.0)
    }

    /// Commits what was written as one generation; returns the keywords of `dlfs.Written`.
    fn _finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Output::Image(writer) = py.detach(|| self.taken()).ok_or_else(ended)? else {
            return Err(raise_invalid(py, "a part is committed by its plan".into()));
        };
        let made_by = if self.onto == Onto::Append { "append" } else { "import" };
        let report = detached(py, |_| {
            let report = writer.finish()?;
            let at = (&self.image[..], report.generation);
            let origin = Origin { made_by: made_by.to_owned(), ..Origin::default() };
            committed(at, &self.connect, self.catalog.as_ref(), origin, "the samples are written")?;
            Ok(report)
        })?;
        written(py, &report)
    }

    /// Writes the rest of a part; returns the keywords of `dlfs.WrittenPart`.
    fn _finish_part<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Output::Part(part) = py.detach(|| self.taken()).ok_or_else(ended)? else {
            return Err(raise_invalid(py, "this is not a part of an image".into()));
        };
        part_dict(py, &detached(py, |_| part.finish())?)
    }

    /// Discards what was written; does nothing once the writer is finished.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(self.taken()));
    }

    /// True if it is finished or discarded.
    #[getter]
    fn _is_over(&self, py: Python<'_>) -> bool {
        self.look(py, |_| ()).is_err()
    }

    /// Samples written so far.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |writer| writer.len() as usize)
    }

    /// The id of the sample to be written next; None once as many are written as were announced.
    #[getter]
    fn next_id(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.look(py, |writer| writer.next_id().map(|id| id.0))
    }

    /// The ids of the samples written as numbers `start` to `stop` - 1, counted from 0.
    fn ids(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<Vec<u64>> {
        self.look(py, |writer| {
            (start..stop).map_while(|nth| writer.id_of(nth)).map(|id| id.0).collect()
        })
    }

    /// The first id that this writer assigns.
    #[getter]
    fn first_id(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, |writer| writer.first_id().0)
    }

    /// Names and types of the fields, "bytes" for those without; empty for one field without a name.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (name, kind) in &self.fields {
            fields.set_item(name, kind.as_ref().map_or(BYTES.into(), |kind| kind.to_string()))?;
        }
        Ok(fields)
    }

    /// Names and types of the columns.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        for (name, column) in &self.columns {
            columns.set_item(name, column.kind.name())?;
        }
        Ok(columns)
    }
}

/// The name for the type of fields that have none.
const BYTES: &str = "bytes";

/// A sample of Python, converted for the library and held while it is written.
struct Converted<'py> {
    fields: Vec<Option<Bound<'py, PyBytes>>>,
    /// The values of columns, each with the index of its column.
    values: Vec<(usize, Bound<'py, PyAny>)>,
}

/// A label, held while it is written.
enum Labelled<'py> {
    Number(i64),
    Class(Bound<'py, PyBytes>),
}

impl Writer {
    fn of(
        py: Python<'_>,
        mut held: Output,
        image: Vec<Address>,
        connect: ConnectOptions,
        onto: Onto,
        catalog: Option<CatalogName>,
    ) -> PyResult<Writer> {
        let made = held.samples();
        let name = |name: &str| PyString::intern(py, name).unbind();
        let types = made.field_types();
        let fields =
            made.fields().enumerate().map(|(at, field)| match std::str::from_utf8(field) {
                Ok(field) => Ok((name(field), types.of(at).cloned())),
                Err(_) => {
                    let text =
                        format!("the field {} of the image is not UTF-8", field.escape_ascii());
                    Err(raise_invalid(py, text))
                }
            });
        let fields = fields.collect::<PyResult<Vec<_>>>()?;
        let columns = made.columns().iter().map(|column| (name(&column.name), column.clone()));
        let columns = columns.collect();
        let writer = Mutex::new(Some(held));
        Ok(Writer { writer, fields, columns, image, connect, onto, catalog })
    }

    /// Takes the writer out; `None`: it is finished or discarded.
    fn taken(&self) -> Option<Output> {
        self.writer.lock().take()
    }

    /// Calls `read` with the writer, detached from the interpreter: another thread may hold the lock while it waits for
    /// the medium. Raises ValueError once the writer is finished or discarded.
    fn look<T: Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&import::Writer) -> T + Send,
    ) -> PyResult<T> {
        let found = py.detach(|| self.writer.lock().as_mut().map(|held| read(held.samples())));
        found.ok_or_else(ended)
    }

    /// Converts a sample: takes the fields and columns that are keys of the mapping.
    fn converted<'py>(&self, sample: &Bound<'py, PyAny>) -> PyResult<Converted<'py>> {
        let py = sample.py();
        let Ok(mapping) = sample.cast::<PyMapping>() else {
            if self.fields.is_empty() {
                return Ok(Converted { fields: vec![Some(bytes_of(sample)?)], values: Vec::new() });
            }
            let text = format!(
                "a sample is a mapping of the fields and columns of the writer, not {}",
                sample.get_type().name()?
            );
            return Err(PyTypeError::new_err(text));
        };
        let mut known = 0;
        let mut item = |key: &Py<PyString>| -> PyResult<Option<Bound<'py, PyAny>>> {
            let found = match sample.cast::<PyDict>() {
                Ok(dict) => dict.get_item(key)?,
                Err(_) => match mapping.get_item(key) {
                    Ok(found) => Some(found),
                    Err(error) if error.is_instance_of::<PyKeyError>(py) => None,
                    Err(error) => return Err(error),
                },
            };
            known += usize::from(found.is_some());
            Ok(found.filter(|found| !found.is_none()))
        };
        let mut fields = Vec::with_capacity(self.fields.len());
        for (key, kind) in &self.fields {
            let bytes = item(key)?.map(|value| match kind {
                Some(kind) => about(key, elements_of(&value, kind)),
                None => about(key, bytes_of(&value)),
            });
            fields.push(bytes.transpose()?);
        }
        let mut values = Vec::new();
        for (at, (key, _)) in self.columns.iter().enumerate() {
            values.extend(item(key)?.map(|value| (at, value)));
        }
        if known < mapping.len()? {
            return Err(self.unknown_key(mapping));
        }
        Ok(Converted { fields, values })
    }

    /// The error for a sample with a key that is neither a field nor a column.
    fn unknown_key(&self, sample: &Bound<'_, PyMapping>) -> PyErr {
        let py = sample.py();
        let fields = self.fields.iter().map(|(name, _)| name);
        let known = fields.chain(self.columns.iter().map(|(name, _)| name));
        let known: Vec<String> = known.map(|name| name.to_string()).collect();
        let keys = sample.keys().map(|keys| keys.into_any().try_iter());
        let foreign = keys.ok().and_then(Result::ok).and_then(|mut keys| {
            keys.find_map(|key| {
                key.ok().map(|key| key.to_string()).filter(|key| !known.contains(key))
            })
        });
        let text = format!(
            "{:?} is neither a field nor a column of this writer, which has [{}]",
            foreign.unwrap_or_default(),
            known.join(", ")
        );
        raise_invalid(py, text)
    }
}

/// Options of the image, except its address and how to connect.
pub(crate) fn writer_options(how: &Bound<'_, PyDict>) -> PyResult<WriterOptions> {
    let py = how.py();
    let invalid = |text: &str| Err(raise_invalid(py, text.into()));
    let order = match (given_or(how, "shuffle", false)?, given_or(how, "count", None)?) {
        (true, Some(count)) => WriteOrder::Whole { count },
        (false, Some(_)) => return invalid("count is for samples that are shuffled together"),
        (true, None) => WriteOrder::Windows,
        (false, None) => WriteOrder::Written,
    };
    let columns = given_or(how, "columns", Vec::<(String, String)>::new())?;
    let columns = columns.into_iter().map(|(name, kind)| {
        let kind = kind.parse::<ColumnType>();
        let kind =
            kind.map_err(|error| raise_invalid(py, format!("columns: {name:?}: {error}")))?;
        Ok(ColumnSpec { name, kind })
    });
    let fields = given_or(how, "fields", Vec::<(String, Option<String>)>::new())?;
    let types = fields.iter().map(|(name, kind)| {
        let Some(kind) = kind.as_deref().filter(|kind| *kind != BYTES) else { return Ok(None) };
        let kind = kind.parse::<FieldType>();
        kind.map(Some).map_err(|why| raise_invalid(py, format!("fields: {name:?}: {why}")))
    });
    Ok(WriterOptions {
        field_types: FieldTypes::new(types.collect::<PyResult<_>>()?),
        image: ImportOptions {
            onto: onto(how)?,
            seed: given_or(how, "seed", 0)?,
            chunk_size_bytes: given_or(how, "chunk_size", 0)?,
            pack: pack(how)?,
            accept_older_generation: given_or(how, "accept_older_generation", false)?,
            ..ImportOptions::default()
        },
        fields: fields.into_iter().map(|(name, _)| name.into_bytes()).collect(),
        columns: columns.collect::<PyResult<_>>()?,
        order,
        window_bytes: given_or(how, "shuffle_bytes", 0)?,
    })
}

impl<'py> Labelled<'py> {
    fn of(given: &Bound<'py, PyAny>) -> PyResult<Labelled<'py>> {
        if convert::is_name(given) {
            Ok(Labelled::Class(name_of(given)?))
        } else {
            Ok(Labelled::Number(given.extract()?))
        }
    }

    fn label(&self) -> Label<'_> {
        match self {
            Labelled::Number(number) => Label::Number(*number),
            Labelled::Class(name) => Label::Class(name.as_bytes()),
        }
    }
}

/// Parses the name of an image in a catalogue.
pub(crate) fn catalog_name(py: Python<'_>, text: &str) -> PyResult<CatalogName> {
    match text.parse::<Address>() {
        Ok(Address::Named(name)) => Ok(name),
        Ok(_) => Err(raise_invalid(py, format!("catalog: {text} is not dlfs://CATALOGUE/NAME"))),
        Err(error) => Err(raise_invalid(py, format!("catalog: {error}"))),
    }
}

/// Adds a generation that was just committed to the catalogue that names `image`, if one does; then adds the image to
/// `catalog`, if given. If the latter fails, the hint of the error begins with `done`, since the commit stands.
pub(crate) fn committed(
    (image, generation): (&[Address], Generation),
    connect: &ConnectOptions,
    catalog: Option<&CatalogName>,
    origin: Origin,
    done: &str,
) -> dlfs::Result<()> {
    cataloging::committed(image, generation, connect, &origin.made_by);
    let added =
        catalog.map_or(Ok(()), |name| cataloging::add(name, image, connect, origin).map(drop));
    added.map_err(|error| error.hint(format!("{done}: add the image with dlfs catalog add")))
}

/// Parses what becomes of the image's present contents: append, overwrite, or neither.
pub(crate) fn onto(how: &Bound<'_, PyDict>) -> PyResult<Onto> {
    match (given_or(how, "append", false)?, given_or(how, "overwrite", false)?) {
        (true, true) => {
            Err(raise_invalid(how.py(), "append and overwrite exclude each other".into()))
        }
        (true, false) => Ok(Onto::Append),
        (false, true) => Ok(Onto::Force),
        (false, false) => Ok(Onto::Empty),
    }
}

/// Parses the packing of samples.
pub(crate) fn pack(how: &Bound<'_, PyDict>) -> PyResult<Pack> {
    match &*given_or(how, "pack", String::new())? {
        "aligned" => Ok(Pack::Aligned),
        "tight" => Ok(Pack::Tight),
        other => {
            let text = format!("pack is \"aligned\" or \"tight\", not {other:?}");
            Err(raise_invalid(how.py(), text))
        }
    }
}

/// The keywords of `dlfs.Written`.
pub(crate) fn written<'py>(py: Python<'py>, report: &WriteReport) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("samples", report.samples)?;
    found.set_item("sample_bytes", report.sample_bytes)?;
    found.set_item("live_samples", report.live_samples)?;
    found.set_item("chunks", report.chunks)?;
    found.set_item("image_bytes", report.image_bytes)?;
    found.set_item("generation", report.generation.0)?;
    found.set_item("image", report.uuid.to_string())?;
    Ok(found)
}

/// The bytes of a name: those of a text in UTF-8, or with surrogate escapes, as a data set gives names that are not
/// UTF-8; else as [`bytes_of`].
pub(crate) fn name_of<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match given.cast::<PyString>() {
        Ok(text) => {
            text.encode_utf8().or_else(|_| Ok(PyBytes::new(given.py(), &convert::to_bytes(given)?)))
        }
        Err(_) => bytes_of(given),
    }
}

/// The bytes of a bytes-like object, in C order, or of a text in UTF-8.
fn bytes_of<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if let Ok(text) = given.cast::<PyString>() {
        return text.encode_utf8();
    }
    let view = PyMemoryView::from(given).map_err(|_| {
        let kind = given.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!("bytes, str or a buffer is expected, not {kind}"))
    })?;
    Ok(view.call_method0("tobytes")?.cast_into::<PyBytes>()?)
}

/// The elements of an array, or of numbers that numpy converts to one, as bytes in C order.
fn elements_of<'py>(given: &Bound<'py, PyAny>, kind: &FieldType) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(bytes.clone()); // the library checks their number
    }
    let py = given.py();
    let numpy = py.import("numpy")?;
    let name = kind.element().numpy_name();
    // numpy itself has no bfloat16 to convert other numbers to.
    let array = if given.hasattr("dtype")? || kind.element() == Element::Bf16 {
        numpy.call_method1("asarray", (given,))?
    } else {
        py.import("dlfs._fields")?.call_method1("exactly", (given, name))?
    };
    let dtype = array.getattr("dtype")?;
    let found: String = dtype.getattr("name")?.extract()?;
    // Without ml_dtypes, numpy has bf16 elements only as uint16.
    let is_half = kind.element() == Element::Bf16 && found == "uint16";
    if found != name && !is_half {
        let text = format!("an array of {name} is expected, not of {found}");
        return Err(PyTypeError::new_err(text));
    }
    let shape: Vec<u64> = array.getattr("shape")?.extract()?;
    if !kind.fits(&shape) {
        return Err(PyValueError::new_err(format!("the type is {kind}, and the shape {shape:?}")));
    }
    let array = if dtype.getattr("isnative")?.is_truthy()? {
        array
    } else {
        array.call_method1("astype", (dtype.call_method1("newbyteorder", ("=",))?,))?
    };
    Ok(array.call_method0("tobytes")?.cast_into::<PyBytes>()?)
}

/// Converts a value for a column of type `kind`; refuses one that the type would change.
fn value_of<'a>(given: &'a Bound<'_, PyAny>, kind: ColumnType) -> PyResult<Value<'a>> {
    Ok(match kind {
        ColumnType::Int => Value::Int(given.extract()?),
        ColumnType::Float | ColumnType::Float32 => {
            let number: f64 = given.extract()?;
            // An integer may have more digits than a float keeps.
            if !number.is_nan() && !given.eq(number)? {
                return Err(changes(given, kind));
            }
            Value::Float(number)
        }
        ColumnType::Bool => {
            let bit = given.is_truthy()?;
            if !given.eq(bit)? {
                return Err(changes(given, kind));
            }
            Value::Bool(bit)
        }
        ColumnType::Text => Value::Text(given.extract()?),
    })
}

/// Error for a value that the type of its column would change.
fn changes(given: &Bound<'_, PyAny>, kind: ColumnType) -> PyErr {
    PyValueError::new_err(format!("{given:?} is not of type {kind}, which would change it"))
}

/// Adds the key of a value to the error of converting the value.
fn about<T>(key: &Py<PyString>, result: PyResult<T>) -> PyResult<T> {
    result.map_err(|error| {
        Python::attach(|py| prefixed(py, format_args!("{}", key.bind(py)), &error))
    })
}

/// `error` with `what` in front of its text.
fn prefixed(py: Python<'_>, what: fmt::Arguments<'_>, error: &PyErr) -> PyErr {
    let text = format!("{what}: {}", error.value(py));
    // A UnicodeError cannot be made from a text alone.
    if error.is_instance_of::<PyUnicodeError>(py) {
        return PyValueError::new_err(text);
    }
    // Neither can some errors of the program's own objects, which come as they are.
    let made = error.get_type(py).call1((text,));
    made.map_or_else(|_| error.clone_ref(py), PyErr::from_value)
}

/// The error for a writer that is finished or discarded.
fn ended() -> PyErr {
    PyValueError::new_err("this writer is finished, or what it wrote was discarded")
}
