//! Batches on a device: the copy of each batch, and the arrays there, which consumers take through DLPack.
//!
//! The copy runs on a stream of the loader. The consumer's stream waits for the copy; no thread of the host waits.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dlfs::buf::{Registered, Registrar};
use dlfs::dataset::Watch;
use dlfs::format::field_type::Element;
use dlfs::gpu::{DeviceBytes, Driver, Parts, Pin, Ring, Slot};
use dlfs::units::{ALIGN_BYTES, deadline};
use dlfs::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::batch::NO_LABEL;
use crate::dlpack::{self, DeviceId, Request, Spec};
use crate::error::{OrRaise as _, Signals, raise_invalid, raise_no_array};
use crate::fields::Fields;
use crate::held::Held;
use crate::options::given_or;
use crate::{convert, numpy};

/// A device, and a run's ring of buffers there.
pub(crate) struct Device {
    pub(crate) driver: &'static Driver,
    /// Number of the device, as the driver counts them.
    ordinal: u32,
    /// Made for the first batch.
    ring: OnceLock<Ring>,
}

impl Device {
    /// The device that the options name.
    pub(crate) fn of(options: &Bound<'_, PyDict>) -> PyResult<Option<Device>> {
        let Some((pin, ordinal)) = parse(options)? else { return Ok(None) };
        let driver = Driver::find(pin).or_raise(options.py())?;
        let driver = driver.expect("a driver that is named is found, or there is an error");
        Ok(Some(Device { driver, ordinal, ring: OnceLock::new() }))
    }

    /// The same device with another ring, for another run.
    pub(crate) fn another(&self) -> Device {
        Device { ring: OnceLock::new(), ..*self }
    }

    /// The ring, which the first call makes.
    fn ring(&self) -> dlfs::Result<&Ring> {
        if let Some(ring) = self.ring.get() {
            return Ok(ring);
        }
        let made = Ring::new(self.driver, self.ordinal, SLOTS)?;
        Ok(self.ring.get_or_init(|| made))
    }

    /// A buffer for the next batch, waiting up to `limit` until one is free. Call it detached from the interpreter.
    ///
    /// # Errors
    /// `TimedOut`: the program holds all of them. `DeviceLost`, `NotFound`: there is no such device. `Unsupported`: the
    /// process was forked from the one that opened the driver.
    pub(crate) fn slot(&self, limit: Duration, watch: &mut Signals) -> dlfs::Result<Slot> {
        let ring = self.ring()?;
        let until = deadline(Instant::now(), limit);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(slot) = ring.slot(left.min(TICK))? {
                return Ok(slot);
            }
            if left.is_zero() {
                return Err(ring.full(limit).hint("drop batches, or keep clones of their arrays"));
            }
            if !watch.goes_on() {
                let text = "stopped while all buffers of the device were in use";
                return Err(Error::new(ErrorKind::Interrupted, text));
            }
        }
    }

    /// A buffer if one is free now.
    pub(crate) fn free_slot(&self) -> Option<Slot> {
        self.ring.get()?.slot(Duration::ZERO).ok()?
    }

    /// Bytes copied on the host on their way to the device.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.ring.get().map_or(0, Ring::staged_bytes)
    }
}

/// Parses the option `device`: `cuda:N` or `hip:N`, as `dlfs._device` writes it. `None`: no device.
pub(crate) fn parse(options: &Bound<'_, PyDict>) -> PyResult<Option<(Pin, u32)>> {
    let Some(name) = given_or(options, "device", None::<String>)? else { return Ok(None) };
    let parsed = name.split_once(':').and_then(|(kind, ordinal)| {
        let pin = [("cuda", Pin::Cuda), ("hip", Pin::Hip)].into_iter().find(|it| it.0 == kind)?.1;
        Some((pin, ordinal.parse().ok()?))
    });
    let refused =
        || raise_invalid(options.py(), format!("device is cuda:N or hip:N, not {name:?}"));
    parsed.ok_or_else(refused).map(Some)
}

