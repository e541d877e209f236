//! Arrays for other libraries through DLPack: capsules of both versions of the protocol.
//!
//! A capsule points to a structure that owns what keeps the array's memory in place. The consumer calls the structure's
//! deleter, from any thread and without the interpreter. If no consumer has taken the structure, the destructor of the
//! capsule calls it.
#![allow(unsafe_code)] // gives structures to the interpreter and takes them back

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use dlfs::buf::IoBuf;
use dlfs::format::field_type::Element;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::OrRaise as _;
use crate::held::Held;

/// Type and number of a device, as DLPack counts them.
pub(crate) type DeviceId = (i32, i32);

/// The memory of the host: `kDLCPU`.
pub(crate) const CPU: DeviceId = (1, 0);

/// A consumer's arguments of `__dlpack__`, but for the stream.
pub(crate) struct Request {
    /// True if the consumer takes a capsule of DLPack 1, which can say that memory is read-only.
    is_versioned: bool,
    /// True: the consumer wants a copy; false: it refuses one; `None`: as needed.
    copy: Option<bool>,
}

impl Request {
    /// Checks the arguments for an array on `device`.
    ///
    /// # Errors
    /// `BufferError`: the array is asked for on another device.
    pub(crate) fn new(
        device: DeviceId,
        max_version: Option<(i64, i64)>,
        dl_device: Option<DeviceId>,
        copy: Option<bool>,
    ) -> PyResult<Request> {
        if let Some(other) = dl_device.filter(|other| *other != device) {
            let text = format!("the array is on the DLPack device {device:?}, not on {other:?}");
            return Err(PyBufferError::new_err(text));
        }
        Ok(Request { is_versioned: max_version.is_some_and(|version| version >= (1, 0)), copy })
    }
}

/// An array in some memory: the type of its elements, its shape, and its place.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) element: Element,
    pub(crate) shape: Vec<i64>,
    /// In each dimension, the distance in elements from one to the next. `None`: elements are contiguous, in C order.
    pub(crate) strides: Option<Vec<i64>>,
    /// Bytes of the memory before the first element.
    pub(crate) offset: usize,
}

impl Spec {
    /// An array of contiguous elements, in C order.
    pub(crate) fn compact(element: Element, shape: Vec<i64>, offset: usize) -> Spec {
        Spec { element, shape, strides: None, offset }
    }

    /// The strides, also of contiguous elements.
    fn strides(&self) -> Box<[i64]> {
        if let Some(strides) = &self.strides {
            return strides.as_slice().into();
        }
        let mut strides = vec![1; self.shape.len()];
        for at in (1..strides.len()).rev() {
            strides[at - 1] = strides[at] * self.shape[at].max(1);
        }
        strides.into()
    }
}

/// The bytes of a batch, which `held` shows as one buffer, as a capsule; the offset of `spec` is 0. Makes a copy if the
/// consumer wants one, if it knows only DLPack before 1.0, which cannot say that memory is read-only, or if the
/// elements are not aligned.
///
/// # Errors
/// `BufferError`: the consumer refuses a copy, and needs one.
pub(crate) fn of_host<'py>(
    py: Python<'py>,
    held: Arc<Held>,
    spec: &Spec,
    request: &Request,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes = held.whole().or_raise(py)?;
    let is_aligned = bytes.as_ptr().addr().is_multiple_of(spec.element.len_bytes() as usize);
    if request.is_versioned && is_aligned && request.copy != Some(true) {
        let start = bytes.as_ptr().addr() as u64;
        return capsule(py, start, CPU, spec, READ_ONLY, Box::new(held), request);
    }
    if request.copy == Some(false) {
        let text = "without a copy, the bytes of a batch need a consumer of DLPack 1.0 or newer, and aligned elements";
        return Err(PyBufferError::new_err(text));
    }
    let mut copy = IoBuf::try_zeroed(bytes.len()).or_raise(py)?;
    copy.copy_from_slice(bytes);
    let start = copy.as_ptr().addr() as u64;
    capsule(py, start, CPU, spec, IS_COPIED, Box::new(copy), request)
}

