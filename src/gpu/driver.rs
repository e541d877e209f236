//! The library of an accelerator's driver: found at run time, and called by a table of functions.
#![allow(unsafe_code)] // calls C

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::{NonNull, null};
use std::sync::OnceLock;

use dlfs_base::buf::{Registered, Registrar};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{Mutex, process_id};

/// The driver with which a loader registers its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// The one that the process uses already; none if it uses none.
    Auto,
    /// NVIDIA's. It is started if the process does not use it yet.
    Cuda,
    /// AMD's ROCm, likewise.
    Hip,
}

/// An opened driver. It stays open until the process ends.
pub struct Driver {
    kind: Kind,
    api: Api,
    /// The process that opened it.
    pid: u32,
    /// The primary contexts that were retained, by device. They are never released.
    contexts: Mutex<BTreeMap<u32, Handle>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// NVIDIA's.
    Cuda,
    /// AMD's.
    Hip,
}

/// A context, stream or event: opaque, and valid in all threads.
pub(crate) type Handle = usize;

/// The result of a function of the driver.
type Code = c_int;

impl Driver {
    /// The driver that `pin` names. [`Pin::Auto`] starts none: it finds a driver that an earlier call started, or with
    /// which this process uses a device. It finds none in a forked child whose parent has opened the driver.
    ///
    /// # Errors
    /// `NotFound`: the named driver, or a device, is not there. `Unsupported`: it is too old, or this process was
    /// forked from one that uses it.
    pub fn find(pin: Pin) -> Result<Option<&'static Driver>> {
        match pin {
            Pin::Auto => Ok([Kind::Cuda, Kind::Hip].into_iter().find_map(Driver::find_in_use)),
            Pin::Cuda => Driver::find_started(Kind::Cuda).map(Some),
            Pin::Hip => Driver::find_started(Kind::Hip).map(Some),
        }
    }

    /// Its name in front of a device's number: `cuda` or `hip`.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The number of devices.
    ///
    /// # Errors
    /// The driver's.
    pub fn num_devices(&self) -> Result<u32> {
        let count: c_int = get!(self, device_count())?;
        Ok(count.max(0) as u32)
    }

    /// Begins to use device number `ordinal`. Memory is registered in the context of the lowest-numbered device that
    /// was used by this call or by a ring. Without one, it is registered in a context that the process uses, or else
    /// in that of device 0.
    ///
    /// # Errors
    /// `NotFound`: there is no such device. Other errors of the driver.
    pub fn use_device(&self, ordinal: u32) -> Result<()> {
        self.context(ordinal).map(drop)
    }

    /// The NUMA node that the device is near, if the system tells.
    pub fn numa_node(&self, ordinal: u32) -> Option<u32> {
        let mut id = [0; 32];
        let device = self.device(ordinal).ok()?;
        call!(self, bus_id(id.as_mut_ptr(), id.len() as c_int, device)).ok()?;
        let id: Vec<u8> = id.iter().map(|&c| c as u8).collect();
        let id = CStr::from_bytes_until_nul(&id).ok()?.to_str().ok()?.to_ascii_lowercase();
        let path = format!("/sys/bus/pci/devices/{id}/numa_node");
        std::fs::read_to_string(path).ok()?.trim().parse().ok() // -1 without NUMA
    }

    /// The driver, if this process has opened it or uses a device with it already.
    fn find_in_use(kind: Kind) -> Option<&'static Driver> {
        let known = kind.opened();
        let driver = match known.get() {
            Some(driver) => driver,
            None => {
                let found = Driver::open(kind, libc::RTLD_NOLOAD).ok()?;
                found.has_context().then(|| known.get_or_init(|| found))?
            }
        };
        driver.is_ours().then_some(driver)
    }

    /// The driver; opens and starts it if that was not done yet.
    fn find_started(kind: Kind) -> Result<&'static Driver> {
        let known = kind.opened();
        let driver = match known.get() {
            Some(driver) => driver,
            None => {
                let found = Driver::open(kind, 0)?;
                call!(found, init(0))?;
                known.get_or_init(|| found)
            }
        };
        driver.check_ours()?;
        Ok(driver)
    }

    /// Opens the library; `flags` are for `dlopen`.
    fn open(kind: Kind, flags: c_int) -> Result<Driver> {
        let library = kind.library()?;
        // SAFETY: the name ends with 0. The library's constructors run, as for every program that links with it.
        let opened = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | flags) };
        let opened = NonNull::new(opened).ok_or_else(|| {
            let text = format!("cannot open the driver of accelerators: {}", last_error());
            let hint = "install the driver, or leave pin and device out";
            Error::new(ErrorKind::NotFound, text).hint(hint)
        })?;
        let api = Api::find_all(opened, kind)?;
        Ok(Driver { kind, api, pid: process_id(), contexts: Mutex::default() })
    }

    /// Returns whether this process uses a device already.
    fn has_context(&self) -> bool {
        self.current().is_ok_and(|context| context != 0) || self.first_active().is_some()
    }

    /// The first device whose primary context is in use.
    fn first_active(&self) -> Option<u32> {
        let is_active = |ordinal: &u32| {
            let mut flags = 0;
            let mut active = 0;
            let device = self.device(*ordinal);
            let asked = device.and_then(|device| {
                call!(self, primary_state(device, &raw mut flags, &raw mut active))
            });
            asked.is_ok() && active != 0
        };
        (0..self.num_devices().ok()?).find(is_active)
    }

    /// The driver's handle of a device.
    fn device(&self, ordinal: u32) -> Result<c_int> {
        get!(self, device(c_int::try_from(ordinal).unwrap_or(c_int::MAX)))
    }

    /// Returns whether this process opened it.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == process_id()
    }

    /// Refuses a driver of the parent process.
    ///
    /// # Errors
    /// `Unsupported`: the process was forked from the one that opened the driver.
    pub(crate) fn check_ours(&self) -> Result<()> {
        if self.is_ours() {
            return Ok(());
        }
        let text = format!("a forked child cannot use {}, which its parent uses", self.name());
        Err(Error::new(ErrorKind::Unsupported, text)
            .hint("start workers by spawn or forkserver, or leave pin and device out there"))
    }

    /// The primary context of a device, which frameworks use too.
    ///
    /// # Errors
    /// The driver's; `NotFound`: there is no such device.
    pub(crate) fn context(&self, ordinal: u32) -> Result<Handle> {
        let mut contexts = self.contexts.lock();
        if let Some(known) = contexts.get(&ordinal) {
            return Ok(*known);
        }
        let retained = self.device(ordinal).and_then(|device| get!(self, retain(device)));
        let context =
            retained.map_err(|error| error.target(format!("{}:{ordinal}", self.name())))?;
        contexts.insert(ordinal, context);
        Ok(context)
    }

    /// The context in which memory is registered, for all contexts: one that is in use, as far as possible.
    fn registering_context(&self) -> Result<Handle> {
        if let Some((_, known)) = self.contexts.lock().first_key_value() {
            return Ok(*known);
        }
        match self.current()? {
            0 => self.context(self.first_active().unwrap_or(0)),
            context => Ok(context),
        }
    }

    /// The calling thread's current context; 0 if it has none.
    fn current(&self) -> Result<Handle> {
        get!(self, current())
    }

    /// Makes `context` the calling thread's current one.
    pub(crate) fn make_current(&self, context: Handle) -> Result<()> {
        call!(self, make_current(context))
    }

    /// Does `work` with `context` as the thread's current one, which it then sets back. The calls of `work` leave
    /// graphs alone that other threads capture.
    pub(crate) fn within<T>(&self, context: Handle, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.current()?;
        if before == context {
            return self.relaxed(work);
        }
        self.make_current(context)?;
        let done = self.relaxed(work);
        let _ = self.make_current(before); // fails only with the device, as all that follows
        done
    }

    /// Does `work` in the relaxed capture mode, and then sets the thread's mode back. In the mode that threads begin
    /// with, queries of events, allocations and others fail while another thread captures a graph in global mode, and
    /// invalidate that graph.
    fn relaxed<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut mode = RELAXED;
        let is_relaxed = call!(self, exchange_capture_mode(&raw mut mode)).is_ok();
        let done = work();
        if is_relaxed {
            let _ = call!(self, exchange_capture_mode(&raw mut mode)); // sets a variable, as the first call did
        }
        done
    }

    /// A stream in the current context.
    pub(crate) fn new_stream(&self) -> Result<Handle> {
        get!(self, stream_create(NON_BLOCKING))
    }

    pub(crate) fn destroy_stream(&self, stream: Handle) -> Result<()> {
        call!(self, stream_destroy(stream))
    }

    /// Makes later work of `stream` wait for the work in front of the last record of `event`.
    pub(crate) fn wait_on(&self, stream: Handle, event: Handle) -> Result<()> {
        call!(self, stream_wait(stream, event, 0))
    }

    /// An event in the current context.
    pub(crate) fn new_event(&self) -> Result<Handle> {
        get!(self, event_create(WITHOUT_TIMES))
    }

    pub(crate) fn destroy_event(&self, event: Handle) -> Result<()> {
        call!(self, event_destroy(event))
    }

    /// Records `event` behind all work that `stream` has now.
    pub(crate) fn record(&self, event: Handle, stream: Handle) -> Result<()> {
        call!(self, event_record(event, stream))
    }

    /// Returns whether the work in front of the event is known to be done. Some drivers refuse to tell while a graph is
    /// captured, even to a thread in relaxed mode: the caller asks again.
    pub(crate) fn has_passed(&self, event: Handle) -> Result<bool> {
        let (name, query) = self.api.event_query;
        // SAFETY: as in `call`.
        match unsafe { query(event) } {
            NOT_READY | CAPTURE_UNSUPPORTED => Ok(false),
            code => self.checked(name, code).map(|()| true),
        }
    }

    /// Waits on the host until the work in front of the event is done.
    pub(crate) fn synchronize(&self, event: Handle) -> Result<()> {
        call!(self, event_synchronize(event))
    }

    /// Allocates memory on the device of the current context; returns its address.
    pub(crate) fn allocate(&self, len: usize) -> Result<u64> {
        get!(self, allocate(len))
    }

    /// Frees memory of [`Driver::allocate`].
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        call!(self, free(address))
    }

    /// Copies `len` bytes to the device's memory at `to`, behind the other work of `stream`.
    ///
    /// # Safety
    /// The bytes at `from` are initialised, stay there and do not change until the stream has done the copy; those at
    /// `to` belong to the caller.
    pub(crate) unsafe fn copy(
        &self,
        to: u64,
        from: *const u8,
        len: usize,
        stream: Handle,
    ) -> Result<()> {
        call!(self, copy(to, from.cast(), len, stream))
    }

    /// The result of a call of `function` that returned `code`.
    fn checked(&self, function: &CStr, code: Code) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.failure(function, code)) }
    }

    /// The error of a call of `function` that returned `code`.
    fn failure(&self, function: &CStr, code: Code) -> Error {
        let mut name = null();
        let (_, error_name) = self.api.error_name;
        // SAFETY: `name` is written, to a text that lives as long as the library, or left null.
        unsafe { error_name(code, &raw mut name) };
        let name = if name.is_null() {
            "an unknown error".into()
        } else {
            // SAFETY: the driver's text, which ends with 0.
            unsafe { CStr::from_ptr(name) }.to_string_lossy()
        };
        let text = format!("{} failed with {name} ({code})", function.to_string_lossy());
        match code {
            // An invalid value or handle, or a stream that is being captured.
            1 | 400 | 900..=909 => Error::new(ErrorKind::InvalidArgument, text),
            OUT_OF_MEMORY => Error::new(ErrorKind::OutOfMemory, text)
                .hint("leave the device more memory: smaller batches, or fewer of them ahead"),
            // Not initialised, a driver that is a stub, no device, no such device.
            3 | 34 | 100 | 101 => Error::new(ErrorKind::NotFound, text)
                .hint("is there a device that this process may use, and was it not forked?"),
            // Refused by the operating system, not permitted, or not supported.
            304 | 800..=804 => Error::new(ErrorKind::Unsupported, text),
            _ => Error::new(ErrorKind::DeviceLost, text)
                .hint("start the process again and resume: it cannot use the device any more"),
        }
    }
}