/// A batch on a device, and the places of its arrays.
pub(crate) struct Arrived {
    bytes: DeviceBytes,
    arrays: Vec<(ArrayName, Spec)>,
}

/// The name of an array of a batch: its ids, labels, sources, a typed column, or the offsets or the data of the field
/// with this number.
#[derive(PartialEq)]
enum ArrayName {
    Ids,
    Labels,
    Sources,
    Column(String),
    Offsets(usize),
    Data(usize),
}

/// The arrays of a batch on the way to the device, in their order there.
struct Sent {
    held: Arc<Held>,
    arrays: Vec<(ArrayName, Spec)>,
    /// The bytes of each array.
    bytes: Vec<SentBytes>,
}

/// The bytes of an array on the way.
enum SentBytes {
    /// Bytes that were made for the copy.
    Small(Vec<u8>),
    /// This field of all samples; `None`: the samples.
    Samples(Option<usize>),
}

impl Sent {
    fn push(&mut self, name: ArrayName, element: Element, shape: Vec<i64>, bytes: SentBytes) {
        self.arrays.push((name, Spec::compact(element, shape, 0)));
        self.bytes.push(bytes);
    }

    fn numbers(&mut self, name: ArrayName, numbers: impl Iterator<Item = i64>) {
        let bytes: Vec<u8> = numbers.flat_map(i64::to_le_bytes).collect();
        self.push(name, Element::I64, vec![bytes.len() as i64 / 8], SentBytes::Small(bytes));
    }

    fn parts(&self) -> Parts<'_> {
        let mut parts = Parts::new();
        for bytes in &self.bytes {
            parts.begin();
            match bytes {
                SentBytes::Small(bytes) => parts.push(bytes),
                SentBytes::Samples(field) => {
                    for index in 0..self.held.len() {
                        // The length of the bytes was asked for before, which would have returned any error.
                        let bytes = bytes_of(&self.held, index, *field).ok().flatten();
                        parts.push(bytes.unwrap_or_default());
                    }
                }
            }
        }
        parts
    }
}

impl Arrived {
    /// Starts the copy of a batch, with its ids, labels, columns and offsets, into `slot`. The batch is kept until the
    /// device has read it.
    ///
    /// # Errors
    /// `DeviceLost`, `OutOfMemory`. `Corrupt`: a field does not fit its type.
    pub(crate) fn send(held: &Arc<Held>, slot: Slot) -> dlfs::Result<Arrived> {
        let mut sent = Sent { held: Arc::clone(held), arrays: Vec::new(), bytes: Vec::new() };
        let samples = 0..held.len();
        sent.numbers(ArrayName::Ids, samples.clone().map(|index| held.id(index)));
        if held.has_labels() {
            let labels = samples.clone().map(|index| held.label(index).unwrap_or(NO_LABEL));
            sent.numbers(ArrayName::Labels, labels);
        }
        if let Some(sources) = held.sources() {
            sent.numbers(ArrayName::Sources, sources.iter().map(|&source| source.into()));
        }
        for name in held.column_names() {
            // Data sets of a mixture may disagree on a column: batch.column then raises.
            let Ok(values) = held.column(&name, samples.clone()) else { continue };
            let (element, bytes) = values.elements();
            let shape = vec![held.len() as i64];
            sent.push(ArrayName::Column(name), element, shape, SentBytes::Small(bytes));
        }
        let fields = &held.fields;
        let shown: Vec<(usize, Option<usize>)> = if fields.are_several() {
            fields.mapped().into_iter().map(|number| (number, Some(number))).collect()
        } else {
            vec![(fields.sole().unwrap_or(0), None)]
        };
        let rows: Vec<FieldRows> =
            shown.iter().map(|&it| FieldRows::of(held, it)).collect::<dlfs::Result<_>>()?;
        for (rows, &(number, _)) in rows.iter().zip(&shown) {
            let ends = rows.counts.iter().scan(0, |at, count| {
                *at += count;
                Some(*at)
            });
            sent.numbers(ArrayName::Offsets(number), std::iter::once(0).chain(ends));
        }
        for (rows, &(number, field)) in rows.iter().zip(&shown) {
            let bytes = SentBytes::Samples(field);
            sent.push(ArrayName::Data(number), rows.element, rows.shape(), bytes);
        }
        let mut arrays = std::mem::take(&mut sent.arrays);
        let bytes = slot.upload(sent, Sent::parts)?;
        for (nth, (_, spec)) in arrays.iter_mut().enumerate() {
            let place = bytes.array(nth);
            spec.offset = place.map_or(0, |(address, _)| (address - bytes.address()) as usize);
        }
        Ok(Arrived { bytes, arrays })
    }

