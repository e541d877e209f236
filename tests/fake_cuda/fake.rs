//! Opens the driver for tests in Rust.
#![allow(unsafe_code)] // calls the library

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;

use crate::state::{Code, Counts};

/// The opened driver, whose process is to use it.
#[derive(Debug, Clone, Copy)]
pub struct Fake(*mut c_void);

// SAFETY: the handle of a library, which any thread may use.
unsafe impl Send for Fake {}
// SAFETY: as above.
unsafe impl Sync for Fake {}

impl Fake {
    /// Opens the library, and makes it the driver of this process, for tests that run alone in it.
    ///
    /// # Panics
    /// If it was not built beside the test program.
    pub fn open() -> Fake {
        Fake::name("DLFS_CUDA_LIBRARY");
        let library = CString::new(Fake::library().into_os_string().into_encoded_bytes());
        let library = library.expect("a path without NUL");
        // SAFETY: the name ends with 0; the library has no constructors.
        let opened = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        assert!(!opened.is_null(), "{library:?} is built with this program");
        Fake(opened)
    }

    /// Names the library to the program by a variable of the environment, without opening it.
    pub fn name(variable: &str) {
        // SAFETY: the test runs alone: other threads of the program wait for its end.
        unsafe { std::env::set_var(variable, Fake::library()) };
    }

    /// The file of the library, beside the test program.
    pub fn library() -> PathBuf {
        let program = std::env::current_exe().expect("this program");
        program.with_file_name("libdlfs_fake_cuda.so")
    }

    fn symbol(self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is open; the name ends with 0.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    fn set(self, name: &CStr, value: u64) {
        // SAFETY: the exported functions that set something have this type.
        let set: extern "C" fn(u64) = unsafe { std::mem::transmute(self.symbol(name)) };
        set(value);
    }

    /// How often the driver was used wrongly.
    pub fn violations(self) -> u64 {
        // SAFETY: the function's type.
        let ask: extern "C" fn() -> u64 =
            unsafe { std::mem::transmute(self.symbol(c"fake_violations")) };
        ask()
    }

    /// The counters so far.
    pub fn counts(self) -> Counts {
        // SAFETY: the function's type.
        let ask: unsafe extern "C" fn(*mut Counts) =
            unsafe { std::mem::transmute(self.symbol(c"fake_counts")) };
        let mut counts = Counts::default();
        // SAFETY: there is room for them.
        unsafe { ask(&raw mut counts) };
        counts
    }

    /// Registering fails behind the next `times`.
    pub fn refuse_registration(self, times: u64) {
        self.set(c"fake_refuse_registration", times);
    }

    /// Allocating fails behind the next `times`; `u64::MAX`: no more.
    pub fn fail_allocation(self, times: u64) {
        self.set(c"fake_fail_allocation", times);
    }

    /// The device is lost behind the next `copies`.
    pub fn lose_after(self, copies: u64) {
        self.set(c"fake_lose_after", copies);
    }

    /// Copying fails behind the next `copies`, and the device is not lost; `u64::MAX`: no more.
    pub fn refuse_copies(self, copies: u64) {
        self.set(c"fake_refuse_copies", copies);
    }

    /// Asking for an event and waiting for one fails with `code`; 0: no more.
    pub fn fail_events(self, code: u64) {
        self.set(c"fake_fail_events", code);
    }

    /// Sets whether another thread captures a graph in global mode.
    pub fn capture(self, is_on: bool) {
        self.set(c"fake_capture", is_on.into());
    }

    /// Sets whether streams begin no work.
    pub fn hold(self, is_on: bool) {
        self.set(c"fake_hold", is_on.into());
    }

    /// Begins to use the driver, as a framework does that has initialised it: with device number `ordinal` if one is
    /// given, whose context becomes the thread's.
    pub fn use_by_others(self, ordinal: Option<u32>) {
        // SAFETY: the functions' types.
        let init: unsafe extern "C" fn(u32) -> Code =
            unsafe { std::mem::transmute(self.symbol(c"cuInit")) };
        // SAFETY: as above.
        let retain: unsafe extern "C" fn(*mut usize, i32) -> Code =
            unsafe { std::mem::transmute(self.symbol(c"cuDevicePrimaryCtxRetain")) };
        let mut context = 0;
        // SAFETY: there is room for the result.
        unsafe {
            assert_eq!(init(0), 0);
            if let Some(ordinal) = ordinal {
                assert_eq!(retain(&raw mut context, ordinal as i32), 0);
                self.make_current(context);
            }
        }
    }

    /// The context of the calling thread.
    pub fn current(self) -> usize {
        // SAFETY: the function's type.
        let ask: unsafe extern "C" fn(*mut usize) -> Code =
            unsafe { std::mem::transmute(self.symbol(c"cuCtxGetCurrent")) };
        let mut context = 0;
        // SAFETY: there is room for the result.
        assert_eq!(unsafe { ask(&raw mut context) }, 0);
        context
    }

    /// Changes the context of the calling thread.
    pub fn make_current(self, context: usize) {
        // SAFETY: the function's type.
        let set: unsafe extern "C" fn(usize) -> Code =
            unsafe { std::mem::transmute(self.symbol(c"cuCtxSetCurrent")) };
        // SAFETY: it keeps the number.
        assert_eq!(unsafe { set(context) }, 0);
    }

    /// A new stream of the calling thread's context.
    pub fn new_stream(self) -> u64 {
        // SAFETY: the function's type.
        let make: unsafe extern "C" fn(*mut usize, u32) -> Code =
            unsafe { std::mem::transmute(self.symbol(c"cuStreamCreate")) };
        let mut stream = 0;
        // SAFETY: there is room for the result.
        assert_eq!(unsafe { make(&raw mut stream, 0) }, 0);
        stream as u64
    }

    /// Gives `stream`, of the calling thread's context, work that reads `len` bytes at `address`: it counts as wrong
    /// use unless they have this digest then. Returns whether the driver took it.
    pub fn expect(self, stream: u64, (address, len): (u64, usize), digest: u64) -> bool {
        // SAFETY: the function's type.
        let expect: extern "C" fn(usize, u64, usize, u64) -> Code =
            unsafe { std::mem::transmute(self.symbol(c"fake_expect")) };
        expect(stream as usize, address, len, digest) == 0
    }

    /// Returns whether all of `bytes` is registered.
    pub fn is_registered(self, bytes: &[u8]) -> bool {
        // SAFETY: the function's type.
        let ask: extern "C" fn(usize, usize) -> u32 =
            unsafe { std::mem::transmute(self.symbol(c"fake_is_registered")) };
        ask(bytes.as_ptr() as usize, bytes.len()) != 0
    }

    /// A copy of the bytes at `address` of a device.
    ///
    /// # Panics
    /// If they are not there, which is not always noticed.
    pub fn bytes(self, (address, len): (u64, usize)) -> Vec<u8> {
        assert_ne!(address, 0, "an address");
        // SAFETY: a device's memory is memory of this process, and tests ask for bytes of a batch that they hold.
        unsafe { std::slice::from_raw_parts(address as *const u8, len) }.to_vec()
    }
}