// SAFETY: the driver pins pages; it reads them only for copies that `Ring` or a user of the driver starts.
unsafe impl Registrar for Driver {
    fn register(&self, start: NonNull<u8>, len: usize) -> Result<Registered> {
        self.check_ours()?;
        let context = self.registering_context()?;
        self.within(context, || {
            let (name, register) = self.api.host_register;
            let start = start.as_ptr().cast();
            // SAFETY: the driver refuses what is not mapped.
            match unsafe { register(start, len, PORTABLE) } {
                SUCCESS => Ok(Registered::Ours),
                ALREADY_REGISTERED => Ok(Registered::Others),
                // SAFETY: as above. Memory that is mapped for reading only is registered as such.
                code => match unsafe { register(start, len, PORTABLE | READ_ONLY) } {
                    SUCCESS => Ok(Registered::Ours),
                    _ => Err(self.failure(name, code)),
                },
            }
        })
    }

    fn unregister(&self, start: NonNull<u8>, _: usize) {
        if self.is_ours() {
            let done = self.registering_context().and_then(|context| {
                self.within(context, || call!(self, host_unregister(start.as_ptr().cast())))
            });
            let _ = done; // an ended driver has forgotten the memory, and a lost device too
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.name())
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Cuda => "cuda",
            Kind::Hip => "hip",
        }
    }

    /// The driver that this process, or the process that it was forked from, has opened.
    fn opened(self) -> &'static OnceLock<Driver> {
        static CUDA: OnceLock<Driver> = OnceLock::new();
        static HIP: OnceLock<Driver> = OnceLock::new();
        match self {
            Kind::Cuda => &CUDA,
            Kind::Hip => &HIP,
        }
    }

    /// The file of the library: `DLFS_CUDA_LIBRARY` and `DLFS_HIP_LIBRARY` name others.
    fn library(self) -> Result<CString> {
        let (variable, name) = match self {
            Kind::Cuda => ("DLFS_CUDA_LIBRARY", "libcuda.so.1"),
            Kind::Hip => ("DLFS_HIP_LIBRARY", "libamdhip64.so"),
        };
        let named = std::env::var(variable).unwrap_or_else(|_| name.to_owned());
        CString::new(named).map_err(|_| dlfs_base::error::invalid(format!("{variable} has a NUL")))
    }
}