    fn array(&self, name: &ArrayName) -> Option<DeviceArray> {
        let (_, spec) = self.arrays.iter().find(|(of, _)| of == name)?;
        Some(DeviceArray::new(&self.bytes, spec.clone()))
    }
}

/// The rows of a field in all samples. A row is what the fixed dimensions of the type span: one element of bytes
/// without a type, `[768]` of `f32[*,768]`.
struct FieldRows {
    element: Element,
    /// Rows of each sample.
    counts: Vec<i64>,
    /// The shape of a row.
    row: Vec<i64>,
    /// True if samples may have different numbers of rows, as they do of bytes without a type.
    is_free: bool,
}

impl FieldRows {
    fn of(held: &Held, (number, field): (usize, Option<usize>)) -> dlfs::Result<FieldRows> {
        let kind = held.fields.kind(number);
        let dims: Vec<Option<u32>> = kind.map_or(vec![None], |kind| kind.dims().collect());
        let is_free = dims.contains(&None);
        let row: Vec<i64> = dims.into_iter().flatten().map(i64::from).collect();
        let element = kind.map_or(Element::U8, |kind| kind.element());
        let each = i64::from(element.len_bytes()) * row.iter().product::<i64>();
        let counts = (0..held.len()).map(|index| {
            let Some(bytes) = bytes_of(held, index, field)? else { return Ok(0) };
            if let Some(kind) = kind {
                numpy::shape_of(held, index, kind, bytes)?;
            }
            Ok(bytes.len() as i64 / each)
        });
        let counts = counts.collect::<dlfs::Result<_>>()?;
        Ok(FieldRows { element, counts, row, is_free })
    }

    /// The shape of the rows of all samples, as dlfs.torch.TensorBatch defines it.
    fn shape(&self) -> Vec<i64> {
        let first = self.counts.first();
        let mut shape = match first.filter(|first| self.counts.iter().all(|it| it == *first)) {
            Some(first) if self.is_free => vec![self.counts.len() as i64, *first],
            _ => vec![self.counts.iter().sum()],
        };
        shape.extend(&self.row);
        shape
    }
}

/// One field of a sample, or the sample; `None` if it lacks the field.
fn bytes_of(held: &Held, index: usize, field: Option<usize>) -> dlfs::Result<Option<&[u8]>> {
    match field {
        Some(field) => held.field(index, field),
        None => held.shown(index),
    }
}

/// The arrays of a batch on its device.
///
/// Each is a dlfs.DeviceArray, which torch.from_dlpack, jax.dlpack.from_dlpack or cupy.from_dlpack takes without a
/// copy; so do they take this object itself, which stands for `data`. The memory is the consumer's own until the last
/// array of it is dropped. A loader has sixteen such batches: for one more it waits until the program drops one.
#[pyclass(frozen, module = "dlfs", name = "OnDevice")]
pub(crate) struct OnDevice {
    arrived: Arc<Arrived>,
    fields: Fields,
}

impl OnDevice {
    pub(crate) fn new(arrived: Arc<Arrived>, fields: Fields) -> OnDevice {
        OnDevice { arrived, fields }
    }