/// An array on a device, in memory that begins at `start` and that `owner` keeps, as a capsule.
///
/// # Errors
/// `BufferError`: the consumer wants a copy.
pub(crate) fn of_device<'py>(
    py: Python<'py>,
    device: DeviceId,
    start: u64,
    spec: &Spec,
    owner: impl Send + 'static,
    request: &Request,
) -> PyResult<Bound<'py, PyAny>> {
    if request.copy == Some(true) {
        let text =
            "the array is not copied on its device: take it as it is, and let the consumer copy it";
        return Err(PyBufferError::new_err(text));
    }
    capsule(py, start + spec.offset as u64, device, spec, 0, Box::new(owner), request)
}

/// Makes a capsule of an array at the address `data`, which `owner` keeps in place.
fn capsule<'py>(
    py: Python<'py>,
    data: u64,
    device: DeviceId,
    spec: &Spec,
    flags: u64,
    owner: Box<dyn Send>,
    request: &Request,
) -> PyResult<Bound<'py, PyAny>> {
    let shape: Box<[i64]> = spec.shape.as_slice().into();
    let strides = spec.strides();
    let tensor = Tensor {
        data,
        device_type: device.0,
        device_id: device.1,
        ndim: shape.len() as i32, // a type has at most 16
        dtype: dtype(spec.element),
        shape: shape.as_ptr(),
        strides: strides.as_ptr(),
        byte_offset: 0,
    };
    let context = std::ptr::null_mut();
    let kept = Kept { _shape: shape, _strides: strides, _owner: owner };
    if request.is_versioned {
        let deleter = delete::<Versioned>;
        hand_out(py, Versioned { version: [1, 0], context, deleter, flags, tensor }, kept)
    } else {
        hand_out(py, Unversioned { tensor, context, deleter: delete::<Unversioned> }, kept)
    }
}

/// `DLTensor`. The address is a number, which only the consumer follows.
#[repr(C)]
struct Tensor {
    data: u64,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}
const _: () = assert!(size_of::<*const c_void>() == size_of::<u64>());

/// `DLDataType`.
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

fn dtype(element: Element) -> DataType {
    let code = match element {
        Element::I8 | Element::I16 | Element::I32 | Element::I64 => 0,
        Element::U8 | Element::U16 | Element::U32 | Element::U64 => 1,
        Element::F16 | Element::F32 | Element::F64 => 2,
        Element::Bf16 => 4,
        Element::Bool => 6,
    };
    DataType { code, bits: 8 * element.len_bytes() as u8, lanes: 1 }
}

/// `DLManagedTensor`.
#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Unversioned),
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Versioned),
    flags: u64,
    tensor: Tensor,
}

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 2;

/// The structure that a capsule points to, by its version.
trait Form {
    /// The capsule's name until a consumer has taken the structure.
    const NAME: &'static CStr;
}

impl Form for Unversioned {
    const NAME: &'static CStr = c"dltensor";
}

impl Form for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";
}

/// The memory that the structure of a capsule points to.
struct Kept {
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
    _owner: Box<dyn Send>,
}

/// A structure and its memory. The structure comes first, so that its address is that of the whole.
#[repr(C)]
struct Managed<F> {
    form: F,
    kept: Kept,
}

/// Makes a capsule around a structure.
fn hand_out<F: Form>(py: Python<'_>, form: F, kept: Kept) -> PyResult<Bound<'_, PyAny>> {
    let managed = Box::into_raw(Box::new(Managed { form, kept }));
    // SAFETY: the pointer is not null, and the name is static. The result is a new reference, or null with an error
    // set, which is what `from_owned_ptr_or_err` takes.
    let made = unsafe {
        let made = ffi::PyCapsule_New(managed.cast(), F::NAME.as_ptr(), Some(end::<F>));
        Bound::from_owned_ptr_or_err(py, made)
    };
    if made.is_err() {
        // SAFETY: there is no capsule, so nobody else has the pointer.
        drop(unsafe { Box::from_raw(managed) });
    }
    made
}

/// The deleter, which a consumer calls once, from any thread.
unsafe extern "C" fn delete<F>(form: *mut F) {
    // SAFETY: `hand_out` made the pointer from a box of this type, whose first field is the form, and the caller has
    // taken it over. `Kept` may be dropped on any thread.
    drop(unsafe { Box::from_raw(form.cast::<Managed<F>>()) });
}

/// The destructor of a capsule.
unsafe extern "C" fn end<F: Form>(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls it attached, with a live capsule. A consumer that takes the structure renames the
    // capsule, so under its first name the pointer is still ours, and not null.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, F::NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, F::NAME.as_ptr()).cast::<F>());
        }
    }
}