/// The text of the last failure of `dlopen` or `dlsym` in this thread.
fn last_error() -> String {
    // SAFETY: returns null, or a text that is valid until the next such call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason is given".to_owned();
    }
    // SAFETY: as above; it ends with 0.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Calls a function of the table, and checks its code.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),*)) => {{
        let (name, function) = $driver.api.$function;
        // SAFETY: pointers are to local variables that the function writes, or are not followed before it has checked
        // them; the driver refuses handles that it does not know.
        let code = unsafe { function($($argument),*) };
        $driver.checked(name, code)
    }};
}
use call;

/// Calls a function of the driver that writes its result, a number, to its first argument.
macro_rules! get {
    ($driver:expr, $function:ident($($argument:expr),*)) => {{
        let mut result = 0;
        call!($driver, $function(&raw mut result $(, $argument)*)).map(|()| result)
    }};
}
use get;

/// Defines the table: a function's arguments, and its names in CUDA and in HIP.
macro_rules! api {
    ($($function:ident($($argument:ty),*): $cuda:literal, $hip:literal;)*) => {
        /// The functions of a driver, each with its name. CUDA and HIP differ in names only: their handles are
        /// pointers, their flags and codes the same numbers.
        struct Api {
            $($function: (&'static CStr, unsafe extern "C" fn($($argument),*) -> Code),)*
        }

        impl Api {
            /// Finds all functions.
            fn find_all(library: NonNull<c_void>, kind: Kind) -> Result<Api> {
                type Found = (&'static CStr, NonNull<c_void>);
                let find = |cuda: &'static CStr, hip: &'static CStr| -> Result<Found> {
                    let name = if kind == Kind::Cuda { cuda } else { hip };
                    // SAFETY: the library is open and stays so; the name ends with 0.
                    let found = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
                    let found = NonNull::new(found).ok_or_else(|| {
                        let text = format!("the driver has no {}", name.to_string_lossy());
                        Error::new(ErrorKind::Unsupported, text).hint("install a newer driver")
                    })?;
                    Ok((name, found))
                };
                Ok(Api {
                    $($function: {
                        let (name, found) = find($cuda, $hip)?;
                        type Function = unsafe extern "C" fn($($argument),*) -> Code;
                        // SAFETY: the drivers declare the function of this name with these arguments.
                        (name, unsafe { std::mem::transmute::<NonNull<c_void>, Function>(found) })
                    },)*
                })
            }
        }
    };
}

api! {
    init(u32): c"cuInit", c"hipInit";
    device_count(*mut c_int): c"cuDeviceGetCount", c"hipGetDeviceCount";
    device(*mut c_int, c_int): c"cuDeviceGet", c"hipDeviceGet";
    bus_id(*mut c_char, c_int, c_int): c"cuDeviceGetPCIBusId", c"hipDeviceGetPCIBusId";
    primary_state(c_int, *mut u32, *mut c_int): c"cuDevicePrimaryCtxGetState", c"hipDevicePrimaryCtxGetState";
    retain(*mut Handle, c_int): c"cuDevicePrimaryCtxRetain", c"hipDevicePrimaryCtxRetain";
    current(*mut Handle): c"cuCtxGetCurrent", c"hipCtxGetCurrent";
    make_current(Handle): c"cuCtxSetCurrent", c"hipCtxSetCurrent";
    host_register(*mut c_void, usize, u32): c"cuMemHostRegister_v2", c"hipHostRegister";
    host_unregister(*mut c_void): c"cuMemHostUnregister", c"hipHostUnregister";
    allocate(*mut u64, usize): c"cuMemAlloc_v2", c"hipMalloc";
    free(u64): c"cuMemFree_v2", c"hipFree";
    copy(u64, *const c_void, usize, Handle): c"cuMemcpyHtoDAsync_v2", c"hipMemcpyHtoDAsync";
    exchange_capture_mode(*mut c_int): c"cuThreadExchangeStreamCaptureMode", c"hipThreadExchangeStreamCaptureMode";
    stream_create(*mut Handle, u32): c"cuStreamCreate", c"hipStreamCreateWithFlags";
    stream_destroy(Handle): c"cuStreamDestroy_v2", c"hipStreamDestroy";
    stream_wait(Handle, Handle, u32): c"cuStreamWaitEvent", c"hipStreamWaitEvent";
    event_create(*mut Handle, u32): c"cuEventCreate", c"hipEventCreateWithFlags";
    event_record(Handle, Handle): c"cuEventRecord", c"hipEventRecord";
    event_query(Handle): c"cuEventQuery", c"hipEventQuery";
    event_synchronize(Handle): c"cuEventSynchronize", c"hipEventSynchronize";
    event_destroy(Handle): c"cuEventDestroy_v2", c"hipEventDestroy";
    error_name(Code, *mut *const c_char): c"cuGetErrorName", c"hipDrvGetErrorName";
}

// Codes, the same in CUDA and in HIP.
const SUCCESS: Code = 0;
const OUT_OF_MEMORY: Code = 2;
const NOT_READY: Code = 600;
const ALREADY_REGISTERED: Code = 712;
const CAPTURE_UNSUPPORTED: Code = 900;

// Flags of registered memory: for all contexts, and mapped for reading only.
const PORTABLE: u32 = 1;
const READ_ONLY: u32 = 8;

/// The mode of a thread whose calls leave the captures of other threads alone.
const RELAXED: c_int = 2;

/// The flag of a stream that does not wait for the default one.
const NON_BLOCKING: u32 = 1;

/// The flag of an event that records no times.
const WITHOUT_TIMES: u32 = 2;