    /// The array of the field that stands for the sample.
    fn of_field(&self, py: Python<'_>, name: fn(usize) -> ArrayName) -> PyResult<DeviceArray> {
        if self.fields.are_several() {
            return Err(raise_no_array(py, self.fields.unnamed().report()));
        }
        self.arrived.array(&name(self.fields.sole().unwrap_or(0))).ok_or_else(|| {
            let text = "the field is not on the device: name it in the loader's option fields";
            raise_no_array(py, text.to_owned())
        })
    }
}

#[pymethods]
impl OnDevice {
    /// All samples: [B, L] if lengths are equal, else [sum of lengths], of bytes or of the field's type, as
    /// dlfs.torch.TensorBatch.data.
    #[getter]
    fn data(&self, py: Python<'_>) -> PyResult<DeviceArray> {
        self.of_field(py, ArrayName::Data)
    }

    /// The start of each sample in the flat data, and the end of the last one: int64[B + 1].
    #[getter]
    fn offsets(&self, py: Python<'_>) -> PyResult<DeviceArray> {
        self.of_field(py, ArrayName::Offsets)
    }

    /// int64[B].
    #[getter]
    fn ids(&self) -> Option<DeviceArray> {
        self.arrived.array(&ArrayName::Ids)
    }

    /// int64[B], or None, as Batch.labels.
    #[getter]
    fn labels(&self) -> Option<DeviceArray> {
        self.arrived.array(&ArrayName::Labels)
    }

    /// int64[B] of a mixture; None otherwise.
    #[getter]
    fn sources(&self) -> Option<DeviceArray> {
        self.arrived.array(&ArrayName::Sources)
    }

    /// The typed columns by name, as Batch.column has them.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (array, spec) in &self.arrived.arrays {
            if let ArrayName::Column(name) = array {
                all.set_item(name, DeviceArray::new(&self.arrived.bytes, spec.clone()))?;
            }
        }
        Ok(all)
    }

    /// The fields of samples with several, each an OnDevice, by name.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        if self.fields.are_several() {
            for field in self.fields.mapped() {
                let one = OnDevice::new(Arc::clone(&self.arrived), self.fields.only(field));
                all.set_item(convert::to_str(py, &self.fields.names[field])?, one)?;
            }
        }
        Ok(all)
    }

    /// DLPack of `data`.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(i64, i64)>,
        dl_device: Option<DeviceId>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.data(py)?.__dlpack__(py, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> DeviceId {
        device_id(&self.arrived.bytes)
    }
}

/// An array on a device, for consumers of DLPack: torch.from_dlpack(array).
///
/// The work that the consumer queues on its stream waits there for the copy; the program does not.
#[pyclass(frozen, module = "dlfs", name = "DeviceArray")]
pub(crate) struct DeviceArray {
    bytes: DeviceBytes,
    spec: Spec,
}

impl DeviceArray {
    pub(crate) fn new(bytes: &DeviceBytes, spec: Spec) -> DeviceArray {
        DeviceArray { bytes: bytes.clone(), spec }
    }
}

#[pymethods]
impl DeviceArray {
    /// Its length in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.spec.shape)
    }

    /// The name of the type of its elements, as numpy's; "bfloat16" too.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.spec.element.numpy_name()
    }

    /// The array through DLPack. `stream` is the consumer's, by the rules of the Python array API: for CUDA None or 1
    /// for the legacy default stream, 2 for the thread's own, otherwise a handle; for ROCm None or 0 for the default
    /// stream; -1 where the consumer waits for the copy by itself.
    ///
    /// Raises BufferError if the consumer wants a copy or another device, InvalidArgument for a stream that cannot be.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(i64, i64)>,
        dl_device: Option<DeviceId>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let device = device_id(&self.bytes);
        let request = Request::new(device, max_version, dl_device, copy)?;
        let stream = stream_of(py, device, stream)?;
        let capsule = dlpack::of_device(
            py,
            device,
            self.bytes.address(),
            &self.spec,
            self.bytes.clone(),
            &request,
        )?;
        self.bytes.ready_on(stream).or_raise(py)?;
        Ok(capsule)
    }

    /// The C inputs of each chunk in an array of rows of tokens, [B, chunks, C + 1], or with first=1 their labels:
    /// [B, C], or [B, chunks, C] of several chunks.
    fn _columns(&self, first: usize) -> DeviceArray {
        let Spec { element, shape, offset, .. } = &self.spec;
        let [rows, chunks, width] = shape[..] else { unreachable!("an array of rows has chunks") };
        let (shape, strides) = if chunks == 1 {
            (vec![rows, width - 1], vec![width, 1])
        } else {
            (vec![rows, chunks, width - 1], vec![chunks * width, width, 1])
        };
        let offset = offset + first * element.len_bytes() as usize;
        DeviceArray::new(
            &self.bytes,
            Spec { element: *element, shape, strides: Some(strides), offset },
        )
    }

    /// The device, as DLPack counts them: (2, N) of CUDA, (10, N) of ROCm.
    fn __dlpack_device__(&self) -> DeviceId {
        device_id(&self.bytes)
    }

    fn __repr__(&self) -> String {
        let kind = self.bytes.driver().name();
        let ordinal = self.bytes.ordinal();
        format!("<dlfs.DeviceArray {}{:?} on {kind}:{ordinal}>", self.dtype(), self.spec.shape)
    }
}

fn device_id(bytes: &DeviceBytes) -> DeviceId {
    let kind = if bytes.driver().name() == "hip" { DLPACK_ROCM } else { DLPACK_CUDA };
    (kind, bytes.ordinal() as i32)
}

/// The driver's handle of the stream that the consumer means.
fn stream_of(py: Python<'_>, device: DeviceId, stream: Option<i64>) -> PyResult<u64> {
    match (device.0, stream) {
        // A consumer that waits by itself names no stream. The default stream is taken, which waits for most others, so
        // that the memory is not reused too early.
        (_, None | Some(-1)) | (DLPACK_CUDA, Some(1)) | (DLPACK_ROCM, Some(0)) => Ok(0),
        (DLPACK_CUDA, Some(2)) => Ok(2),
        (_, Some(handle)) if handle > 2 => Ok(handle as u64),
        (_, Some(other)) => {
            let known = if device.0 == DLPACK_ROCM { "0" } else { "1, 2" };
            let text =
                format!("stream is None, -1, {known} or the handle of a stream, not {other}");
            Err(raise_invalid(py, text))
        }
    }
}

/// `kDLCUDA`.
const DLPACK_CUDA: i32 = 2;
/// `kDLROCM`.
const DLPACK_ROCM: i32 = 10;

/// The most batches that a loader has on its device. A loop has three: the one that it works on, the one before it,
/// which it still names while it asks for the next, and one ahead. Threads that share an iterator have one more each.
const SLOTS: usize = 16;

/// The interval at which a wait looks for signals.
const TICK: Duration = Duration::from_millis(50);

/// Registers mapped memory with the driver that the process uses, so that devices copy from the memory by DMA. Call
/// `unregister` before the memory is unmapped. False: there is no driver, the driver refuses, or another part of the
/// process has registered the memory.
#[pyfunction]
pub(crate) fn register(address: usize, len: usize) -> bool {
    let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) else {
        return false;
    };
    let Ok(Some(driver)) = Driver::find(Pin::Auto) else { return false };
    let len = len.next_multiple_of(ALIGN_BYTES);
    let is_ours = matches!(driver.register(start, len), Ok(Registered::Ours));
    if is_ours {
        REGISTERED.lock().insert(address, (driver, len));
    }
    is_ours
}

/// Undoes `register`, if it returned True.
#[pyfunction]
pub(crate) fn unregister(address: usize) {
    let known = REGISTERED.lock().remove(&address);
    if let (Some((driver, len)), Some(start)) =
        (known, NonNull::new(std::ptr::with_exposed_provenance_mut(address)))
    {
        driver.unregister(start, len);
    }
}

/// The memory that `register` has registered.
static REGISTERED: parking_lot::Mutex<BTreeMap<usize, (&'static Driver, usize)>> =
    parking_lot::Mutex::new(BTreeMap::new());
